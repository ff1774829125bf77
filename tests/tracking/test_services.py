"""Numbers reach MLflow and W&B, whatever these do to the training: nothing; and attempts continue one curve."""

import gc
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from torch import nn

from rankwise import Order
from rankwise.errors import ConfigError
from rankwise.testing import ArrayLoader
from rankwise.testing.held_ports import hold_port
from rankwise.testing.patience import until
from rankwise.tracking import MlflowSink, Refused, Service, Tracker, WandbSink
from rankwise.tracking.services.outbox import Outbox, RunFacts
from rankwise.train import Hooks, Predictions, Trainer
from rankwise.world import World

SERVER = """
import os, sys
os.environ["_MLFLOW_SERVER_FILE_STORE"] = sys.argv[1]
os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = sys.argv[2]
from mlflow.server import app
app.run(host="127.0.0.1", port=int(sys.argv[3]))
"""


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "WANDB_ERROR_REPORTING": "false",
    }.items():
        monkeypatch.setenv(name, value)
    # a busy machine may take long to load a service's library, and to start its processes
    monkeypatch.setattr(Outbox.__init__, "__kwdefaults__", {**Outbox.__init__.__kwdefaults__, "close_s": 120.0})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real MLflow server on SQLite."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = hold_port()
    uri, output = f"http://127.0.0.1:{port}", folder / "server.log"
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with output.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, f"sqlite:///{folder}/runs.db", str(folder / "files"), str(port)],
            stdout=log,
            stderr=log,
            env=env,
        )
    try:
        for _ in range(600):
            try:
                with urlopen(f"{uri}/health", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, output.read_text()
                time.sleep(0.2)
        yield uri
    finally:
        process.kill()
        process.wait()


def client(uri):
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def only_run(uri, experiment):
    found = client(uri).get_experiment_by_name(experiment)
    (run,) = client(uri).search_runs([found.experiment_id])
    return run


def points(uri, run, name):
    return sorted((p.step, p.value) for p in client(uri).get_metric_history(run.info.run_id, name))


def wandb_rows(folder):
    """The rows of all offline parts, in the order in which they were written."""
    from wandb.proto import wandb_internal_pb2 as proto

    rows, ids = [], set()
    for file in sorted(folder.glob("offline-run-*/*.wandb")):
        for data in records(file.read_bytes()):
            record = proto.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "history":
                rows.append({(i.key or i.nested_key[0]): json.loads(i.value_json) for i in record.history.item})
    return ids, rows


def records(raw):
    """W&B writes LevelDB's log format: blocks of 32 KiB, each record with checksum, length and kind before it."""
    at, parts = 7, b""
    while at + 7 <= len(raw):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
        parts += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or last part
            yield parts
            parts = b""


def make_loader():
    rng = np.random.default_rng(2)
    arrays = {"x": rng.normal(size=(26, 4)), "y": rng.integers(0, 2, size=26)}
    order = Order(26, batch_size=8)
    return ArrayLoader(arrays, order, seed=order.seed, rank=0, world_size=1)


def step(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def make_trainer(**options):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, step, world=World.single(), progress=False, run="run", log_every=1, **options)


def sides(model, batch):
    return {
        "sample": ["left", "right"],
        "side": model(batch).argmax(1),
        "training": [model.training] * 2,
        "odd": [math.nan, 0.5],
    }


PREDICTIONS = Predictions(sides, torch.tensor([[9.0, 0, 0, 0], [-9.0, 0, 0, 0]]).double(), every=2)


class StopError(Exception):
    """Stands for a crash."""


def stop(trainer, _report):
    if trainer.session.progressed.num_steps == 6:
        raise StopError


def test_a_restart_continues_the_curves_without_doubled_points(server, tmp_path):
    """MLflow, W&B and TensorBoard at once: a run that crashed after step 6 and resumed at 4 has each step once."""
    trackers = [MlflowSink(uri=server, experiment="restart"), "wandb", "tensorboard"]
    config = {"width": 4, "hub": {"api_key": "abc"}}
    with pytest.raises(StopError):
        make_trainer(trackers=trackers, hooks=Hooks(step_end=stop), config=config).fit(make_loader(), epochs=2)
    run = only_run(server, "restart")
    assert run.info.status == "FAILED"
    assert [s for s, _ in points(server, run, "loss")] == [1, 2, 3, 4, 5, 6]
    before = points(server, run, "loss")

    trackers = [MlflowSink(uri=server, experiment="restart"), "wandb", "tensorboard"]
    result = make_trainer(trackers=trackers, config=config, hooks=PREDICTIONS).fit(make_loader(), epochs=2)
    assert result.resumed_step == 4
    run = only_run(server, "restart")
    loss = points(server, run, "loss")
    assert [s for s, _ in loss] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert loss[:6] == before
    assert [s for s, _ in points(server, run, "epoch_loss")] == [4, 8]
    assert run.info.status == "FINISHED"
    assert run.data.params["user.width"] == "4"
    assert run.data.params["user.hub.api_key"] == "***"
    assert run.data.tags["rankwise.attempt"] == "2"
    ids, rows = wandb_rows(tmp_path / "run" / "wandb")
    assert [row["_step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [row["loss"] for row in rows] == [value for _, value in loss]
    (table,) = (tmp_path / "run" / "tables" / "predictions").iterdir()
    columns = json.loads(table.read_text())["columns"]
    assert table.name == "step-00000008.json"
    assert sorted(columns.pop("side")) == [0, 1]
    assert columns == {"sample": ["left", "right"], "training": [False, False], "odd": [None, 0.5]}
    assert [file.path for file in client(server).list_artifacts(run.info.run_id, "predictions")] == [
        "predictions/step-00000008.json"
    ]
    assert [row["_step"] for row in rows if "predictions" in row] == [8]
    noted = json.loads((tmp_path / "run" / "trackers.json").read_text())["ids"]
    assert noted == {"MLflow": run.info.run_id, "W&B": ids.pop()}
    (manifest, *_) = (tmp_path / "run" / "checkpoints").glob("*/manifest.json")
    assert noted["MLflow"] in manifest.read_text()


class Fake:
    """A service that fails, hangs or refuses on command."""

    title = "fake"

    def __init__(self):
        self.lines, self.fail, self.calls, self.done = [], None, 0, None
        self.called = threading.Semaphore(0)

    def load(self):
        pass

    def connect(self, run, known_id):
        return known_id or run.run_id

    def send(self, lines):
        self.calls += 1
        fail = self.fail  # before the test hears of the call, and changes it
        self.called.release()
        if isinstance(fail, threading.Event):
            fail.wait()
        elif fail is not None:
            raise fail
        self.lines += lines

    def finish(self, *, done):
        self.done = done


def facts(restored_step):
    return RunFacts(run_id="r", folder=Path(), attempt=1, restored_step=restored_step, config={}, environment={})


def opened(service, **options):
    box = Outbox(service, facts, lambda: True, **options)
    box.start(1, None)
    return box


def test_an_error_is_said_once_counted_and_retried(caplog):
    """A service that comes back gets every line, in order."""
    service = Fake()
    service.fail = ConnectionError("no route")
    box = opened(service)
    for number in range(3):
        box.log(number, {"loss": number}, {"phase": "val"})
    for _ in range(2):
        assert service.called.acquire(timeout=60)
    service.fail = None
    box.close()
    assert [(line.step, dict(line.values)) for line in service.lines] == [(n, {"val/loss": n}) for n in range(3)]
    assert service.done is True
    assert box.num_errors >= 2
    assert box.num_dropped == 0
    assert [r.getMessage() for r in caplog.records if "no route" in r.getMessage()] == [
        "fake cannot be reached; training continues, and sending is retried: ConnectionError: no route"
    ]


def test_without_a_thread_the_training_goes_on(caplog, monkeypatch):
    """The system has no more threads: that is said, and the lines are counted."""

    def none_to_be_had(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_to_be_had)
    box = opened(Fake())
    box.log(1, {"loss": 1.0}, {})
    box.close()
    assert (box.num_dropped, box.num_errors) == (1, 1)
    assert "receives nothing; training continues: RuntimeError: can't start new thread" in caplog.text
    assert "1 lines were dropped" in caplog.text


def test_a_hanging_service_costs_counted_lines_and_a_bounded_close(caplog):
    """The outbox is bounded, `log` goes on, and `close` comes back although the service does not."""
    service, before = Fake(), set(threading.enumerate())
    hang = service.fail = threading.Event()
    box = opened(service, limit=5, close_s=0.5)
    (thread,) = set(threading.enumerate()) - before
    for number in range(20):
        box.log(number, {"loss": 0.0}, {})
    box.close()
    service.finish = service.send = None  # what comes after is an error, of which nothing is retried
    hang.set()
    thread.join(60)
    assert box.num_dropped == 20
    assert "20 lines were dropped" in caplog.text
    assert "retried" not in caplog.text


def test_lines_that_a_service_refuses_do_not_stop_those_behind():
    """They are dropped with a count."""
    service = Fake()
    service.fail = Refused("bad name")
    box = opened(service)
    box.log(1, {"loss": 0.0}, {})
    assert service.called.acquire(timeout=60)
    service.fail = None
    box.close()
    assert box.num_dropped == 1
    assert box.num_errors == 1


def test_a_dead_mlflow_does_not_stop_a_run(caplog, monkeypatch, tmp_path):
    """Nobody listens at the address: the run finishes and the loss of lines is said."""
    monkeypatch.setattr(Outbox.__init__, "__kwdefaults__", {"limit": 10, "close_s": 1.0})

    def hears_of_it(_trainer, _report):  # a run of a few steps may be over before the first attempt
        assert until(lambda: "MLflow cannot be reached" in caplog.text)

    trainer = make_trainer(trackers=[MlflowSink(uri="http://127.0.0.1:9")], hooks=Hooks(step_end=hears_of_it))
    assert trainer.fit(make_loader(), epochs=2).num_steps == 8
    assert "MLflow cannot be reached" in caplog.text
    assert "10 lines were dropped" in caplog.text


def test_a_wandb_that_hangs_keeps_its_lines_offline(tmp_path, monkeypatch, caplog):
    """The server accepts connections and never answers: no line is lost, and nothing waits for it afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        sink = WandbSink(mode="online", settings={"init_timeout": 0.5})
        with Tracker(tmp_path, world=World.single(), sinks=[sink]) as tracker:
            tracker.log(1, {"loss": 0.5})
    ids, rows = wandb_rows(tmp_path / "wandb")
    noted = json.loads((tmp_path / "trackers.json").read_text())["ids"]["W&B"]
    assert (ids, [row["loss"] for row in rows]) == ({noted}, [0.5])
    assert f"the lines of this attempt stay in {tmp_path / 'wandb'}: upload them with `wandb sync`" in caplog.text
    assert "dropped" not in caplog.text


def kill_wandb():
    """End the process of W&B that this one has started, as the kernel does when memory runs out."""
    started = [one for one in gc.get_objects() if isinstance(one, subprocess.Popen) and "wandb-core" in str(one.args)]
    (running,) = [one for one in started if one.poll() is None]
    running.kill()
    running.wait()


@pytest.mark.parametrize("before", [3, 600])
def test_a_wandb_whose_process_dies_loses_no_line(tmp_path, caplog, before):
    """Its file may hold none of the lines, or the first ones: the second part begins with what is missing."""
    sent = tmp_path / "wandb" / "sent.json"
    with Tracker(tmp_path, world=World.single(), sinks=["wandb"]) as tracker:
        for number in range(before):
            tracker.log(number, {"loss": number})
        assert until(lambda: sent.exists() and json.loads(sent.read_text())["step"] == before - 1)
        kill_wandb()
        tracker.log(before, {"loss": before})
    ids, rows = wandb_rows(tmp_path / "wandb")
    assert [(row["_step"], row["loss"]) for row in rows] == [(number, number) for number in range(before + 1)]
    assert len(ids) == 1
    assert "wandb-core) has died" in caplog.text
    assert "dropped" not in caplog.text


def test_services_are_sinks_of_a_tracker_without_a_run(server, tmp_path):
    """A folder will do; non-finite values and odd names arrive; the second tracker goes on in the same MLflow run."""
    world = World.single()
    for attempt in (1, 2):
        with Tracker(tmp_path, world=world, sinks=[MlflowSink(uri=server, experiment="folder")]) as tracker:
            tracker.start_attempt(None if attempt == 1 else 1)
            tracker.log(attempt, {"a@b": float("nan"), "n": attempt}, phase="val")
    run = only_run(server, "folder")
    assert points(server, run, "val/n") == [(1, 1.0), (2, 2.0)]
    assert np.isnan(points(server, run, "val/a_b")[0][1])
    assert run.info.status == "FINISHED"


def test_what_is_no_sink_is_refused(tmp_path):
    """With the names that there are."""
    assert isinstance(WandbSink(), Service)
    with pytest.raises(ConfigError, match="'jsonl', 'tensorboard', 'mlflow', 'wandb', a service"):
        Tracker(tmp_path, world=World.single(), sinks=["comet"])


def test_a_missing_package_is_said_with_its_extra(tmp_path, monkeypatch):
    """At construction, on every rank."""
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.setitem(sys.modules, f"{name}.tracking", None)
        with pytest.raises(ImportError, match=rf"rankwise\[{name}\]"):
            Tracker(tmp_path / name, world=World.single(), sinks=[name])
