"""Samples that cannot be read: raised in their place, or left out within a budget; the others go on."""

import logging
from pathlib import Path

import pytest
import zarr

import rankwise.data.crops as damacy


def test_a_bad_sample_stops_itself_only(volume, make, config, check):
    """The pop that comes to it raises, with everything that names it; the rest of its batch and all others go on."""
    samples = list(volume.samples(12))
    samples[5] = volume.sample(18, 0, 0)
    samples[6] = damacy.Sample(volume.uri + "-not", samples[6].aabb)
    with damacy.Pipeline(config()) as p:
        p.push(iter(samples))
        check(p.pop(), volume)
        with pytest.raises(damacy.InvalidSample, match="sample 5 cannot be read") as caught:
            p.pop()
        assert caught.value.uri == volume.uri
        assert caught.value.aabb == ((18, 22), (0, 8), (0, 8))
        assert caught.value.sample == 5
        (other,) = caught.value.others
        assert isinstance(other, damacy.NotFound)
        assert other.sample == 6
        rest = p.pop()
        assert rest.numbers.tolist() == [4, 7]
        check(rest, volume)
        last = p.pop()
        assert last.numbers.tolist() == [8, 9, 10, 11]
        check(last, volume)
        assert len(list(p)) == 0
        assert p.stats().samples_failed == 2


def test_a_batch_of_bad_samples_is_one_error(volume, config):
    """When nothing of a batch can be read, the next pop is that of the next batch."""
    with damacy.Pipeline(config()) as p:
        p.push(volume.sample(18, 0, 0) for _ in range(4))
        p.push(volume.samples(4))
        with pytest.raises(damacy.InvalidSample) as caught:
            p.pop()
        assert len(caught.value.others) == 3
        assert p.pop().numbers.tolist() == [4, 5, 6, 7]


def test_kept_errors_keep_no_memory(volume, config):
    """Errors may be collected: they do not hold on to batch buffers."""
    errors = []
    with damacy.Pipeline(config(host_buffer_waves=2)) as p:
        p.push(volume.sample(18 if i % 4 == 0 else 0, 0, 0) for i in range(40))
        while len(errors) < 10:
            try:
                p.pop()
            except damacy.InvalidSample as error:
                errors.append(error)
    assert [error.sample for error in errors] == list(range(0, 40, 4))


def cut_a_shard(volume):
    """Damage the first shard: its index points past its end."""
    shard = min(path for path in Path(volume.uri).rglob("*") if path.is_file() and path.name != "zarr.json")
    whole = shard.read_bytes()
    shard.write_bytes(whole[100:])


def test_damage_is_raised_or_left_out_within_a_budget(volume, caplog, config, check):
    """By default damage is raised; with a budget it is left out, counted and said; beyond the budget it is raised."""
    cut_a_shard(volume)
    starts = [0, 12, 0, 13, 14, 15, 16, 0]
    with damacy.Pipeline(config()) as p:
        p.push(volume.sample(z, 0, 0) for z in starts)
        with pytest.raises(damacy.DecodeError, match="sample 0 cannot be read") as caught:
            p.pop()
        assert caught.value.place
        assert p.pop().numbers.tolist() == [1, 3]
    with (
        caplog.at_level(logging.WARNING, "rankwise.crops"),
        damacy.Pipeline(config(on_bad_sample=2)) as p,
    ):
        p.push([volume.sample(z, 0, 0) for z in starts])
        batch = p.pop()
        assert batch.numbers.tolist() == [1, 3]
        check(batch, volume)
        with pytest.raises(damacy.DecodeError, match="sample 7") as caught:
            p.pop()
        assert "2 samples were skipped before" in caught.value.__notes__[0]
        assert p.pop().numbers.tolist() == [4, 5, 6]
        assert p.stats().samples_skipped == 2
        assert len(p) == 0
    assert "2 damaged samples were skipped in total (at most 2)" in caplog.text


def test_a_missing_array_is_never_left_out(volume, config):
    """A budget is for damaged content: an array that is not there is raised whatever the budget."""
    with damacy.Pipeline(config(on_bad_sample=100)) as p:
        p.push([damacy.Sample(volume.uri + "-not", volume.sample(0, 0, 0).aabb)] * 4)
        with pytest.raises(damacy.NotFound):
            p.pop()


def test_a_batch_of_nothing_but_fill_is_said_once(make, recwarn, config):
    """Data that were never written look like data: one warning names the arrays, a counter goes on."""
    some = make("some")
    empty = some.uri + "-empty"
    zarr.create_array(empty, shape=(20, 30, 40), dtype="u2", chunks=(5, 10, 10))
    with damacy.Pipeline(config()) as p:
        p.push([damacy.Sample(empty, some.sample(0, 0, 0).aabb)] * 8)
        with pytest.warns(UserWarning, match="only fill values"):
            p.pop()
        assert not p.pop()["image"].any()
        assert p.stats().fill_batches == 2
    assert not recwarn.list
