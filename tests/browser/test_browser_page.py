"""Saved runs opened from a folder, without a network: they play, scrub, and answer to keys."""

import pytest
import torch
import torch.distributed as dist

import simlib
from simlib.core.draw.palette import DARK_PAPER, on_dark, rank_color
from simlib.core.draw.player import FOLDER


def around(rank, world_size, steps=2):
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for _ in range(steps):
        receiving = dist.irecv(torch.empty(100), left)
        with simlib.span("work </script><b>"):
            simlib.compute(1e-3 * (rank + 1))
        dist.send(torch.ones(100), right)
        receiving.wait()
    dist.all_reduce(torch.ones(100))


def circle(rank, world_size):
    dist.recv(torch.empty(1), (rank - 1) % world_size)


def raises(rank, world_size):
    dist.barrier()
    if rank:
        raise ValueError("no data")


def failed(function):
    with pytest.raises(simlib.SimlibError) as caught:
        simlib.run(function, 3)
    return caught.value.run


def nasty():
    around.__name__ = "</script><script>document.title = 'attacked'</script>"
    try:
        return simlib.simulate(around, 4)
    finally:
        around.__name__ = "around"


MAKES = {
    "real": lambda: simlib.run(around, 4, args=(20,)),
    "simulated": nasty,
    "deadlock": lambda: failed(circle),
    "raised": lambda: failed(raises),
    "compared": lambda: simlib.compare(
        simlib.simulate(around, 4, expand=True), simlib.simulate(around, 4, args=(5,))
    ),
}


@pytest.fixture(scope="module", params=MAKES)
def saved(request, tmp_path_factory):
    """The file of a saved run; it is made once for all tests."""
    return MAKES[request.param]().to_html(tmp_path_factory.mktemp("saved") / "run.html")


@pytest.fixture
def page(saved, chromium):
    """A saved run in a browser that has no network; nothing it says may be an error."""
    context = chromium.new_context(offline=True, viewport={"width": 1100, "height": 900})
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda one: asked.append(one.url))
    page.goto(saved.as_uri())
    page.wait_for_selector(".rbr-player[data-time]")
    yield page
    assert said == [] and {url.partition(":")[0] for url in asked} <= {"file", "data"}
    context.close()


def moments(page):
    return [float(one.get_attribute("data-time")) for one in page.query_selector_all(".rbr-player")]


def test_a_saved_run_plays_scrubs_and_answers_to_keys(page):
    players = page.locator(".rbr-player")
    last = moments(page)[0]
    page.locator(".rbr-stage").first.focus()
    page.keyboard.press("Home")
    assert set(moments(page)) == {0.0}
    page.keyboard.press("n")
    called = moments(page)[0]
    page.keyboard.press("Shift+ArrowRight")
    assert moments(page)[0] > called
    box = page.locator(".rbr-stage canvas").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 30)
    assert 0.3 * last < moments(page)[0] < 0.7 * last
    page.locator(".rbr-speed, .rbr-bar select").first.select_option("4")
    page.get_by_role("button", name="Play (Space)").first.click()
    page.wait_for_function(
        "(last) => [...document.querySelectorAll('.rbr-player')].every("
        "(one) => Number(one.dataset.time) === last)",
        arg=last,
    )
    assert len(set(moments(page))) == 1  # several play together
    assert players.count() in (1, 2) and page.title() != "attacked"


def test_the_theme_is_that_of_the_system_the_address_or_the_button_and_a_phone_suffices(page):
    def shows(paper):
        """Whether the page, and the picture of its first player, come to have this paper."""
        page.wait_for_function(
            """(paper) => {
                const pen = document.querySelector(".rbr-stage canvas").getContext("2d");
                const corner = [...pen.getImageData(1, 1, 1, 1).data.slice(0, 3)].join(", ");
                const page = getComputedStyle(document.body).backgroundColor;
                return [page, `rgb(${corner})`].every((one) => one === paper);
            }""",
            arg=paper,
        )

    light, dark = "rgb(255, 255, 255)", "rgb(17, 17, 17)"
    page.emulate_media(color_scheme="light")
    shows(light)
    page.emulate_media(color_scheme="dark")
    shows(dark)
    page.evaluate("location.hash = '#light'")
    shows(light)
    page.get_by_role("button", name="Dark", exact=True).click()
    shows(dark)
    shown = page.locator(".graph img:visible").evaluate_all(
        "(all) => all.map((one) => one.className)"
    )
    assert shown in ([], ["dark"])
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_a_rank_does_is_written_beside_its_bar(page):
    """The name of a piece may have 20 letters, and "never finished" has 14."""
    page.evaluate("""() => {
        const write = CanvasRenderingContext2D.prototype.fillText;
        window.ends = [];
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y, most = Infinity) {
            const room = Math.min(this.measureText(text).width, most);
            if (this.textAlign === "left" && x < 92) window.ends.push(x + room);
            write.call(this, text, x, y, most);
        };
    }""")
    page.locator(".rbr-stage").first.focus()
    for key in ("Home", *["n"] * 8, "End"):
        page.keyboard.press(key)
    page.wait_for_function("window.ends.length > 0")
    assert page.evaluate("Math.max(...window.ends)") < 92


