"""Run a student's code in isolation: in bubblewrap or a container, as a separate user, with limits.

In the command that `sandboxed` makes, a program sees only Python, simlib and the system's
libraries, all read-only. Its only network is loopback. A checkout may be in a visible folder, such
as /usr. Then an empty folder covers the checkout. Only necessary parts, such as the checkout's own
Python, are visible again.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from ...core.environment import FOLDER, GIVEN, GIVEN_COURSE, NO_GPUS, ROOT, VARIABLE
from ..confinement import process_sandbox
from ..confinement.process_sandbox import FONTS, HOME, OWN_SANDBOX, SCRATCH
from ..confinement.system_calls import filter_for
from . import container
from .own_folder import OwnFolder

HIDDEN = ContextVar("hidden", default=())
"""The places to hide during this grading: submissions, report, sources of exercises, and tables."""
MATERIAL = ("authoring/exercises", "exercises/checks")
"""If a folder around simlib contains these files, it is a checkout with solutions and hidden
cells."""


class CannotHide(Exception):
    """A place to hide that the sandbox must show as a whole. The message says what to do."""


@contextlib.contextmanager
def hiding(*places):
    """Within the block, also hide these places from the code. Ignore a place that is None."""
    token = HIDDEN.set(tuple(Path(one).absolute() for one in places if one))
    try:
        yield
    finally:
        HIDDEN.reset(token)


def hidden_places():
    """Return the places to hide that exist, with links resolved."""
    found = [*HIDDEN.get(), GIVEN, GIVEN_COURSE]
    if any((ROOT / one).is_dir() for one in MATERIAL):
        found.append(ROOT)
    return [one.resolve() for one in found if one.exists()]


def covered(shown):
    """Return ``[(place inside, its replacement)]`` that hide the hidden places, outer ones first.

    The replacement is None for an empty folder, ``"/dev/null"`` for a file, or a folder of the
    machine that must be visible inside a covered place.

    Parameters
    ----------
    shown : dict of str to str
        Maps the place of each folder inside to the folder of the machine.

    Raises
    ------
    CannotHide
        A place to hide is itself a folder that must be visible.
    """
    found = {}
    for place in hidden_places():
        for seen, source in shown.items():
            whole = Path(source).resolve()
            if place == whole:
                raise CannotHide(
                    f"students' code could read {place}, because Python or the system is there: "
                    "move the submissions and the report to a folder of their own"
                )
            if whole in place.parents:
                instead = None if place.is_dir() else os.devnull
                found[Path(seen) / place.relative_to(whole)] = instead
    again = {
        Path(seen): source
        for seen, source in shown.items()
        if any(place in Path(seen).parents for place in found)
    }
    return sorted({**found, **again}.items(), key=lambda one: len(one[0].parts))


def covers(shown):
    """Return ``(words, last)`` for bwrap, which cover the hidden places, see `covered`.

    Returns
    -------
    words : list of str
        Words that come after the words that show folders.
    last : list of str
        Words that come after all others.
    """
    words, last = [], []
    for path, instead in covered(shown):
        if instead is None:
            words += ["--perms", "0755", "--tmpfs", str(path)]
            last += ["--remount-ro", str(path)]
        elif instead == os.devnull:
            words += ["--ro-bind", instead, str(path)]
        else:
            words += ["--perms", "0755", "--dir", str(path), "--ro-bind", instead, str(path)]
    return words, last


BUBBLEWRAP = "bubblewrap"
PROGRAMS = {BUBBLEWRAP: "bwrap"} | {engine: engine for engine in container.ENGINES}
"""The programs that can isolate code, with their commands. simlib uses the first that is
installed."""
CHOSEN = ContextVar("chosen", default=None)
"""The program that this grading uses to isolate code; None for the first that is installed."""

COURSE = "/course"
"""The place of simlib inside the sandbox."""
SIMLIB = str(FOLDER.resolve())
SYSTEM = (
    "/usr", "/etc/ld.so.cache", "/etc/alternatives", "/etc/fonts", "/etc/mime.types",
    "/bin", "/sbin", "/lib", "/lib64", "/lib32",
)  # fmt: skip
"""The files and folders of the system that are visible inside, if they exist."""
SHARES = {"/dev/shm": 4, "/tmp": 4, FONTS: 1, HOME: 1, SCRATCH: 6}
"""The writable folders. Each number says how many sixteenths of the space for files the folder
gets."""
FIRST_UID, LAST_UID = 64_600, 64_999
TAKEN = Path("/run/simlib-grading")
"""A folder of root with a file for each of these user ids. A run owns an id as long as it locks the
id's file."""
WAIT_S = 1.0
STOP = ContextVar("stop")
"""An event that ends the runs of this thread. It is set when nobody needs their results any
more."""
FOLDERS = "simlib-grading-"
"""The names of runs' folders and containers begin with this text. The grader's process id
follows."""
MB = 1 << 20
FILTER = "outer"
"""The name of the filter of system calls that bubblewrap loads, see `system_calls`."""


