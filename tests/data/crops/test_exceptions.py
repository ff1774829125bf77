"""The error family: kinds, status codes, and what each carries."""

import pickle

import pytest

import rankwise.data.crops as damacy
from rankwise.errors import ConfigError, DataError, RankwiseError, SampleError

KINDS = {
    damacy.TryAgain: (damacy.Status.AGAIN, RankwiseError),
    damacy.InvalidArgument: (damacy.Status.INVALID, ConfigError),
    damacy.InvalidSample: (damacy.Status.INVALID, SampleError),
    damacy.NotFound: (damacy.Status.NOTFOUND, SampleError),
    damacy.DtypeMismatch: (damacy.Status.DTYPE, SampleError),
    damacy.RankMismatch: (damacy.Status.RANK, SampleError),
    damacy.StorageError: (damacy.Status.IO, SampleError),
    damacy.DecodeError: (damacy.Status.DECODE, SampleError),
    damacy.NativeCudaError: (damacy.Status.CUDA, RankwiseError),
    damacy.OutOfMemory: (damacy.Status.OOM, MemoryError),
    damacy.BudgetExceeded: (damacy.Status.BUDGET, ConfigError),
    damacy.ShutdownError: (damacy.Status.SHUTDOWN, RankwiseError),
    damacy.PoolStarved: (damacy.Status.SHUTDOWN, RankwiseError),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_is_also_its_builtin(kind):
    """Whoever catches RuntimeError, or rankwise's own kind, catches it; it travels between processes whole."""
    status, base = KINDS[kind]
    error = kind("what happened", uri="a.zarr", aabb=((0, 4),), sample=7)
    assert isinstance(error, damacy.DamacyError)
    assert isinstance(error, RuntimeError)
    assert isinstance(error, base)
    assert (error.status, error.what, str(error)) == (status, "what happened", "what happened")
    again = pickle.loads(pickle.dumps(error))
    assert (again.uri, again.aabb, again.sample, again.place) == ("a.zarr", ((0, 4),), 7, "a.zarr")


def test_only_damage_may_be_skipped():
    """Errors of the storage or of what was asked for are never a matter of one damaged sample."""
    assert damacy.DecodeError("x").damage
    others = (damacy.StorageError, damacy.NotFound, damacy.DtypeMismatch, damacy.InvalidSample, damacy.RankMismatch)
    assert not any(kind("x").damage for kind in others)
    assert issubclass(damacy.OutOfMemory, DataError)
