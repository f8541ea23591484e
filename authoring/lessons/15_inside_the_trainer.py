# %% [markdown]
# # 15 Inside the Trainer
#
# This is the second part of lesson 15. [The first part](15_frameworks.ipynb) converted a program to
# Lightning, Fabric and accelerate. You need that part, and lesson 08. A framework also sends things that
# you never asked for. In this part (60 minutes) you will
#
# - compare five ways to train, and tell the model's messages from the framework's,
# - see which ranks call which method of a DataModule, on one node and on two,
# - write early stopping that stops all ranks together, and try that of Lightning,
# - measure how options of the Trainer change what is sent,
# - read a process's rank from the environment, for each launcher.
#
# The first cells repeat the first part's program.

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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import simlib

# %% [markdown]
# `look` shows recorded runs if Lightning and accelerate are not installed (see the first part).

# %% tags=["nbval-ignore-output"]
try:
    import accelerate
    import lightning as L

    print("Lightning", L.__version__, "and accelerate", accelerate.__version__, "run here")
except ImportError:  # enough names to read the cells
    L = SimpleNamespace(LightningModule=nn.Module, LightningDataModule=object, Callback=object)
    print("not installed, so recorded runs are shown: `make frameworks` installs them")

RECORDED = Path("recorded_frameworks")


def look(name, function, world_size=2, args=(), engine=simlib.simulate):
    """Run it; if the frameworks are missing, load the recorded run of this name."""
    if hasattr(L, "Trainer"):
        return engine(function, world_size, args)
    display({"text/plain": "", "text/html": ""}, raw=True)  # a run's own place for its output
    run = simlib.load(RECORDED / f"{name}.json")
    run.results = json.loads((RECORDED / f"{name}_results.json").read_text())["results"]
    return run


# %% [markdown]
# ## The program, once more
#
# `digits`, `Digits` and `trainer` come from the first part. Now `Digits` also has a validation step, and
# `trainer` takes more options.

# %%
train_set, test_set = simlib.digits.load()
RATE = 0.3
QUIET = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]


def digits():
    return TensorDataset(*(tensor[:256] for tensor in train_set.tensors))


def network():
    torch.manual_seed(0)
    inner = nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 256), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *inner, nn.Linear(256, 10), nn.LogSoftmax(1))


def trainer(world_size, **options):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # on loaders without workers
    where = {"accelerator": "cpu", "devices": world_size, "num_nodes": 1, "strategy": "ddp"}
    usual = {"max_epochs": 1, "default_root_dir": "."} | dict.fromkeys(QUIET, False)
    options = usual | where | options
    return L.Trainer(plugins=[simlib.lightning.environment()], **options)


# %%
class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.rate = network(), RATE

    def loss(self, batch):
        return F.nll_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch, number):
        self.log("loss", loss := self.loss(batch), sync_dist=True)
        return loss

    def validation_step(self, batch, number):
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.rate)


# %% [markdown]
# ## Five ways, side by side
#
# `by_hand` uses only one all_reduce of all gradients in each step (lesson 07). `by_ddp` wraps the network in
# DDP. Fabric, accelerate and Lightning use DDP, too.


# %%
def loop(net, optimizer, loader, backward=torch.Tensor.backward):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(net(x), y)
        backward(loss)
        optimizer.step()


def parts(**options):
    warnings.simplefilter("ignore")
    net = network()
    return net, torch.optim.SGD(net.parameters(), RATE), DataLoader(digits(), 16, **options)


def by_hand(rank, world_size):
    def backward(loss):
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / world_size, [p.grad for p in net.parameters()])

    net, optimizer, loader = parts(sampler=DistributedSampler(digits(), world_size, rank))
    loop(net, optimizer, loader, backward)


def by_ddp(rank, world_size):
    net, optimizer, loader = parts(sampler=DistributedSampler(digits(), world_size, rank))
    loop(nn.parallel.DistributedDataParallel(net), optimizer, loader)


# %%
def by_fabric(rank, world_size):
    plugins = [simlib.lightning.environment()]
    fabric = L.Fabric(accelerator="cpu", devices=world_size, strategy="ddp", plugins=plugins)
    fabric.launch()
    net, optimizer, loader = parts(shuffle=True)
    net, optimizer = fabric.setup(net, optimizer)
    loop(net, optimizer, fabric.setup_dataloaders(loader), fabric.backward)


