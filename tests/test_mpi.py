"""torch.distributed over mpi4py, in jobs of a real mpiexec on this machine."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from conformance import features, harness, over_mpi

import simlib

TESTS = Path(__file__).parent
SAMPLED_FEATURES, SAMPLED_METHODS = 3, 5


def mpiexec(ranks, *argv, **environment):
    """Run a Python program as an MPI job; returns the finished process."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    command = over_mpi.command(ranks, [sys.executable, *argv])
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=TESTS,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip


def test_what_every_call_promises():
    import mpi_programs

    done = mpiexec(3, "-m", "mpi_programs")
    passed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("passed")]
    assert passed == [program.__name__ for program in mpi_programs.PROGRAMS], done.stderr


@pytest.mark.long
def test_features_give_the_numbers_of_real_ranks(seed):
    """In DDP's join blocking and non-blocking calls meet, so it is always among them."""
    names = {"ddp_join", *random.Random(seed).sample(list(features.FEATURES), SAMPLED_FEATURES)}
    check_features(sorted(names))


@pytest.mark.long
def test_all_features_give_the_numbers_of_real_ranks():
    check_features(features.FEATURES)


def check_features(names):
    outcomes = over_mpi.run_all(names, 4)
    for name, (status, results) in outcomes.items():
        assert status == "passed", f"{name}: {results}"
        harness.assert_close(results, simlib.run(features.FEATURES[name], 4).results)


def methods():
    """Those of torch's methods that pass over MPI, on as few ranks as may be."""
    table = harness.read_table()
    left_out = {*table["not_over_mpi"], *table["eight_ranks"]}
    assert set(table["not_over_mpi"]) <= set(table["passes"])
    return [name for name in table["passes"] if name not in left_out]


def failures(names, world_size):
    outcomes = over_mpi.run_all(names, world_size)
    return {name: detail for name, (status, detail) in outcomes.items() if status == "failed"}


@pytest.mark.long
def test_methods_of_torch_pass(seed):
    assert failures(random.Random(seed).sample(methods(), SAMPLED_METHODS), 2) == {}


@pytest.mark.long
@pytest.mark.parametrize("world_size", [2, 4])
def test_all_methods_of_torch_pass(world_size):
    assert failures(methods(), world_size) == {}


PTDIST = """
import torch
import torch.distributed as dist

def main(rank, world_size):
    if rank == 0:
        x = torch.tensor([1., -1.])
        dist.send(x, dst=1)
        print("rank 0 has sent", x.tolist())
    else:
        z = torch.zeros(2)
        dist.recv(z, src=0)
        print("rank 1 has received", z.tolist())

if __name__ == "__main__":
    dist.init_process_group(backend="mpi")
    main(dist.get_rank(), dist.get_world_size())
"""


def test_a_script_for_the_mpi_backend_runs_unchanged(tmp_path):
    script = tmp_path / "ptdist.py"
    script.write_text(PTDIST)
    done = mpiexec(2, "-m", "simlib.mpi", str(script))
    # mpiexec may put what two ranks print into one line.
    for said in ("rank 0 has sent [1.0, -1.0]", "rank 1 has received [1.0, -1.0]"):
        assert said in done.stdout, done.stderr


def test_a_rank_that_fails_ends_the_job(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(PTDIST.replace("dist.send(x, dst=1)", "raise KeyError('no data')"))
    done = mpiexec(2, "-m", "simlib.mpi", str(script))
    assert done.returncode != 0
    assert "KeyError: 'no data'" in done.stderr


def test_the_exit_code_of_a_script_is_the_jobs(tmp_path):
    script = tmp_path / "exits.py"
    script.write_text("import sys; sys.exit(3)")
    assert mpiexec(1, "-m", "simlib.mpi", str(script)).returncode == 3
    assert mpiexec(2, "-m", "simlib.mpi", str(script)).returncode != 0
