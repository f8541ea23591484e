# %% [markdown]
# # 12 The state of training in shards
#
# This is the second part of lesson 12. You need [lesson 10](10_splitting_the_model.ipynb) and its memory
# ledger, and the hooks of [lesson 08](08_from_loops_to_ddp.ipynb). You do not need
# [the first part](12_tensors_and_state.ipynb), which cuts matrices. Data-parallel ranks all hold the same
# parameters, gradients and optimizer state. Here each rank keeps only a part of them. In this part (60 minutes)
# you will
#
# - write a training loop in which each rank keeps only a part of Adam's state: ZeRO-1,
# - predict the memory of ZeRO-1, ZeRO-2 and ZeRO-3,
# - build ZeRO-3 step by step, and train a network that is too large for data parallelism,
# - compare your ZeRO-3 with torch's FSDP2, collective by collective.
#
# **R** is the number of ranks, and **P** the number of parameters.

# %%
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import simlib
from simlib import labs
from simlib.draw import draw_memory

RINGS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring"}


def cluster_with(**device):
    return simlib.clusters.ethernet_10g(8, device=simlib.Device(flops_per_s=100e9, **device))


# %% [markdown]
# ## Data parallelism and the memory of the state
#
# Lesson 10 said: "If every rank keeps the whole state, more data-parallel ranks do not make it smaller." The
# whole state has 16 P bytes: 4 P of parameters, 4 P of gradients, and 8 P of optimizer state. But a rank
# *needs* a parameter only while its layer computes, and it needs optimizer state only in the optimizer's step.
# In **ZeRO** (Rajbhandari et al. 2019), each rank keeps only one part of the state, its **shard**. ZeRO has
# three stages, and each stage cuts one more thing:
#
# | stage | the ranks cut | what they send for it |
# |---|---|---|
# | 1 | optimizer state | they reduce_scatter gradients, and all_gather new parameters |
# | 2 | also gradients | the same as in stage 1 |
# | 3 | also parameters | they all_gather parameters before forward *and* before backward, and reduce_scatter gradients |
#
# In the picture, stage 0 is data parallelism without ZeRO. Each of the four ranks has a column and a colour. The
# coloured part shows what the rank keeps after a step.

# %%
labs.draw_zero()

# %% [markdown]
# ## A loop with Adam in shards
#
# ZeRO-1 needs only three new lines in a training loop. The network here is one vector w of 240 weights, and
# `gradient_of` computes the gradient of w from a rank's own examples. **Now you write it:** `zero_1` trains w,
# and returns all its weights.
#
# - Each rank begins with 240 zeros in w, and keeps the shard `w.chunk(world_size)[rank]`. Adam (`lr=0.01`) gets
#   only this shard.
# - In each step, the ranks reduce_scatter their gradients as a mean:
#   `dist.reduce_scatter_single(part, whole, op=dist.ReduceOp.AVG)`. The result becomes `shard.grad`. Then
#   Adam steps.
# - At the end of a step, the ranks all_gather the new weights: `dist.all_gather_single(whole, part)`. Both calls
#   write into their first argument.
#
# The check compares the weights with those of one process that has all examples. It also looks at Adam's state:
# 8 bytes for each weight, and 4 for the count of steps.


# %%
torch.manual_seed(0)
X, TARGETS = torch.randn(48, 240), torch.randn(48)


def gradient_of(w, rank, world_size):
    x, targets = X[rank::world_size], TARGETS[rank::world_size]
    return x.T @ (x @ w - targets) / len(targets)


def zero_1(rank, world_size, steps):
    return None  # yours: all weights after these steps


alone = nn.Parameter(torch.zeros(240))
adam = torch.optim.Adam([alone], lr=0.01)
for _ in range(5):
    alone.grad = gradient_of(alone.detach(), 0, 1)
    adam.step()
