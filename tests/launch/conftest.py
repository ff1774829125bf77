"""Start `rankwise run` as a user does, and look at processes from outside."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

DEADLINE_S = 240.0  # for machines that many share


class Launcher:
    """Writes scripts into a folder and starts them; kills what is left at the end of the test."""

    def __init__(self, folder):
        self.folder = folder
        self.started = []
        # a launch within a test must not depend on what the test run itself was started with
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWISE_", "TORCHELASTIC_"))}

    def script(self, text, name="script.py"):
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    def command(self, *options):
        return [sys.executable, "-P", "-m", "rankwise", "run", *map(str, options)]

    def run(self, *options, env=None, stdin=subprocess.DEVNULL, pass_fds=()):
        return subprocess.run(
            self.command(*options),
            cwd=self.folder,
            env={**self.env, **(env or {})},
            stdin=stdin,
            pass_fds=pass_fds,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def start(self, *options, command=None, **popen):
        popen = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "stdin": subprocess.DEVNULL,
        } | popen
        process = subprocess.Popen(command or self.command(*options), cwd=self.folder, env=self.env, **popen)
        self.started.append(process)
        return process

    def pids(self, *names):
        """Wait until every process has written its number to the file of its name."""
        return [int(self.text(name)) for name in names]

    def text(self, name):
        """Wait for a file and return what it holds; it is there once it is not empty."""
        path = self.folder / name
        until(lambda: path.exists() and path.read_text())
        return path.read_text()


def until(condition, seconds=DEADLINE_S):
    """Wait for a condition; fail when it does not come."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)
    return value


def alive(pid):
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def wait_until():
    return until


@pytest.fixture
def is_alive():
    return alive


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def carriers(mark):
    """Processes whose environment carries a mark, CELL=mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"CELL={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def marked():
    return carriers
