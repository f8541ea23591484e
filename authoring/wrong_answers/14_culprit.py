"""Wrong answers to exercise 14.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "culprit"


def held_up(came_ms):
    totals = [0.0] * came_ms.shape[1]
    for row in came_ms.tolist():
        last, before = sorted(row, reverse=True)[:2]
        totals[row.index(last)] += last - before
    return totals


def named(scores, values):
    worst = scores.index(max(scores))
    return worst, values[worst]


def right(rank, world_size, came_ms):
    totals = held_up(came_ms)
    return named(totals, totals)


def last_most_often(rank, world_size, came_ms):
    """the rank that is last most often"""
    times = came_ms.argmax(1).bincount(minlength=came_ms.shape[1]).tolist()
    return named(times, held_up(came_ms))


def computes_most(rank, world_size, came_ms):
    """the rank that computes most in all"""
    return named(came_ms.sum(0).tolist(), held_up(came_ms))


def waits_most(rank, world_size, came_ms):
    """the rank that waits most"""
    return named((-came_ms.sum(0)).tolist(), held_up(came_ms))


def beside_the_mean(rank, world_size, came_ms):
    """the time beyond the mean of the other ranks"""
    totals = [0.0] * came_ms.shape[1]
    for row in came_ms.tolist():
        totals[row.index(max(row))] += max(row) - (sum(row) - max(row)) / (len(row) - 1)
    return named(held_up(came_ms), totals)


def beside_the_mean_of_all(rank, world_size, came_ms):
    """the time beyond the mean of all ranks, itself included"""
    totals = [0.0] * came_ms.shape[1]
    for row in came_ms.tolist():
        totals[row.index(max(row))] += max(row) - sum(row) / len(row)
    return named(held_up(came_ms), totals)


def waits_of_all(rank, world_size, came_ms):
    """the sum of what all others wait"""
    totals = [0.0] * came_ms.shape[1]
    for row in came_ms.tolist():
        totals[row.index(max(row))] += sum(max(row) - each for each in row)
    return named(held_up(came_ms), totals)


def told_by_rank_0(rank, world_size, came_ms):
    """the right rank, sent from rank to rank"""
    totals = held_up(came_ms)
    answer = torch.tensor(named(totals, totals), dtype=torch.float64)
    for other in range(1, world_size if rank == 0 else 0):
        dist.send(answer, dst=other)
    if rank > 0:
        dist.recv(answer, src=0)
    return int(answer[0]), answer[1].item()


def agreed_upon(rank, world_size, came_ms):
    """the right rank, after an all_reduce"""
    totals = torch.tensor(held_up(came_ms), dtype=torch.float64)
    dist.all_reduce(totals, op=dist.ReduceOp.MAX)
    return named(totals.tolist(), totals.tolist())


WRONG = {
    last_most_often: "is last most often",
    computes_most: "computes most in all",
    waits_most: "it is a victim",
    beside_the_mean: "not with the mean of the others",
    beside_the_mean_of_all: "itself included",
    waits_of_all: "You added up what all ranks wait",
    told_by_rank_0: "Every rank has the whole trace",
    agreed_upon: "but 1 collective takes place where 0",
}
ALSO_RIGHT = [right]
