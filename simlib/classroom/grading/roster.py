"""Find out which student handed in a file, from a class's roster and from the names of files."""

from __future__ import annotations

import csv
import datetime
import itertools
import re
from dataclasses import dataclass, field

from .late import deadline_of
from .notebook_file import NOTEBOOK, Unreadable
from .texts import one_line, readable

SEPARATORS = ",;\t"
"""The separators in CSV files. Spreadsheets write semicolons if their decimal sign is a comma."""

NAME_COLUMNS = ("name", "student name", "full name")
"""Columns of a roster that may contain a student's name."""


class BadTable(Exception):
    """A table that cannot be read. The message gives the reason."""


def read_table(path):
    """Read a CSV file: ``(names of the columns in small letters, [(line, {name: text})])``.

    Raises
    ------
    BadTable
        There is no such file, or it is empty or not a text in UTF-8.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = readable(file.read())
    except UnicodeDecodeError:
        raise BadTable("the file is not in UTF-8: save it as 'CSV UTF-8'") from None
    except OSError as error:
        raise BadTable(error.strerror or str(error)) from None
    first = lines.partition("\n")[0]
    reader = csv.reader(lines.splitlines(True), delimiter=max(SEPARATORS, key=first.count))
    try:
        head = [name.strip().lower() for name in next(reader, [])]
        rows = [
            (reader.line_num, cells_of(row, head, reader.line_num))
            for row in reader
            if any(text.strip() for text in row)
        ]
    except csv.Error as error:
        raise BadTable(str(error)) from None
    if not head:
        raise BadTable("it is empty")
    return head, rows


def cells_of(row, head, line):
    """Return the texts of a row by the names of the columns."""
    texts = [text.strip() for text in row]
    if any(texts[len(head) :]):
        raise BadTable(
            f"line {line} has more cells than there are columns: put quotes around a text that "
            "contains the separator"
        )
    return dict(zip(head, texts, strict=False))


ID_COLUMNS = (
    "student", "id", "student id", "id number", "idnumber", "sis login id", "email",
    "email address",
)  # fmt: skip
IDENTITIES = {
    "Canvas number": ("canvas id", "id"),
    "SIS user id": ("sis user id",),
    "SIS login id": ("sis login id", "login"),
    "student id": ("student id",),
    "id number": ("id number", "idnumber"),
    "user name": ("username", "login"),
    "email address": ("email address", "email"),
}
"""Further ids of a student, with the columns that may contain them. The first column that is not
empty counts."""
SHOWN = 8
"""The most names that a sentence lists."""


class BadRoster(Exception):
    """A roster that simlib cannot use. The message gives the reason."""


@dataclass(frozen=True)
class Person:
    """One line of the roster: the student's id, all columns, and the student's own deadline."""

    student: str
    name: str
    columns: dict
    deadline: str = ""

    def column(self, *names):
        """Return the text of the first of these columns that is not empty, else an empty text."""
        return next((self.columns[name] for name in names if self.columns.get(name)), "")


def read_roster(path):
    """Return ``[Person]`` from a CSV file with a column ``student`` (or ``id``, ``email``, ...).

    Raises
    ------
    BadRoster
        The file has no such column, a student is in it twice, two students share an id, or a
        deadline is no time. The message has a line for each mistake.
    """
    try:
        head, rows = read_table(path)
    except BadTable as error:
        raise BadRoster(f"the roster {path} cannot be read: {error}") from None
    column = next((one for one in ID_COLUMNS if one in head), None)
    if column is None:
        raise BadRoster(
            f"the roster {path} needs a column 'student' with the names of the students' folders, "
            "or a column with the numbers of the platform"
        )
    people, mistakes = {}, []
    for line, row in rows:
        student, deadline = row.get(column), row.get("deadline", "")
        if not student:
            mistakes.append(f"the roster {path}, line {line}, has nothing in column '{column}'")
            continue
        try:
            deadline = deadline_of(deadline)
        except ValueError as error:
            mistakes.append(
                f"the roster {path}, line {line}: {student} has the deadline {deadline!r}: "
                f"{error}, or none, or leave the cell empty"
            )
        name = next((row[one] for one in NAME_COLUMNS if row.get(one)), student)
        people[line] = Person(student, name, row, deadline)
    mistakes += doubles(path, people)
    if mistakes:
        raise BadRoster("\n".join(mistakes))
    return list(people.values())


def doubles(path, people):
    """Return a sentence for each id that two lines of a roster share.

    Parameters
    ----------
    path : str or Path
    people : dict of int to Person
        The persons by their lines.
    """
    ids = [one.student for one in people.values()]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    found = [f"the roster {path} has {', '.join(twice[:5])} more than once"] if twice else []
    for kind, names in IDENTITIES.items():
        owners = {}
        for line, one in people.items():
            text = one.column(*names)
            first = owners.setdefault(folded(text) if text else line, line)
            if people[first].student != one.student:
                found.append(
                    f"the roster {path}, lines {first} and {line}: two students have the same "
                    f"{kind} ({text}): correct one of them"
                )
    return found


def folded(text):
    """Return a text in a form for comparisons. It ignores capitals and leading zeros, which
    spreadsheets drop."""
    return (text.lstrip("0") or "0") if text.isdecimal() else text.casefold()


def loosely(text):
    """Do the same as `folded` for a part of a file's name, in which other signs may replace
    spaces."""
    return folded(re.sub(r"[\s_.-]+", " ", text).strip())


class People:
    """Finds the student of a roster by any id that the roster has.

    Parameters
    ----------
    roster : iterable of Person
    """

    def __init__(self, roster=()):
        self.ids = {one.student for one in roster}
        self.names = {one.name for one in roster}
        self._canvas = {folded(one.column(*IDENTITIES["Canvas number"])): one for one in roster}
        self._known = {}
        for one in roster:
            texts = [one.column(*names) for names in IDENTITIES.values()]
            for text in {loosely(text) for text in (one.student, one.name, *texts) if text}:
                self._known.setdefault(text, []).append(one.student)

    def find(self, text):
        """Return the student whom this text names; None if it names no student, or several."""
        text = readable(text)
        students = [text] if text in self.ids else self._known.get(loosely(text), [])
        return students[0] if len(students) == 1 else None

    def of_canvas(self, number):
        """Return the student who has this number in Canvas, or None."""
        if number in self.ids:
            return number
        found = self._canvas.get(folded(number))
        return found and found.student


def names_of(files, roster):
    """Return ``{student: name}`` of all students who handed in a file or are in the roster. Names
    from the roster take precedence."""
    return {one.student: one.name for one in files} | {one.student: one.name for one in roster}


def students_to_regrade(wanted, names, files):
    """Return the students whose notebooks are to be graded again.

    Parameters
    ----------
    wanted : list of str
    names : dict of str to str
        Every student's name.
    files : list of SubmittedFile

    Raises
    ------
    ValueError
        One of the named students handed in nothing.
    """
    found = {student_of(readable(one), names) or readable(one) for one in wanted}
    students = sorted({one.student for one in files})
    unknown = sorted(found - set(students))
    if unknown:
        raise ValueError(
            f"no student {', '.join(unknown)} handed anything in. These did: {listed(students)}"
        )
    return found


def student_of(text, names):
    """Return the student whom a text names. The text is the student's id, also in the form that
    simlib shows, or a name that only one student has.

    Returns
    -------
    str or None
    """
    if text in names:
        return text
    students = [student for student in names if one_line(student) == text]
    students = students or [student for student, name in names.items() if name == text]
    return students[0] if len(students) == 1 else None


def listed(words):
    """Return a list of words for a sentence. If there are many, only the first ones are named."""
    more = len(words) - SHOWN
    return ", ".join(words[:SHOWN]) + (f" and {more} more" if more > 0 else "")


CANVAS = re.compile(r"^(?P<name>[^_]+)(?P<late>_LATE)?_(?P<id>\d+)_(?P<upload>\d+)_(?P<file>.+)$")
MOODLE = re.compile(r"_(?P<id>\d+)_assignsubmission_(?:[a-z]+_)*file(?=_|$)")
"""The text that Moodle puts between a student's name and the name of a file."""
COPY = re.compile(r"(-\d+|-Copy\d+| ?\(\d+\)| - Copy)+$")
"""The texts that systems add to the name of a second copy."""
SURE_COPY = re.compile(r"(-Copy\d+| ?\(\d+\)| - Copy)+$")
"""The texts of `COPY` that cannot be the end of a student's id, so without a plain number."""
MARK = "/"
"""A mark that replaces an exercise's name in a file's name. No file's name contains this mark."""
LONGEST_NUMBER = 18
"""The most digits in the number of an upload or a copy."""
ORDINALS = ("second", "third", "fourth", "fifth")


