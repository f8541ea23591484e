"""Access to the internals of torch. They are undocumented, and a new version may change them.

simlib touches them to replace torch's own groups. All of them are in this file, with one function
for each difference between versions of torch:

==========================  ========  ==============================================================
what differs                since     where
==========================  ========  ==============================================================
the tables of a world       2.13 (*)  `fields_of_world` asks torch which there are
a group's rank and size     2.15      `GroupOfItsOwn`: torch asks the C++ backend for them
==========================  ========  ==============================================================

(*) ``comms``, at the latest; in 2.15 ``pg_flight_recorder_hooks``.

`torch_versions` lists the tested versions. Patches of single modules of torch (FSDP2's parameters,
pipeline stages) are next to their use, by `when_imported`.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as compiled
from torch._C._dynamo import eval_frame
from torch.distributed import distributed_c10d as c10d

MODULES_OF_STORES = (dist, c10d, compiled)
"""The modules in which torch looks for ``TCPStore`` and ``FileStore``."""

FakeProcessGroup = compiled.FakeProcessGroup
"""A C++ backend of any rank and size that moves nothing."""

_RUN_AS_IT_IS = eval_frame._FrameExecStrategy(
    eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP
)


class GroupOfItsOwn(dist.ProcessGroup):
    """A group that knows its rank and size itself.

    torch 2.15 asks the C++ backend for both numbers. In a simulation, the C++ backend of a group is
    a substitute with one rank. So FSDP2 would train in a world of one rank, without any error.
    """

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._place = rank, size

    def rank(self) -> int:
        return self._place[0]

    def size(self) -> int:
        return self._place[1]

    getRank, getSize = rank, size  # noqa: N815 (as torch's C++ asks for them)


def fields_of_world() -> dict[str, Callable]:
    """The tables that torch keeps of a world: name -> a callable that makes the first value."""
    fresh = c10d._World()
    names = [name for name, one in vars(c10d._World).items() if isinstance(one, property)]
    values = {name: getattr(fresh, name) for name in names if name != "pg_config_info"}
    nothing = lambda: None  # noqa: E731
    return {name: nothing if value is None else type(value) for name, value in values.items()}


def use_world(world: Any) -> None:
    """Replace torch's table of groups by another one. Threads share no names of groups."""
    c10d._world = world
    compiled._set_thread_isolation_mode(True)  # type: ignore[attr-defined]


def keep_stand_in_for_cuda() -> None:
    """Let this thread, which outlives all others, own torch's substitute for CUDA.

    If torch with CUDA sees no GPU, it makes a substitute for its fake tensors, which DTensor uses.
    All threads use the same substitute. In torch 2.10 and 2.11, the substitute ends with the thread
    that asked for it first, and other threads then crash (github.com/pytorch/pytorch/pull/178950).
    """
    compiled_torch = torch._C
    if hasattr(compiled_torch, "_ensureCUDADeviceGuardSet"):
        compiled_torch._ensureCUDADeviceGuardSet()


def configurations() -> Any:
    """torch's own property of a world for the configuration of its groups."""
    return c10d._World.pg_config_info


def make_default_group(rank: int, ranks: dict[int, int], store: dist.Store, timeout: Any) -> None:
    """Make the default group, as `init_process_group` does, but without meeting other ranks.

    ``ranks`` is torch's table ``{rank: rank}`` of the world. It is not copied.
    """
    world, _ = c10d._new_process_group_helper(
        len(ranks), rank, [], "gloo", store, group_name="0", timeout=timeout
    )
    c10d._update_default_pg(world)
    c10d._world.pg_group_ranks[world] = ranks
    c10d._world.group_count = 1


def constructor_of_groups() -> Callable:
    """torch's present function that makes groups, the only one."""
    return c10d._new_process_group_helper


def use_constructor_of_groups(make: Callable) -> None:
    """Let every group of this process be made by ``make``."""
    c10d._new_process_group_helper = make


def new_group_call() -> Callable:
    """The present function that `new_group` and device meshes call."""
    return c10d._new_group_with_tag


def use_new_group_call(make: Callable) -> None:
    """Let `new_group` and device meshes call ``make``."""
    c10d._new_group_with_tag = make


def use_check_not_self(check: Callable) -> None:
    """Let ``check(group, rank, role)`` refuse messages of a rank to itself."""
    c10d._check_not_self_rank = check


def use_meeting(meet: Callable) -> None:
    """Let members of a new group wait in ``meet(rank, store, name, how_many, ...)``."""
    c10d._store_based_barrier = meet


