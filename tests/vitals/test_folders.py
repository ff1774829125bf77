"""Folders for vitals."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

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