@dataclass
class SubmittedFile:
    """One file that was handed in.

    Attributes
    ----------
    student : str
        The student's id: a folder's name, or a platform's number.
    name : str
        The student's name, if the file contains it.
    exercise : str or None
        The exercise; None if it is unknown.
    file : str
        The file's name when it was handed in.
    content : bytes
        Empty if it could not be read.
    unreadable : str
        The reason why it could not be read.
    is_ours : bool
        Whether it is not the student's fault that the file could not be read.
    when : datetime.datetime or None
        The time of the file's last change; None if it is unknown.
    late : bool
        Whether the platform says that the file was late. After `late.settle`, whether it was late
        by the rules.
    deadline : str
        The deadline, in ISO 8601; empty if it is unknown.
    order : tuple of int
        Two numbers from the file's name that give the order of several files: Canvas's number of
        the upload, and the number of the copy.
    worth : tuple
        The first key for the choice between several files.
    versions : list of SubmittedFile
        All files of this student and exercise, including this one; empty if there are no others.
    notes : list of str
    claim : tuple of str
        The student's name as it was handed in, and the place of this name: see `claims_apart`.
    conflict : str
        The note if another file claims to belong to the same student.
    platform : str
        ``"canvas"`` or ``"moodle"`` if this platform has named the file.
    number : str
        That platform's number of the student.
    """

    student: str
    name: str
    exercise: str | None
    file: str
    content: bytes
    unreadable: str = ""
    is_ours: bool = False
    when: datetime.datetime | None = None
    late: bool = False
    notes: list = field(default_factory=list)
    platform: str = ""
    number: str = ""
    claim: tuple = ()
    conflict: str = ""
    deadline: str = ""
    order: tuple = ()
    worth: tuple = ()
    versions: list = field(default_factory=list, repr=False, compare=False)


