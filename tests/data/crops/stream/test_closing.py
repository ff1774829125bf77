"""The end of a pipeline: closed, forgotten, or waited for by somebody."""

import gc
import threading
from itertools import count

import pytest

import rankwise.data.crops as damacy


def test_a_closed_pipeline_is_closed(volume, config):
    """Closing twice is fine; popping and pushing are refused; nothing is drained."""
    pulled = []
    p = damacy.Pipeline(config())
    p.push(pulled.append(i) or volume.sample(0, 0, 0) for i in count())
    p.pop()
    p.close()
    p.close()
    number = len(pulled)
    with pytest.raises(damacy.ShutdownError, match="no more batches"):
        p.pop()
    with pytest.raises(damacy.ShutdownError, match="no more samples"):
        p.push([])
    assert list_of(p) == "ShutdownError"
    assert len(pulled) == number


def list_of(pipeline):
    try:
        return list(pipeline)
    except damacy.DamacyError as error:
        return type(error).__name__


def test_closing_wakes_a_waiting_pop(volume, config):
    """A pop in another thread does not hang when the pipeline is closed, and close does not wait for the source."""
    never = threading.Event()
    p = damacy.Pipeline(config(pop_timeout_s=None))

    def stuck():
        yield volume.sample(0, 0, 0)
        never.wait(60)

    p.push(stuck())
    caught = []

    def pop():
        try:
            p.pop()
        except damacy.ShutdownError as error:
            caught.append(error)

    thread = threading.Thread(target=pop)
    thread.start()
    p.close()
    thread.join(30)
    never.set()
    assert len(caught) == 1


def test_a_forgotten_pipeline_stops(volume, config):
    """Threads end when nobody has the pipeline any more, closed or not."""
    p = damacy.Pipeline(config())
    p.push(volume.sample(0, 0, 0) for _ in count())
    p.pop()
    threads = p._stages._threads
    del p
    gc.collect()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


def test_generators_are_closed(volume, config):
    """A generator that was not pulled to its end is closed with the pipeline: its finally blocks run."""
    ended = threading.Event()

    def source():
        try:
            while True:
                yield volume.sample(0, 0, 0)
        finally:
            ended.set()

    with damacy.Pipeline(config()) as p:
        p.push(source())
        p.pop()
    assert ended.wait(30)
