"""`rankwise checkpoint`: shown, checked and written for others; and nothing that is planted in one ever runs."""

import errno
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rankwise.checkpoint import Checkpointer, ModelState, OptimizerState, RandomState, Replicated
from rankwise.checkpoint.export import find_one, whole_state
from rankwise.cli.app import app
from rankwise.errors import CheckpointError, ConfigError, RankwiseError
from rankwise.testing import run_ranks
from rankwise.world import World


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4))


def save_shards(world, folder):
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.arange(10.0).view(2, 5)).sum().backward()
    optimizer.step()
    parts = {"model": ModelState(model), "optimizer": OptimizerState(optimizer, model), "random": RandomState()}
    Checkpointer(folder, world=world).save(4, {**parts, "notes": {"a": [1, 2.5]}}, metrics={"loss": 0.5})


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A checkpoint of two ranks, with a model in pieces."""
    folder = tmp_path_factory.mktemp("sharded")
    run_ranks(save_shards, 2, folder)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A checkpoint of one process: whole tensors."""
    folder = tmp_path_factory.mktemp("plain")
    model = net()
    parts = {"model": Replicated(model), "random": RandomState(), "notes": {"a": np.arange(3)}}
    Checkpointer(folder, world=World.single()).save(4, parts)
    return folder


def invoke(*words):
    done = CliRunner().invoke(app, ["checkpoint", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_show_and_verify(sharded, tmp_path):
    """Of a folder, of a checkpoint in it, as text and as JSON; damage is said, with exit code 1."""
    code, text = invoke("show", sharded)
    assert code == 0
    assert "step 4, attempt 0, 2 ranks" in text
    assert "metrics: loss=0.5" in text
    assert "in pieces" in text
    assert " kB  2 files" in text
    (facts,) = json.loads(invoke("show", sharded / "step-0000000004", "--json")[1])
    assert facts["parts"]["model"]["files"] == ["rank-0/model.pt", "rank-1/model.pt"]
    assert facts["parts"]["random"]["scope"] == "rederived"
    copy = tmp_path / "run" / "checkpoints"
    shutil.copytree(sharded, copy)
    assert invoke("verify", tmp_path / "run") == (0, f"{copy / 'step-0000000004'}: intact\n")
    (copy / "step-0000000004" / "notes.npz").write_bytes(b"x")
    code, text = invoke("verify", tmp_path / "run")
    assert code == 1
    assert "DAMAGED: notes.npz has 1 bytes" in text
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        invoke("verify", tmp_path)
    for place in (tmp_path / "none", copy / "step-0000000004" / "notes.npz"):
        with pytest.raises(CheckpointError, match="it is no folder"):
            invoke("show", place)


def test_verify_goes_through_all(tmp_path, monkeypatch):
    """One checkpoint is damaged, one cannot be read now: each is said, with those that are intact."""
    checkpointer = Checkpointer(tmp_path, world=World.single(), keep=4)
    for number in range(4):
        checkpointer.save(number, {"notes": {"a": np.arange(3)}})
    first, second, third, fourth = (str(tmp_path / f"step-{number:010}") for number in range(4))
    Path(third, "manifest.json").write_text("[" * 100_000)
    opened = os.open

    def open_(path, *args, **options):
        if str(path) == fourth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", open_)
    code, text = invoke("verify", tmp_path)
    said = dict(line.split(": ", 1) for line in text.splitlines())
    assert code == 1
    assert said.keys() == {first, second, third, fourth}
    assert (said[first], said[second]) == ("intact", "intact")
    assert said[third].startswith("DAMAGED: its manifest.json cannot be read")
    assert said[fourth].startswith("UNREADABLE: [Errno 5] Input/output error")
    code, text = invoke("show", tmp_path)
    assert (code, text.count("step 0,"), text.count("damaged:")) == (0, 1, 1)
    assert "Input/output error" in text
    with pytest.raises(OSError, match="Input/output error"):  # a restore must not take an older one
        find_one(str(tmp_path))


def test_export(sharded, tmp_path):
    """Whole tensors of a model in pieces, readable by torch, safetensors and NumPy alone; never over a file."""
    info = find_one(str(sharded))
    wanted = whole_state(info, "model")
    out = tmp_path / "model.pt"
    assert invoke("export", sharded, out)[0] == 0
    model = net()
    model.load_state_dict(torch.load(out, weights_only=True))
    assert all(torch.equal(wanted[name], value) for name, value in model.state_dict().items())
    invoke("export", sharded, tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as arrays:
        assert set(arrays) == set(wanted)
        assert all(np.array_equal(arrays[name], wanted[name].numpy()) for name in wanted)
    invoke("export", sharded, tmp_path / "o.pt", "--part", "optimizer")
    state = torch.load(tmp_path / "o.pt", weights_only=True)
    assert state["state"]["0.weight"]["exp_avg"].shape == (4, 5)
    torch.optim.AdamW(model.parameters()).load_state_dict(state)  # torch takes names for numbers
    with pytest.raises(ConfigError, match="exists already"):
        invoke("export", sharded, out)
    assert invoke("export", sharded, out, "--force")[0] == 0
    with pytest.raises(CheckpointError, match=r"a is a list, and npz holds only tensors: .* --format pt"):
        invoke("export", sharded, tmp_path / "n.npz", "--part", "notes")
    for name in ("n.npz", "n.pt"):
        with pytest.raises(CheckpointError, match=rf"none/{name} cannot be written: (No such file|Parent directory)"):
            invoke("export", sharded, tmp_path / "none" / name)
    with pytest.raises(CheckpointError, match="has no part 'ema'; it holds model, optimizer, random, notes"):
        invoke("export", sharded, tmp_path / "e.pt", "--part", "ema")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.npz", "model.pt", "o.pt"]


def test_torch_alone_reads_the_files(sharded):
    """The page's reader of a few lines joins the pieces of two ranks."""
    page = (Path(__file__).parents[2] / "docs" / "checkpoint.md").read_text()
    (reader,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def read_part" in block]
    names = {"json": json, "torch": torch}
    exec(reader.partition("\n\n\n")[0], names)
    info = find_one(str(sharded))
    for part in ("model", "optimizer"):
        wanted, found = whole_state(info, part), names["read_part"](info.path, part)
        tensors = (
            [(wanted, found)]
            if part == "model"
            else [(wanted["state"][name], found["state"][name]) for name in wanted["state"]]
        )
        for left, right in tensors:
            assert left.keys() == right.keys()
            assert all(torch.equal(left[name], right[name]) for name in left)


def test_export_to_safetensors(sharded, tmp_path, monkeypatch):
    """With the library; without it the message says what to install."""
    out = tmp_path / "model.safetensors"
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(RankwiseError, match="--format safetensors needs safetensors: pip install safetensors"):
        invoke("export", sharded, out)
    monkeypatch.undo()
    safetensors = pytest.importorskip("safetensors.torch")
    invoke("export", sharded, out)
    wanted = whole_state(find_one(str(sharded)), "model")
    loaded = safetensors.load_file(out)
    assert loaded.keys() == wanted.keys()
    assert all(torch.equal(loaded[name], wanted[name]) for name in wanted)


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return (__import__("os").mkdir, (self.marker,))


def zipped(name, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def bombs(marker, original):
    """What may stand in the place of a file: pickles, torch's files and NumPy's with one inside."""
    bomb = pickle.dumps(Bomb(marker))
    saved, array, arrays = io.BytesIO(), io.BytesIO(), io.BytesIO()
    torch.save({"weight": Bomb(marker)}, saved)
    np.save(array, np.array([Bomb(marker)], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(arrays, "w") as archive:
        archive.writestr("tree.json", '{"array": 0, "dtype": "|O"}')
        archive.writestr("0.npy", array.getvalue())
    yield from (bomb, saved.getvalue(), arrays.getvalue(), zipped("archive/data.pkl", bomb))
    if zipfile.is_zipfile(io.BytesIO(original)):  # the file as it is, but for its pickle, its tree or an array
        with zipfile.ZipFile(io.BytesIO(original)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        for poisoned in [name for name in members if name.endswith(("data.pkl", "tree.json", "/0.npy"))]:
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w") as archive:
                for name, content in members.items():
                    worse = array.getvalue() if name.endswith(".npy") else bomb
                    archive.writestr(name, worse if name == poisoned else content)
            yield file.getvalue()


def vouch_for(folder, name, content):
    """Plant a file, and let the manifest promise exactly this: no checksum protects from whoever writes both."""
    (folder / name).write_bytes(content)
    body = json.loads((folder / "manifest.json").read_text())
    del body["sha256"]
    for part in body["parts"].values():
        for file in part["files"]:
            if file["path"] == name:
                file.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**body, "sha256": digest}))


def open_in_every_way(root, out, *names):
    """Restore, read, show, verify and export parts; return how many refused, each by an error of ours."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    parts = {"model": ModelState(model), "optimizer": OptimizerState(optimizer, model), "notes": {}}
    checkpointer, refused = Checkpointer(root, world=World.single()), 0
    ways = [lambda: invoke("show", root), lambda: invoke("verify", root)]
    for name in names:
        ways.append(lambda name=name: checkpointer.restore({name: parts.get(name, RandomState())}))
        ways.append(lambda name=name: checkpointer.read(checkpointer.newest(), name))
        ways.append(lambda name=name: invoke("export", root, out, "--part", name, "--format", "pt", "--force"))
    for way in ways:
        try:
            way()
        except RankwiseError:
            refused += 1
    return refused


@pytest.mark.parametrize(
    ("layout", "left_out"),
    [("plain", None), ("sharded", "/rank-0/"), pytest.param("sharded", None, marks=pytest.mark.slow)],
)
def test_nothing_that_is_planted_runs(layout, left_out, request, tmp_path):
    """A pickle bomb as every file of a checkpoint and inside it, and beside it under names that others would load.

    In CI the files of rank 1 stand for those of rank 0, which are of the same kinds.
    """
    root, marker, out = tmp_path / "root", tmp_path / "exploded", tmp_path / "out.pt"
    original = request.getfixturevalue(layout)
    folder = root / "step-0000000004"
    files = sorted(str(p.relative_to(original)) for p in original.rglob("*") if p.is_file())
    assert len(files) >= (4 if layout == "plain" else 8)
    for file in [file for file in files if left_out is None or left_out not in file]:
        name = file.removeprefix("step-0000000004/")
        for content in bombs(marker, (original / file).read_bytes()):
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(original, root)
            if name == "manifest.json":
                (folder / name).write_bytes(content)
            else:
                vouch_for(folder, name, content)
            refused = open_in_every_way(root, out, "model" if "manifest" in name else Path(name).stem)
            assert not marker.exists(), (file, content[:60])
            assert refused, (file, content[:60])
    shutil.rmtree(root)
    shutil.copytree(original, root)
    for beside in (".metadata", "data.pkl", "model.pkl", "__0_0.distcp", "rank-0/.metadata", "rank-7/model.pt"):
        (folder / beside).parent.mkdir(exist_ok=True)
        (folder / beside).write_bytes(pickle.dumps(Bomb(marker)))
    for module in ("torch", "numpy", "sitecustomize", "conftest", "__init__"):
        (folder / f"{module}.py").write_text(f"import os\nos.mkdir({str(marker)!r})\n")
    open_in_every_way(root, out, "model", "random", "notes")
    if layout == "sharded":
        check_a_command_in(folder, out, marker)
    pickle.loads(pickle.dumps(Bomb(marker)))
    assert marker.exists()


def check_a_command_in(folder, out, marker):
    """Modules of the current folder are not those of a command."""
    command = [Path(sys.executable).with_name("rankwise"), "checkpoint", "export", ".", out, "--force"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert not marker.exists()
