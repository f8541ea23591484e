"""`PracticeCluster`: hosts made of namespaces, with ssh between them, and Slurm if you want it.

::

    login --+
    node1 --+-- switch        each host: its own network, processes, name, shared memory, sshd
    node2 --+                 all hosts: the files of this machine

A host is a set of Linux namespaces. Everything ends with the process that made the cluster. Linux
kills the hosts when that process is gone. A *reaper*, a small shell program, notices the end by a
closed pipe, and removes everything that has a name.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core.model.errors import InvalidCallError, check_count
from . import hosts, practice_network
from .enter import start_of
from .hosts import find, start_argv, write_files
from .practice_network import CLUSTERS, MAX_NODES, PracticeNetwork, new_name, why_not_here

MAX_CLUSTER_NODES = MAX_NODES - 1  # the login host takes a place, too
HOST_STARTS_S, SLURM_STARTS_S = 20, 60
PROGRAMS = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}

REAPER = """\
cat > /dev/null
for name in {namespaces}; do
  while pids=$(ip netns pids $name) && [ "$pids" ]; do kill -KILL $pids; done
  ip netns del $name
done
flock {place_parent} sh -c '[ "$(ls -A {place})" ] || {{ umount {place}; rmdir {place}; }}'
[ "$(readlink {running})" = {folder} ] && rm -f {running}
rm -rf {folder}
rmdir {clusters}
"""


def why_not_cluster(slurm: bool = False) -> str | None:
    """One sentence that says why this machine can have no practice cluster, or None."""
    refuse = why_not_here()
    if refuse:
        return refuse
    for program, package in {**PROGRAMS, **(hosts.SLURM_PROGRAMS if slurm else {})}.items():
        if not find(program):
            what = "Slurm on a practice cluster" if slurm else "a practice cluster"
            return f"{what} needs {program}: install the system package {package}"
    words = "unshare --mount --uts --ipc --pid --fork --kill-child=KILL mount -n -t proc proc /proc"
    tried = subprocess.run(words.split(), capture_output=True, text=True)
    if tried.returncode:
        return (
            "a practice cluster cannot be made here, because the system does not permit it: "
            f"`{words}` said {tried.stderr.strip()!r}"
        )
    return None


class PracticeCluster:
    """A cluster of Linux namespaces on this machine: a context manager.

    It needs Linux, root and the system packages iproute2 and openssh-server. With ``slurm``, it
    also needs slurm-wlm and munge. Every host reaches every other host by ``ssh NAME``. All hosts
    see the files of this machine, with two exceptions. Each host has its own ``/dev/shm``. No host
    has the user's ``~/.ssh`` and start files of the shell. When the context ends, simlib ends all
    processes of the cluster and removes its files. This happens also after an error, Ctrl-C or
    SIGKILL.

    Parameters
    ----------
    nodes : int
        Number of nodes, 1 to 63, in addition to the host ``login``.
    rate_bps : float, optional
        The rate of each host's link in each direction, in bits per second; None for no limit.
    delay_s : float
        Additional delay from one host to another, in seconds.
    slurm : bool
        Whether Slurm runs on the cluster. Its controller runs on ``login``; each node has 4 CPUs.

    Attributes
    ----------
    hosts : list of str
        The nodes: ``["node1", ...]``.
    addresses : dict of str to str
        The address of each host, including ``login``.

    Notes
    -----
    Linux ends the hosts when the *thread* that entered the context ends.

    Examples
    --------
    >>> with PracticeCluster(2) as cluster:                             # doctest: +SKIP
    ...     cluster.run("login", ["ssh", "node2", "hostname"])
    """

    def __init__(
        self,
        nodes: int,
        rate_bps: float | None = None,
        delay_s: float = 0.0,
        slurm: bool = False,
    ) -> None:
        check_count("nodes", nodes)
        if nodes > MAX_CLUSTER_NODES:
            raise InvalidCallError(
                f"nodes is {nodes}: a practice cluster has at most {MAX_CLUSTER_NODES}"
            )
        self._network = PracticeNetwork(nodes + 1, rate_bps, delay_s)
        self.hosts = [f"node{number + 1}" for number in range(nodes)]
        names = ["login", *self.hosts]
        self.addresses = dict(zip(names, self._network.addresses, strict=True))
        self.slurm = slurm
        self.folder = CLUSTERS / new_name("cluster", secrets.token_hex(3))
        self._reaper: Any = None
        self._started: list[subprocess.Popen] = []

    def __enter__(self) -> PracticeCluster:
        refuse = why_not_cluster(self.slurm)
        if refuse:
            raise InvalidCallError(refuse)
        try:
            self._set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._reaper:
            self._reaper.stdin.close()
            self._reaper.wait()
        self._network.__exit__()
        for process in self._started:
            process.wait()
        self._started.clear()

    def launcher(self, host: str) -> list[str]:
        """Return the words to put before a command to run it on a host, a list of str.

        The program gets the caller's working folder, environment and files. The launcher returns
        the program's exit code. If SIGTERM or SIGINT ends the launcher, the program ends too.
        """
        return [*launcher_of(self.folder), host, "--"]

    def popen(self, host: str, argv: Sequence, **options: Any) -> subprocess.Popen:
        """Start a program on a host; returns a `subprocess.Popen`.

        Parameters
        ----------
        host : str
            ``"login"`` or one of `hosts`.
        argv : list of str
            The program and its arguments.
        **options
            As for `subprocess.Popen`.
        """
        process = subprocess.Popen(self._words(host, argv), **options)
        self._started.append(process)
        return process

    def run(self, host: str, argv: Sequence, **options: Any) -> subprocess.CompletedProcess:
        """Run a program on a host to its end; returns a `subprocess.CompletedProcess`.

        The parameters are the same as for `popen`, and the options the same as for
        `subprocess.run`.
        """
        return subprocess.run(self._words(host, argv), **options)

    def leave_to_successor(self) -> None:
        """Keep the cluster when another program replaces this Python program in the same
        process."""
        os.set_inheritable(self._reaper.stdin.fileno(), True)

    def _words(self, host, argv):
        if host not in self.addresses:
            known = ", ".join(self.addresses)
            raise InvalidCallError(f"there is no host {host}: the practice cluster has {known}")
        return [*self.launcher(host), *map(str, argv)]

    def _set_up(self):
        self._start_reaper()
        self.folder.mkdir(parents=True, mode=0o755)
        write_files(self.folder, self.addresses, self.slurm)
        self._network.__enter__()
        # The login host first: with Slurm, the nodes find its munged running.
        self._await_sshd("login", self._start_host("login"))
        processes = {host: self._start_host(host) for host in self.hosts}
        for host, process in processes.items():
            self._await_sshd(host, process)
        if self.slurm:
            self._await_slurm()
        self._write_state()

    def _start_reaper(self):
        program = REAPER.format(
            namespaces=" ".join(self._network.namespaces), folder=self.folder, clusters=CLUSTERS,
            running=practice_network.RUNNING, place=practice_network.PLACE,
            place_parent=practice_network.PLACE.parent,
        )  # fmt: skip
        self._reaper = subprocess.Popen(
            ["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, cwd="/",
        )  # fmt: skip

    def _start_host(self, host):
        with open(self.folder / "log" / host, "wb") as log:
            return self._network.popen(
                list(self.addresses).index(host), start_argv(self.folder, host), cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath)}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _await_sshd(self, host, process):
        log = self.folder / "log" / host
        deadline_s = time.monotonic() + HOST_STARTS_S
        while "Server listening" not in (text := log.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline_s:
                last = (text.strip().splitlines() or ["nothing"])[-1]
                raise InvalidCallError(
                    f"the practice cluster cannot be made: {host} did not start. The last "
                    f"line of its log is {last!r}"
                )
            time.sleep(0.005)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        init = int(children.split()[0])
        (self.folder / "init" / host).write_text(f"{init} {start_of(init)}\n")

    def _await_slurm(self):
        deadline_s = time.monotonic() + SLURM_STARTS_S
        words = ["sinfo", "--noheader", "--Node", "--format=%T"]
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
        wanted = ["idle"] * len(self.hosts)
        while (states := self.run("login", words, **options).stdout.split()) != wanted:
            if time.monotonic() > deadline_s:
                last = " ".join(states) or "nothing"
                raise InvalidCallError(
                    f"the practice cluster cannot be made: Slurm's nodes are not idle, but {last}"
                )
            time.sleep(0.02)

    def _write_state(self):
        state = {
            "owner": os.getpid(),
            "addresses": self.addresses,
            "rate_bps": self._network.rate_bps,
            "delay_s": self._network.delay_s,
            "slurm": self.slurm,
        }
        (self.folder / "state.json").write_text(json.dumps(state))


def launcher_of(folder: Path) -> list[str]:
    """Return the words to put before a host and a command, to run it on the cluster with this
    folder."""
    program = Path(__file__).with_name("enter.py")
    return [sys.executable, "-I", "-S", str(program), str(folder)]
