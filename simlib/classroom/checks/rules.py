"""Rules on the messages that an answer may send.

Each rule reads the trace of a run and names the rank that broke it. A bound is a function of the
ranks' inputs. Each argument of the bound is a tuple with one input of all ranks, by rank. For an
answer ``f(rank, world_size, x)``, the bound is ``bound(xs)``, and ``len(xs)`` is the world size.
`simulated` has bounds on the time and the memory of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...core.draw.text import count
from ..parts import TIME, TRAFFIC, VALUE
from .verdict import values_are_right

if TYPE_CHECKING:
    from ...core.model.trace import Message, Op, Trace


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes
    ----------
    broken : callable
        ``broken(run, given)`` returns a sentence, or None if the run keeps the rule.
    tally : callable
        ``tally(run, given)`` returns the count and its bound as text, or None.
    before_values : bool
        Whether the rule is checked before the values.
    part : str
        An answer that breaks the rule loses the points of this part, if the question has this part.
    """

    broken: Callable
    tally: Callable = lambda run, given: None
    before_values: bool = False
    part: str = VALUE


def only(*kinds: str) -> Rule:
    """The answer may call only these ops. ``only("send", "recv")`` also allows isend and irecv."""
    allowed = ", ".join([*kinds, *("i" + kind for kind in kinds if kind in ("send", "recv"))])

    def broken(run, given):
        other = next((op for op in by_rank(run.trace) if op.kind not in kinds), None)
        if other is None:
            return None
        place = f" ({other.site.place}{remark(other)})" if other.site.lineno else ""
        return f"Rank {other.rank} calls {other.kind}{place}: this question allows only {allowed}."

    return Rule(broken, before_values=True)


def remark(op: Op) -> str:
    """A remark for learners who called an object collective; else empty."""
    of_objects = not op.is_p2p and "_object" in op.site.line_text
    return "; a ..._object function calls two collectives" if of_objects else ""


def are_enough(most: int) -> str:
    """A bound as the end of a clause: "1 is enough", "1,200 are enough"."""
    return f"{most:,} {'is' if most == 1 else 'are'} enough"


def by_rank(trace: Trace) -> list[Op]:
    """The ops of rank 0, then of rank 1, and so on. The order in time would differ between runs."""
    return sorted(trace.ops, key=lambda op: (op.rank, op.seq))


def somebody_sends() -> Rule:
    """At least one rank must communicate, in each world of several ranks.

    An answer that gives right values without communication has looked them up in a table.

    Every question whose values depend on other ranks' inputs needs this rule.
    """

    def broken(run, given):
        if run.world_size == 1 or run.trace.ops:
            return None
        return (
            f"{values_are_right(run)}, but no rank communicates. The values of other ranks "
            "come from a table, and would be wrong with other inputs."
        )

    return Rule(broken)


def messages(bound: Callable[..., int], hint: str = "") -> Rule:
    """The whole world sends at most `bound` point-to-point messages."""
    return total(lambda run: run.messages, bound, "message", hint)


def nbytes(bound: Callable[..., int], hint: str = "") -> Rule:
    """The whole world sends at most `bound` bytes point-to-point."""
    return total(lambda run: run.bytes_sent, bound, "byte", hint)


def nbytes_of_a_rank(bound: Callable[..., int], hint: str = "") -> Rule:
    """No rank is a bottleneck: each rank sends and receives at most `bound` bytes
    point-to-point."""

    def busiest(run):
        """The largest number, its rank, and whether the rank sends or receives."""
        sent, received = run.traffic.sum(axis=1).tolist(), run.traffic.sum(axis=0).tolist()
        word, each = ("sends", sent) if max(sent) >= max(received) else ("receives", received)
        return max(each), each.index(max(each)), word

    def said(run, most):
        number, rank, word = busiest(run)
        return f"rank {rank} {word} {count(number, 'byte')} where {are_enough(most)} for any rank"

    def counted(run):
        number, _, word = busiest(run)
        return f"the busiest rank {word} {count(number, 'byte')}"

    return at_most(bound, lambda run: busiest(run)[0], said, counted, hint)


def total(
    numbers: Callable[..., list[int]], bound: Callable[..., int], noun: str, hint: str
) -> Rule:
    """A rule on a number that is added up over the ranks."""

    def said(run, most):
        by_rank = ", ".join(map(str, numbers(run)))
        sent = count(sum(numbers(run)), noun)
        return f"the ranks send {sent} where {are_enough(most)} (by rank: {by_rank})"

    def counted(run):
        return f"{count(sum(numbers(run)), noun)} sent"

    return at_most(bound, lambda run: sum(numbers(run)), said, counted, hint)


def at_most(
    bound: Callable[..., int],
    number_of: Callable,
    said: Callable,
    counted: Callable,
    hint: str | Callable,
    part: str = TRAFFIC,
) -> Rule:
    """A rule that a number of a run is at most a bound.

    Parameters
    ----------
    bound : callable
        The bound, as a function of the ranks' inputs.
    number_of : callable
        ``number_of(run)`` returns the number.
    said : callable
        ``said(run, most)`` returns a clause about a run that breaks the rule.
    counted : callable
        ``counted(run)`` returns the number in words.
    hint : str or callable
        The hint for a run that breaks the rule: a sentence, or a function ``hint(run, given,
        most)`` that returns the sentence.
    part : str
    """

    def broken(run, given):
        most = bound(*given)
        if number_of(run) <= most:
            return None
        then = hint(run, given, most) if callable(hint) else hint
        return f"{values_are_right(run)}, but {said(run, most)}. {then}".rstrip()

    def tally(run, given):
        return f"{counted(run)} (at most {bound(*given):,})"

    return Rule(broken, tally, part=part)


