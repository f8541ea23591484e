"""Find the ops that belong together, and how they disagree. All engines use this matcher.

This module is pure Python. A program may rely on these rules with every implementation of
`torch.distributed`:

* the k-th collectives of all members of a group belong together; such a collective is complete when
  all members have called it (a rank may be let through earlier, but may not rely on it);
* the k-th send from src to dst with a tag, in a group, meets the k-th such recv; a recv of any
  source takes a send that no other recv has taken;
* a send is complete when its recv is posted (``rendezvous``, as in Gloo). If it has at most
  ``eager_limit_bytes``, it is complete at once.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Any

from ..model.trace import ROOTED, Op

BySource = defaultdict[Any, list[Op]]
MOST_APART = 3
"""An `Apart` keeps at most this many calls in which ranks were at different lines."""
MAX_QUIET = 1000
"""With more mailboxes than this, the matcher forgets the empty mailboxes."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ops that belong together and disagree.

    ``rule`` says what differs: ``collective``, ``root``, ``reduce op``, ``dtype``, ``shape``,
    ``splits`` or ``ranks``. ``ops`` is ``{rank: Op}`` of all calls so far. ``apart`` is the earlier
    `Apart` of a collective's group, or None.
    """

    rule: str
    ops: dict
    apart: Apart | None = None


@dataclass(frozen=True, slots=True)
class Apart:
    """Consecutive collectives that matched although ranks called them at different lines.

    ``number`` is the number of the first of these collectives, from 1. ``calls`` is ``{lines:
    {rank: Op}}`` of the first `MOST_APART` collectives whose lines differ from each other.
    """

    number: int
    calls: dict


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that waits: its op, and the ranks for which it waits.

    ``needs`` are the ranks that have not done their part. If ``any_of`` is True (a recv from any
    source), the rank waits for one of these ranks. Otherwise it waits for all of them.
    """

    rank: int
    op: object
    needs: tuple
    any_of: bool = False


@dataclass(frozen=True, slots=True)
class Blocked:
    """Ranks that can never continue.

    ``waits`` is ``{rank: Wait}``. ``cycle`` is the shortest ring of ranks in which each waits for
    the next. ``cycle`` is empty if the waits end at ranks that are ``gone``, which means finished
    or dead.
    """

    waits: dict
    cycle: tuple
    gone: tuple


