"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/08_from_loops_to_ddp.py, which is what grading reads; nobody edits this file.
"""

from simlib.checks import Fits, OneOf, Rule, Timed, brought, check, measure, only


# %% 08.1 reduce_in_buckets
def some_gradients(rank, world_size):
    lengths = [2, 6, 2, 3, 3, 9, 1]
    numbers = torch.arange(float(sum(lengths))) * (rank + 1)
    return list(numbers.split(lengths)), 32 if world_size % 2 else 16


CARRIED = {16: [40, 24, 32, 8], 32: [40, 32, 32]}  # by cap_nbytes: bytes of the buckets


def means_of(lists, caps):
    means = [torch.stack(grads).mean(0) for grads in zip(*lists, strict=True)]
    return [means] * len(lists)


buckets = brought(
    lambda lists, caps: CARRIED[caps[0]],
    hint="Last gradient first; a bucket is closed once it holds cap_nbytes or more.",
)


def other_buckets(run, given):
    """The sentence of `buckets`, and the cap that holds in this world."""
    said = buckets.broken(run, given)
    return said and f"{said} Here cap_nbytes is {given[1][0]}."


verdict = check(
    "reduce_in_buckets",
    reduce_in_buckets,
    some_gradients,
    means_of,
    only("all_reduce"),
    Rule(other_buckets, buckets.tally),
    mistakes={
        "Those are sums over the ranks: divide by their number.": (
            lambda lists, caps: [[m * len(lists) for m in means_of(lists, caps)[0]]] * len(lists)
        ),
        "Those are the right means in the order of the buckets: give each its own place.": (
            lambda lists, caps: [means_of(lists, caps)[0][::-1]] * len(lists)
        ),
    },
    points=3,
)
verdict


# %% 08.2 hide_it
def small(rank, world_size):
    return [3, 5, 2, 4, 1], torch.arange(6.0).view(2, 3) + rank


def on_the_network(rank, world_size):
    return [256] * 7, torch.ones(8, 256) * (rank + 1) / 100


def own_gradients(widths, xs):
    found = []
    for x in xs:
        model = tower(widths[0])
        model(x).sum().backward()
        found.append(gradients(model))
    return found


def mean_gradients(widths, xs):
    layers = zip(*own_gradients(widths, xs), strict=True)
    return [[torch.stack(grads).mean(0) for grads in layers]] * len(xs)


def sorts_of_numbers(got, own, mean, n):
    """What the numbers of a list of gradients are: means, the rank's own, or something else."""
    if not isinstance(got, list) or len(got) != len(own):
        return {"else"}
    found = set()
    for one, mine, right in zip(got, own, mean, strict=True):
        if not isinstance(one, torch.Tensor) or one.shape != mine.shape:
            return {"else"}
        is_mean, is_own = one.isclose(right), one.isclose(mine) | one.isclose(mine / n)
        found |= {"mean"} if (is_mean & ~is_own).any() else set()
        found |= {"own"} if (is_own & ~is_mean).any() else set()
        found |= set() if (is_own | is_mean | one.isclose(right * n)).all() else {"else"}
    return found


def read_too_early(run, given):
    """A sentence where some numbers are means already and others still the rank's own."""
    widths, xs = given
    each = zip(run.results, own_gradients(widths, xs), mean_gradients(widths, xs), strict=True)
    found = set().union(*(sorts_of_numbers(*one, len(xs)) for one in each))
    if found != {"mean", "own"}:
        return None
    return (
        "Some gradients are means already, and others still the rank's own: they were read or "
        "copied before their wait() had returned. Which ones may differ from run to run."
    )


FLOPS_PER_S = 2e9  # a layer: 0.52 ms forward, 1.05 backward, 0.49 for its all_reduce


def budget_s(widths, xs):
    layer_s = 2 * 8 * 256**2 / FLOPS_PER_S
    bucket_s = 6 * (30e-6 + 256**2 / 1.25e9)
    return 6 * 3 * layer_s + 1.5 * bucket_s


def half_of_the_flops(widths, xs):
    """Of a forward and a backward pass: less is computed where no clock sees it."""
    return sum(3 * len(xs[0]) * a * b for a, b in pairwise(widths[0]))


