"""The examples are run as their pages say; the demo is `make demo` without the installing."""

import json
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_demo_and_the_own_loop(tmp_path, run_python):
    """The demo reaches its accuracy on two ranks and says where everything is; the own loop trains on its store."""
    output = run_python(tmp_path, EXAMPLES / "digits" / "demo.py", PLAIN_IMPORTS="1")  # as its users' Python is
    finished = json.loads((tmp_path / "runs" / "digits" / "finished.json").read_text())
    assert finished["values"]["val_accuracy"] >= 0.95
    for said in ("accuracy", "runs/digits", "what to try next", "samples/s", "wait "):
        assert said in output
    again = run_python(tmp_path, EXAMPLES / "digits" / "demo.py")
    assert "what to try next" in again
    script = EXAMPLES / "own_loop" / "train.py"
    output = run_python(tmp_path, "-m", "rankwise", "run", "--nproc", "2", script, "--store", "runs/digits.zarr")
    assert "after 4 epochs on 2 rank(s)" in output
    own = json.loads((tmp_path / "runs" / "own_loop" / "finished.json").read_text())
    assert own["values"]["val_accuracy"] > 0.9
