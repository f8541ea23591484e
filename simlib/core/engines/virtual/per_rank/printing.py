"""What a rank prints: whole lines, with its number."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys

from ....record.this_rank import here as local

LONGEST_HELD = 8192
"""Characters of a line after which it is shown although it has not ended."""


class _BytesPerRank(io.RawIOBase):
    """``sys.stdout.buffer``: the same output, as UTF-8."""

    def __init__(self, text):
        self._text = text

    def write(self, data):
        decoder = local.__dict__.get("decoder")
        if decoder is None:
            decoder = local.decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        data = bytes(data)
        self._text.write(decoder.decode(data))
        return len(data)

    def writable(self):
        return True

    def flush(self):
        self._text.flush()

    def close(self):
        self.flush()

    def fileno(self):
        return self._text.fileno()


class OutputPerRank(io.TextIOBase):
    """``sys.stdout`` and ``sys.stderr``: whole lines go to ``write_out(rank, text)``.

    What other threads print goes to ``other``.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, write_out, other):
        self.buffer = _BytesPerRank(self)
        self._write_out = write_out
        self._other = other

    def write(self, text):
        rank = getattr(local, "rank", None)
        if rank is None:
            return self._other.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        fields = local.__dict__
        fields.setdefault("printed", []).append(text)
        fields["held"] = fields.get("held", 0) + len(text)
        if "\n" in text or fields["held"] >= LONGEST_HELD:
            self.flush()
        return len(text)

    def flush(self):
        fields = local.__dict__
        if fields.get("printed"):
            fields.get("before_output", bool)()
            text = "".join(fields["printed"])
            fields["printed"], fields["held"] = [], 0
            self._write_out(local.rank, text)

    def close(self):
        """Let everything out; it stays open, as it belongs to all ranks."""
        self.flush()

    def reconfigure(self, *, encoding=None, errors=None, newline=None, **buffering):
        """Lines are shown as they end, in UTF-8, whatever is asked for."""
        self.flush()

    def writable(self):
        return True

    def fileno(self):
        return self._other.fileno()


def write_to_descriptors(stdout, stderr):
    """What a rank writes to descriptor 1 or 2 is its output too."""
    write_in_reality, streams = os.write, {1: stdout, 2: stderr}

    def write(fd, data):
        if fd in streams and hasattr(local, "rank"):
            return streams[fd].buffer.write(data)
        return write_in_reality(fd, data)

    os.write = write


def flush(streams):
    """Let out what this rank has printed; its own `sys.stdout` may be anything."""
    for stream in (sys.stdout, sys.stderr, *streams):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed by the learner
            stream.flush()
