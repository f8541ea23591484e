"""The zoo: every wrong program gets its kind and its lines, no right one a false alarm."""

import multiprocessing
import os

import programs
import pytest

import simlib

LONG_REPEATS = 50


def each(table):
    return [pytest.param(program, id=name) for name, program in table.items()]


def run(program, **options):
    return simlib.run(program.function, program.ranks, timeout_s=program.timeout_s, **options)


def check_sites(program, sites):
    """Every marked rank is blamed at its line, and nobody in another file."""
    lines = {rank: site.lineno for rank, site in sites.items()}
    for rank, expected in program.blamed.items():
        assert lines.get(rank) in expected, f"rank {rank}: blamed are {lines}"
    for expected in program.meeting:
        assert list(lines.values()).count(expected) >= 2, f"blamed are {lines}"
    assert all(site.file == program.file for site in sites.values() if site.lineno)


@pytest.mark.parametrize("program", each(programs.WRONG))
def test_wrong_program_is_diagnosed(program):
    if program.kind in programs.FINDINGS:
        check_finding(program)
        return
    with pytest.raises(simlib.SimlibError) as caught:
        run(program)
    assert caught.value.kind == program.kind, str(caught.value)
    check_sites(program, caught.value.sites)
    assert caught.value.run is not None


def check_finding(program):
    found = [finding for finding in run(program).findings if finding.kind == program.kind]
    sites = {rank: site for finding in found for rank, site in finding.sites.items()}
    assert found
    check_sites(program, sites)
    with pytest.raises(simlib.SimlibError) as caught:
        run(program, strict=True)
    assert caught.value.kind == program.kind, str(caught.value)


@pytest.mark.parametrize("program", each(programs.RIGHT))
def test_right_program_is_left_alone(program):
    assert run(program, strict=True).findings == []


@pytest.fixture(scope="module")
def every_core_busy():
    """A process on every core that computes without end."""
    context = multiprocessing.get_context("spawn")
    busy = [context.Process(target=_loop, daemon=True) for _ in range(os.cpu_count())]
    for process in busy:
        process.start()
    yield
    for process in busy:
        process.kill()
        process.join()


def _loop():
    while True:
        pass


@pytest.mark.long
@pytest.mark.parametrize("program", each(programs.RIGHT))
def test_right_program_is_left_alone_under_load(program, every_core_busy):
    for _ in range(LONG_REPEATS):
        assert run(program, strict=True).findings == []


def test_the_zoo_is_large_and_covers_every_kind():
    assert len(programs.WRONG) >= 80 and len(programs.RIGHT) >= 60
    kinds = {program.kind for program in programs.WRONG.values()}
    assert kinds == {
        "deadlock",
        "mismatch",
        "invalid",
        "rank_error",
        "rank_died",
        "stuck_computing",
        "unfinished",
        "race",
    }


@pytest.mark.parametrize("program", each(programs.WRONG))
def test_blamed_ranks_exist(program):
    assert program.blamed.keys() <= set(range(program.ranks))
    assert program.blamed or program.meeting or program.kind == "rank_died"
