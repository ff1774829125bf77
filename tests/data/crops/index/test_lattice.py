"""Where crops may start."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.crops.index.lattice import free_lattice, tile_lattice
from rankwise.errors import ConfigError


def starts(lattice, image=0):
    axes = [np.arange(count) for count in lattice.counts[image]]
    coords = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    return lattice.starts(np.full(len(coords), image), coords)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 25), st.sampled_from(["shift", "pad", "drop"]))
def test_tiles_cover_an_axis(size, extent, stride, edges):
    """Tiles no further apart than they are long cover every element; "drop" leaves less than a stride uncovered."""
    sizes = np.array([[size]])
    if edges == "shift" and size < extent:
        with pytest.raises(ConfigError, match=r"do not fit into image 0.*pad="):
            tile_lattice(sizes, np.array([extent]), np.array([stride]), edges=edges)
        return
    found = starts(tile_lattice(sizes, np.array([extent]), np.array([stride]), edges=edges))[:, 0]
    assert len(set(found.tolist())) == len(found)
    covered = np.zeros(size, dtype=bool)
    for start in found.tolist():
        assert edges == "pad" or start + extent <= size
        assert 0 <= start < size
        covered[start : start + extent] = True
    if stride <= extent:
        assert covered.all() or edges == "drop"
        assert (~covered).sum() < max(stride, extent)
    if edges == "pad" and stride == extent:
        assert len(found) == -(-size // extent)


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 9))
def test_random_crops_may_begin_anywhere_inside(size, extent, step):
    """Every multiple of the step inside is a start, and the last place inside; nothing else is."""
    sizes = np.array([[size]])
    if size < extent:
        with pytest.raises(ConfigError, match="too small"):
            free_lattice(sizes, np.array([extent]), np.array([step]), padded=False)
        return
    found = starts(free_lattice(sizes, np.array([extent]), np.array([step]), padded=False))[:, 0].tolist()
    assert found == sorted({*range(0, size - extent + 1, step), size - extent})


def test_a_small_image_lies_anywhere_in_a_padded_crop():
    """Where a crop is larger than an image, every place is possible that holds the whole image."""
    lattice = free_lattice(np.array([[3]]), np.array([5]), np.array([1]), padded=True)
    assert starts(lattice)[:, 0].tolist() == [-2, -1, 0]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 7), st.integers(-60, 60))
def test_nearest_is_a_start_close_by(size, extent, step, wanted):
    """The start that is taken for any place is the nearest of the lattice, also where the last step is shorter."""
    extent = min(extent, size)
    lattice = free_lattice(np.array([[size]]), np.array([extent]), np.array([step]), padded=False)
    found = int(lattice.nearest(np.array([0]), np.array([[wanted]]))[0, 0])
    every = starts(lattice)[:, 0].tolist()
    assert found in every
    assert abs(found - wanted) == min(abs(start - wanted) for start in every)


def test_unknown_edges_are_refused():
    """Only the three ways exist."""
    with pytest.raises(ConfigError, match="edges must be one of shift, pad, drop; got 'wrap'"):
        tile_lattice(np.array([[8]]), np.array([4]), np.array([4]), edges="wrap")
