"""On one machine a run listens to this machine alone, bears what is sent to its ports, and shows nobody its secret."""

import contextlib
import ipaddress
import secrets
import socket
import stat
from pathlib import Path

from rankwise.testing.strangers import listening, throw_garbage

TRAINS = """
    import torch  # once, before the ranks are forked
    import os, pathlib, time
    import rankwise
    rank = os.environ["RANK"]
    def tell(name, text):
        pathlib.Path(name + ".tmp").write_text(str(text))
        os.rename(name + ".tmp", name)
    tell("vitals", os.environ["RANKWISE_VITALS"])
    tell("secret-" + rank, os.environ["RANKWISE_SECRET"])
    while rank == "1" and not os.path.exists("meet"):
        time.sleep(0.01)
    with rankwise.bind(device="cpu", timeout=200) as world:
        steps, ended = 0, 0.0
        while not ended:
            ended = world.all_reduce(float(os.path.exists("end")))
            assert world.all_reduce(float(world.rank + 1)) == 3.0
            steps += 1
            tell("step-" + rank, steps)
        print("trained well", world.all_reduce(steps) == 2 * steps, flush=True)
"""


def test_strangers_do_not_disturb_a_run(launcher, marked, wait_until):
    """Before the meeting and while training: all ports are loopback's, garbage ends nothing, the numbers stay right."""
    mark = f"rankwise-test-{secrets.token_hex(6)}"
    launcher.env |= {"CELL": mark, "OMP_NUM_THREADS": "1"}
    process = launcher.start("--nproc", 2, "--run-dir", "runs/x", launcher.script(TRAINS))
    secret = launcher.text("secret-0")
    held, seen = [], set()

    def disturb():
        for number, (address, port) in enumerate(sorted(found := listening(marked(mark)))):
            assert ipaddress.ip_address(address).is_loopback, found
            seen.add(port)
            throw_garbage(address, port, held, number)

    wait_until(lambda: listening(marked(mark)))  # rank 0 serves the store, rank 1 has not come yet
    disturb()
    (launcher.folder / "meet").touch()
    steps = int(launcher.text("step-1"))
    assert len(listening(marked(mark))) > 1, "the ranks' own connections listen too"
    disturb()
    for _ in range(3):
        goal = int(launcher.text("step-1")) + 20

        def advances(goal=goal):
            assert process.poll() is None, process.communicate()
            for stranger in held:  # slowly, a byte at a time
                with contextlib.suppress(OSError):
                    stranger.send(b"\x07", socket.MSG_DONTWAIT)
            return int(launcher.text("step-1")) > goal

        wait_until(advances)
        disturb()
    check_that_nobody_sees(secret, launcher, marked(mark))
    (launcher.folder / "end").touch()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "trained well True" in out
    assert int(launcher.text("step-1")) > steps + 60
    assert len(seen) > 1
    assert secret not in out + err
    for log in (launcher.folder / "runs" / "x" / "logs").rglob("*.*"):
        assert secret not in log.read_text()
    for stranger in held:
        stranger.close()


def check_that_nobody_sees(secret, launcher, pids):
    """The secret is in no command line, and the folders of the run are their owner's alone."""
    assert secret == launcher.text("secret-1")
    assert len(secret) >= 32
    assert len(pids) >= 3
    for pid in pids:
        assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for folder in (launcher.folder / "runs" / "x", Path(launcher.text("vitals"))):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_another_run_has_another_secret(launcher):
    """Each launch has its own, whatever an earlier one left behind."""
    script = launcher.script("import os; print(os.environ['RANKWISE_SECRET'])")
    assert launcher.run("--nproc", 1, script).stdout != launcher.run("--nproc", 1, script).stdout
