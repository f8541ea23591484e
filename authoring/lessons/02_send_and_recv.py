# %% [markdown]
# # 02 Send and receive
#
# Everything that ranks ever do together can be built from two calls: one rank sends a tensor,
# another receives it. In this lesson (about 50 minutes) you will
#
# - run the first program of nearly every tutorial, as a function and as a script,
# - see what `send` promises when it returns, and what it does not,
# - send and receive at the same time with `isend`, `irecv` and `wait`,
# - pass a value around a ring, and tell messages apart by tags,
# - measure this machine: how long does a message take, and why?
# - put other networks in its place, without changing the program,
# - break the first program with a third rank, and mend it.

# %%
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

import simlib

# %% [markdown]
# ## One message
#
# Rank 0 has two numbers, rank 1 wants them. Both run the same function and find out by `rank` which
# part is theirs. The receiver must bring a **holder**: a tensor into which the numbers will be
# written. What will rank 1 print before the message, and what after it?

# %%
guess = None  # the two lines of rank 1?


def main(rank, world_size):
    if rank == 0:
        x = torch.tensor([1.0, -1.0])
        dist.send(x, dst=1)
        print("sent", x)
    else:
        holder = torch.zeros(2)
        print("before", holder)
        dist.recv(holder, src=0)
        print("after", holder)


run = simlib.run(main, world_size=2)

# %% [markdown]
# Rank 1 began with zeros and ended with the numbers of rank 0. Note what did *not* happen: `recv`
# returned no tensor. It wrote into the one it was given. And the two tensors are two: what rank 0
# does to `x` afterwards does not reach rank 1, which lives in another process.
#
# Now the picture and the table of this run. The two processes do not begin at the same moment, so
# one of them comes to the meeting first and waits (hatched) for the other. Which one, may change
# from run to run.

# %%
print(run)
run

# %% [markdown]
# One message of 8 bytes: two float32 numbers, 4 bytes each. The table also says with which line of
# the cell it was sent. The shape and the dtype of the tensor do not travel. Only its bytes do, and
# so the receiver must know beforehand what will come.
#
# ## The same as a script
#
# On the web you find this program as a file, usually called `ptdist.py`, which starts the process
# group itself. Such files run here as they are. The next cell writes one into a temporary folder
# and starts it in two ways: on real processes with `python -m simlib run -n 2 ptdist.py`, and on a
# modelled cluster (lesson 00) with `simulate` in the place of `run`. You could type both in a
# terminal. The number after `-n` is the number of processes, not of machines.
#
# The file names the backend `mpi`, as the older tutorials do. MPI is the message-passing library of
# supercomputers; PyTorch from pip does not contain it, so `simlib` takes Gloo, or its simulation,
# instead. What will differ between the two tables?

# %%
guess = None  # what differs?

source = """
import torch
import torch.distributed as dist

def main(rank, world_size):
    if rank == 0:
        dist.send(torch.tensor([1.0, -1.0]), dst=1)
    else:
        holder = torch.zeros(2)
        dist.recv(holder, src=0)
        print("received", holder)

if __name__ == "__main__":
    dist.init_process_group(backend="mpi")
    main(dist.get_rank(), dist.get_world_size())
"""
script = Path(tempfile.mkdtemp()) / "ptdist.py"
script.write_text(source)
for how in ("run", "simulate"):
    command = [sys.executable, "-m", "simlib", how, "-n", "2", str(script)]
    print(subprocess.run(command, capture_output=True, text=True).stdout)

# %% [markdown]
# The numbers, the message, its bytes and its line are the same. The second table says *simulated*, and
# ends with a time, because a virtual clock gives the same time in every repeat: 30 us before anything arrives, then 8
# bytes at 1.25 billion bytes per second. That is the Ethernet of 10 Gbit/s which `simulate` takes
# unless you name another network.
#
# ## A holder of the same shape
#
# The bytes of a message are written into the holder one after the other. So the holder must have
# the same number of elements and the same dtype as what is sent. Here rank 0 sends four numbers,
# and rank 1 has room for two. What should happen: two numbers arrive, or an error, and if so, on
# which rank?

