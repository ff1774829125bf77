"""Ranks, what they started, and their supervisor die with each other."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# each rank starts a helper that would outlive it, and one in a process group of its own
FAMILY = """
    import os, pathlib, signal, subprocess, sys, time
    rank = os.environ["RANK"]
    helper = [sys.executable, "-S", "-c", "import time; time.sleep(1000)"]
    first = subprocess.Popen(helper)
    second = subprocess.Popen(helper, process_group=0)
    # the pids come last: a test that has them may end this rank at once
    for name, pid in (("vitals", os.environ["RANKWISE_VITALS"]),
                      ("rank", os.getpid()), ("helper", first.pid), ("second", second.pid)):
        pathlib.Path(f"{name}-{rank}.tmp").write_text(str(pid))
        os.rename(f"{name}-{rank}.tmp", f"{name}-{rank}")
    EXTRA
    time.sleep(1000)
"""
NAMES = [f"{name}-{rank}" for name in ("rank", "helper", "second") for rank in (0, 1)]


def start_family(launcher, *options, extra="pass", nproc=2):
    process = launcher.start("--nproc", nproc, *options, launcher.script(FAMILY.replace("EXTRA", extra)))
    return process, launcher.pids(*NAMES)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_supervisor_leaves_nothing(launcher, is_alive, wait_until, number):
    """Ctrl-C, a scheduler's SIGTERM, a closed terminal: ranks and all they started end; exit code 128 + signal."""
    process, pids = start_family(launcher)
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number
    assert f"{number.name}: asking the ranks to end" in err
    assert "Traceback" not in err
    wait_until(lambda: not any(map(is_alive, pids)))
    assert not Path(launcher.text("vitals-0")).exists()


def test_ctrl_c_while_a_rank_imports(launcher):
    """A rank that gets Ctrl-C before its script runs ends without a traceback."""
    launcher.script(
        """
        import os, signal, time
        if "RANKWISE_VITALS" in os.environ:
            os.kill(os.getppid(), signal.SIGINT)
            while signal.SIGINT not in signal.sigpending():  # until the supervisor has passed it on
                time.sleep(0.01)
            os.write(2, b"pending\\n")
        """,
        name="sitecustomize.py",
    )
    paths = os.pathsep.join(filter(None, [str(launcher.folder), os.environ.get("PYTHONPATH")]))
    done = launcher.run("--nproc", 1, launcher.script("print('ran')"), env={"PYTHONPATH": paths})
    assert done.returncode == 128 + signal.SIGINT
    assert "pending" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_kill_9_of_the_supervisor_leaves_nothing(launcher, is_alive, wait_until):
    """When the supervisor itself is killed, no rank, no process of a rank and no folder stays behind."""
    process, pids = start_family(launcher)
    assert all(map(is_alive, pids))
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, pids)))
    wait_until(lambda: not Path(launcher.text("vitals-0")).exists())


def commands():
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


@pytest.mark.parametrize("name", ["script.py", "rankwise run"])
def test_everything_of_that_name_killed_at_once_leaves_nothing(launcher, is_alive, wait_until, name):
    """As `pkill -9 -f`: supervisor, its children and the ranks die in one moment; what the ranks started goes too."""
    process, pids = start_family(launcher)
    hit = {pid for pid, command in commands() if name in command and str(launcher.folder) in command}
    assert process.pid in hit
    for pid in hit:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(map(is_alive, pids)))
    wait_until(lambda: not Path(launcher.text("vitals-0")).exists())


def test_a_failing_rank_takes_the_helpers_of_all_along(launcher, is_alive, wait_until):
    """After a failure nothing that any rank has started is left, also in other process groups."""
    extra = """
    while rank == "0" and not os.path.exists("go"):
        time.sleep(0.01)
    if rank == "0":
        os._exit(5)"""
    process, pids = start_family(launcher, extra=extra)
    (launcher.folder / "go").touch()
    process.communicate(timeout=240)
    assert process.returncode == 5
    wait_until(lambda: not any(map(is_alive, pids)))


