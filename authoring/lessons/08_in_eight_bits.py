# %% [markdown]
# # 08 In eight bits, and on a GPU
#
# This is the second part of lesson 08. [The first part](08_from_loops_to_ddp.ipynb) sent gradients in 16 bits, and
# explained the streams of a GPU. In this part (60 minutes) you will
#
# - send tensors in 8 bits, with scales, within a budget of error and bytes,
# - see why ranks must not add in 8 bits,
# - see what waits on a GPU: Python or a stream,
# - find the waits of a real GPU without which copies would be wrong.
#
# Our tensors are gradients of lesson 07's LeNet. Each of four ranks has a quarter of 128 digits.

# %%
import gzip
import json
import time
from collections import namedtuple

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn

import simlib

IMAGES, LABELS = (tensor[:128].clone() for tensor in simlib.digits.load()[0].tensors)


def gradient_of(rank, ranks):
    torch.manual_seed(0)
    conv = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)]
    head = [nn.ReLU(), nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)]
    net = nn.Sequential(*conv, *head)
    nn.functional.cross_entropy(net(IMAGES[rank::ranks]), LABELS[rank::ranks]).backward()
    return torch.cat([w.grad.flatten() for w in net.parameters()])[:430_080]  # 3,360 x 128


GRADIENTS = [gradient_of(rank, 4) for rank in range(4)]

# %% [markdown]
# ## Four formats
#
# 8 bits can distinguish 256 values. A format says which values.
#
# - **int8** has the whole numbers from -128 to 127. All gaps are equal.
# - **e4m3** has a sign, 4 bits of *exponent* and 3 bits of *mantissa*. The exponent chooses a power of 2. The mantissa
#   chooses one of 8 values from this power up to the next one. **e5m2** has 5 bits of exponent and 2 bits of mantissa,
#   so it has 4 values there. In both formats the gaps grow with the numbers. Both are called **float8** ([Micikevicius
#   et al. 2022](https://arxiv.org/abs/2209.05433)).
# - **bf16** is the first part's bfloat16, with 16 bits.
#
# The left picture shows all values from 0 to 16. The right picture shows how large the error of rounding can be,
# divided by the value.


# %%
def cast(x, dtype):
    return (x.round() if dtype == torch.int8 else x).to(dtype)


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = {"int8": torch.int8, "e4m3": E4M3, "e5m2": E5M2, "bf16": torch.bfloat16}
COLOURS = "#D55E00", "#0072B2", "#009E73", "#CC79A7"
figure, (line, error) = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
for row, ((name, dtype), colour) in enumerate(zip(FORMATS.items(), COLOURS, strict=True)):
    bits = torch.arange(2**15, dtype=torch.int16) if name == "bf16" else torch.arange(128).char()
    values = bits.view(dtype).float()
    few, *_, most = values[values.isfinite() & (values > 0)].tolist()
    print(f"{name}: from {few:.2g} to {most:,.4g}")
    line.eventplot(values[values <= 16], lineoffsets=-row, linelengths=0.7, color=colour, lw=0.7)
    x = torch.logspace(-6, 6, 4000)
    x = x[x <= most].unfold(0, 20, 20)  # the worst of 20 neighbours is drawn
    error.plot(x[:, 0], ((cast(x, dtype).float() - x).abs() / x).amax(1), color=colour, label=name)
line.set(yticks=range(0, -4, -1), yticklabels=FORMATS, xlabel="value")
error.set(xscale="log", yscale="log", xlabel="value", ylabel="largest relative error")
error.legend(loc=(0.02, 0.17))
plt.show()

# %% [markdown]
# In the flat part of its curve, e4m3 is off by at most 6 %, and e5m2 by at most 11 %. Left of this part, errors grow
# until numbers become 0. Our first gradient has many zeros. Of its other numbers, half are below 0.0002 in absolute
# value, and 90 % are below 0.0013. The smallest positive value of e4m3 is 0.002. What percentage of these other
# numbers becomes 0 in e4m3?
#
# A **scale** helps. It is a number by which a rank divides the tensor. Our scale is the tensor's largest absolute
# value, divided by the format's largest value. So the largest number of the tensor becomes the largest value of the
# format. The receiver multiplies by the scale. The error of the whole tensor is
# $|\text{received} - \text{exact}| / |\text{exact}|$. Here $|v|$ is the length of the vector $v$.

