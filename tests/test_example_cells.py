"""The cells example is run as its page says, on two ranks, and goes on after a stop on one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import anndata
import pytest
import torch
from PIL import Image

EXAMPLE = Path(__file__).parents[1] / "examples" / "cells"


def run(folder, *arguments):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def values_of(run_dir):
    return json.loads((run_dir / "finished.json").read_text())["values"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo, run once: its folder and what it said."""
    folder = tmp_path_factory.mktemp("cells")
    return folder, run(folder, str(EXAMPLE / "demo.py"))


def test_the_data_are_small_and_whole():
    """The file beside the example holds 700 cells, 765 genes and ten kinds in under a megabyte, licence beside."""
    path = EXAMPLE / "pbmc68k_reduced.h5ad"
    cells = anndata.read_h5ad(path)
    assert path.stat().st_size < 1_000_000
    assert cells.shape == (700, 765)
    assert len(cells.obs["cell_type"].cat.categories) == 10
    assert (EXAMPLE / "LICENSE.scanpy").read_text().startswith("BSD 3-Clause License")


def test_the_classifier_beats_the_trivial_answer(demo):
    """On two ranks it recognises held-out cells far better than the commonest kind does, kinds alike, and says it."""
    folder, said = demo
    values = values_of(folder / "runs" / "cells")
    assert values["val_accuracy"] >= 0.7
    assert values["val_trivial_accuracy"] < 0.4
    assert values["val_balanced_accuracy"] >= 0.45
    assert f"accuracy {values['val_accuracy']:.4f} on 170 cells" in said
    assert "on 2 ranks" in said


def test_a_picture_of_the_latent_space_lies_in_the_run_directory(demo):
    """It has discs of a colour for each of the ten kinds, in the map as in the legend."""
    folder, _ = demo
    with Image.open(folder / "runs" / "cells" / "latent.png") as picture:
        space = picture.crop((0, 0, picture.height, picture.height))
        legend = picture.crop((picture.height, 0, *picture.size))
        shown, named = ({colour for _, colour in part.getcolors(1 << 16)} for part in (space, legend))
    kinds = {colour for colour in shown if len(set(colour)) > 1 or colour == (127, 127, 127)}
    assert len(kinds) == 10
    assert kinds <= named


def test_a_stopped_run_goes_on_with_another_number_of_ranks(demo):
    """With an epoch missing it takes that epoch's steps alone, on one rank, and comes to the same weights."""
    folder, _ = demo
    whole, stopped = folder / "runs" / "cells", folder / "runs" / "stopped"
    shutil.copytree(whole, stopped)
    (stopped / "finished.json").unlink()
    shutil.rmtree(stopped / "checkpoints" / "step-0000000270")
    (stopped / "latent.png").unlink()
    how = ["run", "--nproc", "1", "--run-dir", "runs/stopped", str(EXAMPLE / "train.py")]
    run(folder, "-m", "rankwise", *how, "--collection", "runs/cells.zarr")
    before = len((whole / "metrics.jsonl").read_text().splitlines())
    new = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text().splitlines()[before:]]
    steps = [line["step"] for line in new if "step" in line]
    assert steps
    assert min(steps) > 261
    assert values_of(stopped)["num_steps"] == 270
    assert (stopped / "latent.png").exists()
    one, two = (torch.load(run_dir / "checkpoints" / "step-0000000270" / "model.pt") for run_dir in (stopped, whole))
    flat_one, flat_two = (torch.cat([tensor.flatten() for tensor in leaves(weights)]) for weights in (one, two))
    assert flat_one.numel() > 90_000
    torch.testing.assert_close(flat_one, flat_two, rtol=1e-4, atol=1e-5)


def leaves(tree):
    """All tensors of a checkpoint's part, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for value in tree.values() for leaf in leaves(value)] if isinstance(tree, dict) else []
