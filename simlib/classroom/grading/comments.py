"""Write a student's feedback on one notebook as a cell of Moodle's grading worksheet.

Moodle keeps such a comment as HTML (mod/assign/feedback/comments of moodle/moodle), so all texts
are escaped. The cell is short and has one line. No spreadsheet treats a part of it as a formula.
"""

from __future__ import annotations

import re

from markupsafe import escape

from .late import late_by, penalty_in_words
from .texts import clean, sentence

LONGEST_TEXT, LONGEST_COMMENT = 400, 16_000
"""The most characters of a text, and of a comment. A spreadsheet's cell may contain 32,767."""
SIGNS = re.compile(r"(?<!\w)[=+\-@]")
"""Signs that may begin a formula if a spreadsheet splits the cell. simlib writes them as HTML's
numbers."""


def comment_on(book):
    """Return the content of a notebook's page in short form, as HTML, without contents of hidden
    tests."""
    lines, length = [], 0
    for line in lines_on(book):
        if length > LONGEST_COMMENT:
            lines.append("...")
            break
        text = " ".join(str(escape(part)) for part in line)
        lines.append(SIGNS.sub(lambda sign: f"&#{ord(sign[0])};", text))
        length += len(lines[-1])
    return "".join(f"<p>{line}</p>" for line in lines)


def lines_on(book):
    """Return lists of texts. Each list becomes a paragraph."""
    if book["late"]:
        yield [short(f"Late {late_by(book)}".strip()), short(penalty_in_words(book))]
    if book["comment"]:
        yield ["From your teacher:", short(book["comment"])]
    if book["status"] != "graded":
        yield [short(f"This notebook could not be graded: {book['reason']}")]
    for question in book["questions"]:
        if book["status"] == "graded" or question["override"]:
            yield list(told_of(question, book["status"] == "graded"))


def told_of(question, is_graded):
    """Return the remarks on one question, in sentences."""
    title = clean(question["title"] or question["question"])[:LONGEST_TEXT]
    yield f"{title}: {question['points']:g} of {question['of']}, {question['status']}."
    if question["known"]:
        yield short(f"This is {question['known']}")
    if is_graded:
        yield short(question["reason"])
    by_hand = question["override"]
    if by_hand and by_hand["graded"] != question["points"]:
        yield f"Points set by hand: the tests gave {by_hand['graded']:g}."
    if by_hand and by_hand["comment"]:
        yield f"From your teacher: {short(by_hand['comment'])}"


def short(text):
    """Return a text as one sentence of limited length. An empty text stays empty."""
    text = " ".join(clean(text).split())
    return (
        sentence(text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ...")
        if text
        else ""
    )
