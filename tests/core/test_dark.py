"""Dark variants: on dark paper every picture is readable, and its light one is as it was."""

import base64
import io
import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist
from kernel_client import kernel_with
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from PIL import Image

import simlib
from simlib import labs
from simlib.core.draw.dark import (
    CHUNK,
    FEW,
    SEEN,
    DarkCanvas,
    WithDarkVariant,
    dark_variant,
    has_dark_variant,
    with_variant,
)
from simlib.core.draw.figures import PAPER, Picture, on_canvas, pixels_of, png_of
from simlib.core.draw.palette import DARK_PAPER, contrast, mix, on_dark, rank_color
from simlib.core.draw.player.scene import scene_of
from simlib.core.draw.states import COMPUTED, own_color
from simlib.core.draw.timeline import HATCH
from simlib.course.labs.pen import readable_on
from simlib.course.labs.rounds import PARTIAL

RANKS = range(24)
SHARES = (0.15, 0.25, 0.3, 0.35, 0.55, 0.6, 0.72, 0.85)


def channels(color):
    return np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])


def seen(color):
    """A colour in CIELAB, where distances are as they are seen."""
    level = channels(color) / 255
    linear = np.where(level > 0.04045, ((level + 0.055) / 1.055) ** 2.4, level / 12.92)
    to_xyz = [[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8729]]
    x, y, z = np.cbrt(to_xyz @ linear)
    return np.array([116 * y, 500 * (x - y), 200 * (y - z)])


