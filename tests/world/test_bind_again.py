"""bind more than once in a process, in processes that say their rank themselves, in forked ones, with other seeds."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import rankwise
from rankwise.errors import ConfigError, WorldError
from rankwise.testing.held_ports import hold_port

LAUNCHERS = ("SLURM", "OMPI", "PMI", "RANK", "TORCHELASTIC", "MASTER", "WORLD", "LOCAL", "OMP")
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
CLEAN |= {"OMP_NUM_THREADS": "1"}


def start(tmp_path, script, *environments):
    """Run a script in one process per environment; return (stdout, stderr, exit code) of each."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore:This process:DeprecationWarning", str(path)],  # Python 3.12 warns of forks
            env=CLEAN | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for variables in environments
    ]
    try:
        return [(*process.communicate(timeout=280), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


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
def test_binding_again_and_again(tmp_path, size):
    """Six blocks one after the other at one address, the fifth torn by an exception: the others hear it at once."""
    for rank, (out, err, code) in enumerate(start(tmp_path, AGAIN, *ranks(size))):
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
def test_a_forked_child_leaves_the_block(tmp_path, how, status):
    """It ends by itself, whichever way it leaves, and its parents' group is whole: only who bound leaves the group."""
    for out, err, code in start(tmp_path, FORKED, *ranks(2, HOW=how)):
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
def test_functions_of_mp_spawn(tmp_path):
    """Without their rank they would be worlds of one, which is refused; with it they know their place."""
    ((out, err, code),) = start(tmp_path, SPAWNED, {"MASTER_PORT": str(hold_port())})
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
def test_other_seeds_are_refused_on_every_rank(tmp_path):
    """One rank of three was given another seed: all of them raise, at once, and name both seeds and the ranks."""
    for out, err, code in start(tmp_path, SEEDS, *ranks(3)):
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
def test_numbers_that_do_not_tell_the_place(monkeypatch, options, variables, error, message):
    """What is missing is named, with what to pass or set, before anything is opened."""
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=message), rankwise.bind(device="cpu", **options):
        pass


def test_orders_follow_the_seed_of_the_world(monkeypatch):
    """Inside bind an order without a seed has the world's; a given one stays; without a world it is 1889, as it was."""
    from rankwise import Order

    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
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


def test_a_rank_that_leaves_at_once_waits_until_all_have_joined(tmp_path):
    """Its connections stand before a slower rank has accepted them: closed then, they would fail the slower rank."""
    assert start(tmp_path, HASTY, *ranks(2)) == [("left\n", "", 0)] * 2
