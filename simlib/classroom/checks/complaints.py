"""Run an answer in one world, and say what is wrong with its values and its messages."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ...core.diagnose.findings import KINDS, UNFINISHED
from ...core.engines.options import ByRank
from ...core.model.errors import DeadlockError, MismatchError, RankError, SimlibError, StuckError
from ...core.record.safe_pickle import Exchanged
from ..parts import NO_RESULT, VALUE
from .compare import (
    EXACT,
    describe,
    difference,
    dtype_differs,
    dtype_name,
    first_different,
    first_unseen,
    known_mistake,
    likely_cause,
)
from .verdict import NOT_WRITTEN, WRONG, values_are_right

if TYPE_CHECKING:
    from ...core.model.trace import Op
    from ...core.results.run import Run
    from .rules import Rule

WORLDS = (1, 2, 3, 4, 5)
"""By default, simlib tries an answer in worlds of these sizes."""


@dataclass(frozen=True)
class World:
    """One world in which simlib tries an answer, with its engine, its inputs, and its rules."""

    world_size: int
    inputs: Callable
    start: Callable
    rules: tuple


def run_answer(answer: Callable, by_rank: Sequence[tuple], start: Callable) -> tuple[Run, list]:
    """Run an answer on one rank per tuple of inputs. Returns the `Run`, and the inputs after it.

    ``start(function, world_size, args)`` runs the answer. A rank knows only its own inputs.

    Raises
    ------
    SimlibError
        The run failed, or a rank that is alive returned no result.
    """

    @functools.wraps(answer)
    def call_answer(rank, world_size, *mine):
        at_first = [list(one) if isinstance(one, list) else one for one in mine]
        returned = answer(rank, world_size, *mine)
        return returned, tuple(map(with_those_at_first, mine, at_first))

    try:
        run = start(call_answer, len(by_rank), ByRank(by_rank))
    except SimlibError as error:
        if error.run is not None:
            keep_returned(error.run)
        raise
    silent = [rank for rank, result in enumerate(run.results) if result is None]
    inputs = keep_returned(run)
    for rank in silent:
        if rank not in run.deaths:
            raise SimlibError(f"rank {rank} {NO_RESULT}: the run ended before it returned", run=run)
    return run, inputs


def with_those_at_first(now: Any, at_first: Any) -> Any:
    """An input after the call. If the answer replaced tensors of a list, use the old tensors."""
    if not isinstance(now, list) or not all(isinstance(one, torch.Tensor) for one in at_first):
        return now
    same = len(now) == len(at_first) and all(map(operator.is_, now, at_first))
    return now if same else Exchanged(now, at_first)


def changed_in_place(inputs: Sequence) -> Any:
    """The values to compare if an answer changes its first input. For a list, its old tensors.

    Other objects may refer to these old tensors, as a model refers to its gradients.
    """
    return inputs and getattr(inputs[0], "at_first", inputs[0])


def keep_returned(run: Run) -> list:
    """Keep in a run only the answer's own return values. Returns the inputs, by rank.

    Both are None for a rank that returned no result.
    """
    pairs = [result or (None, None) for result in run.results]
    run.results = [returned for returned, _ in pairs]
    return [inputs for _, inputs in pairs]


LONG = 240
"""If the text of a rank's lists is longer, a verdict shows only their first difference."""


@dataclass(frozen=True)
class Complaint:
    """One thing that is wrong in a run.

    Attributes
    ----------
    reason : str
        One or two sentences.
    lines : list of str
        Details, a line per rank.
    part : str
        The part of the question whose points are lost. If it is the value, all points are lost.
    """

    reason: str
    lines: list = field(default_factory=list)
    part: str = VALUE


@dataclass(frozen=True)
class Values:
    """How to compare the values of a question; see `check`."""

    in_place: bool
    mistakes: Mapping[str, Any]
    within: float = EXACT


def complaints(
    run: Run,
    after: list,
    given: Sequence,
    want: Sequence,
    rules: Sequence[Rule],
    values: Values,
) -> list[Complaint]:
    """The `Complaint` objects about a run. If values are wrong, the list has no other complaint."""
    first = broken_rules(run, given, [rule for rule in rules if rule.before_values])
    if first:
        return first
    # A finding of the engine explains a wrong value better than a guess. A right value is luck.
    found = found_by_the_engine(run)
    if found:
        return [Complaint(found)]
    reason, lines = value_complaint(run, after, given, want, rules, values)
    if reason:
        return [Complaint(reason, lines)]
    return broken_rules(run, given, [rule for rule in rules if not rule.before_values])


