"""The serving lab: how load, memory and tp change the time for which users wait for tokens."""

from __future__ import annotations

from functools import lru_cache
from math import log2
from random import Random

import numpy as np
from matplotlib.ticker import FixedLocator

from ...core.draw.figures import DPI, INK, PAPER, SMALL_PT, TEXT_PT, Picture
from ...core.draw.palette import OKABE_ITO
from ...core.model.errors import InvalidCallError
from ...core.model.words import number, seconds_text
from . import pen
from .sliders import Layers, View, check_above_zero, lab_of, picture, slider

REQUESTS = 300
CACHE_BYTES, WEIGHTS_BYTES, MEMORY_BPS = 131_072, 15.01e9, 3.35e12
PREFILL_S, CALLS, LATENCY_S = 19e-6, 65, 5e-6
LATE_S = 1e-6  # after an idle time, the server looks so long after the arrival
LOADS = (5, 8, 10, 12, 15, 20, 25, 30, 35, 40, 50, 60, 80)
ROOMS = (13_000, 20_000, 30_000, 50_000, 70_000, 100_000, 150_000, 200_000, 300_000, 500_000)
TPS = (1, 2, 4, 8)
COLORS = {"time to first token": OKABE_ITO[0], "time per token": OKABE_ITO[5]}
RUNNING, WAITING = OKABE_ITO[2], OKABE_ITO[1]
TICKS_S = (0.001, 0.01, 0.1, 1, 10, 100)


@picture
def draw_serving(per_s: float = 20, most: int = 100_000, tp: int = 1) -> View:
    """Draw how a server of Llama 3 8B answers 300 requests with continuous batching.

    The model is the same as in lesson 21. The left part shows how many requests run and how many
    wait, over time. The right part shows which share of the requests waits at most a given time.

    Parameters
    ----------
    per_s : float
        Requests per second. Arrivals and lengths are random, but they are the same in every
        picture.
    most : int
        The number of tokens that fit into the cache of the server. It must be at least 12,000.
    tp : {1, 2, 4, 8}
        The number of GPUs that share the model.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        A number is out of its range.
    """
    return _Serving(), per_s, most, tp


serving_lab = lab_of(draw_serving, "sliders for all its parameters")


def step_s(new, held, tp=1):
    """Seconds of a step that prefills ``new`` tokens, with ``held`` tokens in the cache."""
    read_s = (WEIGHTS_BYTES + CACHE_BYTES * held) / tp / MEMORY_BPS
    return read_s + PREFILL_S * new / tp + CALLS * log2(tp) * LATENCY_S


@lru_cache(32)
def arrivals(count, per_s):
    """Requests, each as (second of arrival, tokens of the prompt, tokens of the answer)."""
    chance, at_s, requests = Random(21), 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(per_s)
        prompt, output = (int(1 + chance.lognormvariate(mean, 1)) for mean in (6, 5))
        requests.append((at_s, min(prompt, 8000), min(output, 4000)))
    return requests


def served(requests, most, tp):
    """Serve requests with continuous batching.

    Returns
    -------
    steps : ndarray of float, shape (steps, 3)
        For each step: its end in seconds, and how many requests run and wait during the step.
    first, last : ndarray of int
        The steps that write the first and the last token of each request.
    """
    steps, first, ends = [], [], {}  # ends: after this step, so many requests and tokens leave
    now_s, arrived, joined, batch, held, reserved = 0.0, 0, 0, 0, 0, 0
    while joined < len(requests) or batch:
        if not batch and joined == arrived:
            now_s = max(now_s, requests[arrived][0]) + LATE_S
        while arrived < len(requests) and requests[arrived][0] <= now_s:
            arrived += 1
        new = 0
        while joined < arrived and reserved + sum(requests[joined][1:]) <= most:
            _, prompt, output = requests[joined]
            new, reserved, batch, joined = (
                new + prompt,
                reserved + prompt + output,
                batch + 1,
                joined + 1,
            )
            left = ends.setdefault(len(steps) + output - 1, [0, 0])
            left[0], left[1] = left[0] + 1, left[1] + prompt + output
            first.append(len(steps))
        held += new
        now_s += step_s(new, held, tp)
        steps.append((now_s, batch, arrived - joined))
        held += batch
        gone, tokens = ends.pop(len(steps) - 1, (0, 0))
        batch, held, reserved = batch - gone, held - tokens, reserved - tokens
    first = np.array(first)
    return np.array(steps), first, first + [output - 1 for _, _, output in requests]


