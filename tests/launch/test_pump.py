"""Streams on their way to console and log files."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankwise.launch.pump import LogFile, Pump, _settled


class Page:
    """A console that remembers."""

    def __init__(self):
        self.text = b""
        self.said = []

    def raw(self, _stream, data):
        self.text += data

    def line(self, _stream, line):
        self.text += line + b"\n"

    def say(self, text):
        self.said.append(text)


@given(st.binary(min_size=1, max_size=300), st.integers(1, 7))
def test_nothing_is_lost_however_it_is_cut(data, size):
    """Lines arrive whole and in order, with their prefix, whatever pieces they were written in."""
    for prefix in (b"", b"[1] "):
        read_end, write_end = os.pipe()
        page = Page()
        pump = Pump(read_end, "out", page, shown=True, raw=False, prefix=prefix, log=None)
        for start in range(0, len(data), size):
            os.write(write_end, data[start : start + size])
            assert pump.pump()
        os.close(write_end)
        assert not pump.pump()
        pump.close()
        lines = data.removesuffix(b"\n").split(b"\n")
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
    assert "the run goes on without this log" in page.said[0]