def parts_lost(found: Sequence[Complaint], parts: Mapping[str, int]) -> set[str]:
    """The parts whose points are lost. A part that the question does not have counts as the
    value."""
    return {one.part if one.part in parts else VALUE for one in found}


def worst_of(found: Sequence[Complaint], parts: Mapping[str, int]) -> Complaint:
    """The complaint to show: the first complaint that costs the value, else the first complaint."""
    return next((one for one in found if VALUE in parts_lost([one], parts)), found[0])


def value_complaint(
    run: Run,
    after: list,
    given: Sequence,
    want: Sequence,
    rules: Sequence[Rule],
    values: Values,
) -> tuple[str | None, list[str]]:
    """``(sentence, lines)`` about the values of a run, or ``(None, [])`` if all values are
    right."""
    in_place, within = values.in_place, values.within
    got = [changed_in_place(mine) for mine in after] if in_place else run.results
    wrong = {r: text for r in range(len(want)) if (text := difference(got[r], want[r], within))}
    changed = None if in_place else input_complaint(run, given, after)
    if not wrong:
        return changed and f"{values_are_right(run)}, but the input has changed. {changed}", []
    dead = [rank for rank in wrong if after[rank] is None]
    if dead:
        return f"Rank {dead[0]} {NO_RESULT}: it died.", []
    rank, text = next(iter(wrong.items()))
    reason = f"Rank {rank} {text}" + "." * (not text.endswith("?"))
    known = known_mistake(got, given, values.mistakes)
    if known:
        reason += f" {known}"
    elif in_place and isinstance(after[rank][0], Exchanged):
        reason += (
            " The list contains new tensors, and the tensors that were in it did not change: "
            "write into the old tensors."
        )
    elif in_place and not any(map(difference, run.results, want)):
        what, there = "tensor x itself", "it"
        if isinstance(got[rank], list):
            what, there = "tensors of the list themselves", "them"
        reason += f" The returned value is right, but the {what} must change: write into {there}."
    elif text.endswith("wrong value"):
        reason += f" {changed or cause(run, got, want, given, rules)}"
    return reason, [rank_line(r, got[r], want[r], r in wrong, within) for r in range(len(want))]


def cause(run: Run, got: Sequence, want: Sequence, given: Sequence, rules: Sequence[Rule]) -> str:
    """A sentence about the likeliest cause of wrong values, or else about what to do next."""
    has_to_communicate = run.world_size > 1 and any(rule.before_values for rule in rules)
    if has_to_communicate and not run.trace.ops:
        return "No rank communicates: without messages a rank knows only its own input."
    found = likely_cause(got, want, given, bool(run.trace.ops))
    if found:
        return found
    if not run.trace.ops:
        return "This is not a usual mistake: compare each rank's value with the expected one."
    if run.world_size == 1:
        return (
            "This is not a usual mistake. A world of 1 has no messages: compute the formula by "
            "hand."
        )
    rank = next(rank for rank in range(len(want)) if difference(got[rank], want[rank]))
    return f"This is not a usual mistake. Print what rank {rank} receives in each step."


def rank_line(rank: int, got: Any, want: Any, is_wrong: bool, within: float = EXACT) -> str:
    """The line about one rank's value in a verdict "wrong"."""
    if is_wrong and dtype_differs(got, want):
        return f"rank {rank}: got {describe(got)} of {dtype_name(got)}, expected {dtype_name(want)}"
    text = describe(got)
    if is_wrong:
        lists = isinstance(got, (list, tuple)) and isinstance(want, (list, tuple))
        expected = describe(want)
        if lists and len(text) + len(expected) > LONG:
            index, text, expected = first_different(got, want, within)
            return f"rank {rank}: element {index} differs: got {text}, expected {expected}"
        return f"rank {rank}: got {text}, expected {expected}{first_unseen(got, want)}"
    return f"rank {rank}: right, {text if len(text) <= LONG else text[: LONG - 4] + ' ...'}"


