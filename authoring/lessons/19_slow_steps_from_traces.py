# %% [markdown]
# # 19 Slow steps from traces
#
# This is the third part of lesson 19. The jobs of [the first two parts](19_hangs_from_records.ipynb) stopped. The jobs
# of this part go on, but each step takes too long. Now the records are **traces**: a profiler writes for each rank what
# its GPU did, and when. In this part (60 minutes) you will
#
# - compute three numbers from a trace: exposed communication, overlap, and idle time,
# - find the rank that delays the others, although all ranks take equally long,
# - find the cause of slow steps in traces of a real H100,
# - choose a time-out from the waits of a job.
#
# You need [lesson 08](08_from_loops_to_ddp.ipynb) about overlap and the streams of a GPU.

# %%
import gzip
import json
import statistics
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

import simlib

LINK = simlib.Link(5e-6, 25e9)
CARD = simlib.Device(flops_per_s=20e12, asynchronous=True)  # works as a GPU: kernels in streams
GPUS = simlib.Cluster(1, 4, inter=LINK, intra=LINK, device=CARD)

# %% [markdown]
# ## Two streams
#
# A GPU executes its work in **streams**. Kernels of one stream run one after the other. Kernels of two streams can
# run at the same time. NCCL runs its collectives in a stream of their own, so they can overlap with computing.
#
# `main` below multiplies matrices in six layers, and sums the gradient of each layer over all ranks. `wait` does not
# stop Python on a GPU. It makes the stream that computes wait for the stream that communicates. In the first program,
# the computing stream waits after each layer. In the second program, it waits at the end of the step.


# %%
def main(rank, world_size, waits, n=2048, layers=6):
    x, w = torch.ones(n, n) / n, torch.ones(n, n) / n
    gradients, works = [torch.full((n, n), float(rank)) for _ in range(layers)], []
    with simlib.span("step", number=0):
        for gradient in gradients:
            x = x @ w
            works.append(dist.all_reduce(gradient, async_op=True))
            if waits == "at once":
                works[-1].wait()
        for work in works:
            work.wait()
    return gradients[0][0, 0]


# %% [markdown]
# First both programs run on real ranks with Gloo. This shows that their results are equal. Then they run on four
# modelled GPUs. Divide the time of the first program by that of the second. What do you expect?

# %%
times_as_long = None

small = [simlib.run(main, 4, (waits, 64)).results for waits in ("at once", "at the end")]
print("same results on real ranks:", small[0] == small[1])
runs = {}
for waits in ("at once", "at the end"):
    runs[waits] = simlib.simulate(main, 4, (waits,), cluster=GPUS, data=False)
    print(f"{waits:10} {runs[waits].time_s * 1e3:.2f} ms")
simlib.guess(times_as_long, runs["at once"].time_s / runs["at the end"].time_s, within=0.15)

# %% [markdown]
# ## The events of a trace
#
# torch's profiler writes a JSON file for each rank. The file has one **event** for each kernel. We need four fields
# of an event: `name`, `ts` (the start in microseconds), `dur` (the duration in microseconds), and `tid`, which is the
# number of the stream for events of a GPU. `events_of` returns such events for a simulated rank.


# %%
def events_of(run, rank):
    return [
        {
            "cat": "kernel",
            "name": f"nccl:{one.name}" if one.sort == "communication" else one.name,
            "ts": 1e6 * one.start_s,
            "dur": 1e6 * (one.end_s - one.start_s),
            "tid": one.stream,
        }
        for one in run.profile[rank].spans
    ]


def draw(rows, title, axes):
    """A lane for each stream of each row: `rows` is {name: events}."""
    lanes = [(name, tid) for name in rows for tid in sorted({e["tid"] for e in rows[name]})]
    for y, (name, tid) in enumerate(lanes):
        for sends, colour in ((False, "#0072B2"), (True, "#E69F00")):
            here = [e for e in rows[name] if e["tid"] == tid]
            bars = [(e["ts"], e["dur"]) for e in here if e["name"].startswith("nccl") == sends]
            axes.broken_barh(bars, (y - 0.35, 0.7), color=colour)
    axes.set_yticks(range(len(lanes)), [f"{name}, stream {tid}" for name, tid in lanes])
    axes.set(title=title, xlabel="microseconds")
    axes.invert_yaxis()


