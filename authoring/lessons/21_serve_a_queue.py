# %% [markdown]
# # 21 Serve a queue
#
# This is the second part of lesson 21. [The first part](21_decode_on_split_ranks.ipynb) explained prefill, decode and
# the KV cache. Now many people send requests at random times, and a scheduler decides which of them run together. In
# this part (60 minutes) you will
#
# - write the scheduler of continuous batching, and compare it with static batching,
# - measure how long users wait,
# - give up requests when the cache is full,
# - put prefill and decode on different ranks.
#
# Two times matter to a user. The **time to first token** (TTFT) is the wait until the answer begins. The **time per
# token** is the mean time from one token to the next. **p50** is the median of all requests. **p99** is the value
# that only 1 % of the requests exceed.

# %%
import random
import time
from dataclasses import dataclass, field
from math import log2

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

import simlib
from simlib import labs


@dataclass(eq=False)
class Request:
    at: float  # when it arrives, in seconds
    prompt: int  # tokens
    output: int  # tokens that it will write
    written: int = 0
    times: list = field(default_factory=list)  # of each token


def unfinished(request):
    return request.written < request.output


# %% [markdown]
# ## Requests
#
# Requests arrive at random, on average `per_s` of them in a second. The time between two arrivals has an exponential
# distribution (a Poisson process). Prompts and answers have lengths with a long tail: most are short, and a few are
# very long. We chose the distributions. They do not come from a measurement.


# %%
def arrivals(count, per_s):
    chance, at, requests = random.Random(21), 0.0, []
    for _ in range(count):
        at += chance.expovariate(per_s)
        prompt, output = (int(1 + chance.lognormvariate(mean, 1)) for mean in (6, 5))
        requests.append(Request(at, min(prompt, 8000), min(output, 4000)))
    return requests


for name in ("prompt", "output"):
    lengths = [getattr(request, name) for request in arrivals(2000, 1)]
    middle, most = np.percentile(lengths, (50, 99))
    print(f"{name}: mean {np.mean(lengths):.0f} tokens, p50 {middle:.0f}, p99 {most:.0f}")

# %% [markdown]
# ## The server
#
# A server is a group of tp ranks. Rank 0 has the queue. In each step it decides what the group does, and tells the
# other ranks by a broadcast. The clocks of real ranks differ, so without the broadcast two ranks could see different
# queues. Then the group computes one step: it prefills the prompts of new requests, and every running request writes
# a token.
#
# `step_s` computes how long a step takes, with the first part's formula for Llama 3 8B: the GPUs read 15.01 GB of
# weights and the cache, and wait for 65 collectives. Each token of a new prompt adds 19 us, as prefill did in the
# first part. The formula counts the latency of the collectives, but not the time that their bytes take. `turn` is the
# scheduler. The scheduler gets the list of waiting requests, the list of running requests, and the number of tokens
# that fit into the cache. It moves requests from one list to the other, and returns the requests that join the running
# ones.


# %%
CACHE = 131_072  # bytes of one token


def step_s(new, held, tp=1):
    """Seconds of a step: `new` tokens are prefilled, and `held` tokens are in the cache."""
    return (15.01e9 + CACHE * held) / tp / 3.35e12 + 19e-6 * new / tp + 65 * log2(tp) * 5e-6


def serve(rank, world_size, requests, turn, most):
    coming, waiting, running = list(requests), [], []
    start, work = time.perf_counter(), torch.zeros(3, dtype=torch.int64)
    while True:
        if rank == 0:
            if coming and not waiting and not any(map(unfinished, running)):
                time.sleep(max(0, coming[0].at - (time.perf_counter() - start)) + 1e-6)
            while coming and coming[0].at <= time.perf_counter() - start:
                waiting.append(coming.pop(0))
            new = sum(r.prompt + r.written for r in turn(waiting, running, most))
            work = torch.tensor([len(running), new, sum(r.prompt + r.written for r in running)])
        if world_size > 1:
            dist.broadcast(work, 0)
        batch, new, held = work.tolist()
        if batch == 0:
            return requests
        simlib.compute(step_s(new, held, world_size))
        for r in running:
            if r.written < r.output:
                r.written += 1
                r.times.append(time.perf_counter() - start)


