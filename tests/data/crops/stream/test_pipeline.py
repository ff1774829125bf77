"""`Pipeline(config)`: pushed samples come back as batches, in order, whatever happens on the way."""

import gc
import logging
import threading
from itertools import count, islice

import numpy as np
import pytest
import torch
import zarr

import rankwise.data.crops as damacy
from rankwise.data.crops.stream.pipeline import StreamPipeline

SMALL = {"samples_per_batch": 4, "sample_shape": (4, 8, 8), "device": "cpu", "pop_timeout_s": 60.0}


def config(**values):
    return damacy.Config(**{**SMALL, **values})


def check(batch, volume, dtype=np.float32):
    """Every voxel of a batch is that of the array."""
    crops = np.asarray(batch["image"])
    assert crops.dtype == dtype
    for row, sample in zip(crops, batch.samples, strict=True):
        np.testing.assert_array_equal(row, volume.crop(sample).astype(dtype))


def test_rows_are_the_samples_in_order(volume):
    """Row i is the i-th pushed sample, byte for byte; the last batch is ragged."""
    samples = list(volume.samples(10))
    with damacy.Pipeline(config()) as p:
        assert isinstance(p, damacy.Pipeline)
        assert isinstance(p, StreamPipeline)
        p.push(samples)
        assert len(p) == 3
        batches = [p.pop() for _ in range(3)]
        assert len(p) == 0
    assert [s for batch in batches for s in batch.samples] == samples
    assert np.concatenate([batch.numbers for batch in batches]).tolist() == list(range(10))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    for batch in batches:
        check(batch, volume)


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64", "bf16", "u16", "i32", "native"])
def test_every_dtype_comes_out(volume, dtype):
    """Floats, integers, the arrays' own: equal to what zarr-python reads, cast by NumPy (or torch for bfloat16)."""
    samples = list(volume.samples(4))
    with damacy.Pipeline(config(dtype=dtype)) as p:
        p.push(samples)
        batch = p.pop()
    wanted = torch.from_numpy(np.stack([volume.crop(s).astype("f8") for s in samples]))
    got = batch["image"]
    names = {"f32": "float32", "f16": "float16", "f64": "float64", "bf16": "bfloat16", "u16": "uint16", "i32": "int32"}
    assert str(got.dtype) == "torch." + names.get(dtype, "uint16")
    assert torch.equal(got.double(), wanted.to(got.dtype).double())
    assert batch.info.dtype == names.get(dtype, "uint16")


def test_pushes_chain(volume):
    """What is pushed later follows, and fills the batch that was begun; generators and lists mix."""
    samples = list(volume.samples(11))
    with damacy.Pipeline(config()) as p:
        p.push(samples[:3])
        p.push(s for s in samples[3:9])
        p.push(tuple(samples[9:]))
        assert [len(batch) for batch in p] == [4, 4, 3]
        p.push(samples[:4])
        (batch,) = p
        assert batch.samples == tuple(samples[:4])
        assert batch.numbers.tolist() == [11, 12, 13, 14]


def test_an_endless_generator_is_pulled_as_far_as_needed(volume):
    """Memory stays bounded: no more samples are pulled than lie in the batches and the lookahead."""
    pulled = []

    def endless():
        for i in count():
            pulled.append(i)
            yield volume.sample(i % 16, 0, 0)

    with damacy.Pipeline(config()) as p:
        p.push(endless())
        with pytest.raises(TypeError, match="not known"):
            len(p)
        for batch in p.batches(5):
            check(batch, volume)
        assert p.pending
    # five batches taken, at most four buffers filled, three planned, two looked ahead
    assert len(pulled) <= (5 + 4 + 3 + 2) * 4


