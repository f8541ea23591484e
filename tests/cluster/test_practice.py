"""The practice network: nodes that are namespaces, with a rate and a delay, and nothing left."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from simlib.cli import main
from simlib.cluster.practice import (
    PracticeCluster,
    PracticeNetwork,
    daemon,
    practice_network,
    remove_leftovers,
)
from simlib.cluster.practice.practice_command import rate_bps, time_s
from simlib.core.model.errors import InvalidCallError

ECHO = """
import socket, sys
server = socket.create_server(("", int(sys.argv[2])))
print("ready", flush=True)
peer, _ = server.accept()
left = int(sys.argv[1])
while left:
    left -= len(peer.recv(min(left, 1 << 16)))
peer.sendall(b"x")
"""
SEND = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], int(sys.argv[3])))
begin_s = time.monotonic()
peer.sendall(bytes(int(sys.argv[2])))
peer.recv(1)
print(begin_s, time.monotonic())
"""


@pytest.fixture
def practice(needs_system):
    """Skips the test where there can be no practice network."""
    if sys.platform == "linux" and os.geteuid() == 0:
        needs_system("iproute2", "ip")
    refuse = practice_network.why_not()
    if refuse:
        pytest.skip(refuse)


def namespaces():
    return {
        path.name
        for path in practice_network.PLACE.glob(f"{practice_network.PREFIX}-{os.getpid()}-*")
    }


def message(net, src, dst, nbytes, port=0):
    """When ``nbytes`` set out from src to dst, and when one byte had come back, in seconds."""
    server = net.popen(
        dst, [sys.executable, "-c", ECHO, nbytes, 5000 + port], stdout=subprocess.PIPE
    )
    assert server.stdout.readline() == b"ready\n"
    argv = [sys.executable, "-c", SEND, net.addresses[dst], nbytes, 5000 + port]
    printed = net.popen(src, argv, stdout=subprocess.PIPE).communicate()[0]
    begin_s, end_s = map(float, printed.split())
    return begin_s, end_s


def test_a_network_of_three_nodes(practice):
    """A node sees its own network only, and both links carry the bytes of a message."""
    with PracticeNetwork(3) as net:
        listed = net.popen(1, ["ip", "-j", "addr"], stdout=subprocess.PIPE).communicate()[0]
        found = {
            address["local"]
            for device in json.loads(listed)
            for address in device["addr_info"]
            if address["family"] == "inet"
        }
        assert found == {"127.0.0.1", net.addresses[1]}
        assert net.popen(0, ["sh", "-c", "test $GLOO_SOCKET_IFNAME = eth0"]).wait() == 0
        before = [net.bytes_carried(node) for node in range(3)]
        message(net, 0, 1, 500_000)
        after = [net.bytes_carried(node) for node in range(3)]
    (sent, _), (_, received), idle = (
        (b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)
    )
    assert 500_000 < sent < 550_000 and 500_000 < received < 550_000
    assert max(idle) < 5_000


@pytest.mark.parametrize("ways", [((0, 2), (1, 2)), ((0, 1), (0, 2))], ids=["into", "out of"])
def test_two_messages_share_the_rate_of_one_link(practice, ways):
    """A lower bound only: a busy machine makes it slower, never faster. A delay comes on top."""
    with PracticeNetwork(3, 20e6, delay_s=0.03) as net, ThreadPoolExecutor() as pool:
        begin_s, end_s = message(net, 0, 1, 1)
        both = [pool.submit(message, net, *way, 500_000, sum(way)) for way in ways]
        begins_s, ends_s = zip(*(one.result() for one in both), strict=True)
    assert end_s - begin_s >= 0.06  # in both directions
    assert max(ends_s) - min(begins_s) > 0.06 + 0.9 * 1_000_000 * 8 / 20e6


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_two_networks_after_an_error(practice, error):
    with pytest.raises(error), PracticeNetwork(2) as net, PracticeNetwork(2) as other:
        assert net.addresses == other.addresses
        assert len(namespaces()) == 6
        for one in (net, other):
            message(one, 0, 1, 1000)
        process = net.popen(0, ["sh", "-c", "setsid sleep 1000 & sleep 1000"])
        raise error
    assert process.returncode == -signal.SIGKILL
    assert not namespaces()


@pytest.mark.parametrize("call", [3, 9, 14])
def test_nothing_is_left_after_an_error_on_the_way_up(practice, monkeypatch, call):
    calls, truly = iter(range(1, 100)), practice_network.tool

    def tool(*argv):
        if next(calls) == call:
            raise KeyboardInterrupt
        return truly(*argv)

    monkeypatch.setattr(practice_network, "tool", tool)
    with pytest.raises(KeyboardInterrupt), PracticeNetwork(2):
        pytest.fail("it must not come up")
    assert not namespaces()


EMPTY_RUN = """
import subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
{program}
import os
print(*(name for name in os.listdir("/run") if name in ("netns", "simlib")))  # a mount would stay
"""
NETWORKS = """
from simlib.cluster.practice import PracticeNetwork
with PracticeNetwork(1):
    with PracticeNetwork(1) as net:
        pass
    net = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    print(len(net.split()))
"""


