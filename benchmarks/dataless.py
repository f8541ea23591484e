"""Simulations without data: how long they take here, and what they predict of published runs.

The rows are torchtitan's that ran eagerly: benchmarks/llama3_h100_202412_torchtitan.md, and for
A100 its older docs/performance.md. No constant is fitted to them. Assumed of the H100 before the
run: products reach 768 Tflop/s in bfloat16 (measured with matrices of 8192 x 8192), 50 Tflop/s in
float32, the memory 90 % of its 2.4 TB/s, and the host needs 8 us to begin an operation. A100 are
those of `simlib.devices.a100`, by their data sheet.
"""

from __future__ import annotations

import functools
import resource
import time
from dataclasses import dataclass

import simlib

from .llama import LLAMA_8B, LLAMA_70B, Sizes
from .spreading import Plan
from .table import heading, line
from .training import train

GIB = 1 << 30
H100 = simlib.Device(
    rates={"bfloat16": 768e12, "float32": 50e12},
    memory_Bps=0.9 * 2.4e12,
    memory_bytes=96e9,
    launch_s=8e-6,
    workspace_bytes=32 << 20,
    asynchronous=True,
)
SMALL = Sizes(layers=4, width=512, heads=8, key_heads=2, hidden=1536, vocabulary=8192)


@dataclass(frozen=True)
class Row:
    """A run, and what was published of it: GiB reserved, tokens a second and GPU."""

    name: str
    sizes: Sizes
    ranks: int
    plan: Plan = Plan()
    batch: int = 2
    length: int = 8192
    device: simlib.Device = H100
    gib: float | None = None
    tokens_per_s: float | None = None


ROWS = (
    Row("4 x 512", SMALL, 8, length=512),
    Row("8B", LLAMA_8B, 8, gib=82.4, tokens_per_s=5762),
    Row("8B", LLAMA_8B, 128, gib=67.0, tokens_per_s=5605),
    Row("8B on A100", LLAMA_8B, 64, batch=1, device=simlib.devices.a100(), tokens_per_s=2973),
    Row(
        "70B on A100",
        LLAMA_70B,
        64,
        Plan(checkpointing="full"),
        batch=1,
        device=simlib.devices.a100(),
        tokens_per_s=331,
    ),
)


def watched(rank, world_size, **how):
    """`train`, and the most memory that the simulating process has taken."""
    return train(rank, world_size, **how), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def simulated(row, steps=2):
    """The run, and seconds of this machine."""
    links = simlib.Link(5e-6, 50e9), simlib.Link(3e-6, 450e9)
    cluster = simlib.Cluster(row.ranks // 8, 8, *links, row.device, rails=8, direct_cards=True)
    how = {"sizes": row.sizes, "plan": row.plan, "batch": row.batch, "length": row.length}
    main = functools.partial(watched, **how, steps=steps)
    begin_s = time.perf_counter()
    run = simlib.simulate(
        main,
        row.ranks,
        cluster=cluster,
        algorithms="nccl",
        data=False,
        alike="auto",
        timeout_s=None,
    )
    return run, time.perf_counter() - begin_s


def dataless(rounds):
    """Print what each row takes here, and what it predicts."""
    for row in ROWS:
        heading(f"Llama {row.name}, {row.ranks} ranks, without data")
        run, seconds = simulated(row)
        ran = sum(min(2, len(ranks)) for ranks in run.classes)
        line("seconds, of ranks that ran, for 2 steps", f"{seconds:.0f}, of {ran}")
        line("steps of a rank a minute, ranks that ran", f"{60 * 2 * ran / seconds:.1f}")
        line("steps of a rank a minute, all ranks", f"{60 * 2 * row.ranks / seconds:.1f}")
        line("RAM of the simulating process, GB", f"{run.results[0][1] / 1e6:.2f}")
        predicted(row, run)


def predicted(row, run):
    step = [piece for piece in run.trace.pieces if piece.name == "step" and piece.rank == 0][-1]
    step_s, memory = step.end_s - step.start_s, run.memory[0]
    line("a step, s", f"{step_s:.3f}")
    line(
        "communication exposed in it", f"{run.exposed('step', number=1).exposed_s[0] / step_s:.1%}"
    )
    line("allocated at the peak, GiB", f"{memory.peak_bytes / GIB:.1f}")
    compared("reserved, GiB", memory.reserved_bytes / GIB, row.gib)
    compared("tokens a second and GPU", row.batch * row.length / step_s, row.tokens_per_s)


def compared(what, found, published):
    beside = f" for {published:,}: {found / published - 1:+.1%}" if published else ""
    line(what, f"{found:,.1f}{beside}")
