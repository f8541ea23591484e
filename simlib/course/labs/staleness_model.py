"""The model of the staleness lab: training apart with a server, and the same training together.

The gradients are real, of a net of two layers on real digits, and computed in numpy: for some
256 gradients of 32 examples `simulate` would need a second. What it would say is only followed:
who computes when, and whose message the server takes next.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import inf, prod
from typing import NamedTuple

import numpy as np
import torch

from ...core.model.chance import Jitter
from ..datasets.digits import load
from .break_even_model import sync_s

GRADIENTS, BATCH, EVERY = 256, 32, 16
PIXELS, HIDDEN, CLASSES = 196, 32, 10
SHAPES = (PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)
ENDS = list(accumulate(prod(shape) for shape in SHAPES))
SLICES = [slice(begin, end) for begin, end in zip([0, *ENDS], ENDS, strict=False)]
AT_ONCE = 25
"""Images that numpy multiplies on one core: more cores would wait for those that are busy."""
SPREAD = 0.1
GRADIENT_S = 1e-3


class Training(NamedTuple):
    """What came of 256 gradients.

    Attributes
    ----------
    gradients, times_s, losses : tuple
        Of the curve, a point each 16 gradients: how many, when, and the loss on all images.
    ages, workers : tuple of int
        Of each gradient, in the order of coming: how many gradients of others theta has got between
        its worker's fetch and its coming; and which worker's it is. Empty for training together.
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
        """When the curve first is at this loss or below: seconds, inf if never."""
        pairs = zip(self.times_s, self.losses, strict=True)
        return next((time_s for time_s, each in pairs if each <= loss), inf)


@lru_cache(64)
def apart(workers, slow, n_fetch, rate, message_s, seed):
    """Downpour SGD with one server: rank 0; ranks 1 to ``workers`` compute, rank 1 slowly.

    A worker computes a gradient, takes a step of its own, and pushes it; after every ``n_fetch`` of
    them it fetches theta. The server takes one message after the other, who posted first first.
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
    """The curve of synchronous SGD, whose gradients are added up; time does not change it."""
    theta, losses = start(), []
    for step in range(GRADIENTS // workers):
        theta = theta - rate * sum(gradient(theta, examples(r)[step]) for r in range(workers))
        if (step + 1) * workers % EVERY == 0:
            losses.append(loss_of(theta))
    return tuple(losses)


@lru_cache(64)
def together(workers, slow, rate, message_s, seed):
    """Synchronous SGD of ranks 0 to ``workers - 1``, rank 1 slowly: a ring after each gradient."""
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
    """How many times as long each rank's k-th gradient takes: array (gradients, ranks)."""
    factors = Jitter("lognormal", spread=SPREAD, seed=seed).factors(GRADIENTS + 1, ranks)
    factors[:, 1] *= slow
    return factors


# ---- the net, as lesson 13 has it


@lru_cache(1)
def data():
    """Images of 14 x 14 pixels around 0, one a row, and their labels."""
    images, labels = load()[0].tensors
    small = torch.nn.functional.avg_pool2d(images - images.mean(), 2)
    return small.flatten(1).numpy(), labels.numpy()


@lru_cache(1)
def start():
    """Theta at the start, all parameters as one vector."""
    random = torch.Generator().manual_seed(0)
    layers = [
        torch.randn(shape, generator=random) / shape[0] ** 0.5
        if len(shape) == 2
        else torch.zeros(shape)
        for shape in SHAPES
    ]
    return torch.cat([layer.flatten() for layer in layers]).numpy()


@lru_cache(1)
def first_loss():
    """The loss at the start."""
    return loss_of(start())


@lru_cache(64)
def examples(rank):
    """Which images each of a rank's gradients is of: array (gradients, batch)."""
    random = torch.Generator().manual_seed(100 + rank)
    return torch.randint(len(data()[0]), (GRADIENTS, BATCH), generator=random).numpy()


def _layers(theta):
    """Views of theta, layer by layer."""
    parts = zip(SLICES, SHAPES, strict=True)
    return [theta[each].reshape(shape) for each, shape in parts]


def _forward(layers, x):
    """The hidden layer, and scores of which the largest of each image is 0."""
    w1, b1, w2, b2 = layers
    hidden = x @ w1
    hidden += b1
    np.maximum(hidden, 0, out=hidden)
    scores = hidden @ w2
    scores += b2
    scores -= scores.max(axis=-1, keepdims=True)
    return hidden, scores


@np.errstate(all="ignore")  # where training diverges numbers have no end
def gradient(theta, at):
    """The gradient of the mean loss of these images."""
    images, labels = data()
    x, layers = images[at], _layers(theta)
    hidden, error = _forward(layers, x)
    np.exp(error, out=error)
    error /= error.sum(axis=1, keepdims=True)
    error[np.arange(len(at)), labels[at]] -= 1
    error /= len(at)
    back = error @ layers[2].T
    back *= hidden > 0
    found = np.empty_like(theta)
    of_w1, of_b1, of_w2, of_b2 = _layers(found)
    np.matmul(x.T, back, out=of_w1)
    back.sum(axis=0, out=of_b1)
    np.matmul(hidden.T, error, out=of_w2)
    error.sum(axis=0, out=of_b2)
    return found


@np.errstate(all="ignore")
def loss_of(theta):
    """The loss on all images; inf where theta is no number any more."""
    images, labels = data()
    some = images.reshape(-1, AT_ONCE, PIXELS)
    scores = _forward(_layers(theta), some)[1].reshape(-1, CLASSES)
    of_label = scores[np.arange(len(labels)), labels]
    loss = float(np.mean(np.log(np.exp(scores).sum(axis=1)) - of_label))
    return loss if loss < inf else inf
