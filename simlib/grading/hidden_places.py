"""What students must not see though it lies in a folder that the sandbox shows, such as /usr.

Containers have their checkout below /usr, say. Such a place is covered by an empty folder, and what
must be seen in it, as the checkout's own Python, is shown again.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from pathlib import Path

from ..model.package import ROOT

HIDDEN = ContextVar("hidden", default=())
"""Of this grading: submissions, report, sources of exercises, tables."""
MATERIAL = ("authoring/exercises", "exercises/checks")
"""What makes the folder around simlib a checkout, with solutions and hidden cells."""


class CannotHide(Exception):
    """A place that the sandbox shows as a whole; the message says what to do."""


@contextlib.contextmanager
def hiding(*places):
    """Hide these places, too, from what is run meanwhile; None is none."""
    token = HIDDEN.set(tuple(Path(one).absolute() for one in places if one))
    try:
        yield
    finally:
        HIDDEN.reset(token)


def hidden_places():
    """What is to be hidden and exists, with links resolved."""
    found = list(HIDDEN.get())
    if any((ROOT / one).is_dir() for one in MATERIAL):
        found.append(ROOT)
    return [one.resolve() for one in found if one.exists()]


def covers(shown):
    """``(words, last)`` for bwrap, to cover what is hidden.

    Parameters
    ----------
    shown : dict of str to str
        Where folders are seen inside: which of the machine's they are.

    Returns
    -------
    words : list of str
        They come after those that show the folders.
    last : list of str
        They come after all others.

    Raises
    ------
    CannotHide
        A place is itself a folder that must be shown.
    """
    covered = {}
    for place in hidden_places():
        for seen, source in shown.items():
            whole = Path(source).resolve()
            if place == whole:
                raise CannotHide(
                    f"{place} would be seen by what students wrote, as Python or the system is "
                    "there: move what you grade, and the report, to a folder of their own"
                )
            if whole in place.parents:
                covered[Path(seen) / place.relative_to(whole)] = place
    again = {
        Path(seen): source
        for seen, source in shown.items()
        if any(place in Path(seen).parents for place in covered)
    }
    words, last = [], []
    for path in sorted({**covered, **again}, key=lambda one: len(one.parts)):
        if path in again:
            words += ["--perms", "0755", "--dir", str(path), "--ro-bind", again[path], str(path)]
        elif covered[path].is_dir():
            words += ["--perms", "0755", "--tmpfs", str(path)]
            last += ["--remount-ro", str(path)]
        else:
            words += ["--ro-bind", "/dev/null", str(path)]
    return words, last
