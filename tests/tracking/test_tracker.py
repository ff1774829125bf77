"""The main rank writes the numbers; nobody else does."""

import contextlib
import fcntl
import itertools
import json
import math
import threading

import numpy as np
import pytest
import torch

from rankwise.errors import ConfigError, FencedError, RunDirError
from rankwise.testing import run_ranks
from rankwise.tracking import RunDir, Sink, Tracker, read_metrics
from rankwise.tracking.services.outbox import Outbox
from rankwise.world import World


def opened(path):
    return RunDir.open(path, config={}, world=World.single())


class ListSink:
    def __init__(self):
        self.calls = []

    def start(self, attempt, restored_step):
        self.calls.append(("start", attempt, restored_step))

    def log(self, step, values, tags):
        self.calls.append(("log", step, dict(values), dict(tags)))

    def close(self):
        self.calls.append(("close",))


def test_lines_carry_step_epoch_attempt_and_time(tmp_path):
    """A resumed run goes on where its checkpoint was, in the same file."""
    for restored in (None, 1):
        with opened(tmp_path) as run, Tracker(run, world=World.single()) as tracker:
            tracker.start_attempt(restored)
            for step in (1, 2) if restored is None else (2, 3):
                tracker.log(step, {"loss": torch.tensor(0.5), "n": np.int64(3)}, epoch=0)
                # on its way to the disk at once, not at the end
                assert read_metrics(tmp_path)[-1]["step"] == step
    lines = read_metrics(tmp_path)
    assert [(line["step"], line["attempt"]) for line in lines] == [(1, 1), (2, 2), (3, 2)]
    assert list(lines[0]) == ["step", "epoch", "attempt", "time", "loss", "n"]
    assert (lines[0]["epoch"], lines[0]["loss"], lines[0]["n"]) == (0, 0.5, 3)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 6


def test_an_attempt_that_says_nothing_starts_from_nothing(tmp_path):
    """Without start_attempt, what earlier attempts logged is superseded."""
    for _ in range(2):
        with Tracker(tmp_path, world=World.single()) as tracker:
            tracker.log(5, {"loss": 1.0})
    assert [line["attempt"] for line in read_metrics(tmp_path)] == [2]


def test_own_sinks_get_everything(tmp_path):
    """Any object with start, log and close is a sink; it is closed once."""
    sink = ListSink()
    assert isinstance(sink, Sink)
    with Tracker(tmp_path, world=World.single(), sinks=["jsonl", sink]) as tracker:
        tracker.log(3, {"loss": float("inf")}, epoch=1, phase="val")
    tracker.close()
    assert sink.calls == [
        ("start", 1, None),
        ("log", 3, {"loss": float("inf")}, {"epoch": 1, "phase": "val"}),
        ("close",),
    ]
    assert read_metrics(tmp_path)[0]["phase"] == "val"
    with pytest.raises(ConfigError, match=r"a sink must be 'jsonl', .* or an object"):
        Tracker(tmp_path, world=World.single(), sinks=["json"])


@pytest.mark.parametrize(
    ("values", "tags", "message"),
    [
        ({"loss": "high"}, {}, "'loss' must be a number, got 'high'; log text as a tag"),
        ({"loss": torch.ones(2)}, {}, "'loss' must be one number"),
        ({"loss": None}, {}, "must be a number, got None"),
        ({"step": 1}, {}, "reserved or occur twice.* step"),
        ({"loss": 1}, {"loss": "x"}, "occur twice: loss"),
        ({"loss": 1}, {"time": 3}, "time"),
        ({"loss": 1}, {"where": {1}}, "tag 'where'"),
        ({1: 0.5}, {}, "names of metrics must be strings, got 1"),
    ],
)
def test_what_is_no_number_is_refused(tmp_path, values, tags, message):
    """And nothing is written of that line."""
    with Tracker(tmp_path, world=World.single()) as tracker:
        with pytest.raises(ConfigError, match=message):
            tracker.log(1, values, **tags)
        assert read_metrics(tmp_path) == []


def log_on_ranks(world, path):
    with RunDir.open(path, config={}, world=world) as run, Tracker(run, world=world) as tracker:
        tracker.start_attempt(None)
        tracker.log(1, {"rank": world.rank})
        if world.rank == 1:  # no collective: one rank may log alone
            tracker.log(2, {"rank": world.rank})
        world.barrier()
    return len(path.joinpath("metrics.jsonl").read_text().splitlines())


def test_only_the_main_rank_writes(tmp_path):
    """Each line once, whichever ranks call log."""
    assert run_ranks(log_on_ranks, 2, tmp_path / "run") == [2, 2]
    (line,) = read_metrics(tmp_path / "run")
    assert line["rank"] == 0


