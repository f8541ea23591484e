"""The errors of wrong programs. Every error names the rule, the ranks, the line and the remedy.

A run that fails raises a `SimlibError`. Such an error has these attributes:

``.kind``
    one word for the kind of failure (the table in docs/errors.md);
``.sites``
    ``{rank: Site}``: for each rank that the error concerns, the line in the learner's file or cell;
``.run``
    the `Run` up to the failure, with its output, trace and picture.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .trace import Site


@dataclass(frozen=True, slots=True)
class FailureReport:
    """An exception that a rank raised, as plain data.

    Attributes
    ----------
    type, message : str
        The name of the exception's class, and its message.
    frames : list of (str, int, str)
        The learner's frames as (file, line, function), outermost first.
    text : str
        The traceback without the frames of simlib and torch.
    invalid : bool
        Whether torch or simlib refused the call.
    from_wait : bool
        Whether other ranks caused the exception: the rank waited for them, or they have ended.
    ledger : dict or None
        For a rank that ran out of memory: its bytes by category.
    exit_code : int, str or None
        For a rank that called `sys.exit`: the argument of that call.
    """

    type: str
    message: str
    frames: list
    text: str
    invalid: bool
    from_wait: bool
    ledger: dict | None = None
    exit_code: object = None


class _Ending(BaseException):
    """An exception that says how a run ended. See `SimlibError` for the parameters."""

    DETAILS: ClassVar[dict[str, Any]] = {}
    """The further attributes of a class, by name, with their default values."""
    sites: dict[int, Site]
    run: Any

    def __init__(
        self, message: str, sites: Mapping[int, Site] | None = None, run: Any = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.sites = dict(sites or {})
        self.run = run
        for name in details.keys() - self.DETAILS:
            raise TypeError(f"{type(self).__name__} has no {name}")
        for name, default in self.DETAILS.items():
            value = details.get(name)
            setattr(self, name, dict(value or {}) if isinstance(default, dict) else value)

    def _render_traceback_(self) -> list[str]:
        """The text that a notebook shows: the message alone, without the frames of simlib."""
        return str(self).splitlines()


class SimlibError(_Ending, Exception):
    """An error in a program. Its message names the learner's own lines.

    Parameters
    ----------
    message : str
        The sentence that the learner sees. Further lines contain details.
    sites : dict of int to Site, optional
        The line of each rank that the error concerns.
    run : Run, optional
        The run up to the error.
    details
        Further attributes of the class, by name.
    """

    kind = "error"


class InvalidCallError(SimlibError):
    """A program made a call that can never be right, for example with a rank out of range."""

    kind = "invalid"


class RefusedCall(InvalidCallError, RuntimeError):
    """An `InvalidCallError` raised in the rank: a RuntimeError, which a program can catch."""


class RefusedValue(InvalidCallError, ValueError):
    """An `InvalidCallError` for a call at which torch raises a ValueError."""


class RefusedType(InvalidCallError, TypeError):
    """An `InvalidCallError` for a call at which torch raises a TypeError."""


class RefusedIndex(InvalidCallError, IndexError):
    """An `InvalidCallError` for a call at which torch raises an IndexError."""


class RefusedLayout(InvalidCallError, NotImplementedError):
    """An `InvalidCallError` for an op that torch does not offer, at least for such tensors."""


class RankError(SimlibError):
    """A rank raised an exception. ``tracebacks`` maps each such rank to its traceback, as text.

    ``.reports`` maps each such rank to a `FailureReport` with the exception's class, message and
    frames.
    """

    kind = "rank_error"
    DETAILS = {"tracebacks": {}, "reports": {}}
    tracebacks: dict[int, str]
    reports: dict[int, FailureReport]


class RankDiedError(SimlibError):
    """A rank's process ended before its function returned. ``exitcodes`` maps ranks to exit codes.

    A negative exit code is the number of the signal that ended the process.
    """

    kind = "rank_died"
    DETAILS = {"exitcodes": {}}
    exitcodes: dict[int, int]


class DeadlockError(SimlibError):
    """Ranks wait for each other, or for a rank that has finished.

    ``.graph`` is the wait-for graph, a `WaitGraph`. A notebook shows this graph as a picture, and
    `print` shows it as text. ``.graph`` is None if ``timeout_s`` ended the run.
    """

    kind = "deadlock"
    DETAILS = {"graph": None}
    graph: Any


class MismatchError(SimlibError):
    """Ops that belong together disagree. ``rule`` is one word for what differs."""

    kind = "mismatch"
    DETAILS = {"rule": None}
    rule: str | None


class UnfinishedError(SimlibError):
    """A message was never received, or a request never awaited; raised with ``strict=True``."""

    kind = "unfinished"


class RaceError(SimlibError):
    """A rank touched a buffer between the call and its wait; raised with ``strict=True``."""

    kind = "race"


class SharedNameError(SimlibError):
    """Simulated ranks set a variable of a module that they share; raised with ``strict=True``."""

    kind = "shared"


class NoValueError(SimlibError):
    """A program needs a value that ``data=False`` does not compute; raised with ``strict=True``."""

    kind = "no_value"


class StuckError(SimlibError):
    """No rank made progress for ``timeout_s``, and at least one rank was still computing."""

    kind = "stuck_computing"


class OutOfMemoryError(SimlibError):
    """A simulated rank needs more memory than its device has. ``ledger`` lists its bytes by
    category."""

    kind = "out_of_memory"
    DETAILS = {"ledger": {}}
    ledger: dict[str, int]


class JobError(SimlibError):
    """A job failed because of its launcher, a host, the queue or a time limit, or was cancelled."""

    kind = "job"


class JobTimeLimitError(JobError):
    """A job reached its time limit."""


class RunInterrupted(_Ending, KeyboardInterrupt):
    """Somebody stopped a run by the Stop button or Ctrl-C. ``sites`` names the line of each
    rank."""

    kind = "interrupted"


def check_number(name: str, value: object, low: float = 0.0, above: bool = False) -> None:
    """Refuse a value that is not a number or is below ``low``. With ``above``, refuse ``low``
    too."""
    good = isinstance(value, Real) and (value > low if above else value >= low)  # type: ignore[operator]
    if not good:
        bound = f"{'above' if above else 'of at least'} {low:g}"
        raise InvalidCallError(f"{name} is {value!r}: give a number {bound}")


def check_count(name: str, value: object, low: int = 1) -> None:
    """Refuse a value that is not a whole number of at least ``low``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < low:
        raise InvalidCallError(f"{name} is {value!r}: give a whole number of at least {low}")