def identify(path, reader, when, exercises, people=None):
    """Return the `SubmittedFile` of one file. The names in ``people``, a `People`, take
    precedence."""
    people = people or People()
    first, file = path.parts[0], path.name
    is_loose = len(path.parts) == 1
    canvas = CANVAS.match(file) if is_loose else None
    if canvas and named_in(file, exercises) and not named_in(canvas["file"], exercises):
        canvas = None  # student_07_04_collectives: these are no numbers of Canvas's
    moodle = (of_loose_moodle(first, people) if is_loose else of_moodle_folder(first)) or ()
    platform, number, late = "", "", False
    if moodle:
        platform = "moodle"
        name, number, rest = moodle
        student = people.find(name) or number
        claim, file = (platform, f"{name}_{number}"), rest or file
    elif canvas and not people.find(whose(file, exercises, people)[0]):
        platform, late = "canvas", bool(canvas["late"])
        number, name, file = canvas["id"], canvas["name"], canvas["file"]
        when = None  # Canvas's zip has the time of its download
        student = people.of_canvas(number) or number
        claim = platform, name
    elif is_loose:
        name, raw = whose(file, exercises, people)
        student = people.find(name) or name
        claim = "file", raw
    else:
        student, name = people.find(first) or first, first
        claim = "folder", first
    exercise = named_in(file, exercises)
    student, name, shown = map(readable, (student, name, str(path)))
    submitted = SubmittedFile(
        student, name, exercise, shown, b"", when=when, late=late, platform=platform, number=number,
        claim=claim, order=order_of(canvas["upload"] if platform == "canvas" else "0", file),
    )  # fmt: skip
    try:
        submitted.content = reader()
    except Unreadable as error:
        submitted.unreadable = str(error)
    return submitted


