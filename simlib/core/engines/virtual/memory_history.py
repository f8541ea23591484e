"""The memory of a rank at some hundred moments of its run, however long the run is."""

from __future__ import annotations

MAX_POINTS = 256


class Moment:
    """The memory after a number of events."""

    __slots__ = ("held", "number", "time_s")

    def __init__(self, number, time_s, held):
        self.number = number
        self.time_s = time_s
        self.held = held


class History:
    """Moments after every k-th event. When there are `MAX_POINTS` of them, k doubles."""

    def __init__(self):
        self.number = 0
        self._moments = []
        self._every = 1

    def is_due(self):
        """Count an event; returns whether to keep it."""
        self.number += 1
        return self.number % self._every == 0

    def add(self, moment):
        if self._moments and self._moments[-1].held == moment.held:
            return
        self._moments.append(moment)
        if len(self._moments) == MAX_POINTS:
            self._moments = self._moments[1::2]
            self._every *= 2

    def with_moments(self, *extra):
        """(time, memory) of the kept moments and of some more, in order."""
        by_number = {moment.number: moment for moment in (*self._moments, *extra)}
        return [(moment.time_s, moment.held) for _, moment in sorted(by_number.items())]
