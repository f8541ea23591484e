# %% [markdown]
# # 06 Synchronous SGD, derived
#
# Four ranks each have a copy of a model, and their own examples. After every step the copies are
# equal to each other, and to the model of **one** process with all the examples. That is
# synchronous stochastic gradient descent (SGD). Four equations prove it. In this lesson (105
# minutes) you will
#
# - walk downhill with all examples, with some and with one, and derive how noisy that is,
# - derive the four equations, and run each in two precisions to see which error is left,
# - break an assumption of each equation, and measure the error that this makes,
# - prove that replicas stay equal, also with momentum and Adam, and make them differ in three ways,
# - measure the noise of the gradient from numbers that the ranks have anyway,
# - test a famous picture: is the loss a bowl?
#
# **Weights** are the numbers $\theta$ that a model learns. The **loss** $\ell(\theta; x)$ says how
# bad the model is on *one* example. The **cost** $L(\theta)$ is the mean loss of many examples, and
# we want it small. Most texts call both of them "loss". Half of the mistakes below come from this
# confusion. We also use two letters. $R$ is the number of ranks. $B$ is no longer a bandwidth, but
# the number of examples that a rank takes per step.
#
# ## Downhill
#
# We fit a line to 64 points, with two weights: slope and intercept. The gradient $\nabla L$ points
# uphill, so a step with learning rate $\eta$ goes the other way: $\theta \leftarrow \theta - \eta
# \nabla L(\theta)$. Three methods differ in the examples that they use for a step. **Gradient
# descent** takes all 64 examples. **SGD** in the strict sense draws one example at random.
# **Mini-batch SGD** draws a few, here 8. Each method makes forty steps. Which method ends at the
# lowest cost? Which uses the fewest examples?

# %%
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import simlib

torch.set_num_threads(1)  # our tensors are tiny: more threads would wait for each other

lowest = None  # who ends lowest: 1, 8 or 64 per step?

noise = torch.Generator().manual_seed(0)
places = torch.linspace(-1, 1, 64)
inputs = torch.stack([places, torch.ones(64)], dim=1)
targets = inputs @ torch.tensor([2.0, 1.0]) + 0.8 * torch.randn(64, generator=noise)


def line_cost(theta):
    return ((inputs @ theta - targets) ** 2).mean()


def line_gradient(theta, batch):
    rows = inputs[batch]
    return 2 * rows.T @ (rows @ theta - targets[batch]) / len(batch)


# %% [markdown]
# The cost of every pair of weights makes a landscape. The next cell draws this landscape twice. The
# left picture shows it in three dimensions, as many articles do. The right picture is a map with
# the paths of the three methods. All three start at the same point.


# %%
def descend(batch_size, steps=40, lr=0.2):
    draw = torch.Generator().manual_seed(3)
    path = [torch.tensor([-1.0, -1.5])]
    for _ in range(steps):
        batch = torch.randperm(64, generator=draw)[:batch_size]
        path.append(path[-1] - lr * line_gradient(path[-1], batch))
    return torch.stack(path)


slopes, intercepts = torch.meshgrid(*[torch.linspace(-2, 4, 61)] * 2, indexing="ij")
grid = torch.stack([slopes, intercepts], dim=-1).reshape(-1, 2)
heights = torch.stack([line_cost(theta) for theta in grid]).reshape(61, 61)
figure = plt.figure(figsize=(9, 3.6), layout="constrained")
bowl = figure.add_subplot(1, 2, 1, projection="3d", elev=48)
bowl.plot_surface(slopes.numpy(), intercepts.numpy(), heights.numpy(), cmap="Blues_r")
bowl.set(xlabel="slope", ylabel="intercept", xticks=(-2, 1, 4), yticks=(-2, 1, 4), title="cost")
axes = figure.add_subplot(1, 2, 2, xlabel="slope", ylabel="intercept")
axes.contour(slopes, intercepts, heights, levels=12, colors="#cccccc", linewidths=0.8)
for size, color in ((1, "#E69F00"), (8, "#009E73"), (64, "#0072B2")):
    path = descend(size)
    axes.plot(*path.T, ".-", ms=3, lw=1, color=color, label=f"{size} per step")
    print(f"{size:2} per step: {40 * size:4} examples, cost {line_cost(path[-1]):.3f}")
simlib.guess(lowest, 64, of=(1, 8, 64))
axes.legend(frameon=False, loc="lower right")
plt.show()