class Matcher:
    """Takes posted ops, and finds out which belong together, disagree, wait or are left over.

    Parameters
    ----------
    world_size : int
    eager_limit_bytes : int
        Sends of at most this many bytes complete without their recv. With -1 (rendezvous), no send
        does.

    Notes ----- Post the ops of each rank in the order of the rank. The ops of different ranks may
    alternate in any way.

    The matcher forgets complete ops, so its memory depends only on the ops under way.

    **Cost** O(1) for each op posted. A question about a p2p op costs O(open recvs from any source
    and messages that wait for them).
    """

    def __init__(self, world_size: int, eager_limit_bytes: float = -1) -> None:
        self.world_size = world_size
        self.eager_limit_bytes = eager_limit_bytes
        self.mismatches: list[Mismatch] = []
        # by group and sort: collectives under way; by that and rank: how many so far
        self._meetings: defaultdict[tuple, dict[int, dict[int, Op]]] = defaultdict(dict)
        self._counts: defaultdict[tuple, int] = defaultdict(int)
        self._apart: dict[tuple, Apart | None] = {}  # by the same; of those that are complete
        # (channel, number) -> {list of ranks: first op}
        self._new_groups: defaultdict[tuple, dict] = defaultdict(dict)
        # (rank, seq) -> number of the op on its channel; until it has met
        self._number: dict[tuple[int, int], int] = {}
        # (group, dst, tag) -> messages to there
        self._mailboxes: defaultdict[tuple, _Mailbox] = defaultdict(_Mailbox)
        self._most_mailboxes = MAX_QUIET

    def post(self, op: Op) -> None:
        """Add one op. If the op disagrees with another op, add the mismatch to `mismatches`."""
        if not op.is_p2p:
            self._post_collective(op)
            return
        mailbox = self._mailbox(op)
        if op.any_source:
            mailbox.open_any.append(op)
            return
        peer: int | None
        if op.kind == "send":
            side, peer, met = mailbox.sends, op.rank, mailbox.met
        else:
            side, peer, met = mailbox.recvs, op.peer, mailbox.met_named
        if not (mailbox.open_any or mailbox.is_unsure) and self._meets_first(mailbox, op, peer):
            return
        self._number[op.rank, op.seq] = met[peer] + len(side[peer])
        side[peer].append(op)
        if op.kind == "recv":
            mailbox.received[peer].append(op)
            mailbox.is_unsure |= any(other.async_op for other in mailbox.open_any)
        self._compare_messages(mailbox, peer)

    def _meets_first(self, mailbox, op, peer):
        """Whether the other side of a message waits as the first and only sort: then both are over.

        This gives the same as `_compare_messages`, and is quicker.
        """
        sends, received, recvs = mailbox.sends[peer], mailbox.received[peer], mailbox.recvs[peer]
        if mailbox.taken[peer]:
            return False
        if op.kind == "send":
            if sends or not received:
                return False
            other = received.pop(0)
            del recvs[0]
        elif received or recvs or not sends:
            return False
        else:
            other = sends.pop(0)
        send, recv = (op, other) if op.kind == "send" else (other, op)
        rule = _message_disagreement(send, recv)
        if rule:
            self.mismatches.append(Mismatch(rule, {one.rank: one for one in (send, recv)}))
        mailbox.met[peer] += 1
        mailbox.met_named[peer] += 1
        self._number.pop((other.rank, other.seq), None)
        return True

    def resolve(self, op: Op) -> None:
        """A recv of any source has got its message from ``op.peer``."""
        mailbox = self._mailbox(op)
        mailbox.open_any = [other for other in mailbox.open_any if other.seq != op.seq]
        mailbox.taken[op.peer].append(op)
        insort(mailbox.received[op.peer], op, key=lambda op: op.seq)
        for peer in list(mailbox.sends):
            self._compare_messages(mailbox, peer)

    def is_satisfied(self, op: Op) -> bool:
        """Whether all ops that this op needs were posted, so that a wait for it returns."""
        return not self.wait_of(op).needs

    def wait_of(self, op: Op, is_done: Callable[[Op], bool] = lambda op: False) -> Wait:
        """The `Wait` of a rank for this op. Its ``needs`` are empty if the wait returns."""
        number = self._number.get((op.rank, op.seq), -1)
        if number < 0 and not op.any_source:
            return Wait(op.rank, op, ())  # it has met
        if not op.is_p2p:
            arrived = self._meetings[_channel(op)][number]
            return Wait(op.rank, op, tuple(rank for rank in _company(op) if rank not in arrived))
        mailbox = self._mailbox(op)
        if op.kind == "send":
            return Wait(op.rank, op, () if self._is_received(op, mailbox, is_done) else (op.peer,))
        if op.any_source and op.peer is not None:
            return Wait(op.rank, op, ())
        if op.any_source:
            others = tuple(rank for rank in op.group.ranks if rank != op.rank)
            return Wait(op.rank, op, () if mailbox.has_message_for_any(op) else others, any_of=True)
        place = number - mailbox.met_named[op.peer] + len(mailbox.taken[op.peer])
        return Wait(op.rank, op, () if place < len(mailbox.sends[op.peer]) else (op.peer,))

    def _is_received(self, op, mailbox, is_done):
        """Whether a send may complete.

        An open recv from any source counts for every send that could reach it. It does not count
        for a send if it may already belong to earlier sends of the same rank.
        """
        number = self._number[op.rank, op.seq] - mailbox.met[op.rank]
        place = number - len(mailbox.received[op.rank])
        if op.nbytes <= self.eager_limit_bytes or place < 0:
            return True
        if not mailbox.open_any:
            return False
        others = (src for src in mailbox.sends if src != op.rank)
        taken = place + sum(self._surely_taken(mailbox, src, is_done) for src in others)
        return taken < len(mailbox.open_any)

    def _surely_taken(self, mailbox, src, is_done):
        """The number of messages of one rank that open recvs from any source must have taken.

        These are the messages up to the last complete message. A complete eager send proves
        nothing.
        """
        left = mailbox.sends[src][len(mailbox.received[src]) :]
        met = [send.nbytes > self.eager_limit_bytes and is_done(send) for send in left]
        return len(left) - met[::-1].index(True) if any(met) else 0

    def blocked(
        self,
        waiting: Mapping[int, Op],
        gone: Collection[int],
        is_done: Callable[[Op], bool] = lambda op: False,
    ) -> Blocked | None:
        """The ranks that can never continue, even after an endless wait.

        Parameters
        ----------
        waiting : dict
            ``{rank: Op}``: ranks that wait, each in this op.
        gone : collection of int
            Ranks that have finished or died. All others are running and may post anything.
        is_done : callable
            Whether a send is known to be complete. The matcher calls it only if recvs from any
            source are open.

        Returns
        -------
        Blocked or None
        """
        waits = {rank: self.wait_of(op, is_done) for rank, op in waiting.items()}
        able = set(range(self.world_size)) - set(waiting) - set(gone)
        stuck = set(waiting)
        while True:
            freed = {rank for rank in stuck if _may_go_on(waits[rank], able)}
            if not freed:
                break
            able |= freed
            stuck -= freed
        if not stuck:
            return None
        waits = {rank: waits[rank] for rank in sorted(stuck)}
        needed = {rank for wait in waits.values() for rank in wait.needs}
        return Blocked(waits, _shortest_cycle(waits), tuple(sorted(needed & set(gone))))

    def apart(self, op: Op) -> Apart | None:
        """The `Apart` of a collective's group before this collective, or None."""
        channel = _channel(op)
        before = self._number.get((op.rank, op.seq), 0)
        found = self._apart.get(channel)
        for number, ops in sorted(self._meetings[channel].items()):
            if number < before:
                found = _apart_after(found, number, ops)
        return found

    def unfinished(self) -> list[Op]:
        """Sends that no rank received, and recvs without a message, in order of posting."""
        left = []
        for mailbox in self._mailboxes.values():
            left += mailbox.open_any
            for peer in set(mailbox.sends) | set(mailbox.recvs) | set(mailbox.taken):
                sends, recvs = mailbox.sends[peer], mailbox.recvs[peer]
                left += sends[len(mailbox.received[peer]) :]
                left += recvs[max(0, len(sends) - len(mailbox.taken[peer])) :]
        return sorted(left, key=lambda op: (op.post_s, op.rank, op.seq))

    def suspected(self) -> Mismatch | None:
        """A recv of any source and a message for it that would disagree, as a Mismatch, or None.

        The mismatch is not certain, because another message may arrive. If a rank has died in the
        recv, the mismatch is an explanation.
        """
        for mailbox in self._mailboxes.values():
            for src, sends in mailbox.sends.items():
                left = sends[len(mailbox.received[src]) :]
                for send, recv in zip(left, mailbox.open_any, strict=False):
                    rule = _message_disagreement(send, recv)
                    if rule:
                        return Mismatch(rule, {send.rank: send, recv.rank: recv})
        return None

    def absent(self) -> list[tuple[dict[int, Op], tuple[int, ...]]]:
        """Collectives some member never called: a list of ({rank: Op}, missing ranks)."""
        found = []
        for meetings in self._meetings.values():
            for arrived in meetings.values():
                op = next(iter(arrived.values()))
                missing = tuple(rank for rank in op.group.ranks if rank not in arrived)
                if missing:
                    found.append((arrived, missing))
        return found

    def _mailbox(self, op):
        if len(self._mailboxes) > self._most_mailboxes:
            self._mailboxes = defaultdict(
                _Mailbox, {key: box for key, box in self._mailboxes.items() if not box.is_quiet}
            )
            self._most_mailboxes = max(MAX_QUIET, 2 * len(self._mailboxes))
        return self._mailboxes[op.group, op.peer if op.kind == "send" else op.rank, op.tag]

    def _post_collective(self, op):
        channel = _channel(op)
        number = self._counts[channel, op.rank] if op.number is None else op.number
        self._counts[channel, op.rank] = number + 1
        self._number[op.rank, op.seq] = number
        meetings = self._meetings[channel]
        arrived = meetings.setdefault(number, {})
        others = self._to_compare(arrived, op)
        if op.kind == "new_group":
            others += self._other_lists(channel, number, op)
        rules = (disagreement(other, op) for other in others)
        rule = next(filter(None, rules), None)
        if rule and not any(mismatch.ops is arrived for mismatch in self.mismatches):
            self.mismatches.append(Mismatch(rule, arrived, self.apart(op)))
        arrived[op.rank] = op
        if len(arrived) == len(op.group):
            del meetings[number]
            self._apart[channel] = _apart_after(self._apart.get(channel), number, arrived)
            self._new_groups.pop((channel, number), None)
            self._forget(arrived.values())

    def _forget(self, ops):
        """Forget ops that are complete. Later questions about these ops are always answered with
        yes."""
        for op in ops:
            self._number.pop((op.rank, op.seq), None)

    @staticmethod
    def _to_compare(arrived, op):
        """The ops to compare with an op: the first op, or all ops if each pair of ranks has a
        part."""
        if op.kind in ("scatter", "all_to_all"):
            return list(arrived.values())
        return list(itertools.islice(arrived.values(), 1))

    def _other_lists(self, channel, number, op):
        """Calls that make a group with other ranks than this one, one for each list of ranks.

        None if an earlier rank called with the same list, because the matcher has compared that
        rank with all others. So the number of comparisons does not grow with the square of the
        number of ranks.
        """
        lists = self._new_groups[channel, number]
        if op.splits in lists:
            return []
        others = list(lists.values())
        lists[op.splits] = op
        return others

    def _compare_messages(self, mailbox, src):
        """Compare the messages from one rank with their recvs, as far as these are certain.

        While a recv from any source is open, nobody knows which message it will take, and which
        messages are left for later recvs. If a recv with a src is open at the same time,
        implementations serve the two in different orders. In this case the matcher compares
        nothing.
        """
        if mailbox.is_unsure:
            if mailbox.has_all_met:
                for one in list(mailbox.sends):
                    self._forget(mailbox.forget_first(one, len(mailbox.sends[one])))
                mailbox.is_unsure = False
            return
        sends, received = mailbox.sends[src], mailbox.received[src]
        first_open = min(op.seq for op in mailbox.open_any) if mailbox.open_any else inf
        compared = 0
        for send, recv in zip(sends, received, strict=False):
            if recv.seq > first_open:
                break
            rule = _message_disagreement(send, recv)
            if rule:
                self.mismatches.append(Mismatch(rule, {op.rank: op for op in (send, recv)}))
            compared += 1
        if compared:
            self._forget(mailbox.forget_first(src, compared))


