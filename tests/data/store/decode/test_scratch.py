"""Memory of one thread: grows, is used again, is freed."""

import gc
import subprocess
import sys

import pytest

from rankwise.data.store.decode.decoder import Scratch
from rankwise.data.store.decode.tasks import address_of


def test_buffers_grow_and_stay():
    """A larger need is met with a larger buffer, a smaller one with the same."""
    scratch = Scratch()
    scratch.reserve(read=100, decode=70_000)
    read, decode = scratch.read, scratch.decode
    assert len(read) >= 100
    assert len(decode) >= 70_000
    assert address_of(decode) % 64 == 0
    scratch.reserve(read=90, decode=1)
    assert scratch.read is read
    scratch.reserve(read=200_000, decode=1)
    assert len(scratch.read) >= 200_000
    assert scratch.decode is decode


def test_the_context_is_freed_once():
    """When a thread's memory is forgotten, the decoder's own is freed, too."""
    freed = []
    scratch = Scratch()
    scratch.ensure_context(lambda: 42, freed.append)
    scratch.ensure_context(lambda: 43, freed.append)
    assert scratch.context == 42
    del scratch
    gc.collect()
    assert freed == [42]


def test_no_memory_for_the_context():
    """A context that cannot be made is an error, not address 0."""
    with pytest.raises(MemoryError):
        Scratch().ensure_context(lambda: 0, print)


def test_the_end_of_the_interpreter_frees_nothing():
    """Threads may still decode while the interpreter exits: their context goes with the process, not before."""
    code = (
        "import atexit, os, weakref\n"
        "atexit.register(os._exit, 0)\n"  # handlers run in reverse order: this one after all finalizers
        "from rankwise.data.store.decode.decoder import Scratch\n"
        "scratch = Scratch()\n"
        "scratch.ensure_context(lambda: 42, lambda context: print('freed', flush=True))\n"
        "weakref.finalize(scratch, print, 'finalizers ran', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "finalizers ran\n", done.stderr
