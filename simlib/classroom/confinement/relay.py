"""Carries tensors between the ranks of a graded world, and counts them: the grader's side.

`Exchange` decides which ranks meet, by the rules of the simulation (`clockwork`). It has no clock:
it answers an op as soon as all data for the op are there. The thread `Broker` reads the requests of
ranks and sends the answers, over one socket for each rank. `Broker` counts the tensors that it
carries. So the grader can compare a rank's own record with this count.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import selectors
import socket
import struct
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist

from ...core.clockwork.mailbox import Mailbox, Post, closed_by
from ...core.clockwork.meetings import Call, Meeting
from ...core.model.trace import Group
from ...core.record import safe_pickle
from ...core.record.recorder import count_bytes
from ...core.record.transports.plain_group import REDUCING

COLLECTIVES = frozenset(
    "broadcast scatter gather all_gather reduce all_reduce reduce_scatter all_to_all "
    "barrier".split()
)
LARGEST_BYTES = 256 << 20
"""One op may carry at most this many bytes."""
MAX_WAITING = 100_000
"""One rank may have at most this many ops without an answer."""


class WrongWords(ValueError):
    """A rank has sent a request that torch.distributed never makes."""


@dataclass(frozen=True)
class Carried:
    """One op as the relay has carried it.

    Attributes
    ----------
    kind : str
    ranks : tuple of int
        The group's members, as ranks of the world.
    peer : int or None
        The other side of a message, if the op names one, or the root of a collective. It is a rank
        of the world.
    nbytes : int
        The bytes that the rank contributes. For a receive, the bytes that the rank receives.
    """

    kind: str
    ranks: tuple
    peer: int | None
    nbytes: int


GROUP_MADE = Carried("new_group", (), None, 0)


class Asked:
    """An op of a rank that waits for an answer. `Mailbox` and `Meeting` call such an op a
    request."""

    limit_s = None

    def __init__(self, exchange, rank, number, takes=()):
        self.rank = rank
        self.deliver = None
        self.source = None
        self._exchange = exchange
        self._number = number
        self._takes = takes

    def finish(self, end_s):
        """Complete the op if the rank's tensor is as large as the message."""
        try:
            if self.deliver is not None:
                self.deliver()
        except (RuntimeError, ValueError):
            self.fail("The message has another size than this rank expects.", end_s)
            return
        self._exchange.tell(self.rank, self._number, None, self._takes, self.source)

    def fail(self, words, time_s):
        """Let the op fail, because it can never complete."""
        self._exchange.tell(self.rank, self._number, words, [], None)


