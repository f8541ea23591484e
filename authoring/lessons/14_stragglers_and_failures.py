# %% [markdown]
# # 14 Stragglers
#
# In most lessons so far all ranks were equally fast. A thousand devices are not equally fast for even one day.
# Take lessons 06 and 07 first: this lesson uses their synchronous SGD and their shards. In this first part
# (60 minutes) you will
#
# - find in a trace the rank that keeps the others waiting,
# - predict how much time is lost if *no* rank is always slow, but random delays hit all ranks,
# - see why a popular program for "dynamic load balancing" balances nothing,
# - run three remedies, one of them written by you, and see what each remedy costs.
#
# The [second part](14_when_ranks_die.ipynb) kills ranks and restarts the training. The
# [third part](14_when_to_save.ipynb) asks how often to save, and looks for faults that raise no error.

# %%
import math
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from IPython.display import display

import simlib
from simlib import scale

# %% [markdown]
# ## Find the slow rank
#
# Eight ranks train together, and one of them computes at half the speed of the others. Which rank is it? What
# percentage of their time do the eight ranks wait, on average? In the second run no rank is slow: each piece of
# computing takes a random time, with the same mean on every rank. Divide the time of that run by the time that one
# rank computes on average. What is the result?

# %%
# First picture: the slow rank, and % of the time spent waiting; second: how many times as long.
culprit, lost, longer = None, None, None


def equal_work(rank, world_size, steps):
    for _ in range(steps):
        simlib.compute(seconds=0.01)
        dist.all_reduce(torch.ones(250_000))


run = simlib.simulate(equal_work, 8, (3,), slow={21**2 % 8 + 4: 2})
display(run.timeline())
waited_s = run.states.waiting_s
print(run.states)
simlib.guess(culprit, waited_s.argmin())
simlib.guess(lost, 100 * waited_s.sum() / run.time_s / 8, within=0.15)
run = simlib.simulate(equal_work, 8, (3,), slow=scale.Jitter("exponential", spread=1, seed=4))
display(run.timeline())
print(run.states)
simlib.guess(longer, run.time_s / run.states.computing_s.mean(), within=0.2)

# %% [markdown]
# The straggler is the rank that *never waits*: here rank 5. All other ranks show hatched time in every all_reduce:
# they have arrived, and rank 5 has not. So the rank that looks busiest is the cause, and the ranks that look idle
# only wait for it. On average a rank waits for 26.3 of 64.7 ms, which is 41 % of its time. Sometimes several ranks
# are slow in turn. Then the rank that waits least does not always cost the others most. Exercise 1 is about that.
#
# One rank in eight is slow, and in each step the computing lasts 20 ms instead of 10. The all_reduce adds 1.6 ms.
# A step lasts as long as the **maximum** of the ranks' times. Of a thousand ranks, 999 would wait for the slow
# one.
#
# ## Random delays
#
# In the second picture all ranks are equally fast *on average*. But a rank may have to read a page from disk, a
# chip may get hot, or another process may run on the same cores. So the time of each piece of computing is random.
# Here the times are exponential with mean $\mu$ = 10 ms, which is a bad case. In the code,
# `slow=scale.Jitter(...)` draws them. In each step *another* rank is last, and the step lasts as long as that rank
# computes. The mean time of one rank does not depend on the number of ranks R. Does the mean time of a step depend
# on R?
#
# Suppose that k of the R ranks still compute. Exponential times have no memory: a rank that still computes needs
# $\mu$ more on average, no matter how long it has computed already. So these k ranks are like k independent clocks
# that all start now. The first of them ends after $\mu/k$ on average. Then k - 1 ranks are left, and the next one
# ends after $\mu/(k-1)$. The last rank ends after the sum of all these times. That is the mean time of a step,
# E[max]:
#
# $$E[\max] = \mu \Big(\frac1R + \frac1{R-1} + \dots + 1\Big) = \mu H_R \approx \mu\,(\ln R + 0.58)$$
#
# **Now you write it:** `harmonic(R)` returns $H_R$, the sum in the brackets. The cell compares your sum with
# `scale.expected_max`, which computes an integral. It also simulates runs. How long is a step on 16 ranks? The
# last run breaks an assumption: all ranks are delayed *together*, because they share one switch or one file
# system. How long is a step then?

