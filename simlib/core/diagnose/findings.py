"""The registry of findings: faults that did not stop a run.

A kind of finding is one entry of `KINDS`: its name, the error that ``strict=True`` raises for it,
and a function that looks for it in the `Evidence`. The `Evidence` comes from the ranks' logs and
the matcher.
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
        ``"unfinished"``, ``"race"``, ``"shared"`` or ``"no_value"``. ``"record"`` says what is
        missing in the record of a real job.
    message : str
        The finding in words.
    sites : dict of int to Site
        For each rank that the finding concerns, its line of code.
    run : Run or None
        If ``simulate(seed=...)`` has proved a race, the run with the other result. Otherwise None.
    """

    kind: str
    message: str
    sites: dict
    run: object = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class Evidence(NamedTuple):
    """The faulty ops of a run that ended well. In most runs all lists are empty.

    Attributes
    ----------
    unfinished : list of Op
        Sends that no rank received, and receives whose message never came.
    absent : list of (dict, tuple of int)
        Collectives that some member never called: ``{rank: Op}`` of the ranks that called, and the
        ranks that did not.
    never_waited : list of Op
        Requests that the learner's code did not wait for and did not find to be done.
    touched : list of (str, Op, Op or None, Site)
        Requests whose buffers were touched before their wait: see `OpLogReader.races`.
    """

    unfinished: list
    absent: list
    never_waited: list
    touched: list


class Issue(NamedTuple):
    """One op that is wrong.

    Attributes
    ----------
    op : Op
    what : str
        The fault of the op, in words.
    alike : str or None
        The same words without the details that differ between such ops. None if no details differ.
    """

    op: Op
    what: str
    alike: str | None = None


@dataclass(frozen=True, slots=True)
class FindingKind:
    """One kind of finding.

    Attributes
    ----------
    name : str
        `Finding.kind`.
    error : type
        The error that ``strict=True`` raises for it.
    tell : callable
        A function that takes an `Evidence` and returns an `Issue` for each op that is wrong.
    """

    name: str
    error: type[SimlibError]
    tell: Callable[[Evidence], list[Issue]]


def _unfinished(evidence: Evidence) -> list[Issue]:
    """Messages that no rank received, calls that some ranks left out, requests without a wait."""
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
            advice = "call wait() on the request before you use the buffer again"
            told.append(Issue(op, f"has no wait(): {advice}"))
    return told


def _races(evidence: Evidence) -> list[Issue]:
    """Buffers that were touched while a request on them was open."""
    told = []
    for how, op, other, site in evidence.touched:
        alike = None
        if how == "overlap":
            what, alike = (
                f"uses memory that {call} ({other.site.place}) still uses: wait for that call "
                "first, or use another buffer"
                for call in (other.call, _name(other))
            )
        elif op.kind == "send":
            what = (
                f"was not complete when the rank wrote to the buffer ({site.place}): the rank may "
                "send the old or the new values"
            )
        else:
            what = (
                f"was not complete when the rank wrote to the buffer ({site.place}): the result or "
                "the written values may be lost"
            )
        told.append(Issue(op, what, alike))
    return told


def _name(op: Op) -> str:
    """The name of the function that the program called for the op, without arguments."""
    return op.call.partition("(")[0]


UNFINISHED = FindingKind("unfinished", UnfinishedError, _unfinished)
RACE = FindingKind("race", RaceError, _races)
SHARED = FindingKind("shared", SharedNameError, lambda evidence: [])
"""The ranks of a simulation report this finding. It is not in their ops: see `of_shared_names`."""
NO_VALUE = FindingKind("no_value", NoValueError, lambda evidence: [])
"""The ranks of a simulation report this finding: see `of_values_asked`."""
KINDS = (UNFINISHED, RACE, SHARED, NO_VALUE)
"""All kinds of findings, in the order in which a run lists them."""


def found_in(evidence: Evidence) -> list[Finding]:
    """The findings of a run."""
    return [one for kind in KINDS for one in _folded(kind.name, kind.tell(evidence))]


def of_shared_names(set_by_many: Sequence[tuple], cells: Mapping[str, int]) -> list[Finding]:
    """The findings about names of a shared module that several simulated ranks have set.

    Parameters
    ----------
    set_by_many : list of (str, str, dict)
        Module, name and ``{rank: place}`` of the ranks that have set it.
    cells : dict
        File name of a notebook cell -> its execution count.
    """
    found = []
    for module, name, places in set_by_many:
        sites = {rank: make_site(f"set {name}", place, cells) for rank, place in places.items()}
        message = (
            f"{ranks_in_words(sorted(sites))} set {module}.{name} ({sites[min(sites)].place}), "
            f"each to a different value. Simulated ranks share the module {module}, so all ranks "
            "read the value that was set last. Real ranks do not share it. Keep the value in a "
            "module of your program"
        )
        found.append(Finding(SHARED.name, message, sites))
    return found


def of_values_asked(asked: Sequence[dict], cells: Mapping[str, int]) -> list[Finding]:
    """A finding for each line at which ranks without data asked for a value and got NaN.

    Parameters
    ----------
    asked : list of dict
        For each rank, how often the rank asked at each place.
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
        often = sum(times.values())
        message = (
            f"{ranks_in_words(sorted(times))} asked for the value of a tensor "
            f"({sites[min(sites)].place}) {often:,} time{'s' * (often != 1)}: a simulation with "
            "data=False has no values, so the answer was NaN. A loss or a norm of this run means "
            "nothing"
        )
        found.append(Finding(NO_VALUE.name, message, sites))
    return found


def _folded(kind: str, told: list[Issue]) -> list[Finding]:
    """One finding for all ops with the same fault at the same line, with their number."""
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
    """The error that ``strict=True`` raises for a finding."""
    (error,) = (kind.error for kind in KINDS if kind.name == finding.kind)
    return error(finding.message, finding.sites)