# What a screen reader is told, and how the keys work for it


@pytest.fixture(scope="module")
def told_run():
    return simlib.simulate(around, 4)


@pytest.fixture
def open_page(chromium, told_run, tmp_path):
    """``open_page(**options of the browser's context)``: the page of a run."""
    path, contexts = told_run.to_html(tmp_path / "run.html"), []

    def open_it(**options):
        contexts.append(chromium.new_context(offline=True, **options))
        page = contexts[-1].new_page()
        page.goto(path.as_uri())
        page.wait_for_selector(".rbr-player[data-time]")
        return page

    yield open_it
    for context in contexts:
        context.close()


def spoken(page):
    """What a screen reader has been told without being asked, last."""
    return page.locator("[aria-live=polite]").text_content()


def test_the_player_is_a_figure_with_the_text_of_its_run_and_named_controls(open_page, told_run):
    page = open_page()
    tree = page.locator("main").aria_snapshot()
    names = ("Play (Space)", "Previous call (P)", "Next call (N)", "Zoom in (+)", "Zoom out (-)")
    for line in (*(f'- button "{name}"' for name in names), '- slider "Moment of the run"'):
        assert line in tree
    assert '- combobox "Speed"' in tree and 'application "Moment of the run: Space plays' in tree
    assert 'button "Call 1 of ' in tree  # an image would have no parts
    figure = page.get_by_role("figure", name=f"Player: {told_run.in_words()}", exact=True)
    assert figure.count() == 1 and "wait for rank" in told_run.in_words()
    assert tree.count("- button") == tree.count('- button "') and "- img" not in tree


def test_a_step_is_spoken_and_playing_is_not(open_page):
    page = open_page()
    page.locator(".rbr-stage").focus()
    page.keyboard.press("Home")
    first = spoken(page)
    assert first.startswith("0") and "rank" in first
    page.keyboard.press("n")
    assert spoken(page) != first
    page.keyboard.press("Home")
    page.get_by_label("Speed").select_option("4")
    page.locator(".rbr-stage").focus()
    page.evaluate("""() => {
        window.said = [];
        const live = document.querySelector("[aria-live=polite]");
        new MutationObserver(() => window.said.push(live.textContent)).observe(
            live, { childList: true, characterData: true, subtree: true });
    }""")
    page.keyboard.press("Space")
    page.locator(".rbr-player[data-state=paused]").wait_for()
    assert len(page.evaluate("window.said")) == 1 and "have returned" in spoken(page)


def test_where_motion_is_to_be_reduced_it_goes_from_call_to_call(open_page):
    page = open_page(reduced_motion="reduce")
    page.get_by_label("Speed").select_option("4")
    page.locator(".rbr-stage").focus()
    page.keyboard.press("Home")
    page.evaluate("""() => {
        window.times = new Set();
        const root = document.querySelector(".rbr-player");
        new MutationObserver(() => window.times.add(Number(root.dataset.time))).observe(
            root, { attributes: true, attributeFilter: ["data-time"] });
    }""")
    page.keyboard.press("Space")
    page.locator(".rbr-player[data-state=paused]").wait_for()
    seen = set(page.evaluate("[...window.times]"))
    calls = {0.0, moments(page)[0]}
    page.keyboard.press("Home")
    while moments(page)[0] < max(seen):
        page.keyboard.press("n")
        calls.add(moments(page)[0])
    assert len(seen) > 2 and seen <= calls


def test_the_focus_is_seen_on_every_control(open_page):
    page = open_page()
    for _ in range(10):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", page.evaluate("document.activeElement.outerHTML")
    assert page.locator(".rbr-player :focus").count() == 1


def test_ranks_are_told_apart_without_their_colours(open_page):
    """Each event names its rank, and what ranks do stands below in words."""
    page = open_page()
    page.locator(".rbr-stage").focus()
    page.keyboard.press("Tab")
    for rank in range(4):
        assert f"rank {rank}: " in page.locator(".rbr-event").get_attribute("aria-label")
        page.keyboard.press("ArrowDown")
    page.locator(".rbr-stage").focus()
    page.keyboard.press("Home")
    assert "rank" in page.locator(".rbr-now").inner_text()


def test_outlines_and_hatches_are_seen_on_the_paper_of_both_themes(open_page):
    script = (FOLDER / "draw.js").read_text(encoding="utf-8")
    fills = [[color, "#ffffff"] for color in map(rank_color, range(24))]
    fills += [[on_dark(color), DARK_PAPER] for color, _ in fills]
    ratios = open_page().evaluate(
        f"(fills) => {{ {script}; return fills.map(([fill, paper]) => Math.min(...[0, 0.25, 0.3]"
        ".map((share) => contrast(visible(fill, paper, share), paper)))); }",
        fills,
    )
    assert len(ratios) == 48 and min(ratios) >= 3
