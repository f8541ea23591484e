# %% [markdown]
# # 18 Long sequences
#
# You should know the messages of [lesson 02](02_send_and_recv.ipynb) and the softmax. You can cut a batch
# (lesson 07), place layers on ranks (lesson 10) and cut a matrix ([lesson 12](12_tensors_and_state.ipynb)).
# Lesson 18 adds two cuts for the largest models: the **sequence** and the **experts**. Its other parts are
# [masks and heads](18_masks_and_heads.ipynb), [tokens to experts](18_tokens_to_experts.ipynb) and
# [top-k experts](18_top_choices_of_experts.ipynb). In this part (60 minutes) you will
#
# - see why one long sequence does not fit into one device,
# - compute a softmax in parts, exactly,
# - write ring attention: keys and values travel, and the result equals that of one process,
# - predict its time when messages travel while ranks compute,
# - derive its backward pass, and compare all gradients with autograd.
#
# A sequence has **S** positions (tokens). Attention has **H** heads (lesson 12), each with vectors of **d**
# numbers. There are **R** ranks. The modelled device does 10 Gflop/s. Its clock counts only products of
# matrices.

# %%
import functools

import torch
import torch.distributed as dist

import simlib
from simlib import labs

H, DIM, FLOPS = 8, 16, 10e9  # heads, numbers per head (d), operations per second
LINK = simlib.clusters.ethernet_10g(1).inter
CLUSTER = simlib.Cluster(8, 1, LINK, device=simlib.Device(flops_per_s=FLOPS))


def sequence(S):
    """Queries, keys and values of S positions, the same wherever they are made."""
    generator = torch.Generator().manual_seed(18)
    return [torch.randn(H, S, DIM, generator=generator) for _ in range(3)]


# %% [markdown]
# ## Why cut a sequence?
#
# In a transformer every position of a text makes a query, a key and a value. The query says what the position
# looks for. The key says how others find the position. The position passes on its value. **Attention**
# compares every query with every key. The **score** is $s_{ij} = q_i \cdot k_j / \sqrt d$. A softmax over the
# keys turns the scores of a query into weights $p_{ij}$. These weights are not parameters of the model. The
# result is the mean of the values with these weights: $o_i = \sum_j p_{ij} v_j$.
#
# The next cell measures the memory of attention in the forward pass. If S doubles from 512 to 1,024, how many
# times as many bytes does attention take?

# %%
times = None  # S doubles: how many times as many bytes?


def scores(q, k):
    return q @ k.mT / DIM**0.5


def attention(q, k, v):
    return scores(q, k).softmax(-1) @ v


def activations(rank, world_size, S):
    q, k, v = (x.requires_grad_() for x in sequence(S))
    out = attention(q, k, v)
    return simlib.held()["activations and temporaries"], out.shape


found = {}
for S in (256, 512, 1024):
    found[S] = simlib.simulate(activations, 1, (S,), cluster=CLUSTER).results[0][0]
    by_hand = 4 * (4 * H * S * DIM + H * S * S)
    print(f"S = {S:4}: {found[S] / 1e6:5.1f} MB, by hand {by_hand / 1e6:5.1f};", end="")
    print(f" difference {found[S] - by_hand} bytes, {4 * H * S * S / by_hand:.0%} are weights")
print(f"S = 131,072 and 128 heads in 2 bytes: {2 * 128 * 131072**2 / 1e12:.1f} TB of weights")
simlib.guess(times, found[1024] / found[512], within=0.1)

# %% [markdown]
# Queries, keys, values and the result grow with S, but the weights grow with S². The last line is for a single
# layer, with the length and the heads of Llama 3 405B (arXiv 2407.21783). No device holds 4.4 TB. But the forward
# pass can make the weights block by block and drop them, and the backward pass can make them again
# (FlashAttention, arXiv 2205.14135). The device still holds q, k, v and all other activations, and two products
# of matrices still take $4 H S^2 d$ operations. More data-parallel ranks do not help, because a sequence is *one*
# example. So we cut the sequence.
#
# ## Wrong way: each rank uses its own keys
#
# Every rank gets S/R neighbouring positions, with their queries, keys and values. Somebody says "attention is
# mostly local", so each rank uses only its own keys. Our vectors are random. In a text the error would be
# smaller, but not zero. The typical result (root of the mean square) is 0.08. How large is the typical error
# on 4 ranks?

# %%
typical_error = None  # the typical error on 4 ranks
S = 480


