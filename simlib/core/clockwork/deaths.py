"""What survivors see of a death, in Gloo's words."""

from __future__ import annotations


def closed_by(rank):
    """What an op with a dead rank raises."""
    return (
        f"Connection closed by peer: rank {rank} has died. This is typically caused by a remote "
        "worker crashing."
    )
