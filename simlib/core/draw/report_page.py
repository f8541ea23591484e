"""Draw predicted and measured numbers, and save them with a plan as a page."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..model.errors import InvalidCallError, check_number
from ..model.words import number
from .figures import INK, SMALL_PT, TEXT_PT, new_picture, own_style, png_of
from .palette import OKABE_ITO
from .text import clip

Rows = Mapping[str, tuple[float, float]]
"""``{name: (predicted, measured)}``."""
WIDTH_IN, ROW_IN, LETTER_IN = 8.8, 0.28, 0.072
NUMBERS_IN, COLUMNS_IN = 2.6, (1.0, 1.75, 2.5)
MAX_ROWS, MAX_LETTERS = 30, 40
STYLE = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em;line-height:1.4}"
    "table{border-collapse:collapse}td,th{border-bottom:1px solid #ccc;padding:.25em .8em;"
    "text-align:left}td.n{text-align:right}img{max-width:100%}"
)


@own_style
def draw_predictions(rows: Rows, unit: str = "s") -> Figure:
    """Draw the error of each prediction, next to the predicted and the measured number.

    The picture shows errors in per cent. The scale is linear up to 1 % and logarithmic above 1 %,
    so that small and large errors are visible in one picture.

    Parameters
    ----------
    rows : dict of str to (float, float)
        ``{name: (predicted, measured)}``, both numbers above 0.
    unit : str
        The unit of the numbers.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        ``rows`` is empty, has more than 30 rows, or contains a number that is not above 0.
    """
    names, values = _checked(rows)
    names = [clip(name, MAX_LETTERS) for name in names]
    misses = 100 * (values[:, 0] / values[:, 1] - 1)
    height_in = ROW_IN * len(names) + 1.0
    label_in = 0.3 + LETTER_IN * max(map(len, names))
    figure = new_picture(WIDTH_IN, height_in)
    wide = WIDTH_IN - label_in - NUMBERS_IN
    axes = figure.add_axes(
        [label_in / WIDTH_IN, 0.55 / height_in, wide / WIDTH_IN, 1 - 0.9 / height_in]
    )
    y = np.arange(len(names))
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    most = 10.0 ** np.ceil(np.log10(max(10.0, abs(misses).max() * 1.001)))
    above = 10.0 ** np.arange(0, np.log10(most) + 0.5, np.ceil(np.log10(most) / 4))
    ticks = [*(-tick for tick in above[::-1] if tick <= 100), 0.0, *above]
    axes.set_xlim(1.2 * ticks[0], 1.2 * most)
    axes.set_xticks(ticks, [f"{tick:+g}" if tick else "0" for tick in ticks], fontsize=SMALL_PT)
    axes.minorticks_off()
    axes.axvline(0, color=INK, lw=1)
    axes.barh(y, misses, 0.5, color=OKABE_ITO[4], edgecolor=INK, linewidth=0.8, zorder=2)
    axes.set_yticks(y, names, fontsize=TEXT_PT)
    axes.set_xlabel("miss of the prediction in %, logarithmic beyond 1 %", fontsize=TEXT_PT)
    axes.grid(axis="x", color="#dddddd", lw=0.6)
    axes.set_axisbelow(True)
    place = {"transform": axes.transAxes, "va": "bottom", "ha": "right", "fontsize": SMALL_PT}
    columns = [1 + inches / wide for inches in COLUMNS_IN]
    for x, word in zip(columns, (f"predicted ({unit})", "measured", "miss"), strict=True):
        axes.text(x, 1 + 0.06 / (height_in - 0.9), word, **place)
    place |= {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": TEXT_PT}
    for row, (predicted, measured) in enumerate(values):
        texts = number(predicted), number(measured), _miss(predicted, measured)
        for x, text in zip(columns, texts, strict=True):
            axes.text(x, row, text, **place)
    told = [f"{name} {_miss(*pair)}" for name, pair in zip(names, values, strict=True)]
    figure.words = f"Each prediction misses the measured value by: {'; '.join(told)}."
    return figure


def save_report(
    path: str | Path,
    title: str,
    plan: Mapping[str, object],
    rows: Rows,
    notes: Sequence[str] = (),
    unit: str = "s",
) -> Path:
    """Save a plan as one HTML page, with its numbers, its predictions and measurements, and notes.

    The page needs no network and runs no scripts. Every text is escaped.

    Parameters
    ----------
    path : str or Path
        A file that ends in .html. If the file exists, it is replaced.
    title : str
    plan : dict of str to object
        The numbers of the plan, by name.
    rows : dict of str to (float, float)
        As for `draw_predictions`.
    notes : sequence of str
        Paragraphs of text, for example the reason of an error.
    unit : str
        The unit of ``rows``.

    Returns
    -------
    Path

    Raises
    ------
    InvalidCallError
        As for `draw_predictions`, or ``path`` does not end in .html.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise InvalidCallError(f"path is {str(path)!r}: name a file that ends in .html")
    names, values = _checked(rows)
    picture = base64.b64encode(png_of(draw_predictions(rows, unit))).decode()
    planned = [_row("th", name, "td", [_text(value)]) for name, value in plan.items()]
    measured = [
        _row("td", name, 'td class="n"', [number(p), number(m), _miss(p, m)])
        for name, (p, m) in zip(names, values.tolist(), strict=True)
    ]
    head = f"<tr><th>name</th><th>predicted ({escape(unit)})</th><th>measured ({escape(unit)})</th>"
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>Written on {datetime.date.today().isoformat()}, with simlib.</p>",
        "<h2>The plan</h2>",
        *_table("", planned),
        "<h2>Predicted and measured</h2>",
        f'<p><img alt="predicted and measured" src="data:image/png;base64,{picture}"></p>',
        *_table(head + "<th>miss</th></tr>", measured),
        *(["<h2>Notes</h2>"] if notes else []),
        *(f"<p>{escape(str(note))}</p>" for note in notes),
        "</body></html>",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _checked(rows):
    """Names, and values as an array (rows, 2)."""
    if not rows or len(rows) > MAX_ROWS:
        raise InvalidCallError(f"rows has {len(rows)} entries: give 1 to {MAX_ROWS}")
    for name, pair in rows.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidCallError(f"rows[{name!r}] is {pair!r}: give (predicted, measured)")
        for word, value in zip(("predicted", "measured"), pair, strict=True):
            check_number(f"{word} of {name!r}", value, above=True)
    return [str(name) for name in rows], np.array(list(rows.values()), dtype=float)


def _miss(predicted, measured):
    share = round(predicted / measured - 1, 3) + 0.0  # never -0.0
    return f"{share:+.1%}"


def _text(value):
    return number(value) if isinstance(value, float) else str(value)


def _row(first, name, tag, values):
    cells = "".join(f"<{tag}>{escape(value)}</{tag.split()[0]}>" for value in values)
    return f"<tr><{first}>{escape(str(name))}</{first}>{cells}</tr>"


def _table(head, rows):
    return ["<table>", *([head] if head else []), *rows, "</table>"]
