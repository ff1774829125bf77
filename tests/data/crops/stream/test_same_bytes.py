"""Whatever the store looks like, batches hold what zarr-python reads."""

import numpy as np
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rankwise.data.crops as damacy

DTYPES = ("u1", "i2", "u2", "i4", "f4", "f8", "?", ">i2", ">f4")


@st.composite
def stores(draw):
    """Shape, chunks, shards, dtype, compressor and format of an array."""
    shape = tuple(draw(st.lists(st.integers(1, 24), min_size=1, max_size=4)))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    zarr_format = draw(st.sampled_from([2, 3, 3]))
    shards = None
    if zarr_format == 3 and draw(st.booleans()):
        shards = tuple(c * draw(st.integers(1, 3)) for c in chunks)
    codec = draw(st.sampled_from(["auto", None, "gzip", "blosc"])) if zarr_format == 3 else "auto"
    compressors = {"gzip": zarr.codecs.GzipCodec(), "blosc": zarr.codecs.BloscCodec(cname="lz4")}.get(codec, codec)
    options = {"chunks": chunks, "compressors": compressors, "zarr_format": zarr_format, "fill_value": draw(
        st.sampled_from([0, 1])
    )}  # fmt: skip
    return shape, np.dtype(draw(st.sampled_from(DTYPES))), {**options, **({"shards": shards} if shards else {})}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), store=stores())
def test_batches_hold_what_zarr_reads(tmp_path_factory, data, store):
    """Any shape, chunk and shard grid, dtype, byte order, codec, format, missing chunks: byte for byte."""
    shape, dtype, options = store
    uri = str(tmp_path_factory.mktemp("store") / "a")
    array = zarr.create_array(uri, shape=shape, dtype=dtype, **options)
    written = tuple(slice(0, data.draw(st.integers(0, n))) for n in shape)
    part = tuple(s.stop for s in written)
    if all(part):
        array[written] = np.random.default_rng(0).integers(0, 2 if dtype.kind == "b" else 120, part).astype(dtype)
    box = tuple(data.draw(st.integers(1, n)) for n in shape)
    starts = [tuple(data.draw(st.integers(0, n - e)) for n, e in zip(shape, box, strict=True)) for _ in range(5)]
    samples = [damacy.Sample(uri, tuple((a, a + e) for a, e in zip(s, box, strict=True)), label=1) for s in starts]
    config = damacy.Config(
        samples_per_batch=3, sample_shape=box, dtype=data.draw(st.sampled_from(["native", "f32", "f64"])),
        device="numpy", on_bad_sample="raise", pop_timeout_s=60,
    )  # fmt: skip
    whole = zarr.open_array(uri, mode="r")[...]
    import warnings

    with warnings.catch_warnings(), damacy.Pipeline(config) as p:
        warnings.filterwarnings("ignore", "a whole batch of crops", UserWarning)
        p.push(iter(samples))
        got = [(row, s) for batch in p for row, s in zip(batch["image"].copy(), batch.samples, strict=True)]
    assert len(got) == 5
    for row, sample in got:
        wanted = whole[tuple(slice(*axis) for axis in sample.aabb)]
        np.testing.assert_array_equal(row, wanted.astype(row.dtype))
