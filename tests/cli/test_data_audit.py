"""`rankwise data audit` and `rankwise data bench` as commands."""

import json

import numpy as np
import pytest
import zarr


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("stores") / "a.zarr"
    array = zarr.create_array(path, shape=(32, 64, 64), chunks=(8, 16, 16), shards=(16, 32, 64), dtype="uint16")
    array[...] = np.random.default_rng(0).integers(0, 100, array.shape)
    return path


@pytest.fixture
def run(command, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: command("data", *words)


def test_audit_for_people(run, store):
    """A table, advice, and a word that the rate is an estimate."""
    code, told, warned = run("audit", store, "--crop", "8,32,32")
    assert code == 0, warned
    for words in ("decode waste", "chunks per crop", "advice: ", "is an estimate", f"arrays: {store}"):
        assert words in told


def test_audit_for_programs(run, store):
    """--json prints one document and nothing else."""
    _, told, _ = run("audit", store, "--crop", "8x32x32", "--align", "chunk", "--dtype", "bf16", "--json")
    facts = json.loads(told)
    assert (facts["crop"], facts["aligned"], facts["dtype"]) == ([8, 32, 32], True, "bfloat16")
    assert facts["groups"][0]["cost"]["chunks"] == 4


def test_bench_for_both(run, store):
    """Measured beside predicted; calibration says where it keeps the speeds."""
    words = ("bench", store, "--crop", "8,32,32", "--rounds", "2", "--batch", "2", "--threads", "1")
    code, told, warned = run(*words, "--calibrate")
    assert code == 0, warned
    assert told.rstrip().splitlines()[-1].startswith("bottleneck: ")
    assert "rates.json" in warned
    assert json.loads(run(*words, "--json")[1])["groups"][0]["chunks_per_crop"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audit", "--crop", "8,a"], "--crop must be extents"),
        (["audit", "--crop", "8,0,8"], "--crop must be extents"),
        (["audit", "--crop", "8,8,8", "--align", "shard"], "--align must be"),
        (["audit", "--crop", "8,8,8", "--dtype", "colour"], "--dtype must be"),
        (["audit", "--crop", "8,8,8,8"], "needs non-empty arrays of at least 4 axes"),
        (["audit", "--crop", "8", "nowhere"], "/nowhere: no such folder"),
        (["bench", "--crop", "8,8,8", "--seed", "-1"], "Invalid value for '--seed'"),
    ],
)
def test_wrong_words(run, store, words, said):
    """One message and exit code 2."""
    code, _, warned = run(*words, store)
    assert code == 2
    assert said in warned
    assert "Traceback" not in warned
