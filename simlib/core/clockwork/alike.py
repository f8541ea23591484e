"""Classes of equal ranks. Two ranks of each class run, and the first represents all others.

Without data, the program of a rank does not depend on other ranks' messages. So the program is a
list of steps, a `Script`. A step is a kernel that takes some seconds, an op of torch.distributed,
or an event of a stream. `players` goes through the script for every rank of the class. A
*rehearsal* is the simulation that records the scripts. In it, communication takes no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..model.errors import InvalidCallError
from ..model.words import ranks_in_words
from .streams import Extent, Moment, Stream, Streams


class PlacesDiffer(InvalidCallError):
    """A rank and the ranks that it represents would not do the same at the same time."""


TICK_S = 1e-9
"""The time of a step in a rehearsal, so that the moments before and after it differ."""


@dataclass(frozen=True)
class Classes:
    """The classes of ranks that count as equal.

    Attributes
    ----------
    key_of : tuple of int
        The class of each rank.
    """

    key_of: tuple[int, ...]

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """The ranks of each class, in order."""
        found = defaultdict(list)
        for rank, key in enumerate(self.key_of):
            found[key].append(rank)
        return dict(found)

    @cached_property
    def running(self) -> tuple[int, ...]:
        """The ranks that run: the first and the last rank of each class. Both must do the same."""
        ends = {one for ranks in self.members.values() for one in (ranks[0], ranks[-1])}
        return tuple(sorted(ends))

    def first(self, rank: int) -> int:
        """The rank that runs and represents this rank."""
        return self.members[self.key_of[rank]][0]

    def split(self, place_of: Sequence[int]) -> Classes:
        """Finer classes. Ranks of such a class also have equal places in a group."""
        numbers: dict[tuple, int] = {}
        pairs = zip(self.key_of, place_of, strict=True)
        return Classes(tuple(numbers.setdefault(pair, len(numbers)) for pair in pairs))


def twins(ranks: tuple[int, ...], present: Any, key_of: Sequence[int]) -> dict[int, list[int]]:
    """For each present member of a group, the members for which it also enters a collective.

    Parameters
    ----------
    ranks : tuple of int
        The group.
    present : set of int
        Ranks that enter by themselves.
    key_of : sequence of int
        By rank, a key. Ranks with equal keys may represent each other.

    Returns
    -------
    dict of int to list of int
        Position of a present member -> positions that it represents.
    """
    found: dict[int, list[int]] = {at: [] for at, rank in enumerate(ranks) if rank in present}
    standing = {key_of[ranks[at]]: at for at in reversed(found)}
    for at, rank in enumerate(ranks):
        if at not in found:
            if key_of[rank] not in standing:
                raise InvalidCallError(
                    f"alike= treats rank {rank} as equal to a rank outside the group of "
                    f"{ranks_in_words(ranks)}, but rank {rank} is in this group: give alike= a "
                    "function that distinguishes these two ranks"
                )
            found[standing[key_of[rank]]].append(at)
    return found


def sisters(lists: Sequence[tuple[int, ...]], ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The groups that belong to a group: neighbours in the list, of the same size, with other
    ranks.

    Parameters
    ----------
    lists : sequence of tuple of int
        The ranks in each call of `new_group`, in order; every rank makes all groups.
    ranks : tuple of int
        The group, one of these lists.
    """
    if ranks not in lists:
        return [ranks]
    at = lists.index(ranks)
    family, seen = [ranks], set(ranks)
    for step in (1, -1):
        other = at + step
        while 0 <= other < len(lists) and len(lists[other]) == len(ranks):
            if not seen.isdisjoint(lists[other]):
                break
            seen.update(lists[other])
            family.append(lists[other])
            other += step
    return family


@dataclass
class Step:
    """The next step of a rank.

    Attributes
    ----------
    what : str
        ``"collective"``, ``"send"``, ``"recv"``, ``"wait"``, ``"gather"``, ``"leave"``. A device
        with streams also has ``"new"``, ``"current"``, ``"record"``, ``"wait on"``, ``"hold"``, and
        ``"open"`` and ``"close"`` around a named piece.
    args : tuple
    gap_s : float
        Seconds for which the rank itself worked before the step.
    kernels : list of (float, float)
        The kernels that the rank launched before the step: the moment since the last step, and the
        seconds of the device.
    start : int
        The op's place in the log. 0 if the step is not an op.
    clock_s : float
        The rank's clock in the rehearsal.
    """

    what: str
    args: tuple
    gap_s: float
    kernels: list
    start: int
    clock_s: float

    @cached_property
    def chain(self) -> tuple[float, float]:
        """Several kernels as one kernel: its seconds, and the shortest time after the step
        before."""
        whole_s = least_s = 0.0
        for launched_s, seconds in self.kernels:
            whole_s += seconds
            least_s = max(least_s, launched_s) + seconds
        return whole_s, least_s


