# %% [markdown]
# # 07 Data-parallel training
#
# [Lesson 06](06_synchronous_sgd.ipynb) derived the rule: every rank takes the gradient of its own
# examples, the mean of these gradients is the gradient of the whole batch, and all ranks take the same
# step. Here you train with it. In this lesson (50 minutes) you will
#
# - train LeNet, a small network for images, on real handwritten digits, on real ranks, until it reads
#   97 of 100 digits it has never seen,
# - see that R ranks and one process arrive at the same weights, and how equal "the same" is,
# - build the two functions that this takes as they were first published, and then better,
# - meet a dozen programs that run, or print a nice number, and are wrong.
#
# Notation: R ranks, B examples per rank and step, $B_\text{effective} = R \times B$, learning rate $\eta$,
# weights $\theta$.
#
# ## The data and the model
#
# Scikit-learn brings 1,797 scanned digits, real handwriting. `simlib.digits.load()` makes them as large
# as MNIST's (28 x 28) and holds 297 out. Do you have MNIST's four files? Then
# `parts = [TensorDataset(*part[:1500]) for part in simlib.digits.load_mnist(folder)]` takes them in place of
# `load()` (all 60,000 take hours; the text tells the small set's numbers). We shift and scale the pixels to
# mean 0 and standard deviation 1.

# %%
import itertools
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


print(sum(parameter.numel() for parameter in lenet().parameters()), "parameters")

# %% [markdown]
# ## The two functions, as published
#
# The article (A. Das 2018-2019, lesson 06) adds two calls to an ordinary training loop. Before the first step,
# `sync_initial_weights` gives every rank the weights of rank 0. After each `backward`,
# `sync_gradients` replaces every gradient by the mean over all ranks. The cell has functions of that
# kind: the first with `send` and `recv`, the second with one `all_reduce` per parameter tensor.
#
# Four ranks take two steps. Each begins with weights of its own (`manual_seed(rank)`), so the first
# function has work to do. LeNet has 8 parameter tensors. Predict: how many messages, how many
# collectives?

# %%
guess = None  # messages: ... collectives: ...


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
    torch.manual_seed(rank)
    model = lenet()
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


run = simlib.run(two_steps, 4, args=(weights_by_send, gradients_one_by_one))
print("messages by rank", run.messages, "bytes", run.bytes_sent)
print(len(run.trace.collectives), "collectives")
print("all ranks equal:", all(torch.equal(run.results[0], other) for other in run.results))
run

# %% [markdown]
# Look at rank 0: 24 messages, one after the other, and nobody helps. 3 ranks x 8 tensors, 3 x 1.7 MB. Then 8 collectives
# in each step. Rank 0 has finished a tensor only when it has told everybody in turn, and most of the
# tensors are tiny: the smallest all_reduce moves ten numbers and pays a full latency.
#
# ## Better: one broadcast, one flat buffer
#
# In a broadcast everyone helps to tell the others (lesson 04). And all parameters fit into *one* tensor:
# `parameters_to_vector` joins a list of tensors into a flat one, `vector_to_parameters` cuts it up again.
# Now predict the counts, and the time on 16 nodes with 10 Gbit/s Ethernet.

# %%
guess = None  # messages: ... collectives: ... how many times faster on 16 nodes?


def sync_initial_weights(model, rank, world_size):
    with torch.no_grad():
        flat = parameters_to_vector(model.parameters())
    dist.broadcast(flat, src=0)
    vector_to_parameters(flat, model.parameters())


def sync_gradients(model, rank, world_size):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = parameters_to_vector(gradients)
    dist.all_reduce(flat)
    vector_to_parameters(flat / world_size, gradients)


better = simlib.run(two_steps, 4, args=(sync_initial_weights, sync_gradients))
print("messages by rank", better.messages, "and", len(better.trace.collectives), "collectives")
print("the same weights:", torch.allclose(better.results[0], run.results[0], atol=1e-6))
better


# %%
def only(rank, world_size, function):
    model = lenet()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    function(model, rank, world_size)


