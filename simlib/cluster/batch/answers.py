"""What a rank of a job came to, in a file: as plain data where it is that, else as a pickle.

A pickle may call anything when it is read, so it is read only where nobody else can have put it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from ...core.record.plain_data import is_plain
from ...core.record.safe_pickle import dumps_tree, loads_tree

PLAIN = b"plain data\n"
"""What such an answer begins with; no pickle does."""


def dumps(answer: Any, otherwise: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """An answer as bytes; ``otherwise`` makes those of one that is no plain data."""
    return PLAIN + dumps_tree(answer) if is_plain(answer) else otherwise(answer)


def loads(content: bytes, may_call: bool) -> Any:
    """The answer in a file; ``may_call``: also if it is a pickle.

    Raises
    ------
    UnpicklingError
        It is a pickle, and must not be read.
    """
    if content.startswith(PLAIN):
        return loads_tree(content[len(PLAIN) :])
    if not may_call:
        raise pickle.UnpicklingError("it is no plain data, and this account has not written it")
    return pickle.loads(content)
