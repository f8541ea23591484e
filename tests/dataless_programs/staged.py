"""Pipelines of `torch.distributed.pipelining`, alone and with FSDP2; checkpoints in files."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from .data_parallel import sharded
from .models import VOCABULARY, WIDTH, GPTBlock, Llama, batch, loss_of, train

CPU = torch.device("cpu")


def parts(stages):
    """A model in so many parts, one layer each; the first has the embedding, the last the head."""
    made = [nn.Sequential(GPTBlock()) for _ in range(stages)]
    made[0].insert(0, nn.Embedding(VOCABULARY, WIDTH))
    made[-1].append(nn.Linear(WIDTH, VOCABULARY))
    return made


def train_stages(schedule, models, is_first, is_last):
    optimizer = torch.optim.AdamW([one for model in models for one in model.parameters()])
    for _ in range(2):
        tokens, target = (part.repeat(4, 1) for part in batch())
        schedule.step(*[tokens][: int(is_first)], target=target if is_last else None)
        optimizer.step()
        optimizer.zero_grad()


def _one_stage(schedule, rank, world_size):
    model = parts(world_size)[rank]
    stage = PipelineStage(model, rank, world_size, CPU)
    made = schedule(stage, n_microbatches=4, loss_fn=loss_of)
    train_stages(made, [model], rank == 0, rank == world_size - 1)


def gpipe(rank, world_size):
    _one_stage(ScheduleGPipe, rank, world_size)


def one_f_one_b(rank, world_size):
    _one_stage(Schedule1F1B, rank, world_size)


def interleaved(rank, world_size):
    """Two stages a rank."""
    models = parts(2 * world_size)[rank::world_size]
    stages = [
        PipelineStage(model, rank + number * world_size, 2 * world_size, CPU)
        for number, model in enumerate(models)
    ]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=loss_of)
    train_stages(schedule, models, rank == 0, rank == world_size - 1)


def pipeline_of_fsdp2(rank, world_size):
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("pp", "dp"))
    place = mesh.get_local_rank("pp")
    model = fully_shard(parts(2)[place], mesh=mesh["dp"])
    stage = PipelineStage(model, place, 2, CPU, group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
    train_stages(schedule, [model], place == 0, place == 1)


def saved(rank, world_size):
    """A step of FSDP2, and a checkpoint of model and optimizer in files."""
    model = sharded(Llama())
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, steps=1)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder[0])


PROGRAMS = [gpipe, one_f_one_b, interleaved, pipeline_of_fsdp2, saved]
