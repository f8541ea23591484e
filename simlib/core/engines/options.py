"""The program and the options of an engine, checked once for all engines.

`run`, `simulate` and `submit` take each option as a keyword of its own. They also take several
options that belong together as one object: `Faults`, `Restarts`, `Diagnosis`, `Network`,
`Measurement`.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import numbers
import os
import runpy
import secrets
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle

from ..model.chance import Failures, Seeds, Slow, check_slow
from ..model.cluster import Cluster, Topology
from ..model.errors import (
    InvalidCallError,
    SimlibError,
    check_by_rank,
    check_choice,
    check_seconds,
    check_type,
)
from .sent_by_name import learn_names

if TYPE_CHECKING:
    from ..results.run import Run

ON_DEATH = ("end", "continue")
COMPUTE = ("flops", "measured", "free")
HEAVY_BYTES = 20 << 20
WATCH_S = 60.0
"""A watched run prints one line, waits this many seconds, and prints the next line."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Says which ranks are slow, and which die. Give it to `run`, `simulate` or `submit` as
    ``faults=``.

    Attributes
    ----------
    slow : dict, Jitter or callable, optional
        Ranks that compute slower, or with noise.
    kill : dict or Failures, optional
        ``{rank: seconds}``. Each of these ranks dies this many seconds after it entered the
        function.
    on_death : {"end", "continue"}
        Whether the death of a rank ends the run, or the other ranks continue.
    detection_s : float
        Virtual seconds from a death until the other ranks notice it. Only `simulate` uses this
        number.
    """

    slow: Slow | None = None
    kill: Mapping[Any, float] | Failures | None = None
    on_death: str = "end"
    detection_s: float = 0.0


@dataclass(frozen=True)
class Restart:
    """Facts about a restart of a run. simlib passes this object to ``on_restart``.

    Attributes
    ----------
    count : int
        1 for the first restart. In the ranks' environment this number is
        ``TORCHELASTIC_RESTART_COUNT``.
    world_size : int
        Number of ranks after the restart.
    time_s : float
        The moment at which the previous attempt failed, in seconds since the first attempt began.
    run : Run
        The attempt that failed.
    error : SimlibError
        The error that ended this attempt.
    """

    count: int
    world_size: int
    time_s: float
    run: Run
    error: SimlibError


@dataclass(frozen=True)
class Restarts:
    """How a run restarts after a failure. `run`, `simulate` and `submit` take it as ``restarts=``.

    Attributes
    ----------
    most : int
        simlib calls the function again at most this many times.
    min_ranks : int, optional
        If at least this many ranks are left after a failure, the next attempt uses only these
        ranks. With None, each restart has as many ranks as the first attempt.
    on_restart : callable, optional
        simlib calls this function with a `Restart` before the ranks begin again.
    restart_s : float
        Virtual seconds from a failure to the beginning of the next attempt. Only `simulate` uses
        this number.
    """

    most: int = 0
    min_ranks: int | None = None
    on_restart: Callable[[Restart], Any] | None = None
    restart_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """How simlib watches and diagnoses a run. `run` and `simulate` take it as ``diagnosis=``.

    Attributes
    ----------
    timeout_s : float or None
        simlib ends the run if no rank makes an op or prints a line for this many seconds. None
        means no limit.
    strict : bool
        Whether simlib raises the first finding as an error.
    check : bool
        If False, simlib reports only errors, deaths, and runs that make no progress for
        ``timeout_s``.
    watch : bool or float
        Watch a real run that takes hours. True prints a line every minute. A number sets the
        seconds between two lines.
    """

    timeout_s: float | None = 120
    strict: bool = False
    check: bool = True
    watch: bool | float = False


@dataclass(frozen=True, kw_only=True)
class Network:
    """The cluster of a simulation, and how it moves data. `simulate` takes it as ``network=``.

    Attributes
    ----------
    cluster : Cluster, optional
    placement : {"block", "round_robin"} or list of int
    sends : {"rendezvous", "eager"}
    eager_limit_bytes : int, optional
    algorithms : {"mpich", "nccl", "gloo"}
    algorithm_of : dict of str to str
        The algorithm for each kind of collective, for example ``{"all_reduce": "ring"}``.
    """

    cluster: Cluster | None = None
    placement: str | list[int] = "block"
    sends: str = "rendezvous"
    eager_limit_bytes: int | None = None
    algorithms: str = "mpich"
    algorithm_of: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a simulation measures, and what the run keeps. `simulate` takes it as ``measurement=``.

    Attributes
    ----------
    expand : bool
        Whether to keep the messages of collectives.
    compute : {"flops", "measured", "free"}
        How simlib determines the time of computing.
    memory : bool, optional
        Whether to keep the ledger of each rank's memory.
    data : bool
        Whether tensors have values. False simulates shapes and times only.
    alike : "auto" or callable, optional
        Which ranks simlib treats as equal.
    seed : int, "same" or "new", optional
        The seed from which simlib derives the ranks' random numbers. If it is a number, events that
        have no fixed order also occur in another order.
    """

    expand: bool = False
    compute: str = "flops"
    memory: bool | None = None
    data: bool = True
    alike: str | Callable[[int], Any] | None = None
    seed: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckedFaults:
    """`Faults` in the form that engines take. simlib has checked the ranks in it."""

    slow: dict[int, Any] = field(default_factory=dict)
    kill: dict[int, float] | Failures = field(default_factory=dict)
    on_death: str = "end"
    detection_s: float = 0.0


