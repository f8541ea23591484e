# %% [markdown]
# # 05 Choosing an all_reduce
#
# This is the second half of lesson 05. [The first](05_building_all_reduce.ipynb) built five programs with
# one contract. Which one should run? That depends on the size of the tensor, on the number of ranks, and
# on the machines. In this lesson (60 minutes) you will
#
# - find the size at which one algorithm overtakes another,
# - see that the order of adding shows in the sum, and that 16 bits have a price,
# - look at what MPICH, NCCL and Gloo choose,
# - go to machines with eight ranks each, where all share one link,
# - cut a broadcast into the best number of pieces.
#
# As before: **n** ranks, tensors of **N** bytes, latency $\alpha$ and bandwidth $B$. `bring` and `timed`
# are those of the first half.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

import simlib
from simlib import labs

LATENCY_S, BANDWIDTH_BPS = 30e-6, 1.25e9  # 10 Gbit/s Ethernet, as in simlib.clusters.ethernet_10g


def bring(rank, world_size, all_reduce, numel, *more):
    x = torch.arange(float(numel)) + 10 * rank
    all_reduce(rank, world_size, x, *more)
    return x


def timed(function, world_size, numel, *more, **options):
    run = simlib.simulate(bring, world_size, args=(function, numel, *more), **options)
    run.name = function.__name__  # for the pictures
    return run


# %% [markdown]
# Three of the five are worth choosing, and here they are again. The **ring**: $2(n-1)$ messages of $N/n$
# bytes one after the other, so it is cheap in bytes and dear in latency. Before you go on, say its
# time, from memory; the answer is in the first half.


# %%
def ring(rank, world_size, x):
    chunks = x.tensor_split(world_size)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(2 * (world_size - 1)):
        chunk = chunks[(rank - step - 1) % world_size]
        incoming = torch.empty_like(chunk)
        request = dist.isend(chunks[(rank - step) % world_size], dst=right)
        dist.recv(incoming, src=left)
        request.wait()
        if step < world_size - 1:
            chunk += incoming
        else:
            chunk.copy_(incoming)


def swap(outgoing, incoming, partner):
    request = dist.isend(outgoing, dst=partner)
    dist.recv(incoming, src=partner)
    request.wait()


# %% [markdown]
# **Recursive doubling**: swap all you have with partners at distance 1, 2, 4, so $\log_2 n$ messages of N
# bytes. And **Rabenseifner**: swap halves, then the way back, $2 \log_2 n$ messages with the bytes of the
# ring. Both want a power of two here (the first half folds other worlds). `near_first=False` begins
# with the farthest partner; we shall need it.


# %%
def recursive_doubling(rank, world_size, x):
    other = torch.empty_like(x)
    for bit in range(world_size.bit_length() - 1):
        swap(x, other, rank ^ (1 << bit))
        x += other


def rabenseifner(rank, world_size, x, near_first=True):
    done, mine = [], x
    distances = [1 << bit for bit in range(world_size.bit_length() - 1)]  # 1, 2, 4, ...
    for distance in distances if near_first else reversed(distances):
        low, high = mine.tensor_split(2)  # of two partners the one with the bit set takes high
        mine, theirs = (high, low) if rank & distance else (low, high)
        incoming = torch.empty_like(mine)
        swap(theirs, incoming, rank ^ distance)
        mine += incoming
        done.append((mine, theirs, rank ^ distance))
    for mine, theirs, partner in reversed(done):
        swap(mine, theirs, partner)  # theirs is a view: the other half comes into its place in x


def rabenseifner_far(rank, world_size, x):
    rabenseifner(rank, world_size, x, near_first=False)


# %% [markdown]
# ## Where they cross
#
# Ring against doubling, n a power of two. The ring pays more latency, doubling more bytes. Set the two
# times equal:
#
# $$2(n-1)\alpha + 2\tfrac{n-1}{n}\tfrac{N}{B} = \log_2 n \left(\alpha + \tfrac{N}{B}\right)$$
#
# **Now you write it**: solve for N. The cell runs both at your size, in three worlds, and compares their times.


# %%
def yours(n):
    return None  # N in bytes at which both take the same time


