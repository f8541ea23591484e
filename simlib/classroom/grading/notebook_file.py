"""Notebooks in two forms: as they were handed out, and as students handed them in.

`Exercise` is the original material: all cells of the source, including the hidden cells. A
student's file is raw JSON of any age and state, and may be no notebook at all. This module imports
only the standard library, so that the process that reads notebooks starts at once.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cell:
    """A code cell of an exercise source.

    Attributes
    ----------
    id : str
    role : str or None
        ``"setup"``, ``"answer"``, ``"check"``, ``"hidden"``; None for other code.
    question : str or None
    source : str
        The text of the cell. An answer cell includes its markers.
    weight : float or None
        The share of a check or hidden cell in the question's points, see `Exercise.weights_of`.
    shown : str
        The text that learners see. For a check, this is a call. For an answer, it is `source`.
    """

    id: str
    role: str | None
    question: str | None
    source: str
    weight: float | None = None
    shown: str = ""

    def __post_init__(self):
        object.__setattr__(self, "shown", self.shown or self.source)


@dataclass(frozen=True)
class Question:
    """One question. Its name is the name of the function that answers it.

    ``parts`` is ``{part: points}``. The parts come from `model.parts`. Most questions give points
    only for the value.
    """

    name: str
    title: str
    parts: dict
    stub: str
    solution: str

    @property
    def points(self):
        """Return the points of the question."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Exercise:
    """The original material of one exercise.

    Attributes
    ----------
    name : str
        ``NN_name``: the name of the notebook without its ending.
    cells : tuple of Cell
        The code cells of the exercise, in order.
    ids : frozenset of str
        The ids of all cells that students get, including text cells.
    questions : dict of str to Question
        The questions in order.
    digest : str
        A digest that changes whenever the source changes.
    cases : str
        The expected answers, in the form that `simlib.checks.check_of` reads; empty if unknown.
    """

    name: str
    cells: tuple
    ids: frozenset
    questions: dict
    digest: str
    cases: str = ""

    @property
    def points(self):
        """Return the points of all questions together."""
        return sum(question.points for question in self.questions.values())

    @classmethod
    def from_dict(cls, data):
        """Make the exercise from the plain data that `dataclasses.asdict` and JSON have made of
        it."""
        return cls(
            data["name"],
            tuple(Cell(**one) for one in data["cells"]),
            frozenset(data["ids"]),
            {name: Question(**one) for name, one in data["questions"].items()},
            data["digest"],
            data["cases"],
        )

    def cells_of(self, question, role):
        """Return the cells of one question that have this role."""
        return [cell for cell in self.cells if (cell.question, cell.role) == (question, role)]

    def as_shown(self):
        """Return the exercise as students get it: without hidden cells, and with checks as
        calls."""
        visible = tuple(
            replace(cell, source=cell.shown) for cell in self.cells if cell.role != "hidden"
        )
        return replace(self, cells=visible)

    def weights_of(self, question):
        """Return ``[(Cell, weight)]`` of a question's check and hidden cells.

        Unless the source gives other weights, a hidden cell has weight 1, and the check of the same
        question has weight 0. The check is public, so a student could pass it with a table of
        answers.
        """
        checks, hidden = (self.cells_of(question, role) for role in ("check", "hidden"))
        usual = [(cell, 0 if hidden else 1) for cell in checks] + [(cell, 1) for cell in hidden]
        return [(cell, one if cell.weight is None else cell.weight) for cell, one in usual]


NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.IGNORECASE)
"""Names of notebooks. Mail programs and Windows may add a second ending."""
LARGEST_BYTES = 20 << 20
"""The most bytes of a notebook file, including the pictures in its outputs."""
MAX_BYTES, MAX_NOTEBOOKS = 40 << 20, 2000
"""The most bytes and notebooks that simlib reads for one student."""
MAX_CHARS = 2_000_000
"""The most characters in all sources and ids of a notebook's cells together."""
MAX_CELLS = 5000
CONFLICT = re.compile(r"^[ \t]*\"?(<{7}|>{7}|={7})( |$|\\n)", re.MULTILINE)


class Unreadable(Exception):
    """A file that cannot be graded. The message gives the reason to the student."""


OURS = (
    errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE,
)  # fmt: skip


class NotRead(Unreadable):
    """A file that the grader may not read, or that the machine cannot read. The student is not at
    fault."""


@dataclass(frozen=True)
class StudentCell:
    """A code cell as it was handed in."""

    id: str | None
    role: str | None
    question: str | None
    source: str


@dataclass(frozen=True)
class Submission:
    """The cells of a notebook of any format.

    Attributes
    ----------
    cells : list of StudentCell
        Code cells, in order.
    ids : frozenset of str
        The ids of all cells.
    notes : list of str
        Notes for the teacher on odd things in the file.
    """

    cells: list
    ids: frozenset
    notes: list


class Bounds:
    """Counts how much simlib has read of each student's files."""

    def __init__(self):
        self._notebooks, self._bytes = Counter(), Counter()

    def is_open(self, owner):
        """Whether to read one more notebook of this student. The call also counts this notebook."""
        self._notebooks[owner] += 1
        return self._notebooks[owner] <= MAX_NOTEBOOKS

    def read(self, owner, reader):
        """Return the bytes that ``reader`` returns. ``reader`` gets the largest number of bytes as
        its argument.

        Raises
        ------
        Unreadable
            The reason.
        """
        content = reader(min(LARGEST_BYTES, MAX_BYTES - self._bytes[owner]))
        self._bytes[owner] += len(content)
        return content


