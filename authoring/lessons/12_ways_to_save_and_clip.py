# %% [markdown]
# # 12 HSDP, clipping and checkpoints
#
# This is the last part of lesson 12. You need the placements of [the fifth part](12_ways_to_place_tensors.ipynb), and
# ZeRO-3 from [the second part](12_the_state_of_training.ipynb). In this part (60 minutes) you will
#
# - write a training step that shards inside a node and replicates across nodes: HSDP,
# - find out when HSDP pays,
# - compute the norm of gradients with mixed placements,
# - save Adam's state on 4 ranks, and continue on 6.
#
# **R** is the number of ranks.

# %%
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import simlib
from simlib import labs

RINGS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring"}
NODES = simlib.Cluster(2, 4, inter=simlib.Link(30e-6, 1.25e9), intra=simlib.Link(5e-6, 12.5e9))

# %% [markdown]
# ## HSDP: shard inside a node, replicate across nodes
#
# FSDP cuts the parameters over all ranks. So each all_gather of parameters goes through the slow links between the
# nodes. **HSDP** (hybrid sharded data parallel) cuts the parameters over the ranks of one node. So the ranks of a node
# together hold all parameters. On a mesh (replicate, shard), the parameters are `[Replicate(), Shard(0)]`.
#
# The network is an MLP, with all its weights in one flat vector. `loss_of` computes its loss. **Now you write it:**
# `hsdp_step` makes one training step. `shard` is this rank's chunk of the flat weights. `x` and `targets` are the whole
# batch. Cut them into one chunk for each rank of the whole program. Rank r trains on chunk r.
#
# 1. Gather the weights inside the node: `dist.all_gather_single(whole, shard, group=...)`.
# 2. Compute the loss of this rank's examples, and its gradient.
# 3. Reduce_scatter the gradient inside the node, with the mean (`dist.ReduceOp.AVG`).
# 4. What is the placement of the result on the axis `replicate`? Change it, again with the mean.
# 5. Return the new shard, with a learning rate of 0.1.


# %%
def loss_of(flat, x, targets):
    a, b = flat.split(32 * 64)
    return F.mse_loss(F.relu(x @ a.view(32, 64)) @ b.view(64, 32), targets)


def hsdp_step(mesh, shard, x, targets):
    return None  # yours: the new shard


def on_nodes(rank, world_size, shape, flat, *batch):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    return hsdp_step(mesh, flat.chunk(shape[1])[mesh["shard"].get_local_rank()], *batch)


torch.manual_seed(0)
flat, x, targets = torch.randn(2 * 32 * 64) / 8, torch.randn(64, 32), torch.randn(64, 32)
alone = flat.clone().requires_grad_()
loss_of(alone, x, targets).backward()
new = (alone - 0.1 * alone.grad).detach()  # one process
for shape in ((2, 4), (4, 2), (1, 8), (8, 1)):
    shards = simlib.run(on_nodes, 8, args=(shape, flat, x, targets)).results
    ok = shards[0] is not None
    ok = ok and torch.allclose(torch.cat(shards), new.repeat(shape[0]), atol=1e-6)
    print(f"replicate {shape[0]} x shard {shape[1]}:", "right" if ok else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def hsdp_step(mesh, shard, x, targets):
#         inside, across = mesh["shard"].get_group(), mesh["replicate"].get_group()
#         rank, R = dist.get_rank(), dist.get_world_size()
#         whole = torch.empty(shard.numel() * inside.size())
#         dist.all_gather_single(whole, shard, group=inside)
#         loss_of(whole.requires_grad_(), x.chunk(R)[rank], targets.chunk(R)[rank]).backward()
#         mine = torch.empty_like(shard)
#         dist.reduce_scatter_single(mine, whole.grad, op=dist.ReduceOp.AVG, group=inside)
#         dist.all_reduce(mine, op=dist.ReduceOp.AVG, group=across)
#         return shard - 0.1 * mine
#
# On the axis `replicate`, the gradient is a Partial: each node has the mean of its own examples. An all_reduce with the
# mean makes it a Replicate. Torch calls this Partial `Partial("avg")`.
#
# </details>
#
# A mesh of 1 x 8 is FSDP, and 8 x 1 is data parallelism. HSDP is in between.
#
# ## Bytes inside and between nodes
#
# Torch does the same, if you give `fully_shard` a mesh with two axes. The MLP is one unit, so torch gathers only
# once. The cluster has 2 nodes of 4 ranks, and `NODES` defines its latencies. The collectives are rings. A ring over
# both nodes crosses between them twice. HSDP has four rings between the nodes, one for each shard, and each has 2 ranks.
# What is the ratio of FSDP to HSDP for the bytes *between* nodes?

# %%
bytes_ratio = None  # bytes between nodes: FSDP's by HSDP's


def torchs_step(rank, world_size, shape, *batch):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    layers = nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 32, bias=False)
    net = fully_shard(nn.Sequential(*layers), mesh=mesh if shape[0] > 1 else mesh["shard"])
    x, targets = (tensor.chunk(world_size)[rank] for tensor in batch)
    F.mse_loss(net(x), targets).backward()


