"""`rankwise doctor --script`: the stages in their order; the first that fails ends it, with its mend."""

import json
import subprocess
import sys
from pathlib import Path

from rankwise.diagnose.comparison import Finding, Verdict
from rankwise.diagnose.doctor import Check
from rankwise.diagnose.stages import check_runs

SCRIPT = Path(__file__).parent / "scripts" / "plain.py"


def doctor(*words, cwd=None):
    command = [sys.executable, "-m", "rankwise", "doctor", "--json", "--only", "code,one rank,two ranks,profile,nccl"]
    words = [*command, *map(str, words)]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout, done.stderr
    return done.returncode, [Check(**fields) for fields in json.loads(done.stdout)]


def of(checks, section):
    return [check for check in checks if check.section == section]


def test_a_right_script_goes_through_all_stages(tmp_path):
    """Lint, one rank, two ranks that train the same; what is for the job itself is not run, and says how."""
    script = tmp_path / "plain.py"
    script.write_text(SCRIPT.read_text().replace("model.double()", "pass"))  # lint sees the bug that can be asked for
    code, checks = doctor("--script", script, "--steps", "3")
    assert code == 0, checks
    (two,) = of(checks, "two ranks")
    assert two.name == "first steps"
    assert two.evidence.startswith("2 ranks against 1 rank: 3 steps, the same samples")
    assert of(checks, "one rank")[0].status == "pass"
    profile = of(checks, "profile")[0]  # its six steps are just enough
    assert (profile.status, "ms on 2 gloo ranks" in profile.evidence) == ("pass", True), profile
    (last,) = of(checks, "nccl")
    assert (last.status, "--nccl-log" in last.mend) == ("not run", True)


def test_where_two_ranks_part_is_said_of_a_script_without_end(tmp_path):
    """A mean of means is right on one rank, and something else on two: the first steps are enough to see it."""
    script = tmp_path / "endless.py"
    script.write_text(SCRIPT.read_text().replace("range(2)", "iter(int, 1)"))
    code, checks = doctor("--script", script, "--steps", "2", "--skip", "code", "--", "--bugs", "mean_of_means")
    assert code == 1
    assert of(checks, "one rank")[0].status == "pass"
    (two,) = of(checks, "two ranks")
    assert (two.name, "mean of means" in two.mend) == ("differs: loss", True)
    assert of(checks, "profile")[0].evidence == "stopped at two ranks"


def test_a_script_that_fails_stops_it(tmp_path):
    """An exception on one rank is shown, and two ranks are not tried."""
    (tmp_path / "failing.py").write_text("raise ValueError('planted')")
    code, checks = doctor("--script", "failing.py", "--skip", "code", cwd=tmp_path)
    assert code == 1
    assert "planted" in of(checks, "one rank")[0].evidence
    assert of(checks, "two ranks")[0].evidence == "stopped at one rank"


def test_code_comes_first(tmp_path):
    """What lint calls an error ends it before anything has run."""
    (tmp_path / "wrong.py").write_text("import torch.distributed as d\nif d.get_rank() == 0:\n    d.barrier()\n")
    code, checks = doctor("--script", "wrong.py", cwd=tmp_path)
    assert code == 1
    assert "wrong.py:3" in of(checks, "code")[0].evidence
    assert {check.evidence for check in checks[1:]} == {"stopped at code"}


def test_findings_keep_their_stage():
    """What belongs to two ranks does not stand under one; a first run that fails has no second."""
    verdict = Verdict(findings=[Finding(run="2 ranks", step=1, what="loss", text="apart", reason="why")])
    one, two = check_runs(verdict, 5)
    assert (one.status, two.status, two.evidence, two.mend) == ("pass", "fail", "step 1: apart", "why")
    (only,) = check_runs(Verdict(findings=[Finding(run="1 rank", step=None, what="failed", text="x")]), 5)
    assert (only.section, only.status) == ("one rank", "fail")
