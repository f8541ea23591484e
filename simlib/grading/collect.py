"""Find submissions: folders of students, files named after them, or a zip from a platform."""

from __future__ import annotations

import datetime
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from .archive import AGAIN, CannotCollect, files_of_folder, files_of_zip
from .csv_tables import readable
from .merge_answers import choose, defines
from .notebook_file import Unreadable, parse

NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.IGNORECASE)
"""Names of notebooks; mail programs and Windows put a second ending behind the first."""
CANVAS = re.compile(r"^(?P<name>[^_]+)(?P<late>_LATE)?_(?P<id>\d+)_\d+_(?P<file>.+)$")
MOODLE = re.compile(r"^(?P<name>.+?)_(?P<id>\d+)_assignsubmission_\w*?file_?(?P<file>.*)$")


@dataclass
class Handed:
    """One file that was handed in.

    Attributes
    ----------
    student : str
        What identifies the student: a folder's name, a number of the platform.
    name : str
        The student's name as far as the file tells it.
    exercise : str or None
        Which exercise it is; None where nobody can tell.
    file : str
        Its name as it was handed in.
    content : bytes
        Empty where it could not be read.
    unreadable : str
        Why it could not be read.
    when : datetime.datetime or None
        When it was last changed.
    late : bool
        Whether the platform says that it came late.
    notes : list of str
    platform : str
        ``"canvas"`` or ``"moodle"`` where the file was named by one, and the student by its number.
    """

    student: str
    name: str
    exercise: str | None
    file: str
    content: bytes
    unreadable: str = ""
    when: datetime.datetime | None = None
    late: bool = False
    notes: list = field(default_factory=list)
    platform: str = ""


def collect(place, exercises):
    """All that was handed in, one `Handed` for each student and exercise, sorted.

    Parameters
    ----------
    place : str or Path
        A folder with a folder for each student, a folder of files whose names begin with the
        student, or a zip file of either. Names that Canvas and Moodle give are understood.
    exercises : dict of str to Exercise

    Raises
    ------
    CannotCollect
        There is nothing there.
    """
    place = Path(place)
    if place.is_dir():
        files = files_of_folder(place)
    elif place.is_file() and (place.suffix.lower() == ".zip" or zipfile.is_zipfile(place)):
        files = files_of_zip(place, exercises)
    else:
        raise CannotCollect(f"{place} is neither a folder nor a zip file of submissions")
    handed, others = [], []
    for path, reader, when in files:
        if NOTEBOOK.search(path.name):
            handed.append(identify(path, reader, when, exercises))
        elif not path.name.startswith("."):
            others.append(identify(path, lambda: b"", when, exercises))
    if not handed:
        raise CannotCollect(f"{place} has no notebooks (files that end in .ipynb)")
    return newest(handed, exercises) + without_notebook(others, {one.student for one in handed})


def without_notebook(others, students):
    """A `Handed` for each student who has handed in other files only.

    Parameters
    ----------
    others : list of Handed
        Files that are no notebooks.
    students : set of str
        Those who have handed in notebooks.
    """
    found = {}
    for one in others:
        path = PurePosixPath(one.file)
        if one.student in students or (len(path.parts) == 1 and not one.platform):
            continue
        first = found.setdefault(one.student, one)
        before = ", ".join(filter(None, [first.unreadable.partition("but ")[2], path.name]))
        first.exercise = None
        first.unreadable = f"there is no notebook (a file that ends in .ipynb), but {before}"
    return [found[student] for student in sorted(found)]


def identify(path, reader, when, exercises):
    """The `Handed` of one file."""
    first, file = path.parts[0], path.name
    canvas = CANVAS.match(file) if len(path.parts) == 1 else None
    if canvas and named_in(file, exercises) and not named_in(canvas["file"], exercises):
        canvas = None  # student_07_04_collectives: these are no numbers of Canvas's
    moodle = MOODLE.match(first)
    late = False
    if moodle:
        student, name = moodle["id"], moodle["name"]
        file = moodle["file"] or file if len(path.parts) == 1 else file
    elif canvas:
        student, name, file = canvas["id"], canvas["name"], canvas["file"]
        late = bool(canvas["late"])
    elif len(path.parts) > 1:
        student = name = first
    else:
        student = name = student_in(file, exercises)
    exercise = named_in(file, exercises)
    platform = "moodle" if moodle else "canvas" if canvas else ""
    student, name, told = map(readable, (student, name, str(path)))
    handed = Handed(student, name, exercise, told, b"", when=when, late=late, platform=platform)
    try:
        handed.content = reader()
    except Unreadable as error:
        handed.unreadable = str(error)
    if handed.exercise is None and handed.content:
        handed.exercise = told_by_content(handed.content, exercises)
        if handed.exercise:
            handed.notes.append("the file's name is not an exercise's; its cells are")
    return handed


def named_in(file, exercises):
    """The exercise whose name is in a file's name, or None."""
    stem = stem_of(file)
    return next((name for name in exercises if re.search(rf"(^|\W|_){name}($|\W|_)", stem)), None)


def student_in(file, exercises):
    """What of a file's name is not the exercise's."""
    stem = stem_of(file)
    for name in exercises:
        stem = stem.replace(name, "")
    return stem.strip("_- .") or NOTEBOOK.sub("", file)


def stem_of(file):
    """A notebook's name without its ending and without what systems add to a second copy."""
    return AGAIN.sub("", NOTEBOOK.sub("", file))


def told_by_content(content, exercises):
    """The exercise to which most of a notebook's cells belong, or None."""
    try:
        submission = parse(content)
    except Unreadable:
        return None
    sources = [one.source for one in submission.cells]

    def likeness(exercise):
        own = sum(any(defines(name, text) for text in sources) for name in exercise.questions)
        return own, len(exercise.ids & submission.ids)

    best = max(exercises.values(), key=likeness)
    return best.name if any(likeness(best)) else None


def newest(handed, exercises):
    """One file of each student and exercise. What cannot be told is kept.

    Where somebody hands in all that they have, lessons and solutions bear an exercise's name too:
    of several files one with answers counts, of those one outside a folder ``solutions``, of those
    the one changed last.
    """
    kept = {}
    for one in handed:
        key = one.student, one.exercise or one.file
        other = kept.get(key)
        if other is None:
            kept[key] = one
            continue
        exercise = exercises.get(one.exercise)
        earlier, later = sorted((other, one), key=lambda file: weight(file, exercise))
        later.notes.append(f"handed in more than once; {earlier.file} was left aside")
        kept[key] = later
    return [kept[key] for key in sorted(kept)]


def weight(handed, exercise):
    """What decides which of two files of one exercise counts; the larger does."""
    is_own = PurePosixPath(handed.file).parent.name != "solutions"
    return has_answers(handed, exercise), is_own, *stamp(handed)


def has_answers(handed, exercise):
    """Whether a file has a cell that answers a question of the exercise, right or not."""
    if exercise is None or not handed.content:
        return False
    try:
        submission = parse(handed.content)
    except Unreadable:
        return False
    return any(choose(exercise, submission, name, []) is not None for name in exercise.questions)


def stamp(handed):
    """What decides which of two files is newer."""
    return handed.when.timestamp() if handed.when else 0.0, handed.file
