"""Promise 5 for crops: killed in the middle of an epoch, at any world size, every crop is used once, as it would be."""

from collections import Counter

import numpy as np
import pytest
import torch
import zarr

NUM_CROPS, EPOCHS, STEPS = 126, 2, 14  # 6 full steps of 20 and one of 6 in each epoch
PLAIN = ("--plain",)


@pytest.fixture(scope="module")
def job(tmp_path_factory, make_job):
    """Two volumes in sharded Zarr v3; crops lie across their chunks."""
    folder = tmp_path_factory.mktemp("volumes")
    rng = np.random.default_rng(0)
    for name, shape in (("a.zarr", (20, 30, 40)), ("b.zarr", (9, 33, 17))):
        values = rng.integers(1, 1000, shape).astype("u2")
        zarr.create_array(str(folder / name), data=values, chunks=(5, 10, 10), shards=(10, 30, 40))
    return make_job("train_crops.py", "--volumes", str(folder))


def assert_same_work(job, run_dir, num_ranks, extra=()):
    """Each crop was used once in each epoch on the lineage that survives, with the voxels it has undisturbed."""
    used = job.used(run_dir)
    for epoch in range(EPOCHS):
        assert Counter(int(entry.split(":")[0]) for entry in used[epoch].elements()) == Counter(range(NUM_CROPS))
    assert used == job.used(job.undisturbed(num_ranks, extra))
    assert used[0] != used[1]  # drawn and augmented anew
    assert job.result(run_dir)["steps"] == STEPS


def check_equal_world(job, num_ranks, fault):
    run_dir = job.new_run()
    job.die(run_dir, num_ranks, fault)
    job.finish(run_dir, num_ranks)
    assert_same_work(job, run_dir, num_ranks)
    job.assert_equal_bits(run_dir, num_ranks)
    return job.restored_steps(run_dir)


def check_other_worlds(job, sizes, faults):
    """One run through several world sizes, each ended by a fault but the last; it comes to what one rank comes to."""
    run_dir = job.new_run()
    for attempt, (num_ranks, fault) in enumerate(zip(sizes[:-1], faults, strict=False), 1):
        job.die(run_dir, num_ranks, f"{fault}#{attempt}", extra=PLAIN)
    job.finish(run_dir, sizes[-1], extra=PLAIN)
    assert_same_work(job, run_dir, 1, PLAIN)
    got, wanted = job.result(run_dir), job.result(job.undisturbed(1, PLAIN))
    assert got["metrics"]["accuracy"] == wanted["metrics"]["accuracy"]
    torch.testing.assert_close(got["parameters"], wanted["parameters"], rtol=0, atol=1e-9)
    return job.restored_steps(run_dir)


@pytest.mark.slow
def test_a_rank_is_killed_and_the_supervisor_restarts(job):
    """One of two ranks dies in the second epoch: one command goes on from the last checkpoint, to the same bits.

    In CI, rows go on under the supervisor (test_restarts), and crops without it (test_chaos).
    """
    run_dir = job.new_run()
    job.finish(run_dir, 2, fault="kill:1@11", restarts=1)
    assert job.restored_steps(run_dir) == [0, 9]
    assert_same_work(job, run_dir, 2)
    job.assert_equal_bits(run_dir, 2)


def test_a_rank_is_killed_and_the_others_go_on_with_fewer(job):
    """`--min-ranks`: the one rank that is left goes on from the last checkpoint, to what one rank comes to."""
    run_dir = job.new_run()
    job.finish(run_dir, 2, fault="kill:1@11", options=("--min-ranks", "1"), extra=PLAIN)
    assert job.restored_steps(run_dir) == [0, 9]
    assert_same_work(job, run_dir, 1, PLAIN)
    wanted = job.result(job.undisturbed(1, PLAIN))["parameters"]
    torch.testing.assert_close(job.result(run_dir)["parameters"], wanted, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_continued_at_other_world_sizes(job):
    """2 ranks, then 1, then 2, then 3; a rank, all ranks and the whole job die in mid-epoch: weights within 1e-9."""
    restored = check_other_worlds(job, (2, 1, 2, 3), ("kill:1@4", "kill:all@7", "kill:supervisor@10"))
    assert restored[:3] == [0, 3, 6]
    assert restored[3] in (9, 12)  # the ranks go on until the death of their supervisor reaches them


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("who", ["0", "all", "supervisor"])
@pytest.mark.parametrize("step", [1, 5, 7, 13])
def test_killed_everywhere(job, num_ranks, who, step):
    """Equal bits after every kind of kill, in the first step, about the end of the first epoch and before the end."""
    assert len(check_equal_world(job, num_ranks, f"kill:{who}@{step}")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 2), (1, 4), (2, 1), (2, 3), (3, 2), (4, 1), (3, 1, 3), (1, 3, 2)])
@pytest.mark.parametrize("who", ["0", "all", "supervisor"])
def test_continued_at_every_world_size(job, sizes, who):
    """The same work at whatever world size goes on."""
    restored = check_other_worlds(job, sizes, (f"kill:{who}@5", f"kill:{who}@11"))
    assert len(restored) == len(sizes)