def test_metadata_of_coming_samples_are_fetched_before_their_turn(tmp_path, monkeypatch):
    """While the first batch is still being read, the arrays of the next two are open already."""
    from rankwise.data.crops.stream import opening
    from rankwise.data.store.reader import BoxReader

    paths = [str(tmp_path / f"{number}.zarr") for number in range(12)]
    for number, path in enumerate(paths):
        zarr.create_array(path, data=np.full((4, 4), number, "u1"), chunks=(2, 2))
    opened, enough, go = [], threading.Event(), threading.Event()
    open_image, read = opening.open_image, BoxReader.read

    def counted(uri, **options):
        image = open_image(uri, **options)
        opened.append(uri)
        if set(paths[:6]) <= {*opened}:  # several threads open, and a later one may be through first
            enough.set()
        return image

    def held(self, jobs):
        assert go.wait(60)
        return read(self, jobs)

    monkeypatch.setattr(opening, "open_image", counted)
    monkeypatch.setattr(BoxReader, "read", held)
    config = damacy.Config(samples_per_batch=2, sample_shape=(4, 4), dtype="native", device="numpy")
    with damacy.Pipeline(config) as p:
        p.push([damacy.Sample(path, np.s_[0:4, 0:4]) for path in paths])
        assert enough.wait(60), f"opened: {opened}"
        assert p.stats().batches_emitted == 0
        go.set()
        assert [batch["image"][:, 0, 0].tolist() for batch in p] == [[n, n + 1] for n in range(0, 12, 2)]
    assert sorted(opened) == sorted(paths)


def test_a_slow_generator_is_waited_for_in_the_background(volume):
    """A slow source runs in a thread of the pipeline, never in pop's; pop says that it waits for it, and goes on."""
    allowed, threads = threading.Semaphore(0), set()

    def slow():
        for sample in volume.samples(8):
            allowed.acquire()
            threads.add(threading.current_thread())
            yield sample

    with damacy.Pipeline(config(pop_timeout_s=0.05)) as p:
        p.push(slow())
        with pytest.raises(damacy.PoolStarved, match="has not given its next sample yet"):
            p.pop()
        allowed.release(8)
        batches = list(_patient(p, 2))
        assert [len(batch) for batch in batches] == [4, 4]
    assert threading.current_thread() not in threads


def _patient(pipeline, number):
    """Pops that go on after a timeout."""
    while number:
        try:
            yield pipeline.pop()
            number -= 1
        except damacy.PoolStarved:
            continue


def test_several_batches_are_held_without_touching_each_other(volume):
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


def test_a_view_outlives_release_and_close(volume):
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


def test_holding_too_many_is_told(volume):
    """Who holds all buffers gets no further batch, but the reason and the way out; releasing one goes on."""
    with damacy.Pipeline(config(host_buffer_waves=2, pop_timeout_s=0.3)) as p:
        p.push(volume.samples(16))
        held = list(_patient(p, 2))
        with pytest.raises(damacy.PoolStarved, match=r"all 2 batch buffers are in use.*host_buffer_waves=2"):
            p.pop()
        held.pop().release()
        (batch,) = _patient(p, 1)
        assert batch.numbers.tolist() == [8, 9, 10, 11]


def test_batches_need_no_release(volume):
    """A batch that is forgotten gives its memory back: a plain loop runs with the fewest buffers there can be."""
    with damacy.Pipeline(config(host_buffer_waves=2)) as p:
        p.push(volume.samples(80))
        pointers = set()
        for batch in p:
            pointers.add(batch.info.device_ptr)
    assert len(pointers) == 2


def test_past_the_end(volume):
    """When everything was popped, pop says so at once, iteration ends, and a later push goes on."""
    with damacy.Pipeline(config()) as p:
        with pytest.raises(damacy.TryAgain, match="has been popped"):
            p.pop()
        assert list(p) == []
        assert not p.pending
        p.push([])
        assert len(p) == 0
        with pytest.raises(damacy.TryAgain):
            p.pop()
        p.push(volume.samples(4))
        assert len(p.pop()) == 4


def test_the_last_batch_can_be_dropped(volume):
    """With drop_last every batch is whole; what is left waits for more."""
    with damacy.Pipeline(config(drop_last=True)) as p:
        p.push(list(volume.samples(6)))
        assert len(p) == 1
        assert [len(batch) for batch in p] == [4]
        with pytest.raises(damacy.TryAgain, match="but 2 samples, which are no whole batch of 4"):
            p.pop()
        p.push(volume.samples(2))
        assert len(p.pop()) == 4


def test_what_a_generator_raises_is_raised_in_its_place(volume):
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


def test_a_bad_sample_stops_itself_only(volume, make):
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


def test_a_batch_of_bad_samples_is_one_error(volume):
    """When nothing of a batch can be read, the next pop is that of the next batch."""
    with damacy.Pipeline(config()) as p:
        p.push(volume.sample(18, 0, 0) for _ in range(4))
        p.push(volume.samples(4))
        with pytest.raises(damacy.InvalidSample) as caught:
            p.pop()
        assert len(caught.value.others) == 3
        assert p.pop().numbers.tolist() == [4, 5, 6, 7]


