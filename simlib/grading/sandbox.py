"""Where a student's code runs: bubblewrap, a user of its own, limits.

The command that `sandboxed` makes shows the program inside Python, simlib and the system's
libraries, all read-only, and nothing else of the machine; there is no network but loopback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shutil
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from ..model.trust import SCRATCH, VARIABLE
from .hidden_places import CannotHide, covers

COURSE = "/course"
"""Where simlib lies inside."""
SIMLIB = str(Path(__file__).resolve().parent.parent)
SYSTEM = (
    "/usr", "/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts", "/etc/mime.types",
    "/bin", "/sbin", "/lib", "/lib64", "/lib32",
)  # fmt: skip
"""Of the system, as far as it exists."""
FONTS = "/tmp/matplotlib"
SHARES = {"/dev/shm": 4, "/tmp": 4, FONTS: 1, "/home/student": 1, SCRATCH: 6}
"""Where files can be written, and how many sixteenths of all room for files are there."""
FIRST_UID, LAST_UID = 64_600, 64_999
MB = 1 << 20


class CannotIsolate(Exception):
    """Student code must not run like this; the message says why, and what to do."""


@dataclass(frozen=True)
class Limits:
    """What the code of one notebook may take."""

    answer_s: float = 20
    cell_s: float = 60
    notebook_s: float = 240
    memory_bytes: int = 4096 * MB
    processes: int = 400
    files: int = 1024
    scratch_bytes: int = 256 * MB
    output_chars: int = 1_000_000

    @property
    def patience(self):
        """How many times as long as by default its cells, and the ranks of its checks, have."""
        return max(1, self.cell_s / Limits.cell_s)


def why_not():
    """Why nothing can be isolated here, and what to do; None where it can."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap, which isolates what students wrote, is for Linux only"
    if shutil.which("bwrap") is None:
        return "bubblewrap (the command bwrap) is not installed: apt install bubblewrap"
    return None


def check_can_isolate(no_sandbox):
    """Refuse to run what students wrote where that would be unsafe without a word.

    Raises
    ------
    CannotIsolate
        There is no bubblewrap and nobody asked to do without; we are root and would stay so; or
        what is to be hidden cannot be.
    """
    if no_sandbox:
        if os.geteuid() == 0:
            raise CannotIsolate(
                "as root, submissions are graded in the sandbox only, where they lose root's "
                "rights: leave out --no-sandbox, or grade as an ordinary user"
            )
        return
    reason = why_not()
    if reason:
        raise CannotIsolate(
            f"{reason}. Without it what students wrote could read, change and send anything that "
            "you can. To grade like that all the same, say --no-sandbox"
        )
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        raise CannotIsolate(
            "running as root, and setpriv, which drops root's rights for what students wrote, is "
            "missing: apt install util-linux, or grade as an ordinary user"
        )
    try:
        covers(shown())
    except CannotHide as error:
        raise CannotIsolate(str(error)) from None


@contextlib.contextmanager
def own_user():
    """A user id that nobody else uses, for one run; our own where we are not root.

    Limits on processes count by user. An id is taken by binding a name, which Linux gives back
    whatever becomes of us.
    """
    if os.geteuid() != 0:
        yield os.geteuid()
        return
    for uid in range(FIRST_UID, LAST_UID + 1):
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0simlib-grading-{uid}")
        except OSError:
            lock.close()
            continue
        with lock:
            yield uid
        return
    raise CannotIsolate("too many grading runs at once: no user id is free")


