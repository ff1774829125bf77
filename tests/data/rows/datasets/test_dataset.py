"""AnnData stores as anndata writes them."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import zarr

from rankwise.data.rows.datasets.on_disk import Dataset
from rankwise.data.rows.datasets.search import COLLECTION_TYPE, find_datasets
from rankwise.errors import ConfigError, DataError
from rankwise.testing.stores.small_rows import small_anndata, write_anndata


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def store(tmp_path, request):
    made = small_anndata()
    write_anndata(made, tmp_path / "a.zarr", zarr_format=request.param)
    return tmp_path / "a.zarr", made


def test_what_it_holds(store, reader):
    """Rows, variables, columns and the names of what rows can be read from."""
    held = Dataset(store[0], reader)
    assert (held.num_rows, held.num_vars) == (30, 6)
    assert held.obs_columns == ("kind", "n", "name")
    assert held.matrices == ("X", "layers/counts", "obsm/pca")
    assert {name: held.matrix(name).row_shape for name in held.matrices} == {
        "X": (6,),
        "layers/counts": (6,),
        "obsm/pca": (3,),
    }


def test_tables_are_those_of_anndata(store, reader):
    """All columns, or some, with the index; categories stay categories."""
    place, made = store
    held = Dataset(place, reader)
    pd.testing.assert_frame_equal(held.obs(), made.obs, check_index_type=False)
    pd.testing.assert_frame_equal(held.obs(["kind"]), made.obs[["kind"]], check_index_type=False)
    assert held.obs([]).shape == (30, 0)
    assert list(held.var_names()) == list(made.var_names)


USUAL = """
import sys
from rankwise.data.rows import RowSource
from rankwise.data.rows.datasets.on_disk import Dataset
from rankwise.data.store import BoxReader

source = RowSource(sys.argv[1], obs=("kind", "n"), genes=RowSource(sys.argv[1]).var_names[:2])
print(source.categories["kind"], [int(source[at]["n"]) for at in range(3)])
print(Dataset(sys.argv[1], BoxReader()).column("name")[:2].tolist(), "anndata" in sys.modules)
"""


def test_usual_columns_are_read_without_anndata(store):
    """Its import takes each rank a second: numbers, text, categories and names of variables do without."""
    place, made = store
    done = subprocess.run([sys.executable, "-c", USUAL, str(place)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"{tuple(made.obs['kind'].cat.categories)} {made.obs['n'][:3].tolist()}",
        f"{made.obs['name'][:2].tolist()} False",
    ]


def test_what_it_does_not_have(store, reader):
    """Names that are not there are told, with those that are."""
    held = Dataset(store[0], reader)
    with pytest.raises(ConfigError, match="has no 'layers/raw'; rows can be read from X, layers/counts, obsm/pca"):
        held.matrix("layers/raw")
    for name in ("obs/kind", "/X", "X/data", "layers", "var"):  # they are there, but no matrices
        with pytest.raises(ConfigError, match=f"has no '{name}'; rows can be read from X, layers/counts, obsm/pca"):
            held.matrix(name)
    with pytest.raises(ConfigError, match="has no obs columns 'donor'; it has 'kind', 'n', 'name'"):
        held.obs(["donor"])


def group_format(place):
    return 3 if (place / "zarr.json").exists() else 2


def test_damage_is_told(store, reader):
    """A matrix of other rows, and a column that cannot be decoded."""
    place, _ = store
    write_anndata(small_anndata(29), place.parent / "b.zarr", zarr_format=group_format(place))
    group = zarr.open_group(str(place), mode="a")
    del group["layers/counts"]
    (place.parent / "b.zarr" / "layers" / "counts").rename(place / "layers" / "counts")
    held = Dataset(place, reader)
    with pytest.raises(DataError, match="counts has 29 rows, but the table of observations 30"):
        held.matrix("layers/counts")
    chunk = next(path for path in (place / "obs" / "n").rglob("*") if path.name == "0")
    chunk.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=rf"{place}/obs/n cannot be read"):
        held.obs(["n"])


def test_stores_and_collections_are_found(tmp_path, reader):
    """Members of a collection come by their number; stores and collections mix."""
    for number in (0, 1, 10, 2):
        write_anndata(small_anndata(3 + number), tmp_path / "c.zarr" / f"dataset_{number}")
    zarr.open_group(str(tmp_path / "c.zarr"), mode="a").attrs["encoding-type"] = COLLECTION_TYPE
    write_anndata(small_anndata(), tmp_path / "a.zarr")
    found = find_datasets([tmp_path / "c.zarr", tmp_path / "a.zarr"])
    assert [place.rsplit("/", 1)[1] for place in found] == [
        "dataset_0",
        "dataset_1",
        "dataset_2",
        "dataset_10",
        "a.zarr",
    ]
    assert [Dataset(place, reader).num_rows for place in found] == [3, 4, 5, 13, 30]


def test_other_things_are_refused(tmp_path):
    """Arrays, other groups, empty collections, HDF5 files, nothing."""
    zarr.create_array(str(tmp_path / "array.zarr"), data=np.zeros(3))
    zarr.open_group(str(tmp_path / "group.zarr"), mode="w").create_array("a", data=np.zeros(3))
    zarr.open_group(str(tmp_path / "fresh.zarr"), mode="w")
    zarr.open_group(str(tmp_path / "empty.zarr"), mode="w").attrs["encoding-type"] = COLLECTION_TYPE
    (tmp_path / "a.h5ad").write_bytes(b"x")
    for name, said in (
        ("array.zarr", "is a Zarr array; rows are read from"),
        ("group.zarr", "is a Zarr group of the type None"),
        ("fresh.zarr", "is an empty Zarr group; add rows to a collection with its add_adatas"),
        ("empty.zarr", "is empty: add data with"),
        ("a.h5ad", "is an HDF5 file: write it to a Zarr collection first"),
        ("nothing", "there is no Zarr array or group"),
    ):
        with pytest.raises(DataError, match=said):
            find_datasets(tmp_path / name)
    with pytest.raises(ConfigError, match="at least one AnnData store"):
        find_datasets([])
