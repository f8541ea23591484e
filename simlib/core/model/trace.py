"""What happened in a run: sites, ops, messages, collectives. Every engine writes it, every
picture, table and check reads it. Pure Python.
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
        What the rank did there, as a call: ``"recv(src=1)"``, or ``"computing"``.
    file : str
        The file's path, or the name IPython gave the cell.
    lineno : int
        Line number, from 1; 0 when no line of the learner's was on the stack.
    function : str
        Name of the function the line is in.
    cell : int or None
        Execution count of the cell, where the line is in a notebook cell.
    line_text : str
        The line itself, stripped.
    callers : tuple of str
        The places that led to the line, the nearest first, two at most; known in verdicts only.
    in_thread : bool
        Whether the rank was there in a thread that it has started itself.
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
        """The place in words: ``"main, line 4"`` in a notebook cell, else ``"ptdist.py, line 12"``.

        A cell is named by its function: its number is another one whenever it is run again.
        """
        if not self.lineno:
            return "no line of yours"
        if self.cell is not None:
            name = "cell" if self.function.startswith("<") else self.function
            return f"{name}, line {self.lineno}"
        return f"{self.file.rpartition('/')[2]}, line {self.lineno}"

    @property
    def where(self) -> str:
        """The place with what led to it: ``"mean, line 2, called from main, line 9"``."""
        callers = f", called from {', from '.join(self.callers)}" if self.callers else ""
        return f"{self.place}{callers}{', in another thread' if self.in_thread else ''}"

    def is_at_line_of(self, other: Site) -> bool:
        """Whether both are one line, whatever is called there."""
        return (self.lineno, self.file) == (other.lineno, other.file)

    def __str__(self) -> str:
        return f"{self.op} ({self.place})"


def source_line(file: str, lineno: int) -> str:
    """The stripped text of one line; empty where the source is not at hand."""
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

    ``name`` is ``"world"`` for the default group, else ``"group 1"``, ``"group 2"`` by order of
    appearance in the trace. ``description`` is what the program called it, ``"TP"``, where a record
    of a real job says so.
    """

    name: str
    ranks: tuple
    description: str = ""

    def __len__(self) -> int:
        return len(self.ranks)

    def __hash__(self) -> int:
        return hash(self.name)  # needed at every op: not of thousands of ranks


@dataclass(slots=True)
class Op:
    """One call of one rank into torch.distributed.

    Attributes
    ----------
    rank : int
        Rank (in the world) that made the call.
    seq : int
        Its number among the rank's ops, from 0.
    kind : str
        ``send``, ``recv``, ``broadcast``, ``scatter``, ``gather``, ``reduce``, ``all_reduce``,
        ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``barrier``.
    group : Group
        The process group it was called on.
    peer : int or None
        dst of a send, src of a recv (None while an any-source recv has not matched), root of a
        rooted collective; always a rank of the world. None where the record does not say the root.
    tag : int or None
        Tag of a send or recv; None where the record does not say it.
    nbytes : int
        Payload: bytes of the tensors this rank contributes or, where it only receives, of those
        it receives. (all_gather: its own part; reduce_scatter, all_to_all, and scatter on the
        root: all the parts it brings; gather on the root: its own part.)
    shapes : tuple of tuple of int
        Shapes of the tensors that ``nbytes`` counts.
    dtype : str
        ``"float32"``...; empty for a barrier.
    reduce_op : str or None
        ``"SUM"``, ``"AVG"``, ``"MAX"``, ``"MIN"``, ``"PRODUCT"``... of a reducing collective.
    splits : tuple or None
        Of an all_to_all: (elements it sends to each rank, elements it expects from each).
    async_op : bool
        True where the call returned a request (isend, irecv, ``async_op=True``, and what DDP
        posts from C++).
    any_source : bool
        True for a recv that named no src.
    site : Site
        The learner's line.
    post_s, wait_s, end_s : float or None
        Seconds since the first rank entered the function: the call; the moment the rank began to
        wait for it; its completion as the rank saw it. None where that never happened.
    waited_after : int or None
        How many ops the rank had posted when it began to wait: of several things at one moment, as
        there are in a simulation, this says which came first.
    failed_s : float or None
        When it raised in its rank, say for want of a rank that had died; it has no ``end_s`` then.
    number : int or None
        Which collective of its group it is, where the record says so: it may not hold the first.
        None: they are counted.
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

    @property
    def is_p2p(self) -> bool:
        """Whether this is a send or a recv (anything else is a collective)."""
        return self.kind in P2P_KINDS

    @property
    def done(self) -> bool:
        """Whether the op completed, as far as its rank saw."""
        return self.end_s is not None

    def ends_by(self, until_s: float) -> float:
        """When it completed or failed, or ``until_s`` where it did neither."""
        ends = (self.end_s, self.failed_s, until_s)
        return next(moment for moment in ends if moment is not None)

    @property
    def call(self) -> str:
        """The op as a short call: ``"isend(dst=1, tag=7)"``, ``"all_reduce(SUM)"``."""
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
    """The text of a call: used by `Op.call` and for a rank that still waits in it."""
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
    """What the modelled device of a rank did.

    Attributes
    ----------
    flops : int
        Floating-point operations of products, convolutions and attention.
    recomputed_flops : int
        Those of them that checkpoints of activations did once more, within backward.
    full_rate_s, recomputed_full_rate_s : float or None
        Seconds that both take at the device's rates of their dtypes; None where there is no rate
        for one of them.
    start_s, end_s : float or None
        On an asynchronous device: when the first began of all kernels and ops of torch.distributed
        that were launched, and when the last ended, in seconds since the first rank entered.
    """

    flops: int
    recomputed_flops: int
    full_rate_s: float | None
    recomputed_full_rate_s: float | None
    start_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a rank's work that the program has named, see `simlib.span`.

    Attributes
    ----------
    rank : int
    name : str
        ``"F"``...
    numbers : dict of str to int
        ``{"micro": 3}``.
    start_s, end_s : float, float or None
        When the rank was in it, in seconds since the first rank entered the function; None where it
        never ended.
    work : Work or None
        What the modelled device of the rank did of it, be it after the rank had gone on.
    """

    rank: int
    name: str
    numbers: dict
    start_s: float
    end_s: float | None
    work: Work | None = None

    def span(self, until_s: float) -> tuple[float, float]:
        """From its start to its end, or to ``until_s`` where it never ended.

        An asynchronous device does it later than the rank calls it: then it is the device's time.
        """
        done = self.work
        if done is not None and done.start_s is not None and done.end_s is not None:
            return done.start_s, done.end_s
        return self.start_s, until_s if self.end_s is None else self.end_s

    @property
    def label(self) -> str:
        """The name with its numbers, as pictures show it: ``"F3"``, of several ``"F0.3"``."""
        return self.name + ".".join(map(str, self.numbers.values()))


