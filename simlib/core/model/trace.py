"""The trace of a run: sites, ops, messages, collectives. Every engine writes a trace. Every
picture, table and check reads a trace. This module is pure Python.
"""

from __future__ import annotations

import linecache
import os
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

P2P_KINDS = frozenset({"send", "recv"})
ROOTED = frozenset({"broadcast", "scatter", "gather", "reduce"})


@dataclass(frozen=True, slots=True)
class Site:
    """One line of the learner's program.

    Attributes
    ----------
    op : str
        What the rank did at this line, as a call: ``"recv(src=1)"``, or ``"computing"``.
    file : str
        The file's path, or the name that IPython gave the cell.
    lineno : int
        The line number, from 1. It is 0 if no line of the learner's program was on the stack.
    function : str
        Name of the function that contains the line.
    cell : int or None
        Execution count of the cell, if the line is in a notebook cell.
    line_text : str
        The text of the line, stripped.
    callers : tuple of str
        At most two places from which the line was called, the nearest place first. Only sites in
        verdicts have callers.
    in_thread : bool
        Whether the rank ran the line in a thread that it had started itself.
    """

    op: str
    file: str
    lineno: int
    function: str = ""
    cell: int | None = None
    line_text: str = ""
    callers: tuple = ()
    in_thread: bool = False

    @property
    def place(self) -> str:
        """The place: ``"main, line 4"`` in a notebook cell, else ``"ptdist.py, line 12"``.

        simlib names a cell by its function, because a cell gets a new number each time you run it.
        """
        if not self.lineno:
            return "no line of your code"
        if self.cell is not None:
            name = "cell" if self.function.startswith("<") else self.function
            return f"{name}, line {self.lineno}"
        return f"{self.file.rpartition('/')[2]}, line {self.lineno}"

    @property
    def where(self) -> str:
        """The place and its callers, such as ``"mean, line 2, called from main, line 9"``."""
        callers = f", called from {', from '.join(self.callers)}" if self.callers else ""
        return f"{self.place}{callers}{', in another thread' if self.in_thread else ''}"

    def is_at_line_of(self, other: Site) -> bool:
        """True if both sites are the same line. The calls in the line may differ."""
        return (self.lineno, self.file) == (other.lineno, other.file)

    def __str__(self) -> str:
        return f"{self.op} ({self.place})"


def source_line(file: str, lineno: int) -> str:
    """The stripped text of one line. It is empty if simlib cannot find the source."""
    if os.path.exists(file):
        linecache.checkcache(file)  # it may have been edited since
    return linecache.getline(file, lineno).strip() if lineno else ""


