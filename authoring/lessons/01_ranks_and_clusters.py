# %% [markdown]
# # 01 Ranks and clusters
#
# Lesson 00 started four ranks on your machine. This lesson says why we want more than one rank, where
# ranks run, and what starts them. In about 50 minutes you will
#
# - work out why one device is not enough, for training, evaluation and inference,
# - start processes with a real launcher, and learn how to see that a launcher is missing,
# - find out what `-n` counts, and whether rank 0 is special,
# - ask torch for a backend that it does not have,
# - run one program on five networks.
#
# Where a cell says **now you write it**, write one or a few lines. The cell says whether they are right.
# The appendix covers the history of MPI, what ssh carries, what a cluster needs, and numbers that
# vendors give for their devices.

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
# There are three reasons. You may have more **examples** than one device can process in good time. You
# may have more **parameters** than one device can store. Or people wait for the **answer**, and one
# device is too slow. (A *device* is a processor with its own memory, for example a GPU.)
#
# We begin with the second reason. GPT-3 has 175 billion parameters. In training, each parameter needs 16
# bytes. The parameter and its gradient take 2 bytes each (16 bits). A more exact copy of the parameter
# and two averages that the optimizer Adam keeps take 4 bytes each (32 bits). (Lesson 10 also counts 16
# bytes, but there everything takes 4 bytes. The two sums agree by chance.) Our device is Nvidia's H100.
# It stores 80 GB.
#
# **Now you write it:** how many devices do you need just to *store* such a model?


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
# `return -(-parameters * bytes_each // device_nbytes)`, or `math.ceil` of the quotient. (`//` rounds
# down. The two minus signs make it round up.) 7 billion parameters need 1.4 devices, so you need two.
#
# </details>
#
# Now the first reason. GPT-3's training took 3.14e23 operations. An H100 does at most 989e12 operations
# per second. How many years would one H100 take? Another example is ResNet-50, a network that classifies
# images. It was trained in one hour on 256 GPUs. 256 GPUs are 32 times as many as 8 GPUs, but they
# reached only 90 % of 32 times the speed of 8 GPUs. How many hours would 8 GPUs take?

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
# So one device *cannot* train a large model. Even for a medium-sized model, 8 GPUs need more than a day
# instead of an hour. **Distributed computing** means that several computers work on one problem. A
# network connects them, and each computer has its own memory. One such computer is a **node**. All of
# them together are a **cluster**.
#
# Training is not the only job that we distribute. Below, four ranks do three jobs: a training step, an
# evaluation, and inference, which means giving answers to users. Each rank has its own five examples.
# All ranks have the same model of 3 parameters, with 4 bytes each. How many bytes must each rank
# contribute to sums over all ranks, in each job?


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
# together (lesson 04). Training needs the sum of the gradients **in every step**, and there are as many
# gradients as parameters. This is **data parallel training**. Evaluation needs two sums **once**: the
# number of right answers, and the number of all answers. Inference on independent examples needs **no
# sum**, as long as the model fits into one device.
#
# ## Layers of parallelism
#
# | layer | they share | they communicate through |
# |---|---|---|
# | **threads** of one process | its memory | that memory |
# | **devices** (GPUs, TPUs) of one computer | the computer, not their memories | PCIe (the computer's own bus), NVLink (between GPUs) |
# | **nodes** (computers) of a cluster | a network, perhaps a filesystem | messages |
#
# A large run uses all three layers. This course is about the last two layers. There, processes share no
# memory and send messages.
#
# ## What a launcher does
#
# Outside a notebook, a **launcher** starts the ranks. One launcher is `mpiexec`. It belongs to **MPI**
# (Message Passing Interface). MPI is a *standard*, which is a text that defines functions and what they
# do. The course has installed MPICH, a library that implements this standard, and `mpi4py`, which makes
# MPI available in Python. `-n 4` asks for four processes. What will the cell print?

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
# Four processes ran the same file, and each found its own number. A **communicator** is a group of
# processes that can exchange messages. `COMM_WORLD` is the communicator of all processes that were
# started together. These processes are the **world**. Each process has a number in its world, counted
# from 0. This number is its **rank**. (We also call the process itself a rank.) The lines can come in
# any order. Run the cell again to see another order. (`simlib` sorts lines by rank. So the order of
# lines does not tell you which event came first. Only messages tell you this, as the appendix shows.)
#
# What did `mpiexec` add? The next cell starts `hello.py` twice without `mpiexec`. Each process will
# print "I am rank 0 of" and a number. Which number? Then the cell prints two environment variables that
# `mpiexec` sets for each process. (MPICH calls them `PMI_RANK` and `PMI_SIZE`. Other implementations use
# other names.)

