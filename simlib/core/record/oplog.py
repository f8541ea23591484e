"""The op log: shared memory in which a rank writes its ops and the kernel reads them.

Each log belongs to one rank. Only this rank writes to it. The kernel maps the same memory and may
read it at any moment, even while the rank hangs or after the rank was killed. The rank sends
nothing, and wakes no process. So recording an op costs a rank only a few microseconds.

Layout: a header of `HEADER` bytes, then records one after the other. A record may be an op or a
named piece of computing. Such a record has a fixed size, and the rank fills in its times later. Or
a record is a definition: a site, a group, a signature or the name of a piece. The rank pickles a
definition once, and later records refer to it by number. All fields are aligned, so that a field is
read and written in one step.

A log that is full only counts further ops. A log that rolls over (`rolling`) continues in its
oldest segment. In such a log, offsets keep growing, so an offset always means the same record.

Times are seconds of the rank's own clock. Real ranks use the machine's monotonic clock, and
simulated ranks use the virtual clock. `NEVER` stands for a moment that has not happened yet.
"""

from __future__ import annotations

import functools
import mmap
import os
import pickle
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

FORMAT = 3
"""The number of this layout. It grows with every change, because logs of jobs outlive the simlib
that wrote them."""

CAPACITY = 256 << 20
"""Address space of one log, in bytes (about 2.5 million ops); the log takes memory only as it
grows."""

KEPT_MEMORY = 4 << 20
"""A log keeps this many bytes of memory from one run to the next."""

KINDS = tuple(
    "send recv broadcast scatter gather reduce all_reduce all_gather reduce_scatter all_to_all "
    "barrier new_group".split()
)
KIND_ID = {name: number for number, name in enumerate(KINDS)}

ASYNC, ANY_SOURCE, REQUEST, FUTURE_TAKEN, FAILED, IN_THREAD = 1, 2, 4, 8, 16, 32
"""Flags of an op. ASYNC: the call returned a request. ANY_SOURCE: the call named no src. REQUEST:
the learner's own code has the request (parts of torch post async ops for whose requests no Python
code waits). FUTURE_TAKEN: C++ code took the future and waits for it before `backward` returns.
FAILED: the op raised an error, at the time in its end. IN_THREAD: a thread that the learner has
started posted the op."""
NOBODY = -1

HEADER = 64
COMMITTED, PROGRESS, WAITING, ENTERED, LEFT, DROPPED, FUTURES, READERS = range(0, 64, 8)
"""Offsets of the header's 64-bit fields: end of the valid records; ops posted and ended so far;
offset of the op for which the rank waits (0: none); entry and exit of the rank function; ops that
found the log full; 1 if C++ code has taken the future of an op; the reader's field: for a log that
rolls over, the offset up to which there is space. Neighbours are written together."""

NEVER = -1.0
U64 = struct.Struct("q")
_TWO = struct.Struct("qq")
TIME = struct.Struct("d")
OP = struct.Struct("BBHIIIqqqdddq")
"""Type, kind, flags, site, group, signature, peer, tag, nbytes; the times of its post, of its end,
and of the beginning of the rank's wait for it; the number of ops that the rank had posted then."""
CALL, TIMES = struct.Struct("BBHIIIqqq"), struct.Struct("dddq")  # the two halves of an op
_POSTED = struct.Struct(f"{CALL.size}sdddq")  # an op whose first half is packed already
_OP_PEER, OP_TIMES, _OP_END, _OP_WAIT = 16, CALL.size, CALL.size + 8, CALL.size + 16
_WAIT = struct.Struct("dq")
FLAGS, OP_FLAGS = struct.Struct("H"), 2
DEFINITION = struct.Struct("BxxxI")  # type, length of the pickle that follows, filled up to 8
PIECE, _PIECE_END = struct.Struct("BxxxIdd"), 16  # type, number of its name, start, end
OP_SIZE, PIECE_SIZE = OP.size, PIECE.size
IS_OP, IS_DEFINITION, IS_PIECE, IS_LATE, IS_TURN, IS_PART = 1, 2, 3, 4, 5, 6
"""`IS_PART` begins a definition that is longer than a segment. The next record continues it."""
LATE = struct.Struct("BBxxxxxxqdq")
"""Type, number of the change, offset of the changed record, and the data of the change."""
TURN = 8
"""Bytes that end a segment. The first byte says that the log continues in the next segment."""
SEGMENTS = 8
"""The number of segments of a log that rolls over."""
ROOM_LOOK_S = 0.0005
"""A rank with full segments checks in these intervals whether the kernel has read the oldest."""


