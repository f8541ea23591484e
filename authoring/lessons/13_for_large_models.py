# %% [markdown]
# # 13 Asynchronous methods for large models
#
# This is the fourth and last part of lesson 13. [The first part](13_asynchronous_training.ipynb) built DiLoCo with plain
# SGD inside, and [the second part](13_cost_of_staleness.ipynb) measured what old gradients cost. Large models use both
# ideas today. In this part (50 minutes) you will
#
# - write DiLoCo as the paper has it, with AdamW inside,
# - measure what happens to AdamW's state in three variants,
# - send the model in fragments while the ranks compute,
# - train on old data, and keep the training stable.
#
# The digits and the model are those of the first part.

# %%
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

import simlib

images, labels = simlib.digits.load()[0].tensors
images = F.avg_pool2d(images - images.mean(), 2).flatten(1)
SHAPES = [(196, 32), (32,), (32, 10), (10,)]
SIZES = [math.prod(shape) for shape in SHAPES]
P = sum(SIZES)
AVG = dist.ReduceOp.AVG


def start():
    torch.manual_seed(0)
    layers = [torch.randn(s) / s[0] ** 0.5 if len(s) == 2 else torch.zeros(s) for s in SHAPES]
    return torch.cat([layer.flatten() for layer in layers])


# %% [markdown]
# With `alike=True` all ranks draw from the same digits. With `alike=False` the digits are sorted, and each of the four
# ranks has its own. A gradient takes 1 ms. The network is slow: 25 Mbit/s, and 0.1 ms of latency.


# %%
def loss_of(theta, x=images, y=labels):
    w1, b1, w2, b2 = (part.view(s) for part, s in zip(theta.split(SIZES), SHAPES, strict=True))
    return F.cross_entropy(torch.relu(x @ w1 + b1) @ w2 + b2, y)


def gradients(rank, alike=True):
    """Return a function: the gradient at theta, of 32 examples of this rank's own."""
    random = torch.Generator().manual_seed(100 + rank)
    order = torch.arange(len(labels)) if alike else labels.argsort(stable=True)
    own = order if alike else order.tensor_split(4)[rank]

    def gradient(theta):
        at = own[torch.randint(len(own), (32,), generator=random)]
        theta = theta.detach().clone().requires_grad_()
        loss_of(theta, images[at], labels[at]).backward()
        simlib.compute(seconds=1e-3)
        return theta.grad

    return gradient


def slow_network(ranks=4, mbit=25):
    return simlib.Cluster(ranks, 1, inter=simlib.Link(100e-6, mbit * 1e6 / 8))


HOW = {"cluster": slow_network(), "all_reduce": "ring", "expand": True}

# %% [markdown]
# ## AdamW inside DiLoCo
#
# In DiLoCo (Douillard et al. 2023, [arXiv 2311.08105](https://arxiv.org/abs/2311.08105)) a rank takes H steps of its
# own with the **inner optimizer**, AdamW. Then the ranks average their parameters, and the **outer optimizer**, SGD with
# Nesterov momentum, takes one step. AdamW keeps two numbers for each parameter: a running mean of the gradients, and a
# running mean of their squares. These are its two **moments**.
#
# The next program is a first try. It puts AdamW into the first part's `local`. The parameters of a rank are called
# `mine`. One line is wrong, although no error is raised. Which line is it? We train for 8 rounds with H = 16. A correct
# program ends with a loss of 0.139.


# %%
def first_try(rank, world_size, rounds, H):
    gradient, losses = gradients(rank), []
    mine, agreed, momentum = torch.nn.Parameter(start()), start(), torch.zeros(P)
    inner = torch.optim.AdamW([mine], lr=0.004)
    for _ in range(rounds):
        for _ in range(H):
            mine.grad = gradient(mine)
            inner.step()
        dist.all_reduce(mine.data, op=AVG)
        d = agreed - mine.detach()
        momentum = 0.9 * momentum + d
        agreed = agreed - 0.7 * (0.9 * momentum + d)
        mine = torch.nn.Parameter(agreed.clone())
        losses.append(round(loss_of(agreed).item(), 3))
    return losses, d.abs().max().item()


