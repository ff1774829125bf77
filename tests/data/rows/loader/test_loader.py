"""Batches of rows, in a sampler's order."""

import logging
import pickle
from itertools import pairwise

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankwise import Order
from rankwise.data.rows import DatasetCollection, Loader, OrderedLoader, RowSource, notices, write_sharded
from rankwise.data.rows.abc import Sampler
from rankwise.data.rows.samplers import ClassSampler, DistributedSampler, RandomSampler, SequentialSampler
from rankwise.errors import DataError, SampleError
from rankwise.testing.stores.small_rows import random_csr, small_anndata, write_anndata, write_csr

SIZES = (41, 7, 60)


class Held(dict):
    """Matrices by name, with a short repr for hypothesis to print."""

    def __repr__(self):
        return f"Held({', '.join(self)})"


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Matrices of several kinds and dtypes, in parts, and the whole of each."""
    root = zarr.open_group(str(tmp_path_factory.mktemp("rows") / "parts.zarr"), mode="w")
    held = Held()
    for dtype in ("f4", "u1", "f8"):
        parts = [random_csr(n, 13, seed=k, dtype=dtype) for k, n in enumerate(SIZES)]
        backed = []
        for k, part in enumerate(parts):
            index_dtype = ("u2", "i4", "i8")[k]
            group = write_csr(root, f"{dtype}{k}", part, chunk=9 + k, shard=9 * 4 + 4 * k, index_dtype=index_dtype)
            backed.append(ad.io.sparse_dataset(group))
        whole = sp.vstack(parts).toarray()
        held[f"backed sparse {dtype}"] = backed, whole
        held[f"sparse {dtype}"] = parts, whole
        arrays = [
            root.create_array(f"dense{dtype}{k}", data=part.toarray(), chunks=(5, 4), shards=(10, 8))
            for k, part in enumerate(parts)
        ]
        held[f"backed dense {dtype}"] = arrays, whole
        held[f"dense {dtype}"] = [part.toarray() for part in parts], whole
    images = np.arange(108 * 2 * 3 * 4, dtype="u2").reshape(108, 2, 3, 4)
    edges = np.cumsum([0, *SIZES])
    cut = [images[a:b] for a, b in pairwise(edges)]
    held["images"] = [root.create_array(f"im{k}", data=c, chunks=(3, 1, 3, 4)) for k, c in enumerate(cut)], images
    return held


def tables(sizes=SIZES):
    edges = np.cumsum([0, *sizes])
    return [pd.DataFrame({"row": np.arange(a, b)}, index=[f"cell{k}" for k in range(a, b)]) for a, b in pairwise(edges)]


def dense(rows):
    """Rows as NumPy, whatever they came as."""
    if sp.issparse(rows):
        return rows.toarray()
    if hasattr(rows, "todense"):
        return np.asarray(rows.todense())
    if hasattr(rows, "to_dense"):
        return rows.to_dense().numpy()
    return np.asarray(rows)


class Rows(Sampler):
    """The guide's own sampler: rows by number, some of them twice, some left to no batch."""

    batch_size, shuffle = 4, True

    def __init__(self, rows, splits, *, by_number):
        self._rows, self._splits, self._by_number = rows, splits, by_number

    def n_batches(self, n_obs):
        return len(self._splits)

    def validate(self, n_obs):
        pass

    def _sample(self, n_obs):
        rows = np.asarray(self._rows)
        yield {
            "requests": rows if self._by_number else [slice(r, r + 1) for r in rows.tolist()],
            "splits": self._splits,
        }


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_row_that_arrives_is_the_row_of_that_index(stores, data):
    """Matrix and obs alike, for kinds, dtypes, libraries, samplers, masks, epochs; each row of the range once."""
    kind = data.draw(st.sampled_from(sorted(stores)))
    parts, whole = stores[kind]
    n_obs = len(whole)
    start = data.draw(st.integers(0, n_obs - 8))
    mask = slice(start, data.draw(st.integers(start + 8, n_obs)))
    size = mask.stop - mask.start
    args = data.draw(st.sampled_from([(4, 4, 4), (1, 8, 8), (8, 2, 16), (5, 3, 1), (16, 16, 64)]))
    make = data.draw(st.sampled_from(["random", "replacement", "sequential", "ranks"]))
    if make == "ranks" and size < 2 * args[2]:
        make = "random"
    sampler = {
        "random": lambda: RandomSampler(*args, mask=mask, rng=0),
        "replacement": lambda: RandomSampler(*args, mask=mask, rng=0, replacement=True),
        "sequential": lambda: SequentialSampler(*args, mask=mask),
        "ranks": lambda: DistributedSampler(RandomSampler(*args, mask=mask, rng=0), dist_info=lambda: (1, 2)),
    }[make]()
    to = data.draw(st.sampled_from([None, None, "torch"]))
    loader = Loader(batch_sampler=sampler, return_index=True, to=to).add_datasets(parts, obs=tables())
    loader.set_epoch(data.draw(st.integers(0, 3)))
    seen = []
    batches = list(loader)
    assert len(batches) == len(loader)
    for batch in batches:
        np.testing.assert_array_equal(dense(batch["X"]), whole[batch["index"]])
        assert batch["obs"]["row"].tolist() == batch["index"].tolist()
        assert batch["obs"].index.tolist() == [f"cell{row}" for row in batch["index"]]
        seen += batch["index"].tolist()
    assert set(seen) <= set(range(n_obs)[mask])
    if make in ("random", "sequential"):
        assert sorted(seen) == list(range(n_obs)[mask])


