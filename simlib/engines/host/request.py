"""What a process of ranks is sent to begin a run, and how it takes on the kernel's surroundings."""

from __future__ import annotations

import linecache
import os
import pickle
import sys
from dataclasses import dataclass, field

from ...model.errors import InvalidCallError


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where the kernel is.

    Attributes
    ----------
    environ : dict of str to str
    cwd : str
        The working folder.
    path, argv : list of str
        ``sys.path`` and ``sys.argv``.
    is_script : bool
        Whether the rank function is a whole script.
    """

    environ: dict
    cwd: str
    path: list
    argv: list
    is_script: bool

    @classmethod
    def here(cls, argv=None):
        """Those of this process; ``argv`` is given for a script."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            raise InvalidCallError(
                "the working folder of this kernel does not exist any more: os.chdir to one that "
                "does"
            ) from None
        return cls(
            environ=dict(os.environ),
            cwd=folder,
            path=list(sys.path),
            argv=list(argv if argv is not None else sys.argv),
            is_script=argv is not None,
        )


@dataclass(kw_only=True)
class Request:
    """One run, as every process of its ranks is told of it.

    Attributes
    ----------
    payload : bytes
        The rank function and its arguments, see `payload.pack`.
    surroundings : Surroundings
    per_rank_args : list of bytes or None
        By rank, the arguments that only this rank may know; see `payload.ByRank`.
    cells : dict
        Sources of the notebook's cells, as `linecache` keeps them.
    """

    payload: bytes
    surroundings: Surroundings
    per_rank_args: list | None = None
    cells: dict = field(default_factory=dict)

    def enter_surroundings(self, environ, **own):
        """Be where the kernel is: its environment, folder, import path, arguments and cells.

        Parameters
        ----------
        environ : MutableMapping
            The environment to fill.
        **own : str
            Variables of this process; the address of a launcher is added where there is none.
        """
        around = self.surroundings
        environ.clear()
        environ.update(around.environ)
        environ.update(own)
        environ.setdefault("MASTER_ADDR", "127.0.0.1")
        environ.setdefault("MASTER_PORT", "29500")
        os.chdir(around.cwd)
        sys.path[:] = around.path
        sys.argv[:] = around.argv
        linecache.cache.update(self.cells)

    def function_and_args(self, rank):
        """``(function, args, kwargs)`` for one rank, made anew from their bytes."""
        function, args, kwargs = pickle.loads(self.payload)
        if self.per_rank_args is not None:
            args = pickle.loads(self.per_rank_args[rank])
        return function, args, kwargs
