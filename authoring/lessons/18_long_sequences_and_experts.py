# %% [markdown]
# # 18 Long sequences and experts
#
# A batch can be cut (lesson 07), layers can be dealt out (lesson 10), and a matrix can be cut
# ([lesson 12](12_tensors_and_state.ipynb)). Two cuts are left, and the largest models of today use both: the **sequence** and the
# **experts**. This lesson is beyond what the course's sources teach. In 90 minutes, best in two sittings (a break is before
# *A layer of experts*), you will
#
# - cut one long sequence over the ranks, and get attention right all the same: ring attention,
#   forward and backward, equal to one process,
# - see a causal mask leave most ranks idle, and mend it by another cut: predicted, then measured,
# - count what it sends against the other way, an all_to_all of heads,
# - send tokens to experts by an all_to_all with uneven splits, drop some, and balance the rest,
# - put the five dimensions of training side by side: dp, tp, pp, cp, ep.
#
# Letters: **S** positions in the sequence (tokens), **H** heads (attentions side by side, lesson
# 12), **d** numbers per head, **R** ranks. A head's queries, keys and values are three matrices of S x d. The modelled device does 10
# Gflop/s; as in lesson 10, its clock counts products of matrices.

# %%
import functools
import math

import torch
import torch.distributed as dist
from torch import nn

import simlib

H, DIM, FLOPS = 8, 16, 10e9  # heads, numbers per head (d), operations per second


def sequence(S):
    """Queries, keys and values of S positions, the same wherever they are made."""
    generator = torch.Generator().manual_seed(18)
    return [torch.randn(H, S, DIM, generator=generator) for _ in range(3)]


TEN_GBIT, ONE_GBIT = (
    make(1).inter for make in (simlib.clusters.ethernet_10g, simlib.clusters.ethernet_1g)
)


def cluster_with(link=TEN_GBIT):
    return simlib.Cluster(8, 1, link, device=simlib.Device(flops_per_s=FLOPS))


# %% [markdown]
# ## Why cut a sequence?
#
# In a transformer every position of a text makes three vectors: a query (what it looks for), a key
# (what it is found by) and a value (what it has to give). **Attention** compares every query with
# every key: the score is $s_{ij} = q_i \cdot k_j / \sqrt d$. A softmax over the keys turns scores
# into weights, and with these the values are averaged. What does the ledger hold after the forward
# pass, and what happens to it when S doubles?
#
# (`causal` and `diagonal` are for later, and False till then: with a **causal mask** no position sees
# a later one. Where queries and keys have the same positions, it hides the scores above the diagonal.)

# %%
guess = None  # S doubles: how many times the bytes?


def scores(q, k, diagonal=False):
    s = q @ k.mT / DIM**0.5
    return s + torch.full(s.shape[-2:], -math.inf).triu(1) if diagonal else s


def attention(q, k, v, causal=False):
    return scores(q, k, causal).softmax(-1) @ v


def activations(rank, world_size, S):
    q, k, v = (x.requires_grad_() for x in sequence(S))
    out = attention(q, k, v)
    return simlib.held()["activations and temporaries"], out.shape


for S in (256, 512, 1024):
    found = simlib.simulate(activations, 1, (S,), cluster=cluster_with()).results[0][0]
    by_hand = 4 * (4 * H * S * DIM + H * S * S)
    print(f"S = {S:4}: {found / 1e6:5.1f} MB, by hand {by_hand / 1e6:5.1f};", end="")
    print(f" difference {found - by_hand} bytes, {4 * H * S * S / by_hand:.0%} are weights")
print(f"S = 131,072 and 128 heads in 2 bytes: {2 * 128 * 131072**2 / 1e12:.1f} TB of weights")

# %% [markdown]
# Queries, keys, values and result grow with S, the weights with S². The last line is one layer at
# the length and with the heads of Llama 3 405B (arXiv 2407.21783). No device holds that. Nobody
# has to keep the weights: they can be made block by block, as we do below, and again in the
# backward pass (FlashAttention, arXiv 2205.14135). But q, k, v and all other activations remain,
# and so do 4 H S² d operations (two products of matrices). Adding data-parallel ranks does not help: a sequence is *one*
# example. So cut it.
#
# ## Wrong way: each to its own
#
# Every rank gets a part of S/R positions: queries, keys and values. The sequence is cut into 2R
# **chunks**, and rank r has chunks 2r and 2r + 1. (Why two, we shall see.) "Attention is local
# mostly", so let each rank attend to its own keys. How wrong is that? (Our vectors are random. In a
# text it would be less wrong, and still wrong.)

# %%
guess = None  # the typical error? (The results' typical size is 0.08.)
S = 480


def in_a_row(rank, R):
    return 2 * rank, 2 * rank + 1


def cut(x, rank, R, chunks):
    """The part of x (..., S, d) that a rank holds."""
    return torch.cat([x.chunk(2 * R, dim=-2)[i] for i in chunks(rank, R)], dim=-2)


