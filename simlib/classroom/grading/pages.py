"""Write a class's results as pages: one page for each student, and one page on the class for the
teacher."""

from __future__ import annotations

from collections import Counter
from statistics import median
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from ...core.draw.text import count as counted
from .late import late_by, moment, penalty_in_words
from .likeness import LONGEST_CODE
from .own_folder import OwnFolder
from .reports import is_unknown
from .texts import clean, sentence

FEEDBACK = "feedback"
LONGEST_TEXT, LONGEST_LINE = 4000, 500
"""The most characters of a text, and of a text in one line, such as a name or a reason."""


def write_pages(folder, report):
    """Write feedback/STUDENT.html and class.html into a folder, and remove older pages.

    No page runs or fetches anything. simlib removes control characters from every text, and
    shortens and escapes the text.
    """
    folder = OwnFolder.of(folder)
    feedback = folder.below(FEEDBACK)
    templates = environment()
    page = templates.get_template("feedback.html")
    for student in report["students"]:
        feedback.write(student["page"], page.render(student=student))
    kept = {student["page"] for student in report["students"]}
    for old in set(feedback.names()) - kept:
        if old.endswith(".html"):
            feedback.remove(old)
    page = templates.get_template("class.html")
    text = page.render(report=report, view=overview(report), pages=links(report))
    folder.write("class.html", text)


def links(report):
    """Return ``{student: name of the page}``. The names have the form for a link, without the
    ending."""
    pages = {one["student"]: one["page"] for one in report["students"]}
    return {student: quote(page.removesuffix(".html")) for student, page in pages.items()}


def environment():
    """Return the templates, with the functions that they share."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("simlib.classroom.grading"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = points, points_of, moment, sentence, path, reason_and_box, only_right, by_hand, code
    filters += late_by, penalty_in_words
    found.filters |= {one.__name__: one for one in filters} | {"counted": counted}
    return found


def shown(value):
    """Return a value as a page shows it: a harmless text that is not too long. The template escapes
    it."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = clean(value)
    most = LONGEST_TEXT if "\n" in text else LONGEST_LINE
    return text if len(text) <= most else text[:most] + " ..."


def code(text):
    """Return a student's own text for a page. It may be longer than other texts."""
    return Markup(escape(clean(text, LONGEST_CODE)))


def points(value):
    """Return points as a text without a needless decimal point."""
    return f"{value:g}"


def points_of(one):
    """Return the points of a student or a notebook. The text contains no number if the grader
    failed."""
    is_open = any(map(is_unknown, one.get("notebooks", [one])))
    return "not graded" if is_open else f"{points(one['points'])} of {one['of']}"


def path(text):
    """Return a file's path as a text that may break after a slash in a narrow line."""
    return Markup("/<wbr>").join(escape(part) for part in shown(text).split("/"))


def reason_and_box(question):
    """Return ``(reason, box)`` of a question. No line of the check's text is in both parts.

    The reason is one line of the check's text. If the check gave no verdict, the reason is all of
    its text.
    """
    reason, got = question["reason"], question["got"]
    if "\n" in got and reason.startswith(got):
        return reason[len(got) :].strip(), got
    lines = got.splitlines()
    repeated = max(
        (line for line in lines if line and reason.startswith(line)), key=len, default=""
    )
    if repeated:
        lines.remove(repeated)
    return reason, "\n".join(lines)


def only_right(question):
    """Whether the check expected nothing except its own message that the answer is right."""
    return question["expected"] == f"{question['question']}: right"


def by_hand(book):
    """Return the changes that a teacher made to a notebook by hand, in words; empty without
    changes."""
    marks = [(one["override"], one["points"]) for one in book["questions"] if one["override"]]
    if any(mark["graded"] != points for mark, points in marks):
        return "set by hand"
    return "comment" if book["comment"] or any(mark["comment"] for mark, _ in marks) else ""


KINDS = {
    "right": "right",
    "partly": "partly right",
    "hidden": "passes the public check only",
    "wrong": "wrong",
    "limits": "broke the limits",
    "none": "not attempted",
    "missing": "nothing to grade",
}
"""The possible results of a question, in the order of the bars."""
BINS = 10


def overview(report):
    """Return a dict with the data that the class's page shows in addition to the report."""
    questions = by_question(report)
    books = [book for student in report["students"] for book in student["notebooks"]]
    count = sum((row["count"] for row in questions), Counter())
    return {
        "kinds": {kind: words for kind, words in KINDS.items() if count[kind]},
        "tiles": tiles(report, books),
        "questions": questions,
        "stumbles": sorted(
            (row for row in questions if row["lost"]), key=lambda row: -row["lost"] / row["had"]
        ),
        "known": known_wrong(report),
        "histogram": histogram(report["students"]),
        "students": sorted(report["students"], key=by_name),
        "has_roster": any(student["in_roster"] for student in report["students"]),
        "late": [one for one in map(late_books, sorted(report["students"], key=by_name)) if one],
        "oddities": oddities(report),
        "people": {student["student"]: student for student in report["students"]},
    }