losses, change = simlib.simulate(first_try, 4, (8, 16), **HOW).results[0]
print("loss after each round:", losses)
print("largest change of a parameter in the last round:", change)

# %% [markdown]
# In the last round the inner optimizer changes no parameter of `mine`. The line `mine = ...` makes a *new* parameter,
# but the optimizer still has the old one. From the second round on, `inner.step()` changes a tensor that nobody reads.
# Theta moves only because of the outer momentum.
#
# So keep the parameter, and copy the new numbers into it: `mine.data.copy_(agreed.data)`. Then AdamW also keeps its
# moments. As in the paper, they stay on their own rank from round to round.
#
# The outer optimizer needs a gradient. Its **outer gradient**, or pseudo-gradient, is the start of the round minus the
# mean of the ends. It points back to the start, because an optimizer *subtracts* gradients.
#
# **Now you write it:** the rounds. `inner` changes `mine`, and `outer` changes `agreed`. In each round
#
# 1. take H inner steps. For each, set `mine.grad` to `gradient(mine)`.
# 2. set `agreed.grad` to `agreed` minus `mine`, both detached. Average it over all ranks with one all_reduce.
# 3. let the outer optimizer take a step, and copy `agreed` into `mine`.
#
# The check uses three cases in which DiLoCo equals a simpler training in one process:
#
# - With H = 1, SGD inside, and SGD of rate 1 outside, it is synchronous SGD.
# - With one rank, and SGD of rate 1 outside, it is AdamW alone.
# - With H = 1, SGD of rate 0.2 inside, and Nesterov of rate 0.7 outside, it is Nesterov of rate 0.14.
#
# Last, it looks at the bytes of each all_reduce in two rounds with H = 4.


# %%
def your_rounds(gradient, mine, agreed, inner, outer, rounds, H):
    return None  # yours


def your_diloco(rank, world_size, rounds, H, new_inner, new_outer):
    mine, agreed = torch.nn.Parameter(start()), torch.nn.Parameter(start())
    inner, outer = new_inner([mine]), new_outer([agreed])
    your_rounds(gradients(rank), mine, agreed, inner, outer, rounds, H)
    return agreed.detach()


def in_one_process(ranks, steps, new_optimizer):
    """Theta after so many steps of one optimizer, with the mean gradient of these ranks."""
    theta, draw = torch.nn.Parameter(start()), [gradients(rank) for rank in range(ranks)]
    optimizer = new_optimizer([theta])
    for _ in range(steps):
        theta.grad = torch.stack([gradient(theta) for gradient in draw]).mean(0)
        optimizer.step()
    return theta.detach()


# %%
def sgd(rate, **options):
    return lambda parameters: torch.optim.SGD(parameters, rate, **options)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.004)


NESTEROV = {"momentum": 0.9, "nesterov": True}
CASES = {
    "synchronous SGD": ((4, 8, 1, sgd(0.2), sgd(1.0)), sgd(0.2)),
    "AdamW alone": ((1, 4, 4, adamw, sgd(1.0)), adamw),
    "Nesterov": ((4, 8, 1, sgd(0.2), sgd(0.7, **NESTEROV)), sgd(0.14, **NESTEROV)),
}
for name, ((ranks, rounds, H, *new), new_optimizer) in CASES.items():
    run = simlib.simulate(your_diloco, ranks, (rounds, H, *new), cluster=slow_network(ranks))
    off = (run.results[0] - in_one_process(ranks, rounds * H, new_optimizer)).abs().max().item()
    print(f"{name}:", "right" if off < 1e-4 else f"not yet, theta is off by up to {off:.1g}")
