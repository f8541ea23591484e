"""`check`: call an answer on worlds of several sizes and say what is wrong, or that it is right.

`measure` calls it likewise, and says what it gives.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..diagnose.findings import KINDS, UNFINISHED
from ..engines.processes.real_run import run as run_on_processes
from ..model.errors import DeadlockError, MismatchError, RankError, SimlibError, StuckError
from ..record.safe_values import Exchanged
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
from .rules import Rule
from .run_answer import NO_RESULT, WORLDS, World, changed_in_place, run_answer
from .verdict import NOT_WRITTEN, RIGHT, WRONG, Verdict, values_are_right

if TYPE_CHECKING:
    from .bounds import Fits, Timed

LONG = 240
"""Letters of a rank's lists beyond which a verdict shows only where they first differ."""
TIMEOUT_S = 5
"""How long a world may make no progress, by default."""


def check(
    question: str,
    answer: Callable,
    inputs: Callable[[int, int], tuple] | Sequence[Callable],
    expected: Callable[..., list],
    *rules: Rule,
    points: int = 1,
    worlds: Sequence[int] = WORLDS,
    in_place: bool = False,
    mistakes: Mapping[str, Callable] | None = None,
    as_given: str | None = None,
    timed: Sequence[Timed] = (),
    memory: Sequence[Fits] = (),
    within: float = EXACT,
    timeout_s: float = TIMEOUT_S,
) -> Verdict:
    """Try an answer on several worlds, smallest first, and give a `Verdict`.

    Parameters
    ----------
    question : str
        Name of the question.
    answer : callable
        Called on every rank as ``answer(rank, world_size, *inputs(rank, world_size))``.
    inputs : callable or sequence of callable
        ``inputs(rank, world_size)`` gives the tuple of arguments for one rank. Of several, every
        world is tried with each: what holds for one draw only is refused.
    expected : callable
        ``expected(xs, ys, ...)`` gives the list, by rank, of what the answer must return; ``xs`` is
        the tuple, by rank, of its first inputs, ``ys`` of its second ones, and so on.
    *rules : Rule
        What the answer may send.
    points : int
        What a right answer is worth.
    worlds : sequence of int
        World sizes to try.
    in_place : bool
        True: the answer changes its first input, and that tensor is looked at. False: the value it
        returns is looked at, and its inputs must be left as they were.
    mistakes : dict of str to callable, optional
        A sentence about a known mistake, and the values it would give, as `expected` does. Or
        words instead: of the error in which the mistake ends.
    as_given : str, optional
        `fingerprint` of the broken program of a task to mend: as long as the answer has it, the
        verdict is "not written yet", with what that program does wrong.
    timed : sequence of Timed
        Simulations that an answer which is right in all worlds has to pass in time. The rules hold
        there, too.
    memory : sequence of Fits
        Simulations that such an answer has to pass without holding too much; likewise.
    within : float
        Share by which floats that are not in tensors may differ from what is expected.
    timeout_s : float
        A world without progress for so long is ended.

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
    verdict = verdict_on(
        question, answer, to_pass, expected, points, in_place, mistakes or {}, within
    )
    if verdict.status == WRONG and as_given and fingerprint(answer) == as_given:
        verdict.status, verdict.is_as_given = NOT_WRITTEN, True
    return verdict


def verdict_on(question, answer, worlds, expected, points, in_place, mistakes, within=EXACT):
    """The `Verdict` of `check` on an answer, whoever wrote it; ``worlds`` are `World` objects."""
    lines_of = {}  # those of the last world of each engine
    for world in worlds:
        world_size = world.world_size
        by_rank = [world.inputs(rank, world_size) for rank in range(world_size)]
        given = list(zip(*by_rank, strict=True))
        reason = call_complaint(answer, by_rank[0])
        if reason:
            return Verdict(question, points, WRONG, reason, world_size)
        try:
            run, after = run_answer(answer, by_rank, world.start)
        except SimlibError as error:
            status, reason, lines = failure(error)
            reason += mistake_of_an_error(reason, mistakes)
            return Verdict(question, points, status, reason, world_size, lines, error.run)
        want = expected(*given)
        reason, lines = complaint(run, after, given, want, world.rules, in_place, mistakes, within)
        if reason:
            return Verdict(question, points, WRONG, reason, world_size, lines, run)
        lines_of[world.start] = tally_lines(run, given, world.rules)
    real = {str(world.world_size): None for world in worlds if world.start is worlds[0].start}
    reason = f"Every rank has the expected value at world sizes {', '.join(real)}."
    return Verdict(question, points, RIGHT, reason, world_size, sum(lines_of.values(), []), run)


def measure(
    answer: Callable,
    inputs: Callable[[int, int], tuple],
    worlds: Sequence[int] = WORLDS,
    in_place: bool = False,
    timeout_s: float = 20,
    start: Callable | None = None,
) -> str:
    """What an answer gives, as plain lines of text: values, messages and bytes of every world.

    No verdict is given: hidden checks print this, and the grader compares it elsewhere. With
    ``start=Timed(...).start(timeout_s)`` it is simulated, and its virtual time is printed, too.
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


