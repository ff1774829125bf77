"""Chooses the decoder of this process: it must decode known chunks before it is used for data."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

import numpy as np

from rankwise._process.forks import forks_wait
from rankwise.data.store.decode import tasks as codes
from rankwise.data.store.decode.decoder import Scratch, ThreadsDecoder
from rankwise.data.store.decode.kernel import Decoder
from rankwise.data.store.decode.tasks import ChunkTasks, address_of
from rankwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rankwise.data.contract import NDArray

VARIABLE = "RANKWISE_DECODER"
_CHOICES = ("kernel", "threads")


def choose_decoder() -> tuple[Decoder, str]:
    """Return the decoder of this process, and the reason if it is not the compiled one (else "").

    It is the compiled one if that works here, else Python threads with numcodecs; tested once per process. The
    environment variable `VARIABLE` selects one of them: "kernel" or "threads".

    Raises:
        ConfigError: the variable has another value, or selects the compiled one, which does not work here.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", *_CHOICES):
        raise ConfigError(f"{VARIABLE} must be one of {', '.join(_CHOICES)}, got {asked!r}")
    with forks_wait:
        decoder, why = _chosen(asked)
    if asked == "kernel" and decoder.name != "kernel":
        raise ConfigError(f"{VARIABLE} requests the compiled decoder, which does not work here: {why}")
    return decoder, why


@functools.cache
def _chosen(asked: str) -> tuple[Decoder, str]:
    if asked == "threads":
        return ThreadsDecoder(), f"{VARIABLE} requests it"
    try:
        return _kernel(), ""
    except Exception as error:  # noqa: BLE001  (whatever goes wrong while compiling: there is another way)
        first, *_ = str(error).strip().split("\n")
        return ThreadsDecoder(), f"{type(error).__name__}: {first}".rstrip(": ")


def _kernel() -> Decoder:
    from rankwise.data.store.decode.kernel import KernelDecoder

    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise ConfigError("NUMBA_DISABLE_JIT is set")
    decoder = KernelDecoder()
    self_test(decoder)
    return decoder


_FILL = 7
_START, _EXTENT = (2, 3, 5), (4, 9, 20)


class SelfTestError(DataError):
    """A decoder decoded known chunks incorrectly: it must not be used."""


def self_test(decoder: Decoder) -> None:
    """Decode and cast chunks of every kind, and one damaged frame of each.

    Raises:
        SelfTestError: a result differs from NumPy's, or damage was not detected.
    """
    values = np.arange(8 * 16 * 32, dtype=np.uint16).reshape(8, 16, 32) * 37 % 4099
    frames = _frames(values)
    region = tuple(slice(low, low + far) for low, far in zip(_START, _EXTENT, strict=True))
    scratch = Scratch()
    tasks, out = _run(decoder, frames, values, scratch)
    for chunk, (name, kind, _) in enumerate(frames):
        status, detail = int(tasks.status[chunk]), int(tasks.detail[chunk])
        if status != codes.OK:
            told = codes.describe(status, detail, length=int(tasks.length[chunk]), chunk_bytes=values.nbytes)
            raise SelfTestError(f"a test chunk ({name}) {told}")
        if not np.array_equal(out[chunk], np.full(_EXTENT, _FILL) if kind == codes.KIND_FILL else values[region]):
            raise SelfTestError(f"the elements of a test chunk ({name}) are decoded wrongly")
    cut = [(name, kind, frame[:-1]) for name, kind, frame in frames if kind != codes.KIND_FILL]
    tasks, _ = _run(decoder, cut, values, scratch)
    if (tasks.status == codes.OK).any():
        raise SelfTestError(f"a damaged test chunk was accepted ({cut[int(np.argmin(tasks.status))][0]})")


def _frames(values: NDArray) -> list[tuple[str, int, bytes]]:
    import numcodecs
    from numcodecs import blosc

    raw = values.tobytes()
    frames = [("raw", codes.KIND_RAW, raw), ("missing", codes.KIND_FILL, b"")]
    frames += [
        ("zstd", codes.KIND_ZSTD, numcodecs.Zstd(level=1).encode(raw)),
        ("lz4", codes.KIND_LZ4, numcodecs.LZ4().encode(raw)),
    ]
    for name in blosc.list_compressors():
        for shuffle in (blosc.NOSHUFFLE, blosc.SHUFFLE, blosc.BITSHUFFLE):
            codec = numcodecs.Blosc(cname=name, clevel=1, shuffle=shuffle, blocksize=2048)
            frames.append((f"blosc {name} {shuffle}", codes.KIND_BLOSC, bytes(codec.encode(values))))
    return frames


def _run(
    decoder: Decoder, frames: list[tuple[str, int, bytes]], values: NDArray, scratch: Scratch
) -> tuple[ChunkTasks, NDArray]:
    num = len(frames)
    buffers = [np.frombuffer(frame or b"-", dtype=np.uint8) for _, _, frame in frames]
    out = np.zeros((num, *_EXTENT), dtype=np.float32)
    tasks = ChunkTasks(
        fd=np.full(num, -1),
        offset=np.zeros(num, dtype=np.int64),
        length=np.array([len(frame) for _, _, frame in frames]),
        encoded=np.array([address_of(buffer) for buffer in buffers]),
        decoded=np.zeros(num, dtype=np.int64),
        keep=np.zeros(num, dtype=np.int64),
        kind=np.array([kind for _, kind, _ in frames]),
        fill=np.full(1, _FILL, dtype=values.dtype),
        chunk_shape=np.tile(values.shape, (num, 1)),
        bounds=np.arange(num + 1),
        src_start=np.tile(_START, (num, 1)),
        extent=np.tile(_EXTENT, (num, 1)),
        dst_start=np.arange(num) * int(np.prod(_EXTENT)),
        dst_strides=np.array([_EXTENT[1] * _EXTENT[2], _EXTENT[2], 1]),
    )
    decoder.run(tasks, 0, num, out, scratch)
    return tasks, out
