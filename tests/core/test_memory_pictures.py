"""Pictures of what ranks hold: every byte is in a bar, every part and example in its cell."""

import pytest
from matplotlib import rcParams
from matplotlib.colors import to_hex

import simlib
from simlib.core.draw import draw_memory, draw_memory_history, draw_parts
from simlib.core.draw.figures import png_of
from simlib.core.draw.palette import mix, rank_color
from simlib.core.model.errors import InvalidCallError
from simlib.core.model.ledger import CATEGORIES, Ledger

PEAKS = [(4_000, 4_000, 8_000, 500), (2_000, 0, 0, 1_500)]


def run_with(results=(None,), peaks=()):
    """A run whose ranks returned these and held these."""
    run = simlib.Run("main", simlib.Trace(len(results)), results, [""] * len(results))
    held = [dict(zip(CATEGORIES, peak, strict=True)) for peak in peaks]
    run.memory = [Ledger(rank, {}, one, 0.0, []) for rank, one in enumerate(held)]
    return run


def bars(axes):
    """``[(rank, from, to)]`` of all boxes, in the order of drawing."""
    boxes = axes.patches
    return [(round(b.get_center()[0]), b.get_y(), b.get_y() + b.get_height()) for b in boxes]


def test_a_bar_has_a_box_for_each_category_one_on_the_other():
    axes = draw_memory(run_with([None] * 2, PEAKS)).axes[0]
    assert bars(axes) == [
        (0, 0, 4), (0, 4, 8), (0, 8, 16), (0, 16, 16.5),
        (1, 0, 2), (1, 2, 2), (1, 2, 2), (1, 2, 3.5),
    ]  # fmt: skip
    assert axes.get_ylabel() == "held at the peak (kB)"
    assert [text.get_text() for text in axes.texts] == ["16.5 kB", "3.5 kB"]
    assert to_hex(axes.patches[0].get_facecolor()) == rank_color(0).lower()
    assert to_hex(axes.patches[4].get_facecolor()) == rank_color(1).lower()
    hatches = [box.get_hatch() for box in axes.patches[:4]]
    assert hatches == [None, None, "////", "...."]


def test_the_limit_is_a_line_across_all_panels_and_in_the_key():
    runs = {"one": run_with([None] * 2, PEAKS), "two": run_with(peaks=PEAKS[1:])}
    figure = draw_memory(runs, limit_bytes=12_000)
    for axes, title in zip(figure.axes, runs, strict=True):
        assert axes.get_title(loc="left") == title
        assert 12.0 in [line.get_ydata()[0] for line in axes.lines if len(line.get_ydata())]
    key = [text.get_text() for text in figure.legends[0].get_texts()]
    assert key[0] == "device: 12 kB"
    assert key[1:] == [name.replace(" and ", "\nand ") for name in reversed(CATEGORIES)]


def test_a_number_does_not_hide_a_limit_and_one_far_above_is_in_sight():
    runs = {"it": run_with([None] * 2, PEAKS)}  # 16.5 kB and 3.5 kB
    for limit_bytes, feet in ((16_600, [16.6, 3.5]), (16_400, [16.5, 3.5]), (50_000, [16.5, 3.5])):
        axes = draw_memory(runs, limit_bytes).axes[0]
        assert [text.xy[1] for text in axes.texts] == feet
        assert axes.get_ylim()[1] > limit_bytes / 1000


def test_refusals():
    with pytest.raises(ValueError, match="main has no memory ledger: simulate the program on a"):
        draw_memory(run_with())
    with pytest.raises(InvalidCallError, match="no memory ledger"):
        draw_memory_history(run_with())
    with pytest.raises(InvalidCallError, match="by='rank' is not possible"):
        draw_memory_history(run_over_time(), by="rank")


def cells(figure):
    """By panel row: the filled heights of its cells, with the colour of those filled at all."""
    boxes = figure.axes[0].patches
    filled = [box for box in boxes if to_hex(box.get_facecolor(), True) != "#00000000"]
    return [(round(b.get_height() / 0.86, 3), to_hex(b.get_facecolor())) for b in filled]


