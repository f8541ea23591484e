"""Wrong answers to exercise 11.2, each with the words its refusal must hold."""

import itertools

import torch
import torch.distributed as dist

QUESTION = "rebalance"


def gathered(world_size, times_us):
    parts = [torch.empty_like(times_us) for _ in range(world_size)]
    dist.all_gather(parts, times_us)
    return torch.cat(parts).tolist()


def best(times, n, order=lambda cut: [-end for end in cut], empty=False):
    count = len(times)
    if empty:
        ends_of = itertools.combinations_with_replacement(range(count + 1), n - 1)
    else:
        ends_of = itertools.combinations(range(1, count), n - 1)
    cuts = [[0, *ends, count] for ends in ends_of]
    slowest = [max(sum(times[a:b]) for a, b in itertools.pairwise(cut)) for cut in cuts]
    good = [cut for cut, time in zip(cuts, slowest, strict=True) if time == min(slowest)]
    return min(good, key=order)


def right(rank, world_size, times_us):
    cut = best(gathered(world_size, times_us), world_size)
    return cut[rank], cut[rank + 1]


def nothing_moves(rank, world_size, times_us):
    """the layers that each rank has already"""
    gathered(world_size, times_us)
    return rank * len(times_us), (rank + 1) * len(times_us)


def last_ranks_filled(rank, world_size, times_us):
    """the cut that fills the last ranks first"""
    cut = best(gathered(world_size, times_us), world_size, order=lambda cut: cut)
    return cut[rank], cut[rank + 1]


def some_stay_empty(rank, world_size, times_us):
    """the cut that may leave ranks without layers"""
    cut = best(gathered(world_size, times_us), world_size, empty=True)
    return cut[rank], cut[rank + 1]


def below_the_mean(rank, world_size, times_us):
    """the stages that end before they are above the mean"""
    times = gathered(world_size, times_us)
    cut, total = [0], 0
    for number, time in enumerate(times):
        left = len(times) - number
        full = total + time > sum(times) / world_size or left <= world_size - len(cut)
        if number > cut[-1] and len(cut) < world_size and full:
            cut.append(number)
            total = 0
        total += time
    cut.append(len(times))
    return cut[rank], cut[rank + 1]


def above_the_mean(rank, world_size, times_us):
    """the stages that end as they have reached the mean"""
    times = gathered(world_size, times_us)
    cut, total = [0], 0
    for number, time in enumerate(times, 1):
        total += time
        left = len(times) - number
        is_full = total >= sum(times) / world_size or left <= world_size - len(cut)
        if len(cut) < world_size and is_full:
            cut.append(number)
            total = 0
    cut.append(len(times))
    return cut[rank], cut[rank + 1]


def last_layer(rank, world_size, times_us):
    """first layer and last layer in place of first and end"""
    cut = best(gathered(world_size, times_us), world_size)
    return cut[rank], cut[rank + 1] - 1


def by_object(rank, world_size, times_us):
    """the right cut, by an all_gather of objects"""
    parts = [None] * world_size
    dist.all_gather_object(parts, times_us.tolist())
    cut = best(sum(parts, []), world_size)
    return cut[rank], cut[rank + 1]


def one_layer_at_a_time(rank, world_size, times_us):
    """the right cut, with an all_gather for every layer"""
    columns = [gathered(world_size, time.reshape(1)) for time in times_us]
    times = [time for row in zip(*columns, strict=True) for time in row]
    cut = best(times, world_size)
    return cut[rank], cut[rank + 1]


def room_for_all(rank, world_size, times_us):
    """the right cut, for which each rank brings room for all layers"""
    whole = torch.zeros(world_size * len(times_us), dtype=torch.int64)
    whole[rank * len(times_us) : (rank + 1) * len(times_us)] = times_us
    parts = [torch.empty_like(whole) for _ in range(world_size)]
    dist.all_gather(parts, whole)
    cut = best(sum(parts).tolist(), world_size)
    return cut[rank], cut[rank + 1]


def by_all_reduce(rank, world_size, times_us):
    """the right cut, by an all_reduce of a vector with zeros"""
    whole = torch.zeros(world_size * len(times_us), dtype=torch.int64)
    whole[rank * len(times_us) : (rank + 1) * len(times_us)] = times_us
    dist.all_reduce(whole)
    cut = best(whole.tolist(), world_size)
    return cut[rank], cut[rank + 1]


def counted_by_rank(rank, world_size, times_us):
    """first layer and number of layers in place of first and end"""
    cut = best(gathered(world_size, times_us), world_size)
    return cut[rank], cut[rank + 1] - cut[rank]


WRONG = {
    nothing_moves: "Nothing has moved",
    last_ranks_filled: "you fill the last ranks first",
    some_stay_empty: "for ranks that may stay empty",
    above_the_mean: "when it has reached the mean",
    last_layer: "one past the last layer",
    below_the_mean: "the last one takes what is left",
    by_object: "2 collectives take place where 1",
    one_layer_at_a_time: "3 collectives take place where 1",
    room_for_all: "A rank brings its own n times",
    by_all_reduce: "this question allows only",
    counted_by_rank: "not how many they are",
}
ALSO_RIGHT = [right]
