"""The examples are run as their pages say; the demo is `make demo` without the installing."""

import json
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_demo_and_the_own_loop(tmp_path, run_python, saved_weights):
    """The demo reaches its accuracy and says where everything is; own loop and trainer train the same, to the bit."""
    output = run_python(tmp_path, EXAMPLES / "digits" / "demo.py", PLAIN_IMPORTS="1")  # as its users' Python is
    finished = json.loads((tmp_path / "runs" / "digits" / "finished.json").read_text())
    assert finished["values"]["val_accuracy"] >= 0.95
    for said in ("accuracy", "runs/digits", "what to try next", "samples/s", "wait "):
        assert said in output
    script = EXAMPLES / "own_loop" / "train.py"
    output = run_python(tmp_path, "-m", "rankwise", "run", "--nproc", "2", script, "--store", "runs/digits.zarr")
    assert "after 4 epochs on 2 rank(s)" in output
    own = json.loads((tmp_path / "runs" / "own_loop" / "finished.json").read_text())
    assert own["values"]["val_accuracy"] > 0.9

    command = ["run", "--nproc", "2", "--run-dir", "runs/same", EXAMPLES / "digits" / "train.py"]
    options = ["--store", "runs/digits.zarr", "--epochs", "4", "--micro-batch", "16"]
    run_python(tmp_path, "-m", "rankwise", *command, *options)
    trainers = json.loads((tmp_path / "runs" / "same" / "finished.json").read_text())
    shared = own["values"].keys() & trainers["values"].keys()
    assert {"loss", "val_loss", "val_accuracy"} <= shared, (own, trainers)
    for name in shared:  # the logged mean is added up over other spans of steps
        assert own["values"][name] == pytest.approx(trainers["values"][name], rel=1e-6)
    newest = [max((tmp_path / "runs" / name / "checkpoints").glob("step-*")) for name in ("own_loop", "same")]
    own_weights, weights = map(saved_weights, newest)
    assert torch.equal(own_weights, weights)


@pytest.mark.slow
def test_the_demo_again(tmp_path, run_python):
    """Where the demo has run, it runs again."""
    for _ in range(2):
        assert "what to try next" in run_python(tmp_path, EXAMPLES / "digits" / "demo.py")
