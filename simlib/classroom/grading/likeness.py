"""Find answers that differ only in names, comments and formatting.

The process that reads students' files calls `form_of`. This process runs without simlib, so this
file needs only the standard library.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from pathlib import Path

LONGEST_CODE = 10_000
"""simlib shows and compares at most this many characters of an answer."""
LEAST_NODES = 100
"""simlib compares only answers whose syntax trees have at least this many nodes, because two
students may well write the same shorter answer."""
FEW = 3
"""simlib always reports a group of at most this many students, even in a small class."""
MAKERS = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.arg, ast.alias
"""The nodes that make names, in addition to assignments."""
ERRORS = SyntaxError, ValueError, RecursionError, MemoryError


def form_of(source):
    """Return a fingerprint that equal answers share; empty for a small or unreadable answer."""
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
    """Return the nodes of a tree, without docstrings and annotations."""
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [one for one in node.body if not is_text(one)]
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
    return list(ast.walk(tree))


def number_names(nodes):
    """Replace the names that an answer makes by numbers, in order. Other names stay."""
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
    """Return the field of a syntax tree's node that contains the node's name."""
    return {ast.Name: "id", ast.arg: "arg", ast.alias: "asname"}.get(type(node), "name")


def is_text(statement):
    """Whether a statement is only a text, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def equal_answers(students, given):
    """Return groups of students who gave the same answer to a question, apart from names.

    The function leaves out answers that are equal to a solution or to code of a lesson. It also
    leaves out an answer of more than a third of the students, because it is the obvious answer.

    Parameters
    ----------
    students : list of dict
        The students of a report.
    given : callable
        ``given()`` makes the forms of the course's own code. It is called only if these forms are
        needed.

    Returns
    -------
    list of dict
        Each dict contains exercise, question, title, and the students.
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
    """Return the forms of all solutions, and of the lessons' cells and functions.

    Parameters
    ----------
    exercises : collection of Exercise
    notebooks : Path
        The folder of the lessons.
    """
    questions = [question for one in exercises for question in one.questions.values()]
    return {form_of(question.solution) for question in questions} | of_lessons(notebooks)


@functools.cache
def of_lessons(notebooks):
    """Return the forms of the cells and functions in a folder's notebooks."""
    found = set()
    for path in Path(notebooks).glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                source = "".join(cell["source"])
                found |= {form_of(one) for one in (source, *functions_in(source))}
    return frozenset(found)


def functions_in(source):
    """Return the sources of the functions in a cell."""
    try:
        tree = ast.parse(source)
    except ERRORS:
        return []
    defined = [one for one in tree.body if isinstance(one, ast.FunctionDef)]
    return [ast.unparse(one) for one in defined]
