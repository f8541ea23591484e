"""The programs on simulated ranks: the kinds, lines and values of real ranks, each time."""

import dataclasses

import programs
import pytest
import torch
from programs.values import values_at_the_end
from verdicts import check_wrong, each, simulated

import simlib

OTHER_VERDICT = {
    "endless_sleep": "sleeping takes virtual time: a million seconds are over at once",
    "receiver_in_a_thread": "only the rank itself has a clock, not a thread that it starts",
}
ANY_SOURCE = ("any_source", "any_source_in_a_group", "any_source_irecvs_posted_early")
OTHER_VALUES = {
    "every_collective_once": "what Gloo leaves in the buffers of a reduce beside its root's",
    "functional_collectives": "it writes to x before anybody has waited for what comes of it",
    "straggler_in_a_chain": "counts how often it can look at the clock",
    "receiver_in_a_thread": OTHER_VERDICT["receiver_in_a_thread"],
    **dict.fromkeys(
        (*ANY_SOURCE, "any_source_with_tags", "task_farm"),
        "whose message comes first is a matter of time",
    ),
}
REPEATED = ("ddp_of_many_buckets", "task_farm", "other_order_of_groups_on_each_rank", "fsdp2")


def without(table, exceptions):
    return {name: program for name, program in table.items() if name not in exceptions}


@pytest.mark.parametrize("program", each(without(programs.WRONG, OTHER_VERDICT)))
def test_wrong_program_is_diagnosed(program):
    check_wrong(program, simulated)


@pytest.mark.parametrize("program", each(without(programs.RIGHT, OTHER_VERDICT)))
def test_right_program_is_left_alone(program):
    assert simulated(program, strict=True).findings == []


def test_an_endless_sleep_is_over_at_once_as_a_timeout_and_a_ranks_own_thread_cannot_communicate():
    with pytest.raises(simlib.RankError, match="Timed out waiting 1800000ms"):
        simulated(programs.WRONG["endless_sleep"])
    with pytest.raises(simlib.SimlibError):
        simulated(programs.RIGHT["receiver_in_a_thread"])


@pytest.mark.parametrize("program", each(without(programs.RIGHT, OTHER_VALUES), quick=3))
def test_right_program_has_the_values_of_real_ranks(program):
    options = {"world_size": program.ranks, "args": (program.function,)}
    real = simlib.run(values_at_the_end, **options).results
    simulated = simlib.simulate(values_at_the_end, **options).results
    assert_close(simulated, real)


def assert_close(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert_close(ours[name], theirs[name])
    elif isinstance(ours, list):
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other)
    elif isinstance(ours, torch.Tensor):
        torch.testing.assert_close(ours, theirs)
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", REPEATED)
def test_values_and_trace_are_the_same_to_the_bit_in_a_repeat(name):
    program = programs.RIGHT[name]
    first, second = (
        simlib.simulate(values_at_the_end, program.ranks, (program.function,)) for _ in range(2)
    )
    assert as_bits(first.results) == as_bits(second.results)
    assert times_and_places(first) == times_and_places(second)


def as_bits(value):
    """Values in a form that differs where a single bit does."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {name: as_bits(part) for name, part in value.items()}
    return [as_bits(part) for part in value] if isinstance(value, list) else repr(value)


def times_and_places(run):
    """Everything a trace holds."""
    return [dataclasses.asdict(op) for op in run.trace], run.trace.spans, run.findings
