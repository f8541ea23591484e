# %% [markdown]
# # 13 Downpour and Hogwild
#
# This is the third part of lesson 13. [The first part](13_asynchronous_training.ipynb) built a parameter
# server, and [the second part](13_cost_of_staleness.ipynb) showed that one server becomes the bottleneck. In
# this part (60 minutes) you will
#
# - cut the server into shards, and write a replica of DistBelief's **Downpour SGD**,
# - send less, see the loss rise, and try two remedies,
# - kill a replica, and see the others go on,
# - let threads write without a lock, as in Hogwild,
# - choose the right method for a task.

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
P = sum(SIZES)
PUSH, FETCH, GOODBYE = 0, 1, 2


def network(ranks, gbit=10):
    return simlib.Cluster(ranks, 1, inter=simlib.Link(10e-6, gbit * 1e9 / 8))


def start():
    torch.manual_seed(0)
    layers = [torch.randn(s) / s[0] ** 0.5 if len(s) == 2 else torch.zeros(s) for s in SHAPES]
    return torch.cat([layer.flatten() for layer in layers])


# %% [markdown]
# The digits, the network and `together` come from the first two parts.


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
# ## Downpour: cut the server
#
# DistBelief cuts the server into S **shards**. Ranks 0 to S - 1 are the shards. Each holds and serves one part of
# theta. All other ranks are **replicas**. Each has the whole network, and draws its own digits. The coloured arrows
# are the messages of rank 3.

# %%
labs.draw_shards(shards=3, replicas=4)

# %% [markdown]
# A replica differs from the first part's workers in two ways. It takes a step of its own after each gradient. And
# it does not talk to the shards after each step. Every `n_push` steps it *pushes*: it sends the *sum* of all
# gradients since its last message. Every `n_fetch` steps it *fetches* theta, and with each fetch it also pushes.
# So `n_push` = 2 · `n_fetch` adds no push. The last number of a message says what the replica wants: `PUSH`,
# `FETCH` or `GOODBYE`.
#
# A shard takes the message that comes first, until the first replica has said goodbye. The section "A replica is
# lost" explains the `except`.


# %%
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


def exchange(owed, wants, S):
    """Send S shards their parts of `owed` and what is wanted; return theta after a FETCH."""
    parts = [part.clone() for part in owed.tensor_split(S)]
    for s, part in enumerate(parts):
        dist.send(torch.cat([part, torch.tensor([float(wants)])]), dst=s)
        if wants == FETCH:
            dist.recv(part, src=s)
    return torch.cat(parts) if wants == FETCH else None


# %% [markdown]
# **Now you write it:** the loop of a replica. `talk(owed, wants)` sends a sum of gradients. After a `FETCH` it
# returns theta, otherwise None. `gradient(theta)` returns the next gradient.
#
# 1. Begin with a fetch that pushes zeros. It returns the first theta.
# 2. In each of the steps 1, ..., `steps` compute a gradient, and add it to the sum `owed`. Then move theta by
#    -rate · gradient into a new tensor.
# 3. Then call `talk` once or not at all. After the last step say `GOODBYE`. Otherwise, after every `n_fetch`-th
#    step, say `FETCH`. Otherwise, after every `n_push`-th step, say `PUSH`.
# 4. After each `talk` set `owed` to zero in place. If `talk` returned theta, go on with this theta.
#
# The check needs no ranks, because it acts as the only shard itself. A single replica takes the same steps as its
# shard. So it must be plain SGD for *every* n_push and n_fetch.


# %%
def replica(talk, gradient, steps, rate, n_push, n_fetch):
    return None  # your loop


def check_replica(n_push, n_fetch, counts):
    theta, sgd, said, sgd_gradient = start(), start(), [], gradients(1)

    def talk(owed, wants):
        said.append(wants)
        theta.sub_(0.1 * owed)
        return theta.clone() if wants == FETCH else None

    replica(talk, gradients(1), 12, 0.1, n_push, n_fetch)
    for _ in range(12):
        sgd -= 0.1 * sgd_gradient(sgd)
    found = [said.count(one) for one in (PUSH, FETCH, GOODBYE)]
    is_right = found == counts and torch.allclose(theta, sgd, atol=1e-5)
    print(f"n_push {n_push}, n_fetch {n_fetch}:", "right;" if is_right else "not yet;", end=" ")
    print(f"pushes, fetches, goodbyes {found}, wanted {counts}")


