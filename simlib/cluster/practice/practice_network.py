"""`PracticeNetwork`: some nodes and a switch between them. Each node is a network namespace.

::

    node 0 [eth0]---up-->  [port0]  switch  [port1]  <--up---[eth0] node 1
                 <-down--                            --down->

Each node has an address and a link of its own. The link has the given rate in both directions. The
nodes share the machine's files, processes and host name. Only their networks are separate.
"""

from __future__ import annotations

import fcntl
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from ...core.model.errors import InvalidCallError, check_count, check_number
from .enter import start_of

MAX_NODES = 64
# What a node sends at one go: smaller than the 64 KB that Linux hands to a virtual link at once, so
# that two transfers over one link take turns as finely as they do on a real one.
GSO_BYTES = "16384"


def tcp_settings(rate_bps: float | None) -> dict[str, str]:
    """Return settings of TCP that give every transfer the same conditions.

    With these settings, Linux does not remember earlier connections, makes no slow start after a
    pause, and uses the congestion control that every Linux has. A connection may keep 1 ms of data
    in its link's queue. Then connections that share a link take turns, as with a real network card.
    With a longer queue, a connection with a larger window from earlier use would take most of the
    link.
    """
    settings = {
        "tcp_congestion_control": "reno",
        "tcp_slow_start_after_idle": "0",
        "tcp_no_metrics_save": "1",
    }
    if rate_bps:
        settings["tcp_limit_output_bytes"] = str(max(32_768, int(rate_bps / 8 * 0.001)))
    return settings