sent = {}
for name, shape in (("FSDP", (1, 8)), ("HSDP", (2, 4))):
    options = {"cluster": NODES, "expand": True, **RINGS}
    run = simlib.simulate(torchs_step, 8, args=(shape, x, targets), **options)
    nbytes = sum(message.nbytes for message in run.wire)
    sent[name] = sum(m.nbytes for m in run.wire if m.src // 4 != m.dst // 4)
    print(name, *(f"{op.kind} {op.group.ranks}" for op in run.trace.of_rank(0)), end=": ")
    print(f"{nbytes - sent[name]:,} bytes inside nodes, {sent[name]:,} between,", end=" ")
    print(f"{run.time_s * 1e6:.0f} us")
simlib.guess(bytes_ratio, sent["FSDP"] / sent["HSDP"], within=0.1)

# %% [markdown]
# The parameters have N = 16,384 bytes. In a ring of 8 ranks, each rank sends 7/8 N. Two of these ranks send to the
# other node, and FSDP has two rings. So FSDP sends 3.5 N between the nodes. In HSDP, each of the 8 ranks all_reduces a
# shard with one other rank, and sends N/4. So HSDP sends 2 N.
#
# FSDP sends 1.75 times as many bytes between the nodes, but it takes 4.5 times as long. For a network this small, HSDP
# wins more by **rounds** than by bytes. FSDP's two rings over 8 ranks have 14 rounds, and each waits for messages
# between the nodes. HSDP's all_reduce between nodes has 2 rounds.
#
# HSDP costs memory: each rank keeps 1/4 of the state in place of 1/8. More nodes do not make this part smaller.
#
# **A lab:** a model computes how long all sends of a step take, without overlap. For each micro-batch, FSDP gathers
# twice and reduce_scatters once. HSDP does so inside the nodes, and all_reduces its shards once a step. The ranks of a
# node share one network card. Go back to the first settings before each change:
#
# - Take 1 micro-batch, then 32. Which curve changes most?
# - Take 100 MB of parameters on 1,024 nodes. Divide FSDP's time by HSDP's.
# - Take 200 GB/s between nodes, which is faster than inside. Does HSDP still win?
# - Which way fits into 80 GB? The title says what a rank keeps.

# %%
labs.draw_hybrid(128, nbytes=14e9, microbatches=4)

# %% tags=["nbval-ignore-output"]
labs.hybrid_lab(128, nbytes=14e9, microbatches=4)

# %% [markdown]
# You should see:
#
# - FSDP's curve changes most, because FSDP gathers between nodes for every micro-batch. With 1 micro-batch, FSDP's
#   sends take 1.27 times as long as HSDP's. With 32 they take 6.2 times as long.
# - FSDP's sends take 33 times as long as HSDP's. Its rings have 8,191 rounds, each with a latency. HSDP's all_reduce
#   between nodes has 2 x 1,023 rounds.
# - No. FSDP sends for 1.02 s and HSDP for 1.12 s. HSDP pays if the network between nodes is slower than inside.
# - Data parallelism needs 112 GB and does not fit. HSDP keeps 14 GB and FSDP keeps 109 MB. If 14 GB are too many, cut
#   over several nodes.
#
# ## The norm of gradients with mixed placements
#
# Many programs **clip** gradients (lesson 06): if the norm of all gradients together exceeds a limit, they scale all
# down. But a rank holds only parts. Here are three gradients on a mesh of 2 x 2 (dp, tp):
#
# - The gradient of a matrix is sharded on both axes (`"SS"`).
# - The gradient of a bias is sharded over dp and replicated over tp (`"SR"`).
# - The gradient of a layer norm is sharded over dp, and a Partial over tp (`"SP"`).


# %%
def my_part(whole, placements, mesh):
    """What this rank holds; the summands of a Partial are 3 and -2 times the tensor."""
    for axis, dim, placement in zip(("dp", "tp"), (0, -1), placements, strict=True):
        at = mesh[axis].get_local_rank()
        if placement == "S":
            whole = whole.chunk(2, dim)[at]
        if placement == "P":
            whole = whole * (3, -2)[at]
    return whole.clone()


def norms(rank, world_size, norm_of, wholes, placements):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    pairs = zip(wholes, placements, strict=True)
    norm = norm_of(mesh, [(my_part(whole, each, mesh), each) for whole, each in pairs])
    return 0 if norm is None else norm.item()


wholes, mixed = [torch.randn(8, 8), torch.randn(8), torch.randn(8)], ("SS", "SR", "SP")
right = torch.cat([whole.flatten() for whole in wholes]).norm().item()  # one process

# %% [markdown]
# `local_norm` takes the norm of each rank's own numbers. `summed` sums the squares over all ranks first. Is `summed`
# too large or too small?

# %%
summed_is = None  # "too large", "too small" or "right"


def local_norm(mesh, gradients):
    return sum(local.square().sum() for local, _ in gradients).sqrt()


def summed(mesh, gradients):
    squares = sum(local.square().sum() for local, _ in gradients)
    dist.all_reduce(squares)
    return squares.sqrt()


print(f"right: {right:.4f}")
for way in (local_norm, summed):
    found = simlib.run(norms, 4, args=(way, wholes, mixed)).results
    print(f"{way.__name__}:", *(f"{norm:.4f}" for norm in found))
how = "too large" if found[0] > right else "too small"
simlib.guess(summed_is, how, of=("too large", "too small", "right"))

# %% [markdown]
# With local norms, each rank scales by its own factor. Then the two copies of the bias differ after the step. `summed`
# is the same on all ranks, but too large. It counts the bias twice, because two ranks hold each of its numbers. And it
# squares summands, but the square of a sum is not the sum of squares.
#
# **Now you write it:** `total_norm` gets the mesh, and a list of pairs. Each pair has a local gradient and its
# placements on dp and tp. For each gradient:
#
# 1. On each axis with a `"P"`, sum a copy of the gradient.
# 2. Sum the squares of the numbers.
# 3. On each axis with an `"S"`, sum this number. What happens on an axis with an `"R"`?
#
# Return the norm of all gradients together, as a tensor.


# %%
def total_norm(mesh, gradients):
    return None  # yours


def torchs_norm(mesh, gradients):
    parameters = []
    for local, (dp, tp) in gradients:
        of = {"R": Replicate(), "P": Partial()}
        mine = [(of | {"S": Shard(0)})[dp], (of | {"S": Shard(local.dim() - 1)})[tp]]
        gradient = DTensor.from_local(local, mesh, mine)
        parameters.append(nn.Parameter(torch.empty_like(gradient)))
        parameters[-1].grad = gradient
    return torch.nn.utils.clip_grad_norm_(parameters, 1.0).full_tensor()


for placements in (mixed, ("SS", "RS", "SR"), ("PR", "RR", "PP")):
    print(*placements, end=": ")
    for way in (total_norm, torchs_norm):
        found = simlib.simulate(norms, 4, args=(way, wholes, placements)).results
        ok = all(abs(norm / right - 1) < 1e-5 for norm in found)
        print(way.__name__, "right" if ok else "not yet", end="; ")
    print()

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def total_norm(mesh, gradients):
#         total = torch.zeros(())
#         for local, placements in gradients:
#             local, axes = local.clone(), list(zip(("dp", "tp"), placements))
#             for axis, placement in axes:
#                 if placement == "P":
#                     dist.all_reduce(local, group=mesh[axis].get_group())
#             square = local.square().sum()
#             for axis, placement in axes:
#                 if placement == "S":
#                     dist.all_reduce(square, group=mesh[axis].get_group())
#             total += square
#         return total.sqrt()
#
# </details>
#
# A Replicate counts once, so its axis needs no sum. Torch's `clip_grad_norm_` finds the same norms. But it raises an
# error for DTensors of two meshes, and for a mix with plain tensors. Then compute the norm of each kind, and add the
# squares.
#
# ## Adam's state on another mesh
#
# 4 ranks have trained 5 steps. Then 6 ranks continue, as FSDP or as HSDP on 2 x 3. Parameters and Adam's state are
# DTensors. So `checkpoint.save` knows which part a rank holds, and `checkpoint.load` fills each rank's own part, in
# any placement. `get_optimizer_state_dict` returns Adam's state, and `set_optimizer_state_dict` puts a loaded state
# into Adam.


# %%
def train(rank, world_size, shape, steps, folder, loads_adam=True):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 4800), nn.ReLU(), nn.Linear(4800, 24))
    fully_shard(net, mesh=mesh if shape[0] > 1 else mesh["shard"])
    adam = torch.optim.Adam(net.parameters(), lr=0.001)
    if steps.start > 0:
        state = {"net": net.state_dict()}
        state |= {"adam": get_optimizer_state_dict(net, adam)} if loads_adam else {}
        checkpoint.load(state, checkpoint_id=folder)
        if loads_adam:
            set_optimizer_state_dict(net, adam, state["adam"])
    for step in steps:
        torch.manual_seed(step)
        x, targets = torch.randn(2, 24, 24).chunk(world_size, 1)[rank]
        adam.zero_grad()
        F.mse_loss(net(x), targets).backward()
        adam.step()
    if steps.stop == 5:
        state = {"net": net.state_dict(), "adam": get_optimizer_state_dict(net, adam)}
        checkpoint.save(state, checkpoint_id=folder)
    return torch.cat([p.full_tensor().flatten().detach() for p in net.parameters()])