for n_push, n_fetch, counts in ((1, 1, [0, 12, 1]), (2, 4, [3, 3, 1]), (5, 4, [2, 3, 1])):
    check_replica(n_push, n_fetch, counts)

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def replica(talk, gradient, steps, rate, n_push, n_fetch):
#         owed = torch.zeros(P)
#         theta = talk(owed, FETCH)
#         for step in range(1, steps + 1):
#             g = gradient(theta)
#             owed += g
#             theta = theta - rate * g
#             wants = FETCH if step % n_fetch == 0 else PUSH
#             wants = GOODBYE if step == steps else wants
#             if wants != PUSH or step % n_push == 0:
#                 came = talk(owed, wants)
#                 theta = theta if came is None else came
#                 owed.zero_()
#
# </details>
#
# The rest of this part uses the replica below.
#
# In the second part one server took 115 ms at 1 Gbit/s, for 4 workers and for 16. How many ms do 10 shards take for
# 16 replicas, and for 4? **Now you write it:** how many bytes go over the link of one shard, in both
# directions together? There are W replicas and S shards. Each replica takes `steps` steps, with
# n_push = n_fetch = 1. A number has 4 bytes.


# %%
def own_replica(talk, gradient, steps, rate, n_push, n_fetch):
    owed, theta = torch.zeros(P), talk(torch.zeros(P), FETCH)
    for step in range(1, steps + 1):
        g = gradient(theta)
        owed += g
        theta = theta - rate * g
        wants = GOODBYE if step == steps else FETCH if step % n_fetch == 0 else PUSH
        if wants != PUSH or step % n_push == 0:
            came = talk(owed, wants)
            theta = theta if came is None else came
            owed.zero_()


def downpour(rank, world_size, S, steps, rate, n_push=1, n_fetch=1, adagrad=False, alone=0):
    if rank < S:
        part = start().tensor_split(S)[rank].clone()
        return shard(part, range(S, world_size), rate, adagrad)
    steps += alone if rank == S else 0  # a warm start
    simlib.compute(seconds=alone * 1e-3 if rank > S else 0)
    own_rate = 0 if adagrad else rate
    own_replica(lambda *what: exchange(*what, S), gradients(rank), steps, own_rate, n_push, n_fetch)


# %%
ms_16, ms_4 = None, None  # with 10 shards


def bytes_of_shard(W, S, steps):
    return math.nan  # your formula


def train(W, S, *args, gbit=10, **options):
    """Simulate W replicas and S shards; return the run and the loss at the end."""
    run = simlib.simulate(downpour, S + W, (S, *args), cluster=network(S + W, gbit), **options)
    return run, loss_of(torch.cat(run.results[:S])).item()


