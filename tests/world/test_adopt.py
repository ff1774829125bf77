"""World.current: the world that is there already, whoever made it."""

import os
import pickle
import subprocess
import sys
import weakref

import pytest
import torch

from rankwise import prepare
from rankwise.errors import ConfigError, WorldError
from rankwise.metrics import Mean, reduce
from rankwise.testing import run_ranks
from rankwise.world import World, bind


def test_without_a_group_it_is_a_world_of_one():
    """Plain python: one rank, no group; and always the same world."""
    world = World.current()
    assert (world.rank, world.world_size, world.backend, world.is_main) == (0, 1, "none", True)
    assert World.current() is world


def announce(monkeypatch, rank, size):
    """What a launcher sets, but for the place of the group."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(size))


def test_a_launchers_numbers_without_a_group(monkeypatch):
    """Rank and size are the launcher's, so that work is shared; a collective says what is missing."""
    announce(monkeypatch, 1, 2)
    world = World.current()
    assert (world.rank, world.world_size, world.backend, world.is_main) == (1, 2, "none", False)
    assert World.current() is world
    collectives = [
        world.barrier,
        lambda: world.all_reduce(1),
        lambda: world.all_gather(1, grad=True),
        lambda: world.broadcast_object(1),
        lambda: world.from_main(int),
        lambda: world.raise_together(None),
        lambda: world.subgroup([0]),
        lambda: reduce({"loss": Mean()}),
    ]
    for call in collectives:
        with pytest.raises(
            WorldError, match=r"rank 1 of 2, but there is no process group.*with rankwise.bind\(\) as world"
        ):
            call()


def test_what_trains_together_needs_the_group(monkeypatch, tmp_path):
    """A Trainer, a step, prepare and evaluate refuse to be one of several ranks without a group, before they begin."""
    import torch

    from rankwise.train import ExactStep, Trainer, evaluate, prepare

    announce(monkeypatch, 0, 2)
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for make in (
        lambda **options: Trainer(model, optimizer, len, run=False, **options),
        lambda **options: ExactStep(model, optimizer, len, **options),
        lambda **options: prepare(model, **options),
        lambda **options: evaluate(model, [], len, **options),
    ):
        for options in ({}, {"world": World.current()}):
            with pytest.raises(
                WorldError, match=r"needs the process group .* rank 0 of 2, but there is no .* rankwise.bind\(\)"
            ):
                make(**options)
    assert prepare(model, World.single()) is model


def test_inside_bind_it_is_the_bound_world(monkeypatch):
    """Every room finds the same world; after the block it is gone."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with bind(seed=7, device="cpu") as world:
        assert World.current() is world
        assert world.seed == 7
    assert World.current() is not world


def adopted(world):
    import torch.distributed as dist

    again = World.current()
    refusals = []
    try:
        with bind(device="cpu"):
            pass
    except WorldError as error:
        refusals.append(str(error))
    try:
        pickle.dumps(world)
    except WorldError as error:
        refusals.append(str(error))
    place = (world.rank, world.world_size, world.local_rank, world.local_world_size, world.num_nodes, world.device.type)
    return again is world, place, refusals, dist.get_rank(), world.channel.timeout.total_seconds()


def test_a_group_of_somebody_else_is_adopted():
    """Rank and size are the group's, its timeout too; without variables all ranks are taken to be on one machine."""
    for rank, (same, place, refusals, torch_rank, timeout) in enumerate(run_ranks(adopted, 2)):
        assert same
        assert place == (rank, 2, rank, 2, 1, "cpu")
        assert torch_rank == rank
        assert timeout == 200
        assert "use World.current()" in refusals[0]
        assert "World.current() there" in refusals[1]


def with_environment(world, variables):
    from rankwise.world import adopt

    os.environ.update({key: str(value).replace("RANK", str(world.rank)) for key, value in variables.items()})
    adopt._adopted = None
    try:
        found = World.current()
    finally:
        for name in variables:
            del os.environ[name]
        adopt._adopted = (weakref.ref(world.channel.group), world)
    return found.local_rank, found.local_world_size, found.node_rank, found.num_nodes


@pytest.mark.parametrize(
    ("size", "place"),
    [(2, (0, 1, "own", 2)), (5, ("own", 2, 0, 1))],
)
def test_the_environment_is_believed_if_it_agrees_with_the_group(size, place):
    """Two machines with a rank each under torchrun; variables of another launch are not believed."""
    variables = {
        "RANK": "RANK",
        "WORLD_SIZE": size,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": "RANK",
        "GROUP_WORLD_SIZE": 2,
        "MASTER_ADDR": "h",
        "MASTER_PORT": 1234,
    }
    for rank, found in enumerate(run_ranks(with_environment, 2, variables)):
        assert found == tuple(rank if part == "own" else part for part in place)


def test_importing_the_room_imports_no_torch():
    """The command line and a broken torch installation can live with this room."""
    code = "import sys, rankwise.world; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_what_is_no_world_is_refused():
    """`prepare(model, optimizer)` is Accelerate's call, `bind()` without `with` a slip."""
    model = torch.nn.Linear(2, 1)
    for given in (torch.optim.SGD(model.parameters()), bind()):
        with pytest.raises(ConfigError, match=r"prepare got (SGD|_Bind) as world: .*with rankwise.bind\(\) as world"):
            prepare(model, given)
