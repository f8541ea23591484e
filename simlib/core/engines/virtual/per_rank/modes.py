"""Settings that torch keeps once per process and that ranks change: flags, tables, hooks.

Most of them belong to a ``with`` block (`loss_parallel`, `sdpa_kernel`, checkpointing without an
early stop). If all ranks shared these settings, the first rank that leaves the block would end it
for all other ranks. The last rank would restore a value that another rank had set. So from the
first change on, each rank has its own settings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from copy import copy
from types import MethodType
from typing import Any, NamedTuple

from ....record.this_rank import here as local
from ....record.torch_inside import flags_of_process, when_imported

_HOOKS_OF_MODULES = (
    "register_module_buffer_registration_hook",
    "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
    "register_module_forward_pre_hook",
    "register_module_forward_hook",
    "register_module_backward_hook",
    "register_module_full_backward_pre_hook",
    "register_module_full_backward_hook",
)
_HOOKS_OF_OPTIMIZERS = "register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"

CHANGES: dict[str, tuple[tuple[str, ...], Callable]] = {
    "torch": (("set_printoptions",), lambda module: _named(module._tensor_str, "PRINT_OPTS")),
    "torch.__future__": (
        ("set_overwrite_module_params_on_conversion", "set_swap_module_params_on_conversion"),
        lambda module: _named(module, "_overwrite_module", "_swap_module"),
    ),
    "torch.autograd.graph": (
        ("allow_mutation_on_saved_tensors",),
        lambda module: _named(module, "_allow_mutation_on_saved_tensors_enabled"),
    ),
    "torch.distributed.checkpoint.default_planner": (
        ("DefaultSavePlanner.__init__",),
        lambda module: _named(module.SavePlanner, "_cached_"),
    ),
    "torch.distributed.fsdp._debug_utils": (
        ("SimpleProfiler.profile",),
        lambda module: _named(module.SimpleProfiler, "profiling", "results"),
    ),
    "torch.distributed.fsdp._fully_shard._fully_shard": (
        ("disable_fsdp_module_new_init",),
        lambda module: _named(module, "_enable_fsdp_module_new_init"),
    ),
    "torch.distributed.tensor._redistribute": (
        ("use_min_cost_redistribution_plan", "disable_redistribute_transform_optimization"),
        lambda module: _named(module, "_FORCE_MIN_COST", "_DISABLE_REDISTRIBUTE"),
    ),
    "torch.distributed.tensor.parallel.loss": (
        ("_enable_custom_loss_ops", "_disable_custom_loss_ops"),
        lambda module: [Mode(module.DTensor._op_dispatcher, "_custom_op_handlers")],
    ),
    "torch.nn.modules.module": (_HOOKS_OF_MODULES, lambda module: _named(module, "_global_")),
    "torch.nn.utils.parametrize": (("cached",), lambda module: _named(module, "_cache")),
    "torch.optim.optimizer": (_HOOKS_OF_OPTIMIZERS, lambda module: _named(module, "_global_")),
    "torch.utils.checkpoint": (
        ("set_checkpoint_early_stop", "set_checkpoint_debug_enabled"),
        lambda module: _named(module, "_enable_checkpoint", "_checkpoint_debug"),
    ),
}
"""Module -> its functions that change settings of the process, with the changed modes."""


class Mode(NamedTuple):
    """An attribute of a module, a class or an object of torch."""

    place: Any
    name: str

    def read(self) -> Any:
        return getattr(self.place, self.name)

    def write(self, value: Any) -> None:
        setattr(self.place, self.name, value)


def _named(place, *beginnings):
    return [Mode(place, name) for name in vars(place) if name.startswith(beginnings)]


class ModesInTurn:
    """The modes that some rank of one simulation has changed, with each rank's own values.

    **Cost** nothing if no rank has changed a mode. Else a microsecond per mode whenever another
    rank continues.
    """

    def __init__(self, world_size: int) -> None:
        self._size = world_size
        self._at_first: dict[Mode, Any] = {}
        self.of_rank: dict[Mode, list] = {}

    def about_to_change(self, modes: Iterable[Mode]) -> None:
        """Give each rank its own values of these modes. The running rank will change them now."""
        for mode in modes:
            if mode not in self._at_first:
                value = self._at_first[mode] = mode.read()
                self.of_rank[mode] = [copy(value) for _ in range(self._size)]
                mode.write(copy(value))

    def enter(self, last: int | None, rank: int) -> None:
        """Rank ``last`` (or None) has run until now; ``rank`` is next."""
        for mode, values in self.of_rank.items():
            if last is not None:
                values[last] = mode.read()
            mode.write(values[rank])

    def leave(self) -> None:
        """The ranks have ended, and the process has its own values again."""
        for mode, value in self._at_first.items():
            mode.write(value)


def own_modes() -> None:
    """From now on, let each rank change torch's process-wide settings for itself alone."""
    for place, name, flag in flags_of_process():
        _watch(place, name, [Mode(flag, "value")])
    for module, (functions, modes_of) in CHANGES.items():
        when_imported(module, functools.partial(_watch_all, functions, modes_of))


def _watch_all(functions, modes_of, module):
    for path in functions:
        *classes, name = path.split(".")
        place = functools.reduce(getattr, classes, module)
        if hasattr(place, name):  # not in every version of torch
            _watch(place, name, modes_of(module))


def _watch(place, name, modes):
    """Replace a function. The new function first announces which settings it will change."""
    function = getattr(place, name)

    @functools.wraps(function)
    def change(*args, **kwargs):
        tell = local.__dict__.get("about_to_change")
        if tell is not None:
            tell(modes)
        return function(*args, **kwargs)

    setattr(place, name, staticmethod(change) if isinstance(function, MethodType) else change)
