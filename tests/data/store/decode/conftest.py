"""Chunks made for decoders: encoded in every way, lying in files or in memory, with what must come out."""

import os
from dataclasses import dataclass, field

import numcodecs
import numpy as np
import pytest
from numcodecs import blosc

from rankwise.data.store.boxes import converted
from rankwise.data.store.decode.decoder import Scratch, ThreadsDecoder
from rankwise.data.store.decode.kernel import KernelDecoder
from rankwise.data.store.decode.tasks import (
    KIND_BLOSC,
    KIND_FILL,
    KIND_LZ4,
    KIND_RAW,
    KIND_ZSTD,
    ChunkTasks,
    address_of,
)

KINDS = {"raw": KIND_RAW, "zstd": KIND_ZSTD, "blosc": KIND_BLOSC, "lz4": KIND_LZ4, "fill": KIND_FILL}


def encode(values, kind, *, compressor="lz4", shuffle=1, blocksize=0, level=1):
    """The bytes of a chunk; of a missing one none."""
    if kind == "raw":
        return values.tobytes()
    if kind == "zstd":
        return bytes(numcodecs.Zstd(level=level).encode(values.tobytes()))
    if kind == "lz4":
        return bytes(numcodecs.LZ4().encode(values.tobytes()))
    if kind == "blosc":
        plain = np.ascontiguousarray(values).view(f"V{values.itemsize}") if values.dtype.kind not in "biufc" else values
        return bytes(blosc.compress(plain, compressor.encode(), level, shuffle, blocksize))
    return b""


@dataclass
class Work:
    """Chunks and targets of one stored dtype and one output, and what must come out.

    Attributes:
        values: the elements of each chunk; of a missing chunk, of one element.
        frames: the encoded bytes of each chunk.
        kinds: how each chunk is encoded.
        targets: (chunk, start, extent, shift) of each target, sorted by chunk; target t goes to ``out[t]``, `shift`
            elements from its corner.
        shape: shape of ``out[t]``.
        ways: where the bytes of each chunk come from: "file", "memory", or "decoded" = decoded before.
        kept: chunks whose decoded bytes are to be kept.
    """

    values: list
    frames: list
    kinds: list
    targets: list
    shape: tuple
    wanted: np.dtype
    ways: list
    kept: set = field(default_factory=set)
    scaling: list | None = None
    path: str | None = None

    def __post_init__(self):
        self.stored = self.values[0].dtype
        self.buffers = [np.frombuffer(frame or b"-", dtype=np.uint8).copy() for frame in self.frames]
        self.decoded = [np.ascontiguousarray(value) for value in self.values]
        self.keeps = [np.zeros(value.shape, value.dtype) for value in self.values]
        self.fd = -1
        self.starts = np.concatenate([[0], np.cumsum([len(frame) for frame in self.frames])]).astype(np.int64)
        if self.path is not None:
            with open(self.path, "wb") as file:  # noqa: PTH123
                file.write(b"".join(self.frames))
            self.fd = os.open(self.path, os.O_RDONLY)

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)

    def tasks(self, **changes):
        num, ndim = len(self.values), len(self.shape)
        chunks = [target[0] for target in self.targets]
        shape = np.array([value.shape for value in self.values], dtype=np.int64).reshape(num, ndim)
        strides = np.array([int(np.prod(self.shape[axis + 1 :])) for axis in range(ndim)], dtype=np.int64)
        shifts = np.array([target[3] for target in self.targets], dtype=np.int64).reshape(len(self.targets), ndim)
        at = np.arange(len(self.targets)) * int(np.prod(self.shape)) + shifts @ strides
        fills = [value.reshape(-1)[0] for value in self.values]
        tables = {
            "fd": np.array([self.fd if way == "file" else -1 for way in self.ways], dtype=np.int64),
            "offset": self.starts[:-1].copy(),
            "length": np.array([len(frame) for frame in self.frames], dtype=np.int64),
            "encoded": self._addresses(self.buffers, "memory"),
            "decoded": self._addresses(self.decoded, "decoded"),
            "keep": np.array([address_of(k) if i in self.kept else 0 for i, k in enumerate(self.keeps)], np.int64),
            "kind": np.array([KINDS[kind] for kind in self.kinds], dtype=np.int64),
            "fill": np.array(fills, dtype=self.stored),
            "chunk_shape": shape,
            "bounds": np.searchsorted(chunks, np.arange(num + 1)).astype(np.int64),
            "src_start": np.array([t[1] for t in self.targets], dtype=np.int64).reshape(-1, ndim),
            "extent": np.array([t[2] for t in self.targets], dtype=np.int64).reshape(-1, ndim),
            "dst_start": at.astype(np.int64),
            "dst_strides": strides,
        }
        if self.scaling is not None:
            tables["scale"] = np.array([pair[0] for pair in self.scaling], dtype=np.float64)
            tables["offset_"] = np.array([pair[1] for pair in self.scaling], dtype=np.float64)
        tasks = ChunkTasks(**(tables | changes))
        tasks.status[:] = -1  # so that a chunk that was left out shows
        return tasks

    def empty(self):
        """An output whose every byte is the same, so that a stray write shows."""
        out = np.empty((len(self.targets), *self.shape), dtype=self.wanted)
        out.view(np.uint8)[...] = 0xA5
        return out

    def expected(self):
        """What must come out, by NumPy alone; raises what NumPy's way raises."""
        out = self.empty()
        for index, (chunk, start, extent, shift) in enumerate(self.targets):
            region = tuple(slice(low, low + far) for low, far in zip(start, extent, strict=True))
            place = tuple(slice(low, low + far) for low, far in zip(shift, extent, strict=True))
            scale, offset = self.scaling[index] if self.scaling is not None else (None, None)
            out[index][place] = converted(self.values[chunk][region], self.wanted, scale=scale, offset=offset)
        return out

    def run(self, decoder, **changes):
        """Run all chunks; returns the tasks and the output."""
        tasks, out = self.tasks(**changes), self.empty()
        scratch = Scratch()
        decoder.run(tasks, 0, len(tasks), out, scratch)
        return tasks, out

    def _addresses(self, arrays, way):
        pairs = zip(self.ways, arrays, strict=True)
        return np.array([address_of(array) if mine == way else 0 for mine, array in pairs], dtype=np.int64)


