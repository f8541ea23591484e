"""Collectives as messages: the messages of each round, with their senders and receivers."""

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
