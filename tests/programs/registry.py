"""How a program of the zoo is declared, and how the marks in its source are read.

A wrong program says of what kind it is; its lines that must be blamed end in ``# <- rank 0``,
``# <- ranks 1, 2`` or ``# <- every rank``. Where one rank is named on several lines, any of them
is right. Ranks that are not named may be blamed or not: whether they had arrived is a matter of
time. ``# <- two ranks`` stands where any two or more must be blamed, whoever came first.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass

import cloudpickle

FINDINGS = ("unfinished", "race")
"""Kinds that do not stop a run."""

WRONG, RIGHT = {}, {}
"""Name -> `Program`, filled by the decorators."""

_MARK = re.compile(r"# <- (?:(every rank)|(two ranks)|ranks? ([\d, ]+))$")


@dataclass(frozen=True)
class Program:
    """A rank function and what has to be said of it; ``kind`` is None for a right one."""

    function: object
    ranks: int
    timeout_s: float
    kind: str | None = None

    @property
    def name(self):
        """The function's name."""
        return self.function.__name__

    @property
    def file(self):
        """The file it is written in."""
        return inspect.getsourcefile(self.function)

    @property
    def blamed(self):
        """``{rank: line numbers}``: for each marked rank the lines of which one must be told."""
        found = {}
        for number, mark in self._marks():
            everyone = range(self.ranks) if mark[1] else ()
            for rank in map(int, mark[3].split(",")) if mark[3] else everyone:
                found.setdefault(rank, set()).add(number)
        return found

    @property
    def meeting(self):
        """The lines at which two ranks or more must be told, whichever they are."""
        return {number for number, mark in self._marks() if mark[2]}

    def _marks(self):
        lines, first = inspect.getsourcelines(self.function)
        found = ((number, _MARK.search(line.rstrip())) for number, line in enumerate(lines, first))
        return [(number, mark) for number, mark in found if mark]


def wrong(kind, *, ranks=2, timeout_s=20):
    """Declare a wrong program; ``timeout_s`` only ends it where its diagnosis is missed."""
    return lambda function: _add(WRONG, Program(function, ranks, timeout_s, kind))


def right(*, ranks=2, timeout_s=60):
    """Declare a right program."""
    return lambda function: _add(RIGHT, Program(function, ranks, timeout_s))


def _add(table, program):
    if program.name in WRONG or program.name in RIGHT:
        raise ValueError(f"two programs are called {program.name}")
    table[program.name] = program
    # The ranks get the function itself, as from a cell: they need not find this package.
    cloudpickle.register_pickle_by_value(sys.modules[program.function.__module__])
    return program.function
