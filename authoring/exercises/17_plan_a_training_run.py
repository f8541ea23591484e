# %% [markdown]
# # Exercises 17: plan a training run
#
# This sheet has three tasks for lesson 17, parts [a](../notebooks/17_plan_a_training_run.ipynb),
# [b](../notebooks/17_prove_it_wrong.ipynb) and [c](../notebooks/17_what_the_run_costs.ipynb). You find a
# rank's place in a mesh, plan a run in numbers, and write a program that takes as long as it predicts.
#
# The check of the second task accepts numbers within a tolerance. The check of the third task uses the
# virtual clock of a simulation. Each task has folded hints.

# %% role="setup"
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist

import simlib
from simlib.checks import OneOf, Rule, Timed, check, collectives, measure, messages, nbytes, only

# %% [markdown]
# ## 1. The place of a rank (★, 15 minutes, 2 points)
#
# A mesh is a dict such as `{"tp": 4, "dp": 2, "pp": 3}` that has the axes with their sizes. Neighbouring
# ranks lie along the **first** axis of the dict. The order of the axes differs from mesh to mesh.
# `number` is one of the mesh's ranks. Return two dicts, and use the axes as keys of both. The first dict
# has the coordinate of `number` along each axis. The second dict has, for each axis, the sorted list of
# the ranks in the group of `number` along that axis. This list includes `number` itself. Your own rank
# does not matter. Send nothing.


# %% role="answer" question="place_of" points=2
def place_of(rank, world_size, mesh, number):
    """Return (coordinates, groups): {axis: int} and {axis: list of int}, in the order of mesh."""
    ### BEGIN SOLUTION
    coordinates, groups, stride = {}, {}, 1
    for axis, size in mesh.items():
        at = number // stride % size
        coordinates[axis] = at
        groups[axis] = [number + (k - at) * stride for k in range(size)]
        stride *= size
    return coordinates, groups
    ### END SOLUTION


# %% role="check" question="place_of" points=2
MESHES = [
    ({"tp": 4, "dp": 2, "pp": 3}, 13),
    ({"dp": 3, "tp": 2, "pp": 5}, 22),
    ({"pp": 4, "dp": 3, "tp": 2}, 15),
    ({"tp": 2, "pp": 5, "dp": 4}, 27),
    ({"dp": 6, "pp": 1, "tp": 1}, 4),
]


def lie(mesh, number, backwards=False, neighbours=False, wraps=True, first=False):
    """A place; of a mistake, as somebody else counts."""
    axes = list(mesh.items())
    coordinates, groups, stride = {}, {}, 1
    for axis, size in axes[::-1] if backwards else axes:
        at = number // stride % size if wraps else number // stride
        start = number - at * stride if not first else number // stride // size * stride * size
        step = 1 if neighbours else stride
        coordinates[axis] = at
        groups[axis] = [
            number - at * step + k * step if not first else start + k * stride for k in range(size)
        ]
        stride *= size
    return coordinates, groups


def lying(**otherwise):
    return lambda meshes, numbers: [
        lie(mesh, number, **otherwise) for mesh, number in zip(meshes, numbers, strict=True)
    ]


def own_rank(meshes, numbers):
    return [lie(mesh, rank) for rank, mesh in enumerate(meshes)]


def stride_of_one(meshes, numbers):
    """As if an axis' stride were the size of the axis before it."""
    found = []
    for mesh, number in zip(meshes, numbers, strict=True):
        coordinates, groups, stride = {}, {}, 1
        for axis, size in mesh.items():
            at = coordinates[axis] = number // stride % size
            groups[axis] = [number + (k - at) * stride for k in range(size)]
            stride = size
        found.append((coordinates, groups))
    return found


def from_zero(meshes, numbers):
    """As if all groups were those of rank 0."""
    zero = lying()(meshes, [0] * len(numbers))
    return [(a, b) for (a, _), (_, b) in zip(lying()(meshes, numbers), zero, strict=True)]


