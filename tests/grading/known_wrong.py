"""The known wrong answers to all exercises, as sources for an answer's cell."""

import runpy
from pathlib import Path

from simlib.grading.source import number_of

FOLDER = Path(__file__).resolve().parents[2] / "authoring" / "wrong_answers"


def wrong_sources(exercise):
    """``{question: {name of the wrong answer: source}}`` of an `Exercise`."""
    found = {}
    for path in sorted(FOLDER.glob(f"{number_of(exercise.name)}_*.py")):
        names = runpy.run_path(str(path))
        text = path.read_text(encoding="utf-8").partition("\nWRONG = ")[0]
        found[names["QUESTION"]] = {
            function.__name__: f"{text}\n{names['QUESTION']} = {function.__name__}\n"
            for function in names["WRONG"]
        }
    return found


def mixed(exercise, number, parity):
    """Answers to every other question: its wrong answer of this number; the others are solved."""
    answers = {}
    for place, (question, wrong) in enumerate(wrong_sources(exercise).items()):
        sources = list(wrong.values())
        is_wrong = place % 2 == parity and number < len(sources)
        answers[question] = sources[number] if is_wrong else True
    return answers
