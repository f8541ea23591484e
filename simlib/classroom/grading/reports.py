"""Write a class's results as data: the report, its tables, points by hand, and files for platforms.

The source of Canvas's importer shows what Canvas accepts (instructure/canvas-lms,
lib/gradebook_importer.rb). For Moodle, grade/import/csv and mod/assign/feedback/offline of
moodle/moodle show this.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.environment import ROOT
from ...core.environment import VERSION as SIMLIB_VERSION
from .comments import comment_on
from .exercise import is_exercise
from .grade import without_points
from .late import late_by, penalty_in_words, percent_of
from .likeness import equal_answers, given_by
from .own_folder import OwnFolder
from .roster import NAME_COLUMNS, BadTable, listed, names_of, read_table, student_of
from .texts import Cache, is_disguised, one_line

VERSION = 1
CACHE = ".cache"
"""The folder inside a report for results that the next call needs."""
SCHEMA = Path(__file__).parent / "report.schema.json"
FORMULA = re.compile(r'(^|[,;\t\r\n])([\s"]*)(?=[=+\-@＝＋－＠])')
"""The places at which a cell of a spreadsheet may begin with a formula, whatever the separator
is."""

NOT_IN_ROSTER = "not in the roster"
LONGEST_FILE_NAME = 80
"""The most characters of a file's name. In bytes, the name is at most one and a half times as
long."""


def table(graded, roster, exercises):
    """Return ``{student: {exercise: GradedFile or None}}``. The roster's students come first."""
    order = [one.student for one in roster]
    order += sorted({one.student for one in graded} - set(order))
    rows = {student: dict.fromkeys(exercises) for student in order}
    for one in graded:
        if one.exercise:
            rows[one.student][one.exercise] = one
    return rows


def as_report(graded, roster, exercises, seed, isolated):
    """Return the whole report as plain data. `report.schema.json` describes its form."""
    people = {one.student: one for one in roster}
    names = names_of(graded, roster)
    students, taken = [], set()
    for student, row in table(graded, roster, exercises).items():
        mine = [one for one in graded if one.student == student]
        others = [one for one in mine if not one.exercise]
        notes = [NOT_IN_ROSTER] if people and student not in people else []
        notes += sorted({one.conflict for one in mine if one.conflict})
        notes += changed_in_tables(student, names[student], people.get(student))
        students.append(
            {
                "student": student,
                "name": names[student],
                "page": f"{file_name(student, taken)}.html",
                "in_roster": student in people,
                "notes": notes,
                "points": round(sum(one.result.points for one in row.values() if one), 2),
                "of": sum(exercise.points for exercise in exercises.values()),
                "notebooks": [as_notebook(row[name], exercises[name]) for name in exercises],
                "other_files": [{"file": o.file, "reason": o.result.reason} for o in others],
            }
        )
    return {
        "version": VERSION,
        "simlib": SIMLIB_VERSION,
        "seed": str(seed),
        "isolated": isolated,
        "exercises": [
            {
                "exercise": one.name,
                "points": one.points,
                "questions": [
                    {"question": q.name, "title": q.title, "points": q.points}
                    for q in one.questions.values()
                ],
            }
            for one in exercises.values()
        ],
        "students": students,
        "alike": equal_answers(students, lambda: given_by(exercises.values(), ROOT / "notebooks")),
    }


def changed_in_tables(student, name, person):
    """Return a list with a note if tables write a name differently, because a platform may then not
    find it."""
    texts = dict.fromkeys([student, name, *texts_for_platforms(student, name, person)])
    changed = [tame(text) for text in texts if tame(text) != text]
    if not changed:
        return []
    return [
        f"all tables show {' and '.join(changed)}, because a spreadsheet could run or hide the "
        "original: correct this text before you import a table that finds students by it"
    ]


def as_notebook(one, exercise):
    """Return one notebook of a report. A missing notebook gets no points."""
    if one is None:
        data = without_points(exercise, "missing", "nothing was handed in").as_dict()
        data |= {"file": "", "when": "", "late": False, "platform": "", "number": ""}
        data["deadline"] = ""
    else:
        data = one.result.as_dict()
        data["notes"] = [*one.notes, *data["notes"]]
        data |= {"file": one.file, "when": one.when, "late": one.late, "deadline": one.deadline}
        data |= {"platform": one.platform, "number": one.number or one.student}
    questions = [question | {"override": None} for question in data["questions"]]
    return data | {"questions": questions, "comment": "", "penalty": None}


