"""Several ranks save together or not at all."""

import resource
import weakref

import pytest
import torch

from rankwise.checkpoint import Checkpointer
from rankwise.errors import CheckpointError, DesyncError
from rankwise.testing import run_ranks


class Shard:
    scope = "sharded"

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        if self.value is None:
            raise ValueError("the shard is gone")
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def names(folder):
    return sorted(entry.name for entry in folder.glob("*step-*"))


def save_and_restore(world, folder):
    checkpointer = Checkpointer(folder, world=world)
    path = checkpointer.save(5, {"shard": Shard(torch.tensor(world.rank)), "same": {"value": 7}})
    shard, same = Shard(None), {"value": world.rank}
    report = checkpointer.restore({"shard": shard, "same": same})
    return str(path), int(shard.value), same, report.restored, checkpointer.newest().step


def test_each_rank_gets_its_own_back(tmp_path):
    """Sharded parts go back to their ranks, replicated ones to all, and all ranks get one answer."""
    results = run_ranks(save_and_restore, 2, tmp_path)
    path = str(tmp_path / "step-0000000005")
    assert results == [(path, rank, {"value": 7}, ("shard", "same"), 5) for rank in range(2)]
    assert sorted(str(p.relative_to(path)) for p in (tmp_path / "step-0000000005").rglob("*.[np]*")) == [
        "rank-0/shard.pt",
        "rank-1/shard.pt",
        "same.npz",
    ]


def save_over_the_limit(world, folder):
    checkpointer = Checkpointer(folder, world=world)
    checkpointer.save(1, {"shard": Shard(torch.zeros(10))})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if world.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        with pytest.raises(CheckpointError) as caught:
            checkpointer.save(2, {"shard": Shard(torch.zeros(100_000))})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    seen = names(folder)
    world.barrier()
    step = checkpointer.newest().step
    checkpointer.save(3, {"shard": Shard(torch.zeros(100_000))})
    return str(caught.value), seen if world.is_main else None, step


def test_a_rank_that_cannot_write_fails_all(tmp_path):
    """A size limit on one rank: every rank raises CheckpointError, nothing is left, the previous one is found."""
    first, second = run_ranks(save_over_the_limit, 2, tmp_path)
    assert "rank 1: [Errno 27] File too large; check free space" in second[0]
    assert "failed on another rank" in first[0]
    assert "File too large" in first[0]
    assert first[1] == ["step-0000000001"]
    assert first[2] == second[2] == 1


def save_on_own_disks(world, folder):
    own = folder / f"machine-{world.rank}"
    with pytest.raises(CheckpointError) as caught:
        Checkpointer(own, world=world).save(1, {"shard": Shard(1)})
    return str(caught.value), [path.name for path in own.rglob("*.npz")]


def test_ranks_without_a_common_disk_are_refused(tmp_path):
    """What the main rank cannot see is not published; the message names the rank and the reason."""
    for message, left in run_ranks(save_on_own_disks, 2, tmp_path):
        assert "rank 1 has written rank-1/shard.npz, but the main rank does not see" in message
        assert left == []
    assert not list((tmp_path / "machine-0").glob("*step-*"))


def save_without_shard(world, folder):
    checkpointer = Checkpointer(folder, world=world)
    with pytest.raises(CheckpointError) as caught:
        checkpointer.save(1, {"shard": Shard(None if world.rank == 1 else 3)})
    return str(caught.value), checkpointer.newest()


def test_a_state_that_cannot_be_taken_fails_all(tmp_path):
    """An exception in one rank's state_dict does not leave the others waiting."""
    for message, newest in run_ranks(save_without_shard, 2, tmp_path):
        assert "ValueError: the shard is gone" in message
        assert newest is None


def save_different(world, folder):
    checkpointer = Checkpointer(folder, world=world)
    with pytest.raises(DesyncError) as caught:
        checkpointer.save(1 + world.rank, {"x": {}})
    world.barrier()
    with pytest.raises(DesyncError):
        checkpointer.save(1, {f"x{world.rank}": {}})
    world.barrier()
    return str(caught.value), caught.value.ranks, names(folder)


def test_ranks_that_save_different_things_are_refused(tmp_path):
    """Another step or another part: DesyncError on all ranks, nothing published."""
    for message, ranks, left in run_ranks(save_different, 2, tmp_path):
        assert "rank 0: step 1" in message
        assert "rank 1: step 2" in message
        assert ranks == (1,)
        assert left == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_save_keeps_no_states(tmp_path, asynchronous, left_alive):
    """When it is published, without the cyclic garbage collector: states may be as large as the model."""

    def save():
        checkpointer, tensor = Checkpointer(tmp_path, asynchronous=asynchronous), torch.zeros(10)
        checkpointer.save(1, {"shard": Shard(tensor)})
        checkpointer.close()
        return weakref.ref(checkpointer), weakref.ref(tensor)

    assert left_alive(save) == [None, None]
