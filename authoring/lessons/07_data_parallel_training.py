# %% [markdown]
# # 07 Data-parallel training
#
# [Lesson 06](06_synchronous_sgd.ipynb) derived the rule: every rank takes the gradient of its own
# examples, the mean of these gradients is the gradient of the whole batch, and all ranks take the same
# step. Here you train with it. In this lesson (90 minutes) you will
#
# - train LeNet on real handwritten digits, on real ranks, until it reads 97 of 100 it has never seen,
# - see that R ranks and one process arrive at the same weights, and how equal "the same" is,
# - build the two functions that this takes as they were first published, and then better,
# - stop a run in mid-epoch and go on, bit for bit,
# - meet a dozen programs that print a nice number and are wrong.
#
# Notation: R ranks, B examples per rank and step, $B_\text{effective} = R \times B$, learning rate $\eta$.
#
# ## The data and the model
#
# `simlib.digits.load()` makes scikit-learn's 1,797 scanned digits as large
# as MNIST's (28 x 28) and holds 297 out. `simlib.digits.load_mnist(folder)` reads MNIST's own files. Pixels get
# mean 0 and standard deviation 1.

# %%
import functools
import itertools
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split
from tqdm import tqdm

import simlib

parts = simlib.digits.load()
std, mean = torch.std_mean(parts[0].tensors[0])
train_set, test_set = (TensorDataset((d.tensors[0] - mean) / std, d.tensors[1]) for d in parts)


def lenet():
    first, second = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
    images = [first, nn.MaxPool2d(2), nn.ReLU(), second, nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*images, nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))


# %% [markdown]
# ## The two functions, as published
#
# The article (A. Das 2018-2019, lesson 06) adds two calls to an ordinary training loop. Before the first step,
# `sync_initial_weights` gives every rank the weights of rank 0. After each `backward`,
# `sync_gradients` replaces every gradient by the mean over all ranks. The cell has them as published: the
# first with `send` and `recv`, the second with one `all_reduce` per parameter tensor.
#
# Four ranks take two steps. Each rank starts with a random seed of its own, so each draws other first weights.
# Here these seeds repeat in every run; under torchrun they do not. Without the first function, are the ranks equal
# in the end? LeNet has 431,080 weights in 8 tensors. With both functions, how many messages, how many collectives?

# %%
equal = None  # without the first function: yes or no?
messages, collectives = None, None  # with both, of all four ranks


def weights_by_send(model, rank, world_size):
    for parameter in model.parameters():
        if rank == 0:
            for other in range(1, world_size):
                dist.send(parameter.data, dst=other)
        else:
            dist.recv(parameter.data, src=0)


def gradients_one_by_one(model, rank, world_size):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


# %%
def two_steps(rank, world_size, sync_initial_weights, sync_gradients):
    model = lenet()
    if sync_initial_weights:
        sync_initial_weights(model, rank, world_size)
    for step in range(2):
        images, labels = train_set[32 * step + rank : 32 * (step + 1) : world_size]
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        sync_gradients(model, rank, world_size)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
    return parameters_to_vector(model.parameters()).detach()


for first in (None, weights_by_send):
    run = simlib.simulate(two_steps, 4, args=(first, gradients_one_by_one))
    print("all ranks equal:", all(torch.equal(run.results[0], other) for other in run.results))
print("messages by rank", run.messages, "bytes", run.bytes_sent)
print(len(run.trace.collectives), "collectives")
simlib.guess(equal, "no", of=("yes", "no"))
simlib.guess(messages, sum(run.messages))
simlib.guess(collectives, len(run.trace.collectives))
run

# %% [markdown]
# The mean gradient is the same on all ranks, so all took the same two steps. They began with different weights, so
# they end with different weights. No call reports it: compare them yourself, as lesson 06 does.
# `torch.manual_seed(0)` on every rank makes them equal, too, until one rank draws a number more. A broadcast always
# does.
#
# The run is simulated: each rank has a node of its own, and computing takes no time. Rank 0 sends 8 tensors to each of
# 3 ranks, one after the other: 24 messages, 3 x 1.7 MB. Ranks 1 to 3 wait 3.24 ms. Each step makes 8 all_reduces. The
# smallest moves ten numbers and costs a full latency.
#
# ## Better: one broadcast, one flat buffer
#
# In a broadcast everyone helps (lesson 04). And all parameters fit into *one* tensor:
# `parameters_to_vector` joins them, `vector_to_parameters` cuts it up again.
# Predict what it gains on 16 nodes with 10 Gbit/s Ethernet.

# %%
faster = None  # how many times as fast on 16 nodes?


def sync_initial_weights(model, rank, world_size):
    flat = parameters_to_vector(model.parameters()).detach()
    dist.broadcast(flat, src=0)
    vector_to_parameters(flat, model.parameters())


def sync_gradients(model, rank, world_size):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = parameters_to_vector(gradients)
    dist.all_reduce(flat)
    vector_to_parameters(flat / world_size, gradients)


better = simlib.simulate(two_steps, 4, args=(sync_initial_weights, sync_gradients))
print(sum(better.messages), "messages,", len(better.trace.collectives), "collectives")
print("the same weights:", torch.allclose(better.results[0], run.results[0], atol=1e-6))
first, then = (weights_by_send, sync_initial_weights), (gradients_one_by_one, sync_gradients)
times = [simlib.simulate(two_steps, 16, args=w).time_s for w in itertools.product(first, then)]
for name, time_s in zip(("as published", "flat buffer", "broadcast", "both"), times, strict=True):
    print(f"16 nodes, {name:12} {time_s * 1e3:6.3f} ms: {times[0] / time_s:.1f} times as fast")
