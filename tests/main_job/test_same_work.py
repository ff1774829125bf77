"""Promises 1 to 4 on real data: the digits example at 1, 2 and 3 ranks and 1, 2 and 4 micro-batches is one training."""

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest
import torch

import rankwise
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.testing import run_ranks
from rankwise.train import Hooks, unwrapped
from rankwise.world import World

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
BATCH, EPOCHS = 100, 2  # 1,437 training samples: the last global batch of an epoch has 37


def load_example(name):
    spec = importlib.util.spec_from_file_location(f"digits_{name}", DIGITS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "digits.zarr"
    load_example("data").write_store(path)
    return str(path)


def train(world, store, num_micro, dtype):
    """Train the digits example; return what happened at each step and what came out."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    example = load_example("train")
    source, held_out = (ArraySource.open(f"{store}/{part}", fields=("image", "label")) for part in ("train", "val"))
    largest = -(-BATCH // world.world_size)
    loader = SampleLoader(
        source, order=rankwise.Order(source, batch_size=BATCH), micro_batch=-(-largest // num_micro), world=world
    )
    val = SampleLoader(held_out, order=rankwise.Order(held_out, batch_size=70, kind="sequential"), world=world)
    model = example.make_model().to(dtype)
    ids, micro, losses = [], [], []

    def step(model, batch):
        if model.training:
            micro.append(batch.ids.tolist())
        return example.step(model, batch)

    def step_end(_trainer, _report):
        ids.append(sorted(itertools.chain(*micro[-steps_micro[len(ids)] :])))

    def log(_trainer, _step, values):
        losses.append((values["loss"], values["accuracy"]))

    # the last batch of an epoch may be cut into fewer micro-batches; the loader knows
    steps_micro = [len(b) for _ in range(EPOCHS) for b in loader]
    trainer = rankwise.Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        step,
        world=world,
        run=False,
        progress=False,
        log_every=1,
        hooks=Hooks(step_end=step_end, log=log),
    )
    result = trainer.fit(loader, val=val, epochs=EPOCHS)
    parameters = torch.cat([p.detach().flatten() for p in unwrapped(trainer.model).parameters()])
    return {"ids": ids, "losses": losses, "parameters": parameters, "metrics": dict(result.metrics)}


def run(store, num_ranks, num_micro, dtype):
    if num_ranks == 1:
        return [train(World.single(), store, num_micro, dtype)]
    return run_ranks(train, num_ranks, store, num_micro, dtype)


_one = {}


def one_rank(store, dtype):
    """One rank, one micro-batch: what all others are held against."""
    if dtype not in _one:
        _one[dtype] = run(store, 1, 1, dtype)[0]
    return _one[dtype]


SLOW = [pytest.param(*cut, marks=pytest.mark.slow) for cut in [(1, 2), (2, 1), (3, 4)]]
CUTS = [(1, 4), (2, 2), (3, 1), *SLOW]


@pytest.mark.parametrize(("num_ranks", "num_micro"), CUTS)
def test_float64_is_one_training(num_ranks, num_micro, store):
    """Ids per step equal; losses within 1e-10 and parameters within 1e-9 over the whole run; metrics identical."""
    wanted = one_rank(store, torch.float64)
    results = run(store, num_ranks, num_micro, torch.float64)
    for index, ids in enumerate(wanted["ids"]):
        assert sorted(itertools.chain(*(r["ids"][index] for r in results))) == ids
    for result in results:
        assert len(result["losses"]) == len(wanted["losses"]) == 2 * 15
        for (loss, accuracy), (wanted_loss, wanted_accuracy) in zip(result["losses"], wanted["losses"], strict=True):
            assert loss == pytest.approx(wanted_loss, rel=0, abs=1e-10)
            assert accuracy == wanted_accuracy
        torch.testing.assert_close(result["parameters"], wanted["parameters"], rtol=0, atol=1e-9)
        assert result["metrics"]["val_accuracy"] == wanted["metrics"]["val_accuracy"]
        assert result["metrics"]["accuracy"] == wanted["metrics"]["accuracy"]
        assert result["metrics"] == pytest.approx(wanted["metrics"], rel=0, abs=1e-10)


@pytest.mark.parametrize(
    ("num_ranks", "num_micro"), [(3, 2), *(pytest.param(*cut, marks=pytest.mark.slow) for cut in [(1, 4), (2, 1)])]
)
def test_float32_follows_for_twenty_steps(num_ranks, num_micro, store):
    """Ids per step equal; losses within 1e-5 (relative) over the first 20 steps: later float32 runs drift apart."""
    wanted = one_rank(store, torch.float32)
    results = run(store, num_ranks, num_micro, torch.float32)
    for index, ids in enumerate(wanted["ids"]):
        assert sorted(itertools.chain(*(r["ids"][index] for r in results))) == ids
    for got, want in zip(results[0]["losses"][:20], wanted["losses"][:20], strict=True):
        assert got[0] == pytest.approx(want[0], rel=1e-5)