class _Serving(Layers):
    """Two axes, whose frames stay. The scale of the left axes changes with the end of the run."""

    controls = {
        "per_s": slider("requests a second", LOADS, "{:g}".format),
        "most": slider("tokens in cache", ROOMS, "{:,}".format),
        "tp": slider("GPUs (tp)", TPS, only=True),
    }

    def check(self, per_s, most, tp):
        super().check(per_s, most, tp)
        check_above_zero(per_s=per_s)
        if not 12_000 <= most < np.inf:
            raise InvalidCallError(f"most is {most}: the longest request needs 12,000 tokens")

    def background(self):
        figure = Picture(figsize=(7.6, 3.9), dpi=DPI, facecolor=PAPER)
        left = figure.add_axes([0.075, 0.13, 0.39, 0.66], facecolor=PAPER)
        left.set_axis_off()  # its numbers change, so the foreground draws them
        right = figure.add_axes([0.56, 0.13, 0.42, 0.66], facecolor=PAPER)
        right.set_xscale("log")
        right.set_xlim(1e-3, 300)
        right.set_ylim(0, 1.02)
        right.xaxis.set_major_locator(FixedLocator(TICKS_S))
        right.xaxis.set_major_formatter(lambda time_s, _: seconds_text(time_s))
        right.minorticks_off()
        right.tick_params(labelsize=SMALL_PT)
        right.set_xlabel("a user waits at most", fontsize=TEXT_PT, labelpad=1)
        right.set_ylabel("share of users", fontsize=TEXT_PT)
        handles = [right.plot([], [], color=color, lw=1.6)[0] for color in COLORS.values()]
        pen.add_legend_above(right, handles, list(COLORS))
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        return figure

    def foreground(self, figure, per_s, most, tp):
        requests = arrivals(REQUESTS, per_s)
        steps, first, last = served(requests, most, tp)
        at_s = np.array([at for at, _, _ in requests])
        many = last > first
        waits = {
            "time to first token": steps[first, 0] - at_s,
            "time per token": ((steps[last, 0] - steps[first, 0])[many] / (last - first)[many]),
        }
        left, right = figure.axes
        drawn = []
        for name, times_s in waits.items():
            share = np.arange(1, len(times_s) + 1) / len(times_s)
            looks = {"color": COLORS[name], "lw": 1.6, "drawstyle": "steps-post", "zorder": 3}
            drawn += right.plot(np.sort(times_s), share, **looks)
        drawn += _draw_load(figure, left, steps)
        rate = sum(output for _, _, output in requests) / steps[-1, 0]
        words = [
            f"{name}: p50 {seconds_text(p50)}, p99 {seconds_text(p99)}"
            for name, times_s in waits.items()
            for p50, p99 in [np.percentile(times_s, (50, 99))]
        ]
        where = f"{tp} GPU{'s' * (tp > 1)} with room for {most:,} tokens"
        title = f"{number(per_s)} requests a second on {where}: {rate:,.0f} tokens a second"
        return [*drawn, *pen.write_title(figure, 0.97, title, "; ".join(words))]


def _draw_load(figure, axes, steps):
    """Draw running and waiting requests over time, with their own scale."""
    end_s, top = steps[-1, 0], max(1.0, steps[:, 1:].max())
    shown = steps[:: max(1, len(steps) // 600)]
    axes.set_xlim(0, end_s)
    axes.set_ylim(0, 1.05 * top)
    drawn = [
        *axes.plot(shown[:, 0], shown[:, 1], color=RUNNING, lw=1.3, zorder=3),
        *axes.plot(shown[:, 0], shown[:, 2], color=WAITING, lw=1.3, zorder=3),
        *axes.plot([0, 0, end_s], [1.05 * top, 0, 0], color=INK, lw=1, clip_on=False, zorder=4),
    ]
    looks = {"fontsize": TEXT_PT, "transform": axes.transAxes, "clip_on": False}
    words = (
        (0, 1.03, f"at most {steps[:, 1].max():.0f} running", RUNNING, "left"),
        (1, 1.03, f"at most {steps[:, 2].max():.0f} waiting", WAITING, "right"),
        (0, -0.09, "0 s", INK, "left"),
        (1, -0.09, seconds_text(end_s), INK, "right"),
    )
    return drawn + [axes.text(x, y, t, color=c, ha=ha, **looks) for x, y, t, c, ha in words]
