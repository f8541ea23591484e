"""Grade one submission: read it, merge its answers into the exercise, run them, score each
question.

A separate process with limits reads the file (`Reader`, `merge_answers`). So a file that needs too
much memory or time does no harm to other files. If an answer ends the run, the notebook is run
again without it, so that an answer costs only the points of its own question.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from .likeness import LONGEST_CODE
from .merge_answers import MergedNotebook, Step, WrongNotebook, beginning
from .notebook_file import Unreadable
from .score import QuestionResult, because_of, failures_of, fetch_of, is_cut_short, score
from .session import code_cell, run_notebook
from .texts import clean

PROGRAM = Path(__file__).with_name("merge_answers.py")
MEMORY_BYTES = 1 << 30
"""The limit of address space, in bytes. A notebook with 20 MB of pictures needs a tenth of this."""
SECONDS = 10
"""The limit of processor time for one file, in seconds."""
PATIENCE_S = 120
"""The limit of time by the clock for one file, in seconds. It allows for a busy machine."""
LONGEST_ANSWER = 64 << 20


class Reader:
    """Reads files in a process of its own, which starts when it is first needed.

    Parameters
    ----------
    exercises : dict of str to Exercise
    memory_bytes, seconds, patience_s : int
        The limits for one file: address space, processor time, and time by the clock.
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
        """Return ``(exercise, has answers)``: the exercise's name or None, and whether the file
        contains any answer.

        Parameters
        ----------
        content : bytes
        exercise : str or None
            The exercise, if it is known. Otherwise the file's cells decide.

        Raises
        ------
        Unreadable
            The reason.
        """
        found = self._ask({"ask": "about", "exercise": exercise}, content)
        return found["exercise"], found["has answers"]

    def merge(self, content, exercise):
        """Return the `MergedNotebook` of a file and the exercise of this name.

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
        return MergedNotebook(steps, found["found"], found["notes"], found["forms"])

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
        """Return the line of the answer. Its end is missing if the process ended or took too
        long."""
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
        """End the process, and say why it gave no answer for the file."""
        try:
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            code = None
        self._end()
        if code in (None, -signal.SIGXCPU):
            return "the file takes too long to be read: clear its outputs and save the file again"
        return "the file ends the process that reads it: save the file again in JupyterLab"

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


SHORTEST_RUN_S = 5
CELL_BITS = 52
"""A hidden cell makes its inputs from a number of this many bits."""
MAX_FAILURES = 5
"""The most failed cells of the student's own that a note names."""
BEGIN = """\
from simlib.classroom.confinement.process_sandbox import begin
begin()
from simlib.classroom.grading.examiner import Examiner
from simlib.classroom.grading.graded_checks import GradedChecks
examiner = Examiner(globals(), GradedChecks({patience}), {answer_s})
"""


@dataclass
class NotebookResult:
    """The result of one notebook.

    Attributes
    ----------
    exercise : str
    status : str
        ``"graded"``, ``"unreadable"``, ``"wrong notebook"`` or ``"missing"``.
    reason : str
        The reason why the notebook was not graded.
    questions : list of QuestionResult
    notes : list of str
        Notes for the teacher on odd things.
    runs : int
        How often the notebook was run.
    seconds : float
    cut_short : bool
        Whether a limit ended any part of the grading. With other limits, the result may differ.
    """

    exercise: str
    status: str
    reason: str
    questions: list
    notes: list = field(default_factory=list)
    runs: int = 0
    seconds: float = 0.0
    cut_short: bool = False

    @property
    def points(self):
        """The points that the notebook earns."""
        return round(sum(one.points for one in self.questions), 2)

    @property
    def of(self):
        """The most points that the notebook can earn."""
        return sum(one.of for one in self.questions)

    def as_dict(self):
        """Return the result as plain data."""
        return asdict(self) | {"points": self.points, "of": self.of}

    @classmethod
    def from_dict(cls, data):
        """Make the result from the plain data of `as_dict`."""
        kept = {key: value for key, value in data.items() if key not in ("points", "of")}
        kept["questions"] = [QuestionResult(**one) for one in kept["questions"]]
        return cls(**kept)


def without_points(exercise, status, reason, notes=()):
    """Return the result of a notebook that cannot be graded. Each question gets the same status and
    reason."""
    questions = [
        QuestionResult(one.name, one.title, 0, one.points, status, reason)
        for one in exercise.questions.values()
    ]
    return NotebookResult(exercise.name, status, reason, questions, list(notes))


@dataclass
class Turn:
    """The shared state of all runs of one notebook.

    Attributes
    ----------
    left_s : float
        The seconds that remain for all runs together.
    alone : callable
        The grader calls this function before each further run. It waits until no other notebook is
        graded, and returns whether other notebooks ran at the same time as this one before.
    """

    left_s: float
    alone: Callable = lambda: False


