"""How a command ended: its exit code, and what it tells with ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from .errors import DeadlockError, InvalidCallError, JobTimeLimitError, RunInterrupted, SimlibError


class ExitCode(IntEnum):
    """The exit codes of the command `simlib`."""

    OK = 0
    """All is well: the program ended, no rank waits, no check of the doctor failed."""
    WRONG_PROGRAM = 1
    """simlib found a fault: a deadlock, a mismatch, a call that can never be right, a race."""
    USAGE = 2
    """The call of the command was wrong, or a file that it needs could not be read."""
    RANK_FAILED = 3
    """A rank raised an exception, called `sys.exit` with another code than 0, died, or needed more
    memory than its device has."""
    TIMEOUT = 4
    """A time limit ended the run or the job."""
    NOT_RUN = 5
    """The ranks could not run to the end: the machine, the launcher, a host or the queue failed, or
    somebody cancelled the job."""
    INTERRUPTED = 130
    """Ctrl-C ended the command."""


CODES = (
    "The exit code is 0 if all is well, 1 if the program is wrong, 2 for a wrong call, 3 if a rank "
    "raised an exception or died, 4 after a time limit, 5 if the ranks could not run, and 130 "
    "after Ctrl-C."
)
"""The exit codes in words, for the help of commands."""

_BY_KIND = {
    "rank_error": ExitCode.RANK_FAILED,
    "rank_died": ExitCode.RANK_FAILED,
    "out_of_memory": ExitCode.RANK_FAILED,
    "stuck_computing": ExitCode.TIMEOUT,
    "job": ExitCode.NOT_RUN,
    "error": ExitCode.NOT_RUN,
    "interrupted": ExitCode.INTERRUPTED,
}
"""The exit codes of kinds of errors. All other kinds mean that the program is wrong."""


def exit_code_of(error: SimlibError | RunInterrupted) -> ExitCode:
    """The exit code for the error that ended a run or a job."""
    if isinstance(error, InvalidCallError) and error.run is None:
        return ExitCode.USAGE
    without_graph = isinstance(error, DeadlockError) and error.graph is None
    if without_graph or isinstance(error, JobTimeLimitError):
        return ExitCode.TIMEOUT
    return _BY_KIND.get(error.kind, ExitCode.WRONG_PROGRAM)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command.

    Attributes
    ----------
    code : ExitCode
    kind : str
        ``"ok"``, ``"usage"``, or the kind of the error.
    message : str
        The verdict in words. Empty if all is well.
    facts : mapping of str to object
        Further keys of the JSON document.
    """

    code: ExitCode = ExitCode.OK
    kind: str = "ok"
    message: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_error(cls, error: SimlibError | RunInterrupted, **facts: Any) -> Outcome:
        """The outcome of a command whose run or job ended in an error."""
        code = exit_code_of(error)
        return cls(code, "usage" if code == ExitCode.USAGE else error.kind, str(error), facts)
