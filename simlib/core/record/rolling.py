"""The reader of a log that rolls over, for runs that are watched for hours.

The log's memory is a ring of segments. The kernel reads all records soon after they were written.
So a rank that continues in the oldest segment overwrites only records that the kernel has read. If
the kernel is a whole ring behind, the rank waits. The kernel keeps the ops that are still in the
ring, the ops that have not ended yet, and sums over all other ops.
"""

from __future__ import annotations

import bisect
from collections import deque
from mmap import mmap
from typing import Any

from ..model.trace import Op, Piece, make_site
from . import oplog
from .oplog import DEFINITION, HEADER, LATE, NEVER, PIECE, SEGMENTS, place_in
from .oplog_reader import OpLogReader

KEPT_BYTES = 64 << 20
"""The bytes of all logs of a watched run together. The logs have room for 900,000 ops, and always
contain at least three quarters of this number. At the end the kernel makes objects of these ops."""
LEAST_SEGMENT = 1 << 10
MAX_RACES = 1000
"""simlib keeps at most this many touched buffers for one rank."""
MAX_CALLS = 10_000
"""The number of different calls after which their known facts are read again."""


def segment_of(world_size: int) -> int:
    """Bytes of a segment of each rank's log."""
    return max(KEPT_BYTES // world_size // SEGMENTS, LEAST_SEGMENT) // 8 * 8


class RollingReader(OpLogReader):
    """The kernel's side of a log that rolls over.

    Parameters
    ----------
    memory : mmap.mmap
    rank : int
    segment : int
        Bytes of a segment, see `OpLogWriter.roll_over`.
    cells : dict
        File name of a notebook cell -> its execution count.
    forgotten : Evicted
        One object for all ranks, with sums over the records that the logs have overwritten.
    """

    def __init__(self, memory: mmap, rank: int, segment: int, cells: dict, forgotten: Any) -> None:
        super().__init__(memory, rank)
        self._segment = segment
        self._cells = cells
        self._sums = forgotten
        self._oldest = HEADER  # what is before this offset may be overwritten
        self._first = 0  # number of the first op in `_offsets`
        self._held: dict[
            int, bytearray
        ] = {}  # offset -> a copy of a record that had not ended when it was forgotten
        self._held_seqs: dict[int, int] = {}  # offset -> number of the op; in order
        self._ended: tuple[list, list] = (
            [],
            [],
        )  # held records that have ended, before and after the last `let_go`
        self._races: list[tuple] = []
        self._parts = b""  # of a definition that is longer than a segment
        self._named: deque = deque()  # (offset, number) of the definitions of pieces
        self._old_names: set[int] = set()  # numbers of those that only held pieces may have

    def let_go(self, taken: int) -> None:
        """Release the segments that the rank needs next. ``taken`` ops have been read."""
        for offset in self._ended[0]:
            self._drop(offset)
        self._ended = self._ended[1], []
        written = self._segment_at(self._position)
        if taken < self.count:
            written = min(written, self._segment_at(self.offset_of(taken)) + SEGMENTS - 2)
        oldest = HEADER + max(0, written + 2 - SEGMENTS) * self._segment
        if oldest > self._oldest:
            self._forget_until(oldest)
            self._oldest = oldest
            self._set_room(oldest + SEGMENTS * self._segment)
        if len(self._calls) > MAX_CALLS:
            self._calls.clear()
            self._shared.forget_sites()

    def _segment_at(self, offset):
        return (offset - HEADER) // self._segment

    def _set_room(self, until):
        self._memory[oplog.READERS : oplog.READERS + 8] = until.to_bytes(8, "little")

    def _forget_until(self, oldest):
        count = bisect.bisect_left(self._offsets, oldest)
        for seq, offset in enumerate(self._offsets[:count], self._first):
            op = self.op_at(offset, seq, 0, self._cells)
            is_open = op.end_s is None  # one that failed has an end of another name
            self._sums.add(op, is_open)
            if is_open:
                self._hold(offset, oplog.OP_SIZE)
                self._held_seqs[offset] = seq
        del self._offsets[:count]
        self._first += count
        pieces = bisect.bisect_left(self._pieces, oldest)
        for offset in self._pieces[:pieces]:
            if self._piece_at(offset, 0).end_s is None:
                self._hold(offset, oplog.PIECE_SIZE)
        del self._pieces[:pieces]
        self._forget_names(oldest - self._segment)  # a piece comes at most a turn after its name

    def _forget_names(self, until):
        """Forget the definitions of pieces before an offset, except for pieces that are kept."""
        while self._named and self._named[0][0] < until:
            self._old_names.add(self._named.popleft()[1])
        held = {PIECE.unpack_from(self._held[offset])[1] for offset in self._held_pieces()}
        for number in self._old_names - held:
            self._definitions["piece"].pop(number, None)
        self._old_names &= held

    def _held_pieces(self):
        return [offset for offset in self._held if offset not in self._held_seqs]

    def _hold(self, offset, size):
        memory, at = self._where(offset)
        self._held[offset] = bytearray(memory[at : at + size])

    def _drop(self, offset):
        """Drop a kept record that has ended, after all facts about it were read."""
        if offset in self._held_seqs:
            self._sums.end(self.op_at(offset, self._held_seqs.pop(offset), 0, self._cells))
        del self._held[offset]

    def _read_record(self, offset):
        memory, at = self._where(offset)
        if memory[at] == oplog.IS_TURN:
            return HEADER + (self._segment_at(offset) + 1) * self._segment
        if memory[at] == oplog.IS_LATE:
            _, change, start, moment, number = LATE.unpack_from(memory, at)
            self._change_late(start, change, moment, number)
            return offset + LATE.size
        if memory[at] == oplog.IS_PART:
            start, length = at + DEFINITION.size, DEFINITION.unpack_from(memory, at)[1]
            self._parts += memory[start : start + length]
            return offset + DEFINITION.size + length
        return super()._read_record(offset)

    def _change_late(self, start, change, moment, number):
        """A record in a segment of the reader has changed."""
        if start < self._oldest and start not in self._held:
            return  # it had ended, and is forgotten
        memory, at = self._where(start)
        oplog.CHANGES[change](memory, at, moment, number)
        if start not in self._held or start in self._ended[0] or start in self._ended[1]:
            return
        if start in self._held_seqs:
            flags, end, _ = self._flags_and_times(start)
            has_ended = end != NEVER and not flags & oplog.FAILED
        else:
            has_ended = PIECE.unpack_from(memory, at)[3] != NEVER
        if has_ended:
            self._ended[1].append(start)

    def _define(self, offset, payload):
        number, table, value = self._loads(self._parts + payload)
        self._parts = b""
        if table != "race":
            self._definitions[table][number] = value
            if table == "piece":
                self._named.append((offset, number))
        elif len(self._races) < MAX_RACES:
            how, start, other, place = value
            ops = [self._op_if_known(offset) for offset in (start, other)]
            if ops[0] is not None and (ops[1] is not None or not other):
                self._races.append((how, *ops, make_site(how, place, self._cells)))

    def _op_if_known(self, offset):
        if offset >= self._oldest or offset in self._held:
            return self.op_at(offset, self.seq_at(offset), 0, self._cells)
        return None

    def _where(self, offset):
        held = self._held.get(offset)
        return (self._memory, place_in(offset, self._segment)) if held is None else (held, 0)

    def requests_never_waited(self) -> list[int]:
        """The same as `OpLogReader.requests_never_waited`, for the ops that are kept."""
        found = []
        for seq, offset in self._known():
            flags, end, wait = self._flags_and_times(offset)
            if flags & oplog.REQUEST and wait == end == NEVER:
                found.append(seq)
        return found

    def _known(self):
        yield from ((seq, offset) for offset, seq in self._held_seqs.items())
        yield from enumerate(self._offsets, self._first)

    def ops(
        self, origin_s: float, cells: dict[str, int], first: int = 0, until: int | None = None
    ) -> list[Op]:
        """The same as `OpLogReader.ops`, for the ops that are kept."""
        self.read_on()
        first = max(first, self._first)
        until = None if until is None else max(until, first) - self._first
        return [
            self.op_at(offset, seq, origin_s, cells)
            for seq, offset in enumerate(self._offsets[first - self._first : until], first)
        ]

    def pieces(self, origin_s: float) -> list[Piece]:
        """The same as `OpLogReader.pieces`, for pieces that are kept, or have not ended."""
        held = [self._piece_at(offset, origin_s) for offset in self._held_pieces()]
        return held + super().pieces(origin_s)

    def races(self, cells: dict[str, int]) -> list[tuple]:
        """The same as `OpLogReader.races`, `MAX_RACES` of them."""
        self.read_on()
        return list(self._races)

    def seq_at(self, offset: int) -> int:
        """The number of the op at an offset, among the ops that were read so far."""
        if offset in self._held_seqs:
            return self._held_seqs[offset]
        return self._first + super().seq_at(offset)

    def offset_of(self, seq: int) -> int | None:
        """The place in the log of the op with this number; None if it is forgotten."""
        if seq >= self._first:
            return self._offsets[seq - self._first]
        return next((offset for offset, number in self._held_seqs.items() if number == seq), None)

    @property
    def count(self) -> int:
        """The same as `OpLogReader.count`."""
        return self._first + len(self._offsets)

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of records in the log, and the number of records that are kept in addition."""
        return len(self._offsets) + len(self._pieces), len(self._held)
