# %% [markdown]
# # 15 Numbers of all ranks
#
# This is the third part of lesson 15. You need [the first part](15_frameworks.ipynb), and lesson 08.
# Each rank has its own numbers: its log, its metrics, its gradients. A framework
# combines them into numbers of all ranks. In this part (60 minutes) you will
#
# - break a log in two ways: one hangs, the other mixes up its numbers without an error,
# - find out which metrics you may average over ranks, and compute F1 from counts,
# - write the optimizer that made Horovod known: it sends many small gradients in one buffer.
#
# `look` shows recorded runs if Lightning and TorchMetrics are not installed (see the first part).

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
from torch.utils.data import DataLoader, TensorDataset

import simlib

# %% tags=["nbval-ignore-output"]
try:
    import lightning as L
    from torchmetrics.classification import MulticlassF1Score

    print("Lightning", L.__version__, "runs here")
except ImportError:  # enough names to read the cells
    L = SimpleNamespace(LightningModule=nn.Module)
    print("not installed, so recorded runs are shown: `make frameworks` installs them")

RECORDED = Path("recorded_frameworks")


def look(name, function, world_size=2, args=()):
    """Run it; if the frameworks are missing, load the recorded run of this name."""
    if hasattr(L, "Trainer"):
        return simlib.simulate(function, world_size, args)
    display({"text/plain": "", "text/html": ""}, raw=True)  # a run's own place for its output
    run = simlib.load(RECORDED / f"{name}.json")
    kept = json.loads((RECORDED / f"{name}_results.json").read_text())
    if kept["error"]:
        display(run)
        raise getattr(simlib, kept["error"][0])(kept["error"][1])
    run.results = kept["results"]
    return run


# %% [markdown]
# ## Break it
#
# `log_dict` logs a dictionary of numbers. In three runs two ranks do different things. In
# `Occurring` each rank logs only the digits that occur in its batch. In `OtherOrder` both ranks log the same
# keys, but in a different order. In the third run only rank 0 calls `save_checkpoint`, because only one rank
# should write.


# %%
class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

    def training_step(self, batch, number):
        self.log("loss", loss := F.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.3)


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


# %% [markdown]
# The second case really happens: a `set` of names may have another order in each process. How many of the
# three runs does simlib stop with an error?

# %% tags=["nbval-ignore-output"]
stopped = None  # how many of the three?
QUIET = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]


def logged(rank, world_size, module_class, folder):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    where = {"accelerator": "cpu", "devices": world_size, "strategy": "ddp", "max_epochs": 1}
    options = {"limit_train_batches": 1, "default_root_dir": "."} | dict.fromkeys(QUIET, False)
    own = L.Trainer(plugins=[simlib.lightning.environment()], **where, **options)
    data = TensorDataset(*(tensor[:256] for tensor in simlib.digits.load()[0].tensors))
    own.fit(module_class(), DataLoader(data, 16, shuffle=True))
    if folder and rank == 0:
        own.save_checkpoint(Path(folder, "last.ckpt"))
    return {name: value.item() for name, value in own.callback_metrics.items() if name != "loss"}


errors = 0
with tempfile.TemporaryDirectory() as folder:
    tries = {"occurring": (Occurring, ""), "order": (OtherOrder, ""), "saved": (Digits, folder)}
    for name, args in tries.items():
        try:
            print(name, look(name, logged, 2, args).results)
        except simlib.SimlibError as error:
            errors += 1
            print(name, type(error).__name__, error)
simlib.guess(stopped, errors)

