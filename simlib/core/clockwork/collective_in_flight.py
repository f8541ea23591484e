"""The collectives of a group that are under way. simlib times their messages as ranks arrive.

Most collectives share no link with other transfers, from their first message to their last. simlib
times such a collective in one step when all members have arrived (`collectives.timing`). But
another transfer may need one of its links, or a rank may leave before all have arrived. Then simlib
plays the past of the collective again in a separate network. It joins this network to the common
network, and the collective continues message by message. Both ways give the same times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, isclose
from typing import TYPE_CHECKING, Any

import numpy as np

from ..collectives.schedules import Schedule
from ..collectives.timing import time_of
from ..model.cluster import Topology
from ..model.trace import Group
from .alike import PlacesDiffer
from .mailbox import closed_by
from .meetings import LEAVE_EARLY, Call, Meeting, uncounted
from .messages import Messages, Tell, WireLog
from .network import Network, Past, Transfer
from .scheduler import Scheduler

if TYPE_CHECKING:
    from .simulation_options import Options


@dataclass(slots=True)
class Plan:
    """The plan for one kind of collective of one group.

    Attributes
    ----------
    schedule : Schedule
    way : Topology
        The topology with the paths of its messages.
    links : frozenset of int
        Ids of all links that its messages cross.
    are_links_own : bool
        Whether each link belongs to one member, and no message is eager. A member begins the
        group's next collective after it has done its part of this collective. So in this case two
        collectives of the group do not share links. With eager messages they may, because an eager
        message may still be under way.
    lasts_s : list of float or None
        By position, the seconds that the collective takes if all members begin together and no
        other transfer is under way. None until simlib needs it.
    """

    schedule: Schedule
    way: Topology
    links: frozenset
    are_links_own: bool = False
    lasts_s: list | None = None


class Transfers:
    """All transfers of a simulation: messages between two ranks, and collectives in flight.

    Parameters
    ----------
    topology : Topology
    scheduler : Scheduler
    options : Options
        The algorithms of collectives, and the limit for eager messages.

    Attributes
    ----------
    wire : list of WireLog or None
        The messages of each collective, if the caller wants them.
    are_mirrored : bool
        Whether some ranks represent others. simlib does not simulate the messages of represented
        ranks.
    """

    def __init__(self, topology: Topology, scheduler: Scheduler, options: Options) -> None:
        self.topology = topology
        self.eager_limit_bytes = options.eager_limit_bytes
        self.wire: list[WireLog] | None = [] if options.expand else None
        self._options = options
        self._plans: dict[tuple, Plan] = {}
        self.scheduler = scheduler
        self.network = scheduler.network
        scheduler.on_arrival = self._arrived
        self._users = [0] * len(topology.link_bandwidth_Bps)  # by link: transfers under way
        self._ways: dict[tuple[int, ...], Topology] = {}  # by members, of rings and chains
        self._lazy: dict[CollectiveInFlight, None] = {}
        self.are_mirrored = False
        self._are_private = topology.links_are_private()
        self._first_shared = 2 * topology.world_size  # links before it are of one rank each

    def send(
        self,
        time_s: float,
        src: int,
        dst: int,
        nbytes: int,
        on_end: Callable,
        way: Topology | None = None,
    ) -> Transfer:
        """Start a message between two ranks of the world. It calls ``on_end(transfer)`` at its
        end."""
        if self._lazy:
            self._wake(self.network.links(src, dst, way))
        now_s = self.scheduler.now_s
        start_s = time_s if time_s > now_s else now_s
        transfer = self.network.start(start_s, src, dst, nbytes, way)
        self._note(transfer, on_end)
        return transfer

    def _note(self, transfer, on_end):
        transfer.on_end = on_end
        users = self._users
        for link in transfer.path.links:
            users[link] += 1

    def _arrived(self, transfer):
        users = self._users
        for link in transfer.path.links:
            users[link] -= 1
        on_end, transfer.on_end = transfer.on_end, None
        on_end(transfer)

    def claim(self, in_flight: CollectiveInFlight) -> bool:
        """Reserve the links of a collective. Returns whether they are free. If another transfer
        later needs one of the links, the collective is woken."""
        self._wake(in_flight.links, in_flight.queue)
        if any(self._users[link] for link in in_flight.links):
            self._share(in_flight)
            return False
        self._lazy[in_flight] = None
        return True

    def release(self, in_flight: CollectiveInFlight) -> None:
        """The collective no longer needs its links."""
        self._lazy.pop(in_flight, None)

    def _wake(self, links, queue=None):
        for in_flight in [c for c in self._lazy if not c.links.isdisjoint(links)]:
            if queue is not None and in_flight.queue == queue:
                continue
            self._share(in_flight)
            del self._lazy[in_flight]
            in_flight.wake()

    def _share(self, in_flight):
        """Note that a collective shares links with others. Represented ranks have unknown links."""
        if self.are_mirrored:
            raise PlacesDiffer(
                f"with alike= and more than 1,024 ranks, one rank calls {in_flight.kind} for all "
                "ranks that have the same local rank. No other message may use the links of "
                f"this {in_flight.kind}, but here another message uses them: give the cluster "
                "direct_cards=True, or simulate at most 1,024 ranks"
            )

    def absorb(self, network: Network, on_end: Callable[[Transfer], None]) -> None:
        """Take over the transfers of another network. ``on_end`` gets all their ends."""
        for transfer in self.network.absorb(network, self.scheduler.now_s):
            self._note(transfer, on_end)

    def plan(self, members: tuple[int, ...], call: Any, nbytes: int | np.ndarray) -> Plan:
        """The `Plan` of a collective: ``nbytes`` in the sense of `collectives`."""
        root = None if call.peer is None else members.index(call.peer)
        sizes = nbytes if isinstance(nbytes, int) else nbytes.tobytes()
        key = members, call.kind, sizes, call.itemsize, root
        if key not in self._plans:
            made = self._options.schedule(
                call.kind,
                len(members),
                nbytes,
                root=root or 0,
                itemsize=call.itemsize,
                nodes=self.topology.node_of[list(members)],  # type: ignore[arg-type]
                link=self.topology.cluster.inter,
            )
            way = self._way_of(made, members)
            links = self._links_of(made, way, members)
            are_own = self._are_private or max(links, default=0) < self._first_shared
            if way.cards > 1 and call.kind == "reduce":
                are_own = False  # it goes the other way: others cross a node's cards
            self._plans[key] = Plan(made, way, links, are_own and not self._has_eager(made))
        return self._plans[key]

    def _way_of(self, made, members):
        """One object for a group, so that all its rings have the same order."""
        way = made.way(self.topology, members)
        return self.topology if way is self.topology else self._ways.setdefault(members, way)

    def _has_eager(self, made):
        return any((round_.nbytes <= self.eager_limit_bytes).any() for round_ in made.rounds)

    def _links_of(self, made, way, members):
        ranks = np.array(members)
        ends = {(id(round_.src), id(round_.dst)): round_ for round_ in made.rounds}
        paths = [way.paths(ranks[round_.src], ranks[round_.dst]) for round_ in ends.values()]
        links = np.unique(np.concatenate([np.empty(0, int), *(path.ravel() for path in paths)]))
        return frozenset(links.tolist()) - {len(way.link_bandwidth_Bps) - 1}

    def new_wire(self, kind: str, group: Group) -> WireLog | None:
        """The log for the messages of a collective, or None."""
        if self.wire is None:
            return None
        self.wire.append(WireLog(kind, group))
        return self.wire[-1]


class CollectiveInFlight:
    """One collective of one group. simlib times it as members enter, and reports to each member.

    Parameters
    ----------
    transfers : Transfers
    plan : Plan
    members : tuple of int
        Ranks of the world, by position.
    on_through : callable
        simlib calls ``on_through(position, end_s)`` when a member has done its part.
    wire : WireLog or None
        The log that gets each message, when all members have done their parts.
    on_failed : callable, optional
        simlib calls ``on_failed(position, dead, time_s)`` for a member that needs a dead member.
    queue : object, optional
        An object. Collectives with the same object are begun by each member one after the other.
    """

    def __init__(
        self,
        transfers: Transfers,
        plan: Plan,
        members: tuple[int, ...],
        on_through: Callable[[int, float], None],
        wire: WireLog | None = None,
        on_failed: Callable[[int, int, float], None] | None = None,
        queue: Any = None,
    ) -> None:
        self._transfers = transfers
        self._plan = plan
        self._schedule = plan.schedule
        self._members = members
        self.links, self.kind = plan.links, plan.schedule.kind
        self._way = plan.way if plan.way.cards > 1 else None
        self.queue = (queue, plan.way) if plan.are_links_own and queue else None
        self._on_through = on_through
        self._on_failed = on_failed
        self._wire = wire
        self._has_lost = False
        self._entered: dict[int, float] = {}
        self._through: set[int] = set()
        self._live: Messages | None = None
        self._is_lazy = False
        self._solution = 0

    def enter(self, position: int, time_s: float) -> None:
        """A member begins. The times of calls never decrease."""
        scheduler = self._transfers.scheduler
        first = not self._entered
        self._entered[position] = time_s
        if first and not self._has_lost:
            self._is_lazy = self._transfers.claim(self)
            if self._is_lazy and self._schedule.kind in LEAVE_EARLY:
                scheduler.when_quiet(max(time_s, scheduler.now_s), self._wake_unless_all_came)
        if not self._is_lazy:
            self._messages().enter(position, max(time_s, scheduler.now_s))
        elif len(self._entered) == self._schedule.n:
            self._solve()

    def _messages(self):
        if self._live is None:
            device = self._transfers.topology.cluster.device
            reduce_Bps = device.reduce_Bps if device else inf
            self._live = Messages(
                self._schedule,
                self._members,
                Tell(self._tell_soon, self._fail_soon),
                reduce_Bps,
                self._wire,
                self._transfers.eager_limit_bytes,
            )
            self._go_live()
        return self._live

    def _go_live(self):
        send = partial(self._transfers.send, way=self._way)
        self._live.go_through(send, self._transfers.scheduler.at)

    def member_died(self, position: int, time_s: float) -> None:
        """A member is dead. Members that need it fail, now or when they reach its message."""
        self._has_lost = True
        self._go_on_singly()
        self._messages().member_died(position, time_s)

    def member_left(self, position: int) -> None:
        """A member has given up the collective. Members that need this member wait."""
        self._go_on_singly()
        self._through.add(position)
        self._messages().member_left(position)

    def _go_on_singly(self):
        """From now on continue message by message, even if no other transfer needs the links."""
        if self._is_lazy:
            self._transfers.release(self)
            self.wake()

    def _wake_unless_all_came(self):
        if len(self._entered) < self._schedule.n:
            self._go_on_singly()

    def _solve(self):
        """All members have arrived, and these links are free: time all messages at once."""
        ends, wire = self._ends()
        self._solution += 1
        solution = self._solution

        def through(position):
            if solution == self._solution:
                self._tell(position, ends[position])

        def over():
            if solution == self._solution and self._is_lazy:
                self._is_lazy = False
                self._transfers.release(self)
                if wire is not None:
                    self._wire.add_all(wire)

        # Over before the last are told: they may begin the next collective on these links.
        self._transfers.scheduler.at(max(ends), over)
        for position, end_s in enumerate(ends):
            self._transfers.scheduler.at(end_s, lambda position=position: through(position))

    def _ends(self):
        """When each member has done its part, and the messages if the caller wants them."""
        starts = [self._entered[position] for position in range(self._schedule.n)]
        solve = partial(
            time_of,
            self._schedule,
            self._transfers.topology,
            list(self._members),
            eager_limit_bytes=self._transfers.eager_limit_bytes,
        )
        if self._wire is not None:
            ends, wire = solve(np.array(starts), expand=True)
            return ends.tolist(), wire
        if min(starts) < max(starts):
            return solve(np.array(starts)).tolist(), None
        if self._plan.lasts_s is None:
            self._plan.lasts_s = solve(np.zeros(len(starts))).tolist()
        return [starts[0] + seconds for seconds in self._plan.lasts_s], None

    def _tell_soon(self, position, end_s):
        """Report a member's end as a separate event, because it may begin a collective on these
        links."""
        self._transfers.scheduler.at(end_s, lambda: self._tell(position, end_s))

    def _fail_soon(self, position, dead, time_s):
        """Report a failure after all other events of this moment, so that others begin what they
        can."""

        def tell():
            if position not in self._through:
                self._through.add(position)
                self._live.member_left(position)
                self._on_failed(position, dead, time_s)

        self._transfers.scheduler.when_quiet(time_s, tell)

    def _tell(self, position, end_s):
        if position not in self._through:
            self._through.add(position)
            self._on_through(position, end_s)

    def wake(self) -> None:
        """Another transfer needs these links: continue message by message from here."""
        self._is_lazy = False
        self._solution += 1
        transfers, live = self._transfers, self._messages()
        past = Past(transfers.topology)
        live.go_through(partial(past.send, way=self._way), past.at)
        for position, time_s in sorted(self._entered.items(), key=lambda item: item[1]):
            past.advance(time_s)
            live.enter(position, time_s)
        past.advance(transfers.scheduler.now_s)
        self._go_live()
        transfers.absorb(past.network, live.arrived)
        for time_s, _, action in sorted(past.notes):
            transfers.scheduler.at(time_s, action)


class Channel:
    """The collectives of one group. A member begins a collective when it has ended the one before.

    This order is the communication clock of the group. A member may have posted several collectives
    (DDP does this) while its compute clock advances.
    """

    def __init__(self, simulation: Any, name: str, members: tuple[int, ...]) -> None:
        self.members = members
        self.group = Group(name, members)
        self._twins = simulation.twins(members) or {}
        is_rehearsal = simulation.classes is not None
        self._enter_together = {} if is_rehearsal else self._twins  # in a rehearsal only who runs
        self._stand_in = {
            one: at for at, all_ in self._enter_together.items() for one in (at, *all_)
        }
        self._present = len(self._twins) or len(members)
        self._simulation = simulation
        self._here: list[int] = []
        self._meetings: dict[int, Meeting] = {}  # number -> Meeting, until all members have left it
        self._posted = [0] * len(members)
        self._ended = [0] * len(members)
        self._free_s = [0.0] * len(members)
        self._reached: dict[tuple[int, int], float] = {}  # before it was a member's turn -> when
        self._dead: set[int] = set()  # positions, where survivors go on

    def gather(self, rank: int) -> None:
        """Let a rank wait until all members have arrived, when the group is made."""
        if self._simulation.scripts is not None:
            script = self._simulation.scripts[rank]
            script.add("gather", script.group(self.group))
        if not self.is_last_here(rank):
            self._simulation.scheduler.block(rank)

    def is_last_here(self, rank: int) -> bool:
        """Like `gather`, for a rank without a thread. Returns whether all members have arrived."""
        scheduler = self._simulation.scheduler
        self._here.append(rank)
        if len(self._here) < self._present:
            return False
        moment = max(scheduler.clocks[member] for member in self._here)
        for member in self._here[:-1]:
            scheduler.ready(member, moment)
        self._simulation.time.catch_up(rank, moment)
        return True

    def post(self, position: int, call: Call) -> Meeting:
        """A member calls its next collective. It begins the collective after the earlier ones."""
        number = self.join(position, call)
        meeting = self._meetings[number]
        self.reach(position, number, self._simulation.scheduler.clocks[call.rank])
        return meeting

    def meeting(self, number: int) -> Meeting:
        """The collective with this number, as long as some member has not ended it."""
        return self._meetings[number]

    def join(self, position: int, call: Call) -> int:
        """A member calls its next collective; `reach` begins it. Returns its number."""
        number = self._posted[position]
        self._posted[position] += 1
        meeting = self._meetings.get(number)
        if meeting is None:
            meeting = self._meetings[number] = Meeting(len(self.members), self._present)
        mode = self._simulation.dispatch_modes[call.rank]
        uncounted(mode, meeting.join, position, call, self._twins.get(position, ()))
        if call.request.limit_s is not None:
            call.request.give_up = partial(self._give_up, position, meeting)
        return number

    def reach(self, position: int, number: int, time_s: float) -> None:
        """A member may begin a collective from this moment on, after its earlier collectives."""
        if number == self._ended[position] and not self._meetings[number].is_held:
            self._enter(position, self._meetings[number], time_s)
        else:
            self._reached[position, number] = time_s

    def member_died(self, position: int, time_s: float) -> None:
        """A member is dead. It joins no collective, and the collectives under way lose it."""
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
        if meeting.in_flight is None and call.kind != "all_to_all":
            meeting.in_flight = self._begin(meeting, call)
            for dead in sorted(self._dead):
                meeting.in_flight.member_died(dead, time_s)
        if meeting.in_flight is not None:
            self._enter_all(meeting, position, time_s)
            return
        if self._dead:
            self._fail(position, meeting, min(self._dead), time_s)
            return
        meeting.entries[position] = time_s
        if len(meeting.entries) == self._present:
            meeting.in_flight = self._begin(meeting, call)
            for position, time_s in sorted(meeting.entries.items(), key=lambda item: item[1]):
                self._enter_all(meeting, position, time_s)

    def _enter_all(self, meeting, position, time_s):
        """A member enters, together with the members that it represents."""
        for one in (position, *self._enter_together.get(position, ())):
            meeting.in_flight.enter(one, time_s)

    def _begin(self, meeting, call):
        transfers = self._simulation.transfers
        if self._simulation.classes is not None:
            return Rehearsed(transfers.scheduler, meeting, self._present, self._through_of(meeting))
        return CollectiveInFlight(
            transfers,
            transfers.plan(self.members, call, _nbytes_of(meeting, call, len(self.members))),
            self.members,
            self._through_of(meeting),
            transfers.new_wire(call.kind, self.group),
            lambda position, dead, time_s: self._fail(position, meeting, dead, time_s),
            self,
        )

    def _through_of(self, meeting):
        """A function ``through(position, end_s)`` for a member that has ended a collective."""
        if not self._stand_in:
            return lambda position, end_s: self._through(position, meeting, end_s)
        ends: dict[int, float] = {}

        def through(position, end_s):
            at = self._stand_in[position]
            if not isclose(ends.setdefault(at, end_s), end_s, rel_tol=1e-9, abs_tol=1e-12):
                raise PlacesDiffer(_not_at_once(meeting, self.members, at, position))
            if at == position:
                self._through(position, meeting, end_s)

        return through

    def _fail(self, position, meeting, dead, time_s):
        """A member's part of a collective needs a dead member."""
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
        """A member has waited too long for a collective after it had begun it."""
        if meeting.in_flight is not None:
            meeting.in_flight.member_left(position)
        elif meeting.entries.pop(position, None) is None:
            return
        self._through(position, meeting, self._simulation.scheduler.now_s)

    def _through(self, position, meeting, end_s):
        """A member has ended a collective. It begins the next one if it has already called that
        one."""
        number = self._ended[position]
        self._free_s[position] = end_s
        call = meeting.calls[position]
        request, call.request = call.request, None  # it has the tensors, and is the rank's own
        request.finish(end_s)
        meeting.left += 1
        if meeting.left == self._present:
            meeting.in_flight = None  # which refers to the meeting: let go of the tensors
            del self._meetings[number]
        number = self._ended[position] = number + 1
        reached_s = self._reached.pop((position, number), None)
        if reached_s is not None and not self._meetings[number].is_held:
            self._enter(position, self._meetings[number], max(reached_s, end_s))