def sharing(meshes, numbers):
    """As if a group were all ranks with the same coordinate on its axis."""
    found = []
    for mesh, number in zip(meshes, numbers, strict=True):
        mine = lie(mesh, number)[0]
        ranks = [lie(mesh, one)[0] for one in range(math.prod(mesh.values()))]
        groups = {a: [r for r, at in enumerate(ranks) if at[a] == mine[a]] for a in mesh}
        found.append((mine, groups))
    return found


def groups_first(meshes, numbers):
    return [lie(*one)[::-1] for one in zip(meshes, numbers, strict=True)]


verdict = check(
    "place_of",
    place_of,
    lambda rank, world_size: MESHES[rank],
    lying(),
    collectives(lambda *given: 0, hint="A rank's place follows from its number."),
    messages(lambda *given: 0, hint="A rank's place follows from its number."),
    mistakes={
        "The last axis has neighbouring ranks in your mesh: here it is the first.": (
            lying(backwards=True)
        ),
        "Groups of every axis are neighbours in your mesh: along the second axis ranks are as far apart "
        "as the first is long.": lying(neighbours=True),
        "A coordinate is below its axis' size: what is left of the division belongs to it.": (
            lying(wraps=False)
        ),
        "Each group begins where its axis' block begins: it has to hold the rank itself.": (
            lying(first=True)
        ),
        "That is the place of your own rank: `number` is asked for.": own_rank,
        "A stride is the product of all sizes before, not the last of them.": stride_of_one,
        "Your groups are those of rank 0: they have to hold `number`.": from_zero,
        "A group along an axis differs in that coordinate and shares all others: yours shares that one.": (
            sharing
        ),
        "Coordinates first, then groups.": groups_first,
    },
    worlds=(5,),  # each rank has a mesh of its own: all five are looked at together
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# How far apart are neighbours along the first axis? How far apart are they along the second axis?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The coordinates are like the digits of a number. If `stride` is the product of the sizes of all earlier
# axes, the coordinate is `number // stride % size`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The group's ranks are `number + (k - coordinate) * stride` for k = 0, ..., size - 1.
#
# </details>

# %% role="hidden" question="place_of"
seed = 1


def drawn_mesh(rank, world_size):
    sizes = [1 + (seed + rank) % 4, 2 + (seed * 3 + rank) % 5, 1 + (seed * 7 + rank) % 6]
    axes = [("tp", "dp", "pp"), ("pp", "tp", "dp"), ("dp", "pp", "tp")][(seed + rank) % 3]
    return dict(zip(axes, sizes, strict=True)), (seed * 31 + rank * 17) % math.prod(sizes)


print(measure(place_of, drawn_mesh))

# %% [markdown]
# ## 2. A plan (★★★, 40 minutes, 4 points)
#
# Choose tp and pp for `job`, and return the plan as a dict. The docstring says how many bytes a rank
# keeps, and how much time a step takes. Take the choice that fits and has the shortest step. Return None
# if no choice fits. Your numbers may be 2 % off, so Young's formula is good enough for the checkpoints.
# Send nothing.


# %% role="answer" question="plan" points=4
def plan(rank, world_size, job):
    """Return {"tp", "pp", "memory_bytes", "step_s", "interval_s", "hours", "cost"}, or None.

    tp and pp are powers of two; tp is at most job["ranks_per_node"], pp divides job["layers"],
    tp * pp is at most job["ranks"], and dp = job["ranks"] / (tp * pp) divides job["batch"]: a
    replica has M = job["batch"] / dp micro-batches. All of `ranks` are used.

    A rank keeps 16 bytes for each of P / (tp * pp) parameters, and job["activation_bytes"] /
    (tp * pp) for each micro-batch in flight: min(M, pp) of them. It has job["memory_bytes"].

    A step takes pp - 1 turns of an ordinary stage, M turns of the last one, and then the
    all_reduce over dp. A turn is job["work_s"] / (tp * pp), and 2 (tp - 1) / tp *
    job["tp_bytes"] / pp bytes at job["inside_Bps"]. The last stage has the logits, too: each of
    its turns takes job["logits_s"] / tp longer. The all_reduce moves 2 (dp - 1) / dp times
    2 P / (tp * pp) bytes at job["between_Bps"].

    A checkpoint has 14 P bytes, at job["disk_Bps"]; a rank fails once in job["mtbf_s"]. Of
    job["steps"] steps simlib.scale.time_with_failures has the time (a restart takes none). A rank
    costs job["price"] an hour.
    """
    ### BEGIN SOLUTION
    P, ranks, found = job["P"], job["ranks"], []
    for tp in (2**k for k in range(13)):
        for pp in (2**k for k in range(13)):
            if tp > job["ranks_per_node"] or job["layers"] % pp or ranks % (tp * pp):
                continue
            dp = ranks // (tp * pp)
            if job["batch"] % dp:
                continue
            M = job["batch"] // dp
            kept = (16 * P + min(M, pp) * job["activation_bytes"]) / (tp * pp)
            if kept > job["memory_bytes"]:
                continue
            sums_s = 2 * (tp - 1) / tp * job["tp_bytes"] / pp / job["inside_Bps"]
            turn_s = job["work_s"] / (tp * pp) + sums_s
            step_s = (pp - 1) * turn_s + M * (turn_s + job["logits_s"] / tp)
            step_s += 2 * (dp - 1) / dp * 2 * P / (tp * pp) / job["between_Bps"]
            found.append((step_s, tp, pp, kept))
    if not found:
        return None
    step_s, tp, pp, kept = min(found)
    save_s = 14 * P / job["disk_Bps"]
    every_s = simlib.scale.checkpoint_interval(save_s, job["mtbf_s"], ranks)
    whole_s = simlib.scale.time_with_failures(
        job["steps"] * step_s, every_s, save_s, job["mtbf_s"], ranks
    )
    hours = whole_s / 3600
    chosen = {"tp": tp, "pp": pp, "memory_bytes": kept, "step_s": step_s, "interval_s": every_s}
    return chosen | {"hours": hours, "cost": hours * ranks * job["price"]}
    ### END SOLUTION


# %% role="check" question="plan" points=4
def job_of(
    P, ranks, ranks_per_node, layers, batch, work_s, logits_s, tp_bytes, memory_bytes=80e9, **more
):
    return {
        "P": P,
        "ranks": ranks,
        "ranks_per_node": ranks_per_node,
        "layers": layers,
        "batch": batch,
        "work_s": work_s,
        "logits_s": logits_s,
        "tp_bytes": tp_bytes,
        "activation_bytes": 20e9,
        "memory_bytes": memory_bytes,
        "inside_Bps": 300e9,
        "between_Bps": 25e9,
        "disk_Bps": 100e9,
        "mtbf_s": 3e7,
        "steps": 100_000,
        "price": 2.0,
    } | more


ETHERNET = {"between_Bps": 1.25e9, "activation_bytes": 1e9}
LAPTOPS = {"between_Bps": 0.125e9, "activation_bytes": 2e9}
TASKS = [  # told apart by them: each mistake below gives a list of plans of its own
    job_of(175e9, 1024, 8, 96, 1536, 25.0, 1.5, 40e9),
    job_of(0.33e9, 64, 4, 24, 1024, 0.05, 0.005, 0.4e9, 16e9, **ETHERNET),
    job_of(0.36e9, 8, 1, 24, 64, 6.0, 0.9, 1e9, 6e9, **LAPTOPS),
    job_of(20e9, 64, 8, 32, 512, 3.0, 0.3, 15e9, 40e9, activation_bytes=60e9),
    job_of(400e9, 8, 8, 96, 64, 60.0, 1.0, 80e9),  # none fits
    job_of(
        20e9, 64, 2, 24, 24, 3.0, 0.3, 15e9, 100e9
    ),  # fewer micro-batches than stages; dp = 16 is none
]


def planned(
    job, wide=False, fits=True, flight=min, divides=True, more=-1, sums=True, dp_sums=True,
    itemsize=2, bytes_of_state=16, cut_by_tp=True, whole=False, machine=True, failing=True, saved=14,
    minute=1, hour=3600, failures=True, all_ranks=True, worst=False, logits="last", logits_cut=True,
):  # fmt: skip
    """The plan; of a mistake, as somebody else counts."""
    P, ranks, found = job["P"], job["ranks"], []
    tps, pps = [2**k for k in range(13)], [2**k for k in range(13) if job["layers"] % 2**k == 0]
    most = ranks if wide else job["ranks_per_node"]
    cuts = [(tp, pp) for tp in tps for pp in pps if tp <= most and ranks % (tp * pp) == 0]
    for tp, pp in cuts:
        dp = ranks // (tp * pp)
        if job["batch"] % dp and divides or dp > job["batch"]:
            continue
        M = job["batch"] // dp
        held = flight(M, pp) * job["activation_bytes"] * (1 if cut_by_tp else tp)
        kept = (bytes_of_state * P + held) / (tp * pp)
        turn_s = job["work_s"] / (tp * pp)
        turn_s += sums * 2 * (tp - 1) / tp * job["tp_bytes"] / pp / job["inside_Bps"]
        logits_s = job["logits_s"] / (tp if logits_cut else 1)
        turn_s += {"last": 0, "even": logits_s / pp, "all": logits_s, "none": 0}[logits]
        ahead = 0 if more is None else pp + more
        step_s = ahead * turn_s + M * (turn_s + (logits == "last") * logits_s)
        cut = 1 if whole else tp * pp
        step_s += dp_sums * 2 * (dp - 1) / dp * itemsize * P / cut / job["between_Bps"]
        if kept <= job["memory_bytes"] or not fits:
            found.append((step_s, tp, pp, kept))
    if not found:
        return None
    step_s, tp, pp, kept = max(found) if worst else min(found)
    save_s, of = saved * P / job["disk_Bps"], ranks if machine else 1
    every_s = math.sqrt(2 * save_s * job["mtbf_s"] / of)
    work_s, of = job["steps"] * step_s, ranks if failing else 1
    whole_s = simlib.scale.time_with_failures(work_s, every_s, save_s, job["mtbf_s"], of)
    hours = (whole_s if failures else work_s) / hour
    cost = hours * job["price"] * (ranks if all_ranks else 1)
    every_s /= minute
    chosen = {"tp": tp, "pp": pp, "memory_bytes": kept, "step_s": step_s, "interval_s": every_s}
    return chosen | {"hours": hours, "cost": cost}


def counted(**otherwise):
    return lambda jobs: [planned(job, **otherwise) for job in jobs]


verdict = check(
    "plan",
    plan,
    lambda rank, world_size: (TASKS[rank],),
    counted(),
    collectives(lambda *given: 0, hint="Each rank can work this out for itself."),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "tp reaches beyond a node: it is at most ranks_per_node.": counted(wide=True),
        "That is the fastest of all plans; but it does not fit.": counted(fits=False),
        "A pipeline holds the activations of several micro-batches: min(M, pp).": (
            counted(flight=lambda M, pp: 1)
        ),
        "There may be fewer micro-batches than stages: min(M, pp) are in flight.": (
            counted(flight=lambda M, pp: pp)
        ),
        "1F1B holds no more than pp micro-batches: min(M, pp), not all M as GPipe does.": (
            counted(flight=lambda M, pp: M)
        ),
        "tp divides the activations, too.": counted(cut_by_tp=False),
        "dp has to divide the batch.": counted(divides=False),
        "Where is the bubble? Before the M turns of the last stage come pp - 1 of ordinary stages.": (
            counted(more=None)
        ),
        "That is a turn too many: before the M turns of the last stage come pp - 1, not pp.": (
            counted(more=0)
        ),
        "You spread the logits over all stages: the last one computes all of them.": (
            counted(logits="even")
        ),
        "You have logits on every stage: only the turns of the last one are longer.": (
            counted(logits="all")
        ),
        "Where are the logits? The turns of the last stage are longer by them.": (
            counted(logits="none")
        ),
        "tp divides the logits, too.": counted(logits_cut=False),
        "A rank sums its own gradients over dp, P / (tp * pp) of them, not all P.": (
            counted(whole=True)
        ),
        "tp is free in your sum: its all_reduces take time in every turn.": counted(sums=False),
        "dp is free in your sum: where is its all_reduce?": counted(dp_sums=False),
        "A gradient takes 2 bytes on its way here, not 4.": counted(itemsize=4),
        "The memory holds parameters, gradients and Adam's 12 bytes: 16 for each parameter.": (
            counted(bytes_of_state=4)
        ),
        "Any of the ranks may fail: the machine does so `ranks` times as often as one of them.": (
            counted(machine=False)
        ),
        "Where are the ranks? Give their number to the interval and to time_with_failures.": (
            counted(machine=False, failing=False)
        ),
        "The interval is right, but hours are those of one rank's failures: pass `ranks`, too.": (
            counted(failing=False)
        ),
        "interval_s is in seconds: yours is in minutes.": counted(minute=60),
        "hours are hours: yours are seconds.": counted(hour=1),
        "A checkpoint has 14 bytes for each parameter: gradients are not saved, Adam's state is.": (
            counted(saved=2)
        ),
        "A checkpoint has 14 bytes for each parameter, not 16: leave gradients out.": (
            counted(saved=16)
        ),
        "The hours are those of the steps alone: where are checkpoints and failures?": (
            counted(failures=False)
        ),
        "The cost is that of one rank: all of them are paid.": counted(all_ranks=False),
        "That is the slowest plan that fits.": counted(worst=True),
    },
    within=0.02,
    worlds=(6,),  # each rank has a job of its own: all six are looked at together
    points=4,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Write two loops over powers of two. Use `continue` if a choice is not allowed, or if it does not fit.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Collect tuples `(step_s, tp, pp, kept)`, and take the fastest one with `min`. Then work out the other
# numbers of the plan from this tuple.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A checkpoint takes `save_s = 14 * P / disk_Bps`. The interval is
# `simlib.scale.checkpoint_interval(save_s, mtbf_s, ranks)`. The whole run takes
# `simlib.scale.time_with_failures(steps * step_s, every_s, save_s, mtbf_s, ranks)`.
#
# </details>

# %% role="hidden" question="plan"
seed = 1


def drawn_task(rank, world_size):
    k = seed + 5 * rank
    job = job_of(
        1e9 * (1 + k % 50),
        64,
        2 ** (k % 4),
        32,
        1024,
        0.5 * (1 + k % 7),
        0.1 * (1 + k % 3),
        1e9 * (1 + k % 9),
    )
    return (job | {"memory_bytes": 1e10 * (2 + k % 7), "between_Bps": 1e9 * (1 + k % 25)},)


print(measure(plan, drawn_task))

# %% [markdown]
# ## 3. As long as it says (★★★, 40 minutes, 4 points)
#
# Write GPipe with one stage on each rank: do all forwards first, then all backwards. A stage computes
# y = w x. Its forward takes `simlib.compute(forward_s)`, and its backward takes twice as long. Rank 0
# has the micro-batches `xs`. On the last rank the gradient of y is y itself. Return
# `(w_grad, predicted_s)`. `w_grad` is the sum over micro-batches of (gradient of y times x).sum().
# `predicted_s` is the step's time. Predict this time *before the step runs*. The prediction may be 5 %
# off. Use `isend`, and call `recv` when you need the tensor. Early `irecv`s follow another formula.


# %% role="answer" question="as_predicted" points=4
def as_predicted(rank, world_size, xs, w, forward_s, latency_s, bandwidth_Bps):
    """Return (w_grad, predicted_s): a tensor without dimensions, and the same float on every rank.

    xs are float64 tensors of one shape, on every rank; ranks after 0 use their shape and number
    only. A message takes latency_s + bytes / bandwidth_Bps once both ends are there.
    """
    ### BEGIN SOLUTION
    M, K = len(xs), world_size
    message_s = latency_s + xs[0].nbytes / bandwidth_Bps
    predicted_s = (M + K - 1) * 3 * forward_s + (2 * (M + K - 2) * message_s if K > 1 else 0.0)
    inputs, ys, sent = [], [], []
    for x in xs:
        if rank > 0:
            x = torch.empty_like(x)
            dist.recv(x, src=rank - 1)
        simlib.compute(forward_s)
        inputs.append(x)
        ys.append(w * x)
        if rank < K - 1:
            sent.append(dist.isend(ys[-1], dst=rank + 1))
    w_grad = torch.zeros((), dtype=xs[0].dtype)
    for x, y in zip(inputs, ys, strict=True):
        gradient = y
        if rank < K - 1:
            gradient = torch.empty_like(y)
            dist.recv(gradient, src=rank + 1)
        simlib.compute(2 * forward_s)
        w_grad += (gradient * x).sum()
        if rank > 0:
            sent.append(dist.isend(w * gradient, dst=rank - 1))
    for request in sent:
        request.wait()
    return w_grad, predicted_s
    ### END SOLUTION


# %% role="check" question="as_predicted" points=4
FASTER = (
    "Does it compute all that it says? Or are receives posted early, by `irecv`? Then messages hide behind "
    "computing, and fewer of them are waited for than the formula counts: call `recv` when you need the tensor."
)
BLOCKED = "A `send` waits for the receiver: start an `isend`, go on, and wait for all at the end."
FORWARD_S, LATENCY_S, BANDWIDTH_BPS = 1e-3, 5e-4, 2e6


def micro_batches(M, seed=0):
    """Inputs: M micro-batches of 400 numbers, w of each rank; a message takes 2.1 ms.

    So a wait too many is 6.6 % of a step of 2 ranks.
    """

    def inputs(rank, world_size):
        generator = torch.Generator().manual_seed(seed)
        xs = [torch.rand(400, generator=generator, dtype=torch.float64) for _ in range(M)]
        w = torch.tensor((2.0, 1.5, 3.0, 1.25, 2.5)[(rank + seed) % 5], dtype=torch.float64)
        return xs, w, FORWARD_S, LATENCY_S, BANDWIDTH_BPS

    return inputs


def stepped(
    xss, ws, forwards, latencies, bandwidths, bubble=True, message=1, backward=2, latency=True,
    sends=True, only_last=False, waits=lambda M, K: 2 * (M + K - 2), alone=False,
):  # fmt: skip
    """What each rank returns; of a mistake, as somebody else counts."""
    xs, K, M = xss[0], len(ws), len(xss[0])
    c = latency * latencies[0] + message * xs[0].nbytes / bandwidths[0]
    turns = M + bubble * (K - 1)
    time_s = turns * (1 + backward) * forwards[0]
    time_s += waits(M, K) * c * (K > 1) * sends
    product = math.prod(w.item() for w in ws)
    squares = [(x * x).sum() for x in xs]
    total = squares[-1] if only_last else sum(squares)
    times_s = [time_s] + [0.0 if alone else time_s] * (K - 1)
    return [(product**2 / w * total, said) for w, said in zip(ws, times_s, strict=True)]


def stepping(**otherwise):
    return lambda *given: stepped(*given, **otherwise)


def own_grads(*given):
    """As if every rank's gradient of y were its own y."""
    right, found = stepped(*given), []
    for rank, (_, time_s) in enumerate(right):
        product = math.prod(w.item() for w in given[1][: rank + 1])
        total = sum((x * x).sum() for x in given[0][0])
        found.append((product**2 / given[1][rank] * total, time_s))
    return found


def not_handed_on(*given):
    """As if the gradient went back as it came, without w."""
    right, ws, total = stepped(*given), given[1], sum((x * x).sum() for x in given[0][0])
    product = math.prod(w.item() for w in ws)
    before = [math.prod(w.item() for w in ws[:rank]) for rank in range(len(ws))]
    return [(product * x * total, time_s) for x, (_, time_s) in zip(before, right, strict=True)]


@dataclass(frozen=True)
class AsPredicted(Timed):
    """A simulation that has to take as long as the answer says, to a share of 5 %."""

    @property
    def rule(self):
        def said(run):
            return run.results[0][1] if isinstance(run.results[0], tuple) else run.results[0]

        def broken(run, given):
            share = run.time_s / said(run) - 1
            if abs(share) <= 0.05:
                return None
            is_blocked = any(op.kind == "send" and not op.async_op for op in run.trace)
            hint = (BLOCKED if is_blocked else self.hint) if share > 0 else FASTER
            return (
                f"Every rank has the right value, but in simulate the step takes {run.time_s * 1e3:.4g} ms "
                f"where it says {said(run) * 1e3:.4g} ms, {share:+.1%}. {hint}"
            )

        def tally(run, given):
            return f"{run.time_s * 1e3:.4g} ms in simulate, predicted {said(run) * 1e3:.4g} ms"

        return Rule(broken, tally)


def simulated(K, M):
    link = simlib.Link(LATENCY_S, BANDWIDTH_BPS)
    return AsPredicted(
        simlib.Cluster(K, 1, link),
        micro_batches(M),
        lambda *given: math.inf,
        "Does a rank wait where it could go on? One micro-batch after the other leaves all stages but one "
        "idle.",
    )


verdict = check(
    "as_predicted",
    as_predicted,
    micro_batches(4),
    stepped,
    only("send", "recv"),
    messages(
        lambda xss, *_: 2 * len(xss[0]) * (len(xss) - 1),
        hint="One message forward and one backward, for each micro-batch and boundary.",
    ),
    nbytes(lambda xss, *_: 2 * len(xss[0]) * (len(xss) - 1) * xss[0][0].nbytes),
    mistakes={
        "The gradient is right, but the time lacks the bubble: M + K - 1 turns.": (
            stepping(bubble=False)
        ),
        "The gradient is right, but messages take no time in your prediction.": stepping(
            sends=False
        ),
        "The gradient is right, but backward takes as long as forward in your prediction.": (
            stepping(backward=1)
        ),
        "The gradient is right, but your messages have no latency.": stepping(latency=False),
        "The gradient is right, but your messages have latency only: what of their bytes?": (
            stepping(message=0)
        ),
        "The gradient is right, but you count too few waits for messages: M + K - 2 in each phase, as `recv` is "
        "called when the tensor is needed. (Receives posted early wait on the ramp alone.)": (
            stepping(waits=lambda M, K: 2 * (K - 1))
        ),
        "The gradient is right, but 2 M waits are those of one boundary: on the ramps a message crosses "
        "K - 2 more, in each phase.": stepping(waits=lambda M, K: 2 * M),
        "The gradient is right, but you count a wait too many: rank 0 receives nothing forward, the last rank "
        "nothing backward, so that each phase has M + K - 2 in a row.": lambda *given: OneOf(
            [stepped(*given, waits=lambda M, K, k=k: 2 * (M + K - 2) + k) for k in (1, 2)]
        ),
        "The gradient is right, but messages go back, too: M + K - 2 waits in each of two phases.": (
            stepping(waits=lambda M, K: M + K - 2)
        ),
        "The prediction is right on rank 0 alone: return it on every rank.": stepping(alone=True),
        "The gradient of x is w times that of y: you hand it on without w.": not_handed_on,
        "w_grad is that of the last micro-batch: add them up.": stepping(only_last=True),
        "Each rank takes its own y as gradient: only the last one does, the others receive theirs.": (
            own_grads
        ),
    },
    timed=[simulated(4, 8), simulated(3, 12), simulated(5, 4)],
    within=0.05,
    points=4,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# In lesson 11, equal stages take (M + K - 1)(forward + backward). Which time for messages must you add?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Think of a rank that receives, computes, and sends with `isend`. This rank waits for one message per
# micro-batch. In each of the two phases, M + K - 2 such waits follow each other.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The step takes `(M + K - 1) * 3 * forward_s + 2 * (M + K - 2) * message_s`. In a world of one there are
# no messages. Wait for all `isend`s at the very end.
#
# </details>

# %% role="hidden" question="as_predicted"
seed = 1
print(measure(as_predicted, micro_batches(2 + seed % 5, seed)))
network = AsPredicted(simlib.Cluster(4, 1, simlib.Link(LATENCY_S, BANDWIDTH_BPS)), None, None)
print(
    measure(
        as_predicted,
        micro_batches(3 + seed % 7, seed),
        worlds=(4,),
        start=network.start(timeout_s=20),
    )
)
