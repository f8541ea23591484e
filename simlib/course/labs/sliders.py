"""The common code of all labs: sliders over a picture.

A picture is PNG bytes in an image widget, light or dark like the page's theme. A slider sends its
next value only after the kernel has answered to the value before (ipywidgets' throttling). So if
drawing is slower than a drag, the lab skips some values, but it always draws the last value.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection
from functools import lru_cache, wraps
from inspect import signature, unwrap
from typing import Any, NamedTuple, ParamSpec, TypeAlias

import anywidget
import ipywidgets as widgets
import numpy as np
import traitlets
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ...core.draw.dark import DarkCanvas, png_of_both
from ...core.draw.figures import DPI, own_style
from ...core.model.errors import InvalidCallError, check_number
from ...core.model.words import short_bytes


class Theme(anywidget.AnyWidget):
    """An invisible widget by which the page reports its theme.

    Attributes
    ----------
    dark : bool
        Whether the theme is dark. A new widget starts with the theme that the page reported last,
        so that a lab does not flash.
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
    """The layers of a lab's picture: the base class of all labs' pictures.

    A state consists of the values of the lab's controls, in order or by name. simlib draws the
    background once for many states. The foreground is above the background, and simlib draws it
    again for each state.

    Attributes
    ----------
    controls : dict of str to Control
        The controls, in order, by the names of a state's values.
    """

    controls: dict[str, Control] = {}

    def check(self, *state):
        """Refuse a state that cannot be drawn."""
        for (name, control), value in zip(self.controls.items(), state, strict=True):
            if control.choices is not None:
                check_choice(name, value, control.choices)

    def background_state(self, *state, **named):
        """The values on which the background depends, as hashable arguments of `background`."""
        return ()

    def background(self, *background_state):
        """The Figure with all parts that stay the same during most of a drag."""
        raise NotImplementedError

    def foreground(self, figure, *state, **named):
        """Add all other parts to the figure. Returns their artists."""
        return []

    @own_style
    def draw(self, *state):
        """The whole picture of a state: a Figure."""
        self.check(*state)
        figure = self.background(*self.background_state(*state))
        self.foreground(figure, *state)
        return figure

    def lab(self, *state):
        """The `Lab` whose controls first have the values of a state."""
        self.check(*state)
        controls = zip(self.controls.items(), state, strict=True)
        widgets = {name: control.widget(value) for (name, control), value in controls}
        self.tie(widgets)
        return Lab(self, widgets)

    def tie(self, widgets):
        """Make some widgets follow other widgets, or remove widgets. Changes ``widgets`` in
        place."""


View: TypeAlias = tuple[Any, ...]
"""The result of a view: `Layers`, followed by the values of a state."""
P = ParamSpec("P")


def picture(view: Callable[P, View]) -> Callable[P, Figure]:
    """Turn a function that returns a view into a function that draws it."""

    @wraps(view)
    def draw(*args: P.args, **named: P.kwargs) -> Figure:
        layers, *state = view(*args, **named)
        return layers.draw(*state)

    return _returning("Figure", draw)


def lab_of(draw: Callable[P, Figure], what: str) -> Callable[P, Lab]:
    """Make a ``..._lab`` from a ``draw_...``, with the same parameters.

    Parameters
    ----------
    draw : callable
        A function made by `picture`.
    what : str
        A description of the controls, for the docstring of the lab.
    """
    view = unwrap(draw)

    @wraps(draw)
    def lab(*args: P.args, **named: P.kwargs) -> Lab:
        layers, *state = view(*args, **named)
        return layers.lab(*state)

    lab.__name__ = lab.__qualname__ = f"{draw.__name__.removeprefix('draw_')}_lab"
    parameters = ", ".join(signature(view).parameters)
    lab.__doc__ = f"""Show the picture of `{draw.__name__}` with {what}.

    Parameters
    ----------
    {parameters}
        The values with which the controls start, as for `{draw.__name__}`.

    Returns
    -------
    Lab
    """
    return _returning("Lab", lab)


def _returning(kind, function):
    """The function, with this type of return value in its signature."""
    function.__signature__ = signature(function).replace(return_annotation=kind)
    return function


# -- a lab -----------------------------------------------------------------------------------------

FALLBACK = "A lab: run this notebook in JupyterLab to move its sliders."
NAME_WIDTH, CONTROL_WIDTH = "130px", "430px"
KEPT_BACKGROUNDS, KEPT_PICTURES = 8, 128  # of some 4 MB, of some 50 kB each
STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)  # of a decade: what people call round numbers


