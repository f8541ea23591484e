# %% [markdown]
# # 05 Building all_reduce
#
# `all_reduce` is a contract (lesson 04): everybody brings a tensor, everybody gets the sum. Here you
# build it, with nothing but messages from rank to rank, in five ways. All keep the contract. With the
# gradient of a real model on 64 ranks, the slowest takes 64 times as long as the quickest. In this lesson
# (75 minutes) you will
#
# - build it at a root, as a tree, as a ring, by doubling, and by Rabenseifner's halving,
# - hold each against its **closed form**: a formula for its time, exact to the last digit,
# - derive the famous $2\frac{n-1}{n}$, step by step, each step checked by a run,
# - expose two "rings" of the kind that tutorials have printed.
#
# Which of the five to choose, and where, is [the second half](05_choosing_all_reduce.ipynb).
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
# an `x` that differs from rank to rank, and `timed` runs that under the virtual clock. `compare`
# asks real ranks for the value, in worlds of 1 to 6, with lengths that can be cut into equal chunks and
# lengths that cannot. It holds the time on 2 to 8 simulated ranks against a formula, and says the
# largest residual, and whether the formula is right.

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


# %%
def compare(all_reduce, formula_s, nbytes=3_360_000):
    off_s = []
    for n in range(2, 9):
        run = timed(all_reduce, n, nbytes // 4)
        off_s.append(run.time_s - (formula_s(n, nbytes) or math.nan))
        if n in (4, 5, 8):
            print(f"{n} ranks {run.time_s * 1e3:7.3f} ms, {sum(run.messages):3} messages,", end="")
            print(f" busiest rank sends {max(run.bytes_sent) / nbytes:.3f} N")
    off_us = np.max(np.abs(off_s)) * 1e6
    said = f"off by {off_us:.6f} us at most, {'right' if off_us < 1e-3 else 'not yet'}"
    print(f"{is_right(all_reduce)}\nformula: {'not yet' if math.isnan(off_us) else said}")


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
simlib.guess(guess, run.messages[0])
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
simlib.guess(guess, naive_s(8, 3_360_000) * 1e3, within=0.1)
timed(naive, 4, 840_000).timeline()

# %% [markdown]
# Slower: 38 ms. All messages pass through one rank, so they stand in a queue, and the picture shows
# six in a row. The formula says it, with latency $\alpha$ (seconds) and bandwidth $B$ (bytes per
# second; in lesson 06 B is the batch, and in pipelines a backward pass):
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
# 0 has the sum. Then the same way back. How long do 8 ranks take? **Now you write it**: `tree_s`.


# %%
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
    return None  # your formula, in seconds; naive_s shows the form


compare(tree, tree_s)
timed(tree, 8, 840_000).timeline()

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return 2 * math.ceil(math.log2(n)) * (LATENCY_S + nbytes / BANDWIDTH_BPS)`
#
# </details>
#
# Still 14 messages, but several at a time: six rounds, $T_\text{tree} = 2 \lceil \log_2 n \rceil
# (\alpha + N/B)$. Yet look at the hatched parts: in rounds 3 and 4 only two lanes transfer (pale), and
# 6 of 8 ranks neither send nor receive. And rank 0 still sends and receives 3 N. A large tensor needs all links to be busy
# **all the time**.
#
# ## 3. The ring, and a hang
#
# The idea: cut `x` into n chunks, and give every rank a chunk to begin with. Each sends its chunk to
# its right neighbour, receives one from the left, adds, and passes *that* one on. Nobody is a root.
# Here is the first step, written straight down. What happens on 4 ranks? It is meant to fail: go on with
# the next cell, as Run All does.

# %% tags=["raises-exception"]
guess = None  # who waits for whom?


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
simlib.guess(guess, ring_s(8, 3_360_000) * 1e3, within=0.1)
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
guess = None  # the number of a column, 0 to 3


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

simlib.guess(guess, int(simlib.run(powers, 4, args=(3,)).results[0].argmax()), of=range(4))
labs.rounds_lab("ring", 4, 2)

# %% [markdown]
# Chunk 1. After three steps each rank has one complete sum, 1111: that was a **reduce_scatter**. The
# other three steps are an **all_gather**. It is the identity of lesson 04. The lab shows the same for
# any algorithm: who is in the sum of each chunk, the messages of the last round, and what each rank
# has sent so far. Step back to 0 and forward again; then try 5 ranks, and the other algorithms.
#
# **Now you write it**: which chunk is complete on rank `rank` of `n` after $n-1$ steps?


# %%
def complete(rank, n):
    return None  # the chunk's number


for n in (3, 4, 5):
    held = simlib.run(powers, n, args=(n - 1,)).results
    found = [row.tolist().index(sum(10.0**r for r in range(n))) for row in held]
    print(f"{n} ranks:", "right" if found == [complete(r, n) for r in range(n)] else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return (rank + 1) % n`
#
# </details>
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
# algorithm that adds numbers and passes them on. Naive, tree and ring all send exactly this: 14 N on 8
# ranks. What differs is **who carries it**. Shared evenly, it is $2\frac{n-1}{n}N$ for each rank; with
# less for everybody it cannot be done (Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69(2)). For
# 1,000 ranks that is 1.998 N: less than 2 N for however many.
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
# It works on 8 ranks. On 6? How many of the 6 will look for a partner that is not there? (If the cell fails, it
# is meant to: go on with the next one, which answers.)

# %% tags=["raises-exception"]
guess = None  # how many of the 6 ranks look for one that is not there?


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
# The error names rank 2, which looks for a rank 6. So does rank 4; ranks 3 and 5 look for a rank 7. The mend is to
# **fold** the world to the largest power of two, $p$: ranks
# $p, p + 1, \ldots$ hand their tensor to ranks $0, 1, \ldots$, which do the work and hand the sum back. What
# does it cost on 5 ranks, against 4? **Now you write it**, below: `steps`, the number of messages one after
# the other.


# %%
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


in_trouble = [rank for rank in range(6) if any(rank ^ distance >= 6 for distance in (1, 2, 4))]
simlib.guess(guess, len(in_trouble))


# %%
def steps(n):
    return None  # on n ranks, folding included


def your_doubling_s(n, nbytes):
    return steps(n) and steps(n) * (LATENCY_S + nbytes / BANDWIDTH_BPS)


compare(recursive_doubling, your_doubling_s)
for function in (everyone, recursive_doubling):
    print(f"1 number, 8 ranks, {function.__name__}: {timed(function, 8, 1).time_s * 1e6:.2f} us")
timed(recursive_doubling, 4, 840_000).timeline()

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return int(math.log2(n)) + (0 if math.log2(n).is_integer() else 2)`
#
# </details>
#
# $T_\text{doubling} = \log_2 n\,(\alpha + N/B)$ for powers of two. If a rank receives one message per step,
# fewer steps there cannot be, for then the number of contributions in a sum can at most double. (`everyone`
# receives $n-1$ at once, in one latency: 30 us for 1 number, where doubling takes three.) All other worlds pay
# two messages more: twice as long on 5 ranks as on 4. The price is bytes: each rank sends $N \log_2 n$.
#
# ## 5. Rabenseifner: halve, then double
#
# Few steps *and* few bytes? Swap **halves**: the partner takes care of one half of `x`, you of the
# other. Then halve your half with the next partner, and so on: $N/2 + N/4 + \ldots$ bytes. After
# $\log_2 n$ steps each rank has one complete piece. Then all the way back. How many bytes is that per
# rank?

# %%
guess = None  # as a multiple of N, on 8 ranks


def halving(rank, world_size, x):
    done, mine = [], x
    for distance in [1 << bit for bit in range(world_size.bit_length() - 1)]:  # 1, 2, 4, ...
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


# %%
def rabenseifner_s(n, nbytes):
    p, folds = 2 ** int(math.log2(n)), 0 if math.log2(n).is_integer() else 2
    byte_s = (2 * (p - 1) / p + folds) / BANDWIDTH_BPS
    return (2 * math.log2(p) + folds) * LATENCY_S + nbytes * byte_s


compare(rabenseifner, rabenseifner_s)
simlib.guess(guess, max(timed(rabenseifner, 8, 840_000).bytes_sent) / 3_360_000)
timed(rabenseifner, 4, 840_000).timeline()

# %% [markdown]
# $\frac12 + \frac14 + \frac18 = \frac{n-1}{n}$, twice: as few bytes as the ring, in $2 \log_2 n$ steps.
# Any order of partners is right; MPICH and Open MPI begin with the neighbour.
# (The formulas: Thakur, Rabenseifner and Gropp 2005, Int. J. High Perform. Comput. Appl. 19(1).)
#
# The lab above marks the bound of $2\frac{n-1}{n}N$ beside its bars. On 4 and on 5 ranks: who sends more, and why?
#
# <details><summary>Answer</summary>
#
# Naive: rank 0, which tells everybody. Tree: those who send a whole vector two or more times; rank 0 sends 3 N
# on 5 ranks. Recursive doubling: all that take part, for whole vectors go in every step. Rabenseifner: nobody on
# 4 ranks. On 5 the lab folds rank 0 to rank 1, which works for it, hands it the sum, and sends 2.5 N; your
# `fold` lets rank 0 work for rank 4, so there it is rank 0. Only the ring keeps to the bound on both.
#
# </details>
#
# ## All five at once
#
# Five algorithms kept one contract. Each has a closed form; the last cell holds all of them against
# the clock, on 2 to 8 ranks, and puts the gradient of ResNet-50 in (25,557,032 float32 numbers,
# torchvision's count) on 64 ranks. Which two will be the quickest there, and why do they stand so close?

# %%
guess = None  # the quickest: "naive", "tree", "ring", "recursive_doubling", "rabenseifner"?


def tree_formula_s(n, nbytes):
    return 2 * math.ceil(math.log2(n)) * (LATENCY_S + nbytes / BANDWIDTH_BPS)


def doubling_s(n, nbytes):
    folds = 0 if math.log2(n).is_integer() else 2
    return (int(math.log2(n)) + folds) * (LATENCY_S + nbytes / BANDWIDTH_BPS)


on_64_s = {}
for function, formula_s in {
    naive: naive_s,
    tree: tree_formula_s,
    ring: ring_s,
    recursive_doubling: doubling_s,
    rabenseifner: rabenseifner_s,
}.items():
    off_s = [timed(function, n, 8400).time_s - formula_s(n, 33_600) for n in range(2, 9)]
    on_64_s[function.__name__] = formula_s(64, 4 * 25_557_032)
    print(f"{function.__name__:18} off by {max(map(abs, off_s)) * 1e6:.6f} us at most;", end="")
    print(f" ResNet-50 on 64 ranks: {formula_s(64, 4 * 25_557_032):6.3f} s")
simlib.guess(guess, min(on_64_s, key=on_64_s.get), of=list(on_64_s))

# %% [markdown]
# Ring and Rabenseifner send the same bytes, the fewest there can be, and for so long a tensor latency
# is next to nothing. Naive takes 64 times as long.
#
# ## Your turn
#
# [Exercises 05](../exercises/05_building_all_reduce.ipynb), tasks 1 and 2: a reduce_scatter, and a ring
# through the ranks in any order.
#
# ## Exit ticket
#
# 1. Each of 4 ranks brings 8 MB. What does a rank send in a ring all_reduce? And rank 0 in the naive one?
# 2. From 8 to 16 ranks, with the same large tensor: what becomes of a ring's steps, and of the bytes that
#    a rank sends? For which tensors does it matter?
#
# <details><summary>Answers</summary>
#
# 1. 2 x 3/4 x 8 = 12 MB. Rank 0: 3 x 8 = 24 MB.
# 2. From 14 steps to 30; from 1.75 N to 1.875 N. So a large tensor takes little longer, and a small one,
#    which pays latency at every step, twice as long.
#
# </details>
#
# **Next:** the second half of lesson 05, [choosing an all_reduce](05_choosing_all_reduce.ipynb).
