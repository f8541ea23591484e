"""Find submissions: folders of students, files named after students, or a zip from a platform.

Students can change their folders while the grader reads them. The system looks up a path each time
that it is used, so a folder may meanwhile have become a link to another student's folder. `Walk`
opens each folder by its name in the descriptor of the parent folder, and never follows a link.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import zipfile
from pathlib import Path, PurePosixPath

from .grade import Reader
from .late import chosen
from .notebook_file import (
    MAX_NOTEBOOKS,
    NOTEBOOK,
    Bounds,
    NotRead,
    Unreadable,
    check_size,
    read_bytes,
)
from .roster import COPY, People, claims_apart, identify
from .texts import readable

MAX_FILES = 20_000


class CannotCollect(Exception):
    """simlib finds no submissions at a place. The message gives the reason."""


def collect(place, exercises, roster=(), report=None, notes=None):
    """Return all submissions, sorted: one `SubmittedFile` for each student and exercise.

    Parameters
    ----------
    place : str or Path
        A folder with a folder for each student, a folder of files whose names begin with the
        student, or a zip file of either. simlib also reads the file names of Canvas and Moodle.
    exercises : dict of str to Exercise
    roster : list of Person
        The class. If the name of a file can be read in two ways, the roster decides.
    report : str or Path or None
        The folder of the report. simlib does not treat it as a submission.
    notes : list of str or None
        The function adds notes about the class, for the teacher, to this list.

    Raises
    ------
    CannotCollect
        The place has no submissions.
    """
    place = Path(place)
    notes = [] if notes is None else notes
    left_out = []
    if place.is_dir():
        walk = Walk(place, report)
        files, left_out = walk.files(), walk.left_out
    elif place.is_file() and (place.suffix.lower() == ".zip" or zipfile.is_zipfile(place)):
        files = files_of_zip(place, exercises, left_out)
    else:
        raise CannotCollect(f"{place} is neither a folder nor a zip file of submissions")
    notebooks, others = read(files, exercises, roster)
    others = [one for one in without_reports(others, notes) if tells_a_student(one)]
    notes += notes_on_left_out(left_out, notebooks)
    if not notebooks:
        reason = f"{place} has no notebooks (files that end in .ipynb)"
        raise CannotCollect("; ".join([reason, *notes]))
    claims_apart(notebooks + others, roster)
    with Reader(exercises) as reader:
        name_by_content(notebooks, reader)
        kept = newest(notebooks, reader)
    return kept + without_notebook(others, {one.student for one in notebooks})


def tells_a_student(one):
    """Whether a file that is no notebook shows its student: it is in a folder, or a platform has
    named it."""
    return len(PurePosixPath(one.file).parts) > 1 or bool(one.platform)


def read(files, exercises, roster):
    """Return ``(notebooks, others)``, lists of `SubmittedFile`. Read notebooks, but do not parse
    them.

    Parsing may take long, and students could change the other files meanwhile.
    """
    bounds, notebooks, others, closed = Bounds(), [], [], set()
    people = People(roster)
    for path, reader, when in files:
        one = identify(path, lambda: b"", when, exercises, people)
        if not NOTEBOOK.search(path.name):
            others += [one] if not path.name.startswith(".") else []
            continue
        owner = path.parts[0] if len(path.parts) > 1 else one.student
        if bounds.is_open(owner):
            try:
                one.content = bounds.read(owner, reader)
            except Unreadable as error:
                one.unreadable, one.is_ours = str(error), isinstance(error, NotRead)
            notebooks.append(one)
        elif owner not in closed:
            closed.add(owner)
            one.exercise = None
            one.unreadable = f"only the first {MAX_NOTEBOOKS:,} notebooks are read, not this one"
            notebooks.append(one)
    return notebooks, others


def name_by_content(files, reader):
    """Find the exercise of files by their cells, if the files' names do not contain it."""
    for one in files:
        if one.exercise is None and one.content:
            try:
                one.exercise, _ = reader.about(one.content)
            except Unreadable:  # grading says why
                continue
            if one.exercise:
                one.notes.append("the cells are from an exercise, but the file has another name")


def newest(files, reader):
    """Choose one file for each student and exercise. Keep files that belong to no known exercise.

    If a student hands in all files of the course, some lessons and solutions have the name of an
    exercise, too. So a file with answers is preferred, then a file outside a folder ``solutions``,
    then the last file, see `chosen`.
    """
    alike = {}
    for one in files:
        alike.setdefault((one.student, one.exercise or one.file), []).append(one)
    kept = []
    for key in sorted(alike):
        versions = alike[key]
        if len(versions) > 1:
            for one in versions:
                one.versions, one.worth = versions, worth(one, reader)
        kept.append(chosen(versions))
    return kept


