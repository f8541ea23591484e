"""Ranks as short programs that compute, send and wait, on the simulated network.

A program is a generator: it yields seconds of compute, or a list of messages to wait for. So the
step models beside this state who does what in which order, as the code of a rank would, and all
links are shared as in `simulate`.
"""

from __future__ import annotations

import heapq
from math import inf

from ..clockwork.network import Network
from ..model.errors import InvalidCallError

ANY = None


class Message:
    """One side of a message, posted: ``end_s`` is when it has arrived, None before."""

    __slots__ = ("src", "dst", "tag", "nbytes", "end_s", "waiting")

    def __init__(self, src, dst, tag, nbytes):
        self.src, self.dst, self.tag, self.nbytes = src, dst, tag, nbytes
        self.end_s = None
        self.waiting = None


class Machine:
    """Runs one program on each rank of a topology.

    Attributes
    ----------
    clocks : list of float
        Of each rank: how far it is.

    Notes
    -----
    A message starts when both sides have posted it. Ranks ready at the same moment go in order of
    their numbers. **Cost** O(1) network events for each message.
    """

    def __init__(self, topology):
        self._network = Network(topology)
        self._now_s = 0.0
        self._programs = [None] * topology.world_size
        self._left = [()] * topology.world_size  # messages that each rank still waits for
        self._sends = [{} for _ in self._programs]  # by dst: tag -> posted and not met
        self._receives = [{} for _ in self._programs]
        self._sides = {}  # transfer -> both its sides
        self._ready = [(0.0, rank) for rank in range(topology.world_size)]
        self.clocks = [0.0] * topology.world_size

    def isend(self, src, dst, nbytes, tag=0):
        """Post a send, now on the sender's clock."""
        return self._post(self._sends, self._receives, Message(src, dst, tag, nbytes))

    def irecv(self, dst, src=ANY, tag=0):
        """Post a receive, from one rank or from any; its ``src`` is set when it has met a send."""
        return self._post(self._receives, self._sends, Message(src, dst, tag, None))

    def _post(self, own, others, message):
        for other in others[message.dst].get(message.tag, ()):
            if ANY in (message.src, other.src) or message.src == other.src:
                others[message.dst][message.tag].remove(other)
                self._start(message, other)
                return message
        own[message.dst].setdefault(message.tag, []).append(message)
        return message

    def _start(self, one, other):
        send, receive = (one, other) if one.nbytes is not None else (other, one)
        receive.src, receive.nbytes = send.src, send.nbytes
        transfer = self._network.start(self._now_s, send.src, send.dst, send.nbytes)
        self._sides[transfer] = send, receive

    def run(self, programs):
        """Let all programs come to their ends: a generator for each rank. Returns ``clocks``."""
        self._programs = list(programs)
        while self._ready or self._network.next_event_s < inf:
            due_s = self._ready[0][0] if self._ready else inf
            if self._network.next_event_s <= due_s:
                self._arrive(self._network.advance(self._network.next_event_s))
                continue
            self._now_s, rank = heapq.heappop(self._ready)
            self._go_on(rank)
        stuck = [rank for rank, program in enumerate(self._programs) if program is not None]
        if stuck:
            raise InvalidCallError(f"ranks {stuck} of this step wait for ever for a message")
        return self.clocks

    def _go_on(self, rank):
        self.clocks[rank] = self._now_s
        try:
            asked = next(self._programs[rank])
        except StopIteration:
            self._programs[rank] = None
            return
        if isinstance(asked, list):
            self._left[rank] = [message for message in asked if message.end_s is None]
            for message in self._left[rank]:
                message.waiting = rank
            if self._left[rank]:
                return
            asked = 0.0
        heapq.heappush(self._ready, (self._now_s + asked, rank))

    def _arrive(self, transfers):
        for transfer in transfers:
            for side in self._sides.pop(transfer):
                side.end_s = transfer.end_s
                rank = side.waiting
                if rank is None:
                    continue
                self._left[rank].remove(side)
                if not self._left[rank]:
                    heapq.heappush(self._ready, (side.end_s, rank))
