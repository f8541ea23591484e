"""Wrong answers to exercise 06.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "kept_in_step"


def cost_gradient(theta, rows, targets):
    return 2 * rows.T @ (rows @ theta - targets) / len(rows)


def from_rank_0(theta):
    theta = theta.clone()
    dist.broadcast(theta, src=0)
    return theta


def average(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    return tensor


def no_broadcast(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training in which each rank begins with its own theta"""
    v = torch.zeros_like(theta)
    for _ in range(steps):
        v = momentum * v + average(cost_gradient(theta, rows, targets))
        theta = theta - lr * v
    return theta, v


def alone(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training of each rank alone, from its own theta"""
    v = torch.zeros_like(theta)
    for _ in range(steps):
        v = momentum * v + cost_gradient(theta, rows, targets)
        theta = theta - lr * v
    return theta, v


def synchronises_too_late(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training in which no averaged gradient reaches a step"""
    theta = from_rank_0(theta)
    v = torch.zeros_like(theta)
    for _ in range(steps):
        gradient = cost_gradient(theta, rows, targets)
        v = momentum * v + gradient
        theta = theta - lr * v
        gradient = average(gradient)
    return theta, v


def sums(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training with the sum of the gradients, not with their mean"""
    theta = from_rank_0(theta)
    v = torch.zeros_like(theta)
    for _ in range(steps):
        gradient = cost_gradient(theta, rows, targets)
        dist.all_reduce(gradient)
        v = momentum * v + gradient
        theta = theta - lr * v
    return theta, v


def averages_weights(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training that averages weights instead of gradients"""
    theta = from_rank_0(theta)
    v = torch.zeros_like(theta)
    for _ in range(steps):
        v = momentum * v + cost_gradient(theta, rows, targets)
        theta = average(theta - lr * v)
    return theta, v


def averages_everything(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training with two all_reduces in each step"""
    theta = from_rank_0(theta)
    v = torch.zeros_like(theta)
    for _ in range(steps):
        v = average(momentum * v + cost_gradient(theta, rows, targets))
        theta = average(theta - lr * v)
    return theta, v


def two_in_one(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training whose all_reduces carry twice a gradient's bytes"""
    theta = from_rank_0(theta)
    v = torch.zeros_like(theta)
    for _ in range(steps):
        v = momentum * v + cost_gradient(theta, rows, targets)
        both = average(torch.cat([theta - lr * v, v]))
        theta, v = both.split(len(theta))
    return theta, v


def writes_into_theta(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training that changes the theta it was given"""
    dist.broadcast(theta, src=0)
    v = torch.zeros_like(theta)
    for _ in range(steps):
        v = momentum * v + average(cost_gradient(theta, rows, targets))
        theta -= lr * v
    return theta, v


def starts_from_the_mean(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training that starts from the mean of all theta"""
    theta = average(theta)
    v = torch.zeros_like(theta)
    for _ in range(steps):
        v = momentum * v + average(cost_gradient(theta, rows, targets))
        theta = theta - lr * v
    return theta, v


def rate_in_v(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the momentum that has the learning rate in v"""
    theta = from_rank_0(theta)
    v = torch.zeros_like(theta)
    for _ in range(steps):
        v = momentum * v + lr * average(cost_gradient(theta, rows, targets))
        theta = theta - v
    return theta, v


def no_momentum(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training by plain SGD"""
    theta = from_rank_0(theta)
    for _ in range(steps):
        v = average(cost_gradient(theta, rows, targets))
        theta = theta - lr * v
    return theta, v


def theta_first(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training in which theta takes its step before v is new"""
    theta = from_rank_0(theta)
    v = torch.zeros_like(theta)
    for _ in range(steps):
        gradient = average(cost_gradient(theta, rows, targets))
        theta = theta - lr * v
        v = momentum * v + gradient
    return theta, v


def averaged_at_the_end(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """the training of each rank alone, averaged at the end"""
    theta, v = alone(rank, world_size, from_rank_0(theta), rows, targets, steps, lr, momentum)
    return average(theta), average(v)


WRONG = {
    no_momentum: "That is plain SGD",
    theta_first: "v first, then theta",
    averaged_at_the_end: "The ranks train alone, and only their results are averaged",
    no_broadcast: "every rank began with its own theta",
    alone: "trained alone, from its own theta",
    synchronises_too_late: "trained alone, from the theta of rank 0",
    sums: "summed, not averaged",
    averages_weights: "Average the gradients instead of the weights",
    averages_everything: "Make one call before the first step, then one call in each step",
    two_in_one: "The gradient alone is enough",
    writes_into_theta: "but the input has changed",
    starts_from_the_mean: "from the mean of all theta",
    rate_in_v: "too small by the factor lr",
}


def in_place(rank, world_size, theta, rows, targets, steps, lr, momentum):
    theta = theta.clone()
    dist.broadcast(theta, 0)
    v = torch.zeros(len(theta))
    for _ in range(steps):
        mean = cost_gradient(theta, rows, targets).clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        v.mul_(momentum).add_(mean)
        theta.sub_(v, alpha=lr)
    return theta, v


ALSO_RIGHT = [in_place]
