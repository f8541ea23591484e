"""The queues of an asynchronous device. Each queue has its own clock.

A rank puts kernels, events and ops of torch.distributed into a stream and continues. If a stream
waits for nothing, its clock advances at once, so a kernel needs no event of the scheduler. The end
of an op depends on other ranks. Until simlib knows this end, all later work of the stream waits in
a queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

MODELLED = "a modelled device"


class Moment:
    """The time ``time_s`` at which a stream reaches a place in its queue, or None if not yet
    known."""

    __slots__ = ("_then", "number", "stream", "time_s")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.number: int | None = None  # in the script of a rank that rehearses
        self.time_s: float | None = None
        self._then: list[Callable[[float], Any]] = []

    def come(self, time_s: float) -> None:
        """Set the time, which is known now."""
        self.time_s = time_s
        then, self._then = self._then, []
        for action in then:
            action(time_s)

    def then(self, action: Callable[[float], Any]) -> None:
        """Call ``action(time_s)`` as soon as the time is known."""
        if self.time_s is None:
            self._then.append(action)
        else:
            action(self.time_s)

    def awaited(self) -> Any:
        """The op (a `Request`) whose end determines the time."""
        held: Any = self
        while isinstance(held, Moment):
            held = held.stream.held_by
        return held


class Extent:
    """The time from the start of the first launch within a piece to the end of the last launch.

    Parameters
    ----------
    outer : Extent or None
        The extent of the piece around it.

    Attributes
    ----------
    start_s, end_s : float or None
        The known start and end.
    """

    __slots__ = ("end_s", "number", "outer", "start_s")

    def __init__(self, outer: Extent | None) -> None:
        self.outer = outer
        self.number: int | None = None  # in the script of a rank that rehearses
        self.start_s: float | None = None
        self.end_s: float | None = None

    def take_in(self, start_s: float, end_s: float) -> None:
        """A kernel or an op ran within the piece, and so within the pieces around it."""
        extent: Extent | None = self
        while extent is not None:
            if extent.start_s is None or extent.end_s is None:
                extent.start_s, extent.end_s = start_s, end_s
            else:
                extent.start_s = min(extent.start_s, start_s)
                extent.end_s = max(extent.end_s, end_s)
            extent = extent.outer


class Stream:
    """One queue of a device.

    Parameters
    ----------
    scheduler : Scheduler

    Attributes
    ----------
    clock_s : float
        The end of all work in the queue whose end is known.
    held_by : Request, Moment or None
        The op under way, or the moment for which the stream waits.
    kernels : list of [float, float]
        Start and end of kernels. Kernels without a gap between them count as one kernel.
    handle : Stream of `torch.cpu`, or None
        The rank's own object for the queue.
    ops : list of (str, float, float)
        The ops of torch.distributed: the kind, the time at which the stream reached the op, and the
        end of the op.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.clock_s = 0.0
        self.held_by: Any = None
        self.kernels: list[list[float]] = []
        self.ops: list[tuple[str, float, float]] = []
        self.handle: Any = None
        self._queue: deque[tuple] = deque()
        self._is_dead = False

    def launch(self, seconds: float, launched_s: float, extent: Extent | None = None) -> None:
        """Add a kernel that takes these seconds. Its rank launched it at this moment of its
        clock."""
        if self.held_by is not None:
            self._queue.append((self.launch, seconds, launched_s, extent))
            return
        start_s = self.clock_s
        if start_s < launched_s:
            start_s = launched_s
        self.clock_s = end_s = start_s + seconds
        kernels = self.kernels
        if kernels and kernels[-1][1] >= start_s:
            kernels[-1][1] = end_s
        else:
            kernels.append([start_s, end_s])
        if extent is not None:
            extent.take_in(start_s, end_s)

    def launch_chain(self, whole_s: float, least_s: float, begin_s: float) -> None:
        """Add kernels that run one after the other. They cannot end before ``begin_s +
        least_s``."""
        if self.held_by is not None:
            self._queue.append((self.launch_chain, whole_s, least_s, begin_s))
        else:
            self.clock_s = max(self.clock_s + whole_s, begin_s + least_s)

    def record(self, launched_s: float) -> Moment:
        """Return the `Moment` at which all work that is now in the queue ends."""
        moment = Moment(self)
        self._record(moment, launched_s)
        return moment

    def _record(self, moment, launched_s):
        if self.held_by is not None:
            self._queue.append((self._record, moment, launched_s))
        else:
            moment.come(max(self.clock_s, launched_s))

    def wait(self, moment: Moment) -> None:
        """Let all later work of the stream begin after a moment."""
        self._wait(moment)

    def _wait(self, moment):
        if self.held_by is not None:
            self._queue.append((self._wait, moment))
        elif moment.time_s is not None:
            self.clock_s = max(self.clock_s, moment.time_s)
        else:
            self.held_by = moment
            moment.then(self._go_on)

    def carry(
        self,
        request: Any,
        enter: Callable[[float], Any],
        launched_s: float,
        extent: Extent | None = None,
    ) -> None:
        """Add an op of torch.distributed. Calls ``enter(time_s)`` when the stream reaches the
        op."""
        if self.held_by is not None:
            self._queue.append((self.carry, request, enter, launched_s, extent))
            return
        time_s = max(self.clock_s, launched_s)
        self.held_by = request
        request.then = partial(self._has_ended, request.kind, time_s, extent)
        self._scheduler.at(time_s, partial(self._begin, enter, time_s))

    def _begin(self, enter, time_s):
        if not self._is_dead:
            enter(time_s)

    def _has_ended(self, kind, begin_s, extent, end_s):
        self.ops.append((kind, begin_s, end_s))
        if extent is not None:
            extent.take_in(begin_s, end_s)
        self._go_on(end_s)

    def die(self, time_s: float) -> None:
        """Work that has not begun at this moment never begins."""
        self._is_dead = True
        self.kernels = [[start, min(end, time_s)] for start, end in self.kernels if start < time_s]

    def _go_on(self, time_s):
        if self._is_dead:
            return
        self.held_by = None
        self.clock_s = max(self.clock_s, time_s)
        while self._queue and self.held_by is None:
            action, *args = self._queue.popleft()
            action(*args)


