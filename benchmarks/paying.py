"""Lesson 09's prediction of an epoch, against the epoch of real ranks of this machine.

Predicted from two measurements: what a step of one rank computes, and the link that a ping-pong of
two ranks shows (`simlib.labs.fit_ping_pong`, as in lesson 02). T_sync is what Gloo's messages take
on that link. Epoch and ping-pong are those of the lesson's cells.
"""

from __future__ import annotations

import os
import statistics

import simlib
from simlib import digits, labs

from .lesson import lesson_names
from .table import heading, line, spread

BATCH, EXAMPLES = 40, 960
WORLDS = (1, 2, 4)
SIZES = [4 * 4**k for k in range(11)]
EXPLANATION = """
One rank is predicted from its own steps: its error shows how steady the machine is. Two ranks share
memory, caches and whatever else runs here, and whoever comes first to an all_reduce waits for the
other: predicted is usually too short. Ranks that outnumber the cores take turns, so their compute
is multiplied by ranks / cores; a rank that waits for a message then also waits for a core, which no
model of a network knows. Copying and adding in an all_reduce need a core, too."""


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
    lesson = lesson_names("09_when_does_it_pay", {"lenet", "real_epoch", "ping_pong"})
    times_s = simlib.run(lesson["ping_pong"], 2, (SIZES,)).results[0]
    link = simlib.Link(*labs.fit_ping_pong(list(zip(SIZES, times_s, strict=True))))
    line("latency, us", f"{link.latency_s * 1e6:.0f}")
    line("bandwidth, GB/s", f"{link.bandwidth_Bps / 1e9:.2f}")
    data = (*(tensor[:EXAMPLES] for tensor in digits.load()[0].tensors), BATCH)
    measured = {ranks: [] for ranks in WORLDS}
    for _ in range(rounds):
        for ranks in WORLDS:
            measured[ranks].append(max(simlib.run(lesson["real_epoch"], ranks, data).results))
    alone = [(epoch_s - sync_s) / (EXAMPLES / BATCH) for epoch_s, sync_s in measured[1]]
    compute_s = statistics.median(alone)
    line("T_comp of one rank, ms", spread(alone, 1e3, 1))
    nbytes = 4 * sum(weight.numel() for weight in lesson["lenet"]().parameters())
    for ranks, found in measured.items():
        epochs_s = [epoch_s for epoch_s, _ in found]
        predicted_s = predict(ranks, compute_s, nbytes, link, cores)
        error = predicted_s / statistics.median(epochs_s) - 1
        name = f"{ranks} rank{'s' * (ranks > 1)}: predicted {predicted_s * 1e3:,.0f} ms; measured"
        line(name, f"{spread(epochs_s, 1e3, 0)} ms", f"error {error:+.0%}")
    print(EXPLANATION)
