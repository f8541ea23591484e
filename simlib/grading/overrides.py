"""What a teacher decides by hand: points and comments, merged into a report."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass

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
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            head = [(name or "").strip().lower() for name in reader.fieldnames or ()]
            rows = [
                (reader.line_num, dict(zip(head, row.values(), strict=False))) for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadOverrides(f"the overrides {path} cannot be read: {error}") from None
    absent = [name for name in COLUMNS[:4] if name not in head]
    if absent:
        raise BadOverrides(
            f"the overrides {path} have no column {', '.join(absent)}: "
            f"they need {', '.join(COLUMNS)}"
        )
    found = []
    for line, row in rows:
        student, exercise, question, points, comment = (
            (row.get(name) or "").strip() for name in COLUMNS
        )
        if student or exercise or question or points or comment:
            where = f"{path}, line {line}"
            number = number_of(points, where)
            found.append(Override(where, student, exercise, question, number, comment))
    return found


def number_of(text, where):
    """Points as a number, None where there are none."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise BadOverrides(f"{where}: points {text!r} are no number of 0 or more")
    return int(value) if value == int(value) else value


def apply(report, overrides):
    """Put overrides into a report, and add its points up anew.

    A line for an exercise that this report does not have is left aside: one file serves a course.

    Raises
    ------
    BadOverrides
        A line names a student or a question that is not there, more points than there are, or
        nothing at all.
    """
    students = {one["student"]: one for one in report["students"]}
    seen = set()
    for one in overrides:
        if one.student not in students:
            raise BadOverrides(f"{one.where}: there is no student {one.student!r} in this report")
        book = book_of(students[one.student], one.exercise)
        if book is None:
            continue
        key = one.student, book["exercise"], one.question
        if key in seen:
            raise BadOverrides(f"{one.where}: this question was overridden in a line before")
        seen.add(key)
        if one.question:
            set_question(book, one)
        elif one.points is not None:
            raise BadOverrides(f"{one.where}: points need the name of a question")
        else:
            book["comment"] = one.comment
    for student in report["students"]:
        for book in student["notebooks"]:
            book["points"] = sum(question["points"] for question in book["questions"])
        student["points"] = sum(book["points"] for book in student["notebooks"])


def book_of(student, exercise):
    """A student's notebook of an exercise, by name or number; None where the report has none."""
    names = (book for book in student["notebooks"])
    return next(
        (b for b in names if exercise and exercise in (b["exercise"], b["exercise"][:2])), None
    )


def set_question(book, one):
    """Put an override into a question of a notebook."""
    question = next((q for q in book["questions"] if q["question"] == one.question), None)
    if question is None:
        names = ", ".join(q["question"] for q in book["questions"])
        raise BadOverrides(
            f"{one.where}: {book['exercise']} has no question {one.question!r}; it has {names}"
        )
    if one.points is not None and one.points > question["of"]:
        raise BadOverrides(
            f"{one.where}: {one.points:g} points, but {one.question} is worth {question['of']}"
        )
    question["override"] = {"graded": question["points"], "comment": one.comment}
    if one.points is not None:
        question["points"] = one.points