# %% [markdown]
# The left picture shows the bowl of many articles. We return to it below. On the right, steps with
# all 64 examples give a smooth path. Steps with eight examples reach nearly the same place for an
# eighth of the work. Steps with one example jump around the lowest point and never come to rest.
#
# ## How noisy is a mini-batch?
#
# The jumps are noise: a mini-batch only estimates $\nabla L$. Let $g_1 \ldots g_n$ be the gradients
# of the n examples, $\sigma^2 = \frac1n \sum |g_i - \nabla L|^2$, and $G$ the mean of B gradients
# that we draw.
#
# - **Mean.** A draw gives each $g_i$ with chance $1/n$, so on average it gives $\nabla L$. A mean
#   of draws also gives $\nabla L$ on average: $E[G] = \nabla L$. The estimate is *unbiased*.
# - **Variance with replacement** (an example may come twice). The error of $G$ is $1/B$ times the
#   sum of B errors, one for each draw. The square of this sum has B squares and $B(B-1)$ products
#   of two draws' errors. Each square is $\sigma^2$ on average. The draws are independent, so each
#   product is 0 on average. What is left is $\mathrm{Var}\,G = B\sigma^2 / B^2 = \sigma^2 / B$.
# - **Variance without replacement.** Now a product is not 0 on average. We call its average $c$.
#   The errors of all n examples add up to 0, so the square of their sum is 0, too: $n\sigma^2 +
#   n(n-1)\,c = 0$. This gives $c = -\sigma^2/(n-1)$. With it, the B squares and $B(B-1)$ products
#   give $\mathrm{Var}\,G = \frac{\sigma^2}B \cdot \frac{n-B}{n-1}$.
#
# The next cells check this without chance. They take 8 of our 64 examples, and *every* possible
# draw of B of these 8. (`residual` is the length of a difference, relative to the second vector. A
# small residual is printed as a bound, because the last digits differ between CPUs.) Then the cells
# break an assumption: they draw neighbours without replacement, as from unshuffled data. Are the
# mean and the variance of these draws still right?

# %%
import itertools

mean_right, variance = None, None  # neighbours: yes or no? Variance "less", "right" or "more"?


def residual(got, want):
    relative = ((got - want).norm() / want.norm()).item()
    bounds = [bound for bound in (1e-13, 1e-6, 1e-3) if relative < bound]
    return f"below {bounds[0]:g}" if bounds else f"{relative:.1%}"


start, n = torch.tensor([-1.0, -1.5]), 8
few = torch.stack([line_gradient(start, [i]) for i in range(0, 64, 8)]).double()
errors = few - few.mean(dim=0)
sigma2 = errors.square().sum(dim=1).mean()
c = torch.stack([errors[i] @ errors[j] for i, j in itertools.permutations(range(n), 2)]).mean()
print("average product: residual", residual(c, -sigma2 / (n - 1)))

# %%
for B in (2, 4):
    draws = {
        "with": (itertools.product(range(n), repeat=B), 1),
        "without": (itertools.combinations(range(n), B), (n - B) / (n - 1)),
        "neighbours": (
            [[(i + k) % n for k in range(B)] for i in range(n)],
            (n - B) / (n - 1),
        ),
    }
    for kind, (batches, factor) in draws.items():
        G = few[torch.tensor(list(batches))].mean(dim=1)
        got, want = (G - few.mean(dim=0)).square().sum(dim=1).mean(), sigma2 / B * factor
        told = residual(G.mean(dim=0), few.mean(dim=0)), residual(got, want)
        more = "" if told[1].startswith("below") else "+" if got > want else "-"
        print(f"B = {B}, {kind:10} {len(G):4} draws: mean {told[0]}, variance {more}{told[1]}")
simlib.guess(mean_right, "yes" if told[0].startswith("below") else "no", of=("yes", "no"))
simlib.guess(variance, {"": "right", "+": "more", "-": "less"}[more], of=("less", "right", "more"))

# %% [markdown]
# All three means are right. The variance of neighbours is too large, because neighbours resemble
# each other. It is 48 % too large for two neighbours and 97 % too large for four. So shuffle. Then
# the noise, the root of the variance, falls with $1/\sqrt B$. A batch of all n examples (B = n,
# without replacement) has no noise. So more ranks give less noise. Lesson 09 shows how much
# accuracy that gains.
#
# ## A net and real digits
#
# Now we take real data: 512 handwritten digits of 7 x 7 pixels, and a net of 970 weights. The net
# returns log probabilities, and `nll_loss` computes the cost from them. `flat_gradient` returns the
# whole gradient as one vector.

# %%
train_set, _ = simlib.digits.load()
X, Y = F.avg_pool2d(train_set.tensors[0][:512], 4).flatten(1), train_set.tensors[1][:512]


