"""A simulation is the same to the bit in every repeat, and in every process."""

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import simlib
from simlib import Device, clusters

REPEATS = 20 if os.environ.get("TEST_ALL") == "1" else 4


def training(rank, world_size):
    """DDP with dropout, messages of any source, groups: all that could depend on an order."""
    torch.manual_seed(rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 30), torch.nn.Dropout(), torch.nn.ReLU(), torch.nn.Linear(30, 5)
    )
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 20)).sum().backward()
        optimizer.step()
    pairs = [dist.new_group([r, r + 1]) for r in range(0, world_size, 2)]
    total = sum(parameter.sum() for parameter in model.parameters()).detach()
    dist.all_reduce(total, group=pairs[rank // 2])
    if rank:
        dist.send(total.reshape(1), 0)
        return total
    got = torch.zeros(world_size - 1)
    for number in range(world_size - 1):
        dist.recv(got[number : number + 1])
    return got


def digest():
    """One line that stands for a run's trace, results and messages."""
    cluster = clusters.ethernet_10g(nodes=3, ranks_per_node=2, device=Device(flops_per_s=1e9))
    run = simlib.simulate(training, 6, cluster=cluster, expand=True)
    ops = [
        (op.rank, op.kind, op.peer, op.nbytes, op.post_s.hex(), op.wait_s.hex(), op.end_s.hex())
        for op in run.trace
    ]
    wire = [(m.src, m.dst, m.nbytes, m.start_s.hex(), m.end_s.hex()) for m in run.wire]
    results = [result.numpy().tobytes() for result in run.results]
    return hashlib.sha256(pickle.dumps((ops, wire, results))).hexdigest()


def test_repeats_are_the_same_to_the_bit_in_another_process_too():
    code = "import test_simulate_repeats as t; print(t.digest())"
    command = [sys.executable, "-c", code]
    there = subprocess.check_output(command, cwd=Path(__file__).parent, text=True).strip()
    assert {digest() for _ in range(REPEATS)} == {there}
