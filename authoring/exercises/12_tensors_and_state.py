# %% [markdown]
# # Exercises 12: splitting tensors and state
#
# This sheet has nine tasks for lesson 12. In tasks 1 and 3 you write a layer whose matrix is cut by
# rows, and you place the communication of attention. These tasks need
# [the first part](../notebooks/12_tensors_and_state.ipynb) of the lesson. In task 2 you write an Adam in
# shards. This task needs [the second part](../notebooks/12_the_state_of_training.ipynb). In task 4 you
# choose a mesh. This task needs [the fourth part](../notebooks/12_two_axes_at_once.ipynb). In task 5 you
# find out how a model of 8 billion parameters fits on 8 cards. Tasks 6 to 9 are about placements, HSDP,
# clipping, and chunks for another number of ranks. They need
# [the fifth part](../notebooks/12_ways_to_place_tensors.ipynb) and
# [the last part](../notebooks/12_ways_to_save_and_clip.ipynb).
#
# Besides values, the checks look at the bytes of every collective. One check also looks at **memory**.
# Each task has folded hints.

# %% role="setup"
import functools
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import simlib
from simlib.checks import (
    Fits,
    OneOf,
    brought,
    check,
    collectives,
    measure,
    messages,
    nbytes,
    only,
)


def small_numbers(seed, *shape):
    """Whole numbers from -3 to 3 as float32: sums of them are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).float()


# %% role="setup"
def summed(x):
    """The sum over all ranks."""
    x = x.clone()
    dist.all_reduce(x)
    return x


class Enter(torch.autograd.Function):  # nothing forward, an all_reduce backward
    forward = staticmethod(lambda ctx, x: x.view_as(x))
    backward = staticmethod(lambda ctx, gradient: summed(gradient))


class Leave(torch.autograd.Function):  # an all_reduce forward, nothing backward
    forward = staticmethod(lambda ctx, y: summed(y))
    backward = staticmethod(lambda ctx, gradient: gradient)


# %% [markdown]
# ## 1. By rows (★★, 20 minutes, 2 points)
#
# A layer computes $y = x A + b$. `gradient` is the gradient of the loss with respect to y. Each rank
# gets some columns of x, and the rows of A that belong to these columns. Another rank may get more
# columns. Every rank gets all of b and all of `gradient`. Return `(y, x_grad, A_grad, b_grad)`. Return y
# and the bias's gradient whole. Return the other two gradients for this rank's part of x and A only. Use
# one all_reduce that is as large as y. Leave the inputs as they are.


# %% role="answer" question="row_parallel" points=2
def row_parallel(rank, world_size, x, A, b, gradient):
    """Return (y, and the gradients with respect to x, A and b).

    x has shape (tokens, mine), A (mine, outputs), b (outputs,), gradient (tokens, outputs).
    """
    ### BEGIN SOLUTION
    y = x @ A
    dist.all_reduce(y)
    return y + b, gradient @ A.T, x.T @ gradient, gradient.sum(0)
    ### END SOLUTION


# %% role="check" question="row_parallel" points=2
def rows_of_ranks(rank, world_size):
    mine, outputs, tokens = 2 + rank, 3, 4
    return (
        small_numbers(10 + rank, tokens, mine),
        small_numbers(20 + rank, mine, outputs),
        small_numbers(30, outputs) + 0.5,
        small_numbers(40, tokens, outputs),
    )


def layer(xs, As, bs, gradients, biases=1, times=1, of_bias=1):
    """What each rank returns; of a mistake, with so many biases, gradients so many times."""
    y, g = torch.cat(xs, 1) @ torch.cat(As) + biases * bs[0], gradients[0]
    return [
        (y, times * g @ A.T, times * x.T @ g, of_bias * g.sum(0))
        for x, A in zip(xs, As, strict=True)
    ]


def y_of_one(xs, As, bs, gradients):
    right = layer(xs, As, bs, gradients)
    own = [x @ A + b for x, A, b in zip(xs, As, bs, strict=True)]
    return [(y, *rest) for y, (_, *rest) in zip(own, right, strict=True)]


def mean_of_parts(xs, As, bs, gradients):
    right = layer(xs, As, bs, gradients, biases=0)
    return [(y / len(xs) + bs[0], *rest) for y, *rest in right]


def bias_on_rank_0(*given):
    with_b, without = layer(*given), layer(*given, biases=0)
    return [with_b[0], *without[1:]]


def mean_of_tokens(xs, As, bs, gradients):
    return [(y, x, A, b / len(gradients[0])) for y, x, A, b in layer(xs, As, bs, gradients)]


def mean_of_bias(xs, As, bs, gradients):
    return [(y, x, A, b / len(xs)) for y, x, A, b in layer(xs, As, bs, gradients)]


verdict = check(
    "row_parallel",
    row_parallel,
    rows_of_ranks,
    layer,
    only("all_reduce"),
    messages(lambda *given: 0),
    brought(
        lambda xs, As, bs, gradients: [gradients[0].nbytes] if len(xs) > 1 else None,
        hint="y needs one sum; the gradients are there already: every rank has all of `gradient`.",
    ),
    mistakes={
        "b is in y once for each rank: add it after the sum.": (
            lambda *given: layer(*given, biases=len(given[0]))
        ),
        "Where is b? Every rank adds it, after the sum.": lambda *given: layer(*given, biases=0),
        "Each rank has its own summand of y: add the summands up.": y_of_one,
        "That is the mean of the ranks' summands: y is their sum.": mean_of_parts,
        "b is in rank 0's y alone: after the sum every rank adds it, before the sum one does.": (
            bias_on_rank_0
        ),
        "The bias's gradient is the sum over the tokens, not their mean.": mean_of_tokens,
        "The gradients are world_size times too large: each rank had all of `gradient`.": (
            lambda *given: layer(*given, times=len(given[0]), of_bias=len(given[0]))
        ),
        "The bias's gradient is world_size times too large: each rank had all of it.": (
            lambda *given: layer(*given, of_bias=len(given[0]))
        ),
        "The bias's gradient is divided by the number of ranks: nothing was added up.": mean_of_bias,
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# A rank multiplies its part of x by its part of A. Does the product have some of the numbers of y, or a
# part of every number?
#
# </details>
# <details><summary>Hint 2</summary>
#
# In one process `x_grad` is `gradient @ A.T` and `A_grad` is `x.T @ gradient`. Which rows
# of `x_grad` and `A_grad`, and which of their columns, belong to this rank?
#
# </details>
# <details><summary>Hint 3</summary>
#
# Compute `y = x @ A`, sum it over the ranks, and then add b. The other results need no communication.
#
# </details>

# %% role="hidden" question="row_parallel"
seed = 1
print(
    measure(
        row_parallel,
        lambda rank, world_size: (
            small_numbers(seed + rank, 3, 1 + (seed + rank) % 4),
            small_numbers(100 + seed + rank, 1 + (seed + rank) % 4, 5),
            small_numbers(200 + seed, 5),
            small_numbers(300 + seed, 3, 5),
        ),
    )
)

# %% [markdown]
# ## 2. Adam in shards (★★★, 30 minutes, 3 points)
#
# Every rank has the same flat weights `w`. Every rank also has its own list `gradients`, with one flat
# tensor for each step. In each step, let Adam use the **mean** gradient of all ranks. Use
# `lr=0.1, eps=0.1`, and the defaults of torch for the rest. Return the whole new weights. In each step,
# reduce_scatter the gradients and all_gather the new weights. The inputs must not change. Besides the
# inputs, a rank may hold the new weights once, and eight tensors of the size of its shard. You get 1
# point for the value, 1 for the traffic, and 1 for the memory.


# %% role="answer" question="sharded_adam" points={"value": 1, "traffic": 1, "memory": 1}
def sharded_adam(rank, world_size, w, gradients):
    """Return the weights after len(gradients) steps, a tensor of w's shape.

    The weights are float32. Their number is a multiple of world_size.
    """
    ### BEGIN SOLUTION
    w = w.clone()
    shard = torch.nn.Parameter(w.chunk(world_size)[rank])  # a view: it follows
    shard.grad = torch.empty_like(shard)
    adam = torch.optim.Adam([shard], lr=0.1, eps=0.1)
    for gradient in gradients:
        dist.reduce_scatter_single(shard.grad, gradient, op=dist.ReduceOp.AVG)
        adam.step()
        dist.all_gather_single(w, shard.detach())
    return w
    ### END SOLUTION


# %% role="check" question="sharded_adam" points={"value": 1, "traffic": 1, "memory": 1}
def in_shards(each, steps):
    """Inputs: `each` weights for every rank, so many steps."""

    def inputs(rank, world_size):
        total = each * world_size
        w = torch.linspace(-1, 1, total)
        generator = torch.Generator().manual_seed(rank)
        return w, [torch.rand(total, generator=generator) + 0.5 for _ in range(steps)]

    return inputs


def adam_of(w, gradients, kind=torch.optim.Adam, **options):
    weights = torch.nn.Parameter(w.clone())
    adam = kind([weights], **{"lr": 0.1, "eps": 0.1} | options)
    for gradient in gradients:
        weights.grad = gradient
        adam.step()
    return weights.detach()


def with_gradients(combine):
    """The weights of all ranks if the gradients of a step are combined so."""

    def found(ws, gradients):
        steps = [combine(torch.stack(step)) for step in zip(*gradients, strict=True)]
        return [adam_of(ws[0], steps)] * len(ws)

    return found


def own_gradients(ws, gradients):
    return [adam_of(w, mine) for w, mine in zip(ws, gradients, strict=True)]


def without_memory(ws, gradients):
    w = ws[0]
    for step in zip(*gradients, strict=True):
        w = adam_of(w, [torch.stack(step).mean(0)])
    return [w] * len(ws)


def with_options(**options):
    def found(ws, gradients):
        steps = [torch.stack(step).mean(0) for step in zip(*gradients, strict=True)]
        return [adam_of(ws[0], steps, **options)] * len(ws)

    return found


def never_zeroed(ws, gradients):
    steps = torch.stack([torch.stack(step).mean(0) for step in zip(*gradients, strict=True)])
    return [adam_of(ws[0], list(steps.cumsum(0)))] * len(ws)


def only_own_part(ws, gradients):
    right = with_gradients(lambda step: step.mean(0))(ws, gradients)[0].chunk(len(ws))
    found = []
    for rank, w in enumerate(ws):
        parts = list(w.chunk(len(ws)))
        parts[rank] = right[rank]
        found.append(torch.cat(parts))
    return found


def per_step(ws, gradients):
    """Bytes brought: all gradients, then a part of the weights, in each step; alone: as you like."""
    return [ws[0].nbytes, ws[0].nbytes // len(ws)] * len(gradients[0]) if len(ws) > 1 else None


def few_bytes(ws, gradients):
    """The gradients, the new weights, and eight shards; w itself is not counted."""
    return (len(gradients[0]) + 1) * ws[0].nbytes + 8 * ws[0].nbytes // len(ws)


def what_is_whole(ledger):
    """Whose whole tensors are too many."""
    state = ledger.peak["optimizer state"]
    if state > 3 * 4 * EACH:  # two shards, and a count of steps
        return "Let Adam know this rank's part of the weights only: its state is then as small."
    if not state:
        return "Which tensors are whole? Only the new weights need be; what is Adam's has a shard's size."
    if ledger.peak_bytes < 4 * EACH * (5 * (STEPS + 1) + 11):
        return "One tensor is whole that need not be: gather into the weights themselves."
    return (
        "Adam's state is small, but whole weights are there too often: parts in a list and the "
        "`torch.cat` of them are two copies. Gather into one tensor: `all_gather_single`, or "
        "`all_gather` with a list of its chunks, which are views."
    )


EACH, STEPS = 4000, 2

verdict = check(
    "sharded_adam",
    sharded_adam,
    in_shards(each=3, steps=3),
    with_gradients(lambda step: step.mean(0)),
    only("reduce_scatter", "all_gather"),
    messages(lambda *given: 0),
    brought(
        per_step,
        hint="In each step, send only the gradients (reduce_scatter) and the new weights "
        "(all_gather).",
    ),
    mistakes={
        "That is the sum of the gradients: take their mean.": with_gradients(lambda s: s.sum(0)),
        "Each rank uses only its own gradients: average the gradients of all ranks.": own_gradients,
        "Adam starts again in every step: keep its state.": without_memory,
        "eps is 0.1 here, not torch's 1e-8.": with_options(eps=1e-8),
        "lr is 0.1 here, not torch's 1e-3.": with_options(lr=1e-3),
        "That is AdamW, which also makes the weights smaller: use Adam.": with_options(
            kind=torch.optim.AdamW
        ),
        "The mean is divided by the number of ranks once more: ReduceOp.AVG has done that.": (
            with_gradients(lambda step: step.mean(0) / len(step))
        ),
        "The gradients of earlier steps are in those of later ones: each step has its own.": (
            never_zeroed
        ),
        "A rank has new weights in its own part only: gather the other parts.": (only_own_part),
    },
    memory=[
        Fits(
            simlib.clusters.ethernet_10g(5),
            in_shards(each=EACH, steps=STEPS),
            few_bytes,
            what_is_whole,
        )
    ],
    points={"value": 1, "traffic": 1, "memory": 1},
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# An optimizer makes its state for the parameters that it gets. Give it only a part of the weights.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make `shard = torch.nn.Parameter(w.chunk(world_size)[rank])` and an Adam of `[shard]`. In each step
# call `dist.reduce_scatter_single(shard.grad, gradient, op=dist.ReduceOp.AVG)`. Before the first step,
# you must make the tensor `shard.grad`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# After `adam.step()`, call `dist.all_gather_single(w, shard.detach())`. Here w must be your own clone of
# the weights.
#
# </details>

# %% role="hidden" question="sharded_adam"
seed = 1
print(
    measure(
        sharded_adam,
        lambda rank, world_size: (
            torch.linspace(-1, 1 + seed % 97, (1 + seed % 5) * world_size),
            [
                torch.rand(
                    (1 + seed % 5) * world_size,
                    generator=torch.Generator().manual_seed(1000 * seed + 10 * step + rank),
                )
                + 0.5
                for step in range(1 + seed % 3)
            ],
        ),
    )
)

# %% [markdown]
# ## 3. Attention, cut by heads (★★, 20 minutes, 2 points)
#
# The program below computes attention and adds its input, `x + ...`. Each rank gets all of `x` and the
# weights of its own heads: its rows of `q`, `k`, `v`, and its columns of `out`. The loss is the sum of
# the squares of y. The program returns y and the gradients of the loss with respect to x and q. On one
# rank the program is right. Fix the program for more ranks. Use one all_reduce forward and one
# all_reduce backward. You can use `Enter.apply` and `Leave.apply` of the first cells, or write the
# all_reduces by hand.


# %% role="answer" question="attention" points=2
def attention(rank, world_size, x, q, k, v, out, head_dim):
    """Return (y, gradient of x, gradient of q); y and x's gradient are whole on every rank.

    x has shape (tokens, D); q, k and v (heads * head_dim, D) for this rank's heads, out
    (D, heads * head_dim).
    """
    x, q = x.clone().requires_grad_(), q.clone().requires_grad_()
    ### BEGIN BROKEN
    h = x
    heads = [F.linear(h, w).unflatten(1, (-1, head_dim)).transpose(0, 1) for w in (q, k, v)]
    mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
    y = x + F.linear(mixed.transpose(0, 1).flatten(1), out)
    ### END BROKEN
    ### BEGIN SOLUTION
    h = Enter.apply(x)
    heads = [F.linear(h, w).unflatten(1, (-1, head_dim)).transpose(0, 1) for w in (q, k, v)]
    mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
    y = x + Leave.apply(F.linear(mixed.transpose(0, 1).flatten(1), out))
    ### END SOLUTION
    y.square().sum().backward()
    return y.detach(), x.grad, q.grad


# %% role="check" question="attention" points=2
def heads_of_ranks(rank, world_size):
    """Two heads on rank 0, one on the others; in float64."""
    tokens, D, head_dim = 5, 6, 2
    mine = head_dim * (2 if rank == 0 else 1)
    torch.manual_seed(0)
    x = torch.randn(tokens, D, dtype=torch.float64)
    torch.manual_seed(1 + rank)
    qkv = [torch.randn(mine, D, dtype=torch.float64) for _ in range(3)]
    return x, *qkv, torch.randn(D, mine, dtype=torch.float64), head_dim


def whole_attention(given, enter=1, past=1, leave=1, summed=True, xs_in_y=1):
    """What the ranks return if gradients at each place are so many times what they should be.

    `enter`: what comes back by the heads; `past`: what comes back past them; `leave`: what goes
    into the heads. Without `summed` each rank has its own heads in x's gradient alone. y has x in it
    `xs_in_y` times.
    """
    xs, qs, ks, vs, outs, dims = given
    x, dim = xs[0].clone().requires_grad_(), dims[0]
    qs = [q.clone().requires_grad_() for q in qs]
    copies, parts = [x.detach().clone().requires_grad_() for _ in qs], []
    for copy, q, k, v, out in zip(copies, qs, ks, vs, outs, strict=True):
        heads = [F.linear(copy, w).unflatten(1, (-1, dim)).transpose(0, 1) for w in (q, k, v)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        parts.append(F.linear(mixed.transpose(0, 1).flatten(1), out))
    y = (xs_in_y * x + sum(parts)).detach()
    torch.autograd.backward(parts, [leave * 2 * y] * len(parts))
    inside = [copy.grad for copy in copies]
    inside = [sum(inside)] * len(qs) if summed else inside
    return [(y, past * 2 * y + enter * g, q.grad) for g, q in zip(inside, qs, strict=True)]


def mistaken(**where):
    """`where` gives for each place how many times, from the number of ranks."""

    def found(*given):
        return whole_attention(given, **{name: f(len(given[0])) for name, f in where.items()})

    return found


def heads_alone(*given):
    """What the program that is given returns: each rank has its own heads in y."""
    alone = [whole_attention([[one] for one in mine]) for mine in zip(*given, strict=True)]
    return [found for (found,) in alone]


def entered_alone(*given):
    """The same with Enter: what comes back through the heads is summed."""
    alone = heads_alone(*given)
    back = sum(x_grad - 2 * y for y, x_grad, _ in alone)
    return [(y, 2 * y + back, q_grad) for y, _, q_grad in alone]


def only_past(*given):
    """What comes back past the heads alone."""
    return [(y, 2 * y, None) for y, _, _ in whole_attention(given)]


def world(n):
    return n


verdict = check(
    "attention",
    attention,
    heads_of_ranks,
    lambda *given: whole_attention(given),
    only("all_reduce"),
    messages(lambda *given: 0),
    brought(
        lambda xs, *_: [xs[0].nbytes] * 2 if len(xs) > 1 else None,
        hint="One all_reduce forward, one backward, each as large as x.",
    ),
    mistakes={
        "y lacks the heads of the other ranks: sum y over the ranks.": heads_alone,
        "y is summed nowhere, but x's gradient is: both sums are needed.": entered_alone,
        "y is right, but x's gradient has this rank's heads only: what comes back is to be summed.": (
            mistaken(summed=lambda n: False)
        ),
        "x is in y once for each rank: sum what comes from the heads, then add x.": (
            mistaken(xs_in_y=world)
        ),
        "x is in y once for each rank, and what comes back through the heads is summed nowhere: let "
        "x past the sum forward, and let the heads' gradients be summed backward.": (
            mistaken(xs_in_y=world, summed=lambda n: False)
        ),
        "The gradient that comes past the heads, by `x + ...`, is whole on each rank: sum only what "
        "comes back through the heads.": mistaken(past=world),
        "The gradients inside the heads are world_size times too large: after Leave every rank has "
        "the whole gradient of y.": mistaken(leave=world),
        "Everything in x's gradient is world_size times too large: so it is summed twice.": (
            mistaken(enter=world, past=world)
        ),
        "What comes back past the heads is divided by world_size: on each rank it is whole.": (
            mistaken(past=lambda n: 1 / n)
        ),
        "You average the gradient that comes back through the heads: sum it.": (
            mistaken(enter=lambda n: 1 / n)
        ),
        "Nothing comes back through the heads: is the sum made of a tensor without its graph "
        "(`detach`)?": only_past,
    },
    as_given="35b890b0",
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Which tensors are whole on every rank, and which tensors belong to one rank alone? Find the two places
# where one kind becomes the other. Communicate at these two places.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The sum `x + ...` skips the heads and adds whole tensors. So keep this `x` outside of the pair.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Write `h = Enter.apply(x)`, and put `Leave.apply` around the last `F.linear`.
#
# </details>

# %% role="hidden" question="attention"
seed = 1


def drawn_heads(rank, world_size):
    mine, dim = 1 + (seed + rank) % 2, 2 + seed % 2
    torch.manual_seed(seed)
    x = torch.randn(4, 5, dtype=torch.float64)
    torch.manual_seed(1000 * seed + rank)
    qkv = [torch.randn(mine * dim, 5, dtype=torch.float64) for _ in range(3)]
    return x, *qkv, torch.randn(5, mine * dim, dtype=torch.float64), dim


print(measure(attention, drawn_heads))

# %% [markdown]
# ## 4. The cheapest mesh that fits (★★, 25 minutes, 3 points)
#
# A plan is `(dp, tp, stage)`. dp x tp is `job["ranks"]`, tp is at most `job["ranks_per_node"]`, and the
# ZeRO stage is 0, 1 or 3. A plan fits if a rank keeps at most `job["memory_bytes"]`. The docstring says
# how many bytes a rank keeps, and how much time a plan takes. Return the plan that fits and takes the
# least time. If several plans are equally fast, take the one with the smallest tp, then the one with the
# smallest stage. Return None if no plan fits. Send nothing.


# %% role="answer" question="cheapest_mesh" points=3
def cheapest_mesh(rank, world_size, job):
    """Return (dp, tp, stage), or None.

    job["P"] is the number of parameters. A rank keeps job["P"] / tp of them. Each takes 4 bytes for
    its value, 4 for its gradient and 8 for Adam's state. Stage 1 divides the 8 bytes by dp. Stage 3
    divides all 16 bytes by dp. A rank also keeps job["activation_bytes"] / (dp * tp) bytes.

    The time of a plan is the sum of the times of both axes. The time of an axis is sent bytes /
    bandwidth. Along tp, a rank sends (tp - 1) / tp * job["tp_bytes"] / dp bytes at job["inside_Bps"].
    Along dp, it sends 2 (dp - 1) / dp times the bytes of its parameters, at job["between_Bps"].
    Stage 3 replaces the factor 2 by 3.
    """
    ### BEGIN SOLUTION
    plans = []
    for tp, stage in itertools.product(range(1, job["ranks_per_node"] + 1), (0, 1, 3)):
        if job["ranks"] % tp:
            continue
        dp, numbers = job["ranks"] // tp, job["P"] / tp
        kept = {0: 16, 1: 8 + 8 / dp, 3: 16 / dp}[stage] * numbers
        if kept + job["activation_bytes"] / job["ranks"] > job["memory_bytes"]:
            continue
        seconds = (tp - 1) / tp * job["tp_bytes"] / dp / job["inside_Bps"]
        times = 3 if stage == 3 else 2
        seconds += times * (dp - 1) / dp * 4 * numbers / job["between_Bps"]
        plans.append((seconds, tp, stage, dp))
    if not plans:
        return None
    _, tp, stage, dp = min(plans)
    return dp, tp, stage
    ### END SOLUTION


# %% role="check" question="cheapest_mesh" points=3
def job_of(P, ranks, ranks_per_node, memory_bytes, activation_bytes, tp_bytes):
    return {
        "P": P,
        "ranks": ranks,
        "ranks_per_node": ranks_per_node,
        "memory_bytes": memory_bytes,
        "activation_bytes": activation_bytes,
        "tp_bytes": tp_bytes,
        "inside_Bps": 150e9,
        "between_Bps": 25e9,
    }


JOBS = [  # told apart by them: each mistake below gives a list of plans of its own
    job_of(10e9, 4, 2, 16e9, 50e9, 2e12),  # none fits
    job_of(3e9, 48, 4, 16e9, 100e9, 1.4e12),
    job_of(7e9, 48, 2, 80e9, 200e9, 1.4e12),
    job_of(10e9, 12, 8, 32e9, 100e9, 0.4e12),
    job_of(10e9, 12, 2, 48e9, 400e9, 1.4e12),
]


def plans_of(
    job, tp_most=None, activations=True, times_of_3=3, itemsize=4, but=None, both=sum,
    of_stage_1=lambda dp: 8 + 8 / dp, kept_whole=False, ranks=lambda dp, tp: dp * tp, per_dp=True,
):  # fmt: skip
    """Every plan that fits as (seconds, tp, stage, dp); of a mistake, as somebody else counts."""
    for tp in range(1, (tp_most or job["ranks_per_node"]) + 1):
        dp, rest = divmod(job["ranks"], tp)
        for stage, kept in () if rest else ((0, 16), (1, of_stage_1(dp)), (3, 16 / dp)):
            kept = kept * job["P"] / (1 if kept_whole else tp)
            kept += activations * job["activation_bytes"] / ranks(dp, tp)
            inside_s = (tp - 1) / tp * job["tp_bytes"] / (dp if per_dp else 1) / job["inside_Bps"]
            sent = (times_of_3 if stage == 3 else 2) * (dp - 1) / dp * itemsize * job["P"] / tp
            seconds = both((inside_s, sent / job["between_Bps"]))
            if kept <= job["memory_bytes"] and stage != but:
                yield seconds, tp, stage, dp


def cheapest(job, **counted):
    if not list(plans_of(job, **counted)):
        return None
    _, tp, stage, dp = min(plans_of(job, **counted))
    return dp, tp, stage


def counted(change=lambda job: {}, **otherwise):
    """The plans if something is counted otherwise; `change` gives other figures of a job."""
    return lambda jobs: [cheapest(job | change(job), **otherwise) for job in jobs]


def wide(jobs):
    return [cheapest(job, tp_most=job["ranks"]) for job in jobs]


def largest_stage(jobs):
    """Of equal plans the one with the largest stage."""
    found = []
    for job in jobs:
        plans = [(s, tp, -stage, dp) for s, tp, stage, dp in plans_of(job)]
        _, tp, stage, dp = min(plans, default=(0, None, 0, None))
        found.append((dp, tp, -stage) if plans else None)
    return found


def axes_exchanged(jobs):
    return [plan and (plan[1], plan[0], plan[2]) for plan in map(cheapest, jobs)]


def another_share(jobs):
    """The activations divided by one axis alone, or not at all."""
    shares = lambda dp, tp: dp, lambda dp, tp: tp, lambda dp, tp: 1  # noqa: E731
    return OneOf([counted(ranks=share)(jobs) for share in shares])


verdict = check(
    "cheapest_mesh",
    cheapest_mesh,
    lambda rank, world_size: (JOBS[rank],),
    lambda jobs: [cheapest(job) for job in jobs],
    collectives(lambda *given: 0, hint="Each rank can work this out for itself."),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "tp reaches beyond a node: it is at most ranks_per_node.": wide,
        "That is the cheapest of all plans; but it does not fit.": (
            counted(lambda job: {"memory_bytes": float("inf")})
        ),
        "Are the activations counted in? A plan here does not fit with them.": (
            counted(activations=False)
        ),
        "Stage 3 sends 3 in place of 2 times the parameters: it gathers them twice.": (
            counted(times_of_3=2)
        ),
        "Both axes have the same bandwidth in your sum: between nodes it is less.": (
            counted(lambda job: {"between_Bps": job["inside_Bps"]})
        ),
        "Stage 1 costs no more than stage 0; but where both fit, take the smaller stage.": (
            largest_stage
        ),
        "You take the largest tp that fits: its all_reduces cost time, too.": (
            counted(lambda job: {"tp_bytes": 0})
        ),
        "Along dp you count parameters, not their bytes: a float32 has 4.": counted(itemsize=1),
        "You did not try stage 1: it sends less than stage 3, and sometimes fits if stage 0 "
        "does not.": (counted(but=1)),
        "You did not try stage 3: it divides all 16 bytes and sends more, and sometimes fits if"
        " the others do not.": counted(but=3),
        "The plan is right, but dp stands first, then tp.": axes_exchanged,
        "A rank keeps job['activation_bytes'] / (dp * tp): divide the activations by both axes.": another_share,
        "Along tp the parameters are divided, too: a rank keeps P / tp of them.": counted(
            kept_whole=True
        ),
        "You count too few bytes for stage 1: each parameter takes 4 + 4 + 8 / dp bytes.": counted(
            of_stage_1=lambda dp: 4 + 12 / dp
        ),
        "job['tp_bytes'] are those of the whole batch: a replica sends a dp-th of them.": counted(
            per_dp=False
        ),
        "The times of both axes add up; you count the longer one alone.": counted(both=max),
        "Along tp, count (tp - 1) / tp of tp_bytes, not twice that.": (
            counted(lambda job: {"tp_bytes": 2 * job["tp_bytes"]})
        ),
    },
    worlds=(5,),  # each rank has a job of its own: all five are looked at together
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Try all plans: combine every tp up to `ranks_per_node` that divides `ranks` with every stage.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Skip the plans that do not fit. Write every remaining plan as a tuple `(seconds, tp, stage, dp)`.
# Python's `min` compares the first entries first.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For each parameter, a plan keeps `{0: 16, 1: 8 + 8 / dp, 3: 16 / dp}[stage]` bytes. Multiply these
# bytes by P / tp, then add the activations.
#
# </details>

# %% role="hidden" question="cheapest_mesh"
seed = 1


def drawn_job(rank, world_size):
    k = seed + 7 * rank
    per_node = 2 + k % 7
    job = job_of(1e9 * (1 + k % 40), per_node * 8, per_node, 1e9 * (8 + 5 * (k % 9)), 2e11, 1e12)
    return (job | {"tp_bytes": 1e12 * (1 + k % 23)},)


print(measure(cheapest_mesh, drawn_job))


# %% role="setup"
class Block(torch.nn.Module):
    """A layer of Llama 3 8B: 32 heads of queries share 8 of keys and values."""

    def __init__(self, again, D=4096, inside=14_336):
        super().__init__()
        linear = functools.partial(torch.nn.Linear, bias=False)
        self.again, self.norm, self.norm2 = again, torch.nn.RMSNorm(D), torch.nn.RMSNorm(D)
        self.q, self.kv, self.out = linear(D, D), linear(D, D // 2), linear(D, D)
        self.gate, self.up, self.down = linear(D, inside), linear(D, inside), linear(inside, D)

    def forward(self, x):
        return checkpoint(self.whole, x, use_reentrant=False) if self.again else self.whole(x)

    def whole(self, x):
        h = self.norm(x)
        q, kv = (w(h).unflatten(-1, (-1, 128)).transpose(1, 2) for w in (self.q, self.kv))
        h = F.scaled_dot_product_attention(q, *kv.chunk(2, 1), is_causal=True, enable_gqa=True)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


# %% role="setup"
def train(rank, world_size, layers, sharded, again, sequences, V=128_256, length=8192):
    """Two steps. `again`: activations are not kept, but computed again."""
    with torch.device("meta"):
        net = torch.nn.Sequential(
            torch.nn.Embedding(V, 4096), *[Block(again) for _ in range(layers)]
        )
        net.extend([torch.nn.RMSNorm(4096), torch.nn.Linear(4096, V, bias=False)])
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for part in (*net[1:-2], net) if sharded else ():
        fully_shard(part, mp_policy=policy)
    net.to_empty(device="cpu")
    net = net if sharded else torch.nn.parallel.DistributedDataParallel(net)
    adam = torch.optim.AdamW(net.parameters())
    for step in range(2):
        with simlib.span("step", number=step):
            tokens = torch.randint(V, (sequences, length + 1))
            with torch.autocast("cpu", torch.bfloat16, enabled=not sharded):
                logits = net(tokens[:, :-1])
            F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
            adam.step()
            adam.zero_grad()


# %% [markdown]
# ## 5. Eight billion parameters on 8 cards (★★, 25 minutes, 2 points)
#
# `train` above can train Llama 3 8B on 8 H100 in several configurations. For each configuration,
# `measured` has the results of `simlib.simulate(train, 8, (layers, ...), data=False)` with 2 and with 4
# layers. The results are the bytes of each column at the peak, and the seconds of a step. Every layer
# adds the same bytes and the same time. Return `(name, why)` for `layers` layers. `name` is the
# configuration that fits and takes the least time per sequence. If no configuration fits, `name` is
# None. `why` is a dict: it has the largest column of each configuration that does not fit. Send nothing.


# %% role="answer" question="fit_8b" points=2
def fit_8b(rank, world_size, measured, layers, memory_bytes):
    """Return (name, why): a str or None, and {name: column}.

    measured[name] is {"sequences": of a rank in a step, 2: of two layers, 4: of four layers}. The
    latter two have "parameters", "gradients", "optimizer state" and "activations and temporaries",
    in bytes, which together may be at most memory_bytes, and "seconds".
    """
    ### BEGIN SOLUTION
    fitting, why = [], {}
    for name, of in measured.items():
        two, four = of[2], of[4]
        at = {key: two[key] + (layers - 2) * (four[key] - two[key]) / 2 for key in two}
        seconds = at.pop("seconds")
        if sum(at.values()) <= memory_bytes:
            fitting.append((seconds / of["sequences"], name))
        else:
            why[name] = max(at, key=at.get)
    return min(fitting)[1] if fitting else None, why
    ### END SOLUTION


# %% role="check" question="fit_8b" points=2
COLUMNS = "parameters,gradients,optimizer state,activations and temporaries".split(",")
MEASURED = {  # configuration: sequences, then with 2 and 4 layers the MB of each column, and seconds
    "whole": (1, (5948, 0, 11895, 22446, 0.1743), (7693, 0, 15385, 24459, 0.252)),
    "sharded": (1, (2845, 0, 1487, 18738, 0.1329), (3063, 0, 1923, 22297, 0.1867)),
    "sharded, again": (1, (2845, 0, 1487, 15314, 0.145), (3063, 0, 1923, 15448, 0.211)),
    "sharded, again, 2": (2, (2845, 0, 1487, 30493, 0.2587), (3063, 0, 1923, 30761, 0.3831)),
    "sharded, again, 4": (4, (2845, 0, 1487, 60851, 0.4879), (3063, 0, 1923, 61388, 0.733)),
}


def ledgers(rows=MEASURED):
    """`rows` as the answer gets them."""

    def of(row):
        return {
            **{key: 1e6 * mb for key, mb in zip(COLUMNS, row, strict=False)},
            "seconds": row[-1],
        }

    return {
        name: {"sequences": n, 2: of(two), 4: of(four)} for name, (n, two, four) in rows.items()
    }


def small_head(rows):
    """Of a model with a small vocabulary: without recomputation a step is soon the larger one."""
    return {
        name: (n, *((*row[:3], row[3] - 12_000 * n, *row[4:]) for row in two))
        for name, (n, *two) in rows.items()
    }


CARDS = [
    (ledgers(), 32, 72e9),  # a tenth of 80 GB is kept free
    (ledgers(), 32, 28e9),
    (ledgers(), 20, 64e9),
    (ledgers(small_head(MEASURED)), 32, 72e9),
    (ledgers(), 80, 180e9),
]


def fitted(
    measured, layers, memory_bytes, extended=lambda two, four, n: two + (n - 2) * (four - two) / 2,
    each=True, fits=True, all_of_why=False, smallest=False, columns=max,
):  # fmt: skip
    """The answer; of a mistake, as somebody else counts."""
    fitting, why = [], {}
    for name, of in measured.items():
        at = {key: extended(of[2][key], of[4][key], layers) for key in of[2]}
        seconds = at.pop("seconds") / (of["sequences"] if each else 1)
        held = sum(at.values())
        if held <= memory_bytes or not fits:
            fitting.append((held if smallest else seconds, name))
        if held > memory_bytes or all_of_why:
            why[name] = columns(at, key=at.get)
    return min(fitting)[1] if fitting else None, why


def counting(**otherwise):
    def found(*given):
        return [fitted(*one, **otherwise) for one in zip(*given, strict=True)]

    return found


def names_alone(*given):
    return [name for name, _ in counting()(*given)]


verdict = check(
    "fit_8b",
    fit_8b,
    lambda rank, world_size: CARDS[rank],
    counting(),
    collectives(lambda *given: 0, hint="Each rank can work this out for itself."),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "That is right for 4 layers: what do `layers` of them hold?": (
            counting(extended=lambda two, four, n: four)
        ),
        "You multiply all by layers / 4; but embedding and logits are there once, however many "
        "layers there are: what do two more layers add?": (
            counting(extended=lambda two, four, n: n / 4 * four)
        ),
        "You add what two layers add once for each layer: from 2 to 4 layers it is two of them.": (
            counting(extended=lambda two, four, n: two + (n - 2) * (four - two))
        ),
        "Of those that fit, the least time per sequence counts: a step of two sequences may take "
        "longer.": counting(each=False),
        "That is the fastest of all; but it does not fit.": counting(fits=False),
        "That is the one that holds least: any that fits will do, so take the fastest.": (
            counting(smallest=True)
        ),
        "`why` is for those that do not fit.": counting(all_of_why=True),
        "`why` names the smallest column: the largest says what to change.": counting(columns=min),
        "The name is right: return `why`, too.": names_alone,
    },
    worlds=(5,),  # each rank has cards of its own: all five are looked at together
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Two more layers add `of[4][key] - of[2][key]` to each column, and to the seconds.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For `layers` layers, each column and the seconds are
# `of[2][key] + (layers - 2) / 2 * (of[4][key] - of[2][key])`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Collect tuples `(seconds / sequences, name)` for the configurations that fit, and take the `min`. For
# each other configuration, put the columns in a dict `at`: `max(at, key=at.get)` is the largest column.
#
# </details>

# %% role="hidden" question="fit_8b"
seed = 1


def drawn_cards(rank, world_size):
    draw, measured = torch.Generator().manual_seed(seed + rank), {}
    keys = "parameters,gradients,optimizer state,activations and temporaries"
    for k, name in enumerate(("whole", "sharded", "again", "again, 2")):
        two = torch.randint(1, 30, (4,), generator=draw).tolist()
        more = torch.randint(0, 4, (4,), generator=draw).tolist()
        columns = list(zip(keys.split(","), two, more, strict=True))
        measured[name] = {
            "sequences": 1 + k // 3,
            2: {key: 1e9 * a for key, a, _ in columns} | {"seconds": 0.1 + 0.01 * k},
            4: {key: 1e9 * (a + b) for key, a, b in columns} | {"seconds": 0.2 + 0.03 * k},
        }
    return measured, 4 + seed % 60, 1e9 * (60 + 40 * rank)


print(measure(fit_8b, drawn_cards))

# %% [markdown]
# ## 6. The collective of a redistribute (★★, 20 minutes, 2 points)
#
# A tensor of `nbytes` bytes is on a mesh of `shape`. `src` and `dst` have a placement for each axis:
# `"S0"`, `"S1"`, `"R"` or `"P"`. `src` and `dst` differ on exactly one axis. Return `(name, sent)`. `name`
# is the collective: `"all_reduce"`, `"all_gather"`, `"reduce_scatter"`, `"all_to_all"` or `"nothing"`.
# `sent` is the number of bytes that a rank sends, as in the lesson: an all_to_all sends each piece to its
# rank, and the others are rings. The axes have any size above 1, all cuts are even, and no dimension is
# cut twice. Send nothing.


# %% role="answer" question="cost_of" points=2
def cost_of(rank, world_size, nbytes, shape, src, dst):
    """Return (name, sent): a str, and the bytes that each rank sends.

    shape has two sizes; src and dst have two placements each, such as ("S0", "R").
    """
    ### BEGIN SOLUTION
    axis = 0 if src[0] != dst[0] else 1
    n, other = shape[axis], 1 - axis
    here = nbytes / (shape[other] if src[other].startswith("S") else 1)
    part = (n - 1) / n * here
    if src[axis] == "R" or dst[axis] == "P":
        return "nothing", 0
    if src[axis] == "P":
        return ("all_reduce", 2 * part) if dst[axis] == "R" else ("reduce_scatter", part)
    return ("all_gather", part) if dst[axis] == "R" else ("all_to_all", part / n)
    ### END SOLUTION


# %% role="check" question="cost_of" points=2
CHANGES = [  # each rank has one; together they tell the mistakes apart
    (4800, (2, 4), ("S0", "R"), ("R", "R")),
    (4800, (4, 2), ("S1", "P"), ("S1", "R")),
    (7200, (2, 6), ("S1", "S0"), ("P", "S0")),
    (7200, (3, 4), ("P", "S1"), ("S0", "S1")),
    (9600, (4, 5), ("S0", "R"), ("S1", "R")),
    (9600, (4, 3), ("P", "R"), ("P", "S0")),
]


def cost_counted(nbytes, shape, src, dst, size=None, here=None, rings=(2, 1, 1), pieces=None):
    """The right answer; of a mistake, as somebody else counts."""
    axis = int(src[0] == dst[0])
    n, other = shape[axis], shape[1 - axis]
    there = nbytes / (other if src[1 - axis][0] == "S" else 1)
    there = there if here is None else here(nbytes, n, other)
    n = n if size is None else size(shape, axis)
    part = (n - 1) / n * there
    if src[axis] == "R" or dst[axis] == "P":
        return "nothing", 0
    if src[axis] == "P":
        if dst[axis] == "R":
            return "all_reduce", rings[0] * part
        return "reduce_scatter", rings[1] * part
    if dst[axis] == "R":
        return "all_gather", rings[2] * part
    return pieces(part) if pieces else ("all_to_all", part / n)


def costs(**otherwise):
    def found(*given):
        return [cost_counted(*one, **otherwise) for one in zip(*given, strict=True)]

    return found


verdict = check(
    "cost_of",
    cost_of,
    lambda rank, world_size: CHANGES[rank],
    costs(),
    collectives(lambda *given: 0, hint="Each rank can work this out for itself."),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "The other axis may be sharded, too: then the ranks of this axis share a part of the bytes.": (
            costs(here=lambda nbytes, n, other: nbytes)
        ),
        "Only the ranks of one axis take part: count this axis, not the whole mesh.": (
            costs(size=lambda shape, axis: shape[0] * shape[1])
        ),
        "You count the size of the other axis: the placements differ on the axis that sends.": (
            costs(size=lambda shape, axis: shape[1 - axis])
        ),
        "An all_reduce is a reduce_scatter and an all_gather: a rank sends twice as much.": (
            costs(rings=(1, 1, 1))
        ),
        "From one shard to another, nobody needs the whole tensor: each rank sends each other rank "
        "one piece.": costs(pieces=lambda part: ("all_gather", part)),
        "The name all_to_all is right, but a rank sends only the part of its chunk that others need.": (
            costs(pieces=lambda part: ("all_to_all", part))
        ),
        "You divide by the other axis always: a replicated or partial axis does not cut the tensor.": (
            costs(here=lambda nbytes, n, other: nbytes / other)
        ),
    },
    worlds=(6,),  # each rank has a change of its own: all six are looked at together
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# First find the axis on which `src` and `dst` differ. Only the ranks of this axis take part.
#
# </details>
# <details><summary>Hint 2</summary>
#
# How many bytes do the ranks of this axis share? If the other axis is sharded, they share only a part of
# the tensor. If it is `"R"` or `"P"`, they share a tensor of the full size.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With n ranks on the axis and B bytes, an all_gather or a reduce_scatter sends (n - 1) / n * B. An
# all_reduce sends twice as much. An all_to_all sends 1 / n of what an all_gather sends.
#
# </details>

# %% role="hidden" question="cost_of"
seed = 1


def drawn_change(rank, world_size):
    k = seed // 7 + 5 * rank
    n, other = 2 + k % 5, 2 + seed % 4
    changes = [("S0", "R"), ("P", "R"), ("P", "S0"), ("S0", "S1"), ("R", "S0"), ("S0", "P")]
    src, dst = changes[(seed + rank) % 6]
    second = "R" if {src, dst} == {"S0", "S1"} else ("R", "S1", "P")[k % 3]
    return 3600 * n * n * other, (n, other), (src, second), (dst, second)


print(measure(cost_of, drawn_change))

# %% [markdown]
# ## 7. FSDP or HSDP (★★, 20 minutes, 2 points)
#
# A job trains on nodes of several ranks. FSDP cuts over all ranks. HSDP cuts over the ranks of a node and
# replicates across nodes. Return the one that fits and sends for the shorter time, `"FSDP"` or `"HSDP"`,
# and its seconds. If neither fits, return `(None, None)`. A ring over k ranks with B bytes has (k - 1)
# rounds. Each round takes latency + B / k / bandwidth. For each micro-batch, both gather twice and
# reduce_scatter once. Once a step, after the last micro-batch, HSDP all_reduces its shards between the
# nodes. All ranks of a node do so at once, and share the bandwidth. An all_reduce is two rings. Send
# nothing.


# %% role="answer" question="hybrid" points=2
def hybrid(rank, world_size, job):
    """Return (name, seconds), or (None, None).

    job has "nodes", "per_node", "N" (bytes of all parameters), "microbatches", "memory_bytes",
    "inside" and "between", which are (latency in s, bytes per s). FSDP's rings use "between". A rank
    keeps 8 bytes for each byte of parameters that it holds.
    """
    ### BEGIN SOLUTION
    n, G, N, M = (job[name] for name in ("nodes", "per_node", "N", "microbatches"))

    def ring_s(k, nbytes, link, share=1):
        latency_s, bandwidth_Bps = link
        return (k - 1) * (latency_s + nbytes / k / (bandwidth_Bps / share))

    seconds = {
        "FSDP": 3 * M * ring_s(n * G, N, job["between"]),
        "HSDP": 3 * M * ring_s(G, N, job["inside"]) + 2 * ring_s(n, N / G, job["between"], G),
    }
    kept = {"FSDP": 8 * N / (n * G), "HSDP": 8 * N / G}
    fitting = [(seconds[name], name) for name in kept if kept[name] <= job["memory_bytes"]]
    return min(fitting)[::-1] if fitting else (None, None)
    ### END SOLUTION


# %% role="check" question="hybrid" points=2
def job_on(nodes, per_node, N, microbatches, memory_bytes, between):
    return {
        "nodes": nodes,
        "per_node": per_node,
        "N": N,
        "microbatches": microbatches,
        "memory_bytes": memory_bytes,
        "inside": (5e-6, 150e9),
        "between": between,
    }


HYBRIDS = [  # told apart by them
    job_on(16, 8, 14e9, 4, 80e9, (15e-6, 25e9)),  # HSDP
    job_on(16, 8, 140e9, 4, 80e9, (15e-6, 25e9)),  # HSDP does not fit
    job_on(128, 8, 14e9, 1, 80e9, (15e-6, 400e9)),  # a fast network: FSDP
    job_on(512, 4, 1e8, 2, 80e9, (30e-6, 25e9)),  # latency
    job_on(2, 4, 400e9, 1, 80e9, (15e-6, 25e9)),  # neither
]


def of_hybrid(
    job, times=3, all_reduces=2, fits=True, of_shard=True, shared=True, latency=True, each=True,
    kept_by=8, fsdp_shares=False, once=True,
):  # fmt: skip
    """The answer; of a mistake, as somebody else counts."""
    n, G, N, M = (job[name] for name in ("nodes", "per_node", "N", "microbatches"))

    def ring(k, nbytes, link, share=1):
        return (k - 1) * (link[0] * latency + nbytes * share / k / link[1])

    micro = times * (M if each else 1)
    after = ring(n, N / G if of_shard else N, job["between"], G if shared else 1)
    after *= 1 if once else M
    of = {
        "FSDP": (micro * ring(n * G, N, job["between"], G if fsdp_shares else 1), n * G),
        "HSDP": (micro * ring(G, N, job["inside"]) + all_reduces * after, G),
    }
    fitting = [
        (seconds, name)
        for name, (seconds, ranks) in of.items()
        if kept_by * N / ranks <= job["memory_bytes"] or not fits
    ]
    return min(fitting)[::-1] if fitting else (None, None)


def hybrids(**otherwise):
    return lambda jobs: [of_hybrid(job, **otherwise) for job in jobs]


verdict = check(
    "hybrid",
    hybrid,
    lambda rank, world_size: (HYBRIDS[rank],),
    hybrids(),
    collectives(lambda *given: 0, hint="Each rank can work this out for itself."),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "That is the faster one, but it does not fit: a rank keeps 8 bytes for each byte it holds.": (
            hybrids(fits=False)
        ),
        "You count only the parameters in memory: with gradients and Adam it is 8 times as much.": (
            hybrids(kept_by=1)
        ),
        "You count one micro-batch: both gather again for each of them.": hybrids(each=False),
        "Where is the latency? A ring over k ranks has k - 1 rounds, and each has one.": (
            hybrids(latency=False)
        ),
        "Between nodes, HSDP all_reduces its shards, N / per_node bytes, not all parameters.": (
            hybrids(of_shard=False)
        ),
        "All ranks of a node all_reduce at once: each has only a part of the bandwidth.": (
            hybrids(shared=False)
        ),
        "In FSDP's ring, one rank of each node sends to the next node: it need not share.": (
            hybrids(fsdp_shares=True)
        ),
        "An all_reduce is two rings: a reduce_scatter and an all_gather.": hybrids(all_reduces=1),
        "HSDP's nodes have different gradients: they need the all_reduce between nodes.": (
            hybrids(all_reduces=0)
        ),
        "A micro-batch has two gathers and a reduce_scatter: three rings.": hybrids(times=2),
        "HSDP all_reduces once a step, not for each micro-batch.": hybrids(once=False),
    },
    worlds=(5,),  # each rank has a job of its own: all five are looked at together
    points=2,
    within=1e-6,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Write a function `ring_s(k, nbytes, latency_s, bandwidth_Bps)`. All other times are sums of it.
#
# </details>
# <details><summary>Hint 2</summary>
#
# FSDP has three rings over all ranks for each micro-batch. HSDP has three rings over the ranks of a node
# for each micro-batch, and afterwards two rings over the nodes.
#
# </details>
# <details><summary>Hint 3</summary>
#
# HSDP's rings over the nodes carry `N / per_node` bytes each, at `bandwidth / per_node`.
#
# </details>

# %% role="hidden" question="hybrid"
seed = 1


def drawn_hybrid(rank, world_size):
    k = seed + 11 * rank
    latency_s, bandwidth_Bps = 1e-6 * (5 + k % 40), 1e9 * (5 + 30 * (k % 13))
    return (
        job_on(
            2 ** (1 + k % 8), 2 + k % 7, 1e8 * (1 + 7 * (k % 31)), 1 + k % 5, 80e9,
            (latency_s, bandwidth_Bps),
        ),
    )  # fmt: skip


print(measure(hybrid, drawn_hybrid))

# %% [markdown]
# ## 8. The wrong clip (★★, 20 minutes, 3 points)
#
# The program below clips gradients: if their norm is above `limit`, it scales all gradients so that
# their norm is `limit`. But each rank uses the norm of its own numbers. `kinds` says what a rank has of
# each gradient: a shard (`"S"`), all of it (`"R"`), or one summand of it (`"P"`). Fix the program, so
# that `norm` is the norm of all whole gradients together. Each rank returns its shards, copies and
# *summands*, scaled. You may all_reduce each Partial once, and then one number, in the dtype of the
# gradients. Leave the inputs as they are. You get 2 points for the value and 1 for the traffic.


# %% role="answer" question="clipped" points={"value": 2, "traffic": 1}
def clipped(rank, world_size, gradients, kinds, limit):
    """Return (norm, gradients): a float, and this rank's scaled tensors.

    gradients is a list of float64 tensors, kinds a list of "S", "R" and "P".
    """
    ### BEGIN BROKEN
    squares = sum(gradient.square().sum() for gradient in gradients)
    norm = squares.sqrt().item()
    ### END BROKEN
    ### BEGIN SOLUTION
    squares = torch.zeros((), dtype=torch.float64)
    for gradient, kind in zip(gradients, kinds, strict=True):
        if kind == "P":
            gradient = gradient.clone()
            dist.all_reduce(gradient)
        if kind == "S" or rank == 0:  # what all ranks have counts once
            squares += gradient.square().sum()
    dist.all_reduce(squares)
    norm = squares.sqrt().item()
    ### END SOLUTION
    scale = min(1, limit / norm)
    return norm, [scale * gradient for gradient in gradients]


# %% role="check" question="clipped" points={"value": 2, "traffic": 1}
def gradients_with(limit):
    """Inputs: two shards of unlike size, a copy and two summands."""

    def inputs(rank, world_size):
        shards = small_numbers(rank, 3 + rank), small_numbers(50 + rank, 2, 3)
        copy, summands = small_numbers(99, 4) + 5, [small_numbers(70 + rank, n) for n in (5, 2)]
        mine = [shards[0], copy, summands[0] + 2, shards[1], summands[1] - 1]
        return [gradient.double() for gradient in mine], list("SRPSP"), limit

    return inputs


def clipped_by(squares_of, up=False, whole=False):
    """What the ranks return if `squares_of(tensors of all ranks, kind)` is counted.

    Of mistakes: `up`, gradients of a small norm are scaled up; `whole`, partials come back whole.
    """

    def found(given, kinds, limits):
        pairs = list(zip(zip(*given, strict=True), kinds[0], strict=True))
        norm = sum(squares_of(tensors, kind) for tensors, kind in pairs) ** 0.5
        scale = limits[0] / norm if up else min(1, limits[0] / norm)
        result = []
        for rank in range(len(given)):
            mine = [sum(t) if whole and kind == "P" else t[rank] for t, kind in pairs]
            result.append((norm, [scale * gradient for gradient in mine]))
        return result

    return found


def squares(tensors, kind, copies=1, of_sum=True):
    """The squares of a gradient, of which all ranks' tensors are given."""
    if kind == "R":
        return copies * tensors[0].square().sum().item()
    if kind == "P" and of_sum:
        return sum(tensors).square().sum().item()
    return sum(tensor.square().sum().item() for tensor in tensors)


