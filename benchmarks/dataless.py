"""Simulations without data: how many steps of a rank a minute they do, and what they predict.

The row of torchtitan is Llama 3.1 8B on 8 H100, FSDP2, eager, selective checkpointing: 82.4 GiB
reserved and 5,762 tokens a second and GPU (benchmarks/llama3_h100_202412_torchtitan.md of
pytorch/torchtitan). No constant is fitted to it. The card's figures are assumed before the run:
those products reach 768 Tflop/s in bfloat16 (an H100 measured with 8192 x 8192 matrices), float32
50 Tflop/s, the memory 90 % of its 2.4 TB/s, and the host needs 8 us to begin an operation.
"""

from __future__ import annotations

import functools
import resource
import time

import simlib

from .llama import LLAMA_8B, Sizes
from .table import heading, line
from .training import train

GIB = 1 << 30
PUBLISHED_GIB, PUBLISHED_TOKENS_PER_S = 82.4, 5762
H100 = simlib.Device(
    rates={"bfloat16": 768e12, "float32": 50e12},
    memory_Bps=0.9 * 2.4e12,
    memory_bytes=96e9,
    launch_s=8e-6,
    workspace_bytes=32 << 20,
    asynchronous=True,
)
NODE = simlib.Cluster(1, 8, simlib.Link(5e-6, 50e9), simlib.Link(3e-6, 450e9), H100, rails=8)
SMALL = Sizes(layers=4, width=512, heads=8, key_heads=2, hidden=1536, vocabulary=8192)


def watched(rank, world_size, **how):
    """`train`, and the most memory that the simulating process has taken."""
    return train(rank, world_size, **how), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def simulated(sizes, ranks, length, steps):
    """The run, and seconds of this machine."""
    begin_s = time.perf_counter()
    main = functools.partial(watched, sizes=sizes, length=length, steps=steps)
    run = simlib.simulate(main, ranks, cluster=NODE, algorithms="nccl", data=False, timeout_s=None)
    return run, time.perf_counter() - begin_s


def dataless(rounds):
    """Print steps a minute, memory of this machine, and the predictions beside the row."""
    heading("Llama without data: FSDP2 over all ranks")
    for name, sizes, ranks, length in (("4 x 512", SMALL, 8, 512), ("8B", LLAMA_8B, 8, 8192)):
        run, seconds = simulated(sizes, ranks, length, steps=3)
        line(f"{name}, {ranks} ranks: steps of a rank a minute", f"{60 * 3 * ranks / seconds:.1f}")
        line("RAM of the simulating process, GB", f"{run.results[0][1] / 1e6:.2f}")
    step = [piece for piece in run.trace.pieces if piece.name == "step" and piece.rank == 0][-1]
    tokens_per_s = 2 * 8192 / (step.end_s - step.start_s)
    memory = run.memory[0]
    line("a step, s", f"{step.end_s - step.start_s:.3f}")
    line("communication exposed, of all steps", f"{run.exposed().exposed_s[0] / run.time_s:.1%}")
    compared("reserved, GiB", memory.reserved_bytes / GIB, PUBLISHED_GIB)
    compared("tokens a second and GPU", tokens_per_s, PUBLISHED_TOKENS_PER_S)
    line("allocated at the peak, GiB", f"{memory.peak_bytes / GIB:.1f}")


def compared(what, found, published):
    line(what, f"{found:,.1f} for {published:,}: {found / published - 1:+.1%}")
