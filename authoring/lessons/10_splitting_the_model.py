# %% [markdown]
# # 10 Splitting the model
#
# Until now every rank had the whole model. What if the model does not fit into one device? Then we cut it
# into parts, and each rank gets one: **model parallelism**. In this lesson (80 minutes) you will
#
# - compute by hand what one training step keeps in memory, and match the measured ledger to the byte,
# - meet a network that does not fit its device, and see what does *not* help, and what makes one kind of
#   memory smaller,
# - cut it by layers over several ranks, and find, after three wrong ways, a backward pass that crosses from
#   rank to rank,
# - see what the cut costs in time, and what it does not buy.
#
# There are two ways to share out the work of training:
#
# | | data parallel (lessons 06 to 09) | model parallel (this lesson) |
# |---|---|---|
# | a rank holds | all parameters | a part of the parameters |
# | a rank sees | a part of the examples | all examples |
# | what travels | gradients of parameters | activations, and their gradients |
# | the usual reason | time | memory |
#
# Data parallelism is used more often, because any rank can do the work of any other.
#
# ## The network, and a device to hold it
#
# The network has six layers and takes pictures of 28 x 28 = 784 pixels. `network(first, last)` makes only
# the layers you ask for, and every layer has its own seed. So layer 3 has the same weights on every rank.
# The modelled device does 100 Gflop/s. Its memory has no limit yet: first we measure.

# %%
import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import simlib
from simlib.draw import draw_memory, draw_parts

WIDTHS = [784, 512, 512, 512, 512, 512, 10]  # layer k maps WIDTHS[k - 1] numbers to WIDTHS[k]


def network(first=1, last=6):
    """Layers first to last of the network, each with the weights it has wherever it is made."""
    layers = []
    for number in range(first, last + 1):
        torch.manual_seed(number)
        layers.append(nn.Linear(WIDTHS[number - 1], WIDTHS[number]))
        layers += [nn.ReLU()] if number < 6 else []
    return nn.Sequential(*layers)


def cluster_with(**device):
    return simlib.clusters.ethernet_10g(8, device=simlib.Device(flops_per_s=100e9, **device))


# %% [markdown]
# ## The ledger: four sorts of bytes
#
# In a simulation `simlib.held()` returns how many bytes a rank has at that moment. It counts each byte in
# one of four columns: **parameters**, **gradients**, **optimizer state**, and **activations and
# temporaries**, which is everything else. We call it four times: when the network is built, after the
# forward pass, after the backward pass, and after the optimizer's step. A batch has B examples. The
# pictures are random numbers, as their values do not affect memory. Predict: which column is empty before
# the backward pass and full after it?

# %%
guess = None  # "parameters", "gradients", "optimizer state" or "activations"


def ask_four_times(rank, world_size, make_optimizer, B):
    net = network()
    optimizer = make_optimizer(net.parameters())
    x, labels = torch.rand(B, 784), torch.randint(10, (B,))
    held = {"built": simlib.held()}
    loss = F.cross_entropy(net(x), labels)
    held["forward"] = simlib.held()
    loss.backward()
    held["backward"] = simlib.held()
    optimizer.step()
    return held | {"step": simlib.held()}


def print_row(name, values):
    print(f"{name:9}", *(f"{value:15,}" for value in values))


measured = simlib.simulate(ask_four_times, 1, args=(torch.optim.Adam, 64), cluster=cluster_with())
print("after          parameters       gradients optimizer state     activations")
for line, held in measured.results[0].items():
    print_row(line, held.values())
simlib.guess(guess, "gradients", of=("parameters", "gradients", "optimizer state", "activations"))

# %% [markdown]
# The forward pass adds activations, and the backward pass needs them: it computes the gradient of a layer's
# weights from the layer's *input*. So autograd keeps every input until the backward pass has used it. Then
# the inputs are released. The gradients have come, and are as large as the parameters. The optimizer makes
# its state in its first step.
#
# Now we compute the same columns by hand. Let P be the number of parameters. Each parameter is a float32 of
# 4 bytes.
#
# | column | bytes | grows with B? |
# |---|---|---|
# | parameters | 4 P | no |
# | gradients | 4 P | no |
# | optimizer state | SGD 0; momentum 4 P; Adam 8 P, and 4 for each tensor's count of steps | no |
# | activations after forward | 4 B (784 + 5 · 512 + 10) + 8 B + 8 | **yes** |
#
# The last line counts the pictures, the results of five ReLUs, and the ten log-probabilities that
# `cross_entropy` keeps. The labels take 8 B bytes, because each is an int64 of 8 bytes. The last 8 bytes
# are two numbers: the loss, and the number of labels, which `cross_entropy` keeps. The outputs of the
# Linears are not counted: a ReLU's backward needs only its own result, so the Linear's output is released
# as soon as the ReLU is done. After the backward pass the pictures, the labels and the loss are left. Is
# the table right to the byte for three optimizers and three batch sizes?
#
# The second cell trains transformer layers of **real size**. This works on your machine, because with
# `data=False` tensors have shapes but no values. One layer has 0.2 billion parameters. How many GB do you
# predict for 32 layers with Adam?

