# %% [markdown]
# # 01 Ranks and clusters
#
# Lesson 00 started four ranks on your machine. This one says why anybody wants more than one, where ranks
# live, and who starts them. In about 50 minutes you will
#
# - work out why one device is not enough, for training, evaluation and inference,
# - start processes by a real launcher, and know the symptom of ranks that have none,
# - find out what `-n` counts, and whether rank 0 is special,
# - ask torch for a backend it does not have,
# - put five networks under one program.
#
# Where it says **now you write it**, put in a line or a few; the cell says whether they are right.
# MPI's history, words of vendors, what ssh carries, and devices stand in the appendix.

# %%
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist

import simlib

# %% [markdown]
# ## Why distribute at all?
#
# There are three reasons: more **examples** than one device can go through in good time, more
# **parameters** than one device can hold, and people who wait for the **answer**. Put numbers to
# the second. GPT-3 has 175 billion parameters. While it is trained, each needs 16 bytes: itself and its
# gradient in 16 bits, then once more itself and two averages (those of Adam) in 32. (Lesson 10 has 16 bytes,
# too, of another sum: everything in 32 bits. They agree by chance.) A device, here Nvidia's H100, holds
# 80 GB.
#
# **Now you write it:** how many devices are needed only to *hold* such a model?


# %%
def devices_needed(parameters, bytes_each, device_nbytes):
    return None  # your line: a whole number