def _message_disagreement(send, recv):
    if send.dtype != recv.dtype and (send.nbytes or recv.nbytes):
        return "dtype"
    return "shape" if send.nbytes != recv.nbytes else None


class _Mailbox:
    """The open messages of one group to one rank with one tag, by their source.

    ``met`` counts the messages that have matched a recv, and ``met_named`` those that have matched
    a recv with a src.
    """

    def __init__(self) -> None:
        self.sends: BySource = defaultdict(list)
        self.recvs: BySource = defaultdict(list)
        self.taken: BySource = defaultdict(list)  # recvs of any source that have got theirs
        self.received: BySource = defaultdict(list)  # both sorts of recv, by seq
        self.met: defaultdict[Any, int] = defaultdict(int)
        self.met_named: defaultdict[Any, int] = defaultdict(int)
        self.open_any: list[Op] = []
        self.is_unsure = False  # a named recv was posted while one of any source was open

    @property
    def is_quiet(self) -> bool:
        """Whether no message is under way here."""
        return not (self.open_any or any(self.sends.values()) or any(self.received.values()))

    @property
    def has_all_met(self) -> bool:
        """Whether every message has its recv, and every recv its message."""
        if self.open_any:
            return False
        sources = self.sends.keys() | self.received.keys()
        return all(len(self.sends[src]) == len(self.received[src]) for src in sources)

    def forget_first(self, src: int, count: int) -> list[Op]:
        """Forget a source's first messages, which are complete; returns their sends and recvs."""
        recvs = self.received[src][:count]
        sends = self.sends[src][:count]
        named = sum(1 for recv in recvs if not recv.any_source)
        self.met[src] += count
        self.met_named[src] += named
        for side, some in (
            (self.sends, count),
            (self.received, count),
            (self.recvs, named),
            (self.taken, count - named),
        ):
            del side[src][:some]
        return sends + recvs

    def has_message_for_any(self, op: Op) -> bool:
        """Whether a recv of any source has a send, after all recvs that were posted before it."""
        before = sum(1 for other in self.open_any if other.seq < op.seq)
        first = min(other.seq for other in self.open_any)
        there = 0
        for src, sends in self.sends.items():
            claimed = sum(1 for recv in self.recvs[src] if recv.seq < first)
            there += max(0, len(sends) - len(self.taken[src]) - claimed)
        return there > before


