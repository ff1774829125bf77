"""Ragged fields as CSR matrices of torch and SciPy."""

import pickle
import sys

import numpy as np
import pytest

from rankwise.data.feed.memory import csr
from rankwise.data.feed.memory.csr import copied_field, csr_parts, first_twice, scipy_csr, torch_csr
from rankwise.errors import ConfigError, MissingExtraError

ROWS = [[0.0, 2.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]]
PARTS = np.array([2, 3, 4], "f4"), np.array([1, 3, 0], "i4"), np.array([0, 2, 2, 3], "i4")


def made(kind, parts=PARTS):
    if kind == "scipy":
        return scipy_csr(parts, 4)
    import torch

    return torch_csr(tuple(torch.from_numpy(part) for part in parts), 4)


def rows_of(field):
    return (field.todense() if hasattr(field, "todense") else field.to_dense()).tolist()


@pytest.mark.parametrize("kind", ["scipy", "torch"])
def test_nothing_is_copied(kind):
    """The matrix lies over the parts, which it gives back; a copy has memory of its own."""
    parts = tuple(part.copy() for part in PARTS)
    field = made(kind, parts)
    kept = copied_field(field)
    parts[0][0] = 9
    assert [part.tolist() for part in csr_parts(field)] == [[9, 3, 4], [1, 3, 0], [0, 2, 2, 3]]
    assert rows_of(kept) == ROWS
    assert csr_parts(np.zeros(3)) is None


@pytest.mark.parametrize("kind", ["scipy", "torch"])
def test_two_samples_stand_in(kind):
    """The first row twice, or two rows of zeros where there is none; what comes out can be pickled."""
    assert rows_of(pickle.loads(pickle.dumps(first_twice(made(kind), some=True)))) == [ROWS[0], ROWS[0]]
    none = made(kind, (PARTS[0][:0], PARTS[1][:0], PARTS[2][:1]))
    assert rows_of(first_twice(none, some=False)) == [[0.0] * 4] * 2


def test_without_scipy_the_extra_is_named(monkeypatch):
    """Sparse rows without a device need SciPy."""
    csr._csr_matrix.cache_clear()
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(MissingExtraError, match=r"rankwise\[rows\]"):
        scipy_csr(PARTS, 4)


def test_half_precision_is_torchs_alone():
    """SciPy has no sparse halves: it is said, with the mend."""
    halves = PARTS[0].astype("f2"), *PARTS[1:]
    assert rows_of(made("torch", halves)) == ROWS
    with pytest.raises(ConfigError, match=r"no sparse matrices of float16: give the source another dtype="):
        made("scipy", halves)
