"""The practice cluster: hosts with ssh, links with a rate, Slurm, and nothing left of it."""

import hashlib
import os
import pwd
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from test_practice import in_a_run_of_its_own

from simlib.cli import main
from simlib.cluster.practice import (
    PracticeCluster,
    launcher,
    practice_command,
    practice_network,
)
from simlib.cluster.practice import practice_cluster as cluster_module
from simlib.cluster.practice.hosts import CPUS
from simlib.core.model.errors import InvalidCallError

HELLO = """
import socket
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
lines = world.gather(f"{world.rank} of {world.size} on {socket.gethostname()}: {total}")
if lines:
    print("\\n".join(lines))
"""
GLOO = """
import os, torch, torch.distributed as dist
rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
dist.init_process_group("gloo", "tcp://node1:29500", rank=rank, world_size=size)
x = torch.tensor([1.0 + rank])
dist.all_reduce(x)
print(x.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
RECEIVE = """
import socket
server = socket.create_server(("", 5000))
print("ready", flush=True)
peer, _ = server.accept()
left = 500_000
while left:
    left -= len(peer.recv(left))
peer.sendall(b"x")
"""
SEND = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5000))
begin_s = time.monotonic()
peer.sendall(bytes(500_000))
peer.recv(1)
print(time.monotonic() - begin_s)
"""
MPIEXEC = [Path(sys.executable).with_name("mpiexec"), "-n", 2, "-ppn", 1, "-hosts", "node1,node2"]
LIMIT_S = 60  # of what takes a second; a machine may be busy


@pytest.fixture(scope="module")
def practice(needs_practice_cluster):
    """Skips the test where there can be no practice cluster."""
    needs_practice_cluster()


@pytest.fixture(scope="module")
def cluster(needs_practice_cluster):
    """Two nodes with Slurm; what is the user's, and the machine's, stays as it is."""
    needs_practice_cluster(slurm=True)
    before = not_ours()
    with PracticeCluster(2, slurm=True) as cluster:
        yield cluster
    assert not_ours() == before
    assert not left_of(os.getpid())


@pytest.fixture
def place(practice, monkeypatch, tmp_path):
    """The cluster of `practice up` has a place of its own here: one may be up on this machine."""
    monkeypatch.setattr(practice_network, "RUNNING", tmp_path / "practice")
    yield tmp_path / "practice"
    main(["practice", "down"])


def not_ours():
    """Checksums of files that are the user's or the machine's, and what stands in /run."""
    roots = [Path(pwd.getpwuid(0).pw_dir, ".ssh"), Path("/etc/ssh"), Path("/etc/slurm")]
    files = [path for root in roots for path in root.rglob("*") if path.is_file()]
    files += [Path("/etc/hosts"), Path("/etc/munge/munge.key")]
    sums = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.exists()}
    # Of the passwords the user's own: packages that another test installs bring users of theirs.
    own = f"{pwd.getpwuid(0).pw_name}:"
    shadow = Path("/etc/shadow").read_text().splitlines()
    sums["password"] = [line for line in shadow if line.startswith(own)]
    places = [root.exists() for root in (*roots, Path("/etc/netns"), Path("/run/sshd"))]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    # Other clusters on this machine, of other sessions, have their names there.
    return sums, places, [line for line in mounts if f" {practice_network.PLACE}" not in line]


def left_of(pid):
    """Namespaces and folders of a process's clusters."""
    places = (practice_network.PLACE, practice_network.CLUSTERS)
    return [path for place in places for path in place.glob(f"{practice_network.PREFIX}-{pid}-*")]


