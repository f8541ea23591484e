"""A loop that Lightning runs, as it is written for torchrun: nothing in it knows of simlib.

torchrun --nproc-per-node 2 with_lightning.py --devices 2
"""

import argparse

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

    def training_step(self, batch, index):
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        right = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    lightning.seed_everything(1)
    x = torch.randn(96, 8)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=args.devices,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier(args.lr)
    trainer.fit(model, DataLoader(data, 8, shuffle=True), DataLoader(data, 8))
    if trainer.is_global_zero:
        print(f"loss {trainer.callback_metrics['train_loss'].item():.3f}")


if __name__ == "__main__":
    main()
