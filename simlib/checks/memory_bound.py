"""`Fits`: how much memory an answer may hold on a modelled device, on every machine the same."""

from __future__ import annotations

from dataclasses import dataclass

from .rules import Rule, are_enough
from .simulated import Simulated
from .verdict import values_are_right


@dataclass(frozen=True)
class Fits(Simulated):
    """One simulation in which no rank may hold too much, once an answer is right on real ranks.

    What a rank was given counts from the moment at which it does something with it.

    Attributes
    ----------
    cluster, inputs
        As for `Simulated`.
    bound_bytes : callable
        ``bound_bytes(xs, ys, ...)``: bytes that are enough for any rank at its peak, from what the
        ranks were given.
    hint : str
        What is said where a rank holds more.
    """

    bound_bytes: callable
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