def _moved(when, moment):
    return moment if moment == NEVER else when(moment)


def _begin_wait(memory, at, moment, posted):
    _WAIT.pack_into(memory, at + _OP_WAIT, moment, posted)


def _end(memory, at, moment, _):
    TIME.pack_into(memory, at + _OP_END, moment)


def _end_if_open(memory, at, moment, _):
    if TIME.unpack_from(memory, at + _OP_END)[0] == NEVER:
        TIME.pack_into(memory, at + _OP_END, moment)


def _fail_if_open(memory, at, moment, _):
    if TIME.unpack_from(memory, at + _OP_END)[0] == NEVER:
        _add_flag(memory, at, FAILED)
        TIME.pack_into(memory, at + _OP_END, moment)


def _add_flag(memory, at, flag):
    flags = FLAGS.unpack_from(memory, at + OP_FLAGS)[0]
    FLAGS.pack_into(memory, at + OP_FLAGS, flags | flag)


def _take_future(memory, at, _, __):
    _add_flag(memory, at, FUTURE_TAKEN)


def _find_peer(memory, at, _, peer):
    U64.pack_into(memory, at + _OP_PEER, peer)


def _end_piece(memory, at, moment, _):
    TIME.pack_into(memory, at + _PIECE_END, moment)


CHANGES = (
    _begin_wait, _end, _end_if_open, _fail_if_open, _take_future, _find_peer, _end_piece,
)  # fmt: skip
"""Facts that may become known after a record was written, by their number in `LATE`."""


def create_shared_memory(name: str, size: int) -> int:
    """A file descriptor of ``size`` bytes of empty memory. The memory ends with its last user."""
    try:
        fd = os.memfd_create(name)
    except (AttributeError, OSError):  # macOS has none, a sandbox may allow none
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


