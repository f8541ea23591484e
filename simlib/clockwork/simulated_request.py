"""What a rank waits for in a simulation."""

from __future__ import annotations

import sys

import torch

from ..model.errors import InvalidCallError
from ..record.recorder import is_learners
from ..record.this_rank import here


class Request:
    """One op of one rank under way, or complete.

    ``end_s`` is the virtual time at which it completes, None while nobody knows. ``deliver`` brings
    what has arrived into the learner's tensors: at the wait, not earlier, so that reading too soon
    shows the old values, every time. ``start`` is the op's place in the rank's log, ``meeting`` the
    collective it belongs to, and the rank's position there.
    """

    __slots__ = (
        "rank",
        "start",
        "simulation",
        "end_s",
        "deliver",
        "source",
        "meeting",
        "_is_awaited",
        "_looked_s",
        "_result",
    )

    def __init__(self, simulation, rank, start, result):
        self.simulation = simulation
        self.rank = rank
        self.start = start
        self.end_s = None
        self.deliver = None
        self.source = None
        self.meeting = None
        self._is_awaited = False
        self._looked_s = None
        self._result = result

    def finish(self, end_s):
        """The op completes at this moment."""
        self.end_s = end_s
        if self._is_awaited:
            self._is_awaited = False
            scheduler = self.simulation.scheduler
            scheduler.ready(self.rank, max(end_s, scheduler.clocks[self.rank]))

    def wait(self, timeout=None):
        """Block until the op completes; returns True."""
        scheduler = self.simulation.scheduler
        if self.end_s is None:
            limit = None
            if timeout:
                limit = self._give_up_at(scheduler.clocks[self.rank] + timeout.total_seconds())
            self._is_awaited = True
            scheduler.block(self.rank)
            if self.end_s is None:
                raise RuntimeError(f"timed out after {timeout.total_seconds():g} s of virtual time")
            if limit is not None:
                scheduler.cancel(limit)
        self.simulation.catch_up(self.rank, self.end_s)
        self._take()
        return True

    def await_end(self):
        """Make the rank ready when the op completes."""
        self._is_awaited = True

    def _give_up_at(self, time_s):
        def give_up():
            if self._is_awaited:
                self._is_awaited = False
                self.simulation.scheduler.ready(self.rank, time_s)

        return self.simulation.scheduler.at(time_s, give_up)

    def _take(self):
        deliver, self.deliver = self.deliver, None
        if deliver is not None:
            self.meeting = None  # which refers to its requests: let go of the tensors
            self.simulation.uncounted(self.rank, deliver)

    def is_completed(self):
        """Whether the op is complete now.

        Looking takes no virtual time. Who looks again at the very same moment does nothing else:
        then time goes on to the next event.
        """
        scheduler = self.simulation.scheduler
        clock_s = scheduler.settle(self.rank)
        if self.end_s is not None and self.end_s <= clock_s:
            self._take()
            return True
        if self._looked_s == clock_s:
            scheduler.let_pass(self.rank)
        self._looked_s = clock_s
        return False

    def get_future(self):
        """A future: for the learner's own line one whose `wait` takes virtual time.

        C++ code (DDP's) waits in ways nobody sees. For it the rank waits here until its data have
        come, not for the time that they take: that is waited for where `backward` returns.
        """
        caller = sys._getframe(2).f_code.co_filename  # 1 is the request that records
        if is_learners(caller) and not getattr(here, "backward_depth", 0):
            return SimulatedFuture(self._wait_and_log, self.is_completed)
        self.simulation.wait_for_data(self)
        self._take()
        future = torch.futures.Future()
        future.set_result(self._result)
        self.simulation.future_taken(self)
        return future

    def _wait_and_log(self):
        log = self.simulation.logs[self.rank]
        log.wait_begin(self.start)
        self.wait()
        log.wait_end(self.start)
        return self._result

    def is_success(self):
        """Whether the op is complete."""
        return self.is_completed()

    def exception(self):
        """None: a simulated op does not fail on its own."""

    def result(self):
        """The tensors of the op."""
        return self._result

    def synchronize(self):
        """The same as `wait`."""
        self.wait()

    def _source_rank(self):
        if self.source is None:
            raise InvalidCallError("the source of a receive is known once it has been waited for")
        return self.source


class SimulatedFuture(torch.futures.Future):
    """The future of a simulated op in the learner's hands: waiting for it takes virtual time.

    What `then` is given runs when the future it returns is waited for.
    """

    def __init__(self, wait, is_done):
        super().__init__()
        self._wait = wait
        self._is_done = is_done
        self._come = []

    def wait(self):
        """Block until it is complete; returns its value."""
        if not self._come:
            self._come.append(self._wait())
        return self._come[0]

    value = wait

    def done(self):
        """Whether it is complete now, as `Request.is_completed`."""
        return bool(self._come) or self._is_done()

    def then(self, callback):
        """A future of ``callback(self)``."""
        return SimulatedFuture(lambda: callback(self), self.done)

    def add_done_callback(self, callback):
        """Nothing but the op's own log entry, which `wait` makes."""
