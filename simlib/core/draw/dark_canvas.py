"""Draw a figure as it is on dark paper: the same artists, each colour changed as it is drawn."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_rgba, to_rgba_array

from .palette import flipped, rgb_on_dark

MAX_SINGLE = 64
"""So many colours in one collection are single ones, ranks'; more run into each other."""


class DarkRenderer(RendererAgg):
    """Agg's renderer, with every colour replaced by what it is on dark paper."""

    def _update_methods(self):
        super()._update_methods()
        for name in set(vars(self)) & set(vars(DarkRenderer)):
            delattr(self, name)  # Agg's own, which would stand before those below

    def draw_path(self, gc, path, transform, rgbFace=None):
        """A line or a filled shape."""
        super().draw_path(_dark_gc(self, gc), path, transform, _dark(rgbFace))

    def draw_markers(self, gc, marker_path, marker_trans, path, trans, rgbFace=None):
        """The same mark at many places."""
        gc = _dark_gc(self, gc)
        self._renderer.draw_markers(gc, marker_path, marker_trans, path, trans, _dark(rgbFace))

    def draw_path_collection(self, gc, *args, hatchcolors=None):
        """Many shapes: their faces and edges are the sixth and seventh argument."""
        args = [_dark_array(arg) if at in (5, 6) else arg for at, arg in enumerate(args)]
        options = {} if hatchcolors is None else {"hatchcolors": _dark_array(hatchcolors)}
        self._renderer.draw_path_collection(_dark_gc(self, gc), *args, **options)

    def draw_quad_mesh(self, gc, *args):
        """A mesh: its faces are the last argument but two, its edges the last."""
        *args, faces, antialiased, edges = args
        dark = _flipped(to_rgba_array(faces)), antialiased, _dark_array(edges)
        self._renderer.draw_quad_mesh(_dark_gc(self, gc), *args, *dark)

    def draw_image(self, gc, x, y, im, *args):
        """Pixels: what was light becomes dark, as the type on it does."""
        pixels = np.round(255 * _flipped(np.asarray(im) / 255)).astype(np.uint8)
        self._renderer.draw_image(_dark_gc(self, gc), x, y, pixels, *args)

    def draw_gouraud_triangles(self, gc, points, colors, transform):
        """A surface whose colours run into each other."""
        self._renderer.draw_gouraud_triangles(
            _dark_gc(self, gc), points, _flipped(np.asarray(colors)), transform
        )

    def draw_tex(self, gc, *args, **options):
        """Words that TeX has set."""
        super().draw_tex(_dark_gc(self, gc), *args, **options)

    def draw_text(self, gc, *args, **options):
        """Words."""
        super().draw_text(_dark_gc(self, gc), *args, **options)


class DarkCanvas(FigureCanvasAgg):
    """A canvas whose figure is drawn on dark paper."""

    def get_renderer(self):
        """The renderer for the figure's present size."""
        renderer = super().get_renderer()
        if not isinstance(renderer, DarkRenderer):
            self.renderer = DarkRenderer(renderer.width, renderer.height, renderer.dpi)
        return self.renderer


def _dark(color):
    """A colour, or none, on dark paper; what shines through stays so."""
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
    """Many colours that run into each other, as those of a heat map do: array (..., 4)."""
    return np.concatenate([flipped(colors[..., :3]), colors[..., 3:]], axis=-1)


def _dark_gc(renderer, gc):
    """The same pen with other colours."""
    pen = renderer.new_gc()
    pen.copy_properties(gc)
    pen.set_foreground(_dark(gc.get_rgb()), isRGBA=True)
    if gc.get_hatch_color() is not None:
        pen.set_hatch_color(_dark(gc.get_hatch_color()))
    return pen
