"""What is known of a job's ranks, read from its folder: by the keeper of rank 0 and by a kernel."""

from __future__ import annotations

import pickle
import time

from ...diagnose import failures
from ...diagnose.deadlock_detector import Checker
from ..host.display import RankOutput
from .logs import LogFile

STACK_LIMIT_S = 1.0
LOOK_S = 0.02
CHUNK = 1 << 20


class JobWatch:
    """The same for `outcome`, `Checker` and `Patience` as the watch of a run on this machine.

    Parameters
    ----------
    folder : JobFolder
    meanwhile : callable
        Called again and again while ranks are waited for.
    """

    engine = "real"
    report = None

    def __init__(self, folder, meanwhile=lambda: None):
        job = folder.read_json("job.json")
        self._folder = folder
        self._meanwhile = meanwhile
        self.world_size = job["world_size"]
        self.name = job["function"]
        self.timeout_s = job["timeout_s"]
        self.check = job["check"]
        self.cells = job["cells"]
        ranks = range(self.world_size)
        self.logs = [LogFile(folder.file("log", rank), rank) for rank in ranks]
        self._asleep = {}
        self.checker = Checker(self.logs, self.cells, self._asleep.get)
        self.answers = {}
        self.deaths = {}
        self.places = {}
        self.outputs = [RankOutput() for _ in ranks]
        self.native = [b"" for _ in ranks]
        self._read = [0 for _ in ranks]

    def running(self):
        """Ranks that have neither answered nor died."""
        ranks = range(self.world_size)
        return [rank for rank in ranks if rank not in self.answers and rank not in self.deaths]

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
        code = self._folder.read_json("exit", rank)
        if answer is not None:
            try:
                self.answers[rank] = pickle.loads(answer)
            except Exception as error:  # it arrived, but cannot be rebuilt here
                report = f"{type(error).__name__}: {error}"
                self.answers[rank] = "unpicklable", ("result", report)
        elif code is not None:
            self.deaths[rank] = code
            self.native[rank] = self._folder.read("err", rank) or b""

    def _read_output(self, rank):
        """The lines that a rank has completed since the last look, as bytes."""
        lines = []
        try:
            with open(self._folder.file("out", rank), "rb") as file:
                file.seek(self._read[rank])
                while chunk := file.read(CHUNK):
                    self._read[rank] += len(chunk)
                    lines += self.outputs[rank].add(chunk)
        except FileNotFoundError:
            pass
        return lines

    def verdict(self):
        """The error that ranks which wait for ever are, or ops that disagree; None while unknown.

        Only for ranks that stand still since the last call is there a verdict.
        """
        if self.check and self.checker.look(self.running()):
            return self.checker.verdict(self.running(), self.gone())
        return None

    def gone(self):
        """Ranks that post nothing any more, and why, in words."""
        return dict.fromkeys(self.answers, "has finished") | dict.fromkeys(self.deaths, "has died")

    def failed(self):
        """Whether a rank has died or raised."""
        return bool(self.deaths) or any(word != "result" for word, _ in self.answers.values())

    def failed_by_itself(self):
        """Whether a rank has died, or has raised other than by a wait that somebody else broke."""
        failed = [content for word, content in self.answers.values() if word != "result"]
        first = [one for one in failed if not isinstance(one, dict) or not one["from_wait"]]
        return bool(self.deaths or first)

    def failure(self):
        """The error for what the ranks came to, or None where all is well so far."""
        found = self.checker.mismatch(bool(self.deaths)) if self.check else None
        if found is None and self.failed():
            found = failures.of_failures(self, set(self.deaths))
        return found

    def ask_for_stacks(self, ranks):
        """The learner's frames of ranks that compute: their keepers ask them to write it down."""
        sizes = {rank: len(self._folder.read("err", rank) or b"") for rank in ranks}
        for rank in ranks:
            self._folder.file("stack-wanted", rank).touch()
        found = dict.fromkeys(ranks, [])
        deadline = time.monotonic() + STACK_LIMIT_S
        while not all(found.values()) and time.monotonic() < deadline:
            for rank in ranks:
                text = self._folder.read("err", rank) or b""
                found[rank] = failures.frames_in(text[sizes[rank] :])
            self._meanwhile()
            time.sleep(LOOK_S)
        return found

    def result(self):
        """The `Run` as far as it came."""
        for log in self.logs:
            log.refresh(anew=True)
        run = failures.make_run(self)
        errors_s = (place["error_s"] for place in self.places.values())
        run.trace.clock_error_s = max(errors_s, default=0.0)
        return run


def _slept_on(before, now):
    """How often a rank has gone to sleep, if it slept all the time between two looks; else None."""
    (look, count), (later, same) = before, now
    return same if later > look and count == same else None
