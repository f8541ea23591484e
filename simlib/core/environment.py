"""Where simlib runs: its installation and extras, whose a file is, trust in the ranks, Ctrl-C."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import site
import sysconfig
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

VERSION = "0.1.0"
FOLDER = Path(__file__).parent.parent
"""The folder ``simlib``, by the path it was imported by: frames name their files so."""
ROOT = FOLDER.resolve().parent
"""What stands on the import path: the repository, or site-packages."""
GIVEN = FOLDER / "classroom" / "checks" / "given"
"""What checks of exercises expect, in a wheel only: a clone has it in `exercises/checks`."""


@functools.cache
def _libraries():
    """How the names of files begin that are no learner's."""
    torch = find_spec("torch")
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    folders |= {str(FOLDER), *site.getsitepackages(), site.getusersitepackages()}
    folders |= set((torch and torch.submodule_search_locations) or ())
    begins = [folder + os.sep for folder in folders]
    return *begins, "<frozen ", "<string>", "<eval_with_key>"


@functools.cache
def is_learners(filename: str) -> bool:
    """Whether a file is the learner's: no library's, nor Python's own."""
    return not filename.startswith(_libraries())


class MissingExtra(ImportError):
    """Something that an extra of simlib brings is not installed; the message says which."""


def need(extra: str, *modules: str, what: str) -> None:
    """Refuse in one sentence where a module is missing.

    Parameters
    ----------
    extra : str
        The extra of pyproject.toml that brings these modules.
    modules : str
        By the names under which they are imported.
    what : str
        What needs them: the sentence begins with it.

    Raises
    ------
    MissingExtra
        One of them is not installed.
    """
    gone = [name for name in modules if find_spec(name) is None]
    if gone:
        raise MissingExtra(
            f'{what} needs {", ".join(gone)}, missing here: pip install "simlib[{extra}]"'
        )


VARIABLE = "SIMLIB_CONFINEMENT"
"""Set where the ranks are not to be trusted: the module that confines them, see
`core.engines.confinement`."""


def are_ranks_trusted() -> bool:
    """Whether what ranks send may be read as it is, and shown."""
    return VARIABLE not in os.environ


NO_GPUS = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
"""The environment of a process that sees no GPU of NVIDIA or AMD. CUDA reads it once, so it must
be there before torch asks for a GPU for the first time."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block; it comes then."""
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