def net(*extra, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    layers = nn.Linear(49, 16), *extra, nn.Tanh(), nn.Linear(16, 10), nn.LogSoftmax(dim=1)
    return nn.Sequential(*layers).to(dtype)


def flat_gradient(model, batch):
    model.zero_grad()
    dtype = next(model.parameters()).dtype
    F.nll_loss(model(X[batch].to(dtype)), Y[batch]).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


# %% [markdown]
# ## Equation (1): the gradient of a sum is the sum of gradients
#
# The derivation follows A. Das's articles (2018-2019; lesson 01 introduced the first), in our
# letters. Its first equation adds up the loss over all examples of $D$, and moves the derivative
# into the sum:
#
# $$\nabla \sum_{x \in D} \ell(\theta; x) = \sum_{x \in D} \nabla \ell(\theta; x) \tag{1}$$
#
# This is true for a loss per example. But the article's code uses `nll_loss`, which has **already**
# divided by the number of examples. So we restate the equation for the cost:
#
# $$\nabla L_D(\theta) = \frac{1}{|D|} \sum_{x \in D} \nabla \ell(\theta; x) \tag{1'}$$
#
# $D$ has the examples of one step, here the first 32 digits. The cell adds up 32 single gradients
# and divides by 32. Then it makes the mistake: it follows equation (1) with `nll_loss`, and adds up
# the gradients of four batches of eight. How wrong will this sum be?

# %%
times = None  # the sum of four batch means is how many times the gradient?

D = torch.arange(32)
for dtype in (torch.float64, torch.float32):
    model = net(dtype=dtype)
    whole = flat_gradient(model, D)
    singles = sum(flat_gradient(model, D[i : i + 1]) for i in range(32))
    print(dtype, "(1') residual", residual(singles / 32, whole))
batches_summed = sum(flat_gradient(model, batch) for batch in D.split(8))
print(f"sum of four batch means: {batches_summed.norm() / whole.norm():.3f} times as long")
simlib.guess(times, 4)

# %% [markdown]
# Equation (1') is exact up to rounding. A float64 has about 16 digits, a float32 about 7. The
# mistake makes the gradient four times too large, because it adds up four averages.
#
# ## Equation (2): split D
#
# We deal the examples out: $D = D_0 \cup D_1 \cup \ldots \cup D_{R-1}$, where the **shards** $D_r$
# are **disjoint**: no example is in two of them. Then a sum over $D$ is the sum of the shards'
# sums:
#
# $$\nabla L_D = \sum_{r} \frac{|D_r|}{|D|}\, G_r, \qquad
# G_r = \nabla L_{D_r}(\theta) \tag{2}$$
#
# Each rank can compute its $G_r$ alone. If all shards have the same size, every factor is $1/R$, so
# we take a plain mean. Now let the sizes be 20, 6, 4 and 2. By how many percent is the plain mean
# wrong?

# %%
percent = None  # the error of the plain mean


def mean_of_shards(model, sizes, weighted):
    shards = D[: sum(sizes)].split(sizes)
    factors = [len(s) / sum(sizes) if weighted else 1 / len(sizes) for s in shards]
    return sum(f * flat_gradient(model, s) for f, s in zip(factors, shards, strict=True))


for dtype in (torch.float64, torch.float32):
    model = net(dtype=dtype)
    whole = flat_gradient(model, D)
    print(dtype)
    for sizes, weighted in (([8] * 4, False), ([20, 6, 4, 2], False), ([20, 6, 4, 2], True)):
        kind = "weighted mean" if weighted else "plain mean"
        error = residual(mean_of_shards(model, sizes, weighted), whole)
        print(f"  shards of {str(sizes):13} {kind:13} residual {error}")
plain = mean_of_shards(model, [20, 6, 4, 2], False)
simlib.guess(percent, round(100 * ((plain - whole).norm() / whole.norm()).item()), within=0.2)

# %% [markdown]
# With equal shards the plain mean is exact. With uneven shards its error is as long as the gradient
# itself, and no message tells you. The reason: the two examples of rank 3 together count as much as
# the twenty of rank 0. The factors $|D_r|/|D|$ correct this exactly.
#
# **Now you write it:** the same without means. Each rank uses `nll_loss(..., reduction="sum")`, so
# `sums` has one sum of gradients for each rank. Which line computes the gradient of the cost over
# all 32 examples?

# %%
model = net()
sums = [len(shard) * flat_gradient(model, shard) for shard in D.split([20, 6, 4, 2])]


def from_sums(sums, sizes):
    return sums[0]  # yours, in its place


error = residual(from_sums(sums, [20, 6, 4, 2]), flat_gradient(model, D))
print("right" if error == "below 1e-06" else f"not yet: residual {error}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return sum(sums) / sum(sizes)`
#
# </details>
#
# "So I make all shards equal." PyTorch's `DistributedSampler` does this by **padding**: it takes
# the missing examples from the beginning again. If 4 ranks share 30 examples, two examples are in
# two shards, so the $D_r$ are not disjoint. The last line of the cell leaves these two copies out.
# It multiplies each shard's gradient by its factor $|D_r|/|D|$. How far off is the padded mean?

# %%
percent = None  # the error that two doubled examples make

model, D30 = net(), D[:30]
padded = torch.cat([D30, D30[:2]])
shards = [padded[rank::4] for rank in range(4)]
print("shards:", *[shard.tolist() for shard in shards], sep="\n  ")
plain = sum(flat_gradient(model, shard) for shard in shards) / 4
whole = flat_gradient(model, D30)
print("padded, plain mean: residual", residual(plain, whole))
simlib.guess(percent, round(100 * ((plain - whole).norm() / whole.norm()).item()), within=0.2)
mended = sum(len(D30[r::4]) / 30 * flat_gradient(model, D30[r::4]) for r in range(4))
print("7 or 8 each, weighted: residual", residual(mended, whole))

# %% [markdown]
# Examples 0 and 1 count twice. In an epoch at most $R - 1$ examples are doubled, and most people
# accept that. In **evaluation** you must not accept it (lesson 07).
#
# ## Equation (3): the sum over ranks is one all_reduce
#
# If the shards are equal, equation (2) needs the sum $S = \sum_r G_r$, on every rank. You know the
# collective:
#
# $$S = \sum_{r=0}^{R-1} G_r = \mathrm{all\_reduce}(G_r) \tag{3}$$
#
# We run this on real ranks, and compare with the sum in one process. We also test an assumption
# that nobody writes down: all ranks get the **same bits**. The second program uses an all_gather
# instead. Then every rank adds up all parts itself, and begins with its own part. Will the four
# ranks have equal sums?

# %%
by_all_reduce, in_own_order = None, None  # same bits on all ranks: yes or no?


def summed(rank, world_size, dtype, how):
    mine = flat_gradient(net(dtype=dtype), D[8 * rank : 8 * rank + 8])
    if how == "all_reduce":
        dist.all_reduce(mine)
        return mine
    parts = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    return sum(parts[rank:] + parts[:rank])


for dtype in (torch.float64, torch.float32):
    here = sum(flat_gradient(net(dtype=dtype), shard) for shard in D.split(8))
    for how in ("all_reduce", "own order"):
        sums = simlib.run(summed, 4, args=(dtype, how)).results
        same = all(torch.equal(sums[0], other) for other in sums)
        off = residual(torch.stack(sums), here.expand(4, -1))
        print(dtype, f"{how:10} residual {off}, same bits on all ranks: {same}")
        yours = by_all_reduce if how == "all_reduce" else in_own_order
        simlib.guess(yours, "yes" if same else "no", of=("yes", "no"))

# %% [markdown]
# Both sums are right, up to rounding. But float addition depends on its order, so the second
# program's four results differ in their last bits. Gloo's all_reduce finishes the sum of each chunk
# on *one* rank and copies it to the others (lesson 05). So never let the ranks compute the same sum
# in different orders.
#
# ## Equation (4): the step
#
# $$\theta \leftarrow \theta - \eta\, \frac{1}{R} \sum_{r} G_r \tag{4}$$
#
# Take shards of B examples each. By (3) every rank has the sum. The proof follows the mean in (4)
# back to the cost:
#
# $$\frac1R \sum_r G_r \;\overset{(1')\text{ on each } D_r}{=}\;
# \frac1R \sum_r \frac1B \sum_{x \in D_r} \nabla \ell(\theta; x)
# \;\overset{(2)\text{: disjoint}}{=}\; \frac{1}{R B} \sum_{x \in D} \nabla \ell(\theta; x) \;\overset{(1')}{=}\; \nabla L_D(\theta)$$
#
# So one step on R ranks **is** one step of one process with the **effective batch**
# $B_\text{effective} = R \times B$. The cell checks this on 2 and 4 real ranks, and on 64 simulated
# ranks. `sync_gradients` works like the function in the article. How large is the residual with 64
# ranks?


# %%
def sync_gradients(model, rank, world_size):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def one_step(rank, world_size, dtype, examples=8, syncs=True):
    model = net(dtype=dtype)
    flat_gradient(model, torch.arange(rank * examples, (rank + 1) * examples))
    if syncs:
        sync_gradients(model, rank, world_size)
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    return flat(model)


for ranks, start in ((2, simlib.run), (4, simlib.run), (64, simlib.simulate)):
    for dtype in (torch.float64, torch.float32):
        one = one_step(0, 1, dtype, 8 * ranks, syncs=False)
        error = residual(start(one_step, ranks, args=(dtype,)).results[-1], one)
        print(f"{ranks:2} x 8 against 1 x {8 * ranks:3}, {dtype}: residual {error}")

# %% [markdown]
# From 2 ranks to 64, the only difference is rounding. (One all_reduce for each parameter tensor is
# slow on a network, because each pays its latency. Lesson 07 sends one flat buffer.)
#
# ## Measure the gradient noise
#
# A rank has its own $G_r$ of B examples *before* the all_reduce, and the mean $G$ of $RB$ examples
# *after* it. So it knows the gradient for two batch sizes, at no extra cost. From the variance
# above we get
#
# $$E|G_r|^2 = |\nabla L|^2 + \frac{\sigma^2}{B}, \qquad E|G|^2 = |\nabla L|^2 + \frac{\sigma^2}{RB}$$
#
# These are two equations with the unknowns $\sigma^2$ and $|\nabla L|^2$. The **noise scale** is
# their quotient $\sigma^2 / |\nabla L|^2$ (McCandlish et al. 2018, arXiv 1812.06162). A batch of
# this size has noise that is as long as the gradient itself. If your batch is far smaller, twice
# the ranks make nearly twice the progress per step, as long as each batch size has its best $\eta$.
# (With the same $\eta$ you gain far less.) If your batch is far larger, more ranks gain hardly
# anything.
#
# To measure this, `probe` sends one more number in the all_reduce: the square $|G_r|^2$. **Now you
# write it:** `solved` gets the averages of $|G_r|^2$ (`own`) and $|G|^2$ (`common`). It returns
# $\sigma^2$ and $|\nabla L|^2$.


# %%
def probe(rank, world_size, model, B, steps):
    draw, own, common = torch.Generator().manual_seed(rank), 0.0, 0.0
    for _ in range(steps):
        mine = flat_gradient(model, torch.randint(512, (B,), generator=draw))
        both = torch.cat([mine, mine.square().sum().reshape(1)]) / world_size
        dist.all_reduce(both)
        own += both[-1].item() / steps
        common += both[:-1].square().sum().item() / steps
    return own, common


def solved(own, common, B, R):
    return own, common  # yours, in its place


# %%
model = net()
singles = torch.stack([flat_gradient(model, torch.tensor([i])) for i in range(512)])
spread2, length2 = singles.var(dim=0, correction=0).sum(), singles.mean(dim=0).square().sum()
print(
    f"one by one: sigma^2 {spread2:.2f}, |gradient|^2 {length2:.3f}, scale {spread2 / length2:.0f}"
)
known = torch.stack([length2 + spread2 / 8, length2 + spread2 / 32])
got = torch.tensor(solved(*known.tolist(), 8, 4))
right = torch.allclose(got, torch.stack([spread2, length2]), rtol=1e-3)
print(
    f"by the equations: {known[0]:.3f}, {known[1]:.3f}; solved: {'right' if right else 'not yet'}"
)
for steps in (1, 10, 100):
    both = simlib.run(probe, 4, args=(model, 8, steps)).results[0]
    sigma2, square = solved(*both, 8, 4)
    scale = f", scale {sigma2 / square:.0f}" if right else ""
    print(f"{steps:3} steps of 4 x 8: {both[0]:.3f}, {both[1]:.3f}{scale}")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `sigma2 = (own - common) / (1 / B - 1 / (R * B))` and `return sigma2, common - sigma2 / (R * B)`
#
# </details>
#
# One step gives a poor estimate, a hundred steps give a good one. The noise scale is 70 examples.
# So training with 32 examples per step still gains from more ranks. Average over the steps first,
# then take the quotient.
#
# ## One curve or two?
#
# If one step is the same, sixty steps are the same, too. A common mistake is to think that the
# *sum* of the ranks' mean gradients is the gradient. To see its effect, some of our runs do not
# divide by R. All runs use float64, so that rounding is invisible:
#
# | panel | ranks x B | optimizer | $\eta$ | divides by R? |
# |---|---|---|---|---|
# | effective batch | 4 x 8, 1 x 32, 1 x 8 | SGD | 0.5 | yes |
# | sum or mean | 4 x 8 | SGD | 0.5 | yes; no |
# | sum or mean | 1 x 32 | SGD | 2.0 | (one rank) |
# | Adam | 4 x 8 | Adam | 0.01 | yes; no |
#
# In each panel, which curves coincide? What will the missing division do to plain SGD? And what
# will it do to Adam?

# %%
guess = None  # which curves coincide? What does SUM do to SGD, to Adam?


def batches(size, steps):
    """The same batches on every rank: a generator with a seed of its own, epoch after epoch."""
    shuffle = torch.Generator().manual_seed(1)
    epochs = [torch.randperm(512, generator=shuffle) for _ in range(1 + size * steps // 512)]
    return torch.cat(epochs).split(size)[:steps]


def cost(model):
    with torch.no_grad():
        return F.nll_loss(model(X.to(next(model.parameters()).dtype)), Y).item()


def train(rank, world_size, B, lr=0.5, divides=True, optimizer=torch.optim.SGD):
    model, costs = net(dtype=torch.float64), []
    optimizer = optimizer(model.parameters(), lr=lr)
    for batch in batches(world_size * B, steps=60):
        costs.append(cost(model))
        flat_gradient(model, batch[rank * B : (rank + 1) * B])
        sync_gradients(model, rank, world_size if divides else 1)
        optimizer.step()
    return torch.tensor(costs, dtype=torch.float64)


# %% [markdown]
# The SUM programs differ only in `divides=False`: they pass a world size of 1 to `sync_gradients`.
# Draw your curves before you run this. The last line repeats mean and SUM with a smaller rate.


# %%
def curve(ranks, *options):
    return simlib.run(train, ranks, args=options).results[0]


mean, one32, one8 = curve(4, 8), curve(1, 32), curve(1, 8)
summed_up, one_4lr = curve(4, 8, 0.5, False), curve(1, 32, 2.0)
adam, adam_summed = (curve(4, 8, 0.01, divides, torch.optim.Adam) for divides in (True, False))
styles = [{"color": "#56B4E9", "lw": 5}, {"color": "#000000", "ls": "--"}, {"color": "#D55E00"}]
figure, panels = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for axes, title, *lines in (
    (panels[0], "effective batch", (one32, "1 x 32"), (mean, "4 x 8"), (one8, "1 x 8")),
    (panels[1], "sum or mean", (one_4lr, "1 x 32, rate 2.0"), (summed_up, "SUM"), (mean, "mean")),
    (panels[2], "Adam", (adam, "mean"), (adam_summed, "SUM")),
):
    for (values, label), style in zip(lines, styles, strict=False):
        axes.plot(values, label=label, **{"lw": 1.2} | style)
    axes.set(title=title, xlabel="step", ylabel="cost over 512 digits", ylim=(0, None))
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    axes.legend(frameon=False, fontsize=8)
plt.show()
print("4 x 8 against 1 x 32:", residual(mean, one32), "- against 1 x 8:", residual(mean, one8))
print("SUM against 4 x rate, first 10 steps:", residual(summed_up[:10], one_4lr[:10]))
print("Adam, SUM against mean:", residual(adam_summed, adam))
small, small_summed = curve(4, 8, 0.2)[-1], curve(4, 8, 0.2, False)[-1]
print(f"SGD with rate 0.2, cost at the end: mean {small:.2f}, SUM {small_summed:.2f}")

# %% [markdown]
# The runs $4 \times 8$ and $1 \times 32$ give the same curve, and $1 \times 8$ gives another. The
# sum is R times the gradient, so a step is R times too large. Plain SGD behaves exactly as with the
# rate $4\eta$. Here its cost jumps up instead of falling. (We compare only the first ten steps,
# because later this run magnifies its rounding errors.) With $\eta$ = 0.2 the mistake even looks
# like progress. But one process makes the same progress with a rate of 0.8.
#
# The missing division hardly changes Adam. Adam divides the gradient by its typical size, so a
# factor R cancels. Only a tiny constant in Adam's formula keeps it from cancelling exactly. So the
# bug stays hidden until somebody goes back to SGD or clips gradients.
#
# ## "The same seed means the same data"
#
# Disjoint shards need a plan that all ranks agree on. Here are four plans for 32 examples on 4
# ranks. The third plan uses another seed on each rank. The others use seed 7 everywhere. How many
# **different** examples, of 32, do the ranks see together?

# %%
guesses = None, None, None, None  # of 32, for the four plans in the order below


def my_examples(rank, world_size, plan):
    shuffle = torch.Generator().manual_seed(7 + rank * (plan == "a seed per rank"))
    if plan == "rank 0 has drawn a number before" and rank == 0:
        torch.rand(1, generator=shuffle)  # a layer more, a random crop: anything
    order = torch.randperm(32, generator=shuffle)
    return order[:8] if plan == "everybody takes the first 8" else order[8 * rank : 8 * rank + 8]


plans = (
    "rank r takes slice r",
    "everybody takes the first 8",
    "a seed per rank",
    "rank 0 has drawn a number before",
)
for plan, yours in zip(plans, guesses, strict=True):
    seen = torch.cat(simlib.run(my_examples, 4, args=(plan,)).results)
    print(f"{plan:33} {len(seen.unique()):2} of 32")
    simlib.guess(yours, len(seen.unique()), within=0.15)

# %% [markdown]
# The same seed gives only the same *numbers*, and only if all ranks draw in the same order. If
# everybody takes the first 8, the replicas stay equal and everything looks healthy, but
# $B_\text{effective}$ is only 8. With a seed per rank the shards overlap. If one rank draws one
# number more than the others, the ranks no longer agree, and no message tells you. So use **one
# seed, one slice per rank, and a separate generator** from which nothing else draws, as in
# `batches` above.
#
# ## Why replicas stay equal
#
# We prove it by induction. *Start:* all replicas have the same $\theta$ (rank 0 broadcasts it) and
# the same optimizer state (empty). *Step:* assume that all replicas are equal before a step. They
# all get the same bits $S/R$, and do the same arithmetic with the same state. So they are equal
# after the step. For this proof, the optimizer's step must depend only on $\theta$, its state and
# the gradient. This is true of momentum ($v \leftarrow m v + g$, then $\theta \leftarrow \theta -
# \eta v$) and of Adam.
#
# `spread` measures the largest difference between any two ranks in any weight. It needs one
# all_reduce, which takes the MAX of $\theta$ and of $-\theta$. We also try two mistakes: a `step`
# before the sync, and replicas that start with different weights. In which of the three cases is
# the spread 0 after 10 steps?

# %%
sync_first, step_first, apart = None, None, None  # is the spread 0 after 10 steps: yes or no?

OPTIMIZERS = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.5),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
}


def spread(vector):
    both = torch.cat([vector, -vector])
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    highest, lowest = both[: len(vector)], -both[len(vector) :]
    return (highest - lowest).max().item()


# %%
def replicas(rank, world_size, name, what):
    model = net(seed=rank if what == "start apart" else 0)
    optimizer = OPTIMIZERS[name](model.parameters())
    spreads, first_cost = [spread(flat(model))], cost(model)
    for batch in batches(8 * world_size, steps=10):
        flat_gradient(model, batch[8 * rank : 8 * rank + 8])
        if what == "step, then sync":
            optimizer.step()
        sync_gradients(model, rank, world_size)
        if what != "step, then sync":
            optimizer.step()
        spreads.append(spread(flat(model)))
    return spreads, first_cost, cost(model)


guesses = {"sync, then step": sync_first, "step, then sync": step_first, "start apart": apart}
for what, yours in guesses.items():
    for name in OPTIMIZERS:
        spreads, before, after = simlib.run(replicas, 4, args=(name, what)).results[0]
        told = f"{spreads[1]:.3f}, {spreads[10]:.3f}" if spreads[10] else f"{max(spreads)} always"
        print(f"{what:15} {name:8} spread after steps 1, 10: {told:12}", end="  ")
        print(f"cost on rank 0: {before:.2f} -> {after:.2f}")
    simlib.guess(yours, "no" if spreads[10] else "yes", of=("yes", "no"))

# %% [markdown]
# In the first three lines the spread is exactly 0.0. In the next three, every rank takes its step
# with its own gradient. The synchronised gradient comes too late, and the next `zero_grad` deletes
# it. In the last three, all ranks add the **same** step to different weights, so the distance
# between the ranks stays the same. Their gradients come from four different points, so the mean is
# the gradient of none of these points. Nothing pulls the replicas together. (Only weight decay
# does, and it is slow.) Synchronous SGD keeps replicas equal, but does not make them equal. The
# cost on rank 0 falls in all nine lines, so you do not see the fault on rank 0 alone.
#
# **Now you write it:** the cure for replicas that start apart. `same_start` runs before the first
# step. It gives every parameter the values of rank 0.


# %%
def same_start(model, rank): ...  # yours: two lines


def started(rank, world_size):
    model = net(seed=rank)
    with torch.no_grad():
        same_start(model, rank)
    return flat(model)


begun, found = flat(net(seed=0)), simlib.run(started, 4).results  # rank 0 began with seed 0
others = [rank for rank in range(4) if not torch.equal(found[rank], begun)]
print(f"not yet: ranks {others} have other weights than rank 0 began with" if others else "right")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `for parameter in model.parameters():`, and in it `dist.broadcast(parameter, src=0)`
#
# </details>
#
# ## "Equal loss on rank 0 means equal replicas"
#
# "Then I compare the losses of *all* ranks." This is not enough either. We reorder the 16 hidden
# units of a net, and move the weights of each unit with it. The new net is a **twin**: it computes
# the same function. Rank 0 starts with the net, every other rank with a reordered twin. Are the
# costs of the ranks equal at the start? Is their spread 0? After 60 steps, have they learned less
# than four equal replicas, as much, or more?

# %%
costs_equal, spread_0, learned = None, None, None  # before: yes or no? "less", "as much", "more"?


def permuted(model, seed):
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))
    weights = [parameter.detach() for parameter in model.parameters()]
    twin = net(dtype=weights[0].dtype)
    moved = [weights[0][order], weights[1][order], weights[2][:, order], weights[3]]
    for parameter, new in zip(twin.parameters(), moved, strict=True):
        parameter.data = new
    return twin