KINDS = st.sampled_from(["backed sparse f4", "sparse u1", "images", "dense f8"])
ROWS = st.lists(st.integers(0, 107), min_size=1, max_size=30)
PLACES = st.lists(st.integers(0, 999), max_size=40)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KINDS, ROWS, PLACES, st.booleans())
def test_own_samplers_name_any_rows(stores, kind, rows, places, by_number):
    """In any order over the datasets, repeated, by number or slice; rows of no split are left out."""
    parts, whole = stores[kind]
    inside = np.array(places, dtype=int) % len(rows)
    splits = [inside[k : k + 7] for k in range(0, len(places), 7)]
    sampler = Rows(rows, splits, by_number=by_number)
    out = list(Loader(batch_sampler=sampler, return_index=True).add_datasets(parts))
    assert [b["index"].tolist() for b in out] == [np.array(rows)[split].tolist() for split in splits]
    for batch in out:
        np.testing.assert_array_equal(dense(batch["X"]), whole[batch["index"]])
        assert batch["obs"] is None
        assert batch["var"] is None


def test_a_batch_is_what_it_was(stores):
    """Types and dtypes; memory of a batch is its own: changing one does not touch another."""
    parts, whole = stores["backed sparse u1"]
    batches = list(Loader(batch_size=8, chunk_size=8, preload_nchunks=4, shuffle=False).add_datasets(parts))
    assert {(type(b["X"]), b["X"].dtype, b["X"].indices.dtype, b["X"].indptr.dtype) for b in batches} == {
        (sp.csr_matrix, np.dtype("u1"), np.dtype("i4"), np.dtype("i4"))
    }
    assert set(batches[0]) == {"X", "obs", "var", "index"}
    assert batches[0]["index"] is None
    batches[0]["X"].data[:] = 0
    np.testing.assert_array_equal(dense(batches[1]["X"]), whole[8:16])


def test_mixed_dtypes_are_promoted(stores, caplog):
    """float32 and float64 give float64, and it is said."""
    first, second = stores["backed sparse f4"][0][0], stores["backed sparse f8"][0][2]
    with caplog.at_level(logging.WARNING, logger="rankwise.rows"):
        loader = Loader(batch_size=101, chunk_size=101, preload_nchunks=1, shuffle=False).add_datasets([first, second])
    assert "rows are read as float64" in caplog.text
    (batch,) = loader
    assert batch["X"].dtype == np.float64
    np.testing.assert_array_equal(dense(batch["X"])[:41], stores["backed sparse f4"][1][:41])
    np.testing.assert_array_equal(dense(batch["X"])[41:], stores["backed sparse f8"][1][48:])


def test_collections(tmp_path, caplog, monkeypatch):
    """By its path: X, all columns of obs, names of var; once only; what is left out is said; own loading functions."""
    made = [small_anndata(20 + k, seed=k) for k in range(2)]
    made[1].obs["kind"] = made[1].obs["kind"].cat.rename_categories({"c": "d"})
    for k, adata in enumerate(made):
        write_anndata(adata, tmp_path / "c.zarr" / f"dataset_{k}")
    zarr.open_group(str(tmp_path / "c.zarr"), mode="a").attrs["encoding-type"] = "annbatch-preshuffled"
    loader = Loader(tmp_path / "c.zarr", shuffle=True, batch_size=4, chunk_size=4, preload_nchunks=4, return_index=True)
    whole, obs = sp.vstack([a.X for a in made]).toarray(), pd.concat([a.obs for a in made])
    assert (loader.n_obs, loader.n_var, len(loader)) == (41, 6, 11)
    assert issubclass(loader.dataset_type, ad.abc.CSRDataset)
    assert loader.var.index.tolist() == [f"gene{k}" for k in range(6)]
    for batch in loader:
        np.testing.assert_array_equal(dense(batch["X"]), whole[batch["index"]])
        assert batch["obs"].columns.tolist() == ["kind", "n", "name"]
        assert batch["obs"]["kind"].cat.categories.tolist() == ["a", "b", "c", "d"]
        assert batch["obs"].astype(str).to_numpy().tolist() == obs.iloc[batch["index"]].astype(str).to_numpy().tolist()
        assert batch["var"] is loader.var
    with pytest.raises(RuntimeError, match="already has a collection"):
        loader.use_collection(tmp_path / "c.zarr")
    collection = DatasetCollection(tmp_path / "c.zarr", mode="r")
    assert Loader([collection, tmp_path / "c.zarr"], shuffle=False).n_obs == 82
    for other in (made[0], None):
        with pytest.raises(
            TypeError, match=r"use_collection needs a DatasetCollection, .* an AnnData goes to add_adata"
        ):
            Loader(shuffle=False).use_collection(other)
    monkeypatch.setattr(notices, "_said", set())
    with caplog.at_level(logging.WARNING, logger="rankwise.rows"):
        counts = Loader(shuffle=False).use_collection(
            tmp_path / "c.zarr",
            load_adata=lambda g: ad.AnnData(X=ad.io.sparse_dataset(g["layers/counts"]), obsm={"l": g["obsm/pca"]}),
        )
    assert caplog.text.count("obsm/l are ignored") == 1
    np.testing.assert_array_equal(dense(next(iter(counts))["X"]), made[0].layers["counts"][:1].toarray())