def _channel(op):
    """The key for counting collectives: the group. Calls that make groups are counted
    separately."""
    return op.group, op.kind == "new_group"


def _apart_after(before, number, ops):
    """The `Apart` of a group after one more collective. None if all ranks are at the same line."""
    sites = [op.site for op in ops.values()]
    if all(one is sites[0] or one.is_at_line_of(sites[0]) for one in sites):
        return None
    found = Apart(number + 1, {}) if before is None else before
    if len(found.calls) < MOST_APART:
        found.calls.setdefault(frozenset((op.rank, op.site.lineno) for op in ops.values()), ops)
    return found


def _company(op):
    """The ranks that an op needs: its whole group. To make a group, its future members."""
    if op.kind == "new_group":
        return op.splits if op.rank in op.splits else ()
    return op.group.ranks


def _may_go_on(wait, able):
    if not wait.needs:
        return True
    return any(rank in able for rank in wait.needs) if wait.any_of else able.issuperset(wait.needs)


def _shortest_cycle(waits):
    """The shortest ring of ranks in which each waits for the next; () if there is none."""
    best = ()
    for start in waits:
        best = _cycle_through(start, waits, len(best) or len(waits) + 1) or best
    return best


def _cycle_through(start, waits, limit):
    """The shortest ring through one rank that has fewer ranks than ``limit``, or ()."""
    came_from, reached, length = {start: None}, [start], 1
    while reached and length < limit:
        following = []
        for rank in reached:
            for needed in waits[rank].needs:
                if needed == start:
                    return _way_to(rank, came_from)
                if needed in waits and needed not in came_from:
                    came_from[needed] = rank
                    following.append(needed)
        reached, length = following, length + 1
    return ()


