"""Functions about the calling rank: its work (`compute`, `span`), its memory (`held`, `hold`)."""

from __future__ import annotations

import contextlib
import operator
import threading
import time
from collections.abc import Iterator
from numbers import Real
from typing import Any

from ..model.errors import InvalidCallError
from ..model.ledger import CATEGORIES

here = threading.local()
"""The data of the rank that this thread runs. For a real rank, it is the log. For a simulated rank,
`simlib.core.engines.virtual.per_rank` adds more data."""

LONGEST_NAME = 20


def compute(seconds: float) -> None:
    """Keep the calling rank busy. A real rank sleeps; a simulated rank's clock advances.

    Parameters
    ----------
    seconds : float
        Seconds of work. With ``slow={rank: factor}``, this rank is busy ``factor`` times longer.

    Raises
    ------
    InvalidCallError
        ``seconds`` is not a number, or is negative.
    """
    is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < float("inf"):
        raise InvalidCallError(f"compute(seconds={seconds!r}): give a number of seconds, 0 or more")
    getattr(here, "advance", time.sleep)(seconds)


@contextlib.contextmanager
def span(name: str, /, **numbers: int) -> Iterator[None]:
    """Name a piece of the calling rank's work: ``with simlib.span("F", micro=3):``.

    Pictures show the piece with its name and numbers. `Run.bubble` counts the time outside of
    pieces. `Run.mfu` and `Run.exposed` can measure only the pieces that you choose.
    ``run.trace.pieces`` lists all pieces. A picture draws an inner piece on top of the outer piece.
    Outside of ranks, ``span`` has no effect. Torch's own pipeline schedules name their pieces
    themselves. Their pieces have the number ``micro=``, and also ``stage=`` if a rank has several
    stages. ``F`` is forward and ``B`` is backward. ``I`` is backward of the inputs alone, and ``W``
    is backward of the weights alone.

    Parameters
    ----------
    name : str
        A short name: at most 20 characters.
    **numbers : int
        Numbers that identify the piece: its micro-batch, stage or layer.

    Raises
    ------
    InvalidCallError
        The name is empty or too long, or a number is not a whole number.
    """
    log = getattr(here, "log", None)
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise InvalidCallError(
            f"span({name!r}): give the piece a name of 1 to {LONGEST_NAME} characters"
        )
    try:
        pairs = tuple((word, operator.index(number)) for word, number in numbers.items())
    except TypeError:
        raise InvalidCallError(
            f"span({name!r}, ...): {numbers} must be whole numbers, as in micro=3"
        ) from None
    if log is None:
        yield
        return
    start = log.begin_piece(name, pairs)
    try:
        with getattr(here, "count_within", contextlib.nullcontext)(start):
            yield
    finally:
        log.end_piece(start)


def hold(tensors: Any, category: str) -> None:
    """Say to which category of the ledger some tensors belong, if simlib cannot know it.

    Examples are optimizer state that your code keeps by hand, and a master copy of the parameters,
    if this copy is an `nn.Parameter` too. The tensors stay in the category until their memory is
    released. If simlib does not count memory, the call has no effect.

    Parameters
    ----------
    tensors : Tensor, or a list or dict of tensors
        Their whole storages count, so all views of one tensor are in the same category.
    category : {"parameters", "gradients", "optimizer state", "activations and temporaries"}

    Raises
    ------
    InvalidCallError
        The category is not one of these.
    """
    if category not in CATEGORIES:
        names = ", ".join(f'"{name}"' for name in CATEGORIES)
        raise InvalidCallError(f"hold(..., {category!r}): the ledger has the categories {names}")
    meter = getattr(here, "meter", None)
    if meter is not None:
        meter.tell(tensors, category)


def held() -> dict[str, int]:
    """Return the bytes of the calling rank's tensors now, as ``{category: bytes}``.

    The categories are the same as in a `Ledger` (`run.memory`): parameters, gradients, optimizer
    state, activations and temporaries. The call takes no virtual time and allocates nothing.

    Returns
    -------
    dict of str to int

    Raises
    ------
    InvalidCallError
        simlib does not count memory, because the call is outside of `simulate` or the cluster has
        no device.
    """
    meter = getattr(here, "meter", None)
    if meter is None:
        raise InvalidCallError(
            "simlib.held() is for ranks of simlib.simulate on a cluster with a device: give "
            "simulate cluster=Cluster(..., device=Device(...)), or memory=True"
        )
    return meter.ledger().current
