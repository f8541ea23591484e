# %% [markdown]
# # Exercises 08: from loops to DDP
#
# Tasks 1 to 4 go with [lesson 08](../notebooks/08_from_loops_to_ddp.ipynb). In the first two tasks you build
# the core of DDP. In the next two tasks you use torch's DDP where it needs help. Tasks 5 and 6 go with the
# lesson's [second part](../notebooks/08_in_eight_bits.ipynb): numbers travel in 8 bits. A check calls your
# function on worlds of 1 to 5 real ranks. It looks at the values and at the number, the order and the bytes
# of the collectives. The check of task 2 then runs your function on a modelled network. The virtual clock
# of this network shows whether your program really overlaps.
#
# Each task has folded hints.

# %% role="setup"
import contextlib
import math
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import simlib
from simlib.checks import Fits, OneOf, Rule, Timed, brought, check, collectives, measure, only


def tower(widths):
    """Linear layers of these widths, the same on every rank; all have weights alone."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in pairwise(widths)))


def gradients(model):
    return [weight.grad for weight in model.parameters()]


# %% [markdown]
# Tasks 5 and 6 use these two functions of the lesson's second part. Here a block has 8 numbers.


# %% role="setup"
E4M3 = torch.float8_e4m3fn
LARGEST = {torch.int8: 127, E4M3: 448}


def quantised(x, dtype):
    """Values of this dtype and their float32 scales, one row for each block of 8 numbers."""
    blocks = x.reshape(x.numel() // 8, 8)
    scales = blocks.abs().amax(1, keepdim=True).clamp(min=1e-30) / LARGEST[dtype]
    values = blocks / scales
    return (values.round() if dtype == torch.int8 else values).to(dtype), scales


def restored(values, scales):
    """One float32 tensor with all numbers, in one dimension."""
    return (values.float() * scales).flatten()


# %% [markdown]
# ## 1. Buckets (★★, 20 minutes, 3 points)
#
# Every rank has a list of gradients, in the order of the model's layers. The gradients are
# one-dimensional float32 tensors, and their lengths are the same on every rank. Return the list of their
# means over the ranks. Put the gradients into buckets, **last gradient first**, and close a bucket once
# it holds `cap_nbytes` bytes or more. Call one `all_reduce` per bucket, in the order in which you close
# the buckets. The given gradients must not change.


# %% role="answer" question="reduce_in_buckets" points=3
def reduce_in_buckets(rank, world_size, grads, cap_nbytes):
    """Return the list of the means over the ranks, grads[0]'s first.

    grads is a list of one-dimensional float32 tensors. Your function must not change them.
    """
    ### BEGIN SOLUTION
    buckets, nbytes = [[]], 0
    for number in reversed(range(len(grads))):
        if nbytes >= cap_nbytes:
            buckets.append([])
            nbytes = 0
        buckets[-1].append(number)
        nbytes += grads[number].nbytes
    means = [None] * len(grads)
    for bucket in buckets:
        flat = torch.cat([grads[number] for number in bucket])
        dist.all_reduce(flat)
        flat /= world_size
        parts = flat.split([len(grads[number]) for number in bucket])
        for number, part in zip(bucket, parts, strict=True):
            means[number] = part
    return means
    ### END SOLUTION


# %% role="check" question="reduce_in_buckets" points=3
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

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# First compute only the buckets. Keep them as a list of lists of gradient numbers. The first list begins
# with the number of the last gradient. Print the buckets before you send anything.
#
# </details>
# <details><summary>Hint 2</summary>
#
# When do you open a new bucket? Open one if the current bucket has reached the cap **and** there is
# another gradient. Never split a gradient over two buckets.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.cat` joins the gradients of a bucket to one flat tensor, and `flat.split([lengths])` cuts this
# tensor again. Prepare the result with `[None] * len(grads)`, and write each mean to the place of its
# gradient.
#
# </details>

# %% role="hidden" question="reduce_in_buckets"
seed = 1
lengths = [1 + (3 * i + seed) % 4 for i in range(5 + seed % 3)]
cap_nbytes = 4 * (2 + seed % 9)
carried = [0]
for length in reversed(lengths):
    if carried[-1] >= cap_nbytes:
        carried.append(0)
    carried[-1] += 4 * length
CARRIED = {cap_nbytes: carried}  # the rule about buckets looks at it
print(
    measure(
        reduce_in_buckets,
        lambda rank, world_size: (
            [
                torch.randint(
                    1000, (length,), generator=torch.Generator().manual_seed(seed + 10 * rank + i)
                ).float()
                for i, length in enumerate(lengths)
            ],
            cap_nbytes,
        ),
    )
)

# %% [markdown]
# ## 2. Hide it (★★★, 30 minutes, 4 points)
#
# `model` is a stack of layers without biases. Call backward on `(model(x)).sum()`, and return the list
# of the mean gradients, `gradients(model)`. Each layer is a bucket. Give the gradient of a layer to an
# `all_reduce` of its own **as soon as the gradient is ready**. Then the gradient travels while backward
# goes on. The modelled network has a tight time budget. It leaves hardly any time for communication that
# your program could hide.


# %% role="answer" question="hide_it" points=4
def hide_it(rank, world_size, widths, x):
    """Return the means over the ranks of the gradients of tower(widths)(x).sum()."""
    model = tower(widths)
    ### BEGIN SOLUTION
    requests = []

    def start(weight):
        weight.grad /= world_size
        requests.append(dist.all_reduce(weight.grad, async_op=True))

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(start)
    model(x).sum().backward()
    for request in requests:
        request.wait()
    return gradients(model)
    ### END SOLUTION


# %% role="check" question="hide_it" points=4
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

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `weight.register_post_accumulate_grad_hook(function)` calls `function(weight)` when `weight.grad` is
# ready. Which weight is ready first?
#
# </details>
# <details><summary>Hint 2</summary>
#
# In the hook, `dist.all_reduce(..., async_op=True)` returns a request at once. Keep this request in a
# list. If you wait for the request in the hook, backward has to wait, too.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Do three things: register the hook for every weight, call `backward()`, and wait for all requests.
# Divide in the hook, or after the waits, but not while the request is open.
#
# </details>

# %% role="hidden" question="hide_it"
seed = 1
print(
    measure(
        hide_it,
        lambda rank, world_size: (
            [2, 3 + seed % 97, 2],
            torch.randint(
                1, 10, (2, 2), generator=torch.Generator().manual_seed(seed + rank)
            ).float(),
        ),
    )
)

# %% [markdown]
# ## 3. One all_reduce for many micro-batches (★★, 20 minutes, 3 points)
#
# `ddp` is a model in torch's DDP. Every rank has a list of micro-batches, all of the same size. Return
# the gradients of the mean of `ddp(x)` over **all** examples of all micro-batches on all ranks. Let each
# rank add up its gradients, and let DDP communicate **once**, with the last micro-batch. The check then
# runs your function on a modelled device. This device has memory for the outputs of one micro-batch, but
# not for the outputs of all micro-batches at once.


# %% role="answer" question="accumulate" points=3
def accumulate(rank, world_size, micro_batches):
    """Return the list of gradients of the mean output over all examples of all ranks.

    micro_batches is a list of tensors of shape (examples, 3), as many on every rank.
    """
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    ### BEGIN SOLUTION
    for number, x in enumerate(micro_batches):
        is_last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            (ddp(x).mean() / len(micro_batches)).backward()
    ### END SOLUTION
    return gradients(ddp)


# %% role="check" question="accumulate" points=3
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

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Put forward and backward into a block `with ddp.no_sync():`. Then the gradients stay on the rank, and
# the next backward adds to them.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The mean over three micro-batches of equal size is the mean of their means. By which number must you
# divide each loss?
#
# </details>
# <details><summary>Hint 3</summary>
#
# `contextlib.nullcontext()` is a context that does nothing. It is useful if you need `no_sync` for some
# micro-batches only.
#
# </details>

# %% role="hidden" question="accumulate"
seed = 1
print(
    measure(
        accumulate,
        lambda rank, world_size: (
            [
                torch.randint(
                    100, (2, 3), generator=torch.Generator().manual_seed(seed + 10 * rank + i)
                ).float()
                for i in range(2 + seed % 7)
            ],
        ),
    )
)

# %% [markdown]
# ## 4. Uneven last batches (★★, 25 minutes, 3 points)
#
# In the last batch of an epoch, each rank has a different number of examples, and some ranks may have
# **none**. DDP averages the ranks' gradients. If each rank used its own mean, a rank with few examples
# would weigh as much as a rank with many. Return the gradients of the mean of `ddp(x)` over **all**
# examples of all ranks. Besides DDP's own messages you may use one `all_reduce` of one number, before or
# after backward. A rank without examples takes part like the other ranks. Do not use `join`, because it
# would send more.


# %% role="answer" question="weigh" points=3
def weigh(rank, world_size, x):
    """Return the list of gradients of the mean output over all examples of all ranks.

    x has shape (examples, 3); the number of examples differs from rank to rank and may be 0.
    """
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    ### BEGIN SOLUTION
    total = torch.tensor(float(len(x)))
    dist.all_reduce(total)
    (ddp(x).sum() * world_size / total).backward()
    ### END SOLUTION
    return gradients(ddp)


# %% role="check" question="weigh" points=3
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

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# DDP returns $\frac{1}{R} \sum_r g_r$. The result must equal $\frac{1}{N} \sum_i \nabla \ell_i$ over all
# $N$ examples. Which $g_r$ must rank $r$ bring?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Rank $r$ must bring $g_r = \frac{R}{N} \sum_{i \in B_r} \nabla \ell_i$. Each rank knows its own part of
# $N$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A rank without examples runs forward and backward like the other ranks. It has no outputs, so their sum
# is 0. The gradients that it brings are zeros. You need no `if`.
#
# </details>

# %% role="hidden" question="weigh"
seed = 1
print(
    measure(
        weigh,
        lambda rank, world_size: (
            # rank 0 has some: it may be alone
            torch.randint(
                1,
                100,
                ((3 * rank + 1 + seed % 4) % 5, 3),
                generator=torch.Generator().manual_seed(seed + rank),
            ).float(),
        ),
    )
)

# %% [markdown]
# ## 5. An all_reduce in 8 bits (★★★, 30 minutes, 4 points)
#
# Return the sum of `x` over all ranks, the same numbers on every rank. `x` is float32 and one-dimensional. Its length
# is a multiple of 8 x `world_size`. Numbers travel as int8, with a scale for each block of 8 numbers. `quantised` and
# `restored` at the top of this sheet make and undo this form. Each rank rounds all of its `x` once, so also the part that
# it adds up itself. Rank r adds up part r **in float32**, and rounds this sum once. Use only `all_to_all_single` and
# `all_gather`. A rank may send only the parts that others need. `x` must not change.


# %% role="answer" question="sum_in_8_bits" points=4
def sum_in_8_bits(rank, world_size, x):
    """Return the sum over the ranks, rounded to int8 with scales and restored to float32."""
    ### BEGIN SOLUTION
    values, scales = quantised(x, torch.int8)
    got, got_scales = torch.empty_like(values), torch.empty_like(scales)
    dist.all_to_all_single(got, values)
    dist.all_to_all_single(got_scales, scales)
    part = restored(got, got_scales).view(world_size, -1).sum(0)
    sent = quantised(part, torch.int8)
    found = [[torch.empty_like(one) for _ in range(world_size)] for one in sent]
    for parts, one in zip(found, sent, strict=True):
        dist.all_gather(parts, one)
    return torch.cat([restored(*pair) for pair in zip(*found, strict=True)])
    ### END SOLUTION


# %% role="check" question="sum_in_8_bits" points=4
def with_exact_scales(rank, blocks, seed):
    """Blocks of numbers whose scales are powers of 2, so that sums do not depend on the order."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    x = torch.rand(blocks, 8, generator=generator) * 254 - 127
    x[:, rank % 8] = 127
    x[0, :] = 0
    return (x * 2.0 ** torch.randint(-4, 5, (blocks, 1), generator=generator)).flatten()


