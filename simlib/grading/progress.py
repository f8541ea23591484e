"""How far the grading is: a bar on a terminal, a line for each notebook elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from .csv_tables import one_line

TICK_S = 1.0
LONGEST_NAME = 30
"""Characters of a student's name in the bar."""


@contextlib.contextmanager
def progress(total):
    """A function to call with each `Graded`; it tells on stderr how far the grading is.

    Parameters
    ----------
    total : int
        How many there will be.
    """
    with bar(total) if sys.stderr.isatty() else lines(total) as tell:
        yield tell


@contextlib.contextmanager
def bar(total):
    """A bar that shows at once; a thread moves its clock, as the first notebook takes a while."""
    from tqdm import tqdm

    columns, rows = size_of_terminal()
    shape = "{n} of {total} |{bar}| {elapsed}{postfix}"
    with tqdm(total=total, file=sys.stderr, ncols=columns, nrows=rows, bar_format=shape) as shown:
        shown.set_postfix_str("the solution is run first")
        done = threading.Event()

        def tick():
            while not done.wait(TICK_S):
                shown.refresh()

        def tell(one):
            shown.set_postfix_str(named(one)[:LONGEST_NAME], refresh=False)
            shown.update()
            shown.refresh()

        clock = threading.Thread(target=tick, daemon=True)
        clock.start()
        try:
            yield tell
        finally:
            done.set()
            clock.join()


def size_of_terminal():
    """Columns and lines of the terminal that the bar is on.

    One may say that it has none; tqdm would then show nothing.
    """
    try:
        columns, rows = os.get_terminal_size(sys.stderr.fileno())
    except OSError:
        columns, rows = 0, 0
    return columns or 80, rows or 24


@contextlib.contextmanager
def lines(total):
    """A plain line for each notebook."""
    count = 0

    def tell(one):
        nonlocal count
        count += 1
        print(f"{count} of {total}: {named(one)}", file=sys.stderr, flush=True)

    yield tell


def named(one):
    """Whose notebook it is, and which."""
    return one_line(f"{one.student} {one.exercise or one.file}")
