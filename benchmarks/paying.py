"""Lesson 09's prediction of an epoch, against the epoch of real ranks of this machine.

Predicted from two measurements: what a step of one rank computes, and the link that a ping-pong of
two ranks shows (`simlib.labs.fit_ping_pong`, as in lesson 02). T_sync is what Gloo's messages take
on that link.
"""

from __future__ import annotations

import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

import simlib
from simlib import digits, labs

from .table import heading, line, spread

BATCH, EXAMPLES = 40, 960
WORLDS = (1, 2, 4)
SIZES = [4 * 4**k for k in range(11)]
REPEATS = 50
EXPLANATION = """
One rank is predicted from its own steps: its error shows how steady the machine is. Two ranks share
memory, caches and whatever else runs here, and whoever comes first to an all_reduce waits for the
other: predicted is usually too short. Ranks that outnumber the cores take turns, so their compute
is multiplied by ranks / cores; a rank that waits for a message then also waits for a core, which no
model of a network knows. Copying and adding in an all_reduce need a core, too."""


def lenet():
    """The article's network: 431,080 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 500),
        nn.ReLU(),
        nn.Linear(500, 10),
    )


def epoch(rank, world_size, images, labels):
    """Seconds of an epoch, and of its all_reduces; a first step of the same kind is not counted."""
    model = lenet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = list(
        zip(
            images[rank::world_size].split(BATCH),
            labels[rank::world_size].split(BATCH),
            strict=True,
        )
    )
    _step(model, optimizer, *batches[0], world_size)
    dist.barrier()
    start_s = time.perf_counter()
    sync_s = sum(_step(model, optimizer, x, y, world_size) for x, y in batches)
    return time.perf_counter() - start_s, sync_s


def _step(model, optimizer, x, y, world_size):
    """One step of synchronous SGD with one flat buffer; returns the seconds of its all_reduce."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    gradients = [weight.grad for weight in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    begin_s = time.perf_counter()
    dist.all_reduce(flat)
    sync_s = time.perf_counter() - begin_s
    flat /= world_size
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
    optimizer.step()
    return sync_s


def ping_pong(rank, world_size):
    """``[(nbytes, seconds)]``: the shortest of many half round trips for each size."""
    points = []
    for nbytes in SIZES:
        x, best_s = torch.zeros(nbytes // 4), float("inf")
        for _ in range(REPEATS):
            start_s = time.perf_counter()
            for turn in (0, 1):
                (dist.send if rank == turn else dist.recv)(x, 1 - rank)
            best_s = min(best_s, time.perf_counter() - start_s)
        points.append((nbytes, best_s / 2))
    return points


def predict(ranks, compute_s, nbytes, link, cores):
    """Seconds of an epoch: (2) of lesson 09, with ranks that take turns on too few cores."""
    sync_s = 0.0
    if ranks > 1:
        cluster = simlib.clusters.loopback(ranks_per_node=ranks, intra=link)
        sync_s = simlib.scale.sync_time(ranks, nbytes, cluster, algorithm="gloo")
    steps = EXAMPLES / (BATCH * ranks)
    return steps * (compute_s * max(1, ranks / cores) + sync_s)


def paying(rounds):
    """Print predicted and measured seconds of an epoch on 1, 2 and 4 real ranks, and the error."""
    cores = os.cpu_count()
    heading(f"An epoch of LeNet, predicted and measured: {EXAMPLES} digits, {cores} cores")
    link = simlib.Link(*labs.fit_ping_pong(simlib.run(ping_pong, 2).results[0]))
    line("latency, us", f"{link.latency_s * 1e6:.0f}")
    line("bandwidth, GB/s", f"{link.bandwidth_Bps / 1e9:.2f}")
    data = [tensor[:EXAMPLES] for tensor in digits.load()[0].tensors]
    measured = {ranks: [] for ranks in WORLDS}
    for _ in range(rounds):
        for ranks in WORLDS:
            measured[ranks].append(max(simlib.run(epoch, ranks, data).results))
    alone = [(epoch_s - sync_s) / (EXAMPLES / BATCH) for epoch_s, sync_s in measured[1]]
    compute_s = statistics.median(alone)
    line("T_comp of one rank, ms", spread(alone, 1e3, 1))
    nbytes = 4 * sum(weight.numel() for weight in lenet().parameters())
    for ranks, found in measured.items():
        epochs_s = [epoch_s for epoch_s, _ in found]
        predicted_s = predict(ranks, compute_s, nbytes, link, cores)
        error = predicted_s / statistics.median(epochs_s) - 1
        name = f"{ranks} rank{'s' * (ranks > 1)}: predicted {predicted_s * 1e3:,.0f} ms; measured"
        line(name, f"{spread(epochs_s, 1e3, 0)} ms", f"error {error:+.0%}")
    print(EXPLANATION)
