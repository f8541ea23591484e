# %% [markdown]
# # 15 What frameworks send
#
# This is the fourth part of lesson 15. You need lessons 10 to 12, and [15 a](15_frameworks.ipynb). In this
# part (60 minutes) you will
#
# - train one transformer in five ways, with equal losses and different messages,
# - find that tensor parallelism needs a third fewer all_reduces if its plan has one more line,
# - write a function that counts the bytes that a rank sends in each group, and check it by formulas,
# - see one step of four programs on one scale of time,
# - read the configuration of a large run line by line, and choose tools by their tasks.

# %%
import functools
import json
import logging
import math
import tomllib
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from IPython.display import display
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)  # fmt: skip
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import simlib
from simlib import labs

# %% [markdown]
# `look` shows a recorded run if Lightning is not installed (see the first part).

# %% tags=["nbval-ignore-output"]
try:
    import lightning as L

    print("Lightning", L.__version__, "runs here")
except ImportError:  # enough names to read the cells
    L = SimpleNamespace(LightningModule=nn.Module)
    print("not installed, so a recorded run is shown: `make frameworks` installs it")

RECORDED = Path("recorded_frameworks")
CLUSTER = simlib.clusters.ethernet_10g(4, device=simlib.Device(flops_per_s=10e9))
start = functools.partial(simlib.simulate, cluster=CLUSTER)


def look(name, function, world_size=2, args=()):
    """Run it; if the frameworks are missing, load the recorded run of this name."""
    if hasattr(L, "Trainer"):
        return start(function, world_size, args)
    display({"text/plain": "", "text/html": ""}, raw=True)  # a run's own place for its output
    run = simlib.load(RECORDED / f"{name}.json")
    run.results = json.loads((RECORDED / f"{name}_results.json").read_text())["results"]
    return run


# %% [markdown]
# ## One transformer, five ways
#
# A tiny transformer of two blocks (lesson 12) learns to predict the next token, out of 16 possible tokens. We
# train it for three steps on two ranks, in five ways: by DDP, by FSDP2, by tensor parallelism (tp), by a
# pipeline with two micro-batches (pp), and by Lightning. The layer `enter` does nothing yet. We use it later.
# `simlib.span` names a piece of a rank's work for the picture below.


