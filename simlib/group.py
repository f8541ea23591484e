"""The recording process group: torch's calls -> ops of the log -> Gloo.

The only file that touches the insides of torch. torch hands every call of a rank, from Python or
from C++ (DDP's reducer, FSDP2, functional collectives), to the methods of a `dist.ProcessGroup`;
`RecordingGroup` writes each down and passes it to a Gloo group of the same ranks.

"gloo" and "mpi" name this group in every place where torch takes a backend's name:
`install` wraps torch's one constructor of groups, so that groups made by `new_group`, device
meshes or FSDP2 record too, while `dist.get_backend()` still says ``gloo``.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.utils._device
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d

from .calls import check_collective, check_message, check_peer
from .errors import InvalidCallError
from .oplog import ANY_SOURCE, ASYNC, KIND_ID, NOBODY, REQUEST
from .recorder import count_bytes, is_learners

BACKEND = "simlib"
ACCEPTED_BACKENDS = ("gloo", "mpi")
FOREVER = timedelta(days=30)
"""Gloo's own timeout: hangs are found by simlib, not by Gloo."""

_torch_new_group = c10d._new_process_group_helper
_torch_new_group_call = c10d._new_group_with_tag
_torch_init = c10d.init_process_group
_torch_destroy = c10d.destroy_process_group

_GLOO = dist.ProcessGroup.BackendType.GLOO
_TORCH = os.path.dirname(torch.__file__) + os.sep
_C10D_FILE = c10d.__file__
_API_FILES = frozenset(
    module.__file__ for module in (c10d, c10d_logger, torch.overrides, torch.utils._device)
)
"""torch's files between a call of the learner's and this one."""


class Definition(NamedTuple):
    """A group as torch calls it, and its members as ranks of the world."""

    name: str
    ranks: tuple

    def __hash__(self):
        return hash(self.name)  # looked up at every op: not of thousands of ranks


class _Request:
    """The transport's own request, with the moments noted at which the rank waits and has it."""

    __slots__ = ()

    def _begin(self, work, recorder, start, source):
        self._work = work
        self._recorder = recorder
        self._source = source
        self._result = None
        self.start = start
        self.pending = None

    def wait(self, timeout=timedelta(0)):  # noqa: B008 (torch's own signature; immutable)
        if self._result is not None:  # Gloo would wait for a second message
            return self._result
        if self.pending is not None:
            self.pending.waited(self)
        log = self._recorder.log
        # Who waits for a limited time only goes on by itself: that is no deadlock.
        log.wait_begin(self.start, not timeout and self._recorder.is_alone())
        try:
            self._result = self._work.wait(timeout) if timeout else self._work.wait()
        except BaseException:
            log.wait_failed()
            raise
        log.wait_end(self.start)
        if self._source is not None:
            log.found_peer(self.start, self._source[self._work._source_rank()])
        return self._result

    def source_rank(self):
        return self._work._source_rank()

    _source_rank = source_rank


class BlockingCall(_Request):
    """What a blocking call gets, which does nothing with it but wait: lighter than a `Work`."""

    __slots__ = ("_work", "_recorder", "_source", "_result", "start", "pending")

    def __init__(self, work, recorder, start, source=None):
        self._begin(work, recorder, start, source)


class RecordedWork(_Request, dist.Work):
    """A request that the learner, or torch, may keep and ask."""

    def __init__(self, work, recorder, start, source=None):
        super().__init__()
        self._begin(work, recorder, start, source)

    def is_completed(self):
        done = self._work.is_completed()
        if done:
            self._recorder.log.ended(self.start)
            if self.pending is not None:
                self.pending.waited(self)
        return done

    def get_future(self):
        log = self._recorder.log
        log.promise(self.start)
        future = self._work.get_future()
        future.add_done_callback(lambda _: log.ended(self.start))
        return future

    def is_success(self):
        return self._work.is_success()

    def exception(self):
        return self._work.exception()

    def result(self):
        return self._work.result()

    def synchronize(self):
        return self._work.synchronize()


