# %% [markdown]
# # 11 Pipelines
#
# [Lesson 10](10_splitting_the_model.ipynb) cut a model by layers over several ranks, and paid for it:
# one rank worked at a time, and three devices took 5.61 ms for what one does in 5.07. In this lesson
# (100 minutes) you will
#
# - let the ranks work at the same time, by cutting the *batch*, too,
# - write down who does what when as a **plan**, a string for each rank: GPipe, 1F1B, interleaved,
# - derive how much time is lost all the same, to the last digit, and see where the formula stops
#   holding,
# - settle by a run what is often written about 1F1B,
# - find your own pipeline's messages and gradients in torch's `Schedule1F1B`, and see what torch
#   holds in memory beside them,
# - learn why pipelines go *between* nodes.
#
# ## One batch, in pieces
#
# Rank 1 cannot begin before rank 0 is done *with the same examples*. It need not wait for the whole
# batch. So cut the batch into M **micro-batches**, and send each one on as soon as it is done. Their
# gradients are added up, as in gradient accumulation (lesson 07): nothing is approximated.
#
# Each rank gets a plan: `F0` is the forward of micro-batch 0, `B0` its backward. The naive split is
# `"F0 B0"` on every rank. **GPipe** (Huang et al. 2018) does all forwards, then all backwards.

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
from simlib import labs


def gpipe(K, M):
    """The plans of K ranks for M micro-batches."""
    forward, backward = ([f"{kind}{micro}" for micro in range(M)] for kind in "FB")
    return [" ".join(forward + backward)] * K


print(gpipe(3, 2))

# %% [markdown]
# ## A program that follows a plan
#
# In lesson 10 the messages were hidden in autograd functions. A plan has to place them, so they come
# out again: a rank receives what the next word needs, computes, and hands on the result.
# `y.backward(g)` begins a backward pass at y, with the gradient g that came from the right.
# (`stages` is `{number: module}`; a word such as `F0@4` names another stage than the rank's own.)
# `simlib.span` gives a piece of computing a name and numbers: pictures show them, and
# `run.bubble()` counts the rest, from the start of the first piece to the end of the last. (Torch's own
# schedules, below, name their pieces so, too.) A result waits in `outgoing` until the exchange before
# the *next* word: that will matter.


# %%
def pipeline(rank, world_size, plan, stages, x_of, loss_of, shape, exchange):
    last, kept, outgoing, under_way = world_size * len(stages) - 1, {}, None, []
    for word in plan[rank].split():
        work, at, stage = word.partition("@")
        kind, micro, stage = work[0], int(work[1:]), int(stage or rank)
        step = 1 if kind == "F" else -1  # results go to the right, or to the left
        incoming = None
        if 0 <= stage - step <= last:
            incoming = torch.empty(shape), (stage - step) % world_size
        under_way += exchange(outgoing, incoming)
        with simlib.span(kind, micro=micro, **({"stage": stage} if at else {})):
            if kind == "F":
                h = incoming[0].requires_grad_() if incoming else x_of(micro)
                y = stages[stage](h)
                kept[micro, stage] = h, loss_of(y, micro) if stage == last else y
                result = y.detach()
            else:
                h, y = kept.pop((micro, stage))
                y.backward(incoming[0] if incoming else None)
                result = h.grad
        outgoing = (result, (stage + step) % world_size) if 0 <= stage + step <= last else None
    for request in under_way + exchange(outgoing, None):
        request.wait()


# %% [markdown]
# Between two words there is at most one message out and one in: `exchange` makes them. The plainest
# way is to send first, then receive. Now lesson 10's network on three devices: 64 real digits, 10
# Gbit Ethernet, 100 Gflop/s. M = 1 is the naive split. What do more micro-batches give?

# %%
guess = None  # the best time, in ms, and its M
WIDTHS = [784, 512, 512, 512, 512, 512, 10]
STAGES = {1: [(1, 6)], 3: [(1, 1), (2, 3), (4, 6)]}  # as in lesson 10
images, labels = simlib.digits.load()[0][:64]


def send_first(outgoing, incoming):
    if outgoing:
        dist.send(*outgoing)
    if incoming:
        dist.recv(*incoming)
    return []  # nothing is under way any more