NO_FAULTS, NO_RESTARTS = CheckedFaults(), Restarts()
"""The values for runs that ask for no faults and no restarts."""

Kind = TypeVar("Kind", Faults, Restarts, Diagnosis, Network, Measurement)


def either(name: str, given: Kind | None, keywords: Kind) -> Kind:
    """Return the object of options that the caller passed, or else the object made from keywords.

    Parameters
    ----------
    name : str
        Name of the argument that takes the object.
    given : Faults, Restarts, Diagnosis, Network or Measurement, optional
    keywords : the same
        An object made from the keywords.

    Raises
    ------
    InvalidCallError
        The caller gave both, or the object is of another kind.
    """
    if given is None:
        return keywords
    kind = type(keywords)
    if not isinstance(given, kind):
        raise InvalidCallError(f"{name}={given!r} must be a simlib.{kind.__name__}")
    if keywords != kind():
        own = ", ".join(f"{one}=" for one in vars(keywords))
        raise InvalidCallError(
            f"give either {name}= or single keywords ({own}), but not both: put all into {name}="
        )
    return given


def refuse_foreign(call: str, asked: Any, **others: str) -> None:
    """Refuse an object with a field that only another call uses, because it would be ignored.

    Parameters
    ----------
    call : str
        Name of the call that was made.
    asked : Restarts or Diagnosis
    others : str
        Field of the object -> the only call that takes it.
    """
    usual = type(asked)()
    for field_name, other in others.items():
        if getattr(asked, field_name) != getattr(usual, field_name):
            raise InvalidCallError(
                f"{field_name}={getattr(asked, field_name)!r} is for {other}: {call} has no such "
                "option"
            )


def checked_faults(
    asked: Faults, world_size: int, topology: Topology | None = None
) -> CheckedFaults:
    """The faults by rank; refuses faults that can never happen.

    ``topology`` is the topology of a simulation. Then ``kill`` may name its nodes.
    """
    if asked == Faults():
        return NO_FAULTS
    if topology is None and asked.detection_s:
        raise InvalidCallError(
            f"detection_s={asked.detection_s!r} is virtual time: only simulate accepts it"
        )
    return CheckedFaults(
        kill=check_kill(asked.kill, world_size, topology),
        on_death=check_choice("on_death", asked.on_death, ON_DEATH),
        detection_s=_check_detection(asked.detection_s, asked.on_death),
        slow=check_slow(asked.slow, world_size),
    )


def check_kill(
    kill: Any, world_size: int, topology: Topology | None = None
) -> dict[int, float] | Failures:
    """Return `Failures`, or ``{rank: seconds}``. With a topology, ranks replace names of nodes.

    If a rank has two times, the earlier one counts.
    """
    if isinstance(kill, Failures):
        return kill
    if topology is None or not isinstance(kill, dict):
        return check_by_rank("kill", kill, world_size)
    times: dict[int, float] = {}
    for who, time_s in kill.items():
        ranks = [who] if not isinstance(who, str) else _ranks_of_node(who, topology)
        for rank, own_s in check_by_rank("kill", dict.fromkeys(ranks, time_s), world_size).items():
            times[rank] = min(own_s, times.get(rank, own_s))
    return times


def _ranks_of_node(name: str, topology: Topology) -> list[int]:
    number = name.removeprefix("node")
    nodes = topology.node_of.tolist()
    if not (name.startswith("node") and number.isdecimal() and int(number) in nodes):
        raise InvalidCallError(f'kill: {name!r} is not a node. Give "node0" to "node{max(nodes)}"')
    return [rank for rank, node in enumerate(nodes) if node == int(number)]


def _check_detection(detection_s: Any, on_death: str) -> float:
    """Refuse ``detection_s`` if the first death ends the run, because then no rank detects it."""
    if detection_s and on_death != "continue":
        raise InvalidCallError(
            f"detection_s={detection_s!r} is the time until survivors see a death, but without "
            'on_death="continue" no rank survives: add on_death="continue"'
        )
    return check_seconds("detection_s", detection_s)


