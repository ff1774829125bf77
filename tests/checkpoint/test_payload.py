"""A part's state survives a file, and reading a file runs no code."""

import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch

from rankwise.checkpoint.payload import decode, encode, read_payload, write_payload
from rankwise.errors import CheckpointError

TREE = {
    "tensor": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "array": np.arange(6, dtype=">u2").reshape(3, 2),
    "text array": np.array(["a", "bcd"]),
    "time": np.array(["2020-01-01"], dtype="datetime64[D]"),
    "zero dim": np.array(7.0),
    "numpy scalar": np.float32(1.5),
    "bytes": b"\x00\xff",
    "no bytes": b"",
    "int": 2**64 - 1,
    "negative": -(2**70),
    "float": float("nan"),
    "none": None,
    "nested": [1, (2.0, "three", {4: [True]})],
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


def test_all_kinds_of_leaves_survive(tmp_path):
    """Types, dtypes (byte order too), shapes and values come back as they were."""
    record = write_payload(tmp_path, "part.pt", encode(TREE, "part"))
    assert_same(read_payload(tmp_path / record.path), TREE)
    assert record.bytes == (tmp_path / "part.pt").stat().st_size


def test_a_module_keeps_the_versions_of_its_state(tmp_path):
    """The `_metadata` by which modules upgrade old states is not lost."""
    state = torch.nn.BatchNorm1d(2).state_dict()
    write_payload(tmp_path, "part.pt", encode(state, "part"))
    back = read_payload(tmp_path / "part.pt")
    assert isinstance(back, OrderedDict)
    assert back._metadata == state._metadata


def test_a_view_does_not_drag_its_storage_along(tmp_path):
    """One row of a large tensor takes the space of one row."""
    large = torch.zeros(1000, 1000)
    record = write_payload(tmp_path, "part.pt", encode({"row": large[3]}, "part"))
    assert record.bytes < 10_000


def test_shared_parameters_stay_shared(tmp_path):
    """Two names of one tensor are written once."""
    weight = torch.zeros(100_000)
    record = write_payload(tmp_path, "part.pt", encode({"a": weight, "b": weight}, "part"))
    assert record.bytes < 500_000
    back = read_payload(tmp_path / "part.pt")
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
        ({"__rankwise__": 1}, "uses itself"),
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
            read_payload(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def test_decoded_arrays_can_be_written():
    """They own their memory."""
    back = decode(encode(np.arange(3), "part"))
    back[0] = 9
    assert back.tolist() == [9, 1, 2]