functions = weights_by_send, sync_initial_weights, gradients_one_by_one, sync_gradients
for function in functions:
    time_s = simlib.simulate(only, 16, args=(function,)).time_s
    print(f"{function.__name__:22} {time_s * 1e3:7.3f} ms on 16 nodes")

# %% [markdown]
# The same weights, with 3 collectives instead of 24 messages and 16 collectives. On 16 nodes (virtual
# clock) the first version sends 15 copies out of one network card. The broadcast, whose algorithm is chosen for this
# size, deals the pieces out and lets the ranks gather them from each other, so no card carries more than
# two copies: 7.7 times faster. With gradients the bytes are the same, and what is saved is latency:
# 7 all_reduces fewer, 1.4 times faster. (One flat buffer must wait for the last
# gradient. Lesson 08 cuts it into buckets and begins earlier.)
#
# ## Who gets which examples?
#
# "A `DataLoader` shards", one reads. Does it?
# Three ranks, twelve examples, numbered 0 to 11, two per batch. First a plain
# `DataLoader(shuffle=True)`, then one with a `DistributedSampler`. Which numbers does each rank get?

# %%
guess = None  # how many of the twelve does a rank get?
numbers = TensorDataset(torch.arange(12))


def epoch_of(rank, world_size, shards):
    sampler = DistributedSampler(numbers, world_size, rank) if shards else None
    loader = DataLoader(numbers, 2, sampler=sampler, shuffle=not shards)
    return [batch.tolist() for (batch,) in loader]


for shards in (False, True):
    print("with DistributedSampler" if shards else "plain DataLoader(shuffle=True)")
    for rank, batches in enumerate(simlib.run(epoch_of, 3, args=(shards,)).results):
        print(f"  rank {rank}: {batches}")

# %% [markdown]
# The plain loader knows nothing of ranks: each rank gets **everything**, and here even in the same order,
# because all began with the same seed. Three ranks do the same work three times; the mean of three equal
# gradients is that gradient, and $B_\text{effective}$ is 2, not 6. No error. The sampler shuffles all twelve with a seed of its own, equal on all ranks (8 0 5 9 7 4 2 10
# 3 1 11 6), and rank r takes every R-th from place r on.
#
# ## The same seed, the same data?
#
# `random_split` cuts a held-out set off. All ranks begin with the same seed, so all cut the same. Rank 0
# also draws one random number first, say to choose a picture to show. Predict what each rank holds out.

# %%
guess = None  # do all ranks hold out the same three?


def hold_out(rank, world_size, own_generator):
    if rank == 0:
        torch.rand(1)
    generator = torch.Generator().manual_seed(3) if own_generator else torch.default_generator
    _, held_out = random_split(range(12), [9, 3], generator)
    return sorted(held_out.indices)


print("the ranks' common seed:", simlib.run(hold_out, 3, args=(False,)).results)
print("a generator for this:  ", simlib.run(hold_out, 3, args=(True,)).results)

# %% [markdown]
# One number drawn more, and rank 0 trains on what the others hold out: the held-out accuracy becomes a
# lie. The same seed means the same data only as long as every rank has drawn equally often. Give the split a
# generator of its own, used for nothing else.
#
# ## Fixed chunks, and the forgotten set_epoch
#
# Two ways to hand out shards: cut the data once into R chunks that stay with their ranks, or shuffle
# everything anew in each epoch and deal it out. For the second, `sampler.set_epoch(epoch)` tells the sampler
# which shuffle it is. What does rank 0 see in three epochs, with fixed chunks, with the sampler and without
# that call, and with it?

# %%
guess = None  # how many different examples has rank 0 met after three epochs?


def three_epochs(rank, world_size, way):
    sampler = DistributedSampler(numbers, world_size, rank)
    chunk = list(range(12))[4 * rank : 4 * rank + 4]
    for epoch in range(3):
        if way == "set_epoch":
            sampler.set_epoch(epoch)
        yield chunk if way == "fixed chunks" else list(sampler)


def shards_of(rank, world_size, way):
    return list(three_epochs(rank, world_size, way))


