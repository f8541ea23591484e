"""A loop that accelerate prepares, as it is written for torchrun: nothing in it knows of simlib.

torchrun --nproc-per-node 2 with_accelerate.py
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(1)
    x = torch.randn(96, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        losses = accelerator.gather(loss.detach())
        accelerator.print(f"epoch {epoch}: loss {losses.mean().item():.3f}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        state = accelerator.unwrap_model(model).state_dict()
        accelerator.save(state, "accelerated.pt")


if __name__ == "__main__":
    main()
