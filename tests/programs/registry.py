"""How programs of the zoo are declared, and how the marks in their sources are read.

A class has programs of one kind; the default of ``n`` is on how many ranks a program runs. Lines of
a wrong program that must be blamed end in ``# <- rank 0``, ``# <- ranks 1, 2`` or
``# <- every rank``. Where one rank is named on several lines, any of them is right. Ranks that are
not named may be blamed or not: whether they had arrived is a matter of time. ``# <- two ranks``
stands where any two or more must be blamed, whoever came first.
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
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass
class Program:
    """A rank function and what has to be said of it; ``kind`` is None for a right one."""

    function: object
    timeout_s: float
    kind: str | None = None

    def __post_init__(self):
        self.name = self.function.__name__
        self.ranks = self.function.__defaults__[-1]
        self.file = inspect.getsourcefile(self.function)

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


def wrong(kind, timeout_s=20):
    """A class of wrong programs; ``timeout_s`` only ends one where its diagnosis is missed."""
    return lambda programs: _add(WRONG, programs, timeout_s, kind)


def right(programs):
    """A class of right programs."""
    return _add(RIGHT, programs, 60)


def _add(table, programs, *about):
    # The ranks get the functions themselves, as from a cell: they need not find this package.
    cloudpickle.register_pickle_by_value(sys.modules[programs.__module__])
    for name, function in vars(programs).items():
        if inspect.isfunction(function):
            assert name not in WRONG and name not in RIGHT, f"two programs are called {name}"
            table[name] = Program(function, *about)


def wait_all(requests):
    """Wait for each of these requests."""
    for request in requests:
        request.wait()