def _way_to(rank, came_from):
    way = [rank]
    while came_from[way[-1]] is not None:
        way.append(came_from[way[-1]])
    return tuple(reversed(way))


def disagreement(one: Op, other: Op) -> str | None:
    """The rule that two ops of one collective break together, or None.

    It compares kind, root, reduce op, dtype and numbers of elements. Shapes may differ if the
    numbers of elements agree, because only elements travel. An op without elements may have any
    dtype.
    """
    if one.kind != other.kind:
        return "collective"
    if one.kind == "new_group":
        return "ranks" if _groups_collide(one.splits, other.splits) else None
    if one.kind in ROOTED and _differ(one.peer, other.peer):
        return "root"
    if _differ(one.reduce_op, other.reduce_op):
        return "reduce op"
    if one.dtype != other.dtype and _anything_moves(one, other):
        return "dtype"
    if one.kind == "all_to_all":
        return None if _parts_agree(one, other) and _parts_agree(other, one) else "splits"
    if one.kind == "scatter":
        return None if _scatter_agrees(one, other) else "shape"
    if one.kind == "reduce_scatter" and len(one.shapes) == len(other.shapes):
        return None if [*map(prod, one.shapes)] == [*map(prod, other.shapes)] else "shape"
    # Shapes are mostly equal, and to compare them is quicker than to count.
    is_alike = one.shapes == other.shapes or _elements(one) == _elements(other)
    return None if is_alike else "shape"


def _differ(one, other):
    """Whether two values differ. A record may lack a value: None agrees with all values."""
    return one != other and None not in (one, other)


def _groups_collide(one, other):
    """Whether two lists of ranks for one new group exclude each other.

    torch itself makes several groups of one rank at the same time (`new_subgroups` within a group).
    Larger groups would find each other's addresses, because they have the same name.
    """
    return one != other and (bool(set(one) & set(other)) or min(len(one), len(other)) > 1)


def _elements(op):
    return sum(prod(shape) for shape in op.shapes)


def _anything_moves(one, other):
    """Whether elements of two ranks are combined. A rank without elements may have any dtype."""
    if one.kind == "all_to_all":
        pairs = itertools.product(((one, other), (other, one)), (0, 1))
        return any(_part(a, side, a.group.ranks.index(b.rank)) != 0 for (a, b), side in pairs)
    if one.kind == "scatter" and one.peer in (one.rank, other.rank):
        return bool(_elements(other if one.rank == one.peer else one))
    return bool(_elements(one) or _elements(other))


def _parts_agree(sender, receiver):
    """Whether one rank of an all_to_all sends the other as many elements as the other expects."""
    ranks = sender.group.ranks
    sent = _part(sender, 0, ranks.index(receiver.rank))
    expected = _part(receiver, 1, ranks.index(sender.rank))
    return sent is None or expected is None or sent == expected


def _part(op, side, position):
    """Elements of one part of an all_to_all; None if they are unknown."""
    if op.splits is None or position >= len(op.splits[side]):
        return None
    return op.splits[side][position]


def _scatter_agrees(one, other):
    for root, receiver in ((one, other), (other, one)):
        if root.rank == root.peer:
            position = root.group.ranks.index(receiver.rank)
            return position < len(root.shapes) and prod(root.shapes[position]) == _elements(
                receiver
            )
    return _elements(one) == _elements(other)
