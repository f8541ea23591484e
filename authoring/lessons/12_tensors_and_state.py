# %% [markdown]
# # 12 Splitting tensors and state
#
# Lesson 10 cut a network between its layers. Two other cuts go through everything. **Tensor
# parallelism** cuts each matrix, so that ranks work on one layer at the same time. **Sharding**
# cuts what data-parallel ranks hold twice for no good reason. In this lesson (85 minutes) you will
#
# - cut a linear layer by columns and by rows, and build the two autograd functions that this takes,
#   after three wrong ways,
# - place every all_reduce of a transformer block, predict its bytes, and find the same ones in
#   torch's own version,
# - build ZeRO 1, 2 and 3 in some 40 lines, equal to torch's FSDP2 message by message, and train the
#   network that "data parallelism cannot help",
# - lay ranks out as a mesh and measure which axis belongs inside a node,
# - save a model on 4 ranks and load it on 2, and on one.
#
# Letters: **R** ranks, **T** tokens (rows of the activations), **D** numbers per token, **H**
# numbers in the hidden layer, **P** parameters.

# %%
import itertools
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import simlib
from simlib import labs
from simlib.draw import draw_memory

RINGS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring"}
NODES = simlib.Cluster(4, 4, inter=simlib.Link(30e-6, 1.25e9), intra=simlib.Link(5e-6, 12.5e9))


def cluster_with(**device):
    return simlib.clusters.ethernet_10g(8, device=simlib.Device(flops_per_s=100e9, **device))


# %% [markdown]
# ## Two ways to cut a matrix
#
# A linear layer makes $y = x A$. (`nn.Linear` stores $A^\top$: its dimension 0 is the outputs.) Cut
# A by **columns**, and each rank makes some of the outputs, from all of x (the layer is then
# *column-parallel*). Cut A by **rows**, and each rank needs only its part of x, but makes a *summand*
# of every output (*row-parallel*):
#
# $$x\,[A_0\;A_1] = [x A_0\;\; x A_1] \qquad\qquad
# [x_0\;x_1] \begin{bmatrix} B_0 \\ B_1 \end{bmatrix} = x_0 B_0 + x_1 B_1$$
#
# After which of the two may each rank go on with a GELU of its own, before anybody sends anything?
# In one process:

# %%
guess = None  # after columns, after rows, both?
T, D, H = 24, 48, 192
torch.manual_seed(0)
x, A = torch.randn(T, D), torch.randn(D, H) / D**0.5

for R in (2, 3, 4):
    by_columns = [x @ part for part in A.chunk(R, dim=1)]
    pairs = zip(x.chunk(R, dim=1), A.chunk(R, dim=0), strict=True)
    by_rows = [x_part @ A_part for x_part, A_part in pairs]
    off = {
        "columns, side by side": torch.cat(by_columns, dim=1) - x @ A,
        "rows, added up": sum(by_rows) - x @ A,
        "GELU of columns": torch.cat([F.gelu(y) for y in by_columns], dim=1) - F.gelu(x @ A),
        "GELU of rows": sum(F.gelu(y) for y in by_rows) - F.gelu(x @ A),
    }
    print(R, {name: round(residual.abs().max().item(), 3) for name, residual in off.items()})

# %% [markdown]
# After columns only: a GELU takes each number by itself, but the GELU of a sum is not the sum of
# GELUs. So a transformer's MLP, $\text{GELU}(xA)\,B$, is cut **by columns first, then by rows**.
# The hidden part that a rank makes is just what its rows of B need. One sum, at the end, is all
# that is sent.
#
# ## Wrong way 1: a bias on every rank
#
# Each rank has its columns of A (with their biases) and its rows of B. The bias of the second layer
# belongs to all outputs, so every rank has it, and `F.linear` takes it along. By how much is the
# result wrong on R ranks?


# %%
def weights(rank, world_size):
    """The input, and this rank's part of the MLP: the same numbers however it is cut."""
    torch.manual_seed(0)
    up, down, x = nn.Linear(D, H), nn.Linear(H, D), torch.randn(T, D)
    mine = [up.weight.chunk(world_size)[rank], up.bias.chunk(world_size)[rank]]
    mine += [down.weight.chunk(world_size, dim=1)[rank], down.bias]
    return x, [nn.Parameter(part.detach().clone()) for part in mine]


def forward(rank, world_size, bias_after):
    x, (a, a_bias, b, b_bias) = weights(rank, world_size)
    h = F.gelu(F.linear(x, a, a_bias))
    y = F.linear(h, b, None if bias_after else b_bias).detach()
    dist.all_reduce(y)
    return (y + b_bias if bias_after else y).detach(), b_bias.detach()