def test_kept_errors_keep_no_memory(volume):
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
    from pathlib import Path

    shard = min(path for path in Path(volume.uri).rglob("*") if path.is_file() and path.name != "zarr.json")
    whole = shard.read_bytes()
    shard.write_bytes(whole[100:])


def test_damage_is_raised_or_left_out_within_a_budget(volume, caplog):
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
        assert "2 samples were left out before" in caught.value.__notes__[0]
        assert p.pop().numbers.tolist() == [4, 5, 6]
        assert p.stats().samples_skipped == 2
        assert len(p) == 0
    assert "2 damaged samples were left out in all (at most 2)" in caplog.text


def test_a_missing_array_is_never_left_out(volume):
    """A budget is for damaged content: an array that is not there is raised whatever the budget."""
    with damacy.Pipeline(config(on_bad_sample=100)) as p:
        p.push([damacy.Sample(volume.uri + "-not", volume.sample(0, 0, 0).aabb)] * 4)
        with pytest.raises(damacy.NotFound):
            p.pop()


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (lambda v: [v.sample(0, 0, 0, shape=(4, 8, 9))], damacy.InvalidSample, r"has the shape \[4, 8, 9\]"),
        (lambda v: [v.sample(0, 0, shape=(4, 8))], damacy.RankMismatch, r"has the shape \[4, 8\]"),
        (lambda v: ["a.zarr"], damacy.InvalidSample, "sample 0 is a str"),
        (lambda v: v.sample(0, 0, 0), damacy.InvalidArgument, "got one Sample"),
        (lambda v: "a.zarr", damacy.InvalidArgument, "takes an iterable"),
        (lambda v: 5, damacy.InvalidArgument, "takes an iterable"),
    ],
)
def test_lists_are_checked_when_pushed(volume, wrong, kind, message):
    """What does not fit the configuration is refused by push itself, and nothing of it is taken."""
    with damacy.Pipeline(config()) as p:
        with pytest.raises(kind, match=message):
            p.push(wrong(volume))
        assert not p.pending
        p.push(iter([*volume.samples(3), volume.sample(0, 0, 0, shape=(4, 8, 9))]))
        with pytest.raises(damacy.InvalidSample, match="sample 3: its box"):
            p.pop()
        assert len(p.pop()) == 3


def test_a_closed_pipeline_is_closed(volume):
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


def test_closing_wakes_a_waiting_pop(volume):
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


def test_a_forgotten_pipeline_stops(volume):
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


def test_generators_are_closed(volume):
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


def test_labels_and_meta_travel(volume):
    """Labels are stacked, anything else is found again, row by row."""
    samples = [volume.sample(i, 0, 0, label=(i, 2 * i), meta={"name": f"cell {i}"}) for i in range(6)]
    with damacy.Pipeline(config()) as p:
        p.push(samples)
        first, second = p
    assert first.labels.tolist() == [[0, 0], [1, 2], [2, 4], [3, 6]]
    assert [meta["name"] for meta in second.meta] == ["cell 4", "cell 5"]
    with damacy.Pipeline(config()) as p:
        p.push([volume.sample(0, 0, 0, label=1), volume.sample(1, 0, 0)])
        with pytest.raises(damacy.InvalidArgument, match=r"samples \[1\] have no label"):
            _ = p.pop().labels
    with damacy.Pipeline(config()) as p:
        p.push([volume.sample(0, 0, 0, label=1), volume.sample(1, 0, 0, label=(1, 2))])
        with pytest.raises(damacy.InvalidArgument, match="one shape"):
            _ = p.pop().labels


