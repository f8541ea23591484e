# %% [markdown]
# # 13 Asynchronous training
#
# In every program so far the ranks took each step together: who was first waited for who was last.
# In 2012 Google trained on thousands of machines without waiting (**DistBelief**; Dean et al.,
# "Large Scale Distributed Deep Networks"). In this lesson (90 minutes) you will
#
# - run four programs on the same data: send gradients or parameters, together or apart,
# - show when averaging parameters *is* averaging gradients, and when it is not,
# - build a parameter server, and measure how old its gradients are,
# - lose the belief that asynchronous is faster, and find where it is,
# - cut the server into shards, and build DistBelief's **Downpour SGD**, which outlives a lost rank.
#
# ## Two questions, four programs
#
# "Synchronous or asynchronous" is one question. There is another, and people mix them up:
#
# | | **together**: all ranks at each step | **apart**: each rank when it is ready |
# |---|---|---|
# | **gradients** travel | synchronous SGD (lesson 06) | asynchronous SGD, Downpour |
# | **parameters** travel | parameter averaging, local SGD | elastic averaging and its like |
#
# A network of two layers on real digits, 14 x 14 pixels. All its parameters are *one* vector, theta:
# that makes it easy to send, to average and to cut.

# %%
import math
import threading
import time
from datetime import timedelta

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
# Each rank draws its own examples, 32 at a time, by its own seed. A gradient takes 1 ms. In the program
# `together` ranks meet at each step. Gradients are *added up*, so that every example moves theta by
# the same amount, however many ranks there are. Who sends parameters takes its own step first,
# which is `world_size` times as long, then all take the mean.


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


# %% [markdown]
# ## A server
#
# To be apart, ranks need somebody to meet: rank 0 becomes a **parameter server**, which keeps theta and
# computes no gradients. A worker sends what it has, gets theta back, and goes on. The server's first
# line is the whole idea: `recv` *without a source*, so it serves **whoever comes first**. The last
# number of its answer says whether to go on.


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
# All four, with 256 gradients of four workers, on 10 Gbit Ethernet. (The server is a fifth rank.) Which is
# first, and which ends lowest? Times are virtual: the same in every run, on every machine.

# %%
guess = None  # the quickest; the lowest loss


def network(ranks, gbit=10):
    return simlib.Cluster(ranks, 1, inter=simlib.Link(10e-6, gbit * 1e9 / 8))


for what in ("gradients", "parameters"):
    runs = {
        "together": simlib.simulate(together, 4, (what, 64, 0.2), cluster=network(4)),
        "apart": simlib.simulate(apart, 5, (what, 256, 0.2), cluster=network(5)),
    }
    for when, run in runs.items():
        update, time_s, loss = run.results[0][-1]
        print(f"{what:10} {when:8}: {time_s * 1e3:5.1f} ms, loss {loss:.4f}")
run.timeline()

# %% [markdown]
# Two surprises. Nobody waits for anybody, and apart is hardly sooner. And in the row *together* it did not matter
# what travelled. Take the second one first.
#
# ## Averaging parameters, averaging gradients
#
# Let all ranks hold the same $\theta$, and each take its own step of length $\eta$, then average:
#
# $$\frac1R \sum_r (\theta - \eta\, g_r) = \theta - \eta\, \frac1R \sum_r g_r$$
#
# The right side is synchronous SGD. It needs one thing: that the step is **linear** in the gradient.
# Momentum, $m \leftarrow \beta m + g$, is linear, too: the mean of all $m_r$ is the $m$ of the mean gradient. Adam
# divides by the root of the mean *square*. What will the residuals be?

# %%
guess = None  # which residuals are zero, up to rounding?
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.2),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
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


for name in OPTIMIZERS:
    one, two = (
        simlib.simulate(average, 4, (w, name, 16)).results[0] for w in ("gradients", "parameters")
    )
    gap, way = (one - two).abs().max(), (one - start()).abs().max()
    print(f"{name:8}: after 16 steps residual {gap:.0e}, beside a way of {way:.0e}")

# %% [markdown]
# For SGD and momentum they are one program, written twice, up to rounding. For Adam they are two: its first step is
# $\eta\, g / |g|$, the *sign* of the gradient, and a mean of signs is not the sign of the mean.
#
# ## Local SGD: meet every H steps
#
# So why send parameters at all? Because then one may skip. After H steps of its own a rank has sent nothing, and the
# mean still makes sense: **local SGD**. It sends H times less. It is no longer synchronous SGD, since each rank
# takes its later gradients where *it* stands. How much does that hurt, if all ranks draw from the same
# digits? And if rank 0 has mostly zeros and ones, rank 3 mostly nines (data that stay where they were made)?

# %%
guess = None  # the loss for H = 64: all digits alike; each rank its own digits


