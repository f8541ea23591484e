"""The GPT of published rows: the loss of logits that ranks share is cross entropy."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F

import simlib
from benchmarks import gpt


def split_loss(rank, world_size):
    logits = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([[0, 3, 4, 7, 5], [1, 2, 6, 6, 0]])
    whole = logits.clone().requires_grad_()
    expected = gpt.LOSS_SCALE * F.cross_entropy(whole.flatten(0, 1), target.flatten())
    expected.backward()
    own = logits.chunk(world_size, -1)[rank].clone().requires_grad_()
    found = gpt.loss_over(gpt.Split(world_size, dist.group.WORLD))(own, target)
    found.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(own.grad, whole.grad.chunk(world_size, -1)[rank])


def test_the_loss_of_split_logits_is_that_of_whole_ones():
    simlib.simulate(split_loss, 2)
