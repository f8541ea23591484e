# %% [markdown]
# # 00 Your first training
#
# The second half of lesson 00 (10 minutes): a small net of your own learns to
# read digits on two ranks. The result is **equal** to that of one process, it comes
# **faster**, and **one wrong number** goes unnoticed. *How* this is so is lessons 02 to 08.

# %%
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import simlib

(images, labels), (new_images, new_labels) = (part.tensors for part in simlib.digits.load())
plt.figure(figsize=(7, 0.9))
plt.imshow(torch.cat(list(images[:10, 0]), dim=1), cmap="Blues")
plt.axis("off")
plt.show()

# %% [markdown]
# ## Your own net
#
# A net takes the 28 x 28 pixels of a digit and answers with ten numbers: the largest says which digit
# it takes it for. In the one below, `Conv2d` tells how well 8 patterns of 5 x 5 pixels fit at 24 x 24 places;
# `ReLU` makes negative numbers 0; `MaxPool2d` keeps the best of each 2 x 2 places, so 12 x 12 are left;
# `Linear` weighs all these.
#
# **Now you write it**: a net of your own. Take 4 or 6 patterns (the number stands twice), or put one layer
# between `Flatten` and the end (more layers need more than 30 steps).


# %%
def my_net():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 12 * 12, 10),
    )


try:
    answers = my_net()(images[:2]).shape
except RuntimeError:  # a layer does not take what the one before gives
    answers = None
size = sum(parameter.numel() for parameter in my_net().parameters())
print("right," if answers == (2, 10) and size != 11_738 else "not yet,", f"{size:,} weights")

# %% [markdown]
# <details><summary>Answer</summary>
#
# One of many: `nn.Conv2d(1, 6, 5)` and `nn.Linear(6 * 12 * 12, 10)`. "Not yet" with 11,738 weights is the net
# that stood there; with others, a layer does not take what the one before gives.
#
# </details>
#
# ## One process, two ranks: equal?
#
# Training is a loop. The **loss** says how wrong the answers are; `backward` finds for each weight how the
# loss changes with it, the **gradient**; then each weight takes a small step the other way.
#
# On two ranks each takes **its share** of the pictures: rank 0 every second one, rank 1 the others.
# After `backward` they **share their gradients**: `all_reduce` gives each the sum over
# all ranks; divided by their number, the mean. Will the weights be those of one process that saw
# all pictures?

# %%
same = None  # your guess: "yes" or "no"


def share_gradients(model, world_size):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


def train(rank, world_size, steps=30, net=my_net):
    torch.manual_seed(0)  # the same first weights in every run
    model, losses = net(), []
    for _ in range(steps):
        mine = slice(rank, 1280, world_size)
        loss = F.cross_entropy(model(images[mine]), labels[mine])
        model.zero_grad()
        loss.backward()
        if world_size > 1:
            share_gradients(model, world_size)
        for parameter in model.parameters():
            parameter.data -= 0.05 * parameter.grad
        losses.append(loss.item())
    return losses, model


# %%
def beside_one_process(run):
    (curve, model), (other, _) = run.results
    plt.figure(figsize=(7, 3))
    plt.plot(alone, color="#999999", lw=7, alpha=0.6, label="one process")
    mean = [(one + two) / 2 for one, two in zip(curve, other, strict=True)]
    plt.plot(mean, "--", color="#009E73", label="mean of the ranks")
    plt.xlabel("step")
    plt.ylabel("loss")
    plt.legend(frameon=False)
    plt.show()
    pairs = zip(model.parameters(), trained.parameters(), strict=True)
    is_equal = all(torch.allclose(one, two, atol=1e-3) for one, two in pairs)
    print("right:" if is_equal else "not yet", "the weights of one process, within 0.001")
    return is_equal


alone, trained = train(rank=0, world_size=1)  # here, in the notebook
read = (trained(new_images).argmax(dim=1) == new_labels).float().mean().item()
print(f"one process reads {read:.0%} of {len(new_images)} new digits after 30 steps")
is_equal = beside_one_process(simlib.run(train, world_size=2))
simlib.guess(same, "yes" if is_equal else "no", of=("yes", "no"))

# %% [markdown]
# **Equal**, up to rounding: two halves are added in another order than a whole.
#
# ## Faster?
#
# Each rank has half of the work. First by the clock on the wall: your machine, on this day, the better of two
# runs. (It takes two free cores.) Then in `simulate`, where the same net gives the same number everywhere: two
# computers of 100 billion operations per second, on 10 Gbit/s Ethernet.

# %% tags=["nbval-ignore-output"]
one_s, two_s = (
    min(simlib.run(train, ranks, args=(10,)).time_s for _ in range(2)) for ranks in (1, 2)
)
print(f"measured: one rank {one_s:.2f} s, two {two_s:.2f} s: {one_s / two_s:.2f} times as fast")


# %%
def step_s(ranks, network=simlib.clusters.ethernet_10g, net=my_net):
    cluster = network(nodes=ranks, device=simlib.Device(flops_per_s=100e9))
    return simlib.simulate(train, ranks, args=(2, net), cluster=cluster).time_s / 2


