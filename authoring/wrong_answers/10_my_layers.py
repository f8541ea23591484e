"""Wrong answers to exercise 10.2, each with the words its refusal must hold."""

import itertools

import torch
import torch.distributed as dist

QUESTION = "my_layers"


def best(sizes, world_size):
    def within(limit):
        stages = [[]]
        for size in sizes:
            if sum(stages[-1]) + size > limit:
                stages.append([])
            stages[-1].append(size)
        return stages

    limit = next(n for n in range(max(sizes), sum(sizes) + 1) if len(within(n)) <= world_size)
    return within(limit) + [[]] * world_size


def equally_many(rank, world_size, sizes):
    """the cut into equally many layers for each rank"""
    first, end = (len(sizes) * one // world_size for one in (rank, rank + 1))
    return [torch.zeros(size) for size in sizes[first:end]]


def up_to_the_mean(rank, world_size, sizes):
    """the stages filled up to the mean, the last with all the rest"""
    stages, mean = [[]], sum(sizes) / world_size
    for size in sizes:
        if stages[-1] and len(stages) < world_size and sum(stages[-1]) + size > mean:
            stages.append([])
        stages[-1].append(size)
    return [torch.zeros(size) for size in (stages + [[]] * world_size)[rank]]


def all_layers(rank, world_size, sizes):
    """the whole model on every rank"""
    return [torch.zeros(size) for size in sizes]


def all_layers_and_then_some(rank, world_size, sizes):
    """the whole model made on every rank, and then cut"""
    layers = [torch.zeros(size) for size in sizes]
    before = sum(map(len, best(sizes, world_size)[:rank]))
    return layers[before : before + len(best(sizes, world_size)[rank])]


def sizes_alone(rank, world_size, sizes):
    """the list of the layers' sizes in place of the layers"""
    return best(sizes, world_size)[rank]


def one_large_tensor(rank, world_size, sizes):
    """the stage as one large tensor, not as a list of layers"""
    return torch.zeros(sum(best(sizes, world_size)[rank]))


def asks_rank_0(rank, world_size, sizes):
    """the cut for which the ranks exchange an object"""
    cut = [best(sizes, world_size)]
    dist.broadcast_object_list(cut, src=0)
    return [torch.zeros(size) for size in cut[0][rank]]


def sent_around(rank, world_size, sizes):
    """the cut for which rank 0 sends messages"""
    for other in range(1, world_size):
        if rank == 0:
            dist.send(torch.ones(1), dst=other)
        elif rank == other:
            dist.recv(torch.ones(1), src=0)
    return [torch.zeros(size) for size in best(sizes, world_size)[rank]]


def cuts_without_empty_stages(sizes, world_size):
    for cuts in itertools.combinations(range(1, len(sizes)), world_size - 1):
        yield [sizes[a:b] for a, b in itertools.pairwise([0, *cuts, len(sizes)])]


def least_without_empty_stages(rank, world_size, sizes):
    """the best cut of those that leave no rank without layers"""
    cuts = cuts_without_empty_stages(sizes, world_size)
    good = min(cuts, key=lambda cut: (max(map(sum, cut)), [-len(stage) for stage in cut]))
    return [torch.zeros(size) for size in good[rank]]


def crashes_with_few_layers(rank, world_size, sizes):
    """the cut that fails where there are fewer layers than ranks"""
    if len(sizes) < world_size:
        return least_without_empty_stages(rank, world_size, sizes)
    return [torch.zeros(size) for size in best(sizes, world_size)[rank]]


def next_once_the_mean_is_reached(rank, world_size, sizes):
    """the stages closed once they have reached the mean"""
    stages, mean = [[]], sum(sizes) / world_size
    for size in sizes:
        if sum(stages[-1]) >= mean and len(stages) < world_size:
            stages.append([])
        stages[-1].append(size)
    return [torch.zeros(size) for size in (stages + [[]] * world_size)[rank]]


def last_ranks_filled_first(rank, world_size, sizes):
    """the cut that fills the last ranks first"""
    stages = best(sizes[::-1], world_size)[:world_size][::-1]
    return [torch.zeros(size) for size in stages[rank][::-1]]


WRONG = {
    least_without_empty_stages: "rank 0 has to take as many layers as it can",
    crashes_with_few_layers: "min() ",
    next_once_the_mean_is_reached: "the largest stage is larger than it need be",
    last_ranks_filled_first: "you fill the last ranks first",
    equally_many: "as many layers for each rank; but",
    up_to_the_mean: "which takes what is left, and is too large",
    all_layers: "that is data parallelism",
    all_layers_and_then_some: "Make the layers of your own stage only",
    sizes_alone: "has an int, but a tensor is expected",
    one_large_tensor: "has a Tensor, but a list is expected",
    asks_rank_0: "but 2 collectives take place where 0 would be enough",
    sent_around: "Each rank can work this out for itself",
}


def by_bisection(rank, world_size, sizes):
    def places(limit):
        """The stage of each layer, if every stage is filled up to a limit."""
        found, stage, held = [], 0, 0
        for size in sizes:
            if held + size > limit:
                stage, held = stage + 1, 0
            held += size
            found.append(stage)
        return found

    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if places(middle)[-1] < world_size:
            high = middle
        else:
            low = middle + 1
    pairs = zip(places(low), sizes, strict=True)
    return [torch.zeros(size) for stage, size in pairs if stage == rank]


ALSO_RIGHT = [by_bisection]
