"""The fluid network: it computes the rate of each transfer at each moment, exactly.

A transfer waits for its latency, and then uses ("draws") bandwidth. Transfers that draw share each
link max-min fairly. The link with the smallest share for each of its transfers is a bottleneck, and
divides its bandwidth equally among its transfers. These transfers do not use all bandwidth of other
links. The other transfers divide the rest in the same way ("progressive filling", Bertsekas and
Gallager, Data Networks, 2nd ed., section 6.5.2).

Messages from one rank to another use one connection, in the order in which they start. A message
draws when its latency is over and the earlier messages have arrived. If `Cluster.in_order` is
False, these messages share bandwidth like messages of different ranks.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from ..model.errors import InvalidCallError, check_count

if TYPE_CHECKING:
    from ..model.cluster import Topology


class _Path:
    """The way from one rank to another, with its unfinished transfers in order."""

    __slots__ = ("latency_s", "links", "bandwidth_Bps", "cards", "queue")

    def __init__(self, topology, src, dst):
        self.latency_s = topology.latency_s(src, dst)
        self.links = topology.links(src, dst)
        self.bandwidth_Bps = topology.bandwidth_Bps(src, dst)
        self.cards = int(topology.cards_between(src, dst))
        # Without a link that could hold them up they keep their order by themselves.
        self.queue = deque() if self.links and topology.cluster.in_order else None


class Transfer:
    """One message that is under way or has arrived.

    Attributes
    ----------
    src, dst : int
        Ranks of the world.
    nbytes : int
        Bytes of the message, without the cluster's envelope.
    start_s : float
        The second at which both sides were ready.
    end_s : float or None
        The second at which the message had arrived. None before.
    path : _Path
        The way that it takes.
    on_end : callable
        What `Transfers` or `Past` calls with the transfer at its end. They set it.
    """

    on_end: Any
    __slots__ = (
        "src",
        "dst",
        "nbytes",
        "start_s",
        "end_s",
        "_order",  # number of its start: the order of all ties
        "path",
        "on_end",
        "_remaining",  # bytes still to go at _since_s
        "_since_s",  # since when it draws at _rate_Bps
        "_rate_Bps",
        "_due_s",  # when its latency is over, or it ends if nothing changes; inf: not its turn
    )

    def __init__(
        self, order: int, time_s: float, src: int, dst: int, nbytes: int, path: _Path
    ) -> None:
        self.src = src
        self.dst = dst
        self.nbytes = nbytes
        self.start_s = time_s
        self.end_s: Any = None
        self._order = order
        self.path = path
        self._remaining = nbytes
        self._since_s = self._due_s = time_s
        self._rate_Bps = 0.0

    def __repr__(self) -> str:
        end = "under way" if self.end_s is None else f"{self.end_s:g} s"
        return f"<{self.nbytes} B from {self.src} to {self.dst}: {self.start_s:g} s to {end}>"

    def _draw_at(self, rate_Bps, time_s):
        """Draw at this rate from now on. The count of bytes restarts only if the rate changes.

        So a transfer whose rate never changes ends at exactly start + latency + bytes / rate.
        """
        if self._rate_Bps:
            self._remaining -= self._rate_Bps * (time_s - self._since_s)
        self._since_s = time_s
        self._rate_Bps = rate_Bps
        self._due_s = max(time_s, time_s + self._remaining / rate_Bps)


class Network:
    """Transfers between the ranks of a topology, under one clock.

    Parameters
    ----------
    topology : Topology

    Attributes
    ----------
    next_event_s : float
        The next moment at which something changes. Infinite if no transfer is under way. The change
        may be the end of a transfer. It may also be that a transfer begins to draw and slows others
        down.

    Notes
    -----
    Times given to `start` and `advance` never decrease.

    **Cost** O(links on its path + log(transfers)) for a transfer that shares no link. If a transfer
    shares links with others, directly or through other transfers, its beginning and its end cost
    O(size) for each bottleneck among these transfers.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.next_event_s = inf
        self._now_s = 0.0
        self._started = 0
        self._events: list = []  # heap of (time_s, order of start, note's number, transfer)
        self._noted = 0
        self._envelope_bytes = topology.cluster.envelope_bytes
        self._bandwidth_Bps = topology.link_bandwidth_Bps.tolist()
        self._drawing: list[dict] = [
            {} for _ in self._bandwidth_Bps
        ]  # by link: those that draw, in order
        self._paths: dict = {}  # (src, dst, way between nodes) -> _Path

    def start(
        self, time_s: float, src: int, dst: int, nbytes: int, way: Topology | None = None
    ) -> Transfer:
        """Both sides of a message are ready: start its transfer.

        Parameters
        ----------
        time_s : float
            It must not be before an earlier time.
        src, dst : int
            Two different ranks.
        nbytes : int
        way : Topology, optional
            The topology with the paths of this message: see `Topology.of_ring`.

        Returns
        -------
        Transfer
            The transfer ends in a later call of `advance`.

        Raises
        ------
        InvalidCallError
            Time would go back, or there is no such message.
        """
        if not time_s >= self._now_s:
            self._check_time(time_s)
        path = self._paths.get((src, dst, way)) or self._path(src, dst, way)
        if nbytes < 0:
            check_count("nbytes", nbytes, low=0)
        self._now_s = time_s
        transfer = Transfer(self._started, time_s, src, dst, nbytes, path)
        transfer._remaining += self._envelope_bytes
        self._started += 1
        transfer._due_s = due_s = time_s + path.latency_s
        self._noted += 1
        heapq.heappush(self._events, (due_s, transfer._order, self._noted, transfer))
        if path.queue is not None:
            path.queue.append(transfer)
        if due_s < self.next_event_s:
            self.next_event_s = due_s
        return transfer

    def links(self, src: int, dst: int, way: Topology | None = None) -> tuple[int, ...]:
        """Ids of the links that such a message crosses, as `Topology.links`."""
        return self._path(src, dst, way).links

    def advance(self, time_s: float) -> list[Transfer]:
        """Let time pass until ``time_s``.

        Returns
        -------
        list of Transfer
            All transfers that ended up to and including ``time_s``, by end, then by start.
        """
        if not time_s >= self._now_s:
            self._check_time(time_s)
        finished: list[Transfer] = []
        while (moment_s := self.next_event_s) <= time_s and self._events:
            finished += self._pass(moment_s)
        self._now_s = time_s
        return finished

    def absorb(self, other: Network, time_s: float) -> list[Transfer]:
        """Take over the transfers of another network of the same topology.

        Parameters
        ----------
        other : Network
            A network at ``time_s``. Do not use it any more. No transfer of one network crosses a
            link that a transfer of the other crosses before ``time_s``.
        time_s : float

        Returns
        -------
        list of Transfer
            The transfers under way, by start.
        """
        self._check_time(time_s)
        known = {note[-1] for note in other._events if not other._is_stale(note)}
        known.update(*(path.queue for path in other._paths.values() if path.queue))
        under_way = sorted(known, key=_order)
        for transfer in under_way:
            transfer._order += self._started
            if transfer._due_s < inf:
                self._foresee(transfer)
        self._started += other._started
        for key, path in other._paths.items():
            if path.queue or key not in self._paths:
                self._paths[key] = path
        for link, transfers in enumerate(other._drawing):
            self._drawing[link].update(transfers)
        self._look_ahead()
        return under_way

    def _pass(self, moment_s):
        """Handle all events of one moment; returns the transfers that end."""
        ended, touched, events = [], [], self._events
        while events and events[0][0] == moment_s:
            due_s, _, _, transfer = heapq.heappop(events)
            if transfer.end_s is not None or due_s != transfer._due_s:  # `_is_stale`
                continue
            if transfer._rate_Bps:
                for link in transfer.path.links:
                    drawing = self._drawing[link]
                    drawing.pop(transfer, None)  # gone where several parts cross the link
                    if drawing:
                        touched.append(link)
                transfer = self._end(transfer, moment_s, ended)
            elif transfer.path.queue and transfer.path.queue[0] is not transfer:
                transfer._due_s = inf
                continue
            while transfer is not None and not self._draws(transfer, moment_s, touched):
                transfer = self._end(transfer, moment_s, ended)
        for transfers in self._components(touched) if touched else ():
            for transfer, rate_Bps in self._rates(transfers):
                if rate_Bps != transfer._rate_Bps:
                    transfer._draw_at(rate_Bps, moment_s)
                    self._foresee(transfer)
        self._look_ahead()
        return sorted(ended, key=_order) if len(ended) > 1 else ended

    def _draws(self, transfer, moment_s, touched):
        """A transfer may draw now. Returns whether the transfer needs bandwidth and begins to draw.

        If it is alone on its links, it gets all their bandwidth. Otherwise the links are
        ``touched``.
        """
        links = transfer.path.links
        if not (links and transfer._remaining):
            return False
        is_alone = True
        for link in links:
            drawing = self._drawing[link]
            if drawing:
                is_alone = False
            drawing[transfer] = None
        if is_alone:  # `_draw_at` and `_foresee`, for a transfer that begins
            transfer._since_s = moment_s
            transfer._rate_Bps = rate_Bps = transfer.path.bandwidth_Bps
            transfer._due_s = due_s = max(moment_s, moment_s + transfer._remaining / rate_Bps)
            self._noted += 1
            heapq.heappush(self._events, (due_s, transfer._order, self._noted, transfer))
        else:
            touched += links
        return True

    @staticmethod
    def _end(transfer, moment_s, ended):
        """A transfer has arrived; returns the transfer that may start now, or None."""
        transfer.end_s = moment_s
        ended.append(transfer)
        queue = transfer.path.queue
        if queue is None:
            return None
        queue.popleft()
        return queue[0] if queue and queue[0]._due_s == inf else None

    def _foresee(self, transfer):
        """Note the transfer's next event. An earlier note with another moment becomes invalid."""
        self._noted += 1
        heapq.heappush(self._events, (transfer._due_s, transfer._order, self._noted, transfer))

    def _look_ahead(self):
        """The first valid note is the next event."""
        events = self._events
        while events:
            due_s, _, _, transfer = events[0]
            if transfer.end_s is None and due_s == transfer._due_s:
                self.next_event_s = due_s
                return
            heapq.heappop(events)
        self.next_event_s = inf

    def _is_stale(self, note):
        due_s, transfer = note[0], note[-1]
        return transfer.end_s is not None or due_s != transfer._due_s

    def _components(self, touched):
        """Transfers that draw from these links, transfers that share a link with them, and so on.

        Transfers that are not connected in this way are in separate lists.
        """
        seen = set()
        for link in touched:
            if link in seen or not self._drawing[link]:
                continue
            found, todo = {}, [link]
            seen.add(link)
            while todo:
                for transfer in self._drawing[todo.pop()]:
                    if transfer not in found:
                        found[transfer] = None
                        new = [link for link in transfer.path.links if link not in seen]
                        seen.update(new)
                        todo += new
            yield sorted(found, key=_order) if len(found) > 1 else list(found)

    def _rates(self, transfers):
        """Max-min fair rates: pairs of transfer and bytes per second."""
        if len(transfers) == 1:
            (alone,) = transfers
            return [(alone, alone.path.bandwidth_Bps)]
        on_link = {}
        for transfer in transfers:
            for link in transfer.path.links:
                on_link.setdefault(link, []).append(transfer)
        left_Bps = {link: self._bandwidth_Bps[link] for link in on_link}
        open_on = {link: len(sharers) for link, sharers in on_link.items()}
        rates = {}
        while len(rates) < len(transfers):
            shares = {link: left_Bps[link] / count for link, count in open_on.items() if count}
            least_Bps = min(shares.values())
            bottlenecks = [link for link, share_Bps in shares.items() if share_Bps == least_Bps]
            for link in bottlenecks:
                for transfer in on_link[link]:
                    if transfer not in rates:
                        rates[transfer] = least_Bps * transfer.path.cards
                        for crossed in transfer.path.links:
                            left_Bps[crossed] -= least_Bps
                            open_on[crossed] -= 1
        return rates.items()

    def _path(self, src, dst, way):
        if way is not None and way.node_of[src] == way.node_of[dst]:
            way = None  # in a node there is one way, in the order of all messages
        return self._paths.get((src, dst, way)) or self._find_path(src, dst, way)

    def _find_path(self, src, dst, way):
        world_size = self.topology.world_size
        for name, rank in (("src", src), ("dst", dst)):
            if not 0 <= rank < world_size:
                raise InvalidCallError(f"{name} is {rank}: ranks are 0 to {world_size - 1}")
        if src == dst:
            raise InvalidCallError(f"rank {src} sends to itself: no network is involved")
        path = _Path(way or self.topology, src, dst)
        self._paths[src, dst, way] = path
        return path

    def _check_time(self, time_s):
        if not time_s >= self._now_s:
            raise InvalidCallError(f"time cannot go back from {self._now_s} s to {time_s} s")


def _order(transfer):
    return transfer._order


class Past:
    """A separate network in which simlib plays a collective again up to the present."""

    def __init__(self, topology: Topology) -> None:
        self.network = Network(topology)
        self.notes: list = []  # heap of (time_s, number, action)
        self._number = 0

    def send(
        self,
        time_s: float,
        src: int,
        dst: int,
        nbytes: int,
        on_end: Callable,
        way: Topology | None = None,
    ) -> Transfer:
        """As `Transfers.send`."""
        transfer = self.network.start(time_s, src, dst, nbytes, way)
        transfer.on_end = on_end
        return transfer

    def at(self, time_s: float, action: Callable[..., Any]) -> None:
        """As `Scheduler.at`."""
        self._number += 1
        heapq.heappush(self.notes, (time_s, self._number, action))

    def advance(self, time_s: float) -> None:
        """Handle all events up to this moment."""
        while True:
            note_s = self.notes[0][0] if self.notes else inf
            network_s = self.network.next_event_s
            if min(note_s, network_s) > time_s or min(note_s, network_s) == inf:
                return
            if network_s <= note_s:
                for transfer in self.network.advance(network_s):
                    transfer.on_end(transfer)
            else:
                heapq.heappop(self.notes)[-1]()
