"""Training on one CUDA device: choice of the device, NCCL, the exact step, autocast, and going on to the bit."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch import nn

import rankwise
from rankwise import Order
from rankwise.data.samples import ArraySource, SampleLoader
from rankwise.testing.held_ports import hold_port
from rankwise.train import ExactStep

pytestmark = pytest.mark.gpu


def data(num_samples=300):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(num_samples, 16))
    return {"x": x, "y": (x[:, :1] ** 2).sum(1)}


def model_of(dtype=torch.float64, device="cuda"):
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device=device, dtype=dtype)


def squared(model, batch):
    return (model(batch["x"]).squeeze(1) - batch["y"]) ** 2


def train(world, device, *, micro_batch=None, step_fn=squared, dtype=torch.float64, steps=12):
    """Weights and losses after some exact steps of 40 samples; the last one of an epoch of 300 has 20."""
    source = ArraySource(data())
    loader = SampleLoader(
        source, order=Order(source, batch_size=40, seed=5), device=device, micro_batch=micro_batch, world=world
    )
    model = model_of(dtype, device)
    step = ExactStep(
        rankwise.prepare(model, world), torch.optim.AdamW(model.parameters(), lr=1e-2), step_fn, world=world
    )
    losses = []
    while len(losses) < steps:
        for batches in loader:
            total, weight = step(batches).loss
            losses.append(float(total) / float(weight))
            if len(losses) == steps:
                break
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double().cpu(), losses


def test_the_device_is_chosen_and_nccl_stands_beside_gloo():
    """`device="auto"` takes CUDA and makes it current; trees of CPU and CUDA tensors reduce in one call."""
    with rankwise.bind(always_group=True) as world:
        assert world.device == torch.device("cuda", torch.cuda.current_device())
        assert world.backend == "cpu:gloo,cuda:nccl"
        for size in (3, 3000):
            found = world.all_reduce({"gpu": torch.ones(size, device=world.device), "cpu": torch.ones(size)})
            assert found["gpu"].device == world.device
            assert found["cpu"].device.type == "cpu"
            assert world.all_gather(found)[0]["gpu"].sum() == size
        assert world.broadcast({"half": torch.ones(3, dtype=torch.bfloat16, device=world.device)})["half"].is_cuda
        world.barrier()


def test_collectives_of_nccl_itself():
    """A large reduction, a gather and a broadcast go over NCCL's own stream and come back right."""
    import torch.distributed as dist

    with rankwise.bind(always_group=True) as world:
        big = torch.arange(5_000_000, dtype=torch.float32, device=world.device)
        wanted = big.clone()
        dist.all_reduce(big)
        assert torch.equal(big, wanted)
        assert dist.get_backend_config().count("nccl") == 1
        (part,) = world.all_gather(big)
        assert torch.equal(part, wanted)


SHARED = """
    import json, sys, torch, rankwise
    options = json.loads(sys.argv[1])
    try:
        with rankwise.bind(device="cuda:0", timeout=60, **options) as world:
            print(world.all_reduce({"n": 1, "t": torch.ones(2000)})["n"])
    except rankwise.WorldError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "ranks 0 and 1 are both on GPU"), ({"allow_shared_device": True, "backend": "gloo"}, "2")],
)
def test_two_ranks_on_one_gpu_are_refused_unless_asked_for(tmp_path, options, message):
    """NCCL would hang or fail; the meeting says which ranks and which GPU, and gloo works where it was asked for."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SHARED))
    port = str(hold_port())
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, json.dumps(options)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert message in rank.communicate(timeout=240)[0]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize("micro_batch", [None, 7])
def test_exact_steps_equal_those_of_the_cpu(micro_batch):
    """DDP over NCCL, ragged last batches, micro-batches of 7: float64 weights and losses of the CPU within 1e-9."""
    with rankwise.bind(always_group=True) as world:
        weights, losses = train(world, "cuda", micro_batch=micro_batch)
    plain, plain_losses = train(rankwise.World.single(), "cpu")
    torch.testing.assert_close(weights, plain, rtol=0, atol=1e-9)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-9)


def test_two_runs_are_equal_to_the_bit():
    """The same steps twice on one device: equal bits, though batches were read and copied at other moments."""
    with rankwise.bind(always_group=True) as world:
        first, second = (train(world, "cuda", dtype=torch.float64) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_exact_mean(dtype):
    """Under autocast micro-batches of 7 give the step of whole batches within the tolerance of the type."""

    def half(model, batch):
        with torch.autocast("cuda", dtype=dtype):
            out = model(batch["x"].float()).squeeze(1)
        return (out.float() - batch["y"].float()) ** 2

    with rankwise.bind(always_group=True) as world:
        whole, losses = train(world, "cuda", step_fn=half, dtype=torch.float32, steps=6)
        parts, part_losses = train(world, "cuda", step_fn=half, dtype=torch.float32, steps=6, micro_batch=7)
    np.testing.assert_allclose(part_losses, losses, rtol=2e-2)
    torch.testing.assert_close(parts, whole, rtol=0, atol=2e-2)
    assert np.isfinite(losses).all()


class StoppedError(Exception):
    """The end of a run that is stopped."""


def fit(folder, *, stop_at=None):
    """Train two epochs with dropout on the GPU, or until a step; return the weights."""
    steps = []

    def stop(_trainer, _report):
        steps.append(1)
        if len(steps) == stop_at:
            raise StoppedError

    torch.manual_seed(2)
    source = ArraySource(data())
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    hooks = rankwise.train.Hooks(step_end=stop)
    trainer = rankwise.Trainer(model, optimizer, squared, run=folder, progress=False, save_every=3, hooks=hooks)
    trainer.fit(SampleLoader(source, order=Order(source, batch_size=40, seed=5)), epochs=2)
    assert next(model.parameters()).is_cuda
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


def test_a_stopped_run_goes_on_to_the_bit(tmp_path):
    """Stopped in mid-epoch and started again: weights, moments and CUDA's random generator continue, equal bits."""
    with rankwise.bind(always_group=True):
        whole = fit(tmp_path / "whole")
    with pytest.raises(StoppedError), rankwise.bind(always_group=True):
        fit(tmp_path / "parts", stop_at=7)
    with rankwise.bind(always_group=True):
        parts = fit(tmp_path / "parts")
    assert torch.equal(whole, parts)


def test_metrics_of_cuda_tensors():
    """Counters and sums take CUDA tensors and come back as numbers, in one reduction."""
    from rankwise import Mean
    from rankwise.metrics import reduce

    with rankwise.bind(always_group=True) as world:
        mean = Mean()
        mean.update(torch.arange(10.0, device=world.device))
        mean.update(torch.tensor([20.0], device=world.device))
        assert float(reduce({"mean": mean}, world)["mean"]) == pytest.approx(65 / 11)
