# %% [markdown]
# # 11 Schedules
#
# This is the second part of lesson 11. [The first part](11_pipelines.ipynb) built a pipeline that follows a
# plan, and derived its bubble for GPipe. GPipe does all forwards first. Such a rule for plans is called a
# **schedule**. In this part (60 minutes) you will
#
# - write the function that makes the plans of 1F1B, the schedule that most large trainings use,
# - repair 1F1B's messages, which hang with plain `send` and `recv`,
# - test by a run what people often write: that 1F1B has a smaller bubble than GPipe,
# - give each rank several short stages, and see what short stages save and what they cost.
#
# Take the first part before this one. The next cells have the first part's programs, unchanged. `pipeline`
# follows a plan, `together` sends and receives at the same time, and `train` runs eight transformer blocks
# in stages. In `simulated` the forward of a block takes 1 ms, and messages take no time.

# %%
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import simlib
from simlib import labs


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
# The exchanges of the first part:

# %%
SHAPE = (2, 16, 32)  # a micro-batch: 2 examples, 16 tokens, width 32
FREE = simlib.Link(0, math.inf)
SLOW = simlib.Device(flops_per_s=851_968e3)  # a block's forward has 851,968 flops


def send_first(outgoing, incoming):
    if outgoing:
        dist.send(*outgoing)
    if incoming:
        dist.recv(*incoming)
    return []  # nothing is under way any more


def together(outgoing, incoming):
    ops = [dist.P2POp(dist.isend, *outgoing)] if outgoing else []
    ops += [dist.P2POp(dist.irecv, *incoming)] if incoming else []
    for request in dist.batch_isend_irecv(ops) if ops else []:
        request.wait()
    return []


def gpipe(K, M):
    """The plans of K ranks for M micro-batches."""
    forward, backward = ([f"{kind}{micro}" for micro in range(M)] for kind in "FB")
    return [" ".join(forward + backward)] * K


# %% [markdown]
# The third cell makes the blocks, the examples and the stages. `train` and `simulated` run them.


# %%
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


def simulated(plan, *args, link=FREE):
    cluster = simlib.Cluster(len(plan), 1, inter=link, device=SLOW)
    return simlib.simulate(train, len(plan), (plan, *args), cluster=cluster)


# %% [markdown]
# ## 1F1B: one forward, one backward
#
# In GPipe a rank does its first backward only when it holds the activations of all M micro-batches. In
# **1F1B** each rank starts its backwards as soon as it can:
#
# - Rank r first does K - r forwards. If M is smaller than K - r, it does all M. The last rank does one.
# - Then the rank alternates: one backward, one forward, one backward, and so on.
# - When no forward is left, the rank does the remaining backwards.
#
# The forwards come in the order 0, 1, 2 and so on. So do the backwards. 1F1B comes from PipeDream (Harlap
# et al. 2018, arXiv 1806.03377; Narayanan et al. 2019). PipeDream updates the weights after each backward
# and keeps old weights for the micro-batches in flight. We use 1F1B in another way, as Narayanan et al.
# 2021 (arXiv 2104.04473) do: each rank adds up all gradients of a batch, and then updates its weights once.
#
# **Now you write it:** write the function that makes these plans. First write the plans for K = 3 and M = 4
# on paper.


# %%
def your_1f1b(K, M):
    """The plans of K ranks for M micro-batches: a list of K strings such as "F0 F1 B0 B1"."""
    plans = []
    # yours
    return plans


# %% [markdown]
# The check runs your plans, and tests three things. The gradients must be the same as those of one process.
# The bubble must be $(K-1)/(M+K-1)$. And rank r must never hold more than K - r micro-batches.


# %%
def flat(run):
    """The gradients of all stages, in their order, as one vector."""
    of_stage = {s: gradients for result in run.results for s, gradients in result.items()}
    return torch.cat([g.flatten() for s in sorted(of_stage) for g in of_stage[s]])


def most_held(words):
    """How many micro-batches are between their forward and their backward, at most."""
    held = [0]
    for word in words.split():
        held.append(held[-1] + (1 if word[0] == "F" else -1))
    return max(held)


