"""Whether an array behind a URL is still there."""

from dataclasses import replace

import pytest
import zarr

from rankwise.data.store import read_meta
from rankwise.data.store.files.facts import ArrayCheck
from rankwise.data.store.remote import TransferError


class Objects:
    """A store of which only the sizes of objects are asked."""

    def __init__(self, *present):
        self.present = present
        self.asked = []
        self.broken = False

    def size(self, url):
        self.asked.append(url)
        if self.broken:
            raise TransferError("no answer")
        return (10, None) if url in self.present else None


@pytest.fixture(params=[2, 3])
def meta(request, tmp_path):
    zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="u1", zarr_format=request.param)
    return replace(read_meta(str(tmp_path / "a")), place="s3://bucket/a")


def document(meta):
    return f"s3://bucket/a/{'zarr.json' if meta.zarr_format == 3 else '.zarray'}"


def test_an_array_that_is_there_is_asked_for_once(meta):
    """One request for its metadata, until everything is forgotten."""
    objects = Objects(document(meta))
    array_check = ArrayCheck(objects)
    assert [array_check.trouble(meta) for _ in range(3)] == [None] * 3
    assert objects.asked == [document(meta)]
    array_check.clear()
    assert array_check.trouble(meta) is None
    assert len(objects.asked) == 2


def test_an_array_that_has_gone(meta):
    """Named, no damage, and not asked for again."""
    objects = Objects()
    array_check = ArrayCheck(objects)
    for _ in range(2):
        trouble = array_check.trouble(meta)
        assert "s3://bucket/a was moved or deleted after" in str(trouble)
        assert not trouble.damage
    assert len(objects.asked) == 1


def test_a_store_that_does_not_answer_is_asked_again(meta):
    """What may pass is not kept."""
    objects = Objects(document(meta))
    objects.broken = True
    array_check = ArrayCheck(objects)
    assert "no answer" in str(array_check.trouble(meta))
    objects.broken = False
    assert array_check.trouble(meta) is None
