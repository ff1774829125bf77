"""docs/broken.md is executed: each command runs and says what the page quotes; each mend clears what lint has found."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rankwise.diagnose.lint import Settings, check_source, source_from_text

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/broken.md").read_text()
SCRIPTS = sorted(path for path in (ROOT / "examples/broken").glob("*.py") if path.name != "guarded.py")
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^## .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
DIFF = re.compile(r"^```diff\n(.*?)^```", re.MULTILINE | re.DOTALL)
# rules that --select names in the page, because they are off by default
SHOWN = {"RW103", "RW110", "RW206", "RW301", "RW401", "RW501"}


# what test_verify.py shows as well, with the same words
ALSO_SHOWN = (
    "verify --ranks 2 examples/broken/no_set_epoch.py",
    "verify --ranks 2 examples/broken/padded_evaluation.py",
)


def shown_commands():
    """Each command of the page with the lines that it is said to print."""
    for block in CONSOLE.findall(PAGE):
        for part in block.split("$ ")[1:]:
            command, _, lines = part.partition("\n")
            name = command.removeprefix("rankwise ")
            marks = [pytest.mark.slow] if name in ALSO_SHOWN else []
            yield pytest.param(command, lines.splitlines(), id=name, marks=marks)


def is_said(line, output):
    """Whether some line of the output holds the pieces between the dots, in this order."""
    pieces = [re.escape(piece.strip()) for piece in line.split("...")]
    return re.search(".*".join(pieces), output) is not None


def missing(lines, output, folder):
    """Lines of the page that were not printed; paths are told from the folder of the call."""
    here = output.replace(f"{folder}/", "")
    return [line for line in lines if not is_said(line, here)]


def run(words, folder, lines):
    """Run to the end, or, what hangs by design, until the lines are there; return all that was printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if "--stall" in words:
        words = [words[0], "--grace", "1", *words[1:]]  # ranks that hang have nothing to save
    command = [sys.executable, "-m", "rankwise", *words]
    job = subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    deadline = threading.Timer(300, job.kill)
    deadline.start()
    output = ""
    try:
        for printed in job.stdout:
            output += printed
            if "--stall" in words and not missing(lines, output, folder):
                job.send_signal(signal.SIGINT)
                break
        output += job.stdout.read()
    finally:
        deadline.cancel()
        if job.poll() is None:
            job.send_signal(signal.SIGTERM)
        job.wait(timeout=100)
        job.stdout.close()
    return output


@pytest.mark.parametrize(("command", "lines"), list(shown_commands()))
def test_the_page_shows_what_is_printed(command, lines, tmp_path):
    """Each line of the page is in the output of its command."""
    shutil.copytree(ROOT / "examples/broken", tmp_path / "examples/broken")
    assert lines
    words = command.split()
    assert words[0] == "rankwise"
    output = run(words[1:], tmp_path, lines)
    assert missing(lines, output, tmp_path) == [], output


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_mend_of_the_page_clears_the_finding(script):
    """The diff fits the script, and what lint has found in it, and the page shows, is gone; nothing else came."""
    (section,) = [text for text in SECTION.findall(PAGE) if script.stem in text]
    (diff,) = DIFF.findall(section)
    old = "".join(line[1:] + "\n" for line in diff.splitlines() if line[0] == "-")
    new = "".join(line[1:] + "\n" for line in diff.splitlines() if line[0] == "+")
    text = script.read_text()
    assert text.count(old) == 1
    before, after = (
        {found.rule.code for found in check_source(source_from_text(code, script.name), Settings(select=("ALL",)))}
        & SHOWN
        for code in (text, text.replace(old, new))
    )
    assert before == set(re.findall(r"RW\d+", section))
    assert after == set()


def test_the_page_names_every_script():
    """Ten scripts, each in the table."""
    assert len(SCRIPTS) == 10
    assert [path.name for path in SCRIPTS if f"| `{path.name}` |" not in PAGE] == []
