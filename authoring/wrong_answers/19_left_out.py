"""Wrong answers to exercise 19.1, each with the words its refusal must hold."""

from collections import Counter

import torch
import torch.distributed as dist

QUESTION = "left_out"


def first(lines):
    for number in range(1, max(map(max, lines)) + 1):
        seen = {r: own[number] for r, own in enumerate(lines) if number in own}
        for r, line in seen.items():
            if sum(other == line for other in seen.values()) * 2 < len(seen):
                return r, number
    return None


def right(rank, world_size, lines):
    return first(lines)


def where_a_rank_is_missing(rank, world_size, lines):
    """the number at which a rank has no call"""
    lasts = [max(own) for own in lines]
    return lasts.index(min(lasts)), max(lasts)


def too_early(rank, world_size, lines):
    """the number before the first other line"""
    r, number = first(lines)
    return r, number - 1


def by_place(rank, world_size, lines):
    """the calls compared by their place in the buffers"""
    for row in zip(*(own.items() for own in lines), strict=False):
        usual = Counter(line for _, line in row).most_common(1)[0][0]
        for r, (number, line) in enumerate(row):
            if line != usual:
                return r, number
    return None


def after_all_have_begun(rank, world_size, lines):
    """the first other line among the numbers that all buffers have"""
    begin = max(min(own) for own in lines)
    return first([{n: line for n, line in own.items() if n >= begin} for own in lines])


def beside_rank_0(rank, world_size, lines):
    """the first rank that differs from rank 0"""
    for number in lines[0]:
        for r, own in enumerate(lines):
            if own.get(number, lines[0][number]) != lines[0][number]:
                return r, number
    return None


def shortest_buffer(rank, world_size, lines):
    """the right number, and the rank whose buffer is the shortest"""
    return min(range(len(lines)), key=lambda r: len(lines[r])), first(lines)[1]


def agreed(rank, world_size, lines):
    """the right answer, broadcast by rank 0"""
    found = torch.tensor(first(lines))
    dist.broadcast(found, src=0)
    return tuple(found.tolist())


WRONG = {
    where_a_rank_is_missing: "At this number the fault shows",
    too_early: "one call too early",
    by_place: "compare calls of the same number",
    after_all_have_begun: "first number that all buffers have",
    beside_rank_0: "That takes rank 0 as right",
    shortest_buffer: "A short buffer is no fault",
    agreed: "Every rank has all records",
}
ALSO_RIGHT = [right]
