"""Programs on processes: wrong ones get their kind and lines, right ones no false alarm.

A third of them is quick; `test_simulate_programs` runs all on simulated ranks.
"""

import multiprocessing
import os

import programs
import pytest
from verdicts import check_wrong, each, on_processes

LONG_REPEATS = 50


@pytest.mark.parametrize("program", each(programs.WRONG, quick=3))
def test_wrong_program_is_diagnosed(program):
    check_wrong(program, on_processes)


@pytest.mark.parametrize("program", each(programs.RIGHT, quick=3))
def test_right_program_is_left_alone(program):
    assert on_processes(program, strict=True).findings == []


def test_thousands_of_ops_are_all_recorded():
    trace = on_processes(programs.RIGHT["three_thousand_all_reduces"], strict=True).trace
    assert len(trace) == 6000 and len(trace.collectives) == 3000


def compute_without_end():
    while True:
        pass


@pytest.fixture(scope="module")
def every_core_busy():
    """A process on every core that computes without end."""
    context = multiprocessing.get_context("spawn")
    busy = [context.Process(target=compute_without_end, daemon=True) for _ in range(os.cpu_count())]
    for process in busy:
        process.start()
    yield
    for process in busy:
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.parametrize("program", each(programs.RIGHT))
def test_right_program_is_left_alone_under_load(program, every_core_busy):
    for _ in range(LONG_REPEATS):
        assert on_processes(program, strict=True).findings == []


def test_the_zoo_is_large_covers_every_kind_and_blames_ranks_that_exist():
    assert len(programs.WRONG) >= 80 and len(programs.RIGHT) >= 60
    kinds = "deadlock mismatch invalid rank_error rank_died stuck_computing unfinished race"
    assert {program.kind for program in programs.WRONG.values()} == set(kinds.split())
    for name, program in programs.WRONG.items():
        assert program.blamed.keys() <= set(range(program.ranks)), name
        assert program.blamed or program.meeting or program.kind == "rank_died", name
