"""The commands `rank-by-rank` and `simlib`. First they make sure that `simlib` is the course's.

Another project on PyPI is called simlib, and so is its package. If both are installed, the later
one has replaced files of the earlier one. So this module imports nothing of `simlib` before it has
looked.
"""

import os
import sys
from importlib.util import find_spec

AUTHOR = "\nAuthor: Rank by Rank authors\n"
MARK = "from ._names import"
"""A line of the course's `simlib/__init__.py`."""


def read(*path):
    """The text of a file; empty if it cannot be read."""
    try:
        with open(os.path.join(*path), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def other_project():
    """``(folder, name and version)`` of another project in this environment whose package is called
    simlib, too; None if there is none."""
    for folder in sys.path:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            is_simlib = name.startswith("simlib-") and name.endswith(".dist-info")
            if is_simlib and AUTHOR not in read(folder, name, "METADATA"):
                if "\nsimlib/" in "\n" + read(folder, name, "RECORD"):
                    return folder, name.removesuffix(".dist-info").replace("-", " ")
    return None


def is_courses():
    """Whether ``import simlib`` imports the course's package."""
    found = find_spec("simlib")
    return MARK in read((found and found.origin) or "")


def other_simlib():
    """One sentence on another package called simlib, and how to repair this; None if there is
    none."""
    pip = f"{sys.executable} -m pip"
    again = f"{pip} install --force-reinstall --no-deps rank-by-rank"
    other, found = other_project(), find_spec("simlib")
    if other:
        return (
            f"{other[0]} contains {other[1]}, which is another project, and both packages use the "
            f"folder simlib: run `{pip} uninstall -y simlib`, then `{again}`"
        )
    if found is None or found.origin is None:
        return f"files of the package simlib are missing: run `{again}`"
    if not is_courses():
        return (
            f"{found.origin} belongs to another package called simlib, which Python finds first: "
            "rename this folder, or take the folder above it out of PYTHONPATH"
        )
    return None


def main():
    """Run a command of simlib; returns the exit code."""
    wrong = other_simlib()
    if wrong:
        print(f"rank-by-rank: {wrong}", file=sys.stderr)
        if not is_courses():
            return 2
    from simlib.cli import main

    return main()
