"""The volumes example is run as its page says, on two ranks, and on one rank it comes to the same.

It takes fewer epochs than the page: the marker `slow` has all of them.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from PIL import Image

EXAMPLE = Path(__file__).parents[1] / "examples" / "volumes"


@pytest.fixture(scope="module")
def demo(tmp_path_factory, run_python):
    """The demo, run once: its folder and what it said."""
    folder = tmp_path_factory.mktemp("volumes")
    return folder, run_python(folder, EXAMPLE / "demo.py", "--epochs", "3")


def test_the_network_beats_the_trivial_answer(demo):
    """On two ranks it segments the held-out half far better than calling all of it head, and says how well."""
    folder, said = demo
    values = json.loads((folder / "runs" / "volumes" / "finished.json").read_text())["values"]
    assert values["val_dice"] >= 0.97
    assert values["val_trivial_dice"] < 0.6
    assert f"Dice {values['val_dice']:.4f}" in said
    assert "after 36 steps on 2 ranks" in said


def test_the_held_out_half_is_stitched(demo):
    """Both ranks wrote the network's answer for all of it, which meets the label as the single tiles did."""
    folder, _ = demo
    found = zarr.open_array(folder / "runs" / "volumes" / "head.zarr")[...]
    true = zarr.open_array(folder / "runs" / "volumes.zarr" / "val" / "labels" / "head" / "0")[...]
    assert (found.shape, found.dtype) == (true.shape, np.uint8)
    assert 2 * (found & true).sum() / (found.sum() + true.sum()) >= 0.97


def test_a_picture_lies_in_the_run_directory(demo):
    """It shows a crop, its label (nothing but black and white, both of them) and its prediction, side by side."""
    folder, _ = demo
    with Image.open(folder / "runs" / "volumes" / "prediction.png") as picture:
        width, height = picture.size
        label = picture.crop((width // 3 + 2, 2, 2 * width // 3 - 2, height - 2))
        assert width == 3 * height
        assert {grey for _, grey in label.getcolors()} == {0, 255}


@pytest.mark.slow
def test_the_demo_as_the_page_says(tmp_path, run_python):
    """All 12 epochs, where the other tests take fewer."""
    assert "after 144 steps on 2 ranks" in run_python(tmp_path, EXAMPLE / "demo.py")


@pytest.mark.slow
def test_one_rank_and_two_come_to_the_same(demo, run_python, saved_weights):
    """In double precision, with unequal micro-batches, the weights after an epoch differ by rounding only."""
    folder, _ = demo
    options = ["--store", "runs/volumes.zarr", "--epochs", "1", "--crops", "28", "--float64", "--batch-size", "7"]
    options = [str(EXAMPLE / "train.py"), *options]
    for nproc, micro_batch in ((1, 7), (2, 3)):
        how = ["run", "--nproc", str(nproc), "--run-dir", f"runs/on{nproc}"]
        run_python(folder, "-m", "rankwise", *how, *options, "--micro-batch", str(micro_batch))
    one, two = (
        saved_weights(next((folder / "runs" / f"on{nproc}" / "checkpoints").glob("step-*4"))) for nproc in (1, 2)
    )
    for path in ("on1", "on2"):
        assert json.loads((folder / "runs" / path / "finished.json").read_text())["values"]["num_steps"] == 4
    assert one.dtype == torch.float64
    assert one.numel() > 8000
    torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)