for way in ("fixed chunks", "forgotten", "set_epoch"):
    epochs = simlib.run(shards_of, 3, args=(way,)).results[0]
    print(f"{way:12} {epochs}, {len(set(sum(epochs, [])))} different")

# %% [markdown]
# Without `set_epoch` every epoch is the first one again: the same shard, the same batches, the same order.
# Nothing tells you. Fixed chunks have a use, where each node can hold only its part on its own disk; then
# cut them at random, and shuffle within.
#
# ## The loop
#
# Now all parts are there. `training` is a generator: it takes one step, then yields the step's number and
# the loss, so that the cells below can log, save or stop without a new loop. B is `batch // world_size`:
# the effective batch stays 60 whatever R is, and where R does not divide it, the loop refuses.


# %%
def training(model, optimizer, rank, world_size, epochs, batch=60):
    """Train data-parallel; after every step, yield its number and this rank's own loss."""
    if batch % world_size:
        raise ValueError(f"{world_size} ranks cannot share a batch of {batch} equally")
    dtype = next(model.parameters()).dtype
    sampler = DistributedSampler(train_set, world_size, rank, seed=1)
    loader = DataLoader(train_set, batch // world_size, sampler=sampler)
    for epoch in epochs:
        sampler.set_epoch(epoch)
        for number, (images, labels) in enumerate(loader, start=1):
            loss = F.cross_entropy(model(images.to(dtype)), labels)
            optimizer.zero_grad()
            loss.backward()
            sync_gradients(model, rank, world_size)
            optimizer.step()
            yield epoch * len(loader) + number, loss.item()


def sgd(parameters, lr=0.01):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.001)


# %% [markdown]
# ## Is it the same as one process?
#
# The sampler deals the shuffled examples out in turn. So the first batches of R ranks together are the
# first 60 of the shuffled list: exactly the batch that one process has. By lesson 06 the mean gradient is the
# same, hence the weights, step after step, also with momentum and Adam. We compare after a whole epoch of
# 25 steps, at R = 1, 2, 4, in both precisions of floating-point numbers. Predict the largest difference
# between any two weights.

# %% tags=["nbval-ignore-output"]
guess = None  # largest difference in float32? In float64?


def one_epoch(rank, world_size, make_optimizer, dtype):
    torch.manual_seed(rank)
    model = lenet().to(dtype)
    sync_initial_weights(model, rank, world_size)
    optimizer = make_optimizer(model.parameters())
    for _ in training(model, optimizer, rank, world_size, epochs=[0]):
        pass
    return parameters_to_vector(model.parameters()).detach()


after = {}
for make_optimizer, dtype in itertools.product((sgd, adam), (torch.float32, torch.float64)):
    for n in (1, 2, 4):
        run = simlib.run(one_epoch, n, args=(make_optimizer, dtype))
        after[make_optimizer, dtype, n] = run.results[0]
    one, *others = (after[make_optimizer, dtype, n] for n in (1, 2, 4))
    worst = [(other - one).abs().max().item() for other in others]
    print(f"{make_optimizer.__name__:4} {dtype}: R = 2 {worst[0]:.0e}, R = 4 {worst[1]:.0e}")
    assert dtype == torch.float32 or max(worst) < 1e-10

# %% [markdown]
# Equal, up to rounding: sums in another order are rounded differently (lesson 05). In float64 an epoch leaves
# about 1e-13 or less. In float32 SGD mostly leaves 1e-7 or less; but max-pooling and ReLU *choose*, and where
# two values nearly tie, a rounding turns the choice. Adam left 1e-3 here; from other starts we saw 1e-5 and 1e-4.
# It divides each gradient by its own size plus $\varepsilon$ = 1e-8. In float32 a gradient as small as $\varepsilon$ is mostly
# rounding error of larger numbers, so its step differs visibly; what follows is chance. In float64 rounding is far
# below $\varepsilon$. So: rounding, or a mistake in the program? Go to float64: rounding shrinks by half a billion or
# more, a mistake stays.
#
# ## Break it: nothing is learned
#
# A training loop of a kind that circulates, without an error message and with two mistakes. Find them:
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
# The cell runs it as it is, with one mistake mended, and with both. What do 25 steps do to the weights?

