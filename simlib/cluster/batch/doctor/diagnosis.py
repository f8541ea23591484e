"""A check, and its verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Whether it is well, and the sentence: what is there, or what is wrong and how to mend it."""

    ok: bool
    sentence: str


@dataclass(frozen=True)
class Check:
    """One thing that a cluster needs.

    Attributes
    ----------
    name : str
    judge : callable
        ``judge(facts, host)``, or ``judge(facts)`` for a check of all hosts together.
    needs : tuple of str
        The checks without which this one cannot be asked.
    alone : bool
        Whether it also makes sense on one machine, without hosts.
    together : bool
        Whether it is a check of all hosts together.
    """

    name: str
    judge: Callable[..., Verdict]
    needs: tuple[str, ...] = ()
    alone: bool = False
    together: bool = False


def well(sentence: str) -> Verdict:
    return Verdict(True, sentence)


def wrong(sentence: str) -> Verdict:
    return Verdict(False, sentence)
