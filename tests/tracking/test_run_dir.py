"""One run, one owner, one lineage."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwise.errors import ConfigError, DesyncError, FencedError, RunDirError
from rankwise.testing import run_ranks
from rankwise.tracking import RunDir, Tracker, read_metrics
from rankwise.world import World

CONFIG = {"lr": 0.1, "model": {"width": 32, "layers": [1, 2]}, "name": None}


def opened(path, config=None, **options):
    return RunDir.open(path, config=CONFIG if config is None else config, world=World.single(), wait_s=0.3, **options)


@contextmanager
def process(path):
    """A process that owns a run directory; `tell(command)` returns its answer."""
    script = Path(__file__).with_name("run_process.py")
    with subprocess.Popen(
        [sys.executable, str(script), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"

        def tell(command):
            child.stdin.write(command + "\n")
            child.stdin.flush()
            return child.stdout.readline().strip()

        child.tell = tell
        try:
            yield child
        finally:
            child.kill()


def test_attempts_count_and_record_their_surroundings(tmp_path):
    """Each opening is an attempt of its own; what made the run is kept once, what surrounded it each time."""
    command = ["train.py", os.fsdecode(b"caf\xe9.zarr")]  # a name of a file may hold any bytes
    for attempt, world_size in ((1, 2), (2, 3)):
        with opened(tmp_path / "deep" / "run", environment={"world_size": world_size, "command": command}) as run:
            assert (run.attempt, run.resumed, run.finished) == (attempt, attempt > 1, None)
    record = json.loads((tmp_path / "deep" / "run" / "config.json").read_text())
    assert record["config"] == CONFIG
    assert {number: env["world_size"] for number, env in record["environment"].items()} == {"1": 2, "2": 3}
    assert record["environment"]["2"]["pid"] == os.getpid()
    assert record["environment"]["2"]["command"] == command


def test_another_configuration_is_refused_key_by_key(tmp_path):
    """The message lists what differs, old and new, and the ways out; nothing was touched."""
    opened(tmp_path).close()
    other = {"lr": 0.01, "model": {"width": 32, "layers": [1, 3]}, "batch": 8}
    with pytest.raises(RunDirError) as caught:
        opened(tmp_path, other)
    lines = str(caught.value).splitlines()
    assert lines[1:5] == [
        "  batch: (absent) -> 8",
        "  lr: 0.1 -> 0.01",
        "  model.layers: [1, 2] -> [1, 3]",
        "  name: null -> (absent)",
    ]
    assert "--fresh" in lines[-1]
    assert "--run-dir" in lines[-1]
    assert json.loads((tmp_path / "attempt.json").read_text())["attempt"] == 1
    with opened(tmp_path, {"model": {"layers": (1, 2), "width": 32}, "name": None, "lr": 0.1}) as run:
        assert run.attempt == 2


def test_resume_must_and_never(tmp_path):
    """'must' wants a run, 'never' wants none; both leave the directory as it was."""
    with pytest.raises(RunDirError, match="resume='must' needs a run"):
        opened(tmp_path / "run", resume="must")
    with opened(tmp_path / "run", resume="never") as run:
        assert run.attempt == 1
    with pytest.raises(RunDirError, match=r"resume='never' needs .* without a run, .* --fresh"):
        opened(tmp_path / "run", resume="never")
    with opened(tmp_path / "run", resume="must") as run:
        assert run.attempt == 2
    with pytest.raises(ConfigError, match="got 'always'"):
        opened(tmp_path / "run", resume="always")


def test_foreign_files_are_refused(tmp_path):
    """A directory with other content is not taken over, not even with fresh; logs and a profile are no foreigners."""
    (tmp_path / "logs" / "attempt-0").mkdir(parents=True)
    (tmp_path / "traces").mkdir()
    (tmp_path / "profile.json").write_text("{}")
    (tmp_path / "thesis.tex").write_text("")
    for fresh in (False, True):
        with pytest.raises(RunDirError, match=r"holds no run .* but other files: thesis\.tex; choose an empty"):
            opened(tmp_path, fresh=fresh)
    (tmp_path / "thesis.tex").unlink()
    opened(tmp_path).close()
    (tmp_path / "config.json").write_text('{"compilerOptions": {}}')
    with pytest.raises(RunDirError, match=r"config\.json is not the config of a run"):
        opened(tmp_path)


def test_fresh_moves_the_old_run_aside(tmp_path, caplog):
    """Nothing is deleted; the new run starts at attempt 1; the owner of the old one is fenced out."""
    path = tmp_path / "run"
    old = opened(path)
    Tracker(old, world=World.single()).log(1, {"loss": 1.0})
    old.close()
    new = opened(path, {"lr": 9}, fresh=True)
    assert f"moved to {tmp_path / 'run.1'}" in caplog.text
    assert (new.attempt, new.resumed) == (1, False)
    assert len(read_metrics(tmp_path / "run.1")) == 1
    assert not (path / "metrics.jsonl").exists()
    with pytest.raises(FencedError, match="nothing was published"):
        old.finish({})
    new.close()
    opened(path, {"lr": 10}, fresh=True).close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run", "run.1", "run.2"]


def test_fresh_keeps_the_logs_that_are_being_written(tmp_path, monkeypatch):
    """Started by a launcher that already writes into the newest log folder, that folder stays with the new run."""
    path = tmp_path / "run"
    opened(path).close()
    for attempt in (0, 9, 10):
        (path / "logs" / f"attempt-{attempt}").mkdir(parents=True)
    monkeypatch.setenv("RANKWISE_RUN_DIR", str(path))
    opened(path, fresh=True).close()
    assert [entry.name for entry in (path / "logs").iterdir()] == ["attempt-10"]
    assert sorted(entry.name for entry in (tmp_path / "run.1" / "logs").iterdir()) == ["attempt-0", "attempt-9"]


def finish(path):
    """Let another process finish the run."""
    with process(path) as other:
        assert other.tell("open") == "attempt 1"
        assert other.tell("finish") == "done"
        assert other.tell("finish").startswith("RunDirError: ")
        assert "is finished and is never overwritten" in other.tell("fence")


def test_a_finished_run_is_never_written(tmp_path):
    """Its record is found; publishing is refused; opening it again counts no attempt."""
    finish(tmp_path)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    again = opened(tmp_path, {"lr": 0.1})
    assert again.finished["values"] == {"loss": 0.5}
    assert again.attempt == 1
    with pytest.raises(RunDirError, match="is finished"):
        Tracker(again, world=World.single())
    after = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    assert after.keys() == before.keys()
    assert all(after[name] == before[name] for name in after if "lock" not in name)


def test_what_this_process_finished_is_not_found_finished(tmp_path):
    """It would be taken for the result of another training: refused, unless it is to go on."""
    with opened(tmp_path) as run:
        run.finish({"accuracy": 0.97})
    with pytest.raises(RunDirError, match=r"was finished by this same process, .* --fresh, Trainer\(fresh=True\)"):
        opened(tmp_path)
    opened(tmp_path, reopen=True).close()
    with opened(tmp_path) as run:
        assert run.finished is None


def test_a_finished_run_can_be_opened_again(tmp_path):
    """To go on: a new attempt, which publishes; the first final record is kept."""
    finish(tmp_path)
    with opened(tmp_path, {"lr": 0.1}, reopen=True) as run:
        assert (run.attempt, run.resumed, run.finished) == (2, True, None)
        run.finish({"loss": 0.25})
    records = [json.loads((tmp_path / name).read_text()) for name in ("finished-1.json", "finished.json")]
    assert [(record["attempt"], record["values"]["loss"]) for record in records] == [(1, 0.5), (2, 0.25)]


@pytest.mark.parametrize(
    "content",
    ['{"attempt": 1, "val', "{}", '{"attempt": "1", "values": {}}', '{"attempt": 1}', "[]", "\udcff"],
    ids=repr,
)
def test_a_torn_final_record_is_named(tmp_path, content):
    """What is no record of an end is neither an end nor a traceback: file and mend are said, nothing is changed."""
    opened(tmp_path).close()
    (tmp_path / "finished.json").write_bytes(content.encode(errors="surrogateescape"))
    for _ in range(2):
        with pytest.raises(RunDirError, match=r"finished\.json must hold .*; move it away to continue from the newest"):
            opened(tmp_path)
    (tmp_path / "finished.json").unlink()
    with opened(tmp_path) as run:
        assert run.attempt == 2


@pytest.mark.parametrize("content", ["{}", '{"attempt": null}', '{"run": 3}'])
def test_a_foreign_attempt_file_is_no_traceback(tmp_path, content):
    """The recorded environments hold the count as well."""
    opened(tmp_path).close()
    (tmp_path / "attempt.json").write_text(content)
    with opened(tmp_path) as run:
        assert run.attempt == 2


def test_what_may_change_is_recorded(tmp_path):
    """Another value of such a key is the same run; the change is found, and stays with its attempt."""
    opened(tmp_path).close()
    other = {**CONFIG, "lr": 0.5}
    with opened(tmp_path, other, may_change=("lr", "unknown")) as run:
        assert run.changed == ("lr: 0.1 -> 0.5",)
    with opened(tmp_path, other) as run:
        assert run.changed == ()
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["config"]["lr"] == 0.5
    assert [attempt.get("changed") for attempt in record["environment"].values()] == [None, ["lr: 0.1 -> 0.5"], None]


def test_a_published_checkpoint_is_remembered(tmp_path):
    """By all later attempts, so that they notice its loss; not by another run at the same place."""
    with opened(tmp_path / "run") as run:
        assert not run.saved
        run.mark_saved()
        run.mark_saved()
    for _ in range(2):
        with opened(tmp_path / "run") as run:
            assert run.saved
    with opened(tmp_path / "run", fresh=True) as run:
        assert not run.saved


def modes(path):
    return {entry.name: oct(entry.stat().st_mode & 0o777) for entry in (path, *path.iterdir())}


def test_a_run_is_its_owners(tmp_path):
    """Nobody else reads it; once its owner has let others in, new files follow the directory's mode; locks never do."""
    path = tmp_path / "deep" / "run"
    with opened(path) as run, Tracker(run, world=World.single()) as tracker:
        tracker.log(1, {"loss": 1.0})
        run.finish({})
    files = ["config.json", "attempt.json", "metrics.jsonl", "finished.json", "lock", "running.lock"]
    assert modes(path) == {"run": "0o700", **dict.fromkeys(files, "0o600")}
    path.chmod(0o750)
    opened(path, reopen=True).close()
    assert {name: modes(path)[name] for name in ("run", "attempt.json", "lock", "running.lock")} == {
        "run": "0o750",
        "attempt.json": "0o640",
        "lock": "0o600",
        "running.lock": "0o600",
    }
    opened(path, fresh=True).close()
    assert modes(path)["run"] == "0o750"


