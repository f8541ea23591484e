"""A hook that confines the processes of ranks and connects the ranks.

A plain run confines nothing. For a grading run, the variable `VARIABLE` of the environment names a
module. Its ``CONFINEMENT`` is a `Confinement` that replaces the plain one, in the kernel that
grades and in every process that this kernel starts.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from ..environment import VARIABLE


class Confinement:
    """How simlib treats the processes of a plain run. They are free, and a backend connects
    them."""

    def server_begins(self) -> None:
        """simlib calls it in the server of processes when the server has imported all its
        modules."""

    def process_begins(self) -> None:
        """simlib calls it as the first action in a process of ranks, real or simulated."""

    def code_begins(self, of_one_rank: bool) -> None:
        """simlib calls it in such a process when the process is ready, before it gets its task.

        Parameters
        ----------
        of_one_rank : bool
            Whether the process is one real rank, or simulates all of them.
        """

    def at_home(self) -> None:
        """simlib calls it before it unpacks the learner's function, to enter the right folder."""

    def ties(self, world_size: int, plain: Callable[[int], Any]) -> Any:
        """The connection of a world's ranks, on the kernel's side: see `worlds.SharedRendezvous`.

        ``plain(world_size)`` makes the connection of a plain run.
        """
        return plain(world_size)

    def join(
        self, recorder: Any, rank: int, world_size: int, ties: tuple, plain: Callable[..., tuple]
    ) -> tuple:
        """Join the other ranks. simlib calls it in a rank's process, with the ``ties`` for this
        rank.

        Returns
        -------
        (store, FingerprintTable or None)
            The store in which ranks find each other again, and the table in which they compare ops.
            In a plain run, ``plain(recorder, rank, world_size, *ties)`` returns them.
        """
        return plain(recorder, rank, world_size, *ties)


@functools.cache
def _named(module: str) -> Confinement:
    return importlib.import_module(module).CONFINEMENT if module else Confinement()


def confinement() -> Confinement:
    """The `Confinement` that the environment names, or else the plain one."""
    return _named(os.environ.get(VARIABLE, ""))
