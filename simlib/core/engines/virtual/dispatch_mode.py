"""What sees the ops of one simulated rank: it counts their flops, and fills the memory ledger."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...record.torch_inside import is_composite


class DispatchMode(TorchDispatchMode):
    """A mode that sees every op of torch that its rank runs, forward and backward.

    One mode counts flops and memory, for it is the mode that costs: about 4 us per op, where a
    second one would add 2. A rank without a modelled device enters none.

    Parameters
    ----------
    on_flops : callable, optional
        Called with the floating-point operations of each op that has some, after the op.
    flop_counts : FlopCounts, optional
        Needed with ``on_flops``; the ranks of a process share one.
    memory : MemoryMeter, optional
        Shown the arguments and results of each op, before ``on_flops`` is called: an op holds its
        results from its beginning.
    lock : RLock, optional
        Held while an op runs and is counted: of a thread that a rank has started.

    Attributes
    ----------
    paused : bool
        While True, ops pass unseen: for what the engine does in the rank's thread.
    """

    def __init__(self, on_flops=None, flop_counts=None, memory=None, lock=None):
        super().__init__()
        self.paused = False
        self._on_flops = on_flops
        self._flop_counts = flop_counts
        self._memory = memory
        self._lock = lock

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.paused or FakeTensor in types:  # torch works out shapes with fake tensors
            return func(*args, **kwargs)
        if types and any(map(_dispatches, types)):
            # A DTensor, say: what it does to its local tensors is what the rank does.
            return NotImplemented
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if self._lock is None:
            return self._counted(func, args, kwargs)
        with self._lock:
            return self._counted(func, args, kwargs)

    def _counted(self, func, args, kwargs):
        out = func(*args, **kwargs)
        if self._memory is not None:
            self._memory.saw(args, out)
        if self._on_flops is not None:
            flops = self._flop_counts.of(func, args, kwargs, out)
            if flops:
                self._on_flops(flops)
        return out


def _dispatches(kind):
    """Whether a class of tensors does ops its own way."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
