# %% [markdown]
# # 02 Send and receive
#
# Everything that ranks ever do together can be built from two calls: one rank sends a tensor,
# another receives it. In this lesson (85 minutes) you will
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
# Rank 0 has two numbers, rank 1 wants them. Both run the same function, and the `if` says which
# part is whose. The receiver must bring a **holder**: a tensor into which the numbers will be
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
# Rank 1 began with zeros and ended with the numbers of rank 0. Note what did *not* happen: `recv`
# returned no tensor. It wrote into the one it was given. And the two tensors are two: what rank 0
# does to `x` afterwards does not reach rank 1, which is another process.
#
# The picture is that of the simulation, which is the same in every repeat; a real one also shows what
# else the machine was doing. Both ranks come at once, and for 30 us the message is on its way (pale).
# On real ranks one comes first and waits for the other (hatched).
#
# ## The same as a script
#
# On the web this program is a file, usually called `ptdist.py`, which starts the process group itself.
# Older ones name the backend `mpi` (lesson 01). PyTorch from pip does not contain it, so `simlib` takes
# Gloo in its place, and such files run here as they are. In a terminal you would type
#
#     python -m simlib run -n 2 ptdist.py
#     python -m simlib simulate -n 2 ptdist.py
#
# for two real ranks, or for two of a modelled cluster (lesson 00). The cell gives `simlib` the same
# two commands without a terminal, because a new Python would spend seconds on loading PyTorch. What
# will differ between the two tables?

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
# One message of 8 bytes in both: two float32 numbers, 4 bytes each. The last line of a table says
# which line of the file sent it. The second table says *simulated* and ends with a time, because a
# virtual clock gives the same time in every repeat: 30 us (microseconds) before anything arrives,
# then 8 bytes at 1.25 billion bytes per second. That is Ethernet of 10 Gbit/s, which `simulate`
# takes unless you name another network.
#
# ## "ssh carries the data"
#
# On a cluster, one line typed on one machine starts the same file:
#
#     mpiexec -n 2 -ppn 1 -hosts node1,node2 python ptdist.py
#
# `-n 2` asks for two **processes** in all, not for two machines; `-ppn 1` puts one on each node.
# It needs a PyTorch with MPI, or `python -m simlib.mpi`, which brings mpi4py's MPI under that
# name. Here it runs with real MPI on this machine; [lesson 16](16_the_real_cluster.ipynb) adds `-hosts`.

# %%
mpiexec = Path(sys.executable).with_name("mpiexec")
line = [mpiexec, "-n", "2", sys.executable, "-m", "simlib.mpi", script]
if mpiexec.exists():
    print(subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout)
else:
    print('no MPI is installed here: pip install "simlib[cluster]"')