class Exchange:
    """The ops of all ranks of one run.

    Parameters
    ----------
    world_size : int
    answer : callable
        ``answer(rank, number, failure, tensors, source)`` reports that the rank's op of this number
        is complete or has failed. ``failure`` is a sentence, and ``source`` is the sender.

    Attributes
    ----------
    carried : list of list of Carried
        The ops of each rank, in the order in which the rank began them.
    """

    def __init__(self, world_size, answer):
        self.carried = [[] for _ in range(world_size)]
        self.dead = set()
        self._world_size = world_size
        self._answer = answer
        self._waiting = [0] * world_size
        self._order = count()
        self._mailboxes = {}
        self._meetings = {}
        self._posted = defaultdict(int)
        self._here = defaultdict(list)
        # What a mailbox asks of a simulation.
        self.scheduler = SimpleNamespace(random=None, now_s=0.0, clocks=defaultdict(float))
        self.transfers = SimpleNamespace(send=self._send)
        self.deaths = {}
        self.unmet = {}  # always empty: no rank waits for data before its message has arrived

    @staticmethod
    def _send(now_s, src, dst, nbytes, on_end):
        on_end(SimpleNamespace(end_s=now_s))

    @staticmethod
    def when_seen(dead, time_s, action):
        """Call ``action`` at once, because here ranks notice a death at once."""
        action(time_s)

    def tell(self, rank, *words):
        """Answer an op of a rank."""
        self._waiting[rank] -= 1
        self._answer(rank, *words)

    def post(self, rank, number, words):
        """Begin an op of a rank.

        Raises
        ------
        WrongWords
            No op begins with these words.
        """
        self._waiting[rank] += 1
        if self._waiting[rank] > MAX_WAITING:
            raise WrongWords(f"more than {MAX_WAITING:,} ops wait at once")
        kind, *words = words
        if kind in ("send", "recv"):
            self._message(rank, number, kind, words)
        elif kind == "meet":
            self._meet(rank, number, *words)
        elif kind in COLLECTIVES:
            self._collective(rank, number, kind, words)
        else:
            raise WrongWords(f"there is no op {kind!r}")

    def _group(self, rank, name, ranks):
        members = type(ranks) is tuple and all(type(one) is int for one in ranks)
        if type(name) is not str or not members or len(set(ranks)) != len(ranks):
            raise WrongWords("there is no such group")
        if rank not in ranks or min(ranks) < 0 or max(ranks) >= self._world_size:
            raise WrongWords(f"rank {rank} is not in this group, or the group exceeds the world")
        return Group(name, ranks)

    def _message(self, rank, number, kind, words):
        """``content`` is the tensor to send; for a receive, a dtype and a number of elements."""
        name, ranks, peer, tag, content = words
        group = self._group(rank, name, ranks)
        is_named = type(peer) is int and 0 <= peer < len(ranks) and ranks[peer] != rank
        if not is_named and not (kind == "recv" and peer is None) or type(tag) is not int:
            raise WrongWords("this is not a message")
        own, takes = ranks.index(rank), []
        if kind == "recv":
            content = empty(*content)
            takes = [content]
        nbytes = count_bytes(bounded(content))
        asked = Asked(self, rank, number, takes)
        src, dst = (own, peer) if kind == "send" else (peer, own)
        post = Post(src, dst, content.dtype, nbytes, asked, content, float(next(self._order)))
        key = group, dst, tag
        if key not in self._mailboxes:
            self._mailboxes[key] = Mailbox(self, ranks, dst)
        named = None if peer is None else ranks[peer]
        self.carried[rank].append(Carried(kind, ranks, named, nbytes))
        getattr(self._mailboxes[key], "send" if kind == "send" else "receive")(post)

    def _collective(self, rank, number, kind, words):
        """``sort`` has the facts on which ranks must agree: dtype, shapes and splits.

        ``takes`` has the dtype and the number of elements of each tensor that the rank takes. The
        rank gets only such tensors, which are made here. It gets nothing else from the other ranks.
        """
        name, ranks, root, op, brings, sort, takes, nbytes = words
        group = self._group(rank, name, ranks)
        position = ranks.index(rank)
        if root is not None and (type(root) is not int or not 0 <= root < len(ranks)):
            raise WrongWords("there is no such root")
        dtype, shapes, splits = sort
        brings = [bounded(tensor) for tensor in brings]
        results = all_empty(takes)
        if brings and sum(map(torch.numel, brings)) != sum(map(math.prod, shapes)):
            raise WrongWords("these tensors differ from the announced tensors")
        asked = Asked(self, rank, number, results)
        options = SimpleNamespace(rootRank=root, reduceOp=reduction(op), asyncOp=False)
        call = Call(
            kind=kind,
            rank=rank,
            group=group,
            peer=None if root is None else ranks[root],
            reduce_op=op if kind in REDUCING else None,
            dtype=dtype,
            shapes=shapes,
            splits=splits,
            brings=brings,
            takes=results,
            opts=options,
            nbytes=nbytes,
            itemsize=brings[0].element_size() if brings else 1,
            request=asked,
        )
        brought = sum(map(count_bytes, brings))
        self.carried[rank].append(Carried(kind, ranks, call.peer, brought))
        meeting = self._meeting(group, position)
        meeting.join(position, call)
        self._go_on(meeting)
        if any(one in self.dead for one in ranks):
            self._fail(meeting)

    def _meeting(self, group, position):
        number = self._posted[group, position]
        self._posted[group, position] += 1
        key = group, number
        if key not in self._meetings:
            self._meetings[key] = Meeting(len(group.ranks))
        meeting = self._meetings[key]
        if len(meeting.come) == len(group.ranks) - 1:
            del self._meetings[key]  # this member is the last
        return meeting

    def _go_on(self, meeting):
        """Answer all members whose data have arrived."""
        for position, call in enumerate(meeting.calls):
            if call is None or call.request is None or meeting.is_held:
                continue
            if meeting.has_data_for(position):
                call.request.finish(0.0)
                call.request = None

    def _fail(self, meeting):
        """Let ops fail that wait for a dead member."""
        for call in meeting.calls:
            if call is not None and call.request is not None:
                dead = next(rank for rank in call.group.ranks if rank in self.dead)
                call.request.fail(closed_by(dead), 0.0)
                call.request = None

    def _meet(self, rank, number, name, how_many):
        """Let the ranks that make a group wait for each other. The record of each rank contains
        this wait, too."""
        if type(name) is not str or type(how_many) is not int:
            raise WrongWords("this is not a meeting")
        if not 1 <= how_many <= self._world_size:
            raise WrongWords(f"a collective cannot have {how_many} ranks")
        self.carried[rank].append(GROUP_MADE)
        here = self._here[name]
        here.append(Asked(self, rank, number))
        if len(here) >= how_many:
            for asked in here:
                asked.finish(0.0)
            del self._here[name]

    def died(self, rank):
        """Handle the end of a rank."""
        self.dead.add(rank)
        self.deaths[rank] = 0.0
        for mailbox in list(self._mailboxes.values()):
            if rank in mailbox.members:
                mailbox.member_died(mailbox.members.index(rank), 0.0)
        for (group, _), meeting in list(self._meetings.items()):
            if rank in group.ranks:
                self._fail(meeting)