whole, bias = simlib.run(forward, 1, args=(True,)).results[0]
for R in (2, 3, 4):
    for bias_after in (False, True):
        y = simlib.run(forward, R, args=(bias_after,)).results[0][0]
        times = ((y - whole) @ bias / (bias @ bias)).mean().item()  # how many biases too much
        left = (y - whole - times * bias).abs().max().item()
        print(f"{R} ranks, {'after' if bias_after else 'before'} the sum: too much by", end=" ")
        print(f"{abs(times):.3f} biases; nothing else is wrong: {left < 1e-5}")

# %% [markdown]
# The sum adds up the bias as well: R times instead of once. **The bias of a row-parallel layer
# comes after the sum.**
#
# ## Wrong way 2: the sum backward, too
#
# autograd does not see `dist.all_reduce` (lesson 10: it records what happens in its own process).
# So we write the backward ourselves. "What is a sum forward is a sum backward", one is tempted to
# say, and in lesson 07 every gradient was all_reduced. The first class below does so. But the chain
# rule says, for $y = \sum_r y_r$,
#
# $$\frac{\partial L}{\partial y_r} = \frac{\partial L}{\partial y} \qquad \text{(Leave)} \qquad\qquad
# \frac{\partial L}{\partial x} = \sum_r \frac{\partial L}{\partial x_r} \qquad \text{(Enter)}$$
#
# On the left: every rank works out the *same* loss from the same y, so it has this gradient
# already. On the right: $x_r$ is rank r's copy of x. Each goes into other columns, so what comes back
# to x is a sum, one part from each rank.


# %%
class LeaveTwice(torch.autograd.Function):  # wrong
    @staticmethod
    def forward(ctx, y):
        y = y.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return LeaveTwice.forward(ctx, gradient)


class Leave(LeaveTwice):  # a sum forward, nothing backward
    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Enter(LeaveTwice):  # nothing forward, a sum backward: LeaveTwice's
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)


# %% [markdown]
# Three ways on 3 real ranks: with the wrong Leave; with the right one but nothing at the entrance
# (wrong way 3); with both. Each column has the gradient's size along the right one, in one process:
# 1.00 is right. x stands for the layers before this one: its gradient is what they get.

# %%
guess = None  # which of the columns are 1.00 with the first way? With the second?


def gradients(rank, world_size, enter, leave, needs_gradient=True):
    x, w = weights(rank, world_size)
    h = F.gelu(F.linear(enter(x.requires_grad_(needs_gradient)), w[0], w[1]))
    y = leave(F.linear(h, w[2])) + w[3]
    y.square().sum().backward()
    return [x.grad, *(part.grad for part in w)]


ways = {
    "LeaveTwice": (Enter.apply, LeaveTwice.apply),
    "no Enter": (lambda x: x, Leave.apply),
    "Enter and Leave": (Enter.apply, Leave.apply),
}
one = simlib.run(gradients, 1, args=ways["Enter and Leave"]).results[0]
right = [one[0], one[1].chunk(3)[1], one[2].chunk(3)[1], one[3].chunk(3, dim=1)[1], one[4]]
for name, way in ways.items():
    run = simlib.run(gradients, 3, args=way)
    pairs = zip(("x", "A", "A's bias", "B", "B's bias"), run.results[1], right, strict=True)
    along = [f"{name} {((a * b).sum() / (b * b).sum()).item():.2f}" for name, a, b in pairs]
    print(f"{name:16}", *along, len(run.trace.collectives), "all_reduces")

# %% [markdown]
# Gradients of what comes before a wrong Leave are **R times too large**. Without Enter all weights *between Enter and Leave* are right, and x gets one rank's part of its
# gradient: the layers before learn something else on every rank, and nothing is raised. With the
# pair everything is right, for one all_reduce each way.
#
# | | forward | backward |
# |---|---|---|
# | Enter, before the columns | nothing | all_reduce |
# | Leave, after the rows | all_reduce | nothing |
#
# And lesson 07's loop over all gradients? There every rank had examples of its own. Here all have
# the same, and *different* parts of A and B: an average would mix weights that have nothing to do
# with each other. The bias of B is whole on every rank, and so is its gradient: summed, it would be R
# times too large.
#
# ## torch's own
#
# `parallelize_module` cuts a module by a plan: `ColwiseParallel` for columns, `RowwiseParallel` for
# rows. Parameters become **DTensors**: tensors that know of which whole they are a part. Does it
# send the same? And what if the input needs no gradient, as the very first layer's does not?

# %%
guess = None  # how many all_reduces without a gradient for x: yours, torch's?


def own_mlp(rank, world_size, needs_gradient):
    return gradients(rank, world_size, Enter.apply, Leave.apply, needs_gradient)[1]


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