# %% [markdown]
# `mpiexec` logs in to the nodes with ssh. So the numbers travel through ssh, one would think. Here
# the notebook starts the ranks. Do their messages pass through it? Each end of a connection has a
# number on its machine, its **port**. `psutil` lists the connections of a process: `laddr` is the near
# side, `raddr` the far one. Below, each rank lists its pairs of ports, and so does the notebook.
# (A guess of a number, of True or False, or of one of few words is answered by `simlib.guess`.)

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
# One connection, and its two ends are the two ranks. The notebook here, `mpiexec` and ssh on a
# cluster (lesson 01), only **start** the ranks. Then the ranks connect to each other, and the data
# take that road. So a working ssh does not prove that the ranks can reach each other: a firewall may
# let ssh through and nothing else.
#
# ## A holder of the same shape
#
# The shape and the dtype of a tensor do not travel. Only its bytes do, and they are written into
# the holder one after the other. So the receiver must know beforehand what will come: the holder
# needs the same number of elements and the same dtype as what is sent. Here rank 0 sends four
# numbers, and rank 1 has room for two. What should happen: two numbers arrive, or there is an
# error? On which rank? (If the cell fails, it is meant to: go on with the next one, as Run All does.)

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
# expected, in which lines. `simlib` has compared the two calls. Elsewhere nobody does. With plain
# Gloo the receiver's process dies here. If the holder is too *large*, Gloo fills its front, leaves
# the rest as it was, and says nothing. If it has the wrong dtype, the bytes are taken for other
# numbers, and again Gloo says nothing.
#
# The mend: both sides agree. Where only the sender knows the size, it sends the size first, as a
# message whose own size is fixed: one int64 number.


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
# immediate). It prints that, and finishes. Rank 1 never asks for the message. What does rank 1
# return when all is over? If "sent" means "delivered", it cannot be zeros.

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
# Zeros. A message changes nothing on the other side until that side **receives** it. The line that
# says `unfinished` is a *finding* of `simlib`: nothing failed, but something was left over. (There
# is a second fault: `isend` and `irecv` give back a *request*, and nobody called `request.wait()`.
# Until `wait` has returned, the message may still be on your side, and the holder of an `irecv` may
# still be empty.)
#
# Now the blocking `send`. In the next run rank 1 is busy for 200 ms before it receives. When does
# `send` return on rank 0: at once, or after 200 ms? We ask real ranks with Gloo, and simulated
# ranks under two rules, both of which the MPI standard allows: `rendezvous` and `eager`.

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
# In the picture, real rank 0 waits: Gloo's `send` returns when the receiver has taken the message.
# That is the **rendezvous** rule: both sides must meet. Under the **eager** rule the message is
# copied away and `send` returns at once: 0.00000 s, 200 ms *before* rank 1 has anything. Many
# libraries send small messages eagerly and large ones by rendezvous.
#
# What `send` promises under every rule is only this: **when it returns, you may change `x` again.**
# A program that counts on more works with one library and hangs with another (lesson 03).
#
# ## Both directions at once
#
# Two ranks want to swap tensors. If both call `send` first, both wait for a receiver, and nobody
# receives (lesson 03). With `isend` a rank has its message under way and receives in the meantime.
# `request.wait()` returns when the operation is finished. Until then, hands off the tensor! **Now you
# write it**, three lines.


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
# `irecv` is the other half. Below, rank 0 works for 80 ms before it sends. Rank 1 asks for the
# message at once, works for 100 ms, and calls `wait` only when it needs the numbers. How long will
# rank 1 wait there (the hatched part of its lane), and when is it done?

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
# It waits next to nothing: the message came while it worked. (The strip along the bottom is the receive
# under way; the arrow ends in `wait`, where rank 1 learned of it.) This is called *overlap*. With a `recv`
# in the place of the `irecv`, rank 1 would begin its work only after 80 ms: 180 ms in all, not 100.
# Overlap hides most of the communication of a training step ([lesson 08](08_from_loops_to_ddp.ipynb)).
#
# ## Around the ring
#
# Four ranks stand in a ring. Rank 0 sends a zero to rank 1. Each rank adds its own rank to what it
# receives, works for 50 ms and passes the sum on; the last rank gives it back to rank 0.
# `(rank + 1) % world_size` is the right neighbour, for the last rank too. (A world of one has no
# rank 1 to send to.) What does each rank return? How many messages are sent?

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
# A staircase. Rank 0 has 0 + 1 + 2 + 3 = 6 in the end, after 4 messages. And at any moment only
# **one** rank works. With n ranks, and a time T for one message,
#
# $$T_\text{ring} = n \, T + (n - 1) \, T_\text{work}$$
#
# Here that is 150 ms of work and four messages. More ranks have made nothing faster. The ring is a
# good road, badly used: in lesson 05 every rank sends at the same time, each another part of the
# data, and the ring adds up large tensors as fast as any road can. The second picture, the heat
# map, shows who sent how many bytes to whom: one row per sender.
#
# Does the formula hold for large rings? `simulate` needs no 1,024 processes: its ranks have a
# virtual clock, and there `time.sleep` takes no time of yours. Work out the formula for 64 ranks on
# the 10 Gbit/s Ethernet, with T = 30.0032 us for a message of 4 bytes.

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
# Equal, to the microsecond. The picture is that of 16 ranks. With 1,024 ranks one sum takes 51 seconds.
#
# ## Tags
#
# Two messages from the same sender to the same receiver: which is which? By default the first sent
# is the first received. A **tag**, a number given on both sides, tells them apart. Below, rank 0
# sends a 1 with tag 10, then a 2 with tag 20. (It uses `isend`: a blocking `send` of tag 10 would
# wait for a receive that only comes second.) Rank 1 receives into `a` first: once with tag 20, once
# with tag 30, which nobody sends. What is in `a`, and what happens with tag 30?

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
# A receive takes the first message whose **source and tag** both fit, and lets others lie. A tag
# that nobody sends is waited for without end. `simlib` sees that it can never come, and says so;
# elsewhere the program stands still.
#
# ## How long does a message take?
#
# Measure it. Two ranks play *ping-pong*: a tensor goes over and comes back, and half of the round
# trip is the time of one message. We take the best of 100 trips, because whatever else the machine
# does can only make a trip longer. A message of 4 MB has a million times as many bytes as one of 4
# bytes. How many times longer does it take?

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
# Not nearly a million. A thousand small messages cost far more than one large message with the same
# bytes. Two numbers explain most of the table:
#
# $$T(\text{nbytes}) = \text{latency} + \frac{\text{nbytes}}{\text{bandwidth}}$$
#
# The **latency** is paid for every message, however small. The **bandwidth** is how many bytes per
# second then flow. The next cell finds the two numbers whose line passes nearest to the measured
# points (least squares). A point counts by its *relative* distance from the line, the weight 1/T:
# otherwise the largest message, with the longest time, would decide alone.


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
# On the left the line is flat: only latency counts, and bytes are free. On the right it rises in
# proportion: only bandwidth counts. The two dotted lines cross at $n_{1/2}$ = latency x bandwidth
# bytes, where both cost the same. It is the most useful number of a network: **messages smaller than
# this waste time, and should be put together.** (Both ranks are on one machine, so you have measured
# memory and the operating system, not a network. And the recorder of `simlib` adds some microseconds
# to each call.)
#
# **A lab:** the same picture with sliders, for the mouse or the arrow keys. Can you bring the line
# nearer to the points than the fit did? Which points belong to the latency, which to the bandwidth?
# Then move the size: how much of the bandwidth does a message of 4 kB use, and one of $n_{1/2}$?

