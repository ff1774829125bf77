"""Scripts in one process per rank, which have nothing but environment variables; forked from one that has torch."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LAUNCHERS = ("SLURM", "OMPI", "PMI", "RANK", "TORCHELASTIC", "MASTER", "WORLD", "LOCAL", "OMP")
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
PYTHON = [sys.executable, "-W", "ignore:This process:DeprecationWarning"]  # Python 3.12 warns of forks
DEADLINE_S = 280  # for machines that many share

# A line of stdin is a process to fork, which becomes the script, or one to wait for. What a fork sees of how it began
# is its own: environment, arguments, paths, streams. Only the two seconds that importing torch takes are shared.
SERVER = """
import json, os, signal, sys, threading, time
import torch.distributed, rankwise
rankwise.bind, rankwise.Order, rankwise.World

def wait(pid, deadline):
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    left.remove(pid)
    return os.waitstatus_to_exitcode(found[1])

def become(path, environment, out):
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, out + ".out", 0o1101), (2, out + ".err", 0o1101)):
        os.dup2(os.open(name, flags, 0o644), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:], sys.path[0] = [path], os.path.dirname(path)
    globals()["__file__"] = path
    return compile(open(path).read(), path, "exec")

assert threading.active_count() == 1  # a fork would lose the others
left = []
for line in sys.stdin:
    order = json.loads(line)
    if isinstance(order, int):
        print(wait(order, time.monotonic() + DEADLINE_S), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        exec(become(*order))
        break
    left.append(pid)
    print(pid, flush=True)
else:
    for pid in left:
        os.kill(pid, signal.SIGKILL)
"""


@pytest.fixture(scope="session")
def server():
    """The process that ranks are forked from."""
    text = SERVER.replace("DEADLINE_S", str(DEADLINE_S))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*PYTHON, "-c", text], env=CLEAN, text=True, **pipes) as started:

        def ask(order):
            started.stdin.write(json.dumps(order) + "\n")
            started.stdin.flush()
            return int(started.stdout.readline())

        yield ask


class Ranks:
    """A script in one process per environment, of its own or forked from the server; their output and exit codes."""

    def __init__(self, folder, script, environments, server):
        folder.mkdir(exist_ok=True)
        path = folder / "script.py"
        path.write_text(textwrap.dedent(script))
        begin = self._start if server is None else self._fork
        self._server, self._outs = server, [str(folder / f"said-{rank}") for rank in range(len(environments))]
        pairs = zip(environments, self._outs, strict=True)
        self._begun = [begin(str(path), CLEAN | variables, out) for variables, out in pairs]

    def _fork(self, path, environment, out):
        return self._server([path, environment, out])

    @staticmethod
    def _start(path, environment, out):
        with Path(out + ".out").open("w") as stdout, Path(out + ".err").open("w") as stderr:
            return subprocess.Popen([*PYTHON, path], env=environment, stdout=stdout, stderr=stderr)

    def end(self):
        """Wait for all; return (stdout, stderr, exit code) of each."""
        codes = [self._wait(begun) for begun in self._begun]
        texts = [[Path(f"{out}.{stream}").read_text() for stream in ("out", "err")] for out in self._outs]
        return [(*text, code) for text, code in zip(texts, codes, strict=True)]

    def _wait(self, begun):
        if self._server is not None:
            return self._server(begun)
        try:
            return begun.wait(DEADLINE_S)
        finally:
            begun.kill()
            begun.wait()


@pytest.fixture
def ranks_of(tmp_path, server):
    """``ranks_of(script, environments)`` starts `Ranks`; ``fresh=True`` has each import torch itself."""
    return lambda script, environments, *, folder="", fresh=False: Ranks(
        tmp_path / folder, script, environments, None if fresh else server
    )


@pytest.fixture
def no_launcher(monkeypatch):
    """This process has none of the variables by which launchers tell a rank its place."""
    for name in set(os.environ) - set(CLEAN):
        monkeypatch.delenv(name)
