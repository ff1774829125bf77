"""The main job in one go: write the store, train on two ranks through `rankwise run`, say what came out.

python examples/digits/demo.py
"""

from __future__ import annotations

import json
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
    print(f"\naccuracy {accuracy:.4f} (wanted: at least {WANTED_ACCURACY}); the run directory is {run_dir}/")
    print(
        "what to try next:\n"
        f"  rankwise run --nproc 3 --fresh {HERE / 'train.py'} --store {store}     the same numbers on 3 ranks\n"
        "  press Ctrl-C in the middle, then run the same command without --fresh: it continues\n"
        f"  less {run_dir}/metrics.jsonl                                          every logged number\n"
        "  examples/own_loop/train.py                                            the same in a loop of your own"
    )
    if accuracy < WANTED_ACCURACY:
        sys.exit(f"the accuracy {accuracy:.4f} is below {WANTED_ACCURACY}")


if __name__ == "__main__":
    main()
