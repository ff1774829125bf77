"""Train a small convolutional network on digits from a sharded Zarr store, on any number of ranks.

    rankwise run --nproc 2 examples/digits/train.py --store digits.zarr

The same file runs as ``python examples/digits/train.py`` on one rank, and under torchrun.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

import rankwise
from rankwise.data.samples import ArraySource, SampleLoader


def make_model() -> nn.Module:
    """Two convolutions and a linear layer; no batch statistics, so any cut of a batch gives the same gradient."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def step(model: nn.Module, batch: Any) -> Any:
    """Return the losses of this micro-batch, one per sample, and what else is to be averaged."""
    dtype = next(model.parameters()).dtype
    images = batch["image"].unsqueeze(1).to(dtype) / 16
    logits = model(images)
    losses = nn.functional.cross_entropy(logits, batch["label"], reduction="none")
    return losses, {"accuracy": logits.argmax(1) == batch["label"]}


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", default="digits.zarr", help="written by examples/digits/data.py")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="global: what the optimizer sees at any world size")
    parser.add_argument("--micro-batch", type=int, default=None, help="most samples of one rank in one pass")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--float64", action="store_true", help="double precision, to compare world sizes exactly")
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--log-every", type=int, default=5)
    args = parser.parse_args()

    with rankwise.bind() as world:
        train_source = ArraySource.open(f"{args.store}/train", fields=("image", "label"))
        val_source = ArraySource.open(f"{args.store}/val", fields=("image", "label"))
        order = rankwise.Order(train_source, batch_size=args.batch_size, seed=world.seed)
        val_order = rankwise.Order(val_source, batch_size=256, kind="sequential")
        train = SampleLoader(train_source, order=order, micro_batch=args.micro_batch)
        val = SampleLoader(val_source, order=val_order)

        model = make_model()
        if args.float64:
            model.double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        trainer = rankwise.Trainer(
            model,
            optimizer,
            step,
            config={"lr": args.lr, "float64": args.float64},
            save_every=args.save_every,
            log_every=args.log_every,
        )
        result = trainer.fit(train, val=val, epochs=args.epochs)
        if world.is_main:
            trained_on = (
                "" if result.already_finished else f" on {world.world_size} rank{'s' if world.world_size > 1 else ''}"
            )
            print(
                f"accuracy on {val_source.num_samples} held-out digits: {result.metrics['val_accuracy']:.4f} "
                f"after {result.num_steps} steps{trained_on}"
            )


if __name__ == "__main__":
    main()
