"""Wrong answers to exercise 11.3, each with the words its refusal must hold.

`follow`, `send_first` and `together` are those of the exercise's setup.
"""

import numpy as np
import torch

QUESTION = "in_budget"


def with_ahead(ahead, pieces):
    """So many forwards ahead, then one backward, one forward in turn."""
    forward = [f"F{micro}" for micro in range(pieces)]
    words = forward[:ahead]
    for micro in range(pieces):
        words += [f"B{micro}", *forward[ahead + micro : ahead + micro + 1]]
    return words


def gpipe(rank, world_size, w, xs, batch, pieces, most):
    """the plan of GPipe, which holds all micro-batches"""
    words = with_ahead(pieces, pieces)
    return follow(words, rank, world_size, w, xs, batch, together)


def plain_1f1b(rank, world_size, w, xs, batch, pieces, most):
    """plain 1F1B, whatever may be held"""
    words = with_ahead(min(pieces, world_size - rank), pieces)
    return follow(words, rank, world_size, w, xs, batch, together)


def fewer_ahead(rank, world_size, w, xs, batch, pieces, most):
    """the plan of 1F1B with fewer forwards ahead on the first ranks"""
    words = with_ahead(min(pieces, world_size - rank, most), pieces)
    return follow(words, rank, world_size, w, xs, batch, together)


def one_at_a_time(rank, world_size, w, xs, batch, pieces, most):
    """one micro-batch after the other"""
    words = with_ahead(1, pieces)
    return follow(words, rank, world_size, w, xs, batch, together)


def small_batches(rank, world_size, w, xs, batch, pieces, most):
    """one small GPipe after the other"""
    words = []
    for first in range(0, pieces, most):
        group = range(first, min(first + most, pieces))
        words += [f"F{micro}" for micro in group] + [f"B{micro}" for micro in group]
    return follow(words, rank, world_size, w, xs, batch, together)


def sums(rank, world_size, w, xs, batch, pieces, most):
    """the sum over the micro-batches"""
    return pieces * plain_1f1b(rank, world_size, w, xs, batch, pieces, most)


def send_and_recv(rank, world_size, w, xs, batch, pieces, most):
    """the plan of 1F1B by plain sends and receives"""
    words = with_ahead(min(pieces, world_size - rank), pieces)
    return follow(words, rank, world_size, w, xs, batch, send_first)


def a_word_forgotten(rank, world_size, w, xs, batch, pieces, most):
    """the plan without the last micro-batch"""
    if pieces == 1:
        return plain_1f1b(rank, world_size, w, xs, batch, pieces, most)
    return plain_1f1b(rank, world_size, w, xs, batch, pieces - 1, most)


def with_a_trial(rank, world_size, w, xs, batch, pieces, most):
    """the plan with a trial run of a micro-batch before it"""
    follow(["F0", "B0"], rank, world_size, w, xs, batch, together)
    return plain_1f1b(rank, world_size, w, xs, batch, pieces, most)


def in_double_precision(rank, world_size, w, xs, batch, pieces, most):
    """the activations sent in double precision"""

    def wide(outgoing, incoming):
        holder = incoming and (torch.empty(incoming[0].shape, dtype=torch.float64), incoming[1])
        together(outgoing and (outgoing[0].double(), outgoing[1]), holder)
        if incoming:
            incoming[0].copy_(holder[0])

    words = with_ahead(min(pieces, world_size - rank), pieces)
    return follow(words, rank, world_size, w, xs, batch, wide)


def made_for_four(rank, world_size, w, xs, batch, pieces, most):
    """the plan of four ranks, on any number of ranks"""
    ranks, start = 4, []
    for micro in range(pieces):
        start.append(start[-1] + 3 if start else 0)
        if micro >= most:
            start[micro] = max(start[micro], start[micro - most] + 3 * ranks)
    there, back = rank, max(ranks, world_size) + 2 * (world_size - 1 - rank)
    words = [(time + there, f"F{micro}") for micro, time in enumerate(start)]
    words += [(time + back, f"B{micro}") for micro, time in enumerate(start)]
    words = [word for _, word in sorted(words)]
    return follow(words, rank, world_size, w, xs, batch, together)


def backward_first(rank, world_size, w, xs, batch, pieces, most):
    """the plan that takes a micro-batch back before it has gone forward"""
    words = [f"{kind}{micro}" for micro in range(pieces) for kind in "BF"]
    return follow(words, rank, world_size, w, xs, batch, together)


def one_too_many(rank, world_size, w, xs, batch, pieces, most):
    """the plan that counts micro-batches from 1"""
    words = [f"{kind}{micro}" for micro in range(1, pieces + 1) for kind in "FB"]
    return follow(words, rank, world_size, w, xs, batch, together)


def in_waves(rank, world_size, w, xs, batch, pieces, most):
    """Right: waves of `most` micro-batches, each as the first of the wave before is back."""
    wave = max(3 * most, 3 * world_size)
    words = {}
    for micro in range(pieces):
        start = micro // most * wave + micro % most * 3
        words[start + rank] = f"F{micro}"
        words[start + 3 * world_size - 2 * rank - 2] = f"B{micro}"
    in_order = [words[time] for time in sorted(words)]
    return follow(in_order, rank, world_size, w, xs, batch, together)


def products_by_numpy(rank, world_size, w, xs, batch, pieces, most):
    """the plan of GPipe, computed by numpy, whose work no clock sees"""
    W, hs, ys = w.detach().numpy(), [], []
    gradient = 0 * W

    def received(source, width):
        tensor = torch.empty(batch, width)
        torch.distributed.recv(tensor, source)
        return tensor.numpy().copy()

    for micro in range(pieces):
        h = xs[micro].numpy() if rank == 0 else received(rank - 1, len(W))
        y = np.tanh(h @ W)
        hs.append(h)
        ys.append(y)
        if rank < world_size - 1:
            torch.distributed.send(torch.from_numpy(y), rank + 1)
    for h, y in zip(hs, ys, strict=True):
        if rank == world_size - 1:
            g = 2 * y / y.size
        else:
            g = received(rank + 1, W.shape[1])
        d = g * (1 - y * y)
        gradient = gradient + h.T @ d / pieces
        if rank > 0:
            torch.distributed.send(torch.from_numpy(np.ascontiguousarray(d @ W.T)), rank - 1)
    return torch.from_numpy(gradient)


WRONG = {
    gpipe: "at most 4 may be held",
    plain_1f1b: "at most 2 may be held",
    fewer_ahead: "Does a rank wait for a forward",
    one_at_a_time: "12.6 ms where 4.33 ms",
    small_batches: "5.51 ms where 4.33 ms",
    sums: "Those are sums over the micro-batches",
    send_and_recv: "ranks 0 and 1 wait for each other",
    a_word_forgotten: "The last micro-batch is in no word",
    made_for_four: "as short as it can be on 4 ranks",
    backward_first: "that has not gone forward on this rank",
    one_too_many: "There is no such micro-batch",
    with_a_trial: "Each micro-batch crosses each boundary once each way",
    in_double_precision: "Only activations and their gradients need to cross",
    products_by_numpy: "Operations of numpy are not counted",
}
ALSO_RIGHT = [in_waves]

EARNS = {
    products_by_numpy: 2,
    gpipe: 3,
    plain_1f1b: 3,
    fewer_ahead: 3,
    one_at_a_time: 3,
    small_batches: 3,
    made_for_four: 2,
}
"""Points of parts whose rules they keep, by `points=` of the question."""
