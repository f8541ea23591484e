"""Wrong answers to exercise 06.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "clipped_mean"


def cut(gradient, most, length):
    return gradient * most / max(most, length.item())


def average(tensor):
    mean = tensor.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean


def per_rank(rank, world_size, gradient, most):
    """the mean of gradients that each rank has clipped by itself"""
    return average(cut(gradient, most, gradient.norm()))


def sum_clipped(rank, world_size, gradient, most):
    """the clipped sum of the gradients, which nothing divides"""
    total = gradient.clone()
    dist.all_reduce(total)
    return cut(total, most, total.norm())


def mean_of_lengths(rank, world_size, gradient, most):
    """the clip by the mean of the gradients' lengths"""
    both = average(torch.cat([gradient, gradient.norm().reshape(1)]))
    return cut(both[:-1], most, both[-1])


def end_to_end(rank, world_size, gradient, most):
    """the clip by the length of all gradients laid end to end"""
    mean, square = average(gradient), gradient.square().sum()
    dist.all_reduce(square)
    return cut(mean, most, square.sqrt())


def number_by_number(rank, world_size, gradient, most):
    """the clip by value, which cuts each number by itself"""
    return average(gradient).clamp(-most, most)


def agrees_on_the_length(rank, world_size, gradient, most):
    """the clipped mean that takes a second all_reduce"""
    mean = average(gradient)
    return cut(mean, most, average(mean.norm()))


def sends_a_length_along(rank, world_size, gradient, most):
    """the clipped mean whose all_reduce carries one number more"""
    mean = average(torch.cat([gradient, gradient.norm().reshape(1)]))[:-1]
    return cut(mean, most, mean.norm())


def always_cuts(rank, world_size, gradient, most):
    """the mean brought to the length `most` even where it is shorter"""
    mean = average(gradient)
    return mean * most / mean.norm()


def in_place(rank, world_size, gradient, most):
    """the clipped mean that changes the gradient it was given"""
    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
    return cut(gradient, most, gradient.norm())


def sum_clipped_then_divided(rank, world_size, gradient, most):
    """the clipped sum of the gradients, divided by world_size"""
    total = gradient.clone()
    dist.all_reduce(total)
    return cut(total, most, total.norm()) / world_size


def own_length(rank, world_size, gradient, most):
    """the mean clipped by the length of each rank's own gradient"""
    return cut(average(gradient), most, gradient.norm())


def divides_by_0(rank, world_size, gradient, most):
    """the clip that divides by the mean's length even where that is 0"""
    mean = average(gradient)
    return mean * min(1, most / mean.norm().item())


def unit_vector(rank, world_size, gradient, most):
    """the clip by way of a unit vector, which a mean of 0 does not have"""
    mean = average(gradient)
    length = mean.norm()
    return mean / length * min(length, most)


def never_cut(rank, world_size, gradient, most):
    """the mean that is never cut"""
    return average(gradient)


def shorter_of_the_two(rank, world_size, gradient, most):
    """the clip with min in the place of max"""
    mean = average(gradient)
    return mean * most / min(most, mean.norm().item())


WRONG = {
    never_cut: "longer than most, and not cut",
    shorter_of_the_two: "longer than most, and not cut",
    per_rank: "clipped before the mean is taken",
    sum_clipped: "divide before you measure",
    mean_of_lengths: "the length of the mean is smaller",
    end_to_end: "laid end to end",
    number_by_number: "Every number is cut for itself",
    agrees_on_the_length: "can measure its length alone",
    sends_a_length_along: "The length need not travel",
    always_cuts: "You make a gradient longer whose norm was small enough",
    in_place: "changed the tensor it was given",
    sum_clipped_then_divided: "too much is cut",
    own_length: "by the length of its own gradient",
    divides_by_0: "nothing can be divided by it",
    unit_vector: "its length is 0, too, and 0 / 0 is nan",
}


def cut_where_too_long(rank, world_size, gradient, most):
    mean = gradient.clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    length = float(torch.linalg.vector_norm(mean))
    return mean if length <= most else mean * (most / length)


ALSO_RIGHT = [cut_where_too_long]
