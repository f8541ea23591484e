# %% [markdown]
# # 13 Asynchronous training
#
# In every program so far the ranks took each step together: who was first waited for who was last.
# **DistBelief** (Dean et al. 2012, "Large Scale Distributed Deep Networks") did without. In this lesson (120 minutes) you will
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
import time
from concurrent.futures import ThreadPoolExecutor

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
# number of its answer says whether to go on: the last answer to each worker says no.


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
# first, and which ends lowest? Times are virtual: the same on every machine. The timeline is of the last run.

# %%
guess = None  # the quickest; the lowest loss


def network(ranks, gbit=10):
    return simlib.Cluster(ranks, 1, inter=simlib.Link(10e-6, gbit * 1e9 / 8))


WHAT = "gradients", "parameters"
for what in WHAT:
    runs = {
        "together": simlib.simulate(together, 4, (what, 64, 0.2), cluster=network(4)),
        "apart": simlib.simulate(apart, 5, (what, 256, 0.2), cluster=network(5)),
    }
    for when, run in runs.items():
        update, time_s, loss = run.results[0][-1]
        print(f"{what:10} {when:8}: {time_s * 1e3:5.1f} ms, loss {loss:.4f}")
run.timeline(between=(0, 8e-3))

# %% [markdown]
# Two surprises. Nobody waits for anybody, and apart is hardly sooner. In the column *together* it did not matter
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


for name in OPTIMIZERS:
    one, two = (simlib.simulate(average, 4, (w, name, 16)).results[0] for w in WHAT)
    gap, way = ((one - other).abs().max() for other in (two, start()))
    print(f"{name:8}: after 16 steps residual {gap:.0e}, beside a way of {way:.0e}")

# %% [markdown]
# For SGD and momentum they are one program, written twice, up to rounding. For Adam they are two: its first step is
# $\eta\, g / |g|$ number by number, the *sign* of each, and a mean of signs is not the sign of the mean.
#
# ## Local SGD: meet every H steps
#
# So why send parameters at all? Because then one may skip. After H steps of its own a rank has sent nothing, and the
# mean still makes sense: **local SGD**. It sends H times less. It is no longer synchronous SGD, since each rank
# takes its later gradients where *it* stands. How much does that hurt, if all ranks draw from the same
# digits? And if rank 0 has mostly zeros and ones, rank 3 mostly eights and nines (data that stay where they were made)?

# %%
guess = None  # the loss for H = 64: all digits alike; each rank its own digits


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


show(lambda theta, agreed, momentum: theta)

# %% [markdown]
# Where all draw from the same digits, 64 times fewer bytes cost next to nothing. With digits of its own, each rank runs towards another goal, and the longer it runs,
# the less their mean is worth. The bytes fall as 1/H either way; **what H may be, the data decide**.
#
# **DiLoCo** (Douillard et al. 2023, arXiv 2311.08105) treats what the ranks agreed on, $\theta_{old} -
# \bar\theta$, as if it were a gradient, and gives it to an outer optimizer with momentum (Nesterov's, which
# looks one step ahead). **Now you write it**: $d = \theta_{old} - \bar\theta$; $m \leftarrow 0.9\, m + d$; the new $\theta$ is $\theta_{old} -
# 0.7\,(0.9\, m + d)$. Change `momentum` in place (`mul_`, `add_`): the next call needs it.


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


def staleness(run, workers=range(99)):
    got = [m for m in run.trace.messages if m.dst == 0 and m.src in workers]
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
    axes.bar([age + 0.4 * shift - 0.2 for age in range(13)], counts, 0.4, label=name)
axes.set(xlabel="staleness (updates)", ylabel="gradients")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# With W equal workers it is **W - 1**: each of the others comes once. (Only the first round is fresher.) And the mean
# does not change with a slow rank! Each update makes the gradient of *every* other worker one older, so
# the mean is W - 1 in any order; the slow one's gradients are old, all others' a little younger.
#
# ## "Asynchronous is faster"
#
# Now the first surprise. Synchronous beside asynchronous, four workers, 256 gradients, three worlds: all is
# well; rank 1 is three times as slow; the network has 1 Gbit/s. On top the loss against *updates*, below against
# *time*. Guess for each world: who is first at a loss of 0.3?

