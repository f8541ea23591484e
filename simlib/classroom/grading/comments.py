"""A student's feedback on one notebook as a cell of Moodle's grading worksheet.

Moodle keeps such a comment as HTML (mod/assign/feedback/comments of moodle/moodle), so all texts
are escaped. The cell is short, is one line, and no spreadsheet finds a formula in it.
"""

from __future__ import annotations

import re

from markupsafe import escape

from .late import late_by, penalty_in_words
from .texts import clean, sentence

LONGEST_TEXT, LONGEST_COMMENT = 400, 16_000
"""Characters of a text, and of a comment before its last line; a spreadsheet's cell has 32,767."""
SIGNS = re.compile(r"(?<!\w)[=+\-@]")
"""What may begin a formula, wherever a spreadsheet splits a cell: it is written as a number."""


def comment_on(book):
    """What a notebook's page says of it, in short, as HTML; nothing of hidden tests' contents."""
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
    """Lists of texts, each of which is a paragraph."""
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
    """What there is to say of one question, in sentences."""
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
    """A text as one sentence of bounded length; an empty one stays empty."""
    text = " ".join(clean(text).split())
    return (
        sentence(text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ...")
        if text
        else ""
    )
