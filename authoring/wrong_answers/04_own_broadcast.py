"""Wrong answers to exercise 04.2, each with the words its refusal must hold."""

import time

import torch
import torch.distributed as dist

QUESTION = "own_broadcast"


def root_tells_everyone(rank, world_size, x, root):
    """the broadcast in which the root tells everyone by itself"""
    if rank != root:
        dist.recv(x, src=root)
        return
    for dst in range(world_size):
        if dst != root:
            dist.send(x, dst=dst)


def along_a_chain(rank, world_size, x, root):
    """the broadcast that goes along a chain of ranks"""
    distance = (rank - root) % world_size
    if distance > 0:
        dist.recv(x, src=(rank - 1) % world_size)
    if distance < world_size - 1:
        dist.send(x, dst=(rank + 1) % world_size)


def chain_by_alias(rank, world_size, x, root):
    """the chain that passes on what it sees in a buffer before it waits"""
    distance, request = (rank - root) % world_size, None
    if distance > 0:
        seen, before = x.numpy(), x.tolist()
        request = dist.irecv(x, src=(rank - 1) % world_size)
        for _ in range(500):
            if seen.tolist() != before:
                break
            time.sleep(0.001)
        else:
            request.wait()
            request = None
        here = torch.from_numpy(seen.copy())
    else:
        here = x
    if distance < world_size - 1:
        dist.send(here, dst=(rank + 1) % world_size)
    if request is not None:
        request.wait()


def always_from_rank_0(rank, world_size, x, root):
    """the broadcast that always begins at rank 0"""
    step = 1
    while step < world_size:
        if rank < step and rank + step < world_size:
            dist.send(x, dst=rank + step)
        if step <= rank < 2 * step:
            dist.recv(x, src=rank - step)
        step *= 2


def returns_a_new_tensor(rank, world_size, x, root):
    """the broadcast that returns a new tensor and leaves x as it was"""
    if rank == root:
        for dst in range(world_size):
            if dst != root:
                dist.send(x, dst=dst)
        return x
    holder = torch.empty_like(x)
    dist.recv(holder, src=root)
    return holder


def told_twice(rank, world_size, x, root):
    """the broadcast that tells every rank twice"""
    for dst in range(world_size):
        for _ in range(2):
            if rank == root != dst:
                dist.send(x, dst=dst)
            elif rank == dst != root:
                dist.recv(x, src=root)


def by_the_real_one(rank, world_size, x, root):
    """the broadcast of torch itself"""
    dist.broadcast(x, src=root)


def does_nothing(rank, world_size, x, root):
    """the broadcast that sends nothing"""
    pass


WRONG = {
    root_tells_everyone: "take 3 rounds where 2 are enough; the busiest rank sends 3 messages",
    along_a_chain: "take 3 rounds where 2 are enough; the busiest rank sends 1 message",
    chain_by_alias: "the messages take 7 rounds where 3 are enough",
    always_from_rank_0: "That is the tensor of rank 0",
    returns_a_new_tensor: "the tensor x itself must change",
    told_twice: "Nobody needs to be told twice",
    by_the_real_one: "calls broadcast",
    does_nothing: "No rank communicates",
}


def halving(rank, world_size, x, root):
    place, reach = (rank - root) % world_size, 1
    while reach < world_size:
        reach *= 2
    while reach > 1:
        half = reach // 2
        if place % reach == 0 and place + half < world_size:
            dist.isend(x, (root + place + half) % world_size).wait()
        elif place % reach == half:
            dist.irecv(x, (root + place - half) % world_size).wait()
        reach = half


def halving_all_at_once(rank, world_size, x, root):
    place, reach, sent = (rank - root) % world_size, 1, []
    while reach < world_size:
        reach *= 2
    while reach > 1:
        half = reach // 2
        if place % reach == 0 and place + half < world_size:
            sent.append(dist.isend(x, (root + place + half) % world_size))
        elif place % reach == half:
            dist.recv(x, (root + place - half) % world_size)
        reach = half
    for request in sent:
        request.wait()


ALSO_RIGHT = [halving, halving_all_at_once]

EARNS = {
    root_tells_everyone: 2,
    along_a_chain: 2,
    chain_by_alias: 2,
    told_twice: 1,
}
"""Points of parts whose rules they keep, by `points=` of the question."""
