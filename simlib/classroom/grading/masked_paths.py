"""What students must not see though it lies in a folder that the sandbox shows, such as /usr.

Containers have their checkout below /usr, say. Such a place is covered by an empty folder, and what
must be seen in it, as the checkout's own Python, is shown again.
"""

from __future__ import annotations

import contextlib
import os
from contextvars import ContextVar
from pathlib import Path

from ...core.environment import GIVEN, ROOT

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
    found = [*HIDDEN.get(), GIVEN]
    if any((ROOT / one).is_dir() for one in MATERIAL):
        found.append(ROOT)
    return [one.resolve() for one in found if one.exists()]


def covered(shown):
    """``[(place inside, what is there instead)]`` that hide what is hidden, outer ones first.

    Instead is None for an empty folder, ``"/dev/null"`` for a file, and a folder of the machine
    that must be seen in what is covered.

    Parameters
    ----------
    shown : dict of str to str
        Where folders are seen inside: which of the machine's they are.

    Raises
    ------
    CannotHide
        A place is itself a folder that must be shown.
    """
    found = {}
    for place in hidden_places():
        for seen, source in shown.items():
            whole = Path(source).resolve()
            if place == whole:
                raise CannotHide(
                    f"{place} would be seen by what students wrote, as Python or the system is "
                    "there: move what you grade, and the report, to a folder of their own"
                )
            if whole in place.parents:
                instead = None if place.is_dir() else os.devnull
                found[Path(seen) / place.relative_to(whole)] = instead
    again = {
        Path(seen): source
        for seen, source in shown.items()
        if any(place in Path(seen).parents for place in found)
    }
    return sorted({**found, **again}.items(), key=lambda one: len(one[0].parts))


def covers(shown):
    """``(words, last)`` for bwrap, to cover what is hidden, see `covered`.

    Returns
    -------
    words : list of str
        They come after those that show the folders.
    last : list of str
        They come after all others.
    """
    words, last = [], []
    for path, instead in covered(shown):
        if instead is None:
            words += ["--perms", "0755", "--tmpfs", str(path)]
            last += ["--remount-ro", str(path)]
        elif instead == os.devnull:
            words += ["--ro-bind", instead, str(path)]
        else:
            words += ["--perms", "0755", "--dir", str(path), "--ro-bind", instead, str(path)]
    return words, last
