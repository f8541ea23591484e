# %% [markdown]
# # 15 Frameworks
#
# You have written every part of a training program: shards, gradients, buckets, cuts. A **framework**
# has these parts ready. This lesson looks inside such frameworks. You need lessons 07 and 08. The lesson
# has five parts of one sitting each. In this first part (60 minutes) you will
#
# - repair the lecture's MNIST listing, whose loss has no lower bound,
# - write a small trainer whose loop knows nothing of ranks, and the hooks that run it on two ranks,
# - convert the same program to Lightning, and end with the same weights,
# - convert it to Fabric and to accelerate, where you keep your own loop.
#
# **Research code** says what is learned: the model, its loss, its optimizer. **Engineering code** says
# where it runs: ranks, devices, files. Frameworks promise to separate the two. They also promise less
# boilerplate, and programs that are reproducible, consistent, easy to share, and scale.
#
# [Lightning](https://lightning.ai/docs/pytorch/stable/) and
# [accelerate](https://huggingface.co/docs/accelerate) are optional here (60 MB). To install them, run
# `make frameworks` in a terminal, then restart the kernel. If they are not installed, you see **recorded**
# runs of the same cells.

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
# `look` runs a program that needs a framework. If no framework is installed, `look` loads the recorded run
# of that program. Each run imports Lightning again, so such cells take seconds to start.

# %% tags=["nbval-ignore-output"]
try:
    import accelerate
    import lightning as L

    print("Lightning", L.__version__, "and accelerate", accelerate.__version__, "run here")
except ImportError:  # enough names to read the cells
    L = SimpleNamespace(LightningModule=nn.Module)
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
# ## The lecture's listing
#
# A lecture on machine learning operations (DTU 02476) converts a listing for MNIST to Lightning. The next
# cell has the listing's network, rewritten for lesson 07's digits. One line is missing in `__init__`. Where
# does Python first raise an error: in `__init__`, in `forward`, or in `backward`?

# %%
place = None  # "__init__", "forward" or "backward"?
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
    simlib.guess(place, "__init__", of=("__init__", "forward", "backward"))
    print(error)

# %% [markdown]
# A module keeps its parameters in tables, and `nn.Module.__init__` creates these tables. So
# `super().__init__()` must come first. This fault raises an error. The next fault does not.
#
# The listing passes the raw outputs to `F.nll_loss`. This function returns minus the output of the correct
# digit, so it expects **logarithms of probabilities**. We train two networks for 60 steps: the first with
# raw outputs, the second with `log_softmax`. What percentage of the test digits does the first network
# read correctly?
#
# **Now you write it:** `log_probabilities(outputs)`, the logarithm of
# $e^{o_k} / \sum_j e^{o_j}$ for each output $o_k$ of a row. `Tensor.logsumexp` helps.

# %%
percent = None  # of the test digits, without log_softmax


def log_probabilities(outputs):
    return outputs  # yours


class Net(Listing):
    def __init__(self, is_log=True):
        nn.Module.__init__(self)  # what super().__init__() would do in Listing
        Listing.__init__(self)
        self.is_log = is_log

    def forward(self, x):
        return super().forward(x).log_softmax(1) if self.is_log else super().forward(x)


row = torch.tensor([[1.0, 3.0, -2.0], [0.5, 0.5, 900.0]])
is_right = torch.allclose(log_probabilities(row), row.log_softmax(1))
print("log_probabilities:", "right" if is_right else "not yet what log_softmax returns")

# %%
correct = {}
for is_log in (False, True):
    net = Net(is_log)
    optimizer, losses = torch.optim.Adam(net.parameters(), 1e-3), []
    for x, y in DataLoader(train_set, 25):
        optimizer.zero_grad()
        loss = F.nll_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 1))
    out = net(test_set.tensors[0])
    correct[is_log] = (out.argmax(1) == test_set.tensors[1]).float().mean().item()
    print(f"log_softmax {is_log}: losses {losses[::12]} ... {losses[-1]};", end=" ")
    print(f"{correct[is_log]:.0%} correct, outputs from {out.min():.0f} to {out.max():.0f}")