def make_site(call: str, place: tuple[str, int, str], cells: Mapping[str, int]) -> Site:
    """A `Site` from ``(file, lineno, function)`` as a rank recorded it."""
    file, lineno, function = place
    return Site(call, file, lineno, function, cells.get(file), source_line(file, lineno))


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its members as ranks of the world, in group order.

    ``name`` is ``"world"`` for the default group, and ``"group 1"``, ``"group 2"`` for the others,
    in the order in which the trace first mentions them. ``description`` is the
    ``group_desc`` of the program, or ``"mesh_tp"`` for the dimension ``"tp"`` of a device mesh.
    """

    name: str
    ranks: tuple
    description: str = field(default="", compare=False)

    def __len__(self) -> int:
        return len(self.ranks)

    def __hash__(self) -> int:
        return hash(self.name)  # needed at every op: not of thousands of ranks


@dataclass(slots=True)
class Op:
    """One call that one rank made to torch.distributed.

    Attributes
    ----------
    rank : int
        Rank (in the world) that made the call.
    seq : int
        Number of the op among the rank's ops, from 0.
    kind : str
        ``send``, ``recv``, ``broadcast``, ``scatter``, ``gather``, ``reduce``, ``all_reduce``,
        ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``barrier``.
    group : Group
        The process group on which the rank called it.
    peer : int or None
        The dst of a send, the src of a recv, or the root of a rooted collective; always a rank of
        the world. It is None for an any-source recv that has not matched yet, and if the record
        does not contain the root.
    tag : int or None
        The tag of a send or recv. It is None if the record does not contain the tag.
    nbytes : int
        The payload: the number of bytes in the tensors that this rank contributes. For all_gather
        and gather, this rank contributes its own part. For reduce_scatter and all_to_all, and as
        the root of a scatter, this rank contributes the parts for all ranks. If a rank only
        receives, the payload is the number of bytes that it receives.
    shapes : tuple of tuple of int
        Shapes of the tensors that ``nbytes`` counts.
    dtype : str
        ``"float32"``...; empty for a barrier.
    reduce_op : str or None
        ``"SUM"``, ``"AVG"``, ``"MAX"``, ``"MIN"``, ``"PRODUCT"``... for a reducing collective.
    splits : tuple or None
        For an all_to_all, a pair: the elements that the rank sends to each rank, and the elements
        that it expects from each rank.
    async_op : bool
        True if the call returned a request (isend, irecv, ``async_op=True``, and the calls that
        DDP makes from C++).
    any_source : bool
        True for a recv without a src.
    site : Site
        The learner's line.
    post_s, wait_s, end_s : float or None
        Three moments, in seconds since the first rank entered the function. ``post_s`` is the call.
        At ``wait_s`` the rank began to wait for the op. At ``end_s`` the rank saw the op complete.
        A moment is None if it never happened.
    waited_after : int or None
        The number of ops that the rank had posted when it began to wait for this op. In a
        simulation several events can happen at the same moment. Then this number shows their order.
    failed_s : float or None
        The second at which the op raised an error in its rank, for example because another rank had
        died. ``end_s`` is then None.
    number : int or None
        Number of the collective in its group, from 0. The number comes from the record, because the
        record may lack the first collectives. If the number is None, simlib counts the collectives
        itself. Recorders and NCCL count from 1. So simlib subtracts one when it reads their
        numbers, and adds one when it writes such numbers. If NCCL runs several calls as one, each
        call still has its own number.
    began_s : float or None
        The second at which the op's kernel began on a GPU, on the same clock as the other moments.
        It is None if no profiler recorded the kernel.
    """

    rank: int
    seq: int
    kind: str
    group: Group
    peer: int | None
    tag: int | None
    nbytes: int
    shapes: tuple
    dtype: str
    reduce_op: str | None
    splits: tuple | None
    async_op: bool
    any_source: bool
    site: Site
    post_s: float
    wait_s: float | None
    end_s: float | None
    waited_after: int | None = None
    failed_s: float | None = None
    number: int | None = None
    began_s: float | None = None

    @property
    def is_p2p(self) -> bool:
        """True if the op is a send or a recv, False if it is a collective."""
        return self.kind in P2P_KINDS

    @property
    def done(self) -> bool:
        """True if the op's rank saw the op complete."""
        return self.end_s is not None

    def ends_by(self, until_s: float) -> float:
        """Return the second at which the op completed or failed, or ``until_s`` if the op is
        open."""
        ends = (self.end_s, self.failed_s, until_s)
        return next(moment for moment in ends if moment is not None)

    @property
    def call(self) -> str:
        """The op as a short call, such as ``"isend(dst=1, tag=7)"`` or ``"all_reduce(SUM)"``."""
        return describe_call(
            self.kind, self.peer, self.tag, self.reduce_op, self.async_op, self.any_source
        )


def describe_call(
    kind: str,
    peer: int | None,
    tag: int | None,
    reduce_op: str | None,
    async_op: bool = False,
    any_source: bool = False,
) -> str:
    """The text of a call, for `Op.call` and for messages about a rank that waits in the call."""
    if kind in P2P_KINDS:
        name = ("i" if async_op else "") + kind
        who = "any" if any_source else peer
        words = [f"{'dst' if kind == 'send' else 'src'}={who}"]
        if tag:
            words.append(f"tag={tag}")
        return f"{name}({', '.join(words)})"
    words = []
    if kind in ROOTED and peer is not None:
        words.append(f"{'src' if kind in ('broadcast', 'scatter') else 'dst'}={peer}")
    if reduce_op:
        words.append(reduce_op)
    return f"{kind}({', '.join(words)})" if words else kind


