"""In which order a rank of a pipeline computes: GPipe, 1F1B, and interleaved 1F1B."""

from __future__ import annotations

import numpy as np


def order_of(schedule, rank, ranks, count, per_rank):
    """What a rank computes, in order: ``("F" or "B", stage, microbatch)``."""
    forward, backward = _forward_and_backward(schedule, rank, ranks, count, per_rank)
    if schedule == "gpipe":
        ahead = count
    elif schedule == "1f1b":
        ahead = ranks - rank - 1
    else:
        ahead = 2 * (ranks - rank - 1) + (per_rank - 1) * ranks
    ahead = min(ahead, len(forward))
    order = forward[:ahead]
    for one_forward, one_backward in zip(forward[ahead:], backward, strict=False):
        order += [one_forward, one_backward]
    return order + backward[len(forward) - ahead :]


def _forward_and_backward(schedule, rank, ranks, count, per_rank):
    """All forward units of a rank, and all backward units, each in order."""
    if schedule != "interleaved":
        microbatches = range(count)
        back = reversed(microbatches) if schedule == "gpipe" else microbatches
        return [("F", rank, m) for m in microbatches], [("B", rank, m) for m in back]
    groups = [range(first, first + ranks) for first in range(0, count, ranks)]
    stages = [rank + ranks * part for part in range(per_rank)]
    return (
        [("F", stage, m) for group in groups for stage in stages for m in group],
        [("B", stage, m) for group in groups for stage in reversed(stages) for m in group],
    )


def most_held(order):
    """Most activations that a rank holds at a time."""
    changes = [1 if kind == "F" else -1 for kind, _, _ in order]
    return int(np.cumsum(changes).max())
