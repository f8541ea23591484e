"""What a test that failed on its ranks says: which ranks, where, with what values."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import NoReturn

import pytest

from ..core.model.errors import RankError, SimlibError
from ..core.model.words import ranks_in_words

MAX_ALIKE = 4
"""So many sorts of failures are told whole."""
HEAD = "Traceback (most recent call last):\n"
SKIPPED = ("Skipped", "SkipTest")
OUTCOMES = {*SKIPPED, "XFailed"}
"""Exceptions by which a test says that it has not failed."""


def raise_reported(error: SimlibError, folder: str) -> NoReturn:
    """Raise what ranks have ended with, in words for a report; a skip or an xfail as such.

    Parameters
    ----------
    error : SimlibError
    folder : str
        Where pytest was called: paths are told from there.
    """
    __tracebackhide__ = True
    if isinstance(error, RankError) and error.reports:
        failed = {
            rank: report for rank, report in error.reports.items() if report.type not in OUTCOMES
        }
        if not failed:
            raise _outcome(error) from None
        error.args = (_text(error, failed, folder),)
    raise error.with_traceback(None) from None


def _outcome(error):
    rank, report = min(error.reports.items())
    reason = f"{report.message} (rank {rank})"
    if report.type in SKIPPED:
        return pytest.skip.Exception(reason, _use_item_location=True)
    return pytest.xfail.Exception(reason)


def _text(error, failed, folder):
    alike = defaultdict(list)
    for rank, report in failed.items():
        alike[report.type, report.message, report.text].append(rank)
    parts = []
    for (kind, message, text), ranks in list(alike.items())[:MAX_ALIKE]:
        site = error.sites[ranks[0]]
        where = f" ({site.place})" if site.lineno else ""
        first = message.partition("\n")[0]
        head = f"{ranks_in_words(ranks)} raised {kind}{': ' if first else ''}{first}{where}"
        parts.append(f"{head}\n\n{_indented(text, folder)}")
    if len(alike) > MAX_ALIKE:
        parts.append(f"and {len(alike) - MAX_ALIKE} more ranks, each with other words")
    return "\n\n".join(parts)


def _indented(text, folder):
    """A traceback without its head, its files named from a folder."""
    text = text.removeprefix(HEAD).replace(f'File "{folder}{os.sep}', 'File "').rstrip()
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))
