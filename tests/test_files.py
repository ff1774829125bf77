"""Files that are whole or not there."""

import os
from pathlib import Path

import pytest

from rankwise._files import user_folder, write_named, write_whole


def test_the_new_file_takes_the_place_of_the_old(tmp_path):
    """Its content, and nothing beside it."""
    path = tmp_path / "facts.json"
    for content in (b"old", b"new and longer"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, step):
    """A full disk, say: what was there is there, what was begun is gone."""
    path = tmp_path / "facts.json"
    write_whole(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    if step == "replace":
        monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(OSError, match=r"No space.*/facts\.json'$"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError, match=r"/none/facts\.json'$"):  # not a temporary name
        write_whole(tmp_path / "none" / path.name, b"new")


def test_the_folder_is_made_to_last_too(tmp_path, monkeypatch):
    """A rename that only memory knows is undone by a power cut: file first, folder after the rename."""
    synced = []
    fsync = os.fsync

    def noted(fd):
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    write_whole(tmp_path / "facts.json", b"x")
    assert len(synced) == 2
    assert synced[0].endswith(".tmp")
    assert synced[1] == str(tmp_path)


def test_what_need_not_last_is_not_flushed(tmp_path, monkeypatch):
    """It is whole all the same, and takes the place of the old."""
    monkeypatch.setattr(os, "fsync", None)
    for content in (b"old", b"new"):
        write_whole(tmp_path / "card.json", content, durable=False)
        assert (tmp_path / "card.json").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["card.json"]


def test_a_named_file_is_written_through_links_and_into_pipes(tmp_path):
    """A rename would replace the link, or /dev/null, by a file."""
    (tmp_path / "real.html").write_bytes(b"old")
    (tmp_path / "link.html").symlink_to("real.html")
    write_named(tmp_path / "link.html", b"new")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real.html").read_bytes() == b"new"

    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_named(tmp_path / "pipe", b"page")
    assert os.read(reader, 10) == b"page"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_a_user_without_a_home_folder(monkeypatch):
    """A container's user that no table names: the error says what to set."""
    monkeypatch.setenv("HERE", "/state")
    assert user_folder("HERE", ".local/state") == Path("/state/rankwise")
    monkeypatch.setattr(os.path, "expanduser", lambda text: text)
    with pytest.raises(FileNotFoundError, match=r"no home folder, set HOME or NOT_SET: '~/.config'"):
        user_folder("NOT_SET", ".config")
