"""Control groups for a run's processes, and containers for machines without bubblewrap.

A `Group` limits the memory and the processes of one run, and ends all its processes. A container of
podman or docker needs no image: a process inside sees only links and folders of this machine. The
program inside must load the filter of system calls itself, because podman and docker do not accept
a filter in this form.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
NAME = "simlib-grading"
CONTROLLERS = ("cpu", "memory", "pids")
ROOM = 5 / 4
"""The group's limit is this factor times the run's memory. So simlib's own watch acts first, and
can report the limit in words."""
MORE_PROCESSES = 100
"""The group may have this many more processes than the run, for the processes around the
sandbox."""
CLEAR_S = 5
_numbers = itertools.count(1)


class Group:
    """A control group for one run. It exists for the time of a ``with`` block.

    Parameters
    ----------
    limits : sandbox.Limits
    mounted : Path, optional
        The folder of control groups.

    Attributes
    ----------
    words : list of str
        The words to put before a command, so that it runs in the group.
    """

    def __init__(self, limits, mounted=MOUNTED):
        self._folders = []
        self.words = []
        memory, processes = int(limits.memory_bytes * ROOM), limits.processes + MORE_PROCESSES
        if os.geteuid() == 0:
            self._make(mounted, memory, processes)
        elif user_has_systemd():
            self.words = ["systemd-run", "--user", "--scope", "--quiet", "-p", "CPUWeight=100"]
            self.words += ["-p", f"MemoryMax={memory}", "-p", f"TasksMax={processes}", "--"]
        if not self.words:
            self.words = ["nice", "-n", "10"]

    def _make(self, mounted, memory, processes):
        name = f"{NAME}-{os.getpid()}-{next(_numbers)}"
        try:
            for parent, settings in settings_of(mounted, memory, processes):
                folder = parent / name
                folder.mkdir()
                self._folders.append(folder)
                for file, value in settings.items():
                    (folder / file).write_text(value)
        except OSError:
            self._remove()
            return
        if self._folders:
            enter = 'for one in $0; do echo $$ > "$one/cgroup.procs"; done; exec "$@"'
            self.words = ["sh", "-c", enter, " ".join(map(str, self._folders))]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self._remove()

    def kill(self):
        """End all processes of the group, whatever their session is."""
        end_all_in(self._folders)

    def _remove(self):
        for folder in self._folders:
            remove_group(folder)
        self._folders = []


def end_all_in(folders):
    """End all processes of these groups."""
    deadline = time.monotonic() + CLEAR_S
    while time.monotonic() < deadline:
        pids = {pid for folder in folders for pid in pids_in(folder)}
        if not pids:
            return
        for folder in folders:
            with contextlib.suppress(OSError):
                (folder / "cgroup.kill").write_text("1")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def remove_group(folder):
    """Remove a group as soon as its killed processes have ended."""
    deadline = time.monotonic() + CLEAR_S
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)


def pids_in(folder):
    """Return the processes of a group."""
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except (OSError, ValueError):
        return []


def settings_of(mounted, memory, processes):
    """Return ``[(parent folder, {file: value})]`` of the groups to make; empty if simlib can make
    none."""
    if (mounted / "cgroup.controllers").exists():
        given = (mounted / "cgroup.subtree_control").read_text().split()
        if not set(CONTROLLERS) <= set(given):
            return []
        most = {"memory.max": str(memory), "pids.max": str(processes)}
        return [(mounted, {"cpu.weight": "100"} | most)]
    by_controller = {
        "cpu": {"cpu.shares": "1024"},
        "memory": {"memory.limit_in_bytes": str(memory)},
        "pids": {"pids.max": str(processes)},
    }
    found = [(mounted / name, settings) for name, settings in by_controller.items()]
    return found if all((parent / "cgroup.procs").exists() for parent, _ in found) else []


@functools.cache
def user_has_systemd():
    """Whether systemd makes groups for this user. No test has tried this with a real systemd."""
    if shutil.which("systemd-run") is None:
        return False
    command = ["systemd-run", "--user", "--scope", "--quiet", "-p", "CPUWeight=100", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def clear_groups_of_the_dead(mounted=MOUNTED):
    """Remove groups of graders that were killed, and end the processes in these groups."""
    for parent in (mounted, *(mounted / name for name in CONTROLLERS)):
        for folder in parent.glob(f"{NAME}-*-*"):
            owner = folder.name.removeprefix(f"{NAME}-").partition("-")[0]
            if owner.isdecimal() and not os.path.isdir(f"/proc/{owner}"):
                end_all_in([folder])
                remove_group(folder)


ENGINES = ("podman", "docker")
FILTERING = "classroom/confinement/system_calls.py"
"""A file of simlib. As a program, it loads the filter and then becomes another program."""
OF_THE_CALLER = (
    "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS",
    "CONTAINERS_CONF", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG",
)  # fmt: skip
"""The variables with which podman and docker find their settings, containers and daemon."""
ALWAYS = [
    "--rm", "--network=none", "--ipc=private", "--read-only", "--cap-drop=all",
    "--security-opt=no-new-privileges", "--hostname=grading", "--log-driver=none",
    # With these nobody could make a sandbox within; our own filter is loaded inside.
    "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined",
    # Folders of the machine have labels of their own.
    "--security-opt=label=disable",
]  # fmt: skip
OPTIONS = {
    "podman": [
        "--security-opt=unmask=ALL", "--read-only-tmpfs=false", "--no-hosts", "--passwd=false",
    ],
    "docker": ["--security-opt=systempaths=unconfined"],
}  # fmt: skip
"""Options of each engine. Sandboxes inside the container need a new /proc, and Linux does not mount
a new one while the old /proc is partly covered."""
EMPTY_FOLDERS = ("/dev", "/etc", "/proc", "/run", "/sys")
"""Folders into which the engines put their own files."""
MAX_PROCESSES = 32_768
"""The most processes of a container's user: the largest number that podman accepts. Stricter limits
apply inside."""
GRACE_S = 60
"""If the grader is dead, a container ends by itself this many seconds after its notebook's time."""


