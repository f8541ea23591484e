# %% [markdown]
# # Exercises 21: serving
#
# This sheet has four tasks for lesson 21. Tasks 1 and 2 are about memory and about the time of a token. They need
# [the first part](../notebooks/21_decode_on_split_ranks.ipynb) of the lesson. In task 3 you decide where prompts are
# processed, and in task 4 ranks that run out of memory give up the same requests. The text of these two tasks says
# all that you need.
#
# A check calls your function on several ranks, and each rank has its own inputs. Each task has folded hints.

# %% role="setup"
from math import ceil, log2

import torch
import torch.distributed as dist

from simlib.checks import brought, check, collectives, measure, messages, only

# %% [markdown]
# ## 1. The largest batch (★★, 15 minutes, 2 points)
#
# tp GPUs share a language model, which `model` describes. Return the largest number of requests whose KV cache fits
# next to the weights. Each request has room for `length` tokens. Each GPU has `memory_bytes` bytes of memory, and
# keeps a tp-th of the weights. A GPU also keeps the keys and values of its own heads. If there are more GPUs than
# heads of keys and values, several GPUs keep the same head. A number in the cache has 2 bytes. Return 0 if no request
# fits. Send nothing.


# %% role="answer" question="largest_batch" points=2
def largest_batch(rank, world_size, model, tp, length, memory_bytes):
    """Return a whole number of requests.

    model has "weights_bytes" (of all GPUs), "layers", "heads", "kv_heads" and "head" (numbers per head).
    kv_heads is a multiple of tp, or tp is a multiple of kv_heads.
    """
    ### BEGIN SOLUTION
    kv_heads = max(1, model["kv_heads"] // tp)
    request = 2 * 2 * model["layers"] * kv_heads * model["head"] * length
    free = memory_bytes - model["weights_bytes"] / tp
    return max(0, int(free // request))
    ### END SOLUTION


# %% role="check" question="largest_batch" points=2
def model_of(weights_bytes, layers, heads, kv_heads, head):
    return {
        "weights_bytes": weights_bytes,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head": head,
    }


BATCHES = [
    (model_of(16e9, 32, 32, 8, 128), 1, 4096, 80e9),
    (model_of(17.6e9, 32, 32, 32, 128), 2, 8192, 24e9),
    (model_of(141e9, 80, 64, 8, 128), 16, 8192, 80e9),  # each head on two GPUs
    (model_of(2**37, 64, 64, 8, 128), 1, 2048, 2**36),  # the weights do not fit, by 128 requests
    (model_of(26e9, 40, 40, 40, 128), 4, 4096, 40e9),
]


def batches(
    *given, kv=lambda m, tp: max(1, m["kv_heads"] / tp), weights=lambda m, tp: m["weights_bytes"] / tp,
    itemsize=2, both=2, low=0, rounded=int,
):  # fmt: skip
    """The largest batch of each rank; of a mistake, as somebody else counts."""
    found = []
    for model, tp, length, memory_bytes in zip(*given, strict=True):
        request = both * itemsize * model["layers"] * kv(model, tp) * model["head"] * length
        found.append(max(low, rounded((memory_bytes - weights(model, tp)) / request)))
    return found


def counted(**otherwise):
    return lambda *given: batches(*given, **otherwise)


verdict = check(
    "largest_batch",
    largest_batch,
    lambda rank, world_size: BATCHES[rank],
    batches,
    collectives(lambda *given: 0, hint="Each rank can work this out for itself."),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "The cache has the heads of keys and values, not those of the queries.": counted(
            kv=lambda m, tp: m["heads"] / tp
        ),
        "Each GPU keeps only its own heads: tp divides the cache, too.": counted(
            kv=lambda m, tp: m["kv_heads"]
        ),
        "With more GPUs than kv heads, a GPU still keeps one whole head.": counted(
            kv=lambda m, tp: m["kv_heads"] / tp
        ),
        "Two cases are missing: more GPUs than kv heads, and weights that do not fit.": counted(
            kv=lambda m, tp: m["kv_heads"] / tp, low=-1e9
        ),
        "A GPU keeps a tp-th of the weights, not all of them.": counted(
            weights=lambda m, tp: m["weights_bytes"]
        ),
        "The weights take memory, too: subtract them first.": counted(weights=lambda m, tp: 0),
        "The cache keeps a key and a value for each token, each number in 2 bytes.": counted(
            both=1
        ),
        "A number in the cache has 2 bytes, not 4.": counted(itemsize=4),
        "Where the weights do not fit, the answer is 0, not a negative number.": counted(low=-1e9),
        "A part of a request does not fit: round down.": counted(rounded=round),
        "A request has room for length tokens, not for one.": lambda models, tps, lengths, memories: (
            batches(models, tps, [1] * len(lengths), memories)
        ),
    },
    worlds=(5,),
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# How many bytes of memory has a GPU left after it has stored its weights? How many bytes does one request need there?
#
# </details>
# <details><summary>Hint 2</summary>
#
# A request needs a key and a value for each token, each layer and each head of this GPU. A GPU has `kv_heads / tp`
# heads of keys and values, but at least one.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The bytes of a request are `2 * 2 * layers * heads_of_a_gpu * head * length`.
#
# </details>

# %% role="hidden" question="largest_batch"
seed = 1


def drawn_batch(rank, world_size):
    k = seed + 7 * rank
    kv_heads = 2 ** (k % 5)
    tp = 2 ** (k // 5 % 5)
    model = model_of(
        1e9 * (1 + k % 150), 8 * (1 + k % 11), 16 * kv_heads, kv_heads, 64 * (1 + k % 3)
    )
    return model, tp, 512 * (1 + k % 17), 1e9 * (16 + 8 * (k % 13))


print(measure(largest_batch, drawn_batch))

# %% [markdown]
# ## 2. The fastest tp (★★, 20 minutes, 2 points)
#
# Which number of GPUs decodes a token in the least time? tp may be 1, 2, 4 and so on, up to `job["ranks"]`. The
# weights and the cache of the batch must fit: each GPU keeps a tp-th of both. A token takes the time to read what the
# GPU keeps, and the time of 2 all_reduces per layer. An all_reduce is a recursive doubling. It has log2(tp) rounds,
# and each round takes the latency and the time of `job["round_bytes"]`. Return the fastest tp that fits, or None if
# none fits. Send nothing.


# %% role="answer" question="fastest_tp" points=2
def fastest_tp(rank, world_size, job):
    """Return tp, or None.

    job has "ranks", "layers", "weights_bytes" and "cache_bytes" (of all GPUs together), "memory_bytes" and
    "memory_Bps" (of one GPU), "round_bytes", "latency_s" and "bandwidth_Bps".
    """
    ### BEGIN SOLUTION
    kept, times = job["weights_bytes"] + job["cache_bytes"], {}
    round_s = job["latency_s"] + job["round_bytes"] / job["bandwidth_Bps"]
    for rounds in range(int(log2(job["ranks"])) + 1):
        tp = 2**rounds
        if kept / tp <= job["memory_bytes"]:
            times[tp] = kept / tp / job["memory_Bps"] + 2 * job["layers"] * rounds * round_s
    return min(times, key=times.get) if times else None
    ### END SOLUTION


# %% role="check" question="fastest_tp" points=2
def token_job(ranks, layers, weights, cache, memory, latency_s, bandwidth_Bps, round_bytes=8192):
    return {
        "ranks": ranks,
        "layers": layers,
        "weights_bytes": weights,
        "cache_bytes": cache,
        "memory_bytes": memory,
        "memory_Bps": 3e12,
        "round_bytes": round_bytes,
        "latency_s": latency_s,
        "bandwidth_Bps": bandwidth_Bps,
    }


TOKEN_JOBS = [  # told apart by them: each mistake below gives a list of its own
    token_job(4, 32, 300e9, 30e9, 80e9, 5e-6, 450e9),  # fits on none
    token_job(64, 32, 16e9, 8e9, 80e9, 5e-6, 450e9),
    token_job(16, 80, 140e9, 4e9, 80e9, 120e-6, 1.25e9, 16_384),  # one would be faster than it fits
    token_job(32, 32, 8e9, 44e9, 80e9, 20e-6, 12e9, 500_000),
    token_job(2, 32, 16e9, 1e9, 80e9, 30e-6, 1.25e9),  # all GPUs are the fastest
    token_job(8, 32, 6e9, 1e9, 80e9, 60e-6, 1.25e9),  # one GPU is the fastest
]


def fastest(
    job, fits=True, cache=True, weights=True, per_layer=2, count=log2, divided=True, latency=True,
    sending=True, best=min, most=lambda ranks: ranks, after=lambda tp: 2 * tp,
):  # fmt: skip
    """The fastest tp; of a mistake, as somebody else counts."""
    times, tp = {}, 1
    while tp <= most(job["ranks"]):
        kept = weights * job["weights_bytes"] + cache * job["cache_bytes"]
        round_s = latency * job["latency_s"]
        round_s += sending * job["round_bytes"] / job["bandwidth_Bps"]
        need = (job["weights_bytes"] + cache * job["cache_bytes"]) / tp
        if need <= job["memory_bytes"] or not fits:
            read_s = kept / (tp if divided else 1) / job["memory_Bps"]
            times[tp] = read_s + per_layer * job["layers"] * count(tp) * round_s
        tp = after(tp)
    return best(times, key=times.get) if times else None


def if_counted(**otherwise):
    return lambda jobs: [fastest(job, **otherwise) for job in jobs]


verdict = check(
    "fastest_tp",
    fastest_tp,
    lambda rank, world_size: (TOKEN_JOBS[rank],),
    if_counted(),
    collectives(lambda *given: 0, hint="Each rank can work this out for itself."),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "That is the fastest of all tp, but weights and cache do not fit there.": if_counted(
            fits=False
        ),
        "Is the cache counted in? A GPU keeps and reads a part of it for each token.": if_counted(
            cache=False
        ),
        "Each layer has 2 all_reduces: after attention and after the MLP.": if_counted(per_layer=1),
        "You count the rounds of a ring. Recursive doubling has log2(tp) rounds.": if_counted(
            count=lambda tp: 2 * (tp - 1)
        ),
        "An all_reduce has log2(tp) rounds: you count only one.": if_counted(
            count=lambda tp: tp > 1
        ),
        "A GPU reads only its part: divide weights and cache by tp.": if_counted(divided=False),
        "Each round pays the latency, too.": if_counted(latency=False),
        "Each round also takes the time to send round_bytes.": if_counted(sending=False),
        "tp may also be ranks itself: you stop before it.": if_counted(
            most=lambda ranks: ranks - 1
        ),
        "tp may only be 1, 2, 4 and so on: you also try other numbers.": if_counted(
            after=lambda tp: tp + 1
        ),
        "That is the slowest tp.": if_counted(best=max),
        "You take the largest tp: all_reduces cost time, too.": if_counted(per_layer=0),
    },
    worlds=(6,),
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Try all tp: 1, 2, 4 and so on. Skip those where a GPU's part of weights and cache is larger than its memory.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Put the times into a dict. `min(times, key=times.get)` is the tp with the least time. If the dict is empty, no tp
# fits.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The network's part is `2 * layers * log2(tp) * (latency_s + round_bytes / bandwidth_Bps)`.
#
# </details>

# %% role="hidden" question="fastest_tp"
seed = 1


def drawn_token_job(rank, world_size):
    k = seed + 11 * rank
    return (
        token_job(
            ranks=2 ** (k % 7),
            layers=8 * (1 + k % 12),
            weights=1e9 * (1 + k % 150),
            cache=1e9 * (1 + k % 37),
            memory=1e9 * (40 + 8 * (k % 13)),
            latency_s=1e-6 * (2 + k % 41),
            bandwidth_Bps=1e9 * (1 + k % 53),
            round_bytes=4096 * (1 + k % 29),
        ),
    )


print(measure(fastest_tp, drawn_token_job))

# %% [markdown]
# ## 3. Together, in chunks, or apart? (★★, 20 minutes, 2 points)
#
# A server decodes requests step by step. A new prompt can be prefilled in three ways:
#
# - `"together"`: the server prefills the whole prompt before it decodes again.
# - `"chunked"`: before each decode step, the server prefills at most `chunk` tokens of the prompt.
# - `"apart"`: another GPU prefills the prompt, writes its first token, and sends the cache to the server.
#
# For each way, find the longest gap that any request has between two tokens. Return the way with the shortest gap.
# The new request's first token may take at most `ttft_s`. If several ways are equal, return the first in this list.
# If no way is allowed, return None. Send nothing.


# %% role="answer" question="placement" points=2
def placement(rank, world_size, job):
    """Return "together", "chunked", "apart" or None.

    job has "prompt", "chunk", "prefill_per_s" (tokens per second), "decode_s" (of one step), "kv_bytes" (of one
    token), "latency_s", "bandwidth_Bps" and "ttft_s".

    Together and in chunks, the other requests wait for the prefill or for the longest chunk, and for one decode step.
    A decode step follows each chunk. The new request's first token comes with the step after the last chunk. Together
    and apart, it comes at the end of prefill. Apart, the new request's second token comes after the cache has been
    sent, in one message, and after one decode step.
    """
    ### BEGIN SOLUTION
    prefill_s, decode_s = job["prompt"] / job["prefill_per_s"], job["decode_s"]
    chunk = min(job["chunk"], job["prompt"])
    chunks = ceil(job["prompt"] / job["chunk"])
    send_s = job["latency_s"] + job["prompt"] * job["kv_bytes"] / job["bandwidth_Bps"]
    ways = {  # time to first token, longest gap
        "together": (prefill_s, prefill_s + decode_s),
        "chunked": (prefill_s + chunks * decode_s, chunk / job["prefill_per_s"] + decode_s),
        "apart": (prefill_s, send_s + decode_s),
    }
    gaps = {way: gap_s for way, (first_s, gap_s) in ways.items() if first_s <= job["ttft_s"]}
    return min(gaps, key=gaps.get) if gaps else None
    ### END SOLUTION


# %% role="check" question="placement" points=2
def prompt_job(prompt, chunk, decode_s, bandwidth_Bps, ttft_s, kv_bytes=131_072, latency_s=1e-3):
    return {
        "prompt": prompt,
        "chunk": chunk,
        "prefill_per_s": 50_000,
        "decode_s": decode_s,
        "kv_bytes": kv_bytes,
        "latency_s": latency_s,
        "bandwidth_Bps": bandwidth_Bps,
        "ttft_s": ttft_s,
    }


PROMPT_JOBS = [  # told apart by them
    prompt_job(7900, 500, 0.02, 1.25e9, 0.47),  # slow network, time for 15 of 16 chunks
    prompt_job(8000, 500, 0.02, 1.25e9, 0.6),  # time for chunks
    prompt_job(8000, 4000, 0.02, 50e9, 0.3),
    prompt_job(9000, 4500, 0.03, 50e9, 0.15),  # even prefill takes longer
    prompt_job(300, 500, 0.02, 1.25e9, 1.0),  # one chunk is the prompt: equal gaps
    prompt_job(1000, 500, 0.02, 14e9, 1.0, latency_s=4e-3),  # latency makes it slower than chunks
    prompt_job(4000, 500, 0.02, 14e9, 0.1),  # no time to send before the first token
]


def way_of(
    job, limit=True, ways=("together", "chunked", "apart"), sent=1, latency=1, whole=True, count=ceil,
    best=min, last_first=False, ttft_sends=False,
):  # fmt: skip
    """The way of a job; of a mistake, as somebody else counts."""
    prefill_s, decode_s = job["prompt"] / job["prefill_per_s"], job["decode_s"]
    chunk = min(job["chunk"], job["prompt"])
    send_s = (
        latency * job["latency_s"] + sent * job["prompt"] * job["kv_bytes"] / job["bandwidth_Bps"]
    )
    chunks = count(job["prompt"] / job["chunk"])
    found = {
        "together": (prefill_s, (prefill_s if whole else 0) + decode_s),
        "chunked": (prefill_s + chunks * decode_s, chunk / job["prefill_per_s"] + decode_s),
        "apart": (prefill_s + ttft_sends * send_s, send_s + decode_s),
    }
    names = ways[::-1] if last_first else ways
    gaps = {way: found[way][1] for way in names if found[way][0] <= job["ttft_s"] or not limit}
    return best(gaps, key=gaps.get) if gaps else None


def ways_if(**otherwise):
    return lambda jobs: [way_of(job, **otherwise) for job in jobs]


verdict = check(
    "placement",
    placement,
    lambda rank, world_size: (PROMPT_JOBS[rank],),
    ways_if(),
    collectives(lambda *given: 0, hint="Each rank can work this out for itself."),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "A way is only allowed if its first token comes within ttft_s.": ways_if(limit=False),
        "The cache has to be sent: its bytes over the bandwidth take time.": ways_if(sent=0),
        "The message that carries the cache pays its latency, too.": ways_if(latency=0),
        "Together, the other requests wait for the whole prefill.": ways_if(whole=False),
        "With chunks a decode step follows each chunk, and the first token waits for all of them.": (
            ways_if(count=lambda chunks: 0)
        ),
        "The last chunk may be short, but a decode step follows it, too: round up.": ways_if(
            count=int
        ),
        "Of equal ways, return the first one of the list.": ways_if(last_first=True),
        "Chunked prefill is a way, too.": ways_if(ways=("together", "apart")),
        "Apart is a way, too.": ways_if(ways=("together", "chunked")),
        "Apart, the other GPU writes the first token itself, before it sends the cache.": (
            ways_if(ttft_sends=True)
        ),
        "That is the way with the longest gap.": ways_if(best=max),
    },
    worlds=(7,),
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# For each of the three ways write down two times: the time to the first token of the new prompt, and the longest gap
# that a request has between two of its tokens.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Together, the others wait for prompt / prefill_per_s and one decode step. Apart, the new request first waits for the
# cache, and then for one decode step.
#
# </details>
# <details><summary>Hint 3</summary>
#
# There are `ceil(prompt / chunk)` chunks. The largest chunk has `min(chunk, prompt)` tokens.
#
# </details>

# %% role="hidden" question="placement"
seed = 1


def drawn_prompt_job(rank, world_size):
    k = seed + 13 * rank
    return (
        prompt_job(
            prompt=100 + k % 9973,
            chunk=128 * (1 + k % 16),
            decode_s=1e-3 * (3 + k % 29),
            bandwidth_Bps=1e9 * (1 + k % 31),
            ttft_s=0.05 * (1 + k % 11),
            kv_bytes=32_768 * (1 + k % 5),
            latency_s=1e-4 * (1 + k % 19),
        ),
    )


print(measure(placement, drawn_prompt_job))

# %% [markdown]
# ## 4. Out of memory (★★★, 25 minutes, 3 points)
#
# The ranks decode the same requests, each for its own heads. `running` lists the requests, the oldest first. A
# request is a pair: the tokens of its prompt, and the tokens that it has written. All these tokens are in the cache.
# The next step adds one token to each request that stays. Each rank has its own room, `most` tokens. If the requests
# do not fit on some rank, **all** ranks give up the same requests: the newest first, and as few as possible. The
# oldest request always stays.
#
# Return `(kept, again)` as below. Use one all_reduce of 8 bytes: 1 point is for the traffic.


# %% role="answer" question="evict" points={"value": 2, "traffic": 1}
def evict(rank, world_size, running, most):
    """Return (kept, again), two ints that are the same on every rank.

    kept is the number of requests that stay. again is the number of tokens that the ranks must prefill again later:
    the prompts and the written tokens of the others.
    running is the same list of (prompt, written) on every rank, and has at least one request.
    """
    ### BEGIN SOLUTION
    room = torch.tensor(most)
    dist.all_reduce(room, op=dist.ReduceOp.MIN)
    kept = len(running)
    while kept > 1 and sum(map(sum, running[:kept])) + kept > room.item():
        kept -= 1
    return kept, sum(map(sum, running[kept:]))
    ### END SOLUTION


# %% role="check" question="evict" points={"value": 2, "traffic": 1}
RUNNING = [(70, 9), (12, 30), (55, 5), (20, 21), (31, 2)]  # 79, 42, 60, 41, 33


def requests_and_room(rank, world_size):
    """Ranks have different room; that of rank 1 is least where it is there."""
    return RUNNING, [225, 122, 240, 200, 300][rank]


def plenty(rank, world_size):
    """In the first world nothing has to go; with more ranks the oldest alone stays."""
    return RUNNING, 260 if world_size == 1 else 60 + 40 * rank


def kept_of(running, room, growth=1, oldest=False, least=1, again=sum):
    order = running[::-1] if oldest else running
    kept = len(order)
    while kept > least and sum(map(sum, order[:kept])) + growth * kept > room:
        kept -= 1
    return kept, sum(map(again, order[kept:]))


def all_with(room_of=min, **otherwise):
    def found(lists, rooms):
        return [kept_of(lists[0], room_of(rooms), **otherwise)] * len(rooms)

    return found


def own_room(lists, rooms):
    return [kept_of(running, room) for running, room in zip(lists, rooms, strict=True)]


verdict = check(
    "evict",
    evict,
    [requests_and_room, plenty],
    all_with(),
    only("all_reduce"),
    brought(
        lambda lists, rooms: [8] if len(rooms) > 1 else None,
        hint="One number says all that the others need to know of a rank.",
    ),
    mistakes={
        "Each rank decides for itself: then they give up different requests.": own_room,
        "The requests must fit on every rank, not only where there is most room.": all_with(max),
        "The requests must fit on every rank: take the least room, not the mean.": all_with(
            lambda rooms: sum(rooms) / len(rooms)
        ),
        "The room of all ranks together is no room for a request: each rank keeps its own heads.": all_with(
            sum
        ),
        "The next step adds one token to each request that stays.": all_with(growth=0),
        "You give up the oldest requests: take the newest.": all_with(oldest=True),
        "The oldest request always stays.": all_with(least=0),
        "What a request has written must be prefilled again, too.": all_with(again=lambda r: r[0]),
        "The prompt must be prefilled again, too.": all_with(again=lambda r: r[1]),
    },
    points={"value": 2, "traffic": 1},
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# All ranks have the same list. What else do they need, so that all of them decide the same?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make an all_reduce of `torch.tensor(most)` with `op=dist.ReduceOp.MIN`. Then no rank needs anything else.
#
# </details>
# <details><summary>Hint 3</summary>
#
# First keep all requests. Then count their tokens, and one new token for each of them. As long as these do not fit
# and more than one request stays, keep one request less.
#
# </details>

# %% role="hidden" question="evict"
seed = 1


def drawn_requests(rank, world_size):
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 90, (2 + seed % 7, 2), generator=draw).tolist()
    most = 40 + (seed * (rank + 3)) % 397
    return [tuple(pair) for pair in sizes], most


print(measure(evict, drawn_requests))
