"""A class's results as pages: one for each student, and one of the class for the teacher."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from ...core.draw.text import count
from .cache import write
from .overview import overview
from .texts import clean, sentence

LONGEST_TEXT, LONGEST_LINE = 4000, 500
"""Characters of a text, and of one without a line end, such as a name or a reason."""


def write_pages(folder, report):
    """Write feedback/STUDENT.html and class.html into a folder; pages of an earlier time go.

    No page runs or fetches anything. Every text is cleaned of control characters, cut to a length
    and escaped, wherever it comes from.
    """
    feedback = Path(folder) / "feedback"
    feedback.mkdir(exist_ok=True)
    templates = environment()
    page = templates.get_template("feedback.html")
    for student in report["students"]:
        write(feedback / student["page"], page.render(student=student))
    kept = {feedback / student["page"] for student in report["students"]}
    for old in set(feedback.glob("*.html")) - kept:
        old.unlink()
    page = templates.get_template("class.html")
    write(
        Path(folder) / "class.html",
        page.render(report=report, view=overview(report), pages=links(report)),
    )


def links(report):
    """``{student: name of the page}`` without its ending, as it stands in a link."""
    pages = {one["student"]: one["page"] for one in report["students"]}
    return {student: quote(page.removesuffix(".html")) for student, page in pages.items()}


def environment():
    """The templates, with what they share."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("simlib.classroom.grading"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"points": points, "moment": moment, "sentence": sentence, "counted": count}
    found.filters |= {
        "path": path,
        "reason_and_box": reason_and_box,
        "only_right": only_right,
        "by_hand": by_hand,
    }
    return found


def shown(value):
    """A value as a page shows it: text that is harmless and not too long. Escaping follows."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = clean(value)
    most = LONGEST_TEXT if "\n" in text else LONGEST_LINE
    return text if len(text) <= most else text[:most] + " ..."


def points(value):
    """Points without a needless decimal point."""
    return f"{value:g}"


def moment(text):
    """A time of ISO 8601 as people write it, to the minute."""
    return text.replace("T", " ")[:16]


def path(text):
    """A file's path, which breaks after a slash where a line has no room for it."""
    return Markup("/<wbr>").join(escape(part) for part in shown(text).split("/"))


def reason_and_box(question):
    """``(reason, box)`` of a question: nothing that a check says is in both.

    The reason is a line of what the check says, or all of it where it gave no verdict.
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
    """Whether all that the check expected is its own word that the answer is right."""
    return question["expected"] == f"{question['question']}: right"


def by_hand(book):
    """What a teacher did to a notebook by hand, in words; empty where nothing."""
    marks = [(one["override"], one["points"]) for one in book["questions"] if one["override"]]
    if any(mark["graded"] != points for mark, points in marks):
        return "set by hand"
    return "comment" if book["comment"] or any(mark["comment"] for mark, _ in marks) else ""
