"""A run, or several on one time axis, as a page of its own: no kernel, no network."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
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
"""Digits of times, relative to the time shown. The zoom can show 1e-5 of this time."""
MAX_OUTPUT = 20_000
"""A page shows at most this many letters of all ranks' output."""


def save_page(path: str | Path, page: Callable[[], Mapping[str, Any]]) -> Path:
    """Write the page from `page_of` as one HTML file, and return its path.

    Parameters
    ----------
    path : str or Path
        A file that ends in .html. An existing file is overwritten.
    page : callable
        A function that makes the page. simlib calls it after it has checked the path.

    Raises
    ------
    InvalidCallError
        The path does not end in .html, or its folder does not exist.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidCallError(f"{path.name} is not a page: name a file that ends in .html")
    if not path.parent.is_dir():
        raise InvalidCallError(f"there is no folder {path.parent} for {path.name}")
    path.write_bytes(html_of(page()).encode("utf-8", "replace"))
    return path


def page_of(
    title: str,
    runs: Sequence[Any],
    names: Sequence[str] | None = None,
    shown: tuple[Ranks, Between] = (None, None),
    more: Sequence[str] = (),
    said: str | None = None,
) -> dict[str, Any]:
    """The contents of a page, as JSON for `html_of`.

    Parameters
    ----------
    title : str
    runs : sequence of Run
        A page shows several runs on one time axis, and plays them together.
    names : sequence of str, optional
        The names of the runs, if there are several.
    shown : tuple
        ``ranks`` and ``between``, as for `scene_of`.
    more : sequence of str
        Further parts of the page, as HTML.
    said : str, optional
        For a page of one run, the text above the player: the run's error or its findings.

    Returns
    -------
    dict
        It contains ``title``, ``scenes`` (a list with a scene for each run), ``verdicts`` and
        ``more`` (lists of HTML).

    Raises
    ------
    InvalidCallError
        As for `scene_of`.
    """
    scenes = _rounded(_scenes(runs, names, *shown))
    verdicts = [words for run in runs if (words := _verdict(run, said))]
    return {"title": title, "scenes": scenes, "verdicts": verdicts, "more": list(more)}


def parts_of(run: Any) -> list[str]:
    """The part of a page below a run's player: the table, and the output of its ranks."""
    parts = [_folded("Who sent what to whom", run.table())]
    printed = "".join(
        f"[{rank}] {line}\n" for rank, text in enumerate(run.output) for line in text.splitlines()
    )
    if len(printed) > MAX_OUTPUT:
        left_out = len(printed) - MAX_OUTPUT
        printed = f"{printed[:MAX_OUTPUT]}\n... and {left_out:,} more characters"
    if printed:
        parts.append(_folded("What the ranks printed", printed))
    return parts


def differences_of(comparison: Any) -> list[str]:
    """The differences of a `Comparison`, and then the equal parts, as HTML."""
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
    sorts = "1 kind of op occurs" if many == 1 else f"{many} kinds of ops occur"
    told = (
        f"{sorts} more often in one run than in another."
        if many
        else "All kinds of ops occur equally often in all runs."
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


def _verdict(run, said=None):
    """A run's error or findings in words, and the picture of its waits, in both themes."""
    told = [run.failure] if run.failure is not None else map(str, run.findings)
    told = told if said is None else [said]
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
    """The page with the contents from `page_of`, as HTML."""
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
            "<noscript><p>The run plays if the browser permits JavaScript.</p>",
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
    """Scenes in which lists of similar entries are columns, and times have only visible digits."""
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
    """A column. For a column of words: the list of different words, and each entry's index in
    it."""
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
