"""The supervisor's console, also where no thread is to be had for it.

The same line of several ranks is shown once with its ranks; nothing is lost, and nobody's order changes.
"""

import os
import pty
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.launch.local import console as module
from rankwise.launch.local.console import Console, SharedStream, _Outlet

WARNS = """
    import os, sys, time, warnings
    from pathlib import Path
    rank = os.environ["RANK"]
    sys.stderr.write("mine " + rank + "\\n")
    Path("there-" + rank).touch()
    while len(list(Path().glob("there-*"))) < 3:  # all say it at about the same time
        time.sleep(0.01)
    sys.stderr.write("shared warning\\n")
    if rank != "1":
        sys.stderr.write("of two\\n")
"""


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def none_to_be_had(_):
    raise RuntimeError("can't start new thread")


def test_without_a_thread_all_is_written_at_the_end(pipe, monkeypatch):
    """The system has no more threads: the supervisor goes on, and what waits comes with the last flush."""
    outlet, (reads, writes) = _Outlet(), pipe
    monkeypatch.setattr(threading.Thread, "start", none_to_be_had)
    outlet.put(writes, b"one\n")
    outlet.put(writes, b"two\n")
    outlet.flush()
    assert os.read(reads, 100) == b"one\ntwo\n"


def test_a_message_that_is_no_valid_unicode_is_written_all_the_same(capfd):
    """An exception's text may have surrogates, from a file name for example."""
    console = Console()
    console.log("cannot read \udcff.npy")
    console.flush()
    assert capfd.readouterr().err == "rankwise: cannot read \\udcff.npy\n"


def test_a_thread_is_tried_for_again(pipe, monkeypatch):
    """The next line finds one, which writes what waited, too."""
    outlet, (reads, writes) = _Outlet(), pipe
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_to_be_had)
        outlet.put(writes, b"one\n")
    outlet.put(writes, b"two\n")
    outlet.flush()
    assert os.read(reads, 100) == b"one\ntwo\n"


class Page:
    """A console that remembers."""

    def __init__(self):
        self.lines = []

    def line(self, _stream, line):
        self.lines.append(line)

    def raw(self, _stream, data):
        self.lines.append(data)

    def log(self, _text):
        raise AssertionError("nothing is to be said")


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([b"", b"a", b"b", b"c"])), max_size=60), st.booleans())
def test_every_rank_is_read_in_its_own_order(said, at_once):
    """What the console shows, read for one rank alone, is what it wrote, in order; also when nothing may wait."""
    page = Page()
    merger = SharedStream("err", page, range(3))
    for rank, text in said:
        merger.line(rank, text)
        if at_once:
            merger.flush(rank)
    merger.flush()
    for rank in range(3):
        assert [text for ranks, text in map(parse, page.lines) if rank in ranks] == [t for r, t in said if r == rank]


def parse(line):
    found = re.fullmatch(rb"(?:\[([\d,-]+)\] )?(.*)", line)
    ranks = set()
    for part in (found[1] or b"0").decode().split(","):
        first, _, last = part.partition("-")
        ranks |= set(range(int(first), int(last or first) + 1))
    return ranks, found[2]


def test_the_window(monkeypatch):
    """A line that all have said is shown at once, one that some have said when its time has come."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    page = Page()
    merger = SharedStream("err", page, [0, 1, 2])
    for rank in (2, 0, 1):
        merger.line(rank, b"all")
    assert page.lines == [b"[0-2] all"]
    merger.line(0, b"some")
    merger.line(2, b"some")
    assert merger.show_due() == module.WINDOW_S
    assert len(page.lines) == 1
    now[0] += module.WINDOW_S
    merger.show_due()
    merger.line(1, b"some")
    now[0] += module.WINDOW_S
    merger.show_due()
    assert page.lines[1:] == [b"[0,2] some", b"[1] some"]
    assert merger.show_due() is None


def test_who_writes_much_does_not_wait(monkeypatch):
    """Thousands of lines in a moment pass through; what is held back is bounded."""
    monkeypatch.setattr(module.time, "monotonic", lambda: 0.0)
    page = Page()
    merger = SharedStream("out", page, [0, 1])
    for number in range(5000):
        merger.line(1, str(number).encode())
    assert len(page.lines) >= 4000
    merger.flush()
    assert page.lines == [f"[1] {number}".encode() for number in range(5000)]


def test_progress_bars_do_not_wait():
    """What goes back in its line, or does not end it, is passed on as it is, after what the rank said before."""
    page = Page()
    merger = SharedStream("err", page, [0, 1])
    merger.raw(0, b"plain\n")
    merger.line(1, b"later")
    for piece in (b"\r 10%", b"\r 20%\n", b"whole\nhalf"):
        merger.raw(0, piece)
    assert page.lines == [b"plain", b"\r 10%", b"\r 20%\n", b"[1] later", b"whole", b"half"]


def test_real_ranks_speak_with_one_voice(launcher):
    """`[0-2] text` for three ranks; log files hold every line of every rank; --no-merge shows them all."""
    script = launcher.script(WARNS)
    done = launcher.run("--nproc", 3, "--log-dir", "logs", script)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    # a rank that is late on a busy machine says its own line after what the others share
    assert sorted(line for line in lines if "mine" in line) == ["[1] mine 1", "[2] mine 2", "mine 0"]
    assert sum(len(parse(line.encode())[0]) for line in lines if line.endswith("shared warning")) == 3
    for rank in range(3):
        text = Path(launcher.folder / "logs" / "attempt-0" / f"rank-{rank}.err").read_text()
        assert text == f"mine {rank}\nshared warning\n" + ("of two\n" if rank != 1 else "")
    again = launcher.run("--nproc", 3, "--no-merge", script)
    assert sorted(again.stderr.splitlines()) == sorted(
        f"{prefix}{text}"
        for rank, prefix in enumerate(("", "[1] ", "[2] "))
        for text in (f"mine {rank}", "shared warning", "of two")
        if text != "of two" or rank != 1
    )


def test_on_a_terminal_too(launcher):
    """Rank 0's stderr stays a terminal (progress bars), and its plain lines are merged with those of the others."""
    script = launcher.script("""
        import os, sys
        assert os.environ["RANK"] != "0" or os.isatty(2)
        sys.stderr.write("same\\n")
    """)
    master, slave = pty.openpty()
    process = launcher.start("--nproc", 2, script, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while data := os.read(master, 4096):
            shown += data
    except OSError:  # the end of a pseudo-terminal
        pass
    os.close(master)
    assert process.wait(240) == 0
    assert sum(len(parse(line)[0]) for line in shown.split(b"\r\n") if line.endswith(b"same")) == 2
    assert b"same" in shown


def test_a_full_disk_is_said(launcher):
    """Output that cannot be written does not end the run, but the other stream says that it is missing."""
    script = launcher.script("print('step 1')")
    with Path("/dev/full").open("w") as full:
        process = launcher.start("--nproc", 2, script, stdout=full)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 0
    assert "stdout cannot be written any more (No space left on device)" in err
