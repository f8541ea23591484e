"""The lab of records: its model against the dumps of simulate, call by call; its picture."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lab_pictures import boxes_of, check_places_of_words, check_shown, move_at_random, outlines
from sampled import sampled

import simlib
from simlib import labs
from simlib.course.labs.records import CALLS, RANKS, buffers_of, differences

SEED = int(os.environ["SEED"])
STATES = [
    ("leaves", 0, 12, 24),
    ("leaves", 7, 2, 4),
    ("skips", 5, 10, 24),
    ("skips", 3, 4, 6),
    ("skips", 1, 24, 24),
    ("other op", 2, 24, 5),
    ("other size", 6, 8, 24),
]


def train(rank, world_size, fault, odd, call):
    x = torch.zeros(512)
    for number in range(1, CALLS + 1):
        has = fault if rank == odd and number == call else None
        if has == "leaves":
            return
        if has == "other op":
            dist.broadcast(x, src=rank)
        elif has == "other size":
            dist.all_reduce(x[:511])
        elif has != "skips" and number % 2 == 0:
            dist.all_reduce(x)  # M
        elif has != "skips":
            dist.all_reduce(x)  # A


def of_dump(path):
    """The calls that a dump holds, as the lab names them, and the number of the open one."""
    entries = pickle.loads(path.read_bytes())["entries"]
    first = train.__code__.co_firstlineno
    kinds = {first + 7: "B", first + 9: "S", first + 11: "M", first + 13: "A"}
    calls = {one["collective_seq_id"]: kinds[one["frames"][-1]["line"]] for one in entries}
    is_open = [one["collective_seq_id"] for one in entries if not one["retired"]]
    return calls, is_open[0] if is_open else None


@pytest.mark.parametrize("state", [state for (state,) in sampled(STATES, count=4)])
def test_buffers_are_those_of_the_dumps(state, tmp_path):
    *fault, held = state
    with pytest.raises((simlib.DeadlockError, simlib.MismatchError)) as failed:
        simlib.simulate(train, RANKS, tuple(fault))
    folder = failed.value.run.to_recorder(tmp_path / "dumps", last=held)
    dumps = [of_dump(folder / f"nccl_trace_rank_{rank}") for rank in range(RANKS)]
    assert [tuple(buffer) for buffer in buffers_of(*state)] == dumps


def test_a_call_that_is_left_out_shows_at_the_end():
    assert differences("skips", 5, 10, 24) == (24, 10)
    assert differences("skips", 5, 4, 8) == (24, 17)
    assert differences("skips", 5, 24, 24) == (24, None)
    assert differences("leaves", 5, 10, 24) == (10, None)
    assert differences("other op", 5, 10, 24) == (10, 10)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_the_picture_shows_the_buffers(state, dark):
    figure = labs.draw_records(*state)
    check_places_of_words(figure, dark)
    letters = [text for _, text, _ in outlines(figure)]
    buffers = buffers_of(*state)
    assert letters == [kind for buffer in buffers for kind in buffer.calls.values()]
    frames = [box for box in boxes_of(figure, 3) if box[4] is None]
    assert len(frames) == sum(buffer.open is not None for buffer in buffers)
    assert f"rank {state[1]} " in figure.in_words()


@pytest.mark.parametrize(
    "state", [("late", 5, 10, 24), ("skips", 8, 10, 24), ("skips", 5, 9, 24), ("skips", 5, 10, 3)]
)
def test_a_state_without_a_picture_is_refused(state):
    with pytest.raises(simlib.InvalidCallError):
        labs.draw_records(*state)


def test_the_lab_shows_what_its_function_draws():
    lab = labs.records_lab()
    state = move_at_random(lab, np.random.default_rng(SEED), moves=8)
    check_shown(lab, labs.draw_records(**state))
