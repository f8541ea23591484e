"""Time each rank of a class by the script of the rank that ran, without running the program.

The clocks, the network and the collectives are the same as in any simulation.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..model.errors import DeadlockError, InvalidCallError
from ..model.words import ranks_in_words
from .alike import PlacesDiffer, Script, Step, sisters
from .mailbox import Post
from .meetings import Call
from .scheduler import CONTROLLER
from .simulated_group import Request

if TYPE_CHECKING:
    from .simulation import Simulation

MIRRORED, FOLLOWED = 64, 1024
"""If a simulation has more ranks than the first number, only ranks that differ in class or in their
place in the node take part. If this is not exact, all ranks take part, up to the second number of
ranks. If the cluster has a backbone or uplinks, all ranks take part, because nodes share them."""


def play(
    rehearsal: Simulation, lists: Mapping[int, Sequence[tuple[int, ...]]]
) -> tuple[Simulation, dict[int, Player]]:
    """Time all ranks of a rehearsal on its cluster.

    Parameters
    ----------
    rehearsal : Simulation
        The rehearsal at its end.
    lists : dict of int to list of tuple of int
        The ranks in each call of `new_group`, for each rank that ran.

    Returns
    -------
    simulation : Simulation
        The simulation at its end.
    players : dict of int to Player
        The player of each rank. A rank that did not run has the player of the rank that represents
        it.

    Raises
    ------
    InvalidCallError
        Two ranks of one class are not equal.
    DeadlockError
        Ranks wait for each other for ever.
    """
    size = rehearsal.topology.world_size
    cluster = rehearsal.topology.cluster
    if size > MIRRORED and cluster.backbone is None and cluster.uplink is None:
        classes: Any = rehearsal.classes
        alike = classes.split(rehearsal.topology.place_in_node.tolist())
        standing = {ranks[0] for ranks in alike.members.values()}
        try:
            simulation, parts = _play(rehearsal, lists, (standing, alike.key_of))
            stand_ins = {alike.key_of[rank]: part for rank, part in parts.items()}
            return simulation, {rank: stand_ins[key] for rank, key in enumerate(alike.key_of)}
        except PlacesDiffer:
            if size > FOLLOWED:
                raise
    return _play(rehearsal, lists, None)


def _play(rehearsal, lists, mirror):
    """Do the work of `play`. ``mirror`` says which ranks take part, and which they represent."""
    classes = rehearsal.classes
    scripts: dict[int, Script] = {rank: rehearsal.scripts[rank] for rank in classes.running}
    simulation = rehearsal.again(mirror)
    parts = {}
    families = {rank: Families(script, lists[rank]) for rank, script in scripts.items()}
    for ranks in classes.members.values():
        for rank in filter(simulation.taking_part.__contains__, ranks):
            own = rank if rank in scripts else ranks[0]  # its places in the log are its own
            parts[rank] = Player(simulation, scripts[own], families[own], rank, rank in scripts)
    scheduler = simulation.scheduler
    for rank in parts:
        scheduler.ready(rank, 0.0)
    while (rank := scheduler.next_rank()) != CONTROLLER:
        parts[rank].go_on()
    if scheduler.failure is not None:
        raise scheduler.failure
    stuck = [rank for rank, part in parts.items() if part.left_s is None]
    if stuck:
        raise DeadlockError(
            "with alike=, all ranks of a class repeat the calls of the first rank of this class. "
            f"Then {ranks_in_words(stuck)} never finish: simulate a small world without alike= to "
            "see which ranks wait for which"
        )
    return simulation, parts


class Families:
    """For each group of the rank that ran, the corresponding groups of the other ranks."""

    def __init__(self, script: Script, lists: Sequence[tuple[int, ...]]) -> None:
        self._of = []
        for number, ranks in enumerate(script.groups):
            family = {rank: group for group in sisters(lists, ranks) for rank in group}
            self._of.append((family, ranks, f"group {script.ordinal(number)}"))

    def of(self, rank: int, number: int) -> tuple[str, tuple[int, ...]]:
        """Name and ranks of the rank's group that corresponds to this group of the first rank."""
        family, ranks, name = self._of[number]
        if rank not in family:
            raise InvalidCallError(
                f"alike= treats rank {rank} as equal to a rank in the group of "
                f"{ranks_in_words(ranks)}, but rank {rank} is in no group that corresponds to this "
                "group: give alike= a function that distinguishes these two ranks"
            )
        return name, family[rank]


