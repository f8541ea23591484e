# %% [markdown]
# # 05 Building all_reduce
#
# `all_reduce` is a contract (lesson 04): everybody brings a tensor, everybody gets the sum. Here you
# build it, with nothing but messages from rank to rank, in five ways. All keep the contract. With the gradient of
# a real model on 64 ranks, the slowest takes 60 times as long as the quickest. In this lesson (about 50
# minutes) you will
#
# - build it at a root, as a tree, as a ring, by doubling, and by Rabenseifner's halving,
# - hold each against its **closed form**: a formula for its time, exact to the last digit,
# - derive the famous $2\frac{n-1}{n}$, step by step, each step checked by a run,
# - expose two "rings" of the kind that tutorials have printed,
# - find the size at which one algorithm overtakes another,
# - go to machines with eight ranks each, and cut a broadcast into the best number of pieces.
#
# Two letters all through: **n** ranks, and tensors of **N** bytes.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

import simlib

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
# ## Two measuring sticks
#
# Every algorithm below is a rank function that adds up `x` in place, over all ranks. `bring` gives it
# an `x` that differs from rank to rank, and `timed` runs that under the virtual clock. `compare` first
# asks real ranks for the value, in worlds of 1 to 6, with lengths that can be cut into equal chunks and
# lengths that cannot. Then it holds the time on 2 to 8 simulated ranks against a formula.

# %%
LENGTHS = (0, 1, 7, 24)


def bring_all(rank, world_size, all_reduce):
    return [bring(rank, world_size, all_reduce, numel) for numel in LENGTHS]


def is_right(all_reduce):
    for n in range(1, 7):
        expected = [sum(torch.arange(float(m)) + 10 * r for r in range(n)) for m in LENGTHS]
        for sums in simlib.run(bring_all, n, args=(all_reduce,)).results:
            if not all(map(torch.equal, sums, expected)):
                return f"wrong on {n} ranks"
    return "right on 1 to 6 real ranks, at every length"


def compare(all_reduce, formula_s, numel=840_000):
    print(is_right(all_reduce))
    for n in range(2, 9):
        run = timed(all_reduce, n, numel)
        off_us = abs(run.time_s - formula_s(n, 4 * numel)) * 1e6
        busiest = max(run.bytes_sent) / (4 * numel)
        print(f"{n} ranks {run.time_s * 1e3:7.3f} ms (formula off by {off_us:.6f} us),", end=" ")
        print(f"{sum(run.messages):3} messages, busiest rank sends {busiest:.3f} N")


# %% [markdown]
# ## "All means: everyone sends to everyone"
#
# The name suggests it, so let us build that first. Every rank sends its tensor to all others and adds
# up what comes. It is a right program. With 8 ranks, how many tensors does each rank send?

# %%
guess = None  # how many tensors of N bytes does one rank send?


def everyone(rank, world_size, x):
    others = [other for other in range(world_size) if other != rank]
    incoming = [torch.empty_like(x) for _ in others]
    requests = [dist.isend(x, dst=other) for other in others]
    requests += [dist.irecv(y, src=other) for y, other in zip(incoming, others, strict=True)]
    for request in requests:
        request.wait()
    for y in incoming:
        x += y


print(is_right(everyone))
run = timed(everyone, 8, 840_000)
print(f"{sum(run.messages)} messages, {run.time_s * 1e3:.3f} ms,", end=" ")
print(f"each rank sends {run.bytes_sent[0]:,} bytes")
run.heat_map()

# %% [markdown]
# Seven: every field off the diagonal is full. Each rank sends $(n-1)N$ bytes through its one link. For
# four bytes that is fine: all messages pay their latency at the same time. For these 3.36 MB it takes
# 18.8 ms; keep the number in mind. The contract says what all *have* in the end, not who talks to
# whom. From now on, everyone will talk to few.
#
# ## 1. Naive: at a root
#
# Rank 0 receives from one rank after the other, adds, and sends the sum back to one after the other.
# There are only $2(n-1)$ messages now, 14 instead of 56. Faster than everyone to everyone?

