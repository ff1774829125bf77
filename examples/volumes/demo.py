"""Volumes in one go: write the store, train on two ranks through `rankwise run`, say what came out.

python examples/volumes/demo.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from data import write_store

HERE = Path(__file__).resolve().parent
WANTED_DICE = 0.97


def main() -> None:
    """Run the example in the current folder; exit non-zero when it does not reach the Dice score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    store, run_dir = Path("runs/volumes.zarr"), Path("runs/volumes")
    if not store.exists():
        print(f"writing the head that nibabel ships to {store} (sharded OME-Zarr 0.5)", flush=True)
        write_store(store)
    train = [os.path.relpath(HERE / "train.py"), "--store", str(store), "--epochs", str(args.epochs)]
    command = ["run", "--nproc", "2", "--fresh", "--run-dir", str(run_dir), *train]
    print("$ rankwise", " ".join(command), flush=True)
    done = subprocess.run([sys.executable, "-m", "rankwise", *command], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    values = json.loads((run_dir / "finished.json").read_text())["values"]
    found, trivial = values["val_dice"], values["val_trivial_dice"]
    print(
        f"""
Dice {found:.4f} (wanted: at least {WANTED_DICE}; calling every voxel head gives {trivial:.4f})
a crop, its label and its prediction: {run_dir}/prediction.png"""
    )
    if found < WANTED_DICE:
        sys.exit(f"the Dice score {found:.4f} is below {WANTED_DICE}")


if __name__ == "__main__":
    main()
