# %% [markdown]
# # 13 What staleness costs
#
# This is the second part of lesson 13. In [the first part](13_asynchronous_training.ipynb) you wrote a
# parameter server. You measured the staleness of its gradients: with W workers the mean is W - 1 updates. In
# this part (60 minutes) you will
#
# - find out when asynchronous training is faster, and when it is not,
# - see one server become the bottleneck,
# - train with old gradients and without ranks, and find the learning rates at which training diverges,
# - change workers, speeds and rates with sliders,
# - show that a model split over machines is not asynchronous.
#
# The digits, the network and the cluster are the same as in the first part.

# %%
import math
import time

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F

import simlib
from simlib import labs

images, labels = simlib.digits.load()[0].tensors
images = F.avg_pool2d(images - images.mean(), 2).flatten(1)
SHAPES = [(196, 32), (32,), (32, 10), (10,)]
SIZES = [math.prod(shape) for shape in SHAPES]


def start():
    torch.manual_seed(0)
    layers = [torch.randn(s) / s[0] ** 0.5 if len(s) == 2 else torch.zeros(s) for s in SHAPES]
    return torch.cat([layer.flatten() for layer in layers])


# %% [markdown]
# A rank computes each gradient from 32 examples. This takes 1 ms of virtual time.


# %%
def loss_of(theta, x=images, y=labels):
    w1, b1, w2, b2 = (part.view(s) for part, s in zip(theta.split(SIZES), SHAPES, strict=True))
    return F.cross_entropy(torch.relu(x @ w1 + b1) @ w2 + b2, y)


def gradients(rank, x=images, y=labels):
    """Return a function: the gradient at theta, of 32 examples of this rank's own."""
    random = torch.Generator().manual_seed(100 + rank)

    def gradient(theta):
        at = torch.randint(len(x), (32,), generator=random)
        theta = theta.detach().clone().requires_grad_()
        loss_of(theta, x[at], y[at]).backward()
        simlib.compute(seconds=1e-3)
        return theta.grad

    return gradient


# %% [markdown]
# The two programs `together` and `apart` also come from the first part. Here only gradients travel.


# %%
def network(ranks, gbit=10):
    return simlib.Cluster(ranks, 1, inter=simlib.Link(10e-6, gbit * 1e9 / 8))


def together(rank, world_size, steps, rate):
    theta, gradient, log = start(), gradients(rank), []
    for step in range(1, steps + 1):
        move = rate * gradient(theta)
        dist.all_reduce(move)  # the sum
        theta -= move
        if rank == 0 and step % 4 == 0:
            log.append((step * world_size, time.perf_counter(), loss_of(theta).item()))
    return log


# %% [markdown]
# In `apart` rank 0 is the server. The last number of its answer is 1 if the worker goes on, and 0 if it stops.


# %%
def apart(rank, world_size, updates, rate):
    theta, gradient, log = start(), gradients(rank), []
    came, answer = torch.zeros_like(theta), torch.cat([theta, torch.ones(1)])
    if rank == 0:
        for update in range(1, updates + 1):
            src = dist.recv(came)
            theta -= rate * came
            go_on = update <= updates - (world_size - 1)
            dist.send(torch.cat([theta, torch.tensor([float(go_on)])]), dst=src)
            if update % 16 == 0:
                log.append((update, time.perf_counter(), loss_of(theta).item()))
    while rank > 0 and answer[-1]:
        dist.send(gradient(answer[:-1]), dst=0)
        dist.recv(answer, src=0)
    return log


# %% [markdown]
# ## "Asynchronous is faster"
#
# In the first part `apart` was hardly faster than `together`. Is that always so? Four workers compute 256
# gradients in three settings. In the first setting all ranks are equally fast, and the network has 10 Gbit/s. In
# the second setting rank 1 needs three times as long for a gradient. In the third the network has only 1 Gbit/s.
# The upper row of pictures shows the loss against *updates*, and the lower row against *time*. Which program is
# the first to reach a loss of 0.3 in each setting?

