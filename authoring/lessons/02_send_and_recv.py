# %% [markdown]
# # 02 Send and receive
#
# You can build everything that ranks do together from two calls: one rank sends a tensor, and another
# rank receives it. In this lesson (85 minutes) you will
#
# - run the first program of nearly every tutorial, as a function and as a script,
# - see what `send` promises when it returns, and what it does not promise,
# - send and receive at the same time with `isend`, `irecv` and `wait`,
# - pass a value around a ring, and distinguish messages by tags,
# - measure how long a message takes on this machine, and explain its time with two numbers,
# - replace the network by others, without changing the program,
# - break the first program with a third rank, and fix it.

# %%
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist
from IPython.display import display

import simlib
from simlib import cli, labs

# %% [markdown]
# ## One message
#
# Rank 0 has two numbers, and rank 1 wants them. Both run the same function, and the `if` decides which
# part each rank runs. The receiver must provide a **holder**: a tensor into which the numbers will be
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


simlib.run(main, world_size=2)
print("now simulated:")
simlib.simulate(main, world_size=2)

# %% [markdown]
# Rank 1 began with zeros and ended with the numbers of rank 0. Note that `recv` returned no tensor: it
# wrote into the holder. There are two tensors now, `x` and the holder. If rank 0 changes `x` afterwards,
# rank 1 does not see the change, because rank 1 is another process.
#
# The picture shows the simulated run, which is the same in every repeat. (A real run also shows what
# else the machine was doing.) Both ranks begin their calls at the same time. Then the message is on its
# way for 30 us, so both lanes are pale. Two real ranks do not begin at the same time. One waits for the
# other, so their picture also has a hatched part.
#
# ## The same as a script
#
# On the web this program is a file, usually called `ptdist.py`, which starts the process group itself.
# Older versions name the backend `mpi` (lesson 01). PyTorch from pip has no such backend, so `simlib`
# uses Gloo instead, and such files run here unchanged. In a terminal you would type
#
#     python -m simlib run -n 2 ptdist.py
#     python -m simlib simulate -n 2 ptdist.py
#
# The first command starts two real ranks, and the second starts two ranks of a modelled cluster (lesson
# 00). The cell gives the same commands to `simlib` without a terminal, so no new Python has to load
# PyTorch. Each command prints a table. How will the two tables differ?

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
print("this PyTorch contains MPI:", dist.is_mpi_available())
for how in ("run", "simulate"):
    cli.main([how, "-n", "2", str(script)])

# %% [markdown]
# Both runs sent one message of 8 bytes: two float32 numbers, 4 bytes each. In each table, the line with
# `0 -> 1` says which line of the file sent the message. The second table says *simulated*. It also shows
# times, because a virtual clock gives the same times in every repeat. The message takes 30 us
# (microseconds) before anything of it arrives. Then its 8 bytes arrive, at 1.25 billion bytes per
# second. These are the numbers of 10 Gbit/s Ethernet, which `simulate` uses unless you name another
# network.
#
# ## "ssh carries the data"
#
# On a cluster, you type one line on one machine, and it starts the same file on several machines:
#
#     mpiexec -n 2 -ppn 1 -hosts node1,node2 python ptdist.py
#
# `-n 2` asks for two **processes** in all, not for two machines. `-ppn 1` puts one process on each node.
# This line needs a PyTorch that contains MPI. If yours does not, write `python -m simlib.mpi` instead of
# `python`. Then `simlib` provides the backend `mpi`, and uses mpi4py for it. The next cell does this
# with two processes of real MPI on this machine. [Lesson 16](16_the_real_cluster.ipynb) adds `-hosts`.

# %%
mpiexec = Path(sys.executable).with_name("mpiexec")
line = [mpiexec, "-n", "2", sys.executable, "-m", "simlib.mpi", script]
if mpiexec.exists():
    print(subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout)
else:
    print('no MPI is installed here: pip install "rank-by-rank[cluster]"')