@dataclass(frozen=True)
class View:
    """The links and folders that a process in a container sees.

    Attributes
    ----------
    links : dict of str to str
        The target of each link.
    shown : dict of str to str
        The machine's file or folder that is visible at each place, read-only.
    covers : list of (Path, str or None)
        The covers from `sandbox.covered`.
    shares : dict of str to int
        The writable folders, and how many bytes each of them may have.
    simlib : str
        The place of simlib inside.
    environment : dict of str to str
    """

    links: dict
    shown: dict
    covers: list
    shares: dict
    simlib: str
    environment: dict


def contained(engine, command, run_folder, uid, limits, view):
    """The command that runs ``command`` in a container, see `sandbox.sandboxed`.

    simlib makes the container's folders beside ``run_folder``.
    """
    folder = run_folder.parent
    binds = view.shown | laid_over(view.covers, folder / "covers") | without_sys(folder / "sys")
    words = [*client(engine), "run", f"--name={folder.name}", *ALWAYS, *OPTIONS[engine]]
    words += of_user(engine, uid) + of_limits(limits)
    for place, size in view.shares.items():
        words.append(f"--tmpfs={place}:rw,exec,nosuid,nodev,size={size},mode=1777")
    # A queue of messages can be made by a file there.
    words.append("--tmpfs=/dev/mqueue:ro,size=4k")
    words += [f"--volume={source}:{place}:ro" for place, source in binds.items()]
    words.append(f"--volume={run_folder}:{run_folder}:rw")
    if engine == "podman":
        make_root(folder / "root", view.links, binds, view.shares)
        words += ["--rootfs", str(folder / "root")]
    else:
        words.append(image_of_links(tuple(view.links.items())))
    words += ["timeout", "--signal=KILL", str(int(limits.notebook_s + GRACE_S)), "env", "-i"]
    words += [f"{name}={value}" for name, value in view.environment.items()]
    words += [sys.executable, "-I", "-S", f"{view.simlib}/{FILTERING}"]
    # In a user namespace of their own, processes are counted without the caller's others.
    words += ["unshare", "--user", "--map-current-user", "--keep-caps", "--"]
    return words + list(command)


def client(engine):
    """Return the words that call an engine with the grader's settings, whatever the environment
    is."""
    ours = [f"{name}={os.environ[name]}" for name in OF_THE_CALLER if name in os.environ]
    return ["env", *ours, engine]


def of_user(engine, uid):
    """Return the options for the container's user: the run's own user if the grader is root, else
    the caller."""
    if os.geteuid() == 0:
        return [f"--user={uid}:{uid}"]
    if engine == "podman":
        return ["--userns=keep-id"]
    return [f"--user={os.geteuid()}:{os.getegid()}"]


