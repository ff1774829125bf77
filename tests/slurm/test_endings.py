"""What the part of a submitted job in the batch script leaves for who waits: no Slurm is needed for it."""

import functools
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from rankwise.errors import LaunchError
from rankwise.launch.functions.callee import value_path
from rankwise.launch.job import Job
from rankwise.launch.local.console import Console
from rankwise.launch.slurm import handle as handle_module
from rankwise.launch.slurm import requeue as requeue_module
from rankwise.launch.slurm import submission
from rankwise.launch.slurm.allocation import Allocation
from rankwise.launch.slurm.handle import SlurmHandle
from rankwise.launch.slurm.request import Request
from rankwise.launch.slurm.requeue import Progress, requeue_job
from rankwise.launch.slurm.start import Record
from rankwise.launch.slurm.step import Ending
from rankwise.launch.target import Target


def fail():
    raise OSError("the disk is full")


@pytest.fixture
def slurm(monkeypatch):
    """What Slurm says of job 7, and does when it is asked to requeue it: to be changed by the test."""
    known = {"JobState": "COMPLETING", "Restarts": "0", "refuses": ""}

    def command(*words):
        assert words == ("scontrol", "requeue", "7")
        return subprocess.CompletedProcess(words, int(bool(known["refuses"])), "", known["refuses"])

    monkeypatch.setattr(handle_module, "job_fields", lambda _job: known)
    monkeypatch.setattr(requeue_module, "job_fields", lambda _job: known)
    monkeypatch.setattr(requeue_module, "slurm_command", command)
    return known


@pytest.fixture
def run(tmp_path, monkeypatch, slurm):
    """Run a submitted launch whose ranks end as given; returns the handle of who waits."""
    monkeypatch.setenv("SUBMITIT_FOLDER", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(
        submission.Allocation,
        "find",
        lambda _environ: Allocation(job_id="7", num_nodes=1, restarts=int(slurm["Restarts"])),
    )
    handle = SlurmHandle(job_id="7", folder=tmp_path, name="sum", num_ranks=0)

    def call(ending, code, **fields):
        def run_on_nodes(*_args, **_kwargs):
            assert handle.ending() is None, "the ending of the run before is still there"
            return ending

        monkeypatch.setattr(submission, "run_on_nodes", run_on_nodes)
        job = Job(target=Target(kind="call", name="/dev/null"), num_ranks=1)
        request = Request(folder=tmp_path, max_requeues=3)
        submitted = submission.Submitted(job=job, request=request, umask=0o022, **fields)
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
    assert run(Ending(), 0).ending()["exitcode"] == 0
    assert run(Ending(again=True, requeued=True), 75).ending() is None


def test_an_ending_counts_for_its_own_run_only(run, slurm):
    """One of a run before a requeue is no end, even if the next run has not begun; a stop is one when Slurm says so."""
    handle = run(Ending(record=Record(node=0, text="no luck", exitcode=3)), 3)
    assert handle.ending()["exitcode"] == 3
    slurm |= {"Restarts": "1", "JobState": "PENDING"}
    assert handle.ending() is None
    run(Ending(interrupted=15), 143)
    assert handle.ending() is None, "Slurm has not said yet whether it comes back"
    slurm["JobState"] = "PREEMPTED"
    assert handle.ending()["exitcode"] == 143


def test_a_value_of_a_class_of_the_main_program_is_read(run, tmp_path, monkeypatch):
    """The ranks import the main program as `__mp_main__`; who waits in that program finds the class there."""
    monkeypatch.delitem(sys.modules, "__mp_main__", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "Told", LaunchError, raising=False)
    value_path(tmp_path, 0).write_bytes(b"c__mp_main__\nTold\n.")
    assert replace(run(Ending(), 0), num_ranks=1).result() == [LaunchError]


def one_run(tmp_path, monkeypatch, *, restarts, checkpoint=None, step=None, most=100):
    """The end of one run of job 7: what is said where it is not requeued."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if checkpoint is not None:
        (tmp_path / "run" / "checkpoints" / f"step-{checkpoint:010}").mkdir(parents=True, exist_ok=True)
    allocation = Allocation(job_id="7", num_nodes=1, restarts=restarts)
    return requeue_job(allocation, Console(), Progress.find(tmp_path / "run", step), most=most)


def test_requeues_end_when_they_bring_nothing(tmp_path, monkeypatch, slurm):
    """Two in a row without a newer checkpoint, or step where there is none; what cannot be told is let be."""
    again = functools.partial(one_run, tmp_path, monkeypatch)
    assert [again(restarts=n, step=step) for n, step in enumerate([4, 4, 5, 5])] == [""] * 4
    assert "2 requeues in a row have brought no progress, no checkpoint in the run directory, and no step after 5" in (
        again(restarts=4, step=5)
    )
    assert [again(restarts=n) for n in range(4)] == [""] * 4
    assert [again(restarts=n, checkpoint=c, step=n) for n, c in enumerate([3, None, 7, None])] == [""] * 4
    assert "the newest checkpoint is still that of step 7" in again(restarts=4, step=9)
    assert again(restarts=0, step=5) == "", "another job of this number"


def test_requeues_are_counted(tmp_path, monkeypatch, slurm):
    """Slurm counts them, whoever asked for them; the limit is named."""
    assert one_run(tmp_path, monkeypatch, restarts=1, most=2) == ""
    assert "was requeued 2 time(s), at most 2 are allowed" in one_run(tmp_path, monkeypatch, restarts=2, most=2)


def test_a_requeue_that_slurm_refuses_is_an_ending(run, slurm, tmp_path, monkeypatch):
    """Nobody waits for a job that does not come back; an error of one that does is none."""
    slurm["refuses"] = "Requested operation is disabled"
    assert one_run(tmp_path, monkeypatch, restarts=0) == "", "Slurm is already about to start it again"
    slurm["JobState"] = "RUNNING"
    refused = one_run(tmp_path, monkeypatch, restarts=0)
    record = Record(node=0, text=refused, exitcode=75)
    with pytest.raises(LaunchError, match="cannot be requeued: Requested operation is disabled"):
        run(Ending(again=True, record=record), 75).result()
    assert json.loads((run(Ending(), 0).folder / "ending.json").read_bytes())["record"] is None