def grade(content, exercise, expected, seed, limits, isolate=True, turn=None):
    """Grade a submission and return its `NotebookResult`.

    Parameters
    ----------
    content : bytes
        The bytes of the file.
    exercise : Exercise
    expected : Expected
        The results of the solution with this seed, see `record`.
    seed : int
        The seed of hidden cells.
    limits : sandbox.Limits
    isolate : bool
        False to run the notebook without a sandbox.
    turn : Turn, optional
        The default is a turn with the time of two runs.
    """
    begun = time.monotonic()
    try:
        with Reader({exercise.name: exercise}) as reader:
            merged = reader.merge(content, exercise.name)
    except Unreadable as error:
        return without_points(exercise, "unreadable", str(error))
    except WrongNotebook as error:
        return without_points(exercise, "wrong notebook", str(error))
    result = NotebookResult(exercise.name, "graded", "", [], list(merged.notes))

    def cells(part):
        return cells_of(part, exercise, expected, seed, limits)

    runs = Runner(cells, limits, isolate, turn).run(merged)
    result.runs = runs.number
    cut = map(is_cut_short, runs.cells.values())
    result.cut_short = runs.number > 1 or bool(runs.skipped) or any(cut)
    failures = failures_of(merged, runs.cells)
    notes = [*runs.notes, *list(failures.values())[:MAX_FAILURES]]
    if len(failures) > MAX_FAILURES:
        notes.append(f"and {len(failures) - MAX_FAILURES} more cells of the student's own fail")
    result.notes += map(clean, notes)
    codes = {step.cell.question: step.source for step in merged.steps if step.kind == "answer"}
    for question in exercise.questions.values():
        one = score(question, exercise, merged, runs.cells, runs.skipped, expected)
        one.reason += because_of(one, failures)
        one.code = clean(codes.get(question.name, ""), LONGEST_CODE)
        one.form = merged.forms.get(question.name, "")
        result.questions.append(one)
    result.seconds = round(time.monotonic() - begun, 2)
    return result


def cells_of(merged, exercise, expected, seed, limits):
    """Return the cells of the notebook to run."""
    begin = BEGIN.format(answer_s=limits.answer_s, patience=limits.patience)
    cells = [code_cell("examiner", begin)]
    fetched = set()
    for step in merged.steps:
        if step.kind == "helper":
            cells.append(code_cell(step.identity, f"examiner.helper({step.source!a})"))
        elif step.kind == "answer":
            call = f"examiner.answer({step.cell.question!r}, {step.source!a})"
            recorded = expected.recorded.get(step.cell.question)
            if recorded:  # before anything of the student's can break it off
                call = f"examiner.expect({step.cell.question!r}, {recorded!r})\n{call}"
            cells.append(code_cell(step.cell.id, call))
        elif step.cell.role in ("check", "hidden"):
            if step.cell.question not in fetched:
                fetched.add(step.cell.question)
                call = f"examiner.fetch({step.cell.question!r})"
                cells.append(code_cell(fetch_of(step.cell.question), call))
            outputs = expected.outputs.get(step.cell.id, [])
            cells.append(code_cell(step.cell.id, seeded(step.cell, seed), outputs, compare=True))
            if step.cell.role == "check":
                names = f"examiner.names_of({step.cell.shown!a})"
                cells.append(code_cell(f"{step.cell.id}-names", names))
        else:
            setup = f"{step.source}\nexaminer.setup({step.cell.shown!a})"
            cells.append(code_cell(step.cell.id, setup))
    return cells


def seeded(cell, seed):
    """Return a cell's source. In a hidden cell, insert the seed of this run."""
    if cell.role != "hidden":
        return cell.source
    line = f"seed = {seed_of(cell.id, seed)}"
    source = re.sub(r"^seed = \d+$", line, cell.source, count=1, flags=re.MULTILINE)
    return f"examiner.begin({cell.id!r}, {cell.question!r})\n{source}"


def seed_of(identity, seed):
    """Return the number for a hidden cell's line ``seed = ...``. Each cell has its own number of 52
    bits.

    The number is small enough that torch accepts 1000 times the number, plus a rank, as a seed. If
    ranks find out the number of one question, they still know nothing about the number of another
    question.
    """
    drawn = hashlib.sha256(f"{identity} {seed}".encode()).digest()
    return int.from_bytes(drawn) % 2**CELL_BITS


class GraderFails(Exception):
    """A run failed before any code of a student ran. The message gives the reason."""


@dataclass
class Runs:
    """The outcome of all runs of one submission.

    Attributes
    ----------
    cells : dict of str to CellResult
        The results by cell id. They come from a run in which no other answer disturbed the
        question.
    skipped : dict of str to str
        The questions whose answers ended a run, with the reason for each.
    notes : list of str
    number : int
        How often the notebook was run.
    """

    cells: dict = field(default_factory=dict)
    skipped: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    number: int = 0


