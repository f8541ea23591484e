"""A cell of a student's own that ends runs late is found, and costs no answer its points."""

import pytest

from simlib.classroom.grading import grade as grading
from simlib.classroom.grading.exercise import Cell
from simlib.classroom.grading.merge_answers import MergedNotebook, Step
from simlib.classroom.grading.sandbox import Limits
from simlib.classroom.grading.session import CellResult, Session

NAMES = ("first", "second", "third")


def merged(*own):
    """A notebook with three answers below cells of the student's own."""
    steps = [Step("helper", None, source) for source in own]
    for name in NAMES:
        cell = Cell(f"{name}-answer", "answer", name, f"def {name}(): pass")
        steps.append(Step("answer", cell, cell.source))
    return MergedNotebook(steps, dict.fromkeys(NAMES, "given"), [])


@pytest.fixture
def runs(monkeypatch):
    """Runs in which an answer ends the run if `ends(sources above, its question)` says so."""
    seen = []

    def use(ends):
        def run_notebook(part, limits, isolate):
            seen.append(part)
            cells = {"examiner": CellResult("same")}
            own = [step.source for step in part.steps if step.kind == "helper"]
            for step in part.steps:
                if step.kind == "answer" and ends(own, step.cell.question):
                    return Session(cells, "", 1.0, "")
                cells[step.identity] = CellResult("same")
            return Session(cells, "", 1.0, "")

        monkeypatch.setattr(grading, "run_notebook", run_notebook)
        return grading.Runner(lambda part: part, Limits(), True)

    return use


def test_an_own_cell_that_ends_every_answer_s_run_is_left_out_and_all_are_graded(runs):
    runner = runs(lambda own, question: "kill_later()" in own)
    done = runner.run(merged("import math", "kill_later()", "half = 2"))
    assert done.skipped == {}
    assert {f"{name}-answer" for name in NAMES} <= set(done.cells)
    assert len(done.notes) == 1 and "(kill_later()) was left out" in done.notes[0]


def test_two_answers_that_end_their_runs_are_set_aside_and_own_cells_stay(runs):
    runner = runs(lambda own, question: question != "third")
    done = runner.run(merged("import math"))
    assert set(done.skipped) == {"first", "second"} and done.notes == []
    assert "third-answer" in done.cells
