# %% [markdown]
# # Exercises 01: ranks and clusters
#
# These three tasks go with [lesson 01](../notebooks/01_ranks_and_clusters.ipynb). They cover three
# questions that every program on many ranks must answer first. Which rank does which part of the work?
# Which rank sends its result to which other rank? Which rank runs on which node?
#
# Write each function in its cell, run that cell, then run the check below it. A check calls your
# function on worlds of 1 to 5 ranks. It looks at the value on every rank, and at everything that the
# ranks sent. If the value is right but your ranks sent too much, the task is not solved yet. Each task
# has folded hints.

# %% role="setup"
import torch
import torch.distributed as dist

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

# %% [markdown]
# ## 1. Deal out the examples (★, 10 minutes, 2 points)
#
# All ranks share `n` examples, numbered from 0. Every rank knows `n`. Return the pair `(start, stop)`:
# this rank takes examples `start, ..., stop - 1`. The blocks follow each other in the order of the
# ranks, and each example belongs to exactly one rank. The sizes of the blocks differ by at most one, and
# lower ranks have the larger blocks. Send nothing. The check calls your function with `n = 14` and
# `n = 20`, and on five ranks with `n = 3`.


# %% role="answer" question="my_block" points=2
def my_block(rank, world_size, n):
    """Return (start, stop), two ints: the block of the n examples that belongs to this rank.

    Blocks follow each other by rank; the first n % world_size of them have one example more.
    """
    ### BEGIN SOLUTION
    share, more = divmod(n, world_size)
    start = rank * share + min(rank, more)
    return start, start + share + (rank < more)
    ### END SOLUTION


# %% role="check" question="my_block" points=2
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
        "The higher ranks have one more here: give one more to the lower ranks.": (
            lambda ns: blocks(ns, lambda rank: rank * ns[0] // len(ns))
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# If 4 ranks share 14 examples, how large are the four blocks? How many of the blocks have one example
# more than the others?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Compute `share, more = divmod(n, world_size)`. A rank's block begins after `rank` blocks of `share`
# examples, and after the additional examples of the ranks below it. How many additional examples do
# these ranks have?
#
# </details>
# <details><summary>Hint 3</summary>
#
# Each of the first `more` ranks has one additional example. So the ranks below rank `rank` have
# `min(rank, more)` additional examples.
#
# </details>

# %% role="hidden" question="my_block"
seed = 1
print(measure(my_block, lambda rank, world_size: (1 + seed % 211,)))

# %% [markdown]
# ## 2. A report on any rank (★★, 15 minutes, 2 points)
#
# Every rank gets `x`, a tensor of one int64 number, and the same `root`. Rank `root` returns the list of
# the numbers of all ranks, its own number included, as Python ints and in the order of the ranks. All
# other ranks return `None`. Use only point-to-point messages (`send`, `recv`, `isend`, `irecv`) and no
# collective. Each rank except the root sends one message of 8 bytes straight to the root.


# %% role="answer" question="report" points=2
def report(rank, world_size, x, root):
    """On rank root return the list of every rank's number, by rank; elsewhere return None.

    x is an int64 tensor of shape (1,). Your function must not change x.
    """
    ### BEGIN SOLUTION
    if rank != root:
        dist.send(x, dst=root)
        return None
    numbers = []
    for src in range(world_size):
        holder = x.clone()
        if src != root:
            dist.recv(holder, src=src)
        numbers.append(holder.item())
    return numbers
    ### END SOLUTION


# %% role="check" question="report" points=2
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
    messages(
        lambda xs, roots: len(xs) - 1,
        hint="Each other rank must send one message straight to the root.",
    ),
    nbytes(lambda xs, roots: 8 * (len(xs) - 1), hint="Each rank sends its own number, no more."),
    mistakes={
        "The list is on rank 0, but here another rank is the root.": (
            lambda xs, roots: numbers(xs, 0)
        ),
        "Every rank has the list: only the root must return it.": (
            lambda xs, roots: [[x.item() for x in xs]] * len(xs)
        ),
        "Where is the root's own number?": (
            lambda xs, roots: [
                [x.item() for r, x in enumerate(xs) if r != root] if rank == root else None
                for rank, root in enumerate(roots)
            ]
        ),
        "The root's own number stands first: put every number at its rank's place.": (
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

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Write two branches: one for `if rank == root`, and one for all other ranks. In which branch does a rank
# send, in which branch does it receive, and how often?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `dist.recv(holder, src=3)` waits for the message of rank 3. If the root receives from one rank after
# the other, it gets the messages in the right order. It does not matter which rank sent first.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A rank cannot send to itself. In the loop over `src`, the root must use its own number when
# `src == root`. The holder must be int64, as `x` is. Both `x.clone()` and `torch.empty_like(x)` make an
# int64 tensor.
#
# </details>

# %% role="hidden" question="report"
seed = 1
print(
    measure(
        report,
        lambda rank, world_size: (
            torch.randint(1000, (1,), generator=torch.Generator().manual_seed(seed + rank)),
            seed % world_size,
        ),
    )
)

# %% [markdown]
# ## 3. Who lives on my node? (★★★, 20 minutes, 3 points)
#
# The GPUs of a node are numbered from 0. Each rank uses the GPU whose number is its **local rank**: the
# number of lower ranks on the same node. A rank knows only the number of its own node, the int `node`.
# The ranks are spread over the nodes in any way. Return the pair `(local_rank, ranks_on_my_node)`, as
# ints. Call `dist.all_gather(holders, mine)` once, with 8 bytes from each rank. This call fills
# `holders`, a list of `world_size` tensors like `mine`, with the tensors of all ranks.


# %% role="answer" question="local_rank" points=3
def local_rank(rank, world_size, node):
    """Return (local rank, number of ranks on this rank's node), two ints.

    node is an int, the number of the node this rank lives on; other ranks' nodes are not known.
    """
    ### BEGIN SOLUTION
    nodes = [torch.empty(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(nodes, torch.tensor([node]))
    nodes = [other.item() for other in nodes]
    return nodes[:rank].count(node), nodes.count(node)
    ### END SOLUTION


# %% role="check" question="local_rank" points=3
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

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Suppose you had a list with the node of every rank, `[7, 3, 7, 7, 3]`. How would rank 3 find its two
# numbers in this list?
#
# </details>
# <details><summary>Hint 2</summary>
#
# After `dist.all_gather(holders, mine)`, every rank has the tensors of all ranks. For example,
# `holders[3]` is the tensor of rank 3. Each holder must be a separate tensor with the shape and dtype of
# `mine`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Make the holders with `[torch.empty(1, dtype=torch.int64) for _ in range(world_size)]`, and make `mine`
# with `torch.tensor([node])`. Turn the holders into a Python list of ints. A list has the method
# `.count`.
#
# </details>

# %% role="hidden" question="local_rank"
seed = 1
generator = torch.Generator().manual_seed(seed)
drawn = torch.randint(3, (5,), generator=generator).tolist()
apart = torch.randint(2, (), generator=generator).item()
drawn[1:3] = [(drawn[0] + rank * apart) % 3 for rank in (1, 2)]  # all on one node, or on three
print(measure(local_rank, lambda rank, world_size: (drawn[rank],)))