# %%
guess = None  # who is first: all well, slow rank, slow network
worlds = {"all is well": (10, {}), "a slow rank": (10, {1: 3.0}), "a slow network": (1, {})}
figure, axes = plt.subplots(2, 3, figsize=(9, 4.6), sharey=True)
for column, (name, (gbit, slow)) in enumerate(worlds.items()):
    for program, R, steps in ((together, 4, 64), (apart, 5, 256)):
        options = {"cluster": network(R, gbit), "slow": slow}
        run = simlib.simulate(program, R, ("gradients", steps, 0.2), **options)
        updates, times_s, losses = zip(*run.results[0], strict=True)
        first_s = next(t for t, loss in zip(times_s, losses, strict=True) if loss <= 0.3)
        print(f"{name:14} {program.__name__:8}: 0.3 at {first_s * 1e3:5.1f} ms,", end=" ")
        print(f"all at {times_s[-1] * 1e3:5.1f} ms, loss {losses[-1]:.3f}")
        axes[0, column].plot(updates, losses, label=program.__name__)
        axes[1, column].plot([1e3 * t for t in times_s], losses, label=program.__name__)
    axes[0, column].set(title=name, xlabel="updates (gradients)")
    axes[1, column].set(xlabel="virtual time (ms)", ylim=(0, 2))
for row in axes:
    row[0].set(ylabel="loss")
axes[0, 0].legend(frameon=False)
figure.tight_layout()
plt.show()

# %% [markdown]
# Nothing is free. Against updates asynchronous buys nothing. It costs a little: in the band near the end of this lesson
# *together* lies low. (A bump is the noise of small batches.) Where all ranks are
# equal there is hardly any waiting to be saved, either. It wins where **ranks differ**: the synchronous step is
# as slow as its slowest rank, the server takes what it gets. And on a slow network it loses by far. Why?
#
# ## One thing at a time
#
# For each update our server receives P numbers of 4 bytes, then sends as many: its loop does one thing at a time. **Now you
# write it**: how long must 256 updates take at least, at 1 Gbit/s (125e6 bytes/s, 10e-6 s of latency a message)? Then run 2 to
# 16 workers: from how many on is it the server that sets the pace?

# %%
guess = None  # the first number of workers whose time is your formula's
P = len(start())


def least_s(updates):
    return math.nan  # replace this line


