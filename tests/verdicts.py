"""What has to be said of a program of `programs`, whichever engine runs it.

An engine here is a function ``run(program, **options)`` that returns a `simlib.Run`.
"""

import programs
import pytest
from quick import one_of

import simlib


def each(table, quick=1):
    """The programs of a table, as parameters of a test; one of so many of each kind is quick."""
    by_kind = sorted(table, key=lambda name: table[name].kind or "")
    return one_of(quick, {name: table[name] for name in by_kind})


def on_processes(program, **options):
    """Run a program on real ranks."""
    return simlib.run(program.function, program.ranks, timeout_s=program.timeout_s, **options)


def simulated(program, **options):
    """Run a program on simulated ranks."""
    return simlib.simulate(program.function, program.ranks, timeout_s=program.timeout_s, **options)


def check_wrong(program, run):
    """The program is told its kind and its lines."""
    if program.kind in programs.FINDINGS:
        _check_finding(program, run)
        return
    with pytest.raises(simlib.SimlibError) as caught:
        run(program)
    assert caught.value.kind == program.kind, str(caught.value)
    _check_sites(program, caught.value.sites)
    assert caught.value.run is not None


def _check_finding(program, run):
    found = [finding for finding in run(program).findings if finding.kind == program.kind]
    sites = {rank: site for finding in found for rank, site in finding.sites.items()}
    assert found
    _check_sites(program, sites)
    with pytest.raises(simlib.SimlibError) as caught:
        run(program, strict=True)
    assert caught.value.kind == program.kind, str(caught.value)


def _check_sites(program, sites):
    """Every marked rank is blamed at its line, and nobody in another file."""
    lines = {rank: site.lineno for rank, site in sites.items()}
    for rank, expected in program.blamed.items():
        assert lines.get(rank) in expected, f"rank {rank}: blamed are {lines}"
    for expected in program.meeting:
        assert list(lines.values()).count(expected) >= 2, f"blamed are {lines}"
    assert all(site.file == program.file for site in sites.values() if site.lineno)
