"""`JobMonitor`: what is known of a job's ranks, read from its folder, by a kernel or on rank 0."""

from __future__ import annotations

import time

from ...core.diagnose import failures
from ...core.diagnose.monitor import DeadlockDetector, RunMonitor
from ...core.model.errors import FailureReport
from . import answers
from .logs import LogFile

STACK_LIMIT_S = 1.0
LOOK_S = 0.02
CHUNK = 1 << 20


class JobMonitor(RunMonitor):
    """Reads what the ranks of a job, wherever they are, have written into its folder.

    Parameters
    ----------
    folder : JobFolder
    while_waiting : callable
        Called again and again while ranks are waited for.
    """

    detector: DeadlockDetector

    def __init__(self, folder, while_waiting=lambda: None):
        job = folder.read_json("job.json")
        super().__init__(
            job["function"], job["world_size"], job["cells"], job["timeout_s"], job["check"]
        )
        self._folder = folder
        self._while_waiting = while_waiting
        self.survives = job.get("on_death") == "continue"
        self.kill = {int(rank): time_s for rank, time_s in job.get("kill", {}).items()}
        ranks = range(self.world_size)
        self.logs = [LogFile(folder.file("log", rank), rank) for rank in ranks]
        self._asleep = {}
        self.detector = DeadlockDetector(self.logs, self.cells, self._asleep.get)
        self.places = {}
        self.native = [b"" for _ in ranks]
        self._read = [0 for _ in ranks]

    def take_in(self, show=lambda rank, lines: None):
        """Read what has come; ``show(rank, lines)`` gets the lines that ranks have completed."""
        for rank in range(self.world_size):
            self._read_place(rank)
            self._read_answer(rank)
            show(rank, self._read_output(rank))
            before = self.logs[rank].sleeps
            self.logs[rank].refresh()
            self._asleep[rank] = _slept_on(before, self.logs[rank].sleeps)

    def _read_place(self, rank):
        if rank not in self.places:
            place = self._folder.read_json("json", rank)
            if place is not None:
                self.places[rank] = place
                self.logs[rank].offset_s = place["offset_s"]

    def _read_answer(self, rank):
        if rank in self.answers or rank in self.deaths:
            return
        answer = self._folder.read("answer", rank)
        death = self._folder.read_json("exit", rank)
        if answer is not None:
            try:
                word, content = answers.loads(answer, may_call=not self._folder.is_recorded)
                if word in ("error", "exit") and isinstance(content, dict):  # an older simlib's
                    content = FailureReport(**content)
                self.answers[rank] = word, content
            except Exception as error:  # it arrived, but cannot be rebuilt here
                report = f"{type(error).__name__}: {error}"
                self.answers[rank] = "unpicklable", ("result", report)
        elif death is not None:
            death = {"code": death} if isinstance(death, int) else death  # an older simlib's
            self.deaths[rank] = death["code"]
            self.death_words[rank] = failures.death_of(rank, death["code"], death.get("why", ""))
            if death.get("time_s") is not None:
                self.died_s[rank] = death["time_s"] - self.logs[rank].offset_s
            self.native[rank] = self._folder.read("err", rank) or b""

    def _read_output(self, rank):
        """The lines that a rank has completed since the last look, as bytes."""
        lines = []
        with self._folder.open("out", rank) as file:
            if file is None:
                return lines
            file.seek(self._read[rank])
            while chunk := file.read(CHUNK):
                self._read[rank] += len(chunk)
                lines += self.outputs[rank].add(chunk)
        return lines

    def ask_for_stacks(self, ranks):
        """The learner's frames of ranks that compute: their supervisors ask them for it."""
        sizes = {rank: len(self._folder.read("err", rank) or b"") for rank in ranks}
        for rank in ranks:
            self._folder.file("stack-wanted", rank).touch()
        found = dict.fromkeys(ranks, [])
        deadline = time.monotonic() + STACK_LIMIT_S
        while not all(found.values()) and time.monotonic() < deadline:
            for rank in ranks:
                text = self._folder.read("err", rank) or b""
                found[rank] = failures.frames_in(text[sizes[rank] :])
            self._while_waiting()
            time.sleep(LOOK_S)
        return found

    def read_to_the_end(self):
        """Read all that the ranks have written down; returns by how much clocks may be wrong."""
        for log in self.logs:
            log.refresh(anew=True)
        return max((place["error_s"] for place in self.places.values()), default=0.0)


def _slept_on(before, now):
    """How often a rank has gone to sleep, if it slept all the time between two looks; else None."""
    (look, count), (later, same) = before, now
    return same if later > look and count == same else None
