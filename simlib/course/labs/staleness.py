"""The staleness lab: asynchronous training with a parameter server, and synchronous training.

The gradients are real: numpy computes them for a net of two layers and real digits. `simulate`
would need a second for about 256 gradients of 32 examples. So this module computes only the moments
at which each rank computes, and the order of messages at the server. Both are the same as in a
simulation.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import floor, inf, log10, prod
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ...core.draw.figures import DPI, GREY, INK, PAPER, TEXT_PT, Picture
from ...core.draw.palette import OKABE_ITO, visible
from ...core.model.chance import Jitter
from ...core.model.errors import InvalidCallError, check_count, check_number
from ...core.model.words import number
from ..datasets.digits import load
from . import pen
from .break_even import sync_s
from .sliders import Layers, View, check_above_zero, lab_of, picture, slider, whole_numbers

GRADIENTS, BATCH, EVERY = 256, 32, 16
PIXELS, HIDDEN, CLASSES = 196, 32, 10
SHAPES = (PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)
ENDS = list(accumulate(prod(shape) for shape in SHAPES))
SLICES = [slice(begin, end) for begin, end in zip([0, *ENDS], ENDS, strict=False)]
AT_ONCE = 25
"""numpy multiplies this many images on one core. More cores would wait for busy cores."""
SPREAD = 0.1
GRADIENT_S = 1e-3


class Training(NamedTuple):
    """The result of a training with 256 gradients.

    Attributes
    ----------
    gradients, times_s, losses : tuple
        The curve, with a point every 16 gradients: the number of gradients, the time, and the loss
        on all images.
    ages, workers : tuple of int
        For each gradient, in order of arrival, its age and its worker. The age is the number of
        gradients of other workers that the server applied to theta after this worker's fetch and
        before the gradient arrived. Empty for training together.
    """

    gradients: tuple
    times_s: tuple
    losses: tuple
    ages: tuple = ()
    workers: tuple = ()

    @property
    def loss(self):
        """The loss at the end."""
        return self.losses[-1]

    def reaches(self, loss):
        """Seconds until the loss first is at most this value, or inf if this never happens."""
        pairs = zip(self.times_s, self.losses, strict=True)
        return next((time_s for time_s, each in pairs if each <= loss), inf)


@lru_cache(64)
def apart(workers, slow, n_fetch, rate, message_s, seed):
    """Downpour SGD. Rank 0 is the server. Ranks 1 to ``workers`` compute, and rank 1 is slow.

    A worker computes a gradient, takes a step with its own copy of theta, and pushes the gradient.
    After every ``n_fetch`` gradients it fetches theta. The server handles one message after the
    other, in the order in which workers posted the messages.
    """
    factors = _factors(workers + 1, slow, seed)
    theta, version, free_s = start(), 0, 0.0
    local, fetched, own = ([each] * (workers + 1) for each in (theta, 0, 0))
    coming = [(factors[0, rank] * GRADIENT_S, rank, 0) for rank in range(1, workers + 1)]
    heapify(coming)
    curve, ages, came = [], [], []
    while version < GRADIENTS:
        posted_s, rank, k = heappop(coming)
        move = rate * gradient(local[rank], examples(rank)[k])
        ages.append(version - fetched[rank] - own[rank])
        came.append(rank)
        theta = theta - move
        version, own[rank] = version + 1, own[rank] + 1
        local[rank] = local[rank] - move
        free_s = max(free_s, posted_s) + message_s
        if version % EVERY == 0:
            curve.append((version, free_s, loss_of(theta)))
        if (k + 1) % n_fetch == 0:
            free_s += message_s
            local[rank], fetched[rank], own[rank] = theta, version, 0
        heappush(coming, (free_s + factors[k + 1, rank] * GRADIENT_S, rank, k + 1))
    return Training(*zip(*curve, strict=True), tuple(ages), tuple(came))


@lru_cache(64)
def losses_together(workers, rate):
    """The losses of synchronous SGD, which adds gradients up. They do not depend on times."""
    theta, losses = start(), []
    for step in range(GRADIENTS // workers):
        theta = theta - rate * sum(gradient(theta, examples(r)[step]) for r in range(workers))
        if (step + 1) * workers % EVERY == 0:
            losses.append(loss_of(theta))
    return tuple(losses)


@lru_cache(64)
def together(workers, slow, rate, message_s, seed):
    """Synchronous SGD of ranks 0 to ``workers - 1``. Rank 1 is slow. Rings add up gradients."""
    factors = _factors(workers, slow, seed)[: GRADIENTS // workers]
    ring_s = sync_s("ring", workers, 1.0, 0.0, 1 / message_s) if message_s else 0.0
    ends_s = np.cumsum(GRADIENT_S * factors.max(axis=1) + ring_s)
    each = EVERY // workers
    return Training(
        tuple(range(EVERY, GRADIENTS + 1, EVERY)),
        tuple(ends_s[each - 1 :: each].tolist()),
        losses_together(workers, rate),
    )


@lru_cache(64)
def _factors(ranks, slow, seed):
    """How many times longer each rank's k-th gradient takes: array (gradients, ranks)."""
    factors = Jitter("lognormal", spread=SPREAD, seed=seed).factors(GRADIENTS + 1, ranks)
    factors[:, 1] *= slow
    return factors


