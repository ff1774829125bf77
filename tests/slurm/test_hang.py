"""Ranks that hang on two nodes of a real Slurm: all nodes are asked, and the one rank to blame is named."""

import json
import re

HANGS = """
import threading
import time

from rankwise import vitals

there = threading.Event()


def live_until_there():  # however long the imports take
    while not there.wait(0.2):
        vitals.beat()


threading.Thread(target=live_until_there, daemon=True).start()

import torch

import rankwise


def prepares_for_ever():
    while True:
        time.sleep(0.05)  # one of the others ends it


with rankwise.bind(threads=1) as world:
    world.barrier()
    there.set()
    if world.rank == 3:
        prepares_for_ever()
    world.all_reduce(torch.ones(2))
"""


def test_the_rank_that_holds_up_both_nodes_is_named(cluster):
    """First told where all ranks are and left alone (--stall), then ended: one verdict, by rank, line and node."""
    script = cluster.write("hangs.py", HANGS)
    line = 1 + HANGS.strip().splitlines().index("        time.sleep(0.05)  # one of the others ends it")
    limits = ("--stall", "4", "--hang-timeout", "12")
    submit = ("--slurm", "--nodes", "2", "--nproc", "2", "--time", "10m")
    done = cluster.rankwise("run", *submit, *limits, "--run-dir", "run", script, check=False)
    text = done.stdout + done.stderr
    assert done.returncode == 1, text
    told = [line for line in text.splitlines() if "(--stall), the run continues; look at rank 3 on node node2" in line]
    assert told, text
    assert len(told) == len(set(told)), text  # once by all nodes together, and again after twice the time
    assert re.search(rf"rank 3 of 4 on node2 hangs \(.*hangs.py:{line} in prepares_for_ever\)", text), text
    assert text.count(" hangs (") == 1, text  # the nodes do not accuse each other
    kept = json.loads((cluster.folder / "run" / "failure.json").read_text())
    assert kept["failures"][-1]["rank"] == 3, kept
    assert set(kept["failures"][-1]["places"]) == {"0", "1", "2", "3"}, kept
    report = cluster.rankwise("report", "run")
    assert report.returncode == 0
    assert "prepares_for_ever" in (cluster.folder / "run" / "report.html").read_text()