simlib.guess(faster, round(times[0] / times[-1], 1), within=0.2)
better

# %% [markdown]
# The same weights, with 3 collectives. On 16 nodes `weights_by_send` sends 15 copies out of one network card; the
# broadcast deals the pieces out and lets the ranks gather them from each other, so no card carries more
# than two copies: 21 ms less. With gradients the bytes stay, and what is saved is latency:
# 7 all_reduces a step, 1.1 ms. (A flat buffer must wait for the last gradient. Lesson 08 cuts it into buckets.)
#
# ## Who gets which examples?
#
# "A `DataLoader` shards", one reads. Three ranks, twelve examples, two per batch: first a plain
# `DataLoader(shuffle=True)`, then one with a `DistributedSampler`. How many of the twelve does each rank get?

# %%
plain, sampled = None, None  # how many of the twelve does a rank get?
numbers = TensorDataset(torch.arange(12))


def epoch_of(rank, world_size, shards):
    sampler = DistributedSampler(numbers, world_size, rank) if shards else None
    loader = DataLoader(numbers, 2, sampler=sampler, shuffle=not shards)
    return [batch.tolist() for (batch,) in loader]


for shards in (False, True):
    print("with DistributedSampler" if shards else "plain DataLoader(shuffle=True)")
    for rank, batches in enumerate(simlib.run(epoch_of, 3, args=(shards,)).results):
        print(f"  rank {rank}: {batches}")
    simlib.guess(sampled if shards else plain, len(sum(batches, [])))

# %% [markdown]
# The plain loader knows nothing of ranks: each rank gets **everything**, in its own order. An
# epoch trains three times on each. No error. The sampler shuffles all
# twelve with one seed for all ranks, and rank r takes every R-th from place r on.
#
# ## The same seed, the same data?
#
# `random_split` cuts a held-out set off. With `seed="same"` all ranks begin with one seed, as with
# `torch.manual_seed(0)` in the first line. Rank 0 also draws one random number first, say to choose a
# picture to show. Do all ranks hold out the same three examples?
#
# Then the reverse: a loader's **worker** adds random noise to each batch (augmentation). Its seed is drawn from
# the rank's generator. Both ranks begin with one seed again. Is their noise the same? Should it be?

# %%
same_three, same_noise = None, None  # with a common seed: yes or no?


def hold_out(rank, world_size, own_generator):
    torch.rand(1 if rank == 0 else 0)
    generator = torch.Generator().manual_seed(3) if own_generator else torch.default_generator
    return sorted(random_split(range(12), [9, 3], generator)[1].indices)


def add_noise(examples):
    return round(torch.rand(1).item(), 3)


def augmented(rank, world_size, seeds):
    torch.manual_seed(seeds[rank])
    how = {"num_workers": 1, "multiprocessing_context": "fork"}
    return list(DataLoader(range(4), 2, collate_fn=add_noise, **how))


print("the ranks' common seed:", simlib.run(hold_out, 3, (False,), seed="same").results)
print("a generator for this:  ", simlib.run(hold_out, 3, args=(True,)).results)
print("noise, common seed:    ", simlib.run(augmented, 2, args=((0, 0),)).results)
print("noise, own seeds:      ", simlib.run(augmented, 2, args=((0, 1),)).results)
simlib.guess(same_three, "no", of=("yes", "no"))
simlib.guess(same_noise, "yes", of=("yes", "no"))

# %% [markdown]
# One number drawn more, and rank 0 trains on what the others hold out: the held-out accuracy becomes a
# lie. What must be **equal** on all ranks (split, shuffle) gets a generator of its own, used for nothing else. What
# must **differ** (noise, dropout) gets a seed with the rank in it. With a common one all ranks add the same noise, and
# the mean does not reduce it. Dropout draws from torch's own generator, so call
# `torch.manual_seed(1000 + rank)` once the weights are equal.
#
# ## Fixed chunks, and the forgotten set_epoch
#
# Cut the data once into R chunks that stay with their ranks, or shuffle everything anew in each epoch and deal it
# out. For the second the sampler must be told which epoch it is: it shuffles with its seed (0) plus that number. How
# many different examples does rank 0 see in three epochs? **Now you write it:** the line in `before_epoch`.


# %%
in_chunks, anew = None, None  # how many different examples?


def before_epoch(sampler, epoch):
    pass  # your line


def shards_of(rank, world_size):
    sampler, epochs = DistributedSampler(numbers, world_size, rank), []
    for epoch in range(3):
        before_epoch(sampler, epoch)
        epochs.append(list(sampler))
    return epochs


seeds = [torch.Generator().manual_seed(epoch) for epoch in range(3)]
shuffles = [torch.randperm(12, generator=seed)[::3].tolist() for seed in seeds]  # by hand
yours = simlib.run(shards_of, 3).results[0]
for way, epochs in (("fixed chunks", [[0, 1, 2, 3]] * 3), ("anew", shuffles), ("yours", yours)):
    print(f"{way:12} {epochs}, {len(set(sum(epochs, [])))} different")
