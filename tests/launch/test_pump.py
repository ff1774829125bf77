"""Streams on their way to console and log files."""

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.launch.local.console import SharedStream
from rankwise.launch.local.pump import LogFile, Pump, _last_state, _settled


class Page:
    """A console that remembers."""

    def __init__(self):
        self.text = b""
        self.said = []

    def raw(self, _stream, data):
        self.text += data

    def line(self, _stream, line):
        self.text += line + b"\n"

    def log(self, text):
        self.said.append(text)


@given(st.binary(min_size=1, max_size=300), st.integers(1, 7))
def test_nothing_is_lost_however_it_is_cut(data, size):
    """Lines arrive whole and in order, with their prefix and in their last state, whatever pieces they came in."""
    for rank, prefix in enumerate((b"", b"[1] ")):
        read_end, write_end = os.pipe()
        page = Page()
        pump = Pump(read_end, SharedStream("out", page, [0, 1], merge=False), rank, shown=True)
        for start in range(0, len(data), size):
            os.write(write_end, data[start : start + size])
            assert pump.pump()
        os.close(write_end)
        assert not pump.pump()
        pump.close()
        lines = [_last_state(line) for line in data.removesuffix(b"\n").split(b"\n")]
        wanted = b"".join(prefix + line + b"\n" for line in lines)
        assert page.text.removesuffix(b"\n") == (wanted if prefix else data).removesuffix(b"\n")


@pytest.mark.parametrize(
    ("line", "kept"),
    [(b"a\rb\rc", b"c"), (b"\x1b[2K\r\x1b[32mdone\x1b[0m\r", b"done"), (b"plain", b"plain"), (b"", b""), (b"\r", b"")],
)
def test_a_terminals_line_is_kept_in_its_last_state(line, kept):
    """Progress bars leave their last state in the log, without colours."""
    assert _settled(line) == kept


def test_a_full_disk_is_said_once_and_stops_nothing(tmp_path):
    """A log that cannot be written is given up with one message; the run goes on."""
    full = tmp_path / "log"
    full.symlink_to("/dev/full")
    page = Page()
    log = LogFile(full, from_terminal=False, console=page)
    log.write(b"x")
    log.write(b"y")
    log.close()
    assert len(page.said) == 1
    assert "the run continues without this log" in page.said[0]


def test_a_line_without_end_is_logged_in_pieces(tmp_path):
    """Also from a terminal, megabytes without a new line are not gathered."""
    log = LogFile(tmp_path / "log", from_terminal=True, console=Page())
    for _ in range(300):
        log.write(b"x" * 10_000)
        assert len(log._partial) <= (1 << 20) + 10_000
    log.close()
    assert (tmp_path / "log").read_bytes() == b"x" * 3_000_000 + b"\n"


class Counting(Page):
    """Counts, too, what it was given."""

    num_lines = 0

    def line(self, _stream, line):
        self.num_lines += 1
        super().line(_stream, line)


def test_a_progress_bar_of_another_rank_is_not_kept(monkeypatch):
    """A line that is written over again and again: its last state is shown and one now and then, none is piled up."""
    read_end, write_end = os.pipe()
    page = Counting()
    pump = Pump(read_end, SharedStream("err", page, [1]), 1, shown=True)
    ticks, start_s = itertools.count(1), pump._shown_s
    monkeypatch.setattr("rankwise.launch.local.pump.time.monotonic", lambda: start_s + next(ticks) * 0.1)
    most = 0
    for state in range(1000):
        os.write(write_end, b"\rstep %d" % state)
        pump.pump()
        most = max(most, len(pump._partial))
    os.write(write_end, b"\n")
    pump.pump()
    os.close(write_end)
    pump.close()
    assert most < 20
    assert 8 <= page.num_lines <= 12  # in 100 s
    assert page.text.splitlines()[-1] == b"[1] step 999"


