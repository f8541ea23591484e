"""Where simlib is installed, which extras it has, which files are the learner's, and whether ranks
are trusted."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

VERSION = "0.2.0"
FOLDER = Path(__file__).parent.parent
"""The folder ``simlib``, by the path from which Python imported it, because frames name files by
this path."""
ROOT = FOLDER.resolve().parent
"""The folder on the import path: the repository, or site-packages."""
GIVEN = FOLDER / "classroom" / "checks" / "given"
"""In a wheel, the folder with the expected answers of exercises' checks. A clone has them in
`exercises/checks`."""
GIVEN_COURSE = FOLDER / "course" / "given"
"""In a wheel, the folder with the course: lessons, exercises, solutions, guides. A clone has the
course in `ROOT`."""


@functools.cache
def _libraries():
    """Return the beginnings of paths whose files are not the learner's."""
    torch = find_spec("torch")
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    folders |= {str(FOLDER), *site.getsitepackages(), site.getusersitepackages()}
    folders |= set((torch and torch.submodule_search_locations) or ())
    begins = [folder + os.sep for folder in folders]
    return *begins, "<frozen ", "<string>", "<eval_with_key>"


@functools.cache
def is_learners(filename: str) -> bool:
    """Whether a file is the learner's, and not a library's or Python's own."""
    return not filename.startswith(_libraries())


class MissingExtra(ImportError):
    """A module of one of simlib's extras is not installed. The message names the module."""


def need(extra: str, *modules: str, what: str) -> None:
    """Raise an error of one sentence if one of the modules is missing.

    Parameters
    ----------
    extra : str
        The extra in pyproject.toml that installs these modules.
    modules : str
        The names by which Python imports the modules.
    what : str
        The function or command that needs the modules. The error begins with this text.

    Raises
    ------
    MissingExtra
        One of them is not installed.
    """
    gone = [name for name in modules if find_spec(name) is None]
    if gone:
        raise MissingExtra(
            f"{what} needs {', '.join(gone)}. To install this, run "
            f'pip install "rank-by-rank[{extra}]"'
        )


VARIABLE = "SIMLIB_CONFINEMENT"
"""An environment variable that is set if the ranks are not trusted. Its value is the module that
confines them, see `core.engines.confinement`."""


def are_ranks_trusted() -> bool:
    """Whether simlib may read data from ranks without a check, and show it."""
    return VARIABLE not in os.environ


NO_GPUS = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
"""Environment variables that hide all GPUs of NVIDIA and AMD from a process. CUDA reads them only
once, so they must be set before torch asks for a GPU for the first time."""


def loopback() -> str:
    """The name of the interface that leads to this machine itself."""
    return "lo0" if sys.platform == "darwin" else "lo"


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Within the block, Python collects no garbage. A collection would find nothing, because all
    objects of a job's record are in use."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