def test_a_lost_attempt_file_does_not_restart_the_count(tmp_path):
    """The recorded environments hold the count as well."""
    opened(tmp_path).close()
    opened(tmp_path).close()
    (tmp_path / "attempt.json").unlink()
    with opened(tmp_path) as run:
        assert run.attempt == 3


def test_the_same_process_is_told_at_once(tmp_path):
    """Opening twice without closing is a mistake that no waiting mends; a forgotten run lets go."""
    run = opened(tmp_path)
    with pytest.raises(RunDirError, match="in use by this process"):
        RunDir.open(tmp_path, config=CONFIG, world=World.single(), wait_s=100)
    del run
    opened(tmp_path).close()


def test_two_processes_race_and_one_wins(tmp_path):
    """Of two that open at the same moment one owns the run, the other is told by whom."""
    with process(tmp_path) as first, process(tmp_path) as second:
        answers = {}
        threads = [
            threading.Thread(target=lambda child=child: answers.update({child.pid: child.tell("open")}))
            for child in (first, second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winner = next(pid for pid, answer in answers.items() if answer == "attempt 1")
        (refusal,) = (answer for answer in answers.values() if answer != "attempt 1")
        assert refusal.startswith("RunDirError")
        assert f"in use by process {winner} on host" in refusal


def test_after_kill_9_the_next_one_owns_the_run(tmp_path):
    """The lock dies with its owner, also when a forked worker of the owner lives on."""
    with process(tmp_path) as first:
        assert first.tell("open") == "attempt 1"
        orphan = int(first.tell("fork"))
        try:
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            with RunDir.open(tmp_path, config={"lr": 0.1}, world=World.single(), wait_s=15) as run:
                assert run.attempt == 2
        finally:
            os.kill(orphan, signal.SIGKILL)


def test_a_left_over_cannot_publish(tmp_path):
    """A process of an earlier attempt that still runs finds every publish refused, and the newer attempt named."""
    with process(tmp_path) as left_over:
        assert left_over.tell("open") == "attempt 1"
        assert left_over.tell("fence") == "done"
        assert left_over.tell("close") == "done"
        with RunDir.open(tmp_path, config={"lr": 0.1}, world=World.single()) as run:
            for command in ("fence", "log", "finish"):
                answer = left_over.tell(command)
                assert answer.startswith("FencedError: this process is attempt 1")
                assert f"attempt 2 (process {os.getpid()}" in answer
            assert read_metrics(tmp_path, all=True) == []
            run.finish({})


def test_a_run_that_was_moved_away_is_fenced(tmp_path):
    """The path is gone: nothing is written to where it was, also if a checkpoint in the making creates it anew."""
    run = opened(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(FencedError, match="no longer exists"):
        run.finish({})
    assert not (tmp_path / "run").exists()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(FencedError, match=r"no longer has an attempt\.json: the run was moved or removed"):
        run.finish({})


def test_the_fence_can_be_nested(tmp_path):
    """A publish inside a publish does not wait for itself; an error inside lets go of it."""
    with opened(tmp_path) as run:
        with pytest.raises(ZeroDivisionError), run.fence(), run.fence():
            raise ZeroDivisionError
        run.finish({})


def test_a_run_has_a_path():
    """An empty text is no name of the current folder."""
    with pytest.raises(ConfigError, match='needs a path, got ""'):
        RunDir.open("", config={}, world=World.single())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"a": {"b": [1, Path()]}}, r"a\.b\[1\] is a .*Path"),
        ({"a": float("nan")}, "a is nan, which JSON cannot hold"),
        ({"a": {1: 2}}, "a has the key 1"),
    ],
)
def test_a_configuration_is_json(tmp_path, config, message):
    """What could not be compared later is refused now, with its key."""
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, config)
    assert list(tmp_path.iterdir()) == []