def empty(kind, elements):
    """Return the tensor that receives a message.

    Parameters
    ----------
    kind : torch.dtype
    elements : int
    """
    if type(kind) is not torch.dtype or type(elements) is not int or elements < 0:
        raise WrongWords("this receives nothing")
    if elements * kind.itemsize > LARGEST_BYTES:
        raise WrongWords(f"an op of more than {LARGEST_BYTES >> 20} MB")
    # Nothing of this process's own memory; and none of the system's before it is filled.
    room = np.zeros(max(1, elements) * kind.itemsize, np.uint8)
    return torch.from_numpy(room).view(kind)[:elements]


def all_empty(takes):
    """Return the tensors that a collective fills. Refuse them if they are too large together."""
    results = [empty(*one) for one in takes]
    if sum(map(count_bytes, results)) > LARGEST_BYTES:
        raise WrongWords(f"an op of more than {LARGEST_BYTES >> 20} MB")
    return results


def bounded(tensor):
    """Return the value if it is a tensor and not too large."""
    if not isinstance(tensor, torch.Tensor) or count_bytes(tensor) > LARGEST_BYTES:
        raise WrongWords(f"this is not a tensor, or it has more than {LARGEST_BYTES >> 20} MB")
    return tensor.detach()


def reduction(name):
    """Return torch's reduce op of this name; None for None."""
    if name is None:
        return None
    found = getattr(dist.ReduceOp, name, None) if type(name) is str else None
    if not isinstance(found, dist.ReduceOp.RedOpType):
        raise WrongWords(f"there is no reduction {name!r}")
    return dist.ReduceOp(found)


def difference(carried, ops):
    """A sentence if a rank's record differs from the ops carried for it, else None.

    The order does not count, because several threads of a rank may have recorded the ops in another
    order.

    Parameters
    ----------
    carried : list of Carried
        The ops that were carried for one rank.
    ops : list of Op
        The rank's own record.
    """
    recorded = Counter(map(as_carried, ops))
    carried = Counter(carried)
    for what, more, less in (
        ("is in the record, but no such message was sent", recorded, carried),
        ("was sent, but is not in the record", carried, recorded),
    ):
        for one in more - less:
            return f"{one.kind} of {one.nbytes:,} bytes {what}"
    return None


