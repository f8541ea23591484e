# %% [markdown]
# # 12 Placements: what each rank holds
#
# This is the fifth part of lesson 12. You need Enter and Leave from [the first part](12_tensors_and_state.ipynb), the
# collectives of [lesson 04](04_collectives.ipynb), and the mesh of [the fourth part](12_two_axes_at_once.ipynb). A rank
# holds a part of a tensor, all of it, or a summand of it. Torch calls these three cases **placements** of the tensor.
# In this part (60 minutes) you will
#
# - run a program that goes wrong, because it forgets what its ranks hold,
# - predict the collective and the bytes of all 16 changes of placement,
# - write these changes yourself, and compare each with torch's **DTensor**,
# - find a wrong gradient that raises no error,
# - read placements on a mesh.
#
# **R** is the number of ranks.

# %%
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import simlib

RINGS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring"}

# %% [markdown]
# ## A result that only looks finished
#
# Four ranks compute relu(x A). Each rank has 4 of the 16 columns of x, and the 4 rows of A that belong to them. So its
# product has the shape of the whole result, but is only one of four summands. In a first run, the ranks sum and then
# apply relu. In a second run (`early`), each rank applies relu before the sum.
#
# How do the wrong numbers of the early program differ from the right ones?

# %%
wrong_are = None  # "all too large", "all too small" or "some of each"?


def main(rank, world_size, x, A, early):
    y = x.chunk(world_size, 1)[rank] @ A.chunk(world_size)[rank]  # as large as the whole result
    y = F.relu(y) if early else y
    dist.all_reduce(y)
    return F.relu(y)


torch.manual_seed(0)
x, A = torch.randn(8, 16), torch.randn(16, 12)
right = F.relu(x @ A)  # one process
for early in (False, True):
    y = simlib.run(main, 4, args=(x, A, early)).results[0]
    large, small = (y > right + 1e-5).sum().item(), (y < right - 1e-5).sum().item()
    print(f"early: {early!s:5} of 96 numbers, {large:2} are too large and {small} too small")
how = "some of each" if large and small else "all too large" if large else "all too small"
simlib.guess(wrong_are, how, of=("all too large", "all too small", "some of each"))

# %% [markdown]
# The early program drops negative summands before they can reduce the sum. So no number gets too small. Nothing in the
# program says that `y` is a summand: shape and dtype are those of the result.
#
# ## Three contracts
#
# A placement is a **contract** about the local tensors of all ranks:
#
# | placement | each rank holds | the whole tensor is |
# |---|---|---|
# | `Shard(d)` | one chunk along dimension d | the concatenation of all chunks |
# | `Replicate()` | the whole tensor | any rank's tensor |
# | `Partial()` | a tensor of the full shape: one summand | the sum over all ranks |
#
# `local_of` returns what a rank may hold of a tensor. We write 0 and 1 for `Shard(0)` and `Shard(1)`, `"R"` for
# `Replicate()`, and `"P"` for `Partial()`. The summands of a Partial can be anything, as long as their sum is right.
# Here ranks 1, 2 and 3 hold 10, 20 and 30 everywhere, and rank 0 holds the rest.


# %%
def local_of(whole, placement, rank, R):
    if placement == "R":
        return whole.clone()
    if placement == "P":
        others = [torch.full_like(whole, 10.0 * other) for other in range(1, R)]
        return others[rank - 1] if rank else whole - sum(others)
    return whole.chunk(R, placement)[rank].contiguous()


# %% [markdown]
# The picture shows four placements of a tensor that counts from 0 to 15. In the last row, no rank knows any number of
# the whole tensor.


