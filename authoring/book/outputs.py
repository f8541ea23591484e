"""Outputs of a stored notebook as the book shows them: runs that play, labs, pictures twice."""

import base64
import hashlib
import json
from html import escape
from pathlib import Path

from simlib.core.draw.dark import dark_variant
from simlib.core.draw.player.page import html_of

PNG = "image/png"
LANE_PX, AROUND_LANES_PX = 46, 190
"""What a player is high, about, until it has told."""


class Assets:
    """Files beside the pages of the book: written once each, named by where readers find them.

    Parameters
    ----------
    folder : Path
        Becomes the root of the book, with ``runs/`` and ``pictures/``.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        for kind in ("runs", "pictures"):
            (self.folder / kind).mkdir(parents=True, exist_ok=True)

    def run(self, name, page):
        """Write the page of a run; returns its address from the root."""
        path = self.folder / "runs" / f"{name}.html"
        path.write_text(html_of(page), encoding="utf-8")
        return f"runs/{path.name}"

    def picture(self, png):
        """Write a picture, named by what it holds; returns its address from the root."""
        name = hashlib.sha256(png).hexdigest()[:16]
        (self.folder / "pictures" / f"{name}.png").write_bytes(png)
        return f"pictures/{name}.png"


def picture_html(assets, root, png, alt=""):
    """A picture, and its twin for the dark theme where it has one."""
    dark = dark_variant(png)
    shown = [("only-light", png), ("only-dark", dark)] if dark else [("", png)]
    return "".join(
        f'<img class="rbr-picture dark-light {theme}" loading="lazy" alt="{escape(alt)}" '
        f'src="{root}{assets.picture(data)}">'
        for theme, data in shown
    )


def run_html(assets, root, name, page, printed=""):
    """The frame in which a run plays; on paper ``printed`` stands in its place."""
    height = AROUND_LANES_PX + LANE_PX * max(map(_lanes, page["scenes"]))
    address = root + assets.run(name, page)
    title = escape(f"Player: {page['title']}")
    return (
        f'<div class="rbr-run"><iframe loading="lazy" title="{title}" data-src="{address}" '
        f'height="{height}"></iframe>'
        f'<a class="rbr-alone" href="{address}" target="_blank">Open this run alone</a></div>'
        f'<div class="rbr-printed">{printed}</div>'
    )


def lab_html(assets, root, strips):
    """A lab whose sliders move one at a time, over pictures drawn beforehand."""
    for strip in strips:
        pngs = [base64.b64decode(text) for text in strip["pictures"]]
        strip["light"] = [root + assets.picture(png) for png in pngs]
        strip["dark"] = [root + assets.picture(dark_variant(png) or png) for png in pngs]
    kept = ("name", "positions", "start", "light", "dark")
    data = json.dumps([{key: strip[key] for key in kept} for strip in strips])
    first = strips[0]["light"][strips[0]["start"]]
    return (
        f'<div class="rbr-lab" data-strips="{escape(data)}"><img class="rbr-picture dark-light" '
        f'src="{first}" alt="The picture that these sliders move"></div>'
    )


def book_outputs(cell, pages, assets, root, language=""):
    """The outputs of a cell, as the book shows them.

    Parameters
    ----------
    cell : NotebookNode
        A code cell.
    pages : dict
        What plays of the notebook, by name (`playable.read_pages`).
    assets : Assets
    root : str
        The way from the page to the root of the book.
    language : str
        Of a translation, whose cells have the names of the original's.
    """
    shown = []
    for place, output in enumerate(cell.outputs):
        name = f"{cell.id}-{place}"
        data = output.get("data", {})
        said = output.get("metadata", {}).get(PNG, {}).get("alt", "")
        unique = f"{language}-{name}" if language else name
        html = _html(unique, data, said, pages.get(f"{name}.json", {}), assets, root)
        if html:
            output.data, output.metadata = {"text/html": html}, {}
        if "data" not in output or any(map(bool, output.data.values())):
            shown.append(output)
    return shown


def _html(name, data, said, page, assets, root):
    """An output as HTML; None where it stays as it is."""
    if "lab" in page:
        return lab_html(assets, root, page["lab"])
    png = base64.b64decode(data[PNG]) if PNG in data else None
    text = "".join(data.get("text/plain", ""))
    spoken = said or ("A figure." if text.startswith("<") else text)
    picture = picture_html(assets, root, png, spoken) if png else ""
    if "run" not in page:
        return picture or None
    run = page["run"]
    if not is_wait_graph(run, text):
        return run_html(assets, root, name, run, picture)
    # The cell's error has the words, and the picture is here: the run itself is what is missing.
    return picture + run_html(assets, root, name, run | {"verdicts": []})


def is_wait_graph(run, text):
    """Whether an output shows who waits for whom, not the run that came to it."""
    return text.startswith("  rank ") and any('class="graph"' in told for told in run["verdicts"])


def _lanes(scene):
    lanes = scene["lanes"]
    return lanes["length"] if isinstance(lanes, dict) else len(lanes)
