"""What all labs share: sliders over a picture, boxes and axes to draw it with.

A picture is PNG bytes in an image widget, light or dark as the page's theme is. A slider does not
send its next value before the kernel has answered to the last one (ipywidgets' throttling), so that
where drawing lags behind a drag, values in between are left out and the last one is always drawn.
"""

from __future__ import annotations

import io
from functools import cache, lru_cache

import anywidget
import ipywidgets as widgets
import numpy as np
import traitlets
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath, text_to_path
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import Affine2D
from PIL import Image

from ...core.draw.dark import DarkCanvas, png_of_both
from ...core.draw.figures import (
    DPI,
    GREY,
    INK,
    PAPER,
    SMALL_PT,
    TEXT_PT,
    TITLE_PT,
    Picture,
    own_style,
)
from ...core.draw.palette import INK_THAT_STAYS, PAPER_THAT_STAYS, is_bright, on_dark
from ...core.model.errors import InvalidCallError, check_number
from ...core.model.words import seconds_text, short_bytes


class Theme(anywidget.AnyWidget):
    """The page's theme, told by the page itself; nothing of it is seen.

    Attributes
    ----------
    dark : bool
        At first what the page told last, so that a new lab is not shown light for a moment.
    """

    _esm = """
    export default {
      initialize({ model }) {
        const tell = () => {
          const { jpThemeLight } = document.body.dataset;
          if (!jpThemeLight) return;  // not JupyterLab
          model.set("dark", jpThemeLight === "false");
          model.save_changes();
        };
        tell();
        const watch = new MutationObserver(tell);
        watch.observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
        return () => watch.disconnect();
      },
    };
    """
    dark = traitlets.Bool(False).tag(sync=True)
    _told_last = False

    def __init__(self):
        super().__init__(dark=Theme._told_last)

    @traitlets.observe("dark")
    def _remember(self, change):
        Theme._told_last = change.new


# -- a picture in two layers -----------------------------------------------------------------------


class Layers:
    """What the picture of a lab is made of: the base class of all labs' pictures.

    A state is the values of the lab's controls, in their order or by their names. The background is
    drawn once for many states; the foreground lies above it and is drawn anew for each.
    """

    def background_state(self, *state, **named):
        """What of a state the background depends on: the arguments of `background`, hashable."""
        return ()

    def background(self, *background_state):
        """The Figure with all that stays through most of a drag."""
        raise NotImplementedError

    def foreground(self, figure, *state, **named):
        """Add the rest to the figure; returns the artists."""
        return []

    @own_style
    def draw(self, *state):
        """The whole picture of a state: a Figure."""
        figure = self.background(*self.background_state(*state))
        self.foreground(figure, *state)
        return figure


# -- a lab -----------------------------------------------------------------------------------------

FALLBACK = "A lab: run this notebook in JupyterLab to move its sliders."
NAME_WIDTH, CONTROL_WIDTH = "130px", "430px"
KEPT_BACKGROUNDS, KEPT_PICTURES = 8, 128  # of some 4 MB, of some 50 kB each
STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)  # of a decade: what people call round numbers


