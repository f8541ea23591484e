"""A picture in two themes, in one file: a PNG that also holds what it is on dark paper.

Whoever knows nothing of it shows the light picture. The course's extension of JupyterLab
(`scripts/lab_extensions`) shows the other one where the theme is dark. The dark twin is a chunk of
the PNG: another palette for the same pixels, some 800 bytes, or where that is not enough a whole
PNG.
"""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

CHUNK = b"daRK"
"""By its letters' cases: not needed to show the picture, private, and gone where pixels change."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLORS = 256
"""Rows of a palette."""
FEWER = 224
"""Colours of a light picture that leaves rows free, for what is one colour there and two here."""
SEEN, FEW = 100, 1e-4
"""What is too far from what was drawn, in a channel, of 255; and what share of pixels may be."""


def png_of_both(light, dark, dpi):
    """The PNG of a light picture with its dark twin.

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
    return joined(_saved(rows, palette, dpi), _saved(rows, dark_palette, dpi))


def reduced(pixels, colors=COLORS):
    """Few colours for a picture: a row of the palette for each pixel, and the palette.

    Those of these pictures fit a palette, which makes the file three times smaller.
    """
    method, dither = Image.Quantize.MEDIANCUT, Image.Dither.NONE
    small = Image.fromarray(pixels).quantize(colors, method=method, dither=dither)
    used = np.reshape(small.getpalette("RGB"), (-1, 3))
    return np.array(small), np.vstack([used, np.zeros((COLORS - len(used), 3))])


def smaller(png):
    """A PNG of few colours in place of one of millions, without what shines through."""
    image = Image.open(io.BytesIO(png))
    rows, palette = reduced(np.asarray(image.convert("RGB")), COLORS // 2)
    return _saved(rows, palette, *image.info.get("dpi", (72,))[:1])


def _split(rows, palette, dark):
    """Give the free rows to colours that are one on light paper and two on dark; in place."""
    misses = np.square(dark - _means(rows, dark)[rows]).sum(axis=-1) ** 2  # few large ones count
    is_used = np.bincount(rows.ravel(), minlength=COLORS) > 0
    worst = [row for row in np.argsort(-_sums(rows, misses), kind="stable") if is_used[row]]
    free = np.flatnonzero(~is_used)
    brightness = dark.sum(axis=-1)
    for row, new in zip(worst, free, strict=False):
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


def joined(light, dark):
    """The PNG ``light`` with the PNG ``dark`` as its twin; as its palette where no more differs."""
    (begin, end), (dark_begin, dark_end) = palette_of(light), palette_of(dark)
    only_palette = begin and light[:begin] + light[end:] == dark[:dark_begin] + dark[dark_end:]
    twin = dark[dark_begin:dark_end] if only_palette else dark
    last = light.rindex(b"IEND") - 4
    checked = CHUNK + twin
    chunk = struct.pack(">I", len(twin)) + checked + struct.pack(">I", zlib.crc32(checked))
    return light[:last] + chunk + light[last:]


def dark_variant(png):
    """The dark twin of a PNG, a PNG of its own; None where it has none."""
    twin = next(
        (png[begin + 8 : end - 4] for name, begin, end in chunks(png) if name == CHUNK), None
    )
    if twin is None or twin.startswith(SIGNATURE):
        return twin
    begin, end = palette_of(png)
    return png[:begin] + twin + png[end:]


def palette_of(png):
    """Where the palette's chunk of a PNG begins and ends; ``(0, 0)`` where it has none."""
    return next(((begin, end) for name, begin, end in chunks(png) if name == b"PLTE"), (0, 0))


def chunks(png):
    """The chunks of a PNG: ``(name, begin, end)``, all of the chunk's bytes counted."""
    begin = len(SIGNATURE)
    while begin < len(png):
        (length,) = struct.unpack_from(">I", png, begin)
        yield png[begin + 4 : begin + 8], begin, begin + length + 12
        begin += length + 12
