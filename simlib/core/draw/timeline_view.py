"""What a timeline shows of a run, and where: its figure before anything is drawn."""

from __future__ import annotations

import textwrap
from collections import Counter

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from .figures import DPI, PAPER, Picture
from .labels import MAX_ARROWS, Labels
from .lanes import chosen, in_sight, span_of, unit_of
from .palette import shades_of

ARROWS_PER_GAP = 40
MAX_BOXES = 150  # per lane: above, the lane shows what the rank did most in each pixel
MAX_HATCHED = 600  # hatching is slow to draw
THINNEST_PX = 4  # of a lane with outlines: in a thinner one they would hide the fill


class View:
    """A figure being drawn: which ranks are shown where, and where labels already are."""

    def __init__(self, run, width_in, ranks, between):
        self.run, self.trace = run, run.trace
        self.ranks, self.begin_s, self.end_s = chosen(run, ranks, between)
        self.row = {rank: row for row, rank in enumerate(self.ranks)}
        begin_s, end_s = self.begin_s, self.end_s
        self.ops = [o for o in self.trace if o.rank in self.row and in_sight(o, begin_s, end_s)]
        self.pieces = [p for p in self.trace.pieces if p.rank in self.row and self._sees(p)]
        self.shades = shades_of(self.trace)
        self.unit, self.scale = unit_of(self.end_s - self.begin_s)
        self.until = {rank: self._last_moment(rank) for rank in self.ranks}
        self.notes, self.in_legend = [], set()
        self._choose()
        self._make_axes(width_in)

    def _sees(self, piece):
        return piece.start_s <= self.end_s and piece.ends_by(self.end_s) >= self.begin_s

    def _last_moment(self, rank):
        span = span_of(self.trace, rank)
        return span[1] if span else self.end_s

    def _choose(self):
        """What is drawn, and notes on what is not."""
        counts = Counter(op.rank for op in self.ops)
        self.crowded = max(counts.values(), default=0) > MAX_BOXES
        self.hatched = not self.crowded and len(self.ops) <= MAX_HATCHED
        seen = {id(op) for op in self.ops}
        self.messages = self._first(
            [
                m
                for m in self.trace.messages
                if m.src in self.row
                and m.dst in self.row
                and (id(m.send) in seen or id(m.recv) in seen)
            ],
            "message",
            "arrows",
        )
        self.collectives = self._first(
            [c for c in self.trace.collectives if any(id(op) in seen for op in c.ops.values())],
            "collective",
            "bands",
        )
        if self.notes:
            self.notes.append("zoom: timeline(between=(t0, t1))")
        if self.crowded:
            self.notes.insert(0, "each pixel of a lane shows what its rank did most")
        if self.trace.forgotten is not None:
            self.notes.append(self.trace.forgotten.in_words(self.trace.ops))
        if self.trace.dropped:
            self.notes.append(f"{self.trace.dropped:,} further ops were not recorded")

    def _first(self, things, noun, what):
        """The first things, and a note where that is not all of them."""
        most = int(np.clip(ARROWS_PER_GAP * (len(self.ranks) - 1), 60, MAX_ARROWS))
        if len(things) > most:
            self.notes.append(f"{len(things):,} {noun}s: {what} of the first {most} shown")
        return things[:most]

    def _make_axes(self, width_in):
        lanes = max(1, len(self.ranks))
        pitch_in = float(np.interp(lanes, [1, 4, 8, 16, 64], [0.62, 0.56, 0.42, 0.28, 0.11]))
        pitch_in = min(pitch_in, 7.2 / lanes)
        self.half = float(np.interp(pitch_in, [0.11, 0.42], [0.36, 0.26]))  # of a lane, in pitches
        self.title_rows = 1 if width_in >= 8 else 2
        self.note = textwrap.fill("; ".join(self.notes), int(width_in * 16))
        note_in = 0.14 * len(self.note.splitlines())
        top, bottom, left, right = 0.12 + 0.24 * self.title_rows, 0.48 + note_in, 0.72, 0.2
        self.pitch_px = pitch_in * DPI
        self.gap_px = self.pitch_px * (1 - 2 * self.half)
        self.plain = self.crowded or self.pitch_px * self.half * 2 < THINNEST_PX
        self.hatched = self.hatched and not self.plain
        narrow = self.gap_px < 13 and any(not op.is_p2p for op in self.ops)
        self.strip_px = 16 if narrow else 0  # room for the names of collectives, above rank 0
        strip_in = self.strip_px / DPI
        height_in = lanes * pitch_in + strip_in + top + bottom
        self.figure = Picture(figsize=(width_in, height_in), dpi=DPI, facecolor=PAPER)
        self.renderer = FigureCanvasAgg(self.figure).get_renderer()
        self.axes = self.figure.add_axes(
            [
                left / width_in,
                bottom / height_in,
                1 - (left + right) / width_in,
                1 - (top + bottom) / height_in,
            ],
            facecolor=PAPER,
        )
        room = 0.01 * (self.end_s - self.begin_s) * self.scale
        self.axes.set_xlim(self.begin_s * self.scale - room, self.end_s * self.scale + room)
        self.axes.set_ylim(lanes - 0.5, -0.5 - strip_in / pitch_in)
        self.labels = Labels(self)

    def px(self, x, y):
        """Data coordinates to pixels of the figure, arrays allowed."""
        points = self.axes.transData.transform(np.column_stack([np.ravel(x), np.ravel(y)]))
        return points[:, 0], points[:, 1]

    def x_of_end(self, op):
        """Where an op ends in the picture; an open one runs to the right edge of its lane."""
        return op.ends_by(self.until[op.rank]) * self.scale
