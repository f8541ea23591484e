"""A submitted job and its outcome, as the job's folder describes them. `jobs` lists all jobs."""

from __future__ import annotations

import json
import linecache
import os
import shutil
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...core.engines.restarts import tell
from ...core.engines.session import open_display, show_and_raise
from ...core.model.errors import (
    DeadlockError,
    InvalidCallError,
    JobError,
    JobTimeLimitError,
    SimlibError,
    StuckError,
)
from ...core.model.words import ranks_in_words
from ...core.record.oplog import FORMAT
from ...core.record.safe_pickle import loads_tree
from ...core.results.run import Run, make_run
from . import logs
from .failures import (
    DIED,
    cause_in,
    doctor_for,
    ended_by_queue,
    lost_hosts,
    lost_ranks,
    mute_hosts,
    refusal_in,
)
from .folder import JOBS, GoneError, JobFolder
from .logs import JobMonitor
from .remote_state import RemoteState
from .state import JobInQueue, JobState

LOOK_S = 0.1
CANCEL_S = 15.0
FULL_BYTES = 1 << 20
"""A filesystem with less free space than this is full: the files of a rank no longer fit."""
SAID = ("launcher.err", "launcher.out", "batch.err")
PATIENT_S = 5.0
"""`result` waits silently for this many seconds. Then it says for what it waits."""