class Runner:
    """Runs parts of a merged notebook within the time of its limits.

    The first run may take the time of a notebook. Further runs are needed if an answer has ended a
    run. All further runs together may take as much time as the first run.

    Parameters
    ----------
    cells_of : callable
        ``cells_of(merged)`` returns the cells to run.
    limits : sandbox.Limits
    isolate : bool
    turn : Turn, optional
        See `grade`.
    """

    def __init__(self, cells_of, limits, isolate, turn=None):
        self._cells_of = cells_of
        self._limits = limits
        self._isolate = isolate
        self._turn = turn or Turn(2 * limits.notebook_s)
        self.done = Runs()

    def run(self, merged):
        """Return the `Runs` of a merged notebook. Run all its answers in one run as far as
        possible.

        If an answer ended the first run while other notebooks ran, perhaps it only had too little
        time. So a last run of all answers decides about it, in the time that the other runs have
        left over.
        """
        session = self._run(merged) if answered(merged) else None
        step, why = culprit_of(merged, session) if session else (None, "")
        if step is None or not self._turn.alone():
            return self._run_all(merged, session)
        if step.kind == "helper":
            return self._run_all(merged)
        self._run_all(merged.without([step.cell.question]))
        self._judge_again(merged, step.cell.question, why)
        return self.done

    def _judge_again(self, merged, question, why):
        """Run an answer together with all answers that were not skipped. If no time is left, the
        answer fails with the reason ``why``."""
        part = merged.without(self.done.skipped)
        session = self._run(part)
        if session is not None:
            step, why = culprit_of(part, session)
            if step is None:
                self.done.cells |= session.cells
                return
            if step.kind != "answer" or step.cell.question != question:
                self._alone(merged, question)
                return
        self.done.skipped[question] = why

    def _run_all(self, merged, session=None):
        """Do the same as `run`. ``session`` is the first run, if it has been made already."""
        whole = merged
        while answered(merged):
            ran, session = session or self._run(merged), None
            if ran is None:
                return self._give_up(merged)
            step, why = culprit_of(merged, ran)
            if step is None:
                self.done.cells |= ran.cells
                self.done.notes += [why] * bool(why)
                return self.done
            if step.kind == "helper":
                whole, merged = (self._leave_out(step, why, one) for one in (whole, merged))
                continue
            question = step.cell.question
            rest = merged.without([question])
            if answered(merged)[0] == question:
                self.done.skipped[question] = why
            elif self._alone(merged, question):
                # It was another answer that ended the run, by something it had left behind.
                for other in answered(rest):
                    self._alone(merged, other)
                return self.done
            merged = rest
            own = self._own_culprit(whole)
            if own is not None:
                self.done.skipped.clear()
                whole = merged = self._leave_out(own, why, whole)
        return self.done

    def _leave_out(self, step, why, merged):
        """Return the merged notebook without one of the student's own cells. Add a note on this."""
        note = f"a cell of the student's own ({beginning(step.source)}) was left out: {why}"
        self.done.notes += [note] * (note not in self.done.notes)
        return merged.without([step])

    def _own_culprit(self, whole):
        """Return the student's own cell that has ended the runs of several answers, even of each
        answer alone.

        Such a cell may leave a process behind that ends a run later. Then it looks as if the
        answers ended the run. The result is None if there is not exactly one such cell, or if no
        time is left to find it.
        """
        own = [step for step in whole.steps if step.kind == "helper"]
        if len(self.done.skipped) != 2 or not own or self._ends(whole.without(own)):
            return None
        return next((step for step in own if not self._ends(whole.without([step]))), None)

    def _ends(self, part):
        """Whether a step in a part of the notebook ends the run of this part. A part that cannot be
        run counts, too."""
        session = self._run(part)
        return session is None or culprit_of(part, session)[0] is not None

    def _alone(self, merged, question):
        """Run one answer without the other answers. Return whether the run ended by itself."""
        part = merged.without([name for name in answered(merged) if name != question])
        session = self._run(part)
        if session is None:
            self._give_up(part)
            return False
        step, why = culprit_of(part, session)
        if step is not None:
            self.done.skipped[question] = why
            return False
        self.done.cells |= session.cells
        return True

    def _run(self, merged):
        """Run a merged notebook and return the session; None if no time is left."""
        if self._turn.left_s < SHORTEST_RUN_S:
            return None
        limits = replace(self._limits, notebook_s=min(self._limits.notebook_s, self._turn.left_s))
        begun = time.monotonic()
        session = run_notebook(self._cells_of(merged), limits, self._isolate)
        self._turn.left_s -= time.monotonic() - begun
        self.done.number += 1
        started = session.cells.get("examiner")
        if started is None or started.word != "same":
            said = started.error if started else session.ended or session.log
            raise GraderFails(f"the examiner did not start: {said.strip()[-500:]}")
        return session

    def _give_up(self, merged):
        why = "other answers of this notebook ended so many runs that no time was left for this one"
        self.done.skipped |= dict.fromkeys(answered(merged), why)
        return self.done


def answered(merged):
    """Return the questions with an answer in the steps of a merged notebook, in order."""
    return [step.cell.question for step in merged.steps if step.kind == "answer"]


def culprit_of(merged, session):
    """Return ``(step, why)`` of the step that ended a run; ``(None, why)`` if no step ended the
    run."""
    for step in merged.steps:
        if step.kind == "pristine" and not step.cell.question:
            continue
        result = session.cells.get(step.identity)
        if result is None or "Kernel dead" in result.error:
            return step, session.ended or "the answer's code ended the process that examines it"
        if result.word == "gone":
            return step, session.ended or result.error
    return None, session.ended
