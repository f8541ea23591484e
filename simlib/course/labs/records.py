"""The records lab: the calls in eight ranks' buffers after one rank has gone wrong."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core.draw.figures import GREY, INK, PAPER, SMALL_PT, TEXT_PT
from ...core.draw.palette import OKABE_ITO, mix
from . import pen
from .sliders import Layers, View, check_choice, lab_of, menu, picture, slider

RANKS, CALLS = 8, 24
"""Each layer calls all_reduce twice. Attention's call has an odd number, the MLP's an even one."""
FAULTS = {
    "leaves": "leaves instead of call {}",
    "skips": "leaves out call {}",
    "other op": "calls broadcast as call {}",
    "other size": "brings another size to call {}",
}
KINDS = {
    "A": ("all_reduce of attention", mix(OKABE_ITO[0], PAPER, 0.35)),
    "M": ("all_reduce of the MLP", mix(OKABE_ITO[1], PAPER, 0.55)),
    "B": ("broadcast", OKABE_ITO[3]),
    "S": ("all_reduce of another size", OKABE_ITO[2]),
}


class Buffer(NamedTuple):
    """The calls in a rank's buffer, as ``{number: kind}``, and the call that has not completed."""

    calls: dict
    open: int | None


def buffers_of(fault, odd, call, held):
    """The `Buffer` of each rank, with room for ``held`` calls. Rank ``odd`` goes wrong at
    ``call``."""
    found = []
    for rank in range(RANKS):
        kinds = ["AM"[n % 2] for n in range(CALLS)]
        if fault == "skips":
            if rank == odd:
                del kinds[call - 1]
            is_open = rank != odd
        else:
            del kinds[call:]
            is_open = True
            if rank == odd and fault == "leaves":
                del kinds[-1]
                is_open = False
            elif rank == odd:
                kinds[-1] = "B" if fault == "other op" else "S"
        calls = dict(enumerate(kinds, 1))
        for number in range(1, len(kinds) - held + 1):
            del calls[number]
        found.append(Buffer(calls, len(kinds) if is_open else None))
    return found


def differences(fault, odd, call, held):
    """The first number at which op, size or ranks differ, and the first at which lines differ."""
    buffers = buffers_of(fault, odd, call, held)
    own, other = buffers[odd].calls, buffers[odd - 1].calls
    lines = [number for number in own if number in other and own[number] != other[number]]
    return CALLS if fault == "skips" else call, lines[0] if lines else None


WIDTH, LEFT, TOP, ROW, CELL, GAP = 9.0, 0.85, 0.92, 0.3, 0.25, 0.045  # inches
PITCH = (WIDTH - LEFT - 0.15) / CALLS
HEIGHT = TOP + ROW * RANKS + 0.42


@picture
def draw_records(fault: str = "skips", odd: int = 5, call: int = 10, held: int = 24) -> View:
    """Draw the calls in eight ranks' buffers after one rank has gone wrong.

    Parameters
    ----------
    fault : {"leaves", "skips", "other op", "other size"}
    odd : int
        The rank that goes wrong, 0 to 7.
    call : int
        The number of the call at which the rank goes wrong. It is an even number from 2 to 24,
        because these calls are all_reduces of the MLP.
    held : int
        The number of calls for which a buffer has room, 4 to 24.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        A value is out of range.
    """
    return _Records(), fault, odd, call, held


records_lab = lab_of(draw_records, "controls for the fault, the rank, the call and the buffer")


class _Records(Layers):
    """A row for each rank, and a column for each number. Names and the key stay."""

    controls = {
        "fault": menu("fault", {fault: fault for fault in FAULTS}),
        "odd": slider("odd rank", range(RANKS), only=True),
        "call": slider("at call", range(2, CALLS + 1, 2), only=True),
        "held": slider("a buffer holds", range(4, CALLS + 1), "{} calls".format, only=True),
    }

    def check(self, fault, odd, call, held):
        check_choice("fault", fault, list(FAULTS))
        super().check(fault, odd, call, held)

    def background(self):
        figure, axes = pen.picture_in_inches(WIDTH, HEIGHT)
        for rank in range(RANKS):
            words = {"fontsize": TEXT_PT, "ha": "right", "va": "center"}
            axes.text(LEFT - 0.12, TOP + (rank + 0.5) * ROW, f"rank {rank}", **words)
        for n in range(1, CALLS + 1):
            at = LEFT + (n - 0.5) * PITCH
            axes.text(at, TOP - 0.03, str(n), fontsize=SMALL_PT, ha="center", va="bottom")
        axes.text(0.1, TOP - 0.03, "number", fontsize=SMALL_PT, va="bottom")
        x, y = 0.1, HEIGHT - 0.28
        for letter, (name, color) in KINDS.items():
            box = pen.boxes_at(np.array([x]), np.array([y]), 0.2, 0.2)
            pen.add_boxes(axes, box, 3, facecolors=[color], edgecolors=GREY, linewidths=0.5)
            axes.text(x + 0.27, y + 0.1, f"{letter}: {name}", fontsize=SMALL_PT, va="center")
            x += 0.62 + 0.062 * len(name)
        axes.text(x, y + 0.1, "thick frame: an open call", fontsize=SMALL_PT, va="center")
        return figure

    def foreground(self, figure, fault, odd, call, held):
        axes, words = figure.axes[0], _words_of(fault, odd, call, held)
        figure.words = f"The buffers of {RANKS} ranks contain calls. Here {words[0]}; {words[1]}."
        buffers = buffers_of(fault, odd, call, held)
        cells = [(r, n, kind) for r, own in enumerate(buffers) for n, kind in own.calls.items()]
        x = LEFT + np.array([n - 1 for _, n, _ in cells]) * PITCH + GAP / 2
        y = TOP + np.array([r for r, _, _ in cells]) * ROW + (ROW - CELL) / 2
        colors = [KINDS[kind][1] for *_, kind in cells]
        is_open = np.array([buffers[r].open == n for r, n, _ in cells])
        boxes = pen.boxes_at(x, y, PITCH - GAP, CELL)
        letters = [kind for *_, kind in cells]
        inks = [pen.readable_on(color) for color in colors]
        middle = x + (PITCH - GAP) / 2, y + CELL / 2
        return [
            pen.add_boxes(axes, boxes, 2, facecolors=colors, edgecolors=GREY, linewidths=0.5),
            pen.add_boxes(axes, boxes[is_open], 3, facecolors="none", edgecolors=INK, linewidths=2),
            pen.add_words(axes, *middle, letters, inks),
            *pen.write_head(axes, *words),
        ]


def _words_of(fault, odd, call, held):
    """The title, and a text about what a comparison of the buffers shows."""
    shown, line = differences(fault, odd, call, held)
    what = "is missing" if fault in ("leaves", "skips") else "differs"
    title = f"rank {odd} {FAULTS[fault].format(call)}; at call {shown} it {what}"
    if line is None:
        return title, "its lines are those of the others in all calls that both have"
    if line > call:
        return title, f"its lines differ in the whole buffer: the buffers have lost call {call}"
    return title, f"its lines differ from call {line} on"