@dataclass(frozen=True, slots=True)
class Work:
    """The work that a rank's modelled device did.

    Attributes
    ----------
    flops : int
        Floating-point operations of products, convolutions and attention.
    recomputed_flops : int
        The part of ``flops`` that activation checkpointing computed again during backward.
    full_rate_s, recomputed_full_rate_s : float or None
        Seconds that ``flops`` and ``recomputed_flops`` would take at the full rates of the device
        for their dtypes. None if the device lacks a rate for one of the dtypes.
    start_s, end_s : float or None
        The second at which the first kernel or op of torch.distributed began on an asynchronous
        device, and the second at which the last one ended. Both count from the moment at which the
        first rank entered the function.
    """

    flops: int
    recomputed_flops: int
    full_rate_s: float | None
    recomputed_full_rate_s: float | None
    start_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a rank's work that the program has named with `simlib.span`.

    Attributes
    ----------
    rank : int
    name : str
        ``"F"``...
    numbers : dict of str to int
        ``{"micro": 3}``.
    start_s, end_s : float, float or None
        When the rank entered and left the piece, in seconds since the first rank entered the
        function. ``end_s`` is None if the piece never ended.
    work : Work or None
        The work of the rank's modelled device for this piece. It includes work that the device did
        after the rank had left the piece.
    """

    rank: int
    name: str
    numbers: dict
    start_s: float
    end_s: float | None
    work: Work | None = None

    def span(self, until_s: float) -> tuple[float, float]:
        """The start and end of the piece; the end is ``until_s`` if the piece never ended.

        An asynchronous device works on the piece after the rank has launched it. For such a device,
        start and end are the device's times.
        """
        done = self.work
        if done is not None and done.start_s is not None and done.end_s is not None:
            return done.start_s, done.end_s
        return self.start_s, until_s if self.end_s is None else self.end_s

    @property
    def label(self) -> str:
        """The name with its numbers, as pictures show it: ``"F3"``, or ``"F0.3"`` for two
        numbers."""
        return self.name + ".".join(map(str, self.numbers.values()))


@dataclass(frozen=True, slots=True)
class Message:
    """A send and its recv. ``recv`` is None if no rank received the message."""

    send: Op
    recv: Op | None

    @property
    def src(self) -> int:
        """The rank that sent the message."""
        return self.send.rank

    @property
    def dst(self) -> int | None:
        """The rank to which the message was sent."""
        return self.send.peer

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return self.send.nbytes


@dataclass(frozen=True, slots=True)
class WireMessage:
    """One of the messages of which a simulated collective consists.

    Attributes
    ----------
    kind : str
        The collective.
    group : Group
    round : int
        Number of the round in the collective's algorithm, from 0.
    src, dst : int
        Ranks of the world.
    nbytes : int
    start_s, end_s : float
        The second at which both ranks were ready for the message, and the second at which it had
        arrived.
    """

    kind: str
    group: Group
    round: int
    src: int
    dst: int
    nbytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective. It contains the ops of all ranks that took part, as ``{rank: Op}``."""

    kind: str
    group: Group
    ops: dict

    @property
    def nbytes(self) -> int:
        """The largest payload of any rank of the collective, in bytes."""
        return max(op.nbytes for op in self.ops.values())


