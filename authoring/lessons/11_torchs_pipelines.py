# %% [markdown]
# # 11 Torch's pipelines
#
# This is the third part of lesson 11. Take [the first](11_pipelines.ipynb) and [the
# second](11_schedules.ipynb) before it. There you built a pipeline and its schedules. In this part (60
# minutes) you will
#
# - compare your pipeline with torch's `Schedule1F1B`, and see which extra memory torch needs,
# - write **recomputation**, which saves memory and costs time,
# - cut a backward in two parts, and see what **zero-bubble** schedules do with them,
# - find out why the stages of a pipeline are placed on *different* nodes.
#
# The next cells have the programs of the first two parts. Here each rank has one stage.

# %%
import math
import time

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.utils.checkpoint import checkpoint

import simlib

SHAPE = (2, 16, 32)  # a micro-batch: 2 examples, 16 tokens, width 32
SLOW = simlib.Device(flops_per_s=851_968e3)  # a block's forward has 851,968 flops
cluster = simlib.Cluster(4, 1, inter=simlib.Link(0, math.inf), device=SLOW)


def one_f_one_b(K, M):
    plans = []
    for rank in range(K):
        forward, ahead = [f"F{micro}" for micro in range(M)], min(M, K - rank)
        words = forward[:ahead]
        for micro in range(M):
            words += [f"B{micro}", *forward[ahead + micro : ahead + micro + 1]]
        plans.append(" ".join(words))
    return plans


# %%
def together(outgoing, incoming):
    ops = [dist.P2POp(dist.isend, *outgoing)] if outgoing else []
    ops += [dist.P2POp(dist.irecv, *incoming)] if incoming else []
    for request in dist.batch_isend_irecv(ops) if ops else []:
        request.wait()


def pipeline(rank, world_size, words, net, x_of, loss_of, shape):
    last, kept, outgoing = world_size - 1, {}, None
    for word in words.split():
        kind, micro, step = word[0], int(word[1:]), 1 if word[0] == "F" else -1
        incoming = (torch.empty(shape), rank - step) if 0 <= rank - step <= last else None
        together(outgoing, incoming)
        with simlib.span(kind, micro=micro):
            if kind == "F":
                h = incoming[0].requires_grad_() if incoming else x_of(micro)
                y = net(h)
                kept[micro] = h, loss_of(y, micro) if rank == last else y
                result = y.detach()
            else:
                h, y = kept.pop(micro)
                y.backward(incoming[0] if incoming else None)
                result = h.grad
        outgoing = (result, rank + step) if 0 <= rank + step <= last else None
    together(outgoing, None)


def activations(run):
    return [ledger.peak["activations and temporaries"] for ledger in run.memory]


# %% [markdown]
# The model is the same as before: eight transformer blocks. In `simulated` the forward of a block takes 1
# ms, and messages take no time.


# %%
def gpipe(K, M):
    forward, backward = ([f"{kind}{micro}" for micro in range(M)] for kind in "FB")
    return [" ".join(forward + backward)] * K


def block(number):
    torch.manual_seed(number)
    return nn.TransformerEncoderLayer(32, 4, 128, dropout=0, batch_first=True, norm_first=True)


def examples(micro):
    torch.manual_seed(100 + micro)
    return torch.randn(SHAPE), torch.randn(SHAPE)


def train(rank, world_size, plan, wrap=nn.Sequential):
    M, each = plan[rank].count("F"), 8 // world_size
    net = wrap(*map(block, range(rank * each, rank * each + each)))
    work = (lambda i: examples(i)[0]), (lambda y, i: F.mse_loss(y, examples(i)[1]) / M)
    pipeline(rank, world_size, plan[rank], net, *work, SHAPE)
    return {rank: [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]}


def simulated(plan, *args):
    return simlib.simulate(train, 4, (plan, *args), cluster=cluster)


def flat(results):
    by_stage = {s: gradients for result in results for s, gradients in result.items()}
    return torch.cat([g.flatten() for s in sorted(by_stage) for g in by_stage[s]])


# %% [markdown]
# ## Torch's own 1F1B
#
# `torch.distributed.pipelining` has all schedules of this lesson. You give a schedule a `PipelineStage` and
# a loss. Its `step` takes the whole batch: the first rank gives it the examples, and the last rank gives it
# the targets. Is torch's 1F1B the same as ours? We run both on real ranks, and compare three things: the
# order of each rank's pieces, the bytes of all messages, and the gradients. We also compare the gradients
# with those of one process.


