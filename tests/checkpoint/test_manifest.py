"""Damage is found, said, and stepped over; what cannot be read now is no damage."""

import errno
import hashlib
import json
import math
import os

import pytest
import torch

from rankwise.checkpoint import Checkpointer, RandomState
from rankwise.checkpoint.export import find_one
from rankwise.errors import CheckpointError
from rankwise.world import World


def flip(path, offset=-40):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def edit(old, new):
    def spoil(folder):
        path = folder / "manifest.json"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return spoil


def replace_by(make):
    """Put something else into the place of the payload."""

    def spoil(folder):
        (folder / "x.pt").unlink()
        make(folder / "x.pt")

    return spoil


def point_to(path):
    """Let the manifest, whole as it is, name another file, which has what it promises."""

    def spoil(folder):
        body = json.loads((folder / "manifest.json").read_text())
        body["parts"]["x"]["files"][0]["path"] = path.format(other=folder.with_name("step-0000000002") / "x.pt")
        change(folder, parts=body["parts"])

    return spoil


def change(folder, **facts):
    """Write a manifest that says something else, and is whole."""
    path = folder / "manifest.json"
    body = {**json.loads(path.read_text()), **facts}
    del body["sha256"]
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**body, "sha256": digest}))


DAMAGE = {
    "a flipped byte": (lambda folder: flip(folder / "x.pt"), r"x\.pt is damaged \(checksum\)"),
    "a flipped byte in the middle": (lambda folder: flip(folder / "x.pt", 2000), r"x\.pt is damaged \(checksum\)"),
    "a truncated file": (lambda folder: os.truncate(folder / "x.pt", 100), r"has 100 bytes instead of"),
    "a missing file": (lambda folder: (folder / "x.pt").unlink(), r"it has no x\.pt"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), r"it has no manifest\.json"),
    "a torn manifest": (lambda folder: (folder / "manifest.json").write_text('{"format": 1'), "cannot be read"),
    "an edited step": (edit('"step": 3', '"step": 7'), r"manifest\.json is damaged \(checksum\)"),
    "an edited world size": (edit('"world_size": 1', '"world_size": 2'), r"manifest\.json is damaged \(checksum\)"),
    "an edited scope": (edit('"replicated"', '"sharded"'), r"manifest\.json is damaged \(checksum\)"),
    "parts of nothing": (lambda folder: change(folder, parts=[1]), "lacks required fields"),
    "a FIFO": (replace_by(os.mkfifo), r"x\.pt is not a regular file"),
    "a link to a device": (replace_by(lambda path: path.symlink_to("/dev/zero")), r"x\.pt is not a regular file"),
    "a folder": (replace_by(os.mkdir), r"x\.pt is not a regular file"),
    "a path outside": (
        point_to("../step-0000000002/x.pt"),
        r"names '\.\./step-0000000002/x\.pt', which is not a file ins",
    ),
    "an absolute path": (point_to("{other}"), r"names '/.*x\.pt', which is not a file inside it"),
    "no checksum": (lambda folder: (folder / "manifest.json").write_text('{"format": 3}'), r"damaged \(checksum\)"),
    "no format": (
        lambda folder: change(folder, format=None),
        "it has format None; this rankwise reads format 1, 2 and 3",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_newest_good_one_is_found(tmp_path, damage):
    """Whatever happened to the newest, the one before it is found, and the reason is said, once."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    for step in (1, 2, 3):
        checkpointer.save(step, {"x": {"value": torch.full((500,), float(step))}})
    spoil, reason = DAMAGE[damage]
    spoil(tmp_path / "step-0000000003")
    with pytest.warns(UserWarning, match=rf"skipped the checkpoint .*step-0000000003: .*{reason}"):
        assert checkpointer.newest().step == 2
    value = {}
    report = checkpointer.restore({"x": value})
    assert report.step == 2
    assert value["value"][0] == 2.0


def test_a_link_in_the_way_is_not_followed(tmp_path):
    """Neither that of a rank's folder, nor that of the manifest."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    folder = checkpointer.save(1, {"random": RandomState()})
    (folder / "rank-0").rename(tmp_path / "elsewhere")
    (folder / "rank-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"rank-0/random\.(pt|npz) is not a regular file"):
        checkpointer.newest()
    (folder / "manifest.json").rename(tmp_path / "manifest.json")
    (folder / "manifest.json").symlink_to(tmp_path / "manifest.json")
    with pytest.raises(CheckpointError, match=r"manifest\.json is not a regular file"):
        checkpointer.newest()


def test_no_checkpoint_is_none(tmp_path):
    """An empty or missing folder holds none; that is no error."""
    for folder in (tmp_path, tmp_path / "none"):
        checkpointer = Checkpointer(folder, world=World.single())
        assert checkpointer.newest() is None
        assert checkpointer.restore({}) is None


def test_all_damaged_is_not_none(tmp_path):
    """Whoever has saved something never begins again unawares: all that was found is listed, and stays."""
    saver = Checkpointer(tmp_path, world=World.single())
    for step in (1, 2):
        saver.save(step, {"x": {"value": torch.full((500,), float(step))}})
    flip(tmp_path / "step-0000000002" / "x.pt")
    (tmp_path / "step-0000000001" / "manifest.json").unlink()
    checkpointer = Checkpointer(tmp_path, world=World.single())
    for ask in (checkpointer.newest, lambda: checkpointer.restore({"x": {}})):
        with pytest.raises(CheckpointError, match="none of them is whole") as caught:
            ask()
        lines = str(caught.value).splitlines()
        assert [line.rpartition("/")[2] for line in lines[1:3]] == [
            "step-0000000001: it has no manifest.json",
            "step-0000000002: x.pt is damaged (checksum)",
        ]
        assert "--fresh, or Trainer(fresh=True)" in lines[-1]
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == ["step-0000000001", "step-0000000002"]


def test_what_was_skipped_is_kept(tmp_path):
    """Later saves neither count nor remove it, not even one of the same step, nor by another process."""
    first = Checkpointer(tmp_path, world=World.single(), attempt=1)
    for step in (1, 2, 3):
        first.save(step, {"x": {"value": torch.full((500,), float(step))}})
    flip(tmp_path / "step-0000000003" / "x.pt")
    broken = (tmp_path / "step-0000000003" / "x.pt").read_bytes()
    second = Checkpointer(tmp_path, world=World.single(), attempt=2, keep=1)
    with pytest.warns(UserWarning, match="skipped the checkpoint"):
        assert second.restore({"x": {}}).step == 2
    second.save(3, {"x": {"value": 3}})
    (tmp_path / "step-0000000002").mkdir()  # damaged while nobody looked
    Checkpointer(tmp_path, world=World.single(), attempt=3, keep=1).save(4, {"x": {"value": 4}})
    left = ["skipped-step-0000000003", "step-0000000002", "step-0000000004"]
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == left
    assert (tmp_path / left[0] / "x.pt").read_bytes() == broken


@pytest.mark.parametrize("place", ["x.pt", "manifest.json", ".", ".."])
def test_what_may_not_be_read_stops(tmp_path, without_privileges, place):
    """EACCES, of the kernel: a mode that forbids reading, for file, manifest, checkpoint or folder of checkpoints.

    Nothing is skipped, no older one is taken, later saves remove nothing; readable again, it is the newest.
    """
    folder = tmp_path / "checkpoints"
    checkpointer = Checkpointer(folder, world=World.single(), keep=1)
    for step in (1, 2):
        newest = Checkpointer(folder, world=World.single()).save(step, {"x": {"value": torch.ones(9)}})
    closed = (newest / place).resolve()
    mode = closed.stat().st_mode
    with without_privileges():
        closed.chmod(0)
        try:
            for ask in (checkpointer.newest, lambda: checkpointer.restore({"x": {}})):
                with pytest.raises(
                    CheckpointError, match=r"cannot be read now, .* Permission denied: .*fix storage or"
                ):
                    ask()
        finally:
            closed.chmod(mode)
    assert checkpointer.newest().step == 2


def test_pruning_leaves_what_cannot_be_read(tmp_path, without_privileges):
    """A save beside a checkpoint whose manifest may not be read now publishes, and neither counts nor removes it."""
    for step in (1, 2):
        Checkpointer(tmp_path, world=World.single()).save(step, {"x": {"value": step}})
    manifest = tmp_path / "step-0000000001" / "manifest.json"
    with without_privileges():
        manifest.chmod(0)
        Checkpointer(tmp_path, world=World.single(), keep=1).save(3, {"x": {"value": 3}})
    manifest.chmod(0o600)
    assert sorted(path.name for path in tmp_path.glob("*step-*")) == ["step-0000000001", "step-0000000003"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("place", ["x.pt", "manifest.json"])
def test_trouble_with_the_storage_stops(tmp_path, monkeypatch, number, place):
    """EIO and ESTALE, injected where files are opened: as for permissions, the next start finds everything."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    for step in (1, 2):
        checkpointer.save(step, {"x": {"value": torch.ones(9)}})
    opened = os.open

    def failing(path, *args, **kwargs):
        if str(path).endswith(place):
            raise OSError(number, os.strerror(number))
        return opened(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        with pytest.raises(CheckpointError, match=rf"not damaged.*\[Errno {number}\] .*step-.*{place}"):
            checkpointer.newest()
    assert checkpointer.newest().step == 2


def test_a_run_directory_is_looked_into(tmp_path):
    """Of a run, the checkpoints inside are found; a folder that holds some itself is taken as it is."""
    Checkpointer(tmp_path / "checkpoints", world=World.single()).save(5, {"x": {"value": 1}})
    looking = Checkpointer(tmp_path, world=World.single())
    assert looking.newest().path == tmp_path / "checkpoints" / "step-0000000005"
    back = {}
    assert looking.restore({"x": back}).step == 5
    assert back == {"value": 1}
    looking.save(2, {"x": {"value": 2}})
    assert looking.newest().step == 2


def test_the_manifest_is_strict_json_and_tells_what_is_there(tmp_path):
    """Another program can read it; the caller's facts come back, NaN included."""
    checkpointer = Checkpointer(tmp_path, world=World.single(), attempt=4)
    meta = {"values": {"loss": math.nan, "low": -math.inf, "list": [1, math.inf]}, "note": None}
    folder = checkpointer.save(3, {"x": {"value": 1}}, meta=meta)
    manifest = json.loads((folder / "manifest.json").read_text(), parse_constant=pytest.fail)
    assert (manifest["format"], manifest["step"], manifest["attempt"], manifest["world_size"]) == (2, 3, 4, 1)
    assert manifest["parts"]["x"]["scope"] == "replicated"
    assert {"rankwise"} <= set(manifest["versions"]) <= {"rankwise", "torch", "jax"}  # those that are loaded
    assert repr(checkpointer.newest().meta) == repr(meta)


def test_a_later_format_is_not_damage(tmp_path):
    """Nobody goes back behind a checkpoint because an older version cannot read it; the message says what can."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    for step in (1, 2):
        checkpointer.save(step, {"x": {"value": step}})
    change(tmp_path / "step-0000000002", format=4, versions={"rankwise": "9.1.0"}, parts="in some other way")
    said = (
        r"step-0000000002 has the checkpoint format 4, of rankwise 9\.1\.0; this rankwise \S+ reads format 1, 2 and 3"
    )
    by_path = str(tmp_path / "step-0000000002")
    for ask in (checkpointer.newest, lambda: checkpointer.restore({"x": {}}), lambda: find_one(by_path)):
        with pytest.raises(CheckpointError, match=said) as caught:
            ask()
        assert "damaged" not in str(caught.value)
    assert checkpointer.newest(step=1).step == 1


@pytest.mark.parametrize(("value", "number"), [(torch.tensor(3.0), 1), (3.0, 2)], ids=["a tensor", "none"])
def test_the_format_is_the_lowest_that_tells_it(tmp_path, value, number):
    """Parts without tensors came with format 2; what holds tensors alone is of format 1, which old versions read."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    folder = checkpointer.save(1, {"x": {"value": value}})
    assert json.loads((folder / "manifest.json").read_text())["format"] == number
    back = {}
    checkpointer.restore({"x": back})
    assert back == {"value": value}


def test_a_checkpoint_of_format_1_with_arrays_is_read(tmp_path):
    """For some time both kinds of parts had the number 1."""
    checkpointer = Checkpointer(tmp_path, world=World.single())
    change(checkpointer.save(1, {"x": {"value": 7}}), format=1)
    back = {}
    assert checkpointer.restore({"x": back}).step == 1
    assert back == {"value": 7}
