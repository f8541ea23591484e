"""An answer in one world: on real ranks, or on a modelled cluster where it has a bound to keep.

`Timed` and `Fits` say how long an answer may take there, and how much it may hold. Both are one
more simulation that an answer has to pass, on every machine with the same outcome.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..engines.host.request import ByRank
from ..engines.processes.real_run import run as run_on_processes
from ..engines.virtual.simulated_run import simulate
from ..model.cluster import Cluster
from ..model.errors import SimlibError
from ..model.words import seconds_text
from ..record.safe_values import Exchanged
from .compare import describe
from .rules import Rule, are_enough
from .verdict import values_are_right

WORLDS = (1, 2, 3, 4, 5)
"""World sizes in which an answer is tried, by default."""
ROUNDING = 1e-9  # of a bound: what float sums in another order may differ by


@dataclass(frozen=True)
class World:
    """One world in which an answer is tried: who runs it, on what, under which rules."""

    world_size: int
    inputs: Callable
    start: Callable
    rules: tuple


def run_answer(answer, by_rank, start):
    """Run an answer, a rank per tuple of inputs: the `Run`, and the inputs as they are after it.

    ``start(function, world_size, args)`` runs it. A rank knows its own inputs only.
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
    return run, keep_returned(run)


def with_those_at_first(now, at_first):
    """An input after the call; with a list whose tensors were exchanged, those of before it."""
    if not isinstance(now, list) or not all(isinstance(one, torch.Tensor) for one in at_first):
        return now
    same = len(now) == len(at_first) and all(map(operator.is_, now, at_first))
    return now if same else Exchanged(now, at_first)


def changed_in_place(inputs):
    """What is looked at where an answer changes its first input: of a list, the tensors it held.

    They are what others hold, too, as a model holds its gradients.
    """
    return getattr(inputs[0], "at_first", inputs[0])


def keep_returned(run):
    """Leave in a run what the answer itself returned; give back the inputs, by rank."""
    pairs = [result or (None, None) for result in run.results]
    run.results = [returned for returned, _ in pairs]
    return [inputs for _, inputs in pairs]


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


@dataclass(frozen=True)
class Simulated:
    """One simulation that an answer has to pass, once it is right on real ranks.

    Attributes
    ----------
    cluster : Cluster
        There are as many ranks as it has places.
    inputs : Callable
        ``inputs(rank, world_size)`` gives the tuple of arguments for one rank, as for `check`.
    """

    cluster: Cluster
    inputs: Callable

    counts_memory = False

    @property
    def world_size(self):
        """Number of ranks."""
        return self.cluster.max_ranks

    def start(self, timeout_s):
        """What runs a rank function here: called as ``simlib.run`` is."""
        options = {"memory": True} if self.counts_memory else {}
        return functools.partial(simulate, cluster=self.cluster, timeout_s=timeout_s, **options)


@dataclass(frozen=True)
class Timed(Simulated):
    """One simulation that an answer has to pass in time, once it is right on real ranks.

    Attributes
    ----------
    cluster, inputs
        As for `Simulated`.
    bound_s : Callable
        ``bound_s(xs, ys, ...)``: seconds of virtual time that are enough, from what the ranks were
        given.
    hint : str
        What is said where an answer takes longer.
    """

    bound_s: Callable
    hint: str = ""

    @property
    def rule(self):
        """The bound, as a `Rule` on the simulated run."""

        def broken(run, given):
            most_s = self.bound_s(*given)
            if run.time_s <= most_s * (1 + ROUNDING):
                return None
            return (
                f"{values_are_right(run)}, but on the modelled network the last rank is done after "
                f"{seconds_text(run.time_s)} where {seconds_text(most_s)} are enough. {self.hint}"
            ).rstrip()

        def tally(run, given):
            took, most = seconds_text(run.time_s), seconds_text(self.bound_s(*given))
            return f"{took} on the modelled network (at most {most})"

        return Rule(broken, tally)


@dataclass(frozen=True)
class Fits(Simulated):
    """One simulation in which no rank may hold too much, once an answer is right on real ranks.

    What a rank was given counts from the moment at which it does something with it.

    Attributes
    ----------
    cluster, inputs
        As for `Simulated`.
    bound_bytes : Callable
        ``bound_bytes(xs, ys, ...)``: bytes that are enough for any rank at its peak, from what the
        ranks were given.
    hint : str
        What is said where a rank holds more.
    """

    bound_bytes: Callable
    hint: str = ""

    counts_memory = True

    @property
    def rule(self):
        """The bound, as a `Rule` on the simulated run."""

        def broken(run, given):
            largest, most = largest_of(run), self.bound_bytes(*given)
            if largest.peak_bytes <= most:
                return None
            held = [f"{name} {nbytes:,}" for name, nbytes in largest.peak.items() if nbytes]
            return (
                f"{values_are_right(run)}, but rank {largest.rank} holds {largest.peak_bytes:,} "
                f"bytes at its peak ({', '.join(held)}) where {are_enough(most)} for any rank. "
                f"{self.hint}"
            ).rstrip()

        def tally(run, given):
            held = largest_of(run).peak_bytes
            return f"{held:,} bytes held by the largest rank (at most {self.bound_bytes(*given):,})"

        return Rule(broken, tally)


def largest_of(run):
    """The `Ledger` of the rank that held most."""
    return max(run.memory, key=lambda ledger: ledger.peak_bytes)
