"""Collectives as messages: who sends what to whom, round by round."""

from .schedule import KINDS, Moves, Round, Schedule, parts_of, split

__all__ = ["KINDS", "Moves", "Round", "Schedule", "parts_of", "split"]
