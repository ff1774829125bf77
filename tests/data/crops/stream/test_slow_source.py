"""A stream that waits: for a slow source, in several threads, beside other streams; and closing it then."""

import threading
import time
from itertools import count

import numpy as np
import pytest

import rankwise.data.crops as damacy
from rankwise.testing.new_threads import threads_end, threads_since
from rankwise.testing.patience import until

SMALL = {"samples_per_batch": 4, "sample_shape": (4, 8, 8), "device": "cpu", "pop_timeout_s": 60.0}


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
    p.push(iter(source))
    source.permits.release()
    source.asked.acquire()
    source.asked.acquire()
    consumer, got = in_thread(p.pop, "consumer")
    consumer.join(0.2)
    assert consumer.is_alive()
    yield p, source, consumer, got
    source.permits.release(1000)
    p.close()
    consumer.join(30)


def test_waiting_is_no_busy_loop(waiting):
    """While a source is slow every thread sleeps: nobody looks again and again."""
    _, source, consumer, got = waiting
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in (consumer, *threads_since("rankwise-reader"))]
    assert len(clocks) > 1

    def used_s():
        before = sum(map(time.clock_gettime, clocks))
        assert not source.asked.acquire(timeout=0.5)  # some time goes by, in which nothing is asked for
        return sum(map(time.clock_gettime, clocks)) - before

    assert until(lambda: used_s() < 0.05)  # at first some may still be on their way to where they wait
    source.permits.release(3)
    consumer.join(30)
    assert got[0].numbers.tolist() == [0, 1, 2, 3]


def test_closing_while_a_consumer_waits_for_a_blocked_source(waiting):
    """The consumer is woken with the error, close does not wait for the source; the source is closed when it wakes."""
    p, source, consumer, got = waiting
    p.close()
    consumer.join(30)
    assert isinstance(got[0], damacy.ShutdownError)
    assert not source.ended.is_set()
    with pytest.raises(damacy.ShutdownError):
        p.push([])
    source.permits.release()
    assert source.ended.wait(30)
    assert threads_end("rankwise-reader")


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


def test_whole_batches_are_read_before_anybody_pops(volume):
    """What is whole is read at once; samples that are no whole batch wait for later pushes."""
    read, ended = threading.Semaphore(0), threading.Event()

    def noted(fields, _key):
        read.release()
        return fields

    def six():
        yield from volume.samples(6)
        ended.set()

    with damacy.Pipeline(damacy.Config(**SMALL, transform=noted)) as p:
        p.push(six())
        for _ in range(4):
            assert read.acquire(timeout=60)
        assert ended.wait(60)
        assert not read.acquire(timeout=0.1)
        p.push(volume.samples(3))
        assert [len(batch) for batch in p] == [4, 4, 1]


def test_a_consumer_that_waits_gets_the_tail(volume):
    """A source that ends while a consumer waits lets the batch go that is not whole, and every further one hears it."""
    p, source = damacy.Pipeline(damacy.Config(**{**SMALL, "samples_per_batch": 8})), Slow(volume)
    p.push(sample for sample, _ in zip(source, range(3), strict=False))
    consumers = [in_thread(p.pop, f"consumer {number}") for number in range(3)]
    source.permits.release(4)
    for thread, _ in consumers:
        thread.join(60)
    came = sorted((got[0] for _, got in consumers), key=lambda each: isinstance(each, Exception))
    assert came[0].numbers.tolist() == [0, 1, 2]
    assert [type(each) for each in came[1:]] == [damacy.TryAgain] * 2
    assert not p.pending
    p.close()


def test_nothing_stale_is_popped_after_a_push(volume, patient_pops):
    """Pops that ran out of time leave nothing behind: what is pushed then comes whole."""
    with damacy.Pipeline(damacy.Config(**{**SMALL, "pop_timeout_s": 0.05})) as p:
        for turn in range(5):
            source = Slow(volume)
            p.push(sample for sample, _ in zip(source, range(2), strict=False))
            source.permits.release(2)
            why = ""
            while "2 of 4 of a batch have arrived" not in why:
                with pytest.raises(damacy.PoolStarved) as caught:
                    p.pop()
                why = str(caught.value)
            p.push(volume.samples(2))
            source.permits.release()
            (batch,) = patient_pops(p, 1)
            assert batch.numbers.tolist() == list(range(4 * turn, 4 * turn + 4))
            with pytest.raises(damacy.TryAgain):
                p.pop()


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_error_among_too_few_samples(volume, drop_last):
    """An error of a source that follows fewer samples than a batch is raised all the same; the samples stay."""

    def broken():
        yield from volume.samples(2)
        raise KeyError("my own trouble")

    with damacy.Pipeline(damacy.Config(**SMALL, drop_last=drop_last)) as p:
        p.push(broken())
        assert p.pending
        with pytest.raises(KeyError, match="my own trouble"):
            p.pop()
        assert p.pending is not drop_last
        p.push(volume.samples(2))
        assert [len(batch) for batch in p] == ([4] if drop_last else [2, 2])
