"""Read the original material of an exercise, and make the form that learners see.

`shown_form` replaces each check by a call of `simlib.checks.check_of`. It moves the checks into a
separate text, and also the parts of a setup that only checks need. `write_checks` writes these
texts to `exercises/checks`. Every installation calls `write_checks` before any package is
installed, so this module needs only the standard library.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from ..parts import parts_of
from .notebook_file import Cell, Exercise, Question
from .source import (
    SourceError,
    course_of,
    exercise_files,
    number_of,
    plain_cells,
    read_cells,
    solution_source,
    stub_source,
)


def read_exercise(path):
    """Return the `Exercise` of a source file in `authoring/exercises`.

    Raises
    ------
    SourceError
        The source cannot be read, or a question does not have exactly one answer cell, or it has no
        check cell or no hidden cell. Without these cells, any answer would be right.
    """
    notebook = SimpleNamespace(cells=read_cells(path))
    shown, cases = shown_form(notebook, path.stem)
    cells = tuple(
        Cell(
            cell.id,
            course_of(cell, "role"),
            course_of(cell, "question"),
            cell.source,
            course_of(cell, "weight"),
            seen.source,
        )
        for cell, seen in zip(notebook.cells, shown.cells, strict=True)
        if cell.cell_type == "code"
    )
    questions, title = {}, ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            title = cell.source.partition("\n")[0].lstrip("# ").partition(" (")[0]
        if course_of(cell, "role") == "answer":
            name = course_of(cell, "question")
            if name in questions:
                raise SourceError(f"{path}: question {name} has two answer cells")
            questions[name] = Question(
                name,
                title,
                parts_of(course_of(cell, "points") or 1),
                stub_source(cell.source),
                solution_source(cell.source),
            )
    orphans = {cell.question for cell in cells if cell.question} - set(questions)
    if orphans:
        raise SourceError(f"{path}: there is no answer cell for {', '.join(sorted(orphans))}")
    exercise = Exercise(
        path.stem,
        cells,
        frozenset(cell.id for cell in notebook.cells if course_of(cell, "role") != "hidden"),
        questions,
        hashlib.sha256(path.read_bytes()).hexdigest(),
        cases,
    )
    for name in questions:
        for role in ("check", "hidden"):
            if not exercise.cells_of(name, role):
                raise SourceError(f"{path}: question {name} has no {role} cell")
        weights = exercise.weights_of(name)
        if not sum(weight for _, weight in weights):
            raise SourceError(f"{path}: the cells of question {name} have no weight")
        if len(questions[name].parts) > 1 and any(cell.weight is not None for cell, _ in weights):
            raise SourceError(f"{path}: question {name} has parts, so its cells have no weights")
    return exercise


def exercise_of(notebook, name, cases=""):
    """Return the `Exercise` in a notebook that was handed out, so without solutions and hidden
    cells.

    Parameters
    ----------
    notebook : dict
        A notebook in nbformat 4.5.
    name : str
    cases : str
        The expected answers of its checks, if they were handed out with it.
    """
    cells, questions = [], {}
    for cell in notebook["cells"]:
        course = cell["metadata"].get("course", {})
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            continue
        cells.append(Cell(cell["id"], course.get("role"), course.get("question"), source))
        if course.get("role") == "answer":
            question, parts = course["question"], parts_of(course.get("points", 1))
            questions[question] = Question(question, question, parts, source, "")
    ids = frozenset(cell["id"] for cell in notebook["cells"])
    text = "\n".join([*(cell.source for cell in cells), cases])
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Exercise(name, tuple(cells), ids, questions, digest, cases)


def read_exercises(folder):
    """Return ``{name: Exercise}`` of all sources in a folder.

    Raises
    ------
    SourceError
        A source cannot be read, or the folder contains no source.
    """
    paths = exercise_files(Path(folder), ".py")
    if not paths:
        raise SourceError(
            f"{folder} has no exercise sources (NN_name.py): grading needs the sources of the "
            "checkout, authoring/exercises. Name their folder with --exercises"
        )
    return {path.stem: read_exercise(path) for path in paths}


def is_exercise(text, name):
    """Whether a text is the name or number of an exercise. Spreadsheets write 4 for 04."""
    number = text.zfill(2) if text.isdecimal() else text
    return name == text or name.startswith(f"{number}_")


SOURCES, CASES = "authoring/exercises", "exercises/checks"
"""Two folders of a checkout: the sources of exercises, and the expected answers of their checks."""

CHECKS_FROM = "simlib.checks"
"""The module from which a setup imports names only for its checks."""
CHECK_OF = f"from {CHECKS_FROM} import check_of"
CODE_IN_PROSE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
HEAD = '''\
"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/{name}.py, which is what grading reads; nobody edits this file.
"""
'''


def shown_form(notebook, name):
    """Return ``(notebook, cases)``: the notebook for learners, and its checks as a text.

    Parameters
    ----------
    notebook : NotebookNode
        A notebook from `read_source`, or an object with ``cells`` from `read_cells`. The function
        does not change it.
    name : str
        ``NN_name`` of the exercise, or `REVIEW`.

    Raises
    ------
    SourceError
        A check cell does not end with its verdict, or nothing in a setup cell is for learners.
    """
    shown, cells = copy.deepcopy(notebook), []
    imported, defined = split_setups(shown.cells, name)
    for cell in shown.cells:
        if course_of(cell, "role") != "check":
            continue
        question = course_of(cell, "question")
        if cell.source.rstrip().rpartition("\n")[2] != "verdict":
            raise SourceError(f"{name}: the check of {question} does not end with a line 'verdict'")
        task = f"{number_of(name)}.{len(cells) + 1}"
        cells.append(f"# %% {task} {question}\n{cell.source.rstrip()}\n")
        call = f'verdict = check_of("{task}", {question})\nverdict'
        cell.source = call if imported else f"{CHECK_OF}\n\n{call}"
    head = HEAD.format(name=name) + "".join(f"\n{one}\n" for one in imported)
    return shown, "\n\n".join([head, *(f"{one}\n" for one in defined), *cells])


def write_checks(root: Path) -> list[str]:
    """Update `exercises/checks` of a checkout.

    Returns
    -------
    list of str
        The names of the changed files; empty if the folder has no sources, as in a handout.
    """
    sources, folder = exercise_files(root / SOURCES, ".py"), root / CASES
    texts = {}
    for path in sources:
        cells = plain_cells(path.read_text(encoding="utf-8"))
        texts[path.name] = shown_form(SimpleNamespace(cells=cells), path.stem)[1]
    if texts:
        folder.mkdir(parents=True, exist_ok=True)
    before = {path.name: path for path in exercise_files(folder, ".py")} if texts else {}
    for name in before.keys() - texts.keys():
        before[name].unlink()
    changed = [
        name
        for name, text in texts.items()
        if name not in before or before[name].read_text(encoding="utf-8") != text
    ]
    for name in changed:
        (folder / name).write_text(texts[name], encoding="utf-8")
    return changed


def split_setups(cells, name):
    """Move code that only checks need out of the setup cells: ``(imports, definitions)``."""
    setups = [cell for cell in cells if course_of(cell, "role") == "setup"]
    nodes = [one.node for cell in setups for one in statements_of(cell.source)]
    kept = names_kept(names_in_code(cells) | names_in_prose(cells), nodes)
    needed = names_in_code(cells).union(*(uses_of(one) for one in nodes if stays(one, kept)))
    imported, defined = [], []
    for cell in setups:
        shown = ""
        for node, gap, text in statements_of(cell.source):
            if is_for_checks(node):
                imported.append(text)
                also = sorted({"check_of"} | ({alias.name for alias in node.names} & needed))
                shown += f"{gap}from {CHECKS_FROM} import {', '.join(also)}"
            elif stays(node, kept):
                shown += gap + text
            else:
                defined.append(text)
        cell.source = shown.strip("\n")
        if not cell.source:
            raise SourceError(
                f"{name}: only the checks use this setup cell, so students would see an empty "
                "cell: move its code into a cell of a check"
            )
    return imported, defined


class Statement(NamedTuple):
    """A statement of a cell: its syntax tree, the empty lines above it, and its text with
    comments."""

    node: ast.stmt
    gap: str
    text: str


def statements_of(source):
    """Return the statements of a cell. A string below the definition of a name belongs to this
    definition."""
    lines, found, end = source.split("\n"), [], 0
    for node in ast.parse(source).body:
        text = "\n".join(lines[end : node.end_lineno])
        gap = "\n" * (1 + len(text) - len(text.lstrip("\n")))
        end = node.end_lineno
        if found and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[-1] = found[-1]._replace(text=f"{found[-1].text}\n{text}")
        else:
            found.append(Statement(node, gap, text.strip("\n")))
    return found


def is_for_checks(node):
    """Whether a statement imports names that only checks use."""
    return isinstance(node, ast.ImportFrom) and node.module == CHECKS_FROM


def names_made_by(node):
    """Return the names that a definition or an assignment makes; none if the statement does
    anything else, too."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return set().union(*(uses_of(target) for target in node.targets))
    return set()


def uses_of(tree):
    """Return all names in a syntax tree."""
    return {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}


def stays(node, kept):
    """Whether a statement of a setup stays. A statement goes if it only makes names that are not
    kept."""
    made = names_made_by(node)
    return not made or not made.isdisjoint(kept)


def names_in_code(cells):
    """Return the names in the code that learners read, apart from setups."""
    roles = ("setup", "check", "hidden")
    code = [c.source for c in cells if c.cell_type == "code" and course_of(c, "role") not in roles]
    texts = {one for source in code for one in (solution_source(source), stub_source(source))}
    return set().union(*(uses_of(tree_of(text)) for text in texts))


def names_in_prose(cells):
    """Return the words in prose that are marked as code."""
    prose = [
        piece for c in cells if c.cell_type != "code" for piece in CODE_IN_PROSE.findall(c.source)
    ]
    return set(re.findall(r"\w+", " ".join(prose)))


def names_kept(used, nodes):
    """Return these names, and all names used by statements that stay because of them, and so on."""
    kept, size = set(used), -1
    while size < len(kept):
        size = len(kept)
        kept.update(*(uses_of(node) for node in nodes if stays(node, kept)))
    return kept


def tree_of(text):
    """Return the syntax tree of a cell; empty if the cell is not plain Python."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])
