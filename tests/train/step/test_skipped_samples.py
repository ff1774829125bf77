"""Promise 3 with damaged samples: the mean is over the samples that arrived, on however many ranks."""

import json
import logging

import numpy as np
import pytest
import torch
import zarr
from torch import nn

from rankwise import Order, Trainer
from rankwise.data.crops import CropIndex, IndexPipeline, Take
from rankwise.diagnose.report import write_report
from rankwise.errors import StepError
from rankwise.testing import run_ranks
from rankwise.train import ExactStep, prepare


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """A volume of 32 chunks, each a file; three of them are damaged."""
    path = tmp_path_factory.mktemp("damaged") / "volume.zarr"
    values = np.random.default_rng(0).integers(1, 1000, (16, 16, 8)).astype("u2")
    zarr.create_array(path, data=values, chunks=(4, 4, 4))
    for chunk in ("0/0/0", "1/2/1", "3/3/0"):
        (path / "c" / chunk).write_bytes(b"this is no chunk")
    return str(path)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def losses(model, batch):
    return (model(batch["image"].double() / 1000)[:, 0] - 1) ** 2


def pair(model, batch):
    values = losses(model, batch)
    return values.sum(), len(values)


def mean(model, batch):
    return losses(model, batch).mean()


def gradients(world, volume, form, micro_batch):
    """Each step's report and gradients over one epoch, of this rank."""
    index = CropIndex(volume, shape=(4, 4, 4), fields={"image": Take(dtype="float32")})
    model = prepare(make_model(), world)
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.0), form, world=world)
    found = []
    options = {"micro_batch": micro_batch, "world": world, "on_bad_sample": 3}
    with IndexPipeline(index, order=Order(index, batch_size=10), **options) as pipeline:
        for batches in pipeline:
            report = step(batches)
            flat = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()
            found.append((report.num_samples, report.num_lost, report.weight, flat))
    return found


def truth(volume):
    """The gradient of each step by hand: the mean over the crops that can be read."""
    index = CropIndex(volume, shape=(4, 4, 4))
    order, array = Order(index, batch_size=10), zarr.open_array(volume, mode="r")
    state, found = order.start(), []
    for _ in range(order.num_steps(state)):
        step = order.step(state)
        crops = []
        for place in index.describe(step.ids, seed=order.seed):
            box = tuple(slice(a, b) for a, b in zip(place.start, place.stop, strict=True))
            if tuple(a // 4 for a in place.start) not in {(0, 0, 0), (1, 2, 1), (3, 3, 0)}:
                crops.append(array[box])
        model = make_model()
        losses(model, {"image": torch.from_numpy(np.stack(crops).astype("f4"))}).mean().backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()
        found.append((len(crops), len(step.ids) - len(crops), flat))
        state = step.resume
    return found


@pytest.mark.parametrize("form", [losses, pair, mean], ids=["samples", "pair", "mean"])
@pytest.mark.parametrize(("num_ranks", "micro_batch"), [(1, None), (2, None), (3, 2)])
def test_ranks_with_damaged_chunks_step_like_one(volume, form, num_ranks, micro_batch, caplog):
    """The gradient is the mean over the samples that arrived on all ranks, and their number is known to each."""
    wanted = truth(volume)
    assert sum(lost for _, lost, _ in wanted) == 3
    for found in run_ranks(gradients, num_ranks, volume, form, micro_batch):
        for (arrived, lost, weight, grads), (true_count, true_lost, true_grads) in zip(found, wanted, strict=True):
            assert (arrived, lost, weight) == (true_count, true_lost, true_count)
            np.testing.assert_allclose(grads, true_grads, rtol=1e-9, atol=1e-12)


def test_counting_by_the_order_is_refused(volume):
    """counted=True would divide by samples that never came: refused at the first step, before any damage is met."""
    (message,) = run_ranks(_refused, 1, volume)
    assert "leave counted= out" in message


def _refused(world, volume):
    index = CropIndex(volume, shape=(4, 4, 4), fields={"image": Take(dtype="float32")})
    model = prepare(make_model(), world)
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.0), losses, world=world, counted=True)
    with IndexPipeline(index, order=Order(index, batch_size=4), world=world, on_bad_sample=3) as pipeline:
        try:
            for batches in pipeline:
                step(batches)
        except StepError as error:
            return str(error)
    return "nothing was refused"


def test_the_trainer_says_the_total(volume, caplog, tmp_path):
    """A run over damaged data ends well and says how much of it was left out; the log is not asked for it."""
    index = CropIndex(volume, shape=(4, 4, 4), fields={"image": Take(dtype="float32")})
    model = make_model()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01), losses, run=tmp_path, progress=False)
    with (
        caplog.at_level(logging.WARNING, "rankwise"),
        IndexPipeline(index, order=Order(index, batch_size=10), on_bad_sample=6) as pipeline,
    ):
        trainer.fit(pipeline, epochs=2)
    num_tiles = len(index)
    texts = [record.getMessage() for record in caplog.records]
    assert f"6 of {2 * num_tiles} samples were damaged and left out of the training" in texts
    assert "rank 0 skipped 6 damaged samples in total" in texts
    assert pipeline.stats.skipped == 6
    kept = json.loads((tmp_path / "findings.json").read_text())["1"]
    assert (kept["num_lost"], kept["guard"]) == (6, [])
    write_report([tmp_path], tmp_path / "page.html")
    assert f"6 samples by step {kept['num_steps']}" in (tmp_path / "page.html").read_text()
