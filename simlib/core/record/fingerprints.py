"""Fingerprints of ops: before an op begins, does what it brings agree with what others bring?

The matcher of the kernel judges with all the logs, but later; by then Gloo may have mixed bytes
that do not belong together. So each rank leaves a word about its op in memory that all ranks of a
world share, and looks whether one who came to the same meeting has left another. If so it does
not enter, and the kernel finds it waiting there. The table is small and forgets: a word that was
overwritten is not compared. It only ever delays an op, a verdict is the matcher's.
"""

from __future__ import annotations

import mmap
import zlib
from typing import Any

SLOTS = 1024
_CELL = 8


def size_of_table(world_size: int) -> int:
    """Bytes of the table of so many ranks."""
    return SLOTS * world_size * _CELL


class FingerprintTable:
    """One rank's view of the shared memory; ``fd`` is a descriptor of `size_of_table` bytes.

    Each slot has one cell for each rank. A cell is one 64-bit number, meeting above and word below,
    so that it is written and read in one piece. A rank fills its own cell first and looks at the
    others' then: of two that come at the same moment at least one sees the other.
    """

    def __init__(self, fd: int, world_size: int, rank: int) -> None:
        self._size = world_size
        self._rank = rank
        self._memory = mmap.mmap(fd, size_of_table(world_size))
        self._cells = memoryview(self._memory).cast("Q")

    def close(self) -> None:
        """Give the memory back."""
        self._cells.release()
        self._memory.close()

    def agrees(self, meeting: int, number: int, word: int) -> bool:
        """Whether nobody has left another word for the same meeting; leaves this one.

        ``meeting`` and ``word`` are numbers of `word_for`; ``number`` counts the meetings there.
        """
        first = (meeting + number) % SLOTS * self._size
        key = (meeting + number) & 0xFFFFFFFF
        mine = key << 32 | word
        self._cells[first + self._rank] = mine
        for cell in self._cells[first : first + self._size]:
            if cell != mine and cell >> 32 == key:
                return False
        return True


def word_for(*parts: Any) -> int:
    """A 32-bit number that stands for these values, the same in every process; never 0."""
    return zlib.crc32(repr(parts).encode()) or 1