figure, axes = plt.subplots(figsize=(9, 2.4), layout="constrained")
lanes = {waits: events_of(run, 0) for waits, run in runs.items()}
draw(lanes, "rank 0 in both runs; blue: computing, orange: all_reduce", axes)
plt.show()

# %% [markdown]
# Three numbers describe a step. Tools such as [Holistic Trace
# Analysis](https://docs.pytorch.org/tutorials/beginner/hta_intro_tutorial.html) (HTA) print them, too.
#
# - **Exposed communication** is the time in which the GPU communicates and computes nothing.
# - **Overlap** is the share of the communication's time in which the GPU also computes.
# - **Idle time** is the time in which no kernel runs at all.
#
# You cannot just add up durations, because kernels of several streams may run at the same time. Sort the starts and
# the ends of all kernels. Between two neighbouring moments nothing changes. So for each of these intervals, ask which
# kernels run.
#
# **Now you write it:** `three_numbers(events, begin, end)` returns `(exposed, overlap, idle)` for the time from
# `begin` to `end`. `exposed` and `idle` are in microseconds. `overlap` is a number from 0 to 1. It is 0 if nothing
# communicates. A kernel communicates if its name begins with "nccl". All other kernels compute. The check compares
# your numbers with simlib's own.


# %%
def three_numbers(events, begin, end):
    return None  # yours


LATE = simlib.simulate(main, 4, ("at the end",), cluster=GPUS, data=False, slow={2: 1.4})
for name, run in {**runs, "rank 2 is slow": LATE}.items():
    exposed, close = run.exposed(), []
    for rank in range(4):
        exposed_s, sent_s = exposed.exposed_s[rank], exposed.communicating_s[rank]
        idle_s = run.profile[rank].idle_s + 50e-6  # up to 50 us after the end
        right = 1e6 * exposed_s, 1 - exposed_s / sent_s, 1e6 * idle_s
        found = three_numbers(events_of(run, rank), 0.0, 1e6 * run.trace.spans[rank][1] + 50)
        close.append(found is not None and np.allclose(found, right, rtol=1e-3, atol=0.05))
    print(f"{name}: {'right' if all(close) else 'not yet'}; rank 3 has", end=" ")
    print(f"exposed {right[0]:,.0f} us, overlap {right[1]:.0%}, idle {right[2]:.0f} us")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def three_numbers(events, begin, end):
#         spans = [(e["ts"], e["ts"] + e["dur"], e["name"].startswith("nccl")) for e in events]
#         moments = sorted({begin, end, *(t for span in spans for t in span[:2])})
#         exposed = sent = idle = 0.0
#         for a, b in zip(moments, moments[1:]):
#             if begin <= a and b <= end:
#                 runs = {sends for start, stop, sends in spans if start <= a and b <= stop}
#                 exposed += (b - a) * (runs == {True})
#                 sent += (b - a) * (True in runs)
#                 idle += (b - a) * (not runs)
#         return exposed, 1 - exposed / sent if sent else 0.0, idle
#
# </details>
#
# If the stream waits at once, all communication is exposed. If it waits at the end, the all_reduces run during the
# matrix products of the next layers. But six all_reduces take longer than five products, so the overlap is only 70 %.
#
# ## All ranks are equally slow
#
# In the last run, rank 2 computes 40 % more slowly. The cell prints how long each rank computed and communicated. An
# all_reduce on a GPU is a kernel that begins when its own rank reaches the call, and ends when all ranks have
# finished it. So the time in which a rank waits for others counts as communication. Which rank communicates for the
# shortest time? And by how many percent does rank 0's step get longer?

# %%
shortest, longer = None, None  # a rank; percent

