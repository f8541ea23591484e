"""The known wrong answers to all exercises, as sources for an answer's cell."""

import runpy
from pathlib import Path

from simlib.classroom.grading.source import number_of

FOLDER = Path(__file__).resolve().parents[2] / "authoring" / "wrong_answers"


def wrong_sources(exercise):
    """``{question: {name of the wrong answer: source}}`` of an `Exercise`."""
    return {
        question: {name: source for name, source, _ in wrong}
        for question, wrong in known_wrong(exercise).items()
    }


def known_wrong(exercise):
    """``{question: [(name of the wrong answer, source, points of its parts)]}``."""
    found = {}
    for path in sorted(FOLDER.glob(f"{number_of(exercise.name)}_*.py")):
        names = runpy.run_path(str(path))
        text, earns = path.read_text(encoding="utf-8"), names.get("EARNS", {})
        head = text.partition("\nWRONG = ")[0]
        found[names["QUESTION"]] = [
            (one.__name__, f"{head}\n{names['QUESTION']} = {one.__name__}\n", earns.get(one, 0))
            for one in names["WRONG"]
        ]
    return found


def earned(exercise, answers):
    """Points of ``{question: source}``: True is the solution, known ones earn too."""
    wrong = {
        (question, source): points
        for question, rows in known_wrong(exercise).items()
        for _, source, points in rows
    }
    return sum(
        exercise.questions[question].points if source is True else wrong.get((question, source), 0)
        for question, source in answers.items()
    )


def mixed(exercise, number, parity):
    """Answers to every other question: its wrong answer of this number; the others are solved."""
    answers = {}
    for place, (question, wrong) in enumerate(wrong_sources(exercise).items()):
        sources = list(wrong.values())
        is_wrong = place % 2 == parity and number < len(sources)
        answers[question] = sources[number] if is_wrong else True
    return answers
