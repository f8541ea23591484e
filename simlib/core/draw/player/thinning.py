"""Which events of a large run the player shows: whole messages and collectives, evenly in time."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from ...model.trace import Collective, Message


@dataclass(slots=True)
class Happening:
    """What belongs together: a message's two ops, all ops of a collective, a lone receive.

    Attributes
    ----------
    ops : list of Op
        Those in sight; empty for a message of the wire.
    thing : Message, Collective, WireMessage or None
        What the ops make; None for a receive that got nothing.
    """

    ops: list
    thing: object = None

    @property
    def size(self):
        """How many events it counts for."""
        return max(1, len(self.ops))

    @property
    def start_s(self):
        """When it began."""
        return min((op.post_s for op in self.ops), default=getattr(self.thing, "start_s", 0.0))

    @property
    def stuck(self):
        """Whether a rank never came out of it: what a learner looks for first."""
        return any(not op.done and (op.wait_s is not None or not op.async_op) for op in self.ops)

    @property
    def open(self):
        """Whether it never came about. A message that arrived did, awaited by its sender or not."""
        if isinstance(self.thing, Message) and self.thing.recv is not None:
            return not self.thing.recv.done
        return not all(op.done for op in self.ops)

    @property
    def maker(self):
        """Whose it is: of each maker, as many of its happenings are kept as of any other."""
        if isinstance(self.thing, Collective):
            return self.thing.group
        return self.ops[0].rank if self.thing is None else self.thing.src


def happenings(run, ops, rows, begin_s, end_s):
    """What happened to these ops, in order of time, with the wire's messages between the rows."""
    seen = {id(op) for op in ops}
    found, taken = [], set()
    trace = run.trace
    for message in trace.messages:
        pair = [op for op in (message.send, message.recv) if op is not None and id(op) in seen]
        taken.update(map(id, pair))
        if pair:
            found.append(Happening(pair, message))
    for collective in trace.collectives:
        members = [op for op in collective.ops.values() if id(op) in seen]
        if members:
            found.append(Happening(members, collective))
    found += [Happening([op]) for op in ops if op.is_p2p and id(op) not in taken]
    for wire in run.wire or ():
        inside = wire.start_s <= end_s and wire.end_s >= begin_s
        if inside and wire.src in rows and wire.dst in rows:
            found.append(Happening([], wire))
    return sorted(found, key=lambda happening: happening.start_s)


def thinned(found, most):
    """At most so many events of these happenings, each sort of them evenly over its time.

    First come those that a rank never came out of, one for each rank at the most. What else never
    came about, as all sends do where nobody receives, has half of the room that is left, or more
    where the rest needs less.
    """
    stuck = [happening for happening in found if happening.stuck]
    never = [happening for happening in found if happening.open and not happening.stuck]
    rest = [happening for happening in found if not (happening.open or happening.stuck)]
    kept = evenly(stuck, most)
    room = most - size_of(kept)
    kept += evenly(never, max(room // 2, room - size_of(rest)))
    kept += evenly(rest, most - size_of(kept))
    chosen = set(map(id, kept))
    return [happening for happening in found if id(happening) in chosen]


def evenly(found, room):
    """At most so many events of these happenings: of every maker, one of so many in a row.

    Which one of them is drawn by lot, always the same lot: every tenth, or every multiple of any
    number, can fall into step with what a program repeats.
    """
    if (total := size_of(found)) <= room:
        return found
    lot = random.Random(0)
    kept, by_maker = [], defaultdict(list)
    for happening in found:
        by_maker[happening.maker].append(happening)
    for own in by_maker.values():
        largest = max(happening.size for happening in own)
        parts = size_of(own) * room // (total * largest)
        edges = [part * len(own) // parts for part in range(parts)] + [len(own)]
        kept += [own[lot.randrange(*edge)] for edge in pairwise(edges)]
    return kept


def size_of(found):
    """How many events these happenings count for."""
    return sum(happening.size for happening in found)
