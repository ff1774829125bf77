"""ddpw's way of starting tasks, with its mistakes mended."""

import functools
import json
import random
import subprocess
import sys

import pytest

from rankwise import Platform, Wrapper
from rankwise.errors import ConfigError, LaunchError, RankFailure
from rankwise.launch.functions import decorator


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Logs go to the working directory."""
    monkeypatch.chdir(tmp_path)


def idle(**given):
    """A task that does nothing."""


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
    assert f"rankwise: starting 3 rank(s) for task, logs in {launcher.folder}/.output/logs" in lines
    assert sum("rankwise: rank" in line for line in lines) == 3, "verbose reaches the ranks"
    logs = launcher.folder / ".output" / "logs" / "attempt-0"
    assert "rankwise: rank 1 of 3" in (logs / "rank-1.out").read_text()
    assert logs.stat().st_mode & 0o077 == 0, "for the owner alone"


def test_without_groups_there_is_no_group(tmp_path, capfd):
    """ipc_groups=None: no process group, but the seed; quiet if asked."""

    def task(*, global_rank, group, **_):
        import torch.distributed as dist

        return global_rank, group, dist.is_initialized(), random.random()

    platform = Platform(device="cpu", ipc_groups=None, seed=5, verbose=False, console_logs=None)
    assert Wrapper(platform).start(task) == [(0, None, False, random.Random(5).random())]
    assert list(tmp_path.iterdir()) == [], "no logs"
    assert capfd.readouterr() == ("", ""), "verbose=False reaches the ranks"


def test_a_world_of_one_has_a_group_too():
    """ipc_groups=[] initialises a group for one rank, so that task code can call collectives."""

    def task(*, group, **_):
        import torch.distributed as dist

        return dist.get_world_size(group), dist.get_backend(group)

    assert Wrapper(Platform(device="cpu", verbose=False)).start(task) == [(1, "gloo")]


def test_a_gpu_platform_without_gpus_refuses(monkeypatch):
    """Where ddpw ran nothing, called upon_finish and ended well, an error says what is missing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    called = []
    with pytest.raises(ConfigError, match="needs as many GPUs, 0 are visible"):
        Wrapper(Platform(n_gpus_per_node=2, upon_finish=lambda: called.append(1))).start(idle)
    assert called == []


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (lambda global_rank, local_rank, group, options: options, "multiple values for argument 'global_rank'"),
        (lambda options: options, "unexpected keyword argument"),
        (lambda options, more, **given: more, "missing a required argument: 'more'"),
    ],
)
def test_a_task_that_does_not_take_the_arguments_is_refused(monkeypatch, task, why):
    """Before a rank starts, with what a task takes; what a decorator hides is not looked at."""
    monkeypatch.setattr(decorator, "call_ranks", lambda *_, **__: [None])
    started = Wrapper(Platform(device="cpu", verbose=False, console_logs=None))
    with pytest.raises(ConfigError, match=rf"{why}.*keywords: def <lambda>\(\.\.\., \*, global_rank, local_rank"):
        started.start(task, {"lr": 0.1})
    hidden = functools.wraps(task)(lambda *_, **__: None)
    assert started.start(hidden, {"lr": 0.1}) == [None]


def test_another_start_method_makes_no_difference(monkeypatch):
    """It is accepted, and the user is told that it changes nothing."""
    monkeypatch.setattr(decorator, "call_ranks", lambda *_, **__: [])
    with pytest.warns(UserWarning, match="spawn_method='fork' has no effect"):
        Wrapper(Platform(device="cpu", spawn_method="fork")).start(idle)


def meet(*, global_rank, group, platform, **_):
    """What a rank finds, and how it leaves."""
    import atexit
    import datetime as dt
    import json
    import os
    import pathlib
    import random

    import torch
    import torch.distributed as dist

    atexit.register(lambda: pathlib.Path(f"left-{global_rank}").write_text(str(dist.is_initialized())))
    drawn = random.random()
    value = torch.tensor(1.0 + global_rank)
    dist.all_reduce(value)
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    found = {
        "sum": value.item(),
        "store": type(store).__name__,
        "files": sorted(entry.name for entry in pathlib.Path("meet").glob("*")),
        "timeout": group._get_backend(torch.device("cpu")).options._timeout == dt.timedelta(seconds=77),
        "device": str(torch.empty(0).device),
        "port": int(os.environ["MASTER_PORT"]),
        "drawn": drawn,
    }
    pathlib.Path(f"found-{global_rank}").write_text(json.dumps(found))
    dist.barrier()
    if global_rank == 1 and platform.name == "fails":
        raise ValueError("no")
    return found