def own_keys_only(rank, R):
    return attention(*(cut(x, rank, R, in_a_row) for x in sequence(S)))


full = attention(*sequence(S))
print(f"full attention: typical size {full.pow(2).mean().sqrt():.2f}")
for R in (1, 2, 4):
    together = torch.cat(simlib.simulate(own_keys_only, R).results, dim=1)
    error = together - full
    typical, largest = error.pow(2).mean().sqrt(), error.abs().max()
    print(f"{R} ranks: typical error {typical:.2f}, largest {largest:.2f}")

# %% [markdown]
# With four ranks the typical error is larger than the typical result. Nothing was raised: every rank averaged
# *something*. Each query needs all keys.
#
# ## Softmax in parts
#
# Suppose the keys come in two parts, A and B, one after the other. The softmax divides by a sum
# over *all* keys, so it seems to need them at once. It does not. Keep, for each query and each
# part, three things: the largest score m, the sum z, and the values added up, u:
#
# $$m_A = \max_{j \in A} s_j, \qquad z_A = \sum_{j \in A} e^{s_j - m_A}, \qquad
# u_A = \sum_{j \in A} e^{s_j - m_A}\, v_j$$
#
# To bring part A from its own maximum to the common one, multiply by $e^{m_A - m}$:
#
# $$m = \max(m_A, m_B), \qquad z = e^{m_A - m}\, z_A + e^{m_B - m}\, z_B, \qquad
# u = e^{m_A - m}\, u_A + e^{m_B - m}\, u_B$$
#
# At the end attention is $u / z$: m cancels. This is the **online softmax** (Milakov and
# Gimelshein, arXiv 1805.02867).
#
# **Now you write it.** `partial` makes m, z, u of one part. Fill in `my_merge`; the cell tells how
# far your result is from the softmax of all keys.


# %%
def partial(q, k, v, diagonal=False):
    s = scores(q, k, diagonal)
    m = s.amax(-1, keepdim=True)
    e = (s - m).exp()
    return m, e.sum(-1, keepdim=True), e @ v


def my_merge(one, other):
    return None  # one is m_A, z_A, u_A; other is m_B, z_B, u_B: return those of both


q, k, v = (x.double() for x in sequence(S))
halves = [partial(q, *part) for part in zip(k.chunk(2, dim=1), v.chunk(2, dim=1), strict=True)]
mine = my_merge(*halves)
if mine is None:
    print("not written yet")
else:
    print(f"largest difference {(mine[2] / mine[1] - attention(q, k, v)).abs().max():.0e}")

# %% [markdown]
# <details><summary>One answer</summary>
#
# ```python
# (m_a, z_a, u_a), (m_b, z_b, u_b) = one, other
# m = torch.maximum(m_a, m_b)
# a, b = (m_a - m).exp(), (m_b - m).exp()
# return m, a * z_a + b * z_b, a * u_a + b * u_b
# ```
#
# </details>
#
# The twin of the derivation: parts merged one after the other, in double precision, against the
# softmax of all keys. Beside it two ways that look simpler. One takes the mean of the parts'
# results. The other leaves out m, and is shown with scores 1,000 times as large. Which of the
# three are right?


# %%
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    a, b = (one[0] - m).exp(), (other[0] - m).exp()
    return m, a * one[1] + b * other[1], a * one[2] + b * other[2]


guess = None  # which of the three are right?
full = attention(q, k, v)
for n in (2, 5, 48):
    parts = list(zip(k.chunk(n, dim=1), v.chunk(n, dim=1), strict=True))
    _, z, u = functools.reduce(merge, (partial(q, *part) for part in parts))
    mean = sum(attention(q, *part) for part in parts) / n
    print(
        f"{n:2} parts: residual below 1e-14: {(u / z - full).abs().max().item() < 1e-14};", end=""
    )
    print(f" mean of the parts: error {(mean - full).abs().max():.2f}")
e = scores(1000 * q, k).exp()
without = e @ v / e.sum(-1, keepdim=True)
_, z, u = partial(1000 * q, k, v)
print(
    f"large scores: without m {without.isnan().float().mean():.0%} of the numbers are nan;", end=""
)
print(f" with m {(u / z).isnan().float().mean():.0%}")

# %% [markdown]
# Merging is exact. The mean would be right if all parts had the same m and z; m costs nothing and
# prevents $e^{s}$ from becoming infinite. And three small things per query are all that must be
# kept: no rank needs all keys at any one time.
#
# ## Ring attention
#
# So let the keys and values travel (Liu, Zaharia and Abbeel, arXiv 2310.01889). Queries stay. In
# step i rank r has the keys that were rank $r - i$'s, passes them on to its right neighbour,
# receives the next ones from the left, and meanwhile computes with those it has. After R steps
# each query has met each key. `pairs` says which chunks of a rank's queries meet which chunks of
# keys: without a mask all four pairs.


