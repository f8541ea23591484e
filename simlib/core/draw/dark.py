"""Pictures on dark paper: the same figure drawn with other colours, in the same PNG.

A program that does not know the variant shows the light picture. The course's extension of
JupyterLab (`course/open_lab/extensions`) shows the dark variant in a dark theme. The variant is a
chunk of the PNG: another palette for the same pixels, about 800 bytes, or a whole PNG.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.backend_bases import GraphicsContextBase
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_hex, to_rgba, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.image import AxesImage, BboxImage, FigureImage
from PIL import Image

from .palette import flipped, is_bright, rgb_on_dark

MAX_SINGLE = 64
"""Up to this many colours of a collection are colours of ranks. More colours form a gradient."""
CHUNK = b"daRK"
"""The case of the letters means: optional, private, and to be removed if the pixels change."""
FRAME = 12
"""Bytes of a chunk in addition to its data. The last chunk of a PNG has no data."""
COLORS = 256
"""Rows of a palette."""
FEWER = 224
"""The number of colours of a light picture. Colours with two dark variants use the other rows."""
SEEN, FEW = 100, 1e-4
"""The largest error of a channel (0 to 255), and the share of pixels that may exceed it."""


class DarkPen(GraphicsContextBase):
    """The pen of matplotlib's artists. It replaces each colour by its variant on dark paper."""

    _rgb: Any

    def __init__(self) -> None:
        super().__init__()
        self.set_foreground("black")
        if self._hatch_color is not None:
            self.set_hatch_color(self._hatch_color)

    def set_foreground(self, fg: Any, isRGBA: bool = False) -> None:
        """Take the colour of a line or of words."""
        is_own = fg is self._rgb  # matplotlib sets it once more where what shines through changes
        super().set_foreground(fg, isRGBA)
        if not is_own:
            self._rgb = _dark(self._rgb)

    def set_hatch_color(self, hatch_color: Any) -> None:
        """Take the colour of a hatch."""
        super().set_hatch_color(_dark(hatch_color))


class DarkRenderer(RendererAgg):
    """Agg's renderer, with every colour replaced by its variant on dark paper."""

    def new_gc(self) -> DarkPen:
        """A pen for the next artist."""
        return DarkPen()

    def _update_methods(self):
        super()._update_methods()
        for name in set(vars(self)) & set(vars(DarkRenderer)):
            delattr(self, name)  # Agg's own, which would stand before those below

    def draw_path(self, gc: Any, path: Any, transform: Any, rgbFace: Any = None) -> None:
        """A line or a filled shape."""
        super().draw_path(gc, path, transform, _dark(rgbFace))

    def draw_markers(
        self,
        gc: Any,
        marker_path: Any,
        marker_trans: Any,
        path: Any,
        trans: Any,
        rgbFace: Any = None,
    ) -> None:
        """The same mark at many places."""
        self._renderer.draw_markers(gc, marker_path, marker_trans, path, trans, _dark(rgbFace))

    def draw_path_collection(self, gc: Any, *args: Any, hatchcolors: Any = None) -> None:
        """Many shapes. The sixth and seventh arguments are the colours of their faces and edges."""
        shapes = [_dark_array(arg) if at in (5, 6) else arg for at, arg in enumerate(args)]
        options = {} if hatchcolors is None else {"hatchcolors": _dark_array(hatchcolors)}
        self._renderer.draw_path_collection(gc, *shapes, **options)

    def draw_quad_mesh(self, gc: Any, *args: Any) -> None:
        """A mesh. The third argument from the end has the colours of its faces, the last of its
        edges."""
        *shape, faces, antialiased, edges = args
        faces = _flipped(to_rgba_array(faces))
        self._renderer.draw_quad_mesh(gc, *shape, faces, antialiased, _dark_array(edges))

    def draw_image(self, gc: Any, x: float, y: float, im: Any, *args: Any) -> None:
        """Pixels. Light pixels become dark, like the text on them."""
        pixels = np.round(255 * _flipped(np.asarray(im) / 255)).astype(np.uint8)
        self._renderer.draw_image(gc, x, y, pixels, *args)

    def draw_gouraud_triangles(self, gc: Any, points: Any, colors: Any, transform: Any) -> None:
        """A surface whose colours form a gradient."""
        colors = _flipped(np.asarray(colors))
        self._renderer.draw_gouraud_triangles(gc, points, colors, transform)


class DarkCanvas(FigureCanvasAgg):
    """A canvas whose figure is drawn on dark paper."""

    def get_renderer(self) -> RendererAgg:
        """The renderer for the figure's present size."""
        renderer = super().get_renderer()
        if not isinstance(renderer, DarkRenderer):
            self.renderer = DarkRenderer(renderer.width, renderer.height, renderer.dpi)
        return self.renderer


@contextmanager
def on_canvas(figure: Figure, canvas_class: type[FigureCanvasAgg]) -> Iterator[FigureCanvasAgg]:
    """Give a figure another canvas while the block runs, with everything in its place."""
    canvas, engine = figure.canvas, figure.get_layout_engine()
    if engine:
        figure.set_layout_engine("none")  # a second layout might move things by a pixel
    try:
        yield canvas_class(figure)
    finally:
        figure.set_canvas(canvas)
        if engine:
            figure.set_layout_engine(engine)


def _dark(color):
    """A colour, or none, on dark paper. It keeps its transparency."""
    if color is None:
        return None
    *rgb, alpha = to_rgba(color)
    return *rgb_on_dark(tuple(rgb)), alpha


def _dark_array(colors):
    """Several colours on dark paper: array (n, 4)."""
    colors = to_rgba_array(colors)
    if len(np.unique(colors, axis=0)) > MAX_SINGLE:
        return _flipped(colors)
    return np.array([_dark(color) for color in colors]).reshape(-1, 4)