verdict = check(
    "hide_it",
    hide_it,
    small,
    mean_gradients,
    only("all_reduce"),
    Rule(read_too_early, before_values=True),
    brought(
        lambda widths, xs: [4 * a * b for a, b in pairwise(widths[0])][::-1],
        hint="One all_reduce per layer, in the order in which backward reaches them.",
    ),
    timed=[
        Timed(
            simlib.clusters.ethernet_10g(4, device=simlib.Device(FLOPS_PER_S)),
            on_the_network,
            budget_s,
            at_least_flops=half_of_the_flops,
            hint="Start each all_reduce in a hook, and do not wait for it there.",
        )
    ],
    mistakes={
        "Those are sums over the ranks: divide by their number.": (
            lambda widths, xs: [[g * len(xs) for g in mean_gradients(widths, xs)[0]]] * len(xs)
        ),
        "Those are the right means in the order in which backward reaches the layers: return the "
        "first layer's first.": lambda widths, xs: [mean_gradients(widths, xs)[0][::-1]] * len(xs),
        "No weight has a gradient yet: does backward() run?": (
            lambda widths, xs: [[None] * (len(widths[0]) - 1)] * len(xs)
        ),
        "Each rank has its own gradient: what was reduced is not the tensor in `.grad`, which a "
        "post-accumulate hook sees, or it was copied before its wait().": own_gradients,
        "Each rank has its own gradient, divided: what was reduced is not the tensor in `.grad`, "
        "which a post-accumulate hook sees, or it was copied before its wait().": (
            lambda widths, xs: [[g / len(xs) for g in own] for own in own_gradients(widths, xs)]
        ),
    },
    points=4,
)
verdict


# %% 08.3 accumulate
import ast
import linecache


def some_micro_batches(rank, world_size):
    number = 2 + world_size % 3
    numbers = torch.arange(6.0 * number).sin() + rank
    return (list(numbers.view(number, 2, 3)),)


def many_micro_batches(rank, world_size):
    return (list(torch.ones(16, 64, 3) * (rank + 1)),)


def room(lists):
    """Bytes: twice a micro-batch with its outputs, and 500 for weights and buckets."""
    return 2 * 4 * (3 + 2 + 1) * len(lists[0][0]) + 500


def half_of_the_work(lists):
    """Floating-point operations: half of a forward pass and of the weights' gradients."""
    return len(lists[0]) * 2 * len(lists[0][0]) * (3 * 2 + 2 * 1)


def of_the_whole(lists, first=1, between=1, last=1):
    """The gradients if micro-batches count so many times."""
    model = tower([3, 2, 1])
    times = [first, *[between] * (len(lists[0]) - 2), last]
    weighed = [model(x).mean() * k for xs in lists for x, k in zip(xs, times, strict=True)]
    torch.stack(weighed).mean().backward()
    return [gradients(model)] * len(lists)


def of_each_rank(lists, *times):
    return [of_the_whole([xs], *times)[0] for xs in lists]


def speaks_of_no_backward(site):
    """Whether a line of code hands something to a call, but names no backward; comments are none."""
    try:
        tree = ast.parse("".join(linecache.getlines(site.file)))
    except SyntaxError:  # a cell with commands of IPython's
        return False
    found = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    found = [node for node in found if node.lineno <= site.lineno <= node.end_lineno]
    parts = [part for node in found if not hasattr(node, "body") for part in ast.walk(node)]
    names = [getattr(part, "attr", getattr(part, "id", "")) for part in parts]
    given = [part for part in parts if isinstance(part, ast.Call) and (part.args or part.keywords)]
    return bool(given) and not any("backward" in name for name in names)


def by_hand(run, given):
    """A sentence where an all_reduce of gradients is the learner's call, whatever it is named.

    DDP calls it from C++, in backward, with a request and takes the request's future: nobody waits
    for the request itself. Only a simulation notes a wait for a future, too. (With unused
    parameters DDP also sends integers, and waits: `brought` tells.)
    """
    for op in run.trace:
        if op.kind != "all_reduce" or op.dtype.startswith("int"):
            continue
        waits = not op.async_op or (run.engine != "simulated" and op.wait_s is not None)
        if waits or "async_op=" in op.site.line_text or speaks_of_no_backward(op.site):
            line = f": `{op.site.line_text}`" if op.site.line_text else ""
            return (
                f"Rank {op.rank} calls all_reduce itself, of {sum(map(math.prod, op.shapes))} "
                f"numbers ({op.site.place}){line}. Here DDP is to do it: let the "
                "last micro-batch go backward outside of no_sync."
            )
    return None


def synced_first(lists):
    first, others = of_the_whole(lists, 1, 0, 0), of_each_rank(lists, 0, 1, 1)
    pairs = zip(first, others, strict=True)
    return [[a + b for a, b in zip(one, other, strict=True)] for one, other in pairs]