# %%
alone, together_ms = None, None  # ms for a step on 16 ranks: independent delays, common delays


def harmonic(R):
    return math.nan  # yours


def noisy(R, jitter, steps=100):
    cluster = simlib.Cluster(R, 1, simlib.Link(0, math.inf))
    return simlib.simulate(equal_work, R, (steps,), cluster=cluster, slow=jitter).time_s / steps


def together(rank, k, random):
    return float(np.random.default_rng(k).exponential())  # the same for all ranks


is_right = True
for R in (1, 4, 16):
    jitters = [scale.Jitter("exponential", spread=1, seed=seed) for seed in (1, 2, 3)]
    seen_s = np.mean([noisy(R, jitter) for jitter in jitters])
    predicted = scale.expected_max(R, "exponential", spread=1)
    is_right &= abs(harmonic(R) - predicted) < 1e-9
    print(f"{R:2} ranks: {seen_s * 1e3:.1f} ms a step, E[max] {10 * predicted:.1f} ms")
print("harmonic:", "right" if is_right else "not yet")
simlib.guess(alone, seen_s * 1e3, within=0.2)
same_s = noisy(16, scale.Jitter(together))
print(f"delayed together, 16 ranks: {same_s * 1e3:.1f} ms a step")
simlib.guess(together_ms, same_s * 1e3, within=0.2)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return sum(1 / k for k in range(1, R + 1))`
#
# </details>
#
# The time of a step grows with R and never stops growing. As in Amdahl's law (lesson 09), each further rank helps
# less. Ranks that are slow together do not wait for each other. The maximum grows because the delays are
# *independent*.
#
# Exponential times are a bad case. How much time does mild noise cost? Most `lognormal` times are close to their
# mean, and a few are much longer. `spread` is the standard deviation divided by the mean.

# %%
Rs = [2**k for k in range(14)]
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for spread, color in ((0.05, "#0072B2"), (0.1, "#D55E00"), (0.2, "#009E73")):
    step = scale.expected_max(Rs, "lognormal", spread=spread)
    axes.plot(Rs, step, color=color, label=f"spread {spread}")
seen = [noisy(R, scale.Jitter("lognormal", spread=0.1, seed=1)) / 0.01 for R in (2, 8, 32)]
axes.plot([2, 8, 32], seen, "o", color="#D55E00", label="simulated, spread 0.1")
axes.set(xscale="log", xlabel="ranks", ylabel="step / one rank's mean", ylim=0.95)
axes.legend(frameon=False)
plt.show()
print("10,000 ranks, spread 0.1:", round(scale.expected_max(10_000, spread=0.1), 2))

# %% [markdown]
# The noise has a spread of only 10 %, and yet a step on 10,000 ranks takes 1.46 times as long as one rank computes
# on average. So the average rank waits for 0.46 of 1.46, about a third of the time. No profile of a single rank
# shows the cause.
#
# ## A listing that balances nothing
#
# Answers on the web to "what is *dynamic load balancing*?" often have three parts: measure the time of each step,
# lower the learning rate of the slow node, and let one process validate meanwhile. The next cell is a program with
# these parts. We call it the *listing*. It trains on digits. In its first run, rank 3 computes at half speed. How
# many of the four ranks will lower their rate? Will that save time? In the last two runs no rank is slow. In one
# of them, rank 0 validates for 5 ms after each step. How much longer do its ten steps take? (In `simulate`,
# `time.monotonic` reads the virtual clock.)

# %%
images, labels = simlib.digits.load()[0][:800]
X = images.flatten(1)


def gradient(W, x, y):
    return x.T @ (torch.softmax(x @ W, 1) - F.one_hot(y, 10)) / len(x)


def listing(rank, world_size, whole_step, validate_s):
    W, rate, times = torch.zeros(784, 10), 0.5, [torch.zeros(1) for _ in range(world_size)]
    for step in range(10):
        began, mine = time.monotonic(), slice(80 * step + 20 * rank, 80 * step + 20 * rank + 20)
        simlib.compute(seconds=10e-3)
        g = gradient(W, X[mine], labels[mine]) / world_size
        own_s = time.monotonic() - began
        dist.all_reduce(g)
        step_s = time.monotonic() - began if whole_step else own_s
        dist.all_gather(times, torch.tensor([step_s]))
        if step_s > 1.01 * torch.stack(times).mean():
            rate *= 0.9  # slower than the others
        W -= rate * g
        if rank == 0:
            simlib.compute(seconds=validate_s)  # one process validates
    return W, rate


# %%
lowered, longer_ms = None, None  # ranks that lower their rate; ms that validating adds

ends_ms = {}
for name, (*args, slow) in {
    "as printed": (True, 5e-3, {3: 2}),
    "own seconds": (False, 5e-3, {3: 2}),
    "no slow rank": (False, 5e-3, {}),
    "no validation": (False, 0, {}),
}.items():
    run = simlib.simulate(listing, 4, args, slow=slow)
    apart = max((W - run.results[0][0]).abs().max() for W, _ in run.results)
    rates = [round(rate, 2) for _, rate in run.results]
    ends_ms[name] = run.time_s * 1e3
    print(f"{name:13} {run.time_s * 1e3:.0f} ms, rates {rates}; equal weights: {bool(apart == 0)}")
    simlib.guess(lowered if name == "as printed" else None, sum(rate < 0.5 for rate in rates))
simlib.guess(longer_ms, ends_ms["no slow rank"] - ends_ms["no validation"], within=0.1)

# %% [markdown]
# As printed, the listing reads the clock *after* the all_reduce, in which all ranks wait for the slowest. So ranks
# 1 and 2 count as slow too, although they only waited. Rank 0 arrives late because it validates. So rank 0 waits
# less, and keeps its rate. In the second run each rank measures its own computing, and only rank 3 counts as slow.
#
# But a learning rate does not change the time that a gradient takes. So the listing saves no time. It takes 207 ms
# with three lowered rates, and 207 ms with one. Worse, the replicas *drift apart*, and no later step brings them
# back together.
#
# In the third run no rank is slow, but rank 0 validates, and all others wait for it. This adds 50 ms to ten steps.
# Divide the validation among all ranks (lesson 07), or use the queue below.
#
# ## Remedy 1: shards by speed
#
# We can balance *work*. We try three ways to divide the 80 examples of a step among the ranks. Rank 3 runs at half
# speed:
#
# - **equal**: each rank gets 20 examples;
# - **speed**: each rank gets examples in proportion to its speed, and the ranks take a plain mean of their
#   gradients, as always;
# - **weighted**: the same shards, but each rank's gradient has a weight, its share of the examples.
#
# One example takes 0.5 ms at full speed. How long do ten steps take with shares by speed? How many of the three
# ways end with the same model as one process?

# %%
by_speed_ms, equals = None, None  # ms for ten steps; how many of the three


def shares_of(seconds_per_example, B):
    speeds = [1 / seconds for seconds in seconds_per_example]
    return [round(B * speed / sum(speeds)) for speed in speeds]


def train_shards(rank, world_size, shares, weigh):
    W, B, first = torch.zeros(784, 10), sum(shares), sum(shares[:rank])
    for step in range(10):
        mine = slice(B * step + first, B * step + first + shares[rank])
        simlib.compute(seconds=0.5e-3 * shares[rank])
        weight = shares[rank] / B if weigh else 1 / world_size
        dist.all_reduce(g := weight * gradient(W, X[mine], labels[mine]))
        W -= 0.5 * g
    return W


one_process = simlib.simulate(train_shards, 1, ([80], True)).results[0]
by_speed, same = shares_of([0.5e-3, 0.5e-3, 0.5e-3, 1e-3], 80), []
ways = {"equal": ([20] * 4, True), "speed": (by_speed, False), "weighted": (by_speed, True)}
for name, (shares, weigh) in ways.items():
    run = simlib.simulate(train_shards, 4, (shares, weigh), slow={3: 2})
    same.append(max((W - one_process).abs().max() for W in run.results) < 1e-5)
    print(f"{name:8} {shares}: {run.time_s * 1e3:.0f} ms; as one process: {bool(same[-1])}")
simlib.guess(by_speed_ms, run.time_s * 1e3, within=0.1)
simlib.guess(equals, sum(same).item())

# %% [markdown]
# Shards by speed save the time: 117 ms instead of 202. With these shards, only the weighted mean gives the model
# of one process: $\sum_r \frac{n_r}{B}\, g_r$. Here $n_r$ is the number of examples on rank r. In a plain mean
# each example of the slow rank counts 23/11 times as much as another. The balancing becomes *dynamic* if you
# measure the seconds again and again, and compute new shares from them. The sum of rounded shares may differ from
# B. Exercise 2 asks for the best shares that add up to B.
#
# ## Remedy 2: a work queue
#
# When you validate, search for settings, or prepare data, the pieces of work do not depend on each other. Then
# nobody has to predict speeds. Rank 0 keeps a **queue**, and gives the next piece to the rank that asks first. The
# other ranks are the *workers*: they ask, work, and ask again.
#
# Rank 0 does not know who will ask next. So it receives from *any* source: `dist.recv(tensor)` without `src`
# takes the first message that arrives, and returns the rank that sent it. When no piece is left, each worker
# still asks once more. Rank 0 answers with a negative number, and the worker stops.
#
# Below, 40 pieces take 5, 10 or 15 ms each, and four workers share them. First all workers are equally fast. Then
# worker 3 takes three times as long. In that second case, how long does the work take if each worker gets ten
# pieces beforehand? How long would it take if you divided the work perfectly, by speed?
#
# **Now you write it:** `queue` runs on all ranks. Rank 0 answers `pieces + world_size - 1` questions, each with
# the number of the next piece, or with -1. A worker sends a tensor of one element to ask, and receives one as the
# answer. It calls `work(number)` for each piece, and returns the list of its numbers. Rank 0 returns an empty
# list. The check says "right" if every piece is done exactly once, and if the run ends at most one piece later
# than with a perfect division.

# %%
lists_ms, perfect_ms = None, None  # with the slow worker: ten pieces each; divided perfectly


def work(number):
    simlib.compute(seconds=0.005 * (1 + number % 3))


def queue(rank, world_size, pieces):
    return []  # yours


times_ms, ends = [5 * (1 + number % 3) for number in range(40)], []
for factor in (1, 3):
    lists = [sum(times_ms[worker::4]) * (factor if worker == 2 else 1) for worker in range(4)]
    best = sum(times_ms) / (3 + 1 / factor)  # all the work / all the speed
    run = simlib.simulate(queue, 5, (40,), slow={3: factor})
    done = sorted(number for numbers in run.results for number in numbers)
    is_late = run.time_s * 1e3 > best + factor * max(times_ms)
    ends.append((done == [*range(40)], is_late))
    print(f"worker 3 x {factor}: ten each {max(lists)} ms, perfect {best:.1f} ms;", end=" ")
    print(f"your queue {run.time_s * 1e3:.0f} ms, pieces", [len(one) for one in run.results[1:]])
print("queue:", "right" if ends == [(True, False)] * 2 else "not yet")
simlib.guess(lists_ms, max(lists), within=0.1)
simlib.guess(perfect_ms, best, within=0.1)

# %% [markdown]
# <details><summary>Answer</summary>
#
#     mine, ask, answer = [], torch.zeros(1), torch.zeros(1)
#     if rank == 0:
#         for number in range(pieces + world_size - 1):
#             answer[0] = number if number < pieces else -1
#             dist.send(answer, dst=dist.recv(ask))
#         return mine
#     while True:
#         dist.send(ask, dst=0)
#         dist.recv(answer, src=0)
#         if answer < 0:
#             return mine
#         work(int(answer))
#         mine.append(int(answer))
#
# With this answer the two runs take 106 and 126 ms.
#
# </details>
#
# If the pieces are divided beforehand, all wait for the slow worker's ten pieces, which take 315 ms. In the queue
# the slow worker asks less often, so it does 4 pieces while the others do 11 to 13. The queue ends at most one
# piece later than a perfect division.
#
# What does the asking cost? When all workers are equally fast, ten pieces each take 105 ms, and the queue takes
# about 1 ms more. But rank 0 serves the queue and computes nothing. Without a queue, rank 0 could compute too.
# Then five ranks with eight pieces each would need only 85 ms.
#
# ## Remedy 3: backup workers
#
# In training, each step depends on the one before. But does a step need *all* gradients? Chen et al. (2016, arXiv
# 1604.00981) start R workers, k more than needed. Each step takes the first $R - k$ gradients that arrive, and
# throws away the late ones. Below, R = 4 workers send their gradients to a server, which is rank 0. Worker 4 has
# all the sevens of the data set, and computes at half speed. How many times as fast is the training with k = 1 as
# with k = 0? What percentage of the sevens does the model recognise after k = 1?


# %%
def with_backup(rank, world_size, k, steps):
    R, state, got = world_size - 1, torch.zeros(7841), torch.empty(7841)
    while rank > 0 and state[-1] < steps:  # state: weights, and the number of the step
        x, y = X[PARTS[rank]], labels[PARTS[rank]]
        simlib.compute(seconds=0.01)
        g = gradient(state[:-1].view(784, 10), x, y) * len(x) / 200
        dist.send(torch.cat([g.flatten(), state[-1:]]), dst=0)
        dist.recv(state, src=0)
    for step in range(steps if rank == 0 else 0):
        senders, total = [], torch.zeros(7840)
        while len(senders) < R - k:
            src = dist.recv(got)
            if got[-1] == step:
                senders, total = [*senders, src], total + got[:-1]
            else:
                dist.send(state, dst=src)  # too late: go on with the current weights
        state += torch.cat([-0.5 * total / len(senders), torch.ones(1)])
        for src in senders:
            dist.send(state, dst=src)
    for _ in range(k if rank == 0 else 0):  # workers that are late in the last step
        dist.send(state, dst=dist.recv(got))
    return state[:-1].view(784, 10)


# %%
times, known = None, None  # k = 1: how many times as fast as k = 0; % of the sevens recognised

sevens = labels == 7
others = (~sevens).nonzero().flatten()
PARTS = {w: others[w - 1 :: 3] for w in (1, 2, 3)} | {4: sevens.nonzero().flatten()}
test_images, test_labels = simlib.digits.load()[1][:]
ends_s = []
for k in (0, 1):
    run = simlib.simulate(with_backup, 5, (k, 20), slow={4: 2})
    right = (test_images.flatten(1) @ run.results[0]).argmax(1) == test_labels
    of_sevens = 100 * right[test_labels == 7].float().mean().item()
    ends_s.append(run.time_s)
    print(f"k = {k}: {run.time_s * 1e3:.0f} ms; recognised: {right.float().mean():.0%} of", end=" ")
    print(f"all digits, {of_sevens:.0f} % of the sevens")
simlib.guess(times, ends_s[0] / ends_s[1], within=0.1)
simlib.guess(known, of_sevens, within=0.1)

# %% [markdown]
# Training is nearly twice as fast. But the model does not recognise a single seven. The slow worker's gradients
# are always late, so the mean never contains them. Backup workers are fair if any worker may be the late one, and
# if each worker draws from all data. If each worker has its own shard, backup workers cause a **bias**.
#
# There is a fourth remedy, the **time-out**: a rank that is late by more than a limit T counts as dead. The second
# part says how to choose T.
#
# ## Which remedy?
#
# | what you see | what to do |
# |---|---|
# | the same rank never waits, in all steps | repair or replace it; until then use shards by speed and weighted means |
# | another rank is last in each step | backup workers, if each draws from all data; or meet less often (lesson 13) |
# | the pieces of work do not depend on each other | a work queue |
#
# ## Your turn
#
# [Exercises 14](../exercises/14_stragglers_and_failures.ipynb): tasks 1 and 2 are about this part. You find the
# culprit in recorded traces, and compute the best shards by speed.
#
# ## Exit ticket
#
# 1. Rank 5 waits more than all others. Is it the straggler?
# 2. Computing takes exponential times with a mean of 10 ms. How long is a step on 8 ranks?
# 3. Rank 3 is half as fast, and gets half the learning rate. What do you gain?
#
# <details><summary>Answers</summary>
#
# 1. No. The straggler is the rank that does not wait.
# 2. 10 (1 + 1/2 + ... + 1/8) = 27 ms.
# 3. Nothing. And if each rank applies its own rate, the replicas drift apart.
#
# </details>
#
# **Next:** what happens when a rank does not come at all, in [the second part](14_when_ranks_die.ipynb).
