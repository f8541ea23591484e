"""Hosts that no longer answer, and ranks of which nobody is left to say how they ended.

A rank whose process dies leaves word by its supervisor. Where the supervisor goes too, with its
host or by itself, others tell of it: `reach`, ``start.py``, or the launcher.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from ...core.model.words import ranks_in_words
from ..launch.launchers import LAUNCHERS
from . import connectivity
from .folder import JobFolder

HOW = {
    connectivity.SILENT: "no longer answers: its network was lost, or it was switched off",
    connectivity.REFUSED: "answers, but its ssh server does not any more: it was restarted, or is "
    "about to go down",
    connectivity.CUT: "has lost its network",
}
PATTERNS = [pattern for launcher in LAUNCHERS for pattern in launcher.gone]
DIED = -signal.SIGKILL
"""How a rank ends whose supervisor is gone."""


def lost_hosts(folder: JobFolder, places: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Words for the hosts that answered when the job began and do not any more; or None."""
    lost = folder.read_json("lost.json") or {}
    parts = []
    for host, found in sorted(lost.items()):
        ranks = [rank for rank, place in places.items() if place["host"] == host]
        verb = "runs" if len(ranks) == 1 else "run"
        parts.append(f"{host}, where {ranks_in_words(ranks)} {verb}, {HOW[found]}")
    return "; ".join(parts) or None


def lost_ranks(
    folder: JobFolder,
    places: Mapping[int, Mapping[str, Any]],
    running: list[int],
    said: str,
) -> dict[int, str]:
    """The rank that is gone with its supervisor, and how it is told: ``{1: "rank 1 on ..."}``.

    Parameters
    ----------
    folder : JobFolder
    places : dict
        By rank, what its ``rank-N.json`` says.
    running : list of int
        Those who have neither answered nor died.
    said : str
        What the launcher has said.
    """
    known = [rank for rank in running if rank in places]
    told = folder.read_json("gone.json")
    found = [(told, told["words"])] if told else [(words, "") for words in _named_in(said)]
    for where, words in found:
        ranks = [rank for rank in known if _is_at(rank, places[rank], where)]
        if len(ranks) == 1:
            return {ranks[0]: _in_words(ranks[0], places, words)}
    silent = [rank for rank in known if not folder.has("ended", rank)]
    if len(silent) == 1:  # of the others it is known how they ended
        return {silent[0]: _in_words(silent[0], places)}
    return {}


def _named_in(said: str) -> list[dict[str, Any]]:
    """Where a process has ended first, as the launcher says it: ``host``, ``starter`` or ``rank``.

    The others that it names were ended for it.
    """
    found = [match for pattern in PATTERNS for match in re.finditer(pattern, said)]
    return [match.groupdict() for match in sorted(found, key=re.Match.start)[:1]]


def _is_at(rank: int, place: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether these words mean this rank."""
    if where.get("rank") is not None:
        return int(where["rank"]) == rank
    if where["host"].partition(".")[0] != place["host"].partition(".")[0]:
        return False
    starter = where.get("starter")
    return starter is None or int(starter) == place.get("starter")


def _in_words(rank: int, places: Mapping[int, Mapping[str, Any]], words: str = "") -> str:
    words = words or "the process that looked after it was ended from outside"
    return f"rank {rank} on {places[rank]['host']} is gone: {words}"