def rounds(bound: Callable[..., int], hint: str = "") -> Rule:
    """The last message must end in round `bound` at the latest.

    A message takes one round, and a rank sends one message at a time. A message can start when its
    sender has finished all messages that it sent or received before.
    """

    def said(run, most):
        return (
            f"the messages take {count(rounds_of(run.trace), 'round')} where {are_enough(most)}; "
            f"the busiest rank sends {count(max(run.messages), 'message')}"
        )

    def counted(run):
        return f"{count(rounds_of(run.trace), 'round')} of messages"

    return at_most(bound, lambda run: rounds_of(run.trace), said, counted, hint, TIME)


def rounds_of(trace: Trace) -> int:
    """The number of rounds that the messages of a trace take; see `rounds`.

    **Cost** O(m^2) for m messages.
    """
    done: list[tuple[Message, int]] = []  # (message, the round it ends in), in order of posting
    for message in trace.messages:
        rank, start = message.src, message.send.post_s
        before = [
            number
            for other, number in done
            if other.src == rank or (other.dst == rank and received_by(other, start))
        ]
        done.append((message, 1 + max(before, default=0)))
    return max((number for _, number in done), default=0)


def received_by(message: Message, time_s: float) -> bool:
    """Whether a message's receive had ended at a time."""
    received = message.recv
    return received is not None and received.end_s is not None and received.end_s <= time_s


def sends_to(
    allowed: Callable[[int, int], Collection[int]], hint: str = "", turned: str = ""
) -> Rule:
    """A rank may send only to the ranks in ``allowed(rank, world_size)``.

    If a rank sends to only one rank, and may not send to it, ``turned`` replaces ``hint``.
    """

    def broken(run, given):
        for op in by_rank(run.trace):
            if op.kind == "send" and op.peer not in allowed(op.rank, run.world_size):
                said = f"{values_are_right(run)}, but rank {op.rank} sends to rank {op.peer}"
                if turned and {a.peer for a in run.trace if is_send_of(op.rank, a)} == {op.peer}:
                    return f"{said}. {turned}"
                return f"{said}, which is not one of its neighbours here. {hint}".rstrip()
        return None

    return Rule(broken, part=TRAFFIC)


def is_send_of(rank: int, op: Op) -> bool:
    """Whether an op is a send of this rank."""
    return op.rank == rank and op.kind == "send"


def collectives(bound: Callable[..., int], hint: str = "") -> Rule:
    """At most `bound` collectives take place."""

    def number_of(run):
        return len(run.trace.collectives)

    def said(run, most):
        take = "takes" if number_of(run) == 1 else "take"
        why = next(filter(None, map(remark, run.trace)), "")
        return f"{counted(run)} {take} place where {most} would be enough{why}"

    def counted(run):
        return count(number_of(run), "collective")

    return at_most(bound, number_of, said, counted, hint)


def collective_nbytes(bound: Callable[..., int], hint: str = "") -> Rule:
    """No rank contributes more than `bound` bytes to a collective."""

    def largest(run):
        return max((c.nbytes for c in run.trace.collectives), default=0)

    def said(run, most):
        brings = count(largest(run), "byte")
        return f"a rank brings {brings} into a collective where {are_enough(most)}"

    def counted(run):
        return f"{count(largest(run), 'byte')} brought into a collective by a rank"

    def hint_on(run, given, most):
        found = largest(run)
        is_wide = any(op.nbytes == found and op.dtype == "float64" for op in run.trace)
        passed = {one.dtype for values in given for one in values if isinstance(one, torch.Tensor)}
        if is_wide and torch.float32 in passed and found <= 2 * most:  # nobody asked for float64
            return "A float64 has 8 bytes, a float32 has 4: use float32."
        return hint

    return at_most(bound, largest, said, counted, hint_on)


def brought(
    bound: Callable[..., list[int] | None], kind: str | None = None, hint: str = ""
) -> Rule:
    """Every rank contributes exactly these numbers of bytes to its collectives, in order.

    Parameters
    ----------
    bound : callable
        A function that returns the list of bytes, in the order of the calls. None allows any
        number of bytes.
    kind : str, optional
        The kind of collectives to check. By default all kinds are checked.
    hint : str
        The hint for a run that breaks the rule.
    """

    def of_rank(run, rank):
        ops = run.trace.of_rank(rank)
        return [op.nbytes for op in ops if not op.is_p2p and kind in (None, op.kind)]

    what = kind or "collective"

    def broken(run, given):
        wanted = bound(*given)
        for rank in range(run.world_size):
            found = of_rank(run, rank)
            if wanted is not None and found != wanted:
                return (
                    f"{values_are_right(run)}, but the {what}s of rank {rank} carry "
                    f"{in_a_row(found)} bytes where {in_a_row(wanted)} are expected. {hint}"
                ).rstrip()
        return None

    def tally(run, given):
        return f"rank 0's {what}s carry {in_a_row(of_rank(run, 0))} bytes"

    return Rule(broken, tally, part=TRAFFIC)


def in_a_row(numbers: Sequence[int]) -> str:
    """Numbers as words: ``"40, then 20, then 32"``."""
    return ", then ".join(f"{number:,}" for number in numbers) or "no"