# %%
guess = None  # the largest difference of all, in bytes?
momentum = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
numbers = [p.numel() for p in network().parameters()]
P = sum(numbers)
state_bytes = {torch.optim.SGD: 0, momentum: 4 * P, torch.optim.Adam: 8 * P + 4 * len(numbers)}
largest = 0

for (make_optimizer, state), B in zip(state_bytes.items(), (16, 64, 256), strict=True):
    by_hand = [4 * P, 4 * P, state, 4 * B * (784 + 5 * 512 + 10) + 8 * B + 8]
    run = simlib.simulate(ask_four_times, 1, args=(make_optimizer, B), cluster=cluster_with())
    held = run.results[0]
    found = [held["step"][column] for column in held["step"]][:3]
    found.append(held["forward"]["activations and temporaries"])
    difference = max(abs(a - b) for a, b in zip(found, by_hand, strict=True))
    largest = max(largest, difference)
    print(f"B = {B:3}: by hand {by_hand}, difference {difference} bytes")
simlib.guess(guess, largest)


# %%
guess = None  # GB of 32 layers


def of_real_size(rank, world_size, layers):
    sizes = 4096, 32, 16_384, 0.0  # width, heads, width inside, dropout
    net = nn.Sequential(*(nn.TransformerEncoderLayer(*sizes) for _ in range(layers)))
    adam = torch.optim.Adam(net.parameters())
    for _ in range(2):
        adam.zero_grad()
        net(torch.rand(2048, 1, 4096)).square().mean().backward()
        adam.step()
    return sum(p.numel() for p in net.parameters())


for count in (2, 4, 32):
    run = simlib.simulate(of_real_size, 1, args=(count,), cluster=cluster_with(), data=False)
    peak, GB = run.memory[0].peak.values(), run.memory[0].peak_bytes / 1e9
    print(
        f"{count:2} layers, {run.results[0] / 1e9:.2f} billion parameters: {GB:6.2f} GB =", end=" "
    )
    print(" + ".join(f"{nbytes / 1e9:.2f}" for nbytes in peak))
simlib.guess(guess, GB, within=0.1)

# %% [markdown]
# Each layer adds 3.22 GB: 4 + 4 + 8 = 16 bytes per parameter. Adam's work space, the last 0.54 GB, counts
# only once. (Lesson 01 also had 16 bytes per parameter, but they were **another sum**, for mixed precision:
# 2 + 2 + 12.) So 32 layers need 104 GB, but the H100 of lesson 01 has only 80 GB. **Memory, not time, is
# the usual reason** to split a model.
#
# ## A network that does not fit
#
# We return to the small network. Now its device has only 12 MB. P is 1.46 million, and the optimizer is
# Adam. The program below trains data-parallel, as in [lesson 07](07_data_parallel_training.ipynb); on one
# rank it is plain training. (`set_to_none=False` keeps the gradients' memory from step to step.) The cell
# is meant to fail, and Run All goes on after it. Will it fail in building, forward, backward or step?

# %% tags=["raises-exception"]
guess = None  # in building, forward, backward or step?
small = cluster_with(memory_bytes=12_000_000)


def train(rank, world_size, B, pieces=1):
    net = network()
    optimizer = torch.optim.Adam(net.parameters())
    n = B // world_size // pieces  # examples at a time
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        for _ in range(pieces):
            x, labels = torch.rand(n, 784), torch.randint(10, (n,))
            (F.cross_entropy(net(x), labels) / pieces).backward()
        for p in net.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()


simlib.simulate(train, 1, args=(1024,), cluster=small)

# %% [markdown]
# The out-of-memory error names the device's memory, the rank's bytes, how much more it needed, and the
# line. The program fails in the first forward pass. The table gives 13.7 MB of activations for B = 1,024,
# and the program had 5.3 MB of them when it failed.
#
# ## What does not help: more data-parallel ranks
#
# So we buy three more devices. Each of four ranks takes a quarter of the batch. Does the network fit now?
# We measure on devices without a limit, and draw the limit as a line.

# %%
guess = None  # does it fit with 4 ranks? "yes" or "no"
runs = {
    f"data parallel, R = {R}": simlib.simulate(train, R, args=(1024,), cluster=cluster_with())
    for R in (1, 2, 4)
}
fits = runs["data parallel, R = 4"].memory[0].peak_bytes < 12_000_000
simlib.guess(guess, "yes" if fits else "no", of=("yes", "no"))
draw_memory(runs, limit_bytes=12_000_000)

