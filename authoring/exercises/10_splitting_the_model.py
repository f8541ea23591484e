# %% [markdown]
# # Exercises 10: splitting the model
#
# This sheet has four tasks for [lesson 10](../notebooks/10_splitting_the_model.ipynb). In the first two
# tasks you count memory and place layers. In the other two tasks you send a backward pass across ranks,
# and you keep its memory small.
#
# Besides values, messages and bytes, some checks look at **memory**. Such a check runs your answer on
# real ranks first. If the answer is right, the check then simulates it on a modelled cluster. No rank
# may hold more than a given number of bytes at its peak. An input counts only from the moment when the
# rank computes with it or sends it. Each task has folded hints.

# %% role="setup"
import itertools

import torch
import torch.distributed as dist
from torch import nn

import simlib
from simlib.checks import Fits, OneOf, Rule, check, collectives, measure, messages, nbytes, only


def in_one_process(ws, x, reduction=torch.mean):
    """Tasks 3 and 4: the gradients of all stages, worked out in one process to compare with."""
    weights, h = [w.clone().requires_grad_() for w in ws], x
    for weight in weights:
        h = torch.tanh(h @ weight)
    return torch.autograd.grad(reduction(h**2), weights)


def over_boundaries(ws, batch):
    """Tasks 3 and 4: bytes of the activations at every boundary, and of their gradients."""
    return sum(2 * 4 * batch * w.shape[0] for w in ws[1:])


def left_none(run, given):
    """Tasks 3 and 4: a sentence where ranks return None, which a .grad may be."""
    none = [rank for rank, got in enumerate(run.results) if got is None]
    if len(none) == run.world_size:
        return (
            "Every rank returns None. If there is a `return`, then of a .grad that nothing was put "
            "into: backward fills that of the tensor you computed with, if this is one that you "
            "have told requires_grad_(), not the w it was cloned from, nor a clone of such a one."
        )
    if none:
        return (
            f"Rank {none[0]} returns None, not so rank {run.world_size - 1}: was backward called on "
            "every rank, with the gradient that came back over its boundary?"
        )
    return None


# %% [markdown]
# ## 1. The ledger of a stage (★, 10 minutes, 2 points)
#
# Each rank holds one stage. The stage has an `nn.Linear` with bias and an `nn.ReLU` for each
# neighbouring pair in `widths`. Everything is float32. Return the ledger of the stage as a dict of
# bytes. `"parameters"`, `"gradients"` and `"optimizer state"` are the bytes after one step of `"sgd"`,
# `"momentum"` or `"adam"`. `"activations"` are the bytes that the stage holds after its forward pass on
# `batch` examples: it then holds its input and the result of each ReLU. Send nothing.


# %% role="answer" question="stage_ledger" points=2
def stage_ledger(rank, world_size, widths, batch, optimizer):
    """Return the bytes that this rank's stage holds, as {category: bytes}.

    widths is a list of at least two ints; optimizer is "sgd", "momentum" or "adam".
    """
    ### BEGIN SOLUTION
    tensors = [size for a, b in itertools.pairwise(widths) for size in (a * b, b)]
    numbers = sum(tensors)
    state = {"sgd": 0, "momentum": 4 * numbers, "adam": 8 * numbers + 4 * len(tensors)}
    return {
        "parameters": 4 * numbers,
        "gradients": 4 * numbers,
        "optimizer state": state[optimizer],
        "activations": 4 * batch * sum(widths),
    }
    ### END SOLUTION


# %% role="check" question="stage_ledger" points=2
def stages(rank, world_size):
    widths = [[8, 6, 4], [4, 16], [16, 5, 5, 3], [3, 9], [9, 7, 2]][rank]
    return widths, 3 + rank, ["adam", "sgd", "momentum", "sgd", "adam"][rank]


def the_neighbours(rank, world_size):
    """The same stages, each one rank further: no table by rank is right with both."""
    return stages((rank - 1) % world_size, world_size)


