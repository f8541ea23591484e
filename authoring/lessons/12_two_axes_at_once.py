# %% [markdown]
# # 12 Two axes at once
#
# This is the fourth part of lesson 12. You need [the first part](12_tensors_and_state.ipynb) with its Enter and
# Leave, and [lesson 11](11_pipelines.ipynb) about pipelines. Large models are cut in several ways at once. Some
# ranks share the examples, and others share the matrices. In this part (60 minutes) you will
#
# - arrange ranks in a **mesh**, and write one training step with two axes,
# - find the same all_reduces in torch's own tensor parallelism,
# - choose seeds for dropout,
# - measure which axis should be inside a node, and try this on a model of 4,096 ranks,
# - compare the model with published numbers.
#
# **dp** stands for data parallelism, **tp** for tensor parallelism and **pp** for pipeline parallelism. tp 4 means
# that a tp group has 4 ranks. **R** is the number of ranks, **T** the number of tokens, **D** the numbers per token,
# and **H** the numbers per token in the hidden layer.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import simlib
from simlib import labs

RINGS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring"}
NODES = simlib.Cluster(4, 4, inter=simlib.Link(30e-6, 1.25e9), intra=simlib.Link(5e-6, 12.5e9))
T, D, H = 24, 48, 192

# %% [markdown]
# ## A mesh of ranks
#
# A **mesh** is a grid of ranks. `init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))` makes two rows of
# three ranks, with ranks 0, 1 and 2 in the first row. The ranks of a row divide the matrices among them, so each
# row is a group for tensor parallelism. The ranks of a column divide the examples among them, so each column is
# a group for data parallelism.
#
# `mesh["tp"]` is this rank's row, and `mesh["dp"]` is its column. Each has three methods. `size()` is the number of
# ranks, `get_local_rank()` is this rank's place among them, and `get_group()` is their process group.
#
# The class `Cut` does the work of Enter and of Leave. Leave sums over a group in the forward pass, and Enter in the
# backward pass.


# %%
class Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, is_leave):
        ctx.group, ctx.is_leave, x = group, is_leave, x.clone()
        if is_leave:
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        if not ctx.is_leave:
            dist.all_reduce(gradient, group=ctx.group)
        return gradient, None, None


def enter(x, group):
    return Cut.apply(x, group, False)


def leave(y, group):
    return Cut.apply(y, group, True)


# %% [markdown]
# **Now you write it:** `mesh_step` makes one training step of an MLP on a mesh, $y = \text{GELU}(xA)\,B$.
#
# 1. Each rank takes some of the examples: the chunk of x and of the targets at its place in dp.
# 2. It takes some columns of A and some rows of B: the chunks at its place in tp. Copy these chunks with
#    `.clone().requires_grad_()`, so that they get gradients.
# 3. It computes y with `enter` and `leave`. Which group do these two need?
# 4. Its loss is `F.mse_loss` over its own examples, as a mean. After the backward pass, it has the gradients of these
#    examples. What is missing?
#
# Return the gradients of this rank's parts of A and B, for all examples.


# %%
def mesh_step(mesh, x, targets, A, B):
    return None  # yours: the gradients of this rank's parts of A and B


def on_mesh(rank, world_size, shape, *tensors):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    return mesh["tp"].get_local_rank(), mesh_step(mesh, *tensors)