# %% [markdown]
# No. Only the top of each bar shrinks, because fewer examples make fewer activations. Every rank still has
# all parameters, gradients and optimizer state. These are 16 P = 23.3 MB, even with a million ranks. **If
# every rank keeps the whole state, more data-parallel ranks do not make it smaller.** But ranks need not
# keep it all: see "Sharding" below, and [lesson 12](12_the_state_of_training.ipynb).
#
# ## What does not help either: smaller pieces
#
# **Gradient accumulation** (lesson 07) goes through a batch in pieces and adds up their gradients. Does
# this save memory in every column? Here one rank takes 1,024 examples in 1, 4 or 16 pieces.

# %%
guess = None  # how many of the four columns shrink with 16 pieces?
whole = {1: runs["data parallel, R = 1"]}
print("pieces         parameters       gradients optimizer state     activations")
for pieces in (1, 4, 16):
    run = whole.get(pieces) or simlib.simulate(
        train, 1, args=(1024, pieces), cluster=cluster_with()
    )
    print_row(f"{pieces:6}", run.memory[0].peak.values())
before, after = (one.memory[0].peak.values() for one in (whole[1], run))
simlib.guess(guess, sum(a < b for a, b in zip(after, before, strict=True)))

# %% [markdown]
# Only one column shrinks: the activations. Accumulation saves no parameter memory, and it *needs* the
# gradients to stay. Even the activations do not go to zero, because Adam's step needs work space. This
# space is twice as large as the largest tensor: 2 x 784 x 512 x 4 bytes, or 3.2 MB. It does not depend on
# the batch.
#
# ## What helps one column: recomputation
#
# `torch.utils.checkpoint` keeps only the *input* of a part of the network. It discards the results inside
# the part, and computes them again in the backward pass. That is when memory has its **peak**. We try it on
# our layers with 1,024 pictures, and on six of lesson 07's transformer blocks with 81 lines of 28 letters.
#
# The layers are 11 modules, numbered 0 to 10. Every second module is a ReLU. **Now you write it:** cut the
# modules into parts, so that the peak of their activations is below 12 MB. `yours` lists the borders:
# `[0, 6, 11]` has one part with modules 0 to 5, and one with 6 to 10.


# %%
import itertools

from torch.utils.checkpoint import checkpoint


def layers(B=1024):
    return network(), torch.rand(B, 784)


def blocks(count=6):
    made = [nn.TransformerEncoderLayer(32, 4, 128, 0.0, batch_first=True) for _ in range(count)]
    return nn.Sequential(*made), torch.rand(81, 28, 32)


def recomputed(rank, world_size, make, borders):
    net, h = make()
    h = h if borders else net(h)
    for begin, end in itertools.pairwise(borders):
        h = checkpoint(net[begin:end], h, use_reentrant=False)
    loss = h.square().mean()
    held = simlib.held()["activations and temporaries"]
    loss.backward()
    return held


# %%
yours = [0, 11]  # one part; say where others begin


def peak_of(make, borders):
    run = simlib.simulate(recomputed, 1, args=(make, borders), cluster=cluster_with())
    peak = run.memory[0].peak["activations and temporaries"]
    print(f"{make.__name__}, {str(borders or 'no part'):24} {run.results[0] / 1e6:5.1f} MB", end="")
    print(f" after forward, {peak / 1e6:5.1f} MB at the peak, {run.time_s * 1e3:6.2f} ms")
    return peak


for borders in ([], [0, 2, 4, 6, 8, 10, 11], [0, 6, 11]):
    peak_of(layers, borders)
for borders in ([], [0, 1, 2, 3, 4, 5, 6], [0, 2, 4, 6], [0, 6]):
    peak_of(blocks, borders)
if yours[:1] == [0] and yours[-1:] == [11] and yours == sorted(set(yours)):
    print("yours:", "right" if peak_of(layers, yours) < 12e6 else "not yet")
else:
    print("yours: not yet, for borders go from 0 to 11, each larger than the one before")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `yours = [0, 4, 8, 11]`
#
# </details>
#
# One part saves nothing: its backward needs everything inside at once. Six parts of layers keep as much as
# no part, because the inputs of the parts *are* the pictures and the results of the ReLUs. A transformer
# block keeps much more than its input. So if each block is a part, the peak falls to a third. The price is
# one more forward pass. (For a chain of n equal layers, Chen et al. 2016, arXiv 1604.06174, take parts of
# about $\sqrt n$ layers.)
#
# ## Sharding: the optimizer state in pieces
#
# Data-parallel ranks all make the same optimizer step. So one rank need not step *every* layer. Let each
# rank keep Adam's state for some layers, step those layers, and broadcast their new weights. **Now you
# write it:** `my_share` returns which of the layers 0 to 5 belong to this rank. The weights must equal
# those of one process. The states of all ranks together must be as large as the state of one process.


# %%
def my_share(rank, world_size):
    return range(6)  # yours: the layers whose state this rank keeps


