# %% [markdown]
# # Exercises 07: data-parallel training
#
# Four tasks that go with [lesson 07](../notebooks/07_data_parallel_training.ipynb): pieces of a training
# loop that run quietly when they are wrong. A check calls your function on worlds of 1 to 5 ranks, **one**
# included, with uneven shares. It looks at the value on every rank, and at the collectives and their
# bytes.
#
# The outputs stored below the checks are those of a good answer; they change when you run the check.
# Each task has folded hints.

# %% role="setup"
import torch
import torch.distributed as dist

from simlib.checks import check, collective_nbytes, collectives, measure, only

# %% [markdown]
# ## 1. Gradients in one flat buffer (★, 15 minutes, 2 points)
#
# `gradients` is a list of float32 tensors of several shapes, one per parameter, with the same shapes on every
# rank. Replace each, **in place**, by its mean over all ranks. One `all_reduce` for all of them together, with no
# more bytes than they have. By hand this time, without `torch.nn.utils`.


# %% role="answer" question="sync_gradients" points=2
def sync_gradients(rank, world_size, gradients):
    """Replace each tensor of the list gradients by its mean over all ranks, in place; return None."""
    ### BEGIN SOLUTION
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world_size
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
    ### END SOLUTION


# %% role="check" question="sync_gradients" points=2
def of_a_small_net(rank, world_size):
    shapes = (2, 3), (3,), (1, 3), ()
    return ([torch.full(shape, float(3 * rank + place)) for place, shape in enumerate(shapes)],)


def means(by_rank):
    return [[torch.stack(tensors).mean(0) for tensors in zip(*by_rank, strict=True)]] * len(by_rank)


