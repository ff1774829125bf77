"""What a run died of stands in its directory, as the launcher saw it, and on the page of `rankwise report`."""

import json

from rankwise import World
from rankwise.diagnose.report import write_report
from rankwise.launch.failures.record import FILE, keep
from rankwise.launch.slurm.start import Record
from rankwise.tracking import RunDir

FAILS_TWICE = """
    import os, signal, time
    from rankwise import vitals

    vitals.beat(epoch=0, step=7)
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("a bad value")
    if os.environ["RANK"] == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
"""
STANDS_STILL = """
    import time
    from rankwise import vitals

    vitals.beat(epoch=0, step=3)
    time.sleep(1000)
"""


def test_each_failure_of_a_launch_is_kept(launcher):
    """Rank, host, exit, step, cause, traceback, restarts before and the other ranks, of an exception and a SIGKILL."""
    done = launcher.run("--nproc", 2, "--max-restarts", 1, "--run-dir", "run", launcher.script(FAILS_TWICE))
    assert done.returncode == 137, done.stderr
    run = launcher.folder / "run"
    raised, killed = json.loads((run / FILE).read_text())["failures"]
    assert (raised["rank"], raised["world_size"], raised["attempt"], raised["step"]) == (1, 2, 0, 7)
    assert (raised["exitcode"], raised["signal"], raised["hang"]) == (1, None, None)
    assert raised["cause"] == "raised ValueError: a bad value"
    assert raised["traceback"].startswith("Traceback")
    assert 'raise ValueError("a bad value")' in raised["traceback"]
    assert raised["others"] == ["rank 0: stopped by rankwise (SIGTERM)"]
    assert raised["logs"].endswith("attempt-0")
    assert (killed["rank"], killed["attempt"], killed["signal"], killed["exitcode"]) == (0, 1, "SIGKILL", 137)
    assert raised["time"] < killed["time"]
    (run / "metrics.jsonl").write_text("")
    [record] = write_report([run], run / "report.html")
    page = (run / "report.html").read_text()
    assert record.status == "failed"
    for text in ("2 start(s) of the ranks ended in a failure", "raised ValueError: a bad value", "SIGKILL", "1 of 2"):
        assert text in page, text


def test_a_standstill_and_the_hang_it_ended_in_are_kept(launcher):
    """The word of --stall, with the stacks, and the verdict of --hang-timeout with the places of the ranks."""
    options = ("--nproc", 2, "--stall", 1, "--hang-timeout", 8, "--grace", 1, "--run-dir", "run")
    launcher.run(*options, launcher.script(STANDS_STILL))
    run = launcher.folder / "run"
    found = json.loads((run / FILE).read_text())
    assert "no rank has advanced for" in found["standstills"][0]["text"]
    assert "script.py" in found["standstills"][0]["stacks"]
    [hung] = found["failures"]
    assert "no rank has made progress for 8 s" in hung["hang"]
    assert hung["step"] == 3
    assert "script.py" in hung["places"]["1"]
    assert "script.py" in hung["traceback"]
    with RunDir.open(run, config={}, world=World.current()) as opened:  # what a start before has died of is no obstacle
        assert opened.attempt == 1


def test_a_file_that_is_not_ours_is_put_aside(tmp_path):
    """Half a file is kept under another name, and said; the newest failures stay, the oldest go."""
    said = []
    (tmp_path / FILE).write_text('{"half": ')
    keep(tmp_path, {"rank": 1}, said.append)
    assert len(said) == 1
    assert len(list(tmp_path.glob(f"{FILE}.2*"))) == 1
    for rank in range(2, 80):
        keep(tmp_path, {"rank": rank}, said.append)
    ranks = [one["rank"] for one in json.loads((tmp_path / FILE).read_text())["failures"]]
    assert ranks == list(range(30, 80))
    keep(None, {}, said.append)
    (tmp_path / "file").touch()
    keep(tmp_path / "file" / "run", {}, said.append)
    assert len(said) == 2
    assert "events cannot be recorded in" in said[1]


def test_a_node_of_slurm_hands_its_failure_to_the_launcher(tmp_path):
    """The record of a node carries what the launcher keeps."""
    record = Record(node=1, text="it failed", failure={"rank": 3, "places": {"3": "a.py:1"}})
    record.write(tmp_path / "node-1.json")
    assert Record.read_all(tmp_path) == [record]
