"""A process that serves runs starts none itself: a file that did would start itself without end."""

from __future__ import annotations

from ...model import errors

_serves = []


def serve(what):
    """Note that this process serves runs of some sort, ``"a run"`` or ``"a simulation"``."""
    _serves.append(what)


def refuse(what):
    """Refuse to start a run of that sort in a process that serves one.

    Raises
    ------
    InvalidCallError
        This process does.
    """
    if what in _serves:
        raise errors.InvalidCallError(
            f"this process is a rank of {what} already, and a rank cannot start another one: where "
            "a file starts it when it is imported, put that line below "
            'if __name__ == "__main__":'
        )
