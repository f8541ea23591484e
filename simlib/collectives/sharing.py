"""The messages of a schedule through shared links, in numpy: for many ranks at once.

What makes it fast: a message that starts at time t draws bandwidth one latency later, not before.
So within one latency from now it is known who will draw; and transfers that share no link, not
even through others, cannot influence each other in that window. All such sets of transfers move on
at once, each through its own moments: an array operation serves the next moment of every set.
"""

from __future__ import annotations

from math import inf

import numpy as np


def through_shared_links(schedule, topology, members, starts, reduce_Bps=inf):
    """Ends of the members, and the times of all messages; see `timing.time_of`.

    Returns
    -------
    ends : ndarray of float
    times : (list of ndarray, list of ndarray)
        Start and end of every message, in order of the schedule.
    """
    progress = _Progress(schedule, starts, reduce_Bps)
    src, dst = members[progress.src], members[progress.dst]
    lookahead_s, columns = _survey(topology, src, dst)
    pool = _Pool(topology, lookahead_s, len(columns))
    started = progress.begin()
    while len(started) or len(pool):
        if not len(started):
            started = progress.finish(*pool.pass_window())
            continue
        paths = topology.paths(src[started], dst[started])[:, columns]
        due_s = progress.start_s[started] + topology.latencies_s(src[started], dst[started])
        left = progress.nbytes[started] + float(topology.cluster.envelope_bytes)
        draws = (paths != pool.free).any(axis=1) & (left > 0)
        pool.add(started[draws], due_s[draws], left[draws], paths[draws])
        started = progress.finish(started[~draws], due_s[~draws])
    return progress.end_of_rank, ([progress.start_s], [progress.end_s])


def _survey(topology, src, dst):
    """What the messages have in common: their lookahead, and the columns of paths they use.

    The lookahead is the least latency of a message that draws bandwidth: a new message leaves
    those under way alone for so long.
    """
    same = topology.node_of[src] == topology.node_of[dst]
    examples = [np.flatnonzero(where)[0] for where in (same, ~same) if where.any()]
    src, dst = src[examples], dst[examples]
    draws = np.isfinite(topology.bandwidths_Bps(src, dst))
    lookahead_s = topology.latencies_s(src, dst)[draws].min(initial=inf)
    free = len(topology.link_bandwidth_Bps) - 1
    return lookahead_s, np.flatnonzero((topology.paths(src, dst) != free).any(axis=0))


def _distinct(numbers):
    """As `numpy.unique`, faster for some thousand."""
    numbers = np.sort(numbers)
    return numbers[np.diff(numbers, prepend=-1) > 0]


class _Progress:
    """Which rank is in which round, and so which messages have started.

    A *stage* is a rank's part in one round, where it has one; stages are numbered by rank, then
    round. A message starts when the stages of both its ends have been entered.
    """

    def __init__(self, schedule, starts, reduce_Bps):
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
        self._first = np.append(first, len(order))  # of each stage, in the halves
        self._rank = key[first] // len(rounds)
        stage = np.empty(len(order), dtype=index)
        stage[order] = np.cumsum(is_new, dtype=index) - 1
        self._sends_in, self._receives_in = stage[:messages], stage[messages:]
        self._open = np.diff(self._first)  # messages of each stage that are not done
        self._stage_end_s = np.full(len(first), -inf)
        added = np.bincount(self._receives_in, self.nbytes * adds, len(first))
        self._reducing_s = added / reduce_Bps
        self._ends_missing = np.full(messages, 2)  # of each message: ends not yet in its round
        self._starts = starts
        self.start_s = np.full(messages, -inf)
        self.end_s = np.full(messages, inf)
        self.end_of_rank = starts.copy()

    def begin(self):
        """All ranks enter their first stage; returns the messages that start."""
        first = np.flatnonzero(np.diff(self._rank, prepend=-1))
        return self._enter(first, self._starts[self._rank[first]])

    def finish(self, messages, ends_s):
        """These messages are done; returns those that start thereby."""
        if not len(messages):
            return messages
        self.end_s[messages] = ends_s
        stages = np.concatenate((self._sends_in[messages], self._receives_in[messages]))
        np.maximum.at(self._stage_end_s, stages, np.concatenate((ends_s, ends_s)))
        np.subtract.at(self._open, stages, 1)
        done = _distinct(stages[self._open[stages] == 0])
        time_s = self._stage_end_s[done] + self._reducing_s[done]
        self.end_of_rank[self._rank[done]] = time_s
        following = np.minimum(done + 1, len(self._rank) - 1)
        goes_on = (self._rank[following] == self._rank[done]) & (following > done)
        return self._enter(following[goes_on], time_s[goes_on])

    def _enter(self, stages, times_s):
        counts = self._first[stages + 1] - self._first[stages]
        skipped = np.repeat(self._first[stages] - np.cumsum(counts) + counts, counts)
        messages = self._message_of_half[np.arange(counts.sum()) + skipped]
        np.maximum.at(self.start_s, messages, np.repeat(times_s, counts))
        np.subtract.at(self._ends_missing, messages, 1)
        return _distinct(messages[self._ends_missing[messages] == 0])


