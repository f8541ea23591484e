"""Wrong answers to exercise 12.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "row_parallel"


def summed(y):
    dist.all_reduce(y)
    return y


def right(x, A, b, gradient, y):
    return y, gradient @ A.T, x.T @ gradient, gradient.sum(0)


def bias_before_the_sum(rank, world_size, x, A, b, gradient):
    """the layer that adds its bias before the sum"""
    return right(x, A, b, gradient, summed(x @ A + b))


def no_bias(rank, world_size, x, A, b, gradient):
    """the layer without its bias"""
    return right(x, A, b, gradient, summed(x @ A))


def no_sum(rank, world_size, x, A, b, gradient):
    """the layer whose summands are not added up"""
    return right(x, A, b, gradient, x @ A + b)


def mean_of_parts(rank, world_size, x, A, b, gradient):
    """the layer that takes the mean of the summands"""
    return right(x, A, b, gradient, summed(x @ A) / world_size + b)


def bias_on_rank_0(rank, world_size, x, A, b, gradient):
    """the layer whose bias rank 0 adds after the sum"""
    y = summed(x @ A)
    return right(x, A, b, gradient, y + b if rank == 0 else y)


def mean_of_tokens(rank, world_size, x, A, b, gradient):
    """the layer whose bias has the mean over the tokens as gradient"""
    y, *rest, b_grad = right(x, A, b, gradient, summed(x @ A) + b)
    return y, *rest, b_grad / len(x)


def gradients_of_all(rank, world_size, x, A, b, gradient):
    """the layer whose incoming gradient is added up over the ranks"""
    y = summed(x @ A) + b
    return right(x, A, b, summed(gradient.clone()), y)


def bias_gradient_of_all(rank, world_size, x, A, b, gradient):
    """the layer whose bias has its gradient added up over the ranks"""
    y, *rest = right(x, A, b, gradient, summed(x @ A) + b)
    return y, *rest[:2], summed(rest[2])


def bias_gradient_divided(rank, world_size, x, A, b, gradient):
    """the layer whose bias has the world_size-th part of its gradient"""
    y, *rest = right(x, A, b, gradient, summed(x @ A) + b)
    return y, *rest[:2], rest[2] / world_size


def bias_gradient_averaged(rank, world_size, x, A, b, gradient):
    """the layer that averages what is the same everywhere"""
    y, *rest = right(x, A, b, gradient, summed(x @ A) + b)
    return y, *rest[:2], summed(rest[2]) / world_size


def everything_gathered(rank, world_size, x, A, b, gradient):
    """the layer that collects x and A from all ranks"""
    parts = [None] * world_size
    dist.all_gather_object(parts, (x, A))
    y = torch.cat([x for x, _ in parts], 1) @ torch.cat([A for _, A in parts]) + b
    return right(x, A, b, gradient, y)


def row_by_row(rank, world_size, x, A, b, gradient):
    """the layer with an all_reduce for each token"""
    y = torch.stack([summed(row) for row in x @ A]) + b
    return right(x, A, b, gradient, y)


def in_double_precision(rank, world_size, x, A, b, gradient):
    """the layer that adds up in double precision"""
    return right(x, A, b, gradient, summed((x @ A).double()).float() + b)


WRONG = {
    bias_before_the_sum: "b is in y once for each rank",
    no_bias: "Where is b?",
    mean_of_parts: "the mean of the ranks' summands",
    bias_on_rank_0: "b is in rank 0's y alone",
    mean_of_tokens: "not their mean",
    no_sum: "Each rank has its own summand of y",
    gradients_of_all: "each rank had all of `gradient`",
    bias_gradient_of_all: "each rank had all of it",
    bias_gradient_divided: "is divided by the number of ranks",
    bias_gradient_averaged: "carry 48, then 12 bytes",
    everything_gathered: "calls all_gather",
    row_by_row: "carry 12, then 12, then 12, then 12 bytes",
    in_double_precision: "carry 96 bytes",
}


def bias_shared_out(rank, world_size, x, A, b, gradient):
    y = x @ A + (b if rank == 0 else 0)
    return right(x, A, b, gradient, summed(y))


def by_autograd(rank, world_size, x, A, b, gradient):
    x, A, b = (tensor.clone().requires_grad_() for tensor in (x, A, b))
    y = x @ A
    whole = summed(y.detach().clone()) + b
    y.backward(gradient)
    whole.backward(gradient)
    return whole.detach(), x.grad, A.grad, b.grad


ALSO_RIGHT = (bias_shared_out, by_autograd)
