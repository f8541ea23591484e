"""The class: who is in the roster, and which student a text names."""

from __future__ import annotations

from dataclasses import dataclass

from .csv_tables import NAME_COLUMNS, BadTable, read_table
from .texts import one_line, readable

ID_COLUMNS = (
    "student", "id", "student id", "id number", "idnumber", "sis login id", "email",
    "email address",
)  # fmt: skip
SHOWN = 8
"""Names that a sentence lists at most."""


class BadRoster(Exception):
    """A roster that cannot be joined; the message is the reason."""


@dataclass(frozen=True)
class Person:
    """One line of the roster: what identifies the student, and all columns."""

    student: str
    name: str
    columns: dict

    def column(self, *names):
        """The first of these columns that is there, else empty."""
        return next((self.columns[name] for name in names if self.columns.get(name)), "")


def read_roster(path):
    """``[Person]`` of a CSV file with a column ``student`` (or ``id``, ``email``, ...).

    Raises
    ------
    BadRoster
        It has no such column, or somebody is in it twice.
    """
    try:
        head, rows = read_table(path)
    except BadTable as error:
        raise BadRoster(f"the roster {path} cannot be read: {error}") from None
    column = next((one for one in ID_COLUMNS if one in head), None)
    if column is None:
        raise BadRoster(
            f"the roster {path} needs a column 'student' with the names of the students' folders, "
            "or the numbers of the platform"
        )
    people = []
    for line, row in rows:
        if not row.get(column):
            raise BadRoster(f"the roster {path}, line {line}, has nothing in column '{column}'")
        name = next((row[one] for one in NAME_COLUMNS if row.get(one)), row[column])
        people.append(Person(row[column], name, row))
    ids = [one.student for one in people]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise BadRoster(f"the roster {path} has {', '.join(twice[:5])} more than once")
    return people


def names_of(files, roster):
    """``{student: name}`` of all who handed in files or are in the roster, which knows better."""
    return {one.student: one.name for one in files} | {one.student: one.name for one in roster}


def students_to_regrade(wanted, names, files):
    """The students whose notebooks are to be graded again.

    Parameters
    ----------
    wanted : list of str
    names : dict of str to str
        Every student's name.
    files : list of SubmittedFile

    Raises
    ------
    ValueError
        Somebody is named who handed in nothing.
    """
    found = {student_of(readable(one), names) or readable(one) for one in wanted}
    students = sorted({one.student for one in files})
    unknown = sorted(found - set(students))
    if unknown:
        raise ValueError(
            f"nobody named {', '.join(unknown)} handed anything in; these did: {listed(students)}"
        )
    return found


def student_of(text, names):
    """The student whom a text names: by what identifies a student, as it is or as it is shown,
    else by a name of one only.

    Returns
    -------
    str or None
    """
    if text in names:
        return text
    students = [student for student in names if one_line(student) == text]
    students = students or [student for student, name in names.items() if name == text]
    return students[0] if len(students) == 1 else None


def listed(words):
    """Some words in a sentence; of many the first."""
    more = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {more} more" if more > 0 else "")
