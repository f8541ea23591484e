"""A sandbox for each process of a student's, within that of a grading run (Linux).

The kernel that grades and its server have a user namespace of their own, with the rights to make
further ones. `close_to_others` keeps processes of the same user from looking into this one. What
the server forks has process ids of its own; it leaves all other processes (`enter`), and gives up
its rights (`close`), before it is given any code.
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
    """Let no process of the same user look into this one's memory, or change it (Linux).

    Nor can it open this one's descriptors. What is forked from this process begins closed, too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)


def give_up_output():
    """Let what is written to stdout and stderr from here on go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def do_without_tracker():
    """Start no process that removes what others leave behind; what it is told goes nowhere.

    It would be open to all processes of the user, and hold this one's stderr.
    """
    tracker = multiprocessing.resource_tracker._resource_tracker
    if tracker._fd is None:
        tracker._fd = os.open(os.devnull, os.O_WRONLY)


def keep_one_server(start):
    """Start the server of processes that nobody can take the place of, by ``start()`` (Linux).

    Nobody else can bind its address while it lives. Where it ends, this process ends, too, when it
    next asks for the server: one begun later would be begun beside whoever ended the first.
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
    """In a grading run be where the notebook is, and import from there, as in JupyterLab.

    The kernel of such a run and its server of processes are elsewhere, and do not.
    """
    if not are_ranks_trusted():
        os.chdir(os.environ["HOME"])
        sys.path.insert(0, "")


OWN_SANDBOX = "SIMLIB_OWN_SANDBOX"
"""Set where each process of a student's makes a sandbox of its own, within that of the run."""
SCRATCH = "/scratch"
"""Where the kernel keeps its files in the sandbox: a student's that fill /tmp are not in it."""
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
"""Folders of a process's own, and how large they are: no process is charged with what is there."""
FILES_PER_MB = 256
MAX_FILES = 2048
"""That are copied from a folder: it has room for no more."""
PYTHONS = (sys.prefix, sys.base_prefix)
"""Shown again where they are below such a folder: a process may import more, as it goes."""
KEPT = (FONTS, HOME)
"""Folders whose files are there in the beginning: a cell of the student's may have written some."""
OF_CELLS, OF_RANKS = 1 / 2, 3 / 4
"""At this share of the processes and threads that the run's user may have, these get no more.

The grader gets all of them; so do simulations, which have a thread for each rank.
"""


def is_asked_for():
    """Whether processes of students make a sandbox of their own here."""
    return OWN_SANDBOX in os.environ


def fork_apart():
    """From now on whatever this process forks has process ids of its own."""
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
    """Be alone: no file, socket, signal or name leads from here to another process.

    Parameters
    ----------
    keeps_home : bool
        Whether what is written to the home folder is to outlast this process.
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
    """Give away all rights, and the right to ask Linux for what no student needs.

    Parameters
    ----------
    share : float
        Of the processes and threads that the run's user may have: at that, this one gets no more.
    calls : str
        What it may ask of Linux, see `system_calls`.
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
    """``{place: descriptor}`` of folders: they are found by it when another covers them."""
    return {place: os.open(place, os.O_PATH | os.O_CLOEXEC) for place in dict.fromkeys(places)}


def _files_below(place):
    """``{name: bytes}`` of the files below a folder; others may change it meanwhile.

    Folders are opened by descriptor, and neither links nor what is no plain file are read.
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
    """Gloo wants an interface, even where nobody is at its other end."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = struct.pack("16sh14x", b"lo", IFF_UP)
        fcntl.ioctl(one, SIOCSIFFLAGS, request)


def _mount_room(place):
    """Mount an empty folder of its own, with so much room, and so many files at most."""
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
    """Be closed to others, and start the one server that a student's processes are forked from."""
    from ...core.engines.workers.server import start_server

    close_to_others()
    if is_asked_for():
        _mount_room(HOME)  # bubblewrap and containers limit its bytes, but not its files
    if os.path.isdir(SCRATCH):
        tempfile.tempdir = SCRATCH
    do_without_tracker()
    keep_one_server(start_server)