def by_name(student):
    """Return the key by which tables sort students."""
    return student["name"].casefold(), student["student"]


def kind_of(question, book):
    """Return the entry of `KINDS` to which a student's answer belongs."""
    if book["status"] != "graded" or question["status"] == "not found":
        return "missing"
    if question["status"] == "wrong":
        return "hidden" if question["hidden"] == "wrong" and not question["got"] else "wrong"
    return {"right": "right", "partly right": "partly", "not attempted": "none"}.get(
        question["status"], "limits"
    )


def answers(report):
    """Yield ``(student, book, question)`` for each question of each student."""
    for student in report["students"]:
        for book in student["notebooks"]:
            for question in book["questions"]:
                yield student, book, question


def by_question(report):
    """Return a row for each question, in order. A row contains counts by kind, the parts of the
    bar, and lost points."""
    rows = {}
    for exercise in report["exercises"]:
        for question in exercise["questions"]:
            rows[exercise["exercise"], question["question"]] = question | {
                "exercise": exercise["exercise"],
                "count": Counter(),
                "lost": 0,
                "had": 0,
            }
    for _, book, question in answers(report):
        row = rows[book["exercise"], question["question"]]
        row["count"][kind_of(question, book)] += 1
        if book["status"] == "graded":
            row["lost"] += question["of"] - question["points"]
            row["had"] += question["of"]
    for row in rows.values():
        row["students"] = row["count"].total()
        row["parts"] = parts(row["count"])
        row["lost_share"] = round(100 * row["lost"] / row["had"]) if row["had"] else 0
        counts = [f"{row['count'][kind]} {words}" for kind, words in KINDS.items()]
        row["words"] = ", ".join(one for one in counts if not one.startswith("0 "))
    return list(rows.values())


def parts(count):
    """Return the kind, start and width of each part of a bar that is 100 wide."""
    found, x = [], 0.0
    for kind in KINDS:
        width = 100 * count[kind] / max(1, count.total())
        if width:
            found.append({"kind": kind, "x": round(x, 2), "width": round(width, 2)})
        x += width
    return found


def known_wrong(report):
    """Return the known wrong answers that students gave, with these students. The most frequent
    comes first."""
    found = {}
    for student, book, question in answers(report):
        if question["known"]:
            key = book["exercise"], question["question"], question["known"]
            row = {"exercise": key[0], "question": key[1], "title": question["title"]}
            found.setdefault(key, row | {"known": key[2], "students": []})["students"].append(
                student
            )
    return sorted(found.values(), key=lambda row: -len(row["students"]))


def histogram(students):
    """Count the students who have 0-10 %, 10-20 %, ... of all points."""
    count = Counter(
        min(BINS - 1, int(BINS * one["points"] / one["of"])) for one in students if one["of"]
    )
    width = 100 // BINS
    return [
        {"count": count[n], "words": f"{n * width} to {(n + 1) * width} %"} for n in range(BINS)
    ]


def tiles(report, books):
    """Return ``(name, value)`` of each number at the top of the page."""
    points = [student["points"] for student in report["students"]]
    of = sum(exercise["points"] for exercise in report["exercises"])
    graded = sum(book["status"] == "graded" for book in books)
    missing = sum(book["status"] == "missing" for book in books)
    others = sum(len(student["other_files"]) for student in report["students"])
    mean = sum(points) / len(points) if points else 0
    return [
        named(len(points), "student"),
        named(graded, "notebook", " graded"),
        (f"mean of {of} points", f"{mean:.1f}"),
        ("median", f"{median(points or [0]):g}"),
        named(sum(book["late"] for book in books), "notebook", " late"),
        named(missing, "notebook", " not handed in"),
        named(len(books) - graded - missing + others, "file", " not gradable"),
    ]


def named(number, noun, more=""):
    """Return ``(name, value)`` for a number of things, with the noun in singular or plural."""
    value, name = counted(number, noun).split(" ")
    return name + more, value


def oddities(report):
    """Return dicts ``{student, file, what}`` of things that a teacher may want to look at, sorted
    by student."""
    rows = []
    for student in sorted(report["students"], key=by_name):
        rows += [{"student": student, "file": "", "what": what} for what in student["notes"]]
        for book in student["notebooks"]:
            notes = list(book["notes"])
            if book["status"] not in ("graded", "missing"):
                notes.insert(0, f"{book['status']}: {book['reason']}")
            rows += [{"student": student, "file": book["file"], "what": what} for what in notes]
        for other in student["other_files"]:
            rows.append({"student": student, "file": other["file"], "what": other["reason"]})
    return rows


def late_books(student):
    """Return a student and the student's late notebooks; None if no notebook is late."""
    books = [book for book in student["notebooks"] if book["late"]]
    return {"student": student, "books": books} if books else None