class OpLogWriter:
    """The rank's side of a log.

    Parameters
    ----------
    memory : mmap.mmap
        The log's own piece of shared memory.
    clock : callable
        The rank's time, in seconds; never negative.
    dumps : callable
        A function that makes bytes from a definition.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        clock: Callable[[], float] = time.perf_counter,
        dumps: Callable[..., bytes] = pickle.dumps,
    ) -> None:
        self._memory = memory
        self._dumps = dumps
        self._capacity = len(memory)
        self._clock = clock
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget all records. On Linux, a log that has grown large gives its memory back."""
        if getattr(self, "_end", 0) > KEPT_MEMORY and hasattr(mmap, "MADV_REMOVE"):
            self._memory.madvise(mmap.MADV_REMOVE)
        self._memory[:HEADER] = bytes(HEADER)
        self.numbers: dict[Hashable, int] = {}
        self._pieces: dict[
            tuple, int
        ] = {}  # the same of pieces, of a log that rolls over: those of this segment
        self._defined = 0
        self._end = HEADER
        self._progress = 0
        self.posted = 0  # ops in the log
        self._dropped = 0
        self._races = 0
        self._waits = 0  # for keys of a store
        self.waits_for_keys = False
        self._full = False
        # The segment that is written, of a log that rolls over; else the whole log is one.
        self._segment = 0
        self._first = 0
        self._limit = self._capacity
        self._shift = 0  # offset of a record - its place in memory
        self.last = 0  # offset of the op posted last
        U64.pack_into(self._memory, COMMITTED, HEADER)
        for field in (ENTERED, LEFT):
            TIME.pack_into(self._memory, field, NEVER)

    def roll_over(self, segment: int) -> None:
        """From now on, until the log is cleared, continue in the oldest segment if all are full.

        Parameters
        ----------
        segment : int
            Bytes of one of the `SEGMENTS`; a multiple of 8.
        """
        self._segment = segment
        U64.pack_into(self._memory, READERS, HEADER + SEGMENTS * segment)
        self._begin_segment(HEADER)

    def _begin_segment(self, first):
        self._end = self._first = first
        self._limit = first + self._segment - TURN
        self._shift = first - place_in(first, self._segment)
        U64.pack_into(self._memory, COMMITTED, first)

    def _turn(self):
        """Continue in the next segment, as soon as the kernel has read its contents."""
        following = self._first + self._segment
        while U64.unpack_from(self._memory, READERS)[0] < following + self._segment:
            time.sleep(ROOM_LOOK_S)
        self._memory[self._end - self._shift] = IS_TURN
        self._begin_segment(following)
        self._pieces.clear()  # numbered steps are ever new, and the kernel forgets them as well

    def _reserve(self, size):
        """Reserve ``size`` bytes at the end of the log. Returns their offset, or 0 if the log is
        full."""
        if self._end + size > self._limit:
            if self._segment:
                self._turn()
            # A full log stays so: a later op may refer to what was left out.
            self._full = self._full or self._end + size > self._limit
        return 0 if self._full else self._end

    def enter(self) -> None:
        """The rank enters its function."""
        TIME.pack_into(self._memory, ENTERED, self._clock())

    def leave(self, is_alone: bool = True) -> None:
        """The rank has left its function. Threads of the rank may continue."""
        TIME.pack_into(self._memory, LEFT, self._clock())
        if not is_alone:
            self._define(2, "keys", True)

    def define(self, key: Hashable, table: str, value: Any) -> int:
        """Write a definition into the log, and remember its number under ``key`` in `numbers`.

        ``table`` is the name of a table of the reader. ``value`` is the definition for the kernel.
        Callers first look up ``key`` in `numbers`. For nearly every op, this fast look-up is
        enough.
        """
        with self._lock:
            number = self.numbers.get(key)
            if number is None:
                number = self.numbers[key] = self._define_next(table, value)
        return number

    def _define_next(self, table, value):
        number = self._defined
        self._defined += 1
        self._define(number, table, value)
        return number

    def _define(self, number, table, value):
        payload = self._dumps((number, table, value))
        payload += bytes(-len(payload) % 8)  # pickle ignores what follows its end
        most = self._segment - TURN - DEFINITION.size
        while self._segment and len(payload) > most:
            self._write_definition(IS_PART, payload[:most])
            payload = payload[most:]
        self._write_definition(IS_DEFINITION, payload)

    def _write_definition(self, sort, payload):
        size = DEFINITION.size + len(payload)
        start = self._reserve(size)
        if start:
            at = start - self._shift
            DEFINITION.pack_into(self._memory, at, sort, len(payload))
            self._memory[at + DEFINITION.size : at + size] = payload
            self._commit(start + size)

    def tell_race(self, how: str, start: int, other: int, place: tuple[str, int, str]) -> None:
        """Buffers of the op at ``start`` were touched, at ``place``, or by the op at ``other``.

        ``how`` is a word from the findings.
        """
        with self._lock:
            self._races += 1
            self._define(self._races, "race", (how, start, other, place))

    def tell_keys(self, call: str, keys: Sequence[str]) -> None:
        """The rank waits in this method of a store for these keys. An empty list ends the wait."""
        with self._lock:
            self._define(0, "keys", (call, tuple(keys)))
            self._waits += 1
            self.waits_for_keys = bool(keys)

    def tell_gpu_memory(self, device: int, allocated: int, reserved: int) -> None:
        """The rank's largest memory on one of its GPUs."""
        with self._lock:
            self._define(device, "gpu", (allocated, reserved))

    def tell_work(self, start: int, work: tuple) -> None:
        """Record the device's work for the piece at an offset, or for the whole run if ``start`` is
        0."""
        with self._lock:
            self._define(start, "work", work)

    def tell_look(self, number: int) -> None:
        """In this wait, the rank has looked ``number`` times for its keys without success."""
        with self._lock:
            self._define(1, "keys", (self._waits, number))

    def _commit(self, end):
        self._end = end
        U64.pack_into(self._memory, COMMITTED, end)

    def post(self, *call: int) -> int:
        """Record a call; returns the op's offset, by which its times are filled in later.

        Its fields are those of `CALL` after the type: kind, flags, site, group, signature, peer,
        tag, nbytes.

        If the log is full, the method only counts the op and returns 0.
        """
        return self.post_packed(CALL.pack(IS_OP, *call))

    def post_packed(self, call: bytes) -> int:
        """The same for a call that is packed already."""
        memory = self._memory
        with self._lock:
            start = self._end
            if self._full or start + OP_SIZE > self._limit:
                start = self._reserve(OP_SIZE)
            if not start:
                self._dropped += 1
                U64.pack_into(memory, DROPPED, self._dropped)
            else:
                _POSTED.pack_into(memory, start - self._shift, call, self._clock(), NEVER, NEVER, 0)
                self._end = start + OP_SIZE
                self.posted += 1
            self._progress += 1
            _TWO.pack_into(memory, COMMITTED, self._end, self._progress)
            self.last = start
        return start

    def begin_piece(self, name: str, numbers: tuple) -> int:
        """A piece of computing begins; returns its offset, or 0 if the log is full.

        ``numbers`` are pairs of a word and a number.
        """
        key = name, numbers
        with self._lock:  # a name's definition is never more than a turn before its pieces
            number = self._pieces.get(key)
            if number is None:
                number = self._define_next("piece", key)
                self._pieces[key] = number
            start = self._reserve(PIECE.size)
            if start:
                at = start - self._shift
                PIECE.pack_into(self._memory, at, IS_PIECE, number, self._clock(), NEVER)
                self._commit(start + PIECE.size)
        return start

    def _change(self, start, change, moment=0.0, number=0):
        """Fill in facts about the record at an offset. With an offset of 0, do nothing.

        The writer owns the segment to which it writes, and the reader owns older segments. To
        change a record in an older segment, the writer adds a record for the reader.
        """
        if not start:
            return
        if not self._segment:
            change(self._memory, start, moment, number)
            return
        with self._lock:
            if start >= self._first:
                change(self._memory, start - self._shift, moment, number)
                return
            at = self._reserve(LATE.size)
            if at:
                number_of_change = CHANGES.index(change)
                LATE.pack_into(
                    self._memory, at - self._shift, IS_LATE, number_of_change, start, moment, number
                )
                self._commit(at + LATE.size)

    def end_piece(self, start: int) -> None:
        """The piece that `begin_piece` returned is over."""
        self._change(start, _end_piece, self._clock())

    def wait_begin(self, start: int, alone: bool = True) -> None:
        """The rank begins to wait for this op.

        If other threads of the rank may make ops (not ``alone``), the rank does not count as
        waiting.
        """
        if start:
            if self._segment:
                self._change(start, _begin_wait, self._clock(), self.posted)
            else:
                _WAIT.pack_into(self._memory, start + _OP_WAIT, self._clock(), self.posted)
            if alone:
                U64.pack_into(self._memory, WAITING, start)

    def begin_hidden_wait(self, start: int) -> None:
        """The rank cannot continue before this op has its data, and no code shows this wait."""
        U64.pack_into(self._memory, WAITING, start)

    def wait_end(self, start: int, end_s: float | None = None) -> None:
        """The op for which the rank waited is complete, now or since ``end_s``."""
        moment = self._clock() if end_s is None else end_s
        if self._segment or not start:
            self._change(start, _end, moment)
        else:
            TIME.pack_into(self._memory, start + _OP_END, moment)
        self._progress += 1
        _TWO.pack_into(self._memory, PROGRESS, self._progress, 0)

    def future_taken(self, start: int) -> None:
        """C++ code will wait for this op by its future."""
        if start:
            self._change(start, _take_future)
            U64.pack_into(self._memory, FUTURES, 1)

    def wait_failed(self, start: int = 0) -> None:
        """The wait ended by an error. If the op at ``start`` is named, the op has failed."""
        self._change(start, _fail_if_open, self._clock())
        U64.pack_into(self._memory, WAITING, 0)

    def ended(self, start: int, end_s: float | None = None) -> None:
        """The rank saw the op complete, now or at ``end_s``, without waiting for it."""
        self._change(start, _end_if_open, self._clock() if end_s is None else end_s)

    def retime(
        self, when: Callable[[float], float], ends: dict[int, float | None], by_streams: bool
    ) -> None:
        """Move all moments: ``when(moment)`` is the new value of a moment that the rank has seen.

        ``ends`` contains the ends of ops that the rank has not seen. If the rank waits
        ``by_streams``, these are all ops, else only ops whose futures were taken. The log must not
        roll over.
        """
        memory = self._memory
        moved = functools.partial(_moved, when)
        for field in (ENTERED, LEFT):
            TIME.pack_into(memory, field, moved(TIME.unpack_from(memory, field)[0]))
        at = HEADER
        while at < self._end:
            if memory[at] == IS_OP:
                post_s, end_s, wait_s, posted = TIMES.unpack_from(memory, at + OP_TIMES)
                flags = FLAGS.unpack_from(memory, at + OP_FLAGS)[0]
                is_seen = not (by_streams or flags & FUTURE_TAKEN)
                own_s = None if is_seen or end_s == NEVER else ends.get(at)
                end_s = moved(end_s) if own_s is None else own_s
                TIMES.pack_into(memory, at + OP_TIMES, moved(post_s), end_s, moved(wait_s), posted)
                at += OP.size
            elif memory[at] == IS_PIECE:
                sort, name, begin_s, end_s = PIECE.unpack_from(memory, at)
                PIECE.pack_into(memory, at, sort, name, moved(begin_s), moved(end_s))
                at += PIECE.size
            else:
                at += DEFINITION.size + DEFINITION.unpack_from(memory, at)[1]

    def site_of(self, start: int) -> Any:
        """(file, line, function) of the op at an offset."""
        number = CALL.unpack_from(self._memory, start)[3]
        return next(key for key, one in self.numbers.items() if one == number)

    def found_peer(self, start: int, peer: int) -> None:
        """An any-source recv has learnt the sender of its message."""
        self._change(start, _find_peer, number=peer)


