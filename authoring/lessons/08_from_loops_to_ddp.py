# %% [markdown]
# # 08 From loops to DDP
#
# [Lesson 07](07_data_parallel_training.ipynb) trained with loops of its own: backward first, then an
# all_reduce over the gradients. PyTorch's `DistributedDataParallel`, **DDP** for short, gives the same
# weights in less time. In this lesson (85 minutes) you will
#
# - see what DDP does for you, and what it leaves to you,
# - build it in four steps: hooks, a wait at the end, buckets, the reducer; and hold yours against torch's,
# - **see** communication hide behind computation, predict how much of it can, and measure it,
# - break it as people do: no shard, no wait, another order, an unused layer, uneven inputs,
# - send fewer bytes, and gather what a loss needs without losing its gradient.
#
# Appendices: DDP's elder cousin `nn.DataParallel`, and four launchers.
#
# R is the number of ranks (`world_size`), B the examples of a rank per step. The model: lesson 07's LeNet.

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
# Two ranks, and each gives DDP the same 64 images. How many does the model see on each rank? Which part of
# the model is where? Then each rank takes every second image only. Then we add a barrier before each
# forward pass, "so that no rank runs ahead" (rank 1 is the slower one). What does each change: the
# gradient, the time?

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
# DDP splits **neither the input nor the model**. Each rank holds all 431,080 weights and works on what
# you hand it. The same 64 images on both ranks give the same gradient as 32 each, with twice the work: two
# computers did the work of one. Sharding
# is your line, or the `DistributedSampler`'s (lesson 07). A model that does not fit one rank is a matter for
# [lesson 10](10_splitting_the_model.ipynb). And the barrier changed nothing but the time: the all_reduce of
# each step holds the ranks together, as far as the data require (lesson 04).
#
# ## What DDP leaves to you
#
# It averages gradients, and compares nothing. Below, rank 1's first bias is edited before training; then
# rank 1 has another learning rate. Do the averaged gradients bring the ranks together again? And is the
# loss, that of which log and early stopping speak, the same on both? **Now you write it:** `mean_loss`
# gives the loss over all ranks' examples, on every rank.

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
# The loss is the **rank's own**, even where all is well: rank 0's is that of its shard. And what differs
# once stays: the edit is 1.0000 apart after three steps, another rate goes on drifting. Equal gradients
# keep equal replicas equal; they mend nothing. So load weights before DDP is built (its constructor
# broadcasts rank 0's), and change them on all ranks or on none.
#
# <details><summary>Answer</summary>
#
# `dist.all_reduce(loss, op=dist.ReduceOp.AVG)`, then `return loss.item()`.
#
# </details>
#
# ## Build it. Step 1: a hook for every weight
#
# Backward goes from the last layer to the first. The gradient of the last layer is ready long before
# that of the first: it can travel while backward works on the rest. torch calls a
# **hook** when a gradient is there: `register_post_accumulate_grad_hook`. Ours starts an all_reduce with
# `async_op=True`, which returns a request at once. Two ranks, gradients 1 and 3: what do they hold?

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
# Without the wait each rank has its own gradient, halved. On real ranks it is worse: a **race**. The
# optimizer may read half of the sum; the step is right on some days. The
# wait has to come after backward and before `optimizer.step()`. torch has a place for that, which DDP itself
# uses: a *callback* that the autograd engine calls when backward has ended,
# `Variable._execution_engine.queue_callback` (internal, so pin your torch).
#
# ## Step 3: buckets
#
# One all_reduce per weight pays the latency once per weight, and half of LeNet's eight are tiny biases. One
# for everything cannot start before the last gradient is there. Between them lie **buckets**: weights, in
# reverse order, are put into one flat tensor until it holds `cap_mb` MiB. DDP's default is 25,
# and 1 for the first, so that something starts early (Li et al. 2020, arXiv 2006.15704, is the source of this
# design).
#
# LeNet has 1.7 MB. Which buckets will it have with 25 MiB? With a quarter of a MiB?

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
# A bucket is closed once it has *reached* the cap, so it may be larger: `7.weight`, the first fully
# connected layer, is 1.6 MB in one tensor. A large layer makes a large bucket.
#
# ## Step 4: the reducer
#
# Now all comes together. A gradient arrives and is taken into its bucket. Is the bucket full? Then start
# it, **but only in turn**: bucket 1 never before bucket 0, whatever comes first on this rank. When
# backward has ended, wait for the buckets in the same order. With `overlap=False` all of them start only
# then, as in the loops of lesson 07.


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
# That is DDP, in 80 lines. Hold it against torch's: LeNet, three steps
# of SGD with momentum, each rank its own digits. The models begin **different** on each rank. Will the
# weights be equal at the end? To the last bit? And will both have sent the same?

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
# Equal to the last bit, and the same messages in steps 2 and 3: 1,622,040 bytes, then 102,280. Three
# things differ. torch compares the models' shapes first (all_gather, broadcast). It sends all weights
# in one broadcast. And in its **first** step it has a single bucket. It watches in which order gradients
# arrive, and then cuts buckets by that order, rank 0's, which it broadcasts at the start of the second step
# (36 and 8 bytes). So the first step overlaps nothing, and the second has messages of its own: measure from
# the third on.
#
# ## See the overlap
#
# Six equal layers, a bucket each, on four modelled ranks: 10 Gbit/s, devices of 12.5 Gflop/s. `tower`
# is a step of such a model, and says how long it took. The pictures show three such layers, without overlap, then
# with it, at the same scale. In the
# first one the long bar is the whole forward **and** backward. What will the second look like?

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
# Above, devices and network take turns. Below,
# both work at once: the long bar ends where the devices are done, and pale strips under it are buckets under way.
# The step ends a quarter sooner. How much can be hidden? Let $f$ and $b$ be the time of
# a layer's forward and backward, $c$ that of a bucket's all_reduce, $L$ the number of layers. Bucket $k$ is
# ready at $Lf + kb$. From then on, at least the $L - k + 1$ buckets from it to the last have to pass. The
# network rests only when no bucket is ready, so no more time is lost than for the worst $k$:
#
# $$T_\text{off} = L (f + b + c), \qquad T_\text{on} = L f + \max_k \big( k b + (L - k + 1) c \big)
# = L f + \max(b + L c,\; L b + c)$$
#
# (it is linear in $k$, so an end is the maximum). The sum $Lb + Lc$ of backward and network has become, but
# for one bucket or one layer, a **maximum**. Forward hides nothing: with $b = 2f$ the best is $c = b$, where
# $5Lf$ become $3Lf + c$. PyTorch's authors report steps 26.8 % (ResNet) and 21.5 % (BERT) faster with Gloo,
# 38.0 % and 35.2 % with NCCL (arXiv 2006.15704).
#
# Below is the executable twin, for three devices: which one gains most? Then, how large should a bucket
# be? 48 small layers of 64 KiB, and caps from "a bucket per layer" to "one for all".

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
# A slow device has little to hide, a fast one little to hide it behind. Small buckets pay too many
# latencies, large ones start too late. torch's DDP, from its third step on, takes exactly as long as ours,
# also where a device works through queues, as a GPU does. There `run.exposed` tells how long a bucket is under
# way while nothing computes.
#
# ## Measured on real ranks
#
# Two real ranks on this machine. CPUs that compute have no hands free for the network, unlike GPUs. So a
# sleep of 4 ms stands in for each layer's backward on a GPU (`pause_s`), with layers of 4 MiB. torch's DDP
# has no switch for overlap; one bucket for all comes to the same.

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
# By the formula overlap saves $T_\text{off} - T_\text{on} = (L - 1) \min(b, c)$. The last line has it in
# numbers of this machine: $b$ from the step without DDP (the little forward counted in), $c$ from what
# "no overlap" takes longer. Gloo's threads need cores, too: where others hold them, less is saved.
#
#
# ## On a GPU: streams
#
# A *kernel* is a function that runs on the GPU. Python puts kernels and copies into a queue, a **stream**, and
# runs ahead. The GPU works through each queue in order. Two streams run in any order. To force one, stream A
# records an *event*, and stream B waits until A has reached it. `loss.item()` needs a number in Python, so
# Python waits until the GPU has computed it.
#
# One stream does: zero a gradient, backward, zero it again for the next step. Another copies the gradient, to
# send it. The copy can fall in four places. In how many is it wrong?
#
# Then a **recorded** run: the second step of two ranks of DDP that share one H100, by Gloo (torch 2.11,
# November 2026; seven layers of 1,024 in buckets of 8 MiB; drawn from torch's profiler). Stream 7 computes. Each
# all_reduce has another stream for its copies. Rank 1 first starts a kernel that only spins, the long bar. Does
# its Python wait for it?

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
# Without events three of four orders are wrong. Timing chooses one, so numbers are wrong now and then. torch's
# backends set both events: the copy waits for backward, and after `wait` stream 7 waits for the sum.
#
# A rank's upper lane is Python; "computing" says only that no blocking call was recorded. Rank 1's Python
# did not wait to *post*: it posted its first bucket at 56.9 ms, and the GPU copied it at 62.7. Rank 0's first
# two copies begin before its backward ends: that is overlap. Then its stream 7 is idle for 30 ms: rank 0
# waits for rank 1.
#
# Where Python is too slow, a **CUDA graph** starts all stored launches of a step by one call.
#
# <details><summary>With a GPU of your own</summary>
#
# In `tower`, write `.cuda()` behind `nn.Sequential(...)`, and `device="cuda"` into `torch.ones`. Take small
# buckets: `wrap = functools.partial(DistributedDataParallel, bucket_cap_mb=1)`. Then
# `simlib.run(tower, 2, (wrap, LAYERS, WIDTH, BATCH, 4), gpus=True, profile=True).timeline()`: do copies start
# before stream 7 ends? (Gloo adds on the CPU, so `run.states` has no communication on the GPU.)
#
# </details>
#
# ## Break it: another order on one rank
#
# "Bucket 0 is full, so start it": why wait for one's turn? Because collectives meet in the order of
# posting. Here rank 1 starts its buckets the other way round. First the layers differ in size, then they
# are equal. What happens in each?

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
# Different sizes are found out; plain Gloo would crash, or add up garbage. Equal sizes nobody can tell:
# rank 0's last layer was added to rank 1's first. So the order must be one that no rank can change: by
# number, in turn.
#
# ## Break it: a layer that is not used
#
# A model with two heads uses one of them per step. The other's gradients never come, and their bucket is
# never full. What does ours do? And torch's, as it is and with two options? Then rank r uses head r; then step s uses head s.

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
# Without the check in `finish`, the replicas would drift apart without a word. `find_unused_parameters=True` lets DDP
# walk through the graph after every forward pass and mark what will
# get no gradient, for one more all_reduce in each step.
# `static_graph=True` promises that every step uses the same weights: no walk, no second all_reduce.
# Where each rank always uses a head of its own, both are right: a rank that did not use a head brings zeros. Where
# the head changes from step to step only the first is: the second raises.
#
# ## no_sync: accumulate, then communicate once
#
# Four micro-batches per step (gradient accumulation, lesson 07), and one all_reduce would do. `no_sync`
# turns the hooks off; gradients gather in `.grad` on each rank. **Now you write it:** which micro-batches
# are `silent`? How many bytes are saved, and will the gradient differ?


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
# A quarter of the bytes, or an eighth. (torch's 7: one bucket in its first backward, then two, as the first bucket's
# default cap is 1 MiB.) Note that forward **and** backward stand inside
# `no_sync`.
#
# ## Uneven inputs: join
#
# Rank 0 has three batches, rank 1 has two. Gradients are 6 on rank 0 and 2 on rank 1. What happens in
# step 3? `ddp.join()` helps: a rank that is through answers for its part of every all_reduce with
# zeros. What gradient will rank 0 then see in step 3: 6, or 3?

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
# By default the divisor stays R, so step 3 counts half: right if every *example* is to weigh the
# same. With `divide_by_initial_world_size=False` every *step* does.
#
# ## Fewer bytes: communication hooks
#
# A **communication hook** takes the place of a bucket's all_reduce. torch brings some: `fp16_compress_hook`
# sends float16; PowerSGD (Vogels et al. 2019, arXiv 1905.13727) sends a matrix of gradients as a product of
# two thin ones, and adds what it left out to the next step's gradient. Our model is lesson 07's reader. **Now you write** one for bfloat16: `bucket.buffer()` is the flat tensor;
# return a future, as `dist.all_reduce(..., async_op=True).get_future()` gives, `.then(function)`.
#
# How far off is each in one step, how far the mean of ten? Which sums over four ranks do 16 bits get wrong:
# 4 x 17,500; 1 + 3 x 0.001; 4 x 1e-8?

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
# Twelve steps each. fp16 brings half. PowerSGD, here with products of rank 4, sends its first
# two steps whole, then a fraction. It is far off *in one step*, but what was left out comes later: the mean of ten steps
# is three times nearer.
# float16 makes `inf` of a sum above 65,504 and 0 of four 1e-8; bfloat16 keeps the range, but has 8 bits: 70,000 becomes
# 70,144, and 3 x 0.001 vanish beside 1. So sums in 16 bits have a price. (fp16's hook divides by R *before* the sum,
# for that reason.)
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
# A contrastive loss holds each image against the texts of **all** ranks. `all_gather` brings them, as
# constants: nothing flows back through it. Three ways: constants; the rank's own texts put back; own texts and
# images put back, and on each rank the loss of *all* images. Which has the gradient of one process?

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
# Nothing is raised, and the loss is right, in all three. A rank's rows stand in the losses of *all* images, and only the
# third way asks those; the factor R takes DDP's mean back.
#
# ## Your turn
#
# [Exercises 08](../exercises/08_from_loops_to_ddp.ipynb): buckets of your own, in the right order; an overlap that
# keeps within a budget of time; one all_reduce for many micro-batches; uneven batches that count right.
# [Lesson 15](15_frameworks.ipynb): what Lightning, Fabric and accelerate put around DDP.
#
# ## Exit ticket
#
# 1. After a `loss.backward()` with DDP rank 0 prints its loss. Of which examples?
# 2. You give the same DataLoader to DDP on 8 ranks. What is different from one rank?
# 3. A model has one layer of 400 MB, which backward reaches first, and small ones. What do 25 MiB buckets
#    do to it?
# 4. Backward takes 80 ms, forward 40, the buckets together 60. Best step without and with overlap?
# 5. Why must buckets start in the same order on every rank, and why does nobody notice if equal ones do not?
#
# <details><summary>Answers</summary>
#
# 1. Of its own shard.
# 2. Nothing but the cost: all ranks see the same examples, and the mean of equal gradients is that gradient.
# 3. It is a bucket alone. It starts early, and all other buckets wait behind it.
# 4. 180 ms; a little above 120, as the last bucket cannot be hidden.
# 5. Collectives meet in the order of posting. Same kind, same size: nothing tells them apart.
#
# </details>
#
# **Next:** [lesson 09](09_when_does_it_pay.ipynb): when is all this worth it?
#
# ## One process that controls everything: DataParallel
#
# <details><summary>Appendix A, what its two programs show</summary>
#
# `nn.DataParallel(model)` is one line, needs no launcher, and uses all GPUs of **one** computer, by one process with one
# thread per GPU. Its steps by hand: `scatter` cuts the batch, `replicate` copies the weights, `parallel_apply`
# runs the copies (ours in turn), `gather` joins the outputs; then **one** loss. The gradient is right, the count of calls is
# 0: **replicas die after backward**, each having counted to 1. What is copied from one weight four times gets the **sum** of
# four gradients, each of a part of one loss. DDP has R losses, each a mean of its own, and takes the **mean** (lesson 06).
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
# Modelled GPUs hang on a bus of 12 GB/s (PCIe's order). Device 0 deals out inputs **and all weights**, collects
# outputs, deals out their gradients, collects gradients: on 4 devices $2(R-1) = 6$ times 1.7 MB pass its link at
# every step. DDP's ranks keep their weights; each sends and receives $2\frac{R-1}{R} = 1.5$ gradients. With
# every device DataParallel's step gets longer by about the same amount, DDP's only by some latencies.
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
# The script of the kind that the lecture gives (DTU's MLOps course): an address where the ranks meet
# (`MASTER_ADDR`, `MASTER_PORT`: rank 0 listens there), `init_process_group`, DDP, a training step,
# `destroy_process_group`. `mp.spawn` within the script sets nothing and calls `train(rank, 2)`: you choose the address. `torchrun`
# sets everything; `LOCAL_RANK` is the rank's number on its node, that is, its GPU.
# `mpiexec` (MPICH's)
# knows nothing of torch and sets `PMI_RANK` and `PMI_SIZE`.
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
# Somebody else may have a fixed port. So we draw one, and where a launcher fails, try
# again.

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
