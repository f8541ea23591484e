"""Wrong answers to review.8, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "largest_batch"


def agreed(number, op=dist.ReduceOp.MIN):
    """The ranks' numbers brought together."""
    found = torch.tensor([number])
    dist.all_reduce(found, op=op)
    return found.item()


def fits(params, example_bytes, capacity, per_param=16):
    return (capacity - per_param * params) // example_bytes


def own_alone(rank, world_size, params, example_bytes, capacity):
    """what fits on the rank itself"""
    return fits(params, example_bytes, capacity)


def most_room(rank, world_size, params, example_bytes, capacity):
    """what fits on the rank with most room"""
    return agreed(fits(params, example_bytes, capacity), dist.ReduceOp.MAX)


def all_together(rank, world_size, params, example_bytes, capacity):
    """the sum of what fits on the ranks"""
    return agreed(fits(params, example_bytes, capacity), dist.ReduceOp.SUM)


def on_average(rank, world_size, params, example_bytes, capacity):
    """the mean of what fits on the ranks"""
    return agreed(fits(params, example_bytes, capacity), dist.ReduceOp.SUM) // world_size


def parameters_alone(rank, world_size, params, example_bytes, capacity):
    """the ledger of parameters and activations alone"""
    return agreed(fits(params, example_bytes, capacity, per_param=4))


def without_adam(rank, world_size, params, example_bytes, capacity):
    """the ledger without the optimizer"""
    return agreed(fits(params, example_bytes, capacity, per_param=8))


def adam_as_momentum(rank, world_size, params, example_bytes, capacity):
    """the ledger with one state of Adam's"""
    return agreed(fits(params, example_bytes, capacity, per_param=12))


def less_than_nothing(rank, world_size, params, example_bytes, capacity):
    """the smallest batch, though it is below 0"""
    return agreed(fits(params, example_bytes, capacity))


def tells_all(rank, world_size, params, example_bytes, capacity):
    """the all_reduce of a table with a place for each rank"""
    table = torch.zeros(world_size, dtype=torch.int64)
    table[rank] = max(0, fits(params, example_bytes, capacity))
    dist.all_reduce(table)
    return int(table.min())


def two_calls(rank, world_size, params, example_bytes, capacity):
    """an all_reduce that nobody needs before the right one"""
    agreed(params, dist.ReduceOp.MAX)
    return max(0, agreed(fits(params, example_bytes, capacity)))


def zero_at_the_end(rank, world_size, params, example_bytes, capacity):
    """The smallest first, then no less than 0."""
    return max(0, agreed((capacity - 4 * 4 * params) // example_bytes))


def with_a_fraction(rank, world_size, params, example_bytes, capacity):
    """the batch that is not rounded"""
    return agreed((capacity - 16 * params) / example_bytes)


def rounded_up(rank, world_size, params, example_bytes, capacity):
    """the batch rounded up to whole examples"""
    return agreed(-((16 * params - capacity) // example_bytes))


WRONG = {
    own_alone: "That is what fits on this rank alone",
    most_room: "the tightest one decides",
    all_together: "each example visits every rank",
    on_average: "That is the mean of what fits",
    parameters_alone: "Only the parameters are counted",
    without_adam: "but not Adam's two states",
    adam_as_momentum: "Adam keeps two states for each parameter",
    less_than_nothing: "Less than nothing does not fit",
    tells_all: "First work out what fits on your own rank",
    two_calls: "One number of each rank says it all",
    with_a_fraction: "A batch has whole examples",
    rounded_up: "That is rounded up",
}

ALSO_RIGHT = [zero_at_the_end]
