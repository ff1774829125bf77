"""AnnData in memory and h5ad files, in the order of an order."""

import pickle
from types import SimpleNamespace

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from rankwise import Order
from rankwise.data.rows import DatasetCollection, Loader, OrderedLoader, RowSource, log1p_cpm
from rankwise.errors import ConfigError, DataError
from rankwise.testing.shares import RankPlace
from rankwise.testing.stores.small_rows import small_anndata, write_anndata

ALL = ("X", "layers/counts", "obsm/pca")


@pytest.fixture(scope="module")
def adata():
    made = small_anndata(60, 9)
    made.layers["columns"] = made.X.tocsc()
    made.layers["full"] = made.layers["counts"].toarray()
    made.obs["maybe"] = pd.array([None if row % 7 == 0 else row for row in range(60)], dtype="Int16")
    return made


@pytest.fixture(scope="module", params=["memory", "h5ad", "view"])
def small(request, adata, tmp_path_factory):
    """The same rows, however they are held."""
    if request.param == "memory":
        return adata
    if request.param == "view":  # of twice as many
        return anndata.concat([adata, adata], merge="same", index_unique="/")[:60].copy()[np.arange(60)]
    place = tmp_path_factory.mktemp("files") / "cells.h5ad"
    adata.write_h5ad(place)
    return place


def rows_of(loader, steps=None):
    """What came of each row, by its number."""
    found = {}
    for _, (batch,) in zip(range(10**6 if steps is None else steps), loader, strict=False):
        for name in batch:
            field = batch[name].toarray() if sp.issparse(batch[name]) else np.array(batch[name])
            found.update({(name, row): value.tolist() for row, value in zip(batch.ids.tolist(), field, strict=True)})
        loader.mark_done(batch.resume)
    return found


@pytest.mark.parametrize("options", [{}, {"dense": True}, {"genes": ["gene7", 2]}, {"dtype": "f8"}])
def test_each_row_once_and_right(adata, small, options):
    """Sparse, dense, chosen genes, columns of obs: a batch holds the rows that its ids say, each once an epoch."""
    names = (*ALL, "layers/columns", "layers/full")
    order = Order(small, batch_size=16)
    loader = OrderedLoader(small, order=order, matrices=names, obs=["kind", "n", "maybe"], device=None, **options)
    found = rows_of(loader)
    columns = [7, 2] if "genes" in options else slice(None)
    assert len(found) == 60 * (len(names) + 3)
    for row in range(60):
        for name, whole in zip(
            names, [adata.X, adata.layers["counts"], adata.obsm["pca"], adata.layers["columns"], adata.layers["full"]],
            strict=True,
        ):  # fmt: skip
            wanted = (whole.toarray() if sp.issparse(whole) else whole)[row]
            assert found[name, row] == (wanted if name == "obsm/pca" else wanted[columns]).tolist()
        assert found["n", row] == row
        assert loader.source.categories["kind"][found["kind", row]] == adata.obs["kind"].iloc[row]
        assert found["maybe", row] == row if row % 7 else np.isnan(found["maybe", row])


def test_the_same_rows_at_any_world_size(small):
    """Steps hold the same rows on one rank and on three; a position resumes at another number of ranks."""
    source = RowSource(small, matrices=("X",))
    order = Order(source, batch_size=16, seed=4)

    def loaders(world_size):
        return [
            OrderedLoader(source, order=order, world=RankPlace(rank=rank, world_size=world_size), device=None)
            for rank in range(world_size)
        ]

    (alone,) = loaders(1)
    whole = [batch.ids.tolist() for (batch,) in alone]
    shared = [np.concatenate([batch.ids for (batch,) in step]).tolist() for step in zip(*loaders(3), strict=True)]
    assert [sorted(ids) for ids in shared] == [sorted(ids) for ids in whole]
    assert whole != [sorted(ids) for ids in whole]
    first, rest = loaders(3), loaders(1)[0]
    for loader in first:
        rows_of(loader, 2)
    rest.load_state_dict(first[0].state_dict())
    assert [batch.ids.tolist() for (batch,) in rest] == whole[2:]


def test_rows_know_whose_they_are(adata, tmp_path):
    """A file and what was read of it are the same rows; in another order, or with other names, they are others."""
    adata.write_h5ad(tmp_path / "a.h5ad")
    one = RowSource(adata).fingerprint
    assert RowSource(tmp_path / "a.h5ad").fingerprint == RowSource(anndata.read_h5ad(tmp_path / "a.h5ad")).fingerprint
    assert RowSource(tmp_path / "a.h5ad").fingerprint == one
    assert RowSource(adata[::-1]).fingerprint != one
    with pytest.raises(ConfigError, match="the order is for other rows"):
        OrderedLoader(adata[::-1].copy(), order=Order(adata, batch_size=16))


def test_parts_draws_and_tables(adata, small):
    """Splits, subsets, weights and tables as of stores; several lie one over the other, with genes of their own."""
    source = RowSource(small, obs=("kind",))
    train, val = (
        source.split(by="kind", groups={"val": ["a"]})["train"],
        source.split(by="kind", groups={"val": ["a"]})["val"],
    )
    assert set(val.obs(["kind"])["kind"]) == {"a"}
    assert len(train) + len(val) == 60
    assert source.obs().columns.tolist() == adata.obs.columns.tolist()
    np.testing.assert_array_equal(source[-3]["X"].toarray()[0], adata.X[-3].toarray()[0])
    loader = OrderedLoader(small, order=Order(small, batch_size=16, balance="kind", num_samples=64), device=None)
    assert sum(len(batch.ids) for (batch,) in loader) == 64
    other = small_anndata(20, 5, seed=3)[:, ["gene4", "gene0", "gene2"]].copy()
    both = [small, other]
    found = rows_of(OrderedLoader(both, order=Order(both, batch_size=16), genes=["gene2", "gene4"], device=None))
    wanted = np.concatenate([adata.X[:, [2, 4]].toarray(), other.X[:, [2, 0]].toarray()])
    assert [found["X", row] for row in range(80)] == wanted.tolist()


