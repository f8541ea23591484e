# %% [markdown]
# # 05 Choosing an all_reduce
#
# This is the second part of lesson 05. In [the first part](05_building_all_reduce.ipynb) you
# built five programs with the same contract. Which one should you use? That depends on the size
# of the tensor, on the number of ranks, and on the machines. In this lesson (60 minutes) you will
#
# - find the size from which one algorithm is quicker than another,
# - see that the sum depends on the order of adding, and that 16 bits cost accuracy,
# - look at which algorithms MPICH, NCCL and Gloo choose,
# - move to machines with eight ranks each, where all eight share one link,
# - cut a broadcast into the best number of pieces.
#
# As before, there are **n** ranks, tensors have **N** bytes, and a link has latency $\alpha$ and
# bandwidth $B$. `bring` and `timed` are the same as in the first part.

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
# Three of the five can be the best choice, so here they are again. In the **ring** a rank sends
# $2(n-1)$ messages of $N/n$ bytes, one after the other. So it sends few bytes, but pays the
# latency often. Before you go on, write down the formula for its time from memory; the answer is
# in the first part.


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
# In **recursive doubling** each rank swaps all its numbers with partners at distance 1, 2, 4, and
# so on. It sends $\log_2 n$ messages of N bytes. In **Rabenseifner's** algorithm partners swap
# halves, then quarters, and so on, and then the sums go the same way back. A rank sends
# $2 \log_2 n$ messages, and as many bytes as in the ring. In this lesson both programs work only
# if n is a power of two. (The first part shows how to fold other worlds.) With `near_first=False`
# a rank begins with its farthest partner. We need that later.


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
# ## Where ring and doubling cross
#
# We compare ring and doubling for worlds in which n is a power of two. The ring pays more
# latency, and doubling sends more bytes. For one size of the tensor their times are equal:
#
# $$2(n-1)\alpha + 2\tfrac{n-1}{n}\tfrac{N}{B} = \log_2 n \left(\alpha + \tfrac{N}{B}\right)$$
#
# **Now you write it**: solve the equation for N. The cell runs both algorithms with a tensor of
# this size, in worlds of 4, 8 and 16 ranks, and compares their times.


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
# The answer is `crossover_nbytes` in the next cell.
#
# </details>
#
# $$N^* = \alpha B\,\frac{2(n-1) - \log_2 n}{\log_2 n - 2\frac{n-1}{n}}$$
#
# The next cell runs the two functions on 8 ranks, at half of $N^*$, at $N^*$, and at twice $N^*$.
# Then it computes $N^*$ for more and more ranks. Does $N^*$ grow or shrink? So which of the two
# is quicker for 1 MB on 1,024 ranks?

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
# At $N^*$ the times are equal, to a microsecond. $N^*$ grows with the number of ranks. So for 1
# MB the ring is quicker on 16 ranks, and doubling is quicker on 1,024. With two ranks there is no
# crossing: both send N bytes, but doubling needs half the steps.
#
# ## Lab: which algorithm, at which size?
#
# `simlib.scale.time_of` computes the same times for any number of ranks, without running
# anything. The next cell draws all five algorithms on 8 ranks, from 1 kB to 100 MB. (`binomial`
# is the tree.) Before you run it: which line is lowest at the left end? Which is lowest at the
# right end, and which at $N^*$, where ring and doubling meet? The lab is below the picture. Does
# a shorter latency move the crossings in the lab to the left or to the right?

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
# For small tensors the algorithm with the fewest steps wins: recursive doubling. (It is the
# quickest of these five. For a few bytes, `everyone` of the first part is even quicker. There a
# rank receives all messages at once, so it pays their latency only once.) For large tensors the
# algorithms with the fewest bytes win: ring and Rabenseifner. $N^*$ is only the border between
# ring and doubling. Rabenseifner becomes quicker than doubling at a smaller size. On 8 ranks
# $3(\alpha + N/B) = 6\alpha + \frac74 N/B$ gives $N = 2.4\,\alpha B$, which is 90 kB. So at $N^*$
# Rabenseifner is already quicker than both. The size of every crossing is a multiple of
# $\alpha B$, so a shorter latency moves it to the left.
#
# In this model, no algorithm is quicker than Rabenseifner for large tensors if n is a power of
# two. Then why are rings so common? Here every rank has a link of its own. On real machines
# several ranks share a link, and n need not be a power of two. We come to such machines in the
# section on 4 nodes.
#
# ## Adding up in 16 bits
#
# Half the bytes take half the time. So why not add up in 16 bits? Rank 0 brings 256 at eight
# places, and the seven others bring ones, so each sum is 263. But a bfloat16 has only 8
# significant bits: between 256 and 512 it can store only even numbers. Which sums do ring and
# doubling give? In a second all_reduce each of the eight ranks brings 20,000. What is this sum in
# float32, in bfloat16 and in float16?

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
# All eight places have the same inputs, but in bfloat16 the ring's sums differ: they run from 256
# to 264. The reason is that the ring begins to add each chunk on another rank. If the 256 comes
# first, rounding removes each of the seven ones. If the 256 comes last, the ones already add up
# to 7, and 263 is rounded to 264. Doubling adds in pairs, and its result of 262 is nearer to 263.
#
# In bfloat16 the large sum is 159,744, because a bfloat16 stores 20,000 as 19,968. Float16 has 11
# significant bits, which is enough here. But it has no number above 65,504, so its large sum is
# infinite. There are two usual fixes. You can divide by n before you add, as torch's
# `fp16_compress_hook` for DDP does (in `torch/distributed/algorithms/ddp_comm_hooks`). Or you can
# add in float32 and *send* in 16 bits; then each hop rounds once.
#
# ## Ring and tree are algorithms, NCCL is a library
#
# "Do you use ring all_reduce or NCCL?" is the wrong question. NCCL (by Nvidia), Gloo and MPICH
# (an MPI) are *libraries*. Each library has several algorithms. It chooses one by the size of the
# tensor, the number of ranks and the links. For NCCL you can also choose yourself, with the
# environment variable `NCCL_ALGO`. The next cell shows what each library would choose on 8 ranks.
# (`simlib.collectives` models these choices, and names its sources.) You now know which algorithm
# is quickest in the model. Will MPICH choose the same one, for 4 bytes and for 100 MB?

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
# MPICH agrees at both ends: it chooses recursive doubling for 4 bytes, and Rabenseifner for 100
# MB. But it already chooses Rabenseifner for 10 kB. In the model, Rabenseifner is quicker only
# above 90 kB. The two differ because MPICH's limit is a fixed number of bytes, the same for every
# link. NCCL also chooses by size. (`binomial` here means NCCL's tree, which is a pipelined pair
# of trees. Gloo always chooses a ring, but with smaller chunks.)
#
# ## Flat against hierarchical: 4 nodes of 8 ranks
#
# Now 32 ranks run on 4 machines (nodes). Within a machine a message has a latency of 5 us and a
# bandwidth of 50 GB/s. Between machines a message pays these 5 us and also the 30 us of Ethernet.
# The bandwidth there is 1.25 GB/s, and **all 8 ranks of a node share its one link**. The cell
# runs your three flat algorithms with 1.28 MB. It runs the ring a second time in another order:
# `round_robin` puts neighbours on different machines. It also runs Rabenseifner a second time,
# with the *farthest* partner first. Which of the five runs is quickest?

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
# In the order `block`, only one rank of each node sends to another node, with one message of
# $N/32$ at a time. So the ring's 62 steps take 35 + 32 us each, together 4.154 ms. In the order
# `round_robin` the ring takes more than four times as long. The two runs of Rabenseifner send
# equally many bytes in equally many steps. The picture shows the difference. (A darker cell means
# more bytes. The lines are the borders of the nodes.) The first run keeps its large halves within
# the nodes. The second run begins with messages of $N/2$ from *every* rank to another node. Eight
# of these messages share one link. **The placement of the ranks matters as much as the
# algorithm.** So libraries first find out which ranks share a machine.
#
# But the ring's 62 steps pay 62 latencies, and Rabenseifner needs a power of two. A
# **hierarchical** all_reduce needs fewer steps and no power of two. It has three phases. First, a
# reduce_scatter within each node gives each of its 8 ranks an eighth of the node's sum. Second,
# the ranks that have the same place in their nodes do an all_reduce of their eighths. Third, an
# all_gather within each node gives all eighths to all ranks. With groups this program is short.
# (Remember the rule of lesson 04: every rank calls every `new_group`.)


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
# At 1.28 MB the hierarchical program takes less than half the time of the flat ring. Only 6 of
# its 20 steps wait for Ethernet. In the flat ring all 62 steps wait for the slowest link. But 32
# is a power of two, and the flat Rabenseifner that begins with the nearest partner is even
# quicker. (At 128 MB it is quicker by only 0.1 ms.) It keeps its large halves within the nodes,
# so it is hierarchical by itself. On 3 nodes, with 24 ranks, Rabenseifner has to fold whole
# tensors. There the hierarchical program is quicker than both others, at both sizes.
#
# **Now you write it**: the time of `hierarchical` with 1.28 MB on the 4 nodes, if all its
# collectives are rings. Each step takes a latency, and the time for the bytes of its message.

