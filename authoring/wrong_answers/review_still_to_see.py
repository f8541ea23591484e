"""Wrong answers to review.5, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "still_to_see"


def order_of(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()


def epoch_forgotten(rank, world_size, n, seed, epoch, old, batch, steps):
    """the order of the seed alone, without the epoch"""
    return order_of(n, seed)[old * batch * steps :][rank::world_size]


def by_the_new_world(rank, world_size, n, seed, epoch, old, batch, steps):
    """the rest as if the new number of ranks had begun the epoch"""
    return order_of(n, seed + epoch)[world_size * batch * steps :][rank::world_size]


def own_share_only(rank, world_size, n, seed, epoch, old, batch, steps):
    """the rest without what one rank has seen"""
    return order_of(n, seed + epoch)[batch * steps :][rank::world_size]


def steps_for_batches(rank, world_size, n, seed, epoch, old, batch, steps):
    """the rest where a step takes one example a rank"""
    return order_of(n, seed + epoch)[old * steps :][rank::world_size]


def from_the_beginning(rank, world_size, n, seed, epoch, old, batch, steps):
    """the whole epoch from its beginning"""
    return order_of(n, seed + epoch)[rank::world_size]


def in_blocks(rank, world_size, n, seed, epoch, old, batch, steps):
    """the rest in consecutive blocks"""
    left = torch.tensor(order_of(n, seed + epoch)[old * batch * steps :])
    return left.tensor_split(world_size)[rank].tolist()


def padded(rank, world_size, n, seed, epoch, old, batch, steps):
    """the rest, padded to equal shares"""
    left = order_of(n, seed + epoch)[old * batch * steps :]
    return (left + left[: -len(left) % world_size])[rank::world_size]


def told_by_rank_0(rank, world_size, n, seed, epoch, old, batch, steps):
    """the order, broadcast by rank 0"""
    order = torch.tensor(order_of(n, seed + epoch))
    dist.broadcast(order, src=0)
    return order[old * batch * steps :][rank::world_size].tolist()


def without_the_seen(rank, world_size, n, seed, epoch, old, batch, steps):
    """Takes out what each old rank has seen, one by one."""
    order = order_of(n, seed + epoch)
    seen = {one for r in range(old) for one in order[r::old][: batch * steps]}
    return [one for one in order if one not in seen][rank::world_size]


def padded_from_the_front(rank, world_size, n, seed, epoch, old, batch, steps):
    """the rest, padded with the first examples of the epoch"""
    order = order_of(n, seed + epoch)
    left = order[old * batch * steps :]
    return (left + order[: -len(left) % world_size])[rank::world_size]


def padded_before(rank, world_size, n, seed, epoch, old, batch, steps):
    """the whole epoch padded for the new number of ranks, and then cut"""
    order = order_of(n, seed + epoch)
    return (order + order[: -n % world_size])[old * batch * steps :][rank::world_size]


def by_places(rank, world_size, n, seed, epoch, old, batch, steps):
    """the places of the whole order in turn, without those that were seen"""
    order, seen = order_of(n, seed + epoch), old * batch * steps
    return [order[place] for place in range(rank, n, world_size) if place >= seen]


WRONG = {
    epoch_forgotten: "The seed of the order is seed + epoch",
    by_the_new_world: "You count the examples of one rank, or of world_size ranks",
    own_share_only: "You count the examples of one rank, or of world_size ranks",
    steps_for_batches: "A step takes a batch on every rank",
    from_the_beginning: "That is the whole epoch once more",
    in_blocks: "The rest is cut into blocks",
    padded: "You repeat or drop some examples",
    told_by_rank_0: "Every rank can work out the order for itself",
    padded_from_the_front: "You repeat or drop some examples",
    padded_before: "You repeat or drop some examples",
    by_places: "You deal by the place in `order`",
}

ALSO_RIGHT = [without_the_seen]
