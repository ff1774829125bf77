"""The lock is the file's at its place, and its holder is named."""

import fcntl
import os
import subprocess
import tempfile
import threading
import warnings
from pathlib import Path

import pytest

from rankwise._process.lock import FileLock
from rankwise.errors import RunDirError


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


@pytest.mark.parametrize("way", ["acquire", "release"])
def test_no_fork_takes_part_in_it(tmp_path, monkeypatch, way):
    """A process that is forked by another thread while the lock is taken, or given back, does not keep it."""
    lock, forks, begin, end = FileLock(tmp_path / "lock", what="the run"), [], os.pipe(), os.pipe()
    forked = threading.Event()

    def fork():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            child = os.fork()
        if child == 0:
            os.write(begin[1], b"x")
            os.close(end[1])
            os.read(end[0], 1)
            os._exit(0)
        forks.append(child)
        forked.set()

    thread = threading.Thread(target=fork)
    module, name = (fcntl, "flock") if way == "acquire" else (os, "close")
    call = getattr(module, name)

    def slow(fd, *how):
        done = call(fd, *how) if way == "acquire" else None
        if not thread.ident:
            thread.start()
            forked.wait(0.5)  # one that waits for us comes later
        return done if way == "acquire" else call(fd)

    if way == "release":
        lock.acquire(wait_s=0)
    monkeypatch.setattr(module, name, slow)
    if way == "acquire":
        lock.acquire(wait_s=0)
    else:
        lock.release()
    monkeypatch.undo()
    thread.join(60)
    assert os.read(begin[0], 1) == b"x"
    lock.release()
    with (tmp_path / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(end[1])
    os.waitpid(forks[0], 0)
    for file in (*begin, end[0]):
        os.close(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_user_cannot_hold_it(mode):
    """Opening a lock file is enough to hold it: one made before for all to open is closed to them, too."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(mode)
        (folder / "lock").touch(0o644)
        hold = ["sh", "-c", f"exec 9<{folder / 'lock'} && echo opened && flock -n 9"]
        other = {"user": 65534, "group": 65534, "extra_groups": [], "capture_output": True, "text": True}
        before = subprocess.run(hold, **other, check=False)
        assert before.stdout == ("opened\n" if mode == 0o755 else "")
        lock = FileLock(folder / "lock", what="the run")
        lock.acquire(wait_s=0)
        lock.release()
        after = subprocess.run(hold, **other, check=False)
        assert after.stdout == ""
        assert "Permission denied" in after.stderr


@pytest.mark.parametrize(("folder", "lock"), [(0o755, 0o600), (0o775, 0o660), (0o770, 0o660)])
def test_who_may_write_the_folder_may_hold_its_lock(tmp_path, folder, lock):
    """A group that shares a run shares its lock; nobody else does."""
    before = os.umask(0o002)
    try:
        (tmp_path / "run").mkdir()
        (tmp_path / "run").chmod(folder)
        held = FileLock(tmp_path / "run" / "lock", what="the run")
        held.acquire(wait_s=0)
        held.release()
        assert (tmp_path / "run" / "lock").stat().st_mode & 0o777 == lock
    finally:
        os.umask(before)
