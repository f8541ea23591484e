# %% [markdown]
# # 15 Frameworks
#
# You have written every part of a training program: shards, gradients, buckets, cuts. A **framework**
# writes them for you, and sends things you never asked for. Here you look inside. In this
# lesson (75 minutes) you will
#
# - repair the lecture's MNIST listing, whose loss has no lower bound, and run it on one rank, then two,
# - convert it to Lightning, step by step, with the same weights at the end,
# - lay five ways to train side by side: which messages are the model's, which are the framework's?
# - break a framework: a log that hangs, and one that mixes up its numbers without a word,
# - write Horovod's four calls in thirty lines, and find which metrics may be averaged,
# - train one transformer five ways, and choose tools by what they do.
#
# **Research code** says what is learned: the model, its loss, its optimizer. **Engineering code** says
# where it runs: ranks, devices, files. Frameworks promise to part the two: less boilerplate, programs
# that are reproducible, consistent, easy to share, and scale.
#
# [Lightning](https://lightning.ai/docs/pytorch/stable/) and
# [accelerate](https://huggingface.co/docs/accelerate) are an extra of this course (60 MB): in a terminal
# `make frameworks`, then restart the kernel. Without them you see **recorded** runs of the same cells.

# %%
import json
import logging
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from IPython.display import display
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import simlib

# %% [markdown]
# `look` runs a program that needs a framework; where there is none, it loads the recorded run of that name.
# Lightning takes seconds to import, and every world of ranks imports it again (1 to 2 s on a quiet machine): such
# cells are slow to start, however short their virtual time.

# %% tags=["nbval-ignore-output"]
try:
    import accelerate
    import lightning as L
    from torchmetrics.classification import MulticlassF1Score

    print("Lightning", L.__version__, "and accelerate", accelerate.__version__, "run here")
except ImportError:  # names enough to read the cells
    L = SimpleNamespace(LightningModule=nn.Module, LightningDataModule=object, Callback=object)
    print("not installed, so recorded runs are shown: `make frameworks` gets them")

RECORDED = Path("recorded_frameworks")


def look(name, function, world_size=2, args=(), engine=simlib.simulate):
    """Run it; where the frameworks are missing, load the recorded run of this name."""
    if hasattr(L, "Trainer"):
        return engine(function, world_size, args)
    display({"text/plain": "", "text/html": ""}, raw=True)  # a run's own place for its output
    run = simlib.load(RECORDED / f"{name}.json")
    kept = json.loads((RECORDED / f"{name}_results.json").read_text())
    if kept["error"]:
        display(run)
        raise getattr(simlib, kept["error"][0])(kept["error"][1])
    run.results = kept["results"]
    return run


# %% [markdown]
# ## The lecture's listing
#
# A lecture on machine learning operations (DTU 02476) converts a listing for MNIST to Lightning. This is its network, in our
# words, on lesson 07's digits. Its `__init__` lacks a line. Where will it stop, and with which words?

# %%
guess = None  # in __init__, in forward, or in training?
train_set, test_set = simlib.digits.load()
RATE = 0.3


class Listing(nn.Module):
    def __init__(self):
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(784, 128), nn.Linear(128, 256), nn.Linear(256, 10)])

    def forward(self, x):
        first, second, third = self.layers
        return third(second(first(x.flatten(1)).relu()).relu())


try:
    Listing()
except AttributeError as error:
    print(error)

# %% [markdown]
# A module keeps its parameters in tables that `nn.Module.__init__` makes. So `super().__init__()` comes
# first. That one tells; the next does not. The listing gives the outputs straight to
# `F.nll_loss`, which expects **logarithms of probabilities**: it takes minus the output of the right digit.
# What can stop that output from growing?

# %%
guess = None  # the loss after 60 steps, without log_softmax and with it


class Net(Listing):
    def __init__(self, is_log=True):
        nn.Module.__init__(self)  # what super().__init__() would do in Listing
        Listing.__init__(self)
        self.is_log = is_log

    def forward(self, x):
        return super().forward(x).log_softmax(1) if self.is_log else super().forward(x)


for is_log in (False, True):
    net = Net(is_log)
    optimizer, losses = torch.optim.Adam(net.parameters(), 1e-3), []
    for x, y in DataLoader(train_set, 25):
        optimizer.zero_grad()
        loss = F.nll_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 1))
    right = ((out := net(test_set.tensors[0])).argmax(1) == test_set.tensors[1]).float().mean()
    print(f"log_softmax {is_log}: losses {losses[::12]} ... {losses[-1]};", end=" ")
    print(f"{right:.0%} right, outputs from {out.min():.0f} to {out.max():.0f}")