simlib.guess(percent, round(100 * correct[False]), within=0.2)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return outputs - outputs.logsumexp(1, keepdim=True)`
#
# </details>
#
# Raw outputs have **no upper bound**. The quickest way to a lower loss is to raise *all* outputs, for every
# image. So the loss falls forever, and the network does no better than guessing. The falling
# loss looked like success. `log_softmax` ties the outputs together, because probabilities add up to 1. So
# the loss is never below 0, and if one output rises, others fall. `F.cross_entropy` does `log_softmax` and
# `nll_loss` at once.
#
# The training part of the listing has three more faults. How many of them raise an error?
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
errors = None  # how many of the three?
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
simlib.guess(errors, 1)

# %% [markdown]
# Only `torch.stack` raises an error. The other two faults are silent. Without `zero_grad` in the loop,
# gradients add up: the third gradient is 1 + 1 + 1. Without a sampler, both ranks do the same work
# (lesson 07).
#
# ## A trainer with hooks
#
# Now we write the program without the faults. We separate research code from engineering code, as
# frameworks do. The loop in `fit` is the same for one process and for many ranks. It calls four methods at
# fixed places. Such methods are called **hooks**. Only the hooks depend on ranks. `OneProcess` has the hooks
# for a single process.


# %%
def digits():
    return TensorDataset(*(tensor[:256] for tensor in train_set.tensors))


class OneProcess:
    def setup(self, net, data, batch):
        return DataLoader(data, batch, sampler=DistributedSampler(data, 1, 0))

    def backward(self, net, loss):
        loss.backward()

    def log(self, loss):
        return loss.item()

    def save(self, net, path):
        torch.save(net.state_dict(), path)


def fit(net, data, batch, hooks, path):
    optimizer, logged = torch.optim.SGD(net.parameters(), RATE), []
    for x, y in hooks.setup(net, data, batch):
        optimizer.zero_grad()
        loss = F.nll_loss(net(x), y)
        hooks.backward(net, loss)
        optimizer.step()
        logged.append(hooks.log(loss))
    hooks.save(net, path)
    return logged


# %% [markdown]
# **Now you write it:** `Ranks`, the same four hooks for many ranks. The stub is nearly `OneProcess`.
#
# - `setup` gives all ranks the weights of rank 0, and each rank a loader with its own shard of the data.
# - `backward` leaves the mean gradient over all ranks in each `p.grad`.
# - `log` returns the mean loss over all ranks on rank 0, and None on the other ranks.
# - `save` writes the file on rank 0 only. When it returns, the file exists, on every rank.
#
# The cell after the stub runs `fit` on two ranks for 8 steps. The ranks begin with different weights, and
# each takes 16 examples a step. The cell compares the weights, the logged losses and the file with those of
# one process that takes 32 examples a step. (SGD keeps rounding errors small. Adam does not, as lesson 07
# shows.)


# %%
class Ranks(OneProcess):  # yours: setup, backward, log and save
    def log(self, loss):
        return super().log(loss) if dist.get_rank() == 0 else None


def told(net, losses):
    """A rank's last loss, and five sums over all its weights that show whether two are equal."""
    weights = torch.cat([p.detach().double().flatten() for p in net.parameters()])
    random = torch.Generator().manual_seed(1)
    sums = torch.randn(5, len(weights), generator=random, dtype=torch.float64) @ weights
    return [losses[-1], sums.tolist()]


def trained(rank, world_size, hooks, batch, folder):
    net, own = Net(), Path(folder, f"{hooks.__name__}.pt")
    with torch.no_grad():
        [p.mul_(1 + rank) for p in net.parameters()]  # other ranks begin with other weights
    logged = fit(net, digits(), batch, hooks(), own)
    return *told(net, [0.0]), logged, own.exists()


def off(run, other):
    """How far the sums of two runs are apart at most, over all ranks."""
    pairs = zip(run.results, other.results * run.world_size, strict=False)
    return max((torch.tensor(a[1]) - torch.tensor(b[1])).abs().max().item() for a, b in pairs)


# %%
with tempfile.TemporaryDirectory() as folder:
    alone = simlib.simulate(trained, 1, (OneProcess, 32, folder))
    hand = simlib.simulate(trained, 2, (Ranks, 16, folder))
expected, (mine, *others) = alone.results[0][2], [result[2] for result in hand.results]
pairs = [(a, b) for a, b in zip(mine, expected, strict=False) if a is not None]
is_mean = len(pairs) == len(mine) == 8 and all(abs(a - b) < 1e-4 for a, b in pairs)
found = {
    "weights as on one process": off(hand, alone) < 1e-3,
    "the mean loss, on rank 0 alone": is_mean and others == [[None] * len(expected)],
    "the file is there on all ranks": all(result[3] for result in hand.results),
}
print(*(f"{name:32} {is_so}" for name, is_so in found.items()), sep="\n")
print("right" if all(found.values()) else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     class Ranks(OneProcess):
#         def setup(self, net, data, batch):
#             for p in net.parameters():
#                 dist.broadcast(p.data, src=0)
#             return DataLoader(data, batch, sampler=DistributedSampler(data))
#
#         def backward(self, net, loss):
#             loss.backward()
#             for p in net.parameters():
#                 dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
#
#         def log(self, loss):
#             dist.all_reduce(mean := loss.detach().clone(), op=dist.ReduceOp.AVG)
#             return mean.item() if dist.get_rank() == 0 else None
#
#         def save(self, net, path):
#             if dist.get_rank() == 0:
#                 torch.save(net.state_dict(), path)
#             dist.barrier()
#
# </details>
#
# The weights of two ranks and of one process differ only by rounding. `log` must call all_reduce on
# *every* rank: only the return value depends on the rank. `save` needs the barrier. Without a barrier, rank 1
# could look for a file that rank 0 has not written yet.
#
# Frameworks have more hooks of this kind. You choose a set of hooks by name, such as `strategy="ddp"` or
# `"fsdp"`. We now give the same program to Lightning.
#
# ## Step 1: a LightningModule and a Trainer
#
# The module has the research code: the network, `training_step`, `configure_optimizers`. The **Trainer**
# has the rest. Four arguments say where to run: `accelerator`, `devices` (the number of ranks on each
# node), `num_nodes` and `strategy`. The argument `plugins` tells Lightning that simlib has already started
# the ranks.
#
# Without simlib you leave `plugins` out. On one node, `python train.py` then starts the other ranks
# itself. On 2 nodes with 8 devices each, you write `devices=8, num_nodes=2`, and start the script on
# each node by `torchrun --nnodes 2 --nproc-per-node 8 ...`, or by Slurm's `srun` with 8 tasks on each node.
# For accelerate the command is `accelerate launch`.


# %%
class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.losses = Net(), []

    def training_step(self, batch, number):
        loss = F.nll_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), RATE)


# %% [markdown]
# The options in `QUIET` turn off printing and the writing of files. Each rank takes 16 examples a step, as
# above. Do the two ranks end with the same weights as our run on one process?

# %%
QUIET = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]


def trainer(world_size):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # on loaders without workers
    where = {"accelerator": "cpu", "devices": world_size, "num_nodes": 1, "strategy": "ddp"}
    options = where | {"max_epochs": 1, "default_root_dir": "."} | dict.fromkeys(QUIET, False)
    return L.Trainer(plugins=[simlib.lightning.environment()], **options)


def by_lightning(rank, world_size):
    module = Digits()
    trainer(world_size).fit(module, DataLoader(digits(), 16, shuffle=True))
    return told(module.net, module.losses)


same = None  # the same weights: "yes" or "no"?
lightning_run = look("lightning", by_lightning)
on_processes = look("lightning_on_processes", by_lightning, engine=simlib.run)
for name, run in {"simulated": lightning_run, "on real ranks": on_processes}.items():
    print(f"Lightning {name}, same weights as one process: {off(run, alone) < 1e-3};", end=" ")
    print("last losses", *(round(result[0], 3) for result in run.results))
simlib.guess(same, "yes" if off(lightning_run, alone) < 1e-3 else "no", of=("yes", "no"))

# %% [markdown]
# The weights are the same, on real and on simulated ranks. The last losses differ, because each rank prints
# the loss of its own examples. Where did the lines of our trainer go?
#
# | in our trainer | in Lightning |
# |---|---|
# | the loop, `zero_grad`, `step` | `fit` runs them |
# | `setup`: equal weights | DDP's constructor broadcasts them |
# | `setup`: `DistributedSampler`, and `set_epoch` | the Trainer replaces the loader's sampler |
# | `backward`: the all_reduce | DDP, which wraps the module, calls it |
# | `log`, `save` on rank 0 | loggers and callbacks know the rank |
#
# The third row hides the most. The Trainer deals *and shuffles* the training data by its own seed. This seed
# is 0, unless you call `seed_everything`. `use_distributed_sampler=False` turns the dealing off. There is
# a second trap: `seed_everything(1)` gives *all* ranks the seed 1, so all ranks draw the same dropout
# (lesson 07).
#
# ## Fabric and accelerate: you keep your loop
#
# **Fabric** is Lightning without a Trainer. **accelerate** is a similar tool from Hugging Face. With both, you
# write the loop. They wrap the model, the optimizer and the loader, and you call their `backward`.
# The next cells use one loop for both.


# %%
def loop(net, optimizer, loader, backward=torch.Tensor.backward):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(net(x), y)
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return told(net, losses)


def parts():
    warnings.simplefilter("ignore")
    net = Net()
    return net, torch.optim.SGD(net.parameters(), RATE), DataLoader(digits(), 16, shuffle=True)


# %% [markdown]
# Fabric and accelerate both replace the sampler of a loader, so that each rank gets a shard. All ranks must
# use the same random order. How many of the two runs end with the same weights as one process?

# %%
equal = None  # how many of the two?


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


runs = {"Fabric": look("fabric", by_fabric), "accelerate": look("accelerate", by_accelerate)}
for name, run in runs.items():
    print(f"{name:10} last losses", *(f"{result[0]:.3f}" for result in run.results), end=" ")
    print("- same weights as one process:", off(run, alone) < 1e-3)
simlib.guess(equal, sum(off(run, alone) < 1e-3 for run in runs.values()))

# %% [markdown]
# Fabric deals the data in the order of lesson 07's sampler, so its run ends with the same weights.
# accelerate draws another order. This order is as good, and the same on both ranks, but the run ends with
# other weights.
#
# accelerate stores a rank's number in attributes of a *class*. That works if each rank is a process.
# Simulated ranks are threads of one process. If they shared the class, all ranks would be rank 0 and take
# the same shard, without an error. So simlib gives each simulated rank its own copy of such a class. If your
# ranks are threads, check every library for such classes.
#
# ## Exit ticket
#
# 1. The loss of a network falls to -900. What is missing?
# 2. In `log`, a colleague writes `if dist.get_rank() == 0:` before the all_reduce. What happens?
# 3. You give Lightning's Trainer a training loader with `shuffle=False`, on two ranks. Is the data shuffled?
#
# <details><summary>Answers</summary>
#
# 1. `log_softmax` is missing. `F.cross_entropy` does `log_softmax` and `nll_loss` at once.
# 2. No other rank calls this all_reduce. So rank 0 hangs, or it meets another call of the other ranks.
# 3. Yes. The Trainer deals and shuffles the training data by its own seed.
#
# </details>
#
# **Next:** [15 b](15_inside_the_trainer.ipynb) looks at what the Trainer sends, when it calls your code,
# and who starts its ranks.
