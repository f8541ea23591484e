"""The commands of every MPI's mpiexec and of srun, and what launchers' words mean."""

import re
import sys

import pytest

import simlib
from simlib.cluster import launchers
from simlib.cluster.batch import mpiexec
from simlib.cluster.batch.failures import cause_in

VERSIONS = {
    "MPICH": "HYDRA build details:\n    Version:  5.0.2",
    "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.18\nHYDRA",
    "Open MPI": "mpiexec (Open MPI) 5.0.11",
}


def launcher(tmp_path, version):
    path = tmp_path / "mpiexec.py"
    path.write_text(f"print({version!r})")
    return [sys.executable, str(path)]


@pytest.mark.parametrize("name", VERSIONS)
def test_which_mpi(tmp_path, name):
    assert mpiexec.mpi_of(launcher(tmp_path, VERSIONS[name])).name == name


def test_what_is_no_mpiexec(tmp_path):
    with pytest.raises(simlib.JobError, match="answers 'something else': it is no mpiexec"):
        mpiexec.mpi_of(launcher(tmp_path, "something else"))
    with pytest.raises(simlib.JobError, match="no command 'no-such-mpiexec'"):
        simlib.Mpiexec(launcher="no-such-mpiexec -x").command(2, ["python"])


@pytest.mark.parametrize("name", ["MPICH", "Intel MPI"])
def test_command_of_mpich_and_intel(tmp_path, name):
    words = launcher(tmp_path, VERSIONS[name])
    to = simlib.Mpiexec(hosts=["a", "b"], ranks_per_node=2, launcher=words)
    command = to.command(4, ["python", "x.py"])
    assert command == [*words, *"-n 4 -ppn 2 -hosts a,b python x.py".split()]
    here = simlib.Mpiexec(launcher=words).command(3, ["python"])
    assert here == [*words, "-n", "3", "python"]


@pytest.mark.parametrize(
    ("name", "even", "uneven"),
    [
        ("MPICH", "-ppn 2 -hosts a,b", "-hosts a:2,b:1"),
        ("Intel MPI", "-ppn 2 -hosts a,b", "-hosts a:2,b:1"),
        ("Open MPI", "--host a:2,b:2", "--host a:2,b:1"),
    ],
)
def test_a_hostfile_is_told_in_the_form_of_the_launcher(tmp_path, name, even, uneven):
    words = launcher(tmp_path, VERSIONS[name])
    for text, options in (("a:2\nb slots=2\n", even), ("a slots=2\r\nb", uneven)):
        (tmp_path / "hosts").write_text(text)
        to = simlib.Mpiexec(hostfile=str(tmp_path / "hosts"), launcher=words)
        command = to.command(3, ["python"])
        assert command[: len(words) + 2] == [*words, "-n", "3"]
        assert command[-len(options.split()) - 1 :] == [*options.split(), "python"]


def test_command_of_open_mpi(tmp_path, monkeypatch):
    words = launcher(tmp_path, VERSIONS["Open MPI"])
    monkeypatch.setattr(launchers, "_is_root", lambda: True)
    monkeypatch.setattr(launchers, "FORWARDED", ("PATH", "NOT_SET_HERE"))
    to = simlib.Mpiexec(hosts=["a", "b"], ranks_per_node=2, launcher=words)
    options = "-n 4 --bind-to none --allow-run-as-root -x PATH --host a:2,b:2 python"
    assert to.command(4, ["python"]) == [*words, *options.split()]
    here = simlib.Mpiexec(launcher=words).command(3, ["python"])
    assert here[-3:] == ["--host", "localhost:3", "python"]


def test_command_of_slurm():
    command = simlib.Slurm(nodes=2, ranks_per_node=2).command(4, ["python"])
    assert command[0] == "srun"
    assert "--ntasks-per-node=2" in command and command[-1] == "python"
    assert "--mpi=none" in command and not any("cpus" in word for word in command)
    to = simlib.Slurm(nodes=2, mpi="pmix", cpus_per_rank=4)
    assert to.uses_mpi and {"--mpi=pmix", "--cpus-per-task=4"} < set(to.command(2, ["python"]))
    with pytest.raises(simlib.InvalidCallError, match="mpi='pmix' is an option of srun"):
        simlib.Slurm(nodes=2, mpi="pmix", launcher="mpiexec")


def test_what_srun_says_of_a_plugin_that_it_does_not_have():
    for words in ("Couldn't find the specified", "Couldn't load specified"):
        sentence, _ = cause_in(f"srun: error: {words} plugin name for mpi/pmix: it failed")
        assert sentence.startswith("srun cannot serve MPI by pmix here: srun --mpi=list says")


@pytest.mark.parametrize(
    ("name", "options"),
    [("MPICH", "-ppn 2"), ("Intel MPI", "-ppn 2"), ("Open MPI", "--map-by ppr:2:node")],
)
def test_an_mpiexec_within_a_batch_job_asks_slurm_for_the_hosts(
    tmp_path, monkeypatch, name, options
):
    words = launcher(tmp_path, VERSIONS[name])
    monkeypatch.setattr(simlib.Mpiexec, "words", lambda self: words)
    to = simlib.Slurm(nodes=2, ranks_per_node=2, launcher="mpiexec")
    command = to.command(4, ["python"])
    assert command[: len(words) + 2] == [*words, "-n", "4"]
    assert command[-len(options.split()) - 1 :] == [*options.split(), "python"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ssh: Could not resolve hostname nod2: Name or service not known", "host nod2 is unknown"),
        ("ssh: connect to host node2 port 22: Connection refused", "node2 answers, but no ssh"),
        ("ssh: connect to host node2 port 22: Connection timed out", "node2 does not answer"),
        ("ssh: connect to host node2 port 22: No route to host", "node2 does not answer"),
        ("root@node2: Permission denied (publickey).", "node2 does not let this account in"),
        ("Host key verification failed.", "ssh does not know a host"),
        ("bash: /opt/bin/hydra_pmi_proxy: No such file or directory", "a host has no MPI"),
        (
            "[proxy:0@node2] HYDU_create_process: execvp error on file /x/python (No such file)",
            r"cannot run the Python of this notebook, /x/python: install",
        ),
        (
            "python: can't open file '/a/start.py': [Errno 2]",
            r"the job's folder, with its /a/start.py",
        ),
        ("sbatch: error: invalid partition specified: gpu", "there is no such partition"),
        (
            "slurmstepd: error: *** CANCELLED AT 2026 DUE TO TIME LIMIT ***",
            "the queue's time limit",
        ),
        ("check(167): Runtime environment uses unsupported PMI version PMIx.", "another MPI"),
        ("srun: error: More processors requested than permitted", "more was asked for"),
    ],
)
def test_first_line_is_the_cause(said, words):
    sentence, line = cause_in(f"\n===\n{said}\nLaunch proxy failed.\n")
    assert re.search(words, sentence)
    assert line == said


def test_words_of_a_launcher_that_nobody_knows():
    assert cause_in("\nsomething new\nmore\n") == (None, "something new")
    noise = (
        "[W1125 22:28:07.640625799 socket.cpp:207] [c10d] The hostname of the client socket cannot "
        "be retrieved. err=-3\n"
    )
    assert cause_in(f"{noise}\n{noise}something new\n") == (None, "something new")
    assert cause_in(noise) == (None, "")