# %%
def draw(held):
    """A row for each placement, a column for each rank; `held[name]`: tensors, nan if not held."""
    figure, panels = plt.subplots(len(held), 4, figsize=(6, 1.35 * len(held)), layout="constrained")
    for line, (name, tensors) in zip(panels, held.items(), strict=True):
        line[0].set_ylabel(name)
        for rank, (axes, tensor) in enumerate(zip(line, tensors, strict=True)):
            color = "Oranges" if "Partial" in name else "Blues"
            axes.imshow(~tensor.isnan(), cmap=color, vmin=0, vmax=3)
            for place in (~tensor.isnan()).nonzero().tolist():
                text = f"{tensor[*place]:.0f}"
                axes.text(*place[::-1], text, ha="center", va="center", size=8)
            axes.set(xticks=[], yticks=[], title=f"rank {rank}" if name == next(iter(held)) else "")
    plt.show()


def spread(local):
    """The numbers 0 to 15 that a rank holds, each at its place, and nan elsewhere."""
    return torch.full((4, 4), torch.nan).put_(local.long(), local)


TORCHS = {0: Shard(0), 1: Shard(1), "R": Replicate(), "P": Partial()}
count, held = torch.arange(16.0).view(4, 4), {}
for placement, torchs in TORCHS.items():
    local_tensors = [local_of(count, placement, rank, 4) for rank in range(4)]
    held[repr(torchs)] = local_tensors if placement == "P" else list(map(spread, local_tensors))
draw(held)

# %% [markdown]
# ## Torch keeps the contract with the tensor
#
# A `DTensor` is a local tensor together with its mesh and its placement. `DTensor.from_local` makes a DTensor,
# `to_local` returns its local tensor, and `full_tensor` makes the whole tensor. For each op, a rule of torch says
# which placement the result has, and whether an input needs another placement first. We compute y = x A, z = 2 y and
# w = relu(z) with DTensors. How many collectives do these three ops need? What is the placement of z?

# %%
collectives = None  # how many, for y, z and w together?
placement_of_z = None  # "Shard", "Replicate" or "Partial"?


def with_placements(rank, world_size, x, A):
    mesh = init_device_mesh("cpu", (world_size,))
    x = DTensor.from_local(x.chunk(world_size, 1)[rank], mesh, [Shard(1)])
    A = DTensor.from_local(A.chunk(world_size)[rank], mesh, [Shard(0)])
    y = x @ A
    z = 2 * y
    w = F.relu(z)
    return [type(tensor.placements[0]).__name__ for tensor in (y, z, w)]


run = simlib.run(with_placements, 4, args=(x, A))
names = run.results[0]
print(*(f"{name} is {placement}" for name, placement in zip("yzw", names, strict=True)), sep="; ")
print(*(f"{c.kind} of {c.nbytes} bytes" for c in run.trace.collectives))
simlib.guess(collectives, len(run.trace.collectives))
simlib.guess(placement_of_z, names[1], of=("Shard", "Replicate", "Partial"))

# %% [markdown]
# There is one collective. `x @ A` needs none, because its result is a Partial. Doubling all summands doubles their
# sum, so z stays a Partial. But relu of a sum is not the sum of relus. So torch all_reduces z before relu, as Leave
# does.
#
# ## The table of changes
#
# `x.redistribute(mesh, [placement])` changes a placement. **A redistribute is a collective**, or it is free. We shard
# a matrix along dimension 0 or 1, so we have four placements and 4 x 4 changes. Ask for each change: which numbers does
# a rank need after the change that it does not hold before?
#
# **Now you write it:** `cost` returns the name of the collective, and the bytes that each rank sends. The name is
# `"all_reduce"`, `"all_gather"`, `"reduce_scatter"`, `"all_to_all"` or `"nothing"`. `src` and `dst` are 0, 1, `"R"` or
# `"P"`. The whole tensor has `nbytes` bytes. An all_to_all sends each piece straight to its rank, and the other
# collectives are rings (lesson 05). This check compares 11 of the 16 entries with what torch sends. The next check
# compares all 16 with what your own program sends.


# %%
def cost(src, dst, nbytes, R):
    return None, None  # yours: the name of the collective, and the bytes that a rank sends