class RecordedMessage(RecordedWork):
    """The request of an isend or irecv."""

    def get_future(self):
        raise InvalidCallError(
            "the request of an isend or irecv has no future with Gloo: call its wait() instead"
        )


class RecordingGroup(dist.ProcessGroup):
    """A process group that records each call of its rank and passes it on to a transport.

    Parameters
    ----------
    recorder : Recorder
    backend : dist.Backend
        The C++ backend that torch's own C++ code asks for names and options.
    inner : object
        The transport: it has the methods of `dist.ProcessGroup`.
    rank, size : int
    name : str
        torch's name of the group; empty for the default group.
    ranks : tuple of int
        Its members as ranks of the world.
    """

    def __init__(self, recorder, backend, inner, rank, size, name, ranks):
        super().__init__(rank, size)
        self._recorder = recorder
        self._log = recorder.log
        self._backend = backend
        self._inner = inner
        self._ranks = ranks
        self._definition = Definition(name, ranks)
        self._rank = rank
        self._register_backend(torch.device("cpu"), _GLOO, backend)
        self._set_default_backend(_GLOO)

    def __repr__(self):
        return f"the group of ranks {list(self._ranks)}"

    def getBackendName(self):  # noqa: N802 (torch's name)
        return "gloo"

    def _post(self, kind, tensors, *, peer=None, tag=NOBODY, flags=0, reduce_op=None, splits=None):
        """Write one call down; returns its place in the log."""
        recorder = self._recorder
        if recorder.before_op is not None:
            recorder.before_op()
        signature, nbytes = recorder.signature(tensors, reduce_op, splits)
        return self._log.post(
            KIND_ID[kind],
            flags,
            recorder.site(),
            recorder.group(self._definition),
            signature,
            NOBODY if peer is None else self._ranks[peer],
            tag,
            nbytes,
        )

    def post_new_group(self, ranks, members_only):
        """Write down a call of `new_group`: all ranks of the world meet in it, or its members."""
        asked = tuple(sorted(ranks)) if ranks is not None else self._ranks
        recorder = self._recorder
        if recorder.before_op is not None:
            recorder.before_op()
        key = "new_group", asked
        signature = recorder.log.define(key, "signature", ((), "", None, asked))
        where = (f"of {asked}", asked) if members_only else self._definition
        return self._log.post(
            KIND_ID["new_group"], 0, recorder.site(), recorder.group(where), signature,
            NOBODY, NOBODY, 0,
        )  # fmt: skip

    @staticmethod
    def _flags_of_p2p():
        """Flags of a send or recv. torch's send and recv call its isend and irecv: look above."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename in _API_FILES:
            if frame.f_code.co_name in ("send", "recv"):
                return 0
            frame = frame.f_back
        return ASYNC | _request_flag(3)

    def send(self, tensors, dst, tag=0):
        check_peer(self._rank, len(self._ranks), dst, "dst")
        check_message(tensors[0], tag, "dst")
        flags = self._flags_of_p2p()
        start = self._post("send", tensors, peer=dst, tag=tag, flags=flags)
        self._glance_at_message(start, self._rank, dst, tag, tensors[0])
        make = RecordedMessage if flags & ASYNC else BlockingCall
        work = make(self._inner.send(tensors, dst, tag), self._recorder, start)
        return self._keep(work, flags, [(tensors[0], False)])

    def recv(self, tensors, src, tag=0):
        check_peer(self._rank, len(self._ranks), src, "src")
        check_message(tensors[0], tag, "src")
        flags = self._flags_of_p2p()
        start = self._post("recv", tensors, peer=src, tag=tag, flags=flags)
        self._glance_at_message(start, src, self._rank, tag, tensors[0])
        make = RecordedMessage if flags & ASYNC else BlockingCall
        work = make(self._inner.recv(tensors, src, tag), self._recorder, start)
        return self._keep(work, flags, [(tensors[0], True)])

    def recv_anysource(self, tensors, tag=0):
        check_message(tensors[0], tag, "src")
        flags = ANY_SOURCE | self._flags_of_p2p()
        start = self._post("recv", tensors, tag=tag, flags=flags)
        work = self._inner.recv_anysource(tensors, tag)
        make = RecordedMessage if flags & ASYNC else BlockingCall
        work = make(work, self._recorder, start, source=self._ranks)
        return self._keep(work, flags, [(tensors[0], True)])

    def _glance_at_message(self, start, src, dst, tag, tensor):
        if self._recorder.meetings is None:
            return
        meeting = self._definition, src, dst, tag
        self._recorder.glance(start, meeting, str(tensor.dtype), count_bytes(tensor))

    def _keep(self, work, flags, buffers):
        """Keep the learner's own request, and watch its buffers, until it is waited for.

        Gloo forgets a message whose request is dropped, and its receiver waits for ever.
        """
        pending = self._recorder.pending
        if flags & REQUEST:
            work.pending = pending
            pending.add(work, buffers)
        elif pending:
            pending.compare(work, buffers)
        return work

    def barrier(self, opts=None):
        opts = opts if opts is not None else dist.BarrierOptions()
        start = self._post("barrier", (), flags=_async_flag(opts))
        self._recorder.glance(start, self._definition, "barrier", None, None, None, 0)
        return RecordedWork(self._inner.barrier(opts), self._recorder, start)

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        start = self._post("barrier", ())
        self._recorder.glance(start, self._definition, "barrier", None, None, None, 0)
        self._log.wait_begin(start, self._recorder.is_alone())
        try:
            limit = FOREVER if timeout is None else timeout
            self._inner.monitored_barrier(limit, wait_all_ranks)
        except BaseException:
            self._log.wait_failed()
            raise
        self._log.wait_end(start)

    def _set_sequence_number_for_group(self):
        self._backend._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self):
        return self._backend._get_sequence_number_for_group()


def _async_flag(opts):
    """ASYNC for a call that returned a request, REQUEST too where the learner has it."""
    return ASYNC | _request_flag(3) if opts is not None and opts.asyncOp else 0


def _request_flag(depth):
    """REQUEST where the learner's own code made the call, not one of torch's modules."""
    frame = sys._getframe(depth)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_learners(file):
            return REQUEST
        if file.startswith(_TORCH) and file not in _API_FILES:
            return 0
        frame = frame.f_back
    return 0


def _collective(kind, method, payload, *, reduces=False, rooted=False, splits=None):
    """A method of `RecordingGroup` that records one sort of collective.

    ``payload`` takes the call's arguments and gives the tensors that count as this rank's bytes.
    """

    def record_and_pass_on(self, *args):
        opts = args[-1] if args and not isinstance(args[-1], (list, torch.Tensor)) else None
        flags = _async_flag(opts)
        root = opts.rootRank if rooted else None
        check_collective(kind, method, self._rank, len(self._ranks), opts, root, args)
        tensors = payload(self, *args)
        reduce_op = hash(opts.reduceOp) if reduces and opts is not None else None
        start = self._post(
            kind,
            tensors,
            peer=root,
            flags=flags,
            reduce_op=reduce_op,
            splits=splits(args, len(self._ranks)) if splits else None,
        )
        dtype = tensors[0].dtype if len(tensors) else None
        size = None if kind in _UNLIKE_SIZES else sum(map(torch.Tensor.numel, tensors))
        self._recorder.glance(start, self._definition, kind, root, reduce_op, dtype, size)
        is_blocking = not flags and sys._getframe(1).f_code.co_filename == _C10D_FILE
        make = BlockingCall if is_blocking else RecordedWork
        work = make(getattr(self._inner, method)(*args), self._recorder, start)
        if flags & REQUEST or self._recorder.pending:
            self._keep(work, flags, _buffers(args))
        return work

    record_and_pass_on.__name__ = method
    setattr(RecordingGroup, method, record_and_pass_on)


_UNLIKE_SIZES = ("scatter", "all_to_all")
"""Collectives whose ranks may rightly bring different amounts."""


def _flat(lists):
    return [tensor for tensors in lists for tensor in tensors]


def _buffers(args):
    """The tensors of a collective; each counts as written, for most of them are."""
    found = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            found.append((arg, True))
        elif isinstance(arg, list):
            found += _buffers(arg)
    return found


def _sizes_of_lists(args, size):
    outputs, inputs = args[0], args[1]
    return tuple(t.numel() for t in inputs), tuple(t.numel() for t in outputs)


def _splits(args, size):
    """Elements this rank sends to each and expects from each, in an all_to_all_single."""
    output, tensor, output_splits, input_splits = args[:4]
    return _parts(tensor, input_splits, size), _parts(output, output_splits, size)


def _parts(tensor, rows, size):
    """Elements of the parts; torch's empty list means even parts, one for each rank."""
    if not rows:
        return (tensor.numel() // size,) * size
    row = tensor.numel() // max(1, tensor.shape[0])
    return tuple(count * row for count in rows)


def _define_collectives():
    first = lambda self, tensors, *_: tensors  # noqa: E731
    second = lambda self, _, tensors, *__: tensors  # noqa: E731
    second_flat = lambda self, _, lists, *__: _flat(lists)  # noqa: E731
    second_one = lambda self, _, tensor, *__: (tensor,)  # noqa: E731

    _collective("broadcast", "broadcast", first, rooted=True)
    _collective("all_reduce", "allreduce", first, reduces=True)
    _collective("all_reduce", "allreduce_coalesced", first, reduces=True)
    _collective("reduce", "reduce", first, reduces=True, rooted=True)
    _collective("gather", "gather", second, rooted=True)
    _collective(
        "scatter",
        "scatter",
        lambda self, outputs, inputs, opts, *_: (
            inputs[0] if opts.rootRank == self.rank() else outputs
        ),
        rooted=True,
    )
    _collective("all_gather", "allgather", second)
    _collective("all_gather", "allgather_coalesced", second)
    _collective("all_to_all", "alltoall", second, splits=_sizes_of_lists)
    for name in ("all_to_all_single", "alltoall_base"):
        _collective("all_to_all", name, second_one, splits=_splits)
    for name in ("all_gather_single", "_allgather_base"):
        _collective("all_gather", name, second_one)
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        _collective("all_gather", name, second)
    _collective("reduce_scatter", "reduce_scatter", second_flat, reduces=True)
    for name in ("reduce_scatter_single", "_reduce_scatter_base"):
        _collective("reduce_scatter", name, second_one, reduces=True)
    for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        _collective("reduce_scatter", name, second, reduces=True)


_define_collectives()


def gloo_member(recorder):
    """How a real rank becomes a member of a group, for `install`: Gloo is its transport."""

    def create(options, ranks, name):
        store, rank, size = options.store, options.group_rank, options.group_size
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout=options.timeout)
        gloo._set_sequence_number_for_group()
        # ProcessGroupGloo lacks the newer method names; a C++ ProcessGroup around it has them all.
        inner = dist.ProcessGroup(store, rank, size)
        inner._set_default_backend(_GLOO)
        inner._register_backend(torch.device("cpu"), _GLOO, gloo)
        return RecordingGroup(recorder, gloo, inner, rank, size, name, ranks)

    return create


