"""The program of the book's first page, and its run."""

import inspect

import torch
import torch.distributed as dist

import simlib
from simlib.core.draw.player.page import page_of, parts_of


def main(rank, world_size):
    simlib.compute(seconds=0.02 + 0.01 * rank)
    mine, left = torch.ones(500_000), torch.zeros(500_000)
    request = dist.isend(mine, dst=(rank + 1) % world_size)
    dist.recv(left, src=(rank - 1) % world_size)
    request.wait()
    simlib.compute(seconds=0.01)
    dist.all_reduce(mine)
    return left.mean().item(), mine.mean().item()


SOURCE = inspect.getsource(main).rstrip()


def simulated():
    """Its run on a modelled 1 Gbit/s Ethernet: the same on every machine."""
    return simlib.simulate(main, 4, cluster=simlib.clusters.ethernet_1g(nodes=4))


def page_of_run(run):
    """What the page of the run is made of."""
    return page_of("main on 4 simulated ranks", [run], more=parts_of(run))
