"""Counts per million and their logarithm, on every kind of batch."""

import numpy as np
import pytest
import torch

from rankwise import Order
from rankwise.data.rows import Log1pCounts, OrderedLoader, RowSource, log1p_cpm, log1p_normalized
from rankwise.errors import ConfigError
from rankwise.testing.shares import RankPlace
from rankwise.testing.stores.row_stores import make_stores
from rankwise.testing.stores.small_rows import random_csr

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")


def made(kind, matrix):
    if kind == "torch sparse":
        parts = matrix.indptr.astype("i4"), matrix.indices.astype("i4"), matrix.data.copy()
        return torch.sparse_csr_tensor(*map(torch.from_numpy, parts), size=matrix.shape, check_invariants=True)
    if kind == "scipy":
        return matrix.copy()
    return torch.from_numpy(matrix.toarray()) if kind == "torch dense" else matrix.toarray()


def plain(field):
    if hasattr(field, "toarray"):
        return field.toarray()
    return field.to_dense().numpy() if hasattr(field, "layout") else field


@pytest.mark.parametrize("num_rows", [0, 25])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("kind", ["numpy", "scipy", "torch dense", "torch sparse"])
def test_it_is_what_it_says(kind, dtype, num_rows):
    """The formula, for floats and whole numbers; empty rows stay zero, other fields and the input stay as they are."""
    matrix = random_csr(25, 12, seed=4).astype(dtype)[:num_rows]
    dense = matrix.toarray().astype("f8")
    sums = dense.sum(axis=1, keepdims=True)
    wanted = np.log1p(dense * np.where(sums > 0, 1e6 / np.maximum(sums, 1), 0))
    given = {"X": made(kind, matrix), "n": 3}
    found = log1p_cpm(given, None)
    np.testing.assert_allclose(plain(found["X"]), wanted, rtol=1e-5)
    assert (found["n"], plain(found["X"]).dtype) == (3, np.dtype("f8" if dtype == "f8" else "f4"))
    np.testing.assert_array_equal(plain(given["X"]), matrix.toarray())


@pytest.mark.parametrize("dtype", ["f4", "i4"])
@pytest.mark.parametrize("kind", ["numpy", "scipy", "torch dense", "torch sparse", "in place"])
def test_sizes_of_rows_from_a_field(kind, dtype):
    """log1p(counts * total / size), whatever the batch holds of a row; size 0 gives zeros, a missing one NaN."""
    matrix = random_csr(25, 12, seed=4, density=0.9).astype(dtype)
    sizes = np.random.default_rng(1).integers(1000, 9000, 25).astype("f8")
    sizes[3], sizes[4] = 0, np.nan
    dense = matrix.toarray().astype("f8")
    with np.errstate(divide="ignore"):
        wanted = np.log1p(dense * np.where(sizes == 0, 0, 1e4 / sizes)[:, None])
    change = Log1pCounts(total=1e4, size="n_counts")
    if kind == "in place":
        found = dense.astype("f4")
        change.change(found, sizes)
    else:
        field = made(kind, matrix)
        batch = {"X": field, "n_counts": torch.from_numpy(sizes) if hasattr(field, "layout") else sizes}
        found = plain(change(batch, None)["X"])
    assert np.isnan(found[4][dense[4] > 0]).all()
    assert not found[3].any()
    good = np.arange(25) != 4
    np.testing.assert_allclose(found[good], wanted[good], rtol=1e-5)


@pytest.mark.parametrize("kind", ["numpy", "torch dense", "torch sparse", "in place"])
def test_half_precision(kind):
    """Sums and counts per million beyond what 16 bits hold, 65,504, come out as with 32, in 16."""
    matrix = random_csr(25, 400, seed=4, density=0.9) * 8
    wanted = log1p_cpm({"X": matrix.toarray()}, None)["X"]
    assert matrix.sum(axis=1).max() > 65_504 > matrix.max()
    if kind == "in place":
        found = matrix.toarray().astype("f2")
        log1p_cpm.change(found)
    elif kind == "torch sparse":
        found = log1p_cpm({"X": made(kind, matrix.astype("f4")).half()}, None)["X"].to_dense().numpy()
    else:
        field = made(kind, matrix)
        found = plain(log1p_cpm({"X": field.half() if hasattr(field, "half") else field.astype("f2")}, None)["X"])
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=2e-3)


@pytest.mark.parametrize("kind", ["scipy", "torch dense", "torch sparse"])
def test_rows_do_not_depend_on_the_batch(kind):
    """Each row comes out bit for bit as in a batch of its own."""
    matrix = random_csr(9, 12, seed=4)
    whole = plain(log1p_cpm({"X": made(kind, matrix)}, None)["X"])
    for row in range(9):
        alone = plain(log1p_cpm({"X": made(kind, matrix[row])}, None)["X"])
        assert alone[0].tolist() == whole[row].tolist()


def test_sparse_batches_share_their_columns():
    """Only the values are new."""
    field = made("torch sparse", random_csr(9, 12, seed=4))
    found = log1p_cpm({"X": field}, None)["X"]
    assert found.col_indices().data_ptr() == field.col_indices().data_ptr()


