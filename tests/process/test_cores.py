"""Threads per rank."""

import pytest

from rankwise._process.cores import choose_threads, cpu_mask, usable_cores
from rankwise.errors import ConfigError


@pytest.mark.parametrize(
    ("requested", "environ", "cores", "sharers", "threads"),
    [
        (3, {"OMP_NUM_THREADS": "7"}, 8, 2, 3),
        (None, {"OMP_NUM_THREADS": "7"}, 8, 2, 7),
        (None, {"OMP_NUM_THREADS": "4,2"}, 8, 2, 4),
        (None, {}, 8, 2, 4),
        (None, {}, 8, 3, 2),
        (None, {}, 2, 5, 1),
        (None, {"OMP_NUM_THREADS": ""}, 6, 1, 6),
    ],
)
def test_the_choice(requested, environ, cores, sharers, threads):
    """The caller's wish, else OMP_NUM_THREADS, else an equal part of the shared cores, never less than one."""
    assert choose_threads(requested, environ=environ, cores=cores, sharers=sharers) == threads


def test_nonsense_is_refused():
    """Zero threads and OMP_NUM_THREADS=lots are errors that say so."""
    with pytest.raises(ConfigError, match="threads must be at least 1, got 0"):
        choose_threads(0, environ={}, cores=4, sharers=1)
    with pytest.raises(ConfigError, match="OMP_NUM_THREADS must be a number of at least 1, it is 'lots'"):
        choose_threads(None, environ={"OMP_NUM_THREADS": "lots"}, cores=4, sharers=1)


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", 16), ("250000 100000", 2), ("50000 100000", 1), ("odd", 16)]
)
def test_a_containers_quota_counts(tmp_path, text, cores):
    """A container that may use 2.5 of 16 cores gets 2."""
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(16, tmp_path, tmp_path / "none") == cores


def test_the_quota_of_any_group_above_counts(tmp_path):
    """A batch job's quota stands on the group of the job, not on the one of its step; version 1 has two files."""
    own = tmp_path / "own"
    step = tmp_path / "slurm" / "job_1" / "step_0"
    step.mkdir(parents=True)
    (step / "cpu.max").write_text("max 100000")
    (step.parent / "cpu.max").write_text("400000 100000")
    own.write_text("0::/slurm/job_1/step_0\n")
    assert usable_cores(16, tmp_path, own) == 4
    old = tmp_path / "cpu" / "job"
    old.mkdir(parents=True)
    (old / "cpu.cfs_quota_us").write_text("300000")
    (old / "cpu.cfs_period_us").write_text("100000")
    own.write_text("3:cpuset:/\n2:cpu:/job\n")
    assert usable_cores(16, tmp_path, own) == 3
    (old / "cpu.cfs_quota_us").write_text("-1")
    assert usable_cores(16, tmp_path, own) == 16


def test_this_process_has_cores():
    """The mask is what the system says, and not empty."""
    assert len(cpu_mask()) >= 1
    assert 1 <= usable_cores(len(cpu_mask())) <= len(cpu_mask())
