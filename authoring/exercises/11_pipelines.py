# %% [markdown]
# # Exercises 11: pipelines
#
# This sheet has four tasks for lesson 11. In the first task you choose the number of micro-batches. In
# the second task the ranks agree on a cut. Both tasks need
# [the first part](../notebooks/11_pipelines.ipynb) of the lesson. In the third task you write the plan
# of a pipeline within a budget. In the fourth task you fix a pipeline that hangs now and then. These two
# tasks need [the second part](../notebooks/11_schedules.ipynb) of the lesson.
#
# Tasks 3 and 4 use the function `follow`, which a cell below defines. `follow` is lesson 11's program
# for a plan. It executes a list of words such as `["F0", "B0"]` on a stage that computes
# `torch.tanh(h @ w)`. It returns the gradient of the mean of all micro-batches' losses. Some checks also
# look at **time** and **memory** on a modelled cluster.

# %% role="setup"
import itertools

import torch
import torch.distributed as dist

import simlib
from simlib.checks import (
    Fits,
    OneOf,
    Rule,
    Timed,
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    nbytes,
    only,
)

# %% [markdown]
# The next cell has the two exchanges of the lesson. Both functions take two messages, and each message
# is `(tensor, peer)` or None. `send_first` sends, then receives. `together` sends and receives at the
# same time.


# %% role="setup"
def send_first(outgoing, incoming):
    """The plainest exchange: send, then receive; each is (tensor, peer) or None."""
    if outgoing:
        dist.send(*outgoing)
    if incoming:
        dist.recv(*incoming)


def together(outgoing, incoming):
    """Both at the same time."""
    ops = [dist.P2POp(dist.isend, *outgoing)] if outgoing else []
    ops += [dist.P2POp(dist.irecv, *incoming)] if incoming else []
    for request in dist.batch_isend_irecv(ops) if ops else []:
        request.wait()