def test_datasets_that_do_not_fit(stores, tmp_path):
    """Kinds, shapes, tables; h5ad; nothing half is added."""
    csr, table = stores["backed sparse f4"][0], tables()
    loader = Loader(shuffle=False).add_dataset(csr[0], table[0])
    var = pd.DataFrame(index=list("abcdefghijklm"))
    for kind, said, add in [
        (ValueError, "must be of the same type", lambda: loader.add_dataset(stores["dense f4"][0][1], table[1])),
        (ValueError, "rows of the same shape", lambda: Loader().add_datasets([np.zeros((3, 2)), np.zeros((3, 4))])),
        (ValueError, "at least 2 axes", lambda: Loader().add_dataset(np.zeros(3))),
        (ValueError, "without obs does not fit", lambda: loader.add_dataset(csr[1])),
        (ValueError, "with var does not fit", lambda: loader.add_dataset(csr[1], table[1], var)),
        (ValueError, "obs has 41 rows, but", lambda: loader.add_dataset(csr[1], table[0])),
        (TypeError, "obs must be a pandas DataFrame", lambda: loader.add_dataset(csr[1], {"row": 1})),
        (TypeError, "rows are loaded from", lambda: loader.add_dataset(sp.csc_matrix((3, 13)), table[0])),
        (ValueError, "identical var", lambda: Loader().add_datasets(csr[:2], var=[var, var[::-1]])),
    ]:
        with pytest.raises(kind, match=said):
            add()
    assert loader.n_obs == 41
    made = small_anndata()
    made.write_h5ad(tmp_path / "a.h5ad")
    with pytest.raises(TypeError, match=r"HDF5 file \(h5ad\) cannot be read"):
        Loader().add_adata(ad.read_h5ad(tmp_path / "a.h5ad", backed="r"))


def test_images_may_come_with_a_table_of_variables(stores):
    """It says nothing about an axis of theirs, so it may have any length; every batch holds it."""
    images, whole = stores["images"]
    var = pd.DataFrame(index=list("abcdefg"))
    loader = Loader(batch_size=108, chunk_size=108, preload_nchunks=1, shuffle=False)
    (batch,) = loader.add_datasets(images, var=[var] * 3)
    np.testing.assert_array_equal(batch["X"], whole)
    assert batch["var"].equals(var)


def test_nothing_is_added_under_a_pass(stores):
    """While one is open; closing it is enough."""
    csr = stores["backed sparse f4"][0]
    loader = Loader(shuffle=False).add_dataset(csr[0])
    passing = iter(loader)
    next(passing)
    with pytest.raises(RuntimeError, match="Cannot add datasets while the loader is being iterated"):
        loader.add_dataset(csr[1])
    passing.close()
    assert loader.add_dataset(csr[1]).n_obs == 48


def test_damage_is_told_at_its_row(tmp_path):
    """Batches before it arrive; the error names the row; column numbers that there are not are damage."""
    root = zarr.open_group(str(tmp_path / "d.zarr"), mode="w")
    matrix = random_csr(60, 11, seed=3, density=0.9)
    write_csr(root, "X", matrix, chunk=20, shard=40)
    bad = int(np.searchsorted(matrix.indptr, 401, side="right"))  # well inside
    root["X/indices"][400] = 11
    loader = Loader(batch_size=1, chunk_size=1, preload_nchunks=60, shuffle=False)
    loader.add_dataset(ad.io.sparse_dataset(root["X"]))
    arrived = []
    with pytest.raises(SampleError, match=f"row {bad - 1} .* it has column numbers outside the matrix .it has 11"):
        arrived.extend(iter(iter(loader).__next__, None))
    assert len(arrived) == bad - 1
    shard = next(path for path in (tmp_path / "d.zarr" / "X" / "data" / "c").iterdir() if path.name == "3")
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x00")
    row = int(np.searchsorted(matrix.indptr, 120, side="right")) - 1
    with pytest.raises(DataError, match=f"row {row} .row {row} of .* cannot be read"):
        list(Loader(batch_size=60, chunk_size=60, preload_nchunks=1, shuffle=False).add_dataset(loader_csr(root)))


