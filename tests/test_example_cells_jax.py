"""The cells example in JAX is run as its page says, on two ranks, and goes on from the middle of an epoch on one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLE = Path(__file__).parents[1] / "examples" / "cells"
EPOCHS, STEPS = 20, 180

pytest.importorskip("jax")


def run(folder, *arguments, **variables):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def losses_of(run_dir):
    """The loss of each step, by its number; of a step that was taken twice, the later one."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo, run once: its folder and what it said."""
    folder = tmp_path_factory.mktemp("cells")
    return folder, run(folder, str(EXAMPLE / "demo.py"), "--jax", "--epochs", str(EPOCHS))


def test_the_classifier_beats_the_trivial_answer(demo):
    """On two ranks it recognises held-out cells far better than the commonest kind does, kinds alike, and says it."""
    folder, said = demo
    values = json.loads((folder / "runs" / "cells_jax" / "finished.json").read_text())["values"]
    assert values["val_accuracy"] >= 0.7
    assert values["val_trivial_accuracy"] < 0.4
    assert values["val_balanced_accuracy"] >= 0.45
    assert f"accuracy {values['val_accuracy']:.4f} on 170 cells" in said
    assert f"after {STEPS} steps on 2 ranks" in said


def test_a_picture_of_the_latent_space_lies_in_the_run_directory(demo):
    """It has discs of a colour for each of the ten kinds, in the map as in the legend."""
    folder, _ = demo
    with Image.open(folder / "runs" / "cells_jax" / "latent.png") as picture:
        space = picture.crop((0, 0, picture.height, picture.height))
        legend = picture.crop((picture.height, 0, *picture.size))
        shown, named = ({colour for _, colour in part.getcolors(1 << 16)} for part in (space, legend))
    kinds = {colour for colour in shown if len(set(colour)) > 1 or colour == (127, 127, 127)}
    assert len(kinds) == 10
    assert kinds <= named


def test_a_stopped_run_goes_on_with_another_number_of_ranks(demo):
    """From what was saved in the middle of an epoch one rank takes the steps that are left, with the same losses."""
    folder, _ = demo
    whole, stopped = folder / "runs" / "cells_jax", folder / "runs" / "stopped"
    shutil.copytree(whole, stopped)
    (stopped / "finished.json").unlink()
    with np.load(stopped / "checkpoints" / "training.npz") as saved:
        position = json.loads(str(saved["position"]))
        assert int(saved["num_steps"]) == 150
    assert (position["epoch"], position["position"]) == (16, 6 * 64)
    arguments = ["--collection", "runs/cells.zarr", "--epochs", str(EPOCHS)]
    said = run(folder, str(EXAMPLE / "train_jax.py"), *arguments, RANKWISE_RUN_DIR="runs/stopped")
    assert f"after {STEPS} steps on 1 rank;" in said
    two, one = losses_of(whole), losses_of(stopped)
    lines = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text().splitlines()]
    again = [line["step"] for line in lines if line["attempt"] == 2 and "loss" in line]
    assert again == list(range(151, STEPS + 1))
    assert [one[step] for step in again] == pytest.approx([two[step] for step in again], rel=1e-4)


@pytest.mark.slow
def test_the_whole_training_is_that_of_one_rank(demo):
    """In double precision every loss on two ranks is that on one rank, from the first step to the last."""
    folder, _ = demo
    found = []
    for num_ranks in (1, 2):
        run_dir = f"runs/exact-{num_ranks}"
        how = ["-m", "rankwise", "run", "--nproc", str(num_ranks), "--run-dir", run_dir, str(EXAMPLE / "train_jax.py")]
        run(folder, *how, "--collection", "runs/cells.zarr", "--epochs", "30", "--float64")
        found.append(losses_of(folder / run_dir))
    assert len(found[0]) == 270
    assert [found[1][step] for step in found[0]] == pytest.approx(list(found[0].values()), rel=1e-9)
