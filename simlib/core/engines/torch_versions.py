"""The tested versions of torch, and what the engines do with any other version."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path

import torch

from ..environment import ROOT, VERSION
from ..model.errors import SimlibError

OLDEST, NEWEST = (2, 10), (2, 15)
"""Tests have passed with these versions. docs/install.md lists the dates."""
IN_CANARY = "SIMLIB_CANARY"
"""A variable of the canary's own environment."""


def is_untested(version: str | None = None) -> bool:
    """Whether a version of torch, by default the installed one, is untested."""
    major, minor = (version or torch.__version__).split(".")[:2]
    return not OLDEST <= (int(major), int(minor)) <= NEWEST


@functools.cache
def warn_of_untested_torch() -> None:
    """Warn, once in a process, that `run` is untested with this torch."""
    if is_untested() and IN_CANARY not in os.environ:
        what = f"{_what_is_here()}. If a run gives unexpected results, use {_what_to_do()}"
        warnings.warn(what, stacklevel=2)


@functools.cache
def refuse_untested_torch() -> None:
    """Let `simulate` continue if the canary passes. The canary runs once per version, for a minute.

    Raises
    ------
    SimlibError
        The canary does not pass.
    """
    if is_untested() and IN_CANARY not in os.environ:
        found = _outcome()
        if not found.endswith("none failed"):
            raise SimlibError(
                f"{_what_is_here()}. Simulations fail here: use {_what_to_do()}\n\n{found}"
            )


def _what_is_here() -> str:
    first, last = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    return f"simlib was tested with torch {first} to {last}, but this is torch {torch.__version__}"


def _what_to_do() -> str:
    return f"pip install '{requirement()}'"


def requirement() -> str:
    """The range in the form for pip."""
    return f"torch>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"


def _outcome() -> str:
    """The result of the canary with this torch, from this process or an earlier one."""
    file = _folder() / f"canary-{VERSION}-torch-{torch.__version__}-{platform.python_version()}"
    with contextlib.suppress(OSError):
        return file.read_text()
    print("simlib tests this new torch for about a minute ...", file=sys.stderr, flush=True)
    found = _run_canary()
    with contextlib.suppress(OSError):  # then the next process tries again
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found)
    return found


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simlib"


def _run_canary() -> str:
    """The last lines of the canary's output. It has its own process, because it may crash."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "simlib.engines.canary"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return (done.stdout.strip() or done.stderr.strip())[-3000:]
