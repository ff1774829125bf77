"""The report: what the run's files hold stands on the page, nothing else runs there, and damage does not stop it."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankwise
from rankwise.cli.diagnosis import report_command
from rankwise.diagnose.report import write_report
from rankwise.diagnose.report.series import collect, envelope
from rankwise.errors import ConfigError

EVIL = "</script><img src=x onerror=\"document.title='owned'\"><!--\u2028&amp;"
PARTS = ["data", "forward", "other" + EVIL]


def make_run(path, *, num_steps=20, evil=""):
    """A run of two attempts with everything that a report reads; `evil` stands in every text."""
    logs, saved = path / "logs" / "attempt-0", path / "checkpoints" / "step-0000000010"
    logs.mkdir(parents=True)
    saved.mkdir(parents=True)
    around = {"world_size": 2, "host": f"node{evil}", "command": [f"train.py{evil}"], "torch": f"2.13{evil}"}
    environment = {"1": {**around, "time": 1.0}, "2": {**around, "time": 9e9, "changed": [f"lr{evil}"]}}
    config = {"created": 1.0, "config": {f"name{evil}": f"net{evil}"}, "environment": environment}
    lines = [{"event": "attempt", "attempt": 1, "restored_step": None}]
    for step in range(1, num_steps + 1):
        if step == 11:
            lines.append({"step": 12, "attempt": 1, "loss": 99.0})
            lines.append({"event": "attempt", "attempt": 2, "restored_step": 10})
        values = {"loss": 1 / step, f"odd{evil}": float(step), "tag": evil}
        lines.append({"step": step, "attempt": 1 + (step > 10), "time": float(step), **values})
    lines[5] |= {"loss": None, "nonfinite": {"loss": "nan"}}
    rank = {"rank": 0, "host": evil, "step_ms": 6.0, "mean_ms": dict.fromkeys(PARTS, 2.0)}
    finding = {"cause": evil, "rank": 1, "cost_ms": 2.0, "share": 0.5, "text": evil, "change": evil}
    profile = {"parts": PARTS if evil else ["data", "forward", "other"], "ranks": [rank], "findings": [finding]}
    profile |= {"straggler": {"rank": 1, "score": math.nan}, "sweep": {"setting": evil, "values": [{"verdict": evil}]}}
    failed = dict.fromkeys(("host", "cause", "traceback", "hang", "signal"), f"ValueError: boom{evil}")
    failed |= {"time": 2.0, "rank": 1, "world_size": 2, "places": {f"0{evil}": evil}, "others": [evil], "attempt": 0}
    files = {
        "failure.json": {"version": 1, "failures": [failed], "standstills": [{"text": f"stood still{evil}"}]},
        "config.json": config,
        "profile.json": profile,
        "scaling.json": {"unit": evil, "sizes": [{"ranks": 2, "throughput": 3.0, "text": evil}]},
        "lint.json": {"findings": [dict.fromkeys(("file", "code", "slug", "level", "message"), f"RW101{evil}")]},
        "doctor.json": [dict.fromkeys(("section", "name", "evidence", "mend"), f"shm{evil}") | {"status": "fail"}],
        "rankwise-stall-1.json": {"verdict": {"text": f"rank 2 has not joined all_reduce #417{evil}"}},
        "checkpoints/step-0000000010/manifest.json": {
            "step": 10,
            "parts": {"model": {"files": [{"bytes": 3 << 20}]}},
            "metrics": {"val_loss": 0.5, f"x{evil}": 1.0},
        },
    }
    for name, value in files.items():
        (path / name).write_text(json.dumps(value))
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 3, "att')
    said = (
        f"[replicas] after step 7, rank 1, w: differs{evil}; wanted: equal.\nrank 0 skipped 3 damaged samples in total"
    )
    (logs / "rank-1.err").write_text(f"{said}\n")
    return path


def page_of(*paths, **options):
    out = paths[0] / "report.html"
    write_report(paths, out, **options)
    return out.read_text()


def test_everything_that_is_recorded_is_told(tmp_path):
    """Each file of the run is found again in the page, and the lineage is the one that survives."""
    page = page_of(make_run(tmp_path / "run"))
    for text in (
        "2 has not joined all_reduce #417",
        "[replicas] after step 7, rank 1",
        "rank 0 skipped 3 damaged samples in total",
        "ValueError: boom",
        "stood still",
        "10 ★ best",
        "3 MiB",
        "Straggler: rank 1",
        "RW101",
        "doctor: 1 check(s) with status fail",
        "loss is not finite at 1 of 20 points",
        "1 lines of earlier attempts were left behind",
        "steps_per_s",
    ):
        assert text in page, text
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert data["runs"] == [{"name": "run", "restarts": [10], "saved": [10]}]
    [loss] = data["charts"][0]["series"]
    assert loss["x"] == list(range(1, 21))
    assert loss["mean"][4] is None
    assert loss["odd"] == [[5, "nan"]]
    assert max(value for value in loss["mean"] if value is not None) == 1


def test_a_finished_run_tells_its_steps_once(tmp_path):
    """Its final values are told beside them."""
    run = make_run(tmp_path / "run")
    (run / "finished.json").write_text(json.dumps({"attempt": 2, "time": 3.0, "values": {"num_steps": 20, "acc": 0.5}}))
    page = page_of(run)
    assert re.findall(r"<dt>(acc|(?:num_)?steps)</dt>", page) == ["steps", "acc"]


def test_text_of_a_run_is_never_markup(tmp_path):
    """`</script><img onerror>` in every text, JSON blocks included, adds no tag to the page of the same run without."""
    plain, evil = (page_of(make_run(tmp_path / name, evil=text)) for name, text in (("a", ""), ("b", EVIL)))
    tags = [sorted(re.findall(r"<[a-z!][a-z]*", page.lower())) for page in (plain, evil)]
    assert "owned" in evil
    assert "<img" not in evil
    assert tags[0] == tags[1]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', evil)[1]
    assert policy.startswith("default-src &#x27;none&#x27;;")
    assert not re.search(r'(?:src|href)="(?!#)', evil)


def test_a_long_curve_keeps_its_spikes(tmp_path):
    """100,000 steps become at most 1,500 ranges; their band holds the one wild value; the page stays small."""
    points = [(step, 1.0 if step != 77_777 else 500.0) for step in range(100_000)]
    curve = envelope(points, 1500)
    assert len(curve["x"]) == 1500
    assert max(curve["hi"]) == 500
    assert min(curve["lo"]) == 1
    assert curve["x"][0] == 0
    assert curve["last"] == 99_999
    page = page_of(make_run(tmp_path / "run", num_steps=20_000))
    assert len(page.encode()) < 2_000_000


def test_values_that_are_not_numbers_do_not_spoil_a_curve():
    """Infinity, NaN, huge integers, texts and booleans."""
    lines = [
        {"step": n, "a": value} for n, value in enumerate([1.0, math.inf, -math.inf, math.nan, 10**400, "x", True])
    ]
    curve = envelope(collect(lines)["a"], 10)
    assert curve["mean"] == [1.0, None, None, None, None]
    assert curve["num_odd"] == 4
    json.dumps(envelope([(n, 1.7e308) for n in range(100)], 5), allow_nan=False)


@pytest.mark.parametrize(
    "damage", ["config.json", "failure.json", "profile.json", "checkpoints/step-0000000010/manifest.json"]
)
def test_a_damaged_file_is_named_and_the_rest_is_told(tmp_path, damage):
    """Half a file, and a file of another shape."""
    run = make_run(tmp_path / "run")
    (run / damage).write_text('{"half": ')
    assert damage.split("/")[-1] in page_of(run)
    (run / damage).write_text("[1, null]")
    assert "0 skipped 3 damaged samples" in page_of(run)


def test_runs_side_by_side_mark_what_differs(tmp_path):
    """Two runs of one name are told apart by their parents; one run twice is refused."""
    one, two = make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run", num_steps=30)
    config = json.loads((two / "config.json").read_text())
    config["config"]["name"] = "wider"
    (two / "config.json").write_text(json.dumps(config))
    page = page_of(one, two)
    assert "<strong>config name ≠</strong>" in page
    assert "1: a/run" in page
    assert "2: b/run" in page
    with pytest.raises(ConfigError, match="each run once"):
        page_of(one, one)


def test_the_command_writes_the_page_without_torch(tmp_path):
    """An empty run is a page of "not recorded"; a folder that is no run is refused."""
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-X", "importtime", "-m", "rankwise", "report"]
    done = subprocess.run([*command, "run"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "holds no run" in done.stderr
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    done = subprocess.run([*command, "run", "-o", "p.html"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "p.html", done.stderr
    assert not re.search(r"\btorch$", done.stderr, re.MULTILINE)
    assert (tmp_path / "p.html").read_text().count("not recorded") >= 6


ODD = (None, True, "x", EVIL, -1, 10**400, math.nan, math.inf, [], [None], {}, {"a": {"b": EVIL}})


def leaves(value, path=()):
    """Yield the path of everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*path, key)
        yield from leaves(part, (*path, key))


