"""The op log: shared memory in which a rank writes its ops and the kernel reads them.

One log belongs to one rank. Only that rank writes it; the kernel maps the same memory and may read
at any moment, also while the rank hangs or after it was killed. Nothing is sent, nobody is woken:
recording an op costs a rank a few microseconds.

Layout: a header of `HEADER` bytes, then records one after the other. A record is an op or a piece
of computing that the learner has named (of fixed size; times are filled in place later), or a
definition (site, group, signature or name of a piece, pickled once and referred to by number). All
fields are aligned, so that each is read and written in one go.

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

from ..model.trace import Group, Op, Piece, Site, describe_call, source_line
from . import safe_pickle

FORMAT = 2
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
COMMITTED, PROGRESS, WAITING, ENTERED, LEFT, DROPPED, FUTURES = range(0, 56, 8)
"""Offsets of the header's 64-bit fields: end of the valid records; ops posted and ended so far;
offset of the op the rank waits for (0: none); when the rank function was entered and left; ops
that found the log full; 1 once C++ code has taken the future of an op. Neighbours are written
together."""

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
_IS_OP, _IS_DEFINITION, _IS_PIECE = 1, 2, 3


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
    """

    def __init__(self, memory, clock=time.perf_counter):
        self._memory = memory
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
        self._full = False
        self.last = 0  # offset of the op posted last
        _U64.pack_into(self._memory, COMMITTED, HEADER)
        for field in (ENTERED, LEFT):
            _TIME.pack_into(self._memory, field, NEVER)

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
        payload = safe_pickle.dumps((number, table, value))
        payload += bytes(-len(payload) % 8)  # pickle ignores what follows its end
        start, end = self._end, self._end + _DEFINITION.size + len(payload)
        if end > self._capacity:
            self._full = True
            return
        _DEFINITION.pack_into(self._memory, start, _IS_DEFINITION, len(payload))
        self._memory[start + _DEFINITION.size : end] = payload
        self._commit(end)

    def _commit(self, end):
        self._end = end
        _U64.pack_into(self._memory, COMMITTED, end)

    def post(self, kind, flags, site, group, signature, peer, tag, nbytes):
        """Record a call; returns the op's offset, by which its times are filled in later.

        Past the capacity the op is counted only, and 0 is returned.
        """
        with self._lock:
            start = self._end
            self._full = self._full or start + _OP.size > self._capacity
            if self._full:  # and stays so: a later op may refer to what was left out
                self._dropped += 1
                _U64.pack_into(self._memory, DROPPED, self._dropped)
                start = 0
            else:
                _OP.pack_into(
                    self._memory, start, _IS_OP, kind, flags, site, group, signature,
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
            start = self._end
            self._full = self._full or start + _PIECE.size > self._capacity
            if self._full:
                return 0
            _PIECE.pack_into(self._memory, start, _IS_PIECE, number, self._clock(), NEVER)
            self._commit(start + _PIECE.size)
        return start

    def end_piece(self, start):
        """The piece that `begin_piece` returned is over."""
        if start:
            _TIME.pack_into(self._memory, start + _PIECE_END, self._clock())

    def wait_begin(self, start, alone=True):
        """The rank begins to wait for this op.

        Where other threads of the rank may make ops (not ``alone``) it does not count as waiting.
        """
        if start:
            _WAIT.pack_into(self._memory, start + _OP_WAIT, self._clock(), self.posted)
            if alone:
                _U64.pack_into(self._memory, WAITING, start)

    def begin_hidden_wait(self, start):
        """The rank cannot go on before this op has its data, and nobody's code shows it."""
        _U64.pack_into(self._memory, WAITING, start)

    def wait_end(self, start, end_s=None):
        """The op the rank waited for is complete: now, or since ``end_s``."""
        if start:
            moment = self._clock() if end_s is None else end_s
            _TIME.pack_into(self._memory, start + _OP_END, moment)
        self._progress += 1
        _TWO.pack_into(self._memory, PROGRESS, self._progress, 0)

    def future_taken(self, start):
        """C++ code will wait for this op by its future."""
        if start:
            flags = _FLAGS.unpack_from(self._memory, start + _OP_FLAGS)[0]
            _FLAGS.pack_into(self._memory, start + _OP_FLAGS, flags | FUTURE_TAKEN)
            _U64.pack_into(self._memory, FUTURES, 1)

    def wait_failed(self, start=0):
        """The wait ended by an error; for good, where the op at ``start`` is named."""
        if start and _TIME.unpack_from(self._memory, start + _OP_END)[0] == NEVER:
            flags = _FLAGS.unpack_from(self._memory, start + _OP_FLAGS)[0]
            _FLAGS.pack_into(self._memory, start + _OP_FLAGS, flags | FAILED)
            _TIME.pack_into(self._memory, start + _OP_END, self._clock())
        _U64.pack_into(self._memory, WAITING, 0)

    def ended(self, start, end_s=None):
        """The op completed, seen without waiting for it: now, or at ``end_s``."""
        if start and _TIME.unpack_from(self._memory, start + _OP_END)[0] == NEVER:
            moment = self._clock() if end_s is None else end_s
            _TIME.pack_into(self._memory, start + _OP_END, moment)

    def found_peer(self, start, peer):
        """An any-source recv has learnt whom its message came from."""
        if start:
            _U64.pack_into(self._memory, start + _OP_PEER, peer)


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


class OpLogReader:
    """The kernel's side: reads a rank's log while the rank runs, and after."""

    def __init__(self, memory, rank, shared=None):
        self.rank = rank
        self._memory = memory
        self._loads = safe_pickle.reader()
        self.restart(shared)

    def restart(self, shared=None):
        """Begin again at the first record (the rank has cleared its log)."""
        self._position = HEADER
        self._offsets = []
        self._pieces = []
        self._definitions = {"site": {}, "group": {}, "signature": {}, "race": {}, "piece": {}}
        self._calls = {}  # what an op says of itself in the log -> the same as fields of `Op`
        self._shared = Shared() if shared is None else shared

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
            if self._memory[self._position] == _IS_OP:
                self._offsets.append(self._position)
                self._position += _OP.size
            elif self._memory[self._position] == _IS_PIECE:
                self._pieces.append(self._position)
                self._position += _PIECE.size
            else:
                length = _DEFINITION.unpack_from(self._memory, self._position)[1]
                start = self._position + _DEFINITION.size
                number, table, value = self._loads(self._memory[start : start + length])
                self._definitions[table][number] = value
                self._position = start + length

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
        found = []
        for offset in self._pieces:
            _, number, start, end = _PIECE.unpack_from(self._memory, offset)
            name, numbers = self._definitions["piece"][number]
            end_s = None if end == NEVER else end - origin_s
            found.append(Piece(self.rank, name, dict(numbers), start - origin_s, end_s))
        return found

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
        """Where in the log the op with this number is."""
        return self._offsets[seq]

    def requests_never_waited(self):
        """Numbers of the ops whose request the learner got, and neither waited for nor saw done."""
        found = []
        for seq, offset in enumerate(self._offsets):
            _, _, flags, *_, end, wait, _ = _OP.unpack_from(self._memory, offset)
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
        for offset in self._offsets:
            _, _, flags, *_, end, _, _ = _OP.unpack_from(self._memory, offset)
            if flags & FUTURE_TAKEN and end == NEVER:
                found.append(offset)
        return found

    def op_at(self, offset, seq, origin_s, cells):
        """The `Op` at an offset of the log."""
        memory, times = self._memory, offset + _OP_TIMES
        words = memory[offset:times]
        fields = self._calls.get(words)
        if fields is None:
            fields = self._calls[words] = self._fields_of(words, cells)
        post, end, wait, posted = _TIMES.unpack_from(memory, times)
        end = None if end == NEVER else end - origin_s
        has_failed = end is not None and _FLAGS.unpack_from(memory, offset + _OP_FLAGS)[0] & FAILED
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
