"""Wrong answers to exercise 09.2, each with the words its refusal must hold."""

import math

import torch
import torch.distributed as dist

import simlib

QUESTION = "quickest_epoch"


def tree(rank, R, x):
    other, levels = torch.empty_like(x), math.ceil(math.log2(R))
    for distance in (2**level for level in range(levels)):
        if rank % (2 * distance) == distance:
            dist.send(x, dst=rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < R:
            dist.recv(other, src=rank + distance)
            x += other
    for distance in (2**level for level in reversed(range(levels))):
        if rank % (2 * distance) == distance:
            dist.recv(x, src=rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < R:
            dist.send(x, dst=rank + distance)


def ring(rank, R, x):
    chunks = x.tensor_split(R)
    for step in range(2 * (R - 1)):
        chunk = chunks[(rank - step - 1) % R]
        incoming = torch.empty_like(chunk)
        request = dist.isend(chunks[(rank - step) % R], dst=(rank + 1) % R)
        dist.recv(incoming, src=(rank - 1) % R)
        request.wait()
        chunk.copy_(chunk + incoming if step < R - 1 else incoming)


def best(world_size, nbytes, batches, compute_s, latency_s, bandwidth_Bps, **how):
    """R and how to add up, by somebody who has his own idea of the number of steps or the ways."""
    steps = how.get("steps", lambda batches, R: math.ceil(batches / R))
    rounds = how.get("rounds", math.ceil)

    def plan(R):
        ways = {
            tree: 2 * rounds(math.log2(R)) * (latency_s + nbytes / bandwidth_Bps),
            ring: 2 * (R - 1) * (latency_s + nbytes / R / bandwidth_Bps),
        }
        add_up = how.get("add_up") or min(ways, key=ways.get)
        return steps(batches, R) * (compute_s + ways[add_up]), R, add_up

    return min((plan(R) for R in range(1, world_size + 1)), key=lambda found: found[:2])[1:]


def work(rank, R, gradient, batches, compute_s, add_up):
    total = torch.zeros_like(gradient)
    for _ in range(math.ceil(batches / R) if rank < R else 0):
        simlib.compute(compute_s)
        total = gradient.clone()
        add_up(rank, R, total)
    return total


def all_ranks(rank, world_size, gradient, batches, compute_s, *network):
    """the epoch on all ranks, where fewer are quicker"""
    return work(rank, world_size, gradient, batches, compute_s, ring)


def one_rank(rank, world_size, gradient, batches, compute_s, *network):
    """the epoch on one rank, where more are quicker"""
    return work(rank, 1, gradient, batches, compute_s, ring)


def always_a_ring(rank, world_size, gradient, batches, compute_s, *network):
    """the plan that knows the ring only"""
    R, way = best(world_size, gradient.nbytes, batches, compute_s, *network, add_up=ring)
    return work(rank, R, gradient, batches, compute_s, way)


def always_a_tree(rank, world_size, gradient, batches, compute_s, *network):
    """the tree in every epoch, with the R of the better way"""
    R, _ = best(world_size, gradient.nbytes, batches, compute_s, *network)
    return work(rank, R, gradient, batches, compute_s, tree)


def steps_are_no_whole_numbers(rank, world_size, gradient, batches, compute_s, *network):
    """the plan that counts fractions of a step"""

    def fraction(batches, R):
        return batches / R

    R, way = best(world_size, gradient.nbytes, batches, compute_s, *network, steps=fraction)
    return work(rank, R, gradient, batches, compute_s, way)


def computes_nothing(rank, world_size, gradient, batches, compute_s, *network):
    """the epoch that does not compute in every step"""
    R, way = best(world_size, gradient.nbytes, batches, compute_s, *network)
    return work(rank, R, gradient, batches, 0.0, way)


def computes_every_batch(rank, world_size, gradient, batches, compute_s, *network):
    """the epoch in which each working rank computes all batches"""
    R, way = best(world_size, gradient.nbytes, batches, compute_s, *network)
    return work(rank, R, gradient, batches * R, compute_s, way)


def adds_up_sums(rank, world_size, gradient, batches, compute_s, *network):
    """the step that adds up the sums of the step before"""
    R, way = best(world_size, gradient.nbytes, batches, compute_s, *network)
    total = gradient.clone() if rank < R else torch.zeros_like(gradient)
    for _ in range(math.ceil(batches / R) if rank < R else 0):
        simlib.compute(compute_s)
        way(rank, R, total)
    return total


def changes_the_gradient(rank, world_size, gradient, batches, compute_s, *network):
    """the epoch that changes the gradient it was given"""
    R, way = best(world_size, gradient.nbytes, batches, compute_s, *network)
    if rank >= R:
        return torch.zeros_like(gradient)
    for step in range(math.ceil(batches / R)):
        simlib.compute(compute_s)
        total = gradient.clone() if step else gradient
        way(rank, R, gradient if step == 0 else total)
    return gradient


def idle_ranks_return_nothing(rank, world_size, gradient, batches, compute_s, *network):
    """the epoch whose idle ranks return None"""
    R, way = best(world_size, gradient.nbytes, batches, compute_s, *network)
    total = work(rank, R, gradient, batches, compute_s, way)
    return total if rank < R else None


def counts_elements_for_bytes(rank, world_size, gradient, batches, compute_s, *network):
    """the plan that counts N in numbers, not in bytes"""
    R, way = best(world_size, len(gradient), batches, compute_s, *network)
    return work(rank, R, gradient, batches, compute_s, way)


def a_collective(rank, world_size, gradient, batches, compute_s, *network):
    """the all_reduce of torch in place of tree and ring"""
    total = gradient.clone()
    dist.all_reduce(total)
    return total


def adds_up_once_at_the_end(rank, world_size, gradient, batches, compute_s, *network):
    """the epoch that does not add up in every step"""
    R, way = best(world_size, gradient.nbytes, batches, compute_s, *network)
    if rank >= R:
        return torch.zeros_like(gradient)
    for _ in range(math.ceil(batches / R)):
        simlib.compute(compute_s)
    total = gradient.clone()
    way(rank, R, total)
    return total


def rounds_are_no_whole_numbers(rank, world_size, gradient, batches, compute_s, *network):
    """the plan that counts fractions of a tree's round"""
    R, way = best(world_size, gradient.nbytes, batches, compute_s, *network, rounds=float)
    return work(rank, R, gradient, batches, compute_s, way)


def returns_the_mean(rank, world_size, gradient, batches, compute_s, *network):
    """the mean over the working ranks, not the sum"""
    R, way = best(world_size, gradient.nbytes, batches, compute_s, *network)
    return work(rank, R, gradient, batches, compute_s, way) / R


WRONG = {
    adds_up_once_at_the_end: "each needs a sum of its own",
    rounds_are_no_whole_numbers: "round log2(R) up",
    returns_the_mean: "Those are means",
    all_ranks: "All ranks worked, where fewer are quicker",
    one_rank: "One rank worked alone, where more are quicker",
    always_a_ring: "Few bytes: few messages, so a tree",
    always_a_tree: "done after 18.2 ms",
    steps_are_no_whole_numbers: "5 ranks work where 4 are enough",
    computes_nothing: "The epoch is shorter than its compute",
    computes_every_batch: "done after 51.1 ms",
    adds_up_sums: "The second step adds up the sums of the first",
    changes_the_gradient: "Rank 0 changed the tensor it was given",
    idle_ranks_return_nothing: "returns None",
    counts_elements_for_bytes: "N is in bytes, not in numbers",
    a_collective: "Rank 0 calls all_reduce",
}


def from_a_list_of_plans(rank, world_size, gradient, batches, compute_s, latency_s, bandwidth_Bps):
    nbytes = gradient.numel() * gradient.element_size()
    plans = [(batches * compute_s, 1, None)]
    for R in range(2, world_size + 1):
        steps, rounds = -(-batches // R), (R - 1).bit_length()
        tree_s = 2 * rounds * (latency_s + nbytes / bandwidth_Bps)
        ring_s = 2 * (R - 1) * (latency_s + nbytes / bandwidth_Bps / R)
        plans += [(steps * (compute_s + tree_s), R, tree), (steps * (compute_s + ring_s), R, ring)]
    _, R, add_up = min(plans, key=lambda plan: plan[:2])
    total = torch.zeros(gradient.shape)
    if rank >= R:
        return total
    for _ in range(0, batches, R):
        simlib.compute(compute_s)
        total.copy_(gradient)
        if add_up:
            add_up(rank, R, total)
    return total


ALSO_RIGHT = [from_a_list_of_plans]
