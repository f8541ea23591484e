"""Wrong answers to review.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "ring_mean"


def swapped(rank, world_size, x, partners):
    """What comes from these partners, one after the other."""
    holders = [torch.empty_like(x) for _ in partners]
    requests = [dist.isend(x, dst=partner) for partner in partners]
    for partner, holder in zip(partners, holders, strict=True):
        dist.recv(holder, src=partner)
    for request in requests:
        request.wait()
    return holders


def sides(rank, world_size):
    return (rank - 1) % world_size, (rank + 1) % world_size


def everybody_receives_first(rank, world_size, x):
    """the ring in which everybody receives before it sends"""
    if world_size == 1:
        return x.clone()
    holders = []
    for partner in sides(rank, world_size):
        holder = torch.empty_like(x)
        dist.recv(holder, src=partner)
        dist.send(x, dst=partner)
        holders.append(holder)
    return (sum(holders) + x) / 3


def ends_apart(rank, world_size, x):
    """the ring without the swap between the last rank and rank 0"""
    if world_size == 1:
        return x.clone()
    partners = [one for one in (rank - 1, rank + 1) if 0 <= one < world_size]
    holders = swapped(rank, world_size, x, partners)
    return (sum(holders) + (3 - len(holders)) * x) / 3


def to_everybody(rank, world_size, x):
    """the x of every rank sent to all the others"""
    if world_size == 1:
        return x.clone()
    others = [other for other in range(world_size) if other != rank]
    came = dict(zip(others, swapped(rank, world_size, x, others), strict=True))
    return (sum(came[side] for side in sides(rank, world_size)) + x) / 3


def gathered(rank, world_size, x):
    """the mean of three out of an all_gather"""
    everything = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everything, x)
    return (sum(everything[side] for side in sides(rank, world_size)) + x) / 3


def one_side_twice(rank, world_size, x):
    """the left neighbour's tensor taken for the right one's, too"""
    if world_size == 1:
        return x.clone()
    return (2 * swapped(rank, world_size, x, sides(rank, world_size))[0] + x) / 3


def not_divided(rank, world_size, x):
    """the sum of the three tensors"""
    if world_size == 1:
        return 3 * x
    return sum(swapped(rank, world_size, x, sides(rank, world_size))) + x


def one_side_after_the_other(rank, world_size, x):
    """Everybody shifts to the right, then everybody to the left."""
    if world_size == 1:
        return x.clone()
    left, right = sides(rank, world_size)
    total = x.clone()
    for dst, src in ((right, left), (left, right)):
        holder = torch.empty_like(x)
        request = dist.irecv(holder, src=src)
        dist.send(x, dst=dst)
        request.wait()
        total += holder
    return total / 3


def last_the_other_way_round(rank, world_size, x):
    """Blocking calls: the last rank of an odd ring goes as the odd ones do."""
    if world_size == 1:
        return x.clone()
    left, right = sides(rank, world_size)
    total = x.clone()
    for dst, src in ((right, left), (left, right)):
        holder = torch.empty_like(x)
        if rank % 2 == 0:
            dist.send(x, dst=dst)
            dist.recv(holder, src=src)
        else:
            dist.recv(holder, src=src)
            dist.send(x, dst=dst)
        total += holder
    return total / 3


def one_holder_for_both(rank, world_size, x):
    """both neighbours' tensors received into one tensor"""
    if world_size == 1:
        return x.clone()
    left, right = sides(rank, world_size)
    requests = [dist.isend(x, dst=partner) for partner in (left, right)]
    holder = torch.empty_like(x)
    dist.recv(holder, src=left)
    dist.recv(holder, src=right)
    for request in requests:
        request.wait()
    return (holder + x + holder) / 3


def over_all_ranks(rank, world_size, x):
    """the mean of the two ranks in a world of two"""
    if world_size == 1:
        return x.clone()
    came = swapped(rank, world_size, x, sides(rank, world_size))
    return (came[0] + x) / 2 if world_size == 2 else (sum(came) + x) / 3


def by_the_world_size(rank, world_size, x):
    """the sum of the three, divided by the number of ranks"""
    if world_size == 1:
        return x.clone()
    return (sum(swapped(rank, world_size, x, sides(rank, world_size))) + x) / world_size


def own_left_out(rank, world_size, x):
    """the mean of the two neighbours' tensors alone"""
    if world_size == 1:
        return x.clone()
    return sum(swapped(rank, world_size, x, sides(rank, world_size))) / 2


def only_rank_0_sends_first(rank, world_size, x):
    """the ring in which all ranks but 0 receive first"""
    if world_size == 1:
        return x.clone()
    total = x.clone()
    for partner in sides(rank, world_size)[:: -1 if rank == 0 else 1]:
        holder = torch.empty_like(x)
        if rank == 0:
            dist.send(x, dst=partner)
        dist.recv(holder, src=partner)
        if rank > 0:
            dist.send(x, dst=partner)
        total += holder
    return total / 3


WRONG = {
    everybody_receives_first: "ranks 0 and 1 wait for each other",
    ends_apart: "a ring has no ends",
    to_everybody: "A rank has two neighbours, and each of them needs its x once",
    gathered: "calls all_gather",
    one_side_twice: "One neighbour's tensor counts twice",
    not_divided: "That is the sum of the three",
    one_holder_for_both: "One neighbour's tensor counts twice",
    over_all_ranks: "in a world of two the neighbour's counts twice",
    by_the_world_size: "is divided by another number",
    own_left_out: "The rank's own x is left out",
    only_rank_0_sends_first: "ranks 1 and 2 wait for each other",
}

ALSO_RIGHT = [one_side_after_the_other, last_the_other_way_round]