@dataclass(slots=True)
class Trace:
    """All ops of a run, in the order in which they were posted, and the time span of each rank.

    Attributes
    ----------
    world_size : int
    ops : list of Op
        Ordered by ``post_s``, then rank.
    spans : list of (float, float or None)
        For each rank, the seconds at which it entered and left the function, counted from the first
        rank's entry. A value is None if the rank never entered or left.
    dropped : int
        The number of ops that ran but are not in ``ops``, because the record was full.
    clock_error_s : float
        The largest error when you compare times of ranks on different hosts.
    clock_offsets_s : dict of int to float
        ``{rank: seconds}``: the seconds by which the rank's clock was ahead of the first rank's
        clock. simlib has subtracted these seconds from all times of the rank.
    missing : tuple of int
        Ranks without a record.
    last_seen_s : dict of int to float
        ``{rank: seconds}``: the last moment of this rank in the record, if the record covers only a
        part of a run.
    pieces : list of Piece
        The pieces of work that ranks have named, ordered by ``start_s``, then rank.
    deaths : dict of int to float
        ``{rank: seconds}``: when this rank died.
    forgotten : Evicted or None
        Sums over the earlier ops that are no longer in ``ops``, if the run was watched for a long
        time.
    """

    world_size: int
    ops: list = field(default_factory=list)
    spans: list = field(default_factory=list)
    dropped: int = 0
    clock_error_s: float = 0.0
    pieces: list = field(default_factory=list)
    deaths: dict = field(default_factory=dict)
    forgotten: Evicted | None = None
    clock_offsets_s: dict = field(default_factory=dict)
    missing: tuple = ()
    last_seen_s: dict = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ops)

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __getitem__(self, index: int) -> Op:
        return self.ops[index]

    def of_rank(self, rank: int) -> list[Op]:
        """The ops of one rank, in its own order."""
        return sorted((op for op in self.ops if op.rank == rank), key=lambda op: op.seq)

    def by_rank(self) -> list[list[Op]]:
        """Return the ops of each rank, by rank, in the order of that rank."""
        own: list[list[Op]] = [[] for _ in range(self.world_size)]
        for op in self.ops:
            own[op.rank].append(op)
        for ops in own:
            ops.sort(key=lambda op: op.seq)
        return own

    @property
    def is_over(self) -> bool:
        """True if each rank left its function and each blocking call completed."""
        has_left = self.spans and all(None not in span for span in self.spans)
        return bool(has_left) and all(op.done or op.async_op for op in self.ops)

    @property
    def end_s(self) -> float:
        """The last moment in the trace, in seconds since the first rank entered."""
        ends = [t for span in self.spans for t in span if t is not None]
        ends += [*self.deaths.values(), *self.last_seen_s.values()]
        moments = [(op.post_s, op.wait_s, op.end_s, op.failed_s) for op in self.ops]
        ends += [t for times in moments for t in times if t is not None]
        return max(ends, default=0.0)

    @property
    def messages(self) -> list[Message]:
        """Every send with its recv, in the order in which the sends were posted.

        A recv belongs to the first send with the same group, src, dst and tag that no earlier recv
        has matched. The src of an any-source recv is the sender that the recv reported.

        **Cost** O(number of ops).
        """
        waiting: defaultdict = defaultdict(deque)
        for op in self.ops:
            if op.kind == "recv" and op.peer is not None:
                waiting[op.group.ranks, op.group.name, op.peer, op.rank, op.tag].append(op)
        found = []
        for op in self.ops:
            if op.kind == "send":
                queue = waiting[op.group.ranks, op.group.name, op.rank, op.peer, op.tag]
                found.append(Message(op, queue.popleft() if queue else None))
        return found

    @property
    def collectives(self) -> list[Collective]:
        """Every collective, ordered by the first call of it.

        The k-th collectives that the members of a group call belong together. **Cost** O(number of
        ops).
        """
        counts: defaultdict = defaultdict(int)
        members: defaultdict = defaultdict(dict)
        for op in self.ops:
            if not op.is_p2p:
                key = op.group.name, op.group.ranks
                number = counts[key, op.rank] if op.number is None else op.number
                members[key, number][op.rank] = op
                counts[key, op.rank] += 1
        return [
            Collective(next(iter(ops.values())).kind, next(iter(ops.values())).group, ops)
            for ops in members.values()
        ]