exposed = LATE.exposed()
print(exposed)
steps_ms = [1e3 * (end - start) for start, end, *_ in LATE.trace.spans]
print("the steps take", *(f"{step_ms:.2f}" for step_ms in steps_ms), "ms")
before_s, after_s = (run.trace.spans[0][1] for run in (runs["at the end"], LATE))
simlib.guess(shortest, int(exposed.communicating_s.argmin()))
simlib.guess(longer, 100 * (after_s / before_s - 1), within=0.2)

# %% [markdown]
# The steps of all ranks take equally long, because they wait for each other in each all_reduce. So durations of steps
# never show the slow rank. Three ranks have much exposed communication, as with a slow network. But rank 2
# communicates for the shortest time. **The rank with the least communication is the slow one.** If the network were
# the cause, all ranks would communicate for equally long.
#
# ## Traces of an H100
#
# The course stores parts of four traces from torch's profiler (torch 2.11, November 2026). They show the training of
# a small model on one H100. The model has seven layers of at most 1024 x 1024, a batch of 256 examples, and AdamW. We
# kept only the events of kernels, copies, launches, steps and collectives.
#
# Two traces come from jobs of one rank with NCCL. The first job uses DDP, and the second uses FSDP2. For how many
# percent of step 2 is the GPU idle with DDP, and with FSDP2? And for how many microseconds does the GPU communicate
# in DDP's step 2?

# %%
idle_ddp, idle_fsdp, sent_us = None, None, None  # percent, percent, microseconds

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}  # what a GPU does; other events are of the CPU


