"""A held port can be listened on by the rank, and is given to nobody else."""

import socket
import subprocess
import sys

import pytest

from rankwise.errors import LaunchError
from rankwise.launch.local.ports import HeldPort

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems let the port go")

STORE = """
import datetime as dt, sys
import torch.distributed as dist
wait = dt.timedelta(seconds=20)
for libuv in (False, True):
    store = dist.TCPStore("127.0.0.1", int(sys.argv[1 + libuv]), 1, True, wait, use_libuv=libuv)
    store.set("key", "value")
    assert dist.TCPStore("localhost", int(sys.argv[1 + libuv]), 1, False, wait).get("key") == b"value"
    print("heard")
"""


@linux
def test_torch_listens_on_a_held_port():
    """Both backends of torch's store bind and listen on the port while it is held."""
    held = [HeldPort(), HeldPort()]
    ports = [str(port.number) for port in held]
    done = subprocess.run(
        [sys.executable, "-c", STORE, *ports], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (0, "heard\nheard\n"), done.stderr
    for port in held:
        port.close()


@linux
def test_a_held_port_is_given_to_nobody():
    """Many who ask the kernel for a free port, also with SO_REUSEADDR, never get the held one."""
    held = HeldPort()
    taken = []
    for family in (socket.AF_INET, socket.AF_INET6):
        for _ in range(2000):
            other = socket.socket(family)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("", 0))
            taken.append(other)
    assert held.number not in {other.getsockname()[1] for other in taken}
    for other in taken:
        other.close()
    held.close()


def test_a_port_in_use_is_an_error():
    """A wanted port that another program listens on is refused, with the mend."""
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        with pytest.raises(LaunchError, match="leave the port out"):
            HeldPort(other.getsockname()[1])


MANY = """
import os, sys
from rankwise.launch import Job, Target, supervise
pids = []
for _ in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        os._exit(supervise(Job(target=Target(kind="script", name=sys.argv[1]))).exitcode)
    pids.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""


@linux
@pytest.mark.parametrize("many", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_launches_at_once(launcher, many):
    """Launches side by side, each with a rank that listens on its MASTER_PORT: all end well, all ports differ."""
    script = launcher.script(f"""
        import os, pathlib, socket, time
        port = int(os.environ["MASTER_PORT"])
        server = socket.create_server(("", port))
        name = pathlib.Path("port-" + os.environ["TORCHELASTIC_RUN_ID"])
        name.write_text(str(port))
        deadline = time.monotonic() + 200
        while len(list(pathlib.Path().glob("port-*"))) < {many}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    """)
    process = launcher.start(command=[sys.executable, "-c", MANY, script, str(many)])
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert len({path.read_text() for path in launcher.folder.glob("port-*")}) == many


@linux
def test_two_launches_do_not_hold_one_port():
    """Before a rank listens on it the kernel would give it to both, and the ranks of both would meet."""
    first = HeldPort()
    number = first.number
    first.close()
    first = HeldPort(number, alone=True)
    with pytest.raises(LaunchError, match=f"port {number} cannot be used: Address already in use; leave the port out"):
        HeldPort(number, alone=True)
    first.close()
    HeldPort(number, alone=True).close()


@linux
def test_a_machine_that_cannot_connect_to_itself_is_said_before_the_start(tmp_path):
    """A new network namespace has its loopback interface down; the ranks would wait for rank 0 until a timeout."""
    alone = ["unshare", "--net"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        alone = ["unshare", "--user", "--map-root-user", "--net"]
    (tmp_path / "train.py").write_text("print('started')\n")
    command = [*alone, sys.executable, "-m", "rankwise", "run", "--nproc", "2", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "cannot meet at 127.0.0.1: Network is unreachable" in done.stderr.replace("\n", " ")
    assert "ip link set lo up" in done.stderr
    assert "started" not in done.stdout
