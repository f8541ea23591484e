"""The result or exception of a rank's function, as bytes for the kernel; for every engine."""

from __future__ import annotations

import functools
import os
import re
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from ..environment import is_learners
from ..model.errors import FailureReport, InvalidCallError, OutOfMemoryError
from . import safe_pickle

LONGEST = 8000
_CALLS = {os.path.join(os.path.dirname(__file__), name) for name in ("group.py", "recorder.py")}
"""The files that pass on calls of torch.distributed and wait for the ops."""
_GLOO_WORDS = re.compile(r"^(ProcessGroupGloo::|\[[^\]]*\] )")
"""Gloo's prefix before text that helps a learner."""
_CUDAS = re.compile(r"(?:CUDA|HIP) error: (.+)")
_NCCLS = re.compile(r"Cuda failure (?:\d+ )?'([^']+)'")
"""The messages of torch and NCCL if a GPU has failed at any earlier work."""
_OF_THE_CALL = re.compile("ncclInvalid(Usage|Argument)")
"""NCCL's messages if it refuses a call. Its other messages are about failures."""
LOST = re.compile(
    "connection (closed|reset) by (remote )?peer|broken pipe|socket closed|ncclRemoteError", re.I
)
"""The messages of Gloo and NCCL if the other rank's process has ended, even before the call."""


def answer_of(
    call: Callable[[], Any], is_script: bool = False, dumps: Callable = safe_pickle.dumps
) -> bytes:
    """Call ``call()`` and put its result into bytes: ``(word, content)``, pickled.

    The word is ``result``, ``unpicklable``, ``exit`` or ``error``. ``dumps`` is as
    `safe_pickle.dumps`.
    """
    try:
        return _result_as_bytes(_with_room(call), dumps)
    except SystemExit as error:
        return _exit_as_bytes(error, is_script, dumps)
    except BaseException as error:  # whatever it is belongs to the learner
        return dumps(("error", describe(error)))


def _with_room(call):
    return call()


# CPython 3.11 and later keep the frames of Python functions in chunks of 16 KiB and give a chunk
# back with its last frame. A loop that stands at the end of a chunk maps and unmaps memory for each
# call, which takes a hundred times as long. A frame of 560 kB gets a chunk of 1 MiB, and the frames
# below it find room there. Nothing touches the pages that nobody uses.
_with_room.__code__ = _with_room.__code__.replace(co_stacksize=70_000)


def _result_as_bytes(result, dumps):
    try:
        return dumps(("result", result), functools.partial(cloudpickle.dumps, protocol=5))
    except Exception as error:
        return dumps(("unpicklable", (type(result).__qualname__, short(error))))


def _exit_as_bytes(error, is_script, dumps):
    """A script may end itself with ``sys.exit(0)``. In a function, `sys.exit` is an early end."""
    code = error.code if isinstance(error.code, int | str) or error.code is None else 1
    if is_script and not code:
        return dumps(("result", None))
    return dumps(("exit", replace(describe(error), exit_code=code)))


def _clipped(text):
    """At most `LONGEST` characters of a text: its beginning and its end."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} ... {len(text) - 2 * half:,} more characters ... {text[-half:]}"


def short(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= 300 else text[:297] + "..."


def describe(error: BaseException) -> FailureReport:
    """An exception as a `FailureReport`."""
    frames = traceback.extract_tb(error.__traceback__)
    innermost = frames[-1].filename if frames else ""
    try:
        message = _clipped("".join(str(error)))
    except Exception:
        message = "(its message could not be made)"
    in_torch = innermost.endswith(os.path.join("distributed", "distributed_c10d.py"))
    refused = in_torch and isinstance(error, (ValueError, TypeError, RuntimeError))
    in_call = innermost in _CALLS
    of_gpu = _words_of_a_gpu(error, message)
    message = of_gpu or message
    in_wait = in_call and frames[-1].name in ("wait", "monitored_barrier")
    by_others = not of_gpu and (in_wait or (in_call and bool(LOST.search(message))))
    if _has_failed(error, message):
        refused = False
    elif in_call and not by_others and isinstance(error, RuntimeError):
        refused = True
        message = _GLOO_WORDS.sub("", message)
    return FailureReport(
        type=type(error).__name__,
        message=message,
        frames=[(f.filename, f.lineno, f.name) for f in frames if is_learners(f.filename)],
        text=_learners_traceback(error),
        invalid=isinstance(error, InvalidCallError) or refused,
        from_wait=by_others,
        ledger=error.ledger if isinstance(error, OutOfMemoryError) else None,
    )


def _words_of_a_gpu(error, message):
    """CUDA's own message in an error. The call that raised the error need not be wrong."""
    found = _CUDAS.match(message) if isinstance(error, RuntimeError) else None
    if isinstance(error, dist.DistBackendError):
        found = _NCCLS.search(message)
    return f"CUDA error: {found[1]}" if found else ""


def _has_failed(error, message):
    """Whether the error is a failure (of a GPU or a connection) during a call that may be right."""
    if isinstance(error, dist.DistBackendError):
        return not _OF_THE_CALL.search(message)
    return isinstance(error, torch.OutOfMemoryError) or message.startswith("CUDA error: ")


def _learners_traceback(error):
    """The traceback as text, with the learner's frames only."""
    try:
        whole = traceback.TracebackException.from_exception(error, compact=True)
        part = whole
        while part is not None:
            part.stack = traceback.StackSummary.from_list(
                [frame for frame in part.stack if is_learners(frame.filename)]
            )
            part = part.__cause__ or part.__context__
        return _clipped("".join(whole.format()))
    except Exception:
        return "".join(traceback.format_exception_only(type(error), error))
