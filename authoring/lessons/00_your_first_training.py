# %% [markdown]
# # 00 Your first training
#
# This is the second half of lesson 00 (10 minutes). Two ranks train a small neural network of your own,
# until it reads digits. You will see three things. The two ranks get a result **equal** to the result of
# one process. Two ranks are **faster** than one. And nobody notices **one wrong number**. Lessons 02 to
# 08 explain *why*. The cell below loads pictures of handwritten digits and shows ten of them.

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
# ## Your own network
#
# The network takes the 28 x 28 pixels of a picture and returns ten numbers, one for each digit. Its
# answer is the digit with the largest number. In the network below, `Conv2d` compares 8 patterns of 5 x
# 5 pixels with the picture at 24 x 24 positions, and measures how well each of them matches. `ReLU`
# replaces negative numbers by 0. `MaxPool2d` keeps the best match of each block of 2 x 2 positions, so
# 12 x 12 positions are left. For each digit, `Linear` multiplies all these numbers by weights and adds
# them up.
#
# **Now you write it**: a network of your own. Use 4 or 6 patterns instead of 8 (change the 8 in both
# places), or add one layer between `Flatten` and the end. (With more layers, 30 steps of training are
# not enough.)


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
# There are many answers. One is `nn.Conv2d(1, 6, 5)` with `nn.Linear(6 * 12 * 12, 10)`. If you see "not
# yet" with 11,738 weights, the network is still the original one. If you see "not yet" with another
# number of weights, one layer returns a size that the next layer does not take.
#
# </details>
#
# ## One process, two ranks: equal?
#
# Training is a loop. The **loss** measures how wrong the answers are. `backward` calculates for each
# weight how much the loss changes when this weight changes. These numbers are the **gradient**. Then
# each weight takes a small step in the direction that makes the loss smaller.
#
# With two ranks, each rank takes **its share** of 1,280 pictures: rank 0 takes every second one, and
# rank 1 takes the others. After `backward` the ranks **share their gradients**: `all_reduce` gives every
# rank the sum of all ranks' gradients. Each rank divides this sum by the number of ranks, which gives
# the mean. Will the weights be equal to the weights of one process that uses all pictures?

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
# The weights are **equal**, except for rounding. Two ranks add the same numbers in another order than
# one process does, so the last digits of the weights differ.
#
# ## Faster?
#
# Each rank has half of the work. First we measure wall-clock time on your machine, and take the better
# of two runs. (Your machine needs two free cores.) Then we use `simulate`, which calculates the same
# time on every machine. The cell models two computers. Each computer does 100 billion operations per
# second. Ethernet of 10 Gbit/s connects them.

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
# Two ranks are **faster**, but not twice as fast, because they also need time to communicate.
#
# ## One wrong number
#
# Now each rank divides by 1 instead of `world_size`. So the ranks use the sum of the gradients, not the
# mean. Will Python, PyTorch or `simlib` report anything?

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
# Nobody notices. All calls are legal, and the ranks agree with each other. Only the comparison with one
# process shows the mistake. The sum of two gradients is twice their mean, so each step changes the
# weights twice as much, and the loss may jump up. This course trains you to find such silent mistakes.
# Fix the number, and run the cell again.
#
# Later lessons explain each part of this one:
#
# - lesson [02](02_send_and_recv.ipynb): messages,
# - lessons [04](04_collectives.ipynb) and [05](05_building_all_reduce.ipynb): `all_reduce`,
# - lesson [06](06_synchronous_sgd.ipynb): why we take the mean,
# - lesson [07](07_data_parallel_training.ipynb): real data,
# - lesson [08](08_from_loops_to_ddp.ipynb): PyTorch's DDP,
# - lesson [09](09_when_does_it_pay.ipynb): when more ranks are worth it.
#
# **Next:** [lesson 01, ranks and clusters](01_ranks_and_clusters.ipynb).
#
# ## Appendix: three experiments for those who want more now
#
# You do not need this appendix before lesson 01. Unfold the texts and also the cells below them. Each
# cell runs without the others.
#
# <details><summary>Three networks: which of them gain from a second rank?</summary>
#
# We measure three networks. The first is yours. The second is *wide*: it has 407,050 weights, and uses
# each weight once per picture. The third is *narrow*: it has little work of any kind. `my_net` uses each
# pattern at hundreds of positions, so it has much work and few gradients. The wide network shares
# 407,050 gradients in every step, so it gains less, or nothing. The narrow network has so little work
# that communication costs more than the second rank saves. It becomes *slower*.
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
# 64 computers are not 64 times as fast as one. Each computer has only a 64th of the work. But most of a
# step is now communication. With the original network, each step calls `all_reduce` four times, and each
# call sends several messages one after the other. Each message takes some time before anything of it
# arrives. This time is the **latency**. InfiniBand is a network of supercomputers. It has a shorter
# latency *and* more bandwidth, so it also carries more bytes per second. The last three lines of the
# output compare networks. The first is Ethernet, the last is InfiniBand, and the middle one is Ethernet
# with the latency of InfiniBand. A large part of this course is about the cost of communication.
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
# <details><summary>A mistake that `simlib` reports</summary>
#
# In the loop, `[dist.get_rank():]` skips one tensor on rank 1 and none on rank 0. So in the first call
# the two ranks bring tensors of different sizes. The first run uses `check=False`. Then `simlib` does
# not compare the calls of the ranks. An ordinary cluster does not compare them either. A process ends,
# and no message says why. The second run uses the check, which is the default. Its message says which
# rank is wrong, what is wrong, and which of *your* lines made the call. (The error is intended. Run All
# continues after it.)
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
