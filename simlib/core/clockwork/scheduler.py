"""Decide which rank runs next: the rank whose virtual clock shows the earliest time.

Each rank is a thread. A thread runs while it holds the *baton*. It passes the baton on if its rank
has to wait, or if another rank or the network is behind it in virtual time. So when a rank acts at
its time t, all events before t have already happened. Therefore the simulation is exact, and every
repeat is the same. If no rank and no event can continue, the remaining ranks wait for ever. This
test for a deadlock is exact. This module does not use torch.
"""

from __future__ import annotations

import _thread
import heapq
import random
import time
from collections.abc import Callable
from math import inf
from typing import Any

from ..model.chance import Pace
from .network import Network

CONTROLLER = -1
"""The holder of the baton if no rank can continue. It is the thread that started the ranks."""


LAST = 2.0
"""The order of ranks that poll: they look again after all other events of that moment."""


class Scheduler:
    """The clocks of all ranks, and the baton.

    Parameters
    ----------
    world_size : int
    network : Network
        The network in which messages take time. `Transfers` starts them and gets their ends.
    seed : int, optional
        The seed that permutes the order of ranks that are ready at the same moment.
    begin_s : float
        When the ranks begin.

    Attributes
    ----------
    clocks : list of float
        Seconds of virtual time, by rank.
    now_s : float
        The latest moment of any event.
    failure : Exception or None
        An error in the engine itself.
    """

    def __init__(
        self, world_size: int, network: Network, seed: int | None = None, begin_s: float = 0.0
    ) -> None:
        self.clocks = [begin_s] * world_size
        self.now_s = begin_s
        self.network = network
        self.on_arrival: Any = None
        self.failure: Exception | None = None
        self.on_resume = lambda rank: None
        self.random = None if seed is None else random.Random(seed)
        self._ready: list = []  # heap of (clock, tie, rank)
        self._events: list = []  # heap of (time_s, number, action)
        self._unless_over: list = []  # the same, for what happens only while other things do
        self._quiet: list = []  # the same, for when nothing else happens at that moment
        self._at_rest: list = []
        self._polling: list = []
        self._number = 0
        self._is_over = False
        self._batons: list[_thread.LockType] = []

    def open(self) -> None:
        """Make the batons, as locked locks. A replay has no threads, so it needs no batons."""
        self._batons = [_thread.allocate_lock() for _ in range(len(self.clocks) + 1)]
        for baton in self._batons:
            baton.acquire()

    # What ranks call, each in its own thread

    def begin(self, rank: int) -> None:
        """The first action of a rank's thread: wait for the baton."""
        self._batons[rank].acquire()
        self.on_resume(rank)

    def settle(self, rank: int) -> float:
        """Let all events before this rank's clock happen. Returns the clock."""
        clock, ready = self.clocks[rank], self._ready
        if (
            self.network.next_event_s < clock
            or (ready and ready[0][0] < clock)
            or self.random is not None
            or ((self._events or self._quiet or self._unless_over) and self._earliest() < clock)
        ):
            self.ready(rank, clock)
            self.block(rank)
        if clock > self.now_s:  # as `reach`: each op comes by here
            self.now_s = clock
        return clock

    def block(self, rank: int) -> None:
        """Pass the baton on, and wait until `ready` was called for this rank."""
        following = self.next_rank()
        if following != rank:
            self._batons[following].release()
            self._batons[rank].acquire()
        self.on_resume(rank)

    def let_pass(self, rank: int) -> None:
        """Continue after the next event, or at once if there can be no event."""
        if self._earliest() < inf:
            self._polling.append(rank)
            self.block(rank)

    def leave(self) -> None:
        """The last action of a rank's thread: pass the baton on for ever."""
        self._batons[self.next_rank()].release()

    def run(self) -> None:
        """Start, and return when nothing can continue. The controller's thread calls this."""
        following = self.next_rank()
        if following != CONTROLLER:
            self._batons[following].release()
            self._batons[CONTROLLER].acquire()

    # What may be called by whoever has the baton

    def stop(self) -> None:
        """Stop all events, so that `run` returns."""
        self._is_over = True

    def is_behind(self, clock: float) -> bool:
        """Whether another event comes before a rank at this time. With a seed, it is not
        certain."""
        return self._earliest() < clock or self.random is not None

    def reach(self, clock: float) -> None:
        """Note that the virtual time is at least this time."""
        if clock > self.now_s:
            self.now_s = clock

    def ready(self, rank: int, time_s: float) -> None:
        """The rank may continue, at this time of its own clock."""
        self.clocks[rank] = time_s
        tie = 0.0 if self.random is None else self.random.random()
        heapq.heappush(self._ready, (time_s, tie, rank))

    def at(self, time_s: float, action: Callable[..., Any]) -> list:
        """Call ``action()`` at this moment; it may not touch tensors. Returns the event."""
        event = [max(time_s, self.now_s), self._next_number(), action]
        heapq.heappush(self._events, event)
        return event

    def cancel(self, event: list | None) -> None:
        """Cancel an event (a result of `at`, or None). Time does not advance for it."""
        if event is not None:
            event[-1] = None

    def unless_over(self, time_s: float, action: Callable[..., Any]) -> None:
        """Like `at`, but only if other events follow. An endless wait does not wait for this
        event."""
        heapq.heappush(self._unless_over, (time_s, self._next_number(), action))

    def when_quiet(self, time_s: float, action: Callable[..., Any]) -> None:
        """Call ``action()`` after all other events of this moment."""
        heapq.heappush(self._quiet, (time_s, self._next_number(), action))

    def at_rest(self, action: Callable[[], bool]) -> None:
        """Call ``action()`` when nothing else can continue. ``action`` returns whether a rank can
        go on."""
        self._at_rest.append(action)

    def _next_number(self):
        self._number += 1
        return self._number

    def _earliest(self):
        """The next moment of an event of another rank or the network. Infinite if there is none."""
        moment = self.network.next_event_s
        if self._ready and self._ready[0][0] < moment:
            moment = self._ready[0][0]
        if self._events:
            self._drop_cancelled()
            if self._events and self._events[0][0] < moment:
                moment = self._events[0][0]
        if self._quiet and self._quiet[0][0] < moment:
            moment = self._quiet[0][0]
        if self._unless_over and self._unless_over[0][0] < moment:
            moment = self._unless_over[0][0]
        return moment

    def _drop_cancelled(self):
        while self._events and self._events[0][-1] is None:
            heapq.heappop(self._events)

    def next_rank(self) -> int:
        """Let events happen until a rank is next. Returns the rank, or `CONTROLLER`.

        A replay uses this method, because its ranks are not threads. An error in an event is an
        error of simlib. It ends the simulation, and does not count as an error of a rank.
        """
        ready, network = self._ready, self.network
        try:
            while not self._is_over:
                if self._events or self._quiet or self._unless_over or self._polling:
                    rank = self._next_of_all()
                elif ready and ready[0][0] < network.next_event_s:
                    rank = heapq.heappop(ready)[-1]
                elif network.next_event_s < inf:
                    self._advance(network)
                    continue
                else:
                    rank = self._next_at_rest()
                if rank is not None:
                    return rank
            return CONTROLLER
        except Exception as error:
            self.failure = error
            return CONTROLLER

    def _next_of_all(self):
        """One step of `next_rank` that looks at everything. Returns a rank, or None after an
        event."""
        self._drop_cancelled()
        ready_s = self._ready[0][0] if self._ready else inf
        event_s = self._events[0][0] if self._events else inf
        network_s = self.network.next_event_s
        quiet_s = self._quiet[0][0] if self._quiet else inf
        if self._unless_over and self._comes_first(network_s, event_s, quiet_s, ready_s):
            self._happens(self._unless_over[0][0])
            heapq.heappop(self._unless_over)[-1]()
        elif network_s <= min(event_s, ready_s, quiet_s) and network_s < inf:
            self._advance(self.network)
        elif event_s <= min(ready_s, quiet_s) and event_s < inf:
            self._happens(event_s)
            heapq.heappop(self._events)[-1]()
        elif quiet_s < ready_s:
            self._happens(quiet_s)
            heapq.heappop(self._quiet)[-1]()
        elif self._ready:
            _, tie, rank = heapq.heappop(self._ready)
            if self._polling and tie < LAST:
                self._wake_pollers(ready_s)
            return rank
        elif self._polling:
            return self._polling.pop(0)
        else:
            return self._next_at_rest()
        return None

    def _next_at_rest(self):
        """Nothing can continue by itself. Returns None if this changes something."""
        return None if any(action() for action in self._at_rest) else CONTROLLER

    def _advance(self, network):
        """The network's next event happens, as `_happens`."""
        moment_s = network.next_event_s
        if moment_s > self.now_s:
            self.now_s = moment_s
        if self._polling:
            self._wake_pollers(self.now_s)
        for transfer in network.advance(self.now_s):
            self.on_arrival(transfer)

    def _comes_first(self, network_s, *others_s):
        """Whether an `unless_over` event comes before all others, and there are others."""
        time_s, other_s = self._unless_over[0][0], min(others_s)
        is_over = min(network_s, other_s) == inf and not self._polling
        return not is_over and time_s < network_s and time_s <= other_s

    def _happens(self, time_s):
        """An event happens. Ranks that poll will look again after it."""
        self.now_s = max(self.now_s, time_s)
        if self._polling:
            self._wake_pollers(self.now_s)

    def _wake_pollers(self, time_s):
        for rank in self._polling:
            self.clocks[rank] = max(self.clocks[rank], time_s)
            heapq.heappush(self._ready, (self.clocks[rank], LAST, rank))
        self._polling.clear()


