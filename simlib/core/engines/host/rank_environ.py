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
    beside = [other for other, node in enumerate(node_of) if node == node_of[rank]]
    return _environ(
        rank, len(node_of), beside.index(rank), len(beside), node_of[rank], len(set(node_of))
    )


def environ_on_equal_nodes(rank: int, world_size: int, ranks_per_node: int) -> dict[str, str]:
    """The same where each node has so many ranks, the last one those that are left."""
    node, local_rank = divmod(rank, ranks_per_node)
    beside = min(ranks_per_node, world_size - node * ranks_per_node)
    return _environ(rank, world_size, local_rank, beside, node, -(-world_size // ranks_per_node))


def _environ(rank, world_size, local_rank, beside, node, nodes):
    values = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": beside,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "ROLE_NAME": "default",
    }
    return {name: str(value) for name, value in values.items()}


def script_environ(is_script: bool) -> dict[str, str]:
    """What the ranks of a whole script find besides, so that Lightning, say, asks the others.

    A restart has another count; see `Restart`.
    """
    if not is_script:
        return {}
    return {"TORCHELASTIC_RUN_ID": "simlib", "TORCHELASTIC_RESTART_COUNT": "0"}
