# %% [markdown]
# # 00 Your first training
#
# This is the second half of lesson 00. [The first](00_start_here.ipynb) started ranks and read their
# pictures. Now the ranks train. In this lesson (10 minutes) you will
#
# - write a small net of your own, and train it in one process,
# - train it on two ranks, and see that the result is equal, and when it comes sooner,
# - put in one wrong number, and see who notices,
# - send the same function to 64 ranks.
#
# Much is used here that is explained later. *How* this is so is lessons 02 to 08.

# %%
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

import simlib

torch.set_num_threads(1)  # one core for the notebook, as each rank has one

(pictures, labels), (new_images, new_labels) = (part.tensors for part in simlib.digits.load())
images, labels = pictures[:1280], labels[:1280]
print(f"{len(images)} pictures of 28 x 28 pixels; the first are", *labels[:10].tolist())
figure, axes = plt.subplots(figsize=(7, 0.9))
axes.imshow(torch.cat(list(pictures[:10, 0]), dim=1), cmap="Blues")
axes.axis("off")
plt.show()

# %% [markdown]
# ## Your own net
#
# The net gets the 28 x 28 pixels of a handwritten digit and answers with ten numbers: the largest one says
# which digit it takes it for. What is between is yours. One stands there: `Conv2d` slides 8 patterns of 5 x 5
# pixels over the picture and tells how well each fits at each of 24 x 24 places; `ReLU` makes negative
# numbers 0; `MaxPool2d` keeps the best of each 2 x 2 places, so 12 x 12 are left; `Linear` weighs all these.
#
# **Now you write it**: take 4 or 6 patterns in place of 8 (the number stands twice), or put layers of your own
# between `Flatten` and the end: what a layer gives is what the next one must take. (No dropout and no batch norm
# yet: lesson 07 says why.)


# %%
def my_net():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 12 * 12, 10),
    )


def weights_of(net):
    return sum(parameter.numel() for parameter in net().parameters())


fits = my_net()(images[:2]).shape == (2, 10)
print("right: ten numbers for each picture," if fits else "not ten numbers yet,", end=" ")
print(f"{weights_of(my_net):,} weights")

# %% [markdown]
# ## One process
#
# Training is a loop. The **loss** says how wrong the answers are. `backward` finds for every weight how the
# loss would change with it: the **gradient**. Then each weight takes a small step the other way.
# Afterwards we ask for the 297 pictures that the net has not seen. At the start the net knows nothing,
# and of ten digits it gets one in ten right. How many of 100 will it read after 30 steps?

# %%
read_of_100 = None  # your guess: a number


def train(steps=30):
    torch.manual_seed(0)  # the same first weights in every run
    model, losses = my_net(), []
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
        losses.append(loss.item())
    return losses, model


alone, model = train()
alone_weights = parameters_to_vector(model.parameters()).detach()
right = (model(new_images).argmax(dim=1) == new_labels).float().mean().item()
print(
    f"loss {alone[0]:.1f} at first, {alone[-1]:.1f} at last;",
    f"{right:.0%} of {len(new_images)} new digits read",
)
simlib.guess(read_of_100, 100 * right, within=0.05)

# %% [markdown]
# ## Two ranks
#
# The same loop as a rank function. Two things are new, and marked. Each rank takes **its share** of the
# pictures: rank 0 every second one, rank 1 the others. And after `backward` the ranks **share their
# gradients**: `all_reduce` adds up a tensor over all ranks and gives each of them the sum; divided by
# the number of ranks it is the mean. Everything else is what you had.
#
# No rank ever sees the pictures of the other. After 30 steps, will the two have the same weights? The
# same as the one process that saw all?


# %%
def share_gradients(model, rank, world_size):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


def main(rank, world_size, steps=30, net=my_net):
    torch.manual_seed(0)
    model, losses = net(), []
    my_images, my_labels = images[rank::world_size], labels[rank::world_size]  # new: my share
    for _ in range(steps):
        loss = F.cross_entropy(model(my_images), my_labels)
        model.zero_grad()
        loss.backward()
        share_gradients(model, rank, world_size)  # new
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
        losses.append(loss.item())
    return losses, parameters_to_vector(model.parameters()).detach()


