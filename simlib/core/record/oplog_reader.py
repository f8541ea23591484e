"""The kernel's side of an op log: see `oplog`."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Iterable, Sequence
from mmap import mmap

import numpy as np

from ..model.ledger import GpuMemory
from ..model.trace import Group, Op, Piece, Site, Work, describe_call, make_site, source_line
from . import oplog, safe_pickle
from .oplog import DEFINITION, HEADER, NEVER, NOBODY, OP, PIECE, U64, WAITING

FEW = 32
"""Fewer ops than these are read one by one."""


class Shared:
    """What the readers of a run share. Equal groups, and equal sites, are the same object.

    So if thousands of ranks are at the same line, simlib reads the line once, and comparing their
    groups is fast.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple, Group] = {}
        self._sites: dict[tuple, Site] = {}
        self._lines: dict[tuple, str] = {}

    def group(self, name: str, ranks: Sequence[int], description: str = "") -> Group:
        """The `Group` of a definition, whose ranks are a tuple or a range."""
        key = name, ranks, description
        if key not in self._groups:
            self._groups[key] = Group(name, tuple(ranks), description)
        return self._groups[key]

    def site(
        self, call: str, place: tuple[str, int, str], cells: dict[str, int], in_thread: bool = False
    ) -> Site:
        """The same as `make_site`."""
        key = call, place, in_thread
        if key not in self._sites:
            file, lineno, function = place
            if place not in self._lines:
                self._lines[place] = source_line(file, lineno)
            cell = cells.get(file)
            text = self._lines[place]
            self._sites[key] = Site(call, file, lineno, function, cell, text, in_thread=in_thread)
        return self._sites[key]

    def forget_sites(self) -> None:
        """Empty the tables. A program whose calls have ever new numbers would fill the memory."""
        self._sites.clear()


