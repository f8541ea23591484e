"""One simulation: its ranks' ops between the scheduler, the matcher's rules and the network."""

from __future__ import annotations

import time
from functools import partial
from math import inf

import numpy as np

from ..collectives.choice import schedule
from ..model.chance import Pace
from .collective_in_flight import Plan, Transfers
from .group_collectives import Channel
from .mailbox import Mailbox
from .network import Network
from .scheduler import Scheduler
from .wire_log import WireLog


class Simulation:
    """What all simulated ranks share.

    Parameters
    ----------
    topology : Topology
    options : Options
    """

    def __init__(self, topology, options):
        self.topology = topology
        self.options = options
        network = Network(topology)
        self.scheduler = Scheduler(topology.world_size, network, options.seed, options.begin_s)
        self.transfers = Transfers(topology, self.scheduler, options.eager_limit_bytes)
        self.wire = [] if options.expand else None
        self._channels = {}
        self._mailboxes = {}
        self._plans = {}
        self._futures = [[] for _ in range(topology.world_size)]
        self.deaths = {}  # rank -> when survivors see that it has died, where they go on
        self.logs = []
        self.ranks = None
        self.beside = None  # by rank: what else works on its device, as `WorkBeside`
        self.dispatch_modes = [None] * topology.world_size
        self._paces = {rank: Pace(slow, rank) for rank, slow in options.slow.items()}
        self._calls = [0] * topology.world_size
        is_measured = options.compute == "measured"
        self._measured = [0.0] * topology.world_size if is_measured else None

    # Time

    def settle(self, rank):
        """Before an op: let all happen that comes before this rank's clock; returns the clock."""
        self.take_in(rank)
        if self._measured is None:
            return self.scheduler.settle(rank)
        self.work(rank, max(0.0, time.thread_time() - self._measured[rank]))
        clock = self.scheduler.settle(rank)
        self.begin_to_measure(rank)
        return clock

    def take_in(self, rank):
        """What other threads of the rank have computed is on its clock from here on."""
        if self.beside is not None and self.beside[rank].took_part:
            self.work(rank, self.beside[rank].take())

    def clock(self, rank):
        """The rank's clock, as the rank itself reads it."""
        self.take_in(rank)
        return self.scheduler.clocks[rank]

    def begin_to_measure(self, rank):
        """Where computing takes the time it really takes: from here on."""
        if self._measured is not None:
            self._measured[rank] = time.thread_time()

    def catch_up(self, rank, time_s):
        """The rank's clock reaches at least this moment, at which what it waited for has come."""
        clocks = self.scheduler.clocks
        if clocks[rank] < time_s:
            clocks[rank] = time_s
        if self._measured is not None:
            self.begin_to_measure(rank)

    def sleep(self, rank, seconds):
        """The rank does nothing for so long; it may wait for what others do meanwhile."""
        self.scheduler.clocks[rank] += seconds
        self.settle(rank)  # a file, for example

    def advance(self, rank, seconds):
        """The rank calls `simlib.compute`: a piece of its own, longer where the rank is slow."""
        pace = self._paces.get(rank)
        if pace is not None:
            seconds *= pace.factor(self._calls[rank])
            self._calls[rank] += 1
        self.scheduler.clocks[rank] += seconds
        if self.scheduler.clocks[rank] > self.options.kill.get(rank, inf):
            self.settle(rank)  # it is dead by then, and does nothing of what follows

    def work(self, rank, seconds, number=None):
        """The rank computes for so long, before the op of this number: by default its next one."""
        pace = self._paces.get(rank)
        if pace is not None:
            seconds *= pace.factor(self.logs[rank].posted if number is None else number)
        self.scheduler.clocks[rank] += seconds

    def uncounted(self, rank, function, *args):
        """What ``function(*args)`` gives; the dispatch mode of the rank counts nothing of it."""
        mode = self.dispatch_modes[rank]
        if mode is None:
            return function(*args)
        before, mode.paused = mode.paused, True
        try:
            return function(*args)
        finally:
            mode.paused = before

    def die(self, rank, detection_s):
        """From now on a rank is dead; ops that need it fail so much later, when that is seen."""
        time_s = self.scheduler.now_s
        self.deaths[rank] = time_s + detection_s
        for mailbox in self._mailboxes.values():
            if rank in mailbox.members:
                mailbox.member_died(mailbox.members.index(rank), time_s)
        for channel in self._channels.values():
            if rank in channel.members:
                channel.member_died(channel.members.index(rank), time_s)

    def when_seen(self, dead, time_s, action):
        """Call ``action(time_s)``, or later, at the moment at which a rank's death is seen."""
        seen_s = self.deaths[dead]
        if seen_s > time_s:
            self.scheduler.at(seen_s, partial(action, seen_s))
        else:
            action(time_s)

    # Messages and collectives

    def mailbox(self, group, dst, tag):
        """The `Mailbox` to a position of a group, for one tag."""
        key = group, dst, tag
        if key not in self._mailboxes:
            self._mailboxes[key] = Mailbox(self, group.ranks, dst)
        return self._mailboxes[key]

    def channel(self, name, ranks):
        """The `Channel` of a group."""
        key = name, ranks
        if key not in self._channels:
            self._channels[key] = Channel(self, name, ranks)
        return self._channels[key]

    @staticmethod
    def is_known_from(call):
        """Whether one member's call tells how many bytes all members bring."""
        return call.kind != "all_to_all"

    def plan(self, channel, meeting, call):
        """The `Plan` of a collective."""
        n = len(channel.members)
        nbytes = _nbytes_of(meeting, call, n)
        root = None if call.peer is None else channel.members.index(call.peer)
        policy = self.options.algorithms.get(call.kind, self.options.policy)
        sizes = nbytes if isinstance(nbytes, int) else nbytes.tobytes()
        key = channel.members, call.kind, sizes, call.itemsize, root
        if key not in self._plans:
            made = self._schedule(call, n, nbytes, policy, root or 0, channel.members)
            self._plans[key] = Plan(made, self._links(made, channel.members))
        return self._plans[key]

    def _schedule(self, call, n, nbytes, policy, root, members):
        nodes = self.topology.node_of[list(members)]
        return schedule(
            call.kind,
            n,
            nbytes,
            policy,
            root=root,
            itemsize=call.itemsize,
            nodes=nodes,
            link=self.topology.cluster.inter,
        )

    def _links(self, made, members):
        pairs = {
            pair
            for round_ in made.rounds
            for pair in zip(round_.src.tolist(), round_.dst.tolist(), strict=True)
        }
        links = self.transfers.links
        return frozenset(link for src, dst in pairs for link in links(members[src], members[dst]))

    def new_wire(self, channel, call):
        """Where the messages of a collective are written down, or None."""
        if self.wire is None:
            return None
        self.wire.append(WireLog(call.kind, channel.group))
        return self.wire[-1]

    def wire_messages(self):
        """The messages of all collectives as `WireMessage`, by start; None where not asked for."""
        if self.wire is None:
            return None
        found = [message for log in self.wire for message in log.messages()]
        return sorted(found, key=lambda message: (message.start_s, message.src, message.dst))

    # C++ code that waits where nobody sees it

    def wait_for_data(self, request):
        """Block until the data of a collective have come; no time passes for the rank."""
        if request.meeting is None:
            return
        meeting, position = request.meeting
        if request.failure is not None or meeting.has_data_for(position) and not meeting.is_held:
            return
        rank, log = request.rank, self.logs[request.rank]
        clock = self.scheduler.clocks[rank]
        log.begin_hidden_wait(request.start)
        meeting.when_data_have_come(position, lambda: self.scheduler.ready(rank, clock))
        self.scheduler.block(rank)
        log.wait_failed()

    def future_taken(self, request):
        """C++ code has the future of an op: it is waited for when `backward` returns."""
        self._futures[request.rank].append(request)

    def forget_futures(self, rank):
        """`backward` has failed: nobody waits for what it began."""
        self._futures[rank] = []

    def wait_for_futures(self, rank):
        """`backward` returns: the rank has waited for all ops whose futures C++ code took."""
        taken, self._futures[rank] = self._futures[rank], []
        log = self.logs[rank]
        for request in taken:
            log.wait_begin(request.start)
            request.wait()
            log.wait_end(request.start, request.end_s)


def _nbytes_of(meeting, call, n):
    """Bytes in the sense of `collectives`: of the vector, or of all parts together."""
    if call.kind in ("broadcast", "reduce", "all_reduce", "reduce_scatter", "barrier"):
        return call.nbytes
    if call.kind in ("all_gather", "gather"):
        return call.nbytes * n
    if call.kind == "scatter":
        return call.nbytes if call.peer == call.rank else call.nbytes * n
    return np.array([other.splits[0] for other in meeting.calls]) * call.itemsize