def by_torch(rank, world_size, whole, src, dst):
    mesh = init_device_mesh("cpu", (world_size,))
    x = DTensor.from_local(local_of(whole, src, rank, world_size), mesh, [TORCHS[src]])
    return x.redistribute(mesh, [TORCHS[dst]]).to_local()


def measured(program, R, *args):
    """The run, the name of its collective, and the bytes that rank 0 sends."""
    run = simlib.simulate(program, R, args=args, expand=True, **RINGS)
    kinds = [c.kind for c in run.trace.collectives] or ["nothing"]
    return run, kinds[0], sum(message.nbytes for message in run.wire if message.src == 0)


whole = torch.arange(96.0).view(8, 12)
for src in TORCHS:
    row = []
    for dst in TORCHS:
        if (dst != "P" or src == "P") and {src, dst} != {0, 1}:
            torchs = [measured(by_torch, R, whole, src, dst)[1:] for R in (2, 4)]
            ok = [cost(src, dst, whole.nbytes, R) for R in (2, 4)] == torchs
            row.append(f"to {dst} {'right' if ok else 'not yet'}")
    print(f"from {src}:", "; ".join(row))

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def cost(src, dst, nbytes, R):
#         part = (R - 1) / R * nbytes
#         if src in ("R", dst) or dst == "P":
#             return "nothing", 0
#         if src == "P":
#             return ("all_reduce", 2 * part) if dst == "R" else ("reduce_scatter", part)
#         return ("all_gather", part) if dst == "R" else ("all_to_all", part / R)
#
# - A rank with the whole tensor cuts its chunk out of it. It can also make a summand: rank 0 takes the whole tensor,
#   and all others take zeros. A rank with a chunk puts zeros around it.
# - From Partial, a rank lacks the other ranks' summands. For a shard it needs only those of its own chunk.
# - From shards along one dimension to shards along another one, rank r needs from each other rank only the piece
#   where its old chunk and r's new chunk overlap. This piece is one R-th of a chunk.
#
# </details>
#
# ## Write the changes yourself
#
# `move` does the free changes. **Now you write it:** `over_the_network` does all others. It gets the local tensor and
# the two placements.
#
# - From `"P"` to `"R"`: copy `local`, and `dist.all_reduce(copy)` sums the copies of all ranks.
# - From `"P"` to a shard: `local.chunk(R, dst)` is the list of chunks. `dist.reduce_scatter(mine, chunks)` sums chunk
#   r of all ranks into `mine` on rank r.
# - From a shard to `"R"`: `dist.all_gather(found, local)` puts all ranks' tensors in the list `found`.
# - From one shard to the other: `dist.all_to_all(found, chunks)` sends chunk r to rank r. How must a rank join the
#   received chunks?
#
# Send contiguous chunks: `chunk.contiguous()`.


# %%
def over_the_network(local, src, dst):
    return None  # yours: the new local tensor


def move(rank, world_size, whole, src, dst):
    local = local_of(whole, src, rank, world_size)
    if src == dst or (src, dst) == ("R", "P") and rank == 0:
        return local
    if src == "R":
        return local.chunk(world_size, dst)[rank] if dst != "P" else torch.zeros_like(local)
    if dst == "P":
        parts = [torch.zeros_like(local) for _ in range(world_size)]
        return torch.cat([*parts[:rank], local, *parts[rank + 1 :]], src)
    return over_the_network(local, src, dst)


def every_change(rank, world_size, whole):
    pairs = [(src, dst) for src in TORCHS for dst in TORCHS]
    return {pair: move(rank, world_size, whole, *pair) for pair in pairs}


def assembled(locals_of_ranks, placement):
    """The whole tensor; None if the ranks break the contract."""
    first = locals_of_ranks[0]
    if first is None:
        return None
    if placement == "R":
        return first if all(torch.equal(first, local) for local in locals_of_ranks) else None
    return sum(locals_of_ranks) if placement == "P" else torch.cat(locals_of_ranks, placement)


