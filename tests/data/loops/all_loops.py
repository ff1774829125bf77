"""Run every loop of this folder on the ranks that were started: all_loops.py PLACES FOLDER CHECKPOINTS [--resume]."""

import json
import os
import sys
from pathlib import Path

from accelerate_loop import train_accelerate
from kinds import KINDS
from lightning_loop import train_lightning
from plain_loop import train_plain
from sampled_loop import train_sampled

STEPS = 4  # after which a checkpoint is saved


def whole_and_cut(kind, place, num_ranks, folder, checkpoint):
    """Every loop, one of them cut off behind its checkpoint and continued."""
    return {
        "lightning": train_lightning(kind, place, num_ranks),
        "cut": train_lightning(kind, place, num_ranks, save=(checkpoint, STEPS), stop=6),
        "resumed": train_lightning(kind, place, num_ranks, resume=checkpoint),
        "accelerate": train_accelerate(kind, place, prepared=False),
        "accelerate, prepared": train_accelerate(kind, place, prepared=True, save=(folder / "state", STEPS)),
        "plain": train_plain(kind, place),  # in the process group that the others have made
    }


def continued(kind, place, num_ranks, folder, checkpoint):
    """What other ranks have begun; and a checkpoint from between two epochs."""
    between = folder / "between.ckpt"
    return {
        "plain": train_plain(kind, place),
        "lightning": train_lightning(kind, place, num_ranks),
        "resumed": train_lightning(kind, place, num_ranks, resume=checkpoint),
        "first epoch": train_lightning(kind, place, num_ranks, save=(between, None), epochs=1),
        "second epoch": train_lightning(kind, place, num_ranks, resume=between),
    }


def sampled(kind, places, num_ranks, checkpoint):
    """A loop over a sampler: whole, cut off inside an epoch, and continued."""
    return {
        "whole": train_sampled(kind, places, num_ranks),
        "cut": train_sampled(kind, places, num_ranks, save=(checkpoint, 3), stop=4),
        "resumed": train_sampled(kind, places, num_ranks, resume=checkpoint),
    }


def main():
    places, folder, checkpoints = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    run = continued if "--resume" in sys.argv else whole_and_cut
    results = {}
    for name, kind in KINDS.items():
        here = folder / name
        here.mkdir(exist_ok=True)
        results[name] = run(kind, places[name], num_ranks, here, checkpoints / f"{name}.ckpt")
    if "--resume" not in sys.argv:
        results["sampled"] = sampled(KINDS["rows"], places["rows"], num_ranks, checkpoints / "sampled.ckpt")
    (folder / f"rank{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