# %%
become_zero = None  # percent, in e4m3 without a scale
LARGEST = {torch.int8: 127, E4M3: 448, E5M2: 57_344}


def off_by(found, exact):
    return ((found - exact).norm() / exact.norm()).item()


mine = GRADIENTS[0]
for dtype in LARGEST:
    for scale in (1.0, mine.abs().max() / LARGEST[dtype]):
        found = cast(mine / scale, dtype).float() * scale
        zero = 100 * (found[mine != 0] == 0).float().mean().item()
        print(f"{dtype} scale {scale:.2g}: {zero:3.0f} % become 0, error {off_by(found, mine):.1%}")
        simlib.guess(become_zero if dtype == E4M3 and scale == 1 else None, zero, within=0.15)

# %% [markdown]
# With one scale, both kinds of float8 are fine. In int8, 43 % of the numbers still become 0. A few large numbers
# decide the scale, and these 43 % are smaller than half a gap. So split the tensor into **blocks**, for example of 128
# numbers. Each block has its own scale, and the scales travel with the bytes.
#
# ## Gather in 8 bits
#
# **Now you write it:** `gathered(mine)` gathers the gradients of all ranks. It returns them in float32, one row for
# each rank. The budget is an error of at most 1 %, and at most 26 % of the bytes of float32. All ranks must get the
# same numbers, because replicas must stay equal.
#
# 1. Reshape `mine` to one block in each row, and compute a scale for each row. Some blocks contain only zeros: what is
#    0 / 0?
# 2. Divide by the scales, and `cast`. Which format keeps the budget?
# 3. Gather values and scales with two `dist.all_gather`, into lists of `torch.empty_like`. The number of ranks is
#    `dist.get_world_size()`.
# 4. Restore all rows in float32, your own row too. `torch.stack` joins them.
#
# Gloo refuses float8. To send float8, send the same bytes under another name: `values.view(torch.uint8)`.


# %%
def gathered(mine):
    return None  # yours


exact = torch.stack(GRADIENTS)
for engine in (simlib.run, simlib.simulate):
    run = engine(lambda rank, world_size: gathered(GRADIENTS[rank]), 4)
    first, *others = run.results
    share = sum(op.nbytes for op in run.trace.of_rank(0)) / mine.nbytes
    error = float("nan") if first is None else off_by(first.view_as(exact), exact)
    same = first is None or all(first.equal(other) for other in others)
    ok = error <= 0.01 and 0 < share <= 0.26 and same
    print(f"{engine.__name__}: {'right' if ok else 'not yet'}; error {error:.2%}", end=", ")
    print(f"bytes {share:.1%}, {'the same' if same else 'different'} numbers on the ranks")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def gathered(mine):
#         blocks = mine.view(-1, 128)
#         scales = blocks.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
#         sent = cast(blocks / scales, torch.int8), scales
#         got = [[torch.empty_like(x) for _ in range(dist.get_world_size())] for x in sent]
#         for parts, x in zip(got, sent):
#             dist.all_gather(parts, x)
#         return torch.stack([(values.float() * s).flatten() for values, s in zip(*got)])
#
# Without `clamp`, a block of zeros becomes 0 / 0, which is nan. Torch does not define which int8 a nan becomes. Here
# it happens to be 0, so the check cannot see it. In float8 it stays nan.
#
# </details>
#
# `quantised` and `restored` are the lesson's own functions. The table shows the errors of int8, e4m3 and e5m2, in this
# order, for four block sizes.


# %%
def quantised(x, dtype, block=128):
    blocks = x.reshape(-1, block)
    scales = blocks.abs().amax(1, keepdim=True).clamp(min=1e-30) / LARGEST[dtype]
    return cast(blocks / scales, dtype), scales


def restored(values, scales):
    return (values.float() * scales).flatten()


for block in (430_080, 1024, 128, 32):
    errors = (off_by(restored(*quantised(mine, dtype, block)), mine) for dtype in LARGEST)
    times = f"blocks of {block:7,}: {4 / (1 + 4 / block):.2f} times fewer bytes; errors"
    print(times, *(f"{error:.2%}" for error in errors))

