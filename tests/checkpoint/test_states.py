"""Model and optimizer under ddp, zero1 and fsdp: each saves for all, at any number of ranks."""

import pytest
import torch
from torch import nn

from rankwise.checkpoint import Checkpointer, ModelState, OptimizerState, Replicated
from rankwise.errors import CheckpointError
from rankwise.testing import run_ranks
from rankwise.world import World

STRATEGIES = ("ddp", "zero1", "fsdp")


class Net(nn.Module):
    """Odd sizes, a shared parameter, a frozen one, buffers, and one that no rank but the first gets a row of."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(7, 5)
        self.norm = nn.BatchNorm1d(5)
        self.lone = nn.Parameter(torch.ones(1, 5))
        self.frozen = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)
        self.second = nn.Linear(5, 5, bias=False)
        self.tied = nn.Linear(5, 5, bias=False)
        self.tied.weight = self.second.weight

    def forward(self, x):
        return self.tied(self.second(self.norm(self.first(x)) * self.lone)) * self.frozen[0]


def trained(strategy, world, *, steps):
    """A model and its optimizer after some steps that are the same on all ranks, prepared with torch alone."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(3 if steps else 4)
    model = Net().double()
    if strategy == "fsdp":
        fully_shard(model.first)
        fully_shard(model)
    elif world.world_size > 1:
        model = DistributedDataParallel(model)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1 and p.requires_grad]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 0.05}]
    if strategy == "zero1" and world.world_size > 1:
        optimizer = ZeroRedundancyOptimizer(groups, optimizer_class=torch.optim.AdamW, lr=0.1, amsgrad=True)
    else:
        optimizer = torch.optim.AdamW(groups, lr=0.1, amsgrad=True)
    torch.manual_seed(5)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.arange(42.0, dtype=torch.float64).sin().view(6, 7)).square().sum().backward()
    optimizer.step()


def parts(model, optimizer):
    return {"model": ModelState(model), "optimizer": OptimizerState(optimizer, model)}


def close(left, right):
    """Trees are equal, tensors to rounding: bits differ only where the ranks' sums do."""
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.allclose(left, right, rtol=1e-12, atol=1e-12)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(close(left[key], right[key]) for key in left)
    return left == right


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right


def save_all(world, folder):
    for strategy in STRATEGIES:
        model, optimizer = trained(strategy, world, steps=3)
        Checkpointer(folder / f"{strategy}-{world.world_size}", world=world).save(3, parts(model, optimizer))
        step(model, optimizer)
        Checkpointer(folder / f"{strategy}-{world.world_size}-next", world=world).save(4, parts(model, optimizer))


def load_all(world, folder, every):
    """Restore each into each (or each into one, in turn), save it from there and step on: what is equal."""
    results = []
    for saver, size in [(strategy, size) for strategy in STRATEGIES for size in (1, 2, 3)]:
        turn = (STRATEGIES.index(saver) + size + world.world_size) % 3
        for strategy in STRATEGIES if every else STRATEGIES[turn : turn + 1]:
            model, optimizer = trained(strategy, world, steps=0)
            checkpointer = Checkpointer(folder / f"{saver}-{size}", world=world)
            report = checkpointer.restore(parts(model, optimizer))
            again = Checkpointer(folder / f"{saver}-{size}-to-{strategy}-{world.world_size}-{every}", world=world)
            again.save(3, parts(model, optimizer))
            step(model, optimizer)
            again.save(4, parts(model, optimizer))
            nxt = Checkpointer(folder / f"{saver}-{size}-next", world=world)
            is_same = same(read(checkpointer, 3), read(again, 3))
            results.append((saver, size, strategy, is_same, close(read(nxt, 4), read(again, 4)), report.restored))
    return results


def read(checkpointer, at):
    info = checkpointer.newest(at)
    return {name: checkpointer.read(info, name) for name in ("model", "optimizer")}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    """What the three strategies save at three world sizes."""
    folder = tmp_path_factory.mktemp("matrix")
    for size in (1, 2, 3):
        run_ranks(save_all, size, folder)
    return folder


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_strategy_restores_what_any_other_saved(matrix, size, every):
    """ddp, zero1 and fsdp, from 1, 2 and 3 ranks: the state is the saved one to the bit, and the next step is right."""
    for rows in run_ranks(load_all, size, matrix, every):
        assert len(rows) == (27 if every else 9)
        for *case, is_same, goes_on, restored in rows:
            assert is_same, case
            assert goes_on, case
            assert restored == ("model", "optimizer")


