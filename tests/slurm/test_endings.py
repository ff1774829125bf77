"""What the part of a submitted job in the batch script leaves for who waits: no Slurm is needed for it."""

import json
import subprocess

import pytest

from rankwise.errors import LaunchError
from rankwise.launch.job import Job
from rankwise.launch.local.console import Console
from rankwise.launch.slurm import allocation as allocation_module
from rankwise.launch.slurm import submission
from rankwise.launch.slurm.allocation import Allocation, Ending
from rankwise.launch.slurm.handle import SlurmHandle
from rankwise.launch.target import Target


def fail():
    raise OSError("the disk is full")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a submitted launch whose ranks end as given; returns the handle of who waits."""
    monkeypatch.setenv("SUBMITIT_FOLDER", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(submission.Allocation, "find", lambda _environ: Allocation(job_id="7", num_nodes=1))
    handle = SlurmHandle(job_id="7", folder=tmp_path, name="sum", num_ranks=0)

    def call(ending, code, **fields):
        def run_on_nodes(*_args, **_kwargs):
            assert handle.ending() is None, "the ending of the run before is still there"
            return ending

        monkeypatch.setattr(submission, "run_on_nodes", run_on_nodes)
        job = Job(target=Target(kind="call", name="/dev/null"), num_ranks=1)
        submitted = submission.Submitted(job=job, requeue=True, umask=0o022, **fields)
        if code:
            with pytest.raises(SystemExit) as stop:
                submitted()
            assert stop.value.code == code
        else:
            submitted()
        return handle

    return call


def test_upon_finish_that_raises_is_the_failure_of_the_job(run):
    """Who waits gets its error and its traceback, not silence."""
    with pytest.raises(LaunchError, match=r"(?s)upon_finish raised OSError: the disk is full.*in fail"):
        run(Ending(), 1, upon_finish=fail).result()


def test_the_ending_of_a_run_before_a_requeue_is_gone(run):
    """Each run begins without an ending; one that is requeued leaves none."""
    assert run(Ending(interrupted=15), 143).ending()["exitcode"] == 143
    assert run(Ending(), 0).ending()["exitcode"] == 0
    assert run(Ending(again=True), 75).ending() is None


def test_a_requeue_that_slurm_refuses_is_an_ending(run, monkeypatch):
    """Nobody waits for a job that does not come back."""
    no = subprocess.CompletedProcess([], 1, "", "Requested operation is disabled\n")
    monkeypatch.setattr(allocation_module, "slurm_command", lambda *_words: no)
    refused = allocation_module._again(Allocation(job_id="7", num_nodes=1), Console(), requeue=True)
    record = submission.Record(node=0, host="", text=refused, exitcode=75)
    with pytest.raises(LaunchError, match="cannot be requeued: Requested operation is disabled"):
        run(Ending(again=True, record=record), 75).result()
    assert json.loads((run(Ending(), 0).folder / "ending.json").read_bytes())["record"] is None
