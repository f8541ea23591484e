"""The work of one simulated rank's device: sums over the run and over each named piece."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ...record.this_rank import here


class WorkMeter:
    """Counts the floating-point operations of one rank. All its threads add to the count.

    Parameters
    ----------
    log : OpLogWriter
        The log to which the meter writes the sums when the rank leaves its function.
    streams : Streams or None
        The streams of an asynchronous device.
    has_rates : bool
        Whether an op takes time for its arithmetic.
    """

    def __init__(self, log: Any, streams: Any, has_rates: bool) -> None:
        self._log = log
        self._streams = streams
        self._lock = threading.Lock()
        self._sums = [0, 0, 0.0, 0.0]  # as the fields of `Work`
        self._has_rates = has_rates
        self._pieces: dict[int, tuple[list, Any]] = {}  # by place in the log: its sums, its extent

    @property
    def flops(self) -> int:
        """The sums so far."""
        return self._sums[0]

    def count(self, flops: int, full_rate_s: float) -> None:
        """Count an op that takes ``full_rate_s`` seconds at the full rate for its dtype."""
        # Backward itself builds no graph. Whoever does within it computes again for that graph.
        is_again = torch.is_grad_enabled() and getattr(here, "backward_depth", 0)
        with self._lock:
            self._has_rates = self._has_rates and full_rate_s > 0
            self._sums[0] += flops
            self._sums[2] += full_rate_s
            if is_again:
                self._sums[1] += flops
                self._sums[3] += full_rate_s

    @contextmanager
    def within(self, start: int) -> Iterator[None]:
        """Within the block, calls also belong to the piece at this place of the log."""
        before = self._sums.copy()
        extents = nullcontext() if self._streams is None else self._streams.extent()
        with extents as extent:
            try:
                yield
            finally:
                sums = [now - then for now, then in zip(self._sums, before, strict=True)]
                self._pieces[start] = sums, extent

    def tell(self) -> None:
        """Write the sums into the log when the rank leaves its function."""
        self._log.tell_work(0, self._as_work(self._sums, None))
        for start, piece in self._pieces.items():
            if start:
                self._log.tell_work(start, self._as_work(*piece))

    def retell(self, extents: dict[int, Any]) -> None:
        """Write the sums again, with these extents, by the numbers of the pieces in a rehearsal."""
        for start, (sums, extent) in self._pieces.items():
            self._pieces[start] = sums, extent and extents[extent.number]
        self.tell()

    def _as_work(self, sums, extent):
        seconds = sums[2:] if self._has_rates else (None, None)
        times = (None, None) if extent is None else (extent.start_s, extent.end_s)
        return *sums[:2], *seconds, *times
