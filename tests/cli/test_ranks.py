"""`--nproc` and `--env`."""

import pytest

from rankwise.cli import ranks
from rankwise.errors import ConfigError


@pytest.mark.parametrize(("word", "gpus", "count"), [("3", 0, 3), ("auto", 4, 4), ("auto", 0, 1), ("gpu", 2, 2)])
def test_counts(monkeypatch, word, gpus, count):
    """A number is itself; auto and gpu count GPUs; auto is 1 without any."""
    monkeypatch.setattr(ranks, "num_visible_gpus", lambda: gpus)
    assert ranks.count_ranks(word) == count


def test_cpu_counts_cores(monkeypatch):
    """Cpu is one rank per usable core."""
    monkeypatch.setattr(ranks, "num_usable_cores", lambda: 6)
    assert ranks.count_ranks("cpu") == 6


@pytest.mark.parametrize("word", ["0", "-1", "two", "", "1.5", "gpu"])
def test_what_cannot_be_counted_is_refused(monkeypatch, word):
    """Numbers below 1, other words, and gpu where there is none."""
    monkeypatch.setattr(ranks, "num_visible_gpus", lambda: 0)
    with pytest.raises(ConfigError, match="--nproc"):
        ranks.count_ranks(word)


def test_variables():
    """The value may hold equals signs, and be empty; a pair without one is refused."""
    assert ranks.parse_env(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        ranks.parse_env(["A"])
