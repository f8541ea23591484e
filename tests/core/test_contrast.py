"""Contrast as WCAG 2.1 has it: 4.5 for words, 3 for what has to be seen of a picture, both themes.

What is filled has an outline, and that is what has to be seen; what a rank does is told by fill and
hatch, so hatches have to be seen, too. Borders of boxes that are only there to please are left out.
"""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import simlib
from simlib.core.draw.figures import GREY, INK, PAPER
from simlib.core.draw.palette import (
    DARK_PAPER,
    SHADES,
    contrast,
    on_dark,
    rank_color,
    shaded,
    visible,
)
from simlib.core.draw.timeline import _box_colors, ink_on
from simlib.course.labs import message_sizes, staleness

SIMLIB = Path(simlib.__file__).parent
WORDS, MARKS = 4.5, 3.0
RANKS = range(24)


def test_contrast_is_what_the_guidelines_say():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)
    assert contrast("#0000ff", "#ffffff") == pytest.approx(8.59, abs=0.005)


def of_both(color):
    """The lower of a colour's contrasts: on light paper, and what it is there on dark paper."""
    return min(contrast(color, PAPER), contrast(on_dark(color), DARK_PAPER))


def test_words_lines_and_hatches_on_the_paper_of_pictures_are_seen():
    assert min(map(of_both, (INK, GREY, "#000000", "#444444", "#555555"))) >= WORDS
    for share, rank in product((0.0, 0.25, 0.3), RANKS):
        assert of_both(visible(rank_color(rank), share)) >= MARKS, (share, rank)
    for state in ("computing", "in a call", "waiting", "transferring"):
        _, edge, hatch = _box_colors(state, plain=False)
        assert min(of_both(pick(rank)) for pick in (edge, hatch) for rank in RANKS) >= MARKS, state
    colors = [color for _, color, _ in message_sizes.STYLES.values()]
    colors += [staleness.APART, staleness.TOGETHER, staleness.OTHERS]
    assert min(map(of_both, colors)) >= MARKS
    assert visible(rank_color(0)) == rank_color(0).lower()  # what is seen stays
    assert visible(rank_color(6)) != rank_color(6).lower()


def test_words_on_the_pieces_of_a_lane_are_readable():
    for rank, share in product(RANKS, SHADES):
        fill = shaded(rank_color(rank), share)
        ink = ink_on(fill)
        both = contrast(ink, fill), contrast(on_dark(ink), on_dark(fill))
        assert min(both) >= WORDS, (fill, ink, both)


# Style sheets


def variables(text):
    """``{--name: value}`` of a block of CSS."""
    return dict(re.findall(r"(--[\w-]+):\s*([^;]+);", text))


def over(color, paper):
    """``"#rgb"``, ``"#rrggbb"`` or ``"rgba(...)"`` on a paper, as ``"#rrggbb"``."""
    if color.startswith("#"):
        return color if len(color) == 7 else "#" + "".join(2 * digit for digit in color[1:])
    *rgb, alpha = (float(part) for part in re.findall(r"[\d.]+", color))
    below = [int(paper[at : at + 2], 16) for at in (1, 3, 5)]
    mixed = np.array(rgb) * alpha + np.array(below) * (1 - alpha)
    return "#" + "".join(f"{round(channel):02x}" for channel in mixed)


def player_themes():
    """Of a saved page, light and dark, and what the player wears where there is no theme."""
    folder = SIMLIB / "core/draw/player"
    light, dark = (folder / "page.css").read_text().split(":root[data-theme", 1)
    fallbacks = re.findall(r"var\((--jp-[\w-]+), (#\w+)\)", (folder / "player.css").read_text())
    return variables(light), variables(light) | variables(dark), dict(fallbacks)


USES = [
    ("ui-font-color0", ("layout-color0", "layout-color1", "layout-color2"), WORDS),
    ("ui-font-color2", ("layout-color0", "layout-color1"), WORDS),
    ("layout-color0", ("brand-color1",), WORDS),  # the sign on the button that plays
    ("brand-color1", ("layout-color0", "layout-color1"), MARKS),  # the focus
]
"""Of the player and of a saved page: what lies on what."""


@pytest.mark.parametrize("colors", player_themes(), ids=["light", "dark", "no theme"])
def test_the_player_and_a_saved_page_are_readable(colors):
    for front, papers, least in USES:
        for paper in papers:
            below = over(colors[f"--jp-{paper}"], "#ffffff")
            assert contrast(over(colors[f"--jp-{front}"], below), below) >= least, (front, paper)


def test_a_class_report_is_readable():
    text = (SIMLIB / "classroom/grading/templates/style.css").read_text()
    light, dark, _ = re.split(r"@media \(prefers-color-scheme: dark\)|\* \{", text, maxsplit=2)
    printed = text[text.index("@media print {") :]
    words = "text", "soft", "link", "right-text", "wrong-text", "soft-text"
    for theme in ("", dark, printed):
        colors = variables(light) | variables(theme)
        for front, paper in product(words, ("ground", "box")):
            pair = over(colors[f"--{front}"], ""), over(colors[f"--{paper}"], "")
            assert contrast(*pair) >= WORDS, (theme, front, paper)