simlib.guess(in_chunks, 4)
simlib.guess(anew, len(set(sum(shuffles, []))))
print("your line:", "right" if yours == shuffles else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `sampler.set_epoch(epoch)`
#
# </details>
#
# Without it every epoch is the first one again, and nothing tells you.
#
# ## The loop
#
# `training` is a generator: it takes one step, then yields how many are done and
# the loss, so that the cells below can log, save or stop. `steps` says which: a run that goes on begins in the
# middle, and skips the batches it has had. B is `batch // world_size`:
# the effective batch stays 60 whatever R is. `noise`, if given, is the rank's own generator for augmentation.


# %%
def training(model, optimizer, rank, world_size, steps, batch=60, noise=None):
    """Train data-parallel; after each step yield how many are done and this rank's own loss."""
    if batch % world_size:
        raise ValueError(f"{world_size} ranks cannot share a batch of {batch} equally")
    dtype = next(model.parameters()).dtype
    sampler = DistributedSampler(train_set, world_size, rank, seed=1)
    loader = DataLoader(train_set, batch // world_size, sampler=sampler)
    for step in steps:
        epoch, place = divmod(step, len(loader))
        if place == 0 or step == steps[0]:
            sampler.set_epoch(epoch)
            batches = itertools.islice(loader, place, None)
        images, labels = next(batches)
        if noise:
            images = images + 0.3 * torch.randn(images.shape, generator=noise)
        loss = F.cross_entropy(model(images.to(dtype)), labels)
        optimizer.zero_grad()
        loss.backward()
        sync_gradients(model, rank, world_size)
        optimizer.step()
        yield step + 1, loss.item()


# %% [markdown]
# ## Is it the same as one process?
#
# The sampler deals the shuffled examples out in turn. So the first batches of R ranks together are the
# first 60 of the shuffled list: the batch that one process has. By lesson 06 the mean gradient is the
# same, hence the weights, also with momentum and Adam. We compare after 25 steps, at R = 1, 2, 4, in both
# precisions. Predict the largest difference between any two weights.

# %% tags=["nbval-ignore-output"]
guess = None  # largest difference in float32? In float64?
sgd = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)
adam = functools.partial(torch.optim.Adam, lr=0.001)


def one_epoch(rank, world_size, make_optimizer, dtype):
    torch.manual_seed(rank)
    model = lenet().to(dtype)
    sync_initial_weights(model, rank, world_size)
    for _ in training(model, make_optimizer(model.parameters()), rank, world_size, range(25)):
        pass
    return parameters_to_vector(model.parameters()).detach()


after = {}
for make_optimizer, dtype in itertools.product((sgd, adam), (torch.float32, torch.float64)):
    for n in (1, 2, 4):
        run = simlib.run(one_epoch, n, args=(make_optimizer, dtype))
        after[make_optimizer, dtype, n] = run.results[0]
    one, *others = (after[make_optimizer, dtype, n] for n in (1, 2, 4))
    worst = [(other - one).abs().max().item() for other in others]
    name = make_optimizer.func.__name__
    print(f"{name:4} {dtype}: R = 2 {worst[0]:.0e}, R = 4 {worst[1]:.0e}")
    assert dtype == torch.float32 or max(worst) < 1e-10

# %% [markdown]
# Equal, up to rounding: sums in another order are rounded differently (lesson 05). In float64 an epoch leaves
# about 1e-13 or less. In float32 SGD mostly leaves 1e-7 or less; but max-pooling and ReLU *choose*, and where
# two values nearly tie, a rounding turns the choice. Adam differs more. It divides each
# gradient by its own size, and a gradient of 1e-8 is mostly rounding error. So even the sign of a step may differ:
# after 25 steps two weights are up to $2 \times 25\,\eta$ = 0.05 apart. Rounding, or a
# mistake? Go to float64: rounding shrinks some hundred million times or more, a mistake stays.
#
# ## Break it: nothing is learned
#
# A loop that circulates, with two mistakes and no error message. Find them:
#
# ```python
# for step in range(25):
#     images, labels = next(iter(loader))
#     loss = F.cross_entropy(model(images), labels)
#     loss.backward()
#     sync_gradients(model, rank, world_size)
#     optimizer.zero_grad()
#     optimizer.step()
# ```
#
# It runs as it is, with one mistake mended, and with both: 25 steps of 30 examples.

# %%
guess = None  # how many examples are seen, the first mistake mended?


def careless(rank, world_size, zero_late, one_iterator):
    torch.manual_seed(0)
    model, seen = lenet(), set()
    optimizer, before = sgd(model.parameters()), model[0].weight.clone()
    indexed = TensorDataset(*train_set.tensors, torch.arange(len(train_set)))
    loader = DataLoader(indexed, 30, sampler=DistributedSampler(indexed, world_size, rank))
    batches = iter(loader)
    for _ in range(25):
        images, labels, index = next(batches) if one_iterator else next(iter(loader))
        seen |= set(index.tolist())
        if not zero_late:
            optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        sync_gradients(model, rank, world_size)
        if zero_late:
            optimizer.zero_grad()
        optimizer.step()
    return f"weights moved: {not torch.equal(before, model[0].weight)}, {len(seen)} examples seen"


for mistakes in ((True, False), (False, False), (False, True)):
    print(simlib.run(careless, 2, args=mistakes).results[0])

# %% [markdown]
# First line: `zero_grad()` stands between `backward` and `step`, so the step finds no
# gradient. Second line, that one mended: weights move, but `next(iter(loader))` makes a **new**
# iterator in every step, which begins with the first batch again: 30 examples, learned by heart.
# Third line: 750 examples, the rank's half.
#
# ## Evaluate without counting anybody twice
#
# 297 held-out digits on 4 ranks: 75 for rank 0, 74 for the others. `DistributedSampler` **pads**: it begins again
# at the front until R divides the number. What does that do to an accuracy? And may one take the mean over ranks of an
# AUC (how often a picture of a 1 gets a higher score for "1" than another picture)?

# %% tags=["nbval-ignore-output"]
counted, same_auc = None, None  # how many? Is the mean of four AUCs that of all: yes or no?


def summed(*numbers):
    total = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()


def evaluate(rank, world_size, weights, padded):
    model = lenet()
    vector_to_parameters(weights, model.parameters())
    sampler = DistributedSampler(test_set, world_size, rank, shuffle=False)
    mine = list(sampler) if padded else range(rank, len(test_set), world_size)
    images, labels = test_set[mine]
    with torch.no_grad():
        scores = model(images).softmax(1)
    right, count = summed((scores.argmax(1) == labels).sum(), len(mine))
    everyone = torch.zeros(len(test_set), 10)
    everyone[mine] = scores
    dist.reduce(everyone, dst=0)  # inference: every digit is answered by one rank, rank 0 collects
    return f"{right:.0f} of {count:.0f} right, {right / count:.2%}", everyone


# %% tags=["nbval-ignore-output"]
def accuracy_of(model, rank, world_size):
    images, labels = test_set[rank::world_size]
    right, count = summed((model(images).argmax(1) == labels).sum(), len(labels))
    return right / count


def auc(shard):
    scores, labels = everyone[shard, 1], test_set.tensors[1][shard]
    return (scores[labels == 1, None] > scores[labels != 1]).float().mean()


weights = after[adam, torch.float32, 1]
for padded in (True, False):
    said, everyone = simlib.run(evaluate, 4, args=(weights, padded)).results[0]
    print(f"padded {padded}: {said}")
_, alone = simlib.run(evaluate, 1, args=(weights, False)).results[0]
print("the answers of one process:", torch.allclose(alone, everyone, atol=1e-5))
mean_of_four = sum(auc(slice(rank, None, 4)) for rank in range(4)) / 4
print(f"AUC of all {auc(slice(None)):.2%}, mean of the ranks' {mean_of_four:.2%}")
simlib.guess(counted, 300)
simlib.guess(same_auc, "no", of=("yes", "no"))


# %% [markdown]
# 300 were counted: the first three twice. The mend is to shard without the sampler: rank r takes r, r + R,
# r + 2R, ... The shares may differ by one; so sum the *counts*, and divide at the end. An AUC compares every 1 with every
# other digit, also of other ranks: no average of the ranks' AUCs is that of all. Reduce what adds up, else
# bring the scores together. The same cut serves **inference**: `everyone` has one row per digit, each rank
# fills in its own, and one `reduce` puts all 297 in order on rank 0.
#
# ## Train for real, and watch
#
# Now 8 epochs on two ranks, 30 examples each per step. The learning rate rises over the first tenth (a *warm-up*,
# see below) and falls to zero at the end. What is new:
#
# - **Metrics are reduced.** `loss` belongs to the rank's own examples; logged is the mean over all ranks.
# - **One rank writes**, with TensorBoard's `SummaryWriter`, and imports it alone.
# - **A progress bar**, also on rank 0 only. `simlib.live_curves(folder)` draws the curves meanwhile.
# - **A checkpoint** holds *everything* that the next step depends on: weights, optimizer (its momentum!),
#   schedule, the step (so the epoch, and the place in it), and the state of each rank's `noise`. (Dropout
#   would need `torch.get_rng_state()` of each rank, too.)
#
# (`how`: learning rate, epochs, effective batch, and the factor on the rate.)


# %%
def save(path, rank, world_size, step, noise, parts):
    states = [torch.empty_like(noise.get_state()) for _ in range(world_size)]
    dist.all_gather(states, noise.get_state())
    if rank == 0:
        held = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**held, "step": step, "noise": states}, f"{path}.new")
        os.replace(f"{path}.new", path)  # atomic: at any moment a whole file is at path
    dist.barrier()  # nobody goes on, and loads, before it is there


