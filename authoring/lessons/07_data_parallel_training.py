# %% [markdown]
# # 07 Data-parallel training
#
# Here you train by the rule of [lesson 06](06_synchronous_sgd.ipynb): every rank takes the gradient
# of its own examples, the mean of these gradients is that of the whole batch, and all ranks take
# the same step. In this lesson (110 minutes) you will
#
# - train LeNet on real handwritten digits, on real ranks, until it reads 97 of 100 new ones,
# - see that R ranks and one process get the same weights, and how exactly,
# - build two functions for this, first as published, then better ones,
# - stop a run in mid-epoch and continue it bit for bit,
# - meet a dozen programs that print a nice number and are wrong.
#
# Notation: R ranks, B examples per rank and step, $B_\text{effective} = R \times B$, learning rate $\eta$.
#
# ## The data and the model
#
# `simlib.digits.load()` loads scikit-learn's 1,797 scanned digits, as large as MNIST's (28 x 28).
# It **holds out** 297 of them: we never train with these. (`simlib.digits.load_mnist(folder)` reads
# MNIST's own files.) We scale pixels to mean 0 and standard deviation 1.

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
# The article (A. Das 2018-2019, lesson 06) adds two calls to an ordinary training loop. Before the
# first step, `sync_initial_weights` gives every rank the weights of rank 0. After each `backward`,
# `sync_gradients` replaces every gradient by the mean over all ranks. As published, the first
# function uses `send` and `recv`. The second calls `all_reduce` once for each parameter tensor.
#
# Four ranks take two steps. Each rank has its own random seed, so each draws different first
# weights. (simlib repeats these seeds in every run, torchrun does not.) Without the first function,
# are the ranks equal in the end? LeNet has 431,080 weights in 8 tensors. With both functions, how
# many messages and collectives are there?

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
# The mean gradient is the same on all ranks, so all took the same two steps. They began with
# different weights, so their weights stay different. No call reports this: compare the weights
# yourself (lesson 06). `torch.manual_seed(0)` on every rank also gives equal first weights, but not
# if one rank has drawn a number before. A broadcast always gives equal weights.
#
# The run is simulated: each rank has a node of its own, and computing takes no time. Rank 0 sends 8
# tensors to each of 3 ranks, in 24 messages with 3 x 1.7 MB. Ranks 1 to 3 wait 3.24 ms. Each step
# makes 8 all_reduces. The smallest one moves ten numbers, but costs a full latency.
#
# ## Better: one broadcast, one flat buffer
#
# In a broadcast all ranks help to send (lesson 04). All parameters fit into *one* tensor:
# `parameters_to_vector` joins them, and `vector_to_parameters` cuts it up again. Predict how much
# faster this is on 16 nodes with 10 Gbit/s Ethernet.

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
# The weights are the same, and only 3 collectives are left. On 16 nodes `weights_by_send` sends 15
# copies through one network card. In the broadcast each rank gets one piece, and then the ranks
# send the pieces to each other. So no card carries more than two copies. This saves 21 ms. For
# gradients we save only the latency of 7 all_reduces per step, 1.1 ms. (A flat buffer must wait for
# the last gradient. Lesson 08 cuts it into buckets.)
#
# ## Who gets which examples?
#
# Some texts say that a `DataLoader` shards. Three ranks share twelve examples, two per batch. First
# they use a plain `DataLoader(shuffle=True)`, then a `DistributedSampler`. How many of the twelve
# does each rank get?

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
# The plain loader knows nothing of ranks: each rank gets **everything**, in its own order. So an
# epoch trains three times on each example, without an error. The sampler shuffles all twelve with
# the same seed on all ranks. Then rank r takes the examples at places r, r + R, r + 2R, ...
#
# ## The same seed, the same data?
#
# `random_split` separates a held-out set. With `seed="same"` all ranks begin with the same seed.
# But rank 0 first draws one random number. Do all ranks hold out the same three examples?
#
# Then a **worker**, a process of the loader, adds random noise to each batch (augmentation). The
# worker's seed comes from the rank's generator, and both ranks begin with the same seed. Is the
# noise on both ranks the same? Should it be?

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
# Rank 0 drew one number more, so it trains on examples that the others hold out. This makes the
# held-out accuracy worthless. If something must be **equal** on all ranks (split, shuffle), give it
# a generator that nothing else uses. If it must **differ** (noise, dropout), put the rank into its
# seed. With a common seed all ranks add the same noise, and their mean does not reduce it. Dropout
# draws from torch's own generator. So call `torch.manual_seed(1000 + rank)` after the weights are
# equal.
#
# ## Fixed chunks, and the forgotten set_epoch
#
# There are two ways: cut the data once into R fixed chunks, or shuffle and deal out everything
# again in each epoch. For the second way the sampler must know the epoch, because it shuffles with
# its seed (0) plus the epoch's number. In each way, how many different examples does rank 0 see in
# three epochs? **Now you write it:** the line in `before_epoch`.


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
# Without this line every epoch repeats the first one, and nothing warns you.
#
# ## The loop
#
# After each step the generator `training` yields the number of steps done and the loss, so the
# cells below can log, save or stop. `steps` lists the steps to take. A resumed run begins in the
# middle, and skips the batches before. B is `batch // world_size`, so the effective batch is 60 for
# every R. `noise`, if given, is the rank's own generator for augmentation.


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
# The sampler deals the shuffled examples out in turn. So the first batches of all R ranks together
# hold the first 60 examples of the shuffled list, like the first batch of one process. By lesson 06
# the mean gradient is the same, so the weights are the same, also with momentum and Adam. We
# compare after 25 steps, with R = 1, 2 and 4, in float32 and float64. Predict the largest
# difference from the weights of one process.

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
# The weights are equal, up to rounding: sums in another order are rounded differently (lesson 05).
# After an epoch they differ by about 1e-13 or less in float64, and with SGD mostly by 1e-7 or less
# in float32. (Differences may be larger, because max-pooling and ReLU *choose*. If two values are
# nearly equal, rounding can change the choice.) With Adam the weights differ more. Adam divides
# each gradient by its own size, and a gradient of 1e-8 is mostly rounding error. So even the sign
# of a step may differ. After 25 steps two weights can be $2 \times 25\,\eta$ = 0.05 apart. To tell
# rounding from a mistake, use float64: rounding shrinks a hundred million times or more, but a
# mistake stays.
#
# ## Break it: nothing is learned
#
# This published loop has two mistakes, but raises no error. Find them:
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
# The cell runs 25 steps of 30 examples three times: as printed, with one mistake fixed, and with
# both.

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
# In the first run `zero_grad()` comes between `backward` and `step`, so the step finds no gradient.
# The second run fixes this, and the weights move. But `next(iter(loader))` makes a **new** iterator
# in every step, and a new iterator begins with the first batch. So the model learns the same 30
# examples by heart. In the third run the rank sees its 750 examples.
#
# ## Evaluate without counting anybody twice
#
# Four ranks share 297 held-out digits: rank 0 gets 75, the others 74. `DistributedSampler`
# **pads**: it repeats the first examples until all ranks have equally many. How many examples does
# it then count? Another measure is the AUC. Take a picture of a 1 and one of another digit: the AUC
# says how often the 1 gets the higher score for "1". May you average the ranks' AUCs?

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
# The padded version counts 300, because it counts the first three twice. So shard without the
# sampler: rank r takes r, r + R, r + 2R, ... The shares may differ by one, so sum the *counts*, and
# divide at the end. An AUC compares every 1 with every other digit, also on other ranks. So an
# average of the ranks' AUCs is not the AUC of all. If a metric is a sum over examples, reduce it.
# If not, gather the scores. The same shards serve **inference**: `everyone` has one row per digit,
# each rank fills in its own rows, and one `reduce` collects all 297 on rank 0.
#
# ## Train for real, and watch
#
# Now two ranks train for 8 epochs, each with 30 examples per step. The learning rate rises in the
# first tenth of the steps (a *warm-up*, see below) and then falls to zero. Four things are new:
#
# - **Metrics are reduced.** `loss` belongs to the rank's own examples; we log the mean over all
#   ranks.
# - **One rank writes**, with TensorBoard's `SummaryWriter`, and only that rank imports it.
# - **A progress bar** runs, also on rank 0 only. During the run `simlib.live_curves(folder)` draws
#   the curves.
# - **A checkpoint** saves *everything* that the next step depends on: weights, optimizer (its
#   momentum!), schedule, the step (so the epoch, and the place in it), and the state of each rank's
#   `noise`. (Dropout would need `torch.get_rng_state()` of each rank, too.)
#
# (`how` has the learning rate, epochs, effective batch, and a function for the factor on the rate.)


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
# If all ranks wrote one file, they could corrupt it. If only rank 0 *loaded* it, the others would
# continue from other weights. A crash while writing must not destroy the old file, so write a new
# one, then rename it. The barrier keeps ranks from loading early.
#
# We train 20 steps in one go. Then we train 7 steps, up to the middle of epoch 1, and save. From
# this file we make the other 13 steps seven times: with everything, with one of four parts
# forgotten, and twice on 4 ranks, with noise and without. How many of the seven give exactly the
# same weights?

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
# Only the run with everything is bit for bit the same. With **another world size** weights,
# optimizer, schedule and step still fit, because a step counts one batch of all ranks. So without
# noise the only difference is rounding. But the file has two random states, and four ranks need
# four. So the four ranks make new ones, with the step in the seed. With `manual_seed(rank)` alone,
# ranks 0 and 1 would draw the noise of the first steps again.
#
# ## `parameters()` is not the whole state
#
# A batch norm normalises with the mean and variance of the batch, and keeps running averages of
# them for evaluation. These are **buffers**: they have no gradient, so `sync_gradients` skips them.
# After five steps on two ranks, are the parameters equal? Are the buffers equal?

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
# The parameters are equal, but the running means and variances are not. So rank 0 and rank 1 have
# different accuracies. Before you evaluate or save, broadcast the buffers or average them. (DDP
# broadcasts them before every forward pass.) The whole state is `model.state_dict()`.
#
# ## Batch norm over all ranks, by hand
#
# In training each rank normalises with *its own* examples. With a small B their mean is noisy, and
# differs from that of one process. **Synchronised** batch norm takes mean and variance over all
# ranks. It is tempting to sum $x$, $x^2$ and the count, and to compute $\sigma^2 = E[x^2] - \mu^2$.
# Rank 0 has 300 numbers with mean 1000 and deviation 0.05. Rank 1 has 200 numbers that are 0.1
# higher. The variance is about 0.0025 within each rank plus 0.0024 between ranks.
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
# `from_squares` gives a variance of -0.125, and the root of that is nan. It subtracts two numbers
# near a million, and float32 keeps only seven digits. `nn.SyncBatchNorm` (GPUs only) gathers mean,
# variance and count. Its backward is in the appendix.
#
# ## Gradient accumulation
#
# If a batch does not fit into memory, take k small batches in turn, add up their gradients and make
# one step. Six programs run on 2 ranks, with 4 small batches of 10 examples on each. We compare
# with the gradient of all 80 examples. The last program has a batch norm. Which are right?

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
# - **Not divided**: each loss is a mean, so the sum of k losses is k times too large. The error is
#   $k-1=3$.
# - **Never reduced**: the sum has only rank 0's examples.
# - **Divided, reduced once**, after the last small batch: this is exact. Reducing after each is
#   exact, too, but costs k times as much.
# - **With batch norm** each small batch is normalised by itself. The gradient is 36 % off, and no
#   division corrects this.
#
# Accumulation saves memory of activations, not of parameters (lesson 10). Here
# $B_\text{effective} = R \times k \times B$.
#
# ## Clipping: after the reduction
#
# Clipping limits the length of a gradient, so that one odd batch cannot throw the weights far away.
# Rank 1 has the odd batch: its pixels are 20 times too large. The limit is 1. The ranks can clip
# first and then take the mean, or the other way round. Is the result the same? What does one
# process do?

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
# If each rank clips, the mean has another length *and* another direction, because the odd batch
# loses most of its length before the mean. One process clips the mean gradient, so **reduce, then
# clip**.
#
# ## More ranks, larger batch: the learning rate
#
# Usually B is fixed, so twice the ranks have twice the batch, and half the steps in an epoch. We go
# from 10 to 100 examples per step, like 10 ranks with B = 10. Four runs make four epochs each. Run
# 1 has the small batch and $\eta$ = 0.004. The others have the large batch: run 2 with $\eta$, run
# 3 with $10\eta$, and run 4 with a rate that rises to $10\eta$ during the first epoch. Which run
# ends with the lowest accuracy?

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
# With the same $\eta$ the large batch makes a tenth of the steps, and its steps are not longer. So
# it stays far behind. With $10\eta$ each step goes ten times as far. This is the **linear scaling
# rule**. If the weights hardly change during ten small steps, these ten steps together are nearly
# one step with ten times the rate. At the start the weights do change, and the loss jumps. With
# warm-up the loss jumps later. 297 digits are too few to show whether warm-up helps. Goyal et al.
# (2017, arXiv 1706.02677) used it for ResNet-50, with batches of up to 8,192 at the small batch's
# accuracy.
#
# The rule is for **SGD**. Adam divides the gradient by its own size. This size is mostly noise, and
# the noise falls with $1/\sqrt B$. So Adam's rule uses the **square root** (Malladi et al. 2022,
# arXiv 2205.10287). Both rules are first guesses. The first appendix tries them.
#
# ## A transformer, and shards of unequal weight
#
# Now a transformer block reads letters and guesses the next one. The lines differ in length, so
# shorter lines are padded with -100. `cross_entropy` ignores this value (its `ignore_index`).

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
# Two shards have 8 lines each, but 79 and 169 letters to guess. By lesson 06 the mean of unequal
# shards needs factors. Does B count lines or letters? The cell runs two ranks with a shard each,
# then one rank that accumulates over both.
#
# **Now you write it:** `your_weight` returns the factor for a shard's mean loss. After
# `sync_gradients` the gradient must be that of the mean loss over all letters. `own` is the number
# of letters in the shard, `total` in both shards. `k` is the number of shards per rank.
#
# Then two ranks train, and all_reduce `total` *before* the backward. **Perplexity** is
# $e^\text{loss}$. With perplexity 5 the model is as unsure as between 5 equally likely letters.
# What is the perplexity at first, and after 60 steps?


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
# B counts letters. In a mean of the two means, each letter of the short shard counts 2.1 times as
# much. The gradient is then 21 % off, whether two ranks have one shard each or one rank has both. The
# untrained model is worse than a random guess among 19 letters. After 60 steps it is nearly sure of the
# next letter. Average the loss over letters first, then take $e^\text{loss}$. A mean of perplexities is
# another number.
#
# ## Your turn
#
# In [exercises 07](../exercises/07_data_parallel_training.ipynb) you put gradients into one flat buffer,
# compute an accuracy in which no example counts twice, compute batch norm's statistics, and continue a run
# from a file.
#
# ## Exit ticket
#
# 1. A loop runs on 4 ranks with a plain `DataLoader(shuffle=True)`, B = 32, and equal seeds. What
#    is $B_\text{effective}$?
# 2. The loss of rank 0 falls nicely. Name two ways in which the replicas may still differ.
# 3. A run on 8 ranks continues on 16. Which parts of its checkpoint do not fit?
# 4. R = 2 and R = 4 differ by 1e-5 after an epoch. How do you find out whether that is a mistake?
#
# <details><summary>Answers</summary>
#
# 1. 32: all ranks compute the same gradient.
# 2. Buffers, or the first weights, were not synchronised; ranks clipped or skipped a step by
#    themselves. Compare the spread (lesson 06) of the whole `state_dict()`.
# 3. The random states. If B is fixed, the effective batch doubles. Then the rate and the meaning of
#    "step" do not fit either.
# 4. Run both in float64. Rounding nearly vanishes; a mistake stays.
#
# </details>
#
# **Next:** data that have no length and no sampler, in
# [the second part](07_streams_of_data.ipynb).
#
# ## Appendix: two rules for the rate
#
# <details><summary>SGD and Adam in a bowl, then LeNet with Adam</summary>
#
# At the bottom of a bowl only noise moves the weights. The cell measures how far they spread. With
# B = 100, which rate gives the same spread as B = 10? SGD needs 10 times the rate, Adam 3.2 times.
# LeNet with Adam learns nothing at $10 \times 0.003$. But if the small batch has a rate of 0.0002,
# noise does not dominate, and the factor 10 is better than 3.2.
#
# </details>
#
# ## Appendix: backwards through an all_reduce
#
# <details><summary>How synchronised batch norm gets its gradients</summary>
#
# The total depends on $x_r$, and the output of *every* rank depends on the total. So $\partial
# (\sum_s L_s)/\partial x_r = \sum_s \partial L_s/\partial\,\text{total}$: the backward is an
# all_reduce, too. **This is right if each rank adds its own loss**, as here. If all ranks compute
# the *same* loss from the total, the sum counts that loss R times. In this case the backward must
# pass the gradient on as it is (lesson 12).
#
# Autograd does not know `dist.all_reduce`. `torch.autograd.Function` lets you define a backward.
# The cell prints three errors, first without a backward, then with it. The forward has no error.
# The error of the gradient is 0.911 without a backward and 0 with it. The error of the gradient of
# a common loss is 0 without a backward and 2 with it.
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
