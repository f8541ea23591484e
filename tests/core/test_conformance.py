"""Torch's own distributed tests, and the programs of `conformance.features`, run on simlib."""

import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conformance import features, harness

import simlib
from simlib.core.engines.workers.server import start_server, stop_server

TABLE = harness.read_table()
DRIVEN = [name for name in TABLE["passes"] if name not in TABLE["differs"]]
NOT_SIMULATED = [name for names in TABLE["not_simulated"].values() for name in names]
SIMULATED = [name for name in DRIVEN if name not in NOT_SIMULATED]


@pytest.fixture(scope="module", autouse=True)
def server_with_torchs_tests():
    stop_server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        start_server(["conformance.preloaded"])


@pytest.mark.parametrize("name", DRIVEN)
def test_method_passes_on_simlib(name):
    check_method(name, harness.simlib_run)


@pytest.mark.parametrize("name", SIMULATED)
def test_method_passes_on_simulated_ranks(name):
    check_method(name, harness.simulated)


def test_what_is_not_simulated_passes_on_real_ranks():
    assert set(NOT_SIMULATED) <= set(DRIVEN) and len(NOT_SIMULATED) == len(set(NOT_SIMULATED))


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE["passes"])
def test_method_passes_on_plain_gloo(name):
    check_method(name, harness.plain)


def check_method(name, engine):
    outcome = harness.run_method(name, engine)
    assert outcome.status == "passed", f"{name} {outcome.status}: {outcome.detail}"


def test_every_method_of_torch_is_in_the_table_once():
    listing = "from conformance import harness; print(*harness.upstream_methods())"
    names = subprocess.check_output(
        [sys.executable, "-c", listing], text=True, cwd=Path(__file__).parents[1]
    ).split()
    parts = [TABLE["passes"], *TABLE["not_for_cpu"].values(), *TABLE["cannot_be_driven"].values()]
    assert sorted(names) == sorted(name for part in parts for name in part)


def test_at_most_five_methods_differ_each_with_its_cause():
    assert len(TABLE["differs"]) <= 5
    assert set(TABLE["differs"]) <= set(TABLE["passes"])
    assert all(TABLE["differs"].values())


@pytest.mark.parametrize("engine", [harness.plain, harness.simlib_run, harness.simulated])
def test_a_method_that_fails_is_seen_to_fail(engine):
    """Any rank's failure counts, whatever the others return."""
    with pytest.raises(Exception, match="the sum is wrong"):
        engine(fail_on_rank_1, 2, (), 30)


def fail_on_rank_1(rank, world_size):
    assert rank != 1, "the sum is wrong"
    return "passed", ""


@functools.cache
def on_real_ranks(feature):
    run = simlib.run(feature, 4)
    assert kinds_by_line(run, feature) == marked_lines(feature)
    return run.results


@pytest.mark.parametrize("feature", features.FEATURES.values(), ids=features.FEATURES)
def test_feature_gives_the_numbers_of_plain_gloo_and_is_traced(feature, tmp_path):
    plain = harness.plain(on_gloo, 4, (feature.__name__, str(tmp_path / "store")), 60)
    assert on_real_ranks(feature) == plain


@pytest.mark.parametrize("feature", features.FEATURES.values(), ids=features.FEATURES)
def test_feature_gives_the_numbers_of_real_ranks_when_simulated(feature):
    simulated = simlib.simulate(feature, 4)
    harness.assert_close(simulated.results, on_real_ranks(feature))
    assert kinds_by_line(simulated, feature) == marked_lines(feature)


def on_gloo(rank, world_size, name, store):
    """Run a feature in a default group of plain Gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    result = features.FEATURES[name](rank, world_size)
    dist.barrier()
    dist.destroy_process_group()
    return result


def marked_lines(feature):
    """``{line number: kinds of op its mark names}``, read from the feature's source."""
    lines, first = inspect.getsourcelines(feature)
    marks = {}
    for number, line in enumerate(lines, start=first):
        if found := re.search(r"# traced: (.*)", line):
            marks[number] = set(found[1].split()) - {"nothing"}
    return marks


def kinds_by_line(run, feature):
    """``{marked line: kinds of op that the trace of every rank has there}``."""
    found = {}
    for number in marked_lines(feature):
        kinds = [set() for _ in range(run.world_size)]
        for op in run.trace:
            if (op.site.file, op.site.lineno) == (features.__file__, number):
                kinds[op.rank].add(op.kind)
        found[number] = set.intersection(*kinds)
    return found
