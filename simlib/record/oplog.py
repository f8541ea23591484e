"""The op log: shared memory in which a rank writes its ops and the kernel reads them.

One log belongs to one rank. Only that rank writes it; the kernel maps the same memory and may read
at any moment, also while the rank hangs or after it was killed. Nothing is sent, nobody is woken:
recording an op costs a rank a few microseconds.

Layout: a header of `HEADER` bytes, then records one after the other. A record is an op or a piece
of computing that the learner has named (of fixed size; times are filled in place later), or a
definition (site, group, signature or name of a piece, pickled once and referred to by number). All
fields are aligned, so that each is read and written in one go.

A log that is full counts the further ops only; one that rolls over (`rolling`) goes on in its
oldest segment. There an offset keeps growing, so it means one record for good.

Times are seconds of the rank's own clock: the machine's monotonic one on real ranks, the virtual
one on simulated ranks; `NEVER` stands for a moment that has not come.
"""

from __future__ import annotations

import bisect
import mmap
import os
import struct
import tempfile
import threading
import time
from array import array

from ..model.trace import Group, Op, Piece, Site, describe_call, source_line
from . import safe_pickle

FORMAT = 3
"""Which layout this is: grows with every change of it, since logs of jobs outlive the simlib that
wrote them."""

CAPACITY = 256 << 20
"""Address space of one log, in bytes (about 2.5 million ops); memory is taken as it is used."""

KEPT_MEMORY = 4 << 20
"""Memory of a log, in bytes, that is kept from one run to the next."""

KINDS = (
    "send",
    "recv",
    "broadcast",
    "scatter",
    "gather",
    "reduce",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "new_group",
)
KIND_ID = {name: number for number, name in enumerate(KINDS)}

ASYNC, ANY_SOURCE, REQUEST, FUTURE_TAKEN, FAILED = 1, 2, 4, 8, 16
"""Flags of an op: it returned a request; it named no src; the request is the learner's own (torch's
parts post async ops whose requests nobody waits for in Python); C++ code took its future, to wait
for it before `backward` returns; it raised, at the moment that stands for its end."""
NOBODY = -1

HEADER = 64
COMMITTED, PROGRESS, WAITING, ENTERED, LEFT, DROPPED, FUTURES, READERS = range(0, 64, 8)
"""Offsets of the header's 64-bit fields: end of the valid records; ops posted and ended so far;
offset of the op the rank waits for (0: none); when the rank function was entered and left; ops
that found the log full; 1 once C++ code has taken the future of an op; what the reader writes: of a
log that rolls over, the offset up to which there is room. Neighbours are written together."""

NEVER = -1.0
_U64 = struct.Struct("q")
_TWO = struct.Struct("qq")
_TIME = struct.Struct("d")
_OP = struct.Struct("BBHIIIqqqdddq")
"""Type, kind, flags, site, group, signature, peer, tag, nbytes; when it was posted, when it ended,
when the rank began to wait for it, and how many ops it had posted by then."""
_CALL, _TIMES = struct.Struct("BBHIIIqqq"), struct.Struct("dddq")  # the two halves of an op
_OP_PEER, _OP_TIMES, _OP_END, _OP_WAIT = 16, _CALL.size, _CALL.size + 8, _CALL.size + 16
_WAIT = struct.Struct("dq")
_FLAGS, _OP_FLAGS = struct.Struct("H"), 2
_DEFINITION = struct.Struct("BxxxI")  # type, length of the pickle that follows, filled up to 8
_PIECE, _PIECE_END = struct.Struct("BxxxIdd"), 16  # type, number of its name, start, end
OP_SIZE, PIECE_SIZE = _OP.size, _PIECE.size
_IS_OP, _IS_DEFINITION, _IS_PIECE, IS_LATE, IS_TURN = 1, 2, 3, 4, 5
LATE = struct.Struct("BBxxxxxxqdq")
"""Type, number of the change, offset of the record that changes, and what the change takes."""
TURN = 8
"""Bytes that end a segment: their first says that the log goes on in the next one."""
SEGMENTS = 8
"""Of a log that rolls over."""
ROOM_LOOK_S = 0.0005
"""How often a rank that has filled all segments looks if the kernel has read the oldest one."""


def _begin_wait(memory, at, moment, posted):
    _WAIT.pack_into(memory, at + _OP_WAIT, moment, posted)


def _end(memory, at, moment, _):
    _TIME.pack_into(memory, at + _OP_END, moment)


def _end_if_open(memory, at, moment, _):
    if _TIME.unpack_from(memory, at + _OP_END)[0] == NEVER:
        _TIME.pack_into(memory, at + _OP_END, moment)