class Lab(widgets.VBox):
    """Controls above the picture that they change.

    Parameters
    ----------
    layers : Layers
        The picture. Its states are the values of the controls, by their names.
    controls : dict of str to widget
        The controls in the order in which they are shown.

    Attributes
    ----------
    controls : dict of str to widget
    image : widgets.Image
        The picture of the current state, as PNG bytes.
    """

    def __init__(self, layers, controls):
        self.controls = controls
        self._layers, self._theme, self._ahead = layers, Theme(), []
        self._background = lru_cache(KEPT_BACKGROUNDS)(self._draw_background)
        self._picture = lru_cache(KEPT_PICTURES)(self._draw)
        # The size at which it was drawn, or smaller, because a stretched picture is blurred.
        layout = widgets.Layout(align_self="flex-start", max_width="100%", height="auto")
        self.image = widgets.Image(format="png", layout=layout)
        self._redraw()
        rows = widgets.Layout(display="flex", flex_flow="row wrap")
        super().__init__([widgets.Box(list(controls.values()), layout=rows), self.image])
        for control in controls.values():
            control.observe(self._redraw, names="value")
        self._theme.observe(self._change_theme, names="dark")

    def draw_ahead(self, name):
        """Draw the pictures of all values of a control in advance, so that a drag is smooth."""
        self._ahead.append(name)
        for _, value in self.controls[name].options:
            self._picture(self._theme.dark, **self._state() | {name: value})

    def strips(self, most=7):
        """For a lab without a kernel: pictures at each control's positions, with other controls
        fixed.

        Parameters
        ----------
        most : int
            The largest number of positions of one control. If a control has more, simlib chooses
            this many positions, including both ends and the current position.

        Returns
        -------
        list of dict
            One dict for each control that changes the picture, in order. ``name`` is the name of
            the control, ``positions`` is a list of texts, and ``start`` is the index of the current
            position. ``pictures`` contains PNG bytes for each position, light and dark.
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
        # This text is stored, and shown if widgets cannot be shown.
        return FALLBACK


def _stops(control):
    """All positions ``(text, value)`` of a control."""
    if hasattr(control, "options"):
        return list(control.options)
    return [(str(value), value) for value in range(control.min, control.max + 1)]


def _spread(count, start, most):
    """At most ``most`` of ``range(count)``, evenly spread, with both ends and ``start``."""
    if count <= most:
        return list(range(count))
    taken = {round(place) for place in np.linspace(0, count - 1, most)}
    inner = taken - {0, count - 1, start}
    if start not in taken:
        taken -= {min(inner, key=lambda place: abs(place - start))}
    return sorted(taken | {start})


def _png(canvas):
    """PNG bytes. The fast compression takes a third of the time of the best compression."""
    buffer = io.BytesIO()
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    pixels.save(buffer, format="png", compress_level=1)
    return buffer.getvalue()


class Control(NamedTuple):
    """A control of a lab. ``widget(value)`` makes its widget. ``choices`` are its possible values.

    If ``choices`` is empty, all values are possible.
    """

    widget: Callable
    choices: Collection | None = None


def slider(name, values, text=str, only=False):
    """A slider over the given values, which shows the current value as text, with its unit.

    Parameters
    ----------
    name : str
        The name next to the slider.
    values : collection
        The values. If the value with which the slider starts is not among these, the slider adds
        it.
    text : callable
        ``text(value)`` is the text for a value.
    only : bool
        Whether the slider accepts only these values.
    """

    def widget(value):
        others = {each for each in values if text(each) != text(value)}  # no two stops look alike
        options = [(text(each), each) for each in sorted({*others, value})]
        return widgets.SelectionSlider(options=options, **_looks(name, value))

    return Control(widget, values if only else None)


def menu(name, options):
    """A menu of ``{text: value}``."""

    def widget(value):
        return widgets.Dropdown(options=list(options.items()), **_looks(name, value))

    return Control(widget, options.values())


def whole_numbers(name, low, high):
    """A slider over ``low``, ... ``high``, or up to its start value. Code may move its ends."""

    def widget(value):
        return widgets.IntSlider(min=low, max=max(high, value), **_looks(name, value))

    return Control(widget)


def _looks(name, value):
    return {
        "value": value,
        "description": name,
        "tooltip": name,
        "style": {"description_width": NAME_WIDTH},
        "layout": widgets.Layout(width=CONTROL_WIDTH, max_width="100%"),
    }


def round_numbers(low, high):
    """The round numbers of a logarithmic slider from low to high, ten in each decade."""
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    # Written and read as text, because 3 * 10.0**-6 is not equal to the 3e-06 that people type.
    found = [float(f"{step}e{exponent}") for exponent in exponents for step in STEPS]
    return [number for number in found if low <= number <= high]


def check_choice(name, value, choices):
    """Refuse a value that is not one of the choices. 2.0 does not count as 2."""
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise InvalidCallError(f"{name} is {value!r}: choose one of {', '.join(map(str, choices))}")


def check_above_zero(**numbers):
    """Refuse a value that is not a number above zero."""
    for name, value in numbers.items():
        check_number(name, value, above=True)


def short_bandwidth(bandwidth_Bps):
    """A bandwidth as a short text: ``"1.25 GB/s"``."""
    return f"{short_bytes(bandwidth_Bps)}/s"