def test_ranks_meet_through_a_file(tmp_path):
    """ipc_protocol="file": in a folder that is made, for its owner alone, and left empty; nobody listens for it.

    Without a folder of the user's: see below.
    """
    platform = Platform(
        device="cpu", num_ranks=2, ipc_protocol="file", master_addr="./meet", verbose=False, ipc_timeout_s=77
    )
    first, second = Wrapper(platform).start(meet)
    assert (first["sum"], second["sum"]) == (3.0, 3.0)
    assert first["store"] == "FileStore"
    assert [name.startswith("rankwise-meeting-") for name in first["files"]] == [True]
    assert list((tmp_path / "meet").iterdir()) == []
    assert (tmp_path / "meet").stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    """A file in the way of the folder is named before anything is started; so are logs that cannot be written."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        Platform(device="cpu", ipc_protocol="file", master_addr=str(tmp_path / "taken"))
    platform = Platform(device="cpu", ipc_protocol="file", master_addr=str(tmp_path / "taken" / "inside"))
    with pytest.raises(ConfigError, match=r"the folder .*taken/inside cannot be created: Not a directory"):
        Wrapper(platform).start(idle)
    with pytest.raises(LaunchError, match=r"cannot write logs to .*taken/logs: Not a directory"):
        Wrapper(Platform(device="cpu", verbose=False, console_logs=str(tmp_path / "taken" / "logs"))).start(idle)


def test_the_end_is_the_same_however_it_comes(tmp_path):
    """Timeouts hold for subgroups, no default device is set, and every group is left, also after a failure.

    The ranks that fail have met through a file in a folder of their own.
    """
    called = []
    options = {"num_ranks": 2, "ipc_groups": [[0], [1]], "ipc_timeout_s": 77, "verbose": False, "seed": 3}
    random.seed(1)
    state = random.getstate()
    finish = {"upon_finish": lambda: called.append(1)}
    values = Wrapper(Platform("ends", "cpu", **options, **finish)).start(meet)
    assert random.getstate() == state, "ports are not drawn from the user's generator"
    assert all(value["timeout"] and value["device"] == "cpu" and value["store"] == "TCPStore" for value in values)
    assert [value["drawn"] for value in values] == [random.Random(3).random()] * 2, "the same seed"
    assert called == [1], "once"
    left = [tmp_path / "left-0", tmp_path / "left-1"]
    assert [path.read_text() for path in left] == ["False", "False"]
    left[1].unlink()
    with pytest.raises(RankFailure, match="ValueError: no"):
        Wrapper(Platform("fails", "cpu", ipc_protocol="file", **options, **finish)).start(meet)
    found = [json.loads((tmp_path / f"found-{rank}").read_text()) for rank in (0, 1)]
    assert [(each["store"], each["files"]) for each in found] == [("FileStore", [])] * 2
    assert left[1].read_text() == "False"
    assert called == [1], "only after success"


def test_upon_finish_that_fails_says_so(monkeypatch):
    """Its own error comes out, and says that all ranks had ended well."""
    platform = Platform(device="cpu", verbose=False, upon_finish=lambda: {}["missing"])
    monkeypatch.setattr(decorator, "call_ranks", lambda *_, **__: [])
    with pytest.raises(KeyError, match="missing") as caught:
        Wrapper(platform).start(idle)
    assert caught.value.__notes__ == ["rankwise: raised by upon_finish, after all ranks had succeeded"]


def test_a_default_folder_for_logs_that_is_read_only(monkeypatch, capsys):
    """A task runs where nothing may be written, and the user is told that there are no logs."""
    monkeypatch.setattr(decorator.os, "access", lambda _path, _mode: False)
    monkeypatch.setattr(decorator, "call_ranks", lambda _fn, _args, _kwargs, options, **_: [options["log_dir"]])
    assert Wrapper(Platform(device="cpu", verbose=False)).start(idle) == [None]
    assert "no logs are written: " in capsys.readouterr().out
