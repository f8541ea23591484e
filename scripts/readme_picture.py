"""Draw the picture in README.md, by simlib itself: ``python scripts/readme_picture.py [FILE]``.

The run is simulated, so every machine draws the same one.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import simlib

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "timeline.png"


def step(rank, world_size):
    """Compute, each rank longer than the one before; pass a vector round the ring; add all up."""
    simlib.compute(seconds=0.02 + 0.01 * rank)
    mine, left = torch.ones(500_000), torch.zeros(500_000)
    request = dist.isend(mine, dst=(rank + 1) % world_size)
    dist.recv(left, src=(rank - 1) % world_size)
    request.wait()
    simlib.compute(seconds=0.01)
    dist.all_reduce(mine)


def draw(path):
    """Write the timeline of the run to a PNG file."""
    run = simlib.simulate(step, world_size=4, cluster=simlib.clusters.ethernet_1g(nodes=4))
    path.write_bytes(run._repr_png_())


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
