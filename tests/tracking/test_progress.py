"""Progress: one live line on a terminal, plain lines elsewhere, silence off the main rank."""

import errno
import io
import os
import pty
import re
from types import SimpleNamespace

import pytest

from rankwise.errors import ConfigError
from rankwise.tracking import Progress
from rankwise.tracking.terminal.live import fitted
from rankwise.tracking.terminal.progress import Meter, format_bytes, format_seconds, peak_memory

MAIN, OTHER = SimpleNamespace(is_main=True), SimpleNamespace(is_main=False)


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def run(progress, clock, first, last):
    for step in range(first, last + 1):
        clock.now_s += 1.0
        progress.update(step, epoch=step // 50, loss=1 / step, samples=64, wait_s=0.25)


def test_plain_lines_where_there_is_no_terminal():
    """One line at once, one every ten seconds, one at the end; each tells all there is to know."""
    clock, out = Clock(), io.StringIO()
    with Progress(MAIN, total_steps=100, epochs=2, file=out, clock=clock) as progress:
        run(progress, clock, 1, 25)
        progress.print("epoch 1: accuracy 0.5")
    lines = out.getvalue().splitlines()
    assert [re.search(r"step (\d+)/100", line)[1] for line in lines if "step" in line] == ["1", "11", "21", "25"]
    assert "epoch 1: accuracy 0.5" in lines
    assert lines[1].startswith("epoch 1/2  step 11/100  loss 0.09091  64 samples/s  ram ")
    assert lines[1].endswith("wait 25%  left 1:29")
    assert "\x1b" not in out.getvalue()


class Full(io.StringIO):
    """A file on a disk that has become full, or a terminal that was closed."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal
        self.error = None

    def isatty(self):
        return self.terminal

    def write(self, text):
        if self.error is not None:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("closed file")])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_file_that_takes_no_more_ends_no_run(terminal, error):
    """Neither at the start, nor in the middle, nor at the end: other ranks would wait for this one."""
    for fails_from in (0, 1, 2):
        clock, out = Clock(), Full(terminal)
        out.error = error if fails_from == 0 else None
        with Progress(MAIN, total_steps=100, file=out, clock=clock) as progress:
            out.error = error if fails_from <= 1 else None
            run(progress, clock, 1, 25)
            progress.print("epoch 1")
            out.error = error
        shown = out.getvalue()
        assert ("step 21/100" in shown) == (fails_from == 2)


def test_a_resumed_run_has_its_own_rate():
    """The steps of earlier attempts do not count into the time left."""
    clock, out = Clock(), io.StringIO()
    with Progress(MAIN, total_steps=1010, file=out, clock=clock) as progress:
        run(progress, clock, 1001, 1002)
    assert out.getvalue().splitlines()[-1].endswith("left 0:08")


def test_a_slow_down_shows():
    """The rate looks at the recent past, not at the whole run."""
    meter = Meter(0.0)
    for step in range(1000):
        meter.add(step * 0.01, samples=10, wait_s=0.0, step=step)
    for step in range(100):
        meter.add(10.0 + step, samples=10, wait_s=0.9, step=1000 + step)
    assert meter.samples_per_s == pytest.approx(10.0)
    assert meter.wait_share == pytest.approx(0.9)


def test_without_a_stderr_nothing_is_shown(monkeypatch):
    """Python has no sys.stderr in a process started with `2>&-`; a training there goes on."""
    monkeypatch.setattr("sys.stderr", None)
    with Progress(MAIN, total_steps=3) as progress:
        progress.update(1, loss=0.5, samples=3)
        progress.print("hello")


def test_other_ranks_are_silent_and_read_nothing():
    """Off the main rank nothing is printed, and no loss is read from a device."""

    class Poison:
        def __float__(self):
            raise AssertionError

    out = io.StringIO()
    with Progress(OTHER, total_steps=3, file=out) as progress:
        progress.update(1, loss=Poison(), samples=3)
        progress.print("hello")
    assert out.getvalue() == ""


def test_the_loss_is_read_only_when_a_line_is_drawn():
    """A tensor on a device is not waited for at every step."""
    reads = []

    class Loss:
        def __float__(self):
            reads.append(1)
            return 0.5

    clock = Clock()
    with Progress(MAIN, file=io.StringIO(), clock=clock) as progress:
        for step in range(1, 101):
            clock.now_s += 0.01
            progress.update(step, loss=Loss())
    assert len(reads) == 2


def test_one_live_line_on_a_terminal(monkeypatch):
    """On a terminal the line is redrawn in place, what is said appears above it, and a kill would leave the cursor."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    main, side = pty.openpty()
    clock = Clock()
    with os.fdopen(side, "w") as terminal:
        with Progress(MAIN, total_steps=60, epochs=2, file=terminal, clock=clock) as progress:
            run(progress, clock, 1, 30)
            progress.print("checkpoint [saved] at step 30")
            run(progress, clock, 31, 60)
        os.set_blocking(main, False)
        seen = b""
        try:
            while block := os.read(main, 1 << 16):
                seen += block
        except BlockingIOError:
            pass
    os.close(main)
    assert seen.split(b"epoch")[0].endswith(b"\x1b[?25h")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert "checkpoint [saved] at step 30" in text
    assert "epoch 2/2" in text
    assert "step 60/60" in text
    assert "wait 25%" in text
    # redrawn in place: sixty updates, yet no more new lines than what was said and the end
    assert seen.count(b"\n") <= 4


def test_a_narrow_terminal_keeps_what_matters():
    """The bar goes first, then memory; step and loss stay longest; the line never exceeds its width."""
    tail = [(0, "step 1/9"), (1, "loss 0.5"), (2, "10 samples/s"), (5, "ram 9 GiB"), (4, "wait 3%")]
    whole = "step 1/9  loss 0.5  10 samples/s  ram 9 GiB  wait 3%"
    assert fitted("epoch 1", tail, 200) == (whole, 20)
    assert fitted("epoch 1", tail, len("epoch 1" + whole) + 8) == (whole, 6)
    assert fitted("epoch 1", tail, len("epoch 1" + whole) + 1) == (whole, 0)
    assert fitted("epoch 1", tail, len("epoch 1" + whole)) == (whole.replace("  ", " "), 0)
    assert fitted("epoch 1", tail, len("epoch 1" + whole) - 4) == ("step 1/9  loss 0.5  10 samples/s  wait 3%", 0)
    assert fitted("epoch 1", tail, 26)[0] == "step 1/9  loss 0.5"
    for width in range(8, 90):
        text, bar = fitted("epoch 1", tail, width)
        assert len("epoch 1") + len(text) + 1 + (bar + 1 if bar else 0) <= width


def test_numbers_are_shown_for_people():
    """Bytes and seconds in the units that one thinks in."""
    assert [format_bytes(n) for n in (10, 2048, 5 << 20, 3 << 30)] == ["10 B", "2 KiB", "5 MiB", "3.0 GiB"]
    assert [format_seconds(s) for s in (None, 5, 65, 3723.4)] == ["?", "0:05", "1:05", "1:02:03"]
    assert peak_memory()["ram"] > 1 << 20


def test_wrong_totals_are_refused():
    """Before anything is shown."""
    with pytest.raises(ConfigError, match="total_steps >= 0"):
        Progress(MAIN, total_steps=-1)
