# %% [markdown]
# # Exercises 09: when does it pay?
#
# These three tasks go with [lesson 09](../notebooks/09_when_does_it_pay.ipynb). A check calls your
# function on worlds of 1 to 5 real ranks, **one** included, with uneven numbers. It looks at the value
# on every rank and at everything that the ranks sent. Then the check runs your function on 8 modelled
# ranks. Their virtual clock shows the same time on every machine, and your function must keep within a
# budget of time.
#
# Each task has folded hints. Call `simlib.compute(seconds)` to model a step of work. `tree` and `ring`
# are given here. They add up `x` in place over the ranks **0 to R - 1** only, so call them on these
# ranks only. As lesson 09 explains, they take
#
# $$2\lceil\log_2 R\rceil\Big(\alpha + \frac N\beta\Big) \qquad\text{and}\qquad 2(R-1)\Big(\alpha + \frac{N}{R\beta}\Big)$$
#
# seconds for N bytes. Here $\alpha$ is the latency and $\beta$ is the bandwidth. The formula of `ring`
# is right if R divides the length.

# %% role="setup"
import math

import torch
import torch.distributed as dist

import simlib
from simlib.checks import Rule, Timed, check, collective_nbytes, collectives, measure, only

EIGHT = simlib.clusters.ethernet_1g(nodes=8)


# %% role="setup"
def tree(rank, R, x):
    """Add up x over ranks 0 to R - 1, in place: down a binomial tree to rank 0, and up again."""
    other, distances = torch.empty_like(x), [2**k for k in range(math.ceil(math.log2(R)))]
    for up, d in [(False, d) for d in distances] + [(True, d) for d in reversed(distances)]:
        if rank % d == 0 and rank ^ d < R:
            if (rank & d == 0) == up:
                dist.send(x, dst=rank ^ d)
            else:
                dist.recv(other, src=rank ^ d)
                x.copy_(other if up else x + other)


def ring(rank, R, x):
    """Add up x over ranks 0 to R - 1, in place, round a ring."""
    chunks = x.tensor_split(R)
    for step in range(2 * (R - 1)):
        chunk = chunks[(rank - step - 1) % R]
        incoming = torch.empty_like(chunk)
        request = dist.isend(chunks[(rank - step) % R], dst=(rank + 1) % R)
        dist.recv(incoming, src=(rank - 1) % R)
        request.wait()
        chunk.copy_(chunk + incoming if step < R - 1 else incoming)


# %% [markdown]
# ## 1. From how many ranks on? (★★, 20 minutes, 3 points)
#
# Every rank measured its own `compute_s`, and these times differ. Training uses a ring and weak scaling.
# In every step, all ranks wait for the rank with the largest `compute_s`. What is the smallest number of
# ranks R ≥ 2 that trains faster than one rank? Assume that one rank alone is as slow as the slowest
# rank. Return the same int on every rank. Return 0 if no R up to 4,096 pays. You may use one
# `all_reduce` of a single number.


