# %% [markdown]
# # 13 Asynchronous training
#
# In every program so far the ranks took each step together, so the fast ranks waited for the slow ones.
# **DistBelief** (Dean et al. 2012, "Large Scale Distributed Deep Networks") trained without this waiting.
# Each machine worked at its own pace. This first part of lesson 13 takes 60 minutes and needs
# [lesson 06](06_synchronous_sgd.ipynb). In this part you will
#
# - write a parameter server, and let it count how old its gradients are,
# - compare four programs, which exchange gradients or parameters, at each step or at any time,
# - show for which optimizers averaging parameters gives the same result as averaging gradients,
# - let ranks exchange less often, with local SGD and DiLoCo.
#
# [The second part](13_cost_of_staleness.ipynb) asks what old gradients cost.
# [The third part](13_downpour_and_hogwild.ipynb) builds DistBelief's own algorithm.
# [The fourth part](13_for_large_models.ipynb) shows how large models use these methods today.
#
# ## Two questions, four programs
#
# "Synchronous or asynchronous?" asks *when* ranks exchange something. A second question is *what* they
# exchange. People often mix up these two questions. Each question has two answers, so there are four programs:
#
# | | **together**: all ranks exchange at each step | **apart**: each rank exchanges when it is ready |
# |---|---|---|
# | **gradients** travel | synchronous SGD (lesson 06) | asynchronous SGD, Downpour (third part) |
# | **parameters** travel | parameter averaging, local SGD | elastic averaging and similar methods |
#
# We train a network of two layers on real digits of 14 x 14 pixels. All its parameters are *one* vector of
# 6,634 numbers, theta. One vector is easy to send, to average and to cut.

# %%
import math
import time

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F

import simlib

images, labels = simlib.digits.load()[0].tensors
images = F.avg_pool2d(images - images.mean(), 2).flatten(1)
SHAPES = [(196, 32), (32,), (32, 10), (10,)]
SIZES = [math.prod(shape) for shape in SHAPES]


def start():
    torch.manual_seed(0)
    layers = [torch.randn(s) / s[0] ** 0.5 if len(s) == 2 else torch.zeros(s) for s in SHAPES]
    return torch.cat([layer.flatten() for layer in layers])


# %% [markdown]
# For each gradient a rank draws 32 examples. Each rank has its own seed, so the ranks draw different
# examples. A gradient takes 1 ms of virtual time. The network is 10 Gbit Ethernet.


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


def network(ranks, gbit=10):
    return simlib.Cluster(ranks, 1, inter=simlib.Link(10e-6, gbit * 1e9 / 8))


# %% [markdown]
# ## A server
#
# If ranks do not meet, they cannot use all_reduce. One rank must collect the gradients. So rank 0 becomes a
# **parameter server**. It keeps theta and computes no gradients. The other ranks are **workers**. A worker
# sends a gradient, receives theta, and computes its next gradient. It does not wait for other workers.
#
# While a worker computes, the server may apply gradients of other workers. Then the server's theta changes,
# but the worker still computes at the old theta. When the worker's gradient arrives, we count the updates
# that the server has made since it sent theta to this worker. This number is the **staleness** of the
# gradient.
#
# An example: the server sends theta to rank 3. Then it applies two gradients of other workers. Now the
# gradient of rank 3 arrives. Its staleness is 2.
#
# All workers begin with the server's first theta. So for a worker's first gradient, count all updates before
# it.
#
# The server's loop is half written. `dist.recv` *without a source* takes the message of **whichever worker
# comes first**, and returns the sender's rank. The answer is *one* tensor: theta, and then the number 1.0 if
# the worker goes on, or 0.0 if it stops. Each worker always has one gradient on the way. So the last
# `workers` updates get one gradient from each worker, and tell it to stop.
#
# **Now you write it:** the other half. For each update, change `theta` in place: theta ← theta - rate ·
# gradient. Then append the staleness of this gradient to a list, and return this list at the end. You need to
# remember a number for each worker.
#
# The check compares theta with plain SGD for one worker. Then it trains with four workers, one of them slow,
# and compares your list with `staleness`, which counts in the trace of all messages. You need not read
# `staleness` and the check.


# %%
def serve(theta, updates, rate, workers):
    gradient = torch.zeros_like(theta)
    for update in range(updates):
        src = dist.recv(gradient)
        # your lines: theta, and the staleness of this gradient
        go_on = torch.tensor([float(update < updates - workers)])
        dist.send(torch.cat([theta, go_on]), dst=src)
    return None  # the list, when your lines are there


