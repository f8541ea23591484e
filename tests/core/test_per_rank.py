"""What changes with the rank whose thread goes on."""

from __future__ import annotations

import random
import unittest.mock

import pytest
import torch

from simlib.core.engines.virtual.per_rank import turns

DRAWS = {
    "one": lambda: torch.rand(1).item(),
    "one of a pair of normal ones": lambda: torch.randn(()).item(),
    "many": lambda: torch.rand(700).sum().item(),
    "a permutation": lambda: torch.randperm(9).tolist(),
    "a mask": lambda: torch.nn.functional.dropout(torch.ones(5)).tolist(),
    "a float64": lambda: torch.randn((), dtype=torch.float64).item(),
    "none": lambda: None,
    "a new seed": lambda: torch.manual_seed(5) and None,
}


@pytest.fixture(autouse=True)
def _keep_torch_as_it_was():
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


@pytest.mark.parametrize("memory_is_known", [True, False])
def test_each_rank_draws_as_if_it_were_alone(monkeypatch, seed, memory_is_known):
    if not memory_is_known:
        monkeypatch.setattr(turns, "memory_of", lambda generator: None)
    drawn = random.Random(seed)
    steps = [(drawn.randrange(3), drawn.choice(list(DRAWS))) for _ in range(300)]
    in_turn = turns.StateInTurn(
        [11, 12, 13], unittest.mock.Mock(of_rank=[{}, {}, {}]), unittest.mock.Mock(of_rank={})
    )
    found = {rank: [] for rank in range(3)}
    for rank, what in steps:
        in_turn.enter(rank)
        found[rank].append(DRAWS[what]())
    for rank in range(3):
        torch.manual_seed(11 + rank)
        assert found[rank] == [DRAWS[what]() for mine, what in steps if mine == rank]


def test_what_a_generator_has_drawn_shows_in_its_memory():
    generator = torch.Generator()
    memory = turns.memory_of(generator)
    if memory is None:
        pytest.skip("no glibc: the state is asked for at every change of ranks")
    before = bytes(memory)
    torch.rand((), generator=generator)
    assert bytes(memory) != before
