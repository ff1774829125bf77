"""Compiled code comes from the disk where it lies there, and from the compiler wherever that fails."""

import ctypes

import numba
import pytest
from numba import types
from numba.core import caching

from rankwise.data.store.decode import machine as compiling
from rankwise.data.store.decode.machine import compiled_address

SIGNATURE = types.int64(types.int64)


def adder(number):
    def add(value):
        return value + number

    return add


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of the cache."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def compiled(number, name="add"):
    """The result for 1 of a compiled adder, and whether it was on disk."""
    address, was_on_disk = compiled_address(adder(number), name, SIGNATURE)
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(1), was_on_disk


def test_what_was_compiled_is_found_again(folder):
    """The second time, the same code comes from the disk."""
    assert compiled(5) == (6, False)
    assert len(list(folder.rglob("*.nbc"))) == 1
    assert compiled(5) == (6, True)


def test_each_function_has_files_of_its_own(folder):
    """Variants of one function, other constants or another name, never share a file that two processes could mix up."""
    assert compiled(5, "five") == (6, False)
    assert compiled(7, "seven") == (8, False)
    names = {file.name.split("-")[0] for file in folder.rglob("*.nbi")}
    assert len(names) == 2
    assert all("five_" in name or "seven_" in name for name in names)
    assert compiled(5, "seven") == (6, False)
    assert compiled(7, "seven") == (8, True)


@pytest.mark.parametrize("pattern", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize("rest", [0, 1, 2, 3])
def test_damaged_files_are_compiled_anew(folder, pattern, rest):
    """A cache that a full disk cut short costs time once, and nothing else."""
    assert compiled(5) == (6, False)
    for file in folder.rglob(pattern):
        file.write_bytes(file.read_bytes()[: file.stat().st_size * rest // 4])
    assert compiled(5) == (6, False)
    assert compiled(5) == (6, True)


def test_no_folder_can_be_written(monkeypatch):
    """Then every process compiles for itself."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert compiled(5) == (6, False)
    assert compiled(5) == (6, False)


def test_replaced_sources_are_not_taken_for_the_code_that_runs(folder, monkeypatch):
    """A process whose sources were replaced since it read them leaves nothing on disk, and takes nothing from there."""
    assert compiled(5) == (6, False)
    monkeypatch.setattr(compiling, "IMPORTED_S", 0.0)
    assert compiled(7) == (8, False)  # under the same name, as it would be after an upgrade
    assert compiled(9, "nine") == (10, False)
    assert len(list(folder.rglob("*.nbc"))) == 1
    monkeypatch.undo()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    assert compiled(5) == (6, True)


def test_code_that_cannot_be_compiled_is_an_error():
    """The compiler's own error arrives, not one about its cache."""

    def wrong(value):
        return value.no_such_thing

    with pytest.raises(numba.TypingError):
        compiled_address(wrong, "wrong", SIGNATURE)
