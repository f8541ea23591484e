"""An answer in one world: run it; what it returned, and what became of its inputs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...core.engines.options import ByRank
from ...core.model.errors import SimlibError
from ...core.record.safe_pickle import Exchanged
from ..parts import NO_RESULT

WORLDS = (1, 2, 3, 4, 5)
"""World sizes in which an answer is tried, by default."""


@dataclass(frozen=True)
class World:
    """One world in which an answer is tried: who runs it, on what, under which rules."""

    world_size: int
    inputs: Callable
    start: Callable
    rules: tuple


def run_answer(answer, by_rank, start):
    """Run an answer, a rank per tuple of inputs: the `Run`, and the inputs as they are after it.

    ``start(function, world_size, args)`` runs it. A rank knows its own inputs only.

    Raises
    ------
    SimlibError
        The run failed, or a rank that is alive gave no result.
    """

    @functools.wraps(answer)
    def call_answer(rank, world_size, *mine):
        at_first = [list(one) if isinstance(one, list) else one for one in mine]
        returned = answer(rank, world_size, *mine)
        return returned, tuple(map(with_those_at_first, mine, at_first))

    try:
        run = start(call_answer, len(by_rank), ByRank(by_rank))
    except SimlibError as error:
        if error.run is not None:
            keep_returned(error.run)
        raise
    silent = [rank for rank, result in enumerate(run.results) if result is None]
    inputs = keep_returned(run)
    for rank in silent:
        if rank not in run.deaths:
            raise SimlibError(f"rank {rank} {NO_RESULT}: the run ended before it returned", run=run)
    return run, inputs


def with_those_at_first(now, at_first):
    """An input after the call; with a list whose tensors were exchanged, those of before it."""
    if not isinstance(now, list) or not all(isinstance(one, torch.Tensor) for one in at_first):
        return now
    same = len(now) == len(at_first) and all(map(operator.is_, now, at_first))
    return now if same else Exchanged(now, at_first)


def changed_in_place(inputs):
    """What is looked at where an answer changes its first input: of a list, the tensors it held.

    They are what others hold, too, as a model holds its gradients.
    """
    return inputs and getattr(inputs[0], "at_first", inputs[0])


def keep_returned(run):
    """Leave in a run what the answer itself returned; give back the inputs, by rank.

    Both are None for a rank that gave no result.
    """
    pairs = [result or (None, None) for result in run.results]
    run.results = [returned for returned, _ in pairs]
    return [inputs for _, inputs in pairs]
