"""One grading run: nbval runs a merged notebook in a sandboxed kernel, and compares its outputs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import psutil

from ...core.environment import ROOT
from . import sandbox
from .container import Container, Group, clear_groups_of_the_dead, names_of_containers, remove
from .sandbox import FOLDERS, STOP

POLL_S = 0.25
IGNORED = {"tags": ["nbval-ignore-output"]}


@dataclass
class CellResult:
    """The result of nbval for a cell.

    Attributes
    ----------
    word : str
        ``"same"``, ``"different"``, ``"error"``, ``"timeout"``, or ``"gone"`` if the kernel ended.
    seconds : float
    error : str
        The text of the error from nbval.
    outputs : list of dict
        The cell's outputs, in nbformat's form.
    """

    word: str
    seconds: float = 0.0
    error: str = ""
    outputs: list = field(default_factory=list)

    @property
    def text(self):
        """Return the text that the cell printed or showed."""
        parts = []
        for output in self.outputs:
            if output.get("output_type") == "stream":
                parts.append(output.get("text", ""))
            elif output.get("output_type") == "error":
                parts.append(f"{output.get('ename')}: {output.get('evalue')}")
            else:
                parts.append(output.get("data", {}).get("text/plain", ""))
        return "\n".join(part.rstrip("\n") for part in parts if part)


@dataclass
class Session:
    """The outcome of one run.

    Attributes
    ----------
    cells : dict of str to CellResult
        The results by cell id. Cells that the run did not reach are missing.
    ended : str
        The reason if the grader ended the whole run; else empty.
    seconds : float
    log : str
        The end of pytest's output.
    """

    cells: dict
    ended: str
    seconds: float
    log: str


def code_cell(identity, source, outputs=(), compare=False):
    """Return a code cell for the notebook to run."""
    return nbformat.from_dict(
        {
            "cell_type": "code",
            "id": identity,
            "metadata": {} if compare else IGNORED,
            "execution_count": 1,
            "source": source,
            "outputs": list(outputs),
        }
    )


def run_notebook(cells, limits, isolate=True):
    """Run cells with nbval in a separate kernel.

    Parameters
    ----------
    cells : list of NotebookNode
        The cells from `code_cell`.
    limits : sandbox.Limits
    isolate : bool
        False to run the kernel without a sandbox.

    Returns
    -------
    Session

    Raises
    ------
    CannotIsolate
        The code would run with rights that it must not have.
    """
    sandbox.check_can_isolate(no_sandbox=not isolate)
    empty = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}}
    notebook = nbformat.from_dict(empty | {"cells": list(cells)})
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDERS}{os.getpid()}-"))
    try:
        with sandbox.own_user() as uid, Group(limits) as group:
            results, ended, log = _run_in(folder, notebook, limits, isolate, uid, group)
            return Session(results, ended, time.monotonic() - begun, log)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_in(folder, notebook, limits, isolate, uid, group):
    """Return the results by cell, the reason for an early end, and pytest's output."""
    run, home = folder / "run", folder / "home"
    run.mkdir()
    home.mkdir(mode=0o700)
    folder.chmod(0o711)
    if os.geteuid() == 0:
        os.chown(run, uid, uid)
    (home / "notebook.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")
    # -P, -s: what examines imports nothing from a folder that a student can write to.
    kernel = [sys.executable, "-P", "-s", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel += ["--HistoryManager.enabled=False", "--IPKernelApp.log_level=ERROR"]
    environ = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(Path(__file__).resolve().parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "GRADING_RUN": str(run),
        "GRADING_UID": str(uid),
        "GRADING_RESULTS": str(home / "results"),
        "GRADING_OUTPUT": str(limits.output_chars),
        "GRADING_PARENT": str(os.getpid()),
    }
    if isolate:
        kernel = sandbox.sandboxed(kernel, run, uid, limits)
    else:
        inside = sandbox.environment() | {"HOME": str(home), "PYTHONPATH": str(ROOT)}
        kernel = ["env", *(f"{name}={value}" for name, value in inside.items()), *kernel]
    environ["GRADING_KERNEL"] = json.dumps(kernel)
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "--tb=no", "-p", "nbval_plugin"]
    command += ["-p", "nbval.plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--nbval", f"--nbval-cell-timeout={limits.cell_s}", f"--rootdir={home}"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*group.words, *command, str(home / "notebook.ipynb")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            cwd=home,
            start_new_session=True,
        )
        is_container = isolate and sandbox.engine()
        container = Container(sandbox.engine(), folder) if is_container else None
        try:
            ended = watch(process, limits, container)
        finally:
            end_group(process)
            if container:
                container.end()
    results = read_results(home / "results")
    log = (folder / "log").read_text(errors="replace")[-3000:]
    return results, ended, log


