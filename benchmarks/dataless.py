"""Simulations without data: how long they take here, and what they predict of published runs.

Every row is a run that somebody published, and a program that does what it did: all ranks, two
steps, without data. `cards` says what is assumed of the GPUs, and from where; nothing is fitted to
a row. Rows with torch.compile or float8 are left out: no eager program equals them.

- torchtitan on H100: benchmarks/llama3_h100_202412_torchtitan.md there, rows "FSDP".
- torchtitan on A100: its older docs/performance.md, at 1ea476e. Triton's norm was on.
- Megatron-LM: Narayanan et al. 2021 (arXiv 2104.04473), Table 1, with the micro-batches and chunks
  of examples/sc21/run_table_1.sh there.
- Llama 3: "The Llama 3 Herd of Models", Table 4. Each stage has eight chunks of a layer; the first
  has the embedding alone, the last the output.

Assumed of the network is what NCCL reaches. In a node 360 of 450 GB/s between H100, "exactly what
we'd expect" (NVIDIA/nccl-tests, issue 326), and 232 of 300 between A100; between nodes 86 % of the
line rate (issue 175 has both). A GPU has a network card of 50 GB/s with H100, of 25 for Megatron,
and an eighth of 50 GB/s for torchtitan's A100, whose script is one for AWS, where nodes of such
cards (p4de) have 400 Gbit/s. Latencies are 5 us between nodes and 3 in a node.
"""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import simlib

from . import cards, gpt, training
from .llama import LLAMA_2_13B, LLAMA_2_70B, LLAMA_8B, LLAMA_70B, LLAMA_405B, Sizes
from .spreading import Plan
from .table import heading, line

GIB = 1 << 30
REACHED = 0.86
HOPPER, SELENE, P4DE = (50e9, 360e9), (25e9, 232e9), (50e9 / 8, 232e9)
"""Bytes a second of a GPU: its network card at line rate, and its link in the node."""


@dataclass(frozen=True)
class Row:
    """A run, and what was published of it: GiB reserved, and a rate of each GPU.

    ``done`` is what a GPU does in a step of what the rate counts.
    ``alike`` says which ranks are equal, as in `simlib.simulate`.
    """

    name: str
    ranks: int
    program: Callable
    done: float
    rate: float | None = None
    unit: str = "tokens a second and GPU"
    gib: float | None = None
    device: simlib.Device | None = None
    network: tuple[float, float] = HOPPER
    alike: str | Callable = "auto"


def llama(name, ranks, sizes, plan=training.ONE_D, batch=2, length=8192, **more):
    """A row of `training`."""
    how = {"sizes": sizes, "plan": plan, "batch": batch, "length": length}
    tokens = batch * length / (plan.tensor * plan.stages)
    program = functools.partial(training.train, **how)
    more.setdefault("device", cards.h100_500w())
    return Row(f"Llama {name}", ranks, program, tokens, **more)


def on_a100(name, sizes, checkpointing, batch, length, rate):
    """One of torchtitan's rows on 64 A100."""
    sizes = replace(sizes, fused_norm=True)
    plan = Plan(checkpointing=checkpointing)
    how = {"device": cards.a100(), "network": P4DE, "rate": rate}
    return llama(f"{name} on A100", 64, sizes, plan, batch, length, **how)


def megatron(name, ranks, shape, plan, batch, micro_batch, rate):
    """A row of `gpt`: ``batch`` sequences of all replicas, ``rate`` in Tflop/s."""
    sizes = gpt.Sizes(*shape)
    own = batch * plan.tensor * plan.stages // ranks
    how = {"sizes": sizes, "plan": plan, "batch": own, "micro_batch": micro_batch}
    return Row(
        f"GPT {name}",
        ranks,
        functools.partial(gpt.train, **how),
        sizes.flops(batch) / ranks / 1e12,
        rate,
        "Tflop/s of a GPU",
        device=cards.a100(),
        network=SELENE,
    )


def llama_3(ranks, batch, rate):
    """A row of Llama 3's table, ``rate`` in Tflop/s."""
    plan = Plan(tensor=8, stages=16, rounds=8, checkpointing="none")
    a_stage = ranks // plan.stages

    def part_of(rank):
        """A stage; and in it the ranks that have the rest of 16,032 rows where it has these.

        In all stages: the groups of a class must lie alike in those of another.
        """
        stage, place = divmod(rank, a_stage)
        return stage, place >= a_stage - plan.tensor

    more = {"device": simlib.devices.h100(), "alike": part_of}
    row = llama("405B", ranks, LLAMA_405B, plan, batch, **more)
    a_token = 6 * LLAMA_405B.parameters + 6 * LLAMA_405B.layers * LLAMA_405B.width * 8192
    return replace(row, done=row.done * a_token / 1e12, rate=rate, unit="Tflop/s of a GPU")


