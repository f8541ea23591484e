"""Known wrong answers: a wrong answer that gives what one of them gives is told by its name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from .grade import cells_of
from .merge_answers import GIVEN, Step, Transplant
from .score import MARK, clean
from .session import run_notebook

MOST_NAMES = 3
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


def sources_of(folder, exercise, question):
    """``{words: source}`` of the known wrong answers to a question.

    They lie in ``NN_question.py``: functions, and a dict ``WRONG`` whose keys are those that are
    answers. The words go on after "This is": a function's docstring if it begins with a small
    letter, else its name.
    """
    path = Path(folder) / f"{exercise.name[:2]}_{question}.py"
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
    told = (ast.get_docstring(function) or "").partition("\n")[0].rstrip(".")
    return told if told[:1].islower() else f'the answer "{function.name.replace("_", " ").strip()}"'


def outputs_of(sources, exercise, question, expected, seed, limits, isolate):
    """``{words: signature}``: what each known wrong answer gives under a seed, in one run."""
    steps = [Step("pristine", c, c.source) for c in exercise.cells if c.role == "setup"]
    solved = Transplant(steps, {}, [])
    cells = cells_of(solved, exercise, expected, seed, limits)
    asked = [c for c in exercise.cells if c.question == question]
    for number, source in enumerate(sources.values()):
        steps = [
            Step("answer", c, source) if c.role == "answer" else Step("pristine", c, c.source)
            for c in asked
        ]
        part = Transplant(steps, {question: GIVEN}, [])
        for cell in cells_of(part, exercise, expected, seed, limits)[1:]:
            cell.id = f"{cell.id}-{number}"
            cells.append(cell)
    found = run_notebook(cells, limits, isolate).cells
    checks = [c.id for c in asked if c.role in ("check", "hidden")]
    signatures = {}
    for number, words in enumerate(sources):
        results = {one: found.get(f"{one}-{number}") for one in checks}
        if all(results.values()):
            texts = {one: clean(result.text) for one, result in results.items()}
            signatures[words] = signature(texts)
    return signatures


def named(outputs, signatures):
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
    return ", or ".join(words) if len(words) <= MOST_NAMES else ""


def signature(outputs):
    """What two answers that do the same have in common: their outputs, but for places in sources.

    Parameters
    ----------
    outputs : dict of str to str
        What check and hidden cells gave, by cell id.
    """
    return [PLACES.sub("", outputs[one]) for one in sorted(outputs)]
