"""Run a transplanted notebook, again where an answer ends it: each question pays for itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from .merge_answers import beginning
from .session import run_notebook

SHORTEST_RUN_S = 5


class GraderFails(Exception):
    """A run that failed before anything of a student's was in it; the message is the reason."""


@dataclass
class Runs:
    """What came of all runs of one submission.

    Attributes
    ----------
    cells : dict of str to CellResult
        By cell id, from the run in which the cell's question was not disturbed.
    set_aside : dict of str to str
        Questions whose answers ended a run, and how.
    notes : list of str
    number : int
        How often it was run.
    """

    cells: dict = field(default_factory=dict)
    set_aside: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    number: int = 0


class Runner:
    """Runs parts of a transplant within the time of its limits.

    The first run may take the time of a notebook; all further ones, which an answer has made
    necessary that ended a run, may take as much together.

    Parameters
    ----------
    cells_of : callable
        ``cells_of(transplant)`` gives the cells to run.
    limits : sandbox.Limits
    isolate : bool
    """

    def __init__(self, cells_of, limits, isolate):
        self._cells_of = cells_of
        self._limits = limits
        self._isolate = isolate
        self._left_s = 2 * limits.notebook_s
        self.done = Runs()

    def run(self, found):
        """The `Runs` of a transplant, with all its answers in one run as far as that goes."""
        while given(found):
            session = self._run(found)
            if session is None:
                return self._give_up(found)
            step, why = culprit_of(found, session)
            if step is None:
                self.done.cells |= session.cells
                self.done.notes += [why] * bool(why)
                return self.done
            if step.kind == "helper":
                self.done.notes.append(
                    f"a cell of the student's own ({beginning(step.source)}) was left out: {why}"
                )
                found = found.without([step])
                continue
            question = step.cell.question
            rest = found.without([question])
            if given(found)[0] == question:
                self.done.set_aside[question] = why
            elif self._alone(found, question):
                # It was another answer that ended the run, by something it had left behind.
                for other in given(rest):
                    self._alone(found, other)
                return self.done
            found = rest
        return self.done

    def _alone(self, found, question):
        """Run one answer without the others; whether it came to an end."""
        part = found.without([name for name in given(found) if name != question])
        session = self._run(part)
        if session is None:
            self._give_up(part)
            return False
        step, why = culprit_of(part, session)
        if step is not None:
            self.done.set_aside[question] = why
            return False
        self.done.cells |= session.cells
        return True

    def _run(self, found):
        """A session, or None where no time is left."""
        if self._left_s < SHORTEST_RUN_S:
            return None
        limits = replace(self._limits, notebook_s=min(self._limits.notebook_s, self._left_s))
        begun = time.monotonic()
        session = run_notebook(self._cells_of(found), limits, self._isolate)
        self._left_s -= time.monotonic() - begun
        self.done.number += 1
        started = session.cells.get("examiner")
        if started is None or started.word != "same":
            said = started.error if started else session.ended or session.log
            raise GraderFails(f"the examiner did not start: {said.strip()[-500:]}")
        return session

    def _give_up(self, found):
        why = "other answers of this notebook ended so many runs that no time was left for it"
        self.done.set_aside |= dict.fromkeys(given(found), why)
        return self.done


def given(found):
    """The questions with an answer in the steps of a transplant, in order."""
    return [step.cell.question for step in found.steps if step.kind == "answer"]


def culprit_of(found, session):
    """``(step, why)`` of the step that ended a run; ``(None, why)`` where none of them did."""
    for step in found.steps:
        if step.kind == "pristine" and not step.cell.question:
            continue
        result = session.cells.get(step.identity)
        if result is None or "Kernel dead" in result.error:
            return step, session.ended or "its code ended the process that examines it"
        if result.word == "gone":
            return step, session.ended or result.error
    return None, session.ended
