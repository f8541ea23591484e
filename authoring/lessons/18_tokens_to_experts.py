# %% [markdown]
# # 18 Tokens to experts
#
# This is the third part of lesson 18. You need the all_to_all of [lesson 04](04_collectives.ipynb) and the
# gradients across ranks of [lesson 10](10_splitting_the_model.ipynb), but not the first two parts. The largest
# models of today have many **experts**, and each token uses only a few. In this part (60 minutes) you will
#
# - see how equal splits give wrong results without an error,
# - send tokens to their experts and back,
# - find the gradients that need an all_reduce, and those that are R times too large,
# - limit the work of an expert by dropping tokens, or balance the experts,
# - compare the five ways to cut a training: dp, tp, pp, cp, ep.
#
# Letters: **E** experts, **R** ranks. The modelled device does 10 Gflop/s, and counts only products of matrices.

# %%
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import simlib
from simlib import labs

FLOPS = 10e9  # operations per second
CLUSTER = simlib.clusters.ethernet_10g(4, device=simlib.Device(flops_per_s=FLOPS))

# %% [markdown]
# ## A layer of experts
#
# A **mixture of experts** replaces one layer by E layers of the same size, the experts. A **router**, a small
# matrix W, chooses an expert for each token. So the layer has E times the parameters, but a token costs hardly
# more operations. We choose one expert for each token, as Switch does (arXiv 2101.03961):
#
# $$y = x + p_e(x)\, \text{expert}_e(x), \qquad p = \text{softmax}(x W), \qquad e = \arg\max_i p_i$$
#
# The result is multiplied by $p_e$ so that the router gets a gradient.
#
# Most models in use today are **top-k**: a token goes to its k best experts, with k from 2 to 8, and $p_e$ is
# divided by the sum of the k chosen probabilities. Mixtral takes 2 of 8 (arXiv 2401.04088), and DeepSeek-V3 takes
# 8 of 256, plus one expert for all tokens (arXiv 2412.19437). The [fourth part](18_top_choices_of_experts.ipynb)
# is about top-k.
#
# `dense` is the layer in one process. We have 960 tokens and four experts, so an expert gets 240 tokens on
# average.

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


print("tokens per expert:", route(tokens, router)[1].bincount(minlength=E).tolist())

# %% [markdown]
# Half of the tokens choose expert 1. We come back to that. With four ranks, rank r holds expert r and 240 tokens.
# Experts stay, and tokens travel.
#
# ## Wrong way: equal splits
#
# Each rank sorts its tokens by expert and calls `all_to_all_single`, which cuts a tensor into R equal parts. The
# experts compute, and a second call brings the results back. The second run passes the true **splits**, the number
# of rows for each rank, but only for sending. Which run raises an error? The cell is meant to fail, and Run All
# continues.


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


raises = None  # "the first", "the second", "both" or "none"
whole = dense(tokens, router, [expert(e) for e in range(E)]).detach()
wrong = torch.cat(simlib.run(equal_splits, 4).results)
print(f"no error; tokens with a wrong result: {(wrong - whole).abs().amax(1).gt(1e-4).sum()}")
simlib.guess(raises, "the second", of=("the first", "the second", "both", "none"))
simlib.simulate(equal_splits, 4, (True,))

# %% [markdown]
# The first run raises no error, but its result is wrong. Every rank sent equal quarters, whatever the router had
# chosen. So 423 tokens went through a wrong expert. The second run raises an error, because a sender and a
# receiver must agree on the size of each part.
#
# ## First the counts, then the tokens
#
# A receiver cannot know how many tokens will come. So the ranks exchange **counts** first, in a small all_to_all.
# `counts[s, e]` says how many of my tokens go to expert e of rank s. After the all_to_all, `theirs[s, e]` says how
# many tokens rank s sends to my expert e. Here are five tokens of each rank on their way:

# %%
labs.draw_experts([route(part[:5], router)[1].tolist() for part in tokens.chunk(4)])