# %%
same = None  # your guess: "yes" or "no", the same weights as one process?


def beside_one_process(run):
    apart = max((weights - alone_weights).abs().max().item() for _, weights in run.results)
    losses = torch.tensor([losses for losses, _ in run.results])
    figure, axes = plt.subplots(figsize=(7, 3))
    axes.plot(alone, color="#999999", lw=7, alpha=0.6, label="one process")
    for rank, color in enumerate(("#0072B2", "#E69F00")):
        axes.plot(losses[rank], color=color, lw=1, label=f"rank {rank}, its own half")
    axes.plot(losses.mean(dim=0), "--", color="#009E73", label="mean of the ranks")
    axes.set(xlabel="step", ylabel="loss")
    axes.legend(frameon=False)
    plt.show()
    print("largest difference of two weights:", "above" if apart > 1e-3 else "below", 0.001)
    print("the two ranks hold the same:", torch.equal(run.results[0][1], run.results[1][1]))
    return apart


apart = beside_one_process(simlib.run(main, world_size=2))
simlib.guess(same, "yes" if apart < 1e-3 else "no", of=("yes", "no"))

# %% [markdown]
# **Equal.** The mean of the ranks' losses lies on the curve of the one process. (Each rank's own is a hair
# off: its half is not the whole.) The two ranks agree to the last bit, and with the one process up to rounding:
# two halves are added in another order than a whole. You have trained a net on a group of processes.
#
# ## Faster?
#
# Each rank has half of the work. Is it done in half of the time? By the clock on the wall, the better of two
# runs of 10 steps, and for three nets: yours; a *wide* one, whose 407,050 weights are each used once a picture;
# and a *narrow* one, with little work of any sort. Which gains most from a second rank? Do all gain?

# %% tags=["nbval-ignore-output"]
gains_most = None  # your guess: "my_net", "wide" or "narrow"


def two_layers(middle):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, middle), nn.ReLU(), nn.Linear(middle, 10))


nets = {"my_net": my_net, "wide": lambda: two_layers(512), "narrow": lambda: two_layers(32)}
gains = {}
for name, net in nets.items():
    one_s, two_s = (
        min(simlib.run(main, ranks, args=(10, net)).time_s for _ in range(2)) for ranks in (1, 2)
    )
    gains[name] = one_s / two_s
    print(
        f"{name:6} {weights_of(net):7,} weights: one rank {one_s:.2f} s, two {two_s:.2f} s", end=""
    )
    print(f", {gains[name]:.2f} times as fast")
simlib.guess(gains_most, max(gains, key=gains.get), of=tuple(nets))

# %% [markdown]
# **Faster, where there is much to compute and little to share.** The patterns of `my_net` are used at hundreds
# of places: much work, few gradients. The wide net shares 407,050 gradients in every step, and gains little or
# nothing. The narrow one has so little to do that talking costs more than the second rank saves: it becomes
# *slower*. And if yours was not faster either: two ranks need two free cores, and a busy browser is enough to
# take one.
#
# A measurement is your machine's, on this day. So ask `simulate`, too: two computers, each doing 100
# billion operations per second, with 10 Gbit/s Ethernet between them. The same function, unchanged; two
# steps are enough. Here the numbers are exact, and the same for everybody.

# %%
device = simlib.Device(flops_per_s=100e9)


def two_steps(rank, world_size):
    main(rank, world_size, steps=2)


def step_s(ranks, network=simlib.clusters.ethernet_10g):
    run = simlib.simulate(two_steps, ranks, cluster=network(nodes=ranks, device=device))
    return run.time_s / 2, run


one_s, _ = step_s(1)
two_s, two = step_s(2)
print(
    f"a step: one {one_s * 1e3:.2f} ms, two {two_s * 1e3:.2f} ms: {one_s / two_s:.2f} times as fast"
)
two

# %% [markdown]
# The filled parts are `backward` and the rest of the computing, half as long as alone. The pale parts are the
# gradients on their way, and they are the price. Nobody waits for anybody (nothing is hatched): the network is
# not faster, that is all.
#
# ## One wrong number
#
# Now a mistake. Instead of by `world_size` we divide by 1: the sum of the gradients, not their mean. Will
# Python, PyTorch or `simlib` say a word? And what will the curve do?

