"""Which rank a loader feeds where there is no torch."""

import sys

import pytest

from rankwise.data.feed.options import RankPlace, find_place
from rankwise.data.feed.place_jax import is_jax_target
from rankwise.errors import MissingExtraError
from rankwise.world import adopt


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_without_torch_the_choice_is_named(monkeypatch, device):
    """Tensors that nobody can make are refused with both mends; NumPy and JAX arrays are for one rank."""
    monkeypatch.setattr(adopt, "known_world", lambda: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=rf"device='{device}' .* 'rankwise\[train\]', or pass device=None"):
        find_place(None, device)
    for other in (None, "jax"):
        assert find_place(None, other) == RankPlace(rank=0, world_size=1, device=other)


def test_targets_of_jax_are_told_apart():
    """A device of torch is none."""
    jax = pytest.importorskip("jax")
    assert is_jax_target("jax")
    assert is_jax_target(jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    assert not any(is_jax_target(device) for device in ("cpu", "auto", None))
