"""NUMA: which cores the reader's threads get."""

import logging
import os

import pytest

from rankwise.data.crops import NumaStrategy
from rankwise.data.crops import devices as module
from rankwise.data.crops.devices import cores_here, gpu_node, pin_thread
from rankwise.launch.hardware import Topology

TWO = {0: (0, 1, 8), 1: (2, 3)}


@pytest.fixture
def cores(monkeypatch):
    """The cores that are chosen on a machine with these nodes."""

    def chosen(strategy, node, *, device_node=-1, nodes=TWO):
        monkeypatch.setattr(module, "read_topology", lambda: Topology(nodes=nodes, siblings={}))
        return cores_here(strategy, node, device_node=device_node)

    return chosen


def test_a_gpu_hangs_on_a_node(tmp_path):
    """The node of a device is that of its bus address; unknown is -1."""
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "numa_node").write_text("1\n")
    assert gpu_node("0000:3B:00.0", tmp_path) == 1
    assert gpu_node("0000:af:00.0", tmp_path) == -1


def test_threads_go_to_the_node(cores):
    """AUTO follows the device, PIN_TO the user."""
    assert cores(NumaStrategy.AUTO, -1, device_node=0) == {0, 1, 8}
    assert cores(NumaStrategy.PIN_TO, 1, device_node=0) == {2, 3}
    assert cores(NumaStrategy.DISABLED, -1, device_node=1) is None


@pytest.mark.parametrize(
    ("node", "nodes", "why"),
    [(0, {0: (0,)}, "one NUMA node"), (-1, TWO, "is unknown"), (7, TWO, "no core of NUMA node 7, only of [0, 1]")],
)
def test_where_it_does_not_apply_the_log_says_why(cores, node, nodes, why, caplog):
    """Nothing is pinned, and the reason is in the log."""
    with caplog.at_level(logging.INFO, "rankwise.crops"):
        assert cores(NumaStrategy.AUTO, -1, device_node=node, nodes=nodes) is None
    assert why in caplog.text


def test_a_thread_is_bound(monkeypatch):
    """The calling thread alone is bound; None leaves it."""
    calls = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *call: calls.append(call), raising=False)
    pin_thread(frozenset({3}))
    pin_thread(None)
    assert calls == [(0, frozenset({3}))]