def by_row(source, device, **options):
    loader = OrderedLoader(source, order=Order(source, batch_size=20), world=RankPlace(), device=device, **options)
    rows = {}
    for (batch,) in loader:
        for name in batch:
            field = np.array(plain(batch[name]))  # the memory is used again
            rows.update({(name, number): row for number, row in zip(batch.ids.tolist(), field, strict=True)})
    return rows, loader


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("name", ["X", "layers/counts", "layers/full"])
def test_the_loader_does_it_where_rows_are_made(tmp_path, name, device):
    """Dense rows on the CPU are changed while they are read: as the transform of whole batches says, of any dtype."""
    held = make_stores(tmp_path)
    change = Log1pCounts(total=1e4, field=name)
    source = RowSource(held.places, matrices=(name, "obsm/pca"), obs=("n",), dense=True)
    rows, loader = by_row(source, device, batch_transform=change)
    assert loader.source.fields[name].dtype == np.float32
    wanted = change({name: held.dense(name)}, None)[name]
    for number in range(93):
        np.testing.assert_allclose(rows[name, number], wanted[number], rtol=1e-5)
        assert rows["obsm/pca", number].tolist() == held.dense("obsm/pca")[number].tolist()
    assert source.fields[name].dtype == held.dense(name).dtype


@pytest.mark.parametrize("options", [{"dense": True}, {"genes": [0, 5]}, {}])
def test_chosen_genes_with_the_size_of_all(tmp_path, options):
    """With genes= the size of a row is that of its column, not their sum; dense rows are changed as they are read."""
    held = make_stores(tmp_path)
    source = RowSource(held.places, obs=("n",), **options)
    rows, loader = by_row(source, None, batch_transform=Log1pCounts(total=1e4, size="n"))
    assert (loader.source is source) == (not options)  # dense rows are changed by the source
    sizes = held.obs["n"].to_numpy().astype("f8")
    counts = held.dense("X")[:, options.get("genes", slice(None))]
    for number in range(93):
        scale = 1e4 / sizes[number] if sizes[number] > 0 else 0
        np.testing.assert_allclose(rows["X", number], np.log1p(counts[number] * scale), rtol=1e-5)


def test_sizes_that_are_not_there(tmp_path):
    """A size that no field holds is named with the way to it; so is one that is no name."""
    source = RowSource(make_stores(tmp_path).places, dense=True)
    with pytest.raises(ConfigError, match=r"Log1pCounts\(size='n'\) finds no such field .* obs=\['n'\]"):
        by_row(source, None, batch_transform=Log1pCounts(size="n"))
    for size in ("X", 1e4):
        with pytest.raises(ConfigError, match="size= as the name of a field"):
            Log1pCounts(size=size)


def test_what_it_leaves_to_the_batch(tmp_path):
    """Sparse rows, own transforms, single rows that are transformed first: the source stays as it is."""
    held = make_stores(tmp_path)
    sparse, dense = (RowSource(held.places, dense=dense) for dense in (False, True))
    assert sparse.fused_with(log1p_cpm) is None
    assert dense.fused_with(lambda fields, _: fields) is None
    assert dense.fused_with(Log1pCounts(field="n")) is None
    rows, loader = by_row(dense, None, batch_transform=log1p_cpm, transform=lambda fields, _: {"X": fields["X"] * 2})
    assert loader.source is dense
    wanted = log1p_cpm({"X": held.dense("X")}, None)["X"]
    np.testing.assert_allclose(np.stack([rows["X", number] for number in range(93)]), wanted, rtol=1e-5)


def test_a_row_without_a_size_does_not_depend_on_its_neighbours():
    """On the reader thread, too, all of it becomes NaN, its zeros included, whether the rows beside it are full."""
    rows = np.zeros((3, 40), dtype="f4")
    rows[:, :5] = 3
    sizes = np.array([15, np.nan, 15], dtype="f4")
    wanted = log1p_normalized(rows, total=1e4, sizes=sizes)
    for neighbours in (0, 3):
        rows[[0, 2], 5:] = neighbours
        found = rows.copy()
        Log1pCounts(total=1e4, size="n_counts").change(found, sizes)
        np.testing.assert_array_equal(found[1], wanted[1])


def test_mostly_full_rows_are_changed_as_a_whole():
    """Rows with few zeros, rows without counts, and what cannot be read do no harm."""
    rows = np.array([[1, 2, 3, 4], [0, 0, 0, 0], [np.nan, 1, 1, 1]], dtype="f8")
    wanted = log1p_cpm({"X": rows[:2].copy()}, None)["X"]
    log1p_cpm.change(rows)
    np.testing.assert_allclose(rows[:2], wanted)
    with pytest.raises(ConfigError, match="a total above 0, got 0"):
        Log1pCounts(total=0)
    with pytest.raises(
        ConfigError, match=r"Log1pCounts\(field='X'\) finds no such field .* has 'layers/counts': set field="
    ):
        log1p_cpm({"layers/counts": rows}, None)
