"""The metrics file: which lines count, and what survives a kill."""

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.tracking import read_metrics
from rankwise.tracking.metrics_file import append_line, encode_line, open_lines, repair_tail


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def append(path, line):
    fd = open_lines(path)
    append_line(fd, line)
    os.close(fd)


def event(attempt, restored_step):
    return {"event": "attempt", "attempt": attempt, "restored_step": restored_step, "time": 0.0}


def line(attempt, step):
    return {"step": step, "epoch": 0, "attempt": attempt, "time": 0.0, "loss": attempt + step / 100}


def lineage(lines):
    return [(entry["attempt"], entry["step"]) for entry in lines]


def test_lines_past_the_restored_step_are_superseded(tmp_path):
    """They stay in the file; reading leaves them out, or marks them."""
    path = tmp_path / "metrics.jsonl"
    first = [event(1, None), line(1, 10), line(1, 20), line(1, 30)]
    write(path, [*first, event(2, 20), line(2, 30), line(2, 40), line(1, 35), event(3, 30), line(3, 40)])
    assert lineage(read_metrics(tmp_path)) == [(1, 10), (1, 20), (2, 30), (3, 40)]
    everything = read_metrics(path, all=True)
    assert len(everything) == 10
    gone = [(entry["attempt"], entry["step"]) for entry in everything if entry["superseded"]]
    assert gone == [(1, 30), (2, 40), (1, 35)]


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=5),
)
def test_the_lineage_is_that_of_an_undisturbed_run(tmp_path_factory, attempts):
    """Whatever attempts did and wherever they went back to: each surviving step is logged once, in order."""
    lines, steps = [], []
    for number, (back_to, length, late) in enumerate(attempts, start=1):
        restored = min(back_to, len(steps))
        del steps[restored:]
        lines.append(event(number, restored))
        for step in range(restored + 1, restored + length + 1):
            steps.append((number, step))
            lines.append(line(number, step))
        if number > 1:  # a left-over of the attempt before still writes
            lines += [line(number - 1, restored + extra) for extra in range(late)]
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    write(path, lines)
    assert lineage(read_metrics(path)) == steps


def test_an_attempt_from_nothing_supersedes_everything(tmp_path):
    """restored_step None means that no earlier line counts."""
    write(tmp_path / "metrics.jsonl", [event(1, None), line(1, 0), line(1, 1), event(2, None), line(2, 1)])
    assert lineage(read_metrics(tmp_path)) == [(2, 1)]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_tolerated_and_cut_off(tmp_path, cut):
    """After a kill in the middle of a line, reading gives the whole lines; repairing makes the file appendable."""
    path = tmp_path / "metrics.jsonl"
    write(path, [line(1, 1), line(1, 2)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert lineage(read_metrics(path)) == [(1, 1)]
    repair_tail(path)
    append(path, encode_line(line(1, 3), {}))
    assert lineage(read_metrics(path)) == [(1, 1), (1, 3)]


def test_repair_handles_odd_files(tmp_path):
    """Missing, empty, whole and newline-free files, and a torn line longer than the blocks that are searched."""
    path = tmp_path / "metrics.jsonl"
    repair_tail(path)
    assert not path.exists()
    for before, after in [(b"", b""), (b"a\n", b"a\n"), (b"abc", b""), (b"a\n" + b"x" * 200_000, b"a\n")]:
        path.write_bytes(before)
        repair_tail(path)
        assert path.read_bytes() == after


def test_non_finite_numbers_survive_strict_json(tmp_path):
    """The file holds null and the kind beside it; reading gives the float back."""
    path = tmp_path / "metrics.jsonl"
    append(path, encode_line({"step": 1, "attempt": 1}, {"a": math.nan, "b": -math.inf, "c": 2, "d": math.inf}))
    raw = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert raw == {
        "step": 1,
        "attempt": 1,
        "a": None,
        "b": None,
        "c": 2,
        "d": None,
        "nonfinite": {"a": "nan", "b": "-inf", "d": "inf"},
    }
    (back,) = read_metrics(path)
    assert math.isnan(back.pop("a"))
    assert back == {"step": 1, "attempt": 1, "b": -math.inf, "c": 2, "d": math.inf}


def test_a_line_that_is_no_json_is_named(tmp_path):
    """Damage in the middle is said and stepped over."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(line(1, 1)) + "\nnonsense\n" + json.dumps(line(1, 2)) + "\n")
    with pytest.warns(UserWarning, match=r"metrics\.jsonl, line 2 is not valid metrics"):
        assert lineage(read_metrics(path)) == [(1, 1), (1, 2)]


def test_no_file_is_no_lines(tmp_path):
    """Before the first log there is nothing."""
    assert read_metrics(tmp_path) == read_metrics(tmp_path / "metrics.jsonl") == []


def test_text_that_is_not_utf_8_comes_back(tmp_path):
    """A name of a file may hold any bytes, and then stands in a tag."""
    path = tmp_path / "metrics.jsonl"
    append(path, encode_line({"step": 1, "attempt": 1, "file": os.fsdecode(b"caf\xe9 \xc3\xa9")}, {"a": math.nan}))
    (back,) = read_metrics(path)
    assert os.fsencode(back["file"]) == b"caf\xe9 \xc3\xa9"


FOREIGN = [
    {"loss": 1.0},
    {"attempt": "one", "step": 1},
    {"attempt": 1},
    {"attempt": 1, "step": "2"},
    {"event": "attempt", "attempt": 2},
    {"event": "attempt", "attempt": 2, "restored_step": "x"},
    {"attempt": 1, "step": 1, "nonfinite": {"step": "nan"}},
    [1],
    7,
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=str)
def test_a_foreign_line_is_skipped_and_said(tmp_path, foreign):
    """A line of another program, or an edited one, is named by its number; the others count."""
    path = tmp_path / "metrics.jsonl"
    write(path, [event(1, None), line(1, 10), foreign, line(1, 20)])
    with pytest.warns(UserWarning, match=r"metrics\.jsonl, line 3 is not valid metrics and was skipped"):
        assert lineage(read_metrics(path)) == [(1, 10), (1, 20)]


def test_a_line_that_did_not_fit_spoils_no_other(tmp_path, monkeypatch):
    """A full disk takes a part of a line: it is cut off again, and the next line stands on its own."""
    file = tmp_path / "metrics.jsonl"
    write(file, [line(1, 1)])
    real, second = os.write, encode_line(line(1, 2), {})
    monkeypatch.setattr(os, "write", lambda fd, content: real(fd, content[:20]))
    with pytest.raises(OSError, match="only 20 of"):
        append(file, second)
    monkeypatch.undo()
    append(file, encode_line(line(1, 3), {}))
    assert [found["step"] for found in read_metrics(file)] == [1, 3]


def test_an_event_need_not_have_a_step(tmp_path):
    """One of another program may say null; the reader gives it back with all lines, and the others count."""
    other = {"event": "moved", "attempt": 1, "step": None}
    write(tmp_path / "metrics.jsonl", [event(1, None), line(1, 10), other, event(2, 10), line(2, 11)])
    assert lineage(read_metrics(tmp_path)) == [(1, 10), (2, 11)]
    assert read_metrics(tmp_path, all=True)[2] == {**other, "superseded": False}