# %% [markdown]
# `mpiexec` logs in to the nodes with ssh. So you might think that the numbers travel through ssh. Here
# the notebook starts the ranks. Do their messages pass through the notebook? Each end of a connection
# has a number on its machine, its **port**. `psutil` lists the connections of a process: `laddr` is the
# local end, and `raddr` is the remote end. Below, each rank lists its pairs of ports, and so does the
# notebook. (`simlib.guess` answers a guess that is a number, True or False, or one of a few words.)

# %%
guess = None  # does the notebook hold an end of the ranks' connection? True or False


def ports():
    tcp = psutil.Process().net_connections(kind="tcp")
    return [(one.laddr.port, one.raddr.port) for one in tcp if one.status == "ESTABLISHED"]


def send_and_look(rank, world_size):
    main(rank, world_size)
    return ports()


of_rank_0, of_rank_1 = simlib.run(send_and_look, world_size=2).results
print("connections of rank 0, rank 1:", len(of_rank_0), len(of_rank_1))
print("the two ends of one:", of_rank_0 == [(far, near) for near, far in of_rank_1])
held = any(near in of_rank_0[0] for near, _ in ports())
print("the notebook holds an end:", held)
simlib.guess(guess, held)

# %% [markdown]
# There is one connection, and its two ends are the two ranks. The notebook only **starts** the ranks. On
# a cluster, `mpiexec` and ssh do this (lesson 01). Then the ranks connect to each other, and the data
# use this connection. So if ssh works, that does not prove that the ranks can reach each other: a
# firewall may block everything except ssh.
#
# ## A holder of the same shape
#
# A message contains only the bytes of a tensor, not its shape or its dtype. `recv` writes these bytes
# into the holder one after the other. So the receiver must prepare a holder that fits. The holder needs
# the same number of elements and the same dtype as the tensor that is sent. Below, rank 0 sends four
# numbers, and rank 1 has room for two. Will two numbers arrive, or will there be an error? On which
# rank? (Some cells in this lesson are meant to fail. Go on with the next cell, as Run All does.)

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
# There was an error before any byte moved. It shows both sides of the message: what was sent, what was
# expected, and in which lines. `simlib` compared the two calls. Other libraries do not compare them.
# With plain Gloo the receiver's process crashes here. If the holder is too *large*, Gloo fills its first
# elements, leaves the rest unchanged, and reports nothing. If it has the wrong dtype, Gloo reads the
# bytes as other numbers, and again reports nothing.
#
# The fix: both sides must agree. If only the sender knows the size, it sends the size first, in a
# message of fixed size: one int64 number.


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
# Is this heading true? Rank 0 sends with `isend`, which returns at once (the *i* means immediate). Rank
# 0 prints a line, and finishes. Rank 1 never calls `recv`. It returns its holder. What is in this
# holder? If the message is delivered when `isend` has returned, the holder cannot contain zeros.

# %%
guess = None  # the first of the two numbers on rank 1?


def nobody_asks(rank, world_size):
    holder = torch.zeros(2)
    if rank == 0:
        dist.isend(torch.tensor([1.0, -1.0]), dst=1)
        print("isend has returned")
    return holder


run = simlib.run(nobody_asks, world_size=2)
print("rank 1 holds", run.results[1])
print("received by:", run.trace.messages[0].recv)
simlib.guess(guess, run.results[1][0])

# %% [markdown]
# Rank 1 returned zeros. A message changes nothing on the other side until that side **receives** it. The
# line that says `unfinished` is a *finding* of `simlib`: nothing failed, but one message was never
# received. (The program has a second fault. `isend` and `irecv` return a *request*, and the program
# never called `request.wait()`. Until `wait` has returned, the message may still be on the sender's
# side, and the holder of an `irecv` may still be empty.)
#
# Does `send` promise more? In the next run rank 1 is busy for 200 ms before it receives. When does
# `send` return on rank 0: at once, or after 200 ms? We run real ranks with Gloo. Then we run simulated
# ranks under two rules, `rendezvous` and `eager`. The MPI standard allows both rules.

# %%
guess = None  # after how many ms on real ranks? And under the two rules?


