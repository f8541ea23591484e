# %% [markdown]
# # 05 Building all_reduce
#
# `all_reduce` is a contract (lesson 04): every rank brings a tensor, and every rank gets the sum.
# Here you build it in five ways, and each way uses only messages between ranks. All five keep the
# contract, but they differ in speed. For the gradient of a real model on 64 ranks, the slowest
# takes 64 times as long as the quickest. In this lesson (75 minutes) you will
#
# - build it with a root, as a tree, as a ring, by doubling, and by Rabenseifner's halving,
# - compare each time with its **closed form**: a formula that gives the time exactly, to the last
#   digit,
# - derive the famous $2\frac{n-1}{n}$ step by step, and check each step by a run,
# - find the faults in two "rings". Tutorials have printed programs like these.
#
# [The second part](05_choosing_all_reduce.ipynb) shows which of the five to choose, and where.
#
# Two letters have the same meaning everywhere in this lesson: there are **n** ranks, and a tensor
# has **N** bytes.

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
# ## How we check value and time
#
# Every algorithm below is a function that adds up `x` in place, over all ranks. `bring` gives
# this function an `x` that is different on each rank. `timed` runs the function on simulated
# ranks, with the virtual clock. `compare` does two things. First it checks the sum on 1 to 6 real
# ranks. It uses lengths that we can cut into equal chunks, and lengths that we cannot. Then it
# compares the time on 2 to 8 simulated ranks with a formula. It prints the largest difference,
# and whether the formula is right. You need not read the two cells in detail.

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
# The name `all_reduce` suggests this, so let us build it first. Every rank sends its tensor to
# all others and adds up the tensors that it receives. The program is correct. With 8 ranks, how
# many tensors does each rank send?

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
# Each rank sends seven tensors: in the picture, every field is dark except the diagonal. So each
# rank sends $(n-1)N$ bytes through its one link. For a tensor of four bytes that is fine, because
# all messages pay their latency at the same time. Our tensor of 3.36 MB takes 18.8 ms; remember
# this number. The contract says what all ranks *have* in the end. It does not say which rank
# sends to which. From now on, each rank will send to only a few others.
#
# ## 1. Naive: at a root
#
# Rank 0 receives from one rank after the other and adds. Then it sends the sum back to one rank
# after the other. Now there are only $2(n-1)$ messages: 14 instead of 56 on 8 ranks. Is this
# faster than `everyone`?

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
# `naive` is slower. It takes 38 ms. All messages pass through one rank, so they queue. The picture
# shows a run on 4 ranks: six messages, one after the other. The formula has the latency $\alpha$ in
# seconds and the bandwidth $B$ in bytes per second. (In lesson 06, B will be the batch size, and in
# lesson 11 a backward pass.)
#
# $$T_\text{naive} = 2(n-1)\left(\alpha + \frac{N}{B}\right)$$
#
# Rank 0 sends $(n-1)N$ bytes, and each other rank sends only N bytes. So rank 0 is a **root
# bottleneck**: with twice as many ranks, the run takes about twice as long.
#
# ## 2. A tree: reduce, then broadcast
#
# We use lesson 04's binomial tree. First it runs backwards, to add up. At distance 1, every odd
# rank sends its tensor to its left neighbour and is done. At distance 2, every second one of the
# remaining ranks sends to the left, and so on, until rank 0 has the sum. Then the sum goes back
# the same way. How long do 8 ranks take? **Now you write it**: the formula `tree_s`.


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
# There are still 14 messages, but the tree sends several at a time and needs only six rounds:
# $T_\text{tree} = 2 \lceil \log_2 n \rceil (\alpha + N/B)$. But look at the hatched parts of the
# picture. In rounds 3 and 4 only two lanes transfer (pale): 6 of 8 ranks neither send nor
# receive. And rank 0 still sends 3 N and receives 3 N. For a large tensor, all links should be
# busy **all the time**.
#
# ## 3. The ring, and a hang
#
# The idea: cut `x` into n chunks, and let every rank begin with a different chunk. Each rank
# sends its chunk to its right neighbour and receives a chunk from the left. It adds its own
# numbers to the received chunk, and sends *that* chunk in the next step. No rank is a root. The
# next cell contains the first step, written in the most obvious way. What happens on 4 ranks? The
# cell is meant to fail: go on with the next one, as Run All does.

