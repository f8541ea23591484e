"""A lesson in a second language: its own prose, the code of the original.

`authoring/lessons/de/00_name.md` holds the prose of `authoring/lessons/00_name.py`, cell by cell. A
line stands before each cell that says which one it is, and of which words of the original:

    <!-- 00_name-text-001 of 4f6bc2d1 -->

The eight digits are a fingerprint of the original's text. Where that has changed since, the builder
stops and names the cell, so that no translation tells what the lesson does not tell any more.
"""

import hashlib
import re

from simlib.classroom.grading.source import SourceError, read_source

LANGUAGES = {"de": "Deutsch"}
"""Of each language the name that it gives itself."""
MARK = re.compile(r"^<!-- (\S+) of ([0-9a-f]{8}) -->$", re.MULTILINE)


def translations(root):
    """All files that translate a lesson."""
    return sorted((root / "authoring" / "lessons").glob("*/[0-9][0-9]_*.md"))


def original_of(path):
    """The source of the lesson that a file translates."""
    return path.parent.parent / f"{path.stem}.py"


def languages_of(root, name):
    """``{language: its own name}`` of those into which a lesson is translated."""
    return {path.parent.name: language_of(path) for path in translations(root) if path.stem == name}


def language_of(path):
    """What the language of a translation calls itself.

    Raises
    ------
    SourceError
        Its folder is none of `LANGUAGES`.
    """
    if path.parent.name not in LANGUAGES:
        raise SourceError(f"{path}: name the language {path.parent.name!r} in LANGUAGES first")
    return LANGUAGES[path.parent.name]


def fingerprint(text):
    """Eight digits that change with a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def translated(path):
    """The notebook of a translation, without outputs.

    Raises
    ------
    SourceError
        A cell has no translation, or one of another text; the file has cells that the lesson lacks.
    """
    language_of(path)
    original = original_of(path)
    if not original.exists():
        raise SourceError(f"{path} translates {original.name}, which is not there")
    notebook = read_source(original, is_exercise=False)
    given = cells_in(path)
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        wanted = fingerprint(cell.source)
        if cell.id not in given:
            raise SourceError(f"{path}: no translation of `<!-- {cell.id} of {wanted} -->`")
        found, text = given.pop(cell.id)
        if found != wanted:
            raise SourceError(
                f"{path}: the original of {cell.id} has changed since it was translated: bring the "
                f"text up to date, and then write {wanted} for {found}"
            )
        cell.source = text
    if given:
        raise SourceError(f"{path}: {original.name} has no text cell {', '.join(given)}")
    return notebook


def cells_in(path):
    """``{id: (fingerprint of the original, text)}`` of a translation."""
    before, *parts = MARK.split(path.read_text(encoding="utf-8"))
    if before.strip():
        raise SourceError(f"{path}, line 1: text before the first `<!-- cell of fingerprint -->`")
    ids = parts[::3]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise SourceError(f"{path}: {', '.join(twice)} stands there twice")
    return {
        name: (found, text.strip())
        for name, found, text in zip(ids, parts[1::3], parts[2::3], strict=True)
    }