run = simlib.simulate(your_diloco, 4, (2, 4, adamw, sgd(1.0)), cluster=slow_network())
sent, needed = [c.nbytes for c in run.trace.collectives], [4 * P] * 2
print("bytes:", "right" if sent == needed else f"not yet, you sent {sent}, not {needed}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     for _ in range(rounds):
#         for _ in range(H):
#             mine.grad = gradient(mine)
#             inner.step()
#         agreed.grad = agreed.detach() - mine.detach()
#         dist.all_reduce(agreed.grad, op=AVG)
#         outer.step()
#         mine.data.copy_(agreed.data)
#
# </details>
#
# ## What it saves, and what may go wrong
#
# The next cell has the lesson's own `diloco`. It has three ways to treat the moments after each round:
#
# - `local`: each rank keeps its own moments, as in the paper.
# - `averaged`: the ranks average both moments.
# - `reset`: each rank makes a new AdamW, so its moments begin at zero.
#
# With `sign=-1` the outer gradient points the wrong way.
# In `data_parallel` all ranks average their gradients at each step.


# %%
def diloco(rank, world_size, H, state="local", alike=True, sign=1, steps=128):
    gradient = gradients(rank, alike)
    mine, agreed = torch.nn.Parameter(start()), torch.nn.Parameter(start())
    inner, outer = adamw([mine]), sgd(0.7, **NESTEROV)([agreed])
    for step in range(1, steps + 1):
        with simlib.span("inner", step=step):
            mine.grad = gradient(mine)
        inner.step()
        if step % H == 0:
            agreed.grad = sign * (agreed.detach() - mine.detach())
            dist.all_reduce(agreed.grad, op=AVG)
            outer.step()
            mine.data.copy_(agreed.data)
            if state == "averaged":
                for moment in ("exp_avg", "exp_avg_sq"):
                    dist.all_reduce(inner.state[mine][moment], op=AVG)
            inner = adamw([mine]) if state == "reset" else inner
    return loss_of(agreed).item()


def data_parallel(rank, world_size, alike=True, steps=128):
    gradient, mine = gradients(rank, alike), torch.nn.Parameter(start())
    optimizer = adamw([mine])
    for _ in range(steps):
        mine.grad = gradient(mine)
        dist.all_reduce(mine.grad, op=AVG)
        optimizer.step()
    return loss_of(mine).item()


# %% [markdown]
# We compare `diloco` for H = 16 with `data_parallel`. One all_reduce takes 13.3 ms. Before the training, the loss is
# 2.29.

# %%
runs = {
    "data parallel": simlib.simulate(data_parallel, 4, **HOW),
    "DiLoCo, H = 16": simlib.simulate(diloco, 4, (16,), **HOW),
}
for name, run in runs.items():
    print(f"{name:14}: {sum(m.nbytes for m in run.wire):10,} bytes", end=", ")
    print(f"{1e3 * run.time_s:6,.0f} ms, loss {run.results[0]:.3f}")
print(f"four real processes: loss {simlib.run(diloco, 4, args=(16,)).results[0]:.3f}")
run.timeline(between=(0, 0.06))

# %% [markdown]
# DiLoCo sends exactly a 16th of the bytes. It is only 7.8 times as fast, because the inner steps take 128 ms in any
# case. Its loss is a little higher. In the paper, 8 workers train a language model with H = 500. This model becomes as
# good as a model from synchronous training.
#
# The next table has one row for each treatment of the moments, with H = 16. Averaging the moments triples the bytes.
# For only twice the bytes, the ranks can meet every 8 steps, with `local` moments. The fourth row shows this. If all
# ranks have their *own* digits, which row has the lowest loss?

# %%
lowest = None  # "local, H = 16", "averaged, H = 16", "reset, H = 16" or "local, H = 8"
ROWS = [(16, "local"), (16, "averaged"), (16, "reset"), (8, "local")]
own = {}
for H, state in ROWS:
    run, other = (simlib.simulate(diloco, 4, (H, state, alike), **HOW) for alike in (True, False))
    name = f"{state}, H = {H}"
    own[name] = other.results[0]
    print(f"{name:17}: {sum(m.nbytes for m in run.wire):9,} bytes", end=", ")
    print(f"loss {run.results[0]:.3f} alike, {own[name]:.3f} own")
wrong = simlib.simulate(diloco, 4, (16, "local", True, -1), **HOW)
print(f"wrong sign       : loss {wrong.results[0]:,.0f} alike")
simlib.guess(lowest, min(own, key=own.get), of=list(own))

# %% [markdown]
# - **The wrong sign** makes the outer optimizer go uphill, faster in each round.
# - **Averaging** the moments gains little if the ranks draw alike. With own digits it lowers the loss, for three times
#   the bytes. But H = 8 lowers the loss almost as much, for twice the bytes. So DiLoCo sends no moments.
# - **Resetting** lowers the loss if the ranks draw alike, but raises it with own digits. With larger models, this may
#   be different.
#
# ## Streaming: send while you compute
#
# The timeline above shows that no rank computes for 13.3 ms in each round. While the ranks compute, the network is idle.
# **Streaming DiLoCo** (Douillard et al. 2025, [arXiv 2501.18512](https://arxiv.org/abs/2501.18512)) changes two things:
#
# - The parameters are cut into **fragments**. Each fragment is still averaged every H steps, but each at another step.
#   With H = 16, fragment 0 of four is due after steps 4, 20, 36, ..., and fragment 1 after 8, 24, 40, ....
# - The ranks begin the all_reduce of a fragment and continue to compute. They take the outer step of this fragment
#   `late` steps later.
#
# This has a price. During the send, a rank takes `late` more inner steps, which change the fragment, too. Then the outer
# step overwrites the fragment, and these changes are lost. The paper mixes the new fragment with the rank's own, and so
# keeps a part of these changes. Our program does not. Its fragments are views of `mine`, and each has an outer optimizer
# of its own.


# %%
def streaming(rank, world_size, H, fragments, late, steps=128, alike=True):
    gradient, mine = gradients(rank, alike), torch.nn.Parameter(start())
    inner, parts = adamw([mine]), mine.data.tensor_split(fragments)
    agreed = [torch.nn.Parameter(part.clone()) for part in parts]
    outers = [sgd(0.7, **NESTEROV)([part]) for part in agreed]
    sent = {}
    for step in range(1, steps + 1):
        with simlib.span("inner", step=step):
            mine.grad = gradient(mine)
        inner.step()
        for f in range(fragments):
            since = (step - (f + 1) * H // fragments) % H  # steps since fragment f was due
            if since == 0:
                agreed[f].grad = agreed[f].detach() - parts[f]
                sent[f] = dist.all_reduce(agreed[f].grad, op=AVG, async_op=True)
            if f in sent and (since == late or step == steps):
                sent.pop(f).wait()
                outers[f].step()
                parts[f].copy_(agreed[f].data)
    return loss_of(mine).item()


# %% [markdown]
# With one fragment and `late` = 0 this is plain DiLoCo, which took 235 ms. How many ms do four fragments take that are
# 4 steps late? The table also has a row for one fragment, the whole model, that is 14 steps late.

# %%
ms_fragments = None
for fragments, late in ((1, 0), (1, 14), (4, 4)):
    run = simlib.simulate(streaming, 4, (16, fragments, late), **HOW)
    print(f"fragments: {fragments}, late: {late:2}: {1e3 * run.time_s:5.1f} ms", end=", ")
    print(f"{sum(m.nbytes for m in run.wire):9,} bytes, loss {run.results[0]:.3f}")
simlib.guess(ms_fragments, 1e3 * run.time_s, within=0.05)
run = simlib.simulate(streaming, 4, (16, 4, 4, 32), cluster=slow_network(), all_reduce="ring")
run.timeline()

# %% [markdown]
# The timeline shows a training of 32 steps. The pale strip at the bottom of a row is a send. All ranks compute without
# a pause. Only the last send is not hidden.
#
# The send of the *whole* model takes nearly 14 steps. So each outer step overwrites 14 of 16 inner steps, and the loss
# is twice as high. The send of a fragment takes nearly 4 steps, so only 4 are lost.
#
# With four ranks, a ring all_reduce of n numbers takes `A(n)` seconds. Each rank sends six messages, one after the
# other. Each message has n / 4 numbers, or n bytes. The check hands `A` to your function.
#
# **Now you write it:** how many seconds does a round of H steps take, for plain DiLoCo and for streaming? A step takes
# `step_s`. `late` is at most H / `fragments`, so a send ends before the next one begins. If a send takes longer than
# `late` steps, the ranks wait for the rest of it. The check simulates a round.


# %%
def round_s(H, fragments, late, step_s, A):
    return math.nan, math.nan  # yours: plain, streaming


def simulated(mbit, *setting):
    """Seconds of a round: the third of three."""
    how = HOW | {"cluster": slow_network(4, mbit)}
    jobs = [(streaming, 4, (16, *setting, steps)) for steps in (32, 48)]
    short, long = (simlib.simulate(*job, **how).time_s for job in jobs)
    return long - short


for mbit, fragments, late in ((25, 4, 4), (10, 4, 4), (100, 2, 1)):
    seen = simulated(mbit, 1, 0), simulated(mbit, fragments, late)
    bandwidth = mbit * 1e6 / 8  # in bytes per second
    yours = round_s(16, fragments, late, 1e-3, lambda n, b=bandwidth: 6 * (100e-6 + n / b))
    is_right = all(abs(x / s - 1) < 0.01 for x, s in zip(yours, seen, strict=True))
    differ = "not yet, yours: {:.1f} and {:.1f} ms".format(*(1e3 * x for x in yours))
    told = f"plain {1e3 * seen[0]:.1f} ms, streaming {1e3 * seen[1]:.1f} ms"
    print(f"{mbit:3} Mbit/s: {told}:", "right" if is_right else differ)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return H * step_s + A(P), H * step_s + fragments * max(0, A(P / fragments) - late * step_s)`
#
# </details>
#
# At 10 Mbit/s the ranks wait even for the fragments. Then a larger H helps, or fewer bits: the training of
# [INTELLECT-1](https://huggingface.co/PrimeIntellect/INTELLECT-1-Instruct), with 10 billion parameters, sent outer
# gradients with 8 bits a number. Streaming DiLoCo sends 4 bits a number, but computes the sums in 32 bits.
#
# ## Asynchronous reinforcement learning
#
# A language model first learns to write. After this phase, many models are trained by **reinforcement learning**: the
# model writes answers, each answer gets a **reward**, and training makes answers with a high reward more likely. The
# model is called the **policy**. If some ranks write while others train, an answer comes from the policy of k training
# steps ago. This answer is k **versions** old.
#
# One process can show the effect of old answers. Our policy is a table of 8 numbers. Their softmax gives the
# probabilities p of 8 answers. The rewards are 0, 1/7, ..., 1. In each step an old policy writes 32 answers. For each
# answer we compute the gradient of log p of this answer: a vector with a 1 at the answer and 0 elsewhere, minus p. A
# move along this gradient makes the answer more likely. We multiply the gradient by the reward minus the mean reward. So a
# good answer becomes more likely, and a bad answer less likely. The mean over the 32 answers is the step.
#
# But the old policy had other probabilities q. The **importance weight** p / q corrects this: if the new policy gives
# an answer twice as often, the answer counts twice. A weight can be large, so one of the three variants limits each
# weight to 2.


# %%
REWARDS = torch.linspace(0, 1, 8)
VARIANTS = {
    "no weights": lambda weight: torch.ones_like(weight),
    "weights": lambda weight: weight,
    "weights up to 2": lambda weight: weight.clamp(max=2),
}


def learn(k, variant, rate, seed, steps=60):
    """The expected reward after each step, and the largest p / q."""
    random, largest = torch.Generator().manual_seed(seed), 0.0
    versions, rewards = [torch.zeros(8)], []
    for step in range(steps):
        p = torch.softmax(versions[-1], 0)
        q = torch.softmax(versions[max(0, step - k)], 0)
        wrote = torch.multinomial(q, 32, replacement=True, generator=random)
        weight = p[wrote] / q[wrote]
        gain = variant(weight) * (REWARDS[wrote] - REWARDS[wrote].mean())
        move = (gain[:, None] * (torch.eye(8)[wrote] - p)).mean(0)
        versions.append(versions[-1] + rate * move)
        rewards.append((torch.softmax(versions[-1], 0) @ REWARDS).item())
        largest = max(largest, weight.max().item())
    return rewards, largest


# %% [markdown]
# Each row comes from 20 trainings. The row shows the mean number of steps until the expected reward is 0.9, the reward
# at the end of the worst training, and the largest p / q before any limit. With a learning rate of 8, the policy changes
# fast. Which variant then has the worst training, if k = 16?

# %%
worst_at_rate_8 = None  # "no weights", "weights" or "weights up to 2"
ends = {}
for rate, k in ((1, 0), (1, 16), (8, 16)):
    for name in VARIANTS if k else ["no weights"]:
        logs = [learn(k, VARIANTS[name], rate, seed) for seed in range(20)]
        need = [sum(reward < 0.9 for reward in rewards) for rewards, _ in logs]
        ends[name] = min(rewards[-1] for rewards, _ in logs)
        print(f"rate {rate}, k = {k:2}, {name:15}: {sum(need) / 20:4.1f} steps", end=", ")
        print(f"worst run ends at {ends[name]:.2f}, largest p / q: {max(m for _, m in logs):.1f}")
simlib.guess(worst_at_rate_8, min(ends, key=ends.get), of=list(VARIANTS))

# %% [markdown]
# At rate 1 the weights remove nearly all of the delay. At rate 8 the policy changes much in 16 versions. Some weights
# are large, so a few answers decide a step. The worst training ends with the second-best answer. The limit prevents
# this. The method PPO (Schulman et al. 2017, [arXiv 1707.06347](https://arxiv.org/abs/1707.06347)) has a limit, too. At
# rate 8 training without weights also ends well, because old answers still show which reward is best in this tiny
# problem.
#
# Real programs bound the age, and correct the rest:
#
# - **AReaL** (Fu et al. 2025, [arXiv 2505.24298](https://arxiv.org/abs/2505.24298)) limits the age in versions by
#   [`max_head_offpolicyness`](https://inclusionai.github.io/AReaL/algorithms/async.html). With 0 it is synchronous.
# - The **Tinker cookbook** limits [how far writing runs ahead](https://tinker-docs.thinkingmachines.ai/cookbook/rl/async/).
#   It throws no answer away, so a slow answer can be older.
# - **Hugging Face** compared [16 libraries](https://huggingface.co/blog/async-rl-training-landscape) in March 2026. They
#   reject old answers, bound the queue, or use importance weights.
#
# [Lesson 20](20_rollouts_and_trainers.ipynb) builds such a system on ranks: its queue, its bound, and the weights.
#
# ## Your turn
#
# You can now do tasks 5 (fragments) and 6 (old answers on many ranks) of
# [exercises 13](../exercises/13_asynchronous_training.ipynb).
#
# ## Exit ticket
#
# 1. A model has P parameters. How many numbers does DiLoCo average in each round? How many would it average with
#    AdamW's moments?
# 2. Why are late fragments better than a late whole model?
# 3. What does the importance weight correct, and why is it limited?
#
# <details><summary>Answers</summary>
#
# 1. It averages P numbers. With both moments it would average 3P.
# 2. The send of a fragment takes less time. So the fragment is fewer steps late, and fewer inner steps are overwritten.
# 3. With the weight, an old answer counts as often as the new policy would write it. A large weight lets one answer
#    decide the whole step.
#
# </details>
#
# **Next:** stragglers and failures, in [lesson 14](14_stragglers_and_failures.ipynb).