def by_accelerate(rank, world_size):
    mine = parts(shuffle=True)
    own = accelerate.Accelerator(cpu=True)
    loop(*own.prepare(*mine), own.backward)


def by_lightning(rank, world_size, steps=8):
    loader = DataLoader(digits(), 16, shuffle=True)
    trainer(world_size, limit_train_batches=steps).fit(Digits(), loader)


# %% [markdown]
# Which of the three frameworks adds the most ops to those of DDP? `simlib.compare` counts ops of the same
# kind and size. A green count is equal in all runs. A blue count is equal in some runs. An
# orange count occurs in only one run.
#
# **Now you write it:** `own_ops(steps)`, the number of ops that only Lightning sends, in one epoch of `steps`
# steps. Run the cell first, and read the list "Lightning's alone" for 8 steps. The cell
# compares your formula with this run and with a run of 3 steps.

# %%
most = None  # "Fabric", "accelerate" or "Lightning"?


def own_ops(steps):
    return None  # your formula


runs = {"by hand": simlib.simulate(by_hand, 2), "DDP": simlib.simulate(by_ddp, 2)}
runs |= {"Lightning": look("lightning_sends", by_lightning)}
runs |= {"Fabric": look("fabric_sends", by_fabric)}
runs |= {"accelerate": look("accelerate_sends", by_accelerate)}
compared = simlib.compare(runs)
print("in all five:", *(f"{op.counts[0]} x {op.label}" for op in compared.common))
print("Lightning's alone:")
for op in compared.differences:
    if op.counts[2] and not op.counts[1]:
        for line, count in op.lines[2].items():
            print(f"  {count} x {op.label:22} {line.partition(': ')[2]}")