# %% [markdown]
# **Static batching** is the simplest scheduler: it takes a batch, and waits until all its requests have ended. Then
# it takes the next batch. The cell runs 12 requests on two real ranks, and then on two simulated ones. In a
# simulation `time.perf_counter` and `time.sleep` use the virtual clock, so the same function runs on both.


# %% tags=["nbval-ignore-output"]
def static(waiting, running, most):
    if any(map(unfinished, running)):
        return []
    running.clear()
    while waiting and sum(r.prompt + r.output for r in [*running, waiting[0]]) <= most:
        running.append(waiting.pop(0))
    return running


for engine in (simlib.run, simlib.simulate):
    run = engine(serve, 2, args=(arrivals(12, 20), static, 100_000))
    steps = len(run.trace.collectives) - 1
    print(f"{engine.__name__}: {steps} steps in {run.time_s:.2f} s")

# %% [markdown]
# Our real run had fewer steps: its steps took longer, so more requests arrived in the meantime and shared a batch.
#
# In static batching a request with a short answer ends early. But no other request takes its place until the longest
# answer of the batch has ended. **Continuous batching** decides before each step which requests run (Orca, Yu et al.
# 2022).
#
# **Now you write it:** `your_turn` is the scheduler of continuous batching.
#
# 1. Remove finished requests from `running`. Change the list itself: `running[:] = ...`.
# 2. Let requests join in their order, as long as there is memory. A request needs room for its prompt and its whole
#    output. All running requests together may need at most `most` tokens. If the first request in the queue does not
#    fit, the others wait, too.
# 3. Move each request that joins from `waiting` to `running`, and return a list of those that joined.
#
# The check calls your function before each step, and looks at both lists.


# %%
def your_turn(waiting, running, most):
    return []  # yours: the requests that join


def verdict_on(turn, most):
    queue = arrivals(300, 1)
    waiting, running = list(queue), []
    while waiting or running:
        free = most - sum(r.prompt + r.output for r in running if unfinished(r))
        wanted = []
        while queue and queue[0].prompt + queue[0].output <= free:
            free -= queue[0].prompt + queue[0].output
            wanted.append(queue.pop(0))
        joined = turn(waiting, running, most)
        if joined != wanted:
            return f"not yet: {len(joined)} requests joined, and {len(wanted)} should"
        if waiting != queue or not set(joined) <= set(running):
            return "not yet: those that join must leave waiting, and be in running"
        for request in running:
            if not unfinished(request):
                return "not yet: a finished request is still running"
            request.written += 1
    return "right"


for most in (13_000, 100_000):
    print(f"{most:7,} tokens:", verdict_on(your_turn, most))

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def your_turn(waiting, running, most):
#         running[:] = [r for r in running if r.written < r.output]
#         free = most - sum(r.prompt + r.output for r in running)
#         joined = []
#         while waiting and waiting[0].prompt + waiting[0].output <= free:
#             joined.append(waiting.pop(0))
#             free -= joined[-1].prompt + joined[-1].output
#         running += joined
#         return joined
#
# </details>
#
# ## Static against continuous
#
# The lesson continues with its own function `continuous`. The function `need` returns how many tokens a request needs
# room for. `whole` counts all tokens that the request will ever have. `grown` counts the tokens that it will have
# after the next step. `measured` prints p50 and p99 of three times: `first` is the time to first token, `each` is the
# time per token, and `gap` is a request's longest time between two tokens.


# %%
def whole(r):
    return r.prompt + r.output


def grown(r):
    return r.prompt + r.written + 1


def continuous(waiting, running, most, need=whole):
    running[:] = filter(unfinished, running)
    free, joined = most - sum(map(need, running)), []
    while waiting and need(waiting[0]) <= free:
        free -= need(waiting[0])
        joined.append(waiting.pop(0))
    running += joined
    return joined