for W, guess in ((16, ms_16), (4, ms_4)):
    for S in (1, 2, 10):
        run, loss = train(W, S, 256 // W, 0.1, gbit=1)
        messages = run.trace.messages
        shard_0, other = (sum(m.nbytes for m in messages if r in (m.src, m.dst)) for r in (0, S))
        print(f"{W:2} replicas, {S:2} shards: {run.time_s * 1e3:5.1f} ms; over the link", end=" ")
        print(f"of shard 0 {shard_0 / 1e6:5.2f} MB, of a replica {other / 1e6:.2f} MB", end="; ")
        print("right" if abs(bytes_of_shard(W, S, 256 // W) / shard_0 - 1) < 0.01 else "not yet")
    simlib.guess(guess, round(run.time_s * 1e3, 1), within=0.15)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return W * 4 * ((steps + 1) * (P / S + 1) + steps * P / S)`
#
# Each replica fetches `steps` times: once at the beginning, and after each step but the last. Then it says goodbye.
# Each of these messages holds the shard's part and one number. The shard answers each fetch with its part of theta.
#
# </details>
#
# With ten shards, the link of a shard carries a tenth of the bytes. The link of a replica carries as many as
# before. With 16 replicas ten shards help much. With four replicas ten shards are slower than two. Now the
# replicas' computing and their links set the pace, and each further shard costs two more latencies.
#
# ## What it costs to talk less, and two remedies
#
# Larger n_push and n_fetch save bytes, but the loss rises. DistBelief's paper has two remedies:
#
# - **Adagrad** on the shards divides the step of each parameter by the root of the sum of its squared gradients
#   so far. The replicas then take no steps of their own.
# - **Warm start**: one replica trains `alone` for a while before the others begin.
#
# With n_push = n_fetch = 1 the loss of four replicas is 0.285. What is the loss if both are 8? With 8 replicas the
# best loss of SGD is 0.358. What is the best loss of Adagrad?

# %%
loss_8, best_adagrad = None, None
for n_push, n_fetch in ((1, 1), (1, 4), (4, 4), (8, 8)):
    run, loss = train(4, 2, 64, 0.1, n_push, n_fetch)
    print(f"n_push {n_push}, n_fetch {n_fetch}: {sum(run.bytes_sent):10,} bytes, loss {loss:.3f}")
simlib.guess(loss_8, round(loss, 3), within=0.2)
SETTINGS = {"4, n_push = n_fetch = 8": (4, 2, 64, 8), "8 replicas": (8, 1, 32, 1)}
for name, (W, S, steps, n) in SETTINGS.items():
    print(name)
    for adagrad, rates in ((False, (0.025, 0.05, 0.1, 0.2)), (True, (0.0125, 0.025, 0.05, 0.1))):
        losses = [train(W, S, steps, rate, n, n, adagrad)[1] for rate in rates]
        told = [f"{rate}: {loss:.3f}" for rate, loss in zip(rates, losses, strict=True)]
        print("  Adagrad" if adagrad else "  SGD    ", *told, sep="   ")
simlib.guess(best_adagrad, round(min(losses), 3), within=0.2)
for alone in (0, 16):
    noises = [simlib.scale.Jitter("lognormal", spread=0.1, seed=seed) for seed in range(6)]
    losses = [train(8, 1, 32, 0.2, 1, 1, False, alone, slow=noise)[1] for noise in noises]
    print(f"8 replicas, SGD, 0.2, alone for {alone:2} steps: loss {sum(losses) / 6:.3f}, mean of 6")

# %% [markdown]
# The loss rises much. A sum of eight gradients makes one long step, and this step is old.
#
# Compare the best loss of each row, because at the same rate SGD and Adagrad take steps of different size.
# Adagrad's best loss is lower in both settings. But with n = 8 it is still 0.654, and not 0.285. The first gradients
# are the largest. In SGD they move theta too far. With Adagrad the first step is about `rate` for each parameter,
# and later steps are shorter.
#
# The warm start helps, too. While gradients are largest, only one replica trains, so no gradient is stale. We printed
# the mean of six runs with noise, because one run with rate 0.2 says little. The 16 steps that one replica makes
# alone add 6 % to the number of gradients. The paper reports that Downpour with both remedies was hardly ever
# unstable.
#
# ## A replica is lost
#
# DistBelief promises that the others go on if one replica fails. Synchronous SGD cannot go on, because the next
# all_reduce needs every rank. In the next cell `kill={5: 0.03}` ends rank 5 after 30 ms. With
# `on_death="continue"` the other ranks go on, as with plain Gloo. Without a death the loss is 0.285. What is the
# loss if rank 5 dies?

# %%
loss_with_death = None
run, loss = train(4, 2, 64, 0.1)
print(f"nobody dies: loss {loss:.3f}, {run.time_s * 1e3:.1f} ms")
death = {"kill": {5: 0.03}, "on_death": "continue"}
run, loss = train(4, 2, 64, 0.1, **death)
print(f"deaths {run.deaths}: loss {loss:.3f}, {run.time_s * 1e3:.1f} ms")
simlib.guess(loss_with_death, round(loss, 3), within=0.02)
for seed in range(3):
    noise = {"slow": simlib.scale.Jitter("lognormal", spread=0.1, seed=seed)}
    both = (train(4, 2, 64, 0.1, **noise, **what)[1] for what in ({}, death))
    print("with noise, nobody dies / death: {:.3f} / {:.3f}".format(*both))
try:
    simlib.simulate(together, 6, (64, 0.1), **death, cluster=network(6))
except simlib.SimlibError as error:
    print("synchronous:", str(error).splitlines()[0])
run.timeline(between=(0.027, 0.034))

# %% [markdown]
# If rank 5 dies, the loss is a little higher, with each seed of the noise. The later gradients of rank 5 are
# missing. The other replicas keep their pace. The synchronous ranks raise an error in the all_reduce, and training
# ends. [Lesson 14](14_stragglers_and_failures.ipynb) shows what to do then.
#
# How do the shards notice the death? A `recv` without a source waits for the living ranks. It raises an error only
# if the dead replica had offered a message that nobody had taken. After such an error, or after a goodbye, a shard
# calls `recv` with a source (`by_name`). The connection to the dead replica is closed, so a `recv` from it raises
# an error. Then `except` removes this replica from the list. Otherwise the shard would wait for its goodbye for ever.
#
# The appendix kills a real rank with a real SIGKILL. You may skip it.
#
# So Downpour keeps its promise. But if a *shard* dies, its part of theta is lost. And
# Downpour gives up two guarantees:
#
# | synchronous SGD guarantees | in Downpour |
# |---|---|
# | Theta does not change while a gradient is computed. | Others may change theta. So steps are stale. |
# | All parts of theta are equally old. | A fetched theta may have parts of different ages. |
#
# ## The order of arrival is a race
#
# Theta depends on the order in which gradients arrive. So each run on real ranks ends with another loss. We take
# `apart` from the second part. `slow=Jitter(...)` changes the time of each gradient by about a tenth, and a seed
# chooses how. Twenty seeds make a **band** of losses. What are the lowest and the highest loss at the end? Then
# `seed=` from lesson 03 proves that there is a race, and names its line.


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


# %%
lowest, highest = None, None


def noisy(program, R, steps, seed):
    noise = simlib.scale.Jitter("lognormal", spread=0.1, seed=seed)
    options = {"cluster": network(R), "slow": noise}
    run = simlib.simulate(program, R, (steps, 0.2), **options)
    return [loss for _, _, loss in run.results[0]]


band = torch.tensor([noisy(apart, 5, 128, seed) for seed in range(20)])
low, high = band.min(0).values, band.max(0).values
print(f"apart, 20 seeds: loss {low[-1]:.3f} to {high[-1]:.3f}")
simlib.guess(lowest, round(low[-1].item(), 3), within=0.15)
simlib.guess(highest, round(high[-1].item(), 3), within=0.15)
one, other = (noisy(together, 4, 32, seed) for seed in (0, 1))
print(f"together, 2 seeds: loss {one[-1]:.3f} and {other[-1]:.3f}")
figure, axes = plt.subplots(figsize=(6, 2.6))
axes.fill_between(range(16, 129, 16), low, high, alpha=0.4, label="apart, 20 seeds")
axes.plot(range(16, 129, 16), one, label="together, each seed")
axes.set(xlabel="updates (gradients)", ylabel="loss", ylim=(0, 2))
axes.legend(frameon=False)
plt.show()
run = simlib.simulate(apart, 3, (16, 0.2), cluster=network(3), seed=2)


# %% [markdown]
# Compare bands, never two single runs. `together` has no band. There noise changes only the time, and not theta.
# From 64 to 112 updates its line runs along the lower edge of the band. So most runs of `apart` are worse there.
# That is what staleness costs. At the end the line has a bump, and most runs are better.
#
# The race is no mistake here, because it *is* the method. But you should know its line. You can repeat a run only
# if you record whose message each `recv` took.
#
# ## Hogwild: the same on one machine
#
# Threads of one process share memory, so they need no server and no messages. In **Hogwild!** (Niu et al. 2011)
# all threads write into one theta without a lock. If two threads write at the same time, an update may get lost.
# Does this still train with four threads?


# %% tags=["nbval-ignore-output"]
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
# It trains, although a thread may read a theta that is half written. The paper proves that little is lost if
# gradients are *sparse*. Then two threads seldom write the same numbers. Our gradients are dense. But our theta is
# so small that one write ends before the next begins. In a long vector updates do get lost, because torch releases
# Python's lock inside its operations.
#
# ## Which method?
#
# | if ... | use | because |
# |---|---|---|
# | ranks are equal and the network is good | synchronous SGD | it has no staleness, no race, and the same theta everywhere |
# | some ranks are slow, sometimes or always | asynchronous SGD with a smaller rate, or lesson 14's remedies | no rank waits |
# | the network is slow, and all ranks draw from the same data | local SGD, DiLoCo | it sends H times fewer bytes |
# | the network is slow, and each rank has its own data | local SGD with a small H | ranks move apart |
# | replicas die | Downpour with Adagrad | a lost replica only means fewer gradients |
# | there are many workers and one server | shards, until the workers set the pace | a server does one thing at a time |
# | you must get the same result twice | synchronous SGD | the order of arrival is a race |
#
# Large models today are *pre-trained* synchronously, because accelerators are equal and networks are fast. But
# **reinforcement learning** after pre-training is commonly asynchronous, with bounded staleness.
# [The fourth part](13_for_large_models.ipynb) shows this, and DiLoCo for large models.
#
# ## Your turn
#
# You can now do tasks 1 to 4 of [exercises 13](../exercises/13_asynchronous_training.ipynb).
#
# ## Exit ticket
#
# 1. You cut the server into ten shards, and nothing gets faster. Which ranks set the pace?
# 2. Why does a shard not notice that a replica has died?
# 3. Two asynchronous runs with different learning rates end with losses of 0.31 and 0.35. Which rate is better?
#
# <details><summary>Answers</summary>
#
# 1. The replicas set the pace. Each still computes, and sends and fetches all of theta.
# 2. Its `recv` waits for any replica, and the other replicas still send messages.
# 3. You cannot know this from two runs. Twenty seeds of the same rate ended between 0.264 and 0.479.
#
# </details>
#
# **Next:** asynchronous methods for large models, in [the fourth part](13_for_large_models.ipynb).
#
# ## Appendix: a real rank is killed
#
# The next cell kills a real rank with a real SIGKILL.

# %% tags=["nbval-ignore-output"]
run = simlib.run(downpour, 5, (2, 400, 0.05), kill={4: 0.15}, on_death="continue")
died = {rank: round(time_s, 2) for rank, time_s in run.deaths.items()}
print(f"deaths {died}; loss {loss_of(torch.cat(run.results[:2])):.3f}")
