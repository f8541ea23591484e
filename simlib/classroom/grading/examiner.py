"""The examiner examines the student's cells. It runs in the kernel of a grading run.

No code of a student runs in this process. Cells run in a shell process. The shell sends functions
as bytes, and these become functions again only in ranks. A server forks all these processes. The
server starts before the first of them.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import linecache
import os
import select
import signal
import socket
import time
import warnings

from IPython.core.compilerop import code_name

from ...core.engines.processes.worlds import pool
from ...core.engines.virtual.process import simulators
from ...core.engines.workers.server import RANK_NAME, server_context, travelling
from ...core.environment import uninterrupted
from ..checks.verdict import WRONG, Verdict
from ..confinement.process_sandbox import HOME, end_without_server
from .shell import Submitted, receive, send, shell_main

KEPT_OUTPUT = 4000
MAX_OUTPUT = 4 << 20
START_LIMIT_S = 60
MAX_FILES = 1000
"""The examiner looks at no more than this many files of a folder."""
SPOILS = {"ended", "unreadable"}
"""The outcomes of an answer after which no other cell can use the shell."""


class ShellEnded(Exception):
    """The student's shell ended or had to be ended. The message gives the reason."""


class Examiner:
    """Runs a student's cells, gives their functions to checks, and prints the outcome.

    Parameters
    ----------
    namespace : dict
        The namespace of check and hidden cells. The examiner puts functions, `check` and `measure`
        into it.
    graded : GradedChecks
        The object with `check` and `measure` for this run.
    cell_limit_s : float
        The most seconds for a cell of the student.
    """

    def __init__(self, namespace, graded, cell_limit_s=20):
        self._namespace = namespace
        self._cell_limit_s = cell_limit_s
        self._graded = graded
        self._cells = OnlyStudents()
        self._shell = None
        self._ran = []
        self._failed = set()
        self._spoilt = set()
        self._checked = None
        self._as_checked = {}
        self._files = files_in(HOME)
        warnings.simplefilter("ignore")  # they would be part of what is compared
        name_cells(namespace["get_ipython"]().compile, self._cells)

    def setup(self, source):
        """Run a pristine cell in the student's shell, too. In this process, use the grader's own
        `check`."""
        self._namespace.update(self._graded.names())
        self._run({"source": source})
        self._ran.append((None, {"source": source}))

    def helper(self, source):
        """Run a cell of the student's own."""
        answer = self._run({"source": source})
        self._note(None, {"source": source}, answer)
        print(json.dumps(answer))

    def answer(self, question, source):
        """Run the cell that answers a question. If it fails, try it again without the other
        answers."""
        self._failed.discard(question)
        self._spoilt.discard(question)
        answer = self._run({"source": source})
        if answer["error"] is not None and self._others(question):
            # Perhaps an earlier answer has spoilt the shell for this one.
            self._end_shell()
            alone = self._run({"source": source}, only=question)
            self._end_shell()
            if alone["error"] is None:
                answer = alone
                self._spoilt.add(question)
        if answer["error"] is not None:
            self._failed.add(question)
        self._note(question, {"source": source}, answer)
        print(json.dumps(answer))

    def names_of(self, source):
        """Make the names of a check's cell in the student's shell, because later cells may use
        them."""
        question = self._checked
        verdict = self._graded.verdicts.get(question) or Verdict(question, {}, WRONG)
        words = {name: value for name, value in vars(verdict).items() if name != "run"}
        request = {"check": source, "verdict": words}
        self._note(None, request, self._run(request))

    def fetch(self, question):
        """Get the present function for a question from the shell, for the question's check."""
        self._keep()
        self._renew_ranks()
        self._checked = question
        self._namespace[question] = submitted = None
        answer = {"error": "its cell fails"}
        if question not in self._failed:
            if question not in self._spoilt:
                answer, submitted = self._submitted(question)
            if submitted is None and (self._others(question) or answer.keys() & SPOILS):
                self._end_shell()
                alone, submitted = self._submitted(question, only=question)
                self._end_shell()
                answer = alone if submitted or question in self._spoilt else answer
                if answer.keys() & SPOILS:
                    self._ran = [one for one in self._ran if one[0] != question]
            self._namespace[question] = submitted
        print(json.dumps(answer))

    def _renew_ranks(self):
        """Pass the files that cells have written on to ranks. Each rank gets its own copy."""
        files = files_in(HOME)
        if files != self._files:
            self._files = files
            pool().close()
            simulators().close()

    def _others(self, question):
        """Whether cells that answer other questions have run."""
        return any(other not in (None, question) for other, _ in self._ran)

    def _submitted(self, question, only=None):
        """Return the shell's answer to a request for a function, and the `Submitted`; None if there
        is no function."""
        answer = self._run({"function": question}, only)
        payload, parameters = answer.pop("payload", None), answer.pop("parameters", None)
        if answer["error"] is not None:
            return answer, None
        try:
            return answer, Submitted(question, base64.b64decode(payload), parameters)
        except (KeyError, TypeError, ValueError):
            error = "The function's parameters cannot be read."
            return answer | {"error": error, "unreadable": True}, None

    def _keep(self):
        """When the next cell begins, note the names that a check has made."""
        if self._checked is not None:
            names = {k: v for k, v in self._namespace.items() if not k.startswith("_")}
            self._as_checked[self._checked] = names
        self._checked = None

    def begin(self, cell, question):
        """Announce the next hidden cell, see `GradedChecks.begin`. The cell gets the names of its
        check."""
        self._keep()
        self._namespace.update(self._as_checked.get(question, {}))
        self._graded.begin(cell, question)

    def expect(self, question, recorded):
        """Set the expected outputs of a question's hidden cells, see `GradedChecks.expect`."""
        self._graded.expect(question, recorded)

    def recorded(self, question):
        """Print the outputs of a question's hidden cells, for `expect` in another run."""
        print(self._graded.recorded(question))

    def _note(self, question, request, answer):
        """Keep a cell for later shells, unless the cell has ended this shell."""
        if not answer.get("ended"):
            self._ran.append((question, request))

    def _run(self, request, only=None):
        """Return the shell's answer and its output. If there is no answer, return an error."""
        try:
            if self._shell is None:
                self._shell = self._new_shell(only)
            answer, output = self._shell.ask(request, self._cell_limit_s)
        except ShellEnded as error:
            end_without_server()  # now, so that this cell is blamed for it
            self._end_shell()
            return {"error": str(error), "ended": True, "output": ""}
        name, number = answer.pop("file", None), answer.pop("number", None)
        if "source" in request and is_of_shell(name) and isinstance(number, int):
            text = request["source"]
            linecache.cache[name] = (len(text), None, text.splitlines(True), name)
            self._cells.add(name, number)
        return answer | {"output": output}

    def _new_shell(self, only):
        """Return a shell in which all harmless cells have run. If ``only`` is given, no other
        answers have run in it."""
        shell = Shell()
        try:
            for question, request in self._ran:
                if only is None or question in (None, only):
                    shell.ask(request, self._cell_limit_s)
        except ShellEnded:
            shell.close()
            raise
        return shell

    def _end_shell(self):
        """End the shell, if there is one; the next cell gets a new one."""
        if self._shell is not None:
            self._shell.close()
        self._shell = None


