"""`check`: call an answer on worlds of several sizes and say what is wrong, or that it is right.

`measure` calls an answer in the same way, and gives its results as text.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.engines.processes.real_run import run as run_on_processes
from ...core.model.errors import SimlibError
from ..parts import VALUE, parts_of
from .compare import EXACT, describe
from .complaints import (
    WORLDS,
    Values,
    World,
    changed_in_place,
    complaints,
    failure,
    parts_lost,
    run_answer,
    worst_of,
)
from .rules import Rule
from .verdict import NOT_WRITTEN, RIGHT, WRONG, Verdict

if TYPE_CHECKING:
    from ...core.results.run import Run
    from .simulated import Fits, Timed

TIMEOUT_S = 5
"""By default, a check ends a world that makes no progress for this many seconds."""


def check(
    question: str,
    answer: Callable,
    inputs: Callable[[int, int], tuple] | Sequence[Callable],
    expected: Callable[..., list],
    *rules: Rule,
    points: int | Mapping[str, int] = 1,
    worlds: Sequence[int] = WORLDS,
    in_place: bool = False,
    mistakes: Mapping[str, Callable] | None = None,
    as_given: str | None = None,
    timed: Sequence[Timed] = (),
    memory: Sequence[Fits] = (),
    within: float = EXACT,
    timeout_s: float = TIMEOUT_S,
) -> Verdict:
    """Try an answer on several worlds, smallest first, and return a `Verdict`.

    Parameters
    ----------
    question : str
        Name of the question.
    answer : callable
        The function to check, called on every rank as
        ``answer(rank, world_size, *inputs(rank, world_size))``.
    inputs : callable or sequence of callable
        ``inputs(rank, world_size)`` returns the tuple of arguments for one rank. If there are
        several such functions, simlib tries every world with each function. So an answer that is
        right only for some of the inputs fails.
    expected : callable
        ``expected(xs, ys, ...)`` returns a list with the right value for each rank. The tuple
        ``xs`` contains the first input of each rank, the tuple ``ys`` contains the second input of
        each rank, and so on.
    *rules : Rule
        Rules on the messages that the answer may send.
    points : int or dict of str to int
        Points for a right answer, or points for its parts, such as ``{"value": 2, "traffic": 1}``.
        An answer that breaks a rule on ``"traffic"``, ``"time"`` (`Timed`) or ``"memory"`` (`Fits`)
        loses that part, or all points if the question has no such part.
    worlds : sequence of int
        The world sizes on which simlib tries the answer.
    in_place : bool
        If True, the answer changes its first input, and the check compares that tensor. If False,
        the check compares the returned value, and the answer must not change its inputs.
    mistakes : dict of str to callable, optional
        For each known mistake, a sentence about the mistake, and a function that returns the values
        which the mistake produces. The function has the arguments of `expected`. If the mistake
        raises an error, pass words of the error's message instead of the function.
    as_given : str, optional
        In a task to fix a broken program: the `fingerprint` of that program. While the answer has
        the same fingerprint, the verdict is "not written yet" and explains the program's mistake.
    timed : sequence of Timed
        Simulations that must end within a virtual time. simlib runs them if the answer is right in
        all worlds. The rules apply in these simulations, too.
    memory : sequence of Fits
        Simulations in which the answer must not use too much memory. simlib runs them if the answer
        is right in all worlds. The rules apply in these simulations, too.
    within : float
        The largest allowed error of floats outside tensors, as a share of the expected value.
    timeout_s : float
        The check ends a world that makes no progress for this many seconds.

    Returns
    -------
    Verdict
    """
    real = functools.partial(run_on_processes, timeout_s=timeout_s)
    draws = [inputs] if callable(inputs) else inputs
    to_pass = [World(size, draw, real, rules) for size in worlds for draw in draws]
    to_pass += [
        World(one.world_size, one.inputs, one.start(timeout_s), (*rules, one.rule))
        for one in (*timed, *memory)
    ]
    values = Values(in_place, mistakes or {}, within)
    verdict = verdict_on(question, answer, to_pass, expected, points, values)
    if verdict.status == WRONG and as_given and fingerprint(answer) == as_given:
        verdict.status, verdict.is_as_given = NOT_WRITTEN, True
    return verdict


def verdict_on(
    question: str,
    answer: Callable,
    worlds: Sequence[World],
    expected: Callable,
    points: int | Mapping[str, int],
    values: Values,
) -> Verdict:
    """The `Verdict` of `check` on an answer. ``worlds`` are `World` objects."""
    parts, partly = parts_of(points), None
    reasons: dict[str, str] = {}  # by lost part, for the first world that loses it
    lines_of = {}  # the lines of the last world of each engine
    for world in worlds:
        world_size = world.world_size
        by_rank = [world.inputs(rank, world_size) for rank in range(world_size)]
        given = list(zip(*by_rank, strict=True))
        reason = call_complaint(answer, by_rank[0])
        if reason:
            return Verdict(question, parts, WRONG, reason, world_size)
        try:
            run, after = run_answer(answer, by_rank, world.start)
        except SimlibError as error:
            status, reason, lines = failure(error)
            reason += mistake_of_an_error(reason, values.mistakes)
            return Verdict(question, parts, status, reason, world_size, lines, error.run)
        want = expected(*given)
        found = complaints(run, after, given, want, world.rules, values)
        if found:
            told = worst_of(found, parts)
            verdict = Verdict(question, parts, WRONG, told.reason, world_size, told.lines, run)
            if VALUE in parts_lost(found, parts):
                return verdict
            partly = partly or verdict
            for one in found:
                reasons.setdefault(one.part, one.reason)
        lines_of[world.start] = tally_lines(run, given, world.rules)
    if partly:
        partly.lost = sorted(reasons)
        more = [reason for reason in reasons.values() if reason != partly.reason]
        partly.lines = [*partly.lines, *(f"Also: {reason}" for reason in more)]
        return partly
    real = {str(world.world_size): None for world in worlds if world.start is worlds[0].start}
    reason = f"Every rank has the expected value at world sizes {', '.join(real)}."
    return Verdict(question, parts, RIGHT, reason, world_size, sum(lines_of.values(), []), run)


def measure(
    answer: Callable,
    inputs: Callable[[int, int], tuple],
    worlds: Sequence[int] = WORLDS,
    in_place: bool = False,
    timeout_s: float = 20,
    start: Callable | None = None,
) -> str:
    """Return the results of an answer as text: the values, messages and bytes of every world.

    `measure` gives no verdict. Hidden checks print this text, and the grader compares the text
    elsewhere. With ``start=Timed(...).start(timeout_s)`` simlib simulates the answer, and the text
    also contains the virtual time.
    """
    start = start or functools.partial(run_on_processes, timeout_s=timeout_s)
    lines = []
    for world_size in worlds:
        by_rank = [inputs(rank, world_size) for rank in range(world_size)]
        run, after = run_answer(answer, by_rank, start)
        got = [changed_in_place(mine) for mine in after] if in_place else run.results
        lines.append(f"{world_size}: {'; '.join(describe(value) for value in got)}")
        lines.append(f"{world_size}: messages {run.messages}, bytes {run.bytes_sent}")
        if run.engine == "simulated":
            lines.append(f"{world_size}: virtual time {run.time_s:.9f} s")
    return "\n".join(lines)


def tally_lines(run: Run, given: Sequence, rules: Sequence[Rule]) -> list[str]:
    """A line for each count of a rule in a run. For a simulation, only the counts that runs
    lack."""
    if run.engine == "simulated":
        return [f"at world size {run.world_size}: {rules[-1].tally(run, given)}"]
    tallies = [rule.tally(run, given) for rule in rules]
    return [f"at world size {run.world_size}: {text}" for text in tallies if text]


def fingerprint(function: Any) -> str:
    """Eight letters that change if the text of a function changes. Spaces do not count."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # typed in by hand; no function
        return ""
    return f"{zlib.crc32(''.join(text.split()).encode()):08x}"


def mistake_of_an_error(reason: str, mistakes: Mapping[str, Any]) -> str:
    """The sentence about a known mistake, if the words of the mistake are in an error's message."""
    words = {text: seen for text, seen in mistakes.items() if isinstance(seen, str)}
    known = next((text for text, seen in words.items() if seen in reason), None)
    return f"{'.' * (not reason.endswith('.'))} {known}" if known else ""


def call_complaint(answer: Callable, inputs: Sequence) -> str | None:
    """A sentence if the answer cannot be called with these inputs, else None."""
    try:
        inspect.signature(answer).bind(0, 1, *inputs)
    except TypeError as error:
        if not callable(answer):
            return "The answer is not callable: it must be a function."
        names = ", ".join(["rank", "world_size", "x", "..."][: 2 + min(2, len(inputs))])
        name = getattr(answer, "__name__", "it")
        return (
            f"TypeError: {error}. simlib calls it as {name}({names}), with "
            f"{2 + len(inputs)} arguments: leave the first line as you found it."
        )
    except ValueError:
        pass  # a builtin whose parameters nobody knows: the call itself will tell
    return None
