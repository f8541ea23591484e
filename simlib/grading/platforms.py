"""Files that learning platforms import: Canvas's gradebook, Moodle's gradebook and worksheets.

What Canvas takes is known from its importer (instructure/canvas-lms, lib/gradebook_importer.rb),
what Moodle takes from grade/import/csv and mod/assign/feedback/offline of moodle/moodle.
"""

from __future__ import annotations

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_POSSIBLE = "    Points Possible"
MOODLE = ("ID number", "Username", "Email address", "Full name")
WORKSHEET = ("Identifier", "Full name", "Grade", "Maximum Grade", "Last modified (grade)")


def tables_for_platforms(report, people):
    """``{file name: rows}`` of all that can be imported somewhere.

    Parameters
    ----------
    report : dict
    people : list of Person
        The roster; its columns are where addresses and numbers come from.
    """
    people = {one.student: one for one in people}
    found = {"canvas.csv": canvas_rows(report, people), "moodle.csv": moodle_rows(report, people)}
    for exercise in report["exercises"]:
        rows = worksheet_rows(report, exercise["exercise"])
        if len(rows) > 1:
            found[f"moodle_worksheet_{exercise['exercise']}.csv"] = rows
    return found


def column_of(people, student):
    """A function that gives the first of some columns that the roster has of a student."""
    return people[student].column if student in people else lambda *names: ""


def handed_by(student, platform):
    """Whether a platform's own number names this student: it stood in the name of a file."""
    return any(book["platform"] == platform for book in student["notebooks"])


def canvas_rows(report, people):
    """The columns that Canvas's gradebook imports.

    Canvas takes an ID for its own number of a user, whatever the text begins with. So only such a
    number is written; without it Canvas looks for the SIS ids, the login, and then the name.
    """
    rows = [[*CANVAS, *(one["exercise"] for one in report["exercises"])]]
    rows.append([POINTS_POSSIBLE, "", "", "", "", *(one["points"] for one in report["exercises"])])
    for one in report["students"]:
        column = column_of(people, one["student"])
        identity = column("canvas id", "id")
        if handed_by(one, "canvas"):
            identity = one["student"]
        identity = identity if identity.isdecimal() else ""
        rows.append(
            [one["name"], identity, column("sis user id"), column("sis login id", "login")]
            + [column("section"), *(book["points"] for book in one["notebooks"])]
        )
    return rows


def moodle_rows(report, people):
    """What Moodle's grade import maps by the columns one chooses there.

    The number in the name of a Moodle download is of one assignment and no ID number, so it is not
    written here: see `worksheet_rows`.
    """
    rows = [[*MOODLE, *(one["exercise"] for one in report["exercises"])]]
    for one in report["students"]:
        column = column_of(people, one["student"])
        number = column("id number", "id")
        address = column("email address", "email")
        if not handed_by(one, "moodle") and not number and "@" not in one["student"]:
            number = one["student"]
        if not address and "@" in one["student"]:
            address = one["student"]
        rows.append(
            [number, column("username", "login"), address, one["name"]]
            + [book["points"] for book in one["notebooks"]]
        )
    return rows


def worksheet_rows(report, exercise):
    """The grading worksheet of one Moodle assignment: those whose files Moodle had named."""
    rows = [list(WORKSHEET)]
    for student in report["students"]:
        for book in student["notebooks"]:
            if book["exercise"] == exercise and book["platform"] == "moodle":
                participant = f"Participant {student['student']}"
                rows.append([participant, student["name"], book["points"], book["of"], ""])
    return rows