# %% [markdown]
# Nothing. Outputs have **no bound**, and the quickest way down is to raise *all* of them, whatever the image: the loss falls for
# ever, and the network reads no better than by guessing. A falling loss looked like success. The log_softmax ties the outputs together:
# probabilities add up to 1, so the loss is never below 0, and raising one output lowers the others. (`F.cross_entropy` does both.)
#
# Three faults are left, in the training part. Which of them raise an error?
#
# ```python
# optimizer.zero_grad()  # once, before the loop
# for x, y in DataLoader(train_set, 25):  # on each rank, without a sampler
#     loss = F.nll_loss(net(x), y)
#     loss.backward()
#     optimizer.step()
#     losses.append(loss.item())
# print(torch.stack(losses).mean())  # of numbers
# ```

# %%
guess = None  # error or silence? Three times.
try:
    torch.stack([0.5, 0.25])
except TypeError as error:
    print("stack:", error, "- instead:", torch.tensor([0.5, 0.25]).mean().item())

one = nn.Linear(1, 1, bias=False)
for _ in range(3):
    one(torch.ones(1, 1)).backward()  # its gradient is 1 each time
print("zero_grad once: the third gradient is", one.weight.grad.item())


def first_labels(rank, world_size, is_dealt):
    sampler = DistributedSampler(train_set, world_size, rank, shuffle=False) if is_dealt else None
    return next(iter(DataLoader(train_set, 6, sampler=sampler)))[1].tolist()


for is_dealt in (False, True):
    print("sampler:", is_dealt, simlib.simulate(first_labels, 2, (is_dealt,)).results)

# %% [markdown]
# Only the first. Gradients pile up (1 + 1 + 1), and without a sampler two ranks do the same work twice
# (lesson 07).
#
# ## Repaired: on one process, then on two ranks by hand
#
# Here it is, whole: `loop`. By hand, `backward` is followed by lesson 07's one all_reduce of all gradients. With 16 examples on
# each of two ranks, or 32 on one, the batches are the same. How far apart are the weights after 8 steps? (SGD keeps rounding
# small; Adam does not: lesson 07.)


# %%
def digits():
    return TensorDataset(*(tensor[:256] for tensor in train_set.tensors))


def loop(net, optimizer, loader, backward=torch.Tensor.backward):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(net(x), y)
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return told(net, losses)


def told(net, losses):
    """A rank's last loss, and five sums over all its weights that tell whether two are equal."""
    weights = torch.cat([p.detach().double().flatten() for p in net.parameters()])
    random = torch.Generator().manual_seed(1)
    sums = torch.randn(5, len(weights), generator=random, dtype=torch.float64) @ weights
    return [losses[-1], sums.tolist()]


# %%
def by_hand(rank, world_size, batch=16):
    def backward(loss):
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / world_size, [p.grad for p in net.parameters()])

    net, sampler = Net(), DistributedSampler(digits(), world_size, rank)
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    return loop(net, optimizer, DataLoader(digits(), batch, sampler=sampler), backward)


def off(run, other):
    """How far the sums of two runs are apart at most, over all ranks."""
    pairs = zip(run.results, other.results * run.world_size, strict=False)
    return max((torch.tensor(a[1]) - torch.tensor(b[1])).abs().max().item() for a, b in pairs)


guess = None  # the difference
alone, hand = simlib.simulate(by_hand, 1, (32,)), simlib.simulate(by_hand, 2)
print("two ranks and one differ by less than 1e-3:", off(hand, alone) < 1e-3)
print("last losses:", *(round(result[0], 3) for result in alone.results + hand.results))

# %% [markdown]
# Rounding only. Each rank's last loss is that of its own examples, and one rank's is the mean of both. This is the
# program that we convert now.
#
# ## Step 1: a LightningModule and a Trainer
#
# The module takes the research code: the network, `training_step`, `configure_optimizers`. The **Trainer** takes
# the rest. Four arguments say where to run: `accelerator`, `devices` (ranks on each node), `num_nodes`, `strategy`.
# `plugins` tells Lightning that its ranks are there already.
#
# Without simlib that line is left out: `python train.py` starts the other ranks of one node itself. On 2 nodes of 8, with
# `devices=8, num_nodes=2`, the same script is started by `torchrun --nnodes 2 --nproc-per-node 8 ...` on each, or by Slurm's `srun`
# with 8 tasks a node. (With accelerate: `accelerate launch`.)


# %%
class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.losses, self.rate = Net(), [], RATE

    def loss(self, batch):
        return F.nll_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch, number):
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.rate)

    def validation_step(self, batch, number):  # for step 3
        self.log("val_loss", self.loss(batch), sync_dist=True)


# %%
QUIET = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]


def trainer(world_size, **options):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # on loaders without workers
    where = {"accelerator": "cpu", "devices": world_size, "num_nodes": 1, "strategy": "ddp"}
    usual = {"max_epochs": 1, "default_root_dir": "."} | dict.fromkeys(QUIET, False)
    options = usual | where | options
    return L.Trainer(plugins=[simlib.lightning.environment()], **options)


def by_lightning(rank, world_size):
    module = Digits()
    trainer(world_size).fit(module, DataLoader(digits(), 16, shuffle=True))
    return told(module.net, module.losses)


