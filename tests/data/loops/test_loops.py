"""Loaders of crops and of rows inside Lightning's, Accelerate's and a plain loop: on two gloo ranks, and on one."""

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import zarr

from rankwise.testing.stores.row_stores import make_stores

SCRIPT = Path(__file__).with_name("all_loops.py")
LAUNCH = ["-m", "rankwise", "run", "--nproc", "2", "--fresh", "--run-dir"]
SAVED_STEPS = 4
NUM_SAMPLES = {"crops": 5 * 4 * 5, "rows": 93}
BATCH_SIZE = {"crops": 7, "rows": 14}
LOOPS = ["lightning", "accelerate", "accelerate, prepared", "plain"]

# looked for, not imported: only the script that is started needs them, and they take seconds
pytestmark = [
    pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")
    for package in ("lightning", "accelerate")
]
kinds = pytest.mark.parametrize("kind", ["crops", "rows"])


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each rank told about every loop: two ranks first, then one, which continues the checkpoints of the two."""
    folder = tmp_path_factory.mktemp("loops")
    # Every voxel has a value of its own, so that a value says where it was read.
    values = np.arange(20 * 30 * 40, dtype="u2").reshape(20, 30, 40)
    zarr.create_array(str(folder / "volume.zarr"), data=values, chunks=(5, 10, 10), shards=(10, 30, 40))
    places = {"crops": str(folder / "volume.zarr"), "rows": ",".join(make_stores(folder, (53, 40)).places)}
    done = subprocess.run(
        # the script runs other packages, whose warnings are theirs: no -W error here
        [sys.executable, *LAUNCH, str(folder / "run"), str(SCRIPT), json.dumps(places), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = {2: ["rank0", "rank1"], 1: ["alone"]}
    return {count: [json.loads((folder / f"{name}.json").read_text()) for name in ranks[count]] for count in ranks}


def value_of(kind, number):
    """The first voxel of a tile, or the number that the obs of a row hold."""
    if kind == "rows":
        return number if number < 53 else number - 53 + 1000
    z, y, x = np.unravel_index(number, (5, 4, 5))
    return int(4 * z * 30 * 40 + min(8 * y, 30 - 8) * 40 + 8 * x)


def once(kind):
    """Each sample once in each of two epochs, with its own value."""
    return Counter((epoch, n, value_of(kind, n)) for epoch in range(2) for n in range(NUM_SAMPLES[kind]))


def counted(*seen):
    return Counter(map(tuple, chain(*seen)))


def loops_of(told, kind):
    """The undisturbed loops: (name, what its ranks told)."""
    return [
        (name, [rank[kind][name] for rank in ranks])
        for ranks in told.values()
        for name in LOOPS
        if name in ranks[0][kind]
    ]


@kinds
def test_every_sample_once_per_epoch(told, kind):
    """In every loop the ranks see each sample once per epoch, in shares that differ by one at most per step."""
    loops = loops_of(told, kind)
    assert [name for name, _ in loops] == [*LOOPS, "lightning", "plain"]
    for _, ranks in loops:
        assert counted(*(rank["seen"] for rank in ranks)) == once(kind)
        sizes = [len(rank["seen"]) for rank in ranks]
        assert max(sizes) - min(sizes) <= 2 * -(-NUM_SAMPLES[kind] // BATCH_SIZE[kind])


@kinds
def test_all_loops_are_one_training(told, kind):
    """Ranks agree to the bit, all loops and world sizes but for rounding: unequal shares weigh as they should."""
    wanted = told[1][0][kind]["plain"]["weights"]
    resumed = [("resumed", [rank[kind]["resumed"] for rank in ranks]) for ranks in told.values()]
    for _, ranks in [*loops_of(told, kind), *resumed]:
        assert [rank["weights"] for rank in ranks] == [ranks[0]["weights"]] * len(ranks)
        np.testing.assert_allclose(ranks[0]["weights"], wanted, rtol=1e-12)
    assert np.abs(np.array(wanted) - 1e-3).min() > 1e-6  # it did learn


def position(state):
    return state["epoch"], state["position"]


@kinds
def test_positions_are_those_of_completed_steps(told, kind):
    """After two epochs every loop stands at the start of the third, on every rank; a cut one where it was cut."""
    for _, ranks in loops_of(told, kind):
        assert {position(rank["state"]) for rank in ranks} == {(2, 0)}
    assert {position(rank[kind]["cut"]["state"]) for rank in told[2]} == {(0, 6 * BATCH_SIZE[kind])}


@kinds
def test_accelerate_saves_the_position(told, kind):
    """`save_state` and `load_state` keep a registered loader's position, on every rank."""
    loaded = [rank[kind]["accelerate, prepared"]["loaded"] for rank in told[2]]
    assert {position(state) for state in loaded} == {(0, SAVED_STEPS * BATCH_SIZE[kind])}


@kinds
def test_lightning_resumes_inside_an_epoch(told, kind):
    """A checkpoint goes on behind its last step, no sample twice or left out, to the same bits; also on one rank."""
    kept = []
    for rank in told[2]:
        whole, cut, resumed = (rank[kind][name] for name in ("lightning", "cut", "resumed"))
        before = len(whole["seen"]) - len(resumed["seen"])
        assert cut["seen"][:before] + resumed["seen"] == whole["seen"]
        assert resumed["weights"] == whole["weights"]
        kept += cut["seen"][:before]
    assert len(kept) == SAVED_STEPS * BATCH_SIZE[kind]
    (one,) = told[1]
    assert counted(kept, one[kind]["resumed"]["seen"]) == once(kind)


@kinds
def test_lightning_resumes_between_epochs(told, kind):
    """A checkpoint of Lightning's from the end of an epoch goes on with the next one's order, not with the first's."""
    (one,) = told[1]
    assert one[kind]["first epoch"]["seen"] + one[kind]["second epoch"]["seen"] == one[kind]["lightning"]["seen"]
    assert one[kind]["second epoch"]["weights"] == one[kind]["lightning"]["weights"]


def test_lightning_tells_samplers_the_epoch(told):
    """A `Loader` under a `DistributedSampler`: disjoint ranks, full batches, other rows left out in the next epoch."""
    first, second = (
        [[(row, n) for at, row, n in rank["sampled"]["whole"]["seen"] if at == epoch] for rank in told[2]]
        for epoch in (0, 1)
    )
    for ranks in (first, second):
        assert [len(rank) for rank in ranks] == [40, 40]  # 93 // 2 // 10 batches of 10
        assert not set(ranks[0]) & set(ranks[1])
    assert first[0] != second[0]
    assert set(chain(*first, *second)) == {(row, value_of("rows", row)) for row in range(NUM_SAMPLES["rows"])}
    assert told[2][0]["sampled"]["whole"]["weights"] == told[2][1]["sampled"]["whole"]["weights"]


def test_lightning_resumes_samplers_inside_an_epoch(told):
    """After 3 of 4 batches: those that were left, and the next epoch, are the same rows to the same bits."""
    for rank in told[2]:
        whole, cut, resumed = (rank["sampled"][name] for name in ("whole", "cut", "resumed"))
        assert cut["seen"][:30] + resumed["seen"] == whole["seen"]
        assert resumed["weights"] == whole["weights"]
