# %% [markdown]
# # 01 Ranks and clusters
#
# Lesson 00 started four ranks on your machine. This one says what ranks are, where they live, who
# starts them, and why anybody wants more than one. In about 50 minutes you will
#
# - work out why one device is not enough, for training, evaluation and inference,
# - start MPI processes by a real `mpiexec`, and the same in `torch.distributed`,
# - find out what `-n` counts, what `ssh` carries, and what a line on the screen proves,
# - ask torch for two backends it does not have,
# - read a table of device memories with care,
# - put five networks under one program.

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
# them. GPT-3 has 175 billion parameters, and its training took 3.14e23 operations. While it is trained,
# each parameter needs 16 bytes: itself and its gradient in 16 bits, then once more itself and two
# averages (those of Adam) in 32. A device holds 80 GB and does 989e12 operations per second at best.
# How many devices are needed only to *hold* the model? How many years would one take? And ResNet-50
# was trained in one hour on 256 GPUs, at 90 % of what 32 times 8 GPUs should give: how long on 8?

# %%
guess = None  # devices, years, hours?

# Brown et al. 2020, "Language Models are Few-Shot Learners", table D.1
parameters, training_flops = 175e9, 3.14e23
# Rajbhandari et al. 2019 (ZeRO), section 3.1: mixed precision with Adam, without activations
state_nbytes = 16 * parameters
# Nvidia's H100 (SXM) datasheet: memory, and the peak rate in dense bfloat16
device_nbytes, device_flops_per_s = 80e9, 989e12
print(f"to hold {state_nbytes / 1e12:.1f} TB: {state_nbytes / device_nbytes:.0f} devices")
years = training_flops / device_flops_per_s / (365 * 24 * 3600)
print(f"on one device, at its peak all the time: {years:.0f} years")
# Goyal et al. 2017: one hour on 256 GPUs, at about 90 % of what 32 times 8 GPUs should give
print(f"ResNet-50 on 8 GPUs: {1 * 256 / 8 * 0.9:.0f} hours")

# %% [markdown]
# So a large model *cannot* be trained on one device, and a middle-sized one takes a day where an hour
# would do. **Distributed computing** means: several computers, joined by a network, work on one
# problem, and each has a memory of its own. One such computer is a **node**, all of them are a **cluster**.
#
# It is not only for training. Below, four ranks share the data of three jobs: a training step,
# an evaluation, and inference (giving answers). Each looks at its own five examples with the same
# model. Which jobs must communicate, and what?


# %%
guess = None  # training: ... bytes; evaluation: ... bytes; inference: ... bytes?


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


for kind in ("training", "evaluation", "inference"):
    sums = simlib.run(job, world_size=4, args=(kind,)).trace.collectives
    print(f"{kind:10} collectives: {len(sums)}, bytes from each rank: {[c.nbytes for c in sums]}")

# %% [markdown]
# `all_reduce` adds up a tensor over all ranks. It is a **collective**: a call that all ranks make
# together (lesson 04). Training needs the sum of the gradients
# **in every step**, as many numbers as the model has parameters, here 3; this is **data parallel training**.
# Evaluation needs two numbers
# **once**: how many were right, and of how many. Inference on examples that do not depend on each
# other needs **nothing**, as long as the model fits into one device.
#
# ## Layers of parallelism
#
# Work can be shared at several layers, and a large run uses all of them:
#
# | layer | they share | they talk through |
# |---|---|---|
# | **threads** of one process | its memory | that memory |
# | **devices** (GPUs, TPUs) of one computer | the computer, not their memories | PCIe (the computer's own bus), NVLink (between GPUs) |
# | **nodes** (computers) of a cluster | a network, perhaps a filesystem | messages |
#
# The next cell looks at yours. Torch multiplies matrices with several threads; a rank of this course
# has one, so that four ranks do not fight for two cores. Will two threads halve the time?

# %% tags=["nbval-ignore-output"]
guess = None

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
threads_of_rank = simlib.run(lambda rank, world_size: torch.get_num_threads(), 2).results
print("threads of each rank:", threads_of_rank)

