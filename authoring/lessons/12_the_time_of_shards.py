# %% [markdown]
# # 12 The time of shards, 16 bits and checkpoints
#
# This is the third part of lesson 12. You need [the second part](12_the_state_of_training.ipynb), which built
# ZeRO-3 and compared it with FSDP2. Now we measure these programs. In this part (45 minutes) you will
#
# - time a step with and without prefetch, and with and without resharding,
# - compare ZeRO-3 with data parallelism in a fair way,
# - write the optimizer step of mixed precision, and see why it needs a copy in float32,
# - predict the published memory of ZeRO for a model of 7.5 billion parameters,
# - save a model on 4 ranks, and load it on 2 and on 1.
#
# `make`, `two_steps`, `train` and `Zero` come from the second part.

# %%
import itertools
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import simlib
from simlib.course.shards import Zero, make, train, two_steps

RINGS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring"}
P = sum(p.numel() for number in range(1, 7) for p in make(number).parameters())


def cluster_with(**device):
    return simlib.clusters.ethernet_10g(8, device=simlib.Device(flops_per_s=100e9, **device))


# %% [markdown]
# ## Resharding, prefetch and time
#
# Our ZeRO-3 frees a layer's weights after the layer's forward pass. This is **resharding**. With
# `reshard=False`, a layer keeps its weights until its backward pass. Then the ranks gather each layer once in
# place of twice, but they hold more bytes. How much time does this save, and how much does prefetch save? We time
# one step of six programs on 4 ranks:
#
# - `data parallel` all_reduces all gradients after the backward pass.
# - `DDP` all_reduces buckets of gradients *during* the backward pass (lesson 08).
# - `own ZeRO-3` is our program, with prefetch and with resharding.
# - `no prefetch` and `no resharding` are our program without one of the two.
# - `FSDP2` is torch's ZeRO-3, with both.

# %%
fastest = None  # with streams: the name of one of the six


def torchs(rank, world_size, B=256):
    layers = [make(number) for number in range(1, 7)]
    net = fully_shard(nn.Sequential(*map(fully_shard, layers)))
    return two_steps(net, torch.optim.Adam(net.parameters()), B)


def ddp(rank, world_size, B=256):
    net = nn.Sequential(*map(make, range(1, 7)))
    net = DistributedDataParallel(net, bucket_cap_mb=1)
    return two_steps(net, torch.optim.Adam(net.parameters()), B)


ways = {
    "data parallel": (train, 0),
    "DDP": (ddp,),
    "own ZeRO-3": (train, 3),
    "no prefetch": (train, 3, 256, True, False),
    "no resharding": (train, 3, 256, False),
    "FSDP2": (torchs,),
}

# %% [markdown]
# We run each program twice. The first time (`waits`), a rank waits for its device after each operation, as on a
# CPU. The second time (`streams`), the device has streams (lesson 08), which compute and communicate at the same
# time. The cell prints a table for each, and draws FSDP2 with streams. MFU (lesson 09) is the share of the
# device's operations per second that a step uses.

# %%
times_s = {}
for streams, (name, (way, *args)) in itertools.product((False, True), ways.items()):
    cluster = cluster_with(asynchronous=streams)
    run = simlib.simulate(way, 4, args=args, cluster=cluster, **RINGS)
    step = run.mfu("step", number=1)
    times_s[name] = step.time_s[0]
    print(f"{'streams' if streams else 'waits':7} {name:14}", end=" ")
    print(f"{step.time_s[0] * 1e3:6.3f} ms a step, MFU {step.mfu[0]:.0%};", end=" ")
    print(f"{run.memory[0].peak_bytes:11,} bytes at the peak")
simlib.guess(fastest, min(times_s, key=times_s.get), of=tuple(times_s))
print(run.exposed("step", number=1))
run.timeline(ranks=[0])


