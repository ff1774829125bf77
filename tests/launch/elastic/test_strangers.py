"""A run over two hosts bears what is sent to all of its ports, and shows nobody its token or its secret."""

import contextlib
import stat
import subprocess
import sys
from pathlib import Path

from rankwise.testing.strangers import listening

TRAINS = """
import os, pathlib, time
import rankwise
rank = os.environ["RANK"]
def tell(name, text):
    pathlib.Path(name + ".tmp").write_text(str(text))
    os.rename(name + ".tmp", name)
tell("secret-" + rank, os.environ["RANKWISE_SECRET"])
tell("store", os.environ["MASTER_ADDR"] + " " + os.environ["MASTER_PORT"])
while rank == "1" and not os.path.exists("meet"):
    time.sleep(0.01)
with rankwise.bind(device="cpu", timeout=200) as world:
    steps, ended = 0, 0.0
    while not ended:
        ended = world.all_reduce(float(os.path.exists("end")))
        assert world.all_reduce(float(world.rank + 1)) == 3.0
        steps += 1
        time.sleep(0.01)
        tell("step-" + rank, steps)
    print("trained well", world.all_reduce(steps) == 2 * steps, flush=True)
"""
STRANGER = """
import sys, time
from rankwise.testing.strangers import throw_garbage
held = []
for number, place in enumerate(sys.argv[1:]):
    address, _, port = place.rpartition(":")
    throw_garbage(address, int(port), held, number)
print("thrown", flush=True)
time.sleep(600)
"""
# without the secret, but in the store's own protocol: keys of its own, and what a hello without a signature looks like
CLIENT = """
import datetime, sys
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, timeout=datetime.timedelta(seconds=120))
store.set("a stranger's key", "x" * 100_000)
store.set("rankwise/hello/1000", "not signed")
assert store.add("a stranger's count", 1) == 1
store.set_timeout(datetime.timedelta(seconds=2))
try:
    store.get("what nobody has set")
except Exception as error:
    print("waited in vain", type(error).__name__)
"""


class Strangers:
    """Programs on all hosts of a lab that talk to every port of the others and to the loopback ports of their own."""

    def __init__(self, nodes):
        self.nodes, self.seen, self.thrown = nodes, {}, []

    def ports(self, host):
        # the supervisor: other processes of the host may end before they are looked at
        pid = self.nodes.started[host].pid
        self.nodes.until(lambda: pid in self.nodes.lab.pids(host), self.nodes.all_consoles)
        return listening(of=pid)

    def throw(self, *hosts):
        """Send it from the host itself and from a third one, to every port that listens now."""
        begun = len(self.thrown)
        for host in hosts:
            found = sorted(self.ports(host))
            self.seen.setdefault(host, set()).update(found)
            own = self.nodes.lab.address(host)
            assert all(address == own or address.startswith("127.") for address, _ in found), found
            self.start(host, STRANGER, *(f"{address}:{port}" for address, port in found))
            self.start("cleo", STRANGER, *(f"{address}:{port}" for address, port in found if address == own))
        for program in self.thrown[begun:]:
            assert program.stdout.readline() == b"thrown\n"

    def start(self, host, text, *words):
        options = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "env": self.nodes.env | {"RANKWISE_TOKEN": ""},
        }
        self.thrown.append(self.nodes.lab.start(host, sys.executable, "-c", text, *words, **options))
        return self.thrown[-1]

    def close(self):
        for program in self.thrown:
            program.kill()
            program.wait()
            program.stdout.close()


def holders(text, what):
    """Processes of this machine that show a text in what the system tells of them."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and text.encode() in (entry / what).read_bytes():
                found.add(int(entry.name))
    return found


def test_strangers_on_every_port_of_two_hosts(nodes):
    """Before the ranks meet and while they train, in the store's own protocol too, and by links that then are cut."""
    script = nodes.folder / "trains.py"
    script.write_text(TRAINS)
    options = ("--nproc", "1", "--nnodes", "2", "--rdzv", "anna", "--run-dir", nodes.folder / "run", "--tee", "all")
    for host in ("anna", "bert"):
        nodes.start(host, *options, script=script)
    strangers = Strangers(nodes)

    def read(name):
        path = nodes.folder / name
        return nodes.until(lambda: path.exists() and path.read_text(), nodes.all_consoles)

    def advance(steps=20):
        goal = int(read("step-1")) + steps
        nodes.until(lambda: int(read("step-1")) > goal, nodes.all_consoles)

    try:
        place, secret = read("store").split(), read("secret-0")
        nodes.until(lambda: len(strangers.ports("anna")) > 1, "the store that waits for rank 1")
        strangers.throw("anna")
        (nodes.folder / "meet").touch()
        read("step-1")
        strangers.throw("anna", "bert")
        client = strangers.start("cleo", CLIENT, *place)
        said = client.communicate(timeout=200)[0].decode()
        assert client.returncode == 0, said
        assert "waited in vain DistStoreError" in said
        advance()
        nodes.lab.cut("cleo")  # its open connections have no other end any more
        advance()
        check_that_nobody_sees(nodes, secret)
    finally:
        strangers.close()
    (nodes.folder / "end").touch()
    assert [nodes.ends("anna"), nodes.ends("bert")] == [0, 0], nodes.all_consoles()
    assert nodes.all_consoles().count("trained well True") == 2
    assert len(strangers.seen["anna"]) >= 3, "the rendezvous, the store and gloo listen on the first host"
    written = [path.read_text(errors="replace") for path in (nodes.folder / "run").rglob("*") if path.is_file()]
    assert len(written) > 3
    for text in (nodes.all_consoles(), *written):
        assert secret not in text
        assert nodes.env["RANKWISE_TOKEN"] not in text


def check_that_nobody_sees(nodes, secret):
    """In no command line; in the environment of the run's own processes alone, the token in the supervisors' only."""
    token = nodes.env["RANKWISE_TOKEN"]
    ours = {pid for host in ("anna", "bert") for pid in nodes.lab.pids(host)}
    assert not holders(token, "cmdline") | holders(secret, "cmdline")
    supervisors = {nodes.started[host].pid for host in ("anna", "bert")}
    assert holders(token, "environ") == supervisors
    assert holders(secret, "environ")
    assert holders(secret, "environ") <= ours - supervisors
    assert stat.S_IMODE((nodes.folder / "run").stat().st_mode) == 0o700
