"""Data of unknown and unequal lengths: every sample once, exact steps, no rank waits; DataLoaders in the trainer."""

import logging
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, TensorDataset

from rankwise.errors import ConfigError, RankwiseError, StepError
from rankwise.testing import run_ranks
from rankwise.train import ExactStep, Hooks, StreamLoader, Trainer, evaluate, prepare, unwrapped, windows
from rankwise.train.loaders.streams import after_step, counted_samples
from rankwise.world import World

SIZES = {0: [3, 1, 4, 2, 2, 5, 1], 1: [2, 4], 2: []}  # samples of each batch of each rank
NUM_SAMPLES = 23


def values_of(rank, index, size):
    return torch.from_numpy(np.random.default_rng((rank, index)).normal(size=(size, 4)))


class Stream:
    """Batches of one rank; begins anew with each iteration, and knows where it stands."""

    def __init__(self, rank, sizes):
        self.rank, self.sizes, self.at = rank, sizes, 0

    def __iter__(self):
        begin, self.at = self.at, 0
        for index in range(begin, len(self.sizes)):
            self.at = index + 1
            yield {"x": values_of(self.rank, index, self.sizes[index])}
        self.at = 0


class StatefulStream(Stream):
    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def make_model(norm=False):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    middle = nn.BatchNorm1d(3) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 3), middle, nn.Linear(3, 1)).double()


def squares(model, batch):
    losses = model(batch["x"])[:, 0] ** 2
    return losses, {"twice": 2 * losses}


def parameters_of(model):
    return torch.cat([p.detach().flatten() for p in unwrapped(model).parameters()])


def by_exact_step(world, num_micro):
    """Two epochs; returns the parameters, the steps, the samples and the collectives of each step."""
    model = prepare(make_model(), world)
    step = ExactStep(model, torch.optim.AdamW(model.parameters(), lr=0.1), squares, world=world)
    stream = StreamLoader(Stream(world.rank, SIZES[world.rank]), world=world, num_micro=num_micro)
    seen, calls = [], []
    for epoch in range(2):
        stream.set_epoch(epoch)
        for batches in stream:
            before = world.channel.calls
            with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduced:
                report = step(batches)
            calls.append((reduced.call_count, world.channel.calls - before))
            stream.mark_done(report.resume)
            seen.append(report.num_samples)
    return parameters_of(model), seen, calls


