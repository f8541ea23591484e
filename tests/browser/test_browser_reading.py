"""Notebooks in a real JupyterLab can be read: whole words, comments with contrast, tabs by kind."""

import shutil

import nbformat
import pytest
from lab_server import write_notebook
from notebook_page import BROKEN, use_theme

from simlib.core.draw.palette import contrast

VERDICT = "This is not a usual mistake: compare each rank's value with the expected one. " * 8
"""As wide as several windows."""
QUESTION = "guess = None  # how many of the six times are equal?"
COLORS = """(word) => {
  const paperOf = (one) => getComputedStyle(one).backgroundColor;
  let paper = word;
  while (paperOf(paper) === "rgba(0, 0, 0, 0)") paper = paper.parentElement;
  return [getComputedStyle(word).color, paperOf(paper)];
}"""
"""JavaScript: the colours of a word and of what is behind the word."""
WORDS_SCROLL = "(pre) => pre.scrollWidth > pre.clientWidth"


@pytest.fixture
def page(notebook, course):
    """Two cells with a question; below them are outputs of each kind, and one endless word."""
    path = course / "notebooks" / "reading.ipynb"
    write_notebook(path, [QUESTION, QUESTION])
    stored, new = nbformat.read(path, as_version=4), nbformat.v4.new_output
    stored.cells[1].outputs = [
        new("stream", name="stdout", text=VERDICT),
        new("stream", name="stderr", text=VERDICT),
        new("execute_result", {"text/plain": VERDICT}),
        new("error", ename="Wrong", evalue="", traceback=[VERDICT]),
        new("stream", name="stdout", text="endless" * 100),
    ]
    nbformat.write(stored, path)
    return notebook("notebooks/reading.ipynb")


@pytest.mark.parametrize("width", [1400, 800])
def test_outputs_break_between_words(page, width):
    size = page.lab.viewport_size
    try:
        page.lab.set_viewport_size({"width": width, "height": 1000})
        *verdicts, endless = page.outputs(1).locator("pre").all()
        assert [one.evaluate(BROKEN) for one in verdicts] == [[]] * 4
        assert endless.evaluate(BROKEN) and not endless.evaluate(WORDS_SCROLL)
    finally:
        page.lab.set_viewport_size(size)


def as_hex(color):
    """``"rgb(64, 128, 128)"`` as ``"#408080"``."""
    channels = color.removeprefix("rgb(").removesuffix(")").split(", ")
    return "#" + "".join(f"{int(channel):02x}" for channel in channels)


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_a_question_in_a_comment_can_be_read(page, theme):
    use_theme(page.lab, theme)
    try:
        page.cell(0).locator(".cm-content").click()  # this cell has another paper than the next one
        words = page.root.locator(".cm-line span", has_text="# how many")
        words.nth(1).wait_for()
        colors = [tuple(map(as_hex, word.evaluate(COLORS))) for word in words.all()]
    finally:
        use_theme(page.lab, "JupyterLab Light")
    assert len({paper for _, paper in colors}) == 2
    assert min(contrast(*both) for both in colors) >= 4.5, colors


def test_a_tab_says_whether_it_is_a_lesson_an_exercise_or_a_solution(notebook, lab, course):
    name = "03_when_it_hangs.ipynb"
    for folder, kind in (
        ("notebooks", "Lesson"),
        ("exercises", "Exercise"),
        ("solutions", "Solution"),
    ):
        notebook(f"{folder}/{name}")
        lab.get_by_role("tab", name=f"{kind} {name}", exact=True).wait_for()
        assert (course / folder / name).is_file()
    shutil.copy(course / "exercises" / name, course / "exercises" / "03_copy.ipynb")
    page = notebook("exercises/03_copy.ipynb")
    lab.get_by_role("tab", name="Exercise 03_copy.ipynb", exact=True).wait_for()
    page.ask("panel.context.rename('mine.ipynb')")
    page.path = "exercises/mine.ipynb"
    lab.get_by_role("tab", name="mine.ipynb", exact=True).wait_for()
