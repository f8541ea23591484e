"""One colour per rank, the same in every picture. Pure Python."""

from __future__ import annotations

# Okabe and Ito's set (https://jfly.uni-koeln.de/color/), told apart by every common sort of
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
"""Shares of black in the colours of ranks 0 to 7, 8 to 15, 16 to 23. Lighter ones would look like
lanes that transfer."""


def rank_color(rank):
    """The rank's colour as ``"#rrggbb"``; ranks 24, 25, ... begin again with the first."""
    color = OKABE_ITO[rank % len(OKABE_ITO)]
    share = DARKER[rank // len(OKABE_ITO) % len(DARKER)]
    return mix(color, "#ffffff" if color == "#000000" else "#000000", share) if share else color


def mix(color, other, share):
    """``color`` with ``share`` (0..1) of ``other`` mixed in, as ``"#rrggbb"``."""
    pairs = zip(_channels(color), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _channels(color):
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]
