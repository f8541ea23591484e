"""How long a collective takes. Times its messages on the fluid network, with numpy.

There are two methods, and both give the same times as the simulation's network. If no two messages
can ever share a link, and no message is eager, the messages are independent. Then a few operations
on arrays compute a round. Otherwise `sharing` follows all messages through time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from ..model.errors import InvalidCallError
from .sharing import through_shared_links

if TYPE_CHECKING:
    from ..model.cluster import Topology
    from .schedules import Schedule

NOBODY, UNSEEN = -1, -2


@dataclass(frozen=True, slots=True, eq=False)
class Wire:
    """The messages of a collective with their times: arrays, in order of the schedule.

    Attributes
    ----------
    round : ndarray of int
    src, dst : ndarray of int
        Ranks of the world.
    nbytes : ndarray of int
    start_s, end_s : ndarray of float
        The second at which both sides were ready, and the second at which the message had arrived.
    adds : ndarray of bool
        Whether the receiver adds the message to its own data.
    """

    round: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    nbytes: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    adds: np.ndarray


def time_of(
    schedule: Schedule,
    topology: Topology,
    members: Sequence[int] | np.ndarray,
    starts: Sequence[float] | np.ndarray,
    expand: bool = False,
    eager_limit_bytes: float = -1,
) -> Any:
    """Compute when each member of a group has done its part of a collective.

    Parameters
    ----------
    schedule : Schedule
    topology : Topology
    members : sequence of int, shape (n,)
        Rank of the world at each position.
    starts : sequence of float, shape (n,)
        When each member begins, in seconds.
    expand : bool
        Whether to return the messages too.
    eager_limit_bytes : float
        A message of at most this many bytes is eager. It starts as soon as its sender has entered
        the round, and the sender is done with it at once. The receiver is done when the message has
        arrived and the receiver has entered the round. With -1, no message is eager.

    Returns
    -------
    ends : ndarray of float, shape (n,)
        The second at which each member's last message was done. A member without a message has its
        start.
    wire : Wire
        The messages. Returned only with ``expand``.

    Notes ----- **Cost** O(number of messages) if no link is shared. Otherwise O(transfers under
    way) for each event in any set of transfers that share links. simlib handles events of different
    sets within one latency at the same time.
    """
    ranks, begins = _checked(schedule, topology, members, starts)
    topology = schedule.way(topology, ranks)
    device = topology.cluster.device
    reduce_Bps = device.reduce_Bps if device else inf
    patterns = _patterns(schedule, topology, ranks)
    is_eager = eager_limit_bytes >= 0 and any(
        (round_.nbytes <= eager_limit_bytes).any() for round_ in schedule.rounds
    )
    if not is_eager and _shares_no_link(patterns.values(), topology):
        ends, times = _each_alone(schedule, patterns, topology, begins, reduce_Bps, expand)
    else:
        ends, times = through_shared_links(
            schedule, topology, ranks, begins, reduce_Bps, eager_limit_bytes
        )
    return (ends, _wire(schedule, ranks, *times)) if expand else ends


def shares_no_link(
    schedule: Schedule, topology: Topology, members: Sequence[int] | np.ndarray
) -> bool:
    """Whether no two messages of a schedule can ever be on one link at the same time."""
    members = np.asarray(members)
    topology = schedule.way(topology, members)
    return _shares_no_link(_patterns(schedule, topology, members).values(), topology)


def _checked(schedule, topology, members, starts):
    members = np.asarray(members)
    starts = np.asarray(starts, dtype=float)
    if members.shape != (schedule.n,) or starts.shape != (schedule.n,):
        raise InvalidCallError(
            f"the schedule is for {schedule.n} ranks, but there are {members.size} members and "
            f"{starts.size} starts: give one member and one start for each rank"
        )
    if len(np.unique(members)) < schedule.n:
        raise InvalidCallError("a rank appears twice among the members: give each rank once")
    if members.min() < 0 or members.max() >= topology.world_size:
        raise InvalidCallError(f"members must be ranks from 0 to {topology.world_size - 1}")
    return members, starts


class _Pattern:
    """The senders and receivers of a round. Many rounds have the same pattern."""

    def __init__(self, round_, topology, members):
        self.src, self.dst = round_.src, round_.dst
        self.world_src, self.world_dst = members[self.src], members[self.dst]
        self.latency_s = topology.latencies_s(self.world_src, self.world_dst)
        self.bandwidth_Bps = topology.bandwidths_Bps(self.world_src, self.world_dst)
        n = len(members)
        one_each = [np.bincount(ranks, minlength=n).max() == 1 for ranks in (self.src, self.dst)]
        self.is_one_each = all(one_each)
        #: For a round in which rank r sends message r, and each gets one: which one it gets.
        self.received = None
        if self.is_one_each and np.array_equal(self.src, np.arange(n)):
            self.received = np.argsort(self.dst)


def _pattern_key(round_):
    """A key that is equal for rounds with the same array objects, because these have one
    pattern."""
    return id(round_.src), id(round_.dst)


def _patterns(schedule, topology, members):
    patterns = {}
    for round_ in schedule.rounds:
        key = _pattern_key(round_)
        if key not in patterns:
            patterns[key] = _Pattern(round_, topology, members)
    return patterns


def _shares_no_link(patterns, topology):
    """Whether no two messages can ever be on one link at the same time.

    Consider all messages that cross a link. They never meet if they have a rank in common and no
    two of them are in the same round, because this rank does one round after the other. This
    condition is sufficient, but not necessary.
    """
    links = len(topology.link_bandwidth_Bps)
    free = links - 1
    common = np.full((2, links), UNSEEN)  # two candidates: ends of the first message on the link
    for pattern in patterns:
        paths = topology.paths(pattern.world_src, pattern.world_dst)
        message, column = np.nonzero(paths != free)
        crossed = paths[message, column]
        if len(crossed) and np.bincount(crossed).max() > 1:
            return False
        src, dst = pattern.src[message], pattern.dst[message]
        for candidates, own in zip(common, (src, dst), strict=True):
            before = candidates[crossed]
            stays = (before == src) | (before == dst)
            candidates[crossed] = np.where(before == UNSEEN, own, np.where(stays, before, NOBODY))
    return not (common == NOBODY).all(axis=0).any()


def _each_alone(schedule, patterns, topology, starts, reduce_Bps, expand):
    """Round by round: a message starts when both ends are ready. It takes latency + bytes /
    bandwidth."""
    ready = starts.copy()  # when each rank has done its part so far
    envelope = topology.cluster.envelope_bytes
    start_s, end_s = [], []
    for round_ in schedule.rounds:
        pattern = patterns[_pattern_key(round_)]
        draw_s = (round_.nbytes + envelope) / pattern.bandwidth_Bps
        if pattern.received is not None:
            begin = np.maximum(ready, ready[pattern.dst])
            end = begin + pattern.latency_s + draw_s
            ready = np.maximum(end, end[pattern.received])
        else:
            begin = np.maximum(ready[pattern.src], ready[pattern.dst])
            end = begin + pattern.latency_s + draw_s
            _finish(ready, pattern, end)
        if reduce_Bps < inf:
            added = np.bincount(round_.dst, round_.nbytes * round_.adds, schedule.n)
            ready = ready + added / reduce_Bps
        if expand:
            start_s.append(begin)
            end_s.append(end)
    return ready, (start_s, end_s)


def _finish(ready, pattern, end):
    """Ranks are ready for the next round when the last of their messages has ended."""
    if pattern.is_one_each:
        ready[pattern.src] = end
        ready[pattern.dst] = np.maximum(ready[pattern.dst], end)
    else:
        np.maximum.at(ready, pattern.src, end)
        np.maximum.at(ready, pattern.dst, end)


def _wire(schedule, members, start_s, end_s):
    def column(arrays, dtype):
        return np.concatenate([np.empty(0, dtype), *arrays])

    rounds = schedule.rounds
    return Wire(
        np.repeat(np.arange(len(rounds)), [len(round_) for round_ in rounds]),
        members[column([round_.src for round_ in rounds], int)],
        members[column([round_.dst for round_ in rounds], int)],
        column([round_.nbytes for round_ in rounds], int),
        column(start_s, float),
        column(end_s, float),
        column([round_.adds for round_ in rounds], bool),
    )