def cut(x, rank, R):
    """The part of x (..., S, d) that a rank holds."""
    return x.chunk(R, dim=-2)[rank]


def own_keys_only(rank, R):
    return attention(*(cut(x, rank, R) for x in sequence(S)))


full = attention(*sequence(S))
print(f"full attention: typical size {full.pow(2).mean().sqrt():.2f}")
for R in (1, 2, 4):
    error = torch.cat(simlib.simulate(own_keys_only, R).results, dim=1) - full
    typical, largest = error.pow(2).mean().sqrt(), error.abs().max()
    print(f"{R} ranks: typical error {typical:.2f}, largest {largest:.2f}")
simlib.guess(typical_error, round(typical.item(), 2), within=0.2)

# %% [markdown]
# On four ranks the error is larger than the result. Python raised no error, because every rank computed a mean of
# *some* values. Each query needs all keys.
#
# ## Softmax in parts
#
# Suppose that the keys come in two parts, A and B. The softmax divides by a sum over *all* keys, so it seems to
# need all keys at once. But it can work in parts. For each query and each part we keep three things: the largest
# score m, the sum z, and the weighted sum of the values, u:
#
# $$m_A = \max_{j \in A} s_j, \qquad z_A = \sum_{j \in A} e^{s_j - m_A}, \qquad
# u_A = \sum_{j \in A} e^{s_j - m_A}\, v_j$$
#
# We can add the parts only if both use the same maximum m. The factor $e^{m_A - m}$ brings part A from its
# own maximum to the common one:
#
# $$m = \max(m_A, m_B), \qquad z = e^{m_A - m}\, z_A + e^{m_B - m}\, z_B, \qquad
# u = e^{m_A - m}\, u_A + e^{m_B - m}\, u_B$$
#
# In the end attention is $u / z$. The factor $e^{-m}$ is in both u and z, so it cancels. We keep m because $e^s$
# becomes infinite for large scores. This is the **online softmax** (Milakov and Gimelshein, arXiv 1805.02867).
#
# **Now you write it:** `partial` computes m, z and u of one part. Use `torch.maximum` to merge the m, z and u of
# two parts. The check compares u / z with attention over all keys.


# %%
def partial(q, k, v):
    s = scores(q, k)
    m = s.amax(-1, keepdim=True)
    e = (s - m).exp()
    return m, e.sum(-1, keepdim=True), e @ v


def my_merge(one, other):
    return None  # one is m_A, z_A, u_A; other is m_B, z_B, u_B: return m, z, u of both


q, k, v = (x.double() for x in sequence(S))
halves = [partial(q, *part) for part in zip(k.chunk(2, dim=1), v.chunk(2, dim=1), strict=True)]
mine = my_merge(*halves)
if mine is None:
    print("your merge: not yet")
