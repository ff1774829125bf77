"""Pages for those who come from somewhere else: their scripts run, before and after, and the diff shown is the diff."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.testing.held_ports import hold_port

ROOT = Path(__file__).parents[1]
MOVING = ROOT / "examples" / "moving"
PAGES = {
    "migration_torch_ddp.md": ("ddp_before.py", "ddp_after.py"),
    "migration_spawn.md": ("spawn_before.py", "spawn_after.py"),
}


@pytest.mark.parametrize("page", PAGES)
def test_the_diff_shown_is_the_diff(page):
    """What a page shows is what `diff -U1` gives for the two programs."""
    before, after = PAGES[page]
    lines = [(MOVING / name).read_text().splitlines(keepends=True) for name in (before, after)]
    wanted = "".join(difflib.unified_diff(*lines, before, after, n=1))
    (shown,) = re.findall(r"^```diff\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    assert shown == wanted


@pytest.fixture
def run_before(tmp_path):
    """Run a program of before; return what it said.

    How torch's own processes end is not asked: gloo's threads that meet the interpreter's finalisation abort some.
    """

    def run(*arguments, **variables):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1", **variables}, capture_output=True, text=True,
            timeout=240, check=False,
        ).stdout  # fmt: skip

    return run


def last_accuracy(output):
    return float(re.findall(r"accuracy ([\d.]+)", output)[-1])


def test_plain_ddp_runs_unchanged_under_our_launcher_and_after_the_move(tmp_path, run_python, run_before):
    """`rankwise run` takes the old script as it is; the new one learns as well, and comes back finished on one rank."""
    launch = ("-m", "rankwise", "run", "--nproc", "2")
    assert last_accuracy(run_before(*launch, MOVING / "ddp_before.py")) > 0.75
    output = run_python(tmp_path, *launch, MOVING / "ddp_after.py")
    assert last_accuracy(output) > 0.75
    again = run_python(tmp_path, MOVING / "ddp_after.py")
    assert "is finished" in again
    assert last_accuracy(again) == last_accuracy(output)


def test_spawned_ranks_with_gathered_counters(tmp_path, run_python, run_before):
    """The old program counts 298 of 297 images, as its page says; the new one shows 1500 of 1500 in every epoch."""
    before = run_before(MOVING / "spawn_before.py", PORT=str(hold_port()))
    assert before.count(" of 298") == 4
    after = run_python(tmp_path, MOVING / "spawn_after.py")
    assert after.count(" of 1500,") == 4
    assert last_accuracy(after) > 0.75