def load(path, forget, rank, noise, parts):
    state = torch.load(path, weights_only=True)  # every rank reads
    for name in parts.keys() - {forget}:
        parts[name].load_state_dict(state[name])
    if forget != "noise":
        noise.set_state(state["noise"][rank])
    else:  # other noise than at the start
        noise.manual_seed(1000 * state["step"] + rank)
    return 0 if forget == "step" else state["step"]


# %% tags=["nbval-ignore-output"]
def train(rank, world_size, folder, *how, stop=None, load_args=None, log=True, noisy=True, **other):
    lr, epochs, batch, factor = how
    model = lenet()
    sync_initial_weights(model, rank, world_size)
    optimizer = other.get("make_optimizer", sgd)(model.parameters(), lr=lr)
    noise = torch.Generator().manual_seed(rank)
    steps = epochs * len(train_set) // batch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step / steps))
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    first = load(*load_args, rank, noise, parts) if load_args else 0
    if log and rank == 0:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(folder, flush_secs=1)
    todo = range(first, stop or steps)
    done = training(model, optimizer, rank, world_size, todo, batch, noise if noisy else None)
    for step, loss in tqdm(done, "steps", steps, initial=first, disable=rank > 0, leave=False):
        schedule.step()
        values = {"loss": summed(loss)[0] / world_size}
        if step % (steps // epochs) == 0 or step == todo.stop:
            values["held-out accuracy"] = accuracy_of(model, rank, world_size)
        for name, value in values.items() if log and rank == 0 else ():
            writer.add_scalar(name, value, step * batch)  # examples seen by all ranks
    save(f"{folder}/last.pt", rank, world_size, step, noise, parts)
    return values["held-out accuracy"], parameters_to_vector(model.parameters()).detach()


# %% [markdown]
# The same files open in TensorBoard: `tensorboard --logdir FOLDER`.


# %% tags=["nbval-ignore-output"]
def up_and_down(done):
    """The factor on the learning rate when this part of all steps (0 to 1) is done."""
    return min(10 * done + 0.02, 1 - done)


folder = tempfile.TemporaryDirectory()
with simlib.live_curves(folder.name, x="examples"):
    run = simlib.run(train, 2, args=(folder.name, 0.02, 8, 60, up_and_down))
print(f"held-out accuracy {run.results[0][0]:.1%}")
assert run.results[0][0] >= 0.95

# %% [markdown]
# ## A checkpoint: one saves, all load
#
# If all ranks wrote one file, it could be broken. If only rank 0 *loaded* it, the others would
# go on from other weights. A crash while writing must not cost the old file: write beside it, then rename. The barrier
# keeps ranks from loading early.
#
# We train 20 steps in one go, then 7 (in the middle of epoch 1), and the rest from the file: with
# everything, with one thing forgotten, and on 4 ranks, with noise and without. What is bit for bit the same?

# %% tags=["nbval-ignore-output"]
same = None  # how many of the seven are as in one go?
how, half, resumed = (0.02, 4, 300, up_and_down), f"{folder.name}/half.pt", []
cases = [(2, part) for part in ("nothing", "optimizer", "schedule", "noise", "step")]


def trained(n, **more):
    more = {"log": False, **more}
    return simlib.run(train, n, args=(folder.name, *how), kwargs=more).results[0][1]


for noisy, tried in ((True, [*cases, (4, "noise")]), (False, [(4, "noise")])):
    in_one_go = trained(2, noisy=noisy)
    trained(2, noisy=noisy, stop=7)
    os.replace(f"{folder.name}/last.pt", half)
    for n, forget in tried:
        weights = trained(n, noisy=noisy, load_args=(half, forget))
        resumed.append(torch.equal(weights, in_one_go))
        off = f"{resumed[-1]}, apart {(weights - in_one_go).abs().max():.0e}"
        print(f"{n} ranks, noise {noisy!s:5}, forgotten {forget:9} as in one go {off}")
simlib.guess(same, sum(resumed))
assert resumed[0] and not any(resumed[1:-1])
folder.cleanup()

# %% [markdown]
# Bit for bit, but only with everything. On **another world size** weights, optimizer and schedule fit, and the step,
# too, because it counts batches of all ranks: without noise only rounding is left. But there are two random states
# for four ranks. That run begins new ones, with the step in their seed: by `manual_seed(rank)` ranks 0 and 1 would
# draw their first noise again.
#
# ## `parameters()` is not the whole state
#
# A batch norm normalises with
# the mean and variance of the batch, and keeps running averages of them for evaluation. These are
# **buffers**: no gradient, no `sync_gradients`. After five steps on two ranks: are the parameters equal?
# And the buffers?

# %%
parameters, buffers = None, None  # equal: yes or no?


def with_batch_norm(rank, world_size, sync_buffers):
    images = [nn.Conv2d(1, 8, 5), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()]
    model = nn.Sequential(*images, nn.Linear(288, 10))
    sync_initial_weights(model, rank, world_size)
    for _ in training(model, sgd(model.parameters()), rank, world_size, range(5)):
        pass
    if sync_buffers:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
    return list(model.parameters()), dict(model.named_buffers())


for sync_buffers in (False, True):
    (p0, b0), (p1, b1) = simlib.run(with_batch_norm, 2, args=(sync_buffers,)).results
    print("parameters equal:", all(torch.equal(*pair) for pair in zip(p0, p1, strict=True)))
    print("  buffers equal:", {name: torch.equal(b0[name], b1[name]) for name in b0})
simlib.guess(parameters, "yes", of=("yes", "no"))
simlib.guess(buffers, "no", of=("yes", "no"))

# %% [markdown]
# The parameters are equal, and the running means and variances are not. So rank 0's accuracy is not rank 1's. Before
# you evaluate or save, broadcast the buffers (DDP does so before every
# forward pass); or average them. The whole state is `model.state_dict()`.
#
# ## Batch norm over all ranks, by hand
#
# In training each rank normalises with *its own* examples. With B small that is noisy, and not
# what one process has. **Synchronised** batch norm takes mean and variance over all ranks. Tempting: sum
# $x$, $x^2$ and the count, and $\sigma^2 = E[x^2] - \mu^2$. Rank 0 has 300 numbers of mean 1000 and deviation 0.05,
# rank 1 has 200, 0.1 higher: a variance of 0.0025 + 0.0024.
#
# **Now you write it:** combine count $n_r$, mean $\mu_r$ and $M_r = \sum (x - \mu_r)^2$ of each rank:
# $\mu = \sum n_r \mu_r / n$ and $M = \sum (M_r + n_r (\mu_r - \mu)^2)$.


# %% tags=["nbval-ignore-output"]
def from_squares(n, means, m2, squares):
    mean = (n * means).sum() / n.sum()
    return mean, squares.sum() / n.sum() - mean**2


def yours(n, means, m2, squares):
    return means.mean(), m2.mean() / n.mean()  # replace this line


def mean_and_variance(rank, world_size, way):
    x = brought[rank]
    mine = torch.tensor([len(x), x.mean(), x.var(correction=0) * len(x), (x * x).sum()])
    parts = [torch.empty(4) for _ in range(world_size)]
    dist.all_gather(parts, mine)
    return [float(one) for one in way(*torch.stack(parts).T)]


draws = [torch.randn(300 - 100 * r, generator=torch.Generator().manual_seed(r)) for r in (0, 1)]
brought = [1000 + 0.1 * r + 0.05 * draws[r] for r in (0, 1)]
variance, mean = torch.var_mean(torch.cat(brought).double(), correction=0)
print(f"one process: mean {mean:.3f}, variance {variance:.6f}")
for way in (from_squares, yours):
    got = simlib.run(mean_and_variance, 2, args=(way,)).results[0]
    verdict = "right" if abs(got[0] - mean) < 1e-3 > abs(got[1] / variance - 1) else "not yet"
    print(f"{way.__name__:12}: mean {got[0]:.3f}, variance {got[1]:.6f}", verdict)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `mean = (n * means).sum() / n.sum()` and `return mean, (m2 + n * (means - mean) ** 2).sum() / n.sum()`
#
# </details>
#
# A variance of -0.125 here, whose root is nan: both terms are a million, and float32 keeps seven digits. `nn.SyncBatchNorm`
# (GPUs only) gathers mean, variance and count. Its backward is in the appendix.
#
# ## Gradient accumulation
#
# An effective batch does not fit? Take k small batches one after the other, add up
# their gradients and make one step. Six programs against the gradient of the whole batch, 2
# ranks x 4 small batches x 10 examples; the last has a batch norm. Which are right?

# %%
guess = None  # which of the six are right?


def accumulated(rank, world_size, way, k=4):
    torch.manual_seed(0)
    model = lenet()
    if "batch norm" in way:
        model.insert(8, nn.BatchNorm1d(500))
    loss = F.cross_entropy(model(train_set[:80][0]), train_set[:80][1])
    want = parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))
    for micro in range(k):
        images, labels = train_set[20 * micro + rank : 20 * (micro + 1) : world_size]
        if "zeroed" in way:
            model.zero_grad()
        (F.cross_entropy(model(images), labels) / (k if "divided" in way else 1)).backward()
        if "each" in way or ("once" in way and micro == k - 1):
            sync_gradients(model, rank, world_size)
    got = parameters_to_vector(p.grad for p in model.parameters())
    return ((got - want).norm() / want.norm()).item()


