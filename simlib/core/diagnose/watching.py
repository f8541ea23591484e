"""Watches a run: prints a line at intervals, and ends the run if nothing happens."""

from __future__ import annotations

import time
from typing import Any

from ..model.trace import Site
from ..model.words import ranks_in_words
from . import failures

LONG_WAIT_S = 10.0
"""The line names a rank if the rank has waited for this many seconds."""


class Watcher:
    """Prints the number and the rate of ops, the memory of ranks, and ranks that wait for long.

    Parameters
    ----------
    monitor : RunMonitor
        A monitor with a method `memory_bytes`. Its logs count ops.
    display : Display
    every_s : float
        Seconds from one line to the next.
    """

    def __init__(self, monitor: Any, display: Any, every_s: float) -> None:
        self._monitor = monitor
        self._display = display
        self._every_s = every_s
        self._began_s = self._said_s = time.monotonic()
        self._said_ops = 0
        self._states: dict[int, tuple[tuple[int, int], float]] = {}

    def look(self) -> None:
        """Note the state of the ranks, and print a line when it is due."""
        now_s = time.monotonic()
        for rank in self._monitor.running():
            state = self._monitor.logs[rank].state
            if rank not in self._states or self._states[rank][0] != state:
                self._states[rank] = state, now_s
        if now_s >= self._said_s + self._every_s:
            self._display.status(self.line(now_s))
            self._said_s = now_s

    def line(self, now_s: float) -> str:
        """The line for this moment."""
        ops = sum(log.count for log in self._monitor.logs)
        rate = (ops - self._said_ops) / max(now_s - self._said_s, 1e-9)
        self._said_ops = ops
        ranks, own = self._monitor.memory_bytes()
        parts = [
            f"{clock_text(now_s - self._began_s)}: {ops:,} ops, {rate:,.0f} a second",
            f"memory: {_megabytes(max(ranks, default=0))} in the largest rank, {_megabytes(own)} "
            "in this process",
            *self._who_waits(now_s),
        ]
        return "; ".join(parts)

    def _who_waits(self, now_s: float) -> list[str]:
        """The ranks that have waited for long, their lines of code, and those of computing
        ranks."""
        running = self._monitor.running()
        long = {
            rank: now_s - self._states[rank][1]
            for rank in running
            if self._states[rank][0][1] and now_s - self._states[rank][1] >= LONG_WAIT_S
        }
        if not long:
            return []
        alike: dict[tuple[str, str], list[int]] = {}
        for rank, site in failures.sites_now(self._monitor).items():
            is_waiting = rank in long and site.op != "computing"
            if is_waiting or site.op == "computing" or site.op.startswith("store."):
                alike.setdefault((site.op, _place(site)), []).append(rank)
        words = []
        for (op, place), ranks in alike.items():
            verb = "has" if len(ranks) == 1 else "have"
            who = ranks_in_words(ranks)
            if op == "computing":
                words.append(f"{who} {'is' if len(ranks) == 1 else 'are'} computing ({place})")
            elif op.startswith("store."):
                words.append(f"{who} {'waits' if len(ranks) == 1 else 'wait'} in {op} ({place})")
            else:
                seconds = max(long[rank] for rank in ranks)
                words.append(f"{who} {verb} waited {seconds:.0f} s in {op} ({place})")
        return words


def _place(site: Site) -> str:
    return site.place + (f": {site.line_text}" if site.line_text else "")


def clock_text(seconds: float) -> str:
    """Seconds as text in the form ``"1:02:03"``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
