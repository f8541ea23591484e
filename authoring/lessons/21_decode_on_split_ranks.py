# %% [markdown]
# # 21 Decode on split ranks
#
# Lesson 21 is about **serving**: a trained language model answers requests. This is its first part. You need [lesson
# 12](12_tensors_and_state.ipynb), where matrices are cut by columns and by rows. A language model writes one token
# after the other, and each new token depends on all earlier ones. In this part (60 minutes) you will
#
# - write a layer that keeps the keys and values of earlier tokens, on ranks that share the matrices,
# - count its collectives in the trace,
# - predict how long a model with 8 billion parameters needs for a token, and check the prediction in a simulation,
# - find the number of GPUs that is fastest on three networks,
# - find out how many requests fit into a GPU's memory,
# - compare the formula with seven published measurements, if you read the appendix.
#
# **B** is the batch, the number of requests that are answered together. **D** is the number of values per token.
# **tp** is the number of ranks that share the matrices.

# %%
from dataclasses import dataclass, replace
from math import log2

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import simlib


@dataclass(frozen=True)
class Shape:
    layers: int = 2
    D: int = 64
    heads: int = 8  # of the queries; heads may share keys and values
    kv_heads: int = 4  # of the keys and values
    hidden: int = 192
    vocabulary: int = 96

    @property
    def head(self):
        return self.D // self.heads  # values per head


# %% [markdown]
# ## The model
#
# Each layer has attention and an MLP, as in the Llama models. Two or more heads of queries may use the same head of
# keys and values. This is called **grouped-query attention** (GQA). In **multi-head attention** (MHA) each head of
# queries has its own keys and values.
#
# `weights` returns a rank's part of the model. The matrices q, k, v, gate and up are cut by columns, so each rank has
# some of the heads. The matrices `out` and `down` are cut by rows. The last matrix, `scores`, computes a number for
# each word of the vocabulary. This matrix is cut by columns. `whole` is the model in one process: it computes the
# scores of all positions of a text at once.


# %%
def weights(rank, tp, shape, dtype=torch.float32):
    """The table of words, the layers and `scores`: the same numbers however they are cut."""
    generator = torch.Generator().manual_seed(21)

    def part(rows, columns, by_rows=False, parts=tp):
        w = torch.randn(rows, columns, generator=generator, dtype=dtype).div_(D**0.5)
        return nn.Parameter(w.chunk(parts, 1 - by_rows)[rank % parts].clone(), False)

    D, kv, hidden = shape.D, shape.kv_heads * shape.head, shape.hidden
    by_columns = {"q": (D, D), "k": (D, kv), "v": (D, kv), "gate": (D, hidden), "up": (D, hidden)}
    by_rows = {"out": (D, D), "down": (hidden, D)}
    table = part(shape.vocabulary, D, parts=1)
    layers = [
        {name: part(*size) for name, size in by_columns.items()}
        | {name: part(*size, by_rows=True) for name, size in by_rows.items()}
        for _ in range(shape.layers)
    ]
    return table, layers, part(D, shape.vocabulary)


# %%
def norm(x):
    return F.rms_norm(x, x.shape[-1:])


def heads(x, head):
    """(B, T, heads x head) becomes (B, heads, T, head)."""
    return x.unflatten(-1, (-1, head)).transpose(1, 2)


def attend(q, k, v):
    """Each query looks at the keys up to its own position; one query looks at all keys."""
    y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[-2] > 1, enable_gqa=True)
    return y.transpose(1, 2).flatten(2)


