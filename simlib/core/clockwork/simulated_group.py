"""One rank's side of one group in a simulation: the methods for torch, and the rank's waits."""

from __future__ import annotations

import functools
import sys
import traceback
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from ..environment import is_learners
from ..model.errors import InvalidCallError
from ..record.pending import is_without_data, places
from ..record.recorder import count_bytes
from ..record.this_rank import here
from ..record.transports import FOREVER
from ..record.transports.plain_group import REDUCING, PlainGroup, copy_of
from .mailbox import Mailbox, Post
from .meetings import Call, uncounted

if TYPE_CHECKING:
    from .collective_in_flight import Channel
    from .simulation import Simulation
    from .streams import Moment


class SimulatedGroup(PlainGroup):
    """The group to which a `RecordingGroup` passes its calls.

    Parameters
    ----------
    simulation : Simulation
    channel : Channel
        The group's collectives.
    position : int
        This rank's place in the group.
    log : OpLogWriter
        The log that already contains the rank's calls.
    """

    def __init__(self, simulation: Simulation, channel: Channel, position: int, log: Any) -> None:
        self._simulation = simulation
        self._channel = channel
        self._group = channel.group
        self._position = position
        self._rank = channel.members[position]
        self._log = log
        self._clocks = simulation.scheduler.clocks
        self._eager_limit_bytes = simulation.options.eager_limit_bytes
        self._mailboxes: dict[tuple[int, int], Mailbox] = {}  # (dst, tag) -> Mailbox
        streams = simulation.streams
        self._streams = None if streams is None else streams[self._rank]
        scripts = simulation.scripts
        self._script = None if scripts is None else scripts[self._rank]

    # Messages

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Request:
        simulation = self._simulation
        mode, (tensor,) = simulation.dispatch_modes[self._rank], tensors
        content = copy_of(tensor) if mode is None else uncounted(mode, copy_of, tensor)
        post = self._post(tensors, self._position, dst, content)
        post.is_eager = post.nbytes <= self._eager_limit_bytes
        return self._posted("send", post, dst, dst, tag)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Request:
        post = self._post(tensors, src, self._position, tensors[0])
        return self._posted("receive", post, src, self._position, tag)

    def _post(self, tensors, src, dst, content):
        (tensor,) = tensors
        request = Request(self._simulation, self._rank, self._log.last, tensors)
        if self.patience_s != Request.patience_s:
            request.patience_s = self.patience_s
        if places and is_without_data(tensor):
            request.has_data = False
        nbytes = len(content) if type(content) is bytes else count_bytes(tensor)
        return Post(src, dst, tensor.dtype, nbytes, request, content, self._clocks[self._rank])

    def _posted(self, method, post, peer, dst, tag):
        request, key = post.request, (dst, tag)
        mailbox = self._mailboxes.get(key)
        if mailbox is None:
            mailbox = self._simulation.mailbox(self._group, dst, tag)
            self._mailboxes[key] = mailbox
        if self._script is not None:
            self._rehearse_message(method, post, peer, tag)
        if self.limit_s is not None:
            request.limit_s = self.limit_s
            request.give_up = functools.partial(mailbox.withdraw, post)
        if self._streams is None:
            getattr(mailbox, method)(post)
            return request
        if post.src is None:
            raise InvalidCallError(
                "on an asynchronous device a receive must name its source, as with NCCL: give the "
                "source with src="
            )
        post.is_here, request.kind = False, "send" if method == "send" else "recv"
        getattr(mailbox, method)(post)
        # Messages of one direction go in order, and do not wait for those of the other.
        of = self._group, method, post.src, post.dst
        enter = mailbox.send_is_here if method == "send" else mailbox.receive_is_here
        self._streams.post(request, of, functools.partial(enter, post))
        return request

    def _rehearse_message(self, method, post, peer, tag):
        """Write a message into the script, if it goes to a running rank of another class."""
        if post.src is None:
            raise InvalidCallError(
                "with alike=, simlib cannot know from which rank a recv without src receives: give "
                "the source with src="
            )
        if not self._simulation.may_meet(self._rank, self._group.ranks[peer]):
            self._simulation.part_with(self._rank, self._group.ranks)
        what = "send" if method == "send" else "recv"
        group = self._script.group(self._group)
        self._script.add(what, group, peer, tag, post.dtype, post.nbytes, start=post.request.start)

    # Collectives

    def _collective(self, kind, brings, takes, opts, payload, splits=None):
        """Post a collective. ``payload`` contains the tensors that count as this rank's bytes."""
        simulation = self._simulation
        request = Request(simulation, self._rank, self._log.last, takes)
        root = getattr(opts, "rootRank", None)
        reduce_op = getattr(opts, "reduceOp", None)
        has_data = not any(map(is_without_data, payload)) and not any(map(is_without_data, takes))
        call = Call(
            kind=kind,
            rank=self._rank,
            group=self._group,
            peer=None if root is None else self._group.ranks[root],
            reduce_op=hash(reduce_op) if kind in REDUCING else None,
            dtype=payload[0].dtype if payload else None,
            shapes=tuple(tensor.shape for tensor in payload),
            splits=splits,
            brings=brings if has_data else (),
            takes=takes,
            opts=opts,
            has_data=has_data,
            nbytes=sum(map(count_bytes, payload)),
            itemsize=payload[0].element_size() if payload else 1,
            request=request,
        )
        request.limit_s, request.patience_s = self.limit_s, self.patience_s
        request.has_data = has_data
        channel, position = self._channel, self._position
        # As NCCL: what returns a request has a stream of its own, else it is the current one.
        of = channel if opts is None or opts.asyncOp else None
        if self._script is not None:
            self._rehearse_collective(call, root, of is not None)
        if self._streams is None:
            request.meeting = channel.post(position, call), position
            return request
        number = channel.join(position, call)
        request.meeting, request.kind = (channel.meeting(number), position), kind
        self._streams.post(request, of, functools.partial(channel.reach, position, number))
        if kind == "barrier" and of is None:
            self._streams.hold(self._streams.record())
        return request

    def _rehearse_collective(self, call, root, has_own_stream):
        terms = call.kind, root, call.reduce_op, call.dtype, call.shapes, call.splits
        sizes = call.nbytes, call.itemsize
        if root is not None and self._group.ranks[root] not in self._simulation.taking_part:
            self._simulation.part_with(self._rank, self._group.ranks, root)
        group = self._script.group(self._group)
        self._script.add(
            "collective", group, terms, sizes, has_own_stream, start=call.request.start
        )

    def monitored_barrier(self, timeout: timedelta = FOREVER, wait_all_ranks: bool = False) -> None:
        request = self.barrier()
        meeting, position = request.meeting
        limit = timeout if timeout < FOREVER else None
        try:
            request.wait(limit)
        except RuntimeError:
            limit_s = limit.total_seconds() if limit else self.limit_s or self.patience_s
            missing = [str(at) for at, call in enumerate(meeting.calls) if call is None]
            if not missing:
                raise
            words = _not_passed(position, missing, wait_all_ranks, limit_s)
            raise RuntimeError(words) from None


