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


def gathers_the_counts(rank, world_size, x):
    """the counts that an all_gather brings"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    counts = [torch.zeros(()) for _ in range(world_size)]
    dist.all_gather(counts, torch.tensor(float(len(x))))
    (ddp(x).sum() * world_size / sum(counts)).backward()
    return gradients(ddp)


def without_ddp(rank, world_size, x):
    """the all_reduce by hand, with the number of examples in the same tensor"""
    model = tower([3, 2, 1])
    model(x).sum().backward()
    flat = torch.cat([g.flatten() for g in gradients(model)] + [torch.tensor([float(len(x))])])
    dist.all_reduce(flat)
    parts = (flat[:-1] / flat[-1]).split([weight.numel() for weight in model.parameters()])
    return [part.view_as(w) for part, w in zip(parts, model.parameters(), strict=True)]


def divides_by_its_own_count(rank, world_size, x):
    """the sum of the ranks' means"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    (ddp(x).sum() * world_size / max(1, len(x))).backward()
    return gradients(ddp)


def weighs_afterwards(rank, world_size, x):
    """the weight put on what DDP has averaged already"""
    ddp, total = DistributedDataParallel(tower([3, 2, 1])), total_of(x)
    (ddp(x).sum() / max(1, len(x))).backward()
    return [grad * world_size * len(x) / total for grad in gradients(ddp)]


def past_ddp(rank, world_size, x):
    """the forward pass through ddp.module, which DDP does not see"""
    ddp, total = DistributedDataParallel(tower([3, 2, 1])), total_of(x)
    (ddp.module(x).sum() * world_size / total).backward()
    return gradients(ddp)


WRONG = {
    a_mean_on_each_rank: "a rank with few examples has too much weight",
    divided_twice: "DDP divides, too",
    only_the_sum: "gradient of the sum",
    skips_an_empty_batch: "an empty share, too, goes through ddp(x)",
    two_numbers: "carry [2, 8] numbers",
    gathers_the_counts: "learns the counts by another collective",
    without_ddp: "has no all_reduce of 8 gradients",
    divides_by_its_own_count: "the ranks' means are added up",
    weighs_afterwards: "what DDP has averaged already",
    past_ddp: "not ddp.module(x)",
}


def by_a_factor(rank, world_size, x):
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    count = torch.tensor([float(len(x))])
    dist.all_reduce(count, op=dist.ReduceOp.AVG)
    loss = ddp(x).sum() / count.item()
    loss.backward()
    return gradients(ddp.module)


def by_means(rank, world_size, x):
    """The mean of nothing is nan, but the gradients that it brings are zeros, too."""
    ddp, total = DistributedDataParallel(tower([3, 2, 1])), total_of(x)
    (ddp(x).mean() * len(x) * world_size / total).backward()
    return gradients(ddp)


ALSO_RIGHT = [by_a_factor, by_means]
