"""Wrong answers to review.10, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "train"


def gradient_of(theta, rows, targets):
    return 2 * rows.T @ (rows @ theta - targets) / len(rows)


def sum_and_count(theta, rows, targets):
    """The sum over the rank's rows, their number behind it."""
    total = torch.zeros(len(theta) + 1)
    if len(rows):
        total[:-1] = gradient_of(theta, rows, targets) * len(rows)
        total[-1] = len(rows)
    return total


def descended(theta, rows, targets, steps, lr, step, broadcasts=True):
    """Theta after so many steps along ``step(theta)``."""
    theta = theta.clone()
    if broadcasts:
        dist.broadcast(theta, src=0)
    for _ in range(steps):
        theta = theta - lr * step(theta)
    return theta


def own_beginning(rank, world_size, theta, rows, targets, steps, lr):
    """the training from each rank's own theta"""

    def step(theta):
        total = sum_and_count(theta, rows, targets)
        dist.all_reduce(total)
        return total[:-1] / total[-1]

    return descended(theta, rows, targets, steps, lr, step, broadcasts=False)


def mean_of_means(rank, world_size, theta, rows, targets, steps, lr, broadcasts=True):
    """the training by the mean of the ranks' mean gradients"""

    def step(theta):
        gradient = gradient_of(theta, rows, targets) if len(rows) else torch.zeros_like(theta)
        dist.all_reduce(gradient)
        return gradient / world_size

    return descended(theta, rows, targets, steps, lr, step, broadcasts)


def no_more_hang(rank, world_size, theta, rows, targets, steps, lr):
    """the program that no longer hangs, and is not mended otherwise"""
    return mean_of_means(rank, world_size, theta, rows, targets, steps, lr, broadcasts=False)


def still_hangs(rank, world_size, theta, rows, targets, steps, lr):
    """the training that a rank without rows leaves out"""

    def step(theta):
        total = sum_and_count(theta, rows, targets)
        dist.all_reduce(total)
        return total[:-1] / total[-1]

    return descended(theta, rows, targets, steps if len(rows) else 0, lr, step)


def by_ranks(rank, world_size, theta, rows, targets, steps, lr):
    """the sum over all rows, divided by the number of ranks"""

    def step(theta):
        total = sum_and_count(theta, rows, targets)
        dist.all_reduce(total)
        return total[:-1] / world_size

    return descended(theta, rows, targets, steps, lr, step)


def nan_brought(rank, world_size, theta, rows, targets, steps, lr):
    """the training into which an empty rank brings nan"""

    def step(theta):
        gradient = gradient_of(theta, rows, targets) * len(rows)
        total = torch.cat([gradient, torch.tensor([float(len(rows))])])
        dist.all_reduce(total)
        return total[:-1] / total[-1]

    return descended(theta, rows, targets, steps, lr, step)


def counts_each_time(rank, world_size, theta, rows, targets, steps, lr):
    """the number of rows in an all_reduce of its own, in every step"""

    def step(theta):
        total = sum_and_count(theta, rows, targets)
        gradient, number = total[:-1].clone(), total[-1:].clone()
        dist.all_reduce(gradient)
        dist.all_reduce(number)
        return gradient / number

    return descended(theta, rows, targets, steps, lr, step)


def a_row_for_each_rank(rank, world_size, theta, rows, targets, steps, lr):
    """the all_reduce of a table with a row for each rank"""

    def step(theta):
        table = torch.zeros(world_size, len(theta) + 1)
        table[rank] = sum_and_count(theta, rows, targets)
        dist.all_reduce(table)
        total = table.sum(0)
        return total[:-1] / total[-1]

    return descended(theta, rows, targets, steps, lr, step)


def counted_before(rank, world_size, theta, rows, targets, steps, lr):
    """The number of all rows once, before the first step."""
    number = torch.tensor([float(len(rows))])
    dist.all_reduce(number)

    def step(theta):
        total = sum_and_count(theta, rows, targets)[:-1] / number
        dist.all_reduce(total)
        return total

    return descended(theta, rows, targets, steps, lr, step)


def mean_beginning(rank, world_size, theta, rows, targets, steps, lr):
    """the training from the mean of the ranks' thetas"""
    theta = theta.clone()
    dist.all_reduce(theta)
    return own_beginning(rank, world_size, theta / world_size, rows, targets, steps, lr)


def averaged_at_the_end(rank, world_size, theta, rows, targets, steps, lr):
    """the training of each rank for itself, and the mean of their thetas"""
    theta = theta.clone()
    dist.broadcast(theta, src=0)
    for _ in range(steps if len(rows) else 0):
        theta -= lr * gradient_of(theta, rows, targets)
    dist.all_reduce(theta)
    return theta / world_size


WRONG = {
    own_beginning: "Every rank still begins with its own theta",
    mean_of_means: "Every rank still has the same weight",
    no_more_hang: "the ranks do not even agree",
    still_hangs: "which has finished",
    by_ranks: "what divides is not the number of all rows",
    nan_brought: "All is nan",
    counts_each_time: "the number of rows travels with the gradient",
    a_row_for_each_rank: "A sum needs no room for each rank",
    mean_beginning: "The ranks begin with the mean of their thetas",
    averaged_at_the_end: "Each rank trains alone there",
}

ALSO_RIGHT = [counted_before]
