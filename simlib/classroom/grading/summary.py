"""What ``simlib grade`` says at its end on the terminal."""

from __future__ import annotations

from .reports import NOT_IN_ROSTER
from .source import number_of
from .texts import one_line

WIDEST = 40
"""Columns for a student's key and name."""


def summary(report, folder, is_chosen, deadline, not_written, not_applied):
    """The text, without its last line end.

    Parameters
    ----------
    report : dict
    folder : Path
    is_chosen : bool
        Whether the exercises were named in the call.
    deadline : str
        In ISO 8601; empty without one.
    not_written : dict of str to str
        Tables that were not written, and what each needs.
    not_applied : list of str
        A sentence for each override that was not applied.
    """
    students = report["students"]
    width = min(WIDEST, max((len(label(one)) for one in students), default=0))
    lines = [line(one, width) for one in students]
    lines += [] if is_chosen else rarely_submitted(report)
    strangers = [label(one) for one in students if NOT_IN_ROSTER in one["notes"]]
    if strangers:
        lines.append(f"{NOT_IN_ROSTER}: {', '.join(strangers)}")
    lines += report.get("notes", [])
    others = [(one, note) for one in students for note in one["notes"] if note != NOT_IN_ROSTER]
    lines += [f"{label(one)}: {note}" for one, note in others]
    lines += not_applied
    if not_written:
        needs = "; ".join(f"{name} needs {what}" for name, what in not_written.items())
        lines.append(f"not written: {needs}")
    if deadline:
        when = deadline.replace("T", " ")
        lines.append(f"deadline {when} (it is kept; --deadline none takes it away)")
    lines.append(f"seed {report['seed']} (--seed {report['seed']} repeats it); see {folder}/")
    return "\n".join(map(one_line, lines))


def label(student):
    """What identifies a student, and the name where it is another, in one line."""
    key, name = one_line(student["student"]), one_line(student["name"])
    return key if key == name else f"{key}  {name}"


def line(student, width):
    """A student's points, and what was odd."""
    odd = [b for b in student["notebooks"] if b["status"] not in ("graded", "missing")]
    oddities = "".join(f"  {b['exercise']}: {b['status']}: {b['reason']}" for b in odd)
    oddities += "".join(f"  {one['file']}: {one['reason']}" for one in student["other_files"])
    return f"{label(student):<{width}}  {student['points']:>3} of {student['of']}{oddities}"


def rarely_submitted(report):
    """A sentence on each exercise that few handed in: it lowers everybody's share of all points."""
    count = len(report["students"])
    submitted = {one["exercise"]: 0 for one in report["exercises"]}
    for student in report["students"]:
        for book in student["notebooks"]:
            submitted[book["exercise"]] += book["status"] != "missing"
    usual = [name for name, number in submitted.items() if 2 * number >= count]
    choice = " ".join(f"--exercise {number_of(name)}" for name in usual)
    return [
        f"{name}: {number} of {count} handed it in; if it was not asked for, leave it out by "
        + (choice or "--exercise and the number of each other one")
        for name, number in submitted.items()
        if 2 * number < count and len(submitted) > 1
    ]
