"""The picture of a comparison: how often each sort of op came in each run."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyBboxPatch

from .figures import DPI, GREY, INK, PAPER, TEXT_PT, Picture, own_style
from .in_words import comparison_in_words
from .palette import OKABE_ITO, mix
from .table import clip

ROW_IN, COLUMN_IN, LETTER_IN = 0.3, 1.15, 0.082
MAX_ROWS, MAX_LETTERS = 30, 46
COMMON, OWN = mix(OKABE_ITO[2], "#ffffff", 0.55), mix(OKABE_ITO[1], "#ffffff", 0.35)
SHARED = mix(OKABE_ITO[4], "#ffffff", 0.45)


@own_style
def draw_comparison(names, rows):
    """Draw which sorts of ops came how often: a row for each, a column for each run.

    Green boxes are what all runs have in common, blue ones what another run sent as often, orange
    ones what this run alone sent so often.

    Parameters
    ----------
    names : sequence of str
        The runs.
    rows : list of (str, tuple of int, bool)
        Of each sort of op its label, how often it came in each run, and whether equally often.

    Returns
    -------
    matplotlib.figure.Figure
    """
    shown, more = rows[:MAX_ROWS], len(rows[MAX_ROWS:])
    texts = [clip(label, MAX_LETTERS) for label, _, _ in shown]
    label_in = LETTER_IN * max(map(len, [*texts, "x" * 12])) + 0.25
    width_in = label_in + COLUMN_IN * len(names) + 0.1
    height_in = ROW_IN * (len(shown) + 1 + bool(more)) + 0.5
    figure = Picture(figsize=(width_in, height_in), dpi=DPI, facecolor=PAPER)
    FigureCanvasAgg(figure)
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set(xlim=(0, width_in), ylim=(height_in, 0))
    axes.axis("off")
    for column, name in enumerate(names):
        axes.text(
            _middle(label_in, column), 0.3, clip(name, 14), ha="center", va="center",
            fontsize=TEXT_PT + 0.5, weight="bold",
        )  # fmt: skip
    for row, (text, (_, counts, is_common)) in enumerate(zip(texts, shown, strict=True)):
        y = 0.62 + ROW_IN * row
        axes.text(label_in - 0.15, y, text, ha="right", va="center", fontsize=TEXT_PT + 0.5)
        for column, count in enumerate(counts):
            color = COMMON if is_common else SHARED if counts.count(count) > 1 else OWN
            _draw_count(axes, _middle(label_in, column), y, count, color)
    figure.words = comparison_in_words(names, rows)
    if more:
        y = 0.62 + ROW_IN * len(shown)
        axes.text(label_in - 0.15, y, f"and {more} more", ha="right", va="center", color=GREY)
    return figure


def _middle(label_in, column):
    return label_in + COLUMN_IN * (column + 0.5)


def _draw_count(axes, x, y, count, color):
    if not count:
        axes.text(x, y, "\N{MIDDLE DOT}", ha="center", va="center", color=GREY)
        return
    half = 0.5 * COLUMN_IN - 0.12
    axes.add_patch(
        FancyBboxPatch(
            (x - half, y - 0.1), 2 * half, 0.2,
            boxstyle="round,pad=0,rounding_size=0.06", facecolor=color, edgecolor="none",
        )
    )  # fmt: skip
    axes.text(x, y, f"{count:,}", ha="center", va="center_baseline", fontsize=TEXT_PT, color=INK)