def twins(rank, world_size, is_twin):
    model = permuted(net(), seed=rank) if is_twin and rank else net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = f"cost {cost(model):.4f}, spread {spread(flat(model)):.3f}"
    for batch in batches(32, steps=60):
        flat_gradient(model, batch[8 * rank : 8 * rank + 8])
        sync_gradients(model, rank, world_size)
        optimizer.step()
    return before, cost(model)


# %%
for rank, (text, after) in enumerate(simlib.run(twins, 4, args=(True,)).results):
    print(f"twins, rank {rank}: {text}, after 60 steps cost {after:.2f}")
text, after = simlib.run(twins, 4, args=(False,)).results[0]
print(f"right, rank 0: {text}, after 60 steps cost {after:.2f}")
simlib.guess(costs_equal, "yes", of=("yes", "no"))
simlib.guess(spread_0, "no", of=("yes", "no"))
simlib.guess(learned, "less", of=("less", "as much", "more"))

# %% [markdown]
# At the start every rank has the same cost, but other weights. So the mean gradient mixes a hidden
# unit of one rank with a different unit of the next rank. The ranks learn, but less, and each rank
# ends with a different model. Equal losses prove nothing. So **compare weights**, by a spread or by
# a **fingerprint**. A fingerprint is a short number that is computed from all bits of a vector. Two
# different vectors almost never have the same fingerprint (exercise 4).
#
# ## What is not invariant
#
# Replicas may be equal to each other, but not *to one process*. They are equal to one process only
# if the cost is a mean over examples, and each example has a loss of its own. Three popular methods
# do not fit this. With **batch norm** each example's loss depends on the other examples in its
# batch. **Dropout** uses random masks. **Clipping** shortens a gradient that is longer than a given
# limit. If each rank clips its own gradient, the mean changes. Which of the three has the largest
# error?

