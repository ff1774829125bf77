"""A part's state survives a file, and reading a file runs no code."""

import hashlib
import pickle
import zipfile
from collections import Counter, OrderedDict

import ml_dtypes
import numpy as np
import pytest
import torch

from rankwise.checkpoint.commit import Disk
from rankwise.checkpoint.format.payload import encode, read_payload, write_payload
from rankwise.errors import CheckpointError

TREE = {
    "tensor": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "array": np.arange(6, dtype=">u2").reshape(3, 2),
    "text array": np.array(["a", "bcd"]),
    "time": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "half": np.arange(3).astype(ml_dtypes.bfloat16),
    "half scalar": ml_dtypes.bfloat16(1.5),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "zero dim": np.array(7.0),
    "numpy scalar": np.float32(1.5),
    "bytes": b"\x00\xff",
    "no bytes": b"",
    "int": 2**64 - 1,
    "negative": -(2**70),
    "float": float("nan"),
    "none": None,
    "nested": [1, (2.0, "three", {4: [True]})],
    "counter": Counter({30: 1, 80: 2}),
    "ordered": OrderedDict(b=1, a=2),
}


def assert_same(left, right):
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, (np.ndarray, np.generic)):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    else:
        assert repr(left) == repr(right)


@pytest.mark.parametrize("suffix", ["pt", "npz"])
def test_all_kinds_of_leaves_survive(tmp_path, suffix):
    """Types, dtypes (byte order and bfloat16 too), shapes and values come back, with tensors or without."""
    tree = TREE if suffix == "pt" else {name: leaf for name, leaf in TREE.items() if not torch.is_tensor(leaf)}
    record = write_payload(Disk(tmp_path), tmp_path, "part", encode(tree, "part"))
    assert record.path == f"part.{suffix}"
    assert_same(read_payload(tmp_path, record.path), tree)
    assert record.bytes == (tmp_path / record.path).stat().st_size
    assert record.sha256 == hashlib.sha256((tmp_path / record.path).read_bytes()).hexdigest()


def test_the_same_arrays_make_the_same_file(tmp_path):
    """Whenever they are written; an array under two names is written once, and NumPy opens the file."""
    tree = {"a": np.arange(100_000), "b": None}
    tree["b"] = tree["a"]
    records = [write_payload(Disk(tmp_path), tmp_path, name, encode(tree, "part")) for name in ("first", "second")]
    assert records[0].sha256 == records[1].sha256
    assert 800_000 < records[0].bytes < 802_000
    np.testing.assert_array_equal(np.load(tmp_path / "first.npz")["0"], tree["a"])


def test_a_module_keeps_the_versions_of_its_state(tmp_path):
    """The `_metadata` by which modules upgrade old states is not lost."""
    state = torch.nn.BatchNorm1d(2).state_dict()
    write_payload(Disk(tmp_path), tmp_path, "part", encode(state, "part"))
    back = read_payload(tmp_path, "part.pt")
    assert isinstance(back, OrderedDict)
    assert back._metadata == state._metadata


def test_a_view_does_not_drag_its_storage_along(tmp_path):
    """One row of a large tensor takes the space of one row."""
    large = torch.zeros(1000, 1000)
    record = write_payload(Disk(tmp_path), tmp_path, "part", encode({"row": large[3]}, "part"))
    assert record.bytes < 10_000


def test_shared_parameters_stay_shared(tmp_path):
    """Two names of one tensor are written once."""
    weight = torch.zeros(100_000)
    record = write_payload(Disk(tmp_path), tmp_path, "part", encode({"a": weight, "b": weight}, "part"))
    assert record.bytes < 500_000
    back = read_payload(tmp_path, "part.pt")
    assert back["a"].data_ptr() == back["b"].data_ptr()


class _Odd:
    pass


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": [1, _Odd()]}, r"part\['a'\]\[1\] is a .*_Odd"),
        ({"a": {1, 2}}, r"part\['a'\] is a builtins.set"),
        ({"a": torch.float32}, "torch.dtype"),
        ({"a": np.array([None])}, "dtype object"),
        ({(1, 2): 3}, r"key \(1, 2\)"),
        ({"__rankwise__": 1}, "reserves"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(tree, message):
    """The message leads to the leaf."""
    with pytest.raises(CheckpointError, match=message):
        encode(tree, "part")


def test_a_malicious_file_runs_nothing(tmp_path):
    """A pickle that would call a function is refused."""

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    torch.save({"bomb": Bomb()}, tmp_path / "part.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Bomb()))
    for name in ("part.pt", "plain.pt"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_payload(tmp_path, name)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("beside", [None, torch.zeros(1)])
def test_arrays_that_come_back_can_be_written(tmp_path, beside):
    """They own their memory."""
    record = write_payload(Disk(tmp_path), tmp_path, "part", encode([np.arange(3), beside], "part"))
    back = read_payload(tmp_path, record.path)
    back[0][0] = 9
    assert back[0].tolist() == [9, 1, 2]


def test_arrays_that_are_objects_run_nothing(tmp_path):
    """A file of arrays with a pickle inside is refused, and so is one that ends early."""
    record = write_payload(Disk(tmp_path), tmp_path, "part", encode({"a": np.arange(3)}, "part"))
    whole = (tmp_path / record.path).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-40])
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        archive.writestr("tree.json", '{"array": 0, "dtype": "|O"}')
        with archive.open("0.npy", "w") as member:
            np.lib.format.write_array(member, np.array([print]), allow_pickle=True)
    for name in ("cut.npz", "bomb.npz"):
        with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
            read_payload(tmp_path, name)
