"""A stream that waits: for a slow source, in several threads, beside other streams; and closing it then."""

import threading
from itertools import count

import numpy as np
import pytest

import rankwise.data.crops as damacy

SMALL = {"samples_per_batch": 4, "sample_shape": (4, 8, 8), "device": "cpu", "pop_timeout_s": 60.0}


class Watched(threading.Condition):
    """The monitor of a stream; counts how often anybody began to wait, and knows who waits now."""

    def __init__(self):
        super().__init__()
        self.num_waits = 0
        self.who = set()
        self.settled = threading.Semaphore(0)
        self.awaited = set()

    def wait(self, timeout=None):
        self.num_waits += 1
        self.who.add(threading.current_thread().name)
        if self.awaited and self.awaited <= self.who:
            self.settled.release()
        try:
            return super().wait(timeout)
        finally:
            self.who.discard(threading.current_thread().name)


class Slow:
    """A source that gives a sample for each permit."""

    def __init__(self, volume):
        self.volume = volume
        self.permits = threading.Semaphore(0)
        self.asked = threading.Semaphore(0)
        self.ended = threading.Event()

    def __iter__(self):
        try:
            for number in count():
                self.asked.release()
                self.permits.acquire()
                yield self.volume.sample(number % 16, 0, 0)
        finally:
            self.ended.set()


def in_thread(call, name):
    """Run a call; its value or exception ends up in the list."""
    got = []

    def run():
        try:
            got.append(call())
        except Exception as error:  # noqa: BLE001
            got.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    return thread, got


@pytest.fixture
def waiting(volume):
    """A pipeline whose consumer waits for a source that is asked for its second sample; all others wait too."""
    p, source = damacy.Pipeline(damacy.Config(**SMALL)), Slow(volume)
    monitor = p._stages.flow._changed = Watched()
    monitor.awaited = {"rankwise-crops-plan", "rankwise-crops-read", "consumer"}
    p.push(iter(source))
    source.permits.release()
    source.asked.acquire()
    source.asked.acquire()
    consumer, got = in_thread(p.pop, "consumer")
    assert monitor.settled.acquire(timeout=30)
    yield p, source, monitor, consumer, got
    source.permits.release(1000)
    p.close()
    consumer.join(30)


def test_waiting_is_no_busy_loop(waiting):
    """While a source is slow every thread sleeps in one wait: nobody looks again and again."""
    _, source, monitor, consumer, got = waiting
    before = monitor.num_waits
    assert not source.asked.acquire(timeout=0.3)  # some time goes by, in which nothing is asked for
    assert monitor.num_waits - before <= 3  # each of the three may still find out what the last news were
    source.permits.release(3)
    consumer.join(30)
    assert got[0].numbers.tolist() == [0, 1, 2, 3]


def test_closing_while_a_consumer_waits_for_a_blocked_source(waiting):
    """The consumer is woken with the error, close does not wait for the source; the source is closed when it wakes."""
    p, source, _, consumer, got = waiting
    p.close()
    consumer.join(30)
    assert isinstance(got[0], damacy.ShutdownError)
    assert not source.ended.is_set()
    with pytest.raises(damacy.ShutdownError):
        p.push([])
    source.permits.release()
    assert source.ended.wait(30)
    for thread in p._stages._threads:
        thread.join(30)
        assert not thread.is_alive()


def test_closing_ends_a_loop_in_another_thread(volume):
    """A for loop over the pipeline ends with the error as well, not as if everything had been popped."""
    p, source = damacy.Pipeline(damacy.Config(**SMALL)), Slow(volume)
    p.push(iter(source))
    source.permits.release(4)
    first = p.pop()
    loop, got = in_thread(lambda: list(p), "loop")
    p.close()
    loop.join(30)
    assert isinstance(got[0], damacy.ShutdownError)
    assert first.numbers.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(first["image"][1].numpy(), volume.crop(first.samples[1]))
    source.permits.release()
    assert source.ended.wait(30)


def test_several_threads_push_and_pop(volume):
    """Pushed and popped by several threads, every sample comes once, in the order of its own push."""
    config = damacy.Config(**SMALL, host_buffer_waves=8)
    with damacy.Pipeline(config) as p:
        pushed = [[volume.sample(z, 0, x, meta=(x, z)) for z in range(16)] for x in range(4)]
        for thread, _ in [in_thread(lambda part=part: p.push(part), "push") for part in pushed]:
            thread.join(30)
        popping = [in_thread(lambda: [batch.meta for batch in p.batches(8)], "pop") for _ in range(2)]
        for thread, _ in popping:
            thread.join(60)
    came = [meta for _, got in popping for batch in got[0] for meta in batch]
    assert sorted(came) == [(x, z) for x in range(4) for z in range(16)]
    for _, got in popping:
        for x in range(4):
            mine = [z for batch in got[0] for xx, z in batch if xx == x]
            assert mine == sorted(mine)


def test_several_streams_at_once(volume, make):
    """Streams of other arrays, shapes and dtypes in one process do not touch each other; closing stops one only."""
    other = make("other", (12, 20, 24), seed=9, dtype="i4")
    kinds = [
        ("f32", volume, (4, 8, 8)),
        ("f64", volume, (2, 5, 7)),
        ("i32", other, (3, 8, 8)),
        ("native", other, (1, 8, 8)),
    ]
    streams = []
    for seed, (dtype, array, shape) in enumerate(kinds):
        p = damacy.Pipeline(damacy.Config(**{**SMALL, "sample_shape": shape, "dtype": dtype, "device": "numpy"}))
        p.push(array.samples(20, shape=shape, seed=seed))
        streams.append(p)
    for turn in range(5):
        for p, (_, array, _) in zip(streams, kinds, strict=True):
            if p is streams[0] and turn == 3:
                p.close()
            if p is streams[0] and turn >= 3:
                continue
            batch = p.pop()
            for row, sample in zip(batch["image"], batch.samples, strict=True):
                np.testing.assert_array_equal(row, array.crop(sample))
            assert batch.numbers.tolist() == list(range(4 * turn, 4 * turn + 4))
    for p in streams:
        p.close()
