"""Time the messages of a schedule on shared links, with numpy, for many ranks at once.

A message that starts at time t uses bandwidth only one latency later. So the code knows one latency
in advance which messages will use bandwidth. In this window, two transfers can influence each other
only if they share a link, directly or through other transfers. Transfers that share links form a
set. The code is fast because it treats all sets at the same time: one array operation handles the
next event of every set.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..model.cluster import Topology
    from .schedules import Schedule


NONE = -1


def through_shared_links(
    schedule: Schedule,
    topology: Topology,
    members: np.ndarray,
    starts: np.ndarray,
    reduce_Bps: float = inf,
    eager_limit_bytes: float = -1,
) -> tuple[np.ndarray, tuple[list[np.ndarray], list[np.ndarray]]]:
    """Ends of the members, and the times of all messages; see `timing.time_of`.

    Returns
    -------
    ends : ndarray of float
    times : (list of ndarray, list of ndarray)
        Start and end of every message, in order of the schedule.
    """
    progress = _Progress(schedule, starts, reduce_Bps, eager_limit_bytes)
    src, dst = members[progress.src], members[progress.dst]
    lookahead_s, columns = _survey(topology, src, dst)
    order = None
    if topology.cluster.in_order and (eager_limit_bytes >= 0 or _has_pair_twice(schedule)):
        order = _Order(src, dst)
    before = np.full(len(src), NONE) if order is None else order.before
    pool = _Pool(topology, lookahead_s, len(columns), before)
    # A rank that adds up enters its next round later, and its eager messages start later.
    is_ahead = order is not None and eager_limit_bytes >= 0 and reduce_Bps < inf
    started = progress.begin()
    while len(started) or len(pool):
        held = started[:0]
        if is_ahead and len(started):
            started, held = _due(started, progress.start_s, pool)
        if not len(started):
            started = np.append(held, progress.finish(*pool.pass_window()))
            continue
        if order is not None:
            order.start(started, progress.start_s[started])
        paths = topology.paths(src[started], dst[started])[:, columns]
        due_s = progress.start_s[started] + topology.latencies_s(src[started], dst[started])
        left = progress.nbytes[started] + float(topology.cluster.envelope_bytes)
        left /= topology.cards_between(src[started], dst[started])  # the parts go side by side
        crosses = (paths != pool.free).any(axis=1)
        stays = crosses & ((left > 0) | pool.is_behind(started))
        pool.add(started[stays], due_s[stays], left[stays], paths[stays])
        pool.is_done[started[~stays]] = True
        started = np.append(held, progress.finish(started[~stays], due_s[~stays]))
    return progress.end_of_rank, ([progress.start_s], [progress.end_s])


def _due(messages, start_s, pool):
    """The messages that start before any other event can happen, and the other messages."""
    starts_s = start_s[messages]
    is_due = starts_s <= (pool.next_s() if len(pool) else starts_s.min())
    return messages[is_due], messages[~is_due]


def _has_pair_twice(schedule):
    """Whether a rank sends two messages to the same other rank in the same round."""
    seen = {(id(round_.src), id(round_.dst)): round_ for round_ in schedule.rounds}
    return any(pair_twice(round_.src, round_.dst, schedule.n) for round_ in seen.values())


def pair_twice(src: np.ndarray, dst: np.ndarray, n: int) -> bool:
    """Whether two of these messages have the same sender and the same receiver among n ranks."""
    one_each = not len(src) or np.bincount(src).max() == 1
    return not one_each and len(np.unique(src * np.int64(n) + dst)) < len(src)


def _survey(topology, src, dst):
    """Properties of all messages: their lookahead, and the columns of paths that they use.

    The lookahead is the least latency of a message that uses bandwidth. For this long, a new
    message does not affect the messages under way.
    """
    same = topology.node_of[src] == topology.node_of[dst]
    if topology.cluster.uplink is None:
        examples = [np.flatnonzero(where)[0] for where in (same, ~same) if where.any()]
    else:  # of a message in parts, any part may cross an uplink: one message of each pair of cards
        ends = topology.card_of[src] * len(topology.link_bandwidth_Bps) + topology.card_of[dst]
        examples = np.unique(np.where(same, -1, ends), return_index=True)[1]
    src, dst = src[examples], dst[examples]
    draws = np.isfinite(topology.bandwidths_Bps(src, dst))
    lookahead_s = topology.latencies_s(src, dst)[draws].min(initial=inf)
    free = len(topology.link_bandwidth_Bps) - 1
    return lookahead_s, np.flatnonzero((topology.paths(src, dst) != free).any(axis=0))


def _distinct(numbers):
    """Like `numpy.unique`, but faster for some thousand values."""
    numbers = np.sort(numbers)
    return numbers[np.diff(numbers, prepend=-1) > 0]


class _Order:
    """The order of the messages from one rank to another.

    Attributes
    ----------
    before : ndarray of int
        For each started message, the message before it, or `NONE`.
    """

    def __init__(self, src, dst):
        pairs, self._pair = np.unique(
            src * (dst.max(initial=0) + np.int64(1)) + dst, return_inverse=True
        )
        self._last = np.full(len(pairs), NONE)
        self.before = np.full(len(src), NONE)

    def start(self, messages, start_s):
        """Note that these messages start. They are given in order of their starts, pair by pair."""
        pair = self._pair[messages]
        order = np.lexsort((messages, start_s, pair))
        messages, pair = messages[order], pair[order]
        follows = np.diff(pair, prepend=NONE) == 0
        self.before[messages] = np.where(follows, np.roll(messages, 1), self._last[pair])
        self._last[pair] = messages  # of each pair the last one stays


class _Progress:
    """The round that each rank has reached. It determines which messages have started.

    A *stage* is a rank's part in one round, if the rank takes part in this round. Stages are
    numbered by rank, then by round. A message starts when its sender and its receiver have entered
    their stages. An eager message starts when its sender has entered its stage. A stage is done
    when its rank has entered the stage and has done its part of each of its messages.
    """

    def __init__(self, schedule, starts, reduce_Bps, eager_limit_bytes):
        rounds = schedule.rounds
        index = np.int32 if 2 * schedule.num_messages < 2**31 else np.int64  # half the memory

        def column(name, dtype):
            return np.concatenate([getattr(round_, name) for round_ in rounds], dtype=dtype)

        self.src, self.dst = column("src", index), column("dst", index)
        self.nbytes, adds = column("nbytes", np.int64), column("adds", bool)
        messages = len(self.src)
        # Each message twice, as its sender's and its receiver's: the halves, sorted by stage.
        number = np.repeat(np.arange(len(rounds)), [len(round_) for round_ in rounds])
        key = np.concatenate((self.src, self.dst)) * np.int64(len(rounds))
        key.reshape(2, -1)[...] += number
        order = np.argsort(key, kind="stable").astype(index)
        key = key[order]
        is_new = np.empty(len(key), dtype=bool)
        is_new[:1], is_new[1:] = True, key[1:] != key[:-1]
        first = np.flatnonzero(is_new)
        self._message_of_half = order % index(messages)
        self._is_send = order < messages
        self._first = np.append(first, len(order))  # of each stage, in the halves
        self._rank = key[first] // len(rounds)
        stage = np.empty(len(order), dtype=index)
        stage[order] = np.cumsum(is_new, dtype=index) - 1
        self._sends_in, self._receives_in = stage[:messages], stage[messages:]
        # For each stage the number of its halves that are not done, plus one until it is entered.
        self._open = np.diff(self._first) + 1
        self._stage_end_s = np.full(len(first), -inf)
        added = np.bincount(self._receives_in, self.nbytes * adds, len(first))
        self._reducing_s = added / reduce_Bps
        self._is_eager = self.nbytes <= eager_limit_bytes
        self._ends_missing = np.full(messages, 2)  # by message: ranks not yet in its round
        self._starts = starts
        self.start_s = np.full(messages, -inf)
        self.end_s = np.full(messages, inf)
        self.end_of_rank = starts.copy()

    def begin(self):
        """All ranks enter their first stage; returns the messages that start."""
        first = np.flatnonzero(np.diff(self._rank, prepend=-1))
        return self._enter(first, self._starts[self._rank[first]])

    def finish(self, messages, ends_s):
        """Note that these messages are done. Returns the messages that may start now."""
        if not len(messages):
            return messages
        self.end_s[messages] = ends_s
        waits = ~self._is_eager[messages]  # the sender of an eager one has gone on
        stages = np.concatenate((self._sends_in[messages[waits]], self._receives_in[messages]))
        done = self._done_in(stages, np.concatenate((ends_s[waits], ends_s)))
        return self._enter(*self._go_on(done))

    def _done_in(self, stages, times_s):
        """Note one more thing done in each of these stages. Returns the complete stages."""
        np.maximum.at(self._stage_end_s, stages, times_s)
        np.subtract.at(self._open, stages, 1)
        return _distinct(stages[self._open[stages] == 0])

    def _go_on(self, done):
        """Let ranks leave these stages. Returns the stages that they enter, and when."""
        time_s = self._stage_end_s[done] + self._reducing_s[done]
        self.end_of_rank[self._rank[done]] = time_s
        following = np.minimum(done + 1, len(self._rank) - 1)
        goes_on = (self._rank[following] == self._rank[done]) & (following > done)
        return following[goes_on], time_s[goes_on]

    def _enter(self, stages, times_s):
        started = [np.empty(0, dtype=self._message_of_half.dtype)]
        while len(stages):
            counts = self._first[stages + 1] - self._first[stages]
            skipped = np.repeat(self._first[stages] - np.cumsum(counts) + counts, counts)
            halves = np.arange(counts.sum()) + skipped
            messages, times_of_halves_s = self._message_of_half[halves], np.repeat(times_s, counts)
            is_eager = self._is_eager[messages]
            leaves = is_eager & self._is_send[halves]
            counted = leaves | ~is_eager
            np.maximum.at(self.start_s, messages[counted], times_of_halves_s[counted])
            np.subtract.at(self._ends_missing, messages[counted], 1 + is_eager[counted])
            started.append(messages[counted][self._ends_missing[messages[counted]] == 0])
            left = messages[leaves]
            done = self._done_in(
                np.concatenate((stages, self._sends_in[left])),
                np.concatenate((times_s, times_of_halves_s[leaves])),
            )
            stages, times_s = self._go_on(done)
        return _distinct(np.concatenate(started))


class _Pool:
    """Transfers under way, with the same arithmetic as `clockwork.network.Transfer`, on arrays."""

    def __init__(self, topology, lookahead_s, columns, before):
        self.is_done = np.zeros(len(before), dtype=bool)  # by message
        self._before = before
        self._bandwidth_Bps = topology.link_bandwidth_Bps
        self._lookahead_s = lookahead_s
        self.free = len(self._bandwidth_Bps) - 1
        self._message = np.empty(0, dtype=np.int64)
        self._paths = np.empty((0, columns), dtype=np.int64)
        self._due_s = np.empty(0)  # next event: the latency is over, or the end; inf: not its turn
        self._left = np.empty(0)  # bytes still to go at _since_s
        self._since_s = np.empty(0)
        self._rate_Bps = np.empty(0)  # 0 before it draws

    def __len__(self):
        return len(self._message)

    def next_s(self):
        """The next moment at which something happens."""
        return self._due_s.min()

    def is_behind(self, messages):
        """Whether, for each message, an earlier one between the same ranks is not done."""
        before = self._before[messages]
        return (before != NONE) & ~self.is_done[before]

    def add(self, messages, due_s, left, paths):
        """Add transfers, which will use bandwidth from ``due_s`` on."""
        self._message = np.concatenate((self._message, messages))
        self._paths = np.concatenate((self._paths, paths))
        self._due_s = np.concatenate((self._due_s, due_s))
        self._left = np.concatenate((self._left, left))
        self._since_s = np.concatenate((self._since_s, due_s))
        self._rate_Bps = np.concatenate((self._rate_Bps, np.zeros(len(messages))))

    def pass_window(self):
        """Let one window pass; returns the messages that ended in it, and when."""
        horizon_s = self.next_s() + self._lookahead_s
        takes_part = (self._rate_Bps > 0) | (self._due_s <= horizon_s) | (self._due_s == inf)
        paths = np.where(takes_part[:, None], self._paths, self.free)
        label = connected(paths, self.free)
        is_ended = np.zeros(len(self), dtype=bool)
        end_s = np.empty(len(self))
        while True:
            now_s = self._next_moments(label, horizon_s)
            acts = (self._due_s == now_s) & (now_s < inf)
            if not acts.any():
                break
            drawing = self._turns(acts, paths, now_s, is_ended, end_s)
            self._share(np.flatnonzero(drawing & (now_s < inf)), paths, now_s)
        ended = self._message[is_ended], end_s[is_ended]
        self._keep(~is_ended)
        return ended

    def _turns(self, acts, paths, now_s, is_ended, end_s):
        """Let some transfers end and others begin. Returns the transfers that then use bandwidth.

        A transfer begins when its latency is over and the earlier transfers between the same
        ranks are done.
        """
        ends = acts & (self._rate_Bps > 0)
        begins = acts & ~ends
        drawing = (self._rate_Bps > 0) & ~ends
        while ends.any() or begins.any():
            is_ended |= ends
            end_s[ends] = now_s[ends]
            self.is_done[self._message[ends]] = True
            self._rate_Bps[ends] = 0.0
            self._due_s[ends | begins] = inf
            paths[ends] = self.free
            waits = (self._due_s == inf) & ~is_ended & ~drawing
            has_turn = np.flatnonzero(waits)
            has_turn = has_turn[~self.is_behind(self._message[has_turn])]
            ends = np.zeros(len(self), dtype=bool)
            begins = np.zeros(len(self), dtype=bool)
            ends[has_turn] = self._left[has_turn] == 0
            drawing[has_turn] = self._left[has_turn] > 0
        return drawing

    def _next_moments(self, label, horizon_s):
        """For each transfer, the next event of its set up to the horizon; infinite if none."""
        moment_s = np.full(len(self), inf)
        np.minimum.at(moment_s, label, self._due_s)
        moment_s[moment_s > horizon_s] = inf
        return moment_s[label]

    def _share(self, which, paths, now_s):
        """Set new rates for these. The count of bytes restarts only if the rate changes."""
        rates = fair_rates(paths[which], self._bandwidth_Bps)
        changed = rates != self._rate_Bps[which]
        which, rates = which[changed], rates[changed]
        now_s = now_s[which]
        self._left[which] -= self._rate_Bps[which] * (now_s - self._since_s[which])
        self._since_s[which] = now_s
        self._rate_Bps[which] = rates
        self._due_s[which] = np.maximum(now_s, now_s + self._left[which] / rates)

    def _keep(self, which):
        self._message = self._message[which]
        self._paths = self._paths[which]
        self._due_s = self._due_s[which]
        self._left = self._left[which]
        self._since_s = self._since_s[which]
        self._rate_Bps = self._rate_Bps[which]


def connected(paths: np.ndarray, free: int) -> np.ndarray:
    """A number for each transfer, the same for those connected through shared links.

    Parameters
    ----------
    paths : ndarray of int, shape (transfers, columns)
    free : int
        The link id that means "no link".
    """
    label = np.arange(len(paths))
    while True:
        of_link = np.full(free + 1, len(paths))
        np.minimum.at(of_link, paths, label[:, None])
        of_link[free] = len(paths)
        least = np.minimum(label, of_link[paths].min(axis=1))
        least = least[least]  # and what that one has found
        if (least == label).all():
            return label
        label = least


def fair_rates(paths: np.ndarray, bandwidth_Bps: np.ndarray) -> np.ndarray:
    """Max-min fair rates, in bytes per second, for all sets of transfers at once.

    A link is a bottleneck if none of its transfers gets less on another link. It then divides its
    bandwidth equally. All current bottlenecks are settled together.

    Parameters
    ----------
    paths : ndarray of int, shape (transfers, columns)
        Links of each transfer, at least one of them limited. The last link id means "no link". A
        transfer in several parts crosses the links of each part; its rate is the rate of one part.
    bandwidth_Bps : ndarray of float
        Bandwidth of each link.
    """
    rates = np.empty(len(paths))
    open_ = np.arange(len(paths))
    left_Bps, links = bandwidth_Bps, len(bandwidth_Bps)
    while len(open_):
        flat = paths.ravel()
        count = np.bincount(flat, minlength=links)
        share_Bps = left_Bps / np.maximum(count, 1)
        offered = share_Bps[paths]
        rate = offered.min(axis=1)
        is_least = offered == rate[:, None]
        is_bottleneck = np.bincount(flat, is_least.ravel(), links) == count
        settled = (is_least & is_bottleneck[paths]).any(axis=1)
        rates[open_[settled]] = rate[settled]
        used = np.where(settled, rate, 0.0)
        left_Bps = left_Bps - np.bincount(flat, np.repeat(used, paths.shape[1]), links)
        open_, paths = open_[~settled], paths[~settled]
    return rates