OWN_NAMESPACES = [
    "unshare", "--user", "--map-current-user", "--keep-caps", "--pid", "--fork", "--kill-child",
    "--mount-proc", "--",
]  # fmt: skip
"""With these words, the kernel inside may make sandboxes for processes of students, see
`process_sandbox`."""


class CannotIsolate(Exception):
    """Student code must not run on this machine in this way. The message says why, and what to
    do."""


@dataclass(frozen=True)
class Limits:
    """The limits for the code of one notebook."""

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
        """The factor by which cells, and ranks of checks, may take longer than by default."""
        return max(1, self.cell_s / Limits.cell_s)


def kind():
    """Return the program that isolates code here, as a key of `PROGRAMS`; None if there is none."""
    found = (one for one, program in PROGRAMS.items() if shutil.which(program))
    return CHOSEN.get() or next(found, None)


def engine():
    """Return the container engine that isolates code here; None if another program isolates it."""
    found = kind()
    return found if found in container.ENGINES else None


@contextlib.contextmanager
def choosing(one):
    """Within the block, isolate code with this key of `PROGRAMS`; None for the first that is
    installed."""
    token = CHOSEN.set(one)
    try:
        yield
    finally:
        CHOSEN.reset(token)


def why_not():
    """Return why this machine cannot isolate code, and what to do; None if it can."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap, which isolates students' code, runs only on Linux"
    if kind() is None:
        return (
            "none of bubblewrap (the command bwrap), podman and docker is installed: apt "
            "install bubblewrap"
        )
    if shutil.which(PROGRAMS[kind()]) is None:
        package = "docker.io" if kind() == "docker" else kind()
        return f"{kind()} (the command {PROGRAMS[kind()]}) is not installed: apt install {package}"
    return None


def check_can_isolate(no_sandbox):
    """Refuse to run students' code if this would be unsafe and nobody has allowed it.

    Raises
    ------
    CannotIsolate
        No program can isolate the code, and the caller did not allow this. Or the code would run as
        root. Or simlib cannot hide the places to hide.
    """
    if no_sandbox:
        if os.geteuid() == 0:
            raise CannotIsolate(
                "root may grade only in the sandbox, where submissions lose root's rights: leave "
                "out --no-sandbox, or grade as an ordinary user"
            )
        return
    reason = why_not()
    if reason:
        raise CannotIsolate(
            f"{reason}. Without it, students' code could read, change and send everything that you "
            "can. To grade anyway, pass --no-sandbox"
        )
    if kind() == BUBBLEWRAP and os.geteuid() == 0 and shutil.which("setpriv") is None:
        raise CannotIsolate(
            "you grade as root, and the command setpriv is missing. simlib needs setpriv to take "
            "root's rights from students' code: apt install util-linux, or grade as an ordinary "
            "user"
        )
    try:
        covers(shown())
    except CannotHide as error:
        raise CannotIsolate(str(error)) from None
    said = refusal_of_a_trial(kind())
    if said:
        raise CannotIsolate(
            f"a trial of the sandbox by {kind()} failed ({said}). The sandbox needs unshare of "
            "util-linux 2.36 or later, and user namespaces. Linux permits these if sysctl "
            "user.max_user_namespaces is above 0 and, on Ubuntu, "
            "kernel.apparmor_restrict_unprivileged_userns is 0. To grade without a sandbox anyway, "
            "pass --no-sandbox"
        )


@functools.cache
def refusal_of_a_trial(kind):
    """Try a sandbox within a sandbox. Return the error if this is impossible; empty if it works."""
    with tempfile.TemporaryDirectory(prefix=f"{FOLDERS}{os.getpid()}-") as folder:
        run = Path(folder) / "run"
        run.mkdir()
        os.chmod(folder, 0o711)
        if os.geteuid() == 0:
            os.chown(run, FIRST_UID, FIRST_UID)
        inner = 'touch "$0/file" && unshare --mount --pid --fork --mount-proc true'
        try:
            command = sandboxed(["sh", "-c", inner, str(run)], run, FIRST_UID, Limits())
        except OSError as error:
            return str(error)
        done = subprocess.run(command, capture_output=True, check=False)
    return "" if done.returncode == 0 else container.last_line(done.stderr)


@contextlib.contextmanager
def own_user():
    """Within the block, own a user id that no other run uses. Without root, this is the grader's
    own id.

    Each run needs its own user, because Linux counts processes by user. Linux releases the lock of
    the id even if this process is killed.

    Raises
    ------
    KeyboardInterrupt
        If the whole grading must stop.
    """
    if os.geteuid() != 0:
        yield os.geteuid()
        return
    folder = OwnFolder(TAKEN, 0o700)
    while (found := free_id(folder)) is None:
        say_once(
            f"simlib: all {LAST_UID - FIRST_UID + 1} user ids for grading are in use by other "
            "graders: this one waits until one is free"
        )
        wait_or_stop()
    uid, lock = found
    try:
        yield uid
    finally:
        os.close(lock)


def free_id(folder):
    """Return ``(user id, descriptor that locks it)``; None if all ids are taken."""
    for uid in range(FIRST_UID, LAST_UID + 1):
        lock = folder.open(str(uid), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return uid, lock
    return None


@functools.cache
def say_once(text):
    """Print a sentence on stderr, but only once."""
    print(text, file=sys.stderr, flush=True)


def wait_or_stop():
    """Wait a moment. Raise KeyboardInterrupt if the whole grading must stop."""
    stop = STOP.get(None)
    if stop.wait(WAIT_S) if stop else time.sleep(WAIT_S):
        raise KeyboardInterrupt


def sandboxed(command, run_folder, uid, limits):
    """Return the command that runs ``command`` in isolation.

    Parameters
    ----------
    command : list of str
    run_folder : Path
        The only folder of the machine to which code inside can write. simlib removes it later.
    uid : int
        The user to run as, see `own_user`.
    limits : Limits
    """
    most = [f"--nproc={limits.processes}", f"--nofile={limits.files}", "--core=0", "--"]
    command = ["prlimit", *most, *OWN_NAMESPACES, *command]
    if engine():
        return container.contained(engine(), command, run_folder, uid, limits, view(limits))
    return bubblewrapped(command, run_folder, uid, limits)


def bubblewrapped(command, run_folder, uid, limits):
    """Do the same as `sandboxed` with bubblewrap, but without the limits for each process."""
    is_root = os.geteuid() == 0
    words = [*with_filter(run_folder.parent), "bwrap", "--unshare-pid", "--unshare-net"]
    words += ["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent"]
    words += ["--new-session", "--clearenv"]
    words += ["--hostname", "grading"]
    if filter_for(FILTER):
        words += ["--seccomp", "9"]
    if not is_root:
        words += ["--unshare-user"]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for place, size in shares(limits).items():
        words += ["--perms", "1777", "--size", str(size), "--tmpfs", place]
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
    for name, value in environment_of_sandbox().items():
        words += ["--setenv", name, value]
    words.append("--")
    if is_root:
        # bwrap covers what only root could use, and Linux lets nobody open what is half covered.
        words += ["sh", "-c", 'umount -q /proc/*; exec "$0" "$@"']
        words += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        words += ["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"]
    return words + command


def view(limits):
    """Return the visible files and folders in a container. They are the same as with bubblewrap."""
    links = {place: os.readlink(place) for place in SYSTEM if os.path.islink(place)}
    seen = {f"{FONTS}/{file.name}": str(file) for file in font_lists()}
    for place, source in shown().items():
        if os.path.exists(source) and (place in SYSTEM or not is_of_system(place)):
            seen[place] = source
    simlib = f"{COURSE}/simlib"
    covers = covered(shown())
    return container.View(links, seen, covers, shares(limits), simlib, environment_of_sandbox())


def shares(limits):
    """Return ``{writable folder: how many bytes it may contain}``."""
    return {place: limits.scratch_bytes * part // 16 for place, part in SHARES.items()}


def with_filter(folder):
    """Return words to put before bwrap's command. They open the filter of system calls as
    descriptor 9."""
    found = filter_for(FILTER)
    if found is None:
        return []
    file = folder / "syscalls"
    file.write_bytes(found)
    return ["sh", "-c", 'exec "$@" 9<"$0"', str(file)]


def bound(way, source, place):
    """Return bwrap's words that show a folder. They also make the folders above it readable."""
    above = [str(folder) for folder in reversed(Path(place).parents)][1:]
    above = [folder for folder in above if folder not in ("/tmp", FONTS)]
    words = [word for folder in above for word in ("--perms", "0755", "--dir", folder)]
    return [*words, way, source, place]