one_s, two_s = step_s(1), step_s(2)
print(f"a step: one {one_s * 1e3:.2f} ms, two {two_s * 1e3:.2f}: {one_s / two_s:.2f} times as fast")

# %% [markdown]
# **Faster**. What is missing to twice is the price of the talk.
#
# ## One wrong number
#
# Instead of by `world_size` we divide by 1: the sum of the gradients, not their mean. Will
# Python, PyTorch or `simlib` say a word?

# %%
who_notices = None  # your guess: "somebody" or "nobody"


def share_gradients(model, world_size):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 1  # one wrong number


run = simlib.run(train, world_size=2)
beside_one_process(run)
simlib.guess(who_notices, "somebody" if run.findings else "nobody", of=("somebody", "nobody"))

# %% [markdown]
# Nobody. All calls are legal, and the ranks agree with each other. Only the comparison with one process tells:
# the sum of two gradients is a step twice as long. Such silent
# mistakes are what this course trains your eye for. Mend the number, and run the cell again.
#
# How this is so: messages, lesson [02](02_send_and_recv.ipynb); `all_reduce`,
# [04](04_collectives.ipynb) and [05](05_building_all_reduce.ipynb); why the mean,
# [06](06_synchronous_sgd.ipynb); real data, [07](07_data_parallel_training.ipynb); PyTorch's
# DDP, [08](08_from_loops_to_ddp.ipynb). Whether it pays: [09](09_when_does_it_pay.ipynb).
#
# **Next:** [lesson 01, ranks and clusters](01_ranks_and_clusters.ipynb).
#
# ## Appendix: for those who want more at once
#
# Three things that nobody needs before lesson 01. Unfold them, also the cells: they run by themselves.
#
# <details><summary>Three nets: who gains from a second rank?</summary>
#
# Measured, for three nets: yours; a *wide* one, whose 407,050 weights are each used once a picture; and a
# *narrow* one, with little work of any sort. The patterns of `my_net` are used at hundreds of places: much work, few
# gradients. The wide net shares 407,050 gradients in every step, and gains less, or nothing. The narrow
# one has so little to do that talking costs more than the second rank saves: it becomes *slower*.
#
# </details>


# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true, "outputs_hidden": true}
def two_layers(middle):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, middle), nn.ReLU(), nn.Linear(middle, 10))


def share_gradients(model, world_size):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


nets = {"my_net": my_net, "wide": lambda: two_layers(512), "narrow": lambda: two_layers(32)}
for name, net in nets.items():
    one, two = (
        min(simlib.run(train, ranks, args=(10, net)).time_s for _ in range(2)) for ranks in (1, 2)
    )
    print(f"{name:6}: one rank {one:.2f} s, two {two:.2f} s, {one / two:.2f} times as fast")

# %% [markdown]
# <details><summary>The same on 64 computers that you do not have</summary>
#
# Not 64 times as fast. The work shrinks as it should. What is left is talk: four calls of `all_reduce` a step
# (with the net that stood there), each of several messages one after the other. InfiniBand, a network of
# supercomputers, has a shorter latency *and* more bandwidth; the line between has its latency alone. A good part
# of this course is about that talk.
#
# </details>


# %% jupyter={"source_hidden": true, "outputs_hidden": true}
def short_latency(nodes, device):
    link = simlib.Link(
        simlib.clusters.infiniband_hdr(2).inter.latency_s,
        simlib.clusters.ethernet_10g(2).inter.bandwidth_Bps,
    )
    return simlib.clusters.ethernet_10g(nodes, device=device, inter=link)


for ranks in (2, 8, 64):
    time_s = step_s(ranks)
    print(f"{ranks:2} ranks: a step {time_s * 1e3:.2f} ms", end=", ")
    print(f"the work {one_s / ranks * 1e3:.2f} ms of it: {one_s / time_s:.1f} times as fast")
for network in (simlib.clusters.ethernet_10g, short_latency, simlib.clusters.infiniband_hdr):
    time_s, link = step_s(64, network), network(nodes=2, device=None).inter
    print(f"64 ranks, {link.latency_s * 1e6:2.0f} us a message,", end=" ")
    print(f"{link.bandwidth_Bps / 1e9:5.2f} GB/s: {one_s / time_s:.1f} times as fast")

# %% [markdown]
# <details><summary>A loud mistake, if somebody listens</summary>
#
# `[rank:]` lets each rank begin with the tensor of its own number, so what one rank adds up does not fit what the
# other brings. First with `check=False`, where nobody compares what the ranks ask for, as on a plain cluster: a
# process is gone, and no word says why. Then as you will run it: who, what, and in which line of *yours*. (The
# error is meant to be there; Run All goes on after it.)
#
# </details>


# %% tags=["raises-exception", "nbval-ignore-output"] jupyter={"source_hidden": true, "outputs_hidden": true}
def share_gradients(model, world_size):
    for parameter in list(model.parameters())[dist.get_rank() :]:
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


try:
    simlib.run(train, world_size=2, check=False, timeout_s=5)
except simlib.SimlibError as error:
    print("nobody listens:", str(error).partition("\n")[0])
simlib.run(train, world_size=2)
