"""Checks of exercises: is the value right on every rank, and which messages did the answer send?

The check of an exercise is one call in the exercise's source::

    from simlib.checks import check, messages, nbytes, only

    verdict = check("shift_right", shift_right, inputs, expected,
                    only("send", "recv"), messages(lambda given: len(given)), points=2)
    verdict

The notebook does not show this call. Its check cell is ``verdict = check_of("02.2", shift_right)``.
"""

from .checking import check, measure
from .compare import OneOf
from .rules import (
    Rule,
    brought,
    collective_nbytes,
    collectives,
    messages,
    nbytes,
    nbytes_of_a_rank,
    only,
    rounds,
    sends_to,
    somebody_sends,
)
from .simulated import Fits, Timed
from .verdict import Verdict, check_of

__all__ = [
    "Fits",
    "OneOf",
    "Rule",
    "Timed",
    "Verdict",
    "brought",
    "check",
    "check_of",
    "collective_nbytes",
    "collectives",
    "measure",
    "messages",
    "nbytes",
    "nbytes_of_a_rank",
    "only",
    "rounds",
    "sends_to",
    "somebody_sends",
]
