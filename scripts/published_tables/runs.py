"""Published steps of whole runs, and parts of them: the three of lesson 17."""

from dataclasses import replace

from simlib import Cluster, Device, Link, labs, scale
from simlib.course.labs.plan_model import plan_of

from .rows import Row, Table

YEAR_S = 365 * 86_400
A100 = Device(flops_per_s=312e12, memory_bytes=80e9)
SELENE = Cluster(128, 8, Link(2e-6, 25e9), Link(5e-6, 300e9), A100, rails=8)
GPT_3 = labs.Training(
    layers=96, hidden=12_288, heads=96, sequence=2048, batch=1536, vocabulary=51_200, tokens=300e9,
    ranks=1024, cluster=SELENE, hours=1000, price=0, mtbf_s=YEAR_S, checkpoint_Bps=1e9,
)  # fmt: skip
BERT_BYTES = 2 * 333_694_976
"""Of BERT-Large's gradients in half precision, by the formula of lesson 17."""
SINGLE_CARDS = Cluster(16, 4, Link(30e-6, 40e9 / 8), Link(5e-6, 10e9))


def gpt_3():
    """Seconds of a step of GPT-3 on 1,024 A100, tp 8, pp 16, one sequence at a time."""
    rows = []
    for what, share in (
        ("the data sheet's speed", 1),
        ("half of this speed", 0.5),
        ("138 Tflop/s", 138 / 312),
    ):
        device = replace(A100, flops_per_s=share * 312e12)
        job = replace(GPT_3, cluster=replace(SELENE, device=device))
        rows.append(Row(f"GPUs at {what}", 32, plan_of(job, 8, 16, 1, 0, True, 3600).step.time_s))
    return Table("GPT-3, 1,024 GPUs", "s a step", ".1f", rows)


def bert():
    """Seconds of an all_reduce of BERT-Large's gradients on Ethernet."""
    published = {8: 1.89721, 16: 2.13324, 32: 2.17335, 64: 2.27543}
    sheet_s = scale.time_of("all_reduce", 64, BERT_BYTES, SINGLE_CARDS, "ring", itemsize=2)
    rows = [Row("64 GPUs, links of 40 Gbit/s", published[64], sheet_s)]
    link_Bps = 2 * 7 / 8 * BERT_BYTES / published[8]
    measured = replace(SINGLE_CARDS, inter=Link(0.0, link_Bps), intra=Link(0.0, 10e9))
    for ranks in (16, 32, 64):
        model_s = scale.time_of("all_reduce", ranks, BERT_BYTES, measured, "ring", itemsize=2)
        rows.append(Row(f"{ranks} GPUs, links as on 8 GPUs", published[ranks], model_s))
    return Table("BERT-Large", "s", ".3f", rows)


def raspberries():
    """Milliseconds of a token of Llama 2 7B, split over Raspberry Pis."""
    published = {2: (793.69, 1112), 4: (494.00, 2830), 8: (588.19, 6008)}
    rows = [
        Row(f"{ranks} devices", token_ms, 1312.5 / ranks + kB / 125)
        for ranks, (token_ms, kB) in published.items()
    ]
    return Table("Llama 2 7B, Raspberry Pi 4B", "ms a token", ".0f", rows)
