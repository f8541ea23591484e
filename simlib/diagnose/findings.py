"""What looked wrong without stopping a run: the registry of findings.

A sort of finding is one entry of `KINDS`: what it is called, the error that ``strict=True`` raises
for it, and how it is told from the `Evidence` that the ranks' logs and the matcher hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..model.errors import RaceError, SimlibError, UnfinishedError
from ..model.trace import Op
from ..model.words import ranks_in_words


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong that did not stop the run.

    Attributes
    ----------
    kind : str
        ``"unfinished"`` or ``"race"``.
    message : str
    sites : dict of int to Site
    run : Run or None
        Of a race that ``simulate(seed=...)`` proved: the run that came out differently.
    """

    kind: str
    message: str
    sites: dict
    run: object = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class Evidence(NamedTuple):
    """What was left over, or raced, in a run that ended well; all empty in most.

    Attributes
    ----------
    unfinished : list of Op
        Sends never received, and receives whose message never came.
    absent : list of (dict, tuple of int)
        Collectives that some member never called: ``{rank: Op}`` of those who did, and who did not.
    never_waited : list of Op
        Requests that the learner got, and neither waited for nor saw done.
    touched : list of (str, Op, Op or None, Site)
        Requests whose buffers were touched before their wait: see `OpLogReader.races`.
    """

    unfinished: list
    absent: list
    never_waited: list
    touched: list


@dataclass(frozen=True, slots=True)
class FindingKind:
    """One sort of finding.

    Attributes
    ----------
    name : str
        `Finding.kind`.
    error : type
        What ``strict=True`` raises for it.
    tell : callable
        `Evidence` -> pairs of an `Op` and what is wrong with it, in words.
    """

    name: str
    error: type[SimlibError]
    tell: Callable[[Evidence], list[tuple[Op, str]]]


def _unfinished(evidence: Evidence) -> list[tuple[Op, str]]:
    """Messages nobody received, calls some ranks left out, requests nobody waited for."""
    told = []
    for op in evidence.unfinished:
        what = "was never received" if op.kind == "send" else "never got a message"
        told.append((op, what))
    for arrived, missing in evidence.absent:
        words = f"was never called by {ranks_in_words(missing)}"
        told += [(op, words) for op in arrived.values()]
    known = {(op.rank, op.seq) for op, _ in told}
    for op in evidence.never_waited:
        if (op.rank, op.seq) not in known:
            advice = "until wait() has returned its buffer is not safe to use"
            told.append((op, f"was never waited for: {advice}"))
    return told


def _races(evidence: Evidence) -> list[tuple[Op, str]]:
    """Buffers that were touched while a request on them was open."""
    told = []
    for how, op, other, site in evidence.touched:
        if how == "overlap":
            what = (
                f"uses memory of {other.call} ({other.site.place}), which is still open: "
                "wait for that first, or use another buffer"
            )
        elif op.kind == "send":
            what = (
                f"has its buffer written before wait ({site.place}): the old or the new values "
                "may travel"
            )
        else:
            what = (
                f"has its buffer written before wait ({site.place}): the result may overwrite "
                "that, or be overwritten"
            )
        told.append((op, what))
    return told


UNFINISHED = FindingKind("unfinished", UnfinishedError, _unfinished)
RACE = FindingKind("race", RaceError, _races)
KINDS = (UNFINISHED, RACE)
"""All sorts of findings, in the order in which a run lists them."""


def found_in(evidence: Evidence) -> list[Finding]:
    """The findings of a run."""
    return [one for kind in KINDS for one in _folded(kind.name, kind.tell(evidence))]


def _folded(kind: str, told: list[tuple[Op, str]]) -> list[Finding]:
    """One finding for all ranks of whom the same is told at the same line."""
    alike: dict[tuple, list[Op]] = {}
    for op, what in told:
        alike.setdefault((op.kind, op.site.file, op.site.lineno, what), []).append(op)
    found = []
    for (*_, what), ops in alike.items():
        ranks = sorted({op.rank for op in ops})
        call = ops[0].call if len(ranks) == 1 else ops[0].call.partition("(")[0]
        message = f"{ranks_in_words(ranks)}: {call} ({ops[0].site.place}) {what}"
        found.append(Finding(kind, message, {op.rank: op.site for op in ops}))
    return found


def as_error(finding: Finding) -> SimlibError:
    """A finding as the error that ``strict=True`` raises."""
    (error,) = (kind.error for kind in KINDS if kind.name == finding.kind)
    return error(finding.message, finding.sites)
