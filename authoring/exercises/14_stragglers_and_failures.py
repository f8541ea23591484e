# %% [markdown]
# # Exercises 14: stragglers and failures
#
# This sheet has four tasks for [lesson 14](../notebooks/14_stragglers_and_failures.ipynb). In the first
# task you read recorded traces. In the second task you divide a batch by the speed of the ranks. In the
# third task you choose an interval for checkpoints. In the fourth task you write a training run that
# survives deaths.

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


def int_first(run, given):
    """A sentence where the first of two returned numbers is no int."""
    wrong = next((one for one in run.results if isinstance(one[0], float)), None)
    return wrong and f"The value is right, but {wrong[0]} is a float: an int is asked for."


# %% [markdown]
# ## 1. The culprit (★★, 20 minutes, 2 points)
#
# You get a recorded trace, the float64 tensor `came_ms`. `came_ms[step, r]` is the time when rank r of
# the *recorded* run reached the all_reduce, in milliseconds after the start of the step. A step goes on
# when the last rank has reached the all_reduce. Suppose that you can speed up one rank. In each step in
# which this rank is last, it would then reach the all_reduce together with the last but one. Which rank
# saves the most time? Return `(r, ms)`, an int and a float. If several ranks save the same time, take
# the lowest of them. Send nothing.


