"""A pipeline of crops inside Lightning's, Accelerate's and a plain loop: on two gloo ranks, and on one."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import zarr

SCRIPT = Path(__file__).with_name("all_loops.py")
NUM_TILES, BATCH_SIZE, SAVED_STEPS = 5 * 4 * 5, 7, 4
NUM_STEPS = -(-NUM_TILES // BATCH_SIZE)
LOOPS = ["plain", "accelerate", "accelerate, prepared", "lightning"]

for package in ("lightning", "accelerate"):
    pytest.importorskip(package, reason=f"{package} is not installed")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each rank told about every loop: two ranks first, then one, which continues the checkpoint of the two."""
    folder = tmp_path_factory.mktemp("loops")
    # Every voxel has a value of its own, so that a value says where it was read.
    values = np.arange(20 * 30 * 40, dtype="u2").reshape(20, 30, 40)
    zarr.create_array(str(folder / "volume.zarr"), data=values, chunks=(5, 10, 10), shards=(10, 30, 40))
    launch = ["-m", "rankwise", "run", "--nproc", "2", "--fresh", "--run-dir", str(folder / "run")]
    return {2: run(folder, launch, 2), 1: run(folder, [], 1, "--resume")}


def run(folder, launch, num_ranks, *options):
    here = folder / str(num_ranks)
    here.mkdir()
    paths = [str(folder / "volume.zarr"), str(here), str(folder / "saved.ckpt")]
    done = subprocess.run(
        # the script runs other packages, whose warnings are theirs: no -W error here
        [sys.executable, *launch, str(SCRIPT), *paths, *options],
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


def loops_of(told):
    """The undisturbed loops: (name, what its ranks told)."""
    return [(name, [rank[name] for rank in ranks]) for ranks in told.values() for name in LOOPS if name in ranks[0]]


def assert_each_once(seen):
    """Every crop was seen once in each of two epochs, and held its own voxels when it was."""
    assert Counter((epoch, crop) for epoch, crop, _ in seen) == Counter(
        (e, c) for e in (0, 1) for c in range(NUM_TILES)
    )
    firsts = {crop: first for _, crop, first in seen}
    assert len(set(firsts.values())) == NUM_TILES
    assert all(firsts[crop] == first for _, crop, first in seen)


def test_every_crop_once_per_epoch(told):
    """In every loop the ranks together see each crop once per epoch, in shares that differ by one at most per step."""
    assert [name for name, _ in loops_of(told)] == [*LOOPS, "plain", "lightning"]
    for _, ranks in loops_of(told):
        assert_each_once(list(chain.from_iterable(rank["seen"] for rank in ranks)))
        sizes = [len(rank["seen"]) for rank in ranks]
        assert max(sizes) - min(sizes) <= 2 * NUM_STEPS


def test_all_loops_are_one_training(told):
    """Ranks agree to the bit, all loops and world sizes but for rounding: unequal shares weigh as they should."""
    wanted = told[1][0]["plain"]["weights"]
    for _, ranks in [*loops_of(told), *(("resumed", [r["resumed"] for r in ranks]) for ranks in told.values())]:
        assert [rank["weights"] for rank in ranks] == [ranks[0]["weights"]] * len(ranks)
        np.testing.assert_allclose(ranks[0]["weights"], wanted, rtol=1e-12)
    assert np.abs(np.array(wanted) - 1e-3).min() > 1e-6  # it did learn


def test_positions_are_those_of_completed_steps(told):
    """After two epochs every loop stands at the start of the third, on every rank; a cut one where it was cut."""
    for _, ranks in loops_of(told):
        assert {(r["state"]["epoch"], r["state"]["position"]) for r in ranks} == {(2, 0)}
    assert {(r["cut"]["state"]["epoch"], r["cut"]["state"]["position"]) for r in told[2]} == {(0, 6 * BATCH_SIZE)}


def test_accelerate_saves_the_position(told):
    """`save_state` and `load_state` keep a registered pipeline's position, on every rank."""
    loaded = [rank["accelerate, prepared"]["loaded"] for rank in told[2]]
    assert {(state["epoch"], state["position"]) for state in loaded} == {(0, SAVED_STEPS * BATCH_SIZE)}


def test_lightning_resumes_inside_an_epoch(told):
    """A checkpoint of Lightning's goes on behind its last step: no crop twice, none left out, the same bits."""
    kept = 0
    for rank in told[2]:
        whole, resumed = rank["lightning"], rank["resumed"]
        before = len(whole["seen"]) - len(resumed["seen"])
        assert rank["cut"]["seen"][:before] + resumed["seen"] == whole["seen"]
        assert resumed["weights"] == whole["weights"]
        kept += before
    assert kept == SAVED_STEPS * BATCH_SIZE


def test_lightning_resumes_between_epochs(told):
    """A checkpoint of Lightning's from the end of an epoch goes on with the next one's order, not with the first's."""
    (one,) = told[1]
    assert one["first epoch"]["seen"] + one["second epoch"]["seen"] == one["lightning"]["seen"]
    assert one["second epoch"]["weights"] == one["lightning"]["weights"]


def test_lightning_resumes_at_another_world_size(told):
    """One rank goes on with the checkpoint of two: every crop once per epoch all the same."""
    before = [rank["cut"]["seen"][: len(rank["lightning"]["seen"]) - len(rank["resumed"]["seen"])] for rank in told[2]]
    assert_each_once([*chain.from_iterable(before), *told[1][0]["resumed"]["seen"]])
