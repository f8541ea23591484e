"""Wrong answers to exercise 02.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "shift_right"


def shift_left(rank, world_size, x):
    """the shift to the left"""
    if world_size == 1:
        return x.clone()
    holder = torch.empty_like(x)
    request = dist.isend(x, dst=(rank - 1) % world_size)
    dist.recv(holder, src=(rank + 1) % world_size)
    request.wait()
    return holder


def through_rank_0(rank, world_size, x):
    """the shift by way of rank 0, which passes all tensors on"""
    if rank > 0:
        holder = torch.empty_like(x)
        dist.send(x, dst=0)
        dist.recv(holder, src=0)
        return holder
    everything = [x.clone()] + [torch.empty_like(x) for _ in range(world_size - 1)]
    for src in range(1, world_size):
        dist.recv(everything[src], src=src)
    for dst in range(1, world_size):
        dist.send(everything[dst - 1], dst=dst)
    return everything[-1]


def line_not_ring(rank, world_size, x):
    """the shift along a line, where rank 0 keeps its own x"""
    holder = x.clone()
    request = dist.isend(x, dst=rank + 1) if rank < world_size - 1 else None
    if rank > 0:
        dist.recv(holder, src=rank - 1)
    if request:
        request.wait()
    return holder


def all_send_first(rank, world_size, x):
    """the shift in which everyone sends before anyone receives"""
    if world_size == 1:
        return x.clone()
    holder = torch.empty_like(x)
    dist.send(x, dst=(rank + 1) % world_size)
    dist.recv(holder, src=(rank - 1) % world_size)
    return holder


def forgets_world_of_one(rank, world_size, x):
    """the shift that sends to itself in a world of one"""
    holder = torch.empty_like(x)
    request = dist.isend(x, dst=(rank + 1) % world_size)
    dist.recv(holder, src=(rank - 1) % world_size)
    request.wait()
    return holder


def as_floats(rank, world_size, x):
    """the shift that makes floats of whole numbers"""
    if world_size == 1:
        return x.clone()
    holder = torch.empty(x.shape)
    request = dist.isend(x.float(), dst=(rank + 1) % world_size)
    dist.recv(holder, src=(rank - 1) % world_size)
    request.wait()
    return holder


def by_all_gather(rank, world_size, x):
    """the shift by all_gather, which brings every tensor to every rank"""
    everything = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everything, x)
    return everything[rank - 1]


def into_x_itself(rank, world_size, x):
    """the shift that receives into x while x is still being sent"""
    if world_size == 1:
        return x.clone()
    request = dist.isend(x, dst=(rank + 1) % world_size)
    dist.recv(x, src=(rank - 1) % world_size)
    request.wait()
    return x.clone()


def never_waits(rank, world_size, x):
    """the shift that never waits for its isend"""
    if world_size == 1:
        return x.clone()
    holder = torch.empty_like(x)
    dist.isend(x, dst=(rank + 1) % world_size)
    dist.recv(holder, src=(rank - 1) % world_size)
    return holder


def asks_until_it_is_complete(rank, world_size, x):
    """the shift that asks again and again whether its irecv is complete"""
    if world_size == 1:
        return x.clone()
    holder = torch.empty_like(x)
    incoming = dist.irecv(holder, src=(rank - 1) % world_size)
    outgoing = dist.isend(x, dst=(rank + 1) % world_size)
    while not incoming.is_completed():
        pass
    outgoing.wait()
    return holder


def in_pairs(rank, world_size, x):
    """the shift between partners, 0 with 1, 2 with 3, which is no ring"""
    holder, partner = x.clone(), rank ^ 1
    if partner < world_size:
        request = dist.isend(x, dst=partner)
        dist.recv(holder, src=partner)
        request.wait()
    return holder


def even_ranks_send_first(rank, world_size, x):
    """The even ranks send first, the others receive first: right in odd rings, too."""
    if world_size == 1:
        return x.clone()
    holder = torch.empty_like(x)
    if rank % 2 == 0:
        dist.send(x, dst=(rank + 1) % world_size)
    dist.recv(holder, src=(rank - 1) % world_size)
    if rank % 2 == 1:
        dist.send(x, dst=(rank + 1) % world_size)
    return holder


WRONG = {
    shift_left: "check the direction and the order",
    through_rank_0: "Send each tensor straight to the rank that returns it",
    line_not_ring: "This is still the rank's own input",
    all_send_first: "The ranks never finish",
    forgets_world_of_one: "sends to itself",
    as_floats: "has dtype float32, but int64 is expected",
    by_all_gather: "calls all_gather",
    into_x_itself: "uses memory that isend",
    never_waits: "has no wait()",
    asks_until_it_is_complete: "With Gloo the answer stays False until wait()",
    in_pairs: "You swap rank 0 with rank 1, and rank 2 with rank 3",
}

ALSO_RIGHT = [even_ranks_send_first]