# %% role="setup"
def follow(words, rank, world_size, w, xs, batch, exchange):
    """Do the words on this rank's stage, tanh(h @ w); return the gradient with respect to w."""
    weight, kept, outgoing = w.clone().requires_grad_(), {}, None
    for word in words:
        forward, micro = word[0] == "F", int(word[1:])
        source, target = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        incoming = None
        if 0 <= source < world_size:
            incoming = torch.empty(batch, w.shape[0 if forward else 1]), source
        exchange(outgoing, incoming)
        with simlib.span(word[0], micro=micro):
            if forward:
                h = (incoming[0] if incoming else xs[micro].clone()).requires_grad_()
                y = torch.tanh(h @ weight)
                kept[micro] = h, (y**2).mean() if rank == world_size - 1 else y
                result = y.detach()
            else:
                h, y = kept.pop(micro)
                y.backward(incoming[0] if incoming else None)
                result = h.grad
        outgoing = (result, target) if 0 <= target < world_size else None
    exchange(outgoing, None)
    return weight.grad / (len(words) // 2)


def stages_and_pieces(widths, batch, pieces, most):
    """pieces and most are lists by world size, or a number for all."""

    def inputs(rank, world_size):
        torch.manual_seed(rank)
        w = torch.randn(widths[rank], widths[rank + 1])
        count, held = (
            each[world_size - 1] if isinstance(each, list) else each for each in (pieces, most)
        )
        xs = [torch.randn(batch, widths[0]) for _ in range(count)] if rank == 0 else None
        return w, xs, batch, count, held

    return inputs


def in_one_process(ws, xs, *_):
    """The gradients of all stages, of the mean over all micro-batches."""
    weights, h = [w.clone().requires_grad_() for w in ws], torch.cat(xs[0])
    for weight in weights:
        h = torch.tanh(h @ weight)
    return list(torch.autograd.grad((h**2).mean(), weights))


SQUARE, PIECES = [32] * 6, 8
PRODUCT_S = 2 * 64 * 32 * 32 / 1e9  # of h and w: a forward has one, a backward two
FREE = {
    K: simlib.Cluster(K, 1, simlib.Link(0, float("inf")), device=simlib.Device(flops_per_s=1e9))
    for K in (3, 4, 5)
}
BIG = 4 * 64 * 32  # bytes of one micro-batch between two stages


def summed(ws, xs, batches, pieces, *_):
    return [gradient * pieces[0] for gradient in in_one_process(ws, xs)]


def but_the_last(ws, xs, batches, pieces, *_):
    return in_one_process(ws, [xs[0][:-1] or xs[0]])


NO_FORWARD = (
    "A micro-batch goes backward that has not gone forward on this rank, or has gone back already."
)
NO_SUCH_PIECE = "There is no such micro-batch: their numbers go from 0 to pieces - 1."


def each_once(ws, xs, batches, pieces, *_):
    return 2 * (len(ws) - 1) * pieces[0]


def over_boundaries(ws, xs, batches, pieces, *_):
    return sum(2 * 4 * batches[0] * w.shape[0] for w in ws[1:]) * pieces[0]


def room(ws, xs, batches, pieces, most):
    """h and y of each micro-batch held, what is being worked on, and the weights."""
    return int(BIG * (2 * most[0] + 5.5))


# %% [markdown]
# ## 1. How many micro-batches? (★★, 20 minutes, 3 points)
#
# A batch of `examples` examples goes through `world_size` equal stages. Cut the batch into M
# micro-batches whose sizes differ by at most one. A micro-batch of n examples keeps each stage busy for
# `start_s` + n `example_s` seconds. This is the time of its forward and its backward together. Messages
# take no time. Each step of the ramps takes as long as the largest micro-batch. Find the M with the
# shortest step. If several M are equally good, take the smallest M. Return `(M, bubble)`. Send nothing.


# %% role="answer" question="best_cut" points=3
def best_cut(rank, world_size, examples, start_s, example_s):
    """Return (M, bubble): the best number of micro-batches, an int, and its bubble, a float.

    examples is an int of at least 1; the times are floats.
    """
    ### BEGIN SOLUTION
    best = None
    for M in range(1, examples + 1):
        largest = -(-examples // M)
        busy_s = M * start_s + examples * example_s
        ramps_s = (world_size - 1) * (start_s + largest * example_s)
        if best is None or busy_s + ramps_s < best[0] * (1 - 1e-9):
            best = busy_s + ramps_s, M, ramps_s / (busy_s + ramps_s)
    return best[1:]
    ### END SOLUTION


# %% role="check" question="best_cut" points=3
def a_batch(rank, world_size):
    """On two ranks or more, each mistake below has another M than the others and the answer."""
    examples = [12, 26, 49, 34, 49][world_size - 1]
    return examples, 0.5, [1.0, 0.5, 1.0, 0.5, 0.5][world_size - 1]


def a_batch_of_equal_parts(rank, world_size):
    """The best M divides this one, so that no part is larger than the others."""
    examples = [24, 24, 24, 36, 24][world_size - 1]
    return examples, 0.5, [1.0, 1.0, 0.5, 1.0, 0.25][world_size - 1]


def step_of(K, M, examples, start_s, example_s):
    """Time and bubble of a step: the largest micro-batch goes through all other stages, too."""
    busy_s = M * start_s + examples * example_s
    ramps_s = (K - 1) * (start_s + -(-examples // M) * example_s)
    return busy_s + ramps_s, ramps_s / (busy_s + ramps_s)


def chosen(pick, bubble=lambda K, M, *batch: step_of(K, M, *batch)[1]):
    """What every rank gives where pick(K, *batch) is the number of micro-batches."""

    def expected(*given):
        batch, K = [each[0] for each in given], len(given[0])
        M = pick(K, *batch)
        return [(M, bubble(K, M, *batch))] * K

    return expected


def shortest(K, examples, *times):
    return min(
        range(1, examples + 1), key=lambda M: (round(step_of(K, M, examples, *times)[0], 9), M)
    )


def equal_pieces(K, examples, start_s, example_s):
    """As if examples / M were a whole number."""

    def time_s(M):
        return round((M + K - 1) * (start_s + examples / M * example_s), 9)

    return min(range(1, examples + 1), key=lambda M: (time_s(M), M))


def dividing(K, examples, *times):
    divisors = [M for M in range(1, examples + 1) if examples % M == 0]
    return min(divisors, key=lambda M: (round(step_of(K, M, examples, *times)[0], 9), M))


def by_formula(K, M, *batch):
    return (K - 1) / (M + K - 1)


def largest_of_the_best(K, examples, *times):
    steps = {M: round(step_of(K, M, examples, *times)[0], 9) for M in range(1, examples + 1)}
    return max(M for M, time_s in steps.items() if time_s == min(steps.values()))


def as_long_as_the_largest(K, M, examples, start_s, example_s):
    """The time of a step if every micro-batch took as long as the largest one."""
    return (M + K - 1) * (start_s + -(-examples // M) * example_s)


def all_as_large(K, examples, *times):
    return min(
        range(1, examples + 1),
        key=lambda M: (round(as_long_as_the_largest(K, M, examples, *times), 9), M),
    )


def idle_share_of_that(K, M, examples, start_s, example_s):
    busy_s = M * start_s + examples * example_s
    return 1 - busy_s / as_long_as_the_largest(K, M, examples, start_s, example_s)


def with_ramps(largest_of):
    """M and its bubble if the largest of M parts were `largest_of(examples, M)`."""

    def ramps_s(K, M, examples, start_s, example_s):
        return (K - 1) * (start_s + largest_of(examples, M) * example_s)

    def time_s(K, M, examples, start_s, example_s):
        busy_s = M * start_s + examples * example_s
        return busy_s + ramps_s(K, M, examples, start_s, example_s)

    def pick(K, examples, *times):
        return min(
            range(1, examples + 1), key=lambda M: (round(time_s(K, M, examples, *times), 9), M)
        )

    return chosen(pick, lambda *case: ramps_s(*case) / time_s(*case))


def counted_as_large(*given):
    """Whichever way the bubble is worked out then."""
    bubbles = by_formula, idle_share_of_that, lambda K, M, *batch: step_of(K, M, *batch)[1]
    return OneOf([chosen(all_as_large, bubble)(*given) for bubble in bubbles])


verdict = check(
    "best_cut",
    best_cut,
    [a_batch, a_batch_of_equal_parts],
    chosen(shortest),
    collectives(lambda *given: 0),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "Those are as many micro-batches as examples: each of them has to be started.": (
            chosen(lambda K, examples, *times: examples)
        ),
        "The number is right. (K - 1) / (M + K - 1) holds for equal micro-batches: the ramps take as "
        "long as the largest one.": chosen(shortest, by_formula),
        "That is the best M if a batch could be cut into equal parts: look at the largest part.": (
            chosen(equal_pieces)
        ),
        "That takes equal parts for granted, for M and for the bubble: look at the largest part.": (
            chosen(equal_pieces, by_formula)
        ),
        "That is the best M of those that divide the batch; another one is better.": (
            chosen(dividing)
        ),
        "That counts every micro-batch as large as the largest; only the steps of the ramps last as "
        "long as that one.": counted_as_large,
        "The step is as short as it can be; but of equally short ones the smallest M is asked for.": (
            chosen(largest_of_the_best)
        ),
        "One micro-batch is the naive split.": chosen(lambda *batch: 1),
        "The largest micro-batch has one example too many where M divides the batch: there all are "
        "equal.": with_ramps(lambda examples, M: examples // M + 1),
        "The largest micro-batch has an example too few: where M does not divide the batch, some have "
        "one more.": with_ramps(lambda examples, M: examples // M),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# For equal micro-batches and K stages, lesson 11 has a formula for the time: it counts M micro-batches,
# and K - 1 more steps for the ramps. How long is a step of the ramps if one micro-batch is larger than
# the others?
#
# </details>
# <details><summary>Hint 2</summary>
#
# The largest micro-batch has `-(-examples // M)` examples: this is a division that rounds up. A rank is busy
# for `M * start_s + examples * example_s`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Try every M from 1 to `examples`. Keep the first M that is better than every M before it.
#
# </details>

# %% role="hidden" question="best_cut"
seed = 1
print(
    measure(
        best_cut,
        lambda rank, n: (9 + (seed * 5 + 3 * n) % 14, 0.5, [1.0, 2.0, 0.75][(seed + n) % 3]),
    )
)

# %% [markdown]
# ## 2. Balance the stages (★★, 20 minutes, 3 points)
#
# Every rank now has n layers and has measured them: `times_us` is an int64 tensor of n times in
# microseconds. The slowest stage sets the pace. Give each rank neighbouring layers, and at least one
# layer. Make the slowest stage as fast as possible. If several cuts are equally good, take the one that
# gives rank 0 the most layers. If several are left, take the one that gives rank 1 the most layers, and
# so on. Return `(first, end)`: this rank gets layers `first` to `end - 1`. Use one `all_gather`.


# %% role="answer" question="rebalance" points=3
def rebalance(rank, world_size, times_us):
    """Return (first, end), two ints: the layers of this rank, counted over all ranks.

    All ranks have equally many layers. Your function must not change times_us.
    """
    ### BEGIN SOLUTION
    parts = [torch.empty_like(times_us) for _ in range(world_size)]
    dist.all_gather(parts, times_us)
    times = torch.cat(parts).tolist()

    def ends_within(limit):
        """Where the stages end if each takes all it can; the last ranks keep a layer each."""
        ends, first = [], 0
        for stage in range(world_size):
            end = first + 1
            most = len(times) - (world_size - 1 - stage)
            while end < most and sum(times[first : end + 1]) <= limit:
                end += 1
            ends.append(end)
            first = end
        return ends

    limit = max(times)
    while ends_within(limit)[-1] < len(times):
        limit += 1
    ends = [0, *ends_within(limit)]
    return ends[rank], ends[rank + 1]
    ### END SOLUTION


# %% role="check" question="rebalance" points=3
def measured_layers(rank, world_size):
    of_all = [
        [[3, 1, 2]],
        [[7, 7, 2], [1, 1, 7]],
        [[5, 2, 2], [8, 8, 2], [6, 2, 7]],
        [[6, 9, 3], [2, 2, 6], [1, 6, 4], [3, 1, 1]],
        [[4, 5, 1], [1, 8, 3], [2, 9, 1], [9, 4, 6], [8, 3, 6]],
    ][world_size - 1]
    return (10 * torch.tensor(of_all[rank]),)


def every_cut(count, n):
    for ends in itertools.combinations(range(1, count), n - 1):
        yield [0, *ends, count]


def with_empty_ones(count, n):
    for ends in itertools.combinations_with_replacement(range(count + 1), n - 1):
        yield [0, *ends, count]


def slowest(times, cut):
    return max(sum(times[a:b]) for a, b in itertools.pairwise(cut))


def spread(cut):
    return list(itertools.pairwise(cut))


def best_of(order, cuts=every_cut):
    """The (first, end) of all ranks in the fastest cut, of equally fast ones the first in `order`."""

    def expected(parts):
        times, n = torch.cat(parts).tolist(), len(parts)
        return spread(min(cuts(len(times), n), key=lambda cut: (slowest(times, cut), order(cut))))

    return expected


def first_ranks(cut):
    return [-end for end in cut]


def last_ranks(cut):
    return cut


def up_to_the_mean(parts):
    times, n = torch.cat(parts).tolist(), len(parts)
    cut, total = [0], 0
    for number, time in enumerate(times):
        left = len(times) - number
        full = total + time > sum(times) / n or left <= n - len(cut)
        if number > cut[-1] and len(cut) < n and full:
            cut.append(number)
            total = 0
        total += time
    return spread([*cut, len(times)])


def past_the_mean(parts):
    times, n = torch.cat(parts).tolist(), len(parts)
    cut, total = [0], 0
    for number, time in enumerate(times, 1):
        total += time
        left = len(times) - number
        if len(cut) < n and (total >= sum(times) / n or left <= n - len(cut)):
            cut.append(number)
            total = 0
    return spread([*cut, len(times)])


verdict = check(
    "rebalance",
    rebalance,
    measured_layers,
    best_of(first_ranks),
    only("all_gather"),
    collectives(lambda parts: 1, hint="One all_gather tells everybody all times."),
    collective_nbytes(lambda parts: parts[0].nbytes, hint="A rank brings its own n times."),
    mistakes={
        "The slowest stage is as fast as it can be; but of such cuts rank 0 has to take the most "
        "layers, then rank 1: you fill the last ranks first.": best_of(last_ranks),
        "That is a cut for ranks that may stay empty: each gets at least one layer.": (
            best_of(first_ranks, with_empty_ones)
        ),
        "The second number is where the layers of this rank end, not how many they are.": (
            lambda parts: [(a, b - a) for a, b in best_of(first_ranks)(parts)]
        ),
        "Nothing has moved: those are the layers that each rank has now.": (
            lambda parts: [(r * len(part), (r + 1) * len(part)) for r, part in enumerate(parts)]
        ),
        "Each stage ends before it is above the mean, and the last one takes what is left: it is too "
        "slow.": up_to_the_mean,
        "Each stage ends when it has reached the mean, and so may be far above it: look for the cut "
        "whose slowest stage is fastest.": past_the_mean,
        "`end` is one past the last layer of a rank, as in a range.": (
            lambda parts: [(a, b - 1) for a, b in best_of(first_ranks)(parts)]
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# After `dist.all_gather(parts, times_us)` every rank knows all times. So every rank works out the same
# cut, and takes its own part.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `itertools.combinations(range(1, layers), world_size - 1)` gives all cuts that leave no stage empty.
# For a net with many layers, set a limit for the time of a stage, and fill each stage up to this limit.
# Raise the limit until `world_size` stages are enough.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Let `min` compare tuples `(slowest stage, [-end of stage 0, -end of stage 1, ...])`.
#
# </details>

# %% role="hidden" question="rebalance"
seed = 1
print(
    measure(
        rebalance,
        lambda rank, n: (
            torch.tensor([10 + 10 * ((seed + 7 * rank + 5 * k * k + n) % 9) for k in range(3)]),
        ),
    )
)

# %% [markdown]
# ## 3. A plan within a budget (★★★, 40 minutes, 4 points)
#
# A batch has `pieces` micro-batches of `batch` examples. On rank 0, `xs` is the list of these
# micro-batches. On the other ranks, `xs` is None. Rank r holds `w` of stage r. Write this rank's words:
# `follow` executes them with `together`. A rank may never hold more than `most` micro-batches between
# forward and backward. Make the step as short as this rule allows. All stages are equal, a backward
# takes twice as long as a forward, and messages take no time. Return the gradient of `w`. You get 2
# points for the value, 1 for the time, and 1 for the memory.


# %% role="answer" question="in_budget" points={"value": 2, "time": 1, "memory": 1}
def in_budget(rank, world_size, w, xs, batch, pieces, most):
    """Return the gradient with respect to w, a tensor of w's shape.

    w has shape (numbers per example before the stage, after it). Your function must not
    change w and xs.
    """
    ### BEGIN SOLUTION
    # When does each micro-batch start on rank 0, if a forward takes 1 and a backward 2?
    start = []
    for micro in range(pieces):
        start.append(start[-1] + 3 if start else 0)
        if micro >= most:
            start[micro] = max(start[micro], start[micro - most] + 3 * world_size)
    there, back = rank, world_size + 2 * (world_size - 1 - rank)
    words = [(time + there, f"F{micro}") for micro, time in enumerate(start)]
    words += [(time + back, f"B{micro}") for micro, time in enumerate(start)]
    words = [word for _, word in sorted(words)]
    return follow(words, rank, world_size, w, xs, batch, together)
    ### END SOLUTION


# %% role="check" question="in_budget" points={"value": 2, "time": 1, "memory": 1}
def shortest_s(ws, xs, batches, pieces, most):
    """A micro-batch comes 3 products after the one before it, and when there is room on rank 0."""
    K, starts = len(ws), []
    for micro in range(pieces[0]):
        freed = starts[micro - most[0]] + 3 * K if micro >= most[0] else 0
        starts.append(max(freed, starts[-1] + 3 if starts else 0))
    return (starts[-1] + 3 * K) * PRODUCT_S


def half_of_the_products(ws, xs, batches, pieces, most):
    """Floating-point operations: less is computed where neither clock nor ledger sees it."""
    return 3 * pieces[0] * batches[0] * ws[0].numel()


def on_free_links(K, pieces, most, hint):
    inputs = stages_and_pieces(SQUARE, 64, pieces, most)
    return Timed(FREE[K], inputs, shortest_s, hint, at_least_flops=half_of_the_products)


OTHER_K = (
    "The plan is as short as it can be on 4 ranks; here are {}: count a micro-batch's way from K."
)

verdict = check(
    "in_budget",
    in_budget,
    stages_and_pieces([3, 4, 2, 5, 3, 2], 4, [2, 3, 5, 4, 6], [1, 2, 2, 3, 5]),
    in_one_process,
    only("send", "recv"),
    messages(each_once, hint="Each micro-batch crosses each boundary once each way."),
    nbytes(over_boundaries, hint="Only activations and their gradients need to cross."),
    mistakes={
        "Those are sums over the micro-batches: follow gives their mean.": summed,
        "The last micro-batch is in no word: all of `pieces` count.": but_the_last,
        NO_FORWARD: "KeyError",
        NO_SUCH_PIECE: "IndexError",
    },
    timed=[
        on_free_links(
            4,
            PIECES,
            4,
            "Here 4 may be held, as many as there are ranks: that is 1F1B of the lesson.",
        ),
        on_free_links(
            4,
            PIECES,
            2,
            "Here 2 may be held: a third begins when the first is back. Does a rank wait for a forward, "
            "while a backward is there?",
        ),
        on_free_links(3, 7, 2, OTHER_K.format(3)),
        on_free_links(5, 7, 3, OTHER_K.format(5)),
    ],
    memory=[
        Fits(
            FREE[K],
            stages_and_pieces(SQUARE, 64, PIECES, most),
            room,
            f"Here at most {most} may be held: go backward as soon as so many are.",
            at_least_flops=half_of_the_products,
        )
        for K, most in ((4, 4), (4, 2), (5, 3))
    ],
    points={"value": 2, "time": 1, "memory": 1},
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# If `most` = `world_size`, the best plan is 1F1B. If `most` is smaller, 1F1B with fewer forwards ahead
# keeps the memory small, but it wastes time. Rank 1 then waits for a forward that rank 0 may not do yet,
# although rank 1 could already do a backward.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Let a forward take 1 and a backward 2, and let K be `world_size`. If a micro-batch starts on rank 0 at
# time s, its forward on rank r begins at s + r. Its backward on rank r begins at s + K + 2 (K - 1 - r).
#
# </details>
# <details><summary>Hint 3</summary>
#
# The next micro-batch can start 3 later. But the micro-batch `most` places ahead of it must be back
# first, and it is back 3 K after its own start. When you know all times, sort a rank's words by time.
#
# </details>

# %% role="hidden" question="in_budget"
seed = 1


def drawn_pieces(rank, world_size):
    generator = torch.Generator().manual_seed(seed + rank)
    w = torch.randn(2 + (seed + rank) % 4, 2 + (seed + rank + 1) % 4, generator=generator)
    count = 1 + (seed + world_size) % 5
    xs = [torch.randn(3, len(w), generator=generator) for _ in range(count)] if rank == 0 else None
    return w, xs, 3, count, 1 + (seed + world_size) % 3


print(measure(in_budget, drawn_pieces))
for K, most in ((4, 2 + seed % 3), (3, 2)):  # plans for other numbers than the check's
    plan = on_free_links(K, 5 + seed % 5, most, "")
    print(measure(in_budget, plan.inputs, [K], start=plan.start(timeout_s=20)))

# %% [markdown]
# ## 4. It hangs now and then (★★, 20 minutes, 3 points)
#
# Here the micro-batches go in pairs, `F0 F1 B0 B1 F2 F3 B2 B3` ..., and `send_first` exchanges the
# tensors with plain sends and receives. With an even number of micro-batches the program is right. With
# 3 or 5 micro-batches the program hangs. Find out which rank waits for which rank, and fix the words.
# Keep the pairs: only one micro-batch may be without a partner. Write the same words on all ranks. Keep
# `send_first`.


# %% role="answer" question="in_pairs" points=3
def in_pairs(rank, world_size, w, xs, batch, pieces):
    """Return the gradient with respect to w, a tensor of w's shape.

    Your function must not change w and xs.
    """
    words = []
    ### BEGIN BROKEN
    odd = pieces % 2
    starts = range(0, pieces, 2) if rank == 0 else range(-odd, pieces, 2)
    ### END BROKEN
    ### BEGIN SOLUTION
    starts = range(0, pieces, 2)
    ### END SOLUTION
    for start in starts:
        pair = [micro for micro in (start, start + 1) if 0 <= micro < pieces]
        words += [f"F{micro}" for micro in pair] + [f"B{micro}" for micro in pair]
    return follow(words, rank, world_size, w, xs, batch, send_first)


# %% role="check" question="in_pairs" points=3
def odd_and_even(widths, batch, counts):
    def inputs(rank, world_size):
        return stages_and_pieces(widths, batch, counts, 0)(rank, world_size)[:4]

    return inputs


def without_the_last(ws, xs, batches, pieces):
    return in_one_process(ws, [xs[0][: pieces[0] // 2 * 2 or 1]])


def last_twice(ws, xs, batches, pieces):
    return in_one_process(ws, [xs[0] + xs[0][-1:] * (pieces[0] % 2)])


def groups(sizes):
    """The words of groups of micro-batches: all forwards of one, then its backwards."""
    borders = [0, *itertools.accumulate(sizes)]
    each = [range(a, b) for a, b in itertools.pairwise(borders)]
    return [f"{kind}{micro}" for group in each for kind in "FB" for micro in group]


def pairs(pieces):
    """All ways to go in pairs: the micro-batch without a partner may come anywhere."""
    if pieces % 2 == 0:
        return [groups([2] * (pieces // 2))]
    return [groups([2] * k + [1] + [2] * (pieces // 2 - k)) for k in range(pieces // 2 + 1)]


def sends_and_receives(words, rank, n):
    """Those that follow makes on a rank, with an exchange that names its send first."""
    made, outgoing = [], []
    for word in words:
        step = 1 if word[0] == "F" else -1
        made += outgoing + [("recv", rank - step)] * (0 <= rank - step < n)
        outgoing = [("send", rank + step)] * (0 <= rank + step < n)
    return made + outgoing


def not_in_pairs(run, given):
    """A sentence where some rank's sends and receives are those of other words, else None."""
    n, pieces = run.world_size, given[3][0]
    made = [[(op.kind, op.peer) for op in run.trace.of_rank(rank)] for rank in range(n)]

    def are(words):
        return made == [sends_and_receives(words, rank, n) for rank in range(n)]

    if any(map(are, pairs(pieces))):
        return None
    if are(groups([1] * pieces)):
        why = "Go on in pairs: while one micro-batch is under way, the other can be worked on."
    elif are(groups([pieces])):
        why = "Take a pair backward before the next one comes."
    else:
        why = "Keep to F0 F1 B0 B1 F2 ..., on all ranks; one micro-batch may have no partner."
    return f"The gradients are right, but the words are not in pairs. {why}"


def not_one_after_the_other(run, given):
    """A sentence where a call returns before its message is there, else None."""
    op = next((op for op in run.trace if op.async_op), None)
    if op is None:
        return None
    return (
        f"The words are right, but rank {op.rank} starts a {op.kind} and goes on: keep send_first, "
        "which sends, then receives. For pairs it is good enough."
    )


verdict = check(
    "in_pairs",
    in_pairs,
    odd_and_even([3, 4, 2, 5, 3, 2], 4, [2, 3, 5, 4, 3]),
    in_one_process,
    only("send", "recv"),
    messages(each_once, hint="Each micro-batch crosses each boundary once each way."),
    nbytes(over_boundaries, hint="Only activations and their gradients need to cross."),
    Rule(not_in_pairs),
    Rule(not_one_after_the_other),
    mistakes={
        NO_FORWARD: "KeyError",
        NO_SUCH_PIECE: "IndexError",
        "The micro-batch without a partner is left out: its gradient counts, too.": without_the_last,
        "The micro-batch without a partner is done twice: its gradient counts twice.": last_twice,
        "Those are sums over the micro-batches: follow gives the mean of those in its words.": summed,
    },
    as_given="8e56f49b",
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# The check shows which rank waits for which rank. Print `words` on ranks 0 and 1 for 3 micro-batches.
#
# </details>
# <details><summary>Hint 2</summary>
#
# After `F0 B0`, rank 1 sends a gradient to rank 0. But the words of rank 0 begin with `F0 F1`, so rank 0
# sends a second forward to rank 1 first. Each of these ranks waits until the other receives. The
# micro-batch without a partner comes first on some ranks, and last on others. Its place matters little,
# but all ranks must agree on it.
#
# </details>

# %% role="hidden" question="in_pairs"
seed = 1


def drawn_in_pairs(rank, world_size):
    generator = torch.Generator().manual_seed(seed + rank)
    w = torch.randn(2 + (seed + rank) % 4, 2 + (seed + rank + 1) % 4, generator=generator)
    count = 2 + (seed + world_size) % 4
    xs = [torch.randn(3, len(w), generator=generator) for _ in range(count)] if rank == 0 else None
    return w, xs, 3, count


print(measure(in_pairs, drawn_in_pairs))
