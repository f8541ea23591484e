"""Wrong answers to review.9, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "clip_split"


def added(number):
    """The sum over the ranks of a number."""
    total = torch.tensor([float(number)])
    dist.all_reduce(total)
    return total.item()


def squares(gradient):
    return float((gradient**2).sum())


def cut(own, shared, most, length):
    scale = min(1.0, most / length)
    return own * scale, shared * scale


def own_length(rank, world_size, own, shared, most):
    """the length of what the rank itself holds"""
    return cut(own, shared, most, (squares(own) + squares(shared)) ** 0.5)


def shared_often(rank, world_size, own, shared, most):
    """the length with the embedding once for each rank"""
    return cut(own, shared, most, added(squares(own) + squares(shared)) ** 0.5)


def shared_never(rank, world_size, own, shared, most):
    """the length without the embedding"""
    return cut(own, shared, most, added(squares(own)) ** 0.5)


def lengths_added(rank, world_size, own, shared, most):
    """the sum of the parts' lengths"""
    return cut(own, shared, most, added(own.norm()) + float(shared.norm()))


def without_root(rank, world_size, own, shared, most):
    """the square in the place of the length"""
    return cut(own, shared, most, added(squares(own)) + squares(shared))


def averaged(rank, world_size, own, shared, most):
    """the length from the mean of the ranks' squares"""
    return cut(own, shared, most, (added(squares(own)) / world_size + squares(shared)) ** 0.5)


def each_for_itself(rank, world_size, own, shared, most):
    """the two gradients, each cut to the length `most`"""
    return tuple(one * min(1.0, most / float(one.norm())) for one in (own, shared))


def stretched(rank, world_size, own, shared, most):
    """the gradient brought to the length `most` in any case"""
    scale = most / (added(squares(own)) + squares(shared)) ** 0.5
    return own * scale, shared * scale


def shared_reduced_again(rank, world_size, own, shared, most):
    """a second all_reduce, for the embedding"""
    total = shared.clone()
    dist.all_reduce(total)
    length = (added(squares(own)) + squares(total / world_size)) ** 0.5
    return cut(own, shared, most, length)


def place_by_rank(rank, world_size, own, shared, most):
    """the all_reduce of a vector with a place for each rank and more"""
    parts = torch.zeros(world_size + 2)
    parts[rank] = squares(own)
    dist.all_reduce(parts)
    return cut(own, shared, most, (float(parts.sum()) + squares(shared)) ** 0.5)


def writes_into_own(rank, world_size, own, shared, most):
    """the clipping that writes into the gradients it was given"""
    scale = min(1.0, most / (added(squares(own)) + squares(shared)) ** 0.5)
    return own.mul_(scale), shared.mul_(scale)


def a_share_of_shared(rank, world_size, own, shared, most):
    """Every rank adds its share of the embedding's squares."""
    return cut(own, shared, most, added(squares(own) + squares(shared) / world_size) ** 0.5)


def shared_as_it_was(rank, world_size, own, shared, most):
    """the clipping of the rank's own layers alone"""
    return cut(own, shared, most, (added(squares(own)) + squares(shared)) ** 0.5)[0], shared.clone()


def longest_part(rank, world_size, own, shared, most):
    """the length by the largest of the ranks' squares"""
    longest = torch.tensor([squares(own)])
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return cut(own, shared, most, (longest.item() + squares(shared)) ** 0.5)


def number_by_number(rank, world_size, own, shared, most):
    """each number of the gradients clipped for itself"""
    return own.clamp(-most, most), shared.clamp(-most, most)


WRONG = {
    own_length: "Each rank measures only its own part",
    shared_often: "You count `shared` once for each rank",
    shared_never: "`shared` is missing in the norm",
    lengths_added: "You add up norms",
    without_root: "That is the square of the norm",
    averaged: "You take the mean of the squares",
    each_for_itself: "You clip `own` and `shared` separately, and the direction changes",
    stretched: "You make a gradient longer whose norm was small enough",
    shared_reduced_again: "Do not send `shared`",
    place_by_rank: "Send one number",
    writes_into_own: "changed the tensor it was given",
    shared_as_it_was: "You did not scale `shared`",
    longest_part: "You measure only the longest part",
    number_by_number: "You clip each number by itself, and the direction changes",
}

ALSO_RIGHT = [a_share_of_shared]