def input_complaint(run: Run, given: Sequence, after: Sequence) -> str | None:
    """A sentence if a rank changed its inputs, else None."""
    inputs = list(zip(*given, strict=True))
    for rank, (now, before) in enumerate(zip(after, inputs, strict=False)):
        if now is None or not difference(list(now), list(before)):  # None: the rank died
            continue
        others = inputs[:rank] + inputs[rank + 1 :]
        if receives_while_sending(run.trace.of_rank(rank)) and has_come(now, before, others):
            return (
                f"Rank {rank} changed the tensor it was given. Does the rank receive into x while "
                "it sends x? Receive into another tensor."
            )
        pairs = zip(now, before, strict=True)
        was = next(was for value, was in pairs if difference(value, was))
        kind, way = ("tensor", "clone") if has_tensor(was) else (type(was).__name__, "deepcopy")
        return (
            f"Rank {rank} changed the {kind} it was given: "
            f"work on a copy ({way}) and leave the input as it is."
        )
    return None


def has_tensor(value: object) -> bool:
    """Whether a value is a tensor, or contains one."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(has_tensor, value))
    return isinstance(value, torch.Tensor)


def has_come(now: Sequence, before: Sequence, others: Sequence[Sequence]) -> bool:
    """Whether an input that a rank changed now equals the same input of another rank."""
    changed = [index for index in range(len(now)) if difference(now[index], before[index])]
    return any(not difference(now[index], other[index]) for index in changed for other in others)


def receives_while_sending(ops: Sequence[Op]) -> bool:
    """Whether a rank posts a receive before it waits for a send, or a send before a receive."""
    return any(
        one.async_op and one.seq < other.seq and (one.wait_s is None or one.wait_s > other.post_s)
        for one in ops
        for other in ops
        if {one.kind, other.kind} == {"send", "recv"}
    )


def broken_rules(run: Run, given: Sequence, rules: Iterable[Rule]) -> list[Complaint]:
    """A `Complaint` for each broken rule, in the rules' order."""
    said = [(rule.broken(run, given), rule.part) for rule in rules]
    return [Complaint(sentence, part=part) for sentence, part in said if sentence]


def found_by_the_engine(run: Run) -> str | None:
    """A sentence about a race, a lost message or an op that no rank waited for, else None."""
    for kind in reversed(KINDS):
        lost = lost_message(run) if kind is UNFINISHED else None  # the same in simpler words
        sentence = lost or finding(run, kind.name)
        if sentence:
            return sentence
    return None


def lost_message(run: Run) -> str | None:
    """A sentence about a message that no rank received, else None."""
    unreceived = [message for message in run.trace.messages if message.recv is None]
    if not unreceived:
        return None
    lost = min(unreceived, key=lambda message: (message.src, message.send.seq))
    return f"Rank {lost.src} sends a message to rank {lost.dst} that nobody receives."


def finding(run: Run, kind: str) -> str | None:
    """The sentence of the first finding of a kind, else None."""
    found = next((one for one in run.findings if one.kind == kind), None)
    return f"simlib found a problem ({found.kind}): {found.message}." if found else None


def failure(error: SimlibError) -> tuple[str, str, list[str]]:
    """``(status, sentence, lines)`` about a run that raised an error."""
    if isinstance(error, RankError):
        stubs = [rank for rank, text in sorted(error.tracebacks.items()) if is_stub(text)]
        if stubs:
            where = f"Rank {stubs[0]} in a world of {error.run.world_size}"
            return NOT_WRITTEN, f"{where} still reaches NotImplementedError.", []
    lines = [f"rank {rank}: {site}" for rank, site in sorted(error.sites.items())]
    if isinstance(error, StuckError):
        return WRONG, "A rank computes without end and never returns: check its loop.", lines
    said, *details = str(error).splitlines()
    if "parameter `tensor`" in said and "NoneType" in said:
        said += (
            ". A rank sent None, or received into None. Is the None a .grad? A .grad stays None if "
            "the tensor did not need a gradient (requires_grad_) before the forward pass."
        )
    if isinstance(error, DeadlockError):
        return WRONG, f"The ranks never finish: {said}.", [line.strip() for line in details]
    if isinstance(error, MismatchError):
        lines = [line.strip() for line in details]
    return WRONG, said[:1].upper() + said[1:], lines


def is_stub(traceback_text: str) -> bool:
    """Whether a traceback ends in the NotImplementedError of a stub."""
    return traceback_text.strip().rpartition("\n")[2].startswith("NotImplementedError")
