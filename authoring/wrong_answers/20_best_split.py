"""Wrong answers to exercise 20.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "best_split"


def end_s(
    T, tokens, B, R, k, write_s, learn_s, dealt=False, all_learn=True, waits=True, last=False
):
    """When all batches are learned; of a mistake, as it counts."""
    free, versions, complete = [0.0] * (R - T), [0.0], 0.0
    for n, each in enumerate(tokens):
        who = n % (R - T) if dealt else free.index(min(free))
        complete = complete if n % B else 0.0
        free[who] = max(free[who], versions[max(0, n // B - k)]) + write_s * each
        complete = free[who] if last else max(complete, free[who])
        if n % B == B - 1:
            begun = max(complete, versions[-1]) if waits else complete
            share = learn_s / (T if all_learn else 1)
            versions.append(begun + share * sum(tokens[n + 1 - B : n + 1]))
    return versions[-1]


def best(tokens, B, R, k, write_s, learn_s, **how):
    found = [(end_s(T, tokens, B, R, k, write_s, learn_s, **how), T) for T in range(1, R)]
    return min(found)[::-1]


def right(rank, world_size, *job):
    return best(*job)


def by_the_formula(rank, world_size, tokens, B, R, k, write_s, learn_s):
    """the split by the formula that waits for no long rollout"""
    found = []
    for T in range(1, R):
        parts = write_s * sum(tokens) / (R - T), learn_s * sum(tokens) / T
        found.append((max(parts) if k else sum(parts), T))
    return min(found)[::-1]


def in_turn(rank, world_size, *job):
    """the split for rollouts that are dealt out in turn"""
    return best(*job, dealt=True)


def one_learns(rank, world_size, *job):
    """the split if one trainer learned every batch alone"""
    return best(*job, all_learn=False)


def synchronous(rank, world_size, tokens, B, R, k, *rates):
    """the best split of synchronous training"""
    return best(tokens, B, R, 0, *rates)


def no_bound(rank, world_size, tokens, B, R, k, *rates):
    """the best split without a bound"""
    return best(tokens, B, R, 99, *rates)


def one_more(rank, world_size, tokens, B, R, k, *rates):
    """the best split with a bound of k + 1"""
    return best(tokens, B, R, k + 1, *rates)


def two_batches_at_once(rank, world_size, *job):
    """the split if trainers could learn several batches at once"""
    return best(*job, waits=False)


def complete_at_the_last(rank, world_size, *job):
    """the split if a batch were complete at the end of its last rollout"""
    return best(*job, last=True)


def generators(rank, world_size, tokens, B, R, *rest):
    """the best split, told by its generators"""
    T, seconds = best(tokens, B, R, *rest)
    return R - T, seconds


def slowest(rank, world_size, tokens, B, R, *rest):
    """the worst split"""
    return max((end_s(T, tokens, B, R, *rest), T) for T in range(1, R))[::-1]


def only_T(rank, world_size, *job):
    """the best split without its time"""
    return best(*job)[0]


def tells_all(rank, world_size, *job):
    """the best split, sent to the next rank"""
    found = best(*job)
    request = dist.isend(torch.ones(1), dst=(rank + 1) % world_size)
    dist.recv(torch.ones(1), src=(rank - 1) % world_size)
    request.wait()
    return found


WRONG = {
    by_the_formula: "That is the formula of the lesson",
    in_turn: "Rollouts are not dealt out in turn",
    one_learns: "The trainers share the tokens",
    synchronous: "That is synchronous training",
    no_bound: "You let rollouts begin at any version",
    one_more: "one version older than k",
    two_batches_at_once: "*and* the trainers are free",
    complete_at_the_last: "not only the last one",
    generators: "You return the number of generators",
    slowest: "That is the slowest split",
    only_T: "an int, but a tuple",
    tells_all: "5 messages where 0 are enough",
}
ALSO_RIGHT = [right]
