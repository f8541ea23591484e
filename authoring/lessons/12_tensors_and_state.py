# %% [markdown]
# # 12 Tensors cut over ranks
#
# You need [lesson 10](10_splitting_the_model.ipynb), which cut a network *between* its layers. Lesson 12 cuts
# through the layers, and it has several parts. This part is about **tensor parallelism**: it cuts the matrices
# of a layer, so that several ranks work on one layer at the same time. In this part (60 minutes) you will
#
# - cut a linear layer by columns and by rows,
# - make three mistakes on purpose: with a bias, with a sum, and with a missing sum,
# - write the forward and the backward pass of a cut MLP by hand,
# - place every all_reduce of a transformer block, and predict its bytes,
# - replace each all_reduce by its two halves, and save memory: **sequence parallelism**.
#
# These letters stand for sizes: **R** is the number of ranks, **T** the number of tokens (the rows of the
# activations), **D** the numbers per token, and **H** the numbers per token in the hidden layer.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import simlib
from simlib import labs

RINGS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring"}
T, D, H = 24, 48, 192
CLUSTER = simlib.clusters.ethernet_10g(8, device=simlib.Device(flops_per_s=100e9))


# %% [markdown]
# ## Two ways to cut a matrix
#
# A linear layer computes $y = x A$. (`nn.Linear` stores $A^\top$, so dimension 0 of its weight counts the
# outputs.) The picture shows two ways to share A between two ranks.
#
# - **Column-parallel**: each rank has some columns of A. It needs all of x, and computes some of the outputs.
# - **Row-parallel**: each rank has some rows of A. It needs only the part of x that these rows multiply. But
#   it gets only a *summand* of every output, so the ranks have to add up their results.
#
# $$x\,[A_0\;A_1] = [x A_0\;\; x A_1] \qquad\qquad
# [x_0\;x_1] \begin{bmatrix} B_0 \\ B_1 \end{bmatrix} = x_0 B_0 + x_1 B_1$$

# %%
labs.draw_matrix_cuts()

# %% [markdown]
# In an MLP, an activation function such as GELU follows the first layer. It changes each number by itself.
# After which cut can each rank apply GELU to its own result, before the ranks communicate? One process tries
# both cuts, and prints the largest error of each way.

# %%
gelu_after = None  # "columns", "rows" or "both"?
torch.manual_seed(0)
x, A = torch.randn(T, D), torch.randn(D, H) / D**0.5

for R in (2, 3, 4):
    by_columns = [x @ part for part in A.chunk(R, dim=1)]
    pairs = zip(x.chunk(R, dim=1), A.chunk(R, dim=0), strict=True)
    by_rows = [x_part @ A_part for x_part, A_part in pairs]
    off = {
        "columns, side by side": torch.cat(by_columns, dim=1) - x @ A,
        "rows, added up": sum(by_rows) - x @ A,
        "GELU of columns": torch.cat([F.gelu(y) for y in by_columns], dim=1) - F.gelu(x @ A),
        "GELU of rows": sum(F.gelu(y) for y in by_rows) - F.gelu(x @ A),
    }
    print(R, {name: round(residual.abs().max().item(), 3) for name, residual in off.items()})
simlib.guess(gelu_after, "columns", of=("columns", "rows", "both"))

# %% [markdown]
# Only the cut by columns allows this. The GELU of a sum is not the sum of the GELUs, so ranks that hold
# summands have to add them up first. Therefore the MLP of a transformer, $\text{GELU}(xA)\,B$, cuts **A by
# columns and B by rows**. Each rank's rows of B multiply exactly its own part of the hidden layer. The ranks
# communicate once, in the sum.
#
# ## Wrong way 1: every rank adds the bias
#
# Each rank has its columns of A, the biases of these columns, and its rows of B. The bias of the second layer
# belongs to all outputs. So every rank has this bias. If `bias_after` is True, `forward` adds the bias after
# the sum. Otherwise `F.linear` adds it, before the sum.


# %%
def weights(rank, world_size):
    """The input, and this rank's part of the MLP: the same numbers however it is cut."""
    torch.manual_seed(0)
    up, down, x = nn.Linear(D, H), nn.Linear(H, D), torch.randn(T, D)
    mine = [up.weight.chunk(world_size)[rank], up.bias.chunk(world_size)[rank]]
    mine += [down.weight.chunk(world_size, dim=1)[rank], down.bias]
    return x, [nn.Parameter(part.detach().clone()) for part in mine]


