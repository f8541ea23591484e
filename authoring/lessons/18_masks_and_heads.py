# %% [markdown]
# # 18 Masks and heads
#
# This is the second part of lesson 18. You need [ring attention](18_long_sequences_and_experts.ipynb), the first
# part. In a language model a position must not use later positions. A mask hides them, and most ranks of the ring
# then wait for a while. In this part (50 minutes) you will
#
# - see that a causal mask saves nearly half of the work and hardly any time,
# - cut the sequence so that all ranks have the same work, and predict the gain before you measure it,
# - write another way to cut attention, Ulysses, which exchanges heads by all_to_all,
# - compare the bytes and the time of both ways.
#
# Letters: **S** positions in the sequence (tokens), **H** heads, **d** numbers per head, **R** ranks. **c** is how
# long a rank computes in one step of the ring without a mask, and **t** is how long a message takes. The modelled
# device does 10 Gflop/s, and its clock counts only products of matrices.

# %%
import math

import torch
import torch.distributed as dist

import simlib
from simlib import labs

H, DIM, FLOPS, S = 8, 16, 10e9, 480  # heads, numbers per head (d), operations per second
TEN_GBIT = simlib.clusters.ethernet_10g(1).inter
ONE_GBIT = simlib.clusters.ethernet_1g(1).inter


def cluster_with(link=TEN_GBIT):
    return simlib.Cluster(8, 1, link, device=simlib.Device(flops_per_s=FLOPS))


def sequence(S):
    """Queries, keys and values of S positions, the same wherever they are made."""
    generator = torch.Generator().manual_seed(18)
    return [torch.randn(H, S, DIM, generator=generator) for _ in range(3)]


def scores(q, k, diagonal=False):
    s = q @ k.mT / DIM**0.5
    return s + torch.full(s.shape[-2:], -math.inf).triu(1) if diagonal else s


def attention(q, k, v, causal=False):
    return scores(q, k, causal).softmax(-1) @ v


# %% [markdown]
# ## A causal mask, in chunks
#
# With a **causal mask** a query sees only the keys up to its own position. If queries and keys have the same
# positions, the mask hides the scores above the diagonal. In `scores` that is `diagonal=True`.
#
# The sequence is cut into 2R **chunks**, and each rank has two. The simplest cut is `in_a_row`: rank r has chunks
# 2r and 2r + 1. A **pair** is a chunk of queries and a chunk of keys. The picture shows the pairs that the mask
# leaves. The colour shows which rank computes a pair.


# %%
def in_a_row(rank, R):
    return 2 * rank, 2 * rank + 1


labs.draw_chunks(4, {"in a row": in_a_row})

# %% [markdown]
# The mask leaves 36 of the 64 pairs. The other 28 are above the diagonal. `pairs` lists the pairs that a rank
# computes with the keys that it has in one step. `ring_forward` is the loop of the first part, pair by pair. It
# must skip a pair that is hidden completely: the largest score would be $-\infty$, and the result would be nan.


# %%
def partial(q, k, v, diagonal=False):
    s = scores(q, k, diagonal)
    m = s.amax(-1, keepdim=True)
    e = (s - m).exp()
    return m, e.sum(-1, keepdim=True), e @ v


def merge(one, other):
    m = torch.maximum(one[0], other[0])
    a, b = (one[0] - m).exp(), (other[0] - m).exp()
    return m, a * one[1] + b * other[1], a * one[2] + b * other[2]


def pairs(rank, src, R, size, chunks, causal):
    """Which rows of rank's queries meet which of src's keys, and whether they are the same chunk."""
    for a, i in enumerate(chunks(rank, R)):
        for b, j in enumerate(chunks(src, R)):
            if not causal or j <= i:  # nothing is computed that no query needs
                rows, columns = (slice(n * size, (n + 1) * size) for n in (a, b))
                yield rows, columns, causal and i == j


# %%
def pass_on(tensor, rank, R):
    """Send to the right, receive from the left: what will have come, and requests to wait for."""
    coming = torch.empty_like(tensor)
    to_right = dist.P2POp(dist.isend, tensor, (rank + 1) % R)
    from_left = dist.P2POp(dist.irecv, coming, (rank - 1) % R)
    return coming, dist.batch_isend_irecv([to_right, from_left])


