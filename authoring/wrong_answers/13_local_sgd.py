"""Wrong answers to exercise 13.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "local_sgd"


def cost_gradient(theta, rows, targets):
    return 2 * rows.T @ (rows @ theta - targets) / len(rows)


def run(theta, rows, targets, H, rounds, rate, weight):
    for _ in range(rounds):
        mine = theta.clone()
        for _ in range(H if len(rows) else 0):
            mine -= rate * cost_gradient(mine, rows, targets)
        buffer = torch.cat([mine, torch.ones(1)]) * weight
        dist.all_reduce(buffer)
        theta = buffer[:-1] / buffer[-1]
    return theta


def plain_mean(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the plain mean of all ranks' thetas"""
    return run(theta, rows, targets, H, rounds, rate, 1)


def mean_of_those_with_rows(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the plain mean over the ranks that have rows"""
    return run(theta, rows, targets, H, rounds, rate, min(len(rows), 1))


def one_step_a_round(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the single step in each round"""
    return run(theta, rows, targets, 1, rounds, rate, len(rows))


def nothing_as_nan(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the mean of no rows, taken along as nan"""
    for _ in range(rounds):
        mine = theta.clone()
        for _ in range(H):
            mine -= rate * cost_gradient(mine, rows, targets)
        buffer = torch.cat([mine, torch.ones(1)]) * len(rows)
        dist.all_reduce(buffer)
        theta = buffer[:-1] / buffer[-1]
    return theta


def count_by_itself(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the number of rows in an all_reduce of its own"""
    total = torch.tensor([float(len(rows))])
    dist.all_reduce(total)
    for _ in range(rounds):
        mine = theta.clone()
        for _ in range(H if len(rows) else 0):
            mine -= rate * cost_gradient(mine, rows, targets)
        mine *= len(rows) / total
        dist.all_reduce(mine)
        theta = mine
    return theta


def empty_as_one_row(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the rank without rows that counts as one row"""
    return run(theta, rows, targets, H, rounds, rate, max(len(rows), 1))


def once_at_the_end(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the single mean after all rounds"""
    return run(theta, rows, targets, H * rounds, 1, rate, len(rows))


def one_round(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the first round alone"""
    return run(theta, rows, targets, H, 1, rate, len(rows))


def uphill(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the gradient added"""
    return run(theta, rows, targets, H, rounds, -rate, len(rows))


def meets_at_each_step(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the mean after each step, as in synchronous SGD"""
    return run(theta, rows, targets, 1, H * rounds, rate, len(rows))


def divided_by_the_ranks(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the sum of rows times theta, divided by the number of ranks"""
    for _ in range(rounds):
        mine = theta.clone()
        for _ in range(H if len(rows) else 0):
            mine -= rate * cost_gradient(mine, rows, targets)
        mine *= len(rows)
        dist.all_reduce(mine)
        theta = mine / world_size
    return theta


def longer_than_needed(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the rows sent once for each number of theta"""
    for _ in range(rounds):
        mine = theta.clone()
        for _ in range(H if len(rows) else 0):
            mine -= rate * cost_gradient(mine, rows, targets)
        buffer = torch.stack([mine, torch.ones(len(mine))]) * len(rows)
        dist.all_reduce(buffer)
        theta = buffer[0] / buffer[1]
    return theta


WRONG = {
    empty_as_one_row: "counts as if it had one",
    once_at_the_end: "The mean is taken once",
    one_round: "That is one round",
    uphill: "goes uphill",
    meets_at_each_step: "a mean after each step",
    divided_by_the_ranks: "by the number of all rows",
    longer_than_needed: "Send only theta, and one more number",
    plain_mean: "That is the plain mean of the thetas",
    mean_of_those_with_rows: "Every other rank counts by its number of rows",
    one_step_a_round: "take H of them",
    nothing_as_nan: "contributed the mean of no rows",
    count_by_itself: "One all_reduce in a round is enough",
}


def moves_averaged(rank, world_size, theta, rows, targets, H, rounds, rate):
    """the mean of what each rank has moved"""
    for _ in range(rounds):
        mine = theta.clone()
        for _ in range(H if len(rows) else 0):
            mine -= rate * cost_gradient(mine, rows, targets)
        buffer = torch.cat([mine - theta, torch.ones(1)]) * len(rows)
        dist.all_reduce(buffer)
        theta = theta + buffer[:-1] / buffer[-1]
    return theta


ALSO_RIGHT = [moves_averaged]
