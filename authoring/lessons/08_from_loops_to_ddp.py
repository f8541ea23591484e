# %% [markdown]
# # 08 From loops to DDP
#
# This is the first part of lesson 08. [Lesson 07](07_data_parallel_training.ipynb) used its own training loop:
# first backward, then an all_reduce over the gradients. PyTorch's `DistributedDataParallel`, **DDP** for
# short, gives the same weights in less time. In this part (105 minutes) you will
#
# - see what DDP does for you, and what it leaves to you,
# - build it in four steps (hooks, a wait at the end, buckets, the reducer), and compare yours with torch's,
# - **see** communication hide behind computation, predict how much can hide, and measure it,
# - make the common mistakes: no shard, no wait, a different order, an unused layer, uneven inputs,
# - send fewer bytes, and gather what a loss needs without losing its gradient.
#
# Appendices cover the older `nn.DataParallel` and four launchers.
#
# R is the number of ranks (`world_size`). The model is lesson 07's LeNet.

# %%
import contextlib
import functools
import random
import statistics
import time

import torch
import torch.distributed as dist
from IPython.display import display
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as plain
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.nn.parallel import DistributedDataParallel

import simlib

IMAGES, LABELS = (tensor[:128].clone() for tensor in simlib.digits.load()[0].tensors)
loss_of = nn.functional.nll_loss


def lenet(seed=0):
    torch.manual_seed(seed)
    conv = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(20, 50, 5)]
    head = [nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(800, 500), nn.ReLU()]
    return nn.Sequential(*conv, *head, nn.Linear(500, 10), nn.LogSoftmax(1))


# %% [markdown]
# ## "DDP splits my batch", "a barrier is needed before forward"
#
# Each of two ranks gives DDP the same 64 images. How many of these does each rank's model see? And how many
# weights does each rank hold? In a second run, each rank takes only every second image. In a third run, we
# add a barrier before each forward pass, "so that no rank runs ahead". In all runs rank 1 is slower. Which
# change affects the gradient, and which affects the time?

# %%
guess = None  # how many images does each rank's model see at first, with no shard?


def same_batch(rank, world_size, shard, wait):
    ddp, seen = DistributedDataParallel(lenet()), []
    ddp.module.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    mine = slice(rank, 64, world_size) if shard else slice(0, 64)
    for _ in range(3):
        if wait:
            dist.barrier()
        simlib.compute(seconds=2e-5 * len(IMAGES[mine]))
        ddp.zero_grad()
        loss_of(ddp(IMAGES[mine]), LABELS[mine]).backward()
    weights = sum(weight.numel() for weight in ddp.parameters())
    return seen[0], weights, [round(number, 4) for number in ddp.module[0].bias.grad[:3].tolist()]


for shard, wait in ((False, False), (True, False), (True, True)):
    run = simlib.simulate(same_batch, 2, args=(shard, wait), slow={1: 1.5})
    print("sharded," if shard else "as it is,", "barrier:" if wait else "no barrier:", end=" ")
    print(f"{run.time_s * 1e3:.2f} ms; images, weights, gradient:", *run.results, sep="\n    ")
    simlib.guess(None if shard else guess, run.results[0][0])

# %% [markdown]
# DDP splits **neither the input nor the model**. Each rank has all 431,080 weights and works on the images
# that you give it. If both ranks take the same 64 images, the gradient is the same as with 32 images on each.
# But every rank does twice the work. Shard the data yourself, or use the `DistributedSampler` (lesson 07).
# [Lesson 10](10_splitting_the_model.ipynb) splits a model that does not fit one rank. The barrier changed
# only the time. It is not needed, because in the all_reduce each rank waits for the gradients of the others
# (lesson 04).
#
# ## What DDP leaves to you
#
# DDP averages gradients, but compares nothing. In the second run below, rank 1 starts with an edited bias. In
# the third run, rank 1 has another learning rate. Do the averaged gradients make the ranks equal again? Logs
# and early stopping use the loss. Is the loss the same on both ranks? **Now you write it:** on every rank,
# `mean_loss` returns the loss over all ranks' examples.

# %%
guess = None  # are the edited biases equal again after three steps, "yes" or "no"?


def mean_loss(loss):
    return loss.item()  # yours