class VirtualTime:
    """How the clocks of ranks advance: by their computing, and by their waits.

    Parameters
    ----------
    scheduler : Scheduler
    slow : dict
        Rank -> how many times longer it takes, as in `Pace`.
    kill : dict
        Rank -> when it is killed.
    is_measured : bool
        Whether computing takes the time that it really takes.

    Attributes
    ----------
    is_measured : bool
    logs : list of OpLogWriter
        By rank.
    beside : list of WorkBeside or None
        By rank: the other work on the rank's device.
    streams : list of Streams or None
        By rank: the queues of its device, if the device is asynchronous.
    scripts : list of Script or None
        By rank: the script of its steps, in a rehearsal.
    """

    def __init__(self, scheduler: Scheduler, slow: Any, kill: Any, is_measured: bool) -> None:
        world_size = len(scheduler.clocks)
        self.logs: list = []
        self.beside: list | None = None
        self.streams: list | None = None
        self.scripts: list | None = None
        self._scheduler = scheduler
        self._clocks = scheduler.clocks
        self._kill = kill
        self._paces = {rank: Pace(how, rank) for rank, how in slow.items()}
        self._calls = [0] * world_size
        self.is_measured = is_measured
        self._measured = [0.0] * world_size if is_measured else None

    def settle(self, rank: int) -> float:
        """Before an op: let all events before this rank's clock happen; returns the clock."""
        if self.beside is not None and self.beside[rank].took_part:
            self.take_in(rank)
        if self._measured is None:
            return self._scheduler.settle(rank)
        self.work(rank, max(0.0, time.thread_time() - self._measured[rank]))
        clock = self._scheduler.settle(rank)
        self.begin_to_measure(rank)
        return clock

    def take_in(self, rank: int) -> None:
        """From here on, the rank's clock includes the computing of its other threads."""
        if self.beside is not None and self.beside[rank].took_part:
            self.work(rank, self.beside[rank].take())

    def clock(self, rank: int) -> float:
        """The rank's clock, as the rank itself reads it."""
        self.take_in(rank)
        return self._clocks[rank]

    def begin_to_measure(self, rank: int) -> None:
        """If computing takes its real time, measure from here on."""
        if self._measured is not None:
            self._measured[rank] = time.thread_time()

    def catch_up(self, rank: int, time_s: float) -> None:
        """Set the rank's clock to at least this moment, at which its wait ended."""
        if self._clocks[rank] < time_s:
            self._clocks[rank] = time_s
        if self._measured is not None:
            self.begin_to_measure(rank)

    def sleep(self, rank: int, seconds: float) -> None:
        """The rank does nothing for this many seconds. Meanwhile other ranks may act."""
        self._clocks[rank] += seconds
        if self.scripts is not None:
            self.scripts[rank].pass_time(seconds)
        self.settle(rank)  # a file, for example

    def advance(self, rank: int, seconds: float) -> None:
        """The rank calls `simlib.compute`: a separate piece, and longer if the rank is slow."""
        pace, factor = self._paces.get(rank), 1.0
        if pace is not None:
            factor = pace.factor(self._calls[rank])
            self._calls[rank] += 1
        self._busy(rank, seconds, factor)
        if self._clocks[rank] > self._kill.get(rank, inf):
            self.settle(rank)  # it is dead by then, and does nothing of what follows

    def work(self, rank: int, seconds: float, number: int | None = None) -> None:
        """The rank computes for this many seconds, before the op ``number`` (by default its next
        op)."""
        pace, factor = self._paces.get(rank), 1.0
        if pace is not None:
            factor = pace.factor(self.logs[rank].posted if number is None else number)
        self._busy(rank, seconds, factor)

    def _busy(self, rank, seconds, factor):
        if self.streams is None:
            self._clocks[rank] += seconds * factor
            if self.scripts is not None:
                self.scripts[rank].pass_time(seconds * factor)
        else:
            self.streams[rank].launch(seconds, factor)
