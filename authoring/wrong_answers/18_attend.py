"""Wrong answers to exercise 18.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "attend"


def part(q, keys, values, scale=0.5, shift=True):
    """u, z and m of one part, in one tensor."""
    scores = keys @ q / len(q) ** scale
    m = scores.max() if shift else torch.zeros(())
    e = (scores - m).exp()
    return torch.cat([e @ values, e.sum()[None], m[None]])


def merge(one, other):
    m = torch.maximum(one[-1], other[-1])
    merged = (one[-1] - m).exp() * one + (other[-1] - m).exp() * other
    merged[-1] = m
    return merged


def along(rank, world_size, mine, merge, finish, pieces=1, dtype=torch.float32):
    """Merge along the ranks and bring the result back, in so many messages each."""
    mine = mine.to(dtype)
    if rank > 0:
        other = torch.empty_like(mine)
        for piece in other.tensor_split(pieces):
            dist.recv(piece, src=rank - 1)
        mine = merge(mine, other)
    result = finish(mine)
    if rank < world_size - 1:
        for piece in mine.tensor_split(pieces):
            dist.send(piece, dst=rank + 1)
        dist.recv(result, src=rank + 1)
    if rank > 0:
        dist.send(result, dst=rank - 1)
    return result.float()


def divided(mine):
    return mine[:-2] / mine[-2]


def right(rank, world_size, q, keys, values):
    """Along the ranks and back."""
    return along(rank, world_size, part(q, keys, values), merge, divided)


def by_rank_0(rank, world_size, q, keys, values):
    """Rank 0 merges everything."""
    mine = part(q, keys, values)
    if rank > 0:
        dist.send(mine, dst=0)
        result = torch.empty_like(q)
        dist.recv(result, src=0)
        return result
    for src in range(1, world_size):
        other = torch.empty_like(mine)
        dist.recv(other, src=src)
        mine = merge(mine, other)
    for dst in range(1, world_size):
        dist.send(divided(mine), dst=dst)
    return divided(mine)


def whole_merge_comes_back(rank, world_size, q, keys, values):
    """Along the ranks, and all d + 2 numbers back."""
    mine = along(rank, world_size, part(q, keys, values), merge, torch.clone)
    return divided(mine)


def with_log_sum(rank, world_size, q, keys, values):
    """The result and the logarithm of the sum of exponentials: d + 1 numbers."""
    whole = part(q, keys, values)
    mine = torch.cat([divided(whole), (whole[-2].log() + whole[-1])[None]])

    def merged(one, other):
        total = torch.logaddexp(one[-1], other[-1])
        both = (one[-1] - total).exp() * one + (other[-1] - total).exp() * other
        both[-1] = total
        return both

    return along(rank, world_size, mine, merged, lambda both: both[:-1].clone())


def own_keys_only(rank, world_size, q, keys, values):
    """the attention over the rank's own keys"""
    return divided(part(q, keys, values))


def no_way_back(rank, world_size, q, keys, values):
    """the merge along the ranks that is not brought back"""
    mine = part(q, keys, values)
    if rank > 0:
        other = torch.empty_like(mine)
        dist.recv(other, src=rank - 1)
        mine = merge(mine, other)
    if rank < world_size - 1:
        dist.send(mine, dst=rank + 1)
    return divided(mine)


def mean_of_parts(rank, world_size, q, keys, values):
    """the mean of the parts' results"""
    own = divided(part(q, keys, values))
    return along(rank, world_size, own, torch.add, lambda total: total / world_size)


def mean_by_number(rank, world_size, q, keys, values):
    """the mean of the parts' results, weighted by their numbers of keys"""
    n = torch.tensor([float(len(keys)), 0.0])
    mine = torch.cat([len(keys) * divided(part(q, keys, values)), n])
    return along(rank, world_size, mine, torch.add, divided)


def not_rescaled(rank, world_size, q, keys, values):
    """the sums added up, each with its part's own maximum"""
    return along(rank, world_size, part(q, keys, values), torch.add, divided)


