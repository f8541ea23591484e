"""What a run asks for, and what its processes are sent: functions by value, surroundings, messages.

The same for every engine.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import numbers
import os
import pickle
import runpy
import struct
import sys
import time
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from socket import socket
from typing import Any

import cloudpickle

from ..model.chance import Failures
from ..model.errors import InvalidCallError
from .confinement import confinement
from .rank_process.setup import script_environ

HEAVY_BYTES = 20 << 20
WATCH_S = 60.0
"""From one line on a run that is watched to the next."""
_serves: list[str] = []
_LENGTH = struct.Struct("<Q")
FRAME = struct.Struct("=ii")
"""Before each piece of output that several ranks send down one pipe: the rank, and its length."""


@dataclass(frozen=True)
class Options:
    """How a run is watched; see `run`."""

    name: str
    timeout_s: float | None = 120
    strict: bool = False
    check: bool = True
    kill: Mapping[int, float] | Failures = field(default_factory=dict)
    on_death: str = "end"
    watch_s: float | None = None


def check_watch(watch: Any) -> float | None:
    """Seconds from one line to the next of a run that is watched, None of one that is not."""
    if watch is False or watch is None:
        return None
    if watch is True:
        return WATCH_S
    if isinstance(watch, numbers.Real) and 0 < float(watch) < float("inf"):
        return float(watch)
    raise InvalidCallError(
        f"watch={watch!r} must be True, or a positive number of seconds from one line to the next"
    )


def check_function(function: object, caller: str) -> None:
    """Refuse what cannot be called; ``caller`` is the name of the function it was given to."""
    if not callable(function):
        raise InvalidCallError(
            f"{caller} needs a function main(rank, world_size) to call, not {function!r}"
        )


def check_world_size(world_size: Any, most: int, why: str) -> int:
    """The number of ranks as an int; refused where it is none from 1 to ``most``."""
    is_count = isinstance(world_size, numbers.Integral) and not isinstance(world_size, bool)
    if is_count and 1 <= world_size <= most:
        return int(world_size)
    raise InvalidCallError(f"world_size={world_size!r} is not possible: {why}")


def check_timeout(timeout_s: Any) -> None:
    """Refuse what is no limit in seconds; None is one that never comes."""
    is_number = isinstance(timeout_s, numbers.Real) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and timeout_s > 0):
        raise InvalidCallError(
            f"timeout_s={timeout_s!r} must be a positive number of seconds, or None for no limit"
        )


def name_of(function: Callable[..., Any]) -> str:
    """What a rank function is called."""
    return getattr(function, "__name__", type(function).__name__)


def script(rank: int, world_size: int, path: str) -> None:
    """The rank function of a whole script: every rank runs it, as ``__main__``."""
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")


@dataclass(frozen=True, kw_only=True)
class ExecutionContext:
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
    def here(
        cls, argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
    ) -> ExecutionContext:
        """Those of this process; ``argv`` is given for a script, ``environ`` is added."""
        try:
            folder = os.getcwd()
        except FileNotFoundError:
            raise InvalidCallError(
                "the working folder of this kernel does not exist any more: os.chdir to one that "
                "does"
            ) from None
        return cls(
            environ=dict(os.environ) | dict(environ or {}),
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
        The rank function and its arguments, see `pack`.
    surroundings : Surroundings
    per_rank_args : list of bytes or None
        By rank, the arguments that only this rank may know; see `ByRank`.
    cells : dict
        Sources of the notebook's cells, as `linecache` keeps them.
    """

    payload: bytes
    execution_context: ExecutionContext
    per_rank_args: Any = None
    cells: dict = field(default_factory=dict)

    def enter_context(self, environ: MutableMapping[str, str], **own: str) -> None:
        """Be where the kernel is: its environment, folder, import path, arguments and cells.

        Parameters
        ----------
        environ : MutableMapping
            The environment to fill.
        **own : str
            Variables of this process; the address of a launcher is added where there is none.
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
        """``(function, args, kwargs)`` for one rank, made anew from their bytes."""
        function, args, kwargs = pickle.loads(self.payload)
        if self.per_rank_args is not None:
            args = pickle.loads(self.per_rank_args[rank])
        return function, args, kwargs


class ByRank:
    """Arguments that differ from rank to rank: a rank is sent its own and no others.

    Parameters
    ----------
    args : sequence of sequence
        By rank.
    """

    def __init__(self, args: Sequence[Sequence[Any]]) -> None:
        self.packed = [cloudpickle.dumps(tuple(own), protocol=5) for own in args]


def pack(function: Callable[..., Any], args: Any, kwargs: Any, world_size: int) -> bytes:
    """The function and its arguments as bytes; a clear error where something cannot travel."""
    if not isinstance(args, (tuple, list)):
        raise InvalidCallError(f"args={args!r} must be a tuple: for one argument args=({args!r},)")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise InvalidCallError(f"kwargs={kwargs!r} must be a dict: kwargs={{'name': value}}")
    try:
        payload = cloudpickle.dumps((function, tuple(args), dict(kwargs or {})), protocol=5)
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        culprit = _culprit(function, args, kwargs)
        raise InvalidCallError(
            f"{name} cannot be sent to the ranks, which are other processes: {culprit} "
            f"({type(error).__name__}: {error}). Make it inside the function instead."
        ) from None
    if len(payload) > HEAVY_BYTES:
        size = len(payload) / 1e6
        heaviest = max(_parts(function, args, kwargs), key=lambda part: _size(part[1]))[0]
        warnings.warn(
            f"every one of the {world_size} ranks is sent {size:,.0f} MB with this function, most "
            f"of it {heaviest}: make large data inside the function",
            stacklevel=4,
        )
    return payload


def _parts(function: Any, args: Sequence, kwargs: Mapping | None) -> list[tuple[str, Any]]:
    """What the function takes along, each with its name in words."""
    parts = [(f"argument {number}", value) for number, value in enumerate(args)]
    parts += [(f"argument {name!r}", value) for name, value in (kwargs or {}).items()]
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is not None:
        for name in _global_names(code):
            if name in function.__globals__:
                parts.append((f"the global {name!r}", function.__globals__[name]))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not assigned yet
                parts.append((f"the outer variable {name!r}", cell.cell_contents))
    return parts or [("the function itself", function)]


def _global_names(code: Any) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            names |= _global_names(constant)
    return names


def _size(value: Any) -> int:
    try:
        return len(cloudpickle.dumps(value, protocol=5))
    except Exception:
        return 0


def _culprit(function: Any, args: Sequence, kwargs: Mapping | None) -> str:
    for name, value in _parts(function, args, kwargs):
        try:
            cloudpickle.dumps(value, protocol=5)
        except Exception:
            return f"{name}, a {type(value).__qualname__}, has no copy that can travel"
    return "something it holds has no copy that can travel"


def cell_numbers() -> dict[str, int]:
    """File name of every notebook cell run so far -> its execution count."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return dict(getattr(getattr(shell, "compile", None), "_filename_map", None) or {})


