"""A class's results as pages: one for each student, and one of the class."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import jinja2

from .cache import write
from .reports import file_name

STATUSES = ("right", "wrong", "broke the limits", "not attempted", "not found")


def write_pages(folder, report):
    """Write feedback/STUDENT.html and class.html into a folder.

    All text of students is escaped: jinja2 does so for every value.
    """
    folder = Path(folder)
    (folder / "feedback").mkdir(exist_ok=True)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simlib.grading"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    taken, pages = set(), {}
    page = environment.get_template("feedback.html")
    for student in report["students"]:
        name = pages[student["student"]] = file_name(student["student"], taken)
        write(folder / "feedback" / f"{name}.html", page.render(student=student))
    page = environment.get_template("class.html")
    text = page.render(report=report, questions=by_question(report), statuses=STATUSES, pages=pages)
    write(folder / "class.html", text)


def by_question(report):
    """Where the class stands, by question: how many of each status, which known wrong answers."""
    rows = []
    for exercise in report["exercises"]:
        for question in exercise["questions"]:
            found = [
                one
                for student in report["students"]
                for book in student["notebooks"]
                for one in book["questions"]
                if (book["exercise"], one["question"])
                == (exercise["exercise"], question["question"])
            ]
            rows.append(
                question
                | {
                    "exercise": exercise["exercise"],
                    "count": Counter(one["status"] for one in found),
                    "known": Counter(o["known"] for o in found if o["known"]).most_common(),
                }
            )
    return rows
