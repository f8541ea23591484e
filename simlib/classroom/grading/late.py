"""What came late: by which deadline, by how much, which of several files counts, what it costs."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass, replace

from ...core.draw.text import count as counted

NONE = "none"
"""Takes away a deadline, or what late costs."""
LAST, IN_TIME = "last", "in-time"
"""Which of several files of a student for an exercise counts."""
COSTS = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)%?(/day)?")
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Rules:
    """What a report says of late notebooks; all of it is kept for later calls.

    Attributes
    ----------
    deadline : str
        The class's, in ISO 8601; empty without one.
    costs : str
        From `costs_of`; empty where late costs nothing.
    counts : str
        `LAST` or `IN_TIME`; empty is `IN_TIME`.
    """

    deadline: str = ""
    costs: str = ""
    counts: str = ""

    def sentences(self):
        """What holds, and how to take it away."""
        said = []
        if self.deadline:
            when = self.deadline.replace("T", " ")
            said.append(f"deadline {when} (it is kept; --deadline none takes it away)")
        if self.costs:
            percent, _, each = self.costs.partition("/")
            what = f"{percent} % of the points" + (" for each day begun" if each else "")
            said.append(f"late costs {what} (it is kept; --late-costs none takes it away)")
        if self.counts == LAST:
            said.append(
                "of several files the last one counts, also if it is late (it is kept; --counts "
                "in-time takes it away)"
            )
        return said


def deadline_of(text):
    """A deadline in ISO 8601, in the time of this machine where it names none.

    Returns
    -------
    str or None
        ``"none"`` and nothing stay as they are.

    Raises
    ------
    ValueError
        It is no time.
    """
    if not text or text.lower() == NONE:
        return text and NONE
    try:
        return datetime.datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise ValueError("write it as 2026-11-30T18:00") from None


def costs_of(text):
    """What late costs: ``"10"`` percent of the points reached, or ``"10/day"`` for each day begun.

    Returns
    -------
    str or None
        ``"none"`` and nothing stay as they are.

    Raises
    ------
    ValueError
        It is no such thing.
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
    """The files that count, marked as late where they are.

    Parameters
    ----------
    files : list of SubmittedFile
        From `collect`: each knows the others of its student and exercise.
    own_deadlines : dict of str to str
        Deadlines of single students, which hold in place of the class's.
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
    """Say of a file whether it came after a deadline.

    Without a time of its own it stays as the platform has marked it.
    """
    if deadline == NONE:
        file.late = False
    elif deadline:
        file.deadline = deadline
        if file.when:
            file.late = file.when > datetime.datetime.fromisoformat(deadline)


def chosen(versions, counts=IN_TIME):
    """The one of a student's files for an exercise that counts; its notes name the others.

    A file with answers counts before one without, then the last one in time, then the last one.
    """

    def weight(one):
        when = one.when.timestamp() if one.when else 0.0
        return *one.worth, counts == LAST or not one.late, when, one.order, one.file

    *others, best = sorted(versions, key=weight)
    return replace(best, notes=[*best.notes, *(left_aside(one, best) for one in others)])


def left_aside(file, best):
    """A note on a file that does not count."""
    late = ""
    if file.late and not best.late:
        late = ", which came late"
        late += f" ({moment(file.when.isoformat())})," if file.when else ","
    return f"handed in more than once; {file.file}{late} was left aside"


def moment(text):
    """A time of ISO 8601 as people write it, to the minute."""
    return text.replace("T", " ")[:16]


def how_late(book):
    """By how much a late notebook of a report came after its deadline; None where nobody knows."""
    if not (book["late"] and book["when"] and book["deadline"]):
        return None
    when, deadline = map(datetime.datetime.fromisoformat, (book["when"], book["deadline"]))
    return max(when - deadline, datetime.timedelta(0))


def late_by(book):
    """The same in words, such as ``"by 1 day 3 hours"``; empty where nobody knows."""
    late = how_late(book)
    if late is None:
        return ""
    hours, minutes = late.seconds // 3600, late.seconds // 60 % 60
    parts = [(late.days, "day"), (hours, "hour"), (minutes, "minute")]
    words = [counted(number, noun) for number, noun in parts if number]
    return f"by {' '.join(words[:2]) or 'less than a minute'}"


def percent_of(book, costs):
    """What percentage a late notebook loses; one day where nobody knows by how much it is late."""
    number, _, each_day = costs.partition("/")
    days = max(1, math.ceil((how_late(book) or DAY) / DAY)) if each_day else 1
    return min(100, float(number) * days)


def penalty_in_words(book):
    """What late has cost a notebook of a report; empty where it has cost nothing."""
    lost = book["penalty"]
    if not (lost and lost["points"]):
        return ""
    of_all = round(lost["before"] * lost["percent"] / 100, 2)
    but = "" if of_all == lost["points"] else ", as points set by hand lose nothing"
    return (
        f"late costs {lost['percent']:g} % of the points reached: {lost['before']:g} before, "
        f"{lost['points']:g} off{but}"
    )
