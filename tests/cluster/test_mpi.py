"""torch.distributed over mpi4py, in jobs of a real mpiexec on this machine."""

import os
import random
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from conformance import features, harness, over_mpi

import simlib

TESTS = Path(__file__).parents[1]
SAMPLED_METHODS = 20


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


def methods(left_out=("not_over_mpi", "eight_ranks")):
    """Those of torch's methods that pass over MPI on four ranks."""
    table = harness.read_table()
    assert set(table["not_over_mpi"]) <= set(table["passes"])
    left_out = {name for part in left_out for name in table[part]}
    return [name for name in table["passes"] if name not in left_out]


def check(names, world_size, skipped=()):
    """All of torch's methods pass, but for those it skips; features have the numbers of `run`."""
    outcomes = over_mpi.run_all(names, world_size)
    statuses = {name: status for name, (status, _) in outcomes.items()}
    expected = {name: "skipped" if name in skipped else "passed" for name in names}
    failed = [str(detail) for status, detail in outcomes.values() if status == "failed"]
    assert statuses == expected, "\n".join(failed)
    for name, (_, results) in outcomes.items():
        if name in features.FEATURES:
            harness.assert_close(results, simlib.run(features.FEATURES[name], world_size).results)


def test_torchs_own_methods_on_two_ranks():
    check(methods(), 2, skipped=harness.read_table()["four_ranks"])


def test_a_sample_on_four_ranks(seed):
    """In DDP's join blocking and non-blocking calls meet; FSDP2 hands out one memory twice.

    A method does not feel those before it in its process: the first of these sets the level of
    debugging, on which the second's expectations depend.
    """
    first = ["test_all_gather_object_default_pg", "test_barrier_timeout_full_group"]
    always = {"ddp", "ddp_join", "fsdp2", *harness.read_table()["four_ranks"]}
    drawn = random.Random(seed).sample(methods(), SAMPLED_METHODS)
    check([*first, *sorted({*always, *drawn} - {*first})], 4)


@pytest.mark.slow
def test_torchs_own_methods_and_features_on_four_ranks():
    check([*methods(), *features.FEATURES], 4)


@pytest.mark.slow
def test_what_needs_eight_ranks():
    check([name for name in methods(["not_over_mpi"]) if name not in methods()], 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", harness.read_table()["not_over_mpi"])
def test_what_does_not_pass_is_told_so(name):
    """torch refuses on one rank at least; where others wait for it, the time runs out first."""
    ranks = 8 if name in harness.read_table()["eight_ranks"] else 2
    ((status, _),) = over_mpi.run_all([name], ranks).values()
    assert status == "failed"


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


def run_script(tmp_path, text, ranks):
    """A script for MPI's backend, run unchanged."""
    script = tmp_path / "script.py"
    script.write_text(text)
    return mpiexec(ranks, "-m", "simlib.mpi", str(script))


def test_a_script_for_the_mpi_backend_runs_unchanged(tmp_path):
    """A rank that fails ends the job."""
    done = run_script(tmp_path, PTDIST, 2)
    # mpiexec may put what two ranks print into one line.
    for said in ("rank 0 has sent [1.0, -1.0]", "rank 1 has received [1.0, -1.0]"):
        assert said in done.stdout, done.stderr
    failing = PTDIST.replace("dist.send(x, dst=1)", "raise KeyError('no data')")
    done = run_script(tmp_path, failing, 2)
    assert done.returncode != 0
    assert "KeyError: 'no data'" in done.stderr


READ_LATE = """
import os, time
from simlib.mpi import __main__ as script
read, write = os.pipe()
os.write(write, b"Traceback")
taken = []
time.sleep = lambda _: taken.append(os.read(read, 5))
with open(write, "wb") as stream:
    script._wait_until_read(stream)
print(taken)
"""


def test_a_rank_that_fails_waits_until_its_words_were_taken():
    """Else the launcher may end before it has passed them on."""
    assert mpiexec(1, "-c", READ_LATE).stdout == "[b'Trace', b'back']\n"


def test_the_exit_code_of_a_script_is_the_jobs(tmp_path):
    assert run_script(tmp_path, "import sys; sys.exit(3)", 1).returncode == 3
    assert run_script(tmp_path, "import sys; sys.exit(3)", 2).returncode != 0


def test_a_rank_that_is_alone_among_many_is_refused():
    """As under another MPI's mpiexec: that one's word, and a library that knows of no other."""
    script = str(TESTS / "published" / "world_of_three.py")
    told = {"PMI_SIZE": "3", "OMPI_COMM_WORLD_SIZE": "3"}  # the right mpiexec sets one of them anew
    done = mpiexec(1, "-m", "simlib.mpi", script, **told)
    assert done.returncode != 0 and done.stdout == ""
    assert "mpiexec started 3 processes, but MPI says that this process is alone" in done.stderr


SCRIPT = """
import sys
from datetime import timedelta
import torch.distributed as dist

try:
    dist.init_process_group("mpi", worldsize=2)
except TypeError as error:
    print(error)
dist.init_process_group("mpi", None, timedelta(seconds=7), group_name="here")
print(dist.group.WORLD._timeout)
sys.exit("there is no data folder")
"""


def test_a_script_hears_of_a_wrong_keyword_and_says_why_it_ends(tmp_path):
    done = run_script(tmp_path, SCRIPT, 1)
    assert done.stdout.splitlines() == [
        "got an unexpected keyword argument 'worldsize'",
        str(timedelta(seconds=7)),
    ], done.stderr
    assert "there is no data folder" in done.stderr
    assert done.returncode == 1
