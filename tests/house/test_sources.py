"""docs/sources.md: each point of a source names a notebook that is there, and a heading in it."""

import functools
import re
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "sources.md"
SOURCES = 5
LONGEST = 20
"""Words of a point or a note: the page says where something is, not what it is."""


class Row(NamedTuple):
    """A point of a source, and its place in the course."""

    source: str
    point: str
    label: str
    file: str
    where: str
    note: str


def rows_of(page):
    """All rows of a page, by its sections. One that is not made like the others raises."""
    rows = []
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        source, _, text = section.partition("\n")
        head, *body = re.findall(r"^\|(.+)\|$", text, re.M)
        assert [cell.strip() for cell in head.split("|")] == ["point", "lesson", "where", "note"]
        for line in body[1:]:
            cells = [cell.strip() for cell in line.split("|")]
            link = re.fullmatch(r"\[(.+)\]\((\S+)\)", cells[1]) if len(cells) == 4 else None
            if not link:
                raise ValueError(f"{source}: not a point, a lesson, a heading and a note: {line}")
            rows.append(Row(source, cells[0], *link.groups(), *cells[2:]))
    return rows


@functools.cache
def headings(notebook):
    cells = nbformat.read(notebook, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return set(re.findall(r"^#{1,6} (.+?)\s*$", text, re.M))


def faults(row, root=ROOT):
    """What is wrong with a row, in words."""
    notebook = (root / "docs" / row.file).resolve()
    exercises = ", exercises" if notebook.parent.name == "exercises" else ""
    if row.label != notebook.name[:2] + exercises:
        yield f"{row.label} is not {notebook.name}"
    if not notebook.exists():
        yield f"no notebook {notebook.name}, for: {row.point}"
    elif row.where not in headings(notebook):
        yield f"no heading {row.where!r} in {notebook.name}, for: {row.point}"
    if row.note and not row.note.startswith("repaired: "):
        yield f"a note says what was repaired, or nothing: {row.note}"
    if max(len(row.point.split()), len(row.note.split())) > LONGEST:
        yield f"more than {LONGEST} words: {row.point}"


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))


def test_every_source_has_its_table():
    assert len({row.source for row in ROWS}) == SOURCES


@pytest.mark.parametrize("file", sorted({row.file for row in ROWS}))
def test_every_point_is_where_the_page_says(file):
    assert [fault for row in ROWS if row.file == file for fault in faults(row)] == []


def test_no_point_stands_twice():
    points = [(row.source, row.point, row.where) for row in ROWS]
    assert sorted(points) == sorted(set(points))


def test_the_readme_leads_to_the_page():
    assert "(docs/sources.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


# The rules themselves: a row that breaks one is told so.


def test_a_row_of_another_form_is_told():
    head = "## A\n\n| point | lesson | where | note |\n| --- | --- | --- | --- |\n"
    row = "| a | [01](b.ipynb) | c | |\n"
    assert rows_of(head + row) == [Row("A", "a", "01", "b.ipynb", "c", "")]
    for wrong in ("| a | 01 | c | |\n", "| a | [01](b.ipynb) | c |\n"):
        with pytest.raises(ValueError, match="A: not a point"):
            rows_of(head + row + wrong)


@pytest.mark.parametrize(
    "change, told",
    [
        ({}, None),
        ({"where": "c"}, "no heading 'c' in 01_a.ipynb"),
        ({"where": "code"}, "no heading 'code'"),
        ({"file": "../notebooks/02_b.ipynb", "label": "02"}, "no notebook 02_b.ipynb"),
        ({"label": "02"}, "02 is not 01_a.ipynb"),
        ({"note": "wrong"}, "a note says"),
        ({"point": "a " * (LONGEST + 1)}, "more than"),
    ],
)
def test_a_fault_of_a_row_is_told(tmp_path, change, told):
    cells = [nbformat.v4.new_markdown_cell("## b\n\n```\n# code\n```")]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / "01_a.ipynb")
    row = Row("A", "a", "01", "../notebooks/01_a.ipynb", "b", "repaired: so")._replace(**change)
    found = list(faults(row, tmp_path))
    assert len(found) == (1 if told else 0)
    assert not told or found[0].startswith(told)
