"""Processor time, memory and processes belong to a submission: a control group for each run.

As root a group is made beside all others, of version 2 or 1 of Linux's control groups; an ordinary
user asks systemd for one. Where neither is to be had, a run is made nice, which keeps the machine
usable, but not one submission fair to another.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")
NAME = "simlib-grading"
CONTROLLERS = ("cpu", "memory", "pids")
ROOM = 5 / 4
"""Of the memory a run may take: the watch, which says so in words, comes first."""
MORE_PROCESSES = 100
"""Those around the sandbox."""
CLEAR_S = 5
_numbers = itertools.count(1)


class Group:
    """A control group of one run, for the time of a ``with`` block.

    Parameters
    ----------
    limits : sandbox.Limits
    mounted : Path, optional
        Where control groups are.

    Attributes
    ----------
    words : list of str
        What stands before a command that is to run in it.
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
        """End all that runs in it, whatever session it is in."""
        end_all_in(self._folders)

    def _remove(self):
        for folder in self._folders:
            remove(folder)
        self._folders = []


def end_all_in(folders):
    """End all processes of groups."""
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


def remove(folder):
    """Remove a group, once those that were killed in it are gone."""
    deadline = time.monotonic() + CLEAR_S
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)


def pids_in(folder):
    """The processes of a group."""
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except (OSError, ValueError):
        return []


def settings_of(mounted, memory, processes):
    """``[(parent folder, {file: value})]`` of the groups to make; empty where there are none."""
    if (mounted / "cgroup.controllers").exists():
        given = (mounted / "cgroup.subtree_control").read_text().split()
        if not set(CONTROLLERS) <= set(given):
            return []
        return [
            (
                mounted,
                {"cpu.weight": "100", "memory.max": str(memory), "pids.max": str(processes)},
            )
        ]
    by_controller = {
        "cpu": {"cpu.shares": "1024"},
        "memory": {"memory.limit_in_bytes": str(memory)},
        "pids": {"pids.max": str(processes)},
    }
    found = [(mounted / name, settings) for name, settings in by_controller.items()]
    return found if all((parent / "cgroup.procs").exists() for parent, _ in found) else []


@functools.cache
def user_has_systemd():
    """Whether systemd makes groups for this user (not tried on a machine that tests this)."""
    if shutil.which("systemd-run") is None:
        return False
    command = ["systemd-run", "--user", "--scope", "--quiet", "-p", "CPUWeight=100", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def clear_after_the_dead(mounted=MOUNTED):
    """Remove groups of graders that were killed, with what still runs in them."""
    for parent in (mounted, *(mounted / name for name in CONTROLLERS)):
        for folder in parent.glob(f"{NAME}-*-*"):
            owner = folder.name.removeprefix(f"{NAME}-").partition("-")[0]
            if owner.isdecimal() and not os.path.isdir(f"/proc/{owner}"):
                end_all_in([folder])
                remove(folder)
