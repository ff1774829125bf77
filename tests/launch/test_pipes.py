"""What reaches the console and the log files, and the terminal of rank 0."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

SPEAKS = """
    import os, sys
    print("out", os.environ["RANK"], flush=True)
    print("err", os.environ["RANK"], file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize(
    ("options", "out", "err"),
    [
        ([], ["out 0"], ["[1] err 1", "err 0"]),
        (["--tee", "all"], ["[1] out 1", "out 0"], ["[1] err 1", "err 0"]),
        (["--tee", "main"], ["out 0"], ["err 0"]),
        (["--tee", "none"], [], []),
        (["-t", "3"], ["[1] out 1", "out 0"], ["[1] err 1", "err 0"]),
        (["--tee", "0:1,1:2"], ["out 0"], ["[1] err 1"]),
        (["-t", "3", "-r", "1:3"], ["out 0"], ["err 0"]),
    ],
)
def test_what_the_console_shows(launcher, options, out, err):
    """Each form of --tee shows the streams it says; rank 0 speaks as if alone; what is hidden on stdout is said."""
    done = launcher.run("--nproc", 2, *options, launcher.script(SPEAKS))
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == out
    said = [line for line in done.stderr.splitlines() if line.startswith("rankwise: not shown:")]
    assert sorted(set(done.stderr.splitlines()) - set(said)) == err
    assert bool(said) == (len(out) < 2)


def test_log_files_hold_everything(launcher):
    """With a log folder each stream of each rank has a file, whatever the console shows."""
    launcher.run("--nproc", 2, "--tee", "none", "--log-dir", "logs", launcher.script(SPEAKS))
    folder = launcher.folder / "logs" / "attempt-0"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        f"rank-{rank}.{stream}": f"{stream} {rank}\n" for rank in (0, 1) for stream in ("out", "err")
    }


def test_lines_are_never_mixed(launcher):
    """Ranks that write large lines at the same time: every line of the console is one rank's."""
    script = launcher.script("""
        import os
        for _ in range(200):
            print(os.environ["RANK"] * 3000)
    """)
    done = launcher.run("--nproc", 3, "--tee", "all", script)
    lines = done.stdout.splitlines()
    assert len(lines) == 600
    assert {line.removeprefix(f"[{line[-1]}] ") for line in lines} == {str(rank) * 3000 for rank in range(3)}


def test_the_last_unfinished_line_is_kept(launcher):
    """Output without a final newline is not lost, also when the rank is killed right after it."""
    os.mkfifo(launcher.folder / "both")
    script = launcher.script("""
        import os, sys
        sys.stdout.write("no newline " + os.environ["RANK"]); sys.stdout.flush()
        # either waits for the other here: the first to die ends the launch, and the other must have written by then
        open("both", "w" if os.environ["RANK"] == "0" else "r")
        os.kill(os.getpid(), 9)
    """)
    done = launcher.run("--nproc", 2, "--tee", "all", script)
    assert "no newline 0" in done.stdout
    assert "[1] no newline 1" in done.stdout


TERMINAL = """
    import os, sys
    if os.environ["RANK"] == "0":
        print("terminal", sys.stdout.isatty(), os.get_terminal_size(1).columns, flush=True)
        for state in range(5):
            sys.stdout.write("\\r\\x1b[32mstep %d\\x1b[0m" % state); sys.stdout.flush()
        print()
"""


@pytest.mark.parametrize("logs", [False, True])
def test_rank_0_keeps_the_terminal(launcher, logs):
    """On a terminal rank 0 sees one of the same width, with and without logs; the log keeps a line's last state."""
    script = launcher.script(TERMINAL)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 30, 93, 0, 0))
    options = ["--log-dir", "logs"] if logs else []
    process = launcher.start("--nproc", 2, *options, script, stdout=slave, stderr=subprocess.PIPE)
    os.close(slave)
    shown = b""
    try:
        while data := os.read(master, 4096):
            shown += data
    except OSError:  # the end of a pseudo-terminal
        pass
    os.close(master)
    assert process.wait(240) == 0
    assert b"terminal True 93\r\n" in shown
    assert b"\r\x1b[32mstep 4\x1b[0m\r\n" in shown
    if logs:
        text = (launcher.folder / "logs" / "attempt-0" / "rank-0.out").read_text()
        assert text == "terminal True 93\nstep 4\n"