# %%
if_all_is_well, if_a_rank_is_slow, if_the_network_is = None, None, None  # "together" or "apart"
worlds = {"all is well": (10, {}), "a slow rank": (10, {1: 3.0}), "a slow network": (1, {})}
firsts = []
figure, axes = plt.subplots(2, 3, figsize=(9, 4.6), sharey=True)
for column, (name, (gbit, slow)) in enumerate(worlds.items()):
    reached = {}
    for program, R, steps in ((together, 4, 64), (apart, 5, 256)):
        options = {"cluster": network(R, gbit), "slow": slow}
        run = simlib.simulate(program, R, (steps, 0.2), **options)
        updates, times_s, losses = zip(*run.results[0], strict=True)
        first_s = next(t for t, loss in zip(times_s, losses, strict=True) if loss <= 0.3)
        reached[program.__name__] = first_s
        print(f"{name:14} {program.__name__:8}: 0.3 at {first_s * 1e3:5.1f} ms,", end=" ")
        print(f"all at {times_s[-1] * 1e3:5.1f} ms, loss {losses[-1]:.3f}")
        axes[0, column].plot(updates, losses, label=program.__name__)
        axes[1, column].plot([1e3 * t for t in times_s], losses, label=program.__name__)
    firsts.append(min(reached, key=reached.get))
    axes[0, column].set(title=name, xlabel="updates (gradients)")
    axes[1, column].set(xlabel="virtual time (ms)", ylim=(0, 2))
guesses = if_all_is_well, if_a_rank_is_slow, if_the_network_is
for guess, first in zip(guesses, firsts, strict=True):
    simlib.guess(guess, first, of=("together", "apart"))
axes[0, 0].legend(frameon=False)
axes[0, 0].set(ylabel="loss")
axes[1, 0].set(ylabel="loss")
figure.tight_layout()

# %% [markdown]
# In the upper row `apart` gains nothing: it needs about as many updates as `together`. The third part of this
# lesson shows with twenty runs that it even loses a little most of the way. The single bumps are noise
# of small batches.
#
# The lower row shows the time. Equally fast ranks hardly wait for each other, so there is little time to save.
# `apart` is faster if **ranks differ**. A synchronous step is as slow as its slowest rank, but the server takes
# the gradients that are ready. On a slow network `apart` needs much longer than `together`. Why?
#
# ## One server does one thing at a time
#
# Theta has P numbers of 4 bytes. For each update our server receives P numbers. Then it sends P numbers. It
# does one thing at a time. So U updates take at least
#
# $$T = 2\,U\,(\alpha + 4P/\beta)$$
#
# Here $\beta$ is the bandwidth and $\alpha$ the latency. We run 2, 4, 8 and 16 workers at 1 Gbit/s. That is
# $\beta$ = 125e6 bytes/s. With too few workers the server sometimes waits for a gradient, so the run takes longer
# than T. How many workers are enough to keep the server busy? (Every run waits 1 ms for the first gradient.)

# %%
enough = None  # 2, 4, 8 or 16 workers
P = len(start())
least_s = 2 * 256 * (10e-6 + 4 * P / 125e6)
print(f"P = {P:,}; the server alone: {1e3 * least_s:.1f} ms")
busy = []
for W in (2, 4, 8, 16):
    run = simlib.simulate(apart, W + 1, (256, 0.1), cluster=network(W + 1, 1))
    print(f"{W:2} workers: {run.time_s * 1e3:.1f} ms, loss {run.results[0][-1][2]:.3f}")
    busy += [W] if run.time_s < least_s + 2e-3 else []
simlib.guess(enough, busy[0])

# %% [markdown]
# With four or more workers the server sets the pace. Each further worker only adds to the staleness, which is
# W - 1. So the loss gets *worse*, and the time stays the same.
#
# Could the server be faster? The first appendix answers this. You may skip both appendices.
#
# `together` has no such bottleneck. In a ring all_reduce each rank sends $2\,\frac{R-1}{R}$ times P numbers.
# This is less than 2P for any number of ranks R.
#
# ## Staleness times learning rate
#
# When does training with old gradients diverge? The next cell trains with 1, 2, 4, 8 and 16 equal workers.
# So the staleness d of the gradients is 0, 1, 3, 7 and 15 updates. For each d the cell tries five learning
# rates. Each field of the picture shows the loss after 256 updates. For d = 0 the best of the five rates is 0.8.
# Which rate is the best for d = 3, and which for d = 15?

# %%
best_3, best_15 = None, None  # 0.05, 0.1, 0.2, 0.4 or 0.8


