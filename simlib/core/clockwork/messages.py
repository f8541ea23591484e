"""The messages of one collective. A message starts when both ends have entered its round.

An eager message starts when its sender has entered the round, and the sender is then done. The
receiver is done when the message has arrived and the receiver is in the round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf
from typing import Any

import numpy as np

from ..collectives.schedules import Schedule
from ..collectives.timing import Wire
from ..model.trace import Group, WireMessage
from .network import Transfer


@dataclass(frozen=True)
class Tell:
    """The functions that simlib calls with the outcome for members of a collective.

    Attributes
    ----------
    through : callable
        simlib calls ``through(position, time_s)`` when a member has done its part.
    failed : callable
        simlib calls ``failed(position, dead, time_s)`` for a member that needs a dead member.
    """

    through: Callable[[int, float], None]
    failed: Callable[[int, int, float], None]


class Messages:
    """A schedule on its way through a network, one transfer after the other.

    Parameters
    ----------
    schedule : Schedule
    members : tuple of int
        Ranks of the world, by position.
    tell : Tell
        The functions that get the outcome for members.
    reduce_Bps : float
        Bytes per second at which a member adds up received data, before its next round.
    wire : WireLog or None
        The log that gets each message.
    eager_limit_bytes : float
        A message of at most this many bytes is eager.
    """

    def __init__(
        self,
        schedule: Schedule,
        members: tuple[int, ...],
        tell: Tell,
        reduce_Bps: float,
        wire: WireLog | None,
        eager_limit_bytes: float = -1,
    ) -> None:
        self._members = members
        self._tell = tell
        self._dead: set[int] = set()
        self._left: set[int] = set()  # who has failed, or given up, and takes no further part
        # Who only sends, or only receives, serves the others before it fails.
        self._server = (
            schedule.root if schedule.kind in ("broadcast", "scatter", "gather") else None
        )
        self._missed = None  # a dead one that the server has passed over
        self._reduce_Bps = reduce_Bps
        self._wire = wire
        self._eager_limit_bytes = eager_limit_bytes
        self._send: Any = None
        self._later: Any = None
        self._steps = _steps_by_position(schedule)
        self._at = [-1] * schedule.n
        self._open = [0] * schedule.n
        self._one_end_ready: set[tuple] = set()
        self._came_early: set[tuple] = set()
        self._under_way: dict[Transfer, tuple] = {}

    def go_through(self, send: Callable, later: Callable[[float, Callable[[], None]], Any]) -> None:
        """From now on start messages by ``send`` (`Transfers.send`), note events by ``later``."""
        self._send, self._later = send, later

    def enter(self, position: int, time_s: float) -> None:
        """A member begins, or enters its next round. It passes rounds without messages at once."""
        steps = self._steps[position]
        while position not in self._left:
            self._at[position] += 1
            if self._at[position] == len(steps):
                self._end(position, time_s)
                return
            step = steps[self._at[position]]
            lost = self._lost_in(step) if self._dead else {}
            self._open[position] = sum(
                not self._is_done_on_entering(message, position, time_s)
                for message in step
                if message not in lost
            )
            if lost:
                self._miss(position, min(lost.values()), time_s)
            if self._open[position] or self._has_to_add(position, time_s):
                return

    def _is_done_on_entering(self, message, position, time_s):
        """Start a message if it may start. Returns whether this member is done with the message."""
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

    def arrived(self, transfer: Transfer) -> None:
        """One message has arrived: its ends may continue."""
        message = self._under_way.pop(transfer, None)
        if message is None:  # one of its ends had died meanwhile
            return
        number, _, src, dst, nbytes, adds = message
        if self._wire is not None:
            times_s = transfer.start_s, transfer.end_s
            self._wire.add(number, transfer.src, transfer.dst, nbytes, *times_s, adds)
        waiting = (src, dst) if nbytes > self._eager_limit_bytes else (dst,)
        for position in waiting:
            if position in self._left:
                continue
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
        """A member has received all messages of a round. Returns whether it has to add some of them
        up."""
        if self._reduce_Bps == inf:
            return False
        step = self._steps[position][self._at[position]]
        added = sum(nbytes for _, _, _, dst, nbytes, adds in step if adds and dst == position)
        ready_s = time_s + added / self._reduce_Bps
        self._later(ready_s, lambda: self.enter(position, ready_s))
        return True

    # Members that are lost

    def member_died(self, position: int, time_s: float) -> None:
        """A member stops sending and receiving. Members that wait for it in a round fail now.

        The member's eager messages have already left it, so they arrive.
        """
        others = (other for other in range(len(self._at)) if other != position)
        waiting = {other: number for other in others if (number := self._awaits(other, position))}
        self._dead.add(position)
        self.member_left(position)
        gone = {message for message in self._under_way.values() if self._is_cut(message, position)}
        self._under_way = {t: m for t, m in self._under_way.items() if m not in gone}
        for other, number in waiting.items():
            self._open[other] -= number
            self._miss(other, position, time_s)
            if not self._open[other]:
                self.enter(other, time_s)

    def _miss(self, position, dead, time_s):
        """A member gets no message from a dead member. It fails, or first serves the other
        members."""
        if position == self._server:
            self._missed = dead
        else:
            self._open[position] = inf
            self._tell.failed(position, dead, time_s)

    def _end(self, position, time_s):
        if position == self._server and self._missed is not None:
            self._tell.failed(position, self._missed, time_s)
        else:
            self._tell.through(position, time_s)

    def member_left(self, position: int) -> None:
        """A member leaves the collective: its messages that have not begun never begin."""
        self._left.add(position)
        at, steps = self._at[position], self._steps[position]
        if 0 <= at < len(steps):
            self._one_end_ready.difference_update(steps[at])

    def _awaits(self, position, peer):
        """The number of messages with this peer for which a member waits in a round."""
        at, steps = self._at[position], self._steps[position]
        if position in self._left or not 0 <= at < len(steps):
            return 0
        under_way = set(self._under_way.values())
        count = 0
        for message in steps[at]:
            number, _, src, dst, nbytes, _ = message
            if nbytes > self._eager_limit_bytes:
                is_open = message in under_way or message in self._one_end_ready
                count += is_open and peer in (src, dst)
            else:
                count += src == peer and not self._has_entered(src, number)
        return count

    def _is_cut(self, message, position):
        """Whether a message, begun or not, is lost with this member."""
        _, _, src, dst, nbytes, _ = message
        return dst == position or (src == position and nbytes > self._eager_limit_bytes)

    def _has_entered(self, position, number):
        at, steps = self._at[position], self._steps[position]
        return at >= len(steps) or (at >= 0 and steps[at][0][0] >= number)

    def _lost_in(self, step):
        """The messages of a round that never arrive, each with the dead member that it needs."""
        ends = {message: self._lost_end(message) for message in step}
        return {message: dead for message, dead in ends.items() if dead is not None}

    def _lost_end(self, message):
        """The dead member that a message would need, or None."""
        number, _, src, dst, nbytes, _ = message
        if dst in self._dead:
            return dst
        was_sent = nbytes <= self._eager_limit_bytes and self._has_entered(src, number)
        return src if src in self._dead and not was_sent else None


def _steps_by_position(schedule):
    """The rounds of each position: (round, number, src, dst, nbytes, adds) for each message."""
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


COLUMNS = [field.name for field in fields(Wire)]


class WireLog:
    """The log for the messages of a collective in flight: one by one, or all at once.

    Parameters
    ----------
    kind : str
    group : Group
    """

    def __init__(self, kind: str, group: Group) -> None:
        self.kind, self.group = kind, group
        self._rows: list[tuple] = []
        self._solved: Wire | None = None

    def add(self, *row: float) -> None:
        """One message: round, src, dst, nbytes, start_s, end_s, adds."""
        self._rows.append(row)

    def add_all(self, wire: Wire) -> None:
        """All messages of the collective, timed in one step."""
        self._solved = wire

    @property
    def wire(self) -> Wire:
        """The `Wire` of all messages."""
        if self._solved is not None:
            return self._solved
        rows = zip(*self._rows, strict=True) if self._rows else [[] for _ in COLUMNS]
        return Wire(*map(np.array, rows))

    def messages(self) -> list[WireMessage]:
        """The same as a list of `WireMessage`."""
        wire = self.wire
        columns = [getattr(wire, name).tolist() for name in COLUMNS if name != "adds"]
        return [WireMessage(self.kind, self.group, *row) for row in zip(*columns, strict=True)]

    def transfers(self, reduce_Bps: float = inf) -> dict[int, list[tuple[float, float]]]:
        """When data moved to or from each rank, or when the rank added them up.

        Parameters
        ----------
        reduce_Bps : float
            Bytes per second at which a rank adds up received data.

        Returns
        -------
        dict
            ``{rank: [(start_s, end_s), ...]}``, parts in order that do not overlap.

        **Cost** O(m log m) for m messages.
        """
        wire = self.wire
        ranks = np.concatenate([wire.src, wire.dst])
        starts, ends = np.tile(wire.start_s, 2), np.tile(wire.end_s, 2)
        if reduce_Bps < inf and len(ranks):
            ranks, starts, ends = (
                np.concatenate(pair)
                for pair in zip((ranks, starts, ends), _additions(wire, reduce_Bps), strict=True)
            )
        order = np.argsort(starts, kind="stable")
        order = order[np.argsort(ranks[order].astype(np.int16), kind="stable")]  # in linear time
        ranks, starts, ends = ranks[order], starts[order], ends[order]
        edges = np.flatnonzero(np.diff(ranks)) + 1
        own = zip(*(np.split(column, edges) for column in (ranks, starts, ends)), strict=True)
        return {int(rank[0]): _joined(start, end) for rank, start, end in own if len(rank)}


def _additions(wire, reduce_Bps):
    """Ranks, starts and ends of additions. A rank adds when the last message of a round has
    arrived."""
    last = int(wire.round.max()) + 1
    place, group = np.unique(wire.dst * last + wire.round, return_inverse=True)
    added = np.bincount(group, wire.nbytes * wire.adds)
    arrived = np.full(len(place), -inf)
    np.maximum.at(arrived, group, wire.end_s)
    adds = added > 0
    ends = arrived + added / reduce_Bps
    return (place // last)[adds], arrived[adds], ends[adds]


def _joined(starts, ends):
    """Parts sorted by start. Parts that touch are joined. A list of (float, float)."""
    reach = np.maximum.accumulate(ends)
    is_new = np.r_[True, starts[1:] > reach[:-1] * (1 + 1e-12)]
    firsts = np.flatnonzero(is_new)
    lasts = np.r_[firsts[1:], len(starts)] - 1
    return list(zip(starts[firsts].tolist(), reach[lasts].tolist(), strict=True))