def _fail_if_open(memory, at, moment, _):
    if _TIME.unpack_from(memory, at + _OP_END)[0] == NEVER:
        _add_flag(memory, at, FAILED)
        _TIME.pack_into(memory, at + _OP_END, moment)


def _add_flag(memory, at, flag):
    flags = _FLAGS.unpack_from(memory, at + _OP_FLAGS)[0]
    _FLAGS.pack_into(memory, at + _OP_FLAGS, flags | flag)


def _take_future(memory, at, _, __):
    _add_flag(memory, at, FUTURE_TAKEN)


def _find_peer(memory, at, _, peer):
    _U64.pack_into(memory, at + _OP_PEER, peer)


def _end_piece(memory, at, moment, _):
    _TIME.pack_into(memory, at + _PIECE_END, moment)


CHANGES = (
    _begin_wait, _end, _end_if_open, _fail_if_open, _take_future, _find_peer, _end_piece,
)  # fmt: skip
"""What may come to be known of a record after it was written; the number is that of `LATE`."""


def create_shared_memory(name, size):
    """A file descriptor of ``size`` bytes of empty memory that vanishes with its last user."""
    try:
        fd = os.memfd_create(name)
    except (AttributeError, OSError):  # macOS has none, a sandbox may allow none
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


class OpLogWriter:
    """The rank's side.

    Parameters
    ----------
    memory : mmap.mmap
        The log's own piece of shared memory.
    clock : callable
        The rank's time, in seconds; never negative.
    dumps : callable
        Makes bytes of a definition.
    """

    def __init__(self, memory, clock=time.perf_counter, dumps=safe_pickle.dumps):
        self._memory = memory
        self._dumps = dumps
        self._capacity = len(memory)
        self._clock = clock
        self._lock = threading.Lock()
        self.clear()

    def clear(self):
        """Forget everything; a log that has grown large gives its memory back (Linux)."""
        if getattr(self, "_end", 0) > KEPT_MEMORY and hasattr(mmap, "MADV_REMOVE"):
            self._memory.madvise(mmap.MADV_REMOVE)
        self._memory[:HEADER] = bytes(HEADER)
        self.numbers = {}
        self._end = HEADER
        self._progress = 0
        self.posted = 0  # ops in the log
        self._dropped = 0
        self._races = 0
        self._full = False
        # The segment that is written, of a log that rolls over; else the whole log is one.
        self._segment = 0
        self._first = 0
        self._limit = self._capacity
        self._shift = 0  # offset of a record - its place in memory
        self.last = 0  # offset of the op posted last
        _U64.pack_into(self._memory, COMMITTED, HEADER)
        for field in (ENTERED, LEFT):
            _TIME.pack_into(self._memory, field, NEVER)

    def roll_over(self, segment):
        """From now on, and until the log is cleared, go on in the oldest segment when all are full.

        Parameters
        ----------
        segment : int
            Bytes of one of the `SEGMENTS`; a multiple of 8.
        """
        self._segment = segment
        _U64.pack_into(self._memory, READERS, HEADER + SEGMENTS * segment)
        self._begin_segment(HEADER)

    def _begin_segment(self, first):
        self._end = self._first = first
        self._limit = first + self._segment - TURN
        self._shift = first - place_in(first, self._segment)
        _U64.pack_into(self._memory, COMMITTED, first)

    def _turn(self):
        """Go on in the next segment, as soon as the kernel has read what was in there."""
        following = self._first + self._segment
        while _U64.unpack_from(self._memory, READERS)[0] < following + self._segment:
            time.sleep(ROOM_LOOK_S)
        self._memory[self._end - self._shift] = IS_TURN
        self._begin_segment(following)

    def _reserve(self, size):
        """The offset of so many bytes at the end of the log; 0 where it is full."""
        if self._end + size > self._limit and self._segment >= size + TURN:
            self._turn()
        # A full log stays so: a later op may refer to what was left out.
        self._full = self._full or self._end + size > self._limit
        return 0 if self._full else self._end

    def enter(self):
        """The rank enters its function."""
        _TIME.pack_into(self._memory, ENTERED, self._clock())

    def leave(self):
        """The rank has left its function."""
        _TIME.pack_into(self._memory, LEFT, self._clock())

    def define(self, key, table, value):
        """Write a definition down and remember its number under ``key`` in `numbers`.

        ``table`` is one of the reader's; ``value`` is what the kernel gets.
        Callers look ``key`` up in `numbers` first: it is the fast way, taken by nearly every op.
        """
        with self._lock:
            number = self.numbers.get(key)
            if number is None:
                number = self.numbers[key] = len(self.numbers)
                self._define(number, table, value)
        return number

    def _define(self, number, table, value):
        payload = self._dumps((number, table, value))
        payload += bytes(-len(payload) % 8)  # pickle ignores what follows its end
        size = _DEFINITION.size + len(payload)
        start = self._reserve(size)
        if start:
            at = start - self._shift
            _DEFINITION.pack_into(self._memory, at, _IS_DEFINITION, len(payload))
            self._memory[at + _DEFINITION.size : at + size] = payload
            self._commit(start + size)

    def tell_race(self, how, start, other, place):
        """Buffers of the op at ``start`` were touched, at ``place``, or by the op at ``other``.

        ``how`` is a word of the findings'.
        """
        with self._lock:
            self._races += 1
            self._define(self._races, "race", (how, start, other, place))

    def _commit(self, end):
        self._end = end
        _U64.pack_into(self._memory, COMMITTED, end)

    def post(self, kind, flags, site, group, signature, peer, tag, nbytes):
        """Record a call; returns the op's offset, by which its times are filled in later.

        Past the capacity the op is counted only, and 0 is returned.
        """
        with self._lock:
            start = self._reserve(_OP.size)
            if not start:
                self._dropped += 1
                _U64.pack_into(self._memory, DROPPED, self._dropped)
            else:
                _OP.pack_into(
                    self._memory, start - self._shift, _IS_OP, kind, flags, site, group, signature,
                    peer, tag, nbytes, self._clock(), NEVER, NEVER, 0,
                )  # fmt: skip
                self._end = start + _OP.size
                self.posted += 1
            self._progress += 1
            _TWO.pack_into(self._memory, COMMITTED, self._end, self._progress)
            self.last = start
        return start

    def begin_piece(self, name, numbers):
        """A piece of computing begins; returns its offset, 0 where the log is full.

        ``numbers`` are pairs of a word and a number.
        """
        key = "piece", name, numbers
        number = self.numbers.get(key)
        if number is None:
            number = self.define(key, "piece", (name, numbers))
        with self._lock:
            start = self._reserve(_PIECE.size)
            if start:
                at = start - self._shift
                _PIECE.pack_into(self._memory, at, _IS_PIECE, number, self._clock(), NEVER)
                self._commit(start + _PIECE.size)
        return start

    def _change(self, start, change, moment=0.0, number=0):
        """Fill in what has come to be known of the record at an offset; none at 0.

        The segment that is being written is this side's, older ones are the reader's: what changes
        there is told it by a record more.
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

    def end_piece(self, start):
        """The piece that `begin_piece` returned is over."""
        self._change(start, _end_piece, self._clock())

    def wait_begin(self, start, alone=True):
        """The rank begins to wait for this op.

        Where other threads of the rank may make ops (not ``alone``) it does not count as waiting.
        """
        if start:
            self._change(start, _begin_wait, self._clock(), self.posted)
            if alone:
                _U64.pack_into(self._memory, WAITING, start)

    def begin_hidden_wait(self, start):
        """The rank cannot go on before this op has its data, and nobody's code shows it."""
        _U64.pack_into(self._memory, WAITING, start)

    def wait_end(self, start, end_s=None):
        """The op the rank waited for is complete: now, or since ``end_s``."""
        self._change(start, _end, self._clock() if end_s is None else end_s)
        self._progress += 1
        _TWO.pack_into(self._memory, PROGRESS, self._progress, 0)

    def future_taken(self, start):
        """C++ code will wait for this op by its future."""
        if start:
            self._change(start, _take_future)
            _U64.pack_into(self._memory, FUTURES, 1)

    def wait_failed(self, start=0):
        """The wait ended by an error; for good, where the op at ``start`` is named."""
        self._change(start, _fail_if_open, self._clock())
        _U64.pack_into(self._memory, WAITING, 0)

    def ended(self, start, end_s=None):
        """The op completed, seen without waiting for it: now, or at ``end_s``."""
        self._change(start, _end_if_open, self._clock() if end_s is None else end_s)

    def found_peer(self, start, peer):
        """An any-source recv has learnt whom its message came from."""
        self._change(start, _find_peer, number=peer)


