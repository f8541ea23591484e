"""The collectives of one group: members come, agree or not, exchange data, and take their time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..diagnose.matching import Matcher, disagreement
from ..model.trace import Group
from ..record.transports.plain_group import SharedOutputs
from .collective_in_flight import LEAVE_EARLY, CollectiveInFlight
from .deaths import closed_by
from .tensors import put, result_of_rooted, results_of_all


@dataclass(slots=True)
class Call:
    """One member's call of a collective; the first fields are those that the matcher compares."""

    kind: str
    rank: int
    group: Group
    peer: int | None
    reduce_op: int | None
    dtype: object
    shapes: tuple
    splits: tuple | None
    brings: list
    takes: list
    opts: object
    nbytes: int
    itemsize: int
    request: object


class Meeting:
    """The k-th collective of a group: ``calls`` by position, None for who has not come."""

    def __init__(self, size):
        self.calls = [None] * size
        self.come = {}  # rank -> Call, in the order of coming
        self.left = 0
        self.is_held = False
        self.in_flight = None
        self.entries = {}
        self._results = None
        self._waiting = []

    def join(self, position, call):
        """Take a call in, unless it disagrees with one before it: then nothing moves any more."""
        if any(disagreement(other, call) for other in Matcher._to_compare(self.come, call)):
            self.is_held = True
        self.calls[position] = call
        self.come[call.rank] = call
        if self.is_held:
            return
        if call.kind in LEAVE_EARLY or getattr(call.opts, "asyncOp", False):
            # What is brought is what was there at the call: the rank goes on, others come later.
            call.brings = [tensor.clone() for tensor in call.brings]
        if call.kind not in LEAVE_EARLY and self.is_complete and call.brings:
            self._results = results_of_all(call.kind, self.calls, call.opts)
            for other in self.calls:
                other.brings = ()
        call.request.deliver = partial(self._deliver, position)
        if call.kind in LEAVE_EARLY or self.is_complete:
            self._wake(lambda other: self.has_data_for(other) and not self.is_held)

    @property
    def is_complete(self):
        """Whether all members have come."""
        return len(self.come) == len(self.calls)

    def _deliver(self, position):
        """Copy what this member takes into its tensors."""
        call = self.calls[position]
        if call.takes:
            if call.kind in LEAVE_EARLY:
                result = result_of_rooted(call.kind, self.calls, call.opts, position)
            else:
                result, self._results[position] = self._results[position], None
            if isinstance(call.takes, SharedOutputs):
                call.takes.tensors = result
            elif len(result):
                put(result, call.takes)
        call.takes = ()

    def has_data_for(self, position):
        """Whether all that this member takes has come."""
        call = self.calls[position]
        if self.is_complete:
            return True
        if call.kind in ("broadcast", "scatter"):
            return self.calls[call.opts.rootRank] is not None
        return call.kind in LEAVE_EARLY and position != call.opts.rootRank

    def when_data_have_come(self, position, wake):
        """Call ``wake()`` when this member's data are there."""
        self._waiting.append((position, wake))

    def let_go(self, position):
        """This member's op has failed: it waits for no data any more."""
        self._wake(lambda other: other == position)

    def _wake(self, may_go_on):
        waiting, self._waiting = self._waiting, []
        for position, wake in waiting:
            if may_go_on(position):
                wake()
            else:
                self._waiting.append((position, wake))


