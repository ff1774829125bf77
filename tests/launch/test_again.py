"""Ranks that save and end because they were asked to, and launches that go on with fewer ranks."""

import signal

import pytest

from rankwise.errors import ConfigError
from rankwise.launch.job import Job
from rankwise.launch.local import supervisor
from rankwise.launch.local.loop import Loop
from rankwise.launch.target import Target


def test_again_please_is_no_failure(launcher):
    """Ranks that end with 75 end the launch with 75, in one line; it is not told as a failure, and not restarted."""
    script = launcher.script("""
        import os, time
        time.sleep(0.5 * int(os.environ["RANK"]))  # longer than a failure would be waited for
        print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        raise SystemExit(75)
    """)
    done = launcher.run("--nproc", 3, "--max-restarts", 3, "--tee", "all", "--no-merge", script)
    assert done.returncode == 75
    assert [line.split("] ")[-1] for line in done.stdout.splitlines()] == ["attempt 0"] * 3
    assert done.stderr.count("\n") == 1
    assert "the same command resumes the run" in done.stderr


def test_saved_after_a_signal(launcher):
    """SIGTERM to the supervisor reaches the ranks, which save within --grace: 75 says that they did, not 143."""
    script = launcher.script("""
        import os, pathlib, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        pathlib.Path("ready-" + os.environ["RANK"]).write_text("1")
        while True:
            time.sleep(0.01)
    """)
    process = launcher.start("--nproc", 2, "--grace", 100, script)
    launcher.pids("ready-0", "ready-1")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 75
    assert "100 s to save" in said


def test_the_grace_ends(launcher):
    """Ranks that do not end within --grace are killed, and the launch says so by 128 + signal."""
    script = launcher.script("""
        import os, pathlib, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path("ready-" + os.environ["RANK"]).write_text("1")
        while True:
            time.sleep(0.01)
    """)
    process = launcher.start("--nproc", 1, "--grace", 0.1, script)
    launcher.pids("ready-0")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM


def test_fewer_ranks_when_restarts_are_used_up(launcher):
    """A rank that dies at 3 and at 2 ranks, once restarted each time: 3, 3, 2, 2 and then 1 rank, which ends well."""
    script = launcher.script("""
        import os
        if os.environ["RANK"] == "0":
            print("of", os.environ["WORLD_SIZE"], "attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        if os.environ["WORLD_SIZE"] != "1" and os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
    """)
    done = launcher.run("--nproc", 3, "--max-restarts", 1, "--min-ranks", 1, script)
    assert done.returncode == 0, done.stderr
    sizes = [line.split()[1] for line in done.stdout.splitlines()]
    assert sizes[-1] == "1"
    assert "restart 1 of 1" in done.stderr
    for size in (2, 1):
        assert f"continuing with {size} of {size + 1} ranks, because rank 1 failed" in done.stderr


def test_fewer_ranks_when_not_all_can_be_started(launcher):
    """Descriptors run out (for real) at some rank: the launch goes on with those that could be started."""
    script = launcher.script("import os; os.environ['RANK'] == '0' and print(os.environ['WORLD_SIZE'], flush=True)")
    command = ["bash", "-c", 'ulimit -n 32; exec "$@"', "-", *launcher.command("--nproc", 12, "--min-ranks", 1, script)]
    process = launcher.start(command=command)
    out, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    # on a busy machine rank 0 of an earlier try speaks before the rank that cannot be started
    tries = [int(size) for size in out.split()]
    assert 1 <= tries[-1] < 12
    assert tries == sorted(tries, reverse=True)
    assert "because no more ranks could be started" in said
    assert "Too many open files" in said


def test_fewer_ranks_when_gpus_are_gone(monkeypatch):
    """Ranks that had a GPU each go on with as many as there are left (computed: no GPU was harmed)."""
    job = Job(target=Target(kind="call", name="x"), num_ranks=8, max_restarts=3, min_ranks=4)
    monkeypatch.setattr(supervisor, "num_visible_gpus", lambda: 6)
    following = supervisor._following
    assert following(job, 1, had_gpus=8, started=8).num_ranks == 6
    assert following(job, 1, had_gpus=0, started=8) is job
    monkeypatch.setattr(supervisor, "num_visible_gpus", lambda: 3)
    assert following(job, 1, had_gpus=8, started=8) is job
    assert following(job, 4, had_gpus=0, started=8).num_ranks == 7


@pytest.mark.parametrize("number", [0, 3])
def test_min_ranks_is_among_the_ranks(number):
    """More than there are, or none, cannot be meant."""
    with pytest.raises(ConfigError, match="min_ranks"):
        Job(target=Target(kind="call", name="x"), num_ranks=2, min_ranks=number)


def test_a_time_limit_counts_from_the_begin(launcher):
    """RANKWISE_MAX_SECONDS is the launch's: a restart has less of it left."""
    script = launcher.script("""
        import os
        print(float(os.environ["RANKWISE_MAX_SECONDS"]), flush=True)
        raise SystemExit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
    """)
    done = launcher.run("--nproc", 1, "--max-restarts", 1, script, env={"RANKWISE_MAX_SECONDS": "1000"})
    first, second = map(float, done.stdout.split())
    assert second < first <= 1000


def test_a_signal_that_comes_twice_at_once_is_one():
    """A wrapper passes on a Ctrl-C that the terminal has sent to the launch, too: no second wish, which kills ranks."""
    with Loop() as loop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR1, signal.SIGINT):
            signal.raise_signal(number)
        assert list(loop.signals) == [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR1, signal.SIGINT]
