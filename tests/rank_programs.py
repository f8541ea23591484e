"""Collectives as programs of their ranks, and what they take, in fractions.

Each program is written from the paper or library that `simlib.collectives` names, in the words of
one rank: a list of steps; in a step a rank posts sends and receives together and waits for all. So
they share nothing with the schedules of `simlib`, which state whole rounds. `take` puts programs
through `fluid.ExactNetwork`.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from math import ceil, inf, log2, sqrt
from typing import NamedTuple


class Send(NamedTuple):
    """A message to another rank."""

    peer: int
    nbytes: int


class Recv(NamedTuple):
    """A message from another rank; ``adds``: it is added to what the rank has."""

    peer: int
    nbytes: int
    adds: bool = False


class Message:
    """The k-th message from one rank to another."""

    def __init__(self, src, dst, number):
        self.key = src, dst, number
        self.posted = set()
        self.nbytes = None
        self.flow = None
        self.has_come = False


class Ranks:
    """Ranks on their way through their programs.

    Where both are posted the k-th send of a pair meets the k-th receive, and their transfer starts.
    An eager one starts when the send is posted, and the sender has no more to do with it then. A
    step is over when all of it is done; a rank then adds up what came to be added, and goes on.
    """

    def __init__(self, programs, network, starts, reduce_Bps, eager_limit_bytes):
        self._programs = programs
        self._network = network
        self._reduce_Bps = reduce_Bps
        self._eager_limit_bytes = eager_limit_bytes
        self._at = [-1] * len(programs)
        self._open = [0] * len(programs)
        self._posted = defaultdict(int)  # by side and pair
        self.messages = {}
        self._of_flow = {}
        self._to_start = []
        self._entries = [(Fraction(start), rank) for rank, start in enumerate(starts)]
        self.ends = [None] * len(programs)

    def go(self):
        """Let everything happen."""
        while (now := min([time for time, _ in self._entries] + [self._network.next_s()])) < inf:
            for flow in self._network.advance(now):
                self._arrived(self._of_flow.pop(flow), now)
            while here := [entry for entry in self._entries if entry[0] == now]:
                for entry in here:
                    self._entries.remove(entry)
                    self._enter(entry[1], now)
            for message in sorted(self._to_start, key=lambda message: message.key):
                src, dst, _ = message.key
                message.flow = self._network.start(now, src, dst, message.nbytes)
                self._of_flow[message.flow] = message
            self._to_start = []

    def _enter(self, rank, now):
        self._at[rank] += 1
        if self._at[rank] == len(self._programs[rank]):
            self.ends[rank] = now
            return
        step = self._programs[rank][self._at[rank]]
        self._open[rank] = sum(not self._is_done_on_posting(rank, post) for post in step)
        if not self._open[rank]:
            self._leave(rank, now)

    def _is_done_on_posting(self, rank, post):
        side = type(post)
        pair = (rank, post.peer) if side is Send else (post.peer, rank)
        number = self._posted[side, pair]
        self._posted[side, pair] += 1
        message = self.messages.setdefault((*pair, number), Message(*pair, number))
        assert message.nbytes in (None, post.nbytes), f"{message.key}: sizes differ"
        message.nbytes = post.nbytes
        message.posted.add(side)
        is_eager = post.nbytes <= self._eager_limit_bytes
        if message.posted == {Send, Recv} and not is_eager or side is Send and is_eager:
            self._to_start.append(message)
        return is_eager and (side is Send or message.has_come)

    def _arrived(self, message, now):
        src, dst, _ = message.key
        message.has_come = True
        is_eager = message.nbytes <= self._eager_limit_bytes
        for rank, side in ((src, Send), (dst, Recv)):
            if side in message.posted and not (is_eager and side is Send):
                self._open[rank] -= 1
                if not self._open[rank]:
                    self._leave(rank, now)

    def _leave(self, rank, now):
        step = self._programs[rank][self._at[rank]]
        added = sum(post.nbytes for post in step if type(post) is Recv and post.adds)
        adding_s = 0 if self._reduce_Bps == inf else added / Fraction(self._reduce_Bps)
        self._entries.append((now + adding_s, rank))


def take(programs, network, starts, reduce_Bps=inf, eager_limit_bytes=-1):
    """When each rank is through, and when each message of a pair started and ended.

    Returns
    -------
    ends : list of float
    times : dict
        ``{(src, dst): [(start_s, end_s), ...]}``, in the order of posting.
    """
    programs = [[step for step in program if step] for program in programs]
    ranks = Ranks(programs, network, starts, reduce_Bps, eager_limit_bytes)
    ranks.go()
    assert None not in ranks.ends, "ranks wait for ever"
    times = defaultdict(list)
    for (src, dst, _), message in sorted(ranks.messages.items()):
        times[src, dst].append((float(message.flow.start_s), float(message.flow.end_s)))
    return [float(end) for end in ranks.ends], dict(times)


# -- what collectives are made of ------------------------------------------------------------------
# r: this rank, n: how many there are, m: bytes, v: places from the root.


def cut(nbytes, parts, itemsize=1):
    """Bytes of the parts, whole elements, the first ones larger."""
    each, more = divmod(nbytes // itemsize, parts)
    return [(each + (part < more)) * itemsize for part in range(parts)]


def powers(n):
    """1, 2, 4... below n."""
    return [2**k for k in range(n) if 2**k < n]


def run_of(chunks, first, count):
    """Bytes of so many chunks in a row; after the last comes the first."""
    return sum(chunks[(first + i) % len(chunks)] for i in range(count))


def ring_steps(r, ranks, chunks, lag, adds):
    """Round a ring of ``ranks``: the one at place i passes chunk i - lag - k on, in step k."""
    place, n = ranks.index(r), len(ranks)
    for k in range(n - 1):
        yield [
            Send(ranks[(place + 1) % n], chunks[(place - lag - k) % n]),
            Recv(ranks[place - 1], chunks[(place - 1 - lag - k) % n], adds),
        ]


def scatter_binomial(r, n, m, root, itemsize, **_):
    """Down a binomial tree: v gets what is for v and those up to its lowest bit behind it."""
    v, chunks, steps = (r - root) % n, cut(m, n, itemsize), []
    reach = v & -v or 2**n
    if v:
        nbytes = run_of(chunks, r, min(reach, n - v))
        steps.append([Recv((r - reach) % n, nbytes)])
    for d in reversed(powers(min(reach, n))):
        if v + d < n:
            steps.append([Send((r + d) % n, run_of(chunks, r + d, min(d, n - v - d)))])
    return steps


def tree_down(r, ranks, m):
    """The first of ``ranks`` has m bytes, all get them, down a binomial tree."""
    place, n = ranks.index(r), len(ranks)
    reach = place & -place or 2**n
    if place:
        yield [Recv(ranks[place - reach], m)]
    for d in reversed(powers(min(reach, n))):
        if place + d < n:
            yield [Send(ranks[place + d], m)]


def tree_up(r, ranks, m):
    """Sums run to the first of ``ranks``."""
    place, n = ranks.index(r), len(ranks)
    for d in powers(n):
        if place & d:
            yield [Send(ranks[place - d], m)]
            return
        if place + d < n:
            yield [Recv(ranks[place + d], m, adds=True)]


def from_root(n, root):
    """The ranks by their place from the root."""
    return [(root + v) % n for v in range(n)]


class Fold:
    """Of n ranks the largest power of two takes part; the first few pairs are one each.

    ``of[j]`` is the rank that is participant j, ``stands_for[j]`` the ranks whose data it holds.
    """

    def __init__(self, n, odd_leaves=False):
        self.p = 2 ** (n.bit_length() - 1)
        extra = n - self.p
        pairs = [(2 * i, 2 * i + 1) for i in range(extra)]
        rest = range(2 * extra, n)
        self.stands_for = [list(pair) for pair in pairs] + [[rank] for rank in rest]
        self.taker = dict(pairs) if not odd_leaves else {odd: even for even, odd in pairs}
        self.of = [ranks[0 if odd_leaves else -1] for ranks in self.stands_for]
        self.leaver = {taker: leaver for leaver, taker in self.taker.items()}

    def into(self, r, nbytes, adds=True):
        """Who leaves hands over ``nbytes(leaver)``."""
        if r in self.taker:
            yield [Send(self.taker[r], nbytes(r))]
        if r in self.leaver:
            yield [Recv(self.leaver[r], nbytes(self.leaver[r]), adds)]

    def back(self, r, nbytes):
        """And gets ``nbytes(leaver)`` at the end."""
        if r in self.leaver:
            yield [Send(self.leaver[r], nbytes(self.leaver[r]))]
        if r in self.taker:
            yield [Recv(self.taker[r], nbytes(r))]

    def place(self, r):
        """Which participant it is; None where it has left."""
        return self.of.index(r) if r in self.of else None

    def exchange(self, r, distances, sent, adds):
        """Participants at each distance exchange; ``sent(j, d)``: bytes that j sends."""
        j = self.place(r)
        for d in distances if j is not None else ():
            yield [Send(self.of[j ^ d], sent(j, d)), Recv(self.of[j ^ d], sent(j ^ d, d), adds)]

    def whole(self, r, m, *exchanges):
        """Whole vectors come in and go back; in between are exchanges."""
        steps = [*self.into(r, lambda leaver: m)]
        for each in exchanges:
            steps += self.exchange(r, *each)
        return [*steps, *self.back(r, lambda leaver: m)]

    def halving_near(self, chunks):
        """Bytes that participant j sends at distance d = 1, 2, 4...: what it will not keep."""

        def kept(j, d):
            """First and length of what j keeps after the exchange at distance d."""
            first, length = 0, self.p
            for bit in powers(2 * d):
                length //= 2
                first += length if j & bit else 0
            return first, length

        return lambda j, d: run_of(chunks, *kept(j ^ d, d))

    def held_near(self, chunks):
        """Bytes that j has before the exchange at distance d = p/2, p/4... of the way back."""
        halving = self.halving_near(chunks)
        return lambda j, d: halving(j ^ d, d)

    def block(self, chunks, j, d):
        """Bytes of the d participants among which j is, aligned to d: a chunk for each rank."""
        first = j // d * d
        return sum(chunks[rank] for i in range(first, first + d) for rank in self.stands_for[i])


# -- broadcast, scatter, gather, reduce ------------------------------------------------------------


def broadcast_flat(r, n, m, root, **_):
    if r != root:
        return [[Recv(root, m)]]
    return [[Send(other, m)] for other in from_root(n, root)[1:]]


def broadcast_spread(r, n, m, root, **_):
    if r != root:
        return [[Recv(root, m)]]
    return [[Send(other, m) for other in range(n) if other != root]]


def broadcast_binomial(r, n, m, root, **_):
    return [*tree_down(r, from_root(n, root), m)]


def broadcast_scatter_all_gather(r, n, m, root, itemsize, **_):
    return [*scatter_binomial(r, n, m, root, itemsize), *all_gather_ring(r, n, m, itemsize)]


def broadcast_scatter_doubling(r, n, m, root, itemsize, **_):
    gather = all_gather_recursive_doubling(r, n, m, itemsize)
    return [*scatter_binomial(r, n, m, root, itemsize), *gather]


def broadcast_chain(r, n, m, root, itemsize, chunks, **_):
    sizes, line = cut(m, chunks, itemsize), from_root(n, root)
    return [*along(r, line, sizes, adds=False)]


def along(r, line, sizes, adds):
    """Chunk after chunk along a line: while one comes the one before is sent on."""
    place = line.index(r)
    for k in range(len(sizes) + 1):
        step = []
        if place > 0 and k < len(sizes):
            step.append(Recv(line[place - 1], sizes[k], adds))
        if place + 1 < len(line) and k > 0:
            step.append(Send(line[place + 1], sizes[k - 1]))
        yield step


def scatter_flat(r, n, m, root, itemsize, **_):
    parts = cut(m, n, itemsize)
    if r != root:
        return [[Recv(root, parts[r])]]
    return [[Send(other, parts[other])] for other in from_root(n, root)[1:]]


def scatter_spread(r, n, m, root, itemsize, **_):
    steps = scatter_flat(r, n, m, root, itemsize)
    return steps if r != root else [[post for (post,) in steps]]


def gather_flat(r, n, m, root, itemsize, **_):
    return backwards(scatter_flat(r, n, m, root, itemsize), turned=False)


def gather_spread(r, n, m, root, itemsize, **_):
    return backwards(scatter_spread(r, n, m, root, itemsize))


def gather_binomial(r, n, m, root, itemsize, **_):
    return backwards(scatter_binomial(r, n, m, root, itemsize))


def backwards(steps, turned=True, adds=False):
    """The other way round: who sent receives; ``turned``: the last step first."""
    steps = steps[::-1] if turned else steps
    return [
        [
            Recv(post.peer, post.nbytes, adds) if type(post) is Send else Send(*post[:2])
            for post in step
        ]
        for step in steps
    ]


def reduce_flat(r, n, m, root, **_):
    return backwards(broadcast_flat(r, n, m, root), turned=False, adds=True)


def reduce_binomial(r, n, m, root, **_):
    return [*tree_up(r, from_root(n, root), m)]


def reduce_rabenseifner(r, n, m, root, itemsize, **_):
    fold = Fold(n, odd_leaves=True)
    chunks = cut(m, fold.p, itemsize)
    steps = [
        *fold.into(r, lambda leaver: m),
        *fold.exchange(r, powers(fold.p), fold.halving_near(chunks), adds=True),
    ]
    if root in fold.taker:  # rank 0 hands its place over, and the chunk that it has
        steps += [[Send(root, chunks[0])]] if r == 0 else []
        steps += [[Recv(0, chunks[0])]] if r == root else []
        fold.of[0] = root
    j, last = fold.place(r), fold.place(root)
    held = fold.held_near(chunks)
    for d in reversed(powers(fold.p)):
        if j is None or (j ^ last) % d != (j ^ last) and (j ^ last) >= 2 * d:
            continue  # it has handed over what it had
        if j & d != last & d:
            steps.append([Send(fold.of[j ^ d], held(j, d))])
        else:
            steps.append([Recv(fold.of[j ^ d], held(j ^ d, d))])
    return steps


def reduce_chain(r, n, m, root, itemsize, chunks, **_):
    line = from_root(n, root)[::-1]
    return [*along(r, line, cut(m, chunks, itemsize), adds=True)]


# -- all_reduce ------------------------------------------------------------------------------------


def all_reduce_ring(r, n, m, itemsize, **_):
    ranks, chunks = [*range(n)], cut(m, n, itemsize)
    return [*ring_steps(r, ranks, chunks, 1, True), *ring_steps(r, ranks, chunks, 0, False)]


def all_reduce_ring_segmented(r, n, m, itemsize, chunks, **_):
    """As in Open MPI's comment: phase after phase round the ring, then a ring of whole blocks."""
    blocks = cut(m, n, itemsize)
    segments = [cut(block, chunks, itemsize) for block in blocks]
    steps = []
    for phase in range(chunks):
        steps += ring_steps(r, [*range(n)], [of[phase] for of in segments], 1, True)
    return [*steps, *ring_steps(r, [*range(n)], blocks, 0, False)]


