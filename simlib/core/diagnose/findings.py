"""What looked wrong without stopping a run: the registry of findings.

A sort of finding is one entry of `KINDS`: what it is called, the error that ``strict=True`` raises
for it, and how it is told from the `Evidence` that the ranks' logs and the matcher hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..model.errors import NoValueError, RaceError, SharedNameError, SimlibError, UnfinishedError
from ..model.trace import Op, make_site
from ..model.words import ranks_in_words


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong that did not stop the run.

    Attributes
    ----------
    kind : str
        ``"unfinished"``, ``"race"``, ``"shared"`` or ``"no_value"``; ``"record"`` is what a record
        of a real job does not hold.
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


class Issue(NamedTuple):
    """What is wrong with one op.

    Attributes
    ----------
    op : Op
    what : str
    alike : str or None
        The same without what differs from one such op to the next; None where nothing does.
    """

    op: Op
    what: str
    alike: str | None = None


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
        `Evidence` -> a `Issue` for each op with which something is wrong.
    """

    name: str
    error: type[SimlibError]
    tell: Callable[[Evidence], list[Issue]]


def _unfinished(evidence: Evidence) -> list[Issue]:
    """Messages nobody received, calls some ranks left out, requests nobody waited for."""
    told = []
    for op in evidence.unfinished:
        what = "was never received" if op.kind == "send" else "never got a message"
        told.append(Issue(op, what))
    for arrived, missing in evidence.absent:
        words = f"was never called by {ranks_in_words(missing)}"
        told += [Issue(op, words) for op in arrived.values()]
    known = {(op.rank, op.seq) for op, *_ in told}
    for op in evidence.never_waited:
        if (op.rank, op.seq) not in known:
            advice = "until wait() has returned its buffer is not safe to use"
            told.append(Issue(op, f"was never waited for: {advice}"))
    return told


def _races(evidence: Evidence) -> list[Issue]:
    """Buffers that were touched while a request on them was open."""
    told = []
    for how, op, other, site in evidence.touched:
        alike = None
        if how == "overlap":
            what, alike = (
                f"uses memory of {call} ({other.site.place}), which is still open: "
                "wait for that first, or use another buffer"
                for call in (other.call, _name(other))
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
        told.append(Issue(op, what, alike))
    return told


def _name(op: Op) -> str:
    """What the op was called as, without its arguments."""
    return op.call.partition("(")[0]


UNFINISHED = FindingKind("unfinished", UnfinishedError, _unfinished)
RACE = FindingKind("race", RaceError, _races)
SHARED = FindingKind("shared", SharedNameError, lambda evidence: [])
"""Found by the ranks of a simulation, not from their ops: `of_shared_names`."""
NO_VALUE = FindingKind("no_value", NoValueError, lambda evidence: [])
"""The same: `of_values_asked`."""
KINDS = (UNFINISHED, RACE, SHARED, NO_VALUE)
"""All sorts of findings, in the order in which a run lists them."""


def found_in(evidence: Evidence) -> list[Finding]:
    """The findings of a run."""
    return [one for kind in KINDS for one in _folded(kind.name, kind.tell(evidence))]


def of_shared_names(set_by_many: Sequence[tuple], cells: Mapping[str, int]) -> list[Finding]:
    """The findings where simulated ranks have set a name of a module that they share.

    Parameters
    ----------
    set_by_many : list of (str, str, dict)
        Module, name and ``{rank: place}`` of those who have set it.
    cells : dict
        File name of a notebook cell -> its execution count.
    """
    found = []
    for module, name, places in set_by_many:
        sites = {rank: make_site(f"set {name}", place, cells) for rank, place in places.items()}
        message = (
            f"{ranks_in_words(sorted(sites))} set {module}.{name} ({sites[min(sites)].place}), "
            f"each to a value of its own: simulated ranks share the module {module}, so all find "
            "the last value, where each real rank has its own. Keep it in a module of your program"
        )
        found.append(Finding(SHARED.name, message, sites))
    return found


def of_values_asked(asked: Sequence[dict], cells: Mapping[str, int]) -> list[Finding]:
    """The findings where ranks without data asked for a value, and got NaN: one for each line.

    Parameters
    ----------
    asked : list of dict
        By rank, how often at each place.
    cells : dict
        File name of a notebook cell -> its execution count.
    """
    by_place: dict[tuple, dict[int, int]] = {}
    for rank, places in enumerate(asked):
        for place, times in places.items():
            by_place.setdefault(place, {})[rank] = times
    found = []
    for place, times in by_place.items():
        sites = {rank: make_site("asked for a value", place, cells) for rank in times}
        message = (
            f"{ranks_in_words(sorted(times))} asked for the value of a tensor "
            f"({sites[min(sites)].place}) {sum(times.values()):,} times: a simulation with "
            "data=False has no values, so they got NaN. A loss or a norm of this run says nothing"
        )
        found.append(Finding(NO_VALUE.name, message, sites))
    return found


def _folded(kind: str, told: list[Issue]) -> list[Finding]:
    """One finding for all ops of which the same is told at the same line, with their number."""
    same: dict[tuple, list[Issue]] = {}
    for one in told:
        site = one.op.site
        key = one.op.kind, site.file, site.lineno, one.alike or one.what
        same.setdefault(key, []).append(one)
    found = []
    for (*_, alike), those in same.items():
        op = those[0].op
        ranks = sorted({one.op.rank for one in those})
        what = those[0].what if len({one.what for one in those}) == 1 else alike
        calls = {one.op.call for one in those}
        call = calls.pop() if len(calls) == len(ranks) == 1 else _name(op)
        times = f" ({len(those):,} times)" if len(those) > len(ranks) else ""
        message = f"{ranks_in_words(ranks)}: {call} ({op.site.place}) {what}{times}"
        found.append(Finding(kind, message, {one.op.rank: one.op.site for one in those}))
    return found


def as_error(finding: Finding) -> SimlibError:
    """A finding as the error that ``strict=True`` raises."""
    (error,) = (kind.error for kind in KINDS if kind.name == finding.kind)
    return error(finding.message, finding.sites)