# %% tags=["raises-exception"]
guess = None  # two numbers, or an error?


def too_small(rank, world_size):
    if rank == 0:
        dist.send(torch.tensor([1.0, 2.0, 3.0, 4.0]), dst=1)
    else:
        holder = torch.zeros(2)
        dist.recv(holder, src=0)


simlib.run(too_small, world_size=2)

# %% [markdown]
# An error before a byte has moved, with both sides of the message: what was sent, what was
# expected, in which lines. That is `simlib`, which compares the two calls. Do not rely on errors
# elsewhere. With plain Gloo the receiver's process dies here. If the holder is too *large*, Gloo
# fills its front, leaves the rest as it was, and says nothing. If it has the wrong dtype, the right
# bytes are read as wrong numbers, and again Gloo says nothing. Lesson 03 shows more of this.
#
# The mend: both sides agree. Where only the sender knows the size, it sends the size first.


# %%
def size_first(rank, world_size):
    if rank == 0:
        x = torch.arange(4.0)
        dist.send(torch.tensor([len(x)]), dst=1)
        dist.send(x, dst=1)
    else:
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, src=0)
        holder = torch.zeros(length.item())
        dist.recv(holder, src=0)
        return holder


print(simlib.run(size_first, world_size=2).results[1])

# %% [markdown]
# ## "Send returned, so it is delivered"
#
# That sounds right. Test it. Rank 0 sends with `isend`, which returns at once (the *i* stands for
# immediate). It then says so and ends. Rank 1 never asks for the message. What does rank 1 hold in
# the end? If sending is delivering, it is not zeros.

# %%
guess = None  # what does rank 1 return?


def nobody_asks(rank, world_size):
    holder = torch.zeros(2)
    if rank == 0:
        dist.isend(torch.tensor([1.0, -1.0]), dst=1)
        print("isend has returned")
    return holder


run = simlib.run(nobody_asks, world_size=2)
print("rank 1 holds", run.results[1])
print("received by:", run.trace.messages[0].recv)

# %% [markdown]
# Zeros. A message changes nothing on the other side until that side **receives** it. The line that
# begins with `unfinished` is a *finding* of `simlib`: something was left over that should not be,
# though nothing failed. Here there are two faults: nobody receives, and nobody waits. `isend` gives
# back a *request*. Call `request.wait()`: until then the message may never leave, and the holder of
# an `irecv` holds nothing you may use.
#
# Now the blocking `send`. In the next run rank 1 is busy for 200 ms before it receives. When does
# `send` return on rank 0: at once, or after 200 ms?

# %%
guess = None  # at once, or after 200 ms?


def late_receiver(rank, world_size):
    if rank == 0:
        dist.send(torch.tensor([1.0, -1.0]), dst=1)
    else:
        time.sleep(0.2)  # busy with something else
        holder = torch.zeros(2)
        dist.recv(holder, src=0)


run = simlib.run(late_receiver, world_size=2)
run

# %% [markdown]
# Rank 0 waits: Gloo's `send` returns when the receiver has taken the message. Other libraries do it
# differently. MPI may copy a small message away and return at once, and wait only with a large
# one; the MPI standard allows both. What `send` promises everywhere is less than you would think:
# **when it returns, you may change `x` again.** It promises nothing about the other side. A program
# that needs more is a program that works here and hangs there.
#
# ## "Print order is time order"
#
# The lines under a cell look like a story, told from top to bottom. In this program rank 0 prints
# only **after** a message from rank 1 has come, and rank 1 prints **before** it sends it. Which of
# the two lines is on top?

# %%
guess = None  # which line is on top?


def story(rank, world_size):
    x = torch.zeros(1)
    if rank == 0:
        dist.recv(x, src=1)
        print("then I came")
    else:
        print("I was first")
        dist.send(x, dst=0)


run = simlib.run(story, world_size=2)

