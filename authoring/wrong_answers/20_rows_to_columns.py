"""Wrong answers to exercise 20.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "rows_to_columns"


def moved(
    rank, world_size, S, rows, columns, shard, whole=False, empty=False, order=1, twice=False
):
    """This generator's columns; of a mistake, as it is sent."""
    G = world_size - S
    for g in range(G if rank < S else 0):
        first, last = (0, columns[-1]) if whole else columns[g : g + 2]
        part = shard[:, first:last].contiguous()
        for _ in range(1 + twice):
            if part.numel() or empty:
                dist.send(part, dst=S + g)
    if rank < S:
        return None
    first, last = columns[rank - S : rank - S + 2]
    parts = []
    for r in range(S)[::order]:
        part = torch.empty(rows[r + 1] - rows[r], columns[-1] if whole else last - first)
        for _ in range(1 + twice):
            if part.numel() or empty:
                dist.recv(part, src=r)
        parts.append(part[:, first:last] if whole else part)
    return torch.cat(parts)


def right(rank, world_size, *given):
    return moved(rank, world_size, *given)


def whole_shards(rank, world_size, *given):
    """the right columns, cut out of whole shards"""
    return moved(rank, world_size, *given, whole=True)


def last_trainer_first(rank, world_size, *given):
    """the right columns with the last trainer's rows first"""
    if rank < given[0]:
        return moved(rank, world_size, *given)
    found = moved(rank, world_size, *given)
    return found.flip(0)


def empty_ones(rank, world_size, *given):
    """the right columns, with empty messages"""
    return moved(rank, world_size, *given, empty=True)


def everything_twice(rank, world_size, *given):
    """the right columns, all of them sent twice"""
    return moved(rank, world_size, *given, twice=True)


def row_by_row(rank, world_size, S, rows, columns, shard):
    """the right columns, a message for each row"""
    if rank < S:
        for row in shard:
            for g in range(world_size - S):
                dist.send(row[columns[g] : columns[g + 1]], dst=S + g)
        return None
    mine = torch.empty(rows[-1], columns[rank - S + 1] - columns[rank - S])
    for r in range(S):
        for row in mine[rows[r] : rows[r + 1]]:
            dist.recv(row, src=r)
    return mine


def all_of_it(rank, world_size, S, rows, columns, shard):
    """the whole matrix on each generator"""
    if rank < S:
        for g in range(world_size - S):
            if shard.numel():
                dist.send(shard, dst=S + g)
        return None
    whole = torch.empty(rows[-1], columns[-1])
    for r in range(S):
        if rows[r + 1] > rows[r]:
            dist.recv(whole[rows[r] : rows[r + 1]], src=r)
    return whole


def transposed(rank, world_size, *given):
    """the right columns as rows"""
    found = moved(rank, world_size, *given)
    return found if found is None else found.T.contiguous()


def by_broadcast(rank, world_size, S, rows, columns, shard):
    """the right columns, out of broadcasts to all ranks"""
    parts = []
    for r in range(S):
        part = shard.clone() if r == rank else torch.empty(rows[r + 1] - rows[r], columns[-1])
        dist.broadcast(part, src=r)
        parts.append(part)
    if rank < S:
        return None
    return torch.cat(parts)[:, columns[rank - S] : columns[rank - S + 1]].clone()


WRONG = {
    whole_shards: "160 bytes where",
    last_trainer_first: "The rows are in the wrong order",
    empty_ones: "6 messages where 4 are enough",
    everything_twice: "2 messages where 1 is enough",
    row_by_row: "3 messages where 1 is enough",
    all_of_it: "That is the whole matrix",
    transposed: "That is transposed",
    by_broadcast: "this question allows only",
}
EARNS = {empty_ones: 2, everything_twice: 2, row_by_row: 2, whole_shards: 2}
ALSO_RIGHT = [right]