guess = None  # same weights as by hand?
lightning_run = look("lightning", by_lightning)
on_processes = look("lightning_on_processes", by_lightning, engine=simlib.run)
for name, run in {"simulated": lightning_run, "on real ranks": on_processes}.items():
    print(f"Lightning {name}, same weights as by hand: {off(run, hand) < 1e-4};", end=" ")
    print("last losses", *(round(result[0], 3) for result in run.results))

# %% [markdown]
# The same weights, on real ranks as on simulated ones. What disappeared from our text, and where did it go?
#
# | by hand | now |
# |---|---|
# | the loop, `zero_grad`, `backward`, `step` | in `fit` |
# | `DistributedSampler`, `set_epoch` | the Trainer replaces the loader's sampler |
# | the `all_reduce` of gradients | DDP around the module |
# | which rank prints, saves, stops | loggers and callbacks |
#
# The second line hides most: the Trainer deals *and shuffles* training data, by a seed of its own (0, or that of
# `seed_everything`), even if your loader has `shuffle=False`. `use_distributed_sampler=False` stops that. (`seed_everything(1)`
# gives *all* ranks the seed 1, so the same dropout, too: lesson 07.)
#
# ## Five ways, side by side
#
# **Fabric** is Lightning without a Trainer, and **accelerate** is Hugging Face's answer: you keep your loop, and
# wrap model, optimizer and loader. Here is the same loop three times.


# %%
def by_ddp(rank, world_size):
    net = DistributedDataParallel(Net())
    loader = DataLoader(digits(), 16, sampler=DistributedSampler(digits(), world_size, rank))
    return loop(net, torch.optim.SGD(net.parameters(), RATE), loader)


def parts():
    warnings.simplefilter("ignore")
    net = Net()
    return net, torch.optim.SGD(net.parameters(), RATE), DataLoader(digits(), 16, shuffle=True)


def by_fabric(rank, world_size):
    plugins = [simlib.lightning.environment()]
    fabric = L.Fabric(accelerator="cpu", devices=world_size, strategy="ddp", plugins=plugins)
    fabric.launch()
    net, optimizer, loader = parts()
    net, optimizer = fabric.setup(net, optimizer)
    return loop(net, optimizer, fabric.setup_dataloaders(loader), fabric.backward)


def by_accelerate(rank, world_size):
    mine = parts()
    own = accelerate.Accelerator(cpu=True)
    return loop(*own.prepare(*mine), own.backward)


# %% [markdown]
# Before you run the next cell: which ops will be in all five? Who sends most on top of them? `simlib.compare`
# counts each sort of op, here with its bytes. Green: all equally often; blue: another run has as many; orange: this one alone.
#
# Then, with the list of "Lightning's alone" before you, **now you write it**: `own_ops`, how many ops that is for so many steps of one epoch.

# %%
guess = None  # common to all? Most of its own?


def own_ops(steps):
    return None  # your formula


runs = {"by hand": hand, "DDP": simlib.simulate(by_ddp, 2), "Lightning": lightning_run}
runs |= {"Fabric": look("fabric", by_fabric), "accelerate": look("accelerate", by_accelerate)}
for name, run in runs.items():
    print(f"{name:10} last losses", *(f"{result[0]:.3f}" for result in run.results), end=" ")
    print("- same weights as by hand:", off(run, hand) < 1e-4)
compared = simlib.compare(runs)
index = compared.names.index("Lightning")
print("in all five:", *(f"{op.counts[0]} x {op.label}" for op in compared.common))
print("Lightning's alone:")
for op in compared.differences:
    if op.counts[index] and not op.counts[1]:
        for line, count in op.lines[index].items():
            print(f"  {count} x {op.label:22} {line.partition(': ')[2]}")
print("by your formula, in 8 steps:", own_ops(8))
compared

# %% [markdown]
# (Each rank's losses are its own, so each has its own shard. Accelerate draws another shuffle, hence other weights.)
#
# The eight all_reduces of all gradients are **the model's**: whoever trains data-parallel sends them.
# DDP checks how many tensors there are (8 bytes) and their shapes (144), broadcasts the weights, and after the first step rank 0's
# buckets: which gradients (28) and how many a bucket holds (4; lesson 08). Fabric adds nothing. Accelerate
# broadcasts the state of its random generator, so that all ranks shuffle alike. Lightning adds most, and the list
# names *your* lines behind it:
#
# - 7 barriers: 5 around set-up, checkpoint and data, 2 before the all_reduces of 8 bytes, which ask how long the ranks' loaders are;
# - a broadcast of 8 bytes a step (has rank 0 been told to end? SIGTERM, lesson 14) and one more, and one of 16: rank 0's folder;
# - `self.log(..., sync_dist=True)`: a barrier and an all_reduce of 4 bytes **in every step**. The remedy comes in step 4.
#
# <details><summary>The formula</summary>
#
# `11 + 3 * steps`: 7 barriers, 2 all_reduces and 2 broadcasts; in each step two for the log and a broadcast.
#
# </details>
#
# One thing about accelerate. It keeps "who am I" in attributes of a *class*. That is right where a rank is a process.
# Simulated ranks are threads of one process: they would all be rank 0, all take the same shard, and nothing would say so.
# Therefore simlib gives each simulated rank its own copy. Whoever puts ranks into threads must ask
# this of every library.
#
# ## Step 2: a DataModule
#
# It takes the data: `prepare_data` (download, unpack) and `setup` (split, load). Two ranks must not unpack into
# one folder at once. Who calls which: with both ranks on one node, and on two nodes?