def late_receiver(rank, world_size):
    if rank == 0:
        dist.send(torch.tensor([1.0, -1.0]), dst=1)
    else:
        time.sleep(0.2)  # busy with something else
        holder = torch.zeros(2)
        dist.recv(holder, src=0)


run = simlib.run(late_receiver, world_size=2)
for rule in ("rendezvous", "eager"):
    ends_s = [end_s for _, end_s in simlib.simulate(late_receiver, 2, sends=rule).trace.spans]
    print(
        f"{rule:10}: rank 0 goes on after {ends_s[0]:.5f} s, rank 1 has it after {ends_s[1]:.5f} s"
    )
simlib.guess(guess, run.trace.spans[0][1] * 1e3, within=0.2)
run

# %% [markdown]
# In the picture, real rank 0 waits: Gloo's `send` returns when the receiver has taken the message. This
# is the **rendezvous** rule: both sides must meet. Under the **eager** rule the library copies the
# message, and `send` returns at once, after 0.00000 s. That is 200 ms *before* rank 1 has the numbers.
# Many libraries use the eager rule for small messages and the rendezvous rule for large ones.
#
# Both rules promise only one thing: **when `send` returns, you may change `x` again.** If a program
# relies on anything else, it works with one library and hangs with another (lesson 03).
#
# ## Both directions at once
#
# Two ranks want to swap tensors. If both call `send` first, both wait for a receiver, and neither
# receives (lesson 03). With `isend` a rank starts to send, and then receives while its own message is on
# its way. `isend` returns a request, and `request.wait()` returns when the sending is finished. Do not
# change the tensor before that! **Now you write it**, in three lines.


# %%
def exchange(mine, other, partner):
    # mine goes to the partner, the partner's numbers come into other
    pass  # your lines


def swap(rank, world_size):
    mine = torch.tensor([10.0 * rank, 10.0 * rank + 1])
    other = torch.zeros_like(mine)
    exchange(mine, other, partner=1 - rank)
    return other.tolist()


swapped = simlib.run(swap, world_size=2).results
print(swapped, "right" if swapped == [[10.0, 11.0], [0.0, 1.0]] else "is not yet swapped")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     request = dist.isend(mine, dst=partner)
#     dist.recv(other, src=partner)
#     request.wait()
#
# </details>
#
# `irecv` also returns at once, and receives while the rank does other work. Below, rank 0 works for 80
# ms before it sends. Rank 1 calls `irecv` at once, works for 100 ms, and calls `wait` only when it needs
# the numbers. How long will rank 1 wait for the message? (The picture shows waiting as hatched.) After
# how many ms will rank 1 be done?

# %%
guess = None  # ms until rank 1 is done?


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
simlib.guess(guess, run.trace.spans[1][1] * 1e3, within=0.2)
run

# %% [markdown]
# Rank 1 waits for almost no time, because the message came while rank 1 worked. (The pale strip along
# the bottom of its lane shows how long the `irecv` was active. The legend calls this *async op in
# flight*. The arrow ends in `wait`, because there rank 1 learned that the message had come.) If
# communication and work take place at the same time, this is called *overlap*. With `recv` instead of
# `irecv`, rank 1 would begin its work only after 80 ms and take 180 ms in all, not 100. Overlap hides
# most of the communication of a training step ([lesson 08](08_from_loops_to_ddp.ipynb)).
#
# ## Around the ring
#
# Four ranks form a ring. Rank 0 sends a zero to rank 1. Each other rank receives a number, adds its own
# number, works for 50 ms and sends the sum to the next rank. The last rank sends the sum back to rank 0.
# `(rank + 1) % world_size` is the next rank in the ring, also for the last rank. (A world of one rank
# has no rank 1, so the program needs at least two ranks.) What does each rank return? How many messages
# are sent?

# %%
guess, in_all = None, None  # what rank 0 returns? How many messages?


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
simlib.guess(guess, run.results[0])
simlib.guess(in_all, sum(run.messages))
display(run, run.heat_map())

