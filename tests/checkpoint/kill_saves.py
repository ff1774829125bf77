"""Run by test_commit: kills a child at every system call that matters in a save, and looks at what is left.

Forks, so that torch is imported once for all the kills. Prints one JSON line per kill.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import torch

from rankwise.checkpoint import Checkpointer
from rankwise.world import World

ROOT = Path(sys.argv[1])


def parts(value):
    return {"x": {"value": torch.full((1000,), float(value))}, "y": {"value": value}}


def arm(kill_at):
    """Die right before or after the n-th fsync, rename or rmtree."""
    count = 0

    def wrap(module, name):
        function = getattr(module, name)

        def wrapped(*args, **kwargs):
            nonlocal count
            for run in (lambda: None, lambda: function(*args, **kwargs)):
                result = run()
                count += 1
                if count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(module, name, wrapped)

    wrap(os, "fsync")
    wrap(os, "rename")
    wrap(os, "rmdir")


def kill_at(folder, new_step, number, *, aside):
    """Save 2 over or beside 1 in a child that dies at the n-th call; return its status and what is found."""
    child = os.fork()
    if not child:
        arm(number)
        with Checkpointer(folder, world=World.single(), keep=1, attempt=2, asynchronous=aside) as checkpointer:
            checkpointer.save(new_step, parts(2))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    value: dict = {}
    other: dict = {}
    finder = Checkpointer(folder, world=World.single(), keep=1, attempt=3)
    report = finder.restore({"x": value, "y": other})
    consistent = value["value"].tolist() == [float(other["value"])] * 1000
    facts = {"status": status, "step": report.step, "value": other["value"], "consistent": consistent}
    finder.save(9, parts(9))
    return {**facts, "left": sorted(entry.name for entry in folder.glob("*step-*"))}


def main():
    warnings.simplefilter("error")
    for new_step, aside in ((1, False), (2, False), (2, True)):
        for number in range(1, 100):
            folder = ROOT / f"{new_step}-{number}-{aside}"
            Checkpointer(folder, world=World.single(), keep=1, attempt=1).save(1, parts(1))
            facts = kill_at(folder, new_step, number, aside=aside)
            print(json.dumps({"new_step": new_step, "aside": aside, **facts}), flush=True)
            if facts["status"] == 0:
                break


main()
