"""Nodes in network namespaces: started as a user starts them, each with its output in a file of its own."""

import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from rankwise.testing.hosts import HostLab

DEADLINE_S = 240.0  # for machines that many share
TOKEN = f"a token that the tests have made {secrets.token_hex(4)}"  # other workers run tests of their own

# Ranks without torch: they beat, meet at rank 0's socket, exchange a number per step, save every step and obey signals.
RANKS = """
    import json, os, pathlib, signal, socket, sys, time
    from rankwise import vitals

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    here = pathlib.Path(os.environ["HERE"])
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    vitals.beat(epoch=0, step=0)

    def say(what):
        with (here / "events").open("a") as file:
            file.write(json.dumps({"what": what, "rank": rank, "size": size, "host": socket.gethostname(),
                "pid": os.getpid(), "parent": os.getppid(), "node": int(os.environ["GROUP_RANK"]),
                "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"]), "secret": os.environ["RANKWISE_SECRET"],
                "local": int(os.environ["LOCAL_RANK"]), "token": "RANKWISE_TOKEN" in os.environ}) + "\\n")

    if rank == 0:
        server = socket.create_server(place, reuse_port=False)
        peers = [server.accept()[0] for _ in range(size - 1)]
    else:
        while True:
            try:
                peers = [socket.create_connection(place, 5)]
                break
            except OSError:
                time.sleep(0.05)
    for peer in peers:
        peer.settimeout(None)

    def agree(stop):
        # rank 0 hears all, and tells all: 1 if anybody was asked to stop, 2 if the test has seen enough, else 0
        if rank == 0:
            heard = [peer.recv(1) for peer in peers]
            if b"" in heard:
                raise ConnectionError("connection closed by peer")
            word = b"1" if stop or b"1" in heard else b"2" if (here / "enough").exists() else b"0"
            for peer in peers:
                peer.sendall(word)
            return word
        peers[0].sendall(b"1" if stop else b"0")
        told = peers[0].recv(1)
        if told == b"":
            raise ConnectionError("connection closed by peer")
        return told

    saved = here / "saved"
    first = int(saved.read_text()) if saved.exists() and saved.read_text() else 0
    say("steps from")
    for step in range(first, 10**9):
        if (here / f"fail-{rank}").exists() and step >= first + 3:
            (here / f"fail-{rank}").unlink()
            raise ValueError("planted on rank " + str(rank))
        time.sleep(0.05)
        vitals.beat(epoch=0, step=step)
        word = agree(bool(stopping))
        if word == b"1":
            say("saved")
            sys.exit(75)
        if word == b"2":
            break
        if rank == 0:
            (here / "saved.part").write_text(str(step + 1))
            os.replace(here / "saved.part", saved)
    say("ended")
"""


class Nodes:
    """Supervisors on the hosts of a lab, in one folder."""

    def __init__(self, lab, folder):
        self.lab, self.folder = lab, folder
        self.started = {}
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("RANKWISE_", "TORCHELASTIC_"))}
        self.env |= {
            "HERE": str(folder),
            "RANKWISE_TOKEN": TOKEN,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(folder / "tmp"),
        }
        (folder / "tmp").mkdir()
        self.script = folder / "ranks.py"
        self.script.write_text(textwrap.dedent(RANKS))

    @staticmethod
    def until(condition, what="the condition", seconds=DEADLINE_S):
        """Wait for a condition; fail when it does not come."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"{what() if callable(what) else what} did not come true"
            time.sleep(0.05)
        return value

    @staticmethod
    def alive(pid):
        """Whether a process exists and is not a zombie."""
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def start(self, host, *options, script=None, env=None, name=None):
        words = [sys.executable, "-P", "-m", "rankwise", "run", *map(str, options), str(script or self.script)]
        name = name or host
        with (self.folder / f"console-{name}").open("ab") as out:
            self.started[name] = self.lab.start(
                host,
                *words,
                cwd=self.folder,
                env={**self.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return self.started[name]

    def console(self, name):
        path = self.folder / f"console-{name}"
        return path.read_text() if path.exists() else ""

    def all_consoles(self):
        return "\n".join(f"== {name}\n{self.console(name)}" for name in self.started)

    def says(self, name, text):
        """Wait until a node's console shows a text; return how long it took."""
        begun = time.monotonic()
        self.until(lambda: text in self.console(name), lambda: f"{name} does not say {text!r}:\n{self.all_consoles()}")
        return time.monotonic() - begun

    def ends(self, name):
        """Wait for a supervisor's end; return its exit code."""
        process = self.started[name]
        self.until(lambda: process.poll() is not None, lambda: f"{name} runs on:\n{self.all_consoles()}")
        return process.returncode

    def events(self, what="steps from", attempt=None):
        path = self.folder / "events"
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # a rank may be writing the last one
        found = [event for event in map(json.loads, lines) if event["what"] == what]
        return [event for event in found if attempt is None or event["attempt"] == attempt]

    def training(self, size, beyond=-1):
        """Wait until that many ranks exchange in an attempt after `beyond`; return (their events, seconds)."""
        begun = time.monotonic()

        def found():
            attempts = {
                event["attempt"] for event in self.events() if event["attempt"] > beyond and event["size"] == size
            }
            whole = [number for number in attempts if len(self.events(attempt=number)) == size]
            return self.events(attempt=max(whole)) if whole else None

        events = self.until(found, lambda: f"{size} ranks do not train:\n{self.all_consoles()}")
        step = self.step()
        self.until(lambda: self.step() > step, lambda: f"no progress:\n{self.all_consoles()}")
        return sorted(events, key=lambda event: event["rank"]), time.monotonic() - begun

    def step(self):
        try:
            return int((self.folder / "saved").read_text() or 0)
        except FileNotFoundError:
            return 0

    def enough(self):
        """Let the ranks come to their end."""
        (self.folder / "enough").touch()

    def kill_node(self, name):
        """SIGKILL to all of a host's processes."""
        self.lab.kill_all(name)

    def stop_all(self):
        for process in self.started.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for host in self.lab.names:
            self.lab.restore(host)
            self.lab.kill_all(host)


@pytest.fixture(scope="session")
def lab():
    """Three hosts, shared by all tests."""
    if obstacle := HostLab.obstacle():
        pytest.skip(obstacle)
    with HostLab(["anna", "bert", "cleo"]) as made:
        yield made


@pytest.fixture
def nodes(lab, tmp_path):
    made = Nodes(lab, tmp_path)
    yield made
    made.stop_all()