ways = "zeroed, reduced once", "reduced once", "divided, never reduced", "divided, reduced once"
for way in (*ways, "divided, reduced each", "divided, reduced once, batch norm"):
    run = simlib.run(accumulated, 2, args=(way,))
    print(f"{way:33} error {run.results[0]:.2f}, all_reduces {len(run.trace.collectives)}")

# %% [markdown]
# - **Zeroed in each**: only the last small batch counts.
# - **Not divided**: each loss is a mean over its own small batch, so the sum of k of them is k times too
#   large: an error of k - 1 = 3.
# - **Never reduced**: right in time, wrong in space: the gradient of rank 0's examples only.
# - **Divided, reduced once**, after the last: exact. Reduced each time: exact too, at k times the price.
# - **With batch norm** accumulation is *not* the large batch: each small batch is normalised by itself,
#   36 % off; no division mends it.
#
# It saves activations, not parameters (lesson 10). With R ranks and k small batches, $B_\text{effective} = R \times k \times B$.
#
# ## Clipping: after the reduction
#
# Clipping shortens a gradient longer than a limit, so that one odd batch cannot throw the weights far
# away. Rank 1 has the odd batch: its pixels are 20 times too large. The limit is 1. Clip on each rank and then take
# the mean, or take the mean and then clip?