def _not_passed(position, missing, wait_all_ranks, limit_s):
    """Gloo's error for a rank in a monitored barrier that other ranks did not reach."""
    if position:
        return (
            f"Rank {position} successfully reached monitoredBarrier, but received errors while "
            "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
        )
    who = f"Ranks {', '.join(missing)}" if wait_all_ranks else f"Rank {missing[0]}"
    return f"[Rank 0]: {who} failed to pass monitoredBarrier in {1000 * limit_s:.0f} ms"


class Request:
    """One op of one rank that is under way or complete.

    ``end_s`` is the virtual time at which the op ends, or None while this time is unknown.
    ``deliver`` copies the result into the learner's tensors at the wait. So if the program reads
    too early, it sees the old values every time. ``start`` is the op's place in the rank's log.
    ``meeting`` is the op's collective, and the rank's position in it. ``failure`` is the reason why
    the op will never complete, or None. ``give_up()`` withdraws the op after the rank has waited
    for ``limit_s``.

    On an asynchronous device, ``moment`` is the `Moment` of its end on its stream, which continues
    by ``then(end_s)``.
    """

    end_s: float | None = None
    deliver: Callable[[], None] | None = None
    source: int | None = None
    meeting: tuple | None = None
    failure: str | None = None
    give_up: Callable[[], None] | None = None
    limit_s: float | None = None
    patience_s = PlainGroup.patience_s
    kind = ""
    has_data = True
    moment: Moment | None = None
    then: Callable[[float], Any] | None = None
    _is_awaited = False
    _looked_s: float | None = None
    _references: list[weakref.ref] | None = None
    _callbacks: tuple[Callable[[], Any], ...] = ()

    def __init__(self, simulation: Simulation, rank: int, start: int, result: Any) -> None:
        self.simulation = simulation
        self.rank = rank
        self.start = start
        self._result = result

    def finish(self, end_s: float) -> None:
        """The op completes at this moment."""
        self.end_s = end_s
        if self.then is not None:
            self.then(end_s)
        if self._is_awaited:
            self._is_awaited = False
            scheduler = self.simulation.scheduler
            scheduler.ready(self.rank, max(end_s, scheduler.clocks[self.rank]))

    def fail(self, words: str, time_s: float) -> None:
        """The op will never complete. A rank that waits for the op gets the error at this
        moment."""
        if self.end_s is None:
            self.failure = words
            self.deliver = None
            self.finish(time_s)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the op completes; returns True. Raises an error if it has failed."""
        if self.moment is not None:
            return self._wait_on_stream(timeout)
        simulation, rank = self.simulation, self.rank
        scheduler = simulation.scheduler
        beside = simulation.time.beside
        if beside is not None and beside[rank].took_part:
            simulation.time.take_in(rank)
        if simulation.scripts is not None:
            simulation.scripts[rank].add("wait", start=self.start)
        if self.end_s is None:
            limit_s = timeout.total_seconds() if timeout else self.limit_s
            if limit_s is not None:
                self.simulation.refuse_in_rehearsal("a time limit", "leave timeout= out")
            limit, begin_s = None, scheduler.clocks[rank]
            if limit_s is not None:
                limit = self._stop_waiting_at(begin_s + limit_s)
            self._is_awaited = True
            scheduler.block(rank)
            if self.end_s is None:
                if self.give_up is not None:
                    self.give_up()
                raise RuntimeError(_timed_out(limit_s, bool(timeout)))
            # No event ends these waits: so who waits for ever is told that it does.
            if limit_s is None and self.end_s - begin_s > self.patience_s:
                simulation.time.catch_up(rank, self.end_s)
                raise RuntimeError(_timed_out(self.patience_s, is_asked=False))
            if limit is not None:
                scheduler.cancel(limit)
        if scheduler.clocks[rank] < self.end_s:
            scheduler.clocks[rank] = self.end_s
        if simulation.time.is_measured:
            simulation.time.begin_to_measure(rank)
        if self.failure is not None:
            raise RuntimeError(self.failure)
        if self.deliver is not None or self._callbacks:
            self._take()
        return True

    def _wait_on_stream(self, timeout):
        """The rank's current stream waits. The rank waits only for data, while no time passes."""
        if timeout:
            raise InvalidCallError(
                "wait(timeout) is not simulated on an asynchronous device, because the stream "
                "waits, not the rank: leave the time limit out, or use a synchronous device"
            )
        self.simulation.wait_for_data(self)
        streams = self.simulation.streams[self.rank]
        streams.current.wait(self.moment)
        if self.kind == "barrier":
            streams.hold(streams.record())
        self._take()
        self._let_go()
        return True

    def _let_go(self):
        """Release all tensors, because the stream keeps the request until the op has ended."""
        if isinstance(self._result, list | tuple):
            self._references, self._result = [*map(weakref.ref, self._result)], None

    def await_end(self) -> None:
        """Make the rank ready when the op completes."""
        self._is_awaited = True

    def _stop_waiting_at(self, time_s):
        def stop():
            if self._is_awaited:
                self._is_awaited = False
                self.simulation.scheduler.ready(self.rank, time_s)

        return self.simulation.scheduler.at(time_s, stop)

    def _take(self):
        deliver, self.deliver = self.deliver, None
        if deliver is not None:
            self.meeting = None  # which refers to its requests: let go of the tensors
            mode = self.simulation.dispatch_modes[self.rank]
            deliver() if mode is None else uncounted(mode, deliver)
        if not self._callbacks:
            return
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            try:
                callback()
            except Exception:  # as torch does
                traceback.print_exc()

    def call_at_end(self, callback: Callable[[], Any]) -> None:
        """Call ``callback`` when the rank sees that the op is complete, or now if it has seen
        this."""
        self._callbacks += (callback,)
        is_over = (
            self.end_s is not None and self.end_s <= self.simulation.scheduler.clocks[self.rank]
        )
        if is_over and self.deliver is None and self.failure is None:
            self._take()

    def is_completed(self) -> bool:
        """Whether the op is complete now.

        A look takes no virtual time. If the rank looks again at the same moment, it has done
        nothing else meanwhile. So time then advances to the next event.
        """
        self.simulation.refuse_in_rehearsal("is_completed()", "call wait()")
        scheduler = self.simulation.scheduler
        clock_s = scheduler.settle(self.rank)
        if self.end_s is not None and self.end_s <= clock_s:
            self._take()
            return True
        if self._looked_s == clock_s:
            scheduler.let_pass(self.rank)
        self._looked_s = clock_s
        return False

    def get_future(self) -> torch.futures.Future:
        """Return a future. If the learner's own code calls its `wait`, the wait takes virtual time.

        C++ code, such as DDP's, waits in ways that simlib does not see. For such code, the rank
        waits here until its data have arrived. The virtual time of this wait passes when `backward`
        returns.
        """
        caller = sys._getframe(1).f_back  # 1 is the request that records
        is_learners_own = caller is not None and is_learners(caller.f_code.co_filename)
        if is_learners_own and not getattr(here, "backward_depth", 0):
            return SimulatedFuture(self._wait_and_log, self.is_completed, self.call_at_end)
        self.simulation.wait_for_data(self)
        future = torch.futures.Future()
        if self.failure is not None:
            future.set_exception(RuntimeError(self.failure))
            return future
        self._take()
        future.set_result(self.result())
        self.simulation.future_taken(self)
        return future

    def _wait_and_log(self):
        log = self.simulation.time.logs[self.rank]
        log.wait_begin(self.start)
        self.wait()
        log.wait_end(self.start)
        return self.result()

    def is_success(self) -> bool:
        """Whether the op is complete and has not failed."""
        return self.is_completed() and self.failure is None

    def exception(self) -> Any:
        """The error of a failed op, or None."""
        return None if self.failure is None else RuntimeError(self.failure)

    def result(self) -> Any:
        """The tensors of the op."""
        if self._references is None:
            return self._result
        return [reference() for reference in self._references]

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def _source_rank(self):
        if self.source is None:
            raise InvalidCallError("the source of a receive is known only after wait()")
        return self.source


