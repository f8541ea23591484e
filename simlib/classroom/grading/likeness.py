"""Which answers are the same, apart from names, comments and formatting.

`form_of` is called in the process that reads what students handed in, which runs without simlib: so
this file needs the standard library alone.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from pathlib import Path

LONGEST_CODE = 10_000
"""Characters of an answer that are shown, and that are compared."""
LEAST_NODES = 100
"""Of a syntax tree: two who write less may well write the same."""
FEW = 3
"""So many with one answer are told, however small the class is."""
MAKERS = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.arg, ast.alias
"""What makes names, beside assignments."""
ERRORS = SyntaxError, ValueError, RecursionError, MemoryError


def form_of(source):
    """What equal answers have in common, as a fingerprint; empty for small and unreadable ones."""
    if len(source) > LONGEST_CODE:
        return ""
    lines = [line for line in source.splitlines() if not line.startswith(("%", "!"))]
    try:
        tree = ast.parse("\n".join(lines))
        nodes = without_words(tree)
        if len(nodes) < LEAST_NODES:
            return ""
        number_names(nodes)
        return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    except ERRORS:
        return ""


def without_words(tree):
    """The nodes of a tree, from which docstrings and annotations are taken away."""
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [one for one in node.body if not is_text(one)]
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
    return list(ast.walk(tree))


def number_names(nodes):
    """Give the names that an answer makes numbers, in their order; others stay as they are."""
    own = {}
    for node in nodes:
        if isinstance(node, MAKERS) or isinstance(getattr(node, "ctx", None), ast.Store):
            own.setdefault(getattr(node, field_of(node), None), f"name {len(own)}")
    own.pop(None, None)
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in functions:
            for given in node.keywords:  # of another function, it is that function's own word
                given.arg = own.get(given.arg, given.arg)
    for node in nodes:
        if isinstance(node, (*MAKERS, ast.Name)):
            name = getattr(node, field_of(node))
            setattr(node, field_of(node), own.get(name, name))
        elif isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [own.get(name, name) for name in node.names]


def field_of(node):
    """Where a node of a syntax tree has its name."""
    return {ast.Name: "id", ast.arg: "arg", ast.alias: "asname"}.get(type(node), "name")


def is_text(statement):
    """Whether a statement is but a text, as a docstring is."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def equal_answers(students, given):
    """Groups of students who gave one answer to a question, apart from names.

    Left out is what the course gives, and what more than a third of those who answered gave: it
    is the obvious answer.

    Parameters
    ----------
    students : list of dict
        Of a report.
    given : callable
        ``given()`` makes the forms of what the course gives; it is called where that matters.

    Returns
    -------
    list of dict
        With exercise, question, title, and the students.
    """
    found, answered = {}, {}
    for student in students:
        for book in student["notebooks"]:
            for question in book["questions"]:
                key = book["exercise"], question["question"], question["title"]
                answered[key] = answered.get(key, 0) + bool(question["code"])
                if question["form"]:
                    found.setdefault((key, question["form"]), []).append(student["student"])
    groups = [
        (form, dict(zip(("exercise", "question", "title"), key, strict=True), students=names))
        for (key, form), names in found.items()
        if 1 < len(names) <= max(FEW, answered[key] / 3)
    ]
    of_course = given() if groups else ()
    return [group for form, group in groups if form not in of_course]


def given_by(exercises, notebooks):
    """The forms of all solutions, and of cells and functions of the lessons.

    Parameters
    ----------
    exercises : collection of Exercise
    notebooks : Path
        Folder of the lessons.
    """
    questions = [question for one in exercises for question in one.questions.values()]
    return {form_of(question.solution) for question in questions} | of_lessons(notebooks)


@functools.cache
def of_lessons(notebooks):
    """The forms of cells and functions of the notebooks of a folder."""
    found = set()
    for path in Path(notebooks).glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                source = "".join(cell["source"])
                found |= {form_of(one) for one in (source, *functions_in(source))}
    return frozenset(found)


def functions_in(source):
    """The sources of a cell's functions."""
    try:
        tree = ast.parse(source)
    except ERRORS:
        return []
    defined = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    return [ast.unparse(one) for one in defined]
