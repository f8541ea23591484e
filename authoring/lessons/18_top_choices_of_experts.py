# %% [markdown]
# # 18 Top-k experts and their replicas
#
# This is the fourth part of lesson 18. You need the [third part](18_tokens_to_experts.ipynb) and the mesh of
# [lesson 12](12_two_axes_at_once.ipynb). In most models with experts a token goes to several of them. In large jobs
# each expert exists several times. In this part (50 minutes) you will
#
# - send each token to its k best experts, and count the bytes,
# - train experts that have replicas,
# - find out which ranks must sum a gradient, and by which number they must divide it.
#
# Letters: **E** experts, **k** experts for each token, **R** ranks. **ep** ranks together hold each expert once.

# %%
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import simlib

E, WIDTH, HIDDEN = 8, 64, 256
torch.manual_seed(18)
tokens = torch.randn(960, WIDTH) + torch.randn(WIDTH) / 2

# %% [markdown]
# ## k experts for each token
#
# The router gives each token a **score** for each expert, $s_e$. The token goes to the k experts with the highest
# scores. Their results are added up with weights:
#
# $$y = x + \sum_{e\ \in\ \text{the k best}} w_e\, \text{expert}_e(x)$$
#
# Models make the weights $w_e$ differently:
#
# | model | experts | k | weights |
# |---|---|---|---|
# | Mixtral 8x7B (arXiv 2401.04088) | 8 | 2 | A: softmax over the k chosen scores |
# | OLMoE (arXiv 2409.02060) | 64 | 8 | B: softmax over all scores, [used as it is](https://github.com/huggingface/transformers/blob/main/src/transformers/models/olmoe/configuration_olmoe.py) |
# | Qwen3 30B-A3B (arXiv 2505.09388) | 128 | 8 | C: softmax over all scores, then divided by the sum of the k chosen |
# | DeepSeek-V3 (arXiv 2412.19437) | 256, and 1 for all tokens | 8 | sigmoid of each score, then divided by the sum of the k chosen, times 2.5 |
#
# Two of the ways A, B and C always give the same weights. Which two?


# %%
same = None  # "A and B", "A and C" or "B and C"


def route(scores, k=2):
    """The weights of the chosen experts, and their numbers: two tensors of shape (tokens, k)."""
    best, chosen = scores.topk(k)
    return best.softmax(-1), chosen  # way A


scores = tokens @ torch.randn(WIDTH, E) / 8
(a, chosen), every = route(scores), scores.softmax(-1)
b = every.gather(1, chosen)
c = b / b.sum(1, keepdim=True)
differences = {"A and B": a - b, "A and C": a - c, "B and C": b - c}
largest = {pair: difference.abs().max() for pair, difference in differences.items()}
print("largest differences:", *(f"{pair} {size:.7f};" for pair, size in largest.items()))
simlib.guess(same, min(largest, key=largest.get), of=list(largest))

# %% [markdown]
# A and C are the same. The softmax over all scores divides each exponential by the sum over all experts. C then divides
# such a probability by the sum of k of them. So the sum over all experts cancels, and only the k chosen exponentials
# remain, as in A. In way B the weights add up to less than 1, so the experts add less to x. If you load a trained model
# and take the wrong way, no error is raised. We use way A. It needs k of at least 2: for k = 1 the weight
# is always 1, and the router gets no gradient.
#
# The picture shows two tokens of each of four ranks. Rank r holds experts 2r and 2r + 1. Each token has two arrows. A
# thick arrow means a large weight.

