# %% [markdown]
# # 17 Capstone: plan a training run
#
# You have a model, a number of tokens, devices on a network, and a deadline. How should you use the devices?
# Take lessons 10 to 14 first: each of them has a piece of the answer. This lesson has three parts. In the
# first part (60 minutes) you will
#
# - compute the **memory** of a rank, with the ledger of lesson 10 and the sharding of lesson 12,
# - compute the **time of a step**, with the cost model of lessons 05, 09, 11 and 12,
# - **cut** one of the models by hand: this means that you divide the model and its data among the ranks,
# - write the search for the fastest plan that fits into memory.
#
# A plan says how large each axis of the mesh is (lesson 12). **dp** is the number of replicas, in data
# parallelism. **tp** is the number of ranks that share each layer, in tensor parallelism. **pp** is the
# number of pipeline stages. **dp x tp x pp** is the number of ranks.
#
# A plan is a prediction, and somebody pays for it. [The second part](17_prove_it_wrong.ipynb) tries to
# prove this plan wrong with real code. [The third part](17_what_the_run_costs.ipynb) plans again, and
# computes the hours and the cost. Do not rent any machine after this part alone. One assumption below looks
# harmless, but it changes which plan is the best.

# %%
import itertools
import random

import simlib
from simlib import labs, scale

# %% [markdown]
# ## Three jobs
#
# We plan three jobs:
#
# - Eight **laptops** on Gigabit Ethernet fine-tune GPT-2 medium.
# - **64 GPUs on Ethernet** train BERT-Large. Each of 16 nodes has four GPUs.
# - **1,024 GPUs** train GPT-3. Each node has eight GPUs, which are connected by NVLink.
#
# The shapes of the models are the published ones. We assume some of the speeds of the devices, and this will
# matter. For a laptop we assume 0.4 Tflop/s. For a V100 we take 39 Tflop/s, which the Megatron-LM paper
# measured (lesson 12). For an A100 we assume *half* of the 312 Tflop/s on its data sheet.
#
# Both clusters of GPUs have **rails**: the k-th rank of each node has the node's k-th network card to itself.
# So all ranks of a node can send to other nodes at the same time, and each rank gets the full rate of a card.
# `simlib.Cluster(..., rails=4)` gives each node four cards. Without `rails` the ranks of a node would share
# one card.

# %%
JOBS = labs.three_jobs()
laptops, ethernet, nvlink = JOBS.values()
for name, job in JOBS.items():
    device, link = job.cluster.device, job.cluster.inter
    print(f"{name}: {job.layers} layers of width {job.hidden:,}, {job.heads} heads,", end=" ")
    print(f"vocabulary {job.vocabulary:,}")
    print(f"    a step has {job.batch:,} sequences of {job.sequence:,} tokens")
    print(f"    a rank has {device.flops_per_s / 1e12:g} Tflop/s,", end=" ")
    print(
        f"{device.memory_bytes / 1e9:g} GB, {link.bandwidth_Bps * 8 / 1e9:g} Gbit/s to other nodes"
    )

# %% [markdown]
# ## 1. Memory
#
# A transformer with l layers of width h, a vocabulary of V words and sequences of s tokens has
#
# $$P = 12\,l h^2 + 13\,l h + (V + s)\,h$$
#
# parameters. In mixed precision a rank keeps 16 bytes for each of its parameters. The parameter itself takes
# 2 bytes, and its gradient takes 2. Adam's state and the master copy take 12. tp and pp divide the parameters
# among the ranks. ZeRO also divides some of the bytes by dp. Stage 1 divides the 12 bytes. Stage 2 also
# divides the gradients, and stage 3 also divides the parameters.
#
# **Now you write it:** `state_bytes` returns how many bytes of parameters, gradients and Adam's state one
# rank keeps. P is the number of parameters of the whole model. `zero` is the stage of ZeRO, and 0 means no
# ZeRO.
#
# **Now you write it:** the bytes of parameters, gradients and Adam's state on one rank.


# %%
def state_bytes(P, dp, tp, pp, zero):
    return None  # your formula


