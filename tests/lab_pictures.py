"""What tests of labs share: the words of a picture with their places, and a hand on the sliders."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from PIL import Image

from simlib.core.draw.dark import DarkCanvas
from simlib.core.draw.figures import on_canvas, pixels_of

WORDS = 4
"""The zorder of what `simlib.course.labs.pen` writes as outlines."""


def outlines(figure):
    """What is written as outlines: (axes, text, its box in pixels)."""
    found = []
    for axes in figure.axes:
        for drawn in axes.collections:
            if drawn.get_zorder() != WORDS or drawn.get_label().startswith("_"):
                continue
            if not isinstance(drawn, PathCollection):
                continue
            places = axes.transData.transform(drawn.get_offsets())
            parts = zip(drawn.get_label().split("\n"), drawn.get_paths(), places, strict=True)
            for text, path, at in parts:
                if len(path.vertices):
                    box = path.get_extents(drawn.get_transform()).translated(*at)
                    found.append((axes, text, box))
    return found


def texts_of(figure):
    """All that is written as text: titles, notes, legends, names and numbers of the axes."""
    texts = list(figure.texts)
    for axes in figure.axes:
        texts += axes.texts
        if axes.get_legend():
            texts += axes.get_legend().texts
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            labels = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
            texts += [axis.label, *(label for place, label in labels if low <= place <= high)]
    return [text for text in texts if text.get_text() and text.get_visible()]


def boxes_of(figure, zorder):
    """The boxes in its first axes: (left, right, top, bottom, colour)."""
    found = []
    for drawn in figure.axes[0].collections:
        if drawn.get_zorder() != zorder or not hasattr(drawn, "get_paths"):
            continue
        colors = drawn.get_facecolors()
        for k, path in enumerate(drawn.get_paths()):
            (x0, y0), (x1, y1) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            color = to_hex(colors[k % len(colors)]) if len(colors) else None
            found.append((x0, x1, y0, y1, color))
    return found


def words_of(figure):
    """All titles, notes and outlines."""
    texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    return " | ".join(
        [text.get_text() for text in texts] + [text for _, text, _ in outlines(figure)]
    )


def check_places_of_words(figure, dark=False):
    """No text covers another one, and none is cut at the rim."""
    with on_canvas(figure, DarkCanvas if dark else FigureCanvasAgg) as canvas:
        canvas.draw()
        words = [(text.get_text(), text.get_window_extent()) for text in texts_of(figure)]
        words += [(text, box) for _, text, box in outlines(figure)]
    for k, (text, box) in enumerate(words):
        assert box.x0 >= 0 and box.y0 >= 0, text
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, text
        covered = [other for other, its in words[:k] if box.overlaps(its)]
        assert not covered, (text, covered)


def shown(lab):
    """The pixels that a lab shows."""
    return np.asarray(Image.open(io.BytesIO(lab.image.value)))


def move_at_random(lab, random, moves):
    """Move a control, again and again; returns where all stand in the end."""
    for _ in range(moves):
        control = lab.controls[random.choice(list(lab.controls))]
        if hasattr(control, "index"):
            control.index = int(random.integers(len(control.options)))
        else:
            control.value = int(random.integers(control.min, control.max + 1))
    return {name: control.value for name, control in lab.controls.items()}


def check_shown(lab, figure):
    """A lab shows the same picture as its function draws."""
    assert np.array_equal(shown(lab), pixels_of(FigureCanvasAgg(figure)))