# %%
guess = None  # what has changed after 25 steps? Which mistake hides the other?


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
# First line, as it is: `zero_grad()` stands between `backward` and `step`, so the step finds no
# gradient and does nothing. Second line, that one mended: weights move, but `next(iter(loader))` makes a **new**
# iterator in every step, which begins with the first batch again: 30 examples, learned by heart. The first
# mistake hid the second: while nothing moves, nobody sees the batch repeat. Third line, both mended: 750
# examples, the rank's half.
#
# ## Evaluate without counting anybody twice
#
# 297 held-out digits on 4 ranks: 75 for rank 0, 74 for the others. `DistributedSampler` wants equal
# shares. It **pads**: it begins again at the front until R divides the number. In training that is harmless. What
# does it do to an accuracy? We take the weights after one epoch from above.

# %% tags=["nbval-ignore-output"]
guess = None  # how many digits are counted?


def count(rank, world_size, weights, padded):
    model = lenet()
    vector_to_parameters(weights, model.parameters())
    sampler = DistributedSampler(test_set, world_size, rank, shuffle=False)
    mine = list(sampler) if padded else range(rank, len(test_set), world_size)
    images, labels = test_set[mine]
    with torch.no_grad():
        answers = model(images).argmax(1)
    counts = torch.tensor([(answers == labels).sum(), len(mine)])
    dist.all_reduce(counts)
    everyone = torch.zeros(len(test_set), dtype=torch.int64)
    everyone[mine] = answers
    dist.reduce(everyone, dst=0)  # inference: every digit is answered by one rank, rank 0 collects
    return counts.tolist(), everyone


weights = after[adam, torch.float32, 1]
for padded in (True, False):
    (right, total), shared = simlib.run(count, 4, args=(weights, padded)).results[0]
    print(f"padded {padded}: {right} of {total} right, {right / total:.2%}")
_, alone = simlib.run(count, 1, args=(weights, False)).results[0]
print("the answers of one process:", torch.equal(alone, shared))

# %% [markdown]
# 300 were counted: the first three twice. With R = 64 it is 23 of 320. The mend is to shard without the sampler: rank r takes r, r + R,
# r + 2R, ... The shares may differ by one; so sum the *counts*, and divide at the end. A mean of the ranks'
# accuracies would again weigh them wrongly.
#
# The same cut serves **inference**: `everyone` has one place per digit, each rank fills in its own and leaves
# zeros elsewhere, and one `reduce` puts all 297 answers in order on rank 0. They are those of one process.

# %% [markdown]
# ## Train for real, and watch
#
# Now 8 epochs on two ranks, 30 examples each per step. The learning rate rises over the first tenth (a *warm-up*,
# see the end of the lesson) and falls to zero at the end. What is new:
#
# - **Metrics are reduced.** `loss` belongs to the rank's own examples. What is logged is the mean over all
#   ranks, and the accuracy comes from summed counts.
# - **One rank writes.** Rank 0 logs with TensorBoard's `SummaryWriter`, and imports it alone. If
#   all wrote, each curve would be there R times.
# - **A progress bar, also on rank 0 only.** It shows while the ranks run. `leave=False` wipes it out at the end,
#   for its seconds differ every time.
# - `simlib.live_curves(folder)` reads the files that rank 0 writes, and draws the curves while the kernel
#   waits for the ranks.
# - **One rank saves** a checkpoint: weights, optimizer (its momentum!) and the next epoch.


# %%
def accuracy_of(model, rank, world_size):
    images, labels = test_set[rank::world_size]
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum()
    counts = torch.tensor([right, len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def mean_over_ranks(number):
    total = torch.tensor(number)
    dist.all_reduce(total, dist.ReduceOp.AVG)
    return total.item()


def save(path, model, optimizer, next_epoch):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "next_epoch": next_epoch}, path)


def up_and_down(done):
    """The factor on the learning rate when this part of all steps (0 to 1) is done."""
    return min(10 * done + 0.02, 1 - done)


