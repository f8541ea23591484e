"""A model cut into stages, one a rank, by torch.distributed.pipelining.

torchrun --nproc-per-node 3 pipeline.py --micro-batches 4 --schedule gpipe
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

WIDTH = 8
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def part_of(rank, world_size):
    """The layers of one stage."""
    first = [nn.Linear(4, WIDTH)] if rank == 0 else []
    last = [nn.Linear(WIDTH, 2)] if rank == world_size - 1 else []
    return nn.Sequential(*first, nn.Linear(WIDTH, WIDTH), nn.ReLU(), *last)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--schedule", choices=SCHEDULES, default="gpipe")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = part_of(rank, world_size)
    micro_batches = args.micro_batches
    stage = PipelineStage(module, rank, world_size, torch.device("cpu"))
    schedule = SCHEDULES[args.schedule](stage, micro_batches, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for step in range(args.steps):
        x = torch.randn(args.batch_size, 4, generator=generator)
        y = x[:, :2].clone()
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == world_size - 1:
            losses = []
            schedule.step(target=y, losses=losses)
            print(f"step {step}: loss {torch.stack(losses).mean().item():.3f}")
        else:
            schedule.step()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