def with_copies(tensors, kind):
    return squares(tensors, kind, len(tensors))


def with_sums_of_all(tensors, kind):
    """A whole Partial is counted on every rank, and so is a copy."""
    times = 1 if kind == "S" else len(tensors)
    return times * squares(tensors, kind)


def of_summands(tensors, kind):
    return squares(tensors, kind, of_sum=False)


def of_all_numbers(tensors, kind):
    return squares(tensors, kind, len(tensors), of_sum=False)


def without_copies(tensors, kind):
    return squares(tensors, kind, 0)


def as_small_messages(given, kinds, limits):
    """Bytes brought: each Partial, then a number."""
    if len(given) == 1:
        return None
    partials = [g.nbytes for g, kind in zip(given[0], kinds[0], strict=True) if kind == "P"]
    return [*partials, 8]


verdict = check(
    "clipped",
    clipped,
    [gradients_with(1.0), gradients_with(1000.0)],
    clipped_by(squares),
    only("all_reduce"),
    messages(lambda *given: 0),
    brought(
        as_small_messages,
        hint="First all_reduce each Partial, then one sum of squares, as a float64.",
    ),
    mistakes={
        "A copy counts once: you count it once for each rank that has it.": clipped_by(with_copies),
        "After the all_reduce every rank has the whole Partial, so it counts once, not on each rank.": (
            clipped_by(with_sums_of_all)
        ),
        "The square of a sum is not the sum of squares: first sum the Partials.": (
            clipped_by(of_summands)
        ),
        "You sum the squares of all numbers on all ranks: a copy counts once, and a Partial only as "
        "a sum.": clipped_by(of_all_numbers),
        "The norm lacks the copies: they count once.": clipped_by(without_copies),
        "If the norm is below the limit, gradients stay as they are.": clipped_by(squares, up=True),
        "The norm is right, but return this rank's summand of a Partial, not the sum.": (
            clipped_by(squares, whole=True)
        ),
    },
    as_given="7cb78e05",
    points={"value": 2, "traffic": 1},
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# For each kind, ask how many ranks have a number of the whole gradient. Such a number must count once.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Sum each Partial in a clone. Afterwards all ranks have the same tensor, as with a copy.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Let only rank 0 add the squares of copies and of whole Partials to its sum. Then all_reduce the sums.
#
# </details>

# %% role="hidden" question="clipped"
seed = 1


def drawn_gradients(rank, world_size):
    kinds = [("S", "R", "P")[(seed + k) % 3] for k in range(4)]
    sizes = [2 + (seed + k) % 4 for k in range(4)]
    mine = []
    for k, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        at = 1000 * seed + 10 * k + (rank if kind != "R" else 0)
        draw = torch.Generator().manual_seed(at)
        mine.append(torch.rand(size, generator=draw, dtype=torch.float64) + 0.5)
    return mine, kinds, 0.5 + seed % 3


print(measure(clipped, drawn_gradients))

# %% [markdown]
# ## 9. From 4 ranks to 6 (★★★, 30 minutes, 3 points)
#
# A flat tensor has `total` numbers. It is cut over the first `before` ranks, and you must cut it over the
# first `after` ranks, without a file. Over k ranks, rank r has the numbers from r * size to (r + 1) *
# size, where size is total / k, rounded up. The last rank has the rest, which is at least one number.
# Return this rank's new chunk. A rank without a chunk has an empty tensor. Send only numbers that the
# other rank needs, and at most one message from one rank to another. You get 1 point for the value and 2
# for the traffic.


# %% role="answer" question="resharded" points={"value": 1, "traffic": 2}
def resharded(rank, world_size, piece, total, before, after):
    """Return the new chunk of this rank, a float32 tensor.

    piece is the old chunk. before and after are 1 to world_size.
    """
    ### BEGIN SOLUTION

    def ends(k, r):
        size = -(-total // k)
        return (r * size, min((r + 1) * size, total)) if r < k else (0, 0)

    (old, old_end), (low, high) = ends(before, rank), ends(after, rank)
    new, ops = torch.empty(high - low), []
    for other in range(world_size):
        a, b = ends(after, other)
        a, b = max(a, old), min(b, old_end)  # mine before, the other's after
        if a < b and other == rank:
            new[a - low : b - low] = piece[a - old : b - old]
        elif a < b:
            ops.append(dist.P2POp(dist.isend, piece[a - old : b - old], other))
        a, b = ends(before, other)
        a, b = max(a, low), min(b, high)  # the other's before, mine after
        if a < b and other != rank:
            ops.append(dist.P2POp(dist.irecv, new[a - low : b - low], other))
    for request in dist.batch_isend_irecv(ops) if ops else []:
        request.wait()
    return new
    ### END SOLUTION


# %% role="check" question="resharded" points={"value": 1, "traffic": 2}
def chunk_of(whole, k, r, round_up=True):
    """The chunk of rank r of k; of a mistake, with sizes rounded down."""
    size = -(-len(whole) // k) if round_up else len(whole) // k
    end = (r + 1) * size if round_up or r < k - 1 else len(whole)
    return whole[r * size : end].clone() if r < k else whole[:0].clone()


def cut(change, total=61):
    """Inputs: the chunks of 0, 1, 2, ...; `change(n)` gives before and after on n ranks."""

    def inputs(rank, world_size):
        before, after = change(world_size)
        return chunk_of(torch.arange(1.0, total + 1), before, rank), total, before, after

    return inputs


def more(n):
    return max(1, 2 * n // 3), n


def fewer(n):
    return max(1, n - 1), max(1, n - 2)


def rejoined(pieces, totals, old_ranks, new_ranks, chunk=chunk_of):
    whole = torch.cat(pieces)
    return [chunk(whole, new_ranks[0], rank) for rank in range(len(pieces))]


def rounded_down(*given):
    return rejoined(*given, chunk=functools.partial(chunk_of, round_up=False))


def dealt_out(*given):
    return rejoined(*given, chunk=lambda whole, k, r: whole[r::k] if r < k else whole[:0])


def whole_everywhere(pieces, *rest):
    return [torch.cat(pieces)] * len(pieces)


def over_all_ranks(pieces, *rest):
    return [chunk_of(torch.cat(pieces), len(pieces), rank) for rank in range(len(pieces))]


def moves(totals, old_ranks, new_ranks):
    """Of each pair of unlike ranks, how many numbers must go from the first to the second."""
    place = torch.arange(totals[0])
    n, found = len(totals), []
    for src, dst in itertools.permutations(range(n), 2):
        old, new = chunk_of(place, old_ranks[0], src), chunk_of(place, new_ranks[0], dst)
        found.append(int(torch.isin(old, new).sum()))
    return found


verdict = check(
    "resharded",
    resharded,
    [cut(more), cut(fewer)],
    rejoined,
    only("send", "recv"),
    messages(
        lambda pieces, *rest: sum(count > 0 for count in moves(*rest)),
        hint="What one rank has for another is in one piece: send it in one message.",
    ),
    nbytes(
        lambda pieces, *rest: 4 * sum(moves(*rest)),
        hint="Send only the numbers that are in your old chunk and in the other's new chunk.",
    ),
    mistakes={
        "That is still the old chunk.": lambda pieces, *rest: pieces,
        "That is the whole tensor: return this rank's new chunk.": whole_everywhere,
        "The size of a chunk is rounded up, not down: the last chunk is the small one.": rounded_down,
        "A rank has neighbouring numbers: you deal them out one by one.": dealt_out,
        "You cut over all ranks: only the first `after` ranks get a chunk.": over_all_ranks,
    },
    points={"value": 1, "traffic": 2},
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Every rank can compute where every old and new chunk begins and ends.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Of two chunks from a to b and from c to d, the common numbers are from `max(a, c)` to `min(b, d)`. If
# the first is not below the second, there are none.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Make a list of `dist.P2POp(dist.isend, ...)` and `dist.P2POp(dist.irecv, new[...], other)`, and give it
# to `dist.batch_isend_irecv`. Copy the numbers that your rank keeps, without a message.
#
# </details>

# %% role="hidden" question="resharded"
seed = 1


def drawn_chunks(rank, world_size):
    small = max(1, world_size - 1 - seed % 2)
    before, after = (small, world_size) if seed % 3 else (world_size, small)
    total = (2 + seed % 5) * before * after + seed % 2
    whole = torch.rand(total, generator=torch.Generator().manual_seed(seed))
    size = -(-total // before)
    mine = whole[rank * size : (rank + 1) * size] if rank < before else whole[:0]
    return mine.clone(), total, before, after


print(measure(resharded, drawn_chunks))
