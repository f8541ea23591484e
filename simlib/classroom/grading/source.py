"""Read the source of a lesson or exercise, in py:percent text, and make notebooks without outputs.

The source of an exercise contains solution, stub and checks in one file. Three notebooks with the
same cells and ids are made of it: the solved notebook with hidden checks, the solution, and the
exercise. If the task is to fix a program, the wrong lines are next to the solution, between markers
of their own.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

from ...core.environment import ROOT, need
from ..parts import complaint_about

SOURCES = Path("authoring") / "exercises"
"""The repository's folder with the sources of exercises, including solutions and hidden cells."""
EXERCISES = ROOT / SOURCES
WRONG_ANSWERS = ROOT / "authoring" / "wrong_answers"
"""The folder with known wrong answers, one module for each question."""


BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
BEGIN_BROKEN, END_BROKEN = "### BEGIN BROKEN", "### END BROKEN"
PAIRS = {BEGIN: END, BEGIN_BROKEN: END_BROKEN}
NEAR_MISS = re.compile(r"^\s*#+\s*(BEGIN|END)\b|^\s*#.*\b(begin|end)[ _-]?solution", re.IGNORECASE)
STUB = ["# YOUR CODE HERE", "raise NotImplementedError()"]
ROLES = ("setup", "answer", "check", "hidden")
COURSE_KEYS = ("role", "question", "points", "weight")
CELL_HEADER = "# %%"
HEADER_KEY = re.compile(r"\b(\w+)=")
REVIEW = "review"
"""The one exercise that belongs to no single lesson, because it mixes several lessons."""


class SourceError(Exception):
    """A source that cannot be built. The message begins with file and line."""


def exercise_files(folder, ending):
    """Return the files in a folder that are named like exercises: ``NN_name`` in order, then the
    review."""
    return [*sorted(folder.glob(f"[0-9][0-9]_*{ending}")), *folder.glob(f"{REVIEW}{ending}")]


def number_of(name):
    """Return the first part of a task's number: ``"04"`` for ``"04_name"``, and ``"review"`` for
    ``"review"``."""
    return name.partition("_")[0]


def read_source(path, is_exercise):
    """Return the solved notebook of a source file, with all cells and without outputs.

    Parameters
    ----------
    path : Path
    is_exercise : bool
        Whether cells may have roles and solution markers.

    Raises
    ------
    SourceError
        The source has unpaired or misspelt markers, unknown roles, or text before the first cell.
    MissingExtra
        jupytext is not installed. Only people who write lessons or exercises need this package.
    """
    need("grading", "jupytext", "nbformat", what="reading the source of an exercise")
    text = path.read_text(encoding="utf-8")
    check_markers(text, path)
    import jupytext
    import nbformat

    notebook = jupytext.reads(text, fmt="py:percent")
    for cell in notebook.cells:
        cell.metadata = cell_metadata(cell.metadata)
    complete(notebook.cells, text, path, is_exercise)
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook.metadata = nbformat.from_dict(metadata)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def read_cells(path):
    """Return the cells of an exercise's source as `read_source` does, without its packages. The
    metadata are only the course's.

    Raises
    ------
    SourceError
        See `read_source`.
    """
    text = path.read_text(encoding="utf-8")
    check_markers(text, path)
    cells = plain_cells(text)
    complete(cells, text, path, is_exercise=True)
    return cells


def plain_cells(text: str) -> list[SimpleNamespace]:
    """Return the cells of a source as `read_cells` does, but unchecked and without ids."""
    cells, lines, is_prose = [], [], False
    for line in text.splitlines():
        is_header = line.startswith(CELL_HEADER)
        if is_header or (line.strip() and not cells):
            is_prose, lines = "[markdown]" in line, [] if is_header else [line]
            kind = "markdown" if is_prose else "code"
            course = header_metadata(line) if is_header else {}
            cells.append((SimpleNamespace(cell_type=kind, metadata={"course": course}), lines))
        else:
            lines.append(line.removeprefix("#").removeprefix(" ") if is_prose else line)
    for cell, its_lines in cells:
        cell.source = "\n".join(its_lines).strip("\n")
    return [cell for cell, _ in cells]


def header_metadata(line):
    """Return the course's metadata in a cell header: words like ``points=2``, with JSON values."""
    found, end, decoder = {}, 0, json.JSONDecoder()
    while word := HEADER_KEY.search(line, end):
        end = word.end()
        with contextlib.suppress(ValueError):
            found[word[1]], end = decoder.raw_decode(line, end)
    return {key: found[key] for key in COURSE_KEYS if key in found}


def complete(cells, text, path, is_exercise):
    """Check the cells of a source, and give them ids."""
    headers = [n for n, line in enumerate(text.splitlines(), 1) if line.startswith(CELL_HEADER)]
    if len(cells) != len(headers):
        raise SourceError(f"{path}, line 1: there is text before the first {CELL_HEADER!r}")
    for cell, line in zip(cells, headers, strict=True):
        check_cell(cell, is_exercise, f"{path}, line {line}")
    set_ids(cells, path.stem)