class PracticeNetwork:
    """Nodes on a slow network, on this machine: a context manager.

    It needs Linux, root and the system package iproute2. When the context ends, simlib ends all
    processes of the nodes and removes the network. This happens also after an error or Ctrl-C.

    Parameters
    ----------
    nodes : int
        Number of nodes, 1 to 64.
    rate_bps : float, optional
        The rate of each node's link in each direction, in bits per second; None for no limit. The
        rate includes the headers of Ethernet, IP and TCP: a full frame has 1,514 bytes, and 1,448
        of them are data.
    delay_s : float
        Additional delay from one node to another, in seconds.

    Attributes
    ----------
    addresses : list of str
        The address of each node.
    namespaces : list of str
        The names of all network namespaces. The switch comes first, then the nodes.

    Examples
    --------
    >>> with PracticeNetwork(nodes=2, rate_bps=100e6) as net:           # doctest: +SKIP
    ...     net.popen(0, ["ping", "-c", "1", net.addresses[1]]).wait()
    """

    def __init__(self, nodes: int, rate_bps: float | None = None, delay_s: float = 0.0) -> None:
        check_count("nodes", nodes)
        if nodes > MAX_NODES:
            raise InvalidCallError(f"nodes is {nodes}: a practice network has at most {MAX_NODES}")
        if rate_bps is not None:
            check_number("rate_bps", rate_bps, low=1e5)
        check_number("delay_s", delay_s)
        self.nodes = nodes
        self.rate_bps = rate_bps
        self.delay_s = delay_s
        self.addresses = [f"10.77.0.{node + 1}" for node in range(nodes)]
        token = secrets.token_hex(3)
        self._switch = new_name("switch", token)
        self._names = [new_name(f"node{node}", token) for node in range(nodes)]
        self.namespaces = [self._switch, *self._names]
        self._started: list[subprocess.Popen] = []

    def __enter__(self) -> PracticeNetwork:
        refuse = why_not()
        if refuse:
            raise InvalidCallError(refuse)
        try:
            self._set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self._remove()
        except BaseException:  # Ctrl-C again, say: what was begun is ended anyway
            self._remove()
            raise

    def _remove(self):
        for name in self.namespaces:  # the switch first: it notices missing ports
            remove_namespace(name)
        remove_place()
        for process in self._started:
            process.wait()
        self._started.clear()

    def popen(self, node: int, argv: Sequence[str], **options: Any) -> subprocess.Popen:
        """Start a program on a node; returns a `subprocess.Popen`.

        Parameters
        ----------
        node : int
        argv : list of str
            The program and its arguments.
        **options
            As for `subprocess.Popen`. simlib sets ``GLOO_SOCKET_IFNAME``. So Gloo uses the node's
            link, and not the address that belongs to the host name.
        """
        check_count("node", node, low=0)
        if node >= self.nodes:
            raise InvalidCallError(f"node is {node}: the network has nodes 0 to {self.nodes - 1}")
        env = {**(options.pop("env", None) or os.environ), "GLOO_SOCKET_IFNAME": "eth0"}
        return self._start(self._names[node], argv, env=env, **options)

    def end_processes(self) -> None:
        """End all processes on the nodes, including processes that the nodes' programs have
        started."""
        for name in self._names:
            end_processes(name)

    def bytes_carried(self, node: int) -> tuple[int, int]:
        """Return the bytes that a node's link has carried so far, with headers: ``(sent,
        received)``.

        Linux may hand several packets of one connection to a virtual link as one packet. Then it
        counts their headers once.
        """
        files = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("tx", "rx")]
        text = tool("ip", "netns", "exec", self._names[node], "cat", *files)
        sent, received = map(int, text.split())
        return sent, received

    def _start(self, name, argv, **options):
        # A session of its own: Ctrl-C reaches this process only, which then ends them all.
        options.setdefault("start_new_session", True)
        process = subprocess.Popen(["ip", "netns", "exec", name, *map(str, argv)], **options)
        self._started.append(process)
        return process

    def _set_up(self):
        add_namespace(self._switch)
        for node, name in enumerate(self._names):
            self._add_node(node, name)
        ports = [f"port{node}" for node in range(self.nodes)]
        if self.delay_s:
            self._start_delaying_switch(ports)
        else:
            self._join_by_bridge(ports)

    def _add_node(self, node, name):
        port = f"port{node}"
        inside, outside = ("ip", "-n", name), ("ip", "-n", self._switch)
        add_namespace(name)
        tool(*outside, *f"link add name {port} type veth peer name eth0 netns {name}".split())
        tool(*outside, "link", "set", port, "gso_max_size", GSO_BYTES, "up")
        tool(*inside, "link", "set", "lo", "up")
        tool(*inside, "addr", "add", f"{self.addresses[node]}/24", "dev", "eth0")
        tool(*inside, "link", "set", "eth0", "gso_max_size", GSO_BYTES, "up")
        for setting, value in tcp_settings(self.rate_bps).items():
            path = f"/proc/sys/net/ipv4/{setting}"
            tool("ip", "netns", "exec", name, "sh", "-c", f"echo {value} > {path}")
        if self.rate_bps:
            for where, device in ((name, "eth0"), (self._switch, port)):
                words = shape(self.rate_bps)
                tool("tc", "-n", where, "qdisc", "replace", "dev", device, "root", *words)

    def _join_by_bridge(self, ports):
        at_switch = ("ip", "-n", self._switch)
        tool(*at_switch, "link", "add", "name", "switch", "type", "bridge")
        tool(*at_switch, "link", "set", "switch", "up")
        for port in ports:
            tool(*at_switch, "link", "set", port, "master", "switch")

    def _start_delaying_switch(self, ports):
        program = Path(__file__).with_name("delay.py")
        argv = [sys.executable, program, self.delay_s, *ports]
        switch = self._start(self._switch, argv, stdout=subprocess.PIPE, text=True)
        if switch.stdout.readline() != "ready\n":
            raise InvalidCallError("the practice network cannot be made: its switch did not start")


PORT = 29500  # the network is private: nobody else can have this port