# -- the net, as lesson 13 has it ------------------------------------------------------------------


@lru_cache(1)
def data():
    """Images of 14 x 14 pixels with values around 0, one per row, and their labels."""
    images, labels = load()[0].tensors
    small = torch.nn.functional.avg_pool2d(images - images.mean(), 2)
    return small.flatten(1).numpy(), labels.numpy()


@lru_cache(1)
def start():
    """Theta at the start, all parameters as one vector."""
    random = torch.Generator().manual_seed(0)
    layers = [
        [torch.randn(shape, generator=random) / shape[0] ** 0.5, torch.zeros(shape[1])]
        for shape in SHAPES[::2]
    ]
    return torch.cat([part.flatten() for layer in layers for part in layer]).numpy()


@lru_cache(1)
def first_loss():
    """The loss at the start."""
    return loss_of(start())


@lru_cache(64)
def examples(rank):
    """The images of each gradient of a rank: array (gradients, batch)."""
    random = torch.Generator().manual_seed(100 + rank)
    return torch.randint(len(data()[0]), (GRADIENTS, BATCH), generator=random).numpy()


def _layers(theta):
    """Views of theta, layer by layer."""
    parts = zip(SLICES, SHAPES, strict=True)
    return [theta[each].reshape(shape) for each, shape in parts]


def _forward(layers, x):
    """The hidden layer, and the scores, shifted so that the largest score of each image is 0."""
    w1, b1, w2, b2 = layers
    hidden = np.maximum(x @ w1 + b1, 0)
    scores = hidden @ w2 + b2
    return hidden, scores - scores.max(axis=-1, keepdims=True)


@np.errstate(all="ignore")  # if training diverges, numbers grow without limit
def gradient(theta, at):
    """The gradient of the mean loss of these images."""
    images, labels = data()
    x, layers = images[at], _layers(theta)
    hidden, scores = _forward(layers, x)
    error = np.exp(scores)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(at)), labels[at]] -= 1
    error /= len(at)
    back = error @ layers[2].T * (hidden > 0)
    parts = x.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)
    return np.concatenate([part.ravel() for part in parts])


@np.errstate(all="ignore")
def loss_of(theta):
    """The loss on all images, or inf if theta is no longer finite."""
    images, labels = data()
    some = images.reshape(-1, AT_ONCE, PIXELS)
    scores = _forward(_layers(theta), some)[1].reshape(-1, CLASSES)
    of_label = scores[np.arange(len(labels)), labels]
    loss = float(np.mean(np.log(np.exp(scores).sum(axis=1)) - of_label))
    return loss if loss < inf else inf


# -- the lab ---------------------------------------------------------------------------------------

