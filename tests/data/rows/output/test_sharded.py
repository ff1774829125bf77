"""`write_sharded`."""

import contextlib
import warnings
from types import SimpleNamespace

import anndata
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from rankwise import Order
from rankwise.data.rows import DatasetCollection, OrderedLoader, write_sharded
from rankwise.data.rows.datasets.on_disk import Dataset
from rankwise.data.rows.matrices.stacks import stack_matrices
from rankwise.data.rows.output import sharded
from rankwise.data.rows.output.sharded import quiet_anndata
from rankwise.data.rows.output.shards import parse_size
from rankwise.data.store import BoxReader
from rankwise.errors import ConfigError
from rankwise.testing.stores.small_rows import small_anndata


def read_rows(place, name, rows):
    """Rows of a matrix by our reader, as a CSR matrix or an array."""
    with BoxReader(threads=1, cache=0) as reader:
        stack = stack_matrices([Dataset(place, reader).matrix(name)])
        plan = stack.plan(np.asarray(rows), reader)
        if plan.lengths is None:
            out = np.empty((len(rows), *stack.spec.shape), stack.spec.dtype)
            [report] = reader.read(plan.jobs([out]))
            assert not report.errors
            return out
        arrays = [np.empty(plan.num_elements, stack.spec.dtype), np.empty(plan.num_elements, stack.spec.index_dtype)]
        arrays.append(np.empty(len(rows) + 1, np.int64))
        for report in reader.read(plan.jobs(arrays)):
            assert not report.errors
        return sp.csr_matrix(tuple(arrays), shape=(len(rows), stack.spec.shape[0]))


@pytest.mark.parametrize("seed", range(6))
def test_what_was_written_is_read(tmp_path, seed):
    """anndata reads the same matrices; our reader the same rows, without the zeros that fill chunks."""  # noqa: D403
    rng = np.random.default_rng(seed)
    num_rows, num_cols, rows_per_chunk = rng.integers(1, 90), rng.integers(1, 40), int(rng.integers(1, 20))
    shard = [4, 30, "1KB", "1GB"][rng.integers(4)]
    place = str(tmp_path / "a.zarr")
    made = small_anndata(num_rows, num_cols, seed=seed)
    write_sharded(place, made, n_obs_per_chunk=rows_per_chunk, shard_size=shard, align_rows=bool(seed % 3))
    back = anndata.read_zarr(place)
    assert (back.X != made.X).nnz == 0
    sp.csr_matrix((back.X.data, back.X.indices.astype("i4"), back.X.indptr), back.X.shape).check_format()
    np.testing.assert_array_equal(back.obsm["pca"], made.obsm["pca"])
    rows = np.random.default_rng(seed).integers(0, num_rows, 30)
    for name, whole in (("X", made.X), ("layers/counts", made.layers["counts"])):
        found = read_rows(place, name, rows)
        np.testing.assert_array_equal(found.data, whole[rows].data)
        np.testing.assert_array_equal(found.indices, whole[rows].indices)
        np.testing.assert_array_equal(found.indptr, whole[rows].indptr)
    np.testing.assert_array_equal(read_rows(place, "obsm/pca", rows), made.obsm["pca"][rows])


@pytest.mark.parametrize("align_rows", [False, True])
@pytest.mark.parametrize("as_collection", [False, True])
def test_stored_zeros_are_no_loss(tmp_path, as_collection, align_rows):
    """Chunks of elements that are all stored zeros lie in the store, so that readers do not take them for lost."""
    made = small_anndata(200, 30)
    made.X.data[:], made.layers["counts"].data[100:] = 0, 0
    place = tmp_path / "a.zarr"
    if as_collection:
        DatasetCollection(place).add_adatas([made], shuffle=False, n_obs_per_chunk=8, align_rows=align_rows)
        place = place / "dataset_0"
    else:
        write_sharded(place, made, n_obs_per_chunk=8, align_rows=align_rows)
    for name, whole in (("X", made.X), ("layers/counts", made.layers["counts"])):
        loader = OrderedLoader(place, order=Order(200, batch_size=200, kind="sequential"), matrices=[name], device=None)
        for (batch,) in loader:
            np.testing.assert_array_equal(batch[name].indptr, whole.indptr)
            np.testing.assert_array_equal(batch[name].toarray(), whole.toarray())


def test_whole_chunks_are_decoded_once(tmp_path):
    """A run of rows that is a block of the layout touches one chunk of elements and one of columns."""
    made = small_anndata(640, 60)
    write_sharded(tmp_path / "a.zarr", made, n_obs_per_chunk=32)
    with BoxReader(threads=1, cache=0) as reader:
        matrix = Dataset(tmp_path / "a.zarr", reader).matrix()
        assert matrix.chunk_rows == 32
        for start in range(0, 640, 32):
            plan = stack_matrices([matrix]).plan(np.arange(start, start + 32), reader)
            assert [box.num_chunks for box in plan.boxes] == [1, 1]


def test_the_layout_is_the_one_of_annbatch(tmp_path):
    """Chunks and shards of rows, Blosc with lz4, the smallest dtype for columns, sharded along the rows only."""
    made = small_anndata(200, 300)
    made.obsm["image"] = np.arange(200 * 6, dtype="u1").reshape(200, 2, 3)
    group = zarr.open_group(str(tmp_path / "c.zarr"), mode="w", zarr_format=3)
    write_sharded(group, made, n_obs_per_chunk=16, shard_size=64, key="dataset_0", align_rows=False)
    held = zarr.open_group(str(tmp_path / "c.zarr"), mode="r")["dataset_0"]
    chunk = int(16 * made.X.nnz / 200)
    assert held["X/data"].chunks == (chunk,)
    assert held["X/data"].shards[0] % chunk == 0
    assert held["X/indices"].dtype == np.uint16
    assert "row_nnz" not in held["X"]
    assert (held["obsm/image"].chunks, held["obsm/image"].shards) == ((16, 2, 3), (64, 2, 3))
    [blosc] = held["X/data"].compressors
    settings = blosc.to_dict()["configuration"]
    assert (settings["cname"], settings["clevel"], settings["shuffle"]) == ("lz4", 3, "shuffle")