# %% role="answer" question="culprit" points=2
def culprit(rank, world_size, came_ms):
    """Return (r, ms): the rank that holds the others up longest, and for how long in all.

    came_ms has shape (steps, ranks of the recorded run), at least two ranks. Your function must
    not change came_ms.
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


def against_all(came_ms):
    """How much later than the mean of all, itself included."""
    totals = [0.0] * came_ms.shape[1]
    for row in came_ms.tolist():
        totals[row.index(max(row))] += max(row) - sum(row) / len(row)
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
        "That rank computes most in all, so it waits least; but who waits least need not cost the "
        "others most: how often is it last, and by how much?": named(busiest),
        "That rank waits most: it is a victim.": named(waits_most),
        "The rank is right. If it were quicker, the step would end with the next to last, not with the "
        "mean of the others.": named(held_up, against_the_mean),
        "The rank is right. If it were quicker, the step would end with the next to last, not with the "
        "mean of all, itself included.": named(held_up, against_all),
        "The rank is right. You added up what all ranks wait; asked is how much sooner the steps "
        "would end.": named(held_up, lost_by_all),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# In each step only two numbers count: the time of the last rank, and the time of the last but one.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `values, places = came_ms.topk(2, dim=1)` gives both numbers for all steps.
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
# Each rank has B examples of its own, `xs`, and needs `example_s` seconds for one example. A step takes
# B examples *in all*. Hand out these B examples one by one. Give each example to the rank that would
# then finish *first*. If several ranks would finish at the same time, take the lowest of them. A rank
# that gets n examples takes the first n of its `xs`. Return `(share, mean)`. `share` is the number of
# examples of this rank, and `mean` is the mean of the B examples that the ranks take. Use one
# `all_gather` and one `all_reduce`. In both calls each rank brings its own part.


# %% role="answer" question="by_speed" points=3
def by_speed(rank, world_size, xs, example_s):
    """Return (share, mean): an int, and a tensor of the shape of one example.

    xs has shape (B, numbers per example), float32. example_s is a float. Your function
    must not change xs.
    """
    ### BEGIN SOLUTION
    times = [torch.zeros(1) for _ in range(world_size)]
    dist.all_gather(times, torch.tensor([example_s]))
    shares = [0] * world_size
    for _ in range(len(xs)):
        done = [(n + 1) * each.item() for n, each in zip(shares, times, strict=True)]
        shares[done.index(min(done))] += 1
    mean = xs[: shares[rank]].sum(0) / len(xs)
    dist.all_reduce(mean)
    return shares[rank], mean
    ### END SOLUTION


# %% role="check" question="by_speed" points=3
def a_batch(rank, world_size):
    """From three ranks on the last one is so slow that it gets no example."""
    B, *times = [
        (5, 1.0),
        (9, 1.0, 2.0),
        (13, 0.5, 1.25, 32.0),
        (14, 1.0, 2.0, 1.5, 32.0),
        (16, 1.0, 2.0, 1.5, 0.75, 32.0),
    ][world_size - 1]
    return (torch.arange(3.0 * B).reshape(B, 3) + rank) ** 2, times[rank]


def handed_out(B, times, one_more=1):
    shares = [0] * len(times)
    for _ in range(B):
        done = [(n + one_more) * time for n, time in zip(shares, times, strict=True)]
        shares[done.index(min(done))] += 1
    return shares


def rounded(B, times):
    """Shares in proportion to the speeds, rounded down; the last rank gets what is left."""
    speeds = [1 / time for time in times]
    shares = [int(B * speed / sum(speeds)) for speed in speeds]
    return [*shares[:-1], B - sum(shares[:-1])]


def largest_remainder(B, times):
    """As `rounded`, but the rest goes to those whose share was cut most."""
    exact = [B / time / sum(1 / each for each in times) for time in times]
    shares = [int(each) for each in exact]
    cut_most = sorted(range(len(times)), key=lambda r: shares[r] - exact[r])
    for r in cut_most[: B - sum(shares)]:
        shares[r] += 1
    return shares


def shared(shares_of, mean_of=lambda parts: torch.cat(parts).mean(0)):
    def expected(batches, times):
        shares = shares_of(len(batches[0]), times)
        parts = [xs[:share] for xs, share in zip(batches, shares, strict=True)]
        return [(share, mean_of(parts)) for share in shares]

    return expected


def mean_of_means(parts):
    return sum(part.mean(0).nan_to_num() for part in parts) / len(parts)


def with_nan(parts):
    """Weighted means; the mean over nothing is nan."""
    return sum(part.mean(0) * len(part) for part in parts) / sum(map(len, parts))


verdict = check(
    "by_speed",
    by_speed,
    a_batch,
    shared(handed_out),
    only("all_gather", "all_reduce"),
    Rule(int_first),
    collectives(lambda *given: 2, hint="One for the times, one for the mean."),
    collective_nbytes(
        lambda batches, times: 4 + 4 * batches[0].shape[1],
        hint="A time is 4 bytes, a part of the mean has the size of one example.",
    ),
    mistakes={
        "The shares are right. A plain mean of the ranks' means lets examples of slow ranks count "
        "more: weigh each by its share.": shared(handed_out, mean_of_means),
        "The shares are right. A rank without examples brings the mean over nothing; a sum over "
        "nothing is 0.": shared(handed_out, with_nan),
        "The shares are right, the mean is that of one rank's xs: the others have examples, too.": (
            lambda batches, times: [
                (share, xs.mean(0))
                for share, xs in zip(handed_out(len(batches[0]), times), batches, strict=True)
            ]
        ),
        "The shares are right, the mean is that of this rank's part alone.": (
            lambda batches, times: [
                (share, xs[:share].mean(0))
                for share, xs in zip(handed_out(len(batches[0]), times), batches, strict=True)
            ]
        ),
        "The shares are right, the mean is that of all examples of all ranks: only B are taken.": (
            lambda batches, times: [
                (share, torch.cat(batches).mean(0)) for share in handed_out(len(batches[0]), times)
            ]
        ),
        "Those are equal shares, whatever the speeds.": shared(
            lambda B, times: [len(part) for part in torch.arange(B).tensor_split(len(times))]
        ),
        "Those are shares in proportion to the speeds, and the last rank gets what rounding left: hand "
        "them out one by one.": shared(rounded),
        "That gives each example to the rank that is free first, not to the one that would be done "
        "first.": shared(lambda B, times: handed_out(B, times, one_more=0)),
        "Those are shares in proportion, the rest to those cut most: near the best, but not the "
        "best. Hand them out one by one.": shared(largest_remainder),
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
# If every rank knows all times, it can hand out all B examples by itself. Then it gets the same shares
# as the other ranks.
#
# </details>
# <details><summary>Hint 2</summary>
#
# If a rank has n examples and gets one more, it finishes after `(n + 1) * time`. Give the example to the
# rank with the smallest of these times.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The mean of no examples is `nan`, but the sum of no examples is 0. So bring `part.sum(0) / len(xs)`.
#
# </details>

# %% role="hidden" question="by_speed"
seed = 1


def another_batch(rank, world_size):
    random = torch.Generator().manual_seed(seed + rank)
    xs = torch.randn(4 + (seed + world_size) % 9, 2, generator=random)
    return xs, 0.5 + ((seed + 3 * rank) % 5) / 4


print(measure(by_speed, another_batch))

# %% [markdown]
# ## 3. The best interval (★★, 25 minutes, 3 points)
#
# This rank fails on average once in `mtbf_s` seconds, independently of the other ranks. The job fails
# when any rank fails. On all ranks, a step takes `step_s` and a checkpoint takes `save_s`. The job saves
# a checkpoint after every n steps, and M is the mean time between failures of the job. Then the goodput
# is $n\,s / (M\,(e^{(n s + C)/M} - 1))$, where s = `step_s` and C = `save_s`. Find the n ≥ 1 with the
# highest goodput, and return `(n, goodput)`. Use one `all_reduce` of one number.


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
    """Among others a job that saves after 1,400 steps."""
    step_s = [0.5, 2.0, 2.0, 0.05, 2.0][world_size - 1]
    return [900.0, 240.0, 2000.0, 600.0, 350.0][rank], step_s, 25.0


def share_of(n, M, step_s, save_s):
    return n * step_s / (M * math.expm1((n * step_s + save_s) / M))


def best_for(M_of, steps_of=None, unit=lambda step_s: 1, below=math.inf):
    """What all ranks give with this mean time between failures, and this rule for n."""

    def expected(mtbfs, steps, saves):
        M, step_s, save_s = M_of(mtbfs), steps[0], saves[0]
        every = range(1, min(int(M / step_s) + 2, below))
        n = max(every, key=lambda n: share_of(n, M, step_s, save_s))
        if steps_of:
            n = max(1, steps_of(M, step_s, save_s))
        return [(n * unit(step_s), share_of(n, M, step_s, save_s))] * len(mtbfs)

    return expected


def of_any(mtbfs):
    return 1 / sum(1 / each for each in mtbfs)


verdict = check(
    "interval",
    interval,
    a_machine,
    best_for(of_any),
    only("all_reduce"),
    Rule(int_first),
    collectives(lambda *given: 1, hint="One sum of what?"),
    collective_nbytes(lambda *given: 8, hint="One number is enough."),
    mistakes={
        "That is the best interval of a job that fails only when its weakest rank does; any rank ends it.": (
            best_for(min)
        ),
        "Mean times are no rates: failures of all ranks add up as 1 / mtbf_s does.": best_for(
            lambda mtbfs: sum(mtbfs) / len(mtbfs) ** 2
        ),
        "That is the interval of one rank alone, with the average of the mean times: R ranks fail "
        "more often.": best_for(lambda mtbfs: sum(mtbfs) / len(mtbfs)),
        "That is the interval of one rank with the mean *rate* (the harmonic mean of the times): the "
        "rates of all add up.": best_for(lambda mtbfs: len(mtbfs) * of_any(mtbfs)),
        "With the sum of the times a job of more ranks would fail more seldom: rates add up.": (
            best_for(sum)
        ),
        "That is Young's interval: a first order, and too long where saving takes this much of M.": (
            best_for(of_any, lambda M, step_s, save_s: round(math.sqrt(2 * save_s * M) / step_s))
        ),
        "Those are seconds; asked is a number of steps.": best_for(
            of_any, lambda M, step_s, save_s: round(math.sqrt(2 * save_s * M))
        ),
        "That is the best n below 100; with short steps a larger one is better.": best_for(
            of_any, below=100
        ),
        "That is n times step_s, in seconds; asked is n alone.": best_for(
            of_any, unit=lambda step_s: step_s
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Where the formula comes from</summary>
#
# Deaths come at random. An interval has $x = n s + C$ seconds, and it begins again at each death. On
# average it ends after $M (e^{x/M} - 1)$ seconds, and n s of these seconds are work. The formula is from
# Daly (2006). It leaves out the time of restarts.
#
# </details>
# <details><summary>Hint 1</summary>
#
# A rank fails `1 / mtbf_s` times in a second. How often does the job fail in a second?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Add up the rates with an `all_reduce` in float64. M is one over the sum. Then try n = 1, 2, ... You can
# stop when n s is larger than M: after that the goodput only gets worse.
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
# The next cell has the parts that task 4 needs. All times are virtual seconds.

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
# In step i, `g` is the mean over the ranks of `gradient(w, xs[i])`. Compute this mean with one
# `all_reduce`. Then set `v = 0.9 v + g` and `w = w - 0.1 v`. Both v and w begin at zero. After every
# `every` steps, `save(step, w, v)` returns a checkpoint. Deaths are *played*: `deaths` has numbers of
# all_reduces, and all ranks know them. Count the all_reduces from 1, and count repeated ones too. After
# each all_reduce in `deaths`, go on from the last checkpoint: later work is lost. Return the `(w, v)` of
# a run without deaths. A step takes 10 ms, even if it is *lost*. A checkpoint takes 4 ms.


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
    every, deaths = [(3, (5, 10)), (2, (4, 8)), (4, (3, 11)), (3, (8, 10)), (5, (9, 11))][
        world_size - 1
    ]
    return torch.randn(9, 4, generator=random), every, deaths


def story(xs, every=1, deaths=(), keeps_v=True, keeps_w=False, goes_on=False):
    """Weights, momentum and all_reduces of a run, with what goes wrong in it."""
    step, w, v = 0, torch.zeros_like(xs[0][0]), torch.zeros_like(xs[0][0])
    saved = (0, w, v)
    count = saves = 0
    while step < len(xs[0]):
        g, count = w - sum(x[step] for x in xs) / len(xs), count + 1
        if count in deaths:
            step = step if goes_on else saved[0]
            w = w if keeps_w else saved[1]
            v = saved[2] if keeps_v else torch.zeros_like(v)
            continue
        v = 0.9 * v + g
        w, step = w - 0.1 * v, step + 1
        if step % every == 0:
            saved, saves = (step, w, v), saves + 1
    return w, v, count, saves


def changed_in_place(xs, every, deaths, copies=True, copies_first=False):
    """A run that changes w and v in place, also those it has gone back to."""
    step, w, v = 0, torch.zeros_like(xs[0][0]), torch.zeros_like(xs[0][0])
    saved, count = (0, w.clone(), v.clone()) if copies_first else (0, w, v), 0
    while step < len(xs[0]):
        g, count = w - sum(x[step] for x in xs) / len(xs), count + 1
        if count in deaths:
            step, w, v = saved
            continue
        v *= 0.9
        v += g
        w -= 0.1 * v
        step += 1
        if step % every == 0:
            saved = (step, w.clone(), v.clone()) if copies else (step, w, v)
    return w, v


def in_place(**how):
    def expected(xs, every, deaths):
        return [changed_in_place(xs, every[0], deaths[0], **how)] * len(xs)

    return expected


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
    xs, every, deaths = given
    need = story(xs, every[0], deaths[0])[2]
    made = len([op for op in run.trace if op.rank == 0 and op.kind == "all_reduce"])
    if made >= need:
        return None
    why = "what is lost is done again."
    if made == story(xs, 1, deaths[0])[2] > len(xs[0]):
        why = "a checkpoint comes after `every` steps, not after each."
    return f"The weights are right, but of {need} all_reduces {made} take place: {why}"


def too_quick(run, given):
    """A sentence where a gradient or a checkpoint took no time; the last one may be left out."""
    xs, every, _ = given
    least_s = budget_s(*given) - SAVE_S * (len(xs[0]) % every[0] == 0)
    if run.engine != "simulated" or run.time_s > least_s - 1e-6:
        return None
    many = least_s - run.time_s >= STEP_S
    how = "take each gradient by `gradient`" if many else "make each checkpoint by `save`"
    return (
        f"The weights are right, but {run.time_s * 1e3:.0f} ms of virtual time pass where "
        f"{least_s * 1e3:.0f} have to: {how}."
    )


verdict = check(
    "survive",
    survive,
    with_deaths,
    ends(),
    only("all_reduce"),
    Rule(too_few),
    Rule(too_quick),
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
        "The step goes back, but w and v do not: what was saved is no copy, and was changed in "
        "place.": in_place(copies=False),
        "What you went back to was changed in place, and then gone back to once more.": (
            in_place(copies_first=True)
        ),
        "What you went back to was changed in place; the zeros of the start are a checkpoint, too.": (
            in_place()
        ),
    },
    points=4,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# A checkpoint has three parts. Which values do you need to go on as if no rank had died?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `saved = w` makes no copy: a later `w -= ...` changes `saved`, too. `save(step, w, v)` makes a copy.
# After a death, do not change the saved tensors: you may need them again.
#
# </details>

# %% role="hidden" question="survive"
seed = 1


def other_deaths(rank, world_size):
    random = torch.Generator().manual_seed(seed + rank)
    first = 2 + seed % 5
    return torch.randn(8, 3, generator=random), 2 + seed % 3, (first, first + 1 + seed % 4)


print(measure(survive, other_deaths))
