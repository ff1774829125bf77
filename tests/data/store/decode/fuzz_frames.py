"""Run as a script: damaged frames into both decoders, with memory that ends the process where anybody strays.

Every buffer ends at a page that may not be touched. A decoder that reads or writes beyond its buffers ends the process
with a signal; one that differs from the other ends it with an assertion.

Arguments: seed, number of damaged frames.
"""

import ctypes
import faulthandler
import mmap
import sys

import numcodecs
import numpy as np

from rankwise.data.store.decode.decoder import Scratch, ThreadsDecoder
from rankwise.data.store.decode.kernel import KernelDecoder
from rankwise.data.store.decode.tasks import KIND_BLOSC, KIND_LZ4, KIND_RAW, KIND_ZSTD, ChunkTasks, address_of, describe

PAGE = mmap.PAGESIZE
COMPRESSORS = ("zstd", "lz4", "lz4hc", "blosclz", "zlib")
SHAPE = (7, 11, 13)
LIBC = ctypes.CDLL(None, use_errno=True)
HELD = []


def guarded(num_bytes):
    """A buffer that ends where a forbidden page begins."""
    pages = -(-num_bytes // PAGE) + 1
    area = mmap.mmap(-1, (pages + 1) * PAGE)
    HELD.append(area)
    block = np.frombuffer(area, dtype=np.uint8)
    guard = ctypes.c_void_p(address_of(block) + pages * PAGE)
    assert LIBC.mprotect(guard, ctypes.c_size_t(PAGE), 0) == 0
    return block[pages * PAGE - num_bytes : pages * PAGE]


def good_frames(rng):
    """Frames of every kind, of chunks that compress well and of noise."""
    frames = []
    for dtype in ("u1", "u2", "f4"):
        for top in (2, 200):
            values = rng.integers(0, top, SHAPE).astype(dtype)
            raw = values.tobytes()
            frames += [
                (KIND_ZSTD, dtype, numcodecs.Zstd(level=level, checksum=level > 1).encode(raw)) for level in (1, 5)
            ]
            frames += [(KIND_LZ4, dtype, numcodecs.LZ4().encode(raw)), (KIND_RAW, dtype, raw)]
            for name in COMPRESSORS:
                for shuffle in (0, 1, 2):
                    block = int(rng.choice([0, 128, 300]))
                    codec = numcodecs.Blosc(name, int(rng.integers(0, 9)), shuffle, block)
                    frames.append((KIND_BLOSC, dtype, bytes(codec.encode(values))))
    return frames


def damaged(rng, frame):
    """A frame with one thing or several wrong."""
    bytes_ = bytearray(frame)
    match int(rng.integers(0, 7)):
        case 0:
            for _ in range(int(rng.integers(1, 4))):
                bytes_[int(rng.integers(0, len(bytes_)))] ^= 1 << int(rng.integers(0, 8))
        case 1:  # where the sizes stand
            bytes_[int(rng.integers(0, min(32, len(bytes_))))] = int(rng.integers(0, 256))
        case 2:
            del bytes_[int(rng.integers(0, len(bytes_))) :]
        case 3:
            bytes_ += rng.bytes(int(rng.integers(1, 40)))
        case 4:
            bytes_[16:] = rng.bytes(max(0, len(bytes_) - 16))
        case 5:
            bytes_ = bytearray(rng.bytes(int(rng.integers(0, 200))))
        case _:  # cut, but with a header that knows
            del bytes_[int(rng.integers(min(16, len(bytes_)), len(bytes_) + 1)) :]
            bytes_[12:16] = len(bytes_).to_bytes(4, "little")[: len(bytes_[12:16])]
            for _ in range(3):
                if len(bytes_) > 16:
                    bytes_[int(rng.integers(16, len(bytes_)))] = int(rng.integers(0, 256))
    return bytes(bytes_)


def tasks_of(kind, frame, dtype, *, source, keep, region):
    """Tasks of one chunk and one target."""
    one = {name: np.zeros(1, dtype=np.int64) for name in ("offset", "decoded", "dst_start")}
    start, extent = region
    return ChunkTasks(
        fd=np.full(1, -1),
        length=np.full(1, len(frame)),
        encoded=np.full(1, address_of(source) if len(source) else 1),
        keep=np.full(1, address_of(keep) if keep is not None else 0),
        kind=np.full(1, kind),
        fill=np.zeros(1, dtype=dtype),
        chunk_shape=np.array([SHAPE]),
        bounds=np.array([0, 1]),
        src_start=np.array([start]),
        extent=np.array([extent]),
        dst_strides=np.array([SHAPE[1] * SHAPE[2], SHAPE[2], 1]),
        **one,
    )


def main(seed, num):
    faulthandler.enable()
    rng = np.random.default_rng(seed)
    frames = good_frames(rng)
    kernel, threads = KernelDecoder(), ThreadsDecoder()
    sources = guarded(2 * 2**16)
    keeps = {dtype: guarded(int(np.prod(SHAPE)) * np.dtype(dtype).itemsize) for dtype in ("u1", "u2", "f4")}
    place = guarded(int(np.prod(SHAPE)) * 4).view(np.float32).reshape(SHAPE)
    ours, scratch, passed = Scratch(), Scratch(), 0
    for _ in range(num):
        kind, dtype, good = frames[int(rng.integers(0, len(frames)))]
        frame = damaged(rng, good)
        source = sources[len(sources) - len(frame) :]
        source[...] = np.frombuffer(frame, dtype=np.uint8)
        start = [int(rng.integers(0, size)) for size in SHAPE]
        extent = [int(rng.integers(1, size - low + 1)) for low, size in zip(start, SHAPE, strict=True)]
        # the decode buffer ends at a forbidden page too; it is found large enough and stays
        scratch.decode = keeps[dtype]
        part = tasks_of(kind, frame, dtype, source=source, keep=None, region=(start, extent))
        kernel.run(part, 0, 1, place, scratch)
        whole = tasks_of(kind, frame, dtype, source=source, keep=keeps[dtype], region=([0, 0, 0], SHAPE))
        kernel.run(whole, 0, 1, place, scratch)
        first = place.tobytes()
        slow = tasks_of(kind, frame, dtype, source=source, keep=None, region=([0, 0, 0], SHAPE))
        place[...] = 0
        threads.run(slow, 0, 1, place, ours)
        statuses = int(whole.status[0]), int(slow.status[0])
        assert (statuses[0] == 0) == (statuses[1] == 0), (kind, dtype, frame, statuses, whole.detail, slow.detail)
        assert statuses[0] != 0 or first == place.tobytes(), (kind, dtype, frame)
        # what decodes whole decodes in part; a part may be well where the rest is not
        assert statuses[0] != 0 or part.status[0] == 0, (kind, dtype, frame)
        assert describe(statuses[0], int(whole.detail[0]), length=len(frame), chunk_bytes=1)
        passed += statuses[0] == 0
    print(f"{num} damaged frames, {passed} of them decoded")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