# %%
def pass_on(tensor, rank, R):
    """Send to the right, receive from the left: what will have come, and requests to wait for."""
    coming = torch.empty_like(tensor)
    to_right = dist.P2POp(dist.isend, tensor, (rank + 1) % R)
    from_left = dist.P2POp(dist.irecv, coming, (rank - 1) % R)
    return coming, dist.batch_isend_irecv([to_right, from_left])


def finish(requests):
    for request in requests:
        request.wait()
    return []


def pairs(rank, src, R, size, chunks, causal):
    """Which rows of rank's queries meet which of src's keys, and whether they are the same chunk."""
    for a, i in enumerate(chunks(rank, R)):
        for b, j in enumerate(chunks(src, R)):
            if not causal or j <= i:  # nothing is computed that no query needs
                rows, columns = (slice(n * size, (n + 1) * size) for n in (a, b))
                yield rows, columns, causal and i == j


# %%
def ring_forward(rank, R, q, k, v, chunks, causal, wait_first=False):
    """Attention of this rank's queries over all keys; and m + log z, which backward will need."""
    kv, size = torch.stack([k, v]), q.shape[1] // 2
    z = torch.zeros_like(q[..., :1])
    so_far = z - math.inf, z, torch.zeros_like(q)  # m, z, u of no keys at all
    for step in range(R):
        coming, requests = pass_on(kv, rank, R) if step < R - 1 else (kv, [])
        if wait_first:
            requests = finish(requests)
        src = (rank - step) % R
        for rows, columns, diagonal in pairs(rank, src, R, size, chunks, causal):
            with simlib.span("K", of=src):
                new = partial(q[:, rows], *kv[:, :, columns], diagonal)
                merged = merge([x[:, rows] for x in so_far], new)
            for x, part in zip(so_far, merged, strict=True):
                x[:, rows] = part
        finish(requests)
        kv = coming
    m, z, u = so_far
    return u / z, m + z.log()


# %% [markdown]
# First: is it right, on real and on simulated ranks? Then its time. Let c be the seconds that one
# step computes, and t those of one message. With waiting *after* computing both happen at once:
#
# $$T = R\,c + (R - 1) \max(0,\ t - c), \qquad \text{wait first: } T = R\,c + (R - 1)\,t$$
#
# How much longer will it take to wait first? (S = 480, 4 ranks, 10 Gbit/s with a latency of 30 us.)

# %%
guess = None  # wait first: how many times as long?


def forward(rank, R, S, chunks=in_a_row, causal=False, wait_first=False):
    parts = [cut(x, rank, R, chunks) for x in sequence(S)]
    return ring_forward(rank, R, *parts, chunks, causal, wait_first)[0]


full = attention(*sequence(S))
for R in (2, 3, 4):
    for engine in (simlib.run, simlib.simulate):
        error = (torch.cat(engine(forward, R, (S,)).results, dim=1) - full).abs().max().item()
        print(f"{R} ranks, {engine.__name__}: equal to one process to 1e-6: {error < 1e-6}")
c = 4 * H * (S / 4) ** 2 * DIM / FLOPS
t = TEN_GBIT.latency_s + 2 * S // 4 * H * DIM * 4 / TEN_GBIT.bandwidth_Bps
late = simlib.simulate(forward, 4, (S, in_a_row, False, True), cluster=cluster_with())
ring = simlib.simulate(forward, 4, (S,), cluster=cluster_with())
print(f"wait after: {ring.time_s * 1e3:.3f} ms, residual {ring.time_s - 4 * c:.0e}")
print(f"wait first: {late.time_s * 1e3:.3f} ms, residual {late.time_s - 4 * c - 3 * t:.0e}")
ring.timeline()

# %% [markdown]
# (K2: computing with keys that are rank 2's, one box for each pair of chunks. An arrow ends where its
# message is waited for, not where it arrives.) Each message is under way while its sender
# computes, and nobody waits: messages cost nothing. That holds as long as $t \le c$. Per step a
# rank computes $4 H (S/R)^2 d$ operations and sends $8 H (S/R)\, d$ bytes. So the longer the
# sequence, the better: computing grows with its square.
#
# ## Backward
#
# Let g be the gradient of the loss with respect to the result o, and $\partial x$ short for
# $\partial L / \partial x$. From $o_i = \sum_j p_{ij} v_j$ follow
#
# $$\partial v_j = \sum_i p_{ij}\, g_i, \qquad \partial p_{ij} = g_i \cdot v_j$$
#
# The weights of a query sum up to 1. If one score grows, its weight takes from all: $\partial
# p_{il} / \partial s_{ij}$ is $p_{ij} (1 - p_{ij})$ for l = j, else $-p_{ij}\, p_{il}$. So
#
# $$\partial s_{ij} = p_{ij} \Big(\partial p_{ij} - \sum_l p_{il}\, \partial p_{il}\Big)
# = p_{ij}\,(g_i \cdot v_j - g_i \cdot o_i)$$
#
# The sum over *all* keys is $g_i \cdot o_i$: a number that the query's rank has. And with $s_{ij} = q_i
# \cdot k_j / \sqrt d$,
#
# $$\partial q_i = \sum_j \frac{\partial s_{ij}\, k_j}{\sqrt d}, \qquad
# \partial k_j = \sum_i \frac{\partial s_{ij}\, q_i}{\sqrt d}$$
#
# The weights are made again from what `ring_forward` kept: $p_{ij} = e^{s_{ij} - (m_i + \log z_i)}$.
# $\partial q$ stays at home like q. But $\partial k$ and $\partial v$ are sums over *all* queries, so
# they travel behind their keys, each rank adds its part, and after R steps they are at home. (What comes
# in step i are gradients of the keys that I compute with in step i + 1.) How many messages is that, with
# those of the forward pass, and how many times n, the $4 H (S/R)\, d$ bytes of one tensor of a rank?


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