def restarts_of(restarts: Any, keywords: Restarts, world_size: int) -> Restarts:
    """The `Restarts`, from a number or an object; refuses values that make no sense."""
    if isinstance(restarts, Restarts):
        return _checked_restarts(either("restarts", restarts, keywords), world_size)
    if type(restarts) is int and restarts == 0 and keywords == NO_RESTARTS:
        return NO_RESTARTS
    return _checked_restarts(replace(keywords, most=restarts), world_size)


def _checked_restarts(asked: Restarts, world_size: int) -> Restarts:
    least = asked.min_ranks
    if not _is_count(asked.most, 0):
        raise InvalidCallError(f"restarts={asked.most!r} must be a whole number, 0 or more")
    if least is not None and not (_is_count(least, 1) and least <= world_size):
        raise InvalidCallError(
            f"min_ranks={least!r} must be a whole number from 1 to {world_size}, or None, which "
            "means as many ranks as before"
        )
    if asked.on_restart is not None and not callable(asked.on_restart):
        raise InvalidCallError(f"on_restart={asked.on_restart!r} must be a function(restart)")
    return replace(asked, restart_s=check_seconds("restart_s", asked.restart_s))


def _is_count(value: Any, least: int) -> bool:
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_whole and value >= least


def seconds_between_lines(watch: Any) -> float | None:
    """Seconds from one line about a watched run to the next; None if it is not watched."""
    if watch is False or watch is None:
        return None
    if watch is True:
        return WATCH_S
    if isinstance(watch, numbers.Real) and 0 < float(watch) < float("inf"):
        return float(watch)
    raise InvalidCallError(
        f"watch={watch!r} must be True, or a positive number: the seconds between progress lines"
    )


def check_timeout(timeout_s: Any) -> None:
    """Refuse a value that is not a time limit in seconds; None means no limit."""
    is_number = isinstance(timeout_s, numbers.Real) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and timeout_s > 0):
        raise InvalidCallError(
            f"timeout_s={timeout_s!r} must be a positive number of seconds, or None for no limit"
        )


def checked_measurement(asked: Measurement, cluster: Cluster) -> Measurement:
    """The `Measurement` in the form that the engine takes: ``memory`` is True or False."""
    check_choice("compute", asked.compute, COMPUTE)
    check_type("data", asked.data, bool)
    if not asked.data and asked.compute == "measured":
        raise InvalidCallError(
            "data=False computes nothing, so compute='measured' has nothing to measure: leave out "
            "one of the two"
        )
    keeps = cluster.device is not None if asked.memory is None else bool(asked.memory)
    return replace(asked, memory=keeps)


def check_world_size(world_size: Any, most: int, why: str) -> int:
    """The number of ranks as an int; refuses a value that is not an int from 1 to ``most``."""
    is_count = isinstance(world_size, numbers.Integral) and not isinstance(world_size, bool)
    if is_count and 1 <= world_size <= most:
        return int(world_size)
    raise InvalidCallError(f"world_size={world_size!r} is not possible: {why}")


@dataclass(frozen=True, kw_only=True)
class Program:
    """The packed program that every rank runs.

    Attributes
    ----------
    name : str
    payload : bytes
        The rank function and its arguments, see `pack`.
    per_rank_args : list of bytes or None
        By rank, the arguments for this rank alone; see `ByRank`.
    argv : list of str or None
        For a whole script: its name, and the arguments of its command line.
    seeds : Seeds
        The start of the ranks' random numbers.
    """

    name: str
    payload: bytes = field(repr=False)
    per_rank_args: list[bytes] | None = None
    argv: list[str] | None = None
    seeds: Seeds = Seeds()


class ByRank(list):
    """Arguments that differ from rank to rank. Each rank gets only its own arguments."""


def program_of_function(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    world_size: int,
    seed: Any = None,
    without_gpus: str = "",
) -> Program:
    """The `Program` of a rank function; ``without_gpus`` is a hint for ranks that see no GPU."""
    own = None
    if isinstance(args, ByRank):
        own = [cloudpickle.dumps(tuple(one), protocol=5) for one in args]
        for one, packed in zip(args, own, strict=True):
            if without_gpus and b"cuda" in packed:
                _refuse_tensors_on_gpus(function, one, kwargs, without_gpus)
        args = ()
    payload = pack(function, args, kwargs, world_size)
    if without_gpus and b"cuda" in payload:  # a tensor on a GPU says so
        _refuse_tensors_on_gpus(function, args, kwargs, without_gpus)
    name, seeds = name_of(function), check_seed(seed)
    return Program(name=name, payload=payload, per_rank_args=own, seeds=seeds)


