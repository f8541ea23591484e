"""The commands of every MPI's mpiexec and of srun, and what launchers' words mean."""

import pickle
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlib
from simlib.cluster import launchers
from simlib.cluster.batch import mpiexec
from simlib.cluster.batch.failures import cause_in
from simlib.cluster.launchers import hosts_in

VERSIONS = {
    "MPICH": "HYDRA build details:\n    Version:  5.0.2",
    "Intel MPI": "Intel(R) MPI Library for Linux* OS, Version 2021.18\nHYDRA",
    "Open MPI": "mpiexec (Open MPI) 5.0.11",
}


def launcher(tmp_path, version):
    path = tmp_path / "mpiexec.py"
    path.write_text(f"print({version!r})")
    return [sys.executable, str(path)]


@pytest.mark.parametrize(
    ("name", "options", "even", "uneven", "here", "batch"),
    [
        ("MPICH", "", "-ppn 2 -hosts a,b ", "-hosts a:2,b:1 ", "", "-ppn 2 "),
        ("Intel MPI", "", "-ppn 2 -hosts a,b ", "-hosts a:2,b:1 ", "", "-ppn 2 "),
        (
            "Open MPI", "--bind-to none --allow-run-as-root -x PATH ",
            "--host a:2,b:2 ", "--host a:2,b:1 ", "--host localhost:3 ", "--map-by ppr:2:node ",
        ),
    ],
)  # fmt: skip
def test_the_command_of_each_mpi(tmp_path, monkeypatch, name, options, even, uneven, here, batch):
    words = launcher(tmp_path, VERSIONS[name])
    assert mpiexec.mpi_of(words).name == name
    monkeypatch.setattr(launchers, "_is_root", lambda: True)
    monkeypatch.setattr(launchers, "FORWARDED", ("PATH", "NOT_SET_HERE"))

    def told(to, ranks):
        command = to.command(ranks, ["python", "x.py"])
        assert command[: len(words)] == words
        return " ".join(command[len(words) :])

    file = tmp_path / "hosts"
    on_hosts = simlib.Mpiexec(hosts=["a", "b"], ranks_per_node=2, launcher=words)
    assert told(on_hosts, 4) == f"-n 4 {options}{even}python x.py"
    assert told(simlib.Mpiexec(launcher=words), 3) == f"-n 3 {options}{here}python x.py"
    for text, where in (("a:2\nb slots=2\n", even), ("a slots=2\r\nb", uneven)):
        file.write_text(text)
        to = simlib.Mpiexec(hostfile=str(file), launcher=words)
        assert told(to, 3) == f"-n 3 {options}{where}python x.py"
    file.unlink()  # later attempts do not read it again
    assert pickle.loads(pickle.dumps(to)).slots == (("a", 2), ("b", 1))
    monkeypatch.setattr(simlib.Mpiexec, "words", lambda self: words)
    within = simlib.Slurm(nodes=2, ranks_per_node=2, launcher="mpiexec")
    assert told(within, 4) == f"-n 4 {options}{batch}python x.py"


def test_what_is_no_mpiexec(tmp_path):
    with pytest.raises(simlib.JobError, match="answers 'something else': it is not an mpiexec"):
        mpiexec.mpi_of(launcher(tmp_path, "something else"))
    with pytest.raises(simlib.JobError, match="no command 'no-such-mpiexec'"):
        simlib.Mpiexec(launcher="no-such-mpiexec -x").command(2, ["python"])


def test_command_of_slurm():
    command = simlib.Slurm(nodes=2, ranks_per_node=2).command(4, ["python"])
    assert command[0] == "srun"
    assert "--ntasks-per-node=2" in command and command[-1] == "python"
    assert "--mpi=none" in command and not any("cpus" in word for word in command)
    to = simlib.Slurm(nodes=2, mpi="pmix", cpus_per_rank=4)
    assert to.uses_mpi and {"--mpi=pmix", "--cpus-per-task=4"} < set(to.command(2, ["python"]))
    with pytest.raises(simlib.InvalidCallError, match="mpi='pmix' is an option of srun"):
        simlib.Slurm(nodes=2, mpi="pmix", launcher="mpiexec")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ssh: Could not resolve hostname nod2: Name or service not known", "host nod2 is unknown"),
        ("ssh: connect to host node2 port 22: Connection refused", "answers, but runs no ssh"),
        ("ssh: connect to host node2 port 22: Connection timed out", "node2 does not answer"),
        ("ssh: connect to host node2 port 22: No route to host", "node2 does not answer"),
        ("root@node2: Permission denied (publickey).", "node2 does not let this account in"),
        ("Host key verification failed.", "ssh does not know a host"),
        ("bash: /opt/bin/hydra_pmi_proxy: No such file or directory", "a host has no MPI"),
        (
            "[proxy:0@node2] HYDU_create_process: execvp error on file /x/python (No such file)",
            r"cannot run the Python of this notebook, /x/python: install",
        ),
        ("python: can't open file '/a/start.py': [Errno 2]", "a host does not see /a/start.py in"),
        ("sbatch: error: invalid partition specified: gpu", "there is no such partition"),
        ("slurmstepd: error: *** CANCELLED AT 2026 DUE TO TIME LIMIT ***", "the queue's time lim"),
        ("check(167): Runtime environment uses unsupported PMI version PMIx.", "another MPI"),
        ("srun: error: More processors requested than permitted", "the job asks for more"),
        *(
            (
                f"srun: error: Couldn't {find} specified plugin name for mpi/pmix: it failed",
                "srun does not support MPI by pmix here: use mpi=",
            )
            for find in ("find the", "load")
        ),
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


