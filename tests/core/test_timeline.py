"""The pictures: what is drawn, that labels keep apart, that the same run gives the same bytes."""

from __future__ import annotations

import io
import math
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from PIL import Image
from synthetic import RunMaker, all_reduces, ring

from simlib.core.draw.figures import png_of
from simlib.core.draw.palette import OKABE_ITO, mix, rank_color
from simlib.core.draw.run_pictures import draw_traffic
from simlib.core.draw.timeline import draw_timeline
from simlib.core.model.errors import InvalidCallError
from simlib.core.model.trace import Group


def labels_of(figure):
    """The words written between or in the lanes."""
    return [text.get_text() for text in figure.axes[0].texts]


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].texts]


def words_of(figure):
    return " ".join(text.get_text() for text in figure.texts)


def boxes_of(figure):
    """All filled quadrilaterals of the lanes: (fill colour, x0, x1, row)."""
    found = []
    for drawn in figure.axes[0].collections:
        if isinstance(drawn, PolyCollection) and drawn.get_zorder() == 3:
            for path, color in zip(drawn.get_paths(), drawn.get_facecolors(), strict=True):
                (x0, y0), (x1, y1) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                name = matplotlib.colors.to_hex(color)
                found.append((name, round(x0, 6), round(x1, 6), round((y0 + y1) / 2)))
    return found


def stuck():
    """Both receive first; rank 2 sent to nobody and left; rank 3 joins a collective alone."""
    maker = RunMaker(4)
    maker.recv(0, 1, 20, 20, None)
    maker.recv(1, 0, 25, 25, None)
    maker.send(2, 3, 30, None, 40, async_op=True)
    maker.collective("all_reduce", {3: (45, 45, None)})
    maker.spans = [(0, None), (0, None), (0, 100), (0, None)]
    return maker.run()


CASES = {
    "one op": lambda: ring(2),
    "no ops": lambda: RunMaker(4).run(),
    "4 ranks": lambda: ring(4, 3),
    "8 ranks": lambda: ring(8),
    "16 ranks": lambda: ring(16, 2),
    "64 ranks": lambda: ring(64),
    "1,000 ops": lambda: ring(4, 125),
    "collectives": lambda: all_reduces(4, 3),
    "collectives, 16 ranks": lambda: all_reduces(16, 6),
    "collectives, 64 ranks": lambda: all_reduces(64, 5),
    "stuck": stuck,
}


@pytest.mark.parametrize("name", CASES)
def test_labels_keep_apart_and_inside(name):
    figure = draw_timeline(CASES[name]())
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    axes = figure.axes[0].get_window_extent(renderer)
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    for i, box in enumerate(boxes):
        assert axes.x0 - 1 <= box.x0 and box.x1 <= axes.x1 + 1
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_rank_0_is_on_top_and_each_rank_has_its_colour():
    figure = draw_timeline(ring(4))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["rank 0", "rank 1", "rank 2", "rank 3"]
    low, high = figure.axes[0].get_ylim()
    assert low > high
    own = {color.lower() for color in OKABE_ITO}
    spans = {row: fill for fill, _, _, row in boxes_of(figure) if fill in own}
    assert spans == {rank: OKABE_ITO[rank].lower() for rank in range(4)}
    colors = [rank_color(rank) for rank in range(24)]
    assert colors[:8] == list(OKABE_ITO)
    assert len(set(colors)) == 24 and rank_color(24) == colors[0]
    # The title leaves the time to the axis.
    assert "main on 4 real ranks" in [text.get_text() for text in figure.texts]


