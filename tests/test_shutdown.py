"""A process that has used gloo ends well: the interpreter goes down when gloo's threads rest."""

import ctypes
import hashlib
import sys
import threading
import time

import pytest

from rankwise._shutdown import let_gloo_finish

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at threads through /proc")
_SET_NAME = 15  # prctl's PR_SET_NAME, of the calling thread


def start(name, work):
    """A thread of the system's name `name` that does `work`; returns events of its beginning and its end."""
    begun, ended = threading.Event(), threading.Event()

    def run():
        ctypes.CDLL(None).prctl(_SET_NAME, name, 0, 0, 0)
        begun.set()
        work()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert begun.wait(60)
    return ended


def compute():
    hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000)  # some tenths of a second, without the interpreter


def test_a_thread_of_gloo_that_works_is_waited_for():
    """Whoever is about to let go of a tensor has done so before the interpreter ends."""
    ended = start(b"pt_gloo_runloop", compute)
    let_gloo_finish(limit_s=60)
    assert ended.is_set()


def test_threads_that_rest_or_are_not_gloos_are_not():
    """A gloo thread that waits for work, and a thread of the program's, do not hold up the end."""
    never = threading.Event()
    resting, other = start(b"pt_gloo_runloop", never.wait), start(b"program", compute)
    begun = time.monotonic()
    let_gloo_finish(limit_s=60)
    assert time.monotonic() - begun < 60
    assert not resting.is_set()
    never.set()
    assert resting.wait(60)
    assert other.wait(60)


def test_the_wait_has_an_end():
    """A thread that works on and on delays the end by no more than the limit."""
    enough, most = threading.Event(), time.monotonic() + 60

    def work():
        while not enough.is_set() and time.monotonic() < most:
            compute()

    ended = start(b"pt_gloo_runloop", work)
    let_gloo_finish(limit_s=0.01)
    assert not ended.is_set()
    enough.set()
    assert ended.wait(60)