# %% [markdown]
# The picture is a staircase. Rank 0 has 0 + 1 + 2 + 3 = 6 in the end, after 4 messages. At any moment
# only **one** rank works. With n ranks, a time T for one message and a time $T_\text{work}$ for the work
# of one rank, the ring takes
#
# $$T_\text{ring} = n \, T + (n - 1) \, T_\text{work}$$
#
# Here this is 150 ms of work and the time of four messages. More ranks have made nothing faster. The
# ring itself is good, but this program uses it badly. In lesson 05 all ranks of a ring send at the same
# time, and each rank sends another part of the data. No other way adds up large tensors faster. The
# second picture, the heat map, shows how many bytes each rank sent to each other rank. It has one row
# for each sender.
#
# Does the formula hold for large rings? The next cell simulates up to 1,024 ranks. They need no
# processes of their own, and you do not wait for their `time.sleep`, because their clock is virtual.
# Calculate the formula for 64 ranks on 10 Gbit/s Ethernet. There, a message of 4 bytes takes T = 30.0032
# us.

# %%
guess = None  # seconds for a ring of 64 ranks?

link = simlib.clusters.ethernet_10g(nodes=1).inter
message_s = link.latency_s + 4 / link.bandwidth_Bps
rings = {n: simlib.simulate(around, world_size=n) for n in (4, 16, 64, 1024)}
for n, ring in rings.items():
    formula_s = n * message_s + (n - 1) * 0.05
    print(f"{n:>5} ranks: {ring.time_s:.6f} s simulated, {formula_s:.6f} s by the formula")
simlib.guess(guess, rings[64].time_s, within=0.01)
rings[16]

# %% [markdown]
# The simulation and the formula agree to the microsecond. The picture shows 16 ranks. With 1,024 ranks
# one sum takes 51 seconds.
#
# ## Tags
#
# The same sender sends two messages to the same receiver. How does the receiver distinguish them? By
# default, it receives messages in the order in which they were sent. With a **tag** it can choose
# another order. A tag is a number that the sender gives to a message and the receiver asks for.
#
# Below, rank 0 sends a 1 with tag 10, then a 2 with tag 20. (Rank 0 uses `isend`. A blocking `send`
# would wait until rank 1 receives the message with tag 10, but rank 1 first wants the one with tag 20.)
# We run the program twice. In both runs rank 1 first receives into `a`. In the first run it asks for tag
# 20. In the second run it asks for tag 30, which rank 0 never sends. What is in `a` after the first run?
# What happens in the second run?

# %%
guess = None  # the number in a, with tag 20?


def two_letters(rank, world_size, first_tag):
    if rank == 0:
        letters = [dist.isend(torch.tensor([1.0]), dst=1, tag=10)]
        letters += [dist.isend(torch.tensor([2.0]), dst=1, tag=20)]
        for letter in letters:
            letter.wait()
    else:
        a, b = torch.zeros(1), torch.zeros(1)
        dist.recv(a, src=0, tag=first_tag)
        dist.recv(b, src=0, tag=10)
        return a.item(), b.item()


for first_tag in (20, 30):
    try:
        a, b = simlib.run(two_letters, 2, args=(first_tag,)).results[1]
        print(f"a = {a}, b = {b}")
        simlib.guess(guess, a)
    except simlib.DeadlockError as error:
        print(error)

# %% [markdown]
# A receive takes the first message whose **source and tag** both match, and leaves the other messages.
# If nobody sends a message with its tag, a receive waits for ever. `simlib` sees that such a message can
# never come, and reports this. Other libraries do not report it, so the program hangs.
#
# ## How long does a message take?
#
# We measure this time. Two ranks play *ping-pong*: rank 0 sends a tensor, and rank 1 sends it back. Half
# of this round trip is the time of one message. We take the best of 100 trips, because other work of the
# machine can only make a trip longer. A message of 4 MB has a million times as many bytes as a message
# of 4 bytes. How many times as long does it take?

# %% tags=["nbval-ignore-output"]
guess = None  # how many times slower are 4 MB than 4 bytes?