# %% [markdown]
# Compare only programs that communicate while they compute: DDP, our ZeRO-3 and FSDP2. With streams, DDP takes
# 10.6 ms. Our ZeRO-3 takes 11.5 ms without resharding and 12.9 ms with it, and FSDP2 takes 12.4 ms. So **data
# parallelism is faster, as long as it fits**. It sends fewer bytes than ZeRO-3 with resharding, and no layer
# waits for its weights. But DDP holds 33 MB at the peak, and ZeRO-3 with resharding holds 11 MB. The comparison
# with `data parallel` is not fair, because this program sends nothing during its backward pass. It takes 14.2 ms.
#
# - Prefetch saves a quarter of the time of our ZeRO-3: a step takes 12.9 ms in place of 17.2 ms.
# - Without resharding, the ranks send 2 times the parameters in place of 3 times. This takes less time. But the
#   peak is 13 MB, which is too much for lesson 10's devices of 12 MB.
# - FSDP2 starts its collectives on streams, and our program starts them with `async_op=True`. Where ranks wait
#   for their devices, FSDP2's prefetch hides nothing, so FSDP2 takes exactly as long as our program without
#   prefetch.
# - Our ZeRO-3 gains nothing from streams, because its reduce_scatters hold up the stream that computes.
#
# The picture shows two steps of FSDP2. Stream 0 computes, stream 2 gathers weights, and stream 3 reduces
# gradients. Communication is **exposed** when nothing computes at that time. In the second step, a rank
# communicates for 12.1 ms, and 7.28 ms of them are exposed.
#
# ## Mixed precision: 2 + 2 + 12
#
# Large models compute in bfloat16, so parameters and gradients take 2 bytes each. But a bfloat16 has only 8
# significant bits. The largest bfloat16 below 1 is 0.9961, which is 0.0039 less than 1. If a step subtracts 0.001
# from a weight of 1, the result is rounded back to 1. So the optimizer works on a **master copy** of the
# parameters in float32. The master copy takes 4 bytes per parameter, and Adam's state takes 8 bytes. After each
# step, the ranks copy the masters into the bfloat16 parameters.
#
# **Now you write it:** `mixed_step` comes after the backward pass. It gets a list of `Zero` units, one master
# copy of each unit's shard, and an Adam that steps the masters.
#
# 1. Give each master its gradient in float32 (`unit.shard.grad.float()`).
# 2. Let Adam make a step, and set the masters' gradients to None.
# 3. Copy each master into its unit's shard (`unit.shard.data.copy_(...)`).
# 4. In stages 1 and 2, all_gather `unit.whole` from the shards, as `zero_1` did.
#
# The check has a layer whose weights are all 1 and whose gradients are always 1. Then each step of Adam subtracts
# its learning rate, 0.001. So after 20 steps, every weight should be the bfloat16 that is nearest to 0.98.

# %%
without_master = None  # a weight after 20 steps of 0.001 from 1, without a master copy?


def mixed_step(units, masters, adam, stage):
    pass  # yours


def constant(rank, world_size, stage, has_masters):
    layer = nn.Linear(64, 1, bias=False).bfloat16()
    nn.init.ones_(layer.weight)
    unit = Zero(layer, stage)
    master = nn.Parameter(unit.shard.detach().float()) if has_masters else unit.shard
    adam = torch.optim.Adam([master], lr=0.001)
    for _ in range(20):
        layer(torch.ones(1, 64).bfloat16()).sum().backward()
        if has_masters:
            mixed_step([unit], [master], adam, stage)
        else:
            adam.step()
    return unit.shard.data if stage == 3 else unit.whole