# %% tags=["nbval-ignore-output"]
labs.ping_pong_lab(points, latency_s, bandwidth_Bps)

# %% [markdown]
# ## The same ping-pong on other networks
#
# `ping_pong` measures itself, with `time.perf_counter`. Inside `simulate` that function reads the
# rank's virtual clock. So the unchanged program can measure a network that you do not have. Take
# two: Ethernet of 1 Gbit/s with a latency of 50 us, and InfiniBand, a network of supercomputers,
# with 200 Gbit/s and 2 us. We give these numbers to the simulation; the program knows nothing of
# them. Which will the fit find, and how far from its line will the points lie? And which of the two
# has the larger $n_{1/2}$: whose messages have to be larger to make good use of it?

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
# What was put in comes out, without any error. So the fit can be trusted: it finds the two numbers
# where they are known. And the modelled network *is* the formula: a message pays the latency once,
# then its bytes flow at the bandwidth. The points of your own machine lay off the line, because a
# real machine is more than two numbers.
#
# Now compare latency x bandwidth. InfiniBand is better in both numbers, and yet its messages have
# to be *larger* (50,000 bytes) than those of the slow Ethernet (6,250).
#
# **Now you write it.** On a third network two *round trips* were measured, of 20,000 bytes and of
# 2,000,000. Two points are enough for a line: which latency and bandwidth has it?


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
# `byte_s = (large_trip_s - small_trip_s) / 2 / (large - small)`, and
# `return small_trip_s / 2 - small * byte_s, 1 / byte_s`: 30 us, 1.25 GB/s. The small trip halved is 46 us:
# no latency, for 20,000 bytes take 16 of them.
#
# </details>
#
# Now at real size. The gradient of ResNet-50, a network that classifies images, has 25,557,032
# numbers (torchvision's count), in float32. Take Ethernet with 50 us of latency, for all three. How
# long does one message with the whole gradient take? And if each parameter tensor is sent on its
# own? ResNet-50 has 161: 53 convolutions with one tensor each, 53 batch norms with two, one linear
# layer with two.

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
# On the slow network the 160 extra latencies hardly matter. On the fast one they nearly double the
# time. The faster the network, the more it pays to send few, large messages.
#
# ## What if the network were slow?
#
# You have a program that runs on this machine. How fast would it be on another network? `simulate`
# does not know how long your computing takes. `run.replay(cluster)` does: it takes a recorded run
# of real processes, keeps what each rank did between its messages as long as it was, and times only
# the messages anew. Nothing is executed again.
#
# Below, two ranks work for 50 ms and swap 4 MB, three times. On 1 Gbit/s a byte takes 8 ns. How
# long will the three rounds take there?

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
# Each round costs the work and one transfer: 50 + 32 ms on 1 Gbit/s, so 246 ms in all, and a little
# more: making the tensors is kept too, and a real sleep lasts longer than it was asked to. (The two directions of a
# link do not disturb each other.) On the two faster networks the work is nearly everything, so they
# hardly differ: do a replay before you pay for a better network. The picture is that of 1 Gbit/s;
# more than a third of both lanes is pale: nobody waits for anybody, the link is slow.
#
# ## Break it: a third rank
#
# Back to the first program, that of `ptdist.py`. It says `if rank == 0 ... else ...`, and works on
# two ranks. Now run it on three. Every call in it is legal. Which rank is in trouble, and in which
# line? It is meant to fail: go on with the next cell.