# %% [markdown]
# The check runs all 16 changes twice. On real ranks, the new local tensors must keep the new contract. On simulated
# ranks, rank 0 must send no more bytes than with torch. For a change to Partial, which torch refuses, rank 0 must send
# nothing. The check prints what rank 0 sends, and where your `cost` differs from it.

# %%
moved = simlib.run(every_change, 4, args=(whole,)).results
for src in TORCHS:
    row = []
    for dst in TORCHS:
        new = assembled([of_rank[src, dst] for of_rank in moved], dst)
        _, kind, sent = measured(move, 4, whole, src, dst)
        most = 0 if dst == "P" else measured(by_torch, 4, whole, src, dst)[2]
        ok = new is not None and torch.equal(new, whole) and sent <= most
        differs = ", cost differs" if ok and cost(src, dst, whole.nbytes, 4) != (kind, sent) else ""
        row.append(f"to {dst} {'right' if ok else 'not yet'} ({kind} {sent}{differs})")
    print(f"from {src}:", "; ".join(row))

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def over_the_network(local, src, dst):
#         R = dist.get_world_size()
#         if (src, dst) == ("P", "R"):
#             whole = local.clone()
#             dist.all_reduce(whole)
#             return whole
#         chunks = [c.contiguous() for c in local.chunk(R, dst)] if dst != "R" else [local] * R
#         if src == "P":
#             mine = torch.empty_like(chunks[0])
#             dist.reduce_scatter(mine, chunks)
#             return mine
#         found = [torch.empty_like(chunk) for chunk in chunks]
#         if dst == "R":
#             dist.all_gather(found, local)
#         else:
#             dist.all_to_all(found, chunks)
#         return torch.cat(found, src)
#
# A rank receives pieces along the old dimension, so it joins them along `src`.
#
# </details>
#
# Between shards, our program sends 72 of the 384 bytes. Torch sends more on CPUs, because it uses no all_to_all there:

# %%
_, kind, sent = measured(by_torch, 4, whole, 0, 1)
print(f"torch from Shard(0) to Shard(1): {kind}, each rank sends {sent} bytes")

# %% [markdown]
# Each rank gathers the whole tensor and keeps a chunk of it. So a rank sends 288 bytes, four times as many as
# necessary. Torch's source says why: it assumes that Gloo has no all_to_all. On GPUs, torch calls all_to_all. So a
# placement says what ranks hold, but only a trace shows what they send.
#
# ## Gradients have placements, too
#
# In data parallelism, each rank has the whole matrix W, and some of the examples. Each rank computes the gradient of its
# own examples. This is one summand, so the gradient of W is a Partial, although W is a Replicate. Each change in the
# forward pass has its own change in the backward pass:
#
# | name in the first part | forward | backward |
# |---|---|---|
# | Leave | Partial to Replicate: all_reduce | Replicate to Replicate: nothing |
# | Enter | Replicate to Replicate: nothing | Partial to Replicate: all_reduce |
# | Gather | Shard to Replicate: all_gather | Partial to Shard: reduce_scatter |
#
# A DTensor follows such rules by itself. But many programs take the local tensor out, to compute with plain torch. The
# program below calls `W.to_local()`. It prints the placement of `W.grad`, and the first number of
# `W.grad.full_tensor()`. Torch prints `R` for `Replicate()`, `S(0)` for `Shard(0)`, and `P(sum)` for `Partial()`. In
# the second run, we tell torch the placement of the gradient: `to_local(grad_placements=[Partial()])`.
#
# Do both ranks see the same gradient in the first run?

# %%
same = None  # the same gradient in the first run: "yes" or "no"?


def gradient(rank, world_size, W, x, told):
    mesh = init_device_mesh("cpu", (world_size,))
    W = distribute_tensor(W, mesh, [Replicate()]).requires_grad_()
    w = W.to_local(grad_placements=[Partial()] if told else None)
    (x.chunk(world_size)[rank] @ w).square().sum().backward()
    return W.grad.placements[0], W.grad.full_tensor()[0, 0].item()


