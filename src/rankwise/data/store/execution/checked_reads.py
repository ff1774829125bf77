"""A store for zarr-python that detects truncated data. Imports zarr: import this module late.

numcodecs trusts the length in a Blosc frame. For a truncated frame it reads beyond the buffer, into unrelated memory.
So zarr-python gets metadata in which Blosc has another name, which refers to a codec that checks the frame first.
Also, zarr-python reads a chunk that should lie beyond the end of a shard as one that was never written.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numcodecs.abc import Codec
from numcodecs.registry import get_codec
from numcodecs.registry import register_codec as register_numcodec
from zarr.abc.codec import BytesBytesCodec
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.registry import get_codec_class, register_codec
from zarr.storage import WrapperStore

from rankwise.errors import DataError

_NAME = "rankwise.checked_blosc"
_THEIRS = ("blosc", "numcodecs.blosc")
_HEADER_BYTES = 16
_DOCUMENTS = ("zarr.json", ".zarray")


class CheckedStore(WrapperStore[Store]):
    """A store that returns all requested bytes or raises, and metadata that name the checking Blosc codec.

    Args:
        store: the wrapped store.
        trouble: returns the error of the whole array; called when a value is missing.
    """

    def __init__(self, store: Store, trouble: Callable[[], DataError | None] = lambda: None) -> None:
        super().__init__(store)
        self._trouble = trouble

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return a value or a part of it; metadata documents are changed.

        Raises:
            DataError: a part lies beyond the end, or the whole array does not exist any more.
        """
        found = await self._store.get(key, prototype, byte_range)
        if found is None:
            trouble = await asyncio.to_thread(self._trouble)
            if trouble is not None:
                raise trouble
            return None
        if isinstance(byte_range, RangeByteRequest) and len(found) != byte_range.end - byte_range.start:
            raise DataError(f"needs bytes {byte_range.start} to {byte_range.end - 1} of {key}, which is shorter")
        if byte_range is not None or key.rpartition("/")[2] not in _DOCUMENTS:
            return found
        return prototype.buffer.from_bytes(_renamed(found.to_bytes()))

    # zarr-python 3.2 and later would else read ranges, or without its event loop, from the wrapped store, unchecked
    _supports_sync_io = False

    async def get_ranges(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], *, prototype: BufferPrototype, **_: Any
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """Yield the parts of a value in one group, each as `get` returns it; errors are as zarr-python wants them."""
        found = await asyncio.gather(*(self.get(key, prototype, byte_range) for byte_range in byte_ranges))
        if any(part is None for part in found):
            raise BaseExceptionGroup("no such value", [FileNotFoundError(key)])
        yield [*enumerate(found)]


def _renamed(text: bytes) -> bytes:
    try:
        document = json.loads(text)
    except ValueError:
        return text  # zarr-python reports the error
    if not isinstance(document, dict):
        return text
    parts = {key: _replaced(document[key]) for key in ("codecs", "compressor", "filters") if key in document}
    return json.dumps(document | parts).encode()


def _replaced(codecs: Any) -> Any:
    """Return a part of a document with its codecs replaced, at any depth."""
    if isinstance(codecs, list):
        return [_replaced(part) for part in codecs]
    if not isinstance(codecs, dict):
        return codecs
    if codecs.get("name") in _THEIRS and "configuration" in codecs:
        return {"name": _NAME, "configuration": {"codec": codecs}}
    if codecs.get("id") == "blosc":
        return {"id": _NAME, "codec": codecs}
    return {key: _replaced(part) for key, part in codecs.items()}


@dataclass(frozen=True)
class _CheckedV3(BytesBytesCodec):
    """For arrays of version 3."""

    codec: BytesBytesCodec
    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Return the codec for a part of a document."""
        document = data["configuration"]["codec"]
        return cls(codec=get_codec_class(document["name"]).from_dict(document))  # type: ignore[arg-type]

    def to_dict(self) -> Any:
        """Return the codec as part of a document."""
        return {"name": _NAME, "configuration": {"codec": self.codec.to_dict()}}

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        """Return a codec that knows the dtype."""
        return type(self)(codec=self.codec.evolve_from_array_spec(array_spec))

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Return the size from the wrapped codec."""
        return self.codec.compute_encoded_size(input_byte_length, chunk_spec)

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        _check(chunk_data.as_numpy_array())
        return await self.codec._decode_single(chunk_data, chunk_spec)  # noqa: SLF001  (how codecs are nested there)


class _CheckedV2(Codec):  # type: ignore[misc]
    """For arrays of version 2."""

    codec_id = _NAME

    def __init__(self, codec: dict[str, Any]) -> None:
        self.codec = codec
        self._inner = get_codec(codec)

    def encode(self, buf: Any) -> Any:
        """Return the result of the wrapped codec."""
        return self._inner.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Check, then decode."""
        _check(np.frombuffer(buf, dtype=np.uint8))
        return self._inner.decode(buf, out)


def _check(frame: Any) -> None:
    size = frame.nbytes
    says = int.from_bytes(frame.tobytes()[12:_HEADER_BYTES], "little")
    if size < _HEADER_BYTES or says != size:
        raise ValueError(f"a Blosc frame has {size} bytes but should have {max(says, _HEADER_BYTES)}")


register_codec(_NAME, _CheckedV3)
register_numcodec(_CheckedV2)