def run_on_nodes(
    network: PracticeNetwork, argv: Sequence[str], output: TextIO | None = None
) -> dict[int, int]:
    """Run a program on every node, with one rank on each node. Print each line of output after its
    rank.

    If one rank fails, the other ranks are ended.

    Parameters
    ----------
    network : PracticeNetwork
        A network whose context has been entered.
    argv : list of str
        The program. Its environment has ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
        ``MASTER_PORT``.
    output : file, optional
        The file for the lines. The default is standard output.

    Returns
    -------
    dict of int to int
        ``{rank: exit code}`` of the ranks that failed by themselves; empty if no rank failed.
    """
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    ranks = [_start_rank(network, rank, argv) for rank in range(network.nodes)]
    threads = [
        threading.Thread(target=_print_lines, args=(rank, process, output or sys.stdout, done))
        for rank, process in enumerate(ranks)
    ]
    for thread in threads:
        thread.start()
    failed: dict[int, int] = {}
    for _ in ranks:
        rank = done.get()
        code = ranks[rank].wait()
        if code and not failed:
            failed[rank] = code
            network.end_processes()
    for thread in threads:
        thread.join()
    return failed


def _start_rank(network, rank, argv):
    env = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(network.nodes),
        "MASTER_ADDR": network.addresses[0],
        "MASTER_PORT": str(PORT),
        "PYTHONUNBUFFERED": "1",
    }
    return network.popen(
        rank, argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.STDOUT, errors="replace",
    )  # fmt: skip


def _print_lines(rank, process, output, done):
    for line in process.stdout:
        print(f"[{rank}] {line}", end="", file=output, flush=True)
    done.put(rank)


PREFIX = "simlib"
PLACE = Path("/run/netns")  # where `ip netns` keeps the names
CLUSTERS = Path("/run/simlib")  # a folder for each practice cluster
RUNNING = CLUSTERS / "practice"  # a link to the folder of the one that `practice up` started
FIRST_PROCESS = Path("/proc/1/cmdline")


def tool(*argv: str) -> str:
    """Run ``ip`` or ``tc``, and return the output."""
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise InvalidCallError(
            f"the practice network cannot be made: `{' '.join(argv)}` said {done.stderr.strip()!r}"
        )
    return done.stdout


def why_not() -> str | None:
    """Return a sentence that says why a practice network cannot run on this machine, or None."""
    return why_not_here() or _why_no_namespace()


def why_not_here() -> str | None:
    """Do the quick part of `why_not`: check the system, the user, and the programs."""
    if os.uname().sysname != "Linux":
        return "a practice network needs Linux, because it consists of network namespaces"
    if is_practice_host():
        return (
            "this is a host of a practice cluster, which has no practice network of its own: start "
            "the same command on the machine itself"
        )
    if os.geteuid() != 0:
        return "a practice network needs root: start the same command as root"
    missing = [name for name in ("ip", "tc") if not shutil.which(name)]
    if missing:
        return f"a practice network needs {missing[0]}: install the system package iproute2"
    return None


def is_practice_host() -> bool:
    """Whether this is a host of a practice cluster. Its first process is the cluster's sshd.

    Such a host does not see the processes of the machine. So it would count every owner as ended,
    and would remove the owner's namespaces.
    """
    try:
        return f"{CLUSTERS}/".encode() in FIRST_PROCESS.read_bytes()
    except OSError:
        return False


def _why_no_namespace():
    """Try to make a namespace with a shaped link, because containers and small Linux systems may
    not support this."""
    name = new_name("try")
    try:
        add_namespace(name)
        tool("ip", "-n", name, "link", "add", "name", "a0", "type", "veth", "peer", "name", "a1")
        tool("ip", "-n", name, "link", "add", "name", "switch", "type", "bridge")
        tool("tc", "-n", name, "qdisc", "replace", "dev", "a0", "root", *shape(1e6))
    except InvalidCallError as error:
        return str(error)
    finally:
        with suppress(InvalidCallError):
            tool("ip", "netns", "del", name)
        remove_place()
    return None


