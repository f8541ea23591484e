"""What the solution of an exercise gives under a seed: the outputs that nbval compares with."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .score import ALLOWED
from .session import CellResult, code_cell, run_notebook

RECORDED_CHARS = 50_000_000
"""Output of a run that is recorded: it holds all values."""

VALUES_LINE = re.compile(r"(\d+): (?!.* \((?:has|at|returns) )")
"""Of a hidden cell: a world and its values, none of which is told to be wrong."""


class SolutionFails(Exception):
    """The solution itself does not run: nothing can be graded with it."""


@dataclass(frozen=True)
class Expected:
    """What the solution gave.

    Attributes
    ----------
    outputs : dict of str to list
        nbformat outputs of check and hidden cells, by cell id.
    recorded : dict of str to str
        What `measure` saw, by question: values and what was sent.
    """

    outputs: dict
    recorded: dict

    def text(self, identity):
        """The output of a cell as text."""
        return CellResult("same", outputs=self.outputs.get(identity, [])).text


def record(exercise, seed, limits, isolate=True):
    """Run the solution of an exercise, with no student's code near it.

    Raises
    ------
    SolutionFails
        A cell of it fails; it does not pass its own check; or in a hidden cell it meets an error,
        gives a value that does not equal itself, or breaks a rule.
    """
    from .grade import cells_of
    from .merge_answers import GIVEN, Step, Transplant, hidden_last

    steps = [
        Step("answer", cell, exercise.questions[cell.question].solution)
        if cell.role == "answer"
        else Step("pristine", cell, cell.source)
        for cell in exercise.cells
    ]
    solved = Transplant(hidden_last(steps), dict.fromkeys(exercise.questions, GIVEN), [])
    cells = cells_of(solved, exercise, Expected({}, {}), seed, limits)
    for cell in cells:
        cell.metadata = {"tags": ["nbval-ignore-output"]}
    cells += [
        code_cell(f"recorded-{name}", f"examiner.recorded({name!r})") for name in exercise.questions
    ]
    limits = replace(limits, output_chars=RECORDED_CHARS)
    session = run_notebook(cells, limits, isolate)
    for cell in cells:
        result = session.cells.get(cell.id)
        if result is None or result.word != "same":
            said = f"{result.word}: {result.error}" if result else session.ended or session.log
            raise SolutionFails(f"{exercise.name}, seed {seed}: cell {cell.id} fails: {said}")
    graded = [cell for cell in exercise.cells if cell.role in ("check", "hidden")]
    outputs = {cell.id: session.cells[cell.id].outputs for cell in graded}
    for cell in graded:
        if not session.cells[cell.id].text:
            raise SolutionFails(f"{exercise.name}: cell {cell.id} prints nothing to compare")
        if cell.role == "check" and "check(" in cell.source:
            text = session.cells[cell.id].text
            if text != f"{cell.question}: right":
                raise SolutionFails(f"{exercise.name}: the solution's check says: {text}")
        if cell.role == "hidden" and "measure(" in cell.source:
            unfit = complaint_in(session.cells[cell.id].text)
            if unfit:
                raise SolutionFails(
                    f"{exercise.name}, seed {seed}: cell {cell.id} is no measure of answers, for "
                    f"the solution itself gets: {unfit}"
                )
    recorded = {name: session.cells[f"recorded-{name}"].text for name in exercise.questions}
    return Expected(outputs, recorded)


def complaint_in(text):
    """The first line of a hidden cell that says of the solution what is wrong; None if none does.

    `Graded.measure` prints two lines for each world: its values, and that it sent as allowed.
    """
    lines = text.splitlines()
    for values, rule in zip(lines[::2], [*lines[1::2], ""], strict=False):
        world = VALUES_LINE.match(values)
        if not world:
            return values
        if rule != f"{world[1]}: {ALLOWED}":
            return rule if rule.startswith(f"{world[1]}: ") else values
    return None
