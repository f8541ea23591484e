"""Wrong answers to exercise 15.4, each with the words its refusal must hold."""

from collections import Counter

import torch
import torch.distributed as dist

QUESTION = "sends_more"


def found(one, other, key=lambda op: op[:2], entry=lambda op, times, lines: (*op, times, lines)):
    a, b = (Counter(map(key, trace)) for trace in (one, other))
    lines = {op: sorted({sent[2] for sent in other if key(sent) == op}) for op in b}
    return [entry(op, times, lines[op]) for op, times in sorted((b - a).items())]


def as_sets(rank, world_size, one, other):
    """the difference of two sets"""
    known = {op[:2] for op in one}
    return [entry for entry in found(one, other) if entry[:2] not in known]


def how_often(rank, world_size, one, other):
    """the list with how often other sends each op"""
    counts = Counter(op[:2] for op in other)
    return found(one, other, entry=lambda op, times, lines: (*op, counts[op], lines))


def the_other_way_round(rank, world_size, one, other):
    """what one sends more than other"""
    return found(other, one)


def every_line(rank, world_size, one, other):
    """the list with a line for each time"""

    def entry(op, times, lines):
        return (*op, times, sorted(line for *sent, line in other if tuple(sent) == op))

    return found(one, other, entry=entry)


def equal_ones_too(rank, world_size, one, other):
    """the list with what both send equally often"""
    a, b = (Counter(op[:2] for op in trace) for trace in (one, other))
    return [
        (*op, max(b[op] - a[op], 0), sorted({sent[2] for sent in other if sent[:2] == op}))
        for op in sorted(b)
    ]


def calls_only(rank, world_size, one, other):
    """the list of calls, whatever their bytes"""
    return found(one, other, key=lambda op: op[:1])


def in_order_of_sending(rank, world_size, one, other):
    """the list in the order in which the ops were sent"""
    order = [op[:2] for op in other]
    return sorted(found(one, other), key=lambda entry: order.index(entry[:2]))


def by_line(rank, world_size, one, other):
    """the list with an entry for each line"""
    return found(one, other, lambda op: op, lambda op, times, lines: (*op[:2], times, lines))


def fewer_too(rank, world_size, one, other):
    """the list with what other sends less often, too"""
    a, b = (Counter(op[:2] for op in trace) for trace in (one, other))
    return [
        (*op, b[op] - a[op], sorted({sent[2] for sent in other if sent[:2] == op}))
        for op in sorted(a | b)
        if a[op] != b[op]
    ]


def by_times(rank, world_size, one, other):
    """the list sorted by times"""
    return sorted(found(one, other), key=lambda entry: entry[2])


def first_line(rank, world_size, one, other):
    """the list with the first line of each op"""
    lines = {}
    for op in other:
        lines.setdefault(op[:2], op[2])
    return found(one, other, entry=lambda op, times, _: (*op, times, [lines[op]]))


def after_a_barrier(rank, world_size, one, other):
    """the list after a barrier of all ranks"""
    dist.barrier()
    return found(one, other)


def told_to_the_next(rank, world_size, one, other):
    """the list, with a message to the next rank"""
    if world_size > 1:
        request = dist.isend(torch.ones(1), dst=(rank + 1) % world_size)
        dist.recv(torch.ones(1), src=(rank - 1) % world_size)
        request.wait()
    return found(one, other)


WRONG = {
    as_sets: "but less often, are missing",
    how_often: "how many *more* is asked",
    the_other_way_round: "the other way round",
    every_line: "A line is listed as often as it sent the op",
    equal_ones_too: "What both send equally often is there",
    calls_only: "the same call of another size is another op",
    in_order_of_sending: "but not sorted",
    by_line: "its line is not part of an op",
    fewer_too: "where `!=` stands",
    by_times: "sorted by times",
    first_line: "Only one line of each op is there",
    after_a_barrier: "but 1 collective takes place where 0 would be enough",
    told_to_the_next: "messages where",
}


def by_counting(rank, world_size, one, other):
    entries = []
    for call, nbytes in sorted({op[:2] for op in other}):
        times = sum(
            (1 if trace is other else -1) * (op[:2] == (call, nbytes))
            for trace in (one, other)
            for op in trace
        )
        lines = {line for c, n, line in other if (c, n) == (call, nbytes)}
        if times > 0:
            entries.append((call, nbytes, times, sorted(lines)))
    return entries


ALSO_RIGHT = (by_counting,)
