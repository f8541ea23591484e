"""What a wrong program raises. Every error names the rule, the ranks, the line and what to do.

A run that fails raises a `SimlibError`. It knows

``.kind``
    one word for the sort of failure (the table in docs/errors.md);
``.sites``
    ``{rank: Site}``: where each rank concerned was, in the learner's own file or cell;
``.run``
    the `Run` so far: the output, the trace and the picture up to the failure.
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
    """An exception of a rank's, as plain data.

    Attributes
    ----------
    type, message : str
        The exception's class, by name, and its words.
    frames : list of (str, int, str)
        The learner's frames as (file, line, function), outermost first.
    text : str
        The traceback without the frames of simlib and torch.
    invalid : bool
        Whether torch or simlib refused the call.
    from_wait : bool
        Whether other ranks ended it: in a wait for them, or because they are gone.
    ledger : dict or None
        Of a rank that ran out of memory: its bytes by category.
    exit_code : int, str or None
        Of a rank that left by `sys.exit`: what it gave.
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
    """How a run ended, as an exception; see `SimlibError` for the parameters."""

    DETAILS: ClassVar[dict[str, Any]] = {}
    """What a class knows beside that: the attribute's name, and its value where none is given."""
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
        """The text a notebook shows: the message alone, without the frames of simlib."""
        return str(self).splitlines()


class SimlibError(_Ending, Exception):
    """A wrong program, told in the learner's own lines.

    Parameters
    ----------
    message : str
        The sentence shown to the learner; further lines give details.
    sites : dict of int to Site, optional
        Where each rank concerned was.
    run : Run, optional
        What happened until then.
    details
        What a class knows beside that, by the names of its attributes.
    """

    kind = "error"


class InvalidCallError(SimlibError):
    """A call that can never be right: rank out of range, send to self, wrong list length."""

    kind = "invalid"


class RefusedCall(InvalidCallError, RuntimeError):
    """The same, raised in the rank: a program may catch what torch raises there."""


class RefusedValue(InvalidCallError, ValueError):
    """The same, where torch raises a ValueError."""


class RefusedType(InvalidCallError, TypeError):
    """The same, where torch raises a TypeError."""


class RefusedIndex(InvalidCallError, IndexError):
    """The same, where torch raises an IndexError."""


class RefusedLayout(InvalidCallError, NotImplementedError):
    """The same, where torch has no such op for these tensors, or for none at all."""


class RankError(SimlibError):
    """A rank raised an exception; ``.tracebacks`` maps each such rank to its text.

    ``.reports`` maps it to its `FailureReport`: the exception's class, words and frames.
    """

    kind = "rank_error"
    DETAILS = {"tracebacks": {}, "reports": {}}
    tracebacks: dict[int, str]
    reports: dict[int, FailureReport]


class RankDiedError(SimlibError):
    """A rank's process ended before its function did; ``.exitcodes`` maps rank to exit code.

    A negative exit code is the number of the signal that ended the process.
    """

    kind = "rank_died"
    DETAILS = {"exitcodes": {}}
    exitcodes: dict[int, int]


class DeadlockError(SimlibError):
    """Ranks wait for each other, or for a rank that has finished.

    ``.graph`` is the wait-for graph: a `WaitGraph`, which shows itself as text and as a picture;
    None where a run ended by ``timeout_s``.
    """

    kind = "deadlock"
    DETAILS = {"graph": None}
    graph: Any


class MismatchError(SimlibError):
    """Ops that meet disagree; ``.rule`` is the word for what on."""

    kind = "mismatch"
    DETAILS = {"rule": None}
    rule: str | None


class UnfinishedError(SimlibError):
    """With ``strict=True``: a message was never received, or a request never waited for."""

    kind = "unfinished"


class RaceError(SimlibError):
    """With ``strict=True``: a buffer was touched between the call and the wait."""

    kind = "race"


class SharedNameError(SimlibError):
    """With ``strict=True``: simulated ranks set a name of a module that they share."""

    kind = "shared"


class NoValueError(SimlibError):
    """With ``strict=True``: a program asked for a value that a simulation without data lacks."""

    kind = "no_value"


class StuckError(SimlibError):
    """No progress until the limit, and a rank is not waiting but computing."""

    kind = "stuck_computing"


class OutOfMemoryError(SimlibError):
    """A simulated rank holds more than its device has; ``.ledger`` is its bytes by category."""

    kind = "out_of_memory"
    DETAILS = {"ledger": {}}
    ledger: dict[str, int]


class JobError(SimlibError):
    """A job could not be carried out: launcher, host, queue, time limit; or it was cancelled."""

    kind = "job"


class RunInterrupted(_Ending, KeyboardInterrupt):
    """The Stop button (or Ctrl-C) ended a run; ``.sites`` says where each rank was."""

    kind = "interrupted"


def check_number(name: str, value: object, low: float = 0.0, above: bool = False) -> None:
    """Refuse a value that is no number, or is below ``low`` (with ``above``: not above it)."""
    good = isinstance(value, Real) and (value > low if above else value >= low)  # type: ignore[operator]
    if not good:
        bound = f"{'above' if above else 'at least'} {low:g}"
        raise InvalidCallError(f"{name} is {value!r}: give a number {bound}")


def check_count(name: str, value: object, low: int = 1) -> None:
    """Refuse a value that is no whole number of at least ``low``."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < low:
        raise InvalidCallError(f"{name} is {value!r}: give a whole number of at least {low}")


def as_int(name: str, value: object) -> int:
    """A number of bytes or ranks, also where it is written as 25e6."""
    if isinstance(value, Real) and not isinstance(value, bool) and value == value // 1:
        return int(value)  # type: ignore[call-overload]
    raise InvalidCallError(f"{name} is {value!r}: give a whole number")


def check_type(name: str, value: object, sort: type) -> None:
    """Refuse a value of another class."""
    if not isinstance(value, sort):
        raise InvalidCallError(f"{name} is {value!r}: give a {sort.__name__}")


def check_choice(name: str, value: Any, known: Collection[Any]) -> Any:
    """Refuse a value that is none of those known."""
    if value not in known:
        raise InvalidCallError(f"{name}={value!r} is none of {', '.join(map(repr, known))}")
    return value


def check_seconds(name: str, value: Any) -> float:
    """Refuse what is no number of seconds."""
    if not _is_at_least_0(value):
        raise InvalidCallError(f"{name}={value!r} must be seconds, 0 or more")
    return float(value)


def check_by_rank(name: str, values: Any, world_size: int) -> dict[int, float]:
    """Refuse what is no dict from ranks to numbers of at least 0; None is an empty one."""
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise InvalidCallError(f"{name}={values!r} must be a dict by rank: {{0: 1.5}}")
    for rank, value in values.items():
        if not (isinstance(rank, Integral) and 0 <= int(rank) < world_size):
            raise InvalidCallError(f"{name}: {rank!r} is no rank: 0 to {world_size - 1}")
        if not _is_at_least_0(value):
            raise InvalidCallError(f"{name}: {value!r} for rank {rank} must be 0 or more")
    return {int(rank): float(value) for rank, value in values.items()}


def _is_at_least_0(value: Any) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < inf
