"""Libraries that train on several ranks: right in a simulation too, and what each of them sends.

Where one keeps a rank's state once for a process, simulated ranks, which share one, would be wrong
and nobody would say so. So each is run in both engines, and compared rank by rank.
"""

import framework_programs as programs
import pytest
import torch
import torch.distributed as dist
from sampled import sampled

import simlib

LOOPS = [programs.ddp, programs.lightning, programs.fabric, programs.accelerate]
BOTH = pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])


def named(functions):
    return pytest.mark.parametrize("program", functions, ids=lambda program: program.__name__)


@pytest.mark.parametrize(
    "program, world_size", sampled([programs.by_hand, *LOOPS, programs.torchmetrics], (2, 4))
)
def test_simulated_ranks_are_real_ones_rank_by_rank(program, world_size):
    real, simulated = (
        engine(program, world_size).results for engine in (simlib.run, simlib.simulate)
    )
    last = [number for _, number in real]
    assert len(set(last)) == world_size, "each rank has data of its own"
    for (ours, number), (theirs, expected) in zip(simulated, real, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert number == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("engine, world_size", sampled((simlib.run, simlib.simulate), (2, 4)))
def test_the_models_collectives_are_common_and_the_rest_is_the_frameworks(engine, world_size):
    runs = {loop.__name__: engine(loop, world_size) for loop in [programs.by_hand, *LOOPS]}
    found = simlib.compare(runs)
    steps = 128 // programs.BATCH // world_size
    assert [(op.call, op.nbytes, op.counts) for op in found.common] == [
        ("all_reduce(SUM)", programs.NBYTES, (steps,) * 5)
    ]
    own = {
        name: {(op.call, op.nbytes) for op in found.differences if op.counts[index]}
        for index, name in enumerate(found.names)
    }
    assert own["by_hand"] == set()
    assert own["fabric"] == own["ddp"]  # Fabric wraps DDP and sends nothing of its own
    assert own["ddp"] < own["lightning"] and own["ddp"] < own["accelerate"]
    added = {call for call, _ in own["lightning"] - own["ddp"]}
    assert added == {"barrier", "broadcast(src=0)", "all_reduce(SUM)"}
    assert {call for call, _ in own["accelerate"] - own["ddp"]} == {"broadcast(src=0)"}
    index = found.names.index("lightning")
    logged = {
        line
        for op in found.differences
        if op.nbytes == 4 and op.call == "all_reduce(SUM)"
        for line in op.lines[index]
    }
    assert len(logged) == 1 and "self.log(" in logged.pop()


@named(LOOPS[:3])
def test_loops_with_the_same_sampler_end_with_the_same_weights(program):
    expected = simlib.simulate(programs.by_hand, 2).results[0][0]
    for weights, _ in simlib.simulate(program, 2).results:
        torch.testing.assert_close(weights, expected)


def on_main_only(rank, world_size):
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    said = []
    rank_zero_only(lambda: said.append(rank))()
    rank_zero_only.rank = world_size - 1 - rank  # as a library sets it, each rank for itself
    dist.barrier()
    return said, rank_zero_only.rank


@BOTH
def test_each_rank_knows_for_itself_whether_it_is_the_first(engine):
    results = engine(on_main_only, 3, kwargs=None).results
    assert results == [([0], 2), ([], 1), ([], 0)]


def too_many(rank, world_size):
    import lightning as L

    L.Fabric(
        accelerator="cpu", devices=4, strategy="ddp", plugins=[simlib.lightning.environment()]
    ).launch()


@BOTH
def test_devices_that_are_not_there_are_told_in_one_sentence(engine):
    with pytest.raises(simlib.InvalidCallError) as caught:
        engine(too_many, 2)
    words = "devices=4 on num_nodes=1 asks for 4 ranks, but this world has 2: set devices=2"
    assert words in str(caught.value)


def test_the_environment_is_for_ranks():
    with pytest.raises(simlib.InvalidCallError, match="is for the ranks of a run"):
        simlib.lightning.environment()
