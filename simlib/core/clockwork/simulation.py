"""One simulation. It connects the ranks' ops, the scheduler, the matcher's rules and the
network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..model.cluster import Topology
from ..model.errors import InvalidCallError
from ..model.trace import Group, WireMessage
from .alike import Classes, RecordedStreams, Script, twins
from .collective_in_flight import Channel, Transfers
from .mailbox import Mailbox
from .network import Network
from .scheduler import Scheduler, VirtualTime
from .streams import Streams

if TYPE_CHECKING:
    from .simulation_options import Options


class Simulation:
    """The objects that all simulated ranks share.

    Parameters
    ----------
    topology : Topology
    options : Options
    classes : Classes, optional
        In a rehearsal, only the ranks that run for these classes take part. Each rank writes its
        `Script`, and communication takes no time.
    mirror : tuple of (set of int, sequence of int), optional
        The ranks that take part, and a key for each rank. Ranks with equal keys may represent each
        other in collectives.
    """

    def __init__(
        self,
        topology: Topology,
        options: Options,
        classes: Classes | None = None,
        mirror: tuple | None = None,
    ) -> None:
        self.topology = topology
        self.options = options
        self.classes = classes
        self.taking_part: Any = range(topology.world_size)
        self._stand_for: Any = None
        if classes is not None:
            self.taking_part, self._stand_for = set(classes.running), classes.key_of
        elif mirror is not None:
            self.taking_part, self._stand_for = mirror
        self.unlike: tuple[tuple[int, ...], int | None] | None = None
        network = Network(topology)
        self.scheduler = Scheduler(topology.world_size, network, options.seed, options.begin_s)
        is_measured = options.compute == "measured"
        self.time = VirtualTime(self.scheduler, options.slow, options.kill, is_measured)
        self.transfers = Transfers(topology, self.scheduler, options)
        self.transfers.are_mirrored = mirror is not None
        device = topology.cluster.device
        self.streams: list[Any] | None = None
        self.scripts: Any = None
        has_streams = device is not None and device.asynchronous
        launch_s = 0.0 if device is None else device.launch_s
        if classes is not None:
            self.scripts = self._of_those(lambda rank: Script(rank, self.scheduler.clocks))
        if has_streams:
            self.streams = self._of_those(lambda rank: self._new_streams(rank, launch_s))
        self.time.scripts, self.time.streams = self.scripts, self.streams
        self._channels: dict[tuple, Channel] = {}
        self._mailboxes: dict[tuple, Mailbox] = {}
        self._futures: list[list] = [[] for _ in range(topology.world_size)]
        self.unmet: dict[Any, Callable[[], None]] = {}  # receives whose ranks wait for data
        self.deaths: dict[
            int, float
        ] = {}  # rank -> when survivors see that it has died, where they go on
        self.ranks = None
        self.dispatch_modes = [None] * topology.world_size

    def again(self, mirror: tuple | None) -> Simulation:
        """A new simulation of the same ranks."""
        return Simulation(self.topology, self.options, mirror=mirror)

    def _new_streams(self, rank, launch_s):
        if self.scripts is None:
            return Streams(self, rank, launch_s)
        return RecordedStreams(self, rank, launch_s, self.scripts[rank])

    def _of_those(self, make):
        """A list by rank: an object for each rank that takes part, and None for the other ranks."""
        ranks = range(self.topology.world_size)
        return [make(rank) if rank in self.taking_part else None for rank in ranks]

    def twins(self, ranks: tuple[int, ...]) -> dict[int, list[int]] | None:
        """By position in a group: the members that a member represents in collectives, or None."""
        if self._stand_for is None:
            return None
        return twins(ranks, self.taking_part, self._stand_for)

    def refuse_in_rehearsal(self, what: str, instead: str) -> None:
        """Refuse a call whose answer depends on the time of communication."""
        if self.classes is not None:
            raise InvalidCallError(
                f"with alike=, ranks first run as if communication took no time, but {what} "
                f"depends on the time of communication: {instead}, or leave alike= out to "
                "simulate all ranks"
            )

    def may_meet(self, rank: int, peer: int) -> bool:
        """Whether a message between these two ranks is a message between their classes."""
        key_of = self._stand_for
        return peer in self.taking_part and key_of[rank] != key_of[peer]

    def part_with(self, rank: int, ranks: tuple[int, ...], root: int | None = None) -> None:
        """Ranks of a class have different roles in a group. End the rehearsal, to divide the class.

        Parameters
        ----------
        rank : int
            The rank that has found this.
        ranks : tuple of int
            The group.
        root : int, optional
            The position of a root that does not run. Without a root, the reason is that ranks of a
            class send to each other.
        """
        self.unlike = ranks, root
        self.scheduler.stop()
        self.scheduler.block(rank)

    def die(self, rank: int, detection_s: float) -> None:
        """A rank is dead from now on. Ops that need the rank fail when others notice the death."""
        time_s = self.scheduler.now_s
        self.deaths[rank] = time_s + detection_s
        for mailbox in self._mailboxes.values():
            if rank in mailbox.members:
                mailbox.member_died(mailbox.members.index(rank), time_s)
        for channel in self._channels.values():
            if rank in channel.members:
                channel.member_died(channel.members.index(rank), time_s)

    def when_seen(self, dead: int, time_s: float, action: Callable[..., Any]) -> None:
        """Call ``action(time_s)`` at the moment at which other ranks notice a rank's death."""
        seen_s = self.deaths[dead]
        if seen_s > time_s:
            self.scheduler.at(seen_s, partial(action, seen_s))
        else:
            action(time_s)

    def work_of_streams(self) -> list[list[tuple]]:
        """By rank and stream: kernels and ops, see `Stream`; empty without streams."""
        return [
            [(stream.kernels, stream.ops) for stream in streams.all] if streams is not None else []
            for streams in self.streams or ()
        ]

    # Messages and collectives

    def mailbox(self, group: Group, dst: int, tag: int) -> Mailbox:
        """The `Mailbox` to a position of a group, for one tag."""
        key = group, dst, tag
        if key not in self._mailboxes:
            self._mailboxes[key] = Mailbox(self, group.ranks, dst)
        return self._mailboxes[key]

    def channel(self, name: str, ranks: tuple[int, ...]) -> Channel:
        """The `Channel` of a group."""
        key = name, ranks
        if key not in self._channels:
            self._channels[key] = Channel(self, name, ranks)
        return self._channels[key]

    def wire_messages(self) -> list[WireMessage] | None:
        """The messages of all collectives as `WireMessage`, by start; None if nobody wants them."""
        if self.transfers.wire is None:
            return None
        found = [message for log in self.transfers.wire for message in log.messages()]
        return sorted(found, key=lambda message: (message.start_s, message.src, message.dst))

    # C++ code that waits where nobody sees it

    def wait_for_data(self, request: Any) -> None:
        """Block until the data of an op have arrived. No time passes for the rank."""
        if not request.has_data:
            return
        rank, log = request.rank, self.time.logs[request.rank]
        clock = self.scheduler.clocks[rank]
        if request.kind == "recv":
            if request.source is not None:
                return
            self.unmet[request] = lambda: self.scheduler.ready(rank, clock)
        elif request.meeting is None or request.failure is not None:
            return
        else:
            meeting, position = request.meeting
            if meeting.has_data_for(position) and not meeting.is_held:
                return
            meeting.when_data_have_come(position, lambda: self.scheduler.ready(rank, clock))
        log.begin_hidden_wait(request.start)
        self.scheduler.block(rank)
        log.wait_failed()

    def have_met(self, request: Any) -> None:
        """A receive has found its send. Ranks that wait for the data of the receive continue."""
        if request in self.unmet:
            self.unmet.pop(request)()

    def future_taken(self, request: Any) -> None:
        """C++ code has taken the future of an op. The rank waits for the op when `backward`
        returns."""
        self._futures[request.rank].append(request)

    def forget_futures(self, rank: int) -> None:
        """`backward` has failed, so the rank does not wait for the ops that `backward` began."""
        self._futures[rank] = []

    def wait_for_futures(self, rank: int) -> None:
        """`backward` returns. The rank waits for all ops whose futures C++ code took."""
        taken, self._futures[rank] = self._futures[rank], []
        log = self.time.logs[rank]
        for request in taken:
            if self.streams is not None:
                request.wait()  # its end is written down when its stream has come so far
                continue
            log.wait_begin(request.start)
            request.wait()
            log.wait_end(request.start, request.end_s)
