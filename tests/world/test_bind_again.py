"""bind more than once in a process, in processes that say their rank themselves, in forked ones, with other seeds."""

import json

import pytest

import rankwise
from rankwise.errors import ConfigError, WorldError
from rankwise.testing.held_ports import hold_port


def ranks(size, **more):
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(hold_port())} | more
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


AGAIN = """
    import rankwise
    for turn in range(6):
        try:
            with rankwise.bind(timeout=900, device="cpu", seed=turn) as world:
                total = world.all_reduce(world.rank + turn)
                if turn == 4 and world.rank == 1:
                    raise KeyError("leaves in the middle")
                if turn == 4:
                    world.barrier()
        except (KeyError, RuntimeError) as error:
            print(type(error).__name__)
        print(total)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [2, 3])
def test_binding_again_and_again(ranks_of, size):
    """Six blocks one after the other at one address, the fifth torn by an exception: the others hear it at once."""
    for rank, (out, err, code) in enumerate(ranks_of(AGAIN, ranks(size)).end()):
        assert (err, code) == ("", 0)
        sums = [size * (size - 1) // 2 + size * turn for turn in range(6)]
        assert out.split() == [
            *map(str, sums[:4]),
            "KeyError" if rank == 1 else "WorldError",
            *map(str, sums[4:]),
        ]


FORKED = """
    import os, sys, time, rankwise
    with rankwise.bind(timeout=120, device="cpu") as world:
        world.barrier()
        child = os.fork()
        if child:
            deadline = time.monotonic() + 100
            while (found := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
                time.sleep(0.05)
            if found == (0, 0):
                os.kill(child, 9)
                os.waitpid(child, 0)
            print(found[0] == child, found[1], world.all_reduce(1))
        elif os.environ["HOW"] == "exception":
            sys.stderr = open(os.devnull, "w")
            raise KeyError("of the child")
    # the child falls out of the block, to the end of the script
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("how", "status"), [("falls out", 0), ("exception", 256)])
def test_a_forked_child_leaves_the_block(ranks_of, how, status):
    """It ends by itself, whichever way it leaves, and its parents' group is whole: only who bound leaves the group."""
    for out, err, code in ranks_of(FORKED, ranks(2, HOW=how)).end():
        assert (err, code) == ("", 0)
        assert out.split() == ["True", str(status), "2"]


SPAWNED = """
    import os, sys
    import torch.multiprocessing as mp
    import rankwise
    from rankwise import Order

    def main(rank, size):
        os.environ["MASTER_ADDR"] = "127.0.0.1"  # where most examples of mp.spawn set it
        try:
            with rankwise.bind(device="cpu"):
                pass
        except RuntimeError as error:
            said = "bind(rank=rank, world_size=world_size)" in str(error)
        with rankwise.bind(rank=rank, world_size=size, device="cpu", seed=7, timeout=120) as world:
            place = world.rank, world.world_size, world.local_rank, world.local_world_size
            told = said, *place, world.all_reduce(rank), Order(100, batch_size=9).seed
            os.write(1, (" ".join(map(str, told)) + "\\n").encode())  # at once: both write to one pipe

    if __name__ == "__main__":
        mp.spawn(main, args=(2,), nprocs=2)
"""


@pytest.mark.timeout(600)
def test_functions_of_mp_spawn(ranks_of):
    """Without their rank they would be worlds of one, which is refused; with it they know their place."""
    ((out, err, code),) = ranks_of(SPAWNED, [{"MASTER_PORT": str(hold_port())}], fresh=True).end()
    assert (err, code) == ("", 0)
    assert sorted(out.splitlines()) == [f"True {rank} 2 {rank} 2 1 7" for rank in range(2)]


SEEDS = """
    import json, os, rankwise
    try:
        with rankwise.bind(seed=7 + int(os.environ["RANK"]) // 2, device="cpu", timeout=120):
            print("bound")
    except RuntimeError as error:
        print(json.dumps(str(error)))
"""


@pytest.mark.timeout(600)
def test_other_seeds_are_refused_on_every_rank(ranks_of):
    """One rank of three was given another seed: all of them raise, at once, and name both seeds and the ranks."""
    for out, err, code in ranks_of(SEEDS, ranks(3)).end():
        assert (err, code) == ("", 0)
        error = json.loads(out)
        assert "rank 2 (host " in error
        assert ") has seed 8, but rank 0 (host " in error
        assert error.endswith(") has seed 7: give all ranks the same seed")


@pytest.mark.parametrize(
    ("options", "variables", "error", "message"),
    [
        ({"rank": 1}, {}, ConfigError, r"rank= and world_size= must be given together"),
        ({"local_rank": 1}, {}, ConfigError, r"rank= and world_size= must be given together"),
        ({"rank": 2, "world_size": 2}, {}, ConfigError, r"0 <= rank < world_size, got rank=2, world_size=2"),
        ({"rank": 1, "world_size": 2}, {}, WorldError, r"set MASTER_PORT to the same free port"),
        (
            {"rank": 1, "world_size": 2},
            {"MASTER_ADDR": "node01", "MASTER_PORT": "1234"},
            ConfigError,
            r"at MASTER_ADDR=node01 .* pass local_rank= as well",
        ),
        ({}, {"RANK": "1", "WORLD_SIZE": "2"}, WorldError, r"bind\(rank=, world_size=, local_rank=\)"),
    ],
)
@pytest.mark.usefixtures("no_launcher")
def test_numbers_that_do_not_tell_the_place(monkeypatch, options, variables, error, message):
    """What is missing is named, with what to pass or set, before anything is opened."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=message), rankwise.bind(device="cpu", **options):
        pass


@pytest.mark.usefixtures("no_launcher")
def test_orders_follow_the_seed_of_the_world():
    """Inside bind an order without a seed has the world's; a given one stays; without a world it is 1889, as it was."""
    from rankwise import Order

    plain, given = Order(100, batch_size=9), Order(100, batch_size=9, seed=3)
    with rankwise.bind(seed=5, device="cpu"):
        followed, kept = Order(100, batch_size=9), Order(100, batch_size=9, seed=3)
    assert (plain.seed, followed.seed) == (1889, 5)
    assert plain.start() == Order(100, batch_size=9, seed=1889).start()
    assert kept == given
    assert followed == Order(100, batch_size=9, seed=5)
    assert followed.recipe == plain.recipe


HASTY = """
    import os, time
    import torch.distributed as dist
    import rankwise
    from rankwise.world import group

    class Late(dist.Store):
        \"\"\"A store by which rank 1 is known to the others, who connect, half a second before it goes on.\"\"\"

        def __init__(self, inner):
            super().__init__()
            self._inner = inner

        timeout = property(lambda self: self._inner.timeout)

        def set(self, key, value):
            self._inner.set(key, value)
            time.sleep(0.5)

    for name in ("get", "add", "wait", "check", "set_timeout", "delete_key", "num_keys"):
        setattr(Late, name, lambda self, *args, name=name: getattr(self._inner, name)(*args))
    if os.environ["RANK"] == "1":
        prefixed = group.prefixed
        group.prefixed = lambda store, prefix: Late(prefixed(store, prefix))
    with rankwise.bind(device="cpu"):
        pass
    print("left", flush=True)
    os._exit(0)
"""


def test_a_rank_that_leaves_at_once_waits_until_all_have_joined(ranks_of):
    """Its connections stand before a slower rank has accepted them: closed then, they would fail the slower rank."""
    assert ranks_of(HASTY, ranks(2)).end() == [("left\n", "", 0)] * 2
