"""Bounds on the virtual time and the memory of a simulation that an answer must pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...core.engines.virtual.simulated_run import simulate
from ...core.model.cluster import Cluster
from ...core.model.words import seconds_text
from ..parts import MEMORY, TIME
from .rules import Rule, are_enough
from .verdict import values_are_right

if TYPE_CHECKING:
    from ...core.model.ledger import Ledger
    from ...core.results.run import Run

ROUNDING = 1e-9  # of a bound: what float sums in another order may differ by


@dataclass(frozen=True)
class Simulated:
    """A simulation that an answer must pass if the answer is right on real ranks.

    Attributes
    ----------
    cluster : Cluster
        The cluster. The simulation uses all ranks for which the cluster has room.
    inputs : Callable
        ``inputs(rank, world_size)`` returns the tuple of arguments for one rank, as for `check`.
    at_least_flops : Callable, optional
        ``at_least_flops(xs, ys, ...)`` returns the number of floating-point operations that every
        rank needs for these inputs, or a list of numbers by rank. The check refuses an answer with
        fewer operations, because the simulation cannot measure the computations of numpy or of C
        code. simlib counts operations if the cluster has a ``device``. Leave room for answers that
        really need fewer operations: half of the solution's operations is a good choice.
    """

    cluster: Cluster
    inputs: Callable
    at_least_flops: Callable | None = field(default=None, kw_only=True)

    part = TIME
    counts_memory = False

    @property
    def rule(self) -> Rule:
        """The bound, as a `Rule` on the simulated run."""

        def broken(run, given):
            return self.uncounted(run, given) or self.too_much(run, given)

        return Rule(broken, self.tally, part=self.part)

    def too_much(self, run: Run, given: Sequence) -> str | None:
        """A sentence if the run breaks the bound, else None."""
        raise NotImplementedError

    def tally(self, run: Run, given: Sequence) -> str:
        """The count and its bound, as text."""
        raise NotImplementedError

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.cluster.max_ranks

    def uncounted(self, run: Run, given: Sequence) -> str | None:
        """A sentence if a rank computes without the simulation's clock and ledger, else None."""
        for rank, number in enumerate(run.processes or ()):
            if number:
                return (
                    f"{values_are_right(run)}, but rank {rank} starts another process. Time and "
                    "memory of that process are not counted here: compute in the rank itself."
                )
        least = self.at_least_flops(*given) if self.at_least_flops else 0
        by_rank = least if isinstance(least, list) else [least] * run.world_size
        for rank, (flops, needed) in enumerate(zip(run.flops or by_rank, by_rank, strict=True)):
            if flops < needed:
                return (
                    f"{values_are_right(run)}, but rank {rank} computes {flops:,} floating-point "
                    f"operations with torch, and every right answer needs at least {needed:,}. "
                    "Operations of numpy are not counted: compute with torch."
                )
        return None

    def start(self, timeout_s: float) -> Callable:
        """A function that runs a rank function here, with arguments as for ``simlib.run``."""
        options: dict[str, Any] = {"memory": True} if self.counts_memory else {}
        return functools.partial(simulate, cluster=self.cluster, timeout_s=timeout_s, **options)


@dataclass(frozen=True)
class Timed(Simulated):
    """A simulation that must end within a virtual time. simlib runs it for right answers only.

    Attributes
    ----------
    cluster, inputs
        As for `Simulated`.
    bound_s : Callable
        ``bound_s(xs, ys, ...)`` returns the allowed virtual seconds for these inputs.
    hint : str
        The hint for an answer that takes longer.
    """

    bound_s: Callable
    hint: str = ""

    def too_much(self, run, given):
        most_s = self.bound_s(*given)
        if run.time_s <= most_s * (1 + ROUNDING):
            return None
        return (
            f"{values_are_right(run)}, but on the modelled network the last rank is done after "
            f"{seconds_text(run.time_s)} where {seconds_text(most_s)} are enough. {self.hint}"
        ).rstrip()

    def tally(self, run, given):
        took, most = seconds_text(run.time_s), seconds_text(self.bound_s(*given))
        return f"{took} on the modelled network (at most {most})"


@dataclass(frozen=True)
class Fits(Simulated):
    """A simulation in which no rank may use too much memory. Only a right answer is simulated.

    If a rank's inputs contain parameters of a model, they count from the moment at which the rank
    first uses them. Other tensors in the inputs do not count.

    Attributes
    ----------
    cluster, inputs
        As for `Simulated`.
    bound_bytes : Callable
        ``bound_bytes(xs, ys, ...)`` returns the most bytes that any rank may keep at its peak, for
        these inputs.
    hint : str or callable
        The hint for an answer that needs more memory. If it is a function, it gets the `Ledger` of
        the rank.
    """

    bound_bytes: Callable
    hint: str | Callable = ""

    part = MEMORY
    counts_memory = True

    def too_much(self, run, given):
        largest, most = largest_of(run), self.bound_bytes(*given)
        if largest.peak_bytes <= most:
            return None
        held = [f"{name} {nbytes:,}" for name, nbytes in largest.peak.items() if nbytes]
        hint = self.hint(largest) if callable(self.hint) else self.hint
        return (
            f"{values_are_right(run)}, but rank {largest.rank} holds {largest.peak_bytes:,} "
            f"bytes at its peak ({', '.join(held)}) where {are_enough(most)} for any rank. {hint}"
        ).rstrip()

    def tally(self, run, given):
        held, most = largest_of(run).peak_bytes, self.bound_bytes(*given)
        return f"the rank with the most memory holds {held:,} bytes (at most {most:,})"


def largest_of(run: Run) -> Ledger:
    """The `Ledger` of the rank that used the most memory."""
    ledgers: Any = run.memory  # of a simulation
    return max(ledgers, key=lambda ledger: ledger.peak_bytes)