def loader_csr(root):
    return ad.io.sparse_dataset(root["X"])


def test_bad_requests_are_told(stores):
    """Rows, places and slices that there are not."""
    csr = stores["backed sparse f4"][0]
    for rows, splits, said in [
        ([3, 500], [[0]], "requested rows 3 to 500, but the loader has 108"),
        ([3, 4], [[0, 2]], "have indices 0 to 2 into a request of 2 rows"),
        ([0.5], [[0]], "requests must be integers"),
    ]:
        loader = Loader(batch_sampler=Rows(rows, splits, by_number=True)).add_datasets(csr)
        with pytest.raises(ValueError, match=said):
            list(loader)


def test_travels_to_other_processes(stores):
    """A pickled loader hands out the same; in-memory stores of zarr travel along."""
    loader = Loader(shuffle=True, batch_size=12, chunk_size=4, preload_nchunks=6, rng=0, return_index=True)
    loader.add_datasets(stores["backed sparse f4"][0], obs=tables())
    again = pickle.loads(pickle.dumps(loader))
    for mine, other in zip(loader, again, strict=True):
        assert mine["index"].tolist() == other["index"].tolist()
        assert (mine["X"] != other["X"]).nnz == 0
    held = zarr.create_array({}, data=np.arange(24.0).reshape(6, 4), chunks=(2, 4))
    (batch,) = Loader(batch_size=6, chunk_size=6, preload_nchunks=1, shuffle=False).add_dataset(held)
    np.testing.assert_array_equal(batch["X"], np.arange(24.0).reshape(6, 4))


def test_classes_of_a_loader(stores):
    """A ClassSampler gives batches of one class of the loader's own rows."""
    classes = pd.Categorical(np.repeat(["a", "b"], 54))
    sampler = ClassSampler(6, 4, 12, classes=classes, num_samples=120, rng=0)
    loader = Loader(batch_sampler=sampler, return_index=True).add_datasets(stores["backed sparse f4"][0])
    for batch in loader:
        assert len(set(classes[batch["index"]])) == 1
        np.testing.assert_array_equal(dense(batch["X"]), stores["backed sparse f4"][1][batch["index"]])


def test_with_an_order(tmp_path):
    """order= gives the ordered loader; arguments of samplers beside it are refused with the reason."""
    made = small_anndata(20)
    source = RowSource(write_anndata(made, tmp_path / "a.zarr"), obs=["n"])
    order = Order(source, batch_size=8, seed=0)
    with OrderedLoader(source, order=order, device=None) as loader:
        assert isinstance(loader, OrderedLoader)
        for (batch,) in loader:
            np.testing.assert_array_equal(dense(batch["X"]), made.X[np.asarray(batch["n"])].toarray())
    for option, instead in {
        "batch_size": "sets the global batch size",
        "return_index": "batch.ids are the rows",
    }.items():
        with pytest.raises(ValueError, match=f"Cannot specify {option} with order=: .*{instead}"):
            OrderedLoader(source, order=order, **{option: 4})
    with pytest.raises(ValueError, match=r"batch_transform= must be a function, .*; got 'log1p'"):
        OrderedLoader(source, order=order, batch_transform="log1p")
    with pytest.raises(ValueError, match=r"dtype= must be NumPy dtypes .* got 'foo'"):
        OrderedLoader(source, order=order, dtype="foo")
    with pytest.raises(ValueError, match="got 'cupy'"):
        OrderedLoader(source, order=order, to="cupy")


def test_rows_of_our_writer(tmp_path):
    """Elements that only fill a chunk are left out, in folders and in other stores of zarr."""
    made = small_anndata(50)
    for store in (str(tmp_path / "a.zarr"), zarr.storage.MemoryStore()):
        group = zarr.open_group(store, mode="w")
        write_sharded(group, made, n_obs_per_chunk=8, shard_size=16)
        assert "row_nnz" in group["X"]
        (batch,) = Loader(batch_size=50, chunk_size=10, preload_nchunks=5, shuffle=True, return_index=True).add_dataset(
            ad.io.sparse_dataset(group["X"])
        )
        wanted = made.X[batch["index"]]
        assert batch["X"].nnz == wanted.nnz
        np.testing.assert_array_equal(dense(batch["X"]), wanted.toarray())