def ping_pong(rank, world_size, sizes):
    times_s = []
    for nbytes in [4, *sizes]:  # the first size is there to warm up
        x, best_s = torch.zeros(nbytes // 4), float("inf")
        for _ in range(100):
            start_s = time.perf_counter()
            if rank == 0:
                dist.send(x, dst=1)
            dist.recv(x, src=1 - rank)
            if rank == 1:
                dist.send(x, dst=0)
            best_s = min(best_s, time.perf_counter() - start_s)
        times_s.append(best_s / 2)
    return times_s[1:]


sizes = np.array([4 * 4**k for k in range(11)])
times_s = np.array(simlib.run(ping_pong, world_size=2, args=(sizes.tolist(),)).results[0])
for nbytes, time_s in zip(sizes, times_s, strict=True):
    print(f"{nbytes:>12,} bytes {time_s * 1e6:>10,.1f} us")
print(f"4 MB takes {times_s[10] / times_s[0]:,.0f} times as long as 4 bytes")
simlib.guess(guess, times_s[10] / times_s[0], within=0.5)

# %% [markdown]
# It takes far less than a million times as long. So a thousand small messages take much longer than one
# large message with as many bytes. Two numbers explain most of the table:
#
# $$T(\text{nbytes}) = \text{latency} + \frac{\text{nbytes}}{\text{bandwidth}}$$
#
# The **latency** is the time that every message takes, however small it is. Then the bytes arrive. The
# **bandwidth** is the number of bytes that arrive per second. The two numbers define a line. The next
# cell finds the line that is nearest to the measured points (least squares). It gives each point the
# weight 1/T, so the *relative* distance from the line counts. Without these weights, the largest
# message, with the longest time, would determine the line alone.


# %% tags=["nbval-ignore-output"]
def fit(times_s):
    seconds_per_byte, latency_s = np.polyfit(sizes, times_s, 1, w=1 / times_s)
    off = np.median(abs((latency_s + sizes * seconds_per_byte) / times_s - 1))
    found = f"{latency_s * 1e6:7.2f} us and {1e-9 / seconds_per_byte:7.3f} GB/s"
    print(f"found  {found}; the median point is {off:.0%} off the line")
    return latency_s, 1 / seconds_per_byte


latency_s, bandwidth_Bps = fit(times_s)
points = list(zip(sizes, times_s, strict=True))
labs.draw_ping_pong(points, latency_s, bandwidth_Bps)

# %% [markdown]
# On the left the line is flat: only latency counts, and extra bytes take almost no time. On the right
# the time grows in proportion to the size: only bandwidth counts. One dotted line shows the latency
# alone, and the other shows the time of the bytes alone. They cross at the size $n_{1/2}$ = latency x
# bandwidth. A message of this size needs half of its time for latency and half for its bytes. $n_{1/2}$
# is the most useful number of a network: **smaller messages waste time, so combine them.** (Both ranks
# are on one machine, so you have measured memory and the operating system, not a network. `simlib` also
# records each call, which adds some microseconds.)
#
# **A lab:** below is the same picture with sliders. Move them with the mouse or the arrow keys. Can you
# bring the line nearer to the points than the fit did? Which points depend on the latency, and which on
# the bandwidth? Then move the size. How much of the bandwidth does a message of 4 kB use? And how much
# does a message of $n_{1/2}$ use?

# %% tags=["nbval-ignore-output"]
labs.ping_pong_lab(points, latency_s, bandwidth_Bps)

# %% [markdown]
# ## The same ping-pong on other networks
#
# `ping_pong` measures itself, with `time.perf_counter`. Inside `simulate`, `perf_counter` reads the
# rank's virtual clock. So the unchanged program can measure a network that you do not have. We take two
# networks. Ethernet has 1 Gbit/s and a latency of 50 us. InfiniBand, a network of supercomputers, has
# 200 Gbit/s and a latency of 2 us. We give these numbers to the simulation, not to the program. Which
# numbers will the fit find? How far from its line will the points be? And which of the two networks has
# the larger $n_{1/2}$? It needs the larger messages to use its bandwidth well.

# %%
guess = None  # whose n_1/2 is larger: "ethernet_1g" or "infiniband_hdr"?

half_nbytes = {}
for name in ("ethernet_1g", "infiniband_hdr"):
    network = getattr(simlib.clusters, name)(nodes=2)
    simulated = simlib.simulate(ping_pong, 2, args=(sizes.tolist(),), cluster=network)
    link = network.inter
    print(f"put in {link.latency_s * 1e6:7.2f} us and {link.bandwidth_Bps / 1e9:7.3f} GB/s")
    fit(np.array(simulated.results[0]))
    half_nbytes[name] = link.latency_s * link.bandwidth_Bps
    print(f"       latency x bandwidth: {half_nbytes[name]:,.0f} bytes\n")
simlib.guess(guess, max(half_nbytes, key=half_nbytes.get), of=list(half_nbytes))

# %% [markdown]
# The fit finds exactly the numbers that we gave to the simulation. So you can trust the fit. No point is
# off the line, because the modelled network calculates each time with our formula. The points of your
# own machine were off the line, because two numbers do not describe a real machine completely.
#
# Now compare latency x bandwidth. InfiniBand is better in both numbers. But its $n_{1/2}$ is *larger*:
# 50,000 bytes, and only 6,250 bytes on the slow Ethernet.
#
# **Now you write it.** On a third network we measured two *round trips*. `small_trip_s` is the time with
# a message of `small` = 20,000 bytes, and `large_trip_s` is the time with `large` = 2,000,000 bytes. Two
# points define a line. What are the latency and the bandwidth?


# %%
def two_numbers(small, large, small_trip_s, large_trip_s):
    return None  # your lines: return latency_s, bandwidth_Bps


third = simlib.clusters.ethernet_10g(nodes=2)
one_way_s = simlib.simulate(ping_pong, 2, args=([20_000, 2_000_000],), cluster=third).results[0]
trips_s = [2 * one_s for one_s in one_way_s]
print("there and back:", *(f"{trip_s * 1e6:,.1f} us" for trip_s in trips_s))
latency_s, bandwidth_Bps = two_numbers(20_000, 2_000_000, *trips_s) or (0, 0)
by_latency, by_bandwidth = latency_s / third.inter.latency_s, bandwidth_Bps / 1.25e9
if not latency_s:
    print("not yet")
elif abs(by_bandwidth - 0.5) < 0.01 or abs(by_latency - 2) < 0.01:
    print("a round trip is two messages: halve it")
elif by_latency > 1.01:
    print(f"{by_latency:.2f} times the latency: the bytes of the small message take time, too")
else:
    is_right = abs(by_latency - 1) < 0.01 and abs(by_bandwidth - 1) < 0.01
    print("right" if is_right else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `byte_s = (large_trip_s - small_trip_s) / 2 / (large - small)` is the time of one byte. Then
#
# `return small_trip_s / 2 - small * byte_s, 1 / byte_s`.
#
# The latency is 30 us, and the bandwidth is 1.25 GB/s. Half of the small trip is 46 us. That is not the
# latency, because 20,000 bytes take 16 us of it.
#
# </details>
#
# Now take a real size. The gradient of ResNet-50, a network that classifies images, has 25,557,032
# numbers (torchvision's count), in float32. Take Ethernet of 1, 10 and 100 Gbit/s, each with 50 us of
# latency. How long does one message with the whole gradient take? And how long does it take to send each
# parameter tensor in its own message? ResNet-50 has 161 parameter tensors: one in each of 53
# convolutions, two in each of 53 batch norms, and two in the linear layer.

# %%
in_one, in_many = None, None  # ms on 100 Gbit/s: in one message, in 161?

gradient_nbytes, tensors = 25_557_032 * 4, 53 + 2 * 53 + 2
for name, network_Bps in [("1 Gbit/s", 0.125e9), ("10 Gbit/s", 1.25e9), ("100 Gbit/s", 12.5e9)]:
    one_s = 50e-6 + gradient_nbytes / network_Bps
    many_s = tensors * 50e-6 + gradient_nbytes / network_Bps
    print(f"{name:>10}: {one_s * 1e3:7.1f} ms in one message, {many_s * 1e3:7.1f} ms in {tensors}")
simlib.guess(in_one, one_s * 1e3, within=0.05)
simlib.guess(in_many, many_s * 1e3, within=0.05)

# %% [markdown]
# On the slowest network the 160 extra latencies hardly matter. On the fastest network they nearly double
# the time. The faster the network, the more it helps to send few, large messages.
#
# ## What if the network were slow?
#
# How fast would your program be on another network? `simulate` does not know how long your computation
# takes. But a recorded run of real processes contains this time. `run.replay(cluster)` keeps the time
# that each rank spent between its messages. It only recalculates the times of the messages, and it does
# not execute the program again.
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
simlib.guess(guess, replayed.time_s * 1e3, within=0.1)
replayed

# %% [markdown]
# On 1 Gbit/s each round takes 50 ms of work and 32 ms of transfer, so three rounds take 246 ms. The
# replay shows a little more. It also keeps the time to create the tensors, and a real sleep takes longer
# than requested. (The two directions of a link do not slow each other down.) On the two faster networks
# nearly all of the time is work, so their times hardly differ. Do a replay before you pay for a better
# network. The picture shows the run on 1 Gbit/s. More than a third of both lanes is pale: no rank waits
# for another, but the link is slow.
#
# ## Break it: a third rank
#
# The first program, `ptdist.py`, says `if rank == 0 ... else ...`, and works on two ranks. Now run it on
# three. Every call in it is legal. Which rank has a problem, and in which line? (The cell is meant to
# fail.)

# %% tags=["raises-exception"]
guess = None  # which rank, and in which line?

simlib.run(main, world_size=3)

# %% [markdown]
# Rank 2 runs the `else` branch too, and waits for a message from rank 0. But rank 0 has sent its only
# message to rank 1, and has finished. In the picture, the arrow points from the waiting rank to the rank
# for which it waits. `else` means *every* other rank, so with four ranks two would wait, and with 64
# ranks 62 would wait. `simlib` reports this at once, because the message *cannot* come any more. With
# plain Gloo, rank 2 hangs as long as the process of rank 0 lives, and you pay for that time. Then rank 2
# fails with "Connection closed by peer".
#
# The fix depends on what the program should do. Here every rank should get the numbers, for every world
# size, even for one rank. **Now you write it.**


# %%
def main(rank, world_size):
    x = torch.tensor([1.0, -1.0]) if rank == 0 else torch.zeros(2)
    # your lines: rank 0 sends x to each other rank, and these receive it
    return x.tolist()


for world_size in (1, 2, 3, 5):
    run = simlib.run(main, world_size)
    is_right = run.results == [[1.0, -1.0]] * world_size
    print(f"world size {world_size}: {'right' if is_right else 'not yet'}, messages {run.messages}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     if rank == 0:
#         for dst in range(1, world_size):
#             dist.send(x, dst=dst)
#     else:
#         dist.recv(x, src=0)
#
# </details>
#
# Rank 0 sends n - 1 messages, one after the other, so with n ranks this takes (n - 1) x (latency +
# nbytes / bandwidth). This job is called *broadcast*. Lesson 04 has a call for it, and the exercise of
# lesson 04 has a faster way.
#
# ## Your turn
#
# [Exercises 02](../exercises/02_send_and_recv.ipynb): a running total along the ranks, a shift around
# the ring, and tensors whose lengths only their owners know.
#
# ## Exit ticket
#
# 1. `send` has returned. What may you do now, and what do you not know?
# 2. A network has 100 us of latency and a bandwidth of 1 GB/s. At which size does a message need half of
#    its time for latency?
# 3. What does `time.perf_counter()` return on a rank under `run`, and what under `simulate`?
#
# <details><summary>Answers</summary>
#
# 1. You may change the tensor. You do not know whether the other side has the message. With an eager
#    send, the other side may not even have called `recv`.
# 2. At a size of 100e-6 s x 1e9 bytes/s = 100,000 bytes. Larger messages need most of their time for
#    their bytes.
# 3. Under `run` it returns seconds of this machine. Under `simulate` it returns seconds of the rank's
#    virtual clock, which belongs to the modelled network.
#
# </details>
#
# **Next:** [lesson 03, when it hangs](03_when_it_hangs.ipynb).
