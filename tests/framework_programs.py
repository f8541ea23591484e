"""One training loop, by hand and as libraries have it: the same model, data and updates."""

import logging
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import simlib

RATE, BATCH = 0.1, 16
NBYTES = 4 * (16 * 8 + 8 + 8 * 4 + 4)
"""Of the model's parameters, and so of its gradients."""


def accelerator():
    """What a rank trains on: its GPU, where it sees one."""
    return "gpu" if torch.cuda.is_available() else "cpu"


def data():
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(128, 16, generator=random)
    return TensorDataset(inputs, torch.randint(4, (128,), generator=random))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))


def weights(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()]).cpu()


def shard(rank, world_size):
    sampler = DistributedSampler(data(), world_size, rank)
    return DataLoader(data(), BATCH, sampler=sampler)


def train(net, optimizer, loader, backward=torch.Tensor.backward, average=lambda: None):
    """Train for an epoch; the weights and the last loss."""
    last = None
    for x, y in loader:
        optimizer.zero_grad()
        last = cross_entropy(net(x), y)
        backward(last)
        average()
        optimizer.step()
    return weights(net), last.item()


def by_hand(rank, world_size):
    net = model()

    def average():
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        dist.all_reduce(flat)
        parts = (flat / world_size).split([p.numel() for p in net.parameters()])
        for p, part in zip(net.parameters(), parts, strict=True):
            p.grad.copy_(part.view_as(p))

    optimizer = torch.optim.SGD(net.parameters(), RATE)
    return train(net, optimizer, shard(rank, world_size), average=average)


def ddp(rank, world_size):
    net = nn.parallel.DistributedDataParallel(model())
    return train(net, torch.optim.SGD(net.parameters(), RATE), shard(rank, world_size))


def lightning(rank, world_size):
    import lightning as L

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    losses = []

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model()

        def training_step(self, batch, index):
            loss = cross_entropy(self.net(batch[0]), batch[1])
            losses.append(loss.item())
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), RATE)

    trainer = L.Trainer(
        max_epochs=1, accelerator=accelerator(), devices=world_size, strategy="ddp",
        plugins=[simlib.lightning.environment()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    net = Net()
    trainer.fit(net, DataLoader(data(), BATCH, shuffle=True))
    return weights(net), losses[-1]


def fabric(rank, world_size):
    import lightning as L

    warnings.simplefilter("ignore")
    own = L.Fabric(
        accelerator=accelerator(), devices=world_size, strategy="ddp",
        plugins=[simlib.lightning.environment()],
    )  # fmt: skip
    own.launch()
    net = model()
    net, optimizer = own.setup(net, torch.optim.SGD(net.parameters(), RATE))
    loader = own.setup_dataloaders(DataLoader(data(), BATCH, shuffle=True))
    return train(net, optimizer, loader, own.backward)


def accelerate(rank, world_size):
    from accelerate import Accelerator

    warnings.simplefilter("ignore")
    own, net = Accelerator(cpu=accelerator() == "cpu"), model()
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    net, optimizer, loader = own.prepare(net, optimizer, DataLoader(data(), BATCH, shuffle=True))
    assert own.is_main_process == (rank == 0) and own.num_processes == world_size
    return train(net, optimizer, loader, own.backward)


def torchmetrics(rank, world_size):
    """A metric that is kept up by each rank and put together when it is asked for."""
    from torchmetrics.classification import MulticlassF1Score

    metric, net = MulticlassF1Score(4), model()
    for x, y in shard(rank, world_size):
        metric.update(net(x), y)
    return torch.stack([metric.compute()]), rank + float(metric.tp.sum()) / 1000