@dataclass(frozen=True, slots=True)
class Message:
    """A send and the recv it went to; ``recv`` is None where nobody received it."""

    send: Op
    recv: Op | None

    @property
    def src(self) -> int:
        """Rank that sent."""
        return self.send.rank

    @property
    def dst(self) -> int | None:
        """Rank it was sent to."""
        return self.send.peer

    @property
    def nbytes(self) -> int:
        """Bytes of the message."""
        return self.send.nbytes


@dataclass(frozen=True, slots=True)
class WireMessage:
    """One of the messages that a collective is made of, in a simulation.

    Attributes
    ----------
    kind : str
        The collective.
    group : Group
    round : int
        Number of the round of its algorithm, from 0.
    src, dst : int
        Ranks of the world.
    nbytes : int
    start_s, end_s : float
        When both its ends were ready, and when it had arrived.
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
    """One collective: the ops of all the ranks that took part, ``{rank: Op}``."""

    kind: str
    group: Group
    ops: dict

    @property
    def nbytes(self) -> int:
        """The largest payload any of its ranks brought, in bytes."""
        return max(op.nbytes for op in self.ops.values())


@dataclass(slots=True)
class Trace:
    """All ops of a run, in order of their posting, and when each rank was at work.

    Attributes
    ----------
    world_size : int
    ops : list of Op
        Ordered by ``post_s``, then rank.
    spans : list of (float, float or None)
        Per rank, when it entered the function and left it, in seconds since the first rank entered;
        None where it never left.
    dropped : int
        Ops beyond what a recording holds: they ran, but are not in ``ops``.
    clock_error_s : float
        By how much times of ranks on different hosts may be wrong against each other.
    clock_offsets_s : dict of int to float
        Rank -> by how much its clock was ahead of the first rank's. Times are without it.
    missing : tuple of int
        Ranks of which there is no record.
    pieces : list of Piece
        What ranks have named of their work, ordered by ``start_s``, then rank.
    deaths : dict of int to float
        Rank -> when it died.
    forgotten : Forgotten or None
        Of a run that was watched for long: sums of what came before ``ops``, where that is not all.
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
        """The ops of each rank, by rank, each in its own order."""
        own: list[list[Op]] = [[] for _ in range(self.world_size)]
        for op in self.ops:
            own[op.rank].append(op)
        for ops in own:
            ops.sort(key=lambda op: op.seq)
        return own

    @property
    def is_over(self) -> bool:
        """Whether each rank left its function, and each call that blocks came to its end."""
        has_left = self.spans and all(None not in span for span in self.spans)
        return bool(has_left) and all(op.done or op.async_op for op in self.ops)

    @property
    def end_s(self) -> float:
        """The last moment anything is known of, in seconds since the first rank entered."""
        ends = [t for span in self.spans for t in span if t is not None]
        ends += self.deaths.values()
        moments = [(op.post_s, op.wait_s, op.end_s, op.failed_s) for op in self.ops]
        ends += [t for times in moments for t in times if t is not None]
        return max(ends, default=0.0)

    @property
    def messages(self) -> list[Message]:
        """Every send with the recv it went to, in order of posting.

        Sends and recvs pair by group, src, dst and tag, first posted first; an any-source recv
        takes the sender it reported.

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
        """Every collective, in order of its first post: the k-th op of each member of a group.

        **Cost** O(number of ops).
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
    """Sums of the ops that a log which rolls over holds no more: they are exact, all that is left.

    Attributes
    ----------
    ops, joined : list of int
        By rank: ops, and those of them that are collectives.
    sent : dict of (int, int) to list of int
        (src, dst) -> messages, bytes.
    received : list of list of int
        By rank: messages, bytes.
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
        """What `to_record` has written."""
        found = cls(len(record["ops"]))
        found.ops, found.joined = record["ops"], record["joined"]
        found.received, found._loaded = record["received"], record["collectives"]
        for src, dst, *total in record["sent"]:
            found.sent[src, dst] = total
        return found

    def __bool__(self) -> bool:
        return any(self.ops)

    def add(self, op: Op, is_open: bool = False) -> None:
        """An op is forgotten; one that ``is_open`` comes to its `end` later."""
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
        """An op that was forgotten while it was open has ended."""
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
        """The ops that are left, in order, without those whose partners are forgotten.

        These are added up here, too: so what is left belongs together as it did.
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