# %% [markdown]
# `Exchange` sends rows with unequal splits. As in lesson 10, autograd cannot follow a tensor to another rank. So
# `Exchange` has its own backward: it exchanges the gradients, with the splits swapped.
#
# **Now you write it:** make the two lists that `Exchange` needs. How many rows does this rank send to each rank,
# and how many does it receive from each?


# %%
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received, group=None):
        ctx.splits = received, sent, group
        y = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), received, sent, group=group)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.splits), None, None, None


def my_splits(counts, theirs):
    return None  # two lists of R numbers: sent, received


counts, theirs = torch.tensor([[3, 1], [0, 2]]), torch.tensor([[3, 1], [4, 1]])
mine = my_splits(counts, theirs)
is_right = mine is not None and [*map(list, mine)] == [[4, 2], [4, 5]]
print("your splits:", "right" if is_right else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def my_splits(counts, theirs):
#         return counts.sum(1).tolist(), theirs.sum(1).tolist()
#
# </details>
#
# ## To the experts and back
#
# **Now you write it:** write the whole layer on the ranks. A rank has its tokens `x`, the probability `p` and the
# expert `choice` of each token, and the list `experts` of the E/R experts that it holds. There are six steps:
#
# 1. Sort the tokens by expert: `choice.argsort(stable=True)` is the order.
# 2. Count the tokens for each expert, as a table of R rows. Exchange the counts by `swap`.
# 3. Send the sorted tokens by `Exchange`.
# 4. Find out which expert each arrived row is for. Rows arrive by rank, and within a rank by expert. Make a tensor
#    `e` of the experts' numbers in that order, one for each entry of `theirs`. Then
#    `e.repeat_interleave(theirs.flatten())` has one number for each row.
# 5. Let each expert compute its rows, and send the results back with the splits swapped.
# 6. Undo the sort, multiply by p and add x.


# %%
def swap(x, group=None):
    """all_to_all of the parts x[0], x[1], ...: part s goes to rank s."""
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x.contiguous(), group=group)
    return received


def my_layer(rank, R, x, p, choice, experts):
    return None  # y of this rank's tokens