def running(text):
    """The processes of this machine, in all namespaces, whose arguments contain a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def printed(cluster, host, argv, **options):
    """What a program printed that had to succeed."""
    done = cluster.run(
        host, argv, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Hosts


def test_every_host_reaches_every_host_by_name(cluster):
    names = list(cluster.addresses)
    program = "".join(f"ssh {name} hostname;" for name in names)
    with ThreadPoolExecutor() as pool:
        seen = pool.map(lambda host: printed(cluster, host, ["sh", "-c", program]).split(), names)
        assert list(seen) == [names] * 3


def test_a_host_has_name_processes_and_shared_memory_of_its_own(cluster):
    assert printed(cluster, "node1", ["hostname"]) == "node1\n"
    kinds = [f"/proc/self/ns/{kind}" for kind in ("ipc", "mnt", "net", "pid", "uts")]
    hosts = ("login", "node1", "node2")
    own = [set(printed(cluster, host, ["readlink", *kinds]).split()) for host in hosts]
    assert len(set.union(*own, map(os.readlink, kinds))) == 20
    printed(cluster, "node1", ["touch", "/dev/shm/mine"])
    assert printed(cluster, "node2", ["ls", "/dev/shm"]) == ""
    assert printed(cluster, "node2", ["cat", "/proc/1/comm"]) == "sshd\n"
    assert not Path("/dev/shm/mine").exists()


def test_a_login_runs_nothing_of_the_user(cluster):
    home = pwd.getpwuid(0).pw_dir
    program = f"cd {home}; cat .bashrc .profile .bash_profile 2> /dev/null; ls -A .ssh || true"
    assert printed(cluster, "login", ["ssh", "node1", program]) == ""


@pytest.mark.parametrize(
    ("argv", "code", "out", "err"),
    [
        (["sh", "-c", "pwd; echo $SAID; cat; echo x > note; exit 7"], 7, "{}\nso\ntyped\n", ""),
        (["sh", "-c", "kill -SEGV $$"], -signal.SIGSEGV, "", ""),
        (["no-such-program"], 127, "", "there is no program no-such-program"),
        ([], 125, "", "give the program to run"),
    ],
)
def test_a_program_has_all_of_its_caller_and_its_end_comes_back(
    cluster, tmp_path, argv, code, out, err
):
    """Folder, environment, input; all hosts see the same files."""
    done = cluster.run(
        "node1", argv, cwd=tmp_path, input="typed\n", env={**os.environ, "SAID": "so"},
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, out.format(tmp_path))
    assert err in done.stderr
    if code == 7:
        assert printed(cluster, "node2", ["cat", tmp_path / "note"]) == "x\n"


def test_signals_are_as_a_shell_leaves_them(cluster):
    ignored = printed(cluster, "node1", ["grep", "SigIgn", "/proc/self/status"])
    # 32 and up are real-time signals, the first of them the C library's own.
    assert int(ignored.split()[1], 16) & ((1 << 31) - 1) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_that_the_program_has_started(cluster, number):
    """Also on another host, and in a session of its own."""
    mark = f"9{os.getpid()}.{int(number)}"
    program = f"setsid sleep {mark} & ssh node2 'echo begun; exec sleep {mark}' & sleep {mark}"
    process = cluster.popen(
        "node1", ["sh", "-c", program], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(number)
    assert process.wait(LIMIT_S) == -number
    assert not running(mark)


def test_no_host_of_that_name(cluster):
    words = "there is no host node3: the practice cluster has login, node1, node2"
    with pytest.raises(InvalidCallError, match=words):
        cluster.popen("node3", ["true"])


# MPI and Slurm


def test_mpiexec_and_srun_start_ranks_on_two_nodes(cluster):
    assert printed(cluster, "login", ["sinfo", "-h", "-o", "%D %T"]) == "2 idle\n"
    for words in (MPIEXEC, ["srun", "--mpi=pmi2", "-N", 2, "-n", 2]):
        seen = printed(cluster, "login", [*words, sys.executable, "-c", HELLO])
        assert seen == "0 of 2 on node1: 3\n1 of 2 on node2: 3\n"


def test_gloo_connects_nodes_by_the_interface_that_is_named(cluster):
    # Buffered, a line is written in one piece: two ranks' lines stay apart.
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "PYTHONUNBUFFERED": ""}
    seen = printed(cluster, "login", [*MPIEXEC, sys.executable, "-c", GLOO], env=env)
    assert seen == "3.0\n3.0\n"


def test_a_batch_job_can_be_submitted_and_cancelled(cluster, tmp_path):
    program = tmp_path / "job.sh"
    program.write_text(f"#!/bin/sh\nsrun -n {2 * CPUS} hostname\necho done; sleep 1000\n")
    output = tmp_path / "output"
    begin = f"""
        id=$(sbatch --parsable -N 2 -n {2 * CPUS} -o {output} {program})
        until grep -sq done {output}; do sleep 0.05; done
        scancel $id
        until scontrol show job $id | grep -o JobState=CANCELLED; do sleep 0.05; done
    """
    assert printed(cluster, "login", ["sh", "-c", begin]) == "JobState=CANCELLED\n"
    lines = output.read_text().splitlines()
    assert lines.count("node1") == lines.count("node2") == CPUS


@pytest.mark.slow  # a minute; test_failures_hosts has Slurm's limit, brought nearer
def test_a_job_ends_at_its_time_limit(cluster):
    words = ["srun", "--time=1", "-N", 1, "sleep", 1000]
    done = cluster.run("login", words, capture_output=True, text=True, timeout=240)
    assert done.returncode and "DUE TO TIME LIMIT" in done.stderr


# Nothing is left


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_two_clusters_after_an_error(practice, error):
    """Links have the rate: a lower bound, as a busy machine makes it slower, never faster."""
    with (
        pytest.raises(error),
        PracticeCluster(1, rate_bps=20e6) as cluster,
        PracticeCluster(1) as other,
    ):
        assert cluster.addresses == other.addresses
        assert printed(other, "login", ["ssh", "node1", "hostname"]) == "node1\n"
        server = cluster.popen("node1", [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
        assert server.stdout.readline() == b"ready\n"
        time_s = float(printed(cluster, "login", [sys.executable, "-c", SEND, "node1"]))
        program = "setsid sleep 1000 & echo begun; sleep 1000"
        process = cluster.popen("node1", ["sh", "-c", program], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"begun\n"
        raise error
    assert time_s > 0.9 * 500_000 * 8 / 20e6
    assert process.returncode == -signal.SIGKILL
    assert not running(str(cluster.folder)) and is_removed(cluster)


def is_removed(cluster):
    places = [practice_network.PLACE / name for name in cluster._network.namespaces]
    return not any(place.exists() for place in (*places, cluster.folder))


def test_a_host_that_does_not_start_is_told_and_nothing_is_left(practice, monkeypatch):
    monkeypatch.setattr(
        cluster_module, "start_argv", lambda folder, host: ["sh", "-c", "echo out of order"]
    )
    cluster = PracticeCluster(1)
    with pytest.raises(
        InvalidCallError, match="login did not start. The last line of its log is 'out of order'"
    ):
        cluster.__enter__()
    assert is_removed(cluster)


def test_a_cluster_stays_up_until_down(place, capfd, monkeypatch, tmp_path):
    assert main(["practice", "status"]) == 1
    assert "no practice cluster is up" in capfd.readouterr().out
    called = []
    with monkeypatch.context() as patched:
        patched.setattr(practice_command.os, "execv", lambda path, argv: called.extend(argv))
        main(["practice", "exec", "node2", "--", "true"])

    def refused():
        done = subprocess.run(called, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 125
        return done.stderr

    assert "no practice cluster is up: `simlib" in refused()
    assert main(["practice", "up", "64"]) == 2
    assert "a practice cluster has at most 63" in capfd.readouterr().err
    assert main(["practice", "up", "2", "--rate", "100mbit"]) == 0
    assert "practice cluster: login, node1, node2; 100 Mbit/s" in capfd.readouterr().out
    done = subprocess.run(
        [*launcher("login"), *map(str, MPIEXEC), "hostname"], cwd=tmp_path,
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert sorted(done.stdout.split()) == ["node1", "node2"], done.stderr
    assert main(["practice", "status"]) == 0
    assert capfd.readouterr().out.count(" answers\n") == 3
    pid = int((place / "init" / "node2").read_text().split()[0])
    with os.fdopen(os.pidfd_open(pid)) as end:
        os.kill(pid, signal.SIGKILL)
        await_end(os.dup(end.fileno()))
    assert "node2 has ended" in refused()
    assert main(["practice", "status"]) == 1
    assert "node2    10.77.0.3    does not answer\n" in capfd.readouterr().out
    assert main(["practice", "up", "1"]) == 2
    assert "a practice cluster is already up" in capfd.readouterr().err
    assert main(["practice", "down"]) == 0
    assert "the practice cluster is down" in capfd.readouterr().out
    assert not place.is_symlink()


@pytest.mark.parametrize("who", ["owner", "reaper"], ids=["owner", "reaper too"])
def test_nothing_is_left_of_a_cluster_whose_process_was_killed(place, capfd, who):
    """Its reaper removes it at once; without the reaper, `down` does, and `up`."""
    assert main(["practice", "up", "1"]) == 0
    folder = place.readlink()
    owner = practice_network.owner_of(folder.name)
    (reaper,) = set(running("cat > /dev/null")) & set(running(str(folder)))
    ends = [os.pidfd_open(pid) for pid in running(str(folder))]
    if who == "reaper":
        os.killpg(reaper, signal.SIGKILL)
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    for end in ends:  # the hosts end by themselves in either case
        await_end(end)
    if who == "reaper":
        assert main(["practice", "down"]) == 0
        assert "simlib removed 3 namespaces of killed processes" in capfd.readouterr().out
    assert not running(str(folder)) and not folder.exists() and not place.is_symlink()
    assert not left_of(owner)


def await_end(pidfd):
    """Wait until a process has ended."""
    assert select.select([pidfd], [], [], LIMIT_S)[0]
    os.close(pidfd)


# Sentences

UP_AND_DOWN = """
from simlib.cli import main
assert main(["practice", "up", "1"]) == 0
assert main(["practice", "down"]) == 0
"""


def test_nothing_is_left_in_run_after_down(practice):
    assert in_a_run_of_its_own(UP_AND_DOWN).splitlines()[-1] == ""


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("sshd", "needs sshd: install the system package openssh-server"),
        ("ssh", "needs ssh: install the system package openssh-client"),
        ("slurmctld", "Slurm on a practice cluster needs slurmctld: .* package slurm-wlm"),
        ("munged", "Slurm on a practice cluster needs munged: install the system package munge"),
    ],
)
def test_a_missing_program_is_named_with_its_package(practice, monkeypatch, program, words):
    there = cluster_module.find
    monkeypatch.setattr(
        cluster_module, "find", lambda name: None if name == program else there(name) or name
    )
    with pytest.raises(InvalidCallError, match=words):
        PracticeCluster(1, slurm=True).__enter__()


def test_a_system_that_does_not_permit_it_is_told_so(practice, monkeypatch):
    def run(argv, **options):
        return subprocess.CompletedProcess(argv, 1, "", "unshare failed: Operation not permitted")

    monkeypatch.setattr(cluster_module.subprocess, "run", run)
    words = "the system does not permit .* 'unshare failed: Operation not permitted'"
    with pytest.raises(InvalidCallError, match=words):
        PracticeCluster(1).__enter__()
