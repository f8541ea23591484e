# %% [markdown]
# # Exercises 14: stragglers and failures
#
# Four tasks that go with [lesson 14](../notebooks/14_stragglers_and_failures.ipynb). In the first you read
# recorded traces, in the second you share out a batch by speed; then you choose an interval for
# checkpoints, and write a training that outlives deaths. The outputs stored below the checks are those of
# a good answer.

# %% role="setup"
import copy
import math

import torch
import torch.distributed as dist

import simlib
from simlib.checks import (
    Rule,
    Timed,
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    only,
)

# %% [markdown]
# ## 1. The culprit (★★, 20 minutes, 2 points)
#
# A recorded trace: `came_ms[step, r]` says how many milliseconds after the start of the step rank r of the
# *recorded* run came to the all_reduce (a float64 tensor). A step goes on when the last one has come. Suppose one
# rank could be made as quick, in each step in which it is last, as the next to last. Which one saves the most time? Return
# `(r, ms)`, an int and a float; of equal ones the lowest. Send nothing.


# %% role="answer" question="culprit" points=2
def culprit(rank, world_size, came_ms):
    """Return (r, ms): the rank that holds the others up longest, and for how long in all.

    came_ms has shape (steps, ranks of the recorded run), at least two ranks; it is left as it is.
    """
    ### BEGIN SOLUTION
    two, who = came_ms.topk(2, dim=1)
    held_up = torch.zeros(came_ms.shape[1], dtype=came_ms.dtype)
    held_up.index_add_(0, who[:, 0], two[:, 0] - two[:, 1])
    worst = int(held_up.argmax())
    return worst, held_up[worst].item()
    ### END SOLUTION


# %% role="check" question="culprit" points=2
def a_trace(rank, world_size):
    """Steady in a world of 1, 4; rank 2 stands out once, rank 0 is last often, rank 1 busiest."""
    steady = [
        [10, 11, 20, 10],
        [11, 10, 21, 11],
        [10, 12, 22, 10],
        [12, 10, 20, 11],
        [11, 11, 23, 12],
    ]
    hiccup = [
        [19, 18, 5, 7],
        [20, 18.5, 6, 7],
        [19.5, 18, 40, 7],
        [18.75, 18.25, 5, 6],
        [8, 18, 5, 7],
    ]
    ramp = [[30, 29, 10, 9], [30, 28, 12, 9], [2, 26, 34.5, 9], [29, 28.5, 10, 8], [2, 27, 31, 9]]
    return (torch.tensor([steady, hiccup, ramp][(world_size - 1) % 3], dtype=torch.float64),)


def held_up(came_ms):
    """For each rank: by how much it is later than the next to last, in all."""
    totals = [0.0] * came_ms.shape[1]
    for row in came_ms.tolist():
        last, before = sorted(row, reverse=True)[:2]
        totals[row.index(last)] += last - before
    return totals


def named(score, value=held_up):
    """What every rank gives where the rank with the highest score is named."""

    def expected(traces):
        scores = score(traces[0])
        worst = scores.index(max(scores))
        return [(worst, value(traces[0])[worst])] * len(traces)

    return expected


def times_last(came_ms):
    return came_ms.argmax(1).bincount(minlength=came_ms.shape[1]).tolist()


def busiest(came_ms):
    return came_ms.sum(0).tolist()


def waits_most(came_ms):
    return (-came_ms.sum(0)).tolist()


def against_the_mean(came_ms):
    """How much later than the mean of the others, in the steps in which it is last."""
    totals = [0.0] * came_ms.shape[1]
    for row in came_ms.tolist():
        totals[row.index(max(row))] += max(row) - (sum(row) - max(row)) / (len(row) - 1)
    return totals


def lost_by_all(came_ms):
    totals = [0.0] * came_ms.shape[1]
    for row in came_ms.tolist():
        totals[row.index(max(row))] += sum(max(row) - each for each in row)
    return totals


