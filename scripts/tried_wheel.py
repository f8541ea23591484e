"""What `try_wheel.py` runs where nothing but the wheel is installed: runs, pictures and a check."""

import importlib.util
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import simlib
from simlib.checks import check_of

EXTRAS = ("jupyterlab", "nbval", "jupytext", "pytest", "mpi4py", "sklearn", "tqdm", "lightning")


def main(rank, world_size):
    """Add up the ranks, and pass one number round."""
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    left = torch.zeros(1)
    request = dist.isend(torch.tensor([float(rank)]), dst=(rank + 1) % world_size)
    dist.recv(left, src=(rank - 1) % world_size)
    request.wait()
    return total.item(), left.item()


def running_total(rank, world_size, x):
    """The answer to the first task of exercise 02: the sum of what ranks up to this one have."""
    total = x.clone()
    if rank > 0:
        before = torch.empty_like(x)
        dist.recv(before, src=rank - 1)
        total += before
    if rank < world_size - 1:
        dist.send(total, dst=rank + 1)
    return total


def try_all():
    """Each part in turn; an error ends it."""
    assert Path(simlib.__file__).is_relative_to(sys.prefix), simlib.__file__
    print("also here:", [name for name in EXTRAS if importlib.util.find_spec(name)])
    for run in (simlib.run(main, 4), simlib.simulate(main, 4)):
        assert run.results == [(6.0, 3.0), (6.0, 0.0), (6.0, 1.0), (6.0, 2.0)]
        print(run)
        print(run.play())
        run.timeline().savefig(f"{run.engine}.png")
        run.to_html(f"{run.engine}.html")
    verdict = check_of("02.1", running_total)
    print(verdict)
    assert verdict.status == "right", verdict


if __name__ == "__main__":
    try_all()
