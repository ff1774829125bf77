"""Names of observations that come twice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.data.rows import DatasetCollection
from rankwise.data.rows.collection.buckets import find_repeats, hash_names, rename
from rankwise.testing.stores.small_rows import small_anndata


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60))
def test_repeats_are_counted(names):
    """Each row is told how many before it have its name, and gets that number behind its name."""
    held = np.array(names, dtype=object)
    repeats = find_repeats(hash_names(held))
    assert repeats.tolist() == [names[:row].count(name) for row, name in enumerate(names)]
    expected = [f"{name}-{number}" if number else name for name, number in zip(names, repeats, strict=True)]
    assert rename(held, repeats).tolist() == expected


@pytest.mark.parametrize("names", [["a", "a", "a-1", "a"], ["a-1", "a", "a", "a-2", "a"]])
def test_a_new_name_is_no_old_one(tmp_path, names):
    """A name with a number that another row has by itself is not given again."""
    made = small_anndata(len(names), 4)
    made.obs_names = names
    found = DatasetCollection(tmp_path / "c.zarr").add_adatas([made], rng=0, shuffle=False).obs([*made.obs]).index
    assert found.is_unique
    assert [name.split("-")[0] for name in found] == ["a"] * len(names)
    assert set(found) >= set(names)