def test_an_unfinished_line_of_rank_0_is_shown_soon(monkeypatch):
    """Dots, prompts and the newest state of a progress bar do not wait for what comes after them, and come once."""
    read_end, write_end = os.pipe()
    page = Page()
    pump = Pump(read_end, SharedStream("out", page, [0]), 0, shown=True)
    now = pump._read_s
    monkeypatch.setattr("rankwise.launch.local.pump.time.monotonic", lambda: now)
    os.write(write_end, b"\r 50%")
    pump.pump()
    assert pump.show_unfinished() > 0
    assert page.text == b"\r"
    now += 1
    assert (pump.show_unfinished(), page.text) == (None, b"\r 50%")
    assert pump.show_unfinished() is None
    os.write(write_end, b"\r100%\n")
    pump.pump()
    os.close(write_end)
    pump.close()
    assert page.text == b"\r 50%\r100%\n"


def test_what_is_torn_off_a_flood_waits_for_its_line(monkeypatch):
    """A full pipe tears a buffer anywhere: its last few bytes are no prompt, and a second later they still wait."""
    now = [100.0]
    monkeypatch.setattr("rankwise.launch.local.pump.time.monotonic", lambda: now[0])
    read_end, write_end = os.pipe()
    page = Page()
    pump = Pump(read_end, SharedStream("out", page, [0]), 0, shown=True)
    os.write(write_end, b"x" * 8191 + b"\n")
    assert pump.pump()
    os.write(write_end, b"6903 ")
    assert pump.pump()
    now[0] += 1.0
    pump.show_unfinished()
    assert page.text.endswith(b"x\n")
    os.write(write_end, b"y\n? ")  # and a prompt is one again
    assert pump.pump()
    now[0] += 2.1
    os.write(write_end, b"> ")
    assert pump.pump()
    now[0] += 0.2
    pump.show_unfinished()
    assert page.text.endswith(b"\n6903 y\n? > ")
    pump.close()
    os.close(write_end)


def test_a_torn_line_in_several_pieces_waits_for_all_of_them(monkeypatch):
    """Pieces of a cut line may come one by one: each waits as the first does, and no dots wait longer than that."""
    now = [100.0]
    monkeypatch.setattr("rankwise.launch.local.pump.time.monotonic", lambda: now[0])
    read_end, write_end = os.pipe()
    page = Page()
    pump = Pump(read_end, SharedStream("out", page, [0]), 0, shown=True)
    for piece in (b"1\n", b"x" * 4095 + b"\n", b"1", b"02", b"12"):
        os.write(write_end, piece)
        assert pump.pump()
        now[0] += 0.3
        pump.show_unfinished()
    assert page.text.endswith(b"x\n")
    os.write(write_end, b"\n.")
    for _ in range(10):  # dots: the first two seconds they may be a torn line, then each is shown at once
        assert pump.pump()
        now[0] += 0.3
        pump.show_unfinished()
        os.write(write_end, b".")
    assert page.text.endswith(b"x\n10212\n..........")
    pump.close()
    os.close(write_end)


def test_a_machine_that_slept_tears_no_line(monkeypatch):
    """Who wakes long after a torn line was due waits as long again: the rank has slept, too."""
    now = [100.0]
    monkeypatch.setattr("rankwise.launch.local.pump.time.monotonic", lambda: now[0])
    read_end, write_end = os.pipe()
    page = Page()
    pump = Pump(read_end, SharedStream("out", page, [0]), 0, shown=True)
    os.write(write_end, b"1\n2")
    assert pump.pump()
    now[0] += 60.0
    pump.show_unfinished()
    assert page.text == b"1\n"
    assert 0 < pump.show_unfinished() <= 2.0
    os.write(write_end, b"2\n3")
    assert pump.pump()
    assert page.text == b"1\n22\n"
    now[0] += 60.0
    pump.show_unfinished()
    now[0] += 2.1  # and nothing more has come
    pump.show_unfinished()
    assert page.text == b"1\n22\n3"
    pump.close()
    os.close(write_end)


def test_a_line_without_end_is_given_out_in_pieces():
    """Megabytes without a new line are not gathered."""
    read_end, write_end = os.pipe()
    page = Page()
    pump = Pump(read_end, SharedStream("out", page, [1]), 1, shown=True)
    for _ in range(300):
        os.write(write_end, b"x" * 10_000)
        pump.pump()
        assert len(pump._partial) <= (1 << 20) + 10_000
    os.close(write_end)
    pump.close()
    assert page.text.count(b"x") == 3_000_000