def _timed_out(limit_s, is_asked):
    if is_asked:
        return f"timed out after {limit_s:g} s of virtual time"
    return f"Timed out waiting {1000 * limit_s:.0f}ms for an operation to complete (virtual time)"


class SimulatedFuture(torch.futures.Future):
    """The future of a simulated op for the learner. A wait for it takes virtual time.

    A function given to `then` runs when the program waits for the future that `then` returns.
    """

    def __init__(
        self, wait: Callable[[], Any], is_done: Callable[[], bool], call_at_end: Callable
    ) -> None:
        super().__init__()
        self._wait = wait
        self._is_done = is_done
        self._call_at_end = call_at_end
        self._come: list = []

    def wait(self) -> Any:
        """Block until the future is complete. Returns its value."""
        if not self._come:
            self._come.append(self._wait())
        return self._come[0]

    value = wait

    def done(self) -> bool:
        """Whether the future is complete now, as `Request.is_completed`."""
        return bool(self._come) or self._is_done()

    def then(self, callback: Callable[[Any], Any]) -> SimulatedFuture:
        """A future of ``callback(self)``."""
        return SimulatedFuture(lambda: callback(self), self.done, self._call_at_end)

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        """Call ``callback(self)`` as soon as the rank sees that the op is complete."""
        self._call_at_end(lambda: callback(self))
