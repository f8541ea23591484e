"""The MPI of this environment on the hosts of a practice cluster: published scripts, jobs, doctor.

The mpiexec is the one of this Python. `make test-mpi` runs this module in environments of
Intel MPI and Open MPI, too, and tells by the variables below what is to be found.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import simlib
from simlib.cluster.batch import mpiexec
from simlib.cluster.practice import PracticeCluster

TESTS = Path(__file__).parents[1]
HOSTS = ["node1", "node2", "node3"]
BESIDE = str(Path(sys.executable).with_name("mpiexec"))
MPI = os.environ.get("MPI_HERE") or "MPICH"
OTHERS = shlex.split(os.environ.get("MPIEXEC_OF_OTHERS", ""))
"""Paths of the mpiexec of other MPIs."""
LIMIT_S = 120


@pytest.fixture(scope="module")
def login(needs_practice_cluster):
    """The words that run a program on the login host of three nodes."""
    needs_practice_cluster()
    with PracticeCluster(len(HOSTS)) as cluster:
        yield cluster.launcher("login")


def typed(ranks, script):
    """The line for one rank on each host, as the manual of each MPI has it."""
    hosts = ",".join(HOSTS[:ranks])
    if MPI == "Open MPI":
        options = f"--allow-run-as-root -n {ranks} --host {hosts} -x PATH -x PYTHONPATH"
    else:
        options = f"-n {ranks} -ppn 1 -hosts {hosts}"
    return ["mpiexec", *options.split(), "python", "-m", "simlib.mpi", script]


def say(words):
    """Run a line in the folder of the scripts, with this environment first on the PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        words, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        cwd=TESTS / "published", env={**os.environ, "PATH": path, "PYTHONPATH": str(TESTS.parent)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("ptdist.py", ["rank 0 has sent {}", "rank 1 has received {}"]),
        ("world_of_three.py", ["rank 0 has {}", "rank 1 has {}", "rank 2 has {}"]),
    ],
)
def test_a_published_script_prints_what_it_should(login, script, said):
    """The two ranks' message is [1, -1]; the sum of the three is 1 + 2 - 3 = 0."""
    tensor = {2: "tensor([ 1., -1.])", 3: "tensor([0.])"}[len(said)]
    done = say([*login, *typed(len(said), script)])
    assert done.returncode == 0, done.stderr
    # A launcher may put what two ranks print at one moment into one line.
    for line in said:
        assert done.stdout.count(line.format(tensor)) == 1, done.stdout + done.stderr
    assert done.stdout.count("rank ") == len(said)


def test_this_mpi_is_known(login):
    """`simlib.Mpiexec` forms the line that one would type."""
    assert mpiexec.mpi_of([BESIDE]).name == MPI
    to = simlib.Mpiexec(hosts=HOSTS[:2], launcher=[*login, BESIDE])
    words = to.command(2, ["python"])[len(login) + 1 :]
    if MPI == "Open MPI":
        assert words[-3:] == ["--host", "node1:1,node2:1", "python"]
        assert "--allow-run-as-root" in words and "-ppn" not in words
        assert ["-x", "PATH"] == words[words.index("-x") :][:2]
    else:
        assert words == "-n 2 -ppn 1 -hosts node1,node2 python".split()


def summed(rank, world_size):
    x = torch.tensor([rank + 1.0])
    dist.all_reduce(x)
    return x.item(), os.uname().nodename


def two_go_on(rank, world_size):
    pair = dist.new_group([0, 2])
    time.sleep(1 if rank != 1 else LIMIT_S)
    x = torch.ones(1)
    dist.all_reduce(x, group=pair)
    return x.item()


def lost_once(rank, world_size):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        dist.barrier() if rank != 1 else time.sleep(LIMIT_S)
    dist.barrier()
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "options", "results", "deaths"),
    [
        (summed, {}, [(6.0, host) for host in HOSTS], [[]]),
        (two_go_on, {"kill": {1: 0.5}, "on_death": "continue"}, [2.0, None, 2.0], [[1]]),
        (lost_once, {"kill": {1: 0.5}, "restarts": 1, "min_ranks": 2}, ["1", "1"], [[1], []]),
    ],
)
def test_a_job_on_hosts(login, tmp_path, function, options, results, deaths):
    """Ranks of two hosts outlive a third, or begin anew."""
    to = simlib.Mpiexec(hosts=HOSTS, launcher=[*login, BESIDE], time_limit=LIMIT_S)
    job = simlib.submit(function, 3, to=to, folder=tmp_path, **options)
    run = job.result(LIMIT_S)
    assert (job.status, run.results) == ("done", results)
    assert [list(attempt.deaths) for attempt in run.attempts] == deaths


@pytest.mark.slow
def test_the_doctor_names_the_mpi(login):
    words = [sys.executable, "-m", "simlib", "doctor", "--hosts", ",".join(HOSTS[:2])]
    done = say([*login, *words])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"with {MPI}, as mpiexec" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS)
def test_the_mpiexec_of_another_mpi_works_or_is_refused(other, tmp_path):
    """MPICH's and Intel's start each other's ranks; else each rank would be alone, silently."""
    to = simlib.Mpiexec(launcher=[other], time_limit=LIMIT_S)
    job = simlib.submit(summed, 2, to=to, folder=tmp_path)
    try:
        assert job.result(LIMIT_S).results == [(3.0, os.uname().nodename)] * 2
    except simlib.JobError as error:
        assert "belongs to another MPI than the one mpi4py has loaded" in str(error)
    script = str(TESTS / "published" / "world_of_three.py")
    done = say(to.command(3, [sys.executable, "-m", "simlib.mpi", script]))
    if done.returncode == 0:
        assert done.stdout.count("has tensor([0.])") == 3
    else:
        assert "belongs to another MPI" in done.stderr or "unsupported PMI" in done.stderr
        assert "has tensor" not in done.stdout
