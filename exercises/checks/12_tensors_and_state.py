"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/12_tensors_and_state.py, which is what grading reads; nobody edits this file.
"""

from simlib.checks import Fits, OneOf, brought, check, collectives, measure, messages, only


def small_numbers(seed, *shape):
    """Whole numbers from -3 to 3 as float32: sums of them are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).float()


# %% 12.1 row_parallel
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
        "Each rank has its own summand of y: they have to be added up.": y_of_one,
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


# %% 12.2 sharded_adam
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
    brought(per_step, hint="The gradients of a step out in parts, the new weights in, no more."),
    mistakes={
        "That is the sum of the gradients: take their mean.": with_gradients(lambda s: s.sum(0)),
        "Each rank follows its own gradients: where are the others'?": own_gradients,
        "Adam starts anew in every step: its state has to live on.": without_memory,
        "eps is 0.1 here, not torch's 1e-8.": with_options(eps=1e-8),
        "lr is 0.1 here, not torch's 1e-3.": with_options(lr=1e-3),
        "That is AdamW, which makes weights smaller besides: Adam is asked for.": with_options(
            kind=torch.optim.AdamW
        ),
        "The mean is divided by the number of ranks once more: ReduceOp.AVG has done that.": (
            with_gradients(lambda step: step.mean(0) / len(step))
        ),
        "The gradients of earlier steps are in those of later ones: each step has its own.": (
            never_zeroed
        ),
        "A rank has new weights in its own part only: the others have to be gathered.": (
            only_own_part
        ),
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


# %% 12.3 attention
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
        "y lacks the heads of the other ranks: it has to be summed.": heads_alone,
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
        "What comes back through the heads is averaged: it is to be summed.": (
            mistaken(enter=lambda n: 1 / n)
        ),
        "Nothing comes back through the heads: is the sum made of a tensor without its graph "
        "(`detach`)?": only_past,
    },
    as_given="35b890b0",
    points=2,
)
verdict


# %% 12.4 cheapest_mesh
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
        "Stage 1 is a plan, too: it sends less than stage 3, and fits where stage 0 does not.": (
            counted(but=1)
        ),
        "Stage 3 is a plan, too: it divides all 16 bytes, sends more, and fits where the others do "
        "not.": counted(but=3),
        "The plan is right, but dp stands first, then tp.": axes_exchanged,
        "A rank has job['activation_bytes'] / (dp * tp): both axes divide them.": another_share,
        "Along tp the parameters are divided, too: a rank keeps P / tp of them.": counted(
            kept_whole=True
        ),
        "A plan of stage 1 is counted too small: 4 + 4 bytes a parameter stay whole, and a dp-th of "
        "8.": counted(of_stage_1=lambda dp: 4 + 12 / dp),
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
