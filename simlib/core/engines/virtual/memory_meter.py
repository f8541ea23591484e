"""The memory meter of one simulated rank. It counts every storage until its release.

torch allocates through ops, also in C++ (autograd, the buckets of DDP). So the meter finds a
storage as the result of an op, and a weak reference reports its release. It does not see memory
that no op returns, such as scratch space within an op. A storage counts as a parameter, a gradient
or optimizer state if an `nn.Parameter`, its ``.grad`` or an optimizer's ``.state`` uses it, or if
the program says so. The meter looks this up when it needs to know it (for the peak, the history and
the end), because assigning ``.grad`` is not an op. The dtype of a storage is the dtype of the
tensor through which the storage was first found, or got its role.

On an asynchronous device, the meter counts the bytes of the block that the caching allocator gives
to a storage, and products of matrices need a workspace.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import defaultdict
from dataclasses import replace

import torch
from torch.nn import Parameter
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ...model.errors import OutOfMemoryError
from ...model.ledger import (
    CATEGORIES,
    GRADIENTS,
    OPTIMIZER_STATE,
    OTHER,
    PARAMETERS,
    by_category,
    in_words,
    make_ledger,
)
from ...record.torch_inside import is_in_backward, when_imported
from .allocator import NoMemoryLeftError
from .arguments import tensors_in
from .memory_history import History, Moment

_PLAIN = (torch.Tensor, Parameter)
_RANKING = {name: number for number, name in enumerate(reversed(CATEGORIES))}
_PRODUCTS = frozenset(
    overload
    for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot")
    for packet in (getattr(torch.ops.aten, name),)
    for overload in (packet.default, packet.out)
)
"""The ops of a GPU's library of matrix products."""


def _keep(references, value):
    """Keep a weak reference to a value under its id, as long as it lives."""
    key, forget = id(value), references.pop
    references[key] = weakref.ref(value, lambda _: forget(key, None))


class _Workspace:
    """Represents the storage of a workspace, which belongs to no tensor."""


class _Block(weakref.ref):
    """A live storage: a weak reference to it, with its bytes, category and dtype.

    ``given`` is the allocator's block for it, and ``nbytes`` its counted bytes.
    """

    __slots__ = ("given", "key", "kind", "nbytes", "size", "told")

    @property
    def category(self):
        return self.kind[0]


def _locked(method):
    """Make a method of a meter that only one thread can run at a time."""

    @functools.wraps(method)
    def call(meter, *args):
        with meter._lock:
            return method(meter, *args)

    return call


