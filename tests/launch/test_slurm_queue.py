"""What Slurm is asked about jobs. Its answers are written here; real ones are in tests/slurm."""

import io
import math
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankwise.errors import ConfigError, LaunchError
from rankwise.launch.job import Job
from rankwise.launch.slurm import handle as handle_module
from rankwise.launch.slurm import launcher as launcher_module
from rankwise.launch.slurm import queue, submission
from rankwise.launch.slurm.request import Request
from rankwise.launch.target import Target


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


def test_a_job_that_is_unknown_is_not_a_controller_that_is_silent(asked):
    """Of the first nothing comes back; the second is trouble, of which nothing follows."""
    _, answers = asked
    answers["scontrol"] = 1, "", "slurm_load_jobs error: Invalid job id specified"
    assert queue.job_fields("7") is None
    answers["scontrol"] = 1, "", "slurm_load_jobs error: Unable to contact slurm controller"
    with pytest.raises(LaunchError, match="Unable to contact slurm controller"):
        queue.job_fields("7")
    assert queue.end_time("7") == math.inf


class Flaky:
    """Stands for a handle whose Slurm answers only now and then."""

    has_left_ending = False

    def __init__(self, answers):
        self._answers, self.times_asked = iter(answers), 0

    def ending(self):
        self.times_asked += 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self):
        return queue.JobState(state="RUNNING")


def test_who_waits_bears_silence_for_a_while(monkeypatch):
    """A controller that is restarted does not end the wait; one that stays away does."""
    now = [1000.0]
    monkeypatch.setattr(handle_module.time, "monotonic", lambda: now[0])
    silent = LaunchError("Slurm does not answer")
    answers = handle_module.poll(Flaky([silent, silent, None, silent, {"exitcode": 0}, silent, silent]))
    for seconds, wanted in ((0, None), (800, None), (800, "RUNNING"), (800, None), (800, None)):
        now[0] += seconds
        ending, found, _ = next(answers)
        assert (found and found.state) == wanted
    assert ending == {"exitcode": 0}
    now[0] += 10
    next(answers)
    now[0] += 901
    with pytest.raises(LaunchError, match="does not answer"):
        next(answers)


def test_slurm_is_asked_seldom(monkeypatch):
    """However often files are looked at; an ending that appears is looked at once, though it may not count."""
    now = [1000.0]
    monkeypatch.setattr(handle_module.time, "monotonic", lambda: now[0])
    job = Flaky([None] * 10)
    answers = handle_module.poll(job)
    for number in range(60):  # 18 seconds
        job.has_left_ending = number >= 30
        _, found, _ = next(answers)
        assert found.state == "RUNNING"
        now[0] += 0.3
    assert job.times_asked == 10


def test_output_is_shown_in_whole_characters(tmp_path):
    """A read may end inside of one."""
    shown, text = io.StringIO(), "naïve 日本\n".encode()
    tail = handle_module._Tail(tmp_path / "log", shown)
    assert not tail.copy()
    for end in range(1, len(text) + 1):
        (tmp_path / "log").write_bytes(text[:end])
        assert tail.copy()
    assert shown.getvalue() == "naïve 日本\n"


def test_the_logs_of_a_job_that_slurm_has_forgotten_end(asked, tmp_path, monkeypatch, capsys):
    """It will write nothing more: who follows them does not wait forever."""
    asked[1]["squeue"] = 1, "", "slurm_load_jobs error: Invalid job id specified\n"
    now = [1000.0]
    monkeypatch.setattr(handle_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(handle_module.time, "sleep", lambda _seconds: now.append(now.pop() + 1))
    job = handle_module.SlurmHandle(job_id="7", folder=tmp_path, name="sum", num_ranks=1)
    job.log_path().write_text("the output\n")
    handle_module.follow_logs(job, None, until_end=True)
    assert now[0] < 1030
    assert capsys.readouterr().out == "the output\n"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"folder": 7}', '{"job_id": "8", "fol', "\xff"])
def test_a_damaged_file_of_a_job_is_skipped(tmp_path, monkeypatch, capsys, text):
    """`rankwise jobs` lists the others and says so; who asks for that job is told the file."""
    monkeypatch.setattr(handle_module, "state_folder", lambda **_: tmp_path)
    job = handle_module.SlurmHandle(job_id="7", folder=tmp_path, name="sum", num_ranks=1)
    job.remember()
    damaged = tmp_path / "job-8.json"
    damaged.write_text(text, encoding="latin-1")
    assert handle_module.SlurmHandle.find_all() == [job]
    assert str(damaged) in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"job-8\.json, the file of a submitted job, cannot be read .*: remove it"):
        handle_module.SlurmHandle.find("8")


def test_a_job_in_which_another_is_submitted_is_hidden(monkeypatch):
    """From sbatch, which would hand the step of this one on; where Slurm is found stays."""
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    with submission._apart_from_here():
        assert {"SLURM_STEP_ID", "SLURM_MEM_PER_CPU"}.isdisjoint(os.environ)
        assert os.environ["SLURM_CONF"] == "/etc/slurm.conf"
    assert os.environ["SLURM_STEP_ID"] == "0"


def test_a_job_array_is_refused(tmp_path):
    """Its tasks would have numbers of their own, which nobody would wait for."""
    with pytest.raises(ConfigError, match=r"array=0-3: a job is one launch; submit one for each task"):
        Request(folder=tmp_path, parameters={"array": "0-3"})


def test_the_number_of_a_submitted_job_arrives(tmp_path, monkeypatch, capsys):
    """Even if the home folder is read-only: then the job is in the queue, and only its file is missing."""
    found = SimpleNamespace(job_id="7", paths=SimpleNamespace(folder=tmp_path))
    monkeypatch.setattr(submission, "_executor", lambda _: SimpleNamespace(submit=lambda _: found))
    monkeypatch.setattr(Request, "check", lambda *_: None)
    (tmp_path / "state").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    job = Job(target=Target(kind="module", name="train"), num_ranks=2)
    handle = submission.submit(job, Request(folder=tmp_path, ranks_per_node=2))
    assert handle.job_id == "7"
    told = capsys.readouterr().err
    assert "will not know job 7" in told
    assert "set XDG_STATE_HOME to a folder that the nodes share" in told
    assert handle_module.SlurmHandle.find_all() == []  # reading creates no folder


def test_names_in_any_encoding(tmp_path, monkeypatch, wait_until):
    """A job's name, and a comment in a batch script, need not be UTF-8."""
    (tmp_path / "squeue").write_bytes(b"#!/bin/sh\nprintf 'm\\351lange'\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert queue.slurm_command("squeue").stdout == "m\ufffdlange"
    script = tmp_path / "slurm_script"
    script.write_bytes(b"#!/bin/sh\n# m\xe9lange\n#SBATCH --signal=B:USR1@300\nread line\n")
    with subprocess.Popen(["sh", script], stdin=subprocess.PIPE) as shell:
        wait_until((Path("/proc") / str(shell.pid) / "cmdline").read_bytes)
        assert "--signal=B:USR1 signals only the batch shell" in launcher_module._shell_warning(shell.pid)
        shell.stdin.close()
