"""What a teacher decides by hand: points and comments, merged into a report."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .csv_tables import BadTable, read_table
from .exercise import is_exercise
from .roster import listed, student_of

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
        None leaves them as they are; NaN where the file has no number.
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
        It cannot be read, or has other columns.
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
        found.append(Override(where, student, exercise, question, number_of(points), comment))
    return found


def number_of(text):
    """Points as a number, None where there are none, NaN where it is no number."""
    if not text:
        return None
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        return math.nan
    return int(value) if value.is_integer() else value


def check(overrides, names, exercises, all_exercises):
    """Refuse overrides that cannot be put into a report, before anything is graded.

    A line for an exercise that the report does not have is left aside: one file serves a course.

    Parameters
    ----------
    overrides : list of Override
    names : dict of str to str
        The name of each student that the report will have.
    exercises, all_exercises : dict of str to Exercise
        Those of the report, and all that there are.

    Returns
    -------
    list of Override
        What is to be applied; students and exercises are named as in the report.
    list of str
        A sentence for each line that is left aside.

    Raises
    ------
    BadOverrides
        A line names a student, an exercise or a question that is not there, points that are not
        to be had, or what a line before it named. The message has a line for each mistake.
    """
    found, not_applied, mistakes, seen = [], [], [], set()
    for one in overrides:
        try:
            exercise = exercise_of(one, all_exercises)
            check_points(one, exercise)
            if exercise.name not in exercises:
                not_applied.append(
                    f"{one.where} was not applied: {exercise.name} is not in this report"
                )
                continue
            one = replace(one, student=known_student(one, names), exercise=exercise.name)
            key = one.student, one.exercise, one.question
            if key in seen:
                raise BadOverrides(f"{one.where}: this question was overridden in a line before")
            seen.add(key)
            found.append(one)
        except BadOverrides as error:
            mistakes.append(str(error))
    if mistakes:
        raise BadOverrides("\n".join(mistakes))
    return found, not_applied


def exercise_of(one, all_exercises):
    """The exercise that an override names, by name or number."""
    found = next((e for e in all_exercises.values() if is_exercise(one.exercise, e.name)), None)
    if found is None:
        names = ", ".join(all_exercises)
        raise BadOverrides(f"{one.where}: there is no exercise {one.exercise!r}; there are {names}")
    return found


def known_student(one, names):
    """The student whom an override names, as the report does."""
    found = student_of(one.student, names)
    if found is not None:
        return found
    students = sorted(student for student, name in names.items() if name == one.student)
    if students:
        raise BadOverrides(
            f"{one.where}: {len(students)} students are named {one.student!r}: "
            f"write {listed(students)}"
        )
    raise BadOverrides(f"{one.where}: there is no student {one.student!r} in this report")


def check_points(one, exercise):
    """Refuse an override of a question that an exercise does not have, or of too many points."""
    if one.points is not None and not (math.isfinite(one.points) and one.points >= 0):
        raise BadOverrides(f"{one.where}: points are a number of 0 or more")
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
            if book["exercise"] == one.exercise:
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
