"""Thirty submissions as a teacher may find them, and the points that each has earned."""

import json

import odd_files
from breakers import CELLS, KERNELS
from cheats import VALUES
from known_wrong import earned, mixed
from notebooks_made import content, notebook, solved

FORMS = (
    "as_it_is",
    "version_3",
    "without_ids",
    "byte_order_mark",
    "windows_lines",
    "checks_deleted",
    "from_colab",
    "forged_outputs",
)
DAMAGED = ("cut_off", "conflict_markers", "another_language", "another_notebook")
HOSTILE = (
    CELLS["exits"],
    CELLS["never_ends"],
    CELLS["floods"],
    CELLS["fills_the_disk"],
    KERNELS["kills_all_in_the_cell"],
    VALUES["printed_verdict"],
)
HONEST = len(FORMS) + 2 + 4 + 6
"""How many run nothing hostile: in odd forms, untouched, in parts, wrong."""


def submissions(exercises):
    """``[(Exercise, content, points)]`` of a class, the honest ones first.

    Parameters
    ----------
    exercises : list of Exercise
        They are handed in by turns.
    """
    found = []

    def add(make):
        exercise = exercises[len(found) % len(exercises)]
        found.append((exercise, *make(exercise, list(exercise.questions))))

    for name in FORMS:
        add(lambda one, names, form=odd_files.GOOD[name]: (form(solved(one)), one.points))
    for _ in range(2):
        add(lambda one, names: (content(notebook(one)), 0))
    for number in range(4):
        add(lambda one, names, number=number: answered(one, {names[number % len(names)]: True}))
    for number in range(6):
        add(lambda one, names, n=number: answered(one, mixed(one, n // 2, n % 2)))
    for name in DAMAGED:
        add(lambda one, names, form=odd_files.BAD[name][0]: (form(solved(one)), 0))
    for case in HOSTILE:
        add(
            lambda one, names, source=case.source: answered(
                one, dict.fromkeys(names, True) | {names[0]: source.replace("NAME", names[0])}
            )
        )
    return found


def answered(exercise, answers):
    """A notebook with these answers, and the points that they deserve."""
    return content(notebook(exercise, answers)), earned(exercise, answers)


def write_class(folder, exercises):
    """Write a folder for each student; gives ``{student: points}``."""
    table = {}
    for number, (exercise, data, points) in enumerate(submissions(exercises), 1):
        student = f"student_{number:02d}"
        place = folder / student
        place.mkdir(parents=True)
        (place / f"{exercise.name}.ipynb").write_bytes(data)
        table[student] = points
    return table


def table_in(report):
    """The same of a report.json."""
    students = json.loads(report.read_text(encoding="utf-8"))["students"]
    return {one["student"]: one["points"] for one in students}
