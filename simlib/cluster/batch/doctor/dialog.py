"""`Dialog`: one ssh to a host, with the probe at its other end."""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from ...launch.launchers import FORWARDED
from . import probe

CONNECT_S = 5
"""Seconds in which a host has to accept a connection."""
FIRST_ANSWER_S = 15
"""Seconds in which the probe has to start there: a name server and a slow login included."""
ANSWER_S = 30

BOOT = "import sys; i = sys.stdin.buffer; exec(i.read(int(i.readline())))"
CHOOSE = (
    'for p in "$@"; do if command -v "$p" >/dev/null 2>&1; then exec "$p" -c "$BOOT"; fi; done; '
    "echo simlib-doctor-no-python >&2; exit 127"
)
NO_PYTHON = "simlib-doctor-no-python"


class NoAnswer(Exception):
    """The other end has not answered; its text is what was said instead."""


class Dialog:
    """Asks one host, by one ssh that stays open; a host of None is this machine, without ssh.

    Raises
    ------
    NoAnswer
        With what ssh has said.
    """

    def __init__(self, host=None):
        self.host = host
        try:
            self._process = subprocess.Popen(
                command_of(host), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:  # there is no ssh here
            raise NoAnswer(str(error)) from None
        self._lines, self._errors = queue.Queue(), []
        self._readers = [
            threading.Thread(target=self._read_answers, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        program = Path(probe.__file__).read_bytes()
        try:
            self._write(b"%d\n" % len(program) + program)
            self.ask("clock", limit_s=FIRST_ANSWER_S)
        except BaseException:
            self.close()
            raise

    def ask(self, question, limit_s=ANSWER_S, **values):
        """Ask the probe; returns its answer."""
        self._write(json.dumps([question, values]).encode() + b"\n")
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise NoAnswer(f"no answer to {question!r} for {limit_s} s") from None
        if line is None:
            self._readers[1].join(1)
            said = b"".join(self._errors).decode("utf-8", "replace").strip()
            raise NoAnswer(said or "the connection ended")
        try:
            return json.loads(line[len(probe.MARK) :])
        except ValueError:
            raise NoAnswer("the connection ended in the midst of an answer") from None

    def close(self):
        """End the dialog, and the process that carries it."""
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _write(self, content):
        with suppress(BrokenPipeError):  # then no answer comes, which says why
            self._process.stdin.write(content)
            self._process.stdin.flush()

    def _read_answers(self):
        for line in self._process.stdout:
            text = line.decode("utf-8", "replace")
            if text.startswith(probe.MARK):
                self._lines.put(text)
        self._lines.put(None)

    def _read_errors(self):
        for line in self._process.stderr:
            self._errors.append(line)


def command_of(host):
    """The command that runs the probe: with this Python where the host has it, else with its own.

    The host gets the variables that mpiexec would take along.
    """
    if host is None:
        return [sys.executable, "-c", BOOT]
    taken = [f"{name}={os.environ[name]}" for name in FORWARDED if name in os.environ]
    words = ["env", f"BOOT={BOOT}", *taken, "/bin/sh", "-c", CHOOSE, "sh"]
    words += [sys.executable, "python3", "/usr/bin/python3"]
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]
    return ["ssh", *options, host, shlex.join(words)]