def loss_of_server(d, rate):
    run = simlib.simulate(apart, d + 2, (256, rate), cluster=network(d + 2))
    return run.results[0][-1][2]


ages, rates = (0, 1, 3, 7, 15), (0.05, 0.1, 0.2, 0.4, 0.8)
field = [[loss_of_server(d, rate) for rate in rates] for d in ages]
best = {d: rates[row.index(min(row))] for d, row in zip(ages, field, strict=True)}
print("the best rate for each d:", best)
simlib.guess(best_3, best[3])
simlib.guess(best_15, best[15])
figure, axes = plt.subplots(figsize=(6, 3))
axes.imshow([[min(loss, 2.4) for loss in row] for row in field], cmap="cividis", aspect="auto")
for y, row in enumerate(field):
    for x, loss in enumerate(row):
        axes.text(x, y, f"{loss:.2f}", ha="center", va="center", color="w" if loss < 1.2 else "k")
axes.set(xlabel="learning rate", ylabel="staleness d (updates)")
axes.set_xticks(range(len(rates)), rates)
axes.set_yticks(range(len(ages)), ages)
plt.show()

# %% [markdown]
# In the yellow fields training diverges: the loss is hardly lower than at the start, or higher. The number of
# workers doubles from each row to the next. The best rate halves, and training diverges at smaller rates. So
# **more workers need a smaller learning rate**. Then each update does less, and training needs more updates. This
# is the price of staleness. The number of updates per second does not show it.
#
# Does the age of the gradients cause this, and not the network or the server? Test it without ranks and
# messages. **Now you write it:** `delayed` trains in one loop. Each gradient has a staleness of exactly d.
#
# - `draw` holds d + 1 functions, one for each worker. `draw[i](theta)` returns worker i's next gradient at
#   theta. The workers take turns: 0, 1, ..., d, 0, 1, ...
# - Count the updates u = 0, 1, ... Update u takes the gradient at an old theta: at theta after u - d updates.
#   For u < d there is no such theta. Then take the gradient at `start()`.
# - Each update subtracts `rate` times this gradient from the *newest* theta. Do not change an old theta in place.
# - Return the loss at the last theta, as a float.
#
# The check compares your loop with the server's runs above.


# %%
def delayed(draw, d, rate, updates=256):
    return math.nan  # your loop


