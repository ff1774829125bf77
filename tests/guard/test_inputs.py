"""What ranks are fed: samples that two of them see, lengths that differ, epochs, devices, random streams, NaN."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from rankwise import guarded
from rankwise.errors import GuardError
from rankwise.guard import Finding
from rankwise.guard.check import CheckedStep, Subject
from rankwise.guard.inputs import Samples
from rankwise.testing import run_ranks
from rankwise.world import World

DATA = TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(0)))


class Net(nn.Module):
    def __init__(self, drop=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.drop, self.head = nn.Linear(4, 8), nn.Dropout(drop), nn.Linear(8, 2)
        self.poison = lambda hidden: hidden

    def forward(self, x):
        return self.head(self.poison(self.drop(self.body(x)).tanh()))


def train(world, loader, *, net=None, epochs=1, loss=None, begin=None, each=None, **options):
    """A plain loop over a DataLoader, watched; returns what was found, and what was raised."""
    model = DistributedDataParallel(net or Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if begin is not None:
        begin()
    plain, caught, guard = type(loader), None, None
    try:
        guard = guarded(model, optimizer=optimizer, loader=loader, loss=loss, world=world, **options)
        for epoch in range(epochs):
            if each is not None:
                each(epoch)
            for (x,) in loader:
                optimizer.zero_grad()
                out = model(x)
                (out.square().mean() if loss is None else loss(out, torch.zeros(len(x), dtype=torch.long))).backward()
                optimizer.step()
    except GuardError as error:
        caught = error
    found = list(caught.findings) if guard is None else guard.findings
    if guard is not None:
        guard.close()
    assert type(loader) is plain
    return {"raised": str(caught or ""), "found": found}


def dealt(world, **options):
    return DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, **options))


def generator(seed):
    return torch.Generator().manual_seed(seed)


CASES = {}


def case(fn):
    """A case of the one call on the ranks."""
    CASES[fn.__name__] = fn
    return fn


@case
def good_dealt(world):
    loader = dealt(world)
    return train(world, loader, epochs=2, each=loader.sampler.set_epoch)


@case
def good_own_halves(world):
    """Each rank has data of its own: a loader over all of them is no epoch that is too long."""
    half = Subset(DATA, range(world.rank * 24, world.rank * 24 + 24))
    loader = DataLoader(half, batch_size=4, shuffle=True, generator=generator(world.rank))
    return train(world, loader, epochs=2)


@case
def good_few_kinds_of_rows(world):
    """Rows that repeat by themselves coincide on all ranks, without being the same samples."""
    bits = TensorDataset(torch.tensor([[0.0, 0, 0, 1], [1.0, 0, 0, 1]]).repeat(24, 1))
    return train(world, DataLoader(bits, batch_size=8, sampler=DistributedSampler(bits, shuffle=False)))


@case
def good_dropout(world):
    return train(world, dealt(world), net=Net(0.5), begin=lambda: torch.manual_seed(1 + world.rank))


@case
def good_random_draws(world):
    def draw(_):
        random.random()
        np.random.random()  # noqa: NPY002

    def seed():
        random.seed(world.rank)
        np.random.seed(world.rank)  # noqa: NPY002

    loader = dealt(world)
    return train(world, loader, begin=seed, each=lambda e: (loader.sampler.set_epoch(e), draw(e)), epochs=3)


@case
def good_loss_module(world):
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
    return train(world, dealt(world), loss=loss)


@case
def same_seed_without_sampler(world):
    return train(world, DataLoader(DATA, batch_size=4, shuffle=True, generator=generator(5)))


@case
def other_seeds_without_sampler(world):
    return train(world, DataLoader(DATA, batch_size=4, shuffle=True, generator=generator(world.rank)))


@case
def unequal_lengths(world):
    part = Subset(DATA, range(24 + 8 * world.rank))
    return train(world, DataLoader(part, batch_size=4, shuffle=True))


@case
def one_part_for_two(world):
    return train(world, dealt(world, num_replicas=2, rank=0))


@case
def stale_epoch(world):
    return train(world, dealt(world), epochs=3)


@case
def equal_dropout(world):
    return train(world, dealt(world), net=Net(0.5), begin=lambda: torch.manual_seed(1))


@case
def equal_augmentation(world):
    loader = dealt(world)
    begin = lambda: random.seed(1)  # noqa: E731
    return train(world, loader, begin=begin, each=lambda e: (loader.sampler.set_epoch(e), random.random()), epochs=3)


@case
def weights_elsewhere(world):
    loss = nn.CrossEntropyLoss(weight=torch.ones(2, device="meta"))
    return train(world, dealt(world), loss=loss)


@case
def other_dtypes(world):
    data = TensorDataset(DATA.tensors[0].double() if world.rank else DATA.tensors[0])
    net = Net()
    net.body.register_forward_pre_hook(lambda _, given: tuple(x.float() for x in given))
    return train(world, DataLoader(data, batch_size=4, sampler=DistributedSampler(data)), net=net)


def poisoned(world, how, guilty=1):
    """Row 2 of one rank's first batch goes wrong, in forward or in backward only."""
    net = Net()

    def poison(hidden):
        if world.rank != guilty:
            return hidden
        if how == "forward":
            factor = torch.ones(len(hidden), 1)
            factor[2] = math.nan
            return hidden * factor
        return hidden + (hidden * 0).abs().sqrt()  # finite, its slope is not

    net.poison = poison
    return train(world, dealt(world), net=net)


