# %% [markdown]
# # Exercises 07: data-parallel training
#
# Tasks 1 to 4 go with [lesson 07](../notebooks/07_data_parallel_training.ipynb), and tasks 5 to 7 with
# [its second part](../notebooks/07_streams_of_data.ipynb). Each task is a piece of a training loop. If
# you write such a piece wrongly, the loop often runs without an error. A check calls your function on worlds
# of 1 to 5 ranks, **one** included, with uneven shares. It looks at the value on every rank, at the
# collectives and at their bytes.
#
# Each task has folded hints.

# %% role="setup"
import copy
import functools
import math
import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import simlib
from simlib.checks import (
    OneOf,
    Rule,
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    only,
    somebody_sends,
)

DISK = tempfile.TemporaryDirectory()  # here lie the checkpoints of task 4

# %% [markdown]
# ## 1. Gradients in one flat buffer (★, 15 minutes, 2 points)
#
# `gradients` is a list of float32 tensors, one per parameter. The tensors have several shapes, and the
# shapes are the same on every rank. Replace each tensor, **in place**, by its mean over all ranks. Use
# one `all_reduce` for all tensors together, with no more bytes than the tensors have.


# %% role="answer" question="sync_gradients" points=2
def sync_gradients(rank, world_size, gradients):
    """Replace each tensor of the list gradients by its mean over all ranks, in place."""
    ### BEGIN SOLUTION
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world_size
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
    ### END SOLUTION


# %% role="check" question="sync_gradients" points=2
def of_a_small_net(seed, shapes=((2, 3), (3,), (1, 3), ())):
    """Inputs: numbers that all differ, with more digits than bfloat16 has."""

    def gradients_of(rank, world_size):
        draw = torch.Generator().manual_seed(100 * seed + rank)
        return ([torch.randn(shape, generator=draw) for shape in shapes],)

    return gradients_of


def means(by_rank):
    return [[torch.stack(tensors).mean(0) for tensors in zip(*by_rank, strict=True)]] * len(by_rank)


def made(of_one, by_rank):
    """The lists of gradients in which each tensor is of_one(those of all ranks, stacked)."""
    return [[of_one(torch.stack(ts)) for ts in zip(*by_rank, strict=True)]] * len(by_rank)


