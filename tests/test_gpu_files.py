"""What is written for machines with a GPU and cannot run here: it is at least found, marked and rehearsed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def collected(*arguments):
    """The tests below tests/gpu that a selection finds."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *arguments, "tests/gpu"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_every_test_for_a_gpu_is_marked():
    """`make test-gpu` finds all of them, and the usual run none."""
    assert len(collected("-m", "gpu")) == len(collected("-m", "gpu or not gpu")) > 15
    assert collected() == []


def test_the_benchmark_runs_without_a_gpu():
    """`bench/gpu.py --device cpu --quick`: every reader gives every image once, and a line is printed for each."""
    done = subprocess.run(
        [sys.executable, "bench/gpu.py", "--device", "cpu", "--quick", "--step-ms", "1"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for reader in (
        "limit",
        "SampleLoader, cast on the device",
        "SampleLoader, cast on the CPU",
        "DataLoader, 1 workers",
    ):
        assert reader in done.stdout
    assert "no GPU: a rehearsal" in done.stdout