def apart(rank, world_size, edit, rate):
    ddp, mine = DistributedDataParallel(lenet()), slice(rank, 64, world_size)
    ddp.module[0].bias.data += edit * rank
    optimizer = torch.optim.SGD(ddp.parameters(), lr=rate if rank else 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (loss := loss_of(ddp(IMAGES[mine]), LABELS[mine])).backward()
        optimizer.step()
    return loss.item(), mean_loss(loss.detach()), ddp.module[0].bias.detach()


for edit, rate in ((0, 0.1), (1, 0.1), (0, 0.2)):
    (one, mean, bias), (other, same, moved) = simlib.simulate(apart, 2, args=(edit, rate)).results
    off, drift = abs(mean - (one + other) / 2) + abs(mean - same), (bias - moved).abs().max()
    print(f"+{edit}, rate {rate}: losses {one:.4f}, {other:.4f}; biases {drift:.4f}", end=" ")
    print("apart; mean_loss is", "right" if off < 1e-6 else "not yet the mean")
    simlib.guess(guess if edit else None, "yes" if bias.equal(moved) else "no", of=("yes", "no"))

# %% [markdown]
# Each rank has **its own loss**, the loss of its shard, even if nothing is wrong. And a difference between
# ranks stays. The edited biases are still 1.0000 apart after three steps. With another rate, each step moves
# the biases further apart. Equal gradients keep equal replicas equal, but they repair no difference. So load
# weights before you build DDP, because DDP's constructor broadcasts the weights of rank 0. If you change
# weights later, change them on all ranks.
#
# <details><summary>Answer</summary>
#
# `dist.all_reduce(loss, op=dist.ReduceOp.AVG)`, then `return loss.item()`.
#
# </details>
#
# ## Build it. Step 1: a hook for every weight
#
# Backward goes from the last layer to the first. So the last layer's gradient is ready first. It can travel
# while backward computes the other gradients. torch calls a **hook** when a gradient is ready:
# `register_post_accumulate_grad_hook`. Our hook divides the gradient by the number of ranks, and starts an
# all_reduce with `async_op=True`. This returns a request at once. Two ranks have gradients 1 and 3. What is
# in each rank's `.grad` after backward, if nobody waits?

# %%
guess = None  # the gradient on rank 0 if nobody waits; the mean would be 2


def hooked(rank, world_size, finish):
    layer, requests = nn.Linear(1, 1, bias=False), []

    def start(weight):
        weight.grad /= world_size
        requests.append(dist.all_reduce(weight.grad, async_op=True))

    layer.weight.register_post_accumulate_grad_hook(start)
    layer(torch.tensor([[1.0 + 2 * rank]])).sum().backward()
    if finish:
        for request in requests:
            request.wait()
    return layer.weight.grad.item()


for finish in (False, True):
    run = simlib.simulate(hooked, 2, args=(finish,))
    print("waits:" if finish else "never waits:", run.results)
    simlib.guess(None if finish else guess, run.results[0])

# %% [markdown]
# ## Step 2: wait at the end
#
# Without the wait each rank has half of its own gradient. On real ranks there is a **race**, which is worse:
# the optimizer may read an unfinished sum, so the step is only sometimes right. The wait must come after
# backward and before `optimizer.step()`. DDP waits in a *callback*, a function that the autograd engine calls
# when backward has ended. `Variable._execution_engine.queue_callback` registers it. (The name is internal, so
# pin your version of torch.)
#
# ## Step 3: buckets
#
# With one all_reduce per weight tensor, each tensor costs a latency, and four of LeNet's eight tensors are
# tiny biases. One all_reduce for everything cannot start before the last gradient is ready. **Buckets** are
# the compromise. We go through the weights in reverse order and put them into one flat tensor, the bucket.
# When the bucket has reached `cap_mb` MiB, we open the next one. DDP's default cap is 25 MiB. Its first
# bucket has a cap of 1 MiB, so that it can start early. The design is from Li et al. 2020, arXiv 2006.15704.
#
# LeNet has 1.7 MB. How many buckets do we get with a cap of 25 MiB? And how many with a quarter of a MiB?

# %%
guess = None  # how many buckets with a quarter of a MiB?


class Bucket:
    def __init__(self, weights):
        sizes = [weight.numel() for weight in weights]
        self.flat = weights[0].new_zeros(sum(sizes))
        parts = self.flat.split(sizes)  # views: what is written there is in `flat`
        self.part_of = {w: part.view_as(w) for w, part in zip(weights, parts, strict=True)}
        self.missing = len(weights)

    def take(self, weight):
        torch.mul(weight.grad, 1 / dist.get_world_size(), out=self.part_of[weight])
        self.missing -= 1

    def start(self):
        self.request = dist.all_reduce(self.flat, async_op=True)

    def finish(self):
        self.request.wait()
        for weight, mean in self.part_of.items():
            weight.grad.copy_(mean)
        self.missing = len(self.part_of)


# %%
def in_buckets(weights, cap_mb):
    lists, nbytes = [], float("inf")
    for weight in reversed(list(weights)):
        if nbytes >= cap_mb * 2**20:  # the bucket is full: open the next one
            lists.append([])
            nbytes = 0
        lists[-1].append(weight)
        nbytes += weight.nbytes
    return [Bucket(weights) for weights in lists]


model = lenet()
names = {weight: name for name, weight in model.named_parameters()}
for cap_mb in (25, 0.25):
    for bucket in in_buckets(model.parameters(), cap_mb):
        print(f"{cap_mb:5} MiB: {bucket.flat.nbytes:9,} bytes:", *map(names.get, bucket.part_of))
simlib.guess(guess, len(in_buckets(model.parameters(), 0.25)))

# %% [markdown]
# A bucket is closed only when it has *reached* the cap, so it may be larger than the cap. The tensor
# `7.weight`, from the first fully connected layer, has 1.6 MB by itself.
#
# ## Step 4: the reducer
#
# The reducer puts each arriving gradient into its bucket. When a bucket is full, the reducer starts its
# all_reduce, **but only in turn**: bucket 1 never starts before bucket 0, even if bucket 1 is full first.
# When backward has ended, the reducer waits for the buckets in the same order. With `overlap=False` no bucket
# starts before backward has ended, as in lesson 07.


# %%
class Reducer:
    def __init__(self, buckets, overlap):
        self.buckets, self.overlap = buckets, overlap
        self.in_turn = None  # number of the bucket to start next; None outside of backward

    def arrived(self, bucket, weight):
        if self.in_turn is None:  # the first gradient of this backward
            self.in_turn = 0
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        bucket.take(weight)
        if self.overlap:
            self.start_full()

    def start_full(self):
        while self.in_turn < len(self.buckets) and not self.buckets[self.in_turn].missing:
            self.buckets[self.in_turn].start()
            self.in_turn += 1

    def finish(self):
        self.start_full()
        if self.in_turn < len(self.buckets):
            raise RuntimeError(f"a weight of bucket {self.in_turn} was not used: no gradient")
        for bucket in self.buckets:
            bucket.finish()
        self.in_turn = None


# %%
class OwnDDP(nn.Module):
    def __init__(self, module, cap_mb=25, overlap=True):
        super().__init__()
        self.module, self.is_on = module, True
        self.reducer = Reducer(in_buckets(module.parameters(), cap_mb), overlap)
        for tensor in module.state_dict().values():  # all begin as rank 0, buffers included
            dist.broadcast(tensor, src=0)
        for bucket in self.reducer.buckets:
            for weight in bucket.part_of:
                weight.register_post_accumulate_grad_hook(functools.partial(self.arrived, bucket))

    def forward(self, *inputs):
        return self.module(*inputs)

    def arrived(self, bucket, weight):
        if self.is_on:
            self.reducer.arrived(bucket, weight)

    @contextlib.contextmanager
    def no_sync(self):
        self.is_on = False
        try:
            yield
        finally:
            self.is_on = True


# %% [markdown]
# That is DDP, in 80 lines. We compare it with torch's DDP. Both train LeNet for three steps of SGD with
# momentum, each rank on its own digits. The models begin **different** on each rank. Will all weights be
# equal at the end, even to the last bit? Will both programs make the same collective calls?

# %%
guess = None  # equal bit for bit, "yes" or "no"?


def train(rank, world_size, own, cap_mb):
    model = lenet(seed=rank)
    wrap = OwnDDP if own else functools.partial(DistributedDataParallel, bucket_cap_mb=cap_mb)
    ddp = wrap(model, cap_mb) if own else wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(3):
        mine = slice(32 * step + rank, 32 * (step + 1), world_size)
        optimizer.zero_grad()
        loss_of(ddp(IMAGES[mine]), LABELS[mine]).backward()
        optimizer.step()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


for engine, ranks in ((simlib.run, 2), (simlib.simulate, 4)):
    runs = [engine(train, ranks, args=(own, 0.25)) for own in (True, False)]
    first, *others = [weights for run in runs for weights in run.results]
    are_equal = all(map(first.equal, others))
    print(ranks, runs[0].engine, "ranks, all equal bit for bit:", are_equal)
for name, run in zip(("own", "torch's"), runs, strict=True):
    calls = [f"{op.kind} {op.nbytes:,}" for op in run.trace.of_rank(0)]
    print(f"{name}:", *calls, sep="\n    ")
simlib.guess(guess, "yes" if are_equal else "no", of=("yes", "no"))

# %% [markdown]
# The weights are equal to the last bit. In steps 2 and 3 both programs send the same buckets: 1,622,040
# bytes, then 102,280. Three things differ:
#
# - At the start, torch compares the shapes of the models (all_gather, broadcast).
# - torch sends all weights in one broadcast.
# - In the **first** step torch has a single bucket, and notes the order in which the gradients arrive. At the
#   start of the second step rank 0 broadcasts its order (36 and 8 bytes), and all ranks make new buckets in
#   this order.
#
# The first step overlaps nothing, and the second step has extra calls. So measure DDP from its third step on.
#
# ## See the overlap
#
# `tower` runs a model of equal layers and returns the time of each step. Each layer has its own bucket. The
# simulated cluster has four ranks, a network of 10 Gbit/s, and devices of 12.5 Gflop/s. Two pictures show a
# model of three layers at the same scale, first without overlap, then with it. In the first picture the long
# bar is the whole forward **and** backward. What will the second picture look like?

# %%
LAYERS, WIDTH, BATCH = 6, 512, 16


def tower(rank, world_size, wrap, layers=LAYERS, width=WIDTH, batch=BATCH, steps=1, pause_s=0):
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    ddp, times = wrap(model), []
    for weight in model.parameters() if pause_s else ():
        # this hook runs *before* .grad is there: as if this layer's backward took longer
        weight.register_hook(lambda gradient: simlib.compute(seconds=pause_s))
    for _ in range(steps):
        dist.barrier()  # for the clock: all begin together
        start = time.perf_counter()
        with simlib.span("step", number=len(times)):
            ddp.zero_grad()
            ddp(torch.ones(batch, width, requires_grad=True)).sum().backward()
        torch.cpu.synchronize()  # a CPU need not; on a GPU, torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times


# %%
guess = None  # which share of the step does overlap save here, in %?


def modelled(*args, flops_per_s=12.5e9, **options):
    cluster = simlib.clusters.ethernet_10g(4, device=simlib.Device(flops_per_s, **options))
    return simlib.simulate(tower, 4, args=args, cluster=cluster, all_reduce="ring")


each = {on: functools.partial(OwnDDP, cap_mb=0, overlap=on) for on in (False, True)}
step_s = {}
for overlap, wrap in each.items():
    run = modelled(wrap, 3)
    step_s[overlap] = run.results[0][-1]
    run.name = f"{'overlap' if overlap else 'no overlap'}: {step_s[overlap] * 1e3:.3f} ms"
    start = run.trace.spans[0][1] - step_s[overlap]
    display(run.timeline(between=(start, start + step_s[False])))
simlib.guess(guess, 100 * (1 - step_s[True] / step_s[False]), within=0.2)

# %% [markdown]
# In the upper picture, devices and network take turns. In the lower picture, both work at once. The long bar
# ends when the devices are done. The pale strips at its lower edge show when a bucket is under way. The step
# ends a quarter sooner.
#
# How much can overlap hide? Let $f$ be the time of a layer's forward, $b$ that of its backward, and $c$ that
# of its bucket's all_reduce. $L$ is the number of layers. Bucket $k$ is ready at $Lf + kb$. After this time,
# bucket $k$ and all later buckets must pass the network, which takes at least $(L - k + 1)\,c$. The network
# rests only when no bucket is ready, so the $k$ with the largest bound decides:
#
# $$T_\text{off} = L (f + b + c), \qquad T_\text{on} = L f + \max_k \big( k b + (L - k + 1) c \big)
# = L f + \max(b + L c,\; L b + c)$$
#
# The expression is linear in $k$, so its maximum is at $k = 1$ or $k = L$. Without overlap, backward and
# network take the sum $Lb + Lc$. With overlap they take only the **maximum** of $Lb$ and $Lc$, plus one
# bucket or one layer. Nothing can hide behind the forward. If $b = 2f$, the gain is largest at $c = b$:
# overlap then shortens the step from $5Lf$ to $3Lf + c$. PyTorch's authors measured such gains (arXiv
# 2006.15704). With Gloo, steps were 26.8 % (ResNet) and 21.5 % (BERT) faster. With NCCL they were 38.0 % and
# 35.2 % faster.
#
# The next cell compares the formulas with runs of six layers on three devices. Which device gains most? And
# how large should a bucket be? A second model has 48 small layers of 64 KiB. Its cap goes from one bucket per
# layer to one for all.

# %%
guess = None  # the device with the largest gain: 2.5, 12.5 or 100 Gflop/s?
saved = {}

bucket_s = 6 * (30e-6 + WIDTH**2 / 1.25e9)  # ring: 2(R - 1) messages of a quarter of 4 WIDTH^2 B
for flops_per_s in (2.5e9, 12.5e9, 100e9):
    f = 2 * BATCH * WIDTH**2 / flops_per_s
    b = 2 * f
    off = LAYERS * (f + b + bucket_s)
    on = LAYERS * f + max(b + LAYERS * bucket_s, LAYERS * b + bucket_s)
    found = [modelled(wrap, flops_per_s=flops_per_s).results[0][0] for wrap in each.values()]
    residual = max(abs(found[0] - off), abs(found[1] - on))
    saved[flops_per_s / 1e9] = 1 - on / off
    print(f"{flops_per_s / 1e9:5.1f} Gflop/s: {off * 1e3:6.2f} -> {on * 1e3:6.2f} ms,", end=" ")
    print(f"{1 - on / off:4.0%} saved; residual below 1e-9 s: {residual < 1e-9}")
simlib.guess(guess, max(saved, key=saved.get))
for cap_kib in (1, 256, 512, 1024, 3072):
    wraps = (
        functools.partial(OwnDDP, cap_mb=cap_kib / 1024),
        functools.partial(DistributedDataParallel, bucket_cap_mb=cap_kib / 1024),
    )
    own, torchs = (modelled(wrap, 48, 128, 16, 3).results[0][-1] * 1e3 for wrap in wraps)
    queues = modelled(wraps[1], 48, 128, 16, 3, asynchronous=True)
    exposed = queues.exposed("step", number=2).exposed_s[0] * 1e3
    print(f"cap {cap_kib:4} KiB: own {own:6.3f} ms, torch's {torchs:6.3f} ms per step", end="; ")
    print(f"with queues {queues.results[0][-1] * 1e3:6.3f} ms, exposed {exposed:5.3f}")

# %% [markdown]
# On a slow device, communication is a small part of the step, so there is little to hide. A fast device
# computes only for a short time, so little can hide behind it. Small buckets pay too many latencies, and
# large buckets start too late. In its third step, torch's DDP takes exactly as long as ours. It also takes as
# long if the device works through queues, as a GPU does. `run.exposed` tells for how long a bucket was under
# way while the device computed nothing.
#
# ## Measured on real ranks
#
# Now two real ranks run on this computer. A busy CPU has no time left for the network, but a GPU's host has.
# To imitate a GPU, the backward of each layer sleeps for 4 ms (`pause_s`). A layer has 4 MiB. torch's DDP
# cannot switch overlap off, but one bucket for all weights has the same effect.

# %% tags=["nbval-ignore-output"]
guess = None  # what part of a step is saved here?

wraps = {
    "no DDP": nn.Sequential,
    "own, no overlap": each[False],
    "own, overlap": each[True],
    "torch's, one bucket": functools.partial(DistributedDataParallel, bucket_cap_mb=1000),
    "torch's, overlap": functools.partial(DistributedDataParallel, bucket_cap_mb=0.001),
}
found = {}
for name, wrap in wraps.items():
    run = simlib.run(tower, 2, args=(wrap, LAYERS, 1024, 4, 7, 4e-3))
    run.name, times = name, run.results[0][2:]
    found[name] = statistics.median(times) * 1e3
    print(f"{name:20} {found[name]:6.1f} ms per step (median of {len(times)})")
    if name == "own, overlap":
        end = run.trace.spans[0][1]
        picture = run.timeline(between=(end - times[-1], end))
b, c = found["no DDP"] / LAYERS, (found["own, no overlap"] - found["no DDP"]) / LAYERS
predicted = found["own, no overlap"] - (LAYERS - 1) * min(b, c)
print(f"b = {b:.1f} ms, c = {c:.1f} ms: predicted with overlap {predicted:.1f} ms,", end=" ")
print(f"measured {found['own, overlap']:.1f} ms")
picture

# %% [markdown]
# By the formula overlap saves $T_\text{off} - T_\text{on} = (L - 1) \min(b, c)$. The last line of the output
# uses this. Its $b$ is the time per layer of the step without DDP, so it includes the short forward. Its $c$
# is the extra time per layer of "no overlap". Gloo's threads need cores, too. If other programs use the
# cores, overlap saves less than predicted.
#
#
# ## On a GPU: streams
#
# A *kernel* is a function that runs on the GPU. Python puts kernels and copies into a queue, a **stream**,
# and runs ahead. The GPU works through each queue in order. But nothing orders the work of two streams. To
# force an order, stream A records an *event*, and stream B waits until A has reached the event. `loss.item()`
# needs a number in Python, so Python waits until the GPU has computed this number.
#
# One stream zeroes a gradient, runs backward, and zeroes the gradient again for the next step. Another stream
# copies the gradient. The copy can come before, between or after these three. In how many of these four
# orders is the copy wrong?
#
# Then you see a **recorded** run from torch's profiler (torch 2.11, November 2026). Two DDP ranks share one
# H100 and use Gloo. The model has seven layers of width 1,024, in buckets of 8 MiB. The picture shows the
# second step. Stream 7 computes. Each all_reduce has a stream of its own for its copies. Rank 1 first
# starts a kernel that only spins. This is the long bar in its stream 7. Does the Python of rank 1 wait for
# that kernel?

# %%
guess = None  # in how many of four orders is the copy wrong, without events?


def orders(one, two):
    if not (one and two):
        return [[*one, *two]]
    first = [[one[0], *rest] for rest in orders(one[1:], two)]
    return first + [[two[0], *rest] for rest in orders(one, two[1:])]


before, after = ("backward", "copy"), ("copy", "zero again")
for events in ((), (before,), (before, after)):
    found = orders(["zero", "backward", "zero again"], ["copy"])
    found = [one for one in found if all(one.index(a) < one.index(b) for a, b in events)]
    wrong = [one for one in found if one[one.index("copy") - 1] != "backward"]
    print(f"events: {len(events)}, orders: {len(found)}, wrong: {len(wrong)}")
    simlib.guess(None if events else guess, len(wrong))
run = simlib.load("recorded_gpu/ddp.json")
for rank, profile in enumerate(run.profile):
    op, *_ = (op for op in run.trace.of_rank(rank) if op.post_s > 0.04)
    copy, back = (1e3 * span.start_s for span in profile.streams[0, 68])
    print(f"rank {rank}: posted at {1e3 * op.post_s:.1f} ms, copied at {copy:.1f}, back {back:.1f}")
run.timeline(between=(0.04, 0.085))

# %% [markdown]
# Without events three of the four orders are wrong. The order depends on timing, so the numbers are wrong
# only sometimes. torch's backends set both events: the copy waits for backward, and after `wait` stream 7
# waits for the sum.
#
# A rank's upper lane is Python. There, "computing" only means that no blocking call was recorded. Rank 1's
# Python did not wait for the kernel: it posted its first bucket at 56.9 ms, and the GPU copied the bucket at
# 62.7 ms, after the long bar. Rank 0's first two copies begin before rank 0's backward ends. That is overlap.
# Then stream 7 of rank 0 is idle for 30 ms, because rank 0 waits for rank 1.
#
# If Python starts kernels too slowly, use a **CUDA graph**. It stores all the launches of a step, and repeats
# them with one call.
#
# <details><summary>With a GPU of your own</summary>
#
# In `tower`, write `.cuda()` after `nn.Sequential(...)`, and `device="cuda"` in `torch.ones`. Take small
# buckets: `wrap = functools.partial(DistributedDataParallel, bucket_cap_mb=1)`. Then `simlib.run(tower, 2,
# (wrap, LAYERS, WIDTH, BATCH, 4), gpus=True, profile=True).timeline()`: do copies start before stream 7 ends?
# (Gloo adds on the CPU, so `run.states` shows no communication on the GPU.)
#
# </details>
#
# ## Break it: another order on one rank
#
# Why must a full bucket wait for its turn? Collectives are matched in the order of posting. Here rank 1
# starts its buckets in reverse order. In the first run the two layers differ in size, in the second they do
# not. What happens in each run?

# %%
guess = None  # in how many of the two is an error raised?


def other_order(rank, world_size, widths, is_mended):
    torch.manual_seed(0)
    layers = [nn.Linear(*pair, bias=False) for pair in zip(widths, widths[1:], strict=False)]
    model = OwnDDP(nn.Sequential(*layers), cap_mb=0)
    if rank == 1 and not is_mended:
        model.reducer.buckets.reverse()
    model(torch.ones(1, widths[0])).sum().backward()
    return [round(layer.weight.grad[0, 0].item(), 3) for layer in layers]


raised = 0
for widths, is_mended in (((2, 3, 1), False), ((2, 2, 2), False), ((2, 2, 2), True)):
    print(f"{'mended' if is_mended else 'broken'}, widths {widths}:", end=" ")
    try:
        print(simlib.run(other_order, 2, args=(widths, is_mended)).results)
    except simlib.MismatchError as error:
        raised += 1
        print(error)
simlib.guess(guess, raised)

# %% [markdown]
# simlib detects different sizes. Plain Gloo would crash, or add up garbage. With equal sizes nobody can
# detect the mistake: the gradient of rank 0's last layer was added to that of rank 1's first layer. So no
# rank may choose the order: buckets start in turn, by number.
#
# ## Break it: a layer that is not used
#
# A model with two heads uses one head per step. The other head's gradients never arrive, so their bucket is
# never full. In the first four runs all steps use head 0. What does our DDP do? What does torch's DDP do,
# without an option and with each of two options? In the next two runs rank r uses head r. In the last two,
# step s uses head s.

# %%
guess, failed = None, []  # your guess: how many of the first four raise an error?


class TwoHeads(nn.ModuleList):
    def forward(self, x, head):
        return self[head](x)


def two_steps(rank, world_size, given, way):
    heads = TwoHeads([nn.Linear(4, 1), nn.Linear(4, 1)])
    ddp = OwnDDP(heads) if given is None else DistributedDataParallel(heads, **given)
    for step in range(2):
        ddp(torch.ones(1, 4), {"0": 0, "r": rank, "s": step}[way]).sum().backward()
    return [None if head.weight.grad is None else head.weight.grad[0, 0].item() for head in heads]


options = ({}, {"find_unused_parameters": True}, {"static_graph": True})
for way, one in zip("0000rrss", (None, *options, *options[1:] * 2), strict=True):
    print("own" if one is None else next(iter(one), "torch's"), f"head {way}", end=": ")
    try:
        print("gradients of two steps", simlib.run(two_steps, 2, args=(one, way)).results[0])
    except simlib.RankError as error:
        failed.append(way)
        print(error.tracebacks[min(error.tracebacks)].partition("Error: ")[2].split(". ")[0])
simlib.guess(guess, failed.count("0"))


# %% [markdown]
# Without the check in `finish`, our replicas would silently drift apart. With `find_unused_parameters=True`
# torch's DDP walks through the graph after every forward pass, and marks the weights that will get no
# gradient. This costs one more all_reduce per step. With `static_graph=True` you promise that every step uses
# the same weights, so DDP needs no walk and no extra all_reduce. If each rank always uses its own head, both
# options are right: a rank that did not use a head contributes zeros. If the head changes from step to step,
# only `find_unused_parameters` is right. With `static_graph` DDP raises an error.
#
# ## no_sync: accumulate, then communicate once
#
# For four micro-batches per step (gradient accumulation, lesson 07), one all_reduce is enough. `no_sync`
# turns the hooks off, so the gradients add up in `.grad` on each rank. **Now you write it:** `silent` returns
# True for a micro-batch that sends nothing. `number` counts from 0. How many bytes does this save? Will the
# gradient differ?


# %%
def silent(number, micro_batches):
    return False  # yours


def accumulate(rank, world_size, wrap, parts, way):
    ddp, mine = wrap(lenet()), slice(rank, 64, world_size)
    batches = zip(IMAGES[mine].chunk(parts), LABELS[mine].chunk(parts), strict=True)
    for number, (x, y) in enumerate(batches):
        is_quiet = way == "yours" and silent(number, parts)
        with ddp.no_sync() if is_quiet else contextlib.nullcontext():
            (loss_of(ddp(x), y) / parts).backward()
    return torch.cat([weight.grad.flatten() for weight in ddp.parameters()])


exact, right = simlib.run(accumulate, 1, args=(OwnDDP, 1, "always")).results[0], True
for wrap, parts in ((OwnDDP, 4), (DistributedDataParallel, 4), (OwnDDP, 8)):
    for way in ("always", "yours"):
        run = simlib.run(accumulate, 2, args=(wrap, parts, way))
        sent = [op.nbytes for op in run.trace.of_rank(0) if op.kind == "all_reduce"]
        is_close = (run.results[0] - exact).abs().max().item() < 1e-6
        print(f"{wrap.__name__}, {parts} micro-batches, {way}: {len(sent)} all_reduces,", end=" ")
        print(f"{sum(sent):,} bytes; the gradient of one process: {is_close}")
        right &= way == "always" or (is_close and len(sent) == 1)
print("right" if right else "not yet: one all_reduce, and the gradient of one process")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return number < micro_batches - 1`
#
# </details>
#
# With 4 micro-batches the ranks send a quarter of the bytes, with 8 an eighth. Without `no_sync`, torch's DDP
# makes 7 all_reduces: one bucket in its first backward, and two buckets in each of the other three. (It has
# two because the first bucket's default cap is 1 MiB.) Put forward **and** backward inside `no_sync`.
#
# ## Uneven inputs: join
#
# Rank 0 has three batches, rank 1 has two. The gradient is 6 on rank 0 and 2 on rank 1. What happens in step
# 3? `ddp.join()` helps: a rank that has finished contributes zeros to every later all_reduce. Which gradient
# will rank 0 then see in step 3: 6, or 3?

# %%
guess = None  # rank 0's gradient in step 3, with join?


def uneven(rank, world_size, **options):
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    seen = []
    with ddp.join(**options):
        for _ in range(3 - rank):
            ddp.zero_grad()
            ddp(torch.tensor([[6.0 if rank == 0 else 2.0]])).sum().backward()
            seen.append(ddp.module.weight.grad.item())
    return seen


with contextlib.suppress(simlib.DeadlockError):  # its picture appears by itself
    simlib.run(uneven, 2, kwargs={"enable": False})
for by_all in (True, False):
    options = {"divide_by_initial_world_size": by_all}
    seen = simlib.run(uneven, 2, kwargs=options).results
    print(options, seen)
    simlib.guess(guess if by_all else None, seen[0][2])

# %% [markdown]
# By default DDP still divides by R, so the gradient of step 3 is halved. This is right if every *example*
# should count the same. With `divide_by_initial_world_size=False` DDP divides by the number of ranks that are
# left. Then every *step* counts the same.
#
# ## Fewer bytes: communication hooks
#
# A **communication hook** replaces a bucket's all_reduce. torch has some of these. `fp16_compress_hook` sends
# float16. PowerSGD (Vogels et al. 2019, arXiv 1905.13727) approximates a matrix of gradients by the product
# of two thin matrices, and sends only these two. The rest goes into the next step's gradient. Our model is
# lesson 07's reader.
#
# **Now you write** a hook for bfloat16. `bucket.buffer()` is the bucket's flat tensor. Divide it by the
# number of ranks, and send it as bfloat16. Return the future `dist.all_reduce(...,
# async_op=True).get_future().then(function)`. `function` gets this future. The sum is `future.value()[0]`,
# and `function` must return it as float32.
#
# How far off is each hook in one step, and in the mean of ten steps? The cell also adds up three sums over
# four ranks: 4 x 17,500, 1 + 3 x 0.001, and 4 x 1e-8. Which of these are wrong in 16 bits?

# %%
F = nn.functional
letters, codes = simlib.letters.alphabet(), simlib.letters.load()


class Reader(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.letter = nn.Embedding(len(letters), width)
        self.place = nn.Embedding(codes.shape[1], width)
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.guess = nn.Linear(width, len(letters))

    def forward(self, lines):
        """The mean loss over all letters but the first of each line."""
        places = torch.arange(lines.shape[1] - 1)
        x = self.letter(lines[:, :-1].clamp(min=0)) + self.place(places)
        scores = self.guess(self.block(x, places[:, None] < places))  # no letter sees later ones
        return F.cross_entropy(scores.transpose(1, 2), lines[:, 1:])


def in_bf16(state, bucket):
    return plain.allreduce_hook(None, bucket)  # yours: with half of its bytes


# %%
def compressed(rank, world_size, hook, dtype):
    torch.manual_seed(0)
    ddp, steps = DistributedDataParallel(Reader(), bucket_cap_mb=1000), []
    state = power.PowerSGDState(None, 4, start_powerSGD_iter=2)
    ddp.register_comm_hook(state if hook.__name__ == "powerSGD_hook" else None, hook)
    for _ in range(12):
        ddp.zero_grad()
        ddp(codes[rank:64:world_size]).backward()
        steps.append(torch.cat([weight.grad.flatten() for weight in ddp.parameters()]))
    sums = torch.tensor([17_500, 1.0 if rank == 0 else 1e-3, 1e-8]).to(getattr(torch, dtype))
    dist.all_reduce(sums)
    return steps[2], torch.stack(steps[2:]).mean(0), sums.tolist()


hooks, exact = [plain.allreduce_hook, power.powerSGD_hook, plain.fp16_compress_hook, in_bf16], None
for hook, dtype in zip(hooks, ("float32", "float32", "float16", "bfloat16"), strict=True):
    run = simlib.run(compressed, 4, args=(hook, dtype))
    ops = [op for op in run.trace.of_rank(0) if op.kind == "all_reduce"]
    third, mean, sums = run.results[0]
    exact = third if exact is None else exact
    off, off_10 = ((one - exact).norm() / exact.norm() for one in (third, mean))
    print(f"{hook.__name__:18} {sum(op.nbytes for op in ops):9,} bytes; off by", end=" ")
    print(f"{off:.2%}, mean of ten {off_10:.2%}; sums in {dtype}: {sums}")
is_right = off < 0.02 and {op.dtype for op in ops} == {"bfloat16"}
print("in_bf16 is", "right" if is_right else "not yet: a mean gradient, sent as bfloat16")

# %% [markdown]
# Each hook ran twelve steps. fp16 sends half of the bytes. PowerSGD sends the whole gradients in its first
# two steps, then a fraction. (Its thin matrices have 4 columns here.) It is far off *in one step*, but later
# steps send what is missing. So the mean of ten steps has only a third of the error. In float16 a sum above
# 65,504 becomes `inf`, and four times 1e-8 becomes 0. To avoid `inf`, fp16's hook divides by R *before* the
# sum. bfloat16 has the range of float32, but only 8 bits of precision: 70,000 becomes 70,144, and 1 + 3 x
# 0.001 becomes 1.
#
# <details><summary>Answer</summary>
#
# `half = (bucket.buffer() / dist.get_world_size()).bfloat16()`, then `return dist.all_reduce(half,
# async_op=True).get_future().then(lambda future: future.value()[0].float())`.
#
# </details>
#
# ## A loss that needs all ranks
#
# A contrastive loss compares each image with the texts of **all** ranks. `all_gather` collects the texts as
# constants: no gradient flows back through it. We try three ways:
#
# - "constants": all texts are constants.
# - "own texts": each rank replaces its own texts by the tensor that has a gradient.
# - "loss of all": the same with texts and images. Each rank computes the loss of *all* images.
#
# Which way gives the gradient of one process?

# %%
guess = None  # which: "constants", "own texts" or "loss of all"?


def contrast(rank, world_size, way):
    torch.manual_seed(0)
    ddp, pairs = DistributedDataParallel(nn.Linear(6, 4, bias=False)), torch.randn(2, 8, 6)
    rows = torch.arange(8).chunk(world_size)[rank]
    mine = F.normalize(ddp(pairs[:, rows]), dim=2)  # images, texts
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine.detach())
    constants = torch.cat(parts, dim=1)
    images, texts = constants.index_copy(1, rows, mine)
    texts = constants[1] if way == "constants" else texts
    is_all = way == "loss of all"
    scores = (images if is_all else mine[0]) @ texts.T / 0.2
    loss = F.cross_entropy(scores, torch.arange(8) if is_all else rows)
    (loss * (world_size if is_all else 1)).backward()
    return ddp.module.weight.grad


whole, ways = simlib.run(contrast, 1, args=("own texts",)).results[0], ("own texts", "loss of all")
for way in ("constants", *ways):
    found = simlib.run(contrast, 2, args=(way,)).results[0]
    print(f"{way:11} off by {(found - whole).norm() / whole.norm():.1%}")
    simlib.guess(guess if found.allclose(whole, atol=1e-5) else None, way, of=("constants", *ways))

# %% [markdown]
# All three ways compute the right loss, and none raises an error. A rank's texts affect the losses of *all*
# images, and only the third way differentiates all these losses. Then each rank has its part of the whole
# gradient. The parts must be added up, but DDP takes their mean. The factor R undoes this division.
#
# ## Your turn
#
# [Exercises 08](../exercises/08_from_loops_to_ddp.ipynb): buckets of your own, in the right order; an overlap
# that keeps within a budget of time; one all_reduce for many micro-batches; uneven batches that count right.
# [Lesson 15](15_frameworks.ipynb) shows what Lightning, Fabric and accelerate put around DDP.
#
# ## Exit ticket
#
# 1. After a `loss.backward()` with DDP, rank 0 prints its loss. Which examples does this loss cover?
# 2. You give the same DataLoader to DDP on 8 ranks. What differs from one rank?
# 3. A model has small layers and one layer of 400 MB. Backward reaches the large layer first. What do buckets
#    with a cap of 25 MiB do?
# 4. Backward takes 80 ms, forward 40, the buckets together 60. How long is the best step without and with
#    overlap?
# 5. Why must buckets start in the same order on every rank? Why is no error raised if the order differs and
#    the buckets have equal sizes?
#
# <details><summary>Answers</summary>
#
# 1. The examples of its shard.
# 2. Only the cost. All ranks see the same examples, and the mean of equal gradients is the same gradient.
# 3. The large layer fills a bucket by itself. This bucket starts early, but all other buckets wait for it.
# 4. 180 ms without overlap. With overlap it takes a little more than 120 ms, because the last bucket cannot
#    be hidden.
# 5. Collectives are matched in the order of posting. Nothing distinguishes two of the same kind and size.
#
# </details>
#
# **Next:** [the second part](08_in_eight_bits.ipynb), which sends gradients in 8 bits and looks at the waits on a GPU.
#
# ## One process that controls everything: DataParallel
#
# <details><summary>Appendix A, what its two programs show</summary>
#
# `nn.DataParallel(model)` is one line, needs no launcher, and uses all GPUs of **one** computer. It has one
# process, and one thread per GPU. The cell does its steps by hand. `scatter` cuts the batch, `replicate`
# copies the weights, `parallel_apply` runs the copies (ours one after the other), and `gather` joins the
# outputs. Then there is **one** loss. The gradient is right, but `model.calls` is 0. The reason: each replica
# counted its own call, and **replicas are discarded after backward**.
#
# A weight that was copied four times gets the **sum** of four gradients, because each copy contributed to one
# common loss. DDP has R losses. Each is the mean over a shard, so DDP takes the **mean** (lesson 06).
#
# </details>


# %%
class Counting(nn.Sequential):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def data_parallel(model, x, devices):
    outputs = []
    for chunk in x.chunk(devices):  # scatter
        replica = model._replicate_for_data_parallel()  # its own copy; autograd leads back
        weights = {name: weight.clone() for name, weight in model.named_parameters()}
        outputs.append(torch.func.functional_call(replica, weights, (chunk,)))  # parallel_apply
    return torch.cat(outputs)  # gather


model = Counting(*lenet())
loss = loss_of(data_parallel(model, IMAGES, 4), LABELS)
print("calls:", model.calls)
parallel = torch.autograd.grad(loss, model.parameters())
whole = torch.autograd.grad(loss_of(model(IMAGES), LABELS), model.parameters())
off = max((a - b).abs().max().item() for a, b in zip(parallel, whole, strict=True))
print("gradient off by less than 1e-6:", off < 1e-6)

# %% [markdown]
# ### What each copies, and when
#
# <details><summary>What the pictures show</summary>
#
# A bus of 12 GB/s, about PCIe's speed, connects the simulated GPUs. Device 0 sends out the inputs **and all
# weights**, and collects the outputs. Then it sends out the outputs' gradients, and collects the weights'
# gradients. On 4 devices, $2(R-1) = 6$ times 1.7 MB pass device 0's link in every step. DDP's ranks keep
# their weights. Each rank sends and receives only $2\frac{R-1}{R} = 1.5$ times 1.7 MB. Each further device
# makes DataParallel's step longer by about the same amount, but DDP's step only by a few latencies.
#
# </details>


# %%
def as_data_parallel(rank, world_size, batch):
    weights, images, outputs = map(torch.zeros, (431_080, 784 * batch, 10 * batch))
    dist.scatter(images, [images] * world_size if rank == 0 else None)  # the batch
    dist.broadcast(weights, src=0)  # replicate
    simlib.compute(seconds=0.5e-3)  # forward
    dist.gather(outputs, [outputs.clone() for _ in range(world_size)] if rank == 0 else None)
    dist.scatter(outputs, [outputs] * world_size if rank == 0 else None)  # the loss's gradient
    simlib.compute(seconds=1e-3)  # backward
    dist.reduce(weights, dst=0)  # gradients; afterwards the replicas are gone


def as_ddp(rank, world_size, batch):
    simlib.compute(seconds=1.5e-3)  # forward and backward, on a batch that is there already
    dist.all_reduce(torch.zeros(431_080))


pcie = {"inter": simlib.Link(0, 1e12), "intra": simlib.Link(10e-6, 12e9)}
copies = {"broadcast": "flat", "reduce": "flat", "all_reduce": "ring", "args": (32,)}
for devices in (2, 4, 8, 16):
    copies["cluster"] = simlib.Cluster(1, devices, **pcie)
    runs = [simlib.simulate(how, devices, **copies) for how in (as_data_parallel, as_ddp)]
    print(f"{devices:2} devices, ms per step:", *(f"{run.time_s * 1e3:7.3f}" for run in runs))
    for run, run.name in zip(runs, ("DataParallel", "DDP"), strict=True) if devices == 4 else ():
        display(run.timeline(between=(0, runs[0].time_s)))

# %% [markdown]
# ## The recipe, whole
#
# <details><summary>Appendix B: a script, and four launchers for it</summary>
#
# The script resembles the lecture's (DTU's MLOps course). The ranks meet at an address (`MASTER_ADDR`,
# `MASTER_PORT`), where rank 0 listens. The script calls `init_process_group`, builds DDP, makes one training
# step, and calls `destroy_process_group`.
#
# - `mp.spawn` in the script sets no variables and calls `train(rank, 2)`. So you must choose the address.
# - `torchrun` sets all variables. `LOCAL_RANK` is the rank's number on its node, and tells which GPU to use.
# - `mpiexec` (MPICH's) knows nothing of torch. It sets `PMI_RANK` and `PMI_SIZE`.
#
# </details>

# %%
RECIPE = """
import json, os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def train(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size)  # "nccl" for GPUs
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(8, 4) * rank).sum().backward()  # each rank: its own data
    optimizer.step()
    weights = [w.tolist() for w in model.parameters()]
    del model, optimizer  # before the group they belong to
    dist.barrier()
    dist.destroy_process_group()
    with open(f"rank{rank}.json", "w") as file:  # a file each: printed lines could mix
        json.dump([sys.argv[1:], dict(os.environ), weights], file)

if __name__ == "__main__":
    rank, size = (os.environ.get(name) for name in os.environ.get("NAMES", "-,-").split(","))
    if rank is None:
        mp.spawn(train, args=(2,), nprocs=2)  # calls train(0, 2) and train(1, 2)
    else:
        train(int(rank), int(size))
"""

# %% [markdown]
# A fixed port may be in use. So we draw a random port, and try again if a launcher fails.

# %%
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

folder = tempfile.TemporaryDirectory()
script, programs = Path(folder.name, "recipe.py"), Path(sys.executable).parent
script.write_text(RECIPE)


def launch(given, command):
    clean = {name: value for name, value in os.environ.items() if name not in SET}
    here = tempfile.mkdtemp(dir=folder.name)
    for _ in range(5):
        port = str(random.randrange(20_000, 32_768))
        environment = clean | {name: value.replace("PORT", port) for name, value in given.items()}
        words = [str(word).replace("PORT", port) for word in [*command, script]]
        done = subprocess.run(words, cwd=here, env=environment, capture_output=True)
        if done.returncode == 0:
            return [json.loads(Path(here, f"rank{r}.json").read_text()) for r in (0, 1)]
    raise RuntimeError(done.stderr.decode())


# %%
SET = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE"]
given = {"OMP_NUM_THREADS": "1", "NAMES": "-,-"}
of_torch, of_mpich = given | {"NAMES": "RANK,WORLD_SIZE"}, given | {"NAMES": "PMI_RANK,PMI_SIZE"}
meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "PORT"}
older = [sys.executable, "-m", "torch.distributed.launch", "--master-port", "PORT"]
commands = {
    "mp.spawn": (given | meet, [sys.executable]),
    "torchrun": (of_torch, [programs / "torchrun", "--standalone", "--nproc-per-node", 2]),
    "torch.distributed.launch": (of_torch, [*older, "--nproc-per-node", 2]),
    "mpiexec": (of_mpich | meet, [programs / "mpiexec", "-n", 2, sys.executable]),
}
print("as rank 1 finds it        " + "  ".join(SET) + "  arguments")
with ThreadPoolExecutor(4) as pool:  # all at once
    found = pool.map(launch, *zip(*commands.values(), strict=True))
for name, (first, (arguments, environment, weights)) in zip(commands, found, strict=True):
    assert first[-1] == weights
    words = {
        n: "by you" if n in commands[name][0] else "set" if n in environment else "-" for n in SET
    }
    cells = [f"{word:>{len(n)}}" for n, word in words.items()]
    print(f"{name:24} ", "  ".join(cells), " ", *arguments)
folder.cleanup()