def tally_lines(run, given, rules):
    """What the rules counted in a run, a line for each; in a simulation, what only it can tell."""
    if run.engine == "simulated":
        return [f"at world size {run.world_size}: {rules[-1].tally(run, given)}"]
    tallies = [rule.tally(run, given) for rule in rules]
    return [f"at world size {run.world_size}: {text}" for text in tallies if text]


def fingerprint(function):
    """Eight letters that stay the same while the text of a function does; spaces do not count."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # typed in by hand; no function
        return ""
    return f"{zlib.crc32(''.join(text.split()).encode()):08x}"


def mistake_of_an_error(reason, mistakes):
    """What to add to what is said of an error: the sentence of a mistake known by words in it."""
    words = {text: seen for text, seen in mistakes.items() if isinstance(seen, str)}
    known = next((text for text, seen in words.items() if seen in reason), None)
    return f"{'.' * (not reason.endswith('.'))} {known}" if known else ""


def call_complaint(answer, inputs):
    """A sentence where the answer cannot be called with these inputs, else None."""
    try:
        inspect.signature(answer).bind(0, 1, *inputs)
    except TypeError as error:
        if not callable(answer):
            return "The answer is not callable: it must be a function."
        names = ", ".join(["rank", "world_size", "x", "..."][: 2 + min(2, len(inputs))])
        name = getattr(answer, "__name__", "it")
        return (
            f"TypeError: {error}. simlib calls it as {name}({names}), with "
            f"{2 + len(inputs)} arguments: leave the first line as it is in the stub."
        )
    except ValueError:
        pass  # a builtin whose parameters nobody knows: the call itself will tell
    return None


def complaint(run, after, given, want, rules, in_place, mistakes, within=EXACT):
    """``(sentence, lines)`` about a run that ended; ``(None, [])`` where nothing is wrong."""
    first = rule_complaint(run, given, [rule for rule in rules if rule.before_values])
    # What the engine has found explains a wrong value better than a guess, and a right one is luck.
    first = first or found_by_the_engine(run)
    if first:
        return first, []
    reason, lines = value_complaint(run, after, given, want, rules, in_place, mistakes, within)
    if reason:
        return reason, lines
    return rule_complaint(run, given, [rule for rule in rules if not rule.before_values]), []


def value_complaint(run, after, given, want, rules, in_place, mistakes, within=EXACT):
    """``(sentence, lines)`` about the values of a run; ``(None, [])`` where all are right."""
    got = [changed_in_place(mine) for mine in after] if in_place else run.results
    wrong = {r: text for r in range(len(want)) if (text := difference(got[r], want[r], within))}
    changed = None if in_place else input_complaint(run, given, after)
    if not wrong:
        return changed and f"{values_are_right(run)}, but not the input. {changed}", []
    dead = [rank for rank in wrong if after[rank] is None]
    if dead:
        return f"Rank {dead[0]} {NO_RESULT}: it died.", []
    rank, text = next(iter(wrong.items()))
    reason = f"Rank {rank} {text}" + "." * (not text.endswith("?"))
    known = known_mistake(got, given, mistakes)
    if known:
        reason += f" {known}"
    elif in_place and isinstance(after[rank][0], Exchanged):
        reason += (
            " The list holds new tensors, and those that stood in it did not change: write into "
            "them."
        )
    elif in_place and not any(map(difference, run.results, want)):
        what = (
            "tensors of the list themselves" if isinstance(got[rank], list) else "tensor x itself"
        )
        reason += f" The right value is returned, but the {what} must change: write into it."
    elif text.endswith("wrong value"):
        reason += f" {changed or cause(run, got, want, given, rules)}"
    return reason, [rank_line(r, got[r], want[r], r in wrong, within) for r in range(len(want))]


def cause(run, got, want, given, rules):
    """The likeliest cause of wrong values, as a sentence; what to do next where none fits."""
    has_to_communicate = run.world_size > 1 and any(rule.before_values for rule in rules)
    if has_to_communicate and not run.trace.ops:
        return "No rank communicates: a rank knows nothing but what it was given itself."
    found = likely_cause(got, want, given, bool(run.trace.ops))
    if found:
        return found
    if not run.trace.ops:
        return "No usual mistake fits: compare what each rank has with what is expected."
    if run.world_size == 1:
        return (
            "No usual mistake fits, and in a world of 1 nothing comes from others: go through the "
            "formula by hand."
        )
    rank = next(rank for rank in range(len(want)) if difference(got[rank], want[rank]))
    return (
        f"No usual mistake fits: follow the values that reach rank {rank}. "
        "Print what it receives, step by step."
    )


def rank_line(rank, got, want, is_wrong, within=EXACT):
    """One rank's value in a wrong verdict."""
    if is_wrong and dtype_differs(got, want):
        return f"rank {rank}: got {describe(got)} of {dtype_name(got)}, expected {dtype_name(want)}"
    text = describe(got)
    if is_wrong:
        lists = isinstance(got, (list, tuple)) and isinstance(want, (list, tuple))
        expected = describe(want)
        if lists and len(text) + len(expected) > LONG:
            index, text, expected = first_different(got, want, within)
            return f"rank {rank}: first different at index {index}: got {text}, expected {expected}"
        return f"rank {rank}: got {text}, expected {expected}{first_unseen(got, want)}"
    return f"rank {rank}: right, {text if len(text) <= LONG else text[: LONG - 4] + ' ...'}"


