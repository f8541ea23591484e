"""Tables that teachers write: CSV as spreadsheets save it, whatever stands between the columns."""

from __future__ import annotations

import csv

from .texts import readable

SEPARATORS = ",;\t"
"""Where the decimal sign is a comma, spreadsheets write semicolons."""

NAME_COLUMNS = ("name", "student name", "full name")
"""Columns of a roster that hold what a student is called."""


class BadTable(Exception):
    """A table that cannot be read; the message is the reason."""


def read_table(path):
    """``(names of the columns in small letters, [(line, {name: text})])`` of a CSV file.

    Raises
    ------
    BadTable
        There is no such file, it is no text in UTF-8, or it is empty.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = readable(file.read())
    except UnicodeDecodeError:
        raise BadTable("it is not in UTF-8: save it as 'CSV UTF-8'") from None
    except OSError as error:
        raise BadTable(error.strerror or str(error)) from None
    first = lines.partition("\n")[0]
    reader = csv.reader(lines.splitlines(True), delimiter=max(SEPARATORS, key=first.count))
    try:
        head = [name.strip().lower() for name in next(reader, [])]
        rows = [
            (reader.line_num, cells_of(row, head, reader.line_num))
            for row in reader
            if any(text.strip() for text in row)
        ]
    except csv.Error as error:
        raise BadTable(str(error)) from None
    if not head:
        raise BadTable("it is empty")
    return head, rows


def cells_of(row, head, line):
    """A row's texts by the names of the columns."""
    texts = [text.strip() for text in row]
    if any(texts[len(head) :]):
        raise BadTable(
            f"line {line} has more cells than there are columns: put quotes around a text that "
            "holds the separator"
        )
    return dict(zip(head, texts, strict=False))