# %% tags=["nbval-ignore-output"]
def train(rank, world_size, folder, lr=0.02, epochs=8, batch=60, factor=up_and_down):
    model = lenet()
    sync_initial_weights(model, rank, world_size)
    optimizer = sgd(model.parameters(), lr)
    epoch_steps = -(-len(train_set) // batch)  # rounded up
    steps = epochs * epoch_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step / steps))
    if rank == 0:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(folder, flush_secs=1)
    bar = tqdm(total=steps, desc="steps", disable=rank > 0, leave=False)
    for step, loss in training(model, optimizer, rank, world_size, range(epochs), batch):
        schedule.step()
        bar.update()
        values = {"loss": mean_over_ranks(loss)}
        if step % epoch_steps == 0:
            values["held-out accuracy"] = accuracy_of(model, rank, world_size)
        for name, value in values.items() if rank == 0 else ():
            writer.add_scalar(name, value, step * batch)  # examples seen by all ranks
    if rank == 0:
        writer.close()
        save(f"{folder}/last.pt", model, optimizer, epochs)
    return values["held-out accuracy"]


# %% [markdown]
# Run it and watch: the bar and the curves move while the two ranks work. (On the web you see the last
# picture.) The same files open in TensorBoard itself: `tensorboard --logdir FOLDER`, with a folder of your
# own in place of the temporary one.

# %% tags=["nbval-ignore-output"]
folder = tempfile.TemporaryDirectory()
with simlib.live_curves(folder.name, x="examples"):
    run = simlib.run(train, 2, args=(folder.name,))
print(f"held-out accuracy {run.results[0]:.1%}")
assert run.results[0] >= 0.95

# %% [markdown]
# About 97 of 100 digits that no rank has ever seen are read rightly. Four ranks take the same steps (try it), but
# not sooner on this machine if it has two cores: simlib gives each rank one thread, and four threads share
# two cores. When more ranks pay is the question of lesson 09.
#
# ## A checkpoint: one saves, all load
#
# If all ranks wrote the same file at once, it could be broken. If only rank 0 *loaded* it, the others would
# go on from other weights. So: one saves, all load (or rank 0 loads and broadcasts both). We train two epochs in one go, then one epoch, a save, and
# the second epoch from the file in a new world: with the optimizer's state, and without. Is the momentum
# worth saving?


# %%
def train_until(rank, world_size, end, load=None, parts=(), store=None):
    torch.manual_seed(rank)
    model = lenet()
    optimizer = sgd(model.parameters())
    sync_initial_weights(model, rank, world_size)
    state = torch.load(load, weights_only=True) if load else None  # every rank reads
    if "model" in parts:
        model.load_state_dict(state["model"])
    if "optimizer" in parts:
        optimizer.load_state_dict(state["optimizer"])
    epochs = range(state["next_epoch"] if load else 0, end)
    for _ in training(model, optimizer, rank, world_size, epochs, batch=300):
        pass
    if rank == 0 and store:
        save(store, model, optimizer, end)
    return parameters_to_vector(model.parameters()).detach()


path = f"{folder.name}/half.pt"
in_one_go = simlib.run(train_until, 2, args=(2,)).results[0]
simlib.run(train_until, 2, args=(1,), kwargs={"store": path})
for parts in (["model"], ["model", "optimizer"]):
    resumed = simlib.run(train_until, 2, args=(2, path, parts)).results[0]
    print(parts, "as in one go:", torch.equal(in_one_go, resumed))

# %% [markdown]
# Bit for bit, but only with the optimizer's state: without it the momentum begins at zero again, and the
# run takes another path. The epoch is there for `set_epoch`: without it the first shuffle would come twice.
#
# ## `parameters()` is not the whole state
#
# All we have synchronised came from `model.parameters()`. Put a batch norm into the network. It normalises with
# the mean and variance of the batch, and keeps running averages of them for evaluation. These are
# **buffers**: no gradient, no `sync_gradients`. After five steps on two ranks: are the parameters equal?
# And the buffers?

# %%
guess = None  # parameters equal? Buffers equal?


