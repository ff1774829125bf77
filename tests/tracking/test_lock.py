"""The lock is the file's at its place, and its holder is named."""

import fcntl
import os

import pytest

from rankwise.errors import RunDirError
from rankwise.tracking.lock import FileLock


def test_a_lock_on_a_file_that_was_moved_away_is_no_lock(tmp_path, monkeypatch):
    """Whoever opened the lock file just before the folder was moved aside takes the one at the new place instead."""
    folder = tmp_path / "run"
    folder.mkdir()
    flock = fcntl.flock

    def flock_after_a_move(fd, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        folder.rename(tmp_path / "run.1")
        folder.mkdir()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock_after_a_move)
    lock = FileLock(folder / "lock", what="the run")
    lock.acquire(wait_s=5)
    with (folder / "lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.release()
    lock.release()


def test_the_holder_is_named_when_the_wait_is_over(tmp_path):
    """Held by somebody that left no name: said as such; once let go, it can be taken."""
    lock = FileLock(tmp_path / "lock", what="the run")
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RunDirError, match=r"the run is in use by another process \(waited 0\.1 s"):
            lock.acquire(wait_s=0.1)
    lock.acquire(wait_s=0)
    assert str(os.getpid()) in (tmp_path / "lock").read_text()
    lock.release()
