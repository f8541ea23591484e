"""Data-parallel training on real ranks ends at the weights of one process: LeNet, digits, an epoch.

In float64 the weights agree to rounding, which is the proof. In float32 they need not stay so near:
max-pooling and ReLU choose, a rounding turns a choice where two values nearly tie, and Adam makes a
step of up to its learning rate of any gradient, however small. A wrong program (a sum for a mean, a
rank that starts elsewhere) is off by as much in float64.
"""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from sampled import sampled
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler

import simlib

BATCH = 60
BOUNDS = {torch.float64: 1e-10, torch.float32: 2e-2}
OPTIMIZERS = {
    "SGD with momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "Adam": functools.partial(torch.optim.Adam, lr=0.001),
}


def lenet():
    images = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU()]
    images += [nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*images, nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))


def one_epoch(rank, world_size, data, make_optimizer, dtype, share=True):
    """The weights after an epoch, and after its first step."""
    torch.manual_seed(rank)
    model = lenet().to(dtype)
    flat = parameters_to_vector(model.parameters()).detach()
    dist.broadcast(flat, src=0)
    vector_to_parameters(flat, model.parameters())
    optimizer = make_optimizer(model.parameters())
    sampler = DistributedSampler(data, world_size, rank, seed=1)
    first = None
    for images, labels in DataLoader(data, BATCH // world_size, sampler=sampler):
        optimizer.zero_grad()
        F.cross_entropy(model(images.to(dtype)), labels).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = parameters_to_vector(gradients)
        dist.all_reduce(flat)
        vector_to_parameters(flat / (world_size if share else 1), gradients)
        optimizer.step()
        if first is None:
            first = parameters_to_vector(model.parameters()).detach().clone()
    return parameters_to_vector(model.parameters()).detach(), first


@pytest.fixture(scope="module")
def one_process():
    """`one_epoch` on one rank; what was asked for once is kept."""
    return functools.cache(lambda name, dtype: results(1, name, dtype)[0])


def results(world_size, *options):
    """What the ranks return; options are those of `one_epoch`, with an optimizer's name."""
    data = simlib.digits.load()[0]
    name, *more = options
    return simlib.run(one_epoch, world_size, args=(data, OPTIMIZERS[name], *more)).results


@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("world_size, name", sampled((2, 4), OPTIMIZERS))
def test_an_epoch_on_many_ranks_is_an_epoch_on_one(world_size, name, dtype, one_process):
    ends, firsts = zip(*results(world_size, name, dtype), strict=True)
    assert all(torch.equal(ends[0], end) for end in ends), "the replicas are equal, bit for bit"
    end, first = one_process(name, dtype)
    after_one = (firsts[0] - first).abs().max().item()
    after_all = (ends[0] - end).abs().max().item()
    print(
        f"{name}, {dtype}, R = {world_size}: after a step {after_one:.1e}, an epoch {after_all:.1e}"
    )
    assert after_all < BOUNDS[dtype]


def test_a_sum_in_place_of_the_mean_is_far_off_in_float64(one_process):
    name = "SGD with momentum"
    wrong, _ = results(2, name, torch.float64, False)[0]
    assert (wrong - one_process(name, torch.float64)[0]).abs().max() > 1e-3