def test_no_value_of_a_file_stops_the_page(tmp_path):
    """Each value of each file, one after the other, is of another kind, huge, not finite or missing."""
    run = make_run(tmp_path / "run")
    files = [*run.glob("*.json"), *run.glob("checkpoints/*/manifest.json")]
    assert len(files) == 8
    for file in files:
        text = file.read_text()
        for number, path in enumerate(leaves(json.loads(text))):
            changed = json.loads(text)
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            for odd in ODD[number % 5 :: 5]:
                inner[path[-1]] = odd
                file.write_text(json.dumps(changed))
                assert "<img" not in page_of(run), (file.name, path, odd)
        file.write_text(text)


def test_no_line_of_metrics_stops_the_page(tmp_path):
    """Cut, of another kind, with steps and times that are none: the good lines are drawn."""
    run = make_run(tmp_path / "run")
    good = (run / "metrics.jsonl").read_text()
    for step, attempt, time in (
        (10**400, 1, 1),
        (-3, 1, math.nan),
        (3, [], 1),
        ("3", 1, "x"),
        (None, None, None),
        (2.5, 1, 1e308),
    ):
        odd = json.dumps({"step": step, "attempt": attempt, "time": time, "loss": 0.5})
        (run / "metrics.jsonl").write_text(f"{good}\n{odd}\n[]\n7\n{{\n\x00\n{'[' * 100_000}\n")
        data = json.loads(re.search(r'id="data">(.*?)</script>', page_of(run))[1])
        assert len(data["charts"][0]["series"][0]["x"]) >= 20, (step, attempt, time)


