"""Wrong answers to exercise 03.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "two_by_two"


def partner_of(rank, world_size):
    partner = rank + 1 if rank % 2 == 0 else rank - 1
    return partner if partner < world_size else None


def takes_the_messages_out(rank, world_size, x):
    """the program without its messages: every rank keeps its own x"""
    return x.clone()


def sends_first(rank, world_size, x):
    """the swap in which both partners send before they receive"""
    other, partner = torch.empty_like(x), partner_of(rank, world_size)
    if partner is None:
        return x.clone()
    dist.send(x, dst=partner)
    dist.recv(other, src=partner)
    return other


def by_all_gather(rank, world_size, x):
    """the swap by all_gather, which brings every tensor to every rank"""
    everything = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(everything, x)
    partner = partner_of(rank, world_size)
    return everything[rank if partner is None else partner]


def with_a_receipt(rank, world_size, x):
    """the swap with three messages in each pair where two will do"""
    other, partner = torch.empty_like(x), partner_of(rank, world_size)
    if partner is None:
        return x.clone()
    receipt = torch.zeros(1)
    if rank < partner:
        dist.send(x, dst=partner)
        dist.recv(receipt, src=partner)
        dist.recv(other, src=partner)
    else:
        dist.recv(other, src=partner)
        dist.send(receipt, dst=partner)
        dist.send(x, dst=partner)
    return other


def forgets_to_wait(rank, world_size, x):
    """the swap that never waits for its isend"""
    other, partner = torch.empty_like(x), partner_of(rank, world_size)
    if partner is None:
        return x.clone()
    dist.isend(x, dst=partner)
    dist.recv(other, src=partner)
    return other


def from_both_ends(rank, world_size, x):
    """the swap from both ends: first with last, and so on inwards"""
    other, partner = torch.empty_like(x), world_size - 1 - rank
    if partner == rank:
        return x.clone()
    request = dist.isend(x, dst=partner)
    dist.recv(other, src=partner)
    request.wait()
    return other


WRONG = {
    takes_the_messages_out: "Nothing was swapped",
    sends_first: "The ranks never finish: ranks 0 and 1 wait for each other",
    by_all_gather: "Rank 0 calls all_gather",
    with_a_receipt: "the ranks send 3 messages where 2 are enough",
    forgets_to_wait: "has no wait()",
    from_both_ends: "Rank 0 has the value that rank 2 should have",
}


def at_the_same_time(rank, world_size, x):
    partner = rank ^ 1
    if partner == world_size:
        return x.clone()
    other = torch.zeros_like(x)
    requests = [dist.irecv(other, partner), dist.isend(x, partner)]
    for request in requests:
        request.wait()
    return other


ALSO_RIGHT = [at_the_same_time]
