"""Time the ops of a recorded run again on another network, without running the program."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict, deque
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from ..model.cluster import Cluster, Topology
from ..model.errors import DeadlockError, InvalidCallError
from ..model.steps import steps_of
from ..model.trace import ROOTED, Trace
from ..model.words import ranks_in_words
from .mailbox import Post
from .meetings import Call
from .scheduler import CONTROLLER
from .simulated_group import Request
from .simulation import Simulation

if TYPE_CHECKING:
    from .simulation_options import Options


def replay(recorded: Trace, cluster: Cluster, placement: Any, options: Options) -> tuple:
    """Time a recorded run on another cluster: see `Run.replay`.

    Parameters
    ----------
    recorded : Trace
    cluster : Cluster
    placement : str or list of int
    options : Options

    Returns
    -------
    trace : Trace
    wire : list of WireMessage or None
        The messages of collectives, if the caller wants them.
    """
    trace, simulation = _played(recorded, cluster, placement, options)
    return trace, simulation.wire_messages()


def transfers_of(
    recorded: Trace, cluster: Cluster, placement: Any, options: Options
) -> dict | None:
    """When data moved in the collectives of a simulated run. Replays it on its own cluster.

    Parameters
    ----------
    recorded : Trace
    cluster : Cluster
    placement : str or list of int
    options : Options
        The options of the simulation.

    Returns
    -------
    dict or None
        ``{(rank, seq): [(start_s, end_s), ...]}`` of the ops of collectives. None if simlib cannot
        replay the run, or if the replay differs, for example because the run was ended.
    """
    options = replace(options, expand=True, slow={}, kill={}, on_death="end")
    options = replace(options, seed=None, compute="flops")
    try:
        trace, simulation = _played(recorded, cluster, placement, options)
    except (InvalidCallError, DeadlockError):
        return None
    if not _are_alike(trace, recorded):
        return None
    device = cluster.device
    logs: dict = defaultdict(deque)
    for log in simulation.transfers.wire:
        logs[log.group.ranks, log.group.name].append(log)
    found = {}
    for collective in trace.collectives:
        log = logs[collective.group.ranks, collective.group.name].popleft()
        parts = log.transfers(device.reduce_Bps if device else inf)
        for rank, op in collective.ops.items():
            found[rank, op.seq] = parts.get(rank, [])
    return found


def _are_alike(trace, recorded):
    """Whether every op of a replay ended at its recorded time."""
    ends = {(op.rank, op.seq): op.end_s for op in trace}
    return all(
        op.end_s is None
        or math.isclose(op.end_s, ends[op.rank, op.seq], rel_tol=1e-9, abs_tol=1e-12)
        for op in recorded
    )


def _played(recorded, cluster, placement, options):
    """The trace of a replay, and the `Simulation` that made it."""
    if cluster.device is not None and cluster.device.asynchronous:
        raise InvalidCallError(
            "a run cannot be replayed on an asynchronous device: the trace does not say in which "
            "stream each op ran. Simulate the program on that cluster"
        )
    if not recorded.is_over:
        raise InvalidCallError(
            "only a completed run can be replayed, but in this run a rank never finished"
        )
    if any(op.peer is None and (op.is_p2p or op.kind in ROOTED) for op in recorded):
        raise InvalidCallError(
            "simlib can replay a run only if the record says which rank sent to which. This "
            "record lacks the root of a collective, or the source of a receive from any source"
        )
    size = recorded.world_size
    simulation = Simulation(Topology(cluster, size, placement), options)
    ranks = [
        _Rank(simulation, rank, ops, recorded.spans[rank])
        for rank, ops in enumerate(recorded.by_rank())
    ]
    scheduler = simulation.scheduler
    for rank in ranks:
        scheduler.ready(rank.number, 0.0)
    while (number := scheduler.next_rank()) != CONTROLLER:
        ranks[number].go_on()
    if scheduler.failure is not None:
        raise scheduler.failure
    _check_all_left(ranks)
    for rank in ranks:
        rank.complete()
    ops = sorted((op for rank in ranks for op in rank.ops), key=lambda op: (op.post_s, op.rank))
    trace = Trace(size, ops, [(0.0, rank.left_s) for rank in ranks])
    trace.pieces = _pieces_at_new_times(recorded, trace)
    return trace, simulation


def _pieces_at_new_times(recorded, trace):
    """The named pieces of a recorded run, moved to the times of a replay's ops."""
    if not recorded.pieces:
        return []
    moments = [_Moments() for _ in range(trace.world_size)]
    for rank, (old, new) in enumerate(zip(recorded.spans, trace.spans, strict=True)):
        moments[rank].add(old, new)
    ops = {(op.rank, op.seq): op for op in trace}
    for op in recorded:
        new = ops[op.rank, op.seq]
        own = moments[op.rank]
        own.add((op.post_s, op.wait_s), (new.post_s, new.wait_s))
        if op.wait_s is not None or not op.async_op:
            own.add([op.end_s], [new.end_s])
    pieces = []
    for piece in recorded.pieces:
        start_s, end_s = moments[piece.rank].of_piece(piece.start_s, piece.end_s)
        pieces.append(replace(piece, start_s=start_s, end_s=end_s))
    return sorted(pieces, key=lambda piece: (piece.start_s, piece.rank))