W, examples = torch.randn(3, 3), torch.randn(8, 3)
print(f"one process: {(2 * examples.T @ examples @ W)[0, 0]:.4f}")
for told in (False, True):
    (placement, zero), (_, one) = simlib.run(gradient, 2, args=(W, examples, told)).results
    print(f"told: {told!s:5} {placement}: rank 0 has {zero:.4f}, rank 1 has {one:.4f}")
    if not told:
        simlib.guess(same, "yes" if zero == one else "no", of=("yes", "no"))

# %% [markdown]
# The first run breaks the contract. `W.grad` says Replicate, but the ranks hold different numbers. Torch raises no
# error: without `grad_placements`, it assumes that the gradient has the placement of W. After the next step of the
# optimizer, W itself differs from rank to rank. With `grad_placements`, `full_tensor` sums the two gradients.
#
# `from_local` does not compare the ranks' tensors either. **A placement is a promise that nobody checks.** So test it:
# gather all local tensors, and compare.
#
# ## A placement for each axis
#
# On a mesh, a tensor has one placement for each axis. Each kind of training has its own placement of the weights:
#
# | mesh | weights | name |
# |---|---|---|
# | (dp) | `[Replicate()]` | data parallelism, DDP |
# | (dp) | `[Shard(0)]` | FSDP |
# | (replicate, shard) | `[Replicate(), Shard(0)]` | HSDP, which the next part builds |
# | (dp, tp) | `[Shard(0), Shard(1)]` | FSDP and tensor parallelism (`RowwiseParallel`) |
#
# `RowwiseParallel` cuts the rows of A in x A. An `nn.Linear` stores A transposed, so these rows are dimension 1 of its
# weight. The second axis cuts what the first one leaves. The mesh below has 2 x 2 ranks. In how many all_gathers does
# rank 0 take part, if the ranks make a `full_tensor` from `[Shard(0), Shard(1)]`?

# %%
gathers = None  # of rank 0, from [Shard(0), Shard(1)]


def on_two_axes(rank, world_size, placements):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    whole = torch.arange(16.0).view(4, 4)  # on every rank, so nothing must be sent:
    x = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    x.full_tensor()
    return spread(x.to_local())


held = {}
for placements in ((Replicate(), Shard(0)), (Shard(0), Shard(1)), (Shard(0), Shard(0))):
    run = simlib.simulate(on_two_axes, 4, args=(placements,))
    name = " ".join(map(str, placements))
    held[name] = run.results
    print(f"{name:9}", *(f"{op.kind} {op.group.ranks}" for op in run.trace.of_rank(0)), sep="  ")
    if name == "S(0) S(1)":
        simlib.guess(gathers, len(run.trace.of_rank(0)))
draw(held)

# %% [markdown]
# Under `[Replicate(), Shard(0)]` a rank holds half of the numbers, and one all_gather with its neighbour makes the
# whole tensor. Under `[Shard(0), Shard(1)]` a rank holds a quarter, and it needs an all_gather on each axis. The same
# is true of `[Shard(0), Shard(0)]`. There both axes cut rows.
#
# ## Your turn
#
# Do task 6 of [exercises 12](../exercises/12_tensors_and_state.ipynb).
#
# ## Exit ticket
#
# 1. x is a Partial, and a program adds a bias to it. What must happen first, and why?
# 2. The product x A is a Partial of N bytes on R ranks. The next layer wants it as `Shard(0)`. Which collective makes
#    this change, and how many bytes does a rank send?
# 3. Which changes of placement are free?
#
# <details><summary>Answers</summary>
#
# 1. The ranks must sum x, or only one rank may add the bias. Otherwise the bias is in the sum R times.
# 2. It is a reduce_scatter. A rank sends (R - 1) / R x N bytes, half of what an all_reduce sends. The first part calls
#    this sequence parallelism.
# 3. All changes from Replicate are free, and all changes to Partial. A rank can make its new part alone.
#
# </details>
#
# **Next:** HSDP, clipping and checkpoints, in [the last part](12_ways_to_save_and_clip.ipynb).