class Job:
    """A job of `submit`. It continues even if no kernel watches it.

    Parameters
    ----------
    path : str or Path
        The job's folder. In a new kernel, find a job again with `jobs`, or with
        ``simlib.Job(path)``.

    Raises
    ------
    InvalidCallError
        The folder contains no job, or simlib cannot read the job, or another account may have
        written it.

    Notes
    -----
    The course contains *recorded* jobs. simlib reads them as plain data. Any account may own them.
    """

    def __init__(self, path: str | Path) -> None:
        self._folder, self._about = _opened(Path(path).absolute())
        self._outcome = JobOutcome(self._folder, self._about, self.name)

    @property
    def name(self) -> str:
        """The job's name, NAME-NUMBER, which is also the name of its folder."""
        return self._folder.path.name

    @property
    def path(self) -> Path:
        """The job's folder."""
        return self._folder.path

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._about["world_size"]

    @property
    def place(self) -> str:
        """A text that says where the job's ranks run."""
        return self._about["to"]

    @property
    def status(self) -> str:
        """The state of the job: ``queued``, ``active``, ``done``, ``failed`` or ``cancelled``."""
        return self._outcome.status

    @property
    def clocks(self) -> list[dict[str, Any] | None]:
        """``host``, ``offset_s`` and ``error_s`` of each rank, measured at the start of the job.

        ``offset_s`` is the number of seconds by which the rank's clock is ahead of rank 0's clock.
        simlib subtracts this offset from all times in the trace. ``error_s`` is the largest error
        of ``offset_s``. The entry is None for a rank that has not joined. With ``restarts=`` the
        values come from the last attempt.
        """
        keys = ("host", "offset_s", "error_s")
        folder, ranks = self._at_work, self._ranks_at_work
        places = [folder.read_json("json", rank) for rank in ranks]
        return [place and {key: place[key] for key in keys} for place in places]

    @property
    def trouble(self) -> str:
        """A text that says why the running job is stuck; empty if simlib knows no reason."""
        return self._outcome.trouble or (self._waits() if self.status == "active" else "")

    def _waits(self) -> str:
        """Which ranks wait for which, if no rank made progress for long, and which hosts do not
        answer."""
        folder = self._at_work
        waiting = folder.read_json("waiting.json") or {"words": ""}
        if not folder.read_json("lost.json"):
            return waiting["words"]
        places = {rank: folder.read_json("json", rank) for rank in self._ranks_at_work}
        return "; ".join(filter(None, (waiting["words"], lost_hosts(folder, places))))

    @property
    def _ranks_at_work(self) -> range:
        return range(self._at_work.about()["world_size"])

    @property
    def _at_work(self) -> JobFolder:
        """The folder of the last attempt; the job's own folder if it has one attempt only."""
        return (self._folder.attempts() or [self._folder])[-1]

    def follow(self) -> None:
        """Show the output of the ranks, as they print it, until the job ends.

        The Stop button (or Ctrl-C) ends this call. The job continues.
        """
        display = open_display()
        folder = self._at_work
        monitor = JobMonitor(folder)
        said = ""
        try:
            while True:
                status = self.status
                if self._at_work.path != folder.path:
                    folder = self._at_work
                    monitor = JobMonitor(folder)
                words = self._in_words(status)
                if words != said:
                    display.waiting(words)
                    said = words
                if status == "active" and not words:
                    display.progress(lambda: f"{self.name} runs")
                monitor.take_in(display.lines)
                display.refresh()
                if status not in ("queued", "active"):
                    break
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            display.waiting("")
            path = os.path.relpath(self.path)
            print(f"{self.name} still runs; job.cancel() or `simlib cancel {path}` ends it")
        finally:
            display.status("")
            display.close(monitor.outputs)

    def _in_words(self, status: str) -> str:
        if self._outcome.trouble:
            return f"{self.name} still runs on the cluster: {self._outcome.trouble}"
        if status == "queued":
            if self._outcome.queue.state() is None:
                return f"{self.name} is about to start"
            then, now = time.localtime(self._about["submitted"]), time.localtime()
            is_today = then[:3] == now[:3]
            since = time.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M", then)
            words = f"{self.name} has been in the queue since {since}"
            return ": ".join(filter(None, (words, self._outcome.queue.reason())))
        folder, ranks = self._at_work, self._ranks_at_work
        joined = sum(folder.has("json", rank) for rank in ranks)
        if status == "active" and joined < len(ranks):
            return f"{self.name} starts: {joined} of {len(ranks)} ranks have started"
        waits = self._waits() if status == "active" else ""
        return waits and f"{self.name} runs: {waits}"

    def result(self, timeout: float | None = None) -> Run:
        """Wait for the job's end and return its `Run`. This raises the same errors as `run`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait.

        Raises
        ------
        TimeoutError
            The job has not ended after ``timeout`` seconds. It continues.
        JobError
            The job could not be carried out, was cancelled, or reached its time limit. Or this
            version of simlib cannot read the logs that another version wrote.
        """
        display = open_display()
        try:
            self._await_end(timeout, display)
            return show_and_raise(display, *self._outcome.run_and_error())
        finally:
            display.close(())

    def _await_end(self, timeout: float | None, display: Any) -> None:
        """Wait for the job's end. While the job waits in the queue, say why."""
        began = time.monotonic()
        said = ""
        while (status := self.status) in ("queued", "active"):
            waited_s = time.monotonic() - began
            trouble = self._outcome.trouble or (self._waits() if status == "active" else "")
            if timeout is not None and waited_s > timeout:
                why = self._outcome.queue.reason() if status == "queued" else ""
                why = trouble or why
                words = f"{self.name} is still {status} after {timeout:g} s"
                raise TimeoutError(": ".join(filter(None, (words, why))))
            is_told = status == "queued" or trouble
            words = self._in_words(status) if is_told and waited_s > PATIENT_S else ""
            if words != said:
                display.waiting(words)
                said = words
            if not words:
                display.progress(lambda status=status: f"{self.name} is {status}")
            time.sleep(LOOK_S)

    def cancel(self) -> None:
        """End the job, and return when the job's launcher has ended. The job's folder stays.

        Ranks on other hosts end within a second.

        Raises
        ------
        JobError
            The job has not ended in 15 s, or somebody has deleted its folder. If the folder is
            gone, the ranks of the job end by themselves.
        """
        try:
            state = self._outcome.state
        except GoneError:
            self._outcome.queue.cancel()
            raise
        for folder in self._folder.attempts():  # nobody may be left to hand the word on
            folder.mark("end")
        if state["state"] == "ended" and state["why"] != "lost":
            return
        self._folder.mark("cancel")
        self._folder.mark("end")
        self._outcome.queue.cancel()
        deadline = time.monotonic() + CANCEL_S
        while self.status in ("queued", "active"):
            if time.monotonic() > deadline:
                raise JobError(
                    f"{self.name} is still {self.status} {CANCEL_S:g} s after it was cancelled: "
                    f"check whether the job's hosts can read {self.path}"
                )
            time.sleep(LOOK_S)

    def __repr__(self) -> str:
        try:
            status, trouble = self.status, self.trouble
        except GoneError:
            status, trouble = "deleted", ""
        words = f"{self.name}: {status}, {self.world_size} ranks on {self.place}"
        return "; ".join(filter(None, (words, trouble)))