def test_tensorboard_sees_the_surviving_lineage(tmp_path):
    """Scalars arrive; a resumed attempt purges the steps that no longer count."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for restored, steps in ((None, (1, 2, 3)), (1, (2,))):
        with opened(tmp_path) as run, Tracker(run, world=World.single(), tensorboard=True) as tracker:
            tracker.start_attempt(restored)
            for step in steps:
                tracker.log(step, {"loss": step / 10 + run.attempt}, epoch=0)
                tracker.log(step, {"loss": 5.0}, phase="val")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, round(event.value, 4)) for event in events.Scalars("loss")] == [(1, 1.1), (2, 2.2)]
    assert [event.step for event in events.Scalars("val/loss")] == [1, 2]


def test_a_missing_tensorboard_is_said_with_its_extra(tmp_path, monkeypatch):
    """The error names the extra."""
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"rankwise\[train,tensorboard\]"):
        Tracker(tmp_path, world=World.single(), tensorboard=True)


def test_lines_are_plain_json(tmp_path):
    """Any reader of JSON lines can take them."""
    with Tracker(tmp_path, world=World.single()) as tracker:
        tracker.log(1, {"loss": 0.25})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    read = [json.loads(text, parse_constant=pytest.fail) for text in lines]
    assert [line["loss"] for line in read if "loss" in line] == [0.25]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_left_over_is_fenced_at_its_next_line(tmp_path, fresh, monkeypatch):
    """Lines of a second share one fence, and still each sees that another attempt, or another run, is there."""
    left = opened(tmp_path / "run")
    lines = Tracker(left, world=World.single())
    fences, real = [], RunDir._enter_fence
    monkeypatch.setattr(RunDir, "_enter_fence", lambda run: fences.append(run) or real(run))
    monkeypatch.setattr("rankwise.tracking.run_dir._LOOK_S", 3600.0)
    for step in range(1, 21):
        lines.log(step, {"loss": 1.0})
    assert len(fences) == 1
    left.close()
    with RunDir.open(tmp_path / "run", config={}, world=World.single(), fresh=fresh) as run:
        with Tracker(run, world=World.single()) as newer:
            newer.start_attempt(10)
            with pytest.raises(FencedError, match="this process is attempt 1"):
                lines.log(21, {"loss": 2.0})
            # between its look and its write: read as superseded; another file is seen all the same
            left.is_undisturbed = lambda: True
            with pytest.raises(FencedError) if fresh else contextlib.nullcontext():
                lines.log(9, {"loss": 2.0})
            newer.log(11, {"loss": 3.0})
        lines.close()
    assert [line["loss"] for line in read_metrics(tmp_path / "run")] == ([] if fresh else [1.0] * 10) + [3.0]


def test_lines_that_may_wait_are_written_together(tmp_path):
    """Nothing waits behind `flush` and `close`; lines of an attempt that has lost its run are dropped."""
    with opened(tmp_path / "run") as run, Tracker(run, world=World.single(), hold_s=3600.0) as tracker:
        for step in (1, 2, 3):
            tracker.log(step, {"loss": float(step)})
            assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1]
        tracker.flush()
        assert [line["step"] for line in read_metrics(tmp_path / "run")] == [1, 2, 3]
        tracker.log(4, {"loss": math.nan})
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert math.isnan(lines[-1]["loss"])
    assert all(line["time"] <= after["time"] for line, after in itertools.pairwise(lines))


def test_a_table_keeps_what_json_lacks(tmp_path):
    """A prediction may be NaN or infinite: the file says which with null, and sinks get the numbers."""
    taken = []

    class Tables(ListSink):
        def table(self, table):
            taken.append(table)

    columns = {"name": ["a", "b", "c"], "score": np.array([1.0, math.nan, -math.inf])}
    with Tracker(tmp_path, world=World.single(), sinks=[Tables()]) as tracker:
        tracker.table(3, "scores", columns)
    assert json.loads(
        (tmp_path / "tables" / "scores" / "step-00000003.json").read_text(), parse_constant=pytest.fail
    ) == {
        "step": 3,
        "columns": {"name": ["a", "b", "c"], "score": [1.0, None, None]},
        "nonfinite": {"score": {"1": "nan", "2": "-inf"}},
    }
    assert [str(value) for value in taken[0].columns["score"]] == ["1.0", "nan", "-inf"]


def test_a_sink_that_does_not_close_takes_no_lines_along(tmp_path):
    """What waits is written all the same, and the error is told."""

    class Broken(ListSink):
        def close(self):
            raise OSError("no space")

    tracker = Tracker(tmp_path, world=World.single(), sinks=[Broken()], hold_s=1e9)
    for step in (1, 2, 3):
        tracker.log(step, {"loss": 1.0})
    with pytest.raises(OSError, match="no space"):
        tracker.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]


def test_what_waits_is_dropped_where_the_run_is_lost(tmp_path):
    """`flush` says so; `close` does not stand in the way of the error that brought it."""
    path = tmp_path / "run"
    with opened(path) as run, Tracker(run, world=World.single(), hold_s=3600.0) as tracker:
        for step in (1, 2):
            tracker.log(step, {"loss": 1.0})
        record = json.loads((path / "attempt.json").read_text())
        (path / "attempt.json").write_text(json.dumps({**record, "attempt": 2}))
        with pytest.raises(FencedError):
            tracker.flush()
        tracker.log(3, {"loss": 1.0})
    assert [line["step"] for line in read_metrics(path)] == [1]


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [event.step for event in events.Scalars("loss")]


def test_a_tensorboard_that_cannot_write_does_not_stop_the_run(tmp_path, caplog, monkeypatch):
    """It is said once, and the lines are written when there is space again."""
    from torch.utils.tensorboard import SummaryWriter

    def full(*_, **__):
        monkeypatch.undo()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SummaryWriter, "flush", full)
    with opened(tmp_path) as run, Tracker(run, world=World.single(), tensorboard=True) as tracker:
        for step in (1, 2):
            tracker.log(step, {"loss": 1.0})
        tracker.table(3, "few", {"a": [1]})
    assert sorted(set(scalars(tmp_path / "tensorboard"))) == [1, 2]
    (said,) = [record.getMessage() for record in caplog.records if "TensorBoard" in record.getMessage()]
    assert said.endswith("sending is retried: OSError: [Errno 28] No space left on device")
    assert not (tmp_path / "trackers.json").exists()


def test_a_tensorboard_that_hangs_does_not_hang_the_run(tmp_path, caplog, monkeypatch):
    """Neither its lines nor the end of the run wait for it longer than for other services."""
    from torch.utils.tensorboard import SummaryWriter

    released = threading.Event()
    monkeypatch.setattr(SummaryWriter, "flush", lambda _: released.wait())
    monkeypatch.setattr(Outbox.__init__, "__kwdefaults__", {"limit": 10, "close_s": 0.1})
    with Tracker(tmp_path, world=World.single(), tensorboard=True) as tracker:
        for step in (1, 2):
            tracker.log(step, {"loss": 1.0})
    assert len(read_metrics(tmp_path)) == 2
    assert "TensorBoard did not receive everything: 2 lines were dropped" in caplog.text
    released.set()


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    """The system's error of a descriptor has no name."""

    def full(*_):
        raise OSError(28, "No space left on device")

    with opened(tmp_path) as run, Tracker(run, world=World.single()) as tracker:
        tracker.log(1, {"loss": 1.0})
        monkeypatch.setattr("rankwise.tracking.metrics_file.os.write", full)
        with pytest.raises(OSError, match=r"No space left on device: .*metrics\.jsonl"):
            tracker.log(2, {"loss": 2.0})
        monkeypatch.undo()


