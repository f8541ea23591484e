# %% [markdown]
# # Exercises 01: ranks and clusters
#
# Three tasks that go with [lesson 01](../notebooks/01_ranks_and_clusters.ipynb): what every program on
# many ranks has to settle first. Who does which part? Who tells whom? Who lives where?
#
# Write each function in its cell, run that cell, then run the check below it. A check calls your
# function on worlds of 1 to 5 ranks. It looks at the value on every rank and at everything that was
# sent for it: a right value that cost too much is not right yet. Each task has folded hints.

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
# `n` examples, numbered from 0 on, are shared by all ranks. Every rank knows `n`. Return the pair
# `(start, stop)`: this rank takes examples `start, ..., stop - 1`. Blocks follow each other in the order
# of the ranks, each example belongs to exactly one rank, and sizes differ by at most one: where they
# differ, lower ranks take one more. Send nothing. The check takes `n = 14`, `n = 20`, and `n = 3` for five ranks.


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
        "The higher ranks take one more here; the lower ones should.": (
            lambda ns: blocks(ns, lambda rank: rank * ns[0] // len(ns))
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# 14 examples on 4 ranks: how large are the four blocks? Which number tells how many of them have one
# example more?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `share, more = divmod(n, world_size)`. A rank's block begins after `rank` blocks of `share` examples,
# and after the additional examples of the ranks below it. How many are these?
#
# </details>
# <details><summary>Hint 3</summary>
#
# Each of the first `more` ranks has one additional example. So below rank `rank` there are
# `min(rank, more)` of them.
#
# </details>

# %% role="hidden" question="my_block"
seed = 1
print(measure(my_block, lambda rank, world_size: (1 + seed % 211,)))

# %% [markdown]
# ## 2. A report, wherever it is wanted (★★, 15 minutes, 2 points)
#
# Every rank is given one int64 number, the tensor `x`, and the same `root`. Rank `root` returns the list of
# all numbers as Python ints, in the order of the ranks, its own included. All others return `None`.
# Use point-to-point messages only (`send`, `recv`, `isend`, `irecv`), no collective: one message of 8
# bytes from each rank but the root, sent straight to it.


# %% role="answer" question="report" points=2
def report(rank, world_size, x, root):
    """On rank root return the list of every rank's number, by rank; elsewhere return None.

    x is an int64 tensor of shape (1,); it is left as it is.
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

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Two branches: `if rank == root` and everybody else. Which of them sends, which receives, how often?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `dist.recv(holder, src=3)` waits for the message of rank 3. If the root asks the ranks one by one, the
# order takes care of itself, whoever was first.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A rank cannot send to itself: in the loop over `src`, the root takes its own number where
# `src == root`. The holder must be int64, as `x` is; `x.clone()` or `torch.empty_like(x)` is.
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
# A node's GPUs are numbered from 0 on, and each rank takes the one of its **local rank**: how many ranks with a
# lower number live on the same node. Every rank is told the number of its own node only, the int
# `node`; ranks are spread in any way. Return the pair `(local_rank, ranks_on_my_node)`, as ints. Call
# `dist.all_gather(holders, mine)` once, with 8 bytes from each rank: it fills `holders`, a list of
# `world_size` tensors like `mine`, with every rank's.


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
# Suppose you had the list of all nodes by rank, `[7, 3, 7, 7, 3]`. How would rank 3 find its two
# numbers in it?
#
# </details>
# <details><summary>Hint 2</summary>
#
# After `dist.all_gather(holders, mine)` every rank has the tensors of all, `holders[3]` is that of rank 3.
# Each holder is a tensor of its own, of the shape and dtype of `mine`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Holders: `[torch.empty(1, dtype=torch.int64) for _ in range(world_size)]`; `mine` is
# `torch.tensor([node])`. Make a Python list of ints of them: it has `.count`.
#
# </details>

# %% role="hidden" question="local_rank"
seed = 1
generator = torch.Generator().manual_seed(seed)
drawn = torch.randint(3, (5,), generator=generator).tolist()
apart = torch.randint(2, (), generator=generator).item()
drawn[1:3] = [(drawn[0] + rank * apart) % 3 for rank in (1, 2)]  # all on one node, or on three
print(measure(local_rank, lambda rank, world_size: (drawn[rank],)))