# %%
class Data(L.LightningDataModule):
    calls = ()

    def prepare_data(self):  # download, unpack
        self.calls += ("prepare_data",)

    def setup(self, stage):
        self.calls += ("setup",)
        self.parts = digits(), TensorDataset(*(tensor[:64] for tensor in test_set.tensors))

    def train_dataloader(self):
        return DataLoader(self.parts[0], 16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], 16)


def calls_of(rank, world_size, where):
    trainer(world_size, limit_val_batches=0, **where).fit(Digits(), data := Data())
    return " and ".join(data.calls)


for name, where in {"data": {}, "data_on_nodes": {"devices": 1, "num_nodes": 2}}.items():
    run = look(name, calls_of, args=(where,))
    print(where or "one node", *run.results, sep="; ")

# %% [markdown]
# `prepare_data` once **on each node**, by its local rank 0; then a barrier, and `setup` on every rank. (simlib has no nodes for
# Lightning: `devices=2` says that both ranks are on one.) So a `self.size = ...` in `prepare_data` is missing on the other ranks of
# a node.
#
# ## Steps 3 and 4: loggers, callbacks, precision
#
# Validation gives a number for each epoch. Two callbacks look at it: **EarlyStopping** ends the training,
# **ModelCheckpoint** keeps the best weights. A **logger** writes a table, and a callback of our own notes when it is called.
# Each rank offers a folder of its own. What will lie in rank 1's? And who decides to stop?


# %%
class Bell(L.Callback):
    def on_train_epoch_end(self, trainer, module):
        module.epochs = trainer.current_epoch + 1


def with_callbacks(rank, world_size, folder):
    from lightning.pytorch import callbacks, loggers, utilities

    module, own = Digits(), Path(folder, f"rank{rank}")
    module.rate = 0.5
    best = callbacks.ModelCheckpoint(own, "best", monitor="val_loss")
    called = [best, callbacks.EarlyStopping("val_loss", patience=2), Bell()]
    options = {"max_epochs": 30, "enable_checkpointing": True, "num_sanity_val_steps": 0}
    options |= {"callbacks": called, "logger": loggers.CSVLogger(own)}
    trainer(world_size, **options).fit(module, Data())
    files = sorted(path.name for path in own.rglob("*") if path.is_file())
    note = utilities.rank_zero_only(lambda: "notes it")()
    return module.epochs, files, round(best.best_model_score.item(), 3), note


guess = None  # files of rank 0, of rank 1
with tempfile.TemporaryDirectory() as folder:
    run = look("callbacks", with_callbacks, args=(folder,))
for rank, (epochs, files, best, note) in enumerate(run.results):
    print(f"rank {rank}: {epochs} epochs, best {best}, files {files}, {note}")

# %% [markdown]
# Callbacks run on **every** rank, loggers and checkpoints write on rank 0. (A function of yours, too, below `@rank_zero_only`; elsewhere it
# is None.) All ranks must stop in the same epoch, else the rest
# waits for ever: EarlyStopping all_reduces one yes or no, 8 bytes. Without `sync_dist` each rank would judge its own
# `val_loss`, and the checkpoint would follow rank 0's.
#
# Other loggers: TensorBoard (live pages from files), MLflow and Weights & Biases (**experiment managers**: they
# keep arguments, numbers and weights of all your runs; both can work offline). All need the same: one rank
# writes.
#
# **Step 4: options.** `precision="bf16-mixed"` multiplies in 2 bytes; `accumulate_grad_batches=2` steps after two batches;
# `gradient_clip_val` clips. And the log: once an epoch, or plain `self.log`. Which changes the all_reduces of gradients (8 of
# 544,296 bytes), which Lightning's own 35 ops? What is logged?


# %%
def tried(rank, world_size, options, how):
    class Logging(Digits):
        def training_step(self, batch, number):
            self.log("loss", loss := self.loss(batch), **how)
            return loss

    own = trainer(world_size, **options)
    own.fit(Logging(), DataLoader(digits(), 16, shuffle=True))
    return round(own.callback_metrics["loss"].item(), 3)


