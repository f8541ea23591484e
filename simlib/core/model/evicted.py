"""What is left of ops that a log holds no more: exact sums."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .trace import Op
from .words import seconds_text


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

    def in_words(self, ops: list[Op]) -> str:
        """How much of the run these ops are, the only ones that are kept."""
        total = len(ops) + sum(self.ops)
        since = f", those since {seconds_text(ops[0].post_s)}" if ops else ""
        return f"the last {len(ops):,} of {total:,} ops are kept{since}"

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
