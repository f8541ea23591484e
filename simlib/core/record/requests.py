"""The requests that a recording group hands out: who waits, and since when, goes into the log."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from ..model.errors import InvalidCallError

FOREVER = timedelta(days=30)
"""Gloo's own timeout: hangs are found by simlib, not by Gloo."""

MAX_LOOKS = 100_000
"""How often in a row a rank may ask whether a message is complete, which Gloo never says before
`wait`."""


class _Request:
    """The transport's own request, with the moments noted at which the rank waits and has it."""

    __slots__ = ()

    def _begin(self, work, recorder, start, source):
        self._work = work
        self._recorder = recorder
        self._source = source
        self._result = None
        self.start = start
        self.pending = None
        self.limit = None
        self.gpu = None  # the GPU on whose stream the op ends

    def wait(self, timeout=timedelta(0)):  # noqa: B008 (torch's own signature; immutable)
        if self._result is not None:
            return self._result
        log = self._recorder.log
        # Who waits for a limited time only goes on by itself: that is no deadlock.
        recorder = self._recorder
        is_limited = timeout or recorder.waits_are_limited
        log.wait_begin(self.start, not is_limited and recorder.is_alone())
        try:
            limit = timeout or self.limit
            self._result = self._work.wait(limit) if limit else self._work.wait()
        except BaseException:
            log.wait_failed(0 if timeout else self.start)
            raise
        if self.gpu is None:
            log.wait_end(self.start)
        else:
            log.wait_end(0)  # the rank waits no more; its stream does
            recorder.stream_ends.mark(self.start, self.gpu)
        if self.pending is not None:
            self.pending.waited(self)
        if self._source is not None:
            log.found_peer(self.start, self._source[self._work._source_rank()])
        return self._result

    def source_rank(self):
        return self._work._source_rank()

    _source_rank = source_rank


class BlockingCall(_Request):
    """What a blocking call gets, which does nothing with it but wait: lighter than a `Work`."""

    __slots__ = ("_work", "_recorder", "_source", "_result", "start", "pending", "limit", "gpu")

    def __init__(self, work, recorder, start, source=None):
        self._begin(work, recorder, start, source)


class RecordedWork(_Request, dist.Work):
    """A request that the learner, or torch, may keep and ask.

    It lives until it is complete; one of a single number until another such one is. torch's C++
    code (DDP's, for the number of ranks in `join`) keeps the C++ part alone, waits and then asks
    for the future. With the Python part gone, that wait would be for ever.
    """

    def __init__(self, work, recorder, start, source=None):
        super().__init__()
        self._begin(work, recorder, start, source)
        recorder.requests[start] = self
        self.is_number = False

    def wait(self, timeout=timedelta(0)):  # noqa: B008 (as above)
        if self._recorder.before_wait is not None:
            self._recorder.before_wait()
        result = super().wait(timeout)
        self._let_go()
        return result

    def _let_go(self):
        self._recorder.requests.pop(self.start, None)
        if self.is_number:  # anything larger would hold a learner's memory
            self._recorder.last_number = self

    def is_completed(self):
        done = self._work.is_completed()
        if done:
            self._let_go()
            self._recorder.log.ended(self.start)
            if self.pending is not None:
                self.pending.waited(self)
            if self._source is not None:
                self._recorder.log.found_peer(self.start, self._source[self.source_rank()])
        return done

    def get_future(self):
        log = self._recorder.log
        log.future_taken(self.start)
        future = self._work.get_future()
        future.add_done_callback(lambda _: self._ended())
        return future

    def _ended(self):
        if self.gpu is None:
            self._recorder.log.ended(self.start)
        else:
            self._recorder.stream_ends.mark(self.start, self.gpu)
        self._let_go()

    def is_success(self):
        return self._work.is_success()

    def exception(self):
        return self._work.exception()

    def result(self):
        return self._work.result()

    def synchronize(self):
        return self._work.synchronize()


class RecordedMessage(RecordedWork):
    """The request of an isend or irecv: with Gloo it is complete once it has been waited for."""

    def __init__(self, work, recorder, start, source=None):
        super().__init__(work, recorder, start, source)
        self._looks = 0  # since the rank's last op
        self._looked_after = None

    def is_completed(self):
        if self._result is not None:
            return True
        last = self._recorder.log.last
        self._looks = self._looks + 1 if last == self._looked_after else 1
        self._looked_after = last
        if self._looks > MAX_LOOKS:
            raise InvalidCallError(
                f"this request of an isend or irecv was asked {MAX_LOOKS:,} times in a row if it "
                "is complete: with Gloo it never says so before wait() has been called, so call it"
            )
        return False

    def wait(self, timeout=timedelta(0)):  # noqa: B008 (as above)
        if self._result is not None:
            raise InvalidCallError(
                "this request of an isend or irecv has been waited for already: with Gloo a second "
                "wait() never returns, so wait for each request once"
            )
        return super().wait(timeout)

    def get_future(self):
        raise InvalidCallError(
            "the request of an isend or irecv has no future with Gloo: call its wait() instead"
        )