def train_once(rank, world_size, all_widths, batches, optimizers):
    widths, batch = all_widths[rank], batches[rank]
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": torch.optim.Adam,
    }[optimizers[rank]]
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    net, x = nn.Sequential(*layers), torch.rand(batch, widths[0])
    y = net(x)
    forward = simlib.held()
    y.sum().backward()
    optimizer = make(net.parameters())
    optimizer.step()
    held = simlib.held()
    kept = {name: held[name] for name in ("parameters", "gradients", "optimizer state")}
    return kept | {"activations": forward["activations and temporaries"]}


def measured(*given):
    cluster = simlib.clusters.ethernet_10g(5, device=simlib.Device())
    return simlib.simulate(train_once, len(given[0]), args=given, cluster=cluster).results


def with_change(change):
    """The measured ledgers, each changed by change(ledger, widths, batch, optimizer)."""
    return lambda *given: [
        ledger | change(ledger, *mine)
        for ledger, mine in zip(measured(*given), zip(*given, strict=True), strict=True)
    ]


def without_biases(ledger, widths, batch, optimizer):
    numbers = sum(a * b for a, b in itertools.pairwise(widths))
    state = {"sgd": 0, "momentum": 4 * numbers, "adam": 8 * numbers + 4 * (len(widths) - 1)}
    short = {"parameters": 4 * numbers, "gradients": 4 * numbers}
    return short | {"optimizer state": state[optimizer]}


def half_of_adam(ledger, widths, batch, optimizer):
    return {"optimizer state": ledger["gradients"]} if optimizer == "adam" else {}


def no_momentum(ledger, widths, batch, optimizer):
    return {"optimizer state": 0} if optimizer == "momentum" else {}


def uncounted_steps(ledger, widths, batch, optimizer):
    return {"optimizer state": 2 * ledger["gradients"]} if optimizer == "adam" else {}


def one_count(ledger, widths, batch, optimizer):
    """A count of Adam's steps for each layer."""
    state = 2 * ledger["gradients"] + 4 * (len(widths) - 1)
    return {"optimizer state": state} if optimizer == "adam" else {}


def count_for_each_width(ledger, widths, batch, optimizer):
    state = 2 * ledger["gradients"] + 4 * len(widths)
    return {"optimizer state": state} if optimizer == "adam" else {}


def with_linear_outputs(ledger, widths, batch, optimizer):
    return {"activations": ledger["activations"] + 4 * batch * sum(widths[1:])}


def without_input(ledger, widths, batch, optimizer):
    return {"activations": ledger["activations"] - 4 * batch * widths[0]}


