"""The main job in one go: write the store, train on two ranks through `rankwise run`, say what came out.

python examples/digits/demo.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from data import write_store

HERE = Path(__file__).resolve().parent
WANTED_ACCURACY = 0.95


def main() -> None:
    """Run the demo in the current folder; exit non-zero when it does not reach the accuracy."""
    store, run_dir = Path("runs/digits.zarr"), Path("runs/digits")
    if not store.exists():
        print(f"writing scikit-learn's handwritten digits to {store} (sharded Zarr v3)", flush=True)
        write_store(store)
    command = [
        "run",
        "--nproc",
        "2",
        "--fresh",
        "--run-dir",
        str(run_dir),
        str(HERE / "train.py"),
        "--store",
        str(store),
    ]
    print("$ rankwise", " ".join(command), flush=True)
    done = subprocess.run([sys.executable, "-m", "rankwise", *command], check=False)
    if done.returncode:
        sys.exit(done.returncode)
    accuracy = json.loads((run_dir / "finished.json").read_text())["values"]["val_accuracy"]
    rankwise = os.path.relpath(Path(sys.executable).with_name("rankwise"))
    train, own_loop = (os.path.relpath(HERE.parent / name / "train.py") for name in ("digits", "own_loop"))
    print(
        f"""
accuracy {accuracy:.4f} (wanted: at least {WANTED_ACCURACY}); the run directory is {run_dir}/

what to try next:
  {rankwise} run --nproc 3 --run-dir runs/three {train} --store {store}
      the same training on 3 ranks; kill it in the middle (Ctrl-C, kill -9) and run it again: it continues
  {rankwise} run --nproc 2 {own_loop} --store {store}
      the same in a loop of your own
  less {run_dir}/metrics.jsonl
      every logged number"""
    )
    if accuracy < WANTED_ACCURACY:
        sys.exit(f"the accuracy {accuracy:.4f} is below {WANTED_ACCURACY}")


if __name__ == "__main__":
    main()