@pytest.fixture
def make_work(tmp_path):
    """A function that makes `Work`, one file each, and closes it in the end."""
    made = []

    def make(*, file=False, **arguments):
        path = str(tmp_path / f"{len(made)}.bin") if file else None
        made.append(Work(path=path, **arguments))
        return made[-1]

    yield make
    for work in made:
        work.close()


@pytest.fixture
def make_simple(make_work):
    """A function that makes `Work` of one chunk that goes out whole."""

    def make(values, kind="raw", *, wanted=None, way="memory", frame=None, scaling=None, **encoding):
        target = (0, (0,) * values.ndim, values.shape, (0,) * values.ndim)
        return make_work(
            file=way == "file",
            values=[values],
            frames=[encode(values, kind, **encoding) if frame is None else frame],
            kinds=[kind],
            targets=[target],
            shape=values.shape,
            wanted=np.dtype(values.dtype if wanted is None else wanted),
            ways=[way],
            scaling=None if scaling is None else [scaling],
        )

    return make


@pytest.fixture(scope="session")
def encoder():
    """`encode`, for tests of this folder."""
    return encode


@pytest.fixture(scope="session")
def work_class():
    """`Work` itself, for tests that close what they make."""
    return Work


@pytest.fixture(scope="session")
def kernel():
    """The compiled decoder: these tests are for machines where it works."""
    return KernelDecoder()


@pytest.fixture(scope="session", params=["kernel", "threads"])
def decoder(request):
    """Both decoders, one after the other."""
    return request.getfixturevalue("kernel") if request.param == "kernel" else ThreadsDecoder()