count = {name: len(run.trace.collectives) for name, run in runs.items()}
added = {name: count[name] - count["DDP"] for name in ("Fabric", "accelerate", "Lightning")}
print("more ops than DDP:", added)
simlib.guess(most, max(added, key=added.get), of=tuple(added))
short = len(look("lightning_3_steps", by_lightning, args=(3,)).trace.collectives)
is_right = [own_ops(8), own_ops(3)] == [added["Lightning"], short - (count["DDP"] - 5)]
print("own_ops:", "right" if is_right else "not yet")
compared

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return 11 + 3 * steps`
#
# The 11 are 7 barriers, 2 all_reduces and 2 broadcasts. Each step adds a barrier and an all_reduce for the
# log, and a broadcast.
#
# </details>
#
# The eight all_reduces of all gradients belong to **the model**: every data-parallel program sends them. DDP
# adds five ops. It checks the number of tensors (8 bytes) and their shapes (144 bytes), and
# broadcasts the weights. After the first step it broadcasts rank 0's buckets (lesson 08): their gradients
# (28 bytes) and their sizes (4 bytes). Fabric adds nothing. accelerate broadcasts the state
# of its random generator, so that all ranks shuffle in the same order. Lightning adds the most, and the list
# names *your* lines that caused the ops:
#
# - There are 7 barriers. Five of them belong to set-up, checkpoint and data. Two come before the
#   all_reduces of 8 bytes, in which the ranks compare the lengths of their loaders.
# - In each step a broadcast of 8 bytes tells all ranks whether rank 0 has been asked to end (SIGTERM, lesson
#   14). Outside the steps there is one more broadcast of 8 bytes, and one of 16 bytes with rank 0's folder.
# - `self.log(..., sync_dist=True)` costs a barrier and an all_reduce of 4 bytes **in every step**. The
#   section on options has a remedy.
#
# ## Step 2: a DataModule
#
# A DataModule provides the data. `prepare_data` downloads and unpacks it, `setup` loads and splits it. Two
# ranks must not unpack into one folder at the same time. How many of the two ranks call `prepare_data` if both
# are on one node? How many call it if each rank has its own node?


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


one_node, two_nodes = None, None  # how many ranks call prepare_data?
callers = []
for name, where in {"data": {}, "data_on_nodes": {"devices": 1, "num_nodes": 2}}.items():
    run = look(name, calls_of, args=(where,))
    print(where or "one node", *run.results, sep="; ")
    callers.append(sum("prepare" in calls for calls in run.results))
simlib.guess(one_node, callers[0])
simlib.guess(two_nodes, callers[1])

# %% [markdown]
# **On each node**, only local rank 0 calls `prepare_data`. After a barrier every rank calls
# `setup`. So if you write `self.size = ...` in `prepare_data`, the other ranks of a node have no
# `self.size`. (Lightning learns only from `devices=2` that both ranks are on one node.)
#
# ## Steps 3 and 4: loggers, callbacks, precision
#
# Validation gives a number for each epoch. **EarlyStopping** is a callback that ends the training when this
# number stops improving. Each rank validates its own shard, so each rank has its own number. If each
# rank decided by its own number, some ranks would stop, and the others would wait for them forever.
#
# **Now you write it:** `after_epoch(epoch, loss)`. It computes the mean of all ranks' losses. If this mean has
# not reached a new lowest value for `patience` epochs in a row, it returns True on all ranks, to stop. When
# the mean reaches a new lowest value, only rank 0 sets `self.kept` to that epoch. A checkpoint would
# keep the weights then. The cell compares 4 ranks with the means on one process.


# %%
class Stopper:
    def __init__(self, patience):
        self.patience, self.lowest, self.waited, self.kept = patience, float("inf"), 0, None

    def after_epoch(self, epoch, loss):
        return None  # yours


def stopped(rank, world_size, losses, patience):
    stopper = Stopper(patience)
    for epoch, loss in enumerate(losses[rank].tolist()):
        if stopper.after_epoch(epoch, loss):
            break
    return epoch, stopper.kept


is_right = []
for patience in (2, 3):
    losses = torch.rand(4, 20, generator=torch.Generator().manual_seed(patience)).double()
    lows = [int(losses.mean(0)[: epoch + 1].argmin()) for epoch in range(20)]  # on one process
    last = next(epoch for epoch in range(20) if epoch - lows[epoch] == patience)
    try:
        found = simlib.simulate(stopped, 4, (losses, patience)).results
    except simlib.SimlibError as error:
        found = type(error).__name__
    print(f"patience {patience}: should end in epoch {last} and keep {lows[last]};", found)
    is_right.append(found == [(last, lows[last])] + [(last, None)] * 3)
print("right" if all(is_right) else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def after_epoch(self, epoch, loss):
#         mean = torch.tensor(loss, dtype=torch.float64)
#         dist.all_reduce(mean, op=dist.ReduceOp.AVG)
#         if mean < self.lowest:
#             self.lowest, self.waited = mean.item(), 0
#             if dist.get_rank() == 0:
#                 self.kept = epoch
#         else:
#             self.waited += 1
#         return self.waited >= self.patience
#
# </details>
#
# Now we do the same in Lightning. **ModelCheckpoint** keeps the best weights, a **logger** writes a table, and
# our own callback `Bell` notes when Lightning calls it. Each rank names a folder of its own. How
# many files will be in rank 1's folder?


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


count = None  # files in rank 1's folder
with tempfile.TemporaryDirectory() as folder:
    run = look("callbacks", with_callbacks, args=(folder,))
for rank, (epochs, files, best, note) in enumerate(run.results):
    print(f"rank {rank}: {epochs} epochs, best {best}, files {files}, {note}")
simlib.guess(count, len(run.results[1][1]))

# %% [markdown]
# Lightning calls a callback on **every** rank. Loggers and checkpoints write only on rank 0. (Your own function
# runs only on rank 0 if you decorate it with `@rank_zero_only`. On other ranks it returns None.) All ranks
# must stop in the same epoch, so EarlyStopping all_reduces one yes or no of 8 bytes. Without `sync_dist`
# each rank would judge its own `val_loss`, and the checkpoint would follow that of rank 0.
#
# Other loggers are TensorBoard, which shows live pages from files, and the **experiment managers** MLflow
# and Weights & Biases. An experiment manager keeps arguments, numbers and weights of all your runs. Both
# managers can work offline. With every logger, only one rank must write.
#
# **Step 4: options.** `precision="bf16-mixed"` multiplies in 2 bytes. `accumulate_grad_batches=2` takes a
# step after two batches, and `gradient_clip_val` clips the gradients. `per_epoch` sends the log once an epoch.
# `plain` calls `self.log` without `sync_dist`. So far there were 8 all_reduces of 544,296 bytes each, and
# Lightning added 35 ops. Which of the four runs changes the number of these all_reduces? In which run does
# Lightning add the fewest ops?


# %%
def tried(rank, world_size, options, how):
    class Logging(Digits):
        def training_step(self, batch, number):
            self.log("loss", loss := self.loss(batch), **how)
            return loss

    own = trainer(world_size, **options)
    own.fit(Logging(), DataLoader(digits(), 16, shuffle=True))
    return round(own.callback_metrics["loss"].item(), 3)


other, fewest = None, None  # "bf16", "accumulated", "per_epoch" or "plain"?
EACH = {"sync_dist": True}
TRIED = {
    "bf16": ({"precision": "bf16-mixed"}, EACH),
    "accumulated": ({"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}, EACH),
    "per_epoch": ({}, EACH | {"on_step": False, "on_epoch": True}),
    "plain": ({}, {}),
}
reduces, own = {}, {}
for name, args in TRIED.items():
    run = look(name, tried, args=args)
    calls = [c.nbytes for c in run.trace.collectives if c.kind == "all_reduce" and c.nbytes > 8]
    reduces[name], own[name] = len(calls), len(run.trace.collectives) - len(calls) - 5  # 5: DDP's
    print(f"{name:11} {len(calls)} x {calls[0]:,} B, {own[name]} own ops; logged:", *run.results)
simlib.guess(other, next(name for name in TRIED if reduces[name] != 8), of=tuple(TRIED))
simlib.guess(fewest, min(own, key=own.get), of=tuple(TRIED))

# %% [markdown]
# No option halves the bytes of an all_reduce. *Mixed* precision keeps weights and gradients in float32. (A
# hook of DDP can round what DDP sends.) Accumulation halves the number of all_reduces. Clipping sends
# nothing, because all ranks have the same gradients (lesson 07). Plain `self.log` sends nothing either:
# each rank has its own loss, and the logger writes that of rank 0. **The remedy** for a log in every step is
# `sync_dist=True` with `on_step=False, on_epoch=True`. It logs the mean of the epoch over all ranks. Once an
# epoch this costs two barriers, an all_reduce of 4 bytes and an all_reduce of 8 bytes.
#
# ## Trainer's arguments, then and now
#
# Old tutorials use the arguments of their time. The cell has seven such arguments. How many does today's
# Trainer still take?

# %%
taken_today = None  # how many of the seven?
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


answers = look("arguments", taken, 1).results[0]
for name, is_taken in answers:
    old, new = THEN[name]
    print(f"{name + '=' + repr(old):38} {'taken  ' if is_taken else 'refused'}  now {new}")
simlib.guess(taken_today, sum(is_taken for _, is_taken in answers))

# %% [markdown]
# A refused argument gives you a message. The Trainer still takes `precision=16`, but this value has a new
# name. `accelerator` says "cpu", "gpu" or "tpu", `devices` says how many, and `strategy` says what is sent.
# (`lr_find` raises the learning rate step by step. It proposes a rate at which the loss still falls.)
#
# ## Who starts the ranks?
#
# A **launcher** starts the processes, and gives each process its rank in environment variables. Their names
# depend on the launcher:
#
# | launcher | rank | world size | local rank |
# |---|---|---|---|
# | `torchrun`, `accelerate launch` | `RANK` | `WORLD_SIZE` | `LOCAL_RANK` |
# | Slurm's `srun` | `SLURM_PROCID` | `SLURM_NTASKS` | `SLURM_LOCALID` |
# | Open MPI's `mpirun` | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` |
#
# Often `srun` starts one `torchrun` on each node. Then a process has both sets of
# variables, and Slurm's variables count the nodes. Lightning reads torchrun's variables first.
#
# Suppose there are 2 nodes of 8 ranks. Local rank 3 of node 1 finds `SLURM_PROCID=1` and `RANK=11`. If a
# program reads Slurm's variables first, this rank takes itself for rank 1 of 2.
#
# ## Exit ticket
#
# 1. Which collectives of a Lightning run does a loop by hand need, too?
# 2. You download in `prepare_data` and set `self.classes` there. What happens on rank 1 of the same node?
# 3. Your program logs with `sync_dist=True` in every step. How do you make it send less?
#
# <details><summary>Answers</summary>
#
# 1. It needs the all_reduces of the gradients: one for each step, or for each bucket.
# 2. Rank 1 has no `self.classes`. Set it in `setup`.
# 3. Add `on_step=False, on_epoch=True`: then the ranks take one mean at the end of the epoch.
#
# </details>
#
# **Next:** [15 c](15_numbers_of_all_ranks.ipynb) breaks a log, and shows which numbers you may average
# over ranks.
