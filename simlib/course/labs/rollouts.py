"""The rollouts lab: 64 ranks divided into generators and trainers, with a bound on staleness.

The model is the same as in lesson 20. The trainers learn a batch of rollouts when the batch is
complete and the trainers are free. Rollouts begin in the order of their numbers. Each rollout
begins as soon as a generator is free and the bound on staleness allows it. `simulate` would need
seconds for each split. This module computes the same times faster.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.lines import Line2D

from ...core.draw.figures import DPI, GREY, INK, PAPER, SMALL_PT, TEXT_PT, Picture
from ...core.draw.palette import OKABE_ITO, visible
from . import pen
from .sliders import Layers, View, lab_of, menu, picture, slider

RANKS, B, BATCHES = 64, 128, 8
MEDIAN, LONGEST = 600, 4096
WRITE_S, LEARN_S = 0.01, 0.0025
TRAINERS = range(4, 45)
BOUNDS = range(9)
SPREADS = {"equal lengths": 0.0, "a short tail": 0.5, "long-tailed": 1.0, "very long-tailed": 1.5}
HIGHEST_S, OLDEST = 160, 8
CURVE, FORMULA = visible(OKABE_ITO[5]), visible(OKABE_ITO[4])


class Split(NamedTuple):
    """The times of one split.

    Attributes
    ----------
    batch_s : float
        Mean seconds from one version of the weights to the next version, without the first two
        batches.
    ages : tuple of int
        The staleness of each rollout.
    trainers_busy, generators_busy : float
        The share of the whole time in which trainers or generators work.
    """

    batch_s: float
    ages: tuple
    trainers_busy: float
    generators_busy: float


@lru_cache(8)
def tokens_of(spread):
    """The lengths of all rollouts. The logarithm of the lengths has this standard deviation."""
    drawn = torch.randn(8192, generator=torch.Generator().manual_seed(0))
    return (MEDIAN * (spread * drawn).exp()).int().clamp(max=LONGEST)[: B * BATCHES].tolist()


@lru_cache(4096)
def split_of(trainers, k, spread):
    """The `Split` of 64 ranks into this many trainers, and generators."""
    tokens, generators = tokens_of(spread), RANKS - trainers
    free_s, version_s, begun_s = [0.0] * generators, [0.0], []
    for batch in range(BATCHES):
        mine = tokens[B * batch : B * batch + B]
        allowed_s, ends_s = version_s[max(0, batch - k)], []
        for each in mine:
            begun_s.append(max(heappop(free_s), allowed_s))
            ends_s.append(begun_s[-1] + WRITE_S * each)
            heappush(free_s, ends_s[-1])
        learned_s = LEARN_S * sum(mine) / trainers
        version_s.append(max(version_s[-1], *ends_s) + learned_s)
    versions = np.searchsorted(version_s, begun_s, side="right") - 1
    ages = np.repeat(np.arange(BATCHES), B) - versions
    work_s, end_s = sum(tokens), version_s[-1]
    return Split(
        (end_s - version_s[2]) / (BATCHES - 2),
        tuple(ages.tolist()),
        LEARN_S * work_s / trainers / end_s,
        WRITE_S * work_s / generators / end_s,
    )


def formula_s(k, spread):
    """Seconds per batch for each split, if no rank ever waits for a single rollout: an array."""
    trainers = np.array(TRAINERS)
    mean = sum(tokens_of(spread)) / BATCHES
    parts = WRITE_S * mean / (RANKS - trainers), LEARN_S * mean / trainers
    return np.maximum(*parts) if k else sum(parts)


@picture
def draw_rollouts(trainers: int = 13, k: int = 2, spread: float = 1.0) -> View:
    """Draw the seconds per batch for each split of 64 ranks, and the staleness of one split.

    A batch has 128 rollouts. A generator writes a token in 10 ms. A trainer learns a token in 2.5
    ms. The median length of an answer is 600 tokens, and answers end after 4,096 tokens. Times are
    the same as with `simlib.simulate`.

    Parameters
    ----------
    trainers : int
        The number of trainers, 4 to 44. The other ranks of the 64 are generators.
    k : int
        The largest allowed staleness, 0 to 8. With 0, training is synchronous.
    spread : {0.0, 0.5, 1.0, 1.5}
        Standard deviation of the logarithm of the answers' lengths.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        A value is none of the choices.
    """
    return _Rollouts(), trainers, k, spread


rollouts_lab = lab_of(draw_rollouts, "sliders for all its parameters")


class _Rollouts(Layers):
    """Curves on the left, bars on the right. Axes and legends stay."""

    controls = {
        "trainers": slider("trainers T", TRAINERS, only=True),
        "k": slider("bound k", BOUNDS, only=True),
        "spread": menu("lengths", SPREADS),
    }

    def background(self):
        figure = Picture(figsize=(9.0, 3.6), dpi=DPI, facecolor=PAPER)
        left = figure.add_axes([0.065, 0.14, 0.55, 0.6], facecolor=PAPER)
        left.set(xlim=(TRAINERS[0], TRAINERS[-1]), ylim=(0, HIGHEST_S))
        left.set_xlabel("trainers of 64 ranks", fontsize=TEXT_PT)
        left.set_ylabel("seconds a batch", fontsize=TEXT_PT)
        lines = [Line2D([], [], color=CURVE, lw=2), Line2D([], [], color=FORMULA, lw=1.5, ls="--")]
        names = "each split, with this k", "formula: no wait for a long rollout"
        pen.add_legend_above(left, lines, names)
        right = figure.add_axes([0.70, 0.14, 0.285, 0.6], facecolor=PAPER)
        right.set(xlim=(-0.6, OLDEST + 0.6), ylim=(0, 100), xticks=range(OLDEST + 1))
        right.set_xlabel("staleness (training steps)", fontsize=TEXT_PT)
        right.set_ylabel("rollouts (%)", fontsize=TEXT_PT)
        for axes in (left, right):
            axes.tick_params(labelsize=SMALL_PT, labelcolor=INK, color=GREY)
            axes.spines[["top", "right"]].set_visible(False)
        return figure

    def foreground(self, figure, trainers, k, spread):
        splits = {each: split_of(each, k, spread) for each in TRAINERS}
        mine, best = splits[trainers], min(splits, key=lambda each: splits[each].batch_s)
        left, right = figure.axes
        seconds = np.array([each.batch_s for each in splits.values()])
        looks = {"color": INK, "ls": "", "marker": "o", "ms": 7, "zorder": 5}
        bars = np.bincount(mine.ages, minlength=OLDEST + 1) * (100 / len(mine.ages))
        boxes = pen.boxes_at(np.arange(OLDEST + 1) - 0.4, np.zeros(OLDEST + 1), 0.8, bars)
        title = f"{trainers} trainers and {RANKS - trainers} generators, k = {k}: "
        busy = f"busy: trainers {mine.trainers_busy:.0%}, generators {mine.generators_busy:.0%}"
        best_text = f"best: {best} trainers, {splits[best].batch_s:.1f} s"
        lines = (
            f"{title}{mine.batch_s:.1f} s a batch",
            f"{busy}; {best_text}; mean staleness {np.mean(mine.ages):.2f}",
        )
        figure.words = (
            "Left: a curve of the seconds a batch for 4 to 44 trainers, and a formula below it. "
            f"Right: bars of the staleness of all rollouts. {lines[0]}; {lines[1]}."
        )
        return [
            *pen.write_title(figure, 0.975, *lines),
            *left.plot(TRAINERS, np.minimum(seconds, HIGHEST_S), color=CURVE, lw=2, zorder=3),
            *left.plot(TRAINERS, formula_s(k, spread), color=FORMULA, lw=1.5, ls="--", zorder=2.8),
            *left.plot([trainers], [min(mine.batch_s, HIGHEST_S)], **looks),
            pen.add_boxes(
                right, boxes[bars > 0], 3, facecolors=CURVE, edgecolors=INK, linewidths=0.5
            ),
        ]
