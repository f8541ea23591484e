# %% [markdown]
# # Exercises 15: frameworks
#
# This sheet has six tasks for [lesson 15](../notebooks/15_frameworks.ipynb). You convert a loop,
# compute a metric from all ranks, fix a callback, and find the messages that a framework adds. Tasks 5 and
# 6 belong to part e: you sum tensors in buckets, and compute how long a rank waits.
#
# The tasks need no extra package. `fit`, below, is a trainer of twenty lines. It calls a module's
# methods in the same way as Lightning's Trainer. So the check gives the same result on every machine,
# and Lightning would take the class that you write. Each task has folded hints.

# %% role="setup"
from collections import Counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from simlib.checks import (
    OneOf,
    brought,
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    only,
)

RATE, BATCH = 0.5, 60


# %% role="setup"
def fit(module, data, batch):
    """A tiny Trainer: one epoch on all ranks, with so many examples on each rank in a step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = module.configure_optimizers()
    for number, rows in enumerate(torch.arange(len(data[0])).split(batch * world_size)):
        mine = rows[rank::world_size]
        optimizer.zero_grad()
        loss = module.training_step([part[mine] for part in data], number)
        loss.backward()
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()


# %% [markdown]
# The next two cells have the parts for tasks 1 and 3. For task 1 there are the methods that `fit`
# expects of a module, and the loop that you convert. For task 3 there are a callback and the trainer
# that calls it. This trainer only goes through the steps.


# %% role="setup"
class Module(nn.Module):
    """What `fit` asks of a module; so does Lightning's Trainer of a LightningModule."""

    def training_step(self, batch, number):
        """Return the loss of a rank's batch, (x, y)."""

    def configure_optimizers(self):
        """Return the optimizer."""


def by_hand(x, y, w):
    """The loop to convert; one process."""
    w = w.clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=RATE, momentum=0.9)
    for rows in torch.arange(len(x)).split(BATCH):
        optimizer.zero_grad()
        loss = F.cross_entropy(x[rows] @ w, y[rows], reduction="sum") / BATCH
        loss.backward()
        optimizer.step()
    return w.detach()


# %% role="setup"
class Callback:
    """What `train` calls."""

    def on_train_batch_end(self, step, loss):
        pass

    def on_train_end(self):
        pass


def train(losses, callbacks):
    for step, loss in enumerate(losses):
        for callback in callbacks:
            callback.on_train_batch_end(step, loss)
    for callback in callbacks:
        callback.on_train_end()


FIT, BACKWARD = "trainer.fit(module, loader)", "loss.backward()"
WRAP, FORWARD = "net = DistributedDataParallel(Net())", "loss = F.nll_loss(net(x), y)"
LOG, PREPARE = 'self.log("loss", loss, sync_dist=True)', "own.prepare(net, optimizer, loader)"
AT_START = [("all_gather", 8), ("broadcast", 144), ("broadcast", 544_296)]
IN_STEP_2 = [("broadcast", 28), ("broadcast", 4)]
GRADIENTS = ("all_reduce", 544_296)
BARRIER, FLAG, STOP = ("barrier", 0), ("broadcast", 8), ("all_reduce", 8)


def at(line, *ops):
    return [(*op, line) for op in ops]


def of_lightning(steps):
    own = at(FIT, FLAG, *[BARRIER] * 7, *AT_START, STOP, STOP, *IN_STEP_2)
    logs = at(LOG, BARRIER, ("all_reduce", 4))
    return own + [op for _ in range(steps) for op in at(FIT, FLAG) + logs + at(FIT, GRADIENTS)]


TRACES = {
    "by hand": at("dist.all_reduce(flat)", *[GRADIENTS] * 8),
    "DDP": at(WRAP, *AT_START) + at(FORWARD, *IN_STEP_2) + at(BACKWARD, *[GRADIENTS] * 8),
    "Lightning": of_lightning(8),
    "Lightning, 16 steps": of_lightning(16),
    "accelerate": at(PREPARE, *AT_START)
    + at("for x, y in loader:", ("broadcast", 5064))
    + at(FORWARD, *IN_STEP_2)
    + at("own.backward(loss)", *[GRADIENTS] * 8),
}


# %% [markdown]
# ## 1. Convert a loop (★★, 20 minutes, 3 points)
#
# `by_hand`, above, trains the weights w of a linear classifier in one process. Write this loop as a
# `Module` and give this module to `fit`. At the end, every rank must have the weights that one process
# would have if it started from rank 0's `w`. In each step all ranks together take BATCH = 60 examples.
# Send nothing yourself: `fit` sends all that the ranks need. Leave w as it is.


