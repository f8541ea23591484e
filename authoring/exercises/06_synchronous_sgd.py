# %% [markdown]
# # Exercises 06: synchronous SGD
#
# These four tasks go with [lesson 06](../notebooks/06_synchronous_sgd.ipynb). In all of them, many ranks
# must do the work of one process that has all the examples, and the ranks must stay equal. A check calls
# your function on worlds of 1 to 5 ranks, and in task 4 on worlds of 1 to 8 ranks. It looks at the value
# on every rank, at every collective and at the bytes of each collective. Gradients and weights are given
# as one flat float32 vector.
#
# Each task has folded hints. Use `cost_gradient` in task 3.

# %% role="setup"
import builtins
import functools
import zlib

import torch
import torch.distributed as dist

from simlib.checks import OneOf, Rule, check, collective_nbytes, collectives, measure, only


def cost_gradient(theta, rows, targets):
    """Gradient, at the weights theta, of the mean squared error of rows @ theta."""
    return 2 * rows.T @ (rows @ theta - targets) / len(rows)


def mean_of(tensors):
    return sum(tensors) / len(tensors)


def on_all(value, by_rank):
    """The same value for every rank; the checks use it."""
    return [value] * len(by_rank)


def asks_the_others(run, given):
    """A sentence where nobody sends, else None."""
    if run.world_size == 1 or run.trace.ops:
        return None
    return "No rank sends anything: what it knows of the others would be from a table."


# %% [markdown]
# ## 1. Uneven shards (★★, 15 minutes, 2 points)
#
# A rank is given the gradient of the **mean** loss over its own examples, and the number of its
# examples. This number differs from rank to rank. It may be 0. Then the gradient is all nan, because
# PyTorch's mean of no numbers is nan. Every rank returns the gradient of the mean loss over all examples
# of all ranks. Use one `all_reduce`. Its tensor may be at most one number longer than `gradient`.
# `gradient` must not change.


# %% role="answer" question="uneven_shards" points=2
def uneven_shards(rank, world_size, gradient, num_examples):
    """Return the gradient of the mean loss over the examples of all ranks.

    gradient is that of the mean loss over this rank's num_examples examples, one-dimensional and
    float32, of the same length on every rank; it is nan where num_examples is 0.
    """
    ### BEGIN SOLUTION
    buffer = torch.zeros(len(gradient) + 1)
    if num_examples:
        buffer[:-1] = gradient * num_examples
        buffer[-1] = num_examples
    dist.all_reduce(buffer)
    return buffer[:-1] / buffer[-1]
    ### END SOLUTION


# %% role="check" question="uneven_shards" points=2
def shards_drawn(seed, length=3):
    """Inputs: every world draws its own counts and gradients; from 3 ranks on one has nothing."""

    def gradient_and_count(rank, world_size):
        random = torch.Generator().manual_seed(100 * seed + world_size)
        counts = (torch.randperm(20, generator=random)[:world_size] + 1).tolist()
        if world_size > 2:
            counts[torch.randint(world_size, (), generator=random)] = 0
        gradient = torch.randn(world_size, length, generator=random)[rank].clone()
        count = counts[rank] if world_size > 1 else 1
        return (gradient if count else gradient * torch.nan), count

    return gradient_and_count


def weighted_sum(gradients, counts):
    return sum(g * n for g, n in zip(gradients, counts, strict=True) if n)


def plain_sum(gradients, counts):
    return weighted_sum(gradients, [min(n, 1) for n in counts])


