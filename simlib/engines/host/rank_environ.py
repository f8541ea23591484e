"""The variables that tell a process its rank, by the names that torchrun has for them."""

from __future__ import annotations

from collections.abc import Sequence


def rank_environ(rank: int, node_of: Sequence[int]) -> dict[str, str]:
    """What one rank finds in its environment.

    Parameters
    ----------
    rank : int
    node_of : sequence of int
        The node of each rank; nodes count from 0.
    """
    world_size, node = len(node_of), node_of[rank]
    beside = [other for other in range(world_size) if node_of[other] == node]
    values = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": beside.index(rank),
        "LOCAL_WORLD_SIZE": len(beside),
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": len(set(node_of)),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "ROLE_NAME": "default",
    }
    return {name: str(value) for name, value in values.items()}


def script_environ(is_script: bool) -> dict[str, str]:
    """What the ranks of a whole script find besides, so that Lightning, say, asks the others."""
    return {"TORCHELASTIC_RUN_ID": "simlib"} if is_script else {}