def test_parts_and_examples_are_filled_where_a_rank_has_them():
    whole = run_with([({1: 400, 2: 80}, [0]), ({1: 400, 2: 80}, [1])])
    split = run_with([({1: 400}, [0, 1]), ({2: 40}, [0, 1])])
    figure = draw_parts({"data": whole, "model": split})
    blue, orange = (mix(rank_color(rank), "#ffffff", 0.25) for rank in range(2))
    assert cells(figure) == [
        (1, blue), (1, blue), (1, blue), (0, blue),
        (1, orange), (1, orange), (0, orange), (1, orange),
        (1, blue), (0, blue), (1, blue), (1, blue),
        (0, orange), (0.5, orange), (1, orange), (1, orange),
    ]  # fmt: skip
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown[:5] == ["data", "parameters", "examples", "rank 0", "rank 1"]
    assert shown[5:9] == ["1", "2", "0", "1"]


@pytest.mark.parametrize("draw", [draw_memory, lambda run: draw_parts({"it": run})])
def test_png_is_white_and_repeatable_under_any_theme(draw, monkeypatch):
    run = run_with([({"a": 4}, [0]), ({"a": 4}, [1])], PEAKS)
    first = png_of(draw(run))
    monkeypatch.setitem(rcParams, "axes.facecolor", "black")
    monkeypatch.setitem(rcParams, "text.color", "white")
    assert png_of(draw(run)) == first == draw(run)._repr_png_()


def run_over_time(world_size=1):
    """A rank that takes 4 kB at 0 s and 8 kB at 1 s, gives 4 kB back at 3 s, and returns at 4 s."""
    held = [dict.fromkeys(CATEGORIES, 0) | {"gradients": n} for n in (4_000, 12_000, 8_000)]
    run = run_with([None] * world_size)
    run.trace.spans = [(0.0, 4.0)] * world_size
    history = list(zip((0.0, 1.0, 3.0), held, strict=True))
    run.memory = [Ledger(rank, held[-1], held[1], 1.0, history) for rank in range(world_size)]
    return run


def test_the_history_is_what_was_held_until_something_changed():
    (axes,) = draw_memory_history(run_over_time()).axes
    layers = [drawn.get_paths()[0].get_extents() for drawn in axes.collections]
    assert [(box.y0, box.y1) for box in layers] == [(0, 0), (0, 12), (4, 12), (4, 12)]
    corners = {tuple(corner) for corner in axes.collections[1].get_paths()[0].vertices}
    assert {(1, 4), (1, 12), (3, 12), (3, 8), (4, 8)} <= corners
    assert axes.get_title(loc="left") == "main: held (kB)"
    assert [text.get_text() for text in axes.texts] == ["12 kB at the peak"]


def test_the_history_by_dtype_has_a_layer_for_each_and_one_for_the_rest():
    run = run_over_time()
    whole = run.memory[0]
    for dtype, part in {"bfloat16": 2, "int64": 4, "uint8": 4}.items():
        history = [(s, {name: n // part for name, n in held.items()}) for s, held in whole.history]
        whole.by_dtype[dtype] = Ledger(0, history[-1][1], history[1][1], 1.0, history)
    figure = draw_memory_history(run, by="dtype")
    boxes = [drawn.get_paths()[0].get_extents() for drawn in figure.axes[0].collections]
    assert [(box.y0, box.y1) for box in boxes] == [(0, 6), (2, 12)]
    assert [text.get_text() for text in figure.legends[0].texts] == ["other dtypes", "bfloat16"]


def test_of_many_ranks_the_history_shows_the_first_and_says_so():
    figure = draw_memory_history(run_over_time(9), limit_bytes=20_000)
    assert [axes.get_ylabel() for axes in figure.axes] == [f"rank {rank}" for rank in range(8)]
    assert figure.axes[0].get_title(loc="left").endswith("the first 8 of 9 ranks")
    assert all(20.0 in [line.get_ydata()[0] for line in axes.lines] for axes in figure.axes[1:])
