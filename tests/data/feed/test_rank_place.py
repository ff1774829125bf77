"""Which rank a loader feeds where there is no torch."""

import sys

import pytest

from rankwise.data.feed.rank_place import RankPlace, find_place
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
