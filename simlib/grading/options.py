"""What a call of ``simlib grade`` asks for: its exercises, students, limits and deadline."""

from __future__ import annotations

import datetime
import math
import os
from dataclasses import replace

from . import sandbox
from .cache import SEEDS
from .csv_tables import readable

LEAST_TIME_S, LEAST_MEMORY_MB = 10, 1024
"""What an empty notebook needs already, on a machine that has other things to do."""
SHOWN = 8
"""Names that a sentence lists at most."""


def check_numbers(options):
    """Refuse numbers with which nothing could be graded.

    Raises
    ------
    ValueError
        One of them is too small, or a seed that hidden tests are not made for.
    """
    time_s, memory_mb = options.time, options.memory
    if time_s is not None and not (math.isfinite(time_s) and time_s >= LEAST_TIME_S):
        raise ValueError(f"--time {time_s:g}: a notebook needs at least {LEAST_TIME_S} seconds")
    if memory_mb is not None and memory_mb < LEAST_MEMORY_MB:
        raise ValueError(f"--memory {memory_mb}: a notebook needs at least {LEAST_MEMORY_MB} MB")
    if options.jobs < 1:
        raise ValueError(f"--jobs {options.jobs}: grade at least 1 notebook at a time")
    if options.seed is not None and options.seed not in SEEDS:
        raise ValueError(
            f"--seed {options.seed}: hidden tests have seeds {SEEDS[0]} to {SEEDS[-1]}"
        )


def limits_of(options):
    """The limits, with those that were asked for; more time for a notebook is more for a cell."""
    limits = sandbox.Limits()
    if options.time:
        factor = max(1, options.time / limits.notebook_s)
        cell_s, answer_s = limits.cell_s * factor, limits.answer_s * factor
        limits = replace(limits, notebook_s=options.time, cell_s=cell_s, answer_s=answer_s)
    if options.memory:
        limits = replace(limits, memory_bytes=options.memory << 20)
    return limits


def is_exercise(asked, name):
    """Whether a text names an exercise, by name or number; spreadsheets write 4 for 04."""
    number = asked.zfill(2) if asked.isdecimal() else asked
    return name == asked or name.startswith(f"{number}_")


def chosen(exercises, asked):
    """The exercises that were asked for: by number, or by name.

    Raises
    ------
    ValueError
        One of them does not exist.
    """
    if not asked:
        return exercises
    unknown = [one for one in asked if not any(is_exercise(one, name) for name in exercises)]
    if unknown:
        raise ValueError(f"there is no exercise {', '.join(unknown)}: {', '.join(exercises)}")
    return {
        name: one for name, one in exercises.items() if any(is_exercise(n, name) for n in asked)
    }


def of_report(exercises, handed, asked, roster):
    """The exercises of a report: those asked for, or those that somebody handed in.

    Raises
    ------
    ValueError
        Nobody handed in what was asked for, and no roster says who is missing: there is no report.
    """
    found = {one.exercise for one in handed}
    if not asked:
        return {name: one for name, one in exercises.items() if name in found}
    if not roster and not found & set(exercises):
        raise ValueError(f"nobody handed in {', '.join(exercises)}: nothing was written")
    return exercises


def again(asked, names, handed):
    """The students whose notebooks are to be graded anew.

    Parameters
    ----------
    asked : list of str
    names : dict of str to str
        Every student's name.
    handed : list of Handed

    Raises
    ------
    ValueError
        Somebody is named who handed in nothing.
    """
    found = {student_of(readable(one), names) or readable(one) for one in asked or ()}
    students = sorted({one.student for one in handed})
    unknown = sorted(found - set(students))
    if unknown:
        raise ValueError(
            f"nobody named {', '.join(unknown)} handed anything in; these did: {listed(students)}"
        )
    return found


def student_of(text, names):
    """The student whom a text names: by what identifies a student, else by a name of one only.

    Returns
    -------
    str or None
    """
    if text in names:
        return text
    students = [student for student, name in names.items() if name == text]
    return students[0] if len(students) == 1 else None


def listed(words):
    """Some words in a sentence; of many the first."""
    more = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def deadline_of(text):
    """A deadline in ISO 8601, in the time of this machine where it names none; None for none given.

    Raises
    ------
    ValueError
        It is no time.
    """
    if text is None or text.lower() == "none":
        return text and "none"
    try:
        return datetime.datetime.fromisoformat(text).astimezone().isoformat()
    except ValueError:
        raise ValueError(f"--deadline {text}: write it as 2026-11-30T18:00") from None


def mark_late(handed, deadline):
    """Note which files came after a deadline in ISO 8601; an empty one is none."""
    last = datetime.datetime.fromisoformat(deadline) if deadline else None
    for one in handed:
        one.late = one.late or bool(last and one.when and one.when > last)


def cannot_write(place, error, wanted="a folder"):
    """One sentence on why nothing can be written to a place that was named by --out."""
    above = [place, *place.parents]
    file = next((one for one in above if os.path.isfile(one)), None)
    if file is not None:
        return f"--out {place}: {file} is a file; name {wanted}"
    return f"--out {place}: nothing can be written there ({error.strerror or error})"