# %%
def theirs(rank, world_size, kind, M, v=1, steps=1, make=block):
    S = v * world_size
    own = range(rank, S, world_size)
    if kind in ("ZBVZeroBubble", "DualPipeV"):
        own = [rank, S - 1 - rank]  # down and up again, like a V
    nets = {s: nn.Sequential(*map(make, range(8 * s // S, 8 * (s + 1) // S))) for s in own}
    stages = [PipelineStage(net, s, S, torch.device("cpu")) for s, net in nets.items()]
    Schedule = getattr(schedules, f"Schedule{kind}")
    schedule, seconds = Schedule(stages if v > 1 else stages[0], M, loss_fn=F.mse_loss), []
    for _ in range(steps):
        start_s = time.perf_counter()
        x, y = (torch.cat(part) for part in zip(*map(examples, range(M)), strict=True))
        x, y = (x,) if 0 in own else (), {"target": y} if S - 1 in own else {}
        schedule.step(*x, **y)
        seconds.append(time.perf_counter() - start_s)
        del x, y  # else they are still held while the next batch is made
    return {s: [p.grad for p in net.parameters()] for s, net in nets.items()}, seconds


# %%
is_same = None  # are all three the same, "yes" or "no"?


def looks(run):
    labels, pairs = [[] for _ in range(run.world_size)], {}
    for piece in run.trace.pieces:
        labels[piece.rank].append(piece.label)
    for message in run.trace.messages:
        pairs.setdefault((message.src, message.dst), []).append(message.nbytes)
    return labels, pairs


alone = flat(simlib.run(train, 1, (gpipe(1, 4),)).results)
for K in (2, 4):
    ours, torchs = simlib.run(train, K, (one_f_one_b(K, 4),)), simlib.run(theirs, K, ("1F1B", 4))
    (work, sent), (their_work, their_sent) = looks(ours), looks(torchs)
    same = {pair: sizes[3:] for pair, sizes in their_sent.items()} == sent
    mine, other = flat(ours.results), flat(result[0] for result in torchs.results)
    near = [(mine - each).abs().max().item() < 1e-6 for each in (other, alone)]
    print(f"K = {K}: the same work: {work == their_work}; messages: {same};", end=" ")
    print("gradients within 1e-6 of torch's, of one process:", *near)
simlib.guess(is_same, "yes" if same and all(near) else "no", of=("yes", "no"))

# %% [markdown]
# Your pipeline does the same as torch's 1F1B, piece for piece and message for message. We left out three
# small messages at the start of torch's run (`sizes[3:]`). With them the ranks agree on how to find the
# shapes, and tell their neighbours shapes and dtypes. To find the shapes, torch runs all stages once before
# the first step. It runs them forward, and backward for the gradients of the inputs only. The first stage
# runs on the examples. The other stages run on tensors that have the right shape and arbitrary numbers.
#
# Torch's 1F1B needs at least as many micro-batches as stages. At the end of each step torch divides `.grad`
# by M. If you take two steps without `zero_grad`, torch divides the gradients of the first step twice. If
# you set `scale_grads=False`, and your loss divides by M, the gradients add up.
#
# ## What torch holds in memory
#
# In our own 1F1B the peak does not depend on M if M is at least K. Is the same true for torch's 1F1B? The
# cell prints the peaks for M = 8. A message has 4,096 bytes. The last column says by how many messages
# torch's peak grows for each further micro-batch.

# %%
more = None  # messages that torch's rank 1 holds more for each further micro-batch
runs = [simlib.simulate(theirs, 4, ("1F1B", M, 1, 2), cluster=cluster) for M in (8, 16)]
ours, few, many = map(activations, [simulated(one_f_one_b(4, 8)), *runs])
grown = [(b - a) / 8 / 4096 for a, b in zip(few, many, strict=True)]
for rank in range(4):
    print(f"rank {rank}: ours {ours[rank] / 1e3:.1f} KB, torch's", end=" ")
    print(f"{few[rank] / 1e3:.1f} KB, + {grown[rank]:.1f} messages")
simlib.guess(more, grown[1], within=0.1)
first_s, second_s = runs[1].results[0][1]
print(f"torch's first step takes {first_s / second_s:.2f} times its second")

# %% [markdown]
# Torch's 1F1B also holds the activations of at most K - r micro-batches. But its peak grows, because torch
# keeps the tensors into which it receives messages. Our program makes such a tensor just before it receives
# the message, and drops it after the micro-batch's backward. Torch makes all of them before the first step:
# **for each of the M micro-batches one tensor for the activations that will come from the left, and one for
# the gradient that will come from the right**. `PipelineStage` keeps them for all later steps. So rank 1,
# which has two neighbours, holds two messages more for each further micro-batch. In torch's `stage.py`,
# `_setup_forward_recv_info` and `_setup_backward_recv_info` make these tensors.
#
# The other ranks differ a little:
#
# - Rank 0 receives no activations. It holds the whole input batch instead.
# - The last rank receives no gradients. It holds the targets, its outputs, and one tensor with all outputs
#   joined together.
# - Rank 2 has its peak at the start of a step, when our function `theirs` creates the batch on every rank.
#
# Torch's first step takes longer than its second, because it includes the search for the shapes.
#
# Here the activations of one micro-batch take 104 KB, like 25 messages. So two messages are little, unless
# M is large or activations are recomputed.
#
# ## Recomputation
#
# To save memory, a stage keeps only its *input*, and drops all activations inside. Before its backward it
# computes its forward again, which costs time. GPipe's paper does this, too.
#
# **Now you write it:** write `Again`, an autograd function that does this for a stage `net` and its input
# `h`. Inside `forward` autograd records nothing. `ctx.save_for_backward(h)` keeps a tensor, and `ctx.net =
# net` keeps the stage. `backward` gets the gradient of the output. Detach h, and let it need a gradient.
# Then compute the stage again inside `torch.enable_grad()`, and call `.backward` on the result. This call
# also fills the `.grad` of the parameters. `ticket` is lesson 10's zero that needs a gradient.


# %%
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ticket, net, h):
        return net(h)  # yours: keep what backward needs

    @staticmethod
    def backward(ctx, gradient):
        of_h = torch.zeros_like(gradient)  # yours
        return None, None, of_h  # ticket and net get no gradient


# %% [markdown]
# The check runs 1F1B on four ranks. `TorchRecomputed` uses torch's own recomputation.


# %%
class Recomputed(nn.Sequential):
    def forward(self, h):
        return Again.apply(torch.zeros((), requires_grad=True), super().forward, h)


class TorchRecomputed(nn.Sequential):
    def forward(self, h):
        return checkpoint(super().forward, h, use_reentrant=False)


yours, plain = (simulated(one_f_one_b(4, 8), wrap) for wrap in (Recomputed, nn.Sequential))
same = torch.allclose(flat(yours.results), flat(plain.results), atol=1e-6)
KB = [max(activations(run)) / 1e3 for run in (plain, yours)]
print(f"peak {KB[0]:.0f} KB, with yours {KB[1]:.0f} KB; same gradients: {same};", end=" ")
print("right" if same and KB[1] < KB[0] / 2 else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     class Again(torch.autograd.Function):
#         @staticmethod
#         def forward(ctx, ticket, net, h):
#             ctx.net = net
#             ctx.save_for_backward(h)
#             return net(h)
#
#         @staticmethod
#         def backward(ctx, gradient):
#             h = ctx.saved_tensors[0].detach().requires_grad_()
#             with torch.enable_grad():
#                 ctx.net(h).backward(gradient)
#             return None, None, h.grad
#
# </details>
#
# Torch's function for recomputation is `checkpoint`. We use it with M = 8. Without it, rank 0's peak is 826
# KB for GPipe and 455 KB for 1F1B. What is the peak for GPipe with `checkpoint`? How many times as long is
# a step?

# %%
left_KB, times_as_long = None, None
for name, plan in {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}.items():
    kept, again = (simulated(plan, wrap) for wrap in (nn.Sequential, TorchRecomputed))
    KB = [activations(run)[0] / 1e3 for run in (kept, again)]
    print(f"{name:5}: {KB[0]:.0f} -> {KB[1]:.0f} KB,", end=" ")
    print(f"{again.time_s / kept.time_s:.3f} times as long,", end=" ")
    print(f"bubble {kept.bubble().share:.4f} -> {again.bubble().share:.4f}")
    simlib.guess(left_KB if name == "GPipe" else None, KB[1], within=0.2)
simlib.guess(times_as_long, again.time_s / kept.time_s, within=0.05)

# %% [markdown]
# Each backward now needs one more forward. A backward takes twice as long as a forward. So the step should
# take $(2f + b)/(f + b) = 1.33$ times as long. It takes 1.28 times as long, because torch stops the second
# forward as soon as it has what the backward needs. The backward does not need the last product of a stage.
# A rank now holds the inputs, the activations of *one* micro-batch at a time, and temporaries. The bubble
# stays the same: b has grown, but b cancels in the formula.
#
# ## Zero bubble
#
# A backward has two parts. B computes the gradient of the stage's input, and the left neighbour waits for
# it. W computes the gradients of the stage's weights, and nobody waits for them. **Zero-bubble** schedules
# (Qi et al. 2024, arXiv 2401.10241) separate the two. They compute B as early as possible. They compute W
# when the rank would otherwise idle.
#
# **Now you write it:** write B and W of one micro-batch. Each of them is one call of
# `torch.autograd.grad(outputs, inputs, grad_outputs)`. B comes first, so B must keep the graph for W with
# `retain_graph=True`.


# %%
def B_part(y, h, gradient):
    return None  # yours: the gradient of h


def W_part(y, net, gradient):
    return None  # yours: the gradients of net's parameters


h, gradient = torch.randn(64, 32, requires_grad=True), torch.randn(64, 32)
net = nn.Linear(32, 32, bias=False)
y = net(h)
of_h, of_weights = B_part(y, h, gradient), W_part(y, net, gradient)
same = of_h is not None and torch.allclose(of_h, gradient @ net.weight, atol=1e-5)
same = same and of_weights is not None and torch.allclose(of_weights[0], gradient.T @ h, atol=1e-5)
print("right" if same else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# - `return torch.autograd.grad(y, h, gradient, retain_graph=True)[0]`
# - `return torch.autograd.grad(y, list(net.parameters()), gradient)`
#
# </details>
#
# Torch's `ZBVZeroBubble` also gives rank r the stages r and 2K - 1 - r. The way of a micro-batch through
# the ranks then looks like a V. In `linear` a LayerNorm and a Linear layer replace a block. How large is
# the bubble in one step of `linear`? How large is it if we count, for each rank, only the time from its own
# first piece to its own last?

# %%
of_a_step, of_a_rank = None, None  # ZBVZeroBubble, linear: numbers between 0 and 1


def linear(number):
    return nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32, bias=False))


def within(run):
    """The idle share, of each rank's time from its own first piece to its own last."""
    pieces = [[p for p in run.trace.pieces if p.rank == rank] for rank in range(run.world_size)]
    time_s = sum(max(p.end_s for p in own) - min(p.start_s for p in own) for own in pieces)
    return 1 - run.bubble().busy_s.sum() / time_s


points = {}
for kind in ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"):
    for make in (linear, block):
        two = simlib.simulate(theirs, 4, (kind, 8, 2, 2, make), cluster=cluster)
        run = simlib.simulate(theirs, 4, (kind, 8, 2, 1, make), cluster=cluster)
        shares = run.bubble().share, two.bubble().share, abs(within(run))
        print(f"{kind:21} {make.__name__:6}: bubble {shares[0]:.4f},", end=" ")
        print(f"of two steps {shares[1]:.4f}, within each rank {shares[2]:.4f}")
        asked = (kind, make) == ("ZBVZeroBubble", linear)
        simlib.guess(of_a_step if asked else None, shares[0], within=0.1)
        simlib.guess(of_a_rank if asked else None, round(shares[2], 4))
    points[f"torch's {kind}"] = run

# %% [markdown]
# The line before the last shows the zero. For a Linear layer F, B and W are one product each, so they take
# equally long. No rank idles between its own first and last piece.
#
# Over a whole step the bubble is 3/51. A rank has 48 pieces: F, B and W for 8 micro-batches in 2 stages.
# The last rank begins 3 pieces after rank 0, and it also ends 3 pieces after rank 0. Rank 0 can begin the
# next step while the last rank ends this one. So the bubble of two steps is 3/99. Without the V two steps
# gain nothing. With our transformer blocks small gaps remain: the products of attention have no weights, so
# they have no W, and their B takes longer than their F.
#
# The picture shows the bubble of each schedule, and the activations of the rank that holds the most. Lower
# and further left is better. Which schedule would you take if you have little memory?

# %%
for name, plan in {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}.items():
    points[name], points[f"{name}, recomputed"] = (
        simulated(plan, wrap) for wrap in (nn.Sequential, TorchRecomputed)
    )
figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
for name, run in points.items():
    x, y = 100 * run.bubble().share, max(activations(run)) / 1e3
    is_torchs, is_lower = "torch" in name, name.endswith(("BVZeroBubble", "d1F1B", "B, recomputed"))
    axes.plot(x, y, "s" if is_torchs else "o", color="#D55E00" if is_torchs else "#0072B2")
    axes.annotate(name, (x, y), (7, -12 if is_lower else 3), textcoords="offset points", fontsize=9)
axes.set(xlabel="bubble (%)", ylabel="activations of the fullest rank (KB)")
axes.set(xlim=(0, 37), ylim=(0, 1000))
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# No schedule is best at both. With little memory, take 1F1B with recomputation. Recomputation looks free,
# because the picture does not show its price: it costs *work*, not bubble. The second part's interleaved
# plan would be below torch's, at 671 KB.
#
# ## Pipelines and data parallelism: who sends more?
#
# We train the same model on four ranks with the same 16 examples a step, once in a pipeline and once
# data-parallel. Data-parallel ranks send all gradients round a ring (lesson 05). A block has 12,704
# parameters. How many bytes does the busiest rank send with each method, for M = 8? Do both numbers grow
# when M doubles?


# %%
def data_parallel(rank, world_size, M):
    net = nn.Sequential(*map(block, range(8)))
    for micro in range(rank, M, world_size):
        x, target = examples(micro)
        (F.mse_loss(net(x), target) / M).backward()
    dist.all_reduce(torch.cat([p.grad.flatten() for p in net.parameters()]))
    return sum(p.numel() for p in net.parameters())


in_pipeline, in_ring = None, None  # bytes, for M = 8
for M in (8, 16):
    ring = simlib.simulate(data_parallel, 4, (M,), cluster=cluster, all_reduce="ring", expand=True)
    sent = sum(message.nbytes for message in ring.wire if message.src == 1)
    stages = max(simulated(one_f_one_b(4, M)).bytes_sent)
    print(f"M = {M:2}: pipeline {stages:7,} bytes, ring {sent:7,} bytes", end="; ")
    print(f"2 (R - 1)/R x 4 P = {2 * 3 / 4 * 4 * ring.results[0]:,.0f}")
    simlib.guess(in_pipeline if M == 8 else None, stages, within=0.1)
    simlib.guess(in_ring if M == 8 else None, sent, within=0.1)
w, layers = 12_288, 96  # GPT-3 (Brown et al. 2020)
tokens = 32 * 2048  # 32 micro-batches of 2,048 tokens
print(f"at that size, 2 bytes a number: pipeline {2 * 2 * tokens * w / 1e9:.1f} GB,", end=" ")
print(f"ring {2 * 7 / 8 * 2 * 12 * layers * w**2 / 1e9:.0f} GB")

# %% [markdown]
# A stage sends activations and their gradients: $2 \cdot 4$ bytes for each token and each number of the
# width w. A ring sends the gradients of the weights: about $2 \cdot 4 \cdot 12\, L w^2$ bytes for L layers.
# So we compare the number of tokens with $12\,L\,w$. For GPT-3 with 65,536 tokens a step, a ring of 8 sends
# 190 times as much as the pipeline. And a stage sends only to its neighbours. So **pipelines use the slow
# links between nodes**. The method that sends most stays inside a node. That is tensor parallelism ([lesson
# 12](12_two_axes_at_once.ipynb)).
#
# Most large trainings use both: several equal pipelines, each on its own part of the batch. A stage has a
# K-th of all gradients, and adds them up with the same stage of the other pipelines. A rank does so only
# once a step, after the backward of its **last micro-batch**. Before that it adds up gradients locally, as
# with DDP's `no_sync` (lesson 08). An all_reduce for each micro-batch would give the same sums, but it
# would send M times as much.
#
# ## Your turn
#
# Do [exercises 11](../exercises/11_pipelines.ipynb). [Questions on programs](../docs/questions.md) ask what
# programs print.
#
# ## Exit ticket
#
# 1. A step with recomputation takes 4/3 of the time. How has the bubble changed?
# 2. For which part of a backward does nobody wait?
# 3. Who sends more when the batch grows: a pipeline, or data-parallel ranks?
#
# <details><summary>Answers</summary>
#
# 1. It has not changed: b has grown, but b cancels.
# 2. Nobody waits for W, the gradients of the weights. Only the optimizer needs them.
# 3. A pipeline does. Gradients have the size of the parameters, whatever the batch.
#
# </details>
#
# **Next:** cut a single layer and the optimizer's state, in [lesson 12](12_tensors_and_state.ipynb).