def whole(shape, tokens):
    table, layers, scores = weights(0, 1, shape)
    x = table[tokens]  # (B, T, D)
    for w in layers:
        q, k, v = (heads(norm(x) @ w[name], shape.head) for name in "qkv")
        x = x + attend(q, k, v) @ w["out"]
        h = norm(x)
        x = x + (F.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
    return norm(x) @ scores


# %% [markdown]
# ## The KV cache
#
# To write a token, the model needs the keys and values of all earlier tokens. A program that calls `whole` for each
# new token computes these keys and values again and again. But they do not change, because a token does not look at
# later tokens. So a rank keeps them in a **KV cache**. Writing then has two phases:
#
# - **Prefill** processes all tokens of the prompt at once, and fills the cache.
# - **Decode** processes one new token at a time. It reads the cache, and adds one key and one value per layer.
#
# `generate` does both. The first pass of its loop is prefill, and each later pass is decode. `start` is the number of
# tokens that the cache already has. The function `layer` does the work of one layer. At the end of a pass the ranks
# gather the scores, and take the word with the highest score.


# %%
def generate(rank, tp, shape, tokens, new, layer, start=0, dtype=torch.float32):
    """Write `new` tokens for each of B prompts. Return the scores of each new token."""
    table, layers, scores = weights(rank, tp, shape, dtype)
    (B, T), found = tokens.shape, []
    size = 2, B, shape.kv_heads // tp, start + T + new - 1, shape.head
    caches = [torch.zeros(size, dtype=dtype) for _ in layers]
    for number in range(new):
        with simlib.span("token", number=number):
            x = table[tokens]
            for w, cache in zip(layers, caches, strict=True):
                x = layer(w, x, cache, start, shape.head)
            start += x.shape[1]
            mine = norm(x[:, -1]) @ scores
            parts = [torch.empty_like(mine) for _ in range(tp)]
            dist.all_gather(parts, mine)
            tokens = torch.cat(parts, 1).argmax(1, keepdim=True)
        found.append(torch.cat(parts, 1))
    return found


# %% [markdown]
# **Now you write it:** `your_layer` is a layer with a cache, on a rank that has a part of the matrices. Its input `x`
# contains the new tokens. The shape of `x` is (B, T, D). All ranks have the whole x, and must return the whole
# result.
#
# 1. Compute q, k and v of the new tokens, as `whole` does. A rank computes those of its own heads.
# 2. Write k into `cache[0]` and v into `cache[1]`, at the positions from `start` on. In both tensors, the third axis
#    counts the positions.
# 3. Attend to the positions that have been written so far.
# 4. Multiply by `out`. Each rank's product is one summand of the result. Which collective do you need?
# 5. Compute the MLP in the same way.
#
# The check runs the function on 2 real ranks, and on 1 and 4 simulated ranks. It compares the scores of each
# new token with those of `whole`, which has no cache and runs in one process. Token 0 comes from prefill, and tokens 1
# to 3 come from decode.


# %%
def your_layer(w, x, cache, start, head):
    return x  # yours: x after attention and MLP, whole on each rank


def check_layer(layer):
    prompts = torch.arange(10).view(2, 5) * 7 % 96
    for engine, tp in ((simlib.simulate, 1), (simlib.run, 2), (simlib.simulate, 4)):
        try:
            run = engine(generate, tp, args=(Shape(), prompts, 4, layer))
        except simlib.SimlibError as error:
            print(f"{engine.__name__}, tp {tp}: not yet:", str(error).splitlines()[0])
            continue
        text, wrong = prompts, []
        for number, scores in enumerate(run.results[0]):
            if not torch.allclose(scores, whole(Shape(), text)[:, -1], atol=1e-4):
                wrong.append(number)
            text = torch.cat([text, scores.argmax(1, keepdim=True)], 1)
        verdict = f"not yet: other scores for token {wrong[0]}" if wrong else "right"
        print(f"{engine.__name__}, tp {tp}: {verdict}")


check_layer(your_layer)

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def your_layer(w, x, cache, start, head):
#         h, end = norm(x), start + x.shape[1]
#         q, k, v = (heads(h @ w[name], head) for name in "qkv")
#         cache[0][:, :, start:end] = k
#         cache[1][:, :, start:end] = v
#         y = attend(q, cache[0][:, :, :end], cache[1][:, :, :end]) @ w["out"]
#         dist.all_reduce(y)
#         x = x + y
#         h = norm(x)
#         y = (F.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
#         dist.all_reduce(y)
#         return x + y
#
# Keys and values need no communication: a rank keeps those of its own heads.
#
# </details>
#
# ## What a token sends
#
# The lesson continues with its own function `layer`. Four ranks share a model of 2 layers with D = 64 in float32, and
# B is 2. How many all_reduces does a rank take part in for each decoded token? How many bytes does the tensor of each
# of these all_reduces have?

# %%
calls, nbytes = None, None  # all_reduces for each token; bytes of one


def layer(w, x, cache, start, head):
    h, end = norm(x), start + x.shape[1]
    q, k, v = (heads(h @ w[name], head) for name in "qkv")
    cache[0][:, :, start:end], cache[1][:, :, start:end] = k, v
    y = attend(q, cache[0][:, :, :end], cache[1][:, :, :end]) @ w["out"]
    dist.all_reduce(y)
    x = x + y
    h = norm(x)
    y = (F.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
    dist.all_reduce(y)
    return x + y


prompts = torch.arange(10).view(2, 5)
node = simlib.Cluster(1, 4, simlib.Link(0, 1e9), simlib.Link(5e-6, 450e9))
DOUBLING = {"all_reduce": "recursive_doubling", "all_gather": "bruck"}
run = simlib.simulate(generate, 4, (Shape(), prompts, 3, layer), cluster=node, **DOUBLING)
sizes = [c.nbytes for c in run.trace.collectives if c.kind == "all_reduce"]
print("bytes of each all_reduce:", sizes)
simlib.guess(calls, len(sizes) // 3)
simlib.guess(nbytes, sizes[-1])
run.timeline()

# %% [markdown]
# For each token a rank takes part in 2 all_reduces per layer, as in the forward pass of training. In decode they are
# tiny: B x D numbers, here 2 x 64 x 4 = 512 bytes. In prefill they have T times as many bytes, here 2,560. The
# picture shows prefill, and then two decoded tokens, each with 4 all_reduces and the all_gather of the scores. No
# device is modelled, so only communication takes time. An all_reduce of 512 bytes takes as long as one of 2,560
# bytes, because nearly all of its time is latency.
#
# ## A model of 8 billion parameters
#
# `LLAMA` has the shape of Llama 3 8B. A run without data (`data=False`) computes with shapes only, so your machine
# can simulate it. The modelled GPU has three figures from the data sheet of an H100 SXM: 989 Tflop/s in bfloat16, a
# memory of 80 GB, and a memory bandwidth of 3.35 TB/s. simlib computes two times for an operation: one for its
# arithmetic, and one for reading and writing its bytes. The operation takes the longer of the two.
#
# One GPU processes a prompt of 1,000 tokens. Then it decodes one token. The matrices have 7.5 billion weights of 2
# bytes. For each token, each weight needs 2 flops: one multiplication and one addition. Divide the time of the prefill
# by the time of the decode. What do you expect?

# %%
times = None  # prefill of 1,000 tokens, in decoded tokens
LLAMA = Shape(32, 4096, 32, 8, 14_336, 128_256)
GPU = simlib.Device(rates={"bfloat16": 989e12}, memory_Bps=3.35e12, memory_bytes=80e9)
NVLINK = simlib.Link(5e-6, 450e9)


def one_pass(tp=1, shape=LLAMA, B=1, T=1, start=1000, link=NVLINK, all_reduce="recursive_doubling"):
    """A run of one pass of T tokens for each of B requests; the cache has `start` tokens."""
    args = shape, torch.zeros(B, T, dtype=torch.int64), 1, layer, start, torch.bfloat16
    cluster = simlib.Cluster(1, 8, link, intra=link, device=GPU)
    options = DOUBLING | {"all_reduce": all_reduce, "alike": "auto"}
    return simlib.simulate(generate, tp, args, cluster=cluster, data=False, **options)


def ms(run):
    return 1e3 * (run.trace.pieces[0].end_s - run.trace.pieces[0].start_s)


took = {}
for name, run in {"prefill": one_pass(T=1000, start=0), "decode": one_pass()}.items():
    took[name], work = ms(run), run.trace.pieces[0].work
    print(f"{name:7} {took[name]:6.2f} ms; arithmetic alone {1e3 * work.full_rate_s:6.3f} ms")
simlib.guess(times, took["prefill"] / took["decode"], within=0.25)

# %% [markdown]
# Prefill takes only 4.2 times as long as one decoded token, although it processes 1,000 times as many tokens.
# **Arithmetic limits prefill:** arithmetic alone takes 14.6 of its 19.1 ms. **Memory limits decode:** its arithmetic
# takes 0.02 ms, but the GPU must read all weights for one token. To make decode faster, several GPUs must read at the
# same time.
#
# **Now you write it:** `token_s` predicts the time of a decoded token. Add up three times.
#
# 1. Each rank reads its part of all matrices, without the table of words. A layer has q and `out` (D x D), k and v (D
#    x kv_heads x head), and gate, up and down (D x hidden). `scores` has D x vocabulary numbers.
# 2. For each of B requests, a rank reads its part of the keys and values of `length` tokens, in each layer.
# 3. All_reduces use recursive doubling (lesson 05), with $\log_2(tp)$ rounds. In a round, each rank sends B x D
#    numbers. Count 2 all_reduces per layer, and one more collective, which gathers the scores.
#
# A number has 2 bytes. The check accepts your times if they are within 5 % of the simulated ones.


# %%
def token_s(shape, tp, B, length, link, memory_Bps=3.35e12):
    return float("nan")  # yours: seconds


for tp, B, length in ((1, 1, 1000), (2, 1, 1000), (4, 16, 4000), (8, 1, 1000)):
    seen, yours = ms(one_pass(tp, B=B, start=length)), 1e3 * token_s(LLAMA, tp, B, length, NVLINK)
    verdict = "right" if abs(yours / seen - 1) < 0.05 else "not yet"
    print(f"tp {tp}, B {B:2}: simulated {seen:.2f} ms, yours {yours:.2f} ms: {verdict}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def token_s(shape, tp, B, length, link, memory_Bps=3.35e12):
#         kv = shape.kv_heads * shape.head
#         matrices = 2 * shape.D**2 + 2 * shape.D * kv + 3 * shape.D * shape.hidden
#         numbers = shape.layers * matrices + shape.D * shape.vocabulary
#         numbers += B * length * shape.layers * 2 * kv
#         round_s = link.latency_s + 2 * B * shape.D / link.bandwidth_Bps
#         return 2 * numbers / tp / memory_Bps + (2 * shape.layers + 1) * log2(tp) * round_s
#
# </details>
#
# ## How many GPUs?
#
# With 8 GPUs, each GPU reads an eighth of the weights. But the all_reduces take longer with more ranks. The cell
# tries three networks. In a node with NVLink, a round has a latency of 5 us. Between nodes we assume 7 us with
# InfiniBand, and 30 us with Ethernet of 10 Gbit/s. In a fourth case, the all_reduces on NVLink are rings, which have
# 2 (tp - 1) rounds. For each case, guess which tp is the fastest: 1, 2, 4 or 8. You may use `token_s`.

# %%
fastest = {"NVLink": None, "InfiniBand": None, "Ethernet": None, "NVLink, ring": None}
LINKS = {"NVLink": NVLINK, "InfiniBand": simlib.Link(7e-6, 50e9)}
LINKS |= {"Ethernet": simlib.Link(30e-6, 1.25e9), "NVLink, ring": NVLINK}
TPS, BLUE, RED = (1, 2, 4, 8), "#56B4E9", "#D55E00"


def network_ms(run):
    return 1e3 * (run.states.waiting_s[0] + run.states.transferring_s[0])


figure, axes = plt.subplots(1, 4, figsize=(9, 2.8), sharey=True, layout="constrained")
for at, (name, link) in zip(axes, LINKS.items(), strict=True):
    way = "ring" if "ring" in name else "recursive_doubling"
    runs = [one_pass(tp, link=link, all_reduce=way) for tp in TPS]
    total, network = [ms(run) for run in runs], [network_ms(run) for run in runs]
    memory = [a - b for a, b in zip(total, network, strict=True)]
    at.bar([str(tp) for tp in TPS], memory, color=BLUE, label="memory")
    at.bar([str(tp) for tp in TPS], network, bottom=memory, color=RED, label="network")
    at.set(title=name, xlabel="tp")
    print(f"{name:12}", ", ".join(f"tp {tp} {t:.2f} ms" for tp, t in zip(TPS, total, strict=True)))
    simlib.guess(fastest[name], TPS[total.index(min(total))], of=TPS)
axes[0].set(ylabel="ms for a token")
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# On NVLink and on InfiniBand, 8 GPUs are the fastest. But they are only 2.9 and 2.3 times as fast as one GPU. Most of
# the time is now latency: 65 collectives of 3 rounds of 5 us take 0.98 ms. On Ethernet, one GPU is the fastest. A
# second GPU would save half of the reading time, but the all_reduces would take longer than that. With rings on
# NVLink, 8 GPUs are slower than one. In lesson 05 rings were good for many bytes. A token has few bytes, so the
# **number of rounds** decides.
#
# ## The cache limits the batch
#
# The weights are read once for all requests of a batch. So a larger batch costs little time. What limits the batch?
# For each token of each request, the cache keeps a key and a value in each layer:
#
# $$\text{bytes for a token} = 2 \cdot \text{layers} \cdot \text{kv heads} \cdot \text{head} \cdot 2$$
#
# `LLAMA` keeps 131,072 bytes for a token. Each request gets room for 4,096 tokens. The GPU has 80 GB. The model's
# weights and its table of words take 16.06 GB. How many requests fit? And how many fit with multi-head attention?
# Then the model has 32 heads of keys and values, and its weights and table take 17.67 GB. The cell simulates batches
# near the formula's number, and the ledger counts their memory. Also guess a ratio: divide the time of a token with B
# = 64 by its time with B = 1. For this ratio, the cache contains 1,000 tokens of each request.

# %%
largest, slower = {"GQA": None, "MHA": None}, None  # requests; times as long

for name, shape in {"GQA": LLAMA, "MHA": replace(LLAMA, kv_heads=32)}.items():
    a_token = 2 * shape.layers * shape.kv_heads * shape.head * 2
    weights_bytes = one_pass(shape=shape, B=16, start=4095).memory[0].peak["parameters"]
    formula = int((80e9 - weights_bytes) / (a_token * 4096))
    print(f"{name}: {a_token:,} bytes for a token, by the formula {formula} requests")
    for B in range(formula - 1, formula + 2):
        try:
            peak = one_pass(shape=shape, B=B, start=4095).memory[0].peak_bytes
            print(f"  {B} requests: {peak / 1e9:.2f} GB at the peak")
            most = B
        except simlib.OutOfMemoryError:
            print(f"  {B} requests: out of memory")
            break
    simlib.guess(largest[name], most, within=0.03)
token_ms = {B: ms(one_pass(B=B)) for B in (1, 4, 16, 64)}
simlib.guess(slower, token_ms[64] / token_ms[1], within=0.1)
print(", ".join(f"B {B}: {t:.2f} ms, {1e3 * B / t:,.0f} tokens/s" for B, t in token_ms.items()))

# %% [markdown]
# With GQA the formula's number is one request too large. With this number of requests, weights and cache would leave
# 52 MB free. But `generate` also keeps the scores of all requests three times, and each copy takes 30 MB. With MHA a
# token needs four times as many bytes, so only 29 requests fit.
#
# With B = 64, a token takes 1.6 times as long as with B = 1. But the GPU writes 39 times as many tokens per second as
# with B = 1. **So a GPU with more memory for the cache writes more tokens per second.** This is why many large models
# use GQA.
#
# Does the formula agree with measurements? The appendix compares it with seven published ones. You may skip it.
#
# ## Your turn
#
# Tasks 1 and 2 of [exercises 21](../exercises/21_decode_on_split_ranks.ipynb) ask for the largest batch and for the
# fastest tp.
#
# ## Exit ticket
#
# 1. Why is decode slow, although its arithmetic takes almost no time?
# 2. Which collectives does a layer need in decode? Does the KV cache need a collective?
# 3. Why can 8 GPUs be slower than one?
#
# <details><summary>Answers</summary>
#
# 1. For each token, the GPU reads all weights and the whole cache of the batch from its memory.
# 2. Two all_reduces, after `out` and after `down`. The cache needs none: a rank keeps the keys and values of its own
#    heads.
# 3. The all_reduces of a token wait for the latency of all their rounds. This can take more time than the other
#    GPUs save by reading a part of the weights.
#
# </details>
#
# **Next:** many requests at once, in [the second part](21_serve_a_queue.ipynb).
#
# ## Appendix: against published numbers
#
# The authors of gpt-fast, a short program in PyTorch, published how many tokens per second it decodes (README of
# github.com/pytorch-labs/gpt-fast). They measured Llama 2 on 1 to 8 A100 with B = 1, a prompt of 5 tokens and weights
# in bfloat16. They also report that about 1,700 GB/s is the most that these GPUs reach, because their power was
# limited. We take this bandwidth, and assume a latency of 5 us. The cell uses the formula of `token_s`.

# %%
MODELS = {
    "7B": (Shape(32, 4096, 32, 32, 11_008, 32_000), {1: 104.9, 2: 168.84, 4: 254.02, 8: 328.43}),
    "70B": (Shape(80, 8192, 64, 8, 28_672, 32_000), {2: 21.32, 4: 38.01, 8: 62.50}),
}
for name, (shape, measured) in MODELS.items():
    kv = shape.kv_heads * shape.head
    matrices = 2 * shape.D**2 + 2 * shape.D * kv + 3 * shape.D * shape.hidden
    read = 2 * (shape.layers * matrices + shape.D * shape.vocabulary)
    for tp, tokens in measured.items():
        rounds = (2 * shape.layers + 1) * log2(tp)
        model_ms, seen_ms = 1e3 * read / tp / 1.7e12 + 5e-3 * rounds, 1e3 / tokens
        print(f"{name:3} on {tp}: measured {seen_ms:5.2f} ms, formula {model_ms:5.2f} ms,", end=" ")
        print(
            f"miss {100 * (model_ms / seen_ms - 1):+.0f} %, {1e3 * (seen_ms - model_ms) / shape.layers:.0f} us a layer"
        )

# %% [markdown]
# The formula's times are always too short, by 12 to 36 %. Look at the time that the formula misses for one layer of
# 7B. From 1 to 8 GPUs, this time only falls from 55 to 34 us, although the GPUs read the layer eight times as fast.
# So most of the missing time does not shrink with more GPUs. Each layer has some ten operations, and we think that
# each of them loses a few microseconds when it starts and ends. The formula also leaves out norms, the rotation of q
# and k, and the choice of the word. And we only assumed the latency: in the authors' command, torch may use an
# all_reduce in which GPUs read directly from each other.