# %%
world = None  # rank 0 of ...?

for _ in range(2):
    print("without mpiexec:", run_command(python, "hello.py"), end="")
simlib.guess(world, 1)
look = "import os; print('PMI_RANK', os.environ['PMI_RANK'], 'PMI_SIZE', os.environ['PMI_SIZE'])"
print(*sorted(run_command(MPIEXEC, "-n", 4, python, "-c", look).splitlines()), sep="\n")

# %% [markdown]
# Without a launcher each process is alone in its own world. A launcher gives each process its rank, the
# world size, and the addresses of the others. If **every process says "rank 0 of 1"**, there was no
# launcher, or the launcher belongs to another MPI implementation. Remember this symptom. Such a job
# often raises no error: four processes all do the same work.
#
# So a program should compare the size of its world with the size that was asked for. **Now you write
# it**: add one line to the script, which is the text between the triple quotes. If `size` and `asked`
# differ, the line ends the program with `sys.exit("...")`.

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
# In both programs every rank has one number, and all ranks get the sum of these numbers. `mpiexec`
# starts the first program, and `simlib.run` starts the second. Which call of the first program
# corresponds to which call of the second?

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
# `Get_rank` corresponds to `get_rank`, `Get_size` to `get_world_size`, and `Allreduce` to `all_reduce`.
# (The appendix has a longer table.) In both cases all ranks run one program. Where ranks have different
# tasks, the program says `if rank == 0: ... elif ...`. This style is *single program, multiple data*,
# **SPMD**. On a cluster, torch's own launcher is `torchrun` (lesson 16). Our launcher is `simlib.run`.
#
# ## What does `-n` count?
#
# An article says that `-n 2` is "the number of nodes", and that the world is "all the nodes" (A. Das,
# *Setting up distributed cluster*, December 2018). But above, four ranks ran on one computer. `-n`
# **counts processes**, and the world consists of processes. `-hosts node1,node2 -ppn 4` says on which
# nodes the processes run. It puts 4 processes on each node, so ranks 0 to 3 run on the first node. **Now
# you write it**, in one line: return two numbers. The first is the node on which a rank runs. The second
# is the rank's number on that node, which is called its **local rank**. Count both from 0.


# %%
def place(rank, per_node):
    return None  # your line: (node, local rank)


