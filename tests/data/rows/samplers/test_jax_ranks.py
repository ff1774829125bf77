"""Ranks that JAX knows about, as real processes."""

import json
import subprocess
import sys

import pytest

from rankwise.testing.held_ports import hold_port

SCRIPT = """
import json, sys
import jax
import numpy as np
jax.distributed.initialize(f"localhost:{sys.argv[1]}", num_processes=2, process_id=int(sys.argv[2]))
import rankwise
world = rankwise.World.current()
assert (world.rank, world.world_size, world.backend) == (int(sys.argv[2]), 2, "jax")
assert world.all_reduce(1) == 2 and rankwise.World.init_jax() is world
from rankwise.data.rows.samplers import DistributedSampler, RandomSampler
sampler = DistributedSampler(RandomSampler(8, 4, 16, rng=0), dist_info="jax")
rows = []
for _ in range(2):
    for request in sampler.sample(1001):
        listed = np.concatenate([np.arange(run.start, run.stop) for run in request["requests"]])
        rows += listed[np.concatenate(request["splits"])].tolist()
print(json.dumps(rows))
"""


def test_two_processes_of_jax():
    """They share the rows, and after two epochs have seen all of them; the world is that of a JAX so initialised."""
    pytest.importorskip("jax")
    port = str(hold_port())
    started = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, port, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    first, second = (set(json.loads(process.communicate(timeout=240)[0].splitlines()[-1])) for process in started)
    assert not first & second
    assert first | second == set(range(1001))
