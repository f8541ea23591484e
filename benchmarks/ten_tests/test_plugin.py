"""The ten tests by simlib's plugin; with REPEAT=10 in the environment a hundred."""

import os

import pytest
from programs import TEN


@pytest.mark.parametrize("turn", range(int(os.environ.get("REPEAT", "1"))))
@pytest.mark.parametrize("program", TEN, ids=lambda program: program.__name__)
@pytest.mark.ranks(4)
def test_program(rank, world_size, program, turn):
    program(rank, world_size)


@pytest.mark.ranks(4)
@pytest.mark.skipif("HANG" not in os.environ, reason="only where a hang is asked for")
def test_hang(rank, world_size):
    TEN[6](rank, world_size)