class Script:
    """The steps of one rank, in order.

    Parameters
    ----------
    rank : int
    clocks : list of float
        The clocks of all ranks, in the rehearsal.
    """

    def __init__(self, rank: int, clocks: list[float]) -> None:
        self.rank = rank
        self.steps: list[Step] = []
        self.groups: list[tuple[int, ...]] = []
        self._clocks = clocks
        self._group_numbers: dict[Any, int] = {}
        self._gap_s = 0.0
        self._kernels: list = []
        self._events = 0

    def pass_time(self, seconds: float) -> None:
        """Note that the rank computes or sleeps."""
        self._gap_s += seconds

    def launch(self, launch_s: float, seconds: float) -> None:
        """Note that the rank puts a kernel into its current stream."""
        self._gap_s += launch_s
        self._kernels.append((self._gap_s, seconds))

    def group(self, group: Any) -> int:
        """The number of a group (`model.trace.Group`) in `groups`."""
        number = self._group_numbers.get(group)
        if number is None:
            number = self._group_numbers[group] = len(self.groups)
            self.groups.append(group.ranks)
        return number

    def add(self, what: str, *args: Any, start: int = 0) -> None:
        """Note a step of the rank."""
        self.steps.append(
            Step(what, args, self._gap_s, self._kernels, start, self._clocks[self.rank])
        )
        self._gap_s, self._kernels = 0.0, []
        self._clocks[self.rank] += TICK_S

    def ends_with(self, what: str, number: int | None) -> bool:
        """Whether the last step was this step of an event, and the rank has done nothing since."""
        if not self.steps or self._gap_s or self._kernels:
            return False
        return (self.steps[-1].what, self.steps[-1].args[-1:]) == (what, (number,))

    def take_back(self) -> None:
        """Remove the last step."""
        step = self.steps.pop()
        self._gap_s, self._kernels = step.gap_s, step.kernels

    def new_event(self) -> int:
        """A number for a moment that is not the end of an op. Ops use their places in the log."""
        self._events -= 1
        return self._events

    def ordinal(self, number: int) -> int:
        """The number of earlier groups with the same ranks as the group of this number."""
        return self.groups[:number].count(self.groups[number])


class RecordedStream(Stream):
    """A stream in a rehearsal. It writes its waits into the script."""

    def __init__(self, scheduler: Any, script: Script, number: int) -> None:
        super().__init__(scheduler)
        self.script, self.number = script, number
        self.is_empty = True  # since the rank has waited for it

    def launch(self, seconds: float, launched_s: float, extent: Extent | None = None) -> None:
        self.is_empty = False
        super().launch(seconds, launched_s, extent)

    def carry(self, *op: Any) -> None:
        self.is_empty = False
        super().carry(*op)

    def wait(self, moment: Moment) -> None:
        if moment.number is not None:
            self.is_empty = False
            self.script.add("wait on", self.number, moment.number)
        super().wait(moment)


class RecordedStreams(Streams):
    """The streams of a rank in a rehearsal. They write the rank's calls into the script."""

    def __init__(self, simulation: Any, rank: int, launch_s: float, script: Script) -> None:
        self.script = script
        self._current: Any = None
        self._is_posting = False
        super().__init__(simulation, rank, launch_s)

    @property  # type: ignore[override]
    def current(self) -> Stream:
        return self._current

    @current.setter
    def current(self, stream: Any) -> None:
        if self._current not in (None, stream):
            self.script.add("current", stream.number)
        self._current = stream

    def new(self) -> Stream:
        if self.all and not self._is_posting:
            self.script.add("new")
        self.all.append(RecordedStream(self._simulation.scheduler, self.script, len(self.all)))
        return self.all[-1]

    def launch(self, seconds: float, factor: float = 1.0) -> None:
        self.script.launch(self._launch_s * factor, seconds * factor)
        super().launch(seconds, factor)

    def post(self, request: Any, of: Any, enter: Any) -> None:
        self._is_posting = True  # an op's own stream is made wherever the op is posted
        super().post(request, of, enter)
        self._is_posting = False
        request.moment.number = request.start

    def record(self, stream: Any = None) -> Moment:
        moment = super().record(stream)
        moment.number = self.script.new_event()
        of: Any = stream or self.current
        self.script.add("record", of.number, moment.number)
        return moment

    @contextmanager
    def extent(self) -> Iterator[Extent]:
        number = self.script.new_event()
        self.script.add("open", number)
        try:
            with super().extent() as extent:
                extent.number = number
                yield extent
        finally:
            self.script.add("close", number)

    def hold(self, moment: Moment) -> None:
        stream: Any = moment.stream
        is_whole = self.script.ends_with("record", moment.number)
        if is_whole and stream.is_empty:
            self.script.take_back()  # of what ranks do here, some may do more of than others
        else:
            self.script.add("hold", moment.number)
        stream.is_empty = stream.is_empty or is_whole
        super().hold(moment)
