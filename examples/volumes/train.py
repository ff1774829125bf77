"""Train a small 3-D segmentation network on crops of an OME-Zarr volume, on any number of ranks.

    rankwise run --nproc 2 examples/volumes/train.py --store volumes.zarr

The same file runs as ``python examples/volumes/train.py`` on one rank, and under torchrun.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from model import SmallUNet, train_step, val_step
from picture import write_picture

import rankwise
from rankwise.data.crops import CropIndex, IndexPipeline, Scaling, Stitcher, Take

SHAPE = (16, 32, 32)  # z, y, x


def make_index(uri: str, **choices: Any) -> CropIndex:
    """Return an index of crops of an image and of its label image ``head``."""
    fields = {"image": Take(pad="reflect", mask=True, normalise=standardised), "head": Take(pad="fill")}
    return CropIndex(uri, shape=SHAPE, fields=fields, **choices)


def standardised(array: Any) -> Scaling:
    """Mean 0 and deviation 1, by what was measured over the training half when the store was written."""
    return Scaling.standard(array.attributes["mean"], array.attributes["std"])


def flipped(fields: dict[str, Any], key: int) -> dict[str, Any]:
    """Mirror a crop along each axis or not. The key decides: the same at any world size, new in each epoch."""
    step = tuple(slice(None, None, -1 if key >> axis & 1 else 1) for axis in range(3))
    return {name: np.ascontiguousarray(values[step]) for name, values in fields.items()}


def inside(logits: Any) -> Any:
    """Return where the network says head."""
    return (logits > 0).astype(np.uint8)


def main() -> None:
    """Parse the command line, train, draw a picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", default="volumes.zarr", help="written by examples/volumes/data.py")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--crops", type=int, default=96, help="random crops of an epoch")
    parser.add_argument("--batch-size", type=int, default=8, help="global: what the optimizer sees at any world size")
    parser.add_argument("--micro-batch", type=int, default=None, help="most crops of one rank in one pass")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--float64", action="store_true", help="double precision, to compare world sizes exactly")
    args = parser.parse_args()

    with rankwise.bind() as world:
        # Random crops of one half, every third one around a voxel of the head; tiles of the other half, each once.
        index = make_index(f"{args.store}/train", num_random=args.crops, foreground=("head", 0.33))
        tiles = make_index(f"{args.store}/val", edges="pad")
        order = rankwise.Order(index, batch_size=args.batch_size, seed=world.seed)
        fields = ("image", "head")
        train = IndexPipeline(index, order=order, micro_batch=args.micro_batch, fields=fields, transform=flipped)
        val = IndexPipeline(tiles, order=rankwise.Order(tiles, batch_size=8, kind="sequential"))

        model = SmallUNet()
        if args.float64:
            model.double()
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        trainer = rankwise.Trainer(
            model, optimizer, train_step, val_fn=val_step, config={"lr": args.lr, "float64": args.float64}, log_every=5
        )
        with train, val:
            result = trainer.fit(train, val=val, epochs=args.epochs)
        # Overlapping tiles of the held-out half become one volume on disk; all ranks share the work. Killed before
        # this, the same command finds the run finished, with its model, and does it.
        overlapping = make_index(f"{args.store}/val", stride=(8, 16, 16), edges="pad")
        Stitcher(
            overlapping, result.run_dir / "head.zarr", model=model.float(), finish=inside, dtype="u1",
            batch_size=8, overwrite=True,
        ).run()  # fmt: skip
        if world.is_main:
            trained_on = (
                "" if result.already_finished else f" on {world.world_size} rank{'s' if world.world_size > 1 else ''}"
            )
            picture = write_picture(result.run_dir, tiles, model)
            print(
                f"Dice {result.metrics['val_dice']:.4f} on the half of the head that was held out (calling all of it "
                f"head: {result.metrics['val_trivial_dice']:.4f}) after {result.num_steps} "
                f"steps{trained_on}; picture: {picture}"
            )


if __name__ == "__main__":
    main()
