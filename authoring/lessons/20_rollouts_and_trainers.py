# %% [markdown]
# # 20 Rollouts and trainers
#
# A language model can learn from its own answers. It writes an answer to a prompt, a program gives the answer a
# reward, and training makes answers with a high reward more likely. This is **reinforcement learning**. An answer
# with its reward is called a **rollout**. Ranks that write rollouts are called **generators**. Ranks that learn from
# rollouts are called **trainers**. They send new weights to the generators.
#
# Take [lesson 13](13_asynchronous_training.ipynb) first. From there you need the server that receives from any
# source, and staleness. In this first part (60 minutes) you will
#
# - see why a synchronous step waits for its longest rollout,
# - write the queue between generators and trainers, with a bound on staleness,
# - measure what a larger bound saves, and what old rollouts cost,
# - divide 64 ranks into generators and trainers.
#
# ## A policy that learns from its own answers
#
# Our model has only 8 prompts and 8 possible answers, and each prompt has one right answer. The
# **policy** is a table of 8 x 8 numbers. The softmax of a row gives the probability of each answer to this prompt.
# The reward is 1 for the right answer, and 0 otherwise.
#
# Rollouts have numbers 0, 1, 2 and so on. The number is also the rollout's seed. `TOKENS` says how many tokens each
# answer has. Such lengths are **long-tailed**: most answers are short, and a few are many times as long.

# %%
import time

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F

import simlib

RIGHT = torch.tensor([5, 2, 7, 0, 3, 3, 6, 1])  # the right answer to each prompt
LOG = torch.randn(8192, generator=torch.Generator().manual_seed(0))
TOKENS = (600 * LOG.exp()).int().clamp(max=4096)  # an answer is cut off after 4,096 tokens


def rollout(theta, number):
    random = torch.Generator().manual_seed(number)
    prompt = int(torch.randint(8, (), generator=random))
    p = torch.softmax(theta[prompt], 0)
    answer = int(torch.multinomial(p, 1, generator=random))
    return prompt, answer, p[answer].item(), float(answer == RIGHT[prompt])


print(f"tokens: median {TOKENS.median()}, mean {TOKENS.float().mean():.0f}, max {TOKENS.max()}")

# %% [markdown]
# ## A step waits for its longest rollout
#
# The smallest program has only one kind of rank. Each rank writes 4 rollouts, at 10 ms a token. Then it trains on
# them, at 2.5 ms a token. An all_reduce adds up the gradients. We only look at the time, so the gradients are zeros.
#
# For how many percent of the time do the 8 ranks wait, on average?

# %%
percent = None  # of the time


def in_one_place(rank, world_size, steps):
    for step in range(steps):
        first = (step * world_size + rank) * 4
        with simlib.span("write", step=step):
            simlib.compute(seconds=0.01 * TOKENS[first : first + 4].sum().item())
        with simlib.span("train", step=step):
            simlib.compute(seconds=0.0025 * TOKENS[first : first + 4].sum().item())
        dist.all_reduce(torch.zeros(64))


run = simlib.simulate(in_one_place, 8, (4,))
simlib.guess(percent, 100 * run.states.waiting_s.sum() / run.time_s / 8, within=0.15)
run.timeline()

# %% [markdown]
# In the hatched parts, ranks wait for the rank that has the longest answers in this step.
#
# ## Roles
#
# So we separate the two kinds of work. Rank 0 becomes the **controller**. It computes nothing and needs no GPU. Ranks
# 1 to T are the trainers. All other ranks are generators. This table lists the messages, which are all float32:
#
# | from | to | numbers | content |
# |---|---|---|---|
# | generator | 0 | 64 | a finished rollout: number, version, prompt, answer, probability, reward, tokens. The first message has number -1: "I have no work yet" |
# | 0 | generator | 66 | work: the rollout's number, the **version** of the weights, the weights. Number -1 means stop |
# | 0 | each trainer | B x 8 | a batch of B rollouts |
# | rank 1 | 0 | 64 | the weights after a training step |
#
# The version of the weights is the number of training steps that made them. All messages to rank 0 have 64 numbers,
# so one buffer receives each of them.

