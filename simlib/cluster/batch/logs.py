"""Op logs in files: written by a rank on its host, read on any host that sees the folder."""

from __future__ import annotations

import mmap
import os
import pickle
import struct

from ...core.record.oplog import CAPACITY, COMMITTED, ENTERED, FUTURES, HEADER, READERS, OpLogWriter
from ...core.record.oplog_reader import OpLogReader
from ...core.record.safe_pickle import dumps_tree, loads_tree

SLEEPS = READERS
"""The readers' field of the header, as no log of a job rolls over. The rank's supervisor writes it:
above, how many times it has looked; below, how often the rank's main thread had gone to sleep by
then, plus 1, or 0 where it was awake. It is for waits inside C++, see `DeadlockDetector`."""
_NUMBER = struct.Struct("q")
_MOMENT = struct.Struct("d")


def create(path):
    """A new log's memory, mapped from its file: what was written is kept if the rank is killed.

    Its 256 MB are room, taken as used.
    """
    with open(path, "w+b") as file:
        file.truncate(CAPACITY)
        return mmap.mmap(file.fileno(), CAPACITY)


def writer(memory, *more):
    """What writes a log, as `LogFile` reads it: its definitions are plain data, whoever reads."""
    return OpLogWriter(memory, *more, dumps=dumps_tree)


def open_memory(path):
    """The memory of a log that is there."""
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), CAPACITY)


def has_futures_taken(memory):
    """Whether C++ code of the rank has taken the future of an op."""
    return bool(_NUMBER.unpack_from(memory, FUTURES)[0])


def entered_s(memory):
    """When the rank entered its function, on its host's clock; None: not yet."""
    moment_s = _MOMENT.unpack_from(memory, ENTERED)[0]
    return moment_s if moment_s > 0 else None


def write_sleeps(memory, look, count):
    """Note how often the rank had gone to sleep at this look, None where it was awake."""
    low = 0 if count is None else (count + 1) & 0xFFFFFFFF
    _NUMBER.pack_into(memory, SLEEPS, look << 32 | low)


def trim(path):
    """Give back the room that a finished log has not used."""
    os.truncate(path, used_bytes(path))


def used_bytes(path):
    """How many bytes of a log's file are in use."""
    with open(path, "rb") as file:
        header = file.read(HEADER)
    if len(header) < HEADER:
        return len(header)
    return max(HEADER, _NUMBER.unpack_from(header, COMMITTED)[0])


class LogFile(OpLogReader):
    """Reads a log by its file, anew for every look: memory mapped from a file of another host
    would not show what is written there.

    What a look sees is the log as it stood at some moment: a record is whole before the header says
    that it is there. That is all the matcher needs. If ranks seem to wait for each other although
    their logs were read at different moments, they do: the first of them to go on would need an op
    that another one posted before it began to wait, and that op would be in its log.

    Parameters
    ----------
    path : Path
    rank : int

    Attributes
    ----------
    offset_s : float
        How far the rank's clock is ahead of rank 0's.
    sleeps : (int, int or None)
        The supervisor's last look, and how often the rank had gone to sleep by then if it slept.
    """

    def __init__(self, path, rank):
        self._path = path
        self.offset_s = 0.0
        self.sleeps = (0, None)
        self._is_torn = False
        empty = bytearray(HEADER)
        OpLogWriter(empty)
        super().__init__(bytes(empty), rank, loads=loads_tree)

    def refresh(self, anew=False):
        """Take in what is in the file now; ``anew``: also where the header has not changed."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                header = file.read(HEADER)
                if len(header) < HEADER:
                    return
                look, low = divmod(_NUMBER.unpack_from(header, SLEEPS)[0], 1 << 32)
                self.sleeps = look, low - 1 if low else None
                is_same = header[:SLEEPS] == self._memory[:SLEEPS]
                if is_same and not (anew or self._is_torn):
                    return
                committed = _NUMBER.unpack_from(header, COMMITTED)[0]
                body = file.read(max(0, committed - HEADER))
        except FileNotFoundError:
            return
        if committed >= HEADER and len(body) == committed - HEADER:
            self._memory = header + body
            self._is_torn = False

    @property
    def state(self):
        """The same as `OpLogReader.state`, as of now."""
        self.refresh()
        return super().state

    def close(self):
        """There is nothing to close: each look opens the file anew."""

    def _moment(self, offset):
        moment_s = super()._moment(offset)
        return None if moment_s is None else moment_s - self.offset_s

    def op_at(self, offset, seq, origin_s, cells):
        """The same as `OpLogReader.op_at`, on rank 0's clock."""
        return super().op_at(offset, seq, origin_s + self.offset_s, cells)

    def read_on(self):
        """The same as `OpLogReader.read_on`, as far as it can be read."""
        try:
            super().read_on()
        except (EOFError, struct.error, pickle.UnpicklingError):
            self._is_torn = True  # NFS hands pages on in any order: the next look has it