# %%
yours_s = None  # of 14 steps in the node and 6 between nodes; there 8 ranks share a link

off_us = abs((yours_s or 0) - run.time_s) * 1e6
print("right" if off_us < 1 else "not yet" + f": off by {off_us:.0f} us" * (yours_s is not None))

# %% [markdown]
# <details><summary>Answer</summary>
#
# `14 * (5e-6 + 160_000 / 50e9) + 6 * (35e-6 + 8 * 40_000 / 1.25e9)`: a message has an eighth of the
# tensor within the node, and a 32nd between the nodes.
#
# </details>
#
# At 128 MB `hierarchical` is still quicker than the flat ring, because it sends fewer bytes
# between the nodes. Between the nodes it runs rings of 4. Together these send $2 \cdot \frac34 N$
# through each node's link. The flat ring sends $2 \cdot \frac{31}{32} N$.
#
# ## A broadcast in a pipeline
#
# Chunks are useful outside of rings, too. We broadcast 2.5 MB along a chain of ranks, in s
# chunks. While rank 1 sends chunk 0 to rank 2, it can already receive chunk 1 from rank 0. The
# first version uses `send`, and the second uses `isend`. Both send 4 chunks along 5 ranks. Which
# one is slower, and why?

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
# A **turn** is the time that one chunk needs for one link. With `send` a rank cannot receive
# while it sends, so every chunk costs two turns. With `isend` the picture is a staircase. (Rank 0
# waits for nobody, so it starts to send all its chunks at once. They arrive one by one.) The last
# of s chunks reaches rank 1 in turn s. It needs $n-2$ more turns to reach the end of the chain.
# In each turn a rank sends a message of $N/s$ bytes:
#
# $$T(s) = (n + s - 2)\left(\alpha + \frac{N}{sB}\right)$$
#
# With few chunks, most ranks wait for most of the time. With many chunks, we pay many latencies.
# Multiply the product out: the terms with s are $s\alpha + (n-2)\frac{N}{sB}$. Their sum is
# smallest where both terms are equal. **Now you write it**: the best s.


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
# For a chain that receives one chunk after the other, the best number of chunks is neither small
# nor large. With 20 chunks the chain is four times quicker than with one chunk. With fewer or
# more than 20 chunks it is slower. In one piece, the chain needs 14.2 ms and the tree 6.1 ms. As
# a pipeline of 20 chunks, the chain needs only 3.4 ms. [Lesson 11](11_pipelines.ipynb) uses the
# same formula for the pipelines of large models.
#
# Each turn includes a latency, because a rank asks for the next chunk only when it has the chunk
# before. What if a rank starts all its receives at the beginning? Is 20 still the best number?

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
# No, 1,000 chunks are the quickest of the three. If a rank starts all receives at the beginning,
# the latencies of the chunks overlap, and only their bytes queue on a link. But this has a price,
# which the model does not contain: a rank has up to 1,000 open requests, and each message costs
# its processor some work.
#
# ## Your turn
#
# [Exercises 05](../exercises/05_building_all_reduce.ipynb), tasks 3 and 4: a pipelined chain, and
# an all_reduce that chooses its own algorithm.
#
# ## Exit ticket
#
# 1. A pipelined chain that receives one chunk after the other now broadcasts twice as many bytes.
#    By which factor does the best number of chunks grow?
# 2. Two libraries add up the same bfloat16 gradients, and their sums differ. Is one of them broken?
#
# <details><summary>Answers</summary>
#
# 1. It grows by the factor $\sqrt 2$.
# 2. No. They add in different orders, and each addition is rounded.
#
# </details>
#
# **Next:** the last part of lesson 05, [networks of many nodes](05_networks_of_many_nodes.ipynb).