# %%
COLORS = "#0072B2", "#E69F00", "#009E73", "#CC79A7"  # of ranks 0 to 3
figure, axes = plt.subplots(figsize=(8, 2.7), layout="constrained")
for at in range(8):
    token, color = 120 * at, COLORS[at // 2]
    for e, weight in zip(chosen[token].tolist(), a[token].tolist(), strict=True):
        look = {"arrowstyle": "-|>", "color": color, "lw": 5 * weight}
        axes.annotate("", (e, 0.2), (at, 0.9), arrowprops=look)
    looks = {"ha": "center", "bbox": {"boxstyle": "round", "fc": "none", "ec": color, "lw": 2}}
    axes.text(at, 1, f"rank {at // 2}\ntoken {token}", **looks)
    axes.text(at, -0.1, f"expert {at}\nrank {at // 2}", **looks)
axes.set(xlim=(-0.5, 7.5), ylim=(-0.15, 1.3)), axes.axis("off")
figure.words = f"Eight tokens go to two experts each: {chosen[::120].tolist()}."
plt.show()

# %% [markdown]
# ## The model in one process
#
# Our model has a dense layer, a router and the experts. `Model(place, ep)` keeps only the experts of rank `place` among
# `ep` ranks, and `Model()` keeps all. `forward` gets a function `layer`, which computes the sum over the experts in y. In
# one process we use the function `everyone`: every expert computes every token, and we pick the results of the chosen
# experts. That wastes work, but you can easily see that it is right.


# %%
class Model(nn.Module):
    def __init__(self, place=0, ep=1):
        super().__init__()
        torch.manual_seed(18)
        self.dense, self.router = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, E, bias=False)
        self.experts = nn.ModuleDict()
        for e in range(E):
            expert = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))
            if e * ep // E == place:
                self.experts[str(e)] = expert
        for p in self.parameters():
            p.grad = torch.zeros_like(p)  # instead of None

    def forward(self, x, layer, group=None, k=2):
        x = self.dense(x)
        return x + layer(x, *route(self.router(x), k), list(self.experts.values()), group)


def everyone(x, weights, chosen, experts, group=None):
    every = torch.stack([expert(x) for expert in experts], 1)  # (tokens, E, WIDTH)
    return (weights[..., None] * every[torch.arange(len(x))[:, None], chosen]).sum(1)


# %% [markdown]
# ## Wrong way: copies in another order
#
# Now each expert computes only its own tokens. A token needs k = 2 **copies**, one for each choice.
# `chosen.flatten()` lists the choices: choice i belongs to token i // k. `x.repeat(2, 1)` makes two copies of x. The
# program below raises no error. How many of the 960 tokens get the right result?

# %%
right = None  # how many tokens


def by_copies(x, weights, chosen, experts, group=None):
    copies, choices = x.repeat(2, 1), chosen.flatten()
    results = torch.empty_like(copies)
    for e, expert in enumerate(experts):
        results[choices == e] = expert(copies[choices == e])
    return (weights[..., None] * results.unflatten(0, chosen.shape)).sum(1)


model = Model()
whole = model(tokens, everyone).detach()
is_right = (model(tokens, by_copies) - whole).abs().amax(1) < 1e-5
print(f"{is_right.sum()} of {len(tokens)} tokens are right")
simlib.guess(right, is_right.sum())

# %% [markdown]
# No token is right. `x.repeat(2, 1)` lists all tokens, and then all tokens again. But the first two choices are those
# of token 0, and copy 1 is a copy of token 1. So nearly every copy goes to another token's expert. The right copy for
# choice i is `x[i // k]`.
#
# ## Top-k on the ranks
#
# **Now you write it:** the experts' part on R ranks. `Exchange` is that of the third part. `computed` lets each expert
# of this rank compute the rows that have arrived for it.
#
# 1. List the choices, and sort them by expert. Let `order` be the list of their numbers i in the sorted order.
# 2. Count the choices for each expert, as a table: row s is for the `len(experts)` experts of rank s. `Exchange` with the
#    splits 1, 1, ... sends row s to rank s. The table that arrives is `theirs`. Make the two lists of splits from the
#    sums of the rows, as in the third part.
# 3. Send a copy of the token for each choice, in the sorted order. Let the experts compute. Send the results back.
# 4. Undo the sort. Bring the results into the shape (tokens, k, WIDTH).
# 5. Multiply by the weights, and sum over the k choices.