WORKERS = (2, 4, 8, 16)
SLOWNESS = (1, 1.5, 2, 3, 5, 8)
FETCHES = (1, 2, 4, 8, 16)
RATES = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)
MESSAGES = (0, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
MAX_SEED = 19
GOAL = 0.5
HIGHEST = 3.0  # loss at the upper end of its axis
STEPS = (1, 1.2, 1.5, 2, 3, 4, 6, 8, 10)  # of a decade: where the axis of time may end
OLDEST, SHARES, MAX_BARS = (10, 20, 40, 80, 160, 320), (25, 50, 100), 40
X_PARTS, BESIDE = 5, 0.02
APART, TOGETHER, OTHERS = (visible(OKABE_ITO[hue]) for hue in (5, 4, 1))


@picture
def draw_staleness(
    workers: int = 4,
    slow: float = 1,
    n_fetch: int = 1,
    rate: float = 0.2,
    message: float = 0.03,
    seed: int = 0,
) -> View:
    """Draw the loss of asynchronous and synchronous training over time, and gradients' staleness.

    "Apart" is Downpour SGD with one server, as in lesson 13. Each worker pushes every gradient, and
    fetches theta after every ``n_fetch`` gradients. "Together" trains the same net on as many
    ranks, which add up their gradients with a ring. A gradient takes 1 ms, plus or minus about a
    tenth. Losses come from real training, not from a formula. Times are the same as with
    `simlib.simulate`.

    Parameters
    ----------
    workers : {2, 4, 8, 16}
        The number of workers. The server is an additional rank.
    slow : float
        On rank 1, a gradient takes this many times as long as on other ranks.
    n_fetch : int
        The number of gradients from one fetch to the next, 1 to 256.
    rate : float
        The learning rate for each gradient.
    message : float
        Milliseconds that a message of all parameters takes.
    seed : int
        Seed of the noise on compute times. It also determines the order of messages.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        ``workers`` is none of the choices, or a number is out of its range.
    """
    return _Staleness(), workers, slow, n_fetch, rate, message, seed


staleness_lab = lab_of(draw_staleness, "sliders for all its parameters")


def trainings_of(workers, slow, n_fetch, rate, message, seed):
    """The asynchronous and the synchronous training for the values of the lab's controls."""
    message_s = message * 1e-3
    return (
        apart(workers, slow, n_fetch, rate, message_s, seed),
        together(workers, slow, rate, message_s, seed),
    )


def counted(training, end):
    """The percentage of all gradients in each bar, for rank 1 and for the other ranks: two
    arrays."""
    ages, is_slow = np.array(training.ages), np.array(training.workers) == 1
    edges = np.arange(0, end + 1, max(1, end // MAX_BARS))
    return [np.histogram(ages[mine], edges)[0] * (100 / len(ages)) for mine in (is_slow, ~is_slow)]


class _Staleness(Layers):
    """Curves and bars. Axes, names and legends stay, but the numbers at the axes change."""

    controls = {
        "workers": slider("workers W", WORKERS, only=True),
        "slow": slider("rank 1 takes", SLOWNESS, "{:g} x as long".format),
        "n_fetch": slider("n_fetch", FETCHES),
        "rate": slider("learning rate", RATES, "{:g}".format),
        "message": slider("message takes", MESSAGES, "{:g} ms".format),
        "seed": whole_numbers("seed of the order", 0, MAX_SEED),
    }

    def check(self, workers, slow, n_fetch, rate, message, seed):
        super().check(workers, slow, n_fetch, rate, message, seed)
        check_count("n_fetch", n_fetch)
        check_count("seed", seed, low=0)
        check_above_zero(slow=slow, rate=rate)
        check_number("message", message)
        if n_fetch > GRADIENTS:
            raise InvalidCallError(f"n_fetch is {n_fetch}: give at most {GRADIENTS}")
        if inf in (slow, rate, message):
            raise InvalidCallError("slow, rate and message must be finite")

    def background(self):
        figure = Picture(figsize=(9.0, 4.1), dpi=DPI, facecolor=PAPER)
        curves = _add_axes(figure, [0.065, 0.125, 0.495, 0.64], "virtual time (ms)", "loss", 6)
        curves.axhline(GOAL / HIGHEST, color=GREY, lw=0.8, ls=":")
        lines = [Line2D([], [], color=APART, lw=2), Line2D([], [], color=TOGETHER, lw=2, ls="--")]
        looks = {"columnspacing": 1.2, "handlelength": 1.6}
        pen.add_legend_above(
            curves, lines, ("apart, with a server", "together, by all_reduce"), **looks
        )
        axis = "staleness (gradients of others)"
        bars = _add_axes(figure, [0.66, 0.125, 0.32, 0.64], axis, "gradients (%)", 5)
        bars.set_xlim(-0.07, 1)
        patches = [Patch(fc=color, ec=INK, lw=0.5) for color in (APART, OTHERS)]
        pen.add_legend_above(bars, patches, ("of rank 1", "of the others"), **looks)
        return figure

    def foreground(self, figure, workers, slow, n_fetch, rate, message, seed):
        one, other = trainings_of(workers, slow, n_fetch, rate, message, seed)
        curves, bars = figure.axes
        title = f"{workers} workers, learning rate {rate:g}, {GRADIENTS} gradients: " + "; ".join(
            f"{name} {_loss_text(each.loss)} at {number(1e3 * each.times_s[-1])} ms"
            for name, each in (("apart", one), ("together", other))
        )
        return [
            *pen.write_title(figure, 0.98, title),
            *_draw_curves(curves, one, other),
            *_draw_bars(bars, one),
        ]


def _add_axes(figure, place, x_name, y_name, y_parts):
    """Add axes from 0 to 1 in both directions. `_write` adds the numbers at their ticks."""
    axes = figure.add_axes(place, facecolor=PAPER)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xticks(np.linspace(0, 1, X_PARTS + 1), [""] * (X_PARTS + 1))
    axes.set_yticks(np.linspace(0, 1, y_parts + 1), [""] * (y_parts + 1))
    axes.set_xlabel(x_name, fontsize=TEXT_PT, labelpad=12)
    axes.set_ylabel(y_name, fontsize=TEXT_PT, labelpad=20)
    axes.tick_params(color=GREY)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _write(axes, x_end, y_end, y_parts, note):
    """Write the numbers at the ticks, and a note above the legend."""
    at, up = np.linspace(0, 1, X_PARTS + 1), np.linspace(0, 1, y_parts + 1)
    width = axes.get_position().width / (1 - axes.get_xlim()[0])
    beside = axes.get_xlim()[0] - BESIDE / width
    written = [
        pen.add_words(axes, at, -0.065, [f"{x_end * each:g}" for each in at]),
        pen.add_words(axes, beside, up, [f"{y_end * each:g}" for each in up]),
        pen.add_words(axes, 0, 1.155, [note], left=True),
    ]
    for words in written:
        words.set_clip_on(False)
    return written


def _draw_curves(axes, one, other):
    """Draw losses over time. A curve above the range of the picture ends at the upper edge."""
    last_ms = 1e3 * max(one.times_s[-1], other.times_s[-1])
    decade = 10.0 ** floor(log10(last_ms))
    end_ms = next(step * decade for step in STEPS if step * decade >= last_ms)
    drawn = []
    for training, looks in ((other, {"color": TOGETHER, "ls": "--"}), (one, {"color": APART})):
        times_ms = 1e3 * np.array([0.0, *training.times_s])
        losses = np.minimum([first_loss(), *training.losses], 1.1 * HIGHEST)
        drawn += axes.plot(times_ms / end_ms, losses / HIGHEST, lw=2, zorder=3, **looks)
    goals = f"apart {_time_text(one.reaches(GOAL))}, together {_time_text(other.reaches(GOAL))}"
    return [*drawn, *_write(axes, end_ms, HIGHEST, 6, f"first at a loss of {GOAL}: {goals}")]


def _draw_bars(axes, training):
    """Draw how many gradients have each age, with the gradients of rank 1 on top."""
    end = next(end for end in OLDEST if end > max(training.ages))
    shares = counted(training, end)
    most = next(share for share in SHARES if share >= sum(shares).max())
    step = max(1, end // MAX_BARS)
    left, width = (np.arange(0, end, step) - 0.5 + 0.1 * step) / end, 0.8 * step / end
    drawn, foot = [], np.zeros(len(left))
    for color, some in zip((OTHERS, APART), reversed(shares), strict=True):
        boxes = pen.boxes_at(left, foot / most, width, some / most)[some > 0]
        looks = {"facecolors": color, "edgecolors": INK, "linewidths": 0.5}
        drawn.append(pen.add_boxes(axes, boxes, 3, **looks))
        foot = foot + some
    of_first = [a for a, worker in zip(training.ages, training.workers, strict=True) if worker == 1]
    alone = f"rank 1's {np.mean(of_first):.1f}" if of_first else "none of rank 1"
    note = f"staleness: mean {np.mean(training.ages):.1f}, {alone}; largest {max(training.ages)}"
    return [*drawn, *_write(axes, end, most, 5, note)]


def _loss_text(loss):
    return f"{loss:.3f}" if loss < first_loss() else "diverged"


def _time_text(time_s):
    return f"after {number(1e3 * time_s)} ms" if time_s < inf else "never"
