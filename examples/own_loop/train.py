"""The digits example in a loop of one's own: each room used alone, the sequence in plain sight.

rankwise run --nproc 2 examples/own_loop/train.py --store digits.zarr
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import rankwise
from rankwise.checkpoint import RandomState, Replicated
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.tracking import Progress, RunDir
from rankwise.train import ExactStep, evaluate, unwrapped

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "digits"))
from train import make_model, step  # the model and the losses of the digits example


def main() -> None:
    """Train, validate, log and save; continue after the newest good checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", default="digits.zarr", help="written by examples/digits/data.py")
    parser.add_argument("--run-dir", default="runs/own_loop")
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()

    with rankwise.bind() as world:
        source = ArraySource.open(f"{args.store}/train", fields=("image", "label"))
        held_out = ArraySource.open(f"{args.store}/val", fields=("image", "label"))
        loader = SampleLoader(source, order=rankwise.Order(source, batch_size=64), micro_batch=16)
        val = SampleLoader(held_out, order=rankwise.Order(held_out, batch_size=256, kind="sequential"))

        model = rankwise.prepare(make_model(), world)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        take_step = ExactStep(model, optimizer, step, world=world)
        loss = rankwise.Mean()

        with RunDir.open(args.run_dir, config={"epochs": args.epochs}, world=world) as run:
            if run.finished:
                sys.exit(f"{args.run_dir} is finished: {run.finished['values']}")
            tracker = rankwise.Tracker(run, world=world)
            checkpoints = rankwise.Checkpointer(run.checkpoints, world=world, fence=run.fence)
            parts = {
                "model": Replicated(unwrapped(model)),
                "optimizer": Replicated(optimizer),
                "order": Replicated(loader),
                "random": RandomState(),
            }
            checkpoints.restore(parts)
            first_epoch = int(loader.state_dict()["epoch"])
            tracker.start_attempt(first_epoch)
            with Progress(world, total_steps=args.epochs * len(loader), epochs=args.epochs) as progress:
                for epoch in range(first_epoch, args.epochs):
                    loader.set_epoch(epoch)
                    for index, batches in enumerate(loader, start=epoch * len(loader)):
                        report = take_step(batches)
                        loader.mark_done(report.resume)
                        total, weight = report.loss
                        loss.update(total / max(weight, 1), weight=weight)
                        progress.update(index + 1, epoch=epoch, samples=report.num_samples)
                    values = rankwise.metrics.reduce({"loss": loss}, world, reset=True)
                    values |= {f"val_{k}": v for k, v in evaluate(model, val, step, world=world).items()}
                    tracker.log(epoch + 1, values, epoch=epoch)
                    checkpoints.save(epoch + 1, parts, meta={"values": values})
            tracker.close()
            if world.is_main:
                run.finish(values)
                print(f"accuracy {values['val_accuracy']:.4f} after {args.epochs} epochs on {world.world_size} rank(s)")


if __name__ == "__main__":
    main()