def with_batch_norm(rank, world_size, sync_buffers):
    images = [nn.Conv2d(1, 8, 5), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()]
    model = nn.Sequential(*images, nn.Linear(288, 10))
    sync_initial_weights(model, rank, world_size)
    steps = training(model, sgd(model.parameters()), rank, world_size, [0])
    for _ in itertools.islice(steps, 5):
        pass
    if sync_buffers:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
    return list(model.parameters()), dict(model.named_buffers())


for sync_buffers in (False, True):
    (p0, b0), (p1, b1) = simlib.run(with_batch_norm, 2, args=(sync_buffers,)).results
    print("parameters equal:", all(torch.equal(*pair) for pair in zip(p0, p1, strict=True)))
    print("  buffers equal:", {name: torch.equal(b0[name], b1[name]) for name in b0})

# %% [markdown]
# The parameters are equal, and the replicas are not the same model. Rank 0's loss and accuracy look fine and say
# nothing of rank 1. Before you evaluate or save, broadcast the buffers (DDP does so before every
# forward pass); or average them. The whole state is `model.state_dict()`.
#
# ## Batch norm over all ranks, by hand
#
# A second trouble: in training each rank normalises with *its own* examples. With B small these means are
# noisy, and R ranks are not equal to one process with the whole batch. **Synchronised** batch norm takes the
# mean over all ranks: sums of $x$, of $x^2$ and the count, in one all_reduce:
#
# $$\mu = \frac{\sum_r \sum x}{\sum_r n_r}, \qquad \sigma^2 = \frac{\sum_r \sum x^2}{\sum_r n_r} - \mu^2$$
#
# And backwards? Every rank's output depends on the examples of *all* ranks, so the gradients with respect to
# the sums must be added up over the ranks as well. The backward pass of an all_reduce is an all_reduce.
# In a formula: $x_r$ goes into the total of every rank, so $\partial L/\partial x_r = \sum_s \partial L_s/\partial\,\text{total}$.
#
# `torch.autograd.Function` is how one tells torch a backward of one's own: `apply` calls `forward`, `ctx` carries
# things over to `backward`, which gives one gradient per argument of `forward` (None for `back`).
# Predict what goes wrong without the all_reduce in it: forward, backward, or both?


# %%
class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, back):
        ctx.back, total = back, x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        if ctx.back:
            dist.all_reduce(total)
        return total, None


def sync_batch_norm(x, back=True, eps=1e-5):
    """Normalise each channel of x (examples, channels, height, width) over all ranks' examples."""
    per_channel = x.transpose(0, 1).flatten(1)
    counts = torch.full_like(per_channel[:, 0], per_channel.shape[1])
    sums = torch.stack([per_channel.sum(1), (per_channel**2).sum(1), counts])
    total, squares, count = SumOverRanks.apply(sums, back)[:, None, :, None, None]
    mean = total / count
    return (x - mean) / torch.sqrt(squares / count - mean**2 + eps)


# %%
guess = None  # which is wrong without the backward all_reduce?


def against_one_process(rank, world_size, back):
    torch.manual_seed(0)  # the same numbers everywhere: the whole batch, and what comes after
    whole, after = torch.randn(2, 9, 3, 4, 4, dtype=torch.float64)
    mine = slice(0, 6) if rank == 0 else slice(6, 9)
    x, y = (whole.clone().requires_grad_() for _ in range(2))
    expected = F.batch_norm(y, None, None, training=True)
    (expected * after).sum().backward()
    part = sync_batch_norm(x[mine], back)
    (part * after[mine]).sum().backward()
    differences = (part - expected[mine], x.grad[mine] - y.grad[mine])
    try:
        nn.SyncBatchNorm(3)(x)
    except ValueError as error:
        return [f"{difference.abs().max().item():.3f}" for difference in differences], error


for back in (False, True):
    differences, refusal = simlib.run(against_one_process, 2, args=(back,)).results[0]
    print(f"all_reduce backwards {back!s:5}: forward and backward differ by", *differences)
print("nn.SyncBatchNorm:", refusal)