guess = None  # which of the four?
EACH = {"sync_dist": True}
TRIED = {
    "bf16": ({"precision": "bf16-mixed"}, EACH),
    "accumulated": ({"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}, EACH),
    "per_epoch": ({}, EACH | {"on_step": False, "on_epoch": True}),
    "plain": ({}, {}),
}
for name, args in TRIED.items():
    run = look(name, tried, args=args)
    calls = [c.nbytes for c in run.trace.collectives if c.kind == "all_reduce" and c.nbytes > 8]
    own = len(run.trace.collectives) - len(calls) - 5  # five are DDP's
    print(f"{name:11} {len(calls)} x {calls[0]:,} B, {own} own ops; logged:", *run.results)

# %% [markdown]
# Nothing is halved on the wire. *Mixed* means: weights and gradients stay float32. (A hook of DDP's can round what is sent.) Accumulation
# halves the all_reduces, and clipping sends nothing: all ranks have the same gradients (lesson 07). Plain `self.log` sends
# nothing either: each rank has its own loss, and the logger writes rank 0's. **The remedy**, `sync_dist=True` with
# `on_step=False, on_epoch=True`: the mean of the epoch over all ranks, for two barriers, an all_reduce of 4 bytes and one of 8 at its end.
#
# ## Trainer's arguments, then and now
#
# Tutorials keep the arguments of their year. Which does today's Trainer still take?

# %%
guess = None  # how many of the seven?
THEN = {
    "gpus": (2, 'accelerator="gpu", devices=2'),
    "tpu_cores": (8, 'accelerator="tpu", devices=8'),
    "distributed_backend": ("ddp", 'strategy="ddp"'),
    "precision": (16, 'precision="16-mixed"'),
    "auto_lr_find": (True, "Tuner(trainer).lr_find(module)"),
    "checkpoint_callback": (False, "enable_checkpointing=False"),
    "resume_from_checkpoint": ("last.ckpt", 'fit(..., ckpt_path="last.ckpt")'),
}


def taken(rank, world_size):
    def is_taken(name):
        try:
            return bool(trainer(world_size, **{name: THEN[name][0]}))
        except TypeError:
            return False

    return [[name, is_taken(name)] for name in THEN]


for name, is_taken in look("arguments", taken, 1).results[0]:
    old, new = THEN[name]
    print(f"{name + '=' + repr(old):38} {'taken  ' if is_taken else 'refused'}  now {new}")

# %% [markdown]
# A refusal is kind: it has a message. The one that is still taken, `precision=16`, has a new name as well. `accelerator` says
# "cpu", "gpu" or "tpu", `devices` how many, `strategy` what is sent. (`lr_find` raises the learning rate step by step, and
# proposes one from before the loss begins to rise.)
#
# ## Break it
#
# `log_dict` takes a dictionary. Three ways to bring ranks apart: the keys that *occur* in a batch; the same keys in another order; and rank 0
# alone saves a checkpoint ("one rank writes", we said). Which hangs, which is silent?


# %%
class Occurring(Digits):
    def training_step(self, batch, number):
        labels = batch[1]
        found = {f"share of {d}": (labels == d).float().mean() for d in labels.unique().tolist()}
        self.log_dict(found, sync_dist=True)
        return super().training_step(batch, number)


class OtherOrder(Digits):
    def training_step(self, batch, number):
        numbers = {"one": torch.tensor(1.0), "five": torch.tensor(5.0)}
        names = sorted(numbers, reverse=self.global_rank == 1)  # a set would do so by chance
        self.log_dict({name: numbers[name] for name in names}, sync_dist=True)
        return super().training_step(batch, number)


def logged(rank, world_size, module_class, folder):
    own = trainer(world_size, limit_train_batches=1)
    own.fit(module_class(), DataLoader(digits(), 16, shuffle=True))
    if folder and rank == 0:
        own.save_checkpoint(Path(folder, "last.ckpt"))
    return {name: value.item() for name, value in own.callback_metrics.items() if name != "loss"}


# %% [markdown]
# The second is not far-fetched: a `set` of names may have another order in each process. Before you run
# it: which of the three does simlib stop, and with which words?

# %% tags=["nbval-ignore-output"]
guess = None  # an error, a hang, or silence? Three times.
with tempfile.TemporaryDirectory() as folder:
    for name, args in {
        "occurring": (Occurring, ""),
        "order": (OtherOrder, ""),
        "saved": (Digits, folder),
    }.items():
        try:
            print(name, look(name, logged, 2, args).results)
        except simlib.SimlibError as error:
            print(name, type(error).__name__, error)

# %% [markdown]
# Each logged key is a barrier and an all_reduce at its place in line. Other keys: one rank has gone on to another collective. Lightning
# with ranks of its own, on plain Gloo, hangs without a word (we waited a minute); simlib names both ranks and lines. Same keys in another order: the 1 of one rank met the 5 of the other, both logs say 3, and
# nobody is told. **Log the same keys, in the same order, on every rank**: a fixed list, with 0 or nan for what did not occur. And
# `save_checkpoint` has a barrier inside: *call* it on all ranks; it writes on one.
#
# ## Horovod's two ideas
#
# Horovod (Sergeev and Del Balso 2018, arXiv 1802.05799) made two ideas common: the **ring** (lesson 05) in the place of parameter
# servers, and **tensor fusion**: many small gradients travel in one buffer (lesson 08's buckets; by default 64 MB,
# [128 since 2020](https://github.com/horovod/horovod/pull/2468)). A script needed four calls: who am I, how many
# are we, the same weights for all, and an optimizer that sends gradients. Here is the last of them, on `torch.distributed`:


# %%
class DistributedOptimizer:  # call 4
    def __init__(self, optimizer, fusion_bytes=64 * 2**20):
        self.inner, self.cap, self.ready, self.sent = optimizer, fusion_bytes, [], []
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.register_post_accumulate_grad_hook(self.add)

    def add(self, p):
        self.ready.append(p)
        if sum(p.grad.nbytes for p in self.ready) >= self.cap:
            self.flush()

    def flush(self):
        if self.ready:
            fused = torch.cat([p.grad.flatten() for p in self.ready])
            self.sent.append((self.ready, fused, dist.all_reduce(fused, async_op=True)))
            self.ready = []

    def step(self):
        self.flush()
        for ready, fused, request in self.sent:
            request.wait()
            nn.utils.vector_to_parameters(fused / hvd.size(), [p.grad for p in ready])
        self.sent = []
        self.inner.step()


# %% [markdown]
# The others are short. Twenty-four layers on eight nodes, with a ring: without fusion, with buffers of 16 KiB, and with 64 MiB. How many
# all_reduces, and how many times faster are they, from the first that is sent to the end of the last?


# %%
def broadcast_parameters(state, root_rank):  # call 3
    for tensor in state.values():
        dist.broadcast(tensor, src=root_rank)


hvd = SimpleNamespace(init=lambda: None, rank=dist.get_rank, size=dist.get_world_size)  # 1 and 2
guess = None  # how many times faster with fusion?


def tower(rank, world_size, fusion_bytes):
    hvd.init()
    torch.manual_seed(hvd.rank())
    net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(24)))
    broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), fusion_bytes)
    dist.barrier()
    net(torch.ones(4, 32) * hvd.rank()).sum().backward()
    optimizer.step()


