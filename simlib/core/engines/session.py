"""A session: the parts of a run that are the same for every engine, from display to errors.

An `Engine` reserves processes, runs the program, and gives the processes back. `perform` does the
rest. If there is no run for some minutes, simlib ends the unused processes. They need several times
the memory of a kernel, and if a class shares a machine, most kernels are idle. The next run starts
the processes again, as a first run does.

This module does not import torch, so that `warm_up` returns at once.
"""

from __future__ import annotations

import contextlib
import functools
import html
import linecache
import math
import multiprocessing
import os
import struct
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.popen_forkserver import Popen
from socket import SO_RCVTIMEO, SOL_SOCKET, socket
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..draw.display import TICK_S, above_bars, bar, has_room
from ..environment import VARIABLE
from ..model.errors import InvalidCallError, RunInterrupted, SimlibError
from .request import SERVED, ExecutionContext
from .workers.server import start_server, stop_server

if TYPE_CHECKING:
    from ..diagnose.findings import Finding
    from ..diagnose.monitor import RankOutput, RunMonitor
    from ..diagnose.verdicts import WaitGraph
    from ..results.run import Run
    from .options import Diagnosis, Program

Failure: TypeAlias = SimlibError | RunInterrupted
"""The errors of runs that do not end well."""
SHOWN_LINES = 400
"""The most lines of one rank that a notebook shows after a run."""
IDLE_VARIABLE = "SIMLIB_IDLE_MINUTES"
MINUTES = 10.0
"""The minutes of rest if the environment sets no number. A student reads a page of a lesson in less
time, and a new start takes only seconds."""

ANSWER_LIMIT_S = 300
"""The limit is long: if a class of thirty begins at once, all servers import torch together."""
MAX_ANSWER_BYTES = 1 << 34


def _as_text(line: bytes) -> str:
    """A line as a terminal would show it: the part after the last carriage return."""
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


def _bar(unfinished: bytes) -> str:
    """A progress bar: an unfinished line that redraws itself by carriage returns; else empty."""
    return _as_text(unfinished) if b"\r" in unfinished else ""


def _lines_of(output: RankOutput) -> list[str]:
    """A rank's output as lines. Leave out a progress bar that was erased at the end."""
    text = output.text
    lines = text.removesuffix("\n").split("\n") if output.total else []
    if lines and "\r" in lines[-1] and not _as_text(lines[-1].encode()).strip():
        lines.pop()
    return lines


def _shortened(lines: list[str]) -> list[str]:
    """The first and last of very many lines, with the number of lines between them."""
    if len(lines) <= SHOWN_LINES:
        return lines
    half = SHOWN_LINES // 2
    note = f"... {len(lines) - 2 * half:,} more lines: see run.output ..."
    return [*lines[:half], note, *lines[-half:]]


class SilentDisplay:
    """Shows nothing. simlib uses it for additional runs, for graded runs, and within a job."""

    def status(self, text: str) -> None:
        """Show for what the run waits."""

    def lines(self, rank: int, lines: Sequence[bytes]) -> None:
        """Show lines that a rank has just completed."""

    def bar(self, rank: int, unfinished: bytes) -> None:
        """Show a rank's unfinished line, if it is a progress bar."""

    def refresh(self) -> None:
        """Bring the display up to date."""

    def waiting(self, text: str) -> None:
        """Show for what a run or a job waits before it begins; nothing if the text is empty."""
        self.status(text)

    def progress(self, words: Callable[[], str]) -> None:
        """Show how far a long run is. `words` says it."""

    def close(self, outputs: Sequence[RankOutput]) -> None:
        """Show the end of the ranks' output."""

    def findings(self, findings: Sequence[Finding]) -> None:
        """Show the findings."""

    def picture(self, graph: WaitGraph) -> None:
        """Show which rank waits for which, if a run has failed with a deadlock."""


