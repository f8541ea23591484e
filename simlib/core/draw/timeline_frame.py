"""What stands around the lanes of a timeline: axis, names, title, legend, notes."""

from __future__ import annotations

import numpy as np
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..model.words import ranks_text
from .collective_bands import BAND
from .figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, TITLE_PT
from .palette import mix, rank_color, shaded
from .table import clip

HATCH = "////"


def draw_frame(view):
    """Draw axis, names of ranks, title, legend and notes."""
    axes, lanes = view.axes, len(view.ranks)
    step = max(1, int(np.ceil(9 / view.pitch_px)))
    rows = range(0, lanes, step)
    size = float(np.clip(view.pitch_px / DPI * 72 * 0.8, 5.5, TEXT_PT + 0.5))
    axes.set_yticks(list(rows), [f"rank {view.ranks[row]}" for row in rows], fontsize=size)
    axes.tick_params(axis="y", length=0, pad=10, labelcolor=INK)
    axes.tick_params(axis="x", labelsize=TEXT_PT, color=GREY, labelcolor=INK, length=3)
    side = float(np.clip(view.pitch_px / DPI * 72 * 0.3, 2, 7))
    axes.scatter(
        [-0.008] * lanes,
        range(lanes),
        s=side**2,
        marker="s",
        linewidths=0,
        clip_on=False,
        c=[rank_color(rank) for rank in view.ranks],
        transform=axes.get_yaxis_transform(),
    )
    for name in ("left", "right", "top"):
        axes.spines[name].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.grid(axis="x", color="#e8e8e8", linewidth=0.6)
    axes.set_axisbelow(True)
    _draw_margins(view)


def _draw_margins(view):
    figure = view.figure
    width_in, height_in = figure.get_size_inches()
    left = 0.1 / width_in
    title = f"{clip(view.run.name, 32)} on {ranks_text(view.run)}"
    figure.text(left, 1 - 0.09 / height_in, title, fontsize=TITLE_PT, va="top", ha="left")
    below = (0.07 if view.title_rows == 1 else 0.29) / height_in
    signs = _legend_handles(view)
    if signs:
        figure.legend(
            signs.values(),
            signs.keys(),
            loc="upper right",
            bbox_to_anchor=(1 - 0.1 / width_in, 1 - below),
            ncols=len(signs),
            fontsize=TEXT_PT - 0.5,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=1.7,
            handletextpad=0.5,
            columnspacing=1.3,
            handler_map={tuple: HandlerTuple(ndivide=1, pad=0)},
        )
    clock = "time" if view.run.engine == "real" else "virtual time"
    view.axes.set_xlabel(f"{clock} ({view.unit})", fontsize=TEXT_PT + 0.5, labelpad=2)
    figure.text(
        left,
        0.06 / height_in,
        view.note,
        fontsize=SMALL_PT,
        color="#555555",
        ha="left",
        va="bottom",
    )


def _legend_handles(view):
    """``{label: artist}`` for what occurs in this picture, in grey: hue only says which rank."""
    dark, line, light = mix(GREY, PAPER, 0.15), "#444444", mix(GREY, PAPER, 0.72)
    hatch = {"hatch": HATCH, "hatchcolor": GREY} if view.hatched else {}
    waiting = Patch(fc=light if view.plain else PAPER, ec=line, lw=0.6, **hatch)
    waiting.set_hatch_linewidth(0.8)
    outside = mix(GREY, PAPER, 0.85)  # of the pieces that the program has named
    signs = {
        "computing": Patch(fc=outside if view.shades else dark, ec=line, lw=0.6),
        **{name: Patch(fc=shaded(GREY, share)) for name, share in view.shades.items()},
        "waiting": waiting,
        "transferring": Patch(fc=mix(GREY, PAPER, 0.6), ec=line, lw=0.6),
        "in a call": Patch(fc=mix(GREY, PAPER, 0.85), ec=line, lw=0.6),
        "async op in flight": (
            Patch(fc=dark, ec=line, lw=0.6),
            Line2D([], [], color=light, lw=3, solid_capstyle="butt"),
        ),
        "message": Line2D([], [], color=line, lw=1.2, marker=">", ms=4.5, mew=0),
        "not received": Line2D(
            [], [], color=line, lw=1.2, ls=(0, (2.5, 1.5)), marker="o", ms=3.5, mfc=PAPER, mew=1
        ),
        "collective": Patch(fc=BAND, ec="none"),
        "never finished": Line2D([], [], color="none", marker="X", ms=7, mfc=INK, mec=PAPER),
    }
    words = {"computing": "outside of pieces"} if view.shades else {}
    return {words.get(name, name): sign for name, sign in signs.items() if name in view.in_legend}
