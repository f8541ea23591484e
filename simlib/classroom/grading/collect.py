"""Find submissions: folders of students, files named after them, or a zip from a platform."""

from __future__ import annotations

import contextlib
import datetime
import zipfile
from pathlib import Path, PurePosixPath

from .folders import Walk, is_left_out
from .identity import COPY, claims_apart, identify
from .ignored_files import notes_on_left_out, without_notebook, without_reports
from .notebook_file import MAX_NOTEBOOKS, NOTEBOOK, Bounds, Unreadable, check_size
from .reading import Reader

MAX_FILES = 20_000


class CannotCollect(Exception):
    """A place without submissions; the message is the reason."""


def collect(place, exercises, roster=(), report=None, notes=None):
    """All that was handed in, one `SubmittedFile` for each student and exercise, sorted.

    Parameters
    ----------
    place : str or Path
        A folder with a folder for each student, a folder of files whose names begin with the
        student, or a zip file of either. Names that Canvas and Moodle give are understood.
    exercises : dict of str to Exercise
    roster : list of Person
        It tells which name is meant where a file's may be read in two ways.
    report : str or Path or None
        The folder of the report, which is no submission.
    notes : list of str or None
        What a teacher should know about the class is added to it.

    Raises
    ------
    CannotCollect
        There is nothing there.
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
    """Whether a file that is no notebook is somebody's: a loose one without a platform is not."""
    return len(PurePosixPath(one.file).parts) > 1 or bool(one.platform)


def read(files, exercises, roster):
    """``(notebooks, others)`` as `SubmittedFile`: the first are read, and nothing is parsed.

    What is parsed may take long, and until all are read students can change what will be.
    """
    bounds, notebooks, others, closed = Bounds(), [], [], set()
    for path, reader, when in files:
        one = identify(path, lambda: b"", when, exercises, roster)
        if not NOTEBOOK.search(path.name):
            others += [one] if not path.name.startswith(".") else []
            continue
        owner = path.parts[0] if len(path.parts) > 1 else one.student
        if bounds.is_open(owner):
            try:
                one.content = bounds.read(owner, reader)
            except Unreadable as error:
                one.unreadable = str(error)
            notebooks.append(one)
        elif owner not in closed:
            closed.add(owner)
            one.exercise = None
            one.unreadable = f"more than {MAX_NOTEBOOKS:,} notebooks: from here on none is read"
            notebooks.append(one)
    return notebooks, others


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


def files_of_zip(path, exercises, left_out):
    """``(path, reader, time)`` of each file of a zip file, as `Walk.files` gives them.

    Nothing is written anywhere, so no name in it can do harm. Folders with notebooks that are left
    out are added to ``left_out``.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise CannotCollect(f"{path} is damaged ({error}): download it again") from None
    with archive:
        members = archive.infolist()
        if len(members) > MAX_FILES:
            raise CannotCollect(f"{path} holds {len(members):,} files: more than {MAX_FILES:,}")
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


def read_member(archive, member, most):
    """A zip's file; one that is larger than it may be is refused before it is unpacked."""
    check_size(member.file_size, most)
    try:
        with archive.open(member) as file:
            content = file.read(most + 1)
    except Exception as error:  # damaged, encrypted, or packed in an unknown way
        raise Unreadable(f"the zip file's entry cannot be read ({error})") from None
    check_size(len(content), most)
    return content
