"""A store for zarr-python over our own requests. Imports zarr: import this module late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Literal, NoReturn, TypeVar
from urllib.parse import quote

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from rankwise.data.store.remote.client import Client
from rankwise.data.store.remote.options import locate

T = TypeVar("T")


class ZarrView(Store):
    """A read-only store for zarr-python over the objects below a URL, with our retries, counts and errors.

    zarr-python's own store treats a missing bucket as missing chunks, and gives no reasons.

    Args:
        url: keys are relative to it.
        client: returns the client to use; called each time, so that a closed reader reopens.
    """

    def __init__(self, url: str, client: Callable[[], Client]) -> None:
        super().__init__(read_only=True)
        self._url = url.rstrip("/")
        self._encoded = locate(url).kind == "http"
        self._client = client

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ZarrView) and (self._url, self._client) == (other._url, other._client)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self._url

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return an object or a part of it, None if there is none."""
        url = self._below(key)
        part = await self._on_thread(lambda client: _read(client, url, byte_range))
        return None if part is None else (prototype or default_buffer_prototype()).buffer.from_bytes(part)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return parts of objects."""
        return list(await asyncio.gather(*(self.get(key, prototype, wanted) for key, wanted in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        url = self._below(key)
        return await self._on_thread(lambda client: client.read_size(url)) is not None

    supports_writes = supports_deletes = False
    supports_partial_writes: Literal[False] = False

    @property
    def supports_listing(self) -> bool:
        """True, except for web servers."""
        return not self._encoded

    async def delete(self, key: object, *_: object) -> NoReturn:
        """Raise an error: a view is for reading.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{self} was opened for reading: {key!s:.200} was neither written nor deleted")

    set = set_partial_values = delete  # type: ignore[assignment]  # the second for older versions of zarr-python

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin with a prefix."""
        folder, _, _ = prefix.rpartition("/")
        waiting = [self._below(folder)]
        while waiting:
            url = waiting.pop()
            found = await self._on_thread(lambda client, url=url: client.list_below(url))  # type: ignore[misc]
            waiting.extend(found.folders)
            for key in (each.removeprefix(f"{self._url}/") for each in found.objects):
                if key.startswith(prefix):
                    yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names directly below a prefix."""
        url = self._below(prefix.rstrip("/"))
        found = await self._on_thread(lambda client: client.list_below(url))
        for each in (*found.folders, *found.objects):
            yield each.rpartition("/")[2]

    def _below(self, key: str) -> str:
        return f"{self._url}/{quote(key) if self._encoded else key}" if key else self._url

    async def _on_thread(self, read: Callable[[Client], T]) -> T:
        return await asyncio.wrap_future(self._client().submit(read))


def _read(client: Client, url: str, wanted: ByteRequest | None) -> memoryview | None:
    if wanted is None:
        part = client.read_whole(url)
    elif isinstance(wanted, SuffixByteRequest):
        part = client.read_tail(url, wanted.suffix)
    elif isinstance(wanted, RangeByteRequest):
        part = client.read_part(url, wanted.start, wanted.end - wanted.start)
    elif isinstance(wanted, OffsetByteRequest):
        part = client.read_part(url, wanted.offset, None)
    return None if part is None else part.data
