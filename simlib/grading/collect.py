"""Find submissions: folders of students, files named after them, or a zip from a platform."""

from __future__ import annotations

import contextlib
import datetime
import os
import zipfile
from pathlib import Path, PurePosixPath

from .identity import COPY, NOTEBOOK, claims_apart, identify
from .notebook_file import LARGEST_BYTES, Unreadable, read_bytes
from .reading import Reader

MOST_FILES = 20_000


class CannotCollect(Exception):
    """A place without submissions; the message is the reason."""


def collect(place, exercises, roster=()):
    """All that was handed in, one `SubmittedFile` for each student and exercise, sorted.

    Parameters
    ----------
    place : str or Path
        A folder with a folder for each student, a folder of files whose names begin with the
        student, or a zip file of either. Names that Canvas and Moodle give are understood.
    exercises : dict of str to Exercise
    roster : list of Person
        It tells which name is meant where a file's may be read in two ways.

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
    notebooks, others = [], []
    for path, reader, when in files:
        if NOTEBOOK.search(path.name):
            notebooks.append(identify(path, reader, when, exercises, roster))
        elif not path.name.startswith("."):
            others.append(identify(path, lambda: b"", when, exercises, roster))
    if not notebooks:
        raise CannotCollect(f"{place} has no notebooks (files that end in .ipynb)")
    others = [one for one in others if tells_a_student(one)]
    claims_apart(notebooks + others, roster)
    with Reader(exercises) as reader:
        name_by_content(notebooks, reader)
        kept = newest(notebooks, reader)
    return kept + without_notebook(others, {one.student for one in notebooks})


def tells_a_student(one):
    """Whether a file that is no notebook is somebody's: a loose one without a platform is not."""
    return len(PurePosixPath(one.file).parts) > 1 or bool(one.platform)


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
        if one.student in students:
            continue
        first = found.setdefault(one.student, one)
        before = ", ".join(filter(None, [first.unreadable.partition("but ")[2], path.name]))
        first.exercise = None
        first.unreadable = f"there is no notebook (a file that ends in .ipynb), but {before}"
    return [found[student] for student in sorted(found)]


def name_by_content(files, reader):
    """Say of files whose names tell no exercise which one they are, by their cells."""
    for one in files:
        if one.exercise is None and one.content:
            try:
                one.exercise, _ = reader.about(one.content)
            except Unreadable:  # grading says why
                continue
            if one.exercise:
                one.notes.append("the file's name is not an exercise's; its cells are")


def newest(files, reader):
    """One file of each student and exercise. Those of no known exercise are kept.

    Where somebody hands in all that they have, lessons and solutions bear an exercise's name too:
    of several files one with answers counts, of those one outside a folder ``solutions``, of those
    the one changed last.
    """
    alike = {}
    for one in files:
        alike.setdefault((one.student, one.exercise or one.file), []).append(one)
    kept = []
    for key in sorted(alike):
        *others, best = sorted(
            alike[key], key=lambda one: weight(one, reader) if len(alike[key]) > 1 else ()
        )
        best.notes += [f"handed in more than once; {one.file} was left aside" for one in others]
        kept.append(best)
    return kept


def weight(file, reader):
    """What decides which of two files of one exercise counts; the larger does."""
    is_own = PurePosixPath(file.file).parent.name != "solutions"
    return has_answers(file, reader), is_own, *time_and_name(file)


def has_answers(file, reader):
    """Whether a file has a cell that answers a question of the exercise, right or not."""
    if file.exercise is None or not file.content:
        return False
    try:
        _, found = reader.about(file.content, file.exercise)
    except Unreadable:
        return False
    return found


def time_and_name(file):
    """What decides which of two files is newer."""
    return file.when.timestamp() if file.when else 0.0, file.file


def files_of_folder(folder):
    """``(path, reader, time)`` of every file below a folder; links are not followed."""
    closed = []
    for above, folders, files in os.walk(folder, onerror=closed.append):
        folders[:] = sorted(one for one in folders if not is_left_out(one))
        for file in sorted(files):
            path = Path(above) / file
            seconds = path.lstat().st_mtime
            when = datetime.datetime.fromtimestamp(seconds).astimezone()
            relative = PurePosixPath(path.relative_to(folder).as_posix())
            yield relative, (lambda path=path: read_bytes(path)), when
    for error in closed:
        path = PurePosixPath(Path(error.filename).relative_to(folder).as_posix())
        yield path / "a folder that cannot be opened", (lambda: b""), None


def is_left_out(folder):
    """Whether a folder holds nothing that was handed in: copies of JupyterLab, git's, macOS's."""
    return folder == "__MACOSX" or (folder.startswith(".") and folder.strip(".") != "")


def files_of_zip(path, exercises):
    """The same of a zip file. Nothing is written anywhere, so no name in it can do harm."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise CannotCollect(f"{path} is damaged ({error}): download it again") from None
    with archive:
        members = archive.infolist()
        if len(members) > MOST_FILES:
            raise CannotCollect(f"{path} holds {len(members):,} files: more than {MOST_FILES:,}")
        wrapper = wrapper_folder(path, members, exercises)
        for member in sorted(members, key=lambda one: one.filename):
            parts = parts_of(member)[len(wrapper) :]
            if member.is_dir() or not parts or any(map(is_left_out, parts[:-1])):
                continue
            when = None
            with contextlib.suppress(ValueError):
                when = datetime.datetime(*member.date_time).astimezone()
            reader = lambda member=member: read_member(archive, member)  # noqa: E731
            yield PurePosixPath(*parts), reader, when


def parts_of(member):
    """The folders and the name of a zip's file; what would lead out of the zip is left out."""
    return tuple(p for p in PurePosixPath(member.filename).parts if p not in ("/", ".", ".."))


def wrapper_folder(path, members, exercises):
    """The folder around a whole class, as a tuple of its name; empty where there is none.

    macOS and Windows pack the folder ``class`` as ``class.zip`` with ``class/student_07/...`` in
    it: the students are one below. A student's own packed folder holds exercises right away.
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


def read_member(archive, member):
    """A zip's file; one that is larger than it may be is refused before it is unpacked."""
    if member.file_size > LARGEST_BYTES:
        raise Unreadable(f"the file is larger than {LARGEST_BYTES >> 20} MB")
    try:
        with archive.open(member) as file:
            content = file.read(LARGEST_BYTES + 1)
    except Exception as error:  # damaged, encrypted, or packed in an unknown way
        raise Unreadable(f"the zip file's entry cannot be read ({error})") from None
    if len(content) > LARGEST_BYTES:
        raise Unreadable(f"the file is larger than {LARGEST_BYTES >> 20} MB")
    return content