def ring_forward(rank, R, q, k, v, chunks, causal):
    """Attention of this rank's queries over all keys; and m + log z, which backward will need."""
    kv, size = torch.stack([k, v]), q.shape[1] // 2
    z = torch.zeros_like(q[..., :1])
    so_far = z - math.inf, z, torch.zeros_like(q)  # m, z, u of no keys at all
    for step in range(R):
        coming, requests = pass_on(kv, rank, R) if step < R - 1 else (kv, [])
        src = (rank - step) % R
        for rows, columns, diagonal in pairs(rank, src, R, size, chunks, causal):
            with simlib.span("K", of=src):
                new = partial(q[:, rows], *kv[:, :, columns], diagonal)
                merged = merge([x[:, rows] for x in so_far], new)
            for x, part in zip(so_far, merged, strict=True):
                x[:, rows] = part
        for request in requests:
            request.wait()
        kv = coming
    m, z, u = so_far
    return u / z, m + z.log()


# %% [markdown]
# ## Idle ranks
#
# Nearly half of the work is gone. How many times as fast does the mask make attention on 4 ranks?

# %%
faster = None  # how many times as fast as without a mask?


def cut(x, rank, R, chunks):
    """The part of x (..., S, d) that a rank holds."""
    return torch.cat([x.chunk(2 * R, dim=-2)[i] for i in chunks(rank, R)], dim=-2)


def forward(rank, R, S, chunks=in_a_row, causal=False):
    parts = [cut(x, rank, R, chunks) for x in sequence(S)]
    return ring_forward(rank, R, *parts, chunks, causal)[0]


ring = simlib.simulate(forward, 4, (S,), cluster=cluster_with())
causal = simlib.simulate(forward, 4, (S, in_a_row, True), cluster=cluster_with())
print(f"no mask {ring.time_s * 1e3:.3f} ms, causal {causal.time_s * 1e3:.3f} ms")
computing = causal.states.computing_s
print("computing, by rank:", ", ".join(f"{s * 1e3:.2f} ms" for s in computing))
print(f"idle: {causal.bubble().share:.0%}")
simlib.guess(faster, ring.time_s / causal.time_s, within=0.1)
causal.timeline()

# %% [markdown]
# The mask saves hardly any time. Rank 0 computes only in its first step. Then it only passes on keys that its
# queries may not see. The last rank needs all keys, and it sets the time. We count in pairs. Without a mask a rank
# computes 4 pairs in each of R steps. With the mask the last rank computes 3 pairs with its own keys, and 4 in
# each other step: $4(R-1) + 3 = 4R - 1$. A pair on the diagonal is half masked. It counts as a whole pair, because
# the product of matrices is computed whole.
#
# **Now you write it:** give each rank two of the 2R chunks in another way, so that all ranks have the same work.
# The check counts the pairs of each rank and step, for 1 to 8 ranks.


# %%
def my_chunks(rank, R):
    return None  # two different numbers, of 0 to 2 R - 1


def pairs_of(chunks, R):
    """How many pairs each rank computes, by step."""
    return [
        [len(list(pairs(rank, (rank - t) % R, R, 1, chunks, True))) for t in range(R)]
        for rank in range(R)
    ]


print("in a row, by rank and step:", pairs_of(in_a_row, 4))
if my_chunks(0, 4) is None:
    print("yours: not yet")
else:
    print("yours, by rank and step:   ", pairs_of(my_chunks, 4))
    is_even = all(len({*map(sum, pairs_of(my_chunks, R))}) == 1 for R in range(1, 9))
    dealt = all(
        sorted(i for r in range(R) for i in my_chunks(r, R)) == [*range(2 * R)] for R in range(1, 9)
    )
    print("yours:", "right" if is_even and dealt else "not all ranks have as much to do")

# %% [markdown]
# <details><summary>Answer</summary>
#
# The first chunk has the least work, and the last chunk has the most. Give both to rank 0. Give the second chunk
# and the last but one to rank 1, and so on.
#
#     def my_chunks(rank, R):
#         return rank, 2 * R - 1 - rank
#
# </details>
#
# ## The zig-zag cut
#
# This is the **zig-zag cut**. Llama 3 uses it, and torch calls it head-tail. Here are both cuts:


# %%
def zigzag(rank, R):
    return rank, 2 * R - 1 - rank


labs.draw_chunks(4, {"in a row": in_a_row, "zig-zag": zigzag})

# %% [markdown]
# Rank r has an early chunk, r, and a late chunk, $2R - 1 - r$. It computes 2 pairs with the keys of each other
# rank:
#
# - If the keys are from a lower rank, both of your chunks need its early chunk. Its late chunk comes after both of
#   yours, so you do not need it.
# - If the keys are from a higher rank, your late chunk needs both of its chunks, and your early chunk needs none.
#
# With its own keys a rank computes 3 pairs. So every rank computes $2(R - 1) + 3 = 2R + 1$ pairs, and all are
# equally busy in each step. The time falls from $4R - 1$ pairs to $2R + 1$:
#
# $$\text{speed-up} = \frac{4R - 1}{2R + 1} \qquad (R = 4: 1.67;\ \text{many ranks: } 2)$$
#
# The last case below has 8 ranks and half as many positions, S = 240. The formula says 1.82. What speed-up will
# you measure?

# %%
speed_up = None  # S = 240 on 8 ranks
for R, S_here in ((2, 480), (4, 480), (8, 480), (8, 240)):
    times = [
        simlib.simulate(forward, R, (S_here, chunks, True), cluster=cluster_with()).time_s
        for chunks in (in_a_row, zigzag)
    ]
    pair_s = 4 * H * (S_here / 2 / R) ** 2 * DIM / FLOPS
    print(f"R = {R}, S = {S_here}: in a row {times[0] / pair_s:6.3f} pairs, zig-zag", end="")
    print(f" {times[1] / pair_s:6.3f}; speed-up {times[0] / times[1]:.3f}", end="")
    print(f", predicted {(4 * R - 1) / (2 * R + 1):.3f}")
simlib.guess(speed_up, times[0] / times[1], within=0.05)
whole = attention(*sequence(S), causal=True)
for R in (2, 3, 4):
    run = simlib.run(forward, R, (S, zigzag, True))
    errors = [(x - cut(whole, r, R, zigzag)).abs().max() for r, x in enumerate(run.results)]
    print(f"{R} real ranks: equal to one process to 1e-6: {(max(errors) < 1e-6).item()}")
run = simlib.simulate(forward, 4, (S, zigzag, True), cluster=cluster_with())
print(f"idle: {run.bubble().share:.0%}")
run.timeline()

# %% [markdown]
# As long as computing takes longer than the messages, the formula is exact, and every rank is busy to the end.
# With S = 240 on 8 ranks the two pairs of a step take less time than a message. Then all ranks wait for the
# network, and balance does not help. The backward pass skips the same pairs: see the appendix.
#
# ## The other way: cut the heads
#
# No head needs another head. **DeepSpeed-Ulysses** (arXiv 2309.14509) uses that. An all_to_all turns "all heads of
# my part of the sequence" into "the whole sequence of my heads". Then each rank computes plain attention. A second
# all_to_all brings the results back. DeepSpeed calls this "Ulysses sequence parallelism". The sequence parallelism
# of lesson 12 is something else: it cuts the activations between the matrices of tp. **Context parallelism** (cp)
# is the general name for cutting attention along the sequence.
#
# **Now you write it.** Each rank has S/R positions in a row. Its q, k and v have the shape (H, S/R, d). `swap` is
# the all_to_all of `x[0]`, `x[1]`, ...: it sends part s to rank s.
#
# 1. Stack q, k and v. Cut the heads into R groups of H/R, and make the groups the first dimension: (R, 3, H/R,
#    S/R, d). Swap.
# 2. Now the first dimension says which part of the sequence it is. Move this dimension before S/R, and join the
#    two: (3, H/R, S, d). Compute attention.
# 3. Go back: cut the result (H/R, S, d) into R parts of the sequence, make the parts the first dimension, and
#    swap. Now the first dimension says which group of heads it is. Join it with H/R: (H, S/R, d).
#
# Useful: `unflatten(1, (R, -1))`, `transpose`, `permute` and `flatten`.


