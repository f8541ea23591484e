"""A terminal that tests look at."""

import io
import os
import pty
import sys
import termios
import threading


class Terminal(io.StringIO):
    """A terminal instead of stderr. It keeps what is shown, and sets `written` at each write."""

    def __init__(self, monkeypatch, columns=80):
        super().__init__()
        monkeypatch.delenv("TQDM_DISABLE", raising=False)
        monkeypatch.setattr(sys, "stderr", self)
        self.written = threading.Event()
        self._ends = pty.openpty()
        termios.tcsetwinsize(self._ends[1], (24 if columns else 0, columns))

    def isatty(self):
        return True

    def fileno(self):
        return self._ends[1]

    def write(self, text):
        super().write(text)
        self.written.set()

    def hang_up(self):
        for end in self._ends:
            os.close(end)