# %% [markdown]
# Blocks help int8 most. In blocks of 128, the error of int8 is a quarter of the error of e4m3, because int8 has more
# values near its largest value. Float8 gains less from blocks. But new GPUs multiply matrices in float8. DeepSeek-V3
# sends and multiplies e4m3 in blocks of 128 ([arXiv 2412.19437](https://arxiv.org/abs/2412.19437)). ZeRO++ gathers
# weights as int8 in blocks ([arXiv 2306.10209](https://arxiv.org/abs/2306.10209)).
#
# ## Why sums must be wide
#
# An all_gather only moves numbers. An all_reduce also adds them. Below, each of two ranks brings 100 and 5 to an
# all_reduce, as int8 and as int32. Then one rank adds 10 to 256, fifty times, and rounds to e4m3 after each addition.
# Which sums are wrong?


# %%
def total(rank, world_size, dtype):
    x = torch.tensor([100, 5]).to(dtype)
    dist.all_reduce(x)
    return x.tolist()


for dtype in (torch.int8, torch.int32):
    print(dtype, simlib.run(total, 2, args=(dtype,)).results[0])
x = torch.tensor(256.0).to(E4M3)
for _ in range(50):
    x = (x.float() + 10).to(E4M3)
print("256 + 50 x 10 in e4m3:", x.item())

# %% [markdown]
# In int8 the sum **overflows**: it is 200 - 256 = -56. In e4m3 the gap above 256 is 32, so 266 is rounded to 256. The
# large number **swallows** each small number. Torch raises no error in either case.
#
# A ring all_reduce passes partial sums from rank to rank. In 8 bits, each rank restores the partial sum, adds its own
# gradient, and rounds again. For a **wide sum**, each rank rounds its own gradient once and sends it. The receiver
# adds all gradients in float32. The cell computes both sums for LeNet's gradients. Which error grows with the number
# of ranks?

# %%
each = [gradient_of(rank, 64) for rank in range(64)]
for dtype in (torch.int8, E4M3):
    for ranks in (2, 8, 64):
        partial, wide = each[0], restored(*quantised(each[0], dtype))
        for gradient in each[1:ranks]:
            partial = restored(*quantised(partial, dtype)) + gradient
            wide += restored(*quantised(gradient, dtype))
        ring, once = (off_by(found, sum(each[:ranks])) for found in (partial, wide))
        print(f"{dtype}, {ranks:2} ranks: error in a ring {ring:.2%}, wide {once:.2%}")

# %% [markdown]
# The ring's error grows, because every hop rounds the whole partial sum. With 64 ranks in e4m3, it is 8.5 times the
# error of the wide sum. In the wide sum each gradient is rounded once, and the errors have different signs, so they
# partly cancel. With 2 ranks the ring is better, because it rounds only one of the two gradients.
#
# So a quantised reduction does not use a ring. Each rank cuts its gradient into R parts, and sends part r to rank r.
# This is an **all_to_all** of blocks and scales. Rank r adds its R parts in float32. Together this is a
# reduce_scatter, as in ZeRO++. For an all_reduce, rank r quantises its sum again, and all ranks gather the sums, as in
# `gathered`.
#
# **Now you write** the last line of `summed`, the wide sum. The restored tensor has R parts, one after the other. As
# it stands, `summed` returns only the rank's own part.


# %%
def summed(rank, world_size, gradients, dtype):
    values, scales = quantised(gradients[rank], dtype)
    codes = values.view(torch.uint8)
    got, scales_of = torch.empty_like(codes), torch.empty_like(scales)
    dist.all_to_all_single(got, codes)  # part r of every rank comes to rank r
    dist.all_to_all_single(scales_of, scales)
    return restored(got.view(dtype), scales_of).chunk(world_size)[rank]  # yours: a sum


slow = simlib.clusters.ethernet_10g(4)
for dtype in (torch.int8, E4M3):
    args = GRADIENTS, dtype
    error = off_by(torch.cat(simlib.run(summed, 4, args).results), exact.sum(0))
    run = simlib.simulate(summed, 4, args, cluster=slow, expand=True)
    sent = sum(message.nbytes for message in run.wire if message.src == 0)
    print(dtype, "is right" if error < 0.02 else "is not yet right", end=": ")
    print(f"error {error:.2%}, rank 0 sends {sent:,} bytes in {run.time_s * 1e3:.2f} ms")

