"""Wrong answers to exercise 13.2, each with the words its refusal must hold."""

import itertools

import torch
import torch.distributed as dist

QUESTION = "push_and_fetch"


def edges_of(S, P, cut="tensor_split"):
    if cut == "floor":
        return [*(s * (P // S) for s in range(S)), P]
    if cut == "ceil":
        return [min(P, -(-P // S) * s) for s in range(S + 1)]
    return [0, *itertools.accumulate(len(part) for part in torch.arange(P).tensor_split(S))]


def shared(edges, s, piece):
    return max(edges[s], piece[0]), min(edges[s + 1], piece[1])


def exchange(rank, S, P, pieces, x, sign=-1, when="after all", ask_all=False, cut="tensor_split"):
    """The exchange of all answers below, with their faults to choose."""
    edges, x, old = edges_of(S, P, cut), x.clone(), x.clone()
    mine = [
        (s, k, a, b)
        for k, piece in enumerate(pieces)
        for s in range(S)
        for a, b in [shared(edges, s, piece)]
        if (a < b or ask_all) and rank in (s, S + k)
    ]
    begin = edges[rank] if rank < S else pieces[rank - S][0]
    answers = []
    for s, k, a, b in mine:
        a, b = a - begin, max(b, a) - begin
        if rank < S:
            came = torch.empty(b - a)
            dist.recv(came, src=S + k)
            x[a:b] += sign * came
            answer = {"before": old[a:b], "own": old[a:b] - came, "after all": x[a:b]}.get(when)
            answers.append((S + k, x[a:b].clone() if when == "at once" else answer))
        else:
            dist.send(x[a:b].clone(), dst=s)
            answers.append((s, x[a:b]))
    for other, numbers in answers:
        if rank < S:
            dist.send(numbers.clone(), dst=other)
        else:
            dist.recv(numbers, src=other)
    return x


def uphill(rank, world_size, S, P, pieces, x):
    """the gradient added"""
    return exchange(rank, S, P, pieces, x, sign=1)


def answers_the_old(rank, world_size, S, P, pieces, x):
    """the answer made before any push is in"""
    return exchange(rank, S, P, pieces, x, when="before")


def answers_one_by_one(rank, world_size, S, P, pieces, x):
    """the answer that has seen the asker's own push alone"""
    return exchange(rank, S, P, pieces, x, when="own")


def asks_every_shard(rank, world_size, S, P, pieces, x):
    """the empty messages to shards that hold nothing of the piece"""
    return exchange(rank, S, P, pieces, x, ask_all=True)


def whole_vectors(rank, world_size, S, P, pieces, x):
    """the messages as long as theta, zero where there is nothing to say"""
    edges, begin = edges_of(S, P), 0
    begin = edges[rank] if rank < S else pieces[rank - S][0]
    whole = torch.zeros(P)
    if rank < S:
        whole[begin : begin + len(x)] = x
    pairs = [
        (s, k)
        for k, piece in enumerate(pieces)
        for s in range(S)
        if shared(edges, s, piece)[0] < shared(edges, s, piece)[1] and rank in (s, S + k)
    ]
    came = torch.empty(P)
    for s, k in pairs:
        if rank < S:
            dist.recv(came, src=S + k)
            whole -= came
        else:
            pushed = torch.zeros(P)
            pushed[begin : begin + len(x)] = x
            dist.send(pushed, dst=s)
    for s, k in pairs:
        if rank < S:
            dist.send(whole, dst=S + k)
        else:
            dist.recv(came, src=s)
            a, b = shared(edges, s, pieces[k])
            whole[a:b] = came[a:b]
    return whole[begin : begin + len(x)].clone()


def answers_at_once(rank, world_size, S, P, pieces, x):
    """the answer to each push as soon as it is in"""
    return exchange(rank, S, P, pieces, x, when="at once")


def remainder_last(rank, world_size, S, P, pieces, x):
    """the shards of P // S numbers, the last one with the rest"""
    return exchange(rank, S, P, pieces, x, cut="floor")


def cut_as_chunk_does(rank, world_size, S, P, pieces, x):
    """the shards as long as those of torch.chunk"""
    return exchange(rank, S, P, pieces, x, cut="ceil")


WRONG = {
    answers_at_once: "where pieces overlap, one is missing",
    remainder_last: "one longer, not the last",
    cut_as_chunk_does: "torch.chunk rounds all lengths up",
    uphill: "gradients are subtracted",
    answers_the_old: "before it has subtracted anything",
    answers_one_by_one: "the others' are missing",
    asks_every_shard: "only between those that have numbers in common",
    whole_vectors: "Send a shard only what it holds",
}


def in_one_list(rank, world_size, S, P, pieces, x):
    """one list of all that the rank exchanges"""
    return exchange(rank, S, P, pieces, x)


ALSO_RIGHT = [in_one_list]