def write_reports(folder, report, people=()):
    """Write report.json, report.csv and the tables for Canvas and Moodle into a folder.

    Returns
    -------
    dict of str to str
        The tables that the function does not write because no platform could use them, and what
        each table needs.
    """
    folder = OwnFolder.of(folder)
    folder.write("report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    folder.write("report.csv", csv_text(rows_of(report)))
    tables = tables_for_platforms(report, people)
    for name, rows in tables.items():
        folder.write(name, csv_text(rows))
    remove_earlier(folder, sorted(tables))
    return {name: needs for name, needs in WITHOUT.items() if name not in tables}


def remove_earlier(folder, names):
    """Remove the tables of an earlier report that are not in ``names``. Remove no other files."""
    for name in set(Cache(folder.below(CACHE)).tables(names)) - set(names):
        folder.remove(name)


def is_unknown(book):
    """Whether the grader failed at a notebook and no teacher has given points for it."""
    by_hand = [one["override"] and one["override"]["points"] for one in book["questions"]]
    return book["status"] == "not graded" and None in by_hand


def points_in_table(book):
    """Return the points of a notebook for a table; an empty cell if they are unknown."""
    return "" if is_unknown(book) else book["points"]


def rows_of(report):
    """Return one row for each student: points in total and by exercise, late files, and unusual
    things."""
    names = [one["exercise"] for one in report["exercises"]]
    rows = [["student", "name", "points", "of", *names, "late", "status", "notes", "page"]]
    for one in report["students"]:
        books = one["notebooks"]
        late = ", ".join(book["exercise"] for book in books if book["late"])
        odd = [f"{b['exercise']}: {b['status']}" for b in books if b["status"] != "graded"]
        of_books = [f"{b['exercise']}: {n}" for b in books for n in [b["reason"], *b["notes"]]]
        notes = one["notes"] + [note for note in of_books if not note.endswith(": ")]
        notes += [f"{other['file']}: {other['reason']}" for other in one["other_files"]]
        by_hand = [
            f"{b['exercise']} {q['question']}: set by hand, before {q['override']['graded']:g}"
            for b in books
            for q in b["questions"]
            if q["override"] and q["override"]["graded"] != q["points"]
        ]
        costs = [f"{b['exercise']}: {words_on_late(b)}" for b in books if b["penalty"]]
        points = [points_in_table(book) for book in books]
        in_all = "" if "" in points else one["points"]
        rows.append(
            [one["student"], one["name"], in_all, one["of"], *points, late]
            + ["; ".join(odd), "; ".join(costs + by_hand + notes), f"feedback/{one['page']}"]
        )
    return rows


def words_on_late(book):
    """Return a text on how late a notebook was, and on the points that this has cost."""
    words = f"late {late_by(book)}".strip(), penalty_in_words(book)
    return ", ".join(word for word in words if word)


def csv_text(rows):
    """Return a table as text. Put a quote before texts that a spreadsheet would treat as
    formulas."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([[tame(value) for value in row] for row in rows])
    return text.getvalue()


def tame(value):
    """Return the text for a cell of a table, in one line. No spreadsheet treats it as a formula."""
    return one_line(FORMULA.sub(r"\1'\2", value)) if isinstance(value, str) else value


def file_name(student, taken):
    """Return a name for a student's file that is safe on every system and not yet taken.

    The name keeps letters, digits and accents of any script.
    """
    text = unicodedata.normalize("NFC", student)
    base = "".join(char if is_safe(char) else "_" for char in text).strip("._")
    base = base[:LONGEST_FILE_NAME].encode()[: LONGEST_FILE_NAME * 3 // 2].decode(errors="ignore")
    name, number = base or "student", 1
    while name.casefold() in taken:
        number += 1
        name = f"{base or 'student'}-{number}"
    taken.add(name.casefold())
    return name


def is_safe(char):
    """Whether every system accepts a character in a file's name."""
    return char in "-_." or (unicodedata.category(char)[0] in "LNM" and not is_disguised(char))


COLUMNS = ("student", "exercise", "question", "points", "comment")


class BadOverrides(Exception):
    """Overrides that simlib cannot apply. The message gives the reason."""


@dataclass(frozen=True)
class Override:
    """One line of the file with overrides.

    Attributes
    ----------
    where : str
        File and line, for messages.
    student, exercise, question : str
        If ``question`` is empty, the line is a comment on the whole notebook.
    points : float or None
        None if the points stay as they are. NaN if the text in the file is not a number.
    comment : str
    """

    where: str
    student: str
    exercise: str
    question: str
    points: float | None
    comment: str


def read_overrides(path):
    """Read ``[Override]`` from a CSV file with the columns student, exercise, question, points,
    comment.

    Raises
    ------
    BadOverrides
        simlib cannot read the file, or the file has other columns.
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
    """Return points as a number; None for an empty cell, and NaN for any other text."""
    if not text:
        return None
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        return math.nan
    return int(value) if value.is_integer() else value


def check(overrides, names, exercises, all_exercises):
    """Refuse overrides that do not fit the report, before anything is graded.

    The function skips a line for an exercise that is not in the report. So one file can serve a
    whole course.

    Parameters
    ----------
    overrides : list of Override
    names : dict of str to str
        The names of all students who will be in the report.
    exercises, all_exercises : dict of str to Exercise
        The exercises of the report, and all exercises.

    Returns
    -------
    list of Override
        The overrides to apply. Students and exercises have the report's names.
    list of str
        A sentence for each line that is skipped.

    Raises
    ------
    BadOverrides
        A line names an unknown student, exercise or question, or gives impossible points, or
        repeats an earlier line. The message has a line for each mistake.
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
                raise BadOverrides(f"{one.where}: an earlier line already overrides this question")
            seen.add(key)
            found.append(one)
        except BadOverrides as error:
            mistakes.append(str(error))
    if mistakes:
        raise BadOverrides("\n".join(mistakes))
    return found, not_applied


def exercise_of(one, all_exercises):
    """Return the exercise that an override names, by name or number."""
    found = next((e for e in all_exercises.values() if is_exercise(one.exercise, e.name)), None)
    if found is None:
        names = ", ".join(all_exercises)
        raise BadOverrides(f"{one.where}: there is no exercise {one.exercise!r}; there are {names}")
    return found


def known_student(one, names):
    """Return the student whom an override names, by the name in the report."""
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
        raise BadOverrides(f"{one.where}: points must be a number of 0 or more")
    if not one.question:
        if one.points is not None:
            raise BadOverrides(f"{one.where}: a line with points must name a question")
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
    """Apply checked overrides to a report, and add up its points again."""
    students = {one["student"]: one for one in report["students"]}
    for one in overrides:
        for book in students[one.student]["notebooks"]:
            if book["exercise"] == one.exercise:
                put(book, one)
    add_up(report)


def charge(report, costs):
    """Subtract the points that late notebooks of a report lose, by the costs from
    `late.costs_of`."""
    for student in report["students"]:
        for book in student["notebooks"]:
            if costs and book["late"]:
                book["penalty"] = {"percent": percent_of(book, costs), "before": 0, "points": 0}
    add_up(report)


def add_up(report):
    """Add up the points of all notebooks and students. Lateness does not reduce points that were
    set by hand."""
    for student in report["students"]:
        for book in student["notebooks"]:
            book["points"] = reached = total(book["questions"])
            lost = book["penalty"]
            if lost:
                graded = total(q for q in book["questions"] if not is_set_by_hand(q))
                points = whole(graded * lost["percent"] / 100)
                lost |= {"before": reached, "points": points}
                book["points"] = whole(reached - points)
        student["points"] = total(student["notebooks"])


def is_set_by_hand(question):
    """Whether a teacher has given the points of a question."""
    return bool(question["override"]) and question["override"]["points"] is not None


def total(parts):
    """Return the sum of points of questions or notebooks. Round it to remove errors of
    floating-point addition."""
    return round(sum(one["points"] for one in parts), 2)


def whole(points):
    """Return points with at most two decimal places and no needless decimal point."""
    points = round(points, 2)
    return int(points) if points == int(points) else points


def put(book, one):
    """Apply one override to a notebook."""
    if not one.question:
        book["comment"] = one.comment
        return
    (question,) = (q for q in book["questions"] if q["question"] == one.question)
    given = {"points": one.points, "comment": one.comment}
    question["override"] = {"graded": question["points"]} | given
    if one.points is not None:
        question["points"] = one.points


CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_POSSIBLE = "    Points Possible"
MOODLE = ("ID number", "Username", "Email address", "Full name")
WORKSHEET = (
    "Identifier", "Full name", "Grade", "Maximum Grade", "Last modified (grade)",
    "Feedback comments",
)  # fmt: skip


WITHOUT = {
    "canvas.csv": "a roster with a column name, canvas id, sis user id or sis login id",
    "moodle.csv": "a roster with a column email, username or id number",
}
"""For each table, the roster columns that its platform needs to identify students."""


def tables_for_platforms(report, people):
    """Return ``{file name: rows}`` of all tables that a platform can import.

    Parameters
    ----------
    report : dict
    people : list of Person
        The roster. Its columns give addresses and numbers.
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
    """Return a function that returns a student's text in the first of some columns that is not
    empty."""
    known = people.get(student["student"])
    return known.column if known else lambda *names: ""


def number_in(student, platform):
    """Return a platform's own number of a student, from a file's name; empty if there is none."""
    books = student["notebooks"]
    return next((book["number"] for book in books if book["platform"] == platform), "")


def ids_for_canvas(student, column):
    """Return Canvas's own number, the SIS id and the login of a student, as far as they are known.

    If an ID begins with a number, Canvas treats this number as its own number of a user. So simlib
    writes no other numbers there. Without such a number, Canvas looks for the SIS ids, then the
    login, and then the name.
    """
    identity = number_in(student, "canvas") or column("canvas id", "id")
    identity = identity if identity.isdecimal() else ""
    return [identity, column("sis user id"), column("sis login id", "login")]


def names_for_canvas(student, column):
    """Whether Canvas can find a student by a number, or by a real name instead of a folder's
    name."""
    name = column(*NAME_COLUMNS) or student["name"] != student["student"]
    return bool(name) or any(ids_for_canvas(student, column))


def texts_for_platforms(student, name, person):
    """Return all texts about a student that the tables for platforms contain."""
    one = {"student": student, "name": name, "notebooks": []}
    column = column_of({student: person} if person else {}, one)
    return [*ids_for_canvas(one, column), column("section"), *names_for_moodle(one, column)]


def canvas_rows(report, people):
    """Return the rows of a table that Canvas's gradebook can import."""
    rows = [[*CANVAS, *(one["exercise"] for one in report["exercises"])]]
    rows.append([POINTS_POSSIBLE, "", "", "", "", *(one["points"] for one in report["exercises"])])
    for one in report["students"]:
        column = column_of(people, one)
        rows.append(
            [one["name"], *ids_for_canvas(one, column), column("section")]
            + [points_in_table(book) for book in one["notebooks"]]
        )
    return rows


def names_for_moodle(student, column):
    """Return the ID number, user name and address of a student, as far as they are known.

    A column ``id`` contains Canvas's number. The number in the name of a Moodle download is no ID
    number, because it is valid for one assignment only: see `worksheet_rows`.
    """
    address = column("email address", "email")
    if not address and "@" in student["student"]:
        address = student["student"]
    return [column("id number", "idnumber"), column("username", "login"), address]


def moodle_rows(report, people):
    """Return the rows for Moodle's grade import. The teacher chooses in Moodle what each column
    means."""
    rows = [[*MOODLE, *(one["exercise"] for one in report["exercises"])]]
    for one in report["students"]:
        names = names_for_moodle(one, column_of(people, one))
        points = [points_in_table(book) for book in one["notebooks"]]
        rows.append([*names, one["name"], *points])
    return rows


def worksheet_rows(report, exercise):
    """Return the grading worksheet of one Moodle assignment. It contains the students whose files
    Moodle has named."""
    rows = [list(WORKSHEET)]
    for student in report["students"]:
        for book in student["notebooks"]:
            if book["exercise"] == exercise and book["platform"] == "moodle":
                participant = f"Participant {book['number']}"
                points = points_in_table(book)
                comment = "" if is_unknown(book) else comment_on(book)
                rows.append([participant, student["name"], points, book["of"], "", comment])
    return rows