# %%
def swap(x):
    """all_to_all of the parts x[0], x[1], ...: part s goes to rank s."""
    x = x.contiguous()
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x)
    return received


def my_ulysses(rank, R, q, k, v):
    return None  # (H, S/R, d): attention of this rank's positions, all heads


for R in (1, 2, 4, 8):
    run = simlib.simulate(
        lambda r, n: my_ulysses(r, n, *(x.chunk(n, 1)[r] for x in sequence(S))), R
    )
    if run.results[0] is None:
        print(f"R = {R}: not yet")
        continue
    got, wanted = torch.cat(run.results, dim=1), attention(*sequence(S))
    is_right = got.shape == wanted.shape and torch.allclose(got, wanted, atol=1e-6)
    two = len(run.trace.collectives) == 2
    print(f"R = {R}:", "right" if is_right and two else "another result, or not two all_to_alls")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def my_ulysses(rank, R, q, k, v):
#         mine = torch.stack([q, k, v])
#         groups = mine.unflatten(1, (R, H // R)).transpose(0, 1)
#         parts = swap(groups)
#         q, k, v = parts.permute(1, 2, 0, 3, 4).flatten(2, 3)
#         out = attention(q, k, v)
#         parts = out.unflatten(1, (R, -1)).transpose(0, 1)
#         groups = swap(parts)
#         return groups.flatten(0, 1)
#
# </details>
#
# ## Ring or Ulysses?
#
# Let n be the bytes of one tensor of a rank: $4 H (S/R)\, d$. In the ring a rank sends keys and values R - 1
# times. In Ulysses a rank sends q, k, v and the result once. It keeps 1/R of each, because that part is for
# itself:
#
# $$\text{ring: } 2\,(R - 1)\, n \qquad \text{Ulysses: } (3 + 1)\, \frac{R - 1}{R}\, n \qquad
# \text{ratio: } \frac R2$$
#
# The ring sends R/2 times as much. But Ulysses cannot compute before its first all_to_all is over. So the time of
# its messages is *added* to R c. The ring hides a whole message if t is at most c, and otherwise the share c/t. We
# compare both on two networks, without a mask. The all_to_all sends its parts one after the other (`pairwise`,
# lesson 04). In how many of the four cases does Ulysses win?

# %%
wins = None  # of the four cases


