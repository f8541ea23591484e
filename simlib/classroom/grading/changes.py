"""List which points have changed since the last grading of a report, and why."""

from __future__ import annotations

from dataclasses import asdict

from .reports import is_unknown
from .texts import digest, digest_of_simlib

LAST = "points of the last call"
MOST_LINES = 20
"""A call prints at most this many changes at its end. class.html shows more, and report.json
contains all."""
CIRCUMSTANCES = {
    "seed": "another seed",
    "limits": "other limits of time or memory",
    "sandbox": "with or without the sandbox",
    "deadline": "another deadline",
    "costs": "late costs more or less than before",
    "simlib": "another version of simlib",
    "exercise": "another version of the exercise",
}
"""The causes that may change points although no file has changed, with a text for each."""


def since_last(cache, report, files, exercises, **circumstances):
    """Return the changes of a report since the last call. Keep this call's results for the next
    comparison.

    Parameters
    ----------
    cache : Cache
    report : dict
    files : list of SubmittedFile
    exercises : dict of str to Exercise
    **circumstances
        The circumstances that all exercises share; ``limits`` is a `Limits`.

    Returns
    -------
    list of dict
        Each dict contains student, exercise, points before and now, the questions, and the reason.
    """
    before, now = cache.get(LAST) or {}, {}
    circumstances["limits"] = asdict(circumstances["limits"])
    circumstances["simlib"] = digest_of_simlib()
    contents = {(one.student, one.exercise): digest(one.content or b"") for one in files}
    for student in report["students"]:
        for book in student["notebooks"]:
            if is_unknown(book):
                continue
            name = book["exercise"]
            now.setdefault(name, {})[student["student"]] = {
                "file": contents.get((student["student"], name), ""),
                "circumstances": circumstances
                | {"exercise": exercises[name].digest, "deadline": book["deadline"]},
                "all": book["points"],
                "points": {q["question"]: q["points"] for q in book["questions"]},
                "graded": {q["question"]: graded(q) for q in book["questions"]},
            }
    cache.put(before | {name: before.get(name, {}) | new for name, new in now.items()}, LAST)
    return [
        change(student, name, before[name][student], known)
        for name, students in now.items()
        for student, known in students.items()
        if student in before.get(name, {}) and is_other(before[name][student], known)
    ]


def is_other(before, now):
    """Whether the points of a notebook, or of a question, have changed."""
    return (before["all"], before["points"]) != (now["all"], now["points"])


def graded(question):
    """Return the points from the tests, without points that a teacher set by hand."""
    return question["override"]["graded"] if question["override"] else question["points"]


def change(student, exercise, before, now):
    """Return one change of a notebook's points, as plain data."""
    questions = [
        f"{name} {before['points'].get(name, 0):g} to {points:g}"
        for name, points in now["points"].items()
        if before["points"].get(name, 0) != points
    ]
    return {
        "student": student,
        "exercise": exercise,
        "before": before["all"],
        "now": now["all"],
        "questions": questions,
        "why": reason(before, now),
    }


def reason(before, now):
    """Return the reason for a change of a notebook's points, in words."""
    if before["graded"] == now["graded"] and before["points"] != now["points"]:
        return "points by hand"
    is_by_hand = before["points"] != before["graded"] or now["points"] != now["graded"]
    found = ["points by hand"] * (is_by_hand and before["points"] != now["points"])
    if before["file"] != now["file"]:
        found.append("new file" if now["file"] else "its file is gone")
    found += [
        words
        for what, words in CIRCUMSTANCES.items()
        if before["circumstances"].get(what) != now["circumstances"].get(what)
    ]
    return ", ".join(found) or "graded again"


def lines_on(changes):
    """Return the changes as lines of text. If there are many, return only the first ones."""
    lines = [
        f"{one['student']} {one['exercise']}: {one['before']:g} to {one['now']:g} points "
        f"({one['why']})"
        for one in changes[:MOST_LINES]
    ]
    more = len(changes) - len(lines)
    return ["changed since the last call:", *lines] * bool(lines) + (
        [f"and {more} more changes, which class.html lists"] if more else []
    )