for R in (2, 4):
    run = simlib.simulate(zero_1, R, args=(5,), cluster=cluster_with())
    if run.results[0] is None:
        print(R, "ranks: not yet")
        continue
    equal = all(torch.allclose(w, alone, atol=1e-5) for w in run.results)
    state = run.memory[0].peak["optimizer state"]
    is_right = equal and state <= 8 * 240 // R + 4
    print(R, "ranks:", "right" if is_right else "not yet", end="; ")
    print(f"weights of one process: {equal}; {state} bytes of Adam's state, not {8 * 240 + 4}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def zero_1(rank, world_size, steps):
#         w = torch.zeros(240)
#         shard = nn.Parameter(w.chunk(world_size)[rank].clone())
#         adam = torch.optim.Adam([shard], lr=0.01)
#         for _ in range(steps):
#             gradient = gradient_of(w, rank, world_size)
#             shard.grad = torch.empty_like(shard)
#             dist.reduce_scatter_single(shard.grad, gradient, op=dist.ReduceOp.AVG)
#             adam.step()
#             dist.all_gather_single(w, shard.detach())
#         return w
#
# </details>
#
# ## A unit, step by step: weights as views
#
# Stage 3 also cuts the parameters. So a rank has to gather a layer's weights before the layer computes, and
# drop them afterwards. We build this in three steps. Each step is a class, and the next class inherits from it.
#
# **Step 1.** A layer has several tensors, for example a weight and a bias, but a collective sends one tensor.
# So `Flat` copies all weights of a layer into one flat tensor, `whole`. Then it makes each weight a **view** of
# `whole`: the weight keeps its shape, but its numbers now lie in the memory of `whole`. If you write into
# `whole`, you change the layer. The cell writes 0 to 7 into `whole`.


# %%
class Flat:
    def __init__(self, module):
        self.weights = list(module.parameters())
        self.whole = torch.cat([w.detach().flatten() for w in self.weights])
        parts = self.whole.split([w.numel() for w in self.weights])
        for w, part in zip(self.weights, parts, strict=True):
            w.data = part.view_as(w)


layer = nn.Linear(3, 2)
Flat(layer).whole.copy_(torch.arange(8.0))  # 6 weights and 2 biases
print(layer.weight.tolist(), layer.bias.tolist())

# %% [markdown]
# **Step 2.** `Unit` cuts `whole`. It can drop `whole` and gather it again.
#
# - `shard` is this rank's part of `whole`. Adam gets only the shard. In stages 1 and 2 the shard is a view of
#   `whole`, so a step of Adam changes this part of the layer. In stage 3 the shard is a copy, because `whole`
#   is dropped.
# - `drop` frees the memory of `whole`. A tensor only describes its numbers (shape, dtype). The bytes are in
#   its **storage**. `resize_(0)` empties the storage. `whole` and the views still exist, but you must not
#   read them until the storage is full again.
# - `gather` does nothing if the storage is full. If the storage is empty, `gather` starts an all_gather of all
#   shards into it, and does not wait.
# - `need` gathers this layer, starts to gather the next layer, and then waits for this layer only. So the next
#   layer's weights travel while this layer computes. This is **prefetch**. `ahead` says which layer is next in
#   the forward pass and in the backward pass.


# %%
class Unit(Flat):
    def __init__(self, module, stage):
        super().__init__(module)
        self.stage, self.ahead = stage, {}
        mine = self.whole.chunk(dist.get_world_size())[dist.get_rank()]
        self.shard = nn.Parameter(mine.clone() if stage == 3 else mine)  # else a view

    def drop(self):
        self.whole.untyped_storage().resize_(0)

    def gather(self):
        if self.whole.untyped_storage().nbytes() == 0:
            mine = self.shard.detach()
            self.whole.untyped_storage().resize_(mine.nbytes * dist.get_world_size())
            self.request = dist.all_gather_single(self.whole, mine, async_op=True)

    def need(self, direction):
        self.gather()
        if direction in self.ahead:
            self.ahead[direction].gather()
        self.request.wait()


# %% [markdown]
# We try a unit on two ranks. Its layer has 6 weights and 2 biases, which take 32 bytes. While the storage is
# empty, rank 1 adds 100 to every number of its own shard. What does rank 0 see after `need`?

# %%
first_bias = None  # the layer has 0, 1, 2, ... 7, and 6 is the first bias. What does it become?


def drop_and_gather(rank, world_size):
    layer = nn.Linear(3, 2)
    unit, sizes = Unit(layer, stage=3), []
    unit.shard.data.copy_(torch.arange(8.0).chunk(world_size)[rank])
    for change in (unit.drop, lambda: unit.need("forward")):
        change()
        sizes.append(unit.whole.untyped_storage().nbytes())
        unit.shard.data.add_(100 * rank if sizes == [0] else 0)
    return sizes, layer.weight.tolist(), layer.bias.tolist()


for found in simlib.simulate(drop_and_gather, 2).results:
    print(*found)
simlib.guess(first_bias, found[2][0])

# %% [markdown]
# After `drop` the storage has 0 bytes, and after `need` it has 32 again. Rank 1 keeps the second half of the
# numbers, 4 to 7. So both ranks now see 106 as the first bias. A change in a shard reaches all ranks with the
# next all_gather.
#
# **Step 3.** `Zero` sets **hooks** (lesson 08), so that torch calls these methods at the right moments:
#
# | when | `Zero` calls |
# |---|---|
# | just before the layer's forward | `need("forward")` |
# | just after the layer's forward | `drop`, unless `reshard` is False (for the third part) |
# | just before the layer's backward, when the gradient of its output is ready | `need("backward")` |
# | the gradient of a weight is ready | `reduce` |
#
# Stages 1 and 2 use only the last hook. `reduce` does nothing until the last weight of the layer has its
# gradient. Then `reduce` joins all gradients of the layer in one flat tensor and reduce_scatters it. Each rank
# gets the mean gradient of its own shard. In stage 1, this gradient shard is a view of the flat tensor, so the
# whole flat tensor stays in memory. In stages 2 and 3, the gradient shard has memory of its own, and the flat
# tensor is freed. In stage 3, `reduce` also drops the layer's weights.


# %%
class Zero(Unit):
    def __init__(self, module, stage, reshard=True):
        super().__init__(module, stage)
        self.reshard = reshard
        for w in self.weights:
            w.register_post_accumulate_grad_hook(self.reduce)
        if stage == 3:
            module.register_forward_pre_hook(lambda *_: self.need("forward"))
            module.register_forward_hook(self.forward_done)
            self.drop()

    def forward_done(self, module, inputs, y):
        if self.reshard:
            self.drop()
        y.register_hook(lambda _: self.need("backward"))

    def reduce(self, _):
        if any(w.grad is None for w in self.weights):
            return  # the last weight sends all gradients
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
# ## Lesson 10's network in four stages
#
# Lesson 10 trained a network of six layers with Adam. The network did not fit into devices of 12 MB on any
# number of data-parallel ranks. We train it again, with 12 outputs instead of 10, so that four ranks can cut
# every layer evenly. Each program takes two steps. In each step, the ranks share 256 examples. In `train`,
# `sync` is the all_reduce of stage 0, and `after` is the all_gather of new parameters in stages 1 and 2.


# %%
def make(number):
    """Layers 1 to 6 of lesson 10's network. Their weights are the same wherever they are made."""
    torch.manual_seed(number)
    sizes = [784, 512, 512, 512, 512, 512, 12][number - 1 : number + 1]
    return nn.Sequential(nn.Linear(*sizes), *[nn.ReLU()] * (number < 6))


def two_steps(net, adam, B, sync=lambda: None, after=lambda: None):
    rank, world_size = dist.get_rank(), dist.get_world_size()
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

    held = two_steps(net, adam, B, sync, after)
    kept = [unit.shard for unit in units] or [p.flatten() for p in net.parameters()]
    return held, [part.detach().clone() for part in kept]


# %% [markdown]
# **Now you write it:** `kept` returns three numbers: the bytes of parameters, of gradients and of optimizer
# state that a rank keeps after a step. Leave out Adam's counts of steps. The cell also prints how many bytes
# rank 0 sends in a step. Here 1.00 means the bytes that it sends in one all_gather of all parameters.

# %%
P = sum(p.numel() for number in range(1, 7) for p in make(number).parameters())


def kept(stage, P, R):
    return None  # yours: three numbers of bytes


def whole_of(run, copies=False):
    """All parameters of a run, put together from its ranks, layer by layer."""
    ranks = [parts for _, parts in (run.results[:1] if copies else run.results)]
    return torch.cat([torch.cat(parts) for parts in zip(*ranks, strict=True)])


zero = {}
for stage in (0, 1, 2, 3):
    options = {"cluster": cluster_with(), "expand": True, **RINGS}
    run = zero[stage] = simlib.simulate(train, 4, args=(stage,), **options)
    held, yours = list(run.results[0][0].values())[:3], kept(stage, P, 4)
    sent = sum(message.nbytes for message in run.wire if message.src == 0) / 2
    same = torch.equal(whole_of(run, copies=stage == 0), whole_of(zero[0], copies=True))
    print(f"ZeRO-{stage}: kept", *(f"{nbytes / P:.2f}" for nbytes in held), end=" ")
    print(
        f"bytes per parameter; sent {sent / (4 * P * 3 / 4):.2f}; weights of stage 0: {same};",
        end="",
    )
    close = yours and all(abs(a - b) < 100 for a, b in zip(held, yours, strict=True))
    print(" kept is", "right" if close else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def kept(stage, P, R):
#         R1, R2, R3 = (R if stage >= least else 1 for least in (1, 2, 3))
#         return 4 * P / R3, 4 * P / R2, 8 * P / R1
#
# The measured bytes also contain Adam's counts, 4 bytes for each tensor.
#
# </details>
#
# The weights equal those of data parallelism to the last bit. Stages 1 and 2 send as many bytes as data
# parallelism does, because an all_reduce *is* a reduce_scatter and an all_gather. Stage 3 makes one
# reduce_scatter and two all_gathers. So it sends 3 times the parameters instead of 2 times.
#
# Does this network, with P = 1,458,700, now fit into 12 MB? We try stage 3 on 2 and on 4 ranks. The picture
# shows what a rank of 4 holds at the peak, with and without ZeRO.

# %%
fits_on_2 = None  # does stage 3 fit on 2 ranks: "yes" or "no"?
fits = {}
for R in (2, 4):
    try:
        simlib.simulate(train, R, args=(3,), cluster=cluster_with(memory_bytes=12e6))
        fits[R] = "yes"
        print(f"stage 3 on {R} ranks of 12 MB: trained")
    except simlib.OutOfMemoryError as error:
        fits[R] = "no"
        print(f"stage 3 on {R} ranks of 12 MB:", str(error).partition(";")[0])
simlib.guess(fits_on_2, fits[2], of=("yes", "no"))
titles = {0: "data parallel", 2: "ZeRO-2", 3: "ZeRO-3"}
draw_memory({title: zero[stage] for stage, title in titles.items()}, limit_bytes=12e6)

# %% [markdown]
# It fits on 4 ranks, but not on 2. On 2 ranks, the state takes 16 P / 2 = 11.67 MB, and the batch takes 0.40
# MB. Together these are 12.07 MB. Lesson 10's sentence is about ranks that keep the whole state. **With ZeRO-3,
# each rank keeps 16 P / R bytes, and more ranks help.**
#
# ZeRO-3 has its peak in the backward pass of the first and largest layer. A rank then holds layer 1 three times:
# its weights, their gradients, and these gradients in one flat tensor. The gradient shard of layer 1 is not there
# yet, because `reduce` allocates it later. In the picture, only ZeRO-3 is below the line.
#
# ## FSDP2: the same by torch
#
# FSDP means *fully sharded data parallel*. `fully_shard(layer)` sets hooks like those of our `Zero`. FSDP2
# cuts each parameter along dimension 0, while we cut the flat tensor. Here both cuts give shards of equal
# size. Does FSDP2 make the same collectives in the same order, with the same bytes? The cell prints five of
# them. The first is the last all_gather of the forward pass. The others begin the backward pass, where the
# prefetch could differ.

# %%
same_order = None  # the same collectives in the same order: "yes" or "no"?


def torchs(rank, world_size, B=256, reshard=True):
    layers = [make(number) for number in range(1, 7)]
    for layer in layers:
        fully_shard(layer, reshard_after_forward=reshard)
    net = fully_shard(nn.Sequential(*layers), reshard_after_forward=reshard)
    adam = torch.optim.Adam(net.parameters())
    held = two_steps(net, adam, B)
    return held, [p.to_local().detach().flatten() for p in net.parameters()]


def sequence(run):
    return [[(op.kind, op.nbytes, op.dtype) for op in run.trace.of_rank(r)] for r in range(4)]


fsdp = simlib.simulate(torchs, 4, cluster=cluster_with(), **RINGS)
same = sequence(zero[3]) == sequence(fsdp)
print("the same collectives in the same order:", same)
print(*(f"{op.kind} {op.nbytes:,}" for op in zero[3].trace.of_rank(0)[5:10]), "...", sep="; ")
simlib.guess(same_order, "yes" if same else "no", of=("yes", "no"))

# %% [markdown]
# FSDP2 makes the same collectives with the same bytes. Even the prefetch in the backward pass comes at the
# same place. The cell prints the bytes that one rank gives: its shard for an all_gather, and all gradients of
# the layer for a reduce_scatter. These gradients are 4 times as large. The appendix compares the memory byte by
# byte. You may skip it. For stage 1 alone, torch has `ZeroRedundancyOptimizer`, which works with DDP.
#
# ## Your turn
#
# [Exercises 12](../exercises/12_tensors_and_state.ipynb) belong to all parts of lesson 12. One of them fits here:
# an Adam in shards. [Questions on programs](../docs/questions.md) ask what small programs print.
#
# ## Exit ticket
#
# 1. You train 10 billion parameters in float32 with Adam, on 16 ranks. How many bytes does a rank keep with
#    ZeRO-1, and how many with ZeRO-3?
# 2. Why does ZeRO-3 send 3 times the parameters instead of 2 times?
# 3. In ZeRO-3, what is still whole at the peak?
# 4. How can `resize_(0)` free the memory of weights that still exist?
#
# <details><summary>Answers</summary>
#
# 1. ZeRO-1 keeps 80 GB whole, and 80/16 = 5 GB of Adam's state: 85 GB. ZeRO-3 keeps 160/16 = 10 GB.
# 2. It all_gathers the parameters twice, before forward and before backward, and it reduce_scatters the
#    gradients.
# 3. One layer is whole: its weights, their gradients, and the flat copy of these gradients.
# 4. The weights are views of `whole`. `resize_(0)` empties the storage of `whole`. The tensors that describe it
#    stay.
#
# </details>
#
# **Next:** how long a step takes, 16 bits and checkpoints, in [the third part](12_the_time_of_shards.ipynb).
#
# ## Appendix: every byte of the ledgers
#
# For ZeRO-3 on 4 ranks, the cell first adds up what a rank holds at the peak, in the backward pass of layer 1.
# Then it prints, for our ZeRO-3 and for FSDP2, measured memory minus predicted memory after a step. The
# prediction includes the batch, which is still held, and Adam's counts of steps: 6 for our flat tensors, and 12
# for the tensors of FSDP2.

# %%
first = 784 * 512 + 512  # parameters of layer 1
there = {
    "shards of parameters and Adam": (4 + 8) * P // 4,
    "gradient shards of layers 2 to 6": 4 * (P - first) // 4,
    "layer 1 whole, three times": 3 * 4 * first,
    "the batch": 64 * (4 * 784 + 8),
}
print(*(f"{name}: {nbytes:,} bytes" for name, nbytes in there.items()), sep="\n")
peak_bytes = zero[3].memory[0].peak_bytes
print(f"peak of stage 3: {peak_bytes:,} bytes; not explained: {peak_bytes - sum(there.values())}")
for name, run, tensors in (("own", zero[3], 6), ("FSDP2", fsdp, 12)):
    by_hand = [4 * P // 4, 4 * P // 4, 8 * P // 4 + 4 * tensors, 64 * (4 * 784 + 8)]
    found = run.results[0][0]
    left = {sort: found[sort] - by_hand[number] for number, sort in enumerate(found)}
    print(f"{name:6}", {sort.partition(" and")[0]: nbytes for sort, nbytes in left.items()})

# %% [markdown]
# At the peak, the 32 bytes that are left are six counts of Adam, the loss and its gradient. After a step, FSDP2
# keeps 96 bytes of its own.
