"""When ops on a GPU have ended: by events of its streams, and nobody waits for the GPU.

A request of NCCL is waited for by the stream, not by the rank: `wait` returns at once, and the op
ends some time later. So an event is put into the stream behind it, and whenever the rank comes by
(at its next op, say) those that the GPU has passed are asked when that was.
"""

from __future__ import annotations

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

    Notes
    -----
    Events tell milliseconds since another event. When the first one was passed, by the rank's own
    clock, is known by a bound: no event is passed before it is recorded. The best bound so far is
    taken; it is exact once a stream had nothing left to do when an event was recorded.
    """

    def __init__(self, log, record=record_event, clock=time.perf_counter):
        self._log = log
        self._record = record
        self._clock = clock
        self._open = {}  # device -> deque of (op, event, when it was recorded)
        self._origins = {}  # device -> [its first event, when that was passed, at the earliest]

    def __bool__(self):
        return any(self._open.values())

    def clear(self):
        """Forget the ops of a run."""
        self._open.clear()

    def mark(self, start, device):
        """The op ends when the device's stream has come to here."""
        recorded_s = self._clock()
        event = self._record(device)
        self._origins.setdefault(device, [event, recorded_s])
        self._open.setdefault(device, deque()).append((start, event, recorded_s))

    def look(self):
        """Write down the ends of ops that GPUs have passed."""
        for device, ops in self._open.items():
            while ops and ops[0][1].query():
                start, event, recorded_s = ops.popleft()
                self._log.ended(start, self._when(device, event, recorded_s))

    def _when(self, device, event, recorded_s):
        origin = self._origins[device]
        first, first_s = origin
        since_s = first.elapsed_time(event) / 1000 if event is not first else 0.0
        origin[1] = max(first_s, recorded_s - since_s)
        return min(origin[1] + since_s, self._clock())

    def last_look(self, sleep=time.sleep):
        """Look until all ends are known; a GPU that does not come to them is not waited for."""
        until_s = self._clock() + LAST_S
        self.look()
        while self and self._clock() < until_s:
            sleep(LOOK_S)
            self.look()
