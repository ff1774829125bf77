"""Which processes of this machine are ranks."""

import json
import os

import pytest

from rankwise import vitals
from rankwise.cli.diagnosis import watch_command
from rankwise.diagnose.watch import jobs, slurm
from rankwise.errors import ConfigError, LaunchError
from rankwise.vitals.recorder import Recorder


def test_a_rank_that_is_the_first_process_of_its_container(monkeypatch):
    """Its parent is not in the container: the kernel calls it 0."""
    monkeypatch.setattr(jobs, "parent_process", lambda _: 0)
    folder = vitals.make_folder()
    recorder = Recorder(folder, 0)
    try:
        assert os.getpid() in {vital.pid for job in jobs.running_jobs() for vital in job.ranks}
    finally:
        recorder.stop()
        vitals.remove_folder(folder)


def test_the_list_of_jobs(monkeypatch, capsys):
    """As JSON where that is asked for; no job is said in words; a job that is named beside it is refused."""
    monkeypatch.setattr(jobs, "running_jobs", list)
    watch_command(list_jobs=True)
    assert capsys.readouterr().out.startswith("no job of this user runs")
    watch_command(list_jobs=True, as_json=True)
    assert json.loads(capsys.readouterr().out) == []
    folder = vitals.make_folder()
    recorder = Recorder(folder, 0)
    monkeypatch.undo()
    try:
        watch_command(list_jobs=True, as_json=True)
        assert os.getppid() in {job["launcher"] for job in json.loads(capsys.readouterr().out)}
    finally:
        recorder.stop()
        vitals.remove_folder(folder)
    with pytest.raises(ConfigError, match="takes no job, got '7'"):
        watch_command("7", list_jobs=True)


@pytest.mark.parametrize("job", ["", "x", "12.", "-V", "12_3_4", "12 "])
def test_what_is_no_slurm_job_is_refused_before_slurm_is_asked(job):
    """Here is no Slurm: asking it would be another error."""
    with pytest.raises(ConfigError, match=f"needs a job id, such as 12, 12_3, 12.0 or 12.batch, got {job!r}"):
        watch_command(slurm=job)


def test_a_folder_that_cannot_be_created_for_the_answers_is_said(tmp_path, monkeypatch):
    """With the place and the variable that moves it, before a job step is started."""
    fields = {"JobId": "12", "JobState": "RUNNING", "NodeList": "node1"}
    monkeypatch.setattr(slurm, "job_fields", lambda _: fields)
    (tmp_path / "taken").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "taken"))
    with pytest.raises(LaunchError, match=r"answers of the nodes cannot be created: .*/taken.*; set XDG_STATE_HOME"):
        watch_command(slurm="12", timeout_s=1.0)
