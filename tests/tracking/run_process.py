"""Run by the tests: a process that owns a run directory and does what it is told, line by line.

Commands on stdin: open, close, fence, log, finish, fork, exit. Answers on stdout, one line each. Imports no torch.
"""

import os
import signal
import sys
from types import SimpleNamespace

from rankwise.errors import RankwiseError
from rankwise.tracking import RunDir, Tracker

ALONE = SimpleNamespace(
    is_main=True, rank=0, world_size=1, broadcast_object=lambda value: value, all_gather_object=lambda value: [value]
)


def obey(command, path, state):
    if command == "open":
        state["run"] = RunDir.open(path, config={"lr": 0.1}, world=ALONE, wait_s=3.0)  # time for a winner to sign
        state["tracker"] = Tracker(state["run"], world=ALONE)
        return f"attempt {state['run'].attempt}"
    if command == "close":
        state["run"].close()
    elif command == "fence":
        with state["run"].fence():
            pass
    elif command == "log":
        state["tracker"].log(7, {"loss": 1.0})
    elif command == "finish":
        state["run"].finish({"loss": 0.5})
    elif command == "fork":
        child = os.fork()
        if not child:
            signal.pause()
        return str(child)
    return "done"


def main():
    state: dict = {}
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "exit":
            break
        try:
            answer = obey(line.strip(), sys.argv[1], state)
        except RankwiseError as error:
            answer = f"{type(error).__name__}: {error}"
        print(answer.replace("\n", " "), flush=True)
    assert "torch" not in sys.modules


main()
