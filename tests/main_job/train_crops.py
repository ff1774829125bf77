"""The training script of the restarts with crops: random boxes of volumes, augmented, in micro-batches.

Every crop that was used is written down with its number and the sum of its voxels as the model saw them.
"""

import argparse

import numpy as np
from torch import nn
from training import train

import rankwise
from rankwise.data.crops import CropIndex, IndexPipeline

SHAPE = (4, 8, 8)


def make_model(plain):
    """Batch statistics and dropout are what a restart loses first; plain is one function at any world size."""
    extras = [] if plain else [nn.BatchNorm1d(16), nn.Dropout(0.1)]
    return nn.Sequential(nn.Flatten(), nn.Linear(4 * 8 * 8, 16), *extras, nn.Tanh(), nn.Linear(16, 2)).double()


def augmented(fields, key):
    """Draws from the key alone: the same crop at any world size and after any restart, another one in each epoch."""
    rng = np.random.default_rng(key & (2**63 - 1))
    return {"image": np.ascontiguousarray(np.flip(fields["image"], 2)) * rng.integers(1, 4).astype("u2")}


def step(model, batch):
    crops = batch["image"].double() / 1000
    bright = (crops.flatten(1).mean(1) > 1).long()
    logits = model(crops)
    return nn.functional.cross_entropy(logits, bright, reduction="none"), {"accuracy": logits.argmax(1) == bright}


def note(batch):
    sums = batch["image"].double().flatten(1).sum(1).tolist()
    return [f"{number}: {total:.0f}" for number, total in zip(batch.ids.tolist(), sums, strict=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--volumes", required=True)
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    with rankwise.bind(threads=1, timeout=240) as world:
        index = CropIndex(args.volumes, shape=SHAPE, num_random=126)
        order = rankwise.Order(index, batch_size=20)
        with IndexPipeline(index, order=order, micro_batch=6, transform=augmented) as pipeline:
            train(world, pipeline, make_model(args.plain), step, note=note, epochs=2, save_every=3)


if __name__ == "__main__":
    main()
