"""The player in a real JupyterLab: it plays, and answers to mouse, keyboard and theme."""

import pytest
from lab_server import write_notebook
from notebook_page import NotebookPage, use_theme

RUN = """\
import simlib, torch
import torch.distributed as dist

def main(rank, world_size):
    x = torch.zeros(1000)
    if rank == 0:
        simlib.compute(seconds=0.1)
        for dst in range(1, world_size):
            dist.send(x, dst=dst)
    else:
        dist.recv(x, src=0)
        simlib.compute(seconds=0.04)
    dist.barrier()

run = simlib.simulate(main, world_size=4)
"""


class PlayerPage:
    """A player on the page, and what can be read from it."""

    def __init__(self, notebook, number):
        self.lab = notebook.lab
        self.root = notebook.outputs(number).locator(".rbr-player")
        self.stage = self.root.locator(".rbr-stage")
        self.tip = self.root.locator(".rbr-tip")

    def read(self, name):
        return self.root.get_attribute(f"data-{name}")

    @property
    def time(self):
        return float(self.read("time"))

    @property
    def view(self):
        return tuple(map(float, self.read("view").split()))

    def point_of(self, time, row):
        """Where on the screen a rank's lane is at a time, four lanes shown."""
        box = self.stage.bounding_box()
        begin, end = self.view
        way = (time - begin) / (end - begin)
        gutter, right, top, axis = 92, 16, 10, 30
        height = (box["height"] - top - axis) / 4
        x = box["x"] + gutter + way * (box["width"] - gutter - right)
        return x, box["y"] + top + (row + 0.5) * height

    def press(self, *keys):
        for key in keys:
            self.lab.keyboard.press(key)

    def waits_for_brightness(self, least, most):
        """Wait until the picture's corner is so bright: 0 is black, 255 white."""
        self.lab.wait_for_function(
            "([canvas, least, most]) => { const { data } = canvas.getContext('2d')"
            ".getImageData(1, 1, 1, 1); return least <= data[0] && data[0] <= most; }",
            arg=[self.stage.locator("canvas").element_handle(), least, most],
        )


@pytest.fixture(scope="module")
def notebook_with_player(lab, course):
    write_notebook(course / "notebooks" / "player.ipynb", [RUN, "run.play()", "1 + 1"])
    page = NotebookPage(lab, "notebooks/player.ipynb")
    page.run_all()
    assert page.errors() == []
    yield page
    page.close()


@pytest.fixture
def player(notebook_with_player):
    shown = PlayerPage(notebook_with_player, 1)
    shown.stage.focus()
    shown.press("0", "End")
    return shown


def test_it_stands_where_the_picture_stands_without_widgets(player, notebook_with_player):
    assert player.root.count() == 1
    assert notebook_with_player.outputs(1).locator("img").count() == 0
    assert player.root.get_attribute("aria-label") == "Player: main on 4 simulated ranks"
    assert "10 calls, 3 messages, 1 collective" in player.stage.get_attribute("aria-label")


def test_it_has_the_colours_of_the_theme_from_the_start(player):
    player.waits_for_brightness(200, 255)


def test_it_plays_to_the_end_and_stops(player):
    end = player.time
    player.root.get_by_label("Speed").select_option("4")
    player.root.get_by_role("button", name="Play (Space)").click()
    assert player.read("state") == "playing"
    player.root.and_(player.lab.locator("[data-state=paused]")).wait_for()
    assert player.time == end
    assert "ranks 0 to 3 have returned" in player.root.inner_text()


def test_space_plays_and_stops(player):
    player.press("Home", "Space")
    assert player.read("state") == "playing"
    player.press("Space")
    assert player.read("state") == "paused"


def test_the_mouse_scrubs(player):
    player.lab.mouse.move(*player.point_of(0.02, 0))
    player.lab.mouse.down()
    player.lab.mouse.move(*player.point_of(0.05, 0))
    player.lab.mouse.up()
    assert player.time == pytest.approx(0.05, abs=0.001)
    assert "rank 0 computes; ranks 1 to 3 wait in recv(src=0)" in player.root.inner_text()


def test_the_keyboard_scrubs(player):
    end = player.time
    player.press("Home")
    assert player.time == 0
    player.press("ArrowRight", "Shift+ArrowRight", "ArrowLeft")
    assert player.time == pytest.approx(0.1 * end)
    player.press("n")
    assert player.time == pytest.approx(0.1)
    player.press("p")
    assert player.time == 0


def test_the_mouse_over_a_call_tells_op_bytes_and_line(player):
    player.lab.mouse.move(*player.point_of(0.05, 2))
    told = player.tip.inner_text()
    for part in ("rank 2: recv(src=0)", "4,000 bytes", "float32[1000]", "main, line 11"):
        assert part in told
    assert player.tip.locator("code").inner_text() == "dist.recv(x, src=0)"


def test_tab_leads_to_the_calls_and_arrows_walk_them(player):
    player.press("Tab")
    call = player.root.locator(".rbr-event")
    assert call.evaluate("(e) => e === document.activeElement")
    assert "Call 1 of 10" in call.get_attribute("aria-label")
    first = player.tip.inner_text()
    player.press("ArrowRight")
    assert player.tip.inner_text() != first
    player.press("ArrowDown")
    assert "rank 2" in player.tip.inner_text()
    assert "waited" in call.get_attribute("aria-label")
    player.press("Enter")
    assert player.time < 0.2


def test_it_zooms_and_shows_all_again(player):
    begin, end = player.view
    player.press("+", "+")
    near, far = player.view
    assert far - near == pytest.approx((end - begin) / 4)
    assert near <= player.time <= far
    assert player.root.locator(".rbr-time").inner_text() == "140.2 ms / 140.2 ms"
    player.press("Home")
    assert player.view[0] == begin
    player.root.get_by_role("button", name="Show all (0)").click()
    assert player.view == (begin, end)


def test_its_keys_are_not_taken_for_those_of_the_notebook(player, notebook_with_player):
    cells = len(notebook_with_player.sources())
    player.press("b", "a", "Home", "0", "0", "ArrowDown")
    assert len(notebook_with_player.sources()) == cells
    assert player.time == 0


def test_it_follows_the_theme(player, screenshots):
    for theme, limits in (("Dark", (0, 60)), ("Light", (200, 255))):
        use_theme(player.lab, f"JupyterLab {theme}")
        player.lab.mouse.move(*player.point_of(0.05, 1))
        player.waits_for_brightness(*limits)
        if screenshots:
            player.root.screenshot(path=screenshots / f"player_{theme.lower()}.png")