def ulysses(rank, R, S):
    mine = torch.stack([x.chunk(R, dim=1)[rank] for x in sequence(S)])
    theirs = swap(mine.unflatten(1, (R, H // R)).transpose(0, 1))
    q, k, v = theirs.permute(1, 2, 0, 3, 4).flatten(2, 3)
    return swap(attention(q, k, v).unflatten(1, (R, S // R)).transpose(0, 1)).flatten(0, 1)


won, options = [], {"all_to_all": "pairwise", "expand": True}
for R in (4, 8):
    n, c = 4 * H * S // R * DIM, 4 * H * (S / R) ** 2 * DIM / FLOPS
    for name, link in (("10 Gbit", TEN_GBIT), ("1 Gbit", ONE_GBIT)):
        ring = simlib.simulate(forward, R, (S,), cluster=cluster_with(link))
        other = simlib.simulate(ulysses, R, (S,), cluster=cluster_with(link), **options)
        won.append(other.time_s < ring.time_s)
        sent = sum(message.nbytes for message in other.wire)
        t = link.latency_s + 2 * n / link.bandwidth_Bps
        by_hand = R * c + (R - 1) * (2 * link.latency_s + 4 * n / R / link.bandwidth_Bps)
        print(f"R = {R}, {name:7}: ring {ring.time_s * 1e3:.3f},", end="")
        print(f" Ulysses {other.time_s * 1e3:.3f} ms; {min(1, c / t):.0%} hides;", end="")
        print(f" bytes {sum(ring.bytes_sent) / sent:.0f} : 1; residuals", end="")
        print(f" {ring.time_s - R * c - (R - 1) * max(0, t - c):.0e}, {other.time_s - by_hand:.0e}")
simlib.guess(wins, sum(won))

# %% [markdown]
# The ring wins in three cases. With 10 Gbit/s computing hides all of its messages. On 4 ranks with 1 Gbit/s
# computing hides 71 % of each message, and that is enough. On 8 ranks with 1 Gbit/s it hides only 34 %: from
# 4 to 8 ranks c falls to a quarter, and t only to about half. There Ulysses wins.
#
# Ulysses cannot use more ranks than heads, but it needs no zig-zag, because all heads have the same mask. And many
# models have fewer heads of keys and values than of queries (**grouped-query attention**). Then k and v are
# smaller, so the ring sends less than here.
#
# In torch, `torch.distributed.tensor.experimental.context_parallel` replaces attention in the whole process. It
# has rules for three GPU kernels. On CPUs torch 2.13 spends tens of seconds at the first call to find another way.
# Then every rank gathers all keys and values, so there is no ring. With `is_causal=True` torch finds no way, and
# raises an error. Simulated ranks share a process, so `simulate` refuses the function.
#
# ## Exit ticket
#
# 1. With a causal mask and chunks in a row on 16 ranks, which rank sets the time, and why?
# 2. How much faster does zig-zag make these 16 ranks?
# 3. When does zig-zag gain nothing?
# 4. A model has 8 heads, and you have 16 ranks. Do you take the ring or Ulysses?
#
# <details><summary>Answers</summary>
#
# 1. The last rank sets the time, because its queries need all keys.
# 2. They are 63/33 = 1.91 times as fast, if computing takes longer than the messages.
# 3. It gains nothing when a message takes longer than the computing of a step. Then all ranks wait for the
#    network.
# 4. Take the ring, because Ulysses has no work for 8 of the ranks. Or use both, with Ulysses in groups of 8 and a
#    ring between the groups.
#
# </details>
#
# **Next:** [tokens to experts](18_tokens_to_experts.ipynb), the other cut of the largest models.
#
# ## Appendix: the backward pass with a mask
#
# The loop is that of the first part, pair by pair. In both cuts it computes the same pairs as the forward pass.


# %%
def ring_backward(rank, R, q, k, v, out, log_sum, g, chunks, causal):
    """The gradients of q, k and v, of which the last two come in one tensor."""
    kv, dq, size = torch.stack([k, v]), torch.zeros_like(q), q.shape[1] // 2
    g_out, arriving, behind = (g * out).sum(-1, keepdim=True), 0, []
    for step in range(R):
        coming, requests = pass_on(kv, rank, R) if step < R - 1 else (kv, [])
        dkv = torch.zeros_like(kv)
        for rows, columns, diagonal in pairs(rank, (rank - step) % R, R, size, chunks, causal):
            k, v = kv[:, :, columns]
            p = (scores(q[:, rows], k, diagonal) - log_sum[:, rows]).exp()
            ds = p * (g[:, rows] @ v.mT - g_out[:, rows]) / DIM**0.5
            dq[:, rows] += ds @ k
            dkv[:, :, columns] += torch.stack([ds.mT @ q[:, rows], p.mT @ g[:, rows]])
        for request in behind:
            request.wait()
        arriving, behind = pass_on(dkv + arriving, rank, R)
        for request in requests:
            request.wait()
        kv = coming
    for request in behind:
        request.wait()
    return dq, arriving


# %%
def forward_and_backward(rank, R, S, chunks, causal):
    q, k, v = (cut(x, rank, R, chunks) for x in sequence(S))
    out, log_sum = ring_forward(rank, R, q, k, v, chunks, causal)
    dq, dkv = ring_backward(rank, R, q, k, v, out, log_sum, 2 * out, chunks, causal)
    return torch.stack([out, dq, *dkv])  # for the loss sum(out ** 2)


def in_one_process(S, causal):
    q, k, v = (x.requires_grad_() for x in sequence(S))
    out = attention(q, k, v, causal)
    return torch.stack([out.detach(), *torch.autograd.grad((out**2).sum(), (q, k, v))])


whole = in_one_process(S, True)
for R in (2, 3, 4):
    run = simlib.run(forward_and_backward, R, (S, zigzag, True))
    errors = [(x - cut(whole, r, R, zigzag)).abs().max() for r, x in enumerate(run.results)]
    print(f"{R} ranks: result and gradients right to 1e-4: {(max(errors) < 1e-4).item()}")
