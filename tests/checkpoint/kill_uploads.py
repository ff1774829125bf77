"""Run by test_bucket: a child is killed at every seventh moment of a save to an object store, and what is left then.

Forks before the store is opened, as its threads would not come along. Prints one JSON line per kill.
"""

import json
import os
import signal
import sys
import warnings

import obstore
import torch

from rankwise.checkpoint import Checkpointer
from rankwise.world import World

URL, OPTIONS = sys.argv[1], json.loads(sys.argv[2])


def parts(value):
    return {"x": {"value": torch.full((3000,), float(value))}, "y": {"value": value}}


def checkpointer(place):
    return Checkpointer(f"{URL}/{place}", world=World.single(), keep=1, store_options=OPTIONS)


def arm(kill_at):
    """Die right before or after the n-th request of a writer or of a put."""
    count = 0

    def met():
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(function):
        def called(*args, **kwargs):
            met()
            result = function(*args, **kwargs)
            met()
            return result

        return called

    class Writer:
        def __init__(self, real):
            self.real = real

        def __enter__(self):
            self.real.__enter__()
            return self

        def __exit__(self, *error):
            return around(self.real.__exit__)(*error)

        def write(self, block):
            return around(self.real.write)(block)

        def flush(self):
            return self.real.flush()

    opened = obstore.open_writer
    obstore.open_writer = lambda *args, **kwargs: Writer(opened(*args, **kwargs))
    obstore.put = around(obstore.put)
    obstore.delete = around(obstore.delete)


def in_child(act):
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def struck(place, number):
    arm(number)
    checkpointer(place).save(2, parts(2))


def look(place, number, status):
    value, other = {}, {}
    report = checkpointer(place).restore({"x": value, "y": other})
    whole = value["value"].tolist() == [float(other["value"])] * 3000
    print(json.dumps({"number": number, "status": status, "step": report.step, "whole": whole}), flush=True)


def main():
    warnings.simplefilter("error")
    for number in range(1, 300, 7):
        place = f"kill-{number}"
        in_child(lambda place=place: checkpointer(place).save(1, parts(1)))
        status = in_child(lambda place=place, number=number: struck(place, number))
        in_child(lambda place=place, number=number, status=status: look(place, number, status))
        if status == 0:
            break


main()
