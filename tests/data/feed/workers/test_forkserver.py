"""Workers of torch's `DataLoader`: the main script is imported once for them, and none outlives its rank."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

STARTED = []
DEADLINE_S = 240.0  # for machines that many share
SCRIPT = """
    import gc, os, pathlib, sys, time
    from multiprocessing.synchronize import SemLock
    import torch
    from rankwise import Order
    from rankwise.data.samples import DatasetLoader

    pathlib.Path(f"import-{os.getpid()}").touch()

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            pathlib.Path(f"worker-{os.getpid()}").touch()
            return i

    if __name__ == "__main__":
        order = Order(8, batch_size=2)
        loaders = [DatasetLoader(Numbers(), order=order, num_workers=2, device="cpu") for _ in range(2)]
        seen = [sorted(i for (batch,) in loader for i in batch.data.tolist()) for loader in loaders]
        assert seen == [list(range(8))] * 2, seen
        locks = [thing for thing in gc.get_objects() if isinstance(thing, SemLock)]
        pathlib.Path("semaphores").write_text(" ".join("/dev/shm/sem." + lock._semlock.name[1:] for lock in locks))
        pathlib.Path("rank.tmp").write_text(str(os.getpid()))
        os.rename("rank.tmp", "rank")
        if len(sys.argv) > 1:
            time.sleep(10_000)
"""


def until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def in_session(leader):
    """Processes that live and belong to a session."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if state not in "ZX" and int(session) == leader:
                found.add(int(entry.name))
    return found


@pytest.fixture
def script(tmp_path):
    short = tempfile.mkdtemp(prefix="rw-")  # paths of sockets hold 107 characters: pytest-xdist leaves too few
    (tmp_path / "temporary").symlink_to(short)
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    yield path
    for process in STARTED:  # of a test that failed
        process.kill()
        process.wait()
        for pid in in_session(process.pid):
            os.kill(pid, signal.SIGKILL)
    STARTED.clear()
    shutil.rmtree(short)


def start(script, *command):
    env = {**os.environ, "TMPDIR": str((script.parent / "temporary").resolve())}
    log = script.parent / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=script.parent, env=env, stdout=out, stderr=out, start_new_session=True
        )
    STARTED.append(process)
    return process


def test_a_script_that_leaves_threads_behind_is_not_forked(script):
    """Where the import of the script starts a thread, each worker imports it afresh, as it would without the server."""
    text = script.read_text()
    head = "import threading, time as t\nthreading.Thread(target=t.sleep, args=(10_000,), daemon=True).start()\n"
    script.write_text(head + text)
    done = start(script, str(script))
    assert done.wait(DEADLINE_S) == 0, (script.parent / "log").read_text()
    assert len(list(script.parent.glob("import-*"))) == 1 + 1 + 4


LAUNCHERS = {
    "python": [],
    "rankwise": ["-P", "-m", "rankwise", "run", "--nproc", "1"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"],
}


@pytest.mark.parametrize("launcher", ["python", "rankwise", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_killed_rank_leaves_nothing(script, launcher):
    """SIGKILL of a rank: its workers and their server end, no semaphore and no folder of sockets stays.

    Before, two loaders of two workers each: the script is run by the rank, and imported once by the fork server.
    """
    process = start(script, *LAUNCHERS[launcher], str(script), "stay")
    until((script.parent / "rank").exists)
    assert len(list(script.parent.glob("import-*"))) == 2
    assert len(list(script.parent.glob("worker-*"))) == 4
    rank = int((script.parent / "rank").read_text())
    leader = os.getsid(rank)
    semaphores = (script.parent / "semaphores").read_text().split()
    assert semaphores
    assert all(Path(name).exists() for name in semaphores)
    assert len(in_session(leader)) > 5
    os.kill(rank, signal.SIGKILL)
    assert process.wait(DEADLINE_S) == {"python": -signal.SIGKILL, "rankwise": 137, "torchrun": 1}[launcher]
    until(lambda: not in_session(leader))
    assert [name for name in semaphores if Path(name).exists()] == []
    assert list((script.parent / "temporary").glob("pymp-*")) == []


def refused(done):
    """Whether a dataset was refused, with what to do."""
    assert "dataset Numbers is defined in a notebook or at a prompt" in done.stderr
    assert 'multiprocessing_context="fork"' in done.stderr
    return done.returncode == 1


def test_a_script_on_stdin_has_workers(script):
    """Workers find a dataset that such a script imports, and look for no file of the name <stdin>; its own is refused.

    Workers cannot import what was typed at a prompt: said before they start.
    """
    (script.parent / "numbers_module.py").write_text(script.read_text().partition("if __name__")[0])
    text = """
        from numbers_module import DatasetLoader, Numbers, Order
        loader = DatasetLoader(Numbers(), order=Order(8, batch_size=2), num_workers=2, device="cpu")
        assert sorted(i for (batch,) in loader for i in batch.data.tolist()) == list(range(8))
        print("to its end")
        Numbers = type("Numbers", (Numbers,), {})
        DatasetLoader(Numbers(), order=Order(8, batch_size=2), num_workers=2, device="cpu")
    """
    done = subprocess.run(
        [sys.executable, "-"], input=textwrap.dedent(text), cwd=script.parent, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False, env={**os.environ, "PYTHONPATH": str(script.parent)},
    )  # fmt: skip
    assert done.stdout == "to its end\n", done.stderr
    assert refused(done)


def test_a_dataset_of_a_command_line_is_refused(tmp_path):
    """Of `python -c` as of a notebook."""
    text = textwrap.dedent(SCRIPT.partition("if __name__")[0]).replace("import-", "i-")
    text += "DatasetLoader(Numbers(), order=Order(8, batch_size=2), num_workers=2, device='cpu')"
    command = [sys.executable, "-c", text]
    assert refused(
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    )