places = [place(rank, per_node=4) for rank in range(8)]
expected = [(node, local) for node in range(2) for local in range(4)]
print(places, "right" if places == expected else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return rank // per_node, rank % per_node`, or `divmod(rank, per_node)`. In the third exercise of this
# lesson, ranks fill the nodes in another order.
#
# </details>
#
# Does it matter where ranks run? Each of eight ranks has a tensor of 10 MB, and `all_reduce` adds up
# these tensors. We do this three times: on 8 nodes with one rank each, on 2 nodes with four ranks each,
# and on one node. Between nodes, the network carries 10 Gbit/s, which is 1.25 GB/s. Inside a node, ranks
# exchange 50 GB/s. Will the sums differ? Which number of nodes is fastest, and which is slowest?

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
# The world size and the sum are the same in all three runs. The times differ. One node is fastest,
# because no message leaves the node. Two nodes are faster than eight, because this algorithm first adds
# up inside the nodes. An algorithm that begins with messages between the nodes is slower on two nodes
# than on eight (lesson 05).
#
# ## Backends: what moves the data?
#
# `torch.distributed` is only an interface. A **backend** behind it moves the data: Gloo for CPUs, NCCL
# for Nvidia's GPUs. Many tutorials begin with `init_process_group("mpi")`, and MPI is installed here.
# Will this call work?

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
# The call fails. The torch that pip installs was built without MPI, and installing MPI later does not
# change that. You can build torch yourself, use Gloo, or use MPI through mpi4py. (Inside `simlib.run`,
# `"mpi"` means "the backend that is available". So you can run programs from the web without changing
# them.) `is_available()` only says that this torch contains `torch.distributed`. `is_initialized()` is
# false in the notebook, because the notebook is not a rank.
#
# ## Rank 0 is a convention
#
# A slide of a good course says "Rank 0: main, Rank >0: worker" (N. S. Detlefsen, *Scaling applications*,
# DTU course 02476, January 2024). But a rank is only a number. The **root** of a collective is the rank
# that gives or receives the data. Any rank can be the root.
#
# Below, one rank sets a learning rate, and **then all ranks meet at a barrier**: each rank waits there
# until all have arrived. Which rate do the other ranks have after the barrier? They still have their
# own, 0.1, because a barrier carries no data. So the rank that decides must also send its decision.
#
# Every rank calls `dist.broadcast_object_list(chosen, src=3)` with a list `chosen` of the same length.
# Then all these lists contain what rank 3's list contains. A list may contain any Python objects. **Now
# you write it**, for every `decider`.


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
# People choose rank 0 because it exists in every world. But if one rank gathers, logs and saves for all
# ranks, the other ranks wait for it. You can give these jobs to different ranks.
#
# ## Ethernet, and faster networks
#
# **Ethernet** connects nearly all computers. On Ethernet a message passes through the operating system
# on both sides. With **InfiniBand** the network card writes directly into the other node's memory,
# without the operating system. This is called RDMA (remote direct memory access). **NVLink** connects
# the GPUs of one node.
#
# Two numbers describe a network. The **bandwidth** is the number of bits or bytes that it carries per
# second. The **latency** is the time that every message takes, however small it is.
#
# | network | where | bandwidth | latency |
# |---|---|---|---|
# | Ethernet | in a room | 1 Gbit/s | 50 us |
# | Ethernet | in a data centre | 10 Gbit/s | 30 us |
# | Ethernet | in a data centre | 100 Gbit/s | 20 us |
# | InfiniBand (HDR) | in a data centre | 200 Gbit/s | 2 us |
# | NVLink | inside a node | 150 GB/s each way | 5 us |
#
# The bandwidths come from the standards. The latencies are rounded. `simlib.clusters` names each source.
#
# Eight ranks add up a tensor. InfiniBand has 200 times the bandwidth of the slowest Ethernet. How many
# times faster than this Ethernet will InfiniBand be for a tensor of one number? And for a tensor of ten
# million bytes?

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
# For one number, InfiniBand is 25 times faster. A small tensor needs nearly all of its time for
# **latency**, and InfiniBand's latency is 25 times shorter (2 us instead of 50 us). For ten megabytes,
# InfiniBand is nearly 200 times faster, because a large tensor needs most of its time for its bytes, and
# these depend on the **bandwidth**. The lines in the picture are flat on the left, where latency
# dominates. They are steep on the right, where bandwidth dominates. The lines of InfiniBand and NVLink
# cross. NVLink has the higher bandwidth. But in our model it also has the higher latency, because a
# program must first start on the GPU. So the size of a tensor decides which network is "faster". Lesson
# 02 measures latency and bandwidth on your machine.
#
# ## Your turn
#
# [Exercises 01](../exercises/01_ranks_and_clusters.ipynb): distribute examples evenly, bring a report to
# any root, and find out which ranks run on your node.
#
# ## Exit ticket
#
# 1. Every process of a job says "rank 0 of 1". What is the likely cause?
# 2. Think of training, evaluation and inference. Which of them sends most, and how often?
# 3. MPI is installed, and `init_process_group("mpi")` fails. Why?
# 4. You replace Ethernet of 1 Gbit/s by InfiniBand. What kind of program gets 25 times faster, not 200
#    times?
#
# <details><summary>Answers</summary>
#
# 1. There was no launcher, or the launcher belongs to another MPI implementation than the library.
# 2. Training sends most: all its gradients, in every step. Evaluation sends two numbers once. Inference
#    sends nothing.
# 3. This torch was built without MPI. Installing MPI later does not change it.
# 4. It is a program that sends many small messages. Their time is latency, and the bandwidth hardly
#    matters. If the program also computes, it gains less.
#
# </details>
#
# **Next:** [lesson 02, send and receive](02_send_and_recv.ipynb).
#
# ## Appendix: what lessons 02 to 10 do not need
#
# Unfold the texts that you want to read, and the cells below them. Each cell runs without the other
# cells of the appendix.
#
# ### MPI: one standard, four implementations
#
# <details><summary>Who writes it, who implements it, and what happens if you mix two</summary>
#
# The **MPI Forum**, people from universities, laboratories and companies, writes the standard. Talks
# began in 1991. Version 1.0 is from 1994, and 5.0 from June 2025 (mpi-forum.org). MPI does not say how
# messages travel, and it only suggests how to start processes. A library that follows the standard is an
# *implementation*:
#
# | implementation | written by (their own sites) |
# |---|---|
# | MPICH | Argonne National Laboratory and partners (mpich.org) |
# | Open MPI | a consortium of universities, laboratories and companies (open-mpi.org) |
# | MVAPICH | Ohio State University, for fast networks (mvapich.cse.ohio-state.edu) |
# | Intel MPI | Intel, compatible with MPICH (intel.com) |
#
# Das's article calls these four the work of "hardware vendors". But of the four, only Intel MPI comes
# from a hardware vendor.
#
# **What happens if you mix two?** The `mpiexec` of one implementation gives ranks their numbers in its
# own form. The library of another implementation may not understand this form. Then every process says
# "rank 0 of 1", as if you had started it alone. (MPICH's FAQ describes this.) We tried two combinations.
# With MPICH 5.0.2's `mpiexec` and Open MPI 5.0.11's library, every process says "rank 0 of 1", and
# mpi4py prints a warning. With Open MPI's `mpiexec` and MPICH's library, the program ends with an error.
#
# </details>
#
# ### The same calls in MPI, torch and NCCL
#
# <details><summary>A table of names, and two names that are gone</summary>
#
# NCCL is Nvidia's library for communication between GPUs. (Since version 2.28, NCCL also has one call
# each for scatter, gather and all-to-all.) In mpi4py, `comm.Send` sends arrays. `comm.send`, in lower
# case, sends any Python object and is slower.
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
# Two names of older tutorials are gone. Tutorials of 2018 use the backend `tcp`, which torch **no longer
# has**. The documentation of torch 1.0 already lists it only under `torch.distributed.deprecated`. Gloo
# replaced it. `init_method="tcp://..."` still exists, but it is an *address* where ranks meet.
# `dist.reduce_op.SUM` is `ReduceOp.SUM` today.
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
# <details><summary>80 MB arrive although ssh can carry no byte</summary>
#
# Das's article says that synchronization goes over `ssh`. We have no second computer, but `mpiexec` does
# not know that. To reach `node1` and `node2`, `mpiexec` calls ssh, or any other program that we name. It
# calls this program as it would call ssh, with `-x node1 COMMAND`. Our program drops the `-x`, writes
# down the name of the node, and runs the command **here**, on this machine. It closes the input and
# output of the command. Then a rank of one "node" sends 80 MB to a rank of the other.
#
# There were four ranks, but only two calls of our ssh: **ssh only starts** one helper per node. The 80
# MB arrive, although our ssh could not carry a byte. Even the printed line does not travel through ssh:
# each helper connects directly to `mpiexec`, at the address after `-localhost`. The ranks also connect
# to each other without ssh. Here both "nodes" are one computer, so they use its memory. Between two
# computers they use network connections.
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
# <details><summary>Five things, and a command that looks for them</summary>
#
# | needed | because |
# |---|---|
# | nodes in one network that find each other by name (fixed addresses, and a line for each host in `/etc/hosts` or a name server) | ranks connect to each other |
# | the same account on every node | files and processes have an owner, and no command has to name a user |
# | ssh without a password (or a scheduler such as Slurm) | `mpiexec` starts a helper on each node, and nobody is there to type |
# | the same MPI and the same Python, in the same place | every node runs the same command |
# | a common filesystem | every node needs the program and the data |
#
# Once the ranks run, the account and ssh are no longer needed. `simlib.doctor(["node1", "node2"])`, or
# `simlib doctor --hosts node1,node2` in a terminal, checks each host and says what to fix. Without names
# it examines this machine alone: Python, torch and MPI, and two ranks that exchange messages and measure
# a ping-pong. It cannot check ssh, the account and the common filesystem. [Lesson
# 16](16_the_real_cluster.ipynb) runs it on real hosts.
#
# </details>

# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true, "outputs_hidden": true}
simlib.doctor()

# %% [markdown]
# ### Is the order of lines the order of events?
#
# <details><summary>The line of an effect can come before the line of its cause</summary>
#
# Rank 0 prints, **then** sends. Rank 1 receives, **then** prints. But rank 1's line is on top. A process
# keeps its lines in a **buffer**. Rank 1 empties its buffer at once (`flush=True`). Rank 0 empties its
# buffer only when it finishes. `mpiexec` prints lines in the order in which they arrive. If every
# `print` has `flush=True`, the wrong order becomes rarer, but it is still possible: the two lines still
# arrive over two connections.
#
# `simlib` shows lines **by rank**, not by time. In the second cell a **token**, a message that means
# "now it is your turn", goes from the last rank to the first. If you read the lines from the bottom,
# they are in order of time. Only the chain of **messages** determines the order of events.
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
# Torch multiplies matrices with several threads. On an idle machine with two cores, two threads need
# about half the time of one thread. If other programs also use the cores, two threads may even be slower
# than one thread. So each rank of this course has one thread.
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
# <details><summary>Is a vendor's number for one device, for a node, or for a cluster?</summary>
#
# A **CPU** has few fast cores for every purpose. A **GPU** has thousands of slower lanes. They do the
# same operation on many numbers. A **TPU** is built around units that multiply whole matrices. In early
# TPUs a unit has 128 x 128 numbers, and in the v6e 256 x 256 (Google's Cloud TPU documentation). Each
# device has its own memory. The table shows how large this memory is. Two columns are from Detlefsen's
# slides. The last one is from vendors' pages about later devices (read in 2026):
#
# | | slide, "standard" | slide, "maximum" | later |
# |---|---|---|---|
# | CPU | 34-64 GiB | 2 TiB | 6 TB per socket (AMD, EPYC 9004) |
# | GPU | 12 GiB | 80 GiB | 141 GB (Nvidia, H200), 288 GB (B300) |
# | TPU | 64 GiB | **32 TiB** | 192 GiB per chip (Google, TPU7x) |
#
# Does a TPU have 400 times the memory of a GPU? No: the column "maximum" compares one GPU with a
# **cluster** of TPU chips. The cell below counts the chips.
#
# For NVLink in Nvidia's DGX-2H, a paper gives "300 GB/s" (Shoeybi et al. 2019). This number counts both
# directions together. In one direction a GPU sends 150 GB/s, over six links of 25 GB/s each (Nvidia's
# page on NVLink). `simlib` uses 150 GB/s.
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
# Detlefsen's slides also make this claim. To test it, take a step that reads 10 GB of weights once. A
# language model of 10 GB does this for each word that it writes. The first cell below prints how long
# the step takes on seven devices. The CPU has by far the largest memory, but it is the second slowest
# device. Two devices have the same 16 GB, but their times differ by a factor of 2.6.
#
# Capacity decides *whether* the weights fit. Bandwidth decides how long it takes to read them. The
# second cell shows what capacity does. simlib's `Device` has a capacity but no memory bandwidth. The
# cell runs three devices that differ only in capacity. Two of them are equally fast, and the third runs
# out of memory.
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
