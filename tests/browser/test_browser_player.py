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
WIDTHS = ("360px", "660px")  # with some padding of JupyterLab's
LONG = "a_function_with_a_name" * 10
NARROW = f"""\
import ipywidgets

def {LONG}(rank, world_size):
    simlib.compute(seconds=1)
    simlib.compute(seconds=1e-6 * rank)
    x, other = torch.zeros(1), rank ^ 1
    dist.send(x, dst=other) if rank < other else dist.recv(x, src=other)

narrow = simlib.simulate({LONG}, world_size=8)
player = narrow.play(between=(1.0, 1.00001))
ipywidgets.Box([player], layout={{"width": "WIDTH"}})
"""
PIECES = """\
def pipeline(rank, world_size):
    for micro in range(2):
        if rank == 1:
            dist.recv(torch.zeros(1), src=0)
        with simlib.span("F", micro=micro):
            simlib.compute(seconds=0.1)
        if rank == 0:
            dist.send(torch.zeros(1), dst=1)
    for micro in range(2):
        with simlib.span("B", micro=micro):
            simlib.compute(seconds=0.2)

simlib.simulate(pipeline, world_size=4).play()
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
    narrow = [NARROW.replace("WIDTH", width) for width in WIDTHS]
    write_notebook(
        course / "notebooks" / "player.ipynb", [RUN, "run.play()", "1 + 1", *narrow, PIECES]
    )
    page = NotebookPage(lab, "notebooks/player.ipynb")
    page.run_all()
    assert page.errors() == []
    yield page
    page.close()


@pytest.fixture
def player(notebook_with_player):
    use_theme(notebook_with_player.lab, "JupyterLab Light")
    shown = PlayerPage(notebook_with_player, 1)
    shown.root.get_by_label("Speed").select_option("0.1")  # plays for longer than any test
    shown.stage.focus()
    shown.press("Escape", "0", "End")  # which stops it, too
    return shown


def test_it_stands_where_the_picture_stands_without_widgets(player, notebook_with_player):
    assert player.root.count() == 1
    assert notebook_with_player.outputs(1).locator("img").count() == 0
    words = player.root.get_attribute("aria-label")
    assert words.startswith("Player: main on 4 simulated ranks over 140 ms. Ranks 1, 2 and 3 wait")
    assert "3 messages of 4 kB each. Collectives: 1 barrier." in words


def test_it_plays_to_the_end_and_stops_and_space_does_so_too(player):
    end = player.time
    player.root.get_by_role("button", name="Play (Space)").click()
    assert player.read("state") == "playing"
    player.root.get_by_label("Speed").select_option("4")
    player.root.and_(player.lab.locator("[data-state=paused]")).wait_for()
    assert player.time == end
    assert "ranks 0 to 3 have returned" in player.root.inner_text()
    player.root.get_by_label("Speed").select_option("0.1")
    player.stage.focus()
    player.press("Home", "Space")
    assert player.read("state") == "playing"
    player.press("Space")
    assert player.read("state") == "paused"


def test_mouse_and_keyboard_scrub(player):
    end = player.time
    player.lab.mouse.move(*player.point_of(0.02, 0))
    player.lab.mouse.down()
    player.lab.mouse.move(*player.point_of(0.05, 0))
    player.lab.mouse.up()
    assert player.time == pytest.approx(0.05, abs=0.001)
    assert "rank 0 computes; ranks 1 to 3 wait in recv(src=0)" in player.root.inner_text()
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


def test_it_zooms_and_shows_all_again_and_its_keys_are_its_own(player, notebook_with_player):
    begin, end = player.view
    player.press("+", "+")
    near, far = player.view
    assert far - near == pytest.approx((end - begin) / 4)
    assert near <= player.time <= far
    player.press("Home")
    assert player.view[0] == begin
    player.root.get_by_role("button", name="Show all (0)").click()
    assert player.view == (begin, end)
    player.stage.focus()
    cells = len(notebook_with_player.sources())
    player.press("b", "a", "Home", "0", "0", "ArrowDown")
    assert len(notebook_with_player.sources()) == cells
    assert player.time == 0


def test_it_follows_a_theme_also_one_that_changes_while_it_is_not_shown(
    player, notebook_with_player, screenshots
):
    for theme, limits in (("Light", (200, 255)), ("Dark", (0, 60))):
        use_theme(player.lab, f"JupyterLab {theme}")
        player.lab.mouse.move(*player.point_of(0.05, 1))
        player.waits_for_brightness(*limits)
        if screenshots:
            player.root.screenshot(path=screenshots / f"player_{theme.lower()}.png")
    notebook_with_player.command("notebook:hide-all-cell-outputs")
    player.root.wait_for(state="detached")
    use_theme(player.lab, "JupyterLab Light")
    notebook_with_player.command("notebook:show-all-cell-outputs")
    player.waits_for_brightness(200, 255)


def test_it_follows_a_theme_that_comes_while_cells_are_hidden_for_a_moment(player):
    # As JupyterLab hides them, now and then, when it measures them anew in another theme.
    dark = """(root) => {
        const stage = root.querySelector(".rbr-stage");
        root.style = "transition: none; --rbr-paper: #111111";
        stage.style.display = "none";
        root.dispatchEvent(new Event("transitionrun"));
        stage.style.display = "";
    }"""
    player.root.evaluate(dark)
    player.waits_for_brightness(0, 60)
    player.root.evaluate("(root) => { root.removeAttribute('style'); }")
    player.waits_for_brightness(200, 255)


@pytest.mark.parametrize("number", [3, 4], ids=WIDTHS)
def test_no_word_is_cut_off_however_narrow_it_is(number, player, notebook_with_player, screenshots):
    narrow = PlayerPage(notebook_with_player, number)
    narrow.root.scroll_into_view_if_needed()
    narrow.stage.focus()
    narrow.press("End", "Tab")
    assert LONG in narrow.tip.inner_text() and LONG in narrow.root.inner_text()
    if screenshots:
        narrow.root.screenshot(path=screenshots / f"player_{WIDTHS[number - 3]}.png")
    for name in ("head", "title", "tip", "bar", "time", "foot", "now"):
        part = narrow.root.locator(f".rbr-{name}")
        wide, room = part.evaluate("(e) => [e.scrollWidth, e.clientWidth]")
        assert wide <= room, f"{name} is {wide} px wide and has room for {room}"
    now = narrow.root.locator(".rbr-now")
    if now.evaluate("(e) => e.scrollHeight > e.clientHeight"):
        now.hover()
        narrow.lab.mouse.wheel(0, 1000)
        narrow.lab.wait_for_function(
            "(e) => e.scrollTop + e.clientHeight >= e.scrollHeight - 1", arg=now.element_handle()
        )


def test_named_pieces_are_told_by_their_names(player, notebook_with_player, screenshots):
    shown = PlayerPage(notebook_with_player, 3 + len(WIDTHS))
    shown.stage.focus()
    shown.press("Escape", "0", "Home")
    assert "ranks 0, 2 and 3 compute F0; rank 1 waits in recv(src=0)" in shown.root.inner_text()
    shown.press("End", "ArrowLeft")
    assert "ranks 0, 2 and 3 have returned; rank 1 computes B1" in shown.root.inner_text()
    for theme, limits in (("Dark", (0, 60)), ("Light", (200, 255))):
        use_theme(player.lab, f"JupyterLab {theme}")
        shown.waits_for_brightness(*limits)
        if screenshots:
            shown.root.screenshot(path=screenshots / f"pieces_{theme.lower()}.png")