# %% role="answer" question="break_even_ranks" points=3
def break_even_ranks(rank, world_size, compute_s, nbytes, latency_s, bandwidth_Bps):
    """Return the smallest R >= 2 (int) for which a ring pays, 0 where none up to 4,096 does.

    compute_s is a float, different on every rank; the rest is the same on all.
    """
    ### BEGIN SOLUTION
    slowest = torch.tensor([compute_s], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    for R in range(2, 4097):
        sync_s = 2 * (R - 1) * (latency_s + nbytes / R / bandwidth_Bps)
        if sync_s < (R - 1) * slowest.item():
            return R
    return 0
    ### END SOLUTION


# %% role="check" question="break_even_ranks" points=3
CASES = {  # world size: seconds of the slowest rank, bytes, latency, bandwidth
    1: (4.5, 1e6, 0.5, 1e6),
    2: (1.5, 5e5, 0.2, 1e6),
    3: (1.5, 1e6, 1e-3, 1e6),
    4: (9 / 512, 1e6, 1 / 1024, 1e6),  # 128 ranks are exactly as fast as one
    5: (0.0018, 1e6, 0.01, 1e6),  # two latencies are longer than a step: never
    8: (4e-4, 1.0001e6, 0.0, 1e6),  # from 5,001 ranks on: too many
}


def times_and_network(rank, world_size, case=None):
    slowest_s, *network = CASES[case or world_size]
    return slowest_s * (1 - 0.9 * ((rank + 2) % world_size) / world_size), *network


def of_the_world_before(rank, world_size):
    """Other numbers for the same world: a table of results is right with one of the two only."""
    return times_and_network(rank, world_size, max(1, world_size - 1))


def ring_pays(R, compute_s, nbytes, latency_s, bandwidth_Bps):
    return 2 * (R - 1) * (latency_s + nbytes / R / bandwidth_Bps) < (R - 1) * compute_s


def answers(time_of_all=max, pays=ring_pays, most=4096):
    """What every rank returns: as `expected`, or as somebody who decides otherwise."""

    def by_rank(times_s, *networks):
        network = [one[0] for one in networks]
        found = (R for R in range(2, most + 1) if pays(R, time_of_all(times_s), *network))
        return [next(found, 0)] * len(times_s)

    return by_rank


def at_equality(times_s, nbytes, latency_s, bandwidth_Bps):
    """The R, no whole number, for which (6) holds with an equals sign."""
    return 2 * nbytes[0] / bandwidth_Bps[0] / (max(times_s) - 2 * latency_s[0])


verdict = check(
    "break_even_ranks",
    break_even_ranks,
    [times_and_network, of_the_world_before],
    answers(),
    only("all_reduce"),
    collectives(lambda *given: 1, hint="The slowest rank's time is all you need from the others."),
    collective_nbytes(lambda *given: 8, hint="One number is enough."),
    mistakes={
        "R may be larger than your world: try R = 2, 3, ... up to 4,096, whatever world_size is.": (
            lambda times_s, *network: [0 if len(times_s) == 1 else -1] * len(times_s)
        ),
        "That is right for the fastest rank. In a step all wait for the slowest.": answers(min),
        "That is right for the mean of the times. In a step all wait for the slowest.": answers(
            lambda times_s: sum(times_s) / len(times_s)
        ),
        "That is right for the sum of the times; the ranks compute at the same time.": answers(sum),
        "Each rank decided by its own time. All must agree: ask for the slowest.": (
            lambda times_s, *nets: [
                answers(lambda _, mine=mine: mine)(times_s, *nets)[0] for mine in times_s
            ]
        ),
        "That asks for T_sync < T_comp. The inequality allows R - 1 times as much.": (
            answers(pays=lambda R, s, *net: ring_pays(R, s / (R - 1), *net))
        ),
        "In a ring a message carries nbytes / R, not all of them.": (
            answers(pays=lambda R, s, nbytes, *net: ring_pays(R, s, R * nbytes, *net))
        ),
        "That is inequality (7), for a batch that the ranks share: here every rank has its own.": (
            answers(pays=lambda R, s, *net: ring_pays(R, s * (1 - 1 / R) / (R - 1), *net))
        ),
        "That is without the latency: a ring has 2 (R - 1) of them.": (
            answers(pays=lambda R, s, nbytes, _, Bps: ring_pays(R, s, nbytes, 0, Bps))
        ),
        "There T_sync = (R - 1) T_comp: as fast as one rank, not faster. The next R is the first.": (
            answers(pays=lambda R, s, *net: ring_pays(R, s * (1 + 1e-12), *net))
        ),
        "Only an R up to 4,096 counts: where it takes more, return 0.": answers(most=10_000),
        "One rank alone is no distribution: R is 2 at least.": (
            lambda times_s, *network: [int(at_equality(times_s, *network)) + 1] * len(times_s)
        ),
        "That is where (6) holds exactly. Return the next whole number, and 2 at least.": (
            lambda times_s, *network: [at_equality(times_s, *network)] * len(times_s)
        ),
    },
    timed=[
        Timed(
            EIGHT,
            times_and_network,
            lambda *given: simlib.scale.time_of("all_reduce", 8, 8, EIGHT),
            "One all_reduce of one number is all that takes time.",
        )
    ],
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# You need two steps. First, all ranks must learn the slowest time. Use an `all_reduce` with another
# operation than the sum. Then every rank computes the result for itself.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Try R = 2, 3, 4, ... and return the first R for which $T_\text{sync}(R) < (R - 1)\,T_\text{comp}$. Or
# use equation (6). Mind that the first whole number "greater than 4" is 5.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Call `dist.all_reduce(slowest, op=dist.ReduceOp.MAX)`, where `slowest` is a tensor of one number. Use
# float64, because a float32 has only seven digits.
#
# </details>

# %% role="hidden" question="break_even_ranks"
seed = 1
print(
    measure(
        break_even_ranks,
        lambda rank, world_size: (
            0.01 * (1 + (rank * (1 + seed % 4) + 3) % 5),  # no two alike
            1e5 * (1 + seed % 7),
            1e-3,
            3e6,
        ),
    )
)

# %% [markdown]
# ## 2. The quickest epoch (★★★, 35 minutes, 4 points)
#
# An epoch has `batches` batches, and each batch takes `compute_s`. Choose R from 1 to `world_size`, and
# choose `tree` or `ring`, so that the epoch is as short as possible. The epoch has
# $\lceil\text{batches}/R\rceil$ steps. In *each* step, ranks 0 to R - 1 call
# `simlib.compute(compute_s)`, then add up a fresh copy of `gradient`. These ranks return the last sum.
# For R = 1 this is the gradient. The other ranks return at once. They return zeros of the shape of
# `gradient`. `gradient` must not change. You may take 2 % more time than the best plan.


# %% role="answer" question="quickest_epoch" points=4
def quickest_epoch(rank, world_size, gradient, batches, compute_s, latency_s, bandwidth_Bps):
    """Return the sum of gradient over the ranks that work, zeros on the others.

    gradient is one-dimensional and float32, of the same length on every rank; batches is an int.
    All but gradient is the same on every rank.
    """
    ### BEGIN SOLUTION
    whole_s = latency_s + gradient.nbytes / bandwidth_Bps

    def plan(R):
        """Seconds of the epoch, R, and how to add up."""
        ways = {
            tree: 2 * math.ceil(math.log2(R)) * whole_s,
            ring: 2 * (R - 1) * (latency_s + gradient.nbytes / R / bandwidth_Bps),
        }
        add_up = min(ways, key=ways.get)
        return math.ceil(batches / R) * (compute_s + ways[add_up]), R, add_up

    _, R, add_up = min((plan(R) for R in range(1, world_size + 1)), key=lambda found: found[:2])
    total = torch.zeros_like(gradient)
    for _ in range(math.ceil(batches / R) if rank < R else 0):
        simlib.compute(compute_s)
        total = gradient.clone()
        add_up(rank, R, total)
    return total
    ### END SOLUTION


# %% role="check" question="quickest_epoch" points=4
NETWORK = EIGHT.inter.latency_s, EIGHT.inter.bandwidth_Bps


def epoch_of(length, batches, compute_s, *network):
    """Inputs: so many numbers on each rank, so much to do, and the network."""
    network = network or NETWORK
    return lambda rank, n: (torch.arange(float(length)) + 10 * rank, batches, compute_s, *network)


def small_epochs(rank, world_size):
    # The first network asks for one rank, the second for all but the fifth: 7 batches, 2 steps.
    network = (1.0, 1e6) if world_size == 3 else (1e-6, 1e6)
    return epoch_of(7, 7, 1e-3, *network)(rank, world_size)


def plans(nbytes, batches, compute_s, latency_s, bandwidth_Bps, n, steps=math.ceil):
    """Seconds of the epoch by the formulas: ``{(R, name): seconds}``."""
    found = {}
    for R in range(1, n + 1):
        tree_s = 2 * math.ceil(math.log2(R)) * (latency_s + nbytes / bandwidth_Bps)
        ring_s = 2 * (R - 1) * (latency_s + nbytes / R / bandwidth_Bps)
        for name, sync_s in (("tree", tree_s), ("ring", ring_s)):
            found[R, name] = steps(batches / R) * (compute_s + sync_s)
    return found


def best_plan(gradients, *numbers, steps=math.ceil):
    given = gradients[0].nbytes, *(each[0] for each in numbers), len(gradients)
    found = plans(*given, steps)
    return min(found.items(), key=lambda item: (item[1], item[0]))


def sums(R, gradients, times=1):
    total = times * sum(gradients[:R])
    return [total if r < R else torch.zeros_like(total) for r in range(len(gradients))]


def really_computes(run, given):
    """A sentence where the epoch is shorter than its compute alone, else None."""
    gradients, batches, compute_s, *_ = given
    (R, _), _ = best_plan(*given)
    least_s = math.ceil(batches[0] / R) * compute_s[0]
    if run.engine != "simulated" or run.time_s >= least_s * (1 - 1e-9):
        return None  # a real run's time begins with its last rank: the idle ones may come late
    return "The epoch is shorter than its compute: call simlib.compute in every step."


def adds_up_in_every_step(run, given):
    """A sentence where fewer bytes are sent than a sum in every step takes, else None."""
    gradients, batches, *_ = given
    (R, _), _ = best_plan(*given)
    steps = math.ceil(batches[0] / R)
    # A tree sends 2 (R - 1) whole gradients, a ring 2 (R - 1) R chunks of an R-th: the same bytes.
    if sum(run.bytes_sent) >= steps * 2 * (R - 1) * gradients[0].nbytes:
        return None
    return (
        f"The result is right, but {steps} steps add up {steps} times, and you sent fewer bytes than "
        "that takes: the weights change after every step, so each needs a sum of its own."
    )


verdict = check(
    "quickest_epoch",
    quickest_epoch,
    small_epochs,
    lambda gradients, *numbers: sums(best_plan(gradients, *numbers)[0][0], gradients),
    only("send", "recv"),
    Rule(really_computes),
    Rule(adds_up_in_every_step),
    mistakes={
        "5 ranks work where 4 are enough: they too need 2 steps. Round batches / R up.": (
            lambda gradients, *numbers: sums(
                best_plan(gradients, *numbers, steps=lambda steps: steps)[0][0], gradients
            )
        ),
        "All ranks worked, where fewer are quicker: T_sync grows with R.": (
            lambda gradients, *numbers: sums(len(gradients), gradients)
        ),
        "One rank worked alone, where more are quicker.": (
            lambda gradients, *numbers: sums(1, gradients)
        ),
        "The second step adds up the sums of the first: begin each step with a copy.": (
            lambda gradients, batches, *numbers: sums(
                R := best_plan(gradients, batches, *numbers)[0][0],
                gradients,
                times=R ** (math.ceil(batches[0] / R) - 1),
            )
        ),
        "Those are means: the sum is asked for, not divided by R.": (
            lambda gradients, *numbers: sums(
                R := best_plan(gradients, *numbers)[0][0], gradients, times=1 / R
            )
        ),
        "The sums are right on the ranks that work; the idle ones return zeros.": (
            lambda gradients, *numbers: (
                [sum(gradients[: best_plan(gradients, *numbers)[0][0]])] * len(gradients)
            )
        ),
    },
    timed=[
        Timed(
            EIGHT,
            epoch_of(25_000, 9, 4e-3),
            lambda *given: 1.02 * best_plan(*given)[1],
            "9 batches make 2 steps on 5 ranks and on 8, and a ring of 5 is quicker.",
        ),
        Timed(
            EIGHT,
            epoch_of(2_000, 9, 4e-3),
            lambda *given: 1.02 * best_plan(*given)[1],
            "Still a ring. N is in bytes, not in numbers.",
        ),
        Timed(
            EIGHT,
            epoch_of(1_500, 9, 1e-3),
            lambda *given: 1.02 * best_plan(*given)[1],
            "A tree of 5 ranks has 3 rounds up and 3 down: round log2(R) up. A ring is quicker.",
        ),
        Timed(
            EIGHT,
            epoch_of(500, 16, 4e-3),
            lambda *given: 1.02 * best_plan(*given)[1],
            "Few bytes: few messages, so a tree.",
        ),
        Timed(
            EIGHT,
            epoch_of(25_000, 16, 1e-5),
            lambda *given: 1.02 * best_plan(*given)[1],
            "Little to compute: not every epoch should be shared.",
        ),
    ],
    points=4,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Every rank knows enough to make the same plan by itself. So no rank has to send anything for the plan.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For each R and both algorithms, compute
# $\lceil\text{batches}/R\rceil\,(T_\text{comp} + T_\text{sync}(R))$, and keep the shortest time. N is in
# bytes: `gradient.nbytes`. One rank alone has nothing to add up.
#
# </details>
# <details><summary>Hint 3</summary>
#
# In each step, call `simlib.compute(compute_s)`, then make `total = gradient.clone()`, then call
# `tree(rank, R, total)` or `ring`. Without the `clone`, the second step would add up sums.
#
# </details>

# %% role="hidden" question="quickest_epoch"
seed = 1
network = Timed(simlib.clusters.ethernet_1g(nodes=6), None, None)
few = 50 + seed % 7, [7, 8, 11, 12][seed % 4]  # with 9 batches 5 ranks are as quick as 6
many = 10_000 + 1000 * (seed % 9), 7 + seed % 5
for length, batches in (few, many):
    print(
        measure(
            quickest_epoch,
            epoch_of(length, batches, 2e-3),
            worlds=(1, 2, 6),
            start=network.start(timeout_s=20),
        )
    )

# %% [markdown]
# ## 3. Accumulate for an efficiency (★★, 25 minutes, 3 points)
#
# Row m of `gradients` is the gradient of micro-batch m on this rank. Call `simlib.compute(compute_s)`
# for each micro-batch. A measurement showed that an `all_reduce` of a row takes `sync_s`. Do not wait
# for this time yourself. Find the smallest k with efficiency $k\,T_\text{comp} / (k\,T_\text{comp} +
# T_\text{sync}) \ge$ `efficiency`. Call `all_reduce` once after every k micro-batches. Return one row
# per `all_reduce`: the mean gradient over its micro-batches and all ranks. The last `all_reduce` may be
# for fewer than k micro-batches. `gradients` must not change.


# %% role="answer" question="accumulate" points=3
def accumulate(rank, world_size, gradients, compute_s, sync_s, efficiency):
    """Return a tensor of shape (number of all_reduces, length of a gradient).

    gradients is float32, (micro-batches, length), of the same shape on every rank.
    """
    ### BEGIN SOLUTION
    k = max(1, math.ceil(sync_s / compute_s * efficiency / (1 - efficiency)))
    means = []
    for group in gradients.split(k):
        total = torch.zeros_like(group[0])
        for gradient in group:
            simlib.compute(compute_s)
            total += gradient
        dist.all_reduce(total)
        means.append(total / (len(group) * world_size))
    return torch.stack(means)
    ### END SOLUTION


# %% role="check" question="accumulate" points=3
NUMBERS = 25_000
SYNC_S = simlib.scale.time_of("all_reduce", 8, 4 * NUMBERS, EIGHT)


def micro_batches(count, length, compute_s, sync_s, efficiency):
    """Inputs: so many gradients on each rank, and the three numbers."""
    rows = torch.arange(float(count * length)).view(count, length) % 11
    return lambda rank, n: (rows * (rank + 1) + rank, compute_s, sync_s, efficiency)


def seven_or_six(rank, world_size):
    # k = 1 (exactly), 3, 2, 3 and 10, which is more than there are
    efficiency = {1: 0.5, 2: 0.72, 3: 0.6, 4: 0.72, 5: 0.9}[world_size]
    count, sync_s = 6 if world_size == 2 else 7, 1e-3 if world_size == 1 else 1.1e-3
    return micro_batches(count, 3, 1e-3, sync_s, efficiency)(rank, world_size)


def group_size(compute_s, sync_s, efficiency, up=math.ceil):
    return max(1, up(sync_s[0] / compute_s[0] * efficiency[0] / (1 - efficiency[0])))


def means(all_gradients, *numbers, up=math.ceil, scale=lambda group, k, n: 1.0):
    """What every rank returns; ``scale`` is what somebody multiplies it by."""
    k, n = group_size(*numbers, up=up), len(all_gradients)
    groups = (sum(all_gradients) / n).split(k)
    return [torch.stack([group.mean(0) * scale(group, k, n) for group in groups])] * n


def really_computes_all(run, given):
    """A sentence where the run is shorter than its compute, else None."""
    all_gradients, compute_s, *_ = given
    least_s = len(all_gradients[0]) * compute_s[0]
    if run.engine != "simulated" or run.time_s >= least_s * (1 - 1e-9):
        return None
    return "The run is shorter than its compute: call simlib.compute for every micro-batch."


def just_enough_s(all_gradients, *numbers):
    count = len(all_gradients[0])
    return 1.001 * (count * numbers[0][0] + math.ceil(count / group_size(*numbers)) * SYNC_S)


verdict = check(
    "accumulate",
    accumulate,
    seven_or_six,
    means,
    only("all_reduce"),
    collectives(
        lambda all_gradients, *numbers: math.ceil(len(all_gradients[0]) / group_size(*numbers)),
        hint="Accumulate on the rank itself; communicate once per group.",
    ),
    collective_nbytes(
        lambda all_gradients, *numbers: all_gradients[0][0].nbytes,
        hint="One sum of the length of a gradient is enough.",
    ),
    Rule(really_computes_all),
    mistakes={
        "The last group is shorter: divide by how many micro-batches it has, not by k.": (
            lambda *given: means(*given, scale=lambda group, k, n: len(group) / k)
        ),
        "That is k = 1, an all_reduce after every micro-batch, which misses the efficiency.": (
            lambda *given: means(*given, up=lambda exact: 1)
        ),
        "With k rounded down the efficiency is missed: round up.": (
            lambda *given: means(*given, up=math.floor)
        ),
        "If the formula gives a whole number, do not add 1: round with math.ceil.": (
            lambda *given: means(*given, up=lambda exact: int(exact) + 1)
        ),
        "The last, shorter group is missing: use its micro-batches, too.": (
            lambda *given: [
                rows[: len(given[0][0]) // group_size(*given[1:])] for rows in means(*given)
            ]
        ),
        "Those are sums over the ranks: divide by the number of ranks, too.": (
            lambda *given: means(*given, scale=lambda group, k, n: n)
        ),
        "Those are sums over the micro-batches: divide by how many there are, too.": (
            lambda *given: means(*given, scale=lambda group, k, n: len(group))
        ),
        "Those are sums over micro-batches and ranks: return the mean.": (
            lambda *given: means(*given, scale=lambda group, k, n: n * len(group))
        ),
    },
    timed=[
        Timed(
            EIGHT,
            micro_batches(20, NUMBERS, 1e-3, SYNC_S, 0.8),
            just_enough_s,
            "Compute every micro-batch once, and wait for nothing else: all_reduce takes its own time.",
        )
    ],
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Solve the efficiency for k: $k \ge \frac{T_\text{sync}}{T_\text{comp}} \cdot \frac{e}{1 - e}$. Here
# e is `efficiency`. Round this number up, because k is a whole number. k must be at least 1.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `gradients.split(k)` gives groups of k rows. The last group is shorter if k does not divide the
# number of rows. Begin each group with a tensor of zeros, so that `gradients` does not change.
#
# </details>
# <details><summary>Hint 3</summary>
#
# After the `all_reduce`, divide by `len(group) * world_size`.
#
# </details>

# %% role="hidden" question="accumulate"
seed = 1
print(
    measure(
        accumulate,
        micro_batches(5 + seed % 4, 3, 1e-3, 1e-3 * (1 + seed % 5) + 1e-4, 0.7),
    )
)
