"""The lesson's own DDP against torch's, on real ranks: throughput, and what overlap brings.

The class is taken from lesson 08's source (`own_ddp`): what is measured here, and compared
with torch's in the tests, is what learners read. A second copy would drift from it.
"""

from __future__ import annotations

import functools

import simlib

from .lesson import lesson_names
from .table import heading, line, ratio, spread

WANTED = {"lenet", "Bucket", "in_buckets", "Reducer", "OwnDDP"}
CAP_MB = 0.25
BATCH = 32
STEPS = 8  # of one way in one round; torch's first one has one bucket, and is left out


def own_ddp():
    """Lesson 08's `OwnDDP`, and what it needs, by name."""
    return lesson_names("08_from_loops_to_ddp", WANTED)


def steps_of(rank, world_size, ways, lenet, rounds):
    """Seconds of training steps of each way, the ways in turn: ``{name: list, one per round}``.

    All ways live in the same ranks at the same time, so that nothing else differs.
    """
    import statistics
    import time

    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(BATCH, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (BATCH,), generator=generator)
    models = {name: wrap(lenet()) for name, wrap in ways.items()}
    optimizers = {name: torch.optim.SGD(m.parameters(), lr=0.01) for name, m in models.items()}
    seconds = {name: [] for name in ways}
    for _ in range(1 + rounds):
        for name, model in models.items():
            taken = []
            for _ in range(STEPS):
                dist.barrier()
                start = time.perf_counter()
                optimizers[name].zero_grad()
                torch.nn.functional.nll_loss(model(images), labels).backward()
                optimizers[name].step()
                taken.append(time.perf_counter() - start)
            seconds[name].append(statistics.median(taken))
    return {name: found[1:] for name, found in seconds.items()}  # the first round warms up


def ddp(rounds):
    """Print the table of both DDPs."""
    from torch.nn.parallel import DistributedDataParallel

    heading("The lesson's own DDP and torch's: LeNet, 32 images per rank and step")
    lesson = own_ddp()
    own = functools.partial(lesson["OwnDDP"], cap_mb=CAP_MB)
    torchs = functools.partial(DistributedDataParallel, bucket_cap_mb=CAP_MB)
    ways = {
        "torch's": torchs,
        "own": own,
        "torch's again": torchs,
        "own, no overlap": functools.partial(own, overlap=False),
        "torch's, one bucket": functools.partial(DistributedDataParallel, bucket_cap_mb=1000),
    }
    for ranks in (2, 4):
        args = ways, lesson["lenet"], 4 * rounds
        found = simlib.run(steps_of, ranks, args=args, timeout_s=600).results[0]
        line(f"a step on {ranks} ranks, torch's, ms", spread(found["torch's"], 1e3, 1))
        rate = ratio(found["torch's"], found["own"])
        line("  own / torch's, throughput", f"{rate:.2f}", ">= 0.9", rate >= 0.9)
        control = ratio(found["torch's"], found["torch's again"])
        line("  control: torch's again / torch's", f"{control:.2f}")
        for name, off in (("own", "own, no overlap"), ("torch's", "torch's, one bucket")):
            gain = ratio(found[off], found[name])
            line(f"  {name}: overlap on / off, throughput", f"{gain:.2f}")