# %%
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received, group):
        ctx.splits = received, sent, group
        y = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), received, sent, group=group)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.splits), None, None, None


def computed(arrived, theirs, experts):
    """theirs[s, e]: how many rows from rank s are for expert e of this rank."""
    whose = torch.arange(len(experts)).repeat(len(theirs)).repeat_interleave(theirs.flatten())
    results = torch.empty_like(arrived)
    for e, expert in enumerate(experts):
        results[whose == e] = expert(arrived[whose == e])
    return results


# %%
def my_layer(x, weights, chosen, experts, group):
    return 0 * x  # yours


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def of_rank(rank, R, layer):
    model = Model(rank, R)
    y = model(tokens.chunk(R)[rank], layer)
    y.square().sum().backward()
    return y.detach(), gradients(model)


def near(ours, one):
    return bool((ours - one).abs().max() < 1e-5 * one.abs().max())


model(tokens, everyone).square().sum().backward()
one, said = gradients(model), ("not yet", "right")
for R in (1, 2, 4):
    ys, found = zip(*simlib.simulate(of_rank, R, (my_layer,)).results, strict=True)
    sums = {n: sum(g[n] for g in found if n in g) for n in one}  # of the ranks that hold it
    is_right = all(near(sums[n], one[n]) for n in one)
    print(f"R = {R}: values {said[near(torch.cat(ys), whole)]}, gradients {said[is_right]}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def my_layer(x, weights, chosen, experts, group):
#         order = chosen.flatten().argsort(stable=True)
#         counts = chosen.flatten().bincount(minlength=E).view(-1, len(experts))
#         ones = [1] * len(counts)
#         theirs = Exchange.apply(counts, ones, ones, group)
#         sent, received = counts.sum(1).tolist(), theirs.sum(1).tolist()
#         arrived = Exchange.apply(x[order // chosen.shape[1]], sent, received, group)
#         back = Exchange.apply(computed(arrived, theirs, experts), received, sent, group)
#         mine = back[order.argsort()].unflatten(0, chosen.shape)
#         return (weights[..., None] * mine).sum(1)
#
# </details>
#
# For any k, a rank calls three all_to_alls in the forward pass.
#
# ## Bytes grow with k
#
# `layer` does the same as the answer. The next cell counts the bytes that travel between four ranks in the forward
# pass. The cell also prints the mean number of ranks that a token goes to. With k = 8 we send eight copies of a token.
# If we sent each rank that needs a token only one copy, how many copies would be enough?

# %%
enough = None  # copies of a token for four ranks, its own rank included


def layer(x, weights, chosen, experts, group):
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=E).view(-1, len(experts))
    theirs = Exchange.apply(counts, [1] * len(counts), [1] * len(counts), group)
    splits = counts.sum(1).tolist(), theirs.sum(1).tolist()
    arrived = Exchange.apply(x[order // chosen.shape[1]], *splits, group)
    back = Exchange.apply(computed(arrived, theirs, experts), *splits[::-1], group)
    return (weights[..., None] * back[order.argsort()].unflatten(0, chosen.shape)).sum(1)


def forward(rank, R, k):
    return Model(rank, R)(tokens.chunk(R)[rank], layer, None, k).detach()


scores, owner = model.router(model.dense(tokens)), torch.arange(4).repeat_interleave(240)
for k in (1, 2, 4, 8):
    run = simlib.simulate(forward, 4, (k,), all_to_all="pairwise", expand=True)
    ranks = route(scores, k)[1] // 2  # of the chosen experts
    by_hand = 2 * 4 * WIDTH * (ranks != owner[:, None]).sum() + 4 * 3 * 2 * 8  # and the counts
    sent = sum(message.nbytes for message in run.wire)
    copies = sum(len(set(row)) for row in ranks.tolist()) / len(tokens)
    print(f"k = {k}: {sent / 1e6:.2f} MB, residual {sent - by_hand}; to {copies:.2f} ranks")
simlib.guess(enough, copies)

# %% [markdown]
# The bytes grow in proportion to k. A choice costs 4 WIDTH bytes there and as many back, if its expert is on another
# rank. The backward pass sends these bytes again. The counts need only 192 bytes: each of 4 ranks sends 2 numbers of 8
# bytes to 3 others.
#
# Four copies would be enough: half of those that we send. DeepSeek-V3 saves copies in this way. A token goes to at most 4
# nodes. It travels once to each node over InfiniBand, and then over NVLink to its experts. A copy has 7,168 numbers, of 1
# byte on the way there and 2 bytes on the way back. So 8 copies of a token need 8 x 7,168 x 3 = 172,032 bytes in each of
# 58 layers. One copy for each of 4 nodes needs half of these bytes on InfiniBand.
#
# ## Full experts drop choices
#
# With a capacity (third part), an expert takes at most $C = \lceil f\, k\, n / E \rceil$ of the k n choices that n
# tokens make. You choose the factor f. If one choice of a token is dropped, the token still has its other choices, and
# the sum in y has one term less.
# [Megatron-Core](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/transformer/transformer_config.py)
# offers two policies: `position` drops the last choices of a full expert, and `probs` drops those with the smallest
# weights. The appendix compares them.
#
# For balancing (third part), an expert's load is the number of choices sent to it. DeepSeek-V3 adds a bias to
# the scores, finds the k best, and makes their weights without the bias (arXiv 2408.15664). It drops no tokens.
#
# ## Experts with replicas
#
# So far, all ranks together held each expert once. In a large job the experts have replicas, and the ranks form a mesh:
#
# - A row is an **ep group**. Its ranks together hold each expert once. Tokens travel inside the row.
# - A column is an **expert-data-parallel group** (edp group). Its ranks hold the same experts, and see different tokens.
#
# Here are 8 ranks with ep = 4:

# %%
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
both, middle = {"arrowstyle": "<->", "lw": 2}, {"ha": "center", "va": "center"}
for rank in range(8):
    row, at = divmod(rank, 4)
    name = f"rank {rank}\ndense, router\nexperts {2 * at}, {2 * at + 1}"
    box = {"boxstyle": "round", "fc": "none", "ec": COLORS[at], "lw": 2}
    axes.text(at, -row, name, bbox=box, **middle)
    if at:
        axes.annotate("", (at - 0.3, -row), (at - 0.7, -row), arrowprops=both)
    if row:
        axes.annotate("", (at, -0.7), (at, -0.3), arrowprops=both | {"color": COLORS[at]})
axes.text(1.5, 0.5, "each row: tokens travel by all_to_all", **middle)
axes.text(-0.65, -0.5, "each column:\ngradients of\nits experts", **middle)
axes.text(1.5, -1.5, "all ranks: gradients of dense and router", **middle)
axes.set(xlim=(-1, 3.4), ylim=(-1.6, 0.6)), axes.axis("off")
figure.words = "2 rows of 4 ranks: tokens travel in rows, experts' gradients in columns."
plt.show()

# %% [markdown]
# ## Three ways that go wrong
#
# The loss of each rank is the mean over its own tokens. Which gradients must be averaged, and over which ranks? Three
# answers look reasonable:
#
# - `dense_only`: an expert has seen the tokens of many ranks, so only the dense layer and the router are averaged.
# - `avg_in_group`: in addition, experts are averaged in their edp group.
# - `avg_everywhere`: all parameters are averaged over all ranks, as DDP does.
#
# The second cell below compares the gradient of expert 0 on rank 0 with that of one process. "Off by" is the length of
# the part that points in another direction. The unit is the length of the right gradient. Ranks 0 and 4 have replicas of
# expert 0, and the cell prints whether their gradients are equal. With `avg_in_group`, how many times too large is the
# gradient of an expert?

# %%
times = None  # avg_in_group: how many times too large?
AVG = dist.ReduceOp.AVG


def dense_only(model, mesh):
    for p in (model.dense.weight, model.dense.bias, model.router.weight):
        dist.all_reduce(p.grad, AVG)


def avg_in_group(model, mesh):
    dense_only(model, mesh)
    for p in model.experts.parameters():
        dist.all_reduce(p.grad, AVG, group=mesh["edp"].get_group())


def avg_everywhere(model, mesh):
    for p in model.parameters():
        dist.all_reduce(p.grad, AVG)


def step(rank, R, ep, sync):
    mesh = init_device_mesh("cpu", (R // ep, ep), mesh_dim_names=("edp", "ep"))
    model = Model(mesh["ep"].get_local_rank(), ep)
    y = model(tokens.chunk(R)[rank], layer, mesh["ep"].get_group())
    y.square().mean().backward()  # the mean over this rank's tokens
    sync(model, mesh)
    return gradients(model)


# %%
model = Model()
model(tokens, everyone).square().mean().backward()
one, name = gradients(model), "experts.0.0.weight"  # the mean over all tokens
for sync in (dense_only, avg_in_group, avg_everywhere):
    run = simlib.simulate(step, 8, (4, sync))
    g = run.results[0][name]
    share = ((g * one[name]).sum() / one[name].square().sum()).item()
    off = (g - share * one[name]).norm() / one[name].norm()
    equal = torch.equal(g, run.results[4][name])
    print(f"{sync.__name__:14}: {share:.2f} times, off by {off:.2f}; replicas equal: {equal}")
    if sync is avg_in_group:
        simlib.guess(times, share)

# %% [markdown]
# - `dense_only`: the replicas on ranks 0 and 4 have different gradients, each from half of the tokens. After one step
#   they are different experts. Each gradient is also about 4 times too large, because it adds up the losses of 4 ranks
#   and nothing divides it.
# - `avg_in_group`: the direction is right, but the gradient is **ep = 4 times too large**. An expert gets tokens from its
#   whole row, so the sum over the group contains the losses of all 8 ranks. AVG divides this sum by only R / ep = 2, and
#   not by 8.
# - `avg_everywhere`: this averages gradients of *different* experts. Rank 0 gets a mix of experts 0, 2, 4 and 6.
#
# The factor ep is a common bug. [DeepSpeed](https://github.com/deepspeedai/DeepSpeed/issues/6545) had it, and in 2026 a
# new part of [Megatron-LM](https://github.com/NVIDIA/Megatron-LM/pull/5956), too. Adam hides this bug. Adam divides each
# gradient by its own typical size, so the factor nearly cancels. But clipping uses the norm of all gradients, and the
# factor makes this norm too large.
#
# **Now you write it:** `my_sync` changes all gradients of `model` to those of one process. The mesh has the dimensions
# `"edp"` and `"ep"`. The cell tests `my_sync` on four meshes.


# %%
def my_sync(model, mesh):
    return None  # yours: change p.grad of all parameters


for R, ep in ((4, 1), (4, 2), (4, 4), (8, 4)):
    run = (simlib.run if R == 4 else simlib.simulate)(step, R, (ep, my_sync))
    is_right = all(near(g, one[n]) for found in run.results for n, g in found.items())
    print(f"R = {R}, ep = {ep}: {said[is_right]}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def my_sync(model, mesh):
#         for name, p in model.named_parameters():
#             group = mesh["edp"].get_group() if "experts" in name else None
#             dist.all_reduce(p.grad, group=group)
#             p.grad /= dist.get_world_size()
#
# </details>
#
# | parameters | replicas | summed over | then divided by |
# |---|---|---|---|
# | dense layer, router | R | all R ranks | R |
# | an expert | R / ep | the R / ep ranks of its edp group | R |
#
# [Megatron-Core](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/distributed/distributed_data_parallel.py)
# divides an expert's gradient by ep, and then averages in the edp group. That is the same.
#
# **Unequal numbers of tokens.** An expert's gradient adds up the losses of several ranks. If each of these losses is
# divided by a different number of tokens, you cannot correct the sum afterwards. So divide *before* the backward pass: the
# loss of a rank is the sum over its tokens, divided by the number of tokens of *all* ranks. Then sum each gradient over
# the ranks that the table names, and divide none.
#
# ## Your turn
#
# Now you can do tasks 3 and 4 of [exercises 18](../exercises/18_long_sequences_and_experts.ipynb). The
# appendices compare two policies, and four values of ep.
#
# ## Exit ticket
#
# 1. A token has the weights 0.7 and 0.3, and its second choice is dropped. What is y?
# 2. R = 64 and ep = 16. The loss of each rank is the mean over its own tokens. A framework averages the gradients of
#    experts in their edp group. How do you correct these gradients?
#
# <details><summary>Answers</summary>
#
# 1. y is x plus 0.7 times the result of the first expert.
# 2. Divide them by ep = 16. AVG has divided their sum by R / ep = 4, but this sum must be divided by 64.
#
# </details>
#
# **Next:** [questions on programs](../docs/questions.md). What do these programs print? Questions 17 to 20 are about
# lesson 18. Then read records of jobs that hang, in [lesson 19](19_hangs_from_records.ipynb).
#
# ## Appendix: how much weight is dropped?
#
# We take f = 1 and the scores of the first cell. `position` drops 17 % of all weight. How many per cent does `probs`
# drop?

# %%
lost = None  # per cent of all weight


def kept(weights, chosen, C, by_weight):
    """Which choices stay: a tensor of True and False of the shape of `chosen`."""
    stays = torch.zeros(chosen.numel(), dtype=torch.bool)
    for e in range(E):
        of_e = (chosen.flatten() == e).nonzero()[:, 0]
        if by_weight:
            of_e = of_e[weights.flatten()[of_e].argsort(descending=True)]
        stays[of_e[:C]] = True
    return stays.view(chosen.shape)


C = 2 * len(tokens) // E
for policy in ("position", "probs"):
    stays = kept(a, chosen, C, policy == "probs")
    share = 100 * a[~stays].sum().item() / len(tokens)
    print(f"{policy:8}: {(~stays).sum()} of {stays.numel()} choices dropped, ", end="")
    print(f"{share:.1f} % of the weight; {(~stays).all(1).sum()} tokens lost both")
simlib.guess(lost, share, within=0.3)

# %% [markdown]
# Both policies drop the same number of choices, because the same experts are full.
#
# ## Appendix: which ep?
#
# Two nodes of four ranks train our model with 3,840 tokens. With a small ep, a rank holds many experts, and their
# gradients travel. With a large ep, tokens travel. Which ep has the fastest step?

# %%
best = None  # 1, 2, 4 or 8


def right_sync(model, mesh):
    for name, p in model.named_parameters():
        dist.all_reduce(p.grad, group=mesh["edp"].get_group() if "experts" in name else None)
        p.grad /= dist.get_world_size()


tokens, found = tokens[:960].repeat(4, 1), {}
NODES = {"inter": simlib.Link(30e-6, 1.25e9), "intra": simlib.Link(5e-6, 50e9)}
cluster = simlib.Cluster(2, 4, **NODES, device=simlib.Device(flops_per_s=1e12))
ways = {"all_to_all": "pairwise", "all_reduce": "ring", "expand": True}
for ep in (1, 2, 4, 8):
    run = simlib.simulate(step, 8, (ep, right_sync), cluster=cluster, **ways)
    found[ep] = run.time_s
    far = sum(m.nbytes for m in run.wire if m.src // 4 != m.dst // 4)
    print(f"ep = {ep}: {E // ep} experts on a rank, {far / 1e6:.2f} MB between nodes, ", end="")
    print(f"{run.time_s * 1e3:.2f} ms")
simlib.guess(best, min(found, key=found.get))

# %% [markdown]
# With ep = 4 a row of the mesh is a node. The tokens stay inside their node, and only gradients travel between nodes.
# With ep = 1 most of the time is latency: 35 parameters have an all_reduce each, with 14 rounds over 8 ranks.