def place_in(offset, segment):
    """Where in memory the record at an offset is; ``segment`` is 0 where the log never rolls."""
    return HEADER + (offset - HEADER) % (SEGMENTS * segment) if segment else offset


class Shared:
    """What the readers of a run have in common: equal groups, and equal sites, are one object.

    So thousands of ranks at one line read it once, and their groups compare in no time.
    """

    def __init__(self):
        self._groups = {}
        self._sites = {}
        self._lines = {}

    def group(self, name, ranks):
        """The `Group` of a definition, whose ranks are a tuple or a range."""
        key = name, ranks
        if key not in self._groups:
            self._groups[key] = Group(name, tuple(ranks))
        return self._groups[key]

    def site(self, call, place, cells):
        """The same as `make_site`."""
        key = call, place
        if key not in self._sites:
            file, lineno, function = place
            if place not in self._lines:
                self._lines[place] = source_line(file, lineno)
            cell = cells.get(file)
            self._sites[key] = Site(call, file, lineno, function, cell, self._lines[place])
        return self._sites[key]

    def forget_sites(self):
        """Make them anew, as lines of programs that call with ever new numbers are many."""
        self._sites.clear()


class OpLogReader:
    """The kernel's side: reads a rank's log while the rank runs, and after."""

    def __init__(self, memory, rank, shared=None, loads=None):
        self.rank = rank
        self._memory = memory
        self._loads = loads or safe_pickle.reader()
        self.restart(shared)

    def restart(self, shared=None):
        """Begin again at the first record (the rank has cleared its log)."""
        self._position = HEADER
        self._offsets = array("q")
        self._pieces = array("q")
        self._definitions = {"site": {}, "group": {}, "signature": {}, "race": {}, "piece": {}}
        self._calls = {}  # what an op says of itself in the log -> the same as fields of `Op`
        self._shared = Shared() if shared is None else shared

    @property
    def memory(self):
        """The log's piece of shared memory."""
        return self._memory

    def close(self):
        """Give the memory back."""
        self._memory.close()

    def _field(self, offset):
        return _U64.unpack_from(self._memory, offset)[0]

    def _moment(self, offset):
        time_s = _TIME.unpack_from(self._memory, offset)[0]
        return None if time_s == NEVER else time_s

    @property
    def progress(self):
        """A number that grows with every op posted or ended."""
        return self._field(PROGRESS)

    @property
    def waiting(self):
        """Whether the rank waits for an op at this moment."""
        return bool(self._field(WAITING))

    @property
    def dropped(self):
        """Ops that found the log full."""
        return self._field(DROPPED)

    @property
    def entered_s(self):
        """When the rank entered its function, on its clock; None: not yet."""
        return self._moment(ENTERED)

    @property
    def left_s(self):
        """When the rank left its function; None: not yet."""
        return self._moment(LEFT)

    def _read_on(self):
        """Take in the records written since the last call."""
        committed = self._field(COMMITTED)
        while self._position < committed:
            self._position = self._read_record(self._position)

    def _read_record(self, offset):
        """Take in the record at an offset; returns that of the next."""
        memory, at = self._where(offset)
        if memory[at] == _IS_OP:
            self._offsets.append(offset)
            return offset + _OP.size
        if memory[at] == _IS_PIECE:
            self._pieces.append(offset)
            return offset + _PIECE.size
        length = _DEFINITION.unpack_from(memory, at)[1]
        start = at + _DEFINITION.size
        number, table, value = self._loads(memory[start : start + length])
        self._define(number, table, value)
        return offset + _DEFINITION.size + length

    def _define(self, number, table, value):
        self._definitions[table][number] = value

    def _where(self, offset):
        """The memory in which the record at an offset is, and its place there."""
        return self._memory, offset

    def _known(self):
        """(number, offset) of all ops that are known, in order."""
        return enumerate(self._offsets)

    def _flags_and_times(self, offset):
        _, _, flags, *_, end, wait, _ = _OP.unpack_from(*self._where(offset))
        return flags, end, wait

    @property
    def waiting_offset(self):
        """Where in the log the op is that the rank waits for; 0: it waits for nothing."""
        return self._field(WAITING)

    @property
    def state(self):
        """What changes with every step of the rank: its progress, and what it waits for."""
        return self.progress, self.waiting_offset

    def waiting_site(self, cells):
        """The `Site` of the op the rank waits for; None where it waits for nothing.

        ``cells`` maps the file names of notebook cells to their execution counts.
        """
        offset = self._field(WAITING)
        if not offset:
            return None
        self._read_on()
        return self.op_at(offset, 0, 0, cells).site

    def ops(self, origin_s, cells, first=0):
        """The ops recorded so far from number ``first`` on; `name_groups` has yet to name groups.

        Parameters
        ----------
        origin_s : float
            The moment of the rank's clock that becomes 0.0 s.
        cells : dict
            File name of a notebook cell -> its execution count.
        """
        self._read_on()
        return [
            self.op_at(offset, seq, origin_s, cells)
            for seq, offset in enumerate(self._offsets[first:], first)
        ]

    def pieces(self, origin_s):
        """The pieces of computing that were named so far; ``origin_s`` is as for `ops`."""
        self._read_on()
        return [self._piece_at(offset, origin_s) for offset in self._pieces]

    def _piece_at(self, offset, origin_s):
        _, number, start, end = _PIECE.unpack_from(*self._where(offset))
        name, numbers = self._definitions["piece"][number]
        end_s = None if end == NEVER else end - origin_s
        return Piece(self.rank, name, dict(numbers), start - origin_s, end_s)

    def races(self, cells):
        """Requests whose buffers were touched: (how, op, other op or None, Site of the finding)."""
        self._read_on()
        numbers = {offset: seq for seq, offset in enumerate(self._offsets)}
        found = []
        for how, offset, other, place in self._definitions["race"].values():
            op = self.op_at(offset, numbers[offset], 0, cells)
            other = self.op_at(other, numbers[other], 0, cells) if other else None
            found.append((how, op, other, make_site(how, place, cells)))
        return found

    def seq_at(self, offset):
        """The number of the op at an offset, among the ops read so far."""
        return bisect.bisect_left(self._offsets, offset)

    def offset_of(self, seq):
        """Where in the log the op with this number is; None where it is forgotten."""
        return self._offsets[seq]

    def requests_never_waited(self):
        """Numbers of the ops whose request the learner got, and neither waited for nor saw done."""
        found = []
        for seq, offset in self._known():
            flags, end, wait = self._flags_and_times(offset)
            if flags & REQUEST and wait == end == NEVER:
                found.append(seq)
        return found

    @property
    def has_futures_taken(self):
        """Whether C++ code has taken the future of an op."""
        return bool(self._field(FUTURES))

    def futures_taken(self):
        """Offsets of the ops that C++ code waits for and that have not ended, in order."""
        self._read_on()
        found = []
        for _, offset in self._known():
            flags, end, _ = self._flags_and_times(offset)
            if flags & FUTURE_TAKEN and end == NEVER:
                found.append(offset)
        return found

    def op_at(self, offset, seq, origin_s, cells):
        """The `Op` at an offset of the log."""
        memory, at = self._where(offset)
        times = at + _OP_TIMES
        words = bytes(memory[at:times])
        fields = self._calls.get(words)
        if fields is None:
            fields = self._calls[words] = self._fields_of(words, cells)
        post, end, wait, posted = _TIMES.unpack_from(memory, times)
        end = None if end == NEVER else end - origin_s
        has_failed = end is not None and _FLAGS.unpack_from(memory, at + _OP_FLAGS)[0] & FAILED
        return Op(
            self.rank,
            seq,
            *fields,
            post - origin_s,
            None if wait == NEVER else wait - origin_s,
            None if has_failed else end,
            None if wait == NEVER else posted,
            end if has_failed else None,
        )

    def _fields_of(self, words, cells):
        """The fields of an `Op` from its kind to its site."""
        _, kind, flags, site, group, signature, peer, tag, nbytes = _CALL.unpack(words)
        shapes, dtype, reduce_op, splits = self._definitions["signature"][signature]
        kind = KINDS[kind]
        peer = None if peer == NOBODY else peer
        tag = None if tag == NOBODY else tag
        is_async, any_source = bool(flags & ASYNC), bool(flags & ANY_SOURCE)
        call = describe_call(kind, peer, tag, reduce_op, is_async, any_source)
        group = self._shared.group(*self._definitions["group"][group])
        site = self._shared.site(call, self._definitions["site"][site], cells)
        return (
            kind, group, peer, tag, nbytes, shapes, dtype, reduce_op, splits,
            is_async, any_source, site,
        )  # fmt: skip


def make_site(call, place, cells):
    """A `Site` from ``(file, lineno, function)`` as a rank recorded it."""
    file, lineno, function = place
    return Site(call, file, lineno, function, cells.get(file), source_line(file, lineno))


def name_groups(ops):
    """Give the groups of a run their names: ``world``, then ``group 1``... by appearance.

    ``ops`` is ordered; until here a group is called what torch calls it, the world "". Returns the
    new `Group` of each old one.
    """
    names = {}
    for op in ops:
        named = names.get(op.group)
        if named is None:
            number = sum(1 for group in names if group.name) + 1
            name = f"group {number}" if op.group.name else "world"
            named = names[op.group] = Group(name, op.group.ranks)
        op.group = named
    return names