def lesson_10(rank, world_size, plan):
    layers, M = [], plan[rank].count("F")
    for number in range(STAGES[world_size][rank][0], STAGES[world_size][rank][1] + 1):
        torch.manual_seed(number)
        layers.append(nn.Linear(WIDTHS[number - 1], WIDTHS[number]))
        layers += [nn.ReLU()] if number < 6 else []
    x, right = images.flatten(1).chunk(M), labels.chunk(M)
    work = (lambda micro: x[micro]), (lambda y, micro: F.cross_entropy(y, right[micro]) / M)
    pipeline(
        rank, world_size, plan, {rank: nn.Sequential(*layers)}, *work, (64 // M, 512), send_first
    )


# %%
ethernet = simlib.clusters.ethernet_10g(3, device=simlib.Device(flops_per_s=100e9))
steps = {1: simlib.simulate(lesson_10, 1, (gpipe(1, 1),), cluster=ethernet)}
print(f"1 device: {steps[1].time_s * 1e3:.2f} ms")
for M in (1, 2, 4, 8, 16, 32):
    run = simlib.simulate(lesson_10, 3, (gpipe(3, M),), cluster=ethernet)
    print(f"3 devices, M = {M:2}: {run.time_s * 1e3:.2f} ms, bubble {run.bubble().share:.0%}")
    steps[M] = run
steps[4].timeline()

# %% [markdown]
# The naive split gains nothing; four micro-batches make the same three devices faster than one. The
# ramp up and the ramp down on the picture are the **bubble**: the time in which a device has nothing
# to do. More micro-batches make the ramps' share smaller; but each message pays its latency, and the
# waiting for messages grows. We take this apart, one cause at a time.
#
# ## The bubble, derived
#
# Let K equal stages take f for the forward and b for the backward of a micro-batch, and let messages
# take no time. The last rank gets micro-batch 0 after $(K-1) f$. Then it works M forwards and M
# backwards without a pause. The last gradient needs $(K-1) b$ back to rank 0. Each rank computes for
# $M (f + b)$, so
#
# $$T = (M + K - 1)(f + b), \qquad
# \text{bubble} = 1 - \frac{M (f + b)}{T} = \boxed{\frac{K - 1}{M + K - 1}}$$
#
# f and b cancel. The twin: a transformer of eight equal blocks (torch's own layer), two or more of
# them on each rank, on a device so slow that a block's forward takes 1 ms. As in lesson 10, any
# numbers will do as examples. A residual is the run's value minus the formula's.

# %%
guess = None  # the bubble of K = 4, M = 8
SHAPE = (2, 16, 32)  # a micro-batch: 2 examples, 16 tokens, width 32
FREE = simlib.Link(0, math.inf)
SLOW = simlib.Device(flops_per_s=851_968e3)  # a block's forward has 851,968 flops


def block(number):
    torch.manual_seed(number)
    return nn.TransformerEncoderLayer(32, 4, 128, dropout=0, batch_first=True, norm_first=True)


def examples(micro):
    torch.manual_seed(100 + micro)
    return torch.randn(SHAPE), torch.randn(SHAPE)


def train(rank, world_size, plan, exchange=send_first, v=1, cuts=None, wrap=nn.Sequential):
    S = v * world_size  # stages; stage s has the blocks from cuts[s] to cuts[s + 1]
    cuts, M = cuts or [8 * s // S for s in range(S + 1)], plan[rank].count("F") // v
    mine = range(rank, S, world_size)
    stages = {s: wrap(*map(block, range(cuts[s], cuts[s + 1]))) for s in mine}
    work = (lambda i: examples(i)[0]), (lambda y, i: F.mse_loss(y, examples(i)[1]) / M)
    pipeline(rank, world_size, plan, stages, *work, SHAPE, exchange)
    return {s: [p.grad for p in net.parameters()] for s, net in stages.items()}


# %%
def simulated(plan, *args, link=FREE):
    cluster = simlib.Cluster(len(plan), 1, inter=link, device=SLOW)
    return simlib.simulate(train, len(plan), (plan, *args), cluster=cluster)


for K, M in ((2, 1), (4, 1), (2, 8), (4, 8), (4, 16)):
    run, formula = simulated(gpipe(K, M)), (K - 1) / (M + K - 1)
    print(f"K = {K}, M = {M:2}: bubble {run.bubble().share:.4f}", end="")
    print(f", residual below 1e-9: {abs(run.bubble().share - formula) < 1e-9}")
simulated(gpipe(4, 4)).timeline()

# %% [markdown]
# To the last digit. With M = 1 the bubble is $(K-1)/K$: one rank works at a time, lesson 10's result.
# Rule of thumb: M = 4 K makes it less than a fifth.
#
# **Now you write it.** 3 ranks, 3 micro-batches, and the backwards in *reverse* order (GPipe's paper
# does so: the activations made last are used first). Write the plans. What becomes of the bubble?

# %%
mine = None  # a list of three strings
if mine is not None:
    run = simulated(mine, send_first, 1, [0, 2, 4, 6])
    print(f"bubble {run.bubble().share:.4f}, in the order 0, 1, 2: {2 / 5:.4f}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `["F0 F1 F2 B2 B1 B0"] * 3`. The bubble stays 0.4: the derivation never asked which micro-batch comes
# when.
#
# </details>
#
# ## Where it stops holding
#
# Three assumptions: equal stages, free messages, and M pieces that cost an M-th of the whole each (the
# last one waits for exercise 1). Break the first. Eight blocks on four ranks, cut 1 + 2 + 3 + 2. Then the **slowest stage sets the pace**:
# the others wait for it at every micro-batch but one. With $c_s$ blocks in stage s,
#
# $$T = \Big(\sum_s c_s + (M - 1) \max_s c_s\Big)(f_1 + b_1)$$
#
# What does the bubble tend to for many micro-batches?

# %%
guess = None  # the bubble of 1 + 2 + 3 + 2 for M = 8; for a million
block_s = simulated(gpipe(1, 1)).time_s / 8  # forward and backward of a block
for M in (1, 8, 16):
    run = simulated(gpipe(4, M), send_first, 1, [0, 1, 3, 6, 8])
    formula_s = (8 + (M - 1) * 3) * block_s
    print(f"M = {M:2}: {run.time_s * 1e3:6.1f} ms, residual below 1e-9:", end=" ")
    print(abs(run.time_s - formula_s) < 1e-9, f"- bubble {run.bubble().share:.3f},", end=" ")
    print(f"of equal stages {3 / (M + 3):.3f}")
print("by rank:", *(f"{share:.2f}" for share in run.bubble().by_rank))

# %% [markdown]
# It tends to $1 - 8 / (4 \cdot 3) = 1/3$, however many micro-batches: a rank with one block idles two
# thirds of the time. So balance first, then cut the batch. (With M = 1 unequal stages cost nothing.
# And lesson 10's network is unequal, too.)
#
# Now the second assumption. Let each message take c = 1 ms. With `send_first` a rank in the middle
# sends and then receives, one after the other, though a link has two directions. `batch_isend_irecv`
# starts both together and gives back a request for each. How much does each way add?

# %%
guess = None  # ms that messages add, K = 4, M = 8 (without them: 66.8 ms)


def together(outgoing, incoming):
    ops = [dist.P2POp(dist.isend, *outgoing)] if outgoing else []
    ops += [dist.P2POp(dist.irecv, *incoming)] if incoming else []
    for request in dist.batch_isend_irecv(ops) if ops else []:
        request.wait()
    return []


for M in (1, 4, 8):
    free_s = simulated(gpipe(4, M)).time_s
    for exchange, ms in ((send_first, 2 * (2 * M + 4 - 3)), (together, 2 * (M + 4 - 2))):
        run = simulated(gpipe(4, M), exchange, link=simlib.Link(1e-3, math.inf))
        print(f"M = {M}, {exchange.__name__:10}: + {(run.time_s - free_s) * 1e3:4.1f} ms,", end=" ")
        print(f"bubble {run.bubble().share:.3f}; by the formula below + {ms} ms")

# %% [markdown]
# From three stages on, `send_first` adds $2 (2 M + K - 3)\,c$, `together` $2 (M + K - 2)\,c$: a message on each hop of the ramps, and one for each further
# micro-batch. This grows with M, and the bubble shrinks with M: so for a fixed batch there is a best M,
# as in the first table. (Receives that are posted long before would hide messages behind
# computing. Neither we nor torch's 1F1B post them so early.)
#
# ## "1F1B has the smaller bubble"
#
# GPipe keeps the activations of all M micro-batches until the first backward. **1F1B** (in Narayanan et al.
# 2021, arXiv 2104.04473) goes backward as soon as it can: rank r does K - r forwards ahead, then one
# backward, one forward in turn. One often reads that its bubble is smaller than GPipe's. Write
# its plans for K = 3, M = 4, before you run it.

# %%
mine = None  # **Now you write it**: a list of three strings


def one_f_one_b(K, M):
    plans = []
    for rank in range(K):
        forward, ahead = [f"F{micro}" for micro in range(M)], min(M, K - rank)
        words = forward[:ahead]
        for micro in range(M):
            words += [f"B{micro}", *forward[ahead + micro : ahead + micro + 1]]
        plans.append(" ".join(words))
    return plans


if mine is not None:
    print("as ours:", mine == one_f_one_b(3, 4))

# %% [markdown]
# <details><summary>Answer</summary>
#
# `["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]`
#
# </details>
#
# Run it with `send_first`, which served GPipe well. It is meant to fail. What happens?

# %% tags=["raises-exception"]
guess = None  # what happens?
simulated(one_f_one_b(4, 8), send_first)

# %% [markdown]
# Rank 2 sends activations to the right, rank 3 a gradient to the left: the knot of lesson 03, and
# lesson 10's FFBB and FBFB. In GPipe all messages of a phase go one way; in 1F1B neighbours have
# something for each other at the same moment.
#
# There are two cures for this knot: `together`, or an **order**. Even ranks send first, odd ranks receive first. Then
# of any two neighbours just one sends first. **Now you write it**, and try it on both schedules.


# %%
def by_order(outgoing, incoming):
    calls = [(dist.send, outgoing), (dist.recv, incoming)]
    for call, message in calls:  # which rank has to turn them round?
        if message:
            call(*message)
    return []


for name, plan in {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}.items():
    for exchange in (together, by_order):
        try:
            print(name, exchange.__name__, f"bubble {simulated(plan, exchange).bubble().share:.4f}")
        except simlib.DeadlockError as error:
            print(name, exchange.__name__, "hangs:", str(error).splitlines()[0])

# %% [markdown]
# <details><summary>Answer</summary>
#
# `for call, message in calls if dist.get_rank() % 2 == 0 else calls[::-1]:`. It mends 1F1B and breaks
# GPipe: at the turn from F to B, rank 1 would receive its first gradient before it sends its last
# activations, and rank 2 cannot make that gradient before it has them. An order is right for one *plan*;
# `together` for all in which neighbours' words take turns. (A rank that runs further ahead needs `post`.)
#
# </details>
#
# The bubbles are equal to the last digit, with free messages and equal stages: $(K-1)/(M+K-1)$ again. The
# sentence is wrong. So what does 1F1B buy? Ask the ledger. (And the last two lines ask for M = 8 what
# becomes of the tie where stages are unequal, or messages take 1 ms.)

# %%
guess = None  # M doubles: how many times rank 0's activations, with GPipe, with 1F1B?


def activations(run):
    return [ledger.peak["activations and temporaries"] for ledger in run.memory]


for M in (4, 8, 16):
    for name, plan in {"GPipe": gpipe(4, M), "1F1B": one_f_one_b(4, M)}.items():
        peaks = [f"{nbytes / 1e3:7.1f}" for nbytes in activations(simulated(plan, together))]
        print(f"M = {M:2}, {name:5}: KB at the peak of ranks 0 to 3", *peaks)
for name, plan in {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}.items():
    unequal = simulated(plan, together, 1, [0, 1, 3, 6, 8])
    costly = simulated(plan, together, link=simlib.Link(1e-3, math.inf))
    print(f"{name:5}: 1 + 2 + 3 + 2 blocks {unequal.time_s * 1e3:.1f} ms,", end=" ")
    print(f"messages of 1 ms {costly.time_s * 1e3:.1f} ms")
simulated(one_f_one_b(4, 8), together).timeline()

# %% [markdown]
# GPipe's peak grows with M; 1F1B's does not, once M is greater than K. Rank r holds at most K - r micro-batches, whatever M is.
# **1F1B buys memory, and memory buys M**: with it you can afford the many micro-batches that make
# the bubble small.
#
# And where the assumptions break, as in the last two lines, with unequal stages or costly messages?
# 1F1B is faster. By 3 %: it can work on a backward where GPipe waits for the last forward (how much
# depends on which stage is slow). And by 1 ms, which depends on how we exchange: the lab below, which does it
# otherwise, has GPipe ahead. So much truth is in the sentence.
#
# ## Interleaved: more stages than ranks
#
# The ramp is $K - 1$ *stages* long. Make stages half as long: each rank gets v = 2 short ones, rank r
# the stages r and r + K. A micro-batch goes through all ranks twice (Narayanan et al. 2021). The work
# stays: $v M$ short pieces each way on each rank; the ramps are $K - 1$ *short* pieces:
#
# $$\text{bubble} = \frac{K - 1}{v M + K - 1}$$
#
# The plan is 1F1B's, in groups of K micro-batches. (A rank is now $2 (K - 1 - r)$ forwards ahead, as each
# way to the end and back is of short pieces, and a whole round through the ranks, $(v - 1) K$, more.)
# `together` waits for both its messages; what will it do on a ring, where the last rank sends to the
# first? `post` starts its send and goes on.


# %%
def interleaved(K, M, v):
    plans = []
    for rank in range(K):
        groups = [range(first, first + K) for first in range(0, M, K)]
        own = range(rank, v * K, K)  # the stages of this rank
        forward = [f"F{i}@{s}" for group in groups for s in own for i in group]
        backward = [f"B{i}@{s}" for group in groups for s in own[::-1] for i in group]
        ahead = min(v * M, (v - 1) * K + 2 * (K - rank - 1) + 1)
        words = forward[:ahead]
        for n, back in enumerate(backward):
            words += [back, *forward[ahead + n : ahead + n + 1]]
        plans.append(" ".join(words))
    return plans


def post(outgoing, incoming):
    under_way = [dist.isend(*outgoing)] if outgoing else []
    if incoming:
        dist.recv(*incoming)
    return under_way


# %%
guess = None  # the bubble with v = 2, M = 8; what does it cost?
print(interleaved(2, 2, 2))
for exchange in (together, post):
    try:
        run = simulated(interleaved(4, 8, 2), exchange, 2)
    except simlib.DeadlockError as error:
        print(exchange.__name__, "hangs:", str(error).splitlines()[0])
print(f"bubble {run.bubble().share:.4f}, formula {3 / (2 * 8 + 3):.4f};", end=" ")
print("KB at the peak", *(f"{nbytes / 1e3:.1f}" for nbytes in activations(run)))
print(f"messages: {sum(run.messages)}, with 1F1B", sum(simulated(one_f_one_b(4, 8), post).messages))
run.timeline()

# %% [markdown]
# On the ring each rank waits in `together` for its send, which the neighbour will receive in *its next*
# exchange only. On a line the last rank has nothing to send on, so the knot opens there; on a ring nobody
# is the last. With `post` it works: a smaller bubble, for more than twice the messages (between the last rank and the first, too) and for
# more activations. Nothing is free. (B1.4 is micro-batch 1 in stage 4; a narrow piece has room for its stage
# only.)
#
# **A lab:** all of this on one picture, which is worked out and not run: a lane for each rank, below it how
# many micro-batches it holds. A rank's forward takes 1. Change GPipe to 1F1B: what moves, and what does not?
# Find the smallest M with a bubble below 10 %. Let one stage take twice as long: which lanes idle now? Let
# messages take 0.5, with GPipe and with 1F1B. Here receives are posted long before, and messages travel while
# ranks compute. Which schedule still pays for them? (The lab's GPipe goes back in the paper's order.)
#
# <details><summary>Answers</summary>
#
# M = 28. The lanes of all others. GPipe on its ramps only: 36 instead of 33. 1F1B in every round, 41: K - r
# forwards ahead are just enough for the way there and back without messages, so it would need more.
#
# </details>

# %%
labs.draw_pipeline(K=4, M=8, schedule="gpipe")

# %% tags=["nbval-ignore-output"]
labs.pipeline_lab(K=4, M=8, schedule="gpipe")

# %% [markdown]
# ## The same from torch
#
# `torch.distributed.pipelining` has all of these schedules. You give it your stage as a `PipelineStage`,
# and a loss; `step` takes the whole batch. Is its 1F1B ours? On real ranks: each rank's
# pieces in order, the bytes of all messages from rank to rank, and the gradients, of ours, of torch's and of
# one process.


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


def work_of(run):
    """The labels of each rank's pieces, in order: F0, F1, B0, ..."""
    ranks = range(run.world_size)
    return [[p.label for p in run.trace.pieces if p.rank == rank] for rank in ranks]


# %%
guess = None  # the same messages? The same gradients?


def in_order(run):
    pairs = {}
    for message in run.trace.messages:
        pairs.setdefault((message.src, message.dst), []).append(message.nbytes)
    return pairs


def flat(results):
    by_stage = {s: gradients for result in results for s, gradients in result.items()}
    return torch.cat([g.flatten() for s in sorted(by_stage) for g in by_stage[s]])


M = 4
alone = flat(simlib.run(train, 1, (gpipe(1, M),)).results)
for K in (2, 4):
    ours = simlib.run(train, K, (one_f_one_b(K, M), together))
    torchs = simlib.run(theirs, K, ("1F1B", M))
    same = {pair: sizes[3:] for pair, sizes in in_order(torchs).items()} == in_order(ours)
    mine = flat(ours.results)
    offs = [(mine - other).abs().max() for other in (flat(r[0] for r in torchs.results), alone)]
    print(f"K = {K}: the same work: {work_of(ours) == work_of(torchs)}; messages: {same};", end=" ")
    print("gradients within 1e-6 of torch's, of one process:", *(off.item() < 1e-6 for off in offs))

# %% [markdown]
# Your twenty-five lines are torch's 1F1B, piece for piece and message for message. The three small messages
# at the start of torch's agree on a way to work and tell the neighbour shapes and dtypes. To know them, torch
# puts something through all stages before the first step, forward, and backward as far as the inputs' gradients
# go: examples through the first stage, unfilled memory of the right shape through the others. (Fewer
# micro-batches than stages its 1F1B refuses, in a sentence of its own. And a trap: at the end of each step torch
# divides `.grad` by M. After two steps without `zero_grad` the first step's gradients are divided twice; with
# `scale_grads=False`, and a loss that divides by M, they add up.) Is its memory the same, too? The
# second column is what one more micro-batch adds, in messages of 4,096 bytes.

# %%
guess = None  # does torch's 1F1B hold as much for M = 8 as for 16?
cluster = simlib.Cluster(4, 1, inter=FREE, device=SLOW)
for name in ("ours", "torch"):
    peaks = {}
    for M in (8, 16):
        if name == "ours":
            run = simulated(one_f_one_b(4, M), together)
        else:
            run = simlib.simulate(theirs, 4, ("1F1B", M, 1, 2), cluster=cluster)
        peaks[M] = activations(run)
    for rank, (few, many) in enumerate(zip(peaks[8], peaks[16], strict=True)):
        print(
            f"{name:5} rank {rank}: {few / 1e3:6.1f} KB, + {(many - few) / 8 / 4096:.1f} messages"
        )
first_s, second_s = run.results[0][1]
print(f"torch's first step takes {first_s / second_s:.2f} times its second")

# %% [markdown]
# Torch's 1F1B does hold the activations of K - r micro-batches at most. But when the first step begins,
# `PipelineStage` makes **a holder for every micro-batch's activations and one for every gradient that comes back**
# (`_setup_forward_recv_info` and `_setup_backward_recv_info` in torch's `stage.py`) and keeps them: on rank 1
# two messages for each micro-batch. (Rank 0 holds the whole input in place of the first; the last rank
# targets, outputs, and the outputs joined together; rank 2 has its peak while our loop makes the batch.) One
# micro-batch's activations are some 25 messages here (104 KB, by the table above), so that is little; with a large M, or where activations are computed again, it is not.
#
# ## Recomputation
#
# Memory can be bought another way. `checkpoint` keeps only a stage's *input* and computes its forward again when
# the backward comes (the paper's GPipe does so, too). Predict both prices for M = 8: what is left of the 826 and 455 KB on
# rank 0, and how much longer is a step?


# %%
class Again(nn.Sequential):
    def forward(self, h):
        return checkpoint(super().forward, h, use_reentrant=False)


guess = None  # KB on rank 0; times as long
for name, plan in {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}.items():
    kept, again = (simulated(plan, together, 1, None, wrap) for wrap in (nn.Sequential, Again))
    print(
        f"{name:5}: {activations(kept)[0] / 1e3:.0f} -> {activations(again)[0] / 1e3:.0f} KB,",
        end=" ",
    )
    print(f"{again.time_s / kept.time_s:.3f} times as long,", end=" ")
    print(f"bubble {kept.bubble().share:.4f} -> {again.bubble().share:.4f}")

# %% [markdown]
# One more forward for each backward: $(2f + b)/(f + b)$ would be 1.33, and torch stops when it has all that
# backward needs (the last product of a stage is not among it), so a little less. Left are inputs, the
# activations of *one* micro-batch at a time, and temporaries. The bubble stays: b has grown, and b cancels.
#
# ## Zero bubble
#
# A backward makes two things: the gradient of its input, for which the left neighbour waits, and the gradient of
# its weights, for which nobody waits. Zero-bubble schedules (Qi et al. 2024, arXiv 2401.10241) part them, B and W, and put
# W's where a rank would idle. Torch has some. Its `ZBVZeroBubble` also gives rank r the stages r and 2K - 1 - r,
# like a V. Is the bubble really zero: for plain Linear layers, for our blocks?

# %%
guess = None  # is it zero?


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
        print(f"{kind:21} {make.__name__:6}: bubble {run.bubble().share:.4f},", end=" ")
        print(f"of two steps {two.bubble().share:.4f}, within each rank {abs(within(run)):.4f}")
    points[f"torch's {kind}"] = run

# %% [markdown]
# The last line but one has the zero: for a Linear layer F, B and W are one product each and take the same
# time, and no rank idles between its own first and last piece. Counted over one step, as we did so far, 3/51
# is left (8 micro-batches, 2 stages, F, B and W: 48 pieces, and 3 of ramp): the ranks *begin* one after the
# other. With the V they end so, too: the ramps of two steps fit together, and 3/99 is left. Without it, two
# steps gain nothing. In our blocks attention has no weights: its B takes longer than its F, and
# has no W. Then small gaps remain.
#
# All on one picture: the bubble, and the activations of the fullest rank. Down and left is better. Which of
# them would you take where memory is scarce?

# %%
ours = {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}
points |= {name: simulated(plan, together) for name, plan in ours.items()}
points["GPipe, recomputed"] = simulated(gpipe(4, 8), together, 1, None, Again)
points["1F1B, recomputed"] = simulated(one_f_one_b(4, 8), together, 1, None, Again)
points["interleaved, v = 2"] = simulated(interleaved(4, 8, 2), post, 2)
figure, axes = plt.subplots(figsize=(7, 3.8))
for number, (name, run) in enumerate(points.items()):
    x, y = 100 * abs(run.bubble().share), max(activations(run)) / 1e3
    axes.plot(x, y, "s" if "torch" in name else "o", color=f"C{number}", label=name)
axes.set(xlabel="bubble (%)", ylabel="activations of the fullest rank (KB)", ylim=0, xlim=(-1, 30))
axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# No point is best at both. Recomputation looks free here, as its price is not on the picture: it makes
# *work*, not bubble.
#
# ## Published
#
# GPipe (Huang et al. 2018, arXiv 1811.06965) gives the throughput of a Transformer, relative to K = 2 and M = 1.
# By our formula it is $K M / (M + K - 1)$, which is 1 for M = 1.

# %%
guess = None  # will the model be too fast, or too slow?
published = {(4, 1): 1.07, (8, 1): 1.3, (2, 32): 1.8, (4, 32): 3.4, (8, 32): 6.3}
for (K, M), gain in published.items():
    model = K * M / (M + K - 1)
    print(f"K = {K}, M = {M:2}: published {gain:.2f}, model {model:.2f}, {model / gain - 1:+.1%}")

# %% [markdown]
# With M = 32 the model is 4 to 8 % too fast: it lacks messages and unequal stages, and each of these costs what
# you saw above. With M = 1 it is too slow: nothing can overlap, and yet the paper gains 7 and 30 %. A larger
# batch, for which more devices have room, may do that: the paper does not say, so this stays **unexplained**.
# (Its row M = 4 has another batch size. [Published figures](../docs/published.md) has torchgpipe's tables, too.)
#
# ## Beside data parallelism
#
# The same model and the same 16 examples a step, on four ranks: in a pipeline, and data-parallel, where all
# gradients go round a ring (lesson 05). Which sends more, and how does it grow?


# %%
def data_parallel(rank, world_size, M):
    net = nn.Sequential(*map(block, range(8)))
    for micro in range(rank, M, world_size):
        x, target = examples(micro)
        (F.mse_loss(net(x), target) / M).backward()
    dist.all_reduce(torch.cat([p.grad.flatten() for p in net.parameters()]))
    return sum(p.numel() for p in net.parameters())


guess = None  # bytes that the busiest rank sends in a step: pipeline, data-parallel
for M in (8, 16):
    options = {"cluster": cluster, "all_reduce": "ring", "expand": True}
    ring = simlib.simulate(data_parallel, 4, (M,), **options)
    sent = sum(message.nbytes for message in ring.wire if message.src == 1)
    stages = max(simulated(one_f_one_b(4, M), together).bytes_sent)
    print(f"M = {M:2}: pipeline {stages:7,} bytes, ring {sent:7,} bytes", end="; ")
    print(f"2 (R - 1)/R x 4 P = {2 * 3 / 4 * 4 * ring.results[0]:,.0f}")
w, layers = 12_288, 96  # GPT-3 (Brown et al. 2020)
tokens = 32 * 2048  # 32 micro-batches of 2,048 tokens
print(f"at that size, 2 bytes a number: pipeline {2 * 2 * tokens * w / 1e9:.1f} GB,", end=" ")
print(f"ring {2 * 7 / 8 * 2 * 12 * layers * w**2 / 1e9:.0f} GB")

# %% [markdown]
# Stages send activations, $2 \cdot 4$ bytes for each token and each number of the width; a ring sends gradients, some
# $2 \cdot 4 \cdot 12\, L w^2$ bytes for L layers of width w. Tokens against $12\,L\,w$: for that model the
# pipeline sends 190 times less (with 65,536 tokens a step, and a ring of 8), and only to neighbours. So where some links are slow, **pipelines go
# between nodes**, and what talks most stays inside (tensor parallelism, [lesson 12](12_tensors_and_state.ipynb)). And they go together: cut
# into K stages, a rank has a K-th of the gradients to add up.
#
# ## Your turn
#
# [Exercises 11](../exercises/11_pipelines.ipynb): the best number of micro-batches, stages that balance, a
# plan within a budget, and a schedule that hangs only now and then.
#
# [Sixteen questions](../docs/questions.md): what do these programs print?
#
# ## Exit ticket
#
# 1. K = 8, M = 8: the bubble? How many micro-batches make it less than a tenth?
# 2. You replace GPipe by 1F1B at the same M, and nothing gets faster. Was it in vain?
# 3. Stages take 1, 1, 1 and 2. What can the bubble not fall below?
# 4. Why does 1F1B hang with `send` and `recv`, and GPipe not?
# 5. A step with recomputation takes 4/3 of the time. What has become of the bubble?
# 6. Which grows with the batch: what a pipeline sends, or what data-parallel ranks send?
#
# <details><summary>Answers</summary>
#
# 1. 7/15 = 47 %; $7/(M+7) < 1/10$ from M = 64 on.
# 2. No: it holds K - r micro-batches in place of M, so you can raise M.
# 3. 1 - 5/8 = 37.5 %: the slowest stage sets the pace.
# 4. In 1F1B neighbours send to each other at the same time; in GPipe all messages go one way at a time.
# 5. The same share: b has grown, and b cancels.
# 6. What the pipeline sends; gradients have the size of the parameters.
#
# </details>
#
# **Next:** cut a single layer, and the state of the optimizer, in [lesson 12](12_tensors_and_state.ipynb).