class Evicted:
    """Exact sums of the ops that a log has overwritten with later ops.

    Attributes
    ----------
    ops, joined : list of int
        By rank: the number of ops, and the number of collectives among these ops.
    sent : dict of (int, int) to list of int
        (src, dst) -> number of messages, number of bytes.
    received : list of list of int
        By rank: number of messages, number of bytes.
    """

    def __init__(self, world_size: int) -> None:
        self.ops = [0] * world_size
        self.joined = [0] * world_size
        self.sent: dict = defaultdict(lambda: [0, 0])
        self.received = [[0, 0] for _ in range(world_size)]
        self._loaded = 0  # collectives of a run that was saved
        self._met: defaultdict = defaultdict(lambda: defaultdict(int))  # group -> rank -> how many
        self._ahead: defaultdict = defaultdict(int)  # channel -> sends forgotten, without recvs

    @property
    def collectives(self) -> int:
        """Number of collectives."""
        return self._loaded + sum(max(counts.values()) for counts in self._met.values())

    def to_record(self) -> dict[str, Any]:
        """As plain data, for a file."""
        return {
            "ops": self.ops,
            "joined": self.joined,
            "sent": [[*pair, *total] for pair, total in self.sent.items()],
            "received": self.received,
            "collectives": self.collectives,
        }

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Evicted:
        """The sums that `to_record` has written."""
        found = cls(len(record["ops"]))
        found.ops, found.joined = record["ops"], record["joined"]
        found.received, found._loaded = record["received"], record["collectives"]
        for src, dst, *total in record["sent"]:
            found.sent[src, dst] = total
        return found

    def __bool__(self) -> bool:
        return any(self.ops)

    def add(self, op: Op, is_open: bool = False) -> None:
        """Count an op that the log forgets. If the op ``is_open``, the caller calls `end` later."""
        if op.kind == "new_group":
            return
        self.ops[op.rank] += 1
        if not op.is_p2p:
            self.joined[op.rank] += 1
            self._met[op.group][op.rank] += 1
            return
        if op.kind == "send":
            _count(self.sent[op.rank, op.peer], op)
        if op.kind == "send" or op.peer is not None:
            self._step(op, 1 if op.kind == "send" else -1)
        if op.kind == "recv" and not is_open:
            _count(self.received[op.rank], op)

    def end(self, op: Op) -> None:
        """Count the end of an op that was open when the log forgot it."""
        if op.kind == "recv":
            _count(self.received[op.rank], op)
            if op.any_source:
                self._step(op, -1)

    def _step(self, op: Op, by: int) -> None:
        channel = _channel_of(op)
        self._ahead[channel] += by
        if not self._ahead[channel]:
            del self._ahead[channel]

    def without_halves(self, ops: list[Op]) -> list[Op]:
        """The remaining ops, in order, without the ops whose partners the log has forgotten.

        The sums also include the ops that are left out. So every op in the list still has its
        partners.
        """
        late = {
            (group, rank): max(counts.values()) - counts[rank]
            for group, counts in self._met.items()
            for rank in group.ranks
        }
        kept = []
        for op in ops:
            if self._is_half(op, late):
                self.add(op, not op.done)
            else:
                kept.append(op)
        return kept

    def _is_half(self, op: Op, late: dict) -> bool:
        if not op.is_p2p:
            is_half = late.get((op.group, op.rank), 0) > 0
            if is_half:
                late[op.group, op.rank] -= 1
            return is_half
        if op.peer is None:
            return False
        ahead = self._ahead.get(_channel_of(op), 0)
        return ahead < 0 if op.kind == "send" else ahead > 0


def _channel_of(op: Op) -> tuple:
    src, dst = (op.rank, op.peer) if op.kind == "send" else (op.peer, op.rank)
    return op.group, src, dst, op.tag


def _count(total: list[int], op: Op) -> None:
    total[0] += 1
    total[1] += op.nbytes