def measured(title, requests):
    """Print and return tokens per second, and p50 and p99 of the users' times, in ms."""
    first = [r.times[0] - r.at for r in requests]
    each = [np.mean(np.diff(r.times)) for r in requests if r.output > 1]
    gap = [max(np.diff(r.times), default=0) for r in requests]
    rate = sum(r.output for r in requests) / max(r.times[-1] for r in requests)
    times = {"first": first, "each": each, "gap": gap}
    found = {name: 1e3 * np.percentile(x, (50, 99)) for name, x in times.items()}
    words = "; ".join(f"{of} {p50:,.1f}, {p99:,.1f}" for of, (p50, p99) in found.items())
    print(f"{title:14} {rate:5,.0f} tokens/s; ms, p50 and p99: {words}")
    return found | {"rate": rate}


# %% [markdown]
# 2,000 requests arrive at one GPU, on average 20 per second. The GPU has room for 100,000 tokens. The requests ask for
# 20 x 240 = 4,800 tokens per second, and continuous batching nearly keeps up. A static batch has about 100 requests.
# Its prefill takes 1.3 s. Then the batch takes a step of about 7 ms for each token of its longest answer. This answer
# has about 2,000 tokens. Divide the tokens per second of continuous batching by those of static batching. What do you
# expect?

# %%
times_static = None
found = {}
for turn in (static, continuous):
    run = simlib.simulate(serve, 1, (arrivals(2000, 20), turn, 100_000))
    found[turn] = measured(turn.__name__, run.results[0])
simlib.guess(times_static, found[continuous]["rate"] / found[static]["rate"], within=0.25)

# %% [markdown]
# Continuous batching keeps up: half of the users wait at most 22 ms for their first token. With static batching, half
# of them wait for more than 100 s. The next cell varies the load. With static batching and only 3 requests per
# second, what is the p99 of the time to first token: about 0.1, 1 or 10 s?

# %%
wait_s = None  # 0.1, 1 or 10
LOADS = 3, 6, 10, 15, 20, 25, 30
figure, axes = plt.subplots(1, 2, figsize=(8, 2.9), layout="constrained")
for turn, color, mark in ((static, "#D55E00", "o"), (continuous, "#0072B2", "s")):
    runs = [simlib.simulate(serve, 1, (arrivals(300, x), turn, 100_000)).results[0] for x in LOADS]
    first = [np.percentile([r.times[0] - r.at for r in requests], 99) for requests in runs]
    each = [np.percentile([1e3 * max(np.diff(r.times), default=0) for r in rs], 99) for rs in runs]
    axes[0].plot(LOADS, first, marker=mark, color=color, label=turn.__name__)
    axes[1].plot(LOADS, each, marker=mark, color=color)
    found[turn] = first[0]
axes[0].set(yscale="log", xlabel="requests per second", ylabel="s to first token, p99")
axes[1].set(ylim=0, xlabel="requests per second", ylabel="longest gap in ms, p99")
axes[0].legend(frameon=False)
plt.show()
simlib.guess(wait_s, min((0.1, 1, 10), key=lambda s: abs(s - found[static])), of=(0.1, 1, 10))

# %% [markdown]
# Even at 3 requests per second, 1 % of the users of static batching wait for more than 9 s, until the batch before
# them has ended. The right picture shows the price of continuous batching: a running request sometimes waits 160 ms
# between two tokens, while the prompt of a new request is prefilled.
#
# ## When the cache is full
#
# `continuous` knows how long each answer will be. A real server does not know this. It has two choices:
#
# - `longest` reserves room for the longest allowed answer, 4,000 tokens.
# - `optimistic` reserves only what a request needs for the next step. When the cache is full, `optimistic` gives up
#   the newest request. The cache of this request is lost, so the request goes back to the front of the queue. Later
#   its prompt *and* the tokens that it has written are prefilled again. This is **eviction**, or preemption.
#
# **Now you write it:** `evict` makes room. While the requests in `running` need more than `most` tokens, it moves the
# last running request to the front of `waiting`. The first running request always stays, so that the server never
# stops. A request needs `grown(r)` tokens.


# %%
def evict(waiting, running, most):
    return None  # yours: move requests from the end of running to the front of waiting


for most, kept in ((170, 5), (68, 2), (5, 1)):
    running, waiting = [Request(0, 10 * k, 50, k) for k in range(1, 8)], [Request(0, 5, 5)]
    every = [*running, *waiting]
    evict(waiting, running, most)
    is_right = running + waiting == every and len(running) == kept
    print(f"{most} tokens:", "right" if is_right else "not yet")