# %% [markdown]
# The second event is on top, because `simlib` sorts the lines by rank. A terminal or a cluster's
# log sorts them by the moment at which they happen to arrive, which is no better. There is only one
# thing that puts events of two ranks in order: **a message**. What rank 1 did before it sent
# happened before what rank 0 does after it received. Two events without a chain of messages between
# them have no order that you may count on.
#
# ## Both directions at once
#
# Two ranks want to swap tensors. If both call `send` first, both wait for a receiver, and nobody
# receives: that is a hang of lesson 03. With `isend` a rank can have its message under way
# and receive in the meantime. `request.wait()` returns when the operation is finished. Until then,
# hands off the tensor!


# %%
def swap(rank, world_size):
    mine = torch.tensor([10.0 * rank, 10.0 * rank + 1])
    other = torch.empty_like(mine)
    partner = 1 - rank
    request = dist.isend(mine, dst=partner)
    dist.recv(other, src=partner)
    request.wait()
    return other


print(simlib.run(swap, world_size=2).results)

# %% [markdown]
# `irecv` is the other half. Rank 1 below asks for the message early, works for 100 ms while rank 0
# makes it ready, and waits only when it needs the numbers. In the picture: how long is rank 1's
# hatched part? Compare it with a rank that works first and asks then.


# %%
def work_meanwhile(rank, world_size):
    if rank == 0:
        time.sleep(0.08)
        dist.send(torch.tensor([1.0, -1.0]), dst=1)
    else:
        holder = torch.zeros(2)
        request = dist.irecv(holder, src=0)
        time.sleep(0.1)  # work that does not need the numbers
        request.wait()
        return holder


run = simlib.run(work_meanwhile, world_size=2)
run

# %% [markdown]
# The waiting has gone from rank 1: the message came while it worked. (The pale strip is the receive
# under way; the arrow ends where rank 1 learned of it, in `wait`.) This is called *overlap*. The 80
# ms of rank 0 and the 100 ms of rank 1 cost 100 ms together, not 180. The same trick hides most of
# the communication of a training step: that is lesson 08 (to come).
#
# ## Around the ring
#
# Four ranks stand in a ring. Rank 0 sends a zero to rank 1; each rank adds its own number, works
# for 50 ms and passes it on; the last rank gives it back to rank 0. `(rank + 1) % world_size` is
# the right neighbour, for the last rank too. (It takes two ranks or more: a world of one has no
# rank 1 to send to.) What does each rank return? How many messages are sent?

# %%
guess = None  # four numbers, and the number of messages?


def around(rank, world_size):
    x = torch.zeros(1)
    if rank == 0:
        dist.send(x, dst=1)
        dist.recv(x, src=world_size - 1)
    else:
        dist.recv(x, src=rank - 1)
        x += rank
        time.sleep(0.05)
        dist.send(x, dst=(rank + 1) % world_size)
    return x.item()


run = simlib.run(around, world_size=4)
print(run.results, "messages by rank:", run.messages)
run

# %% [markdown]
# A staircase. Rank 0 has 0 + 1 + 2 + 3 = 6 in the end, after 4 messages, one per rank. And at any
# moment only **one** rank works. With n ranks, and a time T for one message,
#
# $$T_\text{ring} = n \, T + (n - 1) \, T_\text{work}$$
#
# Here that is 150 ms of work and four messages, as in the picture. Nothing has become faster by
# having more ranks. The ring is a good road, badly used: in lesson 05 (to come) every rank sends at
# the same time, each a different part of the data, and the ring becomes the fastest way to add up
# large tensors. The heat map shows who sent to whom.
#
# Does the formula hold for large rings? You have no 1,024 processes to spare, but `simulate` needs
# none: its ranks have a virtual clock, and there `time.sleep` takes no time of yours. Work out the
# formula for 64 ranks on the 10 Gbit/s Ethernet, with T = 30.0032 us for a message of 4 bytes. Then
# run the cell after the heat map.

# %%
run.heat_map()

# %%
guess = None  # seconds for a ring of 64 ranks?

link = simlib.clusters.ethernet_10g(nodes=1).inter
message_s = link.latency_s + 4 / link.bandwidth_Bps
rings = {n: simlib.simulate(around, world_size=n) for n in (4, 64, 1024)}
for n, ring in rings.items():
    formula_s = n * message_s + (n - 1) * 0.05
    print(f"{n:>5} ranks: {ring.time_s:.6f} s simulated, {formula_s:.6f} s by the formula")