def install(create):
    """Make "gloo" (and "mpi") mean the recording group in this process.

    ``create(options, ranks, name)`` makes the calling rank's `RecordingGroup`.
    """

    def create_from_options(options, _):
        ranks = tuple(options.global_ranks_in_group)
        name = str(options.group_id) if ranks else ""
        return create(options, ranks or tuple(range(options.group_size)), name)

    def new_recording_group(size, rank, ranks, backend, store, *args, **kwargs):
        if not _is_ours(backend):
            return _torch_new_group(size, rank, ranks, backend, store, *args, **kwargs)
        backend = dist.Backend(BACKEND)
        group, store = _torch_new_group(size, rank, ranks, backend, store, *args, **kwargs)
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            c10d._world.pg_map[group] = "gloo", store
            c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(dist.Backend("gloo")))
        return group, store

    def new_group_call(ranks=None, *args, **kwargs):
        world = dist.group.WORLD
        recorder = world._recorder
        start = world.post_new_group(ranks, kwargs.get("use_local_synchronization", False))
        recorder.log.wait_begin(start, recorder.is_alone())
        try:
            group = _torch_new_group_call(ranks, *args, **kwargs)
        except BaseException:
            recorder.log.wait_failed()
            raise
        recorder.log.wait_end(start)
        return group

    dist.Backend.register_backend(BACKEND, create_from_options, extended_api=True, devices=["cpu"])
    c10d._new_process_group_helper = new_recording_group
    c10d._new_group_with_tag = new_group_call
    for module in (dist, c10d):
        module.init_process_group = _check_init_process_group
        module.destroy_process_group = _destroy_process_group


