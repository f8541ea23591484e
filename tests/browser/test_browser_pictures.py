"""Pictures in a real JupyterLab follow its theme: stored ones, those just drawn, and labs."""

import base64
import time

import nbformat
import pytest
from lab_server import write_notebook
from notebook_page import PICTURE_LIMIT_S, NotebookPage, use_theme

import simlib
from simlib.core.draw.display import alt_metadata

STORED_WORDS = 'Rank 0 waits for "rank 1" <b>'
DRAWN = """\
import simlib
import matplotlib.pyplot as plt
from simlib import labs

labs.draw_rounds("ring", 3, 2)
"""
RUN = """\
import torch, torch.distributed as dist

def late(rank, world_size):
    simlib.compute(0.01 * (rank == 2))
    dist.barrier()

simlib.simulate(late, world_size=3)
"""
CELLS = {
    "stored, nothing run": "# never run",
    "of simlib": DRAWN,
    "the learner's own": "plt.plot([1, 3, 2])\nplt.show()",
    "a lab": 'labs.rounds_lab("ring", 3)',
    "a run": RUN,
}
PAPER = {"Dark": 0x11, "Light": 0xFF}
SHARE = """async (image, paper) => {
  await image.decode();
  const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
  const pen = canvas.getContext("2d");
  pen.drawImage(image, 0, 0);
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
  const alike = data.filter((value, at) => at % 4 === 0 && value === paper);
  return data[0] === paper ? alike.length / (data.length / 4) : 0;
}"""
"""JavaScript: the share of an image that is as red as its paper, on which its corner lies."""


def compute(rank, world_size):
    simlib.compute(seconds=0.01 * (rank + 1))


def with_stored_picture(path):
    """Give the first cell of a notebook a picture, as a built notebook holds it."""
    notebook = nbformat.read(path, as_version=4)
    png = base64.b64encode(simlib.simulate(compute, world_size=4)._repr_png_()).decode()
    data, metadata = {"image/png": png, "text/plain": "a run"}, alt_metadata(STORED_WORDS)
    output = nbformat.v4.new_output("display_data", data, metadata=metadata)
    notebook.cells[0].outputs = [output]
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def page(lab, course):
    """A notebook with pictures of all sorts, opened in a light theme; its first cell is not run."""
    path = course / "notebooks" / "pictures.ipynb"
    write_notebook(path, CELLS.values())
    with_stored_picture(path)
    page = NotebookPage(lab, "notebooks/pictures.ipynb")
    for number in range(1, len(CELLS)):
        page.run(number)
    assert page.errors() == []
    yield page
    use_theme(lab, "JupyterLab Light")
    page.close()


def waits_for_paper(page, number, theme):
    """Wait until the picture of a cell lies on the paper of a theme, for the most part."""
    image = page.outputs(number).locator("img").first
    limit, share = time.monotonic() + PICTURE_LIMIT_S, 0
    while share < 0.3:
        assert time.monotonic() < limit, f"cell {number}: {share:.0%} is {theme.lower()} paper"
        page.wait_for_page_to_paint()
        share = image.evaluate(SHARE, PAPER[theme])


def test_pictures_follow_the_theme_there_and_back(page, screenshots):
    for theme in ("Light", "Dark", "Light"):
        use_theme(page.lab, f"JupyterLab {theme}")
        for number in range(len(CELLS)):
            waits_for_paper(page, number, theme)
        if screenshots:
            page.keep_picture(screenshots / f"pictures_{theme.lower()}.png")


def test_a_picture_that_is_drawn_in_a_dark_theme_comes_dark_and_a_lab_moves_in_it(page):
    use_theme(page.lab, "JupyterLab Dark")
    for number in range(1, len(CELLS)):
        page.run(number)
        waits_for_paper(page, number, "Dark")
    number = list(CELLS).index("a lab")
    before = page.pictures(number)
    page.drag_slider(page.sliders(number)[-1], 0.9)
    page.wait_for_another_picture(number, before)
    waits_for_paper(page, number, "Dark")


@pytest.mark.parametrize(
    "number, told",
    [(0, STORED_WORDS), (1, "A figure."), (len(CELLS) - 1, "Ranks 0 and 1 wait for rank 2 in ")],
)
def test_a_picture_is_told_to_a_screen_reader(number, told, page):
    page.cell(number).scroll_into_view_if_needed()
    alt = page.outputs(number).locator("img").first.get_attribute("alt")
    assert alt and told in alt


def test_what_is_saved_is_the_light_picture_with_its_twin(page):
    stored = "panel.content.widgets[0].model.outputs.toJSON()[0].data['image/png']"
    use_theme(page.lab, "JupyterLab Light")
    light = page.ask(stored)
    use_theme(page.lab, "JupyterLab Dark")
    waits_for_paper(page, 0, "Dark")
    assert page.ask(stored) == light