# %%
who_notices = None  # your guess: "somebody" or "nobody"


def share_gradients(model, rank, world_size):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 1  # one wrong number


run = simlib.run(main, world_size=2)
apart = beside_one_process(run)
simlib.guess(who_notices, "somebody" if run.findings else "nobody", of=("somebody", "nobody"))
print("right: the training of one process" if apart < 1e-3 else "not the training of one process")

# %% [markdown]
# Nobody. All calls are legal, and the ranks agree with each other. For some steps the loss even falls
# faster than it should, then it jumps, and falls again. Only the comparison with one process tells what is
# wrong: the sum of two gradients is a step twice as long. With 64 ranks it
# would be 64 times as long. Such silent mistakes are what this course trains your eye for.
#
# **Now you write it**: mend the wrong number in the cell above, and run it again. Its last line answers.
#
# The other kind of mistake is loud, if somebody listens. Below, `[rank:]` lets each rank begin with the tensor
# of its own number: rank 1 leaves out the first one. So what one rank adds up does not fit what the other brings.
# (The
# error is meant to be there; Run All goes on after it.)


# %% tags=["raises-exception", "nbval-ignore-output"]
def share_gradients(model, rank, world_size):
    for parameter in list(model.parameters())[rank:]:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


try:
    simlib.run(main, world_size=2, check=False, timeout_s=5)
except simlib.SimlibError as error:
    print("nobody listens:", str(error).partition("\n")[0])
simlib.run(main, world_size=2)

# %% [markdown]
# First with `check=False`, where nobody compares what the ranks ask for, as on a plain cluster: here a process
# is gone, and no word says why. Then as you will run it: who, what, and in which line of *yours*.
#
# ## The same on 64 ranks
#
# The right function once more, and then 8 and 64 computers that you do not have. 64 ranks share the work
# of one. How many times as fast are they?


# %%
times_as_fast = None  # your guess: 64 ranks are ... times as fast as one


def share_gradients(model, rank, world_size):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


for ranks in (2, 8, 64):
    time_s, _ = step_s(ranks)
    print(f"{ranks:2} ranks: a step {time_s * 1e3:.2f} ms", end=", ")
    print(f"the work {one_s / ranks * 1e3:.2f} ms of it: {one_s / time_s:.1f} times as fast")
simlib.guess(times_as_fast, one_s / time_s, within=0.1)
for network in (simlib.clusters.ethernet_10g, simlib.clusters.infiniband_hdr):
    time_s, latency_s = step_s(64, network)[0], network(nodes=2).inter.latency_s
    print(f"64 ranks, {latency_s * 1e6:2.0f} us a message: {one_s / time_s:.1f} times as fast")

# %% [markdown]
# Not 64 times. The work shrinks as it should. What is left is talk: four calls of `all_reduce` a step, each of
# several messages one after the other, and each message takes 30 us on this network, however short it is. On
# InfiniBand, a network of supercomputers, it takes 2 us. A good part of this course is about that talk.
#
# ## How this is so
#
# | what you have seen | where it is explained |
# |---|---|
# | a tensor goes to another rank, and what that costs | [02](02_send_and_recv.ipynb) |
# | calls that do not fit, and ranks that wait for ever | [03](03_when_it_hangs.ipynb) |
# | what `all_reduce` promises | [04](04_collectives.ipynb) |
# | how it is done, and what it costs on many ranks | [05](05_building_all_reduce.ipynb) |
# | why the mean of the gradients is the gradient of all, and a sum too long a step | [06](06_synchronous_sgd.ipynb) |
# | equal weights on any number of ranks, on real data, and a dozen silent mistakes | [07](07_data_parallel_training.ipynb) |
# | sharing *while* `backward` still works: PyTorch's DDP does your three lines | [08](08_from_loops_to_ddp.ipynb) |
#
# Whether it pays is for [09](09_when_does_it_pay.ipynb). Come back then, and say before you run it what each
# cell will print.
#
# **Next:** [lesson 01, ranks and clusters](01_ranks_and_clusters.ipynb).