def of_limits(limits):
    """Return the options for the same limits as a `Group` has, and for open files."""
    memory = int(limits.memory_bytes * ROOM)
    words = [f"--memory={memory}", f"--memory-swap={memory}", "--cpu-shares=1024"]
    words.append(f"--pids-limit={limits.processes + MORE_PROCESSES}")
    # Those that podman sets by itself may be more than it may have.
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    processes = MAX_PROCESSES if most == resource.RLIM_INFINITY else min(most, MAX_PROCESSES)
    words.append(f"--ulimit=nofile={limits.files}:{limits.files}")
    return [*words, f"--ulimit=nproc={processes}:{processes}", "--ulimit=core=0:0"]


def laid_over(covers, folder):
    """Return ``{place: source}`` that hides covered places. The empty folders for this are made in
    ``folder``."""
    found = {}
    for number, (path, source) in enumerate(covers):
        if source is None:
            source = folder / str(number)
            source.mkdir(parents=True)
        elif os.path.isdir(source):  # shown again in what covers it, where nobody can make it later
            above = next((one for one in path.parents if str(one) in found), None)
            if above is not None:
                (Path(found[str(above)]) / path.relative_to(above)).mkdir(parents=True)
        found[str(path)] = str(source)
    return found


def without_sys(folder):
    """Return ``{place: source}`` that leaves only the engine's own mounts in /sys."""
    (folder / "fs/cgroup").mkdir(parents=True)
    return {"/sys": str(folder)}


def make_root(root, links, binds, shares):
    """Make a container's root folder. It has links, and empty folders and files as mount points.

    Otherwise the engine would make them as a user whose files we may not be able to remove.
    """
    for place in (*EMPTY_FOLDERS, *binds, *shares):
        path = root / place.lstrip("/")
        if os.path.isdir(binds.get(place, "/")):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    for place in shares:  # podman gives them the rights of what they are mounted on
        (root / place.lstrip("/")).chmod(0o1777)
    for place, target in links.items():
        path = root / place.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


@functools.cache
def image_of_links(links):
    """Return the name of docker's image that contains only these links. Make the image if it is
    missing.

    Raises
    ------
    OSError
        docker cannot make the image. The message comes from docker.
    """
    name = f"simlib-grading:{hashlib.sha256(repr(links).encode()).hexdigest()[:16]}"
    if _ask("docker", "image", "inspect", name).returncode == 0:
        return name
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for place in EMPTY_FOLDERS:
            entry = tarfile.TarInfo(place.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for place, target in links:
            entry = tarfile.TarInfo(place.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    done = _ask("docker", "import", "-", name, input=packed.getvalue())
    if done.returncode != 0:
        raise OSError(last_line(done.stderr))
    return name


class Container:
    """The container of one run: its processes, and its end.

    The container's processes are not children of the process that started the container. So it is
    not enough to watch or end that process.

    Parameters
    ----------
    engine : str
    folder : Path
        The run's folder. The container has the same name.
    """

    def __init__(self, engine, folder):
        self._engine, self._name = engine, folder.name
        self._pid = 0

    def first_process(self):
        """Return the id of the container's first process on the machine; 0 if there is none yet."""
        if not self._pid:
            done = _ask(self._engine, "inspect", "--format={{.State.Pid}}", self._name)
            with contextlib.suppress(ValueError):
                self._pid = int(done.stdout)
        return self._pid

    def end(self):
        """End all its processes, and remove it."""
        remove(self._engine, [self._name])


def remove(engine, names):
    """Remove containers, even if they still run."""
    if names:
        at_once = ["--time=0", "--ignore"] if engine == "podman" else []
        _ask(engine, "rm", "--force", *at_once, *names)


def names_of_containers(engine, beginning):
    """Return all names of containers that begin with ``beginning``."""
    said = _ask(engine, "ps", "--all", "--format={{.Names}}", f"--filter=name={beginning}")
    return [one for one in said.stdout.decode().split() if one.startswith(beginning)]


def last_line(said):
    """Return the last line of a program's output."""
    return (said.decode(errors="replace").strip().splitlines() or ["no word"])[-1]


def _ask(engine, *words, **given):
    return subprocess.run([*client(engine), *words], capture_output=True, check=False, **given)