def open_on_ranks(world, path, width):
    told = []
    for config in ({"width": width}, {"width": width + 1}):
        try:
            with RunDir.open(path, config=config, world=world) as run:
                told.append((run.attempt, run.resumed))
        except RunDirError as error:
            told.append(str(error))
    with pytest.raises(DesyncError, match=r"differs between ranks: \[1\]"):
        RunDir.open(path, config={"width": width, "rank": world.rank}, world=world)
    return told


def test_all_ranks_hear_the_verdict(tmp_path):
    """The main rank acts; success and refusal are the same on every rank; different configurations are refused."""
    first, second = run_ranks(open_on_ranks, 2, tmp_path / "run", 32)
    assert first == second
    assert first[0] == (1, False)
    assert "width: 32 -> 33" in first[1]


def open_a_file(world, path):
    with pytest.raises(RunDirError) as caught:
        RunDir.open(path / "file" / "run", config={}, world=world)
    return str(caught.value)


def test_an_operating_system_error_reaches_all_ranks(tmp_path):
    """A path that cannot be a directory: every rank raises, none waits."""
    (tmp_path / "file").write_text("")
    first, second = run_ranks(open_a_file, 2, tmp_path)
    assert first == second
    assert "cannot be used: [Errno 20] Not a directory" in first
