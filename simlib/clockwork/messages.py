"""The messages of one collective, each started when both its ends have entered its round."""

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
    wire : list or None
        Gets ``(round, src, dst, nbytes, start_s, end_s)`` of each message.
    """

    def __init__(self, schedule, members, on_through, reduce_Bps, wire):
        self._members = members
        self._on_through = on_through
        self._reduce_Bps = reduce_Bps
        self._wire = wire
        self._send = self._later = None
        self._steps = _steps_by_position(schedule)
        self._at = [-1] * schedule.n
        self._open = [0] * schedule.n
        self._one_end_ready = set()
        self._under_way = {}

    def go_through(self, send, later):
        """From now on start messages by ``send`` (`Transfers.send`), note events by ``later``."""
        self._send, self._later = send, later

    def enter(self, position, time_s):
        """A member begins, or goes on to its next round."""
        self._at[position] += 1
        steps = self._steps[position]
        if self._at[position] == len(steps):
            self._on_through(position, time_s)
            return
        step = steps[self._at[position]]
        self._open[position] = len(step)
        for message in step:
            if message not in self._one_end_ready:
                self._one_end_ready.add(message)
                continue
            self._one_end_ready.remove(message)
            _, _, src, dst, nbytes, _ = message
            src, dst = self._members[src], self._members[dst]
            transfer = self._send(time_s, src, dst, nbytes, self.arrived)
            self._under_way[transfer] = message

    def arrived(self, transfer):
        """One message is there: its ends may go on."""
        number, _, src, dst, nbytes, _ = self._under_way.pop(transfer)
        if self._wire is not None:
            ends = transfer.src, transfer.dst
            self._wire.append((number, *ends, nbytes, transfer.start_s, transfer.end_s))
        for position in (src, dst):
            self._open[position] -= 1
            if not self._open[position]:
                self._go_on(position, transfer.end_s)

    def _go_on(self, position, time_s):
        """A member has all messages of a round: it adds up what is to be added, and goes on."""
        if self._reduce_Bps == inf:
            self.enter(position, time_s)
            return
        step = self._steps[position][self._at[position]]
        added = sum(nbytes for _, _, _, dst, nbytes, adds in step if adds and dst == position)
        ready_s = time_s + added / self._reduce_Bps
        self._later(ready_s, lambda: self.enter(position, ready_s))


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