# %% [markdown]
# Lightning sends each logged key by a barrier and an all_reduce. In the first run one rank has fewer keys to
# log. So this rank calls the all_reduce of the gradients while the other rank still logs. simlib stops the
# run, and names both ranks and their lines. On plain Gloo, where Lightning starts the ranks, the same program
# hangs without an error: we waited a minute. In the second run Lightning averages the 1 of one rank with the
# 5 of the other. Both logs say 3 for both keys, and no error tells you. In the third run rank 0 waits for
# rank 1 in a barrier inside `save_checkpoint`. So *call* `save_checkpoint` on all ranks. Only rank 0 writes.
#
# **Log the same keys, in the same order, on every rank.** Use a fixed list of keys. If a key did not occur,
# log 0 or nan for it.
#
# ## Which metrics may be averaged?
#
# Each rank validates its shard, and `sync_dist=True` averages the results. F1 is 2 TP / (2 TP + FP + FN). TP,
# FP and FN are the numbers of true positives, false positives and false negatives. AUC takes all pairs of
# a positive and a negative example. It is the share of pairs in which the positive example has the higher
# score. The shards are equally large. For how many of accuracy, F1 and AUC is the mean of the ranks right?

# %%
exact = None  # how many of the three metrics, if shards are equal?
random = torch.Generator().manual_seed(0)
label = torch.rand(240, generator=random) < torch.linspace(0.02, 0.8, 240)
score = torch.randn(240, generator=random) + 1.5 * label - 0.5 + torch.linspace(-1, 1, 240)


def accuracy(score, label):
    return ((score > 0) == label).float().mean().item()


def f1(score, label):
    positive = score > 0
    return (2 * (positive & label).sum() / (positive.sum() + label.sum())).item()


def auc(score, label):
    return (score[label][:, None] > score[~label]).float().mean().item()


equal = 0
for metric in (accuracy, f1, auc):
    print(f"{metric.__name__:8} of all {metric(score, label):.3f}", end=" ")
    for sizes in ([120, 120], [60, 180]):
        shards = zip(score.split(sizes), label.split(sizes), strict=True)
        mean = sum(metric(*shard) for shard in shards) / 2
        print(f"- mean of shards {sizes}: {mean:.3f}", end=" ")
        equal += sizes == [120, 120] and abs(mean - metric(score, label)) < 1e-6
    print()
simlib.guess(exact, equal)

# %% [markdown]
# You may average means over *equally many* examples. Accuracy and losses are such means. F1 is a ratio of
# sums, so first add up its **counts** over the ranks. AUC needs pairs across shards. So one number from each
# shard is not enough: gather the scores, or counts in bins. TorchMetrics does this. `update` runs on each
# rank, and `compute` combines the *states* of all ranks. For F1 the state is four counters for each of two
# classes. How many bytes does a rank send into `compute` for 240 examples?
#
# **Now you write it:** `f1_of_counts(counts)`, F1 of all examples. `counts` has a list `[tp, fp, fn]` for each
# shard.


# %%
nbytes = None  # what a rank brings into all collectives together


def f1_of_counts(counts):
    return None  # yours


def count(score, label):
    positive = score > 0
    return [int(x.sum()) for x in (positive & label, positive & ~label, ~positive & label)]


def metric_of_ranks(rank, world_size):
    metric = MulticlassF1Score(2, average="none")
    metric.update((score > 0).int().chunk(world_size)[rank], label.int().chunk(world_size)[rank])
    return [float(metric.compute()[1])]