for n in (4, 8, 16):
    if not 1e3 < (yours(n) or 0) < 1e7:
        print(f"{n} ranks: not yet", yours(n) or "")
        continue
    times_s = [timed(f, n, round(yours(n) / 4)).time_s for f in (ring, recursive_doubling)]
    print(f"{n} ranks: {times_s[0] * 1e6:.1f} us and {times_s[1] * 1e6:.1f} us,", end=" ")
    print("right" if abs(times_s[0] - times_s[1]) < 1e-7 else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# As `crossover_nbytes` in the next cell.
#
# </details>
#
# $$N^* = \alpha B\,\frac{2(n-1) - \log_2 n}{\log_2 n - 2\frac{n-1}{n}}$$
#
# Check it with *your* two functions on 8 ranks, at half, once and twice $N^*$. And what does a larger
# world do: does $N^*$ grow or shrink?

# %%
guess = None  # 1 MB on 1,024 ranks: "ring" or "recursive_doubling"?


def crossover_nbytes(n):
    lg = math.log2(n)
    return LATENCY_S * BANDWIDTH_BPS * (2 * (n - 1) - lg) / (lg - 2 * (n - 1) / n)


for factor in (0.5, 1, 2):
    numel = round(factor * crossover_nbytes(8) / 4)
    runs = [timed(f, 8, numel) for f in (ring, recursive_doubling)]
    print(f"{4 * numel:7,} bytes: ring {runs[0].time_s * 1e3:.3f} ms,", end="")
    print(f" recursive doubling {runs[1].time_s * 1e3:.3f} ms")
for n in (4, 16, 64, 256, 1024):
    cluster = simlib.clusters.ethernet_10g(nodes=n)
    times_s = {
        name: simlib.scale.time_of("all_reduce", n, 1_000_000, cluster, name)
        for name in ("ring", "recursive_doubling")
    }
    print(f"{n:4} ranks: N* = {crossover_nbytes(n) / 1e6:5.2f} MB,", end="")
    print(f" 1 MB is quicker by {min(times_s, key=times_s.get)}")
simlib.guess(guess, min(times_s, key=times_s.get), of=list(times_s))

# %% [markdown]
# Equal at $N^*$, to a microsecond. $N^*$ grows with the world, so 1 MB belongs to the ring on 16 ranks
# and to doubling on 1,024. With two ranks there is no crossing: both send N, doubling in half the steps.
#
# ## Lab: which algorithm, at which size?
#
# `simlib.scale.time_of` has the same costs for any number of ranks, without running anything. All five,
# on 8 ranks, from 1 kB to 100 MB. Before you run it: which line is lowest at the left end, which at
# the right, and which at $N^*$, where ring and doubling meet? Below is the lab: a shorter latency,
# does it move the crossings left or right?

# %%
guess = None  # the quickest of these five at N*, 330 kB?

names = ("naive", "binomial", "ring", "recursive_doubling", "rabenseifner")
colors = ("#000000", "#E69F00", "#0072B2", "#D55E00", "#009E73")
sizes = [int(nbytes) // 32 * 32 for nbytes in np.geomspace(1_000, 100_000_000, 60)]
cluster = simlib.clusters.ethernet_10g(nodes=8)
figure, axes = plt.subplots(figsize=(7, 3.8))
for name, color, style in zip(names, colors, ("-", "-.", "-", "--", ":"), strict=True):
    times_s = [simlib.scale.time_of("all_reduce", 8, size, cluster, name) for size in sizes]
    axes.loglog(sizes, np.array(times_s) * 1e3, style, color=color, label=name)
axes.axvline(crossover_nbytes(8), color="#777777", lw=1)
axes.text(crossover_nbytes(8) * 1.1, 0.075, "N*", color="#777777")
axes.set(xlabel="tensor (bytes)", ylabel="time of an all_reduce, 8 ranks (ms)")
axes.legend(frameon=False)
plt.show()
for size in (80_000, 90_000, 100_000, 330_000):
    times_s = {name: simlib.scale.time_of("all_reduce", 8, size, cluster, name) for name in names}
    texts = [f"{name} {times_s[name] * 1e3:.3f} ms" for name in names[2:]]
    print(f"{size:7,} bytes:", ", ".join(texts))
simlib.guess(guess, min(times_s, key=times_s.get), of=names)

# %% tags=["nbval-ignore-output"]
labs.crossover_lab()

# %% [markdown]
# Small tensors: the fewest steps, recursive doubling. (Of these five. For a few bytes `everyone` of the first half,
# which receives all at once, is quicker still; only the latency of its messages then counts, and once.) Large ones: the fewest bytes, ring and
# Rabenseifner (`binomial` is the tree). $N^*$ divides only the ring from doubling. With
# all five, doubling hands over to Rabenseifner earlier: $3(\alpha + N/B) = 6\alpha + \frac74 N/B$ gives
# $N = 2.4\,\alpha B$ = 90 kB. At $N^*$ Rabenseifner is ahead of both. Every crossing is a multiple of
# $\alpha B$, so a shorter latency moves it to the left.
#
# In this model nothing beats Rabenseifner at large sizes, where n is a power of two. Why then are
# rings so common? Here every rank has a link to itself. On real machines several share one, and n need
# not be a power of two. Wait for the nodes.
#
# ## Sixteen bits have a price
#
# Half the bytes, half the time: why not add up in 16 bits? Rank 0 brings 256 at eight places, the seven
# others bring ones. The sum is 263. A bfloat16 has 8 significant bits: between 256 and 512 it knows the even
# numbers only. What do ring and doubling give? And eight times 20,000, in three dtypes?

# %%
smallest, largest = None, None  # of the eight sums of the ring in bfloat16


def summed(rank, world_size, all_reduce, dtype):
    x = torch.full((8,), 256.0 if rank == 0 else 1.0, dtype=dtype)
    all_reduce(rank, world_size, x)
    large = torch.full((8,), 20_000.0, dtype=dtype)
    all_reduce(rank, world_size, large)
    return x.int().tolist(), large[0].item()


found = {}
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    for all_reduce in (ring, recursive_doubling):
        run = simlib.simulate(summed, 8, args=(all_reduce, dtype))
        found[all_reduce, dtype] = run.results[0][0]
        words = f"{str(dtype)[6:]:9} {all_reduce.__name__:18}"
        print(words, *run.results[0], "the same on all" if run.results[0] == run.results[7] else "")
simlib.guess(smallest, min(found[ring, torch.bfloat16]))
simlib.guess(largest, max(found[ring, torch.bfloat16]))

# %% [markdown]
# The same ones at eight places, and the ring's sums run from 256 to 264: it begins to add each chunk on
# another rank. Where the 256 comes first, each 1 is rounded away, seven times; where it comes last, the
# ones are 7 by then. Doubling adds in pairs and comes nearer. (Eight times 20,000 is 159,744: a bfloat16
# holds 19,968 for 20,000.) Float16 has 11 significant bits, enough here, but no number above 65,504: its
# large sum is infinite. So the usual ways out: divide by n before you
# add (torch's `fp16_compress_hook` for DDP does, in `torch/distributed/algorithms/ddp_comm_hooks`), or add
# in float32 and *send* in 16 bits, which pays one rounding at each hop.
#
# ## Ring and tree are algorithms, NCCL is a library
#
# "Do you use ring all_reduce or NCCL?" is no question. NCCL (Nvidia), Gloo and MPICH (an MPI) are
# *libraries*. Each knows several algorithms and chooses, by size, ranks and links. NCCL can be told
# with its environment variable `NCCL_ALGO`. Here is what each would take on 8 ranks, as modelled in
# `simlib.collectives` (sources there). You know now what is quickest in the model: will MPICH agree, for
# 4 bytes and for 100 MB?

# %%
guess = None  # MPICH's choice for 100 MB? And for 4 bytes?

link = simlib.Link(LATENCY_S, BANDWIDTH_BPS)
for nbytes in (4, 10_000, 1_000_000, 100_000_000):
    chosen = {
        library: simlib.collectives.choose("all_reduce", 8, nbytes, library, link=link)
        for library in ("mpich", "nccl", "gloo")
    }
    print(f"{nbytes:>11,} bytes:", ", ".join(f"{who} {what}" for who, what in chosen.items()))
simlib.guess(guess, chosen["mpich"], of=names)

# %% [markdown]
# It agrees at both ends: recursive doubling, then Rabenseifner. But it changes over before 10 kB, where the
# model would wait for 90 kB: its limit is a number of bytes, whatever the link. NCCL changes its mind by size,
# too. (`binomial` stands for its tree, which is a pipelined pair of trees. Gloo keeps to a ring, cut more finely.)
#
# ## Flat against hierarchical: 4 nodes of 8 ranks
#
# Now 32 ranks on 4 machines. Within a machine a message pays 5 us and 50 GB/s. Between machines it pays
# those 5 us and Ethernet's 30, at 1.25 GB/s, and **all 8 ranks of a node share its one link**. Three
# flat algorithms of yours, with 1.28 MB. The ring also in another order: `round_robin` puts neighbours on
# different machines. Rabenseifner also with the *farthest* partner first. Which is quickest?

# %%
guess = None  # the name of the quickest function

intra = simlib.Link(latency_s=5e-6, bandwidth_Bps=50e9)
nodes4x8 = simlib.clusters.ethernet_10g(nodes=4, ranks_per_node=8, intra=intra)
ranks, numel, runs = np.arange(32), 320_000, {}
for function, placement, node_of in (
    (ring, "block", ranks // 8),
    (ring, "round_robin", ranks % 4),
    (recursive_doubling, "block", ranks // 8),
    (rabenseifner, "block", ranks // 8),
    (rabenseifner_far, "block", ranks // 8),
):
    run = timed(function, 32, numel, cluster=nodes4x8, placement=placement)
    between = run.traffic[node_of[:, None] != node_of].sum() / (4 * numel)
    print(f"{run.name:18} {placement:11} {run.time_s * 1e3:7.3f} ms,{between:6.2f} N between nodes")
    runs[run.name, placement] = run
quickest = min(runs, key=lambda key: runs[key].time_s)[0]
simlib.guess(guess, quickest, of=("ring", "recursive_doubling", "rabenseifner", "rabenseifner_far"))

# %%
figure, both = plt.subplots(1, 2, figsize=(7.4, 3.6))
for axes, name in zip(both, ("rabenseifner", "rabenseifner_far"), strict=True):
    axes.imshow(np.sqrt(runs[name, "block"].traffic), cmap="Greys")  # full: many bytes
    axes.hlines([7.5, 15.5, 23.5], -0.5, 31.5, "#D55E00", lw=1)  # borders of nodes
    axes.vlines([7.5, 15.5, 23.5], -0.5, 31.5, "#D55E00", lw=1)
    axes.set(title=name, xlabel="to", ylabel="from", xticks=ranks[::8], yticks=ranks[::8])
plt.show()

# %% [markdown]
# A ring through the nodes in order crosses each node's border once, with one
# message of $N/32$ at a time: 62 steps of 35 + 32 us are its 4.154 ms. In a careless order it is
# more than four times slower. The two Rabenseifners send the same bytes in as many steps. But one keeps
# its large halves in the nodes; the other sends *every* rank's $N/2$ across first, eight of them through
# one link. **Who is where matters as much as the algorithm.** So libraries look for the machines first.
#
# But the ring's 62 steps pay 62 latencies, and halving wants powers of two. **Hierarchical**: first
# reduce_scatter within each node, so that each of the 8 ranks has an eighth of the node's sum. Then
# all_reduce between ranks of the same place in their nodes. Then all_gather within the node. With groups
# that is short. (Lesson 04's rule: every rank calls every `new_group`.)


# %%
def hierarchical(rank, world_size, x, per_node):
    firsts = range(0, world_size, per_node)
    nodes = [dist.new_group(list(range(first, first + per_node))) for first in firsts]
    places = [dist.new_group([first + k for first in firsts]) for k in range(per_node)]
    node, place = nodes[rank // per_node], places[rank % per_node]
    parts = list(x.chunk(per_node))  # per_node must divide the length
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts, group=node)
    dist.all_reduce(mine, group=place)
    dist.all_gather(parts, mine, group=node)  # writes into x: the parts are views of it


print("2 x 2 real ranks:", simlib.run(bring, 4, args=(hierarchical, 4, 2)).results[3])
rings = {"all_reduce": "ring", "reduce_scatter": "ring", "all_gather": "ring"}
run = timed(hierarchical, 32, numel, 8, cluster=nodes4x8, **rings)
print(f"hierarchical, your own: {run.time_s * 1e3:.3f} ms")
for nodes, nbytes in ((4, 1_280_000), (4, 128_000_000), (3, 1_279_968), (3, 127_999_968)):
    cluster = simlib.clusters.ethernet_10g(nodes=nodes, ranks_per_node=8, intra=intra)
    print(f"{nodes} nodes, {nbytes:11,} bytes", end="")
    for name in ("ring", "rabenseifner", "hierarchical"):
        seconds = simlib.scale.time_of("all_reduce", 8 * nodes, nbytes, cluster, name)
        print(f", {name} {seconds * 1e3:.3f} ms", end="\n" if name == "hierarchical" else "")

# %% [markdown]
# Less than half the time of the flat ring at 1.28 MB, because only 6 of its 20 steps wait for Ethernet; in the
# flat ring all 62 wait for the slowest link. But 32 is a power of two, and the flat Rabenseifner that begins with
# the nearest partner is quicker still, if only by a hair at 128 MB: it keeps its large halves in the nodes, so it is
# hierarchical by itself. On 3 nodes, 24 ranks, it has to fold whole tensors, and hierarchical is ahead of both, at
# either size.
#
# **Now you write it**: the time of `hierarchical` on the 4 nodes, of rings only.

# %%
yours_s = None  # of 14 steps in the node and 6 between nodes; there 8 ranks share a link

off_us = abs((yours_s or 0) - run.time_s) * 1e6
print("right" if off_us < 1 else "not yet" + f": off by {off_us:.0f} us" * (yours_s is not None))

# %% [markdown]
# <details><summary>Answer</summary>
#
# `14 * (5e-6 + 160_000 / 50e9) + 6 * (35e-6 + 8 * 40_000 / 1.25e9)`: parts of an eighth in the node, of
# a 32nd between the nodes.
#
# </details>
#
# At 128 MB it is still ahead of the ring, by bytes: between the nodes it runs a ring of 4,
# $2 \cdot \frac34 N$ through each node's link, where the flat ring needs $2 \cdot \frac{31}{32} N$.
#
# ## A broadcast in a pipeline
#
# Chunks are good for more than rings. Broadcast 2.5 MB down a chain of ranks, in s chunks: while
# rank 1 passes chunk 0 on, it can already receive chunk 1. The first version uses `send`, the second
# `isend`; both have 4 chunks on 5 ranks. What is the difference?

# %%
guess = None  # which rank waits for what, in the first version?


def chain_send(rank, world_size, x, num_chunks):
    for chunk in x.tensor_split(num_chunks):
        if rank > 0:
            dist.recv(chunk, src=rank - 1)
        if rank < world_size - 1:
            dist.send(chunk, dst=rank + 1)


def chain_isend(rank, world_size, x, num_chunks):
    requests = []
    for chunk in x.tensor_split(num_chunks):
        if rank > 0:
            dist.recv(chunk, src=rank - 1)  # while the chunk before is being sent
        if rank < world_size - 1:
            requests.append(dist.isend(chunk, dst=rank + 1))
    for request in requests:
        request.wait()


for function in (chain_send, chain_isend):
    print(f"{function.__name__}: {timed(function, 5, 625_000, 4).time_s * 1e3:.3f} ms")
timed(chain_isend, 5, 625_000, 4).timeline()

# %% [markdown]
# With `send` a rank cannot receive while it sends: every chunk costs two turns. With `isend` the
# picture is a staircase. (Rank 0 has nothing to wait for and posts all its chunks at once; they arrive
# one by one.) The last of s chunks reaches rank 1 in turn s, and needs $n-2$ more turns to the end. Each
# turn is a message of $N/s$ bytes:
#
# $$T(s) = (n + s - 2)\left(\alpha + \frac{N}{sB}\right)$$
#
# Few chunks: the pipe is never full. Many: each pays latency. Multiply out; the terms with s are
# $s\alpha + (n-2)\frac{N}{sB}$, least where both are equal. **Now you write it**: the best s.


# %%
def best_chunks(n, nbytes):
    return None  # your formula


n, nbytes = 8, 2_500_000
for s in (1, 2, 5, 10, 20, 40, 80, 200):
    formula_s = (n + s - 2) * (LATENCY_S + nbytes / s / BANDWIDTH_BPS)
    time_s = timed(chain_isend, n, nbytes // 4, s).time_s
    print(f"{s:3} chunks {time_s * 1e3:7.3f} ms, formula {formula_s * 1e3:7.3f} ms")
for ranks, size in ((8, 2_500_000), (5, 1_000_000), (16, 100_000)):  # the least T of all s
    turn_s = [LATENCY_S + size / s / BANDWIDTH_BPS for s in range(1, 400)]
    least = 1 + np.argmin([(ranks + k - 1) * one_s for k, one_s in enumerate(turn_s)])
    off = abs((best_chunks(ranks, size) or 0) - least)
    print(f"{ranks} ranks, {size:,} bytes:", "right" if off < 1 else "not yet")
cluster = simlib.clusters.ethernet_10g(nodes=n)
seconds = simlib.scale.time_of("broadcast", n, nbytes, cluster, "binomial")
print(f"in one piece down a binomial tree {seconds * 1e3:.3f} ms")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return math.sqrt(nbytes / BANDWIDTH_BPS * (n - 2) / LATENCY_S)`
#
# </details>
#
# $$s^* = \sqrt{\frac{N (n-2)}{\alpha B}} = \sqrt{2\,\text{ms} \cdot 6 / 30\,\text{us}} = 20$$
#
# For a chain that receives one chunk after the other there is a best number between: 20 chunks, four times quicker
# than one, and worse again on both sides. A chain, the worst shape for one message, beats the tree once it is a
# pipeline. [Lesson 11](11_pipelines.ipynb) meets the same formula in the pipelines of large models.
#
# Each turn has a latency in it because a rank asks for the next chunk only when it has the one before. What if it
# posts all its receives ahead? Is 20 still the best?

# %%
best_ahead = None  # your guess: 20, 200 or 1000 chunks?


def chain_ahead(rank, world_size, x, num_chunks):
    chunks, sends = x.tensor_split(num_chunks), []
    coming = [dist.irecv(chunk, src=rank - 1) for chunk in chunks] if rank > 0 else []
    for number, chunk in enumerate(chunks):
        if rank > 0:
            coming[number].wait()
        if rank < world_size - 1:
            sends.append(dist.isend(chunk, dst=rank + 1))
    for request in sends:
        request.wait()


ahead_s = {s: timed(chain_ahead, n, nbytes // 4, s).time_s for s in (20, 200, 1000)}
for s, time_s in ahead_s.items():
    print(f"{s:4} chunks, asked for ahead: {time_s * 1e3:.3f} ms")
simlib.guess(best_ahead, min(ahead_s, key=ahead_s.get), of=tuple(ahead_s))

# %% [markdown]
# No: then the latencies of the chunks overlap, and only bytes queue on a link. The price is what the model leaves
# out: up to 1,000 open requests on a rank, and its processor's work for each message.
#
# ## Your turn
#
# [Exercises 05](../exercises/05_building_all_reduce.ipynb), tasks 3 and 4: a pipelined chain, and an
# all_reduce that chooses for itself.
#
# ## Exit ticket
#
# 1. Twice the bytes in a pipelined chain: how many more chunks are best?
# 2. Two libraries add up the same bfloat16 gradients, and their sums differ. Is one of them broken?
#
# <details><summary>Answers</summary>
#
# 1. $\sqrt 2$ times as many.
# 2. No: they add in another order, and each addition is rounded.
#
# </details>
#
# **Next:** [lesson 06](06_synchronous_sgd.ipynb), which puts `all_reduce` to work: the derivation of synchronous SGD.