def check_size(nbytes, most):
    """Refuse a file that is too large.

    Raises
    ------
    Unreadable
        The reason.
    """
    if nbytes > LARGEST_BYTES:
        raise Unreadable(
            f"the file is larger than {LARGEST_BYTES >> 20} MB: clear its outputs and save the "
            "file again"
        )
    if nbytes > most:
        raise Unreadable(
            f"all notebooks together are larger than {MAX_BYTES >> 20} MB: hand in fewer, or "
            "clear their outputs"
        )


def read_bytes(path, most=LARGEST_BYTES, folder=None):
    """Return the bytes of a file. Refuse a link, a device or a file that is too large.

    Parameters
    ----------
    path : str or Path
    most : int
        The most bytes that the file may have.
    folder : int or None
        The descriptor of the folder that contains the name ``path``.

    Raises
    ------
    Unreadable
        The reason.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Unreadable("the file is a link, and links are not followed") from None
        kind = NotRead if error.errno in OURS else Unreadable
        raise kind(f"the file cannot be opened ({error.strerror})") from None
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise Unreadable("this is a folder: give the path of the notebook in it")
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("this is not a regular file")
        check_size(found.st_size, most)
        with open(fd, "rb", closefd=False) as file:
            content = file.read(most + 1)
    except OSError as error:
        raise NotRead(f"the file cannot be read ({error.strerror})") from None
    finally:
        os.close(fd)
    check_size(len(content), most)
    return content


def parse(content):
    """Return the `Submission` in a file's bytes.

    Raises
    ------
    Unreadable
        The reason.
    """
    notebook = _json(content)
    if not isinstance(notebook, dict):
        raise Unreadable("the file is JSON, but it is not a notebook")
    sheets = notebook.get("worksheets")
    if isinstance(sheets, list):  # nbformat 3
        cells = [c for sheet in sheets for c in _list(_dict(sheet).get("cells"))]
    else:
        cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise Unreadable("the file is JSON, but has no cells: it is not a notebook")
    if len(cells) > MAX_CELLS:
        raise Unreadable(f"the notebook has {len(cells):,} cells: more than {MAX_CELLS:,}")
    cells = [cell for cell in cells if isinstance(cell, dict)]
    language = _language(notebook)
    if language and not language.startswith(("python", "ipython")):
        raise Unreadable(f"this notebook's language is {language[:40]}, not Python")
    read = [(cell, _student_cell(cell)) for cell in cells]
    if sum(len(one.source) + len(one.id or "") for _, one in read) > MAX_CHARS:
        raise Unreadable(
            f"the cells of the notebook contain more than {MAX_CHARS // 1_000_000} MB of text, "
            "outputs not counted: take data out of the cells"
        )
    ids = [one.id for _, one in read if one.id]
    return Submission(
        [one for cell, one in read if cell.get("cell_type") == "code"],
        frozenset(ids),
        _notes(notebook, ids),
    )


def _json(content):
    try:
        text = content.decode(
            "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        )
    except UnicodeDecodeError:
        raise Unreadable("the file is not text in UTF-8, so it is not a notebook") from None
    if not text.strip():
        raise Unreadable("the file is empty")
    try:
        return json.loads(text)
    except RecursionError:
        raise Unreadable("the file's JSON is nested too deeply for a notebook") from None
    except ValueError as error:
        if CONFLICT.search(text):
            raise Unreadable(
                "the file has conflict markers of a version control system (<<<<<<<): resolve the "
                "conflict and hand the file in again"
            ) from None
        place = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise Unreadable(
            f"the file is not valid JSON{place}, so it is damaged or incomplete: save the "
            "notebook again in JupyterLab"
        ) from None


def _language(notebook):
    metadata = _dict(notebook.get("metadata"))
    for entry in ("language_info", "kernelspec"):
        value = _dict(metadata.get(entry))
        name = value.get("name" if entry == "language_info" else "language")
        if isinstance(name, str) and name:
            return name.lower()
    return ""


def _student_cell(cell):
    metadata = _dict(cell.get("metadata"))
    course = _dict(metadata.get("course"))
    identity = cell.get("id") or metadata.get("id")  # Colab's place for it
    return StudentCell(
        identity if isinstance(identity, str) else None,
        _text_or_none(course.get("role")),
        _text_or_none(course.get("question")),
        _source(cell).replace("\r\n", "\n").replace("\r", "\n"),
    )


def _source(cell):
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        return "".join(part for part in source if isinstance(part, str))
    return source if isinstance(source, str) else ""


def _notes(notebook, ids):
    notes = []
    major, minor = notebook.get("nbformat"), notebook.get("nbformat_minor", 0)
    known = isinstance(minor, int) and major == 4 and minor <= 5
    if not known:
        notes.append(f"nbformat {str(major)[:10]}.{str(minor)[:10]}")
    twice = sorted(one for one, count in Counter(ids).items() if count > 1)
    if twice:
        shown = ", ".join(one[:60] for one in twice[:5])
        notes.append(f"cell ids that occur more than once: {shown}")
    return notes


def _dict(value):
    return value if isinstance(value, dict) else {}


def _list(value):
    return value if isinstance(value, list) else []


def _text_or_none(value):
    return value if isinstance(value, str) else None