def test_each_rank_writes_its_shards(matrix):
    """Of fsdp no file holds a whole matrix, the files together hold each element once; zero1 splits the optimizer."""
    folder = matrix / "fsdp-3" / "step-0000000003"
    files = [torch.load(folder / f"rank-{rank}" / "model.pt", weights_only=True) for rank in range(3)]
    held = [file["first.weight"] for file in files]
    assert [tuple(piece["data"].shape) for piece in held] == [(2, 7), (2, 7), (1, 7)]
    assert [piece["start"] for piece in held] == [[0, 0], [2, 0], [4, 0]]
    assert [name for name in ("lone", "norm.running_mean") if any(name in file for file in files[1:])] == []
    folder = matrix / "zero1-3" / "step-0000000003"
    split = [torch.load(folder / f"rank-{rank}" / "optimizer.pt", weights_only=True)["state"] for rank in range(3)]
    names = [name for state in split for name in state]
    assert all(split)
    assert len(names) == len(set(names)) == 6
    assert (folder / "model.pt").exists()


def test_a_sharded_checkpoint_becomes_a_plain_model(matrix):
    """Without this package's strategies: into Replicated parts on one process; lost shards are an error."""
    model = Net().double()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1 and p.requires_grad]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": others}], amsgrad=True)
    checkpointer = Checkpointer(matrix / "fsdp-2", world=World.single())
    checkpointer.restore({"model": Replicated(model), "optimizer": Replicated(optimizer)})
    saved = read(checkpointer, 3)
    assert same(dict(model.state_dict()), dict(saved["model"]))
    assert torch.equal(
        optimizer.state[model.first.bias]["exp_avg"], saved["optimizer"]["state"]["first.bias"]["exp_avg"]
    )


def test_an_optimizer_saved_by_number_is_restored_by_order(tmp_path):
    """What Replicated(optimizer) wrote fits; other parameters, groups and shapes are refused by name."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpointer = Checkpointer(tmp_path, world=World.single())
    checkpointer.save(1, {"optimizer": Replicated(optimizer)})
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    fresh = torch.optim.AdamW(other.parameters())
    checkpointer.restore({"optimizer": OptimizerState(fresh, other)})
    assert torch.equal(fresh.state[other[1].bias]["exp_avg"], optimizer.state[model[1].bias]["exp_avg"])

    checkpointer.save(2, {"optimizer": OptimizerState(optimizer, model)})
    turned = torch.optim.AdamW(list(other.parameters())[::-1])
    checkpointer.restore({"optimizer": OptimizerState(turned, other)})
    assert torch.equal(turned.state[other[0].weight]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"])
    fewer = torch.optim.AdamW(other[0].parameters())
    with pytest.raises(CheckpointError, match=r"group 0 of the optimizer has other parameters .* 1\.bias, 1\.weight"):
        checkpointer.restore({"optimizer": OptimizerState(fewer, other)})
    two = torch.optim.AdamW([{"params": other[0].parameters()}, {"params": other[1].parameters()}])
    with pytest.raises(CheckpointError, match="has 2 parameter groups here, 1 in the checkpoint"):
        checkpointer.restore({"optimizer": OptimizerState(two, other)})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_numbers_keep_their_dtype(tmp_path, dtype):
    """NAdam's product of momenta is float32: torch's loading casts it to the parameter's dtype."""
    ends = []
    for stop in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(dtype)
        optimizer = torch.optim.NAdam(model.parameters(), lr=0.1)
        for number in range(12):
            if stop and number == 6:
                folder = Checkpointer(tmp_path, world=World.single())
                folder.save(6, {"optimizer": OptimizerState(optimizer, model)})
                optimizer = torch.optim.NAdam(model.parameters(), lr=0.1)
                folder.restore({"optimizer": OptimizerState(optimizer, model)})
            optimizer.zero_grad()
            model(torch.ones(4, 3, dtype=dtype)).square().sum().backward()
            optimizer.step()
        ends.append(model.weight.detach().clone())
        assert {state["mu_product"].dtype for state in optimizer.state.values()} == {torch.float32}
    assert torch.equal(*ends)
