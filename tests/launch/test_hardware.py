"""Cores and GPUs are counted without torch."""

import pytest

from rankwise.errors import ConfigError
from rankwise.launch import hardware


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("", 0), ("0,1", 2), ("3", 1), ("1,-1,2", 1), ("9", 0), ("GPU-a,GPU-b", 2), ("NoDevFiles", 0)],
)
def test_visible_gpus(monkeypatch, visible, count):
    """CUDA_VISIBLE_DEVICES counts as CUDA reads it: up to the first entry that names no device."""
    monkeypatch.setattr(hardware, "_num_present_gpus", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.num_visible_gpus() == count


@pytest.mark.parametrize(("word", "gpus", "count"), [("3", 0, 3), ("auto", 4, 4), ("auto", 0, 1), ("gpu", 2, 2)])
def test_counts(monkeypatch, word, gpus, count):
    """A number is itself; auto and gpu count GPUs; auto is 1 without any."""
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: gpus)
    assert hardware.count_ranks(word, "--nproc") == count


def test_cpu_counts_cores(monkeypatch):
    """Cpu is one rank per usable core."""
    monkeypatch.setattr(hardware, "num_usable_cores", lambda: 6)
    assert hardware.count_ranks("cpu", "--nproc") == 6


@pytest.mark.parametrize("word", ["0", "-1", "two", "", "1.5", "gpu", "16385", "99999999", "²"])
def test_what_cannot_be_counted_is_refused(monkeypatch, word):
    """Numbers below 1, more ranks than a machine runs, other words, and gpu where there is none."""
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 0)
    with pytest.raises(ConfigError, match="--nproc"):
        hardware.count_ranks(word, "--nproc")


@pytest.mark.parametrize(("word", "count"), [("auto", 6), ("gpu", 6), ("4", 4), ("6", 6)])
def test_several_ranks_per_gpu(monkeypatch, word, count):
    """Asked for, GPUs take K ranks each."""
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 2)
    assert hardware.count_ranks(word, "--nproc", ranks_per_gpu=3) == count


@pytest.mark.parametrize(
    ("word", "gpus", "said"),
    [
        ("7", 2, "needs 3 GPUs, 2 are visible: at most 6 ranks, or --ranks-per-gpu 4"),
        ("auto", 0, "none is visible here"),
        ("cpu", 2, "--nproc cpu uses none"),
    ],
)
def test_ranks_for_gpus_that_are_not_there(monkeypatch, word, gpus, said):
    """More ranks than the GPUs take is refused with the number that would do."""
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: gpus)
    with pytest.raises(ConfigError, match=said):
        hardware.count_ranks(word, "--nproc", ranks_per_gpu=3)
