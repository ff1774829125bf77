"""Batches that are kept: their memory is theirs, and who keeps too many is told."""

import gc

import numpy as np
import torch

import rankwise.data.crops as damacy


def test_several_batches_are_held_without_touching_each_other(volume, config, check):
    """Held batches keep their voxels while further ones are read, and releasing one leaves the others alone."""
    with damacy.Pipeline(config()) as p:
        p.push(volume.samples(32))
        held = [p.pop(), p.pop()]
        before = [np.asarray(batch["image"]).copy() for batch in held]
        held[0].release()
        later = [p.pop() for _ in range(2)]
        np.testing.assert_array_equal(np.asarray(held[1]["image"]), before[1])
        for batch in (held[1], *later):
            check(batch, volume)
        assert len({batch.info.device_ptr for batch in (held[1], *later)}) == 3


def test_a_view_outlives_release_and_close(volume, config):
    """Whoever took a tensor from a batch may keep it: its memory is not used again before it is gone."""
    with damacy.Pipeline(config(host_buffer_waves=2)) as p:
        p.push(volume.samples(40))
        first = p.pop()
        samples, tensor = first.samples, torch.from_dlpack(first)
        first.release()
        for _ in range(5):
            p.pop()
    del p
    gc.collect()
    for row, sample in zip(tensor, samples, strict=True):
        np.testing.assert_array_equal(row.numpy(), volume.crop(sample).astype("f4"))


def test_holding_too_many_is_told(volume, config, patient_pops, says_in_time):
    """Under a cap of memory who holds all of it gets no further batch, but the reason; releasing one goes on."""
    two = 2 * config().samples_per_batch * 4 * 4 * 8 * 8
    with damacy.Pipeline(config(host_buffer_waves=4, pop_timeout_s=0.3, cache_bytes=0, max_gpu_memory_bytes=two)) as p:
        p.push(volume.samples(16))
        held = list(patient_pops(p, 2))
        assert says_in_time(p, r"all 2 batch buffers.*are in use.*max_gpu_memory_bytes")
        held.pop().release()
        (batch,) = patient_pops(p, 1)
        assert batch.numbers.tolist() == [8, 9, 10, 11]


def test_any_number_is_held_without_a_cap(volume, config, check):
    """More batches than buffers lie ready for: further ones take memory of their own, and nobody waits for ever."""
    with damacy.Pipeline(config(host_buffer_waves=2, pop_timeout_s=None)) as p:
        p.push(volume.samples(80))
        held = list(p)
        assert len(held) == 20
        for batch in held:
            check(batch, volume)


def test_batches_need_no_release(volume, config):
    """A batch that is forgotten gives its memory back: a plain loop runs with the fewest buffers there can be."""
    with damacy.Pipeline(config(host_buffer_waves=2)) as p:
        p.push(volume.samples(80))
        pointers = set()
        for batch in p:
            pointers.add(batch.info.device_ptr)
    assert len(pointers) == 2