class Channel:
    """The collectives of one group, in order: each member begins one when it has ended the last.

    That order is the communication clock of the group: a member may have posted several (DDP does)
    while its compute clock goes on.
    """

    def __init__(self, simulation, name, members):
        self.members = members
        self.group = Group(name, members)
        self._simulation = simulation
        self._here = []
        self._meetings = {}  # number -> Meeting, until all members have left it
        self._posted = [0] * len(members)
        self._ended = [0] * len(members)
        self._free_s = [0.0] * len(members)
        self._dead = set()  # positions, where survivors go on

    def gather(self, rank):
        """Let a rank wait until all members are here, when the group is made."""
        scheduler = self._simulation.scheduler
        self._here.append(rank)
        if len(self._here) < len(self.members):
            scheduler.block(rank)
            return
        moment = max(scheduler.clocks[member] for member in self.members)
        for member in self._here[:-1]:
            scheduler.ready(member, moment)
        self._simulation.catch_up(rank, moment)

    def post(self, position, call):
        """A member calls its next collective."""
        number = self._posted[position]
        self._posted[position] += 1
        meeting = self._meetings.get(number)
        if meeting is None:
            meeting = self._meetings[number] = Meeting(len(self.members))
        self._simulation.uncounted(call.rank, meeting.join, position, call)
        if call.request.limit_s is not None:
            call.request.give_up = partial(self._give_up, position, meeting)
        if not meeting.is_held and number == self._ended[position]:
            self._enter(position, meeting, self._simulation.scheduler.clocks[call.rank])
        return meeting

    def member_died(self, position, time_s):
        """A member is dead: it comes to no collective, and those under way lose it."""
        self._dead.add(position)
        for meeting in list(self._meetings.values()):
            if meeting.in_flight is not None:
                meeting.in_flight.member_died(position, time_s)
            else:  # nobody has begun it, or all wait for the sizes of all
                for other in sorted(meeting.entries):
                    self._fail(other, meeting, position, time_s)

    def _enter(self, position, meeting, time_s):
        call = meeting.calls[position]
        time_s = max(time_s, self._free_s[position])
        if meeting.in_flight is None and self._simulation.is_known_from(call):
            meeting.in_flight = self._begin(meeting, call)
            for dead in sorted(self._dead):
                meeting.in_flight.member_died(dead, time_s)
        if meeting.in_flight is not None:
            meeting.in_flight.enter(position, time_s)
            return
        if self._dead:
            self._fail(position, meeting, min(self._dead), time_s)
            return
        meeting.entries[position] = time_s
        if len(meeting.entries) == len(self.members):
            meeting.in_flight = self._begin(meeting, call)
            for position, time_s in sorted(meeting.entries.items(), key=lambda item: item[1]):
                meeting.in_flight.enter(position, time_s)

    def _begin(self, meeting, call):
        plan = self._simulation.plan(self, meeting, call)
        wire = self._simulation.new_wire(self, call)
        return CollectiveInFlight(
            self._simulation.transfers,
            plan,
            self.members,
            lambda position, end_s: self._through(position, meeting, end_s),
            wire,
            lambda position, dead, time_s: self._fail(position, meeting, dead, time_s),
        )

    def _fail(self, position, meeting, dead, time_s):
        """A member's part of a collective needs a dead one."""
        if position in self._dead or meeting.calls[position].request is None:
            return
        meeting.entries.pop(position, None)
        see = partial(self._see_dead, position, meeting, dead)
        self._simulation.when_seen(self.members[dead], time_s, see)

    def _see_dead(self, position, meeting, dead, time_s):
        request = meeting.calls[position].request
        if request is not None:  # else it was given up before
            request.fail(closed_by(self.members[dead]), time_s)
            meeting.let_go(position)
            self._through(position, meeting, time_s)

    def _give_up(self, position, meeting):
        """A member has waited too long for a collective that it has begun."""
        if meeting.in_flight is not None:
            meeting.in_flight.member_left(position)
        elif meeting.entries.pop(position, None) is None:
            return
        self._through(position, meeting, self._simulation.scheduler.now_s)

    def _through(self, position, meeting, end_s):
        """A member has ended a collective; it begins the next where it has called it already."""
        number = self._ended[position]
        self._free_s[position] = end_s
        call = meeting.calls[position]
        request, call.request = call.request, None  # it has the tensors, and is the rank's own
        request.finish(end_s)
        meeting.left += 1
        if meeting.left == len(self.members):
            meeting.in_flight = None  # which refers to the meeting: let go of the tensors
            del self._meetings[number]
        number = self._ended[position] = number + 1
        if number < self._posted[position]:
            following = self._meetings[number]
            if not following.is_held:
                self._enter(position, following, end_s)
