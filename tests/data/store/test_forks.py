"""Things that are made anew in forked processes."""

import gc
import os
import subprocess
import sys
import weakref

import pytest

from rankwise.data.store import forks
from rankwise.data.store.forks import renew_in_children


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
from rankwise.data.store.forks import renew_in_children
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
