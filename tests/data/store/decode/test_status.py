"""Every status says in words what is wrong, and whether the content is to blame."""

import errno

import pytest

from rankwise.data.store.decode import tasks
from rankwise.data.store.decode.tasks import describe, is_damage


@pytest.mark.parametrize(
    ("code", "detail", "damage", "told"),
    [
        (tasks.OK, 0, False, "is well"),
        (tasks.CUT_SHORT, 40, True, "is truncated: 40 of 99 bytes could be read"),
        (tasks.OS_ERROR, errno.EIO, False, "cannot be read: Input/output error (errno 5)"),
        (tasks.BAD_FRAME, -20, True, "is damaged: its decoder rejects its 99 bytes (code -20)"),
        (tasks.WRONG_SIZE, 70, True, "is damaged: it decodes to 70 bytes, but a chunk has 64"),
        (tasks.WRONG_SIZE, -1, True, "is damaged: it decodes to another number of bytes, but a chunk has 64"),
        (tasks.WRONG_LENGTH, 80, True, "is damaged: it has 99 bytes, but should have 80"),
        (tasks.WRONG_LENGTH, 2**32 - 1, True, "is damaged: it has 99 bytes, but should have 4294967295"),
        (tasks.OUT_OF_RANGE, 0, False, "do not fit the requested dtype: choose a wider dtype"),
        (tasks.UNKNOWN_COMPRESSOR, 2, False, "is compressed with snappy, which this build of numcodecs does not know"),
        (tasks.UNKNOWN_COMPRESSOR, 6, False, "is compressed with compressor 6 of Blosc"),
        (tasks.TOO_LONG, 90, True, "is damaged: it has 99 bytes, but no encoder needs more than 90 for a chunk"),
        (tasks.UNKNOWN_KIND, 8, False, "has an unknown kind 8"),
        (77, 3, False, "failed with the unknown status 77 (detail 3)"),
    ],
)
def test_every_status_is_told(code, detail, damage, told):
    """What came, what was wanted, and no number without a word."""
    assert told in describe(code, detail, length=99, chunk_bytes=64)
    assert is_damage(code) == damage
