"""Checks of exercises: is the value right on every rank, and what did the answer send for it?

A check cell of an exercise notebook is one call::

    from simlib.checks import check, messages, nbytes, only

    verdict = check("shift_right", shift_right, inputs, expected,
                    only("send", "recv"), messages(lambda given: len(given)), points=2)
    verdict
"""

from .check import check
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
)
from .run_answer import Fits, Timed, measure
from .verdict import Verdict

__all__ = [
    "Fits",
    "OneOf",
    "Rule",
    "Timed",
    "Verdict",
    "brought",
    "check",
    "collective_nbytes",
    "collectives",
    "measure",
    "messages",
    "nbytes",
    "nbytes_of_a_rank",
    "only",
    "rounds",
    "sends_to",
]
