"""Wrong answers to review.6, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "mean_where_used"


def summed(gradients):
    """The sums over the ranks, and how many ranks have a gradient."""
    table = torch.zeros(len(gradients), 4)
    for k, gradient in enumerate(gradients):
        if gradient is not None:
            table[k] = torch.cat([gradient, torch.ones(1)])
    dist.all_reduce(table)
    return table[:, :3], table[:, 3].tolist()


def zeros_where_nobody(rank, world_size, gradients):
    """zeros for a weight that no rank uses"""
    sums, _ = summed(gradients)
    return list(sums / world_size)


def zeros_for_nobody(rank, world_size, gradients):
    """the means, with None wherever the sum is zero"""
    sums, _ = summed(gradients)
    return [s / world_size if s.any() else None for s in sums]


def over_the_users(rank, world_size, gradients):
    """the mean over the ranks that use a weight"""
    sums, users = summed(gradients)
    return [s / n if n else None for s, n in zip(sums, users, strict=True)]


def not_divided(rank, world_size, gradients):
    """the sums over the ranks"""
    sums, users = summed(gradients)
    return [s if n else None for s, n in zip(sums, users, strict=True)]


def own_none_stays(rank, world_size, gradients):
    """the list with None where the rank itself has no gradient"""
    sums, _ = summed(gradients)
    pairs = zip(sums / world_size, gradients, strict=True)
    return [None if own is None else mean for mean, own in pairs]


def nothing_sent(rank, world_size, gradients):
    """the rank's own gradients"""
    return [None if one is None else one.clone() for one in gradients]


def weight_by_weight(rank, world_size, gradients):
    """an all_reduce for each weight, of zeros where there is nothing"""
    rows = [summed([gradient]) for gradient in gradients]
    return [sums[0] / world_size if users[0] else None for sums, users in rows]


def a_row_for_each_rank(rank, world_size, gradients):
    """the all_reduce of a table with room for each rank"""
    table = torch.zeros(world_size, len(gradients), 4)
    for k, gradient in enumerate(gradients):
        if gradient is not None:
            table[rank, k] = torch.cat([gradient, torch.ones(1)])
    dist.all_reduce(table)
    return [row[:3] / world_size if row[3] else None for row in table.sum(0)]


def only_the_used(rank, world_size, gradients):
    """the all_reduce of those that the rank uses, joined"""
    used = [k for k, gradient in enumerate(gradients) if gradient is not None]
    means = [None] * len(gradients)
    if used:
        flat = torch.cat([gradients[k] for k in used])
        dist.all_reduce(flat)
        for k, part in zip(used, flat.split(3), strict=True):
            means[k] = part / world_size
    return means


def flat_and_counts(rank, world_size, gradients):
    """One flat vector, with the counts behind all gradients."""
    has = torch.tensor([float(one is not None) for one in gradients])
    parts = [torch.zeros(3) if one is None else one for one in gradients]
    flat = torch.cat([*parts, has])
    dist.all_reduce(flat)
    users = flat[3 * len(gradients) :]
    pairs = zip(flat.split(3), users, strict=False)
    return [part / world_size if n > 0 else None for part, n in pairs]


WRONG = {
    zeros_where_nobody: "A weight that no rank uses has no gradient",
    zeros_for_nobody: "A gradient of zeros is a gradient",
    over_the_users: "You divide by the ranks that use the weight",
    not_divided: "Those are sums: divide by world_size",
    own_none_stays: "would not make the others' step",
    nothing_sent: "nothing came from the others",
    weight_by_weight: "Whether a rank has a gradient can travel with it",
    a_row_for_each_rank: "A sum needs no room for each rank",
    only_the_used: "every rank must bring as many",
}

ALSO_RIGHT = [flat_and_counts]
