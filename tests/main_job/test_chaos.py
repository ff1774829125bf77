"""Promise 5 in chaos: struck at random moments and started again, a run ends where an undisturbed one ends.

Real processes, real signals, counted moments: a seed that fails fails again.
"""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from rankwise.errors import Interrupted

AGAIN = Interrupted.EXIT_CODE
NUM = {"train_small": 190, "train_crops": 126}
WHERE = ("step", "step", "evaluate", "write", "rename", "renamed")
MOST = {"step": 9, "evaluate": 3, "write": 40, "rename": 6, "renamed": 6}  # moments of one attempt, about


@pytest.fixture(scope="module")
def server():
    """The process that all ranks are forks of."""
    started = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("warm_ranks.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        yield started
        started.stdin.close()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory, make_job, small_store):
    """Rows of sharded Zarr with labels, and boxes out of volumes that are cut at random and augmented."""
    folder = tmp_path_factory.mktemp("volumes")
    rng = np.random.default_rng(0)
    for name, shape in (("a.zarr", (20, 30, 40)), ("b.zarr", (9, 33, 17))):
        values = rng.integers(1, 1000, shape).astype("u2")
        zarr.create_array(str(folder / name), data=values, chunks=(5, 10, 10), shards=(10, 30, 40))
    return {
        "train_small": make_job("train_small.py", "--store", small_store, "--epochs", "2", "--val"),
        "train_crops": make_job("train_crops.py", "--volumes", str(folder)),
    }


class Chaos:
    """One run of a seed: its script, world sizes and strikes."""

    def __init__(self, seed, server, jobs):
        self.rng = random.Random(seed)
        self.script = "train_crops" if seed % 4 == 3 else "train_small"
        self.job, self.server = jobs[self.script], server
        self.sizes = (1, 2, 3) if seed % 3 == 2 else (self.rng.choice((1, 2)),)
        self.options = ("--plain",) if len(self.sizes) > 1 else ()
        self.run_dir = self.job.new_run()
        self.told = []

    def start(self, run_dir, num_ranks, strike=None):
        order = {"script": self.script, "options": [*self.job.options, *self.options], "num_ranks": num_ranks}
        self.server.stdin.write(json.dumps(order | {"run_dir": str(run_dir), "strike": strike}) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def strike(self, num_ranks):
        where, number = self.rng.choice(WHERE), self.rng.choice(("SIGKILL", "SIGKILL", "SIGTERM"))
        ranks = [0] if where.startswith("rename") else [self.rng.randrange(num_ranks)]
        together = self.rng.random() < 0.4
        if together and number == "SIGTERM":
            ranks = list(range(num_ranks))
        count = self.rng.randint(1, MOST[where])
        return {"signal": number, "where": where, "count": count, "ranks": ranks, "all": together}

    def run(self):
        """Strike the run two to four times, then let it end."""
        for _ in range(self.rng.randint(2, 4)):
            num_ranks = self.rng.choice(self.sizes)
            strike = self.strike(num_ranks)
            statuses = self.start(self.run_dir, num_ranks, strike)
            self.told.append((num_ranks, strike, statuses))
            if (self.run_dir / "finished.json").exists():
                break
            self.check(strike, statuses)
        statuses = self.start(self.run_dir, self.sizes[-1])
        assert set(statuses) == {0}, (self.told, statuses)

    def check(self, strike, statuses):
        """Who was asked to stop has saved, all together; who was killed has died of it."""
        if strike["signal"] == "SIGTERM":
            early = statuses[strike["ranks"][0]] == -15  # it came before anything could be lost, or after the save
            assert early or set(statuses) == {AGAIN}, self.told
        else:
            assert -9 in statuses, self.told
            assert not {0, AGAIN} & set(statuses), self.told
        if set(statuses) == {AGAIN}:
            record = json.loads((self.run_dir / "config.json").read_text())["environment"]
            last = record[max(record, key=int)]["interrupted"]
            newest = max((self.run_dir / "checkpoints").glob("step-*")).name
            assert int(newest.removeprefix("step-")) == last["step"], self.told

    def undisturbed(self, num_ranks):
        key = (num_ranks, self.options)
        if key not in self.job._undisturbed:
            self.job._undisturbed[key] = run_dir = self.job.new_run()
            assert set(self.start(run_dir, num_ranks)) == {0}
        return self.job._undisturbed[key]

    def compare(self):
        """Exactly once in each epoch on the lineage that survives; the undisturbed result."""
        used, wanted_dir = self.job.used(self.run_dir), self.undisturbed(self.sizes[0])
        for epoch in range(2):
            numbers = Counter(int(str(entry).split(":")[0]) for entry in used[epoch].elements())
            assert numbers == Counter(range(NUM[self.script])), self.told
        assert used == self.job.used(wanted_dir)
        got, wanted = self.job.result(self.run_dir), self.job.result(wanted_dir)
        assert got["steps"] == wanted["steps"]
        if len(self.sizes) == 1:
            assert (got["digest"], got["metrics"]) == (wanted["digest"], wanted["metrics"]), self.told
        else:
            assert got["metrics"] == pytest.approx(wanted["metrics"], rel=0, abs=1e-9), self.told
            torch.testing.assert_close(got["parameters"], wanted["parameters"], rtol=0, atol=1e-9)


def check(seed, server, jobs):
    chaos = Chaos(seed, server, jobs)
    chaos.run()
    chaos.compare()
    return chaos.told


# Each signal at each kind of moment; one of several ranks, and all; both scripts; at 1, 2 and changing world sizes.
REPRESENTATIVE = (29, 51, 189)
SEEDS = [*REPRESENTATIVE, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20))]


@pytest.mark.parametrize("seed", SEEDS)
def test_chaos(seed, server, jobs):
    """Killed or asked to stop two to four times, on one rank or all, in step, evaluation, write or rename."""
    check(seed, server, jobs)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_chaos_long(server, jobs):
    """Another 177 of them."""
    for seed in sorted({*range(20, 200)} - {*REPRESENTATIVE}):
        check(seed, server, jobs)
