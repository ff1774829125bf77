"""Deferred release: what consumers name as the end of their work, and memory that waits for it."""

from collections import deque

import pytest

import rankwise.data.crops as damacy
from rankwise.data.crops.batch import drop_finished, waitable


class Event:
    """A CUDA event as far as this is concerned."""

    def __init__(self, happened=False):
        self.happened = happened
        self.waited = 0

    def query(self):
        return self.happened

    def synchronize(self):
        self.waited += 1


class TorchStream:
    def __init__(self):
        self.event = Event()

    def record_event(self):
        return self.event


class CupyEvent:
    done = False

    def record(self, stream=None):
        raise AssertionError("a recorded event is not recorded again")

    def synchronize(self):
        pass


class CupyStream:
    def __init__(self):
        self.event = CupyEvent()

    def record(self):
        return self.event

    def wait_event(self, event):
        pass


def test_streams_give_an_event_of_now():
    """A stream stands for the work that it has been given so far, an event for itself."""
    event, stream, cupy = Event(), TorchStream(), CupyStream()
    assert waitable(None) is None
    assert waitable(event) is event
    assert waitable(stream) is stream.event
    assert waitable(cupy) is cupy.event
    assert waitable(cupy.event) is cupy.event


@pytest.mark.parametrize("wrong", ["now", 1.5, object(), True])
def test_other_things_are_refused(wrong):
    """What cannot be waited for is refused at release, not later."""
    with pytest.raises(damacy.InvalidArgument, match="event= must be an event or stream"):
        waitable(wrong)


def test_a_stream_handle_needs_cuda(monkeypatch):
    """The handle of a stream means nothing on a machine without CUDA."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(damacy.InvalidArgument, match="no CUDA device here"):
        waitable(140000)


def test_released_batches_live_until_their_event():
    """In order: what was released later does not overtake; events that cannot be asked are waited for."""
    first, second = Event(), Event(happened=True)
    held = deque([(first, "a"), (second, "b")])
    drop_finished(held)
    assert len(held) == 2
    first.happened = True
    drop_finished(held)
    assert not held
    held.append((CupyEvent(), "c"))
    drop_finished(held)
    assert not held


def test_memory_waits_for_the_event(volume):
    """Deferred release: the buffer is not written again before the consumer's event has happened.

    The batches that follow are kept, so that this buffer is the only free one, however far the reader is.
    """
    config = damacy.Config(samples_per_batch=2, sample_shape=(4, 8, 8), device="cpu", host_buffer_waves=2)
    event, kept = Event(), []
    with damacy.Pipeline(config) as p:
        p.push(volume.sample(i % 16, 0, 0) for i in range(12))
        first = p.pop()
        address = first["image"].data_ptr()
        first.release(event)
        for _ in range(5):
            batch = p.pop()
            kept.append(batch["image"])
            if kept[-1].data_ptr() == address:
                assert event.waited == 1
            batch.release()
    assert address in [tensor.data_ptr() for tensor in kept]
    assert event.waited == 1


def test_a_bad_event_releases_all_the_same(volume):
    """An event that cannot be waited for is an error, and the batch is released: nothing leaks."""
    config = damacy.Config(samples_per_batch=2, sample_shape=(4, 8, 8), device="cpu")
    with damacy.Pipeline(config) as p:
        p.push(volume.sample(i, 0, 0) for i in range(2))
        batch = p.pop()
        with pytest.raises(damacy.InvalidArgument):
            batch.release("now")
        with pytest.raises(RuntimeError, match="was released"):
            _ = batch.info