# %% [markdown]
# With both all_reduces it is equal to one process, forward and backward, with 6 examples on one rank and 3 on the
# other. Without the backward one the loss looks right and the gradients are wrong. Torch's own is
# `nn.SyncBatchNorm`, on GPUs only, as its message says. The price: two more collectives per layer and step.
#
# ## Gradient accumulation
#
# You want an effective batch that does not fit. So take k small batches one after the other, add up
# their gradients and make one step. A widely read page prints the loop with `zero_grad()` at the start
# of every small batch. The cell compares the gradient of five programs with that of the whole batch: 2
# ranks x 4 small batches x 10 examples. Which are right?

# %%
guess = None  # which of the five are right?


def accumulated(rank, world_size, zero_each, divide, reduce_when, k=4):
    torch.manual_seed(0)
    model = lenet()
    F.cross_entropy(model(train_set[:80][0]), train_set[:80][1]).backward()
    want = parameters_to_vector(p.grad for p in model.parameters())
    model.zero_grad()
    for micro in range(k):
        images, labels = train_set[20 * micro + rank : 20 * (micro + 1) : world_size]
        if zero_each:
            model.zero_grad()
        (F.cross_entropy(model(images), labels) / (k if divide else 1)).backward()
        if reduce_when == "each" or (reduce_when == "once" and micro == k - 1):
            sync_gradients(model, rank, world_size)
    got = parameters_to_vector(p.grad for p in model.parameters())
    return ((got - want).norm() / want.norm()).item()


cases = (True, False, "once"), (False, False, "once"), (False, True, "never")
for case in (*cases, (False, True, "once"), (False, True, "each")):
    run = simlib.run(accumulated, 2, args=case)
    text = "zeroed {!s:5}  divided {!s:5}  reduced {:5}".format(*case)
    print(f"{text}  error {run.results[0]:.2f}  all_reduces {len(run.trace.collectives)}")

# %% [markdown]
# In the order of the lines:
#
# - **Zeroed in each**: only the last small batch counts.
# - **Not divided**: each loss is a mean over its own small batch, so the sum of k of them is k times too
#   large: an error of k - 1 = 3.
# - **Divided, never reduced**: right in time, wrong in space. This is the gradient of rank 0's examples only, and the replicas drift apart.
# - **Divided, reduced once**, after the last: exact. Reduced each time: exact too, at k times the price.
#
# "Gradient accumulation saves parameter memory", one reads. Simulated ranks with a device keep a memory ledger.
# One step with 240 examples at once, then with 4 x 60: which rows change?

# %%
guess = None  # parameters? Gradients? Optimizer state? Activations?


