"""Medians, and lines that say what was measured, the goal, and whether it was held."""

from __future__ import annotations

import statistics


def interleave(ways, rounds):
    """Call each way in turn, ``rounds`` times; returns ``{name: list of its values}``.

    A way is a function that returns the value it measured.
    """
    values = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            values[name].append(way())
    return values


def spread(values, scale=1.0, digits=3):
    """Median, and smallest to largest, as text."""
    low, middle, high = (
        f"{value * scale:,.{digits}f}"
        for value in (min(values), statistics.median(values), max(values))
    )
    return f"{middle} ({low} to {high}, n={len(values)})"


def ratio(values, reference):
    """Median of the ratios round by round: what a drifting machine disturbs least."""
    return statistics.median(a / b for a, b in zip(values, reference, strict=True))


def line(what, measured, goal="", held=None):
    """Print one line of the table."""
    verdict = {None: "", True: "held", False: "NOT HELD"}[held]
    print(f"{what:<58} {measured:<38} {goal:<22} {verdict}", flush=True)


def heading(text):
    """Print the head of a table."""
    print(f"\n{text}\n{'-' * len(text)}", flush=True)