def place_in(offset: int, segment: int) -> int:
    """The place in memory of the record at an offset; ``segment`` is 0 if the log never rolls
    over."""
    return HEADER + (offset - HEADER) % (SEGMENTS * segment) if segment else offset


# Fingerprints of ops: before an op begins, does what it brings agree with what others bring? The
# matcher judges with all logs, but later: by then Gloo may have mixed bytes that do not belong
# together. So each rank leaves a word about its op in memory that all ranks share, and looks
# whether another rank at the same meeting has left another word. Then the op does not begin, and
# the kernel finds the rank waiting there. The table is small and forgets. It only delays ops.

SLOTS = 1024
_CELL = 8


def size_of_table(world_size: int) -> int:
    """Bytes of a table for ``world_size`` ranks."""
    return SLOTS * world_size * _CELL


class FingerprintTable:
    """One rank's view of the shared memory; ``fd`` is a descriptor of `size_of_table` bytes.

    Each slot has one cell for each rank. A cell is one 64-bit number: the upper half is the
    meeting, the lower half is the word. So a cell is written and read in one step. A rank first
    fills its own cell, and then looks at the cells of the other ranks. If two ranks do this at the
    same moment, at least one of them sees the other's cell.
    """

    def __init__(self, fd: int, world_size: int, rank: int) -> None:
        self._size = world_size
        self._rank = rank
        self._memory = mmap.mmap(fd, size_of_table(world_size))
        self._cells = memoryview(self._memory).cast("Q")

    def close(self) -> None:
        """Release the memory."""
        self._cells.release()
        self._memory.close()

    def agrees(self, meeting: int, number: int, word: int) -> bool:
        """Leave this word for a meeting. Returns whether no rank has left another word for it.

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
    """A 32-bit number for these values, the same in every process; never 0."""
    return zlib.crc32(repr(parts).encode()) or 1
