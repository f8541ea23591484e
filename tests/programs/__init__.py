"""A zoo of small rank functions: wrong ones with their diagnosis, right ones that look suspicious.

``python -m tests.programs NAME`` prints what simlib says of one of them.
"""

from . import (  # noqa: F401
    right_collectives,
    right_groups,
    right_p2p,
    right_training,
    wrong_collectives,
    wrong_failures,
    wrong_findings,
    wrong_groups,
    wrong_p2p,
    wrong_training,
)
from .registry import FINDINGS, RIGHT, WRONG

__all__ = ["FINDINGS", "RIGHT", "WRONG"]
