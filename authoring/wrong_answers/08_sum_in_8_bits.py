"""Wrong answers to exercise 08.5, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "sum_in_8_bits"


def quantised(x):
    blocks = x.reshape(-1, 8)
    scales = blocks.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    return (blocks / scales).round().to(torch.int8), scales


def restored(values, scales):
    return (values.float() * scales).flatten()


def exchanged(*tensors):
    """What the ranks sent to this one, of each tensor."""
    found = [torch.empty_like(tensor) for tensor in tensors]
    for into, tensor in zip(found, tensors, strict=True):
        dist.all_to_all_single(into, tensor)
    return found


def gathered(world_size, tensor):
    found = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(found, tensor)
    return found


def of_all(world_size, part):
    values, scales = (gathered(world_size, one) for one in quantised(part))
    return torch.cat([restored(*pair) for pair in zip(values, scales, strict=True)])


def part_of(world_size, x):
    return restored(*exchanged(*quantised(x))).view(world_size, -1).sum(0)


def sum_not_rounded(rank, world_size, x):
    """the all_reduce whose sums travel in float32"""
    return torch.cat(gathered(world_size, part_of(world_size, x)))


def x_not_rounded(rank, world_size, x):
    """the all_reduce that rounds the sums alone"""
    (got,) = exchanged(x)
    return of_all(world_size, got.view(world_size, -1).sum(0))


def own_part_not_rounded(rank, world_size, x):
    """the all_reduce that adds a rank's own part as it is"""
    parts = restored(*exchanged(*quantised(x))).view(world_size, -1)
    parts[rank] = x.chunk(world_size)[rank]
    return of_all(world_size, parts.sum(0))


def added_as_int8(rank, world_size, x):
    """the all_reduce that adds int8 values as int8"""
    values, scales = exchanged(*quantised(x))
    total = values.view(world_size, -1, 8).sum(0).to(torch.int8)
    mine = scales.view(world_size, -1, 1)[0]
    values, scales = gathered(world_size, total), gathered(world_size, mine)
    return torch.cat([restored(*pair) for pair in zip(values, scales, strict=True)])


def partial_sums_rounded(rank, world_size, x):
    """the all_reduce that rounds each partial sum"""
    first, *others = restored(*exchanged(*quantised(x))).view(world_size, -1)
    for part in others:
        first = restored(*quantised(first + part))
    return of_all(world_size, first)


def mean(rank, world_size, x):
    """the all_reduce that divides by the number of ranks"""
    return of_all(world_size, part_of(world_size, x)) / world_size


def exact(rank, world_size, x):
    """the all_reduce of exact numbers"""
    (got,) = exchanged(x)
    return torch.cat(gathered(world_size, got.view(world_size, -1).sum(0)))


def everything_to_everybody(rank, world_size, x):
    """the all_reduce in which each rank gathers everything"""
    pairs = zip(*(gathered(world_size, one) for one in quantised(x)), strict=True)
    return restored(*quantised(sum(restored(*pair) for pair in pairs)))


def float32_on_the_wire(rank, world_size, x):
    """the all_reduce that restores the numbers before it sends them"""
    (got,) = exchanged(restored(*quantised(x)))
    return of_all(world_size, got.view(world_size, -1).sum(0))


def one_tensor_for_all(rank, world_size, x):
    """the all_reduce whose list for all_gather is one tensor R times"""
    values, scales = quantised(part_of(world_size, x))
    found = [[torch.empty_like(one)] * world_size for one in (values, scales)]
    for into, one in zip(found, (values, scales), strict=True):
        dist.all_gather(into, one)
    return torch.cat([restored(*pair) for pair in zip(*found, strict=True)])


def torchs_all_reduce(rank, world_size, x):
    """the all_reduce of rounded numbers that is torch's"""
    total = restored(*quantised(x))
    dist.all_reduce(total)
    return restored(*quantised(total))


WRONG = {
    sum_not_rounded: "The sums were not rounded",
    x_not_rounded: "Each x has to be rounded",
    own_part_not_rounded: "own part was added without rounding",
    added_as_int8: "were added as int8",
    partial_sums_rounded: "The partial sums were rounded",
    mean: "That is the mean over the ranks",
    exact: "nothing was rounded",
    everything_to_everybody: "into its all_gathers",
    float32_on_the_wire: "into its all_to_alls",
    torchs_all_reduce: "calls all_reduce",
    one_tensor_for_all: "If your list for all_gather is one tensor R times",
}


def in_one_tensor(rank, world_size, x):
    """Values and scales as bytes of one tensor: one all_to_all and one all_gather."""
    values, scales = quantised(x)
    (got,) = exchanged(torch.cat([values, scales.view(torch.int8)], 1))
    part = restored(got[:, :8], got[:, 8:].contiguous().view(torch.float32))
    values, scales = quantised(part.view(world_size, -1).sum(0))
    found = torch.cat(gathered(world_size, torch.cat([values, scales.view(torch.int8)], 1)))
    return restored(found[:, :8], found[:, 8:].contiguous().view(torch.float32))


ALSO_RIGHT = (in_one_tensor,)