# %%
RATE = 8.0


def generator(token_s):
    said, work = torch.full((64,), -1.0), torch.zeros(66)
    while True:
        dist.send(said, dst=0)
        dist.recv(work, src=0)
        number = int(work[0])
        if number < 0:
            return
        simlib.compute(seconds=token_s * int(TOKENS[number]))
        row = rollout(work[2:].view(8, 8), number)
        said[:7] = torch.tensor([number, work[1], *row, TOKENS[number]])


def ones(theta, rows):
    return torch.ones(len(rows))


def gradient(theta, rows, weights):
    prompt, answer = rows[:, 2].long(), rows[:, 3].long()
    gain = weights(theta, rows) * (rows[:, 5] - rows[:, 7])  # column 7: the mean of the batch
    one = F.one_hot(answer, 8) - torch.softmax(theta, 1)[prompt]
    return torch.zeros(8, 8).index_add_(0, prompt, gain[:, None] * one)


# %% [markdown]
# A trainer takes every T-th rollout of the batch. Its gradient raises the probability of answers whose reward is
# above the mean of the batch, and lowers that of the others. Here `weights` is `ones`, which changes nothing. All
# trainers take the same time, as if they divided the tokens evenly.


# %%
def trainer(rank, T, steps, B, token_s, weights, group):
    theta, log = torch.zeros(8, 8), []
    for step in range(steps):
        dist.recv(rows := torch.zeros(B, 8), src=0)
        if rows[:, 0].tolist() != list(range(B * step, B * step + B)):
            raise ValueError(f"batch {step} has other rollouts, or another order")
        simlib.compute(seconds=token_s * rows[:, 6].sum().item() / T)
        g = gradient(theta, rows[rank - 1 :: T], weights)
        dist.all_reduce(g, group=group)
        theta += RATE / B * g
        if rank == 1:
            dist.send(theta.flatten(), dst=0)
        reward = torch.softmax(theta, 1)[range(8), RIGHT].mean().item()
        log.append((time.perf_counter(), reward))  # the exact mean reward of the policy
    return log


def main(rank, world_size, control, T, k, steps=4, B=32, weights=ones, token_s=0.01):
    group = dist.new_group(range(1, T + 1))
    if rank == 0:
        return control(T, k, steps, B, range(T + 1, world_size))
    if rank <= T:
        return trainer(rank, T, steps, B, token_s / 4, weights, group)
    generator(token_s)


# %% [markdown]
# ## The queue, and its bound
#
# The controller hands out work and keeps the finished rollouts. Batch i has the rollouts B i to B i + B - 1, in every
# run. Training on batch i makes version i + 1. The **staleness** of a rollout is the number of training steps between
# its weights and its training: if a rollout of batch i began with version v, its staleness is i - v.
#
# We want a **bound**: no rollout may have a staleness above k. The controller could throw old rollouts away, but then
# it would lose mostly the long ones. So it does not even begin a rollout that could become too old. Rollout n is in
# batch n // B, so it may begin when the version is at least n // B - k. With k = 0 training is synchronous. AReaL
# (Fu et al. 2025, arXiv 2505.24298) limits the number of rollouts in the same way.
#
# **Now you write it:** what the controller does after rank `src` sent the message `came`. Keep this order:
#
# 1. If a trainer sent `came`, it is the new `theta`. The version grows by 1, and the trainers are free.
# 2. If a generator sent `came`, this generator is idle: append it to `idle`. If `came` is a rollout, keep it in
#    `done`, under its number.
# 3. While a generator is idle and the next rollout may begin, call `hand_out` for the first idle one. `begun` counts
#    the rollouts that have begun. Never begin more than B · steps.
# 4. If the trainers are free and the next batch is complete, call `train` with its rollouts, in the order of their
#    numbers.
#
# `hand_out` and `train` send the messages of the table.


# %%
def hand_out(dst, number, version, theta):
    dist.send(torch.cat([torch.tensor([number, version]), theta]), dst=dst)