# %% [markdown]
# <details><summary>Answer</summary>
#
#     def evict(waiting, running, most):
#         while len(running) > 1 and sum(map(grown, running)) > most:
#             waiting.insert(0, running.pop())
#
# </details>
#
# One GPU serves 30 requests per second, again with room for 100,000 tokens. A prompt has 674 tokens on average. How
# many requests does `longest` run at the same time? And which of the three schedulers writes the most tokens per
# second?

# %%
batch = None  # requests that `longest` runs at the same time, on average
best = None  # "longest", "continuous" or "optimistic"


def longest(waiting, running, most):
    return continuous(waiting, running, most, lambda r: r.prompt + 4000)


def optimistic(waiting, running, most):
    running[:] = filter(unfinished, running)
    while len(running) > 1 and sum(map(grown, running)) > most:
        waiting.insert(0, running.pop())
    return continuous(waiting, running, most, grown)


rates, batches = {}, {}
for turn in (longest, continuous, optimistic):
    run = simlib.simulate(serve, 1, (arrivals(1000, 30), turn, 100_000))
    rates[turn.__name__] = measured(turn.__name__, run.results[0])["rate"]
    steps = {at for r in run.results[0] for at in r.times}  # every step writes at its own time
    batches[turn.__name__] = sum(r.output for r in run.results[0]) / len(steps)
print("requests in a step:", ", ".join(f"{name} {x:.0f}" for name, x in batches.items()))
simlib.guess(batch, batches["longest"], within=0.15)
simlib.guess(best, max(rates, key=rates.get), of=list(rates))

# %% [markdown]
# `longest` runs only 20 requests at a time, although most answers are much shorter than 4,000 tokens. Half of its
# users wait for more than 21 s. `optimistic` runs 53 at a time. It writes 78 % more tokens than `longest`, although it
# must prefill some requests twice. It even writes 2 % more tokens than `continuous`, which knows all lengths. The
# price is a longer time per token: in a larger batch, each step takes longer.
#
# ## Prefill and decode on different ranks
#
# A prompt of 8,000 tokens takes 150 ms to prefill. All running requests wait for it. There are two remedies.
# **Chunked prefill** takes only some hundred tokens of a prompt in each step (task 3 of the exercises). In
# **disaggregation** rank 0 prefills, and writes the first token. Then it sends the cache to rank 1, which only
# decodes.
#
# Rank 1 must not wait for a cache while it decodes. So between two steps, it calls `is_completed()` on the transfer.
# For an `irecv` the result would be False until `wait` (lesson 03). So we send the cache by a broadcast between the
# two ranks.


# %%
def apart(rank, world_size, requests, most):
    start, running, coming = time.perf_counter(), [], list(requests)
    arriving, sent = None, []
    if rank == 0:
        for r in requests:
            time.sleep(max(0, r.at - (time.perf_counter() - start)))
            simlib.compute(step_s(r.prompt, r.prompt))
            r.times.append(time.perf_counter() - start)
            cache = torch.empty(r.prompt * CACHE, dtype=torch.uint8)
            sent.append(dist.broadcast(cache, 0, async_op=True))
        for work in sent:
            work.wait()
        return requests
    while coming or running:
        if coming and not arriving and sum(map(whole, [*running, coming[0]])) <= most:
            cache = torch.empty(coming[0].prompt * CACHE, dtype=torch.uint8)
            arriving = dist.broadcast(cache, 0, async_op=True)
        if arriving and (not running or arriving.is_completed()):
            arriving.wait()
            arriving, coming[0].written = None, 1  # rank 0 has written the first token
            running += filter(unfinished, [coming.pop(0)])
            continue
        simlib.compute(step_s(0, sum(map(grown, running))))
        for r in running:
            r.written += 1
            r.times.append(time.perf_counter() - start)
        running = list(filter(unfinished, running))
    return requests


