"""Checkpoints in a real S3-compatible store: the manifest last, and the same rules as on a disk."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rankwise.checkpoint import Checkpointer, RandomState
from rankwise.errors import CheckpointError, ConfigError
from rankwise.testing import run_ranks
from rankwise.world import World

obstore = pytest.importorskip("obstore")


@pytest.fixture
def at(bucket, s3_port, s3_keys, request):
    """Make checkpointers of a place in the bucket that is this test's own."""
    options = {"endpoint": f"http://127.0.0.1:{s3_port}", **s3_keys}
    url = f"s3://bucket/{request.node.name}"

    def make(world=None, **more):
        return Checkpointer(url, world=world or World.single(), store_options=options, **more)

    make.url, make.options = url, options
    make.names = lambda: sorted(
        meta["path"].partition("/")[2] for batch in obstore.list(bucket, prefix=request.node.name) for meta in batch
    )
    make.put = lambda name, content: obstore.put(bucket, f"{request.node.name}/{name}", content)
    make.get = lambda name: bytes(obstore.get(bucket, f"{request.node.name}/{name}").bytes())
    make.delete = lambda name: obstore.delete(bucket, f"{request.node.name}/{name}")
    return make


def steps(names):
    return sorted({name.partition("/")[0] for name in names})


class Part:
    scope = "sharded"

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def sharded(world, url, options, *, asynchronous):
    from torch.distributed.fsdp import fully_shard

    from rankwise.checkpoint import ModelState

    torch.manual_seed(1)
    model = torch.nn.Linear(5, 3)
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    fully_shard(model)
    checkpointer = Checkpointer(url, world=world, store_options=options, asynchronous=asynchronous)
    part = Part(torch.full((3,), world.rank))
    with checkpointer:
        checkpointer.save(7, {"model": ModelState(model), "part": part, "random": RandomState()})
    part.value = None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    report = checkpointer.restore({"model": ModelState(model), "part": part})
    same = all(torch.equal(wanted[name], value.full_tensor()) for name, value in model.state_dict().items())
    return report.step, str(report.path), same, part.value.tolist(), checkpointer.read(checkpointer.newest(), "model")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ranks_save_and_restore(at, asynchronous):
    """Two ranks with shards of a model and parts of their own, at once or by threads; and one reads the model."""
    for rank, found in enumerate(run_ranks(lambda *a: sharded(*a, asynchronous=asynchronous), 2, at.url, at.options)):
        assert found[:4] == (7, f"{at.url}/step-0000000007", True, [rank] * 3)
        assert found[4]["weight"].shape == (3, 5)
    assert at().newest().world_size == 2
    tokens = {name.split("/")[1] for name in at.names() if not name.endswith("manifest.json")}
    assert len(tokens) == 1


def test_the_last_and_the_best_stay(at):
    """The same pruning as on a disk; a save of the same step takes the place of the one before, whole."""
    checkpointer = at(keep=2, keep_best=1, metric="loss")
    for step in range(1, 6):
        checkpointer.save(step, {"x": {"value": step}}, metrics={"loss": abs(step - 2)})
    assert steps(at.names()) == [f"step-{step:010d}" for step in (2, 4, 5)]
    assert checkpointer.best().step == 2
    checkpointer.save(5, {"x": {"value": 50}})
    value = {}
    checkpointer.restore({"x": value})
    assert value == {"value": 50}
    assert len([name for name in at.names() if name.startswith("step-0000000005")]) == 2


def test_what_a_killed_save_left_is_no_checkpoint(at):
    """Files without a manifest, or beside those that the manifest names: never found, removed by the next save."""
    at().save(1, {"x": {"value": 1}})
    at.put("step-0000000002/attempt-0-aaaa/x.npz", b"half")
    at.put("step-0000000001/attempt-0-bbbb/x.npz", b"half")
    at.put("else/notes.txt", b"of somebody")
    fresh = at(keep=3)
    assert fresh.newest().step == 1
    fresh.save(3, {"x": {"value": 3}})
    assert steps(at.names()) == ["else", "step-0000000001", "step-0000000003"]
    assert len(at.names()) == 5
    assert fresh.newest(2).step == 1


@pytest.mark.parametrize("damage", ["a flipped byte", "a missing file", "a torn manifest", "a name outside"])
def test_damage_is_stepped_over_and_kept(at, damage):
    """The one before is found, the reason said; nothing of the damaged one is removed, it is not looked at again."""
    checkpointer = at(keep=1)
    checkpointer.save(1, {"x": {"value": 1}})
    at(keep=None).save(2, {"x": {"value": 2}})
    [file] = [name for name in at.names() if name.startswith("step-0000000002") and name.endswith("npz")]
    manifest = "step-0000000002/manifest.json"
    if damage == "a flipped byte":
        at.put(file, at.get(file)[:-1] + b"x")
    elif damage == "a missing file":
        at.delete(file)
    else:
        body = json.loads(at.get(manifest))
        body["parts"]["x"]["files"][0]["path"] = "../step-0000000001/x.npz"
        at.put(manifest, b'{"format"' if damage == "a torn manifest" else json.dumps(body).encode())
    reader = at(keep=1)
    with pytest.warns(UserWarning, match=r"skipped the checkpoint s3://bucket/.*/step-0000000002: "):
        assert reader.newest().step == 1
    reader.save(3, {"x": {"value": 3}})
    kept = [name for name in at.names() if name.startswith("step-0000000002")]
    assert "step-0000000002/skipped-manifest-0.json" in kept
    assert (file in kept) == (damage != "a missing file")
    assert steps(at.names()) == ["step-0000000002", "step-0000000003"]
    assert at().newest().step == 3


def test_a_store_that_does_not_answer_is_no_damage(at):
    """Nothing is skipped where the store refuses or is away; a kind of store that is unknown is a ConfigError."""
    gone = {**at.options, "endpoint": "http://127.0.0.1:9", "retry_config": {"max_retries": 0}}
    with pytest.raises(CheckpointError, match=r"cannot be read now, but is not damaged"):
        Checkpointer(at.url, world=World.single(), store_options=gone).newest()
    with pytest.raises(CheckpointError, match="failed on rank 0"):
        Checkpointer(at.url, world=World.single(), store_options=gone).save(1, {})
    with pytest.raises(ConfigError, match="cannot open a store for odd://bucket/x"):
        Checkpointer("odd://bucket/x", world=World.single())


def test_a_kill_at_any_request_leaves_the_old_checkpoint_or_the_new(at):
    """SIGKILL before or after a write, the end of an upload, a put or a delete: whole, found without a warning."""
    command = [sys.executable, str(Path(__file__).with_name("kill_uploads.py")), at.url, json.dumps(at.options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["number"] for line in lines] == list(range(1, 7 * len(lines), 7)), done.stderr
    assert [line["status"] for line in lines] == [-9] * (len(lines) - 1) + [0]
    assert len(lines) > 8
    assert all(line["whole"] for line in lines)
    steps_found = [line["step"] for line in lines]
    assert steps_found == sorted(steps_found)
    assert (steps_found[0], steps_found[-1]) == (1, 2)
