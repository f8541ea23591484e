"""The units of lesson 12: ZeRO on the network of lesson 10, as its second part builds them.

Later parts and exercises import them. A test compares them with the lesson.
"""

import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..core.record.this_rank import held, span


class Flat:
    def __init__(self, module):
        self.weights = list(module.parameters())
        self.whole = torch.cat([w.detach().flatten() for w in self.weights])
        parts = self.whole.split([w.numel() for w in self.weights])
        for w, part in zip(self.weights, parts, strict=True):
            w.data = part.view_as(w)


class Unit(Flat):
    def __init__(self, module, stage):
        super().__init__(module)
        self.stage, self.ahead = stage, {}
        mine = self.whole.chunk(dist.get_world_size())[dist.get_rank()]
        self.shard = nn.Parameter(mine.clone() if stage == 3 else mine)  # else a view

    def drop(self):
        self.whole.untyped_storage().resize_(0)

    def gather(self):
        if self.whole.untyped_storage().nbytes() == 0:
            mine = self.shard.detach()
            self.whole.untyped_storage().resize_(mine.nbytes * dist.get_world_size())
            self.request = dist.all_gather_single(self.whole, mine, async_op=True)

    def need(self, direction):
        self.gather()
        if direction in self.ahead:
            self.ahead[direction].gather()
        self.request.wait()


class Zero(Unit):
    def __init__(self, module, stage, reshard=True):
        super().__init__(module, stage)
        self.reshard = reshard
        for w in self.weights:
            w.register_post_accumulate_grad_hook(self.reduce)
        if stage == 3:
            module.register_forward_pre_hook(lambda *_: self.need("forward"))
            module.register_forward_hook(self.forward_done)
            self.drop()

    def forward_done(self, module, inputs, y):
        if self.reshard:
            self.drop()
        y.register_hook(lambda _: self.need("backward"))

    def reduce(self, _):
        if any(w.grad is None for w in self.weights):
            return  # the last weight sends all gradients
        flat = torch.cat([w.grad.flatten() for w in self.weights])
        for w in self.weights:
            w.grad = None
        mine = flat.chunk(dist.get_world_size())[dist.get_rank()]  # keeps flat alive: stage 1
        mine = mine if self.stage == 1 else torch.empty_like(mine)
        dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.AVG)
        self.shard.grad = mine
        if self.stage == 3:
            self.drop()


def make(number):
    """Layers 1 to 6 of lesson 10's network. Their weights are the same wherever they are made."""
    torch.manual_seed(number)
    sizes = [784, 512, 512, 512, 512, 512, 12][number - 1 : number + 1]
    return nn.Sequential(nn.Linear(*sizes), *[nn.ReLU()] * (number < 6))


def two_steps(net, adam, B, sync=lambda: None, after=lambda: None):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(2):
        adam.zero_grad()
        torch.manual_seed(100 * step + rank)
        x, labels = torch.rand(B // world_size, 784), torch.randint(10, (B // world_size,))
        with span("step", number=step):
            F.cross_entropy(net(x), labels).backward()
            sync()
            adam.step()
            after()
    return held()


def train(rank, world_size, stage, B=256, reshard=True, prefetch=True):
    layers, units = [], []
    for number in range(1, 7):
        layers.append(make(number))
        units += [Zero(layers[-1], stage, reshard)] if stage else []
    for one, other in itertools.pairwise(units if prefetch else []):
        one.ahead["forward"], other.ahead["backward"] = other, one
    net = nn.Sequential(*layers)
    adam = torch.optim.Adam([unit.shard for unit in units] or net.parameters())

    def sync():
        for p in net.parameters() if stage == 0 else ():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)

    def after():
        for unit in units if stage < 3 else ():
            dist.all_gather_single(unit.whole, unit.shard.detach())

    held = two_steps(net, adam, B, sync, after)
    kept = [unit.shard for unit in units] or [p.flatten() for p in net.parameters()]
    return held, [part.detach().clone() for part in kept]
