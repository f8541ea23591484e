"""An untested torch: `run` warns once, `simulate` refuses where the canary does not pass."""

import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
import torch

import simlib
from simlib.core.engines import torch_versions
from simlib.testing.canary import PROGRAMS, Program, programs
from simlib.testing.canary import __main__ as canary

ROOT = Path(__file__).resolve().parents[2]
FOUND = {torch_versions.warn_of_untested_torch, torch_versions.refuse_untested_torch}


def rank_and_size(rank, n):
    return rank, n


@pytest.fixture
def newer(monkeypatch, tmp_path):
    """``newer(outcome)``: torch is 9.9 from now on, and the canary says this of it."""
    asked = []

    def begin(outcome):
        def run_canary():
            asked.append(outcome)
            return outcome

        monkeypatch.setattr(torch, "__version__", "9.9.1+cpu")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(torch_versions, "_run_canary", run_canary)
        forget()
        return asked

    yield begin
    forget()


def forget():
    for function in FOUND:
        function.cache_clear()


def test_the_range_is_that_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = (text for text in project["dependencies"] if text.startswith("torch"))
    assert wanted == torch_versions.requirement()


def test_a_version_counts_by_its_first_two_numbers():
    for version in ("2.13.0+cpu", "2.15.9"):
        assert not torch_versions.is_untested(version)
    for version in ("2.16.0.dev2", "3.0.0", "2.9.1"):
        assert torch_versions.is_untested(version)


def test_run_warns_once_of_an_untested_torch(newer):
    newer("")
    with pytest.warns(UserWarning, match=r"this is torch 9\.9\.1\+cpu\. .* pip install 'torch>"):
        simlib.run(rank_and_size, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert simlib.run(rank_and_size, 1).results == [(0, 1)]


def test_simulate_refuses_where_the_canary_fails_and_asks_it_once(newer):
    asked = newer("fsdp2 on simulate: a world of 1\n21 programs, both engines: 1 failed")
    for _ in range(2):
        with pytest.raises(simlib.SimlibError, match=r"pip install 'torch>[^']*'\s+fsdp2 on sim"):
            simlib.simulate(rank_and_size, 2)
        forget()
    assert len(asked) == 1


def test_simulate_goes_on_where_the_canary_passes(newer):
    newer("21 programs, both engines: none failed")
    assert simlib.simulate(rank_and_size, 2).results == [(0, 2), (1, 2)]


def test_a_canary_that_crashes_has_not_passed(newer):
    newer("Segmentation fault")
    with pytest.raises(simlib.SimlibError, match="Segmentation fault"):
        simlib.simulate(rank_and_size, 2)


def test_the_canary_has_its_programs_that_look_at_their_world():
    assert len(PROGRAMS) == 21
    assert {program.function.__module__ for program in PROGRAMS} == {
        programs.__name__,
    }
    assert all("check_world" in program.function.__code__.co_names for program in PROGRAMS)


def test_the_canary_passes_with_this_torch():
    command = [sys.executable, "-m", "simlib.engines.canary"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "21 programs, both engines: none failed\n")


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_the_canary_tells_another_result_and_another_world(engine):
    def wrong(rank, n):
        return torch.ones(2)

    def small(rank, n):
        raise AssertionError("a world of 2 says that its size is 1")

    def right(rank, n):
        return torch.zeros(2)

    assert "rank 0" in canary._complaint(Program(wrong, right, 2), engine)
    assert re.search("size is 1", canary._complaint(Program(small, right, 2), engine))
    assert canary._complaint(Program(right, right, 2), engine) is None