torch.manual_seed(0)
x, targets = torch.randn(T, D), torch.randn(T, D)
A, B = (torch.randn(shape).div(shape[1] ** 0.5).requires_grad_() for shape in ((D, H), (H, D)))
F.mse_loss(F.gelu(x @ A) @ B, targets).backward()  # one process
for shape in ((1, 4), (4, 1), (2, 3)):
    tensors = x, targets, A.detach(), B.detach()
    found = simlib.run(on_mesh, shape[0] * shape[1], args=(shape, *tensors)).results
    print(f"dp {shape[0]} x tp {shape[1]}:", end=" ")
    if any(gradients is None for _, gradients in found):
        print("not yet")
        continue
    close = [
        torch.allclose(a, A.grad.chunk(shape[1], 1)[place], atol=1e-5)
        and torch.allclose(b, B.grad.chunk(shape[1])[place], atol=1e-5)
        for place, (a, b) in found
    ]
    print("right" if all(close) else f"not yet: gradients right on ranks {close}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def mesh_step(mesh, x, targets, A, B):
#         dp, tp = mesh["dp"], mesh["tp"]
#         x = x.chunk(dp.size())[dp.get_local_rank()]
#         targets = targets.chunk(dp.size())[dp.get_local_rank()]
#         a = A.chunk(tp.size(), 1)[tp.get_local_rank()].clone().requires_grad_()
#         b = B.chunk(tp.size())[tp.get_local_rank()].clone().requires_grad_()
#         y = leave(F.gelu(enter(x, tp.get_group()) @ a) @ b, tp.get_group())
#         F.mse_loss(y, targets).backward()
#         for weight in (a, b):
#             dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG, group=dp.get_group())
#         return a.grad, b.grad
#
# </details>
#
# Each axis has its own rule. Over tp, the ranks sum activations in the forward pass, and gradients of
# activations in the backward pass. Over dp, they average the gradients of weights. No sum goes over all ranks of
# the mesh.
#
# ## Tensor parallelism in torch
#
# `parallelize_module` cuts the layers of a module. You give each layer a plan: `ColwiseParallel` cuts by columns,
# and `RowwiseParallel` cuts by rows. The parameters become **DTensors**. A DTensor is a rank's part of a tensor,
# and it also knows how the whole tensor is cut. Does torch send the same as our program? Our program is
# `own_mlp`, an MLP with our Enter and Leave. All its ranks are in one tp group, and `weights` gives each rank its
# part of the MLP.


# %%
def weights(rank, world_size):
    """The input, and this rank's part of the MLP: the same numbers however it is cut."""
    torch.manual_seed(0)
    up, down, x = nn.Linear(D, H), nn.Linear(H, D), torch.randn(T, D)
    mine = [up.weight.chunk(world_size)[rank], up.bias.chunk(world_size)[rank]]
    mine += [down.weight.chunk(world_size, dim=1)[rank], down.bias]
    return x, [nn.Parameter(part.detach().clone()) for part in mine]


def own_mlp(rank, world_size, needs_gradient):
    x, (a, a_bias, b, b_bias) = weights(rank, world_size)
    x, tp = x.requires_grad_(needs_gradient), dist.group.WORLD
    y = leave(F.linear(F.gelu(F.linear(enter(x, tp), a, a_bias)), b), tp) + b_bias
    y.square().sum().backward()
    return a.grad


# %% [markdown]
# `torchs_mlp` has the same weights, and torch cuts them. Each program runs twice. In the second run, x needs no
# gradient, because the x of a network's first layer is data. How many all_reduces does a step make in that case?

# %%
calls_without = None  # how many all_reduces if x needs no gradient?


def torchs_mlp(rank, world_size, needs_gradient):
    x, (a, a_bias, b, b_bias) = weights(0, 1)
    net = nn.Sequential(nn.Linear(D, H), nn.GELU(), nn.Linear(H, D))
    net.load_state_dict({"0.weight": a, "0.bias": a_bias, "2.weight": b, "2.bias": b_bias})
    mesh = init_device_mesh("cpu", (world_size,))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    net(x.requires_grad_(needs_gradient)).square().sum().backward()
    return net[0].weight.grad.to_local()


for needs_gradient in (True, False):
    runs = [simlib.run(f, 4, args=(needs_gradient,)) for f in (own_mlp, torchs_mlp)]
    steps = [[c.nbytes for c in r.trace.collectives if c.kind == "all_reduce"] for r in runs]
    off = max((a - b).abs().max().item() for a, b in zip(*(r.results for r in runs), strict=True))
    print(f"x needs a gradient: {needs_gradient}; all_reduces, own and torch's: {steps};", end=" ")
    print("gradients to 1e-4:", off < 1e-4)
simlib.guess(calls_without, len(steps[0]))

# %% [markdown]
# Both programs make the same all_reduces, each with T x D x 4 = 4,608 bytes. If x needs no gradient, autograd
# never calls the backward method of Enter. So only the all_reduce of Leave remains. We counted only all_reduces.
# Before the step, torch's program also scatters the weights of rank 0 and broadcasts a bias.
#
# ## Dropout and seeds
#
# Dropout sets numbers to zero by chance. Which seeds do the ranks of tp need? One colleague says: "All ranks need
# the same seed, or their activations differ." Another says: "Each rank needs its own seed, or all ranks drop the
# same places of their parts." We try three programs on two ranks:
#
# - `one seed` gives both ranks the same seed.
# - `own seeds` gives each rank a seed of its own.
# - `both` forks the generator. For the split tensor, each rank takes a seed of its own. Afterwards, the ranks go on
#   with the common seed.
#
# Each rank drops about half of the 8 numbers of two tensors. The first tensor is split, like the hidden layer.
# The second is whole, like the activations after Leave. In the output, x is a kept number, and a dot is a dropped
# number. Which program is right?

# %%
right_way = None  # "one seed", "own seeds" or "both"?


def drop(rank, world_size, way):
    torch.manual_seed(7 + rank * (way == "own seeds"))
    with torch.random.fork_rng(enabled=way == "both"):  # afterwards the common seed goes on
        if way == "both":
            torch.manual_seed(100 + rank)
        split = F.dropout(torch.ones(8)) > 0
    whole = F.dropout(torch.ones(8)) > 0
    return ["".join(".x"[kept] for kept in mask.tolist()) for mask in (split, whole)]


for way in ("one seed", "own seeds", "both"):
    (split_0, whole_0), (split_1, whole_1) = simlib.run(drop, 2, args=(way,)).results
    print(f"{way:9} split: {split_0} {split_1}   whole: {whole_0} {whole_1}")
    if split_0 != split_1 and whole_0 == whole_1:
        simlib.guess(right_way, way, of=("one seed", "own seeds", "both"))

# %% [markdown]
# Only `both` is right. Over tp, split tensors need **different** masks, because each rank has other numbers of the
# hidden layer. Whole tensors need **the same** mask. With different masks, the activations after Leave would differ
# from rank to rank, and torch would raise no error. Over dp, all masks should differ, because the examples differ.
#
# ## Which axis belongs inside a node?
#
# The cluster `NODES` has 4 nodes of 4 ranks. Links inside a node are ten times as fast as links between nodes.
# The 16 ranks form a mesh of 4 x 4. Ranks that are neighbours on the last axis have neighbouring numbers, so each
# group of the last axis is inside one node. `step_on` does not train. It only computes for as long, and sends as
# many bytes, as a training step of 32 layers with T = 256 tokens and D = 128.


# %%
def step_on(rank, world_size, axes, tokens=256, D=128, layers=32):
    mesh = init_device_mesh("cpu", (4, 4), mesh_dim_names=axes)
    x, gradient = torch.zeros(tokens, D), torch.zeros(12 * D * D * layers // 4)
    for _ in range(4 * layers if "tp" in axes else 0):  # two forward, two backward
        simlib.compute(50e-6)
        dist.all_reduce(x, group=mesh["tp"].get_group())
    for direction in (1, -1) if "pp" in axes else ():
        group, stage = mesh["pp"].get_group(), mesh["pp"].get_local_rank()
        if 0 <= stage - direction < 4:
            dist.recv(x, group=group, group_src=stage - direction)
        simlib.compute(50e-6 * layers)
        if 0 <= stage + direction < 4:
            dist.send(x, group=group, group_dst=stage + direction)
    dist.all_reduce(gradient, group=mesh["dp"].get_group())


# %% [markdown]
# We compare dp with tp, and then dp with pp. In each pair, which axis should be inside a node?

# %%
inside = None  # of dp and tp: "dp" or "tp"?
other_inside = None  # of dp and pp: "dp" or "pp"?
times_s = {}
for axes in (("tp", "dp"), ("dp", "tp"), ("pp", "dp"), ("dp", "pp")):
    run = simlib.simulate(step_on, 16, args=(axes,), cluster=NODES, **RINGS)
    ops = [op for op in run.trace.of_rank(5) if op.kind != "recv"]
    near = sum(op.nbytes for op in ops if op.group.ranks[1] - op.group.ranks[0] == 1) / 1e6
    times_s[axes] = run.time_s
    print(f"{' x '.join(axes)}, {axes[1]} inside: {run.time_s * 1e3:6.2f} ms;", end=" ")
    print(f"rank 5 contributes {near:4.1f} MB inside its node")
for guessed, other in ((inside, "tp"), (other_inside, "pp")):
    pair = ("dp", other), (other, "dp")
    simlib.guess(guessed, min(pair, key=times_s.get)[1], of=("dp", other))

# %% [markdown]
# With tp inside, a step takes 42.7 ms in place of 114.6 ms. Tensor parallelism sends the most bytes, and the ranks
# have to wait for each all_reduce. So **tp belongs inside a node**. A pipeline sends only one message per boundary
# and direction. So pp goes between nodes, and dp inside: 16.3 ms in place of 38.3 ms.
#
# When does tp send more than dp? In each layer, tp has four all_reduces of T x D numbers. A transformer's layer has
# 12 D² weights, and dp sends the gradients of 12 D² / tp of them. So tp sends more if T is larger than 3 D / tp. Here
# this limit is 96 tokens. In nearly all programs, T is larger.
#
# **A lab:** a model computes how 4,096 ranks train a transformer of 6.7 billion parameters, with 1,024 sequences a
# step. Each field of the map is one cut into dp x tp x pp. A field says `batch` if its dp x micro-batches do not
# divide the 1,024 sequences. Try three changes, and go back to the settings in the cell before each:
#
# - Under "neighbours first", put dp first. Which bars grow?
# - Take 1 micro-batch in place of 16. Which cut is the fastest now?
# - Go to 64 ranks without ZeRO. Which cuts do not fit? Then take stage 1 of ZeRO. Do you still need tp and pp? Then
#   take stage 3. What does it cost? The field at tp 1 and pp 1 is dp alone.

# %%
labs.draw_mesh(4096, tp=8, pp=8, num_microbatches=16)

# %% tags=["nbval-ignore-output"]
labs.mesh_lab(4096, tp=8, pp=8, num_microbatches=16)

# %% [markdown]
# This is what you should have seen:
#
# - With dp first, the groups of tp are spread over several nodes. The step takes 1.48 s in place of 0.92 s. The
#   bar of tp and the bar of the bubble grow.
# - With 1 micro-batch, a pipeline is mostly bubble. Now dp 512 x tp 8 is the fastest cut. A step takes 0.70 s.
# - On 64 ranks without ZeRO, dp alone does not fit. The fastest cut that fits is dp 16 x tp 4. With ZeRO-1, dp
#   alone fits. It is also the fastest cut: a step takes 31.0 s. So you do not need tp and pp.
# - In stage 3, ranks need the least memory: with dp alone, a rank keeps 4.0 GB. But the ranks gather the parameters
#   for every micro-batch. So a step with dp alone takes 55 s. The fastest cut in stage 3 is dp 8 x tp 4 x pp 2. A
#   step then takes 37.6 s.
#
# ## Against published numbers
#
# The authors of Megatron-LM (Shoeybi et al. 2019) measured tensor parallelism inside one machine of 8 GPUs. Each
# GPU has 300 GB/s to the others, 150 in each direction. The trained models grow with the number of GPUs, so
# ideally a step takes as long as on one GPU. This would be an efficiency of 100 %. In `simlib.scale`, the
# efficiency is the share of a step in which the GPUs compute. How near does it come to the published numbers?
#
# `simlib.scale` counts the same all_reduces as you did: per layer, two in the forward pass and two in the backward
# pass. It counts two more per layer, because the forward pass is computed again before the backward pass. No GPU
# computes during an all_reduce, so the whole time of an all_reduce is exposed.
#
# **Now you write it:** `exposed_s` returns how many seconds of a step the all_reduces take. Each all_reduce
# carries 8 sequences of 1,024 tokens, with D numbers per token and 2 bytes per number. It is a ring (lesson 05)
# of 2 (R - 1) rounds. A round has a latency of 5 us, and sends its chunk at 150 GB/s.


# %%
def exposed_s(layers, D, R):
    return None  # yours: seconds


PAPER = {2: (54, 1920, 0.96), 4: (64, 2304, 0.82), 8: (72, 3072, 0.77)}  # layers, D, efficiency
for gpus, (layers, width, published) in PAPER.items():
    multiply_adds = layers * (12 * width**2 + 2 * 1024 * width) + 51_200 * width  # of one token
    compute_s = 2 * 4 * 8 * 1024 * multiply_adds / gpus / 39e12  # 39 Tflop/s a GPU
    step = simlib.scale.tensor_parallel_time(
        3 * layers, 2 * 8 * 1024 * width, gpus, simlib.clusters.nvlink_nodes(1, gpus),
        forward_s=compute_s / 2, backward_s=compute_s / 2, itemsize=2,
    )  # fmt: skip
    model = step.compute_s / step.time_s
    print(f"{gpus} GPUs: published {published:.0%}, model {model:.1%},", end=" ")
    print(f"miss {model / published - 1:+.1%}; {step.exposed_s:.6f} s of all_reduces;", end=" ")
    yours = exposed_s(layers, width, gpus) or 0
    print("exposed_s is", "right" if abs(yours / step.exposed_s - 1) < 1e-3 else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def exposed_s(layers, D, R):
#         return 6 * layers * 2 * (R - 1) * (5e-6 + 2 * 8 * 1024 * D / R / 150e9)
#
# Each layer has six all_reduces. Each of them has 2 (R - 1) rounds. In a round, a GPU sends one of R chunks.
#
# </details>
#
# The predicted efficiency is 1 % too high for 2 GPUs. For 4 and 8 GPUs it is 12 to 13 % too high. What does the
# model leave out? A cut makes matrices narrower, and a GPU is slower on narrow matrices. And a ring does not
# reach the full 150 GB/s. [The page of published figures](../docs/published.md) says where the numbers of layers
# and sequences come from. It also has figures of a later release.
#
# ## What is next
#
# You now know dp, tp, pp, and state in shards. [Lesson 18](18_long_sequences_and_experts.ipynb) adds two more axes,
# for long sequences and for experts.
#
# ## Your turn
#
# [Exercises 12](../exercises/12_tensors_and_state.ipynb) belong to all parts of lesson 12. One of them asks for
# the cheapest mesh.
#
# ## Exit ticket
#
# 1. On a mesh of dp x tp, over which axis do the ranks average the gradients of weights? What do they sum over the
#    other axis?
# 2. In tensor parallelism, for which tensors do two ranks need the same dropout mask? For which do they need
#    different masks?
# 3. You have two axes, tp and pp, on nodes of 8 ranks. Which axis is inside a node?
#
# <details><summary>Answers</summary>
#
# 1. Over dp. Over tp, the ranks sum activations at Leave, and gradients of activations at Enter.
# 2. They need the same mask for whole tensors, after Leave. They need different masks for split tensors, between
#    Enter and Leave.
# 3. tp is inside, because it sends the most, and the ranks have to wait for it.
#
# </details>
#
# **Next:** placements, in [the fifth part](12_ways_to_place_tensors.ipynb), or asynchronous training, in
# [lesson 13](13_asynchronous_training.ipynb).
