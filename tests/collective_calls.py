"""A collective by its kind, for tests that go through all of them."""

import torch
import torch.distributed as dist


def call(kind, size, numel, root=0, group=None, dtype=torch.float32):
    """Call a collective of a group of so many ranks; each tensor has ``numel`` elements."""
    mine = torch.ones(numel, dtype=dtype)

    def parts():
        return [torch.ones_like(mine) for _ in range(size)]

    at_root = parts if dist.get_rank() == root else lambda: None
    calls = {
        "all_reduce": lambda: dist.all_reduce(mine, group=group),
        "broadcast": lambda: dist.broadcast(mine, root, group=group),
        "reduce": lambda: dist.reduce(mine, root, group=group),
        "all_gather": lambda: dist.all_gather(parts(), mine, group=group),
        "gather": lambda: dist.gather(mine, at_root(), root, group=group),
        "scatter": lambda: dist.scatter(mine, at_root(), root, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(mine, parts(), group=group),
        "all_to_all": lambda: dist.all_to_all(parts(), parts(), group=group),
        "barrier": lambda: dist.barrier(group=group),
    }
    calls[kind]()


KINDS_OF_PARTS = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
"""Collectives of parts, one for each rank; those of the others are of whole vectors."""