# %% [markdown]
# All jobs make steps 5 to 9. The first job loads the network only, so its Adam is new. `off` is the largest
# difference from the weights after 10 unbroken steps on 4 ranks. By what factor are the files larger than the
# parameters? On 6 ranks with Adam's state, is `off` exactly 0?

# %%
times_as_large = None  # the files with Adam's state, compared with the network's parameters
exact_on_6 = None  # is off exactly 0 on 6 ranks: "yes" or "no"?
with tempfile.TemporaryDirectory() as folder:
    simlib.simulate(train, 4, args=((1, 4), range(5), folder))
    files = [os.path.getsize(f"{folder}/{name}") for name in os.listdir(folder)]
    unbroken = simlib.simulate(train, 4, args=((1, 4), range(10), folder)).results[0]
    print(f"{len(files)} files, {sum(files) / unbroken.nbytes:.1f} times the parameters' bytes")
    for shape, loads_adam in (((1, 4), False), ((1, 4), True), ((1, 6), True), ((2, 3), True)):
        R, args = shape[0] * shape[1], (shape, range(5, 10), folder, loads_adam)
        weights = simlib.simulate(train, R, args=args).results[0]
        off = (weights - unbroken).abs().max().item()
        found = f"{off:.3f}" if off > 1e-6 else "below 1e-6" if off else "exactly 0"
        what = "with Adam" if loads_adam else "network only"
        print(f"{shape[0]} x {shape[1]} ranks, {what:12}: off {found}")