class _Pool:
    """Transfers under way; the same arithmetic as `clockwork.network.Transfer`, on arrays."""

    def __init__(self, topology, lookahead_s, columns):
        self._bandwidth_Bps = topology.link_bandwidth_Bps
        self._lookahead_s = lookahead_s
        self.free = len(self._bandwidth_Bps) - 1
        self._message = np.empty(0, dtype=np.int64)
        self._paths = np.empty((0, columns), dtype=np.int64)
        self._due_s = np.empty(0)  # next event: the latency is over, or the end
        self._left = np.empty(0)  # bytes still to go at _since_s
        self._since_s = np.empty(0)
        self._rate_Bps = np.empty(0)  # 0 before it draws

    def __len__(self):
        return len(self._message)

    def add(self, messages, due_s, left, paths):
        """More transfers, which will draw from ``due_s`` on."""
        self._message = np.concatenate((self._message, messages))
        self._paths = np.concatenate((self._paths, paths))
        self._due_s = np.concatenate((self._due_s, due_s))
        self._left = np.concatenate((self._left, left))
        self._since_s = np.concatenate((self._since_s, due_s))
        self._rate_Bps = np.concatenate((self._rate_Bps, np.zeros(len(messages))))

    def pass_window(self):
        """Let one window pass; returns the messages that ended in it, and when."""
        horizon_s = self._due_s.min() + self._lookahead_s
        takes_part = (self._rate_Bps > 0) | (self._due_s <= horizon_s)
        paths = np.where(takes_part[:, None], self._paths, self.free)
        label = connected(paths, self.free)
        is_ended = np.zeros(len(self), dtype=bool)
        end_s = np.empty(len(self))
        while True:
            now_s = self._next_moments(label, horizon_s)
            acts = (self._due_s == now_s) & (now_s < inf)
            if not acts.any():
                break
            ends = acts & (self._rate_Bps > 0)
            is_ended |= ends
            end_s[ends] = now_s[ends]
            self._rate_Bps[ends], self._due_s[ends] = 0.0, inf
            paths[ends] = self.free
            drawing = (self._rate_Bps > 0) | (acts & ~ends)
            self._share(np.flatnonzero(drawing & (now_s < inf)), paths, now_s)
        ended = self._message[is_ended], end_s[is_ended]
        self._keep(~is_ended)
        return ended

    def _next_moments(self, label, horizon_s):
        """For each transfer, the next event of its set up to the horizon; infinite if none."""
        moment_s = np.full(len(self), inf)
        np.minimum.at(moment_s, label, self._due_s)
        moment_s[moment_s > horizon_s] = inf
        return moment_s[label]

    def _share(self, which, paths, now_s):
        """New rates for these; the count of bytes restarts only where the rate changes."""
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


def connected(paths, free):
    """A number for each transfer, the same for those connected through shared links.

    Parameters
    ----------
    paths : ndarray of int, shape (transfers, columns)
    free : int
        The link id that stands for none.
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


def fair_rates(paths, bandwidth_Bps):
    """Max-min fair rates, in bytes per second, for all sets of transfers at once.

    A link is a bottleneck where none of its transfers gets less elsewhere: it divides what it has
    equally. All bottlenecks there are at a time are settled together.

    Parameters
    ----------
    paths : ndarray of int, shape (transfers, columns)
        Links of each, at least one of them limited; the last link id stands for none.
    bandwidth_Bps : ndarray of float
        By link.
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