# %% [markdown]
# In float32, rank 0 would send 1,290,240 bytes, which is 3.88 times as much. The price of 8 bits is
# a second call with its latency, and the time of rounding.
#
# <details><summary>Answer</summary>
#
# `return restored(got.view(dtype), scales_of).view(world_size, -1).sum(0)`. Its errors are 0.49 % and 1.91 %.
#
# </details>
#
# ## Who waits on a GPU?
#
# On a GPU, a call returns before its work is done. The devices of the simulated cluster below do the same. In a
# simulation, `torch.cpu.Stream` and `Event` stand for those of `torch.cuda`. In the *current* stream, into which calls
# go, a product of matrices takes 0.86 ms and writes the gradient. A second stream, `side`, sends the gradient. In the
# second run, `side` does not wait for the product.
#
# Each line shows when Python comes back from `work.wait()`, how long after the end of the product the all_reduce
# begins, and one number of the sum. With CPU tensors, Python stops in `wait()` until the sum is there. Does Python
# stop here, too?


# %%
def send_aside(rank, world_size, waits, n=2048):
    x, side, start = torch.ones(n, n) / n, torch.cpu.Stream(), time.perf_counter()
    ready, begins = torch.cpu.Event(), torch.cpu.Event()
    gradient = x @ x
    ready.record()  # in the current stream, after the product
    if waits:
        side.wait_event(ready)
    with torch.cpu.stream(side):
        begins.record()  # in `side`
        work = dist.all_reduce(gradient, async_op=True)
    work.wait()
    back_ms = 1e3 * (time.perf_counter() - start)
    torch.cpu.synchronize()  # Python waits for both streams
    after_ms = ready.elapsed_time(begins)
    return f"back at {back_ms:.2f} ms; {after_ms:+.2f} ms; {gradient[0, 0] * n:.0f}"


device = simlib.Device(flops_per_s=20e12, launch_s=5e-6, asynchronous=True)
cluster = simlib.Cluster(2, 1, inter=simlib.Link(5e-6, 25e9), device=device)
for waits in (True, False):
    run = simlib.simulate(send_aside, 2, args=(waits,), cluster=cluster)
    print(f"side waits: {waits}; {run.results[0]}; all done at {run.time_s * 1e3:.2f} ms")

# %% [markdown]
# No, Python comes back at once. With NCCL, `wait()` only puts a wait into the current stream, so that later kernels
# see the sum. So to time a step, call `torch.cuda.synchronize()` before you read the clock.
#
# In the second run, the all_reduce begins 0.86 ms *before* its gradient is ready. The simulator models the times of
# streams, but computes values in the order of Python. So the sum is right here. On a GPU it could be wrong. **A read
# before the end of the write is a race, even if the numbers are right today.**
#
# ## Find the waits that matter
#
# The first part showed two DDP ranks on one H100, recorded by torch's profiler. Stream 7 computes. Each bucket is
# copied to the host (the CPU's memory) in another stream, which first waits for stream 7. Torch set all these waits.
# Which of them were necessary?
#
# `work_of` reads a file. It yields one `Work` for each kernel or copy. A `Work` contains the time at which Python
# launched it, the times at which it began and ended on the GPU (all in microseconds), its stream, and its name. A copy
# to the host has `DtoH` in its name.
#
# **Now you write it:** `early_us(work)` returns or yields a number for each copy to the host, in the order of
# launches. Without a wait, a copy could begin when Python launches it. But the copy needs the results of all work that
# Python launched in stream 7 earlier. The number says how many microseconds before the end of this work Python
# launches the copy. If the work has already ended, the number is 0.
#
# In the test below, Python launches copy `b` at 20, and kernel `a` ends at 50. So the number for `b` is 30. When
# Python launches copy `d`, kernels `a` and `c` have ended. So the number for `d` is 0.

# %%
Work = namedtuple("Work", "launched begin end stream name")


def work_of(rank):
    with gzip.open(f"recorded_gpu/ddp_gloo_rank{rank}.json.gz") as file:
        events = json.load(file)["traceEvents"]
    at = {e["args"].get("correlation"): e["ts"] for e in events if e["cat"][:5] == "cuda_"}
    for e in events:
        if "stream" in e["args"] and (t := at.get(e["args"]["correlation"])):
            yield Work(t, e["ts"], e["ts"] + e["dur"], e["args"]["stream"], e["name"])


def early_us(work):
    return []  # yours


