"""`torch.cpu.Stream` and similar classes, with clocks if a rank's modelled device has streams.

torch's own classes are dummies, because all work on a CPU is over when the call returns. FSDP2 uses
streams and events of ``torch.cpu`` if its tensors are on the CPU. So do programs that are written
for any device.
"""

from __future__ import annotations

import functools
import sys

import torch

from ....model.errors import InvalidCallError
from ....record.this_rank import here as local


def _streams():
    """The `Streams` of the calling rank; None if its device has none."""
    return getattr(local, "streams", None)


class Stream(torch.cpu.Stream):
    """A stream of the calling rank's device."""

    def __init__(self, *args, queue=None, **kwargs):
        streams = _streams()
        self.queue = streams.new() if queue is None and streams is not None else queue

    def wait_stream(self, stream):
        if self.queue is not None:
            self.queue.wait(_streams().record(stream.queue))

    def record_event(self, event=None):
        if self.queue is not None:
            event = Event() if event is None else event
            event.record(self)
        return event

    def wait_event(self, event):
        if self.queue is not None:
            event.wait(self)

    def synchronize(self):
        if self.queue is not None:
            _streams().hold(_streams().record(self.queue))

    def query(self):
        """Whether all work in the stream is done."""
        return self.queue is None or _is_over(_streams().record(self.queue))


class Event(torch.cpu.Event):
    """An event of the calling rank's device."""

    def __init__(self, *args, **kwargs):
        self._moment = None

    def record(self, stream=None):
        streams = _streams()
        if streams is not None:
            self._moment = streams.record((stream or current_stream()).queue)

    def wait(self, stream=None):
        if self._moment is not None:
            (stream or current_stream()).queue.wait(self._moment)

    def query(self):
        return self._moment is None or _is_over(self._moment)

    def synchronize(self):
        if self._moment is not None:
            _streams().hold(self._moment)

    def elapsed_time(self, end_event):
        """Milliseconds from this event to a later one. The program must have waited for both."""
        if self._moment is not None:
            _streams().refuse_in_rehearsal("elapsed_time()", "use run.profile or run.trace")
        times = [getattr(event._moment, "time_s", None) for event in (self, end_event)]
        if None in times:
            raise InvalidCallError(
                "elapsed_time is known only after both events have completed: call "
                "end.synchronize() first"
            )
        return 1000 * (times[1] - times[0])


def _is_over(moment):
    _streams().refuse_in_rehearsal("query()", "call synchronize()")
    local.settle()
    return moment.time_s is not None and moment.time_s <= local.clock()


_DUMMY = torch.cpu.current_stream()


def current_stream(device=None):
    """The stream into which the calling rank puts kernels."""
    streams = _streams()
    if streams is None:
        return _DUMMY
    if streams.current.handle is None:
        streams.current.handle = Stream(queue=streams.current)
    return streams.current.handle


class StreamContext(torch.cpu.StreamContext):
    """Within the block, the calling rank puts kernels into another stream."""

    def __enter__(self):
        streams = _streams()
        if streams is not None and self.stream is not None:
            self._before, streams.current = streams.current, self.stream.queue

    def __exit__(self, *error):
        streams = _streams()
        if streams is not None and self.stream is not None:
            streams.current = self._before


def synchronize(device=None):
    """Wait until all streams of the calling rank have done all their work."""
    streams = _streams()
    if streams is not None:
        streams.drain()


def _holding(method):
    """A method of a tensor that waits for its values if the rank's device has streams."""

    @functools.wraps(method)
    def read(*args, **kwargs):
        before_read = local.__dict__.get("before_read")
        if before_read is not None:
            before_read(sys._getframe(1))
        return method(*args, **kwargs)

    return read


def own_streams():
    """Give each rank its own streams."""
    for name in ("cpu", "numpy", "tolist"):  # they read memory without an op
        setattr(torch.Tensor, name, _holding(getattr(torch.Tensor, name)))
    module = torch.cpu
    module.Stream, module.Event, module.StreamContext = Stream, Event, StreamContext
    module.stream, module.current_stream, module.synchronize = (
        StreamContext,
        current_stream,
        synchronize,
    )