def _flipped(colors):
    """Many colours that form a gradient, as in a heat map: array (..., 4)."""
    return np.concatenate([flipped(colors[..., :3]), colors[..., 3:]], axis=-1)


def png_of_both(light: np.ndarray, dark: np.ndarray, dpi: float) -> bytes:
    """The PNG of a light picture with its dark variant.

    Parameters
    ----------
    light, dark : ndarray of uint8, shape (height, width, 3)
        The same picture on light paper and on dark paper.
    dpi : float
    """
    dark = dark.astype(float)
    for colors in (COLORS, FEWER):
        rows, palette = reduced(light, colors)
        _split(rows, palette, dark)
        dark_palette = _means(rows, dark)
        if (np.abs(dark - dark_palette[rows]) > SEEN).mean() <= FEW:
            break
    png, other = _saved(rows, palette, dpi), _saved(rows, dark_palette, dpi)
    return with_variant(png, other[_palette_in(other)])


def with_variant(png: bytes, variant: bytes) -> bytes:
    """A PNG with its dark variant: another PNG, or the chunk of its palette."""
    named = CHUNK + variant
    chunk = len(variant).to_bytes(4, "big") + named + zlib.crc32(named).to_bytes(4, "big")
    return png[:-FRAME] + chunk + png[-FRAME:]


def dark_variant(png: bytes) -> bytes | None:
    """The dark variant of a PNG, as a separate PNG. None if the PNG has no dark variant."""
    image = Image.open(io.BytesIO(png))
    image.load()
    found = [data for name, data, *_ in getattr(image, "private_chunks", ()) if name == CHUNK]
    if not found or found[0][4:8] != b"PLTE":
        return found[0] if found else None
    place = _palette_in(png)
    return png[: place.start] + found[0] + png[place.stop :]


def _palette_in(png: bytes) -> slice:
    """The place of the chunk with its palette in a PNG."""
    begin = png.index(b"PLTE") - 4
    return slice(begin, begin + FRAME + int.from_bytes(png[begin : begin + 4], "big"))


def reduced(pixels: np.ndarray, colors: int = COLORS) -> tuple[np.ndarray, np.ndarray]:
    """Reduce the colours of a picture. Returns the row of the palette for each pixel, and the
    palette.

    The colours of these pictures fit into a palette. This makes the file a third as large.
    """
    method, dither = Image.Quantize.MEDIANCUT, Image.Dither.NONE
    small = Image.fromarray(pixels).quantize(colors, method=method, dither=dither)
    used = np.reshape(small.getpalette("RGB") or [], (-1, 3))
    return np.array(small), np.vstack([used, np.zeros((COLORS - len(used), 3))])


def _split(rows, palette, dark):
    """Put colours with one light and two dark variants into free rows. Changes the arrays in
    place."""
    misses = np.square(dark - _means(rows, dark)[rows]).sum(axis=-1) ** 2  # few large ones count
    is_used = np.bincount(rows.ravel(), minlength=COLORS) > 0
    worst = [row for row in np.argsort(-_sums(rows, misses), kind="stable") if is_used[row]]
    brightness = dark.sum(axis=-1)
    for row, new in zip(worst, np.flatnonzero(~is_used), strict=False):
        here = rows == row
        middle = (brightness[here].min() + brightness[here].max()) / 2
        rows[here & (brightness > middle)] = new
        palette[new] = palette[row]


def _means(rows, pixels):
    """The mean colour of the pixels of each row of a palette: array (COLORS, 3)."""
    sums = np.stack([_sums(rows, pixels[..., channel]) for channel in range(3)], axis=1)
    return sums / np.maximum(np.bincount(rows.ravel(), minlength=COLORS), 1)[:, None]


def _sums(rows, values):
    return np.bincount(rows.ravel(), values.ravel(), COLORS)


def _saved(rows, palette, dpi):
    image = Image.fromarray(rows)
    image.putpalette(np.round(palette).astype(np.uint8).tobytes())
    buffer = io.BytesIO()
    image.save(buffer, format="png", dpi=(dpi, dpi))
    return buffer.getvalue()


class WithDarkVariant:
    """Show a learner's own figure as pyplot does, with the dark variant in the same PNG."""

    def __init__(self, printer: Callable[[Figure], Any]) -> None:
        self._printer = printer

    def __call__(self, figure: Figure) -> Any:
        """The printer's output, a PNG in base64, and its metadata if there are any."""
        light = self._printer(figure)
        try:
            if light is None or not has_dark_variant(figure):
                return light
            with on_canvas(figure, DarkCanvas):
                dark = self._printer(figure)
            if isinstance(light, tuple):
                return _joined(light[0], dark[0]), light[1]
            return _joined(light, dark)
        except Exception:  # of an artist that cannot be drawn so: its light picture is there
            return light


def _joined(light: str, dark: str) -> str:
    """Two PNGs in base64 as one. The dark one has few colours and no transparency."""
    image = Image.open(io.BytesIO(base64.b64decode(dark)))
    rows, palette = reduced(np.asarray(image.convert("RGB")), COLORS // 2)
    variant = _saved(rows, palette, *image.info.get("dpi", (72,))[:1])
    return base64.b64encode(with_variant(base64.b64decode(light), variant)).decode()


def has_dark_variant(figure: Figure) -> bool:
    """Whether a figure has light paper and no photograph, whose colours would be inverted."""
    paper = figure.get_facecolor()
    images = figure.findobj(lambda artist: isinstance(artist, (AxesImage, BboxImage, FigureImage)))
    is_light = to_rgba(paper)[3] == 1 and is_bright(to_hex(paper))
    return is_light and all(image.get_array().ndim == 2 for image in images)
