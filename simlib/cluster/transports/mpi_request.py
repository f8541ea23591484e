"""`MpiWork`: the request that a call on an `MpiGroup` hands out."""

from __future__ import annotations

import itertools
import math
import time
from datetime import timedelta

import torch.distributed as dist
from mpi4py import MPI
from torch.futures import Future

LOOKS_AT_ONCE = 50
"""Looks before the first that leaves the processor to others: some 30 us, a short message's."""


class MpiWork(dist.Work):
    """Some requests of MPI, and what is to do when all of them are done.

    Parameters
    ----------
    requests : list of mpi4py.MPI.Request
    outputs : list
        What the call's future gives.
    after : list of callable
        Called once, in order, when all requests are done.
    timeout : datetime.timedelta, optional
        How long `wait` may take where the call names no other limit.
    held : object
        Kept until the requests are done: the memory that MPI reads and writes.
    """

    def __init__(self, requests, outputs, after=(), timeout=None, held=None):
        super().__init__()
        self._requests = requests
        self._outputs = outputs
        self._after = after
        self._timeout = timeout
        self._held = held
        self._status = MPI.Status()
        self._done = False
        if not requests:
            self._finish()

    def _finish(self):
        if not self._done:
            self._done, self._held = True, None
            for step in self._after:
                step()

    def is_completed(self):
        if not self._done and self._test():
            self._finish()
        return self._done

    def _test(self):
        if len(self._requests) == 1:
            return self._requests[0].Test(self._status)
        return MPI.Request.Testall(self._requests)

    def wait(self, timeout=timedelta(0)):  # noqa: B008 (torch's own signature; immutable)
        if self._done:
            return True
        timeout = timeout or self._timeout
        end = time.monotonic() + timeout.total_seconds() if timeout else math.inf
        for look in itertools.count():
            if self._test():
                break
            if look < LOOKS_AT_ONCE:
                continue
            if time.monotonic() > end:
                raise dist.DistBackendError(
                    f"MPI: the timeout of {timeout.total_seconds():g} s is over"
                )
            time.sleep(0)  # MPI's own wait keeps the processor, which other ranks may need
        self._finish()
        return True

    def is_success(self):
        return self.is_completed()

    def exception(self):
        return None

    def result(self):
        return self._outputs

    def synchronize(self):
        self.wait()

    def _source_rank(self):
        return self._status.source

    source_rank = _source_rank

    def get_future(self):
        """A future that has its value: C++ code that takes it waits without asking MPI."""
        self.wait()
        future = Future()
        future.set_result(self._outputs)
        return future