def system_files():
    """Return bwrap's words for libraries and programs of the system."""
    words = []
    for place in SYSTEM:
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        else:
            words += bound("--ro-bind-try", place, place)
    return words


def is_of_system(place):
    """Whether a folder is visible inside one of the system's folders."""
    return any(one in (place, *map(str, Path(place).parents)) for one in SYSTEM)


def python_folders():
    """Return the folders of this Python and of its packages."""
    real = Path(sys.executable).resolve().parent.parent
    return list(dict.fromkeys([str(Path(sys.prefix).absolute()), str(real)]))


def shown():
    """Return ``{place inside: folder of the machine}`` of all visible folders. They may be
    nested."""
    places = [one for one in SYSTEM if not os.path.islink(one)] + python_folders()
    return {place: place for place in places} | {f"{COURSE}/simlib": SIMLIB}


def font_lists():
    """Return the paths of matplotlib's lists of fonts, because matplotlib would need seconds to
    make them again."""
    import matplotlib

    return sorted(Path(matplotlib.get_cachedir()).glob("fontlist-*.json"))


def environment_of_sandbox():
    """Return the environment inside, if processes of students make their own sandboxes."""
    return environment() | {OWN_SANDBOX: "1"}


def environment():
    """Return the environment inside. It contains no variables of the grader's own environment."""
    return {
        "HOME": HOME,
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
        **NO_GPUS,
        VARIABLE: process_sandbox.__package__,
    }
