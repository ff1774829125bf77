"""`rankwise data audit` and `rankwise data bench` as commands."""

import json
import os
import subprocess
import sys

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
def run(store, tmp_path):
    def call(*words):
        return subprocess.run(
            [sys.executable, "-m", "rankwise", "data", *words],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call


def test_audit_for_people(run, store):
    """A table, advice, and a word that the rate is an estimate."""
    done = run("audit", str(store), "--crop", "8,32,32")
    assert done.returncode == 0, done.stderr
    for words in ("decode waste", "chunks per crop", "advice: ", "is an estimate", f"arrays: {store}"):
        assert words in done.stdout


def test_audit_for_programs(run, store):
    """--json prints one document and nothing else."""
    done = run("audit", str(store), "--crop", "8x32x32", "--align", "chunk", "--dtype", "bf16", "--json")
    facts = json.loads(done.stdout)
    assert (facts["crop"], facts["aligned"], facts["dtype"]) == ([8, 32, 32], True, "bfloat16")
    assert facts["groups"][0]["cost"]["chunks"] == 4


def test_bench_for_both(run, store):
    """Measured beside predicted; calibration says where it keeps the speeds."""
    words = ("bench", str(store), "--crop", "8,32,32", "--rounds", "2", "--batch", "2", "--threads", "1")
    done = run(*words, "--calibrate")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().splitlines()[-1].startswith("bottleneck: ")
    assert "rates.json" in done.stderr
    assert json.loads(run(*words, "--json").stdout)["groups"][0]["chunks_per_crop"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--crop", "8,a"], "--crop must be extents"),
        (["--crop", "8,0,8"], "--crop must be extents"),
        (["--crop", "8,8,8", "--align", "shard"], "--align must be"),
        (["--crop", "8,8,8", "--dtype", "colour"], "--dtype must be"),
        (["--crop", "8,8,8,8"], "needs non-empty arrays of at least 4 axes"),
    ],
)
def test_wrong_words(run, store, words, said):
    """One line and exit code 2."""
    done = run("audit", str(store), *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_there(run, tmp_path):
    """A place without a store is an error with the place."""
    done = run("audit", str(tmp_path / "nowhere"), "--crop", "8")
    assert done.returncode == 2
    assert "nowhere" in done.stderr