verdict = check(
    "uneven_shards",
    uneven_shards,
    [shards_drawn(seed=61), shards_drawn(seed=62)],
    # what each rank must return; `gs` holds the gradient of every rank, `ns` the numbers
    lambda gs, ns: on_all(weighted_sum(gs, ns) / sum(ns), gs),
    only("all_reduce"),
    Rule(asks_the_others, before_values=True),
    collectives(lambda gs, ns: 1, hint="The count can travel with the gradient."),
    collective_nbytes(lambda gs, ns: gs[0].nbytes + 4, hint="A sum needs no room for each rank."),
    mistakes={
        "That is the plain mean of the ranks' gradients: it gives every rank the same weight.": (
            lambda gs, ns: on_all(plain_sum(gs, ns) / len(gs), gs)
        ),
        "That is the sum of the ranks' mean gradients.": (
            lambda gs, ns: on_all(plain_sum(gs, ns), gs)
        ),
        "The weights are right, but nothing divides by the number of all examples.": (
            lambda gs, ns: on_all(weighted_sum(gs, ns), gs)
        ),
        "The weights are right, but you divide by the number of ranks, not of examples.": (
            lambda gs, ns: on_all(weighted_sum(gs, ns) / len(gs), gs)
        ),
        "You divide by the number of all examples, but no gradient was multiplied by the number of its "
        "own: a mean has to become a sum first.": (
            lambda gs, ns: on_all(plain_sum(gs, ns) / sum(ns), gs)
        ),
        "Each rank divides as if all ranks had as many examples as it, and 0 where it has none.": (
            lambda gs, ns: [weighted_sum(gs, ns) / (len(gs) * n) for n in ns]
        ),
        "The weights are right, but you divide by a number of examples that this run does not have: "
        "it has to come from the ranks, not out of a table. Every world draws its own.": (
            lambda gs, ns: OneOf([on_all(weighted_sum(gs, ns) / n, gs) for n in range(1, 200)])
        ),
        "Here it was brought by a rank without examples, whose gradient is nan, and nan times 0 "
        "is nan again.": lambda gs, ns: on_all(gs[0] * torch.nan, gs),
        "All is 0: one nan has spoilt the sum, and only then was made 0. Replace it before the "
        "all_reduce.": lambda gs, ns: on_all(torch.zeros_like(gs[0]), gs),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Turn the mean back into a sum over examples. Which two values must you multiply? You may add up the
# sums of all ranks.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Put `num_examples` at the end of the vector. After the all_reduce, the last number of the vector is the
# number of all examples.
#
# </details>
# <details><summary>Hint 3</summary>
#
# nan times 0 is nan, and one nan turns the sum on every rank into nan. So a rank without examples must
# bring zeros.
#
# </details>

# %% role="hidden" question="uneven_shards"
seed = 1
print(measure(uneven_shards, shards_drawn(seed, length=4)))

# %% [markdown]
# ## 2. A clip in the wrong place (★, 10 minutes, 2 points)
#
# Fix this program. It should return the mean of all gradients on every rank. If the mean is longer than
# `most`, the program must shorten it to the length `most`. A shorter mean must not change. But this
# program clips each rank's gradient before it adds up the gradients. All ranks have the same number of
# examples. One `all_reduce`, no larger than the gradient, is enough. `gradient` must not change.


# %% role="answer" question="clipped_mean" points=2
def clipped_mean(rank, world_size, gradient, most):
    """Return the mean gradient of all ranks, cut to a length of at most most.

    gradient is one-dimensional and float32, of the same length on every rank; most is a float
    above 0.
    """
    ### BEGIN BROKEN
    clipped = gradient * most / max(most, gradient.norm().item())
    dist.all_reduce(clipped)
    return clipped / world_size
    ### END BROKEN
    ### BEGIN SOLUTION
    mean = gradient / world_size
    dist.all_reduce(mean)
    return mean * most / max(most, mean.norm().item())
    ### END SOLUTION


# %% role="check" question="clipped_mean" points=2
# the mean of the first three is short, that of the first four is 0
GRADIENTS = [[3.0, 4.0], [6.0, -2.0], [-9.0, -1.0], [0.0, -1.0], [10.0, 5.0]]


def cut(gradient, most, length=None):
    return gradient * most / max(most, gradient.norm() if length is None else length)


verdict = check(
    "clipped_mean",
    clipped_mean,
    [
        lambda rank, world_size: (torch.tensor(GRADIENTS[rank]), 2.0),
        lambda rank, world_size: (torch.tensor(GRADIENTS[rank][::-1]) / 4, 0.75),
    ],
    lambda gs, most: on_all(cut(mean_of(gs), most[0]), gs),
    only("all_reduce"),
    # on one rank every length is the right one: who sends a wrong one is told so on two
    collectives(
        lambda gs, most: 1 if len(gs) > 1 else 2,
        hint="After it every rank holds the whole mean gradient, and can measure its length alone.",
    ),
    collective_nbytes(
        lambda gs, most: gs[0].nbytes + 4 * (len(gs) == 1), hint="The length need not travel."
    ),
    mistakes={
        "Each rank's gradient is clipped before the mean is taken: one rank is cut more than "
        "another, and the direction changes.": (
            lambda gs, most: on_all(mean_of([cut(g, most[0]) for g in gs]), gs)
        ),
        "The mean is right, but it is longer than most, and not cut. (With min instead of max it is divided by most and multiplied by it again.)": (
            lambda gs, most: on_all(mean_of(gs), gs)
        ),
        "That is the sum, clipped: divide before you measure.": (
            lambda gs, most: on_all(cut(sum(gs), most[0]), gs)
        ),
        "You clip the sum, and divide what is left of it. The sum is longer than the mean, so too "
        "much is cut: divide first, then measure.": (
            lambda gs, most: on_all(cut(sum(gs), most[0]) / len(gs), gs)
        ),
        "Each rank cuts the mean by the length of its own gradient, and so the ranks return "
        "different values. Measure the mean: all ranks have the same.": (
            lambda gs, most: [cut(mean_of(gs), most[0], g.norm()) for g in gs]
        ),
        "You measure the mean of the lengths; the length of the mean is smaller.": (
            lambda gs, most: on_all(cut(mean_of(gs), most[0], mean_of([g.norm() for g in gs])), gs)
        ),
        "You measure all gradients laid end to end. That is right where every rank holds another "
        "part of one gradient; here each holds a gradient of everything.": (
            lambda gs, most: on_all(cut(mean_of(gs), most[0], torch.cat(gs).norm()), gs)
        ),
        "The mean is 0 here, so its length is 0, too, and 0 / 0 is nan. Divide by the length only where "
        "it is above most.": (
            lambda gs, most: [g * torch.nan if not mean_of(gs).any() else None for g in gs]
        ),
        "The mean is 0 here, and so is its length: nothing is to be cut, and nothing can be divided by "
        "it.": "ZeroDivisionError",
        "You make a gradient longer whose norm was small enough: scale it down, but never up.": (
            lambda gs, most: on_all(mean_of(gs) * most[0] / mean_of(gs).norm(), gs)
        ),
        "Every number is cut for itself: that changes the direction. Cut the length.": (
            lambda gs, most: on_all(mean_of(gs).clamp(-most[0], most[0]), gs)
        ),
    },
    as_given="4beaf873",
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Which vector would one process with all examples clip?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Compute the mean first, then its length. Then shorten the mean. Every rank does the last two steps for
# itself. All ranks have the same bits, so they get the same result.
#
# </details>

# %% role="hidden" question="clipped_mean"
seed = 1
print(
    measure(
        clipped_mean,
        lambda rank, world_size: (
            torch.randn(5, generator=torch.Generator().manual_seed(seed + rank)),
            0.5 + seed % 3,
        ),
    )
)

# %% [markdown]
# ## 3. A training kept in step (★★★, 30 minutes, 3 points)
#
# Train with momentum. In each step, compute $v \leftarrow m v + g$ and then
# $\theta \leftarrow \theta - \eta v$. Here $g$ is the gradient of the cost over the examples of **all**
# ranks, and $v = 0$ at first. All ranks have equally many examples. Each rank is given another `theta`,
# but only the `theta` of rank 0 counts. Return `(theta, v)`. Use only `broadcast` and `all_reduce`, with
# `steps + 1` calls in all. The tensor of a call may not be larger than `theta`. The inputs must not
# change.


# %% role="answer" question="kept_in_step" points=3
def kept_in_step(rank, world_size, theta, rows, targets, steps, lr, momentum):
    """Return (theta, v) after `steps` steps.

    The result is the same as that of one process with the rows of all ranks. len(theta) is the number
    of columns of `rows`. The gradient over this rank's examples is cost_gradient(theta, rows, targets).
    """
    ### BEGIN SOLUTION
    theta = theta.clone()
    dist.broadcast(theta, src=0)
    v = torch.zeros_like(theta)
    for _ in range(steps):
        gradient = cost_gradient(theta, rows, targets)
        dist.all_reduce(gradient)
        v = momentum * v + gradient / world_size
        theta = theta - lr * v
    return theta, v
    ### END SOLUTION


# %% role="check" question="kept_in_step" points=3
STEPS, LR, MOMENTUM = 4, 0.1, 0.5


def own_examples(seed):
    def of_a_rank(rank, world_size):
        random = torch.Generator().manual_seed(seed + rank)
        shapes = (3,), (6, 3), (6,)
        theta, rows, targets = (torch.randn(*shape, generator=random) for shape in shapes)
        return theta, rows, targets, STEPS, LR, MOMENTUM

    return of_a_rank


def by_one_process(theta, rows, targets, scale=1, keeps=None, theta_first=False):
    v = torch.zeros_like(theta)
    for _ in range(STEPS):
        before = v
        v = (MOMENTUM if keeps is None else keeps) * v + scale * cost_gradient(theta, rows, targets)
        theta = theta - LR * (before if theta_first else v)
    return theta, v


def in_step(thetas, rows, targets, *rest, start=None, **how):
    start = thetas[0] if start is None else start
    return on_all(by_one_process(start, torch.cat(rows), torch.cat(targets), **how), thetas)


def without_momentum(*given):
    """Plain SGD, with the last gradient or nothing in the place of v."""
    theta, last = in_step(*given, keeps=0)[0]
    return OneOf([on_all((theta, v), given[0]) for v in (last, torch.zeros_like(theta))])


def averaged_at_the_end(thetas, rows, targets, *rest):
    """What comes out where ranks train alone, from rank 0's theta, and then take a mean."""
    ends = alone([thetas[0]] * len(thetas), rows, targets)
    theta, v = (mean_of(list(one)) for one in zip(*ends, strict=True))
    return OneOf([on_all((theta, v), thetas), [(theta, own) for _, own in ends]])


def rate_in_v(*given):
    return [(theta, LR * v) for theta, v in in_step(*given)]


def alone(thetas, rows, targets, *rest):
    return [by_one_process(*mine) for mine in zip(thetas, rows, targets, strict=True)]


def apart(thetas, rows, targets, averaged="gradients", start=None):
    """What ranks come to that average one thing only, and start each from its own theta."""
    thetas, v = list(start or thetas), [0.0] * len(thetas)
    for _ in range(STEPS):
        gs = [cost_gradient(*mine) for mine in zip(thetas, rows, targets, strict=True)]
        gs = [mean_of(gs)] * len(gs) if averaged == "gradients" else gs
        v = [MOMENTUM * old + g for old, g in zip(v, gs, strict=True)]
        thetas = [theta - LR * mine for theta, mine in zip(thetas, v, strict=True)]
        thetas = [mean_of(thetas)] * len(gs) if averaged == "weights" else thetas
    return list(zip(thetas, v, strict=True))


verdict = check(
    "kept_in_step",
    kept_in_step,
    [own_examples(60), own_examples(600)],
    in_step,
    only("broadcast", "all_reduce"),
    collectives(
        lambda *given: STEPS + 1,
        hint="Make one call before the first step, then one call in each step.",
    ),
    collective_nbytes(lambda thetas, *rest: thetas[0].nbytes, hint="The gradient alone is enough."),
    mistakes={
        "The gradients are averaged, but every rank began with its own theta.": (
            lambda thetas, rows, targets, *rest: apart(thetas, rows, targets)
        ),
        "Every rank has trained alone, from its own theta.": alone,
        "Every rank has trained alone, from the theta of rank 0.": (
            lambda thetas, rows, targets, *rest: alone([thetas[0]] * len(rows), rows, targets)
        ),
        "The gradients are summed, not averaged: each step is world_size times too large.": (
            lambda *given: in_step(*given, scale=len(given[0]))
        ),
        "That is plain SGD: you must also keep the momentum in v.": without_momentum,
        "theta takes its step before v has the new gradient: update v first, then theta.": (
            lambda *given: in_step(*given, theta_first=True)
        ),
        "The ranks train alone, and only their results are averaged. Average the gradients in "
        "each step.": averaged_at_the_end,
        "The training starts from the mean of all theta: start from the theta of rank 0.": (
            lambda *given: in_step(*given, start=mean_of(given[0]))
        ),
        "theta is right, but v is too small by the factor lr: the rate belongs in the step of "
        "theta, not in v.": rate_in_v,
        "theta is right, but v is not: every rank has fed its v with its own gradient. Average the "
        "gradients instead of the weights.": (
            lambda thetas, rows, targets, *rest: apart(
                thetas, rows, targets, "weights", [thetas[0]] * len(thetas)
            )
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# The proof in the lesson has two parts. The ranks are equal at the start, and they use equal bits in
# every step. Which calls make each part true?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `dist.broadcast` writes into its tensor, so give it a clone of `theta`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In each step of the loop, compute the gradient, call all_reduce, and divide. Only then change `v` and
# `theta`.
#
# </details>

# %% role="hidden" question="kept_in_step"
seed = 1
STEPS, LR, MOMENTUM = 2 + seed % 3, 0.05, 0.9  # the rules look at them, too


def hidden_examples(rank, world_size):
    random = torch.Generator().manual_seed(100 * seed + rank)
    shapes = (2,), (5, 2), (5,)
    theta, rows, targets = (torch.randn(*shape, generator=random) for shape in shapes)
    return theta, rows, targets, STEPS, LR, MOMENTUM


print(measure(kept_in_step, hidden_examples))

# %% [markdown]
# ## 4. Who is out of step? (★★, 20 minutes, 3 points)
#
# Some ranks have weights that differ from the weights of rank 0 in at least one bit. Return the list of
# these ranks, in order, on every rank. You may use one `all_gather`, and no rank may bring more than 8
# bytes to it. The weights of a real model are far too many to send. You must also find twins like the
# twins in the lesson. `theta` must not change. You may use `zlib`.


# %% role="answer" question="out_of_step" points=3
def out_of_step(rank, world_size, theta):
    """Return the sorted list of ranks whose theta differs from that of rank 0.

    theta is one-dimensional and float32, of the same length on every rank.
    """
    ### BEGIN SOLUTION
    fingerprint = torch.tensor([zlib.crc32(theta.numpy().tobytes())])
    found = [torch.empty_like(fingerprint) for _ in range(world_size)]
    dist.all_gather(found, fingerprint)
    return [other for other in range(world_size) if found[other] != found[0]]
    ### END SOLUTION


# %% role="check" question="out_of_step" points=3
WAYS = ["same", "moved", "last bit", "same", "moved in pairs", "minus 0", "close checksum"]


@functools.cache
def twin_checksums(seed):
    """Two vectors whose crc32 are one number when rounded to float32: some 10,000 are drawn."""
    random, seen = torch.Generator().manual_seed(seed), {}
    while True:
        a, b, c = torch.randn(3, generator=random).tolist()
        theta = torch.tensor([a, b, c, 0.0, b, a])
        rounded = torch.tensor(float(zlib.crc32(theta.numpy().tobytes()))).item()
        if rounded in seen:
            return seen[rounded], theta
        seen[rounded] = theta


def nearly_equal(seed):
    """Inputs: a world of n ranks has the first n - 1 ways, on ranks that it draws."""

    def theta_of(rank, world_size):
        first, other = twin_checksums(seed)
        random = torch.Generator().manual_seed(100 * seed + world_size)
        order = torch.randperm(world_size - 1, generator=random).tolist()
        theta, way = first.clone(), "same" if rank == 0 else WAYS[order[rank - 1]]
        if way == "moved":
            theta = theta[[2, 1, 0, 3, 4, 5]]  # the same numbers in other places
        if way == "moved in pairs":
            theta = theta[[1, 0, 2, 3, 5, 4]]  # their sum weighted by places stays the same
        if way == "last bit":
            theta[2] = torch.nextafter(theta[2], torch.tensor(9.0))
        if way == "minus 0":
            theta[3] = -0.0  # equal to 0.0, but of other bits
        return (other.clone() if way == "close checksum" else theta,)

    return theta_of


def started_apart(answer):
    """The answer as on machines of two ranks, each started by itself: each has salts of its own."""

    @functools.wraps(answer)
    def on_this_machine(rank, world_size, *given):
        usual = builtins.hash
        builtins.hash = lambda x: usual((rank // 2, x) if isinstance(x, (bytes, str)) else x)
        try:
            return answer(rank, world_size, *given)
        finally:
            builtins.hash = usual

    return on_this_machine


def told_apart_by(*fingerprints):
    """What ranks return that compare one of these instead of all bits."""

    def by_rank(thetas):
        seen = [[fingerprint(theta) for theta in thetas] for fingerprint in fingerprints]
        return OneOf([on_all([r for r, x in enumerate(xs) if x != xs[0]], xs) for xs in seen])

    return by_rank


def unlike(thetas, whom):
    bits = [theta.numpy().tobytes() for theta in thetas]
    return [r for r in range(len(bits)) if bits[r] != bits[whom(r)]]


def all_out_of_step(thetas):
    return unlike(thetas, lambda r: 0)


verdict = check(
    "out_of_step",
    started_apart(out_of_step),
    [nearly_equal(seed=70), nearly_equal(seed=73)],
    lambda thetas: on_all(all_out_of_step(thetas), thetas),
    only("all_gather"),
    Rule(asks_the_others, before_values=True),
    collectives(lambda thetas: 1),
    collective_nbytes(lambda thetas: 8, hint="Send a fingerprint of the weights."),
    worlds=range(1, len(WAYS) + 2),  # each has one way more
    mistakes={
        "A rank is missed whose weights are those of rank 0 in another order: a sum or a length does "
        "not see who stands where.": told_apart_by(
            lambda theta: theta.double().sum().item(),
            lambda theta: sorted(theta.tolist()),
        ),
        "A rank is missed whose numbers are moved so that even their sum weighted by places stays "
        "the same: many vectors share one weighted sum, and zlib.adler32 is one, too, of bytes. Take "
        "crc32.": told_apart_by(
            lambda theta: round(sum(k * x for k, x in enumerate(theta.tolist())), 9),
            lambda theta: zlib.adler32(theta.numpy().tobytes()),
        ),
        "A rank is missed that differs in the last bit of one number: compare bits.": (
            told_apart_by(lambda theta: [f"{x:.4f}" for x in theta.tolist()])
        ),
        "A rank is missed that has -0.0 where rank 0 has 0.0: they are equal as numbers, but their "
        "bits are not. Look at the bytes.": told_apart_by(lambda theta: theta.tolist()),
        "A rank is missed whose checksum is near that of rank 0: a float32 keeps 24 bits of a whole "
        "number, and a checksum has 32. Send it as an int64.": told_apart_by(
            lambda theta: torch.tensor(float(zlib.crc32(theta.numpy().tobytes()))).item()
        ),
        "Ranks that hold the weights of rank 0 are named, but rank 1 is not when it does: `hash` of "
        "bytes or text is salted, with new salt in each program that is started, and here every two ranks "
        "were started apart from the others. Take a checksum without a salt.": (
            lambda thetas: on_all(
                [r for r in range(len(thetas)) if r > 1 or r in all_out_of_step(thetas)], thetas
            )
        ),
        "Those are the ranks that agree with rank 0.": (
            lambda thetas: on_all(
                [r for r in range(len(thetas)) if r not in all_out_of_step(thetas)], thetas
            )
        ),
        "Each is compared with its left neighbour, and one that agrees with rank 0 is named.": (
            lambda thetas: on_all(unlike(thetas, lambda r: max(0, r - 1)), thetas)
        ),
        "Compare with rank 0, not with yourself: all ranks return the same list.": (
            lambda thetas: [unlike(thetas, lambda r, me=me: me) for me in range(len(thetas))]
        ),
        "All ranks but rank 0 are named, though some hold the same numbers: a fingerprint must "
        "depend on the numbers alone.": lambda thetas: on_all(list(range(1, len(thetas))), thetas),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# You need a number that depends on all the bits of `theta` and on their order. Two different `theta`
# must almost never give the same number. Such a number is called a **checksum**.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `zlib.crc32(data)` computes a checksum from bytes. The checksum is below $2^{32}$, so it may be too
# large for an int32. `theta.numpy().tobytes()` gives you the bytes.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.tensor([number])` is an int64 tensor of 8 bytes. A float32 would keep only 24 of the 32 bits.
# `all_gather` needs a holder for each rank. Do not use Python's own `hash`. For the same bytes, `hash`
# gives a different number in each program that you start.
#
# </details>

# %% role="hidden" question="out_of_step"
seed = 1
print(measure(started_apart(out_of_step), nearly_equal(seed), worlds=range(1, len(WAYS) + 2)))