for K, M in ((4, 6), (2, 5), (4, 2)):
    plans = your_1f1b(K, M)
    words = [f"{kind}{micro}" for micro in range(M) for kind in "BF"]
    if len(plans) != K or any(sorted(plan.split()) != sorted(words) for plan in plans):
        print(f"K = {K}, M = {M}: not yet: each rank needs each of", *sorted(words), "once")
        continue
    try:
        run = simulated(plans, together)
    except simlib.DeadlockError as error:
        print(f"K = {K}, M = {M}: not yet:", str(error).splitlines()[0])
        continue
    off = (flat(run) - flat(simulated(gpipe(1, M)))).abs().max() > 1e-6
    slow = abs(run.bubble().share - (K - 1) / (M + K - 1)) > 1e-9
    full = any(most_held(plan) > K - rank for rank, plan in enumerate(plans))
    wrong = ["wrong gradients"] * off + ["too slow"] * slow + ["holds too much"] * full
    print(f"K = {K}, M = {M}:", f"not yet: {', '.join(wrong)}" if wrong else "right")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def your_1f1b(K, M):
#         plans = []
#         for rank in range(K):
#             ahead = min(M, K - rank)
#             words = [f"F{micro}" for micro in range(ahead)]
#             for micro in range(M):
#                 words.append(f"B{micro}")
#                 if ahead + micro < M:
#                     words.append(f"F{ahead + micro}")
#             plans.append(" ".join(words))
#         return plans
#
# For K = 3 and M = 4 it returns "F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3" and "F0 B0 F1 B1 F2 B2
# F3 B3".
#
# </details>
#
# ## Why 1F1B hangs with `send` and `recv`
#
# The lesson continues with its own function `one_f_one_b`. We run its plans with `send_first`, which sends
# before it receives. GPipe worked with `send_first`, but this run will hang. That is intended. Which rank
# does rank 3 wait for? What does rank 3 want to do: send or receive?

# %% tags=["raises-exception"]
waits_for, wants_to = None, None  # "rank 0" to "rank 3"; "send" or "recv"


def one_f_one_b(K, M):
    plans = []
    for rank in range(K):
        forward, ahead = [f"F{micro}" for micro in range(M)], min(M, K - rank)
        words = forward[:ahead]
        for micro in range(M):
            words += [f"B{micro}", *forward[ahead + micro : ahead + micro + 1]]
        plans.append(" ".join(words))
    return plans


simulated(one_f_one_b(4, 8), send_first)

# %% [markdown]
# Rank 2 sends activations to the right, and rank 3 sends a gradient to the left. Each of the two waits
# until the other receives. You know this deadlock from lesson 03, and from lesson 10's plans FFBB and FBFB.
# In GPipe all messages go to the right while the ranks do forwards, and to the left while they do
# backwards. In 1F1B two neighbours want to send to each other at the same moment.
#
# There are two repairs. The first one is `together`. The second one is an **order**: even ranks send first,
# and odd ranks receive first. So of two neighbours, one always sends first, and the other receives first.
# **Now you write it:** change `by_order`, and see whether 1F1B and GPipe work with it. The first lines of
# the output are about your guesses for rank 3.


# %%
def by_order(outgoing, incoming):
    calls = [(dist.send, outgoing), (dist.recv, incoming)]
    for call, message in calls:  # yours: which rank has to turn them round?
        if message:
            call(*message)
    return []


simlib.guess(waits_for, "rank 2", of=[f"rank {rank}" for rank in range(4)])
simlib.guess(wants_to, "send", of=("send", "recv"))
for name, plan in {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}.items():
    for exchange in (together, by_order):
        outcome = ""
        try:
            print(name, exchange.__name__, f"bubble {simulated(plan, exchange).bubble().share:.4f}")
        except simlib.DeadlockError as error:
            outcome = str(error).splitlines()[0]
            print(name, exchange.__name__, "hangs:", outcome)