def local(rank, world_size, H, alike, outer, steps=128, rate=0.2):
    order = torch.arange(len(labels)) if alike else labels.argsort(stable=True)
    mine = order.tensor_split(world_size)[rank]
    theta, gradient = start(), gradients(rank, images[mine], labels[mine])
    agreed, momentum = theta.clone(), torch.zeros_like(theta)
    for step in range(1, steps + 1):
        theta -= rate * gradient(theta)
        if step % H == 0:
            dist.all_reduce(theta, op=dist.ReduceOp.AVG)
            theta = outer(theta, agreed, momentum)
            agreed = theta.clone()
    return loss_of(theta).item()


def show(outer):
    for H in (1, 4, 16, 64):
        options = {"cluster": network(4, gbit=1), "expand": True, "all_reduce": "ring"}
        runs = [simlib.simulate(local, 4, (H, alike, outer), **options) for alike in (True, False)]
        sent = sum(message.nbytes for message in runs[0].wire if message.src == 0)
        print(f"H = {H:2}: {runs[0].time_s * 1e3:5.1f} ms, {sent:9,} bytes a rank,", end=" ")
        print("loss {:.3f} alike, {:.3f} each its own".format(*(run.results[0] for run in runs)))


# %%
show(lambda theta, agreed, momentum: theta)

# %% [markdown]
# Where all draw from the same digits, 64 times fewer bytes cost next to nothing: each rank's way is a
# fair sample. With digits of its own, each rank runs towards another goal, and the longer it runs,
# the less their mean is worth. The bytes fall as 1/H either way; **what H may be, the data decide**.
#
# **DiLoCo** (Douillard et al. 2023, arXiv 2311.08105) treats what the ranks agreed on, $\theta_{old} -
# \bar\theta$, as if it were a gradient, and gives it to an outer optimizer with Nesterov momentum.
# **Now you write it**: $d = \theta_{old} - \bar\theta$; $m \leftarrow 0.9\, m + d$; the new $\theta$ is $\theta_{old} -
# 0.7\,(0.9\, m + d)$.


# %%
def outer(theta, agreed, momentum):
    return theta  # replace this line


show(outer)

# %% [markdown]
# <details><summary>Answer</summary>
#
# ```python
# d = agreed - theta
# momentum.mul_(0.9).add_(d)
# return agreed - 0.7 * (0.9 * momentum + d)
# ```
#
# Losses alike .050 .066 .135 .174, each its own .050 .097 .235 1.119, with the same bytes. A momentum makes
# steps longer, so part of the gain any larger rate would give; the cell shows no more than that.
#
# </details>
#
# ## How old is a gradient?
#
# Now the column *apart*. A worker fetches theta, computes, and comes back. Meanwhile others have moved theta. The
# gradient belongs to a theta that is gone. Its **staleness** is the number of updates in between. Four equal
# workers: what will it be? And if rank 1 is three times as slow: what becomes of the *mean*? The
# trace knows all: just go through the messages that the server got, in order.

# %%
guess = None  # mean and largest: four equal workers; one of them slow


def staleness(run):
    got = [message for message in run.trace.messages if message.dst == 0]
    ages, fetched = [], {}
    for update, message in enumerate(sorted(got, key=lambda message: message.recv.end_s)):
        ages.append(update - fetched.get(message.src, 0))
        fetched[message.src] = update + 1
    return ages


options = {"cluster": network(5)}
equal = simlib.simulate(apart, 5, ("gradients", 256, 0.2), **options)
slow = simlib.simulate(apart, 5, ("gradients", 256, 0.2), **options, slow={1: 3.0})
figure, axes = plt.subplots(figsize=(7, 2.6))
for shift, (name, run) in enumerate({"equal": equal, "rank 1 slow": slow}.items()):
    ages = staleness(run)
    print(f"{name:11}: mean {sum(ages) / 256:.3f}, largest {max(ages)}")
    counts = [ages.count(age) for age in range(13)]
    axes.bar([age + 0.4 * shift for age in range(13)], counts, 0.4, label=name)
axes.set(xlabel="staleness (updates)", ylabel="gradients")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# With W equal workers it is **W - 1**: each of the others comes once. (Only the first round is fresher.) And the mean
# does not change with a slow rank! Each update makes the gradient of *every* other worker one older, so
# the mean is W - 1 in any order; the slow one's gradients are old, all others' a little younger. On real
# ranks, too, where the order changes from run to run:

# %% tags=["nbval-ignore-output"]
guess = None  # the mean, and the largest
run = simlib.run(apart, 5, ("gradients", 256, 0.2))
ages = staleness(run)
print(f"mean {sum(ages) / 256:.3f}, largest {max(ages)}, loss {run.results[0][-1][2]:.3f}")
