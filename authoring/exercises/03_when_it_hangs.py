# %% [markdown]
# # Exercises 03: when it hangs
#
# These six broken programs go with [lesson 03](../notebooks/03_when_it_hangs.ipynb). Here you do not
# write a program from scratch: you **fix** one. For each program, first run its cell and the check below
# it without a change. The check runs the program on several worlds and shows you the verdict. If there
# is a wait-for picture, the check shows it, too. Then change the program, run its cell, and run the
# check again.
#
# A fixed program gives the right values on worlds of 1 to 5 ranks. It raises no error, leaves no
# finding, and sends no more than its task allows. Do not remove the communication, and do not add a
# barrier: neither of these is a fix. Each task has folded hints.

# %% role="setup"
import torch
import torch.distributed as dist

from simlib.checks import (
    OneOf,
    Rule,
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    nbytes,
    only,
)

# %% [markdown]
# ## 1. Two by two (★, 5 minutes, 1 point)
#
# Ranks 0 and 1 swap their tensors, ranks 2 and 3 swap theirs, and so on. Each rank returns its partner's
# tensor. If the number of ranks is odd, the last rank has no partner. It returns a copy of its own tensor.
# `x` must not change. Use only `send`, `recv`, `isend` and `irecv`. Each rank that has a partner sends one
# message.


# %% role="answer" question="two_by_two" points=1
def two_by_two(rank, world_size, x):
    """Return the x of the partner: rank 1 for rank 0, 0 for 1, 3 for 2 and so on."""
    partner = rank + 1 if rank % 2 == 0 else rank - 1
    if partner >= world_size:
        return x.clone()
    other = torch.empty_like(x)
    ### BEGIN BROKEN
    dist.recv(other, src=partner)
    dist.send(x, dst=partner)
    ### END BROKEN
    ### BEGIN SOLUTION
    if rank % 2 == 0:
        dist.send(x, dst=partner)
        dist.recv(other, src=partner)
    else:
        dist.recv(other, src=partner)
        dist.send(x, dst=partner)
    ### END SOLUTION
    return other


# %% role="check" question="two_by_two" points=1
def partners(xs):
    return [xs[rank ^ 1] if rank ^ 1 < len(xs) else xs[rank] for rank in range(len(xs))]


