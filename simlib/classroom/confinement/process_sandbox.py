"""Make a sandbox for each process of a student, inside the sandbox of a grading run (Linux).

The kernel that grades and its server of processes are in a user namespace in which they may make
further namespaces. `close_to_others` keeps processes of the same user from looking into this
process. The server's children are in a separate namespace of process ids. Before such a child gets
any code, it separates itself from all other processes (`enter`) and gives up its rights (`close`).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import resource
import secrets
import socket
import stat
import struct
import sys
import tempfile
from multiprocessing import forkserver

from ...core.environment import are_ranks_trusted
from . import system_calls

PR_SET_DUMPABLE = 4


def close_to_others():
    """Keep processes of the same user from reading or changing this one's memory (Linux).

    Other processes cannot open its descriptors either. The same protects the children of this
    process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)


def give_up_output():
    """From now on, throw away all text that this process writes to stdout and stderr."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def do_without_tracker():
    """Prevent the start of Python's resource tracker, and throw away messages to it.

    All processes of the user could look into the tracker, and the tracker would have the stderr of
    this process.
    """
    tracker = multiprocessing.resource_tracker._resource_tracker
    if tracker._fd is None:
        tracker._fd = os.open(os.devnull, os.O_WRONLY)


def keep_one_server(start):
    """Start the server of processes with ``start()``, so that no other process can replace it
    (Linux).

    While the server lives, no other process can use its address. If the server has ended, another
    process may have replaced it. So this process then ends at its next request to the server.
    """
    if sys.platform != "linux":
        start()
        return
    multiprocessing.connection.arbitrary_address = lambda family: f"\0{secrets.token_hex(16)}"
    start()
    server = forkserver._forkserver
    server.ensure_running = forkserver.ensure_running = end_without_server


def end_without_server():
    """End this process if its server of processes has ended."""
    try:
        ended, _ = os.waitpid(forkserver._forkserver._forkserver_pid, os.WNOHANG)
    except ChildProcessError:
        ended = True
    if ended:
        os._exit(1)


def go_home():
    """In a grading run, enter the notebook's folder and import from it, as in JupyterLab.

    The kernel of such a run and the kernel's server of processes stay in another folder.
    """
    if not are_ranks_trusted():
        os.chdir(os.environ["HOME"])
        sys.path.insert(0, "")


OWN_SANDBOX = "SIMLIB_OWN_SANDBOX"
"""An environment variable. It is set if each process of a student makes its own sandbox inside the
sandbox of the run."""
SCRATCH = "/scratch"
"""The folder in the sandbox for the kernel's files. A student's files in /tmp cannot fill it."""
NEW_MOUNTS, NEW_NAMES, NEW_IPC, NEW_PIDS, NEW_NETWORK = (
    0x00020000, 0x04000000, 0x08000000, 0x20000000, 0x40000000,
)  # fmt: skip
"""CLONE_NEW* of linux/sched.h."""
NO_SUID, NO_DEV, NO_EXEC, READ_ONLY, RECURSIVE, PRIVATE = 2, 4, 8, 1, 0x4000, 1 << 18
BIND = 0x1000
"""MS_* of linux/mount.h."""
CAPABILITY_VERSION_3 = 0x20080522
SIOCSIFFLAGS, IFF_UP = 0x8914, 1

HOME, FONTS = "/home/student", "/tmp/matplotlib"
MB = 1 << 20
ROOM = {"/tmp": 16 * MB, "/dev/shm": 16 * MB, HOME: 8 * MB, SCRATCH: MB}
"""The private folders of a process, with their sizes. Linux does not count their memory for any
process."""
FILES_PER_MB = 256
MAX_FILES = 2048
"""simlib copies at most this many files from a folder, because a private folder has room for no
more."""
PYTHONS = (sys.prefix, sys.base_prefix)
"""The folders that stay visible inside a private folder, because a process may import from them."""
KEPT = (FONTS, HOME)
"""Private folders that get copies of the original folder's files, because a student's cell may have
written these files."""
OF_CELLS, OF_RANKS = 1 / 2, 3 / 4
"""The share of the run user's processes and threads that student processes may have together.

The first number is for cells and the second for ranks. The grader may use all processes and
threads. So may simulations, which need a thread for each rank.
"""


def is_asked_for():
    """Whether each process of a student makes its own sandbox in this run."""
    return OWN_SANDBOX in os.environ


def fork_apart():
    """From now on, put all children of this process into a separate namespace of process ids."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    fork = os.fork

    def fork_with_own_ids():
        _call("unshare", NEW_PIDS)
        pid = fork()
        if pid:
            _call("setns", own, NEW_PIDS)
        else:
            os.fork = fork
            os.close(own)
        return pid

    os.fork = fork_with_own_ids


