"""A function with closures trains LeNet on four hosts, to the weights that `run` gives here."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import simlib
from simlib import digits
from simlib.cluster.practice import PracticeCluster

RANKS, STEPS, BATCH = 4, 6, 16
LIMIT_S = 120


def training():
    """A rank function that takes everything it needs from around it: by value, it has no module."""
    train, _ = digits.load()
    images, labels = (tensor[: STEPS * BATCH] for tensor in train.tensors)
    rate = 0.05

    def lenet():
        convolutions = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
        layers = [part for each in convolutions for part in (each, nn.MaxPool2d(2), nn.ReLU())]
        return nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)
        )

    def sync_initial_weights(model):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)

    def sync_gradients(model):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def main(rank, world_size):
        torch.manual_seed(rank)
        model = lenet()
        sync_initial_weights(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        losses = []
        for batch in torch.arange(len(images)).split(BATCH):
            mine = batch[rank::world_size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            sync_gradients(model)
            optimizer.step()
            losses.append(loss.item())
        print(len(losses), "steps")
        return os.uname().nodename, losses, [each.detach() for each in model.parameters()]

    return main


def check(job):
    """The job's ranks are on four hosts, and hold `run`'s numbers bit for bit."""
    there = job.result(LIMIT_S)
    here = simlib.run(training(), RANKS)
    assert sorted(host for host, _, _ in there.results) == ["node1", "node2", "node3", "node4"]
    for (_, losses, weights), (_, expected, expected_weights) in zip(
        there.results, here.results, strict=True
    ):
        assert len(losses) == STEPS and losses == expected
        assert all(map(torch.equal, weights, expected_weights))
        assert all(map(torch.equal, weights, there.results[0][2]))  # replicas have stayed alike
    assert there.output == here.output == [f"{STEPS} steps\n"] * RANKS
    for rank in range(RANKS):
        ops, expected = (
            [(op.kind, op.nbytes) for op in run.trace.of_rank(rank)] for run in (there, here)
        )
        assert ops == expected


@pytest.fixture
def cluster(needs_practice_cluster):
    needs_practice_cluster()
    with PracticeCluster(RANKS) as cluster:
        yield cluster


def test_by_mpiexec(cluster, tmp_path):
    mpiexec = [*cluster.launcher("login"), Path(sys.executable).with_name("mpiexec")]
    to = simlib.Mpiexec(hosts=cluster.hosts, launcher=mpiexec, time_limit=LIMIT_S)
    check(simlib.submit(training(), RANKS, to=to, folder=tmp_path))


@pytest.mark.slow
def test_by_slurm(needs_practice_cluster, tmp_path):
    needs_practice_cluster(slurm=True)
    with PracticeCluster(RANKS, slurm=True) as cluster:
        to = simlib.Slurm(nodes=RANKS, time_limit=LIMIT_S, login=cluster.launcher("login"))
        check(simlib.submit(training(), RANKS, to=to, folder=tmp_path))