class Lab(widgets.VBox):
    """Controls above the picture that they move.

    Parameters
    ----------
    layers : Layers
        The picture. What it calls a state are the values of the controls, by their names.
    controls : dict of str to widget
        In the order in which they are shown.

    Attributes
    ----------
    controls : dict of str to widget
    image : widgets.Image
        The picture of the present state, as PNG bytes.
    """

    def __init__(self, layers, controls):
        self.controls = controls
        self._layers, self._theme, self._ahead = layers, Theme(), []
        self._background = lru_cache(KEPT_BACKGROUNDS)(self._draw_background)
        self._picture = lru_cache(KEPT_PICTURES)(self._draw)
        # As large as it was drawn, or as wide as there is room: a stretched picture is blurred.
        layout = widgets.Layout(align_self="flex-start", max_width="100%", height="auto")
        self.image = widgets.Image(format="png", layout=layout)
        self._redraw()
        rows = widgets.Layout(display="flex", flex_flow="row wrap")
        super().__init__([widgets.Box(list(controls.values()), layout=rows), self.image])
        for control in controls.values():
            control.observe(self._redraw, names="value")
        self._theme.observe(self._change_theme, names="dark")

    def draw_ahead(self, name):
        """Draw the pictures of all values of a control, so that its drag shows what is there."""
        self._ahead.append(name)
        for _, value in self.controls[name].options:
            self._picture(self._theme.dark, **self._state() | {name: value})

    def strips(self, most=7):
        """What each control shows along its way, the others as they stand: a lab without a kernel.

        Parameters
        ----------
        most : int
            Positions of one control: of more, so many are taken, its ends and where it stands
            among them.

        Returns
        -------
        list of dict
            A dict for each control that changes the picture, in their order: ``name``;
            ``positions``, a list of texts; ``start``, the index of where it stands; ``pictures``,
            PNG bytes with their dark twins, one for each position.
        """
        strips = [self._strip(name, most) for name in self.controls]
        return [strip for strip in strips if len(set(strip["pictures"])) > 1]

    def _strip(self, name, most):
        control, before = self.controls[name], self._state()
        stops = _stops(control)
        values = [value for _, value in stops]
        start = values.index(control.value)
        taken = _spread(len(stops), start, most)
        pictures = []
        try:
            for index in taken:
                control.value = values[index]
                pictures.append(self._in_both_themes())
        finally:
            for other, value in before.items():  # a control may have moved the ends of another
                self.controls[other].value = value
        return {
            "name": control.description,
            "positions": [stops[index][0] for index in taken],
            "start": taken.index(start),
            "pictures": pictures,
        }

    def _in_both_themes(self):
        light, dark = (
            np.asarray(Image.open(io.BytesIO(self._draw(dark, **self._state()))))
            for dark in (False, True)
        )
        return png_of_both(light, dark, DPI)

    def _state(self):
        return {name: control.value for name, control in self.controls.items()}

    def _redraw(self, _change=None):
        self.image.value = self._picture(self._theme.dark, **self._state())

    def _change_theme(self, _change):
        self._redraw()
        ahead, self._ahead = self._ahead, []
        for name in ahead:
            self.draw_ahead(name)

    def _draw_background(self, dark, *background_state):
        """A figure, its canvas, and the pixels of its background."""
        figure = self._layers.background(*background_state)
        canvas = (DarkCanvas if dark else FigureCanvasAgg)(figure)
        canvas.draw()
        return figure, canvas, canvas.copy_from_bbox(figure.bbox)

    @own_style
    def _draw(self, dark, **state):
        background_state = self._layers.background_state(**state)
        figure, canvas, pixels = self._background(dark, *background_state)
        canvas.restore_region(pixels)
        artists = self._layers.foreground(figure, **state)
        for artist in sorted(artists, key=lambda artist: artist.get_zorder()):
            figure.draw_artist(artist)
            artist.remove()
        return _png(canvas)

    def __repr__(self):
        # What is stored as text, and shown where there are no widgets.
        return FALLBACK


def _stops(control):
    """All ``(text, value)`` at which a control can stand."""
    if hasattr(control, "options"):
        return list(control.options)
    return [(str(value), value) for value in range(control.min, control.max + 1)]


def _spread(count, start, most):
    """At most so many of ``range(count)``, evenly: both ends, and ``start`` for its neighbour."""
    if count <= most:
        return list(range(count))
    taken = {round(place) for place in np.linspace(0, count - 1, most)}
    inner = taken - {0, count - 1, start}
    if start not in taken:
        taken -= {min(inner, key=lambda place: abs(place - start))}
    return sorted(taken | {start})


def _png(canvas):
    """PNG bytes, in a third of the time that the smallest file would take."""
    buffer = io.BytesIO()
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    pixels.save(buffer, format="png", compress_level=1)
    return buffer.getvalue()