def with_server(rank, world_size, updates, rate):
    theta, gradient = start(), gradients(rank)
    if rank == 0:
        return serve(theta, updates, rate, world_size - 1), theta
    answer = torch.cat([theta, torch.ones(1)])
    while answer[-1]:
        dist.send(gradient(answer[:-1]), dst=0)
        dist.recv(answer, src=0)


def staleness(run):
    """Return the staleness of each gradient that rank 0 got, in order, from the trace."""
    got = sorted((m for m in run.trace.messages if m.dst == 0), key=lambda m: m.recv.end_s)
    ages, fetched = [], {}
    for update, message in enumerate(got):
        ages.append(update - fetched.get(message.src, 0))
        fetched[message.src] = update + 1
    return ages


# %%
def check_server():
    if serve(start(), 0, 0.2, 1) is None:  # no update, so no message
        return print("not yet")
    run = simlib.simulate(with_server, 2, (64, 0.2), cluster=network(2))
    theta, gradient = start(), gradients(1)
    for _ in range(64):
        theta -= 0.2 * gradient(theta)
    off = (run.results[0][1] - theta).abs().max()
    print("one worker:", "right" if off < 1e-5 else f"not yet, theta is off by {off:.0e}")
    run = simlib.simulate(with_server, 5, (64, 0.2), cluster=network(5), slow={1: 3.0})
    yours, right = run.results[0][0], staleness(run)
    wrong = f"not yet, staleness {yours[:8]} ..., by the trace {right[:8]} ..."
    print("four workers:", "right" if yours == right else wrong)


check_server()

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def serve(theta, updates, rate, workers):
#         gradient, answered, ages = torch.zeros_like(theta), [0] * (workers + 1), []
#         for update in range(updates):
#             src = dist.recv(gradient)
#             theta -= rate * gradient
#             ages.append(update - answered[src])
#             answered[src] = update + 1
#             go_on = torch.tensor([float(update < updates - workers)])
#             dist.send(torch.cat([theta, go_on]), dst=src)
#         return ages
#
# `answered[src]` is the number of updates that were made when worker `src` last got theta.
#
# </details>
#
# ## All four programs
#
# In `together` all ranks meet at each step:
#
# - If gradients travel, the ranks add them up. So each gradient moves theta by rate · gradient, as with the
#   server.
# - If parameters travel, each rank first takes a step of its own. Then the ranks average their parameters.
#   The average divides each step by `world_size`. So a rank multiplies its learning rate by `world_size`.
#
# In `apart` rank 0 is the server:
#
# - If gradients travel, it does the same as your `serve`.
# - If parameters travel, a worker takes a step with `workers` times the learning rate, and sends its
#   parameters. The server moves theta towards them: with four workers, by a quarter of the difference.
#   *Elastic averaging* is similar, but there the workers keep parameters of their own.


# %%
def together(rank, world_size, what, steps, rate):
    theta, gradient, log = start(), gradients(rank), []
    for step in range(1, steps + 1):
        move = rate * gradient(theta)
        if what == "gradients":
            dist.all_reduce(move)  # the sum
            theta -= move
        else:
            theta -= world_size * move
            dist.all_reduce(theta, op=dist.ReduceOp.AVG)
        if rank == 0 and step % 4 == 0:
            log.append((step * world_size, time.perf_counter(), loss_of(theta).item()))
    return log


# %%
def apart(rank, world_size, what, updates, rate):
    theta, gradient, log = start(), gradients(rank), []
    came, workers = torch.zeros_like(theta), world_size - 1
    if rank == 0:
        for update in range(1, updates + 1):
            src = dist.recv(came)
            if what == "gradients":
                theta -= rate * came
            else:
                theta += (came - theta) / workers
            go_on = update <= updates - workers
            dist.send(torch.cat([theta, torch.tensor([float(go_on)])]), dst=src)
            if update % 16 == 0:
                log.append((update, time.perf_counter(), loss_of(theta).item()))
        return log
    answer = torch.cat([theta, torch.ones(1)])
    while answer[-1]:
        theta = answer[:-1]
        move = gradient(theta)
        mine = move if what == "gradients" else theta - workers * rate * move
        dist.send(mine, dst=0)
        dist.recv(answer, src=0)


