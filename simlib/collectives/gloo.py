"""What Gloo sends."""

from __future__ import annotations

from ..errors import InvalidCallError

ALGORITHMS = {}


def choose(kind, n, nbytes):
    """The name of the algorithm that Gloo takes."""
    raise InvalidCallError(f"no algorithm of Gloo is known for {kind}")