# %% [markdown]
# On an idle machine with two cores: nearly. Where other programs want the cores too: no, and two
# threads may even be slower than one. This course is about the two other layers: processes that share
# no memory and send messages.
#
# ## MPI: a text, and four programs
#
# **MPI**, the Message Passing Interface, is not a program. It is a *standard*: a document that says
# which functions there are and what they mean. The **MPI Forum** writes it, people from universities,
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
# A much-read article (A. Das, *Setting up distributed cluster*, December 2018) calls these four the work of
# "hardware vendors". Only the last one is a vendor's own.
#
# The course has installed MPICH, and `mpi4py`, which makes MPI's functions callable from Python. The
# launcher is called `mpiexec`. `-n 4` asks for four. What will this print?

# %% tags=["nbval-ignore-output"]
guess = None

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
# it is its **rank**. The lines come in any order: run the cell again.
#
# What did `mpiexec` do that you could not do yourself? Start `hello.py` twice without it. What will
# the two say? Then look for what `mpiexec` leaves in the environment of each process (MPICH calls it
# `PMI_RANK` and `PMI_SIZE`; others have other names).

# %%
guess = None  # rank ... of ..., and rank ... of ...?

for _ in range(2):
    print("without mpiexec:", run_command(python, "hello.py"), end="")
look = "import os; print('PMI_RANK', os.environ['PMI_RANK'], 'PMI_SIZE', os.environ['PMI_SIZE'])"
print(*sorted(run_command(MPIEXEC, "-n", 4, python, "-c", look).splitlines()), sep="\n")

# %% [markdown]
# Without a launcher each process is alone in a world of its own: "rank 0 of 1". With it, each is told
# its rank, the world size, and where to find the others. Remember the symptom. If the `mpiexec` of
# one implementation starts programs that use the library of another, **every** process may say "rank 0
# of 1", and the job ends as if all were well. (MPICH's FAQ describes it. We tried: MPICH 5.0.2's `mpiexec`
# with Open MPI 5.0.11's library does so, and mpi4py prints a warning; the other way round the job ends
# with an error.) So compare the size of the world with what you asked for.
#
# ## What does `-n` count? What does ssh carry?
#
# The article says that `-n 2` is "the number of nodes", that the world is "all the nodes", and
# that synchronization goes over `ssh`. Three claims to try. We have no second
# computer, but `mpiexec` does not know that: it reaches `node1` and `node2` through whatever program we
# name. It calls that program as it would call ssh, with `-x node1 COMMAND`. Ours drops the `-x`, writes
# down the node, and then runs the command **here**, with its input and output closed. `-ppn 2` means two
# processes per node. How often will it be called for `-n 4`? And how can 80 MB pass through a closed
# pipe?

# %%
guess = None  # calls of "ssh"? Do the 80 MB arrive?

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
# Two calls, four ranks: **`-n` counts processes**, and the world is made of processes. Where they
# live is another question (`-hosts`, `-ppn`). And the 80 MB arrived, although our ssh could not carry
# a byte: **ssh only starts** one helper per node. Even the printed line came back by another road: each
# helper connects to `mpiexec` itself, at the address after `-localhost`. And the ranks find roads of their
# own. Here, where both "nodes" are one computer, the library notices that and goes through its memory;
# between two computers it opens connections over the network.
#
# The simulation says the same from the other side. Eight ranks add up 10 MB each, on 8 nodes with
# one rank, on 2 nodes with four, and on one node; the nodes are joined by 10 Gbit/s, a node's
# inside carries 50 GB/s. Will the results differ? Which is fastest, which slowest?

# %%
guess = None  # results, and an order of times?


def add(rank, world_size, numbers):
    x = torch.full((numbers,), float(rank))
    dist.all_reduce(x)
    return world_size, x[0].item()


