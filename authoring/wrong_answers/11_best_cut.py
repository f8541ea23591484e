"""Wrong answers to exercise 11.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "best_cut"


def time_and_bubble(K, M, examples, start_s, example_s):
    busy_s = M * start_s + examples * example_s
    ramps_s = (K - 1) * (start_s + -(-examples // M) * example_s)
    return round(busy_s + ramps_s, 9), ramps_s / (busy_s + ramps_s)


def best(K, examples, *times, candidates=None):
    candidates = candidates or range(1, examples + 1)
    return min(candidates, key=lambda M: (time_and_bubble(K, M, examples, *times)[0], M))


def right(rank, world_size, examples, start_s, example_s):
    batch = examples, start_s, example_s
    M = best(world_size, *batch)
    return M, time_and_bubble(world_size, M, *batch)[1]


def one_for_each_example(rank, world_size, examples, start_s, example_s):
    """as many micro-batches as there are examples"""
    return examples, time_and_bubble(world_size, examples, examples, start_s, example_s)[1]


def formula_for_the_bubble(rank, world_size, examples, start_s, example_s):
    """the right number, with the bubble of equal micro-batches"""
    M = best(world_size, examples, start_s, example_s)
    return M, (world_size - 1) / (M + world_size - 1)


def as_if_it_divided(K, examples, start_s, example_s):
    def time_s(M):
        return round((M + K - 1) * (start_s + examples / M * example_s), 9)

    return min(range(1, examples + 1), key=lambda M: (time_s(M), M))


def equal_parts(rank, world_size, examples, start_s, example_s):
    """the best number of micro-batches if they were all equal"""
    M = as_if_it_divided(world_size, examples, start_s, example_s)
    return M, time_and_bubble(world_size, M, examples, start_s, example_s)[1]


def equal_parts_and_formula(rank, world_size, examples, start_s, example_s):
    """number and bubble as if all micro-batches were equal"""
    M = as_if_it_divided(world_size, examples, start_s, example_s)
    return M, (world_size - 1) / (M + world_size - 1)


def divisors_only(rank, world_size, examples, start_s, example_s):
    """the best of the numbers that divide the batch"""
    divisors = [M for M in range(1, examples + 1) if examples % M == 0]
    M = best(world_size, examples, start_s, example_s, candidates=divisors)
    return M, time_and_bubble(world_size, M, examples, start_s, example_s)[1]


def counted_as_large(rank, world_size, examples, start_s, example_s):
    """every micro-batch counted as large as the largest"""

    def time_s(M):
        return (M + world_size - 1) * (start_s + -(-examples // M) * example_s)

    M = min(range(1, examples + 1), key=lambda M: (time_s(M), M))
    return M, 1 - (M * start_s + examples * example_s) / time_s(M)


def largest_of_the_best(rank, world_size, examples, start_s, example_s):
    """of equally short steps the one with the most micro-batches"""
    batch = examples, start_s, example_s
    candidates = range(examples, 0, -1)
    M = min(candidates, key=lambda M: time_and_bubble(world_size, M, *batch)[0])
    return M, time_and_bubble(world_size, M, *batch)[1]


def naive(rank, world_size, examples, start_s, example_s):
    """the naive split, one micro-batch"""
    return 1, time_and_bubble(world_size, 1, examples, start_s, example_s)[1]


def with_largest(K, examples, start_s, example_s, largest_of):
    busy_s = [M * start_s + examples * example_s for M in range(examples + 1)]
    ramps_s = [
        (K - 1) * (start_s + largest_of(M) * example_s) if M else 0 for M in range(examples + 1)
    ]
    M = min(range(1, examples + 1), key=lambda M: (round(busy_s[M] + ramps_s[M], 9), M))
    return M, ramps_s[M] / (busy_s[M] + ramps_s[M])


def one_example_more(rank, world_size, examples, start_s, example_s):
    """the largest part taken for examples // M + 1"""
    batch = examples, start_s, example_s
    return with_largest(world_size, *batch, lambda M: examples // M + 1)


def rounded_down(rank, world_size, examples, start_s, example_s):
    """the largest part taken for examples // M"""
    return with_largest(world_size, examples, start_s, example_s, lambda M: examples // M)


def number_alone(rank, world_size, examples, start_s, example_s):
    """the number of micro-batches without the bubble"""
    return right(rank, world_size, examples, start_s, example_s)[0]


def told_by_rank_0(rank, world_size, examples, start_s, example_s):
    """the right cut, which rank 0 tells the others"""
    for other in range(1, world_size):
        if rank == 0:
            dist.send(torch.ones(1), dst=other)
        elif rank == other:
            dist.recv(torch.ones(1), src=0)
    return right(rank, world_size, examples, start_s, example_s)


def agreed_upon(rank, world_size, examples, start_s, example_s):
    """the right cut, after a broadcast"""
    dist.broadcast(torch.ones(1), src=0)
    return right(rank, world_size, examples, start_s, example_s)


WRONG = {
    one_for_each_example: "each of them has to be started",
    formula_for_the_bubble: "The number is right",
    equal_parts: "if a batch could be cut into equal parts",
    equal_parts_and_formula: "for M and for the bubble",
    divisors_only: "of those that divide the batch",
    counted_as_large: "That counts every micro-batch as large as the largest",
    largest_of_the_best: "the smallest M is asked for",
    naive: "One micro-batch is the naive split",
    one_example_more: "has one example too many",
    rounded_down: "has an example too few",
    number_alone: "has an int, but a tuple",
    told_by_rank_0: "Each rank can work this out for itself",
    agreed_upon: "but 1 collective takes place where 0 would be enough",
}
ALSO_RIGHT = [right]