def test_several_arrays_make_a_sample(volume, make):
    """Image and label volume, each with its own box, scale and dtype, in one batch."""
    seg = make("seg", (10, 15, 20), seed=5, dtype="u1", chunks=(5, 5, 5), shards=(10, 15, 20))
    cfg = config(
        fields={"seg": damacy.Field(sample_shape=(2, 4, 4)), "wide": damacy.Field(sample_shape=(1, 8, 8), dtype="f16")},
        normalise=damacy.Scaling.unit(0, 1000),
    )
    samples = []
    for i in range(5):
        also = {
            "seg": damacy.Crop(seg.uri, ((i, i + 2), (i, i + 4), (i, i + 4))),
            "wide": damacy.Crop(volume.uri, ((i, i + 1), (0, 8), (0, 8))),
        }
        samples.append(volume.sample(2 * i, 2 * i, 2 * i, also=also))
    with damacy.Pipeline(cfg) as p:
        p.push(samples)
        batches = list(p)
    assert [len(b) for b in batches] == [4, 1]
    for batch in batches:
        assert batch.keys() == ("image", "seg", "wide")
        for i, s in zip(batch.numbers.tolist(), batch.samples, strict=True):
            row = i % 4
            np.testing.assert_allclose(batch["image"][row].numpy(), volume.crop(s) / 1000, rtol=1e-6)
            np.testing.assert_array_equal(batch["seg"][row].numpy(), seg.values[i : i + 2, i : i + 4, i : i + 4])
            np.testing.assert_array_equal(batch["wide"][row].numpy(), volume.values[i : i + 1, :8, :8].astype("f2"))
    with damacy.Pipeline(cfg) as p, pytest.raises(damacy.InvalidSample, match=r"further fields \[\]"):
        p.push([volume.sample(0, 0, 0)])


def test_boxes_may_stick_out(volume):
    """With pad= boxes reach past the edges; the mask says which voxels are real."""
    with damacy.Pipeline(config(pad="edge")) as p:
        p.push([volume.sample(-2, -3, -1), volume.sample(18, 28, 36), volume.sample(0, 0, 0)])
        batch = p.pop()
    padded = np.pad(volume.values, 10, mode="edge").astype("f4")
    inside = np.pad(np.ones(volume.values.shape, bool), 10)
    for row, sample in enumerate(batch.samples):
        place = tuple(slice(a + 10, b + 10) for a, b in sample.aabb)
        np.testing.assert_array_equal(batch["image"][row].numpy(), padded[place])
        np.testing.assert_array_equal(batch.mask[row].numpy(), inside[place])
    assert "image_mask" in batch
    with damacy.Pipeline(config(pad="fill", mask=False)) as p:
        p.push([volume.sample(-2, 0, 0)])
        batch = p.pop()
        assert batch.keys() == ("image",)
        with pytest.raises(damacy.InvalidArgument, match="no mask"):
            _ = batch.mask


def test_transforms_see_the_key(volume):
    """transform= gets NumPy arrays and the sample's key, batch_transform= the batch and its keys, on the device."""
    seen = {}

    def jitter(fields, key):
        image = fields["image"]
        seen[key] = image.copy()
        return {"image": image[:, ::2], "mean": image.mean()}

    def shift(fields, keys):
        assert isinstance(fields["image"], torch.Tensor)
        return {**fields, "image": fields["image"] + 1, "keys": keys}

    samples = [*volume.samples(5), volume.sample(0, 0, 0, key=-5)]
    keys = []
    with damacy.Pipeline(config(transform=jitter, batch_transform=shift)) as p:
        p.push(samples)
        for batch in p:
            keys += batch.key.tolist()
            assert batch["keys"].tolist() == batch.key.tolist()
            for row, (key, sample) in enumerate(zip(batch.key.tolist(), batch.samples, strict=True)):
                wanted = volume.crop(sample).astype("f4")
                np.testing.assert_array_equal(seen[key], wanted)
                np.testing.assert_array_equal(batch["image"][row].numpy(), wanted[:, ::2] + 1)
                assert batch["mean"][row].item() == pytest.approx(wanted.mean())
    assert len(set(keys)) == 6
    assert keys[-1] == -5
    with damacy.Pipeline(config()) as p:
        p.push(samples)
        assert [k for batch in p for k in batch.key.tolist()] == keys


def test_a_failing_transform_is_raised_and_names_its_sample(volume):
    """The user's own exception comes through, with the sample; later batches go on."""

    def fail(fields, key):
        if key == 13:
            raise ZeroDivisionError
        return fields

    with damacy.Pipeline(config(transform=fail)) as p:
        p.push([volume.sample(0, 0, 0, key=13), *volume.samples(7)])
        with pytest.raises(ZeroDivisionError) as caught:
            p.pop()
        assert "of sample 0 (key 13)" in caught.value.__notes__[0]
        assert p.pop().numbers.tolist() == [4, 5, 6, 7]