def program_of_script(
    path: str,
    argv: Sequence[str],
    world_size: int,
    seed: Any = None,
    is_module: bool = False,
) -> Program:
    """The `Program` of a whole script, or of a module by its name, with its command line."""
    if is_module and path.endswith(".py"):
        raise InvalidCallError(f"-m needs a module's name: write -m {path[:-3]}, or leave -m out")
    function, what = (module, path) if is_module else (script, os.path.abspath(path))
    payload = pack(function, (what,), None, world_size)
    name, seeds = os.path.basename(path), check_seed(seed)
    return Program(name=name, payload=payload, argv=[path, *argv], seeds=seeds)


def check_seed(seed: Any) -> Seeds:
    """The `Seeds` from a whole number, ``"same"``, ``"new"``, or None, which means 0.

    Raises
    ------
    InvalidCallError
    """
    if seed == "new":
        return Seeds(secrets.randbits(32))
    if seed == "same":
        return Seeds(same=True)
    if seed is not None and (not isinstance(seed, numbers.Integral) or isinstance(seed, bool)):
        raise InvalidCallError(
            f'seed={seed!r} must be a whole number, "same" or "new". With "same" every rank draws '
            'the same random numbers. With "new" each run draws other random numbers'
        )
    return Seeds(int(seed or 0))


def check_function(function: object, caller: str) -> None:
    """Refuse an object that is not callable; ``caller`` is the function that got it, by name."""
    if not callable(function):
        raise InvalidCallError(
            f"{caller} needs a function main(rank, world_size) to call, not {function!r}"
        )


def name_of(function: Callable[..., Any]) -> str:
    """The name of a rank function."""
    return getattr(function, "__name__", type(function).__name__)


def script(rank: int, world_size: int, path: str) -> None:
    """The rank function of a whole script: every rank runs it, as ``__main__``."""
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")


def module(rank: int, world_size: int, name: str) -> None:
    """The rank function of a module: every rank runs it, as ``python -m`` does."""
    sys.path.insert(0, os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def pack(function: Callable[..., Any], args: Any, kwargs: Any, world_size: int) -> bytes:
    """Return the function and its arguments as bytes. Raise an error if one cannot be sent."""
    if not isinstance(args, (tuple, list)):
        raise InvalidCallError(
            f"args={args!r} must be a tuple: for one argument, write args=({args!r},)"
        )
    if kwargs is not None and not isinstance(kwargs, dict):
        raise InvalidCallError(f"kwargs={kwargs!r} must be a dict, such as {{'name': value}}")
    learn_names()
    try:
        payload = cloudpickle.dumps((function, tuple(args), dict(kwargs or {})), protocol=5)
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        culprit = _culprit(function, args, kwargs)
        raise InvalidCallError(
            f"{name} cannot be sent to the ranks, which are other processes: {culprit} "
            f"({type(error).__name__}: {error}). Create this object inside the function instead."
        ) from None
    if len(payload) > HEAVY_BYTES:
        size = len(payload) / 1e6
        heaviest = max(_parts(function, args, kwargs), key=lambda part: _size(part[1]))[0]
        warnings.warn(
            f"each of the {world_size} ranks gets {size:,.0f} MB with this function, most of it in "
            f"{heaviest}: create large data inside the function",
            stacklevel=4,
        )
    return payload


def _refuse_tensors_on_gpus(function, args, kwargs, without_gpus):
    """Refuse a tensor on a GPU among the arguments of ranks that see no GPU."""
    for name, value in _parts(function, args, kwargs):
        try:
            _OfTheCpu(io.BytesIO(), protocol=5).dump(value)
        except _OnGpu as found:
            raise InvalidCallError(f"{name} contains a tensor on {found}. {without_gpus}") from None


class _OnGpu(Exception):
    """Raised with the device of the first tensor on a GPU in the function or its arguments."""


class _OfTheCpu(cloudpickle.Pickler):
    """Pickles an object, and raises `_OnGpu` if there is a tensor on a GPU anywhere inside."""

    def reducer_override(self, value):
        # Not imported: a notebook without torch sends no tensor, and torch takes seconds to load.
        if isinstance(value, sys.modules["torch"].Tensor) and value.is_cuda:
            raise _OnGpu(value.device)
        return super().reducer_override(value)


def _parts(function: Any, args: Sequence, kwargs: Mapping | None) -> list[tuple[str, Any]]:
    """The objects that simlib sends with the function. Each object has a name for messages."""
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
            return f"{name}, a {type(value).__qualname__}, cannot be copied to a process"
    return "something in this function cannot be copied to a process"
