"""Numbers for arrays: equal for equal ones, never given twice."""

from dataclasses import replace

import pytest
import zarr

from rankwise.data.store import read_meta
from rankwise.data.store.cache import ArrayNumbers


@pytest.fixture
def meta(tmp_path):
    zarr.create_array(tmp_path / "a", shape=(4,), chunks=(2,), dtype="u1")
    return read_meta(str(tmp_path / "a"))


def test_equal_arrays_have_one_number(meta):
    """Metadata that were parsed twice are those of one array; another place or content is another."""
    serials = ArrayNumbers()
    first = serials.of(meta)
    assert serials.of(replace(meta)) == first
    assert serials.of(meta) == first
    others = [serials.of(replace(meta, place="elsewhere")), serials.of(replace(meta, fingerprint="other"))]
    assert len({first, *others}) == 3


def test_no_number_comes_twice(meta):
    """After forgetting, and in another reader, what is kept under an old number is not found again."""
    serials = ArrayNumbers()
    seen = {serials.of(meta)}
    for _ in range(3):
        serials.clear()
        seen.add(serials.of(meta))
    seen.add(ArrayNumbers().of(meta))
    assert len(seen) == 5


def test_memory_is_bounded(meta):
    """Only the last arrays are remembered; one that was forgotten gets another number, the others keep theirs."""
    serials = ArrayNumbers(most=8)
    metas = [replace(meta, place=str(number)) for number in range(20)]
    numbers = [serials.of(each) for each in metas]
    assert len(set(numbers)) == 20
    assert len(serials._known) == 8
    assert [serials.of(each) for each in metas[-8:]] == numbers[-8:]
    assert serials.of(metas[0]) not in numbers


def test_an_array_in_use_is_not_forgotten(meta):
    """Arrays that pass by do not push out the one that is asked for all the time."""
    serials = ArrayNumbers(most=8)
    first = serials.of(meta)
    for number in range(50):
        serials.of(replace(meta, place=str(number)))
        assert serials.of(meta) == first