def worth(file, reader):
    """Return the first key for the choice between two files of one exercise. The file with the
    larger key wins."""
    return has_answers(file, reader), PurePosixPath(file.file).parent.name != "solutions"


def has_answers(file, reader):
    """Whether a file has a cell that answers a question of the exercise, right or not."""
    if file.exercise is None or not file.content:
        return False
    try:
        _, found = reader.about(file.content, file.exercise)
    except Unreadable:
        return False
    return found


def files_of_zip(path, exercises, left_out):
    """Yield ``(path, reader, time)`` of each file in a zip file, like `Walk.files`.

    No file is written, so no name in the zip can do harm. The function adds folders with notebooks
    that it leaves out to ``left_out``.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise CannotCollect(f"{path} is damaged ({error}): download it again") from None
    with archive:
        members = archive.infolist()
        if len(members) > MAX_FILES:
            raise CannotCollect(f"{path} contains {len(members):,} files, more than {MAX_FILES:,}")
        wrapper = wrapper_folder(path, members, exercises)
        for member in sorted(members, key=lambda one: one.filename):
            parts = parts_of(member)[len(wrapper) :]
            if member.is_dir() or not parts:
                continue
            hidden = next((n for n, one in enumerate(parts[:-1]) if is_left_out(one)), None)
            if hidden is not None:
                folder = PurePosixPath(*parts[: hidden + 1])
                if NOTEBOOK.search(parts[-1]) and folder not in left_out[-1:]:
                    left_out.append(folder)
                continue
            when = None
            with contextlib.suppress(ValueError):
                when = datetime.datetime(*member.date_time).astimezone()
            reader = lambda most, member=member: read_member(archive, member, most)  # noqa: E731
            yield PurePosixPath(*parts), reader, when


def parts_of(member):
    """Return the folders and the name of a file in a zip, without parts that lead out of the
    zip."""
    return tuple(p for p in PurePosixPath(member.filename).parts if p not in ("/", ".", ".."))


def wrapper_folder(path, members, exercises):
    """Return the folder around a whole class, as a tuple with its name; empty if there is none.

    macOS and Windows pack the folder ``class`` as ``class.zip`` with ``class/student_07/...`` in
    it, so the students are one level below. A student's own packed folder contains the exercises
    directly.
    """
    files = [parts_of(member) for member in members if not member.is_dir()]
    files = [parts for parts in files if parts and not is_left_out(parts[0])]
    own = {"exercises", *(f"{name}.ipynb" for name in exercises)}
    above = {parts[0] for parts in files}
    is_class = (
        len(above) == 1
        and above <= {path.stem, COPY.sub("", path.stem)}
        and all(len(parts) > 1 and parts[1] not in own for parts in files)
    )
    return files[0][:1] if is_class else ()


def read_member(archive, member, most):
    """Return the bytes of a file in a zip. Refuse a file that is too large before it is
    unpacked."""
    check_size(member.file_size, most)
    try:
        with archive.open(member) as file:
            content = file.read(most + 1)
    except Exception as error:  # damaged, encrypted, or packed in an unknown way
        raise Unreadable(f"the zip file's entry cannot be read ({error})") from None
    check_size(len(content), most)
    return content


MAX_NAMED = 10
"""For a student who handed in no notebook, a note names at most this many files."""
COPIES = {".ipynb_checkpoints", "__MACOSX"}
"""Folders that systems create. They contain copies of the files next to them."""


def without_reports(others, notes):
    """Return the files that are no notebooks, without files of simlib's own reports. A note names
    these reports."""
    by_name = {"report.json": set(), "class.html": set()}
    for one in others:
        path = PurePosixPath(one.file)
        by_name.get(path.name, set()).add(path.parent)
    reports = set.intersection(*by_name.values()) - {PurePosixPath()}
    notes += [f"{one} is a report of simlib grade, not a submission" for one in sorted(reports)]
    return [one for one in others if reports.isdisjoint(PurePosixPath(one.file).parents)]


def notes_on_left_out(folders, notebooks):
    """Return a sentence on each folder with notebooks that was left out, if its owner has no other
    notebooks."""
    owners = {PurePosixPath(one.file).parts[0] for one in notebooks}
    return [
        f"{readable(str(path))}: this folder was left out because of its name, but it has "
        "notebooks. Rename the folder if somebody handed them in"
        for path in folders
        if readable(path.parts[0]) not in owners and path.parts[0] not in COPIES
    ]


def without_notebook(others, students):
    """Return a `SubmittedFile` for each student who has handed in only files that are no notebooks.

    Parameters
    ----------
    others : list of SubmittedFile
        Files that are no notebooks.
    students : set of str
        The students who have handed in notebooks.
    """
    found = {}
    for one in others:
        if one.student not in students:
            found.setdefault(one.student, []).append(one)
    for files in found.values():
        names = [PurePosixPath(one.file).name for one in files[:MAX_NAMED]]
        names += [f"{len(files) - MAX_NAMED:,} more"] if len(files) > MAX_NAMED else []
        first, told = files[0], "no notebook (a file that ends in .ipynb) was handed in, only"
        first.exercise, first.unreadable = None, f"{told} {', '.join(names)}"
    return [found[student][0] for student in sorted(found)]


MAX_ENTRIES = 100_000
"""The most files and folders below one top folder. A top folder belongs to a student."""
DEEPEST = 30
"""The deepest nesting of folders. The walk keeps each folder on the way open."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY


