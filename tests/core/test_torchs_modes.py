"""What torch keeps once for a process: each simulated rank changes it for itself, as a real one."""

import contextlib
import functools
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.utils.parametrize as parametrize
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Shard, _redistribute, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import checkpoint

import simlib


@contextlib.contextmanager
def deterministic():
    """A mode of C++, set and put back as libraries do it."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


BLOCKS = {
    "anomaly": (torch.autograd.detect_anomaly, torch.is_anomaly_enabled),
    "attention": (lambda: sdpa_kernel(SDPBackend.MATH), torch.backends.cuda.flash_sdp_enabled),
    "checkpoints, debugged": (
        lambda: checkpoint.set_checkpoint_debug_enabled(True),
        lambda: checkpoint._checkpoint_debug_enabled,
    ),
    "checkpoints, whole": (
        lambda: checkpoint.set_checkpoint_early_stop(False),
        lambda: checkpoint._enable_checkpoint_early_stop,
    ),
    "deterministic algorithms": (
        deterministic,
        torch.are_deterministic_algorithms_enabled,
    ),
    "implicit replication": (
        implicit_replication,
        lambda: DTensor._op_dispatcher._allow_implicit_replication,
    ),
    "parametrizations": (parametrize.cached, lambda: parametrize._cache_enabled),
    "saved tensors": (
        torch.autograd.graph.allow_mutation_on_saved_tensors,
        lambda: torch.autograd.graph._allow_mutation_on_saved_tensors_enabled,
    ),
    "ways of redistributing": (
        _redistribute.use_min_cost_redistribution_plan,
        lambda: _redistribute._FORCE_MIN_COST_REDISTRIBUTION_PLAN,
    ),
}
"""With-blocks of torch, and what tells whether a rank is within."""


def in_blocks(rank, world_size):
    """Each rank enters each block, others enter and leave meanwhile; what it finds at each step."""
    found = {}
    for name, (block, ask) in BLOCKS.items():
        answers = found[name] = [ask()]
        for turn in (*range(world_size), None):
            if turn in (rank, None):
                with block():
                    dist.barrier()
                    answers.append(ask())
            else:
                dist.barrier()
            answers.append(ask())
    return found


def in_loss_parallel(rank, world_size):
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world_size,))
    logits = distribute_tensor(torch.randn(4, 16, requires_grad=True), mesh, [Shard(1)])
    with loss_parallel():
        loss = nn.functional.cross_entropy(logits, torch.arange(4))
        loss.backward()
    return loss.full_tensor().item()


def plans_of_checkpoints(rank, world_size):
    """Two checkpoints with plans kept from the first; what is loaded from the second."""
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    for step in range(2):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        state = {f"of rank {rank}": torch.full((2,), rank + step)}
        dcp.save(state, checkpoint_id=f"{folder[0]}/{step}", planner=planner)
    dcp.load(found := {f"of rank {rank}": torch.zeros(2)}, checkpoint_id=f"{folder[0]}/1")
    return found[f"of rank {rank}"].tolist()


def state_of_fsdp1(rank, world_size):
    model = FullyShardedDataParallel(nn.Linear(8, 8), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return sorted(FullyShardedDataParallel.optim_state_dict(model, optimizer)["state"])


def hooks(rank, world_size):
    """How often a rank's hooks on all modules and all optimizers are called."""
    calls = []
    of_modules = register_module_forward_hook(lambda *_: calls.append("module"))
    of_optimizers = register_optimizer_step_pre_hook(lambda *_: calls.append("optimizer"))
    dist.barrier()
    layer = nn.Linear(2, 2)
    layer(torch.ones(2)).sum().backward()
    torch.optim.SGD(layer.parameters(), 0.1).step()
    dist.barrier()
    of_modules.remove()
    dist.barrier()
    layer(torch.ones(2))
    if rank:
        of_optimizers.remove()  # rank 0 leaves its own
    return calls


def printing(rank, world_size):
    torch.set_printoptions(precision=rank + 1)
    dist.barrier()
    return str(torch.tensor(1 / 3))


PROGRAMS = [in_blocks, in_loss_parallel, plans_of_checkpoints, state_of_fsdp1, hooks, printing]


def each(rank, world_size):
    return {program.__name__: program(rank, world_size) for program in PROGRAMS}


@functools.cache
def found_by(engine):
    return engine(each, 3, timeout_s=100).results


@pytest.mark.parametrize("name", [program.__name__ for program in PROGRAMS])
def test_a_simulated_rank_finds_what_a_real_one_does(name):
    real, simulated = found_by(simlib.run), found_by(simlib.simulate)
    assert [one[name] for one in simulated] == [one[name] for one in real]


def modes(rank, world_size):
    return [ask() for _, ask in BLOCKS.values()], str(torch.tensor(1 / 3)), hooks(rank, 1)


def test_nothing_of_it_is_left_for_the_next_simulation():
    found_by(simlib.simulate)
    before = [ask() for _, ask in BLOCKS.values()], "tensor(0.3333)", ["module", "optimizer"]
    assert simlib.simulate(modes, 2).results == [before] * 2


def own_op(rank, world_size):
    @torch.library.custom_op("of_a_test::plus_rank", mutates_args=())
    def plus_rank(x: torch.Tensor) -> torch.Tensor:
        return x + rank

    return plus_rank(torch.zeros(1)).item()


def test_an_op_that_two_ranks_define_is_refused():
    """torch would put the second in the place of the first, and crash."""
    assert simlib.simulate(own_op, 1).results == simlib.simulate(own_op, 1).results == [0.0]
    with pytest.raises(simlib.InvalidCallError, match=r"rank 0 has defined the op of_a_test::plus"):
        simlib.simulate(own_op, 2)