def forward(rank, world_size, scale, bias_after):
    x, (a, a_bias, b, b_bias) = weights(rank, world_size)
    h, bias = F.gelu(F.linear(x, a, a_bias)), scale * b_bias.detach()
    y = F.linear(h, b, None if bias_after else bias).detach()
    dist.all_reduce(y)
    return y + bias if bias_after else y, bias


# %% [markdown]
# If each of 4 ranks adds the bias before the sum, by how many biases is the result too large? The last two runs
# try the same with a bias of 0.

# %%
biases = None  # by how many biases is it too large on 4 ranks?
for R, scale in ((2, 1), (4, 1), (4, 0)):
    whole, bias = simlib.run(forward, 1, args=(scale, True)).results[0]
    for bias_after in (False, True):
        off = simlib.run(forward, R, args=(scale, bias_after)).results[0][0] - whole
        times = (off.mean(0) @ bias / (bias @ bias)).nan_to_num().item()
        left = (off - times * bias).abs().max().item()  # anything else that is wrong
        print(f"{R} ranks, bias x {scale}, added {'after' if bias_after else 'before'}:", end=" ")
        print(f"too much by {abs(times):.3f} biases; other errors: {left > 1e-5}")
        if (R, scale, bias_after) == (4, 1, False):
            simlib.guess(biases, round(times))

# %% [markdown]
# The sum also adds up the biases: R of them instead of one. **Add the bias of a row-parallel layer after the
# sum.** The lines with bias x 0 show why this mistake is hard to find. As long as all biases are zero, both ways
# give the same result, and many programs initialize biases with zeros. Such a program goes wrong only after the
# first step of the optimizer. So test with biases that are not zero.
#
# ## Wrong ways 2 and 3: the backward pass
#
# autograd does not see `dist.all_reduce`: it records only what happens in its own process (lesson 10). So we
# write the backward pass of the sum ourselves. One may think that a sum in the forward pass needs a sum in
# the backward pass. The class `LeaveTwice` below does this, and it is wrong. Let $y = \sum_r y_r$ be the sum
# of the ranks' results, and $x_r$ rank r's copy of x. The chain rule says
#
# $$\frac{\partial L}{\partial y_r} = \frac{\partial L}{\partial y} \qquad \text{(Leave)} \qquad\qquad
# \frac{\partial L}{\partial x} = \sum_r \frac{\partial L}{\partial x_r} \qquad \text{(Enter)}$$
#
# - At **Leave**, results leave the cut layers. Every rank computes the *same* loss from the same y. So every
#   rank already has the gradient of y, and nothing needs to be sent.
# - At **Enter**, x enters the cut layers. Each copy of x is multiplied by other columns. So each rank has
#   only one part of the gradient of x, and the ranks have to add up the parts.


# %%
class LeaveTwice(torch.autograd.Function):  # wrong
    @staticmethod
    def forward(ctx, y):
        y = y.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return LeaveTwice.forward(ctx, gradient)


class Leave(LeaveTwice):  # a sum forward, nothing backward
    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Enter(LeaveTwice):  # nothing forward; backward is that of LeaveTwice, a sum
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)


# %% [markdown]
# Three programs run on 3 real ranks: the first has the wrong Leave, the second has the right Leave but no
# Enter, the third has both. Each compares five gradients of rank 1 with those of one process: 1.00 means
# right, and 2.00 would mean twice as large. The gradient of x goes on to the layers before this MLP.

# %%
right_ones = None  # how many of the five gradients are 1.00 with LeaveTwice?


def gradients(rank, world_size, enter, leave, needs_gradient=True):
    x, w = weights(rank, world_size)
    h = F.gelu(F.linear(enter(x.requires_grad_(needs_gradient)), w[0], w[1]))
    y = leave(F.linear(h, w[2])) + w[3]
    y.square().sum().backward()
    return [x.grad, *(part.grad for part in w)]


ways = {
    "LeaveTwice": (Enter.apply, LeaveTwice.apply),
    "no Enter": (lambda x: x, Leave.apply),
    "Enter and Leave": (Enter.apply, Leave.apply),
}
one = simlib.run(gradients, 1, args=ways["Enter and Leave"]).results[0]
right = [one[0], one[1].chunk(3)[1], one[2].chunk(3)[1], one[3].chunk(3, dim=1)[1], one[4]]
for name, way in ways.items():
    run = simlib.run(gradients, 3, args=way)
    pairs = zip(run.results[1], right, strict=True)
    sizes = [f"{((a * b).sum() / (b * b).sum()).item():.2f}" for a, b in pairs]
    labels = map(" ".join, zip(("x", "A", "A's bias", "B", "B's bias"), sizes, strict=True))
    print(f"{name:16}", *labels, len(run.trace.collectives), "all_reduces")
    simlib.guess(right_ones if name == "LeaveTwice" else None, sizes.count("1.00"))

