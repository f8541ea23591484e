"""A class's results as data: the roster joined in, report.json, and tables."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from pathlib import Path

from ...core.environment import VERSION as SIMLIB_VERSION
from .cache import write
from .grade import without_points
from .lms_export import WITHOUT, tables_for_platforms, texts_for_platforms
from .roster import names_of
from .texts import is_disguised, one_line

VERSION = 1
SCHEMA = Path(__file__).parent / "report.schema.json"
FORMULA = re.compile(r'(^|[,;\t\r\n])([\s"]*)(?=[=+\-@＝＋－＠])')
"""Where a spreadsheet may begin a cell, whatever it takes for a separator, and finds a formula."""

NOT_IN_ROSTER = "not in the roster"
LONGEST_FILE_NAME = 80
"""Characters; in bytes half as many again at most."""


def table(graded, roster, exercises):
    """``{student: {exercise: GradedFile or None}}``: the roster's students first, all exercises."""
    order = [one.student for one in roster]
    order += sorted({one.student for one in graded} - set(order))
    rows = {student: dict.fromkeys(exercises) for student in order}
    for one in graded:
        if one.exercise:
            rows[one.student][one.exercise] = one
    return rows


def as_report(graded, roster, exercises, seed, isolated):
    """The whole report as plain data; `report.schema.json` describes it."""
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
    }


def changed_in_tables(student, name, person):
    """A note for what tables have otherwise than it is: a platform may not find it, in a list."""
    texts = dict.fromkeys([student, name, *texts_for_platforms(student, name, person)])
    changed = [tame(text) for text in texts if tame(text) != text]
    if not changed:
        return []
    return [
        f"written as {' and '.join(changed)} in all tables, so that no spreadsheet runs or hides "
        "it: set it right before an import that finds students by it"
    ]


def as_notebook(one, exercise):
    """One notebook of a report; a missing one has no points."""
    if one is None:
        data = without_points(exercise, "missing", "nothing was handed in").as_dict()
        data |= {"file": "", "when": "", "late": False, "platform": ""}
    else:
        data = one.result.as_dict()
        data["notes"] = [*one.notes, *data["notes"]]
        data |= {"file": one.file, "when": one.when, "late": one.late, "platform": one.platform}
    questions = [question | {"override": None} for question in data["questions"]]
    return data | {"questions": questions, "comment": ""}


def write_reports(folder, report, people=()):
    """Write report.json, report.csv and what Canvas and Moodle import into a folder.

    Returns
    -------
    dict of str to str
        Tables that no platform could use, which are not written: what each needs.
    """
    folder = Path(folder)
    write(folder / "report.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    write_csv(folder / "report.csv", rows_of(report))
    tables = tables_for_platforms(report, people)
    for name, rows in tables.items():
        write_csv(folder / name, rows)
    remove_earlier(folder, sorted(tables))
    return {name: needs for name, needs in WITHOUT.items() if name not in tables}


def remove_earlier(folder, names):
    """Remove the tables of an earlier report that are not among these; no other files."""
    listed = folder / ".cache" / "tables"
    listed.parent.mkdir(exist_ok=True)
    earlier = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
    for name in set(earlier) - set(names):
        (folder / name).unlink(missing_ok=True)
    if earlier != names:
        write(listed, "\n".join(names))


def rows_of(report):
    """One row for each student: points in all and by exercise, what was late, what was odd."""
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
            f"{b['exercise']} {q['question']}: by hand, before {q['override']['graded']:g}"
            for b in books
            for q in b["questions"]
            if q["override"] and q["override"]["graded"] != q["points"]
        ]
        points = [book["points"] for book in books]
        rows.append(
            [one["student"], one["name"], one["points"], one["of"], *points, late]
            + ["; ".join(odd), "; ".join(by_hand + notes), f"feedback/{one['page']}"]
        )
    return rows


def write_csv(path, rows):
    """Write a table; text that a spreadsheet would take for a formula gets a quote before it."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([[tame(value) for value in row] for row in rows])
    write(path, text.getvalue())


def tame(value):
    """A cell of a table: text in one line that no spreadsheet runs, wherever it splits it."""
    return one_line(FORMULA.sub(r"\1'\2", value)) if isinstance(value, str) else value


def file_name(student, taken):
    """A name for a student's file that is safe on every system and not taken yet.

    It keeps letters, digits and accents of any script.
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
    """Whether a character can stand in a file's name everywhere."""
    return char in "-_." or (unicodedata.category(char)[0] in "LNM" and not is_disguised(char))