class Walk:
    """Finds all files below a folder.

    Parameters
    ----------
    top : str or Path
        The only path that may contain links.
    report : str or Path or None
        A folder that is left out, at any place.

    Attributes
    ----------
    left_out : list of PurePosixPath
        Folders that are left out because of their names, but contain notebooks.
    """

    def __init__(self, top, report=None):
        self._top = top
        self._report = identity(report) if report else None
        self._room = MAX_ENTRIES
        self.left_out = []

    def files(self):
        """Yield ``(path, reader, time)`` of each file. A reader works only until the next file is
        requested.

        The argument of a reader is the largest number of bytes to return, see `read_bytes`. For a
        folder that is not searched, a file that says so is returned.
        """
        yield from self._opened(PurePosixPath(), self._top, None, 0)

    def _opened(self, path, name, above, flags):
        try:
            folder = os.open(name, FOLDER | flags, dir_fd=above)
        except OSError:
            yield not_looked_into(path, "a folder that cannot be opened")
            return
        try:
            if identity(folder) != self._report:
                yield from self._inside(path, folder)
        finally:
            os.close(folder)

    def _inside(self, path, folder):
        is_top = not path.parts
        try:
            with os.scandir(folder) as entries:
                entries = list(entries if is_top else itertools.islice(entries, self._room + 1))
        except OSError:
            yield not_looked_into(path, "a folder that cannot be opened")
            return
        if not is_top and len(entries) > self._room:
            entries = []
            yield not_looked_into(path, f"more files than {MAX_ENTRIES:,}")
        self._room -= len(entries)
        entries.sort(key=lambda one: one.name)
        for entry in entries:
            if not is_folder(entry):
                yield path / entry.name, reader(entry.name, folder), changed(entry)
        for entry in filter(is_folder, entries):
            if is_top:
                self._room = MAX_ENTRIES
            below = path / entry.name
            if is_left_out(entry.name):
                self._look_for_notebooks(below, folder)
            elif len(below.parts) > DEEPEST:
                yield not_looked_into(below, f"more than {DEEPEST} nested folders")
            else:
                yield from self._opened(below, entry.name, folder, os.O_NOFOLLOW)

    def _look_for_notebooks(self, path, above):
        """Note a folder that is left out, if it contains notebooks."""
        with contextlib.suppress(OSError):
            folder = os.open(path.name, FOLDER | os.O_NOFOLLOW, dir_fd=above)
            try:
                for *_, files, _ in itertools.islice(os.fwalk(dir_fd=folder), DEEPEST):
                    if any(NOTEBOOK.search(name) for name in files):
                        self.left_out.append(path)
                        return
            finally:
                os.close(folder)


def identity(folder):
    """Return a key that identifies a folder under any name; None if the folder does not exist."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_folder(entry):
    """Whether an entry is a folder, and not a link to a folder."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def reader(name, folder):
    """Return a function that reads a file in an open folder."""
    return lambda most: read_bytes(name, most, folder)


def changed(entry):
    """Return the time of a file's last change; None if the time is invalid, or the file has
    vanished."""
    with contextlib.suppress(OSError, ValueError, OverflowError):
        seconds = entry.stat(follow_symlinks=False).st_mtime
        return datetime.datetime.fromtimestamp(seconds).astimezone()
    return None


def not_looked_into(path, what):
    """Return a file that stands for the files of a folder into which simlib has not looked."""

    def refuse(most):
        raise Unreadable(what)

    return path / what, refuse, None


def is_left_out(folder):
    """Whether a folder cannot contain submissions, such as folders of JupyterLab, git and macOS."""
    return folder == "__MACOSX" or (folder.startswith(".") and folder.strip(".") != "")