simlib.guess(times_as_large, sum(files) / unbroken.nbytes, within=0.1)
simlib.guess(exact_on_6, "no" if off else "yes", of=("yes", "no"))

# %% [markdown]
# Each of the 4 ranks writes a file, and a fifth file says where each part is. Together they are 3.1 times as large as
# the parameters, because Adam has two more numbers for each parameter. A new Adam starts with averages of zero, so
# its first steps differ. With Adam's state, a run on 4 ranks continues with the same bits. On 6 ranks, `off` is not
# 0: each rank has 4 examples in place of 6, so the sums are rounded differently.
#
# ## Your turn
#
# Do tasks 7 to 9 of [exercises 12](../exercises/12_tensors_and_state.ipynb).
#
# ## Exit ticket
#
# 1. A model fits into the 8 GPUs of a node. You have 64 nodes. Do you choose FSDP or HSDP, and what do you ask?
# 2. A gradient is `[Replicate(), Shard(0)]` on (dp, tp). How do you compute the square of its norm?
# 3. Why does the local norm make copies of a weight differ?
#
# <details><summary>Answers</summary>
#
# 1. HSDP, if the network between nodes is much slower than inside, and above all with several micro-batches. Ask how
#    many bytes a rank may keep: with HSDP it keeps 1/8 of the state, whatever the number of nodes.
# 2. Sum the squares of the local numbers, and sum this over tp only. Over dp, all ranks have the same numbers.
# 3. Each rank scales by its own factor. Two ranks with the same gradient then make different steps.
#
# </details>
#
# **Next:** asynchronous training, in [lesson 13](13_asynchronous_training.ipynb).