inside = simlib.Link(latency_s=5e-6, bandwidth_Bps=50e9)
for count in (8, 2, 1):
    cluster = simlib.clusters.ethernet_10g(count, ranks_per_node=8 // count, intra=inside)
    run = simlib.simulate(add, 8, args=(2_500_000,), cluster=cluster)
    print(f"nodes: {count}, world size and sum: {run.results[7]}, {run.time_s * 1e3:6.2f} ms")

# %% [markdown]
# The world is the same, and so is the sum. The time is not. One node is fastest: nothing leaves it.
# Two nodes beat eight, for the algorithm used here adds up inside the nodes first. That is the
# algorithm's doing, not the cluster's: with the same steps in another order the four ranks of a node all
# send through its one cable at once, and two nodes are slower than eight (lesson 05).
#
# ## What a cluster needs
#
# | needed | because |
# |---|---|
# | nodes in one network, that find each other by name (addresses that stay, and a line for each host in `/etc/hosts` or a name server) | ranks connect to each other |
# | the same account on every node | files and processes belong to somebody; and no command has to name a user |
# | ssh without a password (or a scheduler such as Slurm) | `mpiexec` starts a helper on each node, and nobody is there to type |
# | the same MPI and the same Python, at the same place | every node runs the same command |
# | a common filesystem | every node needs the program, and the data |
#
# The account and ssh have done their work when the ranks run. Then the network counts, and the filesystem
# as often as data are read.
#
# Must you check all that by hand? `simlib.doctor(["node1", "node2"])`, or `simlib doctor --hosts node1,node2`
# in a terminal, asks each host and says what to mend. Without names it examines this machine alone. Which rows
# of the table can it then not ask?

# %% tags=["nbval-ignore-output"]
guess = None

simlib.doctor()

# %% [markdown]
# Those that need a second host: ssh, the account, the common filesystem. Python, torch and MPI are looked at, two
# ranks greet each other, and their ping-pong is timed. [Lesson 16](16_the_real_cluster.ipynb) takes the doctor
# to real hosts.
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
# One program for all, which branches by rank: *single program, multiple data*, **SPMD**. The words
# come from MPI; torch and **NCCL** (Nvidia's library, between GPUs) took most of them over:
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
# (Since NCCL 2.28 scatter, gather and all-to-all are calls of its own.) In mpi4py `comm.Send` moves
# arrays; `comm.send`, in lower case, moves any Python object and is slower.
#
# ## Backends: who does the work?
#
# `torch.distributed` is a front. A **backend** behind it moves the data. What has your torch got?

# %% tags=["nbval-ignore-output"]
print("torch.distributed is built in:", dist.is_available())
print("a process group is there now: ", dist.is_initialized())
for name, check in {
    "gloo (CPU, TCP)": dist.is_gloo_available,
    "nccl (Nvidia GPUs)": dist.is_nccl_available,
    "xccl (Intel GPUs)": dist.is_xccl_available,
    "mpi": dist.is_mpi_available,
}.items():
    print(f"{name:20}", check())

# %% [markdown]
# `is_available()` says that torch was built with the package, no more. `is_initialized()` is false
# in the notebook, which is no rank. Now ask for two backends by name. Many tutorials begin with
# `init_process_group("mpi")`, and those of 2018 with `"tcp"`. MPI is installed here, as you saw. What
# will torch say to each?

# %%
guess = None

for backend in ("mpi", "tcp"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        except (RuntimeError, AssertionError) as error:
            print(f"{backend}: {error}")

# %% [markdown]
# pip's torch was built without MPI, and an MPI installed later does not change that. You have three
# ways: build torch yourself; use Gloo; or speak MPI through mpi4py, as above. The backend `tcp` is
# **gone**: in the documentation of torch 1.0 it already stands under `torch.distributed.deprecated` only, and
# Gloo took its place. `init_method="tcp://..."` still exists and is something else: an *address* where
# ranks meet. (Inside `simlib.run`, `"mpi"` is understood as "what is there", so that listings from the
# web run.) One more old name:

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    same = str(dist.reduce_op.SUM) == str(dist.ReduceOp.SUM)
print(caught[0].message)
print("the same operation:", same)

# %% [markdown]
# ## Is the order of lines the order of events?
#
# Rank 0 prints, **then** sends. Rank 1 receives, **then** prints. So the line of rank 0 is first by
# any logic: rank 1 cannot have received what was not sent. Which line will be on top?

# %% tags=["nbval-ignore-output"]
guess = None

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

# %% [markdown]
# The effect stands above its cause. A process keeps its lines in a **buffer**; rank 1 emptied its own
# at once (`flush=True`), rank 0 only at its end. Then `mpiexec` mixes what arrives. With
# `flush=True` everywhere it becomes rarer, not impossible: two lines still travel on two roads.
#
# `simlib` therefore does not pretend: it shows lines **by rank**. Below, a token goes from the last
# rank to the first, so that each prints after its right neighbour. Predict the four lines.

# %%
guess = None


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
# Read from the bottom, it is in order of time. What orders events is the chain of **messages**, nothing
# else. If you want a report in order, send the lines to one rank and let it print.
#
# ## Rank 0 is a convention
#
# Which rank should collect the lines? "Rank 0: main, Rank >0: worker" says a slide of a good course
# (N. S. Detlefsen, *Scaling applications*, DTU course 02476, January 2024). Try rank 0, then others. With which does it fail?


# %%
guess = None


def report(rank, world_size, root):
    lines = [None] * world_size if rank == root else None
    dist.gather_object(f"rank {rank} has done {10 * rank + 10} examples", lines, dst=root)
    return lines


for root in (0, 2, 3):
    results = simlib.run(report, world_size=4, args=(root,)).results
    holders = [rank for rank, lines in enumerate(results) if lines]
    print(f"root {root}: rank {holders} has all lines, the last is: {results[root][-1]!r}")

# %% [markdown]
# With none. A rank is a number; any may be the **root** of a collective. People choose 0 because it
# exists in every world. But a rank that gathers, logs and saves for all makes the others wait: such
# jobs can be given to different ranks.
#
# ## Globals do not travel
#
# Lesson 00 changed a global in a rank and did not see it in the notebook. Here rank 0 changes a
# setting, and **then all meet at a barrier**. What do ranks 1 and 2 see after it?

# %%
guess = None

settings = {"learning rate": 0.1}


def tune(rank, world_size):
    if rank == 0:
        settings["learning rate"] = 0.01
    dist.barrier()
    return settings["learning rate"]


print(simlib.run(tune, world_size=3).results)

# %% [markdown]
# The old value. A barrier orders time; it carries no data. Ranks 1 and 2 go on with another learning
# rate, and nothing complains. The mend: whoever decides, sends.


# %%
def tune_and_tell(rank, world_size):
    if rank == 0:
        settings["learning rate"] = 0.01
    chosen = [settings["learning rate"]]
    dist.broadcast_object_list(chosen, src=0)
    settings["learning rate"] = chosen[0]
    return settings["learning rate"]


print(simlib.run(tune_and_tell, world_size=3).results, "and in the notebook:", settings)

# %% [markdown]
# ## Devices and their memory
#
# A **CPU** has few fast cores for every purpose. A **GPU** has thousands of slower lanes that do the same
# on many numbers. A **TPU** is built around units that multiply whole matrices, 128 x 128 numbers in
# early ones, 256 x 256 in the v6e (Google's Cloud TPU documentation). Each has its own memory. The same slides of January 2024
# say how much; beside them what vendors say of later devices (read in 2026):
#
# | | slide, "standard" | slide, "maximum" | later |
# |---|---|---|---|
# | CPU | 34-64 GiB | 2 TiB | 6 TB per socket (AMD, EPYC 9004) |
# | GPU | 12 GiB | 80 GiB | 141 GB (Nvidia, H200), 288 GB (B300) |
# | TPU | 64 GiB | **32 TiB** | 192 GiB per chip (Google, TPU7x) |
#
# A TPU with 400 times the memory of a GPU? Work out how many chips of 32 GiB (TPU v3) that is.

# %%
guess = None  # chips?

chips = 32 * 1024 / 32
print(f"32 TiB are {chips:.0f} chips of 32 GiB: one TPU v3 Pod has 1024 (Cloud TPU documentation)")
print(f"by the same count a Pod of 9,216 TPU7x chips has {9216 * 192 / 1024:,.0f} TiB")

# %% [markdown]
# The row compares one GPU with a **cluster**. Ask of every such number: of one device, of one node, or of
# the whole? The slide goes on: "with more memory you get faster data transfer". So take a step that
# reads 10 GB of weights once, as a language model of that size does for each word it writes. Which of these is fastest, and
# how does the one with most memory fare?

# %%
guess = None

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

# %% [markdown]
# **Capacity is not bandwidth.** The largest memory is the second slowest, and two devices with the same
# 16 GB differ by 2.6. Capacity decides *whether* something fits, bandwidth how long it takes to read.
# The simulation shows the first half: its `Device` has a capacity, and no bandwidth. One function, three
# devices that differ in capacity only.


# %%
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

# %% [markdown]
# ## Ethernet, and faster networks
#
# **Ethernet** joins nearly all computers: 1 Gbit/s in a room, 10 to 100 and more in a data centre. A
# message goes through the operating system on both sides. **InfiniBand** (HDR: 200 Gbit/s) lets the network
# card write into the other node's memory, past the operating system (RDMA), which cuts the latency as
# well. Between GPUs of one node there is **NVLink**: "300 GB/s" in Nvidia's DGX-2H (Shoeybi et al.
# 2019). Ask of such a number, too, what it counts: it is both directions together. One GPU sends at 150
# GB/s, over six links of 25 GB/s each way (Nvidia's page on NVLink), and that is what `simlib` takes.
#
# Rates are those of the standards. Latencies are round figures: a message pays 50, 30 and 20 us on
# Ethernet of 1, 10 and 100 Gbit/s, 2 us on InfiniBand, and 5 us on NVLink. `simlib.clusters` names each
# source.
#
# Eight ranks add up a tensor. InfiniBand's rate is 200 times that of 1 Gbit/s. Will it be 200
# times faster for one number? For ten million bytes?

# %%
guess = None  # times faster, small and large

networks = {  # name: nodes, marker, colour
    "ethernet_1g": (8, "o", "#E69F00"),
    "ethernet_10g": (8, "s", "#56B4E9"),
    "ethernet_100g": (8, "^", "#009E73"),
    "infiniband_hdr": (8, "D", "#0072B2"),
    "nvlink_nodes": (1, "v", "#D55E00"),
}
counts = [1, 100, 10_000, 200_000, 2_500_000]
times = {}
figure, axes = plt.subplots(figsize=(7, 3.6))
for name, (nodes, marker, color) in networks.items():
    cluster = getattr(simlib.clusters, name)(nodes=nodes)
    runs = [simlib.simulate(add, 8, args=(n,), cluster=cluster) for n in counts]
    times[name] = [run.time_s for run in runs]
    axes.plot([4 * n for n in counts], times[name], marker=marker, color=color, label=name)
    small, large = times[name][0], times[name][-1]
    print(f"{name:14} 4 bytes {small * 1e6:6.1f} us, 10 MB {large * 1e3:7.2f} ms", end=" ")
    print(f"({times['ethernet_1g'][0] / small:.0f} and {times['ethernet_1g'][-1] / large:.0f} x)")
axes.set(xscale="log", yscale="log", xlabel="tensor (bytes)", ylabel="virtual time (s)")
axes.legend()
plt.show()

# %% [markdown]
# 25 times for one number: small tensors pay **latency**, and there InfiniBand is 25 times better. 200
# times for ten megabytes: large tensors pay **bandwidth**. The lines are flat on the left and steep on the
# right: a network is two numbers, not one. Two of the lines cross, InfiniBand and NVLink: NVLink has the
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
# 1. `mpiexec -n 6 -ppn 3 -hosts a,b`: how many nodes, how many ranks?
# 2. Every process of a job says "rank 0 of 1". What is the likely cause?
# 3. MPI is installed, and `init_process_group("mpi")` fails. Why?
# 4. Rank 2's line stands above rank 1's. What do you know about the order in time?
# 5. Twice the memory, the same bandwidth: what becomes faster?
#
# <details><summary>Answers</summary>
#
# 1. Two nodes, six ranks. Without `-hosts`, all six would live on this one.
# 2. No launcher, or the launcher of another MPI than the library's.
# 3. This torch was built without MPI. Installing MPI later does not change it.
# 4. Nothing. Only messages order events.
# 5. Nothing by itself. Something larger fits.
#
# </details>
#
# **Next:** [lesson 02, send and receive](02_send_and_recv.ipynb).
