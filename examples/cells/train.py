"""Train an autoencoder with a classifier on cells of an AnnData collection, on any number of ranks.

    rankwise run --nproc 2 examples/cells/train.py --collection cells.zarr

The same file runs as ``python examples/cells/train.py`` on one rank, and under torchrun.
"""

from __future__ import annotations

import argparse

import torch
from model import CellMap, ValStep, hide_genes, train_step
from picture import write_picture

import rankwise
from rankwise.data.rows import OrderedLoader, RowSource


def count_types(rows: RowSource) -> torch.Tensor:
    """Return how many cells there are of each kind, int64[types]."""
    order = rankwise.Order(rows, batch_size=256, kind="sequential")
    counts = torch.zeros(len(rows.categories["cell_type"]), dtype=torch.int64)
    with OrderedLoader(rows, order=order, fields=("cell_type",), device="cpu", world=rankwise.World.single()) as loader:
        for (batch,) in loader:
            counts += torch.bincount(batch["cell_type"], minlength=len(counts))
    return counts


def main() -> None:
    """Parse the command line, train, draw a picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collection", default="cells.zarr", help="written by examples/cells/data.py")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64, help="global: what the optimizer sees at any world size")
    parser.add_argument("--micro-batch", type=int, default=None, help="most cells of one rank in one pass")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--float64", action="store_true", help="double precision, to compare world sizes exactly")
    args = parser.parse_args()

    with rankwise.bind() as world:
        rows = RowSource(args.collection, obs=("cell_type",), dense=True)
        parts = rows.split(by="row", fractions={"train": 0.75, "val": 0.25})
        # Each kind is as likely in training; what is held out stays as it is, every cell once.
        order = rankwise.Order(parts["train"], batch_size=args.batch_size, seed=world.seed, balance="cell_type")
        train = OrderedLoader(parts["train"], order=order, micro_batch=args.micro_batch, batch_transform=hide_genes)
        val = OrderedLoader(parts["val"], order=rankwise.Order(parts["val"], batch_size=64, kind="sequential"))
        types = rows.categories["cell_type"]
        common = int(count_types(parts["train"]).argmax())
        val_step = ValStep(count_types(parts["val"]), common)

        model = CellMap(len(rows.var_names), len(types))
        if args.float64:
            model.double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
        config = {"lr": args.lr, "float64": args.float64}
        trainer = rankwise.Trainer(model, optimizer, train_step, val_fn=val_step, config=config, log_every=20)
        with train, val:
            result = trainer.fit(train, val=val, epochs=args.epochs)
        if world.is_main:
            trained_on = (
                "" if result.already_finished else f" on {world.world_size} rank{'s' if world.world_size > 1 else ''}"
            )
            picture = write_picture(result.run_dir, parts, model)
            found = result.metrics
            print(
                f"accuracy {found['val_accuracy']:.4f} on {len(parts['val'])} cells that were held out (calling all of "
                f"them {types[common]}: {found['val_trivial_accuracy']:.4f}), balanced over {len(types)} kinds "
                f"{found['val_balanced_accuracy']:.4f} (by chance: {1 / len(types):.4f}), after {result.num_steps} "
                f"steps{trained_on}; picture: {picture}"
            )


if __name__ == "__main__":
    main()
