"""A class's results as pages: one for each student, and one of the class for the teacher."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

from .cache import write
from .judge import clean, sentence
from .overview import overview
from .reports import file_name

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
    taken = set()
    pages = {one["student"]: file_name(one["student"], taken) for one in report["students"]}
    page = templates.get_template("feedback.html")
    for student in report["students"]:
        write(feedback / f"{pages[student['student']]}.html", page.render(student=student))
    for old in set(feedback.glob("*.html")) - {
        feedback / f"{name}.html" for name in pages.values()
    }:
        old.unlink()
    page = templates.get_template("class.html")
    write(
        Path(folder) / "class.html",
        page.render(report=report, view=overview(report), pages=pages),
    )


def environment():
    """The templates, with what they share."""
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("simlib.grading"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"points": points, "moment": moment, "sentence": sentence}
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