def shape(rate_bps: float) -> list[str]:
    """Return the words of `tc` that limit a link to ``rate_bps`` and permit only short bursts.

    If Linux wakes a queue too late, the queue must catch up. Otherwise the link would be too slow.
    The first bucket contains 2 ms of data. As long as it is not empty, the queue may send 5 %
    faster than the rate. The second bucket limits a burst to 0.5 ms of data, so that a short
    message also takes time.
    """
    bucket = max(20_000, int(rate_bps / 8 * 0.002))
    at_once = max(3_100, int(rate_bps / 8 * 0.0005))  # no less than two packets
    queue = max(500_000, int(rate_bps / 8 * 0.1))
    return [
        *("tbf", "rate", f"{rate_bps:.0f}bit", "burst", str(bucket), "limit", str(queue)),
        *("peakrate", f"{1.05 * rate_bps:.0f}bit", "mtu", str(at_once)),
    ]


def new_name(part: str, token: str | None = None) -> str:
    """Return the name for a namespace. It contains the process id and the start time of the
    owner."""
    token = token or secrets.token_hex(3)
    return f"{PREFIX}-{os.getpid()}-{start_of(os.getpid())}-{token}-{part}"


def add_namespace(name: str) -> None:
    """Make a namespace of this name."""
    with _place_held(fcntl.LOCK_SH):
        tool("ip", "netns", "add", name)


def remove_place() -> None:
    """Remove the folder for names of namespaces if it is empty. `ip netns add` made and mounted it.

    The next `ip netns add` makes the folder again. A process that adds a name meanwhile waits. So
    does the reaper of a cluster.
    """
    with _place_held(fcntl.LOCK_EX), suppress(OSError):
        if not any(PLACE.iterdir()):
            with suppress(InvalidCallError):  # it is no mount
                tool("umount", str(PLACE))
            PLACE.rmdir()


@contextmanager
def _place_held(how):
    """Within the block, no other process of simlib removes or makes the folder for names."""
    folder = os.open(PLACE.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, how)
        yield
    finally:
        os.close(folder)


def remove_namespace(name: str) -> None:
    """End the processes inside a namespace and remove it, if it exists."""
    try:
        if (PLACE / name).exists():
            end_processes(name)
            tool("ip", "netns", "del", name)
    except InvalidCallError:
        if (PLACE / name).exists():  # otherwise somebody else has removed it meanwhile
            raise


def end_processes(name: str) -> None:
    """End all processes inside a namespace. Repeat this until no process is left that could start
    another."""
    while pids := tool("ip", "netns", "pids", name).split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def remove_leftovers() -> list[str]:
    """Remove the practice networks of processes that are gone.

    Returns
    -------
    list of str
        The namespaces that were removed.
    """
    refuse = why_not()
    if refuse:
        raise InvalidCallError(refuse)
    left = [name for name in _ours(PLACE) if not owner_lives(name)]
    for name in left:
        remove_namespace(name)
    remove_place()
    _remove_folders()
    return left


def _remove_folders():
    """Remove the files of practice clusters whose owners are gone, for `remove_leftovers`."""
    for name in _ours(CLUSTERS):
        if not owner_lives(name):
            shutil.rmtree(CLUSTERS / name, ignore_errors=True)
    with suppress(OSError):
        if not owner_lives(os.path.basename(os.readlink(RUNNING))):
            RUNNING.unlink()
    with suppress(OSError):  # another cluster's folder is there
        CLUSTERS.rmdir()


def _ours(place):
    names = sorted(path.name for path in place.glob(f"{PREFIX}-*-*-*-*"))
    return [name for name in names if name.split("-")[1].isdigit()]


def owner_lives(name: str) -> bool:
    """Whether the process that owns a namespace still runs. The name must come from `new_name`."""
    _, pid, start = name.split("-")[:3]
    return start_of(pid) == start


def owner_of(name: str) -> int:
    """Return the process id of the owner in a name that `new_name` made."""
    return int(name.split("-")[1])