# %%
guess = None  # the time on 8 ranks, in ms


def naive(rank, world_size, x):
    if rank == 0:
        other = torch.empty_like(x)
        for src in range(1, world_size):
            dist.recv(other, src=src)
            x += other
        for dst in range(1, world_size):
            dist.send(x, dst=dst)
    else:
        dist.send(x, dst=0)
        dist.recv(x, src=0)


def naive_s(n, nbytes):
    return 2 * (n - 1) * (LATENCY_S + nbytes / BANDWIDTH_BPS)


compare(naive, naive_s)
timed(naive, 4, 840_000).timeline()

# %% [markdown]
# Slower: 38 ms. All messages pass through one rank, so they stand in a queue, and the picture shows
# six in a row. The formula says it, with latency $\alpha$ (seconds) and bandwidth $B$ (bytes per
# second):
#
# $$T_\text{naive} = 2(n-1)\left(\alpha + \frac{N}{B}\right)$$
#
# Rank 0 sends $(n-1)N$ bytes, the others one N. This is a **root bottleneck**: to double the ranks
# doubles the time.
#
# ## 2. A tree: reduce, then broadcast
#
# Lesson 04's binomial tree, first backwards. At distance 1, every odd rank sends to its left
# neighbour and is done. At distance 2, every second one that is left does so, and so on, until rank
# 0 has the sum. Then the same way back. How long do 8 ranks take?

# %%
guess = None  # in ms; one message takes 2.718 ms


