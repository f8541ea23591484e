"""Late files: find deadlines and delays, choose which of several files counts, and compute lost
points."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass, replace

from ...core.draw.text import count as counted

NONE = "none"
"""The value that removes a deadline, or the costs of late files."""
LAST, IN_TIME = "last", "in-time"
"""The two rules for several files of one student and exercise: the last file counts, or the last
one in time."""
COSTS = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)%?(/day)?")
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Rules:
    """The rules of a report for late notebooks. simlib keeps all of them for later calls.

    Attributes
    ----------
    deadline : str
        The deadline of the class, in ISO 8601; empty without a deadline.
    costs : str
        The costs from `costs_of`; empty if late notebooks lose nothing.
    counts : str
        `LAST` or `IN_TIME`; empty is `IN_TIME`.
    """

    deadline: str = ""
    costs: str = ""
    counts: str = ""

    def sentences(self):
        """Return sentences that say which rules apply, and how to remove them."""
        said = []
        if self.deadline:
            when = self.deadline.replace("T", " ")
            said.append(f"the deadline is {when}; --deadline none removes it")
        if self.costs:
            percent, _, each = self.costs.partition("/")
            what = f"{percent} % of the points" + (" for each day begun" if each else "")
            said.append(f"late notebooks lose {what}; --late-costs none removes this rule")
        if self.counts == LAST:
            said.append(
                "of several files the last one counts, even if it is late; --counts in-time "
                "removes this rule"
            )
        return said


def deadline_of(text):
    """Return a deadline in ISO 8601. If the text names no time zone, use the time zone of this
    machine.

    Returns
    -------
    str or None
        ``"none"`` and None are returned unchanged.

    Raises
    ------
    ValueError
        The text does not name a time.
    """
    if not text or text.lower() == NONE:
        return text and NONE
    try:
        return datetime.datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise ValueError("write a time as 2026-11-30T18:00") from None


def costs_of(text):
    """Read the costs of being late: ``"10"`` for 10 % of the points, or ``"10/day"`` for 10 % per
    day or part of a day.

    Returns
    -------
    str or None
        ``"none"`` and None are returned unchanged.

    Raises
    ------
    ValueError
        The text has neither form.
    """
    if text is None or text.lower() == NONE:
        return text and NONE
    found = COSTS.fullmatch(text)
    if not found or not 0 < float(found[1]) <= 100:
        raise ValueError(
            "write 10 for 10 % of the points reached, 10/day for 10 % for each day begun, or none"
        )
    return f"{float(found[1]):g}{found[2] or ''}"


def settle(files, own_deadlines, rules):
    """Return the files that count. Mark late files as late.

    Parameters
    ----------
    files : list of SubmittedFile
        Files from `collect`. Each file lists the other files of its student and exercise.
    own_deadlines : dict of str to str
        The deadlines of single students, which replace the deadline of the class.
    rules : Rules
    """
    settled = []
    for one in files:
        versions = one.versions or [one]
        for version in versions:
            mark(version, own_deadlines.get(one.student) or rules.deadline)
        settled.append(replace(chosen(versions, rules.counts), versions=[]))
    return settled


def mark(file, deadline):
    """Mark a file as late if it came after a deadline.

    A file without a time of its own keeps the mark of the platform.
    """
    if deadline == NONE:
        file.late = False
    elif deadline:
        file.deadline = deadline
        if file.when:
            file.late = file.when > datetime.datetime.fromisoformat(deadline)


def chosen(versions, counts=IN_TIME):
    """Return the one file that counts of a student's files for an exercise. Its notes name the
    other files.

    Files with answers are preferred. Among them, the last file before the deadline counts, else the
    last file of all.
    """

    def weight(one):
        when = one.when.timestamp() if one.when else 0.0
        return *one.worth, counts == LAST or not one.late, when, one.order, one.file

    *others, best = sorted(versions, key=weight)
    return replace(best, notes=[*best.notes, *(left_aside(one, best) for one in others)])


def left_aside(file, best):
    """Return a note on a file that does not count."""
    late = ""
    if file.late and not best.late:
        late = ", which came late"
        late += f" ({moment(file.when.isoformat())})," if file.when else ","
    return f"handed in more than once; {file.file}{late} was skipped"


def moment(text):
    """Return a time in ISO 8601 as text for people, to the minute."""
    return text.replace("T", " ")[:16]


def how_late(book):
    """Return how long after the deadline a notebook was handed in; None if unknown."""
    if not (book["late"] and book["when"] and book["deadline"]):
        return None
    when, deadline = map(datetime.datetime.fromisoformat, (book["when"], book["deadline"]))
    return max(when - deadline, datetime.timedelta(0))


def late_by(book):
    """Return the result of `how_late` in words, such as ``"by 1 day 3 hours"``; empty if
    unknown."""
    late = how_late(book)
    if late is None:
        return ""
    hours, minutes = late.seconds // 3600, late.seconds // 60 % 60
    parts = [(late.days, "day"), (hours, "hour"), (minutes, "minute")]
    words = [counted(number, noun) for number, noun in parts if number]
    return f"by {' '.join(words[:2]) or 'less than a minute'}"


def percent_of(book, costs):
    """Return the percentage of points that a late notebook loses. An unknown delay counts as one
    day."""
    number, _, each_day = costs.partition("/")
    days = max(1, math.ceil((how_late(book) or DAY) / DAY)) if each_day else 1
    return min(100, float(number) * days)


def penalty_in_words(book):
    """Return a text on the points that a late notebook has lost; empty if it has lost none."""
    lost = book["penalty"]
    if not (lost and lost["points"]):
        return ""
    of_all = round(lost["before"] * lost["percent"] / 100, 2)
    by_hand = "" if of_all == lost["points"] else " that were not set by hand"
    return (
        f"the late notebook loses {lost['percent']:g} % of its points{by_hand}, which is "
        f"{lost['points']:g} of {lost['before']:g} points"
    )
