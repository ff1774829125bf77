"""The training script of the restart tests: small data on disk, every used sample id written down.

Runs under python, torchrun and rankwise run; RANKWISE_TEST_FAULT injects a fault (see rankwise.testing.Fault).
"""

import argparse

from torch import nn
from training import train

import rankwise
from rankwise.data.samples import ArraySource, SampleLoader


def make_model(plain):
    """Batch statistics and dropout are what a restart loses first; plain is one function at any world size."""
    extras = [] if plain else [nn.BatchNorm1d(32), nn.Dropout(0.1)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *extras, nn.Tanh(), nn.Linear(32, 10)).double()


def step(model, batch):
    logits = model(batch["image"].double() / 16)
    losses = nn.functional.cross_entropy(logits, batch["label"], reduction="none")
    return losses, {"accuracy": logits.argmax(1) == batch["label"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--val", action="store_true")
    parser.add_argument("--save-every", type=int, default=4)
    args = parser.parse_args()
    with rankwise.bind(threads=1, timeout=240) as world:
        source = ArraySource.open(args.store, fields=("image", "label"))
        loader = SampleLoader(source, order=rankwise.Order(source, batch_size=20), world=world)
        held_out = rankwise.Order(source, batch_size=70, kind="sequential")
        val = SampleLoader(source, order=held_out, world=world) if args.val else None
        model = make_model(args.plain)
        options = {"epochs": args.epochs, "val": val, "save_every": args.save_every}
        train(world, loader, model, step, note=lambda batch: batch.ids.tolist(), **options)


if __name__ == "__main__":
    main()