class OpLogReader:
    """The kernel's side of a log. It reads the log while the rank runs, and afterwards."""

    def __init__(
        self, memory: mmap, rank: int, shared: Shared | None = None, loads: Callable | None = None
    ) -> None:
        self.rank = rank
        self._memory = memory
        self._loads = loads or safe_pickle.reader()
        self.restart(shared)

    def restart(self, shared: Shared | None = None) -> None:
        """Begin again at the first record, because the rank has cleared its log."""
        self._position = HEADER
        self._offsets = array("q")
        self._pieces = array("q")
        self._definitions: dict[str, dict] = {
            "site": {},
            "group": {},
            "signature": {},
            "race": {},
            "piece": {},
            "keys": {},
            "gpu": {},
            "work": {},
        }
        self._calls: dict[
            bytes, tuple
        ] = {}  # what an op says of itself in the log -> the same as fields of `Op`
        self._shared = Shared() if shared is None else shared

    @property
    def memory(self) -> mmap:
        """The log's piece of shared memory."""
        return self._memory

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()

    def _field(self, offset):
        return U64.unpack_from(self._memory, offset)[0]

    def _moment(self, offset):
        time_s = oplog.TIME.unpack_from(self._memory, offset)[0]
        return None if time_s == NEVER else time_s

    @property
    def progress(self) -> int:
        """A number that grows with every op posted or ended."""
        return self._field(oplog.PROGRESS)

    @property
    def waiting(self) -> bool:
        """Whether the rank waits for an op at this moment."""
        return bool(self._field(WAITING))

    @property
    def dropped(self) -> int:
        """The number of ops for which the log had no room."""
        return self._field(oplog.DROPPED)

    @property
    def entered_s(self) -> float | None:
        """When the rank entered its function, on its own clock. None before."""
        return self._moment(oplog.ENTERED)

    @property
    def left_s(self) -> float | None:
        """When the rank left its function. None before."""
        return self._moment(oplog.LEFT)

    def read_on(self) -> None:
        """Read the records written since the last call."""
        self._committed = committed = self._field(oplog.COMMITTED)
        while self._position < committed:
            self._position = self._read_record(self._position)

    def _read_record(self, offset):
        """Read the record at an offset; returns the offset of the next record."""
        memory, at = self._where(offset)
        if memory[at] == oplog.IS_OP:
            shift = offset - at
            while at + shift < self._committed and memory[at] == oplog.IS_OP:
                self._offsets.append(at + shift)
                at += OP.size
            return at + shift
        if memory[at] == oplog.IS_PIECE:
            self._pieces.append(offset)
            return offset + PIECE.size
        length = DEFINITION.unpack_from(memory, at)[1]
        start = at + DEFINITION.size
        self._define(offset, memory[start : start + length])
        return offset + DEFINITION.size + length

    def _define(self, offset, payload):
        """Read the definition at an offset."""
        number, table, value = self._loads(payload)
        self._definitions[table][number] = value

    def _where(self, offset):
        """The memory that contains the record at an offset, and the record's place there."""
        return self._memory, offset

    def _known(self):
        """(number, offset) of all known ops, in order."""
        return enumerate(self._offsets)

    def _flags_and_times(self, offset):
        _, _, flags, *_, end, wait, _ = OP.unpack_from(*self._where(offset))
        return flags, end, wait

    @property
    def waiting_offset(self) -> int:
        """The place in the log of the op for which the rank waits; 0 if it waits for nothing."""
        return self._field(WAITING)

    @property
    def state(self) -> tuple[int, int]:
        """A value that changes with every step of the rank: its progress, and its wait."""
        return self.progress, self.waiting_offset

    def waiting_site(self, cells: dict[str, int]) -> Site | None:
        """The `Site` of the op for which the rank waits; None if it waits for nothing.

        ``cells`` maps the file names of notebook cells to their execution counts.
        """
        offset = self._field(WAITING)
        if not offset:
            return None
        self.read_on()
        return self.op_at(offset, 0, 0, cells).site

    @property
    def count(self) -> int:
        """The number of ops that the reader has read so far."""
        return len(self._offsets)

    @property
    def last_post_s(self) -> float:
        """The time of the last op that the reader has read. There must be one."""
        return oplog.TIME.unpack_from(self._memory, self._offsets[-1] + oplog.OP_TIMES)[0]

    def ops(
        self, origin_s: float, cells: dict[str, int], first: int = 0, until: int | None = None
    ) -> list[Op]:
        """The ops so far from number ``first`` on, before `name_groups` names their groups.

        Parameters
        ----------
        origin_s : float
            The moment of the rank's clock that becomes 0.0 s.
        cells : dict
            File name of a notebook cell -> its execution count.
        until : int, optional
            The number of the first op that is left out.
        """
        self.read_on()
        offsets = self._offsets[first:until]
        flags, (post, end, wait, posted) = self._columns(offsets)
        if len(offsets) < FEW or (flags & oplog.FAILED).any():
            numbered = enumerate(offsets, first)
            return [self.op_at(offset, seq, origin_s, cells) for seq, offset in numbered]
        found, memory, size = [], self._memory, oplog.OP_TIMES
        moments = ((column - origin_s).tolist() for column in (post, wait, end))
        is_open = (column == NEVER for column in (wait, end))
        columns = *moments, *(column.tolist() for column in is_open), posted.tolist()
        rows = zip(offsets, range(first, first + len(offsets)), *columns, strict=True)
        for at, seq, post_s, wait_s, end_s, has_no_wait, has_no_end, after in rows:
            words = memory[at : at + size]
            fields = self._calls.get(words)
            if fields is None:
                fields = self._calls[words] = self._fields_of(words, cells)
            found.append(
                Op(  # type: ignore[call-arg]
                    self.rank,
                    seq,
                    *fields,
                    post_s,
                    None if has_no_wait else wait_s,
                    None if has_no_end else end_s,
                    None if has_no_wait else after,
                )  # fmt: skip
            )
        return found

    def _columns(self, offsets):
        """The flags of ops, and the columns of `oplog.TIMES`, as arrays."""
        at = np.frombuffer(offsets, np.int64) if offsets else np.zeros(0, np.int64)
        flags = np.frombuffer(self._memory, np.uint16)[(at + oplog.OP_FLAGS) // 2]
        moments = np.frombuffer(self._memory, np.float64)
        numbers = np.frombuffer(self._memory, np.int64)
        first = (at + oplog.OP_TIMES) // 8
        return flags, (*(moments[first + i] for i in range(3)), numbers[first + 3])

    def pieces(self, origin_s: float) -> list[Piece]:
        """The pieces of computing that were named so far; ``origin_s`` is as for `ops`."""
        self.read_on()
        return [self._piece_at(offset, origin_s) for offset in self._pieces]

    def _piece_at(self, offset, origin_s):
        _, number, start, end = PIECE.unpack_from(*self._where(offset))
        name, numbers = self._definitions["piece"][number]
        end_s = None if end == NEVER else end - origin_s
        work = self.work(origin_s, offset)
        return Piece(self.rank, name, dict(numbers), start - origin_s, end_s, work)

    def work(self, origin_s: float, start: int = 0) -> Work | None:
        """The device's work in all, or for the piece at an offset; None if it is unknown."""
        self.read_on()
        if start not in self._definitions["work"]:
            return None
        *sums, start_s, end_s = self._definitions["work"][start]
        times = (None, None) if start_s is None else (start_s - origin_s, end_s - origin_s)
        return Work(*sums, *times)

    def awaited_keys(self) -> tuple[str, tuple[str, ...]]:
        """The store's method in which the rank waits, and the keys; empty if it does not wait."""
        self.read_on()
        return self._definitions["keys"].get(0, ("", ()))

    def looks(self) -> tuple[int, int]:
        """The number of the present wait for keys, and how often the rank has looked in it in
        vain."""
        self.read_on()
        return self._definitions["keys"].get(1, (0, 0))

    def has_left_threads(self) -> bool:
        """Whether the rank has left its function while threads of it may still act."""
        self.read_on()
        return 2 in self._definitions["keys"]

    def gpu_memory(self) -> GpuMemory | None:
        """The peaks of the GPUs that the rank used; None if it used none, or wrote none."""
        self.read_on()
        peaks = sorted(self._definitions["gpu"].items())
        allocated, reserved = ({f"cuda:{n}": pair[i] for n, pair in peaks} for i in range(2))
        return GpuMemory(self.rank, allocated, reserved) if peaks else None

    def races(self, cells: dict[str, int]) -> list[tuple]:
        """Requests whose buffers were touched: (how, op, other op or None, Site of the finding)."""
        self.read_on()
        numbers = {offset: seq for seq, offset in enumerate(self._offsets)}
        found = []
        for how, offset, other, place in self._definitions["race"].values():
            op = self.op_at(offset, numbers[offset], 0, cells)
            other = self.op_at(other, numbers[other], 0, cells) if other else None
            found.append((how, op, other, make_site(how, place, cells)))
        return found

    def seq_at(self, offset: int) -> int:
        """The number of the op at an offset, among the ops read so far."""
        return bisect.bisect_left(self._offsets, offset)

    def offset_of(self, seq: int) -> int | None:
        """The place in the log of the op with this number; None if it is forgotten."""
        return self._offsets[seq]

    def requests_never_waited(self) -> list[int]:
        """Numbers of ops whose request the learner got, but did not wait for or see complete."""
        flags, (_, end, wait, _) = self._columns(self._offsets)
        is_open = (flags & oplog.REQUEST != 0) & (wait == NEVER) & (end == NEVER)
        return np.flatnonzero(is_open).tolist()

    @property
    def has_futures_taken(self) -> bool:
        """Whether C++ code has taken the future of an op."""
        return bool(self._field(oplog.FUTURES))

    def futures_taken(self) -> list[int]:
        """Offsets of unfinished ops for which C++ code waits, in order."""
        self.read_on()
        found = []
        for _, offset in self._known():
            flags, end, _ = self._flags_and_times(offset)
            if flags & oplog.FUTURE_TAKEN and end == NEVER:
                found.append(offset)
        return found

    def op_at(self, offset: int, seq: int, origin_s: float, cells: dict[str, int]) -> Op:
        """The `Op` at an offset of the log."""
        memory, at = self._where(offset)
        times = at + oplog.OP_TIMES
        words = bytes(memory[at:times])
        fields = self._calls.get(words)
        if fields is None:
            fields = self._calls[words] = self._fields_of(words, cells)
        post, end, wait, posted = oplog.TIMES.unpack_from(memory, times)
        end = None if end == NEVER else end - origin_s
        (flags,) = oplog.FLAGS.unpack_from(memory, at + oplog.OP_FLAGS)
        has_failed = end is not None and flags & oplog.FAILED
        return Op(  # type: ignore[call-arg]
            self.rank, seq, *fields, post - origin_s, None if wait == NEVER else wait - origin_s,
            None if has_failed else end, None if wait == NEVER else posted,
            end if has_failed else None,
        )  # fmt: skip

    def _fields_of(self, words, cells):
        """The fields of an `Op` from its kind to its site."""
        _, kind, flags, site, group, signature, peer, tag, nbytes = oplog.CALL.unpack(words)
        shapes, dtype, reduce_op, splits = self._definitions["signature"][signature]
        kind = oplog.KINDS[kind]
        peer = None if peer == NOBODY else peer
        tag = None if tag == NOBODY else tag
        is_async, any_source = bool(flags & oplog.ASYNC), bool(flags & oplog.ANY_SOURCE)
        call = describe_call(kind, peer, tag, reduce_op, is_async, any_source)
        group = self._shared.group(*self._definitions["group"][group])
        place, in_thread = self._definitions["site"][site], bool(flags & oplog.IN_THREAD)
        site = self._shared.site(call, place, cells, in_thread)
        return (
            kind, group, peer, tag, nbytes, shapes, dtype, reduce_op, splits,
            is_async, any_source, site,
        )  # fmt: skip


def name_groups(ops: Iterable[Op]) -> dict[Group, Group]:
    """Name the groups of a run: ``world``, and ``group 1``, ... in the order of appearance.

    ``ops`` is ordered. Before this call, a group has its name in torch, which is "" for the world.
    Returns the new `Group` of each old one.
    """
    names: dict[Group, Group] = {}
    for op in ops:
        named = names.get(op.group)
        if named is None:
            number = sum(bool(group.name) for group in names) + 1
            name = f"group {number}" if op.group.name else "world"
            named = names[op.group] = Group(name, op.group.ranks, op.group.description)
        op.group = named
    return names
