"""Which fields of stores are read, and what becomes of a fused transform."""

import numpy as np
import pytest

from rankwise.data.rows import Log1pCounts, RowSource
from rankwise.errors import ConfigError
from rankwise.testing.shares import share_of
from rankwise.testing.small import PlainMemory
from rankwise.testing.stores.row_stores import make_stores


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


def read(source):
    buffer = PlainMemory()
    source.read(source.plan(share_of([3, 5])), buffer)
    return {name: buffer.arrays(name)[0] for name in source.fields}


def test_a_fused_transform_goes_with_its_field(held):
    """Without the field there is nothing to change; the field read in another way is raw again."""
    fused = RowSource(held.places, matrices=("X", "obsm/pca"), dense=True).fused_with(Log1pCounts())
    assert read(fused)["X"].max() < np.log1p(1e6)
    assert list(read(fused.select(["obsm/pca"]))) == ["obsm/pca"]
    raw = read(fused.reading(dtype={"X": np.float64}))["X"]
    np.testing.assert_array_equal(raw, held.dense("X")[[3, 5]])


def test_columns_are_read_once(held):
    """Another choice of fields keeps the columns that are in memory; what is asked for wrongly is named."""
    source = RowSource(held.places, obs=("kind", "n"))
    other = source.reading(matrices=(), obs=("n", "kind"))
    assert list(other.fields) == ["n", "kind"]
    before, after = (dict(one._fields.open_columns) for one in (source, other))
    assert all(after[name] is before[name] for name in ("kind", "n"))
    with pytest.raises(ConfigError, match="a RowSource accepts matrices, obs, dense, genes, dtype, rows; got gene"):
        source.reading(gene=[1])