class JobOutcome:
    """The outcome of a job, or of one attempt of a job with restarts.

    Parameters
    ----------
    folder : JobFolder
    about : dict
        The contents of the job's ``job.json``.
    name : str
        The name of the job.
    """

    def __init__(self, folder: JobFolder, about: dict[str, Any], name: str) -> None:
        self._folder = folder
        self._about = about
        self._name = name
        is_remote = folder.has("remote.json")
        self._state = RemoteState(folder) if is_remote else JobState(folder, about["submitted"])

    @property
    def queue(self) -> JobInQueue | RemoteState:
        """The words of the scheduler."""
        return self._state.queue

    @property
    def trouble(self) -> str:
        """See `JobState.trouble`."""
        return self._state.trouble

    @property
    def state(self) -> dict[str, Any]:
        """See `JobState.now`; a `GoneError` if the job's folder is deleted."""
        self._folder.need("job.json")
        return self._state.now()

    @property
    def status(self) -> str:
        """See `Job.status`."""
        state = self.state
        if state["state"] != "ended":
            return state["state"]
        why, code = state["why"], state["code"]
        if why == "code" and code == 0:
            return "done"
        is_wanted = why == "cancel" or (why in ("code", "lost") and self._folder.has("cancel"))
        is_wanted = is_wanted and not self._was_ended_by_queue()
        return "cancelled" if is_wanted else "failed"

    def run_and_error(self) -> tuple[Run, SimlibError | None]:
        """The `Run` of a job that has ended, and the error to raise, or None."""
        attempts = self._folder.attempts()
        if not attempts:
            return self._of_ranks()
        runs: list[Run] = []
        for folder in attempts:
            about = folder.about()
            run, failure = JobOutcome(folder, about, self._name).run_and_error()
            tell(run, runs, about["began_s"])
        return run, self._ended_from_outside() or self._refused() or failure

    def _of_ranks(self) -> tuple[Run, SimlibError | None]:
        self._check_log_format()
        self._know_cells()
        monitor = JobMonitor(self._folder)
        monitor.take_in()
        clock_error_s = monitor.read_to_the_end()
        self._blame(monitor)
        run = make_run(monitor)
        run.trace.clock_error_s = clock_error_s
        run.seed, _ = self._about.get("seeds", (None, False))  # a job of an older simlib: none
        failure = self._failure(monitor)
        if failure is None and monitor.check:
            run.findings = monitor.detector.findings(monitor.deaths)
        return run, failure

    def _blame(self, monitor: JobMonitor) -> None:
        """Count a rank as dead if the rank and its supervisor are gone, and if their end ended the
        job.

        The rank does not count as dead if another rank failed by itself, if somebody ended the job,
        or if the ranks ended because the process that watched their launcher was gone.
        """
        if self.status != "failed" or self.state["why"] == "lost":
            return
        if self._folder.has("verdict.pkl") or self._refused() or self._ended_from_outside():
            return
        if not monitor.failed_by_itself():
            said = self._launcher_said()
            gone = lost_ranks(self._folder, monitor.places, monitor.running(), said)
            monitor.deaths |= dict.fromkeys(gone, DIED)
            monitor.death_words |= gone

    def _check_log_format(self) -> None:
        """Refuse logs of a format that this version of simlib would misread."""
        found = self._about.get("log_format", 1)
        ranks = range(self._about["world_size"])
        if found != FORMAT and any(self._folder.has("log", rank) for rank in ranks):
            age = "an older" if found < FORMAT else "a newer"
            raise JobError(
                f"the logs of {self._name} were written by {age} simlib, in format {found} instead "
                f"of {FORMAT}: read the job with that simlib, or submit the job again"
            )

    def _know_cells(self) -> None:
        """Load the lines of the notebook's cells, for a kernel that has not run these cells."""
        cells = loads_tree(self._folder.need("request.pkl"))["cells"]
        for cell, entry in cells.items():
            linecache.cache.setdefault(cell, entry)

    def _failure(self, monitor: JobMonitor) -> SimlibError | None:
        """Return the error of the network, the judge, the ranks or the launcher, or None.

        The check of the hosts may fail although the hosts work, for example behind a firewall that
        limits the number of connections. So an error that a rank has raised by itself comes first.
        """
        hosts = lost_hosts(self._folder, monitor.places) if self.status == "failed" else None
        if hosts is not None and not monitor.raised_by_itself():
            return self._lost(hosts, monitor)
        pickled = self._folder.read("verdict.pkl")
        if pickled is not None:
            verdict = self._verdict_in(pickled)
            return (_is_guess(verdict) and self._told_of_late(monitor)) or verdict
        outside = self._ended_from_outside(monitor.running())
        if outside is not None:
            return outside
        failure = monitor.failure()
        # MPI may have a rank crash that still waits for one which cannot join.
        died_early = self._folder.has("died_early") or monitor.deaths.keys() - monitor.places.keys()
        died_early = died_early and not monitor.raised_by_itself()
        if died_early or not monitor.failed_by_itself():
            refused = self._refused()
            if refused is not None:
                return refused
        state = self.state
        is_whole = not monitor.running() and (self.status == "done" or state["why"] == "lost")
        if failure is not None or is_whole:
            return failure
        return self._launcher_failed(monitor.running(), state)

    def _told_of_late(self, monitor: JobMonitor) -> JobError | None:
        """The error of late ranks, if they or their launcher have said why.

        If some ranks have never joined, the method always returns an error.
        """
        refused = self._refused()
        if refused is not None or len(monitor.places) == monitor.world_size:
            return refused
        ranks = range(monitor.world_size)
        absent = [rank for rank in ranks if not self._folder.has("log", rank)] or ranks
        words = f"{ranks_in_words(absent)} did not join the others in {monitor.timeout_s:g} s"
        words += ": a host that is slow to load simlib needs a larger timeout_s"
        return self._launcher_failed(absent, {"words": words})

    def _lost(self, hosts: str, monitor: JobMonitor) -> JobError:
        """The error of a job that has lost hosts. Its text ends with the job's other outcome."""
        verdict = self._folder.read("verdict.pkl")
        other = monitor.failure() if verdict is None else self._verdict_in(verdict)
        how = "" if other is None else f"\nWhat happened then: {other}"
        return JobError(f"{self._name} could not be carried out: {hosts}{how}")

    def _verdict_in(self, pickled: bytes) -> SimlibError:
        try:
            return logs.load_verdict(pickled)
        except Exception as error:  # its classes stand elsewhere by now
            return JobError(
                f"this version of simlib cannot read the error that ended {self._name}: use the "
                f"version that ran the job ({type(error).__name__}: {error})"
            )

    def _ended_from_outside(self, missing: Iterable[int] = ()) -> JobError | None:
        """The error of a job that the queue, the learner or its time limit has ended."""
        if self._was_ended_by_queue():
            return self._launcher_failed(missing, {})
        if self.status == "cancelled":
            return JobError(f"{self._name} was cancelled")
        return self._out_of_limit() if self.state["why"] == "limit" else None

    def _out_of_limit(self) -> JobError:
        limit = json.loads(self._folder.need("launch.json"))["time_limit"]
        return JobTimeLimitError(
            f"{self._name} reached its time limit of {limit:g} s before its ranks were done: "
            "increase time_limit"
        )

    def _refused(self) -> JobError | None:
        """The error of ranks that could not begin or end, or of an attempt that could not be
        made."""
        told = self._folder.text("refused") or refusal_in(self._launcher_said())
        if not told:
            told = self._folder.text("died_early")
            if not told or cause_in(self._launcher_said())[0] is not None:
                return None  # the launcher knows more of an early death
        return JobError(f"{self._name} could not be carried out: {told}")

    def _was_ended_by_queue(self) -> bool:
        said = self._launcher_said()
        return bool(said.strip()) and ended_by_queue(said)

    def _launcher_said(self) -> str:
        return "\n".join(self._folder.text(name) for name in ("launcher.err", "launcher.out"))

    def _launcher_failed(self, missing: Iterable[int], state: dict[str, Any]) -> JobError:
        doctor = doctor_for(self._about.get("hosts"), self._folder.path.parent)
        sentence, line = cause_in(self._launcher_said() + self.queue.words(), doctor)
        if shutil.disk_usage(self._folder.path).free < FULL_BYTES:
            sentence = "the filesystem of the job's folder is full: free space, or set folder=..."
        sentence = sentence or mute_hosts(self._folder) or state.get("words")
        if sentence is None:
            who = ranks_in_words(missing) if missing else "the ranks"
            code = f" with exit code {state['code']}" if state.get("code") is not None else ""
            sentence = f"{who} did not answer, and the launcher has ended{code}"
            sentence += f": `{doctor}` checks the hosts" if doctor else ""
        words = f"{self._name} could not be carried out: {sentence}"
        if line:
            words += f"\n    {line}"
        said = [name for name in SAID if self._folder.text(name).strip()]
        files = " and ".join(str(self._folder.file(name)) for name in said)
        return JobError(f"{words}\nAll output of the launcher is in {files}" if files else words)


