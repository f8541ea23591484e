"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/01_ranks_and_clusters.py, which is what grading reads; nobody edits this file.
"""

from simlib.checks import (
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    nbytes,
    only,
    somebody_sends,
)


# %% 01.1 my_block
def blocks(ns, start_of):
    """The block of each rank, where start_of(rank) is the beginning of its block."""
    return [(start_of(rank), start_of(rank + 1)) for rank in range(len(ns))]


def fair(ns):
    n, size = ns[0], len(ns)
    return blocks(ns, lambda rank: sum(n // size + (r < n % size) for r in range(rank)))


verdict = check(
    "my_block",
    my_block,
    # the n of every rank, in two draws: every world is tried with both
    [lambda rank, world_size: (14 if world_size < 5 else 3,), lambda rank, world_size: (20,)],
    fair,
    messages(lambda ns: 0, hint="Every rank knows n, its rank and the world size: that is enough."),
    collectives(lambda ns: 0, hint="Every rank knows n, its rank and the world size."),
    mistakes={
        "The last examples belong to nobody: n is not always a multiple of the world size.": (
            lambda ns: blocks(ns, lambda rank: rank * (ns[0] // len(ns)))
        ),
        "The last rank takes all that is left over: sizes may differ by one only.": (
            lambda ns: blocks(
                ns, lambda rank: ns[0] if rank == len(ns) else rank * (ns[0] // len(ns))
            )
        ),
        "With full blocks of ceil(n / world_size) the last rank has too few.": (
            lambda ns: blocks(ns, lambda rank: min(ns[0], rank * -(-ns[0] // len(ns))))
        ),
        "stop is the number after the last one, as in range(start, stop).": (
            lambda ns: [(start, stop - 1) for start, stop in fair(ns)]
        ),
        "The higher ranks take one more here; the lower ones should.": (
            lambda ns: blocks(ns, lambda rank: rank * ns[0] // len(ns))
        ),
    },
    points=2,
)
verdict


# %% 01.2 report
def one_number_and_a_root(rank, world_size):
    return torch.tensor([100 + 10 * rank]), world_size // 2


def another_number_and_root(rank, world_size):
    return torch.tensor([57 + 7 * rank]), world_size - 1


def numbers(xs, holder):
    """What the ranks return where only rank `holder` has the list."""
    everything = [x.item() for x in xs]
    return [everything if rank == holder else None for rank in range(len(xs))]


verdict = check(
    "report",
    report,
    [one_number_and_a_root, another_number_and_root],
    lambda xs, roots: numbers(xs, roots[0]),
    only("send", "recv"),
    somebody_sends(),
    messages(lambda xs, roots: len(xs) - 1, hint="One from each other rank, straight to the root."),
    nbytes(lambda xs, roots: 8 * (len(xs) - 1), hint="Each rank sends its own number, no more."),
    mistakes={
        "The list is on rank 0, but here another rank is the root.": (
            lambda xs, roots: numbers(xs, 0)
        ),
        "Every rank has the list: only the root was to have it.": (
            lambda xs, roots: [[x.item() for x in xs]] * len(xs)
        ),
        "Where is the root's own number?": (
            lambda xs, roots: [
                [x.item() for r, x in enumerate(xs) if r != root] if rank == root else None
                for rank, root in enumerate(roots)
            ]
        ),
        "The root's own number stands first: every number belongs to its rank's place.": (
            lambda xs, roots: [
                [x.item() for x in (xs[root], *xs[:root], *xs[root + 1 :])]
                if rank == root
                else None
                for rank, root in enumerate(roots)
            ]
        ),
    },
    points=2,
)
verdict


# %% 01.3 local_rank
def somewhere(rank, world_size):
    return ([7, 3, 7, 7, 3][rank],)


def elsewhere(rank, world_size):
    """Some ranks are where they were, others are not: a rank cannot tell which alone."""
    return ([7, 7, 3, 7, 3][rank],)


def places(nodes):
    return [(nodes[:rank].count(node), nodes.count(node)) for rank, node in enumerate(nodes)]


verdict = check(
    "local_rank",
    local_rank,
    [somewhere, elsewhere],
    places,
    only("all_gather"),
    somebody_sends(),
    collectives(lambda nodes: 1, hint="Who knows all nodes can count all by itself."),
    collective_nbytes(lambda nodes: 8, hint="One int64 number from each rank is enough."),
    mistakes={
        "That is the rank in the world: on a node counting begins at 0 again.": (
            lambda nodes: [(r, nodes.count(node)) for r, node in enumerate(nodes)]
        ),
        "The local rank begins at 0: do not count the rank itself.": (
            lambda nodes: [(mine + 1, count) for mine, count in places(nodes)]
        ),
        "The rank itself lives on its node too.": (
            lambda nodes: [(mine, count - 1) for mine, count in places(nodes)]
        ),
        "All holders are one and the same tensor: make a new one for each rank.": (
            lambda nodes: [
                (r, len(nodes)) if node == nodes[-1] else (0, 0) for r, node in enumerate(nodes)
            ]
        ),
        "That is right where nodes are filled one after the other: here they are not.": (
            lambda nodes: [
                (r % nodes.count(node), nodes.count(node)) for r, node in enumerate(nodes)
            ]
        ),
    },
    points=3,
)
verdict
