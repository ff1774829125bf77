"""The folder beside a collection: one job holds it, and what of an earlier one is taken up again."""

import contextlib
import fcntl
import os
import shutil

import pytest

from rankwise.data.rows.collection import journal
from rankwise.data.rows.collection.journal import JOURNAL, locked, put_json, resume, this_boot
from rankwise.errors import DataError

FACTS = {"names": ["dataset_1"], "old": ["dataset_0"], "dropped": []}


@pytest.fixture
def work(tmp_path):
    return tmp_path / "c.zarr.writing"


def test_one_job_holds_the_folder(work):
    """A second one is refused while the first is at work, and gets the folder after it; nothing is left then."""
    with locked(work):
        assert (work / "lock").exists()
        with pytest.raises(DataError, match="another process is writing this collection"), locked(work):
            pass
        assert (work / "lock").exists()
    assert list(work.parent.iterdir()) == []
    with locked(work):
        assert list(work.parent.iterdir()) == [work]


def test_a_lock_that_went_with_its_folder_holds_nobody(work, monkeypatch):
    """A job that opened the lock file just before the one that held it was done takes the lock of a new folder."""
    real, calls = fcntl.flock, []

    def late(file, how):
        calls.append(file)
        if len(calls) == 1:  # the other job ends between our opening of its file and our locking of it
            shutil.rmtree(work)
        real(file, how)

    monkeypatch.setattr(journal.fcntl, "flock", late)
    with locked(work):
        assert len(calls) == 2
        assert os.path.samestat(os.fstat(calls[1].fileno()), (work / "lock").stat())
        with pytest.raises(DataError, match="another process is writing this collection"), locked(work):
            pass


def test_a_job_that_ends_touches_nothing_of_the_next(work, monkeypatch):
    """What the next job makes while the folder of the last one is being deleted stays."""
    real = shutil.rmtree

    def slow(path, **options):
        work.mkdir()
        (work / "journal.json").write_text("of the next job")
        real(path, **options)

    monkeypatch.setattr(journal.shutil, "rmtree", slow)
    with locked(work):
        (work / "journal.json").write_text("of this job")
    assert [path.name for path in work.parent.iterdir()] == [work.name]
    assert (work / "journal.json").read_text() == "of the next job"


def test_a_file_system_without_locks_is_named(work, monkeypatch):
    """That is not taken for another job."""
    monkeypatch.setattr(journal.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(37, "No locks available")))
    with pytest.raises(DataError, match=r"cannot be locked \(\[Errno 37\] No locks available\)"), locked(work):
        pass


@pytest.mark.parametrize(
    ("plan", "members", "taken"),
    [
        ("a", ["dataset_0"], True),
        ("b", ["dataset_0"], False),
        ("a", [], False),
        ("a", ["dataset_0", "dataset_9"], False),
    ],
)
def test_unfinished_work_goes_on_where_nothing_else_has_changed(work, plan, members, taken):
    """The same request into the same datasets goes on; another one, or one into other datasets, begins anew."""
    folder = work.with_name("c.zarr")
    for name in members:
        (folder / name).mkdir(parents=True)
    (work / "done").mkdir(parents=True)
    facts = FACTS | {"plan": "a", "boot": this_boot()}
    put_json(work / JOURNAL, facts)
    said = pytest.warns(UserWarning, match="of other inputs or parameters, or into other datasets")
    with contextlib.nullcontext() if taken else said:
        assert resume(folder, plan) == (facts if taken else None)
    assert (work / "done").exists() == (work / JOURNAL).exists() == taken