def test_rank_0_reads_stdin(launcher):
    """What is piped into the command reaches rank 0 and nobody else."""
    script = launcher.script("import os, sys; print(os.environ['RANK'], repr(sys.stdin.read()), flush=True)")
    with Path(launcher.script("hello", "input")).open() as stdin:
        done = launcher.run("--nproc", 2, "--tee", "all", script, stdin=stdin)
    assert sorted(done.stdout.splitlines()) == ["0 'hello'", "[1] 1 ''"]


def test_a_reader_that_leaves_does_not_stop_the_run(launcher):
    """`rankwise run ... | head`: the run goes on to its end, its logs are whole."""
    script = launcher.script("for i in range(20000): print('line', i)")
    process = launcher.start("--nproc", 2, "--tee", "all", "--log-dir", "logs", script)
    process.stdout.close()
    assert process.wait(240) == 0
    process.stdout = None
    log = launcher.folder / "logs" / "attempt-0" / "rank-1.out"
    assert log.read_text().splitlines()[-1] == "line 19999"


@pytest.mark.skipif(sys.platform != "linux", reason="pipes are enlarged")
def test_what_lies_in_a_pipe_at_the_end_is_read(launcher):
    """A rank may die with a megabyte unread, and something that tidies up after it may take long to end."""
    script = launcher.script(
        """
        import fcntl, os, subprocess, sys
        fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
        tidy = [sys.executable, "-S", "-c", "import time; time.sleep(1.5)", "multiprocessing.resource_tracker"]
        subprocess.Popen(tidy)
        os.write(1, b"".join(b"line %d\\n" % i for i in range(60_000)))
        os._exit(0)
        """
    )
    done = launcher.run("--nproc", 1, "--log-dir", "logs", script)
    assert done.returncode == 0, done.stderr
    log = (launcher.folder / "logs" / "attempt-0" / "rank-0.out").read_text()
    assert log == done.stdout == "".join(f"line {i}\n" for i in range(60_000))


FLOODS = """
    import os, pathlib, signal, sys, time
    rank = os.environ["RANK"]
    if rank == "0":
        pathlib.Path("there-0").write_text(str(os.getpid()))
        time.sleep(1000)
    for i in range(40_000):
        print("x" * 99)
    pathlib.Path("there-1").write_text(str(os.getpid()))
    {deed}
"""


@pytest.mark.parametrize("deed", ["time.sleep(1000)", "os._exit(3)"])
def test_a_console_that_nobody_reads_stops_nothing(launcher, wait_until, is_alive, deed):
    """Four megabytes for a paused pager: signals and deaths are noticed, and what is left out is said when it reads."""
    process = launcher.start("--nproc", 2, "--tee", "all", launcher.script(FLOODS.format(deed=deed)))
    pids = launcher.pids("there-0", "there-1")  # rank 1 came to its end: it was not held up for ever
    if "sleep" in deed:
        process.terminate()
    wait_until(lambda: not any(map(is_alive, pids)))
    out, err = process.communicate(timeout=240)
    assert process.returncode == (3 if "exit" in deed else 128 + signal.SIGTERM)
    assert "exited with 3" in err if "exit" in deed else "SIGTERM: asking the ranks to end" in err
    left_out = sum(int(found.replace(",", "")) for found in re.findall(r"rankwise: ([\d,]+) bytes of output", out))
    lines = out.splitlines()
    assert left_out > 1_000_000
    assert left_out + 104 * sum("x" in line for line in lines) == 104 * 40_000


def test_a_slow_console_loses_nothing(launcher):
    """A reader that reads, however slowly, gets every line: the ranks wait for it."""
    script = launcher.script("for i in range(40_000): print(i, 'x' * 99)")
    process = launcher.start("--nproc", 2, "--tee", "all", "--no-merge", script)
    out, num_bytes, has_slept = [], 0, False
    while piece := os.read(process.stdout.fileno(), 4096):
        out.append(piece)
        num_bytes += len(piece)
        os.sched_yield()
        if num_bytes >= 2**21 and not has_slept:
            has_slept = True
            time.sleep(0.5)  # the supervisor's queue is full now
            process.send_signal(signal.SIGSTOP)
            time.sleep(5.5)  # a machine that sleeps, or has no core for it: the reader is not gone
            process.send_signal(signal.SIGCONT)
            time.sleep(0.5)  # it runs before we do
    assert process.wait() == 0
    assert has_slept
    lines = b"".join(out).splitlines()
    for prefix in (b"", b"[1] "):
        # a line of rank 0 whose rest comes seconds later, on a busy machine, is shown in two: joined, nothing is lost
        shown = b"".join(line for line in lines if line.startswith(b"[1]") == bool(prefix))
        assert shown == b"".join(prefix + b"%d " % i + b"x" * 99 for i in range(40_000))