def new_cells(world: Any, cells: Mapping[str, int]) -> dict:
    """The sources of cells that this world has not been sent yet."""
    new = {
        name: linecache.cache[name]
        for name in cells
        if name not in world.cells_sent and name in linecache.cache
    }
    world.cells_sent |= set(new)
    return new


def serve(what: str) -> None:
    """Note that this process serves runs of some sort, ``"a run"`` or ``"a simulation"``."""
    _serves.append(what)


def refuse_within_ranks(what: str) -> None:
    """Refuse to start ``"a run"`` or ``"a simulation"`` in a process that serves either.

    Raises
    ------
    InvalidCallError
        This process does.
    """
    if _serves:
        raise InvalidCallError(
            f"this is a rank of {_serves[-1]} already, and a rank cannot start another one "
            f"({what}): a rank calls a function directly, a file that starts ranks by itself is "
            "called by python FILE, and where a file starts them when it is imported, put that "
            'line below if __name__ == "__main__":'
        )


def send_bytes(sock: socket, payload: bytes | bytearray) -> None:
    """Send one message, given as bytes."""
    sock.sendall(_LENGTH.pack(len(payload)))
    sock.sendall(payload)


def send(sock: socket, message: Any) -> None:
    """Send one message: any object that plain pickle takes."""
    send_bytes(sock, pickle.dumps(message, protocol=5))


def receive(sock: socket, loads: Callable[[Any], Any] = pickle.loads) -> Any:
    """Receive one message; EOFError when the other side is gone."""
    (length,) = _LENGTH.unpack(exactly(sock, _LENGTH.size))
    return loads(exactly(sock, length))


def exactly(sock: socket, length: int, deadline: float | None = None) -> bytearray:
    """So many bytes from a socket; EOFError when the other side is gone.

    TimeoutError where they are not there at ``deadline``, in seconds of `time.monotonic`.
    """
    payload = bytearray(length)
    view = memoryview(payload)
    while view:
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the message is not there in time")
            sock.settimeout(left_s)
        count = sock.recv_into(view)
        if not count:
            raise EOFError("the other side of the channel is gone")
        view = view[count:]
    return payload