verdict = check(
    "culprit",
    culprit,
    a_trace,
    named(held_up),
    collectives(lambda *given: 0),
    messages(lambda *given: 0, hint="Every rank has the whole trace."),
    mistakes={
        "That rank is last most often; how much later than the others does it come?": (
            named(times_last)
        ),
        "That rank computes most in all; but is it the last one who comes?": named(busiest),
        "That rank waits most: it is a victim.": named(waits_most),
        "The rank is right. If it were quicker, the step would end with the next to last, not with the "
        "mean of the others.": named(held_up, against_the_mean),
        "The rank is right. You added up what all ranks wait; asked is how much sooner the steps "
        "would end.": named(held_up, lost_by_all),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# In each step only two numbers count: the last rank's and the next to last one's.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `values, places = came_ms.topk(2, dim=1)` has both for all steps.
#
# </details>

# %% role="hidden" question="culprit"
seed = 1


def another_trace(rank, world_size):
    random = torch.Generator().manual_seed(seed + world_size)
    return (torch.randint(0, 400, (6, 5), generator=random).double() / 8,)


print(measure(culprit, another_trace))

# %% [markdown]
# ## 2. Shards by speed (★★, 25 minutes, 3 points)
#
# `xs` has B examples, the same on all ranks; this rank needs `example_s` seconds for one. Hand out the examples one
# by one, each to the rank that would then be done *first* (of equal ones the lowest). Rank 0 takes the first
# examples, rank 1 the next, and so on. Return `(share, mean)`: how many this rank gets, and the
# mean of all B examples, to which each rank brings its own part. One `all_gather`, one `all_reduce`.


# %% role="answer" question="by_speed" points=3
def by_speed(rank, world_size, xs, example_s):
    """Return (share, mean): an int, and a tensor of the shape of one example.

    xs has shape (B, numbers per example), float32; it is left as it is. example_s is a float.
    """
    ### BEGIN SOLUTION
    times = [torch.zeros(1) for _ in range(world_size)]
    dist.all_gather(times, torch.tensor([example_s]))
    shares = [0] * world_size
    for _ in range(len(xs)):
        done = [(n + 1) * each.item() for n, each in zip(shares, times, strict=True)]
        shares[done.index(min(done))] += 1
    first = sum(shares[:rank])
    mean = xs[first : first + shares[rank]].sum(0) / len(xs)
    dist.all_reduce(mean)
    return shares[rank], mean
    ### END SOLUTION


# %% role="check" question="by_speed" points=3
def a_batch(rank, world_size):
    """From three ranks on the last one is so slow that it gets no example."""
    B = [5, 9, 11, 14, 16][world_size - 1]
    slowest = rank == world_size - 1 > 1
    xs = torch.arange(3.0 * B).reshape(B, 3) ** 2
    return xs, 32.0 if slowest else [1.0, 2.0, 1.5, 0.75][rank % 4]


def handed_out(B, times):
    shares = [0] * len(times)
    for _ in range(B):
        done = [(n + 1) * time for n, time in zip(shares, times, strict=True)]
        shares[done.index(min(done))] += 1
    return shares


def rounded(B, times):
    """Shares in proportion to the speeds, rounded down; the last rank gets what is left."""
    speeds = [1 / time for time in times]
    shares = [int(B * speed / sum(speeds)) for speed in speeds]
    return [*shares[:-1], B - sum(shares[:-1])]


def shared(shares_of, mean_of=lambda xs, parts: xs.mean(0)):
    def expected(batches, times):
        xs, shares = batches[0], shares_of(len(batches[0]), times)
        parts = xs.split(shares)
        return [(share, mean_of(xs, parts)) for share in shares]

    return expected


def mean_of_means(xs, parts):
    return sum(part.mean(0) for part in parts) / len(parts)


def mean_of_some(xs, parts):
    """As before, where an empty part counts as zeros."""
    return sum(part.mean(0).nan_to_num() for part in parts) / len(parts)


verdict = check(
    "by_speed",
    by_speed,
    a_batch,
    shared(handed_out),
    only("all_gather", "all_reduce"),
    collectives(lambda *given: 2, hint="One for the times, one for the mean."),
    collective_nbytes(
        lambda batches, times: 4 + 4 * batches[0].shape[1],
        hint="A time is 4 bytes, a part of the mean has the size of one example.",
    ),
    mistakes={
        "The shares are right. A plain mean of the ranks' means lets examples of slow ranks count "
        "more: weigh each by its share.": shared(handed_out, mean_of_means),
        "The shares are right. A rank without examples adds nothing, but you divide by all ranks; weigh "
        "each part by its share.": shared(handed_out, mean_of_some),
        "Those are equal shares, whatever the speeds.": shared(
            lambda B, times: [len(part) for part in torch.arange(B).tensor_split(len(times))]
        ),
        "Those are shares in proportion to the speeds, and the last rank gets what rounding left: hand "
        "them out one by one.": shared(rounded),
        "The slow ranks get the most: speed is one over time.": shared(
            lambda B, times: handed_out(B, [1 / time for time in times])
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# With all times known, every rank hands out all B examples for itself, and comes to the same shares.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A rank with n examples would be done with one more after `(n + 1) * time`. Give it to the least.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The mean over nothing is `nan`. The sum over nothing is 0: bring `part.sum(0) / len(xs)`.
#
# </details>

# %% role="hidden" question="by_speed"
seed = 1


def another_batch(rank, world_size):
    random = torch.Generator().manual_seed(seed)
    xs = torch.randn(4 + (seed + world_size) % 9, 2, generator=random)
    return xs, 0.5 + ((seed + 3 * rank) % 5) / 4


print(measure(by_speed, another_batch))

# %% [markdown]
# ## 3. The best interval (★★, 25 minutes, 3 points)
#
# This rank fails on average once in `mtbf_s` seconds, independently; the job fails when any
# rank does. A step takes `step_s`, a checkpoint `save_s`, the same on all ranks. With a checkpoint after every n
# steps and a mean time M between failures of the job, the goodput is
# $n\,s / (M\,(e^{(n s + C)/M} - 1))$ for s = `step_s`, C = `save_s`. Return `(n, goodput)` for the n of at least 1 with the highest
# goodput. One `all_reduce` of one number.


# %% role="answer" question="interval" points=3
def interval(rank, world_size, mtbf_s, step_s, save_s):
    """Return (n, goodput): an int and a float; all inputs are floats."""
    ### BEGIN SOLUTION
    rate = torch.tensor([1 / mtbf_s], dtype=torch.float64)
    dist.all_reduce(rate)
    M, best = 1 / rate.item(), (0.0, 0)
    for n in range(1, int(M / step_s) + 2):
        share = n * step_s / (M * math.expm1((n * step_s + save_s) / M))
        if share > best[0]:
            best = share, n
    return best[1], best[0]
    ### END SOLUTION


# %% role="check" question="interval" points=3
def a_machine(rank, world_size):
    return [900.0, 240.0, 2000.0, 600.0, 350.0][rank], 2.0, 25.0


def share_of(n, M, step_s, save_s):
    return n * step_s / (M * math.expm1((n * step_s + save_s) / M))


def best_for(M_of, steps_of=None):
    """What all ranks give with this mean time between failures, and this rule for n."""

    def expected(mtbfs, steps, saves):
        M, step_s, save_s = M_of(mtbfs), steps[0], saves[0]
        every = range(1, int(M / step_s) + 2)
        n = max(every, key=lambda n: share_of(n, M, step_s, save_s))
        if steps_of:
            n = max(1, steps_of(M, step_s, save_s))
        return [(n, share_of(n, M, step_s, save_s))] * len(mtbfs)

    return expected


def of_any(mtbfs):
    return 1 / sum(1 / each for each in mtbfs)


verdict = check(
    "interval",
    interval,
    a_machine,
    best_for(of_any),
    only("all_reduce"),
    collectives(lambda *given: 1, hint="One sum of what?"),
    collective_nbytes(lambda *given: 8, hint="One number is enough."),
    mistakes={
        "That is the best interval of a job that fails only when its weakest rank does; any rank ends it.": (
            best_for(min)
        ),
        "Mean times are no rates: failures of all ranks add up as 1 / mtbf_s does.": best_for(
            lambda mtbfs: sum(mtbfs) / len(mtbfs) ** 2
        ),
        "That is the interval of one rank alone, of average age: R ranks fail more often.": best_for(
            lambda mtbfs: sum(mtbfs) / len(mtbfs)
        ),
        "That is Young's interval: a first order, and too long where saving takes this much of M.": (
            best_for(of_any, lambda M, step_s, save_s: round(math.sqrt(2 * save_s * M) / step_s))
        ),
        "Those are seconds; asked is a number of steps.": best_for(
            of_any, lambda M, step_s, save_s: round(math.sqrt(2 * save_s * M))
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# A rank fails `1 / mtbf_s` times in a second. How often does the job?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Add up the rates by an `all_reduce` in float64; M is one over the sum. Then try n = 1, 2, ...: beyond M it
# only gets worse.
#
# </details>

# %% role="hidden" question="interval"
seed = 1
print(
    measure(
        interval,
        lambda rank, n: (200.0 + 10 * ((seed + 13 * rank) % 40), 0.5 + seed % 3, 8.0 + seed % 5),
    )
)

# %% [markdown]
# What task 4 needs, in virtual seconds:

# %% role="setup"
STEP_S, SAVE_S = 10e-3, 4e-3


def gradient(w, x):
    """The gradient of one step; it takes 10 ms."""
    simlib.compute(seconds=STEP_S)
    return w - x


def save(*state):
    """A copy of the state; it takes 4 ms."""
    simlib.compute(seconds=SAVE_S)
    return copy.deepcopy(state)


# %% [markdown]
# ## 4. Survive two deaths (★★★, 35 minutes, 4 points)
#
# Step i: `g` is the mean over the ranks of `gradient(w, xs[i])`, by one `all_reduce`; `v = 0.9 v + g`, `w = w - 0.1 v`,
# from zeros. After every `every` steps, `save(step, w, v)` gives a checkpoint. In the all_reduces numbered in `deaths`
# (from 1, repeated ones included) a rank dies: what is not saved is lost, go on from the checkpoint. Return `(w, v)`, as
# without deaths. Budget: 10 ms for each step, *lost* ones too, 4 ms a checkpoint.


# %% role="answer" question="survive" points=4
def survive(rank, world_size, xs, every, deaths):
    """Return (w, v), two tensors of the shape of xs[0], as a run without deaths has them.

    xs has shape (steps, numbers), float32; deaths is a tuple of ints, the same on all ranks.
    """
    ### BEGIN SOLUTION
    step, w, v = 0, torch.zeros_like(xs[0]), torch.zeros_like(xs[0])
    saved, count = (step, w, v), 0
    while step < len(xs):
        g = gradient(w, xs[step])
        dist.all_reduce(g)
        count += 1
        if count in deaths:
            step, w, v = saved
            continue
        v = 0.9 * v + g / world_size
        w = w - 0.1 * v
        step += 1
        if step % every == 0:
            saved = save(step, w, v)
    return w, v
    ### END SOLUTION


# %% role="check" question="survive" points=4
def with_deaths(rank, world_size):
    random = torch.Generator().manual_seed(10 * world_size + rank)
    every, deaths = [(3, (5, 10)), (2, (4, 8)), (4, (3, 11)), (3, (8, 9)), (5, (9, 10))][
        world_size - 1
    ]
    return torch.randn(9, 4, generator=random), every, deaths


def story(xs, every=1, deaths=(), keeps_v=True, keeps_w=False, from_start=False, goes_on=False):
    """Weights, momentum and all_reduces of a run, with what goes wrong in it."""
    step, w, v = 0, torch.zeros_like(xs[0][0]), torch.zeros_like(xs[0][0])
    first = saved = (0, w, v)
    count = saves = 0
    while step < len(xs[0]):
        g, count = w - sum(x[step] for x in xs) / len(xs), count + 1
        if count in deaths:
            here = step
            step, old_w, old_v = first if from_start else saved
            w, v = (w if keeps_w else old_w), (old_v if keeps_v else torch.zeros_like(v))
            v, step = (v if not keeps_w else saved[2]), (here if goes_on else step)
            continue
        v = 0.9 * v + g
        w, step = w - 0.1 * v, step + 1
        if step % every == 0:
            saved, saves = (step, w, v), saves + 1
    return w, v, count, saves


def ends(**wrong):
    def expected(xs, every, deaths):
        dies = {"every": every[0], "deaths": deaths[0]} if wrong else {}
        return [story(xs, **dies, **wrong)[:2]] * len(xs)

    return expected


def budget_s(xs, every, deaths):
    """Each step that is done or lost, and each checkpoint; messages are free here."""
    *_, steps, saves = story(xs, every[0], deaths[0])
    return STEP_S * steps + SAVE_S * saves


def too_few(run, given):
    """A sentence where steps that were lost are not done again."""
    need = story(given[0], given[1][0], given[2][0])[2]
    made = len([op for op in run.trace if op.rank == 0 and op.kind == "all_reduce"])
    if made >= need:
        return None
    return f"The weights are right, but of {need} all_reduces {made} take place: what is lost is done again."


verdict = check(
    "survive",
    survive,
    with_deaths,
    ends(),
    only("all_reduce"),
    Rule(too_few),
    collectives(
        lambda xs, every, deaths: story(xs, every[0], deaths[0])[2],
        hint="Only steps after the last checkpoint are done again.",
    ),
    collective_nbytes(
        lambda xs, every, deaths: xs[0][0].nbytes,
        hint="The gradient of one step is enough: each rank saves for itself.",
    ),
    timed=[
        Timed(
            simlib.Cluster(3, 1, simlib.Link(0, math.inf)),
            with_deaths,
            budget_s,
            hint="One checkpoint of all three after every `every` steps, one gradient for each step.",
        )
    ],
    mistakes={
        "After a death the momentum is gone: v belongs into the checkpoint, too.": ends(
            keeps_v=False
        ),
        "After a death w is set back, but not the step: the examples of lost steps are missing.": ends(
            goes_on=True
        ),
        "The step goes back, but w does not: were the saved weights changed in place?": ends(
            keeps_w=True
        ),
    },
    points=4,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# A checkpoint has three parts: what would you need to go on as if nothing had happened?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `saved = w` keeps no copy: a later `w -= ...` changes it, too. `save(step, w, v)` does. After a death, do not change
# what was saved: you may need it again.
#
# </details>

# %% role="hidden" question="survive"
seed = 1


def other_deaths(rank, world_size):
    random = torch.Generator().manual_seed(seed + rank)
    first = 2 + seed % 5
    return torch.randn(8, 3, generator=random), 2 + seed % 3, (first, first + 1 + seed % 4)


print(measure(survive, other_deaths))