def enter(keeps_home=False):
    """Isolate this process: no file, socket, signal or name connects it to another process.

    Parameters
    ----------
    keeps_home : bool
        Whether files that this process writes into the home folder stay after its end.
    """
    if not is_asked_for():
        return
    _call("unshare", NEW_MOUNTS | NEW_NAMES | NEW_IPC | NEW_NETWORK)
    _mount("none", "/", None, RECURSIVE | PRIVATE)
    folders = {place: size for place, size in ROOM.items() if place != HOME or not keeps_home}
    before = {place: _files_below(place) for place in KEPT}
    shown = _opened([place for place in PYTHONS if _is_below(place, folders)])
    for place in folders:
        _mount_room(place)
    for place, folder in shown.items():
        os.makedirs(place, exist_ok=True)
        _mount(f"/proc/self/fd/{folder}", place, None, BIND | RECURSIVE)
        os.close(folder)
    for place, files in before.items():
        if place != HOME or not keeps_home:
            _write_below(place, files)
    _mount("proc", "/proc", "proc", NO_SUID | NO_DEV | NO_EXEC)
    _mount("tmpfs", "/proc/sys", "tmpfs", READ_ONLY | NO_SUID | NO_DEV, "size=4k")
    own_terminals = "newinstance,ptmxmode=0666,mode=620"
    _mount("devpts", "/dev/pts", "devpts", NO_SUID | NO_EXEC, own_terminals)
    _begin_loopback()


def close(share=1, calls="strict"):
    """Give up all rights, including the right to make system calls that no student needs.

    Parameters
    ----------
    share : float
        This process gets no more processes and threads when the run's user has this share of the
        limit.
    calls : str
        The name of the list of permitted system calls, see `system_calls`.
    """
    if not is_asked_for():
        return
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (int(share * most),) * 2)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    _call("capset", header, bytes(24))
    system_calls.enforce(calls)
    del os.environ[OWN_SANDBOX]


def _is_below(place, folders):
    return any(os.path.commonpath([place, folder]) == folder for folder in folders)


def _opened(places):
    """Return ``{place: descriptor}`` of folders. A descriptor still leads to a folder after another
    folder covers it."""
    return {place: os.open(place, os.O_PATH | os.O_CLOEXEC) for place in dict.fromkeys(places)}


def _files_below(place):
    """Return ``{name: bytes}`` of the files below a folder. Other processes may change the folder
    meanwhile.

    So the function opens folders by descriptor, and reads only regular files and no links.
    """
    found, room = {}, ROOM[HOME]
    for above, _, names, folder in os.fwalk(place):
        for name in names:
            if room <= 0 or len(found) >= MAX_FILES:
                return found
            with contextlib.suppress(OSError):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                with open(os.open(name, flags, dir_fd=folder), "rb") as file:
                    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                        path = os.path.join(above, name)
                        data = found[os.path.relpath(path, place)] = file.read(room)
                        room -= len(data)
    return found


def _write_below(place, files):
    os.makedirs(place, exist_ok=True)
    with contextlib.suppress(OSError):  # they are more than there is room for
        for name, data in files.items():
            path = os.path.join(place, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)


def _begin_loopback():
    """Start a network interface for Gloo. Gloo needs an interface even if nothing is at the other
    end."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = struct.pack("16sh14x", b"lo", IFF_UP)
        fcntl.ioctl(one, SIOCSIFFLAGS, request)


def _mount_room(place):
    """Mount a private empty folder with a limit on its bytes and on its files."""
    size = ROOM[place]
    options = f"size={size},nr_inodes={size // MB * FILES_PER_MB + 16},mode=0777"
    _mount("tmpfs", place, "tmpfs", NO_SUID | NO_DEV, options)


def _mount(source, place, kind, flags, options=None):
    words = (word and word.encode() for word in (source, place, kind))
    _call("mount", *words, ctypes.c_ulong(flags), options and options.encode())


def _call(name, *args):
    if getattr(_libc, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


_libc = ctypes.CDLL(None, use_errno=True)


def begin():
    """Isolate this process, and start the only server that forks a student's processes."""
    from ...core.engines.workers.server import start_server

    close_to_others()
    if is_asked_for():
        _mount_room(HOME)  # bubblewrap and containers limit its bytes, but not its files
    if os.path.isdir(SCRATCH):
        tempfile.tempdir = SCRATCH
    do_without_tracker()
    keep_one_server(start_server)
