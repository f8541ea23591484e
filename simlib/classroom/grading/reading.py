"""Have files of students read by a process with limits of its own: see `reading_process`.

What is parsed and merged comes from anybody. A file that takes too much memory or time, or ends the
process that reads it, costs itself only: it is unreadable, and another process reads the next one.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from .merge_answers import MergedNotebook, Step, WrongNotebook
from .notebook_file import Unreadable

PROGRAM = Path(__file__).with_name("reading_process.py")
MEMORY_BYTES = 1 << 30
"""Of address space: a notebook of 20 MB in pictures takes a tenth."""
SECONDS = 10
"""Of the processor, for one file."""
PATIENCE_S = 120
"""By the clock, for one file, on a machine that has other things to do."""
LONGEST_ANSWER = 64 << 20


class Reader:
    """Reads files in a process of its own, which is begun when it is first needed.

    Parameters
    ----------
    exercises : dict of str to Exercise
    memory_bytes, seconds, patience_s : int
        What reading one file may take: address space, time of the processor, time by the clock.
    """

    def __init__(
        self, exercises, memory_bytes=MEMORY_BYTES, seconds=SECONDS, patience_s=PATIENCE_S
    ):
        self._exercises = exercises
        self._limits = {"memory_bytes": memory_bytes, "seconds": seconds}
        self._patience_s = patience_s
        self._process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()

    def about(self, content, exercise=None):
        """``(exercise, has answers)`` of a file: its name or None, and whether it answers anything.

        Parameters
        ----------
        content : bytes
        exercise : str or None
            Its exercise where that is known; else its cells say.

        Raises
        ------
        Unreadable
            The reason.
        """
        found = self._ask({"ask": "about", "exercise": exercise}, content)
        return found["exercise"], found["has answers"]

    def merge(self, content, exercise):
        """The `MergedNotebook` of a file and the exercise of this name.

        Raises
        ------
        Unreadable, WrongNotebook
            The reason.
        """
        found = self._ask({"ask": "merge", "exercise": exercise}, content)
        cells = {cell.id: cell for cell in self._exercises[exercise].cells}
        steps = []
        for kind, identity, source, number in found["steps"]:
            cell = cells[identity] if identity else None
            steps.append(Step(kind, cell, cell.source if kind == "pristine" else source, number))
        return MergedNotebook(steps, found["found"], found["notes"])

    def _ask(self, request, content):
        self._begin()
        try:
            line = json.dumps(request | {"nbytes": len(content)}).encode()
            self._process.stdin.write(line + b"\n" + content)
            self._process.stdin.flush()
            answer = self._answer()
        except BrokenPipeError:
            answer = b""
        if not answer.endswith(b"\n"):
            raise Unreadable(self._why_ended())
        found = json.loads(answer)
        for kind, error in (("unreadable", Unreadable), ("wrong notebook", WrongNotebook)):
            if kind in found:
                raise error(found[kind])
        return found

    def _begin(self):
        if self._process is not None:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-s", "-E", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"LANG": "C.UTF-8"},
            cwd="/",
        )
        exercises = {
            name: asdict(one) | {"ids": sorted(one.ids)} for name, one in self._exercises.items()
        }
        line = json.dumps(self._limits | {"exercises": exercises}).encode()
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def _answer(self):
        """The line that comes back; without its end where the process ended, or its time did."""
        until, parts, nbytes = time.monotonic() + self._patience_s, [], 0
        pipe = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while nbytes < LONGEST_ANSWER and selector.select(until - time.monotonic()):
                parts.append(os.read(pipe, 1 << 20))
                nbytes += len(parts[-1])
                if not parts[-1] or parts[-1].endswith(b"\n"):
                    return b"".join(parts)
        return b""

    def _why_ended(self):
        """End the process, and say what a file did that gave no answer."""
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            code = None
        self._end()
        if code in (None, -signal.SIGXCPU):
            return "the file takes too long to be read: clear its outputs, save it again"
        return "the file ends the process that reads it: save it again in JupyterLab"

    def _end(self):
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.stdout.close()
            try:
                process.stdin.close()
            except BrokenPipeError:
                pass
            process.wait()