def sandboxed(command, run_folder, uid, limits):
    """The command that runs ``command`` shut in.

    Parameters
    ----------
    command : list of str
    run_folder : Path
        The only folder of the machine that can be written to from inside, until it is removed.
    uid : int
        The user to run as, see `own_user`.
    limits : Limits
    """
    is_root = os.geteuid() == 0
    words = [
        *with_filter(run_folder.parent),
        "bwrap",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
    ]
    words += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
    words += ["--hostname", "grading"]
    if seccomp_filter():
        words += ["--seccomp", "9"]
    if not is_root:
        words += ["--unshare-user", "--disable-userns"]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for place, part in SHARES.items():
        size = str(limits.scratch_bytes * part // 16)
        words += ["--perms", "1777", "--size", size, "--tmpfs", place]
    words += system_files()
    for place in python_folders():
        words += [] if is_of_system(place) else bound("--ro-bind", place, place)
    words += bound("--ro-bind", SIMLIB, f"{COURSE}/simlib")
    covering, closing = covers(shown())
    words += covering
    words += bound("--bind", str(run_folder), str(run_folder))
    for file in font_lists():
        words += bound("--ro-bind", str(file), f"{FONTS}/{file.name}")
    words += [*closing, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    for name, value in environment().items():
        words += ["--setenv", name, value]
    words.append("--")
    if is_root:
        words += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        words += ["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"]
    words += [
        "prlimit",
        f"--nproc={limits.processes}",
        f"--nofile={limits.files}",
        "--core=0",
        "--",
    ]
    return words + list(command)


def with_filter(folder):
    """Words before bwrap's that open the filter of system calls as descriptor 9."""
    found = seccomp_filter()
    if found is None:
        return []
    file = folder / "syscalls"
    file.write_bytes(found)
    return ["sh", "-c", 'exec "$@" 9<"$0"', str(file)]


def bound(way, source, place):
    """bwrap's words to show a folder; those above it are made open, as bwrap does not."""
    above = [str(folder) for folder in reversed(Path(place).parents)][1:]
    above = [folder for folder in above if folder not in ("/tmp", FONTS)]
    words = [word for folder in above for word in ("--perms", "0755", "--dir", folder)]
    return [*words, way, source, place]


def system_files():
    """bwrap's words for libraries and programs of the system."""
    words = []
    for place in SYSTEM:
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        else:
            words += bound("--ro-bind-try", place, place)
    return words


def is_of_system(place):
    """Whether a folder is seen inside one of the system's."""
    return any(one in (place, *map(str, Path(place).parents)) for one in SYSTEM)


def python_folders():
    """The folders of this Python and its packages."""
    real = Path(sys.executable).resolve().parent.parent
    return list(dict.fromkeys([str(Path(sys.prefix).absolute()), str(real)]))


def shown():
    """``{place inside: folder of the machine}`` of all that is shown, one may lie in another."""
    places = [one for one in SYSTEM if not os.path.islink(one)] + python_folders()
    return {place: place for place in places} | {f"{COURSE}/simlib": SIMLIB}


def font_lists():
    """matplotlib's lists of fonts, which take it seconds to make anew."""
    import matplotlib

    return sorted(Path(matplotlib.get_cachedir()).glob("fontlist-*.json"))


def environment():
    """The environment inside, of which nothing comes from ours."""
    return {
        "HOME": "/home/student",
        "USER": "student",
        "LOGNAME": "student",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": COURSE,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "IPYTHONDIR": "/tmp/ipython",
        "MPLCONFIGDIR": FONTS,
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "TQDM_DISABLE": "1",
        VARIABLE: "1",
    }


# What code in the sandbox may not ask of Linux: whatever leads to other namespaces, into other
# processes, or to memory that belongs to no process and so is counted nowhere (memfd, System V).

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of linux/audit.h."""

NUMBERS = {
    "clone": (56, 220),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "shmget": (29, 194),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "clone3": (435, 435),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
"""System calls by name: the number on x86_64, and on aarch64.

From Linux's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

ABSENT = {"clone3", "memfd_create", "memfd_secret"}
"""Those that are said not to exist, so that callers do without."""
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW* of linux/sched.h; `clone` is forbidden with these flags only."""
X32 = 0x40000000

LOAD, RETURN = 0x20, 0x06
IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x15, 0x35, 0x45
ALLOW, ERROR = 0x7FFF0000, 0x00050000
AT_NUMBER, AT_ARCHITECTURE, AT_FIRST_ARGUMENT = 0, 4, 16


def seccomp_filter(machine=None):
    """The filter as bytes; None for a machine whose numbers are not known here."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        return None
    column = list(ARCHITECTURES).index(machine)
    no_such, forbidden = ERROR | errno.ENOSYS, ERROR | errno.EPERM
    program = [
        (LOAD, 0, 0, AT_ARCHITECTURE),
        (IF_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, no_such),
        (LOAD, 0, 0, AT_NUMBER),
        (IF_AT_LEAST, 0, 1, X32),
        (RETURN, 0, 0, no_such),
    ]
    for name, numbers in NUMBERS.items():
        if name != "clone":
            program.append((IF_EQUAL, 0, 1, numbers[column]))
            program.append((RETURN, 0, 0, no_such if name in ABSENT else forbidden))
    program += [
        (IF_EQUAL, 0, 3, NUMBERS["clone"][column]),
        (LOAD, 0, 0, AT_FIRST_ARGUMENT),
        (IF_ANY_BIT, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, forbidden),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *line) for line in program)