for fusion_bytes in (0, 16 * 2**10, 64 * 2**20):
    run = simlib.simulate(tower, 8, (fusion_bytes,), all_reduce="ring")
    reduces = [c for c in run.trace.collectives if c.kind == "all_reduce"]
    took_s = run.time_s - min(op.post_s for c in reduces for op in c.ops.values())
    print(f"buffer {fusion_bytes:10,} B: {len(reduces):2} all_reduces in {took_s * 1e3:5.2f} ms")

# %% [markdown]
# One all_reduce is 36 times as fast as 48: each of these pays a ring's 14 latencies, and the bytes are the same. What is missing: Horovod's
# ranks tell a coordinator which gradients are ready, so their order may differ. DDP fixes the order instead (lesson 08).
# Horovod is not installed here: it has no ready-made package for this Python and torch, its build fails, and DDP does
# the same. TorchElastic, once a package of its own, became part of torch: it *is* `torchrun` (lesson 14).
#
# ## Which metrics may be averaged?
#
# Each rank validates its shard, `sync_dist=True` averages. Right for which of accuracy, F1 and AUC? (F1 is 2 TP / (2 TP + FP + FN), from the
# numbers of true positives, false positives and false negatives; this TP is no tensor parallelism. AUC is the share of pairs, one
# positive and one negative example, in which the positive scores higher.)

# %%
guess = None  # equal shards? Unequal?
random = torch.Generator().manual_seed(0)
label = torch.rand(240, generator=random) < torch.linspace(0.02, 0.8, 240)
score = torch.randn(240, generator=random) + 1.5 * label - 0.5 + torch.linspace(-1, 1, 240)


def accuracy(score, label):
    return ((score > 0) == label).float().mean().item()


def f1(score, label):
    guessed = score > 0
    return (2 * (guessed & label).sum() / (guessed.sum() + label.sum())).item()


def auc(score, label):
    return (score[label][:, None] > score[~label]).float().mean().item()


for metric in (accuracy, f1, auc):
    print(f"{metric.__name__:8} of all {metric(score, label):.3f}", end=" ")
    for sizes in ([120, 120], [60, 180]):
        shards = zip(score.split(sizes), label.split(sizes), strict=True)
        print(f"- mean of shards {sizes}: {sum(metric(*s) for s in shards) / 2:.3f}", end=" ")
    print()

# %% [markdown]
# A mean over *equally many* examples may be averaged: accuracy, losses. F1 is a ratio of sums, so add up its **counts** first. AUC needs
# pairs across shards: no number of a shard will do, gather the scores (or counts in bins). TorchMetrics does that: `update` on each rank,
# and `compute` puts the *states* together. What does it send for F1? And **now you write it**: F1 of all from the counts of shards,
# each `(tp, fp, fn)`.


