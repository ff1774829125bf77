"""Arguments that users get wrong are refused with what to write."""

from pathlib import Path

import numpy as np
import pytest
import zarr

from rankwise.data.rows import DatasetCollection
from rankwise.data.rows.collection.options import listed, seed_of
from rankwise.errors import ConfigError, DataError
from rankwise.testing.stores.small_rows import small_anndata


def test_one_input_is_a_list_of_one(tmp_path):
    """A path, a group or an AnnData alone is not taken apart."""
    made, group = small_anndata(3, 2), zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    assert listed("a.h5ad") == ["a.h5ad"]
    assert listed(Path("a.h5ad")) == [Path("a.h5ad")]
    assert [one is made for one in listed(made)] == [True]
    assert listed(group) == [group]
    assert listed(iter(["a.h5ad", "b.h5ad"])) == ["a.h5ad", "b.h5ad"]
    with pytest.raises(ConfigError, match="a list of paths, groups or AnnData objects, got int"):
        listed(3)


def test_a_text_is_no_list_of_names(tmp_path):
    """A single name is not taken for its letters."""
    collection = DatasetCollection(tmp_path / "c.zarr")
    for argument in ("matrices", "modalities", "var_subset"):
        with pytest.raises(ConfigError, match=rf"write {argument}=\['layers/counts'\]"):
            collection.add_adatas([small_anndata(3, 2)], **{argument: "layers/counts"})
    with pytest.raises(ConfigError, match=r"write columns=\['donor'\]"):
        collection.obs("donor")


def test_seeds():
    """Numbers of any integer type are seeds, generators give one, and what is neither is refused."""
    assert seed_of(None) is None
    assert seed_of(np.int64(5)) == seed_of(5) == 5
    assert seed_of(np.random.default_rng(0)) == seed_of(np.random.default_rng(0))
    for wrong in ("5", True, np.random.RandomState(0)):
        with pytest.raises(ConfigError, match=r"rng must be an integer, got .*: a seed, or a numpy"):
            seed_of(wrong)


def test_damaged_metadata_are_named(tmp_path):
    """The metadata of the folder itself, torn by a kill or a full disk."""
    folder = tmp_path / "torn.zarr"
    folder.mkdir()
    (folder / "zarr.json").write_text('{"zarr_format": 3,')
    with pytest.raises(DataError, match=r"torn\.zarr/zarr\.json is not JSON"):
        DatasetCollection(folder, mode="r")


def test_numbers_of_numpy(tmp_path):
    """Sizes may be NumPy's integers; the manifest has them as plain numbers."""
    names = ("dataset_size", "shuffle_chunk_size", "n_obs_per_chunk", "shard_size")
    sizes = dict(zip(names, np.array([20, 2, 4, 2**20]), strict=True))
    collection = DatasetCollection(tmp_path / "c.zarr").add_adatas([small_anndata(30, 4)], rng=0, **sizes)
    [write] = collection.manifest["writes"]
    assert {name: write["parameters"][name] for name in names} == sizes


def test_numbers_of_rows(tmp_path):
    """Fractions, texts and truth values are no numbers of rows; a fraction cut rows into runs of no such length."""
    collection = DatasetCollection(tmp_path / "c.zarr")
    for argument, wrong in (("shuffle_chunk_size", 2.5), ("shuffle_chunk_size", "10"), ("n_obs_per_chunk", True)):
        with pytest.raises(ConfigError, match=rf"{argument}.* must be an integer of at least 1, got {wrong!r}"):
            collection.add_adatas([small_anndata(3, 2)], **{argument: wrong})
