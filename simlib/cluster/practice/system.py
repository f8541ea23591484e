"""Network namespaces of the system: make, remove, find what was left over. Linux, as root."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

from ...core.model.errors import InvalidCallError
from .enter import start_of

PREFIX = "simlib"
PLACE = Path("/run/netns")  # where `ip netns` keeps the names
CLUSTERS = Path("/run/simlib")  # a folder for each practice cluster
RUNNING = CLUSTERS / "practice"  # a link to the folder of the one that `practice up` started
FIRST_PROCESS = Path("/proc/1/cmdline")


def tool(*argv):
    """Run ``ip`` or ``tc``; returns what it printed."""
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise InvalidCallError(
            f"the practice network cannot be made: `{' '.join(argv)}` said {done.stderr.strip()!r}"
        )
    return done.stdout


def why_not():
    """One sentence that says why there can be no practice network here, or None."""
    return why_not_here() or _why_no_namespace()


def why_not_here():
    """The part of `why_not` that is known at once: the system, the user, the programs."""
    if os.uname().sysname != "Linux":
        return "a practice network needs Linux: it is made of network namespaces"
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


def is_practice_host():
    """Whether this is a host of a practice cluster. Its first process is the cluster's sshd.

    There the processes of the machine are not seen, so every owner would be taken for gone, and
    what is his removed.
    """
    try:
        return f"{CLUSTERS}/".encode() in FIRST_PROCESS.read_bytes()
    except OSError:
        return False


def _why_no_namespace():
    """Try a namespace with a shaped link: containers and a small Linux may have neither."""
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


def shape(rate_bps):
    """The words of `tc` that hold a link to ``rate_bps``, with short bursts only.

    A queue that is woken late has to catch up, or the rate is lost: from a bucket of 2 ms it may
    send 5 % faster until it has. The second bucket bounds what goes out at once to 0.5 ms, so that
    a short message is not free of charge.
    """
    bucket = max(20_000, int(rate_bps / 8 * 0.002))
    at_once = max(3_100, int(rate_bps / 8 * 0.0005))  # no less than two packets
    queue = max(500_000, int(rate_bps / 8 * 0.1))
    return [
        *("tbf", "rate", f"{rate_bps:.0f}bit", "burst", str(bucket), "limit", str(queue)),
        *("peakrate", f"{1.05 * rate_bps:.0f}bit", "mtu", str(at_once)),
    ]


def new_name(part, token=None):
    """The name of a namespace. It says whose it is: process id and the time it started."""
    token = token or secrets.token_hex(3)
    return f"{PREFIX}-{os.getpid()}-{start_of(os.getpid())}-{token}-{part}"


def add_namespace(name):
    """Make a namespace of this name."""
    with _place_held(fcntl.LOCK_SH):
        tool("ip", "netns", "add", name)


def remove_place():
    """Remove the folder for names where none is in it; `ip netns add` makes it, and mounts it.

    It would do so again. Whoever adds a name meanwhile waits, also the reaper of a cluster.
    """
    with _place_held(fcntl.LOCK_EX), suppress(OSError):
        if not any(PLACE.iterdir()):
            with suppress(InvalidCallError):  # it is no mount
                tool("umount", str(PLACE))
            PLACE.rmdir()


@contextmanager
def _place_held(how):
    """Within it, nobody else of us removes the folder for names, or makes it."""
    folder = os.open(PLACE.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, how)
        yield
    finally:
        os.close(folder)


def remove_namespace(name):
    """End the processes inside and remove the namespace, as far as it is there."""
    try:
        if (PLACE / name).exists():
            end_processes(name)
            tool("ip", "netns", "del", name)
    except InvalidCallError:
        if (PLACE / name).exists():  # otherwise somebody else has removed it meanwhile
            raise


def end_processes(name):
    """End all processes inside a namespace, until none is left that could start another."""
    while pids := tool("ip", "netns", "pids", name).split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def remove_leftovers():
    """Remove the practice networks of processes that are gone.

    Returns
    -------
    list of str
        The namespaces removed.
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
    """The part of `remove_leftovers` that is files: of practice clusters."""
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


def owner_lives(name):
    """Whether the process is there that a name of `new_name` says it belongs to."""
    _, pid, start = name.split("-")[:3]
    return start_of(pid) == start


def owner_of(name):
    """The process id in a name of `new_name`."""
    return int(name.split("-")[1])