def test_waits_spans_and_arrows_are_where_the_trace_has_them():
    maker = RunMaker(2)
    maker.send(0, 1, 30, 30, 62)
    maker.recv(1, 0, 10, 10, 60)
    maker.spans = [(0, 70), (3, 66)]
    figure = draw_timeline(maker.run())
    axes = figure.axes[0]
    assert axes.get_xlabel() == "time (us)"
    boxes = {0: [], 1: []}
    for fill, x0, x1, row in boxes_of(figure):
        boxes[row].append((fill, x0, x1))
    light = [mix(color, "#ffffff", 0.55) for color in OKABE_ITO[:2]]
    # Each from the moment at which both have called: the receiver has waited for that.
    assert boxes[0] == [(OKABE_ITO[0].lower(), 0, 70), (light[0], 30, 62)]
    assert boxes[1] == [(OKABE_ITO[1].lower(), 3, 66), ("#ffffff", 10, 30), (light[1], 30, 60)]
    assert legend_of(figure) == ["computing", "waiting", "transferring", "message"]
    assert sorted(labels_of(figure)) == ["4 B", "recv(src=0)", "send(dst=1)"]
    # The arrow leads from the call to the end of the receive.
    heads = [c for c in axes.collections if isinstance(c, PolyCollection) and c.get_zorder() == 7]
    shafts = [c for c in axes.collections if isinstance(c, LineCollection) and c.get_zorder() == 6]
    tip = heads[0].get_paths()[0].vertices[0]
    start = shafts[0].get_segments()[0][0]
    assert tip[0] == pytest.approx(60) and 0.5 < tip[1] < 1
    assert start[0] == pytest.approx(30) and 0 < start[1] < 0.5


def test_an_async_op_leaves_its_rank_computing():
    maker = RunMaker(2)
    maker.send(0, 1, 10, 60, 80, async_op=True)
    maker.recv(1, 0, 20, 20, 70)
    figure = draw_timeline(maker.run())
    assert "async op in flight" in legend_of(figure)
    assert (0, 100, 0) in [box[1:] for box in boxes_of(figure)]
    assert "wait: isend(dst=1)" in labels_of(figure)


def test_what_never_ended_has_a_cross_and_a_lost_message_a_stub():
    figure = draw_timeline(stuck())
    assert legend_of(figure)[-2:] == ["not received", "never finished"]
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert list(crosses[0].get_ydata()) == [0, 1, 3]
    assert "all_reduce(SUM)" in labels_of(figure)


def test_a_collective_is_labelled_once_with_kind_bytes_and_who_is_missing():
    assert labels_of(draw_timeline(all_reduces(4))) == ["all_reduce(SUM)  4 B"]
    maker = RunMaker(4)
    evens = Group("group 1", (0, 2))
    maker.collective("broadcast", {r: (10, 10, 90) for r in evens.ranks}, evens, peer=0, numel=500)
    maker.collective("barrier", {r: (20, 20, None) for r in (1, 3)}, nbytes=0)
    labels = labels_of(draw_timeline(maker.run()))
    assert sorted(labels) == ["barrier  (2 of 4 ranks)", "broadcast(src=0)  2 kB"]


