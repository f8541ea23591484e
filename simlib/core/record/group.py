"""The recording process group: torch's calls -> ops of the log -> Gloo, NCCL or MPI.

torch passes every call of a rank, from Python or from C++ (DDP's reducer, FSDP2, functional
collectives), to the methods of a `dist.ProcessGroup`. `RecordingGroup` records each call and passes
it to the transport of the same ranks (`transports`). `backend` replaces torch's own group by it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.utils._device
from torch.distributed import c10d_logger
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import default_pg_timeout

from ..environment import is_learners
from .arguments import Place, check_collective, check_message, check_peer
from .oplog import ANY_SOURCE, ASYNC, CALL, IS_OP, KIND_ID, NOBODY, REQUEST
from .pending import buffers_of, version_of
from .recorder import (
    NOTHING_TO_WAIT_FOR,
    BlockingCall,
    RecordedMessage,
    RecordedWork,
    Recorder,
    count_bytes,
)
from .torch_inside import GroupOfItsOwn, leave_uncompiled
from .transports import FOREVER
from .transports.backends import Transport

ONCE, PARTS = "once", "parts"
MAX_CHECKED = 1000
"""The number of different calls that a group remembers."""
_TORCH = os.path.dirname(torch.__file__) + os.sep
_C10D_FILE = c10d.__file__
_TENSORS, _STRIDED = (torch.Tensor, torch.nn.Parameter), torch.strided
_thread_id = threading.get_ident
_API_FILES = frozenset(
    module.__file__ for module in (c10d, c10d_logger, torch.overrides, torch.utils._device)
)
"""The files of torch that are on the stack between a call of the learner and this module."""


class Definition(NamedTuple):
    """A group in the form that torch calls, with its members as ranks of the world."""

    name: str
    ranks: tuple
    description: str = ""

    def __hash__(self):
        return hash(self.name)  # looked up at every op: not of thousands of ranks


class RecordingGroup(GroupOfItsOwn):
    """A process group that records each call of its rank and passes it on to a transport.

    Parameters
    ----------
    recorder : Recorder
    transport : Transport
        The transport that gets the calls. If it does not use torch to copy results into their
        tensors, its ``group`` says so with ``copies_results``, as a `SimulatedGroup` does.
    rank, size : int
    name : str
        The name of the group in torch. Empty for the default group.
    ranks : tuple of int
        The members of the group as ranks of the world.
    """

    def __init__(
        self,
        recorder: Recorder,
        transport: Transport,
        rank: int,
        size: int,
        name: str,
        ranks: tuple,
    ) -> None:
        super().__init__(rank, size)
        self._recorder = recorder
        self._log = recorder.log
        self.transport = transport
        self._group = transport.group
        self._capabilities = transport.capabilities
        self._request = RecordedMessage if transport.name == "gloo" else RecordedWork
        self._copies_results = getattr(self._group, "copies_results", True)
        self._ranks = ranks
        self._definition = Definition(name, ranks)
        self._is_limited = False  # whether the group itself gives up what takes too long
        self._limit: timedelta | None = (
            None  # of messages: Gloo's own is fixed when the group is made
        )
        self._torch_name = self._description = ""
        self._number = None, None  # the numbers of a log, and what this group is among them
        self._checked_calls: tuple[Any, dict] = None, {}  # with the numbers of a log, as above
        self._rank, self._place = rank, Place(rank, size)
        for device, sort, backend in transport.registered:
            self._register_backend(device, sort, backend)
            self._set_default_backend(sort)

    def set_timeout(self, timeout: timedelta) -> None:
        """The longest time of an op of this group, from torch's ``timeout=``."""
        recorder, limit_s = self._recorder, timeout.total_seconds()
        self.transport.set_timeout(timeout)
        if hasattr(self._group, "patience_s"):
            self._group.patience_s = limit_s
        if timeout < default_pg_timeout and (recorder.survives or limit_s < recorder.timeout_s):
            self._is_limited = True
            if hasattr(self._group, "limit_s"):
                self._group.limit_s = limit_s
            else:
                self._limit = timeout

    def forget_timeout(self) -> None:
        """From now on, no op of this group has a time limit."""
        self.transport.set_timeout(FOREVER)
        self._is_limited, self._limit = False, None

    def __repr__(self) -> str:
        return f"the group of ranks {list(self._ranks)}"

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        return self.transport.name

    # torch keeps these in the C++ backend, which all groups of a simulation share.

    @property
    def group_name(self) -> str:
        return self._torch_name

    def _set_group_name(self, name):
        self._torch_name = name
        super()._set_group_name(name)

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description):
        self._description = description
        if description not in ("undefined", "default_pg"):
            self._definition = self._definition._replace(description=description)
            self._number = None, None
        super()._set_group_desc(description)

    def _post(self, kind, signature, *, frame=None, to=(None, NOBODY), flags=0):
        """Write one call into the log. Returns its place in the log.

        ``signature`` is the number from `Recorder.signature`. The search for the learner's line
        begins at ``frame``, by default at the caller's caller. ``to`` contains the peer and the
        tag.
        """
        frame = sys._getframe(1).f_back if frame is None else frame
        if _thread_id() != self._recorder.thread:
            flags |= self._recorder.flag_of_thread()
        return self._write(self._packed(kind, signature, frame, to, flags))

    def _packed(self, kind, signature, frame, to, flags):
        """One call as the log keeps it."""
        (peer, tag), (number, nbytes) = to, signature
        site, peer = self._recorder.site(frame), NOBODY if peer is None else self._ranks[peer]
        where = site, self._group_number(), number
        return CALL.pack(IS_OP, KIND_ID[kind], flags, *where, peer, tag, nbytes)

    def _write(self, packed):
        recorder = self._recorder
        if recorder.before_op is not None:
            recorder.before_op()
        if recorder.stream_ends.open:
            recorder.stream_ends.look_in_turn()
        start = self._log.post_packed(packed)
        if self._is_limited:
            recorder.limited.add(start)
        return start

    def _checked(self):
        """Remembered results of checks of calls with plain tensors. An equal call breaks no rule
        either."""
        numbers, checked = self._checked_calls
        if numbers is not self._log.numbers or len(checked) > MAX_CHECKED:
            checked = {}
            self._checked_calls = self._log.numbers, checked
        return checked

    def _pass_on(self, start, method, *args):
        """Call the transport. If it refuses, the op has failed (its peer may have died).

        A blocking op of NCCL returns no request, because only its stream waits.
        """
        try:
            work = getattr(self._group, method)(*args)
        except BaseException:
            self._log.wait_failed(start)
            raise
        return NOTHING_TO_WAIT_FOR if work is None else work

    def _group_number(self):
        numbers, number = self._number
        if numbers is not self._log.numbers:  # a log that is cleared begins again
            number = self._recorder.group(self._definition)
            self._number = self._log.numbers, number
        return number

    def post_new_group(self, ranks: Sequence[int] | None, members_only: bool) -> int:
        """Record a call of `new_group`. All ranks of the world, or the new members, meet in the
        call."""
        asked = tuple(sorted(ranks)) if ranks is not None else self._ranks
        recorder = self._recorder
        if recorder.before_op is not None:
            recorder.before_op()
        key = "new_group", asked
        signature = recorder.log.define(key, "signature", ((), "", None, asked))
        site = recorder.site(sys._getframe(1))
        where = Definition(f"of {asked}", asked) if members_only else self._definition
        group = recorder.group(where)
        return self._log.post(KIND_ID["new_group"], 0, site, group, signature, NOBODY, NOBODY, 0)

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Any:
        return self._message("send", tensors, tag, dst)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Any:
        return self._message("recv", tensors, tag, src)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        return self._message("recv_anysource", tensors, tag)

    def _message(self, method, tensors, tag, peer=None):
        """Record a message and pass it on; ``peer`` is None for a recv of any source."""
        recorder, tensor = self._recorder, tensors[0]
        flags, frame = ASYNC, sys._getframe(1).f_back
        while frame is not None and (code := frame.f_code).co_filename in _API_FILES:
            if code.co_name in ("send", "recv"):  # which wait, so the learner has no request
                flags = 0
            frame = frame.f_back
        if peer is None:
            flags |= ANY_SOURCE
        if _thread_id() != recorder.thread:
            flags |= recorder.flag_of_thread()
        numbers, checked = self._checked_calls
        if numbers is not self._log.numbers or len(checked) > MAX_CHECKED:
            checked = self._checked()
        known = None
        is_plain = type(tensor) in _TENSORS and tensor.layout is _STRIDED and tensor.is_contiguous()
        if is_plain and frame is not None:
            code, facts = frame.f_code, (tensor.shape, tensor.dtype, tensor.device)
            key = method, peer, type(peer), tag, type(tag), flags, id(code), frame.f_lasti, facts
            known = checked.get(key)
        if known is None:
            flags |= _request_flag(frame) if flags & ASYNC else 0
            packed = self._new_message(method, tensors, tag, peer, flags, frame)
            gpu = recorder.stream_ends.device_of(tensors)
            known = packed, gpu, flags, frame and frame.f_code  # which keeps the id its own
            if is_plain and frame is not None and is_learners(frame.f_code.co_filename):
                checked[key] = known
        packed, gpu, flags, _ = known
        start = self._write(packed)
        if recorder.fingerprints is not None and peer is not None:
            pair = (self._rank, peer) if method == "send" else (peer, self._rank)
            self._check_message_fingerprint(start, *pair, tag, tensor)
        pending, is_kept = recorder.pending, flags & REQUEST
        version = version_of(tensor) if is_kept else None
        if gpu is not None:
            recorder.stream_ends.begin(gpu)
        args = (tensors, tag) if peer is None else (tensors, peer, tag)
        try:  # as `_pass_on`
            request = getattr(self._group, method)(*args)
        except BaseException:
            self._log.wait_failed(start)
            raise
        if request is None:
            request = NOTHING_TO_WAIT_FOR
        work = (self._request if flags & ASYNC else BlockingCall)(request, recorder, start)
        if peer is None:
            work._source = self._ranks
        if self._limit is not None:
            work.limit = self._limit
        if gpu is not None:
            work.gpu = gpu
        if is_kept:  # as `_keep`
            work.pending = pending
            pending.add_one(work, tensor, method != "send", version)
        elif pending.requests:
            pending.compare_one(work, tensor, method != "send")
        return work

    def _new_message(self, method, tensors, tag, peer, flags, frame):
        """Check a message that differs from all earlier ones; returns its call, packed."""
        check_message(method, tensors[0], tag, self._capabilities)
        kind = "send" if method == "send" else "recv"
        if peer is not None:
            check_peer(self._rank, len(self._ranks), peer, "dst" if kind == "send" else "src")
        signature = self._recorder.signature(tensors, None, None)
        return self._packed(kind, signature, frame, (peer, tag), flags)

    @contextlib.contextmanager
    def together(self, device: torch.device) -> Iterator[list]:
        """Let messages that are posted within the block begin together. Yields a list for requests.

        If the backend of this device cannot do that, the messages begin one after the other.
        """
        works: list[RecordedWork] = []
        backends = {of.type: backend for of, _, backend in self.transport.registered}
        if not getattr(backends.get(device.type), "supports_coalescing", False):
            yield works
            return
        self._group._start_coalescing(device)
        try:
            yield works
        finally:
            whole = self._group._end_coalescing(device)
            for work in works:
                work.is_part_of(whole)

    def _check_message_fingerprint(self, start, src, dst, tag, tensor):
        meeting = self._definition, src, dst, tag
        dtype = str(tensor.dtype) if tensor.numel() else None
        self._recorder.check_fingerprint(start, meeting, dtype, count_bytes(tensor))

    def _keep(self, work, flags, buffers):
        """Keep the learner's own request, and watch its buffers, until the learner waits for it.

        Otherwise, if Python deleted the request, Gloo would forget the message, and its receiver
        would wait for ever.
        """
        pending = self._recorder.pending
        if flags & REQUEST:
            work.pending = pending
            pending.add(work, buffers)
        elif buffers is not None:
            pending.compare(work, buffers)
        return work

    def _is_watched(self, flags):
        """Whether to watch the buffers of an op: the learner has its request, or others are
        open."""
        return flags & REQUEST or self._recorder.pending.requests

    def barrier(self, opts: Any = None) -> Any:
        opts = opts if opts is not None else dist.BarrierOptions()
        flags, signature = _async_flag(opts), self._recorder.signature((), None, None)
        start = self._post("barrier", signature, flags=flags)
        self._recorder.check_fingerprint(start, self._definition, "barrier", None, None, None, 0)
        if not flags:  # NCCL's waits for its GPU before it returns
            recorder = self._recorder
            self._log.wait_begin(start, start not in recorder.limited and recorder.is_alone())
        return RecordedWork(self._pass_on(start, "barrier", opts), self._recorder, start)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        start = self._post("barrier", self._recorder.signature((), None, None))
        self._recorder.check_fingerprint(start, self._definition, "barrier", None, None, None, 0)
        # torch names its default of 30 minutes where the learner gave no limit.
        limit = timeout if timeout is not None and timeout < default_pg_timeout else FOREVER
        self._log.wait_begin(start, limit is FOREVER and self._recorder.is_alone())
        try:
            self._group.monitored_barrier(limit, wait_all_ranks)
        except BaseException:
            self._log.wait_failed()
            raise
        self._log.wait_end(start)

    def _signature_of(self, kind, its, tensors, args, reduce_op):
        """The signature of a collective, and the facts for its fingerprint: dtype and size."""
        splits = its.splits(args, len(self._ranks)) if its.splits else None
        size = None if kind in _UNLIKE_SIZES else sum(map(torch.Tensor.numel, tensors))
        dtype = tensors[0].dtype if len(tensors) and size != 0 else None
        return self._recorder.signature(tensors, reduce_op, splits), dtype, size

    def _set_sequence_number_for_group(self):
        self._counts._set_sequence_number_for_group()

    def _get_sequence_number_for_group(self):
        return self._counts._get_sequence_number_for_group()

    @property
    def _counts(self):
        """The counter of this group's collectives, for torch."""
        group = self._group
        return group if isinstance(group, dist.ProcessGroup) else self.transport.registered[-1][2]


