"""What Slurm is asked about jobs. Its answers are written here; real ones are in tests/slurm."""

import subprocess

import pytest

from rankwise.errors import LaunchError
from rankwise.launch.slurm import queue


@pytest.fixture
def asked(monkeypatch):
    """The commands that were run; `answer` says what the next ones print, as (exit status, stdout, stderr)."""
    commands, answers = [], {}

    def run(*words):
        commands.append(words)
        status, out, err = answers.get(words[0], (1, "", "no such command"))
        return subprocess.CompletedProcess(words, status, out, err)

    monkeypatch.setattr(queue, "slurm_command", run)
    monkeypatch.setattr(queue.shutil, "which", lambda name: name if name in answers else None)
    return commands, answers


def test_only_the_jobs_of_interest_are_asked_for(asked):
    """One call for all of them, by number; nothing is asked about no job."""
    commands, answers = asked
    answers["squeue"] = 0, "7|RUNNING|None|n[1-2]\n9|PENDING|Resources|\n", ""
    found = queue.job_states(["7", "9"])
    assert (found["7"].state, found["7"].reason, found["9"].reason) == ("RUNNING", "", "Resources")
    ((name, wanted, *_),) = commands
    assert (name, wanted) == ("squeue", "--jobs=7,9")
    assert queue.job_states([]) == {}
    assert len(commands) == 1


def test_a_job_that_the_controller_has_forgotten_comes_from_the_accounting(asked):
    """Squeue fails where it knows none of the jobs: that is no trouble; other failures are."""
    commands, answers = asked
    answers["squeue"] = 1, "", "slurm_load_jobs error: Invalid job id specified\n"
    assert queue.job_states(["7"])["7"].state == "UNKNOWN"
    answers["sacct"] = 0, "7|CANCELLED by 1000|n1\n", ""
    assert queue.job_states(["7"])["7"].state == "CANCELLED"
    assert commands[-1][-1] == "7"
    answers["squeue"] = 1, "", "Unable to contact slurm controller\n"
    with pytest.raises(LaunchError, match="Unable to contact"):
        queue.job_states(["7"])
