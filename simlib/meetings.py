"""A glance before an op: does what I bring agree with those who came before me?

The matcher of the kernel judges with all the logs, but later; by then Gloo may have mixed bytes
that do not belong together. So each rank leaves a word about its op in memory that all ranks of a
world share, and looks whether the one who came first to the same meeting left another. If so it
does not enter, and the kernel finds it standing there. The table is small and forgets: a word that
was overwritten is not compared. It only ever delays an op, a verdict is the matcher's.
"""

from __future__ import annotations

import mmap
import struct
import zlib

SLOTS = 4096
_ENTRY = struct.Struct("<qqq")  # meeting, number, word
SIZE = SLOTS * _ENTRY.size


class MeetingTable:
    """The shared memory; ``fd`` is a descriptor of `SIZE` bytes."""

    def __init__(self, fd):
        self._memory = mmap.mmap(fd, SIZE)

    def clear(self):
        """Forget all meetings, before a run."""
        self._memory[:] = bytes(SIZE)

    def close(self):
        """Give the memory back."""
        self._memory.close()

    def agrees(self, meeting, number, word):
        """Whether nobody has left another word for the same meeting; leaves this one."""
        place = (meeting + number) % SLOTS * _ENTRY.size
        found = _ENTRY.unpack_from(self._memory, place)
        if found[:2] == (meeting, number):
            return found[2] == word
        _ENTRY.pack_into(self._memory, place, meeting, number, word)
        return _ENTRY.unpack_from(self._memory, place) == (meeting, number, word)


def word_for(*parts):
    """A number that stands for these values, the same in every process; never 0."""
    return zlib.crc32(repr(parts).encode()) + 1