# %% tags=["raises-exception"]
guess = None  # which rank, and in which line?

simlib.run(main, world_size=3)

# %% [markdown]
# Rank 2 runs the `else` branch too, and waits for a message from rank 0. But rank 0 has sent its
# only message to rank 1, and has finished. The arrow in the picture says who waits for whom. With
# four ranks, two would wait, with 64 ranks 62: `else` means *every* other rank. `simlib` tells this
# at once, because the message *cannot* come any more. With plain Gloo rank 2 stands still as long
# as the process of rank 0 lives, and you pay for it; then it fails with "Connection closed by
# peer".
#
# The mend depends on what was meant. Here: every rank shall have the numbers, in a world of any size,
# even of one. **Now you write it.**


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
# Rank 0 sends all n - 1 messages, one after the other, so this takes (n - 1) x (latency + nbytes /
# bandwidth). This job is called *broadcast*. Lesson 04 has a call for it, and its exercise a faster
# way to do it.
#
# ## Your turn
#
# [Exercises 02](../exercises/02_send_and_recv.ipynb): a running total along the ranks, a shift
# around the ring, and tensors whose lengths only their owners know.
#
# ## Exit ticket
#
# 1. `send` has returned. What may you do now, and what do you not know?
# 2. A network has 100 us latency and 1 GB/s. From which size on is a message worth its latency?
# 3. What does `time.perf_counter()` tell a rank under `run`, and what under `simulate`?
#
# <details><summary>Answers</summary>
#
# 1. You may change the tensor. You do not know whether the other side has it: with an eager send it
#    may not even have asked.
# 2. At 100e-6 s x 1e9 bytes/s = 100,000 bytes latency and transfer cost the same; above that the bytes
#    dominate.
# 3. Seconds of this machine; seconds of the rank's virtual clock, which belongs to the modelled
#    network.
#
# </details>
#
# **Next:** [lesson 03, when it hangs](03_when_it_hangs.ipynb).