verdict = check(
    "two_by_two",
    two_by_two,
    # the x of one rank, in two draws; `xs` holds the x of every rank
    [
        lambda rank, world_size: (torch.arange(3.0) + 10 * rank,),
        lambda rank, world_size: (torch.arange(3.0) + 10 * rank + 7,),
    ],
    partners,
    only("send", "recv"),
    messages(lambda xs: len(xs) // 2 * 2, hint="A swap is one message each way."),
    mistakes={
        "Nothing was swapped: that is each rank's own x.": lambda xs: list(xs),
    },
    as_given="72bb36f6",
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Run the check and look at the picture. Both arrows start at the same line of the program. Which of the
# two ranks of a pair could run its two lines in the opposite order?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Let even ranks send first, with `if rank % 2 == 0:`. Let odd ranks receive first, in the `else:`. You can
# also give one rank of each pair a request, and let it wait for the request at the end.
#
# </details>

# %% role="hidden" question="two_by_two"
seed = 1
print(
    measure(
        two_by_two,
        lambda rank, world_size: (
            torch.randn(4, generator=torch.Generator().manual_seed(seed + rank)),
        ),
    )
)

# %% [markdown]
# ## 2. Edges (★★, 10 minutes, 1 point)
#
# Each rank owns a strip of a long row. It needs the number just beyond each end of its strip: the last
# number of its left neighbour and the first number of its right neighbour. Beyond the two ends of the
# row, this number is 0. The program works only with libraries that send eagerly. Change it so that it
# works with every library. Use only sends and receives, with at most `2 * (world_size - 1)` messages of
# one number each.


# %% role="answer" question="edges" points=1
def edges(rank, world_size, x):
    """Return the numbers next to x's two ends, as one tensor: [before, after].

    x is one-dimensional and float32, and has at least one number. Your function must not change x.
    """
    has_left, has_right = rank > 0, rank < world_size - 1
    before, after = torch.zeros(1), torch.zeros(1)
    ### BEGIN BROKEN
    if has_left:
        dist.send(x[:1], dst=rank - 1)
    if has_right:
        dist.send(x[-1:], dst=rank + 1)
    if has_left:
        dist.recv(before, src=rank - 1)
    if has_right:
        dist.recv(after, src=rank + 1)
    ### END BROKEN
    ### BEGIN SOLUTION
    requests = []
    if has_left:
        requests.append(dist.isend(x[:1], dst=rank - 1))
    if has_right:
        requests.append(dist.isend(x[-1:], dst=rank + 1))
    if has_left:
        dist.recv(before, src=rank - 1)
    if has_right:
        dist.recv(after, src=rank + 1)
    for request in requests:
        request.wait()
    ### END SOLUTION
    return torch.cat([before, after])


# %% role="check" question="edges" points=1
def neighbours(xs):
    row = [torch.zeros(1), *xs, torch.zeros(1)]
    return [torch.cat([row[r][-1:], row[r + 2][:1]]) for r in range(len(xs))]


verdict = check(
    "edges",
    edges,
    [  # two draws: every world is tried with both
        lambda rank, world_size: (torch.arange(1.0, 4.0 + rank) + 10 * rank,),
        lambda rank, world_size: (torch.arange(3.0, 6.0 + rank) + 10 * rank,),
    ],
    neighbours,
    only("send", "recv"),
    messages(lambda xs: 2 * (len(xs) - 1), hint="Each neighbour needs one message from you."),
    nbytes(lambda xs: 8 * (len(xs) - 1), hint="A neighbour needs one number, not the strip."),
    mistakes={
        "The two numbers are in the wrong order: first the one before x, then the one after it.": (
            lambda xs: [pair.flip(0) for pair in neighbours(xs)]
        ),
        "That is all zeros: nothing was received.": lambda xs: [torch.zeros(2)] * len(xs),
        "Each neighbour sent its far end: before x lies the **last** number of the left one, after "
        "it the **first** of the right one.": (
            lambda xs: [
                torch.cat(
                    [
                        xs[r - 1][:1] if r > 0 else torch.zeros(1),
                        xs[r + 1][-1:] if r < len(xs) - 1 else torch.zeros(1),
                    ]
                )
                for r in range(len(xs))
            ]
        ),
        "You closed the row to a ring: use 0 beyond its two ends.": (
            lambda xs: [
                torch.cat([xs[r - 1][-1:], xs[(r + 1) % len(xs)][:1]]) for r in range(len(xs))
            ]
        ),
    },
    as_given="4bf0f97e",
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Which ranks form the ring in the picture, and at which line does each of them wait?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `isend` returns a request, so your rank can go on to the receives. Keep all requests in a list, and
# wait for each of them at the end. If a rank does not wait for a request, the check reports a finding.
#
# </details>

# %% role="hidden" question="edges"
seed = 1
print(
    measure(
        edges,
        lambda rank, world_size: (
            torch.randn(
                1 + (3 * rank + seed) % 5, generator=torch.Generator().manual_seed(seed + rank)
            ),
        ),
    )
)

# %% [markdown]
# ## 3. One batch fewer (★★, 15 minutes, 1 point)
#
# In each step every rank brings one number from its list `batches`, and all ranks get the sum. The lists
# have different lengths, and one list may be empty. A rank knows only its own list. A rank that has no
# number left brings nothing more, but the other ranks still have numbers to add. Return all the sums on
# **every** rank. Use only `all_reduce`. Call it at most once more than there are steps, each time with
# at most 8 bytes.


# %% role="answer" question="one_batch_fewer" points=1
def one_batch_fewer(rank, world_size, batches):
    """Return the sums over all ranks, step by step: as many as the longest list is long.

    batches is a list of floats.
    """
    sums = []
    ### BEGIN BROKEN
    for batch in batches:
        total = torch.tensor([batch])
        dist.all_reduce(total)
        sums.append(total.item())
    ### END BROKEN
    ### BEGIN SOLUTION
    num_steps = torch.tensor([len(batches)])
    dist.all_reduce(num_steps, op=dist.ReduceOp.MAX)
    for step in range(num_steps.item()):
        total = torch.tensor([batches[step] if step < len(batches) else 0.0])
        dist.all_reduce(total)
        sums.append(total.item())
    ### END SOLUTION
    return sums


# %% role="check" question="one_batch_fewer" points=1
def step_sums(lists):
    longest = max(len(batches) for batches in lists)
    return [sum(batches[k] for batches in lists if k < len(batches)) for k in range(longest)]


def some_batches(seed):
    def inputs(rank, world_size):
        draw = torch.Generator().manual_seed(100 * seed + 10 * world_size + rank)
        length = torch.randint(0, 6, (1,), generator=draw).item()
        return (torch.randint(0, 4, (length,), generator=draw).float().tolist(),)

    return inputs


def zeros_left_out(lists):
    """The sums where a rank makes no call for a batch of zero; None where that hangs."""
    steps = range(max(map(len, lists)))
    called = [[k for k in steps if k >= len(one) or one[k]] for one in lists]
    if len(set(map(len, called))) > 1:
        return [None] * len(lists)
    brought = [
        [one[k] if k < len(one) else 0 for k in mine]
        for one, mine in zip(lists, called, strict=True)
    ]
    sums = [sum(meet) for meet in zip(*brought, strict=True)]
    return [[sums[mine.index(k)] if k in mine else 0 for k in steps] for mine in called]


verdict = check(
    "one_batch_fewer",
    one_batch_fewer,
    [some_batches(630), some_batches(7)],  # two draws: every world is tried with both
    lambda lists: [step_sums(lists)] * len(lists),
    only("all_reduce"),
    collectives(lambda lists: 1 + len(step_sums(lists)), hint="One question, then the steps."),
    collective_nbytes(lambda lists: 8),
    mistakes={
        "Those are the steps that every rank has a batch for: the rest is lost.": (
            lambda lists: [step_sums(lists)[: min(map(len, lists))]] * len(lists)
        ),
        "A rank left out a call in the middle: from there on its calls meet the others' next ones, "
        "for calls are matched by count. A batch of zero is a batch, too.": zeros_left_out,
    },
    as_given="3ed12095",
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Which ranks have finished in the picture, and which ranks wait for them? In which step does this
# happen?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The ranks must agree on the number of steps before the loop. Which collective, with which operation,
# gives every rank the length of the longest list?
#
# </details>
# <details><summary>Hint 3</summary>
#
# A rank that has no number left must bring the neutral element of the operation.
#
# </details>

# %% role="hidden" question="one_batch_fewer"
seed = 1


def hidden_batches(rank, world_size):
    draw = torch.Generator().manual_seed(1000 * seed + 10 * world_size + rank)
    fewest = int(rank == 0)  # it may be alone
    length = torch.randint(fewest, 6, (1,), generator=draw).item()
    return (torch.randint(0, 4, (length,), generator=draw).float().tolist(),)


print(measure(one_batch_fewer, hidden_batches))

# %% [markdown]
# ## 4. Silently wrong (★★, 10 minutes, 1 point)
#
# Each rank has a dictionary of gradients. All ranks have the same names and shapes, but each rank filled
# its dictionary in a different order. All gradients have two numbers. So the program raises no error and
# leaves no finding, but it mixes up the gradients. Return the **means over the ranks** of the gradients,
# as a list in alphabetical order of the names. Use only `all_reduce`, and call it at most once for each
# name.


# %% role="answer" question="without_a_word" points=1
def without_a_word(rank, world_size, gradients):
    """Return the means over the ranks of all gradients, in alphabetical order of their names.

    gradients is a dict of name to float32 tensor. Your function must not change the tensors.
    """
    means = {name: gradient.clone() for name, gradient in gradients.items()}
    ### BEGIN BROKEN
    for name in means:
        dist.all_reduce(means[name], op=dist.ReduceOp.AVG)
    ### END BROKEN
    ### BEGIN SOLUTION
    for name in sorted(means):
        dist.all_reduce(means[name], op=dist.ReduceOp.AVG)
    ### END SOLUTION
    return [means[name] for name in sorted(means)]


# %% role="check" question="without_a_word" points=1
NAMES = ["weight", "bias", "scale"]


def filled(rank, world_size):
    names = NAMES[rank % 3 :] + NAMES[: rank % 3]
    return ({name: torch.tensor([len(name) + 10.0 * rank, rank]) for name in names},)


def filled_again(rank, world_size):
    """Other numbers, and which name has the largest differs from rank to rank."""
    names = NAMES[: rank % 3] + NAMES[rank % 3 :][::-1]
    return ({n: torch.tensor([(NAMES.index(n) + rank) % 3 * 5.0, rank + 1]) for n in names},)


def means(dicts):
    return [sum(one[name] for one in dicts) / len(dicts) for name in sorted(NAMES)]


def called_by(order):
    """What comes out where each rank calls in the order of names that `order` gives it."""

    def values(dicts):
        names = [order(one) for one in dicts]
        met = [
            [one[own[k]] for one, own in zip(dicts, names, strict=True)] for k in range(len(NAMES))
        ]
        return [[sum(met[own.index(n)]) / len(dicts) for n in sorted(NAMES)] for own in names]

    return values


verdict = check(
    "without_a_word",
    without_a_word,
    [filled, filled_again],  # two draws: every world is tried with both
    lambda dicts: [means(dicts)] * len(dicts),
    only("all_reduce"),
    collectives(lambda dicts: len(NAMES), hint="A name needs one all_reduce."),
    mistakes={
        "The gradients are mixed up: the k-th calls of two ranks are for different names.": called_by(
            list
        ),
        "The gradients are mixed up: you sort by the values, which differ from rank to rank. "
        "Sort by the names.": called_by(
            lambda one: sorted(one, key=lambda name: one[name][0].item())
        ),
        "Those are the rank's own gradients: nothing came from the others.": (
            lambda dicts: [[one[name] for name in sorted(NAMES)] for one in dicts]
        ),
        "Those are the right means in the order in which each dictionary was filled: return them in "
        "alphabetical order of the names.": (
            lambda dicts: [
                [means(dicts)[sorted(NAMES).index(name)] for name in one] for one in dicts
            ]
        ),
        "Those are sums over the ranks, not means.": (
            lambda dicts: [[len(dicts) * mean for mean in means(dicts)]] * len(dicts)
        ),
    },
    as_given="c6f11f01",
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# A call of rank 0 meets a call of rank 1. How are these calls paired: by the name of the gradient, or by
# the number of the call?
#
# </details>
# <details><summary>Hint 2</summary>
#
# All ranks have the same names. Which order of the names is the same on every rank, even if each rank
# filled its dictionary in a different order?
#
# </details>

# %% role="hidden" question="without_a_word"
seed = 1
NAMES = ["b", "aa", "cccc"]  # the rule about collectives looks at them, too
print(
    measure(
        without_a_word,
        lambda rank, world_size: (
            {
                name: torch.randint(
                    100,
                    (2,),
                    generator=torch.Generator().manual_seed(seed + 10 * rank + len(name)),
                ).float()
                for name in NAMES[:: 1 if rank % 2 else -1]
            },
        ),
    )
)

# %% [markdown]
# ## 5. A rank without examples (★★, 10 minutes, 1 point)
#
# Compute the mean loss over all examples of all ranks. `losses` is a list of floats. The list may be
# empty on some ranks, but not on all. The program works until one rank has no example at all. Read the
# verdict to see which tensor that rank passes. Then find out why. Return the mean as a float on every
# rank. Use one `all_reduce` of at most 16 bytes and nothing else.


# %% role="answer" question="no_examples" points=1
def no_examples(rank, world_size, losses):
    """Return the mean of all losses of all ranks, as a float, on every rank."""
    ### BEGIN BROKEN
    total = torch.tensor([sum(losses), len(losses)])
    ### END BROKEN
    ### BEGIN SOLUTION
    total = torch.tensor([sum(losses), len(losses)], dtype=torch.float64)
    ### END SOLUTION
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


# %% role="check" question="no_examples" points=1
def some_losses(seed):
    def inputs(rank, world_size):
        draw = torch.Generator().manual_seed(100 * seed + 10 * world_size + rank)
        length = torch.randint(0, 4, (1,), generator=draw).item()
        return ((torch.randint(1, 40, (length,), generator=draw) / 8).tolist(),)

    return inputs


def mean_of_sums(cut):
    """What every rank returns where each rank's sum is first cut to a whole number."""
    return lambda lists: [sum(map(cut, lists)) / sum(map(len, lists))] * len(lists)


verdict = check(
    "no_examples",
    no_examples,
    [some_losses(2), some_losses(3)],  # two draws: every world is tried with both
    lambda lists: [sum(map(sum, lists)) / sum(map(len, lists))] * len(lists),
    only("all_reduce"),
    collectives(lambda lists: 1, hint="Sum and count can travel together."),
    collective_nbytes(lambda lists: 16, hint="Add up before you communicate."),
    mistakes={
        "The sums were cut to whole numbers: an integer dtype has no room for a fraction.": (
            lambda lists: OneOf(
                [
                    mean_of_sums(cut)(lists)
                    for cut in (
                        lambda losses: int(sum(losses)),
                        lambda losses: sum(map(int, losses)),
                        lambda losses: round(sum(losses)),
                    )
                ]
            )
        ),
        "That is the mean of the ranks' means: a rank with few examples has too much weight.": (
            lambda lists: (
                [sum(sum(one) / max(1, len(one)) for one in lists) / len(lists)] * len(lists)
            )
        ),
        "A rank without examples was counted as one example: count no example for it.": (
            lambda lists: (
                [sum(map(sum, lists)) / sum(max(1, len(one)) for one in lists)] * len(lists)
            )
        ),
    },
    as_given="a6c6abf2",
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Open a cell of your own. What is `sum([])`, and what is its type? What is the type of `sum([0.5])`?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.tensor` chooses its dtype from the values in the list, and each rank chooses for itself. Do not
# let `torch.tensor` choose.
#
# </details>

# %% role="hidden" question="no_examples"
seed = 1
print(
    measure(
        no_examples,
        lambda rank, world_size: (
            torch.randint(
                200, ((2 * rank + 1) % 5,), generator=torch.Generator().manual_seed(seed + rank)
            )
            .div(2)
            .tolist(),
        ),
    )
)

# %% [markdown]
# ## 6. One buffer for all (★★★, 15 minutes, 1 point)
#
# The ranks form a ring. Each rank doubles its blocks one after the other and sends the doubled blocks to
# the rank on its right. It returns the list of doubled blocks that it receives from the rank on its
# left. In a world of one, a rank returns its own doubled blocks. To save memory, the program has one
# buffer for all blocks. Use only sends and receives, and send one message for each block. `blocks` must
# not change.


# %% role="answer" question="one_buffer" points=1
def one_buffer(rank, world_size, blocks):
    """Return the doubled blocks of the rank on the left, as a list.

    blocks is a list of float32 tensors of the same shape, as many on every rank.
    """
    if world_size == 1:
        return [2 * block for block in blocks]
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    ### BEGIN BROKEN
    buffer = torch.empty_like(blocks[0])
    requests = []
    for block in blocks:
        torch.mul(block, 2, out=buffer)
        requests.append(dist.isend(buffer, dst=right))
    ### END BROKEN
    ### BEGIN SOLUTION
    doubled = [2 * block for block in blocks]
    requests = [dist.isend(block, dst=right) for block in doubled]
    ### END SOLUTION
    received = [torch.empty_like(block) for block in blocks]
    for holder in received:
        dist.recv(holder, src=left)
    for request in requests:
        request.wait()
    return received


# %% role="check" question="one_buffer" points=1
def in_one_piece(run, given):
    (most,) = {block.nbytes for blocks in given[0] for block in blocks}
    for message in run.trace.messages:
        if message.nbytes != most:
            return (
                f"In this world of {run.world_size} the values are right, but rank {message.src} "
                f"sends a message of {message.nbytes} bytes where a block has {most}: one message "
                "for each block, so that the right neighbour has the first before the last is made."
            )


verdict = check(
    "one_buffer",
    one_buffer,
    [  # two draws: every world is tried with both
        lambda rank, world_size: ([torch.full((2,), 10.0 * rank + k) for k in range(3)],),
        lambda rank, world_size: ([torch.full((2,), 10.0 * rank + 4 + k) for k in range(3)],),
    ],
    lambda lists: [[2 * block for block in lists[rank - 1]] for rank in range(len(lists))],
    only("send", "recv"),
    messages(
        lambda lists: sum(map(len, lists)) if len(lists) > 1 else 0,
        hint="A block needs one message.",
    ),
    Rule(in_one_piece),
    nbytes(lambda lists: sum(block.nbytes for blocks in lists for block in blocks)),
    mistakes={
        "Those are the blocks of the left rank as they were: double them.": (
            lambda lists: [list(lists[rank - 1]) for rank in range(len(lists))]
        ),
        "All entries are the same: each block was received into the same tensor, and the last one "
        "is left. A holder for each.": (
            lambda lists: [
                [2 * lists[rank - 1][-1]] * len(lists[rank - 1]) for rank in range(len(lists))
            ]
        ),
        "Those are the rank's own blocks, doubled: nothing came from the left.": (
            lambda lists: [[2 * block for block in blocks] for blocks in lists]
        ),
    },
    as_given="3c0c23c3",
    points=1,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# How many tensors does the program use for its messages? How many messages are under way before the
# first `wait`?
#
# </details>
# <details><summary>Hint 2</summary>
#
# There are two solutions. You can give each message a tensor of its own. Or you can send a block,
# receive a block **and wait for the request** before you write the next block. If all ranks `send`
# first, each rank waits for the next rank, as in program 2 of lesson 03.
#
# </details>

# %% role="hidden" question="one_buffer"
seed = 1
print(
    measure(
        one_buffer,
        lambda rank, world_size: (
            [
                torch.randn(3, generator=torch.Generator().manual_seed(seed + 10 * rank + k))
                for k in range(2)
            ],
        ),
    )
)