# %% [markdown]
# With the wrong Leave, all gradients before it are **R times too large**. Without Enter, the weights *between*
# Enter and Leave get the right gradients, but x gets only one rank's part. So the layers before this MLP learn
# something different on each rank, and no error is raised. With Enter and Leave everything is right, and each
# direction needs one all_reduce.
#
# | | forward | backward |
# |---|---|---|
# | Enter, before the columns | nothing | all_reduce |
# | Leave, after the rows | all_reduce | nothing |
#
# Why does lesson 07 average all gradients, while this program averages none? In lesson 07 every rank had
# examples of its own, and all had the same weights. Here all ranks have the same examples, and *different*
# parts of A and B. An average would mix weights that have nothing to do with each other. The bias of B is
# whole on every rank, and so is its gradient.
#
# ## The same by hand
#
# **Now you write it:** a cut MLP without autograd, with a ReLU and without biases. `mlp_by_hand` gets all of
# x, this rank's columns `a` of A, its rows `b` of B, and the gradient of y. It returns y and the gradients of
# x, a and b. Two rules are enough: for $y = hB$ the gradient of h is `gradient @ B.T`, and that of B is
# `h.T @ gradient`. ReLU passes a gradient on where its input was positive, and 0 elsewhere. Where do the two
# sums belong?


# %%
def mlp_by_hand(x, a, b, gradient):
    return None  # yours: y, and the gradients of x, a and b


def by_hand(rank, world_size, x, A, B, gradient):
    return mlp_by_hand(x, A.chunk(world_size, 1)[rank], B.chunk(world_size)[rank], gradient)


torch.manual_seed(1)
shapes = (T, D), (D, H), (H, D)
x, A, B = (torch.randn(shape).div(shape[1] ** 0.5).requires_grad_() for shape in shapes)
gradient = torch.randn(T, D)
y = (x @ A).relu() @ B  # one process, and autograd
y.backward(gradient)
for R in (2, 3, 4):
    run = simlib.run(by_hand, R, args=[one.detach() for one in (x, A, B, gradient)])
    if run.results[0] is None:
        print(R, "ranks: not yet")
        continue
    ys, x_grads, a_grads, b_grads = zip(*run.results, strict=True)
    pairs = [*((one, y) for one in ys), *((one, x.grad) for one in x_grads)]
    pairs += [(torch.cat(a_grads, 1), A.grad), (torch.cat(b_grads), B.grad)]
    close = all(torch.allclose(one, other, rtol=1e-3, atol=1e-4) for one, other in pairs)
    sums = len(run.trace.of_rank(0))
    print(f"{R} ranks: equal to one process: {close}; {sums} sums (right: 2)")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def mlp_by_hand(x, a, b, gradient):
#         z = x @ a
#         h = z.relu()
#         y = h @ b
#         dist.all_reduce(y)
#         z_grad = (gradient @ b.T) * (z > 0)
#         x_grad = z_grad @ a.T
#         dist.all_reduce(x_grad)
#         return y, x_grad, x.T @ z_grad, h.T @ gradient
#
# </details>
#
# ## Attention: whole heads
#
# An MLP looks at each token by itself. In **attention**, tokens look at each other. Three matrices q, k and v
# make three vectors of each token: a **query** (what the token looks for), a **key** (what the token can be
# found by) and a **value** (what the token passes on). For token t, attention does three things:
#
# 1. It multiplies t's query with the key of each token s that is not later than t. Each product is one number,
#    the *score* of the pair.
# 2. It divides the scores by $\sqrt d$, where d is the length of a query. A softmax turns them into weights:
#    positive numbers whose sum is 1.
# 3. It takes the mean of the values with these weights.
#
# $$o_t = \sum_{s \le t} w_{ts}\, v_s \qquad\qquad
# w_{ts} = \text{softmax}_s \left( q_t \cdot k_s / \sqrt d \right)$$
#
# With one mean, a token can look for one thing only. So attention has several **heads**. Each head takes some
# neighbouring columns of q, k and v, and does all three steps with these columns alone. At the end, a fourth
# matrix, `out`, mixes the results of all heads. The appendix computes one head by itself. You may skip it.
#
# A head needs only its own columns of q, k and v. So we cut these three matrices by columns *between heads*,
# and the matrix `out` by rows. Each rank computes some heads from beginning to end. A **transformer block**
# is attention and then an MLP. So we cut attention by columns and then by rows, and the MLP in the same way.
# Each of the two lies between an Enter and a Leave. The layer norms and the sums `x + ...` work on whole
# activations, which are the same on every rank. The picture shows the block on two ranks.

