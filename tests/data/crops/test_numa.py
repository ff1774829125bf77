"""NUMA: which cores the reader's threads get."""

import logging
import os

import pytest

from rankwise.data.crops import NumaStrategy
from rankwise.data.crops.tuning import choose_cores, gpu_node, pin_thread, read_topology

TWO = {0: frozenset({0, 1, 8}), 1: frozenset({2, 3})}


def choose(strategy, node, topology=TWO, usable=frozenset(range(9))):
    return choose_cores(strategy, node, topology=topology, usable=usable)


def test_the_topology_is_read_from_the_system(tmp_path):
    """Lists of cores as the kernel writes them; a machine that does not say has none."""
    for node, cores in ((0, "0-1,8\n"), (1, "2,3\n"), (2, "\n")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cores)
    assert read_topology(tmp_path) == TWO
    assert read_topology(tmp_path / "not") == {}


def test_a_gpu_hangs_on_a_node(tmp_path):
    """The node of a device is that of its bus address; unknown is -1."""
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text("1\n")
    assert gpu_node("0000:3B:00.0", tmp_path) == 1
    assert gpu_node("0000:af:00.0", tmp_path) == -1


def test_threads_go_to_the_node():
    """AUTO follows the device, PIN_TO the user, within the cores that the process may use."""
    assert choose(NumaStrategy.AUTO, 0) == {0, 1, 8}
    assert choose(NumaStrategy.PIN_TO, 1) == {2, 3}
    assert choose(NumaStrategy.PIN_TO, 1, usable=frozenset({3, 4})) == {3}
    assert choose(NumaStrategy.DISABLED, 1) is None


@pytest.mark.parametrize(
    ("node", "topology", "usable", "why"),
    [
        (0, {0: frozenset({0})}, {0}, "one NUMA node"),
        (-1, TWO, {0}, "is unknown"),
        (7, TWO, {0}, "no NUMA node 7"),
        (1, TWO, {0}, "no core of NUMA node 1"),
    ],
)
def test_where_it_does_not_apply_the_log_says_why(node, topology, usable, why, caplog):
    """Nothing is pinned, and the reason is in the log."""
    with caplog.at_level(logging.INFO, "rankwise.crops"):
        assert choose(NumaStrategy.AUTO, node, topology, frozenset(usable)) is None
    assert why in caplog.text


def test_a_thread_is_bound(monkeypatch):
    """The calling thread alone is bound; None leaves it."""
    calls = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *call: calls.append(call), raising=False)
    pin_thread(frozenset({3}))
    pin_thread(None)
    assert calls == [(0, frozenset({3}))]
