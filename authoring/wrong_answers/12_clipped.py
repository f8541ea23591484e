"""Wrong answers to exercise 12.8, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "clipped"
EARNS = {}


def clip(rank, gradients, kinds, limit, counts, of_sum=True, up=False, whole=False, double=True):
    """The answer; of a mistake, as it counts: `counts(kind)` is how often a rank counts."""
    squares, found = torch.zeros((), dtype=torch.float64), []
    for gradient, kind in zip(gradients, kinds, strict=True):
        mine = gradient.clone()
        if kind == "P" and of_sum:
            dist.all_reduce(mine)
        squares += counts(kind) * mine.square().sum()
        found.append(mine if whole else gradient)
    dist.all_reduce(squares)
    norm = squares.sqrt().item()
    scale = limit / norm if up else min(1, limit / norm)
    return norm, [scale * gradient for gradient in found]


def once(rank):
    return lambda kind: 1 if kind == "S" or rank == 0 else 0


def copies_often(rank, world_size, gradients, kinds, limit):
    """the clip that counts copies once for each rank"""
    counts = lambda kind: 1 if kind != "P" or rank == 0 else 0  # noqa: E731
    return clip(rank, gradients, kinds, limit, counts)


def everything_on_all(rank, world_size, gradients, kinds, limit):
    """the clip that counts copies and sums once for each rank"""
    return clip(rank, gradients, kinds, limit, lambda kind: 1)


def squares_of_summands(rank, world_size, gradients, kinds, limit):
    """the clip that squares summands"""
    counts = lambda kind: 1 if kind != "R" or rank == 0 else 0  # noqa: E731
    return clip(rank, gradients, kinds, limit, counts, of_sum=False)


def all_numbers(rank, world_size, gradients, kinds, limit):
    """the clip that sums the squares of all numbers on all ranks"""
    return clip(rank, gradients, kinds, limit, lambda kind: 1, of_sum=False)


def copies_left_out(rank, world_size, gradients, kinds, limit):
    """the clip that leaves out the copies"""
    counts = lambda kind: once(rank)(kind) * (kind != "R")  # noqa: E731
    return clip(rank, gradients, kinds, limit, counts)


def always_scaled(rank, world_size, gradients, kinds, limit):
    """the clip that scales small gradients up"""
    return clip(rank, gradients, kinds, limit, once(rank), up=True)


def whole_partials(rank, world_size, gradients, kinds, limit):
    """the clip that returns whole Partials"""
    return clip(rank, gradients, kinds, limit, once(rank), whole=True)


def number_by_number(rank, world_size, gradients, kinds, limit):
    """the clip with an all_reduce for each gradient"""
    total = 0
    for gradient, kind in zip(gradients, kinds, strict=True):
        mine = gradient.clone()
        if kind == "P":
            dist.all_reduce(mine)
        square = mine.square().sum() * once(rank)(kind)
        dist.all_reduce(square)
        total += square
    norm = total.sqrt().item()
    return norm, [min(1, limit / norm) * gradient for gradient in gradients]


def in_float32(rank, world_size, gradients, kinds, limit):
    """the clip that sums the squares in float32"""
    summed, squares = [], torch.zeros(())
    for gradient, kind in zip(gradients, kinds, strict=True):
        summed.append(gradient.clone())
        if kind == "P":
            dist.all_reduce(summed[-1])
        squares += summed[-1].square().sum() * once(rank)(kind)
    dist.all_reduce(squares)
    norm = squares.sqrt().item()
    return norm, [min(1, limit / norm) * gradient for gradient in gradients]


WRONG = {
    copies_often: "you count it once for each rank that has it",
    everything_on_all: "so it counts once, not on each rank",
    squares_of_summands: "first sum the Partials",
    all_numbers: "the squares of all numbers on all ranks",
    copies_left_out: "lacks the copies",
    always_scaled: "stay as they are",
    whole_partials: "return this rank's summand",
    number_by_number: "8, then 8, then 40",
    in_float32: "16, then 4 bytes",
}
EARNS = {number_by_number: 2, in_float32: 2}


def divided(rank, world_size, gradients, kinds, limit):
    """Every rank counts a part of what all have."""
    return clip(rank, gradients, kinds, limit, lambda kind: 1 if kind == "S" else 1 / world_size)


ALSO_RIGHT = (divided,)