run = look("metric", metric_of_ranks)
sent = sum(c.nbytes for c in run.trace.collectives)
print(f"TorchMetrics {run.results[0][0]:.3f}, of all {f1(score, label):.3f};", end=" ")
print(len(run.trace.collectives), "ops,", sent, "bytes")
simlib.guess(nbytes, sent, within=0.5)
shards = zip(score.split([60, 180]), label.split([60, 180]), strict=True)
print("counts of shards:", counts := [count(*shard) for shard in shards])
print("right" if abs((f1_of_counts(counts) or 0) - f1(score, label)) < 1e-6 else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def f1_of_counts(counts):
#         tp, fp, fn = map(sum, zip(*counts))
#         return 2 * tp / (2 * tp + fp + fn)
#
# </details>
#
# TorchMetrics gathers four counters, each for two classes (16 bytes). Before each counter it sends a barrier
# and the counter's shape (8 bytes). These are twelve ops. A million examples need no more bytes. In
# a LightningModule you write `self.f1 = MulticlassF1Score(...)` in `__init__`. In `validation_step` you
# write `self.f1.update(...)` and `self.log("f1", self.f1)`. You log the [metric
# itself](https://lightning.ai/docs/torchmetrics/stable/pages/lightning.html), not its value. One fault
# remains. The Trainer's sampler pads uneven shards. On two ranks, one of 63 validation examples counts twice
# (lesson 07).
#
# ## Horovod's two ideas
#
# Horovod (Sergeev and Del Balso 2018, arXiv 1802.05799) made two ideas common. The first is the **ring**
# (lesson 05) in place of parameter servers. The second is **tensor fusion**: many small gradients travel in
# one buffer, like lesson 08's buckets. By default the buffer has 64 MB
# ([128 MB since 2020](https://github.com/horovod/horovod/pull/2468)).
#
# How much time does fusion save? A network has 24 layers, each with 32 x 32 weights and 32 biases. Eight
# nodes use a ring. `exchange` sends the gradients without fusion, in buffers of 16 KiB, and in
# one buffer. How many all_reduces are there without fusion? How many times faster is the whole exchange
# with one buffer?

# %%
reduces, times = None, None
LAYERS = 24


def exchange(rank, world_size, fusion_bytes):
    requests, waiting = [], 0
    for number in range(2 * LAYERS):
        waiting += 4 * (32 * 32 if number % 2 else 32)  # a bias, then a weight
        if waiting >= fusion_bytes or number == 2 * LAYERS - 1:
            requests.append(dist.all_reduce(torch.zeros(waiting // 4), async_op=True))
            waiting = 0
    for request in requests:
        request.wait()


seconds, number_of = {}, {}
for fusion_bytes in (0, 16 * 2**10, 64 * 2**20):
    run = simlib.simulate(exchange, 8, (fusion_bytes,), all_reduce="ring")
    number_of[fusion_bytes], seconds[fusion_bytes] = len(run.trace.collectives), run.time_s
    print(f"buffer {fusion_bytes:10,} B: {number_of[fusion_bytes]:2} all_reduces", end=" ")
    print(f"in {run.time_s * 1e3:5.2f} ms")
simlib.guess(reduces, number_of[0])
simlib.guess(times, round(seconds[0] / seconds[64 * 2**20]), within=0.2)

# %% [markdown]
# One all_reduce is 36 times as fast as 48. Each of the 48 pays the 14 latencies of a ring. The bytes are
# the same.
#
# A script for Horovod makes four calls. Two of them return the rank and the number of ranks. The third
# broadcasts the weights. The fourth wraps the optimizer. **Now you write it:** three methods for the fourth
# call.
#
# - A hook calls `add(p)` when the gradient of p is ready. Append p to `self.ready`. If the gradients in
#   `self.ready` have `self.cap` bytes or more together, call `flush`.
# - `flush` joins these gradients to one flat tensor, and starts one asynchronous all_reduce of this tensor.
#   It appends to `self.sent` what `step` needs, and empties `self.ready`.
# - `step` flushes the remaining gradients and waits for all requests. It writes the **mean** gradients into
#   each `p.grad`, and empties `self.sent`. Then it calls `self.inner.step()`.
#   `nn.utils.vector_to_parameters` cuts a flat tensor.


# %%
class Optimizer:
    def __init__(self, optimizer, fusion_bytes):
        self.inner, self.cap, self.ready, self.sent = optimizer, fusion_bytes, [], []
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.register_post_accumulate_grad_hook(self.add)


class DistributedOptimizer(Optimizer):  # call 4
    def add(self, p):
        pass  # yours

    def flush(self):
        pass  # yours

    def step(self):
        self.inner.step()  # yours


# %% [markdown]
# The next cells have the other three calls. They take two steps on four ranks with two examples each, and
# compare the weights with those of one process that has all eight examples.


# %%
def broadcast_parameters(state, root_rank):  # call 3
    for tensor in state.values():
        dist.broadcast(tensor, src=root_rank)


hvd = SimpleNamespace(rank=dist.get_rank, size=dist.get_world_size)  # calls 1 and 2


def tower(rank, world_size, fusion_bytes):
    torch.manual_seed(hvd.rank())
    net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(LAYERS)))
    [nn.init.orthogonal_(layer.weight) for layer in net]  # so the last layer still sees the inputs
    broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.5), fusion_bytes)
    inputs = torch.randn(8, 32, generator=torch.Generator().manual_seed(7)).chunk(hvd.size())
    if hvd.size() == 1:  # what is right does not depend on your class
        optimizer = SimpleNamespace(inner=optimizer.inner, step=optimizer.inner.step)
    for _ in range(2):
        optimizer.inner.zero_grad()
        (net(inputs[hvd.rank()]) - 1).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


