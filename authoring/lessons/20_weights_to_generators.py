# %% [markdown]
# # 20 Weights to generators
#
# This is the second part of lesson 20. [The first part](20_rollouts_and_trainers.ipynb) separated generators, which
# write rollouts, from trainers, which learn from them. There the weights were 64 numbers. Now they take 16 GB, and no
# rank has all of them. You also need [lesson 12](12_the_state_of_training.ipynb), which cuts tensors and matrices. In
# this part (60 minutes) you will
#
# - write the program that moves weights from shards to slices, with the fewest bytes,
# - compare three ways to bring the same weights to many generators,
# - hide the transfer behind the writing of rollouts,
# - cut long rollouts into parts, and lose no prompt when a generator dies.
#
# ## From shards to slices
#
# With FSDP, each trainer holds some **rows** of a matrix. They are its shard. A generator's model is often cut by
# tensor parallelism, so each generator also holds some rows. They are its slice. But the borders differ, because the
# numbers of ranks differ. There are several **replicas**. A replica is a group of generators that together hold all
# weights.
#
# Here four trainers, ranks 0 to 3, hold 24 rows. Six generators, ranks 4 to 9, form two replicas of three ranks. In
# the code, `held[r]` is the pair (first row, last row + 1) that rank r holds, and `wanted[r]` is the pair that it
# needs. In both, (0, 0) means no rows.

# %%
import time

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist

import simlib
from simlib import labs

D = 16  # numbers in a row