def check_markers(text, path):
    """Refuse markers that are not a pair within one cell, and texts that are nearly markers."""
    begun, opened = None, 0
    begin_of = {end: begin for begin, end in PAIRS.items()}
    for number, line in enumerate(text.splitlines(), 1):
        word, where = line.strip(), f"{path}, line {number}"
        if word in PAIRS:
            if begun:
                raise SourceError(f"{where}: {begun!r} of line {opened} is still open")
            begun, opened = word, number
        elif word in begin_of:
            if begun != begin_of[word]:
                raise SourceError(f"{where}: {word!r} has no {begin_of[word]!r} before it")
            begun = None
        elif line.startswith(CELL_HEADER) and begun:
            raise SourceError(f"{path}, line {opened}: {begun!r} is not closed within its cell")
        elif NEAR_MISS.search(line):
            raise SourceError(f"{where}: did you mean {BEGIN!r} or {END!r}? {word!r}")
    if begun:
        raise SourceError(f"{path}, line {opened}: {begun!r} is not closed within its cell")


def cell_metadata(written):
    """Return the metadata of a cell header that the notebook keeps, in the form of the notebook."""
    import nbformat

    kept = {}
    course = {key: written[key] for key in COURSE_KEYS if key in written}
    if course:
        kept["course"] = course
    if written.get("jupyter"):
        kept["jupyter"] = written["jupyter"]  # source_hidden, outputs_hidden: folded when opened
    if written.get("tags"):
        # nbval knows its tags in this spelling only.
        kept["tags"] = [
            "nbval-" + tag[6:].lower().replace("_", "-") if tag.startswith("NBVAL_") else tag
            for tag in written["tags"]
        ]
    return nbformat.from_dict(kept)


def check_cell(cell, is_exercise, where):
    """Refuse a role that does not fit. The message begins with ``where``."""
    role, question = course_of(cell, "role"), course_of(cell, "question")
    has_solution = BEGIN in cell.source
    if BEGIN_BROKEN in cell.source and not has_solution:
        raise SourceError(f"{where}: this broken program has no solution")
    if not is_exercise and (role or has_solution):
        raise SourceError(f"{where}: a lesson may not have roles or solutions")
    if role is not None and role not in ROLES:
        raise SourceError(f"{where}: role {role!r} is not one of {', '.join(ROLES)}")
    if role in ("answer", "check", "hidden") and not question:
        raise SourceError(f"{where}: a cell with role {role!r} needs question=")
    if question is not None and not re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", str(question)):
        raise SourceError(
            f"{where}: question {question!r} may contain only letters, digits, - and _"
        )
    points = course_of(cell, "points")
    if points is not None and complaint_about(points):
        raise SourceError(f"{where}: {complaint_about(points)}")
    weight = course_of(cell, "weight")
    if weight is not None and (role not in ("check", "hidden") or not is_weight(weight)):
        raise SourceError(
            f"{where}: weight={weight!r}: only check and hidden cells have a weight, a number >= 0"
        )
    if has_solution != (role == "answer"):
        raise SourceError(f"{where}: use role 'answer' and solution markers together")


def is_weight(value):
    """Whether a value can be the weight of a cell."""
    return type(value) in (int, float) and 0 <= value < float("inf")


def course_of(cell, key):
    """Return one entry of a cell's course metadata, or None."""
    return cell.metadata.get("course", {}).get(key)


def set_ids(cells, slug):
    """Give every cell an id that stays the same while its question or its place stays the same."""
    counts = {}
    for cell in cells:
        question, role = course_of(cell, "question"), course_of(cell, "role")
        kind = "text" if cell.cell_type == "markdown" else "code"
        base = f"{question}-{role or kind}" if question else f"{slug[:50]}-{kind}"
        counts[base] = number = counts.get(base, 0) + 1
        if question:
            cell.id = base if number == 1 else f"{base}-{number}"
        else:
            cell.id = f"{base}-{number:03d}"


def without_hidden(notebook):
    """Return a copy without the cells that only the grader has."""
    visible = copy.deepcopy(notebook)
    visible.cells = [cell for cell in visible.cells if course_of(cell, "role") != "hidden"]
    return visible


def with_stubs(notebook):
    """Return a copy in which stubs replace all solutions."""
    stubbed = copy.deepcopy(notebook)
    for cell in stubbed.cells:
        if course_of(cell, "role") == "answer":
            cell.source = stub_source(cell.source)
    return stubbed


def without_markers(notebook):
    """Return a copy whose answer cells contain only the solution, without the marker lines."""
    clean = copy.deepcopy(notebook)
    for cell in clean.cells:
        if cell.cell_type == "code":
            cell.source = solution_source(cell.source)
    return clean


def solution_source(source):
    """Return the source of a solved cell, without broken lines and markers."""
    return without_lines(source, BEGIN_BROKEN)


def stub_source(source):
    """Return an answer cell's source in which the stub replaces each solution, at the same indent.

    If the cell has broken lines, these lines are the stub, and the learner fixes them.
    """
    return without_lines(source, BEGIN, () if BEGIN_BROKEN in source else STUB)


def without_lines(source, dropped, stub=()):
    """Return a source without markers, and without the text between the markers of one kind.

    The stub replaces each removed text, at the same indent.
    """
    kept, begun = [], None
    for line in source.splitlines():
        word = line.strip()
        if word == BEGIN:
            kept += [line[: line.index(word)] + text for text in stub]
        if word in PAIRS:
            begun = word
        elif word in PAIRS.values():
            begun = None
        elif begun != dropped:
            kept.append(line)
    return "\n".join(kept)
