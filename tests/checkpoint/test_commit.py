"""A checkpoint appears whole or not at all; old ones go in order."""

import contextlib
import errno
import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rankwise.checkpoint import Checkpointer
from rankwise.errors import CheckpointError, ConfigError, FencedError, RunDirError
from rankwise.world import World


def names(folder):
    return sorted(entry.name for entry in folder.glob("*step-*"))


def saver(folder, **options):
    return Checkpointer(folder, world=World.single(), **options)


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    """SIGKILL before and after every fsync, rename and removal of a save: the old or the new one is found, and no rest.

    Both for a new step and for one that replaces the same step, and where a thread writes; found whole and without a
    warning.
    """
    command = [sys.executable, str(Path(__file__).with_name("kill_saves.py")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    for new_step, aside in ((1, False), (2, False), (2, True)):
        kills = [line for line in lines if (line["new_step"], line["aside"]) == (new_step, aside)]
        assert len(kills) > 12
        assert [line["status"] for line in kills] == [-9] * (len(kills) - 1) + [0]
        values = [line["value"] for line in kills]
        # first the old one, from some moment on the new one, and never anything else
        assert values == sorted(values)
        assert (values[0], values[-1]) == (1, 2)
        for line in kills:
            assert line["consistent"]
            assert line["left"] == ["step-0000000009"]
            assert line["step"] == (new_step if line["value"] == 2 else 1)


def test_the_last_ones_stay(tmp_path):
    """`keep` counts the newest; multiples of `keep_every` stay for ever."""
    checkpointer = saver(tmp_path, keep=2, keep_every=4)
    for step in range(1, 11):
        checkpointer.save(step, {"x": {"value": step}})
    assert names(tmp_path) == [f"step-{step:010d}" for step in (4, 8, 9, 10)]


def test_the_best_ones_stay(tmp_path):
    """`keep_best` counts those with the metric, NaN is none, of equal ones the newest is better; `best` finds them."""
    checkpointer = saver(tmp_path, keep=1, keep_best=2, metric="loss")
    assert checkpointer.best() is None
    for step, loss in enumerate([5.0, 2.0, 3.0, float("nan"), 2.0, 2.0, None, 4.0]):
        checkpointer.save(step, {"x": {"value": step}}, metrics={} if loss is None else {"loss": loss})
    assert names(tmp_path) == [f"step-{step:010d}" for step in (4, 5, 7)]
    best = checkpointer.best()
    assert (best.step, best.metrics) == (5, {"loss": 2.0})
    assert saver(tmp_path, metric="loss", mode="max").best().step == 7
    value = {}
    checkpointer.restore({"x": value}, best)
    assert value == {"value": 5}
    with pytest.raises(ConfigError, match="keep_best=2 needs metric="):
        saver(tmp_path, keep_best=2)
    with pytest.raises(ConfigError, match="mode must be 'min' or 'max', got 'lowest'"):
        saver(tmp_path, keep_best=2, metric="loss", mode="lowest")
    with pytest.raises(ConfigError, match=r"metrics must be numbers by name; loss is a str"):
        saver(tmp_path).save(1, {}, metrics={"loss": "low"})


def test_all_stay_if_asked(tmp_path):
    """keep=None removes nothing."""
    checkpointer = saver(tmp_path, keep=None)
    for step in range(5):
        checkpointer.save(step, {})
    assert len(names(tmp_path)) == 5


def test_a_later_attempt_is_newer(tmp_path):
    """An attempt that went back to an earlier step leaves the later steps of the earlier one behind."""
    saver(tmp_path, keep=None, attempt=1).save(150, {})
    second = saver(tmp_path, keep=2, attempt=2)
    second.save(100, {})
    assert second.newest().step == 100
    second.save(110, {})
    assert names(tmp_path) == ["step-0000000100", "step-0000000110"]


def test_an_upper_step_can_be_asked_for(tmp_path):
    """newest(step) looks no further than that step."""
    checkpointer = saver(tmp_path)
    for step in (10, 20, 30):
        checkpointer.save(step, {})
    assert checkpointer.newest(29).step == 20
    assert checkpointer.newest(9) is None


def test_a_fence_that_refuses_publishes_nothing(tmp_path):
    """A left-over of an older attempt finds its publish refused; the folder is as it was."""
    saver(tmp_path).save(1, {"x": {"value": 1}})
    calls = []

    @contextlib.contextmanager
    def fence():
        calls.append(1)
        if len(calls) > 1:
            raise FencedError("attempt 2 owns the run")
        yield

    with pytest.raises(FencedError, match="attempt 2 owns the run"):
        saver(tmp_path, fence=fence).save(2, {"x": {"value": 2}})
    assert len(calls) == 2
    assert names(tmp_path) == ["step-0000000001"]


def test_one_that_was_set_aside_outlives_the_next_failure(tmp_path):
    """Killed between setting the old one aside and moving the new one in: cleaning puts the old one back."""
    saver(tmp_path).save(1, {"x": {"value": 1}})
    (tmp_path / "step-0000000001").rename(tmp_path / ".old-step-0000000001")
    second = saver(tmp_path)
    assert second.newest().step == 1
    with pytest.raises(CheckpointError):
        second.save(1, {"x": {"value": object()}})
    assert names(tmp_path) == ["step-0000000001"]
    assert second.newest().step == 1


def test_reading_removes_nothing(tmp_path):
    """Whoever only looks (an evaluation beside the training) leaves half-written checkpoints alone."""
    (tmp_path / ".tmp-step-0000000001-attempt-1").mkdir()
    assert saver(tmp_path).newest() is None
    assert names(tmp_path) == [".tmp-step-0000000001-attempt-1"]
    saver(tmp_path).save(2, {})
    assert names(tmp_path) == ["step-0000000002"]


def test_a_full_disk_leaves_the_previous_one(tmp_path):
    """On a file system of 1 MiB a save that does not fit is refused, cleaned up, and the next one fits again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let the test mount a tmpfs")
    try:
        checkpointer = saver(disk, keep=1)
        checkpointer.save(1, {"x": {"value": torch.zeros(10_000)}})
        with pytest.raises(CheckpointError, match=r"rank 0: \[Errno 28\] No space left on device; check free space"):
            checkpointer.save(2, {"x": {"value": torch.zeros(1_000_000)}})
        assert names(disk) == ["step-0000000001"]
        assert checkpointer.newest().step == 1
        checkpointer.save(3, {"x": {"value": torch.zeros(10_000)}})
        checkpointer.close()  # a folder that is held keeps its disk mounted
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-1, {}), "an int >= 0; got -1"), ((True, {}), "got True"), ((1, {"a/b": {}}), "a part's name .* got 'a/b'")],
)
def test_wrong_arguments_are_refused(tmp_path, arguments, message):
    """Before anything is written."""
    with pytest.raises(ConfigError, match=message):
        saver(tmp_path).save(*arguments)
    with pytest.raises(ConfigError, match="at least 1"):
        saver(tmp_path, keep=0)
    assert names(tmp_path) == []


def test_an_older_one_that_cannot_be_removed_is_a_warning_with_the_mend(tmp_path, monkeypatch, recwarn):
    """Said once; the saves go on, and remove what is left as soon as they can."""
    checkpointer = Checkpointer(tmp_path, world=World.single(), keep=1)
    checkpointer.save(1, {"x": {"value": 1}})
    rename = os.rename

    def guarded(source, target):
        if ".del-" in str(target):
            raise PermissionError(errno.EPERM, "Operation not permitted", str(source))
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", guarded)
        for step in (2, 3):
            assert checkpointer.save(step, {"x": {"value": step}}).name == f"step-000000000{step}"
    (said,) = recwarn
    wanted = r"Operation not permitted: '.*step-0000000001'; step-0000000002 was published.*make them removable"
    assert re.search(wanted, str(said.message))
    assert len(names(tmp_path)) == 3
    checkpointer.save(4, {"x": {"value": 4}})
    assert names(tmp_path) == ["step-0000000004"]


def test_a_checkpoint_may_be_a_link(tmp_path):
    """One that was moved to another disk is read, replaced and pruned; its files stay where they are."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    checkpointer = saver(tmp_path / "here", keep=1)
    for number, step in enumerate((1, 1, 1, 2)):
        folder = checkpointer.save(step, {"notes": {"number": number}})
        assert names(tmp_path / "here") == [folder.name]
        folder.rename(elsewhere / str(number))
        folder.symlink_to(elsewhere / str(number))
        assert checkpointer.newest().step == step
    assert sorted(path.name for path in elsewhere.iterdir()) == ["0", "1", "2", "3"]


def test_two_processes_do_not_save_in_one_folder(tmp_path, monkeypatch):
    """The second would remove what the first is writing. Reading, and another object of this process, are no matter."""
    monkeypatch.setattr("rankwise._process.lock._FOLDER_WAIT_S", 0.0)
    first = saver(tmp_path)
    first.save(1, {"x": {"value": 1}})
    saver(tmp_path).save(2, {"x": {"value": 2}})
    with (tmp_path / "running.lock").open() as other:  # as another process has it
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        first.close()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(
            RunDirError, match=rf"the folder {tmp_path} is in use by .* stop that process, or use anoth"
        ):
            first.save(3, {"x": {"value": 3}})
        assert saver(tmp_path).newest().step == 2
        with saver(tmp_path, fence=contextlib.ExitStack) as fenced:  # a run has its own locks
            fenced.save(3, {"x": {"value": 3}})
    first.save(4, {"x": {"value": 4}})
