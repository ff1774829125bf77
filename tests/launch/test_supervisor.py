"""A launch as a whole: one fate, the root cause first, restarts."""

import signal
import socket
from pathlib import Path

import pytest

FAILS = """
    import os, sys, time
    if os.environ["RANK"] == "1":
        {failure}
    time.sleep(1000)
"""
DIES_EARLY = """
    import os, signal
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    value = torch.ones(1)
    dist.all_reduce(value)
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] != os.environ["LAST"]:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(value)
    print("sum", value.item(), "attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    dist.destroy_process_group()
"""


def test_a_rank_that_raises(launcher):
    """Its traceback is printed once, with rank and host, its own frames only; the others are stopped; exit code 1."""
    script = launcher.script(FAILS.format(failure="raise ValueError('a bad value')"))
    done = launcher.run("--nproc", 3, script)
    assert done.returncode == 1
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "rank 1 of 3 on " in done.stderr
    assert "raised ValueError: a bad value" in done.stderr
    assert "script.py" in done.stderr
    assert "rankwise/launch" not in done.stderr
    assert "rank 0: stopped by rankwise (SIGTERM)" in done.stderr
    assert "rank 2: stopped by rankwise (SIGTERM)" in done.stderr


@pytest.mark.parametrize("failure", ["sys.exit(3)", "os._exit(3)"])
def test_a_rank_that_exits_with_3(launcher, failure):
    """The launch names the rank and exits with its code, whether Python could say something or not."""
    done = launcher.run("--nproc", 2, launcher.script(FAILS.format(failure=failure)))
    assert done.returncode == 3
    assert "rank 1 of 2 on " in done.stderr
    assert "exited with 3" in done.stderr


def test_a_rank_that_is_killed(launcher):
    """SIGKILL from outside is named, with what to look for; exit code 137."""
    done = launcher.run("--nproc", 2, launcher.script(FAILS.format(failure="os.kill(os.getpid(), 9)")))
    assert done.returncode == 128 + signal.SIGKILL
    assert "was ended by SIGKILL" in done.stderr
    assert "by the kernel for lack of memory (see dmesg)" in done.stderr


def test_a_rank_that_crashes_in_c(launcher):
    """A segmentation fault leaves the Python stack that led to it; exit code 139."""
    failure = "import faulthandler; faulthandler._sigsegv()"
    done = launcher.run("--nproc", 2, launcher.script(FAILS.format(failure=failure)))
    assert done.returncode == 128 + signal.SIGSEGV
    assert "was ended by SIGSEGV" in done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "script.py" in done.stderr


def test_a_text_in_system_exit_is_printed(launcher):
    """`sys.exit("text")` prints the text and exits with 1, as under plain Python."""
    done = launcher.run("--nproc", 2, launcher.script(FAILS.format(failure="sys.exit('no data here')")))
    assert done.returncode == 1
    assert "no data here" in done.stderr


def test_all_well(launcher):
    """Ranks that end well end the launch with 0, quietly, and nothing is left in memory."""
    done = launcher.run(
        "--nproc", 2, launcher.script("import os; os.environ['RANK'] == '0' and print(os.environ['RANKWISE_VITALS'])")
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path(done.stdout.strip()).exists()


def test_collateral_is_labelled(launcher):
    """The rank that lost its peer is not blamed: the one that raised is, and the loss is called collateral."""
    script = launcher.script("""
        import os, pathlib, time
        here = pathlib.Path("rank-1-is-here")
        first = pathlib.Path("rank-0")
        if os.environ["RANK"] == "0":
            while not here.exists():
                time.sleep(0.01)
            first.symlink_to(f"/proc/{os.getpid()}")
            raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1234")
        def has_ended():
            try:
                return ") Z " in (first / "stat").read_text()
            except OSError:
                return first.is_symlink()
        here.touch()
        while not has_ended():
            time.sleep(0.01)
        raise KeyError("the cause")
    """)
    done = launcher.run("--nproc", 2, script)
    assert "rank 1 of 2 on " in done.stderr
    assert "raised KeyError: 'the cause'" in done.stderr
    assert "rank 0: collateral" in done.stderr
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize("last", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_restarts_with_real_ranks(launcher, last):
    """A rank that kills itself between two collectives: each new attempt meets no stale peer."""
    options = ("--nproc", 2, "--max-restarts", last, "--env", f"LAST={last}", "--tee", "all", "--no-merge")
    done = launcher.run(*options, launcher.script(DIES_EARLY))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"sum 4.0 attempt {last}") == 2
    for number in range(1, last + 1):
        assert f"starting all ranks again, restart {number} of {last}, because rank 1 failed" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_restart_20_times_in_20(launcher):
    """The restart after a dead rank is reliable: 20 of 20 launches recover at the first try."""
    script = launcher.script(DIES_EARLY)
    codes = [launcher.run("--nproc", 2, "--max-restarts", 1, "--env", "LAST=1", script).returncode for _ in range(20)]
    assert codes == [0] * 20


def test_restarts_are_counted_and_end(launcher):
    """After the last restart the failure is final; each attempt sees its number, RANKWISE_FRESH only the first."""
    script = launcher.script("""
        import os
        print(os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["TORCHELASTIC_MAX_RESTARTS"],
              os.environ.get("RANKWISE_FRESH"), flush=True)
        raise SystemExit(4)
    """)
    done = launcher.run("--nproc", 1, "--max-restarts", 2, "--fresh", script)
    assert done.returncode == 4
    assert done.stdout.splitlines() == ["0 2 1", "1 2 None", "2 2 None"]


def test_logs_of_attempts_stay(launcher):
    """Each attempt, also of a later launch, has a folder of its own; the failing rank's traceback is in its log."""
    # rank 0 alone fails: of two, the later one may be stopped before it has raised
    script = launcher.script("""
        import os, pathlib, time
        print("out", os.environ["RANK"], flush=True)
        attempt = os.environ["TORCHELASTIC_RUN_ID"] + "-" + os.environ["TORCHELASTIC_RESTART_COUNT"]
        marks = [pathlib.Path(__file__).parent / f"{attempt}-{rank}" for rank in range(2)]
        marks[int(os.environ["RANK"])].touch()
        while not all(mark.exists() for mark in marks):  # a failure would stop the other before it prints
            time.sleep(0.01)
        if os.environ["RANK"] == "0":
            raise ValueError("x")
        time.sleep(1000)
    """)
    for _ in range(2):
        launcher.run("--nproc", 2, "--max-restarts", 1, "--run-dir", launcher.folder / "run", script)
    logs = launcher.folder / "run" / "logs"
    assert sorted(path.name for path in logs.iterdir()) == [f"attempt-{n}" for n in range(4)]
    assert (launcher.folder / "run").stat().st_mode & 0o777 == 0o700, "a run directory is its owner's"
    assert (logs / "attempt-3" / "rank-1.out").read_text() == "out 1\n"
    assert "ValueError: x" in (logs / "attempt-3" / "rank-0.err").read_text()


def test_a_port_in_use_is_one_message(launcher):
    """A wanted port that is taken ends the launch before anything starts, with the mend and without a traceback."""
    with socket.create_server(("", 0)) as server:
        done = launcher.run("--nproc", 2, "--master-port", server.getsockname()[1], launcher.script("print('started')"))
    assert done.returncode == 2
    assert "leave the port out to get a free one" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
