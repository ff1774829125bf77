"""Folders for vitals."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rankwise.errors import LaunchError
from rankwise.vitals import folders, make_folder, remove_folder

KILLED = """
import os, pathlib, signal, sys
from rankwise.vitals import folders, make_folder
folders._MEMORY = pathlib.Path(sys.argv[2])
print(make_folder(in_memory=sys.argv[1] == "memory"), flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_each_call_makes_another_private_folder():
    """Folders are empty of vitals, only for this user, and never handed out twice."""
    first, second = make_folder(), make_folder()
    try:
        assert first != second
        for folder in (first, second):
            assert folder.stat().st_mode & 0o777 == 0o700
            assert [path.name for path in folder.iterdir()] == ["owner"]
    finally:
        remove_folder(first)
        remove_folder(second)
    assert not first.exists()


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_folders_whose_owner_was_killed_are_swept(where, tmp_path, monkeypatch):
    """A later start removes the folder of a process that was killed, and leaves alone those of living ones."""
    # places of our own: at the usual ones a launch of another test may sweep at any moment
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    monkeypatch.setattr(folders, "_MEMORY", memory)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    command, env = [sys.executable, "-c", KILLED, where, str(memory)], {**os.environ, "TMPDIR": str(disk)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as owner:
        theirs = Path(owner.stdout.readline().strip())
        remove_folder(make_folder(in_memory=where == "memory"))
        assert theirs.exists(), "its owner lives"
        assert theirs.parent == (memory if where == "memory" else disk)
        owner.stdin.close()
        owner.wait()
        assert theirs.exists(), "nobody was left to remove it"
        remove_folder(make_folder(in_memory=where == "memory"))
        assert not theirs.exists()


def test_memory_without_room_and_no_folder_at_all(tmp_path, monkeypatch):
    """A rank that maps a page of a full file system dies of SIGBUS; without any folder the error says what to set."""
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(folders, "_MEMORY", memory)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = make_folder()
    assert folder.parent == memory
    remove_folder(folder)
    found = os.statvfs(memory)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*found[:4], 3, *found[5:])))
    folder = make_folder()
    assert folder.parent == tmp_path
    remove_folder(folder)

    def nowhere():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(LaunchError, match=r"No usable .*: set TMPDIR"):
        make_folder()
