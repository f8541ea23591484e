"""One collective to time, with the values that solvers need. Also helpers of all models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TypeAlias

import numpy as np

from ..collectives.schedules import split
from ..collectives.sharing import fair_rates, pair_twice
from ..model.cluster import Topology
from ..model.errors import InvalidCallError, as_int, check_count, check_number
from ..model.words import aligned

Placement: TypeAlias = str | list[int]
"""The node of each rank, as in `Topology`."""
Counts: TypeAlias = int | Sequence[int] | np.ndarray
"""One number, or several."""
Seconds: TypeAlias = float | Sequence[float] | np.ndarray
"""One number for all ranks, or one for each rank."""


def count_of(name: str, value: float, low: int = 1) -> int:
    """Check that a number is whole and at least ``low``. It may be a float such as 25e6."""
    count = as_int(name, value)
    check_count(name, count, low)
    return count


class Tabled:
    """A mixin for results, which Python shows as the plain text of ``table()``."""

    def table(self) -> str:
        """The result as plain text."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.table()


def table_text(lines: Sequence[str], rows: Sequence[tuple[str, ...]], most: int | None = 20) -> str:
    """Some lines, and below these a table with a head and at most ``most`` rows."""
    end = len(rows) if most is None else most + 1
    left_out = len(rows) - end
    more = [f"... and {left_out:,} more"] * (left_out > 0)
    return "\n".join([*lines, "", *aligned(rows[:end]), *more])


@dataclass(frozen=True, eq=False)
class Case:
    """One collective of all ranks of a topology.

    Attributes
    ----------
    kind, algorithm : str
    topology : Topology
    nbytes : int
        Bytes, as `collectives.schedule` counts them.
    starts : ndarray of float, shape (n,)
    itemsize : int
    root : int
    chunks : int
        Number of chunks, for the algorithms in `collectives.schedules.CHUNKS`. For other algorithms
        it is 1.
    last_only : bool
        Whether the caller needs only the last moment of all ranks.
    eager_limit_bytes : float
        As for `collectives.timing.time_of`.
    """

    kind: str
    algorithm: str
    topology: Topology
    nbytes: int
    starts: np.ndarray
    itemsize: int = 4
    root: int = 0
    chunks: int = 1
    last_only: bool = False
    eager_limit_bytes: float = -1

    @property
    def n(self) -> int:
        """Number of ranks."""
        return self.topology.world_size

    @property
    def envelope_bytes(self) -> int:
        """Bytes that every message carries in addition to its data."""
        return self.topology.cluster.envelope_bytes

    @property
    def reduce_Bps(self) -> float:
        """Bytes per second at which a rank adds received data."""
        device = self.topology.cluster.device
        return device.reduce_Bps if device else inf

    @property
    def start_together(self) -> bool:
        """Whether all ranks start at the same moment."""
        return bool((self.starts == self.starts[0]).all())

    @property
    def may_be_eager(self) -> bool:
        """Whether some message of an algorithm of `SOLVERS` may be small enough to be eager."""
        smallest = 0 if self.kind == "barrier" else self.nbytes // self._most_parts
        return self.eager_limit_bytes >= smallest - smallest % self.itemsize

    @property
    def _most_parts(self):
        """The largest number of parts into which an algorithm cuts the bytes."""
        if self.algorithm == "ring_segmented":
            return self.n * self.chunks
        if self.algorithm == "double_tree":
            return 2 * self.chunks
        if self.algorithm == "hierarchical":
            return int(np.prod(self.nodes_and_lanes))
        return max(self.n, self.chunks)

    @cached_property
    def nodes_and_lanes(self) -> tuple[int, int]:
        """The number of nodes with ranks, and the number of ranks of the largest node."""
        ranks = np.bincount(self.topology.node_of)
        return int((ranks > 0).sum()), int(ranks.max())

    def parts(self, count: int | None = None) -> np.ndarray:
        """Bytes of each of ``count`` parts; by default there is one part for each rank."""
        return split(self.nbytes, count or self.n, self.itemsize)

    def step_s(self, src: np.ndarray, dst: np.ndarray, nbytes: int | np.ndarray) -> np.ndarray:
        """Seconds of messages that share no link. ``src`` and ``dst`` are arrays of ranks."""
        draw_s = (nbytes + self.envelope_bytes) / self.topology.bandwidths_Bps(src, dst)
        return self.topology.latencies_s(src, dst) + draw_s

    @cached_property
    def links_are_private(self) -> bool:
        """Whether each link with a limit serves one rank only."""
        return self.topology.links_are_private()

    @cached_property
    def is_one_node(self) -> bool:
        """Whether all ranks are in one node."""
        return self.topology.is_one_node()

    @cached_property
    def is_even(self) -> bool:
        """Whether all pairs of ranks are equally far apart: all in one node, or one per node.

        In the second case there are no leaf switches.
        """
        one_each = np.bincount(self.topology.node_of).max() == 1
        return self.is_one_node or bool(one_each and self.topology.cluster.uplink is None)


def shares_a_link(topology: Topology, src: np.ndarray, dst: np.ndarray) -> bool:
    """Whether two of these messages cross the same link."""
    paths = topology.paths(src, dst)
    free = len(topology.link_bandwidth_Bps) - 1
    return bool(np.bincount(paths[paths != free], minlength=1).max(initial=0) > 1)


def common_step_s(case: Case, src: np.ndarray, dst: np.ndarray, nbytes: int) -> float | None:
    """Seconds of messages that travel at the same time and are all alike. None if they differ.

    Messages are alike if they start at the same time, have the same latency, and travel at the same
    rate on their shared links. Then all messages end at the same time, and no rate ever changes.

    Parameters
    ----------
    nbytes : int
        Bytes of each message.
    """
    topology = case.topology
    if topology.cluster.in_order and pair_twice(src, dst, case.n):
        return None  # two from one rank to another: one after the other
    latencies_s = topology.latencies_s(src, dst)
    paths = topology.paths(src, dst)
    is_free = (paths == len(topology.link_bandwidth_Bps) - 1).all(axis=1)
    if (latencies_s != latencies_s[0]).any() or is_free.any() != is_free.all():
        return None
    left = nbytes + case.envelope_bytes
    if is_free.all() or not left:
        return float(latencies_s[0])
    rates_Bps = fair_rates(paths, topology.link_bandwidth_Bps) * topology.cards_between(src, dst)
    if np.ptp(rates_Bps) > 1e-12 * rates_Bps[0]:
        return None
    return float(latencies_s[0] + left / rates_Bps[0])


def refuse_unless_seconds(name: str, value: np.ndarray) -> None:
    """Refuse seconds that are negative or not finite."""
    wrong = value[~(np.isfinite(value) & (value >= 0))]
    if wrong.size:
        raise InvalidCallError(f"{name} contains {wrong[0]}: each must be finite and at least 0")


def seconds_of_each_rank(name: str, value: Seconds, ranks: int) -> np.ndarray:
    """Seconds of each rank, from one number or one per rank: ndarray of float, shape (ranks,)."""
    if np.ndim(value) == 0:
        check_number(name, value)
        value = np.full(ranks, value, dtype=float)
    value = np.array(value, dtype=float)
    if value.shape != (ranks,):
        raise InvalidCallError(f"{name} has shape {value.shape}: give one number, or {ranks}")
    refuse_unless_seconds(name, value)
    return value
