"""What memory meters must be told beside ops: optimizers, storages resized by themselves.

torch has one place in a process for each; the rank is the one whose thread comes by.
"""

from __future__ import annotations

import functools

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ...record.at_import import when_imported


def tell_of_shards(meter_here):
    """From now on meters of this process learn of FSDP2's shards, which no op shows."""

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
        """FSDP frees and refills the parameters of a layer so."""
        resize, meter_here = self._resize, self._meter_here

        def resize_(storage, nbytes):
            result = resize(storage, nbytes)
            meter = meter_here()
            if meter is not None:
                meter.resized(storage)
            return result

        return resize_
