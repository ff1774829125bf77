"""Things that are made anew in forked processes, and what forks wait for."""

import gc
import os
import subprocess
import sys
import weakref

import pytest

from rankwise._process import forks
from rankwise._process.forks import renew_in_children


class Thing:
    renewed = 0

    def renew(self):
        self.renewed += 1


def test_nobody_is_held():
    """Registering keeps nothing alive."""
    thing = Thing()
    renew_in_children(thing)
    assert thing in forks._things
    seen = weakref.ref(thing)
    del thing
    gc.collect()
    assert seen() is None


SCRIPT = """
import os, warnings
warnings.simplefilter("ignore")
from rankwise._process.forks import renew_in_children
class Thing:
    renewed = 0
    def renew(self):
        self.renewed += 1
things = [Thing() for _ in range(3)]
for thing in things:
    renew_in_children(thing)
child = os.fork()
if child == 0:
    grandchild = os.fork()
    if grandchild == 0:
        os._exit(sum(thing.renewed for thing in things))
    os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) * 10 + sum(thing.renewed for thing in things))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), [thing.renewed for thing in things])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_children_renew_and_parents_do_not():
    """Each thing once in each process that was forked, the children of children included."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "63 [0, 0, 0]\n", done.stderr


LOADING = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
from rankwise.data.store.decode.choice import choose_decoder
from rankwise._process.forks import forks_wait
loading = threading.Thread(target=choose_decoder)
loading.start()
while "llvmlite" not in sys.modules and loading.is_alive():
    time.sleep(0.0005)
child = os.fork()
if child == 0:
    signal.alarm(60)  # whoever waits for a lock of a thread that is not there waits for ever
    os._exit(len(choose_decoder()[0].name))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(choose_decoder()[0].name), forks_wait.acquire(False))
child = os.fork()  # compilers start processes of their own: who holds it may
if child == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_waits_until_the_decoder_is_loaded():
    """A child that is forked while a thread imports the compiler decodes as its parent does, and can load more."""
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == f"{len('kernel')} {len('kernel')} True\n7\n", done.stderr
    assert done.stderr == ""


INTERRUPTED = """
import threading
from rankwise._process import forks
class Thing:
    renewed = 0
    def renew(self):
        self.renewed += 1
thing = Thing()
forks.renew_in_children(thing)
inside = threading.Event()
def loading():
    with forks.forks_wait:
        inside.set()
        threading.Event().wait()
threading.Thread(target=loading, daemon=True).start()
inside.wait()
forks._open(forks.forks_wait)  # what a child runs that was forked although its parent got no lock
forks._renew()
print(thing.renewed, forks.forks_wait.acquire(timeout=5))
"""


def test_a_child_is_whole_although_a_ctrl_c_ended_the_wait_of_the_fork():
    """Python forks all the same: what children need is made anew, and the lock, which nobody gives back, is free."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "1 True\n", done.stderr