w = simlib.run(constant, 1, args=(1, False)).results[0]
print("without a master copy:", w[0].item())
simlib.guess(without_master, w[0].item())
for stage in (1, 2, 3):
    found = simlib.run(constant, 2, args=(stage, True)).results
    near = all((w.float() - 0.98).abs().max() < 0.002 for w in found)
    print(f"stage {stage}, 2 ranks: weights {[w[-1].item() for w in found]};", end=" ")
    print("right" if near else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def mixed_step(units, masters, adam, stage):
#         for unit, master in zip(units, masters, strict=True):
#             master.grad = unit.shard.grad.float()
#         adam.step()
#         for unit, master in zip(units, masters, strict=True):
#             master.grad = None
#             unit.shard.data.copy_(master.data)
#             if stage < 3:
#                 dist.all_gather_single(unit.whole, unit.shard.detach())
#
# </details>
#
# Without a master copy, rounding removes every step, so the weights stay at 1. With a master copy, the small
# steps add up in float32 until the bfloat16 weight can change.
#
# How many bytes does a parameter take now? Without ZeRO it takes 2 + 2 + 12 = 16 bytes. In float32 it also took
# 4 + 4 + 8 = 16 bytes. `mixed` trains lesson 10's network for one step, and returns the bytes of parameters,
# gradients and optimizer state. The masters count as optimizer state.


# %%
def mixed(rank, world_size, stage):
    layers = [make(number).bfloat16() for number in range(1, 7)]
    units, x = [Zero(layer, stage) for layer in layers], torch.rand(64, 784).bfloat16()
    masters = [nn.Parameter(unit.shard.detach().float()) for unit in units]
    simlib.hold(masters, "optimizer state")  # the ledger cannot know
    adam = torch.optim.Adam(masters)
    F.cross_entropy(nn.Sequential(*layers)(x), torch.arange(64) % 10).backward()
    for unit, master in zip(units, masters, strict=True):
        master.grad = unit.shard.grad.float()
    adam.step()
    for unit, master in zip(units, masters, strict=True):
        master.grad = None
        unit.shard.data.copy_(master.data)
        if stage < 3:
            dist.all_gather_single(unit.whole, unit.shard.detach())
    return list(simlib.held().values())[:3]


# %% [markdown]
# **Now you write it:** `mixed_bytes` returns how many bytes a rank keeps per parameter, in stage 0, 1, 2 or 3 on R
# ranks. Stage 0 is no ZeRO. The cell compares your formula with the ledger and with the ZeRO paper. For 7.5
# billion parameters on 64 ranks, the paper gives 120, 31.4, 16.6 and 1.9 GB in stages 0, 1, 2 and 3. The table at
# the end is about stage 3 on 4 ranks.


# %%
def mixed_bytes(stage, R):
    return None  # yours: bytes per parameter


is_right = True
for R, stage in ((1, 1), (4, 1), (4, 2), (4, 3)):
    run = simlib.simulate(mixed, R, args=(stage,), cluster=cluster_with(), **RINGS)
    each = [nbytes / P for nbytes in run.results[0]]
    is_right &= abs((mixed_bytes(stage, R) or 0) - sum(each)) < 0.001
    print(f"R = {R}, stage {stage}: {sum(each):5.2f} bytes per parameter =", end=" ")
    print(*(f"{nbytes:.2f}" for nbytes in each), sep=" + ")
for stage, published in enumerate((120, 31.4, 16.6, 1.9)):
    is_right &= abs((mixed_bytes(stage, 64) or 0) * 7.5 - published) < 0.1
print("your formula:", "right" if is_right else "not yet")
print(run.memory[0])  # the peak includes master.grad, in float32, for Adam

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def mixed_bytes(stage, R):
#         R1, R2, R3 = (R if stage >= least else 1 for least in (1, 2, 3))
#         return 2 / R3 + 2 / R2 + 12 / R1
#
# </details>
#
# So what do we gain with 16 bits? We gain time, because half the bytes travel, and because devices compute faster
# with 16-bit numbers. We gain memory, because activations take half of it. With ZeRO-1, a rank also keeps fewer
# bytes per parameter: 4 + 12 / R in place of 8 + 8 / R. FSDP2's `MixedPrecisionPolicy` keeps its shards in
# float32, which take 4 + 4 + 8 bytes, and casts the weights when it gathers them.
#
# ## A checkpoint for any number of ranks
#
# With ZeRO-3 each rank has only its shards. Can 2 ranks go on with a model that 4 ranks have trained? With
# `torch.distributed.checkpoint`, every rank writes its own parts into a file. One more file is a list that says
# which part belongs where. When ranks load, each rank reads only what its own shards need. We save on 4 ranks.
# Then we set all weights to 0, and load on 2 ranks and on 1. How many files are in the folder?

# %%
files = None  # how many, with the list?


def checkpoint_on(rank, world_size, folder, saving):
    net = fully_shard(nn.Sequential(make(5), make(6)))
    if not saving:
        for p in net.parameters():
            nn.init.zeros_(p)
    state = net.state_dict()
    (checkpoint.save if saving else checkpoint.load)(state, checkpoint_id=folder)
    return [p.full_tensor().detach() for p in net.parameters()], net[0][0].weight.to_local().shape


with tempfile.TemporaryDirectory() as folder:
    saved = simlib.run(checkpoint_on, 4, args=(folder, True)).results[0]
    written = sorted(os.listdir(folder))
    print("4 ranks saved parts of", tuple(saved[1]), "in", *written)
    for R in (2, 1):
        loaded = simlib.run(checkpoint_on, R, args=(folder, False)).results[0]
        equal = all(map(torch.equal, saved[0], loaded[0]))
        ranks = f"{R} rank{'s' * (R > 1)}"
        print(f"{ranks} loaded parts of {tuple(loaded[1])}: the same weights: {equal}")
simlib.guess(files, len(written))

# %% [markdown]
# There are 5 files: each rank writes one, and the list is in `.metadata`. With `torch.save` on rank 0 (lesson 07),
# one rank would have to hold the whole model. You can save the state of an optimizer in the same way.
#
# ## Your turn
#
# [Exercises 12](../exercises/12_tensors_and_state.ipynb) belong to all parts of lesson 12. The last one fits
# here: you choose how to train 8 billion parameters. [Questions on programs](../docs/questions.md) ask what small
# programs print.
#
# ## Exit ticket
#
# 1. A colleague measures 14.2 ms for data parallelism and 12.9 ms for ZeRO-3, and says that ZeRO-3 is faster.
#    What do you ask?
# 2. A program does not reshard after forward. What does a rank gain, and what does it pay?
# 3. Why does mixed precision need a master copy?
# 4. Why does a checkpoint of 4 ranks also load on 2?
#
# <details><summary>Answers</summary>
#
# 1. Does the data-parallel program send gradients during its backward pass? Time only programs that communicate
#    while they compute.
# 2. It gathers the weights once in place of twice. It pays with memory: all gathered weights stay until the
#    backward pass.
# 3. In bfloat16, rounding would remove a small step. In float32, small steps add up.
# 4. A list says which part of which tensor is in which file. Each rank reads the parts that it needs.
#
# </details>
#
# **Next:** several cuts at once, in [the fourth part](12_two_axes_at_once.ipynb).