# %%
D, HEADS, RATE = 32, 4, 0.3
WHOLE = {"input_layouts": Replicate(), "desired_input_layouts": Replicate()}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms, self.enter = nn.ModuleList([nn.LayerNorm(D), nn.LayerNorm(D)]), nn.Identity()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x):
        h = self.enter(self.norms[0](x))
        heads = (f(h).unflatten(-1, (-1, D // HEADS)) for f in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(*(h.transpose(1, 2) for h in heads), is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def transformer():
    torch.manual_seed(0)
    text = torch.randint(16, (8, 13))
    net = nn.Sequential(nn.Embedding(16, D), Block(), Block(), nn.Linear(D, 16))
    return net, text[:, :-1], text[:, 1:]


def loss_of(output, y):
    return F.cross_entropy(output.flatten(0, 1), y.flatten())


# %% [markdown]
# DDP, FSDP2 and tp use the loop `trained`. DDP and FSDP2 give each rank half of the examples.


# %%
def trained(net, x, y, steps=3):
    optimizer, losses = torch.optim.SGD(net.parameters(), RATE), []
    for _ in range(steps):
        optimizer.zero_grad()
        with simlib.span("forward"):
            loss = loss_of(net(x), y)
        with simlib.span("backward"):
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp(rank, world_size, steps=3):
    net, *data = transformer()
    mine = (x.chunk(world_size)[rank] for x in data)
    return trained(DistributedDataParallel(net), *mine, steps)


def fsdp2(rank, world_size, steps=3):
    warnings.simplefilter("ignore")  # that the output is a view
    net, *data = transformer()
    [fully_shard(block) for block in net[1:3]]
    return trained(fully_shard(net), *(x.chunk(world_size)[rank] for x in data), steps)


# %% [markdown]
# With tp both ranks have all examples. A pipeline has a schedule in place of the loop (lesson 11).


# %%
def cut(net, mesh, enters_once):
    plan = dict.fromkeys(["q", "k", "v", "up"], ColwiseParallel())
    plan |= dict.fromkeys(["out", "down"], RowwiseParallel())
    if enters_once:
        plan["enter"] = PrepareModuleInput(**WHOLE)
    [parallelize_module(block, mesh, plan) for block in net[1:3]]


def tp(rank, world_size, steps=3, enters_once=False):
    net, x, y = transformer()
    cut(net, init_device_mesh("cpu", (world_size,)), enters_once)
    return trained(net, x, y, steps)


def pp(rank, world_size):
    net, x, y = transformer()
    net = [net[:2], net[2:]][rank]
    stage = PipelineStage(net, rank, world_size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 2, loss_fn=loss_of)
    optimizer, means = torch.optim.SGD(net.parameters(), RATE), []
    for _ in range(3):
        optimizer.zero_grad()
        schedule.step(*[x][rank:], target=y, losses=(losses := []))
        means += [sum(loss.item() for loss in losses) / 2] * rank  # the last stage has them
        optimizer.step()
    return means


# %%
class Module(L.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net, self.losses = net, []

    def training_step(self, batch, number):
        with simlib.span("forward"):
            loss = loss_of(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def backward(self, loss):  # Lightning calls it: here to give the work its name
        with simlib.span("backward"):
            loss.backward()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), RATE)


def lightning(rank, world_size):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    (net, x, y), data = transformer(), {"accelerator": "cpu", "devices": world_size}
    quiet = "logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"
    options = data | dict.fromkeys(quiet, False) | {"max_epochs": 3, "default_root_dir": "."}
    own = L.Trainer(strategy="ddp", plugins=[simlib.lightning.environment()], **options)
    own.fit(module := Module(net), DataLoader(TensorDataset(x, y), 8 // world_size))
    return module.losses


# %% [markdown]
# The next cell counts only ops whose number is a multiple of three, because they belong to the three steps.
# So it leaves out set-up, and barriers, which both set-up and the steps use. It prints the **payload**
# of a step: the bytes that a rank gives to collectives, or sends in messages. Which of the five ways has the
# largest payload?
#
# **Now you write it:** `tp_all_reduces(blocks, steps)`, the number of all_reduces with our plan for tp. An
# Enter (lesson 12) all_reduces the gradient of its input. In lesson 12 a block had four all_reduces, with one
# Enter for q, k and v together. Here q, k and v have one Enter each.

# %%
largest = None  # "ddp", "fsdp2", "tp", "pp" or "lightning"?


def tp_all_reduces(blocks, steps):
    return None  # your formula


five = {f.__name__: start(f, 2) for f in (ddp, fsdp2, tp, pp)}
five["lightning"] = look("transformer", lightning)
compared = simlib.compare(five)
ops, sent = [op for op in compared.ops if any(n and n % 3 == 0 for n in op.counts)], {}
for column, (name, run) in enumerate(five.items()):
    losses = torch.tensor([mine for mine in run.results if mine], dtype=torch.float64).mean(0)
    payload = (op.nbytes * op.counts[column] // (6 if op.call == "message" else 3) for op in ops)
    sent[name] = sum(payload)
    print(
        f"{name:9} losses",
        *(f"{loss:.4f}" for loss in losses),
        f"- a step: {sent[name]:7,} B a rank",
    )
simlib.guess(largest, max(sent, key=sent.get), of=tuple(sent))


def all_reduces(run):
    return sum(c.kind == "all_reduce" for c in run.trace.collectives)


is_right = all(tp_all_reduces(2, n) == all_reduces(start(tp, 2, (n,))) for n in (1, 3))
print("tp_all_reduces:", "right" if is_right else "not yet")
simlib.Comparison(compared.names, ops)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return 6 * blocks * steps`
#
# Each block has two all_reduces in its forward pass and four in its backward pass.
#
# </details>
#
# The losses are equal to four digits, but the ops differ. DDP sums gradients. FSDP2 gathers
# weights and scatters gradients. tp sums activations in every block. pp sends activations to a neighbour.
# Only DDP and Lightning share a row, the blue one. **Lightning adds its own ops to those of DDP**: here the
# log. With another `strategy` Lightning adds them to the ops of that strategy. `"fsdp"` is the first FSDP.
# `ModelParallelStrategy()` runs FSDP2 and tp as you write them.
#
# ## One Enter for q, k and v
#
# The 36 all_reduces come from *this* plan, not from torch. Each column-cut layer gets a plain tensor as its
# input, so each layer has its own Enter. In the backward pass each Enter sums a gradient over the ranks.
# A better plan turns the input into a replicated DTensor before q, k and v get it.
# `PrepareModuleInput` does this. In our plan it acts on `enter`, which stands between the norm and the three
# layers. How many all_reduces are left in three steps?

# %%
fewer = None  # all_reduces in three steps

once = start(tp, 2, (3, True))
print("an Enter each:", all_reduces(five["tp"]), "all_reduces; one Enter:", all_reduces(once))
off = torch.tensor(once.results) - torch.tensor(five["tp"].results)
print("same losses to 1e-5:", bool(off.abs().max() < 1e-5))
simlib.guess(fewer, all_reduces(once))

# %% [markdown]
# In three steps 24 all_reduces are left. In each step a block has four, two forward and two backward, as in
# lesson 12. The losses are the same. torchtitan's plans do this. One matrix for q, k and v would also do it.
#
# ## Bytes by group and collective
#
# The payload is not the number of bytes that cross the network. In a ring of n ranks (lesson 05), a rank sends
# for a payload of S bytes (`op.nbytes`):
#
# | `op.kind` | what S counts | bytes that a rank sends |
# |---|---|---|
# | `all_reduce` | the whole tensor | $2 \frac{n-1}{n} S$ |
# | `reduce_scatter` | the whole tensor | $\frac{n-1}{n} S$ |
# | `all_gather` | the rank's own part | $(n-1) S$ |
# | `send` | the message | $S$ |
#
# **Now you write it:** `sent_by(trace, rank)`. It goes through the ops of a rank, `trace.of_rank(rank)`. It
# returns a dictionary with the bytes that this rank sends, for each kind in the table and each group
# (`op.group.ranks`), such as `{("all_reduce", (0, 1)): 1000.0}`. It leaves out other kinds.
#
# The check subtracts two steps from three, so set-up drops out. It compares your bytes with closed
# forms: for DDP, for FSDP2, and for a mesh of 2 x 2 ranks with tp inside FSDP2. FSDP2 gathers the blocks twice,
# forward and backward. It gathers the embedding and the last layer once.


# %%
def sent_by(trace, rank):
    return {}  # yours


def both(rank, world_size, steps=3):
    warnings.simplefilter("ignore")
    net, *data = transformer()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    cut(net, mesh["tp"], True)
    [fully_shard(block, mesh=mesh["dp"]) for block in net[1:3]]
    mine = (x.chunk(2)[rank // 2] for x in data)
    return trained(fully_shard(net, mesh=mesh["dp"]), *mine, steps)


def in_a_step(program, world_size):
    traces = [start(program, world_size, (steps,)).trace for steps in (3, 2)]
    three, two = (Counter(sent_by(trace, 0)) for trace in traces)
    three.subtract(two)
    return {key: round(nbytes) for key, nbytes in three.items() if nbytes}


# %%
blocks, rest, halved = 2 * (12 * D * D + 4 * D), 2 * 16 * D + 16, 2 * (12 * D * D // 2 + 4 * D)
activations = 4 * (4 * 12 * D)  # bytes of 4 examples of 12 tokens
forms = {
    ddp: {("all_reduce", (0, 1)): 4 * (blocks + rest)},
    fsdp2: {
        ("all_gather", (0, 1)): 4 * (2 * blocks + rest) // 2,
        ("reduce_scatter", (0, 1)): 4 * (blocks + rest) // 2,
    },
    both: {
        ("all_reduce", (0, 1)): 2 * 4 * activations,  # tp: four in each of two blocks
        ("all_gather", (0, 2)): 4 * (2 * halved + rest) // 2,
        ("reduce_scatter", (0, 2)): 4 * (halved + rest) // 2,
    },
}
is_right = []
for program, form in forms.items():
    yours = in_a_step(program, 4 if program is both else 2)
    is_right.append(yours == form)
    print(f"{program.__name__:5} closed form {sum(form.values()):7,} B, yours", yours)
print("right" if all(is_right) else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def sent_by(trace, rank):
#         found = Counter()
#         for op in trace.of_rank(rank):
#             n = len(op.group.ranks)
#             of_kind = {
#                 "all_reduce": 2 * (n - 1) / n,
#                 "reduce_scatter": (n - 1) / n,
#                 "all_gather": n - 1,
#                 "send": 1,
#             }
#             if op.kind in of_kind:
#                 found[op.kind, op.group.ranks] += of_kind[op.kind] * op.nbytes
#         return found
#
# </details>
#
# FSDP2 sends nearly 1.5 times as many bytes as DDP. An all_reduce is a reduce_scatter and an all_gather.
# FSDP2 has a second all_gather. On the mesh, rank 0 exchanges activations only with rank 1, and weights and
# gradients only with rank 2. tp has halved the matrices, so FSDP2 sends half as much for them.
#
# ## The same step, side by side
#
# The picture shows the second step of four programs, from the start of its forward pass to the start
# of the next forward pass. All four have the same scale of time. Grey bars are the forward and
# the backward pass. A coloured bar is a collective, from the call to its end.

# %%
names = {"DDP": "ddp", "Lightning": "lightning", "FSDP2": "fsdp2", "tp": "tp"}
labs.draw_steps({name: five[key] for name, key in names.items()})

# %% [markdown]
# With tp a step takes the longest, although tp sends fewer bytes than FSDP2. A step of tp has 12 all_reduces.
# The next layer needs each result, so both ranks wait 12 times. DDP sends once, at the end of its
# backward pass. The broadcasts in DDP's forward pass belong to set-up: after the first step DDP orders its
# buckets again. In Lightning they come just before the picture starts. Lightning adds the log, a barrier and
# an all_reduce, between the passes, and a broadcast at the end.
#
# ## A configuration, line by line
#
# Frameworks for large models, such as torchtitan, read all of this from one file. The next cell has a short
# example. Each degree is the size of one axis of a mesh (lesson 12). How many ranks does the file need?

# %%
ranks = None
CONFIG = """
[parallelism]
pipeline_parallel_degree = 2
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 4
pipeline_parallel_schedule = "1F1B"
[training]
local_batch_size = 8
max_norm = 1.0
activation_checkpoint = "selective"
compile = true
[checkpoint]
interval = 500
async_mode = "async"
"""
config = tomllib.loads(CONFIG)
degrees = {name: n for name, n in config["parallelism"].items() if name.endswith("_degree")}


def group_of_each_axis(rank, world_size):
    mesh = init_device_mesh("cpu", tuple(degrees.values()), mesh_dim_names=tuple(degrees))
    return {name: mesh[name].mesh.tolist() for name in degrees}


run = simlib.simulate(group_of_each_axis, math.prod(degrees.values()))
for name, group in run.results[0].items():
    print(f"rank 0, {name:31} {group}")
simlib.guess(ranks, run.world_size)

# %% [markdown]
# The table says which ranks each line of the file concerns, and what these ranks send.
#
# | line | ranks (of rank 0) | what they send | lesson |
# |---|---|---|---|
# | `pipeline_parallel_degree` | 0, 32: the two stages | messages with activations, and with their gradients | 11 |
# | `data_parallel_replicate_degree` | 0, 16: equal shards | an all_reduce of the shard's gradients | 07 |
# | `data_parallel_shard_degree` | 0, 4, 8, 12: one replica's shards | all_gathers of weights, a reduce_scatter of gradients | 12 |
# | `tensor_parallel_degree` | 0 to 3: neighbours, on one node | all_reduces of activations in every block | 12 |
# | `pipeline_parallel_schedule` | the stages | the same messages, in another order | 11 |
# | `local_batch_size` | each of the 8 data-parallel shares | nothing; all ranks together take 64 examples a step | 07 |
# | `max_norm` | all ranks | all_reduces of the norm, because each rank has only a part of the gradients | 12 |
# | `activation_checkpoint` | each rank alone | parts of the forward pass run again, with their collectives | 10 |
# | `compile` | each rank alone | the same, at other times | 15 e |
# | `interval`, `async_mode` | all ranks | each rank writes a file at the same step; a checkpoint needs all files | 14 |
#
# The file lists the axes from the outside to the inside. The ranks of the last axis, tp, are neighbours,
# because tp sends most often and has to wait. If data parallelism both replicates and shards, it is called
# hybrid sharding (HSDP): FSDP2 runs within a replica, and an all_reduce between replicas.
#
# ## Which tool when
#
# What does each tool do? The last column names the lessons in which you built its main part.
#
# | tool | starts ranks | cuts, sends | restarts | lessons |
# |---|---|---|---|---|
# | DDP | - | gradients in buckets | - | 07, 08 |
# | FSDP2 | - | state in shards | - | 12 |
# | `torchrun` (TorchElastic) | yes | - | yes | 08, 14 |
# | Horovod | yes | ring, fusion | yes | 05, 15 c |
# | Lightning's Trainer | yes | as its strategy | - | 07, 15 a |
# | Fabric, accelerate | yes | as their strategy | - | 15 a |
# | fast.ai; Ignite | by accelerate; yes | DDP | - | 07 |
# | DeepSpeed | yes | ZeRO 1 to 3, pipelines, sequences (Ulysses), experts | - | 11, 12, 18 |
# | Megatron-LM | - | data, tensors, layers, sequences (cp), experts (ep) | - | 10 to 12, 18 |
# | torchtitan | - | the same, made of torch's parts | - | 11, 12, 18 |
# | Ray | yes | - | yes | 14 |
# | Slurm | yes | - | whole jobs | 16 |
# | Kubernetes | yes, in containers (pods) | - | yes | 14, 16 |
# | Mesos (the past) | yes | - | yes | 16 |
# | XLA, on TPUs and others | - | its compiler places collectives | - | 04, 12 |
#
# If the model fits on one device, take DDP, by hand or under Lightning, Fabric or accelerate. If it does
# not fit, try FSDP2 first, and then Megatron, torchtitan or DeepSpeed. On a few nodes `torchrun` starts the
# ranks. On many nodes Slurm or Kubernetes starts `torchrun`.
#
# `torch.compile` is not in the table. It makes each rank compute faster, and it also changes when a rank sends. The
# [last part](15_what_the_compiler_sends.ipynb) shows how.
#
# Frameworks **hide** who shuffles and who deals, how often there is a barrier, which rank writes, and which
# defaults have changed since a tutorial was written. If a number is wrong or a job hangs, look at these
# first: compare the framework with your own loop by `simlib.compare`.
#
# ## Exit ticket
#
# 1. Which ops does Lightning add to DDP in each step?
# 2. A rank all_reduces 10 MB within its node and all_gathers its 2 MB among 4 nodes. Each group has 4 ranks.
#    How many bytes does the rank send in each group?
# 3. Two replicas have different weights. Which line of the file do you check?
#
# <details><summary>Answers</summary>
#
# 1. It adds a barrier and an all_reduce of 4 bytes for the log, and a broadcast.
# 2. It sends 2 x 3/4 x 10 = 15 MB within the node, and 3 x 2 = 6 MB among the nodes.
# 3. `data_parallel_replicate_degree`: its all_reduce keeps the replicas equal.
#
# </details>
#
# **Next:** torch.compile and functional collectives, in [the last part](15_what_the_compiler_sends.ipynb).