def by_windows(world, num_micro):
    model = prepare(make_model(), world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    stream = StreamLoader(Stream(world.rank, SIZES[world.rank]), world=world, num_micro=num_micro)
    seen = []
    for _ in range(2):
        for window in windows(stream, model, world):
            optimizer.zero_grad()
            for batch in window:
                with window.micro_batch():
                    losses = model(batch["x"])[:, 0] ** 2
                    window.backward(losses.sum(), weight=len(losses))
            window.finish()
            optimizer.step()
            seen.append(window.num_samples)
    return parameters_of(model), seen


def one_process(num_ranks, num_micro):
    """The same steps, each over all that the ranks hold for it, in one process with plain torch."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen = []
    num_steps = max(-(-len(SIZES[rank]) // num_micro) for rank in range(num_ranks))
    for _ in range(2):
        for step in range(num_steps):
            held = [
                values_of(rank, index, SIZES[rank][index])
                for rank in range(num_ranks)
                for index in range(step * num_micro, min((step + 1) * num_micro, len(SIZES[rank])))
            ]
            x = torch.cat(held)
            optimizer.zero_grad()
            (model(x)[:, 0] ** 2).mean().backward()
            optimizer.step()
            seen.append(len(x))
    return parameters_of(model), seen


@pytest.mark.parametrize("num_micro", [1, 2])
def test_unequal_lengths_train_like_one_process(num_micro):
    """Ranks of 7, 2 and 0 batches, tails of windows included: one process's parameters within 1e-12, every sample once.

    And not one collective more than the all-reduce of the weights.
    """
    wanted, samples = one_process(3, num_micro)
    for got, seen, calls in run_ranks(by_exact_step, 3, num_micro):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
        assert seen == samples
        assert set(calls[1:]) == {(1, 0)}  # the first step compares notes
    for got, seen in run_ranks(by_windows, 3, num_micro):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
        assert seen == samples


def batch_statistics(world, sync=False):
    model = prepare(make_model(norm=True), world, sync_batchnorm=sync)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes = {0: [3], 1: [4, 5, 2], 2: [2]}[world.rank]
    for window in windows(Stream(world.rank, sizes), model, world):
        optimizer.zero_grad()
        for batch in window:
            with window.micro_batch():
                losses = model(batch["x"])[:, 0] ** 2
                window.backward(losses.sum(), weight=len(losses))
        window.finish()
        optimizer.step()
    return int(unwrapped(model)[1].num_batches_tracked), unwrapped(model)[1].running_mean, parameters_of(model)


def joined_statistics():
    """The same in one process, with all batches of a step as one."""
    model = make_model(norm=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for held in ([(0, 0, 3), (1, 0, 4), (2, 0, 2)], [(1, 1, 5)], [(1, 2, 2)]):
        optimizer.zero_grad()
        (model(torch.cat([values_of(*which) for which in held]))[:, 0] ** 2).mean().backward()
        optimizer.step()
    return model[1].running_mean, parameters_of(model)


def both_statistics(world):
    return batch_statistics(world), batch_statistics(world, sync=True)


def test_stand_ins_leave_batch_statistics_alone():
    """The rank that has ended runs forward for the others, and its running statistics stand still.

    Statistics over all ranks go on, without what stands in: those of one process.
    """
    ranks = run_ranks(both_statistics, 3)
    assert ranks[0][0][0] == 1
    for _, (count, *found) in ranks:
        assert count == 3
        torch.testing.assert_close(tuple(found), joined_statistics(), rtol=1e-12, atol=1e-12)


def sharded(world):
    """Steps and evaluation of a model whose forward is a collective; uneven shares in both."""
    model = prepare(make_model(), world, strategy="fsdp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step = ExactStep(model, optimizer, squares, world=world)
    stream = StreamLoader(Stream(world.rank, SIZES[world.rank]), world=world)
    for batches in stream:
        stream.mark_done(step(batches).resume)
    return evaluate(model, Stream(world.rank, SIZES[world.rank]), squares, world=world)


def test_sharded_models_stay_together():
    """FSDP gathers in each forward: ranks without data take part in steps and evaluation; the loss is one process's."""
    everything = torch.cat([values_of(rank, i, n) for rank, sizes in SIZES.items() for i, n in enumerate(sizes)])
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for index in range(len(SIZES[0])):
        held = [values_of(rank, index, sizes[index]) for rank, sizes in SIZES.items() if index < len(sizes)]
        optimizer.zero_grad()
        (model(torch.cat(held))[:, 0] ** 2).mean().backward()
        optimizer.step()
    wanted = float((model(everything)[:, 0] ** 2).mean().detach())
    for found in run_ranks(sharded, 3):
        assert found["loss"] == pytest.approx(wanted, rel=1e-12)


def points():
    rng = np.random.default_rng(5)
    return TensorDataset(torch.from_numpy(rng.normal(size=(NUM_SAMPLES, 4))))


def of_first(model, batch):
    losses = model(batch[0])[:, 0] ** 2
    return losses, {"twice": 2 * losses}


def distributed_loader(world, batch_size):
    sampler = DistributedSampler(points(), num_replicas=world.world_size, rank=world.rank, seed=3)
    return DataLoader(points(), batch_size=batch_size // world.world_size, sampler=sampler)


def fit(world, run, stop_after=None):
    model = prepare(make_model(), world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def stop(trainer, report):
        if trainer.session.progressed.num_steps == stop_after:
            raise InterruptedError

    options = {"progress": False, "save_every": 1, "log_every": 2, "hooks": Hooks(step_end=stop)}
    trainer = Trainer(model, optimizer, of_first, world=world, run=run, **options)
    val = DataLoader(points(), batch_size=5)
    result = trainer.fit(distributed_loader(world, 6), val=val, epochs=3)
    return parameters_of(model), dict(result.metrics), result.num_steps


def fit_in_two(world, run):
    with pytest.raises(InterruptedError):
        fit(world, run, stop_after=6)  # four steps an epoch: in the middle of the second
    return fit(world, run)


def test_a_dataloader_trains_in_the_trainer(tmp_path, caplog):
    """`fit(DataLoader)` on three ranks ends within 1e-12 of one, with its metrics; what it cannot promise is said once.

    So the sampler hears the epoch, the sample that it repeats is taken out, and a plain validation loader is dealt out.
    """
    with caplog.at_level(logging.WARNING, logger="rankwise.train"):
        wanted, metrics, num_steps = fit(World.single(), tmp_path / "one")
    said = [record.getMessage() for record in caplog.records if "training from a DataLoader" in record.getMessage()]
    assert len(said) == 1
    for part in ("number of ranks", "mid-epoch", "DatasetLoader(dataset, order=Order("):
        assert part in said[0]
    assert num_steps == 3 * 4
    for got, found, steps in run_ranks(fit, 3, tmp_path / "three"):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
        assert steps == num_steps
        assert found == pytest.approx(metrics, rel=1e-12)


def test_a_dataloader_goes_on_in_mid_epoch(tmp_path):
    """Stopped in mid-epoch and continued at the same world size: the undisturbed run, to the bit."""
    wanted = run_ranks(fit, 3, tmp_path / "whole")
    for (got, _, steps), (whole, _, all_steps) in zip(run_ranks(fit_in_two, 3, tmp_path / "two"), wanted, strict=True):
        assert torch.equal(got, whole)
        assert steps == all_steps


def epochs_of(stream, *, stop=None):
    """The batches' sums, until `stop` steps are done."""
    sums = []
    for steps, batches in enumerate(stream, start=1):
        sums += [float(batch["x"].sum()) for batch in batches if len(batch.ids)]
        stream.mark_done(after_step(batches[0], counted_samples(batches))[1])
        if steps == stop:
            break
    return sums


def test_a_state_of_its_own_is_used():
    """An iterable with a state goes on where its last completed step ended, although a batch was pulled ahead."""
    whole = epochs_of(StreamLoader(StatefulStream(0, SIZES[0]), world=World.single(), num_micro=2))
    first = StreamLoader(StatefulStream(0, SIZES[0]), world=World.single(), num_micro=2)
    begun = epochs_of(first, stop=2)
    second = StreamLoader(StatefulStream(0, SIZES[0]), world=World.single(), num_micro=2)
    second.load_state_dict(first.state_dict())
    second.rank_state.load_state_dict(first.rank_state.state_dict())
    assert begun + epochs_of(second) == whole
    assert len(whole) == 7


def test_what_cannot_go_on_begins_its_epoch_again(caplog):
    """Without a state and a known order, or at another world size, the epoch begins again, which is said."""
    first = StreamLoader(Stream(0, SIZES[0]), world=World.single())
    epochs_of(first, stop=3)
    second = StreamLoader(Stream(0, SIZES[0]), world=World.single())
    second.load_state_dict(first.state_dict())
    assert second.state_dict()["position"] == 0
    known = StreamLoader(DataLoader(points(), batch_size=2), world=World.single())
    known.load_state_dict({**known.state_dict(), "position": 3, "world_size": 2})
    assert known.state_dict()["position"] == 0
    said = [record.getMessage() for record in caplog.records]
    assert any(
        "starts again after 3 of its steps, so their samples are used twice: these data have no state" in s
        for s in said
    )
    assert any("world_size was 2 and is 1" in s for s in said)


def refused(world):
    def said_of(make):
        try:
            make()
        except RankwiseError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    dataset, model = points(), prepare(make_model(), world)
    other = DistributedSampler(dataset, num_replicas=3, rank=0)
    shuffled, same = DataLoader(dataset, shuffle=True), Stream(0, [3, 3])
    gone = iter([])
    return {
        "shuffled": said_of(lambda: evaluate(model, shuffled, of_first, world=world)),
        "other rank": said_of(lambda: StreamLoader(DataLoader(dataset, sampler=other), world=world)),
        "same": said_of(lambda: next(iter(StreamLoader(same, world=world)))),
        "meant": said_of(lambda: next(iter(StreamLoader(same, world=world, distinct=False)))),
        "gone": said_of(lambda: next(iter(StreamLoader(gone, world=world)))),
        "micro": said_of(lambda: StreamLoader(same, world=world, num_micro=1 + world.rank)),
        "own": said_of(lambda: StreamLoader(DataLoader(StreamLoader(same, world=World.single())), world=world)),
    }


def test_what_would_not_share_is_refused():
    """On every rank, before a step: shuffles of each rank's own, samplers of other ranks, equal or ended data."""
    for found in run_ranks(refused, 3):
        assert "an epoch would show each sample 3 times" in found["shuffled"]
        assert "DistributedSampler" in found["shuffled"]
        assert "rank 1: the DistributedSampler was made for rank 0 of 3, but this is rank 1 of" in found["other rank"]
        assert "is bit for bit the same on all 3 ranks" in found["same"]
        assert found["meant"] == "nothing"
        assert "no rank got a batch in epoch 0" in found["gone"]
        assert "num_micro=3" in found["micro"]
        assert "wraps a StreamLoader: pass the StreamLoader itself" in found["own"]


def test_a_step_that_is_not_marked_is_told():
    """Without mark_done nobody would know the end."""
    steps = iter(StreamLoader(Stream(0, [2, 2]), world=World.single()))
    next(steps)
    with pytest.raises(StepError, match="needs mark_done"):
        next(steps)


def test_batches_that_cannot_be_counted_or_cut_are_told():
    """What has no first axis wants count=; a repeated sample in such a batch wants another sampler."""
    with pytest.raises(ConfigError, match=r"count=\.\.\."):
        next(iter(StreamLoader([object()], world=World.single())))
    assert len(next(iter(StreamLoader([{"n": 3}], world=World.single(), count=lambda batch: batch["n"])))[0].ids) == 3
    world = World.single()
    loader = DataLoader(points(), batch_size=4, sampler=DistributedSampler(points(), num_replicas=1, rank=0))
    assert sum(len(b.ids) for (b,) in StreamLoader(loader, world=world, lockstep=False)) == NUM_SAMPLES
    nested = DataLoader(points(), batch_sampler=BatchSampler(RandomSampler(points()), 5, drop_last=True))
    assert sum(len(b.ids) for (b,) in StreamLoader(nested, world=world, lockstep=False)) == 20
