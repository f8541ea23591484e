"""`Timed`: how long an answer may take on a modelled cluster, on every machine the same."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.numbers import seconds_text
from .rules import Rule
from .simulated import Simulated
from .verdict import values_are_right

ROUNDING = 1e-9  # of a bound: what float sums in another order may differ by


@dataclass(frozen=True)
class Timed(Simulated):
    """One simulation that an answer has to pass in time, once it is right on real ranks.

    Attributes
    ----------
    cluster, inputs
        As for `Simulated`.
    bound_s : callable
        ``bound_s(xs, ys, ...)``: seconds of virtual time that are enough, from what the ranks were
        given.
    hint : str
        What is said where an answer takes longer.
    """

    bound_s: callable
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