# %%
worst = None  # which of the three?


def clipped(gradient, most=0.2):
    return gradient * most / max(most, gradient.norm().item())


for name, *extra in (
    ("nothing",),
    ("batch norm", nn.BatchNorm1d(16)),
    ("dropout", nn.Dropout(0.5)),
):
    model = net(*extra)
    whole = flat_gradient(model, D)
    mean = sum(flat_gradient(model, shard) for shard in D.split(8)) / 4
    print(f"{name:17} residual {residual(mean, whole)}")
simlib.guess(worst, "dropout", of=("batch norm", "dropout", "clipping"))
model = net()
shards, whole = [flat_gradient(model, s) for s in D.split(8)], flat_gradient(model, D)
per_rank = sum(clipped(shard) for shard in shards) / 4
print("clipped per rank  residual", residual(per_rank, clipped(whole)))
print("clipped after sum residual", residual(clipped(sum(shards) / 4), clipped(whole)))

# %%
model, away = net(nn.Dropout(0.5)), {4: 0.0, 1: 0.0}
for seed in range(20):
    torch.manual_seed(seed)
    masked = flat_gradient(model, D)
    for ranks in away:
        other = sum(flat_gradient(model, shard) for shard in D.split(32 // ranks)) / ranks
        away[ranks] += ((other - masked).norm() / masked.norm()).item() / 20
print(f"dropout, other masks: 4 x 8 {away[4]:.0%}, 1 x 32 {away[1]:.0%} off, mean of 20 seeds")

# %% [markdown]
# - Batch norm takes mean and variance over 8 examples instead of 32, so it computes another
#   function. Its running means are buffers, not parameters, so they even differ between ranks.
#   Lesson 07 builds a synchronised batch norm.
# - Dropout differs because its masks differ. The last line compares two runs with different masks:
#   four ranks are off by 95 %, but one process is off just as far, by 100 %. On average over all
#   masks the gradients agree. So nothing is wrong here. But do not give all ranks the *same* masks.
# - Clipping per rank shortens each $G_r$ by a different factor. So clip **after** the all_reduce.
#   Then every rank has the mean gradient and can compute its length without a further message
#   (exercise 2).
#
# ## Is the loss a bowl?
#
# For the line fit, the bowl above was right. With squared errors its cost is **convex**: between
# two points the cost never rises above the straight line that joins them. Articles draw that bowl
# for a neural net, too. We test this with a trained net, its reordered twin, and the nets between
# the two: $(1-t)\,\theta + t\,\theta_\text{twin}$. Net and twin have the same cost. In a bowl the
# midpoint, $t$ = 0.5, would not have a higher cost than these two ends. Has it a higher cost here?

# %%
midpoint = None  # its cost against that of the ends: lower, equal, higher?

model = net(dtype=torch.float64)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for batch in batches(32, steps=400):
    flat_gradient(model, batch)
    optimizer.step()
here, there = flat(model), flat(permuted(model, seed=1))


def cost_at(theta):
    nn.utils.vector_to_parameters(theta, model.parameters())
    return cost(model)


ts = torch.linspace(-0.2, 1.2, 57)
heights = [cost_at(here + t * (there - here)) for t in ts]
bowl = [line_cost(torch.tensor([2.0, 1.0]) + (4 * t - 2) * torch.tensor([1.0, 0.5])) for t in ts]
ends = [cost_at(theta) for theta in (here, (here + there) / 2, there)]
print("net {:.3f}, midpoint {:.3f}, twin {:.3f}".format(*ends))
simlib.guess(midpoint, "higher", of=("lower", "equal", "higher"))

# %% [markdown]
# Next we draw the cost for all $t$ from $-0.2$ to 1.2, a little beyond both ends. The left panel
# shows the line fit, between two points of the first picture.

# %%
figure, panels = plt.subplots(1, 2, figsize=(9, 3.1), layout="constrained")
for axes, curve_, title in zip(
    panels, (bowl, heights), ("the line fit: a bowl", "the net: a ridge between twins"), strict=True
):
    first, last = curve_[8], curve_[48]  # t = 0 and t = 1
    axes.plot(ts, curve_, color="#0072B2")
    axes.plot([0, 1], [first, last], "o--", color="#D55E00", lw=1, label="straight line")
    axes.set(title=title, xlabel="t", ylabel="cost", ylim=(0, None))
    axes.legend(frameon=False)
plt.show()

# %% [markdown]
# The cost at the midpoint is far higher, so the cost of a net is not convex. Better training would
# not change that. Every net with a hidden layer has such twins. Ours has $16! \approx 2 \times
# 10^{13}$, and all are equally good. In the average of all these twins, all hidden units are the
# same. If the cost were a bowl, this useless average would be at least as good as the net.
#
# So you cannot simply average the weights of nets that were trained apart. ([Lesson
# 13](13_asynchronous_training.ipynb) averages so often that they never drift apart.)
#
# ## What breaks what
#
# | assumption broken | replicas equal? | as one process? | cure |
# |---|---|---|---|
# | SUM of means, no division | yes | step R times too large | divide by R |
# | uneven shards, plain mean | yes | no | factors $\lvert D_r \rvert / \lvert D \rvert$ |
# | padded shards | yes | off by the doubles | drop the doubles, use factors |
# | no slices, one seed | yes | $B_\text{effective}$ = B | slice r for rank r |
# | each rank sums in its own order | no | up to rounding | all_reduce |
# | unsynchronised start | no | no | broadcast |
# | step before sync | no | no | sync first |
# | batch norm | yes, except buffers | no | synchronise it |
# | dropout | yes | on average | a mask per rank |
# | clipping per rank | yes | no | clip after all_reduce |
#
# ## Your turn
#
# [Exercises 06](../exercises/06_synchronous_sgd.ipynb): a gradient from uneven shards, a clip in the wrong
# place, a whole training kept in step, and a search for the rank that is out of step.
#
# ## Exit ticket
#
# 1. 8 ranks use B = 16, `nll_loss`, an all_reduce with SUM, no division, and $\eta$ = 0.1. Which
#    one-process training is this?
# 2. $|G_r|^2$ is 0.6 on average with B = 8, $|G|^2$ on 4 ranks 0.15. What is $\sigma^2$?
# 3. All spreads are 0.0, and the training is still wrong. Name two causes.
# 4. The replicas start 0.3 apart, and everything else is right. They use SGD without weight decay.
#    How far apart are they after 1,000 steps?
#
# <details><summary>Answers</summary>
#
# 1. Batch 128, learning rate 0.8.
# 2. 0.45 / (1/8 - 1/32) = 4.8. ($|\nabla L|^2$ is 0: only noise is left.)
# 3. For example: no division; uneven shards without weights; no slices; clipping per rank.
# 4. Still 0.3, up to rounding.
#
# </details>
#
# **Next:** [lesson 07](07_data_parallel_training.ipynb), which trains LeNet this way.