def input_complaint(run, given, after):
    """A sentence where a rank changed its inputs, else None."""
    inputs = list(zip(*given, strict=True))
    for rank, (now, before) in enumerate(zip(after, inputs, strict=False)):
        if now is None or not difference(list(now), list(before)):  # None: the rank died
            continue
        others = inputs[:rank] + inputs[rank + 1 :]
        if receives_while_sending(run.trace.of_rank(rank)) and has_come(now, before, others):
            return (
                f"Rank {rank} changed the tensor it was given. Is x received into while it is "
                "being sent? Receive into a holder of its own."
            )
        return (
            f"Rank {rank} changed the tensor it was given: "
            "work on a copy (clone) and leave the input as it is."
        )
    return None


def has_come(now, before, others):
    """Whether an input that a rank changed now holds what another rank was given in its place."""
    changed = [index for index in range(len(now)) if difference(now[index], before[index])]
    return any(not difference(now[index], other[index]) for index in changed for other in others)


def receives_while_sending(ops):
    """Whether a rank posts a receive before it waits for a send, or the other way round."""
    return any(
        one.async_op and one.seq < other.seq and (one.wait_s is None or one.wait_s > other.post_s)
        for one in ops
        for other in ops
        if {one.kind, other.kind} == {"send", "recv"}
    )


def rule_complaint(run, given, rules):
    """A sentence about the first broken rule, else None."""
    broken = (rule.broken(run, given) for rule in rules)
    return next((sentence for sentence in broken if sentence), None)


def found_by_the_engine(run):
    """A sentence about a race, a lost message or an op that nobody waited for, else None."""
    for kind in reversed(KINDS):
        lost = lost_message(run) if kind is UNFINISHED else None  # the same in simpler words
        sentence = lost or finding(run, kind.name)
        if sentence:
            return sentence
    return None


def lost_message(run):
    """A sentence about a message that nobody received, else None."""
    lost = [message for message in run.trace.messages if message.recv is None]
    if not lost:
        return None
    lost = min(lost, key=lambda message: (message.src, message.send.seq))
    return f"Rank {lost.src} sends a message to rank {lost.dst} that nobody receives."


def finding(run, kind):
    """The sentence of the first finding of a kind, else None."""
    found = next((one for one in run.findings if one.kind == kind), None)
    return found and f"A finding, {found.kind}: {found.message}."


def failure(error):
    """``(status, sentence, lines)`` about a run that raised."""
    if isinstance(error, RankError):
        stubs = [rank for rank, text in sorted(error.tracebacks.items()) if is_stub(text)]
        if stubs:
            where = f"Rank {stubs[0]} in a world of {error.run.world_size}"
            return NOT_WRITTEN, f"{where} still reaches NotImplementedError.", []
    lines = [f"rank {rank}: {site}" for rank, site in sorted(error.sites.items())]
    if isinstance(error, StuckError):
        return WRONG, "A rank computes on and on and never returns: look at its loop.", lines
    said, *details = str(error).splitlines()
    if "parameter `tensor`" in said and "NoneType" in said:
        said += (
            ". A None was sent, or received into. Is it a .grad? It stays None where the tensor "
            "did not need a gradient (requires_grad_) before the forward pass."
        )
    if isinstance(error, DeadlockError):
        return WRONG, f"The ranks never finish: {said}.", [line.strip() for line in details]
    if isinstance(error, MismatchError):
        lines = [line.strip() for line in details]
    return WRONG, said[:1].upper() + said[1:], lines


def is_stub(traceback_text):
    """Whether a traceback ends in the NotImplementedError of a stub."""
    return traceback_text.strip().rpartition("\n")[2].startswith("NotImplementedError")