def test_a_removed_file_is_written_anew(tmp_path, caplog):
    """No number is lost, neither between two lines nor before the end; a replaced file is gone on with."""
    file = tmp_path / "metrics.jsonl"
    with opened(tmp_path) as run, Tracker(run, world=World.single()) as tracker:
        for step in (1, 2):
            tracker.log(step, {"loss": 1.0})
            file.unlink()
        tracker.log(3, {"loss": 1.0})
        assert [line["step"] for line in read_metrics(tmp_path, all=True)[1:]] == [1, 2, 3]
        file.unlink()
        tracker.flush()
        assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]
        assert [record.getMessage().split()[0] for record in caplog.records] == [str(file)] * 3
        file.with_name("edited").write_text(file.read_text())
        file.with_name("edited").replace(file)
        tracker.log(4, {"loss": 1.0})
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4]
    assert len(caplog.records) == 3


def test_two_processes_do_not_log_into_one_folder(tmp_path, monkeypatch):
    """Each would supersede the other's lines."""
    monkeypatch.setattr("rankwise._process.lock._FOLDER_WAIT_S", 0.0)
    tracker = Tracker(tmp_path, world=World.single())
    with (tmp_path / "running.lock").open() as other:  # as another process has it
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        tracker.close()
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(
            RunDirError, match=rf"the folder {tmp_path} is in use by .* stop that process, or use anoth"
        ):
            Tracker(tmp_path, world=World.single())
