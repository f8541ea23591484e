"""The versions that the notebook and every node must have alike."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata

import torch

from ...core.environment import VERSION
from ...core.model.errors import JobError


def versions():
    """Name -> version of what a function and its results travel through; None: it is not here."""
    try:
        mpi4py = metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        mpi4py = None

    return {
        "Python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "simlib": VERSION,
        "mpi4py": mpi4py,
    }


def check_versions(wanted):
    """Refuse to be a rank where this node has other versions than the notebook.

    Of Python the minor version counts: functions travel as bytecode. mpi4py may differ; whether it
    is needed, the launcher decides.
    """
    here = versions()
    for name in ("Python", "torch", "simlib"):
        version = wanted[name]
        parts = 2 if name == "Python" else 3
        if here[name].split(".")[:parts] != version.split(".")[:parts]:
            raise JobError(
                f"{os.uname().nodename} has {name} {here[name]}, the notebook {version}: install "
                f"the same on every node ({sys.executable} runs there)"
            )