def watch(process, limits, container=None):
    """Wait for a run's end. If the run takes too long or needs too much, end it and return the
    reason.

    Parameters
    ----------
    process : subprocess.Popen
    limits : sandbox.Limits
    container : container.Container, optional
        The container with the run's kernel, if the kernel does not run in a child of this process.

    Raises
    ------
    KeyboardInterrupt
        If the whole grading must stop.
    """
    deadline = time.monotonic() + limits.notebook_s
    while True:
        try:
            process.wait(POLL_S)
            return ""
        except subprocess.TimeoutExpired:
            pass
        if STOP.get(None) and STOP.get().is_set():
            raise KeyboardInterrupt
        if time.monotonic() > deadline:
            return f"the notebook took longer than {limits.notebook_s:.0f} s"
        processes = descendants(process.pid)
        if container and container.first_process():
            processes += descendants(container.first_process())
        if any(map(is_stopped_kernel, processes)):
            return "the process that examines it was stopped"
        used = memory_of(processes, limits.memory_bytes)
        if used > limits.memory_bytes:
            return f"the notebook's processes took more than {limits.memory_bytes >> 20:,} MB"


def is_stopped_kernel(process):
    """Whether a process is the kernel and SIGSTOP has stopped it. A wait for it would never end."""
    try:
        is_stopped = process.status() == psutil.STATUS_STOPPED
        return is_stopped and "ipykernel_launcher" in process.cmdline()
    except psutil.Error:
        return False


def memory_of(processes, enough):
    """Return how many bytes of memory some processes use.

    A first look counts shared pages fully for each process. If the sum is more than ``enough``, a
    second look counts only each process's share of them.
    """
    total = 0
    for one in processes:
        with contextlib.suppress(psutil.Error):
            total += one.memory_info().rss
    if total <= enough:
        return total
    return sum(share_of(one.pid) for one in processes)


def share_of(pid):
    """Return how many bytes of memory one process uses, including its share of shared pages.

    If the grader may not look into the process, return its anonymous memory, with shared pages
    counted fully.
    """
    for file, words in (("smaps_rollup", ("Pss:",)), ("status", ("RssAnon:", "RssShmem:"))):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{file}") as lines:
            return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(words))
    return 0


def descendants(pid):
    """Return a process and all its descendants."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def end_group(process):
    """End pytest, and with pytest the sandbox and all processes inside."""
    for one in reversed(descendants(process.pid)):
        with contextlib.suppress(psutil.Error):
            one.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def clear_after_the_dead():
    """Remove containers, folders and control groups of graders that were killed."""
    clear_groups_of_the_dead()
    engine = sandbox.engine()
    if engine:
        names = names_of_containers(engine, FOLDERS)
        remove(engine, [name for name in names if is_of_a_dead_grader(name)])
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*-*"):
        if is_of_a_dead_grader(folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def is_of_a_dead_grader(name):
    """Whether the grader that made a folder or container has ended."""
    owner = name.removeprefix(FOLDERS).partition("-")[0]
    return owner.isdecimal() and not psutil.pid_exists(int(owner))


def read_results(path):
    """Return ``{cell id: CellResult}`` from the lines that the plugin has written."""
    found = {}
    if path.exists():
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            identity = entry.pop("id")
            found[identity] = CellResult(**entry)
    return found