SMALL = Sizes(layers=4, width=512, heads=8, key_heads=2, hidden=1536, vocabulary=8192)
ROWS = (
    llama("4 x 512", 8, SMALL, length=512),
    llama("8B", 8, LLAMA_8B, gib=82.4, rate=5762),
    llama("8B", 128, LLAMA_8B, gib=67.0, rate=5605),
    on_a100("8B", LLAMA_8B, "layer", 1, 8192, 2904),
    on_a100("8B", LLAMA_8B, "op", 1, 8192, 2973),
    on_a100("70B", LLAMA_70B, "full", 1, 8192, 331),
    on_a100("2 13B", LLAMA_2_13B, "none", 2, 4096, 2162),
    on_a100("2 13B", LLAMA_2_13B, "layer", 2, 4096, 1914),
    on_a100("2 13B", LLAMA_2_13B, "op", 2, 4096, 1904),
    on_a100("2 70B", LLAMA_2_70B, "op", 1, 4096, 355),
    on_a100("2 70B", LLAMA_2_70B, "full", 2, 4096, 353),
    megatron("1.7B", 32, (24, 2304, 24), Plan(), 512, 16, 137),
    megatron("3.6B", 64, (30, 3072, 32), Plan(tensor=2), 512, 16, 138),
    megatron("7.5B", 128, (36, 4096, 32), Plan(tensor=4), 512, 16, 142),
    megatron("18.4B", 256, (40, 6144, 48), Plan(tensor=8), 1024, 8, 135),
    megatron("39.1B", 512, (48, 8192, 64), Plan(tensor=8, stages=2), 1536, 4, 138),
    megatron("76.1B", 1024, (60, 10_240, 80), Plan(8, 4, rounds=3), 1792, 2, 140),
    megatron("145.6B", 1536, (80, 12_288, 96), Plan(8, 8, rounds=2), 2304, 2, 148),
    megatron("310.1B", 1920, (96, 16_384, 128), Plan(8, 16, rounds=2), 2160, 1, 155),
    megatron("529.6B", 2520, (105, 20_480, 128), Plan(8, 35, rounds=3), 2520, 1, 163),
    megatron("1008B", 3072, (128, 25_600, 160), Plan(8, 64), 3072, 1, 163),
    llama_3(8192, 32, 430),
    llama_3(16_384, 16, 400),
)


def watched(rank, world_size, program, **how):
    """What a program does, and the most memory that the simulating process has taken."""
    return program(rank, world_size, **how), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def simulated(row, steps=2):
    """The run, and seconds of this machine."""
    card_Bps, inside_Bps = row.network
    links = simlib.Link(5e-6, REACHED * card_Bps), simlib.Link(3e-6, inside_Bps)
    cluster = simlib.Cluster(row.ranks // 8, 8, *links, row.device, rails=8, direct_cards=True)
    main = functools.partial(watched, program=row.program, steps=steps)
    begin_s = time.perf_counter()
    run = simlib.simulate(
        main,
        row.ranks,
        cluster=cluster,
        algorithms="nccl",
        data=False,
        alike=row.alike,
        timeout_s=None,
    )
    return run, time.perf_counter() - begin_s


def dataless(rounds):
    """Print what each row takes here, and what it predicts."""
    for row in ROWS:
        heading(f"{row.name}, {row.ranks} ranks, without data")
        run, seconds = simulated(row)
        ran = sum(min(2, len(ranks)) for ranks in run.classes)
        line("seconds, of ranks that ran, for 2 steps", f"{seconds:.0f}, of {ran}")
        line("steps of a rank a minute, ranks that ran", f"{60 * 2 * ran / seconds:.1f}")
        line("steps of a rank a minute, all ranks", f"{60 * 2 * row.ranks / seconds:.1f}")
        line("RAM of the simulating process, GB", f"{run.results[0][1] / 1e6:.2f}")
        predicted(row, run)


def predicted(row, run):
    """Print the last step of rank 0, and the most that one rank of any class has reserved."""
    step = [piece for piece in run.trace.pieces if piece.name == "step" and piece.rank == 0][-1]
    step_s, memory = step.end_s - step.start_s, run.memory[0]
    exposed_s = run.exposed("step", number=1).exposed_s[0]
    line("a step, s", f"{step_s:.3f}")
    line("communication exposed in it", f"{exposed_s / step_s:.1%}")
    line("allocated at the peak, GiB", f"{memory.peak_bytes / GIB:.1f}")
    most = max(run.memory[ranks[0]].reserved_bytes for ranks in run.classes)
    compared("reserved, GiB", most / GIB, row.gib)
    compared(row.unit, row.done / step_s, row.rate)


def compared(what, found, published):
    beside = f" for {published:,}: {found / published - 1:+.1%}" if published else ""
    line(what, f"{found:,.1f}{beside}")