# %%
one, is_right = simlib.simulate(tower, 1, (0,)).results[0], []
for fusion_bytes, wanted in ((0, 48), (16 * 2**10, number_of[16 * 2**10]), (64 * 2**20, 1)):
    run = simlib.simulate(tower, 4, (fusion_bytes,))
    sent = sum(c.kind == "all_reduce" for c in run.trace.collectives)
    is_same = all(torch.allclose(each, one, atol=1e-5) for each in run.results)
    print(f"buffer {fusion_bytes:10,} B: {sent} all_reduces in two steps,", end=" ")
    print("weights as on one process:", is_same)
    is_right.append(is_same and sent == 2 * wanted)
print("right" if all(is_right) else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     class DistributedOptimizer(Optimizer):
#         def add(self, p):
#             self.ready.append(p)
#             if sum(p.grad.nbytes for p in self.ready) >= self.cap:
#                 self.flush()
#
#         def flush(self):
#             if self.ready:
#                 fused = torch.cat([p.grad.flatten() for p in self.ready])
#                 self.sent.append((self.ready, fused, dist.all_reduce(fused, async_op=True)))
#                 self.ready = []
#
#         def step(self):
#             self.flush()
#             for ready, fused, request in self.sent:
#                 request.wait()
#                 mean = fused / dist.get_world_size()
#                 nn.utils.vector_to_parameters(mean, [p.grad for p in ready])
#             self.sent = []
#             self.inner.step()
#
# </details>
#
# Your class has no coordinator. Horovod's ranks tell a coordinator which gradients are ready, so the order may
# differ between ranks. DDP fixes the order instead (lesson 08). Horovod is not installed here. It has
# no ready-made package for this Python and torch, and its build fails. Use DDP in its place. TorchElastic was
# once a separate package. Today it is part of torch: it *is* `torchrun` (lesson 14).
#
# ## Your turn
#
# In [exercises 15](../exercises/15_frameworks.ipynb) you convert a loop and keep the weights, compute a
# metric that must not be averaged, write a callback that never hangs, and find the ops that one framework
# adds.
#
# ## Exit ticket
#
# 1. Your validation F1 changes with the number of ranks. Why?
# 2. You write `if self.global_rank == 0: self.log("x", x, sync_dist=True)`. What happens?
# 3. Why do 48 small all_reduces take 36 times as long as one all_reduce with the same bytes?
#
# <details><summary>Answers</summary>
#
# 1. Your F1 is a mean of the shards' F1. Add up the counts first.
# 2. Rank 0's barrier meets another call, or no call at all. Then rank 0 hangs.
# 3. Each all_reduce pays the latency of a whole ring, so you pay it 48 times. The time for the bytes is the
#    same in both cases. So the factor is 36 and not 48.
#
# </details>
#
# **Next:** [15 d](15_what_frameworks_send.ipynb) trains one transformer in five ways, and reads from the
# traces what each way sends.