verdict = check(
    "accumulate",
    accumulate,
    some_micro_batches,
    of_the_whole,
    only("all_reduce", "all_gather", "broadcast"),  # the latter two are of DDP's constructor
    Rule(by_hand, before_values=True),
    brought(
        lambda lists: [32] if len(lists) > 1 else None,
        kind="all_reduce",
        hint="Put all micro-batches but the last under no_sync, forward and backward.",
    ),
    memory=[
        Fits(
            simlib.clusters.ethernet_10g(2, device=simlib.Device(1e9)),
            many_micro_batches,
            room,
            at_least_flops=half_of_the_work,
            hint="Go forward and backward with one micro-batch, then take the next.",
        )
    ],
    mistakes={
        "That is the sum over the micro-batches: each loss is a mean already.": (
            lambda lists: of_the_whole(lists, *[len(lists[0])] * 3)
        ),
        "That is a multiple, as the examples of a micro-batch are summed: take their mean.": (
            lambda lists: of_the_whole(lists, 2, 2, 2)
        ),
        "That is the right gradient divided by the number of ranks: DDP does that already.": (
            lambda lists: of_the_whole(lists, *[1 / len(lists)] * 3)
        ),
        "Each rank has the gradient of its own examples: DDP never communicated. Forward **and** "
        "backward of the last micro-batch stand outside of no_sync.": of_each_rank,
        "Only the last micro-batch counts: is the gradient zeroed in between?": (
            lambda lists: of_the_whole(lists, 0, 0, 1)
        ),
        "Only the last loss is divided by the number of micro-batches: divide all.": (
            lambda lists: of_the_whole(lists, *[len(lists[0])] * 2, 1)
        ),
        "DDP communicated with the first micro-batch: what came later is each rank's own.": (
            synced_first
        ),
        "No weight has a gradient yet: does backward() run?": lambda lists: (
            [[None] * 2] * len(lists)
        ),
    },
    points=3,
)
verdict


# %% 08.4 weigh
def uneven(rank, world_size):
    examples = [3, 1, 0, 5, 2][rank]
    return (torch.arange(3.0 * examples).view(examples, 3).cos() + rank,)


def weighed(xs, weights=None):
    model = tower([3, 2, 1])
    total = sum(map(len, xs))
    weights = weights or [1 / total] * len(xs)
    sum(model(x).sum() * weight for x, weight in zip(xs, weights, strict=True)).backward()
    return [gradients(model)] * len(xs)


def another_way(run, given):
    """A sentence where beside DDP's 8 gradients not exactly one number is summed."""
    for rank in range(run.world_size if run.world_size > 1 else 0):
        ops = [op for op in run.trace.of_rank(rank) if op.kind == "all_reduce"]
        numbers = [sum(map(math.prod, op.shapes)) for op in ops]
        if sorted(numbers) == [1, 8]:
            continue
        why = (
            f"the all_reduces of rank {rank} carry {numbers} numbers: 8 gradients by DDP and 1 of "
            "yours are enough. What is it that all ranks must know?"
        )
        if numbers == [8]:
            why = (
                f"rank {rank} learns the counts by another collective. Only their sum is needed: "
                "an all_reduce of one number."
            )
        elif 8 not in numbers:
            why = (
                f"rank {rank} has no all_reduce of 8 gradients, which is DDP's: what you reduce "
                f"yourself carries {numbers} numbers. Let DDP do it, in ddp(x)'s backward."
            )
        return f"The values are right in a world of {run.world_size}, but {why}"
    return None


def own_only(xs):
    """What each rank has if DDP never communicates, for three ways to weigh its examples."""
    total, n = sum(map(len, xs)), len(xs)
    ways = [lambda x: n / total, lambda x: 1 / total, lambda x: 1 / max(1, len(x))]
    return OneOf([[weighed([x], [way(x)])[0] for x in xs] for way in ways])


def weighed_afterwards(xs):
    total, n = sum(map(len, xs)), len(xs)
    means = weighed(xs, [1 / n / max(1, len(x)) for x in xs])[0]
    return [[g * n * len(x) / total for g in means] for x in xs]


verdict = check(
    "weigh",
    weigh,
    uneven,
    weighed,
    only("all_reduce", "all_gather", "broadcast"),
    Rule(another_way),
    mistakes={
        "Every rank weighs the same there: a rank with few examples has too much weight.": (
            lambda xs: weighed(xs, [1 / len(xs) / max(1, len(x)) for x in xs])
        ),
        "That is the right gradient divided by the number of ranks: DDP divides, too.": (
            lambda xs: weighed(xs, [1 / len(xs) / sum(map(len, xs))] * len(xs))
        ),
        "That is the gradient of the sum of the outputs, which DDP has divided by the number of "
        "ranks: divide by the number of all examples.": (
            lambda xs: weighed(xs, [1 / len(xs)] * len(xs))
        ),
        "There the ranks' means are added up: divide by the number of all examples, not by the "
        "rank's own.": lambda xs: weighed(xs, [1 / max(1, len(x)) for x in xs]),
        "Each rank weighs what DDP has averaged already: weigh the loss, before backward.": (
            weighed_afterwards
        ),
        "Each rank has the gradient of its own examples, so DDP never communicated: call ddp(x), "
        "not ddp.module(x).": own_only,
        "Every rank has to send as often as the others, without `join`: an empty share, too, goes "
        "through ddp(x) and backward(), with a sum of nothing.": "which has finished",
    },
    points=3,
)
verdict