def borders(rows, parts):
    """The pairs of `parts` ranks that divide the rows evenly."""
    at = [rows * part // parts for part in range(parts + 1)]
    return list(zip(at, at[1:], strict=False))


def layout(rows, trainers, replicas, tp):
    held = borders(rows, trainers) + [(0, 0)] * (replicas * tp)
    wanted = [(0, 0)] * trainers + borders(rows, tp) * replicas
    return held, wanted


# %% [markdown]
# The picture shows the rows of all ranks.

# %%
held, wanted = layout(24, 4, 2, 3)
figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
for rank, (first, last) in enumerate(held[:4] + wanted[4:]):
    color = "#0072B2" if rank < 4 else "#D55E00" if rank < 7 else "#009E73"
    axes.barh(rank, last - first, left=first, color=color)
names = [f"rank {r}, {'trainer' if r < 4 else 'generator'}" for r in range(10)]
axes.set(xlabel="rows of the matrix", xticks=range(0, 25, 2), yticks=range(10), yticklabels=names)
axes.invert_yaxis()
plt.show()

# %% [markdown]
# In the simplest way, all trainers send their shards to rank 0. Then rank 0 sends the whole matrix to each generator,
# and the generator keeps its slice. Each generator must receive its slice at least once. This is a lower bound.
# Divide the simple way's bytes by this bound. What do you expect?

# %%
times_bound = None  # bytes of the simple way / lower bound


def by_rank_0(rank, world_size, held, wanted):
    first, last = held[rank]
    whole, trainers = torch.zeros(24, D), sum(last > 0 for _, last in held)
    whole[first:last] = rank  # each trainer's rows have its number
    if rank >= trainers:
        dist.recv(whole, src=0)
        return whole[slice(*wanted[rank])]
    if rank > 0:
        return dist.send(whole[first:last], dst=0)
    for other in range(1, world_size):
        if other < trainers:
            dist.recv(whole[slice(*held[other])], src=other)
        else:
            dist.send(whole, dst=other)


bound = sum(last - first for first, last in wanted) * D * 4
run = simlib.simulate(by_rank_0, 10, (held, wanted))
print(f"simple way: {sum(run.bytes_sent)} bytes, lower bound {bound}")
simlib.guess(times_bound, sum(run.bytes_sent) / bound, within=0.1)

# %% [markdown]
# Rank 0 also needs memory for the whole matrix.
#
# **Now you write it:** `reshard` runs on all ranks. A sender holds some rows, and a receiver wants some. Both compute
# the rows that they have in common: from the larger first row to the smaller end. If there are any, the sender sends
# exactly these rows in one message. `shard[0]` is row `held[rank][0]` of the matrix. Start all sends and receives
# with `dist.isend` and `dist.irecv`, and then wait for each request. Return a tensor with the rows that this rank
# wants, D numbers in each. A receive can write straight into this tensor.
#
# The check compares rows, bytes and messages, on real and simulated ranks.


# %%
def reshard(rank, world_size, held, wanted, shard):
    return None  # yours: the rows that this rank wants


def with_shards(rank, world_size, held, wanted):
    whole = torch.arange(24 * D).view(24, D).float()
    return reshard(rank, world_size, held, wanted, whole[slice(*held[rank])].clone())


def check_reshard(engine, trainers, replicas, tp):
    held, wanted = layout(24, trainers, replicas, tp)
    run = engine(with_shards, len(held), args=(held, wanted))
    whole = torch.arange(24 * D).view(24, D).float()
    for rank, rows in enumerate(run.results):
        if rows is None:
            return f"not yet: rank {rank} returned None"
        if not torch.equal(rows, whole[slice(*wanted[rank])]):
            return f"not yet: rank {rank} has other rows"
    pairs = sum(min(h[1], w[1]) > max(h[0], w[0]) for h in held for w in wanted)
    fewest = sum(last - first for first, last in wanted) * D * 4
    if sum(run.bytes_sent) > fewest or sum(run.messages) > pairs:
        return f"not yet: {sum(run.messages)} messages, {sum(run.bytes_sent)} bytes; bound {fewest}"
    return "right"


for shape in ((4, 2, 3), (3, 1, 2), (1, 2, 2)):
    print(shape, *(check_reshard(engine, *shape) for engine in (simlib.run, simlib.simulate)))

# %% [markdown]
# <details><summary>Answer</summary>
#
#     mine, requests = torch.zeros(wanted[rank][1] - wanted[rank][0], D), []
#     for other in range(world_size):
#         first, last = max(held[rank][0], wanted[other][0]), min(held[rank][1], wanted[other][1])
#         if first < last:
#             rows = shard[first - held[rank][0] : last - held[rank][0]]
#             requests.append(dist.isend(rows, dst=other))
#         first, last = max(held[other][0], wanted[rank][0]), min(held[other][1], wanted[rank][1])
#         if first < last:
#             rows = mine[first - wanted[rank][0] : last - wanted[rank][0]]
#             requests.append(dist.irecv(rows, src=other))
#     for request in requests:
#         request.wait()
#     return mine
#
# </details>
#
# ## The same weights for many generators
#
# `reshard` sends the fewest bytes, but each trainer sends its rows once for *each* replica. With many replicas the
# trainer's link becomes the bottleneck. A model of 8 billion parameters in bfloat16 takes 16 GB. Rank 0 has the
# weights, and 16 generators want them. Each link carries 50 GB/s, so one message takes 0.32 s. The cell simulates
# three ways:
#
# - **star**: rank 0 sends to each generator;
# - **tree**, `binomial`: each rank that has the weights sends them on, so the number of such ranks doubles in each
#   round;
# - **chain**: each rank passes the weights to the next one, in small pieces. So all links carry pieces at the same
#   time.
#
# How many seconds does each way take?

# %%
star_s, tree_s, chain_s = None, None, None


def spread(rank, world_size, way):
    weights = torch.zeros(8_000_000_000, dtype=torch.bfloat16)
    if way != "star":
        dist.broadcast(weights, src=0)
    elif rank > 0:
        dist.recv(weights, src=0)
    else:
        for other in range(1, world_size):
            dist.send(weights, dst=other)


FAST = simlib.Cluster(17, 1, inter=simlib.Link(10e-6, 50e9))
for way, guessed in {"star": star_s, "binomial": tree_s, "chain": chain_s}.items():
    algorithm = {} if way == "star" else {"broadcast": way}
    run = simlib.simulate(spread, 17, (way,), cluster=FAST, data=False, **algorithm)
    print(f"{way:8}: {run.time_s:.2f} s")
    simlib.guess(guessed, run.time_s, within=0.1)

# %% [markdown]
# The star sends 16 messages, one after the other. The tree needs 5 rounds, because 17 ranks are more than 2⁴. The
# chain takes hardly longer than a single message. All three ways send 16 x 16 GB. So the busiest link decides the
# time, not the total of the bytes.
#
# With shards, each trainer begins a chain of its own. Then T trainers share the work of sending.
#
# ## Hide the transfer
#
# On 10 Gbit Ethernet a transfer of 16 GB takes 12.8 s. The generator need not wait if it may write the next batch
# with older weights. The bound k of the first part allows this. Writing a batch takes a = 25 s, learning takes b = 20
# s, and the transfer takes c = 12.8 s. Writing, training and transfer form a ring: the generator may be only k
# batches ahead. So k + 1 batches are under way at most, and the time for a batch is
#
# $$\max\Big(a,\ b,\ c,\ \frac{a + b + c}{k + 1}\Big)$$


# %%
def hidden(rank, world_size, k, a, b, steps, numbers):
    weights = [torch.zeros(numbers, dtype=torch.bfloat16) for _ in range(steps)]
    requests, batch = [], torch.zeros(1)
    for step in range(steps):
        if rank == 0:  # the trainer
            dist.recv(batch, src=1)
            simlib.compute(seconds=b)
            requests.append(dist.isend(weights[step], dst=1))
        else:
            if step > k:
                requests[step - k - 1].wait()
            simlib.compute(seconds=a)
            dist.send(batch, dst=0)
            requests.append(dist.irecv(weights[step], src=0))
    for request in requests if rank == 0 else requests[-k - 1 :]:
        request.wait()


def batch_s(k, a, b, c):
    cluster = simlib.Cluster(2, 1, inter=simlib.Link(10e-6, 1.25e9))
    args = [(k, a, b, steps, int(c * 1.25e9 / 2)) for steps in (8, 20)]
    runs = [simlib.simulate(hidden, 2, each, cluster=cluster, data=False) for each in args]
    return (runs[1].time_s - runs[0].time_s) / 12


# %% [markdown]
# How many seconds does a batch take with k = 0, and with k = 1?

# %%
seconds_0, seconds_1 = None, None  # for a batch, with k = 0 and with k = 1

for k, guessed in {0: seconds_0, 1: seconds_1, 2: None}.items():
    formula_s = max(25, 20, 12.8, (25 + 20 + 12.8) / (k + 1))
    took_s = batch_s(k, 25, 20, 12.8)
    print(f"k = {k}: {took_s:.1f} s a batch, by the formula {formula_s:.1f} s")
    simlib.guess(guessed, took_s, within=0.03)

# %% [markdown]
# With k = 2 the generator never waits.
#
# ## Parts of rollouts, and a rank that dies
#
# Several generators can write one rollout, one after the other, with different versions of the weights. In a
# **partial rollout** a generator writes at most `segment` tokens, and sends what it has. Any generator may continue,
# with the newest weights. Kimi k1.5 (2025, arXiv 2501.12599) trains in this way. But the next generator must first
# read all tokens so far. Here writing a token takes 10 ms, and reading one takes 0.1 ms.
#
# In the next program rank 0 hands out such parts of 32 rollouts. A generator asks by sending (number, tokens), or
# (-1, 0) if it has nothing. The answer is (number, tokens so far), (-1, 0) for "ask again in 5 s", or (-2, 0) for
# "stop". There is no training. Rank 0 notes in `lent` when it gave out each part.
#
# `kill={3: 20.0}` kills rank 3 after 20 s, and with `on_death="continue"` the others go on. What does rank 0 notice?
# It receives from *any* source. The other generators still send, so no call of rank 0 fails. Only rank 3's
# message never arrives. After a death, `torchrun` would end all its ranks, so generators are often started
# separately.
#
# A remedy is a **lease**: rank 0 lends a part only for a limited time. After that, rank 0 lends the part to another
# generator. The rollout's number is its seed, so it does no harm if both generators write it. **Now you write it:**
# `choose` returns the number of the rollout to lend now.
#
# - `written[number]` is the number of tokens written so far. A rollout is finished at `TOKENS[number]` tokens.
# - `lent[number]` is the time when the rollout was lent. Rollouts that nobody has are not in `lent`.
# - Return the first rollout that is not finished and is free: nobody has it, or it was lent more than `lease` seconds
#   ago. If there is none, return -1.

# %%
LOG = torch.randn(8192, generator=torch.Generator().manual_seed(0))
TOKENS = (600 * LOG.exp()).int().clamp(max=4096).tolist()


def choose(now, written, lent, lease):
    return -1  # yours


def generator(segment):
    said, work = torch.tensor([-1, 0]), torch.zeros(2, dtype=torch.long)
    while True:
        dist.send(said, dst=0)
        dist.recv(work, src=0)
        number, there = work.tolist()
        if number == -2:
            return
        if number == -1:
            time.sleep(5)
        else:
            more = min(segment, TOKENS[number] - there)
            simlib.compute(seconds=0.010 * more + 0.0001 * there)
            there += more
        said = torch.tensor([number, there])


# %%
def lend(rank, world_size, choose, segment, lease, N=32):
    if rank > 0:
        return generator(segment)
    written, lent, holder, lost, now = [0] * N, {}, {}, set(), 0
    while now < 1000 and any(written[n] < TOKENS[n] for n in range(N)):
        src = dist.recv(said := torch.zeros(2, dtype=torch.long))
        number, there = said.tolist()
        now = time.perf_counter()
        if number >= 0:
            written[number] = max(written[number], there)
            lent.pop(number, None)
        number = choose(now, written, lent, lease)
        is_held = number in lent and now - lent[number] <= lease
        if number >= 0 and (is_held or written[number] == TOKENS[number]):
            raise ValueError(f"rollout {number} is finished, or its lease has not run out")
        if number in lent:
            lost.add(holder[number])  # its lease has run out
        if number >= 0:
            lent[number], holder[number] = now, src
        dist.send(torch.tensor([number, written[number]]), dst=src)
    lost |= {holder[number] for number in lent}
    for _ in range(world_size - 1 - len(lost)):
        src = dist.recv(said)
        dist.send(torch.tensor([-2, 0]), dst=src)
    return sum(written[n] == TOKENS[n] for n in range(N)), now


# %% [markdown]
# In the check, the run without a lease ends after 1,000 s.

# %%
kill = {"kill": {3: 20.0}, "on_death": "continue"}
for name, segment, lease, options in (
    ("nobody dies", 4096, 60, {}),
    ("no lease", 4096, float("inf"), kill),
    ("lease of 60 s", 4096, 60, kill),
    ("lease of 10 s, parts", 512, 10, kill),
):
    run = simlib.simulate(lend, 7, (choose, segment, lease), **options)
    done, now = run.results[0]
    right = done == 31 and now > 1000 if name == "no lease" else done == 32
    print(f"{name:20}: {done} of 32 after {now:4.0f} s:", "right" if right else "not yet")
    if done == 0:
        break

# %% [markdown]
# <details><summary>Answer</summary>
#
#     for number, tokens in enumerate(written):
#         is_free = number not in lent or now - lent[number] > lease
#         if tokens < TOKENS[number] and is_free:
#             return number
#     return -1
#
# </details>
#
# Without a lease only 31 rollouts are finished after 1,000 s. Training would wait for ever. With a lease of 60 s the
# run takes 27 s longer than without a death. The lease must be longer than the longest part, or rank 0 thinks that
# living generators are dead. A rollout of 4,096 tokens takes 41 s. A part of 512 tokens takes 5.5 s at most, so here
# 10 s are enough. The death costs only the tokens of one part.
#
# Parts also keep weights fresh. A generator takes new weights after 5.5 s at the latest, in place of 41 s. The tokens
# of one rollout then have different versions. So each token keeps its probability $q$, and gets an importance weight
# of its own.
#
# ## A lab: the split and the bound together
#
# In the lab, a model computes times of 64 ranks as in the first part. Before each question, go back to the settings
# below.
#
# 1. Set k to 0, to 1, and to 4. How many trainers are best?
# 2. Take equal lengths and k = 0. Which is now the best number of trainers?
# 3. Set 8 trainers. What changes if you then set k to 8?
#
# <details><summary>Answers</summary>
#
# 1. The best numbers are 24, 23 and 13 trainers.
# 2. It is 21, as the formula for k = 0 says. No rollout is longer than the others.
# 3. A batch takes 38.8 s as before, because the trainers are the slower kind. But the mean staleness rises from 1.62 to
#    2.80 steps.
#
# </details>

# %%
labs.draw_rollouts(trainers=13, k=2)

# %% tags=["nbval-ignore-output"]
labs.rollouts_lab(trainers=13, k=2)

# %% [markdown]
# ## Your turn
#
# You can now do tasks 2 to 4 of [exercises 20](../exercises/20_rollouts_and_trainers.ipynb): partial rollouts, weights
# from rows to columns, and a generator that dies.
#
# ## Exit ticket
#
# 1. Three trainers hold 12 rows, and two replicas of two generators need them. How many messages does `reshard` send?
# 2. Why is a chain faster than a star, although both send the same bytes?
# 3. A generator dies. Why does a controller that receives from any source get no error?
#
# <details><summary>Answers</summary>
#
# 1. Trainers hold rows 0 to 3, 4 to 7 and 8 to 11. Generators want 0 to 5 and 6 to 11. In each replica, 4 pairs have
#    common rows, so there are 8 messages.
# 2. In a star, all bytes leave through one link. In a chain, each link carries the weights once, and all links work at
#    the same time.
# 3. Another generator's message can still match its receive. Only a clock shows that one message is late.
#
# </details>
#
# **Next:** serve the trained model to many users, in [lesson 21](21_decode_on_split_ranks.ipynb).
