"""`Line`: the connection to the far side: one ssh, kept as long as it holds, and made anew.

A message is a line of JSON, which says how many bytes follow it; so is an answer. Before it the far
side sends empty lines, as long as it is at work. What the far side's start files print before the
first word of `far` is passed over.
"""

from __future__ import annotations

import functools
import json
import os
import re
import select
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from ....core.model.errors import JobError
from ..launcher_failures import cause_in

OPTIONS = (
    "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
    "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
)  # fmt: skip
HELLO = b"simlib is here: "
START_S = 90.0
"""How long the far side may take to load torch from a slow filesystem."""
LATER_S = 2.0
"""How long a look waits for a connection that is made anew."""
ANSWER_S = 20.0
"""So long no byte may come of an answer, or go of a message; then the connection is given up."""
RETRY_S = 2.0
CHUNK = 1 << 16
NO_PYTHON = r"No such file or directory|not found|Permission denied$|cannot execute"
NO_SIMLIB = r"No module named '?(simlib|torch)|No module named \S*remote|unknown option -P"


class UnreachableError(JobError):
    """The far side cannot be reached; the text says why."""

    was_sent = False
    """Whether all of the message had been sent: then it may have been done."""


class Line:
    """Asks the far side, one message at a time.

    Parameters
    ----------
    host : str
        As ssh is told it.
    ssh, python : sequence of str
        The commands that stand for ssh here, and for Python there.
    """

    def __init__(self, host: str, ssh: Sequence[str], python: Sequence[str]) -> None:
        self.host = host
        self._ssh = list(ssh)
        self._python = list(python)
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._errors: Any = None
        self._is_ready = False
        self._was_ready = False
        self._began = 0.0
        self._failed: tuple[float, str] = (-RETRY_S, "")
        self._buffer = bytearray()

    def ask(
        self, message: dict, body: bytes = b"", wait_s: float | None = None
    ) -> tuple[dict, bytes]:
        """Send a message; returns the answer.

        Parameters
        ----------
        message : dict
        body : bytes
        wait_s : float, optional
            Seconds to wait for the connection; few by default where there was one before.

        Raises
        ------
        UnreachableError
            There is no connection, or it has broken: ``was_sent`` says whether the message may
            have arrived.
        JobError
            The far side refuses.
        """
        with self._lock:
            self._connect(LATER_S if self._was_ready and wait_s is None else wait_s or START_S)
            try:
                head = json.dumps({**message, "nbytes": len(body)}).encode() + b"\n"
                self._send(head + body)
                answer, content = self._answer()
            except BaseException:
                self._drop()
                raise
        if "error" in answer:
            raise JobError(answer["error"])
        return answer, content

    def _connect(self, wait_s: float) -> None:
        if self._process is not None and self._is_ready and self._process.poll() is None:
            return
        if self._process is None or self._is_ready:
            self._drop()
            failed_at, words = self._failed
            if time.monotonic() < failed_at + RETRY_S:
                raise UnreachableError(words)
            self._start()
        try:
            while not self._until_newline(wait_s).startswith(HELLO):
                pass
        except TimeoutError:
            if time.monotonic() > self._began + START_S:
                self._drop()
            raise UnreachableError(f"{self.host} has not answered yet") from None
        except BaseException:
            self._drop()
            raise
        self._is_ready = self._was_ready = True

    def _start(self) -> None:
        program = shlex.join(["-P", "-m", "simlib.cluster.batch.remote.remote_agent"])
        command = f"exec {' '.join(map(quoted, self._python))} {program}"
        self._errors = tempfile.TemporaryFile()
        self._buffer.clear()
        self._began = time.monotonic()
        try:
            self._process = subprocess.Popen(
                [*self._ssh, *OPTIONS, self.host, command], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            raise UnreachableError(f"there is no ssh here: {error}") from None
        os.set_blocking(self._process.stdin.fileno(), False)

    def _drop(self) -> None:
        """End the connection; what it says with it is kept for `_lost`."""
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                pipe.close()
            process.terminate()
            threading.Thread(target=process.wait, daemon=True).start()

    def _send(self, content: bytes) -> None:
        left = memoryview(content)
        pipe = self._process.stdin.fileno()
        while left:
            if not select.select([], [pipe], [], ANSWER_S)[1]:
                raise self._lost(f"{self.host} does not answer any more")
            try:
                left = left[os.write(pipe, left[:CHUNK]) :]
            except BrokenPipeError:
                raise self._lost() from None

    def _answer(self) -> tuple[dict, bytes]:
        try:
            while not (head := self._until_newline(ANSWER_S)):  # it is at work
                pass
            answer = json.loads(head)
            return answer, self._exactly(answer["nbytes"])
        except UnreachableError as error:
            error.was_sent = True
            raise

    def _until_newline(self, wait_s: float) -> bytes:
        while b"\n" not in self._buffer:
            self._read_on(wait_s)
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line

    def _exactly(self, length: int) -> bytes:
        while len(self._buffer) < length:
            self._read_on(ANSWER_S)
        content = bytes(self._buffer[:length])
        del self._buffer[:length]
        return content

    def _read_on(self, wait_s: float) -> None:
        pipe = self._process.stdout.fileno()
        if not select.select([pipe], [], [], wait_s)[0]:
            if self._is_ready:
                raise self._lost(f"{self.host} does not answer any more")
            raise TimeoutError
        content = os.read(pipe, CHUNK)
        if not content:
            raise self._lost()
        self._buffer += content

    def _lost(self, words: str | None = None) -> UnreachableError:
        """The error of a connection that has broken."""
        words = words or self._why()
        self._failed = time.monotonic(), words
        return UnreachableError(words)

    def _why(self) -> str:
        """Why ssh has ended, in words."""
        with_errors = self._process
        try:
            with_errors.wait(1)
        except subprocess.TimeoutExpired:
            pass
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip()
        python = shlex.join(self._python)
        sentence, line = cause_in(said)
        if with_errors.returncode == 255:  # ssh itself
            return sentence or f"the connection to {self.host} has broken ({line or 'no word why'})"
        if re.search(NO_SIMLIB, said):
            return (
                f"{self.host} has no simlib like this one for {python} ({said.splitlines()[-1]}): "
                "install the same environment there, and name its Python by python=..."
            )
        if re.search(NO_PYTHON, said, re.MULTILINE):
            return (
                f"{self.host} has no Python {python}: name the one of the course's environment "
                "there by python=..."
            )
        last = said.splitlines()[-1] if said else f"exit code {with_errors.returncode}"
        return f"the far side on {self.host} has ended ({last})"


def quoted(word: str) -> str:
    """A word for the far shell, which still knows ``~/`` as the home folder."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


@functools.cache
def line_to(host: str, ssh: tuple[str, ...], python: tuple[str, ...]) -> Line:
    """The connection that all jobs of this kernel share."""
    return Line(host, ssh, python)
