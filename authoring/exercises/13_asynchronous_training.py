# %% [markdown]
# # Exercises 13: asynchronous training
#
# This sheet has six tasks for [lesson 13](../notebooks/13_asynchronous_training.ipynb). In the first
# task you write a server that knows how old its gradients are. In the second task you write shards:
# workers ask a shard only for numbers that this shard holds. In the third task you write local SGD with
# unequal shards. In the fourth task you decide whether workers should train together or apart. The fifth
# and the sixth task belong to [part d](../notebooks/13_for_large_models.ipynb): DiLoCo in fragments, and
# a gradient of old answers. The first task gives the order of the ranks. In the second task the order
# does not matter. So each task has one right result.
#
# Each task has folded hints. Tasks 3 and 5 use `cost_gradient`.

# %% role="setup"
import itertools

import torch
import torch.distributed as dist

import simlib
from simlib.checks import (
    OneOf,
    Rule,
    brought,
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    nbytes,
    only,
)


def cost_gradient(theta, rows, targets):
    """Gradient, at the weights theta, of the mean squared error of rows @ theta."""
    return 2 * rows.T @ (rows @ theta - targets) / len(rows)


# %% [markdown]
# ## 1. How old? (★★, 20 minutes, 3 points)
#
# Rank 0 is a server with theta = 0 and version 0. The workers begin with the same theta and version.
# `order` lists the workers in the order of their pushes. For a push, the worker sends its `gradient`
# together with its version. The server subtracts the gradient from theta, adds 1 to its own version, and
# answers with both theta and version. Rank 0 returns a list of ints: the staleness of each push. A
# worker returns the theta that it received last. Use two messages for each push. Each message is one
# number longer than `gradient`.


# %% role="answer" question="serve" points=3
def serve(rank, world_size, order, gradient):
    """Return the staleness of every push (on rank 0), or the last theta (on a worker).

    order is a list of ranks, none of them 0, the same on every rank; gradient is float32,
    one-dimensional, of the same length on every rank. Leave it as it is.
    """
    ### BEGIN SOLUTION
    state = torch.zeros(len(gradient) + 1)  # theta and, last, its version
    came, ages = torch.zeros_like(state), []
    for worker in order:
        if rank == 0:
            dist.recv(came, src=worker)
            ages.append(int(state[-1] - came[-1]))
            state[:-1] -= came[:-1]
            state[-1] += 1
            dist.send(state, dst=worker)
        elif rank == worker:
            dist.send(torch.cat([gradient, state[-1:]]), dst=0)
            dist.recv(state, src=0)
    return ages if rank == 0 else state[:-1]
    ### END SOLUTION


# %% role="check" question="serve" points=3
def order_and_gradient(rank, world_size):
    orders = {
        2: [1, 1, 1],
        3: [1, 2, 2, 1, 2],
        4: [3, 1, 2, 3, 3, 1, 3],
        5: [4, 1, 4, 4, 2, 1, 4, 2],
    }
    return orders[world_size], torch.tensor([1.0, -2.0, 4.0]) * (rank + 1) + rank


def served(orders, gradients, age=lambda version, had, last: version - had):
    """What each rank must return; `age` says what the server takes for the staleness."""
    theta, had, last, ages = torch.zeros_like(gradients[0]), {}, {}, []
    held = [theta] * len(gradients)
    for version, worker in enumerate(orders[0]):
        ages.append(age(version, had.get(worker, 0), last.get(worker, 0)))
        theta = theta - gradients[worker]
        had[worker], last[worker], held[worker] = version + 1, version, theta
    return [ages, *held[1:]]


def from_anybody(run, given):
    """Whether the server takes whoever comes, where `order` says who comes."""
    if any(op.any_source for op in run.trace.of_rank(0)):
        return (
            "Rank 0 receives from any rank that comes first, but `order` says which one is next: "
            "receive from the worker whose turn it is."
        )
    return None


def without_version(run, given):
    """Whether a message is too short to hold the version."""
    whole = given[1][0].nbytes + 4
    shortest = min((m.nbytes for m in run.trace.messages), default=whole)
    if shortest < whole:
        return (
            f"The values are right in a world of {run.world_size}, but a message has {shortest} "
            f"bytes, and the task wants {whole}: the version travels both ways, as an update knows "
            "by it which theta it was made from."
        )
    return None


