"""Damage is a status that says what is wrong, never a crash and never a silent difference."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rankwise.data.store.decode.tasks import (
    BAD_FRAME,
    CUT_SHORT,
    OK,
    OS_ERROR,
    TOO_LONG,
    UNKNOWN_COMPRESSOR,
    UNKNOWN_KIND,
    WRONG_LENGTH,
    WRONG_SIZE,
)

VALUES = np.random.default_rng(1).integers(0, 50, (12, 30)).astype(np.uint16)
FUZZ = Path(__file__).with_name("fuzz_frames.py")


def outcome(decoder, work, **changes):
    tasks, _ = work.run(decoder, **changes)
    return int(tasks.status[0]), int(tasks.detail[0])


@pytest.mark.parametrize("kind", ["raw", "zstd", "blosc", "lz4"])
def test_a_file_that_ends_too_early(kind, decoder, make_simple, encoder):
    """A truncated shard is damage; the status says how much could be read."""
    frame = encoder(VALUES, kind)
    work = make_simple(VALUES, kind, way="file")
    os.truncate(work.path, len(frame) - 3)
    assert outcome(decoder, work) == (CUT_SHORT, len(frame) - 3)


@pytest.mark.parametrize("kind", ["raw", "zstd", "blosc", "lz4"])
def test_a_file_that_cannot_be_read(kind, decoder, make_simple):
    """Trouble with the storage comes with its errno and is told from damage."""
    work = make_simple(VALUES, kind, way="file")
    assert outcome(decoder, work, fd=np.array([999_999])) == (OS_ERROR, errno.EBADF)
    assert outcome(decoder, work, offset=np.array([-5])) == (OS_ERROR, errno.EINVAL)


@pytest.mark.parametrize("kind", ["zstd", "blosc", "lz4"])
def test_a_frame_of_another_chunk_size(kind, decoder, make_simple, encoder):
    """A chunk that is larger or smaller than declared is never cut to size or padded."""
    for other in (VALUES[:-1], np.concatenate([VALUES, VALUES])):
        status, detail = outcome(decoder, make_simple(VALUES, kind, frame=encoder(other, kind)))
        assert status == WRONG_SIZE
        assert detail in (other.nbytes, -1)


@pytest.mark.parametrize("way", ["memory", "file"])
def test_raw_bytes_of_another_length(way, decoder, make_simple):
    """Uncompressed chunks have one possible length."""
    for frame in (VALUES.tobytes()[:-1], VALUES.tobytes() + b"-"):
        assert outcome(decoder, make_simple(VALUES, frame=frame, way=way)) == (WRONG_LENGTH, VALUES.nbytes)


@pytest.mark.parametrize(("kind", "status"), [("zstd", BAD_FRAME), ("blosc", WRONG_LENGTH), ("lz4", BAD_FRAME)])
def test_bytes_too_many_or_too_few(kind, status, decoder, make_simple, encoder):
    """A frame is exactly as long as it says: what follows it is damage as well."""
    good = encoder(VALUES, kind)
    for frame in (good + b"12345678", good[:-1]):
        for way in ("memory", "file"):
            assert outcome(decoder, make_simple(VALUES, kind, frame=frame, way=way))[0] == status


@pytest.mark.parametrize("kind", ["zstd", "blosc", "lz4"])
@pytest.mark.parametrize("frame", [b"", b"-", b"----", b"---------------", b"-" * 16, b"-" * 99])
def test_bytes_that_are_no_frame(kind, frame, decoder, make_simple):
    """Bytes of anything else are refused, however few they are."""
    assert outcome(decoder, make_simple(VALUES, kind, frame=frame))[0] in (BAD_FRAME, WRONG_LENGTH, WRONG_SIZE)


def test_a_flipped_bit_in_a_zstd_frame_with_a_checksum(decoder, make_simple):
    """Whoever writes checksums is told of every flipped bit that makes a difference."""
    import numcodecs

    good = bytes(numcodecs.Zstd(level=3, checksum=True).encode(VALUES.tobytes()))
    for place in range(0, len(good), 3):
        bad = bytearray(good)
        bad[place] ^= 4
        tasks, out = make_simple(VALUES, "zstd", frame=bytes(bad)).run(decoder)
        assert tasks.status[0] in (BAD_FRAME, WRONG_SIZE) or np.array_equal(out[0], VALUES)


def test_a_blosc_frame_of_an_unknown_compressor(decoder, make_simple, encoder):
    """A compressor that this build lacks is named, and is not taken for damage."""
    frame = bytearray(encoder(VALUES, "blosc"))
    for number in (2, 7):
        frame[2] = frame[2] & 0x1F | number << 5
        assert outcome(decoder, make_simple(VALUES, "blosc", frame=bytes(frame))) == (UNKNOWN_COMPRESSOR, number)


def test_a_length_that_no_chunk_has(decoder, make_simple):
    """A shard index that lies about a length gets no memory for it."""
    work = make_simple(VALUES, "zstd", way="file")
    for length in (2**40, 2**62, -1):
        status, detail = outcome(decoder, work, length=np.array([length]))
        assert status == TOO_LONG
        assert detail < 2**18


def test_a_kind_that_is_none(decoder, make_simple):
    """A number that stands for no kind is refused."""
    for kind in (17, -1):
        assert outcome(decoder, make_simple(VALUES), kind=np.array([kind])) == (UNKNOWN_KIND, kind)


def test_one_bad_chunk_among_good_ones(decoder, make_work, encoder):
    """Damage of one chunk does not touch the others, nor what its buffers hold for the next."""
    good = encoder(VALUES, "blosc")
    frames = [good, good[:40], good, b"", good]
    work = make_work(
        values=[VALUES] * 5, frames=frames, kinds=["blosc"] * 5, shape=VALUES.shape, wanted=np.dtype("f4"),
        ways=["memory"] * 5, targets=[(chunk, (0, 0), VALUES.shape, (0, 0)) for chunk in range(5)],
    )  # fmt: skip
    tasks, out = work.run(decoder)
    assert tasks.status.tolist() == [OK, WRONG_LENGTH, OK, BAD_FRAME, OK]
    assert all(np.array_equal(out[chunk], VALUES) for chunk in (0, 2, 4))
    assert (out[[1, 3]].view(np.uint8) == 0xA5).all()


def run_fuzz(seed, num):
    """Return how many damaged frames were decoded; fails where the process did."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(FUZZ), str(seed), str(num)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.partition(" damaged frames")[0])


def test_damaged_frames_never_stray_from_their_buffers():
    """Whatever the bytes are, nothing beyond a buffer is read or written, and both decoders agree on what is damage."""
    assert run_fuzz(20, 1500) == 1500


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_damaged_frames_never_stray_from_their_buffers(seed):
    """The same for tens of thousands of frames."""
    assert run_fuzz(seed, 20_000) == 20_000
