"""What known answers give under a seed: the solution, which nbval compares with, and wrong ones.

A wrong answer that gives what a known one gives is given that one's name.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from pathlib import Path

from .grade import cells_of
from .merge_answers import GIVEN, MergedNotebook, Step, hidden_last
from .score import ALLOWED, MARK
from .session import CellResult, code_cell, run_notebook
from .source import number_of
from .texts import clean

RECORDED_CHARS = 50_000_000
"""Output of a run that is recorded: it holds all values."""

VALUES_LINE = re.compile(r"(\d+): (?!.* \((?:has|at|returns) )")
"""Of a hidden cell: a world and its values, none of which is said to be wrong."""
MAX_NAMES = 3
"""Where more known wrong answers than this give the same, none of their names says much."""
PLACES = re.compile(
    rf"""
    [^\s(]+,\ line\ \d+    # (function, line 4)
    | (?<=\))\ {{3}}\S.*     # that line's text, behind it
    | ^(?:{re.escape(MARK)})?\ {{4}}.*    # or below it
    | ^(?:{re.escape(MARK)})?The\ traceback\ of\ rank\ .*\n(?:(?!\d+:).*\n?)*    # to the next world
    """,
    re.VERBOSE | re.MULTILINE,
)
"""Where in a source something happened, as `Site.place` and messages of errors say it."""


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
    solutions = {name: question.solution for name, question in exercise.questions.items()}
    steps = hidden_last(steps_with(exercise.cells, solutions))
    solved = MergedNotebook(steps, dict.fromkeys(exercise.questions, GIVEN), [])
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


def steps_with(cells, answers):
    """The steps through pristine cells, with ``answers[question]`` in the place of an answer."""
    return [
        Step("answer", cell, answers[cell.question])
        if cell.role == "answer"
        else Step("pristine", cell, cell.source)
        for cell in cells
    ]


def complaint_in(text):
    """The first line of a hidden cell that says of the solution what is wrong; None if none does.

    `GradedChecks.measure` prints two lines for each world: its values, and that it sent as allowed.
    """
    lines = text.splitlines()
    for values, rule in zip(lines[::2], [*lines[1::2], ""], strict=False):
        world = VALUES_LINE.match(values)
        if not world:
            return values
        if rule != f"{world[1]}: {ALLOWED}":
            return rule if rule.startswith(f"{world[1]}: ") else values
    return None


def sources_of(folder, exercise, question):
    """``{words: source}`` of the known wrong answers to a question.

    They lie in ``NN_question.py``: functions, and a dict ``WRONG`` whose keys are those that are
    answers. The words go on after "This is": a function's docstring if it begins with a small
    letter, else its name.
    """
    path = Path(folder) / f"{number_of(exercise.name)}_{question}.py"
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    statements = ast.parse(text).body
    names = [
        key.id
        for statement in statements
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "WRONG"
        for key in statement.value.keys
    ]
    said = {one.name: words_of(one) for one in statements if isinstance(one, ast.FunctionDef)}
    return {said[name]: f"{text}\n{question} = {name}\n" for name in names}


def words_of(function):
    """What a known wrong answer is: the first line of its docstring, else its name."""
    words = (ast.get_docstring(function) or "").partition("\n")[0].rstrip(".")
    return (
        words if words[:1].islower() else f'the answer "{function.name.replace("_", " ").strip()}"'
    )


def outputs_of(sources, exercise, question, expected, seed, limits, isolate):
    """``{words: signature}``: what each known wrong answer gives under a seed, in one run."""
    setup = [cell for cell in exercise.cells if cell.role == "setup"]
    own = [cell for cell in exercise.cells if cell.question == question]
    merged = MergedNotebook(steps_with(setup, {}), {}, [])
    cells = cells_of(merged, exercise, expected, seed, limits)
    for number, source in enumerate(sources.values()):
        merged = MergedNotebook(steps_with(own, {question: source}), {question: GIVEN}, [])
        for cell in cells_of(merged, exercise, expected, seed, limits)[1:]:
            cell.id = f"{cell.id}-{number}"
            cells.append(cell)
    found = run_notebook(cells, limits, isolate).cells
    checks = [c.id for c in own if c.role in ("check", "hidden")]
    signatures = {}
    for number, words in enumerate(sources):
        results = {one: found.get(f"{one}-{number}") for one in checks}
        if all(one and one.word not in ("timeout", "gone") for one in results.values()):
            texts = {one: clean(result.text) for one, result in results.items()}
            signatures[words] = signature(texts)
    return signatures


def name_of(outputs, signatures):
    """What an answer is that gives these outputs; empty where no known one does, or too many do.

    Parameters
    ----------
    outputs : dict of str to str
        What check and hidden cells gave, by cell id.
    signatures : dict of str to list
        From `outputs_of`.
    """
    found = signature(outputs)
    words = [one for one, other in signatures.items() if other == found]
    return ", or ".join(words) if len(words) <= MAX_NAMES else ""


def signature(outputs):
    """What two answers that do the same have in common: their outputs, but for places in sources.

    Parameters
    ----------
    outputs : dict of str to str
        What check and hidden cells gave, by cell id.
    """
    return [PLACES.sub("", outputs[one]) for one in sorted(outputs)]
