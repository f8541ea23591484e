"""Wrong answers to exercise 12.9, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "resharded"


def ends(total, k, r):
    size = -(-total // k)
    return (r * size, min((r + 1) * size, total)) if r < k else (0, 0)


def common(one, other):
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return (low, high) if low < high else (0, 0)


def whole_of(rank, world_size, piece, total, before):
    """The whole tensor, from one message of each rank with a chunk to each other rank."""
    whole, ops = torch.zeros(total), []
    for other in range(world_size):
        a, b = ends(total, before, other)
        if other == rank and b > a:
            whole[a:b] = piece
        elif b > a:
            ops.append(dist.P2POp(dist.irecv, whole[a:b], other))
        if other != rank and len(piece):
            ops.append(dist.P2POp(dist.isend, piece, other))
    for request in dist.batch_isend_irecv(ops) if ops else []:
        request.wait()
    return whole


def all_to_everybody(rank, world_size, piece, total, before, after):
    """the reshard that sends whole chunks to everybody"""
    low, high = ends(total, after, rank)
    return whole_of(rank, world_size, piece, total, before)[low:high].clone()


def all_of_it(rank, world_size, piece, total, before, after):
    """the reshard that returns the whole tensor"""
    return whole_of(rank, world_size, piece, total, before)


def unchanged(rank, world_size, piece, total, before, after):
    """the reshard that changes nothing"""
    return piece.clone()


def rounded_down(rank, world_size, piece, total, before, after):
    """the reshard with sizes rounded down"""
    whole, size = whole_of(rank, world_size, piece, total, before), total // after
    end = total if rank == after - 1 else (rank + 1) * size
    return whole[rank * size : end].clone() if rank < after else whole[:0].clone()


def one_by_one(rank, world_size, piece, total, before, after):
    """the reshard that deals numbers out"""
    whole = whole_of(rank, world_size, piece, total, before)
    return whole[rank::after].clone() if rank < after else whole[:0].clone()


def over_the_world(rank, world_size, piece, total, before, after):
    """the reshard over all ranks"""
    low, high = ends(total, world_size, rank)
    return whole_of(rank, world_size, piece, total, before)[low:high].clone()


def by_all_gather(rank, world_size, piece, total, before, after):
    """the reshard with an all_gather"""
    size = -(-total // before)
    padded, found = torch.zeros(size), [torch.zeros(size) for _ in range(world_size)]
    padded[: len(piece)] = piece
    dist.all_gather(found, padded)
    low, high = ends(total, after, rank)
    return torch.cat(found[:before])[low:high].clone()


def reshard(rank, world_size, piece, total, before, after, step=None):
    (old, old_end), (low, high) = ends(total, before, rank), ends(total, after, rank)
    new, ops = torch.empty(high - low), []
    for other in range(world_size):
        a, b = common((old, old_end), ends(total, after, other))
        if other == rank:
            new[a - low : b - low] = piece[a - old : b - old] if b > a else new[:0]
            continue
        c, d = common((low, high), ends(total, before, other))
        for at in range(a, b, step or max(1, b - a)):
            mine = piece[at - old : min(b, at + (step or b - a)) - old]
            ops.append(dist.P2POp(dist.isend, mine, other))
        for at in range(c, d, step or max(1, d - c)):
            into = new[at - low : min(d, at + (step or d - c)) - low]
            ops.append(dist.P2POp(dist.irecv, into, other))
    for request in dist.batch_isend_irecv(ops) if ops else []:
        request.wait()
    return new


def in_fours(rank, world_size, piece, total, before, after):
    """the reshard with a message for every four numbers"""
    return reshard(rank, world_size, piece, total, before, after, step=4)


WRONG = {
    all_to_everybody: "Send only the numbers that are in your old chunk",
    all_of_it: "That is the whole tensor",
    unchanged: "still the old chunk",
    rounded_down: "rounded up, not down",
    one_by_one: "deal them out",
    over_the_world: "only the first `after` ranks",
    by_all_gather: "calls all_gather",
    in_fours: "send it in one message",
}
EARNS = {all_to_everybody: 1, in_fours: 1}


def with_ranges(rank, world_size, piece, total, before, after):
    """Another way to write the same messages."""
    return reshard(rank, world_size, piece, total, before, after)


ALSO_RIGHT = (with_ranges,)
