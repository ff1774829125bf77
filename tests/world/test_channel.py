"""What keeps a process group alive, and what does not."""

import gc
import weakref

import pytest
import torch.distributed as dist

from rankwise.errors import WorldError
from rankwise.world import bind


def test_a_world_lets_go_of_its_group_with_the_block(monkeypatch):
    """The group is freed while the interpreter lives, though the world is still referred to; calls say it was left.

    Freed later, it meets its own threads in the interpreter's finalisation, and the process may end with an abort.
    """
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with bind(device="cpu", always_group=True) as world:
        group = weakref.ref(dist.group.WORLD)
        assert world.all_reduce(3) == 3
        assert world.channel.group is group()
    gc.collect()
    assert group() is None
    with pytest.raises(WorldError, match="it was left"):
        world.all_reduce(3)