# %%
same, by_one = None, None  # yes or no? One process: "clip, then mean" or "mean, then clip"?


def clip(rank, world_size, when):
    torch.manual_seed(0)
    model = lenet()
    images, labels = train_set[rank:60:world_size]
    F.cross_entropy(model(images * (20 if rank else 1)), labels).backward()
    if when == "before":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    sync_gradients(model, rank, world_size)
    if when == "after":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return parameters_to_vector(p.grad for p in model.parameters())


unclipped, before, behind = (
    simlib.run(clip, 2, args=(when,)).results[0] for when in ("never", "before", "after")
)
for name, gradient in (("clip, then mean", before), ("mean, then clip", behind)):
    angle = torch.rad2deg(torch.acos(F.cosine_similarity(gradient, unclipped, dim=0).clamp(max=1)))
    print(f"{name}: length {gradient.norm():.2f}, turned by {angle:.0f} degrees")
simlib.guess(same, "no", of=("yes", "no"))
simlib.guess(by_one, "mean, then clip", of=("clip, then mean", "mean, then clip"))

# %% [markdown]
# Clipped on each rank, the gradient has another length *and* another
# direction: rank 0's half now counts as much as the odd one. One process clips the gradient of the whole batch, so:
# **reduce, then clip**.
#
# ## More ranks, larger batch: the learning rate
#
# Usually B is fixed: twice the ranks, twice the batch, half the steps in an epoch.
# We go from 10 to 100 examples per step, as 10 ranks with B = 10 would. Four runs of four epochs: the small
# batch with $\eta$ = 0.004, the large one with the same $\eta$, with $10\eta$, and with $10\eta$ reached
# gradually during the first epoch. Which ends lowest?

