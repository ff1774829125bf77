"""Handwritten digits with rankwise.

rankwise run --nproc 2 ddp_after.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, Subset

import rankwise
from rankwise.data.samples import DatasetLoader

EPOCHS, BATCH, MICRO_BATCH = 6, 128, 32


class Digits(Dataset):
    """1797 images of 8 x 8 pixels."""

    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.from_numpy(images / 16).float()
        self.labels = torch.from_numpy(labels).long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def make_model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))


def step(model, batch):
    images, labels = batch.data
    logits = model(images)
    losses = nn.functional.cross_entropy(logits, labels, reduction="none")
    return losses, {"accuracy": logits.argmax(1) == labels}


def main():
    with rankwise.bind(seed=0) as world:
        data = Digits()
        train, val = Subset(data, range(1500)), Subset(data, range(1500, len(data)))
        train_order = rankwise.Order(len(train), batch_size=BATCH)
        val_order = rankwise.Order(len(val), batch_size=256, kind="sequential")

        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        trainer = rankwise.Trainer(model, optimizer, step, max_grad_norm=1.0)
        result = trainer.fit(
            DatasetLoader(train, order=train_order, micro_batch=MICRO_BATCH, num_workers=0),
            val=DatasetLoader(val, order=val_order, num_workers=0),
            epochs=EPOCHS,
        )
        if world.is_main:
            print(f"loss {result.metrics['val_loss']:.4f}, accuracy {result.metrics['val_accuracy']:.4f}")


if __name__ == "__main__":
    main()
