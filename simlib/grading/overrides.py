"""What a teacher decides by hand: points and comments, merged into a report."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .tables import BadTable, read_table

COLUMNS = ("student", "exercise", "question", "points", "comment")


class BadOverrides(Exception):
    """Overrides that cannot be merged in; the message is the reason."""


@dataclass(frozen=True)
class Override:
    """One line of the file.

    Attributes
    ----------
    where : str
        File and line, for messages.
    student, exercise, question : str
        Without a question it is a comment on the whole notebook.
    points : float or None
        None leaves them as they are.
    comment : str
    """

    where: str
    student: str
    exercise: str
    question: str
    points: float | None
    comment: str


def read_overrides(path):
    """``[Override]`` of a CSV file with the columns student, exercise, question, points, comment.

    Raises
    ------
    BadOverrides
        It cannot be read, has other columns, or points that are no number.
    """
    try:
        head, rows = read_table(path)
    except BadTable as error:
        raise BadOverrides(f"the overrides {path} cannot be read: {error}") from None
    absent = [name for name in COLUMNS[:4] if name not in head]
    if absent:
        raise BadOverrides(
            f"the overrides {path} have no column {', '.join(absent)}: "
            f"they need {', '.join(COLUMNS)}"
        )
    found = []
    for line, row in rows:
        student, exercise, question, points, comment = (row.get(name, "") for name in COLUMNS)
        where = f"{path}, line {line}"
        number = number_of(points, where)
        found.append(Override(where, student, exercise, question, number, comment))
    return found


def number_of(text, where):
    """Points as a number, None where there are none."""
    if not text:
        return None
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise BadOverrides(f"{where}: points {text!r} are no number of 0 or more")
    return int(value) if value == int(value) else value


def check(overrides, students, exercises):
    """Refuse overrides that cannot be put into a report, before anything is graded.

    A line for an exercise that the report does not have is left aside: one file serves a course.

    Parameters
    ----------
    overrides : list of Override
    students : collection of str
        All that the report will have.
    exercises : dict of str to Exercise

    Raises
    ------
    BadOverrides
        A line names a student or a question that is not there, more points than there are, or
        what a line before it named.
    """
    seen = set()
    for one in overrides:
        if one.student not in students:
            raise BadOverrides(f"{one.where}: there is no student {one.student!r} in this report")
        exercise = next((e for e in exercises.values() if is_for(one, e.name)), None)
        if exercise is None:
            continue
        key = one.student, exercise.name, one.question
        if key in seen:
            raise BadOverrides(f"{one.where}: this question was overridden in a line before")
        seen.add(key)
        check_points(one, exercise)


def is_for(one, exercise):
    """Whether an override names an exercise, by name or number."""
    return one.exercise in (exercise, exercise[:2])


def check_points(one, exercise):
    """Refuse an override of a question that an exercise does not have, or of too many points."""
    if not one.question:
        if one.points is not None:
            raise BadOverrides(f"{one.where}: points need the name of a question")
        return
    question = exercise.questions.get(one.question)
    if question is None:
        names = ", ".join(exercise.questions)
        raise BadOverrides(
            f"{one.where}: {exercise.name} has no question {one.question!r}; it has {names}"
        )
    if one.points is not None and one.points > question.points:
        raise BadOverrides(
            f"{one.where}: {one.points:g} points, but {one.question} is worth {question.points}"
        )


def apply(report, overrides):
    """Put overrides that `check` has passed into a report, and add its points up anew."""
    students = {one["student"]: one for one in report["students"]}
    for one in overrides:
        for book in students[one.student]["notebooks"]:
            if is_for(one, book["exercise"]):
                put(book, one)
    for student in report["students"]:
        for book in student["notebooks"]:
            book["points"] = total(book["questions"])
        student["points"] = total(student["notebooks"])


def total(parts):
    """The points of questions or notebooks, without the tail of a sum of fractions."""
    return round(sum(one["points"] for one in parts), 2)


def put(book, one):
    """Put an override into a notebook."""
    if not one.question:
        book["comment"] = one.comment
        return
    (question,) = (q for q in book["questions"] if q["question"] == one.question)
    question["override"] = {"graded": question["points"], "comment": one.comment}
    if one.points is not None:
        question["points"] = one.points
