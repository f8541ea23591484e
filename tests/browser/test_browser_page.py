"""Saved runs opened from a folder, without a network: they play, scrub, and answer to keys."""

import pytest
import torch
import torch.distributed as dist

import simlib


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


@pytest.fixture(params=MAKES)
def page(request, chromium, tmp_path):
    """A saved run in a browser that has no network; nothing it says may be an error."""
    path = MAKES[request.param]().to_html(tmp_path / f"{request.param}.html")
    context = chromium.new_context(offline=True, viewport={"width": 1100, "height": 900})
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda one: asked.append(one.url))
    page.goto(path.as_uri())
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


def test_the_theme_is_that_of_the_system_the_address_or_the_button(page):
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


def test_a_page_fits_a_phone(page):
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
