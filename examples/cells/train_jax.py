"""Train the same network in JAX, data-parallel over global arrays, on any number of ranks; torch is not needed.

    rankwise run --nproc 2 examples/cells/train_jax.py --collection cells.zarr

The same file runs as ``python examples/cells/train_jax.py`` on one rank, and under torchrun. Stopped, it goes on where
it was, in the middle of an epoch too, with any number of ranks.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from drawing import draw_cells
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from model_jax import Training, hide_genes, judge, start, train_step

import rankwise
from rankwise.checkpoint import Checkpointer, JaxTree, Replicated
from rankwise.data.rows import OrderedLoader, RowSource
from rankwise.tracking import RunDir


class Run:
    """A training: its data, what it has learned, and where it stands.

    Args:
        args: of the command line.
        world: this rank's.
        folder: the run directory, opened.
    """

    def __init__(self, args: argparse.Namespace, world: rankwise.World, folder: RunDir) -> None:
        self.args, self.world, self.folder = args, world, folder
        mesh = Mesh(jax.devices(), ("data",))
        self.sharded = NamedSharding(mesh, PartitionSpec("data"))  # rows: each rank has its own
        self.copied = NamedSharding(mesh, PartitionSpec())  # weights: each rank has all
        self.rows = RowSource(args.collection, obs=("cell_type",), dense=True)
        self.parts = self.rows.split(by="row", fractions={"train": 0.75, "val": 0.25})
        train = self.parts["train"]
        # Each kind is as likely in training; what is held out stays as it is, every cell once.
        order = rankwise.Order(train, batch_size=args.batch_size, seed=world.seed, balance="cell_type")
        self.train = OrderedLoader(train, order=order, to="jax", sharding=self.sharded, batch_transform=hide_genes)
        self.kinds = self.rows.categories["cell_type"]
        dtype = "float64" if args.float64 else "float32"
        self.training = self.on_all(start(world.generator("start"), len(self.rows.var_names), len(self.kinds), dtype))
        self.checkpointer = Checkpointer(folder.checkpoints, world=world, fence=folder.fence, attempt=folder.attempt)
        self.judge = jax.jit(judge, out_shardings=self.copied)
        self.to_all = jax.jit(lambda arrays: arrays, out_shardings=self.copied)  # all rows on every rank

    def on_all(self, training: Any) -> Training:
        """Return arrays that lie on all devices."""
        return jax.device_put(Training(*training), self.copied)

    def evaluate(self, name: str) -> dict[str, Any]:
        """Return points, losses, kinds, and which cells are recognised, for all cells of a part, on every rank."""
        rows, found = self.parts[name], []
        order = rankwise.Order(rows, batch_size=64, kind="sequential")
        for (batch,) in OrderedLoader(rows, order=order, to="jax", sharding=self.sharded):
            judged = self.judge(self.training.weights, batch["X"], batch["X"], batch["cell_type"])
            types, real = self.to_all((batch["cell_type"], batch.weights))
            found.append([np.asarray(value)[np.asarray(real) > 0] for value in (*judged, types)])
        names = ("points", "losses", "right", "types")
        return {name: np.concatenate(parts) for name, *parts in zip(names, *found, strict=True)}

    def values(self) -> dict[str, float]:
        """Return the numbers on the cells that were held out."""
        found = self.evaluate("val")
        per_kind = [found["right"][found["types"] == kind].mean() for kind in np.unique(found["types"])]
        return {
            "val_loss": float(found["losses"].mean()),
            "val_accuracy": float(found["right"].mean()),
            "val_balanced_accuracy": float(np.mean(per_kind)),
        }

    def save(self, done: int) -> None:
        """Keep weights, means and position; every rank calls it."""
        self.checkpointer.save(done, {"training": JaxTree(self.training), "loader": Replicated(self.train)})

    def restore(self) -> int:
        """Go on after what was saved, if anything was; return the steps done."""
        training = JaxTree(self.training)
        report = self.checkpointer.restore({"training": training, "loader": Replicated(self.train)})
        self.training = training.tree
        return 0 if report is None else report.step

    def fit(self, tracker: rankwise.Tracker, done: int) -> dict[str, float]:
        """Train to the end; return the last numbers."""
        values: dict[str, float] = {}
        for epoch in range(int(self.train.state_dict()["epoch"]), self.args.epochs):
            self.train.set_epoch(epoch)
            for (batch,) in self.train:
                self.training, loss = train_step(self.training, batch.fields, batch.weights, self.args.lr)
                self.train.mark_done(batch.resume)
                done += 1
                if done % self.args.log_every == 0:
                    tracker.log(done, {"loss": float(loss)}, epoch=epoch)
                if done % self.args.save_every == 0:
                    self.save(done)
            values = self.values()
            tracker.log(done, values, epoch=epoch, phase="val")
        return values


def finish(run: Run, values: dict[str, float]) -> None:
    """Draw the picture, record the numbers, say them."""
    found = {name: run.evaluate(name) for name in ("train", "val")}
    if not run.world.is_main:
        return
    common = np.bincount(found["train"]["types"]).argmax()
    values["val_trivial_accuracy"] = float((found["val"]["types"] == common).mean())
    places = {name: (part["points"], part["types"]) for name, part in found.items()}
    picture = draw_cells(run.folder.path, places, run.kinds)
    num_steps, num_ranks = int(run.training.num_steps), run.world.world_size
    run.folder.finish({**values, "num_steps": num_steps})
    print(
        f"accuracy {values['val_accuracy']:.4f} on {len(found['val']['types'])} cells that were held out (calling all "
        f"of them {run.kinds[common]}: {values['val_trivial_accuracy']:.4f}), balanced over {len(run.kinds)} kinds "
        f"{values['val_balanced_accuracy']:.4f} (by chance: {1 / len(run.kinds):.4f}), after {num_steps} steps on "
        f"{num_ranks} rank{'s' if num_ranks > 1 else ''}; picture: {picture}"
    )


def main() -> None:
    """Parse the command line, train, draw a picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collection", default="cells.zarr", help="written by examples/cells/data.py")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="global: what the optimizer sees at any world size")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--float64", action="store_true", help="double precision, to compare world sizes exactly")
    parser.add_argument("--log-every", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=50, help="steps; in the middle of an epoch too")
    args = parser.parse_args()

    jax.config.update("jax_enable_x64", args.float64)
    world = rankwise.World.init_jax()  # before anything that computes
    config = {"lr": args.lr, "float64": args.float64, "batch_size": args.batch_size}
    path = Path(os.environ.get("RANKWISE_RUN_DIR", "runs/cells_jax"))
    fresh = os.environ.get("RANKWISE_FRESH") == "1"
    with RunDir.open(path, config=config, world=world, fresh=fresh) as folder:
        if folder.finished:
            sys.exit(f"{path} is finished: {folder.finished['values']}")
        with rankwise.Tracker(folder, world=world) as tracker:
            run = Run(args, world, folder)
            done = run.restore()
            tracker.start_attempt(done or None)
            values = run.fit(tracker, done)
        finish(run, values)
        run.rows.close()


if __name__ == "__main__":
    main()
