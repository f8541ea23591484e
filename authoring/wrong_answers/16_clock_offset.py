"""Wrong answers to exercise 16.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "clock_offset"


def exchange(rank, world_size, stamps):
    """Rank 0's readings; None on rank 0, which has sent them."""
    if rank == 0:
        for other in range(1, world_size):
            dist.send(stamps[other], dst=other)
        return None
    of_rank_0 = torch.empty_like(stamps)
    dist.recv(of_rank_0, src=0)
    return of_rank_0


def offset_and_way(of_rank_0, stamps):
    (sent, back), (came, gone) = of_rank_0.T, stamps.T
    return ((came - sent) + (gone - back)) / 2, (back - sent) - (gone - came), back - sent


def of_all_trips(rank, world_size, stamps):
    """the mean over all trips, however long they were under way"""
    of_rank_0 = exchange(rank, world_size, stamps)
    if of_rank_0 is None:
        return 0.0, 0.0
    offset, way, _ = offset_and_way(of_rank_0, stamps)
    return offset.mean().item(), way.mean().item() / 2


def turned_round(rank, world_size, stamps):
    """the offset with its sign turned round"""
    of_rank_0 = exchange(rank, world_size, stamps)
    if of_rank_0 is None:
        return 0.0, 0.0
    offset, way, _ = offset_and_way(of_rank_0, stamps)
    return -offset[way.argmin()].item(), way.min().item() / 2


def whole_error(rank, world_size, stamps):
    """the right offset with all the time under way as its error"""
    of_rank_0 = exchange(rank, world_size, stamps)
    if of_rank_0 is None:
        return 0.0, 0.0
    offset, way, _ = offset_and_way(of_rank_0, stamps)
    return offset[way.argmin()].item(), way.min().item()


def with_what_was_held(rank, world_size, stamps):
    """the trip chosen by its whole time, the time it was held included"""
    of_rank_0 = exchange(rank, world_size, stamps)
    if of_rank_0 is None:
        return 0.0, 0.0
    offset, way, whole = offset_and_way(of_rank_0, stamps)
    best = whole.argmin()
    return offset[best].item(), way[best].item() / 2


def always_trip_1(rank, world_size, stamps):
    """the offset from trip 1 with every rank, however long it was under way"""
    of_rank_0 = exchange(rank, world_size, stamps)
    if of_rank_0 is None:
        return 0.0, 0.0
    offset, way, _ = offset_and_way(of_rank_0, stamps)
    return offset[1].item(), way[1].item() / 2


def row_by_row(rank, world_size, stamps):
    """the right offset with a message for every row"""
    if rank == 0:
        for other in range(1, world_size):
            for row in stamps[other]:
                dist.send(row, dst=other)
        return 0.0, 0.0
    of_rank_0 = torch.empty_like(stamps)
    for row in of_rank_0:
        dist.recv(row, src=0)
    offset, way, _ = offset_and_way(of_rank_0, stamps)
    return offset[way.argmin()].item(), way.min().item() / 2


def everything_to_everyone(rank, world_size, stamps):
    """the right offset with all of rank 0's stamps sent to every rank"""
    if rank == 0:
        for other in range(1, world_size):
            dist.send(stamps, dst=other)
        return 0.0, 0.0
    of_rank_0 = torch.empty((world_size, *stamps.shape), dtype=stamps.dtype)
    dist.recv(of_rank_0, src=0)
    offset, way, _ = offset_and_way(of_rank_0[rank], stamps)
    return offset[way.argmin()].item(), way.min().item() / 2


def alone(rank, world_size, stamps):
    """the pair of zeros on every rank, with nothing sent"""
    return 0.0, 0.0


WRONG = {
    of_all_trips: "one long trip spoils it",
    turned_round: "The sign is turned round",
    whole_error: "the trip divides somewhere in between",
    with_what_was_held: "What the other rank held it for is not under way",
    always_trip_1: "each has a shortest trip of its own",
    row_by_row: "All rows of a rank fit into one message",
    everything_to_everyone: "bytes where 64 are enough",
    alone: "No rank communicates",
}


def by_rows(rank, world_size, stamps):
    if rank == 0:
        for request in [dist.isend(stamps[r].contiguous(), r) for r in range(1, world_size)]:
            request.wait()
        return 0.0, 0.0
    theirs, best = torch.zeros_like(stamps), None
    dist.recv(theirs, 0)
    for (sent, back), (came, gone) in zip(theirs.tolist(), stamps.tolist(), strict=True):
        under_way = back - sent - (gone - came)
        offset = (came - sent + gone - back) / 2
        best = min(best or (float("inf"), 0.0), (under_way, offset))
    return best[1], best[0] / 2


ALSO_RIGHT = [by_rows]
