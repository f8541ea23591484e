"""In a real browser: how smoothly the player plays, how soon a lab's picture follows its slider."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.lab_server import (
    copied_course,
    launched,
    running_lab,
    start_page,
    write_notebook,
)
from tests.browser.notebook_page import NotebookPage

from .table import heading, line, spread

GOAL_FRAME_MS = 1000 / 30
GOAL_DRAG_MS = 200
WATCHED_S = 3

RING = """\
import simlib, torch
import torch.distributed as dist

def ring(rank, world_size):
    mine, left = torch.zeros(1000), torch.zeros(1000)
    for _ in range(125):
        request = dist.isend(mine, dst=(rank + 1) % world_size)
        dist.recv(left, src=(rank - 1) % world_size)
        request.wait()
        simlib.compute(seconds=1e-5 * (1 + rank))

run = simlib.simulate(ring, world_size=4)
run.play()
"""

READY = """\
import ipywidgets as widgets
from simlib import labs
from simlib.draw.figures import png_of

points = [(4 * 4**k, 30e-6 + 4 * 4**k / 1.25e9) for k in range(11)]
runs = labs.simulate_sizes(ring, cluster=simlib.clusters.ethernet_1g(nodes=8))
pictures = {ranks: png_of(runs[ranks, 1].timeline(between=(0, 1e-3))) for ranks in range(2, 9)}

def control():
    slider = widgets.IntSlider(min=2, max=8, value=2, continuous_update=True)
    image = widgets.Image(value=pictures[2], format="png")
    slider.observe(lambda change: setattr(image, "value", pictures[change.new]), names="value")
    return widgets.VBox([slider, image])
"""
CONTROL = "  control: the picture is ready"
LABS = {
    "rounds of an all_reduce": 'labs.rounds_lab("ring", 8)',
    "all_reduces by size": "labs.crossover_lab()",
    "all_reduces by size, 8 ranks a node": "labs.crossover_lab(8, 8)",
    "ping-pong": "labs.ping_pong_lab(points)",
    "timeline by ranks": "labs.world_size_lab(runs, 4)",
    CONTROL: "control()",
}
SHARES = (0.3, 0.7)  # of a slider's way, from one to the other and back

FRAMES = """\
(seconds) => new Promise((done) => {
    const stamps = [];
    const step = (now) => {
        stamps.push(now);
        if (now - stamps[0] < 1000 * seconds) return requestAnimationFrame(step);
        done(stamps.slice(1).map((t, i) => t - stamps[i]));
    };
    requestAnimationFrame(step);
})"""

FROM_MOVE_TO_PICTURE = """\
(image) => {
    let moved;
    document.addEventListener("pointermove", (e) => { moved = e.timeStamp; },
                              { capture: true, once: true });
    window.rbrFollowed = new Promise((done) => image.addEventListener(
        "load", () => done(performance.now() - moved), { once: true }));
}"""
FOLLOWED = """\
() => Promise.race([window.rbrFollowed, new Promise((_, fail) => setTimeout(
    () => fail(new Error("a slider was dragged, and its picture stays as it is")), 20000))])"""


def frames(page):
    """Milliseconds between frames, for some seconds, and of work of the page per frame."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def busy_s():
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(m["value"] for m in metrics if m["name"] == "TaskDuration")

    before = busy_s()
    between = page.evaluate(FRAMES, WATCHED_S)
    return between, [1000 * (busy_s() - before) / len(between)]


def measure_player(page, rounds):
    """``{name: (ms between frames, ms of work per frame)}``: idle, playing, playing zoomed in."""
    found = {name: ([], []) for name in ("idle", "all of it", "zoomed in 8 times")}
    stage = page.root.locator(".rbr-stage")
    for _ in range(rounds):
        for name, (between, work) in found.items():
            stage.focus()
            page.lab.keyboard.press("0")
            if name.startswith("zoomed"):
                for key in ("Home", "+", "+", "+"):
                    page.lab.keyboard.press(key)
            if name != "idle":
                page.lab.keyboard.press("Home")
                page.lab.keyboard.press("Space")
            more = frames(page.lab)
            between += more[0]
            work += more[1]
            if name != "idle":
                page.lab.keyboard.press("Space")
    return found


def drags(page, number, rounds):
    """Milliseconds from a move of the mouse with a handle to the new picture, of every slider."""
    image = page.outputs(number).locator("img").element_handle()
    found = []
    for slider in page.sliders(number):
        page.drag_slider(slider, SHARES[1])
        handle = slider.locator(".noUi-handle")
        for turn in range(2 * rounds):
            way, box = slider.bounding_box(), handle.bounding_box()
            y = box["y"] + box["height"] / 2
            page.lab.mouse.move(box["x"] + box["width"] / 2, y)
            page.lab.mouse.down()
            page.wait_until_idle()
            page.lab.evaluate(FROM_MOVE_TO_PICTURE, image)
            page.lab.mouse.move(way["x"] + SHARES[turn % 2] * way["width"], y)
            found.append(page.lab.evaluate(FOLLOWED))
            page.lab.mouse.up()
    return found


def browsing(rounds):
    """Print the table of what a browser shows how soon."""
    heading("In a browser")
    if not shutil.which("chromium"):
        line("not measured: install the system package chromium", "")
        return
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        course = copied_course(Path(folder))
        write_notebook(course / "notebooks" / "bench.ipynb", [RING, READY, *LABS.values()])
        with running_lab(course) as address:
            browser = launched(playwright)
            page = NotebookPage(start_page(browser, address), "notebooks/bench.ipynb")
            page.run_all()
            assert page.errors() == []
            found = measure_player(page, rounds)
            followed = {name: drags(page, 2 + n, rounds) for n, name in enumerate(LABS)}
            browser.close()
    for name in ("all of it", "zoomed in 8 times"):
        between, work = found[name]
        held = statistics.median(between) <= GOAL_FRAME_MS
        line(
            f"player, 1,000 events, {name}: ms between frames",
            spread(between, digits=1),
            f"<= {GOAL_FRAME_MS:.0f}",
            held,
        )
        line("  work of the page per frame, ms", spread(work, digits=1))
    line("  control: idle, ms between frames", spread(found["idle"][0], digits=1))
    line("  control: idle, work of the page per frame, ms", spread(found["idle"][1], digits=1))
    for name, times in followed.items():
        control = name == CONTROL
        held = None if control else statistics.median(times) <= GOAL_DRAG_MS
        goal = "" if control else f"<= {GOAL_DRAG_MS}"
        what = name if control else f"slider to picture, ms: {name}"
        line(what, spread(times, digits=0), goal, held)