def _plain(args, opts):
    """The facts that the rules need about one or two dense tensors. None for other arguments."""
    found: list[Any] = []
    for arg in args:
        if arg is opts or (type(arg) is list and not arg):
            continue
        if type(arg) is list and len(arg) == 1:
            (arg,) = arg
        if type(arg) not in _TENSORS or arg.layout is not torch.strided or not arg.is_contiguous():
            return None
        found += arg.shape, arg.dtype, arg.device
    return tuple(found)


def _async_flag(opts):
    """ASYNC for a call that returned a request; also REQUEST if the learner has the request."""
    is_async = opts is not None and opts.asyncOp
    return ASYNC | _request_flag(sys._getframe(1).f_back) if is_async else 0


def _request_flag(frame):
    """REQUEST if the learner's own code made the call, and not one of torch's modules."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_learners(file):
            return REQUEST
        if file.startswith(_TORCH) and file not in _API_FILES:
            return 0
        frame = frame.f_back
    return 0


@dataclass(frozen=True)
class _Traits:
    """The special properties of one kind of collective.

    Attributes
    ----------
    copies : {ONCE, PARTS}, optional
        How Gloo uses torch to copy the result into each tensor of the first argument: once, or in
        one part for each rank.
    divides : bool
        Whether Gloo computes a mean as a sum, after which torch divides the first argument.
    """

    reduces: bool = False
    has_root: bool = False
    splits: Callable | None = None
    copies: str | None = None
    divides: bool = False


def _collective(kind, method, payload, **traits):
    """A method of `RecordingGroup` that records one kind of collective.

    ``payload`` takes the call's arguments and returns the tensors that count as this rank's bytes.
    ``traits`` are the fields of `_Traits`.
    """
    its = _Traits(**traits)

    def record_and_pass_on(self, *args):
        opts = args[-1] if args and not isinstance(args[-1], (list, torch.Tensor)) else None
        flags = _async_flag(opts)
        root = getattr(opts, "rootRank", None) if its.has_root else None
        reduce_op = hash(opts.reduceOp) if its.reduces and opts is not None else None

        key = _plain(args, opts)
        found = key and self._checked().get((method, root, reduce_op, key))
        if not found:
            check_collective(kind, method, self._place, opts, args, self._capabilities)
            found = self._signature_of(kind, its, payload(self, *args), args, reduce_op)
            if key:
                self._checked()[method, root, reduce_op, key] = found
        signature, dtype, size = found
        tensors = payload(self, *args)
        start = self._post(kind, signature, to=(root, NOBODY), flags=flags)
        self._recorder.check_fingerprint(
            start, self._definition, kind, root, reduce_op, dtype, size
        )
        caller = sys._getframe().f_back  # none where native code calls from a thread of its own
        is_blocking = not flags and caller is not None and caller.f_code.co_filename == _C10D_FILE
        make = BlockingCall if is_blocking else RecordedWork
        buffers = None
        if self._is_watched(flags):
            times = {None: 0, ONCE: 1, PARTS: len(self._ranks)}
            own_writes = times[its.copies if self._copies_results else None]
            own_writes += its.divides and self._copies_results and reduce_op == _AVG
            is_source = kind == "broadcast" and root == self._rank
            buffers = [
                *buffers_of(args[:1], not is_source, own_writes),
                *buffers_of(args[1:], False),  # what the rank brings, where that is not the same
            ]
        gpu = self._recorder.gpu_of(tensors)
        work = make(self._pass_on(start, method, *args), self._recorder, start)
        work.gpu = gpu
        if not is_blocking:
            work.is_number = size == 1
        return self._keep(work, flags, buffers)

    record_and_pass_on.__name__ = method
    # Of a model that sends, the recording is no part.
    leave_uncompiled(record_and_pass_on)
    setattr(RecordingGroup, method, record_and_pass_on)


_AVG = hash(dist.ReduceOp.AVG)
_UNLIKE_SIZES = ("scatter", "all_to_all")
"""Collectives in which ranks may contribute different amounts."""


def _sizes_of_lists(args, size):
    outputs, inputs = args[0], args[1]
    return tuple(t.numel() for t in inputs), tuple(t.numel() for t in outputs)


def _splits(args, size):
    """The elements that this rank sends to each rank and expects from each, in
    all_to_all_single."""
    output, tensor, output_splits, input_splits = args[:4]
    return _parts(tensor, input_splits, size), _parts(output, output_splits, size)


def _parts(tensor, rows, size):
    """The elements of each part. For torch, an empty list means one equal part for each rank."""
    if not rows:
        return (tensor.numel() // size,) * size
    row = tensor.numel() // max(1, tensor.shape[0])
    return tuple(count * row for count in rows)


def _define_collectives():
    first = lambda self, tensors, *_: tensors  # noqa: E731
    second = lambda self, _, tensors, *__: tensors  # noqa: E731
    second_flat = lambda self, _, lists, *__: [x for xs in lists for x in xs]  # noqa: E731
    second_one = lambda self, _, tensor, *__: (tensor,)  # noqa: E731

    _collective("broadcast", "broadcast", first, has_root=True)
    _collective("all_reduce", "allreduce", first, reduces=True, divides=True)
    _collective("all_reduce", "allreduce_coalesced", first, reduces=True, copies=ONCE, divides=True)
    _collective("reduce", "reduce", first, reduces=True, divides=True, has_root=True)
    _collective("gather", "gather", second, copies=ONCE, has_root=True)
    _collective(
        "scatter",
        "scatter",
        lambda self, outputs, inputs, opts, *_: (
            inputs[0] if opts.rootRank == self.rank() else outputs
        ),
        has_root=True,
    )
    _collective("all_gather", "allgather", second, copies=ONCE)
    _collective("all_gather", "allgather_coalesced", second, copies=ONCE)
    _collective("all_to_all", "alltoall", second, splits=_sizes_of_lists, copies=ONCE)
    for name in ("all_to_all_single", "alltoall_base"):
        _collective("all_to_all", name, second_one, splits=_splits)
    for name in ("all_gather_single", "_allgather_base"):
        _collective("all_gather", name, second_one, copies=PARTS)
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        _collective("all_gather", name, second, copies=PARTS)
    _collective(
        "reduce_scatter", "reduce_scatter", second_flat, reduces=True, copies=ONCE, divides=True
    )
    for name in ("reduce_scatter_single", "_reduce_scatter_base"):
        _collective("reduce_scatter", name, second_one, reduces=True, copies=ONCE)
    for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        _collective("reduce_scatter", name, second, reduces=True, copies=ONCE)


_define_collectives()