# %% role="answer" question="converted" points=3
def converted(rank, world_size, x, y, w):
    """Return the trained weights, a tensor of w's shape.

    x (float64) and y hold all examples, on every rank; BATCH is a multiple of world_size.
    """
    ### BEGIN SOLUTION

    class Classifier(Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(w.clone())

        def training_step(self, batch, number):
            return F.cross_entropy(batch[0] @ self.w, batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.9)

    module = Classifier()
    fit(module, (x, y), BATCH // world_size)
    return module.w.detach()
    ### END SOLUTION


# %% role="check" question="converted" points=3
def examples(seed, steps, features=6):
    """Inputs: the same examples on all ranks, weights of each rank's own."""

    def inputs(rank, world_size):
        random = torch.Generator().manual_seed(seed)
        x = torch.randn(steps * BATCH, features, generator=random, dtype=torch.float64)
        y = torch.randint(4, (steps * BATCH,), generator=random)
        random.manual_seed(100 * seed + rank)
        return x, y, torch.randn(features, 4, generator=random, dtype=torch.float64)

    return inputs


def as_if(times=1.0, rate=RATE, momentum=0.9, batch=BATCH, again=False):
    """The weights of a mistake: gradients so many times (a function of R), another batch (too)."""

    def found(xs, ys, ws):
        x, y, R = xs[0], ys[0], len(xs)
        of_R = [value(R) if callable(value) else value for value in (times, rate, batch)]
        w = ws[0].clone().requires_grad_()
        optimizer = torch.optim.SGD([w], lr=of_R[1], momentum=momentum)
        for rows in torch.arange(len(x)).split(of_R[2]):
            parts = [rows[rank::R] for rank in range(R)]
            if again:
                parts = [part[rank::R] for rank, part in enumerate(parts)]
            optimizer.zero_grad()
            losses = [F.cross_entropy(x[part] @ w, y[part]) for part in parts if len(part)]
            (of_R[0] * sum(losses) / R).backward()
            optimizer.step()
        return [w.detach()] * R

    return found


def dealt_before(xs, ys, ws, share=1):
    """Each rank gives `fit` its own part of the examples, and fit deals that out."""
    x, y, R = xs[0], ys[0], len(xs)
    w = ws[0].clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=RATE, momentum=0.9)
    for rows in torch.arange(len(x[::R])).split(BATCH * share):
        optimizer.zero_grad()
        parts = [(x[r::R][rows[r::R]], y[r::R][rows[r::R]]) for r in range(R)]
        (sum(F.cross_entropy(x @ w, y) for x, y in parts if len(y)) / R).backward()
        optimizer.step()
    return [w.detach()] * R


def unknown_weights(xs, ys, ws):
    """Each rank trains its own w on its share of the batches: `fit` knows no parameter."""
    found = []
    for r, (x, y, w) in enumerate(zip(xs, ys, ws, strict=True)):
        w = w.clone().requires_grad_()
        optimizer = torch.optim.SGD([w], lr=RATE, momentum=0.9)
        for rows in torch.arange(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(x[rows[r :: len(xs)]] @ w, y[rows[r :: len(xs)]]).backward()
            optimizer.step()
        found.append(w.detach())
    return found


verdict = check(
    "converted",
    converted,
    examples(seed=1, steps=3),
    lambda xs, ys, ws: [by_hand(xs[0], ys[0], ws[0])] * len(xs),
    brought(
        lambda xs, ys, ws: [ws[0].nbytes] * (1 + len(xs[0]) // BATCH) if len(xs) > 1 else None,
        hint="`fit` broadcasts the weights and all_reduces their gradient in each step: that is all.",
    ),
    messages(lambda *given: 0),
    mistakes={
        "Gradients are world_size times too small: `fit` takes the mean of the ranks' gradients, "
        "so training_step returns the mean over its own examples: it sends nothing, and divides "
        "by nothing more.": as_if(times=lambda R: 1 / R),
        "The learning rate or the loss has grown with the ranks: `fit` takes the mean of gradients, "
        "and the effective batch is the same.": as_if(rate=lambda R: RATE * R),
        "The losses of the examples are added up: their mean is wanted.": (
            as_if(times=lambda R: BATCH / R)
        ),
        "Each rank takes its part before `fit`, which deals the examples once more: give it all.": (
            dealt_before
        ),
        "Each rank takes its part itself, and then BATCH of that in a step: give `fit` all examples, and "
        "a rank's share of a batch.": lambda *given: dealt_before(*given, share=len(given[0])),
        "`module.parameters()` is without w, so `fit` neither broadcasts it nor averages its "
        "gradient: make it an nn.Parameter.": unknown_weights,
        "Every gradient is there twice: `fit` calls backward, training_step only returns the loss.": (
            as_if(times=2)
        ),
        "Each rank takes a part of its part: `fit` has dealt the examples already.": (
            as_if(again=True)
        ),
        "Where is the momentum of 0.9?": as_if(momentum=0.0),
        "Together the ranks take world_size * BATCH examples in a step: `fit` wants a rank's share.": (
            as_if(batch=lambda R: BATCH * R)
        ),
        "Each rank trains weights of its own: `fit` would begin with rank 0's.": (
            lambda *given: [by_hand(*mine) for mine in zip(*given, strict=True)]
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# `fit` already does `zero_grad`, `backward`, `step` and the loop over rows. Which part of `by_hand` is
# left?
#
# </details>
# <details><summary>Hint 2</summary>
#
# Write `self.w = nn.Parameter(w.clone())` in `__init__`, after `super().__init__()`. A rank sees
# 60 / world_size examples in a step, and `fit` averages the gradients. Which loss must a rank return, so
# that the average of these losses is the mean over all 60 examples?
#
# </details>
# <details><summary>Hint 3</summary>
#
# Write `return F.cross_entropy(batch[0] @ self.w, batch[1])`, and call
# `fit(module, (x, y), BATCH // world_size)`. If you write `lightning.LightningModule` instead of
# `Module`, Lightning's Trainer takes the same class.
#
# </details>

# %% role="hidden" question="converted"
seed = 1
print(measure(converted, examples(seed + 10, steps=1 + seed % 4, features=2 + seed % 5)))

# %% [markdown]
# ## 2. A metric that must not be averaged (★★, 20 minutes, 2 points)
#
# Each rank has guessed the classes of its own examples: `guessed` and `labels` are whole numbers from 0
# to `classes - 1`. Ranks have different numbers of examples. Return macro F1 over **all** examples: it
# is the mean over the classes of 2 TP / (2 TP + FP + FN). A class counts as 0 if no example has it and
# no guess names it. Use one all_reduce. In this all_reduce a rank may bring at most 24 bytes for each
# class.


# %% role="answer" question="macro_f1" points=2
def macro_f1(rank, world_size, guessed, labels, classes):
    """Return macro F1 of all ranks' examples, a float."""
    ### BEGIN SOLUTION
    counts = torch.stack(
        [
            torch.bincount(part, minlength=classes)
            for part in (labels[guessed == labels], guessed, labels)
        ]
    )
    dist.all_reduce(counts)
    right, all_guessed, all_labels = counts
    return (2 * right / (all_guessed + all_labels).clamp(min=1)).mean().item()
    ### END SOLUTION


# %% role="check" question="macro_f1" points=2
def guesses(seed, classes):
    """Ranks have 5, 9, 13, ... examples, more and more of them in the last classes."""

    def inputs(rank, world_size):
        random = torch.Generator().manual_seed(100 * seed + rank)
        labels = torch.randint(1 + rank % classes, classes + 1, (5 + 4 * rank,), generator=random)
        labels = labels.clamp(max=classes) - 1
        other = torch.randint(classes, labels.shape, generator=random)
        is_right = torch.rand(labels.shape, generator=random) < 0.3 + 0.1 * rank
        is_right[0] = True
        return torch.where(is_right, labels, other), labels, classes

    return inputs


def f1_of(guessed, labels, classes, how="macro"):
    right = torch.bincount(labels[guessed == labels], minlength=classes)
    there = torch.bincount(labels, minlength=classes)
    both = torch.bincount(guessed, minlength=classes) + there
    f1 = 2 * right / both.clamp(min=1)
    ways = {
        "macro": f1.mean(),
        "micro": 2 * right.sum() / both.sum(),
        "of those that occur": f1[both > 0].mean(),
        "0 / 0": (2 * right / both).mean(),
        "empty is 1": torch.where(both > 0, f1, 1.0).mean(),
        "by frequency": (f1 * there).sum() / there.sum(),
        "not twice": (right / (both - right).clamp(min=1)).mean(),
    }
    return ways[how].item()


def joined(guessed, labels, classes):
    return torch.cat(guessed), torch.cat(labels), classes[0]


def mean_of_ranks(*given):
    found = [f1_of(*mine) for mine in zip(*given, strict=True)]
    return [sum(found) / len(found)] * len(found)


def weighted(*given):
    found = [f1_of(*mine) for mine in zip(*given, strict=True)]
    sizes = [len(labels) for labels in given[1]]
    return [sum(map(float.__mul__, found, map(float, sizes))) / sum(sizes)] * len(found)


def on_all(how="macro"):
    return lambda *given: [f1_of(*joined(*given), how)] * len(given[0])


verdict = check(
    "macro_f1",
    macro_f1,
    guesses(seed=3, classes=4),
    on_all(),
    only("all_reduce"),
    collectives(lambda *given: 1, hint="All counts fit into one tensor."),
    collective_nbytes(
        lambda guessed, labels, classes: 24 * classes[0],
        hint="Three numbers a class are enough, however many examples there are.",
    ),
    mistakes={
        "That is the F1 of all classes together (micro): take the mean of the classes' F1s.": (
            on_all("micro")
        ),
        "That is the mean of the ranks' F1s: add the counts up first, then divide.": mean_of_ranks,
        "Weights by numbers of examples do not help: F1 is no mean over examples. Add counts up.": (
            weighted
        ),
        "Each rank has the F1 of its own examples only.": (
            lambda *given: [f1_of(*mine) for mine in zip(*given, strict=True)]
        ),
        "A class that nobody has and nobody guesses counts 0, it is not left out.": (
            on_all("of those that occur")
        ),
        "0 / 0 is nan, for a class that nobody has and nobody guesses: divide by at least 1.": (
            on_all("0 / 0")
        ),
        "A class that nobody has and nobody guesses counts 0, and not 1.": on_all("empty is 1"),
        "The classes are weighted by how often they occur: in macro F1 each counts alike.": (
            on_all("by frequency")
        ),
        "That is TP / (TP + FP + FN): in F1 the TP count twice, above and below.": (
            on_all("not twice")
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# F1 is a ratio. Which three sums over examples do you need for the F1 of a class?
#
# </details>
# <details><summary>Hint 2</summary>
#
# 2 TP + FP + FN is the number of guesses of a class plus the number of examples with that class.
# `torch.bincount(x, minlength=classes)` counts them.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For each class, count the right guesses, all guesses, and all examples that have this class. Stack the
# three counts, and all_reduce the stack. Divide only after that, and divide by at least 1.
#
# </details>

# %% role="hidden" question="macro_f1"
seed = 1
print(measure(macro_f1, guesses(seed + 50, classes=3 + seed % 4)))

# %% [markdown]
# ## 3. A callback that hangs nobody (★★, 15 minutes, 2 points)
#
# After every `every` steps, the program logs the mean loss of these steps **over all ranks**. An entry
# of the log is `(step, mean)`. Only rank 0's log has entries. On one rank the program is right. On two
# ranks the program hangs. Fix the program, and use one all_reduce of one number for each entry. Do not
# log steps that are left over at the end. Leave the losses as they are.


# %% role="answer" question="log_means" points=2
def log_means(rank, world_size, losses, every):
    """Return the log: a list of (step, mean), empty on all ranks but rank 0.

    losses: a tensor of one float32 for each step; as many on every rank.
    """
    log, since = [], []

    class MeanLoss(Callback):
        def on_train_batch_end(self, step, loss):
            since.append(loss)
            ### BEGIN BROKEN
            if rank == 0 and (step + 1) % every == 0:
                mean = torch.stack(since).mean()
                dist.all_reduce(mean)
                log.append((step, mean.item() / world_size))
                since.clear()
            ### END BROKEN
            ### BEGIN SOLUTION
            if (step + 1) % every == 0:
                mean = torch.stack(since).mean()
                dist.all_reduce(mean)
                if rank == 0:
                    log.append((step, mean.item() / world_size))
                since.clear()
            ### END SOLUTION

    train(losses, [MeanLoss()])
    return log


# %% role="check" question="log_means" points=2
def losses_of(seed, steps, every):
    def inputs(rank, world_size):
        random = torch.Generator().manual_seed(100 * seed + rank)
        return torch.rand(steps, generator=random) + 1, every

    return inputs


def logged(
    of_rows=lambda rows: rows.mean().item(), first=False, leftover=False, shift=0, early=False
):
    """What rank 0 logs: a function of the rows, losses by rank and step, of an entry."""

    def found(losses, every):
        table, n = torch.stack(losses), every[0]
        ends = [*range(1 if early else n, table.shape[1] + 1, n)]
        ends += [table.shape[1]] * (leftover and table.shape[1] % n > 0)
        starts = [0] * len(ends) if first else [0, *ends]
        entries = zip(starts, ends, strict=False)
        log = [(end - 1 + shift, of_rows(table[:, start:end])) for start, end in entries]
        return [log] + [[] for _ in losses[1:]]

    return found


def cleared_on_rank_0(losses, every):
    """Rank 0's mean of the last steps, with the others' since the beginning."""
    table, n, log = torch.stack(losses), every[0], []
    for end in range(n, table.shape[1] + 1, n):
        means = [table[0, end - n : end].mean(), *table[1:, :end].mean(1)]
        log.append((end - 1, torch.stack(means).mean().item()))
    return [log] + [[] for _ in losses[1:]]


verdict = check(
    "log_means",
    log_means,
    losses_of(seed=5, steps=8, every=3),
    logged(),
    only("all_reduce"),
    brought(
        lambda losses, every: [4] * (len(losses[0]) // every[0]) if len(losses) > 1 else None,
        hint="One number, when its entry is due: not one in every step, nor all of them at the end.",
    ),
    mistakes={
        "Every rank logs: all must make the call, but one of them keeps the entry.": (
            lambda *given: [logged()(*given)[0] for _ in given[0]]
        ),
        "Those are the losses of rank 0 alone.": logged(lambda rows: rows[0].mean().item()),
        "Those are sums over the ranks: divide by world_size.": (
            logged(lambda rows: rows.mean().item() * len(rows))
        ),
        "Those are the losses of the last step only, not the mean since the last entry.": (
            logged(lambda rows: rows[:, -1].mean().item())
        ),
        "Each entry is the mean since the beginning: forget what has been logged.": (
            logged(first=True)
        ),
        "Rank 0 forgets what has been logged, the others do not: `since.clear()` is for all ranks.": (
            cleared_on_rank_0
        ),
        "The means are right, but each is logged one step too late: steps count from 0.": (
            logged(shift=1)
        ),
        "`step % every == 0` logs after step 0 already, not after `every` steps.": (
            logged(early=True)
        ),
        "Steps that are left over at the end are not logged.": logged(leftover=True),
    },
    as_given="7726f7b9",
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Which rank waits for which rank? Which lines must every rank reach, and which line is for rank 0 alone?
#
# </details>
# <details><summary>Hint 2</summary>
#
# `(step + 1) % every == 0` is the same on all ranks, but `rank == 0` is not. The most common reason why
# a callback hangs is a collective below an `if` that differs by rank.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Take `rank == 0` out of the condition, and put `if rank == 0:` before `log.append`. All ranks must call
# `since.clear()`.
#
# </details>

# %% role="hidden" question="log_means"
seed = 1
print(measure(log_means, losses_of(seed + 20, steps=6 + seed % 7, every=1 + seed % 4)))

# %% [markdown]
# ## 4. What does it send more? (★★, 20 minutes, 2 points)
#
# `one` and `other` are lists of the calls that a rank made under two frameworks. They have entries
# `(call, nbytes, line)`, which lesson 15 has recorded. An op is a call with its bytes. Return the ops
# that `other` sends **more often** than `one`, as a sorted list of `(call, nbytes, times, lines)`.
# `times` counts the additional calls of the op. `lines` has all of `other`'s lines that sent this op.
# Sort these lines, and list each line once. You need not send anything.


# %% role="answer" question="sends_more" points=2
def sends_more(rank, world_size, one, other):
    """Return a sorted list of (call, nbytes, times, lines): what other sends more than one."""
    ### BEGIN SOLUTION
    counts = [Counter(op[:2] for op in trace) for trace in (one, other)]
    return [
        (*op, times, sorted({line for *sent, line in other if tuple(sent) == op}))
        for op, times in sorted((counts[1] - counts[0]).items())
    ]
    ### END SOLUTION


# %% role="check" question="sends_more" points=2
NAMES = ["DDP", "Lightning", "Lightning, 16 steps", "by hand", "accelerate", "DDP"]


def two_traces(rank, world_size):
    return TRACES[NAMES[rank]], TRACES[NAMES[rank + 1]]


def more(
    one, other, key=lambda op: op[:2], times=lambda a, b: b - a, lines=set,
    wanted=lambda a, b: b > a, swap=False, among=lambda a, b: b,
):  # fmt: skip
    """The answer for one rank; of a mistake, with something else in the place of a part."""
    one, other = (other, one) if swap else (one, other)
    a, b = (Counter(map(key, trace)) for trace in (one, other))
    return [
        (*op[:2], times(a[op], b[op]), sorted(lines(o[2] for o in other if key(o) == op)))
        for op in sorted(among(a, b))
        if wanted(a[op], b[op])
    ]


def each(**options):
    return lambda *given: [more(*mine, **options) for mine in zip(*given, strict=True)]


def one_of(*ways):
    """Several ways to make a mistake, each an answer for one rank."""
    return lambda *given: OneOf([[way(*mine) for mine in zip(*given, strict=True)] for way in ways])


def unequal(times, among):
    return lambda *mine: more(*mine, wanted=lambda a, b: a != b, times=times, among=among)


UNEQUAL = [
    unequal(times, among)
    for times in (lambda a, b: b - a, lambda a, b: abs(b - a))
    for among in (lambda a, b: b, lambda a, b: a | b)
]


def by_times(one, other):
    return sorted(more(one, other), key=lambda entry: entry[2])


def only_new(one, other):
    known = {op[:2] for op in one}
    return [entry for entry in more(one, other) if entry[:2] not in known]


def as_sent(one, other):
    order = [op[:2] for op in other]
    return sorted(more(one, other), key=lambda entry: order.index(entry[:2]))


def by_call(one, other):
    found = more(one, other, key=lambda op: op[:1])
    return [(call, times, lines) for call, times, lines in found]


verdict = check(
    "sends_more",
    sends_more,
    two_traces,
    each(),
    messages(lambda *given: 0),
    collectives(lambda *given: 0, hint="Both traces are here: nobody need be asked."),
    mistakes={
        "Ops that `one` has too, but less often, are missing.": (
            lambda *given: [only_new(*mine) for mine in zip(*given, strict=True)]
        ),
        "The times are how often `other` sends it: how many *more* is asked.": (
            each(times=lambda a, b: b)
        ),
        "That is what `one` sends more often: the other way round.": each(swap=True),
        "A line is listed as often as it sent the op: list each line once.": each(lines=list),
        "The entries are right, but not sorted: by call, then by bytes.": (
            lambda *given: [as_sent(*mine) for mine in zip(*given, strict=True)]
        ),
        "What both send equally often is there, too, 0 times.": each(
            wanted=lambda a, b: True, times=lambda a, b: max(b - a, 0)
        ),
        "An op that came from several lines is listed several times: its line is not part of an op.": (
            each(key=lambda op: op)
        ),
        "What `other` sends *less* often is there, too: where `!=` stands, `>` is asked.": (
            one_of(*UNEQUAL)
        ),
        "The entries are right, but sorted by times: by call, then by bytes.": one_of(
            by_times, lambda *mine: sorted(more(*mine), key=lambda entry: -entry[2])
        ),
        "Only one line of each op is there: all of them are asked.": one_of(
            lambda *mine: more(*mine, lines=lambda found: list(found)[:1]),
            lambda *mine: more(*mine, lines=lambda found: sorted(found)[:1]),
            lambda *mine: more(*mine, lines=lambda found: list(found)[-1:]),
        ),
        "An op is its call *with its bytes*: the same call of another size is another op.": (
            lambda *given: [by_call(*mine) for mine in zip(*given, strict=True)]
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Count `op[:2]` in both traces. A set would not say how often an op occurs.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `Counter(...) - Counter(...)` keeps only positive counts.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For each op in the difference, the lines are
# `sorted({line for call, nbytes, line in other if (call, nbytes) == op})`.
#
# </details>

# %% role="hidden" question="sends_more"
seed = 1


def drawn(rank, world_size):
    random = torch.Generator().manual_seed(10 * seed + rank)
    words = torch.randint(3, (2, 25, 3), generator=random).tolist()
    calls, lines = ["all_reduce", "barrier", "broadcast"], [LOG, FIT, BACKWARD]
    traces = [[(calls[c], 4 * n, lines[line]) for c, n, line in trace] for trace in words]
    return traces[0][: 15 + seed % 10], [*traces[1], ("broadcast", 100, LOG)]


print(measure(sends_more, drawn))

# %% [markdown]
# ## 5. Sums in buckets (★★, 20 minutes, 2 points)
#
# A compiler puts several collectives into one bucket. Each rank has a list of tensors, with the same
# shapes on all ranks. Return the list of their sums over all ranks, in the same order and shapes. Fill
# buckets in the order of the list: a tensor joins the last bucket if this bucket then has at most `most`
# bytes. Otherwise the tensor begins a new bucket. So a tensor of more than `most` bytes has a bucket of
# its own. Use one all_reduce for each bucket, plain or functional. Do not change the tensors of the list.


# %% role="answer" question="summed" points=2
def summed(rank, world_size, tensors, most):
    """Return the sums of the tensors over all ranks, a list of tensors (float32).

    most: a bucket of several tensors has at most so many bytes.
    """
    ### BEGIN SOLUTION
    buckets = []
    for tensor in tensors:
        if buckets and sum(one.nbytes for one in buckets[-1]) + tensor.nbytes <= most:
            buckets[-1].append(tensor)
        else:
            buckets.append([tensor])
    found = []
    for bucket in buckets:
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in bucket])
        found += [part.view_as(one) for part, one in zip(parts, bucket, strict=True)]
    return found
    ### END SOLUTION


# %% role="check" question="summed" points=2
SHAPES = (4,), (2, 3), (5,), (30,), (1,), (2, 2), (3,)


def tensors_of(seed, shapes, most):
    """Whole numbers as floats, so that sums are exact in any order."""

    def inputs(rank, world_size):
        random = torch.Generator().manual_seed(100 * seed + rank)
        draw = [torch.randint(1, 50, shape, generator=random).float() for shape in shapes]
        return draw, most

    return inputs


def bytes_of_buckets(tensors, most):
    sizes = []
    for one in tensors[0]:
        if sizes and sizes[-1] + one.nbytes <= most[0]:
            sizes[-1] += one.nbytes
        else:
            sizes.append(one.nbytes)
    return sizes


def sums(change=lambda total, R: total, order=list):
    def found(tensors, most):
        R = len(tensors)
        totals = [change(sum(parts), R) for parts in zip(*tensors, strict=True)]
        return [order(totals)] * R

    return found


verdict = check(
    "summed",
    summed,
    tensors_of(seed=3, shapes=SHAPES, most=40),
    sums(),
    only("all_reduce"),
    collectives(
        lambda tensors, most: len(bytes_of_buckets(tensors, most)),
        hint="A bucket is sent as one tensor: `torch.cat` joins its tensors.",
    ),
    brought(
        lambda tensors, most: bytes_of_buckets(tensors, most) if len(tensors) > 1 else None,
        hint="Buckets are filled in order, and each has at most `most` bytes.",
    ),
    mistakes={
        "Those are means over the ranks: sums are asked.": sums(lambda total, R: total / R),
        "The sums are right, but in the reverse order.": sums(order=lambda totals: totals[::-1]),
        "The sums are right, but flat: give each its shape back.": (
            sums(lambda total, R: total.flatten())
        ),
        "Each rank has its own tensors only.": lambda tensors, most: list(tensors),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# First make the list of buckets. A bucket is a list of tensors. Only then send.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `torch.cat([tensor.flatten() for tensor in bucket])` is a new tensor, so its all_reduce does not change the
# input.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `flat.split([tensor.numel() for tensor in bucket])` cuts the sum into parts again, and `part.view_as(tensor)`
# gives a part its shape.
#
# </details>

# %% role="hidden" question="summed"
seed = 1
sizes = torch.randint(1, 12, (4 + seed % 5,), generator=torch.Generator().manual_seed(seed))
print(measure(summed, tensors_of(seed, [(n, 2) for n in sizes.tolist()], 24 + 4 * (seed % 17))))

# %% [markdown]
# ## 6. How long does it wait? (★★, 20 minutes, 2 points)
#
# A compiler wants to know how good an order of nodes is. `nodes` is a list of `(kind, name, ms)`. For
# `"compute"` the rank computes for `ms`. For `"all_reduce"` the rank starts the sum `name` and continues
# at once. The network needs `ms` for this sum, and works on one sum after the other, in the order of
# their starts. For `"wait"` the rank waits until the sum `name` is complete, and `ms` is 0. Return how
# many ms the rank waits in total. Each rank has its own list, and the list says all: send nothing.


# %% role="answer" question="waited_ms" points=2
def waited_ms(rank, world_size, nodes):
    """Return the milliseconds that a rank waits, an int.

    nodes: a list of (kind, name, ms); the ms are whole numbers. For example, the answer for
    [("compute", "a", 5), ("all_reduce", "s", 7), ("compute", "b", 3), ("wait", "s", 0)] is 4:
    s is complete at 12 ms, and the rank begins to wait at 8 ms.
    """
    ### BEGIN SOLUTION
    now = free = waited = 0
    ends = {}
    for kind, name, ms in nodes:
        if kind == "compute":
            now += ms
        elif kind == "all_reduce":
            free = ends[name] = max(free, now) + ms
        else:
            wait = max(0, ends[name] - now)
            waited, now = waited + wait, now + wait
    return waited
    ### END SOLUTION


# %% role="check" question="waited_ms" points=2
FIXED = [
    ("compute", "a", 5), ("all_reduce", "s", 7), ("compute", "b", 3), ("all_reduce", "t", 6),
    ("compute", "c", 2), ("wait", "s", 0), ("compute", "d", 4), ("wait", "t", 0),
    ("compute", "e", 9), ("all_reduce", "u", 8), ("all_reduce", "v", 3), ("compute", "f", 20),
    ("wait", "u", 0), ("wait", "v", 0), ("all_reduce", "w", 2), ("compute", "g", 1), ("wait", "w", 0),
]  # fmt: skip


def fixed_nodes(rank, world_size):
    """Each rank computes a little longer than the one before it."""
    return ([(kind, name, ms + rank * (kind == "compute")) for kind, name, ms in FIXED],)


def random_nodes(seed):
    def inputs(rank, world_size):
        random = torch.Generator().manual_seed(10 * seed + rank)
        nodes = []
        for number in range(4 + seed % 4):
            one, two, *ms = torch.randint(1, 20, (6,), generator=random).tolist()
            nodes += [("compute", f"a{number}", ms[0]), ("all_reduce", f"s{number}", one)]
            nodes += [("compute", f"b{number}", ms[1]), ("all_reduce", f"t{number}", two)]
            nodes += [("compute", f"c{number}", ms[2]), ("wait", f"s{number}", 0)]
            nodes += [("compute", f"d{number}", ms[3]), ("wait", f"t{number}", 0)]
        return (nodes,)

    return inputs


def waits(queue=True, early=True, negative=False, last=False, moves=True, idle=False, of="waited"):
    """The answer for each rank; of a mistake, with one rule changed."""

    def of_rank(nodes):
        now = free = waited = 0
        ends = {}
        for kind, name, ms in nodes:
            if kind == "compute":
                now += ms
            elif kind == "all_reduce":
                free = ends[name] = (free if idle else max(free, now) if queue else now) + ms
            if kind == ("wait" if early else "all_reduce"):
                wait = (max(ends.values()) if last else ends[name]) - now
                wait = wait if negative else max(0, wait)
                waited, now = waited + wait, now + wait * moves
        return {"waited": waited, "time": now}[of]

    return lambda all_nodes: [of_rank(nodes) for nodes in all_nodes]


verdict = check(
    "waited_ms",
    waited_ms,
    [fixed_nodes, random_nodes(seed=2)],
    waits(),
    messages(lambda *given: 0),
    collectives(lambda *given: 0, hint="The list says all: nothing is sent."),
    mistakes={
        "The network works on several sums at once: the second must begin when the first ends.": (
            waits(queue=False)
        ),
        "The rank waits where it starts a sum: it continues, and waits only at `wait`.": (
            waits(early=False)
        ),
        "A sum that is there before the wait makes the total smaller: such a wait takes 0 ms.": (
            waits(negative=True)
        ),
        "Each wait is for all sums so far: it is only for the sum that it names.": waits(last=True),
        "The clock does not move while the rank waits: what follows begins later.": (
            waits(moves=False)
        ),
        "A sum begins before its start: the network may be idle until then.": waits(idle=True),
        "That is when the rank ends: only its waits are asked.": waits(of="time"),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Keep two times: when the rank has done the nodes so far, and when the network is free again.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A sum begins when it was started *and* the network is free: the later of the two times.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For `"all_reduce"`: `free = ends[name] = max(free, now) + ms`. For `"wait"`: the rank waits for
# `max(0, ends[name] - now)`. Add this to the total and to `now`.
#
# </details>

# %% role="hidden" question="waited_ms"
seed = 1
print(measure(waited_ms, random_nodes(seed + 40)))