class StreamEndsOf:
    """Records the ends of the ops for which a rank waits. In simulations it replaces `StreamEnds`.

    Parameters
    ----------
    streams : Streams
    log : OpLogWriter
    """

    holds_rank_up = False
    open = ()

    def __init__(self, streams: Streams, log: Any) -> None:
        self._streams = streams
        self._log = log

    @staticmethod
    def device_of(tensors: Any) -> Any:
        """The device on whose stream an op of these tensors ends."""
        return MODELLED

    def begin(self, device: Any) -> None:
        """The rank will post an op now."""

    def mark(self, start: int, device: Any) -> None:
        """The rank, or its stream, waits for the op at this place of the log."""
        moment = self._streams.ends.pop(start, None)
        if moment is not None:
            moment.then(partial(self._log.ended, start))

    look = clear = lambda self: None


class Streams:
    """All streams of one rank, and its waits for them.

    Parameters
    ----------
    simulation : Simulation
    rank : int
    launch_s : float
        Seconds that the rank takes to put one kernel into a stream.

    Attributes
    ----------
    current : Stream
        The stream for kernels.
    ends : dict of int to Moment
        By place in the log, the end of each op for which nobody has waited.
    """

    def __init__(self, simulation: Any, rank: int, launch_s: float) -> None:
        self._simulation = simulation
        self._rank = rank
        self._launch_s = launch_s
        self._clocks = simulation.scheduler.clocks
        self.all: list[Stream] = []
        self.ends: dict[int, Moment] = {}
        self.current = self.new()
        self._extent: Extent | None = None
        self._of_ops: dict[Any, Stream] = {}

    def refuse_in_rehearsal(self, what: str, instead: str) -> None:
        """As `Simulation.refuse_in_rehearsal`."""
        self._simulation.refuse_in_rehearsal(what, instead)

    def new(self) -> Stream:
        """Another stream."""
        self.all.append(Stream(self._simulation.scheduler))
        return self.all[-1]

    def launch(self, seconds: float, factor: float = 1.0) -> None:
        """The rank puts a kernel into the current stream. A slow rank has a ``factor`` above 1."""
        rank = self._rank
        self._clocks[rank] += self._launch_s * factor
        self.launch_at(self._clocks[rank], seconds * factor)

    def launch_at(self, launched_s: float, seconds: float) -> None:
        """A kernel goes into the current stream at this moment."""
        self.current.launch(seconds, launched_s, self._extent)

    def post(self, request: Any, of: Any, enter: Callable[[float], Any]) -> None:
        """The rank has called an op. The op runs on the current stream.

        If the op has its own stream ``of``, it runs there, after all work that is now in the
        current stream.
        """
        now_s, stream = self._clocks[self._rank], self.current
        if of is not None:
            stream = self._of_ops.get(of) or self._of_ops.setdefault(of, self.new())
            stream.wait(self.current.record(now_s))
        stream.carry(request, enter, now_s, self._extent)
        request.moment = self.ends[request.start] = stream.record(now_s)

    @contextmanager
    def extent(self) -> Iterator[Extent]:
        """The `Extent` of the rank's launches while this context is open."""
        outer, self._extent = self._extent, Extent(self._extent)
        try:
            yield self._extent
        finally:
            self._extent = outer

    def record(self, stream: Stream | None = None) -> Moment:
        """The `Moment` at which a stream has done all its present work. The default is the current
        stream."""
        return (stream or self.current).record(self._clocks[self._rank])

    def hold(self, moment: Moment) -> None:
        """The rank itself waits for a moment."""
        simulation, rank = self._simulation, self._rank
        log = simulation.time.logs[rank]
        while moment.time_s is None:
            request = moment.awaited()
            log.begin_hidden_wait(request.start)
            request.await_end()
            simulation.scheduler.block(rank)
            log.wait_failed()
        simulation.time.catch_up(rank, moment.time_s)

    def die(self) -> None:
        """The rank has died, and its device does nothing more."""
        for stream in self.all:
            stream.die(self._simulation.scheduler.now_s)

    def drain(self) -> None:
        """The rank waits until all its streams have done all their work."""
        for stream in self.all:
            self.hold(self.record(stream))