# %%
def f1_of_counts(counts):
    return None  # your formula


def count(score, label):
    guessed = score > 0
    return [int(x.sum()) for x in (guessed & label, guessed & ~label, ~guessed & label)]


def metric_of_ranks(rank, world_size):
    metric = MulticlassF1Score(2, average="none")
    metric.update((score > 0).int().chunk(world_size)[rank], label.int().chunk(world_size)[rank])
    return [float(metric.compute()[1])]


run = look("metric", metric_of_ranks)
print(f"TorchMetrics {run.results[0][0]:.3f}, of all {f1(score, label):.3f};", end=" ")
print(len(run.trace.collectives), "ops,", sum(c.nbytes for c in run.trace.collectives), "bytes")
shards = zip(score.split([60, 180]), label.split([60, 180]), strict=True)
print(
    "counts of shards:", counts := [count(*shard) for shard in shards], f1_of_counts(counts) or ""
)

# %% [markdown]
# <details><summary>The formula</summary>
#
# `tp, fp, fn = map(sum, zip(*counts))`, then `2 * tp / (2 * tp + fp + fn)`.
#
# </details>
#
# Twelve ops: it gathers four counters for the two classes (16 bytes each), each after a barrier and its shape (8 bytes). As few bytes for a million
# examples. In a LightningModule: `self.f1 = MulticlassF1Score(...)` in `__init__`, then in `validation_step` `self.f1.update(...)` and
# `self.log("f1", self.f1)`, the [metric itself](https://lightning.ai/docs/torchmetrics/stable/pages/lightning.html), not its
# value. One thing stays: the Trainer's sampler pads uneven shards, so of 63 validation examples one counts twice (lesson 07).
#
# ## One transformer, five ways
#
# Now the whole course in one picture. Two blocks of a tiny transformer (lesson 12) predict the next of 16 tokens, on two ranks, for three
# steps: by DDP, by FSDP2, with tensors cut (TP), with layers dealt out (PP, two micro-batches), and by Lightning.


