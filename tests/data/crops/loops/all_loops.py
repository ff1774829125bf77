"""Run every loop of this folder on the ranks that were started: all_loops.py VOLUME FOLDER CHECKPOINT [--resume]."""

import json
import os
import sys
from pathlib import Path

from accelerate_loop import train_accelerate
from lightning_loop import train_lightning
from plain_loop import train_plain


def main():
    volume, folder, checkpoint = (Path(word) for word in sys.argv[1:4])
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if "--resume" in sys.argv:
        results = {
            "lightning": train_lightning(volume, num_ranks),
            "resumed": train_lightning(volume, num_ranks, resume=checkpoint),
            "first epoch": train_lightning(volume, num_ranks, save=(folder, None), epochs=1),
            "second epoch": train_lightning(volume, num_ranks, resume=folder / "saved.ckpt"),
        }
    else:
        save = (checkpoint.parent, 4)
        results = {
            "lightning": train_lightning(volume, num_ranks),
            "cut": train_lightning(volume, num_ranks, save=save, stop=6),
            "resumed": train_lightning(volume, num_ranks, resume=checkpoint),
            "accelerate": train_accelerate(volume, prepared=False),
            "accelerate, prepared": train_accelerate(volume, prepared=True, save=(folder / "state", 4)),
        }
    results["plain"] = train_plain(volume)
    (folder / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
