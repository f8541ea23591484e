"""What lies beside the notebooks of a class: told to the teacher where somebody may miss points."""

from __future__ import annotations

from pathlib import PurePosixPath

from .texts import readable

MAX_NAMED = 10
"""Files that are named of a student who handed in no notebook."""
COPIES = {".ipynb_checkpoints", "__MACOSX"}
"""Folders that systems make, with copies of what lies beside them."""


def without_reports(others, notes):
    """Files that are no notebooks but for those of our reports, on which there is a note."""
    by_name = {"report.json": set(), "class.html": set()}
    for one in others:
        path = PurePosixPath(one.file)
        by_name.get(path.name, set()).add(path.parent)
    reports = set.intersection(*by_name.values()) - {PurePosixPath()}
    notes += [f"{one}: this is a report of simlib grade, no submission" for one in sorted(reports)]
    return [one for one in others if reports.isdisjoint(PurePosixPath(one.file).parents)]


def notes_on_left_out(folders, notebooks):
    """A sentence on each folder with notebooks that was left out, and whose owner has no others."""
    owners = {PurePosixPath(one.file).parts[0] for one in notebooks}
    return [
        f"{readable(str(path))}: folders with such names are left out, and this one has notebooks: "
        "rename it if they were handed in"
        for path in folders
        if readable(path.parts[0]) not in owners and path.parts[0] not in COPIES
    ]


def without_notebook(others, students):
    """A `SubmittedFile` for each student who has handed in other files only.

    Parameters
    ----------
    others : list of SubmittedFile
        Files that are no notebooks.
    students : set of str
        Those who have handed in notebooks.
    """
    found = {}
    for one in others:
        path = PurePosixPath(one.file)
        if one.student not in students and (len(path.parts) > 1 or one.platform):
            found.setdefault(one.student, []).append(one)
    for files in found.values():
        names = [PurePosixPath(one.file).name for one in files[:MAX_NAMED]]
        names += [f"{len(files) - MAX_NAMED:,} more"] if len(files) > MAX_NAMED else []
        files[0].exercise = None
        files[
            0
        ].unreadable = f"there is no notebook (a file that ends in .ipynb), but {', '.join(names)}"
    return [found[student][0] for student in sorted(found)]
