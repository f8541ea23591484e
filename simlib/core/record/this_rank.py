"""What the calling rank does and has: `compute` and `span`, its own work; `held` and `hold`."""

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
"""What belongs to the rank of this thread: on real ones its log, on simulated ones also what
`simlib.core.engines.virtual.per_rank` puts there."""

LONGEST_NAME = 20


def compute(seconds: float) -> None:
    """Let the calling rank be busy for so long: it sleeps, or its virtual clock goes on.

    Parameters
    ----------
    seconds : float
        In a simulation with ``slow={rank: factor}``, that many times longer on this rank.

    Raises
    ------
    InvalidCallError
        Where ``seconds`` is no number, or negative.
    """
    is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < float("inf"):
        raise InvalidCallError(f"compute(seconds={seconds!r}): give a number of seconds, 0 or more")
    getattr(here, "advance", time.sleep)(seconds)


@contextlib.contextmanager
def span(name: str, /, **numbers: int) -> Iterator[None]:
    """Name a piece of the calling rank's work: ``with simlib.span("F", micro=3):``.

    It is drawn with its name and numbers, counted by `Run.bubble`, and chosen by `Run.mfu` and
    `Run.exposed`; ``run.trace.pieces`` has all of them. One within another is drawn on top of it.
    Outside of ranks, nothing happens. Torch's own pipeline schedules name their pieces so: ``F``
    forward, ``B`` backward, ``I`` backward of the inputs alone, ``W`` of the weights alone, with
    ``stage=`` (where a rank has several) and ``micro=``.

    Parameters
    ----------
    name : str
        A short word: at most 20 characters.
    **numbers : int
        Which one it is: of which micro-batch, stage, layer.

    Raises
    ------
    InvalidCallError
        Where the name is no such word, or a number is none.
    """
    log = getattr(here, "log", None)
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise InvalidCallError(
            f"span({name!r}): name the piece by a word of 1 to {LONGEST_NAME} characters"
        )
    try:
        pairs = tuple((word, operator.index(number)) for word, number in numbers.items())
    except TypeError:
        raise InvalidCallError(
            f"span({name!r}, ...): {numbers} are to be whole numbers, as in micro=3"
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
    """Say to which category of the ledger tensors belong, where simlib cannot know.

    A master copy of the parameters, say, that is an `nn.Parameter` itself, or optimizer state kept
    by hand. It holds until their memory is released. Where nobody counts, nothing happens.

    Parameters
    ----------
    tensors : Tensor, or a list or dict of such
        Their whole storages count: views of one tensor are of one category.
    category : {"parameters", "gradients", "optimizer state", "activations and temporaries"}

    Raises
    ------
    InvalidCallError
        The category is none of these.
    """
    if category not in CATEGORIES:
        names = ", ".join(f'"{name}"' for name in CATEGORIES)
        raise InvalidCallError(f"hold(..., {category!r}): the ledger has the categories {names}")
    meter = getattr(here, "meter", None)
    if meter is not None:
        meter.tell(tensors, category)


def held() -> dict[str, int]:
    """Bytes that the calling rank holds now, as ``{category: bytes}``.

    The categories are those of a `Ledger` (`run.memory`): parameters, gradients, optimizer state,
    activations and temporaries. Asking takes no virtual time and allocates nothing.

    Returns
    -------
    dict of str to int

    Raises
    ------
    InvalidCallError
        Where nobody counts: outside of `simulate`, or on a cluster without a device.
    """
    meter = getattr(here, "meter", None)
    if meter is None:
        raise InvalidCallError(
            "simlib.held() is for ranks of simlib.simulate on a cluster with a device: give it "
            "cluster=Cluster(..., device=Device(...)), or memory=True"
        )
    return meter.ledger().current