rings[64]

# %% [markdown]
# Equal, to the microsecond. The picture has 64 lanes, and at any moment only one of them is filled:
# the other ranks wait, or have finished. With 1,024 ranks a single sum takes 51 seconds in this way.
#
# ## Tags
#
# Two messages from the same sender to the same receiver: which is which? By default the first sent
# is the first received. A **tag**, a number given on both sides, tells them apart. Below, rank 1
# asks for tag 20 first. Which number is in `a`? (Rank 0 uses `isend`: a blocking `send` of tag 10
# would wait for a receive that only comes second.)

# %%
guess = None  # what does rank 1 return?


def two_letters(rank, world_size):
    if rank == 0:
        letters = [dist.isend(torch.tensor([1.0]), dst=1, tag=10)]
        letters += [dist.isend(torch.tensor([2.0]), dst=1, tag=20)]
        for letter in letters:
            letter.wait()
    else:
        a, b = torch.zeros(1), torch.zeros(1)
        dist.recv(a, src=0, tag=20)
        dist.recv(b, src=0, tag=10)
        return a.item(), b.item()


print(simlib.run(two_letters, world_size=2).results[1])

# %% [markdown]
# A receive takes the first message whose **source and tag** both fit. A tag that nobody sends is
# waited for without end.
#
# ## How long does a message take?
#
# Measure it. Two ranks play *ping-pong*: a tensor goes over and comes back, and half of the round
# trip is the time of one message. We take the best of 100 trips, because noise only ever adds. A
# message of 4 bytes and one of 4 MB: is the second a million times slower?

# %%
guess = None  # how many times slower are 4 MB than 4 bytes?


