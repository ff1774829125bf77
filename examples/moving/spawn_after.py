"""Losses and metrics of several processes, reduced once, exactly.

python spawn_after.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import rankwise
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.metrics import reduce
from rankwise.train import ExactStep, evaluate

EPOCHS, BATCH = 4, 64


def make_model():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load(first, last):
    images, labels = load_digits(return_X_y=True)
    return ArraySource({"image": (images[first:last] / 16).astype("float32"), "label": labels[first:last]})


def step(model, batch):
    logits = model(batch["image"])
    losses = nn.functional.cross_entropy(logits, batch["label"], reduction="none")
    return losses, {"accuracy": logits.argmax(1) == batch["label"]}


def main():
    with rankwise.bind(seed=0) as world:
        train, val = load(0, 1500), load(1500, 1797)
        train_loader = SampleLoader(train, order=rankwise.Order(train, batch_size=BATCH))
        val_loader = SampleLoader(val, order=rankwise.Order(val, batch_size=BATCH, kind="sequential"))
        model = rankwise.prepare(make_model(), world)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        take_step = ExactStep(model, optimizer, step, world=world)
        loss, shown = rankwise.Mean(), rankwise.Sum()
        for epoch in range(EPOCHS):
            train_loader.set_epoch(epoch)
            for batches in train_loader:
                report = take_step(batches)
                train_loader.mark_done(report.resume)
                total, weight = report.loss
                loss.update(total / max(weight, 1), weight=weight)
                shown.update(sum(batch.count for batch in batches))
            values = reduce({"loss": loss, "shown": shown}, world, reset=True)
            accuracy = evaluate(model, val_loader, step, world=world)["accuracy"]
            if world.is_main:
                print(f"epoch {epoch}: loss {values['loss']:.4f} of {values['shown']}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    rankwise.run(main, num_ranks=2)
