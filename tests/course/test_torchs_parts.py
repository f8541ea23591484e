"""What torch offers for training on many ranks, as it is, on real and on simulated ranks.

Each is held against one process that has all examples: gradients, or weights after two steps.
"""

import pytest
import torch
import torch.distributed as dist
from lesson_programs import ENGINES, start
from sampled import sampled
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

D, H, EXAMPLES = 8, 24, 12  # examples of one mini-batch, of all ranks together
PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, H), nn.GELU(), nn.Linear(H, D))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(EXAMPLES, D, generator=generator)


def part_of(step, rank, parts):
    return batch(step).chunk(parts)[rank]


def loss_of(net, x):
    return net(x).square().mean()


def as_int(tensors):
    """All numbers of each tensor, of a DTensor those of all ranks; on a collective each."""
    found = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors]
    return [t.detach().clone() for t in found]


def assert_all_have(run, right, **how):
    for found in run.results:
        for mine, one in zip(found, right, strict=True):
            torch.testing.assert_close(mine, one, **how)


def kinds(run, rank=0):
    """The collectives of a rank and the ranks of their group, in order."""
    return [(op.kind, tuple(op.group.ranks)) for op in run.trace.of_rank(rank)]


def trained_alone(steps=2, most=None, lr=0.1, optimizer=torch.optim.SGD):
    """The weights of one process."""
    net = layers()
    optimizer = optimizer(net.parameters(), lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(net, batch(step)).backward()
        if most:
            nn.utils.clip_grad_norm_(net.parameters(), most)
        optimizer.step()
    return as_int(net.parameters())


# Shards of what is cut already: FSDP2 over tensor parallelism


def two_dimensions(rank, world_size, most=None):
    """Two steps on 2 x 2 ranks; the weights, and the norm that clipping has found."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    net = parallelize_module(layers(), mesh["tp"], PLAN)
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(net, part_of(step, mesh["dp"].get_local_rank(), 2)).backward()
        if most:
            nn.utils.clip_grad_norm_(net.parameters(), most)
        optimizer.step()
    held = sum(p.to_local().numel() for p in net.parameters())
    return held, as_int(net.parameters())


@pytest.mark.parametrize("engine, most", sampled(ENGINES, (None, 0.05)))
def test_fsdp2_over_tensor_parallelism_trains_as_one_process_does(engine, most):
    run = start(engine, two_dimensions, 4, most)
    right = trained_alone(most=most)
    assert torch.equal(right[0], trained_alone()[0]) == (most is None)  # it is clipped
    for held, found in run.results:
        # Of 2 x 192 weights and 24 biases a quarter, of the 8 biases behind the sum a half.
        assert held == (2 * D * H + H) // 4 + D // 2
        for mine, one in zip(found, right, strict=True):
            torch.testing.assert_close(mine, one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_fsdp2_gathers_along_one_axis_and_tensor_parallelism_sums_along_the_other(engine):
    run = start(engine, two_dimensions, 4)
    for rank in range(4):
        tp, dp = (rank // 2 * 2, rank // 2 * 2 + 1), (rank % 2, rank % 2 + 2)
        step = [("all_gather", dp)] * 2 + [("all_reduce", tp)]  # forward; x needs no gradient
        step += [("all_gather", dp)] * 2 + [("reduce_scatter", dp)] * 2  # backward
        found = kinds(run, rank)
        cut = [("scatter", tp)] * 3 + [("broadcast", tp)]  # parallelize_module: the bias whole
        assert found[:4] == cut
        assert sorted(found[4:18]) == sorted(step * 2)
        assert [one for one in found[4:18] if one[0] == "all_reduce"] == [("all_reduce", tp)] * 2


# Gradients of several mini-batches before a step


def gradients(net):
    return as_int(p.grad for p in net.parameters())


def accumulated_in_ddp(rank, world_size, waits):
    net = DistributedDataParallel(layers())
    x = [part_of(step, rank, world_size) for step in range(2)]
    if waits:
        with net.no_sync():
            loss_of(net, x[0]).backward()
    else:
        loss_of(net, x[0]).backward()
    loss_of(net, x[1]).backward()
    return gradients(net)


def accumulated_in_fsdp2(rank, world_size, waits):
    net = layers()
    for layer in (net[0], net[2], net):
        fully_shard(layer)
    for step in range(2):
        net.set_requires_gradient_sync(step == 1 or not waits)
        loss_of(net, part_of(step, rank, world_size)).backward()
    return gradients(net)


ACCUMULATED = {
    accumulated_in_ddp: ("all_reduce", 1),
    accumulated_in_fsdp2: ("reduce_scatter", 2),
}


@pytest.mark.parametrize(
    "engine, ranks, program, waits",
    sampled(ENGINES, (2, 3, 4), ACCUMULATED, (False, True), count=4),
)
def test_accumulated_gradients_are_those_of_one_process(engine, ranks, program, waits):
    kind, of_a_step = ACCUMULATED[program]
    net = layers()
    for step in range(2):
        loss_of(net, batch(step)).backward()
    run = start(engine, program, ranks, waits)
    assert_all_have(run, gradients(net), rtol=1e-4, atol=1e-6)
    sent = [one for one, _ in kinds(run) if one == kind]
    assert len(sent) == of_a_step * (1 if waits else 2)


# Compiled models


def compiled(rank, world_size, wrap):
    """Two steps; how often what the compiler was given has run, and the gradients."""
    runs = []

    def backend(graph, inputs):
        def forward(*inputs):
            runs.append(graph)
            return graph.forward(*inputs)

        return forward

    net = layers()
    if wrap == "ddp":
        net = DistributedDataParallel(net)
    for layer in (net[0], net[2], net) if wrap == "fsdp2" else ():
        fully_shard(layer)
    outside = torch.compile(net, backend=backend)
    for step in range(2):
        loss_of(outside, part_of(step, rank, world_size)).backward()
    for p in net.parameters() if wrap == "nothing" else ():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    return len(runs), gradients(net)


@pytest.mark.parametrize("engine, wrap", sampled(ENGINES, ("nothing", "ddp", "fsdp2")))
def test_a_ranks_model_may_be_compiled(engine, wrap):
    net = layers()
    for step in range(2):
        loss_of(net, batch(step)).backward()
    run = start(engine, compiled, 2, wrap)
    for runs, found in run.results:
        # `simulate` looks at each op of torch: nothing is compiled there. Nor is what DDP or FSDP2
        # has wrapped, as on plain Gloo.
        assert runs == (2 if (engine, wrap) == ("run", "nothing") else 0)
        for mine, one in zip(found, gradients(net), strict=True):
            torch.testing.assert_close(mine, one, rtol=1e-4, atol=1e-6)


# Other ways to compute, send and step


def autocast(rank, world_size):
    net = DistributedDataParallel(layers())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(part_of(0, rank, world_size))
    assert y.dtype == torch.bfloat16
    y.float().square().mean().backward()
    return gradients(net)


@pytest.mark.parametrize("engine", ENGINES)
def test_autocast_computes_in_bfloat16_and_sends_float32(engine):
    net = layers()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(batch(0))
    y.float().square().mean().backward()
    run = start(engine, autocast, 3)
    assert_all_have(run, gradients(net), rtol=0.02, atol=1e-3)
    sent = {op.dtype for op in run.trace.of_rank(0) if op.kind == "all_reduce"}
    assert sent == {"float32"}


def power_sgd(rank, world_size, matrix_rank):
    net = DistributedDataParallel(layers())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_rank, start_powerSGD_iter=2, min_compression_rate=0.1
    )
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(net, part_of(step, rank, world_size)).backward()
        optimizer.step()
    return as_int(net.parameters())


@pytest.mark.parametrize("engine", ENGINES)
def test_power_sgd_of_full_rank_is_exact_and_of_rank_one_sends_less(engine):
    full, one = (start(engine, power_sgd, 3, matrix_rank) for matrix_rank in (D, 1))
    assert_all_have(full, trained_alone(steps=4), rtol=1e-3, atol=1e-5)
    assert_all_have(one, one.results[0], rtol=0, atol=0)
    sent = [sum(op.nbytes for op in run.trace.of_rank(0)) for run in (full, one)]
    assert sent[1] < sent[0]


def zero_redundancy(rank, world_size):
    net = DistributedDataParallel(layers())
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01, eps=0.1)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(net, part_of(step, rank, world_size)).backward()
        optimizer.step()
    return as_int(net.parameters())


@pytest.mark.parametrize("engine, ranks", sampled(ENGINES, (2, 3, 4), count=2))
def test_zero_redundancy_optimizer_is_adam(engine, ranks):
    def adam(parameters, lr):
        return torch.optim.Adam(parameters, lr=0.01, eps=0.1)

    run = start(engine, zero_redundancy, ranks)
    assert_all_have(run, trained_alone(optimizer=adam), rtol=1e-4, atol=1e-6)
    assert {kind for kind, _ in kinds(run)} >= {"all_reduce", "broadcast"}