# %% tags=["nbval-ignore-output"]
lowest = None  # 1, 2, 3 or 4, in the order of the text


def constant(done):
    return 1.0


def warm_up(done):
    return min(1.0, 4 * done + 0.02)


runs = {
    "B_eff 10, eta": (0.004, 4, 10, constant),
    "B_eff 100, eta": (0.004, 4, 100, constant),
    "B_eff 100, 10 eta": (0.04, 4, 100, constant),
    "B_eff 100, 10 eta, warm-up": (0.04, 4, 100, warm_up),
}
scaling, found = tempfile.TemporaryDirectory(), []
with simlib.live_curves(scaling.name, x="examples"):
    for name, how in runs.items():
        run = simlib.run(train, 2, args=(f"{scaling.name}/{name}", *how))
        found.append(run.results[0][0])
        print(f"{name:27} {found[-1]:.1%}")
simlib.guess(lowest, 1 + found.index(min(found)), of=(1, 2, 3, 4))

# %% [markdown]
# With the same $\eta$ the large batch makes a tenth of the steps, none of them longer, and stays far
# behind. With $10\eta$ each step goes ten times as far: the **linear
# scaling rule**. If the weights hardly change during ten small steps, their gradients add up
# to one large step of ten times the rate. At the start they do change, and the loss jumps; the warm-up puts
# the jump off. With 297 digits one cannot see whether it helps. Goyal et al.
# (2017, arXiv 1706.02677) used it for ResNet-50, with batches of up to 8,192 at the small batch's
# accuracy.
#
# The rule is **SGD's**. Adam divides the gradient by its own size, which is mostly noise, and that falls with
# $1/\sqrt B$: so its rule is the **square root** (Malladi et al. 2022, arXiv 2205.10287). Both are first guesses; the
# first appendix tries them.
#
# ## A transformer, and shards of unequal weight
#
# Now one transformer block that reads letters, and guesses the next one. Lines differ in length, so shorter ones
# are filled up with -100, which `cross_entropy` leaves out (its `ignore_index`).

# %%
letters, codes = simlib.letters.alphabet(), simlib.letters.load()
lines = simlib.letters.lines()
print(len(lines), "lines:", *lines[:2], "...", lines[-1])