def test_of_use_everywhere(small):
    """Torch and its workers, a transform where rows are made, a copy in another process."""
    order = Order(small, batch_size=16)
    dense = OrderedLoader(small, order=order, dense=True, batch_transform=log1p_cpm, device="cpu")
    assert all(batch["X"].dtype.is_floating_point for (batch,) in dense)
    source = RowSource(small)
    again = pickle.loads(pickle.dumps(source))
    assert again.fingerprint == source.fingerprint
    assert (again[5]["X"] != source[5]["X"]).nnz == 0


def test_what_is_too_large_says_where_to_go(adata, tmp_path):
    """A file whose matrices are too large for memory is refused before they are read; what is in memory is not."""
    adata.write_h5ad(tmp_path / "a.h5ad")
    with h5py.File(tmp_path / "a.h5ad", "a") as file:  # 24 GB, were they ever written
        del file["X"]
        wide = file.create_dataset("X", shape=(60, 10**8), dtype="f4", chunks=(1, 1000))
        wide.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    for make in (lambda: RowSource(tmp_path / "a.h5ad"), lambda: Order(tmp_path / "a.h5ad", batch_size=8)):
        with pytest.raises(ConfigError, match=r"a.h5ad/X would need .* GB .* `rankwise rows write .*anndata.read_h5ad"):
            make()
    assert len(RowSource(adata)) == 60


def test_what_rows_are_not_read_from(adata, tmp_path):
    """What cannot be read names a way in: a conversion, `rankwise rows write`, or `DatasetLoader`."""
    store = write_anndata(small_anndata(10, 9), tmp_path / "a.zarr")
    (tmp_path / "b.h5ad").write_bytes(b"nothing")
    adata.write_h5ad(tmp_path / "c.h5ad")
    for name in ("d.parquet", "d.loom", "d.h5mu"):
        (tmp_path / name).write_bytes(b"x")
    odd = adata.copy()
    odd.obsm["frame"] = pd.DataFrame({"a": np.arange(60)}, index=odd.obs_names)
    mudata = SimpleNamespace(mod={})
    for kind, given, options, said in (
        (
            ConfigError,
            [adata, store],
            {},
            r"is in memory and .*a.zarr/X in a store: .*rankwise rows write",
        ),
        (DataError, tmp_path / "b.h5ad", {}, r"b.h5ad cannot be read"),
        (DataError, tmp_path / "gone.h5ad", {}, "there is no file"),
        (ConfigError, anndata.read_h5ad(tmp_path / "c.h5ad", backed="r"), {}, r"backed by .*c.h5ad: pass that path"),
        (ConfigError, odd, {"matrices": ["obsm/frame"]}, r"DataFrame: rows in memory .*rankwise rows write"),
        (ConfigError, adata, {"matrices": ["layers/x"]}, "has no 'layers/x'; rows can be read from X, layers/columns"),
        (ConfigError, adata, {"obs": ["donor"]}, "has no obs columns 'donor'; it has 'kind'"),
        (DataError, tmp_path / "d.parquet", {}, r"d.parquet is a file; .*anndata.AnnData\(frame\).*DatasetLoader"),
        (DataError, tmp_path / "d.loom", {}, r"anndata.io reads loom.*DatasetLoader"),
        (DataError, tmp_path / "d.h5mu", {}, "MuData file: write it .* --modality NAME"),
        (ConfigError, pd.DataFrame({"a": [1]}), {}, r"got DataFrame: .*anndata.AnnData\(.*DatasetLoader"),
        (ConfigError, mudata, {}, "rankwise rows write --modality NAME"),
    ):
        with pytest.raises(kind, match=said):
            RowSource(given, **options)
    with pytest.raises(DataError, match=r"is an HDF5 file: write it .*order=Order\(FILE"):
        Loader(tmp_path / "c.h5ad", shuffle=True)
    with pytest.raises(TypeError, match=r"pandas.*DataFrame: convert it \(to_numpy.*DatasetLoader"):
        Loader(shuffle=True).add_dataset(pd.DataFrame({"a": [1]}))


def test_from_memory_to_a_collection(adata, tmp_path):
    """What was tried in memory goes on with a collection: the same calls, other rows."""
    collection = DatasetCollection(tmp_path / "cells.zarr").add_adatas([adata], rng=0)
    found = rows_of(OrderedLoader(collection, order=Order(collection, batch_size=16), obs=["n"], device=None))
    assert sorted(found["n", row] for row in range(60)) == list(range(60))


@pytest.mark.parametrize("table", ["obs", "var"])
def test_a_file_without_a_table(adata, tmp_path, table):
    """It is said to lack the table, not to be of an old format."""
    adata.write_h5ad(tmp_path / "a.h5ad")
    with h5py.File(tmp_path / "a.h5ad", "a") as held:
        del held[table]
    with pytest.raises(DataError, match=f"a.h5ad has no table {table}"):
        RowSource(tmp_path / "a.h5ad", matrices=["X"])


def test_names_of_columns(adata):
    """A number is a name; of two columns with one name none is read."""
    made = adata.copy()
    made.obs[5] = range(60)
    assert RowSource(made, obs=["5"])[3]["5"] == 3
    made.obs = made.obs.assign(x=1).rename(columns={"x": 5})
    with pytest.raises(ConfigError, match="the AnnData of 60 x 9 in memory has several obs columns named '5'"):
        RowSource(made, obs=["5"])
