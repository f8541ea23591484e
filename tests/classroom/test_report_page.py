"""Predicted beside measured: the picture, and a page that needs nothing else."""

import base64
import re

import pytest

from simlib.core.draw import draw_predictions, save_report
from simlib.core.model.errors import InvalidCallError

ROWS = {"a step": (0.011, 0.0112), "a <run>": (34.1, 32.0)}


def test_the_picture_has_both_and_the_miss():
    figure = draw_predictions(ROWS)
    assert figure.in_words().endswith("the measured value by: a step -1.8%; a <run> +6.6%.")
    axes = figure.axes[0]
    bars = [bar.get_width() for bar in axes.patches]
    assert bars == pytest.approx([100 * (0.011 / 0.0112 - 1), 100 * (34.1 / 32 - 1)])
    assert [text.get_text() for text in axes.texts] == [
        "predicted (s)", "measured", "miss",
        "0.011", "0.0112", "-1.8%",
        "34.1", "32", "+6.6%",
    ]  # fmt: skip
    assert [label.get_text() for label in axes.get_yticklabels()] == list(ROWS)
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert ticks == ["-10", "-1", "0", "+1", "+10"]


def test_no_words_of_the_picture_are_cut():
    figure = draw_predictions({"long " * 20: (1e-9, 1e9), **ROWS}, unit="bytes")
    figure.canvas.draw()
    axes = figure.axes[0]
    for text in [*axes.texts, *axes.get_yticklabels(), axes.xaxis.label]:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
        assert box.y0 >= 0 and box.y1 <= figure.bbox.y1


def test_a_page_is_one_file_that_fetches_and_runs_nothing(tmp_path):
    plan = {
        "cut": "dp 2 & tp 2",
        "hours": 40,
        "step": 0.25,
        "<script>": "<script>alert(1)</script>",
    }
    path = save_report(tmp_path / "plan.html", "My <plan>", plan, ROWS, ["a < b", 'a "note"'])
    assert path == tmp_path / "plan.html"
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "My &lt;plan&gt;" in text and "dp 2 &amp; tp 2" in text and "a &lt;run&gt;" in text
    assert "a &lt; b" in text and "a &quot;note&quot;" in text
    assert "http" not in text and "+6.6%" in text and ">0.25<" in text
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert base64.b64decode(picture)[:4] == b"\x89PNG"
    assert save_report(path, "again", {}, ROWS).read_text().count("<h2>") == 2  # no notes


@pytest.mark.parametrize(
    "rows, sentence",
    [
        ({}, "rows has 0 entries: give 1 to 30"),
        ({str(k): (1, 1) for k in range(31)}, "rows has 31 entries"),
        ({"a": 1.0}, r"rows\['a'\] is 1.0: give \(predicted, measured\)"),
        ({"a": (0, 1)}, "predicted of 'a' is 0"),
        ({"a": (1, float("nan"))}, "measured of 'a' is nan"),
    ],
)
def test_what_cannot_be_drawn_is_refused(rows, sentence, tmp_path):
    with pytest.raises(InvalidCallError, match=sentence):
        draw_predictions(rows)
    with pytest.raises(InvalidCallError, match=sentence):
        save_report(tmp_path / "plan.html", "", {}, rows)
    assert not list(tmp_path.iterdir())


def test_a_page_is_a_file_of_html(tmp_path):
    with pytest.raises(InvalidCallError, match="name a file that ends in .html"):
        save_report(tmp_path / "plan.txt", "", {}, ROWS)
