"""`Program`: what every rank of a job runs, a function or a whole script."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.engines.request import check_function, name_of, pack, script
from ...core.model.errors import InvalidCallError


@dataclass(frozen=True)
class Program:
    """What the ranks of a job run.

    Attributes
    ----------
    called : str
        The function's name, or the script's file.
    name : str
        Of the job, where it gets no other.
    payload : bytes
        See `pack`.
    argv : list of str, optional
        ``sys.argv`` of a script; None for a function, which finds the notebook's.
    """

    called: str
    name: str
    payload: bytes
    argv: list[str] | None


def program_of(
    what: Callable[..., Any] | str | os.PathLike,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    argv: Sequence[Any] | None,
    world_size: int,
) -> Program:
    """The program that a call of `submit` means; refused where there can be none."""
    if isinstance(what, str | os.PathLike):
        return _of_script(Path(what), args, kwargs, argv, world_size)
    check_function(what, "submit")
    if argv is not None:
        raise InvalidCallError(
            f"argv={argv!r} is for a script: a function is given its arguments by args=..."
        )
    called = name_of(what)
    return Program(called, called, pack(what, args, kwargs, world_size), None)


def _of_script(path, args, kwargs, argv, world_size):
    if not path.is_file():
        raise InvalidCallError(f"there is no file {path}: submit runs a function or a script")
    if args or kwargs:
        raise InvalidCallError(
            f"the script {path.name} is given its arguments as a command line is, by argv=[...], "
            "not by args and kwargs"
        )
    if isinstance(argv, str):
        raise InvalidCallError(f"argv={argv!r} must be a list of words: argv={argv.split()!r}")
    payload = pack(script, (os.path.abspath(path),), None, world_size)
    words = [str(path), *map(str, argv or ())]
    return Program(path.name, path.stem, payload, words)
