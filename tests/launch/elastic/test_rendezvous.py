"""How nodes find each other, and what they say when they cannot, or must not."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import rankwise

TWO = ("--nproc", "1", "--nnodes", "2")
# what another installation shows of itself: there is one on this machine, so that modules are altered as Python begins
OTHERS = {
    "rankwise": (
        "import rankwise._version as found; found.__version__ = '99.1'",
        "rankwise is {mine} on anna and 99.1 on bert",
    ),
    "python": (
        "import platform; platform.python_version_tuple = lambda: ('3', '99', '0')",
        "python is {mine} on anna and 3.99 on bert",
    ),
    "torch": (None, "torch is {mine} on anna and 99.2 on bert"),
}
NOISE = """
import os, socket, time
held = [socket.create_connection(("10.77.0.1", 29400), 60) for _ in range(100)]
for number, stranger in enumerate(held):
    try:
        stranger.sendall([os.urandom(5000), b"rankwise-node-1 x\\n{}\\n", b"GET / HTTP/1.1\\n\\n", b""][number % 4])
    except OSError:
        pass
print("sent", flush=True)
time.sleep(600)
"""


def test_what_does_not_fit_is_said_by_name(nodes):
    """Other tokens, codes and options are refused, told on both sides by node; hosts that cannot be reached are named.

    None of them disturbs the run that is gathering, nor does noise on its port.
    """
    other = nodes.folder / "other"
    other.mkdir()
    (other / "ranks.py").write_text(nodes.script.read_text() + "\n# changed\n")
    nodes.start("anna", *TWO, "--rdzv", "anna")
    nodes.says("anna", "the rendezvous is here, anna (10.77.0.1) port 29400; token of RANKWISE_TOKEN")
    nodes.start("bert", *TWO, "--rdzv", "anna", env={"RANKWISE_TOKEN": "x" * 20}, name="token")
    nodes.start("bert", *TWO, "--rdzv", "anna", script=other / "ranks.py", name="code")
    nodes.start("cleo", "--nproc", "2", *TWO[2:], "--rdzv", "anna", "--max-restarts", "3", name="ranks")
    nodes.start("cleo", *TWO, "--rdzv", "nowhere", "--join-timeout", "4", name="unknown")
    nodes.start("cleo", *TWO, "--rdzv", "bert:29401", "--join-timeout", "4", name="refusing")
    nodes.start("cleo", *TWO, "--rdzv", "10.77.0.99", "--join-timeout", "4", name="silent")
    noise = nodes.lab.start("bert", sys.executable, "-c", NOISE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert noise.stdout.readline() == b"sent\n"
    nodes.says("token", "the rendezvous at anna (10.77.0.1) has a different token")
    nodes.says("anna", "refused a node at 10.77.0.2: it has a different token")
    code = "the code of the target is [0-9a-f]{12} on anna and [0-9a-f]{12} on bert"
    nodes.until(
        lambda: re.search(code, nodes.console("code")) and re.search(code, nodes.console("anna")), nodes.all_consoles
    )
    nodes.says("ranks", "--max-restarts is 0 on anna and 3 on cleo; --nproc is 1 on anna and 2 on cleo")
    nodes.says("unknown", "nowhere: this name is not known here")
    nodes.says("refusing", "bert: 10.77.0.2 refuses port 29401: nothing listens there yet")
    nodes.says("silent", "10.77.0.99")
    assert all(nodes.ends(name) in {1, 2} for name in ("token", "code", "ranks", "unknown", "refusing", "silent"))
    nodes.start("bert", *TWO, "--rdzv", "anna")
    nodes.training(2)
    nodes.enough()
    assert [nodes.ends("anna"), nodes.ends("bert")] == [0, 0], nodes.all_consoles()
    secret = nodes.events()[0]["secret"]
    assert secret not in nodes.all_consoles()
    assert "a token that" not in nodes.all_consoles()


def test_other_versions_are_refused_by_name(nodes):
    """rankwise, Python and torch of the newcomer are not those of the run: said on both sides, and the run goes on."""
    mine = {"rankwise": rankwise.__version__, "python": "{}.{}".format(*sys.version_info)}
    mine["torch"] = importlib.metadata.version("torch").partition("+")[0]
    nodes.start("anna", *TWO, "--rdzv", "anna")
    nodes.says("anna", "the rendezvous is here")
    for name, (change, _) in OTHERS.items():
        folder = nodes.folder / f"other-{name}"
        if change is None:  # what is installed is read from here: the real thing
            (folder / "torch-99.2.dist-info").mkdir(parents=True)
            (folder / "torch-99.2.dist-info" / "METADATA").write_text("Name: torch\nVersion: 99.2+cpu\n")
        else:
            folder.mkdir()
            (folder / "sitecustomize.py").write_text(change)
        nodes.start("bert", *TWO, "--rdzv", "anna", env={"PYTHONPATH": str(folder)}, name=name)
    for name, (_, said) in OTHERS.items():
        text = said.format(mine=mine[name])
        assert nodes.ends(name) == 2, nodes.all_consoles()
        nodes.says(name, f"the rendezvous at anna (10.77.0.1) refuses this node: {text}\n")
        nodes.says("anna", f"refused node bert (10.77.0.2): {text}\n")
    nodes.start("bert", *TWO, "--rdzv", "anna")
    nodes.training(2)


def test_the_token_is_seen_nowhere_and_a_lost_rendezvous_is_named(nodes):
    """Neither as an argument of a process nor as a variable of a rank; without another host the rest end, naming it."""
    nodes.start("anna", *TWO, "--rdzv", "anna")
    nodes.start("bert", *TWO, "--rdzv", "anna")
    nodes.training(2)
    words = "a token that the tests have made"
    for host in ("anna", "bert"):
        for pid in nodes.lab.pids(host):
            try:
                assert words.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            except FileNotFoundError:
                continue
    assert not any(event["token"] for event in nodes.events())
    nodes.kill_node("anna")
    assert nodes.ends("bert") == 1
    nodes.says("bert", "the rendezvous at anna is lost: its supervisor has ended; --rdzv names no other host")


def test_a_token_of_its_own_is_made_for_the_user_alone(nodes):
    """Without one, the user's file is made, readable by nobody else, and nodes that share the home use it."""
    home = nodes.folder / "home"
    home.mkdir()
    env = {"RANKWISE_TOKEN": "", "XDG_CONFIG_HOME": str(home)}
    nodes.enough()
    for host in ("anna", "bert"):
        nodes.start(host, *TWO, "--rdzv", "anna", env=env)
    assert [nodes.ends("anna"), nodes.ends("bert")] == [0, 0], nodes.all_consoles()
    path = home / "rankwise" / "token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    path.chmod(0o644)
    nodes.start("anna", *TWO, "--rdzv", "anna", env=env, name="open")
    nodes.says("open", "other users can read the token")
    assert nodes.ends("open") != 0


def test_a_missing_node_ends_the_wait(nodes):
    """After --join-timeout the run ends, and names those that came."""
    nodes.start("anna", *TWO, "--rdzv", "anna", "--join-timeout", "5")
    nodes.says("anna", "waiting for 1 more of 2 nodes; here: anna (10.77.0.1)")
    assert nodes.ends("anna") == 1
    nodes.says("anna", "1 of 2 nodes joined within 5 s (--join-timeout): anna (10.77.0.1)")


def test_a_public_address_is_warned_of(nodes):
    """Who lets a rendezvous listen where the whole Internet may try its port is told so; a private one is quiet."""
    public = "93.184.215.14"  # of this host's own loopback interface: no packet leaves it
    assert nodes.lab.start("anna", "ip", "address", "add", f"{public}/32", "dev", "lo").wait(60) == 0
    quick = nodes.folder / "quick.py"
    quick.write_text("")
    for name, host in (("public", public), ("private", "anna")):
        nodes.start("anna", "--nproc", "1", "--nnodes", "1:2", "--rdzv", host, script=quick, name=name)
        assert nodes.ends(name) == 0, nodes.all_consoles()
    assert f"the rendezvous listens on {public}, a public address" in nodes.console("public")
    assert "public address" not in nodes.console("private")