print(f"P = {P:,}; the server alone: {1e3 * least_s(256):.1f} ms")
for W in (2, 4, 8, 16):
    run = simlib.simulate(apart, W + 1, ("gradients", 256, 0.1), cluster=network(W + 1, 1))
    print(f"{W:2} workers: {run.time_s * 1e3:.1f} ms, loss {run.results[0][-1][2]:.3f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return updates * 2 * (10e-6 + 4 * P / 125e6)`, 113.8 ms; the first gradient, of 1 ms, has to come first.
#
# </details>
#
# From four workers on the server sets the pace. More workers add nothing but staleness, W - 1: the loss gets *worse*
# at the same time. (Each direction of a link has it to itself: with `isend` for the answer the server would receive
# meanwhile, and need half the time at best. In a ring each rank sends $2\,\frac{R-1}{R}$ times P, nearly the same for
# any R.)
#
# ## Downpour: cut the server
#
# DistBelief's answer: **shards**, ten in its overview picture. Rank s < S holds the s-th part of theta and serves
# that part alone. No shard knows of another. Its replicas differ from our workers in one more thing: they
# push a *sum* of gradients every `n_push` steps, fetch every `n_fetch` steps (each fetch pushes, too, so an `n_push` of
# twice `n_fetch` changes nothing), and take steps of their own in between (none with Adagrad). The last
# number of a message says what it wants.
#
# (The `except` is for later: guess what for. A shard takes whoever comes first, until somebody has said goodbye.)

# %%
PUSH, FETCH, GOODBYE = 0, 1, 2


def shard(theta, replicas, rate, adagrad):
    came, squares = torch.zeros(len(theta) + 1), torch.zeros_like(theta)
    left, by_name = list(replicas), False
    while left:
        try:
            src = dist.recv(came, src=left[0] if by_name else None)
            g, wants = came[:-1], came[-1]
            squares += g**2
            theta -= rate * (g / (squares.sqrt() + 1e-8) if adagrad else g)
            if wants == FETCH:
                dist.send(theta, dst=src)
            if wants == GOODBYE:
                left.remove(src)
                by_name = True
        except RuntimeError:
            if by_name:
                del left[0]
            by_name = True
    return theta


# %%
def downpour(rank, world_size, S, steps, rate, n_push=1, n_fetch=1, adagrad=False, alone=0):
    parts = [part.clone() for part in start().tensor_split(S)]
    if rank < S:
        return shard(parts[rank], range(S, world_size), rate, adagrad)
    gradient, theta, owed = gradients(rank), start(), torch.zeros(P)
    steps += alone if rank == S else 0  # a warm start, below
    simlib.compute(seconds=alone * 1e-3 if rank > S else 0)
    for step in range(steps + 1):
        if step > 0:
            g = gradient(theta)
            owed += g
            theta = theta - (0 if adagrad else rate) * g
        wants = GOODBYE if step == steps else FETCH if step % n_fetch == 0 else PUSH
        if wants != PUSH or step % n_push == 0:
            for s, part in enumerate(owed.tensor_split(S)):
                dist.send(torch.cat([part, torch.tensor([float(wants)])]), dst=s)
                if wants == FETCH:
                    dist.recv(parts[s], src=s)
            theta = torch.cat(parts) if wants == FETCH else theta
            owed.zero_()


# %% [markdown]
# At 1 Gbit/s one server took 115 ms, for 16 workers as for 4. What do 2 and 10 shards give? Who is
# relieved: the server, or a replica?

# %%
guess = None  # ms with 1, 2 and 10 shards, for 16 replicas and for 4


def train(W, S, *args, gbit=10, **options):
    """Simulate W replicas and S shards; return the run and the loss at the end."""
    run = simlib.simulate(downpour, S + W, (S, *args), cluster=network(S + W, gbit), **options)
    return run, loss_of(torch.cat(run.results[:S])).item()


for W in (16, 4):
    for S in (1, 2, 10):
        run, loss = train(W, S, 256 // W, 0.1, gbit=1)
        messages = run.trace.messages
        shard_0, replica = (sum(m.nbytes for m in messages if r in (m.src, m.dst)) for r in (0, S))
        print(f"{W:2} replicas, {S:2} shards: {run.time_s * 1e3:5.1f} ms; over the link", end=" ")
        print(f"of shard 0 {shard_0 / 1e6:5.2f} MB, of a replica {replica / 1e6:.2f} MB")

# %% [markdown]
# A shard's link carries a tenth; a replica's carries what it always did, both ways. So with 16 replicas ten
# shards help much. With four, ten are no better than two: now replicas wait for their own computing and their own links, and
# each further shard costs two more latencies.
#
# ## "Asynchronous is model parallel"
#
# So it is told on pages that answer questions on distributed PyTorch, as if a model whose layers lie on several devices were
# trained asynchronously. These are two axes. DistBelief has both: a replica may itself be **split** over
# machines (lesson 10), and each of them asks only the shards that hold its part.
#
# Here two ranks are a replica: one has layer 1, the next has layer 2. They send each other activations and their
# gradients. **Now you write it**: which shards must a rank ask that holds the numbers a, ..., b - 1 of
# theta? Below, all are asked. With the right ones the losses printed below stay, and bytes fall.


# %%
def shards_to_ask(a, b, S=10):
    ends = [part.max().item() + 1 for part in torch.arange(P).tensor_split(S)]
    begins = [0, *ends[:-1]]
    return [s for s in range(S) if begins[s] < ends[s]]  # replace the condition


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
# One replica and two, whole and split: where are gradients stale? If splitting made training
# asynchronous, one split replica would do for that. And what goes between layer 2 and the shards?

# %%
guess = None  # mean staleness, four times
for replicas in (1, 2):
    run = simlib.simulate(apart, 1 + replicas, ("gradients", 128, 0.1), cluster=network(3))
    ages, loss = staleness(run), run.results[0][-1][2]
    print(f"whole x {replicas}: staleness {sum(ages) / 128:.2f}, loss {loss:.4f}")
    R = 10 + 2 * replicas
    run = simlib.simulate(split, R, (128 // replicas, 0.1), cluster=network(R))
    ages = staleness(run, (10, 12))  # of the ranks that hold layer 1
    loss = loss_of(torch.cat(run.results[:10])).item()
    print(f"split x {replicas}: staleness {sum(ages) / 128:.2f}, loss {loss:.4f};", end=" ")
    asked = [m.nbytes for m in run.trace.messages if m.src == 11 and m.dst < 10]
    print(f"rank 11 pushes {sum(asked):9,} bytes in {len(asked)} messages")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `if begins[s] < b and ends[s] > a`: all ten for layer 1, shard 9 alone for layer 2. The losses stay, and rank 11
# pushes 339,456 bytes in 128 messages, a tenth. (Half of what shard 9 holds is still layer 1. Exercise 2 leaves that out, too.)
#
# </details>
#
# One replica is never stale, whole or split: both are plain SGD, to the last digit. Two are stale, whole or
# split. **Staleness comes with replicas, not with cuts.**
#
# ## What it costs to talk less, and two remedies
#
# What do n_push and n_fetch save, and cost? Then the paper's two remedies.
# **Adagrad** on the shards divides each number's step by the root of the sum of all its squares so far.
# **Warm start**: one replica trains alone for a while, before the others begin.

# %%
guess = None  # which of the two remedies helps more?
for n_push, n_fetch in ((1, 1), (1, 4), (4, 4), (8, 8)):
    run, loss = train(4, 2, 64, 0.1, n_push, n_fetch)
    print(f"n_push {n_push}, n_fetch {n_fetch}: {sum(run.bytes_sent):10,} bytes, loss {loss:.3f}")
SETTINGS = {"8 replicas": (8, 1, 32, 1), "4, n_push = n_fetch = 8": (4, 2, 64, 8)}
for name, (W, S, steps, n) in SETTINGS.items():
    print(name)
    for adagrad, rates in ((False, (0.025, 0.05, 0.1, 0.2)), (True, (0.0125, 0.025, 0.05, 0.1))):
        losses = [f"{rate}: {train(W, S, steps, rate, n, n, adagrad)[1]:.3f}" for rate in rates]
        print("  Adagrad" if adagrad else "  SGD    ", *losses, sep="   ")
for alone in (0, 16):
    noises = [simlib.scale.Jitter("lognormal", spread=0.1, seed=seed) for seed in range(6)]
    losses = [train(8, 1, 32, 0.2, 1, 1, False, alone, slow=noise)[1] for noise in noises]
    print(f"8 replicas, SGD, 0.2, alone for {alone:2} steps: loss {sum(losses) / 6:.3f}, mean of 6")

# %% [markdown]
# Talking less is cheap in bytes and dear in loss: a sum of eight gradients comes as one long step, and an old one.
# Adagrad helps more: its best loss is lower in both settings (though it does not undo what n = 8 costs). Compare the
# best of each row: at the same rate the two take steps of different size. Early gradients are the largest and would throw
# theta far off; Adagrad makes the first step about `rate` in each number, and later ones shorter. The warm start
# helps, too: the largest gradients come while nobody else is there to make them old. (Its loss is a mean of six runs
# with noise, as rate 0.2 is at the edge. 16 steps alone are 6 % more gradients.) The paper
# reports that both together all but ended Downpour's trouble with stability.
#
# ## A replica is lost
#
# Now the promise: if one replica fails, the others go on. In synchronous SGD they cannot: the next
# all_reduce needs everybody. `kill={5: 0.03}` ends rank 5 after 30 ms; `on_death="continue"` lets the others live
# on, as plain Gloo does. Does the loss suffer? And how do the shards find out?

# %%
guess = None  # the loss with a death; what the shards see
run, loss = train(4, 2, 64, 0.1)
print(f"nobody dies: loss {loss:.3f}, {run.time_s * 1e3:.1f} ms")
death = {"kill": {5: 0.03}, "on_death": "continue"}
run, loss = train(4, 2, 64, 0.1, **death)
print(f"deaths {run.deaths}: loss {loss:.3f}, {run.time_s * 1e3:.1f} ms")
for seed in range(3):
    noise = {"slow": simlib.scale.Jitter("lognormal", spread=0.1, seed=seed)}
    both = (train(4, 2, 64, 0.1, **noise, **what)[1] for what in ({}, death))
    print("with noise, nobody dies / death: {:.3f} / {:.3f}".format(*both))
try:
    simlib.simulate(together, 6, ("gradients", 64, 0.1), **death, cluster=network(6))
except simlib.SimlibError as error:
    print("synchronous:", str(error).splitlines()[0])
run.timeline(between=(0.027, 0.034))

# %% [markdown]
# The loss is a little worse, with each seed of noise: later gradients of rank 5 are missing. The others kept their pace.
# The shards were in the `recv` that names no source: it waits for the living, and raises only at a message
# that the dead had offered and nobody had taken. After that, or a goodbye, they ask *by name*: that recv raises, as the
# connection of the dead is closed, and `except` strikes it off the list. Else they would wait for
# a goodbye that never comes. Synchronous ranks raise in the all_reduce, and training is over (until lesson 14).
#
# The same on real ranks, with a real SIGKILL; and before it the staleness there. Guess its mean and the largest.

# %% tags=["nbval-ignore-output"]
guess = None  # the mean, and the largest
run = simlib.run(apart, 5, ("gradients", 256, 0.2))
ages = staleness(run)
print(f"mean {sum(ages) / 256:.3f}, largest {max(ages)}, loss {run.results[0][-1][2]:.3f}")
run = simlib.run(downpour, 5, (2, 400, 0.05), kill={4: 0.15}, on_death="continue")
died = {rank: round(time_s, 2) for rank, time_s in run.deaths.items()}
print(f"deaths {died}; loss {loss_of(torch.cat(run.results[:2])):.3f}")

# %% [markdown]
# So both engines keep the promise, with two limits. A *shard* that dies takes its part of theta along. And two
# guarantees are given up:
#
# | Downpour gives up | so there is no longer |
# |---|---|
# | one theta for a gradient's begin and end | a gradient of the theta it is applied to: steps are stale |
# | one moment for all shards | any theta that ever was whole: a replica's parts may be of different ages, some with an update, some without |
#
# ## Staleness times rate
#
# When does it diverge? To see it alone, take a loop on a single rank, in which each gradient is exactly d updates
# old: d + 1 equal workers, and no network. (They come in the order in which our server happened to take them, the last one
# first.) Each field is the loss after 256 updates. What shape has the
# border between what trains and what does not?

# %%
guess = None  # how does the best rate depend on d?


def delayed(d, rate, updates=256):
    draw = [gradients(d + 1), *(gradients(rank) for rank in range(1, d + 1))]
    past = [start()] * (d + 1)
    for update in range(updates):
        theta = past[-1] - rate * draw[update % (d + 1)](past[0])
        past = [*past[1:], theta]
    return loss_of(theta).item()


ages, rates = (0, 1, 3, 7, 15), (0.05, 0.1, 0.2, 0.4, 0.8)
field = simlib.simulate(lambda r, n: [[delayed(d, x) for x in rates] for d in ages], 1).results[0]
print(f"d = 3, rate 0.2: {field[2][2]:.4f}; the server: {equal.results[0][-1][2]:.4f}")
figure, axes = plt.subplots(figsize=(6, 3))
axes.imshow([[min(loss, 2.4) for loss in row] for row in field], cmap="cividis", aspect="auto")
for y, row in enumerate(field):
    for x, loss in enumerate(row):
        axes.text(x, y, f"{loss:.2f}", ha="center", va="center", color="w" if loss < 1.2 else "k")
axes.set(xlabel="rate", ylabel="staleness (updates)")
axes.set_xticks(range(len(rates)), rates)
axes.set_yticks(range(len(ages)), ages)
plt.show()

# %% [markdown]
# The printed line says that the loop *is* our server. And the border falls: as d about doubles from line to line, the best
# rate halves. So **more workers want a smaller rate**, and each update does less. That is the price of staleness, paid
# in updates: no figure of updates per second shows it.
#
# **A lab:** both trainings on one picture, same net and digits, worked out in the kernel and not run by ranks. A
# gradient takes 1 ms, more or less by a tenth. Left is the loss against time; right, how many gradients of others
# came between a gradient's fetch and its push. Rank 1 takes three times as long.
#
# Start each question from these settings. (1) Slow 8: which curve moves? (2) n_fetch 8: what is gained,
# what is lost, and which rate mends it? (3) Workers 16: which rate is best? (4) Rate 0.1, message 0.5 ms: what is
# n_fetch 4 worth now? (5) And the seed?

# %%
labs.draw_staleness(workers=4, slow=3, n_fetch=1, rate=0.2)

# %% tags=["nbval-ignore-output"]
labs.staleness_lab(workers=4, slow=3, n_fetch=1, rate=0.2)

# %% [markdown]
# <details><summary>Answers</summary>
#
# (1) The end of *together* moves from 193 to 509 ms, *apart* from 82 to 88. (2) It takes 80 ms, so
# nothing is gained: the mean staleness rises from 3.0 to 12.8, the loss from 0.143 to 0.795; half the rate
# makes that 0.355. (3) 0.05, for 0.762 apart, beside 0.490 together. (4) 163 ms in place of
# 256, for 0.247 in place of 0.242. (5) It moves the loss apart between 0.140 and 0.231; together it is
# 0.175 always.
#
# </details>
#
# ## A race by name
#
# Who comes first decides what theta is: each run on real ranks has a loss of its own. How far do they lie apart?
# `slow=Jitter(...)` lets each gradient take a tenth more or less, by a seed: same seed, same run. Twenty of them
# make a **band**. And lesson 03's `seed=` proves the race and names its line.

# %%
guess = None  # from which loss to which, at the end


def noisy(program, R, steps, seed):
    noise = simlib.scale.Jitter("lognormal", spread=0.1, seed=seed)
    options = {"cluster": network(R), "slow": noise}
    run = simlib.simulate(program, R, ("gradients", steps, 0.2), **options)
    return [loss for _, _, loss in run.results[0]]


band = torch.tensor([noisy(apart, 5, 128, seed) for seed in range(20)])
low, high = band.min(0).values, band.max(0).values
print(f"apart, 20 seeds: loss {low[-1]:.3f} to {high[-1]:.3f}")
one, other = (noisy(together, 4, 32, seed) for seed in (0, 1))
print(f"together, 2 seeds: loss {one[-1]:.3f} and {other[-1]:.3f}")
figure, axes = plt.subplots(figsize=(6, 2.6))
axes.fill_between(range(16, 129, 16), low, high, alpha=0.4, label="apart, 20 seeds")
axes.plot(range(16, 129, 16), one, label="together, each seed")
axes.set(xlabel="updates (gradients)", ylabel="loss", ylim=(0, 2))
axes.legend(frameon=False)
plt.show()
run = simlib.simulate(apart, 3, ("gradients", 16, 0.2), cluster=network(3), seed=2)

# %% [markdown]
# The loss of one seed means little: compare bands, never two single runs. Together there is no band: noise moves
# the time, not theta. Its line runs along the lower edge most of the way: that is what staleness costs. The race is no fault here; it *is* the method. But you should know that you have it,
# and at which line: what follows that `recv` can be repeated only if you record who came.
#
# ## Hogwild: the same on one machine
#
# Threads of one process share memory: no server, no messages. **Hogwild!** (Niu et al. 2011) lets them all write
# into one theta without a lock. Two may write at once, and an update may get lost. Will it train?

# %% tags=["nbval-ignore-output"]
guess = None  # the loss with 4 threads


def hogwild(threads, updates=256):
    theta = start()

    def work(number):
        gradient = gradients(number)
        for _ in range(updates // threads):
            theta.sub_(0.2 * gradient(theta))

    with ThreadPoolExecutor(threads) as team:
        list(team.map(work, range(1, threads + 1)))
    return loss_of(theta).item()


print(*(f"{threads} threads: {hogwild(threads):.3f}" for threads in (1, 2, 4)))
for length in (P, 2_000_000):
    x = torch.zeros(length)
    with ThreadPoolExecutor(2) as team:
        list(team.map(lambda _, x=x: [x.add_(1) for _ in range(200)], range(2)))
    print(f"{length:9,} numbers, 2 threads: {(x < 400).sum():,} of them have lost an addition")

# %% [markdown]
# It trains. A thread may read theta half written. The paper proves that little is lost where gradients are *sparse*, so that
# two threads seldom write the same numbers. Ours are dense, but theta is so small that a write is over before
# the next one begins. torch lets go of Python's lock inside its operations, so in a long vector updates do get lost.
#
# ## Which one?
#
# | if ... | take | because |
# |---|---|---|
# | ranks are equal, the network is good | synchronous SGD | no staleness, no race, the same theta everywhere |
# | some ranks are slow, now and then or always | asynchronous, smaller rate | nobody waits; or lesson 14's remedies |
# | the network is slow, data are alike | local SGD, DiLoCo | H times fewer bytes |
# | the network is slow, each rank has its own digits | local SGD with a small H | ranks run apart |
# | replicas die | Downpour with Adagrad | a lost replica is only a smaller stream |
# | many workers, one server | shards, until the workers set the pace | a server does one thing at a time |
# | you must get the same result twice | synchronous | who comes first is a race |
#
# Large models today are trained synchronously: accelerators are equal, networks fast.
#
# ## Your turn
#
# [Exercises 13](../exercises/13_asynchronous_training.ipynb): a server that counts staleness rightly, sharded pushes
# with their bytes, local SGD with unequal shards, and five clusters to decide for.
#
# ## Exit ticket
#
# 1. Sixteen equal workers and one server: the staleness? One becomes five times as slow: the mean?
# 2. A link of 100 MB/s each way, our server, P is 25 million numbers. How many updates a second, at most?
# 3. You cut it into ten shards, and nothing gets faster. Who sets the pace?
# 4. Averaging parameters at each step: for which optimizer is it not averaging gradients, and why?
# 5. "Asynchronous SGD is model parallel." Which two questions are mixed here?
# 6. Why does a shard not notice that a replica has died?
#
# <details><summary>Answers</summary>
#
# 1. 15; still 15, but its own gradients are older.
# 2. 100 MB in, then 100 MB out: one in two seconds. (With `isend` for the answer both overlap: one a second.)
# 3. The workers: each still computes, and sends and fetches all of theta.
# 4. Adam: it divides by the root of a mean of squares, so its step is not linear in the gradient.
# 5. *When* ranks meet, and *what part of the model* each holds. (The first table had another: what travels.)
# 6. Its recv waits for anybody; the others still come.
#
# </details>
#
# **Next:** stragglers and failures, in [lesson 14](14_stragglers_and_failures.ipynb).