print("by_order for 1F1B:", "not yet" if outcome else "right")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     for call, message in calls if dist.get_rank() % 2 == 0 else calls[::-1]:
#
# This order repairs 1F1B, but it makes GPipe hang. After its last forward, rank 1 has activations to send,
# and a gradient to receive. Rank 1 is odd, so it waits for the gradient first. But rank 2 needs these last
# activations before it can compute any gradient.
#
# </details>
#
# So an order that repairs one plan can break another. `together` works for both plans. But a rank then waits
# until its neighbour receives. If ranks do more forwards ahead, this wait can be endless. For such plans we
# write another exchange below, `post`.
#
# ## Does 1F1B have the smaller bubble?
#
# People often write that 1F1B has a smaller bubble than GPipe. But the last cell printed the same bubble
# for both, $(K-1)/(M+K-1)$. So with equal stages and free messages the claim is wrong. What is 1F1B good
# for, then? We look at lesson 10's ledger, which counts the bytes that each rank holds. M doubles from 8 to
# 16. By which factor does the peak of rank 0's activations grow, with GPipe and with 1F1B?
#
# Then the cell breaks two assumptions of the formula, for M = 8. One run has unequal stages, and one run
# has messages of 1 ms. Which schedule is faster with messages of 1 ms?

# %%
factors, faster = {"GPipe": None, "1F1B": None}, None  # "GPipe", "1F1B" or "neither"


def activations(run):
    return [ledger.peak["activations and temporaries"] for ledger in run.memory]


peaks, costly_s = {}, {}
for M in (4, 8, 16):
    for name, plan in {"GPipe": gpipe(4, M), "1F1B": one_f_one_b(4, M)}.items():
        peaks[name, M] = activations(simulated(plan, together))
        in_KB = [f"{nbytes / 1e3:7.1f}" for nbytes in peaks[name, M]]
        print(f"M = {M:2}, {name:5}: KB at the peak of ranks 0 to 3", *in_KB)
for name, plan in {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}.items():
    simlib.guess(factors[name], peaks[name, 16][0] / peaks[name, 8][0], within=0.1)
    unequal = simulated(plan, together, 1, [0, 1, 3, 6, 8])
    costly_s[name] = simulated(plan, together, link=simlib.Link(1e-3, math.inf)).time_s
    print(f"{name:5}: 1 + 2 + 3 + 2 blocks {unequal.time_s * 1e3:.1f} ms,", end=" ")
    print(f"messages of 1 ms {costly_s[name] * 1e3:.1f} ms")
simlib.guess(faster, min(costly_s, key=costly_s.get), of=("GPipe", "1F1B", "neither"))
simulated(one_f_one_b(4, 8), together).timeline()

# %% [markdown]
# GPipe's peak grows with M. When M is at least K, the peak of 1F1B does not grow: rank r holds at most K -
# r micro-batches. **1F1B saves memory.** So you can afford a large M, and a large M makes the bubble small.
#
# With unequal stages 1F1B is 3 % faster: its ranks do backwards while GPipe's ranks wait for the last
# forward. With messages of 1 ms 1F1B is 1 ms faster. In the lab below ranks post their receives earlier,
# and there GPipe is faster. With equal stages and free messages, the two bubbles are equal.
#
# ## Interleaved: more stages than ranks
#
# While the pipeline fills, the last rank waits for $K - 1$ *stages*. Shorter stages make this wait shorter.
# So each rank gets v = 2 short stages instead of one long stage: rank r has the stages r and r + K. A
# micro-batch goes through all ranks twice (Narayanan et al. 2021). A rank has as much work as before: $v M$
# short forwards and $v M$ short backwards. But now it waits only for $K - 1$ *short* forwards and
# backwards:
#
# $$\text{bubble} = \frac{K - 1}{v M + K - 1}$$
#
# The schedule takes micro-batches in groups of K, so **M must be divisible by K**. A group goes through the
# first K stages, then through the next K. Each rank alternates one forward and one backward, as in 1F1B.
# But before its first backward, rank r has to do more forwards than in 1F1B. It does $2 (K - 1 - r)$
# forwards for the way to the last rank and back, K for each of the $v - 1$ further rounds through the
# ranks, and one more.
#
# Now the last rank also sends to the first rank, so the ranks form a ring. `together` waits for its send
# and its receive. `post` starts its send, and does not wait for it.


# %%
def interleaved(K, M, v):
    if M % K:
        raise ValueError(f"M = {M} micro-batches cannot be dealt out in groups of K = {K}")
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


