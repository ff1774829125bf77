"""Statistics add up."""

import threading
from dataclasses import asdict, fields

import pytest

from rankwise.data.store import ReaderStats
from rankwise.data.store.remote.options import RemoteStats
from rankwise.data.store.stats import Tally


@pytest.mark.parametrize("kind", [ReaderStats, RemoteStats])
def test_every_field_adds_up(kind):
    """None is forgotten when a new one comes."""
    one = kind(**{part.name: number for number, part in enumerate(fields(kind), 1)})
    assert asdict(one + one) == {name: 2 * value for name, value in asdict(one).items()}


def test_threads_lose_no_count():
    """Many add at once; afterwards it begins anew."""
    tally = Tally(ReaderStats())
    start = threading.Barrier(4)

    def work():
        start.wait()
        for _ in range(200):
            tally.add(ReaderStats(boxes=1, read_s=0.5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tally.stats.boxes, tally.stats.read_s) == (800, 400.0)
    tally.reset()
    assert tally.stats == ReaderStats()