class Reader(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.letter = nn.Embedding(len(letters), width)
        self.place = nn.Embedding(codes.shape[1], width)
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.guess = nn.Linear(width, len(letters))

    def forward(self, lines):
        """The mean loss over all letters but the first of each line."""
        places = torch.arange(lines.shape[1] - 1)
        x = self.letter(lines[:, :-1].clamp(min=0)) + self.place(places)
        scores = self.guess(self.block(x, places[:, None] < places))  # no letter sees later ones
        return F.cross_entropy(scores.transpose(1, 2), lines[:, 1:])


# %% [markdown]
# Two shards of 8 lines: 79 letters to guess, and 169. By lesson 06 a mean of unequal shards must be weighed. What is B
# here: lines or letters? The cell takes two ranks, and one rank that accumulates over both shards.
#
# **Now you write it:** `your_weight` of a shard's mean loss, so that after `sync_gradients` the gradient is that of
# the mean over all letters. `own`, `total`: letters of the shard, of all; k: shards per rank.
#
# Then two ranks train. They learn `total` by an all_reduce *before* the backward. **Perplexity** is $e^\text{loss}$:
# among so many equally likely letters the model hesitates. What is it at first, and after 60 steps?


# %%
def your_weight(own, total, world_size, k):
    return 1 / k  # replace this line


def weighed(rank, world_size):
    torch.manual_seed(0)
    model, shards = Reader(), codes[:16].split(8)
    losses, whole = [model(shard) for shard in shards], model(codes[:16])
    want = parameters_to_vector(torch.autograd.grad(whole, list(model.parameters())))
    owns = [(shard[:, 1:] >= 0).sum().item() for shard in shards]
    for mine in range(rank, 2, world_size):
        factor = your_weight(owns[mine], sum(owns), world_size, 2 // world_size)
        (losses[mine] * factor).backward()
    sync_gradients(model, rank, world_size)
    got = parameters_to_vector(p.grad for p in model.parameters())
    error, means = (got - want).norm() / want.norm(), torch.stack(losses).detach()
    told = whole.exp().item(), means.mean().exp().item(), means.exp().mean().item()
    return error.item(), owns, "perplexity {:.2f}, by means {:.2f}, of shards {:.2f}".format(*told)


for n in (2, 1):
    error, owns, told = simlib.run(weighed, n).results[0]
    print(
        f"world of {n}: {'right' if error < 1e-4 else 'not yet'}, error {error:.2f}, {owns}, {told}"
    )


# %% tags=["nbval-ignore-output"]
at_first, at_last = None, None  # perplexities; there are 19 letters


def read(rank, world_size, steps):
    torch.manual_seed(0)
    model, draw = Reader(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        batch = codes[torch.randperm(len(codes), generator=draw)[:16]]
        mine = batch[rank::world_size]
        own = (mine[:, 1:] >= 0).sum().item()
        (total,) = summed(own)
        optimizer.zero_grad()
        (model(mine) * (world_size * own / total)).backward()
        sync_gradients(model, rank, world_size)
        optimizer.step()
    return model(codes).item()


for yours, steps in ((at_first, 0), (at_last, 60)):
    loss = torch.tensor(simlib.run(read, 2, args=(steps,)).results[0])
    print(
        f"{steps:2} steps: loss {loss:.2f}, perplexity {loss.exp():.1f} of {len(letters)} letters"
    )
    simlib.guess(yours, round(loss.exp().item(), 1), within=0.2)


# %% [markdown]
# <details><summary>Answer</summary>
#
# `return world_size * own / total` (times `world_size`, as `sync_gradients` divides by it)
#
# </details>
#
# B counts letters. A mean of means gives each letter of the short shard 2.1 times the weight: 21 % off, over ranks
# and over time alike. Untrained, the model is worse than a guess among 19; after 60 steps it is nearly sure of
# the next one. Average the loss by letters, then take $e^x$: a mean of perplexities is something else.
#
# ## Your turn
#
# [Exercises 07](../exercises/07_data_parallel_training.ipynb): gradients in one flat buffer, an accuracy that
# counts nobody twice, batch norm's statistics, and a run that goes on from a file.
#
# ## Exit ticket
#
# 1. A loop runs on 4 ranks with a plain `DataLoader(shuffle=True)`, B = 32, all seeds equal. What is $B_\text{effective}$?
# 2. The loss of rank 0 falls nicely. Name two ways in which the replicas may still differ.
# 3. A run on 8 ranks goes on with 16. What in its checkpoint does not fit?
# 4. R = 2 and R = 4 differ by 1e-5 after an epoch. How do you find out whether that is a mistake?
#
# <details><summary>Answers</summary>
#
# 1. 32: all ranks compute the same gradient.
# 2. Buffers, or the first weights, were not synchronised; ranks clipped or skipped a step by
#    themselves. Compare the spread (lesson 06) of the whole `state_dict()`.
# 3. The random states; with B fixed also the batch, so the rate and the meaning of "step".
# 4. Run both in float64. Rounding all but vanishes; a mistake stays.
#
# </details>
#
# **Next:** [lesson 08](08_from_loops_to_ddp.ipynb), which starts to send gradients before the last one is there.
#
# ## Appendix: two rules for the rate
#
# <details><summary>SGD and Adam in a bowl, then LeNet with Adam</summary>
#
# At the bottom of a bowl only noise moves the weights: which rate for B = 100 keeps them as far apart as B = 10?
# 10 times with SGD, 3.2 times with Adam. Then LeNet with Adam: $10 \times 0.003$ learns nothing, but from 0.0002,
# where noise does not rule, 10 serves better.
#
# </details>
#
# ## Appendix: backwards through an all_reduce
#
# <details><summary>How synchronised batch norm gets its gradients</summary>
#
# Every rank's output depends on the examples of *all* ranks. $x_r$ goes into the total of every rank, so $\partial
# (\sum_s L_s)/\partial x_r = \sum_s \partial L_s/\partial\,\text{total}$: the backward is an all_reduce, too. **That
# holds where each rank adds a loss of its own**, as here. Where all ranks compute the *same* loss from the
# total, the sum counts it R times; its backward passes the gradient on as it is (lesson 12).
# `dist.all_reduce` is unknown to autograd; `torch.autograd.Function` is how one tells it a backward. Without one,
# then with it: how far the forward is off (0, 0), the gradient (0.911, 0), and the gradient of a common loss (0, 2).
#
# </details>


# %% tags=["nbval-ignore-output"]
def spread(make_optimizer, lr, batch):
    draw, spreads = torch.Generator().manual_seed(0), []
    weights = torch.zeros(300, requires_grad=True)
    optimizer = make_optimizer([weights], lr=lr)
    for _ in range(1500):
        noise = torch.randn(300, generator=draw) * 10 / batch**0.5
        weights.grad = weights.detach() + noise
        optimizer.step()
        spreads.append(weights.detach().square().mean())
    return torch.stack(spreads[750:]).mean()


for make_optimizer in (torch.optim.SGD, torch.optim.Adam):
    for batch, times in ((10, 1), (100, 1), (100, 10**0.5), (100, 10)):
        apart = spread(make_optimizer, 0.01 * times, batch)
        print(f"{make_optimizer.__name__:4} B = {batch:3}, {times:4.1f} eta: {apart:.4f}")
for eta, (batch, times) in itertools.product((0.003, 0.0002), ((10, 1), (100, 10**0.5), (100, 10))):
    how = scaling.name, eta * times, 4, batch, constant
    run = simlib.run(train, 2, args=how, kwargs={"make_optimizer": adam, "log": False})
    print(f"LeNet, Adam, B = {batch:3}, {times:4.1f} x {eta}: {run.results[0][0]:.1%}")
scaling.cleanup()


# %%
class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return SumOverRanks.forward(ctx, gradient)


def against_one_process(rank, world_size, backwards):
    sums = SumOverRanks.apply if backwards else lambda x: SumOverRanks.apply(x.detach())
    x, after = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0))
    mine = slice(0, 6) if rank == 0 else slice(6, 9)
    off = x.requires_grad_()[mine] - sums(x[mine].sum(0)) / 9
    got = off / torch.sqrt(sums((off**2).sum(0)) / 9 + 1e-5)
    want = F.batch_norm(x, None, None, training=True)
    (change,) = torch.autograd.grad([(got * after[mine]).sum(), -(want * after).sum()], x)
    (common,) = torch.autograd.grad(sums(x.sum()) + 0 * x.sum(), x)
    return [f"{d.abs().max():.3f}" for d in (got - want[mine], change[mine], common)]


print(*(simlib.run(against_one_process, 2, args=(way,)).results[0] for way in (False, True)))