class _Moments:
    """A rank's moments in a replay. Its own work takes as long as before, but waits may change."""

    def __init__(self):
        self._first, self._last = {}, {}
        self._in_order = []

    def add(self, old, new):
        """These moments now have those times."""
        for old_s, new_s in zip(old, new, strict=True):
            if old_s is not None and new_s is not None:
                self._first[old_s] = min(new_s, self._first.get(old_s, inf))
                self._last[old_s] = max(new_s, self._last.get(old_s, -inf))

    def of_piece(self, start_s, end_s):
        """New start and end of a piece: it starts as late, and ends as early, as its moments
        allow."""
        start = self._at(start_s, self._last)
        return start, None if end_s is None else max(start, self._at(end_s, self._first))

    def _at(self, moment_s, known):
        if moment_s in known:
            return known[moment_s]
        if len(self._in_order) < len(known):
            self._in_order = sorted(known)
        old = self._in_order
        after = bisect.bisect(old, moment_s)
        left, right = old[after - 1], old[min(after, len(old) - 1)]
        if after == len(old):
            return self._last[left] + moment_s - left
        share = (moment_s - left) / (right - left)
        return self._last[left] + share * (self._first[right] - self._last[left])


def _check_all_left(ranks):
    stuck = [rank for rank in ranks if rank.left_s is None]
    if stuck:
        sites = {rank.number: rank.site for rank in stuck}
        where = ", ".join(f"rank {number} in {site}" for number, site in list(sites.items())[:4])
        raise DeadlockError(
            f"{ranks_in_words(sites)} wait forever in this replay: {where}. If the run was "
            "recorded with eager sends, replay it with eager sends",
            sites,
        )


class _Rank:
    """One rank of a replay, which goes through its recorded steps and stops when it has to wait."""

    def __init__(self, simulation, number, ops, span):
        self.number = number
        self.left_s = None
        self._simulation = simulation
        self.ops = [replace(op) for op in ops]
        self._requests = {}
        self._steps = steps_of(self.ops, span)
        self._at = 0
        self._is_due = False
        self._next_number = self.ops[0].seq if self.ops else 0

    @property
    def site(self):
        """The line of the op in which it waits."""
        return self.ops[self._steps[self._at].number].site

    def go_on(self):
        """Take steps until the rank has to wait. The scheduler calls this again when the wait is
        over."""
        scheduler = self._simulation.scheduler
        clocks = scheduler.clocks
        while self._at < len(self._steps):
            step = self._steps[self._at]
            if not self._is_due:
                self._simulation.time.work(self.number, step.gap_s, self._next_number)
                self._is_due = True
            if scheduler.is_behind(clocks[self.number]):
                scheduler.ready(self.number, clocks[self.number])
                return
            scheduler.reach(clocks[self.number])
            if step.what == "wait" and not self._waited(step.number):
                return
            if step.what == "post":
                self._post(step.number)
            self._at += 1
            self._is_due = False
        self.left_s = clocks[self.number]

    def complete(self):
        """Note the ends of ops for which no rank waited."""
        for number, op in enumerate(self.ops):
            if op.end_s is None:
                op.end_s = self._requests[number].end_s

    def _waited(self, number):
        """Whether the op is complete. If not, this rank continues when the op completes."""
        clocks = self._simulation.scheduler.clocks
        op, request = self.ops[number], self._requests[number]
        if op.wait_s is None:
            op.wait_s = clocks[self.number]
        if request.end_s is None:
            request.await_end()
            return False
        self._simulation.time.catch_up(self.number, request.end_s)
        op.end_s = clocks[self.number]
        return True

    def _post(self, number):
        op = self.ops[number]
        self._next_number = self.ops[number + 1].seq if number + 1 < len(self.ops) else op.seq + 1
        simulation = self._simulation
        clock = simulation.scheduler.clocks[self.number]
        op.post_s, op.wait_s, op.end_s = clock, None, None
        request = self._requests[number] = Request(simulation, self.number, 0, None)
        ranks = op.group.ranks
        mine = ranks.index(op.rank)
        if not op.is_p2p:
            channel = simulation.channel(op.group.name, ranks)
            channel.post(mine, _call_of(op, request))
            return
        peer = ranks.index(op.peer)
        src, dst = (mine, peer) if op.kind == "send" else (peer, mine)
        is_eager = op.kind == "send" and op.nbytes <= simulation.options.eager_limit_bytes
        post = Post(src, dst, op.dtype, op.nbytes, request, None, clock, is_eager=is_eager)
        mailbox = simulation.mailbox(op.group, dst, op.tag)
        mailbox.send(post) if op.kind == "send" else mailbox.receive(post)


def _call_of(op, request):
    elements = sum(map(math.prod, op.shapes))
    return Call(
        kind=op.kind,
        rank=op.rank,
        group=op.group,
        peer=op.peer,
        reduce_op=op.reduce_op,
        dtype=op.dtype,
        shapes=op.shapes,
        splits=op.splits,
        nbytes=op.nbytes,
        itemsize=op.nbytes // elements if elements else 1,
        request=request,
    )