def is_right(run, chunks, causal, within):
    whole, R = in_one_process(S, causal), run.world_size
    errors = [(x - cut(whole, r, R, chunks)).abs().max() for r, x in enumerate(run.results)]
    return max(errors) < within


s, g = scores(q, k).requires_grad_(), torch.ones_like(q).cumsum(-1)  # float64; any g
p = s.softmax(-1)
ds = p * (g @ v.mT - (g * (p @ v)).sum(-1, keepdim=True))
error = (ds - torch.autograd.grad(p @ v, s, g)[0]).abs().max().item()
print("gradient of s: residual below 1e-12:", error < 1e-12)


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
        finish(behind)
        arriving, behind = pass_on(dkv + arriving, rank, R)
        finish(requests)
        kv = coming
    finish(behind)
    return dq, arriving


for R in (2, 3, 4):
    run = simlib.run(forward_and_backward, R, (S, in_a_row, False))
    print(f"{R} ranks: right to 1e-5: {is_right(run, in_a_row, False, 1e-5)};", end="")
    print(f" {run.messages[0]} messages, {run.bytes_sent[0] * R / (4 * S * H * DIM):.0f} n bytes")


# %% [markdown]
# All four are right: the result, and the gradients of q, k, v. $3R - 2$ messages, each with two
# tensors of n bytes: $R - 1$ in the forward pass, then $R - 1$ for keys and values and R for their
# gradients.
#
# ## A causal mask, and idle ranks
#
# Now with a causal mask. `pairs` leaves out every chunk of keys that comes after the chunk of queries
# (`j <= i`); of the same chunk (`i == j`) half of the scores are masked. So rank r needs the keys of
# ranks 0 to r only. Nearly half of the work is gone, 28
# of 64 pairs of chunks. Is half of the time?

# %%
guess = None  # how many times as fast as without a mask?
causal = simlib.simulate(forward, 4, (S, in_a_row, True), cluster=cluster_with())
print(f"no mask {ring.time_s * 1e3:.3f} ms, causal {causal.time_s * 1e3:.3f} ms")
computing = causal.states.computing_s
print("computing, by rank:", ", ".join(f"{s * 1e3:.2f} ms" for s in computing))
print(f"idle: {causal.bubble().share:.0%}")
causal.timeline()

# %% [markdown]
# Hardly any of it. Rank 0 computes in its first step, and then only passes on keys that it may not
# look at. The last rank needs all of them, and sets the time. In units of one pair of chunks: 4R
# pairs without a mask, and on the last rank $4(R-1) + 3 = 4R - 1$ with it. (A pair on the diagonal
# is half masked, and counts whole: the product of matrices is made.)
#
# **Now you write it.** Deal out the 2R chunks in another way, two for each rank, so that all ranks
# have as much to do. The cell counts your pairs.


# %%
def my_chunks(rank, R):
    return None  # two different numbers, of 0 to 2 R - 1


def pairs_of(chunks, R):
    """How many pairs each rank computes, by step."""
    return [
        [len(list(pairs(rank, (rank - t) % R, R, 1, chunks, True))) for t in range(R)]
        for rank in range(R)
    ]


for name, chunks in (("in a row", in_a_row), ("yours", my_chunks)):
    written = chunks(0, 4) is not None
    print(f"{name:8} by rank and step:", pairs_of(chunks, 4) if written else "not written yet")

# %% [markdown]
# <details><summary>One answer</summary>
#
# The first chunk has the least to do, the last the most: give both to rank 0, and so on inwards.
# `return rank, 2 * R - 1 - rank`
#
# </details>
#
# This is the **zig-zag cut** (of Llama 3, for one; torch calls it head-tail). Of the keys of a rank
# before me both my chunks need the early one, and its late one comes after both: 2 pairs. Of a rank
# after me my late chunk needs both, my early one none: 2 pairs. Of my own: 3. So every rank computes $2(R - 1) + 3 = 2R + 1$ pairs, and in the
# same steps:
#
# $$\text{speed-up} = \frac{4R - 1}{2R + 1} \qquad (R = 4: 1.67;\ \text{many ranks: } 2)$$
#
# The last line has half as many positions. Will the formula hold there?