def files_in(folder):
    """Return ``{path: (bytes, time of change)}`` of the files that students' cells have written
    below a folder."""
    found = {}
    paths = (os.path.join(above, name) for above, _, names in os.walk(folder) for name in names)
    for path in itertools.islice(paths, MAX_FILES):
        with contextlib.suppress(OSError):
            state = os.lstat(path)
            found[path] = state.st_size, state.st_mtime_ns
    return found


class Shell:
    """The process in which a student's cells run."""

    def __init__(self):
        self._control, control = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        theirs = [control.detach(), lifeline, output]
        try:
            with uninterrupted():
                self._process = server_context().Process(
                    target=shell_main,
                    args=tuple(map(travelling, theirs)),
                    name=f"{RANK_NAME}: shell",
                )
                self._process.start()
        finally:
            for fd in theirs:
                os.close(fd)
        self._answer(START_LIMIT_S)

    def ask(self, request, limit_s):
        """Send a request and return ``(answer, output)``.

        Raises
        ------
        ShellEnded
            The request takes too long or prints too much, or the process has ended.
        """
        self._control.settimeout(limit_s)  # the last answer has left it with what was left
        with contextlib.suppress(OSError):
            send(self._control, request)
        return self._answer(limit_s)

    def _answer(self, limit_s):
        deadline, printed, total = time.monotonic() + limit_s, b"", 0
        too_long = f"the cell was still running after {limit_s:g} s, and was stopped"
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise ShellEnded(too_long)
            ready, _, _ = select.select([self._control, self._output], [], [], left)
            if self._output in ready:
                piece = os.read(self._output, 1 << 16)
                total += len(piece)
                printed = (printed + piece)[:KEPT_OUTPUT]
                if total > MAX_OUTPUT:
                    raise ShellEnded(
                        f"the cell printed more than {MAX_OUTPUT >> 20} MB, and was stopped"
                    )
                if not piece:
                    raise ShellEnded("the cell ended the process it runs in")
            elif self._control in ready:
                try:
                    answer = receive(self._control, deadline=deadline)
                except TimeoutError:
                    raise ShellEnded(too_long) from None
                except (EOFError, OSError):
                    raise ShellEnded("the cell ended the process it runs in") from None
                except (ValueError, RecursionError):
                    raise ShellEnded("the process of the cell sent an invalid answer") from None
                if not isinstance(answer, dict):
                    raise ShellEnded("the process of the cell sent an invalid answer")
                return {"error": None} | answer, printed.decode("utf-8", "replace")

    def close(self):
        """End the process and its children."""
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(self._process.pid, signal.SIGKILL)
        self._process.join()
        self._process.close()
        self._control.close()
        for fd in (self._lifeline, self._output):
            os.close(fd)


def name_cells(compiler, table):
    """Make a kernel's compiler store cells in this table, under short names as in IPython.

    ipykernel would name a cell by a hash, which it computes in plain Python. For a cell with
    expected values, this takes 0.4 s.
    """
    compiler._filename_map = table
    compiler.get_code_name = lambda raw, code, number: f"examiner: {code_name(code, number)}"


def is_of_shell(name):
    """Whether a cell's name shows that the cell ran in the shell. The grader's own cells do not run
    there."""
    return isinstance(name, str) and name.startswith("<ipython-input-")


class OnlyStudents(dict):
    """IPython's table of cells. It keeps only the student's cells, because ranks get its
    contents."""

    def __setitem__(self, name, number):
        pass

    def add(self, name, number):
        """Note a cell of the student."""
        super().__setitem__(name, number)
