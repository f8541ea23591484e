"""What a rank says of its failure."""

from __future__ import annotations

from dataclasses import dataclass


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
