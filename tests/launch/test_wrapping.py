"""ddpw's way of starting tasks, with its mistakes mended."""

import random
import subprocess
import sys

import pytest

from rankwise import Platform, Wrapper, wrapper
from rankwise.errors import ConfigError, RankFailure

SCRIPT = """
    import torch.distributed as dist
    import torch
    from rankwise import Platform, wrapper

    @wrapper(Platform(device="cpu", n_gpus_per_node=3, ipc_groups=[[0, 2], [1]], upon_finish=lambda: print("finished")))
    def task(start, *, global_rank, local_rank, group, platform):
        '''What it does.'''
        value = torch.tensor(float(start + global_rank))
        dist.all_reduce(value, group=group)
        return value.item(), local_rank, platform.name

    if __name__ == "__main__":
        print(task.__name__, task.__doc__, task(10))
"""


def test_the_decorator_runs_on_every_rank(launcher):
    """A decorated function of the main script: groups, arguments, values, name, docstring, end - as promised."""
    done = subprocess.run(
        [sys.executable, launcher.script(SCRIPT)], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    values = [(22.0, 0, "ddpw"), (11.0, 1, "ddpw"), (22.0, 2, "ddpw")]
    lines = done.stdout.splitlines()
    assert lines[-1] == f"task What it does. {values}"
    assert lines[-2] == "finished"
    assert "rankwise: starting 3 rank(s) for task" in lines
    assert sum("rankwise: rank" in line for line in lines) == 3, "verbose reaches the ranks"


def test_without_groups_there_is_no_group():
    """ipc_groups=None: no process group, the same seeds, the variables of torchrun; quiet if asked."""

    def task(*, global_rank, group, **_):
        import torch.distributed as dist

        return global_rank, group, dist.is_initialized(), random.random()

    values = Wrapper(Platform(device="cpu", num_ranks=2, ipc_groups=None, seed=5, verbose=False)).start(task)
    wanted = random.Random(5).random()
    assert values == [(0, None, False, wanted), (1, None, False, wanted)]


def test_a_world_of_one_has_a_group_too():
    """ipc_groups=[] initialises a group for one rank, so that task code can call collectives."""

    def task(*, group, **_):
        import torch.distributed as dist

        return dist.get_world_size(group), dist.get_backend(group)

    assert Wrapper(Platform(device="cpu", verbose=False)).start(task) == [(1, "gloo")]


def test_a_gpu_platform_without_gpus_refuses(monkeypatch):
    """Where ddpw ran nothing and ended well, an error says what is missing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="needs as many GPUs, 0 are visible"):
        Wrapper(Platform(n_gpus_per_node=2)).start(print)


def test_what_makes_no_difference_is_said(monkeypatch):
    """Another start method or protocol is accepted, and the user is told that it changes nothing."""
    monkeypatch.setattr("rankwise.launch.wrapping.launch_packed", lambda _pack, _options: [])
    with pytest.warns(UserWarning, match="spawn_method='fork' makes no difference"):
        Wrapper(Platform(device="cpu", spawn_method="fork")).start(print)
    with pytest.warns(UserWarning, match="ipc_protocol='file' makes no difference"):
        Wrapper(Platform(device="cpu", ipc_protocol="file")).start(print)


def test_upon_finish_only_after_success():
    """A task that fails raises with its traceback, and upon_finish is not called."""
    called = []

    @wrapper(Platform(device="cpu", ipc_groups=None, verbose=False, upon_finish=lambda: called.append(1)))
    def fails(**_):
        raise ValueError("no")

    with pytest.raises(RankFailure, match="ValueError: no"):
        fails()
    assert called == []