class Rehearsed:
    """A collective of a rehearsal. Members wait for each other, but no other time passes."""

    def __init__(self, scheduler: Scheduler, meeting: Meeting, present: int, through: Any) -> None:
        self._scheduler, self._meeting, self._through = scheduler, meeting, through
        self._present = present
        self._entered: list[int] = []

    def enter(self, position: int, time_s: float) -> None:
        """A member begins. It has done its part at once if it needs no other member."""
        call = self._meeting.calls[position]
        if call.kind in LEAVE_EARLY and not call.has_data:
            self._tell(position, time_s)
            return
        self._entered.append(position)
        if len(self._entered) == self._present:
            for one in self._entered:
                self._tell(one, max(time_s, self._scheduler.now_s))

    def _tell(self, position, time_s):
        self._scheduler.at(time_s, partial(self._through, position, time_s))


def _not_at_once(meeting, members, at, position):
    call = meeting.calls[at]
    return (
        f"alike= treats ranks {members[at]} and {members[position]} as equal, but they end "
        f"{call.kind} of {call.nbytes:,} bytes at different moments, because their places differ. "
        'Choose an algorithm in which all places are equal, such as all_reduce="ring". Or place '
        "the group on one node, or one rank on each node. Or simulate at most 1,024 ranks"
    )


def _nbytes_of(meeting, call, n):
    """Bytes as `collectives` counts them: bytes of the vector, or of all parts together."""
    if call.kind in ("broadcast", "reduce", "all_reduce", "reduce_scatter", "barrier"):
        return call.nbytes
    if call.kind in ("all_gather", "gather"):
        return call.nbytes * n
    if call.kind == "scatter":
        return call.nbytes if call.peer == call.rank else call.nbytes * n
    return np.array([other.splits[0] for other in meeting.calls]) * call.itemsize
