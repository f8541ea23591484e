"""A practice cluster that stays up: one command starts the cluster, and other commands find and end
it.

The process that owns the cluster becomes ``sleep infinity``. This program needs little memory, and
Linux still treats the process as the parent of the hosts. A link with a fixed path leads to the
cluster's folder, and the folder's name contains the number of the owner.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ...core.model.errors import InvalidCallError, SimlibError
from . import practice_network
from .practice_cluster import PracticeCluster, launcher_of
from .practice_network import CLUSTERS, owner_lives, owner_of, remove_leftovers, why_not_here

REMOVED_S = 20  # the reaper takes a fraction of a second


def bring_up(
    nodes: int, rate_bps: float | None = None, delay_s: float = 0.0, slurm: bool = False
) -> dict[str, Any]:
    """Start a practice cluster that outlives this process; returns its state (see `state`).

    Parameters
    ----------
    nodes, rate_bps, delay_s, slurm
        As for `PracticeCluster`.

    Raises
    ------
    InvalidCallError
        A practice cluster is already running, or this machine cannot run one.
    """
    remove_leftovers()
    reader, writer = os.pipe()
    sys.stdout.flush()
    owner = os.fork()
    if not owner:
        _become_owner(writer, nodes, rate_bps, delay_s, slurm)
    os.close(writer)
    try:
        with open(reader) as pipe:
            refused = pipe.read()
    except BaseException:  # Ctrl-C
        _end(owner)
        raise
    if refused:
        os.waitpid(owner, 0)
        remove_leftovers()
        raise InvalidCallError(refused)
    found = state()
    if found is None:
        raise InvalidCallError("the practice cluster ended while it started")
    return found


def _become_owner(writer, *cluster):
    """In the child: make the cluster, and stay. Does not return. If this fails, the parent gets a
    sentence."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):  # whoever waits for the command's output need not wait for us
            os.dup2(nothing, descriptor)
        cluster = PracticeCluster(*cluster)
        _claim_link(cluster)
        with cluster:
            cluster.leave_to_successor()
            os.chdir("/")
            os.execvp("sleep", ["sleep", "infinity"])
    except SimlibError as error:
        os.write(writer, str(error).encode())
    except BaseException as error:
        os.write(writer, f"the practice cluster cannot be made: {error!r}".encode())
    finally:
        os._exit(1)


def _claim_link(cluster):
    """Make the link with the fixed path. If two clusters start at once, only one of them gets the
    link."""
    try:
        CLUSTERS.mkdir(exist_ok=True)
        practice_network.RUNNING.symlink_to(cluster.folder)
    except FileExistsError:
        raise InvalidCallError(
            "a practice cluster is already up (`simlib practice status`); "
            "`simlib practice down` ends it"
        ) from None


def state() -> dict[str, Any] | None:
    """Return the facts about the cluster that is up, or None.

    Returns
    -------
    dict
        ``owner`` (process id), ``addresses`` (of each host), ``rate_bps``, ``delay_s``, ``slurm``.
    """
    if not _owner():
        return None
    try:
        return json.loads((practice_network.RUNNING / "state.json").read_text())
    except OSError:  # it is on its way down
        return None


def _owner():
    """Return the process id of the cluster's owner, or None."""
    with suppress(OSError):
        name = os.path.basename(os.readlink(practice_network.RUNNING))
        return owner_of(name) if owner_lives(name) else None
    return None


def launcher(host: str) -> list[str]:
    """Return the words to put before a command to run it on a host of the cluster that is up.

    It returns the same list of str as `PracticeCluster.launcher`. It does the same as ``simlib
    practice exec HOST --``, but it does not have to import simlib, which takes time.
    """
    return [*launcher_of(practice_network.RUNNING), host, "--"]


ASK = """
import socket, sys, threading
def ask(host):
    try:
        with socket.create_connection((host, 22), timeout=5) as peer:
            if peer.recv(4) == b"SSH-":
                sys.stdout.write(host + chr(10))
    except OSError:
        pass
asking = [threading.Thread(target=ask, args=[host]) for host in sys.argv[1:]]
for thread in asking:
    thread.start()
for thread in asking:
    thread.join()
"""


def hosts_that_answer(hosts: Iterable[str]) -> set[str]:
    """Return the set of hosts whose ssh server answers the login host.

    All hosts are asked at once. simlib reads only the server's greeting, because a login would cost
    0.2 s of CPU time.
    """
    argv = [*launcher("login"), sys.executable, "-I", "-S", "-c", ASK, *hosts]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return set(done.stdout.split())


def bring_down() -> tuple[bool, list[str]]:
    """End the cluster that is up, and remove what killed processes have left.

    Returns
    -------
    tuple
        Whether a cluster was up, and the names of the other namespaces that were removed.
    """
    refuse = why_not_here()
    if refuse:
        raise InvalidCallError(refuse)
    owner = _owner()
    if owner:
        _end(owner)
    return bool(owner), remove_leftovers()


def _end(owner):
    """End the process that owns a cluster, and wait until its reaper has removed everything."""
    with suppress(ProcessLookupError):
        os.kill(owner, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(owner, 0)
    deadline_s = time.monotonic() + REMOVED_S
    while any(CLUSTERS.glob(f"*-{owner}-*")) and time.monotonic() < deadline_s:
        time.sleep(0.01)
