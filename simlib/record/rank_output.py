"""What one rank has printed: all that is kept of it, and its lines."""

from __future__ import annotations

KEPT_BYTES = 1 << 20
"""What is kept of one rank's output: the first and the last half of this many bytes."""
FLOOD_BYTES, FLOOD_LINES = 32 << 20, 300_000
"""Output after which a rank is taken to print for ever."""


class RankOutput:
    """The output of one rank: grows by chunks, is read as whole lines, stays bounded."""

    def __init__(self):
        self.total = 0
        self.lines = 0
        self.unfinished = b""
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, chunk):
        """Take a chunk in; returns the lines it completes, as bytes."""
        self.total += len(chunk)
        room = max(0, KEPT_BYTES // 2 - len(self._head))
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > KEPT_BYTES:
            del self._tail[: -KEPT_BYTES // 2]
        *lines, self.unfinished = (self.unfinished + chunk).split(b"\n")
        self.unfinished = self.unfinished[-KEPT_BYTES:]
        self.lines += len(lines)
        return lines

    @property
    def is_flood(self):
        """Whether so much has come that the rank is taken to print for ever."""
        return self.total > FLOOD_BYTES or self.lines > FLOOD_LINES

    @property
    def text(self):
        """All that is kept; what was left out between its beginning and its end is counted."""
        tail = bytes(self._tail[-KEPT_BYTES // 2 :])
        left_out = self.total - len(self._head) - len(tail)
        if left_out:
            note = f"\n... {left_out:,} bytes of output left out ...\n"
            return self._head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")
        return (bytes(self._head) + tail).decode("utf-8", "replace")