def slider(name, values, value, text=str, tooltip=None):
    """A slider over the given values, which shows the present one as text, with its unit.

    Parameters
    ----------
    name : str
        Shown beside it.
    values : sequence
        In ascending order; ``value`` is put in its place where it is not among them.
    value : object
        Where the slider stands first.
    text : callable
        A value as text.
    tooltip : str, optional
        Shown when the mouse rests on it.
    """
    others = {each for each in values if text(each) != text(value)}  # no two stops look alike
    return widgets.SelectionSlider(
        options=[(text(each), each) for each in sorted({*others, value})],
        value=value,
        description=name,
        tooltip=tooltip or name,
        **_looks(),
    )


def menu(name, options, value):
    """A menu of ``{text: value}``."""
    return widgets.Dropdown(
        options=list(options.items()), value=value, description=name, tooltip=name, **_looks()
    )


def whole_numbers(name, low, high, value):
    """A slider over ``low``, ... ``high``; its ends may be moved later."""
    return widgets.IntSlider(
        min=low, max=high, value=value, description=name, tooltip=name, **_looks()
    )


def _looks():
    return {
        "style": {"description_width": NAME_WIDTH},
        "layout": widgets.Layout(width=CONTROL_WIDTH, max_width="100%"),
    }


def round_numbers(low, high):
    """The round numbers of a logarithmic slider from low to high, ten to a decade."""
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    # Written and read as text: 3 * 10.0**-6 would not be the 3e-06 that somebody types.
    found = [float(f"{step}e{exponent}") for exponent in exponents for step in STEPS]
    return [number for number in found if low <= number <= high]


def check_choice(name, value, choices):
    """Refuse a value that is none of the choices; 2.0 is not 2."""
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise InvalidCallError(f"{name} is {value!r}: choose one of {', '.join(map(str, choices))}")


def check_above_zero(**numbers):
    """Refuse what is no number above zero."""
    for name, value in numbers.items():
        check_number(name, value, above=True)


def short_bandwidth(bandwidth_Bps):
    """A bandwidth as a short text: ``"1.25 GB/s"``."""
    return f"{short_bytes(bandwidth_Bps)}/s"


# -- boxes and numbers -----------------------------------------------------------------------------

NUMBER_PT = 7.5
NOTHING, NO_CODES = np.empty((0, 2)), np.empty(0, dtype=Path.code_type)


def boxes_at(x, y, width, height):
    """Rectangles with these upper left corners: array (count, 4, 2)."""
    xs, ys = np.stack([x, x + width, x + width, x], 1), np.stack([y, y, y + height, y + height], 1)
    return np.stack([xs, ys], axis=2)


def add_boxes(axes, boxes, zorder, **looks):
    """Add polygons, array (count, corners, 2), as one artist; returns it."""
    drawn = PolyCollection(boxes, zorder=zorder, **looks)
    axes.add_collection(drawn, autolim=False)
    return drawn


def add_numbers(axes, x, y, numbers, colors, zorder=4):
    """Write a number around each point, readable on its box's colour; returns the artists.

    One artist for each number that there is.
    """
    artists = []
    for number in np.unique(numbers):
        here = numbers == number
        inks = [readable_on(color) for color, is_here in zip(colors, here, strict=True) if is_here]
        written = PathCollection(
            [_outline(int(number))],
            offsets=np.column_stack([x[here], y[here]]),
            offset_transform=axes.transData,
            facecolors=inks,
            linewidths=0,
            zorder=zorder,
        )
        written.set_transform(Affine2D().scale(DPI / 72))
        axes.add_collection(written, autolim=False)
        artists.append(written)
    return artists


