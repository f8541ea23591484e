"""Wrong answers to exercise 12.5, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "fit_8b"


def chosen(
    measured,
    layers,
    memory_bytes,
    extended=lambda two, four, n: two + (n - 2) / 2 * (four - two),
    per_sequence=True,
    must_fit=True,
    smallest=False,
    why_of_all=False,
    column=max,
):
    """The answer; of a mistake, as it counts."""
    found, why = [], {}
    for name, of in measured.items():
        at = {key: extended(of[2][key], of[4][key], layers) for key in of[2]}
        seconds = at.pop("seconds") / (of["sequences"] if per_sequence else 1)
        held = sum(at.values())
        if held <= memory_bytes or not must_fit:
            found.append((held if smallest else seconds, name))
        if held > memory_bytes or why_of_all:
            why[name] = column(at, key=at.get)
    return min(found)[1] if found else None, why


def not_extended(rank, world_size, *given):
    """the configuration that fits with 4 layers"""
    return chosen(*given, extended=lambda two, four, n: four)


def in_proportion(rank, world_size, *given):
    """the ledger of 4 layers times a quarter of the layers"""
    return chosen(*given, extended=lambda two, four, n: four * n / 4)


def twice_as_much(rank, world_size, *given):
    """the extension that adds two layers for each one"""
    return chosen(*given, extended=lambda two, four, n: two + (n - 2) * (four - two))


def step_not_sequence(rank, world_size, *given):
    """the configuration with the shortest step"""
    return chosen(*given, per_sequence=False)


def whether_it_fits_or_not(rank, world_size, *given):
    """the fastest configuration, too large or not"""
    return chosen(*given, must_fit=False)


def holds_least(rank, world_size, *given):
    """the configuration that holds least"""
    return chosen(*given, smallest=True)


def why_of_all(rank, world_size, *given):
    """the largest column of every configuration"""
    return chosen(*given, why_of_all=True)


def smallest_column(rank, world_size, *given):
    """the smallest column of what does not fit"""
    return chosen(*given, column=min)


def name_alone(rank, world_size, *given):
    """the right configuration without its reasons"""
    return chosen(*given)[0]


def after_a_barrier(rank, world_size, *given):
    """the configuration that ranks choose after a barrier"""
    dist.barrier()
    return chosen(*given)


def told_the_next(rank, world_size, *given):
    """the configuration that each rank tells the next one"""
    if world_size > 1:
        request = dist.isend(torch.ones(1), dst=(rank + 1) % world_size)
        dist.recv(torch.ones(1), src=(rank - 1) % world_size)
        request.wait()
    return chosen(*given)


WRONG = {
    not_extended: "That is right for 4 layers",
    in_proportion: "You multiply all by layers / 4",
    twice_as_much: "from 2 to 4 layers it is two of them",
    step_not_sequence: "the least time per sequence counts",
    whether_it_fits_or_not: "but it does not fit",
    holds_least: "any that fits will do",
    why_of_all: "is for those that do not fit",
    smallest_column: "names the smallest column",
    name_alone: "return `why`, too",
    after_a_barrier: "but 1 collective takes place where 0 would be enough",
    told_the_next: "the ranks send 5 messages where",
}


def by_each_layer(rank, world_size, measured, layers, memory_bytes):
    best, why = None, {}
    for name, of in measured.items():
        each = {key: (of[4][key] - of[2][key]) / 2 for key in of[2]}
        at = {key: of[4][key] + (layers - 4) * each[key] for key in each}
        columns = [key for key in at if key != "seconds"]
        if sum(at[key] for key in columns) > memory_bytes:
            why[name] = sorted(columns, key=lambda key, at=at: -at[key])[0]
        elif best is None or at["seconds"] / of["sequences"] < best[0]:
            best = at["seconds"] / of["sequences"], name
    return best and best[1], why


ALSO_RIGHT = (by_each_layer,)