def test_names_stand_upright_only_where_they_are_few():
    for count in (2, 20):  # long enough for an upright name, and not for a level one
        maker = RunMaker(4)
        for start in range(0, 1000, 1000 // count):
            maker.collective("all_reduce", {r: (start, start, start + 30) for r in range(4)})
        maker.spans = [(0, 1000)] * 4
        texts = draw_timeline(maker.run()).axes[0].texts
        assert (count == 2) == any(text.get_rotation() == 90 for text in texts) == bool(texts)


def test_a_crowded_picture_says_what_it_leaves_out():
    figure = draw_timeline(ring(4, 125))
    words = words_of(figure)
    assert "arrows show the first 120 of 500 messages" in words
    assert "each pixel of a lane shows what its rank did most" in words
    assert "did not record" not in words
    maker = RunMaker(2)
    assert "did not record 1,200 further ops" in words_of(draw_timeline(maker.run(dropped=1200)))


def test_a_crowded_lane_shows_the_larger_share():
    maker = RunMaker(2)
    for i in range(400):  # rank 0 blocked 90 % of the first half, 10 % of the second
        length = 0.225 if i < 200 else 0.025
        maker.send(0, 1, i * 0.25, i * 0.25, i * 0.25 + length)
    figure = draw_timeline(maker.run())
    waits = [box for box in boxes_of(figure) if box[0] not in ("#0072b2", "#e69f00")]
    assert sum(x1 - x0 for _, x0, x1, _ in waits if x0 < 49) > 40
    assert sum(x1 - x0 for _, x0, x1, _ in waits if x0 > 51) < 10


def test_options_choose_ranks_time_and_width():
    run = ring(8, 4)
    figure = draw_timeline(run, ranks=[5, 4], between=(100e-6, 200e-6), width=6)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 5", "rank 4"]
    assert axes.get_xlim() == pytest.approx((99, 201))
    assert figure.get_size_inches()[0] == 6
    low, high = draw_timeline(run, between=(50e-6, math.inf)).axes[0].get_xlim()
    assert low == pytest.approx(46.5, abs=0.1) and high == pytest.approx(
        1e6 * run.trace.end_s, 0.01
    )
    whole = draw_timeline(run, between=(-math.inf, math.inf)).axes[0].get_xlim()
    assert whole == draw_timeline(run).axes[0].get_xlim()
    with pytest.raises(InvalidCallError, match="rank 9 is not in this run of 8 ranks"):
        draw_timeline(run, ranks=[9])
    with pytest.raises(InvalidCallError, match="between"):
        draw_timeline(run, between=(2.0, 1.0))


@pytest.mark.parametrize("engine", ["simulated", "replayed"])
@pytest.mark.parametrize(("end_us", "unit"), [(900, "us"), (9e3, "ms"), (9e6, "s")])
def test_the_unit_suits_the_span_and_time_that_no_wall_clock_measured_is_virtual(
    end_us, unit, engine
):
    maker = RunMaker(2)
    maker.spans = [(0, end_us)] * 2
    run = maker.run()
    assert draw_timeline(run).axes[0].get_xlabel() == f"time ({unit})"
    run.engine = engine
    figure = draw_timeline(run)
    assert figure.axes[0].get_xlabel() == f"virtual time ({unit})"
    assert words_of(figure).startswith(f"main on 2 {engine} ranks")


def test_in_lanes_too_thin_for_an_outline_the_fill_alone_tells_what_a_rank_does():
    drawn = [draw_timeline(ring(world_size)) for world_size in (64, 1024)]
    widths = [
        {width for c in figure.axes[0].collections if c.get_zorder() == 3 for width in c.get_lw()}
        for figure in drawn
    ]
    assert widths == [{0.6}, {0.0}]
    assert words_of(drawn[1]).startswith("main on 1,024 real ranks")
    waiting = matplotlib.colors.to_hex(mix(rank_color(0), "#ffffff", 0.85))
    assert waiting in {color for color, *_ in boxes_of(drawn[1])}


DARK = {
    **{"figure.facecolor": "black", "text.color": "white", "font.family": "monospace"},
    **{"font.size": 20, "savefig.facecolor": "black"},
}


def test_png_is_small_white_and_repeatable_under_any_theme_and_pyplot_is_left_alone():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums(), dict(matplotlib.rcParams)
    run = ring(4, 2)
    first = run.timeline()._repr_png_()
    assert first == png_of(run.timeline())
    with matplotlib.rc_context(DARK):
        assert run._repr_png_() == first
    assert len(first) < 60_000
    image = Image.open(io.BytesIO(first))
    assert image.size[0] == 990 and image.convert("RGB").getpixel((1, 1)) == (255, 255, 255)
    png_of(draw_traffic(run))
    assert (pyplot.get_fignums(), dict(matplotlib.rcParams)) == before


def test_traffic_shows_every_byte_with_labelled_axes():
    run = ring(4, 3, numel=1000)
    figure = draw_traffic(run)
    axes, bar = figure.axes
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("src (rank)", "dst (rank)")
    assert bar.get_ylabel() == "sent point-to-point (kB)"
    assert np.array_equal(axes.images[0].get_array() * 1000, run.traffic)
    assert [text.get_text() for text in axes.texts] == ["12"] * 4


def test_traffic_without_room_or_without_messages_has_no_numbers():
    assert not draw_traffic(ring(64)).axes[0].texts
    empty = draw_traffic(RunMaker(3).run())
    assert labels_of(empty) == ["no point-to-point\nmessages"]
    (text,) = labels_of(draw_traffic(all_reduces(4)))
    assert text.endswith("collectives are not\ncounted here")


INTERRUPTED = """
import importlib.abc, signal, sys
import simlib.draw

class Interrupter(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "matplotlib.rcsetup":  # its package is being imported, and half there
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
try:
    simlib.draw.png_of
except KeyboardInterrupt:
    print("interrupted")
run = simlib.Run("main", simlib.Trace(1, [], [(0.0, 1.0)]), [None], [""])
figure = simlib.draw.draw_timeline(run)
print(simlib.draw.png_of(figure)[1:4])
"""


def test_an_interrupt_while_matplotlib_is_imported_leaves_it_whole():
    command = [sys.executable, "-c", INTERRUPTED]
    printed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert printed.stdout == "interrupted\nb'PNG'\n", printed.stderr