def tree(rank, world_size, x):
    other = torch.empty_like(x)
    distances = [2**k for k in range((world_size - 1).bit_length())]  # 1, 2, 4, ...
    for distance in distances:  # sum up, towards rank 0
        if rank % (2 * distance) == distance:
            dist.send(x, dst=rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            dist.recv(other, src=rank + distance)
            x += other
    for distance in reversed(distances):  # tell, the same way back
        if rank % (2 * distance) == distance:
            dist.recv(x, src=rank - distance)
        elif rank % (2 * distance) == 0 and rank + distance < world_size:
            dist.send(x, dst=rank + distance)


def tree_s(n, nbytes):
    return 2 * math.ceil(math.log2(n)) * (LATENCY_S + nbytes / BANDWIDTH_BPS)


compare(tree, tree_s)
timed(tree, 8, 840_000).timeline()

# %% [markdown]
# Still 14 messages, but several at a time: six rounds, $T_\text{tree} = 2 \lceil \log_2 n \rceil
# (\alpha + N/B)$. Yet look at the hatched parts: in rounds 3 and 4 only two lanes transfer (pale), and
# 6 of 8 ranks neither send nor receive. And rank 0 still sends and receives 3 N. A large tensor needs all links to be busy
# **all the time**.
#
# ## 3. The ring, and a hang
#
# The idea: cut `x` into n chunks, and give every rank a chunk to begin with. Each sends its chunk to
# its right neighbour, receives one from the left, adds, and passes *that* one on. Nobody is a root.
# Here is the first step, written straight down. What happens on 4 ranks?

# %% tags=["raises-exception"]
guess = None


def ring_sends_first(rank, world_size, x):
    chunks = x.tensor_split(world_size)
    incoming = torch.empty_like(chunks[rank - 1])
    dist.send(chunks[rank], dst=(rank + 1) % world_size)
    dist.recv(incoming, src=(rank - 1) % world_size)


simlib.run(bring, 4, args=(ring_sends_first, 8))

# %% [markdown]
# Lesson 03's hang: a `send` ends when its receiver has come (rendezvous), and all receivers stand in
# their own `send`. The mend is the same too: `isend` begins the message and returns; now the rank is
# free to `recv`; then `wait`, and only then touch the buffers. (With NCCL on GPUs, hand both to
# `dist.batch_isend_irecv`.)
#
# The whole ring is one loop. In step `s`, rank `r` sends chunk `r - s` and receives chunk `r - s - 1`
# (modulo n: after chunk 0 comes chunk n - 1). In the first $n-1$ steps it adds what comes; then the sums
# are complete, and it only puts them in place. `tensor_split` cuts any length: 7 numbers on 4 ranks
# give chunks of 2, 2, 2 and 1. The chunks are **views**: writing into one writes into `x`.

# %%
guess = None  # on 8 ranks, in ms; tree: 16.308


def ring(rank, world_size, x, steps=None):
    chunks = x.tensor_split(world_size)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(2 * (world_size - 1))[:steps]:
        chunk = chunks[(rank - step - 1) % world_size]
        incoming = torch.empty_like(chunk)
        request = dist.isend(chunks[(rank - step) % world_size], dst=right)
        dist.recv(incoming, src=left)
        request.wait()
        if step < world_size - 1:
            chunk += incoming
        else:
            chunk.copy_(incoming)


def ring_s(n, nbytes):
    return 2 * (n - 1) * (LATENCY_S + nbytes / n / BANDWIDTH_BPS)


compare(ring, ring_s)
timed(ring, 4, 840_000).timeline()

# %% [markdown]
# 5.1 ms instead of 16.3, though the ring sends 112 messages and the tree 14. From 4 to 8 ranks the
# tree got slower by half, the ring by a fifth. And a world of one works: the loop is empty.
#
# ## Lab: which chunk is where?
#
# `ring` can stop after some steps. Rank 0 brings ones, rank 1 tens, rank 2 hundreds, rank 3
# thousands: each digit of a number tells who is in it. A row is a rank, a column a chunk; the frame
# is around the chunk that is sent next. Before you run it: which chunk will be complete on rank 0
# after three steps?

# %%
guess = None  # the number of a column


def powers(rank, world_size, steps):
    x = torch.full((world_size,), 10.0**rank)
    ring(rank, world_size, x, steps)
    return x


figure, panels = plt.subplots(2, 4, figsize=(8.8, 4.8), sharey=True, layout="constrained")
for step in range(7):
    axes = panels.flat[step]
    held = torch.stack(simlib.run(powers, 4, args=(step,)).results).int()
    how_many = [[str(number.item()).count("1") for number in row] for row in held]
    axes.imshow(how_many, cmap="Blues", vmin=0, vmax=6)
    for rank in range(4):
        for chunk in range(4):
            axes.text(chunk, rank, held[rank, chunk].item(), size=9, ha="center", va="center")
        if step < 6:
            corner = (rank - step) % 4 - 0.46, rank - 0.46
            axes.add_patch(plt.Rectangle(corner, 0.92, 0.92, fill=False, ec="#D55E00", lw=1.5))
    axes.set(title=f"{step} steps", xticks=range(4), yticks=range(4), xlabel="chunk")
panels[0, 0].set_ylabel("rank")
panels[1, 3].axis("off")
plt.show()

# %% tags=["nbval-ignore-output"]
from simlib import labs

labs.rounds_lab("ring", 4, 2)

# %% [markdown]
# Chunk 1. After three steps each rank has one complete sum, 1111: that was a **reduce_scatter**. The
# other three steps are an **all_gather**. It is the identity of lesson 04. The lab shows the same for
# any algorithm: who is in the sum of each chunk, the messages of the last round, and what each rank
# has sent so far. Step back to 0 and forward again; then try 5 ranks, and the other algorithms.
#
# ## Where 2(n-1)/n comes from
#
# 1. N bytes are cut into n chunks: a message carries $N/n$.
# 2. A chunk collects one contribution with each hop, so it needs $n-1$ hops. All n chunks travel at
#    once, one on each link: each rank sends $n-1$ messages, $\frac{n-1}{n}N$ bytes.
# 3. A complete chunk must reach $n-1$ other ranks: again $\frac{n-1}{n}N$.
# 4. Together $2\frac{n-1}{n}N$ bytes per rank, and no message waits for anything but the one before:
#    $T_\text{ring} = 2(n-1)\left(\alpha + \frac{N}{n B}\right)$.
#
# The next cell checks all four on rank 1 of a run, and prints what is left over (the residual). It does
# so twice: the second length, 10 numbers, breaks a silent assumption. Which steps will have a residual?
# The last three lines add up what *all* ranks send. Guess these, too.


# %%
def residuals(n, numel):
    run = timed(ring, n, numel)
    sends = [op.nbytes for op in run.trace.of_rank(1) if op.kind == "send"]
    nbytes = 4 * numel
    return {
        "1: bytes of a message": max(sends) - nbytes / n,
        "2: reduce_scatter, bytes": sum(sends[: n - 1]) - (n - 1) / n * nbytes,
        "3: all_gather, bytes": sum(sends[n - 1 :]) - (n - 1) / n * nbytes,
        "4: together, bytes": sum(sends) - 2 * (n - 1) / n * nbytes,
        "   time, in ns": (run.time_s - ring_s(n, nbytes)) * 1e9,
        "   time with the largest chunk": (run.time_s - ring_s(n, n * max(sends))) * 1e9,
    }


even, uneven = residuals(4, 840_000), residuals(4, 10)
print(f"{'4 ranks, residuals with':30} {'840,000':>10} {'10 numbers':>12}")
for name in even:
    print(f"{name:30} {round(even[name], 6) + 0.0:10.3f} {round(uneven[name], 6) + 0.0:12.3f}")
for function in (naive, tree, ring):
    share = np.array(timed(function, 8, 840_000).bytes_sent) / (4 * 840_000)
    print(
        f"8 ranks, {function.__name__:5}: all send {share.sum():.2f} N, one at most {share.max():.2f} N"
    )

# %% [markdown]
# We had assumed that n divides the length. Chunks of 3, 3, 2, 2 numbers are not 2.5 each, and the
# largest one goes all the way round and sets the pace. With *its* bytes the formula is exact again.
#
# Can one do with less? Look at a single number of `x`, and count the messages with a part of its sum
# one by one, as they arrive. (Two at the same instant? One after the other, in any order.) Stop when
# the *first* rank knows the sum. Each of the $n-1$ others has sent at least one of the messages counted,
# or its part would be missing. And each of them still lacks the sum, so at least one more must arrive
# at each. That makes $2(n-1)$ transfers for every number, $2(n-1)N$ bytes in the whole world, for *any*
# algorithm that adds numbers and passes them on. Naive, tree and ring all send exactly this: 14 N on 8 ranks. What differs is
# **who carries it**. Shared evenly, it is $2\frac{n-1}{n}N$ for each rank; with less for everybody it cannot be done
# (Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69(2)). For 1,000 ranks that is 1.998 N: less
# than 2 N for however many.
#
# The lab above marks this bound beside its bars. On 4 and on 5 ranks: who sends more, and why?
#
# <details><summary>Answer</summary>
#
# Naive: rank 0, which tells everybody. Tree: those who send a whole vector twice. Recursive doubling
# (section 4): all that take part, for whole vectors go in every step. Rabenseifner (section 5): nobody
# on 4 ranks; on 5, rank 1 works for rank 0, hands it the sum, and sends 2.5 N. Only the ring keeps to
# the bound on both.
#
# </details>
#
# ## Two rings that are not
#
# Here are two programs (our own words) with faults that teaching material did print. The first adds
# the **wrong buffer**: what it has just sent, not what has come. PyTorch's own tutorial once added
# a wrong tensor in such a loop (pytorch/pytorch issue 31572, mended in 2020). Somebody tests both,
# with ones on every rank. What does that test say of each?

# %%
guess = None  # which one passes with ones? With different numbers?


def passing_ring(rank, world_size, x, adds):
    passing = x.clone()
    for _ in range(world_size - 1):
        incoming = torch.empty_like(x)
        request = dist.isend(passing, dst=(rank + 1) % world_size)
        dist.recv(incoming, src=(rank - 1) % world_size)
        request.wait()
        x += passing if adds == "what was sent" else incoming
        passing = incoming


def try_with(rank, world_size, x, adds):
    mine = torch.full((2,), x[rank])
    passing_ring(rank, world_size, mine, adds)
    return mine[0].item()


for adds in ("what was sent", "what came"):
    for brought in ([1.0, 1.0, 1.0, 1.0], [1.0, 10.0, 100.0, 1000.0]):
        print(f"adds {adds}:", brought, "->", simlib.run(try_with, 4, args=(brought, adds)).results)

# %% [markdown]
# With ones both pass. Different numbers unmask the first: it counts its own number twice and never
# its right neighbour's. So: **never test a collective with equal inputs.**
#
# The second passes this test too. Its value is right, on every rank, at every size. Nothing that
# looks at values can find its fault. But a ring it is not: look at what it sends.


# %%
def passes_whole_tensors(rank, world_size, x):
    passing_ring(rank, world_size, x, "what came")


print("passes_whole_tensors:", is_right(passes_whole_tensors))
for n in (2, 4, 8):
    whole, chunked = (timed(function, n, 840_000) for function in (passes_whole_tensors, ring))
    ratio = whole.bytes_sent[0] / chunked.bytes_sent[0]
    print(f"{n} ranks: {ratio:.2f} times the bytes,", end="")
    print(f" {whole.time_s * 1e3:.3f} ms where the ring takes {chunked.time_s * 1e3:.3f}")

# %% [markdown]
# It passes whole tensors, $(n-1)N$ bytes instead of $2\frac{n-1}{n}N$: **n/2 times as many**. On 8
# ranks its 19 ms are those of "everyone to everyone". (A reader of the course ARENA 3.0 found whole
# tensors in the ring of its solution, there even in $2(n-1)$ steps: n times as many bytes. See its pull
# request 407.) Hence our checks look at bytes, too.
#
# ## 4. Recursive doubling
#
# The ring needs $2(n-1)$ steps. For a tiny tensor only the number of steps counts. So: swap all you
# have with a partner, and add. First with the neighbour at distance 1, then 2, then 4; each time the
# number of contributions **doubles**. The partner's number is `rank ^ distance`, which flips one bit.
# It works on 8 ranks. On 6?

# %% tags=["raises-exception"]
guess = None


def swap(outgoing, incoming, partner):
    request = dist.isend(outgoing, dst=partner)
    dist.recv(incoming, src=partner)
    request.wait()


def doubling(rank, world_size, x):
    other = torch.empty_like(x)
    distance = 1
    while distance < world_size:
        swap(x, other, rank ^ distance)
        x += other
        distance *= 2


print(simlib.run(bring, 8, args=(doubling, 1)).results)
simlib.run(bring, 6, args=(doubling, 1))

# %% [markdown]
# Rank 2 looks for a rank 6. The mend is to **fold** the world to the largest power of two, $p$: ranks
# $p, p + 1, \ldots$ hand their tensor to ranks $0, 1, \ldots$, which do the work and hand the sum back. What
# does it cost on 5 ranks, against 4?

# %%
guess = None  # times as long on 5 ranks as on 4


def fold(rank, world_size, x, all_reduce):
    p = 1 << (world_size.bit_length() - 1)  # the largest power of two
    if rank >= p:
        dist.send(x, dst=rank - p)
        dist.recv(x, src=rank - p)
        return
    if rank + p < world_size:
        other = torch.empty_like(x)
        dist.recv(other, src=rank + p)
        x += other
    all_reduce(rank, p, x)
    if rank + p < world_size:
        dist.send(x, dst=rank + p)


def recursive_doubling(rank, world_size, x):
    fold(rank, world_size, x, doubling)


# %%
def doubling_s(n, nbytes):
    folds = 0 if math.log2(n).is_integer() else 2
    return (int(math.log2(n)) + folds) * (LATENCY_S + nbytes / BANDWIDTH_BPS)


compare(recursive_doubling, doubling_s)
timed(recursive_doubling, 4, 840_000).timeline()

# %% [markdown]
# $T_\text{doubling} = \log_2 n\,(\alpha + N/B)$ for powers of two. Fewer steps there cannot be, for in one
# step the number of contributions in a sum can at most double. All other worlds pay two messages more:
# twice as long on 5 ranks as on 4. The price is bytes: each rank sends $N \log_2 n$.
#
# ## 5. Rabenseifner: halve, then double
#
# Few steps *and* few bytes? Swap **halves**: the partner takes care of one half of `x`, you of the
# other. Then halve your half with the next partner, and so on: $N/2 + N/4 + \ldots$ bytes. After
# $\log_2 n$ steps each rank has one complete piece. Then all the way back. How many bytes is that per
# rank?

# %%
guess = None  # as a multiple of N, on 8 ranks


def halving(rank, world_size, x, near_first=True):
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
        # mine is complete by now; the other half comes into its place in x, for theirs is a view.
        swap(mine, theirs, partner)


def rabenseifner(rank, world_size, x):
    fold(rank, world_size, x, halving)


def rabenseifner_far(rank, world_size, x):  # the farthest partner first: for later
    halving(rank, world_size, x, near_first=False)


# %%
def rabenseifner_s(n, nbytes):
    p, folds = 2 ** int(math.log2(n)), 0 if math.log2(n).is_integer() else 2
    byte_s = (2 * (p - 1) / p + folds) / BANDWIDTH_BPS
    return (2 * math.log2(p) + folds) * LATENCY_S + nbytes * byte_s


compare(rabenseifner, rabenseifner_s)
timed(rabenseifner, 4, 840_000).timeline()

# %% [markdown]
# $\frac12 + \frac14 + \frac18 = \frac{n-1}{n}$, twice: as few bytes as the ring, in $2 \log_2 n$ steps.
# Any order of partners is right; MPICH and Open MPI begin with the neighbour.
# (The formulas: Thakur, Rabenseifner and Gropp 2005, Int. J. High Perform. Comput. Appl. 19(1).)
#
# ## Where they cross
#
# Ring against doubling, n a power of two. The ring pays more latency, doubling more bytes. Set the two
# times equal and solve for N:
#
# $$2(n-1)\alpha + 2\tfrac{n-1}{n}\tfrac{N}{B} = \log_2 n \left(\alpha + \tfrac{N}{B}\right)
# \;\Rightarrow\;
# N^* = \alpha B\,\frac{2(n-1) - \log_2 n}{\log_2 n - 2\frac{n-1}{n}}$$
#
# Check it with *your* two functions on 8 ranks, at half, once and twice $N^*$. And what does a larger
# world do: does $N^*$ grow or shrink?

# %%
guess = None  # 1 MB on 1,024 ranks: ring or doubling?


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

# %% [markdown]
# Equal at $N^*$, to a microsecond. $N^*$ grows with the world, so 1 MB belongs to the ring on 16 ranks
# and to doubling on 1,024. With two ranks there is no crossing: both send N, doubling in half the steps.
#
# ## Lab: which algorithm, at which size?
#
# `simlib.scale.time_of` has the same costs for any number of ranks, without running anything. All five,
# on 8 ranks, from 1 kB to 100 MB. Before you run it: which line is lowest at the left end, which at
# the right, and which of them meet where the lowest one changes? Below is the lab: a shorter latency,
# does it move the crossings left or right?

# %%
guess = None

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

gradient = 25_557_032 * 4  # ResNet-50 in float32, torchvision's count
cluster = simlib.clusters.ethernet_10g(nodes=64)
for name in names:
    seconds = simlib.scale.time_of("all_reduce", 64, gradient, cluster, name)
    print(f"ResNet-50's gradient on 64 ranks, {name:18} {seconds:7.3f} s")

# %% tags=["nbval-ignore-output"]
labs.crossover_lab()

# %% [markdown]
# Small tensors: the fewest steps, recursive doubling. Large ones: the fewest bytes, ring and
# Rabenseifner, 60 times quicker than naive on 64 ranks. $N^*$ divides only the ring from doubling. With
# all five, doubling hands over to Rabenseifner earlier: $3(\alpha + N/B) = 6\alpha + \frac74 N/B$ gives
# $N = 2.4\,\alpha B$ = 90 kB. At $N^*$ Rabenseifner is ahead of both. Every crossing is a multiple of
# $\alpha B$, so a shorter latency moves it to the left.
#
# In this model nothing beats Rabenseifner at large sizes, where n is a power of two. Why then are
# rings so common? Here every rank has a link to itself. On real machines several share one. Wait for the nodes.
#
# ## Ring and tree are algorithms, NCCL is a library
#
# "Do you use ring all_reduce or NCCL?" is no question. NCCL (Nvidia), Gloo and MPICH (an MPI) are
# *libraries*. Each knows several algorithms and chooses, by size, ranks and links. NCCL can be told
# with its environment variable `NCCL_ALGO`. Here is what each would take on 8 ranks, as modelled in
# `simlib.collectives` (sources there). You know now what is quickest in the model: will MPICH agree, for
# 4 bytes and for 100 MB?

# %%
guess = None  # MPICH's choice for 4 bytes? For 100 MB?

link = simlib.Link(LATENCY_S, BANDWIDTH_BPS)
for nbytes in (4, 10_000, 1_000_000, 100_000_000):
    chosen = {
        library: simlib.collectives.choose("all_reduce", 8, nbytes, library, link=link)
        for library in ("mpich", "nccl", "gloo")
    }
    print(f"{nbytes:>11,} bytes:", ", ".join(f"{who} {what}" for who, what in chosen.items()))

# %% [markdown]
# It agrees at both ends: recursive doubling, then Rabenseifner. But it changes over long before 90 kB:
# its limit is 2 kB, whatever the link. NCCL changes its mind by size, too. (`binomial` stands for its tree, which is a pipelined pair of
# trees. Gloo keeps to a ring, cut more finely.)
#
# ## Flat against hierarchical: 4 nodes of 8 ranks
#
# Now 32 ranks on 4 machines. Within a machine a message pays 5 us and 50 GB/s. Between machines it pays
# those 5 us and Ethernet's 30, at 1.25 GB/s, and **all 8 ranks of a node share its one link**. Three
# flat algorithms of yours, with 1.28 MB. The ring also in another order: `round_robin` puts neighbours on different machines. Rabenseifner
# also with the *farthest* partner first. Which is quickest, and which sends the most bytes between machines?

# %%
guess = None  # quickest? Most bytes between the machines?

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
    print(f"{function.__name__:18} {placement:11} {run.time_s * 1e3:7.3f} ms,", end="")
    print(f" {between:5.2f} N between the nodes")
    runs[function.__name__] = run

figure, both = plt.subplots(1, 2, figsize=(7.4, 3.6))
for axes, name in zip(both, ("rabenseifner", "rabenseifner_far"), strict=True):
    axes.imshow(np.sqrt(runs[name].traffic), cmap="Greys")  # full: many bytes
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
# But 62 steps pay 62 latencies, and halving wants powers of two. **Hierarchical**: first reduce_scatter within each node, so that each
# of the 8 ranks has an eighth of the node's sum. Then all_reduce between ranks of the same place in
# their nodes. Then all_gather within the node. With groups that is short. (Lesson 04's rule:
# every rank calls every `new_group`.)


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
for nbytes in (1_280_000, 128_000_000):
    for name in ("ring", "hierarchical"):
        seconds = simlib.scale.time_of("all_reduce", 32, nbytes, nodes4x8, name)
        print(f"{nbytes:11,} bytes, {name:12} {seconds * 1e3:8.3f} ms")

# %% [markdown]
# Less than half the time at 1.28 MB, because only 6 of its 20 steps wait for Ethernet; in the flat ring
# all 62 wait for the slowest link. (Work it out: 14 steps in the node, of 5 + 3.2 us, and 6 between
# nodes, of 35 + 256 us, for there 8 ranks send at once.) At 128 MB it is still ahead, by bytes: between the nodes it runs a ring of 4, $2 \cdot \frac34 N$ through each node's
# link, where the flat ring needs $2 \cdot \frac{31}{32} N$.
#
# ## A broadcast in a pipeline
#
# Chunks are good for more than rings. Broadcast 2.5 MB down a chain of ranks, in s chunks: while
# rank 1 passes chunk 0 on, it can already receive chunk 1. The first version uses `send`, the second
# `isend`; both have 4 chunks on 5 ranks. What is the difference?

# %%
guess = None


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
# one by one.) The last of s chunks reaches rank 1 in turn s, and needs $n-2$ more turns to the end. Each turn is a message of $N/s$ bytes:
#
# $$T(s) = (n + s - 2)\left(\alpha + \frac{N}{sB}\right)$$
#
# Few chunks: the pipe is never full. Many: each pays latency. Multiply out; the terms with s are
# $s\alpha + (n-2)\frac{N}{sB}$, least where both are equal:
#
# $$s^* = \sqrt{\frac{N (n-2)}{\alpha B}}$$
#
# What is $s^*$ on 8 ranks? Work it out before you look at the sweep.

# %%
guess = None  # the best number of chunks

n, nbytes = 8, 2_500_000
best = math.sqrt(nbytes / BANDWIDTH_BPS * (n - 2) / LATENCY_S)
print("best number of chunks by the formula:", round(best, 3))
for s in (1, 2, 5, 10, 20, 40, 80, 200):
    formula_s = (n + s - 2) * (LATENCY_S + nbytes / s / BANDWIDTH_BPS)
    time_s = timed(chain_isend, n, nbytes // 4, s).time_s
    print(f"{s:3} chunks {time_s * 1e3:7.3f} ms, formula {formula_s * 1e3:7.3f} ms")
cluster = simlib.clusters.ethernet_10g(nodes=n)
seconds = simlib.scale.time_of("broadcast", n, nbytes, cluster, "binomial")
print(f"in one piece down a binomial tree {seconds * 1e3:.3f} ms")

# %% [markdown]
# An interior best: 20 chunks, four times quicker than one, and worse again on both sides. A chain,
# the worst shape for one message, beats the tree once it is a pipeline. [Lesson 11](11_pipelines.ipynb) meets the
# same formula in the pipelines of large models.
#
# ## Your turn
#
# [Exercises 05](../exercises/05_building_all_reduce.ipynb): a reduce_scatter, a ring through the ranks
# in any order, a pipelined chain, and an all_reduce that chooses for itself.
#
# ## Exit ticket
#
# 1. Each of 4 ranks brings 8 MB. What does a rank send in a ring all_reduce? And rank 0 in the naive one?
# 2. A colleague's ring passes every test of values. What do you count?
# 3. All ranks of a ring call `send`, then `recv`. What happens, and why not with `isend`?
# 4. 4 bytes on 1,024 ranks: which algorithm, how many steps?
# 5. Twice the bytes in a pipelined chain: how many more chunks are best?
#
# <details><summary>Answers</summary>
#
# 1. 2 x 3/4 x 8 = 12 MB. Rank 0: 3 x 8 = 24 MB.
# 2. Bytes by rank: $2\frac{n-1}{n}N$, not $(n-1)N$.
# 3. They hang: each waits for a receiver. `isend` returns, so every rank comes to its `recv`.
# 4. Recursive doubling, 10.
# 5. $\sqrt 2$ times as many.
#
# </details>
#
# **Next:** [lesson 06](06_synchronous_sgd.ipynb), which puts `all_reduce` to work: the derivation of synchronous SGD.
