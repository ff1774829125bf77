"""The error family: one base, builtins that callers expect, and a safe journey between processes."""

import pickle

import pytest

from rankwise import errors

FAMILY = [getattr(errors, name) for name in errors.__all__]
NO_FAILURE = errors.Interrupted


@pytest.mark.parametrize("kind", [kind for kind in FAMILY if kind is not NO_FAILURE], ids=lambda k: k.__name__)
def test_each_is_a_rankwise_error_and_a_builtin(kind):
    """`except RankwiseError` catches all; each but the base is also what Python would raise."""
    assert issubclass(kind, errors.RankwiseError)
    builtins = {ValueError, RuntimeError, ImportError}
    assert kind is errors.RankwiseError or builtins & set(kind.__mro__)


def test_an_interruption_is_no_error():
    """It ends the process with 75, and neither ``except Exception`` nor ``except RankwiseError`` catches it."""
    assert issubclass(NO_FAILURE, SystemExit)
    assert not issubclass(NO_FAILURE, Exception)
    assert NO_FAILURE("saved").code == 75


@pytest.mark.parametrize("kind", FAMILY, ids=lambda k: k.__name__)
def test_each_survives_pickling(kind):
    """Errors travel from loader workers and ranks; text and attributes arrive."""
    error = kind("what was wanted, what came, and the mend")
    error.place = "shard 3"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.place == "shard 3"