verdict = check(
    "sync_gradients",
    sync_gradients,
    [of_a_small_net(71), of_a_small_net(72)],
    means,
    only("all_reduce"),
    collectives(lambda by_rank: 1, hint="Join the tensors first, cut the result up after."),
    collective_nbytes(lambda by_rank: sum(g.nbytes for g in by_rank[0])),
    in_place=True,
    mistakes={
        "That is the sum: with mean losses the step would be world_size times too large.": (
            lambda by_rank: made(lambda gs: gs.sum(0), by_rank)
        ),
        "Divided twice by world_size: ReduceOp.AVG, for one, has divided already.": (
            lambda by_rank: made(lambda gs: gs.mean(0) / len(gs), by_rank)
        ),
        "The means of a tensor come back in the opposite order.": (
            lambda by_rank: made(lambda gs: gs.mean(0).flatten().flip(0).view_as(gs[0]), by_rank)
        ),
        "The largest of the ranks' numbers is taken (MAX), where the mean is asked for.": (
            lambda by_rank: OneOf(
                [made(lambda gs, n=n: gs.amax(0) / n, by_rank) for n in {1, len(by_rank)}]
            )
        ),
        "The numbers were rounded to 16 bits on the way: add them up in float32.": (
            lambda by_rank: OneOf(
                [
                    made(lambda gs, kind=kind: gs.to(kind).float().mean(0), by_rank)
                    for kind in (torch.bfloat16, torch.float16)
                ]
            )
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `torch.cat` joins one-dimensional tensors, and `tensor.flatten()` makes a tensor one-dimensional. The
# result of `torch.cat` is a copy. If you change the copy, the gradients do not change.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `flat.split([n0, n1, ...])` cuts the flat tensor into parts again. `part.view_as(gradient)` gives the
# part its old shape, and `gradient.copy_(part)` writes the part into the gradient.
#
# </details>

# %% role="hidden" question="sync_gradients"
seed = 1
print(measure(sync_gradients, of_a_small_net(seed, ((4, 2), (3,))), in_place=True))

# %% [markdown]
# ## 2. Nobody counts twice (★★, 15 minutes, 2 points)
#
# `DistributedSampler` has dealt out `n` examples without shuffling. Element `i` of a rank's share is
# example `rank + i * world_size`. If that number is `n` or more, the element is padding, because the
# sampler began again at the front. `right` contains 1 if the model answered an element of the share
# correctly, and 0 if not. Return the accuracy over the `n` examples, as a float, on every rank. Use one
# `all_reduce` of at most 8 bytes.


# %% role="answer" question="held_out_accuracy" points=2
def held_out_accuracy(rank, world_size, right, n):
    """Return the accuracy over the n examples, as a float.

    right is one-dimensional and float32, of the same length on every rank. Your function must not
    change right.
    """
    ### BEGIN SOLUTION
    example = rank + world_size * torch.arange(len(right))
    count = right[example < n].sum()
    dist.all_reduce(count)
    return count.item() / n
    ### END SOLUTION


# %% role="check" question="held_out_accuracy" points=2
def dealt_out(answers, rank, world_size, n):
    return answers[[(rank + i * world_size) % n for i in range(-(-n // world_size))]], n


def padded_shares(rank, world_size):
    # with 12 no padding, with 9 three ones in it, with 2 some ranks have nothing else
    n = {2: 12, 4: 9, 5: 2}.get(world_size, 11)
    answers = torch.tensor([1.0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 1])
    return dealt_out(answers, rank, world_size, n)


def one_example_too_many(seed):
    """Inputs: all ranks but rank 0 have padding, of examples that were answered correctly."""

    def shares(rank, world_size):
        n = world_size * (2 + seed % 6) + 1
        draw = torch.Generator().manual_seed(100 * seed + world_size)
        answers = torch.randint(2, (n,), generator=draw).float()
        if world_size > 1:  # the last rank answers nothing correctly
            answers[:world_size], answers[world_size - 1 :: world_size] = 1, 0
        return dealt_out(answers, rank, world_size, n)

    return shares


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


def in_a_fixed_world(rights, ns):
    """What comes out where rank r is taken to hold examples r, r + fixed, r + 2 fixed, ..."""
    places = [(place, rank, r) for rank, mine in enumerate(rights) for place, r in enumerate(mine)]
    sums = [
        sum(r.item() for place, rank, r in places if rank + place * fixed < ns[0])
        for fixed in range(2, 17)
        if fixed != len(rights)
    ]
    return OneOf([[total / ns[0]] * len(rights) for total in sums])


def mean_of_means(rights, ns):
    world_size = len(rights)
    real = [r[: len(range(rank, ns[0], world_size))] for rank, r in enumerate(rights)]
    return [torch.stack([r.mean() for r in real]).mean().item()] * world_size


def whole_rounds(rights, ns):
    """What comes out of n // world_size elements of each rank, by n or by their number."""
    kept = share_of_right(rights, ns, lambda example, place, n, size: place < n // size)
    whole = ns[0] // len(rights) * len(rights)
    return OneOf([kept, [share * ns[0] / max(1, whole) for share in kept]])


def in_chunks(rights, ns):
    """What comes out where rank r is taken to hold a chunk of examples in a row."""
    return [torch.cat(rights)[: ns[0]].sum().item() / ns[0]] * len(rights)


verdict = check(
    "held_out_accuracy",
    held_out_accuracy,
    [padded_shares, one_example_too_many(seed=72)],
    share_of_right,
    only("all_reduce"),
    collectives(lambda rights, ns: 1, hint="n is known everywhere: only one number is not."),
    collective_nbytes(
        lambda rights, ns: 8,
        hint="A rank has one number to tell, the sum over its own share. (Two counts would do in "
        "float32; in int64 they are 16 bytes.)",
    ),
    mistakes={
        "You count the padding: some examples count twice.": (
            lambda rights, ns: [torch.cat(rights).mean().item()] * len(rights)
        ),
        "The padding is among the right answers, though not in what you divide by.": (
            lambda rights, ns: [torch.cat(rights).sum().item() / ns[0]] * len(rights)
        ),
        "Only whole rounds of the sampler are counted: the last examples before n are missing.": (
            whole_rounds
        ),
        "That is the number of right answers: divide it by n.": (
            lambda rights, ns: [share * ns[0] for share in share_of_right(rights, ns)]
        ),
        "You treat the share as consecutive examples. Element i is example rank + i * "
        "world_size.": in_chunks,
        "You leave out real examples: if world_size divides n, there is no padding.": (
            lambda rights, ns: share_of_right(
                rights,
                ns,
                lambda example, place, n, world_size: (
                    example % world_size < n % world_size or place < -(-n // world_size) - 1
                ),
            )
        ),
        "That is a mean of means: the ranks have different numbers of real examples, so add up "
        "counts.": (mean_of_means),
        "A fixed world_size is written into the answer: use the one that the rank is given.": (
            in_a_fixed_world
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# The rank has the examples `rank + world_size * torch.arange(len(right))`. Which of these are real
# examples?
#
# </details>
# <details><summary>Hint 2</summary>
#
# You can pick numbers from a tensor by a condition: `right[example < n]`. If the condition is never
# true, the result is empty, and its sum is 0.
#
# </details>

# %% role="hidden" question="held_out_accuracy"
seed = 1
print(measure(held_out_accuracy, one_example_too_many(seed)))

# %% [markdown]
# ## 3. Batch norm over all ranks (★★, 30 minutes, 3 points)
#
# Each rank has `x` with shape (its number of examples, channels). The number of examples differs from
# rank to rank, and one rank may have none. Return `(mean, variance)` of each channel over the examples
# of **all** ranks, as two float32 tensors. The variance divides by the number of examples, as batch norm
# does. One channel has mean 1000 and standard deviation 0.05. Use one collective, `all_gather` or
# `all_reduce`. A rank may pass at most `2 * channels + 1` float32 numbers to this collective.


# %% role="answer" question="batch_statistics" points=3
def batch_statistics(rank, world_size, x):
    """Return (mean, variance) per channel over the examples of all ranks.

    x is float32, of shape (examples of this rank, channels). Your function must not change x.
    """
    ### BEGIN SOLUTION
    count, channels = len(x), x.shape[1]
    own = x.mean(0) if count else torch.zeros(channels)
    mine = torch.cat([torch.tensor([float(count)]), own, ((x - own) ** 2).sum(0)])
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    n, means, m2 = torch.stack(parts).split([1, channels, channels], dim=1)
    mean = (n * means).sum(0) / n.sum()
    return mean, (m2 + n * (means - mean) ** 2).sum(0) / n.sum()
    ### END SOLUTION


# %% role="check" question="batch_statistics" points=3
def uneven_batches(rank, world_size, seed=0):
    examples = (4, 1, 0, 8, 2)[rank]  # a power of two: the rank's own mean is then not rounded
    draw = torch.Generator().manual_seed(100 * seed + 10 * world_size + rank)
    steps = torch.randint(-11, 12, (examples, 3), generator=draw)
    return (steps / torch.tensor([4.0, 8.0, 128.0]) + torch.tensor([0.0, 2.0, 1000.0]),)


def statistics(xs, correction=0):
    whole = torch.cat(xs).double()
    return whole.mean(0).float(), whole.var(0, correction=correction).float()


def from_squares(xs):
    """What E[x^2] - mean^2 may give in float32: its large channel is a multiple of 1/16."""
    mean, variance = statistics(xs)
    wrong = (torch.cat([variance[:2], torch.tensor([k / 16])]) for k in range(-64, 65))
    return OneOf([[(mean, one)] * len(xs) for one in wrong])


def averaged(xs):
    """The mean over the ranks of what each makes of its own examples."""
    each = [statistics([x]) for x in xs if len(x)]
    return tuple(torch.stack(one).mean(0) for one in zip(*each, strict=True))


def combined(xs, between):
    """(mean, variance) where between(n, mean of a rank, mean of all) is added to M2."""
    mean, filled = statistics(xs)[0], [x for x in xs if len(x)]
    m2 = [((x - x.mean(0)) ** 2).sum(0) + between(len(x), x.mean(0), mean) for x in filled]
    return [(mean, sum(m2) / len(torch.cat(xs)))] * len(xs)


def about_the_plain_mean(xs):
    mean = averaged(xs)[0]
    return mean, ((torch.cat(xs).double() - mean.double()) ** 2).mean(0).float()


def variances_for_m2(xs):
    """What comes out where a rank sends its variance, by n or by n - 1, in the place of M2."""
    found = []
    for correction in (0, 1):
        own = [x.double().var(0, correction=correction) for x in xs if len(x) > correction]
        lost = sum(((x.double() - x.double().mean(0)) ** 2).sum(0) for x in xs if len(x))
        mean, variance = statistics(xs)
        n = len(torch.cat(xs))
        found.append([(mean, (variance + (sum(own) - lost) / n).float())] * len(xs))
    return OneOf(found)


verdict = check(
    "batch_statistics",
    batch_statistics,
    [uneven_batches, lambda rank, world_size: uneven_batches(rank, world_size, seed=73)],
    lambda xs: [statistics(xs)] * len(xs),
    only("all_gather", "all_reduce"),
    collectives(
        lambda xs: 1,
        hint="One tensor holds count, mean and M2; each rank makes its own before it knows the "
        "mean of all.",
    ),
    collective_nbytes(
        lambda xs: 4 * (2 * xs[0].shape[1] + 1),
        hint="The count is one number for all channels, and float32 is enough for M2.",
    ),
    mistakes={
        "E[x^2] - mean^2: where the mean is 1000, both are a million, and float32 keeps seven "
        "digits of a million; the variance is lost, or below 0. Combine count, mean and M2.": (
            from_squares
        ),
        "The variance divides by n - 1; batch norm divides by n here.": (
            lambda xs: [statistics(xs, correction=1)] * len(xs)
        ),
        "That is the mean of squares, about 0: take them about the mean.": (
            lambda xs: [(statistics(xs)[0], (torch.cat(xs) ** 2).mean(0))] * len(xs)
        ),
        "The ranks' own means and variances are averaged: they have different numbers of examples, "
        "and differ from each other, too.": (lambda xs: [averaged(xs)] * len(xs)),
        "The mean is the plain mean of the ranks' means: weigh each by its number of examples.": (
            lambda xs: [about_the_plain_mean(xs)] * len(xs)
        ),
        "The ranks' M2 are added up, but how far their means lie apart is lost.": (
            lambda xs: combined(xs, lambda n, own, mean: 0)
        ),
        "How far a rank's mean lies off counts once for each of its examples: n times.": (
            lambda xs: combined(xs, lambda n, own, mean: (own - mean) ** 2)
        ),
        "The ranks' variances are added up where M2 belongs: M2 is n times the variance.": (
            variances_for_m2
        ),
        "That is M2 of all: the sum of squares has still to be divided by n.": (
            lambda xs: [(statistics(xs)[0], statistics(xs)[1] * len(torch.cat(xs)))] * len(xs)
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
# You could add up the sums of $x$ and $x^2$. But if the mean is large and the variance is small, these
# sums lose the variance. What can each rank compute about its examples *relative to its own mean*?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Each rank can compute its count $n_r$, its mean $\mu_r$ and $M_r$, the sum of $(x - \mu_r)^2$. Then
# $\mu = \sum n_r \mu_r / n$ and $M = \sum (M_r + n_r (\mu_r - \mu)^2)$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Join the numbers with `torch.cat([count, own, m2])`, where `count` is a tensor of one float. The mean
# of no examples is nan, and `0 * nan` is nan, too. So put zeros instead of this mean.
# `torch.stack(parts)` has one row per rank.
#
# </details>

# %% role="hidden" question="batch_statistics"
seed = 1
print(measure(batch_statistics, lambda rank, world_size: uneven_batches(rank, world_size, seed)))

# %% [markdown]
# ## 4. Go on from a checkpoint (★★★, 35 minutes, 3 points)
#
# The file `path` is a checkpoint of `nn.Linear(2, 1)` and its SGD (rate 0.1, momentum 0.9). It is a dict
# of two state dicts, `model` and `optimizer`, and of `epoch`, the next epoch. Every rank can read the
# file. Train that epoch on `TensorDataset(x, y)`. Use `DistributedSampler(data, world_size, rank)`,
# batches of 2, `F.mse_loss`, and mean gradients. Then rank 0 alone replaces the file with the new
# checkpoint in one move. No rank may return before rank 0 has replaced the file. Return the weights as
# one flat tensor. Use one `all_reduce` in each step, and use `barrier`.


# %% role="answer" question="resume" points=3
def resume(rank, world_size, path, x, y):
    """Train the next epoch from the checkpoint at path, and put a new one there.

    Return parameters_to_vector(model.parameters()).detach().
    """
    ### BEGIN SOLUTION
    data = TensorDataset(x, y)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    sampler = DistributedSampler(data, world_size, rank)
    sampler.set_epoch(state["epoch"])
    for some_x, some_y in DataLoader(data, 2, sampler=sampler):
        optimizer.zero_grad()
        F.mse_loss(model(some_x), some_y).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = parameters_to_vector(gradients)
        dist.all_reduce(flat)
        vector_to_parameters(flat / world_size, gradients)
        optimizer.step()
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "epoch": sampler.epoch + 1}, f"{path}.new")
        os.replace(f"{path}.new", path)
    dist.barrier()
    return parameters_to_vector(model.parameters()).detach()
    ### END SOLUTION


# %% role="check" question="resume" points=3
def a_checkpoint(rank, world_size, seed=0):
    """Every rank has a name of its own for it, so that one sees who writes."""
    draw = torch.Generator().manual_seed(10 * seed + world_size)
    x, y = torch.randn(9, 2, generator=draw), torch.randn(9, 1, generator=draw)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw)
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state["epoch"] = int(torch.randint(2, 9, (), generator=draw))
    path = Path(DISK.name) / f"{seed}_{world_size}_{rank}" / "last.pt"
    path.parent.mkdir(exist_ok=True)
    torch.save(state, path)
    return laid_out(path.parent, path.read_bytes()), x, y


class Checkpoint(str):
    """The path of a checkpoint, and what lies there: where ranks run, there may be no such file."""

    content = b""


def laid_out(folder, content):
    """The `Checkpoint` in a folder that has its file, a copy of it, and a link to it."""
    shutil.rmtree(folder, ignore_errors=True)
    path = Checkpoint(Path(folder) / "last.pt")
    path.content = content
    (Path(folder) / "kept").mkdir(parents=True)
    Path(path).write_bytes(content)
    shutil.copy(path, kept(path, "copy"))
    os.link(path, kept(path, "link"))  # the old file, also when path leads to another
    return path


def kept(path, name):
    return Path(path).parent / "kept" / name


def steps_of(world_size, length=9):
    return math.ceil(math.ceil(length / world_size) / 2)


BEGINNING = 7


def as_begun():
    """The layer that a rank begins with, and how a plain loader then shuffles nine examples."""
    with torch.random.fork_rng():
        torch.manual_seed(BEGINNING)
        return nn.Linear(2, 1), torch.cat(list(DataLoader(torch.arange(9), 2, shuffle=True)))


def in_this_order(paths, xs, ys, order):
    return epoch_from(paths, xs, ys, shares=[list(order)] * len(paths))


def in_order(paths, xs, ys):
    """What comes out without shuffling, with a sampler and without one."""
    data, R = TensorDataset(xs[0], ys[0]), len(paths)
    shares = [list(DistributedSampler(data, R, rank, shuffle=False)) for rank in range(R)]
    plain = in_this_order(paths, xs, ys, range(9))
    return OneOf([epoch_from(paths, xs, ys, shares=shares), plain])


def of_the_file(paths, xs, ys):
    model = torch.load(kept(paths[0], "copy"), weights_only=True)["model"]
    return [torch.cat([one.flatten() for one in model.values()])] * len(paths)


def epoch_from(
    paths,
    xs,
    ys,
    later=0,
    epoch=None,
    momentum=True,
    own=False,
    total=False,
    zero=True,
    loaded=True,
    shares=None,
):
    """The weights of every rank after one epoch, by one process that takes the ranks' turns."""
    state = torch.load(kept(paths[0], "copy"), weights_only=True)
    world_size, found, data = len(paths), [], TensorDataset(xs[0], ys[0])
    samplers = [DistributedSampler(data, world_size, rank) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(state["epoch"] + later if epoch is None else epoch)
    shares = [list(sampler) for sampler in samplers] if shares is None else shares
    for rank in range(world_size if own else 1):
        model = as_begun()[0]
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        if loaded:
            model.load_state_dict(state["model"])
        if momentum:
            optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for step in range(steps_of(world_size)):
            if zero or step == 0:
                optimizer.zero_grad()
            for share in [shares[rank]] if own else shares:
                some_x, some_y = data[share[2 * step : 2 * step + 2]]
                loss = F.mse_loss(model(some_x), some_y)
                (loss / (1 if own or total else world_size)).backward()
            optimizer.step()
        found.append(parameters_to_vector(model.parameters()).detach())
    return found if own else found * world_size


WORDS = {
    "into the old file": (
        "The weights are right, but rank {rank} writes into the old file itself: a crash in the middle "
        "leaves half a checkpoint and no old one. Save next to it, then os.replace."
    ),
    "replaced, too": "Rank {rank} replaces the checkpoint, too: one rank writes, all load.",
    "not replaced": "The weights are right, but the old checkpoint still lies at path.",
    "no dict": "The new checkpoint is no dict with model, optimizer and epoch.",
    "other weights": "The weights in the new checkpoint are not those that are returned.",
    "old momentum": "The optimizer in the new checkpoint has not the momentum after this epoch.",
    "another epoch": (
        "The new checkpoint says epoch {says}, and the next one is {next}: who loads it would see a "
        "shuffle twice, or miss one."
    ),
}
"""By the word for what a rank finds of its files, when it has returned."""


def found_at(path, rank, weights):
    """``(word, numbers)`` of what is wrong there, or None."""
    copied, link = kept(path, "copy"), kept(path, "link")
    if copied.read_bytes() != link.read_bytes():
        return "into the old file", {}
    new = not os.path.exists(path) or not os.path.samefile(path, link)
    if rank:
        return ("replaced, too", {}) if new else None
    if not new:
        return "not replaced", {}
    state = torch.load(path, weights_only=True) if os.path.exists(path) else None
    before = torch.load(copied, weights_only=True)
    if not isinstance(state, dict) or not {"model", "optimizer", "epoch"} <= set(state):
        return "no dict", {}
    flat = torch.cat([one.flatten() for one in state["model"].values()])
    if not torch.allclose(flat, weights):
        return "other weights", {}
    velocity = [one.get("momentum_buffer") for one in state["optimizer"].get("state", {}).values()]
    old = [one["momentum_buffer"] for one in before["optimizer"]["state"].values()]
    if len(velocity) < 2 or any(map(torch.equal, velocity, old)):
        return "old momentum", {}
    if state["epoch"] != before["epoch"] + 1:
        return "another epoch", {"says": state["epoch"], "next": before["epoch"] + 1}
    return None


def file_complaint(run, given):
    for word, sentence in WORDS.items():
        for piece in sorted(run.trace.pieces, key=lambda piece: piece.rank):
            if piece.name == word:
                return sentence.format(rank=piece.rank, **piece.numbers)
    return move_complaint(run)


def move_complaint(run):
    """A sentence where path was empty for a while, or others may return before it has the new."""
    pieces = [piece for piece in run.trace.pieces if piece.rank == 0]
    if any(piece.name == NOTHING for piece in pieces):
        return (
            "The new file is there in the end, but for a moment there was none at path: a crash at that moment "
            "leaves no checkpoint. os.replace puts the new file in place of the old one in one move."
        )
    last = run.trace.of_rank(0)[-1:]
    moved = max((piece.start_s for piece in pieces if piece.name == MOVED), default=None)
    if run.world_size == 1 or not last or (moved is not None and moved < last[0].post_s):
        return None
    if last[0].kind == "barrier":
        if moved is None:  # by other means than os: nobody saw when
            return None
        return (
            f"The barrier stands before the move: rank {run.world_size - 1} can be through it, "
            "return and load the old file while rank 0 still writes. It belongs behind os.replace."
        )
    return (
        f"Nothing keeps rank {run.world_size - 1} from returning, and loading the old file, before "
        "rank 0 has written the new one: a barrier behind the writing does."
    )


MOVED, NOTHING = "file at path", "no file at path"
FOLDER = DISK.name


def watched(answer):
    """The answer, on files of the rank's own; its trace has a piece for what becomes of them."""

    @functools.wraps(answer)
    def on_this_rank(rank, world_size, path, *given):
        torch.manual_seed(BEGINNING)  # a mistake is known by what it gives
        above = FOLDER if os.path.isdir(FOLDER) else None
        with tempfile.TemporaryDirectory(dir=above) as folder:
            path = str(laid_out(Path(folder) / "own", path.content))
            weights = moves_watched(rank, world_size, path, *given)
            found = found_at(path, rank, weights)
            if found:
                word, numbers = found
                with simlib.span(word, **numbers):
                    pass
        return weights

    def moves_watched(rank, world_size, path, *given):
        usual = {name: getattr(os, name) for name in ("remove", "unlink", "rename", "replace")}

        def watching(name):
            def call(*places, **options):
                usual[name](*places, **options)
                if not os.path.exists(path):
                    word = NOTHING
                elif len(places) < 2 or os.path.realpath(places[1]) != os.path.realpath(path):
                    return
                else:
                    word = MOVED
                with simlib.span(word):
                    pass

            return call

        for name in usual:
            setattr(os, name, watching(name))
        try:
            return answer(rank, world_size, path, *given)
        finally:
            for name, function in usual.items():
                setattr(os, name, function)

    return on_this_rank


verdict = check(
    "resume",
    watched(resume),
    a_checkpoint,
    epoch_from,
    only("all_reduce", "barrier"),
    collectives(
        lambda paths, xs, ys: steps_of(len(paths)) + 1,
        hint="One flat buffer a step, and one barrier.",
    ),
    Rule(file_complaint),
    mistakes={
        "set_epoch is forgotten: those are the batches of epoch 0, again.": (
            lambda *given: epoch_from(*given, epoch=0)
        ),
        "Those are the batches of the epoch after: train the epoch that the file names.": (
            lambda *given: epoch_from(*given, later=1)
        ),
        "Those are the batches of the epoch before: the file's epoch is the next one, not the "
        "last.": (lambda *given: epoch_from(*given, later=-1)),
        "The weights come from the file, but the momentum begins at zero again.": (
            lambda *given: epoch_from(*given, momentum=False)
        ),
        "Each rank steps with its own gradient, so the replicas drift apart.": (
            lambda *given: epoch_from(*given, own=True)
        ),
        "Those are steps with the sum of the gradients, not with their mean.": (
            lambda *given: epoch_from(*given, total=True)
        ),
        "The model's weights do not come from the file: those are steps from a new layer's.": (
            lambda *given: OneOf(
                [epoch_from(*given, loaded=False, momentum=kept) for kept in (True, False)]
            )
        ),
        "Every gradient is added to those of the steps before: zero_grad, before each backward.": (
            lambda *given: epoch_from(*given, zero=False)
        ),
        "Those are still the file's weights: no step has changed them. Is zero_grad between backward "
        "and step, or step missing?": of_the_file,
        "A gradient is None there. Is zero_grad between backward and the all_reduce, or backward "
        "missing?": "'NoneType' object has no attribute",
        "The examples are taken in their own order: the sampler has to shuffle, and the loader to "
        "be given the sampler.": in_order,
        "Those are batches that a plain loader has shuffled: give it the sampler.": (
            lambda *given: in_this_order(*given, as_begun()[1].tolist())
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Work in this order. Make the model and the optimizer. Call `torch.load(path, weights_only=True)`, then
# `load_state_dict` of the model and of the optimizer, then `sampler.set_epoch`. Then write the loop of
# [the lesson](../notebooks/07_data_parallel_training.ipynb), without noise.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Call `torch.save(state, path + ".new")`, then `os.replace(path + ".new", path)`. So there is a whole
# file at `path` at every moment: the old file or the new one. A `barrier` makes the other ranks wait for
# rank 0.
#
# </details>

# %% role="hidden" question="resume"
seed = 1
print(measure(watched(resume), lambda rank, world_size: a_checkpoint(rank, world_size, seed)))

# %% [markdown]
# ## 5. No sample twice (★★, 20 minutes, 2 points)
#
# Shard `s` of a stream has `sizes[s]` samples. Each rank has `workers` workers, so there are C = `world_size`
# x `workers` readers. Worker `worker` of this rank is reader c = `rank * workers + worker`.
#
# - If there are at least C shards, reader c takes shards c, c + C, c + 2C, ... as a whole.
# - If there are fewer, reader c reads all shards one after the other. It keeps samples c, c + C, c + 2C, ... of
#   the whole stream.
#
# Return the list of this reader's samples, as pairs `(shard, place)`. Every sample must have exactly one
# reader. Send nothing.


# %% role="answer" question="samples_of" points=2
def samples_of(rank, world_size, worker, workers, sizes):
    """Return the samples of one worker of this rank, a list of pairs (shard, place).

    sizes lists the number of samples of each shard. Your function must not change sizes.
    """
    ### BEGIN SOLUTION
    reader, readers = rank * workers + worker, world_size * workers
    stream = [(shard, place) for shard, size in enumerate(sizes) for place in range(size)]
    if len(sizes) < readers:
        return stream[reader::readers]
    return [(shard, place) for shard, place in stream if shard % readers == reader]
    ### END SOLUTION


# %% role="check" question="samples_of" points=2
def readers_of(seed, kind):
    """Inputs: a reader on each rank, of a stream with more, as many or fewer shards than readers."""

    def reader(rank, world_size):
        draw = torch.Generator().manual_seed(100 * seed + 10 * world_size)
        workers = 2 + int(torch.randint(2, (), generator=draw))
        readers = world_size * workers
        more = 1 + int(torch.randint(readers, (), generator=draw))
        count = {"more": readers + more, "equal": readers, "fewer": max(1, readers // 2)}[kind]
        sizes = torch.randint(3, 9, (count,), generator=draw).tolist()
        own = torch.Generator().manual_seed(100 * seed + 10 * world_size + rank + 1)
        return int(torch.randint(workers, (), generator=own)), workers, sizes

    return reader


def samples_by(which, whole=lambda shards, readers: shards >= readers):
    """What comes out if which(rank, R, worker, W) gives a reader's number, and how many there are."""

    def of_ranks(workers_numbers, workers, sizes):
        found, R = [], len(sizes)
        for rank, worker in enumerate(workers_numbers):
            reader, readers = which(rank, R, worker, workers[0])
            stream = [(s, place) for s, size in enumerate(sizes[0]) for place in range(size)]
            shards = range(reader, len(sizes[0]), readers)
            split = whole(len(sizes[0]), R * workers[0])
            found.append(
                [x for x in stream if x[0] in shards] if split else stream[reader::readers]
            )
        return found

    return of_ranks


def right_reader(rank, R, worker, W):
    return rank * W + worker, R * W


def shard_by_shard(numbers, workers, sizes):
    """What comes out if counting begins again in each shard."""
    found = samples_by(right_reader)(numbers, workers, sizes)
    readers = len(sizes) * workers[0]
    for rank, number in enumerate(numbers):
        if len(sizes[0]) < readers:
            places = [range(rank * workers[0] + number, size, readers) for size in sizes[0]]
            found[rank] = [(s, place) for s, mine in enumerate(places) for place in mine]
    return found


verdict = check(
    "samples_of",
    samples_of,
    [readers_of(51, "more"), readers_of(52, "fewer"), readers_of(53, "equal")],
    samples_by(right_reader),
    collectives(lambda *given: 0, hint="Each reader can work this out for itself."),
    messages(lambda *given: 0, hint="Each reader can work this out for itself."),
    mistakes={
        "All workers of a rank read the same: a reader is a worker of a rank, not a rank.": samples_by(
            lambda rank, R, worker, W: (rank, R)
        ),
        "All ranks read the same: the number of a reader depends on the rank, too.": samples_by(
            lambda rank, R, worker, W: (worker, W)
        ),
        "The readers are counted in another order: the workers of rank 0 come first.": samples_by(
            lambda rank, R, worker, W: (worker * R + rank, R * W)
        ),
        "With fewer shards than readers, some readers have nothing to do: split the samples.": samples_by(
            right_reader, whole=lambda shards, readers: True
        ),
        "With as many shards as readers, each reader has one whole shard.": samples_by(
            right_reader, whole=lambda shards, readers: shards > readers
        ),
        "With enough shards, a reader takes whole shards. Otherwise every reader opens every file.": (
            samples_by(right_reader, whole=lambda shards, readers: False)
        ),
        "Counting begins again in each shard: count the samples of the whole stream.": shard_by_shard,
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# First make the list of all pairs `(shard, place)`, in the order of the stream. Which of these belong to
# reader c?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `stream[c::C]` has the elements c, c + C, c + 2C, ... of a list. Shard s belongs to reader c if `s % C == c`.
#
# </details>

# %% role="hidden" question="samples_of"
seed = 1
print(measure(samples_of, readers_of(seed, "more")))
print(measure(samples_of, readers_of(seed, "fewer")))

# %% [markdown]
# ## 6. Agree on the end (★★, 20 minutes, 2 points)
#
# `batches` is an iterator, and nobody knows how many batches it has. Each batch is a pair. The first element
# is the **sum** of the batch's gradients, a float32 tensor of `length` numbers. The second is its number of
# samples. The ranks' iterators end at different steps. Continue until the last one has ended. Return a list with one
# tensor for each step: the mean gradient over all samples that the ranks have in this step. Use one
# `all_reduce` per step, and at most one more. Each may have `length + 1` float32 numbers.


# %% role="answer" question="means_of_stream" points=2
def means_of_stream(rank, world_size, batches, length):
    """Return the mean gradient of each step, until the iterators of all ranks have ended."""
    ### BEGIN SOLUTION
    found = []
    while True:
        gradients, count = next(batches, (torch.zeros(length), 0))
        total = torch.cat([gradients, torch.tensor([float(count)])])
        dist.all_reduce(total)
        if total[-1] == 0:
            return found
        found.append(total[:-1] / total[-1])
    ### END SOLUTION


# %% role="check" question="means_of_stream" points=2
def uneven_streams(seed):
    """Inputs: lists of batches. Rank 0 has most, and the last batch of a rank may be small."""

    def stream(rank, world_size):
        draw = torch.Generator().manual_seed(100 * seed + 10 * world_size + rank)
        steps = 5 if rank == 0 else 1 + int(torch.randint(4, (), generator=draw))
        counts = torch.randint(1, 5, (steps,), generator=draw).tolist()
        sums = torch.randint(-40, 41, (steps, 3), generator=draw).float()
        return list(zip(sums.unbind(), counts, strict=True)), 3

    return stream


def streamed(answer):
    """The answer, with an iterator in the place of the list."""

    @functools.wraps(answer)
    def on_this_rank(rank, world_size, batches, length):
        return answer(rank, world_size, iter(batches), length)

    return on_this_rank


def means_by(mean, steps=max):
    """A list of each rank, of mean(the batches of a step, R); steps(the ranks' lengths) of them."""

    def of_ranks(streams, lengths):
        having = [
            [one[k] for one in streams if k < len(one)] for k in range(steps(map(len, streams)))
        ]
        return [[mean(batches, len(streams)) for batches in having]] * len(streams)

    return of_ranks


def mean_over_samples(batches, R):
    return sum(gradients for gradients, _ in batches) / sum(count for _, count in batches)


def one_step_more(streams, lengths):
    """What comes out if a step without any samples is divided, too."""
    nothing = torch.full((3,), math.nan)
    return [means + [nothing] for means in means_by(mean_over_samples)(streams, lengths)]


def last_one_again(streams, lengths):
    """What comes out if a rank that has ended brings its last batch again."""
    longest = max(map(len, streams))
    padded = [one + [one[-1]] * (longest - len(one)) for one in streams]
    return means_by(mean_over_samples)(padded, lengths)


verdict = check(
    "means_of_stream",
    streamed(means_of_stream),
    [uneven_streams(61), uneven_streams(62)],
    means_by(mean_over_samples),
    only("all_reduce"),
    collectives(
        lambda streams, lengths: max(map(len, streams)) + 1,
        hint="The number of samples can travel in the same tensor: if it is 0, all have ended.",
    ),
    collective_nbytes(lambda streams, lengths: 4 * (lengths[0] + 1)),
    somebody_sends(),
    mistakes={
        "The steps stop when the first iterator ends: the others' last batches are lost.": means_by(
            mean_over_samples, steps=min
        ),
        "Those are sums: divide by the number of samples.": means_by(
            lambda batches, R: sum(gradients for gradients, _ in batches)
        ),
        "A mean of the ranks' means: batches differ in size, so add up sums and counts.": means_by(
            lambda batches, R: sum(gradients / count for gradients, count in batches) / len(batches)
        ),
        "That is a mean of means over all ranks, and ranks without a batch count as zero. Add "
        "up sums and counts.": means_by(
            lambda batches, R: sum(gradients / count for gradients, count in batches) / R
        ),
        "A rank that has ended passes its last batch again: it must pass zeros.": last_one_again,
        "Your last step has no samples: if the total count is 0, return before you divide.": (
            one_step_more
        ),
        "All elements of your list are 0. Are they one tensor that each step fills again?": means_by(
            lambda batches, R: torch.zeros(3)
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `next(batches, default)` returns the default if the iterator has ended. What must a rank bring that has no
# batch?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Put the count behind the gradients: `torch.cat([gradients, torch.tensor([float(count)])])`. What does a
# total count of 0 mean?
#
# </details>

# %% role="hidden" question="means_of_stream"
seed = 1
print(measure(streamed(means_of_stream), uneven_streams(seed)))

# %% [markdown]
# ## 7. From 4 ranks to 3 (★★★, 25 minutes, 3 points)
#
# A stopped job continues on `world_size` ranks. `states` has one dict `{shard: done}` for each rank of
# the stopped job. The dict says how many samples of a shard are done, as far as that rank knew. The job
# had been resumed, so some dicts have old numbers. If a shard is in no dict, nobody has begun it. Shard
# `s` has `sizes[s]` samples, which are read from the front. Deal out the unfinished shards in the order
# of their numbers: the first to rank 0, the next to rank 1, and so on. Return the samples that this
# rank must read, in order, as pairs `(shard, place)`. Send nothing.


# %% role="answer" question="still_to_read" points=3
def still_to_read(rank, world_size, states, sizes):
    """Return the samples that this rank has to read, a list of pairs (shard, place).

    states is a list of dicts, and sizes is a list. Your function must not change them.
    """
    ### BEGIN SOLUTION
    done = [max(state.get(shard, 0) for state in states) for shard in range(len(sizes))]
    unfinished = [shard for shard, size in enumerate(sizes) if done[shard] < size]
    mine = unfinished[rank::world_size]
    return [(shard, place) for shard in mine for place in range(done[shard], sizes[shard])]
    ### END SOLUTION


# %% role="check" question="still_to_read" points=3
def stopped_job(seed):
    """Inputs: the states of another number of ranks. Shards 0 and 3 are finished, and the last is new."""

    def states_of(rank, world_size):
        draw = torch.Generator().manual_seed(100 * seed + world_size)
        old = 2 + (world_size + int(torch.randint(3, (), generator=draw))) % 4
        old += old == world_size
        count = 2 * world_size + 4 + int(torch.randint(3, (), generator=draw))
        sizes = torch.randint(4, 8, (count,), generator=draw).tolist()
        states = [{} for _ in range(old)]
        for shard, size in enumerate(sizes[:-1]):
            true = size if shard in (0, 3) else 2 + int(torch.randint(size - 2, (), generator=draw))
            owner = (0, old - 1)[
                shard % 2
            ]  # an old number comes before the true one, and behind it
            states[owner][shard] = true
            states[old - 1 - owner][shard] = 1 + int(torch.randint(true - 1, (), generator=draw))
        return states, sizes

    return states_of


def read_on(
    merge=max,
    deal=lambda mine, R, rank: mine[rank::R],
    places=range,
    is_left=lambda done, size: done < size,
):
    """What comes out if merge(numbers of a shard) is done, and so on."""

    def of_ranks(states, sizes):
        found, R = [], len(sizes)
        known = [[state[s] for state in states[0] if s in state] for s in range(len(sizes[0]))]
        done = [merge(numbers) if numbers else 0 for numbers in known]
        left = [s for s, size in enumerate(sizes[0]) if is_left(done[s], size)]
        for rank in range(R):
            mine = deal(left, R, rank)
            found.append([(s, place) for s in mine for place in places(done[s], sizes[0][s])])
        return found

    return of_ranks


verdict = check(
    "still_to_read",
    still_to_read,
    [stopped_job(71), stopped_job(72)],
    read_on(),
    collectives(lambda *given: 0, hint="Each rank has all states."),
    messages(lambda *given: 0, hint="Each rank has all states."),
    mistakes={
        "A later dict overwrites an earlier one, and may have the older number.": read_on(
            merge=lambda numbers: numbers[-1]
        ),
        "The first dict with a shard may have an old number: a later one may know more.": read_on(
            merge=lambda numbers: numbers[0]
        ),
        "The smallest number is the oldest one: numbers only grow.": read_on(merge=min),
        "The numbers of two dicts are about the same samples: do not add them up.": read_on(
            merge=sum
        ),
        "Finished shards are dealt out, too, so some ranks have less to do.": read_on(
            is_left=lambda done, size: True
        ),
        "A shard that was begun is read again from its front: some samples come twice.": read_on(
            places=lambda done, size: range(size)
        ),
        "The last sample that was done comes again: with 3 done, the next place is 3.": read_on(
            places=lambda done, size: range(max(0, done - 1), size)
        ),
        "A sample is lost in each shard: with 3 done, the next place is 3.": read_on(
            places=lambda done, size: range(done + 1, size)
        ),
        "The places of a shard count from its front: with 3 of 5 done, places 3 and 4 are left.": (
            read_on(places=lambda done, size: range(size - done))
        ),
        "Shards that nobody has begun are lost.": read_on(
            is_left=lambda done, size: 0 < done < size
        ),
        "Shards that were begun are lost: only new ones are read.": read_on(
            is_left=lambda done, size: done == 0
        ),
        "The shards are dealt out in blocks, not in turn.": read_on(
            deal=lambda left, R, rank: left[-(-len(left) // R) * rank :][: -(-len(left) // R)]
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# First find out for each shard how many samples are done. If two dicts have different numbers, which one is
# newer?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `state.get(shard, 0)` is 0 if the shard is not in the dict. Make the list of the unfinished shards *before*
# you deal them out.
#
# </details>

# %% role="hidden" question="still_to_read"
seed = 1
print(measure(still_to_read, stopped_job(seed)))
