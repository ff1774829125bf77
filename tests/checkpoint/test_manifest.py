"""Damage is found, said, and stepped over."""

import hashlib
import json
import math
import os

import pytest
import torch

from rankwise.checkpoint import Checkpointer
from rankwise.errors import CheckpointError
from rankwise.world import World


def flip(path, offset=-40):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def edit_step(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"step": 3', '"step": 7'))


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
    "a missing file": (lambda folder: (folder / "x.pt").unlink(), r"x\.pt cannot be read \(No such file"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), r"it has no manifest\.json"),
    "a torn manifest": (lambda folder: (folder / "manifest.json").write_text('{"format": 1'), "cannot be read"),
    "an edited manifest": (edit_step, r"manifest\.json is damaged \(checksum\)"),
    "no checksum": (lambda folder: (folder / "manifest.json").write_text('{"format": 3}'), r"damaged \(checksum\)"),
    "no format": (lambda folder: change(folder, format=None), "it has format None; this rankwise reads format 1 and 2"),
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


def test_nothing_good_is_nothing(tmp_path):
    """Where every candidate is damaged, there is no checkpoint; nor in an empty or missing folder."""
    checkpointer = Checkpointer(tmp_path / "none", world=World.single())
    assert checkpointer.newest() is None
    assert checkpointer.restore({}) is None
    (tmp_path / "none" / "step-0000000001").mkdir(parents=True)
    with pytest.warns(UserWarning, match="no manifest"):
        assert checkpointer.newest() is None


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
    change(tmp_path / "step-0000000002", format=3, versions={"rankwise": "9.1.0"}, parts="in some other way")
    said = r"step-0000000002 has the checkpoint format 3, of rankwise 9\.1\.0; this rankwise \S+ reads format 1 and 2"
    for ask in (checkpointer.newest, lambda: checkpointer.restore({"x": {}})):
        with pytest.raises(CheckpointError, match=said):
            ask()
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