@pytest.mark.parametrize(("align_rows", "block_bytes"), [(True, 2**16), (False, 128_000)])
def test_chunks_are_in_blocks(tmp_path, align_rows, block_bytes):
    """A part of a chunk is decoded without the rest: blocks are of 64 KiB. In annbatch's layout Blosc chooses."""
    counts = sp.csr_matrix(np.tile(np.arange(600) % 6 > 0, (128, 1)).astype("f4"))  # 64 rows are 128,000 bytes
    write_sharded(tmp_path / "a.zarr", anndata.AnnData(counts), align_rows=align_rows)
    frame = (tmp_path / "a.zarr" / "X" / "data" / "c" / "0").read_bytes()
    assert int.from_bytes(frame[4:8], "little") == 128_000
    assert int.from_bytes(frame[8:12], "little") == block_bytes
    rows = np.arange(20, 30)
    assert (read_rows(tmp_path / "a.zarr", "X", rows) != counts[rows]).nnz == 0


def test_columns_first_becomes_rows(tmp_path):
    """A CSC matrix is written by rows, so that rows can be read."""
    made = small_anndata(20, 9)
    made.X = made.X.tocsc()
    write_sharded(tmp_path / "a.zarr", made)
    assert (read_rows(tmp_path / "a.zarr", "X", range(20)) != made.X.tocsr()).nnz == 0


def test_rows_that_are_full_are_stored_as_they_are(tmp_path):
    """Rows without free columns take no zeros: the next block begins in mid-chunk, and all rows are right."""
    made = small_anndata(40, 5)
    full = np.ones((40, 5), "f4")
    full[::7] = 0
    made.X = sp.csr_matrix(full)
    write_sharded(tmp_path / "a.zarr", made, n_obs_per_chunk=3)
    np.testing.assert_array_equal(read_rows(tmp_path / "a.zarr", "X", range(40)).toarray(), full)


class ComingSettings:
    """Of an anndata that writes Zarr v3 anyway, warns of the setting that says so, and has given up another."""

    write_csr_csc_indices_with_min_possible_dtype = False
    auto_shard_zarr_v3 = True

    def __init__(self):
        self.changed = {}

    @property
    def zarr_write_format(self):
        warnings.warn("this setting will be removed", DeprecationWarning, stacklevel=2)
        return 3

    @contextlib.contextmanager
    def override(self, **changed):
        self.changed = changed
        yield
        warnings.warn("these settings will be removed", DeprecationWarning, stacklevel=2)


def test_settings_of_other_versions_of_anndata(monkeypatch):
    """Only what differs is set, only where it exists, and no warning about settings reaches the user."""
    settings = ComingSettings()
    monkeypatch.setattr(sharded, "load_anndata", lambda: SimpleNamespace(settings=settings))
    with quiet_anndata():
        assert settings.changed == {"write_csr_csc_indices_with_min_possible_dtype": True, "auto_shard_zarr_v3": False}
    with pytest.warns(DeprecationWarning, match="will be removed"):
        assert settings.zarr_write_format == 3


def test_a_store_is_written_over(tmp_path):
    """As in a notebook whose cell runs twice: the group is cleared first, though its metadata were consolidated."""
    for num_rows in (30, 20):
        write_sharded(zarr.open_group(str(tmp_path / "a.zarr"), mode="a"), small_anndata(num_rows))
    assert anndata.read_zarr(tmp_path / "a.zarr").shape == (20, 6)
    assert "row_nnz" in zarr.open_group(str(tmp_path / "a.zarr"), mode="r")["X"]


def test_what_cannot_be_written_is_refused(tmp_path):
    """No rows, Zarr v2, sizes that are none: said with what came."""
    made = small_anndata()
    with pytest.raises(ConfigError, match="needs an AnnData with rows"):
        write_sharded(tmp_path / "a.zarr", made[:0].copy())
    with pytest.raises(ConfigError, match="Zarr v3 group, got v2"):
        write_sharded(zarr.open_group(str(tmp_path / "b.zarr"), mode="w", zarr_format=2), made)
    for other, said in ((tmp_path, "got PosixPath"), (made.X, "got csr_matrix")):
        with pytest.raises(ConfigError, match=f"write_sharded needs an AnnData, {said}: anndata.AnnData"):
            write_sharded(tmp_path / "a.zarr", other)
    with pytest.raises(ConfigError, match="needs a Zarr group, or the path of one, got dict"):
        write_sharded({}, made)
    write_sharded(tmp_path / "c.zarr", made)
    with pytest.raises(ConfigError, match=r"c.zarr was opened read-only"):
        write_sharded(zarr.open_group(str(tmp_path / "c.zarr"), mode="r"), made)
    with pytest.raises(ConfigError, match="n_obs_per_chunk must be"):
        write_sharded(tmp_path / "a.zarr", made, n_obs_per_chunk=0)
    with pytest.raises(ConfigError, match=r"shard_size must be an integer .* a size such as"):
        write_sharded(tmp_path / "a.zarr", made, shard_size="much")


@pytest.mark.parametrize(("text", "size"), [("1GB", 2**30), ("1.5 MB", 3 * 2**19), ("64KiB", 2**16), ("7", 7), (5, 5)])
def test_sizes(text, size):
    """Units are powers of 1,024."""
    assert parse_size(text, "x") == size