# %%
D, HEADS = 32, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(D), nn.LayerNorm(D)])
        self.q, self.k, self.v, self.out = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)

    def forward(self, x):
        h = self.norms[0](x)
        heads = (f(h).unflatten(-1, (-1, D // HEADS)) for f in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(*(h.transpose(1, 2) for h in heads), is_causal=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def transformer():
    torch.manual_seed(0)
    text = torch.randint(16, (8, 13))
    net = nn.Sequential(nn.Embedding(16, D), Block(), Block(), nn.Linear(D, 16))
    return net, text[:, :-1], text[:, 1:]


# %%
def loss_of(output, y):
    return F.cross_entropy(output.flatten(0, 1), y.flatten())


def three_steps(net, x, y):
    optimizer, losses = torch.optim.SGD(net.parameters(), RATE), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp(rank, world_size):
    net, *data = transformer()
    return three_steps(DistributedDataParallel(net), *(x.chunk(world_size)[rank] for x in data))


def fsdp2(rank, world_size):
    warnings.simplefilter("ignore")  # that the output is a view
    net, *data = transformer()
    [fully_shard(block) for block in net[1:3]]
    return three_steps(fully_shard(net), *(x.chunk(world_size)[rank] for x in data))


# %% [markdown]
# `three_steps` is the loop of three of them. DDP and FSDP2 give a rank its half of the examples; with TP both ranks
# have all. A stage of a pipeline has its own schedule (lesson 11). **Now you write it**: with TP, how many all_reduces? (Four a
# block in lesson 12, with one Enter for q, k and v.)
#
# The last cell leaves out set-up, and ops that set-up shares with steps, such as barriers: what belongs to three steps alone comes three
# times, or six, or twelve. It counts **payload**: the bytes that a rank brings into collectives, or sends in messages, in a step.


# %%
def tp(rank, world_size):
    net, x, y = transformer()
    plan = dict.fromkeys(["q", "k", "v", "up"], ColwiseParallel())
    plan |= dict.fromkeys(["out", "down"], RowwiseParallel())
    for block in net[1:3]:
        parallelize_module(block, init_device_mesh("cpu", (world_size,)), plan)
    return three_steps(net, x, y)


def pp(rank, world_size):
    net, x, y = transformer()
    net = net[:2] if rank == 0 else net[2:]
    stage = PipelineStage(net, rank, world_size, torch.device("cpu"))
    schedule, means = Schedule1F1B(stage, 2, loss_fn=loss_of), []
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    for _ in range(3):
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
            means.append(sum(loss.item() for loss in losses) / 2)
        optimizer.step()
    return means


# %%
def tp_all_reduces(blocks, steps):
    return None  # your formula


def in_lightning(rank, world_size):
    module, (net, x, y) = Digits(), transformer()
    module.net, module.loss = net, lambda batch: loss_of(net(batch[0]), batch[1])
    data = DataLoader(TensorDataset(x, y), 8 // world_size)
    trainer(world_size, max_epochs=3).fit(module, data)
    return module.losses


five = {f.__name__.upper(): simlib.simulate(f, 2) for f in (ddp, fsdp2, tp, pp)}
five["Lightning"] = look("transformer", in_lightning)
compared = simlib.compare(five)
ops = [op for op in compared.ops if any(n and n % 3 == 0 for n in op.counts)]  # of three steps
for column, (name, run) in enumerate(five.items()):
    losses = torch.tensor([mine for mine in run.results if mine], dtype=torch.float64).mean(0)
    sent = sum(op.nbytes * op.counts[column] // (6 if op.call == "message" else 3) for op in ops)
    print(f"{name:9} losses", *(f"{loss:.4f}" for loss in losses), f"- a step: {sent:7,} B a rank")
print("all_reduces of TP, predicted:", tp_all_reduces(2, 3))
simlib.Comparison(compared.names, ops)

# %% [markdown]
# <details><summary>The formula</summary>
#
# `6 * blocks * steps`, so 36: two forward, four backward. torch's plan gives q, k and v an Enter **each**. Ours sent one for
# all three. (As one matrix they would share one.)
#
# </details>
#
# The same losses, to four digits, and hardly a row in common: DDP sends gradients, FSDP2 gathers weights and scatters
# gradients, TP sums activations in every block, PP hands activations to a neighbour. Only DDP and Lightning share a row (blue):
# **Lightning is DDP plus its own**, here the log. With another `strategy` it is that plus its own: `"fsdp"` is the first FSDP,
# `ModelParallelStrategy()` takes FSDP2 and TP, as you write them.
#
# ## Which tool when
#
# What does each do for *this* course's parts? (Heart: the lesson in which you built it.)
#
# | tool | starts ranks | cuts, sends | restarts | heart |
# |---|---|---|---|---|
# | DDP | - | gradients in buckets | - | 07, 08 |
# | FSDP2 | - | state in shards | - | 12 |
# | `torchrun` (TorchElastic) | yes | - | yes | 08, 14 |
# | Horovod | yes | ring, fusion | yes | 05, here |
# | Lightning's Trainer | yes | as its strategy | - | 07, here |
# | Fabric, accelerate | yes | as their strategy | - | here |
# | fast.ai; Ignite | by accelerate; yes | DDP | - | 07 |
# | DeepSpeed | yes | ZeRO 1 to 3, pipelines | - | 11, 12 |
# | Megatron-LM | - | data, tensors, layers, sequences (cp), experts (ep) | - | 10 to 12, 18 |
# | torchtitan | - | the same, of torch's parts | - | 11, 12, 18 |
# | Ray | yes | - | yes | 14 |
# | Slurm | yes | - | whole jobs | 16 |
# | Kubernetes | yes, in containers (pods) | - | yes | 14, 16 |
# | Mesos (the past) | yes | - | yes | 16 |
# | XLA, on TPUs and others | - | its compiler places collectives | - | 04, 12 |
#
# The model fits on one device? DDP, by hand or under Lightning, Fabric or accelerate. It does not? FSDP2 first; then Megatron, torchtitan or
# DeepSpeed. (`torch.compile` is none of these: it makes one rank's computing faster.) Who starts ranks is another question: `torchrun` on a few nodes, under Slurm or Kubernetes on many.
#
# What frameworks **hide**: who shuffles, who deals, how often is a barrier, which rank writes, which defaults changed since the tutorial. When a
# number is wrong or a job hangs, that is where you look, and `simlib.compare` with a loop by hand shows it.
#
# ## Your turn
#
# [Exercises 15](../exercises/15_frameworks.ipynb): convert a loop and keep the weights, a metric that must not be averaged, a callback
# that hangs nobody, and what one framework sends more than another.
#
# ## Exit ticket
#
# 1. A loss falls to -900. What is missing?
# 2. Your validation F1 changes with the number of ranks. Why?
# 3. `if self.global_rank == 0: self.log("x", x, sync_dist=True)`. What happens?
# 4. You download in `prepare_data` and set `self.classes` there. What happens on rank 1?
# 5. Which collectives of a Lightning run remain in a loop by hand?
# 6. Why do 48 small all_reduces take 36 times as long as one with the same bytes?
#
# <details><summary>Answers</summary>
#
# 1. log_softmax, or `F.cross_entropy` for both.
# 2. It is a mean of the shards' F1s. Add counts up first.
# 3. Rank 0's all_reduce or barrier meets another call, or nobody: a hang.
# 4. `self.classes` is not there: that belongs to `setup`.
# 5. The all_reduces of the gradients, one a step (or a bucket).
# 6. Each pays the latency of a whole ring: 48 times instead of once. The bytes' own time is the same, hence 36 and not 48.
#
# </details>
#
# **Next:** [lesson 16](16_the_real_cluster.ipynb): the real cluster.
