# %% [markdown]
# # 17 Capstone: plan a training run
#
# Somebody gives you a model, a number of tokens, devices with some memory, a network, and hours. What do
# you do with it all, and what will it cost? Everything for the answer is in lessons 05 to 14. Here you
# put it together (80 minutes, and what you plan yourself; after lessons 10 to 14), in this order:
#
# - **memory** of a rank, by the ledger (lesson 10), with sharding (12),
# - **time of a step**, by the cost model (05, 09, 11, 12),
# - the best **dp x tp x pp** among those that fit,
# - how often to save a **checkpoint** (14), the hours of the whole run, and its cost,
# - and then you try to prove yourself wrong: with real code on 2 x 2 x 2 = 8 simulated ranks, on real
#   processes, with 4,096 ranks, and against runs that others have published.
#
# A plan is a prediction that somebody pays for. So each number gets a measurement that tests it, and a
# miss gets a reason.

# %%
import dataclasses
import functools
import itertools
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import simlib
from simlib import Cluster, Device, Link, labs, scale
from simlib.draw import draw_predictions, save_report
from simlib.labs.plan_model import plan_of


def layer(x, qkv, out, up, down, head):
    h, heads = F.layer_norm(x, x.shape[-1:]), (3, -1, head)
    q, k, v = F.linear(h, qkv).unflatten(-1, heads).permute(2, 0, 3, 1, 4)
    h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    x = x + F.linear(h, out)
    return x + F.linear(F.gelu(F.linear(F.layer_norm(x, x.shape[-1:]), up)), down)


# %% [markdown]
# ## Three jobs
#
# A **lab** of 8 laptops on Gigabit Ethernet fine-tunes GPT-2 medium. **64 GPUs on Ethernet**, four in
# each of 16 nodes with a 10 Gbit/s card for each GPU, train BERT-Large. **1,024 GPUs**, eight in a node with
# NVLink, train GPT-3. Shapes are those of the published models; prices, hours and how often things
# fail are *assumed*: put your own there. So is what a device reaches, and it will matter: a laptop 0.4 Tflop/s, a
# V100 39 (measured for the paper of lesson 12), an A100 *half* of the 312 of its data sheet.

# %%
YEAR_S = 365 * 86_400
LAPTOPS = Cluster(8, 1, Link(50e-6, 1e9 / 8), device=Device(0.4e12, 6e9))
V100 = Device(39e12, 16e9)
ETHERNET = Cluster(16, 4, Link(30e-6, 10e9 / 8), Link(5e-6, 10e9), V100, rails=4)
NVLINK = Cluster(128, 8, Link(2e-6, 25e9), Link(5e-6, 300e9), Device(312e12 / 2, 80e9), rails=8)
medium = {"layers": 24, "hidden": 1024, "heads": 16}
laptops = labs.Training(
    **medium, sequence=1024, batch=64, vocabulary=50_257, tokens=10e6, ranks=8, cluster=LAPTOPS,
    hours=4, price=0.02, mtbf_s=YEAR_S / 50, checkpoint_Bps=100e6, restart_s=600,
)  # fmt: skip
ethernet = labs.Training(
    **medium, sequence=128, batch=1024, vocabulary=30_522, tokens=4e9, ranks=64, cluster=ETHERNET,
    hours=4, price=2, mtbf_s=YEAR_S / 2, checkpoint_Bps=1e9, restart_s=300,
)  # fmt: skip
nvlink = labs.Training(
    layers=96, hidden=12_288, heads=96, sequence=2048, batch=1536, vocabulary=51_200, tokens=300e9,
    ranks=1024, cluster=NVLINK, hours=40 * 24, price=2, mtbf_s=2 * YEAR_S, checkpoint_Bps=50e9,
    restart_s=600,
)  # fmt: skip
JOBS = {"8 laptops": laptops, "64 GPUs on Ethernet": ethernet, "1,024 GPUs": nvlink}

# %% [markdown]
# ## 1. Memory
#
# l layers of width h, a vocabulary of V and sequences of s tokens have
# $P = 12\,l h^2 + 13\,l h + (V + s)\,h$ parameters. In mixed precision each takes 2 + 2 + 12 bytes: itself,
# its gradient, Adam with the master copy. tp and pp divide all of it; ZeRO divides the 12 by dp, too (stage 1), then the
# gradients (2), then the parameters (3).
#
# **Now you write it:** bytes of parameters, gradients and Adam on a rank. Then guess: which of the three jobs
# fits a device with dp alone, without ZeRO? With stage 1? The next table tells.


# %%
def state_bytes(P, dp, tp, pp, zero):
    return None  # your formula


guess = None  # "8 laptops", ...
for zero, GB in enumerate((64, 28, 22, 16)):  # 8 billion parameters, dp 4, tp 2, pp 1
    found = state_bytes(8e9, 4, 2, 1, zero)
    if found is not None:
        verdict = "right" if abs(found / (GB * 1e9) - 1) < 1e-9 else f"wrong, it is {GB}"
        print(f"stage {zero}: {found / 1e9:g} GB, {verdict}")

# %% [markdown]
# <details><summary>The formula</summary>
#
# `P / (tp * pp) * (2 / (dp if zero >= 3 else 1) + 2 / (dp if zero >= 2 else 1) + 12 / (dp if zero >= 1 else 1))`
#
# </details>
#
# **Activations**, by Korthikanti et al. 2022 (arXiv 2205.05198): a layer keeps $s\,b\,h\,(10 + 24/t +
# 5 a s / (h t))$ bytes for b sequences and a heads, on t = tp ranks. Computed again in backward, it keeps its
# input only, $2\,s\,b\,h$, and one layer at a time has all. Of a pipeline's micro-batches, at
# most pp are in flight on rank 0 (lesson 11).