class TerminalDisplay(SilentDisplay):
    """Prints each line at once, with its rank before it.

    It shows no progress bar of a rank, because several ranks would need several lines. It shows no
    picture, because the error's text contains everything.
    """

    LONG_S = 5.0
    """Seconds after which a run is long."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._next_s = self._began_s + self.LONG_S
        self._open = contextlib.ExitStack()
        self._show: Callable[[str, int], None] | None = None

    def status(self, text: str) -> None:
        """Show for what the run waits."""
        if text:
            with self._above():
                print(text, file=sys.stderr, flush=True)

    def lines(self, rank: int, lines: Sequence[bytes]) -> None:
        """Show lines a rank has just completed."""
        if lines:
            with self._above():
                sys.stdout.write("".join(f"[{rank}] {_as_text(line)}\n" for line in lines))

    def waiting(self, text: str) -> None:
        """Show for what a run or a job waits, behind the elapsed time, if the terminal has room."""
        if text and has_room(text):
            self._next_s = 0.0
            self.progress(lambda: text)
        else:
            self._open.close()
            self._show = None
            self._next_s = max(self._next_s, self._began_s + self.LONG_S)
            self.status(text)

    def _above(self) -> contextlib.AbstractContextManager[None]:
        return above_bars() if self._show else contextlib.nullcontext()

    def progress(self, words: Callable[[], str]) -> None:
        """Show how far a long run is, behind the elapsed time, if stderr is a terminal."""
        now_s = time.monotonic()
        if now_s < self._next_s or not sys.stderr.isatty():
            return
        self._next_s = now_s + TICK_S
        if self._show is None:
            self._show = self._open.enter_context(bar(None, "", now_s - self._began_s))
        self._show(words(), 0)

    def close(self, outputs: Sequence[RankOutput]) -> None:
        """Show the unfinished last lines."""
        self._open.close()
        for rank, output in enumerate(outputs):
            if _as_text(output.unfinished).strip():
                print(f"[{rank}] {_as_text(output.unfinished)}")
        sys.stdout.flush()

    def findings(self, findings: Sequence[Finding]) -> None:
        """Show the findings."""
        for finding in findings:
            print(f"simlib: {finding}", file=sys.stderr)


class NotebookDisplay(SilentDisplay):
    """A live display that becomes empty at its end. Then it prints all output in rank order.

    Only with such a display is the stored notebook the same for every run. nbval compares stored
    notebooks.
    """

    SHOWN_LINES = 20
    FIRST_AFTER_S = 0.3
    EVERY_S = 0.1

    def __init__(self) -> None:
        from IPython.display import display

        self._lines: list[str] = []
        self._bars: dict[int, str] = {}
        self._status = ""
        self._next = time.monotonic() + self.FIRST_AFTER_S
        self._changed = False
        self._handle = display(self._bundle(""), raw=True, display_id=True)
        self._is_empty = True

    @staticmethod
    def _bundle(markup: str) -> dict[str, str]:
        return {"text/plain": "", "text/html": markup}

    def status(self, text: str) -> None:
        """Show for what the run waits, at once."""
        if text != self._status:
            self._status = text
            self._show()

    def lines(self, rank: int, lines: Sequence[bytes]) -> None:
        """Show lines a rank has just completed."""
        self._lines += [f"[{rank}] {_as_text(line)}" for line in lines[-self.SHOWN_LINES :]]
        del self._lines[: -self.SHOWN_LINES]
        self._changed = self._changed or bool(lines)

    def bar(self, rank: int, unfinished: bytes) -> None:
        """Show a rank's unfinished line, if it is a progress bar."""
        text = _bar(unfinished)
        if text != self._bars.get(rank, ""):
            self._bars[rank] = text
            self._changed = True

    def refresh(self) -> None:
        """Bring the display up to date, not too often."""
        if self._changed and time.monotonic() >= self._next:
            self._show()

    def _show(self) -> None:
        bars = [f"[{rank}] {text}" for rank, text in sorted(self._bars.items()) if text.strip()]
        text = html.escape("\n".join([*self._lines, *bars, self._status]).strip())
        self._handle.update(self._bundle(f"<pre>{text}</pre>" if text else ""), raw=True)
        self._is_empty = not text
        self._changed = False
        self._next = time.monotonic() + self.EVERY_S

    def close(self, outputs: Sequence[RankOutput]) -> None:
        """Empty the display, and print everything in rank order."""
        self._lines.clear()
        self._bars.clear()
        self._status = ""
        if not self._is_empty:
            self._show()
        for rank, output in enumerate(outputs):
            lines = _shortened(_lines_of(output))
            shown = [f"[{rank}] {_as_text(line.encode())}\n" for line in lines]
            sys.stdout.write("".join(shown))

    def findings(self, findings: Sequence[Finding]) -> None:
        """Show the findings."""
        for finding in findings:
            print(finding)

    def picture(self, graph: WaitGraph) -> None:
        """Show the wait-for graph above the error."""
        from IPython.display import display

        display(graph)