# %% tags=["raises-exception"]
guess = None  # who waits for whom?


def ring_sends_first(rank, world_size, x):
    chunks = x.tensor_split(world_size)
    incoming = torch.empty_like(chunks[rank - 1])
    dist.send(chunks[rank], dst=(rank + 1) % world_size)
    dist.recv(incoming, src=(rank - 1) % world_size)


simlib.run(bring, 4, args=(ring_sends_first, 8))

# %% [markdown]
# This is the hang of lesson 03. A `send` ends only when the receiver takes the message
# (rendezvous), and here every receiver is stuck in its own `send`. The fix is the same, too.
# `isend` starts the message and returns, so the rank is free to call `recv`. Then the rank calls
# `wait`, and touches the buffers only after that. (With NCCL on GPUs, pass both operations to
# `dist.batch_isend_irecv`.)
#
# The whole ring is one loop. In step `s`, rank `r` sends chunk `r - s` and receives chunk
# `r - s - 1`. (The numbers are modulo n: chunk -1 is chunk n - 1.) In the first $n-1$ steps the
# rank adds the chunk that it receives to its own. After these steps the sums are complete, and
# the rank only copies them into place. `tensor_split` cuts any length: 7 numbers on 4 ranks give
# chunks of 2, 2, 2 and 1. The chunks are **views**: if you write into a chunk, you write into
# `x`. How long does the ring take on 8 ranks?

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
# On 8 ranks the ring takes 5.1 ms and the tree takes 16.3 ms, although the ring sends 112
# messages and the tree 14. From 4 to 8 ranks the time of the tree grew by a half, and the time of
# the ring by a fifth. A world of one rank works, too: its loop is empty.
#
# ## Lab: which chunk is where?
#
# `ring` can stop after some steps. Rank 0 brings ones, rank 1 tens, rank 2 hundreds, rank 3
# thousands, so the digits of a number show which ranks are in it. The next cell draws one panel
# for each number of steps. A row is a rank, and a column is a chunk. A frame marks the chunk that
# the rank sends next. Before you run the cell: which chunk will be complete on rank 0 after three
# steps?

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
# It is chunk 1. After three steps each rank has one complete sum, 1111. So the first three steps
# are a **reduce_scatter**. The other three steps are an **all_gather**. This is the second
# identity of lesson 04. The lab shows the steps of any of the five algorithms. You see which
# ranks are in the sum of each chunk, the messages of the last round, and how much each rank has
# sent so far. Step back to 0 and forward again. Then try 5 ranks, and the other algorithms.
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
# 1. The N bytes are cut into n chunks, so a message carries $N/n$ bytes.
# 2. A chunk collects one contribution with each hop, so it needs $n-1$ hops. All n chunks travel
#    at once, one on each link. So each rank sends $n-1$ messages, together $\frac{n-1}{n}N$
#    bytes.
# 3. A complete chunk must reach $n-1$ other ranks. So each rank sends another $\frac{n-1}{n}N$
#    bytes.
# 4. Together these are $2\frac{n-1}{n}N$ bytes per rank. The $2(n-1)$ messages of a rank follow
#    each other without a pause: $T_\text{ring} = 2(n-1)\left(\alpha + \frac{N}{n B}\right)$.
#
# The next cell checks all four steps on rank 1 of a run. For each step it prints the
# **residual**: the value of the run minus that of the formula. It uses two lengths. The second
# length, 10 numbers, breaks an assumption that we have not stated. Which steps will have a
# residual that is not 0? The last three lines show how many bytes *all* ranks send together, for
# naive, tree and ring. Guess these, too.


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
# We assumed that n divides the length. But 10 numbers on 4 ranks give chunks of 3, 3, 2 and 2
# numbers, not of 2.5 each. The largest chunk goes all the way round and sets the pace. With the
# bytes of *this* chunk the formula is exact again.
#
# Can an algorithm send less? Look at one place in `x`. Count the messages that carry a part of
# the sum at this place, in their order of arrival. (If two arrive at the same instant, count them
# in any order.) Stop when the *first* rank knows the sum. Each of the $n-1$ other ranks has sent
# at least one of the counted messages, because otherwise its part would be missing. But none of
# these ranks knows the sum yet, so each must receive at least one more message. So every number
# costs at least $2(n-1)$ transfers, and the tensor at least $2(n-1)N$ bytes in the whole world.
# This holds for *any* algorithm that adds numbers and passes them on.
#
# Naive, tree and ring all send exactly this minimum: 14 N on 8 ranks. They differ in **how they
# share this work among the ranks**. If all ranks share it evenly, each sends $2\frac{n-1}{n}N$
# bytes. In no algorithm can every rank send less (Patarasuk and Yuan 2009, J. Parallel Distrib.
# Comput. 69(2)). For 1,000 ranks that is 1.998 N, and for any number of ranks it is less than 2
# N.
#
# ## Two faulty rings
#
# The next two programs are our own, but their faults have appeared in published teaching
# material. The first program adds the **wrong buffer**: the numbers that it has just sent, not
# the numbers that it has received. PyTorch's own tutorial once added a wrong tensor in such a
# loop (pytorch/pytorch issue 31572, fixed in 2020). Somebody tests both programs with ones on
# every rank. Which of them pass this test?

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
# With ones both programs pass. Different numbers show the fault of the first program: each rank
# counts its own number twice, and never counts the number of its right neighbour. So **never test
# a collective with equal inputs.**
#
# The second program passes this test, too. Its values are right on every rank, for every world
# size. A test that looks only at values cannot find its fault. To see this fault, look at the
# bytes that it sends.


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
# Each rank passes whole tensors on, not chunks. So it sends $(n-1)N$ bytes instead of
# $2\frac{n-1}{n}N$. These are **n/2 times as many**. On 8 ranks the program takes 19 ms, about as
# long as `everyone`. (A reader of the course ARENA 3.0 found the same fault in its solution: see
# pull request 407. That ring passed whole tensors in all $2(n-1)$ steps, so it sent n times as
# many bytes.) This is why our checks look at bytes, too.
#
# ## 4. Recursive doubling
#
# The ring needs $2(n-1)$ steps. For a tiny tensor only the number of steps matters. **Recursive
# doubling** needs fewer steps: each rank swaps all its numbers with a partner, and adds. Its
# first partner is at distance 1, the second at distance 2, the third at distance 4. Each swap
# **doubles** the number of contributions in its sum. The partner of `rank` is `rank ^ distance`,
# which flips one bit of the rank. This works on 8 ranks. Does it work on 6? How many of the 6
# ranks will look for a partner that does not exist? (The cell is meant to fail. Go on with the
# next cell, which has the answer.)

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
# Four ranks do: ranks 2 and 4 look for a rank 6, and ranks 3 and 5 look for a rank 7. The fix is
# to **fold** the world to $p$ ranks, the largest power of two that is not larger than n. Ranks
# $p, p + 1, \ldots$ send their tensors to ranks $0, 1, \ldots$. The first $p$ ranks do the work
# and send the sum back. How much more does folding cost on 5 ranks than on 4? **Now you write
# it**, in the cell after the next one: `steps(n)`, the number of messages one after the other on
# n ranks.


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
# $T_\text{doubling} = \log_2 n\,(\alpha + N/B)$ for powers of two. If a rank receives one message
# per step, a step can at most double the number of contributions in a sum. So no such algorithm
# has fewer steps. (In `everyone`, a rank receives $n-1$ messages at once, so it pays one latency:
# 30 us for 1 number on 8 ranks. Doubling pays three.) Worlds of other sizes need two more
# messages one after the other, so 5 ranks take twice as long as 4. The price of doubling is
# bytes: each rank sends $N \log_2 n$ bytes.
#
# ## 5. Rabenseifner: halve, then double
#
# Can we have few steps *and* few bytes? Let partners swap **halves**: one partner adds up one
# half of `x`, and the other partner adds up the other half. Then each rank splits its half with
# the next partner, and so on. So a rank sends $N/2 + N/4 + \ldots$ bytes. After $\log_2 n$ steps
# each rank has one complete piece of the sum. Then the ranks make the same steps backwards, to
# give the complete pieces to all. How many bytes does each rank send in all?

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
# On 8 ranks a rank sends $\frac12 + \frac14 + \frac18 = \frac{n-1}{n}$ of N, twice: 1.75 N. That
# is as few bytes as in the ring, but in only $2 \log_2 n$ steps. Any order of partners gives the
# right sum; MPICH and Open MPI begin with the neighbour. (The formulas are from Thakur,
# Rabenseifner and Gropp 2005, Int. J. High Perform. Comput. Appl. 19(1).)
#
# The lab above marks $2\frac{n-1}{n}N$ next to its bars. For each algorithm: which ranks send
# more than this bound in a world of 4, and which in a world of 5? Why?
#
# <details><summary>Answer</summary>
#
# - Naive: rank 0, because it sends the sum to all others.
# - Tree: the ranks that send a whole tensor two or more times. Rank 0 sends 3 N on 5 ranks.
# - Recursive doubling: all ranks that take part, because they send whole tensors in every step.
# - Rabenseifner: no rank on 4 ranks. On 5 ranks the lab folds rank 0 to rank 1. Rank 1 works for
#   both and also sends the sum to rank 0. So it sends 2.5 N in all. In our `fold` rank 0 works
#   for rank 4, so there rank 0 sends most.
# - Ring: no rank, on 4 ranks or on 5. Only the ring keeps to the bound on both.
#
# </details>
#
# ## All five at once
#
# Five algorithms keep the same contract, and each has a closed form. The last cell compares all
# five formulas with simulated times, on 2 to 8 ranks. Then it computes the times for the gradient
# of ResNet-50 on 64 ranks. (This gradient has 25,557,032 float32 numbers, by torchvision's
# count.) Which two will be the quickest there, and why are their times so close?

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
# Rabenseifner is the quickest, and the ring is second. Both send equally many bytes, and no
# algorithm sends fewer. For such a long tensor the latency hardly matters. Naive takes 64 times
# as long as Rabenseifner.
#
# ## Your turn
#
# [Exercises 05](../exercises/05_building_all_reduce.ipynb), tasks 1 and 2: a reduce_scatter, and a ring
# through the ranks in any order.
#
# ## Exit ticket
#
# 1. Each of 4 ranks brings 8 MB. How many bytes does a rank send in a ring all_reduce? How many
#    bytes does rank 0 send in the naive algorithm?
# 2. A ring grows from 8 to 16 ranks, and the tensor stays the same. How does the number of steps
#    change? How does the number of bytes that a rank sends change? For which tensors does the
#    time change much?
#
# <details><summary>Answers</summary>
#
# 1. In the ring a rank sends 2 x 3/4 x 8 = 12 MB. In the naive algorithm rank 0 sends 3 x 8 = 24
#    MB.
# 2. The steps grow from 14 to 30, and the bytes from 1.75 N to 1.875 N. So a large tensor takes
#    only a little longer. A small tensor mostly pays latency at every step, so it takes about
#    twice as long.
#
# </details>
#
# **Next:** the second part of lesson 05, [choosing an all_reduce](05_choosing_all_reduce.ipynb).