def test_ranks_may_save_when_asked_to_end(launcher):
    """SIGTERM reaches the ranks' own handlers, which may take their time."""
    script = launcher.script("""
        import os, pathlib, signal, sys, time
        def save(*_):
            time.sleep(0.3)
            pathlib.Path("saved-" + os.environ["RANK"]).touch()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        pathlib.Path("ready-" + os.environ["RANK"]).write_text("1")
        time.sleep(1000)
    """)
    process = launcher.start("--nproc", 2, script)
    launcher.pids("ready-0", "ready-1")
    process.terminate()
    process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM
    assert (launcher.folder / "saved-0").exists()
    assert (launcher.folder / "saved-1").exists()


DEAF = (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "pathlib.Path('deaf-' + rank).write_text('1')"
)


def test_a_deaf_rank_is_killed_after_the_grace(launcher, is_alive, wait_until):
    """A rank that ignores SIGTERM does not hold up the end for longer than --shutdown-timeout."""
    process, pids = start_family(launcher, "--shutdown-timeout", "0.3", extra=DEAF)
    launcher.pids("deaf-0", "deaf-1")
    process.terminate()
    process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM
    wait_until(lambda: not any(map(is_alive, pids)))


def test_the_second_ctrl_c_kills_at_once(launcher, is_alive, wait_until):
    """Deaf ranks with an hour of grace end at once at the second Ctrl-C."""
    process, pids = start_family(launcher, "--shutdown-timeout", "3600", extra=DEAF)
    launcher.pids("deaf-0", "deaf-1")
    process.send_signal(signal.SIGINT)
    while "asking the ranks to end" not in (line := process.stderr.readline()):
        assert line, "the launch has ended"
    time.sleep(0.4)  # one that comes at the same moment is no second one
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGINT
    assert "SIGINT: killing the ranks at once" in err
    wait_until(lambda: not any(map(is_alive, pids)))


def test_user_signals_are_passed_on(launcher):
    """SIGUSR1 to the supervisor (a scheduler's warning) reaches every rank, and the launch goes on."""
    script = launcher.script("""
        import os, pathlib, signal, sys, time
        warned = []
        def warn(*_):
            print("warned", os.environ["RANK"], flush=True)
            warned.append(True)
        signal.signal(signal.SIGUSR1, warn)
        pathlib.Path("ready-" + os.environ["RANK"]).write_text("1")
        while not warned:  # the signal may come before a signal.pause() would have begun
            time.sleep(0.01)
    """)
    process = launcher.start("--nproc", 2, "--tee", "all", script)
    launcher.pids("ready-0", "ready-1")
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert sorted(out.splitlines()) == ["[1] warned 1", "warned 0"]


def test_a_failed_rank_that_cannot_end(launcher):
    """A rank that raised but is held by a thread of its own is not waited for longer than the grace."""
    script = launcher.script("""
        import threading, time
        threading.Thread(target=time.sleep, args=(1000,)).start()
        raise ValueError("held by a thread")
    """)
    done = launcher.run("--nproc", 2, "--shutdown-timeout", "0.5", script)
    assert done.returncode == 1
    assert "held by a thread" in done.stderr


def test_the_supervisor_waits_without_polling(launcher):
    """While nothing happens, supervisor and heartbeats use next to no CPU: under 5 % over two seconds."""
    process, pids = start_family(launcher)
    ranks = pids[:2]  # what they have started may be starting still
    used = []
    for _ in range(10):  # the first seconds may see the end of the start; what polls does so in all of them
        before = cpu_ticks(process.pid, *ranks)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.0)
        used.append(cpu_ticks(process.pid, *ranks) - before)
        if used[-1] <= 0.05 * 2.0 * os.sysconf("SC_CLK_TCK") + 2:
            break
    else:
        raise AssertionError(used)
    process.kill()


def cpu_ticks(*pids):
    return sum(sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])) for pid in pids)


def test_no_torch_in_the_supervisor_nor_in_ranks_that_do_not_want_it(launcher):
    """Neither the command nor a rank's preamble imports torch or NumPy."""
    script = launcher.script("import sys; assert not {'torch', 'numpy'} & set(sys.modules), sorted(sys.modules)")
    assert launcher.run("--nproc", 1, script).returncode == 0
    program = (
        "import sys, rankwise.cli, rankwise.launch.local.supervisor; assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