def add_words(axes, x, y, texts, colors, left=False, zorder=4):
    """Write a text around each point, or to the right of it, as one artist; returns it.

    Its label is all texts, one line each.
    """
    written = PathCollection(
        [_word(text, left) for text in texts],
        offsets=np.column_stack([x, y]),
        offset_transform=axes.transData,
        facecolors=colors,
        linewidths=0,
        zorder=zorder,
        label="\n".join(texts),
    )
    written.set_transform(Affine2D().scale(DPI / 72))
    axes.add_collection(written, autolim=False)
    return written


@cache
def _outline(number):
    """The outline of a number, in points, around its middle."""
    path = TextPath((0, 0), str(number), size=NUMBER_PT)
    box = path.get_extents()
    return path.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))


@lru_cache(4096)
def _word(text, left):
    """The outline of a text, in points, letter by letter: as one it would take 20 times as long."""
    letters = [_letter(letter) for letter in text]
    starts = np.cumsum([0.0] + [advance for _, advance in letters])
    height = _letter("0")[0].vertices[:, 1].max()
    corner = np.array([0.0 if left else starts[-1] / 2, height / 2])
    parts = [
        path.vertices + (start, 0) - corner
        for (path, _), start in zip(letters, starts, strict=False)
    ]
    codes = [path.codes for path, _ in letters]
    return Path(np.concatenate([NOTHING, *parts]), np.concatenate([NO_CODES, *codes]))


@cache
def _letter(letter):
    """The outline of a letter, in points, and how far the next one is from it."""
    width = text_to_path.get_text_width_height_descent(
        letter, FontProperties(size=NUMBER_PT), ismath=False
    )[0]
    if letter == " ":
        return Path(NOTHING, NO_CODES), width
    return TextPath((0, 0), letter, size=NUMBER_PT), width


def width_of(number):
    """Inches that a number takes."""
    return _outline(number).get_extents().width / 72


@cache
def readable_on(color):
    """Black or white, whichever is easier to read on a colour, here and on dark paper."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    if 0.299 * red + 0.587 * green + 0.114 * blue > 130:
        return INK_THAT_STAYS if is_bright(on_dark(color)) else "#000000"
    return PAPER if is_bright(on_dark(color)) else PAPER_THAT_STAYS


# -- logarithmic axes, the upright one of seconds --------------------------------------------------


def add_log_axes(figure, place, x_text, x_name, y_name, grid=True, **y_looks):
    """Add axes to a figure: a quantity to the right, seconds upwards.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    place : list of float
        Left, bottom, width and height, as shares of the figure.
    x_text : callable
        A value of the horizontal axis as text.
    x_name, y_name : str
    grid : bool
    **y_looks
        Further options of the vertical axis's name.

    Returns
    -------
    matplotlib.axes.Axes
    """
    axes = figure.add_axes(place, facecolor=PAPER)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x_name, fontsize=TEXT_PT)
    axes.set_ylabel(y_name, fontsize=TEXT_PT, **y_looks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: x_text(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time_s, _: seconds_text(time_s)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())  # drawing them takes most of the time
    axes.tick_params(which="both", labelsize=SMALL_PT, labelcolor=INK, color=GREY)
    if grid:
        axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def picture_in_inches(width, height):
    """A figure, and axes over all of it whose units are inches, from the upper left corner."""
    figure = Picture(figsize=(width, height), dpi=DPI, facecolor=PAPER)
    axes = figure.add_axes([0, 0, 1, 1], facecolor=PAPER)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return figure, axes


def write_title(figure, y, *lines):
    """Write lines below one another: the title from ``y`` down, then smaller ones."""
    sizes = TITLE_PT, TEXT_PT, TEXT_PT
    places = y, y - 0.056, y - 0.103
    return [
        figure.text(0.012, place, text, fontsize=size, va="top")
        for place, text, size in zip(places, lines, sizes, strict=False)
    ]


def add_legend_above(axes, handles, names, **looks):
    """Explain what is drawn in one line above the axes."""
    axes.legend(
        handles,
        names,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=len(names),
        fontsize=TEXT_PT,
        frameon=False,
        borderpad=0,
        columnspacing=1.4,
        **looks,
    )
