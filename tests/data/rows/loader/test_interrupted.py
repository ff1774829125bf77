"""A pass that ends in its middle: by an exit, a signal, or a process that was forked."""

import signal
import sys
import threading
import traceback
from itertools import chain

import pytest

from rankwise.data.feed.prefetch import PrefetchQueue
from rankwise.data.rows.samplers import SequentialSampler
from rankwise.testing.endings import run_endings
from rankwise.testing.new_threads import threads_since
from rankwise.testing.patience import until
from rankwise.testing.stores.hundred_rows import loader_of_hundred, rows_of
from rankwise.testing.stores.row_stores import make_stores

SCRIPT = """
atexit.register(lambda: print('left:', [t.name for t in threading.enumerate() if 'rankwise' in t.name]))
loader = loader_of_hundred({place!r})
assert "anndata" not in sys.modules  # its import takes a second, and a Zarr array needs nothing of it
"""
IMPORTS = """
import atexit, os, signal, sys, threading
import pandas, torch
import rankwise.data.rows.samplers
from rankwise.data.rows import Loader
from rankwise.data.store.decode.choice import choose_decoder
from rankwise.testing.stores.hundred_rows import loader_of_hundred, rows_of
choose_decoder()  # loads numba once for all
"""
OPEN = "batches = iter(loader)\nnext(batches)\n"


ENDINGS = {
    OPEN: 0,
    OPEN + "raise SystemExit(3)": 3,
    OPEN + "os.kill(os.getpid(), signal.SIGINT)": -signal.SIGINT,
    "kept = [*loader]": 0,
    "assert loader.start_prefetch()": 0,
}


@pytest.fixture(scope="module")
def ended(hundred, tmp_path_factory):
    """How the scripts ended, by what they end with."""
    scripts = [SCRIPT.format(place=hundred) + ending for ending in ENDINGS]
    scripts.append(FORKS.format(place=hundred))
    scripts.append(WORKERS.format(places=make_stores(tmp_path_factory.mktemp("stores"), (53, 40)).places))
    return dict(zip([*ENDINGS, "forks", "workers"], run_endings(IMPORTS, scripts), strict=True))


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_exits(ended, ending):
    """A script that ends in the midst of a pass, or while the next one is read, exits and stops what reads first."""
    done, wanted = ended[ending], ENDINGS[ending]
    assert (done.returncode, done.stdout) == (wanted, "left: []\n"), done.stderr
    assert ("KeyboardInterrupt" in done.stderr) == (wanted == -signal.SIGINT)
    assert wanted < 0 or done.stderr == ""


FORKS = """
import warnings
warnings.filterwarnings("ignore", "This process", DeprecationWarning)
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


def test_a_pass_does_not_go_on_in_a_forked_process(ended):
    """It has no thread to read there: that is said, and a pass of its own is whole, as is the parent's."""
    done = ended["forks"]
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "a pass cannot continue in a process that was forked during it: iterate again there 10", "0 9"
    ]  # fmt: skip


WORKERS = """
import warnings
warnings.simplefilter("ignore")
from torch.utils.data import DataLoader
from rankwise import Order
from rankwise.data.rows import OrderedLoader

places = {places!r}
loader = OrderedLoader(places, order=Order(places, batch_size=9), dense=True)
options = {{"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True}}
batches = DataLoader(loader.as_dataset(), batch_size=None, **options)
steps, others = iter(batches), iter(loader)
next(others)
print(len(next(steps)[0]))
raise SystemExit(3)
"""


def test_the_interpreter_exits_with_workers(ended):
    """Iterations that are left open, of workers that stay and of this process, keep nobody waiting."""
    done = ended["workers"]
    assert (done.returncode, done.stdout) == (3, "9\n"), done.stderr


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