def train(rollouts, T):
    rows = torch.stack([row[:8] for row in rollouts])
    rows[:, 7] = rows[:, 5].mean()
    for rank in range(1, T + 1):
        dist.send(rows, dst=rank)


def receive():
    came = torch.zeros(64)
    return dist.recv(came), came  # from any source


def your_control(T, k, steps, B, generators):
    theta, version, begun, done, idle, are_free = torch.zeros(64), 0, 0, {}, [], True
    while version < steps:
        src, came = receive()
        break  # yours, in place of this line
    for rank in generators:
        hand_out(rank, -1, version, theta)
    return begun, done, idle, are_free  # to look at if something is wrong


# %% [markdown]
# The check computes the staleness from the trace alone. The n-th message of work is for rollout n. The version is the
# number of times that rank 0 has received weights before. It also looks for idle generators.


# %%
def staleness(run, T, B=32):
    """The staleness of each rollout, by number, from the messages of rank 0."""
    version, ages = 0, []
    for op in run.trace.of_rank(0):
        version += op.kind == "recv" and op.peer == 1
        if op.kind == "send" and op.peer > T:
            ages.append(len(ages) // B - version)
    return ages


for k, most_s in ((0, 520), (1, 360), (2, 360)):
    verdict = "right"
    try:
        run = simlib.simulate(main, 14, (your_control, 1, k))
        ages = staleness(run, 1)[:-12]  # the last twelve messages say stop
        if len(ages) != 128 or max(ages) != k:
            verdict = f"not yet: {len(ages)} of 128 rollouts; staleness {max(ages)}, right is {k}"
        elif run.time_s > most_s:
            verdict = f"not yet: {run.time_s:.0f} s, at most {most_s}: is a generator left idle?"
    except (simlib.SimlibError, ValueError) as error:
        verdict = "not yet: " + str(error).splitlines()[0]
    print(f"k = {k}:", verdict)

# %% [markdown]
# <details><summary>Answer</summary>
#
#     if src <= T:
#         theta, version, are_free = came, version + 1, True
#     else:
#         idle.append(src)
#         if came[0] >= 0:
#             done[int(came[0])] = came
#     while idle and begun < B * min(version + k + 1, steps):
#         hand_out(idle.pop(0), begun, version, theta)
#         begun += 1
#     batch = range(B * version, B * version + B)
#     if are_free and all(n in done for n in batch):
#         train([done.pop(n) for n in batch], T)
#         are_free = False
#
# n // B - k ≤ version means the same as n < B (version + k + 1).
#
# </details>
#
# ## The same program on real ranks
#
# The lesson continues with its own `control`. `simlib.run` starts seven processes, which talk through Gloo. Unlike
# NCCL, Gloo can receive from any source. A token now takes 2 µs. Here k is 1. Real processes finish in a different
# order each time.


# %%
def control(T, k, steps, B, generators):
    theta, version, begun, done, idle, are_free = torch.zeros(64), 0, 0, {}, [], True
    while version < steps:
        src, came = receive()
        if src <= T:
            theta, version, are_free = came, version + 1, True
        else:
            idle.append(src)
            done[int(came[0])] = came
        while idle and begun < B * min(version + k + 1, steps):
            hand_out(idle.pop(0), begun, version, theta)
            begun += 1
        batch = range(B * version, B * version + B)
        if are_free and all(n in done for n in batch):
            train([done.pop(n) for n in batch], T)
            are_free = False
    for rank in generators:
        hand_out(rank, -1, version, theta)


run = simlib.run(main, 7, args=(control, 2, 1, 4, 32, ones, 2e-6))
ages = staleness(run, 2)[:128]
print("real ranks:", len(ages), "rollouts; largest staleness", max(ages))

# %% [markdown]
# The bound holds in any order.
#
# ## What does a larger bound save?
#
# Now 8 generators and 2 trainers take 12 steps. Writing takes four times as long as training, so all ranks have the
# same amount of work. Divide the time for k = 0 by that for k = 1. What do you expect?

# %%
times = None  # time of k = 0 / time of k = 1

took_s = {}
for k in (0, 1, 2, 3, 8):
    run = simlib.simulate(main, 11, (control, 2, k, 12))
    busy, ages = run.states.computing_s / run.time_s, staleness(run, 2)[:384]
    took_s[k] = run.time_s
    print(f"k = {k}: {run.time_s:5.0f} s; busy: trainers {busy[1]:.0%}, generators", end=" ")
    print(f"{busy[3:].mean():.0%}; staleness: mean {sum(ages) / 384:.2f}, largest {max(ages)}")
simlib.guess(times, took_s[0] / took_s[1], within=0.2)

# %% [markdown]
# With k = 0 the two kinds of ranks take turns, and each turn waits for the longest rollout. So every rank is busy for
# only 41 % of the time. With k = 1 the generators write the next batch while the trainers learn from this one. So
# the run is 1.8 times as fast. With k = 2 a rollout may take as long as training on two batches before the trainers
# wait for it. From k = 3 on nothing changes, because here no rollout gets older than 3.
#
# ## What do old rollouts cost?
#
# Next we have too many generators: 12 for one trainer. With a large k the queue is soon full, and after some time
# rollouts get as old as the bound allows. With k = 0 the policy needs 16 steps until it gives the right answer in 80
# % of cases. With k = 4 it needs 19 steps. How many steps does it need with k = 16?

# %%
steps_16 = None  # training steps to 80 %, with k = 16


def steps_to(log):
    return next(step for step, (_, reward) in enumerate(log, 1) if reward > 0.8)


figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
for k, style in ((0, "-"), (4, "--"), (16, ":")):
    run = simlib.simulate(main, 14, (control, 1, k, 30))
    log, ages = run.results[1], staleness(run, 1)[:960]
    axes.plot(range(1, 31), [reward for _, reward in log], style, label=f"k = {k}")
    print(f"k = {k:2}: {log[-1][0]:5.0f} s for 30 steps; {steps_to(log)} steps to 80 %;", end=" ")
    print(f"mean staleness {sum(ages) / 960:.2f}")
simlib.guess(steps_16, steps_to(log), within=0.25)
axes.set(xlabel="training steps", ylabel="mean reward of the policy", ylim=(0, 1))
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# With k = 16 the policy needs 23 steps. And the run is no faster than with k = 4, because the trainer
# is busy all the time. At the end the curve of k = 16 is a little higher, because old rollouts
# still contain wrong answers to learn from.
#
# ## Importance weights for old rollouts
#
# The trainer takes a mean over the answers of the batch. This mean would be right if the *new* policy had written
# them. But an old policy wrote them, with other probabilities. So each rollout gets an **importance weight** $p / q$.
# Here $p$ is the probability of this answer under the new policy, and $q$ under the old one. An answer that the new
# policy gives twice as often as the old one counts twice. $g_a$ is the gradient of answer $a$:
#
# $$\sum_a q_a\, \frac{p_a}{q_a}\, g_a = \sum_a p_a\, g_a$$
#
# Column 4 of the batch has $q$. How many steps does the policy need now?

# %%
steps_corrected = None  # to 80 %, with k = 16 and weights


def corrected(theta, rows):
    p = torch.softmax(theta, 1)[rows[:, 2].long(), rows[:, 3].long()]
    return p / rows[:, 4]


log = simlib.simulate(main, 14, (control, 1, 16, 30, 32, corrected)).results[1]
print("k = 16 with weights:", steps_to(log), "steps to 80 %")
simlib.guess(steps_corrected, steps_to(log), within=0.1)

# %% [markdown]
# With these weights 17 steps are enough, almost as few as with k = 0. But if the two policies differ much, a single
# weight can be huge. So real programs limit the weight, for example to 2. PPO (Schulman et al. 2017, arXiv
# 1707.06347) has such a limit.
#
# ## How to divide 64 ranks
#
# Let R = 64 ranks be G generators and T trainers. On average, writing a rollout takes a = 10 ms · 917 = 9.2 s, and
# learning takes b = 2.3 s. Suppose that no rank ever waits for a single long rollout. Then a batch of B rollouts
# takes
#
# $$k = 0:\quad \frac{B a}{G} + \frac{B b}{T} \qquad\qquad
# \text{large } k:\quad \max\Big(\frac{B a}{G}, \frac{B b}{T}\Big)$$
#
# With k = 0 the two kinds of ranks take turns, so the times add up. With a large k they work at the same time, and
# the slower kind sets the pace.
#
# **Now you write it:** `best_T` returns the best whole number of trainers. For k = 0, set the derivative of the sum
# to zero. For a large k, find the G and T that make both kinds equally fast. Then round T. The check tries every T.


# %%
def best_T(a, b, R, is_large_k):
    return None  # yours


for a, b, R in ((9.2, 2.3, 64), (4.0, 4.0, 64), (90.0, 10.0, 200)):
    for is_large_k in (False, True):
        of_T = {T: (a / (R - T), b / T) for T in range(1, R)}
        best_s = min((max if is_large_k else sum)(times) for times in of_T.values())
        yours = of_T.get(best_T(a, b, R, is_large_k))
        found_s = (max if is_large_k else sum)(yours) if yours else float("inf")
        print("right" if found_s < 1.03 * best_s else "not yet", end="\n" if is_large_k else ", ")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     ratio = a / b if is_large_k else (a / b) ** 0.5
#     return round(R / (1 + ratio))
#
# `ratio` is G / T, and G + T = R.
#
# </details>
#
# Now our program runs on 64 ranks and a controller, with B = 128. For k = 0 the formula prefers 21 trainers, and for a
# large k it prefers 13. How many seconds longer than the formula predicts does a batch take with k = 0 and 21
# trainers? By the formula, writing takes 27 of the 41 s. A rollout of 4,096 tokens takes 41 s, and begins on average
# in the middle of these 27 s.

# %%
longer_s = None  # a batch with k = 0 and 21 trainers

write_s = 128 * 0.01 * TOKENS.float().mean().item()  # of a batch, by one rank
for k, T in ((0, 13), (0, 21), (2, 13), (2, 21)):
    log = simlib.simulate(main, 65, (control, T, k, 6, 128)).results[1]
    batch_s = (log[-1][0] - log[1][0]) / 4
    parts = write_s / (64 - T), write_s / 4 / T
    formula_s = max(parts) if k else sum(parts)
    print(f"k = {k}, {T} trainers: {batch_s:4.1f} s a batch, by the formula {formula_s:4.1f} s")
    simlib.guess(longer_s if (k, T) == (0, 21) else None, batch_s - formula_s, within=0.2)

# %% [markdown]
# The runs confirm the formulas' choice. With k = 0 a batch takes 27 or 28 s longer than the formula predicts. The
# generators finish at different times, and all ranks wait for the last. No split makes a long rollout
# shorter. With k = 2 this wait is nearly gone.
#
# There is a third plan, **colocation**, as in our first program: all 64 ranks write, and then all 64 learn. Each batch
# takes $B (a + b) / R$, plus the wait for the longest rollout. But then each device needs memory for both kinds of
# work.
#
# ## Your turn
#
# You can now do tasks 1 and 4 of [exercises 20](../exercises/20_rollouts_and_trainers.ipynb): the best split, and a
# controller whose generators die.
#
# ## Exit ticket
#
# 1. Why does throwing away rollouts that are too old change *what* the model learns?
# 2. The trainers are busy all the time. What do you gain with a larger k?
# 3. Writing a rollout takes nine times as long as learning from it. What share of the ranks should be trainers with
#    k = 0, and with a large k?
#
# <details><summary>Answers</summary>
#
# 1. Long rollouts are under way for many steps, so they are thrown away most often. The model then learns mostly from
#    short answers.
# 2. Nothing. The rollouts only get older.
# 3. With k = 0, G / T is 3, so a quarter of the ranks should be trainers. With a large k, G / T is 9, so a tenth
#    should be.
#
# </details>
#
# **Next:** weights from sharded trainers to many generators, in [the second part](20_weights_to_generators.ipynb).