def sharded(rank, world_size, share):
    net, x, labels = network(), torch.rand(60, 784), torch.randint(10, (60,))
    mine = [p for k in share(rank, world_size) for p in net[2 * k].parameters()]
    optimizer = torch.optim.Adam(mine)
    F.cross_entropy(net(x[rank::world_size]), labels[rank::world_size]).backward()
    for p in net.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    for number, p in enumerate(net.parameters()):  # two to a layer
        keeps = [number // 2 in share(r, world_size) for r in range(world_size)]
        dist.broadcast(p.data, src=keeps.index(True) if any(keeps) else 0)
    return simlib.held()["optimizer state"], [p.data for p in net.parameters()]


one = simlib.simulate(sharded, 1, args=(lambda *_: range(6),), cluster=cluster_with()).results[0]
for R in (2, 3):
    found = simlib.simulate(sharded, R, args=(my_share,), cluster=cluster_with()).results
    states = [state for state, _ in found]
    off = max((a - b).abs().max() for _, net in found for a, b in zip(net, one[1], strict=True))
    print(f"R = {R}: {states}, in all {sum(states):,}; same weights: {bool(off < 1e-4)};", end=" ")
    print("right" if sum(states) == one[0] and off < 1e-4 else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return range(rank, 6, world_size)`, or any other way to give each layer to one rank.
#
# </details>
#
# Together the ranks keep the 8 P bytes and Adam's counts **once**, not R times. Lesson 12 also cuts
# gradients and parameters.
#
# ## Half the bits: autocast, by dtype
#
# `torch.autocast` computes products in bfloat16 and leaves parameters in float32. Does that halve the
# memory? The cells run one step of Adam, and print bytes and dtypes of the parameters, the gradients,
# Adam's state, and the activations that autograd keeps. Which of the four shrinks at B = 1,024?

# %%
guess = None  # "parameters", "gradients", "state" or "activations"


def by_dtype(rank, world_size, make, is_mixed):
    (net, x), kept = make(), {}
    optimizer = torch.optim.Adam(net.parameters())
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = str(tensor.dtype)[6:], storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
        net(x).float().square().mean().backward()
    optimizer.step()
    sums = [sum(n for d, n in kept.values() if d == dtype) for dtype in ("float32", "bfloat16")]
    lasting = [*net.parameters(), *(p.grad for p in net.parameters())]
    lasting += [tensor for of_one in optimizer.state.values() for tensor in of_one.values()]
    return {str(t.dtype)[6:] for t in lasting}, list(simlib.held().values())[:3], sums


# %%
nets = {"B = 64": functools.partial(layers, 64), "B = 1024": layers, "blocks": blocks}
for (name, make), is_mixed in itertools.product(nets.items(), (False, True)):
    run = simlib.simulate(by_dtype, 1, args=(make, is_mixed), cluster=cluster_with())
    dtypes, held, sums = run.results[0]
    print(f"{name:8}", "autocast" if is_mixed else "without ", *dtypes, held, end="; ")
    print(f"kept: float32 {sums[0]:,}, bfloat16 {sums[1]:,}")
print("by hand:", [2 * B * (784 + 5 * 512) + 2 * (4 * 512**2 + 5120) for B in (64, 1024)])
simlib.guess(guess, "activations", of=("parameters", "gradients", "state", "activations"))

# %% [markdown]
# Only activations shrink. Parameters, gradients and state stay float32, so they still take 16 P bytes, plus
# Adam's counts. And autograd keeps a 16-bit **copy** of the weights of five layers. It needs no copy of the
# first layer's weights, because the pictures need no gradient. The copies do not depend on B. So with few
# examples autocast needs *more* memory. A block's layer norms still compute in float32, so autocast reduces
# the activations of the blocks only to 60 %.
#
# From here on we take 256 examples at a time, so activations are small. We now call parameters, gradients
# and optimizer state together the **state** of a rank. 23.3 MB of state do not fit into 12 MB. We have to
# cut.
#
# ## The cut
#
# The network is a chain: layer 4 needs only the result of layers 1 to 3. So we can cut between any two
# layers. Each piece is a **stage**, and each rank gets one. `STAGES[R]` lists the first and last layer of
# each of R stages. How large is the state of each, with 16 bytes per parameter?

# %%
guess = None  # with how many stages, 1, 2 or 3, does the state of the largest fit into 12 MB?
STAGES = {1: [(1, 6)], 2: [(1, 2), (3, 6)], 3: [(1, 1), (2, 3), (4, 6)]}
images, labels = simlib.digits.load()[0][:64]  # for later: 64 real digits
images = images.flatten(1)


def state_mb(first, last):
    return 16 * sum(p.numel() for p in network(first, last).parameters()) / 1e6


for R, stages in STAGES.items():
    print(f"stages: {R};", ", ".join(f"{state_mb(*stage):.1f} MB" for stage in stages))
largest = [f"{max(state_mb(1, last), state_mb(last + 1, 6)):.1f}" for last in range(1, 6)]
print("two stages, cut after layer 1, 2, ... 5: the largest has", ", ".join(largest), "MB")
simlib.guess(guess, min(R for R in STAGES if max(state_mb(*one) for one in STAGES[R]) < 12))

# %% [markdown]
# Two stages are too few: even with the best cut, the larger has 12.7 MB. Three stages leave room for
# activations and work space. Now the stages must communicate. Forward is easy: a rank receives the
# activations h from the rank before it, runs its layers on them and sends the result to the rank after it.
#
# ## Wrong way 1: the gradient stays at home
#
# Two ranks train on real digits. The first sends its activations; the second receives them, computes the
# loss, and calls `backward` as usual. Will the loss fall?

# %%
guess = None  # on how many of the two ranks do weights get a gradient?


def stays_at_home(rank, world_size, steps):
    net = network(*STAGES[2][rank])
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        if rank == 0:
            dist.send(net(images), dst=1)
        else:
            h = torch.empty(64, 512)
            dist.recv(h, src=0)
            loss = F.cross_entropy(net(h), labels)
            loss.backward()
            if step % 10 == 0:
                print(f"step {step}: loss {loss.item():.2f}")
        optimizer.step()
    print("tensors with a gradient:", sum(p.grad is not None for p in net.parameters()))


run = simlib.simulate(stays_at_home, 2, args=(31,), cluster=cluster_with())
print(*run.memory, sep="\n")
simlib.guess(guess, sum(ledger.peak["gradients"] > 0 for ledger in run.memory))

# %% [markdown]
# The loss falls, but half of the model never learned anything. Layers 1 and 2 kept their random weights;
# layers 3 to 6 adapted to them. No error was raised, because an optimizer skips parameters without a
# gradient. The ledger shows the fault: rank 0 has 0 bytes of gradients and of optimizer state.
#
# The reason is that autograd records what happens to a tensor *in its own process*. It does not record a
# message. On rank 1, `h` is a new tensor without a history. We write $\theta_0$ for the weights of rank 0.
# By the chain rule
#
# $$\frac{\partial L}{\partial \theta_0} =
# \underbrace{\frac{\partial L}{\partial h}}_{\text{rank 1 can work it out}} \cdot
# \underbrace{\frac{\partial h}{\partial \theta_0}}_{\text{rank 0 can}}$$
#
# So each boundary needs a second message, in the other direction: the gradient of the loss with respect to
# h. It has the shape of h.
#
# ## Wrong way 2: a backward that nobody calls
#
# With a `torch.autograd.Function` you define both passes of an operation yourself, as `forward` and
# `backward`. `Send.apply(h, dst)` calls `forward` and records that `backward` belongs to it. `ctx` passes
# notes from `forward` to `backward`. `backward` gets the gradient of the result of `forward`. It returns
# one gradient for each input of `forward`, and None for an input that is no tensor. The backward of *send
# h* is *receive its gradient*. The backward of *receive h* is *send its gradient*. `Send` must return
# something on which we can call `backward`. So it returns a zero, the **receipt**. Read the program and
# look for its flaw.
#
# Each rank calls `backward` on the last result of its forward pass. On the last rank this is the loss, on
# the others the receipt. Three ranks have two boundaries, so there should be two messages forward and two
# back. The cell is meant to fail. Which of the four messages are sent?


# %%
class Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, dst):
        ctx.shape, ctx.dst = h.shape, dst
        dist.send(h, dst)
        return torch.zeros(())  # the receipt

    @staticmethod
    def backward(ctx, _):
        gradient = torch.empty(ctx.shape)
        dist.recv(gradient, ctx.dst)
        return gradient, None  # for h, for dst


class ReceiveAlone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shape, src):
        ctx.src, h = src, torch.empty(shape)
        dist.recv(h, src)
        return h

    @staticmethod
    def backward(ctx, gradient):
        dist.send(gradient, ctx.src)
        return None, None  # for shape, for src


# %% tags=["raises-exception"]
guess = None  # which messages? What happens then?


def forward(rank, world_size, net, receive, x, labels):
    """This rank's part of the forward pass; returns what to call backward on."""
    h = x if rank == 0 else receive((len(labels), net[0].in_features), rank - 1)
    y = net(h)
    return Send.apply(y, rank + 1) if rank < world_size - 1 else F.cross_entropy(y, labels)


def gradients(rank, world_size, receive):
    net = network(*STAGES[world_size][rank])
    forward(rank, world_size, net, receive, images, labels).backward()
    return [p.grad for p in net.parameters()]


simlib.run(gradients, 3, args=(ReceiveAlone.apply,))

# %% [markdown]
# Two messages go forward; none comes back. Rank 2 has called `backward`, got the gradients of its own
# weights and finished. Its `ReceiveAlone.backward` was never called: autograd goes back only to inputs that
# need a gradient. The inputs of `ReceiveAlone` are a shape and a rank, which need none. So the received `h`
# was again a constant. Rank 1 waits for rank 2, which has finished; rank 0 waits for rank 1. (In the
# picture an arrow means *waits for*, not *sends to*.)
#
# The fix is one more input, a **ticket**. This is a zero that needs a gradient, but will never get one.
# Then autograd records the function. Are the gradients now the same as in one process?


# %%
class Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ticket, shape, src):
        return ReceiveAlone.forward(ctx, shape, src)

    @staticmethod
    def backward(ctx, gradient):
        return None, *ReceiveAlone.backward(ctx, gradient)


def receive(shape, src):
    return Receive.apply(torch.zeros((), requires_grad=True), shape, src)


def all_gradients(run):
    return [gradient for of_rank in run.results for gradient in of_rank]


alone = simlib.run(gradients, 1, args=(receive,))
for R in (2, 3):
    split = simlib.run(gradients, R, args=(receive,))
    pairs = list(zip(all_gradients(alone), all_gradients(split), strict=True))
    largest = max((a - b).abs().max().item() for a, b in pairs)
    print(R, "ranks:", sum(split.messages), "messages; differences below 1e-8:", largest < 1e-8)
print(len(pairs), f"tensors, gradients up to {max(a.abs().max().item() for a, _ in pairs):.2f}")

# %% [markdown]
# The gradients are the same, with $2 (R - 1)$ messages: one in each direction over each boundary. A split
# by layers does the same additions and multiplications, only on other ranks.
#
# ## Wrong way 3: both send
#
# Now each rank processes two half batches, one after the other, and adds up their gradients. Each rank
# follows a plan. In a plan, F is the forward pass of the next half. B, here not the batch size, is the
# backward pass of the oldest half that still waits for one. Rank 0 follows FFBB, so it sends both halves
# first. Rank 1 follows FBFB, so it finishes one half before it receives the other. Each plan alone is
# sensible, but the run is meant to fail. What happens?

# %% tags=["raises-exception"]
guess = None  # what happens with FFBB and FBFB?


def two_halves(rank, world_size, plans):
    net = network(*STAGES[world_size][rank])
    halves, begun = list(zip(images.chunk(2), labels.chunk(2), strict=True)), []
    for letter in plans[rank]:
        if letter == "F":
            begun.append(forward(rank, world_size, net, receive, *halves.pop(0)))
        else:
            # half of each mean: together the mean of all (halving a receipt changes nothing)
            (begun.pop(0) / 2).backward()
    return [p.grad for p in net.parameters()]


simlib.run(two_halves, 2, args=(["FFBB", "FBFB"],))

# %% [markdown]
# Rank 0 sends its second activations. Rank 1 sends the first gradient. Each waits until the other receives.
# This is the deadlock of lesson 03, now with one of the sends hidden in `backward`. The order still
# matters, and the ranks must agree on it.


# %%
guess = None  # how many of these two plans work?
works = 0
for plans in (["FBFB", "FBFB"], ["FFBB", "FFBB"]):
    split = simlib.run(two_halves, 2, args=(plans,))
    pairs = zip(all_gradients(alone), all_gradients(split), strict=True)
    largest = max((a - b).abs().max().item() for a, b in pairs)
    works += largest < 1e-6
    print(*plans, "- largest difference to one process below 1e-6:", largest < 1e-6)
simlib.guess(guess, works)

# %% [markdown]
# Both plans work. FFBB keeps the activations of two halves at once, FBFB only those of one.
# [Lesson 11](11_pipelines.ipynb) makes plans for many ranks and many pieces.
#
# ## It fits
#
# Now we train in stages, with Adam and 256 examples. The picture shows the peak of each rank, and the limit
# of 12 MB as a line. The lines above the picture come from devices with only 12 MB. They show which ranks
# fail with two stages. With three stages they compare the state of each rank with the sum by hand. Which
# ranks will fail with two stages? How tall is the tallest bar with three?

# %%
guess = None  # the tallest bar with 3 stages, in MB


def train_split(rank, world_size, B=256):
    net = network(*STAGES[world_size][rank])
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        x, labels = torch.rand(B, 784) if rank == 0 else None, torch.randint(10, (B,))
        forward(rank, world_size, net, receive, x, labels).backward()
        optimizer.step()


try:
    simlib.simulate(train_split, 2, cluster=small)
except simlib.OutOfMemoryError as error:
    print(*(t.partition(";")[0] for t in str(error).split("\n") if "memory" in t), sep="\n")
stages = {R: simlib.simulate(train_split, R, cluster=cluster_with()) for R in (1, 2, 3)}
for ledger in simlib.simulate(train_split, 3, cluster=small).memory:
    tensors = [p.numel() for p in network(*STAGES[3][ledger.rank]).parameters()]
    found = sum(list(ledger.peak.values())[:3])
    print(f"rank {ledger.rank} of 3: {ledger.peak_bytes:,} bytes at its peak;", end=" ")
    print(f"state less that by hand: {found - 16 * sum(tensors) - 4 * len(tensors)}")
simlib.guess(guess, max(one.peak_bytes for one in stages[3].memory) / 1e6, within=0.1)
draw_memory({f"stages: {R}": run for R, run in stages.items()}, limit_bytes=12_000_000)

# %% [markdown]
# With three stages every bar stays below the line. Rank 0 has the smallest state, but needs the most work
# space, as it has the largest tensor. The tallest bar decides whether the network fits. In the exercises
# you choose the cut. With two stages both ranks fail. Rank 0's state, 10.6 MB, would fit alone, but not
# with Adam's work space. So do not plan with 16 P alone.
#
# ## The two pictures, from two runs
#
# The pictures show data and model parallelism side by side. Each rank reports how many bytes of each of the
# six layers it holds, and which of six examples go through it. A cell is full if the rank holds this layer
# or gets this example. The numbers below the cells count layers, 1 to 6, and examples, 0 to 5. Which cells
# will be full on the left (data parallel), and which on the right (model parallel)?

# %%
guess = None  # how many of the 18 cells of parameters are full on the right?


def report(net, first, examples):
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    held = [sum(p.nbytes for p in layer.parameters()) for layer in linear]
    return dict(enumerate(held, first)), examples


def data_parallel(rank, world_size):
    net, mine = network(), list(range(rank, 6, world_size))
    F.cross_entropy(net(images[mine]), labels[mine]).backward()
    return report(net, 1, mine)


def model_parallel(rank, world_size):
    net = network(*STAGES[world_size][rank])
    forward(rank, world_size, net, receive, images[:6], labels[:6]).backward()
    return report(net, STAGES[world_size][rank][0], list(range(6)))


functions = (data_parallel, model_parallel)
runs_of = {f.__name__.replace("_", " "): simlib.run(f, 3) for f in functions}
simlib.guess(guess, sum(len(held) for held, _ in runs_of["model parallel"].results))
draw_parts(runs_of)

# %% [markdown]
# On the left every rank has every parameter, and each example is on one rank. On the right each parameter
# is on one rank, and every rank sees every example. The messages differ as well. Data-parallel ranks give
# gradients of 4 P bytes to the all_reduce, for any batch size. Stages send activations and their gradients.
# These are 4 B x 512 bytes over each boundary in each direction, for any number of parameters. (The layers
# at the boundary are 512 wide.) On 3 ranks, from which batch size on does the busiest stage send more bytes
# than a rank of a ring all_reduce?

# %%
guess = None  # which B? Within a fifth is near enough
calls = runs["data parallel, R = 2"].trace.collectives
print("data parallel, brought by a rank in a step:", sum(c.nbytes for c in calls) // 2, "bytes")
for R in (2, 3):
    sent = max(stages[R].bytes_sent) // 2
    print(f"{R} stages, sent by the busiest rank in a step: {sent} bytes")
ring_bytes = 2 * (3 - 1) / 3 * 4 * P  # what a ring all_reduce on 3 ranks sends, lesson 05
print(f"3 ranks: the ring sends {ring_bytes:,.0f} bytes; rank 1 sends as much", end=" ")
print(f"at B = {ring_bytes / (2 * 4 * 512):.0f}")
simlib.guess(guess, ring_bytes / (2 * 4 * 512), within=0.2)

# %% [markdown]
# For small batches the stages send less; for large batches the data-parallel ranks send less. But a stage
# has to *wait* for its bytes.
#
# ## What the cut costs in time
#
# "Three devices work on the network now, so a step takes a third of the time." Is that right? We run one
# step with 64 examples on 1, 2 and 3 devices, connected by 10 Gbit Ethernet. **Now you write it:**
# `yours_s` returns the time on R devices. It gets the time on one device, and the time of one message.


# %%
def yours_s(alone_s, R, message_s):
    return None  # yours


network_link = cluster_with().inter
message_s = network_link.latency_s + 4 * 64 * 512 / network_link.bandwidth_Bps
steps = {R: simlib.simulate(gradients, R, args=(receive,), cluster=cluster_with()) for R in STAGES}
alone_s = steps[1].time_s
for R, run in steps.items():
    print(f"devices: {R}; {run.time_s * 1e3:.3f} ms,", end=" ")
    print(f"a device is busy for {alone_s / (R * run.time_s):.0%} of the step", end="; ")
    print(f"yours {(yours_s(alone_s, R, message_s) or 0) * 1e3:.3f} ms")
off_s = [abs((yours_s(alone_s, R, message_s) or 0) - run.time_s) for R, run in steps.items()]
print("yours:", "right" if max(off_s) < 1e-9 else "not yet")
steps[3].timeline()

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return alone_s + 2 * (R - 1) * message_s`
#
# </details>
#
# The step takes *longer*. Parts on several devices save no time:
#
# $$T_R = T_1 + 2 (R - 1) \left( \text{latency} + \frac{4 B \cdot 512}{\text{bandwidth}} \right)$$
#
# The picture shows why. In the forward pass a stage waits for the stage before it. In the backward pass it
# waits for the stage after it. Only one rank works at a time; the hatched time is waiting, the pale pieces
# are messages on their way. You pay for three devices and use one at a time. That is the price of memory.
#
# (Parts that work *at the same time* can save time. DistBelief, Dean et al. 2012, cut within layers: a
# speech network of 42 million parameters became at best 2.2 times as fast, on 8 machines. That is another
# cut: [lesson 12](12_tensors_and_state.ipynb).)
#
# ## Is more memory more speed?
#
# "The larger card is faster, because it has more memory." We give the whole network to one device, with 30
# MB or with 300. How much faster is the second? And what if it uses its memory for larger batches? The last
# line is about three devices with 12 MB each. (The modelled clock counts only products of matrices, so
# Adam's step takes no time.)

# %%
guess = None  # B = 64: how many times as fast with 300 MB as with 30?
times_s = []
for memory_bytes, B in ((30e6, 64), (300e6, 64), (300e6, 1024)):
    device = cluster_with(memory_bytes=memory_bytes)
    run = simlib.simulate(train_split, 1, args=(B,), cluster=device)
    times_s.append(run.time_s)
    print(f"{memory_bytes / 1e6:3.0f} MB, B = {B:4}: step {run.time_s / 2 * 1e3:6.2f} ms,", end=" ")
    print(f"{2 * B / run.time_s:,.0f} examples/s")
run = simlib.simulate(train_split, 3, args=(64,), cluster=small)
print(f"3 x 12 MB, B = 64: step {run.time_s / 2 * 1e3:.2f} ms")
simlib.guess(guess, times_s[0] / times_s[1])

# %% [markdown]
# With 300 MB the step takes exactly as long as with 30. Capacity says what fits, not how fast the device
# computes (lesson 01). With more memory you need not cut: one device with 30 MB needs 5.07 ms for a step,
# three devices with 12 MB need 5.61 ms. (A real device has idle units when a batch is small, so larger
# batches help it up to a point.)
#
# ## By hand, on one machine: `.to(device)`
#
# If one machine has several devices, a single process can place parts on them. The lecture (N. S.
# Detlefsen, *Scaling applications*, DTU course 02476) does so. `.to(device)` copies numbers from device to
# device, and autograd records it. So within one process we need no Send and Receive, but each boundary
# needs a `.to`. The cell uses two GPUs if it can.


# %% tags=["nbval-ignore-output"]
class OnTwoDevices(nn.Module):
    def __init__(self, one, other):
        super().__init__()
        self.one, self.other = one, other
        self.first = network(1, 3).to(one)
        self.second = network(4, 6).to(other)

    def forward(self, x):
        h = self.first(x.to(self.one))
        return self.second(h.to(self.other))  # the boundary


gpus = torch.cuda.device_count()
devices = [["cpu", "meta"], ["cpu", "cuda:0"], ["cuda:0", "cuda:1"]][min(gpus, 2)]
print(f"This machine has {gpus} CUDA devices, so the parts go to", " and ".join(devices) + ".")
if gpus == 0:
    print("(meta is a device that every PyTorch has: it knows shapes and holds no numbers.)")
net = OnTwoDevices(*devices)
y = net(images)
print("result:", tuple(y.shape), "on", y.device)
try:
    net.second(net.first(images.to(devices[0])))  # the .to at the boundary is forgotten
except RuntimeError as error:
    print("without .to at the boundary:", error)

# %% [markdown]
# Without the `.to`, PyTorch raises an error, because both factors of a product must be on one device. The
# split is as naive as ours: only one device works at a time. `.to` cannot reach a device of another node;
# there you need messages, as above.
#
# ## What is next
#
# While rank 2 works on this batch, ranks 0 and 1 could work on the next one. If many small pieces are on
# their way at once, most of the waiting disappears. That is a **pipeline**
# ([lesson 11](11_pipelines.ipynb)). If a single layer is too large for any device, you must cut the layer
# ([lesson 12](12_tensors_and_state.ipynb)).
#
# ## Your turn
#
# [Exercises 10](../exercises/10_splitting_the_model.ipynb): a ledger by hand, the best cut, a backward
# across ranks, and two halves that fit.
#
# ## Exit ticket
#
# 1. Which of the four columns become smaller when you double the number of data-parallel ranks?
# 2. A colleague's split model learns, but worse than before. Where in the ledger do you look?
# 3. Why must `Receive` be given a tensor that needs a gradient?
# 4. Four stages are equally fast, and messages take no time. For which part of a step is each device busy?
#
# <details><summary>Answers</summary>
#
# 1. Only the activations, if the batch is shared out among more ranks.
# 2. At the gradients and the optimizer state of the first stages: 0 bytes would mean that nothing comes
#    back.
# 3. Otherwise autograd does not record the function, and never calls its `backward`.
# 4. For a quarter of it.
#
# </details>
#
# **Next:** pipelines, in [lesson 11](11_pipelines.ipynb).
