"""Wrong answers to exercise 07.6, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "means_of_stream"


MANY = 1024
"""What a rank with a batch adds to its count, so that one number tells both."""


def totals(batches, length, weigh=lambda gradients, count: gradients, ended=None):
    """(sum of gradients, count, ranks with a batch) of each step, until all have ended."""
    found, last = [], None
    while True:
        batch = next(batches, None)
        gradients, count = batch or (torch.zeros(length), 0)
        if batch is None and ended == "again":
            gradients, count = last
        last = gradients, count
        both = torch.tensor([float(count + MANY * (batch is not None))])
        total = torch.cat([weigh(gradients, count), both])
        dist.all_reduce(total)
        ranks, count = divmod(int(total[-1]), MANY)
        if ranks == 0:
            return found
        found.append((total[:-1], count, ranks))


def until_the_first_ends(rank, world_size, batches, length):
    """the steps until the first iterator ends"""
    found = totals(batches, length)
    return [total / count for total, count, ranks in found if ranks == world_size]


def never_divided(rank, world_size, batches, length):
    """the sums of all ranks' gradients"""
    return [total for total, _, _ in totals(batches, length)]


def mean_of_means(rank, world_size, batches, length):
    """the mean of the ranks' means, over ranks that have a batch"""
    found = totals(batches, length, lambda gradients, count: gradients / max(count, 1))
    return [total / ranks for total, _, ranks in found]


def mean_of_means_of_all(rank, world_size, batches, length):
    """the mean of the ranks' means, with zeros of ranks that have ended"""
    found = totals(batches, length, lambda gradients, count: gradients / max(count, 1))
    return [total / world_size for total, _, _ in found]


def last_again(rank, world_size, batches, length):
    """the last batch once more, by ranks that have ended"""
    return [total / count for total, count, _ in totals(batches, length, ended="again")]


def divided_by_nothing(rank, world_size, batches, length):
    """one step more, whose count is 0"""
    found = [total / count for total, count, _ in totals(batches, length)]
    return [*found, torch.zeros(length) / 0]


def hangs(rank, world_size, batches, length):
    """the loop over a rank's own batches only"""
    found = []
    for gradients, count in batches:
        total = torch.cat([gradients, torch.tensor([float(count)])])
        dist.all_reduce(total)
        found.append(total[:-1] / total[-1])
    return found


def one_tensor(rank, world_size, batches, length):
    """the list of one tensor, which each step fills again"""
    found, total = [], torch.zeros(length + 1)
    while True:
        total[:length], total[length] = next(batches, (torch.zeros(length), 0))
        dist.all_reduce(total)
        if total[-1] == 0:
            return found
        total[:-1] /= float(total[-1])
        found.append(total[:-1])


def asks_by_a_flag(rank, world_size, batches, length):
    """the flag in an all_reduce of its own"""
    found = []
    while True:
        batch = next(batches, None)
        flag = torch.tensor([float(batch is not None)])
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        if flag == 0:
            return found
        gradients, count = batch or (torch.zeros(length), 0)
        total = torch.cat([gradients, torch.tensor([float(count)])])
        dist.all_reduce(total)
        found.append(total[:-1] / total[-1])


def flag_and_count(rank, world_size, batches, length):
    """the flag beside the count, 4 bytes too many"""
    found = []
    while True:
        batch = next(batches, None)
        gradients, count = batch or (torch.zeros(length), 0)
        total = torch.cat([gradients, torch.tensor([float(count), float(batch is not None)])])
        dist.all_reduce(total)
        if total[-1] == 0:
            return found
        found.append(total[:-2] / total[-2])


def counted_first(rank, world_size, batches, length):
    """the longest iterator, asked before the first step"""
    batches = list(batches)
    steps = torch.tensor([len(batches)])
    dist.all_reduce(steps, dist.ReduceOp.MAX)
    found = []
    for step in range(int(steps)):
        gradients, count = batches[step] if step < len(batches) else (torch.zeros(length), 0)
        total = torch.cat([gradients, torch.tensor([float(count)])])
        dist.all_reduce(total)
        found.append(total[:-1] / total[-1])
    return found


WRONG = {
    until_the_first_ends: "stop when the first iterator ends",
    never_divided: "Those are sums: divide",
    mean_of_means: "A mean of the ranks' means",
    mean_of_means_of_all: "ranks without a batch count as zero",
    last_again: "A rank that has ended passes its last batch again",
    divided_by_nothing: "return before you divide",
    hangs: "has finished",
    one_tensor: "All elements of your list are 0",
    asks_by_a_flag: "The number of samples can travel in the same tensor",
    flag_and_count: "bytes",
}

ALSO_RIGHT = [counted_first]
