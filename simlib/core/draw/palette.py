"""Colours and type sizes of all pictures: one colour per rank, and its variant on dark paper.

Nearly every colour of these pictures is a rank's colour, or a mixture of it with white or black. On
dark paper the palette's own colours stay, so that a rank keeps its colour. White becomes the colour
of the paper, and black becomes white.
"""

from __future__ import annotations

from functools import cache, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..model.trace import Trace

DPI = 110
INK, PAPER, GREY = "#222222", "#ffffff", "#767676"
TITLE_PT, TEXT_PT, SMALL_PT = 10, 8, 7
# Okabe and Ito's set (https://jfly.uni-koeln.de/color/), distinguishable by every common kind of
# colour vision. Their black comes last: as a first colour it would be read as "the special one".
OKABE_ITO = (
    "#0072B2",  # blue
    "#E69F00",  # orange
    "#009E73",  # bluish green
    "#CC79A7",  # reddish purple
    "#56B4E9",  # sky blue
    "#D55E00",  # vermilion
    "#F0E442",  # yellow
    "#000000",  # black
)
DARKER = (0.0, 0.3, 0.55)
"""Shares of black in the colours of ranks 0 to 7, 8 to 15, 16 to 23. Lighter colours would look
like the state "transferring"."""
SHADES = (0.0, 0.5, 0.25, 0.7)
"""Shares of black for the first names of a run's pieces. Further names use the same shares again.
The hue shows the rank, so a named piece of work has a shade of the rank's colour."""
MARK_CONTRAST = 3.0
"""The least contrast of lines and outlines with white paper (WCAG 2.1, 1.4.11)."""
DARK_PAPER = "#111111"  # what lies below the outputs in JupyterLab's dark theme
INK_THAT_STAYS, PAPER_THAT_STAYS = "#010101", "#fefefe"
"""For text on a colour that is the same on dark paper. Black and white would change there."""
BRIGHT = 120
"""On a fill brighter than this (of 255), dark text is easier to read."""
LIGHTER = (0.0, 0.25, 0.6)
"""On dark paper, these shares of white replace the shares of black in `DARKER`."""
NEAR = 1.01 / 255
"""A colour counts as a mixture if its channels are at most this far from the mixture."""


def rank_color(rank: int) -> str:
    """The rank's colour as ``"#rrggbb"``. Rank 24 has the colour of rank 0, and so on."""
    color = OKABE_ITO[rank % len(OKABE_ITO)]
    share = DARKER[rank // len(OKABE_ITO) % len(DARKER)]
    return shaded(color, share) if share else color


def shades_of(trace: Trace) -> dict[str, float]:
    """``{name: share of black}`` of a run's pieces, in the order in which names first appear."""
    names = dict.fromkeys(piece.name for piece in trace.pieces)
    return {name: SHADES[number % len(SHADES)] for number, name in enumerate(names)}


def shaded(color: str, share: float) -> str:
    """A colour with this share of black in it. Black itself gets this share of white."""
    return mix(color, "#ffffff" if color == "#000000" else "#000000", share)


def mix(color: str, other: str, share: float) -> str:
    """``color`` with ``share`` (0..1) of ``other`` mixed in, as ``"#rrggbb"``."""
    pairs = zip(_channels(color), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def visible(color: str, share: float = 0.0) -> str:
    """A colour with this share of black, or with the share that makes it visible on white paper.

    On dark paper such a mixture has white instead, and is as visible, see `on_dark`.
    """
    found = mix(color, "#000000", share)
    while contrast(found, "#ffffff") < MARK_CONTRAST:
        share += 0.02
        found = mix(color, "#000000", share)
    return found


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, 1 to 21, by the Web Content Accessibility Guidelines."""
    low, high = sorted(_luminance(color) for color in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    levels = [channel / 255 for channel in _channels(color)]
    light = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in levels]
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def _channels(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


def is_bright(color: str) -> bool:
    """Whether dark type is easier to read on ``"#rrggbb"`` than light type."""
    return bool(np.array(_channels(color)) @ (0.299, 0.587, 0.114) > BRIGHT)


def on_dark(color: str) -> str:
    """The variant of ``"#rrggbb"`` on dark paper, as ``"#rrggbb"``."""
    found = rgb_on_dark(tuple(_rgb(color)))
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in found)


@lru_cache(4096)
def rgb_on_dark(rgb: tuple[float, ...]) -> tuple[float, ...]:
    """The variant of a colour on dark paper. Both have three channels from 0 to 1."""
    if rgb in _STAYING:
        return rgb
    if max(rgb) - min(rgb) <= NEAR:
        return tuple(_WHITE + (_PAPER - _WHITE) * np.mean(rgb))
    misses, mixed = min((_as_mixture(np.array(rgb), *line) for line in _lines()), key=itemgetter(0))
    return tuple(mixed if misses <= NEAR else flipped(np.array(rgb)))


def flipped(rgb: np.ndarray) -> np.ndarray:
    """Colours of the same hue on dark paper: dark colours become light. An array (..., 3)."""
    as_light_as_dark = rgb + 1 - rgb.max(-1, keepdims=True) - rgb.min(-1, keepdims=True)
    return _PAPER + (1 - _PAPER) * np.clip(as_light_as_dark, 0, 1)


@cache
def _lines():
    """From a rank's colour to white or black: both ends, with their variants on dark paper."""
    lines = []
    for darker, lighter in zip(DARKER, LIGHTER, strict=True):
        for hue in OKABE_ITO[:-1]:  # the last of the set is black
            light = _rgb(mix(hue, "#000000", darker))
            dark = _rgb(hue) + (_WHITE - _rgb(hue)) * lighter
            lines += [(light, _WHITE, dark, _PAPER), (light, _BLACK, dark, _WHITE)]
    return lines


def _as_mixture(rgb, light, light_end, dark, dark_end):
    """The distance of a colour from such a line, and its variant on dark paper."""
    way = light_end - light
    share = np.clip((rgb - light) @ way / (way @ way), 0, 1)
    misses = np.abs(light + share * way - rgb).max()
    if light_end is _BLACK:
        share = np.interp(share, (*DARKER, 1), (*LIGHTER, 1))
    return misses, dark + share * (dark_end - dark)


def _rgb(color: str) -> np.ndarray:
    """The channels of ``"#rrggbb"``, from 0 to 1."""
    return np.array(_channels(color)) / 255


_WHITE, _BLACK, _PAPER = map(_rgb, ("#ffffff", "#000000", DARK_PAPER))
_STAYING = {tuple(_rgb(color)) for color in (INK_THAT_STAYS, PAPER_THAT_STAYS)}
