"""The moving average of the weights: its formula, on every rank, in checkpoints, and out of the way."""

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.errors import CheckpointError, ConfigError
from rankwise.testing import ArrayLoader, run_ranks
from rankwise.train import EMA, ExactStep, Trainer, evaluate, prepare
from rankwise.world import World

NUM_SAMPLES = 24


def make_model():
    torch.manual_seed(0)
    return nn.Linear(3, 1).double()


def squares(model, batch):
    masked = batch.share.step.index == 2  # no weight: the step is skipped
    return (model(batch["x"])[:, 0] ** 2).sum() * (not masked), 0 if masked else len(batch.ids)


def loader_of(world):
    arrays = {"x": np.random.default_rng(1).normal(size=(NUM_SAMPLES, 3))}
    order = Order(NUM_SAMPLES, batch_size=4, seed=2)
    return ArrayLoader(arrays, order, seed=2, rank=world.rank, world_size=world.world_size)


def averaged(world):
    """The average of an own loop, that of the formula, and losses of both kinds of weights."""
    model = prepare(make_model(), world)
    ema, wanted, count = EMA(model, decay=0.4), [p.detach().clone() for p in model.parameters()], 0
    step = ExactStep(model, torch.optim.SGD(model.parameters(), lr=0.1), squares, world=world)
    for batches in loader_of(world):
        report = step(batches)
        ema.update(report)
        count += report.weight > 0
        decay = min(0.4, (1 + count) / (10 + count))
        if report.weight:
            wanted = [decay * w + (1 - decay) * p.detach() for w, p in zip(wanted, model.parameters(), strict=True)]
    before = [p.detach().clone() for p in model.parameters()]
    with ema.applied():
        inside = [p.detach().clone() for p in model.parameters()]
        loss = evaluate(model, loader_of(world), squares, world=world)["loss"]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert ema.num_updates == count == 5
    return inside, wanted, loss


def test_it_is_the_formula_on_every_rank():
    """Skipped steps do not count; the model gets its own weights back; 2 ranks have the average of one."""
    alone, _, loss = averaged(World.single())
    for inside, wanted, found in run_ranks(averaged, 2):
        torch.testing.assert_close(inside, wanted, rtol=1e-14, atol=1e-15)
        torch.testing.assert_close(inside, alone, rtol=1e-12, atol=1e-13)
        assert found == pytest.approx(loss, rel=1e-12)


def test_averages_of_half_precision_move():
    """By less than bfloat16 can tell at each step: they are kept in float32, and the model gets its own dtype."""
    model = nn.Linear(2, 1, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    ema = EMA(model, decay=0.999, ramp=False)
    nn.init.constant_(model.weight, 2.0)
    for _ in range(1000):
        ema.update()
    again = EMA(model)
    again.load_state_dict(ema.state_dict())
    with again.applied():
        assert model.weight.dtype == torch.bfloat16
        assert model.weight[0, 0].item() == pytest.approx(2 - 0.999**1000, rel=2**-8)
    assert model.weight.tolist() == [[2.0, 2.0]]


def test_complex_weights_are_averaged_too():
    """Beside real ones, by the same formula."""
    model = nn.ParameterDict({"real": torch.ones(2), "complex": torch.full((2,), 1 + 1j)})
    ema = EMA(model, decay=0.5, ramp=False)
    with torch.no_grad():
        model["real"].mul_(3)
        model["complex"].mul_(3j)
    ema.update()
    with ema.applied():
        assert model["real"].tolist() == [2.0, 2.0]
        assert model["complex"].tolist() == [-1 + 2j] * 2


def test_a_training_begins_with_its_own_weights():
    """Those that came after the average was made, by init_from= or from rank 0, and not those before."""
    model = make_model()
    ema = EMA(model, decay=0.9, ramp=False)
    nn.init.constant_(model.weight, 100.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    Trainer(model, optimizer, squares, world=World.single(), run=False, progress=False, hooks=[ema]).fit(
        loader_of(World.single())
    )
    assert ema.state_dict()["averages"]["weight"].tolist() == [[100.0, 100.0, 100.0]]


def fitted(folder, fail_at=None):
    model = make_model()
    ema = EMA(model)
    seen = []

    class Fails:
        def step_end(self, _, report):
            seen.append(report)
            if len(seen) == fail_at:
                raise RuntimeError("stopped")

    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        squares,
        world=World.single(),
        run=folder,
        save_every=1,
        progress=False,
        hooks=[ema, Fails()],
    )
    trainer.fit(loader_of(World.single()), epochs=2)
    return ema.state_dict()


def test_a_run_that_goes_on_has_its_average(tmp_path):
    """It is a hook that the checkpoints keep: bits of the undisturbed run."""
    whole = fitted(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped"):
        fitted(tmp_path / "cut", fail_at=8)
    resumed = fitted(tmp_path / "cut")
    assert resumed["num_updates"] == whole["num_updates"] == 10
    assert all(torch.equal(value, whole["averages"][name]) for name, value in resumed["averages"].items())


def test_averages_of_another_model_are_refused():
    """At loading, by shape and by name; and in a trainer of another model."""
    ema = EMA(make_model())
    with pytest.raises(CheckpointError, match=r"another model.*weight.*\[1, 3\].*\[1, 4\]"):
        ema.load_state_dict(EMA(nn.Linear(4, 1)).state_dict())
    with pytest.raises(CheckpointError, match="none are stored for bias"):
        ema.load_state_dict(EMA(nn.Linear(3, 1, bias=False)).state_dict())
    with pytest.raises(ConfigError, match="decay must be at least 0"):
        EMA(make_model(), decay=1.0)
    model = make_model()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), squares, run=False, hooks=[ema])
    with pytest.raises(ConfigError, match="a model that is not the trained one"):
        trainer.fit(loader_of(World.single()))