def as_carried(op):
    """Return the `Carried` that corresponds to an op of a record."""
    if op.kind == GROUP_MADE.kind:
        return GROUP_MADE
    brings_nothing = op.kind in ("broadcast", "scatter") and op.peer != op.rank
    return Carried(
        op.kind,
        tuple(op.group.ranks),
        None if op.any_source else op.peer,
        0 if brings_nothing else op.nbytes,
    )


LENGTH = struct.Struct("<Q")
LARGEST = 300 << 20
"""A message to the broker may have at most this many bytes."""
CHUNK = 1 << 18
PATIENCE_S = 20
"""Seconds in which a rank must receive an answer. A thread of the rank does only this."""


def framed(message):
    """Return a message as bytes. It consists of plain data and tensors, which
    `safe_pickle.loads_tree` can read."""
    data = safe_pickle.dumps_tree(message)
    return LENGTH.pack(len(data)) + data


class Broker:
    """Carries the messages between the ranks of one world.

    Parameters
    ----------
    world_size : int

    Attributes
    ----------
    theirs : list of socket
        The ranks' ends of the sockets, until `began` is called.
    """

    def __init__(self, world_size):
        pairs = [socket.socketpair() for _ in range(world_size)]
        self._ours = [ours for ours, _ in pairs]
        self.theirs = [theirs for _, theirs in pairs]
        self._world_size = world_size
        self._lock = threading.Lock()
        self._exchange = Exchange(world_size, self._answer)
        self._unread = [bytearray() for _ in range(world_size)]
        self._selector = selectors.DefaultSelector()
        self._wake, wakes = socket.socketpair()
        self._selector.register(wakes, selectors.EVENT_READ, None)
        for rank, ours in enumerate(self._ours):
            ours.settimeout(PATIENCE_S)
            self._selector.register(ours, selectors.EVENT_READ, rank)
        self._wakes = wakes
        self._thread = threading.Thread(target=self._carry, name="simlib-broker", daemon=True)
        self._thread.start()

    def of_rank(self, rank):
        """Return the descriptor of a rank's end, to send it to the rank."""
        return (self.theirs[rank].fileno(),)

    def began(self):
        """Close the ranks' ends of the sockets here, after all ranks have started and have them."""
        for theirs in self.theirs:
            theirs.close()
        self.theirs = []

    def begin_run(self):
        """Forget the last run, because another run begins."""
        with self._lock:
            self._exchange = Exchange(self._world_size, self._answer)

    def complaint(self, trace):
        """A sentence if a rank's record differs from the ops carried for it, else None."""
        with self._lock:
            for rank, carried in enumerate(self._exchange.carried):
                found = difference(carried, trace.of_rank(rank))
                if found is not None:
                    return f"the record of rank {rank} does not match its messages: {found}"
        return None

    def close(self):
        """Stop carrying messages."""
        self._wake.close()
        self._thread.join()
        self._selector.close()
        for one in (self._wakes, *self._ours, *self.theirs):
            one.close()

    def _carry(self):
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                with self._lock:
                    self._read(key.data)

    def _read(self, rank):
        try:
            data = self._ours[rank].recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            self._drop(rank)
            return
        unread = self._unread[rank]
        unread += data
        try:
            while len(unread) >= LENGTH.size:
                (length,) = LENGTH.unpack_from(unread)
                if length > LARGEST:
                    raise ValueError(f"a message of {length:,} bytes is too large")
                end = LENGTH.size + length
                if len(unread) < end:
                    return
                message = safe_pickle.loads_tree(bytes(unread[LENGTH.size : end]))
                del unread[:end]
                number, words = message
                self._exchange.post(rank, number, words)
        except Exception:  # a rank's own words: anything may be wrong with them
            self._drop(rank)

    def _drop(self, rank):
        """Carry nothing more for a rank that has ended or has sent wrong words."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._ours[rank])
            with contextlib.suppress(OSError):
                self._ours[rank].shutdown(socket.SHUT_RDWR)
            self._exchange.died(rank)

    def _answer(self, rank, *words):
        if rank in self._exchange.dead:
            return
        try:
            self._ours[rank].sendall(framed(words))
        except (OSError, pickle.PicklingError):
            self._drop(rank)