# %% [markdown]
# We run all four programs with 256 gradients of four workers. All workers are equally fast. The server is a
# fifth rank.
#
# **Guess:** which two programs end with the lower losses, those *together* or those *apart*? And how many per
# cent of the time does `apart` save if gradients travel? The timeline shows the last run, in which
# parameters travel to the server.

# %%
lower, percent = None, None  # "together" or "apart"; per cent of the time
WHAT = "gradients", "parameters"
ends = {}
for what in WHAT:
    runs = {
        "together": simlib.simulate(together, 4, (what, 64, 0.2), cluster=network(4)),
        "apart": simlib.simulate(apart, 5, (what, 256, 0.2), cluster=network(5)),
    }
    for when, run in runs.items():
        update, time_s, loss = run.results[0][-1]
        ends[f"{what} {when}"] = loss, time_s
        print(f"{what:10} {when:8}: {time_s * 1e3:5.1f} ms, loss {loss:.4f}")
simlib.guess(lower, min(ends, key=ends.get).split()[1], of=("together", "apart"))
saved = 1 - ends["gradients apart"][1] / ends["gradients together"][1]
simlib.guess(percent, round(100 * saved, 1), within=0.5)
run.timeline(between=(0, 8e-3))

# %% [markdown]
# In the timeline all four workers compute nearly all the time. After the first gradient all of them send at
# once, so ranks 2 and 3 wait. Later they send one after the other. Rank 0 waits most of the time.
#
# Two results are surprising. In `apart` no worker waits for another worker, but `apart` is hardly faster.
# The second part explains why. And both programs *together* end with the same loss. A later section explains
# this.
#
# Both programs *apart* end with a higher loss. Their workers compute at an old theta.
#
# ## How old is a gradient?
#
# We measure the staleness in `apart`, first with four equal workers that send gradients. Then rank 1 becomes
# slow: it needs 3 ms for a gradient, and the others need 1 ms.
#
# **Guess:** what is the mean staleness with equal workers? What is the *mean* with the slow rank, and what is
# the largest staleness?

# %%
mean_of_equal, mean_with_slow, largest_with_slow = None, None, None
options = {"cluster": network(5)}
equal = simlib.simulate(apart, 5, ("gradients", 256, 0.2), **options)
slow = simlib.simulate(apart, 5, ("gradients", 256, 0.2), **options, slow={1: 3.0})
figure, axes = plt.subplots(figsize=(7, 2.6))
for shift, (name, run) in enumerate({"equal": equal, "rank 1 slow": slow}.items()):
    ages = staleness(run)
    print(f"{name:11}: mean {sum(ages) / 256:.3f}, largest {max(ages)}")
    counts = [ages.count(age) for age in range(13)]
    axes.bar([age + 0.4 * shift - 0.2 for age in range(13)], counts, 0.4, label=name)
axes.set(xlabel="staleness (updates)", ylabel="gradients")
axes.legend(frameon=False)
simlib.guess(mean_of_equal, sum(staleness(equal)) / 256, within=0.05)
simlib.guess(mean_with_slow, sum(ages) / 256, within=0.05)
simlib.guess(largest_with_slow, max(ages))
plt.show()

# %% [markdown]
# With W equal workers the staleness is **W - 1**. Between two gradients of a worker, each other worker sends
# one gradient. Only the first three gradients are fresher: their staleness is 0, 1 and 2. So the mean is
# 2.977 and not 3.
#
# With a slow rank the mean does not change! Each update makes the gradients of the other W - 1 workers one
# update older. It does not matter which worker comes next. So the mean is W - 1, or a little less, because
# workers stop at the end.
#
# But the slow worker's gradients are older than before. While rank 1 computes for 3 ms, each of the three
# other workers sends about three gradients. So the largest staleness is 9. The bars from 6 to 9 are rank 1's
# gradients. Most gradients of the other workers now have a staleness of 2.
#
# The first appendix measures the staleness on real ranks. You may skip both appendices.
#
# ## Averaging parameters, averaging gradients
#
# Why do both programs *together* end with the same loss? All R ranks hold the same $\theta$. Rank r computes
# the gradient $g_r$ and takes a step of its own with the learning rate $\eta$. Then the ranks average their
# parameters:
#
# $$\frac1R \sum_r (\theta - \eta\, g_r) = \theta - \eta\, \frac1R \sum_r g_r$$
#
# The right side is synchronous SGD: a step with the mean gradient. The two sides are equal because the step
# is **linear** in the gradient.
#
# SGD with momentum keeps a vector $m$ and updates it: $m \leftarrow \beta m + g$. This is linear, too: the
# mean of the ranks' vectors $m$ is the vector that the mean gradient gives. Adam is different. It divides by
# the root of a mean of *squared* gradients.
#
# The next cell trains twice with each optimizer. In the first training the ranks average their gradients. In
# the second they average their parameters. The residual is the largest difference between the two thetas at
# the end.
#
# **Guess:** for how many of the three optimizers is the residual zero, up to rounding?

