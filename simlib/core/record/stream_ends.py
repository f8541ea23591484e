"""When ops on a GPU have ended: by events of its streams, and nobody waits for the GPU.

A request of NCCL is waited for by the stream, not by the rank: `wait` returns at once, and the op
ends some time later. So an event is put into the stream behind it, and whenever the rank comes by
(at its next op, say) those that the GPU has passed are asked when that was.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque

import torch

LAST_S, LOOK_S = 1.0, 0.001
"""How long a rank that has left its function waits to see its ops end, and how often it looks."""


def record_event(device):
    """An event behind what the device's current stream has been given so far."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class StreamEnds:
    """The ops of one rank whose end is an event that a GPU has yet to pass.

    Parameters
    ----------
    log : OpLogWriter
    record : callable
        ``device`` -> an event, as of `torch.cuda`: it has ``query()`` and ``elapsed_time(later)``.
    clock : callable
        The log's.

    Attributes
    ----------
    open : dict
        Device -> deque of (op, event, when it was recorded). It is empty as long as no op was on a
        GPU: then nobody needs to `look`.

    Notes
    -----
    Events tell how long after another one they were passed. When the one before was, by the rank's
    own clock, is known or estimated; and no event is passed before it is recorded. So an estimate
    is at worst too early, by what a stream had to do when the first event was put into it, and is
    exact from the first event on that is recorded where the stream has nothing left to do.
    """

    def __init__(self, log, record=record_event, clock=time.perf_counter):
        self._log = log
        self._record = record
        self._clock = clock
        self.open = {}
        self._passed = {}  # device -> (the last event that was passed, when)

    def __bool__(self):
        return any(self.open.values())

    def clear(self):
        """Forget the ops of a run."""
        self.open.clear()

    def begin(self, device):
        """An op is about to be posted on this device: there is an event before it."""
        if device not in self._passed:
            recorded_s = self._clock()
            self._passed[device] = self._record(device), recorded_s

    def mark(self, start, device):
        """The op ends when the device's stream has come to here; `begin` was called before it."""
        recorded_s = self._clock()
        event = self._record(device)
        self.open.setdefault(device, deque()).append((start, event, recorded_s))

    def look(self):
        """Write down the ends of ops that GPUs have passed."""
        for device, ops in list(self.open.items()):  # other threads may `mark`
            while ops and ops[0][1].query():
                before, before_s = self._passed[device]
                if not before.query():  # of another stream, which has not come so far
                    break
                start, event, recorded_s = ops.popleft()
                end_s = before_s + before.elapsed_time(event) / 1000
                end_s = min(max(end_s, recorded_s), self._clock())
                self._passed[device] = event, end_s
                self._log.ended(start, end_s)

    def last_look(self, sleep=time.sleep):
        """Look until all ends are known; a GPU that does not come to them is not waited for.

        Of one that has failed (by a device-side assert, say) no end is ever told.
        """
        until_s = self._clock() + LAST_S
        with contextlib.suppress(RuntimeError):
            self.look()
            while self and self._clock() < until_s:
                sleep(LOOK_S)
                self.look()