# %% [markdown]
# The same all_reduces, byte for byte. If x needs no gradient, autograd never calls the backward of
# Enter, and one is saved. (We counted all_reduces alone: before, torch's program scatters the
# weights of rank 0, and broadcasts a bias.)
#
# ## Attention: whole heads
#
# (Attention makes a query, a key and a value of each token, by matrices q, k and v. A **head** is some
# neighbouring columns of all three: in it each token takes a mean of values, weighted by how well its
# query fits their keys. With an MLP behind it this is a **transformer block**.) Heads do not need each
# other. Cut the matrices q, k and v by columns *between heads*, and the
# output matrix by rows: each rank computes some heads from beginning to end. So a transformer block
# is two pairs of columns and rows. Norms and the sum past each pair (`x + ...`) work on whole
# activations, the same on every rank. How many all_reduces are in one forward pass, how many in
# backward? **Now you write it:** `all_reduced` gives the bytes that a rank brings to them in a
# step; the second cell holds it against the trace.


# %%
HEADS = 12
AXIS = {"q": 0, "k": 0, "v": 0, "out": 1, "up": 0, "down": 1}  # columns: 0, rows: 1


def block_weights(rank, world_size):
    """The input, and this rank's part of a block without biases, by name."""
    torch.manual_seed(0)
    shapes = {name: (D, D) for name in AXIS} | {"up": (H, D), "down": (D, H)}
    w = {name: torch.randn(shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
    mine = {name: w[name].chunk(world_size, AXIS[name])[rank].clone() for name in AXIS}
    mine |= {"norm 1": torch.ones(D), "norm 2": torch.ones(D)}
    return torch.randn(T, D), {name: nn.Parameter(part) for name, part in mine.items()}


def block(x, w, enter, leave):
    h = enter(F.layer_norm(x, [D], w["norm 1"]))
    q, k, v = (F.linear(h, w[n]).unflatten(1, (-1, D // HEADS)).transpose(0, 1) for n in "qkv")
    h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + leave(F.linear(h.transpose(0, 1).flatten(1), w["out"]))
    h = enter(F.layer_norm(x, [D], w["norm 2"]))
    return x + leave(F.linear(F.gelu(F.linear(h, w["up"])), w["down"]))


# %%
def all_reduced(T, D, R):
    return None  # your formula: bytes


def block_step(rank, world_size):
    x, w = block_weights(rank, world_size)
    y = block(x.requires_grad_(), w, Enter.apply, Leave.apply)
    held = simlib.held()["activations and temporaries"]
    y.square().sum().backward()
    return held, {name: part.grad for name, part in w.items()}


def is_right(run):
    """Whether all gradients, put together from all ranks, are those of one process."""
    found = {n: torch.cat([mine[n] for _, mine in run.results], AXIS[n]) for n in AXIS}
    found |= {n: run.results[-1][1][n] for n in ("norm 1", "norm 2")}  # whole on every rank
    return all(torch.allclose(found[n], alone.results[0][1][n], atol=1e-3) for n in found)


alone = simlib.simulate(block_step, 1, cluster=cluster_with())
for R in (2, 3, 4):
    run = simlib.simulate(block_step, R, cluster=cluster_with(), **RINGS)
    print(f"{R} ranks: gradients as in one process: {is_right(run)}; activations held:", end=" ")
    measured = sum(call.nbytes for call in run.trace.collectives)
    print(f"{run.results[0][0]:,}; all_reduced: {measured:,}", all_reduced(T, D, R) or "")

# %% [markdown]
# <details><summary>The formula</summary>
#
# `4 * 4 * T * D`: four all_reduces, two forward and two backward, of T x D numbers of 4 bytes. R is
# not in it, nor H.
#
# </details>
#
# (5 ranks fail: 12 heads cannot be dealt out.) The norms' gradients come out whole.
# Activations do not fall to a half or a quarter: everything between Leave and the next Enter is whole
# on each rank. Two notes on that.
#
# ## Dropout and seeds
#
# Dropout throws numbers away by chance. "All ranks need the same seed", says one, "else they drift
# apart"; "each its own", says the other, "else all heads lose the same places". Two ranks drop half
# of 8 numbers of a split tensor (the hidden part) and of a whole one (after Leave). Who is right?

# %%
guess = None  # one seed, own seeds, both, or neither?


def drop(rank, world_size, way):
    torch.manual_seed(7 + rank * (way == "own seeds"))
    with torch.random.fork_rng(enabled=way == "both"):  # afterwards the seed of all goes on
        if way == "both":
            torch.manual_seed(100 + rank)
        split = F.dropout(torch.ones(8)) > 0
    whole = F.dropout(torch.ones(8)) > 0
    return ["".join(".x"[kept] for kept in mask.tolist()) for mask in (split, whole)]


for way in ("one seed", "own seeds", "both"):
    (split_0, whole_0), (split_1, whole_1) = simlib.run(drop, 2, args=(way,)).results
    print(f"{way:9} split: {split_0} {split_1}   whole: {whole_0} {whole_1}")

# %% [markdown]
# Neither alone. Split tensors need **different** masks, whole ones **the same**: else each rank has another
# x from there on, and no error tells. Third line: the generator is forked for the split part.
#
# ## Sequence parallelism: the sum in two halves
#
# Between Leave and Enter every rank does the same work on the same numbers. An all_reduce is a
# reduce_scatter and an all_gather (lesson 05). So pull it apart: Leave only reduce_scatters, each
# rank keeps T/R tokens, norm and dropout work on those, and Enter all_gathers. A rank now has the loss
# of its own tokens only: so gradients are gathered, too. Bytes and memory: more, less or the same?


# %%
def all_gather(part):
    whole = part.new_empty(dist.get_world_size() * len(part), *part.shape[1:])
    dist.all_gather_single(whole, part.contiguous())
    return whole


def reduce_scatter(whole):
    part = whole.new_empty(len(whole) // dist.get_world_size(), *whole.shape[1:])
    dist.reduce_scatter_single(part, whole.contiguous())
    return part


class Gather(torch.autograd.Function):  # in the place of Enter
    forward = staticmethod(lambda ctx, x: all_gather(x))
    backward = staticmethod(lambda ctx, gradient: reduce_scatter(gradient))


class Scatter(torch.autograd.Function):  # in the place of Leave
    forward = staticmethod(lambda ctx, y: reduce_scatter(y))
    backward = staticmethod(lambda ctx, gradient: all_gather(gradient))


# %%
guess = None  # bytes and memory: more, less, the same?


def sequence_step(rank, world_size):
    x, w = block_weights(rank, world_size)
    x = x.chunk(world_size)[rank].clone().requires_grad_()
    y = block(x, w, Gather.apply, Scatter.apply)
    held = simlib.held()["activations and temporaries"]
    y.square().sum().backward()
    for norm in ("norm 1", "norm 2"):
        dist.all_reduce(w[norm].grad)  # a rank's norms have seen its own tokens only
    return held, {name: part.grad for name, part in w.items()}


for R in (2, 4):
    for step in (block_step, sequence_step):
        run = simlib.simulate(step, R, cluster=cluster_with(), expand=True, **RINGS)
        sent = sum(m.nbytes for m in run.wire if m.src == 0 and m.nbytes * R > 4 * D)
        print(f"{R} ranks, {step.__name__:13}: right:", end=" ")
        print(is_right(run), f"- sent {sent:,} - held {run.results[0][0]:,}")

# %% [markdown]
# The same bytes (those of the norms, 4 D each, are left out), and less memory. The price: a norm
# sees its own tokens only, so now *its* gradients must be added up. Lesson 07's loop is back, for
# two small vectors. (`all_gather_single` was called `all_gather_into_tensor` before torch 2.13.)
#
# ## "Data parallelism cannot help the memory of the state"
#
# That was lesson 10. Now let go of it. With R ranks there are R
# copies of 16 P bytes, but a rank *needs* a parameter only while its layer computes, and optimizer
# state only in the step. **ZeRO** (Rajbhandari et al. 2019) gives each rank a part to keep, a
# **shard**:
#
# | stage | cut | sent for it |
# |---|---|---|
# | 1 | optimizer state | gradients reduce_scattered, new parameters all_gathered |
# | 2 | gradients, too | the same |
# | 3 | parameters, too | parameters all_gathered before forward *and* backward, gradients reduce_scattered |
#
# The tool: a `Unit` is one layer, whose weights become views of one flat tensor, `whole`. `shard` is
# the rank's part of it, all that Adam knows. In stages 1 and 2 it is a view, too: a step of Adam
# changes the layer. In stage 3 it is a copy, as `whole` comes and goes: `resize_(0)` frees its storage,
# and the views have nothing behind them until it is filled again. For that, hooks call `need`: before
# the layer's forward, and once the gradient of its output is there, just before its backward. `need`
# also starts to collect the layer that comes next in this direction (`ahead`), while this one
# computes: **prefetch**. `reduce` is called for each weight that has its gradient.


# %%
class Unit:
    def __init__(self, module, stage, reshard=True):
        self.stage, self.reshard, self.ahead = stage, reshard, {}
        self.weights = list(module.parameters())
        self.whole = torch.cat([w.detach().flatten() for w in self.weights])
        parts = self.whole.split([w.numel() for w in self.weights])
        for w, part in zip(self.weights, parts, strict=True):
            w.data = part.view_as(w)
            w.register_post_accumulate_grad_hook(self.reduce)
        mine = self.whole.chunk(dist.get_world_size())[dist.get_rank()]
        self.shard = nn.Parameter(mine.clone() if stage == 3 else mine)  # else a view
        if stage == 3:
            module.register_forward_pre_hook(lambda *_: self.need("forward"))
            module.register_forward_hook(self.forward_done)
            self.drop()

    def drop(self):
        self.whole.untyped_storage().resize_(0)

    def forward_done(self, module, inputs, y):
        if self.reshard:
            self.drop()
        y.register_hook(lambda _: self.need("backward"))


# %%
class Zero(Unit):
    def need(self, direction):
        for unit in (self, self.ahead.get(direction)):
            if unit and not unit.whole.untyped_storage().nbytes():
                mine = unit.shard.detach()
                unit.whole.untyped_storage().resize_(mine.nbytes * dist.get_world_size())
                unit.request = dist.all_gather_single(unit.whole, mine, async_op=True)
        self.request.wait()

    def reduce(self, _):
        if any(w.grad is None for w in self.weights):
            return  # the last one sends them all
        flat = torch.cat([w.grad.flatten() for w in self.weights])
        for w in self.weights:
            w.grad = None
        mine = flat.chunk(dist.get_world_size())[dist.get_rank()]  # keeps flat alive: stage 1
        mine = mine if self.stage == 1 else torch.empty_like(mine)
        dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG)
        self.shard.grad = mine
        if self.stage == 3:
            self.drop()


# %% [markdown]
# Now lesson 10's network and its Adam, which a device of 12 MB could not hold on any number of
# data-parallel ranks. (It has 12 outputs in place of 10: so four ranks can cut every layer evenly.)
# Stage 0 is plain data parallelism. Two steps, 256 examples shared among the ranks. What does each
# rank hold after a step, in bytes per parameter, on 4 ranks?


# %%
def make(number):
    """Layer 1 to 6 of lesson 10's network, with the weights it has wherever it is made."""
    torch.manual_seed(number)
    sizes = [784, 512, 512, 512, 512, 512, 12][number - 1 : number + 1]
    return nn.Sequential(nn.Linear(*sizes), *[nn.ReLU()] * (number < 6))


def two_steps(rank, world_size, net, adam, B, sync=lambda: None, after=lambda: None):
    for step in range(2):
        adam.zero_grad()
        torch.manual_seed(100 * step + rank)
        x, labels = torch.rand(B // world_size, 784), torch.randint(10, (B // world_size,))
        with simlib.span("step", number=step):
            F.cross_entropy(net(x), labels).backward()
            sync()
            adam.step()
            after()
    return simlib.held()


# %%
def train(rank, world_size, stage, B=256, reshard=True, prefetch=True):
    layers, units = [], []
    for number in range(1, 7):
        layers.append(make(number))
        units += [Zero(layers[-1], stage, reshard)] if stage else []
    for one, other in itertools.pairwise(units if prefetch else []):
        one.ahead["forward"], other.ahead["backward"] = other, one
    net = nn.Sequential(*layers)
    adam = torch.optim.Adam([unit.shard for unit in units] or net.parameters())

    def sync():
        for p in net.parameters() if stage == 0 else ():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)

    def after():
        for unit in units if stage < 3 else ():
            dist.all_gather_single(unit.whole, unit.shard.detach())

    held = two_steps(rank, world_size, net, adam, B, sync, after)
    kept = [unit.shard for unit in units] or [p.flatten() for p in net.parameters()]
    return held, [part.detach().clone() for part in kept]


# %% [markdown]
# **Now you write it:** `kept` gives bytes of parameters, gradients and optimizer state on each rank
# after a step, Adam's counts of steps aside.

# %%
P = sum(p.numel() for number in range(1, 7) for p in make(number).parameters())


def kept(stage, P, R):
    return None  # your formula: three numbers of bytes


def whole_of(run, copies=False):
    """All parameters of a run, put together from its ranks, layer by layer."""
    ranks = [parts for _, parts in (run.results[:1] if copies else run.results)]
    return torch.cat([torch.cat(parts) for parts in zip(*ranks, strict=True)])


zero = {}
for stage in (0, 1, 2, 3):
    options = {"cluster": cluster_with(), "expand": True, **RINGS}
    run = zero[stage] = simlib.simulate(train, 4, args=(stage,), **options)
    held, by_hand = list(run.results[0][0].values())[:3], kept(stage, P, 4)
    sent = sum(message.nbytes for message in run.wire if message.src == 0) / 2
    same = torch.equal(whole_of(run, copies=stage == 0), whole_of(zero[0], copies=True))
    print(f"ZeRO-{stage}: kept", *(f"{nbytes / P:.2f}" for nbytes in held), end=" ")
    print(f"bytes per parameter; sent {sent / (4 * P * 3 / 4):.2f}; weights of stage 0: {same}")
    if by_hand is not None:
        print("  by hand, differences:", [a - b for a, b in zip(held, by_hand, strict=True)])

# %% [markdown]
# <details><summary>The formula</summary>
#
# `R1, R2, R3 = (R if stage >= least else 1 for least in (1, 2, 3))`, then `return 4 * P / R3, 4 * P
# / R2, 8 * P / R1`. Left over are Adam's counts: 4 bytes for each tensor.
#
# </details>
#
# The weights are those of data parallelism to the last bit; only places have changed. Stages 1 and
# 2 send what it sends: an all_reduce *is* a reduce_scatter and an all_gather. Stage 3 gathers
# twice, and sends 3 in place of 2. Does lesson 10's network fit now into 12 MB? And what is there at
# the peak, in backward through the first and largest layer?

# %%
guess = None  # which stages fit on 4 ranks? And does stage 3 fit on 2?
titles = {0: "data parallel", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}
for R in (2, 4):
    try:
        simlib.simulate(train, R, args=(3,), cluster=cluster_with(memory_bytes=12e6))
        print(f"stage 3 on {R} ranks of 12 MB: trained")
    except simlib.OutOfMemoryError as error:
        print(f"stage 3 on {R} ranks of 12 MB:", str(error).partition(";")[0])
first = 784 * 512 + 512  # parameters of layer 1
there = {
    "shards of parameters and Adam": (4 + 8) * P // 4,
    "gradient shards of layers 2 to 6": 4 * (P - first) // 4,
    "layer 1 whole, three times": 3 * 4 * first,
    "the batch": 64 * (4 * 784 + 8),
}
print(*(f"{name}: {nbytes:,}" for name, nbytes in there.items()), sep="\n")
peak_bytes = zero[3].memory[0].peak_bytes
print(f"peak of stage 3: {peak_bytes:,}; not explained: {peak_bytes - sum(there.values())}")
draw_memory({titles[stage]: zero[stage] for stage in (0, 2, 3)}, limit_bytes=12e6)

# %% [markdown]
# **The sentence has fallen.** 16 P / R is a matter of R: data-parallel ranks *can* help the memory
# of the state, if they stop keeping copies. On top comes, at the peak, one layer whole, three times: as
# weights, as their gradients, and as these in one flat tensor. *Its* gradient shard is not there yet:
# it is what the reduce_scatter, about to begin, will give. (32 bytes: Adam's counts, and the loss.)
#
# ## FSDP2: the same, by torch
#
# `fully_shard(layer)` makes the same hooks. (FSDP: fully sharded data parallel.) It cuts each
# parameter by its dimension 0, we cut the flat tensor; both have the same sizes here. Is each
# collective the same, in order and bytes? Is the ledger? Numbers 5 to 9 are printed: forward's last
# gathering and backward's beginning, where prefetch could differ.

# %%
guess = None  # the first difference between the two traces?


def torchs(rank, world_size, B=256, reshard=True):
    layers = [make(number) for number in range(1, 7)]
    for layer in layers:
        fully_shard(layer, reshard_after_forward=reshard)
    net = fully_shard(nn.Sequential(*layers), reshard_after_forward=reshard)
    adam = torch.optim.Adam(net.parameters())
    held = two_steps(rank, world_size, net, adam, B)
    return held, [p.to_local().detach().flatten() for p in net.parameters()]


def sequence(run):
    return [[(op.kind, op.nbytes, op.dtype) for op in run.trace.of_rank(r)] for r in range(4)]


fsdp = simlib.simulate(torchs, 4, cluster=cluster_with(), **RINGS)
print("the same collectives in the same order:", sequence(zero[3]) == sequence(fsdp))
print(*(f"{op.kind} {op.nbytes:,}" for op in zero[3].trace.of_rank(0)[5:10]), "...", sep="; ")
for name, run, tensors in (("own", zero[3], 6), ("FSDP2", fsdp, 12)):
    by_hand = [4 * P // 4, 4 * P // 4, 8 * P // 4 + 4 * tensors, 64 * (4 * 784 + 8)]
    found = run.results[0][0]
    left = {sort: found[sort] - by_hand[number] for number, sort in enumerate(found)}
    print(f"{name:6}", {sort.partition(" and")[0]: nbytes for sort, nbytes in left.items()})

# %% [markdown]
# The same, to the byte: even the prefetch in backward comes at the same place. (The formula counts
# the batch, which is still held, and Adam's counts of steps: we have 6 flat tensors, FSDP2 has 12.
# FSDP2 keeps 96 bytes of its own.) Stage 1 alone is torch's `ZeroRedundancyOptimizer`, beside DDP.
#
# ## Resharding, prefetch and time
#
# Need weights be let go between forward and backward? `reshard=False` keeps them: one gathering
# less, and more memory. And what does prefetch buy? Predict the order of these five, by time of a
# step: where ranks wait for their devices, and with streams (lesson 08). The picture has FSDP2's.

# %%
guess = None  # the fastest, the slowest
ways = {
    "data parallel": (train, 0),
    "own ZeRO-3": (train, 3),
    "no prefetch": (train, 3, 256, True, False),
    "no resharding": (train, 3, 256, False),
    "FSDP2": (torchs,),
}
for name, (way, *args) in ways.items():
    for streams in (False, True):
        cluster = cluster_with(asynchronous=streams)
        run = simlib.simulate(way, 4, args=args, cluster=cluster, **RINGS)
        step = run.mfu("step", number=1)
        print(f"{name:14} {'streams' if streams else 'waits':7}", end=" ")
        print(f"{step.time_s[0] * 1e3:6.3f} ms a step, MFU {step.mfu[0]:.0%};", end=" ")
        print(f"{run.memory[0].peak_bytes:11,} bytes at the peak")
print(run.exposed("step", number=1))
run.timeline(ranks=[0])


# %% [markdown]
# Where ranks wait, FSDP2's prefetch hides nothing: it is as slow as ours without, to the digit. With streams
# it gathers on one, reduces on another and computes on a third.
# Ours is no faster: its reduce_scatters hold the stream that computes. Without resharding 2 in place of 3
# times the parameters travel: less time, and above 12 MB.
#
# ## Mixed precision: 2 + 2 + 12
#
# Large models compute in bfloat16: parameters and gradients take 2 bytes. But a step of 0.1 % of a
# weight is less than bfloat16's 8 bits can tell, and would be rounded away.
# So there is a **master copy** in float32, and Adam works on that: 4 + 8 = 12 bytes. Together 16
# again! What is gained, then?


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


guess = None  # bytes per parameter on 4 ranks: stage 1, 2, 3
for R, stage in ((1, 1), (4, 1), (4, 2), (4, 3)):
    run = simlib.simulate(mixed, R, args=(stage,), cluster=cluster_with(), **RINGS)
    each = [2, 2, 12] if R == 1 else [2 if stage < 3 else 1 / 2, 2 if stage < 2 else 1 / 2, 3]
    left = [held - int(nbytes * P) for held, nbytes in zip(run.results[0], each, strict=True)]
    print(f"R = {R}, stage {stage}: {sum(each):5.2f} bytes per parameter, {each}; left {left}")
print(run.memory[0])  # at the peak with master.grad, for Adam, in float32

# %% [markdown]
# Gained are time (half the bytes travel, activations halve, units for 16-bit numbers are faster)
# and, with ZeRO-1, memory: the 12 are just what is cut first. For 7.5 billion parameters on 64
# ranks the paper has 31.4, 16.6 and 1.9 GB for stages 1, 2 and 3, in place of 120: $2 + 2 + 12/64$,
# and so on. (FSDP2's `MixedPrecisionPolicy` keeps its shards in float32, 4 + 4 + 8, and casts what
# it gathers.)
#
# ## A mesh: which axis inside the node?
#
# Both cuts at once: ranks are laid out as a grid, a **mesh**. `init_device_mesh("cpu", (4, 4),
# mesh_dim_names=("dp", "tp"))` has ranks 0 to 3 in its first row. Each row is a group for tensor
# parallelism, each column one for data parallelism; `mesh["tp"].get_group()` is mine.
#
# Links inside a node are ten times as fast. 16 ranks, 4 nodes of 4, a mesh of 4 x 4. The last axis
# has neighbouring ranks, so it lies inside. Below, computing and messages of a step of 32 layers,
# in the right sizes for T = 256 tokens, D = 128. Which axis should be inside: of dp and tp, and of
# dp and pp (a pipeline, lesson 11)?


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


guess = None  # dp or tp inside? dp or pp inside?
for axes in (("tp", "dp"), ("dp", "tp"), ("pp", "dp"), ("dp", "pp")):
    run = simlib.simulate(step_on, 16, args=(axes,), cluster=NODES, **RINGS)
    ops = [op for op in run.trace.of_rank(5) if op.kind != "recv"]
    near = sum(op.nbytes for op in ops if op.group.ranks[1] - op.group.ranks[0] == 1) / 1e6
    print(
        f"{' x '.join(axes)}, the last on neighbours: {run.time_s * 1e3:6.2f} ms,"
        f" rank 5 brings them {near:4.1f} MB"
    )

# %% [markdown]
# The axis that brings most, and waits for it, belongs inside: tp before all. A pipeline, with one
# message per boundary, goes between nodes, and dp inside.
#
# Of one layer, tp brings four all_reduces of T x D numbers, dp the gradients of 12 D² / tp weights.
# So tp is the larger where T is more than 3 D / tp: nearly always.
#
# **A lab:** 4,096 modelled ranks, cut as dp x tp x pp; a transformer of 6.7 billion parameters,
# 1,024 sequences a step. Put dp first among the neighbours: which bars grow? Take 1 in place of 16
# micro-batches: which cut is the fastest now? Go to 64 ranks without ZeRO: what does not fit? Then
# stage 1 of ZeRO: do you still need tp and pp? And stage 3, in place of it: what does it cost?

# %%
labs.draw_mesh(4096, tp=8, pp=8, num_microbatches=16)

# %% tags=["nbval-ignore-output"]
labs.mesh_lab(4096, tp=8, pp=8, num_microbatches=16)

# %% [markdown]
# Here is what you should have seen. With dp first, tp reaches over nodes: 0.86 s become
# 1.42, in tp's bar and the bubble's. With
# 1 micro-batch a pipeline is nothing but bubble, and dp 512 x tp 8 takes 0.70 s. On 64 ranks plain
# dp does not fit, the best that does is dp 16 x tp 4. With ZeRO-1 dp alone fits, and is the
# fastest, 31.0 s: no tp, no pp. Stage 3 leaves most room (3.2 GB, dp alone) and
# gathers for every micro-batch: 55 s so, and 37.0 s at best, as dp 8 x tp 4 x pp 2.
#
# ## Against published numbers
#
# Megatron-LM (Shoeybi et al. 2019) measured tensor parallelism inside one machine of 8 GPUs, each
# with 300 GB/s to the others (150 each way): models grow with the GPUs, so 100 % would be ideal.
# `simlib.scale` counts the same all_reduces as you, two each way per layer, and two more, as
# forward is computed again in backward. How near does it come?
#
# **Now you write it:** `exposed_s` gives the seconds of all_reduces in a step, as rings (lesson 05:
# 2 (R - 1) rounds) of 5 us and 150 GB/s. One carries 8 sequences of 1,024 tokens, 2 bytes a number.


# %%
def exposed_s(layers, D, R):
    return None  # your formula


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
    print(f"miss {model / published - 1:+.1%}; {step.exposed_s:.6f} s of all_reduces", end=" ")
    print(exposed_s(layers, width, gpus) or "")

# %% [markdown]
# <details><summary>The formula</summary>
#
# `6 * layers * 2 * (R - 1) * (5e-6 + 2 * 8 * 1024 * D / R / 150e9)`: six all_reduces a layer, 2 (R
# - 1) rounds, in each a chunk.
#
# </details>
#
# With 2 GPUs it is right to a hundredth, with 4 and 8 an eighth too good. What does it leave out? A
# GPU is slower on the narrower matrices that a cut leaves, and a ring does not reach all of its 150
# GB/s. (A later release, and where layers and batch are from:
# [the page of published figures](../docs/published.md).)
#
# ## A checkpoint for any number of ranks
#
# Each rank has its shards. Must you train on 4 ranks for ever? `torch.distributed.checkpoint` has
# every rank write its own parts, with a list of what belongs where. On loading, each rank reads
# what *its* shards need. Saved on 4 ranks, loaded on 2 and on 1:

# %%
guess = None  # how many files? The same weights?


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
    print("4 ranks saved parts of", tuple(saved[1]), "in", *sorted(os.listdir(folder)))
    for R in (2, 1):
        loaded = simlib.run(checkpoint_on, R, args=(folder, False)).results[0]
        equal = all(map(torch.equal, saved[0], loaded[0]))
        print(
            f"{R} rank{'s' * (R > 1)} loaded parts of {tuple(loaded[1])}: the same weights: {equal}"
        )

# %% [markdown]
# One file a rank, and a list of them in `.metadata`. With `torch.save` on rank 0 (lesson 07)
# somebody would have to hold the whole model. (An optimizer's state goes the same way.)
#
# ## What is next
#
# You have dp, tp, pp, and state in shards. Long sequences and experts make it five dimensions
# (lesson 18).
#
# ## Your turn
#
# [Exercises 12](../exercises/12_tensors_and_state.ipynb): a row-parallel linear layer with its
# bias, an Adam in shards, attention's all_reduces, the cheapest mesh, and a real model
# that fits.
#
# [Sixteen questions](../docs/questions.md): what do these programs print?
#
# ## Exit ticket
#
# 1. How many all_reduces has a block, MLP and attention, in one step of tensor parallelism?
# 2. Why does the bias of the second layer of an MLP come after the sum, and that of the first not?
# 3. A colleague forgets Enter. Which gradients are wrong?
# 4. What does sequence parallelism save, and what does it cost in bytes?
# 5. 10 billion parameters, Adam, float32, 16 ranks: what does a rank keep with ZeRO-1, with ZeRO-3?
# 6. Why does ZeRO-3 send 3 in place of 2 times the parameters? How do you get back to 2?
# 7. Two axes, tp and pp, on nodes of 8: which is inside?
#
# <details><summary>Answers</summary>
#
# 1. Four: two forward, two backward.
# 2. The sum would add it R times. The first layer's outputs are cut, its biases with them: nothing
#    is summed.
# 3. Those of all that comes before it: of earlier layers, and in a transformer block of its norms, too.
# 4. Activations between the blocks; no bytes, but for the norms' gradients.
# 5. 80 + 80/16 = 85 GB; 160/16 = 10 GB.
# 6. It gathers the parameters twice, forward and backward. Without resharding, once.
# 7. tp.
#
# </details>
#
# **Next:** asynchronous training, in [lesson 13](13_asynchronous_training.ipynb).
