"""What memory meters must be told beside ops: steps of optimizers, storages resized by themselves.

torch has one place in a process for each; the rank is the one whose thread comes by.
"""

from __future__ import annotations

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


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
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resized()
        return self

    def __exit__(self, *_):
        torch.UntypedStorage.resize_ = self._resize
        for handle in self._handles:
            handle.remove()

    def _step_begins(self, optimizer, *_):
        meter = self._meter_here()
        if meter is not None:
            meter.step_begins(optimizer)

    def _step_ended(self, optimizer, *_):
        meter = self._meter_here()
        if meter is not None:
            meter.step_ended(optimizer)

    def _resized(self):
        """FSDP frees and refills the parameters of a layer so."""
        resize, meter_here = self._resize, self._meter_here

        def resize_(storage, nbytes):
            result = resize(storage, nbytes)
            meter = meter_here()
            if meter is not None:
                meter.resized(storage)
            return result

        return resize_
