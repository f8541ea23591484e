"""Train a small classifier by DDP, as people write it for torchrun: samplers, workers, checkpoints.

torchrun --nproc-per-node 2 ddp_digits.py --epochs 2
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Digits(Dataset):
    """Eight by eight pixels each; which of four quarters is bright says the class."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(4, (count,), generator=generator)
        self.images = 0.1 * torch.randn(count, 1, 8, 8, generator=generator)
        for image, label in zip(self.images, self.labels.tolist(), strict=True):
            top, left = 4 * (label // 2), 4 * (label % 2)
            image[:, top : top + 4, left : left + 4] += 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.hidden = nn.Linear(4 * 6 * 6, 16)
        self.out = nn.Linear(16, 4)
        self.extra = nn.Linear(16, 4)

    def forward(self, x):
        x = F.relu(self.conv(x)).flatten(1)
        x = F.relu(self.hidden(x))
        return self.out(x) + self.extra(x)


def train(args, model, loader, optimizer, epoch, rank):
    model.train()
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % args.log_every == 0:
            print(f"epoch {epoch} step {step}: loss {loss.item():.3f}")


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    counts = torch.zeros(2)
    for images, labels in loader:
        counts[0] += (model(images).argmax(1) == labels).sum()
        counts[1] += len(labels)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--compile", metavar="BACKEND")
    parser.add_argument("--log-every", type=int, default=4)
    parser.add_argument("--save", default="digits.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    assert (rank, world_size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(0)
    data = Digits(args.samples, seed=1)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.workers)
    held_out = Digits(64, seed=2)
    test_sampler = DistributedSampler(held_out, shuffle=False)
    test_loader = DataLoader(held_out, 32, sampler=test_sampler)
    model = DistributedDataParallel(Net())
    runs = torch.compile(model, backend=args.compile) if args.compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        train(args, runs, loader, optimizer, epoch, rank)
        share = accuracy(model, test_loader)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {share:.2f}")
            torch.save(model.module.state_dict(), args.save)
        dist.barrier()
    saved = torch.load(args.save)
    assert all(torch.equal(saved[name], value) for name, value in model.module.state_dict().items())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