def short_gradient(rank, world_size):
    return (with_exact_scales(rank, 2 * world_size, 5),)


def long_gradient(rank, world_size):
    return (with_exact_scales(rank, 3 * world_size, 6),)


def rounded(x):
    return restored(*quantised(x, torch.int8))


def summed_up(xs, first=rounded, last=rounded, add=sum):
    """The sum on every rank, with these roundings before and after."""
    return [last(add([first(x) for x in xs]))] * len(xs)


def own_part_exact(xs):
    found = [[rounded(part) for part in x.chunk(len(xs))] for x in xs]
    for rank, x in enumerate(xs):
        found[rank][rank] = x.chunk(len(xs))[rank]
    whole = sum(torch.cat(parts) for parts in found)
    return [rounded(whole)] * len(xs)


def bytes_added(xs):
    """Int8 values added as int8, with the scales of rank 0."""
    both = [quantised(x, torch.int8) for x in xs]
    values = torch.stack([values for values, _ in both]).sum(0).to(torch.int8)
    return [restored(values, both[0][1])] * len(xs)


def rounded_again_and_again(parts):
    total = parts[0]
    for part in parts[1:]:
        total = rounded(total + part)
    return total


def int8_bytes(run, given):
    """A sentence where a collective carries more than int8 and scales of what others need."""
    n, each = run.world_size, len(given[0][0]) * 12 // 8  # a byte a number, and half for scales
    for rank in range(n if n > 1 else 0):  # alone, nothing has to travel
        ops = run.trace.of_rank(rank)
        for kind, most in (("all_to_all", each), ("all_gather", each // n)):
            found = sum(op.nbytes for op in ops if op.kind == kind)
            if found > most:
                return (
                    f"The values are right, but rank {rank} brings {found} bytes into its "
                    f"{kind}s where {most} are enough."
                )
    return None


def int8_brought(run, given):
    return f"bytes brought by rank 0: {sum(op.nbytes for op in run.trace.of_rank(0))}"


verdict = check(
    "sum_in_8_bits",
    sum_in_8_bits,
    [short_gradient, long_gradient],
    summed_up,
    only("all_to_all", "all_gather"),
    Rule(int8_bytes, int8_brought),
    mistakes={
        "The sums were not rounded: quantise them again before all ranks gather them.": (
            lambda xs: summed_up(xs, last=lambda total: total)
        ),
        "Each x has to be rounded before it is added: these sums are of exact numbers.": (
            lambda xs: summed_up(xs, first=lambda x: x)
        ),
        "A rank's own part was added without rounding: round all of x.": own_part_exact,
        "Those are exact sums: nothing was rounded.": (
            lambda xs: summed_up(xs, first=lambda x: x, last=lambda total: total)
        ),
        "The int8 values were added as int8: they overflow, and each rank has its own scales. "
        "Restore them to float32 first.": bytes_added,
        "The partial sums were rounded, too: add all parts in float32, then round once.": (
            lambda xs: summed_up(xs, add=rounded_again_and_again)
        ),
        "That is the mean over the ranks: the sum is wanted.": (
            lambda xs: [total / len(xs) for total in summed_up(xs)]
        ),
        "That is the rank's own x, rounded: where are the others?": lambda xs: list(
            map(rounded, xs)
        ),
        "Each part is the last rank's. If your list for all_gather is one tensor R times, make a "
        "new tensor for each rank.": (
            lambda xs: [summed_up(xs)[0].chunk(len(xs))[-1].repeat(len(xs))] * len(xs)
        ),
    },
    points=4,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `dist.all_to_all_single(got, values)` cuts `values` into `world_size` equal parts, and sends part r to rank
# r. `got` then has the parts that came, one after the other. Call it for the values and for the scales.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `restored(got, got_scales).view(world_size, -1)` has one row for each rank that sent. Add up the rows.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Quantise your part of the sum. Then call `dist.all_gather` twice, for the values and for the scales. Restore
# the part of each rank, also your own, and join the parts with `torch.cat`.
#
# </details>

# %% role="hidden" question="sum_in_8_bits"
seed = 1


def drawn_gradient(rank, world_size):
    blocks = (2 + seed % 5) * world_size
    generator = torch.Generator().manual_seed(seed + rank)
    x = torch.rand(blocks, 8, generator=generator) * 254 - 127
    x[:, (seed + rank) % 8] = 127
    x[0, :] = 0
    return ((x * 2.0 ** torch.randint(-4, 5, (blocks, 1), generator=generator)).flatten(),)


print(measure(sum_in_8_bits, drawn_gradient))

# %% [markdown]
# ## 6. Rows to other ranks in 8 bits (★★, 25 minutes, 3 points)
#
# Each rank has float32 `rows` of shape (count, d). d is a multiple of 8. Each rank must send row i to rank `to[i]`. Counts
# differ from rank to rank, and may be 0. Return the rows that come to your rank: first the rows of rank 0, then the rows
# of rank 1, and so on. The rows of one rank stay in their order. The numbers travel as e4m3, with a float32 scale for
# each block of 8 numbers: `quantised(x, E4M3)`. Round all rows, also those that stay on your rank. Use at most three
# `all_to_all_single`, for counts, numbers and scales. Gloo refuses float8.


# %% role="answer" question="rows_in_8_bits" points=3
def rows_in_8_bits(rank, world_size, rows, to):
    """Return the float32 rows for this rank, of shape (count, d).

    rows is float32, and to is int64. Your function must not change them.
    """
    ### BEGIN SOLUTION
    count, d = rows.shape
    order = to.argsort(stable=True)
    sent = to.bincount(minlength=world_size)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    sent, received = sent.tolist(), received.tolist()
    values, scales = quantised(rows[order], E4M3)
    codes = values.view(torch.uint8).view(count, d)
    scales = scales.view(count, d // 8)
    got, got_scales = codes.new_empty(sum(received), d), scales.new_empty(sum(received), d // 8)
    dist.all_to_all_single(got, codes, received, sent)
    dist.all_to_all_single(got_scales, scales, received, sent)
    shape = -1, d // 8, 8
    return (got.view(E4M3).float().view(shape) * got_scales[:, :, None]).view(-1, d)
    ### END SOLUTION


# %% role="check" question="rows_in_8_bits" points=3
def some_rows(rank, world_size):
    count = [4, 2, 0, 5, 3][rank]
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randn(count, 16, generator=generator) * 10.0 ** torch.arange(-2, 2).repeat(4)
    return rows, (3 * torch.arange(count) ** 2 + rank + 1) % world_size


def come(allrows, tos, change=lambda rows: restored(*quantised(rows, E4M3)).view(rows.shape)):
    """The rows that come to each rank, in the order of ranks and rows."""
    rows, to = torch.cat([change(rows) for rows in allrows]), torch.cat(tos)
    return [rows[to == rank] for rank in range(len(tos))]


def with_one_scale(rows):
    scale = rows.abs().max() / 448 if len(rows) else 1.0
    return (rows / scale).to(E4M3).float() * scale


def scales_unsorted(allrows, tos):
    """Rows sorted by rank, with the scales of the rows as they were."""
    found = []
    for rows, to in zip(allrows, tos, strict=True):
        order = to.argsort(stable=True)
        values, _ = quantised(rows[order], E4M3)
        _, scales = quantised(rows, E4M3)
        found.append((restored(values, scales).view(rows.shape), to[order]))
    rows, to = map(torch.cat, zip(*found, strict=True))
    return [rows[to == rank] for rank in range(len(tos))]


def cut_as_they_are(allrows, tos):
    return come(allrows, [to.sort().values for to in tos])


def row_bytes(run, given):
    """A sentence where a rank brings more than counts, a byte a number, and its scales."""
    for rank, rows in enumerate(given[0]):
        most = 8 * run.world_size + rows.numel() * 12 // 8
        found = sum(op.nbytes for op in run.trace.of_rank(rank))
        if found > most:
            return (
                f"The values are right, but rank {rank} brings {found} bytes into its collectives "
                f"where {most} are enough: a byte for each number, 4 for each scale, 8 for each "
                "count."
            )
    return None


def row_bytes_brought(run, given):
    return f"bytes brought by rank 0: {sum(op.nbytes for op in run.trace.of_rank(0))}"


verdict = check(
    "rows_in_8_bits",
    rows_in_8_bits,
    some_rows,
    come,
    only("all_to_all"),
    collectives(lambda *_: 3, hint="One for the counts, one for the numbers, one for the scales."),
    Rule(row_bytes, row_bytes_brought),
    mistakes={
        "Those are the exact rows: the numbers have to travel in e4m3.": (
            lambda rows, tos: come(rows, tos, lambda x: x)
        ),
        "One scale for all rows of a rank is too coarse: each block of 8 numbers has its own.": (
            lambda rows, tos: come(rows, tos, with_one_scale)
        ),
        "Those are the rows in int8: e4m3 is wanted.": (
            lambda rows, tos: come(
                rows, tos, lambda x: restored(*quantised(x, torch.int8)).view(x.shape)
            )
        ),
        "The rows are sorted by rank, but their scales are not: quantise `rows[order]`.": (
            scales_unsorted
        ),
        "The rows were cut by the counts, but not sorted before.": cut_as_they_are,
        "The scales never came: those are the numbers in e4m3, without them.": (
            lambda rows, tos: come(rows, tos, lambda x: quantised(x, E4M3)[0].float().view(x.shape))
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `order = to.argsort(stable=True)` sorts the rows by rank, and `to.bincount(minlength=world_size)` counts them. A
# rank cannot know how many rows will come. So exchange the counts first.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes)` takes two lists of counts: of the
# rows that come from each rank, and of the rows that go to each rank. Give numbers and scales one line for each row:
# `values.view(count, d)` and `scales.view(count, d // 8)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `values.view(torch.uint8)` are the same bytes, which Gloo carries. `got.view(E4M3)` makes them numbers again. Restore
# them with `scales` of shape (-1, 1) and `values` of shape (-1, 8).
#
# </details>

# %% role="hidden" question="rows_in_8_bits"
seed = 1


def drawn_rows(rank, world_size):
    count = (1 + 3 * rank + seed % 4) % 6 if rank else 3 + seed % 3  # rank 0 may be alone
    generator = torch.Generator().manual_seed(seed + rank)
    rows = torch.randn(count, 16, generator=generator) * 10.0 ** torch.arange(-2, 2).repeat(4)
    return rows, torch.randint(world_size, (count,), generator=generator)


print(measure(rows_in_8_bits, drawn_rows))
