"""The process in which a student's cells run: an IPython shell that answers in plain JSON.

A student's function leaves this process as bytes. In the examiner, a `Submitted` represents the
function. The examiner never unpickles the bytes, and only ranks can call the function.
"""

from __future__ import annotations

import base64
import inspect
import os
import pickle
import re
import signal
import socket
import struct
import sys
from json import dumps, loads  # a student may put others into json

from ...core.engines.options import pack
from ...core.engines.rank_process.setup import die_with_the_kernel, show_errors_of_commands
from ...core.engines.request import exactly
from ..checks import verdict
from ..checks.verdict import RIGHT, Verdict
from ..confinement import process_sandbox
from ..confinement.process_sandbox import go_home

KINDS = {kind.name: kind for kind in inspect._ParameterKind}


class Submitted:
    """A function that only ranks can call.

    The examining kernel passes the bytes of the function to the ranks. Only there they become a
    function again. So no student code runs in the kernel.

    Parameters
    ----------
    question : str
        The question that the function answers.
    payload : bytes
        The function, as cloudpickle has stored it.
    parameters : list of (str, str, bool)
        For each parameter: its name, its kind, and whether it has a default. None if unknown.
    """

    __slots__ = ("__name__", "__signature__", "_payload", "question")

    def __init__(self, question, payload, parameters):
        self.__name__ = self.question = question
        self._payload = payload
        if parameters is not None:
            defaults = {True: None, False: inspect.Parameter.empty}
            self.__signature__ = inspect.Signature(
                inspect.Parameter(name, KINDS[kind], default=defaults[bool(has_default)])
                for name, kind, has_default in parameters
            )

    def __call__(self, *args, **kwargs):
        raise TypeError(f"{self.question} can be called only by ranks")

    def __reduce__(self):
        return pickle.loads, (self._payload,)


def parameters_of(function):
    """Return the parameters of a function as plain data, for `Submitted`; None if they are
    unknown."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [(one.name, one.kind.name, one.default is not one.empty) for one in found]


LENGTH = struct.Struct("<I")
CELL = re.compile(r"<ipython-input-[^>]*>, ")
CHECKS = ("check", "check_of")
"""The functions that a check cell may call."""
LONGEST = 2000
"""simlib keeps at most this many characters of an error's text."""


def send(sock, message):
    """Send one message, which JSON can represent."""
    data = dumps(message).encode()
    sock.sendall(LENGTH.pack(len(data)) + data)


def receive(sock, most=1 << 25, deadline=None):
    """Receive one message. Raise EOFError if the other side has ended, or sends more than ``most``
    bytes.

    Raise TimeoutError if the message is not complete at ``deadline``, in seconds of
    `time.monotonic`.
    """
    (length,) = LENGTH.unpack(exactly(sock, LENGTH.size, deadline))
    if length > most:
        raise EOFError(f"a message of {length:,} bytes")
    return loads(exactly(sock, length, deadline))


def shell_main(control, lifeline, output):
    """Run cells until the examiner closes the socket. The command line contains the descriptors."""
    process_sandbox.enter(keeps_home=True)
    die_with_the_kernel(lifeline.detach())
    go_home()
    pipe = output.detach()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, source in ((0, nothing), (1, pipe), (2, pipe)):
        os.dup2(source, fd)
    for fd in (nothing, pipe):
        os.close(fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (lives as long as the process)
    sys.stdout = sys.stderr = open(  # noqa: SIM115
        1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    show_errors_of_commands()
    verdict.instead = check_nothing
    sock = socket.socket(fileno=control.detach())
    shell = new_shell()
    # Cells may start ranks, which need sockets.
    process_sandbox.close(process_sandbox.OF_CELLS, "cells")
    send(sock, {"ready": True})
    while True:
        try:
            request = receive(sock)
        except (EOFError, OSError):
            os._exit(0)
        if "check" in request:
            answer = run_check(shell, request["check"], request["verdict"])
        elif "source" in request:
            answer = run_cell(shell, request["source"])
        else:
            answer = fetch(shell, request["function"])
        sys.stdout.flush()
        send(sock, answer)


def new_shell():
    """Return an IPython shell that keeps no history and writes no files."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class NotebookShell(InteractiveShell):
        """A shell with the functions that JupyterLab offers to cells. Nobody sees its output."""

        def enable_gui(self, gui=None):
            """Open no windows."""

        def run_line_magic(self, magic_name, line, _stack_depth=1):
            """Run a line such as ``%matplotlib inline``. If this line fails, the other lines still
            run."""
            try:
                return super().run_line_magic(magic_name, line, _stack_depth + 1)
            except Exception as error:
                print(in_words(error))

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = NotebookShell.instance(config=config)
    shell.user_ns["display"] = print
    return shell


def in_words(error):
    """Describe an error in words. For a place in a cell, give the line of the cell and not
    IPython's name for the cell."""
    return CELL.sub("", f"{type(error).__name__}: {error}"[:LONGEST])


def run_cell(shell, source):
    """Run one cell. Return its error as text, or None, and the cell's name in tracebacks."""
    number = shell.execution_count
    try:
        result = shell.run_cell(source, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        text = None if error is None else in_words(error)
    except BaseException as error:  # a hook of the student's, SystemExit
        text = in_words(error)
    names = [name for name, at in shell.compile._filename_map.items() if at == number]
    return {"error": text, "file": names[-1] if names else None, "number": number}


def check_nothing(task, answer):
    """Replace `check_of` in the student's own cells. These cells continue as if the check had
    passed."""
    return Verdict(str(task), {}, RIGHT, run=Silent())


class Silent:
    """Replaces a run if the student's own cells ask for one. Each of its attributes is empty."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **options):
        return self

    def __getitem__(self, key):
        return self

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def __repr__(self):
        return ""


def run_check(shell, source, verdict):
    """Run a check's cell only to make its names. The examiner does the real check.

    Parameters
    ----------
    verdict : dict
        The verdict of the check, without its run.
    """
    names = shell.user_ns
    before = {name: names[name] for name in CHECKS if name in names}
    names |= dict.fromkeys(CHECKS, lambda *args, **options: Verdict(**verdict, run=Silent()))
    try:
        return run_cell(shell, source)
    finally:
        for name in CHECKS:
            names.pop(name, None)
        names |= before


def fetch(shell, name):
    """Return the function that answers a question, as bytes with a description, or else the
    error."""
    function = shell.user_ns.get(name)
    if function is None:
        return {"error": f"There is no function {name} when its check runs."}
    if not callable(function):
        return {"error": f"{name} is not a function, but a {type(function).__name__[:100]}."}
    try:
        pack(function, (), None, 1)  # says which part cannot travel
        import cloudpickle

        payload = cloudpickle.dumps(function, protocol=5)
    except BaseException as error:
        return {"error": str(error)[:LONGEST] or in_words(error)}
    text = base64.b64encode(payload).decode()
    return {"payload": text, "parameters": parameters_of(function)}
