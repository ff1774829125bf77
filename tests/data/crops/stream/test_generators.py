"""Generators of samples: pulled as far as needed, in the background, and looked ahead."""

import threading
from itertools import count

import numpy as np
import pytest
import zarr

import rankwise.data.crops as damacy


def test_an_endless_generator_is_pulled_as_far_as_needed(volume, config, check):
    """Memory stays bounded: no more samples are pulled than lie in the batches and the lookahead."""
    pulled = []

    def endless():
        for i in count():
            pulled.append(i)
            yield volume.sample(i % 16, 0, 0)

    with damacy.Pipeline(config()) as p:
        p.push(endless())
        with pytest.raises(TypeError, match="is unknown"):
            len(p)
        for batch in p.batches(5):
            check(batch, volume)
        assert p.pending
    # five batches taken, at most four buffers filled, three planned, two looked ahead
    assert len(pulled) <= (5 + 4 + 3 + 2) * 4


def test_metadata_of_coming_samples_are_fetched_before_their_turn(tmp_path, monkeypatch):
    """While the first batch is still being read, the arrays of the next two are open already."""
    from rankwise.data.crops.stream import resolver
    from rankwise.data.store import BoxReader

    paths = [str(tmp_path / f"{number}.zarr") for number in range(12)]
    for number, path in enumerate(paths):
        zarr.create_array(path, data=np.full((4, 4), number, "u1"), chunks=(2, 2))
    opened, enough, go = [], threading.Event(), threading.Event()
    open_image, read = resolver.open_image, BoxReader.read

    def counted(uri, **options):
        image = open_image(uri, **options)
        opened.append(uri)
        if set(paths[:6]) <= {*opened}:  # several threads open, and a later one may be through first
            enough.set()
        return image

    def held(self, jobs):
        assert go.wait(60)
        return read(self, jobs)

    monkeypatch.setattr(resolver, "open_image", counted)
    monkeypatch.setattr(BoxReader, "read", held)
    config = damacy.Config(samples_per_batch=2, sample_shape=(4, 4), dtype="native", device="numpy")
    with damacy.Pipeline(config) as p:
        p.push([damacy.Sample(path, np.s_[0:4, 0:4]) for path in paths])
        assert enough.wait(60), f"opened: {opened}"
        assert p.stats().batches_emitted == 0
        go.set()
        assert [batch["image"][:, 0, 0].tolist() for batch in p] == [[n, n + 1] for n in range(0, 12, 2)]
    assert sorted(opened) == sorted(paths)


def test_a_slow_generator_is_waited_for_in_the_background(volume, config, patient_pops, says_in_time):
    """A slow source runs in a thread of the pipeline, never in pop's; pop says that it waits for it, and goes on."""
    allowed, threads = threading.Semaphore(0), set()

    def slow():
        for sample in volume.samples(8):
            allowed.acquire()
            threads.add(threading.current_thread())
            yield sample

    with damacy.Pipeline(config(pop_timeout_s=0.05)) as p:
        p.push(slow())
        assert says_in_time(p, "has yielded no further sample yet")
        allowed.release(8)
        batches = list(patient_pops(p, 2))
        assert [len(batch) for batch in batches] == [4, 4]
    assert threading.current_thread() not in threads


def test_what_a_generator_raises_is_raised_in_its_place(volume, config):
    """The exception comes where it happened, that source is dropped, the others stay."""

    def broken():
        yield volume.sample(0, 0, 0)
        yield volume.sample(1, 0, 0)
        raise KeyError("my own trouble")

    with damacy.Pipeline(config()) as p:
        p.push(broken())
        p.push(volume.samples(6))
        with pytest.raises(KeyError, match="my own trouble"):
            p.pop()
        assert [len(batch) for batch in p] == [4, 4]


def test_a_slow_reader_holds_the_source_back(volume, config):
    """While a batch is being read, its samples, those of two planned ones and the lookahead are pulled, and no more."""
    pulled, go = threading.Semaphore(0), threading.Event()

    def endless():
        for number in count():
            pulled.release()
            yield volume.sample(number % 16, 0, 0)

    def held(fields, _key):
        go.wait(60)
        return fields

    with damacy.Pipeline(config(transform=held, lookahead_samples=6)) as p:
        p.push(endless())
        for _ in range(4 + 6):
            assert pulled.acquire(timeout=60)
        number = 0
        while pulled.acquire(timeout=0.2):
            number += 1
        assert number <= 8
        go.set()
        assert len(p.pop()) == 4


def test_pop_says_what_it_waits_for(volume, config, says_in_time):
    """Arrays that are being opened, or a batch that is being read."""
    slow = damacy.LatencyModel(baseline_ns=3600e9, cap_ns=3600e9)
    with damacy.Pipeline(config(metadata_latency=slow, pop_timeout_s=0.3)) as p:
        p.push(volume.samples(4))
        assert says_in_time(p, r"being planned \(its arrays are being opened")
    reads, go = threading.Event(), threading.Event()

    def held(fields, _key):
        reads.set()
        go.wait(60)
        return fields

    with damacy.Pipeline(config(transform=held, pop_timeout_s=0.05)) as p:
        p.push(volume.samples(4))
        assert reads.wait(60)
        with pytest.raises(damacy.PoolStarved, match="being read: the storage is slow"):
            p.pop()
        go.set()