def image_of(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def drawn(figure):
    """The pixels of a figure on light paper and on dark paper, as they are drawn."""
    light = pixels_of(FigureCanvasAgg(figure)).copy()
    with on_canvas(figure, DarkCanvas) as canvas:
        return light, pixels_of(canvas).copy()


def work(rank, world_size):
    x = torch.zeros(500_000)
    simlib.compute(seconds=0.01 * (rank + 1))
    request = dist.isend(x, dst=(rank + 1) % world_size)
    dist.recv(torch.zeros(500_000), src=(rank - 1) % world_size)
    request.wait()
    dist.all_reduce(x)


@pytest.fixture(scope="module")
def run():
    return simlib.simulate(work, world_size=9)


@pytest.fixture(scope="module")
def pictures(run):
    """By name: PNG, pixels on light and on dark paper."""
    cluster = simlib.clusters.ethernet_1g(nodes=8)
    scaling = simlib.scale.strong_scaling([1, 2, 8], 1e8, cluster, forward_s=0.1, backward_s=0.2)
    points = [(4**k, 3e-5 + 4**k / 1e9) for k in range(1, 12)]
    figures = {
        "timeline": run.timeline(),
        "heat map": run.heat_map(),
        "rounds": labs.draw_rounds("ring", 8, 14),
        "crossover": labs.draw_crossover(),
        "ping-pong": labs.draw_ping_pong(points),
        "scaling": scaling.draw(),  # laid out by matplotlib
    }
    return {name: (png_of(figure), *drawn(figure)) for name, figure in figures.items()}


# Colours


def test_ranks_keep_their_colours_and_all_24_are_seen_and_told_apart():
    colors = [on_dark(rank_color(rank)) for rank in RANKS]
    assert on_dark(PAPER) == DARK_PAPER
    assert colors[:7] == [rank_color(rank).lower() for rank in range(7)]
    assert min(contrast(color, DARK_PAPER) for color in colors) > 3
    # 2.3 is what an eye can just tell; on light paper the nearest two are 13 apart.
    nearest = min(np.linalg.norm(seen(a) - seen(b)) for a, b in itertools.combinations(colors, 2))
    assert nearest > 9


def test_numbers_in_cells_are_readable():
    for share, rank in itertools.product((0.0, PARTIAL), range(8)):  # of rounds
        fill = mix(rank_color(rank), PAPER, share)
        ink = readable_on(fill)
        assert contrast(on_dark(ink), on_dark(fill)) >= min(4.5, 0.95 * contrast(ink, fill)), rank
    states = [torch.tensor([float(rank)]) for rank in range(8)]
    run = simlib.Run("main", simlib.Trace(8), [(s, s) for s in states], [""] * 8)
    texts = simlib.draw.draw_states(run).axes[0].texts
    numbers = [text for text in texts if text.get_text() in "01234567"]
    assert len(numbers) == 16
    for number in numbers:
        fill = own_color(int(number.get_text()))
        assert contrast(on_dark(to_hex(number.get_color())), on_dark(fill)) >= 4.5
    assert on_dark(COMPUTED) == DARK_PAPER


def test_a_pale_colour_is_as_near_to_dark_paper_as_it_was_to_light():
    for share, rank in itertools.product(SHARES, range(16)):  # of the last eight some look the same
        wanted = mix(on_dark(rank_color(rank)), DARK_PAPER, share)
        found = on_dark(mix(rank_color(rank), PAPER, share))
        assert abs(channels(wanted) - channels(found)).max() <= 12, (share, rank, found, wanted)


# Pictures


def test_a_dark_variant_shows_what_was_drawn_on_dark_paper(pictures):
    for name, (png, light, dark) in pictures.items():
        variant = image_of(dark_variant(png))
        paper = np.bincount(variant[..., 0].ravel(), minlength=256)
        assert paper.argmax() == 0x11 and (variant[0, 0] == 0x11).all(), name
        misses = np.abs(variant.astype(int) - dark)
        assert (misses > SEEN).mean() <= FEW and (misses > 32).mean() < 1e-3, name
        away, too = (
            np.abs(pixels.astype(int) - paper).max(axis=-1) > 8
            for pixels, paper in ((light, 0xFF), (dark, 0x11))
        )
        assert (away == too).mean() > 0.995, name  # the same shapes


def test_the_light_picture_is_as_it_was_and_the_file_little_larger(pictures):
    for name, (png, light, _) in pictures.items():
        method, dither = Image.Quantize.MEDIANCUT, Image.Dither.NONE
        before = Image.fromarray(light).quantize(256, method=method, dither=dither)
        if name != "rounds":  # its type on full colours needs some room in the palette
            assert np.array_equal(image_of(png), before.convert("RGB")), name
        misses = np.abs(image_of(png).astype(int) - light)
        assert (misses > 32).mean() < 1e-3, name
        assert 0 < len(png) - png.rindex(CHUNK) < len(png) / 6, name


def test_a_figure_is_laid_out_once():
    class Counted(ConstrainedLayoutEngine):
        times = 0

        def execute(self, fig):
            Counted.times += 1
            return super().execute(fig)

    engine = Counted()
    figure = Picture(layout=engine)
    figure.subplots()
    png_of(figure)
    assert Counted.times == 1 and figure.get_layout_engine() is engine


def test_hatching_and_what_shines_through_are_seen_on_dark_paper():
    figure, looks = Picture(figsize=(1, 1)), {"linewidth": 0, "hatch": HATCH}
    hatch = mix(rank_color(0), PAPER, 0.35)
    figure.add_artist(Rectangle((0, 0), 1, 1, facecolor=PAPER, hatchcolor=hatch, **looks))
    light, dark = drawn(figure)
    lines = (light != 0xFF).any(axis=-1)
    assert 0.1 < lines.mean() < 0.6
    assert (np.abs(dark[lines].astype(int) - 0x11).max(axis=-1) > 20).mean() > 0.8
    figure = Picture(figsize=(1, 1))
    figure.add_artist(Rectangle((0.2, 0.2), 0.5, 0.5, fill=False, ec="black", lw=40, alpha=0.5))
    assert np.abs(drawn(figure)[1][50, 50].astype(int) - (0x11 + 0xFF) / 2).max() <= 2


def test_a_picture_is_saved_light_or_dark_and_the_player_has_the_same_colours(run, tmp_path):
    figure = run.timeline()
    for dark, level in ((False, 255), (True, 0x11), (False, 255)):
        figure.savefig(tmp_path / "picture.png", dark=dark)
        assert image_of((tmp_path / "picture.png").read_bytes())[0, 0].tolist() == [level] * 3
    lanes = scene_of(run)["lanes"]
    assert [lane["on_dark"] for lane in lanes] == [on_dark(rank_color(r)) for r in range(9)]
    assert lanes[7]["on_dark"] == "#ffffff"  # its black would not be seen


# The file


def test_readers_of_png_may_pass_over_the_variant():
    """Not critical, private, and to be dropped by whoever changes the pixels: see the standard."""
    light, dark = (io.BytesIO() for _ in range(2))
    Image.new("RGB", (3, 2), "white").save(light, format="png")
    Image.new("RGB", (3, 2), "black").save(dark, format="png")
    both = with_variant(light.getvalue(), dark.getvalue())
    assert dark_variant(both) == dark.getvalue() and dark_variant(light.getvalue()) is None
    assert [letter.isupper() for letter in CHUNK.decode()] == [False, False, True, True]
    image = Image.open(io.BytesIO(both))
    image.load()  # which checks the sums of its chunks
    assert image.private_chunks[0][0] == CHUNK and both.endswith(light.getvalue()[-12:])
    assert np.array_equal(image.convert("RGB"), image_of(light.getvalue()))


@pytest.mark.parametrize("words", ["", "a", "some words"])
def test_a_picture_of_few_colours_has_a_variant(words):
    figure = Picture(figsize=(1, 1))
    figure.text(0.2, 0.5, words)
    assert image_of(dark_variant(png_of(figure)))[0, 0].tolist() == [0x11] * 3


# The learner's own figures


def test_photographs_and_figures_that_are_dark_stay_as_they_are():
    def has(color, image=None):
        figure = Figure(facecolor=color)
        if image is not None:
            figure.subplots().imshow(image)
        return has_dark_variant(figure)

    assert has("white") and has("white", np.eye(3))
    assert not has("black") and not has("none") and not has("white", np.zeros((3, 3, 3)))
    figure = Figure(facecolor="white")
    figure.figimage(np.zeros((4, 4, 3)))
    assert not has_dark_variant(figure)


def test_a_notebook_shows_every_figure_with_its_variant():
    """Also where pyplot has been used before simlib, and where its settings change."""
    setup = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nimport simlib"
    with kernel_with(setup=setup) as kernel:
        for cell in (
            "plt.plot([1, 2])\nplt.show()",
            "from simlib import labs\nlabs.draw_crossover()",
            "%config InlineBackend.figure_formats = ['retina']\nplt.plot([1, 2]);",
        ):
            _, error, displays = kernel.finish(kernel.start(cell))
            assert error is None, error
            shown = base64.b64decode(displays[-1][1]["image/png"])
            light, dark = image_of(shown), image_of(dark_variant(shown))
            assert light[0, 0].tolist() == [255] * 3 and dark[0, 0].tolist() == [0x11] * 3
            assert light.shape == dark.shape
            is_ours = "labs" in cell  # as small as without pyplot
            assert (Image.open(io.BytesIO(shown)).mode == "P") == is_ours


def test_a_figure_whose_variant_cannot_be_drawn_is_shown_as_it_is():
    def printer(shown):
        if isinstance(shown.canvas, DarkCanvas):
            raise ValueError("this artist knows Agg alone")
        return "light"

    assert WithDarkVariant(printer)(Figure()) == "light"


# Labs


def test_a_lab_is_drawn_for_its_page():
    lab = labs.rounds_lab("ring", 3)
    light = lab.image.value
    lab._theme.dark = True
    assert image_of(lab.image.value)[0, 0].tolist() == [0x11] * 3
    lab.controls["rounds_done"].value = 2
    assert np.array_equal(image_of(lab.image.value), drawn(labs.draw_rounds("ring", 3, 2))[1])
    assert labs.rounds_lab("ring", 3)._theme.dark  # as what the page told last
    lab.controls["rounds_done"].value = 0
    lab._theme.dark = False
    assert lab.image.value == light
    lab.draw_ahead("n")
    for dark in (True, False):  # what was drawn ahead is drawn ahead again
        lab._theme.dark = dark
        misses = lab._picture.cache_info().misses
        lab.controls["n"].value += 1
        assert lab._picture.cache_info().misses == misses