for d, rate in ((0, 0.4), (1, 0.1), (3, 0.2), (7, 0.1)):
    # The server happened to take the last worker's gradient first.
    draw = [gradients(rank) for rank in (d + 1, *range(1, d + 1))]
    loss, right = delayed(draw, d, rate), field[ages.index(d)][rates.index(rate)]
    verdict = "right" if abs(loss - right) < 1e-3 else "not yet"
    print(f"d = {d}, rate {rate}: the server {right:.4f}, yours {loss:.4f}: {verdict}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def delayed(draw, d, rate, updates=256):
#         thetas = [start()]
#         for update in range(updates):
#             old = thetas[max(0, update - d)]
#             next_gradient = draw[update % (d + 1)]
#             gradient = next_gradient(old)
#             thetas.append(thetas[-1] - rate * gradient)
#         return loss_of(thetas[-1]).item()
#
# `thetas[u]` is theta after u updates.
#
# </details>
#
# Your loop gives the same losses as the server, to four digits. So only the age of the gradients matters here.
#
# This is why many systems *limit* the age. They call it **bounded staleness**. The second appendix describes one
# of these systems.
#
# **A lab** shows both trainings in one picture. The kernel computes them without ranks. A gradient takes 1 ms,
# with a noise of a tenth. Rank 1 is three times as slow as the others. The left half shows the loss against time.
# The right half shows the staleness: a worker *fetches* theta and *pushes* gradients, and we count the gradients of
# others that the server applied between fetch and push. `n_fetch` 4 means that a worker fetches theta only after
# every fourth gradient. Until then it takes steps of its own.
#
# Start each question from the settings below.
#
# 1. Set slow to 8. Which curve moves?
# 2. Set n_fetch to 8. What do you gain, and what do you lose? Which learning rate lowers the loss again?
# 3. Set workers to 16. Which rate is best?
# 4. Set the rate to 0.1 and the message to 0.5 ms. What do you gain now if you set n_fetch to 4?
# 5. Change the seed. What changes?

# %%
labs.draw_staleness(workers=4, slow=3, n_fetch=1, rate=0.2)

# %% tags=["nbval-ignore-output"]
labs.staleness_lab(workers=4, slow=3, n_fetch=1, rate=0.2)

# %% [markdown]
# <details><summary>Answers</summary>
#
# 1. The end of *together* moves from 193 to 509 ms. The end of *apart* moves only from 82 to 88 ms.
# 2. Training still takes 80 ms, so you gain nothing. The mean staleness rises from 3.0 to 12.8. The loss of
#    *apart* rises from 0.143 to 0.795. Half the learning rate brings it down to 0.355.
# 3. The best rate is 0.05. With it *apart* ends at 0.762, and *together* at 0.490.
# 4. *apart* takes 163 ms instead of 256 ms. Its loss is 0.247 instead of 0.242.
# 5. *apart* ends at a loss between 0.140 and 0.231. *together* always ends at 0.175.
#
# </details>
#
# ## "Asynchronous is model parallel"
#
# Some pages about distributed PyTorch say that training is asynchronous if the layers of the model are on several
# devices. But these are two different questions. The first is: *when do ranks meet?* The second is: *what part of
# the model does a rank hold?*
#
# DistBelief was asynchronous, and it also cut the model, in two places. Its server is cut into **shards**, here
# into ten. Each shard is a rank that holds a tenth of theta. A worker is called a **replica**, because it has a
# copy of the model. This copy may be **split** over machines ([lesson 10](10_splitting_the_model.ipynb)). Then
# each machine asks only the shards that hold its part.
#
# In our program ranks 0 to 9 are the shards. Two more ranks form a replica. The first of them has layer 1, the
# second has layer 2. They send each other activations, and the gradients of these activations.
#
# **Now you write it:** a rank holds the numbers a, ..., b - 1 of theta. Which shards must it ask? Shard s holds
# the numbers `begins[s]`, ..., `ends[s]` - 1. As stored, the rank asks all ten shards. With the right shards the
# losses below stay the same, and the rank sends fewer bytes.


# %%
def shards_to_ask(a, b, S=10):
    ends = [part.max().item() + 1 for part in torch.arange(P).tensor_split(S)]
    begins = [0, *ends[:-1]]
    return [s for s in range(S) if begins[s] < ends[s]]  # yours: replace this line


def half_gradient(theta, at, layer, other):
    """The gradient of one layer; the other layer is on the rank `other`."""
    theta = theta.detach().clone().requires_grad_()
    w1, b1, w2, b2 = (part.view(s) for part, s in zip(theta.split(SIZES), SHAPES, strict=True))
    simlib.compute(seconds=0.5e-3)
    if layer == 1:
        h, back = torch.relu(images[at] @ w1 + b1), torch.empty(32, 32)
        dist.send(h.detach(), dst=other)
        dist.recv(back, src=other)
        h.backward(back)
    else:
        h = torch.empty(32, 32, requires_grad=True)
        dist.recv(h.data, src=other)
        F.cross_entropy(h @ w2 + b2, labels[at]).backward()
        dist.send(h.grad, dst=other)
    return theta.grad


# %%
def split(rank, world_size, steps, rate, S=10):
    parts, border = [part.clone() for part in start().tensor_split(S)], sum(SIZES[:2])
    asked = [shards_to_ask(0, border), shards_to_ask(border, P)]  # by layer 1, by layer 2
    if rank < S:
        came = torch.empty_like(parts[rank])
        ranks = sum(rank in shards for shards in asked) * (world_size - S) // 2
        for _ in range(steps * ranks):
            src = dist.recv(came)
            parts[rank] -= rate * came
            dist.send(parts[rank], dst=src)
        return parts[rank]
    replica, half = divmod(rank - S, 2)
    random = torch.Generator().manual_seed(101 + replica)
    for _ in range(steps):
        at = torch.randint(len(images), (32,), generator=random)
        g = half_gradient(torch.cat(parts), at, 1 + half, rank + 1 - 2 * half).tensor_split(S)
        for s in asked[half]:
            dist.send(g[s], dst=s)
            dist.recv(parts[s], src=s)


# %% [markdown]
# We train with one replica and with two, first whole and then split. A whole replica is a worker of `apart`. If
# splitting made training asynchronous, the gradients of a single split replica would be stale. Guess the mean
# staleness of each run.

# %%
whole_1, split_1, whole_2, split_2 = None, None, None, None


def staleness(run, workers=range(99)):
    got = [m for m in run.trace.messages if m.dst == 0 and m.src in workers]
    ages, fetched = [], {}
    for update, message in enumerate(sorted(got, key=lambda message: message.recv.end_s)):
        ages.append(update - fetched.get(message.src, 0))
        fetched[message.src] = update + 1
    return ages


for replicas, of_whole, of_split in ((1, whole_1, split_1), (2, whole_2, split_2)):
    run = simlib.simulate(apart, 1 + replicas, (128, 0.1), cluster=network(3))
    mean, loss = sum(staleness(run)) / 128, run.results[0][-1][2]
    print(f"whole x {replicas}: staleness {mean:.2f}, loss {loss:.4f}")
    simlib.guess(of_whole, mean, within=0.05)
    R = 10 + 2 * replicas
    run = simlib.simulate(split, R, (128 // replicas, 0.1), cluster=network(R))
    mean = sum(staleness(run, (10, 12))) / 128  # of the ranks that hold layer 1
    loss = loss_of(torch.cat(run.results[:10])).item()
    print(f"split x {replicas}: staleness {mean:.2f}, loss {loss:.4f};", end=" ")
    asked = [m.nbytes for m in run.trace.messages if m.src == 11 and m.dst < 10]
    print(f"rank 11 pushes {sum(asked):9,} bytes in {len(asked)} messages")
    simlib.guess(of_split, mean, within=0.05)
hold = torch.arange(P).tensor_split(10)
layers = (0, sum(SIZES[:2])), (sum(SIZES[:2]), P)
wanted = [[s for s in range(10) if ((hold[s] >= a) & (hold[s] < b)).any()] for a, b in layers]
print("right" if [shards_to_ask(*layer) for layer in layers] == wanted else "shards: not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return [s for s in range(S) if begins[s] < b and ends[s] > a]`
#
# The ranks of layer 1 must ask all ten shards. The ranks of layer 2 must ask only shard 9. The losses stay the
# same. In the first split run rank 11 now pushes a tenth of the bytes: 339,456 bytes in 128 messages. Half of the
# numbers in shard 9 belong to layer 1, so rank 11 still sends zeros for them. You avoid this in task 2 of the
# exercises.
#
# </details>
#
# The gradients of one replica are never stale, whole or split. Both runs are plain SGD, and they end at the same
# loss. With two replicas the gradients are stale, whole or split. So **several replicas cause staleness, and
# cutting a model does not**.
#
# ## Your turn
#
# You can now do task 2 (pushes to shards) and task 4 (choose for five clusters) of
# [exercises 13](../exercises/13_asynchronous_training.ipynb).
#
# ## Exit ticket
#
# 1. A link carries 100 MB/s in each direction. Theta has P = 25 million numbers. How many updates a second does
#    our server make at most?
# 2. You double the number of workers. What should you do with the learning rate, and why?
# 3. "Asynchronous SGD is model parallel." Which two questions does this sentence mix up?
#
# <details><summary>Answers</summary>
#
# 1. It makes one update in two seconds. It receives 100 MB in one second, and then sends 100 MB in one second.
#    If it sent its answers with `isend`, both would overlap, and it would make one update a second.
# 2. Halve it. The staleness about doubles, and the best rate halves.
# 3. It mixes up *when* ranks meet and *what part of the model* each rank holds. The table at the beginning of the
#    first part asks a third question: what do ranks exchange?
#
# </details>
#
# **Next:** shards, Downpour and Hogwild, in [the third part](13_downpour_and_hogwild.ipynb).
#
# ## Appendix: a server that sends and receives at the same time
#
# Each direction of a link has its own bandwidth. If the server sent its answers with `isend`, it could receive the
# next gradient at the same time. Then it would need half the time at best.
#
# ## Appendix: bounded staleness
#
# In the stale synchronous parallel server (Ho et al. 2013) no worker may be more than s steps ahead of the slowest
# worker. With s = 0 this is synchronous training. With a small s gradients are never very old, and a rank that is
# slow only sometimes does not delay the others.
