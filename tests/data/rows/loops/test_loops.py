"""Loaders of rows inside Lightning's and Accelerate's loops: on two gloo ranks, and on one."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from rankwise.testing.row_stores import make_stores

SCRIPT = Path(__file__).with_name("all_loops.py")
NUM_ROWS, BATCH_SIZE, SAVED_STEPS = 93, 14, 4

for package in ("lightning", "accelerate"):
    pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each rank told about every loop: two ranks first, then one, which continues the checkpoint of the two."""
    folder = tmp_path_factory.mktemp("loops")
    stores = ",".join(make_stores(folder, (53, 40)).places)
    launch = ["-m", "rankwise", "run", "--nproc", "2", "--fresh", "--run-dir", str(folder / "run")]
    return {2: run(folder, stores, launch, 2), 1: run(folder, stores, [], 1, "--resume")}


def run(folder, stores, launch, num_ranks, *options):
    here = folder / str(num_ranks)
    here.mkdir()
    done = subprocess.run(
        # the script runs other packages, whose warnings are theirs: no -W error here
        [sys.executable, *launch, str(SCRIPT), stores, str(here), str(folder / "saved.ckpt"), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=here,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((here / f"rank{rank}.json").read_text()) for rank in range(num_ranks)]


def seen(told, num_ranks, loop):
    return list(chain.from_iterable(rank[loop]["seen"] for rank in told[num_ranks]))


def number_of(row):
    return row if row < 53 else row - 53 + 1000


ONCE = Counter((epoch, row, number_of(row)) for epoch in range(2) for row in range(NUM_ROWS))


@pytest.mark.parametrize(("num_ranks", "loop"), [(2, "lightning"), (2, "accelerate"), (1, "lightning")])
def test_every_row_once_per_epoch(told, num_ranks, loop):
    """In an order the ranks together see each row once per epoch, with its own obs, and train the same weights."""
    assert Counter(map(tuple, seen(told, num_ranks, loop))) == ONCE
    wanted = told[1][0]["lightning"]["weights"]
    for rank in told[num_ranks]:
        np.testing.assert_allclose(rank[loop]["weights"], wanted, rtol=1e-12)
        assert (rank[loop]["state"]["epoch"], rank[loop]["state"]["position"]) == (2, 0)
    assert np.abs(np.array(wanted) - 1e-3).min() > 1e-6  # it did learn


def test_lightning_resumes_inside_an_epoch(told):
    """Its checkpoint holds the position: no row twice or left out, the same bits; also on another number of ranks."""
    kept = []
    for rank in told[2]:
        whole, resumed = rank["lightning"]["seen"], rank["resumed"]["seen"]
        before = len(whole) - len(resumed)
        assert rank["cut"]["seen"][:before] + resumed == whole
        assert rank["resumed"]["weights"] == rank["lightning"]["weights"]
        kept += rank["cut"]["seen"][:before]
    assert len(kept) == SAVED_STEPS * BATCH_SIZE
    (one,) = told[1]
    assert Counter(map(tuple, kept + one["resumed"]["seen"])) == ONCE
    np.testing.assert_allclose(one["resumed"]["weights"], one["lightning"]["weights"], rtol=1e-12)


def test_lightning_tells_samplers_the_epoch(told):
    """A `Loader` under a `DistributedSampler`: disjoint ranks, full batches, other rows left out in the next epoch."""
    first, second = (
        [[(row, n) for at, row, n in rank["sampled"]["seen"] if at == epoch] for rank in told[2]] for epoch in (0, 1)
    )
    for ranks in (first, second):
        assert [len(rank) for rank in ranks] == [40, 40]  # 93 // 2 // 10 batches of 10
        assert not set(ranks[0]) & set(ranks[1])
    assert first[0] != second[0]
    assert set(chain(*first, *second)) == {(row, number_of(row)) for row in range(NUM_ROWS)}
    assert told[2][0]["sampled"]["weights"] == told[2][1]["sampled"]["weights"]


def test_lightning_resumes_samplers_inside_an_epoch(told):
    """After 3 of 4 batches: those that were left, and the next epoch, are the same rows to the same bits."""
    for rank in told[2]:
        whole, resumed = rank["sampled"], rank["sampled, resumed"]
        assert rank["sampled, cut"]["seen"][:30] + resumed["seen"] == whole["seen"]
        assert resumed["weights"] == whole["weights"]