def _is_ours(backend):
    """Whether a backend's name, as torch writes them, means Gloo, MPI or torch's own choice."""
    name = str(backend or "undefined").lower()
    cpu = [part.partition(":")[2] for part in name.split(",") if part.startswith("cpu:")]
    return (cpu[0] if cpu else name) in (*ACCEPTED_BACKENDS, BACKEND, "undefined")


def join_world(store, rank, world_size):
    """Make the default group of this rank; the learner's own call will find it there."""
    _torch_init("gloo", store=store, rank=rank, world_size=world_size, timeout=FOREVER)


def _check_init_process_group(backend=None, init_method=None, timeout=None, *args, **kwargs):
    """`init_process_group` as the learner finds it: the world is there, so it only checks."""
    world = dist.group.WORLD
    told = dict(zip(("world_size", "rank"), args, strict=False)) | kwargs
    _check_init(backend, told, {"world_size": world.size(), "rank": world.rank()})
    if timeout is not None:
        world._backend._set_default_timeout(timeout)


def _destroy_process_group(group=None):
    """`destroy_process_group` as the learner finds it: the engine takes the default group down."""
    if group is not None and group is not dist.group.WORLD:
        _torch_destroy(group)


def _check_init(backend, told, true):
    """Refuse an `init_process_group` that contradicts the run."""
    if backend is not None and not _is_ours(backend):
        raise InvalidCallError(
            f"init_process_group asks for the backend {str(backend)!r}; "
            "the ranks of this run speak 'gloo': name that, or 'mpi', or none"
        )
    for name, truth in true.items():
        value = told.get(name, -1)
        if value not in (-1, None, truth):
            raise InvalidCallError(
                f"init_process_group says {name}={value}, but here {name} is {truth}: "
                f"pass the {name} that the rank function was given"
            )


class Membership:
    """This rank's place in the world: what a run may change of it, and the way back."""

    def __init__(self, store):
        self._store = store

    def begin(self, run_number):
        """A run begins: groups are counted anew, and find each other where no older run has been.

        ``run_number`` must be the same on all ranks.
        """
        store = dist.PrefixStore(f"run {run_number}/", self._store)
        c10d._world.pg_map[dist.group.WORLD] = "gloo", store
        c10d._world.group_count = 1

    def end(self):
        """Take down every group but the default one, which gets its own timeout back."""
        default = dist.group.WORLD
        default._backend._set_default_timeout(FOREVER)
        for group in list(c10d._world.pg_map):
            if group is not default:
                _torch_destroy(group)
