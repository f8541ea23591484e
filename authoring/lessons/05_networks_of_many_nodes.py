# %% [markdown]
# # 05 Networks of many nodes
#
# This is the last part of lesson 05. In [the second part](05_choosing_all_reduce.ipynb) a node had
# one link into the network. A node with eight GPUs has eight network cards, and between the nodes
# there are several layers of switches. In this part (55 minutes) you will
#
# - predict the time of an all_reduce from the bytes on each kind of link,
# - find a program whose sums are right, but which sends far too many bytes between nodes,
# - write the hierarchical all_reduce, and count its bytes,
# - see what slow links between switches do to a ring,
# - compute the order of ranks that crosses the slow links least often.
#
# As before, there are **n** ranks and tensors have **N** bytes. All figures of links are those of
# `simlib.clusters.h100_nodes`: within a node, a GPU sends 450 GB/s over **NVLink**. A network card
# sends 50 GB/s (400 Gbit/s).

# %%
import itertools
import random

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist

import simlib

NVLINK, CARD = simlib.Link(5e-6, 450e9), simlib.Link(2e-6, 50e9)
N = 1_024_000_000  # bytes: 256 million float32 numbers
BLOCK = [rank // 8 for rank in range(32)]  # the node of each rank, on four nodes
RINGS = {"all_reduce": "ring", "reduce_scatter": "ring", "all_gather": "ring"}


def flat(rank, world_size, numel, node_of=None):
    dist.all_reduce(torch.ones(numel))


def timed_ms(function, cluster, *args, numel=N // 4, **more):
    options = {"cluster": cluster, "data": False} | RINGS | more
    return simlib.simulate(function, cluster.max_ranks, (numel, *args), **options).time_s * 1e3


# %% [markdown]
# `data=False` says that tensors have a size, but no values. So 32 ranks with 1 GB each fit into
# your memory, and the times stay the same.
#
# ## A node with eight cards
#
# The picture shows three nodes with four GPUs each. In each node an NVLink switch joins the GPUs.
# Each GPU also has a network card of its own. The cards with the same number are connected to the
# same switch. These cards and their switch form a **rail**. NVIDIA and other vendors call this a
# [rail-optimized](https://www.juniper.net/documentation/us/en/software/jvd/jvd-ai-dc-apstra-nvidia-weka/rail_optimized_fabric.html)
# network.

# %%
RAILS = ("#0072B2", "#D55E00", "#009E73", "#882255")
CENTRED = {"ha": "center", "va": "center", "size": 9}

figure, axes = plt.subplots(figsize=(7.4, 3.4))
for node in range(3):
    axes.add_patch(plt.Rectangle((5 * node - 0.7, -0.5), 4.4, 3.3, fill=False, ec="#777777"))
    axes.text(5 * node + 1.5, 2.45, f"node {node}: NVLink switch", **CENTRED)
    axes.plot((5 * node, 5 * node + 3), (2.1, 2.1), color="#777777", lw=4)
    for k, color in enumerate(RAILS):
        x = 5 * node + k
        axes.plot((x, x), (1.65, 2.1), color="#777777")
        axes.plot((x, x, None, x, 2 + 3 * k), (0.5, 0.9, None, -0.3, -2.1), color=color)
        axes.text(x, 1.3, f"GPU\n{k}", **CENTRED)
        axes.text(x, 0.1, f"card\n{k}", color=color, **CENTRED)
for k, color in enumerate(RAILS):
    axes.text(2 + 3 * k, -2.5, f"switch {k}", color=color, **CENTRED)
axes.axis("off")
figure.words = "Three nodes of four GPUs. All cards with the same number are on the same switch."
plt.show()

# %% [markdown]
# `Cluster(4, 8, CARD, NVLINK, rails=8, direct_cards=True)` has four nodes with eight GPUs.
# `rails=8` gives each node eight cards. `direct_cards=True` says that a GPU reaches its card
# without using NVLink. With `rails=1` all eight GPUs share one card.
#
# A ring through all 32 ranks leaves each node only once, but it can use all eight cards. NCCL builds
# several rings side by side, and each ring leaves the node by another card ([issue
# 412](https://github.com/NVIDIA/nccl/issues/412)). simlib's `ring` does this, too. A chunk that goes
# to the next node is cut into as many parts as there are cards. As in the second part, a
# message to the next node pays both latencies: the 5 us of its node and the 2 us of the network.
# Its bytes do not use NVLink. A chunk has N/32 bytes. The slowest hop sets the pace of the whole
# ring.
#
# **Now you write it**: the time of the flat ring on the four nodes, if a node has `cards` cards.
# (In the second part you wrote such a formula for one shared link.)


# %%
def ring_s(nbytes, cards):
    return None  # yours: seconds


for nbytes, cards in itertools.product((N, N // 1000), (1, 2, 4, 8)):
    nodes4x8 = simlib.Cluster(4, 8, CARD, NVLINK, rails=cards, direct_cards=True)
    time_ms = timed_ms(flat, nodes4x8, numel=nbytes // 4)
    said = "right" if abs((ring_s(nbytes, cards) or 0) * 1e3 - time_ms) < 1e-6 else "not yet"
    print(f"{nbytes:13,} bytes, {cards} cards: {time_ms:7.3f} ms, {said}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def ring_s(nbytes, cards):
#         slowest = min(450e9, cards * 50e9)
#         return 62 * (7e-6 + nbytes / 32 / slowest)
#
# </details>
#
# For 1 GB, twice as many cards nearly halve the time: it falls from 40 ms with one card to 5.4 ms
# with eight. Eight cards together send 400 GB/s, almost as much as NVLink. For 1 MB all times are
# between 0.44 and 0.47 ms, because the 62 latencies stay.
#
# ## How many bytes leave a node?
#
# The second part's `hierarchical` needs 20 steps in place of 62. Here is a shorter program that
# also works in two levels. First the ranks of a node add up their tensors. Then each rank adds up
# with the ranks at its place in the other nodes. We call such a group a **lane**. Each rank of a
# node has the node's sum, so each lane finds the sum of all ranks.
#
# `node_of[r]` is the node of rank r. The option `placement=node_of` puts each rank on its node.
# `groups_of` lists the ranks of each node and of each lane. `my_group` makes all groups of such a
# list, and returns the group of its rank. With `expand=True` the run also has `run.wire`: the
# messages into which simlib cuts a collective. From these messages, `between` computes how many
# bytes leave the nodes, as a multiple of N. For comparison, a flat ring in the order of the nodes
# sends 2 x 31/32 N across each of four borders. Together that is 7.75 N. How many multiples of N
# does `two_sums` send between the nodes?

# %%
multiple = None  # of N, for all nodes together


def groups_of(node_of):
    nodes = [[r for r, node in enumerate(node_of) if node == k] for k in sorted(set(node_of))]
    return nodes, [list(lane) for lane in zip(*nodes, strict=True)]


def my_group(rank, groups):
    made = [dist.new_group(ranks) for ranks in groups]  # every rank calls every new_group
    return next(group for group, ranks in zip(made, groups, strict=True) if rank in ranks)


def two_sums(rank, world_size, numel, node_of, x=None):
    x = torch.ones(numel) if x is None else x
    for groups in groups_of(node_of):  # first the nodes, then the lanes
        dist.all_reduce(x, group=my_group(rank, groups))
    return x


def between(function, node_of, numel, **more):
    cluster = simlib.Cluster(max(node_of) + 1, 8, CARD, NVLINK)
    options = {"cluster": cluster, "placement": node_of, "expand": True} | RINGS | more
    run = simlib.simulate(function, len(node_of), (numel, node_of), **options)
    return sum(w.nbytes for w in run.wire if node_of[w.src] != node_of[w.dst]) / (4 * numel)


found = between(two_sums, BLOCK, 9600)
print(f"two_sums sends {found:.2f} N between the nodes")
simlib.guess(multiple, found, within=0.05)

# %% [markdown]
# `two_sums` sends 48 N. A lane has four ranks, so its ring sends 4 x 2 x 3/4 N = 6 N. There are
# eight lanes, and each of them adds up the *whole* tensor. The eight ranks of a node send the same
# numbers eight times. Even the flat ring sends fewer bytes.
#
# Between four nodes every algorithm must send at least 2 x (4 - 1) N = 6 N. (This is the argument
# of [the first part](05_building_all_reduce.ipynb), with nodes in place of ranks.) To reach 6 N,
# each lane must add up only an eighth of the tensor.
#
# **Now you write it**: `hierarchical`, for every placement of the ranks, in place. All nodes have
# equally many ranks, and this number divides `numel`.
#
# 1. Get the group of your node and the group of your lane, as `two_sums` does.
# 2. `dist.reduce_scatter_single(part, x, group=node)` adds up in the node. `part` is as long as x
#    divided by the ranks of a node.
# 3. `dist.all_reduce(part, group=lane)` adds up over the nodes.
# 4. `dist.all_gather_single(x, part, group=node)` puts all parts back into x.
#
# (Before torch 2.13, these functions were called `reduce_scatter_tensor` and
# `all_gather_into_tensor`.) The check compares the sums of real ranks with those of one process.
# Then it counts the bytes between the nodes.


# %%
def hierarchical(rank, world_size, numel, node_of, x=None):
    x = torch.ones(numel) if x is None else x
    return x  # yours: add up x over all ranks, in place


def own_numbers(rank, world_size, function, numel, node_of):
    x = torch.arange(float(numel)) + 10.0**rank
    function(rank, world_size, numel, node_of, x)
    return x


def verdict_on(function, node_of, numel):
    n, nodes = len(node_of), len(set(node_of))
    wanted = sum(torch.arange(float(numel)) + 10.0**rank for rank in range(n))
    sums = simlib.run(own_numbers, n, (function, numel, node_of)).results
    if not all(torch.equal(x, wanted) for x in sums):
        return "not yet: some rank has a wrong sum"
    sent, least = between(function, node_of, numel), 2 * (nodes - 1)
    return f"{'right' if sent < least + 0.01 else 'not yet'}: {sent:.2f} N between nodes"


for node_of in ([0, 0, 1, 1], [1, 2, 0, 0, 1, 2], [0, 1, 0, 1, 0, 1]):
    print(node_of, verdict_on(hierarchical, node_of, 36))

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def hierarchical(rank, world_size, numel, node_of, x=None):
#         x = torch.ones(numel) if x is None else x
#         nodes, lanes = groups_of(node_of)
#         node, lane = my_group(rank, nodes), my_group(rank, lanes)
#         part = x.new_empty(numel // len(lanes))
#         dist.reduce_scatter_single(part, x, group=node)
#         dist.all_reduce(part, group=lane)
#         dist.all_gather_single(x, part, group=node)
#         return x
#
# </details>
#
# simlib has an algorithm with the same three phases: `all_reduce="hierarchical"`. So the lesson
# continues with `flat`, and changes only the algorithm. The cell first counts the bytes between the
# nodes. Then it measures how long three programs take, with 1 and 8 cards and two
# sizes. On eight cards, with 1 GB, which program is the quickest? (The hierarchical algorithm has 14
# steps of N/8 bytes within a node, and 6 steps of N/32 bytes between nodes.)

# %%
quickest = None  # "flat ring", "two_sums" or "hierarchical"

for algorithm in ("ring", "hierarchical"):
    print(f"{algorithm}: {between(flat, BLOCK, 9600, all_reduce=algorithm):.2f} N between nodes")
for cards, numel in itertools.product((1, 8), (N // 4, N // 4000)):
    nodes4x8 = simlib.Cluster(4, 8, CARD, NVLINK, rails=cards, direct_cards=True)
    times_ms = {
        "flat ring": timed_ms(flat, nodes4x8, numel=numel),
        "two_sums": timed_ms(two_sums, nodes4x8, BLOCK, numel=numel),
        "hierarchical": timed_ms(flat, nodes4x8, numel=numel, all_reduce="hierarchical"),
    }
    words = ", ".join(f"{name} {time_ms:.3f} ms" for name, time_ms in times_ms.items())
    print(f"{cards} cards, {4 * numel:13,} bytes: {words}")
    if (cards, numel) == (8, N // 4):
        simlib.guess(quickest, min(times_ms, key=times_ms.get), of=list(times_ms))

# %% [markdown]
# The hierarchical algorithm sends 6 N between the nodes. That is an eighth of the 48 N of
# `two_sums`, because a node has eight ranks.
#
# With eight cards and 1 GB the flat ring is the quickest. It uses NVLink and all cards *at the same
# time*. The phases of the hierarchical algorithm follow each other. The cards are idle for 4 ms
# while NVLink works, and NVLink is idle for 3.9 ms while the cards work. With one card the
# hierarchical algorithm is a little quicker than the ring, because it sends 6 N between the nodes
# and not 7.75 N. With 1 MB it takes less than a third of the ring's time, because it has 20 steps
# in place of 62. `two_sums` is never the best. Even with eight cards, each card belongs to a lane
# that adds up all N bytes.
#
# ## Leaf and spine switches
#
# A switch has a limited number of ports. So large networks have two layers or more. The cards are
# connected to **leaf** switches, and the leaf switches to **spine** switches. All links from a leaf
# switch to the spine switches together are its **uplink**. The picture shows this for one rail.

# %%
figure, axes = plt.subplots(figsize=(7.4, 2.9))
for leaf in range(4):
    middle = 4.2 * leaf + 1.5
    for k in range(4):
        axes.plot((4.2 * leaf + k, middle), (0.3, 1.7), color="#777777")
        axes.text(4.2 * leaf + k, 0, f"node\n{4 * leaf + k}", **CENTRED | {"va": "top", "size": 8})
    axes.text(middle, 2, f"leaf {leaf}", color=RAILS[0], **CENTRED)
    for spine in (3.7, 12.1):
        axes.plot((middle, spine), (2.3, 4.1), color=RAILS[1], lw=3)
axes.text(3.7, 4.4, "spine 0", color=RAILS[1], **CENTRED)
axes.text(12.1, 4.4, "spine 1", color=RAILS[1], **CENTRED)
axes.text(-1.2, 3.2, "uplinks", color=RAILS[1], **CENTRED)
axes.axis("off")
figure.words = "16 nodes, four on each leaf switch. Each leaf is linked to both spine switches."
plt.show()

# %% [markdown]
# If the uplink of each leaf switch is as fast as its four cards together, this is a full **fat
# tree**: all nodes can send at full speed to any other nodes. If the uplink is slower, it is
# **oversubscribed**. With 4:1 an uplink carries a quarter of what the four cards can send. Two
# published networks:
#
# - NVIDIA's [DGX SuperPOD](https://docs.nvidia.com/dgx-superpod/reference-architecture-scalable-infrastructure-b200/latest/dgx-superpod-architecture.html)
#   is not oversubscribed. Its plan for 64 nodes has 512 cables from nodes to leaf switches, and 512
#   cables from leaf to spine switches.
# - Meta trained [Llama 3](https://arxiv.org/abs/2407.21783) in a network with three layers for 24,000
#   GPUs (section 3.3.1). The two lower layers have full bandwidth within a pod of 3,072 GPUs. The links
#   between the eight pods are oversubscribed 7:1 (the report writes 1:7).
#
# In simlib, `nodes_per_leaf=4, uplink=Link(...)` describes leaf switches with four nodes each, and
# their uplinks. With `rails=8` each group of four nodes has eight leaf switches, one for each rail.
# An uplink adds 1 us to the latency. Spine switches never delay a message in the model.
#
# Our job has eight nodes. Nodes 0 to 3 share their leaf switches, and so do nodes 4 to 7. The flat
# ring visits the nodes in two orders: `in order` is 0, 1, 2, ..., 7, and `alternating` is 0, 4, 1,
# 5, 2, 6, 3, 7. In each node it visits all eight ranks. At 1:1 the ring takes 6.05 ms in both
# orders. How long does it take in each order at 4:1?

# %%
in_order_ms, alternating_ms = None, None  # at 4:1

ORDERS = {"in order": [0, 1, 2, 3, 4, 5, 6, 7], "alternating": [0, 4, 1, 5, 2, 6, 3, 7]}


def fat_tree(nodes, ratio, per_leaf=4):
    uplink = simlib.Link(1e-6, per_leaf * CARD.bandwidth_Bps / ratio)
    more = {"rails": 8, "direct_cards": True, "nodes_per_leaf": per_leaf, "uplink": uplink}
    return simlib.Cluster(nodes, 8, CARD, NVLINK, **more)


def ranks_in(nodes):
    return [node for node in nodes for _ in range(8)]


RATIOS, found = (1, 2, 4, 8), {}
for name, nodes in ORDERS.items():
    for ratio in RATIOS:
        found[name, ratio] = timed_ms(flat, fat_tree(8, ratio), placement=ranks_in(nodes))
    print(f"{name:12}", ", ".join(f"{ratio}:1 {found[name, ratio]:6.2f} ms" for ratio in RATIOS))
simlib.guess(in_order_ms, found["in order", 4], within=0.1)
simlib.guess(alternating_ms, found["alternating", 4], within=0.15)

# %% [markdown]
# In order, 4:1 costs nothing. Only one node of each group, the last one, sends to the other group.
# So one message crosses an uplink at a time, and even at 4:1 the uplink is as fast as one card. At
# 8:1 it is half as fast. In the alternating order all four nodes send to the other group, so four
# messages share the uplink. Each gets a quarter of 50 GB/s, and the ring takes 3.5 times as long.
# Only the order of the nodes differs.

# %% [markdown]
# ## The order of the ranks
#
# A scheduler gives your job the nodes that are free, in any order. In nearly every random order of
# 32 nodes, all four nodes of some group send to other groups. Then four messages share an uplink.
# So ranks should be numbered by leaf switch and node before the job starts. If the scheduler Slurm
# knows the [switches](https://slurm.schedmd.com/topology.html) of a cluster, it places a job on few
# of them. Meta's scheduler did this for Llama 3, too.
#
# **Now you write it**: `ring_order` returns all ranks in the order in which a ring should visit
# them. `leaf_of[r]` is the leaf switch of rank r. The ring should cross the borders of leaf
# switches as rarely as possible. Among such orders, it should cross the borders of nodes as rarely
# as possible. The check tries all orders of six ranks, and then a job on 32 nodes.


# %%
def ring_order(node_of, leaf_of):
    return list(range(len(node_of)))  # yours: the ranks in order of the ring


def crossings(order, of):
    return sum(of[a] != of[b] for a, b in zip(order, order[1:] + order[:1], strict=True))


for node_of, leaf_of in (
    ([1, 0, 3, 0, 2, 2], [7, 3, 7, 3, 3, 3]),
    ([4, 0, 2, 4, 2, 1], [1, 0, 1, 1, 1, 0]),
):
    orders = itertools.permutations(range(6))
    least = min((crossings(order, leaf_of), crossings(order, node_of)) for order in orders)
    yours = ring_order(node_of, leaf_of)
    crossed = crossings(yours, leaf_of), crossings(yours, node_of)
    is_right = sorted(yours) == list(range(6)) and crossed == least
    words = f"borders of leaf switches, of nodes: {crossed}, the least {least}"
    print(words, "right" if is_right else "not yet")
nodes = random.Random(5).sample(range(32), 32)
leaves = [node // 4 for node in nodes]
crossed = crossings(ring_order(nodes, leaves), leaves)
print(f"32 nodes in random order: {crossed} borders,", "right" if crossed == 8 else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def ring_order(node_of, leaf_of):
#         return sorted(range(len(node_of)), key=lambda rank: (leaf_of[rank], node_of[rank]))
#
# </details>
#
# Real networks have one more problem, which the model does not contain. Each flow of packets uses
# one spine switch. Two flows may choose the same spine switch, while another one is idle.
#
# ## Your turn
#
# [Exercises 05](../exercises/05_building_all_reduce.ipynb), tasks 5 and 6: an all_reduce with a
# budget of bytes between nodes, and the ring with the fastest slowest hop.
#
# ## Exit ticket
#
# 1. A job has 16 nodes with eight GPUs and eight cards each. It adds up N bytes by the hierarchical
#    algorithm. How many bytes does one card send?
# 2. A network has eight pods of 384 nodes. Between the pods it is oversubscribed 7:1. Does this slow
#    down a ring whose ranks are sorted by pod? And a ring in random order?
#
# <details><summary>Answers</summary>
#
# 1. Each lane has 16 ranks and an eighth of the tensor: 2 x 15/16 x N/8 = 0.234 N.
# 2. No: one node of the pod sends to another pod, and the uplink is as fast as 384 / 7 = 55 nodes. In
#    random order about 7 of 8 nodes send to another pod. Then more than 336 messages share each uplink,
#    so a hop between pods takes about six times as long.
#
# </details>
#
# **Next:** [lesson 06](06_synchronous_sgd.ipynb), which puts `all_reduce` to work: the derivation
# of synchronous SGD.
