"""What Linux knows of a process: whether it sleeps, and whether it was killed for want of memory.

Linux counts such kills, for each group of processes that has a limit of its own (cgroup, version 1
or 2), and for the machine. So a count is taken before, and another one after a process was ended by
SIGKILL. Where neither can be read, its log may tell; else nobody knows.
"""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

BY_KERNEL = ", by the kernel for want of memory"
PERHAPS = ", perhaps for want of memory"
LOG_S = 2.0
"""How long the kernel's log may take."""
ROOT = Path("/")


def kill_count(root: Path = ROOT) -> int | None:
    """How often Linux has killed for want of memory in this process's group; None: not known."""
    for path in _places(root):
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.M)
        except OSError:
            continue
        if found:
            return int(found[1])
    return None


def _places(root: Path) -> list[Path]:
    """Where the count may be: of this process's group, of what a container sees, of the machine."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            counts = [groups / f"memory{at}/memory.oom_control" for at in (path, "")]
            found = [*counts, *found]
        elif number == "0":
            found.append(groups / path.lstrip("/") / "memory.events")
    return [*found, groups / "memory.events", root / "proc/vmstat"]


def why_killed(code: int, before: int | None, pid: int, root: Path = ROOT) -> str:
    """Words that go on from "was ended by signal 9 (SIGKILL)"; empty where it was not memory.

    Parameters
    ----------
    code : int
        How the process ended, negative for a signal.
    before : int or None
        What `kill_count` was when it began.
    pid : int
        Its number.
    """
    if code != -signal.SIGKILL:
        return ""
    now = kill_count(root)
    if before is not None and now is not None:
        return BY_KERNEL if now > before else ""
    log = _kernel_log()
    if log is None:
        return PERHAPS
    return BY_KERNEL if re.search(rf"[Kk]illed process {pid}\b", log) else ""


def _kernel_log() -> str | None:
    """What the kernel has logged; None where this account may not read it."""
    try:
        done = subprocess.run(
            ["dmesg"], capture_output=True, text=True, errors="replace", timeout=LOG_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def sleep_count(pid: int) -> int | None:
    """How often the thread has gone to sleep, if it sleeps now; None if it runs or is not told.

    The same count twice means that it slept all the time in between.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/status") as file:
            pairs = (line.partition(":") for line in file)
            fields = {name: text.strip() for name, _, text in pairs}
    except OSError:
        return None
    if not fields["State"].startswith("S"):
        return None
    return int(fields["voluntary_ctxt_switches"])
