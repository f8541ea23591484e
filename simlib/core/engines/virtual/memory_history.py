"""What a rank held at some hundred moments of its run, however long it is."""

from __future__ import annotations

MAX_POINTS = 256


class Moment:
    """What was held after so many events."""

    __slots__ = ("held", "number", "time_s")

    def __init__(self, number, time_s, held):
        self.number = number
        self.time_s = time_s
        self.held = held


class History:
    """Moments after every k-th event; k doubles whenever `MAX_POINTS` have come together."""

    def __init__(self):
        self.number = 0
        self._moments = []
        self._every = 1

    def is_due(self):
        """Count an event, and tell whether it is one to keep."""
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
        """(time, what was held) of the kept moments and of some more, in order."""
        by_number = {moment.number: moment for moment in (*self._moments, *extra)}
        return [(moment.time_s, moment.held) for _, moment in sorted(by_number.items())]