class Player:
    """One rank that goes through the steps of its class, and stops when it has to wait.

    Parameters
    ----------
    simulation : Simulation
    script : Script
    families : Families
    rank : int
    is_shown : bool
        Whether the rank ran. If so, simlib keeps the times of its ops and of each kernel.

    Attributes
    ----------
    rank : int
    left_s : float or None
        The end of its last step.
    """

    def __init__(
        self, simulation: Simulation, script: Script, families: Families, rank: int, is_shown: bool
    ) -> None:
        self.left_s: float | None = None
        self._ops: dict[int, Request] = {}
        self._simulation = simulation
        self.rank = rank
        self._steps = script.steps
        self._families = families
        self._groups: dict[int, tuple] = {}
        self._streams: Any = None if simulation.streams is None else simulation.streams[rank]
        self._requests: dict[int, Request] = {}
        self._moments: dict[int, Any] = {}
        self._pieces: dict[int, tuple] = {}
        self._at = 0
        self._is_due = self._is_here = False
        self._is_shown = is_shown
        self._times: list[tuple[float, float, float]] = []
        self._do: dict[str, Any] = {
            "collective": self._collective,
            "send": partial(self._message, is_send=True),
            "recv": partial(self._message, is_send=False),
            "wait": self._wait,
            "gather": self._gather,
            "new": self._new,
            "current": self._current,
            "record": self._record,
            "wait on": self._wait_on,
            "hold": self._hold,
            "open": self._open,
            "close": self._close,
            "leave": lambda step: True,
        }

    def go_on(self) -> None:
        """Take steps until the rank has to wait. The scheduler calls this again when the wait is
        over."""
        scheduler, rank = self._simulation.scheduler, self.rank
        clocks, steps = scheduler.clocks, self._steps
        while self._at < len(steps):
            step = steps[self._at]
            if not self._is_due:
                self._work(step)
                self._is_due = True
            if scheduler.is_behind(clocks[rank]):
                scheduler.ready(rank, clocks[rank])
                return
            scheduler.reach(clocks[rank])
            if not self._do[step.what](step):
                return
            self._at += 1
            self._is_due = False
        self.left_s = clocks[rank]

    def _work(self, step: Step):
        clocks, rank = self._simulation.scheduler.clocks, self.rank
        begin_s = clocks[rank]
        clocks[rank] = begin_s + step.gap_s
        if self._is_shown:
            self._times.append((step.clock_s, step.gap_s, clocks[rank]))
            for launched_s, seconds in step.kernels:
                self._streams.launch_at(begin_s + launched_s, seconds)
        elif step.kernels:
            self._streams.current.launch_chain(*step.chain, begin_s)

    def _group(self, number):
        """The group, this rank's place in it, and its collectives."""
        found = self._groups.get(number)
        if found is None:
            name, ranks = self._families.of(self.rank, number)
            channel = self._simulation.channel(name, ranks)
            found = self._groups[number] = channel.group, ranks.index(self.rank), channel
        return found

    def _request(self, step):
        request = Request(self._simulation, self.rank, step.start, None)
        request.has_data = False
        if self._is_shown:
            self._ops[step.start] = request
        return request

    def _collective(self, step):
        number, terms, sizes, has_own_stream = step.args
        kind, root, reduce_op, dtype, shapes, splits = terms
        group, position, channel = self._group(number)
        request = self._request(step)
        peer = None if root is None else group.ranks[root]
        nbytes, itemsize = sizes
        call = Call(
            kind,
            self.rank,
            group,
            peer,
            reduce_op,
            dtype,
            shapes,
            splits,
            nbytes,
            itemsize,
            request,
            has_data=False,
        )
        if self._streams is None:
            channel.post(position, call)
            self._requests[step.start] = request
        else:
            request.kind = kind
            enter = partial(channel.reach, position, channel.join(position, call))
            self._post_in_stream(step, request, channel if has_own_stream else None, enter)
        return True

    def _post_in_stream(self, step, request, of, enter):
        self._streams.post(request, of, enter)
        self._moments[step.start] = self._streams.ends.pop(step.start)

    def _message(self, step, is_send):
        number, peer, tag, dtype, nbytes = step.args
        group, position, _ = self._group(number)
        simulation, request = self._simulation, self._request(step)
        src, dst = (position, peer) if is_send else (peer, position)
        is_eager = is_send and nbytes <= simulation.options.eager_limit_bytes
        clock = simulation.scheduler.clocks[self.rank]
        post = Post(src, dst, dtype, nbytes, request, None, clock, is_eager=is_eager)
        mailbox = simulation.mailbox(group, dst, tag)
        post.is_here, request.kind = self._streams is None, step.what
        mailbox.send(post) if is_send else mailbox.receive(post)
        if self._streams is None:
            self._requests[step.start] = request
        else:
            enter = mailbox.send_is_here if is_send else mailbox.receive_is_here
            of = group, "send" if is_send else "receive", src, dst
            self._post_in_stream(step, request, of, partial(enter, post))
        return True

    def _wait(self, step):
        request = self._requests[step.start]
        if request.end_s is None:
            request.await_end()
            return False
        self._simulation.time.catch_up(self.rank, request.end_s)
        return True

    def _gather(self, step):
        if self._is_here:
            self._is_here = False
            return True
        channel = self._group(step.args[0])[2]
        self._is_here = not channel.is_last_here(self.rank)
        return not self._is_here

    def _new(self, step):
        self._streams.new()
        return True

    def _current(self, step):
        self._streams.current = self._streams.all[step.args[0]]
        return True

    def _record(self, step):
        stream, number = step.args
        self._moments[number] = self._streams.record(self._streams.all[stream])
        return True

    def _wait_on(self, step):
        stream, number = step.args
        if number in self._moments:  # else it was taken back: nothing was in the stream
            self._streams.all[stream].wait(self._moments[number])
        return True

    def _open(self, step):
        if self._is_shown:
            piece = self._streams.extent()
            self._pieces[step.args[0]] = piece, piece.__enter__()
        return True

    def _close(self, step):
        if self._is_shown:
            self._pieces[step.args[0]][0].__exit__(None, None, None)
        return True

    def _hold(self, step):
        moment = self._moments.get(step.args[0])
        if moment is None:  # it was taken back: the rank had waited for all before it
            return True
        if moment.time_s is None:
            moment.awaited().await_end()
            return False
        self._simulation.time.catch_up(self.rank, moment.time_s)
        return True

    def ends(self) -> dict[int, float | None]:
        """The end of each op, by its place in the log."""
        return {start: request.end_s for start, request in self._ops.items()}

    def extents(self) -> dict[int, Any]:
        """The start and end of each piece's work, by its number in the script."""
        return {number: extent for number, (_, extent) in self._pieces.items()}

    def when(self, clock_s: float) -> float:
        """Convert a time of the rank's clock in the rehearsal to a time of this rank."""
        at = bisect.bisect(self._times, (clock_s, float("-inf")))
        if at == len(self._times):
            return self._times[-1][2]
        known_s, gap_s, now_s = self._times[at]
        return now_s - min(known_s - clock_s, gap_s)
