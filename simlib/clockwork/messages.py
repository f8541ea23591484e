"""The messages of one collective, each started when both its ends have entered its round.

An eager one starts when its sender has; the sender has done its part then, the receiver when the
message has arrived and it is in the round itself.
"""

from __future__ import annotations

from math import inf


class Messages:
    """A schedule on its way through a network, one transfer after the other.

    Parameters
    ----------
    schedule : Schedule
    members : tuple of int
        Ranks of the world, by position.
    on_through : callable
        Called as ``on_through(position, time_s)`` when a member has done its part.
    reduce_Bps : float
        Bytes per second at which a member adds up what it has received, before its next round.
    wire : WireLog or None
        Gets each message.
    eager_limit_bytes : float
        A message of at most so many bytes is eager.
    """

    def __init__(self, schedule, members, on_through, reduce_Bps, wire, eager_limit_bytes=-1):
        self._members = members
        self._on_through = on_through
        self._reduce_Bps = reduce_Bps
        self._wire = wire
        self._eager_limit_bytes = eager_limit_bytes
        self._send = self._later = None
        self._steps = _steps_by_position(schedule)
        self._at = [-1] * schedule.n
        self._open = [0] * schedule.n
        self._one_end_ready = set()
        self._came_early = set()
        self._under_way = {}

    def go_through(self, send, later):
        """From now on start messages by ``send`` (`Transfers.send`), note events by ``later``."""
        self._send, self._later = send, later

    def enter(self, position, time_s):
        """A member begins, or goes on to its next round, and on where nothing is open in that."""
        steps = self._steps[position]
        while True:
            self._at[position] += 1
            if self._at[position] == len(steps):
                self._on_through(position, time_s)
                return
            step = steps[self._at[position]]
            self._open[position] = sum(
                not self._is_done_on_entering(message, position, time_s) for message in step
            )
            if self._open[position] or self._has_to_add(position, time_s):
                return

    def _is_done_on_entering(self, message, position, time_s):
        """Start a message that may; whether this member has no more to do with it."""
        _, _, src, _, nbytes, _ = message
        if nbytes > self._eager_limit_bytes:
            if message in self._one_end_ready:
                self._one_end_ready.remove(message)
                self._start(message, time_s)
            else:
                self._one_end_ready.add(message)
            return False
        if position == src:
            self._start(message, time_s)
            return True
        if message in self._came_early:
            self._came_early.remove(message)
            return True
        return False

    def _start(self, message, time_s):
        _, _, src, dst, nbytes, _ = message
        src, dst = self._members[src], self._members[dst]
        self._under_way[self._send(time_s, src, dst, nbytes, self.arrived)] = message

    def arrived(self, transfer):
        """One message is there: its ends may go on."""
        message = self._under_way.pop(transfer)
        number, _, src, dst, nbytes, adds = message
        if self._wire is not None:
            times_s = transfer.start_s, transfer.end_s
            self._wire.add(number, transfer.src, transfer.dst, nbytes, *times_s, adds)
        waiting = (src, dst) if nbytes > self._eager_limit_bytes else (dst,)
        for position in waiting:
            if not self._is_in_round(position, number):
                self._came_early.add(message)
                continue
            self._open[position] -= 1
            if not self._open[position] and not self._has_to_add(position, transfer.end_s):
                self.enter(position, transfer.end_s)

    def _is_in_round(self, position, number):
        at, steps = self._at[position], self._steps[position]
        return 0 <= at < len(steps) and steps[at][0][0] == number

    def _has_to_add(self, position, time_s):
        """A member has all messages of a round: whether it adds some up, and goes on later."""
        if self._reduce_Bps == inf:
            return False
        step = self._steps[position][self._at[position]]
        added = sum(nbytes for _, _, _, dst, nbytes, adds in step if adds and dst == position)
        ready_s = time_s + added / self._reduce_Bps
        self._later(ready_s, lambda: self.enter(position, ready_s))
        return True


def _steps_by_position(schedule):
    """By position, the rounds it takes part in: (round, number, src, dst, nbytes, adds) each."""
    steps = [[] for _ in range(schedule.n)]
    for number, round_ in enumerate(schedule.rounds):
        columns = (round_.src, round_.dst, round_.nbytes, round_.adds)
        for i, message in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            entry = (number, i, *message)
            for position in message[:2]:
                mine = steps[position]
                if not mine or mine[-1][0][0] != number:
                    mine.append([])
                mine[-1].append(entry)
    return steps