verdict = check(
    "serve",
    serve,
    order_and_gradient,
    served,
    only("send", "recv"),
    Rule(from_anybody, before_values=True),
    messages(
        lambda orders, gradients: 2 * len(orders[0]),
        hint="The version can travel with the numbers.",
    ),
    nbytes(lambda orders, gradients: 2 * len(orders[0]) * (gradients[0].nbytes + 4)),
    Rule(without_version),
    mistakes={
        "Those are the server's versions: subtract the version that the worker had.": (
            lambda *given: served(*given, age=lambda version, had, last: version)
        ),
        "One too many: a gradient of the newest theta has staleness 0.": (
            lambda *given: served(*given, age=lambda version, had, last: version - had + 1)
        ),
        "You count from the worker's last push, its own update included; count from the theta it fetched.": (
            lambda *given: served(*given, age=lambda version, had, last: version - last)
        ),
        "The stalenesses are right, but theta goes the wrong way: subtract gradients.": (
            lambda orders, gradients: [
                served(orders, gradients)[0],
                *(-theta for theta in served(orders, gradients)[1:]),
            ]
        ),
    },
    worlds=range(2, 6),  # a server and a worker at least
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Send the version as one more number: `torch.cat([gradient, version])`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# When a gradient comes, subtract the version that came with it from the server's version. The difference
# is the staleness.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Both the server and the workers go through `order`. Rank 0 receives from `worker`, and only this worker
# sends.
#
# </details>

# %% role="hidden" question="serve"
seed = 1


def hidden_order_and_gradient(rank, world_size):
    order = [1 + (seed + k * k) % (world_size - 1) for k in range(6)]
    return order, torch.tensor([float(seed % 7), 1.0, -3.0, 2.0]) * (rank + 1)


print(measure(serve, hidden_order_and_gradient, range(2, 6)))

# %% [markdown]
# ## 2. Only what is mine (★★★, 25 minutes, 4 points)
#
# Theta has `P` numbers. Ranks s < S are shards: `x` on rank s is part s of `theta.tensor_split(S)`. Rank
# S + k is a worker and uses only the numbers a to b - 1 of theta, with `a, b = pieces[k]`. The worker's
# `x` is the gradient of these numbers. Each worker sends to each shard the part of its gradient that
# belongs to the shard. When a shard has received all parts, it subtracts them from its `x`. Then the
# shard sends to each worker the numbers that the worker uses. Return the new `x` on a shard. Return
# theta's new numbers a to b - 1 on a worker.


# %% role="answer" question="push_and_fetch" points=4
def push_and_fetch(rank, world_size, S, P, pieces, x):
    """Return the new part of theta (on a shard), or the new numbers a to b - 1.

    pieces is a list of pairs (a, b), a < b, the same on every rank; x is float32. Leave it as it is.
    """
    ### BEGIN SOLUTION
    parts = torch.arange(P).tensor_split(S)
    edges = [0, *itertools.accumulate(len(part) for part in parts)]
    x = x.clone()

    def shared(s, k):
        """The numbers that shard s and piece k both hold, from one to before another; or None."""
        a, b = max(edges[s], pieces[k][0]), min(edges[s + 1], pieces[k][1])
        return (a, b) if a < b else None

    if rank < S:
        begin = edges[rank]
        common = {k: shared(rank, k) for k in range(len(pieces)) if shared(rank, k)}
        for k, (a, b) in common.items():
            came = torch.empty(b - a)
            dist.recv(came, src=S + k)
            x[a - begin : b - begin] -= came
        for k, (a, b) in common.items():
            dist.send(x[a - begin : b - begin].clone(), dst=S + k)
        return x
    begin, k = pieces[rank - S][0], rank - S
    common = {s: shared(s, k) for s in range(S) if shared(s, k)}
    for s, (a, b) in common.items():
        dist.send(x[a - begin : b - begin].clone(), dst=s)
    for s, (a, b) in common.items():
        dist.recv(x[a - begin : b - begin], src=s)
    return x
    ### END SOLUTION


# %% role="check" question="push_and_fetch" points=4
# by world size: shards, numbers, pieces
LAYOUTS = {
    2: (1, 5, [(1, 4)]),
    3: (2, 7, [(2, 6)]),
    4: (2, 9, [(0, 5), (3, 9)]),
    5: (3, 10, [(0, 6), (8, 10)]),
}


def layout(rank, world_size, layouts=LAYOUTS):
    S, P, pieces = layouts[world_size]
    if rank < S:
        return S, P, pieces, (torch.arange(P).tensor_split(S)[rank] * 10).float()
    a, b = pieces[rank - S]
    return S, P, pieces, torch.arange(a, b) % 4 + float(rank)


def after(shards, numbers, all_pieces, xs, sign=-1, seen=None):
    """What each rank must return; `seen` says which pushes each piece sees, if not all."""
    S, pieces = shards[0], all_pieces[0]
    old = torch.cat(xs[:S])
    theta = old.clone()
    for (a, b), gradient in zip(pieces, xs[S:], strict=True):
        theta[a:b] += sign * gradient
    fetched = [theta[a:b] for a, b in pieces]
    if seen == "before":
        fetched = [old[a:b] for a, b in pieces]
    if seen in ("own", "so far"):
        fetched, now = [], old.clone()
        for (a, b), gradient in zip(pieces, xs[S:], strict=True):
            now = old.clone() if seen == "own" else now
            now[a:b] -= gradient
            fetched.append(now[a:b].clone())
    return [*theta.tensor_split(S), *fetched]


def cut_elsewhere(length_of):
    """The same where shards begin at other numbers: the last one longer, or shorter."""

    def found(shards, numbers, all_pieces, xs):
        S, P, gradient = shards[0], numbers[0], torch.zeros(numbers[0])
        for (a, b), x in zip(all_pieces[0], xs[S:], strict=True):
            gradient[a:b] += x
        begins = [s * length_of(P, S) for s in range(S)]
        parts, theta = [x.clone() for x in xs[:S]], torch.zeros(P)
        for part, begin, end in zip(parts, begins, [*begins[1:], P], strict=True):
            n = min(len(part), end - begin)
            part[:n] -= gradient[begin : begin + n]
            theta[begin : begin + n] = part[:n]
        return [*parts, *(theta[a:b] for a, b in all_pieces[0])]

    return found


def overlaps(shards, numbers, all_pieces, xs):
    """How many numbers each shard and each piece have in common, where there are any."""
    ends = list(itertools.accumulate(len(x) for x in xs[: shards[0]]))
    common = [
        min(b, end) - max(a, begin)
        for begin, end in zip([0, *ends], ends, strict=False)
        for a, b in all_pieces[0]
    ]
    return [n for n in common if n > 0]


verdict = check(
    "push_and_fetch",
    push_and_fetch,
    layout,
    after,
    only("send", "recv", "isend", "irecv"),
    messages(
        lambda *given: 2 * len(overlaps(*given)),
        hint="One push and one answer, and only between those that have numbers in common.",
    ),
    nbytes(
        lambda *given: 2 * 4 * sum(overlaps(*given)),
        hint="Send a shard only what it holds, and let it answer with what was asked for.",
    ),
    mistakes={
        "Theta goes the wrong way: gradients are subtracted.": lambda *given: after(*given, sign=1),
        "A shard answers before it has subtracted anything.": lambda *given: after(
            *given, seen="before"
        ),
        "A shard answers before it has all pushes that concern it: where pieces overlap, one is missing.": (
            lambda *given: after(*given, seen="so far")
        ),
        "A shard answers with the asker's own push alone: where pieces overlap, the others' are missing.": (
            lambda *given: after(*given, seen="own")
        ),
        "Where do the shards begin? tensor_split makes the first P % S of them one longer, not the last.": (
            cut_elsewhere(lambda P, S: P // S)
        ),
        "Where do the shards begin? torch.chunk rounds all lengths up; tensor_split makes the first P % S "
        "one longer.": cut_elsewhere(lambda P, S: -(-P // S)),
    },
    worlds=range(2, 6),  # a shard and a piece at least
    points=4,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Where does each shard begin and end? If S does not divide P, `tensor_split` makes the first parts one
# number longer.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Suppose that a shard has the numbers c to d - 1, and a piece has the numbers a to b - 1. The two share
# the numbers max(a, c) to min(b, d) - 1. If max(a, c) is not less than min(b, d), they share no number.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Use two loops on each rank: do all pushes in the first loop, and all answers in the second. Count the
# index in a slice from the place where the shard or the piece begins. On a shard, number i of theta has
# the index i - c. In a piece, number i has the index i - a.
#
# </details>

# %% role="hidden" question="push_and_fetch"
seed = 1
hidden_layouts = {}
for n in range(2, 6):
    size, first = 9 + seed % 7, seed % 5
    hidden_layouts[n] = (n // 2, size, [(first, 6 + k) for k in range(n - n // 2)])
print(measure(push_and_fetch, lambda rank, n: layout(rank, n, hidden_layouts), range(2, 6)))

# %% [markdown]
# ## 3. Local SGD with unequal shards (★★, 15 minutes, 3 points)
#
# In each round, every rank starts from the common theta. H times, the rank subtracts `rate` times
# `cost_gradient` of its own rows from theta. Then all ranks take the mean of their thetas. In this
# mean
# **every row counts the same**. A rank may have no rows. Return theta after all rounds. Use one
# `all_reduce` in each round. Its tensor may be at most one number longer than theta. Leave the inputs as
# they are.


# %% role="answer" question="local_sgd" points=3
def local_sgd(rank, world_size, theta, rows, targets, H, rounds, rate):
    """Return theta after `rounds` rounds of H local steps each.

    theta is float32, equal on all ranks; rows has shape (own rows, len(theta)), targets (own rows,).
    """
    ### BEGIN SOLUTION
    for _ in range(rounds):
        mine = theta.clone()
        if len(rows):
            for _ in range(H):
                mine -= rate * cost_gradient(mine, rows, targets)
        buffer = torch.cat([mine, torch.ones(1)]) * len(rows)
        dist.all_reduce(buffer)
        theta = buffer[:-1] / buffer[-1]
    return theta
    ### END SOLUTION


# %% role="check" question="local_sgd" points=3
ROWS = [3, 0, 1, 6, 2]


def problem(rank, world_size, rows=ROWS, seed=0):
    random = torch.Generator().manual_seed(10 * seed + rank)
    x = torch.randn(rows[rank], 3, generator=random)
    return torch.tensor([1.0, -1.0, 0.5]), x, x.sum(1) + rank, 3, 2, 0.05


def averaged(thetas, xs, ys, Hs, counts, rates, weigh=len, H=None, rounds=None, total=None):
    """Theta on every rank, the thetas weighed by weigh(rows) and divided by `total`."""
    theta = thetas[0]
    for _ in range(rounds or counts[0]):
        ends = []
        for x, y in zip(xs, ys, strict=True):
            mine = theta
            for _ in range(H or Hs[0]):
                mine = mine - rates[0] * cost_gradient(mine, x, y) if len(x) else mine
            ends.append(mine)
        weights = [weigh(x) for x in xs]
        theta = sum(w * end for w, end in zip(weights, ends, strict=True))
        theta = theta / (total or sum(weights))
    return [theta] * len(xs)


def meets_at_each_step(run, given):
    """Whether the ranks take a mean after each step."""
    if len(run.trace.collectives) == given[3][0] * given[4][0]:
        return (
            f"The values are right in a world of {run.world_size}, but you take a mean after each "
            "step: take H steps without the others, then one mean."
        )
    return None


verdict = check(
    "local_sgd",
    local_sgd,
    problem,
    averaged,
    only("all_reduce"),
    Rule(meets_at_each_step),
    collectives(
        lambda *given: given[4][0],
        hint="One all_reduce in a round is enough: send the number of rows in the same tensor.",
    ),
    collective_nbytes(
        lambda *given: given[0][0].nbytes + 4,
        hint="Send only theta, and one more number: the number of rows.",
    ),
    mistakes={
        "That is the plain mean of the thetas: weigh each theta by its rank's number of rows.": (
            lambda *given: averaged(*given, weigh=lambda x: 1)
        ),
        "Ranks without rows must not count. Every other rank counts by its number of rows.": (
            lambda *given: averaged(*given, weigh=lambda x: min(len(x), 1))
        ),
        "A rank without rows counts as if it had one row: it must contribute zeros, also as its count.": (
            lambda *given: averaged(*given, weigh=lambda x: max(len(x), 1))
        ),
        "You divide the sum of rows times theta by the number of ranks: divide by the number of all rows.": (
            lambda *given: averaged(*given, total=len(given[0]))
        ),
        "The mean is taken once, at the end: each round begins from the common theta.": (
            lambda *given: averaged(*given, H=given[3][0] * given[4][0], rounds=1)
        ),
        "That is one round: run all rounds.": lambda *given: averaged(*given, rounds=1),
        "Each step goes uphill: subtract the gradient.": (
            lambda *given: averaged(*given[:5], [-rate for rate in given[5]])
        ),
        "That is one step a round: take H of them.": lambda *given: averaged(*given, H=1),
        "All results are nan: a rank without rows has contributed the mean of no rows.": (
            lambda *given: [given[0][0] * torch.nan] * len(given[0])
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Each rank contributes its theta, multiplied by its number of rows, to the all_reduce. By which number
# must you divide the sum?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Append the number of rows to theta: then the all_reduce adds up the rows, too.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A rank without rows takes no steps, and contributes zeros. But such a rank takes part in every
# all_reduce.
#
# </details>

# %% role="hidden" question="local_sgd"
seed = 1
hidden_rows = [2, seed % 3, 1 + seed % 4, 0, 3]
print(measure(local_sgd, lambda rank, n: problem(rank, n, hidden_rows, seed)))

# %% [markdown]
# ## 4. Together or apart? (★★, 20 minutes, 3 points)
#
# Each of `clusters` is a dict. There are four workers. Rank 1 takes `slow` times `step_s` for a
# gradient, and every other worker takes `step_s`. If the workers train together, they need `steps`
# steps. Each of these steps has a ring of 6 rounds with messages of `nbytes` / 4 bytes. If the workers
# train apart, with a server as in lesson 13, they need `updates` updates. Both ways then reach the same
# loss. A message takes `latency_s` + its bytes / `bandwidth_Bps`. For each cluster, find the way that
# needs less time. Return a list that has `"together"` or `"apart"` for each cluster. Send nothing.


# %% role="answer" question="choose" points=3
def choose(rank, world_size, clusters):
    """Return a list of "together" and "apart", one for each cluster.

    A cluster has the keys slow, step_s, nbytes, latency_s, bandwidth_Bps, steps and updates. The
    server receives and sends one message after the other.
    """
    ### BEGIN SOLUTION
    answers = []
    for c in clusters:
        step_s, slow_s = c["step_s"], c["slow"] * c["step_s"]
        round_s = c["latency_s"] + c["nbytes"] / 4 / c["bandwidth_Bps"]
        message_s = c["latency_s"] + c["nbytes"] / c["bandwidth_Bps"]
        per_s = 3 / (step_s + 2 * message_s) + 1 / (slow_s + 2 * message_s)
        together_s = c["steps"] * (slow_s + 6 * round_s)
        apart_s = c["updates"] / min(per_s, 1 / (2 * message_s))
        answers.append("together" if together_s < apart_s else "apart")
    return answers
    ### END SOLUTION


# %% role="check" question="choose" points=3
KEYS = ("slow", "step_s", "nbytes", "latency_s", "bandwidth_Bps", "steps", "updates")
CLUSTERS = [
    (4, 1e-3, 40_000, 1e-5, 1.25e9, 40, 200),  # a slow rank
    (2, 1e-3, 100_000, 1e-5, 1.25e8, 40, 160),  # the server sets the pace
    (1, 1e-3, 4_000, 1e-4, 1.25e9, 40, 180),  # equal ranks, and a ring of slow rounds
    (2, 1e-3, 4_000, 1e-5, 1.25e9, 40, 300),  # staleness costs too many updates
    (3, 1e-3, 40_000, 1e-5, 1.25e8, 40, 150),  # a slow rank and a slow link
    (8, 1e-3, 4_000, 1.6e-4, 1.25e9, 40, 910),  # messages are a part of a worker's turn
    (8, 1e-3, 4_000, 1.6e-4, 1.25e9, 40, 600),  # three are quick, whatever the fourth does
    (1, 1e-3, 100_000, 1e-5, 1.25e9, 40, 184),  # the ring sends quarters
    (2, 1e-3, 250_000, 1e-5, 1.25e8, 40, 125),  # an update is two messages for the server
    (1, 1e-3, 4_000, 2e-4, 1.25e9, 40, 118),  # the ring takes time
    (1, 1e-3, 4_000, 2e-4, 1.25e9, 40, 148),  # two rounds would be too few
]


def ask(rank, world_size, clusters=CLUSTERS):
    turned = clusters[rank:] + clusters[:rank]
    return ([dict(zip(KEYS, cluster, strict=True)) for cluster in turned],)


def together(rank, world_size, c):
    x = torch.zeros(c["nbytes"] // 4)
    for _ in range(c["steps"]):
        simlib.compute(seconds=c["step_s"] * (c["slow"] if rank == 1 else 1))
        dist.all_reduce(x)


def apart(rank, world_size, c):
    x = torch.zeros(c["nbytes"] // 4)
    if rank == 0:
        for update in range(c["updates"]):
            src = dist.recv(x)
            x[0] = float(update < c["updates"] - (world_size - 1))
            dist.send(x, dst=src)
        return
    x[0] = 1
    while x[0]:
        simlib.compute(seconds=c["step_s"] * (c["slow"] if rank == 1 else 1))
        dist.send(x, dst=0)
        dist.recv(x, src=0)


FIRST = {}  # what was simulated already


def by_simulation(c):
    """Which of both is first in a simulation."""
    key = tuple(c.values())
    if key not in FIRST:
        link = simlib.Link(c["latency_s"], c["bandwidth_Bps"])
        ring = {"cluster": simlib.Cluster(4, 1, inter=link), "all_reduce": "ring"}
        runs = [
            simlib.simulate(together, 4, (c,), **ring),
            simlib.simulate(apart, 5, (c,), cluster=simlib.Cluster(5, 1, inter=link)),
        ]
        FIRST[key] = "together" if runs[0].time_s < runs[1].time_s else "apart"
    return FIRST[key]


def by_formula(c, turn=2, limit=2, part=4, rounds=6, others=3, alike=(), turns=None):
    """The formula with its usual faults; `turns` is what the sum over the workers is taken for."""
    message_s = c["latency_s"] + c["nbytes"] / c["bandwidth_Bps"]
    step_s = c["step_s"]
    slow_s, slow_apart_s = (
        step_s if which in alike else c["slow"] * step_s for which in ("together", "apart")
    )
    mean_s = {"mean": (3 * step_s + slow_apart_s) / 4, "slowest": slow_apart_s}.get(turns)
    per_s = others / (step_s + turn * message_s) + 1 / (slow_apart_s + turn * message_s)
    per_s = 4 / (mean_s + turn * message_s) if mean_s else per_s
    per_s = min(per_s, 1 / (limit * message_s)) if limit else per_s
    ring_s = rounds * (c["latency_s"] + c["nbytes"] / part / c["bandwidth_Bps"])
    return "together" if c["steps"] * (slow_s + ring_s) < c["updates"] / per_s else "apart"


def judged(rule):
    """What each rank must return, or would, by a rule."""
    return lambda asked: [[rule(c) for c in clusters] for clusters in asked]


def with_fault(*faults):
    """What each rank would return by the formula with one of these faults."""
    return lambda asked: OneOf(
        [judged(lambda c, fault=fault: by_formula(c, **fault))(asked) for fault in faults]
    )


verdict = check(
    "choose",
    choose,
    ask,
    judged(by_simulation),
    collectives(lambda asked: 0, hint="Each rank can work this out for itself."),
    messages(lambda asked: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "Always apart: nobody waits there, but not all clusters are won by that.": judged(
            lambda c: "apart"
        ),
        "Always together: nothing is stale there, but not all clusters are won by that.": judged(
            lambda c: "together"
        ),
        "The server does one thing at a time: how many messages can it receive and send in a second?": (
            with_fault({"limit": 0})
        ),
        "An update costs the server two messages' time: one that it receives, and one that it sends.": (
            with_fault({"limit": 1})
        ),
        "So it would be if all ranks were equal: together, a step is as slow as its slowest rank.": (
            with_fault({"alike": ("together", "apart")}, {"alike": ("together",)})
        ),
        "Apart, the slow rank is slow, too: it takes fewer turns than the others.": (
            with_fault({"alike": ("apart",)})
        ),
        "Apart, nobody waits for the slow rank: add up the turns a second of all four workers.": (
            with_fault({"turns": "mean"}, {"turns": "slowest"})
        ),
        "A worker's turn is more than its gradient: it waits for two messages, there and back.": (
            with_fault({"turn": 0})
        ),
        "A worker's turn ends when theta has come back: count the second message, too.": (
            with_fault({"turn": 1})
        ),
        "In each round of the ring a rank sends a quarter of nbytes.": with_fault({"part": 1}),
        "Together, the ring takes time, too: six rounds, each a latency and a quarter of nbytes.": (
            with_fault({"rounds": 0})
        ),
        "A ring of four ranks has six rounds; two rounds are enough for two ranks.": (
            with_fault({"rounds": 2})
        ),
        "Three rounds are half a ring: they add up, and three more hand the sums round.": (
            with_fault({"rounds": 3})
        ),
        "Each cluster has four workers: world_size only says how many ranks answer.": (
            lambda asked: judged(lambda c: by_formula(c, others=len(asked) - 1))(asked)
        ),
        "That is by the number of gradients alone: how long does one take?": judged(
            lambda c: "together" if 4 * c["steps"] < c["updates"] else "apart"
        ),
    },
    worlds=range(3, 6),
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# If the workers train together, a step takes the time of the slowest gradient plus the time of six
# rounds of the ring. Multiply this sum by `steps`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# If the workers train apart, one turn of a worker takes the time of its gradient plus the time of two
# messages: one to the server and one back. How many turns do all four workers make in a second?
#
# </details>
# <details><summary>Hint 3</summary>
#
# The server needs the time of two messages for one update. This time limits the number of updates in a
# second: take the smaller of the two numbers.
#
# </details>

# %% role="hidden" question="choose"
seed = 1
hidden_clusters = [
    (6, 1e-3, 4_000 * (1 + seed % 3), 1e-5, 1.25e9, 40, 200),
    (1, 1e-3, 80_000 * (1 + seed % 3), 1e-5, 1.25e8, 40, 200),
    (1, 1e-3, 4_000, 1e-5, 1.25e9, 40, 400 + seed % 97),
    (3, 1e-3, 8_000, 1e-5, 1.25e9, 40, 100 + seed % 97),
    (2, 1e-3, 8_000, 1e-5, 1.25e9, 40, 500),
]
print(measure(choose, lambda rank, n: ask(rank, n, hidden_clusters)))

# %% [markdown]
# ## 5. Fragments (★★★, 25 minutes, 4 points)
#
# Write DiLoCo with AdamW inside, in fragments: `theta.tensor_split(F)`. In each of the steps 1, ...,
# `steps`, every rank takes a step of `torch.optim.AdamW` (`lr=0.1`) with `cost_gradient` of its own
# rows. After step s, fragment f is due if (s + f) % H is 0. Each rank has its own theta, and a copy of
# the agreed theta. For a due fragment, the ranks average (agreed - own). This is the gradient for an
# outer SGD (`lr=0.7`, Nesterov momentum 0.9), which changes this fragment only. Then each rank copies
# the agreed fragment into its own theta. Return the agreed theta. Use one `all_reduce` for each due
# fragment. Leave the inputs as they are.


# %% role="answer" question="fragments" points=4
def fragments(rank, world_size, theta, rows, targets, F, H, steps):
    """Return the agreed theta after `steps` steps.

    theta is float32, equal on all ranks; rows has shape (own rows, len(theta)), targets (own rows,).
    Every rank has rows. F is at most len(theta), and at most H. Each rank keeps its own AdamW state.
    """
    ### BEGIN SOLUTION
    mine = torch.nn.Parameter(theta.clone())
    inner, parts = torch.optim.AdamW([mine], lr=0.1), mine.data.tensor_split(F)
    agreed = [torch.nn.Parameter(part.clone()) for part in parts]
    outers = [torch.optim.SGD([one], lr=0.7, momentum=0.9, nesterov=True) for one in agreed]
    for step in range(1, steps + 1):
        mine.grad = cost_gradient(mine.detach(), rows, targets)
        inner.step()
        for f in range(F):
            if (step + f) % H == 0:
                agreed[f].grad = agreed[f].detach() - parts[f]
                dist.all_reduce(agreed[f].grad, op=dist.ReduceOp.AVG)
                outers[f].step()
                parts[f].copy_(agreed[f].data)
    return torch.cat([part.detach() for part in agreed])
    ### END SOLUTION


# %% role="check" question="fragments" points=4
def fragment_problem(rank, world_size, sizes=(5, 2, 3, 9), seed=0):
    length, F, H, steps = sizes
    random = torch.Generator().manual_seed(10 * seed + rank)
    x = torch.randn(rank + 2, length, generator=random)
    return torch.linspace(1, -1, length), x, x.sum(1) + 2 * rank, F, H, steps


def adamw_step(theta, g, m, v, t):
    """AdamW as its paper has it, in place, with torch's own values and lr=0.1."""
    m.mul_(0.9).add_(0.1 * g)
    v.mul_(0.999).add_(0.001 * g * g)
    theta.mul_(1 - 0.1 * 0.01)
    theta -= 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)


def in_fragments(
    thetas, xs, ys, Fs, Hs, counts, state="local", due=lambda s, f: s + f, how="Nesterov", parts=0
):
    """The agreed theta of all ranks; the last four say what is done in another way."""
    agreed, momentum = thetas[0].clone(), torch.zeros_like(thetas[0])
    mine = thetas[0].repeat(len(xs), 1)
    m, v, t, last = torch.zeros_like(mine), torch.zeros_like(mine), 0, torch.zeros_like(agreed)
    for step in range(1, counts[0] + 1):
        t += 1
        for one, x, y, its_m, its_v in zip(mine, xs, ys, m, v, strict=True):
            adamw_step(one, cost_gradient(one, x, y), its_m, its_v, t)
        for f, at in enumerate(torch.arange(len(agreed)).tensor_split(parts or Fs[0])):
            if due(step, f) % Hs[0] or how == "alone":
                continue
            if how in {"all", "all again"}:  # the outer step moves the whole of theta
                last = last if how == "all again" else torch.zeros_like(last)
                last[at] = agreed[at] - mine[:, at].mean(0)
                momentum = 0.9 * momentum + last
                agreed -= 0.7 * (0.9 * momentum + last)
                mine[:, at] = agreed[at]
                continue
            d = agreed[at] - mine[:, at].mean(0)
            d = {"sum": d * len(xs), "uphill": -d}.get(how, d)
            momentum[at] = 0.9 * momentum[at] + d
            move = {"mean": d, "momentum": 0.7 * momentum[at]}
            agreed[at] -= move.get(how, 0.7 * (0.9 * momentum[at] + d))
            if how != "not copied":
                mine[:, at] = agreed[at]
            if state == "averaged":
                m[:], v[:] = m.mean(0), v.mean(0)
            if state == "reset":
                m, v, t = torch.zeros_like(m), torch.zeros_like(v), 0
    return list(mine) if how in {"own", "alone"} else [agreed] * len(xs)


def fragments_due(thetas, xs, ys, Fs, Hs, counts):
    """The bytes of the all_reduces, in order."""
    parts = thetas[0].tensor_split(Fs[0])
    steps = range(1, counts[0] + 1)
    due = [part.nbytes for s in steps for f, part in enumerate(parts) if (s + f) % Hs[0] == 0]
    return due if len(xs) > 1 else None


def with_change(**change):
    return lambda *given: in_fragments(*given, **change)


verdict = check(
    "fragments",
    fragments,
    fragment_problem,
    in_fragments,
    only("all_reduce"),
    brought(fragments_due, hint="Only the numbers of the fragment that is due have to travel."),
    mistakes={
        "AdamW starts again after each all_reduce: keep one optimizer for all steps.": with_change(
            state="reset"
        ),
        "Do not average AdamW's moments: each rank keeps its own.": with_change(state="averaged"),
        "The outer gradient has the wrong sign: it is the agreed numbers minus the rank's own.": (
            with_change(how="uphill")
        ),
        "That is the sum of the differences: take their mean.": with_change(how="sum"),
        "That is the plain mean of the parameters: let an outer SGD with momentum take the step.": (
            with_change(how="mean")
        ),
        "That is plain momentum: the outer SGD has `nesterov=True`.": with_change(how="momentum"),
        "Each rank goes on with its own numbers: copy the agreed ones into them.": with_change(
            how="not copied"
        ),
        "That is the rank's own theta: return the agreed theta.": with_change(how="own"),
        "No outer step changes theta, as if agreed - own were always 0: does the agreed theta have "
        "its own memory? Clone it.": with_change(how="alone"),
        "The outer step moves the other fragments, too: give each fragment an optimizer of its own.": (
            with_change(how="all")
        ),
        "The outer step also moves the other fragments, along the gradients of their last meeting.": (
            with_change(how="all again")
        ),
        "All fragments meet after the same steps. Each fragment must meet after its own steps, "
        "those with (s + f) % H equal to 0.": (with_change(due=lambda s, f: s)),
        "The fragments are due in another order: (s + f) % H has to be 0, not (s - f) % H.": (
            with_change(due=lambda s, f: s - f)
        ),
    },
    points=4,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Call the rank's own parameter `mine`, and its views `parts`: `parts = mine.data.tensor_split(F)`. If
# you copy numbers into a view, `mine` changes, and AdamW still has the same parameter.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Each fragment f needs its own agreed parameter, `agreed[f]`, and its own outer optimizer, `outers[f]`.
# So the momentum of a fragment changes only if this fragment is due.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For a due fragment: set `agreed[f].grad` to `agreed[f].detach() - parts[f]`. Average it with
# `dist.ReduceOp.AVG`. Call `outers[f].step()`. Then call `parts[f].copy_(agreed[f].data)`.
#
# </details>

# %% role="hidden" question="fragments"
seed = 1
hidden_sizes = (4 + seed % 3, 2 + seed % 2, 3 + seed % 2, 7 + seed % 4)
print(measure(fragments, lambda rank, n: fragment_problem(rank, n, hidden_sizes, seed)))

# %% [markdown]
# ## 6. Old answers on many ranks (★★, 20 minutes, 3 points)
#
# The softmax of `theta` gives the probabilities p of a policy's answers. Each rank has some `answers` of
# older policies, the probabilities `q` with which they were written, and their `rewards`. A rank may have
# no answers. Return the gradient of [part d](../notebooks/13_for_large_models.ipynb). It is the mean of
# weight · (reward - mean reward) · (onehot - p) over the answers of **all** ranks. The weight is p / q of
# the answer, and at most `limit`. The mean reward is the mean over **all** answers. `onehot` has a 1 at
# the answer and 0 elsewhere. Use one `all_reduce`. Its tensor may have at most 2 · len(theta) + 2 numbers.


# %% role="answer" question="old_answers" points=3
def old_answers(rank, world_size, theta, answers, q, rewards, limit):
    """Return the gradient, of the shape of theta.

    theta is float32, equal on all ranks; answers are int64, q and rewards float32, all three of shape
    (own answers,). Leave them as they are.
    """
    ### BEGIN SOLUTION
    p, A = torch.softmax(theta, 0), len(theta)
    weights = (p[answers] / q).clamp(max=limit)
    scores = torch.eye(A)[answers] - p
    count = torch.tensor([float(len(answers))])
    sums = [(weights * rewards) @ scores, weights @ scores, rewards.sum().view(1), count]
    buffer = torch.cat(sums)
    dist.all_reduce(buffer)
    with_rewards, alone, reward, count = buffer.split([A, A, 1, 1])
    return (with_rewards - reward / count * alone) / count
    ### END SOLUTION


# %% role="check" question="old_answers" points=3
ANSWERS = [4, 0, 7, 2, 5]


def old_batch(rank, world_size, counts=ANSWERS, A=4, seed=0):
    common = torch.Generator().manual_seed(1000 + seed)
    theta = torch.randn(A, generator=common)
    random = torch.Generator().manual_seed(10 * seed + rank)
    answers = torch.randint(A, (counts[rank],), generator=random)
    q = torch.softmax(torch.randn(counts[rank], A, generator=random), 1)
    q = q[torch.arange(counts[rank]), answers]
    rewards = answers / A + torch.rand(counts[rank], generator=random) + 0.3 * rank
    return theta, answers, q, rewards, 1.5


def gradient_of_all(
    thetas, answers, qs, rewards, limits, weight=None, own=False, base=True, over=None
):
    """The gradient on every rank, one answer after the other; the last four change the formula."""
    p, limit = torch.softmax(thetas[0], 0), limits[0]
    weight = weight or (lambda p, q: min(p / q, limit))
    mean, found = torch.cat(rewards).mean(), []
    for its_answers, its_qs, its_rewards in zip(answers, qs, rewards, strict=True):
        total = torch.zeros_like(p)
        for a, q, reward in zip(its_answers, its_qs, its_rewards, strict=True):
            onehot = (torch.arange(len(p)) == a).float()
            baseline = (its_rewards.mean() if own else mean) if base else 0
            total += weight(p[a], q) * (reward - baseline) * (onehot - p)
        found.append(total)
    if over == "ranks":  # a mean of the ranks' means
        parts = [total / max(len(a), 1) for total, a in zip(found, answers, strict=True)]
        return [sum(parts) / len(parts)] * len(parts)
    return [sum(found) / (1 if over == "none" else len(torch.cat(answers)))] * len(found)


def with_formula(**change):
    return lambda *given: gradient_of_all(*given, **change)


verdict = check(
    "old_answers",
    old_answers,
    old_batch,
    gradient_of_all,
    only("all_reduce"),
    collectives(
        lambda *given: 1,
        hint="The mean reward can be subtracted after the sum: send the parts with and without it.",
    ),
    collective_nbytes(
        lambda *given: 2 * given[0][0].nbytes + 8,
        hint="Two sums as long as theta, the sum of the rewards and the count are enough.",
    ),
    mistakes={
        "No weights are used: old answers count as if the new policy had written them.": (
            with_formula(weight=lambda p, q: 1)
        ),
        "The weights have no limit: no weight may be larger than `limit`.": with_formula(
            weight=lambda p, q: p / q
        ),
        "The weight is upside down: it is p / q, new over old.": lambda *given: gradient_of_all(
            *given, weight=lambda p, q: min(q / p, given[4][0])
        ),
        "Each rank subtracts the mean of its own rewards: take that of all answers.": with_formula(
            own=True
        ),
        "The mean reward is missing: subtract it from each reward.": with_formula(base=False),
        "That is the mean of the ranks' means: every answer counts the same.": with_formula(
            over="ranks"
        ),
        "That is the sum over all answers: divide by their number.": with_formula(over="none"),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `torch.eye(len(theta))[answers]` has one row for each answer, also if there are no answers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# No rank knows the mean reward before the all_reduce. But let score be onehot - p. Then the sum of
# weight · (reward - mean) · score is the sum of weight · reward · score, minus the mean times the sum of
# weight · score.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Put four things into one tensor: both sums of hint 2, the sum of the rewards, and the number of answers.
# After the all_reduce, cut the tensor with `split`.
#
# </details>

# %% role="hidden" question="old_answers"
seed = 1
hidden_counts = [3, seed % 3, 1 + seed % 4, 0, 6]
print(measure(old_answers, lambda rank, n: old_batch(rank, n, hidden_counts, 3 + seed % 4, seed)))