def as_int(name: str, value: object) -> int:
    """Return a number of bytes or ranks as an int. The number may be a float such as 25e6."""
    if isinstance(value, Real) and not isinstance(value, bool) and value == value // 1:
        return int(value)  # type: ignore[call-overload]
    raise InvalidCallError(f"{name} is {value!r}: give a whole number")


def check_type(name: str, value: object, sort: type) -> None:
    """Refuse a value of another class."""
    if not isinstance(value, sort):
        raise InvalidCallError(f"{name} is {value!r}: give a {sort.__name__}")


def check_choice(name: str, value: Any, known: Collection[Any]) -> Any:
    """Refuse a value that is not one of the known values."""
    if value not in known:
        raise InvalidCallError(f"{name}={value!r} is not one of {', '.join(map(repr, known))}")
    return value


def check_seconds(name: str, value: Any) -> float:
    """Refuse a value that is not a number of seconds."""
    if not _is_at_least_0(value):
        raise InvalidCallError(f"{name}={value!r} must be seconds, 0 or more")
    return float(value)


def check_by_rank(name: str, values: Any, world_size: int) -> dict[int, float]:
    """Refuse a value that is not a dict from ranks to numbers of at least 0. None means empty."""
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise InvalidCallError(f"{name}={values!r} must be a dict by rank, such as {{0: 1.5}}")
    for rank, value in values.items():
        if not (isinstance(rank, Integral) and 0 <= int(rank) < world_size):
            raise InvalidCallError(
                f"{name}: {rank!r} is not a rank: ranks are 0 to {world_size - 1}"
            )
        if not _is_at_least_0(value):
            raise InvalidCallError(f"{name}: rank {rank} has {value!r}: give a number, 0 or more")
    return {int(rank): float(value) for rank, value in values.items()}


def _is_at_least_0(value: Any) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < inf