def experts_of(rank, R):
    return [expert(e) for e in range(rank * E // R, (rank + 1) * E // R)]


def in_ranks(rank, R):
    x = tokens.chunk(R)[rank]
    return my_layer(rank, R, x, *route(x, router), experts_of(rank, R))


for R in (1, 2, 4):
    ys = simlib.simulate(in_ranks, R).results
    is_right = ys[0] is not None and torch.allclose(torch.cat(ys), whole, atol=1e-4)
    print(f"R = {R}:", "right" if is_right else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def my_layer(rank, R, x, p, choice, experts):
#         order = choice.argsort(stable=True)
#         counts = choice.bincount(minlength=E).view(R, -1)
#         theirs = swap(counts)
#         sent, received = counts.sum(1).tolist(), theirs.sum(1).tolist()
#         arrived = Exchange.apply(x[order], sent, received)
#         whose = torch.arange(E // R).repeat(R).repeat_interleave(theirs.flatten())
#         results = torch.empty_like(arrived)
#         for e, module in enumerate(experts):
#             results[whose == e] = module(arrived[whose == e])
#         back = Exchange.apply(results, received, sent)
#         return x + p[:, None] * back[order.argsort()]
#
# </details>
#
# ## Is the backward pass right, too?
#
# Here is the same layer, with a `group` that we need later. We compare all gradients with those of one process.
# The loss is the sum of $y^2$ over all tokens. How many all_to_alls does a rank call, forward and backward
# together?


# %%
def layer(rank, R, x, p, choice, experts, group=None):
    """y of this rank's tokens; experts are those of this rank."""
    order = choice.argsort(stable=True)
    counts = choice.bincount(minlength=E).view(R, -1)
    theirs = swap(counts, group)
    sent, received = counts.sum(1).tolist(), theirs.sum(1).tolist()
    arrived = Exchange.apply(x[order], sent, received, group)
    whose = torch.arange(E // R).repeat(R).repeat_interleave(theirs.flatten())
    results = torch.empty_like(arrived)
    for e, module in enumerate(experts):
        results[whose == e] = module(arrived[whose == e])
    back = Exchange.apply(results, received, sent, group)
    return x + p[:, None] * back[order.argsort()]


def y_and_gradients(x, router, experts, mixture):
    """y; the gradients of sum(y ** 2) for x, the router, and each parameter of the experts."""
    x, router = (tensor.clone().requires_grad_() for tensor in (x, router))
    y = mixture(x, router, experts)
    parameters = [weight for module in experts for weight in module.parameters()]
    return [y.detach(), *torch.autograd.grad((y**2).sum(), [x, router, *parameters])]


# %%
calls = None  # how many all_to_alls?


def of_rank(rank, R):
    def over_ranks(x, router, experts):
        return layer(rank, R, x, *route(x, router), experts)

    return y_and_gradients(tokens.chunk(R)[rank], router, experts_of(rank, R), over_ranks)


wanted = y_and_gradients(tokens, router, experts_of(0, 1), dense)
for R in (1, 2, 4):
    run = simlib.run(of_rank, R)
    y, dx, drouter = zip(*(result[:3] for result in run.results), strict=True)
    of_experts = [gradient for result in run.results for gradient in result[3:]]
    both = zip([torch.cat(y), torch.cat(dx), sum(drouter), *of_experts], wanted, strict=True)
    right = all((ours - one).abs().max() < 1e-5 * one.abs().max() for ours, one in both)
    print(f"R = {R}: {len(run.trace.collectives)} all_to_alls; y, gradients right: {right}")
simlib.guess(calls, len(run.trace.collectives))

# %% [markdown]
# A rank calls five. Three are forward: for the counts, the tokens and the results. Two are backward: for the
# gradients of results and tokens. The gradient of the *router* is the sum over all ranks, so it needs an
# all_reduce, as in data parallelism. The gradients of the *experts* are complete, because an expert has seen the
# tokens of all ranks.
#
# ## Gradients of experts: two traps
#
# The experts' gradients are right if the loss is a sum over all tokens, and if each expert exists once. Real
# training differs:
#
# - **The loss is a mean.** Each rank takes the mean over its own tokens. In data parallelism the all_reduce with
#   AVG divides by R. But nothing divides the gradient of an expert, which adds up R means.
# - **Experts have replicas.** There are dp data-parallel ranks. Each group of ep ranks shares one set of experts,
#   so there are dp / ep sets. A replica of an expert sees only the tokens of its own set. So gradients must be
#   summed over the replicas.
#
# The next cell has four ranks, and the mean as the loss. With ep = 4 there is one set of experts. With ep = 2
# ranks 2 and 3 have a replica of the experts of ranks 0 and 1. How many times too large is the gradient of an
# expert with ep = 4? "Off by" is the share of a gradient that points in another direction.

# %%
times = None  # ep = 4: how many times too large?


def mean_loss(rank, R, ep):
    mesh = init_device_mesh("cpu", (R // ep, ep), mesh_dim_names=("replicas", "ep"))
    place, x = mesh["ep"].get_local_rank(), tokens.chunk(R)[rank]
    experts = experts_of(place, ep)
    y = layer(place, ep, x, *route(x, router), experts, mesh["ep"].get_group())
    y.square().mean().backward()  # the mean over this rank's tokens
    gradient = experts[0][0].weight.grad
    own = gradient.clone()
    dist.all_reduce(gradient, group=mesh["replicas"].get_group())
    return own, gradient  # of the first expert that this rank holds


one = y_and_gradients(tokens, router, experts_of(0, 1), dense)[3] / tokens.numel()  # the mean
for ep in (4, 2):
    own, summed = simlib.run(mean_loss, 4, (ep,)).results[0]
    for name, g in (("own", own), ("sum of replicas", summed)):
        share = (g * one).sum() / one.square().sum()
        off = (g - share * one).norm() / one.norm()
        print(f"ep = {ep}, {name:15}: {share:.2f} times that of one process, off by {off:.2f}")
simlib.guess(times, 4)

# %% [markdown]
# With ep = 4 the gradient has the right direction, but is R = 4 times too large. With ep = 2 the gradient of one
# replica also has another direction, because half of the tokens are missing. The sum over the replicas is again R
# times the gradient of one process. So if the loss is a mean, **sum the gradients over the replicas of the expert,
# then divide by R, the number of data-parallel ranks.** If you do not divide, experts learn with R times the
# learning rate, and no error is raised. ([Question 20](../docs/questions.md) is about this trap.)
#
# ## Capacity and dropped tokens
#
# GShard (arXiv 2006.16668) and Switch give each expert a **capacity**: it takes at most $C = \lceil f\, n / E
# \rceil$ of the n tokens of each rank, and you choose f. Tokens above the capacity are dropped: they skip the
# layer, and $y = x$. A capacity limits the work of an expert, and trades quality for time. It also allows fixed
# shapes: each rank sends exactly C rows to each expert, some of them zeros. Then no counts are needed. The
# appendix counts the dropped tokens for five values of f. You may skip it.
#
# ## Load balance and stragglers
#
# Without a capacity all ranks wait for the fullest expert. Our four have 129, 490, 274 and 67 tokens. For how many
# per cent of the time does a rank not compute, on average?

# %%
idle = None  # how many per cent of the time?


def timed_layer(rank, R, bias):
    x = tokens.chunk(R)[rank]
    probabilities = (x @ router).softmax(-1)
    choice = (x @ router + bias).argmax(-1)  # the bias chooses, and does nothing else
    p = probabilities.gather(1, choice[:, None])[:, 0]
    layer(rank, R, x, p, choice, experts_of(rank, R))


unbalanced = simlib.simulate(timed_layer, 4, (torch.zeros(E),), cluster=CLUSTER)
loads = route(tokens, router)[1].bincount(minlength=E).double()
by_hand = loads * 4 * WIDTH * HIDDEN + 2 * len(tokens) / 4 * WIDTH * E * 2  # router: made twice
found = unbalanced.states.computing_s
residual_s = abs(found - by_hand.numpy() / FLOPS).max()
print(f"computing, in us: {(found * 1e6).round(1)}, largest residual {residual_s * 1e6:.6f}")
simlib.guess(idle, 100 * (1 - found.mean() / unbalanced.time_s), within=0.1)
unbalanced.timeline()

# %% [markdown]
# On average a rank does not compute for 54 % of the time. Rank 1 has 2.04 times the mean of 240 tokens. So its
# expert computes 2.04 times as long, and the others wait for its results. The data make rank 1 a straggler (lesson
# 04).
#
# Switch balances the loads by a term in the loss, the **auxiliary loss**. It is large if experts with many tokens
# also have a high mean probability. Another way adds a **bias** to the score of each expert, for the choice only.
# Each step raises the bias of an expert if its load is below the mean, and lowers it if the load is above (Wang et
# al., arXiv 2408.15664; DeepSeek-V3 does so). The bias does not change any gradient. How many tokens will the
# fullest expert have after 60 steps?

# %%
largest = None  # tokens of the fullest expert; the mean is 240


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
simlib.guess(largest, loads[60].max(), within=0.05)
first, chosen = (tokens @ router).argmax(-1), (tokens @ router + bias).argmax(-1)
print(f"tokens whose expert is not their first choice: {(first != chosen).sum()}")
balanced = simlib.simulate(timed_layer, 4, (bias,), cluster=CLUSTER)
print(f"{unbalanced.time_s * 1e3:.2f} ms before, {balanced.time_s * 1e3:.2f} ms after")

# %% [markdown]
# The balanced layer takes about half the time, and drops no token. It costs one all_reduce of E numbers in each
# step. And 347 tokens, 36 % of all, get an expert that the router likes less. The loads swing between two
# states, because each step of the bias has the same size. The unbalanced layer took only 1.95 times as long,
# because messages take the same time in both.
#
# ## Five dimensions
#
# The largest models of today are cut in five directions at once. N is the bytes of the parameters that a rank
# trains, and n the bytes of its activations between two layers.
#
# | | cuts | every rank keeps whole | sends | when | lesson |
# |---|---|---|---|---|---|
# | **dp** data | the examples | the model | gradients: all_reduce of N | once per step | 06 to 09 |
# | **tp** tensor | each matrix | the examples | activations: all_reduce of n | twice forward, twice backward, in each transformer layer | 12 |
# | **pp** pipeline | the layers | the examples | activations: send n to the next stage | per micro-batch and boundary | 10, 11 |
# | **cp** context | the sequence | the model | keys and values round a ring, or all_to_all of heads | per attention layer | 18 |
# | **ep** expert | the experts | all but the experts | tokens: all_to_all there and back | per expert layer | 18 |
# | | | | gradients of experts: all_reduce among the dp / ep replicas, none if ep = dp | once per step | 18 |
#
# tp sends often, so it goes inside the node. pp, dp and a ring of cp send rarely or hide their messages, so they
# go between nodes. The all_to_all of ep gets the fastest links that are left. The numbers of ranks multiply: R =
# dp x tp x pp x cp. Experts need no ranks of their own, because the ranks of dp hold them. A rank of cp has seen
# only a part of the positions. So gradients are summed over cp as they are over dp.
#
# ## Your turn
#
# [Exercises 18](../exercises/18_long_sequences_and_experts.ipynb) are about one query over keys on many ranks, and
# experts within a budget of bytes.
#
# ## Exit ticket
#
# 1. Which of the three exchanges of the forward pass could you leave out if all splits were equal?
# 2. With f = 1 the router sends all tokens to one of 4 experts. How many tokens skip the layer?
# 3. With dp = 16 and ep = 4, each rank's loss is the mean over its tokens. What do you do with an expert's
#    gradient?
#
# <details><summary>Answers</summary>
#
# 1. You could leave out the exchange of the counts.
# 2. Three quarters skip it, because the expert takes n/4 of the n tokens of each rank.
# 3. Sum it over the 4 replicas of the expert, then divide by 16.
#
# </details>
#
# **Next:** [top-k experts and their replicas](18_top_choices_of_experts.ipynb). A token goes to several experts, and an
# expert exists several times.
#
# ## Appendix: how many tokens a capacity drops
#
# With f = 1, how many per cent of the tokens are dropped?

# %%
lost = None  # f = 1: how many per cent are dropped?


def capped(rank, R, factor):
    x = tokens.chunk(R)[rank]
    p, choice = route(x, router)
    of_expert = nn.functional.one_hot(choice, E)
    place = (of_expert.cumsum(0) * of_expert).sum(1)  # 1 for the first token of an expert
    kept = place <= math.ceil(factor * len(x) / E)
    y = x.clone()
    y[kept] = layer(rank, R, x[kept], p[kept], choice[kept], experts_of(rank, R)).detach()
    return (~kept).sum().item(), (y == x).all(1).sum().item()


shares = {}
for factor in (1, 1.25, 1.5, 2, 4):
    run = simlib.simulate(capped, 4, (factor,), cluster=CLUSTER)
    dropped, unchanged = map(sum, zip(*run.results, strict=True))
    shares[factor] = 100 * dropped / len(tokens)
    print(f"f = {factor:4}: {shares[factor]:3.0f} % dropped, {unchanged} rows", end="")
    print(f" unchanged; layer {run.time_s * 1e3:.2f} ms")
simlib.guess(lost, shares[1], within=0.1)

# %% [markdown]
# With f = 1 the layer is nearly as fast as the balanced layer, but the balanced layer drops no token.
