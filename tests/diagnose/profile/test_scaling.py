"""Scaling judged from runs whose noise is known, and once from real ones."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.diagnose.profile import Script, measure_scaling
from rankwise.diagnose.profile.parts import PARTS
from rankwise.diagnose.profile.runs import sweep_setting
from rankwise.diagnose.profile.scaling import Scaling, TimedRun, evaluate_scaling
from rankwise.diagnose.profile.table import scaling_text
from rankwise.errors import ConfigError, LaunchError

JOB = str(Path(__file__).with_name("job.py"))
ALONE = dict.fromkeys(PARTS, 0.0) | {"forward": 0.4, "backward": 0.6}
TOGETHER = dict.fromkeys(PARTS, 0.0) | {"forward": 0.2, "backward": 0.3, "transfer": 0.5}


def runs_of(ranks, times_ms, *, batch=8.0, share=ALONE):
    return [
        TimedRun(ranks=ranks, repeat=repeat, step_ms=time, global_batch=batch, share=share)
        for repeat, time in enumerate(times_ms)
    ]


def test_the_loss_is_attributed_and_adds_up():
    """Weak scaling, steps that take twice as long because of transfer: half is lost, and all of it to transfer."""
    runs = runs_of(1, [10, 10.1, 9.9]) + runs_of(2, [20, 20.2, 19.8], batch=16.0, share=TOGETHER)
    (_, size), mode = evaluate_scaling(runs, [1, 2], None)
    assert mode == "weak"
    assert size.efficiency == pytest.approx(0.5)
    assert size.throughput == pytest.approx(800)
    assert size.lost == pytest.approx({part: 0.5 * (part == "transfer") for part in PARTS})
    assert size.text == "loses 50%: transfer 50%"


def test_strong_and_other_scaling_are_told_apart():
    """The ideal step of a fixed batch is half as long on two ranks; without batches somebody has to say which it is."""
    first, second = runs_of(1, [10, 10.1, 9.9]), runs_of(2, [5, 5.02, 4.97])
    (_, size), mode = evaluate_scaling(first + second, [1, 2], None)
    assert (mode, size.verdict) == ("strong", None)
    assert size.efficiency == pytest.approx(1.0, abs=0.01)
    assert evaluate_scaling(first + runs_of(2, [5, 5.1, 4.9], batch=11), [1, 2], None)[1] == "other"
    blind = [*runs_of(1, [10, 10.1, 9.9], batch=None), *runs_of(2, [10, 10.1, 9.9], batch=None)]
    (_, size), mode = evaluate_scaling(blind, [1, 2], None)
    assert (mode, size.efficiency, size.verdict) == (None, None, None)
    for said, efficiency in (("weak", 1.0), ("strong", 0.5)):
        assert evaluate_scaling(blind, [1, 2], said)[0][1].efficiency == pytest.approx(efficiency)


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.4])
def test_equal_settings_get_no_verdict_whatever_the_noise(noise):
    """Two sizes with one efficiency, by the same noisy clock: a verdict in one trial of twenty at most, as promised."""
    source = random.Random(3)

    def verdict(factor):
        first, second = ([f * source.lognormvariate(2, noise) for _ in range(4)] for f in (1.0, factor))
        (_, size), _ = evaluate_scaling(runs_of(1, first) + runs_of(2, second, batch=16.0), [1, 2], None)
        assert size.efficiency_low <= size.efficiency <= size.efficiency_high
        return size.verdict is not None

    assert sum(verdict(1.0) for _ in range(300)) / 300 < 0.07
    assert noise > 0.1 or sum(verdict(2.0) for _ in range(300)) / 300 > 0.9


TIMES = st.lists(st.floats(0.5, 50), min_size=1, max_size=5)


@given(TIMES, TIMES, st.floats(1, 64), st.floats(1, 64))
def test_what_is_lost_is_what_efficiency_lacks(first, second, batch, other):
    """At any batches and times: the parts' losses add up to 1 - efficiency."""
    runs = runs_of(1, first, batch=batch) + runs_of(4, second, batch=other, share=TOGETHER)
    (_, size), _ = evaluate_scaling(runs, [1, 4], None)
    assert sum(size.lost.values()) == pytest.approx(1 - size.efficiency)


def test_real_ranks_are_measured(tmp_path):
    """One run each of one and two ranks: the batches are seen, too few runs give no verdict, the file is there."""
    command = [sys.executable, "-m", "rankwise", "scaling", "--ranks", "1,2", "--repeats", "1", "--steps", "6"]
    done = subprocess.run(
        [*command, "--skip", "2", "--min-efficiency", "0.9", "--run-dir", str(tmp_path), JOB],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "scaling.json").read_text())
    assert (facts["mode"], facts["unit"], sorted(facts["order"])) == ("weak", "samples/s", [1, 2])
    assert sorted(run["global_batch"] for run in facts["runs"]) == [8, 16]
    assert facts["sizes"][1]["text"] == "no verdict: 3 runs of each size are needed to measure their noise"
    assert "weak scaling, 1 runs of each size" in scaling_text(facts)
    assert done.stdout.startswith("weak scaling")


def test_a_size_below_the_least_is_found():
    """Only where it is certain."""
    runs = runs_of(1, [10, 10.1, 9.9]) + runs_of(2, [20, 20.2, 19.8], batch=16.0)
    sizes, mode = evaluate_scaling(runs, [1, 2], None)
    found = Scaling(runs=runs, sizes=sizes, mode=mode, steps=5, command=("train.py",))
    assert [found.falls_below(least) for least in (None, 0.4, 0.6)] == [False, False, True]


def test_a_script_that_takes_too_long_is_ended(tmp_path):
    """The time limit of the script holds for each of its runs."""
    path = tmp_path / "sleeps.py"
    path.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(LaunchError, match="failed on"):
        measure_scaling(Script(path=str(path), timeout_s=0.5), ranks=[1, 2], repeats=1)


def test_what_cannot_be_measured_is_refused(tmp_path):
    """Before anything starts: sizes, and what a sweep may change."""
    script = Script(path=JOB)
    for ranks in ([2], [0, 1], [2, 2]):
        with pytest.raises(ConfigError, match="two different numbers of ranks"):
            measure_scaling(script, ranks=ranks)
    with pytest.raises(ConfigError, match="at least 1, got 0, 20 and 5"):
        measure_scaling(script, repeats=0)
    for setting, values, repeats, words in (
        ("lr", [1, 2], 3, "a sweep must change one of bucket_mb"),
        ("bucket_mb", [5, 5], 3, "two different values"),
        ("bucket_mb", [0, 5], 3, "above 0"),
        ("static_graph", [0, 2], 3, "must be 0 or 1"),
        ("static_graph", [0, 1], 2, "repeats must be at least 3"),
    ):
        with pytest.raises(ConfigError, match=words):
            sweep_setting(script, setting, values, num_ranks=2, steps=3, skip=1, repeats=repeats, folder=tmp_path)
