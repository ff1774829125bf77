"""Run every loop of this folder on the ranks that were started, then some on one alone: all_loops.py PLACES FOLDER."""

import json
import os
import sys
from pathlib import Path

import torch  # once, before the ranks are forked

# isort: split
from accelerate_loop import train_accelerate
from kinds import KINDS
from lightning_loop import train_lightning
from plain_loop import train_plain
from sampled_loop import train_sampled

STEPS = 4  # after which a checkpoint is saved
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


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


def stand_alone():
    """Leave the process group, and forget what a launcher has told."""
    torch.distributed.destroy_process_group()
    for name in [*os.environ]:
        if name in LAUNCHER or name.startswith("TORCHELASTIC"):
            del os.environ[name]


def main():
    places, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    checkpoints = {name: folder / f"{name}.ckpt" for name in [*KINDS, "sampled"]}
    results = {
        name: whole_and_cut(kind, places[name], num_ranks, folder / name, checkpoints[name])
        for name, kind in KINDS.items()
    }
    results["sampled"] = sampled(KINDS["rows"], places["rows"], num_ranks, checkpoints["sampled"])
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    stand_alone()
    if rank == 0:
        alone = {
            name: continued(kind, places[name], 1, folder / name, checkpoints[name]) for name, kind in KINDS.items()
        }
        (folder / "alone.json").write_text(json.dumps(alone))


if __name__ == "__main__":
    main()