# %%
def kept_bytes(job, tp, pp, n=1, zero=0, again=True):
    """Bytes on rank 0 of micro-batches of n; 0: without activations. `again`: they are not kept."""
    dp, P = job.ranks // (tp * pp), job.model.parameters / (tp * pp)
    state = P * (2 / (dp if zero > 2 else 1) + 2 / (dp if zero > 1 else 1))
    state += P * 12 / (dp if zero else 1)
    if n == 0:
        return state
    s, h = job.sequence, job.hidden
    layer = s * n * h * (10 + 24 / tp + 5 * job.heads * s / (h * tp))
    layers = min(pp, job.batch // (dp * n)) * job.layers // pp  # micro-batches in flight times mine
    return state + (layers * 2 * s * n * h + layer if again else layers * layer)


for name, job in JOBS.items():
    sizes = ", ".join(f"{kept_bytes(job, 1, 1, 0, zero) / 1e9:.3g}" for zero in (0, 1, 2, 3))
    print(f"{name}: {job.model.parameters / 1e9:.3g} billion parameters; dp alone, ZeRO", end=" ")
    print(f"0 to 3: {sizes} of {job.cluster.device.memory_bytes / 1e9:.0f} GB, and activations")
for cut in ((1, 1), (8, 1), (8, 8), (8, 16)):
    sizes = [kept_bytes(nvlink, *cut, again=again) / 1e9 for again in (True, False)]
    print(f"GPT-3, tp {cut[0]} x pp {cut[1]}: {sizes[0]:,.1f} GB; kept: {sizes[1]:,.1f} GB")

# %% [markdown]
# The laptops have no room left beside 5.68 of 6 GB, unless activations are computed again. BERT-Large fits.
# GPT-3's state fits with stage 3 alone, but its batch does not: 1,536 sequences cannot be divided among 1,024 replicas. So it
# has to be cut.
#
# ## 2. The time of a step
#
# It has five parts. **Compute**: $24\,s h^2 + 4\,s^2 h$ operations for a layer's forward of one sequence,
# $2\,s h V$ for the logits; backward is twice that, and computing again once more. **tp**: two
# all_reduces per layer forward, two backward, and two more if forward is repeated, of $2\,n s h$ bytes. **Bubble** and **messages** of the
# pipeline: 1F1B, in closed form (`scale.even_pipeline_time`). **dp**: one all_reduce of a rank's
# gradients.
#
# Ranks are numbered with tp innermost, then dp, then pp (lesson 12). So neighbours along dp are tp apart, along pp tp x
# dp. `seconds` asks the cost model how long a collective along an axis takes where those ranks lie.


# %%
@functools.cache
def seconds(kind, nbytes, size, stride, cluster):
    """Of a ring collective (or one message) of ranks `stride` apart; bytes are rounded."""
    if size == 1:
        return 0.0
    on = [k * stride // cluster.ranks_per_node for k in range(size)]
    name = {node: number for number, node in enumerate(dict.fromkeys(on))}
    part = dataclasses.replace(cluster, nodes=len(name))
    places, even = [name[node] for node in on], max(1, round(nbytes / (2 * size))) * 2 * size
    algorithm = "binomial" if kind == "broadcast" else "ring"
    return scale.time_of(kind, size, even, part, algorithm, placement=places, itemsize=2)


def dp_seconds(job, tp, pp, M, zero):
    """Of the gradients' reduction; from stage 2 on after each of M micro-batches (lesson 12)."""
    dp, nbytes = job.ranks // (tp * pp), 2 * job.model.parameters / (tp * pp)
    if not zero:
        return seconds("all_reduce", nbytes, dp, tp, job.cluster)
    scatter = seconds("reduce_scatter", nbytes, dp, tp, job.cluster)
    gather = seconds("all_gather", nbytes, dp, tp, job.cluster)
    return (M if zero > 1 else 1) * scatter + (2 * M if zero == 3 else 1) * gather


# %% [markdown]
# The step is then a sum. (Nothing overlaps but what 1F1B overlaps: lesson 08 can hide dp's part behind backward, so this is
# a bound from above.) **Predict:** GPT-3 on 1,024 GPUs, tp 8 x pp 16, one sequence at a time: which part
# is the largest after compute?


# %%
def step_parts(job, tp, pp, n=1, zero=0, again=True):
    """Seconds of a step by part; None where the model cannot be cut so."""
    s, h, dp, most = job.sequence, job.hidden, job.ranks // (tp * pp), job.ranks
    if tp * pp > most or job.heads % tp or job.layers % pp or job.batch % (dp * n):
        return None
    M, message = job.batch // (dp * n), 2 * n * s * h
    in_layers = job.layers * (24 * s * h**2 + 4 * s**2 * h)
    once = n / (tp * pp * job.cluster.device.flops_per_s)  # seconds per operation of a sequence
    f = once * (in_layers + 2 * s * h * job.vocabulary)
    b = 2 * f + again * once * in_layers
    sums = 2 * job.layers // pp * seconds("all_reduce", message, tp, 1, job.cluster)
    hop = seconds("broadcast", message, min(pp, 2), (pp - 1) * tp * dp, job.cluster)
    times = {"forward_s": f + sums, "backward_s": b + (1 + again) * sums}
    free = scale.even_pipeline_time(pp, M, **times)
    piped = scale.even_pipeline_time(pp, M, **times, message_s=hop)
    parts = {"compute": M * (f + b), "tp": M * (2 + again) * sums}
    bubble = free - sum(parts.values())
    return parts | {"bubble": bubble, "pp": piped - free, "dp": dp_seconds(job, tp, pp, M, zero)}


guess = None  # tp, bubble, pp or dp?
for name, cut in zip(JOBS, ((1, 8), (1, 1), (8, 16)), strict=True):
    parts = step_parts(JOBS[name], *cut)
    said = ", ".join(f"{part} {value:.3g}" for part, value in parts.items())
    print(f"{name}, tp {cut[0]} x pp {cut[1]}: {sum(parts.values()):.3g} s = {said}")


# %%
def stage_alone(rank, world_size, job, tp, pp, stage):
    h, s, is_last, kept = job.hidden, job.sequence, stage == pp - 1, []
    shapes = [(3 * h // tp, h), (h, h // tp), (4 * h // tp, h), (h, 4 * h // tp)]
    shapes = shapes * (job.layers // pp) + [(job.vocabulary // tp, h)] * (not stage or is_last)
    w = [nn.Parameter(torch.empty(shape, dtype=torch.bfloat16)) for shape in shapes]
    adam = [torch.empty(3, *shape) for shape in shapes]  # and the master copies
    simlib.hold(adam, "optimizer state")
    tokens, blank = torch.zeros(1, s, dtype=torch.long), torch.zeros(1, s, h).bfloat16()
    for _ in range(min(pp - stage, job.batch * tp * pp // job.ranks)):
        x = blank.clone().requires_grad_() if stage else F.embedding(tokens, w[-1])
        for k in range(0, len(shapes) - 1, 4):
            x = checkpoint(layer, x, *w[k : k + 4], h // job.heads, use_reentrant=False)
        kept.append(F.cross_entropy(F.linear(x[0], w[-1]).float(), tokens[0]) if is_last else x)
    return len([y.backward(None if is_last else blank) for y in kept])


guess = None  # 0, 1 or the last: on which stage do the formulas miss most?
CUTS = {"64 GPUs on Ethernet": (1, 8), "1,024 GPUs": (8, 16)}
for name, k in itertools.product(CUTS, (0, 1, -1)):
    job, (tp, pp) = JOBS[name], CUTS[name]
    run = simlib.simulate(stage_alone, 1, (job, tp, pp, k % pp), cluster=job.cluster, data=False)
    plan_s = step_parts(job, tp, pp)["compute"] * job.ranks / (job.batch * tp * pp)
    print(f"{name}, stage {k % pp}: {kept_bytes(job, tp, pp) / 1e9:.2f} GB, {plan_s:.3g} s", end="")
    print(f"; code: {run.memory[0].peak_bytes / 1e9:.2f}, {run.time_s / run.results[0]:.3g}")

# %% [markdown]
# tp, by a hair: 2.51 s, where the bubble takes 2.40.
#
# The second cell asked real code. `stage_alone` is one rank of a stage, in plain torch; with `data=False` its
# tensors have their true sizes and no values. On GPT-3's stage 1 the formula of memory is right to 0.2 %. But the
# first stage also holds the embedding, and the last one the weights of the logits: of BERT they are 40 % of what such a
# stage holds. The last stage computes all logits, so BERT's takes 1.4 times as long as the formula says. A
# pipeline goes at the pace of its slowest stage (lesson 11). The formulas spread both evenly, so they are too good
# for plans with pp; real plans give the first and last stage fewer layers.
#
# ## 3. The best cut
#
# There are hundreds of ways to cut, and memory rules out many. Trying them all takes a second: that is why one
# plans with a model. First your guess for each job: is tp used? pp? Is plain dp, the default of every
# tutorial, the best of the 64 GPUs' plans? (Activations are computed again, or kept: both are tried.)

# %%
guess = None  # (dp, tp, pp) for each
POWERS, MICRO = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16)


def plans(job):
    """All that can be cut and fit: (seconds, tp, pp, n, zero, again), the fastest first."""
    found = []
    for choice in itertools.product(POWERS, POWERS, MICRO, (0, 1, 2, 3), (False, True)):
        parts = step_parts(job, *choice)
        if parts and kept_bytes(job, *choice) <= job.cluster.device.memory_bytes:
            found.append((sum(parts.values()), *choice))
    return sorted(found)


def lean(job, found):
    """Of the plans within 0.1 % of the fastest: the one that needs the least memory."""
    near = [plan for plan in found if plan[0] <= 1.001 * found[0][0]]
    return min(near, key=lambda plan: kept_bytes(job, *plan[1:]))


def told(job, plan):
    time_s, tp, pp, n, zero, again = plan
    words = f"dp {job.ranks // (tp * pp)} x tp {tp} x pp {pp}, {n} at once, ZeRO {zero}"
    size = f"{kept_bytes(job, *plan[1:]) / 1e9:.3g} GB"
    return f"{words}{', computed again' * again}: {time_s:.4g} s, {size}"


# %%
BEST = {}
for name, job in JOBS.items():
    found = plans(job)
    dp_alone = [plan for plan in found if plan[1:3] == (1, 1)]
    BEST[name] = lean(job, found)
    print(f"{name}: {len(found)} plans; the fastest: {told(job, found[0])}")
    print("    lean:    ", told(job, BEST[name]))
    print("    dp alone:", told(job, dp_alone[0]) if dp_alone else "none")
for again in (False, True):
    time_s = sum(step_parts(nvlink, 8, 16, zero=1, again=again).values())
    layers = kept_bytes(nvlink, 8, 16, 1, 1, again) - kept_bytes(nvlink, 8, 16, 0, 1)
    print(f"computed again: {again}; {time_s:.2f} s, activations {layers / 1e9:.2f} GB")
apart = []
for choice in itertools.product(POWERS, POWERS, MICRO, (0, 1, 2, 3), (False, True)):
    parts, theirs = step_parts(ethernet, *choice), plan_of(ethernet, *choice, 3600)
    if parts:
        apart.append(abs(sum(parts.values()) / theirs.step.time_s - 1))
        apart.append(abs(kept_bytes(ethernet, *choice) / theirs.step.nbytes - 1))
print(f"{len(apart)} numbers, differences below 1e-12: {max(apart) < 1e-12}")

# %% [markdown]
# GPT-3's fastest plan needs 79.4 of 80 GB, by formulas that know of no buffers, no fragments and no CUDA context:
# that is no plan. A lean one has 11 GB to spare and is 0.05 % slower. (ZeRO 1 sends what ZeRO 0 sends:
# where it is a tie, take it.)
#
# On Ethernet the tutorial's way takes four times as long: all 0.33 billion gradients go through a 10
# Gbit/s link, while a pipeline sends small activations between the nodes, and each of its dp groups
# sums an eighth of the gradients. The laptops compute for a minute a step, so they hardly care. GPT-3
# takes tp = 8: all of a node, and no more.
#
# **A lab:** the same formulas behind sliders, for all three jobs. Turn pp up for the 64 GPUs: which bar
# shrinks, which grows? On 1,024 GPUs, put tp at 16: what happens, and why there? Compute activations again: what
# does it buy, what does it cost? Find a checkpoint interval that is too long, and one that is too short.

# %%
labs.draw_plan(nvlink, tp=8, pp=16, zero=1, minutes=45)

# %% tags=["nbval-ignore-output"]
labs.plan_lab(dict(reversed(JOBS.items())), tp=8, pp=16, zero=1, minutes=45)

# %% [markdown]
# What you should have seen: tp = 16 reaches over two nodes, and its all_reduces take longer than the
# computing. Computing again leaves a tenth of the activations' bytes and takes a third more time: forward is
# a third of the compute, and its all_reduces are sent again, too. The fastest plans keep activations.
# Your formulas are the lab's: the cell above it asked both for every cut of the Ethernet job.
#
# ## 4. Checkpoints, hours, cost
#
# A checkpoint has 14 bytes for each parameter. One rank fails once in M seconds, so R of them once in M / R (lesson 14). Save
# too often, and time goes into saving; too rarely, and it goes into work that is lost.
#
# **Now you write it:** Young's interval from C (seconds of a checkpoint), M and R. Then guess: what
# share of its time does GPT-3's run lose, in all? And with intervals ten times too short, ten times too
# long?


# %%
def young_s(C, M, R):
    return None  # your formula


guess = None  # per cent
for name, job in JOBS.items():
    work_s = job.steps * BEST[name][0]
    machine = 14 * job.model.parameters / job.checkpoint_Bps, job.mtbf_s, job.ranks
    best_s = scale.checkpoint_interval(*machine, formula="exact")
    whole_s = [
        scale.time_with_failures(work_s, each * best_s, *machine, restart_s=job.restart_s)
        for each in (0.1, 1, 10)
    ]
    lost = ", ".join(f"{1 - work_s / each:.1%}" for each in whole_s)
    mine, young = young_s(*machine), scale.checkpoint_interval(*machine, formula="young")
    if mine is not None:
        print("yours:", "right" if abs(mine / young - 1) < 1e-6 else f"{mine:.0f} s is wrong")
    print(f"{name}: every {best_s / 60:.3g} min: lost (/10, x 1, x 10): {lost}")
    cost = job.price * job.ranks * whole_s[1] / 3600
    print(
        f"    {job.steps:,} steps, {whole_s[1] / 3600:.4g} of {job.hours} hours, cost {cost:,.3g}"
    )

# %% [markdown]
# <details><summary>The formula</summary>
#
# `(2 * C * M / R) ** 0.5`. It gives 40.9 min for GPT-3; the exact one, 40.4.
#
# </details>
#
# At its best GPT-3's run loses 5 % of its time, with intervals ten times off nearly a fifth, either way. The
# laptops lose as much: each of them fails once in a week. (Ten times their interval is 7.7 hours, and
# their run takes 2.5: they never save, and with some luck need not.) That is the plan. Now try to prove it wrong.
#
# ## 5. Real code on 2 x 2 x 2 ranks
#
# A transformer small enough for this machine, cut three ways at once: a mesh of pp x dp x tp, lesson 12's
# Enter and Leave along tp, lesson 11's 1F1B along pp, one flat all_reduce along dp. Real tensors and
# real gradients; a modelled cluster of 4 nodes with 2 ranks, each 10 Gflop/s.


# %%
L, S, H, HEADS, N = 4, 32, 64, 4, 2  # layers, tokens, width, heads, sequences at once
AXIS = {"q": 0, "k": 0, "v": 0, "out": 1, "up": 0, "down": 1}  # columns: 0, rows: 1


class Leave(torch.autograd.Function):  # a sum forward, nothing backward
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Enter(torch.autograd.Function):  # nothing forward, a sum backward
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return Leave.forward(ctx, gradient, ctx.group), None


# %%
class Block(nn.Module):
    """A transformer block: this rank's heads, and its part of the MLP."""

    def __init__(self, number, part, parts, group):
        super().__init__()
        torch.manual_seed(number)
        shapes = {name: (H, H) for name in AXIS} | {"up": (4 * H, H), "down": (H, 4 * H)}
        whole = {name: torch.randn(shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
        mine = {name: whole[name].chunk(parts, AXIS[name])[part].clone() for name in AXIS}
        self.w, self.group = nn.ParameterDict(mine), group

    def forward(self, x):
        w, head = self.w, (-1, H // HEADS)
        h = Enter.apply(F.layer_norm(x, [H]), self.group)
        q, k, v = (F.linear(h, w[name]).unflatten(-1, head).transpose(1, 2) for name in "qkv")
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + Leave.apply(F.linear(h, w["out"]), self.group)
        h = Enter.apply(F.layer_norm(x, [H]), self.group)
        return x + Leave.apply(F.linear(F.gelu(F.linear(h, w["up"])), w["down"]), self.group)


# %% [markdown]
# A stage goes through its words of 1F1B. `axes` has the sizes, outermost first. A rank knows its place by
# `mesh.get_coordinate()`. The step ends when the gradients of all replicas are summed; every loss
# was divided by the number of examples, so that sum is the gradient. A rank posts a receive when it needs the
# tensor, or (`early`) all of them when the step begins.


# %%
def words_of(stage, K, M):
    """1F1B: K - stage - 1 forwards ahead, then one forward and one backward by turns."""
    ahead = min(M, K - stage - 1)
    words = [("F", i) for i in range(ahead)]
    words += [word for i in range(M - ahead) for word in (("F", ahead + i), ("B", i))]
    return words + [("B", i) for i in range(M - ahead, M)]


def examples(replica, i, M):
    torch.manual_seed(1000 + replica * M + i)
    return torch.randn(N, S, H)


def stage_of(mesh, axes):
    at = {name: mesh[name].get_local_rank() for name in axes}
    each, group = L // axes["pp"], mesh["tp"].get_group()
    mine = range(at["pp"] * each, (at["pp"] + 1) * each)
    return at, nn.Sequential(*(Block(number, at["tp"], axes["tp"], group) for number in mine))


def posted(at, K, group, kind, i):
    src, into = at["pp"] + (-1 if kind == "F" else 1), torch.empty(N, S, H)
    return 0 <= src < K and (into, dist.irecv(into, group=group, group_src=src))


# %%
def train_step(rank, world_size, axes, M, early=False):
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    at, stage = stage_of(mesh, axes)
    group, K, kept, sent = mesh["pp"].get_group(), axes["pp"], {}, []
    dist.barrier()
    words, begin_s = words_of(at["pp"], K, M), time.perf_counter()  # virtual, in simulate
    inbox = {word: posted(at, K, group, *word) for word in words if early}
    for kind, i in words:
        got = inbox.get((kind, i)) or posted(at, K, group, kind, i)
        came = got[0] if got and got[1].wait() else None
        with simlib.span(kind, micro=i):
            if kind == "F":
                x = examples(at["dp"], i, M) if came is None else came.requires_grad_()
                y = stage(x)
                kept[i] = x, y if at["pp"] < K - 1 else y.square().sum() / (N * M * axes["dp"])
            else:
                x, y = kept.pop(i)
                y.backward(came)
        dst = at["pp"] + (1 if kind == "F" else -1)
        if 0 <= dst < K:
            out = y.detach() if kind == "F" else x.grad
            sent.append(dist.isend(out, group=group, group_dst=dst))
    flat = torch.cat([p.grad.flatten() for p in stage.parameters()])
    dist.all_reduce(flat, group=mesh["dp"].get_group())
    return time.perf_counter() - begin_s, flat, [work.wait() for work in sent]


# %% [markdown]
# First: is it right? The sum of all gradients' squares must be that of one process. Every number
# lies on exactly one tp x pp rank of each replica. Then the time, predicted term by term: each line takes one more
# part into account. **Guess:** which line, after the first, takes the most of the miss away?

# %%
guess = None  # bubble, tp, messages or dp?
SMALL = Cluster(4, 2, Link(30e-6, 1.25e9), Link(5e-6, 12.5e9), Device(1e10), rails=2)
TWO, RING = {"pp": 2, "dp": 2, "tp": 2}, {"all_reduce": "ring"}
one = simlib.simulate(train_step, 1, ({"pp": 1, "dp": 1, "tp": 1}, 8), cluster=SMALL)
small = simlib.simulate(train_step, 8, (TWO, 4), cluster=SMALL, **RING)
square = [flat.double().square().sum().item() for _, flat, _ in small.results]
ratio = sum(square) / 2 / one.results[0][1].double().square().sum().item()
print(f"squares of all gradients, over those of one process: {ratio:.6f}")

measured_s, M, K = max(time_s for time_s, *_ in small.results), 4, 2
f = L * N * (24 * S * H**2 + 4 * S**2 * H) / (2 * 2) / 1e10
sums = 2 * (L // 2) * seconds("all_reduce", 4 * N * S * H, 2, 1, SMALL)
hop = seconds("broadcast", 4 * N * S * H, 2, 4, SMALL)
terms = {"compute": M * 3 * f, "and the bubble": (M + K - 1) * 3 * f}
terms["and tp"] = (M + K - 1) * (3 * f + 2 * sums)
times = {"forward_s": f + sums, "backward_s": 2 * f + sums}
terms["and messages"] = scale.even_pipeline_time(K, M, **times, message_s=hop)
grads = seconds("all_reduce", 4 * 12 * H**2 * L / (2 * 2), 2, 2, SMALL)
terms["and dp"] = predicted_s = terms["and messages"] + grads
for name, value in terms.items():
    print(f"{name:14} {value * 1e3:7.3f} ms, miss {value / measured_s - 1:+.1%}")

# %% [markdown]
# The bubble. And the last line is within 1 %. Is that luck? A sum can be right because two parts are wrong. **Which measurement tests
# which term?**
#
# | term | measured by | lesson |
# |---|---|---|
# | compute | forward and backward of one stage, alone, in the shapes that it will have | 09, 11 |
# | tp, dp | one collective of those bytes, among those ranks | 05 |
# | messages | a ping-pong of neighbours along pp | 02 |
# | bubble | the gaps between pieces, `run.bubble()` | 11 |
# | memory | `run.memory`, or what the device says | 10 |
# | failures | the log of the cluster, over months | 14 |
#
# Here one trace has nearly all of them: a piece is compute and tp, an all_reduce of 197 kB is dp.


# %%
def miss(value, found):
    return f"{round(100 * (value / found - 1), 2) + 0:+.2f} %"  # + 0: never -0.00


pieces, rows = small.trace.pieces, {}
for kind, value in {"F": f + sums, "B": 2 * f + sums}.items():
    for stage in (0, 1):
        lengths = [p.end_s - p.start_s for p in pieces if p.name == kind and p.rank // 4 == stage]
        rows[f"{kind} on stage {stage}"] = value, sum(lengths) / len(lengths)
at = [sorted((p for p in pieces if p.rank == r), key=lambda p: p.start_s) for r in (0, 4)]
path = [at[0][0], *at[1], at[0][-1]]  # F0 on stage 0, all of stage 1, the last B on stage 0
waits = [after.start_s - before.end_s for before, after in itertools.pairwise(path)]
print("waits for messages, us:", *(f"{1e6 * wait:.1f}" for wait in waits if wait > 1e-9))
rows["messages"] = 4 * hop, sum(waits)
calls = [op for op in small.trace.of_rank(0) if op.kind == "all_reduce"]
rows["all_reduce of tp"] = sums / 4, calls[0].end_s - calls[0].post_s
rows["all_reduce of dp"] = grads, max(op.end_s for op in calls) - calls[-1].post_s
rows["the step"] = predicted_s, measured_s
for name, (value, found) in rows.items():
    print(f"{name:17} {value * 1e3:.4f} ms, measured {found * 1e3:.4f}: {miss(value, found)}")
kept = 2 * K * (L // K) * S * N * H * (10 + 24 / 2 + 5 * HEADS * S / (H * 2))  # two in flight
for role, value in {"parameters": 12 * H**2 * L, "activations and temporaries": kept}.items():
    found = small.memory[0].peak[role]
    print(f"{role} {value:,.0f} bytes, measured {found:,}: {miss(value, found)}")
small.timeline(width=7.9)

# %% [markdown]
# So it *was* luck, in part: misses of opposite sign.
#
# - Backward on stage 1 takes longer: torch's attention computes its scores again there, so it has five
#   matrix products for forward's two: 2.5 times as many, not 2. Four of these are in a row: 0.105 ms.
# - Backward on stage 0 takes less: its input is data and needs no gradient. Three products, and one
#   all_reduce of Enter, never happen. One is in the row: -0.064 ms.
# - **Messages** are the largest part of the miss, 0.061 of 0.102 ms: five waits where `even_pipeline_time` counts four, and the last
#   one is longer: stage 1 has begun to sum its gradients, on the same cards.
#
# Four or five? It depends on when receives are posted, and on the order of work (K stages, N = M + K - 2):
#
# | | receives posted when needed | all posted early |
# |---|---|---|
# | GPipe | 2 N (lesson 11, exercise 3) | 2 (K - 1) |
# | 1F1B | M + 1 on 2 stages, else 2 N - 1 | 2 (N - floor(N / K)): `even_pipeline_time` |
#
# Our program posts when needed: F1 arrives at stage 1 during B0 and is not let in. (In memory, parameters are exact. The formula of activations
# keeps attention's scores and dropout's masks; this program has neither, but results on their way.)
#
# **Now you write it:** put torch's attention and the missing products into `b_0` and `b_1`.

# %%
b_0 = b_1 = None  # seconds of a backward, without tp's sums: for instance 2 * f + ...
attention = L // 2 * N * 4 * S**2 * H / 2 / 1e10  # forward's, on one rank
inputs = N * 3 * 2 * S * H**2 / 2 / 1e10  # gradients that the first block does not work out
for stage, mine in ((0, b_0), (1, b_1)):
    found = rows[f"B on stage {stage}"][1]
    if mine is not None:
        apart = mine + sums - (stage == 0) * sums / 4 - found
        print(f"b_{stage}:", "right" if abs(apart) < 1e-12 else f"{apart * 1e6:+.1f} us off")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `b_0 = 2 * f + attention / 2 - inputs` and `b_1 = 2 * f + attention / 2`: right to the last digit.
#
# </details>
#
# Now the step once more, with backward as measured. `scale.pipeline_time` follows unequal stages; its
# receives are posted early. So let the program do that, too. And for receives posted when needed: the row of pieces above,
# with five messages. **Guess:** how far off are the two? And a wrong plan: swap the axes, so that tp lies across nodes. Nothing
# else changes, and the program stays right.

# %%
guess = None  # per cent
F_s, B_0, B_1 = (rows[name][1] for name in ("F on stage 0", "B on stage 0", "B on stage 1"))
apart = {"message_bytes": 4 * N * S * H, "placement": [0, 1]}  # a node for each stage
stages = {"forward_s": F_s, "backward_s": [B_0, B_1]} | apart
posted_s = scale.pipeline_time(K, M, SMALL, **stages).time_s + grads
needed_s = F_s + M * (F_s + B_1) + B_0 + (M + 1) * hop + grads
early = simlib.simulate(train_step, 8, (TWO, 4, True), cluster=SMALL, **RING)
early_s = max(time_s for time_s, *_ in early.results)
for name, values in {
    "when needed": (predicted_s, needed_s, measured_s),
    "posted early": (predicted_s, posted_s, early_s),
}.items():
    even, value, found = values
    print(f"{name:12} {found * 1e3:.3f} ms; equal stages: {miss(even, found)},", end=" ")
    print(f"backward as measured: {miss(value, found)}")

swapped = {"tp": 2, "dp": 2, "pp": 2}
wrong = simlib.simulate(train_step, 8, (swapped, 4), cluster=SMALL, **RING)
slower_s = max(time_s for time_s, *_ in wrong.results)
print(f"tp outermost: {slower_s * 1e3:.3f} ms, {slower_s / measured_s - 1:+.0%}")

# %% [markdown]
# What is left of each is the last message, 13 us on a busy card. The wrong plan costs a quarter, and nothing
# else tells of it.
#
# ## 6. Real processes
#
# The same function by `simlib.run`: eight processes of this machine. Their messages say little about
# your cluster, their computing does: `replay` keeps it as measured, and times the messages on another
# network. On a real or a practice cluster (lesson 16) write `simlib.submit(train_step, 8, (TWO, 4),
# to=simlib.Mpiexec(hosts=...)).result()`: that is such a run, too. What will be wrong with the
# plan's 10 Gflop/s?


# %% tags=["nbval-ignore-output"]
def forwards(run):
    """Seconds of each forward, the shortest first."""
    return sorted(p.end_s - p.start_s for p in run.trace.pieces if p.name == "F")


real = simlib.run(train_step, 8, (TWO, 4))
print(f"step on this machine: {max(time_s for time_s, *_ in real.results) * 1e3:.1f} ms")
again = forwards(real.replay(SMALL))
single = forwards(simlib.run(train_step, 1, ({"pp": 1, "dp": 1, "tp": 1}, 8)))
print(
    f"F of the plan: {rows['F on stage 0'][0] * 1e3:.2f} ms; replayed, eight ranks here:", end=" "
)
print(f"{again[0] * 1e3:.2f} to {again[-1] * 1e3:.2f} ms")
print(f"one rank alone, a quarter of its F: {single[4] / 4 * 1e3:.2f} ms")

# %% [markdown]
# Computing is not one number: the first micro-batch warms up, and eight ranks share the cores that there
# are. So *measure* one rank, alone, with the shapes that it will have, before you believe a plan's compute.
#
# ## 7. Up to 4,096 ranks
#
# No machine here runs 4,096 ranks of GPT-3, but the cost model does. The batch stays; each number of ranks gets its own lean plan.
# Which number keeps 40 days for the least money?

# %%
guess = None
for R in (128, 256, 512, 768, 1024, 2048, 4096):
    job = dataclasses.replace(nvlink, ranks=R)
    best = lean(job, plans(job))
    parts, machine = step_parts(job, *best[1:]), (job.checkpoint_s, job.mtbf_s, R)
    every_s = scale.checkpoint_interval(*machine, formula="exact")
    work_s = job.steps * best[0]
    whole_s = scale.time_with_failures(work_s, every_s, *machine, restart_s=job.restart_s)
    cost, bubble = job.price * R * whole_s / 3600, parts["bubble"] / best[0]
    print(f"{R:5,} ranks: {told(job, best)}, bubble {bubble:.0%};")
    print(
        f"{whole_s / 86_400:9.1f} days, {work_s / whole_s:.1%} of them work, {cost / 1e6:.2f} million"
    )

# %% [markdown]
# 768 keep it for the least, with two days to spare: nobody asks for a power of two. 1,024 cost 3 % more and are done nearly nine days
# sooner. More ranks always cost more: with the batch given, each replica has fewer micro-batches, so the
# bubble grows; failures do the rest.
#
# ## 8. Against published runs
#
# **1,024 GPUs.** Megatron-LM's README has GPT-3 on 1,024 A100, tp 8 x pp 16, batch 1,536: some 32 s
# a step. (One sequence at a time, and activations computed again, are assumed.)
#
# **64 GPUs on Ethernet.** Tang et al. 2021 (arXiv 2102.02888; its table is read in notes) profile BERT-Large, 16
# sequences of 128 per GPU, 16 nodes of 4 V100 with 40 Gbit/s Ethernet, in ms: forward 35.71, all_reduce 2,275.43, the rest of backward
# 60.81, update 75.59. With 8 GPUs on 2 nodes, the all_reduce takes 1,897.21.
#
# **8 small machines.** Distributed Llama's README (early 2024) generates tokens by tensor parallelism on 1 to 8 Raspberry Pi 4B on
# Gigabit Ethernet: Llama 2 7B takes 1,312.50, 793.69, 494.00 and 588.19 ms a token, with 0, 1,112, 2,830 and 6,008 kB
# sent; the root computes for 739.00, 458.81 and 297 ms of it on 2, 4 and 8. It is inference: a test of tp's term alone.
#
# (More on the three in [the page of published figures](../docs/published.md).) Predict from data sheets first.

# %%
guess = None  # the three misses; which is the largest?
half = step_parts(nvlink, 8, 16)
whole = dataclasses.replace(NVLINK, device=Device(312e12, 80e9))
sheet = step_parts(dataclasses.replace(nvlink, cluster=whole), 8, 16)
bert = Cluster(16, 4, Link(30e-6, 40e9 / 8), Link(5e-6, 10e9))
nbytes, update = 2 * ethernet.model.parameters, 0.07559
fewer = dataclasses.replace(ethernet, vocabulary=30_522 * 20 // 128)  # as many logits fewer
compute, masked = (step_parts(job, 1, 1, 16, again=False)["compute"] for job in (ethernet, fewer))
published = {
    "GPT-3 8 x 16, data sheet": (sum(sheet.values()), 32),
    "GPT-3 8 x 16, half of it": (sum(half.values()), 32),
    "BERT, compute": (compute, 0.03571 + 0.06081),
    "BERT, logits of 20 of 128": (masked, 0.03571 + 0.06081),
    "BERT, all_reduce, data sheet": (seconds("all_reduce", nbytes, 64, 1, bert), 2.27543),
}
for R, kB, token_s in ((2, 1112, 0.79369), (4, 2830, 0.494), (8, 6008, 0.58819)):
    published[f"{R} Raspberry Pis"] = 1.3125 / R + kB * 1e3 / (1e9 / 8), token_s
for name, (value, found) in published.items():
    print(f"{name:30} {value:7.3f} s, published {found:7.3f}: {value / found - 1:+.0%}")

# %% [markdown]
# Line rates are the widest miss. Take one measurement *of the same term* instead:
# the bandwidth from BERT on 8 GPUs, to predict 16, 32 and 64. And of the Pis, the root's own part of a token
# on 2 and 4, split as a + b / R, to predict it on 1 and 8.

# %%
Bps = 2 * 7 / 8 * nbytes / 1.89721  # a ring of 8 over the link between two nodes
print(f"BERT's link: {Bps * 8 / 1e9:.1f} of 40 Gbit/s")
for R, found in ((16, 2.13324), (32, 2.17335), (64, 2.27543)):
    value = 2 * (R - 1) / R * nbytes / Bps
    print(f"{R} GPUs: all_reduce {value:.3f} s, published {found:.3f}: {value / found - 1:+.1%}")
calibrated = value + 0.03571 + 0.06081 + update, 2.27543 + 0.03571 + 0.06081 + update
print(f"the whole step: {calibrated[0]:.3f}, {calibrated[0] / calibrated[1] - 1:+.1%}")
b = (0.739 - 0.45881) / (1 / 2 - 1 / 4)
a = 0.739 - b / 2
for R, root_s in ((1, 1.3125), (8, 0.297)):
    print(f"a Pi, {a:.3f} + {b:.3f} / R; R = {R}: {miss(a + b / R, root_s)}")
for R, kB, ms in ((2, 1112, 793.69 - 739), (4, 2830, 494 - 458.81), (8, 6008, 588.19 - 297)):
    print(f"network of {R} Pis: {ms:.1f} ms, its bytes need {kB / 125:.1f}")

# %% [markdown]
# Each miss has a reason, or is said to have none:
#
# - **GPT-3**: the share of its data sheet that a GPU reaches is the widest term. A half is a round
#   number, assumed, and 7 % off. One published time cannot tell whether compute or the network is too
#   slow in the model: a single layer, timed on one GPU, could.
# - **BERT, compute**, +11 %: the formula has logits for all tokens; BERT's own code (google-research/bert, README) asks for
#   them at masked ones, at most 20 of 128. With these it is +2 %, if theirs does so, too: the notes do not say. 39
#   Tflop/s is another model's share.
# - **BERT, all_reduce**: a ring got an eighth of this network's line rate (if a gradient takes 2 bytes, as assumed). Measured
#   once, on 2 nodes, that predicts 16 nodes to 6 %, whatever the bytes. The rest (4.7, 3.4, 6.2 %) does not
#   grow evenly with R, as latencies would: **unexplained**.
# - **Raspberry Pis**: the model says "8 is fastest"; measured, 4 is. The root has 0.18 s that nobody
#   takes over (Amdahl, lesson 09): right to 1 % on 1, 7 % too slow on 8, and why is **unexplained**. So is the
#   network: it takes six times what its bytes need on 2 and on 8 devices, and only 1.6 times on 4. The source
#   does not say how many messages that is. The plan would have been *wrong*, not only inexact.
#
# ## 9. A page to keep
#
# `save_report` writes one HTML file: the plan, predicted and measured in a picture, and why they differ.
# It needs no network. Put your own job in.

# %%
job, best = nvlink, BEST["1,024 GPUs"]
machine = job.checkpoint_s, job.mtbf_s, job.ranks
every_s = scale.checkpoint_interval(*machine, formula="exact")
whole_s = scale.time_with_failures(job.steps * best[0], every_s, *machine, restart_s=job.restart_s)
plan = {"job": "GPT-3 on 1,024 GPUs", "cut": told(job, best)}
plan |= {"memory": f"{kept_bytes(job, *best[1:]) / 1e9:.1f} of 80 GB"}
plan |= {"checkpoint every": f"{every_s / 60:.1f} min", "hours that it may take": job.hours}
plan |= {"hours": f"{whole_s / 3600:.1f}", "cost": f"{job.price * job.ranks * whole_s / 3600:,.0f}"}
notes = """GPT-3: the published run is cut tp 8 x pp 16 and computes again. Half of a data sheet is assumed.
2 x 2 x 2, B: torch's attention computes scores again; the first block's input needs no gradient.
2 x 2 x 2, messages: five waits, not four: receives are posted when needed; the last meets an all_reduce.
BERT: logits are asked for at masked tokens only. The link has an eighth of its rate, unexplained.
Raspberry Pis: a part of the root's work is not divided. The network's time is unexplained."""
kept = {f"2 x 2 x 2: {name}": pair for name, pair in rows.items()}
kept |= published | {"BERT, step, link measured": calibrated}
Path("simlib-jobs").mkdir(exist_ok=True)
page = save_report("simlib-jobs/my_plan.html", "A plan", plan, kept, notes.splitlines())
print(page)
draw_predictions(kept)

# %% [markdown]
# ## Your turn
#
# [Exercises 17](../exercises/17_plan_a_training_run.ipynb): where a rank lies in a mesh, a plan as a dictionary of
# numbers, and a program that takes as long as you say.
#
# And how far have you come? In a terminal, in the course's folder, after `. .venv/bin/activate`: `simlib progress` runs the checks of all your exercises and prints one table;
# `simlib progress --certificate certificate.html` writes it as a page. It is for you alone: nothing is sent anywhere.
#
# ## Exit ticket
#
# 1. A model has 10 billion parameters, your 16 GPUs 40 GB each. Name two ways to fit it.
# 2. Why can a pipeline be faster than plain dp on a slow network?
# 3. tp = 16 on nodes of 8: which term explodes?
# 4. You double the ranks and keep the batch. Name two shares that get worse.
# 5. A predicted step is within 1 % of the measured one. Why is that not enough?
# 6. Which one measurement would you pay for before you rent 1,024 GPUs?
#
# <details><summary>Answers</summary>
#
# 1. ZeRO-1: 4 x 10 + 120/16 = 47.5 GB is too much; ZeRO-3: 10 GB, or tp 8: 20 GB, beside activations.
# 2. It sends activations over the slow links, and a dp group sums a pp-th of the gradients.
# 3. The all_reduces of tp: four a layer, over links between nodes.
# 4. The bubble's, and that of failures; communication over dp, too.
# 5. Terms may be wrong in opposite directions. Test each by its own measurement.
# 6. One stage's forward and backward on one GPU, in its real shapes: compute is most of the step.
#
# </details>
#
# **This was the last lesson of the path.** [Lesson 18](18_long_sequences_and_experts.ipynb) goes beyond.
