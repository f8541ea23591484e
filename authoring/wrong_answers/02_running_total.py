"""Wrong answers to exercise 02.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "running_total"


def without_own(rank, world_size, x):
    """the sum of the ranks before this one, without its own x"""
    so_far = torch.zeros_like(x)
    if rank > 0:
        dist.recv(so_far, src=rank - 1)
    if rank < world_size - 1:
        dist.send(so_far + x, dst=rank + 1)
    return so_far


def passes_x_on(rank, world_size, x):
    """the sum of only two: the rank's own x and its left neighbour's"""
    total = x.clone()
    if rank > 0:
        from_left = torch.empty_like(x)
        dist.recv(from_left, src=rank - 1)
        total += from_left
    if rank < world_size - 1:
        dist.send(x, dst=rank + 1)
    return total


def everyone_tells_all_higher_ranks(rank, world_size, x):
    """the right total, for which every rank sends x to all higher ranks"""
    total = x.clone()
    for src in range(rank):
        holder = torch.empty_like(x)
        dist.recv(holder, src=src)
        total += holder
    for dst in range(rank + 1, world_size):
        dist.send(x, dst=dst)
    return total


def adds_into_x(rank, world_size, x):
    """the running total that is written into x itself"""
    if rank > 0:
        so_far = torch.empty_like(x)
        dist.recv(so_far, src=rank - 1)
        x += so_far
    if rank < world_size - 1:
        dist.send(x, dst=rank + 1)
    return x.clone()


def passes_a_long_tensor(rank, world_size, x):
    """the right total, passed on in a tensor much longer than x"""
    room = torch.zeros(100, dtype=x.dtype)
    if rank > 0:
        dist.recv(room, src=rank - 1)
    room[: len(x)] += x
    if rank < world_size - 1:
        dist.send(room, dst=rank + 1)
    return room[: len(x)].clone()


def from_the_other_end(rank, world_size, x):
    """the running total that begins at the last rank"""
    total = x.clone()
    if rank < world_size - 1:
        so_far = torch.empty_like(x)
        dist.recv(so_far, src=rank + 1)
        total += so_far
    if rank > 0:
        dist.send(total, dst=rank - 1)
    return total


def forgets_to_return(rank, world_size, x):
    """the running total that no rank returns"""
    if rank > 0:
        so_far = torch.empty_like(x)
        dist.recv(so_far, src=rank - 1)
        x = x + so_far
    if rank < world_size - 1:
        dist.send(x, dst=rank + 1)


WRONG = {
    without_own: "its own x is missing",
    passes_x_on: "pass the sum on, not x",
    everyone_tells_all_higher_ranks: "send 3 messages where 2 are enough",
    adds_into_x: "changed the tensor it was given",
    passes_a_long_tensor: "send 800 bytes where 24 are enough",
    from_the_other_end: "check the direction and the order",
    forgets_to_return: "does the function always reach a `return`",
}


def out_of_place(rank, world_size, x):
    so_far = torch.zeros_like(x)
    if rank:
        dist.irecv(so_far, rank - 1).wait()
    total = torch.add(so_far, x)
    request = dist.isend(total, rank + 1) if rank + 1 < world_size else None
    if request:
        request.wait()
    return total


ALSO_RIGHT = [out_of_place]
