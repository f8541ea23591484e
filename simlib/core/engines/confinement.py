"""How the processes of ranks are confined, and how their ranks are connected: one hook for both.

A plain run confines nothing. A grading run names a module in the environment, by `VARIABLE`; its
``CONFINEMENT`` is a `Confinement` that takes the place of the plain one, in the kernel that grades
and in every process that it starts.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from ..environment import VARIABLE


class Confinement:
    """How a plain run treats the processes of its ranks: they are free, and joined by a backend."""

    def server_begins(self) -> None:
        """Called in the server of processes, once it has imported everything."""

    def process_begins(self) -> None:
        """Called first of all in a process of ranks, a real one's or a simulation's."""

    def code_begins(self, of_one_rank: bool) -> None:
        """Called in such a process when it is ready, before it is told what to run.

        Parameters
        ----------
        of_one_rank : bool
            Whether the process is one real rank, or simulates all of them.
        """

    def at_home(self) -> None:
        """Called before the learner's function is unpacked: go where it may import from."""

    def ties(self, world_size: int, plain: Callable[[int], Any]) -> Any:
        """What connects the ranks of a world, on the kernel's side: see `worlds.SharedRendezvous`.

        ``plain(world_size)`` makes those of a plain run.
        """
        return plain(world_size)

    def join(
        self, recorder: Any, rank: int, world_size: int, ties: tuple, plain: Callable[..., tuple]
    ) -> tuple:
        """Join the other ranks, in a rank's process, by the ``ties`` that it was sent.

        Returns
        -------
        (store, FingerprintTable or None)
            Where ranks find each other again, and where they compare ops. That is what
            ``plain(recorder, rank, world_size, *ties)`` gives in a plain run.
        """
        return plain(recorder, rank, world_size, *ties)


@functools.cache
def _named(module: str) -> Confinement:
    return importlib.import_module(module).CONFINEMENT if module else Confinement()


def confinement() -> Confinement:
    """What the environment asks for; plain where it asks for nothing."""
    return _named(os.environ.get(VARIABLE, ""))
