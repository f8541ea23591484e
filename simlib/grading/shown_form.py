"""What learners see of an exercise: check cells that are calls, and what they expect elsewhere.

`shown_form` puts a call of `simlib.checks.check_of` in the place of each check, and the checks into
a text of their own. So does it with what a setup defines for checks alone.
"""

import ast
import copy
import re
from typing import NamedTuple

from .source import SourceError, course_of, number_of, solution_source, stub_source

CHECKS_FROM = "simlib.checks"
"""The module whose import in a setup is for checks alone."""
CHECK_OF = f"from {CHECKS_FROM} import check_of"
CODE_IN_PROSE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
HEAD = '''\
"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/{name}.py, which is what grading reads; nobody edits this file.
"""
'''


def shown_form(notebook, name):
    """``(notebook, cases)`` of an exercise: what learners see of it, and its checks as a text.

    Parameters
    ----------
    notebook : NotebookNode
        From `read_source`; it is left as it is.
    name : str
        ``NN_name`` of the exercise, or `REVIEW`.

    Raises
    ------
    SourceError
        A check cell does not end with its verdict; a setup cell has nothing for learners.
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


def split_setups(cells, name):
    """``(imports, definitions)``: what only checks need, taken out of the setup cells, in place."""
    setups = [cell for cell in cells if course_of(cell, "role") == "setup"]
    nodes = [one.node for cell in setups for one in statements_of(cell.source)]
    kept = names_kept(names_used_by(cells), nodes)
    imported, defined = [], []
    for cell in setups:
        shown = ""
        for node, gap, text in statements_of(cell.source):
            if is_for_checks(node):
                imported.append(text)
                also = sorted({"check_of"} | ({alias.name for alias in node.names} & kept))
                shown += f"{gap}from {CHECKS_FROM} import {', '.join(also)}"
            elif names_made_by(node).isdisjoint(kept) and names_made_by(node):
                defined.append(text)
            else:
                shown += gap + text
        cell.source = shown.strip("\n")
        if not cell.source:
            raise SourceError(f"{name}: a setup cell is for checks alone: put it to another one")
    return imported, defined


class Statement(NamedTuple):
    """A statement of a cell: its tree, the empty lines above it, and its text with comments."""

    node: ast.stmt
    gap: str
    text: str


def statements_of(source):
    """The statements of a cell; a string below a name is of the statement that makes the name."""
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
    """Whether a statement imports what checks are made of."""
    return isinstance(node, ast.ImportFrom) and node.module == CHECKS_FROM


def names_made_by(node):
    """The names that a definition or an assignment makes; none where a statement does more."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {one.id for target in node.targets for one in names_in(target)}
    return set()


def names_in(node):
    """All names in a syntax tree."""
    return [one for one in ast.walk(node) if isinstance(one, ast.Name)]


def names_used_by(cells):
    """The names that stand in what learners read, apart from setups: code, and code in prose."""
    used = set()
    for cell in cells:
        if cell.cell_type != "code":
            used.update(re.findall(r"\w+", " ".join(CODE_IN_PROSE.findall(cell.source))))
        elif course_of(cell, "role") not in ("setup", "check", "hidden"):
            for text in {solution_source(cell.source), stub_source(cell.source)}:
                used.update(name.id for name in names_in(tree_of(text)))
    return used


def names_kept(used, nodes):
    """These names, those that statements use which make them, and so on; all that others use."""
    kept, size = set(used), -1
    while size < len(kept):
        size = len(kept)
        for node in nodes:
            made = names_made_by(node)
            if not made or made & kept:
                kept.update(name.id for name in names_in(node))
    return kept


def tree_of(text):
    """The syntax tree of a cell; empty where it is no plain Python."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])