def one_step(rank, world_size, k):
    model = lenet()
    optimizer = sgd(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        for micro in range(k):
            images, labels = train_set[240 // k * micro : 240 // k * (micro + 1)]
            (F.cross_entropy(model(images), labels) / k).backward()
        optimizer.step()


cluster = simlib.clusters.ethernet_10g(nodes=1, device=simlib.Device(flops_per_s=1e12))
for k in (1, 4):
    peak = simlib.simulate(one_step, 1, args=(k,), cluster=cluster).memory[0].peak
    print(f"k = {k}:", ", ".join(f"{name} {held / 1e6:.1f} MB" for name, held in peak.items()))

# %% [markdown]
# Parameters, gradients and optimizer state are what they were. What shrinks is the activations, which grow with
# the examples of one forward pass (by less than 4, for some temporaries have the size of the weights). So accumulation helps where the *batch* does not fit, never where the
# *model* does not (lesson 10). With R ranks and k small batches, $B_\text{effective} = R \times k \times B$.
#
# ## Clipping: after the reduction
#
# Clipping shortens a gradient that is longer than a limit, so that one odd batch cannot throw the weights far
# away. Let rank 1 have the odd batch: its pixels are 20 times too large. The limit is 1. Clip on each rank and then take
# the mean, or take the mean and then clip: is it the same?

# %%
guess = None  # the same? If not: which is what one process does?


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

# %% [markdown]
# The norm of a mean is not the mean of norms. Clipped on each rank, the gradient has another length *and* another
# direction: rank 0's half now counts as much as the odd one. One process clips the gradient of the whole batch, so: **reduce, then clip**. All ranks then see
# the same norm and shorten by the same factor.
#
# ## More ranks, larger batch: the learning rate
#
# Up to here $B_\text{effective}$ was fixed. Usually B is: twice the ranks make the batch twice as large, and an
# epoch has half the steps. We go from 10 to 100 examples per step, what 10 ranks with B = 10 would do. (Two do
# it here; by the equality above the weights are the same.) Four runs of four epochs: the small
# batch with $\eta$ = 0.004, the large one with the same $\eta$, with $10\eta$, and with $10\eta$ reached
# gradually during the first epoch. Predict the order of the four accuracies.

# %% tags=["nbval-ignore-output"]
guess = None  # best to worst


def constant(done):
    return 1.0


def warm_up(done):
    return min(1.0, 4 * done + 0.02)


runs = {
    "B_eff 10, eta": (10, 0.004, constant),
    "B_eff 100, eta": (100, 0.004, constant),
    "B_eff 100, 10 eta": (100, 0.04, constant),
    "B_eff 100, 10 eta, warm-up": (100, 0.04, warm_up),
}
scaling = tempfile.TemporaryDirectory()
with simlib.live_curves(scaling.name, x="examples"):
    for name, (batch, eta, factor) in runs.items():
        run = simlib.run(train, 2, args=(f"{scaling.name}/{name}", eta, 4, batch, factor))
        print(f"{name:27} {run.results[0]:.1%}")

# %% [markdown]
# With the same $\eta$ the large batch makes a tenth of the steps, none of them longer, and stays far
# behind: 82 % against 98 % when this page was built. With $10\eta$ each step goes ten times as far: the **linear
# scaling rule**, 96 %. The reason: if the weights hardly change during ten small steps, their gradients add up
# to one large step of ten times the rate.
#
# When the rate is large and the weights still change fast, that does not hold, and the loss jumps. The warm-up puts the
# jump off; it need not prevent it. Is it worth having here? The last two runs differ by few digits of 297, and
# with other starts (`torch.manual_seed(1)` first in `train`) we saw either one ahead: this cannot tell. Goyal et al. (2017,
# arXiv 1706.02677) used it for ResNet-50, with batches of up to 8,192 at the small batch's
# accuracy. And the rule has an end: add a fifth entry with `0.4`. Its loss leaps up, and ends no better than guessing
# one of ten. *Not* in these curves is time (lesson 09).
#
# ## Your turn
#
# [Exercises 07](../exercises/07_data_parallel_training.ipynb): gradients in one flat buffer, an accuracy that
# counts nobody twice, batch norm's statistics with one all_reduce, and a run that goes on from a checkpoint.
#
# ## Exit ticket
#
# 1. A loop runs on 4 ranks with a plain `DataLoader(shuffle=True)`, B = 32, all seeds equal. What is $B_\text{effective}$?
# 2. 8 ranks evaluate 1,001 examples with a `DistributedSampler`. How many are counted?
# 3. The loss of rank 0 falls nicely. Name two ways in which the replicas may still differ.
# 4. Where does `clip_grad_norm_` stand, and where `zero_grad()`?
# 5. k = 8 small batches on 4 ranks: how many all_reduces of the flat buffer per step are enough?
# 6. R = 2 and R = 4 differ by 1e-5 after an epoch. How do you find out whether that is a mistake?
#
# <details><summary>Answers</summary>
#
# 1. 32: all ranks compute the same gradient.
# 2. 1,008: 126 each; seven are counted twice.
# 3. Buffers were not synchronised; the first weights were not; ranks clipped or skipped a step by
#    themselves. Compare the spread (lesson 06: MAX of x and of -x) of everything in the `state_dict()`.
# 4. Clip after `sync_gradients`, before `step`. Zero before `backward`, or after `step`; never between.
# 5. One, after the last.
# 6. Run both in float64. Rounding all but vanishes; a mistake stays.
#
# </details>
#
# **Next:** [lesson 08](08_from_loops_to_ddp.ipynb), which starts to send gradients before the last one is there.
