"""A collection that annbatch wrote."""

import importlib.util
import shutil
from pathlib import Path

import anndata
import numpy as np
import pytest
import scipy.sparse as sp

from rankwise.data.rows import DatasetCollection, RowSource
from rankwise.errors import ConfigError

FOLDER = Path(__file__).parents[1] / "written_by_annbatch"
NUM_ROWS = 61


@pytest.fixture(scope="module")
def expected():
    text = (FOLDER / "make.py").read_text().replace("from annbatch import DatasetCollection", "")
    spec = importlib.util.spec_from_loader("make", loader=None)
    module = importlib.util.module_from_spec(spec)
    exec(compile(text, "make.py", "exec"), module.__dict__)
    return module.matrix(np.arange(NUM_ROWS)).toarray()


def test_every_row_and_its_observation(expected):
    """Every row of every dataset is the row that its observation says, matrix, obsm and obs alike."""
    collection = DatasetCollection(FOLDER / "collection.zarr", mode="r")
    seen = []
    for group in collection:
        with RowSource(str(group.store.root), matrices=["X", "obsm/pair"], obs=["n"], threads=1) as rows:
            found = [rows[row] for row in range(len(rows))]
        number = np.array([row["n"] for row in found])
        dense = np.concatenate([row["X"].toarray() for row in found])
        np.testing.assert_array_equal(dense, expected[number])
        np.testing.assert_array_equal([row["obsm/pair"] for row in found], np.stack([number, -number], axis=1))
        seen += number.tolist()
    assert sorted(seen) == list(range(NUM_ROWS))
    obs = collection.obs(["n", "kind"])
    assert obs["kind"].tolist() == ["abc"[k % 3] for k in obs["n"]]
    assert obs.index.tolist() == [f"cell{k}" for k in obs["n"]]


def test_as_a_collection():
    """It is opened, iterated and asked for its observations as in annbatch."""
    held = DatasetCollection(FOLDER / "collection.zarr", mode="r")
    assert not held.is_empty
    assert [group["X"].attrs["shape"][1] for group in held] == [7, 7]
    assert sorted(held.obs(["n"])["n"]) == list(range(NUM_ROWS))
    assert held.manifest["datasets"] == {}


@pytest.mark.filterwarnings("ignore:.* differ from those of")
def test_adding_to_it_is_all_or_nothing(tmp_path, monkeypatch):
    """It gets its manifest before datasets move in, so that a failure between two of them shows none."""
    place = shutil.copytree(FOLDER / "collection.zarr", tmp_path / "c.zarr")
    more = anndata.AnnData(X=sp.eye(20, 7, format="csr", dtype="f4"))
    more.var_names = [f"g{k}" for k in range(7)]
    real, calls = Path.rename, []

    def failing(self, target):
        if self.name.startswith("dataset_"):
            calls.append(self)
            if len(calls) == 2:
                raise OSError("out of order")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="out of order"):
        DatasetCollection(place).add_adatas([more], rng=0, dataset_size=10, matrices=["X"])
    assert (place / "dataset_2").exists()
    assert len(RowSource(place)) == NUM_ROWS
    assert len(list(DatasetCollection(place, mode="r"))) == 2
    DatasetCollection(place).add_adatas([more], rng=0, dataset_size=10, matrices=["X"])
    assert len(list(DatasetCollection(place, mode="r"))) == 4
    assert len(RowSource(place)) == NUM_ROWS + 20
    assert len(DatasetCollection(place, mode="r").obs(["src_path"])) == NUM_ROWS + 20


def test_it_is_brought_into_our_layout(tmp_path, expected):
    """A collection is an input like any other: its rows come in a new order, on row edges, with their sources."""
    made = DatasetCollection(tmp_path / "c.zarr").add_adatas(FOLDER / "collection.zarr", rng=0, n_obs_per_chunk=8)
    obs = made.obs(["n", "src_path", "src_row"])
    assert sorted(obs["n"]) == list(range(NUM_ROWS))
    assert set(obs["src_path"]) == {"part0.h5ad", "part40.h5ad"}
    [group] = made
    np.testing.assert_array_equal(anndata.io.sparse_dataset(group["X"])[:].toarray(), expected[obs["n"]])
    assert "row_nnz" in group["X"]
    again = DatasetCollection(tmp_path / "d.zarr").add_adatas([made], rng=1)
    assert sorted(again.obs(["n"])["n"]) == list(range(NUM_ROWS))
    with pytest.raises(ConfigError, match=r"c.zarr is among its own inputs: .* reshuffle=True"):
        made.add_adatas([tmp_path / "c.zarr"])
