"""Which events of a large run the player shows: whole messages and collectives, evenly in time."""

from __future__ import annotations

from dataclasses import dataclass

GOLDEN = 0.6180339887498949


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
    def open(self):
        """Whether something of it never finished: what a learner looks for first."""
        return not all(op.done for op in self.ops)


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
    """At most so many events of these happenings: open ones first, the rest evenly in time.

    Multiples of the golden ratio say which are kept: they never fall into step with a program's
    own rhythm, as every tenth event would, which may always be the same rank's.
    """
    if sum(happening.size for happening in found) <= most:
        return found
    kept, room = set(), most
    for happening in found:
        if happening.open and happening.size <= room:
            kept.add(id(happening))
            room -= happening.size
    rest = [happening for happening in found if not happening.open]
    share = min(1.0, room / max(1, sum(happening.size for happening in rest)))
    for number, happening in enumerate(rest):
        if (number * GOLDEN) % 1 < share and happening.size <= room:
            kept.add(id(happening))
            room -= happening.size
    return [happening for happening in found if id(happening) in kept]