def in_a_run_of_its_own(program):
    """What a program prints in whose `/run` there is nothing, and then what is there of ours."""
    words = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c"]
    done = subprocess.run([*words, EMPTY_RUN.format(program=program)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_the_mount_of_names_goes_with_the_last_of_them(practice):
    """Names of others stay."""
    assert in_a_run_of_its_own(NETWORKS) == "2\n\n"
    others = f"subprocess.run(['ip', 'netns', 'add', 'others'], check=True)\n{NETWORKS}"
    assert in_a_run_of_its_own(others) == "3\nnetns\n"


def test_leftovers_of_a_killed_process_are_removed_and_no_others(practice):
    program = """
        import os, signal
        from simlib.cluster.practice import PracticeNetwork
        with PracticeNetwork(1) as net:
            net.popen(0, ["sleep", "1000"])
            os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    assert killed.wait(timeout=60) == -signal.SIGKILL
    with PracticeNetwork(1):
        mine = namespaces()
        removed = remove_leftovers()  # those of other tests' killed processes, too
        of_it = [name.split("-")[-1] for name in removed if f"-{killed.pid}-" in name]
        assert sorted(of_it) == ["node0", "switch"]
        assert namespaces() == mine


def test_a_second_ctrl_c_does_not_stop_the_clean_up(practice, monkeypatch):
    pressed, truly = iter([True]), practice_network.remove_namespace

    def remove(name):
        if next(pressed, False):
            raise KeyboardInterrupt
        truly(name)

    monkeypatch.setattr(practice_network, "remove_namespace", remove)
    with pytest.raises(KeyboardInterrupt), PracticeNetwork(1):
        pass
    assert not namespaces()


# The command line

GLOO = """
import datetime, os, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
x = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(x)
print("sum", x.item(), flush=True)
dist.destroy_process_group()
"""


def test_gloo_runs_between_the_nodes(practice, tmp_path, capsys):
    path = tmp_path / "program.py"
    path.write_text(GLOO)
    code = main(["practice", "run", "--nodes", "2", "--rate", "100mbit", "--", sys.executable,
                 "-W", "ignore", str(path)])  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0, out
    assert "[0] sum 3.0\n" in out and "[1] sum 3.0\n" in out


def test_when_one_rank_fails_the_others_are_ended(practice, capsys):
    argv = ["practice", "run", "--nodes", "3", "--", "sh", "-c",
            'test "$RANK" = 1 && exit 5; sleep 1000']  # fmt: skip
    assert main(argv) == 1
    assert "rank 1 ended with exit code 5" in capsys.readouterr().err
    assert not namespaces()


def test_down_says_what_it_removed(practice, capsys, monkeypatch, tmp_path):
    place = tmp_path / "practice"  # not the one of this machine
    monkeypatch.setattr(practice_network, "RUNNING", place)
    monkeypatch.setattr(daemon, "remove_leftovers", lambda: ["one", "another"])
    assert main(["practice", "down"]) == 0
    out = capsys.readouterr().out
    assert "no practice cluster was up\nsimlib removed 2 namespaces of killed processes\n" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "--nodes", "2"], "give the program to run after --"),
        (["run", "--nodes", "0", "--", "true"], "nodes is 0"),
        (["run", "--nodes", "65", "--", "true"], "at most 64"),
        (["run", "--nodes", "1", "--rate", "1kbit", "--", "true"], "rate_bps"),
    ],
)
def test_wrong_calls(argv, words, capsys):
    assert main(["practice", *argv]) == 2
    assert words in capsys.readouterr().err


def test_quantities_need_a_unit(capsys):
    assert rate_bps("100mbit") == 1e8 and rate_bps("2.5gbit") == 2.5e9
    assert time_s("100us") == pytest.approx(1e-4) and time_s("1.5ms") == pytest.approx(1.5e-3)
    for option in (["--rate", "100mb"], ["--delay", "5"], ["--rate", ".mbit"]):
        with pytest.raises(SystemExit):
            main(["practice", "run", "--nodes", "2", *option, "--", "true"])
        assert "give a number and a unit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("geteuid", lambda: 1000, "needs root"),
        ("uname", lambda: type("Names", (), {"sysname": "Darwin"}), "needs Linux"),
    ],
)
def test_where_it_cannot_be_one_sentence_says_why(monkeypatch, capsys, name, value, words):
    monkeypatch.setattr(os, name, value)
    for command in (["run", "--nodes", "2", "--", "true"], ["up", "2"], ["status"], ["down"]):
        assert main(["practice", *command]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line


def test_without_iproute2_one_sentence_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(practice_network.shutil, "which", lambda name: None)
    if sys.platform == "linux":
        with pytest.raises(InvalidCallError, match="needs ip: install the system package iproute2"):
            PracticeNetwork(1).__enter__()


def test_a_host_of_a_practice_cluster_removes_nothing(monkeypatch, capsys, tmp_path):
    """It sees the names of the machine's networks, but no owner of them."""
    monkeypatch.setattr(practice_network, "FIRST_PROCESS", tmp_path / "cmdline")
    monkeypatch.setattr(practice_network, "remove_namespace", lambda name: pytest.fail(name))
    folder = practice_network.CLUSTERS / practice_network.new_name("cluster")
    title = f"sshd: /usr/sbin/sshd -D -f {folder}/ssh/config"
    practice_network.FIRST_PROCESS.write_bytes(title.encode() + b"\0")
    for command in (["run", "--nodes", "2", "--", "true"], ["up", "1"], ["down"], ["status"]):
        assert main(["practice", *command]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    if sys.platform == "linux":
        assert all("this is a host of a practice cluster" in line for line in lines)


def test_popen_refuses_a_node_that_is_not_there():
    with pytest.raises(InvalidCallError, match="nodes 0 to 1"):
        PracticeNetwork(2).popen(2, ["true"])


@pytest.mark.parametrize("nodes", [0, 64, 1.5])
def test_the_number_of_nodes_has_bounds(nodes):
    with pytest.raises(InvalidCallError, match=f"nodes is {nodes}: "):
        PracticeCluster(nodes)