def all_reduce_recursive_doubling(r, n, m, **_):
    fold = Fold(n)
    return fold.whole(r, m, (powers(fold.p), lambda j, d: m, True))


def all_reduce_rabenseifner(r, n, m, itemsize, **_):
    fold = Fold(n)
    chunks, near_to_far = cut(m, fold.p, itemsize), powers(fold.p)
    halving = near_to_far, fold.halving_near(chunks), True
    return fold.whole(r, m, halving, (near_to_far[::-1], fold.held_near(chunks), False))


def all_reduce_rabenseifner_far(r, n, m, itemsize, **_):
    fold = Fold(n)
    chunks, near_to_far = cut(m, fold.p, itemsize), powers(fold.p)

    def kept(j, d):
        return run_of(chunks, j // d * d, d)

    halving = near_to_far[::-1], lambda j, d: kept(j ^ d, d), True
    return fold.whole(r, m, halving, (near_to_far, kept, False))


def all_reduce_binomial(r, n, m, **_):
    return [*tree_up(r, [*range(n)], m), *tree_down(r, [*range(n)], m)]


def all_reduce_naive(r, n, m, **_):
    return [*reduce_flat(r, n, m, 0), *broadcast_flat(r, n, m, 0)]


def nodes_in_order(node_of):
    """The ranks of each node; nodes by their first rank."""
    return [
        [rank for rank, there in enumerate(node_of) if there == node]
        for node in dict.fromkeys(node_of)
    ]


def all_reduce_leader(r, n, m, itemsize, node_of, **_):
    nodes = nodes_in_order(node_of)
    (mine,) = (ranks for ranks in nodes if r in ranks)
    leaders = [ranks[0] for ranks in nodes]
    chunks = cut(m, len(nodes), itemsize)
    steps = [*tree_up(r, mine, m)]
    if r in leaders:
        steps += ring_steps(r, leaders, chunks, 1, True)
        steps += ring_steps(r, leaders, chunks, 0, False)
    return [*steps, *tree_down(r, mine, m)]


def all_reduce_hierarchical(r, n, m, itemsize, node_of, **_):
    nodes = nodes_in_order(node_of)
    (mine,) = (ranks for ranks in nodes if r in ranks)
    k, lanes = len(nodes), max(map(len, nodes))
    chunks = cut(m, lanes * k, itemsize)
    lane_chunks = [chunks[lane * k : lane * k + k] for lane in range(lanes)]
    owner = [
        [rank for rank, width in zip(ranks, cut(lanes, len(ranks)), strict=True)
         for _ in range(width)]
        for ranks in nodes
    ]  # fmt: skip
    owner_here = owner[nodes.index(mine)]
    blocks = [
        sum(sum(lane_chunks[lane]) for lane in range(lanes) if owner_here[lane] == rank)
        for rank in mine
    ]
    steps = [*ring_steps(r, mine, blocks, 1, True)]
    for lag, adds in ((1, True), (0, False)):
        rings = [
            ring_steps(r, [owners[lane] for owners in owner], lane_chunks[lane], lag, adds)
            for lane in range(lanes)
            if owner_here[lane] == r
        ]
        steps += [sum(at_once, []) for at_once in zip(*rings, strict=True)]
    return [*steps, *ring_steps(r, mine, blocks, 0, False)]


# -- all_gather, reduce_scatter, all_to_all, barrier -----------------------------------------------


def all_gather_ring(r, n, m, itemsize, **_):
    return [*ring_steps(r, [*range(n)], cut(m, n, itemsize), 0, False)]


def all_gather_recursive_doubling(r, n, m, itemsize, **_):
    fold, parts = Fold(n), cut(m, n, itemsize)
    return [
        *fold.into(r, lambda leaver: parts[leaver], adds=False),
        *fold.exchange(r, powers(fold.p), lambda j, d: fold.block(parts, j, d), adds=False),
        *fold.back(r, lambda leaver: m - parts[leaver]),
    ]


def all_gather_bruck(r, n, m, itemsize, **_):
    parts = cut(m, n, itemsize)
    return [
        [
            Send((r - d) % n, run_of(parts, r, min(d, n - d))),
            Recv((r + d) % n, run_of(parts, r + d, min(d, n - d))),
        ]
        for d in powers(n)
    ]


def reduce_scatter_ring(r, n, m, itemsize, **_):
    return [*ring_steps(r, [*range(n)], cut(m, n, itemsize), 1, True)]


def reduce_scatter_recursive_halving(r, n, m, itemsize, **_):
    fold, parts = Fold(n), cut(m, n, itemsize)
    distances = reversed(powers(fold.p))
    return [
        *fold.into(r, lambda leaver: m),
        *fold.exchange(r, distances, lambda j, d: fold.block(parts, j ^ d, d), adds=True),
        *fold.back(r, lambda leaver: parts[leaver]),
    ]


def reduce_scatter_pairwise(r, n, m, itemsize, **_):
    parts = cut(m, n, itemsize)
    return [
        [Send((r + k) % n, parts[(r + k) % n]), Recv((r - k) % n, parts[r], adds=True)]
        for k in range(1, n)
    ]


def all_to_all_pairwise(r, n, m, itemsize, **_):
    parts = cut(m, n, itemsize)
    return [
        [Send((r + k) % n, parts[(r + k) % n]), Recv((r - k) % n, parts[r])] for k in range(1, n)
    ]


def all_to_all_spread(r, n, m, itemsize, **_):
    return [sum(all_to_all_pairwise(r, n, m, itemsize), [])]


def barrier_dissemination(r, n, **_):
    return [[Send((r + d) % n, 0), Recv((r - d) % n, 0)] for d in powers(n)]


def barrier_binomial(r, n, **_):
    return all_reduce_binomial(r, n, 0)


def barrier_flat(r, n, **_):
    return all_reduce_naive(r, n, 0)


def chunks_of(name, n, m, link):
    """Into how many chunks `simlib.simulate` cuts for an algorithm; None where it does not ask."""
    if name == "chain":
        return best_chunks(m, link, n - 2)
    if name == "double_tree":
        return best_chunks(ceil(m / 2), link, ceil(log2(n)) - 1)
    return max(1, ceil(m / n / 2**20)) if name == "ring_segmented" else None


def best_chunks(m, link, fill):
    """The s with which (fill + s) (latency + m / s / bandwidth) is least, at most one a byte."""
    if fill <= 0 or m == 0 or link.bandwidth_Bps == inf:
        return 1
    if link.latency_s == 0:
        return m
    return int(min(max(1, round(sqrt(m / link.bandwidth_Bps * fill / link.latency_s))), m))


def programs_of(kind, name, n, **given):
    """The program of each rank; None where none is written here.

    Parameters
    ----------
    given : dict
        m, root, itemsize, chunks, node_of.
    """
    program = written().get(f"{kind}_{name}")
    return program and [program(r, n, **given) for r in range(n)]


def written():
    """All programs by name, those of modules that are made of what stands here, too."""
    import smp_programs
    import tree_programs

    return vars(smp_programs) | vars(tree_programs) | globals()


def programs_of_schedule(schedule):
    """The program of each rank, read out of a `Schedule`."""
    programs = [[] for _ in range(schedule.n)]
    for round_ in schedule.rounds:
        steps = defaultdict(list)
        columns = (round_.src, round_.dst, round_.nbytes, round_.adds)
        for src, dst, nbytes, adds in zip(*(column.tolist() for column in columns), strict=True):
            steps[src].append(Send(dst, nbytes))
            steps[dst].append(Recv(src, nbytes, adds))
        for rank, step in steps.items():
            programs[rank].append(step)
    return programs