def only_the_new_part_is_rescaled(rank, world_size, q, keys, values):
    """the merge that rescales one of the two parts only"""

    def half(one, other):
        merged = one + (other[-1] - one[-1]).exp() * other
        merged[-1] = one[-1]
        return merged

    return along(rank, world_size, part(q, keys, values), half, divided)


def factors_swapped(rank, world_size, q, keys, values):
    """the merge in which each part is multiplied by the other one's factor"""

    def swapped(one, other):
        m = torch.maximum(one[-1], other[-1])
        merged = (other[-1] - m).exp() * one + (one[-1] - m).exp() * other
        merged[-1] = m
        return merged

    return along(rank, world_size, part(q, keys, values), swapped, divided)


def no_maximum(rank, world_size, q, keys, values):
    """the exponentials of the scores themselves"""
    mine = part(q, keys, values, shift=False)
    return along(rank, world_size, mine, torch.add, divided)


def not_divided(rank, world_size, q, keys, values):
    """the scores that are not divided by the root of d"""
    return along(rank, world_size, part(q, keys, values, scale=0), merge, divided)


def three_messages(rank, world_size, q, keys, values):
    """the merge with three messages for each part"""
    return along(rank, world_size, part(q, keys, values), merge, divided, pieces=3)


def everybody_to_everybody(rank, world_size, q, keys, values):
    """the parts sent by every rank to every other"""
    mine = part(q, keys, values)
    requests = [dist.isend(mine, dst=dst) for dst in range(world_size) if dst != rank]
    merged = mine
    for src in range(world_size):
        if src != rank:
            other = torch.empty_like(mine)
            dist.recv(other, src=src)
            merged = merge(merged, other)
    for request in requests:
        request.wait()
    return divided(merged)


def in_double(rank, world_size, q, keys, values):
    """the parts sent in double precision"""
    mine = part(q, keys, values)
    return along(rank, world_size, mine, merge, divided, dtype=torch.float64)


def keys_to_rank_0(rank, world_size, q, keys, values):
    """the keys and values sent along the ranks, filled up to 8"""
    d = len(q)
    room = torch.zeros(world_size, 8, 2 * d + 1)
    room[rank, : len(keys)] = torch.cat([keys, values, torch.ones(len(keys), 1)], 1)

    def finish(room):
        keys, values, there = room.view(-1, 2 * d + 1).split([d, d, 1], dim=1)
        there = there[:, 0] > 0
        return divided(part(q, keys[there], values[there]))

    return along(rank, world_size, room, torch.add, finish)


def by_all_reduce(rank, world_size, q, keys, values):
    """the merge by two all_reduces"""
    mine = part(q, keys, values)
    m = mine[-1].clone()
    dist.all_reduce(m, op=dist.ReduceOp.MAX)
    mine = mine * (mine[-1] - m).exp()
    dist.all_reduce(mine)
    return divided(mine)


def all_numbers(rank, world_size, q, keys, values):
    """the tensor of d + 2 numbers in place of the result"""
    return along(rank, world_size, part(q, keys, values), merge, torch.clone)


ALSO_RIGHT = [right, by_rank_0, whole_merge_comes_back, with_log_sum]

WRONG = {
    own_keys_only: "nothing was merged",
    no_way_back: "Only the ranks up to this one are merged",
    mean_of_parts: "That is the mean of the parts' results",
    mean_by_number: "weighted by the numbers of keys",
    not_rescaled: "as if all parts had the same maximum",
    only_the_new_part_is_rescaled: "bring both parts to the larger maximum",
    factors_swapped: "The factors are swapped",
    no_maximum: "The exponential of a large score is infinite",
    not_divided: "not divided by the root of d",
    three_messages: "4 messages where 2 are enough",
    everybody_to_everybody: "6 messages where 4 are enough",
    in_double: "float64 travels",
    keys_to_rank_0: "Keys and values need not travel",
    by_all_reduce: "this question allows only",
    all_numbers: "shape",
}
