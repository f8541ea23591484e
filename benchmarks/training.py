"""Training steps of a Llama as torchtitan's loop does them, for ranks without data.

Its loss takes float32 logits, of which each rank of a tensor group has a part; gradients of the
last step live until the next begins.
"""

from __future__ import annotations

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import loss_parallel

import simlib

from .llama import LLAMA_8B, Llama
from .spreading import Plan, spread

ONE_D = Plan()
"""All ranks share the data."""


def loss_of(logits, target):
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def train(rank, world_size, sizes=LLAMA_8B, plan=ONE_D, batch=2, length=8192, steps=3):
    """Training steps; ``batch`` is of a rank, or of a pipeline, which takes one at a time."""
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    mesh = plan.mesh()
    parts = parts_of(sizes, plan, mesh)
    models = [spread(part_of(sizes, length, part), plan, mesh) for part in parts]
    parameters = [one for model in models for one in model.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True
    )
    computed = whole(models[0]) if plan.stages == 1 else staged(models, plan, mesh, batch)
    for step in range(steps):
        with simlib.span("step", number=step):
            tokens, target = torch.randint(sizes.vocabulary, (2, batch, length))
            optimizer.zero_grad()
            with loss_parallel() if plan.tensor > 1 else contextlib.nullcontext():
                computed(tokens, target)
            clip(parameters, mesh)
            optimizer.step()
            torch.cpu.synchronize()


def part_of(sizes, length, part):
    with torch.device("meta"):
        return Llama(sizes, length, part)


def parts_of(sizes, plan, mesh):
    """The blocks of each stage of this rank; first and last stage have one less, if it must be."""
    if plan.stages == 1:
        return [range(-1, sizes.layers + 1)]
    stages = plan.stages * plan.rounds
    each = -(-sizes.layers // stages)
    missing = stages * each - sizes.layers
    ends = [min(max(each * (at + 1) - (missing > 1), 0), sizes.layers) for at in range(stages)]
    begins, ends[-1] = [-1, *ends[:-1]], sizes.layers + 1
    own = range(mesh.get_local_rank("pp"), stages, plan.stages)
    return [range(begins[at], ends[at]) for at in own]


def clip(parameters, mesh):
    """Scale gradients to a norm of at most 1, over the stages of a pipeline too."""
    gradients = [one.grad for one in parameters]
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    if "pp" in mesh.mesh_dim_names:
        norm = norm.full_tensor() ** 2
        dist.all_reduce(norm, group=mesh.get_group("pp"))
        norm = norm**0.5
    torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm, foreach=True)


def whole(model):
    """Forward and backward of a model that each rank has all layers of."""

    def computed(tokens, target):
        logits = model(tokens)
        loss = loss_of(logits, target)
        del logits
        loss.backward()

    return computed


def staged(models, plan, mesh, many, loss_of=loss_of):
    """Forward and backward of a pipeline, in ``many`` micro-batches."""
    own, last = mesh.get_local_rank("pp"), plan.stages - 1
    stages = [
        PipelineStage(
            model,
            own + number * plan.stages,
            plan.stages * plan.rounds,
            torch.device("cpu"),
            group=mesh.get_group("pp"),
            get_mesh=lambda names, layout: mesh[names],  # of what stages send each other
        )
        for number, model in enumerate(models)
    ]
    if plan.rounds == 1:
        schedule = Schedule1F1B(stages[0], n_microbatches=many, loss_fn=loss_of)
    else:
        schedule = ScheduleInterleaved1F1B(stages, n_microbatches=many, loss_fn=loss_of)

    def computed(tokens, target):
        given = [tokens] if own == 0 else []
        schedule.step(*given, target=target if own == last else None)

    return computed