# %% [markdown]
# Two GPUs serve 30 requests per second. In `two servers`, each GPU is a server and gets half of the requests. `tp 2`
# is one server with two ranks on NVLink. The last two ways use one rank for prefill and another rank for decode. The
# two ranks communicate over InfiniBand or over Ethernet of 10 Gbit/s. Each GPU has room for 100,000 tokens. Each
# request has a longest gap between two tokens. Which way has the shortest p99 of these gaps?

# %%
shortest = None  # "two servers", "tp 2", "InfiniBand" or "Ethernet"
LINKS = {"InfiniBand": simlib.Link(7e-6, 50e9), "Ethernet": simlib.Link(30e-6, 1.25e9)}


def served_apart(link):
    job, on = (apart, 2, (arrivals(600, 30), 100_000)), simlib.Cluster(2, 1, link)
    run = simlib.simulate(*job, cluster=on, data=False, broadcast="binomial")
    for prefilled, decoded in zip(*run.results, strict=True):
        decoded.times = prefilled.times + decoded.times  # rank 0 wrote the first token
    return run.results[1]


halves = [(arrivals(600, 30)[half::2], continuous, 100_000) for half in (0, 1)]
ways = {"two servers": sum((simlib.simulate(serve, 1, half).results[0] for half in halves), [])}
tp_2 = serve, 2, (arrivals(600, 30), continuous, 200_000)
ways["tp 2"] = simlib.simulate(*tp_2, cluster=simlib.clusters.nvlink_nodes(1)).results[0]
ways |= {name: served_apart(link) for name, link in LINKS.items()}
found = {name: measured(name, requests) for name, requests in ways.items()}
simlib.guess(shortest, min(found, key=lambda name: found[name]["gap"][1]), of=list(ways))

# %% [markdown]
# No way is best at everything:
#
# - `tp 2` writes the most tokens, and has the shortest times to first token and per token. A long prefill takes half
#   as long as on one GPU, but the other requests still wait for it.
# - `two servers` need no network between the GPUs, but they are best at nothing.
# - `apart` on InfiniBand has the shortest gaps: 21 ms at p99, in place of the 157 ms of `two servers`. No prefill
#   interrupts decode. But users wait longer for the first token, because one GPU prefills all prompts.
# - `apart` on Ethernet cannot keep up. The caches need 30 x 674 x 131,072 bytes = 2.65 GB each second, but the
#   network moves only 1.25 GB. So answers stop for a long time after their first token.
#
# So disaggregation pays under two conditions. Users must care more about short gaps between tokens than about the
# first token. And the network must move all caches, here 2.65 GB each second. If rank 0 prefills all the time, it
# makes 131,072 bytes of cache in 19 us. So it makes 6.9 GB each second.
#
# ## Your turn
#
# Now you can do tasks 3 and 4 of [exercises 21](../exercises/21_decode_on_split_ranks.ipynb). The appendix is a lab
# with sliders for load, memory and tp.
#
# ## Exit ticket
#
# 1. Why does rank 0 broadcast its decision in each step, although all ranks have the same scheduler?
# 2. Why does a full cache limit the tokens per second?
# 3. How fast must the network be, so that prefill and decode on different ranks pay?
#
# <details><summary>Answers</summary>
#
# 1. The clocks of the ranks differ, so a request may have arrived on one rank and not yet on another. Then the ranks
#    would compute different batches, and their collectives would not match.
# 2. The weights are read once for each step. With fewer requests in the cache, a step writes fewer tokens.
# 3. It must move the caches of the prompts as fast as rank 0 prefills them.
#
# </details>
#
# **Next:** the [questions](../docs/questions.md) show you programs, and ask what they print.
#
# ## Appendix, a lab: load, memory and tp
#
# The lab computes `continuous` for 300 requests. Go back to its first settings before each change:
#
# 1. Raise the load. At which load do 1 % of the users wait longer than 1 s for the first token?
# 2. At 40 requests a second, compare room for 200,000 tokens with a second GPU.
#
# <details><summary>Answers</summary>
#
# 1. At 35 requests a second.
# 2. With more room, the p99 of the time to first token falls from 2 s to 0.3 s, but the larger batch makes tokens
#    slower. With a second GPU both get faster.
#
# </details>

# %%
labs.draw_serving()

# %% tags=["nbval-ignore-output"]
labs.serving_lab()
