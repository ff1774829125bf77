"""Both decoders: chunks from anywhere, of every kind, to their places in the output, and nothing beside them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise.data.store.decode.decoder import Scratch, ThreadsDecoder
from rankwise.data.store.decode.tasks import OK

COMPRESSORS = ("zstd", "lz4", "lz4hc", "blosclz", "zlib")
PAIRS = [("u2", "f4"), ("u2", "u2"), ("f4", "f2"), ("i8", "f8"), ("u1", "i2"), ("f8", "f4"), ("?", "f4"), ("u1", "u1")]


@st.composite
def codings(draw):
    """A way to encode a chunk: its kind, and for Blosc everything that its frames vary in."""
    kind = draw(st.sampled_from(["raw", "zstd", "blosc", "lz4", "fill"]))
    if kind != "blosc":
        return kind, {}
    return kind, {
        "compressor": draw(st.sampled_from(COMPRESSORS)),
        "shuffle": draw(st.sampled_from([0, 1, 2])),
        "blocksize": draw(st.sampled_from([0, 128, 256, 1024])),
        "level": draw(st.sampled_from([0, 1, 5])),
    }


@st.composite
def works(draw, encoder):
    """What `Work` is made of, but for the file."""
    stored, wanted = (np.dtype(name) for name in draw(st.sampled_from(PAIRS)))
    ndim = draw(st.integers(1, 6))
    shape = tuple(draw(st.lists(st.integers(1, {1: 300, 2: 24, 3: 9}.get(ndim, 4)), min_size=ndim, max_size=ndim)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num, values, targets = draw(st.integers(1, 4)), [], []
    coded = [draw(codings()) for _ in range(num)]
    for chunk in range(num):
        block = rng.integers(0, 2 if stored.kind == "b" else 100, shape).astype(stored)
        values.append(np.broadcast_to(block.reshape(-1)[0], shape) if coded[chunk][0] == "fill" else block)
        for _ in range(draw(st.integers(0, 3))):
            start = [draw(st.integers(0, size - 1)) for size in shape]
            extent = [draw(st.integers(1, size - low)) for low, size in zip(start, shape, strict=True)]
            shift = [draw(st.integers(0, size - far)) for far, size in zip(extent, shape, strict=True)]
            targets.append((chunk, start, extent, shift))
    scaled = wanted.kind == "f" and draw(st.booleans())
    return {
        "values": values,
        "frames": [encoder(v, kind, **how) for v, (kind, how) in zip(values, coded, strict=True)],
        "kinds": [kind for kind, _ in coded],
        "targets": targets,
        "shape": shape,
        "wanted": wanted,
        "ways": [draw(st.sampled_from(["file", "memory", "decoded"])) for _ in range(num)],
        "kept": {chunk for chunk in range(num) if draw(st.booleans())},
        "scaling": [(float(rng.normal()), float(rng.normal())) for _ in targets] if scaled else None,
    }


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_decoders_do_what_numpy_does(data, kernel, encoder, work_class, tmp_path_factory):
    """Random chunks, regions, dtypes, axes and codecs: every element at its place, every other byte untouched.

    The chunks that are to be kept lie whole in their buffers, and both decoders agree bit for bit.
    """
    arguments = data.draw(works(encoder))
    for decoder in (kernel, ThreadsDecoder()):
        work = work_class(path=str(tmp_path_factory.getbasetemp() / "chunks.bin"), **arguments)
        tasks, out = work.run(decoder)
        work.close()
        assert tasks.status.tolist() == [OK] * len(tasks)
        assert out.tobytes() == work.expected().tobytes()
        for chunk in work.kept:
            if work.ways[chunk] != "decoded":
                assert np.array_equal(work.keeps[chunk], work.values[chunk])


@pytest.mark.parametrize("ndim", [7, 12, 31])
@pytest.mark.parametrize("wanted", ["f4", "u2"])
def test_many_axes(ndim, wanted, decoder, make_work, encoder):
    """Arrays may have as many axes as anybody uses; only some of them are longer than 1."""
    sizes = [3 if axis in (0, ndim // 2, ndim - 2, ndim - 1) else 2 if axis in (1, 3) else 1 for axis in range(ndim)]
    values = np.arange(np.prod(sizes)).reshape(sizes).astype(np.uint16)
    start = [size // 2 for size in sizes]
    extent = [size - low for size, low in zip(sizes, start, strict=True)]
    work = make_work(
        values=[values], frames=[encoder(values, "zstd")], kinds=["zstd"], targets=[(0, start, extent, (0,) * ndim)],
        shape=tuple(sizes), wanted=np.dtype(wanted), ways=["memory"],
    )  # fmt: skip
    tasks, out = work.run(decoder)
    assert tasks.status.tolist() == [OK]
    assert out.tobytes() == work.expected().tobytes()


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("kept", [False, True])
def test_the_blocks_of_a_blosc_frame_that_are_needed(compressor, kept, decoder, make_work, encoder):
    """Wherever a region lies in a frame of many blocks, it comes out right; a kept chunk is decoded whole."""
    values = np.random.default_rng(5).integers(0, 9, (64, 40)).astype(np.uint32)
    frame = encoder(values, "blosc", compressor=compressor, blocksize=512)
    targets = [(0, (low, 3), (far, 17), (0, 0)) for low, far in [(0, 1), (0, 9), (31, 2), (50, 14), (63, 1), (2, 62)]]
    for target in targets:
        work = make_work(
            values=[values], frames=[frame], kinds=["blosc"], targets=[target], shape=(64, 17),
            wanted=np.dtype("f4"), ways=["memory"], kept={0} if kept else set(),
        )  # fmt: skip
        tasks, out = work.run(decoder)
        assert tasks.status.tolist() == [OK]
        assert out.tobytes() == work.expected().tobytes()
        assert not kept or np.array_equal(work.keeps[0], values)


@pytest.mark.parametrize("typesize", [1, 2, 3, 7, 8, 255])
def test_the_type_size_of_a_blosc_frame_may_be_anything(typesize, decoder, make_work):
    """What a frame says of its elements need not be the array's element size, nor divide the chunk's bytes."""
    import numcodecs

    values = np.random.default_rng(6).integers(0, 9, 3000).astype(np.uint16)
    blocks = np.frombuffer(values.tobytes().ljust(-(-values.nbytes // typesize) * typesize, b"-"), dtype=f"V{typesize}")
    whole = len(blocks) * typesize == values.nbytes
    frame = bytes(numcodecs.blosc.compress(blocks, b"zstd", 5, 1, 256)) if whole else odd_frame(values, typesize)
    for start, extent in [(0, 3000), (1, 99), (2890, 110)]:
        work = make_work(
            values=[values], frames=[frame], kinds=["blosc"], targets=[(0, (start,), (extent,), (0,))], shape=(3000,),
            wanted=np.dtype("f4"), ways=["memory"],
        )  # fmt: skip
        tasks, out = work.run(decoder)
        assert tasks.status.tolist() == [OK]
        assert out.tobytes() == work.expected().tobytes()


def odd_frame(values, typesize):
    """A frame of bytes that claims another type size: without a filter, it only counts items."""
    import numcodecs

    frame = bytearray(numcodecs.blosc.compress(values.view(np.uint8), b"zstd", 5, 0, 256))
    frame[3] = typesize
    return bytes(frame)


def test_frames_of_zstd_without_a_content_size(decoder, make_simple):
    """Writers that stream do not know the size beforehand: what counts is what comes out."""
    # one raw block in a frame whose header holds a window but no size
    values = np.arange(40, dtype=np.uint16)
    block = (1 | len(values.tobytes()) << 3).to_bytes(3, "little")
    frame = bytes.fromhex("28b52ffd0058") + block + values.tobytes()
    tasks, out = make_simple(values, "zstd", frame=frame).run(decoder)
    assert tasks.status.tolist() == [OK]
    assert np.array_equal(out[0], values)


@pytest.mark.parametrize("fill", [0, 7, np.nan, -np.inf])
def test_missing_chunks_are_their_fill_value(fill, decoder, make_work):
    """Each missing chunk has the fill value of its array; one value may serve all."""
    values = [np.full((4, 9), value, dtype=np.float32) for value in (fill, 1.5, fill)]
    work = make_work(
        values=values, frames=[b""] * 3, kinds=["fill"] * 3, shape=(3, 9), wanted=np.dtype("f8"), ways=["file"] * 3,
        targets=[(chunk, (1, 0), (3, 9), (0, 0)) for chunk in range(3)],
    )  # fmt: skip
    tasks, out = work.run(decoder)
    assert tasks.status.tolist() == [OK] * 3
    assert out.tobytes() == work.expected().tobytes()
    tasks, out = work.run(decoder, fill=np.full(1, 2, dtype=np.float32))
    assert (out == 2).all()


def test_a_part_of_the_chunks(decoder, make_work, encoder):
    """A run does the chunks it is given and no others: several threads share the tasks."""
    values = [np.full(10, number, dtype=np.uint16) for number in range(6)]
    work = make_work(
        values=values, frames=[encoder(value, "lz4") for value in values], kinds=["lz4"] * 5 + ["fill"], shape=(10,),
        wanted=np.dtype("u2"), ways=["memory"] * 6, targets=[(chunk, (0,), (10,), (0,)) for chunk in range(6)],
    )  # fmt: skip
    tasks, out = work.tasks(), work.empty()
    scratch = Scratch()
    decoder.run(tasks, 2, 4, out, scratch)
    assert tasks.status.tolist() == [-1, -1, 0, 0, -1, -1]
    assert np.array_equal(out[2:4], np.stack(values[2:4]))
    assert (out[[0, 1, 4, 5]].view(np.uint8) == 0xA5).all()
    decoder.run(tasks, 4, 4, out, scratch)
    decoder.run(tasks, 4, 6, out, scratch)
    decoder.run(tasks, 0, 2, out, scratch)
    assert np.array_equal(out, np.stack(values))


def test_a_run_beyond_its_tasks_or_output_is_refused(decoder, make_simple):
    """A planner's mistake is an error before anything is touched."""
    work = make_simple(np.arange(10, dtype=np.uint16))
    tasks, out = work.tasks(), work.empty()
    read_only = out.copy()
    read_only.flags.writeable = False
    scratch = Scratch()
    for first, last, into in [(0, 2, out), (-1, 1, out), (1, 0, out), (0, 1, out[:, :9]), (0, 1, read_only)]:
        with pytest.raises(ValueError, match=r"chunks|targets"):
            decoder.run(tasks, first, last, into, scratch)


def test_steady_work_allocates_nothing(kernel, make_work, encoder):
    """A thread's buffers grow to the largest chunk and are then used again."""
    values = [np.zeros((20, size), dtype=np.uint16) for size in (2, 4000, 3, 4000)]
    work = make_work(
        values=values, frames=[encoder(value, "zstd") for value in values], kinds=["zstd"] * 4, shape=(20, 2),
        wanted=np.dtype("f4"), ways=["file"] * 4, file=True,
        targets=[(chunk, (0, 0), (20, 2), (0, 0)) for chunk in range(4)],
    )  # fmt: skip
    tasks, out = work.tasks(), work.empty()
    scratch = Scratch()
    kernel.run(tasks, 0, 4, out, scratch)
    held = [scratch.read, scratch.decode, scratch.job, scratch.context]
    for _ in range(3):
        kernel.run(tasks, 0, 4, out, scratch)
    now = [scratch.read, scratch.decode, scratch.job, scratch.context]
    assert all(before is after for before, after in zip(held, now, strict=True))
    assert len(scratch.decode) >= values[1].nbytes
