"""Which trouble may pass."""

import errno

import pytest

from rankwise.data.store.files.facts import PAUSES_S, is_temporary
from rankwise.errors import DataError


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EMFILE])
def test_trouble_that_may_pass(number):
    """By number and as an error alike."""
    assert is_temporary(number)
    assert is_temporary(OSError(number, "trouble"))


@pytest.mark.parametrize(
    "error", [errno.ENOENT, errno.EACCES, errno.EBADF, 0, None, OSError("no number"), DataError("damage"), "words"]
)
def test_trouble_that_stays(error):
    """Refusals, damage and anything else are not worth waiting for."""
    assert not is_temporary(error)


def test_pauses_grow_and_end():
    """Waiting gets longer, and all of it takes less than a heartbeat of a supervisor."""
    assert list(PAUSES_S) == sorted(PAUSES_S)
    assert 0 < sum(PAUSES_S) < 5