class MemoryMeter:
    """The memory of one rank.

    Parameters
    ----------
    rank : int
    clock : callable
        The rank's virtual time in seconds. Any thread may release a storage, which asks for
        the time.
    memory_bytes : int, optional
        The memory of the rank's device. If the rank needs more, `OutOfMemoryError` is raised.
    site : callable, optional
        The learner's line as a `Site`, for that error.
    lock : RLock, optional
        One lock for all ranks, because a thread of one rank may release memory of another. Threads
        that ranks start run at the same time.
    allocator : CachingAllocator, optional
        The allocator that divides the memory of the device. It knows the size of this memory, so
        the meter does not use ``memory_bytes``.
    workspace_bytes : int
        The permanent memory of matrix products, once for each thread and stream. As in torch,
        autograd has its own thread.
    stream : callable, optional
        It returns the stream (any hashable object) for which the program allocates memory now.

    **Cost** two microseconds per op, two more if it makes or releases a storage; for a new peak or
    a point of the history, half a microsecond per parameter.
    """

    def __init__(
        self,
        rank,
        clock,
        memory_bytes=None,
        site=None,
        lock=None,
        allocator=None,
        workspace_bytes=0,
        stream=int,
    ):
        self.rank = rank
        self._clock = clock
        self._limit = memory_bytes
        self._site = site
        self._lock = lock or threading.RLock()
        self._allocator = allocator
        self._workspace_bytes = workspace_bytes
        self._workspaces = {}
        self._stream = stream
        self._reserved_at_peak = 0
        self._blocks = {}
        self._held = defaultdict(int)  # (category, dtype) -> bytes
        self._total = 0
        self._peak_bytes = 0
        self._peak = Moment(0, 0.0, {})
        self._is_peak_new = False
        self._does_peak_last = False
        self._parameters = {}
        self._owners = {}  # of shards, as the parameters
        self._optimizers = weakref.WeakSet()
        self._stepping = []
        self._history = History()

    @_locked
    def saw(self, args, out, func=None):
        """An op, ``func``, returned ``out``."""
        for arg in args:
            if type(arg) is Parameter and not self._is_met(arg):
                self._meet_parameter(arg)
        self._meet(out)
        if func in _PRODUCTS and self._workspace_bytes:
            self._take_workspace()
        self._note()

    @_locked
    def is_to_train(self, parameters):
        """An optimizer of this rank has got these parameters."""
        for parameter in parameters:
            self._meet_parameter(parameter)
        self._note()

    @_locked
    def has_shard(self, owner):
        """``owner.sharded_param`` is a parameter of this rank.

        The meter finds the parameter through its owner, without a weak reference to it. FSDP2
        replaces the parameter in place, and torch refuses this if there is a weak reference.
        """
        _keep(self._owners, owner)
        self._meet_as_parameter(owner.sharded_param)
        self._note()

    @_locked
    def step_begins(self, optimizer):
        """An optimizer of this rank will step now."""
        self._optimizers.add(optimizer)
        self._stepping.append(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._meet_parameter(parameter)
        self._settle_roles()
        self._note()

    @_locked
    def step_ended(self, optimizer):
        """An optimizer of this rank has stepped."""
        self._stepping.remove(optimizer)
        self._find_roles([optimizer])
        self._note()

    @_locked
    def resized(self, storage):
        """The program has resized a storage directly, without an op."""
        if storage._cdata in self._blocks:
            self._block(storage)
            self._note()

    @_locked
    def tell(self, tensors, category):
        """The storages of these tensors, nested in lists and dicts, are of this category."""
        for tensor in tensors_in(tensors):
            for plain in _plain(tensor):
                self._meet(plain)
                block = self._blocks.get(plain.untyped_storage()._cdata)
                if block is not None:
                    block.told = category
                    self._move(block, category, plain.dtype)
        self._rename_peak()
        self._note()

    def ledger(self):
        """The memory now, at the peak, and in between, as a `Ledger`."""
        self._settle_roles()
        now, peak = self._moment(), self._peak
        points = self._history.with_moments(peak, now)
        ledger = make_ledger(self.rank, now.held, peak.held, peak.time_s, points)
        if self._allocator is None:
            return ledger
        most = self._allocator.peak_reserved_bytes
        return replace(ledger, reserved_bytes=most, reserved_at_peak_bytes=self._reserved_at_peak)

    def _is_met(self, parameter):
        """Whether a parameter is known with its present storage (``.data`` may have changed)."""
        if parameter.layout is not torch.strided:
            return id(parameter) in self._parameters
        block = self._blocks.get(parameter.untyped_storage()._cdata)
        return block is not None and block.category is PARAMETERS

    def _meet_parameter(self, parameter):
        if id(parameter) not in self._parameters:
            _keep(self._parameters, parameter)
        self._meet_as_parameter(parameter)

    def _meet_as_parameter(self, parameter):
        for plain in _plain(parameter):
            self._meet(plain)
        self._mark(parameter, PARAMETERS)
        self._rename_peak()  # it was made as a tensor, and is one no more

    def _rename_peak(self):
        """If the peak still lasts, use the present roles of its blocks."""
        if self._does_peak_last and not self._is_peak_new:
            self._peak.held = self._moment().held

    def _meet(self, out):
        if isinstance(out, torch.Tensor):
            for plain in _plain(out):  # what an unfinished collective gives back wraps its result
                # A sparse tensor has no storage of its own, but its parts.
                if plain.layout is torch.strided:
                    storage = plain.untyped_storage()
                    if storage.device.type == "cpu":  # else torch works out shapes with it
                        self._block(storage, plain.dtype)
        elif isinstance(out, (tuple, list)):
            for one in out:
                self._meet(one)

    def _block(self, storage, dtype=None):
        """Note the block of a storage with its present size. A tensor of this dtype uses the
        storage."""
        key = storage._cdata
        nbytes = storage.nbytes()
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = self._new_block(key, storage, dtype)
        if block.size != nbytes:
            self._resize(block, nbytes)

    def _new_block(self, key, storage, dtype):
        block = _Block(storage, self._released)
        block.key, block.kind, block.told = key, (OTHER, dtype), None
        block.size, block.nbytes, block.given = 0, 0, None
        return block

    def _take_workspace(self):
        key = threading.get_ident(), is_in_backward(), self._stream()
        if key not in self._workspaces:
            self._workspaces[key] = workspace = _Workspace()
            block = self._blocks[key] = self._new_block(key, workspace, torch.uint8)
            self._resize(block, self._workspace_bytes)

    @_locked
    def _released(self, block):
        # Tensors are being taken apart: nothing may be looked up in them here.
        del self._blocks[block.key]
        self._resize(block, 0)
        if self._history.is_due():
            self._history.add(self._moment())

    def _resize(self, block, size):
        nbytes = size if self._allocator is None else self._exchange(block, size)
        more = nbytes - block.nbytes
        if self._limit is not None and more > 0 and self._total + more > self._limit:
            self._refuse(
                f"its device has {self._limit:,.0f} bytes, the rank holds {self._total:,} and "
                f"needs {more:,} more"
            )
        block.size = size
        if more < 0:
            if self._is_peak_new:
                self._keep_peak(self._moment())
            self._does_peak_last = False
        block.nbytes = nbytes
        self._held[block.kind] += more
        self._total += more
        if self._total > self._peak_bytes:
            self._peak_bytes = self._total
            self._is_peak_new = True
            if self._allocator is not None:
                self._reserved_at_peak = self._allocator.reserved_bytes

    def _exchange(self, block, size):
        """The bytes of a block that count, if the allocator has given memory for this size."""
        try:
            block.given = self._allocator.exchange(block.given, size, self._stream())
        except NoMemoryLeftError as error:
            self._refuse(str(error))
        return block.given.nbytes if size else 0

    def _note(self):
        """Look up the roles if the moment is kept: in the history, or as the peak."""
        is_due = self._history.is_due()
        if not is_due and not self._is_peak_new:
            return
        self._find_roles(self._stepping)
        moment = self._moment()
        if is_due:
            self._history.add(moment)
        if self._is_peak_new:
            self._keep_peak(moment)

    def _keep_peak(self, moment):
        self._peak = moment
        self._is_peak_new = False
        self._does_peak_last = True

    def _moment(self):
        held = {kind: nbytes for kind, nbytes in self._held.items() if nbytes}
        return Moment(self._history.number, self._clock(), held)

    def _refuse(self, why):
        self._settle_roles()
        site = self._site() if self._site else None
        where = f" ({site.place})" if site else ""
        raise OutOfMemoryError(
            f"rank {self.rank} is out of memory{where}: {why}; the rank holds "
            f"{in_words(by_category(self._held))}. Use less memory, for example by a smaller batch "
            "or model, checkpointing or sharding. Or give the device more memory_bytes",
            sites={self.rank: site} if site else None,
            ledger=by_category(self._held),
        )

    def _settle_roles(self):
        """Find the category of every block again."""
        for block in list(self._blocks.values()):
            self._move(block, block.told or OTHER, block.kind[1])
        for parameter in self._living():
            self._mark(parameter, PARAMETERS)
        self._find_roles(list(self._optimizers))

    def _find_roles(self, optimizers):
        """Find tensors that have become gradients or, for some optimizers, state."""
        for optimizer in optimizers:
            for tensor in tensors_in(optimizer.state):
                self._mark(tensor, OPTIMIZER_STATE)
        for parameter in self._living():
            gradient = parameter.grad
            if gradient is not None:
                self._mark(gradient, GRADIENTS)

    def _living(self):
        parameters = [reference() for reference in list(self._parameters.values())]
        owners = [reference() for reference in list(self._owners.values())]
        shards = [owner.sharded_param for owner in owners if owner is not None]
        met = self._parameters
        return [one for one in parameters if one is not None] + [
            one for one in shards if id(one) not in met
        ]

    def _mark(self, tensor, category):
        for plain in _plain(tensor):
            if plain.layout is torch.strided:
                block = self._blocks.get(plain.untyped_storage()._cdata)
                if block is None or block.told is not None:
                    continue
                if _RANKING[category] > _RANKING[block.category]:
                    self._move(block, category, plain.dtype)

    def _move(self, block, category, dtype):
        self._held[block.kind] -= block.nbytes
        block.kind = category, dtype
        self._held[block.kind] += block.nbytes


def _plain(tensor):
    """The tensors that have a tensor's memory: itself, or for example the parts of a DTensor."""
    if type(tensor) in _PLAIN or not is_traceable_wrapper_subclass(tensor):
        return (tensor,)
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:  # a DTensor: each new peak asks for all gradients and states
        return _plain(local)
    names, _ = tensor.__tensor_flatten__()
    parts = [getattr(tensor, name) for name in names]
    return tuple(
        plain for part in parts if isinstance(part, torch.Tensor) for plain in _plain(part)
    )


def tell_of_shards(meter_here):
    """From now on, report FSDP2's shards to the meters of this process, because no op shows
    shards."""

    def meet(module):
        init = module.FSDPParam._init_sharded_param

        @functools.wraps(init)
        def init_and_tell(param, *args, **kwargs):
            init(param, *args, **kwargs)
            meter = meter_here()
            if meter is not None:
                meter.has_shard(param)

        module.FSDPParam._init_sharded_param = init_and_tell

    when_imported("torch.distributed.fsdp._fully_shard._fsdp_param", meet)


class MemoryHooks:
    """Hooks for the time of a ``with`` block.

    Parameters
    ----------
    meter_here : callable
        The `MemoryMeter` of the rank whose thread calls, or None.
    """

    def __init__(self, meter_here):
        self._meter_here = meter_here
        self._handles = []

    def __enter__(self):
        self._handles = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ended),
        ]
        self._add = torch.optim.Optimizer.add_param_group
        torch.optim.Optimizer.add_param_group = self._added()
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resized()
        return self

    def __exit__(self, *_):
        torch.UntypedStorage.resize_ = self._resize
        torch.optim.Optimizer.add_param_group = self._add
        for handle in self._handles:
            handle.remove()

    def _added(self):
        """An optimizer knows parameters that no op shows."""
        add, meter_here = self._add, self._meter_here

        @functools.wraps(add)
        def add_param_group(optimizer, param_group):
            add(optimizer, param_group)
            meter = meter_here()
            if meter is not None:
                meter.is_to_train(optimizer.param_groups[-1]["params"])

        return add_param_group

    def _step_begins(self, optimizer, *_):
        meter = self._meter_here()
        if meter is not None:
            meter.step_begins(optimizer)

    def _step_ended(self, optimizer, *_):
        meter = self._meter_here()
        if meter is not None:
            meter.step_ended(optimizer)

    def _resized(self):
        """FSDP frees and refills the parameters of a layer in this way."""
        resize, meter_here = self._resize, self._meter_here

        def resize_(storage, nbytes):
            result = resize(storage, nbytes)
            meter = meter_here()
            if meter is not None:
                meter.resized(storage)
            return result

        return resize_
