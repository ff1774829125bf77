"""Collections that are no longer what was written."""

import json
import re
import shutil
import warnings

import anndata
import pytest
import zarr

from rankwise.data.rows import DatasetCollection, verify_rows
from rankwise.testing.stores.small_rows import small_anndata


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole") / "c.zarr"
    inputs = [small_anndata(20, 5, seed=seed) for seed in (0, 1)]
    DatasetCollection(place).add_adatas(inputs, rng=0, dataset_size=20, matrices=["X"])
    return place


@pytest.fixture
def copy(tmp_path, whole):
    return shutil.copytree(whole, tmp_path / "c.zarr")


def test_a_copy_is_whole(copy):
    """Copying a collection changes nothing that is checked, and every dataset is looked at."""
    seen = []
    assert verify_rows(copy, shown=seen.append) == []
    assert [place.rpartition("/")[2] for place in seen] == ["dataset_0", "dataset_1"]


def test_lost_and_added_arrays(copy):
    """Arrays that are gone or new are named."""
    shutil.move(copy / "dataset_0" / "obs" / "n", copy / "dataset_0" / "obs" / "m")
    assert "dataset_0/obs/n is missing" in verify_rows(copy)
    assert "dataset_0/obs/m was added later" in verify_rows(copy)


def test_a_lost_dataset(copy):
    """A dataset that is gone is named."""
    shutil.rmtree(copy / "dataset_1")
    assert "dataset_1 is missing" in verify_rows(copy)


def test_damaged_row_pointers(copy):
    """What is wrong with a chunk of them is told once, beside the checksum, and not for each of its rows."""
    indptr = zarr.open_array(str(copy / "dataset_0" / "X" / "indptr"), mode="a")
    indptr[7] = 10_000
    checksum, pointers = verify_rows(copy)
    assert checksum == "dataset_0/X/indptr changed after it was written: its checksum differs"
    assert re.search(r"dataset_0/X/indptr are damaged: in chunk \(0,\) row 7 would begin after it ends", pointers)


def test_rows_that_come_twice(copy):
    """A dataset that was copied over another is noticed by where its rows come from, whatever the checksums say."""
    shutil.rmtree(copy / "dataset_1")
    shutil.copytree(copy / "dataset_0", copy / "dataset_1")
    document = json.loads((copy / "zarr.json").read_bytes())
    entries = document["attributes"]["rankwise"]["datasets"]
    entries["dataset_1"] = entries["dataset_0"]
    (copy / "zarr.json").write_text(json.dumps(document))
    assert verify_rows(copy)[0] == "20 rows occur twice, by their src_path and src_row"


def test_rows_of_a_part_of_a_collection(tmp_path):
    """Rows that were chosen from a dataset keep their origin: nobody said that all rows of it are here."""
    with warnings.catch_warnings(action="ignore"):
        small_anndata(30, 5).write_h5ad(tmp_path / "plate.h5ad")
        DatasetCollection(tmp_path / "c.zarr").add_adatas([tmp_path / "plate.h5ad"], rng=0, matrices=["X"])
        anndata.read_zarr(tmp_path / "c.zarr" / "dataset_0")[:10].write_h5ad(tmp_path / "part.h5ad")
        part = DatasetCollection(tmp_path / "part.zarr").add_adatas([tmp_path / "part.h5ad"], rng=0, matrices=["X"])
    assert set(part.obs(["src_path"])["src_path"]) == {str(tmp_path / "plate.h5ad")}
    assert verify_rows(tmp_path / "part.zarr") == []


def test_inputs_in_memory_of_several_writes(tmp_path):
    """Each write numbers its inputs from 0: rows of two writes are not the same ones, also after a reshuffle."""
    place, inputs = tmp_path / "c.zarr", [small_anndata(20, 5, seed=seed) for seed in (0, 1)]
    with warnings.catch_warnings(action="ignore"):
        for one in inputs:
            made = DatasetCollection(place).add_adatas([one], rng=0, matrices=["X"])
        assert verify_rows(place) == []
        shutil.copytree(place, tmp_path / "d.zarr")
        made.add_adatas([], reshuffle=True, rng=0)
    assert verify_rows(place) == []
    document = json.loads((tmp_path / "d.zarr" / "zarr.json").read_bytes())
    document["attributes"]["rankwise"]["writes"][1]["datasets"] = ["dataset_0", "dataset_1"]
    (tmp_path / "d.zarr" / "zarr.json").write_text(json.dumps(document))
    assert verify_rows(tmp_path / "d.zarr") == ["20 rows occur twice, by their src_path and src_row"]


def test_inputs_in_memory_beside_rows_that_had_their_labels(tmp_path):
    """Rows of other collections bring the label that an input in memory gets here, too: they are no lost or double."""
    with warnings.catch_warnings(action="ignore"):
        first, second = small_anndata(20, 5, seed=0), small_anndata(12, 5, seed=1)
        parts = []
        for number, one in enumerate((first, second)):
            place = tmp_path / f"{number}.zarr"
            DatasetCollection(place).add_adatas([one], rng=0, matrices=["X"])
            parts.append(anndata.read_zarr(place / "dataset_0"))
        cases = ([parts[0][:9], parts[1][:7]], [second, parts[0]], [tmp_path / "0.zarr", second], [parts[0][3:]])
        for number, inputs in enumerate(cases):
            DatasetCollection(tmp_path / f"c{number}.zarr").add_adatas(inputs, rng=0, matrices=["X"])
            assert verify_rows(tmp_path / f"c{number}.zarr") == [], number
        made = DatasetCollection(tmp_path / "0.zarr").add_adatas([second], rng=0, matrices=["X"], reshuffle=True)
    assert verify_rows(made.path) == []
