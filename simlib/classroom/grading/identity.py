"""Whose a file is: what a folder's or a file's name says, and what to do where two say the same."""

from __future__ import annotations

import datetime
import itertools
import re
from dataclasses import dataclass, field

from .notebook_file import NOTEBOOK, Unreadable
from .texts import readable

CANVAS = re.compile(r"^(?P<name>[^_]+)(?P<late>_LATE)?_(?P<id>\d+)_\d+_(?P<file>.+)$")
MOODLE = re.compile(r"_(?P<id>\d+)_assignsubmission_(?:[a-z]+_)*file(?=_|$)")
"""What Moodle puts between a student's name and the name of a file."""
COPY = re.compile(r"(-\d+| ?\(\d+\)| - Copy)+$")
"""What systems add to the name of a second copy."""
ORDINALS = ("second", "third", "fourth", "fifth")


@dataclass
class SubmittedFile:
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
    claim : tuple of str
        What names the student, as it was handed in, and where that stands: see `claims_apart`.
    conflict : str
        What to say where something else claims to be the same student.
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
    claim: tuple = ()
    conflict: str = ""


def identify(path, reader, when, exercises, roster=()):
    """The `SubmittedFile` of one file."""
    first, file = path.parts[0], path.name
    is_loose = len(path.parts) == 1
    canvas = CANVAS.match(file) if is_loose else None
    if canvas and named_in(file, exercises) and not named_in(canvas["file"], exercises):
        canvas = None  # student_07_04_collectives: these are no numbers of Canvas's
    moodle = (of_loose_moodle(first, roster) if is_loose else of_moodle_folder(first)) or ()
    platform, late = "", False
    if moodle:
        platform = "moodle"
        name, student, rest = moodle
        claim, file = (platform, name), rest or file
    elif canvas:
        platform, late = "canvas", bool(canvas["late"])
        student, name, file = canvas["id"], canvas["name"], canvas["file"]
        claim = platform, name
    elif is_loose:
        student = name = student_in(file, exercises)
        claim = "file", around_exercise(file, exercises)
    else:
        student = name = first
        claim = "folder", first
    exercise = named_in(file, exercises)
    student, name, shown = map(readable, (student, name, str(path)))
    submitted = SubmittedFile(
        student, name, exercise, shown, b"", when=when, late=late, platform=platform, claim=claim
    )
    try:
        submitted.content = reader()
    except Unreadable as error:
        submitted.unreadable = str(error)
    return submitted


def of_moodle_folder(folder):
    """``(name, id, "")`` of a folder's name, else None.

    Moodle's part is at the end, and what stands before it is the name, whatever it looks like.
    """
    end = len(folder.removesuffix("_"))
    parts = [one for one in MOODLE.finditer(folder) if one.start() and one.end() == end]
    return (folder[: parts[0].start()], parts[0]["id"], "") if parts else None


def of_loose_moodle(file, roster):
    """``(name, id, name of the file)`` of a file that Moodle named, else None.

    Name and file stand on both sides of Moodle's part, and either may look like that part. A name
    of the roster decides, then an id of it; without one the first part is Moodle's.
    """
    ways = [
        (file[: one.start()], one["id"], file[one.end() :].removeprefix("_"))
        for one in MOODLE.finditer(file)
        if one.start()
    ]
    names, ids = {one.name for one in roster}, {one.student for one in roster}
    by_name = [way for way in ways if readable(way[0]) in names]
    by_id = [way for way in ways if way[1] in ids]
    return next(iter(by_name[::-1] + by_id + ways), None)


def claims_apart(files, roster):
    """Where two claims name one student, make another student of each but the first.

    A claim is a name as it was handed in, before Unicode's ways of writing it are made one, and
    where it stands: as a folder, around an exercise's name, in a platform's. Who really is that
    student nobody here can tell, so all are graded and the teacher is told. First comes what has
    the roster's name, then what begins with the student.
    """
    names = {one.student: one.name for one in roster}
    claims = {}
    for one in sorted(files, key=lambda one: one.file):
        claims.setdefault(one.student, {}).setdefault(one.claim, []).append(one)
    taken = set(claims)
    for student, found in claims.items():
        if len(found) == 1:
            continue
        told = ", ".join(mine[0].file for mine in found.values())
        conflict = f"{len(found)} claims to be {student}, all graded: {told}; ask whose is whose"
        for mine in found.values():
            for one in mine:
                one.conflict = conflict
        _, *others = sorted(
            found.values(), key=lambda mine: rank(mine[0], names.get(student), student)
        )
        for mine in others:
            label = free_label(student, mine[0].file, taken)
            for one in mine:
                one.student, one.name, one.platform = label, label, ""


def rank(one, name, student):
    """What decides which claim comes first; the least does. `name` is the roster's, or None."""
    return one.name != name, not one.claim[1].startswith(student), one.file, one.claim


def free_label(student, file, taken):
    """What a further claim to a student is called; nobody else may be called so."""
    for number in itertools.count():
        ordinal = ORDINALS[number] if number < len(ORDINALS) else f"{number + 2}th"
        label = f"{student} ({ordinal} claim: {file})"
        if label not in taken:
            taken.add(label)
            return label


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


def around_exercise(file, exercises):
    """What of a file's name is not the exercise's, with ``/`` where that stood."""
    stem = stem_of(file)
    for name in exercises:
        stem = stem.replace(name, "/")
    return stem


def stem_of(file):
    """A notebook's name without its ending and without what systems add to a second copy."""
    return COPY.sub("", NOTEBOOK.sub("", file))