for zero, GB in enumerate((64, 28, 22, 16)):  # 8 billion parameters, dp 4, tp 2, pp 1
    found = state_bytes(8e9, 4, 2, 1, zero)
    if found is None:
        print("not yet")
    else:
        verdict = "right" if abs(found / (GB * 1e9) - 1) < 1e-9 else f"wrong, it is {GB}"
        print(f"stage {zero}: {found / 1e9:g} GB, {verdict}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return P / (tp * pp) * (2 / (dp if zero >= 3 else 1) + 2 / (dp if zero >= 2 else 1) + 12 / (dp if zero >= 1 else 1))`
#
# </details>
#
# A rank also keeps **activations**. We take the formula of Korthikanti et al. 2022 (arXiv 2205.05198). $b$ is
# the number of sequences, $a$ is the number of attention heads, and t is tp. A layer keeps
# $s\,b\,h\,(10 + 24/t + 5 a s / (h t))$ bytes. If backward computes the activations again, a layer keeps only
# its input, which is $2\,s\,b\,h$ bytes. Then only one layer at a time has all of its activations in memory.
# Of all ranks in a pipeline, rank 0 keeps the most: the activations of at most pp micro-batches (lesson 11).
#
# It is easy to forget the **logits**, the scores of the V words. Each token has V logits. The cross entropy
# needs them in single precision, so a logit takes 4 bytes, and its gradient takes 4 bytes. In all they take
# $8\,s\,b\,V / t$ bytes. We add them on every rank, to be on the safe side.
#
# `kept_bytes` adds up state, activations and logits. In the code, `n` is the number $b$ of sequences.


# %%
def kept_bytes(job, tp, pp, n=1, zero=0, again=True):
    """Bytes on rank 0, with n sequences in a micro-batch. n = 0: without activations.

    `again`: activations are computed again in backward, and not kept.
    """
    dp, P = job.ranks // (tp * pp), job.model.parameters / (tp * pp)
    state = P * (2 / (dp if zero > 2 else 1) + 2 / (dp if zero > 1 else 1))
    state += P * 12 / (dp if zero else 1)
    if n == 0:
        return state
    s, h = job.sequence, job.hidden
    layer = s * n * h * (10 + 24 / tp + 5 * job.heads * s / (h * tp))
    in_flight = min(pp, job.batch // (dp * n) or 1)
    layers = in_flight * -(-job.layers // pp)  # -(-a // b) rounds a / b up
    activations = layers * 2 * s * n * h + layer if again else layers * layer
    return state + activations + 8 * n * s * job.vocabulary / tp


# %% [markdown]
# **Guess:** take data parallelism alone, so tp and pp are 1. Use no ZeRO, take one sequence at a time, and
# compute activations again. The models have 0.355, 0.334 and 175 billion parameters. How many of the three
# jobs fit into the memory of their devices?

# %%
jobs_that_fit = None  # 0, 1, 2 or 3?
fitting = 0
for name, job in JOBS.items():
    sizes = ", ".join(f"{kept_bytes(job, 1, 1, 0, zero) / 1e9:.3g}" for zero in (0, 1, 2, 3))
    GB, most = kept_bytes(job, 1, 1) / 1e9, job.cluster.device.memory_bytes / 1e9
    fitting += GB <= most
    print(f"{name}: {job.model.parameters / 1e9:.3g} billion parameters. With dp alone, the state")
    print(f"    takes {sizes} GB in ZeRO's stages 0, 1, 2, 3; with activations and")
    print(f"    logits, stage 0 takes {GB:.3g} of {most:.0f} GB")
simlib.guess(jobs_that_fit, fitting)
for cut in ((1, 1), (8, 1), (8, 8), (8, 16)):
    sizes = [kept_bytes(nvlink, *cut, again=again) / 1e9 for again in (True, False)]
    print(
        f"GPT-3, tp {cut[0]} x pp {cut[1]}: {sizes[0]:,.1f} GB if activations are computed", end=" "
    )
    print(f"again, {sizes[1]:,.1f} GB if they are kept")

# %% [markdown]
# Only BERT-Large on the 64 GPUs fits. On a laptop the state takes 5.68 of 6 GB. The logits of a single
# sequence and their gradients take another 0.41 GB, and this is too much. So the laptops need ZeRO or a
# pipeline.
#
# GPT-3's state would fit with ZeRO 3 alone. But 1,536 sequences cannot be divided evenly among 1,024
# replicas. So we have to cut GPT-3. With tp 8 x pp 16 it fits into 80 GB, even if a rank keeps its
# activations.
#
# ## 2. The time of a step
#
# The ranks get their numbers along tp first, then along dp, then along pp (lesson 12). The picture shows
# eight ranks on four nodes. A node is a grey band. Each panel shows the groups of one axis. The ranks of a
# group have the same colour, and communicate with each other.

# %%
labs.draw_groups()

# %% [markdown]
# Neighbours along tp have consecutive numbers. So they are on one node, if tp is at most the number of ranks
# on a node. Neighbours along dp are tp ranks apart, and neighbours along pp are tp x dp ranks apart.
# `labs.axis_time(kind, nbytes, size, stride, cluster)` asks the cost model how long a collective takes in a
# group of `size` ranks that are `stride` apart.
#
# The time of a step has five parts:
#
# - **compute**: For one sequence, the forward of a layer takes $24\,s h^2 + 4\,s^2 h$ operations, and the
#   logits take $2\,s h V$. Backward takes twice as many. If activations are computed again, backward also
#   repeats the forward of the layers. We assume that the tp x pp ranks of a replica share this work evenly:
#   each rank does a (tp x pp)-th of the work.
# - **tp**: A layer has two all_reduces in forward and two in backward. It has two more if backward repeats
#   the forward. Each all_reduce adds up $2\,n s h$ bytes, where n is the number of sequences in a
#   micro-batch.
# - **bubble**: The stages of a pipeline wait at the beginning and at the end of a step. We take the schedule
#   1F1B (lesson 11).
# - **pp**: For each micro-batch, neighbouring stages send each other activations and their gradients. Such a
#   message has $2\,n s h$ bytes.
# - **dp**: One all_reduce adds up the gradients of the replicas. Each rank has a (tp x pp)-th of the
#   gradients. With ZeRO a reduce_scatter and an all_gather replace the all_reduce.


# %%
def dp_seconds(job, tp, pp, M, zero):
    """How long the gradients' reduction takes. From stage 2 on, each of M micro-batches has one."""
    dp, nbytes = job.ranks // (tp * pp), 2 * job.model.parameters / (tp * pp)
    if not zero:
        return labs.axis_time("all_reduce", nbytes, dp, tp, job.cluster)
    scatter = labs.axis_time("reduce_scatter", nbytes, dp, tp, job.cluster)
    gather = labs.axis_time("all_gather", nbytes, dp, tp, job.cluster)
    return (M if zero > 1 else 1) * scatter + (2 * M if zero == 3 else 1) * gather


# %% [markdown]
# A step takes the sum of these five parts. The stages of a pipeline work at the same time. We assume that
# nothing else overlaps. DDP hides a part of dp's time behind backward (lesson 08), but we leave this out. `M`
# is the number of micro-batches that a replica has in a step. `scale.even_pipeline_time` returns the time of
# 1F1B for stages that all take equally long.


# %%
def step_parts(job, tp, pp, n=1, zero=0, again=True):
    """Seconds of a step by part, or None if the model cannot be cut so."""
    s, h, dp, most = job.sequence, job.hidden, job.ranks // (tp * pp), job.ranks
    if tp * pp > most or job.heads % tp or job.layers % pp or job.batch % (dp * n):
        return None
    M, message = job.batch // (dp * n), 2 * n * s * h
    in_layers = job.layers * (24 * s * h**2 + 4 * s**2 * h)
    once = n / (tp * pp * job.cluster.device.flops_per_s)  # seconds per operation of a sequence
    f = once * (in_layers + 2 * s * h * job.vocabulary)
    b = 2 * f + again * once * in_layers
    sums = 2 * job.layers // pp * labs.axis_time("all_reduce", message, tp, 1, job.cluster)
    hop = labs.axis_time("broadcast", message, min(pp, 2), (pp - 1) * tp * dp, job.cluster)
    times = {"forward_s": f + sums, "backward_s": b + (1 + again) * sums}
    free = scale.even_pipeline_time(pp, M, **times)  # if messages took no time
    piped = scale.even_pipeline_time(pp, M, **times, message_s=hop)
    parts = {"compute": M * (f + b), "tp": M * (2 + again) * sums}
    bubble = free - sum(parts.values())
    return parts | {"bubble": bubble, "pp": piped - free, "dp": dp_seconds(job, tp, pp, M, zero)}


# %% [markdown]
# **Guess:** we cut GPT-3 on the 1,024 GPUs into tp 8 x pp 16, with one sequence at a time. Compute takes
# the longest. Which part takes the longest after compute?

# %%
second_largest = None  # "tp", "bubble", "pp" or "dp"?
for name, cut in zip(JOBS, ((1, 8), (1, 1), (8, 16)), strict=True):
    parts = step_parts(JOBS[name], *cut)
    said = ", ".join(f"{part} {value:.3g}" for part, value in parts.items())
    print(f"{name}, tp {cut[0]} x pp {cut[1]}: {sum(parts.values()):.3g} s = {said}")
del parts["compute"]
simlib.guess(second_largest, max(parts, key=parts.get), of=list(parts))

# %% [markdown]
# It is tp, but the difference is small: tp takes 2.51 s and the bubble takes 2.40 s.
#
# ## 3. The best cut
#
# First make a plan by hand: cut BERT-Large for the 64 GPUs. In the first line of the cell, choose `tp`, `pp` and `n`,
# the number of sequences in one micro-batch. Then run the cell. Try four or five plans. Which one is the fastest that
# fits into 16 GB? The cell starts with tp 1 x pp 1, which is data parallelism alone. Most tutorials use it.

# %%
tp, pp, n = 1, 1, 16  # yours
parts = step_parts(ethernet, tp, pp, n, again=False)
by_hand_s = sum(parts.values()) if parts else float("inf")
if parts is None:
    print("The model cannot be cut so.")
else:
    GB = kept_bytes(ethernet, tp, pp, n, again=False) / 1e9
    print(f"{by_hand_s:.3f} s, {GB:.1f} of 16 GB:", end=" ")
    print({part: round(value, 3) for part, value in parts.items()})

# %% [markdown]
# There are hundreds of ways to cut a model, and many of them need too much memory. A computer tries them all
# in a second. That is why people plan with a cost model.
#
# **Now you write it:** `fastest(job)` searches for the fastest plan that fits, and returns the tuple
# `(seconds, tp, pp, n, zero, again)`. `CHOICES` has five tuples: the values to try for tp, pp, n, ZeRO's
# stage and `again`. `itertools.product(*CHOICES)` combines them. `seconds` is the sum of the parts that
# `step_parts` returns. If the cut is not possible, `step_parts` returns None. A plan fits if `kept_bytes` is
# at most `job.cluster.device.memory_bytes`. The check draws 2,000 plans at random. Of these, it keeps the
# plans that fit. Your plan is right if none of them is faster.

# %%
POWERS, MICRO = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16)
CHOICES = POWERS, POWERS, MICRO, (0, 1, 2, 3), (False, True)


def fastest(job):
    return None  # your search


# %%
def is_beaten(job, plan):
    """Whether a plan drawn at random fits and is faster."""
    choice = [random.choice(each) for each in CHOICES]
    parts = step_parts(job, *choice)
    if parts is None or kept_bytes(job, *choice) > job.cluster.device.memory_bytes:
        return False
    return sum(parts.values()) < plan[0] * (1 - 1e-9)


random.seed(17)
for name, job in JOBS.items():
    mine = fastest(job)
    if mine is None:
        print("not yet")
        continue
    parts = step_parts(job, *mine[1:])
    true = parts and abs(sum(parts.values()) / mine[0] - 1) < 1e-9
    true = true and kept_bytes(job, *mine[1:]) <= job.cluster.device.memory_bytes
    is_best = true and not any(is_beaten(job, mine) for _ in range(2000))
    said = "a faster plan fits" if true else "this is not its time, or it does not fit"
    print(f"{name}:", "right" if is_best else said)

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def fastest(job):
#         found = []
#         for tp, pp, n, zero, again in itertools.product(*CHOICES):
#             parts = step_parts(job, tp, pp, n, zero, again)
#             if parts is None:
#                 continue
#             if kept_bytes(job, tp, pp, n, zero, again) > job.cluster.device.memory_bytes:
#                 continue
#             found.append((sum(parts.values()), tp, pp, n, zero, again))
#         return min(found)
#
# </details>
#
# Next, `plans(job)` returns all plans that fit, not only the fastest one. `lean` looks at the plans that take
# at most 0.1 % longer than the fastest. It chooses the one that needs the least memory.


# %%
def plans(job):
    """All that can be cut and fit: (seconds, tp, pp, n, zero, again), the fastest first."""
    found = []
    for choice in itertools.product(*CHOICES):
        parts = step_parts(job, *choice)
        if parts and kept_bytes(job, *choice) <= job.cluster.device.memory_bytes:
            found.append((sum(parts.values()), *choice))
    return sorted(found)


def lean(job, found):
    """Of the plans within 0.1 % of the fastest: the one that needs the least memory."""
    near = [plan for plan in found if plan[0] <= 1.001 * found[0][0]]
    return min(near, key=lambda plan: kept_bytes(job, *plan[1:]))


def in_words(job, plan):
    time_s, tp, pp, n, zero, again = plan
    words = f"dp {job.ranks // (tp * pp)} x tp {tp} x pp {pp}, {n} at once, ZeRO {zero}"
    size = f"{kept_bytes(job, *plan[1:]) / 1e9:.3g} GB"
    return f"{words}{', computed again' * again}: {time_s:.4g} s, {size}"


# %% [markdown]
# **Guess** dp x tp x pp of the lean plan of each job. Then compare two plans for the 64 GPUs: the fastest
# plan, and the fastest with data parallelism alone. How many times as long does a step take with data
# parallelism alone?

# %%
cuts = {name: None for name in JOBS}  # your guesses, such as "8 x 1 x 1"
times_as_long = None  # a step with dp alone on the 64 GPUs
for name, job in JOBS.items():
    found = plans(job)
    dp_alone, best = [plan for plan in found if plan[1:3] == (1, 1)], lean(job, found)
    print(f"{name}: {len(found)} plans; the fastest: {in_words(job, found[0])}")
    print("    lean:    ", in_words(job, best))
    print("    dp alone:", in_words(job, dp_alone[0]) if dp_alone else "none fits")
    tp, pp = best[1:3]
    simlib.guess(cuts[name], f"{job.ranks // (tp * pp)} x {tp} x {pp}")
    if job is ethernet:
        simlib.guess(times_as_long, dp_alone[0][0] / found[0][0], within=0.2)
        print(f"    your plan by hand takes {by_hand_s / found[0][0]:.2f} times as long", end=" ")
        print("as the fastest")
for again in (False, True):
    time_s = sum(step_parts(nvlink, 8, 16, zero=1, again=again).values())
    layers = kept_bytes(nvlink, 8, 16, 1, 1, again) - kept_bytes(nvlink, 8, 16, 0, 1)
    print(f"computed again: {again}; {time_s:.2f} s, activations and logits {layers / 1e9:.2f} GB")

# %% [markdown]
# **Lean plans.** GPT-3's fastest plan takes 79.5 of 80 GB. But the formulas do not count buffers, fragmented
# memory and the CUDA context. So that plan would probably fail. The lean plan takes 68.6 GB, and a step takes
# only 0.01 s longer. ZeRO 1 sends as many bytes as ZeRO 0, so take ZeRO 1 wherever their times are equal.
#
# **64 GPUs.** A step with data parallelism alone takes four times as long as with the best plan. All 0.33
# billion gradients go through a link of 10 Gbit/s. A pipeline sends small activations between the nodes
# instead. Each of its dp groups adds up only an eighth of the gradients.
#
# **Laptops.** Compute takes most of each step. So with tp = 1, the best plan for each pp takes between 56 and
# 60 s. The fastest one is a pipeline. It needs 5 % less time than data parallelism alone. Plans with tp = 2
# or more take at least 79 s, because their all_reduces go through Gigabit Ethernet.
#
# **GPT-3.** The best plans have tp = 8: a tp group has all GPUs of a node, and stays inside the node. The
# last two lines of the output compare two plans with tp 8 x pp 16. If activations are computed again,
# activations and logits take a tenth of the bytes. But a step takes a third longer. Forward is a third of the
# compute, and backward repeats it with its all_reduces. The fastest plans keep the activations.
#
# That is the plan. It depends on an assumption that we have not tested: each rank does a (tp x pp)-th of the
# work.
#
# ## Exit ticket
#
# 1. A model has 10 billion parameters. You have 16 GPUs with 40 GB each. Name two ways to make it fit.
# 2. Why can a pipeline be faster than data parallelism alone on a slow network?
# 3. You choose tp = 16, and a node has 8 GPUs. Which part of the step becomes much longer?
# 4. Why would you rent machines for the lean plan, and not for the fastest one?
#
# <details><summary>Answers</summary>
#
# 1. ZeRO 1 is not enough: a rank keeps 4 x 10 + 120/16 = 47.5 GB. A rank needs 10 GB with ZeRO 3, and 20 GB
#    with tp 8. Activations need more memory on top of this.
# 2. A pipeline sends activations over the slow links, and a dp group adds up only a pp-th of the gradients.
# 3. The part tp becomes longer. A layer has four or more all_reduces, and they now use links between nodes.
# 4. The lean plan takes at most 0.1 % longer, and leaves memory for all that the formulas do not count.
#
# </details>
#
# **Next:** [17 b](17_prove_it_wrong.ipynb) tests this plan with real code, and proves it wrong.
