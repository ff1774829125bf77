"""Opens the arrays of samples in advance, each once, and keeps their metadata."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

from rankwise.data.crops.config import LatencyModel
from rankwise.data.crops.exceptions import (
    DamacyError,
    DecodeError,
    InvalidSample,
    NotFound,
    ShutdownError,
    StorageError,
)
from rankwise.data.store.meta.documents import resolve_place
from rankwise.data.store.meta.nodes import read_node
from rankwise.data.store.meta.tree import STORES, StoredNodes
from rankwise.data.store.ngff.images import Image, open_image
from rankwise.data.store.remote import RemoteFiles
from rankwise.errors import DataError

__all__ = ["OpeningStats", "Openings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningStats:
    """Counts of opened arrays.

    Attributes:
        hits: arrays that were already open, or being opened.
        misses: arrays that had to be opened.
        active: arrays being opened now.
        max_active: largest number of such arrays at any time.
        delays: number of delays injected by a latency model.
        total_delay_s: their sum.
        max_delay_s: the longest.
    """

    hits: int = 0
    misses: int = 0
    active: int = 0
    max_active: int = 0
    delays: int = 0
    total_delay_s: float = 0.0
    max_delay_s: float = 0.0


class Openings:
    """The most recently opened arrays and images, by URI; thread-safe."""

    def __init__(
        self,
        *,
        capacity: int,
        concurrency: int,
        latency: LatencyModel | None = None,
        remote: RemoteFiles | None = None,
        opener: Callable[[str], Image] | None = None,
    ) -> None:
        self._capacity = capacity
        self._latency = latency
        self._remote = remote
        self._opener = opener or partial(open_image, nodes=STORES if remote is None else StoredNodes(remote))
        self._kept: OrderedDict[str, Future[Image]] = OrderedDict()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="rankwise-open")
        self._counts = asdict(OpeningStats())

    @property
    def stats(self) -> OpeningStats:
        """Counts so far."""
        with self._lock:
            return OpeningStats(**self._counts)

    def reset_delays(self) -> None:
        """Reset the counts of delays."""
        with self._lock:
            self._counts.update(delays=0, total_delay_s=0.0, max_delay_s=0.0)

    def start(self, uri: str) -> Future[Image]:
        """Begin to open an array or image, unless it is already known.

        Raises:
            ShutdownError: this was closed.
        """
        with self._lock:
            found = self._kept.get(uri)
            if found is not None:
                self._counts["hits"] += 1
                self._kept.move_to_end(uri)
                return found
            self._counts["misses"] += 1
            request = self._counts["misses"] - 1
            try:
                found = self._pool.submit(self._open, uri, request)
            except RuntimeError as error:  # the pool is shut down
                raise ShutdownError("the pipeline was closed while arrays were being opened") from error
            self._kept[uri] = found
            if len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
        found.add_done_callback(lambda future: self._forget_failure(uri, future))
        return found

    def get(self, uri: str, sample: int) -> Image:
        """Wait for an array or image and return it.

        Raises:
            NotFound: there is nothing at the URI.
            InvalidSample: there is something else.
            DecodeError: its metadata are damaged.
            StorageError: it cannot be read.
            ShutdownError: this was closed.
        """
        try:
            return self.start(uri).result()
        except DamacyError:
            raise
        except Exception as error:
            if self._closing.is_set():
                raise ShutdownError("the pipeline was closed while arrays were being opened") from error
            raise _explained(error, uri, sample, self._remote) from error

    def close(self) -> None:
        """Stop; openings in progress end by themselves."""
        self._closing.set()
        if self._remote is not None:
            self._remote.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _open(self, uri: str, request: int) -> Image:
        with self._lock:
            self._counts["active"] += 1
            self._counts["max_active"] = max(self._counts["max_active"], self._counts["active"])
        try:
            self._delay(request)
            return self._opener(uri)
        finally:
            with self._lock:
                self._counts["active"] -= 1

    def _delay(self, request: int) -> None:
        if self._latency is None:
            return
        delay_s = self._latency.delay_s(request)
        with self._lock:
            self._counts["delays"] += 1
            self._counts["total_delay_s"] += delay_s
            self._counts["max_delay_s"] = max(self._counts["max_delay_s"], delay_s)
        self._closing.wait(delay_s)

    def _forget_failure(self, uri: str, future: Future[Image]) -> None:
        """Forget a failed opening, so that the next sample that needs the array tries again."""
        if future.cancelled() or future.exception() is not None:
            with self._lock:
                if self._kept.get(uri) is future:
                    del self._kept[uri]


def _explained(error: Exception, uri: str, sample: int, remote: RemoteFiles | None) -> DamacyError:
    text = f"sample {sample} cannot be read: {uri} could not be opened: {error}"
    if isinstance(error, OSError) or not isinstance(error, DataError) or isinstance(error.__cause__, OSError):
        return StorageError(text, uri=uri, sample=sample)
    kind: type[DamacyError] = DecodeError
    with suppress(DataError):
        node = read_node(resolve_place(uri), remote)
        if node is None:
            kind = NotFound
        elif node.kind == "group" and "multiscales" in str(error):
            kind = InvalidSample
    return kind(text, uri=uri, sample=sample)
