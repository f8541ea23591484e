"""Files that learning platforms import: Canvas's gradebook, Moodle's gradebook and worksheets.

What Canvas takes is known from its importer (instructure/canvas-lms, lib/gradebook_importer.rb),
what Moodle takes from grade/import/csv and mod/assign/feedback/offline of moodle/moodle.
"""

from __future__ import annotations

from .csv_tables import NAME_COLUMNS

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_POSSIBLE = "    Points Possible"
MOODLE = ("ID number", "Username", "Email address", "Full name")
WORKSHEET = ("Identifier", "Full name", "Grade", "Maximum Grade", "Last modified (grade)")


WITHOUT = {
    "canvas.csv": "a roster with a column name, canvas id, sis user id or sis login id",
    "moodle.csv": "a roster with a column email, username or id number",
}
"""What each platform needs to tell whose points they are."""


def tables_for_platforms(report, people):
    """``{file name: rows}`` of all that can be imported somewhere.

    Parameters
    ----------
    report : dict
    people : list of Person
        The roster; its columns are where addresses and numbers come from.
    """
    people = {one.student: one for one in people}
    found = {}
    if any(names_for_canvas(one, column_of(people, one)) for one in report["students"]):
        found["canvas.csv"] = canvas_rows(report, people)
    if any(any(names_for_moodle(one, column_of(people, one))) for one in report["students"]):
        found["moodle.csv"] = moodle_rows(report, people)
    for exercise in report["exercises"]:
        rows = worksheet_rows(report, exercise["exercise"])
        if len(rows) > 1:
            found[f"moodle_worksheet_{exercise['exercise']}.csv"] = rows
    return found


def column_of(people, student):
    """A function that gives the first of some columns that the roster has of a student."""
    known = people.get(student["student"])
    return known.column if known else lambda *names: ""


def handed_by(student, platform):
    """Whether a platform's own number names this student: it stood in the name of a file."""
    return any(book["platform"] == platform for book in student["notebooks"])


def ids_for_canvas(student, column):
    """Canvas's own number, SIS id and login of a student, as far as they are known.

    Canvas takes an ID for its own number of a user, whatever the text begins with. So only such a
    number is written; without it Canvas looks for the SIS ids, the login, and then the name.
    """
    identity = column("canvas id", "id")
    if handed_by(student, "canvas"):
        identity = student["student"]
    identity = identity if identity.isdecimal() else ""
    return [identity, column("sis user id"), column("sis login id", "login")]


def names_for_canvas(student, column):
    """Whether Canvas can find a student: by a number, or by a name that is no folder's."""
    name = column(*NAME_COLUMNS) or student["name"] != student["student"]
    return bool(name) or any(ids_for_canvas(student, column))


def texts_for_platforms(student, name, person):
    """All texts that tables for platforms hold of a student, of whatever platform."""
    one = {"student": student, "name": name, "notebooks": []}
    column = column_of({student: person} if person else {}, one)
    return [*ids_for_canvas(one, column), column("section"), *names_for_moodle(one, column)]


def canvas_rows(report, people):
    """The columns that Canvas's gradebook imports."""
    rows = [[*CANVAS, *(one["exercise"] for one in report["exercises"])]]
    rows.append([POINTS_POSSIBLE, "", "", "", "", *(one["points"] for one in report["exercises"])])
    for one in report["students"]:
        column = column_of(people, one)
        rows.append(
            [one["name"], *ids_for_canvas(one, column), column("section")]
            + [book["points"] for book in one["notebooks"]]
        )
    return rows


def names_for_moodle(student, column):
    """ID number, user name and address of a student, as far as they are known.

    A column ``id`` is Canvas's. The number in the name of a Moodle download is of one assignment
    and no ID number: see `worksheet_rows`.
    """
    address = column("email address", "email")
    if not address and "@" in student["student"]:
        address = student["student"]
    return [column("id number", "idnumber"), column("username", "login"), address]


def moodle_rows(report, people):
    """What Moodle's grade import maps by the columns one chooses there."""
    rows = [[*MOODLE, *(one["exercise"] for one in report["exercises"])]]
    for one in report["students"]:
        names = names_for_moodle(one, column_of(people, one))
        rows.append([*names, one["name"], *(book["points"] for book in one["notebooks"])])
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