def _opened(path: Path) -> tuple[JobFolder, dict[str, Any]]:
    """The folder of a job, and the contents of its ``job.json``."""
    folder, recorded = JobFolder(path), JobFolder(path, is_recorded=True)
    try:
        try:
            about = folder.read_json("job.json")
        except InvalidCallError:
            about = recorded.read_json("job.json")
            if not _is_recorded(about):
                raise
    except PermissionError:
        raise InvalidCallError(
            f"{path} cannot be read by this account: a job belongs to the account that submitted it"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        about = {}
    if about is None:
        raise InvalidCallError(f"{path} is not the folder of a job")
    if not isinstance(about, dict) or "submitted" not in about:
        raise InvalidCallError(f"{path / 'job.json'} is damaged, so simlib cannot read this job")
    return (recorded if _is_recorded(about) else folder), about


def _is_guess(verdict: SimlibError) -> bool:
    """Whether the verdict only says that the time limit passed, without ranks that wait for
    ever."""
    is_late = isinstance(verdict, DeadlockError) and verdict.graph is None
    return is_late or isinstance(verdict, StuckError)


def _is_recorded(about: Any) -> bool:
    return isinstance(about, dict) and about.get("is_recorded") is True


def jobs(folder: str | Path = JOBS) -> list[Job]:
    """List this account's jobs whose folders are in ``folder``, by the time of their submission.

    simlib leaves out jobs that another account may have written. A warning names these jobs.
    """
    found, left_out = [], []
    for path in sorted(Path(folder).glob("*/job.json")):
        try:
            if JobFolder(path.parent).read("job.json") is not None:  # recorded ones: only one's own
                found.append(Job(path.parent))
        except PermissionError:
            pass
        except InvalidCallError as error:
            left_out.append(str(error))
    if left_out:
        more = f". Other jobs left out: {len(left_out) - 1}" if len(left_out) > 1 else ""
        warnings.warn(f"jobs() leaves out a job: {left_out[0]}{more}", stacklevel=2)
    return sorted(found, key=lambda job: job._about["submitted"])