else:
    error = (mine[2] / mine[1] - attention(q, k, v)).abs().max()
    print(f"your merge: {'right' if error < 1e-12 else 'wrong'}, largest difference {error:.0e}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def my_merge(one, other):
#         (m_a, z_a, u_a), (m_b, z_b, u_b) = one, other
#         m = torch.maximum(m_a, m_b)
#         a, b = (m_a - m).exp(), (m_b - m).exp()
#         return m, a * z_a + b * z_b, a * u_a + b * u_b
#
# </details>
#
# The lesson goes on with `merge`, which does the same. Merging is exact for any number of parts. So we keep only
# m, z and u for each query, and no rank needs all keys at the same time. The appendix merges up to 48 parts, and
# tries two other ways that look simpler. You may skip it.
#
# ## Ring attention
#
# In ring attention (Liu, Zaharia and Abbeel, arXiv 2310.01889) the queries stay, and the keys and values
# travel. In step 0 each rank has its own keys. In each step except the last, it sends its current keys to the
# right neighbour, receives others from the left, and computes at the same time. So in step i rank r has the
# keys of rank $r - i$ (modulo R). After R steps each query has met each key:

# %%
labs.draw_ring(4)

# %% [markdown]
# **Now you write it:** the loop. `pass_on` posts a send and a receive. It returns the tensor that the receive
# will fill, and a list of requests. `finish` waits for the requests. Keys and values travel as one tensor,
# `torch.stack([k, v])`.
#
# 1. In each step except the last, pass on the keys and values that you have.
# 2. Compute m, z and u with these same keys and values. Merge them with those of earlier steps.
# 3. Wait for the requests. Then continue with the tensor that has arrived.
#
# In the end return u / z. The check compares your result with one process, and your time with the time of
# computing alone. It also counts messages.


# %%
def merge(one, other):
    m = torch.maximum(one[0], other[0])
    a, b = (one[0] - m).exp(), (other[0] - m).exp()
    return m, a * one[1] + b * other[1], a * one[2] + b * other[2]


def pass_on(tensor, rank, R):
    """Send to the right, receive from the left: the tensor to be filled, and the requests."""
    coming = torch.empty_like(tensor)
    to_right = dist.P2POp(dist.isend, tensor, (rank + 1) % R)
    from_left = dist.P2POp(dist.irecv, coming, (rank - 1) % R)
    return coming, dist.batch_isend_irecv([to_right, from_left])


def finish(requests):
    for request in requests:
        request.wait()


# %%
def my_ring(rank, R, q, k, v):
    return None  # attention of this rank's queries over all keys


for R in (1, 2, 3, 4):
    run = simlib.simulate(lambda r, n: my_ring(r, n, *(cut(x, r, n) for x in sequence(S))), R,
                          cluster=CLUSTER)  # fmt: skip
    if run.results[0] is None:
        print(f"R = {R}: not yet")
        continue
    error = (torch.cat(run.results, dim=1) - attention(*sequence(S))).abs().max()
    is_lean = run.messages == [R - 1] * R
    hides = run.time_s < 1.001 * 4 * H * S**2 * DIM / R / FLOPS
    faults = ["another result"] * bool(error > 1e-6) + [f"not {R - 1} messages"] * (not is_lean)
    faults += ["it waits before it computes"] * (not hides)
    print(f"R = {R}:", ", ".join(faults) or "right")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def my_ring(rank, R, q, k, v):
#         kv, so_far = torch.stack([k, v]), None
#         for step in range(R):
#             if step < R - 1:
#                 coming, requests = pass_on(kv, rank, R)
#             part = partial(q, *kv)
#             so_far = merge(so_far, part) if so_far else part
#             if step < R - 1:
#                 finish(requests)
#                 kv = coming
#         m, z, u = so_far
#         return u / z
#
# </details>
#
# ## How long does it take?
#
# A rank computes for c seconds in one step, and a message takes t seconds. The loop waits *after* computing, so
# both happen at the same time. If the loop waited first, the two times would add up:
#
# $$T = R\,c + (R - 1) \max(0,\ t - c), \qquad \text{wait first: } T = R\,c + (R - 1)\,t$$
#
# The next cell adds three things to the loop. It can wait first. It names its work for the timeline. And it
# returns $m + \log z$ for the backward pass.


# %%
def ring_forward(rank, R, q, k, v, wait_first=False):
    """Attention of this rank's queries over all keys; and m + log z, which backward will need."""
    kv, so_far = torch.stack([k, v]), None
    for step in range(R):
        coming, requests = pass_on(kv, rank, R) if step < R - 1 else (kv, [])
        if wait_first:
            finish(requests)
        with simlib.span("K", of=(rank - step) % R):
            part = partial(q, *kv)
            so_far = merge(so_far, part) if so_far else part
        if not wait_first:
            finish(requests)
        kv = coming
    m, z, u = so_far
    return u / z, m + z.log()


def forward(rank, R, S, wait_first=False):
    return ring_forward(rank, R, *(cut(x, rank, R) for x in sequence(S)), wait_first)[0]


# %% [markdown]
# With S = 480 and 4 ranks, c is 0.737 ms. At 10 Gbit/s with a latency of 30 us, t is 0.128 ms. How many times as
# long does the loop take if it waits first?

# %%
longer = None  # wait first: how many times as long?
c = 4 * H * (S / 4) ** 2 * DIM / FLOPS
t = LINK.latency_s + 2 * S // 4 * H * DIM * 4 / LINK.bandwidth_Bps
run = simlib.run(forward, 4, (S,))
is_equal = torch.allclose(torch.cat(run.results, dim=1), attention(*sequence(S)), atol=1e-6)
print("real processes: equal to one process:", is_equal)
late = simlib.simulate(forward, 4, (S, True), cluster=CLUSTER)
ring = simlib.simulate(forward, 4, (S,), cluster=CLUSTER)
print(f"wait after: {ring.time_s * 1e3:.3f} ms, residual {ring.time_s - 4 * c:.0e}")
print(f"wait first: {late.time_s * 1e3:.3f} ms, residual {late.time_s - 4 * c - 3 * t:.0e}")
simlib.guess(longer, late.time_s / ring.time_s, within=0.02)
ring.timeline()

# %% [markdown]
# In the picture, K2 is the work with the keys of rank 2. An arrow ends where the receiver waits for the
# message, not where the message arrives. Each message travels while its sender computes, and no rank waits.
# So messages cost no time, as long as $t \le c$. In each step a rank computes $4 H (S/R)^2 d$ operations and
# sends $8 H (S/R)\, d$ bytes. Computing grows with the square of the length, and messages grow with the
# length. So in longer sequences it is easier to hide messages.
#
# ## Backward, step by step
#
# We write $\partial x$ for $\partial L / \partial x$, the gradient of the loss L. We know $g_i = \partial o_i$,
# the gradient of the result.
#
# **Step 1: values and weights.** Because $o_i = \sum_j p_{ij} v_j$, the gradients are
#
# $$\partial v_j = \sum_i p_{ij}\, g_i, \qquad \partial p_{ij} = g_i \cdot v_j$$
#
# **Step 2: one score changes all weights of its query,** because these weights sum up to 1. If $s_{ij}$ grows a
# little, $p_{ij}$ grows, and the other weights shrink in proportion to their sizes:
#
# $$\frac{\partial p_{ij}}{\partial s_{ij}} = p_{ij}\,(1 - p_{ij}), \qquad
# \frac{\partial p_{il}}{\partial s_{ij}} = -p_{ij}\, p_{il} \quad (l \ne j)$$
#
# **Step 3: the chain rule** adds up the effects of $s_{ij}$ through all weights of the query:
#
# $$\partial s_{ij} = \sum_l \partial p_{il}\, \frac{\partial p_{il}}{\partial s_{ij}}
# = p_{ij} \Big(\partial p_{ij} - \sum_l p_{il}\, \partial p_{il}\Big)$$
#
# **Step 4: we know the sum over all keys already.** Put in $\partial p_{il} = g_i \cdot v_l$, and take $g_i$ out
# of the sum:
#
# $$\sum_l p_{il}\, (g_i \cdot v_l) = g_i \cdot \sum_l p_{il}\, v_l = g_i \cdot o_i
# \quad\Rightarrow\quad \partial s_{ij} = p_{ij}\,(g_i \cdot v_j - g_i \cdot o_i)$$
#
# Step 4 makes the ring possible: the rank of query i has both $g_i$ and $o_i$, so it needs no other keys for
# $\partial s_{ij}$.
#
# **Step 5: queries and keys.** Because $s_{ij} = q_i \cdot k_j / \sqrt d$, the gradients are
#
# $$\partial q_i = \sum_j \frac{\partial s_{ij}\, k_j}{\sqrt d}, \qquad
# \partial k_j = \sum_i \frac{\partial s_{ij}\, q_i}{\sqrt d}$$
#
# The picture of all weights shows which sums stay on a rank and which sums travel.

# %%
labs.draw_weights(4)

# %% [markdown]
# $\partial q_i$ is a sum along a row, so it stays on the rank of the query. $\partial k_j$ and $\partial v_j$
# are sums along a column, over *all* queries. So these sums travel one step behind their keys, and each rank
# adds its part. In each pass keys and values need R - 1 messages. Their gradients need R messages, because
# they have to come back to the rank of their keys. We make the weights again from the $m + \log z$ of
# `ring_forward`: $p_{ij} = e^{s_{ij} - (m_i + \log z_i)}$.


# %%
def ring_backward(rank, R, q, k, v, out, log_sum, g):
    """The gradients of q, k and v, of which the last two come in one tensor."""
    kv, dq, arriving, behind = torch.stack([k, v]), 0, 0, []
    g_out = (g * out).sum(-1, keepdim=True)
    for step in range(R):
        coming, requests = pass_on(kv, rank, R) if step < R - 1 else (kv, [])
        k, v = kv
        p = (scores(q, k) - log_sum).exp()
        ds = p * (g @ v.mT - g_out) / DIM**0.5
        dq = dq + ds @ k
        dkv = torch.stack([ds.mT @ q, p.mT @ g])
        finish(behind)
        arriving, behind = pass_on(dkv + arriving, rank, R)
        finish(requests)
        kv = coming
    finish(behind)
    return dq, arriving


# %% [markdown]
# The next cell first compares steps 1 to 4 with autograd. How many messages does one of 4 ranks send in both
# passes together?

# %%
count = None  # messages of a rank on 4 ranks


def forward_and_backward(rank, R, S):
    q, k, v = (cut(x, rank, R) for x in sequence(S))
    out, log_sum = ring_forward(rank, R, q, k, v)
    dq, dkv = ring_backward(rank, R, q, k, v, out, log_sum, 2 * out)
    return torch.stack([out, dq, *dkv])  # for the loss sum(out ** 2)


def in_one_process(S):
    q, k, v = (x.requires_grad_() for x in sequence(S))
    out = attention(q, k, v)
    return torch.stack([out.detach(), *torch.autograd.grad((out**2).sum(), (q, k, v))])


s, g = scores(q, k).requires_grad_(), torch.ones_like(q).cumsum(-1)  # float64; any g
p = s.softmax(-1)
ds = p * (g @ v.mT - (g * (p @ v)).sum(-1, keepdim=True))
error = (ds - torch.autograd.grad(p @ v, s, g)[0]).abs().max().item()
print("steps 1 to 4: residual below 1e-12:", error < 1e-12)
for R in (2, 3, 4):
    run = simlib.run(forward_and_backward, R, (S,))
    is_equal = torch.allclose(torch.cat(run.results, dim=2), in_one_process(S), atol=1e-5)
    print(f"{R} ranks: right to 1e-5: {is_equal};", end="")
    print(f" {run.messages[0]} messages, {run.bytes_sent[0] * R / (4 * S * H * DIM):.0f} n bytes")
simlib.guess(count, run.messages[0])

# %% [markdown]
# The result and the gradients of q, k and v are right. A rank sends $3R - 2$ messages: $R - 1$ in the forward
# pass, then $R - 1$ with keys and values, and R with their gradients. A tensor of a rank has $n = 4 H (S/R)\, d$
# bytes, and each message has two tensors.
#
# ## Exit ticket
#
# 1. S doubles, and R stays the same. What happens to c and t?
# 2. Part A has m = 0 and z = 2. Part B has m = 5 and z = 1. Which part decides the result?
# 3. Why can a rank compute $\partial s_{ij}$ before it has seen all keys again?
#
# <details><summary>Answers</summary>
#
# 1. c becomes 4 times as long, and t becomes about twice as long. So messages hide more easily.
# 2. Part B. The merge multiplies part A by $e^{-5}$, about 0.0067. So A has a weight of 2 x 0.0067, and B has a
#    weight of 1.
# 3. The sum over all keys is $g_i \cdot o_i$. The rank has both vectors when backward begins.
#
# </details>
#
# [Exercises 18](../exercises/18_long_sequences_and_experts.ipynb): in the first task you merge the attention
# results of many ranks.
#
# **Next:** [masks and heads](18_masks_and_heads.ipynb). With a causal mask a query uses only earlier keys. This
# mask makes most ranks idle, and another cut fixes that.
#
# ## Appendix: merging many parts, and two other ways
#
# We merge many parts in double precision, and try two ways that look simpler. The first takes the mean of
# the parts' results. The second leaves out m, and we give it scores that are 1,000 times as large. Which of the
# three ways are right?

# %%
right = None  # "all", "merging", "merging and the mean" or "merging and no m"
full = attention(q, k, v)
for n in (2, 5, 48):
    parts = list(zip(k.chunk(n, dim=1), v.chunk(n, dim=1), strict=True))
    _, z, u = functools.reduce(merge, (partial(q, *part) for part in parts))
    off = (sum(attention(q, *part) for part in parts) / n - full).abs().max()
    is_equal = (u / z - full).abs().max().item() < 1e-14
    print(f"{n:2} parts: residual below 1e-14: {is_equal}; mean of the parts: error {off:.2f}")
e = scores(1000 * q, k).exp()
without = e @ v / e.sum(-1, keepdim=True)
_, z, u = partial(1000 * q, k, v)
print(f"large scores: without m {without.isnan().float().mean():.0%} are nan;", end="")
print(f" with m {(u / z).isnan().float().mean():.0%}")
simlib.guess(right, "merging", of=("all", "merging", "merging and the mean", "merging and no m"))

# %% [markdown]
# Merging is exact. The mean would be right only if $e^m z$ were equal in all parts. Without m we save
# nothing, and $e^s$ becomes infinite for large scores.
