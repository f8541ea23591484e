"""Ctrl-C for the command `simlib`: one line and status 130, also while it still imports.

A `KeyboardInterrupt` within an import ends in a traceback, or some code catches it. So Ctrl-C ends
the command at once until the command runs something, and again when that has ended.
"""

import contextlib
import os
import signal
import sys

WORDS = "simlib: stopped by hand"


def _end(*_):
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    below = "\n" if os.isatty(2) else ""  # the line of a clock
    os.write(2, f"{below}{WORDS}\n".encode())
    os._exit(130)


def is_command():
    """Whether this process is the command: `simlib`, `rank-by-rank`, or ``python -m simlib``."""
    name = os.path.basename("".join(sys.argv[:1]))
    return name in ("simlib", "rank-by-rank") or sys.orig_argv[1:3] == ["-m", "simlib"]


def ends_at_once():
    """From here on, Ctrl-C ends the command without a `KeyboardInterrupt`."""
    if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def is_raised():
    """From here on, Ctrl-C raises `KeyboardInterrupt` as usual."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
