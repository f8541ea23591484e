"""Wrong answers to exercise 08.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

QUESTION = "weigh"


def tower(widths):
    torch.manual_seed(0)
    pairs = zip(widths, widths[1:], strict=False)
    return nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in pairs))


def gradients(model):
    return [weight.grad for weight in model.parameters()]


def total_of(x):
    total = torch.tensor(float(len(x)))
    dist.all_reduce(total)
    return total


def a_mean_on_each_rank(rank, world_size, x):
    """the mean on each rank, in which few examples weigh like many"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    (ddp(x).sum() / max(1, len(x))).backward()
    return gradients(ddp)


def divided_twice(rank, world_size, x):
    """the mean over all examples, divided by world_size again"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    (ddp(x).sum() / total_of(x)).backward()
    return gradients(ddp)


def only_the_sum(rank, world_size, x):
    """the sum over all examples, divided by world_size only"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    ddp(x).sum().backward()
    return gradients(ddp)


def skips_an_empty_batch(rank, world_size, x):
    """the backward pass that a rank without examples skips"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    total = total_of(x)
    if len(x):
        (ddp(x).sum() * world_size / total).backward()
    return gradients(ddp)


def two_numbers(rank, world_size, x):
    """the all_reduce of more than one number"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    counts = torch.zeros(world_size)
    counts[rank] = len(x)
    dist.all_reduce(counts)
    (ddp(x).sum() * world_size / counts.sum()).backward()
    return gradients(ddp)


WRONG = {
    a_mean_on_each_rank: "a rank with few examples has too much weight",
    divided_twice: "DDP divides, too",
    only_the_sum: "gradient of the sum",
    skips_an_empty_batch: "wait for rank 2, which has finished",
    two_numbers: "carry [2, 8] numbers",
}