# %% [markdown]
# The cell first prints the plans for K = 2 and M = 2. `F0@2` is the forward of micro-batch 0 in stage 2.
# Then it runs K = 4 and M = 8. Does that run work with `together`? How large is the bubble? 1F1B sends 48
# messages. How many times as many messages does the interleaved plan send?

# %%
works, bubble, times_messages = None, None, None  # "yes" or "no"; 0 to 1; of 1F1B's 48
print(*interleaved(2, 2, 2), sep="\n")
outcome = "yes"
for exchange in (together, post):
    try:
        run = simulated(interleaved(4, 8, 2), exchange, 2)
    except simlib.DeadlockError as error:
        print(exchange.__name__, "hangs:", str(error).splitlines()[0])
        outcome = "no"
print(f"bubble {run.bubble().share:.4f}, formula {3 / (2 * 8 + 3):.4f};", end=" ")
print("KB at the peak", *(f"{nbytes / 1e3:.1f}" for nbytes in activations(run)))
plain = simulated(one_f_one_b(4, 8), post)
print(f"messages: {sum(run.messages)}, with 1F1B {sum(plain.messages)}")
simlib.guess(works, outcome, of=("yes", "no"))
simlib.guess(bubble, run.bubble().share, within=0.05)
simlib.guess(times_messages, sum(run.messages) / sum(plain.messages), within=0.15)
labs.draw_pipeline(K=4, M=8, schedule="interleaved", v=2)

# %% [markdown]
# The picture shows this plan. It is computed from a model, and the run has the same bubble. The number in a
# box is the micro-batch. A strong colour marks a rank's first stage, and a pale colour marks its second
# one.
#
# With `together` the run hangs. Each rank waits until its neighbour receives, but the neighbour will do
# that only in its *next* exchange. In 1F1B the ranks form a line. There the last rank sends no activations
# to the right, so it can receive, and then the other ranks can go on one by one. In a ring no rank is the
# last. With `post` the run works. The bubble shrinks from 27 % to 16 %. But this has a price. The ranks
# send 2.3 times as many messages, and some of these go between the last rank and the first. And rank 0
# holds 671 KB of activations. With 1F1B it held 455 KB.
#
# ## A lab: compare the schedules
#
# The lab computes its pictures from a model. Below a rank's lane you see how many micro-batches it holds.
# A rank's forward of one micro-batch takes 1 unit of time. Ranks post their receives early, so messages
# travel while ranks compute. Try three changes:
#
# 1. Change GPipe to 1F1B. What moves, and what does not?
# 2. Find the smallest M with a bubble below 10 %.
# 3. Let messages take 0.5, with GPipe and with 1F1B. How much longer does each step take?
#
# <details><summary>Answers</summary>
#
# 1. The backwards start earlier, and each rank holds fewer micro-batches. The step takes as long as before.
# 2. M = 28.
# 3. GPipe takes 36 instead of 33, because it waits only while the pipeline fills and drains. 1F1B takes 41,
#    because it waits in every round. Its K - r forwards at the start are just enough for the way to the end
#    and back if messages are free. If messages take time, it would need more of these forwards.
#
# </details>

# %%
labs.draw_pipeline(K=4, M=8, schedule="gpipe")

# %% tags=["nbval-ignore-output"]
labs.pipeline_lab(K=4, M=8, schedule="gpipe")

# %% [markdown]
# ## Your turn
#
# Now you can do tasks 3 and 4 of [exercises 11](../exercises/11_pipelines.ipynb).
#
# [Questions on programs](../docs/questions.md) show you programs, and ask what they print.
#
# ## Exit ticket
#
# 1. You replace GPipe by 1F1B at the same M, and nothing gets faster. Was the change useless?
# 2. Why does 1F1B hang with `send` and `recv`, while GPipe works?
# 3. K = 4, M = 6: can you interleave two stages on each rank?
#
# <details><summary>Answers</summary>
#
# 1. No. Rank r now holds K - r micro-batches instead of M, so you can raise M.
# 2. In 1F1B two neighbours send to each other at the same time. In GPipe all messages go one way at a time.
# 3. No, because 6 is not divisible by 4. You can with M = 8.
#
# </details>
#
# **Next:** run torch's own pipelines, in [11 c](11_torchs_pipelines.ipynb).