# Brown et al. 2020, "Language Models are Few-Shot Learners", table D.1: 175e9 parameters
# Rajbhandari et al. 2019 (ZeRO), section 3.1: 16 bytes each, without activations
needed = [devices_needed(parameters, 16, 80e9) for parameters in (175e9, 7e9, 60e6)]
print(needed, "right" if needed == [35, 2, 1] else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return -(-parameters * bytes_each // device_nbytes)`, or `math.ceil` of the quotient. 1.4 devices, which 7 billion
# parameters need, are two.
#
# </details>
#
# Now the first reason. GPT-3's training took 3.14e23 operations; a device does 989e12 per second at
# best. How many years would one take? And ResNet-50 was trained in one hour on 256 GPUs, at 90 % of
# what 32 times 8 GPUs should give. How many hours does that make on 8?

# %%
years, hours = None, None  # your guesses

training_flops = 3.14e23  # Brown et al., table D.1
device_flops_per_s = 989e12  # Nvidia's H100 (SXM) datasheet, dense bfloat16
right_years = training_flops / device_flops_per_s / (365 * 24 * 3600)
print(f"GPT-3 on one device, at its peak all the time: {right_years:.0f} years")
# Goyal et al. 2017: one hour on 256 GPUs, at about 90 % of what 32 times 8 GPUs should give
right_hours = 1 * 256 / 8 * 0.9
print(f"ResNet-50 on 8 GPUs: {right_hours:.0f} hours")
simlib.guess(years, right_years, within=0.3)
simlib.guess(hours, right_hours, within=0.1)

# %% [markdown]
# So a large model *cannot* be trained on one device, and a middle-sized one takes a day, not an hour.
# **Distributed computing** means: several computers, joined by a network, work on one problem, and each has
# a memory of its own. One such computer is a **node**, all of them are a **cluster**.
#
# It is not only for training. Below, four ranks share the data of three jobs: a training step, an evaluation, and
# inference (giving answers). Each looks at its own five examples with the same model of 3 parameters, of 4 bytes
# each. How many bytes must each rank hand over?


# %%
guesses = {"training": None, "evaluation": None, "inference": None}  # bytes from each rank


def job(rank, world_size, kind):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)  # the same on every rank
    torch.manual_seed(rank)
    x, y = torch.randn(5, 2), torch.randn(5, 1)  # this rank's examples
    if kind == "training":
        (model(x) - y).square().mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(gradient)
    elif kind == "evaluation":
        right = ((model(x) > 0) == (y > 0)).sum()
        counts = torch.tensor([right, len(x)], dtype=torch.float32)
        dist.all_reduce(counts)
    return model(x)  # what inference gives to its users


for kind, guess in guesses.items():
    sums = simlib.run(job, world_size=4, args=(kind,)).trace.collectives
    print(f"{kind:10} collectives: {len(sums)}, bytes from each rank: {[c.nbytes for c in sums]}")
    simlib.guess(guess, sum(c.nbytes for c in sums))

# %% [markdown]
# `all_reduce` adds up a tensor over all ranks. It is a **collective**: a call that all ranks make
# together (lesson 04). Training needs the sum of the gradients **in every step**, as many numbers as the
# model has parameters; this is **data parallel training**. Evaluation needs two numbers **once**: how many
# were right, and of how many. Inference on examples that do not depend on each other needs **nothing**, as
# long as the model fits into one device.
#
# ## Layers of parallelism
#
# | layer | they share | they talk through |
# |---|---|---|
# | **threads** of one process | its memory | that memory |
# | **devices** (GPUs, TPUs) of one computer | the computer, not their memories | PCIe (the computer's own bus), NVLink (between GPUs) |
# | **nodes** (computers) of a cluster | a network, perhaps a filesystem | messages |
#
# A large run uses all. This course is about the last two: processes that share no memory and send
# messages.
#
# ## What a launcher does
#
# Who starts ranks outside of a notebook? A **launcher**. One is `mpiexec`, of **MPI** (Message Passing
# Interface), a *standard*: a text that says which functions there are and what they mean. The course has installed
# MPICH, which does what the text says, and `mpi4py`, which gives it to Python. `-n 4` asks for four. What will this print?

# %% tags=["nbval-ignore-output"]
guess = None  # which lines, in which order?

folder = tempfile.TemporaryDirectory()
here, python = Path(folder.name), sys.executable
MPIEXEC = Path(sys.executable).with_name("mpiexec")  # the one that belongs to this Python


def run_command(*command):
    """Run a command; give back what it printed, or what went wrong."""
    options = {"cwd": here, "timeout": 60, "stdin": subprocess.DEVNULL}
    options["env"] = {**os.environ, "PYTHONUNBUFFERED": ""}  # output as Python usually does it
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    return done.stdout or done.stderr


(here / "hello.py").write_text("""
from mpi4py import MPI
comm = MPI.COMM_WORLD
print("I am rank", comm.Get_rank(), "of", comm.Get_size())
""")
print(run_command(MPIEXEC, "-n", 4, python, "hello.py"))

# %% [markdown]
# Four processes ran the same file, and each found out who it is. `COMM_WORLD` is the
# **communicator** of all processes that were started together, the **world**. A process's number in
# it, from 0 on, is its **rank**. The lines come in any order: run the cell again. (`simlib` shows them by rank. Only
# messages order events, as the appendix shows.)
#
# What did `mpiexec` do that you could not? Start `hello.py` twice without it. Rank 0 of how many will
# each be? Then look for what `mpiexec` leaves in the environment of each process, whatever
# it runs (MPICH calls it `PMI_RANK` and `PMI_SIZE`; others have other names).

# %%
world = None  # rank 0 of ...?

for _ in range(2):
    print("without mpiexec:", run_command(python, "hello.py"), end="")
simlib.guess(world, 1)
look = "import os; print('PMI_RANK', os.environ['PMI_RANK'], 'PMI_SIZE', os.environ['PMI_SIZE'])"
print(*sorted(run_command(MPIEXEC, "-n", 4, python, "-c", look).splitlines()), sep="\n")

# %% [markdown]
# Without a launcher each process is alone in a world of its own. With it, each is told
# its rank, the world size, and where to find the others. Remember the symptom: **every process says "rank 0
# of 1"**. No launcher was there, or that of another MPI. Such a job often raises no error: it does the same work
# four times.
#
# So a program should compare the size of its world with what was asked for. **Now you write it**, one line of
# the script: where they differ, end it by `sys.exit("...")`.

# %%
(here / "guarded.py").write_text("""
import sys
from mpi4py import MPI
rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
asked = int(sys.argv[1])
# your line
print("I am rank", rank, "of", size)
""")
together = run_command(MPIEXEC, "-n", 2, python, "guarded.py", 2)
alone = run_command(python, "guarded.py", 2)
print("without a launcher:", alone, end="")
is_right = together.count("I am") == 2 and "I am" not in alone
print("right" if is_right else "not yet: alone it goes on, or two no longer do")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `if size != asked: sys.exit(f"the world has {size} ranks, asked for were {asked}")`
#
# </details>
#
# ## The same in torch
#
# Side by side: every rank brings its number, and all add them up. The first program is started by
# `mpiexec`, the second by `simlib.run`. What do they have in common, call by call?

# %%
(here / "sum.py").write_text("""
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
rank, world_size = comm.Get_rank(), comm.Get_size()
x = np.array([float(rank)])
comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
print(f"rank {rank} of {world_size} has {x[0]}")
""")
print(*sorted(run_command(MPIEXEC, "-n", 4, python, "sum.py").splitlines()), sep="\n")


def main(rank, world_size):
    assert (rank, world_size) == (dist.get_rank(), dist.get_world_size())
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    print(f"rank {rank} of {world_size} has {x.item()}")


run = simlib.run(main, world_size=4)

# %% [markdown]
# One program for all, which branches by rank (`if rank == 0: ... elif ...`): *single program, multiple data*,
# **SPMD**. On a cluster torch's own launcher is `torchrun` (lesson 16); `simlib.run` is ours.
#
# ## What does `-n` count?
#
# An article says that `-n 2` is "the number of nodes", and that the world is "all the nodes" (A. Das,
# *Setting up distributed cluster*, December 2018). But above, four ranks had one computer. It **counts processes**, and
# the world is made of them. Where they live is said by `-hosts node1,node2 -ppn 4` (processes per node): ranks 0 to 3 on
# the first. **Now you write it**, one line: on which node, counted from 0, does a rank live, and which is its
# **local rank**, its number on that node?


# %%
def place(rank, per_node):
    return None  # your line: (node, local rank)


places = [place(rank, per_node=4) for rank in range(8)]
expected = [(node, local) for node in range(2) for local in range(4)]
print(places, "right" if places == expected else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return rank // per_node, rank % per_node`, or `divmod(rank, per_node)`. Exercise 3 has nodes that are not
# filled in this order.
#
# </details>
#
# Does it matter where ranks live? Eight ranks add up 10 MB each, on 8 nodes with
# one rank, on 2 nodes with four, and on one node; the nodes are joined by 10 Gbit/s, a node's
# inside carries 50 GB/s. Will the sums differ? Which is fastest, which slowest?

# %%
fastest, slowest = None, None  # 8, 2 or 1 nodes


def add(rank, world_size, numbers):
    x = torch.full((numbers,), float(rank))
    dist.all_reduce(x)
    return world_size, x[0].item()


inside = simlib.Link(latency_s=5e-6, bandwidth_Bps=50e9)
for nodes in (8, 2, 1):
    cluster = simlib.clusters.ethernet_10g(nodes, ranks_per_node=8 // nodes, intra=inside)
    run = simlib.simulate(add, 8, args=(2_500_000,), cluster=cluster)
    print(f"nodes: {nodes}, world size and sum: {run.results[7]}, {run.time_s * 1e3:6.2f} ms")
simlib.guess(fastest, 1, of=(8, 2, 1))
simlib.guess(slowest, 8, of=(8, 2, 1))

# %% [markdown]
# The world is the same, and so is the sum. The time is not. One node is fastest: nothing leaves it.
# Two nodes beat eight, as this algorithm adds up inside the nodes first; with its steps in another order they lose
# (lesson 05).
#
# ## Backends: who does the work?
#
# `torch.distributed` is a front. A **backend** behind it moves the data: Gloo for CPUs, NCCL for Nvidia's GPUs. Many
# tutorials begin with `init_process_group("mpi")`, and MPI is installed here, as you saw. Will it work?

# %%
works = None  # True or False

for name, is_there in {
    "gloo (CPU, TCP)": dist.is_gloo_available(),
    "mpi": dist.is_mpi_available(),
}.items():
    print(f"{name:15} is in this torch: {is_there}")
print("torch.distributed is built in:", dist.is_available())
print("a process group is there now: ", dist.is_initialized())
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        dist.init_process_group("mpi", store=dist.HashStore(), rank=0, world_size=1)
    except RuntimeError as error:
        print(error)
simlib.guess(works, dist.is_initialized(), of=(True, False))

# %% [markdown]
# pip's torch was built without MPI, and an MPI installed later does not change that. Three
# ways: build torch yourself; use Gloo; or speak MPI through mpi4py. (Inside `simlib.run`, `"mpi"` means
# "what is there", so that listings from the web run.) `is_available()` says that torch was built with the
# package, no more; `is_initialized()` is false in the notebook, which is no rank.
#
# ## Rank 0 is a convention
#
# "Rank 0: main, Rank >0: worker" says a slide of a good course (N. S. Detlefsen, *Scaling applications*,
# DTU course 02476, January 2024). But a rank is a number; any may be the **root** of a collective, from which, or
# to which, it goes. Below, one rank sets a learning rate, and **then all meet at a barrier**. Run it: what have the others?
# A barrier orders time; it carries no data. Whoever decides must send.
#
# `dist.broadcast_object_list(chosen, src=3)` sends the list `chosen`, of any Python objects, from rank 3 to
# all others, into lists as long. **Now you write it**, for every `decider`.


# %%
def tune(rank, world_size, decider):
    rate = 0.01 * (decider + 1) if rank == decider else 0.1
    dist.barrier()
    # your lines: every rank has the decider's rate
    return rate


for decider in (0, 2, 3):
    rates = simlib.run(tune, world_size=4, args=(decider,)).results
    is_right = rates == [0.01 * (decider + 1)] * 4
    print(f"rank {decider} decides: {rates}", "right" if is_right else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     chosen = [rate]
#     dist.broadcast_object_list(chosen, src=decider)
#     rate = chosen[0]
#
# </details>
#
# People choose 0 because it exists in every world. But a rank that gathers, logs and saves for all makes the others
# wait: different ranks can have such jobs.
#
# ## Ethernet, and faster networks
#
# **Ethernet** joins nearly all computers: 1 Gbit/s in a room, 10 to 100 and more in a data centre. A
# message goes through the operating system on both sides. **InfiniBand** (HDR: 200 Gbit/s) lets the network
# card write into the other node's memory, past the operating system (RDMA). Between GPUs of one node there is
# **NVLink**, here 150 GB/s each way. Rates are those of the standards, latencies round figures: a message pays 50, 30
# and 20 us on Ethernet of 1, 10 and 100 Gbit/s, 2 on InfiniBand, 5 on NVLink. `simlib.clusters` names each source.
#
# Eight ranks add up a tensor. InfiniBand's rate is 200 times that of 1 Gbit/s. How many times
# faster will it be for one number? For ten million bytes?

# %%
small_times, large_times = None, None  # InfiniBand against 1 Gbit/s

nodes_of = dict.fromkeys(["ethernet_1g", "ethernet_10g", "ethernet_100g", "infiniband_hdr"], 8)
nodes_of["nvlink_nodes"] = 1  # eight GPUs in one
counts = [1, 100, 10_000, 200_000, 2_500_000]
times = {}
for name, nodes in nodes_of.items():
    cluster = getattr(simlib.clusters, name)(nodes=nodes)
    times[name] = [simlib.simulate(add, 8, args=(n,), cluster=cluster).time_s for n in counts]
    small, large = times[name][0], times[name][-1]
    faster = times["ethernet_1g"][0] / small, times["ethernet_1g"][-1] / large
    print(f"{name:14} 4 bytes {small * 1e6:6.1f} us, 10 MB {large * 1e3:7.2f} ms", end=" ")
    print(f"({faster[0]:.0f} and {faster[1]:.0f} x)")
    if name == "infiniband_hdr":
        simlib.guess(small_times, faster[0], within=0.1)
        simlib.guess(large_times, faster[1], within=0.1)

figure, axes = plt.subplots(figsize=(7, 3.6))
colors = ("#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00")
for name, marker, color in zip(times, "os^Dv", colors, strict=True):
    axes.plot([4 * n for n in counts], times[name], marker=marker, color=color, label=name)
axes.set(xscale="log", yscale="log", xlabel="tensor (bytes)", ylabel="virtual time (s)")
axes.legend()
plt.show()

# %% [markdown]
# 25 times for one number: small tensors pay **latency**, and there InfiniBand is 25 times better. Nearly 200
# times for ten megabytes: large tensors pay **bandwidth**. The lines are flat on the left and steep on the
# right: a network is two numbers, not one. InfiniBand and NVLink cross: NVLink has the
# higher rate, and in our model the higher latency too, that of starting a program on the GPU. Which
# network is "faster" depends on the size of what you send. Lesson 02 measures both numbers on your machine.
#
# ## Your turn
#
# [Exercises 01](../exercises/01_ranks_and_clusters.ipynb): deal out examples fairly, bring a report to
# any root, and find out who lives on your node.
#
# ## Exit ticket
#
# 1. Every process of a job says "rank 0 of 1". What is the likely cause?
# 2. A training step, an evaluation, inference: which of them sends most, and how often?
# 3. MPI is installed, and `init_process_group("mpi")` fails. Why?
# 4. You replace 1 Gbit/s by InfiniBand. Which program gets 25 times faster, not 200 times?
#
# <details><summary>Answers</summary>
#
# 1. No launcher, or the launcher of another MPI than the library's.
# 2. Training: all its gradients, in every step. Evaluation two numbers once, inference nothing.
# 3. This torch was built without MPI. Installing MPI later does not change it.
# 4. One of many small messages: it pays latency, not bandwidth. (If it computes as well, less.)
#
# </details>
#
# **Next:** [lesson 02, send and receive](02_send_and_recv.ipynb).
#
# ## Appendix: what lessons 02 to 10 do not need
#
# Unfold what you want to know, also the cells below it: they run by themselves.
#
# ### MPI: a text, and four programs
#
# <details><summary>Who writes it, who implements it, and what if two are mixed</summary>
#
# The **MPI Forum** writes the standard, people from universities,
# laboratories and companies; talks began in 1991, version 1.0 is of 1994, 5.0 of June 2025 (mpi-forum.org). MPI does not
# say how messages travel, and it only suggests how processes are started. Programs that do what it
# says are *implementations*:
#
# | implementation | written by (their own sites) |
# |---|---|
# | MPICH | Argonne National Laboratory and partners (mpich.org) |
# | Open MPI | a consortium of universities, laboratories and companies (open-mpi.org) |
# | MVAPICH | Ohio State University, for fast networks (mvapich.cse.ohio-state.edu) |
# | Intel MPI | Intel, compatible with MPICH (intel.com) |
#
# Das's article calls these four the work of "hardware vendors". Only the last one is a vendor's own.
#
# **Mixed.** A `mpiexec` tells the ranks of its own implementation who they are; another's library may not understand.
# Then every process says "rank 0 of 1", as if started alone (MPICH's FAQ describes it). We tried two: MPICH 5.0.2's `mpiexec`
# with Open MPI 5.0.11's library does so, and mpi4py prints a warning. Open MPI's `mpiexec` with MPICH's library
# ends with an error.
#
# </details>
#
# ### One thing, three words
#
# <details><summary>MPI, torch and NCCL side by side, and two names that are gone</summary>
#
# NCCL is Nvidia's library, between GPUs. (Since its version 2.28 scatter, gather and all-to-all are calls of its own.)
# In mpi4py `comm.Send` moves arrays; `comm.send`, in lower case, moves any Python object and is slower.
#
# | MPI (C) | torch.distributed | NCCL |
# |---|---|---|
# | `mpiexec` | `torchrun` | none |
# | `MPI_Init` | `init_process_group` | `ncclCommInitRank` |
# | communicator | process group | communicator |
# | `MPI_Comm_rank`, `_size` | `get_rank`, `get_world_size` | `ncclCommUserRank`, `ncclCommCount` |
# | `MPI_Comm_split` | `new_group` | `ncclCommSplit` |
# | `MPI_Send`, `MPI_Recv` | `send`, `recv` | `ncclSend`, `ncclRecv` |
# | `MPI_Isend`, `MPI_Wait` | `isend`, `request.wait()` | every call; its CUDA stream |
# | tag | `tag=` | none |
# | `MPI_Bcast` | `broadcast` | `ncclBroadcast` |
# | `MPI_Reduce`, `MPI_Allreduce` | `reduce`, `all_reduce` | `ncclReduce`, `ncclAllReduce` |
# | `MPI_Scatter`, `MPI_Gather` | `scatter`, `gather` | sends and receives in one group |
# | `MPI_Allgather` | `all_gather` | `ncclAllGather` |
# | `MPI_Reduce_scatter_block` | `reduce_scatter` | `ncclReduceScatter` |
# | `MPI_Alltoall` | `all_to_all` | sends and receives in one group |
# | `MPI_Barrier` | `barrier` | none |
# | `MPI_SUM` | `ReduceOp.SUM` | `ncclSum` |
#
# Two old names. The backend `tcp` of tutorials of 2018 is
# **gone**: in the documentation of torch 1.0 it already stands under `torch.distributed.deprecated` only, and
# Gloo took its place. `init_method="tcp://..."` still exists and is something else: an *address* where
# ranks meet. `dist.reduce_op.SUM` is `ReduceOp.SUM` today.
#
# </details>

# %% jupyter={"source_hidden": true, "outputs_hidden": true}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    same = str(dist.reduce_op.SUM) == str(dist.ReduceOp.SUM)
    try:
        dist.init_process_group("tcp", store=dist.HashStore(), rank=0, world_size=1)
    except (RuntimeError, AssertionError) as error:
        print("tcp:", error)
print(caught[0].message)
print("the same operation:", same)

# %% [markdown]
# ### What ssh carries
#
# <details><summary>80 MB through an ssh that is closed</summary>
#
# The article says that synchronization goes over `ssh`. We have no second
# computer, but `mpiexec` does not know that: it reaches `node1` and `node2` through whatever program we
# name, and calls it as it would call ssh, with `-x node1 COMMAND`. Ours drops the `-x`, writes
# down the node, and runs the command **here**, with its input and output closed. Then a rank of one "node" sends 80 MB to one of the other.
#
# Two calls for four ranks: **ssh only starts** one helper per node. The 80 MB arrive, although our ssh could not carry
# a byte. Even the printed line comes by another road: each
# helper connects to `mpiexec` itself, at the address after `-localhost`. And the ranks find roads of their
# own: here, where both "nodes" are one computer, its memory; between two computers, connections over the network.
#
# </details>

# %% jupyter={"source_hidden": true, "outputs_hidden": true}
ssh = here / "ssh_with_closed_mouth"
ssh.write_text("""#!/bin/sh
shift; echo "$1" >> calls; shift
exec sh -c "$*" < /dev/null > /dev/null 2>&1
""")
ssh.chmod(0o755)
(here / "big.py").write_text("""
from mpi4py import MPI
import numpy as np
comm, x = MPI.COMM_WORLD, np.zeros(10_000_000)
if comm.Get_rank() == 0:
    comm.Send(x, dest=3)
elif comm.Get_rank() == 3:
    comm.Recv(x, source=0)
    print("rank 3 of", comm.Get_size(), f"received {x.nbytes:,} bytes")
""")
(here / "calls").unlink(missing_ok=True)
# How to reach nodes, and under which address they reach us.
by = ["-launcher", "ssh", "-launcher-exec", ssh, "-localhost", "127.0.0.1"]
where = ["-hosts", "node1,node2", "-n", 4, "-ppn", 2]
print(run_command(MPIEXEC, *by, *where, python, "big.py"), end="")
print("ssh was called for", sorted((here / "calls").read_text().split()))

# %% [markdown]
# ### What a cluster needs
#
# <details><summary>Five things, and a doctor that looks for them</summary>
#
# | needed | because |
# |---|---|
# | nodes in one network, that find each other by name (addresses that stay, and a line for each host in `/etc/hosts` or a name server) | ranks connect to each other |
# | the same account on every node | files and processes belong to somebody; and no command has to name a user |
# | ssh without a password (or a scheduler such as Slurm) | `mpiexec` starts a helper on each node, and nobody is there to type |
# | the same MPI and the same Python, at the same place | every node runs the same command |
# | a common filesystem | every node needs the program, and the data |
#
# The account and ssh have done their work when the ranks run. `simlib.doctor(["node1", "node2"])`, or `simlib doctor --hosts node1,node2`
# in a terminal, asks each host and says what to mend. Without names it examines this machine alone: Python, torch and MPI, and two
# ranks that greet each other and time a ping-pong; it cannot ask for ssh, the account and the common filesystem.
# [Lesson 16](16_the_real_cluster.ipynb) takes it to real hosts.
#
# </details>

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true, "outputs_hidden": true}
simlib.doctor()

# %% [markdown]
# ### Is the order of lines the order of events?
#
# <details><summary>An effect above its cause</summary>
#
# Rank 0 prints, **then** sends. Rank 1 receives, **then** prints. Yet rank 1's line is on top.
# A process keeps its lines in a **buffer**; rank 1 empties its own
# at once (`flush=True`), rank 0 only at its end. Then `mpiexec` mixes what arrives. With
# `flush=True` everywhere it becomes rarer, not impossible: two lines still travel on two roads.
#
# `simlib` does not pretend: it shows lines **by rank**. In the second cell a **token**, a message that means "now it is
# your turn", goes from the last rank to the first. Read from the bottom, its lines are in order of time. What orders
# events is the chain of **messages**, nothing else.
#
# </details>

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true, "outputs_hidden": true}
(here / "order.py").write_text("""
import time
from mpi4py import MPI
comm = MPI.COMM_WORLD
if comm.Get_rank() == 0:
    print("rank 0: I am about to send")
    comm.send("hello", dest=1)
    comm.recv(source=1)
    time.sleep(0.3)
else:
    print("rank 1: I have received", comm.recv(source=0), flush=True)
    comm.send("thanks", dest=0)
""")
print(run_command(MPIEXEC, "-n", 2, python, "order.py"))


# %% jupyter={"source_hidden": true, "outputs_hidden": true}
def from_the_right(rank, world_size):
    token = torch.zeros(1)
    if rank < world_size - 1:
        dist.recv(token, src=rank + 1)
    token += 1
    print("I print as number", int(token.item()))
    if rank > 0:
        dist.send(token, dst=rank - 1)


run = simlib.run(from_the_right, world_size=4)

# %% [markdown]
# ### Threads
#
# <details><summary>Will two threads halve the time?</summary>
#
# Torch multiplies matrices with several threads. On an idle machine with two cores two need nearly half the time. Where other
# programs want the cores too, they may even be slower than one. So a rank of this course has one.
#
# </details>


# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true, "outputs_hidden": true}
def threads_here(rank, world_size):
    return torch.get_num_threads()


usual = torch.get_num_threads()
print(f"{os.cpu_count()} cores, {usual} threads for torch here, {torch.cuda.device_count()} GPUs")
x = torch.randn(1500, 1500)
for threads in (1, 2):
    torch.set_num_threads(threads)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        x @ x
        seconds.append(time.perf_counter() - start)
    print(f"threads: {threads}, {min(seconds) * 1e3:.0f} ms")
torch.set_num_threads(usual)
print("threads of each rank:", simlib.run(threads_here, world_size=2).results)

# %% [markdown]
# ### Devices and their memory
#
# <details><summary>Numbers of vendors: of one device, of a node, or of the whole?</summary>
#
# A **CPU** has few fast cores for every purpose. A **GPU** has thousands of slower lanes that do the same
# on many numbers. A **TPU** is built around units that multiply whole matrices, 128 x 128 numbers in
# early ones, 256 x 256 in the v6e (Google's Cloud TPU documentation). Each has its own memory. Detlefsen's slides
# say how much; beside them what vendors say of later devices (read in 2026):
#
# | | slide, "standard" | slide, "maximum" | later |
# |---|---|---|---|
# | CPU | 34-64 GiB | 2 TiB | 6 TB per socket (AMD, EPYC 9004) |
# | GPU | 12 GiB | 80 GiB | 141 GB (Nvidia, H200), 288 GB (B300) |
# | TPU | 64 GiB | **32 TiB** | 192 GiB per chip (Google, TPU7x) |
#
# A TPU with 400 times the memory of a GPU? The row compares one GPU with a **cluster**: the cell counts chips. NVLink, too, is sold as
# "300 GB/s" in Nvidia's DGX-2H (Shoeybi et al. 2019): both directions together. One GPU sends at 150
# GB/s, over six links of 25 GB/s each way (Nvidia's page on NVLink), and that is what `simlib` takes.
#
# </details>

# %% jupyter={"source_hidden": true, "outputs_hidden": true}
chips = 32 * 1024 / 32
print(f"32 TiB are {chips:.0f} chips of 32 GiB: one TPU v3 Pod has 1024 (Cloud TPU documentation)")
print(f"by the same count a Pod of 9,216 TPU7x chips has {9216 * 192 / 1024:,.0f} TiB")

# %% [markdown]
# ### Capacity is not bandwidth
#
# <details><summary>"With more memory you get faster data transfer"</summary>
#
# So the slide goes on. Take a step that
# reads 10 GB of weights once, as a language model of that size does for each word it writes. The largest memory is
# the second slowest, and two devices with the same 16 GB differ by 2.6. Capacity decides *whether* something fits,
# bandwidth how long it takes to read. The last cell shows the first half: simlib's `Device` has a capacity, and
# no bandwidth, and three that differ in capacity only are equally fast, or fail.
#
# </details>

# %% jupyter={"source_hidden": true, "outputs_hidden": true}
devices = {  # GB, GB/s: vendors' datasheets; Google's Cloud TPU documentation
    "GPU T4": (16, 320),
    "TPU v5e": (16, 819),
    "TPU v6e": (32, 1638),
    "GPU A100": (80, 2039),
    "GPU H100": (80, 3350),
    "GPU H200": (141, 4800),
    "CPU EPYC 9004": (6000, 12 * 4.8 * 8),  # 12 channels, 4.8e9 transfers/s, 8 bytes each
}
looks = {"CPU": ("^", "#D55E00"), "GPU": ("o", "#0072B2"), "TPU": ("s", "#009E73")}
figure, axes = plt.subplots(figsize=(7, 3.6))
for name, (capacity, bandwidth) in devices.items():
    print(f"{name:13} {capacity:5} GB, {bandwidth:5.0f} GB/s: {10 / bandwidth * 1e3:5.1f} ms")
    marker, color = looks[name[:3]]
    axes.plot(capacity, bandwidth, marker, color=color)
    axes.annotate(name, (capacity, bandwidth), xytext=(7, -4), textcoords="offset points")
axes.set(xscale="log", yscale="log", xlabel="capacity (GB)", ylabel="bandwidth (GB/s)")
axes.set_xticks([10, 100, 1000, 10_000], ["10", "100", "1,000", "10,000"])
axes.set_yticks([300, 1000, 3000], ["300", "1,000", "3,000"])
axes.minorticks_off()
axes.set(xlim=(10, 40_000), ylim=(200, 8000))
plt.show()


# %% jupyter={"source_hidden": true, "outputs_hidden": true}
def multiply(rank, world_size):
    weights = torch.ones(1000, 1000)  # 4 MB
    return (weights @ torch.ones(1000, 8)).sum().item()


for memory_MB in (80, 8, 2):
    device = simlib.Device(flops_per_s=1e12, memory_bytes=memory_MB * 1_000_000)
    cluster = simlib.clusters.ethernet_10g(nodes=2, device=device)
    try:
        run = simlib.simulate(multiply, world_size=2, cluster=cluster)
        print(f"{memory_MB} MB: {run.time_s * 1e6:.0f} us")
    except simlib.OutOfMemoryError as error:
        print(f"{memory_MB} MB: {str(error).partition(';')[0]}")