# %%
labs.draw_block_cuts()

# %% [markdown]
# How many all_reduces does the block make in one forward pass, and how many in the backward pass? **Now you
# write it:** `all_reduced` returns the bytes that a rank contributes to all of them in one step. The second
# cell has a place for your formula, and compares it with the trace.


# %%
HEADS = 12
AXIS = {"q": 0, "k": 0, "v": 0, "out": 1, "up": 0, "down": 1}  # columns: 0, rows: 1


def block_weights(rank, world_size):
    """The input, and this rank's part of a block without biases, by name."""
    torch.manual_seed(0)
    shapes = {name: (D, D) for name in AXIS} | {"up": (H, D), "down": (D, H)}
    w = {name: torch.randn(shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
    mine = {name: w[name].chunk(world_size, AXIS[name])[rank].clone() for name in AXIS}
    mine |= {"norm 1": torch.ones(D), "norm 2": torch.ones(D)}
    return torch.randn(T, D), {name: nn.Parameter(part) for name, part in mine.items()}


def block(x, w, enter, leave):
    h = enter(F.layer_norm(x, [D], w["norm 1"]))
    q, k, v = (F.linear(h, w[n]).unflatten(1, (-1, D // HEADS)).transpose(0, 1) for n in "qkv")
    h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + leave(F.linear(h.transpose(0, 1).flatten(1), w["out"]))
    h = enter(F.layer_norm(x, [D], w["norm 2"]))
    return x + leave(F.linear(F.gelu(F.linear(h, w["up"])), w["down"]))


# %%
def all_reduced(T, D, R):
    return None  # your formula: bytes


def block_step(rank, world_size):
    x, w = block_weights(rank, world_size)
    y = block(x.requires_grad_(), w, Enter.apply, Leave.apply)
    held = simlib.held()["activations and temporaries"]
    y.square().sum().backward()
    return held, {name: part.grad for name, part in w.items()}


def is_right(run):
    """Whether all gradients, put together from all ranks, are those of one process."""
    found = {n: torch.cat([mine[n] for _, mine in run.results], AXIS[n]) for n in AXIS}
    found |= {n: run.results[-1][1][n] for n in ("norm 1", "norm 2")}  # whole on every rank
    return all(torch.allclose(found[n], alone.results[0][1][n], atol=1e-3) for n in found)


alone = simlib.simulate(block_step, 1, cluster=CLUSTER)
for R in (2, 3, 4):
    run = simlib.simulate(block_step, R, cluster=CLUSTER, **RINGS)
    measured = sum(call.nbytes for call in run.trace.collectives)
    print(f"{R} ranks: gradients as in one process: {is_right(run)}; activations held:", end=" ")
    print(f"{run.results[0][0]:,} bytes; all_reduced: {measured:,} bytes; your formula:", end=" ")
    print("right" if all_reduced(T, D, R) == measured else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def all_reduced(T, D, R):
#         return 4 * 4 * T * D
#
# Four all_reduces, two forward and two backward, have T x D numbers of 4 bytes each. R does not appear in the
# formula, and neither does H.
#
# </details>
#
# 5 ranks would fail, because 5 ranks cannot share 12 heads evenly. The gradients of the norms are already
# whole. With twice the ranks, a rank does not hold half as many activations. From each Leave to the next
# Enter, every rank still holds whole activations. The next section cuts these, too.
#
# ## Sequence parallelism: the sum in two halves
#
# Between Leave and Enter, every rank does the same work on the same numbers. An all_reduce is a reduce_scatter
# and then an all_gather (lesson 05). So we separate the two halves. Leave only reduce_scatters, so that each
# rank keeps T/R tokens. The norms work on these tokens. Enter all_gathers all tokens again. In the backward
# pass, Enter reduce_scatters and Leave all_gathers, because each rank computes the loss of its own tokens
# only.


# %%
def all_gather(part):
    whole = part.new_empty(dist.get_world_size() * len(part), *part.shape[1:])
    dist.all_gather_single(whole, part.contiguous())
    return whole


def reduce_scatter(whole):
    part = whole.new_empty(len(whole) // dist.get_world_size(), *whole.shape[1:])
    dist.reduce_scatter_single(part, whole.contiguous())
    return part


class Gather(torch.autograd.Function):  # in the place of Enter
    forward = staticmethod(lambda ctx, x: all_gather(x))
    backward = staticmethod(lambda ctx, gradient: reduce_scatter(gradient))


class Scatter(torch.autograd.Function):  # in the place of Leave
    forward = staticmethod(lambda ctx, y: reduce_scatter(y))
    backward = staticmethod(lambda ctx, gradient: all_gather(gradient))


# %% [markdown]
# Does a rank now send more bytes than before, fewer, or the same? And does it hold more bytes of activations, or
# fewer?

# %%
bytes_sent = None  # "more", "fewer" or "the same"?
bytes_held = None  # "more", "fewer" or "the same"?


def sequence_step(rank, world_size):
    x, w = block_weights(rank, world_size)
    x = x.chunk(world_size)[rank].clone().requires_grad_()
    y = block(x, w, Gather.apply, Scatter.apply)
    held = simlib.held()["activations and temporaries"]
    y.square().sum().backward()
    for norm in ("norm 1", "norm 2"):
        dist.all_reduce(w[norm].grad)  # a rank's norms have seen only its own tokens
    return held, {name: part.grad for name, part in w.items()}


for R in (2, 4):
    for step in (block_step, sequence_step):
        run = simlib.simulate(step, R, cluster=CLUSTER, expand=True, **RINGS)
        sent = sum(m.nbytes for m in run.wire if m.src == 0 and m.nbytes * R > 4 * D)
        print(f"{R} ranks, {step.__name__:13}: gradients right: {is_right(run)};", end=" ")
        print(f"sent {sent:,} bytes, held {run.results[0][0]:,} bytes")
simlib.guess(bytes_sent, "the same", of=("more", "fewer", "the same"))
simlib.guess(bytes_held, "fewer", of=("more", "fewer", "the same"))

# %% [markdown]
# A rank sends the same bytes and holds fewer. We did not count the all_reduces of the norms' gradients, which
# have only 4 D bytes each. These all_reduces are the price: a rank's norms see only its own tokens, so the
# ranks must add up *their* gradients. This is lesson 07's loop again, for two small vectors. (Before torch
# 2.13, `all_gather_single` was called `all_gather_into_tensor`.)
#
# ## Your turn
#
# [Exercises 12](../exercises/12_tensors_and_state.ipynb) belong to all parts of lesson 12. Two of them fit
# here: a row-parallel linear layer with its bias, and the all_reduces of attention.
#
# ## Exit ticket
#
# 1. How many all_reduces does a transformer block make in one step of tensor parallelism?
# 2. Why is the bias of an MLP's second layer added after the sum, but the first layer's bias before it?
# 3. A colleague forgets Enter. Which gradients are wrong?
#    And what does sequence parallelism save?
#
# <details><summary>Answers</summary>
#
# 1. Four: two forward and two backward.
# 2. The sum would add the second bias R times. The outputs of the first layer are cut, and its biases with
#    them. Nothing is summed there.
# 3. The gradients of everything before Enter: of earlier layers, and of the norms in a transformer block.
#    Sequence parallelism saves activations between Leave and Enter.
#
# </details>
#
# **Next:** ranks that share the training state, in [the second part](12_the_state_of_training.ipynb).
#
# ## Appendix: one head by itself
#
# The cell computes head 3 of 12 from its own columns of q, k and v, and compares it with torch's attention.

# %%
torch.manual_seed(2)
d, x = D // HEADS, torch.randn(T, D)
q, k, v = (x @ torch.randn(D, D) / D**0.5 for _ in "qkv")
by_head = (one.unflatten(1, (HEADS, d)).transpose(0, 1) for one in (q, k, v))
all_heads = F.scaled_dot_product_attention(*by_head, is_causal=True)

mine = slice(3 * d, 4 * d)  # the columns of head 3
scores = q[:, mine] @ k[:, mine].T / d**0.5
later = torch.ones(T, T).triu(1).bool()  # tokens later than t get the weight 0
head_3 = scores.masked_fill(later, float("-inf")).softmax(dim=1) @ v[:, mine]
print("head 3 alone is head 3 of all:", torch.allclose(head_3, all_heads[3], atol=1e-5))
