"""The cells example is run as its page says, with torch and with JAX, on two ranks; and goes on after a stop on one.

It takes fewer epochs than the page: the marker `slow` has all of them.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import anndata
import pytest
import torch
from PIL import Image

from rankwise.checkpoint import Checkpointer
from rankwise.world import World

EXAMPLE = Path(__file__).parents[1] / "examples" / "cells"


@dataclass(frozen=True)
class Demo:
    """The demo, run once: its folder and what it said."""

    folder: Path
    said: str
    run_dir: Path
    steps: int


@pytest.fixture(scope="module")
def make_demo(tmp_path_factory, run_python):
    folder, made = tmp_path_factory.mktemp("cells"), {}  # the first demo writes the cells for both

    def make(library):
        if library not in made:
            options, name, steps = (TORCH, "cells", 90) if library == "torch" else (JAX, "cells_jax", 135)
            said = run_python(folder, EXAMPLE / "demo.py", *options)
            made[library] = Demo(folder, said, folder / "runs" / name, steps)
        return made[library]

    return make


TORCH = ["--epochs", "10"]
JAX = ["--jax", "--epochs", "15"]


@pytest.fixture(scope="module", params=["torch", "jax"])
def demo(request, make_demo):
    pytest.importorskip(request.param)
    return make_demo(request.param)


@pytest.fixture(scope="module")
def torch_demo(make_demo):
    return make_demo("torch")


@pytest.fixture(scope="module")
def jax_demo(make_demo):
    pytest.importorskip("jax")
    return make_demo("jax")


def values_of(run_dir):
    return json.loads((run_dir / "finished.json").read_text())["values"]


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
    values = values_of(demo.run_dir)
    assert values["val_accuracy"] >= 0.7
    assert values["val_trivial_accuracy"] < 0.4
    assert values["val_balanced_accuracy"] >= 0.45
    assert f"accuracy {values['val_accuracy']:.4f} on 170 cells" in demo.said
    assert f"after {demo.steps} steps on 2 ranks" in demo.said


def test_a_picture_of_the_latent_space_lies_in_the_run_directory(demo):
    """It has discs of a colour for each of the ten kinds, in the map as in the legend."""
    with Image.open(demo.run_dir / "latent.png") as picture:
        space = picture.crop((0, 0, picture.height, picture.height))
        legend = picture.crop((picture.height, 0, *picture.size))
        shown, named = ({colour for _, colour in part.getcolors(1 << 16)} for part in (space, legend))
    kinds = {colour for colour in shown if len(set(colour)) > 1 or colour == (127, 127, 127)}
    assert len(kinds) == 10
    assert kinds <= named


def test_a_stopped_run_goes_on_with_another_number_of_ranks(torch_demo, run_python, saved_weights):
    """With an epoch missing it takes that epoch's steps alone, on one rank, and comes to the same weights."""
    folder, whole = torch_demo.folder, torch_demo.run_dir
    stopped = shutil.copytree(whole, folder / "runs" / "stopped")
    (stopped / "finished.json").unlink()
    shutil.rmtree(stopped / "checkpoints" / "step-0000000090")
    (stopped / "latent.png").unlink()
    how = ["run", "--nproc", "1", "--run-dir", "runs/stopped", EXAMPLE / "train.py"]
    run_python(folder, "-m", "rankwise", *how, "--collection", "runs/cells.zarr", *TORCH)
    before = len((whole / "metrics.jsonl").read_text().splitlines())
    new = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text().splitlines()[before:]]
    steps = [line["step"] for line in new if "step" in line]
    assert steps
    assert min(steps) > 81
    assert values_of(stopped)["num_steps"] == 90
    assert (stopped / "latent.png").exists()
    one, two = (saved_weights(run_dir / "checkpoints" / "step-0000000090") for run_dir in (stopped, whole))
    assert one.numel() > 90_000
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def losses_of(run_dir):
    """The loss of each step, by its number; of a step that was taken twice, the later one."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_with_jax_a_stopped_run_goes_on_inside_an_epoch(jax_demo, run_python):
    """From what was saved in the middle of an epoch one rank takes the steps that are left, with the same losses."""
    folder, whole = jax_demo.folder, jax_demo.run_dir
    stopped = shutil.copytree(whole, folder / "runs" / "stopped_jax")
    (stopped / "finished.json").unlink()
    checkpoints = Checkpointer(stopped / "checkpoints", world=World.single())
    saved = checkpoints.newest()
    position = checkpoints.read(saved, "loader")
    assert (saved.step, position["epoch"], position["position"]) == (100, 11, 64)
    arguments = ["--collection", "runs/cells.zarr", *JAX[1:]]
    said = run_python(folder, EXAMPLE / "train_jax.py", *arguments, RANKWISE_RUN_DIR="runs/stopped_jax")
    assert f"after {jax_demo.steps} steps on 1 rank;" in said
    two, one = losses_of(whole), losses_of(stopped)
    lines = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text().splitlines()]
    again = [line["step"] for line in lines if line["attempt"] == 2 and "loss" in line]
    assert again == list(range(101, jax_demo.steps + 1))
    assert [one[step] for step in again] == pytest.approx([two[step] for step in again], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "jax"])
def test_the_demo_as_the_page_says(library, tmp_path, run_python):
    """All 30 epochs, where the other tests take fewer."""
    pytest.importorskip(library)
    said = run_python(tmp_path, EXAMPLE / "demo.py", *(["--jax"] if library == "jax" else []))
    assert "after 270 steps on 2 ranks" in said


@pytest.mark.slow
def test_with_jax_the_whole_training_is_that_of_one_rank(jax_demo, run_python):
    """In double precision every loss on two ranks is that on one rank, from the first step to the last."""
    found = []
    for num_ranks in (1, 2):
        run_dir = f"runs/exact-{num_ranks}"
        how = ["-m", "rankwise", "run", "--nproc", num_ranks, "--run-dir", run_dir, EXAMPLE / "train_jax.py"]
        run_python(jax_demo.folder, *how, "--collection", "runs/cells.zarr", "--epochs", "30", "--float64")
        found.append(losses_of(jax_demo.folder / run_dir))
    assert len(found[0]) == 270
    assert [found[1][step] for step in found[0]] == pytest.approx(list(found[0].values()), rel=1e-9)
