"""What users of other tools try first is refused where it is written, with the mend in the message."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Mean, Order, Trainer, bind
from rankwise.checkpoint import Checkpointer
from rankwise.data.crops import CropIndex
from rankwise.data.rows import Loader
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.errors import ConfigError
from rankwise.metrics import reduce
from rankwise.train import prepare, windows

SOURCE = ArraySource({"x": np.zeros((6, 2), "f4"), "y": np.zeros(6, "i8")})
ORDER = Order(SOURCE, batch_size=4)


def loader(**options):
    return SampleLoader(SOURCE, order=ORDER, **options)


TRAINING = loader()


def step(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def trainer(**options):
    return trainer_of(nn.Linear(2, 2), **options)


def trainer_of(model, **options):
    return Trainer(model, torch.optim.SGD(model.parameters()), step, **{"run": False, "progress": False, **options})


MISTAKES = {
    "batch_size of a DataLoader": (lambda: SampleLoader(SOURCE, batch_size=4), TypeError, "order=Order.*batch_size="),
    "workers": (lambda: loader(num_workers=4), TypeError, "threads read .* DatasetLoader"),
    "no order": (lambda: SampleLoader(SOURCE), ConfigError, "SampleLoader needs order=.* got None"),
    "a number as order": (lambda: SampleLoader(SOURCE, order=4), ConfigError, "Order.*batch_size=64.; got 4"),
    "a step as batch": (lambda: next(iter(loader()))["x"], TypeError, r"tuple of micro-batches.*`for \(batch,\) in"),
    "no function": (lambda: loader(transform=5), ConfigError, r"transform\(fields, key\); got 5"),
    "one argument": (lambda: loader(batch_transform=lambda b: b), ConfigError, r"\(fields, keys\), which .*too many"),
    "no CUDA": (lambda: loader(device="cuda"), ConfigError, "torch finds no CUDA device"),
    "a slice": (lambda: SOURCE[0:3], TypeError, "one sample for an integer, got slice"),
    "a string of fields": (lambda: SOURCE.select("x"), ConfigError, r"list of names, such as \['x'\]"),
    "a source as loader": (lambda: trainer().fit(SOURCE), ConfigError, r"ArraySource.*SampleLoader\(source, order="),
    "an order as loader": (lambda: trainer().fit(ORDER), ConfigError, r"an Order, .*SampleLoader\(source, order="),
    "a source to validate": (lambda: trainer().fit(loader(), val=SOURCE), ConfigError, "ArraySource.*SampleLoader"),
    "the training loader to validate": (
        lambda: trainer().fit(TRAINING, val=TRAINING), ConfigError, "val= is the loader that trains",
    ),
    "a class as scheduler": (
        lambda: trainer(scheduler=torch.optim.lr_scheduler.StepLR), ConfigError, r"class StepLR.*StepLR\(optimizer, ",
    ),
    "weights on the meta device": (
        lambda: prepare(nn.Linear(2, 2, device="meta")), ConfigError, "weight, bias of it are on the meta .*to_empty",
    ),
    "float16 weights and a scaled loss": (
        lambda: trainer_of(nn.Linear(2, 2).half(), precision="fp16").fit(TRAINING),
        ConfigError,
        "2 trainable parameters are float16: weight, bias; .* keep the model in float32",
    ),
    "metrics without names": (lambda: reduce([Mean()]), ConfigError, "by name: .*; got a list"),
    "a number as shape of crops": (lambda: CropIndex("volume.zarr", shape=64), ConfigError, r"such as \(64, 64\)"),
    "a path as AnnData": (
        lambda: Loader(batch_size=4, chunk_size=4, preload_nchunks=1).add_adata("cells.zarr"), TypeError,
        "needs an AnnData, got str: .* use_collection",
    ),
    "a model as checkpoint": (
        lambda: Checkpointer("checkpoints").save(1, nn.Linear(2, 2)), ConfigError, "saved by name, .* got a Linear",
    ),
    "a number as model": (lambda: next(windows([torch.zeros(2, 2)], 2)), ConfigError, "a torch.nn.Module, got 2"),
    "a word as time limit": (lambda: trainer(max_seconds="1h"), ConfigError, "max_seconds must be a positive number"),
    "a word as seed": (lambda: bind(seed="x"), ConfigError, "seed must be an integer .* got 'x'"),
}  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="one of them is that there is no CUDA device")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_common_mistakes_name_their_mend(mistake, tmp_path, monkeypatch):
    """Before anything is read or trained, but for the step that is taken for a batch."""
    monkeypatch.chdir(tmp_path)
    act, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=message):
        act()


def test_steps_are_tuples():
    """A step can be unpacked, sliced and compared as any tuple."""
    (batch,) = step_of_loader = next(iter(loader(micro_batch=4)))
    assert step_of_loader[0] is batch
    assert step_of_loader[:1] == (batch,) == step_of_loader


def test_a_single_tracker_needs_no_list(caplog, tmp_path):
    """One name is no sequence of letters; and who writes nothing is told that trackers get nothing."""
    trainer(run=tmp_path / "run", trackers="tensorboard").fit(loader())
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    with caplog.at_level(logging.WARNING):
        trainer(trackers="tensorboard").fit(loader())
    assert "run=False keeps no numbers" in caplog.text
