"""This package lists the messages of each collective, round by round."""

from .choice import ALGORITHMS, DEFAULT_POLICY, choose, schedule
from .schedules import KINDS, Round, Schedule, parts_of, split
from .steps import Moves

__all__ = [
    "ALGORITHMS",
    "DEFAULT_POLICY",
    "KINDS",
    "Moves",
    "Round",
    "Schedule",
    "choose",
    "parts_of",
    "schedule",
    "split",
]
