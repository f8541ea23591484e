"""A run, or several on one time axis, as a page of its own: no kernel, no network."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ...model.errors import InvalidCallError
from ...model.words import seconds_text
from ..dark import dark_variant
from ..figures import png_of
from ..lanes import Between, Ranks, last_moment
from .scene import FOLDER, SCRIPTS, STYLE, scene_of

SUFFIXES = (".html", ".htm")
DIGITS = 9
"""Times are rounded to so many digits of the time that is shown: the zoom goes to a 1e-5 of it."""
MAX_OUTPUT = 20_000
"""Letters that a page holds of what all ranks have printed."""


def save_page(
    path: str | Path,
    title: str,
    runs: Sequence[Any],
    names: Sequence[str] | None = None,
    shown: tuple[Ranks, Between] = (None, None),
    more: Sequence[str] = (),
) -> Path:
    """Write runs as one HTML file, and return its path.

    Parameters
    ----------
    path : str or Path
        A file that ends in .html; one that is there is written anew.
    title : str
    runs : sequence of Run
        Several are shown on one time axis, and play together.
    names : sequence of str, optional
        What the runs are called beside each other.
    shown : tuple
        ``ranks`` and ``between``, as for `scene_of`.
    more : sequence of str
        Further parts of the page, as HTML.

    Raises
    ------
    InvalidCallError
        The path is that of no page, or its folder is not there; or as `scene_of`.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidCallError(f"{path.name} is no page: name a file that ends in .html")
    if not path.parent.is_dir():
        raise InvalidCallError(f"there is no folder {path.parent} for {path.name}")
    page = page_of(title, runs, names, *shown, more)
    path.write_bytes(html_of(page).encode("utf-8", "replace"))
    return path


def page_of(
    title: str,
    runs: Sequence[Any],
    names: Sequence[str] | None = None,
    ranks: Ranks = None,
    between: Between = None,
    more: Sequence[str] = (),
) -> dict[str, Any]:
    """What a page holds, as JSON for `html_of`; arguments as for `save_page` and `scene_of`.

    Returns
    -------
    dict
        ``title``; ``scenes``, a list of one scene a run; ``verdicts`` and ``more``, lists of HTML.
    """
    scenes = _rounded(_scenes(runs, names, ranks, between))
    verdicts = [words for words in map(_verdict, runs) if words]
    return {"title": title, "scenes": scenes, "verdicts": verdicts, "more": list(more)}


def parts_of(run: Any) -> list[str]:
    """What a page tells of a run below its player: the table, and what its ranks have printed."""
    parts = [_folded("Who sent what to whom", run.table())]
    printed = "".join(
        f"[{rank}] {line}\n" for rank, text in enumerate(run.output) for line in text.splitlines()
    )
    if len(printed) > MAX_OUTPUT:
        left_out = len(printed) - MAX_OUTPUT
        printed = f"{printed[:MAX_OUTPUT]}\n... and {left_out:,} more letters"
    if printed:
        parts.append(_folded("What the ranks printed", printed))
    return parts


def differences_of(comparison: Any) -> list[str]:
    """What of a `Comparison` is not the same in all runs, and then what is, as HTML."""
    runs = zip(comparison.names, comparison.runs, strict=True)
    times = ", ".join(
        f"{name} took {seconds_text(run.time_s)}" for name, run in runs if run.time_s is not None
    )
    rows = [*comparison.differences, *comparison.common]
    lines = [
        (name, op.label, line, str(count))
        for op in comparison.differences
        for name, by_line in zip(comparison.names, op.lines, strict=True)
        for line, count in by_line.items()
    ]
    many = len(comparison.differences)
    sorts = "1 sort of op came" if many == 1 else f"{many} sorts of ops came"
    told = (
        f"{sorts} more often in one run than in another."
        if many
        else "All sorts of ops came equally often in all runs."
    )
    parts = [
        f"<h2>Differences</h2><p>{escape(times)}{'. ' if times else ''}{escape(told)}</p>",
        _table(
            ("op", *comparison.names),
            [(op.label, *map(str, op.counts)) for op in rows],
            [op.is_common for op in rows],
        ),
    ]
    if lines:
        parts.append(_table(("run", "op", "line", "times"), lines, [False] * len(lines)))
    return parts