FORMS = {
    "node1:2\nnode2": [("node1", 2), ("node2", None)],
    "node1  max-slots=4 slots = 2": [("node1", 2)],
    "node1\r\nnode2:3\r\n": [("node1", None), ("node2", 3)],
    "# all of them\n\n  node1 # the first\n\t\nnode2:2#x\n": [("node1", None), ("node2", 2)],
    "\ufeff10.0.0.1:2\nme@a.example.org": [("10.0.0.1", 2), ("me@a.example.org", None)],
    "node1\nnode2\nnode1\n": [("node1", 2), ("node2", None)],
    "node1:2\nnode1 slots=3\n": [("node1", 5)],
}


@pytest.mark.parametrize("text", FORMS)
def test_what_a_hostfile_says(tmp_path, text):
    (tmp_path / "hosts").write_bytes(text.encode())
    assert hosts_in(tmp_path / "hosts") == FORMS[text]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "contains no host"),
        ("\n# nothing\n\r\n", "contains no host"),
        ("node1\nnode2 node3\n", "line 2 of {path} has 'node3' after the host node2"),
        ("node1,node2", "line 1 of {path} has ',node2' after the host node1"),
        ("\nnode1:two", "line 2 of {path}: the number of ranks of a host is 'two'"),
        ("node1:", "line 1 of {path}: the number of ranks of a host is ''"),
        ("node1:0", "line 1 of {path}: the number of ranks of a host is '0'"),
        ("node1 slots=-1", "line 1 of {path}: the number of ranks of a host is '-1'"),
        ("node1:2 slots=2", "line 1 of {path} gives the number of ranks for node1 twice"),
        ("node1 slot=2", "line 1 of {path} has 'slot=2' after the host node1"),
        ("=2", "line 1 of {path} does not begin with a host name"),
        ("--help", "line 1 of {path} does not begin with a host name"),
    ],
)
def test_what_is_wrong_with_a_hostfile(tmp_path, text, words):
    path = tmp_path / "hosts"
    path.write_bytes(text.encode())
    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.Mpiexec(hostfile=str(path))
    assert words.format(path=path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_hostfile(tmp_path):
    (tmp_path / "hosts").write_bytes(b"\xff\xfe\x00n")
    for path, words in (
        (tmp_path / "none", "cannot be read .No such file"),
        (tmp_path, "cannot be read .Is a directory"),
        (tmp_path / "hosts", "is not text"),
    ):
        with pytest.raises(simlib.InvalidCallError, match=words):
            simlib.Mpiexec(hostfile=str(path))


@pytest.mark.parametrize("name", ["", " ", "a b", "a,b", "node1:2", "-x", None, 3])
def test_what_is_no_host(name):
    with pytest.raises(simlib.InvalidCallError, match=r"hosts\[1\] is .*which is not a host name"):
        simlib.Mpiexec(hosts=["node1", name])


def test_ranks_have_to_fit(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("node1:2\nnode2\n")
    to = simlib.Mpiexec(hostfile=str(path))
    to.check(3)
    with pytest.raises(simlib.InvalidCallError) as caught:
        to.check(4)
    words = f"world_size=4 does not fit on the hosts in {path} (node1:2, node2:1)"
    assert words in str(caught.value)
    simlib.Mpiexec(hostfile=str(path), ranks_per_node=3).check(6)  # overrules the file
    with pytest.raises(simlib.InvalidCallError, match="world_size=1 does not fit on 0 hosts"):
        simlib.Mpiexec(hosts=[]).check(1)


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True)
ENDS = st.sampled_from(["\n", "\r\n", "  \n", " # a comment\n", "\n\n"])
WAYS = st.sampled_from(["{0}:{1}", "{0} slots={1}", "  {0}\tslots = {1}", "{0}:{1} max_slots=99"])


@given(
    st.lists(st.tuples(NAMES, st.integers(1, 99), WAYS, ENDS), min_size=1, unique_by=lambda x: x[0])
)
def test_every_way_to_write_hosts_is_read(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "hosts-of-any-form"
    path.write_bytes("".join(w.format(name, n) + end for name, n, w, end in lines).encode())
    assert hosts_in(path) == [(name, count) for name, count, *_ in lines]


@given(st.text())
def test_any_text_is_read_or_refused_in_a_sentence(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "hosts-of-any-text"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = hosts_in(path)
    except simlib.InvalidCallError as error:
        assert "\n" not in str(error)
    else:
        assert found and all(name for name, _ in found)


def test_only_where_nobody_else_knows_better(tmp_path, monkeypatch):
    monkeypatch.delenv(launchers.SCHEME, raising=False)
    monkeypatch.setattr(launchers, "DEVICES", tmp_path)
    assert launchers.ucx_settings() == {launchers.SCHEME: "am"}
    assert simlib.Mpiexec().environ()[launchers.SCHEME] == "am"
    monkeypatch.setenv(launchers.SCHEME, "auto")
    assert launchers.ucx_settings() == {}
    monkeypatch.delenv(launchers.SCHEME)
    (tmp_path / "mlx5_0").mkdir()  # InfiniBand
    assert launchers.ucx_settings() == {}
    assert launchers.SCHEME not in simlib.Mpiexec().environ()