# %%
same = None  # how many of SGD, momentum, Adam
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.2),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
}


def average(rank, world_size, what, name, steps):
    theta, gradient = torch.nn.Parameter(start()), gradients(rank)
    optimizer = OPTIMIZERS[name]([theta])
    for _ in range(steps):
        theta.grad = gradient(theta)
        if what == "gradients":
            dist.all_reduce(theta.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        if what == "parameters":
            dist.all_reduce(theta.data, op=dist.ReduceOp.AVG)
    return theta.detach()


gaps = []
for name in OPTIMIZERS:
    one, two = (simlib.simulate(average, 4, (w, name, 16)).results[0] for w in WHAT)
    gap, way = ((one - other).abs().max() for other in (two, start()))
    gaps.append(gap)
    print(f"{name:8}: after 16 steps residual {gap:.0e}; theta has moved by up to {way:.0e}")
simlib.guess(same, sum(gap < 1e-5 for gap in gaps))

# %% [markdown]
# For SGD and momentum the two programs give the same theta, up to rounding. For Adam they do not. The second
# appendix shows this for Adam's first step.
#
# ## Local SGD: meet every H steps
#
# Why should ranks send parameters at all? If they send parameters, they need not meet at each step. In
# **local SGD** a rank takes H steps of its own and sends nothing. Then all ranks average their parameters.
# They send H times fewer bytes. This is no longer synchronous SGD, because only the first of the H gradients
# is computed at a shared theta.
#
# How much does that cost? We train for 128 steps, and the Ethernet has only 1 Gbit. There are two cases:
#
# - *alike*: all ranks draw from the same digits.
# - *own*: the digits are sorted. Rank 0 has mostly zeros and ones, and rank 3 has mostly eights and nines. This
#   happens if data stay where they were made.
#
# **Guess:** what is the loss for H = 64 in each case? For H = 1 it is about 0.22 in both cases, and before the
# training it is 2.29.

# %%
loss_alike, loss_own = None, None  # for H = 64: all ranks draw alike; each has its own digits


def local(rank, world_size, H, alike, outer, steps=128, rate=0.2):
    order = torch.arange(len(labels)) if alike else labels.argsort(stable=True)
    mine = order.tensor_split(world_size)[rank]
    gradient = gradients(rank, images[mine], labels[mine])
    agreed, theta, momentum = start(), start(), torch.zeros(sum(SIZES))
    for step in range(1, steps + 1):
        theta = theta - rate * gradient(theta)
        if step % H == 0:
            dist.all_reduce(theta, op=dist.ReduceOp.AVG)
            agreed = theta = outer(theta, agreed, momentum)
    return loss_of(theta).item()


def show(outer):
    how = {"cluster": network(4, gbit=1), "expand": True, "all_reduce": "ring"}
    for H in (1, 4, 16, 64):
        a, b = (simlib.simulate(local, 4, (H, alike, outer), **how) for alike in (True, False))
        print(f"H = {H:2}: {sum(m.nbytes for m in a.wire):10,} bytes,", end=" ")
        print(f"{1e3 * a.time_s:5.1f} ms; loss {a.results[0]:.3f} alike, {b.results[0]:.3f} own")
    return a.results[0], b.results[0]


for guess, loss in zip((loss_alike, loss_own), show(lambda theta, *_: theta), strict=True):
    simlib.guess(guess, loss, within=0.2)

# %% [markdown]
# If all ranks draw alike, the loss hardly changes with 64 times fewer bytes: it is 0.232 instead of 0.225.
# If each rank has its own digits, the loss grows from 0.221 to 1.299. Each rank learns only its own digits.
# The more steps a rank takes on its own, the further its theta moves away from the other thetas. Then the
# mean of all thetas is worth less.
#
# The bytes fall as 1/H in both cases. **The data decide how large H may be.** The time falls less than the
# bytes, because the ranks compute for 128 ms in any case.
#
# ## DiLoCo: an outer optimizer
#
# **DiLoCo** (Douillard et al. 2023, arXiv 2311.08105) is local SGD with a second optimizer. $\theta_{old}$ are
# the parameters that the ranks agreed on at their last meeting. $\bar\theta$ is the mean of their parameters
# now. DiLoCo uses the difference $d = \theta_{old} - \bar\theta$ as a gradient, and gives it to an **outer
# optimizer**. This is SGD with Nesterov momentum $m$. It steps along $0.9\, m + d$ in place of $m$. So it looks one
# step ahead.
#
# The **inner optimizer** takes the H steps. Here it is plain SGD, which has no state. In the paper it is
# AdamW. AdamW's two means for each parameter stay on their own rank and are never averaged.
# [The fourth part](13_for_large_models.ipynb) has AdamW inside.
#
# **Now you write it:** the outer step. It computes these three values in order. The third uses the new $m$.
#
# $$d = \theta_{old} - \bar\theta \qquad m \leftarrow 0.9\, m + d \qquad \theta = \theta_{old} - 0.7\,(0.9\, m + d)$$
#
# The outer learning rate is 0.7. In the code `theta` is $\bar\theta$, and `agreed` is $\theta_{old}$. The first
# two lines are given. They change `momentum` in place, because the next call needs it. Return the new $\theta$.
# The check compares three calls with the Nesterov momentum of `torch.optim.SGD`. Then the cell prints the table
# again.


# %%
def outer(theta, agreed, momentum):
    d = agreed - theta
    momentum.mul_(0.9).add_(d)
    return theta  # yours


def as_in_torch(moves):
    theta = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([theta], 0.7, momentum=0.9, nesterov=True)
    for move in moves:
        theta.grad = -move
        optimizer.step()
    return theta.detach()


yours, m, moves = torch.zeros(2), torch.zeros(2), torch.tensor([[1.0, 2], [3, -1], [0, 1]])
for move in moves:
    yours = outer(yours + move, yours, m)
print("right" if torch.allclose(yours, as_in_torch(moves)) else "not yet")
losses = show(outer)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return agreed - 0.7 * (0.9 * momentum + d)`
#
# With this outer step the losses for H = 1, 4, 16 and 64 are 0.050, 0.066, 0.135 and 0.174 if all ranks draw
# alike. If each rank has its own digits, they are 0.050, 0.097, 0.235 and 1.119. The bytes are the same as
# before.
#
# Momentum makes the steps longer. A larger learning rate would make them longer, too, and would give a part
# of this gain. This cell cannot show how large that part is.
#
# </details>
#
# ## Your turn
#
# [Exercises 13](../exercises/13_asynchronous_training.ipynb): after this part you can do task 1, a server that
# counts staleness, and task 3, local SGD with unequal shards.
#
# ## Exit ticket
#
# 1. Sixteen equal workers send gradients to one server. What is the staleness? Then one worker becomes five
#    times as slow. What is the mean staleness now?
# 2. The ranks average their parameters at each step. For which optimizer is this different from averaging
#    gradients, and why?
# 3. Local SGD has H = 64 instead of 1. How many bytes do the ranks send now? What decides whether the loss
#    grows?
#
# <details><summary>Answers</summary>
#
# 1. The staleness is 15. The mean stays 15, but the slow worker's own gradients are older.
# 2. It is different for Adam. Adam divides by the root of a mean of squares, so its step is not linear in
#    the gradient.
# 3. They send a 64th of the bytes. The data decide whether the loss grows: if all ranks draw from the same
#    data, the loss hardly changes.
#
# </details>
#
# **Next:** what old gradients cost, in [the second part](13_cost_of_staleness.ipynb).
#
# ## Appendix: staleness on real ranks
#
# On real ranks the mean is the same. The largest staleness differs from run to run:

# %% tags=["nbval-ignore-output"]
ages = staleness(simlib.run(apart, 5, ("gradients", 256, 0.2)))
print(f"real ranks: mean {sum(ages) / 256:.3f}, largest {max(ages)}")

# %% [markdown]
# ## Appendix: Adam's first step
#
# Adam's first step is $\eta\, g / |g|$ for each parameter: it uses only the *sign* of that parameter's gradient.
# A mean of signs is not the sign of the mean. For the gradients 3 and -1, the mean of the signs is 0, and the
# sign of the mean is 1.