@case
def not_finite_forward(world):
    return poisoned(world, "forward")


@case
def not_finite_backward(world):
    return poisoned(world, "backward")


def all_cases(world):
    return {name: fn(world) for name, fn in CASES.items()}


@pytest.fixture(scope="module")
def told():
    return run_ranks(all_cases, 2)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("good")])
def test_no_false_alarm(told, name):
    """Sound ways to feed ranks are checked and hear nothing."""
    assert [of_rank[name] for of_rank in told] == [{"raised": "", "found": []}] * 2


CERTAIN = {
    "same_seed_without_sampler": ("samples", "rank 1 has 4 of the 4 different rows of rank 0"),
    "unequal_lengths": ("loader", "rank 0 has 6; rank 1 has 8"),
    "one_part_for_two": ("loader", "rank 1 reads part 0 of 2"),
    "not_finite_forward": ("finite", "on rank 1 head returns values that are not finite (rows 2)"),
    "not_finite_backward": ("finite", "on rank 1 in the backward after head, body gets a gradient"),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_what_is_certain_is_raised(told, name):
    """On every rank, with place, what came and a mend."""
    check, came = CERTAIN[name]
    for of_rank in told:
        finding = of_rank[name]["found"][-1]
        assert finding.check == check
        assert came in finding.came
        assert came in of_rank[name]["raised"]
        assert finding.mend in of_rank[name]["raised"]


SUSPECTED = {
    "other_seeds_without_sampler": ("loader", "an epoch is 2 times too long"),
    "stale_epoch": ("loader", "begins at epoch 0, like an earlier one"),
    "equal_dropout": ("random", "they draw the same numbers"),
    "equal_augmentation": ("random", "they draw the same numbers"),
    "other_dtypes": ("devices", "rank 0 has float32; rank 1 has float64"),
}


@pytest.mark.parametrize("name", SUSPECTED)
def test_what_may_be_meant_is_said_once(told, name):
    """It is no error, and the loop goes on."""
    check, came = SUSPECTED[name]
    for of_rank in told:
        (finding,) = of_rank[name]["found"]
        assert finding.check == check
        assert came in finding.came
        assert not finding.certain
        assert of_rank[name]["raised"] == ""


def test_loss_weights_elsewhere(told):
    """By name, before torch fails over them without one (the meta device stands for a GPU here)."""
    for of_rank in told:
        assert "the loss's weight is on meta" in of_rank["weights_elsewhere"]["raised"]


def test_samples_of_what_is_not_finite(told):
    """The rank that has it alone, and the row of its batch."""
    finding = told[0]["not_finite_forward"]["found"][-1]
    assert (finding.ranks, finding.where) == ((1,), "samples row 2")


def test_a_finding_reads_as_a_sentence():
    """Check, step, ranks, place, what came, what was wanted, the mend."""
    finding = Finding(check="c", ranks=(0, 2), where="w", wanted="a", came="b", mend="Do it", step=3)
    assert str(finding) == "[c] after step 3, ranks 0, 2, w: b; wanted: a. Do it"


def test_categories_coincide_without_being_the_same_samples():
    """Rows of few kinds are a suspicion at most; rows that stand in the same places, at two checks, are certain."""
    for second, certain in (([3, 1, 2, 5, 4], False), ([1, 2, 3, 4, 5], True)):
        check, step = Samples(Subject(world=World.single(), model=Net())), CheckedStep(world=World.single())
        for _ in range(2):
            check.compare([[1, 2, 3, 4, 5], second], step)
        assert [finding.certain for finding in step.found] == [certain]
    check, step = Samples(Subject(world=World.single(), model=Net())), CheckedStep(world=World.single())
    for _ in range(4):
        check.compare([[1, 2], [1, 2]], step)
    assert [finding.certain for finding in step.found] == [False, False, True]  # two rows may do so by themselves


def test_an_empty_batch_is_looked_at():
    """A rank without samples has no row that could be wrong."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with guarded(net, optimizer=optimizer, world=World.single(), checks=["finite"]) as guard:
        net(torch.empty(0, 4)).sum().backward()
        assert guard._subject.trouble == ""
        optimizer.step()