a, b = Work(0, 10, 50, 7, "kernel"), Work(20, 50, 55, 9, "DtoH")
c, d = Work(70, 71, 76, 7, "kernel"), Work(80, 90, 95, 9, "DtoH")
e, f = Work(81, 95, 300, 7, "kernel"), Work(60, 61, 200, 9, "HtoD")
found = list(early_us([d, f, e, c, b, a]))
print("right" if found == [30, 0] else f"not yet: {found}, but [30, 0] is expected")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def early_us(work):
#         for copy in sorted(work):
#             if "DtoH" in copy.name:
#                 ends = [w.end for w in work if w.stream == 7 and w.launched < copy.launched]
#                 yield max(0, max(ends) - copy.launched)
#
# </details>
#
# Each file contains two steps with three buckets, so there are 12 copies. How many of them would have begun too early
# without the wait? The picture shows the second step. A dashed line leads from the launch of a copy to its begin.

# %%
needed = None  # of 12
early, figure = [], plt.figure(figsize=(9, 4), layout="constrained")
for rank, axes in enumerate(figure.subplots(2, sharex=True)):
    work = sorted(work_of(rank))
    copies, computing = ([w for w in work if "DtoH" in w.name], [w for w in work if w.stream == 7])
    for copy in copies:
        ready = max(w.end for w in computing if w.launched < copy.launched)
        early.append(max(0, round(ready - copy.launched)))
    print(f"rank {rank}: too early by", *early[-6:], "us")
    zero = copies[3].launched - 500
    for y, lane, colour in ((1, computing, "#0072B2"), (2, copies, "#E69F00")):
        bars = [(w.begin - zero, w.end - w.begin) for w in lane]
        axes.broken_barh(bars, (y - 0.35, 0.7), color=colour)
    for w in copies:
        axes.plot(
            (w.launched - zero, w.begin - zero), (0, 1.65), "--o", color="#D55E00", ms=4, lw=1
        )
    axes.set_yticks((0, 1, 2), [f"rank {rank}, Python launches", "stream 7", "streams of buckets"])
    axes.set(xlim=(0, copies[5].launched - zero + 4000), ylim=(2.6, -0.5), xlabel="microseconds")
    axes.label_outer()
simlib.guess(needed, sum(us > 0 for us in early))
plt.show()

# %% [markdown]
# Six of the twelve waits were necessary. On rank 0 the GPU has little to do, and only one copy would have been too
# early. On rank 1 a long kernel blocks stream 7 in the second step. Python runs ahead, and a copy would have begun 5.7
# ms too early. **A missing wait shows only if the GPU lags behind Python.** So a small test can pass, and the large
# job still computes wrong numbers.
#
# ## What else a GPU changes
#
# - **NCCL takes part of the GPU.** Its collectives are kernels on the GPU's *streaming multiprocessors* (SMs).
#   DeepSeek-V3 reserves 20 of 132 SMs for communication. NCCL has
#   [policies](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/flags.html) that use fewer. So even hidden
#   communication slows down computing.
# - **CUDA graphs need fixed shapes.** A graph repeats the same kernels with the same sizes and addresses, and Python
#   must not read values meanwhile ([NVIDIA's
#   list](https://docs.nvidia.com/dl-cuda-graph/cuda-graph-basics/constraints.html)). So pad batches to a few lengths,
#   and record a graph for each.
#
# ## Your turn
#
# [Exercises 08](../exercises/08_from_loops_to_ddp.ipynb), tasks 5 and 6: an all_reduce and an all_to_all in 8 bits.
#
# ## Exit ticket
#
# 1. A tensor has one number of 1,000, and the others are near 1. What does one scale do to the others in int8? And in
#    e4m3?
# 2. Why is an all_reduce of quantised int8 values wrong even if no sum exceeds 127?
# 3. A GPU program lacks a stream wait. Why does it pass the test on a small model?
#
# <details><summary>Answers</summary>
#
# 1. In int8 the gap is 1,000 / 127 = 7.9, so the others become 0. In e4m3 the scale is 1,000 / 448 = 2.2, so the others
#    become about 0.4. There the error is still at most 6 %.
# 2. Each rank has its own scales. If two int8 values have different scales, their sum means nothing.
# 3. The GPU has finished the gradient before Python launches the copy. In a larger model the GPU lags behind.
#
# </details>
#
# **Next:** [lesson 09](09_when_does_it_pay.ipynb), which asks when all this is worth it.
