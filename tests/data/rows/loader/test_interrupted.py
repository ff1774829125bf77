"""A pass that ends in its middle: by an exit, a signal, or a process that was forked."""

import signal
import subprocess
import sys
import threading
import traceback
from itertools import chain

import pytest

from rankwise.data.feed.prefetch import PrefetchQueue
from rankwise.data.rows.samplers import SequentialSampler
from rankwise.testing.new_threads import threads_since
from rankwise.testing.patience import until
from rankwise.testing.stores.hundred_rows import loader_of_hundred, rows_of

SCRIPT = """
import atexit, os, signal, sys, threading
atexit.register(lambda: print('left:', [t.name for t in threading.enumerate() if 'rankwise' in t.name]))
from rankwise.testing.stores.hundred_rows import loader_of_hundred
loader = loader_of_hundred({place!r})
assert "anndata" not in sys.modules  # its import takes a second, and a Zarr array needs nothing of it
"""
OPEN = "batches = iter(loader)\nnext(batches)\n"


@pytest.mark.parametrize(
    ("ending", "wanted"),
    [
        (OPEN, 0),
        (OPEN + "raise SystemExit(3)", 3),
        (OPEN + "os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("kept = [*loader]", 0),
        ("assert loader.start_prefetch()", 0),
    ],
)
def test_the_interpreter_exits(hundred, ending, wanted):
    """A script that ends in the midst of a pass, or while the next one is read, exits and stops what reads first."""
    script = SCRIPT.format(place=hundred) + ending
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stdout) == (wanted, "left: []\n"), done.stderr
    assert ("KeyboardInterrupt" in done.stderr) == (wanted == -signal.SIGINT)
    assert wanted < 0 or done.stderr == ""


FORKS = """
import os
from rankwise.testing.stores.hundred_rows import loader_of_hundred, rows_of
loader = loader_of_hundred({place!r})
batches = iter(loader)
next(batches)
child = os.fork()
if child == 0:
    try:
        list(batches)
    except RuntimeError as error:
        print(error, len(rows_of(loader)), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(rows_of(batches)), flush=True)
"""


def test_a_pass_does_not_go_on_in_a_forked_process(hundred):
    """It has no thread to read there: that is said, and a pass of its own is whole, as is the parent's."""
    words = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", FORKS.format(place=hundred)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "a pass cannot continue in a process that was forked during it: iterate again there 10", "0 9"
    ]  # fmt: skip


def waits_for_rows():
    """Whether the main thread is inside of a wait for what is read."""
    frame = sys._current_frames()[threading.main_thread().ident]
    return any(held.f_code is PrefetchQueue.take.__code__ for held, _ in traceback.walk_stack(frame))


def test_who_interrupts_a_wait_finds_the_loader_as_it_was(hundred, reads):
    """The pass is over, nothing reads on, and the next pass is a whole one."""
    loader = loader_of_hundred(hundred, SequentialSampler(5, 4, 10))
    batches = iter(loader)
    next(batches)
    reads.gate.clear()

    def interrupt():
        assert reads.waits.wait(60)
        assert until(waits_for_rows)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        reads.gate.set()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        list(batches)
    assert not threads_since("rankwise-reader")
    assert [*chain.from_iterable(rows_of(loader))] == list(range(100))