def order_of(upload, file):
    """Return the numbers that give the order of several files of one student."""
    copy = COPY.search(NOTEBOOK.sub("", file))
    numbers = re.findall(r"\d+", copy[0]) if copy else []
    return tuple(int(number[-LONGEST_NUMBER:]) for number in (upload, *numbers))


def of_moodle_folder(folder):
    """Return ``(name, id, "")`` from the name of a folder that Moodle named, else None.

    Moodle's part is at the end. Everything before it is the name.
    """
    end = len(folder.removesuffix("_"))
    parts = [one for one in MOODLE.finditer(folder) if one.start() and one.end() == end]
    return (folder[: parts[0].start()], parts[0]["id"], "") if parts else None


def of_loose_moodle(file, people):
    """Return ``(name, id, name of the file)`` from the name of a file that Moodle named, else None.

    Moodle's part is between the student's name and the name of the file. But these two may contain
    the same pattern. Then a name in the roster decides, or else an id in the roster. Without a
    roster, the first match is Moodle's part.
    """
    ways = [
        (file[: one.start()], one["id"], file[one.end() :].removeprefix("_"))
        for one in MOODLE.finditer(file)
        if one.start()
    ]
    by_name = [way for way in ways if readable(way[0]) in people.names]
    by_id = [way for way in ways if way[1] in people.ids]
    return next(iter(by_name[::-1] + by_id + ways), None)


def claims_apart(files, roster):
    """If several claims name the same student, treat each claim after the first as another student.

    A claim is a name as it was handed in, in its own form of Unicode, and its place: a folder, the
    text around an exercise's name, or a platform's name. The grader cannot know which claim is
    right. So it grades all of them and informs the teacher. The claim with the roster's name comes
    first, then a claim that begins with the student.
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
        conflict = (
            f"{len(found)} students claim to be {student}: {told}. All are graded: ask who is who"
        )
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
    """Return the key by which claims are sorted, smallest first. `name` is the name in the roster,
    or None."""
    return one.name != name, not one.claim[1].startswith(student), one.file, one.claim


def free_label(student, file, taken):
    """Return a new name for a student's further claim, which no other student has."""
    for number in itertools.count():
        ordinal = ORDINALS[number] if number < len(ORDINALS) else f"{number + 2}th"
        label = f"{student} ({ordinal} claim: {file})"
        if label not in taken:
            taken.add(label)
            return label


def named_in(file, exercises):
    """Return the exercise whose name is in a file's name, or None."""
    stem = NOTEBOOK.sub("", file)
    return next((name for name in exercises if re.search(rf"(^|\W|_){name}($|\W|_)", stem)), None)


def whose(file, exercises, people):
    """Return ``(student, raw)`` of a file without a folder. ``raw`` is its name without the
    exercise's name.

    A number at the end may belong to a copy or to the id, as in ``04_collectives_s-1``. The roster
    decides. Without a roster, the number belongs to a copy only if it directly follows the
    exercise's name.
    """
    stem = NOTEBOOK.sub("", file)
    ways = [around_exercise(one, exercises) for one in (stem, COPY.sub("", stem))]
    ways = [one for one in ways if people.find(bare(one))]
    raw = ways[0] if ways else around_exercise(SURE_COPY.sub("", stem), exercises, COPY.pattern)
    return bare(raw) or NOTEBOOK.sub("", file), raw


def bare(raw):
    """Return the student's name in the text around an exercise's name."""
    return raw.replace(MARK, "").strip("_- .")


def around_exercise(stem, exercises, more="$^"):
    """Return a file's name with `MARK` in place of the exercise's name and of ``more`` after it."""
    for name in exercises:
        stem = re.sub(rf"{name}(?:{more})?", MARK, stem)
    return stem
