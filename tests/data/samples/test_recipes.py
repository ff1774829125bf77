"""Data that are no arrays of a source: the recipes of the page, and every refusal that leads to them."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
import xarray
import zarr
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from rankwise import Order
from rankwise.data.samples import ArraySource, DatasetLoader, SampleLoader
from rankwise.errors import ConfigError, DataError

PAGE = Path(__file__).parents[3] / "docs" / "samples.md"
VALUES = np.arange(40, dtype="f4").reshape(10, 4)
ORDER = Order(10, batch_size=5)


@pytest.mark.timeout(900)
def test_the_recipes_share_their_samples_on_two_ranks(tmp_path):
    """As they stand on the page, but with two workers a rank: each recipe itself asserts that all samples came once."""
    section = PAGE.read_text().split("## Recipes for other data", maxsplit=1)[1].split("\n## ", maxsplit=1)[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    assert all("all_gather_object(seen)" in block for block in blocks[1:])
    assert max(len(list(filter(None, block.splitlines()))) for block in blocks[1:]) <= 15
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    (tmp_path / "write.py").write_text(blocks[0])
    subprocess.run([sys.executable, "write.py"], cwd=tmp_path, env=environ, check=True, timeout=400)
    script, num = re.subn(r"num_workers=0", "num_workers=2", "\n".join(blocks))
    assert num == 2
    (tmp_path / "train.py").write_text(script)
    command = [sys.executable, "-W", "error::UserWarning", "-m", "rankwise", "run", "--nproc", "2", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(10)


class StreamWithLength(Stream):
    def __len__(self):
        return 10


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """What newcomers pass, by name."""
    folder = tmp_path_factory.mktemp("things")
    file = h5py.File(folder / "a.h5", "w")
    file["x"] = VALUES
    np.save(folder / "a.npy", VALUES)
    np.savez(folder / "a.npz", x=VALUES)
    (folder / "images" / "cat").mkdir(parents=True)
    for name in ("a.parquet", "a.csv", "a.pt", "a.tar", "images/cat/0.png"):
        (folder / name).write_bytes(b"some bytes")
    frame, tensors = pd.DataFrame({"x": VALUES[:, 0]}), TensorDataset(torch.from_numpy(VALUES.copy()))
    names = ("a.h5", "a.npz", "a.parquet", "a.csv", "a.pt", "a.tar", "images", "images/cat/0.png")
    yield {
        "h5py.Dataset": file["x"],
        "h5py.File": file,
        "list": [1.0] * 10,
        "DataFrame": frame,
        "Series": frame["x"],
        "xarray.DataArray": xarray.DataArray(VALUES),
        "xarray.Dataset": xarray.Dataset({"x": (("n", "c"), VALUES)}),
        "sparse": scipy.sparse.csr_matrix(VALUES),
        "IterableDataset": Stream(),
        "IterableDataset with a length": StreamWithLength(),
        "generator": (number for number in range(10)),
        "TensorDataset": tensors,
        "DataLoader": DataLoader(tensors),
        "sparse tensor": torch.from_numpy(VALUES.copy()).to_sparse(),
        "nothing": None,
        **{f"path of {name}": folder / name for name in names},
        **{f"text of {name}": str(folder / name) for name in names},
    }
    file.close()


@pytest.mark.parametrize(
    "take",
    [
        lambda thing: ArraySource({"x": thing}),
        ArraySource,
        ArraySource.open,
        lambda thing: SampleLoader(thing, order=ORDER),
    ],
    ids=["a field", "a source", "a group", "a SampleLoader"],
)
def test_every_refusal_names_the_dataset_loader(take, things, tmp_path):
    """Whatever is no array of a source is refused in words, with the loader that takes any dataset."""
    zarr.create_group(tmp_path / "g").create_array("x", data=VALUES)
    for name, thing in things.items():
        with pytest.raises((ConfigError, DataError)) as caught:
            take(thing)
        assert "DatasetLoader(dataset, order=" in str(caught.value), name


def test_ways_in_are_those_of_the_kind(things, tmp_path):
    """The refusal says what this kind of data needs: a column, a slice, a mapping, another room."""
    wanted = {
        "h5py.Dataset": "file['x'][:]", "list": "np.asarray(values)", "DataFrame": "to_numpy()", "sparse": "data.rows",
        "path of a.npz": "np.load", "text of a.parquet": "read it as a table", "IterableDataset": "not supported yet",
        "generator": "your own loop with Window", "DataLoader": "pass its dataset",
    }  # fmt: skip
    for name, text in wanted.items():
        with pytest.raises(ConfigError, match=re.escape(text)):
            SampleLoader(things[name], order=ORDER)
    for array in (VALUES, torch.from_numpy(VALUES.copy())):
        with pytest.raises(ConfigError, match=r"ArraySource\(\{'x': (array|tensor)\}\)"):
            ArraySource(array)
    zarr.create_group(tmp_path).create_array("x", data=VALUES)
    with pytest.raises(ConfigError, match=r"ArraySource\.open\(path\)"):
        ArraySource(tmp_path)


def test_a_dataset_loader_refuses_what_has_no_samples_by_number(things):
    """Tables, files, texts and streams are refused at construction, not at the first sample; the rest is taken."""
    taken = {"h5py.Dataset", "list", "Series", "TensorDataset", "sparse tensor"}
    for name, thing in things.items():
        if name not in taken:
            with pytest.raises(ConfigError, match=r"is not one: .*DatasetLoader\(dataset, "):
                DatasetLoader(thing, order=ORDER)
    for name in taken:
        DatasetLoader(things[name], order=ORDER)
    with pytest.raises(ConfigError, match="opens it in each of them"):
        DatasetLoader(things["h5py.Dataset"], order=ORDER, num_workers=1)


def test_wrapped_datasets_of_a_notebook_are_refused(monkeypatch):
    """A Subset or ConcatDataset of a class that workers cannot import is as good as that class."""
    here = type("OfNotebook", (TensorDataset,), {"__module__": "__main__"})(torch.arange(10))
    for dataset in (here, Subset(here, range(10)), ConcatDataset([Subset(here, range(10))])):
        with pytest.raises(ConfigError, match="OfNotebook is defined in a notebook"):
            DatasetLoader(dataset, order=ORDER, num_workers=1)


class KeepsFile(TensorDataset):
    """Opened its file too early."""

    def __init__(self, path):
        super().__init__(torch.arange(10))
        self.file = h5py.File(path, "w")


def test_datasets_that_hold_open_files_are_told_where_to_open_them(tmp_path):
    """What cannot be pickled is an error of the first iteration, which names the recipe."""
    loader = DatasetLoader(KeepsFile(tmp_path / "a.h5"), order=ORDER, num_workers=1)
    with (
        pytest.warns(UserWarning, match="Got pickle error"),  # torch's; the start method that it names is not ours
        pytest.raises(TypeError, match="cannot be pickled") as caught,
    ):
        next(iter(loader))
    assert "open files where samples are read" in caught.value.__notes__[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_are_fields(dtype):
    """A tensor in host memory is a field of its dtype, whether it wants gradients or not, contiguous or not."""
    tensor = (torch.arange(40).reshape(4, 10).T % 7).to(dtype)
    leaf = tensor.clone().requires_grad_() if dtype.is_floating_point else tensor
    for batches in SampleLoader(ArraySource({"x": tensor, "leaf": leaf}), order=ORDER, device="cpu"):
        for batch in batches:
            assert batch["x"].dtype == dtype
            assert torch.equal(batch["x"], tensor[batch.ids])
            assert torch.equal(batch["leaf"], batch["x"])
            assert not batch["leaf"].requires_grad
    with pytest.raises(ConfigError, match=r"torch\.sparse_coo.*host memory and dense"):
        ArraySource({"x": torch.eye(10).to_sparse()})
    with pytest.raises(ConfigError, match="on meta"):
        ArraySource({"x": torch.zeros(10, device="meta")})


def test_a_mapped_file_is_never_read_whole(tmp_path):
    """A file of 64 GiB with holes opens, is read in places, and travels to workers as its name."""
    shape = (2**24, 4096)
    mapped = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype="u1", shape=shape)
    mapped[123_456] = 7
    mapped.flush()
    for array in (np.load(tmp_path / "a.npy", mmap_mode="r"), mapped, tmp_path / "a.npy"):
        source = ArraySource({"x": array})
        sent = pickle.dumps(source)
        assert len(sent) < 10_000
        arrived = pickle.loads(sent)
        assert arrived.fingerprint == source.fingerprint
        assert arrived[123_456]["x"].tolist() == [7] * 4096 == source[123_456]["x"].tolist()
        assert not arrived[5]["x"].any()


def test_mapped_parts_arrive_as_they_were(tmp_path):
    """Slices, transposed arrays, offsets and changes in memory of a mapped file are the same in another process."""
    np.arange(5000, dtype="<i4").tofile(tmp_path / "raw")
    whole = np.memmap(tmp_path / "raw", dtype="<i4", mode="r", offset=4096, shape=(50, 20))
    changed = np.memmap(tmp_path / "raw", dtype="<i4", mode="c", shape=(50, 20))
    changed[3] = -1
    fortran = np.memmap(tmp_path / "raw", dtype="<i4", mode="r", shape=(50, 20), order="F")
    for array in (whole, whole[7:31], whole[:, 3], whole[::2], whole.T, fortran, fortran[:, 4:], changed, whole[5]):
        arrived = pickle.loads(pickle.dumps(ArraySource({"x": array})))
        assert [sample["x"].tolist() for sample in arrived] == array.tolist()
