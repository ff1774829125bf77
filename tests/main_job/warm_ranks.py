"""Ranks that start in no time: forks of one process that has imported everything, a launch for each line of stdin.

A line is a JSON object: script, options, num_ranks, run_dir, and a strike, which befalls some ranks at a moment that is
counted, not timed, so that a seed tells everything:

    signal   "SIGKILL" or "SIGTERM"
    where    "step" (in the midst of it), "evaluate", "write" (of a checkpoint or a record), "rename", "renamed"
    count    at which such moment of the rank
    ranks    who is struck; "all": a fork's own strike, and the others are killed as soon as it has ended

The answer is how each rank has ended, as `subprocess` says it.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

PATIENCE_S = 200.0


class Strike:
    """Counts the moments of this process, and strikes at one of them."""

    def __init__(self, *, where, count, number):
        self.where, self.left, self.number = where, count, number

    def meet(self, where):
        if where == self.where:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), self.number)

    def watch_files(self):
        for name, before, after in (("fsync", "write", ""), ("rename", "rename", "renamed")):
            setattr(os, name, self._met(getattr(os, name), before, after))

    def _met(self, real, before, after):
        def met(*args, **kwargs):
            self.meet(before)
            result = real(*args, **kwargs)
            self.meet(after)
            return result

        return met


def become_rank(order, rank, port):
    """Run the script as one rank; never returns."""
    size = str(order["num_ranks"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANKWISE_RUN_DIR=order["run_dir"])
    code = 1
    try:
        with Path(f"{order['run_dir']}-{rank}.log").open("a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        strike, training = order["strike"], importlib.import_module("training")
        if strike is not None and rank in strike["ranks"]:
            number = getattr(signal, strike["signal"])
            training.STRIKE = Strike(where=strike["where"], count=strike["count"], number=number)
            training.STRIKE.watch_files()
        script = importlib.import_module(order["script"])
        sys.argv[1:] = order["options"]
        script.main()
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001  (a rank ends here, whatever happened)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def launch(order):
    """Fork the ranks and wait for them; return how each has ended."""
    from rankwise.launch.local.ports import HeldPort

    port = HeldPort()
    ranks = {}
    for rank in range(order["num_ranks"]):
        pid = os.fork()
        if pid == 0:
            become_rank(order, rank, port.number)
        ranks[pid] = rank
    statuses, deadline = [None] * order["num_ranks"], time.monotonic() + PATIENCE_S
    while None in statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.002)
        else:
            statuses[ranks.pop(pid)] = os.waitstatus_to_exitcode(status)
        died = any(status not in {None, 0, 75} for status in statuses)
        if (died and order["strike"] is not None and order["strike"]["all"]) or time.monotonic() > deadline:
            for left in ranks:
                os.kill(left, signal.SIGKILL)
    port.close()
    return statuses


def main():
    sys.path.insert(0, str(Path(__file__).parent))
    # what a rank would import when it first needs it, too, and the decoder that it would load and check
    for name in (
        "train_small",
        "train_crops",
        "numba",
        "numpy.ma",
        "rankwise.launch.local.ports",
        "rankwise.train.models.batch_norm",
        "torch.utils.serialization",
    ):
        importlib.import_module(name)
    from rankwise.data.store.decode.choice import choose_decoder

    first = threading.Thread(target=choose_decoder)  # in the main thread, blosc would start threads of its own
    first.start()
    first.join()
    assert threading.active_count() == 1  # a fork would lose the others
    for line in sys.stdin:
        print(json.dumps(launch(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