def test_a_pipe_in_the_run_is_not_waited_for(tmp_path):
    """In place of a file and of a log; nested JSON too deep to be read is named as well."""
    run = make_run(tmp_path / "run")
    (run / "profile.json").unlink()
    for place in ("profile.json", "logs/attempt-0/rank-7.err"):
        os.mkfifo(run / place)
    (run / "lint.json").write_text("[" * 100_000)
    page = page_of(run)
    assert "profile.json is not a file" in page
    assert "lint.json cannot be read" in page
    assert "0 skipped 3 damaged samples" in page


@pytest.mark.parametrize(
    ("logger", "call"),
    [
        ("rankwise/data/feed/reader.py", "rank %d skips a damaged sample (%d of at most %d)%s: %s"),
        ("rankwise/data/feed/reader.py", "rank %d skipped %d damaged samples in total"),
        ("rankwise/data/crops/stream/reader.py", "skipped (%d of at most %d): %s"),
        ("rankwise/train/trainer.py", "%d of %d samples were damaged and left out of the training"),
    ],
)
def test_whoever_leaves_samples_out_is_heard(tmp_path, logger, call):
    """The words are those that the source logs, and stand on the page."""
    source = Path(rankwise.__file__).parents[1] / logger
    assert f'"{call}"' in source.read_text()
    run = make_run(tmp_path / "run")
    said = call.replace("%d", "7").replace("%s", "shard 3")
    (run / "logs" / "attempt-0" / "rank-1.err").write_text(f"WARNING {said}\n")
    assert said in page_of(run)


def test_the_page_on_standard_output(tmp_path):
    """`-o -` writes the page and nothing else there, and no file of that name."""
    make_run(tmp_path / "run")
    command = [sys.executable, "-m", "rankwise", "report", "run", "-o"]
    pages = [subprocess.run([*command, out], cwd=tmp_path, capture_output=True, check=True) for out in ("-", "file")]
    for page in (pages[0].stdout, (tmp_path / "file").read_bytes()):
        assert page.startswith(b"<!doctype html")
        assert page.endswith(b"</html>\n")
    assert pages[1].stdout == b"file\n"
    assert not (tmp_path / "-").exists()
    with pytest.raises(ConfigError, match="leave out --open"):
        report_command([tmp_path / "run"], out=Path("-"), show=True)