def _scenes(runs, names, ranks, between):
    """The scenes of the runs, all over the same time."""
    if between is None:
        between = 0.0, max(map(last_moment, runs))
    scenes = [scene_of(run, ranks, between) for run in runs]
    for scene, name in zip(scenes, names or [None] * len(scenes), strict=True):
        if name is not None and not scene["title"].startswith(f"{name} on "):
            scene["title"] = f"{name}: {scene['title']}"
    return scenes


def _verdict(run):
    """What a run ended in, or has found: the words, and who waits for whom, in both themes."""
    told = [run.failure] if run.failure is not None else map(str, run.findings)
    words = "".join(f'<pre class="verdict">{escape(one)}</pre>' for one in told)
    if run.graph is None:
        return words
    light = png_of(run.graph.picture())
    pictures = {"light": light, "dark": dark_variant(light) or light}
    images = "".join(
        f'<img class="{theme}" alt="{escape(run.graph.in_words())}" '
        f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for theme, png in pictures.items()
    )
    return f'{words}<div class="graph">{images}</div>'


def html_of(page: Mapping[str, Any]) -> str:
    """The page of what `page_of` gave, as HTML."""
    title, scenes = page["title"], page["scenes"]
    style = STYLE + (FOLDER / "page.css").read_text(encoding="utf-8")
    script = "\n".join(
        (FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in (*SCRIPTS, "page")
    )
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    # In a script's text "<" could end it or open another one, whatever stands in the strings.
    data = json.dumps(scenes, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style></head>",
            f"<body{' class=one' if len(scenes) == 1 else ''}><header>",
            f"<h1>{escape(title)}</h1>",
            '<button id="theme" type="button">Dark</button></header><main>',
            *page["verdicts"],
            *(f'<section class="run" id="run-{index}"></section>' for index in range(len(scenes))),
            "<noscript><p>The run plays where JavaScript is permitted.</p>",
            *(f"<p>{escape(scene['words'])}</p>" for scene in scenes),
            "</noscript>",
            *page["more"],
            "</main>",
            f'<script type="application/json" id="scenes">{data}</script>',
            f'<script type="module">{script}</script>',
            "</body></html>",
            "",
        ]
    )


def _hash(text):
    """The name of an inline script or style in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _rounded(scenes):
    """Scenes with lists of like entries as columns, and times no finer than can be seen."""
    span_s = max(scene["end"] - scene["begin"] for scene in scenes)
    digits = DIGITS - math.floor(math.log10(span_s))
    return [_packed(scene, digits) for scene in scenes]


def _packed(value, digits):
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {key: _packed(one, digits) for key, one in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    value = list(value)
    if len(value) > 1 and all(isinstance(one, dict) for one in value):
        names = list(value[0])
        if all(list(one) == names for one in value):
            columns = {name: _column([one[name] for one in value], digits) for name in names}
            return {"columns": columns, "length": len(value)}
    return [_packed(one, digits) for one in value]


def _column(values, digits):
    """A column as it is; one of words as the different words, and which of them stands where."""
    if not all(isinstance(value, str) for value in values):
        return _packed(values, digits)
    words = {word: index for index, word in enumerate(dict.fromkeys(values))}
    return {"words": list(words), "at": [words[value] for value in values]}


def _folded(summary, text):
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def _table(head, rows, is_quiet):
    titles = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = [
        f"<tr{' class=common' if quiet else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row, quiet in zip(rows, is_quiet, strict=True)
    ]
    return f'<div class="wide"><table><tr>{titles}</tr>{"".join(lines)}</table></div>'
