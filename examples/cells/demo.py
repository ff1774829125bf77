"""Cells in one go: write the collection, train on two ranks through `rankwise run`, say what came out.

python examples/cells/demo.py          with torch
python examples/cells/demo.py --jax    with JAX
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from data import write_collection

HERE = Path(__file__).resolve().parent
WANTED_ACCURACY = 0.7


def main() -> None:
    """Run the example in the current folder; exit non-zero when it does not reach the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jax", action="store_true", help="train with JAX; torch need not be installed")
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    collection = Path("runs/cells.zarr")
    run_dir, script = (Path("runs/cells_jax"), "train_jax.py") if args.jax else (Path("runs/cells"), "train.py")
    if not collection.exists():
        print(f"writing the cells that scanpy ships to {collection} (a collection of AnnData stores)", flush=True)
        write_collection(collection)
    train = [os.path.relpath(HERE / script), "--collection", str(collection), "--epochs", str(args.epochs)]
    command = ["run", "--nproc", "2", "--fresh", "--run-dir", str(run_dir), *train]
    print("$ rankwise", " ".join(command), flush=True)
    done = subprocess.run([sys.executable, "-m", "rankwise", *command], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    values = json.loads((run_dir / "finished.json").read_text())["values"]
    found, trivial = values["val_accuracy"], values["val_trivial_accuracy"]
    print(
        f"""
accuracy {found:.4f} (wanted: at least {WANTED_ACCURACY}; calling every cell the commonest kind gives {trivial:.4f})
the latent space: {run_dir}/latent.png"""
    )
    if found < WANTED_ACCURACY:
        sys.exit(f"the accuracy {found:.4f} is below {WANTED_ACCURACY}")


if __name__ == "__main__":
    main()