def test_a_transform_that_enlarges_meets_the_cap(volume):
    """The cap holds for what really comes out, not only for what was expected."""
    cap = 2 * 4 * 4 * 8 * 8 * 4
    big = config(transform=lambda fields, _key: {"image": np.repeat(fields["image"], 9, 0)}, max_gpu_memory_bytes=cap)
    with damacy.Pipeline(big) as p:
        p.push(volume.samples(4))
        with pytest.raises(damacy.BudgetExceeded, match=r"transform= may have made them larger"):
            p.pop()


def test_a_batch_of_nothing_but_fill_is_said_once(make, recwarn):
    """Data that were never written look like data: one warning names the arrays, a counter goes on."""
    import zarr

    some = make("some")
    empty = some.uri + "-empty"
    zarr.create_array(empty, shape=(20, 30, 40), dtype="u2", chunks=(5, 10, 10))
    with damacy.Pipeline(config()) as p:
        p.push([damacy.Sample(empty, some.sample(0, 0, 0).aabb)] * 8)
        with pytest.warns(UserWarning, match="nothing but fill values"):
            p.pop()
        assert not p.pop()["image"].any()
        assert p.stats().fill_batches == 2
    assert not recwarn.list


def test_native_is_one_dtype(volume, make):
    """The first array says what native means; another one is refused, by sample."""
    other = make("other", dtype="i4")
    with damacy.Pipeline(config(dtype="native")) as p:
        p.push([volume.sample(0, 0, 0), other.sample(0, 0, 0)])
        with pytest.raises(damacy.DtypeMismatch, match=r"sample 1 .* native dtype, which is uint16"):
            p.pop()
        assert p.pop()["image"].dtype == torch.uint16


def test_caps_on_chunks_and_files(volume):
    """Caps of the configuration are kept: what breaks one is told with the number that would do."""
    with damacy.Pipeline(config(max_chunk_uncompressed_bytes=999)) as p:
        p.push(volume.samples(1))
        with pytest.raises(damacy.BudgetExceeded, match="raise it to 1000"):
            p.pop()
    with damacy.Pipeline(config(max_shards_per_sample=1)) as p:
        p.push([volume.sample(8, 0, 0), volume.sample(0, 0, 0)])
        with pytest.raises(damacy.InvalidSample, match="touches 2 files"):
            p.pop()
        assert p.pop().numbers.tolist() == [1]


def test_numpy_without_torch(volume):
    """device="numpy" gives NumPy arrays, which share memory like tensors do."""
    with damacy.Pipeline(config(device="numpy")) as p:
        assert p.device is None
        p.push(islice(volume.samples(100), 8))
        for batch in p:
            assert isinstance(batch["image"], np.ndarray)
            check(batch, volume)
            assert np.shares_memory(np.from_dlpack(batch), batch["image"])


def test_statistics(volume):
    """Stages are timed, chunks and bytes counted; a reset starts times and counts anew and keeps the rest."""
    with damacy.Pipeline(config()) as p:
        p.push(volume.samples(8))
        list(p)
        stats = p.stats()
        assert (stats.batches_emitted, stats.waves_emitted, stats.samples_emitted) == (2, 2, 8)
        assert stats.decode.count == 2
        assert stats.decode.output_bytes == 8 * 4 * 8 * 8 * 4
        assert stats.decode.best_ms <= stats.decode.ms
        assert stats.pull.count == 9
        assert stats.wanted_bytes == 8 * 4 * 8 * 8 * 2
        assert stats.chunks_planned >= 8
        assert stats.fast_chunks + stats.slow_chunks == stats.chunks_dispatched
        assert stats.decode_waste > 1
        assert (stats.array_meta.misses, stats.array_meta.hits) == (1, 15)
        assert stats.gpu_bytes_committed == 4 * 4 * 4 * 8 * 8 * 4
        assert {metric.name for metric in stats.metrics} >= {
            "plan",
            "io",
            "decode",
            "assemble",
            "bind_wait",
            "pop_wait",
        }
        assert "2 batches, 8 samples" in str(stats)
        p.stats_reset()
        assert p.stats().decode.count == p.stats().batches_emitted == 0
        assert p.stats().array_meta.misses == 1
        assert p.stats().gpu_bytes_committed == stats.gpu_bytes_committed