verdict = check(
    "sync_gradients",
    sync_gradients,
    of_a_small_net,
    means,
    only("all_reduce"),
    collectives(lambda by_rank: 1, hint="Join the tensors first, cut the result up after."),
    collective_nbytes(lambda by_rank: sum(g.nbytes for g in by_rank[0])),
    in_place=True,
    mistakes={
        "That is the sum: with mean losses the step would be world_size times too large.": (
            lambda by_rank: [[g * len(by_rank) for g in mean] for mean in means(by_rank)]
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `torch.cat` joins one-dimensional tensors, `tensor.flatten()` makes one. The result is a copy: changes of it do
# not reach the gradients by themselves.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `flat.split([n0, n1, ...])` cuts it up again, `part.view_as(gradient)` gives back the shape, and
# `gradient.copy_(part)` writes into the gradient.
#
# </details>

# %% role="hidden" question="sync_gradients"
seed = 1
print(
    measure(
        sync_gradients,
        lambda rank, world_size: (
            [
                torch.randn(shape, generator=torch.Generator().manual_seed(seed + rank))
                for shape in ((4, 2), (3,))
            ],
        ),
        in_place=True,
    )
)

# %% [markdown]
# ## 2. Nobody counts twice (★★, 15 minutes, 2 points)
#
# `DistributedSampler` has dealt out `n` examples without shuffling: element `i` of a rank's share is example
# `rank + i * world_size`. Where that reaches `n` or more, the sampler began again at the front: padding. `right`
# holds 1 where the model answered an element of the share correctly, else 0. Return the accuracy over the `n` examples, as
# a float, on every rank. One `all_reduce`, at most 8 bytes.


# %% role="answer" question="held_out_accuracy" points=2
def held_out_accuracy(rank, world_size, right, n):
    """Return how large a share of the n examples was answered correctly, as a float.

    right is one-dimensional and float32, of the same length on every rank; it is left as it is.
    """
    ### BEGIN SOLUTION
    example = rank + world_size * torch.arange(len(right))
    count = right[example < n].sum()
    dist.all_reduce(count)
    return count.item() / n
    ### END SOLUTION


# %% role="check" question="held_out_accuracy" points=2
def padded_shares(rank, world_size):
    n = {2: 12, 5: 2}.get(world_size, 11)  # with 12 no padding, with 2 some ranks have nothing else
    answers = torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1])
    share = [(rank + i * world_size) % n for i in range(-(-n // world_size))]
    return answers[share], n


def share_of_right(rights, ns, keep=lambda example, place, n, world_size: example < n):
    """The accuracy when the elements that keep allows are counted."""
    world_size, n = len(rights), ns[0]
    kept = [
        right[place].item()
        for rank, right in enumerate(rights)
        for place in range(len(right))
        if keep(rank + place * world_size, place, n, world_size)
    ]
    return [sum(kept) / n] * world_size


def mean_of_means(rights, ns):
    world_size = len(rights)
    real = [r[: len(range(rank, ns[0], world_size))] for rank, r in enumerate(rights)]
    return [torch.stack([r.mean() for r in real]).mean().item()] * world_size


verdict = check(
    "held_out_accuracy",
    held_out_accuracy,
    padded_shares,
    share_of_right,
    only("all_reduce"),
    collectives(lambda rights, ns: 1, hint="n is known everywhere: only one number is not."),
    collective_nbytes(
        lambda rights, ns: 8,
        hint="A rank has one number to tell, the sum over its own share. (Two counts would do in "
        "float32; in int64 they are 16 bytes.)",
    ),
    mistakes={
        "The padding is counted: some examples are in there twice.": (
            lambda rights, ns: [torch.cat(rights).mean().item()] * len(rights)
        ),
        "The padding is among the right answers, though not in what you divide by.": (
            lambda rights, ns: [torch.cat(rights).sum().item() / ns[0]] * len(rights)
        ),
        "Only whole rounds of the sampler are counted: the last examples before n are missing.": (
            lambda rights, ns: share_of_right(
                rights, ns, lambda example, place, n, world_size: place < n // world_size
            )
        ),
        "Real examples are left out: where world_size divides n, nothing is padded.": (
            lambda rights, ns: share_of_right(
                rights,
                ns,
                lambda example, place, n, world_size: (
                    example % world_size < n % world_size or place < -(-n // world_size) - 1
                ),
            )
        ),
        "A mean of means: the ranks have different numbers of real examples, so add up counts.": (
            mean_of_means
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Which examples does the rank hold? `rank + world_size * torch.arange(len(right))`. Which of them are real?
#
# </details>
# <details><summary>Hint 2</summary>
#
# A tensor can be picked from by a condition: `right[example < n]`. It may pick nothing; its sum is then 0.
#
# </details>

# %% role="hidden" question="held_out_accuracy"
seed = 1
print(
    measure(
        held_out_accuracy,
        lambda rank, world_size: (
            torch.tensor(
                [
                    float((rank + i * world_size) % (7 + seed) % 3 > 0)
                    for i in range(-(-(7 + seed) // world_size))
                ]
            ),
            7 + seed,
        ),
    )
)

# %% [markdown]
# ## 3. Batch norm over all ranks (★★, 25 minutes, 3 points)
#
# Each rank has `x` with shape (its number of examples, channels). The number of examples differs; one rank may have
# none. Return `(mean, variance)` of each channel over the examples of **all** ranks: two float32 tensors. The
# variance divides by the number of examples, as batch norm does. One `all_reduce` of at most
# `2 * channels + 1` float32 numbers.


# %% role="answer" question="batch_statistics" points=3
def batch_statistics(rank, world_size, x):
    """Return (mean, variance) per channel over the examples of all ranks.

    x is float32, of shape (examples of this rank, channels); it is left as it is.
    """
    ### BEGIN SOLUTION
    count = torch.tensor([float(len(x))])
    sums = torch.cat([x.sum(0), (x * x).sum(0), count])
    dist.all_reduce(sums)
    channels = x.shape[1]
    mean = sums[:channels] / sums[-1]
    return mean, sums[channels:-1] / sums[-1] - mean**2
    ### END SOLUTION


# %% role="check" question="batch_statistics" points=3
def uneven_batches(rank, world_size):
    examples = [3, 1, 0, 4, 2][rank]
    return (torch.arange(2.0 * examples).view(examples, 2) * (rank + 1) - rank,)


def statistics(xs, correction=0):
    whole = torch.cat(xs)
    return whole.mean(0), whole.var(0, correction=correction)


def from_sums(xs, count):
    """What comes out where the sums over all ranks are divided by this."""
    whole = torch.cat(xs)
    mean = whole.sum(0) / count
    return mean, (whole**2).sum(0) / count - mean**2


def averaged(xs, of):
    """The mean over the ranks of what each makes of its own examples."""
    return tuple(torch.stack(one).mean(0) for one in zip(*map(of, xs), strict=True))


def mean_of_moments(xs):
    mean, squares = averaged(xs, lambda x: (x.mean(0), (x * x).mean(0)))
    return mean, squares - mean**2


def within_ranks(xs):
    within = sum(((x - x.mean(0)) ** 2).sum(0) for x in xs if len(x))
    return statistics(xs)[0], within / len(torch.cat(xs))


verdict = check(
    "batch_statistics",
    batch_statistics,
    uneven_batches,
    lambda xs: [statistics(xs)] * len(xs),
    only("all_reduce"),
    collectives(
        lambda xs: 1, hint="The variance needs no mean first: sums of x and of x * x are enough."
    ),
    collective_nbytes(
        lambda xs: 4 * (2 * xs[0].shape[1] + 1), hint="The count is one number for all channels."
    ),
    mistakes={
        "The variance divides by n - 1; batch norm divides by n here.": (
            lambda xs: [statistics(xs, correction=1)] * len(xs)
        ),
        "That is the mean of squares: the square of the mean has to be taken off it.": (
            lambda xs: [(statistics(xs)[0], (torch.cat(xs) ** 2).mean(0))] * len(xs)
        ),
        "The ranks' own means and variances are averaged: they have different numbers of examples, "
        "and differ from each other, too.": (
            lambda xs: [averaged(xs, lambda x: statistics([x]))] * len(xs)
        ),
        "The ranks' means of x and x * x are averaged: they have different numbers of examples.": (
            lambda xs: [mean_of_moments(xs)] * len(xs)
        ),
        "The sums are divided by the number of ranks, not by that of the examples.": (
            lambda xs: [from_sums(xs, len(xs))] * len(xs)
        ),
        "The sums are of all ranks, but the count is of one rank only.": (
            lambda xs: [from_sums(xs, len(x)) for x in xs]
        ),
        "The count is guessed from one rank: the others have other numbers of examples.": (
            lambda xs: [from_sums(xs, len(x) * len(xs)) for x in xs]
        ),
        "The ranks' variances are weighed rightly, but how far their means lie apart is lost.": (
            lambda xs: [within_ranks(xs)] * len(xs)
        ),
        "That is the standard deviation, the root of the variance.": (
            lambda xs: [(statistics(xs)[0], statistics(xs)[1].sqrt())] * len(xs)
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# The means of the ranks cannot be averaged: the ranks have different numbers of examples. What can be added?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The variance is the mean of $x^2$ minus the square of the mean. So three sums are enough: of $x$, of $x^2$, and the count.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.cat([x.sum(0), (x * x).sum(0), count])` with `count` a tensor of one float. After the all_reduce, cut
# it up by the number of channels, `x.shape[1]`.
#
# </details>

# %% role="hidden" question="batch_statistics"
seed = 1
print(
    measure(
        batch_statistics,
        lambda rank, world_size: (
            torch.randn(
                2 + seed % 3 if rank == 0 else (3 * rank + seed) % 5,
                3,
                generator=torch.Generator().manual_seed(seed + rank),
            ),
        ),
    )
)

# %% [markdown]
# ## 4. Go on from a checkpoint (★★, 20 minutes, 3 points)
#
# Only rank 0 could read the checkpoint, so it has to tell the others: `weights` and `velocity` (SGD's momentum)
# are right there, and are other numbers elsewhere. `gradient` is each rank's own, for the next step. All ranks go on:
#
# $$v' = 0.9\,v + \bar g, \qquad \theta' = \theta - 0.1\,v'$$
#
# with $\bar g$ the mean gradient. Return `(weights, velocity)` after the step. Use `broadcast` and `all_reduce`, at most
# two collectives in all. The inputs must not change.


# %% role="answer" question="resume" points=3
def resume(rank, world_size, weights, velocity, gradient):
    """Return (weights, velocity) after one more step from rank 0's weights and velocity.

    All three are float32 tensors of the same one-dimensional shape; they are left as they are.
    """
    ### BEGIN SOLUTION
    state = torch.stack([weights, velocity])
    dist.broadcast(state, src=0)
    weights, velocity = state
    mean = gradient.clone()
    dist.all_reduce(mean)
    velocity = 0.9 * velocity + mean / world_size
    return weights - 0.1 * velocity, velocity
    ### END SOLUTION


# %% role="check" question="resume" points=3
def only_rank_0_read_it(rank, world_size):
    weights, velocity = torch.tensor([1.0, 2, 3]), torch.tensor([0.5, -1, 2])
    gradient = torch.tensor([1.0, -2, 0.5]) * (rank + 1)
    return weights - 7 * rank, velocity + 3 * rank, gradient


def after_a_step(velocity, gradients, weights):
    velocity = 0.9 * velocity + torch.stack(gradients).mean(0)
    return weights - 0.1 * velocity, velocity


verdict = check(
    "resume",
    resume,
    only_rank_0_read_it,
    lambda ws, vs, gs: [after_a_step(vs[0], gs, ws[0])] * len(ws),
    only("broadcast", "all_reduce"),
    collectives(lambda ws, vs, gs: 2, hint="Weights and velocity can travel in one tensor."),
    mistakes={
        "The weights go on from rank 0's, but the momentum begins at zero again.": (
            lambda ws, vs, gs: [after_a_step(0 * vs[0], gs, ws[0])] * len(ws)
        ),
        "Each rank goes on with its own velocity: only rank 0's came from the file.": (
            lambda ws, vs, gs: [after_a_step(v, gs, ws[0]) for v in vs]
        ),
        "Each rank steps with its own gradient, so the replicas drift apart.": (
            lambda ws, vs, gs: [after_a_step(vs[0], [g], ws[0]) for g in gs]
        ),
        "All ranks step with rank 0's gradient: the examples of the others are lost.": (
            lambda ws, vs, gs: [after_a_step(vs[0], gs[:1], ws[0])] * len(ws)
        ),
        "The weights step with the old velocity: make the new one first.": (
            lambda ws, vs, gs: [(ws[0] - 0.1 * vs[0], after_a_step(vs[0], gs, ws[0])[1])] * len(ws)
        ),
        "That is the step with the sum of the gradients, not with their mean.": (
            lambda ws, vs, gs: [after_a_step(vs[0], [sum(gs)], ws[0])] * len(ws)
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# What must be equal on all ranks before the step, so that it is equal after it? Three things.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.stack([a, b])` makes one tensor of two, a copy. After the broadcast `a, b = both` takes it apart.
#
# </details>

# %% role="hidden" question="resume"
seed = 1
print(
    measure(
        resume,
        lambda rank, world_size: tuple(
            torch.randn(3, 4, generator=torch.Generator().manual_seed(seed + rank))
        ),
    )
)
