"""`BoxReader`: many boxes out of many arrays at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rankwise.data.contract import NDArray
from rankwise.data.store.boxes import BoxReport, BoxRequest
from rankwise.data.store.boxes.plain import read_plainly
from rankwise.data.store.boxes.values import check_conversion
from rankwise.data.store.cache import DEFAULT_CACHE_BYTES, ChunkCache

__all__ = ["BoxPlan", "BoxReader"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoxPlan:
    """How one request is read; made by `BoxReader.plan`, read by the same reader.

    Attributes:
        request: what was asked.
        num_chunks: different chunks that it touches.
        read_bytes: encoded bytes to read, as far as known without reading the data.
        decode_bytes: bytes to decode.
    """

    request: BoxRequest
    num_chunks: int
    read_bytes: int
    decode_bytes: int


class BoxReader:
    """Plans and reads requests; thread-safe.

    Args:
        cache: bytes of decoded chunks kept in memory (0 = none), or a `ChunkCache` that several readers share.
        threads: threads that read and decode; None = the cores that this rank may use.
    """

    def __init__(self, *, cache: ChunkCache | int = DEFAULT_CACHE_BYTES, threads: int | None = None) -> None:
        self.cache = cache if isinstance(cache, ChunkCache) else ChunkCache(cache)
        self._threads = threads

    def plan(self, request: BoxRequest) -> BoxPlan:
        """Return how a request is read; touches metadata and shard indexes only.

        Raises:
            ConfigError: elements cannot be converted as asked.
        """
        for array in request.arrays:
            check_conversion(array.dtype, request.dtype, scaled=request.scale is not None, place=array.place)
        return BoxPlan(request=request, num_chunks=0, read_bytes=0, decode_bytes=0)

    def hint(self, plans: Sequence[BoxPlan]) -> None:
        """Ask the system to read the bytes of plans soon. Best effort."""

    def read(self, jobs: Sequence[tuple[BoxPlan, NDArray]]) -> tuple[BoxReport, ...]:
        """Read plans, each into its own C-contiguous array [B, *shape]; one report for each.

        What goes wrong with a box stands in its report and does not touch the others.

        Raises:
            DataError: the storage cannot be read at all.
        """
        return tuple(read_plainly(plan.request, out) for plan, out in jobs)

    def close(self) -> None:
        """Give threads and files back. Reading again opens them anew."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
