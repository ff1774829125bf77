"""Loaders of other libraries through `Trainer.fit`, as uneven streams: every sample once, nobody waits for ever."""

import io
import tarfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset

from rankwise.errors import ConfigError
from rankwise.testing import run_ranks
from rankwise.train import Hooks, StreamLoader, Trainer, prepare, unwrapped

stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata, which the dev extra installs")
wds = pytest.importorskip("webdataset", reason="needs webdataset, which the dev extra installs")

NUM = 23
SHARDS = (3, 6, 1, 4, 5)  # samples of each: the ranks get 9 and 10 of them


class StruckError(Exception):
    pass


def make_trainer(world, run, width, strike_at=None):
    torch.manual_seed(0)
    model = prepare(nn.Linear(width, 1).double(), world)

    def step(model, batch):
        losses = model(batch[0])[:, 0] ** 2
        return losses, {"number": batch[1].double(), "square": batch[1].double() ** 2}

    def strike(trainer, report):
        if trainer.session.progressed.num_steps == strike_at:
            raise StruckError

    trainer = Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.05),
        step,
        world=world,
        run=run,
        hooks=Hooks(step_end=strike),
        save_every=2,
        progress=False,
    )
    return trainer, model


def fit_stateful(world, run, strike_at=None):
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(NUM, 4)))
    data = TensorDataset(x, torch.arange(NUM))
    sampler = DistributedSampler(data, num_replicas=world.world_size, rank=world.rank, seed=1)
    trainer, model = make_trainer(world, run, 4, strike_at)
    loader = stateful.StatefulDataLoader(data, batch_size=2, sampler=sampler)
    try:
        result = trainer.fit(loader, epochs=2)
    except StruckError:
        return None
    return torch.cat([p.detach().flatten() for p in unwrapped(model).parameters()]), dict(result.metrics)


def fit_twice(world, folder):
    whole = fit_stateful(world, f"{folder}/whole")
    assert fit_stateful(world, f"{folder}/struck", strike_at=5) is None
    return whole, fit_stateful(world, f"{folder}/struck")


def test_a_stateful_dataloader_goes_on_in_mid_epoch(tmp_path):
    """A StatefulDataLoader, stopped in mid-epoch at 2 ranks: the undisturbed run's bits, each sample once."""
    for whole, again in run_ranks(fit_twice, 2, str(tmp_path)):
        assert torch.equal(whole[0], again[0])
        assert whole[1] == again[1]
        assert whole[1]["number"] == pytest.approx((NUM - 1) / 2, rel=1e-12)
        assert whole[1]["square"] == pytest.approx(float(np.mean(np.arange(NUM) ** 2)), rel=1e-12)


def shuffled(world):
    with pytest.raises(ConfigError, match="2 ranks would read every sample in an order of its own"):
        StreamLoader(stateful.StatefulDataLoader(TensorDataset(torch.zeros(8, 1)), shuffle=True), world=world)


def test_a_stateful_dataloader_that_shuffles_on_each_rank_is_refused():
    """Its samplers are torchdata's own, and are known by what they do."""
    run_ranks(shuffled, 2)


def write_shards(folder):
    number = 0
    for shard, size in enumerate(SHARDS):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for _ in range(size):
                content = io.BytesIO()
                np.save(content, np.full(3, number / 10))
                for name, raw in (("npy", content.getvalue()), ("cls", str(number).encode())):
                    entry = tarfile.TarInfo(f"{number:06d}.{name}")
                    entry.size = len(raw)
                    tar.addfile(entry, io.BytesIO(raw))
                number += 1
    return [str(folder / f"{shard:03d}.tar") for shard in range(len(SHARDS))]


def fit_shards(world, urls):
    dataset = wds.WebDataset(urls, shardshuffle=False, nodesplitter=wds.split_by_node, empty_check=False)
    dataset = dataset.decode().to_tuple("npy", "cls").batched(2)
    trainer, _ = make_trainer(world, False, 3)
    result = trainer.fit(wds.WebLoader(dataset, batch_size=None, num_workers=0), epochs=2)
    return result.num_steps, dict(result.metrics)


def test_webdataset_shards_of_unequal_size_train_to_their_end(tmp_path):
    """Shards dealt out to 2 ranks by WebDataset itself: unequal lengths, every sample once, and all ranks end."""
    total = sum(SHARDS)
    for num_steps, metrics in run_ranks(fit_shards, 2, write_shards(tmp_path)):
        assert num_steps == 2 * 5
        assert metrics["number"] == pytest.approx((total - 1) / 2, rel=1e-12)
        assert metrics["square"] == pytest.approx(float(np.mean(np.arange(total) ** 2)), rel=1e-12)