def shell() -> Any:
    """IPython's shell if there is one, else None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def open_display() -> SilentDisplay:
    """The display of a run: for a notebook, for a terminal, or silent if outputs are compared."""
    if VARIABLE in os.environ:  # ranks that are not trusted
        return SilentDisplay()
    return NotebookDisplay() if hasattr(shell(), "kernel") else TerminalDisplay()


def show_and_raise(display: SilentDisplay, run: Run, failure: Failure | None) -> Run:
    """Show the findings of a run, or the picture of its failure; returns the `Run`, or raises."""
    if failure is None:
        display.findings(run.findings)
        return run
    run.ended_in(failure)
    if run.graph is not None:
        display.picture(run.graph)
    raise failure


def minutes() -> float:
    """Minutes of rest after which simlib ends processes. Infinite if the environment says 0.

    A kernel that grades keeps its processes, because no student code has run in its server.
    """
    if VARIABLE in os.environ:  # ranks that are not trusted
        return math.inf
    text = os.environ.get(IDLE_VARIABLE, "")
    try:
        asked = float(text) if text else MINUTES
    except ValueError:
        return MINUTES
    return asked if asked > 0 else math.inf


class Resting(Protocol):
    """Processes that are kept between runs."""

    def sleep(self) -> None:
        """End all these processes."""


class IdleTimer:
    """Knows whether a run is under way, and ends unused processes after a long rest.

    Parameters
    ----------
    timer : callable
        A function that makes a timer from seconds and a function, as `threading.Timer` does.
    """

    def __init__(self, timer: Callable[..., Any] = threading.Timer) -> None:
        self._make_timer = timer
        self._lock = threading.Lock()
        self._at_work = 0
        self._used: set[Resting] = set()
        self._timer: Any = None

    def begin(self) -> None:
        """From now on, unused processes end when the time is over, even if there was no run."""
        with self._lock:
            self._stop_timer()
            if not self._at_work:
                self._start_timer()

    @contextlib.contextmanager
    def busy(self, resting: Resting) -> Iterator[None]:
        """Use it around a run. ``resting.sleep()`` ends the processes of the run after a rest."""
        with self._lock:  # waits where processes are just being ended
            self._stop_timer()
            self._at_work += 1
            self._used.add(resting)
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1
                if not self._at_work:
                    self._start_timer()

    def _start_timer(self) -> None:
        seconds = 60 * minutes()
        if seconds > threading.TIMEOUT_MAX:
            return
        timer: Any = self._make_timer(seconds, lambda: self._release(timer))
        timer.daemon = True
        self._timer = timer
        timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self, timer: Any) -> None:
        with self._lock:
            if timer is not self._timer:  # a run began when the time was up
                return
            self._timer = None
            for resting in self._used:
                resting.sleep()
            self._used.clear()
            if not _has_other_children():
                stop_server()


def _has_other_children() -> bool:
    """Whether the server has forked processes of the learner's own that still run."""
    children: list[Any] = multiprocessing.active_children()
    return any(isinstance(one._popen, Popen) for one in children)


@functools.cache
def _idle_timer_of(pid: int) -> IdleTimer:
    return IdleTimer()


def idle_timer() -> IdleTimer:
    """The resting processes of this process."""
    return _idle_timer_of(os.getpid())


def warm_up() -> None:
    """Start the server of ranks before the first run needs it. Returns at once.

    Call it in a startup file of a class's kernels. Then the server imports torch while a student
    reads.
    """
    start_server()
    idle_timer().begin()


