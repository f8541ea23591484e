"""Wrong answers to exercise 18.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "kept_choices"


def largest(arrived, C, received):
    """What an expert keeps of the weights that have arrived."""
    stays = torch.zeros(len(arrived), dtype=torch.uint8)
    stays[arrived.argsort(descending=True)[:C]] = 1
    return stays


def exchange(x, sent, received):
    y = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(y, x.contiguous(), received, sent)
    return y


def splits_of(chosen, world_size):
    counts = chosen.flatten().bincount(minlength=world_size)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    return counts.tolist(), theirs.tolist()


def right(rank, world_size, weights, chosen, C, decide=largest, pack=None, unpack=None, undo=True):
    """The solution, unless something else is asked for."""
    order = chosen.flatten().argsort(stable=True)
    sent, received = splits_of(chosen, world_size)
    rows = weights.flatten()[order]
    arrived = exchange(pack(rows) if pack else rows, sent, received)
    stays = decide(unpack(arrived) if unpack else arrived, C, received)
    back = exchange(stays, received, sent)
    kept = torch.empty(len(order), dtype=torch.bool)
    kept[order if undo else slice(None)] = back.bool()
    return kept.view(chosen.shape)


def by_threshold(rank, world_size, weights, chosen, C):
    """The C-th largest weight comes back for each choice, and the rank compares."""

    def limits(arrived, C, received):
        limit = arrived.sort(descending=True).values[min(C, len(arrived)) - 1 :][:1]
        return limit.expand(len(arrived)).contiguous()

    order = chosen.flatten().argsort(stable=True)
    sent, received = splits_of(chosen, world_size)
    mine = weights.flatten()[order]
    back = exchange(limits(exchange(mine, sent, received), C, received), received, sent)
    kept = torch.empty(len(order), dtype=torch.bool)
    kept[order] = mine >= back
    return kept.view(chosen.shape)


def the_dropped_ones(rank, world_size, weights, chosen, C):
    """the mask of what is dropped"""
    return ~right(rank, world_size, weights, chosen, C)


def smallest(rank, world_size, weights, chosen, C):
    """the choice of the smallest weights"""
    return right(rank, world_size, weights, chosen, C, lambda w, C, got: largest(-w, C, got))


def first_come(rank, world_size, weights, chosen, C):
    """the choice of those that come first"""
    return right(
        rank, world_size, weights, chosen, C,
        lambda w, C, got: (torch.arange(len(w)) < C).to(torch.uint8),
    )  # fmt: skip


def per_rank(C, weights, chosen, world_size):
    kept = torch.zeros(chosen.numel(), dtype=torch.bool)
    for e in range(world_size):
        of_e = (chosen.flatten() == e).nonzero()[:, 0]
        kept[of_e[weights.flatten()[of_e].argsort(descending=True)][:C]] = True
    return kept.view(chosen.shape)


def c_for_each_rank(rank, world_size, weights, chosen, C):
    """the decision of each rank for itself"""
    return per_rank(C, weights, chosen, world_size)


def equal_parts_of_c(rank, world_size, weights, chosen, C):
    """the capacity cut into equal parts"""
    return per_rank(C // world_size, weights, chosen, world_size)


def still_sorted(rank, world_size, weights, chosen, C):
    """the answers in the order of the experts"""
    return right(rank, world_size, weights, chosen, C, undo=False)


def sorted_twice(rank, world_size, weights, chosen, C):
    """the answers sorted by `back[order]`"""
    order = chosen.flatten().argsort(stable=True)
    return still_sorted(rank, world_size, weights, chosen, C).flatten()[order].view(chosen.shape)


def topk(rank, world_size, weights, chosen, C):
    """the C largest of fewer than C"""

    def decide(arrived, C, received):
        stays = torch.zeros(len(arrived), dtype=torch.uint8)
        stays[arrived.topk(C).indices] = 1
        return stays

    return right(rank, world_size, weights, chosen, C, decide)


def whole_tokens(rank, world_size, weights, chosen, C):
    """the tokens dropped as a whole"""
    kept = right(rank, world_size, weights, chosen, C)
    return kept.all(1, keepdim=True).expand(kept.shape).clone()


def nothing_dropped(rank, world_size, weights, chosen, C):
    """the layer without a capacity"""
    return torch.ones_like(chosen, dtype=torch.bool)


def in_double(rank, world_size, weights, chosen, C):
    """the weights sent in double precision"""
    return right(rank, world_size, weights, chosen, C, pack=lambda w: w.double())


def answers_in_int64(rank, world_size, weights, chosen, C):
    """the answers sent as int64"""
    return right(
        rank, world_size, weights, chosen, C, lambda w, C, got: largest(w, C, got).long()
    )  # fmt: skip


def with_places(rank, world_size, weights, chosen, C):
    """the weights sent with their places"""
    return right(
        rank, world_size, weights, chosen, C,
        pack=lambda w: torch.stack([w, torch.arange(float(len(w)))], 1),
        unpack=lambda rows: rows[:, 0],
    )  # fmt: skip


def one_more_exchange(rank, world_size, weights, chosen, C):
    """the counts exchanged once more on the way back"""
    splits_of(chosen, world_size)
    return right(rank, world_size, weights, chosen, C)


def all_gathered(rank, world_size, weights, chosen, C):
    """the weights and choices of all ranks, gathered on every rank"""
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(counts, torch.tensor([chosen.numel()]))
    most = max(count.item() for count in counts)
    mine = torch.full((2, most), -1.0)
    mine[0, : chosen.numel()], mine[1, : chosen.numel()] = weights.flatten(), chosen.flatten()
    every = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(every, mine)
    w, e = torch.cat(every, 1)
    limit = [w[e == one].sort(descending=True).values[:C][-1:] for one in range(world_size)]
    kept = [
        w >= limit[e] for w, e in zip(weights.flatten(), chosen.flatten().tolist(), strict=True)
    ]
    return torch.tensor(kept, dtype=torch.bool).view(chosen.shape)


ALSO_RIGHT = [right, by_threshold]

WRONG = {
    the_dropped_ones: "Those are the choices that are dropped",
    smallest: "The experts keep the smallest weights",
    first_come: "that come first, without a look",
    c_for_each_rank: "Each rank decides for itself",
    equal_parts_of_c: "Each rank gets an equal part of C",
    still_sorted: "The answers are in the order of the experts",
    sorted_twice: "The answers are sorted once more",
    topk: "selected index k out of range",
    whole_tokens: "all choices of a token are dropped if one is",
    nothing_dropped: "Nothing is dropped",
    in_double: "float64 travels",
    answers_in_int64: "brings 56 bytes",
    with_places: "brings 44 bytes",
    one_more_exchange: "One for the counts, one for the weights",
    all_gathered: "this question allows only",
}
