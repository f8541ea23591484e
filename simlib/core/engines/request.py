"""The data of a run that every process of ranks gets and uses to prepare itself."""

from __future__ import annotations

import linecache
import os
import pickle
import struct
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from socket import socket
from typing import TYPE_CHECKING, Any

from .confinement import confinement
from .rank_process.setup import script_environ

if TYPE_CHECKING:
    from ..model.chance import Seeds

SERVED: list[str] = []
"""The task of this process, if it is a process of ranks: ``"a run"`` or ``"a simulation"``."""
FRAME = struct.Struct("=ii")
"""The header of each output that several ranks send by one pipe: the rank, and the length."""


@dataclass(frozen=True, kw_only=True)
class ExecutionContext:
    """The surroundings of the kernel.

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


@dataclass(kw_only=True)
class Request:
    """One run, in the form that every process of its ranks gets.

    Attributes
    ----------
    payload : bytes
        The rank function and its arguments, see `pack`.
    execution_context : ExecutionContext
    per_rank_args : list of bytes or None
        By rank, the arguments that only this rank may know; see `ByRank`.
    cells : dict
        Sources of the notebook's cells, as `linecache` keeps them.
    seeds : Seeds
        The seeds of the ranks' random numbers.
    timeout_s : float or None
        simlib ends the run after this many seconds without progress.
    """

    payload: bytes
    execution_context: ExecutionContext
    per_rank_args: Any = None
    cells: dict = field(default_factory=dict)
    seeds: Seeds
    timeout_s: float | None

    def enter_context(self, environ: MutableMapping[str, str], **own: str) -> None:
        """Use the kernel's environment, folder, import path, arguments and cells in this process.

        Parameters
        ----------
        environ : MutableMapping
            The environment to fill.
        **own : str
            Variables of this process. simlib adds the address of a launcher if it is missing.
        """
        around = self.execution_context
        environ.clear()
        environ.update(script_environ(around.is_script) | around.environ)
        environ.update(own)
        environ.setdefault("MASTER_ADDR", "127.0.0.1")
        environ.setdefault("MASTER_PORT", "29500")
        os.chdir(around.cwd)
        sys.path[:] = around.path
        sys.argv[:] = around.argv
        linecache.cache.update(self.cells)
        confinement().at_home()

    def function_and_args(self, rank: int) -> tuple[Callable[..., Any], Sequence, dict]:
        """``(function, args, kwargs)`` for one rank, made again from their bytes."""
        function, args, kwargs = pickle.loads(self.payload)
        if self.per_rank_args is not None:
            args = pickle.loads(self.per_rank_args[rank])
        return function, args, kwargs


def exactly(sock: socket, length: int, deadline: float | None = None) -> bytearray:
    """Read ``length`` bytes from a socket. Raises EOFError if the other side has ended.

    Raises TimeoutError if the bytes have not arrived at ``deadline``, in seconds of
    `time.monotonic`.
    """
    payload = bytearray(length)
    view = memoryview(payload)
    while view:
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the message did not arrive in time")
            sock.settimeout(left_s)
        count = sock.recv_into(view)
        if not count:
            raise EOFError("the other side has closed the channel")
        view = view[count:]
    return payload