def name_backend(group: Any, name: str, config: str, store: dist.Store) -> None:
    """Let torch's tables give a group the backend ``name``, and ``config`` by device."""
    c10d._world.pg_map[group] = name, store
    c10d._world.pg_backend_config[group] = config


def count_groups_anew(world: Any, name: str, store: dist.Store) -> None:
    """Begin again with the names of groups, in a ``store`` without such names."""
    c10d._world.pg_map[world] = name, store
    c10d._world.group_count = 1


def groups_here() -> list:
    """All groups of this rank, including the default group."""
    return list(c10d._world.pg_map)


def leave_uncompiled(function: Callable) -> None:
    """Keep torch.compile from looking into a function and the functions that it calls."""
    eval_frame.set_code_exec_strategy(function.__code__, _RUN_AS_IT_IS)


@functools.cache
def is_composite(op: Any) -> bool:
    """Whether an op (OpOverload) consists of others. In inference mode torch shows it whole."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(op.name(), "CompositeImplicitAutograd")


def is_in_backward() -> bool:
    """Whether autograd runs the caller, in a backward pass or in its recomputation."""
    return torch._C._current_graph_task_id() != -1


def wrap_backward(wrap: Callable[[Callable], Callable]) -> None:
    """Replace the function that runs a backward pass by ``wrap(run)``, also for `grad`."""
    run = wrap(torch.autograd.graph._engine_run_backward)
    torch.autograd.graph._engine_run_backward = run
    torch.autograd._engine_run_backward = run


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """Call ``act(module)`` when the module of this name exists: now, or right after its import.

    The function does not import the module. An import may take seconds, and a rank that does not
    use the module should not wait for it.

    Parameters
    ----------
    name : str
        The module's full name.
    act : callable
        The function to call with the module, once in a process.
    """
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AtImport(name, act))


class _AtImport:
    """Finds the module as Python would, and calls the function when the module exists."""

    def __init__(self, name, act):
        self._name, self._act = name, act

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_act(module):
            execute(module)
            self._act(module)

        spec.loader.exec_module = execute_and_act
        return spec


class _Flag:
    """A flag of torch's C++ part, which all threads share, as an attribute."""

    def __init__(self, read, write):
        self._read, self._write = read, write

    @property
    def value(self):
        return self._read()

    @value.setter
    def value(self, value):
        self._write(value)


def flags_of_process() -> list[tuple[ModuleType, str, Any]]:
    """The places of functions that set flags of torch's C++ part, with their names and flags.

    Each flag has an attribute ``value``, to read and to set.
    """
    inside = torch._C
    names = "float32_matmul_precision", "mkldnn_enabled", "sdp_priority_order", "warnAlways"
    readers = {f"_set_{name}": f"_get_{name}" for name in names}
    kernels = "flash", "mem_efficient", "math", "cudnn", "overrideable"
    readers |= {f"_set_sdp_use_{name}": f"_get_{name}_sdp_enabled" for name in kernels}
    found = [
        (inside, name, _Flag(getattr(inside, reader), getattr(inside, name)))
        for name, reader in readers.items()
        if hasattr(inside, name) and hasattr(inside, reader)
    ]
    set_deterministic, set_anomaly = inside._set_deterministic_algorithms, torch.set_anomaly_enabled
    deterministic = _Flag(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda value: set_deterministic(value[0], warn_only=value[1]),
    )
    anomaly = _Flag(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: set_anomaly(*value),
    )
    found.append((inside, "_set_deterministic_algorithms", deterministic))
    return [*found, (torch, "set_anomaly_enabled", anomaly)]


def is_itself(tensor: torch.Tensor) -> bool:
    """Whether a tensor is real, and not a substitute with which `torch.func` works."""
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


without_torch_function = torch._C.DisableTorchFunctionSubclass
"""Within the block, subclasses of tensors count as normal tensors."""


def works_out_shapes() -> bool:
    """Whether the calling thread makes fake tensors, for example because DTensor tries an op."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def storage_at(address: int, nbytes: int) -> torch.UntypedStorage:
    """A storage of memory that another object keeps."""
    return torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), nbytes)


def group_by_name(group: Any) -> dist.ProcessGroup:
    """The group that torch's functional collectives call by this name. A group stays unchanged."""
    return c10d._resolve_process_group(group) if isinstance(group, str) else group


def is_profiled() -> bool:
    """Whether a profiler watches this process."""
    return torch._C._autograd._profiler_enabled()