# %%
def zigzag(rank, R):
    return rank, 2 * R - 1 - rank


guess = None  # does the formula hold for S = 240 on 8 ranks?
for R, S_here in ((2, 480), (4, 480), (8, 480), (8, 240)):
    times = [
        simlib.simulate(forward, R, (S_here, chunks, True), cluster=cluster_with()).time_s
        for chunks in (in_a_row, zigzag)
    ]
    pair_s = 4 * H * (S_here / 2 / R) ** 2 * DIM / FLOPS
    print(f"R = {R}, S = {S_here}: in a row {times[0] / pair_s:6.3f} pairs, zig-zag", end="")
    print(f" {times[1] / pair_s:6.3f}; speed-up {times[0] / times[1]:.3f}", end="")
    print(f", predicted {(4 * R - 1) / (2 * R + 1):.3f}")
runs = [simlib.run(forward_and_backward, R, (S, zigzag, True)) for R in (2, 3, 4)]
print("equal to one process to 1e-4:", all(is_right(r, zigzag, True, 1e-4) for r in runs))
run = simlib.simulate(forward, 4, (S, zigzag, True), cluster=cluster_with())
print(f"idle: {run.bubble().share:.0%}")
run.timeline()

# %% [markdown]
# Exact, as long as messages hide: every rank is busy to the end. With S = 240 on 8 ranks a step's two
# pairs take less time than a message, and everybody waits for the network. Balance does not help there.
#
# ## The other way: change what is cut
#
# Heads do not need each other. DeepSpeed-Ulysses (arXiv 2309.14509) makes use of it: one
# all_to_all turns "all heads of my part of the sequence" into "the whole sequence of my heads",
# plain attention follows, and a second all_to_all turns the result back. Of each tensor of n bytes
# a rank keeps the R-th part that is its own. So a rank sends
#
# $$\text{ring: } 2\,(R - 1)\, n \qquad \text{Ulysses: } (3 + 1)\, \frac{R - 1}{R}\, n \qquad
# \text{ratio: } \frac R2$$


# %%
def swap(x):
    """all_to_all of the parts x[0], x[1], ...: part r goes to rank r."""
    x = x.contiguous()
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x)
    return received


