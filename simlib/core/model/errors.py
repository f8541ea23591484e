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

from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .failure_report import FailureReport
    from .trace import Site


class SimlibError(Exception):
    """A wrong program, told in the learner's own lines.

    Parameters
    ----------
    message : str
        The sentence shown to the learner; further lines give details.
    sites : dict of int to Site, optional
        Where each rank concerned was.
    run : Run, optional
        What happened until then.
    """

    kind = "error"

    def __init__(
        self,
        message: str,
        sites: Mapping[int, Site] | None = None,
        run: Any = None,
    ) -> None:
        super().__init__(message)
        self.sites = dict(sites or {})
        self.run = run

    def _render_traceback_(self) -> list[str]:
        """The text a notebook shows: the message alone, without the frames of simlib."""
        return str(self).splitlines()


class InvalidCallError(SimlibError):
    """A call that can never be right: rank out of range, send to self, wrong list length."""

    kind = "invalid"


class RankError(SimlibError):
    """A rank raised an exception; ``.tracebacks`` maps each such rank to its text.

    ``.reports`` maps it to its `FailureReport`: the exception's class, words and frames.
    """

    kind = "rank_error"

    def __init__(
        self,
        message: str,
        sites: Mapping[int, Site] | None = None,
        run: Any = None,
        tracebacks: Mapping[int, str] | None = None,
        reports: Mapping[int, FailureReport] | None = None,
    ) -> None:
        super().__init__(message, sites, run)
        self.tracebacks = dict(tracebacks or {})
        self.reports = dict(reports or {})


class RankDiedError(SimlibError):
    """A rank's process ended before its function did; ``.exitcodes`` maps rank to exit code.

    A negative exit code is the number of the signal that ended the process.
    """

    kind = "rank_died"

    def __init__(
        self,
        message: str,
        sites: Mapping[int, Site] | None = None,
        run: Any = None,
        exitcodes: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(message, sites, run)
        self.exitcodes = dict(exitcodes or {})


class DeadlockError(SimlibError):
    """Ranks wait for each other, or for a rank that has finished.

    ``.graph`` is the wait-for graph: a `WaitGraph`, which shows itself as text and as a picture;
    None where a run ended by ``timeout_s``.
    """

    kind = "deadlock"

    def __init__(
        self,
        message: str,
        sites: Mapping[int, Site] | None = None,
        run: Any = None,
        graph: Any = None,
    ) -> None:
        super().__init__(message, sites, run)
        self.graph = graph


class MismatchError(SimlibError):
    """Ops that meet disagree; ``.rule`` is the word for what on."""

    kind = "mismatch"

    def __init__(
        self,
        message: str,
        sites: Mapping[int, Site] | None = None,
        run: Any = None,
        rule: str | None = None,
    ) -> None:
        super().__init__(message, sites, run)
        self.rule = rule


class UnfinishedError(SimlibError):
    """With ``strict=True``: a message was never received, or a request never waited for."""

    kind = "unfinished"


class RaceError(SimlibError):
    """With ``strict=True``: a buffer was touched between the call and the wait."""

    kind = "race"


class StuckError(SimlibError):
    """No progress until the limit, and a rank is not waiting but computing."""

    kind = "stuck_computing"


class OutOfMemoryError(SimlibError):
    """A simulated rank holds more than its device has; ``.ledger`` is its bytes by category."""

    kind = "out_of_memory"

    def __init__(
        self,
        message: str,
        sites: Mapping[int, Site] | None = None,
        run: Any = None,
        ledger: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(message, sites, run)
        self.ledger = dict(ledger or {})


class JobError(SimlibError):
    """A job could not be carried out: launcher, host, queue, time limit; or it was cancelled."""

    kind = "job"


class RunInterrupted(KeyboardInterrupt):
    """The Stop button (or Ctrl-C) ended a run; ``.sites`` says where each rank was."""

    kind = "interrupted"

    def __init__(
        self,
        message: str,
        sites: Mapping[int, Site] | None = None,
        run: Any = None,
    ) -> None:
        super().__init__(message)
        self.sites = dict(sites or {})
        self.run = run

    _render_traceback_ = SimlibError._render_traceback_


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