def context_here(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None
) -> ExecutionContext:
    """The `ExecutionContext` of this process. ``argv`` is set for a script; ``environ`` is
    added."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise InvalidCallError(
            "the working folder of this kernel no longer exists: go to another folder with os.chdir"
        ) from None
    return ExecutionContext(
        environ=dict(os.environ) | dict(environ or {}),
        cwd=folder,
        path=list(sys.path),
        argv=list(argv if argv is not None else sys.argv),
        is_script=argv is not None,
    )


def cell_numbers() -> dict[str, int]:
    """File name of every notebook cell run so far -> its execution count."""
    return dict(getattr(getattr(shell(), "compile", None), "_filename_map", None) or {})


def new_cells(world: Any, cells: Mapping[str, int]) -> dict:
    """The sources of cells that these processes do not have yet."""
    new = {
        name: linecache.cache[name]
        for name in cells
        if name not in world.cells_sent and name in linecache.cache
    }
    world.cells_sent |= set(new)
    return new


class Engine(ABC):
    """Carries out one run. `perform` does all that is the same for every engine.

    Attributes
    ----------
    sort : str
        ``"a run"`` or ``"a simulation"``.
    program : Program
    diagnosis : Diagnosis
    resting : Resting
        The processes that the engine keeps between runs.
    """

    sort: str
    program: Program
    diagnosis: Diagnosis
    resting: Resting

    @abstractmethod
    def open(self, display: SilentDisplay) -> RunMonitor:
        """Reserve the processes of the ranks. Returns the monitor that will watch them."""

    @abstractmethod
    def execute(self, monitor: Any) -> Failure | None:
        """Run to the end; returns the error that ended it, or None."""

    @abstractmethod
    def make_run(self, monitor: Any) -> Run:
        """The `Run` from the present facts of the monitor."""

    @abstractmethod
    def close(self, monitor: Any, run: Run | None, failure: Failure | None) -> None:
        """Give the processes back. ``run`` is None if simlib could not make a `Run`."""

    def complete(self, monitor: Any, run: Run, failure: Failure | None) -> Failure | None:
        """Add facts to a run that only the engine knows. Returns the error that ended the run."""
        return failure

    def once_more(self, monitor: Any) -> Engine | None:
        """An engine that replaces this one, if the run has shown that it must; or None."""
        return None

    def compare(self, run: Run, monitor: Any) -> list[Finding]:
        """Findings of further runs, after a run that ended well."""
        return []


class Session:
    """One run by an engine, with its display.

    Attributes
    ----------
    outputs : sequence of RankOutput
        By rank, as soon as the engine has reserved processes.
    """

    def __init__(self, engine: Engine, display: SilentDisplay) -> None:
        self._engine = engine
        self._display = display
        self.outputs: Sequence[RankOutput] = ()

    def once(self) -> tuple[Run, Failure | None, Any]:
        """Run; returns the `Run`, the error that ended it, or None, and the monitor."""
        from ..diagnose.failures import interrupted  # it imports torch: `warm_up` has no time

        engine, run, failure = self._engine, None, None
        with idle_timer().busy(engine.resting):
            monitor = engine.open(self._display)
            self.outputs = monitor.outputs
            try:
                try:
                    failure = engine.execute(monitor)
                except KeyboardInterrupt:
                    failure = interrupted(monitor)
                run = engine.make_run(monitor)
                run.seed = engine.program.seeds.seed
                failure = engine.complete(monitor, run, failure)
                if failure is None and monitor.check:
                    run.findings = monitor.findings()
            finally:
                engine.close(monitor, run, failure or self.strict_error(run))
        return run, failure, monitor

    def strict_error(self, run: Run | None) -> Failure | None:
        """The first finding as an error, if findings must be raised."""
        if run is None or not self._engine.diagnosis.strict or not run.findings:
            return None
        from ..diagnose.findings import as_error  # as above

        return as_error(run.findings[0])


def perform(engine: Engine) -> Run:
    """Carry out a run, show its output, and raise the error that ended it."""
    if SERVED:
        raise InvalidCallError(
            f"this code already runs in a rank of {SERVED[-1]}, and a rank cannot start "
            f"{engine.sort}. In a rank, call the function directly. If a file starts ranks itself, "
            "start the file with python FILE. If importing a file starts ranks, put that line "
            'below if __name__ == "__main__":'
        )
    display = open_display()
    session = Session(engine, display)
    try:
        run, failure, monitor = session.once()
        while (finer := engine.once_more(monitor)) is not None:
            engine = finer
            session = Session(engine, display)
            run, failure, monitor = session.once()
        if failure is None:
            run.findings += engine.compare(run, monitor)
            failure = session.strict_error(run)
    finally:
        display.close(session.outputs)
    return show_and_raise(display, run, failure)


def kernels_end(own: socket) -> Connection:
    """The kernel's connection to a process of ranks, made from its socket.

    If a process begins an answer and does not send the rest within `ANSWER_LIMIT_S`, the read ends
    with OSError, as if the process had ended. This limit is necessary because student code can
    write to the other end.
    """
    own.setsockopt(SOL_SOCKET, SO_RCVTIMEO, struct.pack("ll", ANSWER_LIMIT_S, 0))
    return Connection(own.detach())


def answer_of(connection: Connection) -> bytes:
    """The bytes of an answer that has begun to arrive.

    Raises
    ------
    OSError, EOFError
        The other end has ended, or sends no valid answer.
    """
    answer = connection.recv_bytes(MAX_ANSWER_BYTES)
    if not answer:
        raise EOFError("an answer of no bytes")
    return answer