def ulysses(rank, R, S):
    mine = torch.stack([x.chunk(R, dim=1)[rank] for x in sequence(S)])  # (3, H, S / R, d)
    theirs = swap(mine.unflatten(1, (R, H // R)).transpose(0, 1))  # (R, 3, H / R, S / R, d)
    q, k, v = theirs.permute(1, 2, 0, 3, 4).flatten(2, 3)  # each (H / R, S, d)
    back = swap(attention(q, k, v).unflatten(1, (R, S // R)).transpose(0, 1))
    return back.flatten(0, 1)  # (H, S / R, d)


# %% [markdown]
# The ring sends R/2 times as much. Does Ulysses win, then? Nothing can be computed before the
# first all_to_all is over: its time *adds* to R c, while the ring hides its own. Two networks, no
# mask; the all_to_all sends its parts one after the other (`pairwise`, lesson 04). Where does
# which win? (Of each message of the ring a part of c/t hides.)

# %%
guess = None  # who wins: 10 Gbit or 1 Gbit, 4 or 8 ranks?
options = {"all_to_all": "pairwise", "expand": True}
for R in (4, 8):
    n, c = 4 * H * S // R * DIM, 4 * H * (S / R) ** 2 * DIM / FLOPS
    for name, link in (("10 Gbit", TEN_GBIT), ("1 Gbit", ONE_GBIT)):
        ring = simlib.simulate(forward, R, (S,), cluster=cluster_with(link))
        other = simlib.simulate(ulysses, R, (S,), cluster=cluster_with(link), **options)
        sent = sum(message.nbytes for message in other.wire)
        t = link.latency_s + 2 * n / link.bandwidth_Bps
        by_hand = R * c + (R - 1) * (2 * link.latency_s + 4 * n / R / link.bandwidth_Bps)
        print(f"R = {R}, {name:7}: ring {ring.time_s * 1e3:.3f},", end="")
        print(f" Ulysses {other.time_s * 1e3:.3f} ms; {min(1, c / t):.0%} hides;", end="")
        print(f" bytes {sum(ring.bytes_sent) / sent:.0f} : 1; residuals", end="")
        print(f" {ring.time_s - R * c - (R - 1) * max(0, t - c):.0e}, {other.time_s - by_hand:.0e}")
error = (torch.cat(other.results, dim=1) - attention(*sequence(S))).abs().max().item()
print("Ulysses equal to one process to 1e-6:", error < 1e-6)

# %% [markdown]
# The ring wins where its messages hide, and on 4 ranks with 1 Gbit, too, where 71 % of each hides
# behind computing. On 8 ranks only 34 % do (c falls with R², t with R), and Ulysses wins. Two more
# things count. Ulysses needs R heads or more, but no zig-zag, since all heads have the same mask.
# And many models have fewer heads of keys than of queries (grouped-query attention): then only k
# and v shrink, and the ring sends less than here.
#
# (Torch's `torch.distributed.tensor.experimental.context_parallel` replaces attention in the whole
# process, by rules for three kernels of GPUs. On CPUs torch 2.13 searches for a way without them, for
# tens of seconds at the first call: every rank then gathers all keys and values, no ring. With
# `is_causal=True` it finds none, and raises. Simulated ranks share a process: `simulate` refuses it.)
#
# ## A layer of experts
#
# The other new cut. A **mixture of experts** replaces one layer by E of its size, the
# experts, and a **router** sends each token through one: E times the parameters, for the same
# operations (and a small product for the router). (Many models choose several; we take one, as Switch does: arXiv 2101.03961.) The
# output is
#
# $$y = x + p_e(x)\, \text{expert}_e(x), \qquad p = \text{softmax}(x W), \qquad e = \arg\max_i p_i$$
#
# $p_e$ is there so that the router gets a gradient. Experts are dealt out to the ranks, and tokens
# travel.

# %%
E, WIDTH, HIDDEN = 4, 64, 256
torch.manual_seed(18)
tokens = torch.randn(960, WIDTH) + torch.randn(WIDTH)  # words of a text have much in common
router = torch.randn(WIDTH, E) / 8


def expert(e):
    torch.manual_seed(e)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))


def route(x, router):
    """The probability of the chosen expert, and its number, for each token."""
    return (x @ router).softmax(-1).max(-1)


def dense(x, router, experts):
    (p, choice), y = route(x, router), x.clone()
    for e in range(E):
        y[choice == e] += p[choice == e, None] * experts[e](x[choice == e])
    return y


print("tokens per expert:", route(tokens, router)[1].bincount().tolist())

# %% [markdown]
# ## Wrong way: equal splits
#
# Four ranks, with one expert and 240 tokens each. Sort them by expert, `all_to_all_single`,
# compute, and back. By default it cuts into equal parts. Will it raise? And if only the sender
# names the true splits? (If the cell fails, that is meant.)


# %% tags=["raises-exception"]
def equal_splits(rank, R, sent_splits=False):
    x = tokens.chunk(R)[rank]
    p, choice = route(x, router)
    order = choice.argsort(stable=True)
    splits = choice.bincount(minlength=E).tolist() if sent_splits else None
    arrived, back = torch.empty_like(x), torch.empty_like(x)
    dist.all_to_all_single(arrived, x[order], None, splits)  # received: in equal parts
    dist.all_to_all_single(back, expert(rank)(arrived))
    return (x + p[:, None] * back[order.argsort()]).detach()


guess = None  # does it raise? And with the true splits on the sending side?
wrong = torch.cat(simlib.run(equal_splits, 4).results)
right = dense(tokens, router, [expert(e) for e in range(E)])
print(f"no error; tokens with a wrong result: {(wrong - right).abs().amax(1).gt(1e-4).sum()}")
simlib.simulate(equal_splits, 4, (True,))


# %% [markdown]
# The first is silent garbage: every rank sent equal quarters, whatever the router said, and many
# tokens met strange experts. The second is refused, since the receiver does not expect what is
# sent. A receiver cannot know: so **first the counts, then the tokens, then back**. Autograd does
# not see through `all_to_all_single` (lesson 10 again). Its backward is the same exchange with the
# two splits swapped.
#
# **Now you write it.** The counts are tables: `counts[s, e]` tokens of mine are for expert e of
# rank s, and by an all_to_all I know `theirs[s, e]`, how many tokens of rank s are for my expert
# e. Return the two lists that `Exchange` wants: how many rows go to each rank, and how many come.


# %%
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.splits = received, sent
        y = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), received, sent)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.splits), None, None


def my_splits(counts, theirs):
    return None  # two lists of R numbers: sent, received


counts, theirs = torch.tensor([[3, 1], [0, 2]]), torch.tensor([[3, 1], [4, 1]])
mine = my_splits(counts, theirs)
print("not written yet" if mine is None else f"right: {list(mine) == [[4, 2], [4, 5]]}")

# %% [markdown]
# <details><summary>One answer</summary>
#
# `return counts.sum(1).tolist(), theirs.sum(1).tolist()`
#
# </details>
#
# Now the layer. What arrives is ordered by rank, and within each rank by expert; `theirs` says
# which row is whose. How many all_to_alls will there be, forward and backward together?


# %%
def layer(rank, R, x, p, choice, experts):
    """y of this rank's tokens; experts are those of this rank."""
    order = choice.argsort(stable=True)
    counts = choice.bincount(minlength=E).view(R, -1)
    theirs = swap(counts)
    sent, received = counts.sum(1).tolist(), theirs.sum(1).tolist()
    arrived = Exchange.apply(x[order], sent, received)
    whose = torch.arange(E // R).repeat(R).repeat_interleave(theirs.flatten())
    results = torch.empty_like(arrived)
    for e, module in enumerate(experts):
        results[whose == e] = module(arrived[whose == e])
    back = Exchange.apply(results, received, sent)
    return x + p[:, None] * back[order.argsort()]


def experts_of(rank, R):
    return [expert(e) for e in range(rank * E // R, (rank + 1) * E // R)]


# %%
def y_and_gradients(x, router, experts, mixture):
    """y; the gradients of sum(y ** 2) for x, the router, and each parameter of the experts."""
    x, router = (tensor.clone().requires_grad_() for tensor in (x, router))
    y = mixture(x, router, experts)
    parameters = [weight for module in experts for weight in module.parameters()]
    return [y.detach(), *torch.autograd.grad((y**2).sum(), [x, router, *parameters])]


def of_rank(rank, R):
    def over_ranks(x, router, experts):
        return layer(rank, R, x, *route(x, router), experts)

    return y_and_gradients(tokens.chunk(R)[rank], router, experts_of(rank, R), over_ranks)


guess = None  # how many all_to_alls?
wanted = y_and_gradients(tokens, router, experts_of(0, 1), dense)
for R in (1, 2, 4):
    run = simlib.run(of_rank, R)
    y, dx, drouter = zip(*(result[:3] for result in run.results), strict=True)
    of_experts = [gradient for result in run.results for gradient in result[3:]]
    both = zip([torch.cat(y), torch.cat(dx), sum(drouter), *of_experts], wanted, strict=True)
    right = all((ours - one).abs().max() < 1e-5 * one.abs().max() for ours, one in both)
    print(f"R = {R}: {len(run.trace.collectives)} all_to_alls; y, gradients right: {right}")


# %% [markdown]
# Five: counts, tokens, results; and the gradients of both exchanges. The gradient of the *router*
# is the sum of those of all ranks: it needs an all_reduce, as in data parallelism. Those of the
# *experts* need none: an expert has seen the tokens of all ranks already.
#
# ## Capacity, and what is dropped
#
# Half of our tokens want one expert. GShard (arXiv 2006.16668) and Switch give each expert a
# **capacity**: of each rank's n tokens at most $C = \lceil f\, n / E \rceil$ for one expert.
# Whoever comes later is dropped: it skips the layer, and $y = x$.
# The experts' work becomes bounded. With f = 1, how many are dropped?

# %%
guess = None  # f = 1: which share is dropped?


def capped(rank, R, factor):
    x = tokens.chunk(R)[rank]
    p, choice = route(x, router)
    of_expert = nn.functional.one_hot(choice, E)
    place = (of_expert.cumsum(0) * of_expert).sum(1)  # 1 for the first token of an expert
    kept = place <= math.ceil(factor * len(x) / E)
    y = x.clone()
    y[kept] = layer(rank, R, x[kept], p[kept], choice[kept], experts_of(rank, R)).detach()
    return (~kept).sum().item(), (y == x).all(1).sum().item()


for factor in (1, 1.25, 1.5, 2, 4):
    run = simlib.simulate(capped, 4, (factor,), cluster=cluster_with())
    dropped, unchanged = map(sum, zip(*run.results, strict=True))
    print(f"f = {factor:4}: {dropped / len(tokens):4.0%} dropped, {unchanged} rows", end="")
    print(f" unchanged; layer {run.time_s * 1e3:.2f} ms")

# %% [markdown]
# A trade of quality for time. (Where shapes must not change, C rows go to each expert, padded with
# zeros: equal splits, and no counts.)
#
# ## Load balance, seen as a straggler
#
# Without a capacity everybody waits for the fullest expert. The picture has the layer on four
# ranks. The loads are 129, 490, 274 and 67 tokens: how many times as long as with equal ones?

# %%
guess = None  # how many times as long as with equal loads?


def timed_layer(rank, R, bias):
    x = tokens.chunk(R)[rank]
    probabilities = (x @ router).softmax(-1)
    choice = (x @ router + bias).argmax(-1)  # the bias chooses, and does nothing else
    p = probabilities.gather(1, choice[:, None])[:, 0]
    layer(rank, R, x, p, choice, experts_of(rank, R))


def compare(run, loads):  # an expert is two products; the router's is made twice
    by_hand = (loads.double() * 4 * WIDTH * HIDDEN + 2 * len(tokens) / 4 * WIDTH * E * 2) / FLOPS
    found = run.states.computing_s
    print(f"{run.time_s * 1e3:.2f} ms;", "computing, in us:", (found * 1e6).round(1))
    print(f"largest residual {abs(found - by_hand.numpy()).max() * 1e6:.6f} us")


unbalanced = simlib.simulate(timed_layer, 4, (torch.zeros(E),), cluster=cluster_with())
compare(unbalanced, route(tokens, router)[1].bincount(minlength=E))
unbalanced.timeline()

# %% [markdown]
# Rank 1 has 2.04 times the mean of 240 tokens, and its expert computes 2.04 times as long; the
# others wait for its results. A straggler as in lesson 04, but made by the data. Two mends. The
# **auxiliary loss** of Switch adds a term to the loss that grows where an expert with many tokens also
# has a high mean probability; we do not train with it here. Or a **bias** on each
# expert's score that only chooses: raise it where the load is below the mean, lower it where it is
# above, after each step (Wang et al., arXiv 2408.15664; DeepSeek-V3 does so). No gradient is bent
# by it. How even can it get?

# %%
guess = None  # the largest load after 60 steps; the mean is 240


def balance(rank, R, steps, rate=0.02):
    x, bias, loads = tokens.chunk(R)[rank], torch.zeros(E), []
    for _ in range(steps):
        load = (x @ router + bias).argmax(-1).bincount(minlength=E).float()
        dist.all_reduce(load)
        loads.append(load)
        if len(loads) < steps:
            bias += rate * (load.mean() - load).sign()
    return loads, bias


loads, bias = simlib.run(balance, 4, (61,)).results[0]
for step in (0, 20, 59, 60):
    print(f"step {step:2}: loads", loads[step].int().tolist())
first, chosen = (tokens @ router).argmax(-1), (tokens @ router + bias).argmax(-1)
print(f"tokens whose expert is not their first choice: {(first != chosen).sum()}")
balanced = simlib.simulate(timed_layer, 4, (bias,), cluster=cluster_with())
print(f"{unbalanced.time_s * 1e3:.2f} ms before, {balanced.time_s * 1e3:.2f} ms after")

# %% [markdown]
# Nearly as fast as with f = 1 above, and no token is dropped; it takes E numbers in an all_reduce
# per step. The price is in the line before the last: a third of the tokens get an expert that the
# router likes less. (The loads swing between two states, as a step has a fixed size.) The whole
# layer took 1.95 times as long as with these loads, a little less than its fullest expert: messages and the
# router's product take their time in both.
#
# ## Five dimensions
#
# A training of today's largest models cuts in five directions at once. N is the bytes of the
# parameters that a rank trains, n those of its activations between two layers.
#
# | | cuts | every rank keeps whole | sends | when | lesson |
# |---|---|---|---|---|---|
# | **dp** data | the examples | the model | gradients: all_reduce of N | once per step | 06 to 09 |
# | **tp** tensor | each matrix | the examples | activations: all_reduce of n | twice forward, twice backward, in each transformer layer | 12 |
# | **pp** pipeline | the layers | the examples | activations: send n to the next stage | per micro-batch and boundary | 10, 11 |
# | **cp** context | the sequence | the model | keys and values round a ring, or all_to_all of heads | per attention layer | 18 |
# | **ep** expert | the experts | all but the experts | tokens: all_to_all there and back | per expert layer | 18 |
#
# What sends most often goes inside the node (tp), what can hide or is rare goes between nodes (pp,
# dp, a ring of cp); an all_to_all of ep wants the fastest links that are left. The ranks multiply: R =
# dp x tp x pp x cp. Experts need no ranks of their own: the ranks of dp hold them. And since a rank of cp has seen a part of the positions only, gradients are summed
# over cp as over dp.
#
# ## Your turn
#
# [Exercises 18](../exercises/18_long_sequences_and_experts.ipynb): one query over keys on many
# ranks, and experts within a budget of bytes.
#
# [Sixteen questions](../docs/questions.md): what do these programs print?
#
# ## Exit ticket
#
# 1. S doubles, on as many ranks. What happens to c, and to t?
# 2. Two parts have m = 0, z = 2 and m = 5, z = 1. Which one decides the result?
# 3. A causal mask on 16 ranks: what does zig-zag gain?
# 4. A model has 8 heads, you have 16 ranks. Ring or Ulysses?
# 5. f = 1, and a router that sends all tokens to one of 4 experts. How many tokens skip the layer?
#
# <details><summary>Answers</summary>
#
# 1. c becomes 4 times as long, t about twice: hiding gets easier.
# 2. The second: the first is multiplied by $e^{-5}$, and has a weight of 2 x 0.0067 against 1.
# 3. 63/33: 1.91 times as fast, if messages hide.
# 4. The ring: Ulysses has no work for 8 of them. (Or both: Ulysses on groups of 8, a ring between.)
# 5. Three quarters.
#
# </details>