def ping_pong(rank, world_size, sizes):
    times_s = []
    for nbytes in [4, *sizes]:  # the first size is there to warm up
        x, best_s = torch.zeros(nbytes // 4), float("inf")
        for _ in range(100):
            start_s = time.perf_counter()
            if rank == 0:
                dist.send(x, dst=1)
                dist.recv(x, src=1)
            else:
                dist.recv(x, src=0)
                dist.send(x, dst=0)
            best_s = min(best_s, time.perf_counter() - start_s)
        times_s.append(best_s / 2)
    return times_s[1:]


# %% tags=["nbval-ignore-output"]
sizes = np.array([4 * 4**k for k in range(11)])
times_s = np.array(simlib.run(ping_pong, world_size=2, args=(sizes.tolist(),)).results[0])
for nbytes, time_s in zip(sizes, times_s, strict=True):
    print(f"{nbytes:>12,} bytes {time_s * 1e6:>10,.1f} us")
print(f"4 MB takes {times_s[10] / times_s[0]:,.0f} times as long as 4 bytes")

# %% [markdown]
# Not nearly a million. A thousand small messages cost far more than one large message with the same
# bytes. Two numbers explain the whole table:
#
# $$T(\text{nbytes}) = \text{latency} + \frac{\text{nbytes}}{\text{bandwidth}}$$
#
# The **latency** is paid for every message, however small. The **bandwidth** is how many bytes per
# second then flow. We fit both to the points by least squares. Each point is weighted by 1/T, so
# that the relative errors count: without weights only the largest message would.


# %% tags=["nbval-ignore-output"]
def fit(times_s):
    seconds_per_byte, latency_s = np.polyfit(sizes, times_s, 1, w=1 / times_s)
    off = np.median(abs((latency_s + sizes * seconds_per_byte) / times_s - 1))
    found = f"{latency_s * 1e6:7.2f} us and {1e-9 / seconds_per_byte:7.3f} GB/s"
    print(f"found  {found}; the median point is {off:.0%} off the line")
    return latency_s, 1 / seconds_per_byte


latency_s, bandwidth_Bps = fit(times_s)
figure, axes = plt.subplots(figsize=(7, 3.6))
axes.loglog(sizes, times_s * 1e6, "o", color="#0072B2", label="measured")
nbytes = np.geomspace(sizes[0], sizes[-1], 200)
model_us = (latency_s + nbytes / bandwidth_Bps) * 1e6
axes.loglog(nbytes, model_us, "-", color="#D55E00", label="latency + nbytes / bandwidth")
axes.axvline(latency_s * bandwidth_Bps, color="#777777", ls="--", label="latency x bandwidth")
axes.set_xlabel("message (bytes)")
axes.set_ylabel("time (us)")
for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_formatter("{x:,.0f}")
    axis.set_minor_formatter("")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# On the left the line is flat: only latency counts, and bytes are free. On the right it rises in
# proportion: only bandwidth counts. The dashed line, at latency x bandwidth bytes, is where both
# cost the same. It is the most useful number of a network: **messages smaller than this waste time,
# and should be put together.** Two honest remarks. Both ranks are on one machine, so you have
# measured memory and the operating system, not a network. And the recorder of `simlib` adds some
# microseconds to each call.
#
# ## The same ping-pong on other networks
#
# `ping_pong` measures itself, with `time.perf_counter`. Inside `simulate` that function reads the
# rank's virtual clock. So the unchanged program can measure a network that you do not have. Take two:
# Ethernet of 1 Gbit/s with a latency of 50 us, and InfiniBand, a network of supercomputers, with 200
# Gbit/s and 2 us. We put these numbers in; the program knows nothing of them. Which latency and
# bandwidth will the same fit find, and how far from them will the points lie?

# %%
guess = None  # two latencies, two bandwidths

for network in (simlib.clusters.ethernet_1g(nodes=2), simlib.clusters.infiniband_hdr(nodes=2)):
    simulated = simlib.simulate(ping_pong, 2, args=(sizes.tolist(),), cluster=network)
    link = network.inter
    print(f"put in {link.latency_s * 1e6:7.2f} us and {link.bandwidth_Bps / 1e9:7.3f} GB/s")
    fit(np.array(simulated.results[0]))
    print(f"       latency x bandwidth: {link.latency_s * link.bandwidth_Bps:,.0f} bytes\n")

# %% [markdown]
# What was put in comes out, without any error. That shows two things. The fit works: it finds the two
# numbers where they are known. And the modelled network *is* the formula: a message pays the latency
# once, then its bytes flow at the bandwidth. The points of your own machine were off the line, because
# a real machine is more than two numbers. How well such a model predicts a real network is a question
# of its own, and you now know how to ask it: fit on small programs, predict a large one, measure.
#
# The last lines surprise many. InfiniBand is better in both numbers, but its messages have to be
# *larger* than those of the slow Ethernet to make good use of it.
#
# Now at real size. The gradient of ResNet-50 has 25,557,032 numbers (torchvision's count), in
# float32. Take Ethernet with an assumed latency of 50 us. How long does one message with the whole
# gradient take? And what if each parameter tensor is sent on its own? ResNet-50 has 53 convolutions
# with one tensor each, 53 batch norms with two, and one linear layer with two: 161.

# %%
gradient_nbytes, tensors = 25_557_032 * 4, 53 + 2 * 53 + 2
for name, network_Bps in [("1 Gbit/s", 0.125e9), ("10 Gbit/s", 1.25e9), ("100 Gbit/s", 12.5e9)]:
    one_s = 50e-6 + gradient_nbytes / network_Bps
    many_s = tensors * 50e-6 + gradient_nbytes / network_Bps
    print(f"{name:>10}: {one_s * 1e3:7.1f} ms in one message, {many_s * 1e3:7.1f} ms in {tensors}")

# %% [markdown]
# On the slow network the 160 extra latencies hardly matter. On the fast one they nearly double the
# time. The faster the network, the more it pays to send few, large messages.
#
# ## What if the network were slow?
#
# In a simulation computing takes no time, unless you say how much. Often you would rather keep the
# work as it was measured here, and change only the network. That is `run.replay(cluster)`. It takes
# a recorded run, also of real processes, and times its messages anew; what each rank did between them
# takes as long as it did. Nothing is executed again.
#
# Below, two ranks work for 50 ms and swap 4 MB, three times. On 1 Gbit/s a byte takes 8 ns. How long
# will the three rounds take there?

# %% tags=["nbval-ignore-output"]
guess = None  # milliseconds on 1 Gbit/s?


def rounds(rank, world_size):
    mine, other = torch.ones(1_000_000), torch.empty(1_000_000)
    for _ in range(3):
        time.sleep(0.05)  # work
        request = dist.isend(mine, dst=1 - rank)
        dist.recv(other, src=1 - rank)
        request.wait()


here = simlib.run(rounds, world_size=2)
print(f"{'measured here':14} {here.time_s * 1e3:5.0f} ms")
for name in ("infiniband_hdr", "ethernet_10g", "ethernet_1g"):
    network = getattr(simlib.clusters, name)(nodes=2)
    replayed = here.replay(network)
    print(f"{name:14} {replayed.time_s * 1e3:5.0f} ms")
replayed

# %% [markdown]
# Each round costs the work and one transfer: 50 + 32 ms on 1 Gbit/s, so 246 ms in all, and a little
# more, because a real sleep lasts somewhat longer than it was asked to. (The two directions of a link
# do not disturb each other.) The faster networks hardly differ, because there
# the work is nearly everything. So before you ask for a better network, replay what you have: the
# answer may be that it would gain 5 %. In the picture the axis says *virtual time*, and the lanes
# wait for a good third of it.
#
# ## Break it: a third rank
#
# Back to the first program. It says `if rank == 0 ... else ...`, and works on two ranks. Now run it
# on three. Nothing in it is forbidden. Which rank is in trouble, and in which line?

# %% tags=["raises-exception"]
guess = None  # which rank, and in which line?

simlib.run(main, world_size=3)

# %% [markdown]
# Rank 2 runs the `else` branch too, and waits for a message from rank 0. But rank 0 has sent its
# only message to rank 1, and has finished. The arrow in the picture says who waits for whom. With
# four ranks, two would wait, with 64 ranks 62: `else` means *every* other rank. `simlib` tells this
# at once, because the message *cannot* come any more. Elsewhere it depends. With plain Gloo rank 2
# fails with "Connection closed by peer" as soon as the process of rank 0 ends, and nothing says
# why. If rank 0 lives on, rank 2 stands still until a time limit, and a cluster bills you for it.
#
# The mend depends on what was meant. Here: everyone shall have the numbers. So rank 0 sends one
# message per other rank, and the function is right for every world size, even for one.


# %%
def main(rank, world_size):
    if rank == 0:
        x = torch.tensor([1.0, -1.0])
        for dst in range(1, world_size):
            dist.send(x, dst=dst)
        return x
    holder = torch.zeros(2)
    dist.recv(holder, src=0)
    return holder


for world_size in (1, 2, 3, 5):
    run = simlib.run(main, world_size)
    print(f"world size {world_size}:", [x.tolist() for x in run.results], run.messages, "messages")

# %% [markdown]
# Rank 0 sends all n - 1 messages, one after the other, so this takes (n - 1) x (latency + nbytes /
# bandwidth). Lesson 04 has a name for the job, *broadcast*, and its exercise a faster way to do it.
#
# ## Your turn
#
# [Exercises 02](../exercises/02_send_and_recv.ipynb): a running total along the ranks, a shift
# around the ring, and tensors whose lengths only their owners know.
#
# ## Exit ticket
#
# 1. What does the receiver have to know before the message comes?
# 2. `send` has returned. What may you do now, and what do you not know?
# 3. Rank 3 prints "a", rank 5 prints "b", and they exchange no messages. Which came first?
# 4. A network has 100 us latency and 1 GB/s. From which size on is a message worth its latency?
# 5. What does `time.perf_counter()` tell a rank under `run`, and what under `simulate`?
#
# <details><summary>Answers</summary>
#
# 1. The number of elements and the dtype (and the sender, and the tag, if one is used).
# 2. You may change the tensor. You do not know in general whether the other side has it.
# 3. Neither the screen nor anything else can say: no chain of messages orders the two.
# 4. At 100e-6 s x 1e9 B/s = 100,000 bytes latency and transfer cost the same; above that the bytes
#    dominate.
# 5. Seconds of this machine; seconds of the rank's virtual clock, which belongs to the modelled
#    network.
#
# </details>
#
# **Next:** [lesson 03, when it hangs](03_when_it_hangs.ipynb).
