"""`Simulated`: what `Timed` and `Fits` share: one more simulation that an answer has to pass."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import simlib

from ..model.cluster import Cluster


@dataclass(frozen=True)
class Simulated:
    """One simulation that an answer has to pass, once it is right on real ranks.

    Attributes
    ----------
    cluster : Cluster
        There are as many ranks as it has places.
    inputs : callable
        ``inputs(rank, world_size)`` gives the tuple of arguments for one rank, as for `check`.
    """

    cluster: Cluster
    inputs: callable

    counts_memory = False

    @property
    def world_size(self):
        """Number of ranks."""
        return self.cluster.max_ranks

    def start(self, timeout_s):
        """What runs a rank function here: called as ``simlib.run`` is."""
        options = {"memory": True} if self.counts_memory else {}
        return functools.partial(
            simlib.simulate, cluster=self.cluster, timeout_s=timeout_s, **options
        )