def of_one_example(ledger, widths, batch, optimizer):
    return {"activations": ledger["activations"] // batch}


def numbers_only(ledger, widths, batch, optimizer):
    return {name: nbytes // 4 for name, nbytes in ledger.items()}


verdict = check(
    "stage_ledger",
    stage_ledger,
    [stages, the_neighbours],
    measured,
    collectives(lambda *given: 0),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "That is how many numbers there are: a float32 has 4 bytes.": with_change(numbers_only),
        "A Linear has a bias, too: one number per output.": with_change(without_biases),
        "Momentum keeps one number per parameter: the step before.": with_change(no_momentum),
        "Adam keeps two numbers per parameter, not one.": with_change(half_of_adam),
        "Adam also counts its steps: 4 bytes per tensor.": with_change(uncounted_steps),
        "A Linear has two tensors, weight and bias: Adam counts the steps of each.": (
            with_change(one_count)
        ),
        "Adam has a count for each tensor, not for each width: how many tensors has a Linear?": (
            with_change(count_for_each_width)
        ),
        "The output of a Linear is released: a ReLU's backward needs only the ReLU's result.": (
            with_change(with_linear_outputs)
        ),
        "The input of the first layer is kept, too: the gradient of its weights needs it.": (
            with_change(without_input)
        ),
        "Those are the activations of one example: each of the batch has its own.": (
            with_change(of_one_example)
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# A Linear from `a` to `b` has two tensors. The weight has a x b numbers, and the bias has b numbers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For each parameter, Adam keeps a mean of the gradients and a mean of their squares. For each tensor,
# Adam also counts the steps in one float32.
#
# </details>
# <details><summary>Hint 3</summary>
#
# The input has `batch * widths[0]` numbers. The results of the ReLUs have `batch * widths[1]`,
# `batch * widths[2]`, ... numbers.
#
# </details>

# %% role="hidden" question="stage_ledger"
seed = 1
print(
    measure(
        stage_ledger,
        lambda rank, world_size: (
            [2 + (seed + 3 * rank + k) % 7 for k in range(2 + (rank + seed) % 3)],
            1 + (seed + rank) % 5,
            ["sgd", "momentum", "adam"][(seed + rank) % 3],
        ),
    )
)

# %% [markdown]
# ## 2. Where to cut (★★, 20 minutes, 3 points)
#
# `sizes[k]` is the number of parameters of layer k. Give each rank neighbouring layers, and give rank 0
# the first ones. Make the largest stage as small as possible. If several cuts are equally good, take the
# one that gives rank 0 the most layers. If several are left, take the one that gives rank 1 the most
# layers, and so on. The last ranks may have no layers. Return this rank's layers as a list that has a
# `torch.zeros(size)` for each layer. Never hold the layers of another rank. Send nothing.


# %% role="answer" question="my_layers" points=3
def my_layers(rank, world_size, sizes):
    """Return the layers of this rank's stage: a list of float32 tensors of zeros.

    sizes is a list of ints, the same on every rank.
    """

    ### BEGIN SOLUTION
    def stages_within(limit):
        """Stages of at most so many parameters, each as full as it can be."""
        stages, room = [[]], limit
        for size in sizes:
            if size > room:
                stages.append([])
                room = limit
            stages[-1].append(size)
            room -= size
        return stages

    limit = max(sizes)
    while len(stages_within(limit)) > world_size:
        limit += 1
    stages = stages_within(limit) + [[]] * world_size
    return [torch.zeros(size) for size in stages[rank]]
    ### END SOLUTION


# %% role="check" question="my_layers" points=3
def chain(*sizes):
    return lambda rank, world_size: (list(sizes),)


def every_cut(sizes, world_size):
    """All ways to cut the chain into so many stages, those that fill the first ranks first."""
    ends = range(len(sizes), -1, -1)
    for cuts in itertools.combinations_with_replacement(ends, world_size - 1):
        borders = [0, *sorted(cuts), len(sizes)]
        yield [sizes[a:b] for a, b in itertools.pairwise(borders)]


def largest(stages):
    return max(map(sum, stages))


def best_cut(sizes, world_size):
    least = min(map(largest, every_cut(sizes, world_size)))
    good = [stages for stages in every_cut(sizes, world_size) if largest(stages) == least]
    return max(good, key=lambda stages: list(map(len, stages)))


def chain_for_each_world(rank, world_size):
    """Among them: one that leaves the last rank nothing, and one shorter than the world."""
    return {
        1: ([4, 2, 3],),
        2: ([2, 6, 1, 1, 2, 5, 3, 4],),
        3: ([6, 1, 1, 1],),
        4: ([6, 1, 1, 2, 5, 3, 4, 2],),
        5: ([3, 1],),
    }[world_size]


def made(stages):
    return [[torch.zeros(size) for size in stage] for stage in stages]


def cuts_where(judge):
    """The layers that each rank makes in any cut for which judge(largest, least) holds."""

    def candidates(given):
        sizes, n = given[0], len(given)
        least = largest(best_cut(sizes, n))
        return OneOf([made(cut) for cut in every_cut(sizes, n) if judge(largest(cut), least)])

    return candidates


def layers_of(cut):
    """The layers that each rank makes, if `cut` says where to cut."""
    return lambda given: made(cut(given))


def equal_numbers(given):
    sizes, n = given[0], len(given)
    borders = [len(sizes) * rank // n for rank in range(n + 1)]
    return [sizes[a:b] for a, b in itertools.pairwise(borders)]


def last_ranks_first(given):
    turned = best_cut(given[0][::-1], len(given))
    return [stage[::-1] for stage in turned[::-1]]


def up_to_the_mean(given):
    sizes, n = given[0], len(given)
    stages, mean = [[] for _ in range(n)], sum(sizes) / n
    rank = 0
    for size in sizes:
        if stages[rank] and rank < n - 1 and sum(stages[rank]) + size > mean:
            rank += 1
        stages[rank].append(size)
    return stages


verdict = check(
    "my_layers",
    my_layers,
    chain_for_each_world,
    layers_of(lambda given: best_cut(given[0], len(given))),
    collectives(lambda given: 0),
    messages(lambda given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "No stage is too large; but you fill the last ranks first. Fill the first ones.": (
            layers_of(last_ranks_first)
        ),
        "No stage is too large; but of such cuts, rank 0 has to take as many layers as it can, then "
        "rank 1, even if the last ranks are left with none.": cuts_where(
            lambda largest, least: largest == least
        ),
        "Those are as many layers for each rank; but layers differ in size.": (
            layers_of(equal_numbers)
        ),
        "No stage is above the mean but the last, which takes what is left, and is too large.": (
            layers_of(up_to_the_mean)
        ),
        "Order and layers are right, but the largest stage is larger than it need be.": cuts_where(
            lambda largest, least: largest > least
        ),
        "Every rank has all layers: that is data parallelism.": (
            lambda given: [[torch.zeros(size) for size in given[0]]] * len(given)
        ),
    },
    memory=[
        Fits(
            simlib.clusters.ethernet_10g(3),
            chain(7840, 5120, 5120, 2560, 5120, 5120, 100),
            lambda given: 4 * largest(best_cut(given[0], len(given))),
            "Make the layers of your own stage only: find out first which they are.",
        )
    ],
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Ask the question the other way round: if no stage may be larger than some limit, how many stages do you
# need? Fill each stage as far as the limit allows.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The limit is at least the size of the largest layer. Raise the limit until `world_size` stages are
# enough. The cut for this limit also fills the first ranks first.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Work out the cut with the numbers in `sizes`. Make tensors only in the last line.
#
# </details>

# %% role="hidden" question="my_layers"
seed = 1

print(
    measure(
        my_layers,
        lambda rank, n: ([1 + (seed + 5 * k * k) % 9 for k in range([7, 8, 2, 7, 9][n - 1])],),
    )
)

# %% [markdown]
# ## 3. Backward across ranks (★★, 25 minutes, 3 points)
#
# Rank r holds the weight matrix `w` of stage r. The stage computes `torch.tanh(h @ w)` from its input
# `h`. Rank 0 gets the input `x` of `batch` examples, and the other ranks get None. The loss is the mean
# of the squares of the last rank's output. Every rank returns the gradient of the loss with respect to
# its own `w`. Send one message forward and one message backward over each boundary. Leave the numbers in
# `w` as they are.


# %% role="answer" question="stage_gradient" points=3
def stage_gradient(rank, world_size, w, x, batch):
    """Return the gradient of the loss with respect to w, a tensor of w's shape.

    w has shape (numbers per example before the stage, after it); float32.
    """
    ### BEGIN SOLUTION
    h = x
    if rank > 0:
        h = torch.empty(batch, w.shape[0])
        dist.recv(h, src=rank - 1)
        h.requires_grad_()
    weight = w.clone().requires_grad_()
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
    else:
        (y**2).mean().backward()
    if rank > 0:
        dist.send(h.grad, dst=rank - 1)
    return weight.grad
    ### END SOLUTION


# %% role="check" question="stage_gradient" points=3
def weights_and_examples(rank, world_size, first_seed=0):
    widths = [3, 4, 2, 5, 3, 2]
    torch.manual_seed(first_seed + rank)
    w = torch.randn(widths[rank], widths[rank + 1])
    return w, torch.randn(6, widths[0]) if rank == 0 else None, 6


def other_weights(rank, world_size):
    return weights_and_examples(rank, world_size, first_seed=10)


def each_alone(ws, x):
    """The gradients where each stage takes its own output for the last one."""
    found, h = [], x
    for w in ws:
        found += in_one_process([w], h)
        h = torch.tanh(h @ w)
    return found


verdict = check(
    "stage_gradient",
    stage_gradient,
    [weights_and_examples, other_weights],
    lambda ws, xs, batches: list(in_one_process(ws, xs[0])),
    only("send", "recv"),
    Rule(left_none, before_values=True),
    messages(lambda ws, *_: 2 * (len(ws) - 1), hint="One forward and one backward each."),
    nbytes(
        lambda ws, xs, batches: over_boundaries(ws, batches[0]),
        hint="Only activations and their gradients need to cross.",
    ),
    mistakes={
        "Only the last rank has a gradient: the others got none back over their boundary.": (
            lambda ws, xs, _: [
                gradient if rank == len(ws) - 1 else torch.zeros_like(gradient)
                for rank, gradient in enumerate(in_one_process(ws, xs[0]))
            ]
        ),
        "Each rank has the gradient of its own output's squares: the loss is the last rank's.": (
            lambda ws, xs, _: each_alone(ws, xs[0])
        ),
        "That is the gradient of the sum of the squares, not of their mean.": (
            lambda ws, xs, _: list(in_one_process(ws, xs[0], torch.sum))
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# You can use the pair of functions of the lesson. You can also do without them: `y.backward(gradient)`
# starts a backward pass at any tensor. As `gradient`, pass the gradient of the loss with respect to `y`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Receive `h` into a `torch.empty(batch, w.shape[0])`, then call `h.requires_grad_()`. After `backward`,
# send `h.grad` to the left neighbour, which waits for it.
#
# </details>
# <details><summary>Hint 3</summary>
#
# A rank in the middle receives h, computes y, and sends `y.detach()` to the right. Then it receives the
# gradient of y from the right, calls `y.backward(gradient)`, and sends `h.grad` to the left.
#
# </details>

# %% role="hidden" question="stage_gradient"
seed = 1


def drawn(rank, world_size):
    generator = torch.Generator().manual_seed(seed + rank)
    w = torch.randn(2 + (seed + rank) % 4, 2 + (seed + rank + 1) % 4, generator=generator)
    return w, torch.randn(5, len(w), generator=generator) if rank == 0 else None, 5


print(measure(stage_gradient, drawn))

# %% [markdown]
# ## 4. In small pieces (★★★, 25 minutes, 3 points)
#
# The stages and the loss are the same as in task 3: the loss is the mean of the squares over **all**
# examples. But now the input comes in pieces. On rank 0, `xs` is a list of `pieces` tensors, and each
# tensor has `batch` examples. On the other ranks, `xs` is None. Return the gradient with respect to `w`.
# For each piece, send one message forward and one message backward over each boundary. A rank may never
# hold the activations of more than one piece: the check looks at the memory of every rank. Leave `w` and
# `xs` as they are.


# %% role="answer" question="gradient_in_pieces" points=3
def gradient_in_pieces(rank, world_size, w, xs, batch, pieces):
    """Return the gradient of the loss over all pieces with respect to w, a tensor of w's shape.

    w has shape (numbers per example before the stage, after it); float32.
    """
    ### BEGIN SOLUTION
    weight = w.clone().requires_grad_()
    for piece in range(pieces):
        if rank == 0:
            h = xs[piece]
        else:
            h = torch.empty(batch, w.shape[0])
            dist.recv(h, src=rank - 1)
            h.requires_grad_()
        y = torch.tanh(h @ weight)
        if rank < world_size - 1:
            dist.send(y.detach(), dst=rank + 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, src=rank + 1)
            y.backward(gradient)
        else:
            ((y**2).mean() / pieces).backward()
        if rank > 0:
            dist.send(h.grad, dst=rank - 1)
    return weight.grad
    ### END SOLUTION


# %% role="check" question="gradient_in_pieces" points=3
def cut_up(batch, pieces, widths):
    def inputs(rank, world_size):
        torch.manual_seed(rank)
        w = torch.randn(widths[rank], widths[rank + 1])
        xs = [torch.randn(batch, widths[0]) for _ in range(pieces)] if rank == 0 else None
        return w, xs, batch, pieces

    return inputs


def of_pieces(ws, xs):
    """By piece: the gradients of all stages."""
    return [in_one_process(ws, x) for x in xs[0]]


def summed(ws, xs, divisor):
    return [sum(by_piece) / divisor for by_piece in zip(*of_pieces(ws, xs), strict=True)]


def told_apart(run, given):
    """A sentence where the ranks send fewer messages than there are pieces to cross boundaries."""
    ws, _, _, pieces = given
    least = 2 * (len(ws) - 1) * pieces[0]
    if sum(run.messages) < least:
        return (
            f"The values are right, but {sum(run.messages)} messages carry {pieces[0]} pieces: let "
            "each piece cross each boundary by itself, once forward and once backward."
        )
    return None


def half_of_the_products(ws, xs, batches, pieces):
    """Floating-point operations, by rank: half of a forward pass and of the weights' gradients."""
    return [2 * pieces[0] * batches[0] * w.numel() for w in ws]


def one_piece(ws, xs, batches, pieces):
    """Bytes of nine tensors as large as the widest activations of a piece, and of six weights."""
    widest = max(max(w.shape) for w in ws)
    return 4 * (9 * batches[0] * widest + 6 * widest * widest)


verdict = check(
    "gradient_in_pieces",
    gradient_in_pieces,
    cut_up(batch=4, pieces=3, widths=[3, 4, 2, 5, 3, 2]),
    lambda ws, xs, _, pieces: summed(ws, xs, pieces[0]),
    only("send", "recv"),
    Rule(left_none, before_values=True),
    Rule(told_apart),
    messages(
        lambda ws, xs, _, pieces: 2 * (len(ws) - 1) * pieces[0],
        hint="One forward and one backward for each piece.",
    ),
    nbytes(
        lambda ws, xs, batches, pieces: over_boundaries(ws, batches[0]) * pieces[0],
        hint="Only activations of this piece and their gradients need to cross.",
    ),
    mistakes={
        "The gradients that come back are divided already: divide the loss alone.": (
            lambda ws, xs, _, pieces: [
                g / pieces[0] if rank < len(ws) - 1 else g
                for rank, g in enumerate(summed(ws, xs, pieces[0]))
            ]
        ),
        "The gradients of the pieces are added up: divide, for the loss is a mean over all.": (
            lambda ws, xs, *_: summed(ws, xs, 1)
        ),
        "That is the gradient of the last piece alone: are the others thrown away?": (
            lambda ws, xs, *_: list(of_pieces(ws, xs)[-1])
        ),
        "That is the last piece's part alone: are the others thrown away?": (
            lambda ws, xs, _, pieces: [g / pieces[0] for g in of_pieces(ws, xs)[-1]]
        ),
    },
    memory=[
        Fits(
            simlib.clusters.ethernet_10g(3, device=simlib.Device(1e9)),
            cut_up(batch=64, pieces=12, widths=[1, 32, 32, 32]),
            one_piece,
            "Take a piece backward before the next one comes, then its activations are released.",
            at_least_flops=half_of_the_products,
        )
    ],
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Put your answer to task 3 in a loop over the pieces. Which plan of the lesson do you get, FFBB or FBFB?
# Both plans give the right values, but only one keeps the memory small.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Make one `weight` that needs a gradient, and use it for all pieces: `backward` adds to `weight.grad`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# All pieces are equally large, so the mean over all examples is the mean of the pieces' means. On the
# last rank, divide the loss of each piece by `pieces`. The other ranks do not divide, because the
# gradients that they receive are divided already.
#
# </details>

# %% role="hidden" question="gradient_in_pieces"
seed = 1


def drawn_in_pieces(rank, world_size):
    generator = torch.Generator().manual_seed(seed + rank)
    w = torch.randn(2 + (seed + rank) % 4, 2 + (seed + rank + 1) % 4, generator=generator)
    xs = [torch.randn(3, len(w), generator=generator) for _ in range(4)] if rank == 0 else None
    return w, xs, 3, 4


print(measure(gradient_in_pieces, drawn_in_pieces))