def trace_of(name):
    """The events of the GPU, all events, and {step: (begin, end)} on the CPU."""
    content = json.loads(gzip.decompress(Path(f"recorded_gpu/{name}.json.gz").read_bytes()))
    events = content["traceEvents"]
    marks = [e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"][:4] == "user"]
    steps = {int(e["name"][13:]): (e["ts"], e["ts"] + e["dur"]) for e in marks}
    return [e for e in events if e["cat"] in DEVICE], events, steps


def shares(name, step):
    """The step, its idle time, and the time of NCCL's kernels, in microseconds."""
    kernels, _, steps = trace_of(name)
    begin, end = steps[step]
    is_idle = np.ones(round(end - begin), dtype=bool)  # one for each microsecond
    for e in kernels:
        is_idle[max(0, round(e["ts"] - begin)) : max(0, round(e["ts"] + e["dur"] - begin))] = False
    return end - begin, is_idle.sum(), sum(e["dur"] for e in kernels if e["name"][:4] == "nccl")


# %%
found, figure = {}, plt.figure(figsize=(9, 3.2), layout="constrained")
for name, one in zip(("ddp_nccl_rank0", "fsdp_nccl_rank0"), figure.subplots(2), strict=True):
    step_us, idle_us, nccl_us = found[name] = shares(name, 2)
    print(f"{name}: step 2 {step_us:,.0f} us, idle {idle_us:,} us, NCCL's kernels {nccl_us} us")
    kernels, _, steps = trace_of(name)
    begin, end = steps[2]
    here = [e | {"ts": e["ts"] - begin} for e in kernels if begin <= e["ts"] < end]
    draw({name[:-6]: here}, "", one)  # stream 22 of FSDP2 has copies within the GPU
    one.set_xlim(0, end - begin)
for guessed, name in ((idle_ddp, "ddp_nccl_rank0"), (idle_fsdp, "fsdp_nccl_rank0")):
    simlib.guess(guessed, 100 * found[name][1] / found[name][0], within=0.1)
simlib.guess(sent_us, found["ddp_nccl_rank0"][2])
plt.show()

# %% [markdown]
# The GPU is idle for 84 % of DDP's step, and for 95 % of FSDP2's. It does not communicate at all: with one rank, NCCL
# starts no kernel. So neither the network nor a late rank is the cause.
#
# ## Who waits for whom: CPU or GPU?
#
# For each kernel, the trace has two events: the CPU's **launch**, and the kernel itself. Both have the same number
# `e["args"]["correlation"]`. The **delay** is the time from the start of the launch to the start of the kernel. If
# the GPU has nothing to do, it starts the kernel after about 10 us. If the GPU lags behind Python, the kernel waits
# in its stream, and the delay grows. So the delay shows who waits for whom.
#
# **Now you write it:** `delay_us(events, begin, end)` returns the median delay of all kernels that were launched from
# `begin` to `end`. Launches have the category `"cuda_runtime"` or `"cuda_driver"`. The category of a kernel or a copy
# is in `DEVICE`.


# %%
def delay_us(events, begin, end):
    return None  # yours


drawn = [("cuda_runtime", 1, 100.0), ("cuda_driver", 2, 110.0), ("cuda_runtime", 3, 120.0)]
drawn += [("kernel", 3, 135.0), ("kernel", 1, 107.0), ("gpu_memcpy", 2, 140.0)]
drawn = [{"cat": cat, "ts": ts, "args": {"correlation": n}} for cat, n, ts in drawn]
drawn += [{"cat": "user_annotation", "ts": 105.0}]
found = delay_us(drawn, 90.0, 130.0), delay_us(drawn, 105.0, 115.0)
print("right" if found == (15.0, 30.0) else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def delay_us(events, begin, end):
#         calls = [e for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")]
#         launched = {e["args"]["correlation"]: e["ts"] for e in calls}
#         delays = []
#         for e in events:
#             if e["cat"] in DEVICE:
#                 at = launched.get(e["args"]["correlation"], -1)
#                 if begin <= at < end:
#                     delays.append(e["ts"] - at)
#         return statistics.median(delays)
#
# </details>
#
# The other two traces come from two ranks that train with DDP over Gloo. Both ranks share the H100. In step 3, one of
# the ranks first launches a kernel that only spins. The next cell prints the delays. In which of the four traces does
# the GPU lag behind Python?

# %%
behind = None  # the name of a trace, such as "ddp_nccl_rank0"


def delays(events, begin, end):
    calls = [e for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")]
    launched = {e["args"]["correlation"]: e["ts"] for e in calls}
    both = [(launched.get(e["args"]["correlation"], -1), e) for e in events if e["cat"] in DEVICE]
    return [e["ts"] - at for at, e in both if begin <= at < end]


TRACES = "ddp_nccl_rank0", "fsdp_nccl_rank0", "ddp_gloo_rank0", "ddp_gloo_rank1"
medians, posts = {}, {}
for name in TRACES:
    kernels, events, steps = trace_of(name)
    begin, end = steps[3]
    found = delays(events, begin, end)
    medians[name] = statistics.median(found)
    longest = max(e["dur"] for e in kernels if begin <= e["ts"] < end)
    came = [e["ts"] - begin for e in events if e["name"] == "c10d::allreduce_"]
    posts[name] = [round(t) for t in came if 0 <= t < end - begin]
    print(f"{name:15} {len(found):3} launches in {end - begin:6,.0f} us;", end=" ")
    print(f"median delay {medians[name]:7,.1f} us, longest kernel {longest:6,.0f} us")
    print(" " * 15, "all_reduces called at", *posts[name] or ["(none)"], "us")
simlib.guess(behind, max(medians, key=medians.get), of=TRACES)
both = simlib.load([f"recorded_gpu/ddp_gloo_rank{rank}.json.gz" for rank in (0, 1)])
print(both.stragglers().in_words())

# %% [markdown]
# In the two NCCL traces the delay is 9 to 15 us. So each kernel starts as soon as it is launched, and then the GPU
# waits for the next launch. The step is **launch-bound**: Python starts kernels more slowly than the GPU executes
# them. With FSDP2, Python has more to do in each layer. So a step takes three to four times as long as with DDP. A
# faster network would not help. A larger batch, a CUDA graph or `torch.compile` would help.
#
# On rank 1 with Gloo the delay is 5,110 us: the spinning kernel blocks the stream, and all later kernels wait. Rank 1
# also calls its all_reduces 12 to 14 ms later in its step than rank 0. So rank 0 waits for rank 1, and not for the
# network. `both.stragglers()` finds rank 1 from the times of these calls in both steps.
#
# A stream that waits for another stream shows up in the trace as a gap, because a wait is not a kernel. The CPU's
# event `cudaStreamWaitEvent` shows where the program asked for the wait. FSDP2's trace has many of these events: its
# streams wait for each other before and after each gather.
#
# | what you see | cause | look next at |
# |---|---|---|
# | little idle time, little exposed communication | computing | the longest kernels |
# | exposed communication, equally long on all ranks | the network, or an early `wait` | overlap, size of the buckets |
# | exposed communication, but less on one rank | that rank is late | what that rank did before |
# | idle time and short delays | the CPU launches too slowly | number of kernels, Python, the data loader |
# | idle time and long delays on one stream | a stream waits for another one | `cudaStreamWaitEvent` before the gap |
#
# ## Choose a time-out
#
# In part b a watchdog ended a job that was only slow. A short time-out ends such jobs wrongly, and each end costs a
# restart. With a long time-out, the GPUs are idle for long in every real hang. So look at the waits of a healthy job.
# The cell draws 20,000 random waits of a month: most take seconds, and a few take minutes, when a rank saves or
# loads. There are 10 real hangs a month, and a restart costs 1,800 s. Which time-out costs the least?

# %%
best = None  # seconds

waits_s = np.random.default_rng(0).lognormal(mean=1.0, sigma=1.5, size=20_000)
time_outs = np.arange(10, 2000, 10)
wrongly = np.array([(waits_s > T).sum() for T in time_outs])
cost_h = (wrongly * 1800 + 10 * (time_outs + 1800)) / 3600
least = int(time_outs[cost_h.argmin()])
print(f"the longest wait took {waits_s.max():,.0f} s, the cheapest time-out is {least} s")
for T in (60, least, 600):
    at = T // 10 - 1
    print(f"a time-out of {T} s ends {wrongly[at]} jobs wrongly; it costs {cost_h[at]:.1f} h")
simlib.guess(best, least, within=0.3)
figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
axes.plot(time_outs, cost_h, color="#0072B2", label="all")
axes.plot(time_outs, wrongly * 0.5, "--", color="#D55E00", label="jobs that were ended wrongly")
axes.plot(time_outs, 10 * (time_outs + 1800) / 3600, ":", color="#009E73", label="real hangs")
axes.set(xlabel="time-out in seconds", ylabel="hours lost in a month", ylim=(0, 25))
axes.legend()
plt.show()

# %% [markdown]
# At 60 s the watchdog ends nearly 400 jobs wrongly. At 520 s it ends two jobs, and that is cheapest here. Above 520
# s, each further second costs ten seconds, one in each hang. The curve is steep to the left of its minimum and flat
# to the right. So **if in doubt, choose a time-out that is too long**. The default of 600 s is good for these waits.
# If a rank saves for 750 s, as in part b, this default is too short. Then save in the background, or let the ranks
# wait for each other after saving in a group with a longer time-out: `dist.new_group(ranks, timeout=...)`.
#
# ## Your turn
#
# [Exercises 19](../exercises/19_hangs_from_records.ipynb) belong to all three parts. Their tasks are about a call
# that was left out, two groups in different orders, the overlap in a trace, and a time-out.
#
# ## Exit ticket
#
# 1. All ranks of a job have steps of 400 ms. Rank 6 has 20 ms of exposed communication, and the others have 120 ms.
#    What is the cause?
# 2. A trace shows 90 % idle time and delays of 9 us from launch to kernel. A colleague wants a faster network. What
#    do you say?
# 3. The overlap is 100 %. Is the communication free?
#
# <details><summary>Answers</summary>
#
# 1. Rank 6 is late: it communicates for the shortest time, because the others are already waiting when it calls a
#    collective.
# 2. The GPU waits for the CPU, which launches too slowly. A faster network changes nothing. Try a larger batch, a
#    CUDA graph, or `torch.compile`.
# 3. The communication does not make the step longer by itself. But its kernels use the GPU's cores and memory, so the
#    computing at that time may get slower. The three numbers do not show that.
#
# </details>
#
# **Next:** plan runs of your own, and ask a real job for its records:
# [Records of real jobs](../docs/real-jobs.md).
